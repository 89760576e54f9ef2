// Package landlocked is the driver for hosts that allow no namespaces: Docker's
// default containers, Ubuntu 24.04 without a profile, user.max_user_namespaces=0.
// Its name is "landlock". The command restricts itself before it is executed, by
// what every process may use: Landlock, a system call filter, no_new_privs,
// resource limits, and a cgroup where there is one. A second stage (reexec, by
// internal/supervisor) is the subreaper of all that it starts and ends it.
//
// It is weaker than namespaces, and says so: every policy that asks for a
// namespace is refused unless it agrees to go without (--allow-degraded
// namespaces). What that means:
//
//   - There is one view of the files, the host's. What is not granted cannot be
//     read, written, executed or listed, but its existence, size, owner and times
//     can be asked for, and what belongs to the caller can be given other modes,
//     owners and times: Landlock has no right for chmod(2), chown(2), stat(2).
//   - A grant cannot be taken back below it: hidden and read-only places within
//     granted ones are refused.
//   - HOME and TMPDIR are directories of the run's own, on the host's disk, without
//     a bound; /tmp itself is not granted, nor are files made for the sandbox.
//   - Processes of the host are seen. They cannot be traced or looked into; before
//     Linux 6.12 (Landlock ABI 6) those of the same user can be signalled.
//   - How the user's other processes run (priority, processors, scheduling, i/o
//     priority, resource limits) is out of reach; see [seccomp.OnlySelf]. The command
//     cannot change it for its own children either, nor for a thread by its id.
//   - No network means no sockets at all; see [seccomp.NoSockets].
//   - Network by name (--net proxy) is a proxy on the host's loopback, to which
//     HTTP_PROXY and its like lead. The command has TCP sockets that connect, and
//     nothing else; connect(2) is made by sbxrun (package guard), to the proxy alone.
//     What ignores the variables is refused, and told in the result.
//   - The command keeps the caller's user id. It has no capabilities in effect.
package landlocked

import (
	"path"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/policy"
)

// Name is the driver's name.
const Name = "landlock"

// MinABI is the oldest version of Landlock that the driver takes: before it,
// what is read-only could be truncated. Linux 6.2.
const MinABI = 3

// A Driver runs commands that restrict themselves. The zero value is ready to
// use, but for policies with a seccomp profile of their own.
type Driver struct {
	driver.Basic

	// SeccompCompiler and CacheDir are for system call filters of one's own; see
	// [seccomp.Custom].
	SeccompCompiler, CacheDir string

	// Upstream and NoProxy are the caller's own proxy, as the native driver has it.
	Upstream, NoProxy string

	// RunDir is where a run's HOME and TMPDIR are made; "" is rundir.Parent.
	RunDir string
}

var _ driver.Driver = Driver{}

// Name returns "landlock".
func (Driver) Name() string { return Name }

// Sandboxed reports that the driver isolates.
func (Driver) Sandboxed() bool { return true }

