// Package quote prints text that comes from inside a sandbox, or from anybody else,
// within what sbxrun says: to a person, to a model, or to a log.
//
// A name with a line feed would begin a message of sbxrun's own, one with marks of
// direction would show as another, and one of characters without a shape would carry
// words that only a model reads. So such a text is one word, or stands in quotation
// marks; it has no character in it that a reader does not see, and it is short. What
// was escaped cannot be told from what looked like that before: programs that need
// the exact text have it in JSON.
package quote

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxInside = 256     // bytes of a text of which the rest is left out
	maxLine   = 4 << 10 // bytes
)

// Hidden reports whether a character must not be shown as it is: it controls a
// terminal, ends a line for some reader, orders the text around it, or has no shape.
func Hidden(r rune) bool {
	if r < utf8.RuneSelf {
		return r < ' ' || r == 0x7f
	}
	return !unicode.IsPrint(r) || unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) ||
		r == 0x2800 // a blank of Braille
}

// Inside is a text from inside, for a sentence: a word as it is, anything else in
// quotation marks.
func Inside(s string) string {
	if s != "" && len(s) <= maxInside && strings.IndexFunc(s, odd) < 0 {
		return s
	}
	return Text(s)
}

// Text is Inside with quotation marks in any case.
func Text(s string) string {
	short, rest := cut(s, maxInside)
	out := `"` + escape(short, `"\[]`) + `"`
	if rest > 0 {
		out += fmt.Sprintf("… (%d bytes more)", rest)
	}
	return out
}

// odd reports whether a text with a character is more than a word.
func odd(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		strings.ContainsRune("/._-+@:,=%~*", r))
}

// Line is a message as one line, of which the names are quoted already, or that a
// program of the host's has printed.
func Line(s string) string {
	s, rest := cut(s, maxLine)
	out := Escape(s)
	if rest > 0 {
		out += fmt.Sprintf("… (%d bytes more)", rest)
	}
	return out
}

// Error is the text of an error as one line. The path that the system was asked for
// stands in it as a path from inside.
func Error(err error) string {
	text := err.Error()
	var path *fs.PathError
	if errors.As(err, &path) {
		text = strings.ReplaceAll(text, path.Op+" "+path.Path+":", path.Op+" "+Inside(path.Path)+":")
	}
	return Line(text)
}

// cut shortens a text to whole characters.
func cut(s string, most int) (short string, rest int) {
	if len(s) <= most {
		return s, 0
	}
	at := most
	for at > most-utf8.UTFMax && !utf8.RuneStart(s[at]) {
		at--
	}
	return s[:at], len(s) - at
}

// Escape is Line without an end, for what must be seen as a whole.
func Escape(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, Hidden) {
		return s
	}
	return escape(s, "")
}

func escape(s, also string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '"' && also != "", r == '\\' && also != "":
			b.WriteString(`\` + s[:1])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case Hidden(r) && r < 0x80, strings.ContainsRune(also, r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case Hidden(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case Hidden(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// Shell prints a text so that it can be pasted into a shell.
func Shell(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@:,") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// JSON writes the hidden characters of a text that is JSON as JSON does: it means
// what it meant. They stand in strings, for JSON has them nowhere else.
func JSON(text []byte) []byte {
	out := text
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r >= 0x7f && Hidden(r) && !(r == utf8.RuneError && n == 1) {
			if len(out) == len(text) && &out[0] == &text[0] {
				out = append(make([]byte, 0, len(text)+64), text[:i]...)
			}
			if r > 0xffff {
				r -= 0x10000
				out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			} else {
				out = fmt.Appendf(out, `\u%04x`, r)
			}
		} else if len(out) == 0 || &out[0] != &text[0] {
			out = append(out, text[i:i+n]...)
		}
		i += n
	}
	return out
}
