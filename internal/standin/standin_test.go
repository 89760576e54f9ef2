package standin

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestDeliver: the file in which an agent looks for the directory that a script ended in
// can be where commands have put links and FIFOs.
func TestDeliver(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, outside := dir+"/ws", dir+"/outside"
	if err := errors.Join(os.MkdirAll(ws+"/real", 0o755), os.Mkdir(outside, 0o755), os.WriteFile(outside+"/victim", []byte("secret"), 0o600),
		os.Symlink(outside, ws+"/planted"), syscall.Mkfifo(ws+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ws+"/real/cwd", []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := deliver(ws+"/real/cwd", -1, "/x"); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(ws + "/real/cwd"); string(b) != "/x\n" {
		t.Errorf("cwd: %q", b)
	}
	for _, name := range []string{"planted/victim", "planted/new", "fifo"} {
		if err := deliver(ws+"/"+name, -1, "/x"); err == nil {
			t.Errorf("the directory was written to %s", name)
		}
	}
	if b, err := os.ReadFile(outside + "/victim"); err != nil || string(b) != "secret" {
		t.Errorf("outside: %q, %v", b, err)
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) != 1 {
		t.Errorf("outside: %v, %v", list, err)
	}
}
