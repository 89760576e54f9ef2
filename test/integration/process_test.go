//go:build linux

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/test/survivors"
)

// noCaps is an empty capability set.
const noCaps = "0000000000000000"

// leaked are variables that change what programs do, or that let them act for
// their user.
var leaked = []string{
	"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "ENV", "BASH_FUNC_ls%%", "PROMPT_COMMAND", "GIT_DIR", "GIT_SSH_COMMAND", "GIT_CONFIG_GLOBAL", "GIT_ASKPASS",
	"NODE_OPTIONS", "NODE_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PERL5OPT", "RUBYOPT", "JAVA_TOOL_OPTIONS", "GOFLAGS", "SSH_AUTH_SOCK", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS",
	"DOCKER_HOST", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "NPM_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY",
	"GOOGLE_APPLICATION_CREDENTIALS", "KUBECONFIG", "VAULT_TOKEN", "HTTPS_PROXY", "MY_SECRET", "SBXRUN_PROFILE_NOTE",
}

func processTests() []entry {
	namespaces := map[string]string{}
	for _, ns := range []string{"net", "uts", "ipc", "mnt", "pid", "user", "cgroup"} {
		namespaces["setns "+ns] = "ok|EINVAL" // EINVAL: it is the caller's own already; see setns(2)
		namespaces["setns "+ns+" of 1"] = "ok|EINVAL"
	}
	// One with CLONE_NEWUSER may need no privilege; by itself each other does.
	unshares := map[string]string{"unshare NEWTIME": "ok", "limit of user namespaces": ">=1"}

	return []entry{
		{
			id: "P01", title: "the five capability sets are empty and stay so",
			args: func(f *fixture) []string { return []string{"file=" + filepath.Join(f.ws, "README")} },
			deny: "EPERM|EINVAL",
			want: map[string]string{"CapInh": noCaps, "CapPrm": noCaps, "CapEff": noCaps, "CapBnd": noCaps, "CapAmb": noCaps},
			controls: []control{jailed(jail{want: map[string]string{
				"CapInh": noCaps, "CapAmb": noCaps, "CapPrm": "000001ffffffffff", "CapEff": "000001ffffffffff", "CapBnd": "000001ffffffffff",
				"raise an ambient capability": "ok|EPERM", // EPERM: it is not inheritable yet
			}})},
		},
		{
			id: "P02", title: "no_new_privs and seccomp on every thread",
			deny: "EINVAL|EPERM",
			want: map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "NoNewPrivs of a child": "1", "no_new_privs by prctl": "1"},
			controls: []control{jailed(jail{
				want:   map[string]string{"NoNewPrivs": "0", "Seccomp": "0", "NoNewPrivs of a child": "0", "no_new_privs by prctl": "0", "switch to strict mode and back": "EINVAL"},
				except: map[string]string{"clear no_new_privs": "0 is no argument of this call, set or not", "switch to strict mode and back": "no kernel leaves a mode"},
			})},
		},
		{
			id: "P03", title: "su, sudo, file capabilities, setuid",
			setup: func(f *fixture) {
				f.copyAttack(filepath.Join(f.ws, "withcaps"))
				f.own()
				if isRoot() {
					// VFS_CAP_REVISION_2 with the effective bit and CAP_NET_RAW; see
					// <linux/capability.h>.
					caps := make([]byte, 20)
					copy(caps, []byte{1, 0, 0, 2, 0, 1 << (unix.CAP_NET_RAW - 8)})
					if err := unix.Setxattr(filepath.Join(f.ws, "withcaps"), "security.capability", caps, 0); err != nil {
						f.Fatal(err)
					}
				}
			},
			args: func(f *fixture) []string { return []string{"uid=0", "withcaps=" + filepath.Join(f.ws, "withcaps")} },
			deny: "EPERM|EINVAL",
			want: map[string]string{"su": "refused", "sudo": "refused", "file capabilities": noCaps + "|EPERM"},
			controls: []control{{"as another user without the sandbox", func(f *fixture, e *entry) {
				if !isRoot() {
					f.Skip("needs root, to give a file capabilities")
				}
				args := []string{stage, "-jail", noUser, "-then-uid", "1000", "--", filepath.Join(f.ws, "withcaps"), "ids"}
				if r := f.report(f.do(call{args: args})); r.got("CapEff") != "0000000000002000" {
					f.Errorf("file capabilities gained nothing: %+v", r)
				}
			}}, {"as root without the sandbox", func(f *fixture, e *entry) {
				// Root of a jail may become anybody that the jail has.
				j := jail{want: map[string]string{"su": "*", "sudo": "*", "file capabilities": "*", "setgroups": "ok|EPERM"}} // EPERM: where an ordinary user wrote the map; see user_namespaces(7)
				j.run(f, e, ownUser)
			}}},
		},
		{id: "P05", title: "kill everything in sight, process 1 and the parent", test: p05},
		{id: "P06", title: "a daemon: forked twice, in a session of its own, deaf to TERM", test: p06},
		{id: "P07", title: "a grandchild that holds stdout open", test: p07},
		{id: "P08", title: "stopped children at the timeout", test: p08},
		{
			id: "P09", title: "make namespaces",
			deny:     "EPERM",
			want:     map[string]string{"clone3": "ENOSYS", "clone3 NEWUSER": "ENOSYS", "unshare NEWTIME": "EPERM|EINVAL", "limit of user namespaces": "0"},
			controls: []control{jailed(jail{want: unshares})},
		},
		{
			id: "P10", title: "join namespaces",
			deny: refused + "|EACCES",
			controls: []control{jailed(jail{want: namespaces, except: map[string]string{
				"setns cgroup": "the jail has none of its own, and the host's is not its root's", "setns cgroup of 1": "as the other",
			}})},
		},
		{
			id: "P12", title: "variables of the caller's environment", test: p12,
		},
		{id: "P14", title: "processes of the host in /proc", test: p14},
		{id: "P20", title: "shared memory, queues and the name of the host", test: p20},
		{
			id: "P16", title: "a crash writes no core",
			deny: "EPERM|EINVAL",
			want: map[string]string{"hard limit": "0|1", "neighbour: the crash": "SIGSEGV", "core": "none", "files": "0"},
			check: func(f *fixture, _ *outcome) {
				// A core_pattern that is a pipe runs for every limit but 1, which
				// the kernel takes to mean that it must not; see
				// fs/coredump.c and core(5).
				o := f.do(call{args: f.strict(nil, "/bin/sh", "-c", "ulimit -H -c; grep core /proc/self/limits")})
				if !strings.Contains(strings.Join(strings.Fields(o.stdout), " "), "core file size 1 1 bytes") {
					f.Errorf("RLIMIT_CORE is not 1: a host with a piped core_pattern gets the core: %v", o)
				}
			},
			controls: []control{{"without the sandbox", func(f *fixture, e *entry) {
				pattern, _ := os.ReadFile("/proc/sys/kernel/core_pattern")
				if !strings.HasPrefix(string(pattern), "core") {
					f.Skipf("the host's core_pattern is %q: the core would go there", pattern)
				}
				j := jail{want: map[string]string{"hard limit": "18446744073709551615", "neighbour: the crash": "SIGSEGV", "core": "dumped", "files": "1"}}
				j.run(f, e, ownUser)
			}}},
			named: map[string]string{"a piped core_pattern": "it is the whole host's: TestEffects sets one in a machine of test/vm; here the limit is looked at that stops it"},
		},
		{
			id: "P18", title: "real-time scheduling, negative nice",
			deny:     "EPERM|EACCES|ENOSYS",
			controls: []control{asHostRoot(jail{})},
		},
		{id: "P19", title: "exit, signal, out of memory and timeout are told apart", cgroup: true, test: p19},
	}
}

