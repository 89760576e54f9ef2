package workspace

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// exchanges exchanges two directories of the workspace, as the command of another run can.
func (w *world) exchanges(a, b string) {
	w.Helper()
	if err := unix.Renameat2(unix.AT_FDCWD, w.ws+"/"+a, unix.AT_FDCWD, w.ws+"/"+b, unix.RENAME_EXCHANGE); err != nil {
		w.Fatal(err)
	}
}

// checked is an applier with what it found.
func (w *world) checked(set *Set) (*applier, map[string]*Status) {
	w.Helper()
	ws, err := set.Open()
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { ws.Close() })
	v, err := set.view(ws)
	if err != nil {
		w.Fatal(err)
	}
	list, err := v.check()
	if err != nil {
		w.Fatal(err)
	}
	byPath := map[string]*Status{}
	for _, st := range list {
		if st.Protected != "" {
			w.Fatalf("%s is protected: %s", st.Path, st.Protected)
		}
		byPath[st.Path] = st
	}
	return &applier{w: ws, set: set, view: v, overwrite: true, unlinked: map[inode]bool{}}, byPath
}

// TestExchanged: a directory that was exchanged for one with a repository in it, after the
// changes were checked, gets no hook and no mode, and loses nothing. The control is the
// directory that was checked.
func TestExchanged(t *testing.T) {
	for _, exchanged := range []bool{true, false} {
		w := newWorld(t)
		for _, name := range []string{"HEAD", "objects/x", "refs/x", "hooks/mine"} {
			w.write(w.ws+"/holder/repo/"+name, "mine")
		}
		w.write(w.ws+"/swap/repo/hooks/mine", "mine")
		w.write(w.ws+"/swap/gone/f", "old")
		w.write(w.ws+"/holder/gone/.git/hooks/mine", "mine")
		w.write(w.layer+"/swap/repo/hooks/post-update", "evil")
		if err := os.Chmod(w.layer+"/swap/repo/hooks", 0o777); err != nil {
			t.Fatal(err)
		}
		w.whiteout(w.layer + "/swap/gone")
		set := w.collect(".git/", ".git/hooks")
		w.write(w.ws+"/swap/gone/new", "the host's")
		a, found := w.checked(set)
		if exchanged {
			w.exchanges("swap", "holder")
		}
		for path, do := range map[string]func(st *Status) error{
			"swap/repo/hooks/post-update": func(st *Status) error {
				err := a.put(st, &Report{})
				_, perr := a.place(&Report{})
				return errors.Join(err, perr)
			},
			"swap/repo/hooks": a.mode,
			"swap/gone": func(st *Status) error {
				return errors.Join(a.remove(found["swap/gone/f"]), a.remove(st))
			},
		} {
			if err := do(found[path]); (err != nil) != exchanged {
				t.Errorf("%s, exchanged %t: %v", path, exchanged, err)
			}
		}
		_, err := os.Lstat(w.ws + "/swap/repo/hooks/post-update")
		if fi, ferr := os.Lstat(w.ws + "/swap/repo/hooks"); (err == nil) == exchanged || ferr != nil || (fi.Mode().Perm() == 0o777) == exchanged {
			t.Errorf("exchanged %t: %v, %v, %v", exchanged, err, fi.Mode(), ferr)
		}
		if _, err := os.Lstat(w.ws + "/swap/gone"); (err == nil) != exchanged {
			t.Errorf("exchanged %t: %v", exchanged, err)
		}
		if exchanged {
			w.holds(w.ws+"/swap/gone/.git/hooks/mine", "mine")
		}
	}
}

// TestCameProtected: what came into a directory after the check is not removed with it, if
// it is protected.
func TestCameProtected(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/d/f", "old")
	w.whiteout(w.layer + "/d")
	a, found := w.checked(w.collect(".git/hooks"))
	w.write(w.ws+"/d/sub/.git/hooks/mine", "mine")
	if err := errors.Join(a.remove(found["d/f"]), a.remove(found["d"])); !errors.Is(err, errRace) {
		t.Errorf("%v", err)
	}
	w.holds(w.ws+"/d/sub/.git/hooks/mine", "mine")
}

// TestDeepThere: a tree of the workspace that no path reaches the end of does not keep the
// other changes from being shown and made.
func TestDeepThere(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/a", "old")
	fd, err := unix.Open(w.ws, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 250)
	for range 20 {
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := openDir(fd, name)
		unix.Close(fd)
		if fd = next; err != nil {
			t.Fatal(err)
		}
	}
	unix.Close(fd)
	w.write(w.layer+"/a", "new")
	w.whiteout(w.layer + "/" + name)
	set := w.collect(".git/hooks")
	for _, how := range []OnConflict{Stop, Overwrite, KeepOurs} {
		r, err := w.apply(set, Options{OnConflict: how})
		if err != nil || r.Refused() != (how != KeepOurs) {
			t.Fatalf("%q: %v, %+v", how, err, r)
		}
	}
	w.holds(w.ws+"/a", "new")
}

