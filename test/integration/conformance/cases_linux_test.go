package conformance

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

func resources(memory int64) *specs.LinuxResources {
	return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}}
}

func ptr[T any](v T) *T { return &v }

// on says what is on the host afterwards.
func on(path, content string) func(*world, *driver.Result) string {
	return func(w *world, _ *driver.Result) string {
		if b, err := os.ReadFile(filepath.Join(w.dir, path)); err != nil || string(b) != content {
			return fmt.Sprintf("on the host %s is %q, %v; want %q", path, b, err, content)
		}
		return ""
	}
}

// noCore: the limit of 1 keeps a core from a handler that core_pattern pipes to, which
// 0 does not. gVisor has no such file, and its kernel no cores.
func noCore(_ *world, r *driver.Result) string {
	if f := strings.Fields(r.Stdout); r.ExitCode == 0 && (len(f) < 2 || f[0] != "1" || f[1] != "1") {
		return "the host's handler gets a core"
	}
	return ""
}

// absent says what is not on the host afterwards.
func absent(path string) func(*world, *driver.Result) string {
	return func(w *world, _ *driver.Result) string {
		if _, err := os.Lstat(path); err == nil {
			return path + " is on the host"
		}
		return ""
	}
}

// gone says that no process has a word in its command line.
func gone(word string) func(*world, *driver.Result) string {
	return func(*world, *driver.Result) string {
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && slices.Contains(strings.Split(string(b), "\x00"), word) {
				return "a process is left: " + strings.ReplaceAll(string(b), "\x00", " ")
			}
		}
		return ""
	}
}

// word is an argument of sleep(1) that no other process has.
func word(n int) string { return fmt.Sprintf("40.%d%04d", os.Getpid(), n) }

// awaitFile waits for a file that the command makes.
func awaitFile(path string) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
	}
}