// p05 is P05: the attack kills all that it can, beside a bystander of the same
// user on the host.
func p05(f *fixture) {
	// First politely: what would be hit?
	r := f.report(f.attackIn(nil, "P14", "token=none"))
	if r.got("processes") != "few" {
		f.Fatalf("the sandbox shows processes that are not its own; not going on: %+v", r)
	}
	bystander := f.bystander("p05")
	o := f.attackIn(nil, "P05", "bystander="+fmt.Sprint(bystander.Process.Pid), "code=7")
	if o.code != 7 {
		f.Errorf("the attack's end was not reported: %v", o)
	}
	e := entry{id: "P05", deny: "ok|EPERM|ESRCH|EBADF", want: map[string]string{"processes in sight": "<=4", neighbour + "its own child": "killed:SIGKILL"}}
	e.judge(f, f.report(o), e.inside)
	if !alive(bystander) {
		f.Error("the bystander on the host died")
	}
	f.wantUnchanged()

	f.step("control without the sandbox", func() {
		o := f.do(call{args: f.jail(ownUser, []string{"-bystander"}, f.attack, "P05", "bystander={bystander}")})
		if !strings.Contains(o.stderr, "the bystander died") {
			f.Errorf("the bystander in the jail lived: %v", o)
		}
	})
}

