package engine

import (
	"errors"
	"os"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/profiles"
)

// Usage is an error about a mistake of the caller's, with its remedy.
func Usage(what, hint string) error { return &invalidError{Hinted(errors.New(what), hint)} }

// Hinted gives an error a hint: what to do about it.
func Hinted(err error, hint string) error { return &hinted{err, hint} }

type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }
func (e *hinted) Hint() string  { return e.hint }

// Invalid gives an error about the request its code.
func Invalid(err error) error {
	if driver.CodeOf(err) != driver.CodeCreationFailed {
		return err
	}
	return &invalidError{err}
}

type invalidError struct{ error }

func (e *invalidError) Unwrap() error     { return e.error }
func (e *invalidError) Code() driver.Code { return driver.CodeInvalid }

// HintOf says what to do about an error, "" if nothing is known.
func HintOf(err error) string {
	var unavailable *driver.UnavailableError
	if profile := os.Getenv(profiles.MarkerEnv); profile != "" && errors.As(err, &unavailable) {
		// What is missing is not the machine's doing.
		return "this is in a sandbox of sbxrun already (profile " + quote.Inside(profile) +
			"), which holds no others: run the command as it is"
	}
	return driver.HintOf(err)
}
