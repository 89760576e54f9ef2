package landlocked

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/internal/supervisor"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/namespaces"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

// Available finds out which Landlock the kernel has, and whether a process's
// children can be listed.
func (Driver) Available(context.Context) error {
	switch abi := sys.LandlockABI(); {
	case abi == 0:
		cause, fix := sys.NoLandlock()
		return &driver.UnavailableError{What: "driver " + Name, Cause: cause, Fix: fix}
	case abi < MinABI:
		return &driver.UnavailableError{What: "driver " + Name, Cause: "this kernel's Landlock (ABI " + strconv.Itoa(abi) +
			") cannot keep files from being truncated", Fix: "run on Linux 6.2 or later"}
	}
	if _, err := os.ReadFile("/proc/thread-self/children"); err != nil {
		return &driver.UnavailableError{What: "driver " + Name, Cause: "a process's children cannot be listed", Err: err,
			Fix: "mount /proc, on a kernel with CONFIG_PROC_CHILDREN"}
	}
	return nil
}

// Check lowers the policy against the host's files.
func (Driver) Check(p *policy.Policy) error {
	if err := check(p); err != nil {
		return err
	}
	_, err := Rules(p, rootfs.HostFS{}, "")
	return err
}

// Start restricts a process and starts the policy's command in it.
func (d Driver) Start(ctx context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	if err := check(p); err != nil {
		return nil, err
	}
	if err := d.Available(ctx); err != nil {
		return nil, err
	}
	filters, err := d.filters(ctx, p)
	if err != nil {
		return nil, err
	}
	dir, err := rundir.Make(cmp.Or(d.RunDir, rundir.Parent(os.Geteuid())), "landlock", nil)
	if err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	var net *network
	fail := func(err error) (driver.Process, error) {
		net.end(nil)
		dir.Remove()
		return nil, err
	}
	for _, name := range []string{"/home", "/tmp"} {
		if err := os.Mkdir(dir.Path+name, 0o700); err != nil {
			return fail(&driver.SetupError{Driver: Name, Err: err})
		}
	}
	rules, err := Rules(p, rootfs.HostFS{}, dir.Path)
	if err != nil {
		return fail(err)
	}
	abi := sys.LandlockABI()
	handled, _ := landlock.Handled(abi)
	var keep []int
	for _, f := range append([]*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr}, stdio.Extra...) {
		if f == nil {
			continue
		}
		if a := reopened(int(f.Fd())); a != 0 {
			rules.FDs = append(rules.FDs, landlock.FDRule{FD: int(f.Fd()), Access: a & handled})
			keep = append(keep, int(f.Fd()))
		}
	}
	env := environment(p, dir.Path)
	if p.Egress.Mode == policy.EgressProxy {
		if net, err = d.network(p); err != nil {
			return fail(err)
		}
		env = net.local.Environ(env)
		keep = append(keep, net.guard.FD())
	}
	layers := d.Describe().Claims.Given(p) | policy.LayerLandlock
	if net != nil {
		layers |= policy.LayerEgress
	}
	unwatched := []string{driver.FileLocks}
	if p.Egress.Mode == policy.EgressHost { // elsewhere a filter refuses these sockets
		unwatched = []string{driver.Netlink, driver.FileLocks}
	}
	var root, ruleset sys.Reg
	proc, err := supervisor.Start(ctx, &supervisor.Config{
		Driver: Name, Policy: p, Layers: layers,
		Paths: reexec.Candidates(p.OCI.Process.Args[0], env), Tries: true, Argv: p.OCI.Process.Args, Env: env,
		Dir:   directory(p, dir.Path),
		Stdio: stdio, Terminal: p.OCI.Process.Terminal, Rlimits: true, Hold: keep, Unwatched: unwatched,
		Init: func(init *sys.Program) {
			root = init.NewReg()
			init.Layer(uint32(policy.LayerLandlock))
			init.Call(root, sys.Step{Op: "openat", Object: "/"}, unix.SYS_OPENAT, sys.Imm(unix.AT_FDCWD), init.Str("/"),
				sys.Imm(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC), sys.Imm(0))
			ruleset = landlock.Append(init, root, abi, rules)
		},
		Restrict: func(cmd *sys.Program) {
			if canDrop() {
				namespaces.AppendDropCapabilities(cmd)
			} else {
				// EINVAL: before Linux 4.3.
				cmd.Call(0, sys.Step{Op: "prctl", Object: "PR_CAP_AMBIENT"}, unix.SYS_PRCTL, sys.Imm(unix.PR_CAP_AMBIENT),
					sys.Imm(unix.PR_CAP_AMBIENT_CLEAR_ALL), sys.Imm(0), sys.Imm(0), sys.Imm(0)).Allow(unix.EINVAL)
				namespaces.AppendClearCapabilities(cmd)
			}
			cmd.Layer(uint32(policy.LayerNoNewPrivs))
			cmd.Call(0, sys.Step{Op: "prctl", Object: "no_new_privs"}, unix.SYS_PRCTL, sys.Imm(unix.PR_SET_NO_NEW_PRIVS),
				sys.Imm(1), sys.Imm(0), sys.Imm(0), sys.Imm(0))
			cmd.Layer(uint32(policy.LayerLandlock))
			landlock.AppendRestrict(cmd, ruleset)
			if net != nil {
				cmd.Layer(uint32(policy.LayerSeccomp))
				net.guard.Append(cmd, root, sys.Imm(net.guard.FD()), sys.Step{Op: "seccomp", Object: "guard"}, net.guard.Filter())
			}
		},
		Last: func(cmd *sys.Program) {
			cmd.Layer(uint32(policy.LayerSeccomp))
			for _, f := range filters {
				//	int seccomp(SECCOMP_SET_MODE_FILTER, unsigned int flags, struct sock_fprog *prog);
				cmd.Call(0, sys.Step{Op: "seccomp", Object: "filter"}, unix.SYS_SECCOMP, sys.Imm(unix.SECCOMP_SET_MODE_FILTER),
					sys.Imm(f.Flags), cmd.Fprog(f.Filter))
			}
		},
		Gone: net.end,
		Clean: func() {
			net.end(nil)
			dir.Remove()
		},
		Explain: explain,
	})
	if net == nil || err != nil {
		return proc, err
	}
	net.guard.Start()
	return &connected{proc, net}, nil
}

