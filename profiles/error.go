package profiles

import (
	"strconv"
	"strings"
	"unicode"
)

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
	return printable(s)
}

// Hint returns what to do about the error, or "".
func (e *Error) Hint() string { return printable(e.Fix) }

// Unwrap returns what the system said.
func (e *Error) Unwrap() error { return e.Err }

// printable escapes what a terminal would act on: names in messages come from
// files that strangers wrote.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}
