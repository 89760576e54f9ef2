//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// An answer is what sbxrun why says.
type answer struct {
	Kind, Of, Answer, Rule, Origin, Reason string

	Grants map[string]string
}

// why asks sbxrun about one thing.
func (f *fixture) why(flags []string, of string) (a answer) {
	f.Helper()
	o := f.run(call{args: append(append(f.who.command(sbxrun, "why", "-C", f.ws, "--json"), flags...), "--", of)})
	if err := json.Unmarshal([]byte(o.stdout), &a); o.code != 0 || err != nil {
		f.Errorf("%v %v", err, o)
	}
	return a
}

// whyProfiles are the policies that are asked about. $D is the fixture's directory, $W the
// workspace.
var whyProfiles = []struct {
	name  string
	flags []string
}{
	{"strict", nil},
	{"aicode", []string{"--profile", "aicode"}},
	{"development", []string{"--profile", "development"}},
	{"grants", []string{"--ro", "$D/outside", "--rw", "$D/outside/b", "--hide", "$D/outside/victim", "--tmpfs", "$D/outside/a", "--bind", "$D/home/notes:/opt/notes", "--ro", "$W/sub", "--unprotect", ".vscode"}},
	{"overlay", []string{"--workspace", "overlay", "--rw", "$D/outside"}},
	{"read-only", []string{"--workspace", "ro"}},
}

// whyPaths are the paths.
var whyPaths = []string{
	// the system
	"/", "/usr", "/usr/bin/env", "/usr/lib/none", "/bin", "/bin/sh", "/lib/none", "/sbin", "/etc", "/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/ld.so.cache", "/etc/debian_version",
	"/etc/shadow", "/etc/ssl", "/etc/localtime", "/etc/mtab", "/var", "/var/run", "/var/tmp", "/var/log", "/var/lib/dpkg/status", "/run", "/run/none", "/tmp", "/tmp/none", "/opt", "/opt/notes", "/boot", "/root", "/none", "/none/none",
	"/usr/../etc/hosts", "/usr/bin/../../etc/debian_version",
	// the kernel's
	"/proc", "/proc/self/status", "/proc/1", "/proc/cpuinfo", "/proc/sys/kernel/hostname", "/sys", "/sys/kernel", "/dev", "/dev/null", "/dev/kmsg", "/dev/mem", "/dev/shm", "/dev/fd", "/dev/none",
	// the home
	"$D/home", "$D/home/notes", "$D/home/.ssh", "$D/home/.ssh/id_ed25519", "$D/home/none", "$D/home/.gitconfig", "$D/home/.bashrc", "$D/home/go/pkg", "$D/home/go/pkg/mod", "$D/home/link", "$D/home/.local/bin", "$D/home/.local/bin/tool", "$D/home/.npmrc",
	// the workspace
	"$W", "$W/README", "$W/none", "$W/none/none", "$W/sub", "$W/sub/file", "$W/.git", "$W/.git/config", "$W/.git/hooks", "$W/.git/hooks/pre-commit", "$W/.git/index", "$W/.git/none", "$W/.vscode", "$W/.vscode/tasks.json", "$W/sub/.vscode", "$W/.env", "$W/sub/.env", "$W/sub/key.pem",
	"$W/sub/../README", "$W/../outside/canary", "$W/sub/../../outside/second", "$W/./README",
	// beside it
	"$D", "$D/outside", "$D/outside/canary", "$D/outside/victim", "$D/outside/a", "$D/outside/a/file", "$D/outside/b", "$D/outside/b/other", "$D/outside/none", "$D/outside/none/none",
	// by links
	"$W/inner", "$W/outer", "$W/system", "$W/todir", "$W/todir/file", "$W/todir/../canary", "$W/dangling", "$W/chain", "$W/loop", "$W/tohome", "$W/tohook", "$W/toproc", "$W/totmp", "$W/todir/../b/other", "$D/outside/in", "$D/outside/in/README", "$D/outside/tovictim",
}

