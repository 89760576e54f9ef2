package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/cli"
	"github.com/sbxrun/sbxrun/internal/serve"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/test/dispositions"
)

// TestMain makes of this binary both programs: sbxrun-serve, and sbxrun where the
// environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("SERVE_TEST_CLIENT") != "" {
		os.Unsetenv("SERVE_TEST_CLIENT")
		bear(os.Getenv("SERVE_TEST_BIRTH"))
		os.Exit(cli.Main(os.Args[1:]))
	}
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		main()
	}
	dispositions.Default()
	os.Exit(m.Run())
}

// world is a user with a server.
type world struct {
	t      *testing.T
	uid    int
	self   string // this binary, where the user can execute it
	dir    string
	ws     string
	server *exec.Cmd
}

// each runs a test as the user that runs the tests and, if that is root, as an
// ordinary one.
func each(t *testing.T, do func(t *testing.T, w *world), args ...string) {
	if err := (native.Driver{}).Available(context.Background()); err != nil {
		t.Skip("the native driver is needed: ", err)
	}
	uids := []int{os.Getuid()}
	if os.Getuid() == 0 {
		uids = append(uids, 54321)
	}
	for _, uid := range uids {
		t.Run("uid "+strconv.Itoa(uid), func(t *testing.T) {
			dir, err := os.MkdirTemp("", "serve")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			w := &world{t: t, uid: uid, dir: dir, self: filepath.Join(dir, "sbxrun"), ws: filepath.Join(dir, "ws")}
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(exe)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(w.self, b, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Link(w.self, filepath.Join(dir, "sbxrun-serve")); err != nil {
				t.Fatal(err)
			}
			for _, d := range []string{"run", "home", "ws"} {
				if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Chown(filepath.Join(dir, d), uid, uid); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			w.serve(args...)
			do(t, w)
		})
	}
}

func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, w.self, args...)
	c.Dir = w.ws
	c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + w.dir + "/home", "XDG_RUNTIME_DIR=" + w.dir + "/run", "LANG=C"}
	if w.uid != 0 {
		c.Env = append(c.Env, "SBXRUN_ALLOW_DEGRADED=cgroup")
	}
	c.SysProcAttr = &syscall.SysProcAttr{}
	if w.uid != os.Getuid() {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(w.uid), Gid: uint32(w.uid)}
	}
	return c
}

// serve starts a server, which ends with the test.
func (w *world) serve(args ...string) {
	w.t.Helper()
	c := w.command(context.Background(), append([]string{"serve"}, args...)...)
	out, err := c.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		w.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != w.dir+"/run/sbxrun/serve" {
		c.Process.Kill()
		c.Wait()
		w.t.Fatalf("the server says %q, %v: %s", line, err, &errs)
	}
	w.server = c
	w.t.Cleanup(func() {
		if c.ProcessState != nil {
			return // the test has ended it
		}
		c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			w.t.Errorf("the server: %v: %s", err, &errs)
		}
	})
}

// client is a run of sbxrun.
func (w *world) client(args ...string) *exec.Cmd {
	c := w.command(context.Background(), args...)
	c.Env = append(c.Env, "SERVE_TEST_CLIENT=1")
	return c
}

// result runs a client and returns its result.
func (w *world) result(args ...string) *driver.Result {
	w.t.Helper()
	return w.resultOf(w.client(append([]string{"--json"}, args...)...))
}

func (w *world) resultOf(c *exec.Cmd) *driver.Result {
	w.t.Helper()
	var errs bytes.Buffer
	c.Stderr = &errs
	out, _ := c.Output()
	res := &driver.Result{}
	if err := json.Unmarshal(out, res); err != nil {
		w.t.Fatalf("%q: %v: %s", c.Args, err, &errs)
	}
	return res
}

// full waits until the server has sandboxes ready.
func (w *world) full() {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var p struct {
			Pools []struct{ Stats struct{ Ready int } }
		}
		if w.get("/v1/pools", &p) == http.StatusOK && len(p.Pools) > 0 && p.Pools[0].Stats.Ready >= 2 {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("nothing ready: %+v", p)
		}
	}
}

func (w *world) http() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.dir+"/run/sbxrun/serve/api.sock")
	}}}
}

