// Package bwrap is the driver that runs commands by bubblewrap. It is for hosts
// that allow bubblewrap what they do not allow other programs, as Ubuntu 24.04
// does by an AppArmor profile, and for comparing the two.
//
// The policy's file system is lowered as for the native driver (package rootfs)
// and written as bubblewrap's options ([Args], a function of values). They reach it
// through a descriptor: what is secret in them, such as the environment, is in
// no command line. The system call filter is the same compiled program, again by
// descriptor. Limits are around bubblewrap's own processes: a cgroup, resource
// limits, and the second stage that ends whatever is left (internal/supervisor).
//
// What bubblewrap has no words for is refused by name; see [Driver.Describe].
// It needs bubblewrap 0.7 (--size); --disable-userns is used from 0.8 on.
package bwrap

import (
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

// Name is the driver's name.
const Name = "bwrap"

// A Driver runs commands by bubblewrap. The zero value finds it in PATH.
type Driver struct {
	driver.Basic

	// Path is bubblewrap's, absolute; "" is bwrap from PATH.
	Path string

	// SeccompCompiler and CacheDir are for system call filters of one's own; see
	// [seccomp.Custom].
	SeccompCompiler, CacheDir string
}

var _ driver.Driver = Driver{}

// Name returns "bwrap".
func (Driver) Name() string { return Name }

// Sandboxed reports that the driver isolates.
func (Driver) Sandboxed() bool { return true }

// Describe says what bubblewrap can be told.
func (Driver) Describe() driver.Description {
	yes := driver.Claim{Support: driver.Yes}
	return driver.Description{
		Summary: "bubblewrap: namespaces, mounts and the same system call filter",
		Claims: driver.Claims{
			"process": yes, "user": yes, "hostname": yes,
			"terminal":   {Support: driver.Partly, Note: "it is called /dev/console inside, and is the host's"},
			"files.read": yes, "files.write": yes, "files.hide": yes, "files.nested": yes, "files.root": yes,
			"files.overlay": {Note: "only the native driver keeps a workspace's changes apart"},
			"files.noexec":  {Note: "bubblewrap has no option for mounts without execution"},
			"synthetic":     yes,
			"scratch": {Support: driver.Partly,
				Note: "each private directory has the whole bound to itself; files are not counted"},
			"mounts.private": yes, "mounts.bind": yes, "mounts.system": yes,
			"mounts.sized":  yes,
			"mounts.noexec": {Note: "bubblewrap has no option for mounts without execution"},
			"mounts.other":  {Note: "only proc, devpts, tmpfs, mqueue and binds"},
			"masked":        yes,
			"devices":       yes,
			"egress.none":   yes, "egress.loopback": yes, "egress.host": yes,
			"egress.proxy":   {Note: "only the native driver has network by name"},
			"egress.publish": {Note: "only the native driver leads ports in"},
			"layer.egress":   {Note: "only the native driver has network by name"},
			"limits.time":    yes, "limits.output": yes,
			"limits.other":   {Note: "memory, cpu and processes are what is limited"},
			"seccomp.custom": {Support: driver.Yes, Note: "without flags; compiled by sbxrun-seccomp, a program beside sbxrun"},
			"capabilities":   {Note: "the command has none, and gains none"},
			"oci.other":      {Note: "no profile sets it"},
			"layer.user":     yes, "layer.pid": yes, "layer.mount": yes, "layer.net": yes, "layer.ipc": yes, "layer.uts": yes,
			"layer.cgroupns": yes,
			"layer.seccomp":  yes, "layer.no_new_privs": yes,
			"layer.landlock":      {Note: "a process under Landlock may not mount, and bubblewrap does not apply it itself"},
			"layer.cgroup.memory": yes, "layer.cgroup.cpu": yes, "layer.cgroup.pids": yes, "layer.rlimits": yes,
			"layer.protect":  {Note: "only the native driver makes calls for a command"},
			"layer.selinux":  {Note: "bubblewrap changes no label any more"},
			"layer.apparmor": {Note: "bubblewrap changes no profile"},
			"result.signal":  {Support: driver.Partly, Note: "bubblewrap gives 128+N for both"},
			"result.limits":  yes,
			"result.killed":  yes,
		},
	}
}

// overhead are bubblewrap's own processes in the command's cgroup: the one that
// waits outside, and process 1 inside.
const overhead = 2

// Options says what a bubblewrap can be told beyond what this driver needs.
type Options struct {
	DisableUserns bool // 0.8
}

// A Lowered policy is bubblewrap's options, and the contents that they name by
// descriptor.
type Lowered struct {
	Args []string // before "--"
	Data []string // of descriptors first, first+1, …
}

// Args lowers a policy, with its file system tree, to bubblewrap's options. The
// descriptor first is the first that is free; filter is the system call filter
// as the kernel takes it, "" for none. Optional parts of the tree that change
// what is not there must have been left out.
func Args(p *policy.Policy, tree *mounts.Tree, filter string, first int, o Options) (*Lowered, error) {
	ops, err := tree.Ops()
	if err != nil {
		return nil, err
	}
	l := &lowering{first: first, tree: tree, ops: ops}
	l.namespaces(p)
	l.add("--die-with-parent", "--cap-drop", "ALL")
	if !p.OCI.Process.Terminal {
		// Or kill(0, …) of the command's ends bwrap, which is in its process group, and the
		// command with it, whatever its own end was. With a terminal, it would lose that.
		l.add("--new-session")
	}
	if o.DisableUserns {
		l.add("--disable-userns")
	}
	if filter != "" {
		l.add("--seccomp", l.data(filter))
	}
	l.add("--clearenv")
	for _, e := range p.OCI.Process.Env {
		k, v, _ := strings.Cut(e, "=")
		l.add("--setenv", k, v)
	}
	for i := range ops {
		if err := l.op(i); err != nil {
			return nil, err
		}
	}
	if l.dev {
		l.add("--remount-ro", "/dev")
	}
	l.add("--remount-ro", "/")
	if p.OCI.Process.Cwd != "" {
		l.add("--chdir", p.OCI.Process.Cwd)
	}
	return &l.out, nil
}

type lowering struct {
	first int
	tree  *mounts.Tree
	ops   []mounts.Op
	out   Lowered
	dev   bool // --dev has been given
}

func (l *lowering) add(args ...string) { l.out.Args = append(l.out.Args, args...) }

// data returns the number of a descriptor from which content is read.
func (l *lowering) data(content string) string {
	l.out.Data = append(l.out.Data, content)
	return strconv.Itoa(l.first + len(l.out.Data) - 1)
}

func (l *lowering) namespaces(p *policy.Policy) {
	for _, n := range p.OCI.Linux.Namespaces {
		switch n.Type {
		case specs.UserNamespace:
			l.add("--unshare-user", "--uid", strconv.FormatUint(uint64(p.OCI.Process.User.UID), 10), "--gid",
				strconv.FormatUint(uint64(p.OCI.Process.User.GID), 10))
		case specs.PIDNamespace:
			l.add("--unshare-pid")
		case specs.NetworkNamespace:
			l.add("--unshare-net")
		case specs.IPCNamespace:
			l.add("--unshare-ipc")
		case specs.UTSNamespace:
			l.add("--unshare-uts")
			if p.OCI.Hostname != "" {
				l.add("--hostname", p.OCI.Hostname)
			}
		case specs.CgroupNamespace:
			l.add("--unshare-cgroup")
		}
	}
}

// What --dev brings; see setup_newroot in bubblewrap.c.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty", "stdin", "stdout", "stderr", "fd", "core",
	"pts", "ptmx", "console"}

