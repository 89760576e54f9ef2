package rundir

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestDir(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "p")
	d, err := Make(parent, "r", nil)
	if err != nil {
		t.Fatal(err)
	}
	// What a run that is alive has is not removed, however old.
	old := time.Now().Add(-time.Hour)
	os.Chtimes(d.Path, old, old)
	dead := filepath.Join(parent, "r-dead")
	if err := os.MkdirAll(dead+"/a/b", 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(dead+"/a", 0)
	other := filepath.Join(parent, "other")
	os.Mkdir(other, 0o755)
	os.Chtimes(other, old, old)
	if n := Prune(parent, "r", nil); n != 1 {
		t.Errorf("%d removed, want 1", n)
	}
	if _, err := os.Stat(d.Path); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
	if err := os.MkdirAll(d.Path+"/x/y", 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(d.Path+"/x", 0)
	if err := d.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.Path); err == nil {
		t.Error("still there")
	}
}

// TestNotOurs: a directory that others can write to is not trusted; one beside it
// is made, as often as that may be.
func TestNotOurs(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	os.Mkdir(open, 0o755)
	os.Chmod(open, 0o777)
	os.Symlink(open, dir+"/link")
	for _, p := range []string{open, dir + "/link"} {
		d, err := Make(p, "r", nil)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(d.Path) != p+"-1" {
			t.Errorf("%s is in %s", d.Path, p)
		}
		d.Remove()
		for i := 1; i < names; i++ {
			os.Mkdir(p+"-"+strconv.Itoa(i), 0o700)
			os.Chmod(p+"-"+strconv.Itoa(i), 0o770)
		}
		if d, err := Make(p, "r", nil); err == nil {
			d.Remove()
			t.Errorf("%s is taken", p)
		}
	}
}

// TestLock: one at a time has the lock, and who waits does not wait for ever.
func TestLock(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	parent := filepath.Join(t.TempDir(), "p")
	unlock, err := lockDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	patience = 20 * time.Millisecond
	if again, err := lockDir(parent); err == nil {
		again()
		t.Error("two have it")
	}
	patience = 30 * time.Second
	got := make(chan error)
	go func() {
		again, err := lockDir(parent)
		if err == nil {
			again()
		}
		got <- err
	}()
	time.Sleep(10 * time.Millisecond)
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	// One who had it while the directory was removed and made anew keeps nobody out.
	if _, err = lockDir(parent); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(parent); err != nil {
		t.Fatal(err)
	}
	if unlock, err = lockDir(parent); err != nil {
		t.Fatal(err)
	}
	unlock()
}
