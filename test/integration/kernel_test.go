//go:build linux

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

func kernelTests() []entry {
	// Landlock's scopes came with ABI 6 (Linux 6.12), and truncate(2) with ABI 3
	// (6.2): before, nothing else stands in these acts' way. docs/security.md says
	// so of standard streams.
	k14 := map[string]string{"signal 1": "EPERM"}
	if landlockABI() < 6 {
		k14["signal 1"] = "ok|EPERM"
	}
	k14args := func(f *fixture) []string { return []string{"ws=" + f.ws} }
	if landlockABI() < 3 {
		k14args = func(f *fixture) []string { return []string{"ws=" + f.ws, "truncate=no"} }
	}
	mounts := numbers(unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_MOUNT_SETATTR, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT)
	return []entry{
		{
			id: "K01", title: "the i386 ABI, socketcall included",
			deny: "ENOSYS|killed:SIGSYS|killed:SIGSEGV", // the last where the machine has no int 0x80; the control skips there
			controls: []control{{"without the sandbox", func(f *fixture, e *entry) {
				j := jail{want: map[string]string{}}
				o := f.do(call{args: f.jail(ownUser, nil, f.attack, "K01")})
				if r := f.report(o); r.got("getpid") == "killed:SIGSEGV" || r.got("getpid") == "ENOSYS" {
					f.Skipf("this kernel has no i386 ABI: %+v", r)
				}
				j.run(f, e, ownUser)
			}}},
		},
		{
			id: "K02", title: "numbers of the x32 ABI",
			deny: "ENOSYS|killed:SIGSYS",
			controls: []control{{"with a witness", func(f *fixture, e *entry) {
				if runtime.GOARCH != "amd64" {
					f.Skip("only amd64 has this ABI")
				}
				witnessed([]string{"x32"}, nil).run(f, e)
			}}},
			named: map[string]string{"calls that succeed": "kernels with CONFIG_X86_X32_ABI are rare, Debian's have it not; the witness sees that the calls are made"},
		},
		{
			id: "K03", title: "TIOCSTI on the caller's terminal", test: k03,
		},
		{
			id: "K05", title: "mount, pivot_root and the new mount calls",
			args: func(f *fixture) []string { return []string{"ws=" + f.ws} },
			deny: refused,
			controls: []control{
				jailed(jail{}),
				witnessed(mounts, nil),
			},
		},
		{
			id: "K06", title: "bpf, perf, userfaultfd, io_uring, keyrings, ptrace",
			deny: refused,
			controls: []control{
				jailed(jail{
					want:   map[string]string{"io_uring_register": "ENXIO|EINVAL", "request_key": "ok|ENOKEY", "open_by_handle_at": "EINVAL|EPERM"},
					except: map[string]string{"bpf": "unprivileged_bpf_disabled decides, see the witness", "perf_event_open": "perf_event_paranoid decides, see the witness", "fanotify_init": "needs the host's root, see the witness", "open_by_handle_at": "needs the host's root, see the witness"},
				}),
				witnessed(numbers(unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
					unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT), nil),
			},
		},
		{
			id: "K07", title: "sockets of families that nobody needs",
			deny: "EPERM|EAFNOSUPPORT",
			controls: []control{
				witnessed(numbers(unix.SYS_SOCKET, unix.SYS_SOCKETPAIR), nil),
				jailed(jail{except: notInThisKernel()}),
			},
		},
		{
			id: "K09", title: "kexec, modules, reboot, swap, acct, quota, the clock",
			deny: refused,
			controls: []control{witnessed(append(numbers(unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_REBOOT,
				unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME,
				unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP), portCalls...), nil)},
			named: map[string]string{"the effects": "here the witness sees that the calls are made; TestEffects, in a machine of test/vm, has a control that loads a module and sets the clock, and its end one that restarts it"},
		},
		{
			id: "K11", title: "another cgroup, release_agent",
			args: func(f *fixture) []string {
				roots, _ := cgroupRoots()
				var agents []string
				for _, r := range roots {
					agents = append(agents, filepath.Join(r, "release_agent"), filepath.Join(r, "notify_on_release"), filepath.Join(r, "sbxrun/cgroup.procs"), filepath.Join(r, "sbxrun/memory.max"))
				}
				return []string{"name=" + f.unique("group"), "groups=" + strings.Join(roots, ","), "agents=" + strings.Join(agents, ",")}
			},
			deny: "EROFS|ENOENT|EACCES|EPERM",
			want: map[string]string{"its group, as it sees it": "/"},
			controls: []control{{"without the sandbox", func(f *fixture, e *entry) {
				f.who.needCgroup(f.T)
				dirs := f.who.delegated()
				if len(dirs) == 0 && !isRoot() {
					f.Skip("needs root, or a delegated group of cgroup v2")
				}
				if len(dirs) == 0 {
					// Root's own, below the top; the jail's end empties them.
					roots, _ := cgroupRoots()
					for _, r := range roots {
						d := filepath.Join(r, f.unique("parent"))
						if err := os.Mkdir(d, 0o755); err != nil {
							f.Fatal(err)
						}
						f.Cleanup(func() { removeGroups(d) })
						dirs = append(dirs, d)
					}
				}
				j := jail{args: func(*fixture) []string {
					return []string{"name=" + f.unique("group"), "groups=" + strings.Join(dirs, ","), "agents=" + dirs[0] + "/cgroup.procs"}
				}, want: map[string]string{"its group, as it sees it": "*"}} // it may have been started in the top one
				if _, v2 := cgroupRoots(); v2 {
					j.except = map[string]string{}
					for _, d := range dirs {
						j.except["move to "+d] = "v2 asks for the common ancestor too"
					}
				}
				j.run(f, e, ownUser)
			}}},
		},
		{id: "K08", title: "MPTCP, SCTP, raw sockets, TCP Fast Open", test: k08},
		{id: "K12", title: "each layer taken away in turn", test: k12},
		{
			id: "K13", title: "PTRACE_O_SUSPEND_SECCOMP",
			deny: "EPERM|ENOSYS",
			controls: []control{
				jailed(jail{want: map[string]string{"PTRACE_SEIZE with SUSPEND_SECCOMP": "EPERM"}}), // needs the host's root
				asHostRoot(jail{want: map[string]string{"PTRACE_SEIZE": "ok|EPERM"}}),               // EPERM: it is traced already
				witnessed(numbers(unix.SYS_PTRACE), nil),
			},
		},
		{
			id: "K15", title: "leases, which hold up who opens a file on the host",
			// Not the attack itself, which is executed and so cannot be leased.
			flags: func(f *fixture) []string { return []string{"--ro", filepath.Join(f.outside, "attack")} },
			args: func(f *fixture) []string {
				return []string{"shown=" + filepath.Join(f.outside, "attack"), "own=" + filepath.Join(f.ws, "own")}
			},
			deny:     "EPERM",
			controls: []control{jailed(jail{})},
		},
		{
			id: "K14", title: "where only Landlock stands: a file of the host's given as fd 0",
			args: k14args,
			stdin: func(f *fixture) *os.File {
				// Read-only; the same user may write and run it by its name.
				file, err := os.Open(filepath.Join(f.outside, "attack"))
				if err != nil {
					f.Fatal(err)
				}
				f.Cleanup(func() { file.Close() })
				return file
			},
			check: func(f *fixture, _ *outcome) {
				// A directory would be a way past every mount, and is refused.
				d, err := os.Open(f.outside)
				if err != nil {
					f.Fatal(err)
				}
				defer d.Close()
				if o := f.do(call{args: f.strict(nil, f.attack, "touch", "path="+filepath.Join(f.ws, "ran")), stdin: d}); o.code != 125 || exists(filepath.Join(f.ws, "ran")) {
					f.Errorf("a directory as stdin: %v", o)
				}
			},
			deny: "EACCES|EXDEV|EPERM|ENOENT",
			want: k14,
			controls: []control{{"without the sandbox", func(f *fixture, e *entry) {
				jail{except: map[string]string{"link fd 0": "the file was opened in another mount namespace: EXDEV of itself"}}.run(f, e, ownUser)
				if len(f.changed()) == 0 {
					f.Error("the canary does not see a change")
				}
			}}},
			named: map[string]string{"ioctl and abstract sockets": "ABI 5 and 6: N03 connects to an abstract socket with the host's network; that a device may not be controlled needs one that is granted"},
		},
	}
}

