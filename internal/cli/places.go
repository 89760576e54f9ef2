package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/session"
)

// openStore opens the directory that this user's sessions are in, and makes it if
// it is not there.
func openStore() (*session.Store, error) {
	st, err := session.OpenStore(engine.RuntimeDir("sessions"))
	if err != nil && filepath.IsAbs(os.Getenv(engine.RuntimeVariable)) {
		err = engine.Unusable(err, engine.RuntimeVariable, "set it to a directory of yours, or unset it")
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
			return nil, engine.Unusable(err, engine.RuntimeVariable, "set it to a directory of yours, or unset it")
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return openStore()
}
