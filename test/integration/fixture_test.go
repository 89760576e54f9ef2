//go:build linux

package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A fixture is a small world for one test: a workspace, and beside it what the
// sandbox must not get at. All of it belongs to the user who runs sbxrun, so
// that the host's permissions stand in no attack's way.
type fixture struct {
	*testing.T
	who who

	dir     string // all of it; the name is unique
	ws      string // the workspace, with a copy of attack
	outside string // files of the user's, outside the workspace
	home    string // the user's home, with secrets
	attack  string // the copy in the workspace

	before map[string]string
}

var fixtures atomic.Int32

func newFixture(t *testing.T, w who) *fixture {
	t.Helper()
	f := &fixture{T: t, who: w, dir: filepath.Join(runDir, fmt.Sprintf("t%d-%s", fixtures.Add(1), w.name))}
	f.ws, f.outside, f.home = filepath.Join(f.dir, "ws"), filepath.Join(f.dir, "outside"), filepath.Join(f.dir, "home")
	f.attack = filepath.Join(f.ws, "attack")
	for path, content := range map[string]string{
		"ws/README":              "a workspace\n",
		"outside/canary":         "canary\n",
		"outside/second":         "second\n",
		"outside/victim":         "victim\n",
		"outside/a/file":         "file\n",
		"outside/b/other":        "other\n",
		"home/.ssh/id_ed25519":   "a secret key\n",
		"home/.aws/credentials":  "a secret\n",
		"home/notes":             "private\n",
		"state/config/some.yaml": "policy\n",
	} {
		f.write(path, content, 0o644)
	}
	f.copyAttack(f.attack)
	f.copyAttack(filepath.Join(f.outside, "attack"))
	f.own()
	f.before = f.snapshot()
	t.Cleanup(func() { os.RemoveAll(f.dir) })
	return f
}

// write makes a file below the fixture's directory, and its parents.
func (f *fixture) write(path, content string, mode fs.FileMode) string {
	f.Helper()
	p := filepath.Join(f.dir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), mode), os.Chmod(p, mode)); err != nil {
		f.Fatal(err)
	}
	return p
}

// copyAttack makes a copy of its own: some attacks write what they run.
func (f *fixture) copyAttack(to string) {
	f.Helper()
	b, err := os.ReadFile(attack)
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		f.Fatal(err)
	}
}

// own gives the fixture to its user.
func (f *fixture) own() {
	f.Helper()
	if !isRoot() {
		return
	}
	err := filepath.WalkDir(f.dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, f.who.uid, f.who.uid))
	})
	if err != nil {
		f.Fatal(err)
	}
}

// snapshot is everything outside the workspace: names, modes, owners, times and
// contents.
func (f *fixture) snapshot() map[string]string {
	f.Helper()
	m := map[string]string{}
	for _, dir := range []string{f.outside, f.home} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := d.Info()
			if err != nil {
				return err
			}
			st := fi.Sys().(*syscall.Stat_t)
			v := fmt.Sprintf("%v %d:%d %d links %v", fi.Mode(), st.Uid, st.Gid, st.Nlink, fi.ModTime())
			if fi.Mode().IsRegular() {
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				v += fmt.Sprintf(" %x", sha256.Sum256(b))
			}
			m[path] = v
			return nil
		})
		if err != nil {
			f.Fatal(err)
		}
	}
	return m
}

// changed lists what is not as it was when the fixture was made.
func (f *fixture) changed() []string {
	f.Helper()
	now := f.snapshot()
	var diff []string
	for path, v := range f.before {
		if now[path] != v {
			diff = append(diff, fmt.Sprintf("%s: was %s, is %s", path, v, now[path]))
		}
	}
	for path := range now {
		if _, ok := f.before[path]; !ok {
			diff = append(diff, path+": is new")
		}
	}
	slices.Sort(diff)
	return diff
}

// wantUnchanged is the canary: nothing outside the workspace may have changed.
func (f *fixture) wantUnchanged() {
	f.Helper()
	for _, d := range f.changed() {
		f.Errorf("the host changed: %s", d)
	}
}

// environ is the environment that sbxrun and controls are run in.
func (f *fixture) environ(more ...string) []string {
	if breakLayer != "" {
		more = append(more, "SBXRUN_BREAK="+breakLayer)
	}
	return append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + f.home, "LANG=C.UTF-8", "TERM=xterm", "XDG_CACHE_HOME=" + f.who.cache()}, more...)
}

// An outcome is how a command ended.
type outcome struct {
	args           []string
	code           int
	stdout, stderr string
	state          *os.ProcessState
	took           time.Duration
}

func (o *outcome) String() string {
	short := func(s string) string {
		if len(s) > 4000 {
			return s[:4000] + "…"
		}
		return s
	}
	return fmt.Sprintf("%s\nexit code %d after %v\nstdout: %s\nstderr: %s", strings.Join(o.args, " "), o.code, o.took, short(o.stdout), short(o.stderr))
}

// A call is a command to run; only args are needed.
type call struct {
	args    []string
	env     []string // more variables
	stdin   *os.File
	extra   []*os.File // descriptors 3, 4, …
	timeout time.Duration
	// started is called when the command runs; the test may act on it then.
	started func(*exec.Cmd)
}

