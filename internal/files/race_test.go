//go:build linux

package files

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// swapping exchanges two names for as long as a function runs, again and again,
// as a command in a shared workspace can.
func swapping(t *testing.T, long time.Duration, a, b string, during func() bool) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(done); <-ended }()
	for stop := time.Now().Add(long); time.Now().Before(stop); {
		if !during() {
			return
		}
	}
}

// TestPackStaysInside: what is swapped for a link while a tree is read leads to
// nothing outside of it.
func TestPackStaysInside(t *testing.T)     { packStaysInside(t, time.Second) }
func TestLongPackStaysInside(t *testing.T) { packStaysInside(t, 5*time.Second) }

func packStaysInside(t *testing.T, long time.Duration) {
	for name, link := range map[string]string{"directory": "../../outside", "file": "../../outside/secret"} {
		base := t.TempDir()
		tree, outside := filepath.Join(base, "ws/tree"), filepath.Join(base, "outside")
		for _, d := range []string{tree, outside} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		entry, other := filepath.Join(tree, "x"), filepath.Join(base, "ws/other")
		var err error
		if name == "file" {
			err = os.WriteFile(entry, []byte("harmless"), 0o644)
		} else if err = os.Mkdir(entry, 0o755); err == nil {
			err = os.WriteFile(filepath.Join(entry, "secret"), []byte("harmless"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("the host's"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(link, other); err != nil {
			t.Fatal(err)
		}
		swapping(t, long, entry, other, func() bool {
			var b bytes.Buffer
			Pack(&b, tree) // it may fail, but not read the secret
			r := tar.NewReader(&b)
			for {
				h, err := r.Next()
				if err != nil {
					return true
				}
				if body, _ := io.ReadAll(r); strings.Contains(string(body), "the host's") {
					t.Errorf("%s: %s holds what is outside", name, h.Name)
					return false
				}
			}
		})
	}
}

// TestExtractFollowsNothing: a directory that is swapped for a link while a tree
// is written does not lead elsewhere, not within the directory either: there lie
// what no command may write, .git/hooks for one.
func TestExtractFollowsNothing(t *testing.T)     { extractFollowsNothing(t, time.Second) }
func TestLongExtractFollowsNothing(t *testing.T) { extractFollowsNothing(t, 5*time.Second) }

func extractFollowsNothing(t *testing.T, long time.Duration) {
	dir := t.TempDir()
	protected, out, link := filepath.Join(dir, "protected"), filepath.Join(dir, "out"), filepath.Join(dir, "link")
	for _, d := range []string{protected, out} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("protected", link); err != nil {
		t.Fatal(err)
	}
	b := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "out/hook", Mode: 0o755}, tar.Header{Typeflag: tar.TypeDir, Name: "out/", Mode: 0o777},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "out/symlink", Linkname: "x"}, tar.Header{Typeflag: tar.TypeDir, Name: "out/sub/", Mode: 0o755}).Bytes()
	swapping(t, long, out, link, func() bool {
		Extract(dir, bytes.NewReader(b)) // it may fail, but not write there
		list, err := os.ReadDir(protected)
		if err != nil || len(list) > 0 {
			t.Errorf("written through a link: %v, %v", list, err)
			return false
		}
		if fi, err := os.Lstat(protected); err != nil || fi.Mode().Perm() != 0o755 {
			t.Errorf("the mode was changed through a link: %v, %v", fi.Mode(), err)
			return false
		}
		return true
	})
}
