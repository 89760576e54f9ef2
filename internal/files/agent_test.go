//go:build unix

package files

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestWriteKeeps: a file that is replaced keeps its mode, whatever the umask is and
// also behind a link, and a name may be as long as the system lets it be.
func TestWriteKeeps(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	dir := t.TempDir()
	path, link := filepath.Join(dir, strings.Repeat("n", 255)), filepath.Join(dir, "link")
	if err := write(path, 0o644, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o775); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link} {
		if err := write(p, 0o644, strings.NewReader("newer")); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Lstat(path); err != nil || fi.Mode() != 0o775 {
			t.Errorf("%v, %v", fi, err)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestListNoDirectory: what is no directory is told at once; a FIFO would wait for its writer.
func TestListNoDirectory(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- list(io.Discard, fifo) }()
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits")
	}
}

// TestWriteWithoutLink: where a file that was made without a name gets none, as under
// Landlock on older kernels, it is written all the same, with its mode, and nothing else stays.
func TestWriteWithoutLink(t *testing.T) {
	was := named
	defer func() { named = was }()
	named = func(_, _ *os.File, _ string) error { return syscall.EXDEV }
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"first", "second, longer"} {
		if err := write(path, 0o640, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		fi, _ := os.Stat(path)
		if string(b) != text || err != nil || fi.Mode().Perm() != 0o640 {
			t.Errorf("%q, %v, %v", b, err, fi.Mode())
		}
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Error(list)
	}
}
