// Package gvisor is the driver that runs commands by an OCI runtime: gVisor's
// runsc, under the name "gvisor", or any other by its own name (runc, crun).
//
// The policy's file system is lowered as for the native driver (package rootfs)
// and written as a bundle: a configuration and an empty root with mount points
// ([Spec], a function of values). The runtime has a state directory of its own
// for each run, so that what a killed run left behind is known and removed by
// the next (internal/rundir). It runs in the foreground below a second stage
// that ends whatever it started (internal/supervisor).
//
// Runtimes start the command as process 1 of its namespace, which ignores signals
// that it has no handler for, and as root without capabilities of a user
// namespace in which there is only that id. Landlock is not to be had from them.
package gvisor

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// Name is the driver's name for runsc.
const Name = "gvisor"

// A Driver runs commands by an OCI runtime. The zero value is gVisor's, from PATH.
type Driver struct {
	driver.Basic

	// Runtime is the runtime's program: runsc, runc, crun. "" is runsc.
	Runtime string

	// Path is the program's path, absolute; "" is Runtime from PATH.
	Path string

	// RunDir is where the bundles of runs are; "" is rundir.Parent.
	RunDir string
}

var _ driver.Driver = Driver{}

// Name returns "gvisor", or the name of another runtime.
func (d Driver) Name() string {
	if d.Runtime == "" || d.Runtime == "runsc" {
		return Name
	}
	return d.Runtime
}

// Sandboxed reports that the driver isolates.
func (Driver) Sandboxed() bool { return true }

func (d Driver) program() string { return cmp.Or(d.Runtime, "runsc") }

// traits are what differs from runtime to runtime.
type traits struct {
	global  []string // options before the subcommand
	logFile string   // what stands before the name of the log file
	keep    bool     // "run --keep" leaves the container's cgroup, to be read
	rro     bool     // knows the mount option rro: read-only with all below
	kernel  bool     // has a kernel of its own: processes, /proc and /dev are not the host's
}

func (d Driver) traits() traits {
	switch d.program() {
	case "runsc":
		return traits{global: []string{"--ignore-cgroups", "--oci-seccomp"}, logFile: "", kernel: true}
	case "crun":
		// The cgroup that it runs in is made for it.
		return traits{global: []string{"--cgroup-manager=disabled"}, logFile: "file:", rro: true}
	}
	return traits{keep: true, rro: true}
}

// Describe says what an OCI runtime can be told.
func (d Driver) Describe() driver.Description {
	yes := driver.Claim{Support: driver.Yes}
	no := func(note string) driver.Claim { return driver.Claim{Note: note} }
	partly := func(note string) driver.Claim { return driver.Claim{Support: driver.Partly, Note: note} }
	const process1 = "the command is process 1 of its namespace, which ignores signals that it has no handler for"
	c := driver.Claims{
		"process": partly(process1 + "; bytes that are not UTF-8 are refused"), "terminal": yes, "hostname": yes,
		"user":       partly("the command sees itself as root, without capabilities"),
		"files.read": yes, "files.write": yes, "files.noexec": yes, "files.hide": yes, "files.nested": yes, "files.root": yes,
		"files.overlay":  no("only the native driver keeps a workspace's changes apart"),
		"synthetic":      yes,
		"scratch":        partly("each private directory has the whole bound to itself; files are not counted"),
		"mounts.private": yes, "mounts.sized": yes, "mounts.noexec": yes, "mounts.bind": yes, "mounts.system": yes,
		"mounts.other": no("only proc, devpts, tmpfs, mqueue and binds"),
		"masked":       yes,
		"devices":      no("device nodes are not passed on"),
		"egress.none":  yes, "egress.loopback": yes, "egress.host": yes,
		"egress.proxy":   no("only the native driver has network by name"),
		"egress.publish": no("only the native driver leads ports in"),
		"limits.time":    partly(process1), "limits.output": yes,
		"limits.other":   no("memory, cpu and processes are what is limited"),
		"seccomp.custom": {Support: driver.Yes, Note: "compiled by the runtime"},
		"capabilities":   no("the command has none, and gains none"),
		"oci.other":      no("no profile sets it"),
		"layer.user":     yes, "layer.pid": yes, "layer.mount": yes, "layer.net": yes, "layer.ipc": yes, "layer.uts": yes,
		"layer.cgroupns": yes,
		"layer.seccomp":  yes, "layer.no_new_privs": yes,
		"layer.landlock":      no("runtimes do not apply it"),
		"layer.cgroup.memory": yes, "layer.cgroup.cpu": yes, "layer.cgroup.pids": yes, "layer.rlimits": yes,
		"layer.selinux": no("labels are not passed on"), "layer.apparmor": no("profiles are not passed on"),
		"layer.protect": {Note: "only the native driver makes calls for a command"},
		"layer.egress":  no("only the native driver has network by name"),
		"result.signal": partly("runtimes give 128+N for both, and process 1 cannot signal itself"),
		"result.limits": yes,
		"result.killed": partly(
			"processes are ended; the runtime's own cgroups and state stay until the next run removes them"),
	}
	summary := "the OCI runtime " + d.program()
	switch d.program() {
	case "runsc":
		summary = "gVisor: a kernel of its own, written in Go, between the command and the host's"
		c["layer.cgroup.pids"] = no("gVisor's own threads would be counted")
		c["result.limits"] = partly("the sandbox as a whole ends at the memory limit")
		c["terminal"] = partly("the size is set once it runs")
	case "crun":
		c["layer.cgroup.pids"] = driver.Claim{Support: driver.Yes, Note: "crun's own process is counted"}
	}
	return driver.Description{Summary: summary, Claims: c, Kernel: d.traits().kernel}
}

