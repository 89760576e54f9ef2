package terminal

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// An interview is a person asked at the terminal that a command's is joined to. Meanwhile the
// command's terminal shows nothing and gets no keys: neither can what is asked be painted over,
// nor the answer be read.
type interview struct {
	mu      sync.Mutex // held while the screen is somebody's
	keys    sync.Mutex
	to      chan byte // what gets the keys, nil for the command
	command io.Writer // the command's terminal, nil before it is joined
}

// Interactive reports whether a person sits at standard input and output.
func Interactive() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
}

// Fold breaks a text into lines that the narrowest of usual terminals shows whole, each but
// the first behind begin.
func Fold(s, begin string) string {
	const width = 60
	var out strings.Builder
	for len(s) > width {
		out.WriteString(s[:width] + begin)
		s = s[width:]
	}
	return out.String() + s
}

// regain gives the screen back what a command may have taken so that nobody sees a text:
// it ends what is half said, shows what is drawn at once, and undoes colours, character sets,
// margins and the scroll region, and has keys and the mouse send no more than keys do.
const regain = "\x18\x1b\\\x1b[?2026l\x1b[?69l\x1b[?7h\x1b[=0u" +
	"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?2004l" +
	"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b[0m\x1b(B\x0f\x1b[r\x1b[?25h\x1b[999;1H\r\n"

// maxAnswer is how long a line is taken for an answer.
const maxAnswer = 64

// Ask shows a text, and waits until one of the answers is typed as a line. Ctrl-C is the
// command's, and "no". It reports false if none comes before the context is done. The text
// is the caller's own: nothing in it may control the terminal but the ends of lines.
func (t *Terminal) Ask(ctx context.Context, text string, answers []string) (answer string, ok bool) {
	i := &t.interview
	i.mu.Lock()
	defer i.mu.Unlock()
	if ctx.Err() != nil {
		return "", false
	}
	typed := make(chan byte)
	i.direct(typed)
	defer i.direct(nil)
	say := func(s string) { io.WriteString(os.Stdout, strings.ReplaceAll(s, "\n", "\r\n")) }
	say(regain + text)
	var line []byte
	for {
		select {
		case c := <-typed:
			switch {
			case c == '\r' || c == '\n':
				say("\n")
				if slices.Contains(answers, string(line)) {
					return string(line), true
				}
				line = line[:0]
				say("sbxrun: that is none of the answers: ")
			case c == 3:
				say("^C\n")
				i.pass(c)
				return "no", true
			case c == 0x7f || c == 8:
				if n := len(line); n > 0 {
					line = line[:n-1]
					say("\b \b")
				}
			case len(line) < maxAnswer:
				line = append(line, c)
				if c >= ' ' && c < 0x7f {
					say(string(rune(c)))
				}
			}
		case <-ctx.Done():
			say("(the question is over)\n")
			return "", false
		}
	}
}

// Say shows a line of the caller's own.
func (t *Terminal) Say(s string) {
	t.interview.mu.Lock()
	defer t.interview.mu.Unlock()
	io.WriteString(os.Stdout, s+"\r\n")
}

// pass gives the command a key, however late it takes it.
func (i *interview) pass(c byte) {
	i.keys.Lock()
	to := i.command
	i.keys.Unlock()
	if to != nil {
		go to.Write([]byte{c})
	}
}

// serves says which the command's terminal is.
func (i *interview) serves(command io.Writer) {
	i.keys.Lock()
	defer i.keys.Unlock()
	i.command = command
}

func (i *interview) direct(to chan byte) {
	i.keys.Lock()
	defer i.keys.Unlock()
	i.to = to
}

func (i *interview) asks() chan byte {
	i.keys.Lock()
	defer i.keys.Unlock()
	return i.to
}

// keysOf passes what is typed to the command's terminal, or to who asks meanwhile.
type keysOf struct {
	*interview
	command io.Writer
}

func (k keysOf) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		to := k.asks()
		if to == nil {
			m, err := k.command.Write(p[n:])
			return n + m, err
		}
		select {
		case to <- p[n]:
			n++
		case <-time.After(again): // it may be answered
		}
	}
	return len(p), nil
}
