package sbxrun_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sbxrun/sbxrun"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
)

func command(t *testing.T, name string, arg ...string) *sbxrun.Cmd {
	c := sbxrun.Command(name, arg...)
	c.Options, c.Dir = anywhere, t.TempDir()
	return c
}

// TestBytes: what goes in comes out, through pipes and through files, and after a
// writer has failed the command ends all the same.
func TestBytes(t *testing.T) {
	in := make([]byte, 8<<20)
	rand.New(rand.NewSource(1)).Read(in)
	var out, errs bytes.Buffer
	c := command(t, "sh", "-c", "cat; echo done >&2")
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(in), &out, &errs
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(out.Bytes()) != sha256.Sum256(in) || errs.String() != "done\n" {
		t.Errorf("%d bytes of %d, stderr %q", out.Len(), len(in), errs.String())
	}

	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c = command(t, "echo", "to a file")
	c.Stdout = f
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(f.Name()); string(b) != "to a file\n" {
		t.Errorf("%q", b)
	}

	full := errors.New("full")
	c = command(t, "head", "-c", "1000000", "/dev/zero")
	c.Stdout = failing{full}
	if err := c.Run(); err != full || c.Result.ExitCode != 0 {
		t.Errorf("%v, %+v", err, c.Result)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestOutputLimit: Output keeps no more than the limit, and says so.
func TestOutputLimit(t *testing.T) {
	c := command(t, "head", "-c", "100000", "/dev/zero")
	limit := int64(1000)
	c.Options.MaxOutput = &limit
	out, err := c.Output()
	if err != nil || len(out) != 1000 || !c.Result.StdoutTruncated || len(c.Result.Stdout) != 1000 {
		t.Errorf("%d bytes, %v, truncated %v", len(out), err, c.Result.StdoutTruncated)
	}
}

// TestBlockedReader: a reader that never returns does not hold up the end.
func TestBlockedReader(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	c := command(t, "true")
	c.Stdin = r
	if err := c.Run(); err != nil {
		t.Error(err)
	}
}

// TestInputFails: an error of the reader is the run's, whatever error it is, and the
// command's output is there all the same.
func TestInputFails(t *testing.T) {
	for _, bad := range []error{io.ErrUnexpectedEOF, os.ErrClosed, syscall.EPIPE} {
		c := command(t, "wc", "-c")
		c.Stdin = io.MultiReader(strings.NewReader("half"), iotest.ErrReader(bad))
		if out, err := c.Output(); err != bad || string(out) != "4\n" {
			t.Errorf("%q, %v, want %v", out, err, bad)
		}
	}
}

// TestIgnoredChildren: a program that ignores SIGCHLD, for which the kernel keeps no
// status of a child, gets the command's end all the same.
func TestIgnoredChildren(t *testing.T) {
	signal.Ignore(syscall.SIGCHLD)
	defer func() { // Reset does not undo Ignore
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGCHLD)
		signal.Stop(c)
	}()
	within(t, func() {
		c := command(t, "sh", "-c", "(exit 3); exit $(($? + 4))")
		if err := c.Run(); c.Result.Reason != driver.ReasonExit || c.Result.ExitCode != 7 {
			t.Errorf("%v, %+v", err, c.Result)
		}
	})
}

// within fails the test if f takes long.
func within(t *testing.T, f func()) {
	done := make(chan bool)
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("still waiting")
	}
}

// TestOwnProgram: a command cannot replace the program that runs it.
func TestOwnProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("SBXRUN_TEST_OWN") != "" {
		c := sbxrun.Command("sh", "-c", "touch beside; rm -f "+filepath.Base(self)+"; mv "+filepath.Base(self)+" x; echo evil >"+filepath.Base(self))
		c.Options, c.Dir = anywhere, filepath.Dir(self)
		out, err := c.CombinedOutput()
		t.Logf("%s%v", out, err)
		return
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	if err := os.WriteFile(agent, program, 0o755); err != nil {
		t.Fatal(err)
	}
	run := exec.Command(agent, "-test.run=^TestOwnProgram$", "-test.v")
	run.Env = append(os.Environ(), "SBXRUN_TEST_OWN=1")
	out, err := run.CombinedOutput()
	if _, missing := os.Stat(filepath.Join(dir, "beside")); err != nil || missing != nil {
		t.Fatalf("%s%v, %v", out, err, missing)
	}
	if b, err := os.ReadFile(agent); !bytes.Equal(b, program) {
		t.Errorf("%d bytes of %d, %v\n%s", len(b), len(program), err, out)
	}
}