var odd = []string{"", " ", "a b", "'", `"`, `\`, "$HOME", "*", "-x", "--", "\n", "\t", "ü", "\xff\xfe", "a=b", "#", ";", "`x`"}

func cases() []scenario {
	binary := make([]byte, 70000)
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	sum := fmt.Sprintf("%x  -\n", sha256.Sum256(binary))
	list := []scenario{
		// How a command ends.
		{name: "exit 0", script: "exit 0"},
		{name: "exit 1", script: "exit 1", want: expect{code: 1}},
		{name: "exit 125", about: "process", script: "exit 125", want: expect{code: 125}},
		{name: "exit 126", script: "exit 126", want: expect{code: 126}},
		{name: "exit 127", script: "exit 127", want: expect{code: 127}},
		{name: "exit 255", script: "exit 255", want: expect{code: 255}},
		{name: "exit 137", about: "result.signal", script: "exit 137", want: expect{code: 137}},
		{name: "SIGKILL", about: "result.signal", script: "kill -KILL $$", want: expect{code: 137, reason: driver.ReasonSignal, signal: "SIGKILL"}},
		{name: "SIGTERM", about: "process result.signal", script: "kill -TERM $$", want: expect{code: 143, reason: driver.ReasonSignal, signal: "SIGTERM"}},
		{name: "SIGSEGV", about: "result.signal", script: "kill -SEGV $$", want: expect{code: 139, reason: driver.ReasonSignal, signal: "SIGSEGV"}},
		{name: "code of a signal", about: "process", script: "kill -ABRT $$", want: expect{code: 134, reason: "*"}},
		{name: "signal to the own group", about: "process", script: "trap '' TERM; kill -TERM 0; echo done; exit 3", want: expect{code: 3, stdout: "done\n"}},
		{name: "no core", about: "layer.rlimits", script: "sed -n 's/^Max core file size *//p' /proc/self/limits 2>/dev/null", want: expect{stdout: "*", code: -1, check: noCore}},
		{name: "not found", args: []string{"nonesuch-command"}, want: expect{code: 127, reason: driver.ReasonSetup}},
		{name: "not found by path", args: []string{"./nonesuch"}, want: expect{code: 127, reason: driver.ReasonSetup}},
		{name: "not found in private storage", args: []string{"/tmp/nonesuch"}, want: expect{code: 127, reason: driver.ReasonSetup}},
		{name: "not found in directories that are not shown", args: []string{"nonesuch-command"}, change: func(_ *world, p *policy.Policy) {
			env := slices.DeleteFunc(p.OCI.Process.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") })
			p.OCI.Process.Env = append(env, "PATH=/tmp/bin:/srv/bin:/home/sandbox/.local/bin:/nonesuch:/usr/bin")
		}, want: expect{code: 127, reason: driver.ReasonSetup}},
		// In a container it is the engine's first process that says so.
		{name: "interpreter not found", args: []string{"./script"}, setup: func(w *world) error {
			return os.WriteFile(w.ws+"/script", []byte("#!/nonesuch/sh\n"), 0o755)
		}, want: expect{code: 127, reason: "*"}},
		{name: "not executable", args: []string{"./plain"}, setup: func(w *world) error { return os.WriteFile(w.ws+"/plain", []byte("x\n"), 0o644) }, want: expect{code: 126, reason: driver.ReasonSetup}},
		// In a container it is the engine's first process that executes, and takes it for a script.
		{name: "neither a program nor a script", about: "process", args: []string{"./text"}, setup: func(w *world) error { return os.WriteFile(w.ws+"/text", []byte("x\n"), 0o755) }, want: expect{code: 126, reason: driver.ReasonSetup}},
		{name: "an empty file", about: "process", args: []string{"./text"}, setup: func(w *world) error { return os.WriteFile(w.ws+"/text", nil, 0o755) }, want: expect{code: 126, reason: driver.ReasonSetup}},
		{name: "a directory", args: []string{"/usr"}, want: expect{code: 126, reason: driver.ReasonSetup}},

		// What it is given.
		{name: "arguments", about: "process", args: append([]string{"/usr/bin/printf", "<%s>"}, odd...), want: expect{stdout: "<" + strings.Join(odd, "><") + ">"}},
		{name: "long argument", args: []string{"/bin/sh", "-c", "echo ${#1}", "sh", strings.Repeat("x", 100000)}, want: expect{stdout: "100000\n"}},
		{name: "environment", about: "process", args: []string{"/usr/bin/env"}, request: func(w *world, r *profiles.Request) {
			r.Env = []string{"ODD=a b=c'\"$x\\", "EMPTY=", "UML=ü"}
		}, want: expect{stdout: "*", check: func(_ *world, r *driver.Result) string {
			have := strings.Split(r.Stdout, "\n")
			for _, e := range []string{"ODD=a b=c'\"$x\\", "EMPTY=", "UML=ü", "LANG=C.UTF-8", "SBXRUN_SANDBOX=strict"} {
				if !slices.Contains(have, e) {
					return "no " + e
				}
			}
			if strings.Contains(r.Stdout, "leak") {
				return "a variable of the caller leaked"
			}
			return ""
		}}},
		{name: "environment, a newline", args: []string{"/bin/sh", "-c", `printf %s "$NL"`}, request: func(w *world, r *profiles.Request) { r.Env = []string{"NL=a\nb\n"} }, want: expect{stdout: "a\nb\n"}},
		{name: "working directory", about: "process files.write", script: "pwd -P; cat file", want: expect{stdout: "*", check: func(w *world, r *driver.Result) string {
			if r.Stdout != w.ws+"\nin the workspace\n" {
				return "want " + w.ws
			}
			return ""
		}}},
		{name: "workspace by a symbolic link", about: "files.write", setup: func(w *world) error { return os.Symlink("ws", w.dir+"/link") },
			request: func(w *world, r *profiles.Request) { r.Dir = w.dir + "/link" }, script: "cat file && echo new > made", want: expect{stdout: "in the workspace\n", check: on("ws/made", "new\n")}},
		{name: "stdin", stdin: binary, args: []string{"/usr/bin/sha256sum"}, want: expect{stdout: sum}},
		{name: "no stdin", script: "cat; echo end", want: expect{stdout: "end\n"}},
		{name: "both streams", script: "echo out; echo err >&2", want: expect{stdout: "out\n", stderr: "err\n"}},
		{name: "binary output", stdin: binary, args: []string{"/bin/cat"}, want: expect{stdout: string(binary)}},
		{name: "much output", script: "head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2", request: func(_ *world, r *profiles.Request) { r.MaxOutput = ptr(int64(4 << 20)) }, want: expect{stdout: strings.Repeat("x", 3000000), stderr: "end\n"}},
		{name: "output limit", about: "limits.output", script: "head -c 3000000 /dev/zero | tr '\\0' x", request: func(_ *world, r *profiles.Request) { r.MaxOutput = ptr(int64(1000)) },
			want: expect{stdout: strings.Repeat("x", 1000), check: func(_ *world, r *driver.Result) string {
				if !r.StdoutTruncated || r.StderrTruncated {
					return "not marked as cut"
				}
				return ""
			}}},
		{name: "descriptors", script: "cd /proc/self/fd && echo *", want: expect{stdout: "0 1 2 3\n"}},
		{name: "terminal", about: "terminal", request: func(_ *world, r *profiles.Request) { r.Terminal = true },
			change: func(_ *world, p *policy.Policy) { p.OCI.Process.ConsoleSize = &specs.Box{Width: 91, Height: 17} },
			script: "test -t 0 && test -t 1 && test -t 2 && stty size && : < /dev/tty", want: expect{stdout: "17 91\n"}},

		// Files of the host.
		{name: "read-only path, read", about: "files.read", request: func(w *world, r *profiles.Request) { r.ReadOnly = []string{w.outside} }, script: "cat ../outside/canary", want: expect{stdout: "canary\n"}},
		{name: "read-only path, written", about: "files.read", request: func(w *world, r *profiles.Request) { r.ReadOnly = []string{w.outside} },
			script: "echo x > ../outside/canary; echo $?; touch ../outside/new; echo $?; rm -f ../outside/canary; echo $?", want: expect{stdout: "2\n1\n1\n", check: func(w *world, _ *driver.Result) string { return absent(w.outside+"/new")(w, nil) }}},
		{name: "a file that is not shown", about: "files.read", script: "cat ../outside/canary", want: expect{code: 1}},
		{name: "a read-only file", about: "files.read", request: func(w *world, r *profiles.Request) { r.ReadOnly = []string{w.outside + "/canary"} }, script: "cat ../outside/canary; echo ../outside/*; echo x >> ../outside/canary", want: expect{code: 2, stdout: "*", check: func(_ *world, r *driver.Result) string {
			if !strings.HasPrefix(r.Stdout, "canary\n") {
				return "not read"
			}
			return ""
		}}},
		{name: "writable path", about: "files.write", setup: func(w *world) error { return os.Mkdir(w.dir+"/rw", 0o755) }, request: func(w *world, r *profiles.Request) { r.ReadWrite = []string{w.dir + "/rw"} },
			script: "mkdir ../rw/d && echo x > ../rw/d/f && mv ../rw/d/f ../rw/g && rmdir ../rw/d", want: expect{check: on("rw/g", "x\n")}},
		{name: "workspace, written", about: "files.write", script: "echo x > new && chmod 600 new && mv new newer && ln newer hard && ln -s newer soft && cat soft hard", want: expect{stdout: "x\nx\n", check: func(w *world, r *driver.Result) string {
			var st syscall.Stat_t
			if err := syscall.Lstat(w.ws+"/newer", &st); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o777 != 0o600 {
				return fmt.Sprintf("owner %d, mode %o, %v", st.Uid, st.Mode, err)
			}
			return on("ws/hard", "x\n")(w, r)
		}}},
		{name: "workspace, read-only", about: "files.read", request: func(_ *world, r *profiles.Request) { r.Workspace = "ro" }, script: "cat file; echo x > file", want: expect{code: 2, stdout: "in the workspace\n", check: on("ws/file", "in the workspace\n")}},
		{name: "workspace, copy-on-write", about: "files.overlay", setup: func(w *world) error { return w.write("ws/gone/f", "kept\n") }, request: func(_ *world, r *profiles.Request) { r.Workspace = "overlay" },
			script: "echo x > file; rm -r gone; echo new > gone; cat file gone", want: expect{stdout: "x\nnew\n", check: func(w *world, r *driver.Result) string {
				if m := on("ws/file", "in the workspace\n")(w, r); m != "" {
					return m
				}
				return on("ws/gone/f", "kept\n")(w, r)
			}}},
		{name: "a program in the workspace", about: "files.write", setup: func(w *world) error { return w.write("ws/prog", "#!/bin/sh\necho ran $1\n") }, args: []string{"./prog", "it"}, want: expect{stdout: "ran it\n"}},
		{name: "names", about: "files.read files.write", setup: func(w *world) error {
			return w.write("odd,name:with 'all' \"of\" \\it ü/f", "odd\n")
		}, request: func(w *world, r *profiles.Request) {
			r.ReadOnly = []string{w.dir + "/odd,name:with 'all' \"of\" \\it ü"}
		}, script: `cat "../odd,name:with 'all' \"of\" \\it ü/f"`, want: expect{stdout: "odd\n"}},
		{name: "hidden file", about: "files.hide", setup: func(w *world) error { return w.write("ws/.env", "secret\n") }, request: func(w *world, r *profiles.Request) { r.Hide = []string{w.ws + "/.env"} },
			script: "cat .env; cat file", want: expect{stdout: "in the workspace\n", check: on("ws/.env", "secret\n")}},
		{name: "hidden directory", about: "files.hide", setup: func(w *world) error { return w.write("ws/s/key", "secret\n") }, request: func(w *world, r *profiles.Request) { r.Hide = []string{w.ws + "/s"} },
			script: "cat s/key || cat s/* || cat file", want: expect{stdout: "in the workspace\n", check: on("ws/s/key", "secret\n")}},
		{name: "read-only below writable", about: "files.nested", setup: func(w *world) error { return w.write("ws/ro/f", "kept\n") }, request: func(w *world, r *profiles.Request) { r.ReadOnly = []string{w.ws + "/ro"} },
			script: "cat ro/f; echo x > new; echo x > ro/f; echo x > ro/g", want: expect{code: 2, stdout: "kept\n", check: on("ws/ro/f", "kept\n")}},
		{name: "no execution", about: "files.noexec", setup: func(w *world) error { return w.write("noexec/prog", "#!/bin/sh\necho ran\n") },
			change: func(w *world, p *policy.Policy) {
				p.Files = append(p.Files, policy.FileRule{Path: w.dir + "/noexec", Access: policy.Read})
			}, script: "cat ../noexec/prog >/dev/null && ../noexec/prog", want: expect{code: 126}},
		{name: "another place", about: "mounts.bind", request: func(w *world, r *profiles.Request) {
			r.Binds = []profiles.Bind{{Source: w.outside, Destination: "/data", ReadOnly: true}}
		}, script: "cat /data/canary; echo x > /data/canary", want: expect{code: 2, stdout: "canary\n"}},
		{name: "a link out of the workspace", about: "files.read", setup: func(w *world) error { return os.Symlink(w.outside+"/canary", w.ws+"/out") }, script: "cat out; echo x > out", want: expect{code: 2}},
		{name: "a hard link from outside", about: "files.read", script: "ln ../outside/canary here", want: expect{code: 1}},
		{name: "modes of what is not writable", about: "files.read user", request: func(w *world, r *profiles.Request) { r.ReadOnly = []string{w.outside} },
			script: "chmod 777 ../outside/canary || touch -d 2001-01-01 ../outside/canary", want: expect{code: 1}},
		{name: "the system, written", about: "files.read", script: "echo x > /usr/bin/sbxrun-test || echo x > /etc/sbxrun-test", want: expect{code: 2, check: absent("/usr/bin/sbxrun-test")}},
		{name: "shadow", script: "cat /etc/shadow || cat /etc/shadow-", about: "files.read", want: expect{code: 1}},
		{name: "secrets of the home", script: "cat ../home/.ssh/id_rsa", about: "files.read", want: expect{code: 1}},
		{name: "a required path that is absent", about: "files.read", change: func(w *world, p *policy.Policy) {
			p.Files = append(p.Files, policy.FileRule{Path: w.dir + "/nothing", Access: policy.ReadExec})
		}, script: "true", want: expect{code: 125, reason: driver.ReasonSetup}},

		// Private storage, and what is made for the sandbox.
		{name: "private /tmp", about: "mounts.private layer.mount", script: "for f in /tmp/*; do case $f in */sbxrun-conformance-*|*\\*) ;; *) echo $f;; esac; done; echo x > /tmp/" + word(1) + " && cat /tmp/" + word(1), want: expect{stdout: "x\n", check: absent("/tmp/" + word(1))}},
		{name: "temporary files", about: "mounts.private", script: "f=$(mktemp) && echo x > $f && cat $f && rm $f", want: expect{stdout: "x\n"}},
		{name: "private home", about: "mounts.private layer.mount", script: "echo ${HOME##*/}; echo x > ~/f && cat ~/f; cd; echo *", want: expect{stdout: "home\nx\nf\n"}},
		{name: "a home to write to", about: "mounts.private", script: "cd && echo x > f && cat f", want: expect{stdout: "x\n"}},
		{name: "a directory with a size", about: "mounts.sized", request: func(_ *world, r *profiles.Request) { r.Tmpfs = []profiles.Tmpfs{{Path: "/small", Size: 1 << 20}} },
			script: "head -c 500000 /dev/zero > /small/a && head -c 2000000 /dev/zero > /small/b", want: expect{code: 1}},
		{name: "the bound of private storage", about: "scratch layer.mount", request: func(_ *world, r *profiles.Request) { r.Disk = ptr(uint64(1 << 20)) },
			script: "head -c 500000 /dev/zero > /tmp/a && head -c 2000000 /dev/zero > /tmp/b", want: expect{code: 1}},
		{name: "one bound for all of it", about: "scratch layer.mount", request: func(_ *world, r *profiles.Request) { r.Disk = ptr(uint64(1 << 20)) },
			script: "head -c 700000 /dev/zero > /tmp/a && head -c 700000 /dev/zero > ~/b", want: expect{code: 1}},
		{name: "files of its own", about: "synthetic", script: `sed "s,:$HOME:,:~:," /etc/passwd`, want: expect{stdout: "root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::~:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n"}},
		{name: "files of its own, written", about: "synthetic", script: "echo x >> /etc/passwd", want: expect{code: 2}},

		// Who it is.
		{name: "user id", about: "user", script: "id -u; id -g", want: expect{stdout: "1000\n1000\n"}},
		{name: "no capabilities", about: "layer.user", script: "grep ^Cap /proc/self/status | cut -d: -f2 | tr -d '0 \\t\\n'; echo end", want: expect{stdout: "end\n"}},
		{name: "no capability in effect", about: "layer.no_new_privs", script: "grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status | cut -d: -f2 | tr -d '0 \\t\\n'; echo end", want: expect{stdout: "end\n"}},
		{name: "no new privileges", about: "layer.no_new_privs", args: []string{"/usr/bin/python3", "-c", "import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))"}, want: expect{stdout: "1\n"}},
		{name: "a filter", about: "layer.seccomp", script: "grep Seccomp: /proc/self/status | tr -d '\\t'", want: expect{stdout: "Seccomp:2\n"}},
		{name: "calls that are denied", about: "layer.seccomp", args: []string{"/usr/bin/python3", "-c", `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, nr, *args):
    ctypes.set_errno(0)
    r = libc.syscall(nr, *args)
    print(name, "ok" if r >= 0 else ctypes.get_errno())
