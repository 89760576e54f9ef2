package engine

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

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

// Refusals is a file in which a command finds what it was refused, while it runs, and which
// it cannot change. It has 32 lines of 1 KiB, most of them blank at first: a number, "+" or
// "-", the text, spaces, and the number again. "-" is for what nobody asks of a command that
// succeeded, and has half of the lines, so that much of it takes no other's. The numbers
// grow with each refusal; what is refused again has its line, with a new number. A line of
// which the numbers differ is being changed.
type Refusals struct {
	file *os.File

	mu    sync.Mutex
	mem   []byte // the file; nil once closed
	n     int
	texts [refusalLines]string // in the file
	at    [refusalLines]int    // their numbers
	fence atomic.Uint32        // an access to it orders those to mem
}

const (
	refusalLines = 32
	refusalLine  = 1 << 10
	refusalsSize = refusalLines * refusalLine
)

// File is for the command.
func (r *Refusals) File() *os.File { return r.file }

// Add is for [driver.Stdio].
func (r *Refusals) Add(d driver.Denial) {
	switch d.Operation {
	case driver.OpRead, driver.OpExec, driver.OpUnix:
		return // what the host has, and the sandbox does not show, is for the caller alone
	}
	text, hint := Refusal(&d, true)
	const most = refusalLine - 2*len("18446744073709551615") - len(" + ...\n")
	switch {
	case hint != "" && len(text)+len("; ")+len(hint) <= most:
		text += "; " + hint
	case len(text) > most:
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	mark, from := " + ", 0
	if Expected(&d) {
		mark, from = " - ", refusalLines/2
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return
	}
	line := slices.Index(r.texts[:], text)
	if line < 0 { // the oldest
		line = from
		for i := range refusalLines / 2 {
			if r.at[from+i] < r.at[line] {
				line = from + i
			}
		}
	}
	r.n++
	r.texts[line], r.at[line] = text, r.n
	r.write(r.mem[line*refusalLine:(line+1)*refusalLine], strconv.Itoa(r.n), mark+text)
}

// write changes a line so that one who reads it from left to right sees two equal numbers
// only if all between is of one refusal: no first number stands while the rest changes, and
// the last number changes before the text.
func (r *Refusals) write(line []byte, number, text string) {
	blank := func(b []byte) {
		for i := range b {
			b[i] = ' '
		}
		r.fence.Add(1)
	}
	end := len(line) - 1
	line[end] = '\n'
	blank(line[:len(number)])
	blank(line[end-len(number)-1 : end])
	copy(line[end-len(number):], number)
	r.fence.Add(1)
	blank(line[len(number) : end-len(number)])
	copy(line[len(number):], text)
	r.fence.Add(1)
	copy(line, number)
}
