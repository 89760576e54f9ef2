package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/profiles"
)

// A file that cannot be read because of where it is says so: with another's HOME, or
// in a workspace that this user cannot enter.
func TestUnreadable(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	f := &Facts{Facts: profiles.Facts{Home: home, UID: uint32(os.Geteuid()) + 1}}
	file := func(name string) error {
		return &profiles.Error{Where: name, What: "cannot be read", Err: fs.ErrPermission}
	}
	err := Unreadable(file(home+"/.config/sbxrun/config.yaml"), &profiles.Request{}, f)
	if want := "HOME is " + home + ", which is not this user's"; driver.HintOf(err) != want || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, hint %q, want %q", err, driver.HintOf(err), want)
	}
	f.UID--
	if err := Unreadable(file(home+"/.config/sbxrun/config.yaml"), &profiles.Request{}, f); driver.HintOf(err) != "" {
		t.Errorf("one's own home: hint %q", driver.HintOf(err))
	}

	closed := filepath.Join(home, "closed")
	if err := os.Mkdir(closed, 0o600); err != nil {
		t.Fatal(err)
	}
	if unix.Access(closed, unix.X_OK) == nil {
		closed += "/gone" // who may enter everything
	}
	err = Unreadable(file(closed+"/.sbxrun.yaml"), &profiles.Request{Dir: closed}, f)
	if want := "flag --cd: " + closed + " cannot be entered by this user"; err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	if err := Unreadable(file(home+"/.sbxrun.yaml"), &profiles.Request{}, f); !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a directory that can be entered: %v", err)
	}
}
