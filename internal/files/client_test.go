package files

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
)

// stopped is a sandbox in which a command comes to no end, as when another stops it.
type stopped struct{ driver.Sandbox }

func (stopped) Exec(_ context.Context, _ *specs.Process, stdio driver.Stdio) (driver.Process, error) {
	fd, err := syscall.Dup(int(stdio.Stdout.Fd()))
	return &stoppedProcess{stdout: os.NewFile(uintptr(fd), "stdout"), killed: make(chan struct{})}, err
}

type stoppedProcess struct {
	driver.Process
	stdout *os.File
	killed chan struct{}
}

func (p *stoppedProcess) Kill() error {
	p.stdout.Close()
	close(p.killed)
	return nil
}

func (p *stoppedProcess) Wait() (*driver.Status, error) {
	<-p.killed
	return &driver.Status{Signal: syscall.SIGKILL}, nil
}

// TestLimit: an agent that comes to no end is killed, and that is said. The control is
// a limit that is not reached, beside a caller who gives up.
func TestLimit(t *testing.T) {
	b := &Box{Sandbox: stopped{}, Limit: 10 * time.Millisecond}
	defer b.Close()
	var e *Error
	if err := b.Read(t.Context(), "/x", 0, -1, io.Discard); !errors.As(err, &e) || !errors.Is(err, syscall.ETIMEDOUT) || e.Path != "/x" {
		t.Errorf("%v", err)
	}
	b.Limit = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := b.Stat(ctx, "/x"); !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &e) && errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("%v", err)
	}
}

// TestExtractModes: a directory that is there keeps its mode, whatever comes out; a
// new one, and a file, get theirs, less the umask.
func TestExtractModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	dir, _ := world(t)
	if err := os.Mkdir(filepath.Join(dir, "old"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Extract(dir, archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "old/", Mode: 0o777}, tar.Header{Typeflag: tar.TypeReg, Name: "old/file", Mode: 0o777},
		tar.Header{Typeflag: tar.TypeDir, Name: "new/", Mode: 0o777}, tar.Header{Typeflag: tar.TypeDir, Name: "new/", Mode: 0o7777})); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"old": 0o700, "old/file": 0o755, "new": 0o755} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode()&^fs.ModeDir != want {
			t.Errorf("%s: %v, %v, want %v", name, fi.Mode(), err, want)
		}
	}
}

// TestExtractAsks: each path is asked about before it is made, those too that no entry
// names, and what is refused is not there.
func TestExtractAsks(t *testing.T) {
	refused := errors.New("refused")
	for name, entries := range map[string][]tar.Header{
		"named":   {{Typeflag: tar.TypeDir, Name: "a/"}, {Typeflag: tar.TypeDir, Name: "a/no/", Mode: 0o755}},
		"unnamed": {{Typeflag: tar.TypeReg, Name: "a/no/file", Mode: 0o644}},
		"a link":  {{Typeflag: tar.TypeSymlink, Name: "a/no", Linkname: "b"}},
		"unclean": {{Typeflag: tar.TypeReg, Name: "a/../a//./no", Mode: 0o644}},
	} {
		dir, _ := world(t)
		if err := extract(dir, archive(t, entries...), func(path string, link bool, _ int) error {
			if path == "a/no" {
				if link != (entries[0].Typeflag == tar.TypeSymlink) {
					t.Errorf("%s: link is %t", name, link)
				}
				return refused
			}
			return nil
		}); !errors.Is(err, refused) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "a/no")); err == nil {
			t.Errorf("%s: was made", name)
		}
		// The control: nobody is asked.
		if err := Extract(dir, archive(t, entries...)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "a/no")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// silent is a sandbox whose commands do not begin.
type silent struct{ driver.Sandbox }

func (silent) Exec(context.Context, *specs.Process, driver.Stdio) (driver.Process, error) {
	return nil, driver.ErrSandboxGone
}

// TestGetNothing: a copy that does not begin leaves no directory, and one of nothing does.
func TestGetNothing(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	allow := func(string, bool, int) error { return nil }
	b := &Box{Sandbox: silent{}, Check: allow}
	defer b.Close()
	dir := filepath.Join(base, "a", "b")
	if err := b.Get(t.Context(), "/etc", dir); !errors.Is(err, driver.ErrSandboxGone) {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(base, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory is left: %v", err)
	}
	if err := extract(dir, archive(t), allow); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); err != nil {
		t.Error(err)
	}
}