if os.uname().machine == "x86_64":
    call("unshare", 272, 0x10000000)
    call("mount", 165, 0, 0, 0, 0, 0)
    call("bpf", 321, 0, 0, 0)
    call("getppid", 110)
else:
    call("unshare", 97, 0x10000000)
    call("mount", 40, 0, 0, 0, 0, 0)
    call("bpf", 280, 0, 0, 0)
    call("getppid", 173)
`}, want: expect{stdout: "unshare 1\nmount 1\nbpf 1\ngetppid ok\n"}},
		{name: "device nodes", script: "mknod dev c 1 3", about: "layer.user", want: expect{code: 1}},

		// What it sees of the machine.
		{name: "processes", about: "layer.pid", script: "test -d /proc/" + strconv.Itoa(os.Getpid()) + "/task || echo hidden", want: expect{stdout: "*", check: func(_ *world, r *driver.Result) string {
			// In a pid namespace that number may be one of the sandbox's own.
			if r.Stdout != "hidden\n" && os.Getpid() > 300 {
				return "the test's own process is seen"
			}
			return ""
		}}},
		{name: "signalling the host", about: "layer.pid", script: "kill -0 " + strconv.Itoa(os.Getpid()), want: expect{code: 1}},
		{name: "host name", about: "hostname layer.uts", script: "uname -n", want: expect{stdout: "sandbox\n"}},
		{name: "devices", about: "mounts.system layer.mount", script: "echo x > /dev/null; head -c 4 /dev/zero | od -An -tx1; (cd /dev; echo *) | tr ' ' '\\n' | grep -E '^(sd|vd|nvme|kvm|mem)' ", want: expect{code: 1, stdout: " 00 00 00 00\n"}},
		{name: "usable devices", script: "echo x > /dev/null && head -c 4 /dev/zero | od -An -tx1 && head -c 8 /dev/urandom | wc -c", want: expect{stdout: " 00 00 00 00\n8\n"}},
		{name: "kernel settings", about: "masked", script: "echo 1 > /proc/sys/kernel/domainname", want: expect{code: 2}},
		{name: "kernel memory", about: "masked", script: "head -c 1 /proc/kcore | wc -c", want: expect{stdout: "0\n"}},

		// Network.
		{name: "no network: a server of the host", about: "egress.none", setup: listen, args: []string{"/usr/bin/python3", "-c", connect}, want: expect{stdout: "refused\n", check: untouched}},
		{name: "no network: an abstract socket", about: "egress.none", setup: listenAbstract, args: []string{"/usr/bin/python3", "-c", connectAbstract}, want: expect{stdout: "refused\n", check: untouched}},
		{name: "no network: only loopback", about: "egress.none layer.net", script: "sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' '", want: expect{stdout: "lo\n"}},
		{name: "servers inside", about: "egress.loopback", args: []string{"/usr/bin/python3", "-c", `