// whyCalls are the system calls, with arguments that do no harm where one is made.
var whyCalls = []string{
	"getpid " + n(unix.SYS_GETPID), "openat2 " + n(unix.SYS_OPENAT2) + " -1 0 0 0", "mount " + n(unix.SYS_MOUNT), "umount2 " + n(unix.SYS_UMOUNT2), "ptrace " + n(unix.SYS_PTRACE) + " 99 0",
	"bpf " + n(unix.SYS_BPF) + " 999", "keyctl " + n(unix.SYS_KEYCTL) + " 999", "add_key " + n(unix.SYS_ADD_KEY), "io_uring_setup " + n(unix.SYS_IO_URING_SETUP), "userfaultfd " + n(unix.SYS_USERFAULTFD) + " 4096",
	"perf_event_open " + n(unix.SYS_PERF_EVENT_OPEN), "landlock_create_ruleset " + n(unix.SYS_LANDLOCK_CREATE_RULESET) + " 0 0 1", "landlock_restrict_self " + n(unix.SYS_LANDLOCK_RESTRICT_SELF) + " 9999 0",
	"clone3 " + n(unix.SYS_CLONE3), "memfd_create " + n(unix.SYS_MEMFD_CREATE), "memfd_secret " + n(unix.SYS_MEMFD_SECRET) + " 99", "setxattrat 463 -1 0 0 0 0 0", "removexattrat 466 -1 0 0 0", "file_setattr 469 -1 0 0 0 0",
	"process_vm_readv " + n(unix.SYS_PROCESS_VM_READV), "pidfd_open " + n(unix.SYS_PIDFD_OPEN) + " 1 99", "pidfd_getfd " + n(unix.SYS_PIDFD_GETFD) + " -1", "kcmp " + n(unix.SYS_KCMP) + " 1 1 99", "fanotify_init " + n(unix.SYS_FANOTIFY_INIT) + " 99999999",
	"epoll_create1 " + n(unix.SYS_EPOLL_CREATE1), "futex " + n(unix.SYS_FUTEX) + " 0 1", "setns " + n(unix.SYS_SETNS) + " -1 0", "unshare " + n(unix.SYS_UNSHARE) + " 1", "chroot " + n(unix.SYS_CHROOT), "quotactl " + n(unix.SYS_QUOTACTL),
	"swapon " + n(unix.SYS_SWAPON), "kexec_load " + n(unix.SYS_KEXEC_LOAD) + " 0 0 0 99", "acct " + n(unix.SYS_ACCT) + " 1", "name_to_handle_at " + n(unix.SYS_NAME_TO_HANDLE_AT) + " -1", "mseal 462 1", "process_madvise " + n(unix.SYS_PROCESS_MADVISE) + " -1",
	"rseq " + n(unix.SYS_RSEQ) + " 1", "mincore " + n(unix.SYS_MINCORE) + " 1", "migrate_pages " + n(unix.SYS_MIGRATE_PAGES) + " 0", "move_pages " + n(unix.SYS_MOVE_PAGES) + " 0", "syslog " + n(unix.SYS_SYSLOG) + " 99", "getrandom " + n(unix.SYS_GETRANDOM),
	"openat " + n(unix.SYS_OPENAT) + " -1 0", "mkdirat " + n(unix.SYS_MKDIRAT) + " -1 0",
}

func n(nr uintptr) string { return fmt.Sprint(nr) }

