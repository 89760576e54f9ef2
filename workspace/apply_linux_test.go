package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A world is a workspace, a layer that a sandbox could have left of it, and a place
// for sets.
type world struct {
	*testing.T
	ws, layer, outside string
	store              *Store
	base               *Base
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{T: t, ws: dir + "/ws", layer: dir + "/layer", outside: dir + "/outside"}
	for _, d := range []string{w.ws, w.layer, w.outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.write(w.outside+"/canary", "canary")
	var err error
	if w.store, err = OpenStore(dir + "/state/changes"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.store.Close()
		// What a test made unreadable an ordinary user could not remove.
		filepath.WalkDir(dir, func(path string, d os.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				os.Chmod(path, 0o755)
			}
			return nil
		})
	})
	return w
}

func (w *world) write(path, content string) {
	w.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		w.Fatal(err)
	}
}

// whiteout removes a name, as overlayfs does; anybody may make one (Linux 5.8).
func (w *world) whiteout(path string) {
	w.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), unix.Mknod(path, unix.S_IFCHR, 0)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) opaque(path string) {
	w.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o755), unix.Setxattr(path, "user.overlay.opaque", []byte("y"), 0)); err != nil {
		w.Fatal(err)
	}
}

// take takes the base of the workspace: what comes after is another's.
func (w *world) take() {
	w.Helper()
	var err error
	if w.base, err = Take(w.ws); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { w.base.Close() })
}

func (w *world) collect(protect ...string) *Set {
	w.Helper()
	if w.base == nil {
		w.take()
	}
	f, err := os.Open(w.layer)
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	set, err := Collect(w.store, Info{ID: "x", Protect: protect}, w.base, f, 1<<20, true)
	if err != nil {
		w.Fatal(err)
	}
	if set == nil {
		w.Fatal("no changes")
	}
	// As another process would read it.
	if set, err = w.store.Load("x"); err != nil {
		w.Fatal(err)
	}
	return set
}

func (w *world) apply(set *Set, o Options) (*Report, error) {
	w.Helper()
	ws, err := set.Open()
	if err != nil {
		w.Fatal(err)
	}
	defer ws.Close()
	return set.Apply(ws, o)
}

func (w *world) holds(path, content string) {
	w.Helper()
	b, err := os.ReadFile(path)
	if content == "" && !errors.Is(err, os.ErrNotExist) || content != "" && string(b) != content {
		w.Errorf("%s holds %q, %v; want %q", path, b, err, content)
	}
}

func paths(list []*Change) string {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "%s %s;", c.Kind, c.Path)
	}
	return b.String()
}