import socket
s = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(s.getsockname())
a, _ = s.accept()
c.sendall(b"inside")
print(a.recv(6).decode())
`}, want: expect{stdout: "inside\n"}},
		{name: "the host's network", about: "egress.host", setup: listen, request: func(_ *world, r *profiles.Request) { r.Net = ptr(policy.EgressHost) }, args: []string{"/usr/bin/python3", "-c", connect}, want: expect{stdout: "connected\n", check: func(*world, *driver.Result) string {
			<-arrived
			return ""
		}}},

		// Limits.
		{name: "memory", about: "layer.cgroup.memory result.limits", request: func(_ *world, r *profiles.Request) { r.Memory = ptr(uint64(96 << 20)) },
			args: []string{"/usr/bin/python3", "-c", "x = b'x' * (300 << 20); print(len(x))"}, want: expect{code: 137, reason: driver.ReasonOOM}},
		{name: "memory, within", about: "layer.cgroup.memory", request: func(_ *world, r *profiles.Request) { r.Memory = ptr(uint64(256 << 20)) },
			args: []string{"/usr/bin/python3", "-c", "x = b'x' * (50 << 20); print(len(x))"}, want: expect{stdout: "52428800\n"}},
		{name: "processes are limited", about: "layer.cgroup.pids", request: func(_ *world, r *profiles.Request) { r.Pids = ptr(int64(20)) },
			args: []string{"/usr/bin/python3", "-c", forks}, want: expect{stdout: "limited\n"}},
		{name: "the limit is told", about: "layer.cgroup.pids result.limits", request: func(_ *world, r *profiles.Request) { r.Pids = ptr(int64(20)) },
			args: []string{"/usr/bin/python3", "-c", forks + "\nos._exit(3)"}, want: expect{code: 3, reason: driver.ReasonPids, stdout: "*"}},
		{name: "processes, within", about: "layer.cgroup.pids", request: func(_ *world, r *profiles.Request) { r.Pids = ptr(int64(40)) },
			script: "for i in 1 2 3 4 5 6 7 8; do sleep 0.2 & done; wait; echo all", want: expect{stdout: "all\n"}},
		{name: "cpu", about: "layer.cgroup.cpu result.limits", request: func(_ *world, r *profiles.Request) { r.CPUs = ptr(0.05) },
			args: []string{"/usr/bin/python3", "-c", "import time\nwhile time.process_time() < 0.1: pass"}, want: expect{check: func(_ *world, r *driver.Result) string {
				if r.Usage.ThrottledMS == 0 {
					return "not held back"
				}
				return ""
			}}},
		{name: "file size", about: "layer.rlimits", request: func(_ *world, r *profiles.Request) { r.FileSize = ptr(uint64(100000)) },
			script: "trap '' XFSZ; head -c 50000 /dev/zero > a && head -c 200000 /dev/zero > b", want: expect{code: 1, check: func(w *world, _ *driver.Result) string {
				if fi, err := os.Stat(w.ws + "/b"); err != nil || fi.Size() > 100000 {
					return "too much was written"
				}
				return ""
			}}},
		{name: "open files", about: "layer.rlimits", request: func(_ *world, r *profiles.Request) { r.OpenFiles = ptr(uint64(77)) }, script: "ulimit -n; ulimit -Hn", want: expect{stdout: "77\n77\n"}},
		{name: "core files", about: "process layer.rlimits", script: "kill -QUIT $$", want: expect{code: 131, reason: "*", check: func(w *world, _ *driver.Result) string {
			if m, _ := filepath.Glob(w.ws + "/core*"); len(m) != 0 {
				return "there is a core file"
			}
			return ""
		}}},

		// Time, and what is left.
		{name: "time limit", about: "limits.time", request: func(_ *world, r *profiles.Request) { r.Timeout = ptr(time.Second) }, script: "echo begun; sleep " + word(10) + "; echo not reached", want: expect{code: 124, reason: driver.ReasonTimeout, stdout: "begun\n", check: gone(word(10))}},
		{name: "time limit, deaf", about: "limits.time", request: func(_ *world, r *profiles.Request) {
			r.Timeout, r.KillAfter = ptr(500*time.Millisecond), ptr(200*time.Millisecond)
		}, script: "trap '' TERM; while :; do sleep " + word(11) + "; done", want: expect{code: 124, reason: driver.ReasonTimeout, check: gone(word(11))}},
		{name: "time limit, orderly", about: "limits.time", request: func(_ *world, r *profiles.Request) {
			r.Timeout, r.KillAfter = ptr(2*time.Second), ptr(10*time.Second)
		}, script: "trap 'echo cleaned up > done; exit 0' TERM; echo begun; while :; do sleep 0.05; done", want: expect{code: 124, reason: driver.ReasonTimeout, stdout: "begun\n", check: on("ws/done", "cleaned up\n")}},
		{name: "time limit, at once", about: "limits.time", request: func(_ *world, r *profiles.Request) {
			r.Timeout, r.KillAfter = ptr(500*time.Millisecond), ptr(time.Duration(0))
		}, script: "trap 'echo cleaned up > done' TERM; while :; do sleep " + word(12) + "; done", want: expect{code: 124, reason: driver.ReasonTimeout, check: gone(word(12))}},
		{name: "left behind: a child", script: "sleep " + word(20) + " & echo end", want: expect{stdout: "end\n", check: gone(word(20))}},
		{name: "left behind: a daemon", script: "(setsid sh -c 'sleep " + word(21) + " & sleep " + word(21) + "' &) ; sleep 0.2; echo end", want: expect{stdout: "end\n", check: gone(word(21))}},
		{name: "left behind: stopped", script: "sleep " + word(22) + " & kill -STOP $!; echo end", want: expect{stdout: "end\n", check: gone(word(22))}},
		{name: "left behind: deaf", script: "(trap '' TERM HUP INT; sleep " + word(23) + ") & sleep 0.1; echo end", want: expect{stdout: "end\n", check: gone(word(23))}},

		// Signals.
		{name: "a signal is passed on", about: "process", script: "trap 'echo got it; exit 9' USR1; touch ready; while :; do sleep 0.05; done", act: func(w *world, p driver.Process, _ func()) {
			awaitFile(w.ws + "/ready")
			p.Signal(syscall.SIGUSR1)
		}, want: expect{code: 9, stdout: "got it\n"}},
		{name: "an interrupt ends it", about: "result.signal", script: "touch ready; exec sleep " + word(30), act: func(w *world, p driver.Process, _ func()) {
			awaitFile(w.ws + "/ready")
			time.Sleep(50 * time.Millisecond)
			p.Signal(syscall.SIGINT)
		}, want: expect{code: 130, reason: driver.ReasonSignal, check: gone(word(30))}},
		{name: "canceled", script: "touch ready; sleep " + word(31) + "; sleep " + word(31), act: func(w *world, _ driver.Process, cancel func()) {
			awaitFile(w.ws + "/ready")
			cancel()
		}, want: expect{code: -1, reason: driver.ReasonCanceled, check: gone(word(31))}},
		{name: "killed", script: "trap '' TERM; touch ready; sleep " + word(32) + "; sleep " + word(32), act: func(w *world, p driver.Process, _ func()) {
			awaitFile(w.ws + "/ready")
			p.Kill()
		}, want: expect{code: 137, reason: "*", check: gone(word(32))}},

		// What the policy needs of the driver is not dropped.
		{name: "network by name", about: "egress.proxy", change: func(_ *world, p *policy.Policy) { p.Egress.Mode = policy.EgressProxy }, script: "true"},
		{name: "a capability", about: "capabilities", change: func(_ *world, p *policy.Policy) {
			p.OCI.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}}
		}, script: "true"},
		{name: "a hook", about: "oci.other", change: func(_ *world, p *policy.Policy) { p.OCI.Hooks = &specs.Hooks{} }, script: "true"},
		{name: "Landlock", about: "layer.landlock", change: func(_ *world, p *policy.Policy) { p.Require |= policy.LayerLandlock }, script: "true", want: expect{check: layer(policy.LayerLandlock)}},
		{name: "an SELinux label", about: "layer.selinux", change: func(_ *world, p *policy.Policy) { p.OCI.Process.SelinuxLabel = "a:b:c:s0" }, script: "true", want: expect{code: 125, reason: driver.ReasonSetup}},
	}
	return list
}

func layer(l policy.Layers) func(*world, *driver.Result) string {
	return func(_ *world, r *driver.Result) string {
		if !r.Layers.Has(l) {
			return "not enforced: " + l.String()
		}
		return ""
	}
}

const forks = `
import os, signal
kids = []
try:
    for i in range(60):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        kids.append(pid)
    print("not limited")
except OSError:
    print("limited", flush=True)
for k in kids:
    os.kill(k, 9)
    os.waitpid(k, 0)
`

const connect = `
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(open("port").read())), 3)
    print("connected")
except OSError:
    print("refused")
`

const connectAbstract = `
import socket
try:
    s = socket.socket(socket.AF_UNIX)
    s.connect("\0" + open("name").read())
    print("connected")
except OSError:
    print("refused")
`

// listeners are the servers of cases that are under way.
var arrived = make(chan string, 16)

func serve(l net.Listener) {
	go func() {
		defer l.Close()
		l.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(30 * time.Second))
		if c, err := l.Accept(); err == nil {
			c.Close()
			arrived <- l.Addr().String()
		}
	}()
}

func listen(w *world) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serve(l)
	return w.write("ws/port", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

func listenAbstract(w *world) error {
	name := filepath.Base(w.dir)
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		return err
	}
	serve(l)
	return w.write("ws/name", name)
}

func untouched(*world, *driver.Result) string {
	select {
	case addr := <-arrived:
		return "a connection arrived at " + addr
	default:
		return ""
	}
}
