package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sbxrun/sbxrun/internal/engine"
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
			return engine.Usage(name+" is "+dir+", which cannot be used: "+err.Error(), fix)
		}
	}
	return err
}

// openStore opens the directory that this user's sessions are in, and makes it if
// it is not there.
func openStore() (*session.Store, error) {
	st, err := session.OpenStore(engine.RuntimeDir("sessions"))
	if err != nil && filepath.IsAbs(os.Getenv(engine.RuntimeVariable)) {
		err = unusable(err, engine.RuntimeVariable, "set it to a directory of yours, or unset it")
	}
	return st, err
}

// findStore is openStore for who only looks at what is there: it makes nothing, and
// there is no store where none was made.
func findStore() (*session.Store, error) {
	dir := engine.RuntimeDir("sessions")
	_, err := os.Lstat(dir)
	if above := os.Getenv(engine.RuntimeVariable); errors.Is(err, fs.ErrNotExist) && filepath.IsAbs(above) {
		// A mistake in the variable is not the same as no sessions.
		if _, err := os.Stat(above); err != nil {
			return nil, unusable(err, engine.RuntimeVariable, "set it to a directory of yours, or unset it")
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return openStore()
}