// A Node is a part of a bundle.
type Node struct {
	Path string // in the bundle
	Link string // of a symbolic link
	Dir  bool
	Mode uint32
	Data string
}

// Options are what the lowering needs to know beside the policy.
type Options struct {
	UID, GID int // of the caller, on the host
	Seccomp  *specs.LinuxSeccomp
	Pids     int64  // for the runtime to limit, 0 for none
	Bundle   string // its absolute path
}

// What a runtime makes in /dev by itself; see "Default Devices" and "Default
// Filesystems" in the OCI runtime specification.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty", "stdin", "stdout", "stderr", "fd", "core",
	"console", "ptmx"}

// Spec lowers a policy, with its file system tree, to a runtime's configuration
// and what its bundle holds. Optional parts of the tree that change what is not
// there must have been left out.
func (d Driver) Spec(p *policy.Policy, tree *mounts.Tree, o Options) (*specs.Spec, []Node, error) {
	ops, err := tree.Ops()
	if err != nil {
		return nil, nil, err
	}
	proc := *p.OCI.Process
	proc.User = specs.User{}
	proc.Capabilities = &specs.LinuxCapabilities{}
	proc.NoNewPrivileges = true
	proc.ApparmorProfile, proc.SelinuxLabel = "", ""
	l := &lowering{t: d.traits(), tree: tree, o: o, spec: &specs.Spec{
		Version:  "1.0.2", // what all of them know
		Process:  &proc,
		Root:     &specs.Root{Path: "rootfs", Readonly: true},
		Hostname: p.OCI.Hostname,
		Linux: &specs.Linux{
			// Runtimes set up as root of the user namespace, and an ordinary
			// user can map one id.
			UIDMappings: []specs.LinuxIDMapping{{HostID: uint32(o.UID), Size: 1}},
			GIDMappings: []specs.LinuxIDMapping{{HostID: uint32(o.GID), Size: 1}},
			Namespaces:  p.OCI.Linux.Namespaces,
			Seccomp:     o.Seccomp,
		},
	}}
	if o.Pids > 0 {
		l.spec.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &o.Pids}}
	}
	l.nodes = append(l.nodes, Node{Path: "rootfs", Dir: true, Mode: 0o755}, Node{Path: "data", Dir: true, Mode: 0o755},
		Node{Path: "data/nothing", Mode: 0}, Node{Path: "data/none", Dir: true, Mode: 0})
	for i := range ops {
		if !utf8.ValidString(ops[i].Target) || !utf8.ValidString(ops[i].Source) {
			return nil, nil, &driver.UnsupportedError{Driver: d.Name(),
				Rules: []string{"a path that is not UTF-8: " + strconv.Quote(ops[i].Target)}, Fix: notUTF8}
		}
		if err := l.op(&ops[i]); err != nil {
			return nil, nil, &driver.UnsupportedError{Driver: d.Name(), Rules: []string{err.Error()}}
		}
	}
	return l.spec, l.nodes, nil
}

type lowering struct {
	t     traits
	tree  *mounts.Tree
	o     Options
	spec  *specs.Spec
	nodes []Node
	dev   bool
}

type unknown string

func (u unknown) Error() string { return string(u) }

func (l *lowering) mount(target, typ, source string, options ...string) {
	l.spec.Mounts = append(l.spec.Mounts, specs.Mount{Destination: target, Type: typ, Source: source, Options: options})
}

// point makes what is mounted on, where the root is the bundle's.
func (l *lowering) point(o *mounts.Op, dir bool) {
	if !o.InBind && !strings.HasPrefix(o.Target, "/dev/") {
		l.nodes = append(l.nodes, Node{Path: "rootfs" + o.Target, Dir: dir, Mode: 0o755})
	}
}

func (l *lowering) options(a mounts.Attr, more ...string) []string {
	out := append(more, "nosuid", "nodev")
	if a&mounts.ReadOnly != 0 {
		out = append(out, "ro")
		if l.t.rro && slices.Contains(more, "rbind") {
			out = append(out, "rro")
		}
	}
	if a&mounts.NoExec != 0 {
		out = append(out, "noexec")
	}
	return out
}

