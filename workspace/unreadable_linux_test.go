package workspace

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ordinary gives a world to a user whom modes hold, and is that user for as long as a
// function runs.
func (w *world) ordinary(as func()) {
	w.Helper()
	const user = 65534
	dir := filepath.Dir(w.ws)
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, user, user))
		})); err != nil {
			w.Fatal(err)
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		unix.SetfsgidRetGid(user)
		unix.SetfsuidRetUid(user)
		defer unix.SetfsgidRetGid(0)
		defer unix.SetfsuidRetUid(0)
	}
	as()
}

// TestUnreadable: what a command or the workspace's owner takes the right to read or to
// search from does not keep the other changes from being kept, shown and made.
func TestUnreadable(t *testing.T) {
	for _, mode := range []fs.FileMode{0, 0o100, 0o200, 0o300, 0o400, 0o600} {
		w := newWorld(t)
		w.write(w.ws+"/d/old", "old")
		w.write(w.ws+"/gone/old", "old")
		w.write(w.ws+"/file/old", "old")
		w.write(w.ws+"/secret", "old")
		w.write(w.layer+"/new/f", "new")
		w.write(w.layer+"/new/sub/f", "new")
		w.write(w.layer+"/d/f", "new")
		w.write(w.layer+"/d/old", "changed")
		w.write(w.layer+"/file", "a file now")
		w.write(w.layer+"/good", "good")
		w.whiteout(w.layer + "/gone")
		w.whiteout(w.layer + "/secret")
		modes := []string{"layer/new/sub", "layer/new", "ws/d", "ws/gone", "ws/file", "ws/secret"}
		chmod := func(mode fs.FileMode) {
			for _, name := range modes {
				if err := os.Chmod(filepath.Join(filepath.Dir(w.ws), name), mode); err != nil {
					t.Fatal(err)
				}
			}
		}
		chmod(mode)
		w.ordinary(func() {
			set := w.collect()
			ws, err := set.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer ws.Close()
			list, err := set.Check(ws)
			if err != nil {
				t.Errorf("%04o: %v", mode, err)
			}
			for _, st := range list {
				if _, err := set.Patch(ws, st); err != nil {
					t.Errorf("%04o: patch of %s: %v", mode, st.Path, err)
				}
			}
			r, err := set.Apply(ws, Options{OnConflict: KeepOurs})
			if err != nil || r.Refused() {
				t.Errorf("%04o: %+v, %v", mode, r, err)
			}
			if again, err := set.Check(ws); err != nil || len(again) != len(list) {
				t.Errorf("%04o: checked again: %d of %d, %v", mode, len(again), len(list), err)
			}
		})
		for _, name := range []string{"layer/new", "layer/new/sub", "ws/new", "ws/new/sub"} {
			fi, err := os.Stat(filepath.Join(filepath.Dir(w.ws), name))
			if err != nil || fi.Mode().Perm() != mode {
				t.Errorf("%04o: %s has %v, %v", mode, name, fi, err)
			}
			if os.Geteuid() != 0 {
				os.Chmod(filepath.Join(filepath.Dir(w.ws), name), 0o700)
			}
		}
		modes = []string{"ws/d"}
		chmod(0o755)
		w.holds(w.ws+"/good", "good")
		w.holds(w.ws+"/new/f", "new")
		w.holds(w.ws+"/new/sub/f", "new")
		w.holds(w.ws+"/secret", "")
		w.holds(w.ws+"/d/old", "old") // nothing is known of what is there, so nothing of it goes
	}
}

// TestKeptInReplaced: a directory stays a directory if something in it stays, and the
// other changes are made.
func TestKeptInReplaced(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/d/x", "x")
	w.write(w.ws+"/d/y", "y")
	w.write(w.layer+"/d", "a file now")
	w.write(w.layer+"/z", "z")
	set := w.collect()
	w.write(w.ws+"/d/x", "theirs")
	r, err := w.apply(set, Options{OnConflict: KeepOurs})
	if err != nil || len(r.Kept) != 2 || len(r.Applied) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	w.holds(w.ws+"/d/x", "theirs")
	w.holds(w.ws+"/d/y", "")
	w.holds(w.ws+"/z", "z")
}

