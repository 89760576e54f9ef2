package native

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLocksIn: locks of open files are not counted, for they are in each namespace's list.
func TestLocksIn(t *testing.T) {
	name := filepath.Join(t.TempDir(), "locks")
	list := strings.Repeat("1: OFDLCK ADVISORY  WRITE -1 fe:00:5 2 2\n", maxLocks+1) + "2: POSIX  ADVISORY  WRITE 7 fe:00:5 0 0\n3: FLOCK  ADVISORY  WRITE 7 fe:00:6 0 EOF\n"
	if err := os.WriteFile(name, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := locksIn(f); n != 2 {
		t.Errorf("%d locks, want 2", n)
	}
}