// TestWhyIsTrue: what sbxrun why says of a path and of a system call is what a run with
// the same flags meets.
func TestWhyIsTrue(t *testing.T) {
	eachWho(t, func(f *fixture) {
		for path, content := range map[string]string{
			"ws/sub/file": "in sub\n", "ws/sub/.env": "TOKEN=secret\n", "ws/.env": "TOKEN=secret 2\n", "ws/sub/key.pem": "-----BEGIN PRIVATE KEY-----\nx\n", "ws/.vscode/tasks.json": "{ }\n",
			"home/go/pkg/mod": "a module\n", "home/.gitconfig": "[user]\n\tname = N\n", "home/.bashrc": "# rc\n", "home/.npmrc": "//r/:_authToken=secret\n",
		} {
			f.write(path, content, 0o644)
		}
		f.write("home/.local/bin/tool", "#!/bin/sh\n", 0o755)
		f.repository(".")
		for link, to := range map[string]string{
			"ws/inner": "sub/file", "ws/outer": f.path("outside/canary"), "ws/system": "/usr/bin/env", "ws/todir": f.path("outside/a"), "ws/dangling": "nowhere", "ws/chain": "outer", "ws/loop": "loop",
			"ws/tohome": f.home, "ws/tohook": ".git/hooks/pre-commit", "ws/toproc": "/proc/self/status", "ws/totmp": "/tmp", "home/link": f.ws, "outside/in": f.ws, "outside/tovictim": "victim",
		} {
			if err := os.Symlink(to, f.path(link)); err != nil {
				f.Fatal(err)
			}
		}
		f.own()
		fill := func(s string) string { return strings.NewReplacer("$D", f.dir, "$W", f.ws).Replace(s) }
		for _, p := range whyProfiles {
			f.Run(p.name, func(t *testing.T) {
				var flags, paths []string
				for _, s := range p.flags {
					flags = append(flags, fill(s))
				}
				for _, s := range whyPaths {
					paths = append(paths, fill(s))
				}
				list := f.path("list")
				text := strings.Join(paths, "\n") + "\n"
				for _, c := range whyCalls {
					text += "call " + c + "\n"
				}
				// Root's look makes files, and who looks must read the list.
				os.Remove(list)
				f.write("list", text, 0o644)
				run := append(f.who.command(sbxrun, "-C", f.ws, "--json"), f.quiet()...)
				run = append(append(run, flags...), "--ro", list, "--max-output", "4m", "--", filepath.Join(f.ws, "attack"), "look", "list="+list)
				res := f.result(f.run(call{args: run}))
				r := f.report(&outcome{stdout: res.Stdout, stderr: res.Stderr})
				told := map[string]bool{}
				for _, d := range res.Denials {
					if d.Operation == "syscall" {
						told[d.Target] = true
					}
				}
				flags = append(f.who.flags(), flags...)
				for _, path := range paths {
					a := f.why(flags, path)
					var there, host string
					var st unix.Stat_t
					if unix.Stat(path, &st) == nil {
						host = fmt.Sprintf("%d:%d", st.Dev, st.Ino)
					}
					there = r.got("stat " + path)
					seen := strings.Contains(there, ":")
					same := seen && there == host
					if seen && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 0 && st.Size < 100 {
						b, _ := os.ReadFile(path)
						same = same || string(b) == r.got("text "+path)
					}
					read, write := r.got("read "+path), r.got("write "+path)
					bad := ""
					visible := strings.HasPrefix(a.Answer, "visible")
					switch {
					case visible && host != "" && !seen && there != "EACCES":
						bad = "it is not there"
					case visible && seen && !same && st.Mode&unix.S_IFMT != unix.S_IFDIR:
						bad = "it is another file"
					case visible && same && read != "ok" && syscall.Access(path, 4) == nil && f.who.uid == 0:
						bad = "it cannot be read"
					case strings.HasPrefix(a.Answer, "visible and writable") && (seen || exists(filepath.Dir(path))) && write != "ok" && write != "EEXIST" && f.mayWrite(path):
						bad = "it cannot be written"
					case visible && write == "ok" && (a.Answer == "visible, read-only" || strings.Contains(a.Answer, "protected")):
						bad = "it can be written"
					case strings.Contains(a.Answer, "changes are") && seen && write != "ok" && f.mayWrite(path):
						bad = "it cannot be changed"
					case a.Answer == "not visible" && seen && same:
						bad = "it is there"
					case a.Answer == "the sandbox has its own" && !seen && there != "EACCES":
						bad = "the sandbox has none"
					case a.Answer == "the sandbox has its own" && same && st.Mode&unix.S_IFMT != unix.S_IFCHR && !strings.HasPrefix(path, "/proc"):
						bad = "it is the host's"
					case a.Answer == "":
						bad = "no answer"
					}
					if bad != "" {
						t.Errorf("%s: %s: %+v\ninside: stat %s, read %s, write %s; on the host %s", path, bad, a, there, read, write, host)
					}
				}
				for _, c := range whyCalls {
					name, _, _ := strings.Cut(c, " ")
					a, got := f.why(flags, name), r.got("call "+c)
					refused := slices.Contains([]string{"EPERM", "ENOSYS", "killed:SIGSYS"}, got) || strings.HasPrefix(name, "landlock") && got == "EOPNOTSUPP"
					if a.Kind != "syscall" || a.Answer == "refused" && !refused || a.Answer == "allowed" && (refused || told[name]) || told[name] && !strings.Contains(a.Answer, "refused") && !strings.Contains(a.Answer, "some") {
						t.Errorf("%s: %s, told %v: %+v", name, got, told[name], a)
					}
				}
			})
		}
	})
}

