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
	// Home is the caller's home directory, where agents' sockets lie; "" if
	// there is none.
	Home string

	// ProxyPort is the port of the egress proxy on the host's loopback. 0 is
	// none, and policies that need one are refused.
	ProxyPort uint16
}

var _ driver.Driver = Driver{}

// Name returns "seatbelt".
func (Driver) Name() string { return Name }

// Sandboxed reports true.
func (Driver) Sandboxed() bool { return true }

// stands are the layers whose purpose the profile serves: Landlock's and the
// network and IPC namespaces'. A set-user-id program is never executed in a
// sandbox of the system's (forbidden-exec-sugid).
const stands = policy.LayerLandlock | policy.LayerNet | policy.LayerIPC | policy.LayerNoNewPrivs | policy.LayerRlimits

// Coverage is what the driver makes of each field of a policy.
var Coverage = driver.Coverage{
	{Name: "profile", How: "a name, for results"},
	{Name: "files", How: "rules of the profile; each path is a parameter"},
	{Name: "synthetic", Refused: true, Layer: policy.LayerMount, How: "there is no place for a file that exists only in the sandbox"},
	{Name: "scratch", How: "a directory of the run's own; its size is watched"},
	{Name: "egress.mode", How: "none, host, or the proxy's port alone"},
	{Name: "egress.allow", How: "by the proxy"},
	{Name: "egress.deny", How: "by the proxy"},
	{Name: "egress.requests_per_minute", How: "by the proxy"},
	{Name: "egress.log_requests", How: "by the proxy"},
	{Name: "limits", How: "by the supervisor"},
	{Name: "seccomp", Refused: true, Layer: policy.LayerSeccomp, How: "macOS has no filter of system calls"},
	{Name: "require", How: "checked"},
	{Name: "degrade", How: "checked"},
	{Name: "oci.ociVersion", How: "for other runtimes"},
	{Name: "oci.process.args", How: "as given"},
	{Name: "oci.process.env", How: "as given; values that name private storage name its directory"},
	{Name: "oci.process.cwd", How: "as given"},
	{Name: "oci.process.terminal", Refused: true, How: "a terminal is not built for macOS yet"},
	{Name: "oci.process.user", Refused: true, Layer: policy.LayerUser, How: "the command has the caller's ids"},
	{Name: "oci.process.capabilities", How: "macOS has none"},
	{Name: "oci.process.noNewPrivileges", How: "set-user-id programs are not executed"},
	{Name: "oci.process.rlimits", How: "ulimit of bash, which keeps to whole kilobytes"},
	{Name: "oci.hostname", Refused: true, Layer: policy.LayerUTS, How: "the host's name is seen"},
	{Name: "oci.mounts.destination", How: "places of private storage"},
	{Name: "oci.mounts.source", How: "of private storage"},
	{Name: "oci.mounts.type", How: "tmpfs is a private directory; proc and devpts have no equal here and hold nothing of the host"},
	{Name: "oci.mounts.options", How: "nothing is set-user-id, and the size is watched as a whole"},
	{Name: "oci.linux.uidMappings", Refused: true, Layer: policy.LayerUser, How: "the command has the caller's ids"},
	{Name: "oci.linux.gidMappings", Refused: true, Layer: policy.LayerUser, How: "the command has the caller's ids"},
	{Name: "oci.linux.namespaces", How: "what they are for is refused or the profile's; see require"},
	{Name: "oci.linux.resources.memory.limit", Refused: true, Layer: policy.LayerCgroupMemory, How: "watched only, once the policy agrees to go without cgroup.memory"},
	{Name: "oci.linux.resources.memory.swap", Refused: true, Layer: policy.LayerCgroupMemory, How: "not bounded"},
	{Name: "oci.linux.resources.cpu.quota", Refused: true, Layer: policy.LayerCgroupCPU, How: "not bounded"},
	{Name: "oci.linux.resources.cpu.period", Refused: true, Layer: policy.LayerCgroupCPU, How: "not bounded"},
	{Name: "oci.linux.resources.pids.limit", Refused: true, Layer: policy.LayerCgroupPids, How: "not bounded"},
	{Name: "oci.linux.devices", How: "rules of the profile"},
	{Name: "oci.linux.maskedPaths", How: "macOS has no /proc and /sys"},
	{Name: "oci.linux.readonlyPaths", How: "macOS has no /proc and /sys"},
}

// Check reports what of a policy the profile cannot say.
func (d Driver) Check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	e := Coverage.Unsupported(Name, p)
	if e == nil {
		e = &driver.UnsupportedError{Driver: Name}
	}
	for i := range p.OCI.Mounts {
		m := &p.OCI.Mounts[i]
		switch {
		case m.Type == "bind":
			e.Rules = append(e.Rules, "oci.mounts."+m.Destination+" (a path shown at another place)")
		case m.Type == "tmpfs" && m.Destination != "/dev":
			for _, r := range p.Files {
				if within(m.Destination, r.Path) && r.Path != "/" && r.Access&policy.Read != 0 && !systemPlace(m.Destination) {
					e.Rules = append(e.Rules, "oci.mounts."+m.Destination+" (private storage in a directory of the host that is shown)")
					break
				}
			}
		}
	}
	if p.Egress.Mode == policy.EgressProxy && d.ProxyPort == 0 {
		e.Rules = append(e.Rules, "egress.mode proxy")
		e.Fix = "no egress proxy is running for this driver; --net none runs without any network"
	}
	if missing := Missing(p); missing != 0 {
		// What a layer was for goes without saying once the layer is named.
		e.Rules = slices.DeleteFunc(e.Rules, func(r string) bool {
			f := Coverage.Find(r)
			return f != nil && f.Layer != 0 && missing&f.Layer != 0
		})
		for _, l := range missing.Names() {
			e.Rules = append(e.Rules, "require."+l)
		}
		e.Fix = "macOS has no such layers; to go without them: --allow-degraded " + missing.String()
	}
	if len(e.Rules) != 0 {
		return e
	}
	_, err := Lower(p, Options{Home: d.Home, ProxyPort: d.ProxyPort})
	return err
}

// Missing are the layers that a policy requires and that the driver has no
// equal of.
func Missing(p *policy.Policy) policy.Layers { return p.Require &^ stands }

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
	return Lower(p, Options{Home: d.Home, ProxyPort: d.ProxyPort})
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
		if m.Type != "tmpfs" || !within(value, m.Destination) || shownBelow(p, value, m.Destination) {
			continue
		}
		return scratch + value
	}
	return value
}

// shownBelow reports whether a path of the host is shown at value, in a place
// of private storage.
func shownBelow(p *policy.Policy, value, storage string) bool {
	for _, r := range p.Files {
		if r.Access != policy.Hide && within(r.Path, storage) && within(value, r.Path) {
			return true
		}
	}
	return false
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