func (w *world) do(method, path, body string, v any) int {
	w.t.Helper()
	req, err := http.NewRequest(method, "http://sbxrun"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.http().Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if v != nil {
		if err := json.Unmarshal(b, v); err != nil {
			w.t.Fatalf("%s %s: %q: %v", method, path, b, err)
		}
	}
	return resp.StatusCode
}

func (w *world) get(path string, v any) int { w.t.Helper(); return w.do("GET", path, "", v) }

// TestRun: a run that finds a server is a run.
func TestRun(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.full()
		r := w.result("sh", "-c", "pwd; echo err >&2; cat /tmp/left 2>/dev/null; echo x > /tmp/left; echo mine > f; exit 3")
		if !r.Pooled || r.ExitCode != 3 || r.Reason != driver.ReasonExit || r.Stdout != w.ws+"\n" || r.Stderr != "err\n" || !r.Sandboxed {
			t.Errorf("%+v", r)
		}
		if b, err := os.ReadFile(w.ws + "/f"); err != nil || string(b) != "mine\n" {
			t.Errorf("%q, %v", b, err)
		}
		// The same by itself, and it says the same.
		w.full()
		c := w.result("--no-pool", "sh", "-c", "pwd; echo err >&2; cat /tmp/left 2>/dev/null; exit 3")
		if c.Pooled || c.ExitCode != 3 || c.Stdout != r.Stdout || c.Layers != r.Layers || c.Degraded != r.Degraded || c.Driver != r.Driver || c.Profile != r.Profile {
			t.Errorf("%+v", c)
		}
		if w.uid == 0 && (r.Usage.MemoryPeakBytes == 0 || r.Usage.PidsPeak == 0) {
			t.Errorf("usage: %+v", r.Usage)
		}
		for _, args := range [][]string{{"run", "-v", "--", "true"}, {"run", "-v", "--no-pool", "--", "true"}} {
			w.full()
			out, err := w.client(args...).CombinedOutput()
			if says := strings.Contains(string(out), "sbxrun: debug: the sandbox was ready before this run"); err != nil || says != (len(args) == 4) {
				t.Errorf("%q: %v, %s", args, err, out)
			}
		}
		if err := os.Mkdir(w.dir+"/home/tools", 0o755); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			args   []string
			pooled bool
			out    string
			code   int
		}{
			{[]string{"cat", "/tmp/left"}, true, "", 1},
			{[]string{"-c", "echo $0 $1", "a", "b"}, true, "a b\n", 0},
			{[]string{"-e", "A=b", "--", "sh", "-c", "echo $A"}, true, "b\n", 0},
			{[]string{"--ro", "/etc/hostname", "--", "sh", "-c", "kill -9 $$"}, false, "", 137},
			{[]string{"--ro", w.dir + "/home/tools", "--", "sh", "-c", "cd; ls"}, true, "tools\n", 0},
			{[]string{"--ro", w.dir + "/home", "--", "sh", "-c", "cd; ls"}, false, "tools\n", 0}, // no private storage there
			{[]string{"--workspace", "ro", "--", "sh", "-c", "touch y 2>/dev/null || echo no"}, true, "no\n", 0},
			{[]string{"--disk", "1m", "--", "sh", "-c", "head -c 2000000 /dev/zero > /tmp/x 2>/dev/null || echo full"}, false, "full\n", 0},
			{[]string{"--hostname", "other", "--", "hostname"}, false, "other\n", 0},
			{[]string{"--profile", "testing", "--", "true"}, false, "", 0},
			{[]string{"--nofile", "77", "--", "sh", "-c", "ulimit -n"}, true, "77\n", 0},
			{[]string{"/nonexistent"}, true, "", 127},
			{[]string{"/etc/passwd"}, true, "", 126},
			{[]string{"--timeout", "200ms", "--", "sleep", "60"}, true, "", 124},
		} {
			w.full()
			res := w.result(tt.args...)
			if tt.code == 126 || tt.code == 127 {
				tt.pooled = false // nothing has run, so that nothing is said of it
			}
			if tt.args[0] == "--ro" && tt.args[1] == "/etc/hostname" {
				tt.pooled = res.Pooled // it depends on what the host has there
			}
			if res.ExitCode != tt.code || res.Stdout != tt.out || res.Pooled != tt.pooled {
				t.Errorf("%q: %+v", tt.args, res)
			}
		}
		// Streams are the caller's own.
		w.full()
		client := w.client("-q", "cat")
		client.Stdin = strings.NewReader(strings.Repeat("x\x00\xff", 100000))
		if out, err := client.Output(); err != nil || len(out) != 300000 {
			t.Errorf("%d bytes, %v", len(out), err)
		}
	})
}

// TestProtected: what a pooled run is refused in its workspace it is told of.
func TestProtected(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if out, err := w.command(context.Background(), "--no-such").CombinedOutput(); err == nil {
			t.Errorf("%s", out)
		}
		git := exec.Command("git", "init", "-q", ".")
		git.Dir = w.ws
		git.SysProcAttr = w.command(context.Background()).SysProcAttr
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		w.full()
		r := w.result("sh", "-c", "echo x > .git/hooks/pre-commit; echo x > .git/config; echo fine > g")
		if !r.Pooled || len(r.Denials) == 0 || !strings.Contains(r.Denials[0].Rule, ".git") {
			t.Errorf("%+v", r)
		}
		if _, err := os.Stat(w.ws + "/.git/hooks/pre-commit"); err == nil {
			t.Error("a hook was made")
		}
		if b, _ := os.ReadFile(w.ws + "/.git/config"); strings.HasPrefix(string(b), "x") {
			t.Error("the configuration was written")
		}
		if b, err := os.ReadFile(w.ws + "/g"); err != nil || string(b) != "fine\n" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

// inherited is what a thread can change of itself, and what it starts then has; by this
// no shell can.
var inherited = map[string]func() error{
	"audit session": func() error { return os.WriteFile("/proc/self/loginuid", []byte("54321"), 0) },
	"broken memory": func() error { return unix.Prctl(unix.PR_MCE_KILL, unix.PR_MCE_KILL_SET, 1, 0, 0) },
	"capabilities":  func() error { return unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_BOOT, 0, 0, 0) },
	"core":          func() error { return unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, 0, 0) },
	"MDWE":          func() error { return unix.Prctl(unix.PR_SET_MDWE, unix.PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) },
	"merged memory": func() error { return unix.Prctl(unix.PR_SET_MEMORY_MERGE, 1, 0, 0, 0) },
	"NUMA":          func() error { return unix.SetMemPolicy(unix.MPOL_BIND, &unix.CPUSet{1}) },
}