// mayWrite reports whether the user may write there on the host.
func (f *fixture) mayWrite(path string) bool {
	for st := (unix.Stat_t{}); ; path = filepath.Dir(path) {
		if err := unix.Stat(path, &st); err == nil {
			return f.who.uid == 0 || int(st.Uid) == f.who.uid && st.Mode&0o200 != 0
		}
		if path == "/" {
			return false
		}
	}
}

// TestWhyHostIsTrue: what sbxrun why says of a host is what a run with the same flags
// meets. Names that lead to addresses about which rules say something are left out: why looks up
// nothing.
func TestWhyHostIsTrue(t *testing.T) {
	t.Parallel()
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			f := newFixture(t, w)
			inWorld(f)
			f.need("curl")
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := &http.Server{Handler: http.NotFoundHandler()}
			defer s.Close()
			go s.Serve(l)
			_, port, _ := net.SplitHostPort(l.Addr().String())
			hosts := []string{
				"www.allowed.test:80", "www.allowed.test:443", "www.allowed.test:8443", "www.allowed.test:7777", "WWW.Allowed.Test.:80", "api.allowed.test:443", "six.allowed.test:443", "git.allowed.test:443",
				"allowed.test:80", "evil-allowed.test:80", "www.allowed.test.evil.test:80", "denied.test:80", "evil.test:80", "evil.test:443",
				webServer + ":80", webServer + ":7777", "[::ffff:" + webServer + "]:80", "[" + webServer6 + "]:80", privateIP + ":80", metadata + ":80", "localhost:" + port, "127.0.0.1:" + port, "localhost:1",
			}
			// None has a test of its own: this thread alone is in that network.
			for _, p := range []struct {
				name  string
				flags []string
			}{
				{"strict", nil},
				{"aicode", []string{"--profile", "aicode", "--allow-host", "*.allowed.test:80,443"}},
				{"development", []string{"--profile", "development"}},
				{"grants", []string{"--allow-host", "*.allowed.test", "--deny-host", "git.allowed.test", "--allow-host", "evil.test:80", "--allow-host", webServer + ":7777", "--allow-host", "[" + webServer6 + "]:80", "--allow-host", "localhost:" + port}},
				{"denials", []string{"--allow-host", "*", "--deny-host", "*.test:443", "--deny-host", hostIP, "--allow-host", privateIP + ":80"}},
				{"host", []string{"--net", "host"}},
			} {
				var script strings.Builder
				for i, h := range hosts {
					scheme := "http"
					if strings.HasSuffix(h, "443") {
						scheme = "https"
					}
					fmt.Fprintf(&script, "curl -sg -m 20 -k --noproxy '*' -o /dev/null '%s://%s/' && echo reached %d.\n", scheme, h, i)
				}
				run := append(append(append(f.who.command(sbxrun, "-C", f.ws, "--json"), f.quiet()...), p.flags...), "--", "sh", "-c", script.String())
				res := f.result(f.run(call{args: run}))
				for i, h := range hosts {
					a, reached := f.why(append(f.who.flags(), p.flags...), h), strings.Contains(res.Stdout, fmt.Sprintf("reached %d.\n", i))
					there := h != "localhost:1" && h != "allowed.test:80" // nobody has these
					if a.Kind != "host" || reached != (a.Answer == "reachable" && there) {
						t.Errorf("%s: %s: reached %v: %+v", p.name, h, reached, a)
					}
				}
			}
		})
	}
}