// What --proc covers read-only by itself where it cannot be written; see there.
var procReadonly = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"}

func unsupported(rule, fix string) error {
	return &driver.UnsupportedError{Driver: Name, Rules: []string{rule}, Fix: fix}
}

func (l *lowering) op(i int) error {
	o := &l.ops[i]
	if o.Target == "/dev" || strings.HasPrefix(o.Target, "/dev/") {
		if !l.dev {
			l.dev = true
			l.add("--dev", "/dev")
		}
		if o.Target == "/dev" || slices.Contains(devices, o.Target[len("/dev/"):]) {
			return nil
		}
	}
	ro := o.Attr&mounts.ReadOnly != 0
	noexec := o.Attr&mounts.NoExec != 0
	switch o.Kind {
	case mounts.Dir:
		l.add("--perms", mode(o), "--dir", o.Target)
	case mounts.Symlink:
		l.add("--symlink", o.Source, o.Target)
	case mounts.File:
		l.add("--perms", mode(o), "--ro-bind-data", l.data(o.Data), o.Target)
	case mounts.Bind:
		if noexec {
			return unsupported("files.noexec "+o.Target, "")
		}
		if ro {
			l.add("--ro-bind", o.Source, o.Target)
		} else {
			l.add("--bind", o.Source, o.Target)
		}
	case mounts.Device:
		l.add("--dev-bind", o.Source, o.Target)
	case mounts.Scratch, mounts.Tmpfs:
		if noexec && !strings.HasPrefix(o.Target, "/dev/") {
			return unsupported("mounts.noexec "+o.Target, "")
		}
		l.add("--perms", mode(o), "--size", strconv.FormatUint(l.tree.Size(o), 10), "--tmpfs", o.Target)
		if ro {
			l.add("--remount-ro", o.Target)
		}
	case mounts.Proc:
		l.add("--proc", o.Target)
		if ro {
			l.add("--remount-ro", o.Target)
		}
	case mounts.Devpts: // --dev has it
	case mounts.Mqueue:
		l.add("--mqueue", o.Target)
	case mounts.Mask:
		if o.IsDir {
			l.add("--perms", "0000", "--size", "4096", "--tmpfs", o.Target, "--remount-ro", o.Target)
		} else {
			l.add("--perms", "0000", "--ro-bind-data", l.data(""), o.Target)
		}
	case mounts.Readonly:
		if slices.Contains(procReadonly, o.Target) {
			return nil
		}
		source, ok := mounts.HostPath(l.ops[:i], o.Target)
		if !ok {
			return unsupported("masked "+o.Target, "only what is shown of the host can be made read-only")
		}
		l.add("--ro-bind", source, o.Target)
	default:
		return unsupported(o.Kind.String()+" "+o.Target, "")
	}
	return nil
}

func mode(o *mounts.Op) string {
	m := o.Mode
	switch {
	case m != 0:
	case o.Kind == mounts.File:
		m = 0o644
	default:
		m = 0o755
	}
	s := strconv.FormatUint(uint64(m), 8)
	return strings.Repeat("0", max(0, 4-len(s))) + s
}

// check refuses what bubblewrap cannot be told.
func check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := (Driver{}).Describe().Claims.Refused(Name, p); err != nil {
		return err
	}
	for _, t := range [...]specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace} {
		if p.OCI.Linux == nil || !slices.ContainsFunc(p.OCI.Linux.Namespaces,
			func(n specs.LinuxNamespace) bool { return n.Type == t && n.Path == "" }) {
			return unsupported("no "+string(t)+" namespace", "")
		}
	}
	if s := p.OCI.Linux.Seccomp; s != nil {
		if flags, err := seccomp.Flags(s.Flags); err != nil || flags != 0 {
			return unsupported("seccomp.custom flags", "bubblewrap installs filters without flags")
		}
	}
	return nil
}