// step is a part of a test that shares the fixture; its name in the log says
// which part failed.
func (f *fixture) step(name string, part func()) {
	f.Helper()
	f.Log(name)
	part()
}

// bystander is a process of the same user on the host that nothing in a sandbox
// may touch.
func (f *fixture) bystander(token string) *exec.Cmd {
	f.Helper()
	ready := f.path("bystander-ready")
	f.open("")
	args := f.who.command(attack, "sleep", "token="+f.unique(token), "ready="+ready)
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if !within(5*time.Second, func() bool { return exists(ready) }) {
		f.Fatal("the bystander did not start")
	}
	return cmd
}

// open lets the user write to a directory of the fixture.
func (f *fixture) open(dir string) {
	f.Helper()
	if isRoot() {
		if err := os.Chown(f.path(dir), f.who.uid, f.who.uid); err != nil {
			f.Fatal(err)
		}
	}
}

func alive(cmd *exec.Cmd) bool { return cmd.Process.Signal(syscall.Signal(0)) == nil }

// gone waits until no process with this text is left, for as long as the
// requirement gives: a second, in which processes could run.
func (f *fixture) gone(token string) {
	f.Helper()
	if err := survivors.Gone(func() []string { return processes(token) }); err != nil {
		f.Error(err)
		for _, p := range processes(token) {
			var pid int
			fmt.Sscan(p, &pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// p06 is P06: the daemon outlives neither the command nor sbxrun.
func p06(f *fixture) {
	token, ready := f.unique("p06"), filepath.Join(f.ws, "up")
	o := f.attackIn(nil, "P06", "token="+token, "ready="+ready, "code=5")
	f.gone(token)
	if r := f.report(o); o.code != 5 || r.got(neighbour+"the daemon") != "up" {
		f.Errorf("the daemon did not come up, or the command's end was not reported: %v", o)
	}

	f.step("sbxrun is killed", func() {
		os.Remove(ready)
		o := f.do(call{args: f.strict(nil, f.attack, "P06", "token="+token, "ready="+ready, "stay=yes"), started: func(cmd *exec.Cmd) {
			if !within(10*time.Second, func() bool { return exists(ready) }) {
				f.Error("the daemon did not come up")
			}
			cmd.Process.Kill()
		}})
		f.gone(token)
		if o.code != 137 {
			f.Errorf("sbxrun was not killed: %v", o)
		}
	})
	f.step("control without the sandbox", func() {
		os.Remove(ready)
		o := f.do(call{args: f.jail(ownUser, []string{"-count", token, "-linger", "200ms"}, f.attack, "P06", "token="+token, "ready="+ready)})
		if !strings.Contains(o.stderr, `{"survivors":1}`) {
			f.Errorf("the daemon did not survive its parent: %v", o)
		}
	})
	f.wantUnchanged()
}

// p07 is P07: who holds stdout open does not hold up the result.
func p07(f *fixture) {
	token := f.unique("p07")
	attackArgs := []string{f.attack, "P07", "token=" + token, "ready=" + filepath.Join(f.ws, "up"), "code=6"}
	for _, flags := range [][]string{nil, {"--json"}, {"--json", "--timeout", "5s", "--kill-after", "1s"}} {
		os.Remove(filepath.Join(f.ws, "up"))
		o := f.do(call{args: f.strict(flags, attackArgs...), timeout: 20 * time.Second})
		if o.code != 6 || o.took > 10*time.Second {
			f.Errorf("%v: the result was late or lost: %v", flags, o)
		}
		f.gone(token)
	}
	f.step("the command waits for its end itself", func() {
		os.Remove(filepath.Join(f.ws, "up"))
		o := f.do(call{args: f.strict([]string{"--json", "--timeout", "1s", "--kill-after", "500ms"}, append(attackArgs, "stay=yes")...), timeout: 30 * time.Second})
		if r := f.result(o); o.code != 124 || r.Reason != "timeout" {
			f.Errorf("no timeout: %v", o)
		}
		f.gone(token)
	})
	f.step("control without the sandbox", func() {
		os.Remove(filepath.Join(f.ws, "up"))
		// The jail lives on for a while, as the host does; the pipe stays open
		// for as long.
		o := f.do(call{args: f.jail(ownUser, []string{"-linger", "1s", "-count", token}, attackArgs...)})
		if o.took < time.Second || !strings.Contains(o.stderr, `{"survivors":1}`) {
			f.Errorf("nobody held stdout: %v", o)
		}
	})
}

// p08 is P08: stopped processes are killed at the timeout, though they act on no
// signal but that.
func p08(f *fixture) {
	token, ready := f.unique("p08"), filepath.Join(f.ws, "up")
	o := f.do(call{args: f.strict([]string{"--json", "--timeout", "5s", "--kill-after", "500ms"}, f.attack, "P08", "token="+token, "ready="+ready), timeout: 30 * time.Second})
	f.gone(token)
	if r := f.result(o); o.code != 124 || r.Reason != "timeout" || r.ExitCode != 124 {
		f.Errorf("no timeout: %v", o)
	}
	if !exists(ready) {
		f.Error("the children did not come up before the timeout")
	}
	f.step("control without the sandbox", func() {
		o := f.do(call{args: f.jail(ownUser, nil, f.attack, "stopped", "token="+token, "ready="+filepath.Join(f.ws, "up2"))})
		if r := f.report(o); r.got("state after TERM") != "T" {
			f.Errorf("a stopped process acted on TERM: %v", o)
		}
	})
}

// p12 is P12: what the caller's environment holds reaches the command only where
// it is asked for.
func p12(f *fixture) {
	var env []string
	for _, name := range leaked {
		env = append(env, name+"=/nonexistent")
	}
	names := "names=" + strings.Join(leaked, ",")
	e := entry{id: "P12", deny: "absent", want: map[string]string{"LANG": "present", "PATH": "present", "HOME": "present", "TERM": "present", "WANTED": "present", "MY_SECRET": "present"}}
	o := f.do(call{args: f.strict([]string{"-e", "WANTED=1", "-e", "MY_SECRET"}, f.attack, "P12", names+",LANG,PATH,HOME,TERM,WANTED"), env: env})
	e.judge(f, f.report(o), e.inside)
	f.step("control: a variable of the caller's, without -e", func() {
		delete(e.want, "MY_SECRET")
		o := f.do(call{args: f.strict(nil, f.attack, "P12", names), env: env})
		e.judge(f, f.report(o), e.inside)
	})
	f.step("control without the sandbox", func() {
		// Bare of the variables that would act on the stage itself.
		o := f.do(call{args: f.jail(ownUser, nil, f.attack, "P12", names), env: env})
		e.judge(f, f.report(o), func(string) string { return "present" })
	})
}

// p14 is P14.
func p14(f *fixture) {
	f.bystander("p14")
	e := entry{id: "P14", want: map[string]string{"processes": "few", neighbour + "itself": "listed", "the host's canary": "absent"}}
	o := f.attackIn(nil, "P14", "token="+f.unique("p14"))
	e.judge(f, f.report(o), e.inside)
	f.step("control with the host's /proc", func() {
		o := f.do(call{args: f.who.command(f.attack, "P14", "token="+f.unique("p14"))})
		if r := f.report(o); r.got("the host's canary") != "in sight" {
			f.Errorf("the canary is not to be seen: %v", o)
		}
	})
}

// p20 is P20. What the host has may be used by everybody.
func p20(f *fixture) {
	const private, create, remove = 0, 0o1000, 0 // see linux/ipc.h
	made := func(nr uintptr, a, b, c, d uintptr) int {
		f.Helper()
		id, _, errno := unix.Syscall6(nr, a, b, c, d, 0, 0)
		if errno != 0 {
			f.Fatalf("call %d: %v", nr, errno)
		}
		return int(id)
	}
	key := uintptr(os.Getpid())<<8 | uintptr(fixtures.Add(1))&0xff
	shm := made(unix.SYS_SHMGET, key, 4096, create|0o666, 0)
	f.Cleanup(func() { unix.Syscall(unix.SYS_SHMCTL, uintptr(shm), remove, 0) })
	msg := made(unix.SYS_MSGGET, private, create|0o666, 0, 0)
	f.Cleanup(func() { unix.Syscall(unix.SYS_MSGCTL, uintptr(msg), remove, 0) })
	sem := made(unix.SYS_SEMGET, private, 1, create|0o666, 0)
	f.Cleanup(func() { unix.Syscall6(unix.SYS_SEMCTL, uintptr(sem), 0, remove, 0, 0, 0) })
	mq, err := unix.BytePtrFromString(f.unique("mq"))
	if err != nil {
		f.Fatal(err)
	}
	p := uintptr(unsafe.Pointer(mq))
	q := made(unix.SYS_MQ_OPEN, p, unix.O_RDWR|unix.O_CREAT, 0, 0)
	err = unix.Fchmod(q, 0o666) // whatever the umask
	unix.Close(q)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { unix.Syscall(unix.SYS_MQ_UNLINK, p, 0, 0); runtime.KeepAlive(mq) })
	host, err := os.Hostname()
	if err != nil {
		f.Fatal(err)
	}
	args := []string{f.attack, "P20", fmt.Sprint("shm=", shm), fmt.Sprint("key=", key), fmt.Sprint("msg=", msg), fmt.Sprint("sem=", sem), "mq=" + f.unique("mq"), "host=" + host}
	e := entry{id: "P20", deny: "EINVAL|EIDRM|ENOENT|EPERM|ENOSYS", want: map[string]string{"uname": "ok", "its name": "another"}}
	o := f.do(call{args: f.strict(nil, args...)})
	e.judge(f, f.report(o), e.inside)
	f.step("control without the sandbox", func() {
		r := f.report(f.do(call{args: f.who.command(args...)}))
		e.judge(f, r, func(act string) string {
			if act == "its name" {
				return "the host's"
			}
			return "ok"
		})
	})
}

// p19 is P19: what --json and the exit code say of each kind of end.
func p19(f *fixture) {
	f.write("ws/not-executable", "data\n", 0o644)
	f.own()
	for _, c := range []struct {
		name    string
		flags   []string
		command []string
		code    int
		reason  string
		signal  string
	}{
		{"exit 0", nil, []string{f.attack, "exit"}, 0, "exit", ""},
		{"exit 42", nil, []string{f.attack, "exit", "code=42"}, 42, "exit", ""},
		{"its own 125", nil, []string{f.attack, "exit", "code=125"}, 125, "exit", ""},
		{"its own 137", nil, []string{f.attack, "exit", "code=137"}, 137, "exit", ""},
		{"its own 124", nil, []string{f.attack, "exit", "code=124"}, 124, "exit", ""},
		{"SIGTERM", nil, []string{f.attack, "exit", "signal=15"}, 143, "signal", "SIGTERM"},
		{"SIGKILL", nil, []string{f.attack, "exit", "signal=9"}, 137, "signal", "SIGKILL"},
		{"SIGSEGV", nil, []string{f.attack, "exit", "signal=11"}, 139, "signal", "SIGSEGV"},
		{"out of memory", []string{"--memory", "48m"}, []string{f.attack, "R02", "mb=256"}, 137, "oom", "SIGKILL"},
		{"timeout", []string{"--timeout", "500ms"}, []string{f.attack, "sleep"}, 124, "timeout", ""},
		{"timeout, deaf", []string{"--timeout", "500ms", "--kill-after", "300ms"}, []string{f.attack, "sleep", "deaf=yes"}, 124, "timeout", ""},
		{"not found", nil, []string{filepath.Join(f.ws, "no-such-command")}, 127, "setup", ""},
		{"not executable", nil, []string{filepath.Join(f.ws, "not-executable")}, 126, "setup", ""},
		{"a path that does not exist", []string{"--ro", f.path("no-such-path")}, []string{f.attack, "exit"}, 125, "setup", ""},
	} {
		o := f.do(call{args: f.strict(append([]string{"--json"}, c.flags...), c.command...)})
		r := f.result(o)
		if o.code != c.code || r.ExitCode != c.code || r.Reason != c.reason || (c.signal != "" && r.Signal != c.signal) {
			f.Errorf("%s: code %d, in the result %d, reason %q, signal %q; want %d, %s, %q: %v", c.name, o.code, r.ExitCode, r.Reason, r.Signal, c.code, c.reason, c.signal, o)
		}
		if wantRun := c.reason != "setup"; r.Sandboxed != wantRun && wantRun {
			f.Errorf("%s: sandboxed %v", c.name, r.Sandboxed)
		}
	}
	f.step("control without the sandbox", func() {
		// What a caller without a record has to go by: one number, three meanings.
		var codes []int
		for _, args := range [][]string{{"exit", "code=137"}, {"exit", "signal=9"}} {
			codes = append(codes, f.do(call{args: f.jail(ownUser, nil, append([]string{f.attack}, args...)...)}).code)
		}
		if !slices.Equal(codes, []int{137, 137}) {
			f.Errorf("codes %v", codes)
		}
	})
}
