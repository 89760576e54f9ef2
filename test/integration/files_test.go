//go:build linux

package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Answers to what is not there, not to be had, or not to be written.
const (
	unwritable = "EROFS|EACCES|ENOENT|EPERM"
	unreadable = "ENOENT|EACCES|EPERM"
	denied     = "EPERM|EACCES"
	refused    = "EPERM|ENOSYS"
)

func fileTests() []entry {
	return []entry{
		{
			id: "F01", title: "write to /etc, /usr, /boot",
			args: func(f *fixture) []string {
				return []string{"name=" + f.unique("canary"), "ws=" + f.ws, "file=/usr/bin/env", "other=/usr/bin/ls", "dirs=/,/etc,/usr,/usr/bin,/bin,/sbin,/lib,/boot,/opt,/var,/root,/home,/proc,/dev"}
			},
			deny: unwritable,
			check: func(f *fixture, _ *outcome) {
				for _, dir := range []string{"/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/boot"} {
					if p := filepath.Join(dir, f.unique("canary")); exists(p) {
						f.Errorf("%s is on the host", p)
					}
				}
				if !exists(filepath.Join(f.ws, f.unique("canary"))) {
					f.Errorf("what was created in the workspace is not on the host")
				}
			},
			controls: []control{jailed(jail{
				flags: []string{"-tmpfs", "/etc", "-tmpfs", "/usr", "-tmpfs", "/boot", "-file", "/usr/bin/env", "-file", "/usr/bin/ls", "-file", "/usr/sbin/x", "-file", "/usr/lib/x"},
				args: func(f *fixture) []string {
					return []string{"name=" + f.unique("canary"), "ws=" + f.ws, "file=/usr/bin/env", "other=/usr/bin/ls", "dirs=/etc,/usr,/usr/bin,/usr/sbin,/usr/lib,/boot"}
				},
				except: map[string]string{"setxattr": "tmpfs has user.* attributes by configuration only"},
			})},
		},
		{
			id: "F02", title: "read keys, tokens and the host's home",
			args: func(f *fixture) []string {
				args := []string{"ws=" + f.ws, "secret.ssh=" + f.home + "/.ssh/id_ed25519", "secret.aws=" + f.home + "/.aws/credentials", "secret.notes=" + f.home + "/notes",
					"secret.outside=" + f.outside + "/canary", "secret.home=" + f.home, "secret.ssh directory=" + f.home + "/.ssh"}
				if f.who.uid == 0 {
					// To an ordinary user these are closed anyway.
					args = append(args, "secret.shadow=/etc/shadow", "secret.root=/root")
				}
				return args
			},
			deny:     unreadable,
			want:     map[string]string{"read home": "empty", "read home by /proc/self/cwd": "empty"}, // private storage
			controls: []control{jailed(jail{})},
		},
		{
			id: "F03", title: "write through symlinks in the workspace",
			setup: func(f *fixture) {
				os.Symlink(filepath.Join(f.outside, "canary"), filepath.Join(f.ws, "host-link"))
				f.own()
				f.before = f.snapshot()
			},
			args: func(f *fixture) []string { return []string{"ws=" + f.ws, "outside=" + f.outside} },
			deny: unwritable,
			controls: []control{{"without the sandbox", func(f *fixture, e *entry) {
				jail{}.run(f, e, ownUser)
				if len(f.changed()) == 0 {
					f.Error("the canary does not see a change")
				}
			}}},
		},
		{id: "F05", title: "/dev, /proc and the like are symbolic links in what is shown", test: f05},
		{
			id: "F11", title: "hard links to files outside the workspace",
			flags:    func(f *fixture) []string { return []string{"--ro", f.outside} },
			args:     func(f *fixture) []string { return []string{"ws=" + f.ws, "outside=" + f.outside} },
			deny:     "EXDEV|EPERM|EROFS|EACCES",
			want:     map[string]string{"link by AT_EMPTY_PATH": "EXDEV|EPERM|EROFS|EACCES|ENOENT"}, // ENOENT: no CAP_DAC_READ_SEARCH; see linkat(2)
			controls: []control{jailed(jail{want: map[string]string{"link by AT_EMPTY_PATH": "ok|ENOENT"}})},
		},
		{
			id: "F13", title: "make device nodes, and open one",
			setup: func(f *fixture) {
				// The host's root left a node in the workspace.
				if isRoot() {
					node := filepath.Join(f.ws, "null")
					if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
						f.Fatal(err)
					}
					os.Chmod(node, 0o666)
				}
			},
			args: func(f *fixture) []string {
				args := []string{"ws=" + f.ws, "name=" + f.unique("node")}
				if isRoot() {
					args = append(args, "node="+filepath.Join(f.ws, "null"))
				}
				return args
			},
			deny:     denied,
			controls: []control{asHostRoot(jail{})},
		},
		{
			id: "F15", title: "set-user-id files in the workspace",
			setup: func(f *fixture) {
				f.copyAttack(filepath.Join(f.ws, "prepared"))
				f.own()
				if isRoot() {
					p := filepath.Join(f.ws, "prepared")
					if err := errors.Join(os.Chown(p, 0, 0), os.Chmod(p, 0o755|os.ModeSetuid|os.ModeSetgid)); err != nil {
						f.Fatal(err)
					}
				}
			},
			args: func(f *fixture) []string {
				return []string{"ws=" + f.ws, "prepared.host's copy=" + filepath.Join(f.ws, "prepared")}
			},
			deny: "nothing gained",
			check: func(f *fixture, _ *outcome) {
				// What root's sandbox leaves in the workspace is root's: with the
				// bit, every user of the host is root by it.
				entries, _ := os.ReadDir(f.ws)
				for _, e := range entries {
					fi, err := e.Info()
					if err == nil && fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 && e.Name() != "prepared" {
						f.Errorf("the run left %s %v in the workspace", e.Name(), fi.Mode())
					}
				}
			},
			controls: []control{{"as another user without the sandbox", func(f *fixture, e *entry) {
				if !isRoot() {
					f.Skip("needs root, to have two users")
				}
				args := []string{stage, "-jail", noUser, "-then-uid", "1000", "--", filepath.Join(f.ws, "prepared"), "ids"}
				if r := f.report(f.do(call{args: args})); r.got("euid") != "0" || r.got("uid") != "1000" {
					f.Errorf("a set-user-id program gained nothing: %+v", r)
				}
			}}},
		},
		{
			id: "F16", title: "write the programs that run (CVE-2019-5736)",
			args: func(f *fixture) []string { return []string{"sbxrun=" + sbxrun} },
			deny: "EACCES|EPERM",
			want: map[string]string{
				"write /proc/self/exe":     "ETXTBSY|EACCES",
				"write the binary by path": unwritable,
			},
			check: func(f *fixture, _ *outcome) {
				before := f.sha(sbxrun)
				// The command is the supervisor's own binary, by a name that means
				// another file at each step of the way.
				for _, command := range [][]string{{"/proc/self/exe", "version"}, {"/proc/1/exe", "version"}, {filepath.Join(f.ws, "interpreter")}} {
					f.write("ws/interpreter", "#!/proc/self/exe\n", 0o755)
					o := f.do(call{args: f.strict(nil, command...)})
					if o.code == 0 || o.stdout != "" {
						f.Errorf("%s ran: %v", command[0], o)
					}
				}
				if f.sha(sbxrun) != before {
					f.Error("the sbxrun binary changed")
				}
			},
			controls: []control{jailed(jail{
				want: map[string]string{
					"write /proc/self/exe":     "ETXTBSY",
					"write /proc/1/exe":        "ETXTBSY|EACCES",    // busy, or root's: it got as far as the file itself
					"execute /proc/1/exe":      "exit status 99",    // stage's own complaint about its arguments: it ran
					"write the binary by path": "ok|EACCES|ETXTBSY", // busy while other tests run it
				},
			})},
		},
		{
			id: "F18", title: "the kernel's switches: sysrq, core_pattern, /proc/sys, /sys",
			args: func(f *fixture) []string { return []string{"paths=" + strings.Join(switches, ",")} },
			deny: unwritable,
			controls: []control{{"as root of the jail's network", func(f *fixture, e *entry) {
				// This switch is the network namespace's, and so an ordinary
				// user's too. The others are the host's root's only.
				j := jail{args: func(*fixture) []string {
					return []string{"paths=/proc/sys/net/ipv4/ip_forward,/proc/sys/net/ipv4/conf/all/forwarding"}
				}, except: hostFiles}
				j.run(f, e, ownUser)
			}}, {"as root without the sandbox", func(f *fixture, e *entry) {
				if f.who.uid != 0 || !isRoot() {
					f.Skip("needs root: these files are closed to everybody else, sandbox or not")
				}
				j := jail{args: func(*fixture) []string {
					return []string{"paths=/proc/sys/kernel/core_pattern,/proc/sys/vm/swappiness,/proc/sys/kernel/hostname"}
				}, except: hostFiles}
				j.run(f, e, noUser)
			}}},
			named: map[string]string{"writing them": "the attack opens the files and writes nothing; TestEffects writes to one in a machine of test/vm"},
		},
		{
			id: "F19", title: "umount or remount what masks",
			args: func(*fixture) []string { return []string{"dirs=/usr,/proc/sys,/etc/ssl/certs,/proc"} },
			deny: refused,
			controls: []control{jailed(jail{
				flags: []string{"-tmpfs", "/usr", "-ro", "/usr", "-tmpfs", "/etc", "-ro", "/etc"},
				args:  func(*fixture) []string { return []string{"dirs=/usr,/etc"} },
			})},
		},
		{id: "F20", title: "temporary paths that were made beforehand", test: f20},
		{
			id: "F21", title: "read or change the policy, the filter and the state",
			setup: func(f *fixture) {
				f.write("state/strict-too.yaml", "extends: strict\n", 0o644)
				f.own()
			},
			flags: func(f *fixture) []string { return []string{"--profile", filepath.Join(f.dir, "state/strict-too.yaml")} },
			args: func(f *fixture) []string {
				args := []string{"cmdline=strict-too.yaml", "state.policy=" + filepath.Join(f.dir, "state/strict-too.yaml"), "state.configuration=" + filepath.Join(f.dir, "state/config/some.yaml")}
				return args
			},
			deny: unreadable + "|ENOSYS",
			want: map[string]string{
				"the policy's path in the command line of 1": "not there",
				"read the filter of its own parent":          "EPERM|EACCES|ENOSYS|ESRCH",
			},
			controls: []control{jailed(jail{
				want: map[string]string{
					"the policy's path in the command line of 1": "there", // of stage, which was given it as an argument
					"read the filter of 1":                       "EINVAL|EACCES|ESRCH",
					"read the filter of its own parent":          "EACCES|ESRCH|EINVAL",
				},
				except: map[string]string{
					"read /proc/1/syscall": "by the kernel's configuration",
					"read /proc/1/stack":   "root's only, and by configuration",
				},
			})},
		},
		{id: "F24", title: "rules that overlap, in any order", test: f24},
		{id: "F25", title: "what later runs obey, under grants of what holds it", test: f25},
	}
}