// TestErrors: what kept a command from running is told from a command that failed.
func TestErrors(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	var exit *sbxrun.ExitError
	c := command(t, "no-such-program")
	if err := c.Run(); err == nil || errors.As(err, &exit) || driver.ExitCodeOf(err) != driver.ExitNotFound || c.Result.Reason != driver.ReasonSetup {
		t.Errorf("%v, %+v", err, c.Result)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, c := range map[string]*sbxrun.Cmd{"no command": {}, "cancelled": sbxrun.CommandContext(ctx, "true")} {
		if err := c.Run(); err == nil || c.Result == nil || c.Result.Reason != driver.ReasonSetup {
			t.Errorf("%s: %v, %+v", what, err, c.Result)
		}
	}
	c = command(t, "echo", "nobody reads this")
	c.Options.Terminal = true
	if out, err := c.Output(); err == nil {
		t.Errorf("a terminal: %q is lost", out)
	}
	c = command(t, "true")
	c.Options.Profile = "strcit"
	if err := c.Run(); err == nil || !strings.Contains(sbxrun.HintOf(err), "strict") {
		t.Errorf("%v, hint %q", err, sbxrun.HintOf(err))
	}
	c = command(t, "true")
	c.Options.Seccomp = filepath.Join(c.Dir, "filter.json")
	if err := os.WriteFile(c.Options.Seccomp, []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Run(); err == nil || !strings.Contains(sbxrun.HintOf(err), "built-in") {
		t.Errorf("%v, hint %q", err, sbxrun.HintOf(err))
	}
	c = command(t, "sh", "-c", "echo x >f; cat f")
	c.Options.Workspace = "overlay"
	if out, err := c.Output(); err != nil || string(out) != "x\n" {
		t.Errorf("overlay: %q, %v", out, err)
	}
	if list, err := os.ReadDir(c.Dir); err != nil || len(list) != 0 {
		t.Errorf("overlay: %v, %v are left on the host", list, err)
	}
	kept(t, c.Result.Changes, "f", "x\n")
	c = command(t, "sh", "-c", "echo why >&2; exit 7")
	if _, err := c.Output(); !errors.As(err, &exit) || exit.ExitCode() != 7 || string(exit.Stderr) != "why\n" {
		t.Errorf("%v", err)
	}
	if err := c.Run(); err == nil || errors.As(err, &exit) {
		t.Errorf("run twice: %v", err)
	}
	c = command(t, "sh", "-c", "kill -9 $$")
	if err := c.Run(); !errors.As(err, &exit) || err.Error() != "signal: SIGKILL" && err.Error() != "signal: KILL" {
		t.Errorf("%v", err)
	}
}

// kept looks whether a change set, which it removes, has one new file.
func kept(t *testing.T, c *driver.Changes, name, want string) {
	t.Helper()
	if c == nil || c.ID == "" || c.Added != 1 {
		t.Errorf("changes: %+v", c)
		return
	}
	f, err := engine.GatherFacts()
	if err != nil {
		t.Fatal(err)
	}
	st, err := engine.OpenChanges(f)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	set, err := st.Load(c.ID)
	if err != nil {
		t.Fatal(err)
	}
	w, err := set.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	all, err := set.Check(w)
	if err != nil || len(all) != 1 || all[0].Path != name {
		t.Fatalf("%v, %v", all, err)
	}
	if patch, err := set.Patch(w, all[0]); err != nil || !strings.Contains(patch, "\n+"+want) {
		t.Errorf("%s%v", patch, err)
	}
	if err := st.Remove(c.ID); err != nil {
		t.Error(err)
	}
}

// TestSessionChanges: what the commands of a session changed is kept once.
func TestSessionChanges(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	o := anywhere
	o.Dir, o.Workspace = t.TempDir(), "overlay"
	s, err := sbxrun.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c := s.Command("sh", "-c", "echo x >f")
		if err := c.Run(); err != nil || c.Result.Changes != nil {
			t.Errorf("%+v, %v", c.Result, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	kept(t, s.Changes(), "f", "x\n")
}

// TestEnvironment: nil is the profile's, anything else is all that there is.
func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "x")
	c := command(t, "env")
	out, err := c.Output()
	if err != nil || strings.Contains(string(out), "SECRET_TOKEN") || !strings.Contains(string(out), "PATH=") {
		t.Errorf("%s%v", out, err)
	}
	c = command(t, "/usr/bin/env")
	c.Env = []string{"A=1"}
	if out, err = c.Output(); err != nil || !strings.Contains(string(out), "A=1\n") || strings.Contains(string(out), "LANG=") {
		t.Errorf("%s%v", out, err)
	}
	c = command(t, "/usr/bin/env")
	c.Env = []string{"SECRET_TOKEN"} // as a line of a file that a command wrote
	if out, err = c.Output(); err == nil {
		t.Errorf("a name alone: %s", out)
	}
}

// TestAudit: a library's runs are in the operator's log as the program's are.
func TestAudit(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	c := command(t, "true")
	c.Options.Audit = log
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(b), `"source":"go"`) || !strings.Contains(string(b), `"true"`) {
		t.Errorf("%s%v", b, err)
	}
	c = command(t, "true")
	c.Options.Audit = "/nonesuch/audit.log"
	if err := c.Run(); err == nil {
		t.Error("ran without a record")
	}
}

// TestSessionCommand: a command of a session has the session's options and no others.
func TestSessionCommand(t *testing.T) {
	o := anywhere
	o.Dir = t.TempDir()
	s, err := sbxrun.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Command("pwd")
	c.Options.InheritEnv = true
	if err := c.Run(); err == nil {
		t.Error("options of its own were ignored")
	}
	c = s.Command("sh", "-c", "pwd; echo $A")
	c.Dir, c.Env = "/tmp", []string{"A=b", "PATH=/usr/bin:/bin"}
	if out, err := c.Output(); err != nil || string(out) != "/tmp\nb\n" {
		t.Errorf("%s%v", out, err)
	}
	within(t, func() { // what it leaves running has its output, and is not waited for
		if out, err := s.Command("sh", "-c", "sleep 60 & seq 20000").Output(); err != nil || len(out) != 108894 {
			t.Errorf("%d bytes, %v", len(out), err)
		}
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-s.Done()
	if err := s.Command("true").Run(); err == nil {
		t.Error("ran in a session that has ended")
	}
}

// TestExplain: what the command looks for and is not shown is told when that is asked for,
// of a command of its own and of one of a session.
func TestExplain(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only the native driver tells of look-ups")
	}
	file := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o := anywhere
	o.Dir = t.TempDir()
	s, err := sbxrun.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, c := range map[string]*sbxrun.Cmd{"of its own": command(t, "cat", file), "of a session": s.Command("cat", file), "not asked for": command(t, "cat", file)} {
		c.Explain = name != "not asked for"
		if err := c.Run(); err == nil {
			t.Errorf("%s: the file is shown", name)
		}
		told := slices.ContainsFunc(c.Result.Denials, func(d driver.Denial) bool { return d.Target == file && d.Grant == driver.GrantOf("ro", file) })
		if told != c.Explain {
			t.Errorf("%s: %+v", name, c.Result.Denials)
		}
	}
}

// TestDirNamed: a wrong directory goes by the name of the field that has it, not of a flag.
func TestDirNamed(t *testing.T) {
	c := sbxrun.Command("true")
	c.Dir = "/nonexistent"
	if err := c.Run(); err == nil || !strings.HasPrefix(err.Error(), "Dir: /nonexistent does not exist") {
		t.Errorf("Cmd: %v", err)
	}
	if _, err := sbxrun.Open(t.Context(), sbxrun.Options{Dir: "/nonexistent"}); err == nil || !strings.HasPrefix(err.Error(), "Options.Dir: /nonexistent does not exist") {
		t.Errorf("Open: %v", err)
	}
}
