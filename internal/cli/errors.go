package cli

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/nearest"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/policy"
)

// exitError ends the program with a code, after everything was said.
type exitError int

func (e exitError) Error() string { return "exit" }

// report prints an error that ends the program and returns the exit code.
func report(fs *pflag.FlagSet, err error) int {
	if err == nil {
		return 0
	}
	var exit exitError
	if errors.As(err, &exit) {
		return int(exit)
	}
	err = flagError(fs, err)
	say.error(err)
	return driver.ExitCodeOf(err)
}

// helpHint says where the flags of the command that was asked for are explained.
// Those of a run are followed by the command's own.
var helpHint = "see sbxrun run --help; the command's own flags go after it"

// flagError puts what the flag package says in our words.
func flagError(fs *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		hint := helpHint
		if here := habit(unknown.GetSpecifiedName()); here != "" {
			hint = here
		} else if near := nearestFlag(fs, unknown.GetSpecifiedName()); near != "" {
			hint = "did you mean --" + near + "?"
		} else if long := shortOf(unknown); long != "" && fs.Lookup(long) != nil {
			hint = "only the long form here: --" + long
		}
		return engine.Usage("unknown flag "+typed(unknown), hint)
	case errors.As(err, &missing):
		name := missing.GetSpecifiedName()
		if f := missing.GetFlag(); f != nil {
			name = f.Name
		}
		return engine.Usage("flag --"+name+" needs a value", helpHint)
	case errors.As(err, &invalid):
		hint := helpHint
		cause := invalid.Unwrap()
		if errors.Is(cause, errNoValue) {
			return engine.Usage("flag --"+invalid.GetFlag().Name+" "+cause.Error(),
				"for example --"+invalid.GetFlag().Name+" "+invalid.GetFlag().Value.Type()+" -- CMD")
		}
		if f := invalid.GetFlag(); f.Value.Type() == "bool" && driver.HintOf(cause) == "" {
			cause = engine.Usage(strconv.Quote(invalid.GetValue())+" is neither true nor false",
				"say --"+f.Name+" or --"+f.Name+"=false")
		}
		if h := driver.HintOf(cause); h != "" {
			hint = h
		}
		return engine.Usage("flag --"+invalid.GetFlag().Name+": "+cause.Error(), hint)
	}
	return err
}

// typed is an unknown flag as it was given.
func typed(unknown *pflag.NotExistError) string {
	if unknown.GetSpecifiedShortnames() != "" {
		return "-" + unknown.GetSpecifiedName()
	}
	return "--" + unknown.GetSpecifiedName()
}

// nearestFlag returns the flag that was meant, "" if none is near.
func nearestFlag(fs *pflag.FlagSet, name string) string {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return nearest.Name(name, names)
}

// say is how sbxrun speaks: one line each, on stderr, never on stdout.
var say speaker

type speaker struct {
	quiet   bool
	verbose bool
	color   string // auto, always or never
}

func (s *speaker) error(err error) {
	s.line("31", "error", quote.Error(err))
	h := engine.HintOf(err)
	if h != "" {
		s.line("36", "hint", h)
	}
}

// warn prints what must not go unnoticed; --quiet does not silence it.
func (s *speaker) warn(text string) { s.line("33", "warning", text) }

// note prints what is good to know.
func (s *speaker) note(text, hint string) {
	if s.quiet {
		return
	}
	s.line("33", "note", text)
	if hint != "" {
		s.line("36", "hint", hint)
	}
}

// detail prints what --verbose asks for.
func (s *speaker) detail(text string) {
	if s.verbose {
		s.line("2", "debug", text)
	}
}

// line prints one line, whatever the text holds: a name that someone else chose
// cannot forge a second message or reach the terminal.
func (s *speaker) line(color, kind, text string) {
	text = quote.Line(text)
	if s.colored() {
		kind = "\x1b[" + color + "m" + kind + ":\x1b[0m "
	} else {
		kind += ": "
	}
	engine.Write(os.Stderr, []byte("sbxrun: "+kind+text+"\n"))
}

func (s *speaker) colored() bool {
	switch s.color {
	case "always":
		return true
	case "never":
		return false
	}
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && terminal.Is(os.Stderr)
}

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
