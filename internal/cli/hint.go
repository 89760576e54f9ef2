package cli

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// notFound is a command that no directory of PATH has, in the words that shells
// have for it.
type notFound struct{ *driver.CommandError }

func (e notFound) Error() string { return quote.Inside(e.Command) + ": command not found" }
func (e notFound) Unwrap() error { return e.CommandError }

// commandError tells a missing command from a missing file.
func commandError(err error) error {
	var c *driver.CommandError
	if errors.As(err, &c) && errors.Is(c.Err, syscall.ENOENT) && !strings.Contains(c.Command, "/") {
		return notFound{c}
	}
	return err
}

// commandHint is [engine.CommandHint]; a command that the host has not may be a word of
// sbxrun's own.
func commandHint(err error, p *policy.Policy, d driver.Driver, hide []string) string {
	return engine.CommandHint(err, p, d, hide, func(name string, missing bool) string {
		switch {
		case say.verbose && strings.Contains(name, ":/"):
			return "-v is --verbose; a path of the host is shown by --bind SRC:DST[:ro]"
		case missing:
			return misplaced(name, os.Args[1:])
		}
		return ""
	})
}

func count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatUint(n, 10) + " " + many
}

func milliseconds(ms float64) string { return strconv.FormatFloat(ms, 'f', 2, 64) + " ms" }