// cannotBear is the exit code for what the kernel has not, or lets nobody but root do.
const cannotBear = 77

// bear makes of this process one that has something inherited.
func bear(name string) {
	do := inherited[name]
	if do == nil {
		return
	}
	runtime.LockOSThread()
	if err := do(); err != nil {
		json.NewEncoder(os.Stdout).Encode(driver.Result{ExitCode: cannotBear, Error: err.Error()})
		os.Exit(cannotBear)
	}
	os.Setenv("SERVE_TEST_CLIENT", "1")
	os.Unsetenv("SERVE_TEST_BIRTH")
	panic(unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// TestBirth: who would pass something else on to the command has it by itself.
func TestBirth(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.full()
		shell := func(script string) *driver.Result {
			c := w.client()
			c.Path, c.Args = "/bin/sh", []string{"sh", "-c", script + `; exec "$0" --json -- sh -c 'umask; nice; ulimit -s; touch f; stat -c %a f'`, w.self}
			return w.resultOf(c)
		}
		if r := shell(":"); !r.Pooled || !strings.HasSuffix(r.Stdout, "644\n") {
			t.Errorf("%+v", r)
		}
		os.Remove(w.ws + "/f")
		if r := shell("umask 077"); r.Pooled || !strings.HasPrefix(r.Stdout, "0077\n") || !strings.HasSuffix(r.Stdout, "600\n") {
			t.Errorf("%+v", r)
		}
		for _, script := range []string{"echo 500 > /proc/self/oom_score_adj", "trap '' HUP", "trap '' INT", "echo 0x7f > /proc/self/coredump_filter", `exec nice -n 3 "$0" --json true`, `exec chrt --batch 0 "$0" --json true`, `exec ionice -c 3 "$0" --json true`, `exec setarch -R "$0" --json true`} {
			if r := shell(script); r.Pooled || r.ExitCode != 0 {
				t.Errorf("%s: %+v", script, r)
			}
		}
		for name := range inherited {
			c := w.client("--json", "true")
			c.Env = append(c.Env, "SERVE_TEST_BIRTH="+name)
			if r := w.resultOf(c); r.ExitCode == cannotBear {
				t.Logf("%s: %s", name, r.Error)
			} else if r.Pooled || r.ExitCode != 0 {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if r := shell("ulimit -s 1000"); r.Pooled || !strings.Contains(r.Stdout, "\n1000\n") {
			t.Errorf("%+v", r)
		}
		c := w.client("-v", "true")
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", `umask 077; exec "$0" -v true`, w.self}
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "not pooled: ") || !strings.Contains(string(out), "umask") {
			t.Errorf("%s, %v", out, err)
		}
	})
}

// TestGone: without a server, or one that does not answer, a run is a run; and a
// command that may have begun is not begun again.
func TestGone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.full()
		// Killed while a command runs.
		c := w.client("--json", "sh", "-c", "echo begun >> begun; sleep 100")
		var out bytes.Buffer
		c.Stdout = &out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if b, _ := os.ReadFile(w.ws + "/begun"); len(b) > 0 {
				break
			} else if time.Now().After(deadline) {
				t.Fatal("not begun")
			}
		}
		w.server.Process.Kill()
		w.server.Wait()
		c.Wait()
		var r driver.Result
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.ExitCode != driver.ExitLost || r.Reason != driver.ReasonLost || r.Code != driver.CodeLost || !strings.Contains(r.Error, "ended") {
			t.Errorf("%+v, %v", r, err)
		}
		if b, err := os.ReadFile(w.ws + "/begun"); err != nil || string(b) != "begun\n" {
			t.Errorf("%q, %v", b, err)
		}
		// The sockets are still there.
		if _, err := os.Stat(w.dir + "/run/sbxrun/serve/run.sock"); err != nil {
			t.Error(err)
		}
		if r := w.result("echo", "fine"); r.Pooled || r.Stdout != "fine\n" {
			t.Errorf("%+v", r)
		}
		if out, err := w.client("pool", "status").CombinedOutput(); err == nil {
			t.Errorf("%s", out)
		}
		// Another takes over.
		w.serve()
		w.full()
		if r := w.result("echo", "fine"); !r.Pooled || r.Stdout != "fine\n" {
			t.Errorf("%+v", r)
		}
		// And there is one at a time.
		if out, err := w.command(context.Background(), "serve").CombinedOutput(); err == nil || !strings.Contains(string(out), "running already") {
			t.Errorf("%s, %v", out, err)
		}
		// One that is stopped does not keep a run waiting for good.
		w.server.Process.Signal(syscall.SIGSTOP)
		r = *w.result("echo", "fine")
		w.server.Process.Signal(syscall.SIGCONT)
		if r.Pooled || r.Stdout != "fine\n" {
			t.Errorf("%+v", r)
		}
	})
}

