package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
)

// TestNamed: files that the caller names, in a workspace in which an earlier command
// has put links and FIFOs.
func TestNamed(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, outside := dir+"/ws", dir+"/outside"
	secret := "KEY=secret\n"
	if err := errors.Join(os.MkdirAll(ws+"/real", 0o755), os.Mkdir(outside, 0o755), os.WriteFile(outside+"/victim", []byte(secret), 0o600), os.WriteFile(ws+"/real/env", []byte("A=1\n"), 0o600),
		os.Symlink(outside, ws+"/planted"), os.Symlink("real", ws+"/beside"), os.Symlink(outside+"/victim", ws+"/link"), syscall.Mkfifo(ws+"/fifo", 0o600), os.Symlink("fifo", ws+"/tofifo"),
		os.Symlink("/dev/fd/0", ws+"/tofd")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(ws)
	untouched := func() {
		t.Helper()
		if b, err := os.ReadFile(outside + "/victim"); err != nil || string(b) != secret {
			t.Errorf("outside: %q, %v", b, err)
		}
		if list, err := os.ReadDir(outside); err != nil || len(list) != 1 {
			t.Errorf("outside: %v, %v", list, err)
		}
	}
	// Not even where it took the place of a file that was looked at.
	if f, err := (engine.HostFS{}).Open(ws[1:] + "/fifo"); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	for _, name := range []string{"planted/victim", "link", "fifo", "tofifo", "real", ws + "/planted/../outside/victim", "tofd"} {
		if env, err := engine.EnvFile(name); err == nil {
			t.Errorf("--env-file %s: %q", name, env)
		}
	}
	for _, name := range []string{"real/env", "beside/env", ws + "/real/env"} {
		if env, err := engine.EnvFile(name); err != nil || len(env) != 1 || env[0] != "A=1" {
			t.Errorf("--env-file %s: %q, %v", name, env, err)
		}
	}
	// A descriptor can be anything: here a pipe, as of process substitution.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.WriteString("B=2\n")
	w.Close()
	if env, err := engine.EnvFile("/dev/fd/" + strconv.Itoa(int(r.Fd()))); err != nil || len(env) != 1 || env[0] != "B=2" {
		t.Errorf("a descriptor: %q, %v", env, err)
	}

	// A line without a value passes the caller's: from a file that no command can have
	// written, and from no other.
	t.Setenv("XDG_CONFIG_HOME", dir+"/config")
	for _, file := range []string{ws + "/real/env", dir + "/config/env", dir + "/config/sbxrun/env"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("A=1\nTOKEN\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		env, err := engine.EnvFile(file)
		if kept := strings.HasSuffix(file, "/sbxrun/env"); kept != (err == nil) || kept && len(env) != 2 {
			t.Errorf("--env-file %s: %q, %v", file, env, err)
		}
	}

	write := func(name string) error {
		res, err := engine.OpenResults(false, -1, name)
		if err != nil {
			return err
		}
		return res.Write(&driver.Result{ExitCode: 7})
	}
	for _, name := range []string{"planted/victim", "planted/new", "fifo", "real"} {
		if err := write(name); err == nil {
			t.Errorf("--result-file %s was written", name)
		}
	}
	for _, name := range []string{"real/result", "beside/second", "link", "tofifo"} {
		if err := write(name); err != nil {
			t.Errorf("--result-file %s: %v", name, err)
		}
		if fi, err := os.Lstat(name); err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 {
			t.Errorf("--result-file %s: %v, %v", name, fi, err)
		}
	}
	untouched()

	// The file of integrate mcp, which can be anywhere below, and need not be there.
	facts, err := engine.GatherFacts()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove("link"), os.Symlink(outside+"/victim", ws+"/link")); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"real/mcp.json": true, "beside/mcp.json": true, "real/new/mcp.json": true, "planted/victim": false, "planted/new": false, "planted/new/mcp.json": false, "link": false} {
		if err := facts.CheckTarget("flag --file", ws+"/"+name); ok != (err == nil) {
			t.Errorf("integrate mcp --file %s: %v", name, err)
		}
	}
	untouched()
}