// notInThisKernel are families that a kernel may have been built without; the
// witness speaks for them.
func notInThisKernel() map[string]string {
	m := map[string]string{}
	for _, name := range []string{"ALG", "VSOCK", "RXRPC", "KEY", "SMC", "TIPC", "CAN", "BLUETOOTH", "XDP", "RDS", "KCM", "QIPCRTR", "NFC", "PPPOX", "LLC", "VSOCK with high bits",
		"NETLINK_XFRM", "NETLINK_NETFILTER", "NETLINK_NETFILTER dgram", "NETLINK_AUDIT", "NETLINK_NETFILTER with high bits"} {
		m[name] = "depends on how the kernel was built; see the witness"
	}
	return m
}

// k03 is K03: the terminal of the caller is the command's stdin, and no more.
func k03(f *fixture) {
	e := entry{id: "K03", deny: "EPERM", want: map[string]string{"open /dev/tty": "ENXIO|ENOENT|EACCES|EPERM"}}
	tm := f.newTerminal()
	o := tm.stdin(f.strict(nil, f.attack, "K03"))
	e.judge(f, f.report(o), e.inside)
	if n := tm.pending(); n != 0 {
		f.Errorf("%d bytes were put into the terminal's input", n)
	}
	f.step("control without the sandbox", func() {
		if legacy, _ := os.ReadFile("/proc/sys/dev/tty/legacy_tiocsti"); strings.TrimSpace(string(legacy)) == "0" {
			f.Log("named: this host refuses TIOCSTI to everybody (dev.tty.legacy_tiocsti=0)")
			return
		}
		tm := f.newTerminal()
		o := tm.stdin(f.who.command(f.attack, "K03"))
		e.judge(f, f.report(o), func(act string) string {
			switch {
			case strings.HasPrefix(act, "TIOCLINUX"):
				return "ENOTTY|EINVAL" // not a console: it reached the driver
			case strings.HasPrefix(act, "TIOCSTI") && !strings.HasSuffix(act, " 0"):
				return "ENOTTY"
			}
			return "ok"
		})
		if tm.pending() == 0 {
			f.Error("nothing was put into the terminal's input")
		}
	})
}

