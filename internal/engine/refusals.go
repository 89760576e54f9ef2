package engine

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
)

// RefusalText is what a refusal says to a person.
func RefusalText(d *driver.Denial) string {
	if d.Operation == driver.OpConnect || d.Operation == driver.OpResolve {
		if d.Reason == "" {
			return "network: refused " + quote.Inside(d.Target)
		}
		return "network: " + d.Reason
	}
	s := "refused: " + quote.Inside(d.Target) + ": " + quote.Line(d.Rule)
	if d.Origin != "" {
		s += " (" + quote.Line(d.Origin) + ")"
	}
	if d.Reason != "" {
		s += ", " + quote.Line(d.Reason)
	}
	return s
}

// Refusal is RefusalText with what would allow it. A model is told that it cannot do that
// itself.
func Refusal(d *driver.Denial, model bool) (text, hint string) {
	if hint = d.Grant.Shell(); model && hint != "" {
		hint = "only who set the sandbox up can allow it: " + hint
	}
	return RefusalText(d), hint
}

// Expected reports whether of a command that succeeded nobody asks why something was
// refused: programs try what they can do without.
func Expected(d *driver.Denial) bool {
	return d.Operation != driver.OpConnect && d.Operation != driver.OpResolve &&
		!strings.HasPrefix(d.Rule, driver.RuleProtected)
}

// Refusals is a file in which a command finds what it was refused, while it runs. Each line
// is a number, which grows; "+", or "-" for what nobody asks of a command that succeeded;
// and the text. What is refused again has a new number, at the end. NUL bytes follow. The
// command cannot change it.
type Refusals struct {
	file *os.File

	mu    sync.Mutex
	mem   []byte // the file; nil once closed
	n     int
	lines []refusal // the last one last
	size  int       // of those in the file
}

type refusal struct{ number, text string }

func (r refusal) size() int { return len(r.number) + len(r.text) + 1 }

// refusalsSize bounds the file, and maxRefusal one line of it.
const (
	refusalsSize = 16 << 10
	maxRefusal   = 2 << 10
)

// File is for the command.
func (r *Refusals) File() *os.File { return r.file }

// Add is for [driver.Stdio].
func (r *Refusals) Add(d driver.Denial) {
	mark := " + "
	if Expected(&d) {
		mark = " - "
	}
	text, hint := Refusal(&d, true)
	if hint != "" {
		text += "; " + hint
	}
	text = mark + strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return
	}
	if i := slices.IndexFunc(r.lines, func(l refusal) bool { return l.text == text }); i >= 0 {
		r.size -= r.lines[i].size()
		r.lines = slices.Delete(r.lines, i, i+1)
	}
	r.n++
	l := refusal{strconv.Itoa(r.n), text}
	r.lines, r.size = append(r.lines, l), r.size+l.size()
	for r.size >= refusalsSize { // a NUL is the end
		r.size -= r.lines[0].size()
		r.lines = r.lines[1:]
	}
	at := 0
	for _, l := range r.lines {
		at += copy(r.mem[at:], l.number+l.text+"\n")
	}
	clear(r.mem[at:])
}