// TestClientKilled: a command ends with who asked for it.
func TestClientKilled(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.full()
		c := w.client("sh", "-c", "setsid sh -c 'trap \"\" TERM; while :; do date +%N > beat; sleep 0.02; done' & sleep 1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		beat := func() string { b, _ := os.ReadFile(w.ws + "/beat"); return string(b) }
		for deadline := time.Now().Add(20 * time.Second); beat() == ""; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("not begun")
			}
		}
		c.Process.Kill()
		c.Wait()
		for i := 0; ; i++ {
			a := beat()
			time.Sleep(300 * time.Millisecond)
			if b := beat(); a == b {
				break
			}
			if i == 30 {
				t.Fatal("the command outlives its client")
			}
		}
		var p struct{ Stats struct{ Out int } }
		for deadline := time.Now().Add(20 * time.Second); w.get("/v1/pools/strict", &p) != 200 || p.Stats.Out != 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%+v", p)
			}
		}
	})
}

// TestMany runs many at a time: each has its own output, and most a sandbox of the
// pool's.
func TestMany(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.full()
		var wg sync.WaitGroup
		slots := make(chan struct{}, 8)
		for i := range 64 {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if r := w.result("echo", strconv.Itoa(i)); r.Stdout != strconv.Itoa(i)+"\n" || r.ExitCode != 0 {
					t.Errorf("%d: %+v", i, r)
				}
			})
		}
		wg.Wait()
		out, err := w.client("pool", "stats", "--json").Output()
		if err != nil || !strings.Contains(string(out), `"pooled"`) {
			t.Errorf("%s, %v", out, err)
		}
	})
}

// TestBytes has many clients ask for runs at the same time, on a machine that is busy,
// and compares what each of them gets: every byte, and the exit code. RUNS in the
// environment says how many runs, CLIENTS how many clients. With SBXRUN_SOAK_TIME it
// goes on for so long, nothing else is busy, the times are printed, and the server has
// no more memory and descriptors at the end than after the first fifth.
func TestBytes(t *testing.T) {
	number := func(name string, n int64) int64 {
		if s := os.Getenv(name); s != "" {
			var err error
			if n, err = strconv.ParseInt(s, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	runs, clients := number("RUNS", 300), number("CLIENTS", 64)
	var lasts time.Duration
	if s := os.Getenv("SBXRUN_SOAK_TIME"); s != "" {
		var err error
		if lasts, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	each(t, func(t *testing.T, w *world) {
		w.full()
		busy, rest := context.WithCancel(context.Background())
		defer rest()
		if lasts == 0 {
			for range 2 * runtime.NumCPU() {
				go func() {
					for busy.Err() == nil {
					}
				}()
			}
		}
		begin := time.Now()
		var clocks sync.Mutex
		var took []time.Duration
		var wg sync.WaitGroup
		var next, wrong atomic.Int64
		for range clients {
			wg.Go(func() {
				for i := next.Add(1); (i <= runs || time.Since(begin) < lasts) && wrong.Load() < 100; i = next.Add(1) {
					var r driver.Result
					at := time.Now()
					code := w.do("POST", "/v1/run", fmt.Sprintf(`{"args": ["sh", "-c", "echo %d; echo e%d >&2; exit %d"]}`, i, i, i%100), &r)
					if code != http.StatusOK || r.ExitCode != int(i%100) || r.Stdout != fmt.Sprintf("%d\n", i) || r.Stderr != fmt.Sprintf("e%d\n", i) || r.StdoutTruncated || r.StderrTruncated {
						wrong.Add(1)
						t.Errorf("%d: %d, %+v", i, code, r)
					}
					clocks.Lock()
					took = append(took, time.Since(at))
					clocks.Unlock()
				}
			})
		}
		var memory, files []int
		for i := range 50 {
			time.Sleep(time.Until(begin.Add(lasts * time.Duration(i+1) / 50)))
			memory, files = append(memory, w.resident()), append(files, w.descriptors())
		}
		wg.Wait()
		slices.Sort(took)
		early, late := memory[10:20], memory[40:]
		t.Logf("%d clients, %d runs in %v, %d wrong; p50 %v, p99 %v; memory %d to %d MiB, at the end %d to %d; descriptors %d, at the end %d", clients, len(took), time.Since(begin).Round(time.Second),
			wrong.Load(), took[len(took)/2], took[len(took)*99/100], slices.Min(early)>>20, slices.Max(early)>>20, slices.Min(late)>>20, slices.Max(late)>>20, slices.Max(files[10:20]), slices.Max(files[40:]))
		if lasts == 0 {
			return
		}
		// What a leak raises is the least, which a collection leaves. How much there is between
		// two of them depends on who else is busy.
		if least := slices.Min(early); slices.Min(late) > least+least/5+8<<20 || slices.Max(late) > 2*slices.Max(early) {
			t.Errorf("the server's memory grows: %v bytes", memory)
		}
		if early, late := slices.Max(files[10:20]), slices.Max(files[40:]); late > early+early/5+16 {
			t.Errorf("the server's descriptors grow: %v", files)
		}
	})
}

// resident is how much memory the server has, in bytes.
func (w *world) resident() int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", w.server.Process.Pid))
	var size, pages int
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		w.t.Errorf("statm: %q, %v", b, err)
	}
	return pages * os.Getpagesize()
}

// descriptors is how many the server has open.
func (w *world) descriptors() int {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.server.Process.Pid))
	if err != nil {
		w.t.Error(err)
	}
	return len(list)
}

