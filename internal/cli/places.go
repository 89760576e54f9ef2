package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// unusable names the variable that led to a directory which cannot be used: the
// path in the system's message need not be one that the caller ever wrote.
func unusable(err error, name, fix string) error {
	var path *fs.PathError
	dir := os.Getenv(name)
	if dir == "" || !errors.As(err, &path) {
		return err
	}
	for _, cause := range []error{fs.ErrPermission, fs.ErrNotExist, syscall.ENOTDIR, syscall.EROFS} {
		if errors.Is(err, cause) {
			return &usageError{name + " is " + dir + ", which cannot be used: " + err.Error(), fix}
		}
	}
	return err
}

const runtimeVariable = "XDG_RUNTIME_DIR"

// openStore opens the directory that this user's sessions are in, and makes it if
// it is not there.
func openStore() (*session.Store, error) {
	st, err := session.OpenStore(runtimeDir("sessions"))
	if err != nil && filepath.IsAbs(os.Getenv(runtimeVariable)) {
		err = unusable(err, runtimeVariable, "set it to a directory of yours, or unset it")
	}
	return st, err
}

// findStore is openStore for who only looks at what is there: it makes nothing, and
// there is no store where none was made.
func findStore() (*session.Store, error) {
	dir := runtimeDir("sessions")
	_, err := os.Lstat(dir)
	if above := os.Getenv(runtimeVariable); errors.Is(err, fs.ErrNotExist) && filepath.IsAbs(above) {
		// A mistake in the variable is not the same as no sessions.
		if _, err := os.Stat(above); err != nil {
			return nil, unusable(err, runtimeVariable, "set it to a directory of yours, or unset it")
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return openStore()
}

// unreadable says why a file that a policy is made of cannot be read, where that is
// not the file's own mode.
func unreadable(err error, req *profiles.Request, f *facts) error {
	var file *profiles.Error
	if !errors.As(err, &file) || file.Fix != "" || !errors.Is(file.Err, fs.ErrPermission) {
		return err
	}
	dir := filepath.Dir(file.Where)
	switch {
	case filepath.Base(file.Where) == ".sbxrun.yaml" && unix.Access(dir, unix.X_OK) != nil:
		where := "flag --cd: "
		if req.Dir == "" {
			where = "the working directory "
		}
		return &usageError{where + dir + " cannot be entered by this user", "name a directory of yours with --cd, or run it as its owner"}
	case strings.HasPrefix(file.Where, f.Home+"/") && os.Getenv("HOME") == f.Home && !ownedBy(f.Home, f.UID):
		return &hinted{err, "HOME is " + f.Home + ", which is not this user's"}
	}
	return err
}

// ownedBy reports whether a directory is a user's. One that cannot be looked at is
// not.
func ownedBy(dir string, uid uint32) bool {
	fi, err := os.Stat(dir)
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return !ok || st.Uid == uid
}
