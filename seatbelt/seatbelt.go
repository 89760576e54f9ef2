// Package seatbelt is the driver for macOS: it makes a profile of a policy in
// the language of the system's own sandbox (SBPL) and runs the command under it
// with sandbox-exec(1).
//
// The profile denies everything but what the policy shows; see Lower, which
// works on any system, so that a policy's profile can be read and tested
// anywhere. Paths of the policy are parameters of the profile, never its text.
//
// macOS has no namespaces, so some of a policy has another form here. Private
// storage is a directory of the run's own, and the variables and working
// directory that name the place of it are changed to name that; its place
// itself is not there. Memory, the size of private storage and what is left of
// the command are watched by looking, several times a second, not by the
// kernel: short peaks pass, and a process that leaves the command's process
// group between two looks is not found. The profile holds for it all the same.
//
// It does not hide other processes' existence, does not give the command a user
// or host name of its own, filters no system calls and bounds no cpu time: a
// policy that requires these layers does not run, unless it agrees to go
// without them by name.
package seatbelt

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// Name is the driver's name.
const Name = "seatbelt"

// A Driver runs commands under Seatbelt. The zero value is ready to use.
type Driver struct {
	driver.Basic

	// Home is the caller's home directory, where agents' sockets lie; "" if
	// there is none.
	Home string

	// Upstream and NoProxy are the caller's own proxy, as the native driver has it.
	Upstream, NoProxy string
}

var _ driver.Driver = Driver{}

// Name returns "seatbelt".
func (Driver) Name() string { return Name }

// Sandboxed reports true.
func (Driver) Sandboxed() bool { return true }

// Describe says what the driver enforces.
func (d Driver) Describe() driver.Description {
	yes := driver.Claim{Support: driver.Yes}
	part := func(note string) driver.Claim { return driver.Claim{Support: driver.Partly, Note: note} }
	no := func(note string) driver.Claim { return driver.Claim{Note: note} }
	namespace := no("macOS has no namespaces")
	proxy := part(
		"by programs that know of proxies (HTTP_PROXY); whatever else is connected to refuses, unrecorded, and the command has no servers of its own")
	return driver.Description{Summary: "macOS's own sandbox, by a generated profile", Auto: true, Claims: driver.Claims{
		"process":    yes,
		"terminal":   yes,
		"user":       part("the caller's ids"),
		"hostname":   part("the host's own name"),
		"files.read": yes, "files.write": yes, "files.noexec": yes, "files.hide": yes, "files.nested": yes, "files.root": yes,
		"files.overlay":  no("macOS has no overlay file system"),
		"synthetic":      part("left out"),
		"scratch":        part("watched, not bounded"),
		"mounts.private": part("a directory of the run's own, to which variables point; its place is not there"),
		"mounts.sized":   part("watched as a whole"),
		"mounts.noexec":  part("private storage can be executed from"),
		"mounts.bind":    no("a path has one place"),
		"mounts.system":  part("macOS has no /proc; of /dev the harmless devices"),
		"mounts.other":   no("there are no mounts"),
		"masked":         part("macOS has no /proc and /sys"),
		"devices":        yes,
		"egress.none":    yes, "egress.host": yes,
		"egress.loopback": no("the loopback is the host's; unix sockets in private storage work"),
		"egress.proxy":    proxy, "layer.egress": proxy,
		"layer.protect": part(
			"rules of the profile: they know no bare repository, and not what a directory holds that is moved to private storage and back"),
		"egress.publish": no("a port of the host is a port of the command's only with --net host"),
		"limits.time":    part("a process that leaves the command's process group between two looks survives, confined"),
		"limits.output":  yes,
		"limits.other":   no("there is no such limit"),
		"seccomp.custom": no("macOS has no filter of system calls"),
		"capabilities":   no("macOS has none"),
		"oci.other":      no("no profile sets it"),
		"layer.user":     namespace, "layer.pid": namespace, "layer.mount": namespace, "layer.uts": namespace,
		"layer.cgroupns":      namespace,
		"layer.net":           part("rules of the profile"),
		"layer.ipc":           part("rules of the profile"),
		"layer.landlock":      part("rules of the profile"),
		"layer.seccomp":       no("macOS has no filter of system calls"),
		"layer.no_new_privs":  part("set-user-id programs are not executed"),
		"layer.rlimits":       part("core, file size, open files, stack and cpu time"),
		"layer.cgroup.memory": no("watched only, if the policy agrees to go without"),
		"layer.cgroup.cpu":    no("not bounded"),
		"layer.cgroup.pids":   no("not bounded"),
		"layer.selinux":       no("Linux's"), "layer.apparmor": no("Linux's"),
		"result.signal": part("of the command; a sandbox-exec that fails has exit codes of its own"),
		"result.limits": part("memory"),
		"result.killed": no("macOS kills no children with their parent"),
	}}
}