// Describe says what a process can restrict itself by.
func (Driver) Describe() driver.Description {
	yes := driver.Claim{Support: driver.Yes}
	no := func(note string) driver.Claim { return driver.Claim{Note: note} }
	partly := func(note string) driver.Claim { return driver.Claim{Support: driver.Partly, Note: note} }
	const (
		namespaces = "made for hosts that allow no namespaces"
		proxied    = "by programs that know of proxies (HTTP_PROXY); whatever else is connected to refuses, and the command has no servers of its own"
	)
	return driver.Description{
		Summary: "no namespaces: Landlock, the system call filter, limits; weaker, for hosts that allow no more",
		Auto:    true,
		Claims: driver.Claims{
			"process": yes, "terminal": yes,
			"user": partly(
				"the command keeps the caller's id, without capabilities; what that owns can be given other modes, owners and times"),
			"hostname":       partly("the host's name is seen"),
			"files.read":     yes,
			"files.write":    yes,
			"files.overlay":  no("there is no mount of the sandbox's own"),
			"files.noexec":   yes,
			"files.hide":     no("Landlock cannot take back below a path what it grants above it"),
			"files.nested":   no("Landlock cannot take back below a path what it grants above it"),
			"files.root":     yes,
			"synthetic":      partly("they are not there, and the host's are not readable"),
			"scratch":        partly("HOME and TMPDIR are on the host's disk, without a bound"),
			"mounts.private": partly("HOME and TMPDIR are directories of the run's own; /tmp and other places are not granted"),
			"mounts.sized":   no("there is no mount of the sandbox's own"),
			"mounts.noexec":  no("there is no mount of the sandbox's own"),
			"mounts.bind":    no("there is no mount of the sandbox's own"),
			"mounts.other":   no("there is no mount of the sandbox's own"),
			"mounts.system":  partly("/proc is the host's, read-only; /dev has the usual devices of the host"),
			"masked": partly(
				"nothing in /proc can be written, and what needs a capability cannot be read; the rest is seen"),
			"devices":         yes,
			"egress.none":     partly("no sockets at all, of any family, but connected pairs"),
			"egress.loopback": no("a command that could make sockets could reach the host's servers"),
			"egress.host":     yes,
			"egress.proxy":    partly(proxied),
			"egress.publish":  no("there is no network inside"),
			"limits.time":     yes, "limits.output": yes,
			"limits.other":   no("memory, cpu and processes are what is limited"),
			"seccomp.custom": {Support: driver.Yes, Note: "compiled by sbxrun-seccomp, a program beside sbxrun"},
			"capabilities":   no("the command has none, and gains none"),
			"oci.other":      no("no profile sets it"),
			"layer.user":     no(namespaces), "layer.pid": no(namespaces), "layer.mount": no(namespaces),
			"layer.net": no(namespaces),
			"layer.ipc": no(namespaces), "layer.uts": no(namespaces), "layer.cgroupns": no(namespaces),
			"layer.seccomp": yes, "layer.landlock": yes, "layer.no_new_privs": yes,
			"layer.cgroup.memory": yes, "layer.cgroup.cpu": yes, "layer.cgroup.pids": yes, "layer.rlimits": yes,
			"layer.selinux": no("labels come with mounts"), "layer.apparmor": no("profiles come with namespaces"),
			"layer.protect": {Note: "only the native driver makes calls for a command"},
			"layer.egress":  partly(proxied),
			"result.signal": yes, "result.limits": yes,
			"result.killed": partly("before Linux 6.12 the command can end what would end it, if it runs as the same user"),
		},
	}
}

// devices are those that a command may use; see "Default Devices" in the OCI
// runtime specification.
var devices = [...]string{"null", "zero", "full", "random", "urandom", "tty"}

// Rules lowers the policy's files to Landlock rules on a host with such files.
// private is the run's own directory.
func Rules(p *policy.Policy, host rootfs.Host, private string) (*landlock.Ruleset, error) {
	l := &lowering{host: host, out: &landlock.Ruleset{DenyTCP: p.Egress.Mode != policy.EgressHost}}
	for _, r := range policy.Sort(p.Files) {
		if err := l.file(r); err != nil {
			return nil, err
		}
	}
	for _, u := range p.Unix {
		l.grant(u, landlock.ResolveUnix, true, true)
	}
	l.grant("/proc", landlock.Read, false, true)
	l.grant("/dev", landlock.ReadDir, false, true)
	for _, d := range devices {
		l.grant("/dev/"+d, landlock.ReadFile|landlock.WriteFile|landlock.IoctlDev, true, true)
	}
	if p.OCI.Linux != nil {
		for _, d := range p.OCI.Linux.Devices {
			l.grant(d.Path, landlock.ReadFile|landlock.WriteFile|landlock.IoctlDev, true, false)
		}
	}
	if private != "" {
		l.grant(private, landlock.Read|landlock.Write|landlock.Execute, false, false)
	}
	return l.out, nil
}

type lowering struct {
	host rootfs.Host
	out  *landlock.Ruleset
}

func (l *lowering) grant(path string, a landlock.Access, isFile, optional bool) {
	l.out.Rules = append(l.out.Rules, landlock.Rule{Path: path, Access: a, IsFile: isFile, Optional: optional})
}

