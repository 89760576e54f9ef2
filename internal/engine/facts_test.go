package engine

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// IsLink says what Lstat says.
func TestIsLink(t *testing.T) {
	dir := t.TempDir()
	for name, to := range map[string]string{"file": filepath.Join(dir, "there"), "dangling": "nowhere", "long": strings.Repeat("x/", 2000) + "x", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "there"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, name := range []string{"file", "dangling", "long", "loop", "there", ".", "none", "there/below", "loop/below", "file/", strings.Repeat("n", 300)} {
		p := strings.TrimPrefix(dir, "/") + "/" + name
		fi, err := HostFS{}.Lstat(p)
		want := err == nil && fi.Mode()&fs.ModeSymlink != 0
		if got := (HostFS{}).IsLink(p); got != want {
			t.Errorf("%.20s: a link: %v, want %v", name, got, want)
		}
		if want {
			links++
		}
	}
	if links != 4 {
		t.Errorf("%d links, want 4", links)
	}
}
