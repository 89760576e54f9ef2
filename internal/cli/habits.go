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
	{"u uid gid", "here it is --user UID[:GID]"},
	{"gpus", "here it is --gpu, for all of them, or --device PATH"},
	{"cpu-shares cpuset-cpus cpu-quota", "here it is --cpus N"},
	{"memory-swap memory-reservation", "leave it out: --memory SIZE is all that a sandbox has, and it has no swap"},
	{"storage-opt", "here it is --disk SIZE"},
	{"stop-timeout", "here it is --kill-after DURATION"},
	{"dns add-host", "leave it out: names are looked up outside, those of --allow-host alone"},
	{"expose publish-all", "here it is --publish HOSTPORT:PORT"},
	{"no-new-privileges", "leave it out: a command never gains privileges"},
	{"V", "for the version: sbxrun version"},
	{"h", "for the host name: --hostname NAME; for help: --help"},
	{"pids-limit", "here it is --pids N"},
	{"ulimit rlimit open-files", "here they are --nofile N and --fsize SIZE"},
	{"shm-size", "here it is --tmpfs /dev/shm:SIZE"},
	{"read-only", "the system is read-only in any case; for the workspace: --workspace ro"},
	{"rm", "leave it out: a run leaves nothing to remove, and takes no image: sbxrun run -- CMD"},
	{"init", "leave it out: a sandbox has an init process"},
	{"d detach name", "for a sandbox that stays: sbxrun session create NAME, then sbxrun session exec NAME -- CMD"},
	{"entrypoint", "name the program after --"},
	{"security-opt", "here they are --seccomp, --apparmor-profile and --selinux-label"},
	{"cap-drop", "leave it out: a command has no capabilities"},
	{"cap-add privileged", "a command in a sandbox never has capabilities; --driver host runs it without a sandbox"},
	{"protect", "here more paths are protected by files.protect in a profile file; see docs/profiles.md"},
	{"ro-bind ro-bind-try", "here it is --ro PATH; or --bind SRC:DST:ro"},
	{"bind-try", "here it is --rw PATH; or --bind SRC:DST"},
	{"dev proc mqueue dir", "leave it out: a sandbox has /dev and /proc of its own; for a directory: --tmpfs PATH"},
	{"unsetenv", "leave it out: a command gets no variable that the profile does not pass; --clear-env is for none"},
	{"whitelist noblacklist read-write", "here it is --rw PATH, or --ro PATH"},
	{"blacklist", "here it is --hide PATH"},
	{"private private-tmp private-dev private-home private-etc private-cache",
		"leave it out: under strict, home, /tmp and /dev are the sandbox's own"},
	{"noroot nonewprivs caps", "leave it out: a command has no capabilities, and gains none"},
	{"noprofile", "here a profile is a set of rules: --profile strict is the default"},
	{"rlimit-as rlimit-nproc rlimit-fsize rlimit-nofile",
		"here they are --memory SIZE, --pids N, --fsize SIZE and --nofile N"},
	{"dev-bind", "here it is --device PATH"},
	{"setenv", "here it is --env KEY=VALUE"},
	{"clearenv", "here it is --clear-env"},
	{"share-net", "here it is --net host"},
	{"unshare-net", "leave it out: --net none is the default"},
	{"unshare-all unshare-pid unshare-user unshare-user-try unshare-ipc unshare-uts unshare-cgroup unshare-cgroup-try",
		"leave it out: a sandbox has namespaces of its own"},
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