// TestAPI goes through the interface.
func TestAPI(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.full()
		var about struct {
			API string
			Pid int
		}
		if code := w.get("/v1", &about); code != 200 || about.API != "v1" || about.Pid != w.server.Process.Pid {
			t.Errorf("%d, %+v", code, about)
		}
		type result struct {
			driver.Result
			StdoutBase64 []byte `json:"stdout_base64"`
		}
		run := func(path, body string) (r result) {
			t.Helper()
			if code := w.do("POST", path, body, &r); code != 200 {
				t.Errorf("%s: %d", body, code)
			}
			return r
		}
		if r := run("/v1/run", fmt.Sprintf(`{"workspace":%q,"args":["sh","-c","pwd; cat; echo $A"],"stdin":"in\n","env":{"A":"b"}}`, w.ws)); r.Stdout != w.ws+"\nin\nb\n" || !r.Pooled || r.ExitCode != 0 {
			t.Errorf("%+v", r)
		}
		w.full()
		if r := run("/v1/run", `{"args":["sh","-c","cat; exit 7"],"stdin_base64":"AP8="}`); string(r.StdoutBase64) != "\x00\xff" || r.ExitCode != 7 {
			t.Errorf("%+v", r)
		}
		if r := run("/v1/run", `{"args":["sleep","60"],"timeout_ms":200}`); r.Reason != driver.ReasonTimeout || r.ExitCode != 124 {
			t.Errorf("%+v", r)
		}
		if r := run("/v1/run", `{"args":["yes"],"timeout_ms":500,"max_output":10}`); len(r.Stdout) != 10 || !r.StdoutTruncated {
			t.Errorf("%+v", r)
		}
		var refused struct {
			Error struct{ Message string }
		}
		if code := w.do("POST", "/v1/run", `{"args":["true"],"max_output":67108865}`, &refused); code != 400 || !strings.Contains(refused.Error.Message, "max_output") {
			t.Errorf("%d, %+v", code, refused)
		}
		if r := run("/v1/run", `{"args":["true"],"max_output":67108864}`); r.ExitCode != 0 {
			t.Errorf("%+v", r)
		}
		// Limits of the command's own, by a cgroup or what stands for one.
		for _, body := range []string{`{"args":["tail","/dev/zero"]%s}`, `{"args":["sh","-c","head -c 1m /dev/zero | tail"]%s}`} {
			r := run("/v1/run", fmt.Sprintf(body, `,"memory":33554432,"cpus":0.5,"pids":20`))
			failed := r.Reason == driver.ReasonOOM || len(r.Degraded.Names()) > 0 && r.ExitCode != 0
			if failed != !strings.Contains(body, "head") {
				t.Errorf("%s: %+v", body, r.Result)
			}
		}
		if r := run("/v1/run", `{"args":["/nonexistent"]}`); r.ExitCode != 127 || r.Reason != driver.ReasonSetup {
			t.Errorf("%+v", r)
		}

		var s struct {
			ID, Socket, Dir, State string
			Pooled                 *bool
		}
		w.full()
		if code := w.do("POST", "/v1/sessions", fmt.Sprintf(`{"id":"mine","workspace":%q}`, w.ws), &s); code != 201 || s.ID != "mine" || s.State != "ready" || s.Pooled == nil || !*s.Pooled || s.Dir != w.ws {
			t.Errorf("%d, %+v", code, s)
		}
		if _, err := os.Stat(s.Socket); err != nil {
			t.Error(err)
		}
		run("/v1/sessions/mine/run", `{"args":["sh","-c","echo kept > /tmp/k; sleep 1000 >/dev/null 2>&1 & echo"]}`)
		// Others reach it, as any session.
		if out, err := w.client("session", "exec", "mine", "--", "cat", "/tmp/k").Output(); err != nil || string(out) != "kept\n" {
			t.Errorf("%s, %v", out, err)
		}
		var list struct{ Sessions []struct{ ID string } }
		if code := w.get("/v1/sessions", &list); code != 200 || len(list.Sessions) != 1 {
			t.Errorf("%d, %+v", code, list)
		}
		if code := w.do("POST", "/v1/sessions", `{"id":"mine"}`, nil); code != 409 {
			t.Errorf("twice: %d", code)
		}
		if code := w.do("DELETE", "/v1/sessions/mine?grace_ms=100", "", nil); code != 200 {
			t.Errorf("delete: %d", code)
		}
		if out, err := w.client("session", "ls", "--json").Output(); err != nil || strings.TrimSpace(string(out)) != "[]" {
			t.Errorf("%s, %v", out, err)
		}

		// One that has ended runs nothing, and its record is there to say so.
		if code := w.do("POST", "/v1/sessions", `{"id":"ended"}`, nil); code != 201 {
			t.Fatal(code)
		}
		if out, err := w.client("session", "stop", "ended").CombinedOutput(); err != nil {
			t.Fatalf("%s, %v", out, err)
		}

		for _, tt := range []struct {
			method, path, body string
			code               int
		}{
			{"POST", "/v1/sessions/ended/run", `{"args":["true"]}`, 409},
			{"GET", "/v1/nothing", "", 404},
			{"GET", "/", "", 404},
			{"GET", "/v2/pools", "", 404},
			{"PUT", "/v1/run", "", 405},
			{"GET", "/v1/sessions/mine/run", "", 405},
			{"GET", "/v1/pools/nothing", "", 404},
			{"POST", "/v1/run", "", 400},
			{"POST", "/v1/run", "{", 400},
			{"POST", "/v1/run", "[]", 400},
			{"POST", "/v1/run", `{"args":[]}`, 400},
			{"POST", "/v1/run", `{"args":[""]}`, 400},
			{"POST", "/v1/run", `{"args":["true"]} x`, 400},
			{"POST", "/v1/run", `{"args":["true"],"profile":"unrestricted"}`, 400},
			// Two readers would read two requests.
			{"POST", "/v1/run", `{"args":["touch","` + w.ws + `/a"],"args":["true"]}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"Args":["touch","` + w.ws + `/a"]}`, 400},
			{"POST", "/v1/run", `{"ARGS":["touch","` + w.ws + `/a"]}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"env":{"A":"1","\u0041":"2"}}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"env":` + strings.Repeat(`{"a":`, 100_000) + `1` + strings.Repeat("}", 100_001), 400},
			{"POST", "/v1/run", "{\"args\":[\"true\",\"\xff\"]}", 400},
			{"POST", "/v1/run", `{"args":["true","\ud800"]}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"env":{"\udc00":"1"}}`, 400},
			{"POST", "/v1/sessions", `{"id":"one","id":"two"}`, 400},
			{"POST", "/v1/sessions", `{"Id":"one"}`, 400},
			{"POST", "/v1/run", `{"args":["tr\u0000ue"]}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"workspace":"relative"}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"workspace":"/nonexistent/x"}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"env":{"A=B":"c"}}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"cwd":"relative"}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"timeout_ms":0}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"max_output":-1}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"memory":-1}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"memory":1}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"memory":1099511627776}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"cpus":0}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"pids":100000}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"stdin":"a","stdin_base64":"AA=="}`, 400},
			{"POST", "/v1/run", `{"args":["true"],"pool":"unrestricted"}`, 404},
			{"POST", "/v1/run", `{"args":["` + strings.Repeat("x", 17<<20) + `"]}`, 413},
			{"POST", "/v1/sessions", `{"id":"../x"}`, 400},
			{"POST", "/v1/sessions", `{"id":""}`, 400},
			{"POST", "/v1/sessions", `{"id":"` + strings.Repeat("x", 10000) + `"}`, 400},
			{"GET", "/v1/sessions/nothing", "", 404},
			{"GET", "/v1/sessions/%2e%2e", "", 400},
			{"GET", "/v1/sessions/..%2fserve", "", 400},
			{"DELETE", "/v1/sessions/nothing", "", 404},
			{"DELETE", "/v1/sessions/mine?grace_ms=x", "", 400},
			{"DELETE", "/v1/sessions/mine?grace_ms=0&grace_ms=60000", "", 400},
			{"DELETE", "/v1/sessions/mine?grace=60000", "", 400},
			{"DELETE", "/v1/sessions/mine?grace_ms=0;x", "", 400},
			{"GET", "/v1?id=mine", "", 400},
			{"POST", "/v1/sessions/../run", `{"args":["touch","a"]}`, 404},
			{"POST", "/v1/sessions//run", `{"args":["touch","a"]}`, 404},
			{"GET", "/v1/sessions/.", "", 404},
			{"POST", "/v1/sessions/nothing/run", `{"args":["true"]}`, 404},
			{"POST", "/v1/sessions/mine/run", `{"args":["true"],"pool":"strict"}`, 400},
		} {
			var e struct{ Error struct{ Message string } }
			if code := w.do(tt.method, tt.path, tt.body, &e); code != tt.code || e.Error.Message == "" {
				if len(tt.body) > 80 {
					tt.body = tt.body[:80]
				}
				t.Errorf("%s %s %s: %d, want %d: %+v", tt.method, tt.path, tt.body, code, tt.code, e)
			}
		}
		if _, err := os.Stat(w.ws + "/a"); err == nil {
			t.Error("a request with a field twice, or in another case, ran")
		}
		// Names of variables may differ in case alone.
		if r := run("/v1/run", `{"args":["sh","-c","echo $a$A"],"env":{"a":"1","A":"2"}}`); r.Stdout != "12\n" {
			t.Errorf("%+v", r)
		}
		// A session that its client does not hear of, because it hung up, ends. One of
		// which it heard stays: mine, above.
		for i := range 10 {
			c, err := net.Dial("unix", w.dir+"/run/sbxrun/serve/api.sock")
			if err != nil {
				t.Fatal(err)
			}
			body := fmt.Sprintf(`{"id":"untold%d"}`, i)
			fmt.Fprintf(c, "POST /v1/sessions HTTP/1.1\r\nHost: sbxrun\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			time.Sleep(time.Duration(i) * 200 * time.Microsecond)
			// On a busy machine the answer may be there by now, and the session stays.
			heard := false
			raw, err := c.(*net.UnixConn).SyscallConn()
			if err == nil {
				err = raw.Read(func(fd uintptr) bool {
					n, _, _ := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_DONTWAIT)
					heard = n > 0
					return true
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.Close(); heard {
				w.do("DELETE", fmt.Sprintf("/v1/sessions/untold%d?grace_ms=0", i), "", nil)
			}
		}
		var untold struct{ Sessions []struct{ ID string } }
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			code := w.get("/v1/sessions", &untold)
			if code == 200 && !slices.ContainsFunc(untold.Sessions, func(s struct{ ID string }) bool { return strings.HasPrefix(s.ID, "untold") }) {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("sessions nobody was told of: %d, %+v", code, untold)
			}
		}
		// Who hangs up ends its command.
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://sbxrun/v1/run", strings.NewReader(`{"args":["sleep","1000"]}`))
		if _, err := w.http().Do(req); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		var p struct{ Stats struct{ Out int } }
		for deadline := time.Now().Add(20 * time.Second); w.get("/v1/pools/strict", &p) != 200 || p.Stats.Out != 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%+v", p)
			}
		}
	})
}