func TestCollect(t *testing.T) {
	w := newWorld(t)
	for _, f := range []string{"same", "changed", "gone/a", "gone/b/c", "opaque/old", "opaque/kept", "dir/f", "file", "mode", "merged/f"} {
		w.write(w.ws+"/"+f, f)
	}
	w.write(w.layer+"/same", "same")
	w.write(w.layer+"/changed", "is changed")
	w.whiteout(w.layer + "/gone")
	w.whiteout(w.layer + "/never-was")
	w.opaque(w.layer + "/opaque")
	w.write(w.layer+"/opaque/kept", "opaque/kept")
	w.write(w.layer+"/opaque/new", "n")
	w.write(w.layer+"/dir", "a file now")
	w.write(w.layer+"/file/f", "a directory now")
	w.write(w.layer+"/mode", "mode")
	os.Chmod(w.layer+"/mode", 0o755)
	w.write(w.layer+"/merged/g", "g")
	w.take()
	got := paths(w.collect().Changes)
	want := "modified changed;deleted dir/f;replaced dir;replaced file;added file/f;deleted gone;deleted gone/a;deleted gone/b;deleted gone/b/c;added merged/g;modified mode;added opaque/new;deleted opaque/old;"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestPrivilege: bits that give privilege do not come out of a layer.
func TestPrivilege(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/old", "old")
	for _, f := range []string{"suid", "sgid", "old"} {
		w.write(w.layer+"/"+f, "#!")
	}
	os.Mkdir(w.layer+"/d", 0o755)
	for f, mode := range map[string]uint32{"suid": 0o4755, "sgid": 0o2755, "old": 0o6777, "d": 0o3777} {
		if err := unix.Chmod(w.layer+"/"+f, mode); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.apply(w.collect(), Options{}); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]uint32{"suid": 0o755, "sgid": 0o755, "old": 0o777, "d": 0o777} {
		var st unix.Stat_t
		if err := unix.Lstat(w.ws+"/"+f, &st); err != nil || st.Mode&0o7777 != want {
			t.Errorf("%s: %v %o, want %o", f, err, st.Mode&0o7777, want)
		}
	}
}

// TestNoEscape: whatever the workspace has become, nothing is written outside, or
// through a link, or blocks.
func TestNoEscape(t *testing.T) {
	for name, trap := range map[string]func(w *world) error{
		"a link for the directory": func(w *world) error { return os.Symlink(w.outside, w.ws+"/d") },
		"a relative link":          func(w *world) error { return os.Symlink("../outside", w.ws+"/d") },
		"a link inside":            func(w *world) error { return errors.Join(os.Mkdir(w.ws+"/e", 0o755), os.Symlink("e", w.ws+"/d")) },
		"a FIFO":                   func(w *world) error { return unix.Mkfifo(w.ws+"/d", 0o644) },
		"a link for the file": func(w *world) error {
			return errors.Join(os.Mkdir(w.ws+"/d", 0o755), os.Symlink("../../outside/canary", w.ws+"/d/f"))
		},
		"a FIFO for the file": func(w *world) error { return errors.Join(os.Mkdir(w.ws+"/d", 0o755), unix.Mkfifo(w.ws+"/d/f", 0o644)) },
		"a hard link": func(w *world) error {
			return errors.Join(os.Mkdir(w.ws+"/d", 0o755), os.Link(w.outside+"/canary", w.ws+"/d/f"))
		},
	} {
		for _, how := range []OnConflict{Stop, KeepOurs, Overwrite} {
			t.Run(name+"/"+string(how), func(t *testing.T) {
				w := newWorld(t)
				w.write(w.ws+"/d/f", "old")
				w.write(w.layer+"/d/f", "new")
				w.write(w.layer+"/d/g", "g")
				set := w.collect()
				if err := errors.Join(os.RemoveAll(w.ws+"/d"), trap(w)); err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					r, err := w.apply(set, Options{OnConflict: how})
					if how == Stop && (err != nil || !r.Refused()) {
						t.Errorf("%+v %v", r, err)
					}
				}()
				select {
				case <-done:
				case <-time.After(20 * time.Second):
					t.Fatal("it waits")
				}
				w.holds(w.outside+"/canary", "canary")
				w.holds(w.outside+"/f", "")
				w.holds(w.outside+"/g", "")
				w.holds(w.ws+"/e/g", "")
			})
		}
	}
}

// TestNoEscapeRace: a directory of the workspace is swapped with a link to outside
// all the time that a set is applied.
func TestNoEscapeRace(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/d/f", "old")
	if err := os.Symlink(w.outside, w.ws+"/link"); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		w.write(fmt.Sprintf("%s/d/f%d", w.layer, i), "new")
	}
	w.write(w.layer+"/d/f", "new")
	set := w.collect()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, w.ws+"/d", unix.AT_FDCWD, w.ws+"/link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	failed := 0
	for range 200 {
		if r, err := w.apply(set, Options{OnConflict: Overwrite}); err != nil || r.Refused() || len(r.Kept) > 0 {
			failed++
		}
		for i := range 20 {
			os.Remove(fmt.Sprintf("%s/d/f%d", w.ws, i))
		}
	}
	close(stop)
	<-stopped
	list, err := os.ReadDir(w.outside)
	if err != nil || len(list) != 1 {
		t.Errorf("outside holds %v, %v", list, err)
	}
	w.holds(w.outside+"/canary", "canary")
	if failed == 0 {
		t.Error("the link was never met: this proves nothing")
	}
}

// TestInterrupted: what was applied in part is applied to its end the next time.
func TestInterrupted(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		w.write(fmt.Sprintf("%s/old%d", w.ws, i), "o")
		w.whiteout(fmt.Sprintf("%s/old%d", w.layer, i))
		w.write(fmt.Sprintf("%s/new%d", w.layer, i), fmt.Sprint("n", i))
	}
	set := w.collect()
	// A blob is missing half way, as if the disk had failed.
	for _, c := range set.Changes {
		if c.Path == "new5" {
			c.New.Blob += "x"
			r, err := w.apply(set, Options{})
			for _, st := range r.Conflicts {
				t.Errorf("%s: %s; base %v, changed %v", st.Path, st.Why, set.Taken.UnixNano(), st.Now.ChangeTime)
			}
			if err == nil || len(r.Remaining) != 5 {
				t.Fatalf("%+v %v", r, err)
			}
			w.holds(w.ws+"/new4", "n4")
			w.holds(w.ws+"/new6", "")
			c.New.Blob = strings.TrimSuffix(c.New.Blob, "x")
		}
	}
	r, err := w.apply(set, Options{})
	if err != nil || r.Done != 15 || len(r.Applied) != 5 {
		t.Fatalf("%+v %v", r, err)
	}
	for i := range 10 {
		w.holds(fmt.Sprintf("%s/old%d", w.ws, i), "")
		w.holds(fmt.Sprintf("%s/new%d", w.ws, i), fmt.Sprint("n", i))
	}
	if list, _ := filepath.Glob(w.ws + "/.sbxrun-*"); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
}

