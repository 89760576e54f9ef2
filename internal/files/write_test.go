//go:build linux

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tree is what is below a directory, each with what it leads to or holds.
func tree(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, holds := strings.TrimPrefix(p, dir), ""
		switch d.Type() {
		case fs.ModeSymlink:
			holds, err = os.Readlink(p)
		case 0:
			var b []byte
			b, err = os.ReadFile(p)
			holds = string(b)
		}
		all = append(all, fmt.Sprint(name, " ", d.Type(), " ", strings.ReplaceAll(holds, dir, "")))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestWriteAsShell: a write through links ends where a shell's redirection does, or fails as
// that does.
func TestWriteAsShell(t *testing.T) {
	for _, at := range []string{"to-file", "to-nothing", "whole", "chain", "d/up", "to-dir", "loop", "round1", "no-dir/f", "to-no-dir", "to-slash",
		"file/x", "l40", "l41", "n40", "n41", "through/new", "new", "to-dots", strings.Repeat("n", 256)} {
		var trees [2][]string
		var errs [2]error
		for i := range trees {
			dir := t.TempDir()
			links := map[string]string{"to-file": "file", "to-nothing": "nothing", "whole": dir + "/d/nothing", "chain": "to-nothing", "d/up": "../d/./nothing",
				"to-dir": "d", "loop": "loop", "round1": "round2", "round2": "round1", "to-no-dir": "no/file", "to-slash": "nothing/", "through": "d", "to-dots": "d/..",
				"l1": "file", "n1": "nothing"}
			for n := 2; n <= 41; n++ {
				for _, c := range "ln" {
					links[fmt.Sprintf("%c%d", c, n)] = fmt.Sprintf("%c%d", c, n-1)
				}
			}
			err := errors.Join(os.Mkdir(dir+"/d", 0o777), os.WriteFile(dir+"/file", []byte("old"), 0o666))
			for name, to := range links {
				err = errors.Join(err, os.Symlink(to, filepath.Join(dir, name)))
			}
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				errs[i] = os.WriteFile(dir+"/"+at, []byte("new"), 0o666)
			} else {
				errs[i] = write(dir+"/"+at, 0o666, strings.NewReader("new"))
			}
			trees[i] = tree(t, dir)
		}
		var errno [2]syscall.Errno
		errors.As(errs[0], &errno[0])
		errors.As(errs[1], &errno[1])
		if errno[0] != errno[1] || (errs[0] == nil) != (errs[1] == nil) || !slices.Equal(trees[0], trees[1]) {
			t.Errorf("%s: a shell: %v, a write: %v\n%q\n%q", at, errs[0], errs[1], trees[0], trees[1])
		}
	}
}

// TestWriteNoFile: what is no regular file is not replaced by one, and the error says what it
// is; nor is made what the text of one of /proc's links reads like.
func TestWriteNoFile(t *testing.T) {
	dir := t.TempDir()
	gone, err := os.Create(dir + "/gone")
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	socket, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := errors.Join(os.Remove(dir+"/gone"), syscall.Mkfifo(dir+"/fifo", 0o666), os.Symlink("fifo", dir+"/to-fifo"),
		os.Symlink(fmt.Sprint("/proc/self/fd/", gone.Fd()), dir+"/to-gone")); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"fifo": "a fifo", "to-fifo": "a fifo", "socket": "a socket", "to-gone": "no name"}
	// A device of the test's own, where it may make one: the machine's would be gone if it was replaced.
	if syscall.Mknod(dir+"/device", syscall.S_IFCHR|0o666, 1<<8|3) == nil {
		all["device"] = "a device"
	}
	before := tree(t, dir)
	for at, want := range all {
		if err := write(dir+"/"+at, 0o666, strings.NewReader("new")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", at, err, want)
		}
	}
	if after := tree(t, dir); !slices.Equal(after, before) {
		t.Errorf("%q, before %q", after, before)
	}
}

// TestWriteMoved: whoever moves the directory away before the file has its name gets the whole
// file, or nothing of one that failed.
func TestWriteMoved(t *testing.T) {
	was := named
	defer func() { named = was }()
	for _, linked := range []bool{true, false} {
		for _, fails := range []bool{true, false} {
			dir := t.TempDir()
			if err := os.Mkdir(dir+"/d", 0o777); err != nil {
				t.Fatal(err)
			}
			named = func(f, at *os.File, name string) error {
				err := error(syscall.EXDEV)
				if linked {
					err = was(f, at, name)
				}
				if fails {
					os.Mkdir(dir+"/d/f", 0o777)
				}
				if merr := os.Rename(dir+"/d", dir+"/moved"); merr != nil {
					t.Error(merr)
				}
				return err
			}
			err := write(dir+"/d/f", 0o666, strings.NewReader("new"))
			want := []string{" d--------- ", "/moved d--------- ", "/moved/f ---------- new"}
			if fails {
				want[2] = "/moved/f d--------- "
			}
			if got := tree(t, dir); (err != nil) != fails || !slices.Equal(got, want) {
				t.Errorf("linked %t, fails %t: %v, %q", linked, fails, err, got)
			}
		}
	}
}

// TestWriteLeavesNothing: as long as the directory is moved away again and again, nothing but
// whole files is in any of them.
func TestWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
				os.Mkdir(dir+"/d", 0o777)
				os.Rename(dir+"/d", fmt.Sprint(dir, "/kept", n))
			}
		}
	}()
	for stop := time.Now().Add(time.Second); time.Now().Before(stop); {
		write(dir+"/d/f", 0o666, strings.NewReader("new")) // it may fail, as the directory is not there
	}
	close(done)
	<-ended
	for _, f := range tree(t, dir) {
		if !strings.HasSuffix(f, "/f ---------- new") && !strings.HasSuffix(f, " d--------- ") {
			t.Errorf("is left: %q", f)
		}
	}
}