// f05 is F05: an earlier command has put links where the next run is to mount
// something. No mount, and nothing written, is led outside by them.
func f05(f *fixture) {
	for _, name := range []string{"dev", "proc", "sys", "tmp", "etc"} {
		if err := os.Symlink(f.outside, filepath.Join(f.ws, name)); err != nil {
			f.Fatal(err)
		}
	}
	os.Symlink(filepath.Join(f.outside, "victim"), filepath.Join(f.ws, "file"))
	f.own()
	f.before = f.snapshot()
	src := filepath.Join(f.outside, "a")
	// What a command would do in its mount, were it led to the host's directory.
	use := []string{"/bin/sh", "-c", `for d in "$@"; do echo x >$d/touched; done; true`, "sh"}
	for _, c := range []struct {
		name   string
		flags  []string
		target string
	}{
		{"a bind", []string{"--bind", src + ":" + f.ws + "/dev"}, f.ws + "/dev"},
		{"a bind below", []string{"--bind", src + ":" + f.ws + "/proc/a"}, f.ws + "/proc/a"},
		{"a bind of a file", []string{"--bind", src + "/file:" + f.ws + "/file"}, f.ws},
		{"private storage", []string{"--tmpfs", f.ws + "/tmp"}, f.ws + "/tmp"},
		{"private storage below", []string{"--tmpfs", f.ws + "/sys/b"}, f.ws + "/sys/b"},
		{"a writable path", []string{"--rw", f.ws + "/etc"}, f.ws + "/etc"},
		{"a writable path below", []string{"--rw", f.ws + "/etc/b"}, f.ws + "/etc/b"},
	} {
		o := f.do(call{args: f.strict(c.flags, append(use, c.target)...)})
		if o.code != 125 || !strings.Contains(o.stderr, "symbolic link") {
			f.Errorf("%s: %v", c.name, o)
		}
		f.wantUnchanged()
	}
	// /dev and /proc are the sandbox's own, whatever lies in the workspace.
	o := f.do(call{args: f.strict(nil, "/bin/sh", "-c", "echo x >/dev/null && test -e /proc/self/status && echo own")})
	if o.code != 0 || o.stdout != "own\n" {
		f.Errorf("its own /dev and /proc: %v", o)
	}
	f.step("neighbour: a directory in the link's place", func() {
		os.Remove(filepath.Join(f.ws, "tmp"))
		os.Mkdir(filepath.Join(f.ws, "tmp"), 0o755)
		f.own()
		if o := f.do(call{args: f.strict([]string{"--tmpfs", f.ws + "/tmp"}, append(use, f.ws+"/tmp")...)}); o.code != 0 || exists(filepath.Join(f.ws, "tmp/touched")) {
			f.Errorf("a private directory: %v", o)
		}
	})
	f.step("control without the sandbox", func() {
		f.do(call{args: f.jail(ownUser, nil, append(use, f.ws+"/dev")...)})
		if len(f.changed()) == 0 {
			f.Error("the canary does not see a change")
		}
	})
}