// TestInherit: a file that is changed keeps its owner, its times of the sandbox and
// what users attached to it.
func TestInherit(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/f", "old")
	if err := unix.Setxattr(w.ws+"/f", "user.note", []byte("mine"), 0); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(w.ws+"/f", 1234, 1234); err != nil {
			t.Fatal(err)
		}
	}
	w.write(w.layer+"/f", "new")
	when := time.Unix(1_600_000_000, 123456789)
	os.Chtimes(w.layer+"/f", when, when)
	if _, err := w.apply(w.collect(), Options{}); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(w.ws + "/f")
	if err != nil || !fi.ModTime().Equal(when) || os.Getuid() == 0 && fi.Sys().(*syscall.Stat_t).Uid != 1234 {
		t.Errorf("%+v %v", fi, err)
	}
	var v [16]byte
	if n, err := unix.Getxattr(w.ws+"/f", "user.note", v[:]); err != nil || string(v[:n]) != "mine" {
		t.Errorf("%q %v", v[:max(n, 0)], err)
	}
}

// TestStore: a store that others can get at is refused, and a set's name is no
// path.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o755, 0o770, 0o701} {
		os.Mkdir(dir+"/s", 0o700)
		os.Chmod(dir+"/s", mode)
		var e *StoreError
		if _, err := OpenStore(dir + "/s"); !errors.As(err, &e) {
			t.Errorf("%o: %v", mode, err)
		}
	}
	os.Symlink(t.TempDir(), dir+"/link")
	if _, err := OpenStore(dir + "/link"); err == nil {
		t.Error("a link was followed")
	}
	w := newWorld(t)
	w.write(w.layer+"/f", "1")
	w.collect()
	for _, id := range []string{"", ".", "..", "../x", "x/..", "/x", "x\x00", ".new-x", strings.Repeat("x", 10<<10)} {
		if _, err := w.store.Load(id); err == nil {
			t.Errorf("loaded %.20q", id)
		}
		if err := w.store.Remove(id); err == nil {
			t.Errorf("removed %.20q", id)
		}
	}
	w.write(w.store.dir+"/broken/changes.json", "{")
	if list, err := w.store.List(); len(list) != 1 || err == nil {
		t.Errorf("%v %v", list, err)
	}
	if _, err := w.store.create("x", false); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
}