// TestOthers: another user gets at nothing.
func TestOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be two users")
	}
	each(t, func(t *testing.T, w *world) {
		if w.uid == 0 {
			return // the same below, with less to get
		}
		dir := w.dir + "/run/sbxrun/serve"
		for _, mode := range []os.FileMode{0o700, 0o777} {
			// Also if its owner opens the directory.
			for d := dir; d != w.dir; d = filepath.Dir(d) {
				if err := os.Chmod(d, mode); err != nil {
					t.Fatal(err)
				}
			}
			for _, s := range []string{"api.sock", "run.sock"} {
				os.Chmod(dir+"/"+s, mode)
				c := exec.Command(w.self, "-test.run=^TestConnect$")
				c.Env = []string{"SERVE_TEST_SOCKET=" + dir + "/" + s}
				c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54322, Gid: 54322}}
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("%s, mode %o: %v: %s", s, mode, err, out)
				}
			}
		}
	})
}

// TestSandboxed: a sandboxed command has its owner's id, and gets at nothing where it
// can see the sockets; nor does one that has the directory from a variable see it.
func TestSandboxed(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		dir := w.dir + "/run/sbxrun/serve"
		var made struct{ Socket string }
		if code := w.do("POST", "/v1/sessions", `{"id": "one"}`, &made); code != http.StatusCreated {
			t.Fatal(code)
		}
		defer w.do("DELETE", "/v1/sessions/one?grace_ms=0", "", nil)
		// What each socket says to somebody who may ask.
		script := `
import json,socket,struct,sys
def message(m): b=json.dumps(m).encode(); return struct.pack(">I",len(b))+b
for path,ask in zip(sys.argv[1:],[b"GET /v1 HTTP/1.0\r\n\r\n",message({"op":"lend","version":"0"}),message({"op":"info"})]):
    s=socket.socket(socket.AF_UNIX); s.settimeout(20)
    try:
        s.connect(path); s.sendall(ask); r=s.recv(4096)
        print("refused" if not r or b"permission denied" in r else "answered")
    except ConnectionError: print("refused")
    except OSError as e: print(type(e).__name__)
`
		inSight := []string{"--ro", w.dir + "/run", "--ro", filepath.Dir(made.Socket)}
		landlocked := append([]string{"--driver", "landlock", "--net", "host", "--allow-degraded", "namespaces,protect,cgroup"}, inSight...)
		for _, tt := range []struct {
			name string
			args []string // of sbxrun
			via  []string // instead of it
			env  string
			want string
		}{
			{"control, outside", nil, []string{"/usr/bin/env"}, "", "answered"},
			{"in sight", inSight, nil, "", "refused"},
			{"hidden", inSight[:2], nil, "SBXRUN_SERVER=" + dir, "FileNotFoundError|PermissionError"},
			{"landlock", landlocked, nil, "", "refused"},
			{"landlock without a filter of its own", append([]string{"--seccomp", "none"}, landlocked...), nil, "", "refused"},
			{"no_new_privs", nil, []string{"/usr/bin/setpriv", "--no-new-privs"}, "", "refused"},
			{"in a pid namespace", nil, []string{"/usr/bin/unshare", "--pid", "--fork"}, "", "refused"},
		} {
			if strings.Contains(tt.name, "pid namespace") && w.uid != 0 {
				continue // an ordinary user needs a user namespace for it
			}
			command := []string{"python3", "-c", script, dir + "/api.sock", dir + "/run.sock", made.Socket}
			c := w.client(append(append([]string{"--no-pool"}, tt.args...), append([]string{"--"}, command...)...)...)
			if tt.via != nil {
				c = w.command(t.Context())
				c.Path, c.Args = tt.via[0], append(tt.via, command...)
			}
			c.Env = append(c.Env, "XDG_RUNTIME_DIR="+w.dir+"/home", tt.env)
			var errs bytes.Buffer
			c.Stderr = &errs
			out, err := c.Output()
			got := strings.Fields(string(out))
			if err != nil || len(got) != 3 {
				t.Errorf("%s: %q, %v: %s", tt.name, out, err, &errs)
				continue
			}
			for i, socket := range []string{"API", "run", "session"} {
				if tt.name == "hidden" && socket == "session" {
					continue // it is somewhere else
				}
				if !slices.Contains(strings.Split(tt.want, "|"), got[i]) {
					t.Errorf("%s: the %s socket: %s, want %s", tt.name, socket, got[i], tt.want)
				}
			}
		}
		for _, args := range [][]string{{"true"}, {"serve"}, {"pool", "status"}} {
			c := w.client(args...)
			c.Env = append(c.Env, "SBXRUN_SERVER=srv")
			if out, err := c.CombinedOutput(); err == nil || c.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "not an absolute path") {
				t.Errorf("%v: %s, %v", args, out, err)
			}
		}
	})
}