// TestTopUnreadable: a command that takes the right to read from the workspace itself does
// not lose its changes.
func TestTopUnreadable(t *testing.T) {
	for _, mode := range []os.FileMode{0, 0o100, 0o200, 0o300, 0o400, 0o600} {
		w := newWorld(t)
		w.write(w.layer+"/d/f", "new")
		w.take()
		layer, err := os.Open(w.layer)
		if err != nil {
			t.Fatal(err)
		}
		defer layer.Close()
		if err := layer.Chmod(mode); err != nil {
			t.Fatal(err)
		}
		w.ordinary(func() {
			set, err := Collect(w.store, Info{ID: "x"}, w.base, layer, 1<<20, false)
			if err != nil || paths(set.Changes) != "added d;added d/f;" {
				t.Errorf("%04o: %v, %v", mode, set, err)
			}
		})
		if fi, err := layer.Stat(); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%04o: %v, %v", mode, fi.Mode(), err)
		}
	}
}

// TestSumsBounded: the workspace's files are not read without a bound when the sandbox has
// ended: an earlier command can have made some that claim to be of any size. The control is
// a file of a usual size.
func TestSumsBounded(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"huge", "cut", "small"} {
		w.write(w.ws+"/"+name, "old")
		size := int64(8 << 30)
		if name == "small" {
			size = 8 << 20
		}
		if err := os.Truncate(w.ws+"/"+name, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(w.ws+"/huge", w.ws+"/second"); err != nil {
		t.Fatal(err)
	}
	w.whiteout(w.layer + "/huge")
	w.write(w.layer+"/cut", "")
	w.write(w.layer+"/small", "")
	set := w.collect()
	for _, c := range set.Changes {
		if (c.Old.Sum != "") != (c.Path == "small") {
			t.Errorf("%s: %q", c.Path, c.Old.Sum)
		}
	}
	if r, err := w.apply(set, Options{}); err != nil || len(r.Applied) != 3 {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestAppliedOnce: a set that a process is at work on is not applied by another, which would
// give back modes of directories that the first one has taken.
func TestAppliedOnce(t *testing.T) {
	w := newWorld(t)
	w.write(w.layer+"/a", "new")
	set := w.collect()
	lock, err := set.lock()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.apply(set, Options{}); err == nil {
		t.Errorf("%+v", r)
	}
	w.holds(w.ws+"/a", "")
	lock.Close()
	if _, err := w.apply(set, Options{}); err != nil {
		t.Error(err)
	}
	w.holds(w.ws+"/a", "new")
}

// TestAgainReplacedMode: a directory in the place of a file, that an Apply which was killed
// made and gave no mode, is no conflict. The control is a directory of somebody else's.
func TestAgainReplacedMode(t *testing.T) {
	for mode, again := range map[os.FileMode]bool{0o700: true, 0o755: true, 0o711: false} {
		w := newWorld(t)
		w.write(w.ws+"/a", "a file")
		w.write(w.layer+"/a/f", "new")
		if err := os.Chmod(w.layer+"/a", 0o555); err != nil {
			t.Fatal(err)
		}
		set := w.collect()
		if err := errors.Join(os.Remove(w.ws+"/a"), os.Mkdir(w.ws+"/a", mode)); err != nil {
			t.Fatal(err)
		}
		r, err := w.apply(set, Options{})
		fi, serr := os.Stat(w.ws + "/a")
		if err != nil || serr != nil || r.Refused() == again || (fi.Mode().Perm() == 0o555) != again {
			t.Errorf("%04o: %v, %+v, %v", mode, err, r, fi.Mode())
		}
	}
}

// TestReplacedMeanwhile: who reads a set of a running session, which another process
// replaces meanwhile, gets none of the new one's content for a file of the old one.
func TestReplacedMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.write(w.layer+"/b", "content of b")
	set := w.collect()
	w.write(w.layer+"/a", "content of a")
	w.collect()
	ws, err := set.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	if text, err := ws.proposed(set, set.Changes[0].New); err == nil && text != "content of b" {
		t.Errorf("%q", text)
	}
}

// TestFoldedRepository: on a file system that ignores letter case, Git takes these names for a
// repository. The control lacks one of them.
func TestFoldedRepository(t *testing.T) {
	for last, refused := range map[string]bool{"Refs": true, "Other": false} {
		w := newWorld(t)
		for _, name := range []string{"b/Head", "b/Objects/x", "B/Config", "B/" + last + "/x"} {
			w.write(w.layer+"/"+name, "x")
		}
		r, err := w.apply(w.collect(".git/", ".git/config", ".git/hooks"), Options{})
		if err != nil || r.Refused() != refused {
			t.Errorf("%s: %v, %+v", last, err, r)
		}
	}
}
