package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sbxrun/sbxrun/session"
)

// OpenSessions opens the directory that this user's sessions are in, and makes it if
// it is not there.
func OpenSessions() (*session.Store, error) {
	st, err := session.OpenStore(RuntimeDir("sessions"))
	if err != nil && filepath.IsAbs(os.Getenv(RuntimeVariable)) {
		err = Unusable(err, RuntimeVariable, "set it to a directory of yours, or unset it")
	}
	return st, err
}

// FindSessions is OpenSessions for who only looks at what is there: it makes nothing, and
// there is no store where none was made.
func FindSessions() (*session.Store, error) {
	dir := RuntimeDir("sessions")
	_, err := os.Lstat(dir)
	if above := os.Getenv(RuntimeVariable); errors.Is(err, fs.ErrNotExist) && filepath.IsAbs(above) {
		// A mistake in the variable is not the same as no sessions.
		if _, err := os.Stat(above); err != nil {
			return nil, Unusable(err, RuntimeVariable, "set it to a directory of yours, or unset it")
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return OpenSessions()
}