// f20 is F20: who knows the names that sbxrun will use in a directory that all
// may write to makes them first, as links to a victim's files.
func f20(f *fixture) {
	// TMPDIR can be where commands write, and so is not asked.
	tmp := f.path("tmp")
	if err := errors.Join(os.Mkdir(tmp, 0o777), os.Chmod(tmp, 0o777|os.ModeSticky)); err != nil {
		f.Fatal(err)
	}
	run := func() {
		// The self-test is what needs temporary files.
		if o := f.do(call{args: f.strict([]string{"--verify"}, f.attack, "exit"), env: []string{"TMPDIR=" + tmp}}); o.code != 0 {
			f.Errorf("%v", o)
		}
	}
	run() // makes the directory that is watched
	uid := f.who.uid
	if !isRoot() {
		uid = os.Getuid()
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		f.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, fmt.Sprintf("/var/tmp/sbxrun-%d", uid), unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		f.Fatal(err)
	}
	run()
	run()
	buf := make([]byte, 64<<10)
	n, _ := unix.Read(watch, buf)
	var names []string
	for i := 0; i+unix.SizeofInotifyEvent <= n; {
		size := int(binary.NativeEndian.Uint32(buf[i+12:]))
		name := strings.TrimRight(string(buf[i+16:i+16+size]), "\x00")
		if i += unix.SizeofInotifyEvent + size; slices.Contains(names, name) {
			f.Errorf("%s was used twice: it can be made beforehand", name)
		}
		names = append(names, name)
	}
	if len(names) < 2 {
		f.Errorf("two runs made %q: this test shows nothing", names)
	}
	f.wantUnchanged()
	if left, _ := os.ReadDir(tmp); len(left) != 0 {
		f.Errorf("the runs left something in %s: %v", tmp, left)
	}
}

