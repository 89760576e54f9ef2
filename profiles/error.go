package profiles

import "github.com/sbxrun/sbxrun/internal/quote"

// An Error says what is wrong with a request or a configuration file, where it
// was found, and what to do about it.
type Error struct {
	Where string // "flag --ro", "/home/u/.config/sbxrun/config.yaml:3:5"
	What  string // what is wrong and why
	Fix   string // what to do; "" if What says it all
	Err   error  // what the system said, or nil
}

func (e *Error) Error() string {
	s := e.What
	if e.Where != "" {
		s = e.Where + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return quote.Line(s)
}

// Hint returns what to do about the error, or "".
func (e *Error) Hint() string { return quote.Line(e.Fix) }

// Unwrap returns what the system said.
func (e *Error) Unwrap() error { return e.Err }
