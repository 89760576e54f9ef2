package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

func bindTo(target string) func(*profiles.Request) {
	return func(r *profiles.Request) { r.Binds = []profiles.Bind{{Source: "/usr/share", Destination: target}} }
}

// bare is the strict policy without a workspace, which is what is prepared for
// any.
func bare(t *testing.T) *policy.Policy {
	return with(t, t.TempDir(), func(r *profiles.Request) { r.Workspace = "none" })
}

// with is the strict policy with a workspace.
func with(t *testing.T, dir string, change func(*profiles.Request)) *policy.Policy {
	t.Helper()
	req := &profiles.Request{Command: []string{"none"}, Dir: dir, Degrade: policy.LayerCgroup}
	if change != nil {
		change(req)
	}
	r, err := profiles.Resolve(req, &profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	return r.Policy
}

func prepare(t *testing.T, p *policy.Policy) driver.Prepared {
	t.Helper()
	q, err := Driver{}.Prepare(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

func complete(t *testing.T, q driver.Prepared, p *policy.Policy) driver.Sandbox {
	t.Helper()
	b, err := q.Complete(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// TestPreparedIsOpened compares a sandbox that was completed with one that was
// opened: what the command sees, and what process 1 has left.
func TestPreparedIsOpened(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/.git/hooks", 0o755); err != nil {
		t.Fatal(err)
	}
	extra := t.TempDir()
	for name, change := range map[string]func(*profiles.Request){
		"workspace": nil,
		"more":      func(r *profiles.Request) { r.ReadOnly, r.Hide = []string{extra}, []string{dir + "/.git"} },
		"none":      func(r *profiles.Request) { r.Workspace, r.Dir = "none", "/usr" },
		"tmpfs":     func(r *profiles.Request) { r.Tmpfs = []profiles.Tmpfs{{Path: "/var/x", Size: 1 << 20}} },
		"bind":      func(r *profiles.Request) { r.Binds = []profiles.Bind{{Source: extra, Destination: "/mnt/e"}} },
	} {
		t.Run(name, func(t *testing.T) {
			p := with(t, dir, change)
			cold, err := Driver{}.Open(context.Background(), p)
			if err != nil {
				t.Fatal(err)
			}
			defer cold.Close()
			warm := complete(t, prepare(t, bare(t)), p)
			const script = `cat /proc/self/mountinfo; stat -c "%n %A %U %h" /[a-oq-z]* /; stat -c "%A %U" /proc; pwd; umask; hostname; env | sort; ulimit -a; ls /proc; cat /proc/self/limits
				grep -vE '^(V|Rss|Hugetlb|.*ctxt|Pid|Tgid|NS|Ngid|PPid|Mems)' /proc/self/status; find /dev /run /tmp /home /root 2>&1 | sort; id; cat /proc/self/uid_map /proc/net/dev`
			a, _ := sh(t, cold, script)
			b, st := sh(t, warm, script)
			if a, b := normal(a), normal(b); a != b || st.ExitCode != 0 {
				t.Errorf("opened:\n%s\ncompleted:\n%s", less(a, b), less(b, a))
			}
			x, y := of(t, cold), of(t, warm)
			if x != y {
				t.Errorf("process 1, opened:\n%s\ncompleted:\n%s", less(x, y), less(y, x))
			}
			if st.Layers != func() policy.Layers { s, _ := cold.Status(); return s.Layers }() {
				t.Errorf("layers %v", st.Layers)
			}
		})
	}
}

// TestPreparedProgram: the two programs together are the one of a sandbox that is
// opened, step for step but for the order.
func TestPreparedProgram(t *testing.T) {
	dir, extra := t.TempDir(), t.TempDir()
	base := bare(t)
	for name, change := range map[string]func(*profiles.Request){
		"workspace": nil,
		"more":      func(r *profiles.Request) { r.ReadOnly, r.ReadWrite = []string{extra}, []string{t.TempDir()} },
		"hidden":    func(r *profiles.Request) { r.Hide = []string{"/usr/share/doc"} },
	} {
		p := with(t, dir, change)
		s, err := Driver{}.plan(context.Background(), withoutCommand(p), witness{seen: map[string]sight{}})
		if err != nil {
			t.Fatal(err)
		}
		cfg, tree, err := s.beginToStay()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.complete(cfg.Init, tree, nil); err != nil {
			t.Fatal(err)
		}
		q := prepare(t, base).(*prepared)
		b, err := q.Complete(context.Background(), p)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b.Close()
		one, two := steps(cfg.Init.String()), steps(q.init.String()+q.rest.String())
		if !slices.Equal(one, two) {
			t.Errorf("%s: opened:\n%s\ncompleted:\n%s", name, less(strings.Join(one, "\n"), strings.Join(two, "\n")), less(strings.Join(two, "\n"), strings.Join(one, "\n")))
		}
		rules := 0
		for _, l := range steps(q.rest.String()) {
			if strings.HasPrefix(l, "landlock_add_rule") {
				rules++
			}
		}
		if rules >= 10 {
			t.Errorf("%s: %d rules for files were not made in advance", name, rules)
		}
	}
}

// steps are the steps of a program in alphabetical order. That for the cgroup is
// apart from them.
func steps(program string) []string {
	list := slices.DeleteFunc(strings.Split(program, "\n"), func(l string) bool { return l == "" || l == `openat "cgroup"` })
	slices.Sort(list)
	return list
}

// less are the lines of a that b has not.
func less(a, b string) string {
	has := strings.Split(b, "\n")
	return strings.Join(slices.DeleteFunc(strings.Split(a, "\n"), func(l string) bool { return slices.Contains(has, l) }), "\n")
}

var ids = regexp.MustCompile(`^\d+ \d+ \d+:\d+ `)

// normal takes out of the output of a sandbox what is different from one to the
// next: numbers of mounts, processes and times. The order of mounts is that of
// their making.
func normal(s string) string {
	var mounts, rest []string
	for l := range strings.Lines(s) {
		if m := ids.FindString(l); m != "" {
			l = l[len(m):]
			l = regexp.MustCompile(`^/\d+ `).ReplaceAllString(l, "/N ")
			mounts = append(mounts, l)
			continue
		}
		l = regexp.MustCompile(`\w{3} +\d+ \d\d:\d\d`).ReplaceAllString(l, "TIME")
		if regexp.MustCompile(`^\d+$`).MatchString(strings.TrimSpace(l)) {
			continue
		}
		rest = append(rest, l)
	}
	slices.Sort(mounts)
	return strings.Join(append(mounts, rest...), "")
}

// of is what the host sees of a sandbox's process 1: mounts, descriptors, root and
// directory.
func of(t *testing.T, b driver.Sandbox) string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", b.(*sandbox).child.Pid())
	var out []string
	m, err := os.ReadFile(dir + "mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, strings.Split(normal(string(m)), "\n")...)
	for _, n := range []string{"root", "cwd"} {
		l, err := os.Readlink(dir + n)
		if err != nil || l != "/" {
			t.Errorf("%s: %s, %v", n, l, err)
		}
		var own, host unix.Stat_t
		if unix.Stat(dir+n+"/", &own) == nil && unix.Stat("/", &host) == nil && own.Dev == host.Dev {
			t.Errorf("%s is on the host's file system", n)
		}
	}
	fds, err := os.ReadDir(dir + "fd")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, e := range fds {
		l, err := os.Readlink(dir + "fd/" + e.Name())
		if err != nil {
			continue
		}
		// A cgroup is named by the time, the process and at random.
		l = regexp.MustCompile(`/r-[0-9a-f]+-\d+-[0-9a-f]+`).ReplaceAllString(l, "/r-N")
		kinds[regexp.MustCompile(`\d+`).ReplaceAllString(l, "N")]++
	}
	return strings.Join(append(out, fmt.Sprint(kinds)), "\n")
}

// TestPreparedConfines attacks from a completed sandbox what an opened one holds.
func TestPreparedConfines(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "ws")
	for _, d := range []string{dir + "/.git/hooks", dir + "/.vscode", home + "/other"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(home, "other", "secret")
	if err := os.WriteFile(secret, []byte("canary"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/f", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b := complete(t, prepare(t, bare(t)), with(t, dir, nil))
	for _, tt := range []struct{ script, want string }{
		// The neighbours succeed.
		{"echo x > f && cat f", "x\n"},
		{"mkdir d && rmdir d && echo ok", "ok\n"},
		// And the attacks do not.
		{"cat " + secret + " 2>&1 | grep -o canary; echo done", "done\n"},
		{"cat ../other/secret 2>&1 | grep -o canary; echo done", "done\n"},
		{"for p in /proc/[0-9]*/root /proc/[0-9]*/cwd; do cat $p" + secret + " 2>/dev/null; done; echo done", "done\n"},
		{"ls /proc/1/fd /proc/1/root 2>/dev/null; echo done", "done\n"},
		{"i=0; while [ $i -lt 300 ]; do cat /proc/self/fd/$i" + secret + " /proc/self/fd/$i/../../../" + secret + " 2>/dev/null; i=$((i+1)); done; echo done", "done\n"},
		{"echo x > .git/hooks/pre-commit; echo x > .git/config; mv .git g; ls .git/hooks; ls -d g 2>/dev/null; echo done", "done\n"},
		{"mkdir .vscode/x; ls .vscode; echo done", "done\n"},
		{"touch /usr/x /etc/x /x; ls /usr/x /etc/x /x 2>/dev/null; echo done", "done\n"},
		{"umount / 2>/dev/null; umount " + dir + " 2>/dev/null; mount -t tmpfs x /tmp 2>/dev/null; unshare -rm true 2>/dev/null && echo unshared; echo done", "done\n"},
	} {
		out, _ := sh(t, b, "{ "+tt.script+"; } 2>/tmp/err")
		if out != tt.want {
			t.Errorf("%s: %q, want %q", tt.script, out, tt.want)
		}
	}
	if c, err := os.ReadFile(secret); err != nil || string(c) != "canary" {
		t.Errorf("canary %q, %v", c, err)
	}
	for _, n := range []string{".git/hooks/pre-commit", ".git/config", ".vscode/x", "g"} {
		if fi, err := os.Lstat(filepath.Join(dir, n)); err == nil && !(n == ".git/config" && fi.Size() == 0) { // a new repository can have that
			t.Errorf("%s was made", n)
		}
	}
}

// TestPreparedMismatch: what is not the sandbox that Open would make is refused,
// and can be used for what it is for after that.
func TestPreparedMismatch(t *testing.T) {
	dir := t.TempDir()
	shown := t.TempDir()
	tmpl := with(t, dir, func(r *profiles.Request) { r.Workspace, r.ReadOnly = "none", []string{shown} })
	q := prepare(t, tmpl)
	if err := q.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	limit, net := uint64(64<<20), policy.EgressHost
	for name, change := range map[string]func(*profiles.Request){
		"less":     nil,
		"writable": func(r *profiles.Request) { r.ReadWrite = []string{shown} },
		"above":    func(r *profiles.Request) { r.ReadOnly = []string{shown, filepath.Dir(shown)} },
		"hidden":   func(r *profiles.Request) { r.ReadOnly, r.Hide = []string{shown}, []string{filepath.Dir(shown)} },
		"hostname": func(r *profiles.Request) { r.ReadOnly, r.Hostname = []string{shown}, "other" },
		"memory":   func(r *profiles.Request) { r.ReadOnly, r.Memory = []string{shown}, &limit },
		"disk":     func(r *profiles.Request) { r.ReadOnly, r.Disk = []string{shown}, &limit },
		"user":     func(r *profiles.Request) { r.ReadOnly, r.User = []string{shown}, &profiles.User{UID: 7, GID: 7} },
		"net":      func(r *profiles.Request) { r.ReadOnly, r.Net = []string{shown}, &net },
		"degrade":  func(r *profiles.Request) { r.ReadOnly, r.Degrade = []string{shown}, 0 },
	} {
		if b, err := q.Complete(context.Background(), with(t, dir, change)); !errors.Is(err, driver.ErrMismatch) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				b.Close()
				t.FailNow()
			}
		}
	}
	want := with(t, dir, func(r *profiles.Request) { r.ReadOnly = []string{shown} })
	b := complete(t, q, want)
	if out, _ := sh(t, b, "echo fine"); out != "fine\n" {
		t.Errorf("%q", out)
	}
	if _, err := q.Complete(context.Background(), want); err == nil {
		t.Error("completed twice")
	}
	if q.Check(context.Background()) == nil {
		t.Error("checked after it was completed")
	}
}

// TestPreparedOnAnotherHost: a sandbox that was prepared when the host's files were
// others is not handed out, and nothing is left of it.
func TestPreparedOnAnotherHost(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, shown string) error{
		"nothing": nil,
		"replaced": func(t *testing.T, shown string) error {
			return errors.Join(os.Rename(shown, shown+".old"), os.Mkdir(shown, 0o755))
		},
		"gone": func(t *testing.T, shown string) error { return os.Rename(shown, shown+".old") },
		"a file": func(t *testing.T, shown string) error {
			return errors.Join(os.Remove(shown), os.WriteFile(shown, nil, 0o644))
		},
		"a link": func(t *testing.T, shown string) error {
			return errors.Join(os.Remove(shown), os.Symlink("/etc", shown))
		},
		"relinked": func(t *testing.T, shown string) error {
			return errors.Join(os.Remove(shown+".link"), os.Symlink("/etc", shown+".link"))
		},
		"beneath": func(t *testing.T, shown string) error {
			return errors.Join(os.Remove(shown+".link.to"), os.Symlink("/etc", shown+".link.to"))
		},
		"appeared":  func(t *testing.T, shown string) error { return os.Mkdir(shown+"/absent", 0o755) },
		"mounted":   func(t *testing.T, shown string) error { return mountAt(t, shown+".below/below") },
		"elsewhere": func(t *testing.T, shown string) error { return mountAt(t, t.TempDir()) },
		"another's": func(t *testing.T, shown string) error { return os.WriteFile(filepath.Join(shown, "f"), nil, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			shown, dir := filepath.Join(t.TempDir(), "d"), t.TempDir()
			if err := errors.Join(os.Mkdir(shown, 0o755), os.Symlink(shown+".link.to", shown+".link"), os.Symlink("/usr/share", shown+".link.to"), os.MkdirAll(shown+".below/below", 0o755)); err != nil {
				t.Fatal(err)
			}
			both := func(workspace string) *policy.Policy {
				p := with(t, dir, func(r *profiles.Request) {
					r.Workspace, r.ReadOnly = workspace, []string{shown, shown + ".link", shown + ".below"}
				})
				p.Files = append(p.Files, policy.FileRule{Path: filepath.Join(shown, "absent"), Origin: "hidden"})
				return p
			}
			q, want := prepare(t, both("none")), both("")
			if change != nil {
				if err := change(t, shown); err != nil {
					t.Fatal(err)
				}
			}
			b, err := q.Complete(context.Background(), want)
			if name == "nothing" || name == "another's" || name == "elsewhere" {
				if err != nil {
					t.Fatal(err)
				}
				if out, _ := sh(t, b, "echo fine"); out != "fine\n" {
					t.Errorf("%q", out)
				}
				b.Close()
				return
			}
			if !errors.Is(err, driver.ErrIncomplete) || !strings.Contains(err.Error(), shown) {
				t.Errorf("completed: %v", err)
			}
			select {
			case <-q.Done():
			default:
				t.Error("it lives on")
			}
		})
	}
}

// mountAt mounts something, until the test ends.
func mountAt(t *testing.T, dir string) error {
	if os.Geteuid() != 0 {
		t.Skip("nobody but root mounts")
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return unix.Mount("none", dir, "tmpfs", 0, "size=4k")
}

// TestPreparedMountedWorkspace: what is mounted where the workspace is, or on the way
// to it, after a sandbox was prepared, is what the command finds, or nothing begins.
func TestPreparedMountedWorkspace(t *testing.T) {
	for _, at := range []string{"", "/dir", "/dir/below"} {
		top := t.TempDir()
		dir := top + "/dir"
		if err := os.MkdirAll(dir+"/below", 0o755); err != nil {
			t.Fatal(err)
		}
		q := prepare(t, bare(t))
		if err := mountAt(t, top+at); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir+"/below", 0o755); err != nil {
			t.Fatal(err)
		}
		if b, err := q.Complete(context.Background(), with(t, dir, nil)); !errors.Is(err, driver.ErrIncomplete) {
			t.Errorf("%q: completed: %v", at, err)
			b.Close()
		}
		// The control: one that is made after that.
		b, err := prepare(t, bare(t)).Complete(context.Background(), with(t, dir, nil))
		if err != nil {
			t.Fatalf("%q: %v", at, err)
		}
		if out, _ := sh(t, b, "touch below/seen; echo done"); out != "done\n" {
			t.Errorf("%q: %q", at, out)
		}
		b.Close()
		if _, err := os.Stat(dir + "/below/seen"); err != nil {
			t.Errorf("%q: %v", at, err)
		}
	}
}

// TestPreparedOnce: a sandbox whose process 1 dies after it has started a command, and
// before it could say so, is not called one in which nothing has run: who is told
// that runs the command again.
func TestPreparedOnce(t *testing.T) {
	dir := t.TempDir()
	b := complete(t, prepare(t, bare(t)), with(t, dir, nil))
	pid := b.(*sandbox).child.Pid()
	seized := make(chan error)
	go func() {
		runtime.LockOSThread() // the tracer is a thread
		_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEVFORKDONE, 0, 0)
		if e != 0 {
			seized <- e
			return
		}
		seized <- nil
		var st unix.WaitStatus
		if _, err := unix.Wait4(pid, &st, unix.WALL, nil); err == nil && st.Stopped() {
			// The command was executed, and process 1 does not know yet.
			for range 1000 {
				if c, _ := os.ReadFile(dir + "/ran"); len(c) > 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			unix.Kill(pid, unix.SIGKILL)
		}
	}()
	if err := <-seized; err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(dir + "/ran")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	_, err = b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", "echo ran; sleep 100"}}, driver.Stdio{Stdout: out})
	if c, _ := os.ReadFile(dir + "/ran"); string(c) != "ran\n" {
		t.Fatalf("the command has not run: %q, %v", c, err)
	}
	if err == nil || errors.Is(err, driver.ErrIncomplete) {
		t.Errorf("%v, though the command has run", err)
	}
}

// TestPreparedCompleted: what is wrong with a sandbox is ErrIncomplete until it is
// complete, and never after.
func TestPreparedCompleted(t *testing.T) {
	dir := t.TempDir()
	run := func(b driver.Sandbox, name string) error {
		p, err := b.Exec(context.Background(), &specs.Process{Args: []string{name}}, driver.Stdio{})
		if err == nil {
			_, err = p.Wait()
		}
		return err
	}
	b := complete(t, prepare(t, bare(t)), with(t, dir, bindTo(dir+"/nothing")))
	for range 2 {
		if err := b.Completed(); !errors.Is(err, driver.ErrIncomplete) || !strings.Contains(err.Error(), dir+"/nothing") {
			t.Errorf("a mount on nothing: %v", err)
		}
	}
	b = complete(t, prepare(t, bare(t)), with(t, dir, nil))
	for range 2 {
		if err := b.Completed(); err != nil {
			t.Error(err)
		}
	}
	b.Close()
	if err := run(b, "/bin/true"); !errors.Is(err, driver.ErrSandboxGone) || errors.Is(err, driver.ErrIncomplete) {
		t.Errorf("closed after it was complete: %v", err)
	}
	b = complete(t, prepare(t, bare(t)), with(t, dir, nil))
	var c *driver.CommandError
	if err := run(b, "/nonexistent"); !errors.As(err, &c) {
		t.Error(err)
	}
	syscall.Kill(b.(*sandbox).child.Pid(), syscall.SIGKILL)
	<-b.Done()
	if err := run(b, "/bin/true"); err == nil || errors.Is(err, driver.ErrIncomplete) {
		t.Errorf("killed after it had answered: %v", err)
	}
	b = complete(t, prepare(t, bare(t)), with(t, dir, nil))
	b.Close()
	if err := run(b, "/bin/true"); err == nil || errors.Is(err, driver.ErrIncomplete) {
		t.Errorf("closed by its owner: %v", err)
	}
}

// TestPreparedEnds: nothing is left of one that is closed, killed, or cannot be
// completed.
func TestPreparedEnds(t *testing.T) {
	dir := t.TempDir()
	for name, end := range map[string]func(driver.Prepared){
		"close": func(q driver.Prepared) { q.Close() },
		"kill":  func(q driver.Prepared) { syscall.Kill(q.(*prepared).box.child.Pid(), syscall.SIGKILL) },
		"target": func(q driver.Prepared) {
			if _, err := q.Complete(context.Background(), with(t, dir, bindTo("/etc/passwd/x"))); err == nil {
				t.Error("completed with a mount below a device")
			}
		},
		"step": func(q driver.Prepared) {
			b, err := q.Complete(context.Background(), with(t, dir, bindTo(dir+"/nothing")))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err = b.Exec(context.Background(), &specs.Process{Args: []string{"/bin/true"}}, driver.Stdio{})
				var setup *driver.SetupError
				if !errors.Is(err, driver.ErrIncomplete) || !errors.As(err, &setup) || !strings.Contains(err.Error(), dir+"/nothing") {
					t.Errorf("a command in a sandbox with a mount on nothing: %v", err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := prepare(t, bare(t))
			pid := q.(*prepared).box.child.Pid()
			end(q)
			select {
			case <-q.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("not done")
			}
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && bytes.Contains(b, []byte("sbxrun-init")) {
				t.Error("process 1 is left")
			}
			if _, err := q.Complete(context.Background(), with(t, dir, nil)); err == nil {
				t.Error("completed after its end")
			}
			if q.Check(context.Background()) == nil {
				t.Error("answers after its end")
			}
		})
	}
}
