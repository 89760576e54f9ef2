package cli

import (
	"slices"
	"strings"
)

// habits are flags of docker run, podman and bwrap, and what says the same here.
var habits = []struct{ flags, here string }{
	{"volume mount", "here it is --bind SRC:DST[:ro]; or --ro PATH and --rw PATH, for a path that keeps its name"},
	{"w workdir chdir", "here it is -C DIR"},
	{"network", "here it is --net none|proxy|host"},
	{"p", "here it is --publish HOSTPORT:PORT"},
	{"m", "here it is --memory SIZE"},
	{"u", "here it is --user UID[:GID]"},
	{"h", "for the host name: --hostname NAME; for help: --help"},
	{"pids-limit", "here it is --pids N"},
	{"ulimit rlimit open-files", "here they are --nofile N and --fsize SIZE"},
	{"shm-size", "here it is --tmpfs /dev/shm:SIZE"},
	{"read-only", "the system is read-only in any case; for the workspace: --workspace ro"},
	{"rm", "leave it out: a run leaves nothing to remove"},
	{"init", "leave it out: a sandbox has an init process"},
	{"d detach name", "for a sandbox that stays: sbxrun session create NAME, then sbxrun session exec NAME -- CMD"},
	{"entrypoint", "name the program after --"},
	{"security-opt", "here they are --seccomp, --apparmor-profile and --selinux-label"},
	{"cap-drop", "leave it out: a command has no capabilities"},
	{"cap-add privileged", "a command in a sandbox never has capabilities; --driver host runs it without a sandbox"},
	{"protect", "here more paths are protected by files.protect in a profile file; see docs/profiles.md"},
	{"ro-bind", "here it is --ro PATH; or --bind SRC:DST:ro"},
	{"dev-bind", "here it is --device PATH"},
	{"setenv", "here it is --env KEY=VALUE"},
	{"clearenv", "here it is --clear-env"},
	{"share-net", "here it is --net host"},
	{"unshare-net", "leave it out: --net none is the default"},
	{"unshare-all unshare-pid unshare-user unshare-ipc unshare-uts", "leave it out: a sandbox has namespaces of its own"},
	{"die-with-parent", "leave it out: no process outlives sbxrun"},
	{"new-session", "leave it out: a command has a session of its own"},
}

// habit is the hint about a flag of those programs, "" if it is none.
func habit(flag string) string {
	for _, h := range habits {
		if slices.Contains(strings.Fields(h.flags), flag) {
			return h.here
		}
	}
	return ""
}