// TestAnotherDirectory: a set is of one directory, not of its name.
func TestAnotherDirectory(t *testing.T) {
	w := newWorld(t)
	w.write(w.layer+"/f", "1")
	set := w.collect()
	if err := errors.Join(os.Rename(w.ws, w.ws+".old"), os.Mkdir(w.ws, 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := set.Open(); err == nil {
		t.Error("opened another directory")
	}
	os.Remove(w.ws)
	os.Symlink(w.ws+".old", w.ws)
	if _, err := set.Open(); err == nil {
		t.Error("opened through a link")
	}
}

// TestMovedIn: a directory that came while the sandbox ran is none that it removed.
func TestMovedIn(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/dir/f", "f")
	w.write(w.outside+"/precious/old", "old")
	w.whiteout(w.layer + "/dir")
	w.take()
	if err := os.Rename(w.outside+"/precious", w.ws+"/dir/precious"); err != nil {
		t.Fatal(err)
	}
	set := w.collect()
	r, err := w.apply(set, Options{})
	if err != nil || !r.Refused() {
		t.Errorf("%+v, %v", r, err)
	}
	w.holds(w.ws+"/dir/precious/old", "old")
	w.apply(set, Options{OnConflict: KeepOurs})
	w.holds(w.ws+"/dir/precious/old", "old")
	w.holds(w.ws+"/dir/f", "")
}

// TestMovedOver: what took the place of a directory while the sandbox ran is not what it
// changed.
func TestMovedOver(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/dir/f", "f")
	w.write(w.outside+"/precious/f", "precious")
	w.write(w.layer+"/dir/f", "changed")
	w.take()
	os.Rename(w.ws+"/dir", w.outside+"/was")
	if err := os.Rename(w.outside+"/precious", w.ws+"/dir"); err != nil {
		t.Fatal(err)
	}
	r, err := w.apply(w.collect(), Options{})
	if err != nil || !r.Refused() {
		t.Errorf("%+v, %v", r, err)
	}
	w.holds(w.ws+"/dir/f", "precious")
}

func failOnce(w *world, set *Set, path string, o Options) *Report {
	w.Helper()
	var of *Node
	for _, c := range set.Changes {
		if c.Path == path {
			of = c.New
		}
	}
	was := of.Blob
	of.Blob = "none"
	if r, err := w.apply(set, o); err == nil {
		w.Fatalf("applied: %+v", r)
	}
	of.Blob = was
	r, err := w.apply(set, o)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// TestAgainReplaced: what was removed to make room counts as done.
func TestAgainReplaced(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/dir/f", "f")
	w.write(w.ws+"/file", "file")
	w.write(w.layer+"/a", "a")
	w.write(w.layer+"/dir", "a file now")
	w.write(w.layer+"/file/f", "a directory now")
	r := failOnce(w, w.collect(), "a", Options{})
	if r.Refused() {
		t.Errorf("refused: %v %q", r.Conflicts[0].Path, r.Conflicts[0].Why)
	}
	w.holds(w.ws+"/dir", "a file now")
	w.holds(w.ws+"/file/f", "a directory now")
}

// TestAgainMode: a directory that was made gets its mode the second time.
func TestAgainMode(t *testing.T) {
	w := newWorld(t)
	dirs := map[string]os.FileMode{"dir": 0o755, "sealed": 0o555, "sealed/sub": 0o750}
	for dir := range dirs {
		w.write(w.layer+"/"+dir+"/f", "f")
	}
	for dir, mode := range dirs {
		os.Chmod(w.layer+"/"+dir, mode)
	}
	t.Cleanup(func() { os.Chmod(w.layer+"/sealed", 0o755); os.Chmod(w.ws+"/sealed", 0o755) })
	failOnce(w, w.collect(), "sealed/sub/f", Options{})
	for dir, mode := range dirs {
		if fi, err := os.Stat(w.ws + "/" + dir); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %v", dir, fi, err, mode)
		}
	}
}

// TestOverwriteBelow: a directory that the workspace has not any more comes again, and
// one that is something else by now keeps anything from being changed.
func TestOverwriteBelow(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"removed": func(w *world) { os.RemoveAll(w.ws + "/dir") },
		"a link": func(w *world) {
			os.RemoveAll(w.ws + "/dir")
			os.Symlink(w.outside, w.ws+"/dir")
		},
		"a file": func(w *world) {
			os.RemoveAll(w.ws + "/dir")
			w.write(w.ws+"/dir", "file")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.write(w.ws+"/dir/sub/f", "f")
			w.write(w.layer+"/a", "a")
			w.write(w.layer+"/dir/sub/f", "changed")
			w.write(w.layer+"/dir/sub/g", "g")
			set := w.collect()
			spoil(w)
			r, err := w.apply(set, Options{OnConflict: Overwrite})
			if name == "removed" {
				if err != nil || r.Refused() {
					t.Errorf("%+v, %v", r, err)
				}
				w.holds(w.ws+"/dir/sub/f", "changed")
				w.holds(w.ws+"/dir/sub/g", "g")
				return
			}
			if err != nil || !r.Refused() {
				t.Errorf("%+v, %v", r, err)
			}
			w.holds(w.ws+"/a", "")
			w.holds(w.outside+"/sub/f", "")
		})
	}
}

// TestHardLinks: names of one file of the workspace's change together, and one that
// is outside keeps what it holds.
func TestHardLinks(t *testing.T) {
	w := newWorld(t)
	w.write(w.outside+"/linked", "old")
	names := []string{"changed1", "changed2", "deleted1", "deleted2", "dir/deleted3", "became"}
	for _, name := range append(names, "dir/other") {
		if err := errors.Join(os.MkdirAll(filepath.Dir(w.ws+"/"+name), 0o755), os.Link(w.outside+"/linked", w.ws+"/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	w.take()
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "changed"):
			w.write(w.layer+"/"+name, "new "+name)
		case name == "became":
			w.write(w.layer+"/became/in", "new")
		default:
			w.whiteout(w.layer + "/" + name)
		}
	}
	set := w.collect()
	r, err := w.apply(set, Options{})
	if err != nil || r.Refused() {
		t.Fatalf("%+v, %v", r, err)
	}
	w.holds(w.ws+"/changed1", "new changed1")
	w.holds(w.ws+"/changed2", "new changed2")
	for _, name := range names[2:5] {
		w.holds(w.ws+"/"+name, "")
	}
	w.holds(w.ws+"/became/in", "new")
	w.holds(w.ws+"/dir/other", "old")
	w.holds(w.outside+"/linked", "old")
}

