package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// resolver is a worker below the host's root, with a directory that holds one, x.
func resolver(t *testing.T) (w *worker, base int) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	w = &worker{root: open("/"), self: open("/proc/self/fd")}
	return w, open(dir)
}

// TestWalkEnds: what is looked up name by name is bounded, and the kernel's error stands.
func TestWalkEnds(t *testing.T) {
	w, base := resolver(t)
	for _, test := range []struct {
		pairs int
		want  unix.Errno
	}{{maxNames/2 - 1, 0}, {maxNames / 2, unix.ENOENT}} {
		fd, errno := w.walk(base, []byte(strings.Repeat("x/../", test.pairs)+"x"), 0, unix.ENOENT)
		closeFD(fd)
		if errno != test.want {
			t.Errorf("%d times x/..: %v, want %v", test.pairs, errno, test.want)
		}
	}
}

// TestRenamesElsewhere: no number of renames, of anything anywhere, keeps a path from being
// resolved.
func TestRenamesElsewhere(t *testing.T) {
	w, base := resolver(t)
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
		os.WriteFile(a, nil, 0o600)
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			os.Rename(a, b)
			a, b = b, a
		}
	}()
	path := []byte(strings.Repeat("x/../", maxNames/2-1) + "x")
	disturbed := 0
	for n := 0; n < 200 || disturbed == 0 && n < 100_000; n++ {
		// The control: asked once, the kernel gives up.
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH}
		fd, err := unix.Openat2(base, string(path), &how)
		if err == unix.EAGAIN {
			disturbed++
		}
		closeFD(fd)
		fd, errno := w.object(base, path, unix.O_DIRECTORY)
		closeFD(fd)
		if errno != 0 {
			t.Fatal(errno)
		}
	}
	close(stop)
	t.Logf("%d renames, %d paths were disturbed", <-done, disturbed)
	if disturbed == 0 {
		t.Error("no rename came between: this shows nothing")
	}
}

// TestCallerGone: nothing is opened by the number of a process whose call is not held any more.
func TestCallerGone(t *testing.T) {
	w, _ := resolver(t)
	w.l.FD, w.n.PID = -1, uint32(os.Getpid())
	var err error
	if w.proc, err = unix.Open("/proc", unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(w.proc)
	for what, open := range map[string]func() (int, unix.Errno){
		"cwd": func() (int, unix.Errno) { return w.base(unix.AT_FDCWD) },
		"fd":  func() (int, unix.Errno) { return w.file(w.root) },
		"empty path": func() (int, unix.Errno) {
			return w.target(w.root, uint64(sys.Addr(&w.scrap[0])), unix.AT_EMPTY_PATH)
		},
	} {
		if fd, errno := open(); errno != unix.ESRCH {
			closeFD(fd)
			t.Errorf("%s: %v, want ESRCH", what, errno)
		}
	}
}