// TestPosing: a sandboxed command that listens in a server's place is not asked.
func TestPosing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const script = `
import socket,sys
s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print("ready",flush=True)
while True:
    c,_=s.accept()
    if b"GET" not in c.recv(4096): continue
    b=b'{"version":"0","pools":[{"name":"posed"}]}'
    c.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n"%len(b)+b); c.close()
`
		landlocked := []string{"--no-pool", "--driver", "landlock", "--net", "host", "--allow-degraded", "namespaces,protect,cgroup", "--"}
		for _, tt := range []struct {
			name string
			args []string
			want string
		}{{"control, outside", nil, "posed"}, {"landlock", landlocked, "permission denied"}} {
			at := w.ws + "/" + tt.name[:3]
			if err := errors.Join(os.Mkdir(at, 0o700), os.Chown(at, w.uid, w.uid)); err != nil {
				t.Fatal(err)
			}
			command := []string{"/usr/bin/python3", "-c", script, at + "/api.sock"}
			c := w.client(append(tt.args, command...)...)
			if tt.args == nil {
				c = w.command(t.Context())
				c.Path, c.Args = command[0], command
			}
			out, err := c.StdoutPipe()
			if err == nil {
				err = c.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
				t.Errorf("%s: %q, %v", tt.name, line, err)
			}
			ask := w.client("pool", "status")
			ask.Env = append(ask.Env, "SBXRUN_SERVER="+at)
			if got, _ := ask.CombinedOutput(); !strings.Contains(string(got), tt.want) {
				t.Errorf("%s: %s", tt.name, got)
			}
			c.Process.Signal(syscall.SIGTERM)
			c.Wait()
		}
	})
}

// TestMute: a server that says nothing is not waited for.
func TestMute(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, serve.APISocket))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := serve.Pools(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestConnect is the other user of TestOthers.
func TestConnect(t *testing.T) {
	socket := os.Getenv("SERVE_TEST_SOCKET")
	if socket == "" {
		return
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(c, "GET /v1 HTTP/1.0\r\n\r\n")
	b, err := io.ReadAll(c)
	if bytes.Contains(b, []byte("200 OK")) || bytes.Contains(b, []byte("digest")) {
		t.Errorf("%q, %v", b, err)
	}
}