// limit bounds every command that a test runs.
const limit = 3 * time.Minute

// do runs a command and waits for it. A command that does not end is a failure
// of the test.
func (f *fixture) do(c call) *outcome {
	f.Helper()
	if c.timeout == 0 {
		c.timeout = limit
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.ExtraFiles = f.ws, f.environ(c.env...), c.extra
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if c.stdin != nil {
		cmd.Stdin = c.stdin
	}
	// A group of its own: no signal to the test reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	start := time.Now()
	if err := cmd.Start(); err != nil {
		f.Fatalf("%s: %v", strings.Join(c.args, " "), err)
	}
	if c.started != nil {
		c.started(cmd)
	}
	err := cmd.Wait()
	o := &outcome{args: c.args, stdout: stdout.String(), stderr: stderr.String(), state: cmd.ProcessState, took: time.Since(start)}
	o.code = cmd.ProcessState.ExitCode()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.code = 128 + int(ws.Signal())
	}
	if ctx.Err() != nil {
		f.Fatalf("still running after %v: %v", c.timeout, o)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		f.Fatalf("its output stayed open: %v", o)
	}
	return o
}

// unique is a name that no other test has, for places that all share.
func (f *fixture) unique(name string) string {
	return filepath.Base(runDir) + "-" + filepath.Base(f.dir) + "-" + name
}

// path is a path in the fixture's directory.
func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

// strict is the command line of sbxrun for a command under strict.
func (f *fixture) strict(flags []string, command ...string) []string {
	args := append(f.who.command(sbxrun, "--profile", "strict", "-C", f.ws), f.who.flags()...)
	return append(append(append(args, flags...), "--"), command...)
}

// attackIn runs an attack under strict.
func (f *fixture) attackIn(flags []string, args ...string) *outcome {
	f.Helper()
	return f.do(call{args: f.strict(flags, append([]string{f.attack}, args...)...)})
}

// A result is what --json prints, as far as the tests look at it.
type result struct {
	ExitCode        int      `json:"exit_code"`
	Signal          string   `json:"signal"`
	Reason          string   `json:"reason"`
	Stdout          string   `json:"stdout"`
	Stderr          string   `json:"stderr"`
	StdoutTruncated bool     `json:"stdout_truncated"`
	StderrTruncated bool     `json:"stderr_truncated"`
	Sandboxed       bool     `json:"sandboxed"`
	Layers          []string `json:"layers"`
	Degraded        []string `json:"degraded"`
	DurationMS      float64  `json:"duration_ms"`
	Usage           struct {
		UserMS      float64 `json:"cpu_user_ms"`
		SystemMS    float64 `json:"cpu_system_ms"`
		ThrottledMS float64 `json:"cpu_throttled_ms"`
		OOMKills    uint64  `json:"oom_kills"`
		PidsDenied  uint64  `json:"pids_denied"`
		PidsPeak    uint64  `json:"pids_peak"`
		MemoryPeak  uint64  `json:"memory_peak_bytes"`
	} `json:"usage"`
	Denials []denial
	Network struct {
		Connections, Denied uint64
		LookupsDenied       uint64 `json:"lookups_denied"`
		BytesReceived       uint64 `json:"bytes_received"`
		Log                 []struct{ Route, Target, Address, Verdict, Rule string }
	}
	Driver string
	Error  string `json:"error"`
	Code   string `json:"error_code"`
	Hint   string `json:"hint"`
}

// denial is one of a result's.
type denial struct {
	Operation, Call, Target, Rule, Origin, Grant, Reason string

	Count   uint64
	Process struct {
		PID     int
		Command string
	}
}

// result reads what --json printed.
func (f *fixture) result(o *outcome) *result {
	f.Helper()
	var r result
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
		f.Fatalf("no result object: %v\n%v", err, o)
	}
	return &r
}

// A report is what attack printed: what each act got.
type report struct {
	ID   string
	Acts []struct{ Act, Got string }
}

// report finds attack's line in what was printed.
func (f *fixture) report(o *outcome) *report {
	f.Helper()
	for line := range strings.Lines(o.stdout) {
		var r report
		// On a terminal other things may stand before it.
		if i := strings.Index(line, `{"id":`); i >= 0 && json.Unmarshal([]byte(line[i:]), &r) == nil {
			return &r
		}
	}
	f.Fatalf("the attack did not report: %v", o)
	return nil
}

// got is what one act got, "" if it was not tried.
func (r *report) got(name string) string {
	for _, a := range r.Acts {
		if a.Act == name {
			return a.Got
		}
	}
	return ""
}

// sha is the hash of a file.
func (f *fixture) sha(path string) string {
	f.Helper()
	file, err := os.Open(path)
	if err != nil {
		f.Fatal(err)
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		f.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// within polls until ok or until the time is over.
func within(d time.Duration, ok func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(5 * time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// exists reports whether a path does.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// processes are the pids of the host whose command line holds text.
func processes(text string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if b, _ := os.ReadFile(file); bytes.Contains(b, []byte(text)) {
			found = append(found, filepath.Base(filepath.Dir(file))+" "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}
