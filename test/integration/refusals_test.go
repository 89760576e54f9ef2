//go:build linux

package integration

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A failure is a command that the sandbox refuses something, and what is to be told of
// it. $D is the fixture's directory, $W the workspace.
type failure struct {
	name   string
	flags  []string
	script string
	want   denial // Rule is how it begins; Call may be left out
	// ungranted says that nothing is proposed; otherwise the script succeeds with the
	// grant and fails without.
	ungranted bool
	// plus are the flags of the grant, where that names no value.
	plus []string
}

// refusals are kinds of failure that a user meets. What each is for is in its name.
var refusals = []failure{
	// writes by path
	{name: "a new file beside a read-only grant's", flags: []string{"--ro", "$D/outside"}, script: "touch $D/outside/new",
		want: denial{Operation: "write", Call: "openat", Target: "$D/outside/new", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside"}},
	{name: "a change of a file", flags: []string{"--ro", "$D/outside"}, script: "echo x >>$D/outside/canary",
		want: denial{Operation: "write", Target: "$D/outside/canary", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside/canary"}},
	{name: "a directory", flags: []string{"--ro", "$D/outside"}, script: "mkdir $D/outside/a/dir",
		want: denial{Operation: "write", Target: "$D/outside/a/dir", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside/a"}},
	{name: "a symbolic link", flags: []string{"--ro", "$D/outside"}, script: "ln -s x $D/outside/link",
		want: denial{Operation: "write", Target: "$D/outside/link", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside"}},
	{name: "a removal", flags: []string{"--ro", "$D/outside"}, script: "rm $D/outside/victim",
		want: denial{Operation: "write", Target: "$D/outside/victim", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside"}},
	{name: "a rename", flags: []string{"--ro", "$D/outside"}, script: "mv $D/outside/second $D/outside/third",
		want: denial{Operation: "write", Call: "rename", Target: "$D/outside/third", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside"}},
	{name: "a mode", flags: []string{"--ro", "$D/outside"}, script: "chmod 600 $D/outside/a/file",
		want: denial{Operation: "write", Target: "$D/outside/a/file", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside/a/file"}},
	{name: "a read-only directory of the workspace", flags: []string{"--ro", "vendor"}, script: "touch vendor/x",
		want: denial{Operation: "write", Target: "$W/vendor/x", Rule: "read-only: $W/vendor", Origin: "flag --ro", Grant: "--rw $W/vendor"}},
	{name: "a rule of a profile's file", flags: []string{"--profile", "$D/p.yaml"}, script: "touch $D/outside/profiled",
		want: denial{Operation: "write", Target: "$D/outside/profiled", Rule: "read-only: $D/outside", Origin: "$D/p.yaml:4", Grant: "--rw $D/outside"}},
	{name: "a system directory", script: "touch /usr/lib/sbxrun-x", ungranted: true,
		want: denial{Operation: "write", Target: "/usr/lib/sbxrun-x", Rule: "read-only: /usr", Origin: "preset strict"}},
	{name: "a directory directly in a system directory", script: "mkdir /usr/sbxrun-x", ungranted: true,
		want: denial{Operation: "write", Target: "/usr/sbxrun-x", Rule: "read-only: /usr", Origin: "preset strict"}},
	{name: "a file of sbxrun's own making", script: "echo x >>/etc/passwd", ungranted: true,
		want: denial{Operation: "write", Target: "/etc/passwd", Rule: "made by sbxrun: /etc/passwd"}},
	{name: "a setting of the kernel", script: "echo 1 >/proc/self/oom_score_adj", ungranted: true,
		want: denial{Operation: "write", Rule: "sbxrun's own: /proc"}},
	{name: "a protected path", script: "mkdir .vscode",
		want: denial{Operation: "write", Target: "$W/.vscode", Rule: "protected path .vscode", Grant: "--unprotect .vscode"}},

	// system calls
	{name: "a user namespace", script: "unshare -U true", ungranted: true,
		want: denial{Operation: "syscall", Call: "unshare", Target: "unshare", Rule: "system call filter strict"}},
	{name: "a mount", script: "mount -t tmpfs x /tmp/d", ungranted: true,
		want: denial{Operation: "syscall", Call: "mount", Target: "mount", Rule: "system call filter strict"}},
	{name: "another root", script: "chroot /usr /bin/true", ungranted: true,
		want: denial{Operation: "syscall", Call: "chroot", Target: "chroot", Rule: "system call filter strict"}},
	{name: "the host's name", script: "hostname other", ungranted: true,
		want: denial{Operation: "syscall", Call: "sethostname", Target: "sethostname", Rule: "system call filter strict"}},
	{name: "the kernel's log", script: "dmesg -S", ungranted: true,
		want: denial{Operation: "syscall", Call: "syslog", Target: "syslog", Rule: "system call filter strict"}},
	{name: "a debugger", script: "python3 -c 'import ctypes, os; os._exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)'",
		want: denial{Operation: "syscall", Call: "ptrace", Target: "ptrace", Rule: "system call filter strict", Grant: "--seccomp default"}},
	{name: "another process's memory", script: "python3 -c 'import ctypes, os; c = ctypes.CDLL(None, use_errno=True); os._exit(c.process_vm_readv(os.getpid(), None, 0, None, 0, 0) != 0)'",
		want: denial{Operation: "syscall", Call: "process_vm_readv", Target: "process_vm_readv", Rule: "system call filter strict", Grant: "--seccomp default"}},
	{name: "a socket of another family", script: "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'", ungranted: true,
		want: denial{Operation: "syscall", Call: "socket", Target: "socket of family 17", Rule: "system call filter strict"}},

	// limits and the network, of which the native driver always told
	{name: "the limit of time", flags: []string{"--timeout", "300ms"}, script: "sleep 1", plus: []string{"--timeout", "20s"},
		want: denial{Operation: "limit", Target: "time", Rule: "limit of the policy", Grant: "--timeout DURATION"}},
	{name: "a host", flags: []string{"--net", "proxy"}, script: "python3 -c 'import socket; socket.create_connection((\"localhost.test\", 443), 5)'", ungranted: true,
		want: denial{Operation: "resolve", Target: "localhost.test", Rule: "default", Grant: "--allow-host localhost.test"}},
	{name: "any host", script: "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 443), 5)'", ungranted: true,
		want: denial{Operation: "connect", Target: "network", Rule: "no network", Grant: "--allow-host HOST"}},

	// what only --explain sees
	{name: "a read-only workspace", flags: []string{"--explain", "--workspace", "ro"}, script: "touch new",
		want: denial{Operation: "write", Target: "$W/new", Rule: "read-only: $W", Origin: "workspace", Grant: "--rw $W"}},
	{name: "a configuration file in the home", flags: []string{"--explain"}, script: "cat ~/notes",
		want: denial{Operation: "read", Call: "openat", Target: "$D/home/notes", Grant: "--ro $D/home/notes"}},
	{name: "a file that the user hides", flags: []string{"--explain", "--ro", "$D/outside", "--hide", "$D/outside/a"}, script: "cat $D/outside/a/file", ungranted: true,
		want: denial{Operation: "read", Target: "$D/outside/a/file", Rule: "hidden: $D/outside/a", Origin: "flag --hide"}},
	{name: "a hidden file itself", flags: []string{"--explain", "--ro", "$D/outside", "--hide", "$D/outside/canary"}, script: "cat $D/outside/canary", ungranted: true,
		want: denial{Operation: "read", Target: "$D/outside/canary", Rule: "hidden: $D/outside/canary", Origin: "flag --hide"}},
	{name: "a secret", flags: []string{"--explain"}, script: "cat ~/.ssh/id_ed25519", ungranted: true,
		want: denial{Operation: "read", Target: "$D/home/.ssh/id_ed25519", Reason: "a secret, which nothing proposes to show"}},
	{name: "a directory that is listed", flags: []string{"--explain"}, script: "ls $D/outside/b",
		want: denial{Operation: "read", Target: "$D/outside/b", Rule: "private storage: ", Grant: "--ro $D/outside/b"}},
	{name: "a directory to work in", flags: []string{"--explain"}, script: "cd $D/outside",
		want: denial{Operation: "read", Call: "chdir", Target: "$D/outside", Rule: "private storage: ", Grant: "--ro $D/outside"}},
	{name: "a relative path", flags: []string{"--explain"}, script: "cat ../outside/canary",
		want: denial{Operation: "read", Target: "$D/outside/canary", Rule: "private storage: ", Grant: "--ro $D/outside/canary"}},
	{name: "what a link of the workspace leads to", flags: []string{"--explain"}, script: "cat leads",
		want: denial{Operation: "read", Target: "$W/leads", Rule: "private storage: ", Grant: "--ro $D/outside/canary"}},
	{name: "a test for a file", flags: []string{"--explain"}, script: "test -e $D/outside/canary",
		want: denial{Operation: "read", Target: "$D/outside/canary", Rule: "private storage: ", Grant: "--ro $D/outside/canary"}},
	{name: "a program", flags: []string{"--explain"}, script: "$D/outside/tool",
		want: denial{Operation: "exec", Call: "execve", Target: "$D/outside/tool", Rule: "private storage: ", Grant: "--ro $D/outside/tool"}},
	{name: "a script's interpreter", flags: []string{"--explain"}, script: "./interpreted",
		want: denial{Operation: "exec", Target: "$D/outside/tool", Rule: "private storage: ", Grant: "--ro $D/outside/tool"}},
	{name: "a module of an interpreter's library", flags: []string{"--explain"}, script: "PYTHONPATH=$D/outside/b python3 -c 'import planted'",
		want: denial{Operation: "read", Target: "$D/outside/b", Rule: "private storage: ", Grant: "--ro $D/outside/b"}},
	{name: "a file that a library reads at its start", flags: []string{"--explain"}, script: "OPENSSL_CONF=$D/outside/ssl.cnf python3 -c 'import os, sys; open(os.environ[\"OPENSSL_CONF\"])'",
		want: denial{Operation: "read", Target: "$D/outside/ssl.cnf", Rule: "private storage: ", Grant: "--ro $D/outside/ssl.cnf"}},
	{name: "a socket", flags: []string{"--explain"}, script: "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"$D/outside/socket\")'",
		want: denial{Operation: "unix", Call: "connect", Target: "$D/outside/socket", Rule: "private storage: ", Grant: "--allow-unix $D/outside/socket"}},
	{name: "a file opened to be changed", flags: []string{"--explain"}, script: "exec 3<>$D/outside/canary",
		want: denial{Operation: "write", Target: "$D/outside", Rule: "private storage: ", Grant: "--rw $D/outside"}},
	{name: "a file of /etc", flags: []string{"--explain"}, script: "grep -q . /etc/debian_version",
		want: denial{Operation: "read", Target: "/etc/debian_version", Rule: "not shown", Grant: "--ro /etc/debian_version"}},
}

// TestRefusals: a refusal is told with its cause and its grant, once, and with the grant
// the same command succeeds. The neighbours that it does before are not told.
func TestRefusals(t *testing.T) {
	eachWho(t, func(f *fixture) {
		fill := func(s string) string { return strings.NewReplacer("$D", f.dir, "$W", f.ws).Replace(s) }
		for _, r := range refusals {
			f.Run(r.name, func(t *testing.T) {
				os.MkdirAll(filepath.Join(f.ws, "vendor"), 0o755)
				f.write("p.yaml", "extends: strict\nfiles:\n  read:\n    - "+f.path("outside")+"\n", 0o644)
				f.write("outside/tool", "#!/bin/sh\nexit 0\n", 0o755)
				f.write("outside/b/planted.py", "", 0o644)
				f.write("outside/ssl.cnf", "", 0o644)
				f.write("ws/interpreted", "#!"+f.path("outside/tool")+"\n", 0o755)
				os.Symlink(f.path("outside/canary"), filepath.Join(f.ws, "leads"))
				if l, err := net.Listen("unix", f.path("outside/socket")); err == nil {
					defer l.Close()
				}
				f.own()
				explain := slices.Contains(r.flags, "--explain")
				var flags []string
				for _, s := range r.flags {
					flags = append(flags, fill(s))
				}
				// Neighbours: what is there already is neither made nor changed.
				script := "export PYTHONDONTWRITEBYTECODE=1; mkdir -p /usr/bin /tmp/d; test -w /usr; cat README; echo x >/tmp/n; echo x >/dev/null; " + fill(r.script)
				res := f.result(f.run(call{args: f.sandbox(append([]string{"--json"}, flags...), "sh", "-c", script)}))
				if res.ExitCode == 0 {
					t.Fatalf("it was not refused: %+v", res)
				}
				want := r.want
				for _, s := range []*string{&want.Target, &want.Rule, &want.Origin, &want.Grant} {
					*s = fill(*s)
				}
				found := 0
				for _, d := range res.Denials {
					switch {
					case d.Operation == want.Operation && (want.Target == "" || d.Target == want.Target) && strings.HasPrefix(d.Rule, want.Rule) && d.Origin == want.Origin && (want.Call == "" || d.Call == want.Call) && (want.Grant == "" || d.Grant == want.Grant):
						found++
						if d.Grant != want.Grant {
							t.Errorf("grant %q, want %q", d.Grant, want.Grant)
						}
						if d.Operation == "write" && (d.Count == 0 || d.Process.PID < 2 || d.Process.Command == "") {
							t.Errorf("%+v", d)
						}
					case d.Call != "rename" && !explain: // of two names; what all programs look for
						t.Errorf("told as well: %+v", d)
					}
				}
				if found != 1 {
					t.Fatalf("want %+v\nin %+v\nstderr: %s", want, res.Denials, res.Stderr)
				}
				if r.ungranted {
					return
				}
				granted := append(append([]string{"--json"}, flags...), r.plus...)
				if r.plus == nil {
					flag, value, _ := strings.Cut(want.Grant, " ")
					granted = append(granted, flag, value)
				}
				res = f.result(f.run(call{args: f.sandbox(granted, "sh", "-c", script)}))
				again := func(d denial) bool { return !explain || d.Operation == want.Operation && d.Target == want.Target }
				if res.ExitCode != 0 || slices.ContainsFunc(res.Denials, again) {
					t.Errorf("with %s: %d %s %+v", want.Grant, res.ExitCode, res.Stderr, res.Denials)
				}
			})
		}
	})
}

// TestExplainNeighbours: what is there, what nobody has and what the user cannot read on
// the host is not told, and without --explain nothing is.
func TestExplainNeighbours(t *testing.T) {
	eachWho(t, func(f *fixture) {
		closed := f.write("outside/closed", "x", 0o644)
		f.own()
		if err := os.Chmod(closed, 0); err != nil {
			f.Fatal(err)
		}
		script := "cat " + closed + " /nowhere/x README; cat " + f.path("outside/canary") + "; false"
		res := f.result(f.run(call{args: f.sandbox([]string{"--json", "--explain"}, "sh", "-c", script)}))
		found := false
		for _, d := range res.Denials {
			found = found || d.Target == f.path("outside/canary")
			if d.Target == closed && d.Call == "openat" || strings.Contains(d.Target, "nowhere") || strings.Contains(d.Target, "README") {
				f.Errorf("told: %+v", d)
			}
		}
		if !found {
			f.Errorf("not told: %+v", res.Denials)
		}
		if res := f.result(f.run(call{args: f.sandbox([]string{"--json"}, "sh", "-c", script)})); len(res.Denials) != 0 {
			f.Errorf("without --explain: %+v", res.Denials)
		}
		// Calls that change what is there, or ask about it, are told of as those that open.
		calls := map[string]string{"rename": "write", "unlink": "write", "rmdir": "write", "link": "write", "truncate": "write", "chmod": "write", "utime": "write", "listxattr": "read", "statvfs": "read"}
		lines := "import os\ndef t(f, *a):\n    try: f(*a)\n    except OSError: pass\n    else: print(f.__name__)\n"
		for c := range calls {
			f.write("outside/c/"+c, "x", 0o644)
			if c == "rmdir" {
				os.Remove(f.path("outside/c/rmdir"))
				os.Mkdir(f.path("outside/c/rmdir"), 0o755)
			}
			more := map[string]string{"rename": ", '/tmp/new'", "link": ", '/tmp/new'", "truncate": ", 1", "chmod": ", 0o600"}[c]
			lines += "t(os." + c + ", '" + f.path("outside/c/"+c) + "'" + more + ")\n"
		}
		f.own()
		res = f.result(f.run(call{args: f.sandbox([]string{"--json", "--explain"}, "python3", "-c", lines)}))
		for c, op := range calls {
			if !slices.ContainsFunc(res.Denials, func(d denial) bool { return d.Operation == op && d.Target == f.path("outside/c/"+c) }) {
				f.Errorf("%s: not told: %+v", c, res.Denials)
			}
		}
		// On a terminal one line says that there is the flag, if nothing else explains the
		// failure; elsewhere nobody has asked.
		if o := f.run(call{args: f.sandbox(nil, "sh", "-c", "exit 3")}); o.code != 3 || o.stderr != "" {
			f.Errorf("%v", o)
		}
		f.terminal(f.loud(nil, "sh", "-c", "exit 3")...).expect("run it again with --explain")
		x := f.terminal(f.loud(nil, "sh", "-c", "mkdir .vscode")...)
		if text := x.expect("--unprotect .vscode"); strings.Contains(text, "--explain") {
			f.Errorf("%q", text)
		}
	})
}

// TestExplainFollows: what the command looks for is followed on the host as the kernel
// does, and never to what the sandbox shows, to what is sbxrun's own, or to a file system
// that a program or a server answers for: one that does not answer would keep the run
// from ending, and one that does would learn the name.
func TestExplainFollows(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.write("outside/b/there", "", 0o644)
		os.Symlink(f.path("outside/b"), filepath.Join(f.ws, "to"))
		os.Symlink(f.path("outside/far"), filepath.Join(f.ws, "far"))
		for _, d := range []string{"near", "far", "far/more"} {
			os.Mkdir(f.path("outside/"+d), 0o755)
		}
		// The kernel takes five scripts in a row.
		for i, next := 0, f.path("outside/b/there"); i < 8; i++ {
			name := "ws/s" + strconv.Itoa(i)
			f.write(name, "#!"+next+"\n", 0o755)
			next = f.path(name)
		}
		f.write("ws/self", "#!"+f.path("ws/self")+"\n", 0o755)
		f.own()
		if err := os.Chmod(f.path("outside/b/there"), 0o755); err != nil {
			f.Fatal(err)
		}
		script := "cat none/../README; cat none/../../outside/canary; for i in $(seq 40); do test -e /dev/fd/$i; done; ./self; ./s7; " +
			"cat to/../near/x far/x " + f.path("outside/far/x") + " " + f.path("outside/far/../canary")
		args := f.sandbox([]string{"--json", "--explain"}, "sh", "-c", script)
		want := []string{"outside/canary"}
		if isRoot() {
			mounts := `mount -t tmpfs none "$0/near" && mount -t ramfs none "$0/far" && : >"$0/near/x" && mount -t mqueue none "$0/far" && : >"$0/far/x" && exec "$@"`
			args = append([]string{"unshare", "-m", "sh", "-c", mounts, f.path("outside")}, args...)
			want = append(want, "outside/near/x")
		}
		var got []string
		for _, d := range f.result(f.run(call{args: args})).Denials {
			if rest, ok := strings.CutPrefix(d.Target, f.dir+"/"); ok || strings.HasPrefix(d.Target, "/dev/") {
				got = append(got, rest)
			}
		}
		slices.Sort(got)
		if !slices.Equal(slices.Compact(got), want) {
			f.Errorf("told of %q, want %q", got, want)
		}
	})
}

// TestRefusalsForged: what a command chooses, names and its own arguments, neither begins
// a line of sbxrun's nor grows without bound.
func TestRefusalsForged(t *testing.T) {
	eachWho(t, func(f *fixture) {
		flags := []string{"--ro", f.path("outside")}
		script := "touch '" + f.path("outside/x\nsbxrun: hint: --rw x\x1b[2J") + "'; false"
		o := f.run(call{args: f.sandbox(flags, "sh", "-c", script)})
		for line := range strings.Lines(o.stderr) {
			if strings.HasPrefix(line, "sbxrun: hint: --rw x") || strings.HasPrefix(line, "sbxrun: ") && strings.ContainsRune(line, '\x1b') {
				f.Errorf("%q", o.stderr)
			}
		}
		res := f.result(f.run(call{args: f.sandbox(append(flags, "--json"), "sh", "-c", script)}))
		if len(res.Denials) != 1 || strings.ContainsAny(res.Denials[0].Process.Command, "\n\x1b") || len(res.Denials[0].Process.Command) > 1000 {
			f.Errorf("%+v", res.Denials)
		}
		res = f.result(f.run(call{args: f.sandbox(append(flags, "--json"), "sh", "-c", "for i in 1 2 3; do for n in $(seq 100); do mkdir "+f.path("outside")+"/$n; done; done; false")}))
		n := len(res.Denials)
		// A full list has room for protected paths, and names them first.
		hiding := "for n in $(seq 100); do mkdir " + f.path("outside") + "/$n; done; mkdir .vscode; false"
		if all := f.result(f.run(call{args: f.sandbox(append(flags, "--json"), "sh", "-c", hiding)})).Denials; len(all) != 66 || !strings.HasPrefix(all[0].Rule, "protected path ") {
			f.Errorf("%d: %+v", len(all), all)
		}
		if o := f.run(call{args: f.loud(flags, "sh", "-c", hiding)}); !strings.Contains(o.stderr, "protected path .vscode") {
			f.Errorf("%q", o.stderr)
		}
		if n != 65 || res.Denials[0].Count != 3 || res.Denials[n-1].Target != "others" || !strings.HasPrefix(res.Denials[n-1].Reason, "108 more") {
			f.Errorf("%d: %+v", n, res.Denials)
		}
	})
}

// TestSessionExplain: one command of a session is explained, and the next is not.
func TestSessionExplain(t *testing.T) {
	eachWho(t, func(f *fixture) {
		s := newSession(f.T, f.who)
		script := "cat " + s.path("outside/canary") + "; touch /usr/x; unshare -U true; mkdir .vscode; false"
		for _, tt := range []struct {
			flags []string
			want  string
		}{{[]string{"--json", "--explain"}, "write write syscall read"}, {[]string{"--json"}, "write write syscall"}} {
			var got []string
			for _, d := range s.result(s.exec(script, tt.flags...)).Denials {
				if d.Operation != "read" || d.Target == s.path("outside/canary") {
					got = append(got, d.Operation)
				}
			}
			if strings.Join(got, " ") != tt.want {
				s.Errorf("%v: %v", tt.flags, got)
			}
		}
	})
}

// TestTellRefusals: a command reads what it was refused at once, wherever the refusal comes
// from, and cannot change what is said. Each line is printed once its call has failed.
func TestTellRefusals(t *testing.T) {
	const script = `exec 2>/dev/null
said() { sort -n "$SBXRUN_REFUSALS" | tail -n 1; }
[ -z "$(said | tr -d ' ')" ] || echo early
for i in 1 2; do
	echo x >.mcp.json || said
	touch /usr/lib/x || said
	unshare -U true || said
	%scurl -fsS http://refused.example/ || said
done
before=$(sha256sum <"$SBXRUN_REFUSALS")
echo x >"$SBXRUN_REFUSALS"; chmod 666 "$SBXRUN_REFUSALS"; echo x >>"$SBXRUN_REFUSALS"; truncate -s 0 "$SBXRUN_REFUSALS"
python3 -c '
import mmap, os
for f in os.listdir("/proc/2/fd"):
    try: mmap.mmap(os.open("/proc/2/fd/" + f, os.O_RDWR), 4096)[:1] = b"x"
    except (OSError, ValueError): pass
'
[ "$before" = "$(sha256sum <"$SBXRUN_REFUSALS")" ] || echo changed
echo done`
	eachWho(t, func(f *fixture) {
		f.need("python3")
		for _, tt := range []struct {
			flags []string
			net   string
		}{{nil, ": "}, {[]string{"--allow-host", "allowed.example"}, ""}, {[]string{"--allow-host", "allowed.example", "--tty"}, ""}} {
			o := f.run(call{args: f.strict(append(tt.flags, "--tell-refusals"), "sh", "-c", strings.Replace(script, "%s", tt.net, 1))})
			lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(o.stdout, "\r", "")), "\n")
			var want []string
			for range 2 {
				want = append(want, "+ refused: "+f.ws+"/.mcp.json: protected path .mcp.json; only who set the sandbox up can allow it: --unprotect .mcp.json",
					"- refused: /usr/lib/x: read-only: /usr (preset strict)", "- refused: unshare: system call filter strict")
				if tt.net == "" {
					want = append(want, "+ network: no rule allows refused.example:80")
				}
			}
			want = append(want, "done")
			ok := o.code == 0 && len(lines) == len(want)
			for i := 0; ok && i < len(want); i++ {
				line := lines[i]
				if n, rest, numbered := strings.Cut(line, " "); numbered {
					line, ok = rest, n == strconv.Itoa(i+1) && strings.HasSuffix(rest, " "+n)
				}
				ok = ok && strings.HasPrefix(line, want[i])
			}
			if !ok {
				f.Errorf("%q: want\n%s\n%v", tt.flags, strings.Join(want, "\n"), o)
			}
		}
		// Where nothing would tell, nothing runs.
		for _, flags := range [][]string{{"--unprotect", "all"}, {"--workspace", "overlay"}} {
			o := f.run(call{args: f.strict(append(flags, "--tell-refusals"), "touch", f.ws+"/ran")})
			if _, err := os.Lstat(f.ws + "/ran"); o.code != 125 || err == nil || !strings.Contains(o.stderr, "--tell-refusals needs protected paths") {
				f.Errorf("%q: %v, %v", flags, o, err)
			}
		}
	})
}