func (l *lowering) op(o *mounts.Op) error {
	if o.Target == "/dev" || strings.HasPrefix(o.Target, "/dev/") {
		if !l.dev {
			l.dev = true
			l.nodes = append(l.nodes, Node{Path: "rootfs/dev", Dir: true, Mode: 0o755})
			options := []string{"nosuid", "noexec", "mode=755", "size=65536k"}
			if !l.t.kernel {
				// The command is root inside and could keep files there, beside --disk.
				// gVisor would refuse to open /dev/null for writing, too.
				options = append(options, "ro")
			}
			l.mount("/dev", "tmpfs", "tmpfs", options...)
		}
		if o.Target == "/dev" || slices.Contains(devices, o.Target[len("/dev/"):]) {
			return nil
		}
	}
	switch o.Kind {
	case mounts.Dir:
		l.nodes = append(l.nodes, Node{Path: "rootfs" + o.Target, Dir: true, Mode: mode(o)})
	case mounts.Symlink:
		l.nodes = append(l.nodes, Node{Path: "rootfs" + o.Target, Link: o.Source})
	case mounts.File:
		l.point(o, false)
		name := "data/" + strconv.Itoa(len(l.nodes))
		l.nodes = append(l.nodes, Node{Path: name, Mode: mode(o), Data: o.Data})
		l.mount(o.Target, "bind", filepath.Join(l.o.Bundle, name), "bind", "nosuid", "nodev", "noexec", "ro")
	case mounts.Bind:
		l.point(o, o.IsDir)
		bind := "rbind"
		if !o.IsDir {
			bind = "bind" // nothing is mounted below, and crun 1.8 takes rro for directories alone
		}
		l.mount(o.Target, "bind", o.Source, l.options(o.Attr, bind)...)
	case mounts.Scratch, mounts.Tmpfs:
		l.point(o, true)
		l.mount(o.Target, "tmpfs", "tmpfs", l.options(o.Attr, "mode="+strconv.FormatUint(uint64(mode(o)), 8),
			"size="+strconv.FormatUint(l.tree.Size(o), 10))...)
	case mounts.Proc:
		l.point(o, true)
		l.mount(o.Target, "proc", "proc", l.options(o.Attr)...)
	case mounts.Devpts:
		l.mount(o.Target, "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620")
	case mounts.Mqueue:
		l.point(o, true)
		l.mount(o.Target, "mqueue", "mqueue", l.options(o.Attr)...)
	case mounts.Mask:
		switch {
		case o.Target == "/proc/1": // the command itself
		case strings.HasPrefix(o.Target, "/proc/") || strings.HasPrefix(o.Target, "/sys/"):
			if !l.t.kernel {
				l.spec.Linux.MaskedPaths = append(l.spec.Linux.MaskedPaths, o.Target)
			}
		case o.IsDir:
			l.mount(o.Target, "bind", filepath.Join(l.o.Bundle, "data/none"), "bind", "nosuid", "nodev", "noexec", "ro")
		default:
			l.mount(o.Target, "bind", filepath.Join(l.o.Bundle, "data/nothing"), "bind", "nosuid", "nodev", "noexec", "ro")
		}
	case mounts.Readonly:
		if !l.t.kernel {
			l.spec.Linux.ReadonlyPaths = append(l.spec.Linux.ReadonlyPaths, o.Target)
		} else if !strings.HasPrefix(o.Target, "/proc/") {
			return unknown("masked " + o.Target)
		}
	default:
		return unknown(o.Kind.String() + " " + o.Target)
	}
	return nil
}

func mode(o *mounts.Op) uint32 {
	switch {
	case o.Mode != 0:
		return o.Mode
	case o.Kind == mounts.File:
		return 0o644
	}
	return 0o755
}

// notUTF8 is why bytes are refused: JSON would replace them.
const notUTF8 = "an OCI configuration is JSON, which has no words for such bytes; use another driver"

// check refuses what a runtime cannot be told.
func (d Driver) check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := d.Describe().Claims.Refused(d.Name(), p); err != nil {
		return err
	}
	for _, text := range slices.Concat(p.OCI.Process.Args, p.OCI.Process.Env, []string{p.OCI.Process.Cwd}) {
		if !utf8.ValidString(text) {
			return &driver.UnsupportedError{Driver: d.Name(),
				Rules: []string{"process: an argument or variable that is not UTF-8"}, Fix: notUTF8}
		}
	}
	for _, t := range [...]specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace} {
		if p.OCI.Linux == nil || !slices.ContainsFunc(p.OCI.Linux.Namespaces,
			func(n specs.LinuxNamespace) bool { return n.Type == t && n.Path == "" }) {
			return &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"no " + string(t) + " namespace"}}
		}
	}
	return nil
}
