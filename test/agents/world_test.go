//go:build linux

package agents

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// The agents, as tools/agents installs them.
const (
	claudeCode = "Claude Code 2.1.330"
	codex      = "Codex 0.169.0"
	opencode   = "opencode 1.18.33"
	gemini     = "Gemini CLI 0.61.0"
	qwen       = "Qwen Code 0.24.4"
	copilot    = "Copilot CLI 1.0.102"
	pi         = "pi 0.87.1"
)

// programs are what is tested, built once.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if n, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); err == nil && n < 3 {
		flag.Set("test.parallel", "3") // agents wait more than they do
	}
	dir, err := os.MkdirTemp("", "sbxrun-agents-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	programs = dir
	cmd := exec.Command("go", "build", "-o", dir+"/", "github.com/sbxrun/sbxrun/cmd/sbxrun", "github.com/sbxrun/sbxrun/cmd/sbxrun-mcp")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	for _, name := range []string{"bash", "sh"} {
		os.Mkdir(dir+"/shell", 0o755)
		if err := os.Symlink(dir+"/sbxrun", dir+"/shell/"+name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// client is an agent's program. That it is not there is a failure: what this
// package claims is about the real ones.
func client(t *testing.T, name, file string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", ".cache", "agents", file))
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		t.Fatalf("%s is not installed: run tools/agents, as make test does: %v", name, err)
	}
	return path
}

// A world is a project that an agent works in, with things beside it that its
// commands must not get at.
type world struct {
	*testing.T
	uid     int
	dir     string
	project string
	home    string
	canary  string // file outside that anyone may read
	mark    string // is in the command line of all that the agent's commands start
	env     []string
	started func(pid int) // is told of the agent's process, where it is not nil
}

// key stands for an agent's API key.
const key = "sk-canary-4cf2a1"

// each runs a test as root, where it is, and as an ordinary user.
func each(t *testing.T, test func(w *world)) {
	uids := []int{os.Getuid()}
	if os.Getuid() == 0 {
		uids = append(uids, 1000)
	}
	for _, uid := range uids {
		name := "user"
		if uid == 0 {
			name = "root"
		}
		t.Run(name, func(t *testing.T) { test(newWorld(t, uid)) })
	}
}

// once runs a test of an agent that takes long to start as one user, an ordinary one
// if there is a choice.
func once(t *testing.T, test func(w *world)) {
	uid := os.Getuid()
	if uid == 0 {
		uid = 1000
	}
	test(newWorld(t, uid))
}

func newWorld(t *testing.T, uid int) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbxrun-agent-world-")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, uid: uid, dir: dir, project: dir + "/project", home: dir + "/home", canary: dir + "/outside/canary", mark: filepath.Base(dir)}
	for _, d := range []string{w.project + "/sub", w.home, dir + "/outside", dir + "/tmp", dir + "/run"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(w.canary, []byte("the canary sings\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir+"/run", 0o700)
	w.own()
	w.env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + w.home, "LANG=C.UTF-8", "TERM=dumb", "SHELL=/bin/bash", "TMPDIR=" + dir + "/tmp",
		"XDG_RUNTIME_DIR=" + dir + "/run",
		// opencode installs what plugins might need: there is nothing to have.
		"npm_config_registry=http://127.0.0.1:1", "npm_config_fetch_retries=0", "OPENCODE_DISABLE_MODELS_FETCH=1"}
	if uid != 0 {
		// No cgroup is delegated to it here.
		w.env = append(w.env, "SBXRUN_ALLOW_DEGRADED=cgroup")
	}
	t.Cleanup(func() {
		if !within(20*time.Second, func() bool { return len(w.processes()) == 0 }) {
			t.Errorf("left: %q", w.processes())
		}
		os.RemoveAll(dir)
	})
	return w
}

// own gives the world to its user.
func (w *world) own() {
	w.Helper()
	err := filepath.WalkDir(w.dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, w.uid, w.uid)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of a session that ends meanwhile
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
}

// processes are those that the agent's commands started and that are still there.
func (w *world) processes() (left []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if pid := filepath.Base(filepath.Dir(f)); bytes.Contains(b, []byte(w.mark)) && pid != fmt.Sprint(os.Getpid()) {
			left = append(left, pid+" "+string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return left
}

// serve has a model served on loopback and returns the address.
func (w *world) serve(m http.Handler) string {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	s := &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go s.Serve(l)
	w.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String()
}

// command is a command of the world's user, in the project.
func (w *world) command(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = w.project
	// What comes last counts.
	cmd.Env = append(append(slices.Clone(w.env), "PWD="+w.project), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if w.uid != os.Getuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(w.uid), Gid: uint32(w.uid)}
	}
	return cmd
}

// patience bounds an agent's run, on a machine that has other things to do.
const patience = 180 * time.Second

// converse runs an agent until the model has nothing left to say, then ends it. It
// returns what each call gave, and what the agent printed.
func (w *world) converse(m *model.Server, calls int, cmd *exec.Cmd) []string {
	w.Helper()
	out, err := os.CreateTemp(w.dir, "output-")
	if err != nil {
		w.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	printed := func() string { b, _ := os.ReadFile(out.Name()); return string(b) }
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	if w.started != nil {
		w.started(cmd.Process.Pid)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(patience)
	finish := time.NewTimer(patience)
	for done := false; !done; {
		select {
		case err = <-ended:
			done = true
		case <-deadline:
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
			w.Fatalf("the agent did not come to its end; results %q\n%s", m.Results(), printed())
		case <-finish.C:
			// It waits for its background tasks.
			syscall.Kill(cmd.Process.Pid, syscall.SIGTERM)
		case <-time.After(50 * time.Millisecond):
			if len(m.Results()) == calls && calls > 0 {
				calls = -1
				finish.Reset(8 * time.Second)
			}
		}
	}
	if len(m.Results()) < calls {
		w.Fatalf("the agent ended (%v) after %d of %d calls; tools %q; results %q\n%s", err, len(m.Results()), calls, m.Tools(), m.Results(), printed())
	}
	return m.Results()
}

// expect checks one result: what is in it, and what is not ("!" in front).
func (w *world) expect(what, result string, wants ...string) {
	w.Helper()
	for _, want := range wants {
		text, not := strings.CutPrefix(want, "!")
		if strings.Contains(result, text) == not {
			w.Errorf("%s: %q wanted in\n%s", what, want, result)
		}
	}
}

// probe is a command that tells whether it is inside: it reaches for the canary,
// leaves a file beside it, and shows what environments it can see. Its sum shows
// that it ran, and not only its text was repeated.
func (w *world) probe() string {
	return "cat " + w.canary + "; echo breach > " + filepath.Dir(w.canary) + "/breach; env; cat /proc/*/environ | tr '\\0' '\\n'; echo sum $((40+2)); true"
}

// inside checks the result of probe.
func (w *world) inside(result, profile string) {
	w.Helper()
	w.expect("the probe", result, "sum 42", "SBXRUN_SANDBOX="+profile, "!canary sings", "!"+key, "!MESSAGING_TOKEN", "!MESSAGING_SOCKET")
	if entries, err := os.ReadDir(filepath.Dir(w.canary)); err != nil || len(entries) != 1 {
		w.Errorf("outside: %v %v", entries, err)
	}
}