// k12 is K12: on a host that lacks a layer, strict refuses, names it, and runs
// nothing.
func k12(f *fixture) {
	ran := filepath.Join(f.ws, "ran")
	mountCalls := strings.Join(numbers(unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_PIVOT_ROOT), ",")
	zero := func(name string) []string { return []string{"-jail", "user,mnt", "-zero", name} }
	answers := func(a ...string) []string {
		var args []string
		for _, s := range a {
			args = append(args, "-answer", s)
		}
		return args
	}
	prctl := func(option int) string { return fmt.Sprintf("EINVAL=%d:%d", unix.SYS_PRCTL, option) }
	nr := func(n uintptr) string { return fmt.Sprint(n) }

	for _, c := range []struct {
		name  string
		stage []string // what takes the layer away
		layer string   // what the message must say, one of these
		probe string   // the act of K12 that shows that it is gone
		gone  string   // what the probe gets
		allow string   // a layer that may be given up: then the run happens
	}{
		{"user namespaces by sysctl", zero("max_user_namespaces"), "user", "user by clone", "ENOSPC", ""},
		{"user namespaces by a filter", answers("EPERM="+fmt.Sprintf("%d&%d", unix.SYS_CLONE, unix.CLONE_NEWUSER), "ENOSYS="+nr(unix.SYS_CLONE3)), "user", "user by clone", "EPERM", ""},
		{"pid namespaces", zero("max_pid_namespaces"), "pid", "NEWPID", "ENOSPC", ""},
		{"mount namespaces", zero("max_mnt_namespaces"), "mount", "NEWNS", "ENOSPC", ""},
		{"network namespaces", zero("max_net_namespaces"), "net", "NEWNET", "ENOSPC", ""},
		{"ipc namespaces", zero("max_ipc_namespaces"), "ipc", "NEWIPC", "ENOSPC", ""},
		{"uts namespaces", zero("max_uts_namespaces"), "uts", "NEWUTS", "ENOSPC", ""},
		{"cgroup namespaces", zero("max_cgroup_namespaces"), "cgroup", "NEWCGROUP", "ENOSPC", ""},
		// Ubuntu 24.04: the namespace is given, and then no mount in it.
		{"mounts", answers("EPERM=" + mountCalls), "mount", "mount", "EPERM", ""},
		{"mounts, a few of the calls", answers("EPERM=" + nr(unix.SYS_MOUNT) + "," + nr(unix.SYS_FSOPEN) + "," + nr(unix.SYS_OPEN_TREE)), "mount", "mount", "EPERM", ""},
		{"seccomp", answers("ENOSYS="+nr(unix.SYS_SECCOMP), prctl(unix.PR_SET_SECCOMP)), "seccomp", "seccomp", "ENOSYS", ""},
		{"seccomp, refused", answers("EINVAL="+nr(unix.SYS_SECCOMP), prctl(unix.PR_SET_SECCOMP)), "seccomp", "seccomp", "EINVAL", ""},
		{"landlock, not built in", answers("ENOSYS=444,445,446"), "landlock", "landlock", "ENOSYS", "landlock"},
		{"landlock, not enabled", answers("EOPNOTSUPP=444,445,446"), "landlock", "landlock", "EOPNOTSUPP", "landlock"},
		{"landlock, refused at the end", answers("EPERM=446"), "landlock", "", "", ""},
		{"no_new_privs", answers(prctl(unix.PR_SET_NO_NEW_PRIVS)), "no_new_privs|new privileges|no new priv", "no_new_privs", "EINVAL", ""},
		{"rlimits", answers("EPERM=" + nr(unix.SYS_PRLIMIT64) + "," + setrlimit), "rlimit", "rlimits", "EPERM", ""},
		{"cgroup", []string{"-jail", "user,mnt", "-tmpfs", "/sys/fs/cgroup"}, "cgroup", "cgroup", "ENOENT", "cgroup"},
	} {
		controller := ""
		if roots, v2 := cgroupRoots(); !v2 && len(roots) > 0 {
			controller = "controller=memory/"
		}
		staged := func(command ...string) []string {
			args := append(append(f.who.command(stage), c.stage...), "--")
			return append(args, command...)
		}
		canary := []string{f.attack, "touch", "path=" + ran}
		line := append(staged(sbxrun, "--profile", "strict", "-C", f.ws, "--"), canary...)
		if c.layer != "cgroup" && len(f.who.flags()) > 0 {
			line = append(staged(append([]string{sbxrun, "--profile", "strict", "-C", f.ws}, append(f.who.flags(), "--")...)...), canary...)
		}
		o := f.do(call{args: line})
		named := false
		for word := range strings.SplitSeq(c.layer, "|") {
			named = named || strings.Contains(strings.ToLower(o.stderr), word)
		}
		if o.code != 125 || !named || !strings.Contains(o.stderr, "sbxrun: error: ") || o.stdout != "" {
			f.Errorf("without %s: want a refusal that names it: %v", c.name, o)
		}
		if exists(ran) {
			f.Errorf("without %s: the command ran", c.name)
			os.Remove(ran)
		}
		f.gone(f.ws)
		refused := o

		// Control: in this place the layer is not to be had.
		if c.probe != "" {
			o = f.do(call{args: staged(f.attack, "K12", controller)})
			if got := f.report(o).got(c.probe); !match(c.gone, got) {
				f.Errorf("control: without %s: %s got %s, want %s", c.name, c.probe, got, c.gone)
			}
		}
		// Neighbour: where there are no namespaces for an ordinary user, the hint
		// names a way that works in this very place.
		if c.layer == "user" || c.layer == "mount" && c.name != "mount namespaces" {
			const way = "--driver landlock --allow-degraded namespaces,protect"
			if !strings.Contains(refused.stderr, way) {
				f.Errorf("without %s: the hint does not name %s: %v", c.name, way, refused)
			}
			for _, flags := range []string{way, "--driver auto --allow-degraded namespaces,protect", "--fallback landlock --allow-degraded namespaces,protect"} {
				args := append(append([]string{sbxrun, "--profile", "strict", "-C", f.ws, "--json"}, strings.Fields(flags)...), append(f.who.flags(), "--")...)
				o = f.do(call{args: staged(append(args, canary...)...)})
				if landlockABI() < 3 {
					// Before Linux 6.2 Landlock cannot keep files from being truncated.
					if o.code != 125 || exists(ran) || !strings.Contains(o.stderr+o.stdout, "landlock") {
						f.Errorf("without %s, %s: %v", c.name, flags, o)
					}
					os.Remove(ran)
					continue
				}
				if r := f.result(o); o.code != 0 || r.Driver != "landlock" || !exists(ran) || !strings.Contains(strings.Join(r.Degraded, " "), "user") {
					f.Errorf("without %s, %s: %v", c.name, flags, o)
				}
				os.Remove(ran)
			}
		}
		// Neighbour: the layer is given up on request, and the result says so.
		if c.allow != "" {
			args := append([]string{sbxrun, "--profile", "strict", "-C", f.ws, "--json", "--allow-degraded", c.allow}, append(f.who.flags(), "--")...)
			o = f.do(call{args: staged(append(args, canary...)...)})
			r := f.result(o)
			if o.code != 0 || !exists(ran) || !strings.Contains(strings.Join(r.Degraded, " "), c.allow) || strings.Contains(strings.Join(r.Layers, " "), c.allow+" ") {
				f.Errorf("without %s, which was agreed to: %v", c.name, o)
			}
			os.Remove(ran)
		}
	}
	// Neighbour: the same places, with nothing taken away.
	for _, place := range [][]string{{"-jail", "user,mnt"}, {"-answer", "ENOANO=9999"}} {
		args := append(append(f.who.command(stage), place...), "--", sbxrun, "--profile", "strict", "-C", f.ws)
		args = append(append(args, f.who.flags()...), "--", f.attack, "touch", "path="+ran)
		if o := f.do(call{args: args}); o.code != 0 || !exists(ran) {
			f.Errorf("%v with nothing taken away: %v", place, o)
		}
		os.Remove(ran)
	}
}

// pending is how many bytes a reader of the terminal would find.
func (tm *terminal) pending() int {
	fd := int(tm.tty.Fd())
	if t, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		// Without lines, or only whole ones would count.
		t.Lflag &^= unix.ICANON
		unix.IoctlSetTermios(fd, unix.TCSETS, t)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		tm.f.Fatal(err)
	}
	return n
}