// TestOrder: a directory comes before what it holds, and after if it gives way, whatever
// other names there are.
func TestOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	for range 2000 {
		byPath := map[string]*Change{}
		for range 3 + r.IntN(40) {
			top := pick("a", "b") + pick("", "", "-c", " d", "0")
			c := &Change{Path: top, Kind: Added, New: &Node{Type: Dir}}
			below := &Change{Kind: Added, New: &Node{Type: File}}
			if byPath[top] != nil {
				c = byPath[top]
			} else if r.IntN(2) == 0 {
				c = &Change{Path: top, Kind: Replaced, Old: &Node{Type: Dir}, New: &Node{Type: File}}
			}
			if byPath[top] = c; c.Kind == Replaced {
				below = &Change{Kind: Deleted, Old: &Node{Type: File}}
			}
			below.Path = top + "/" + pick("x", "y", "-", "0")
			byPath[below.Path] = below
		}
		var list []*Change
		for _, c := range byPath {
			list = append(list, c)
		}
		slices.SortFunc(list, compare)
		for i, c := range list {
			dir, _ := split(c.Path)
			if dir == "" {
				continue
			}
			if at := slices.Index(list, byPath[dir]); (at < i) != (c.Kind == Added) {
				t.Fatalf("%s at %d, its directory at %d of %s", c.Path, i, at, paths(list))
			}
		}
	}
}

// TestPatchDirectories: a directory that comes or goes alone is in the diff, too.
func TestPatchDirectories(t *testing.T) {
	w := newWorld(t)
	for _, d := range []string{w.ws + "/empty", w.ws + "/replaced", w.layer + "/new", w.layer + "/one/two", w.layer + "/file"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.write(w.ws+"/file", "old\n")
	w.whiteout(w.layer + "/empty")
	w.write(w.layer+"/replaced", "new\n")
	w.write(w.layer+"/full/f", "new\n")
	set := w.collect()
	ws, err := set.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	list, err := set.Check(ws)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, st := range list {
		text, err := set.Patch(ws, st)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			if line[0] == '#' {
				got.WriteString(line)
			}
		}
	}
	want := "# empty/: the directory is removed\n# file/: a new directory\n# new/: a new directory\n# one/two/: a new directory\n# replaced/: the directory is removed\n"
	if got.String() != want {
		t.Errorf("%s\nwant\n%s", got.String(), want)
	}
}

// TestLent: an Apply that was killed had made directories writable; the next gives them
// their modes back, but for one that somebody gave another since.
func TestLent(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/d/f", "f")
	w.write(w.ws+"/e/f", "f")
	w.write(w.layer+"/d/f", "changed")
	for dir, mode := range map[string]fs.FileMode{"": 0o555, "/d": 0o555, "/e": 0o555} {
		if err := os.Chmod(w.ws+dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(w.layer+"/d", 0o555); err != nil {
		t.Fatal(err)
	}
	set := w.collect()
	for dir, now := range map[string]fs.FileMode{"": 0o755, "d": 0o755, "e": 0o750} {
		if err := errors.Join(set.lend(dir, 0o555), os.Chmod(filepath.Join(w.ws, dir), now)); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := w.apply(set, Options{}); err != nil || r.Refused() {
		t.Errorf("%+v, %v", r, err)
	}
	w.holds(w.ws+"/d/f", "changed")
	for dir, mode := range map[string]fs.FileMode{"": 0o555, "d": 0o555, "e": 0o750} {
		if fi, err := os.Stat(filepath.Join(w.ws, dir)); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%q: %v, %v; want %v", dir, fi, err, mode)
		}
		os.Chmod(filepath.Join(w.ws, dir), 0o755)
	}
}