// Check reports what of a policy the profile cannot say.
func (d Driver) Check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := d.Describe().Claims.Refused(Name, p); err != nil {
		return err
	}
	e := &driver.UnsupportedError{Driver: Name}
	for i := range p.OCI.Mounts {
		m := &p.OCI.Mounts[i]
		switch {
		case m.Type == "tmpfs" && m.Destination != "/dev":
			for _, r := range p.Files {
				if policy.Below(m.Destination, r.Path) && r.Path != "/" && r.Access&policy.Read != 0 &&
					!systemPlace(m.Destination) {
					e.Rules = append(e.Rules,
						"oci.mounts."+m.Destination+" (private storage in a directory of the host that is shown)")
					break
				}
			}
		}
	}
	if len(e.Rules) != 0 {
		return e
	}
	_, err := Lower(p, Options{Home: d.Home})
	return err
}

// systemPlace reports whether private storage goes where no program of a Mac
// expects files of the caller.
func systemPlace(p string) bool {
	switch p {
	case "/tmp", "/var/tmp", "/run", "/dev/shm":
		return true
	}
	return false
}

// Lowered returns the profile that Start would use, but for the place of
// private storage, which is made when the run starts.
func (d Driver) Lowered(p *policy.Policy) (any, error) {
	return Lower(p, Options{Home: d.Home})
}

// Environment is the policy's environment with the place of private storage for
// each value that names it, and TMPDIR, without which programs take the
// caller's.
func Environment(p *policy.Policy, scratch string) []string {
	var out []string
	tmp := false
	for _, e := range p.OCI.Process.Env {
		key, value, _ := strings.Cut(e, "=")
		tmp = tmp || key == "TMPDIR"
		out = append(out, key+"="+place(p, value, scratch))
	}
	if !tmp {
		out = append(out, "TMPDIR="+scratch+"/tmp")
	}
	return out
}

// place is where a path of private storage lies on the host; another path is
// itself.
func place(p *policy.Policy, value, scratch string) string {
	if !path.IsAbs(value) {
		return value
	}
	for i := range p.OCI.Mounts {
		m := &p.OCI.Mounts[i]
		if m.Type != "tmpfs" || !policy.Below(value, m.Destination) || shownBelow(p, value, m.Destination) {
			continue
		}
		return scratch + value
	}
	return value
}

// shownBelow reports whether a path of the host is shown at value, in a place
// of private storage.
func shownBelow(p *policy.Policy, value, storage string) bool {
	return slices.ContainsFunc(p.Files, func(r policy.FileRule) bool {
		return r.Access != policy.Hide && policy.Below(r.Path, storage) && policy.Below(value, r.Path)
	})
}

// Available reports nil on a Mac that has sandbox-exec.
func (Driver) Available(ctx context.Context) error { return available(ctx) }

// Start starts the policy's command under its profile.
func (d Driver) Start(ctx context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	if err := available(ctx); err != nil {
		return nil, err
	}
	if err := d.Check(p); err != nil {
		return nil, err
	}
	return start(d, p, stdio)
}