// TestHardLinksAgain: an Apply that was killed when it had removed one name of a file
// goes on with the others. One that was changed meanwhile is a conflict.
func TestHardLinksAgain(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/a", "old")
	for _, name := range []string{"b", "c", "d"} {
		if err := os.Link(w.ws+"/a", w.ws+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		w.whiteout(w.layer + "/" + name)
	}
	w.write(w.layer+"/c/in", "new")
	if err := os.Symlink("x", w.layer+"/d"); err != nil {
		t.Fatal(err)
	}
	set := w.collect()
	if err := os.Remove(w.ws + "/a"); err != nil {
		t.Fatal(err)
	}
	w.write(w.ws+"/b", "its owner's")
	if r, err := w.apply(set, Options{}); err != nil || len(r.Conflicts) != 3 {
		t.Fatalf("changed: %+v, %v", r, err)
	}
	w.write(w.ws+"/b", "old")
	r, err := w.apply(set, Options{})
	if err != nil || r.Refused() {
		t.Fatalf("%+v, %v", r, err)
	}
	w.holds(w.ws+"/b", "")
	w.holds(w.ws+"/c/in", "new")
}

// TestObeyed: places that the caller names are protected, whatever the set's patterns
// are, with what is below and what leads there; what lies beside them is not.
func TestObeyed(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/link/f", "f")
	if err := errors.Join(os.Symlink("other", w.ws+"/conf"), os.MkdirAll(w.ws+"/way/sbx", 0o755), os.MkdirAll(w.ws+"/gone/sbx", 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"conf/sbx/file", "Way/sbx/file", "way/sbx/file", "way/neighbour", "bin/prog", "bin/neighbour", "made/neighbour", "sbx/file"} {
		w.write(w.layer+"/"+name, "new")
	}
	w.whiteout(w.layer + "/gone")
	w.opaque(w.layer + "/conf")
	if err := errors.Join(os.Symlink("/tmp", w.layer+"/made/sbx")); err != nil {
		t.Fatal(err)
	}
	set := w.collect()
	ws, err := set.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	for _, place := range []string{"conf/sbx", "way/sbx", "gone/sbx", "bin/prog", "made/sbx"} {
		ws.Obeyed = append(ws.Obeyed, w.ws+"/"+place)
	}
	r, err := set.Apply(ws, Options{OnConflict: Overwrite, Allow: []string{"way"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, st := range r.Protected {
		got = append(got, st.Path)
	}
	const want = "Way/sbx Way/sbx/file bin/prog conf conf/sbx conf/sbx/file gone gone/sbx made/sbx way/sbx/file"
	if strings.Join(got, " ") != want {
		t.Errorf("%q, want %q", got, want)
	}
	w.holds(w.ws+"/way/neighbour", "")
	var allow []string
	for _, st := range r.Protected {
		allow = append(allow, st.Protected)
	}
	if r, err := set.Apply(ws, Options{OnConflict: Overwrite, Allow: allow}); err != nil || r.Refused() {
		t.Errorf("what was allowed: %+v, %v", r, err)
	}
	w.holds(w.ws+"/bin/prog", "new")
}

// TestOverwriteHolds: what goes with a directory, and the sandbox did not know of, is
// protected as if it had been named.
func TestOverwriteHolds(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"gone/f", "became/f", "plain/f"} {
		w.write(w.ws+"/"+name, "f")
	}
	w.take()
	for _, dir := range []string{"gone", "plain"} {
		w.whiteout(w.layer + "/" + dir)
	}
	w.write(w.layer+"/became", "a file now")
	w.write(w.layer+"/came", "a file")
	set := w.collect(".git/hooks", ".vscode")
	for _, name := range []string{"gone/sub/.git/hooks/pre-commit", "became/.vscode/settings.json", "came/.vscode/x", "plain/new"} {
		w.write(w.ws+"/"+name, "its owner's")
	}
	r, err := w.apply(set, Options{OnConflict: Overwrite})
	if err != nil || len(r.Protected) != 3 || r.Protected[0].Path == "plain" {
		t.Fatalf("%+v, %v", r, err)
	}
	w.holds(w.ws+"/gone/sub/.git/hooks/pre-commit", "its owner's")
	w.holds(w.ws+"/plain/new", "its owner's")
	if r, err := w.apply(set, Options{OnConflict: Overwrite, Allow: []string{"all"}}); err != nil || r.Refused() {
		t.Fatalf("%+v, %v", r, err)
	}
	w.holds(w.ws+"/gone/sub/.git/hooks/pre-commit", "")
	w.holds(w.ws+"/came", "a file")
}

// TestKeptRepository: a name that the sandbox took away, and the workspace keeps, makes
// a repository of what the sandbox put beside it.
func TestKeptRepository(t *testing.T) {
	for _, changed := range []bool{false, true} {
		w := newWorld(t)
		w.write(w.ws+"/d/HEAD", "ref: refs/heads/old\n")
		w.take()
		w.whiteout(w.layer + "/d/HEAD")
		for _, name := range []string{"config", "objects/x", "refs/x"} {
			w.write(w.layer+"/d/"+name, "planted")
		}
		set := w.collect(".git/hooks", ".git/config")
		if changed {
			w.write(w.ws+"/d/HEAD", "ref: refs/heads/main\n")
		}
		r, err := w.apply(set, Options{OnConflict: KeepOurs})
		if err != nil || !r.Refused() {
			t.Errorf("%v: %+v, %v", changed, r, err)
		}
		w.holds(w.ws+"/d/config", "")
	}
}

// TestInRepository: where the workspace is a repository, or a directory of settings, its
// own name counts; and no symbolic link comes into a repository. What is beside them does.
func TestInRepository(t *testing.T) {
	patterns := []string{".git/", ".git/hooks", ".git/config", ".config/fish"}
	for _, c := range []struct{ ws, there, config, other string }{
		{"bare", "HEAD", "hooks/pre-commit", "description"},
		{".git", "x", "config", "info/exclude"},
		{".config", "x", "fish/config.fish", "fisher/x"},
		{"ws", ".git/HEAD", ".git/hooks/pre-commit", ".git/info/exclude"},
		{"ws", "sub.git/HEAD", "sub.git/config", "sub.git/description"},
	} {
		w := newWorld(t)
		ws := filepath.Join(filepath.Dir(w.ws), "in", c.ws)
		w.ws = ws
		at := filepath.Dir(ws + "/" + c.there)
		for _, name := range []string{"objects/x", "refs/x", filepath.Base(c.there)} {
			w.write(at+"/"+name, "ref: refs/heads/main\n")
		}
		w.take()
		w.write(w.layer+"/"+c.config, "planted")
		w.write(w.layer+"/"+c.other, "new")
		if err := os.Symlink("config", filepath.Dir(w.layer+"/"+c.other)+"/COMMIT_EDITMSG"); err != nil {
			t.Fatal(err)
		}
		r, err := w.apply(w.collect(patterns...), Options{})
		if err != nil {
			t.Fatal(err)
		}
		protected := map[string]bool{}
		for _, st := range r.Protected {
			protected[st.Path] = true
		}
		link := filepath.Join(filepath.Dir(c.other), "COMMIT_EDITMSG")
		if !protected[c.config] || protected[c.other] || protected[link] != (c.ws != ".config") {
			t.Errorf("%s: %v are protected", c.config, protected)
		}
		w.holds(ws+"/"+c.config, "")
		if r, err = w.apply(w.collect(), Options{}); err != nil || r.Refused() {
			t.Errorf("%s without patterns: %+v, %v", c.config, r, err)
		}
		w.holds(ws+"/"+c.config, "planted")
		w.holds(ws+"/"+c.other, "new")
	}
}

// TestSpecialThere: what is in the way is named.
func TestSpecialThere(t *testing.T) {
	w := newWorld(t)
	w.write(w.layer+"/f", "f")
	set := w.collect()
	if err := unix.Mkfifo(w.ws+"/f", 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := w.apply(set, Options{})
	if err != nil || len(r.Conflicts) != 1 || r.Conflicts[0].Why != "the workspace has a special file there by now" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestSnapshotBusy: a layer that is being written to can be collected.
func TestSnapshotBusy(t *testing.T) {
	w := newWorld(t)
	for i := range 100 { // a while between a look at the directory and into it
		w.write(fmt.Sprintf("%s/stays%d", w.layer, i), "stays")
	}
	w.take()
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			os.WriteFile(w.layer+"/file", []byte("x"), 0o600)
			os.Remove(w.layer + "/file")
			os.Mkdir(w.layer+"/dir", 0o700)
			os.Remove(w.layer + "/dir")
		}
	}()
	defer func() { stop.Store(true); <-done }()
	f, err := os.Open(w.layer)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if _, err := Collect(w.store, Info{ID: "x"}, w.base, f, 1<<20, true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReadOnlyDirectory: what a sandbox did in a directory after it had made that
// writable can be taken over, and leaves the directory's mode as it says.
func TestReadOnlyDirectory(t *testing.T) {
	w := newWorld(t)
	w.write(w.ws+"/kept/f", "f")
	w.write(w.ws+"/opened/f", "f")
	w.write(w.ws+"/gone/f", "f")
	w.write(w.ws+"/file/f", "f")
	w.write(w.layer+"/file", "a file now")
	w.write(w.layer+"/kept/f", "changed")
	w.write(w.layer+"/opened/g", "g")
	w.whiteout(w.layer + "/gone")
	for _, dir := range []string{"/kept", "/opened", "/gone", "/file"} {
		os.Chmod(w.ws+dir, 0o555)
		t.Cleanup(func() { os.Chmod(w.ws+dir, 0o755) })
	}
	os.Chmod(w.ws, 0o555)
	t.Cleanup(func() { os.Chmod(w.ws, 0o755) })
	os.Chmod(w.layer+"/kept", 0o555)
	t.Cleanup(func() { os.Chmod(w.layer+"/kept", 0o755) })
	set := w.collect()
	ended := make(chan struct{})
	go func() { // without root's privilege, for good: the thread ends with this
		defer close(ended)
		runtime.LockOSThread()
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			t.Error(err)
		} else if r, err := w.apply(set, Options{}); err != nil || r.Refused() {
			t.Errorf("%+v, %v", r, err)
		}
	}()
	<-ended
	w.holds(w.ws+"/kept/f", "changed")
	w.holds(w.ws+"/opened/g", "g")
	w.holds(w.ws+"/gone/f", "")
	for dir, mode := range map[string]os.FileMode{".": 0o555, "kept": 0o555, "opened": 0o755, "file": 0o644} {
		if fi, err := os.Stat(w.ws + "/" + dir); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %v", dir, fi, err, mode)
		}
	}
}

// TestLongNames: a layer of few inodes can have paths and targets without end, and the
// set is held in memory.
func TestLongNames(t *testing.T) {
	w := newWorld(t)
	dir := w.layer
	for range 14 {
		dir += "/" + strings.Repeat("\x80", 255)
	}
	w.write(dir+"/f", "f")
	for i := range 6000 {
		if err := os.Symlink("x", fmt.Sprintf("%s/%d", dir, i)); err != nil {
			t.Fatal(err)
		}
	}
	set := w.collect()
	size := 0
	for _, c := range set.Changes {
		size += len(c.Path)
	}
	if size > minNames || size < minNames/2 || len(set.Skips) != 1 || !strings.Contains(set.Skips[0].Why, "too long together") {
		t.Errorf("%d changes with paths of %d bytes, %d left out", len(set.Changes), size, len(set.Skips))
	}
}

// TestIndexApplied: an index is taken over if it names nothing that Git would not enter
// there, by the repository's size of hashes, and so is what removes one.
func TestIndexApplied(t *testing.T) {
	w := newWorld(t)
	const head = "DIRC\x00\x00\x00\x02\x00\x00\x00"
	entry := func(name string, hash int) string {
		return strings.Repeat("\x00", 24) + "\x00\x00\x81\xa4" + strings.Repeat("\x00", 12+hash) + "\x00" + string(rune(len(name))) + name + strings.Repeat("\x00", 8-(42+hash+len(name))%8)
	}
	none, bad := head+"\x00"+strings.Repeat("\x00", 20), head+"\x01"+entry(".git/config", 20)+strings.Repeat("\x00", 20)
	long := head + "\x01" + entry("a", 32) + strings.Repeat("\x00", 32)
	for _, repo := range []string{"good", "bad", "long", "gone", "split", "bare"} {
		w.write(w.ws+"/"+repo+"/.git/index", "old")
	}
	w.write(w.ws+"/long/.git/config", "[extensions]\n\tobjectFormat = \"SHA256\"\n")
	for name, index := range map[string]string{"good/.git/index": none, "bad/.git/index": bad, "long/.git/index": long, "split/.git/sharedindex.1": bad, "bare/.git/index": long} {
		w.write(w.layer+"/"+name, index)
	}
	w.whiteout(w.layer + "/gone/.git/index")
	set := w.collect(".git/index")
	r, err := w.apply(set, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, st := range r.Protected {
		got = append(got, st.Path)
	}
	if want := "bad/.git/index bare/.git/index split/.git/sharedindex.1"; strings.Join(got, " ") != want {
		t.Errorf("%q are protected, want %s", got, want)
	}
	if r, err := w.apply(set, Options{Allow: []string{".git/index"}}); err != nil || r.Refused() {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestConfigApplied: of a repository's configuration, what branches follow is taken over, and
// nothing else.
func TestConfigApplied(t *testing.T) {
	w := newWorld(t)
	const config = "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = /x\n"
	for repo, now := range map[string]string{
		"follows/.git": config + "[branch \"a\"]\n\tremote = origin\n\tmerge = refs/heads/a\n",
		"elsewhere":    config + "[branch \"a\"]\n\tremote = /y\n\tmerge = refs/heads/a\n",
		"hooks":        config + "[core]\n\thooksPath = x\n",
		"new":          config,
		"mode":         config,
	} {
		if repo = strings.TrimSuffix(repo, "/.git") + "/.git"; repo != "new/.git" {
			w.write(w.ws+"/"+repo+"/config", config)
		}
		w.write(w.layer+"/"+repo+"/config", now)
	}
	if err := os.Chmod(w.layer+"/mode/.git/config", 0o666); err != nil {
		t.Fatal(err)
	}
	r, err := w.apply(w.collect(".git/config", ".git/"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, st := range r.Protected {
		got = append(got, st.Path)
	}
	if want := "elsewhere/.git/config hooks/.git/config mode/.git/config new/.git new/.git/config"; strings.Join(got, " ") != want {
		t.Errorf("%q are protected, want %s", got, want)
	}
}

// TestPack: small files are kept in one file, larger ones in one of their own, and each
// comes back byte for byte; a pack that lacks something is an error and no short file.
func TestPack(t *testing.T) {
	w := newWorld(t)
	want := map[string]string{}
	for i, size := range []int{0, 1, packed - 1, packed, packed + 1, 3 * packed, 0, 17} {
		want[fmt.Sprint("f", i)] = strings.Repeat(string(rune('a'+i)), size)
	}
	for i := range 40 { // more than is held in memory
		want[fmt.Sprint("g", i)] = strings.Repeat(string(rune('A'+i)), packed)
	}
	for name, text := range want {
		w.write(w.layer+"/"+name, text)
	}
	set := w.collect()
	packs := map[string]bool{}
	for _, c := range set.Changes {
		if small := len(want[c.Path]) <= packed; small != (c.New.Pack != "") || small == (c.New.Blob != "") {
			t.Errorf("%s: %+v", c.Path, c.New)
		}
		packs[c.New.Pack] = true
	}
	if len(packs) != 2 { // one, and "" of the larger files
		t.Error(packs)
	}
	for _, c := range set.Changes {
		packs[c.New.Pack] = true
		if c.Path == "g7" {
			c.New.At += 1 << 30
		}
	}
	if r, err := w.apply(set, Options{}); err == nil {
		t.Errorf("beyond the pack's end: %+v", r)
	}
	w.holds(w.ws+"/g7", "")
	for _, c := range set.Changes {
		if c.Path == "g7" {
			c.New.At -= 1<<30 + 5 // of the file before it, too
			ws, err := set.Open()
			if err != nil {
				t.Fatal(err)
			}
			if p, err := set.Patch(ws, &Status{Change: c}); err == nil {
				t.Errorf("not what was kept: %.100q", p)
			}
			ws.Close()
		}
	}
	if r, err := w.apply(set, Options{}); err == nil {
		t.Errorf("not what was kept: %+v", r)
	}
	w.holds(w.ws+"/g7", "")
	for _, c := range set.Changes {
		if c.Path == "g7" {
			c.New.At += 5
		}
	}
	if r, err := w.apply(set, Options{}); err != nil || r.Refused() {
		t.Fatalf("%+v, %v", r, err)
	}
	for name, text := range want {
		if b, err := os.ReadFile(w.ws + "/" + name); err != nil || string(b) != text {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}