// f24 is F24: the same rules in another order are the same rules.
func f24(f *fixture) {
	rules := [][]string{{"--ro", f.outside}, {"--rw", filepath.Join(f.outside, "a")}, {"--hide", filepath.Join(f.outside, "a", "file")}, {"--hide", filepath.Join(f.outside, "second")}}
	script := `cat canary; cat a/file; cat second; echo x >a/new && echo written; echo x >new && echo outside; ls b`
	want := "canary\nwritten\nother\n"
	orders := [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}, {2, 3, 1, 0}, {0, 3, 2, 1}}
	for _, order := range orders {
		var flags []string
		for _, i := range order {
			flags = append(flags, rules[i]...)
		}
		o := f.do(call{args: f.strict(flags, "/bin/sh", "-c", "cd "+f.outside+" && { "+script+"; } 2>/dev/null")})
		if o.stdout != want {
			f.Errorf("in the order %v: %v", order, o)
		}
		if b, _ := os.ReadFile(filepath.Join(f.outside, "a/new")); string(b) != "x\n" {
			f.Errorf("in the order %v: what was written is not on the host", order)
		}
		os.Remove(filepath.Join(f.outside, "a/new"))
		for _, d := range f.changed() {
			if !strings.HasPrefix(d, filepath.Join(f.outside, "a")+": ") { // its times
				f.Errorf("in the order %v: the host changed: %s", order, d)
			}
		}
	}
	f.step("control: without the rules that deny", func() {
		o := f.do(call{args: f.strict(slices.Concat(rules[0], rules[1]), "/bin/sh", "-c", "cd "+f.outside+" && { "+script+"; } 2>/dev/null")})
		if o.stdout != "canary\nfile\nsecond\nwritten\nother\n" {
			f.Errorf("%v", o)
		}
	})
}

// hostFiles are acts that ask the host's hardware, to which a control may say
// anything.
var hostFiles = map[string]string{}

func init() {
	for _, p := range []string{"/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/port", "/sys/kernel/debug/sched", "/sys/fs/bpf/x"} {
		hostFiles["read "+p] = "what of it there is depends on the kernel's configuration"
	}
}

// switches change the whole host when they are written to.
var switches = []string{
	"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/sysrq", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
	"/proc/sys/vm/swappiness", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces", "/proc/irq/default_smp_affinity", "/proc/mtrr",
	"/proc/1/oom_score_adj", "/proc/1/loginuid", "/proc/1/clear_refs", "/proc/1/timerslack_ns", "/proc/1/attr/current", "/proc/1/comm",
	"/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/module/kernel/parameters/panic", "/sys/fs/cgroup/cgroup.procs", "/sys/class/net/lo/mtu",
}