func (l *lowering) file(r policy.FileRule) error {
	if r.Access == policy.Hide {
		return nil // what is not granted is hidden; below a grant it was refused
	}
	node, err := l.host.Lookup(r.Path)
	if err != nil {
		return err
	}
	switch node.Kind {
	case rootfs.NodeAbsent:
		if r.Optional {
			return nil
		}
		return &driver.SetupError{Driver: Name, Err: &absentError{r.Path, r.Origin}}
	case rootfs.NodeSymlink:
		return nil // what it leads to is granted where that is
	}
	if r.Path == "/" {
		// Not /proc, /sys and /dev: there are device nodes and the kernel's own
		// files in them. They have rules of their own.
		names, err := l.host.List("/")
		if err != nil {
			return err
		}
		for _, n := range names {
			if n == "proc" || n == "sys" || n == "dev" {
				continue
			}
			sub := r
			sub.Path, sub.Optional = "/"+n, true
			if err := l.file(sub); err != nil {
				return err
			}
		}
		return nil
	}
	l.grant(r.Path, rootfs.Rights(r.Access), node.Kind != rootfs.NodeDir, r.Optional)
	return nil
}

type absentError struct{ path, origin string }

func (e *absentError) Error() string {
	if e.origin == "" {
		return e.path + " does not exist"
	}
	return e.path + " does not exist (" + e.origin + ")"
}

// environment is the policy's, with HOME and TMPDIR in the run's own directory:
// HOME where the policy makes it private, TMPDIR where the policy names none. Git
// is told to pass over the system's configuration where that cannot be read: it
// gives up at a file that is there and closed, and elsewhere the file is not there.
func environment(p *policy.Policy, private string) []string {
	var out []string
	tmp := false
	git := slices.ContainsFunc(p.Files, func(r policy.FileRule) bool {
		return r.Access&policy.Read != 0 && policy.Below("/etc/gitconfig", r.Path)
	})
	for _, e := range p.OCI.Process.Env {
		if h, ok := strings.CutPrefix(e, "HOME="); ok && isPrivate(p, h) {
			e = "HOME=" + private + "/home"
		}
		tmp = tmp || strings.HasPrefix(e, "TMPDIR=")
		git = git || strings.HasPrefix(e, "GIT_CONFIG_NOSYSTEM=")
		out = append(out, e)
	}
	if !tmp {
		out = append(out, "TMPDIR="+private+"/tmp")
	}
	if !git {
		out = append(out, "GIT_CONFIG_NOSYSTEM=1")
	}
	return out
}

// directory is where the command starts: without a workspace in its HOME, which is in
// the run's own directory if the policy makes it private.
func directory(p *policy.Policy, private string) string {
	cwd := p.OCI.Process.Cwd
	if slices.Contains(p.OCI.Process.Env, "HOME="+cwd) && isPrivate(p, cwd) {
		return private + "/home"
	}
	return cwd
}

// isPrivate reports whether the policy has private storage at a path.
func isPrivate(p *policy.Policy, at string) bool {
	for dir := path.Clean(at); ; dir = path.Dir(dir) {
		for i := range p.OCI.Mounts {
			if m := &p.OCI.Mounts[i]; m.Type == "tmpfs" && m.Destination == dir {
				return true
			}
		}
		if dir == "/" || dir == "." {
			return false
		}
	}
}

// check refuses what a process cannot restrict itself by.
func check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := (Driver{}).Describe().Claims.Refused(Name, p); err != nil {
		if driver.Wanted(p)&policy.LayerNamespaces != 0 {
			err.Fix = "it is for hosts that allow no namespaces, and weaker: --allow-degraded namespaces"
			if driver.Wanted(p).Has(policy.LayerProtect) {
				err.Fix += ",protect"
			}
		}
		return err
	}
	e := &driver.UnsupportedError{Driver: Name,
		Fix: "show the directories in it that are needed: Landlock cannot take back below a path what it grants above it"}
	for i := range p.OCI.Mounts {
		m := &p.OCI.Mounts[i]
		if m.Type != "tmpfs" || policy.Below(m.Destination, "/dev") || m.Destination == "/tmp" ||
			m.Destination == "/var/tmp" || m.Destination == "/run" {
			continue
		}
		// A right to a directory is one to all below it: what private storage would cover, too.
		if slices.ContainsFunc(p.Files,
			func(r policy.FileRule) bool { return r.Access&policy.Read != 0 && policy.Below(m.Destination, r.Path) }) {
			e.Rules = append(e.Rules, "oci.mounts."+m.Destination+" (private storage in a directory of the host that is shown)")
		}
	}
	if len(e.Rules) != 0 {
		return e
	}
	return nil
}