// filters are the system call filters of a run, in the order in which they are
// installed: the policy's own comes last, because it may deny seccomp(2). There is
// always one: servers tell a sandboxed command by it, see checkPeer in package session.
func (d Driver) filters(ctx context.Context, p *policy.Policy) ([]seccomp.Program, error) {
	self, err := seccomp.OnlySelf()
	if err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	out := []seccomp.Program{self}
	if p.Egress.Mode != policy.EgressHost {
		sockets := seccomp.NoSockets
		if p.Egress.Mode == policy.EgressProxy {
			sockets = seccomp.ClientSockets
		}
		f, err := sockets()
		if err != nil {
			return nil, &driver.SetupError{Driver: Name, Err: err}
		}
		out = append(out, f)
	}
	f, err := supervisor.Filter(ctx, Name, p, d.CacheDir, d.SeccompCompiler)
	if err != nil || f.Filter == "" {
		return out, err
	}
	return append(out, f), nil
}

// canDrop reports whether this process may empty its bounding set.
func canDrop() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SETPCAP) != 0
}

// reopened are the rights by which /dev/stdout and its like may be opened again:
// what the descriptor is open for already. It is 0 for what is no file.
func reopened(fd int) landlock.Access {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFCHR, unix.S_IFBLK:
	default:
		return 0
	}
	return landlock.Reopen(fd)
}

// explain says what to do about a step that failed.
func explain(e *reexec.StepError) error {
	switch layer := policy.Layers(e.Layer); {
	case e.Op == "openat2" && e.Errno == syscall.ELOOP:
		return &driver.SetupError{Driver: Name, Err: e,
			Fix: "a part of this path became a symbolic link while the command was set up; if that was you, run again"}
	case e.Op == "landlock_create_ruleset" || e.Op == "landlock_restrict_self":
		return &driver.UnavailableError{What: "layer landlock", Cause: "the kernel refused the rules", Err: e,
			Fix: "run outside of a container that filters Landlock's calls"}
	case layer == policy.LayerSeccomp:
		return &driver.UnavailableError{What: "layer seccomp", Cause: "the kernel refused the system call filter", Err: e,
			Fix: "run on a kernel with CONFIG_SECCOMP_FILTER"}
	case layer == policy.LayerCgroup:
		return &driver.UnavailableError{What: "layer cgroup", Cause: "the command could not be put into its cgroup", Err: e,
			Fix: "go without it: --allow-degraded cgroup"}
	}
	return nil
}
