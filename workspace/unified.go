package workspace

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff/lcs"

	"github.com/sbxrun/sbxrun/internal/quote"
)

// context is how many lines around a change a diff shows.
const context = 3

// unified returns the hunks of a diff in the unified format, "" if there is no
// difference. It takes time in proportion to the texts: the search for the
// smallest difference is bounded.
func unified(old, new string) string {
	a, b := lines(old), lines(new)
	diffs := lcs.DiffLines(a, b)
	var out strings.Builder
	for i := 0; i < len(diffs); {
		// A hunk goes on for as long as changes are near to each other.
		j := i + 1
		for j < len(diffs) && diffs[j].Start-diffs[j-1].End <= 2*context {
			j++
		}
		first, last := diffs[i], diffs[j-1]
		start := max(0, first.Start-context)
		end := min(len(a), last.End+context)
		newStart := first.ReplStart - (first.Start - start)
		newEnd := last.ReplEnd + (end - last.End)
		out.WriteString("@@ -" + span(start, end) + " +" + span(newStart, newEnd) + " @@\n")
		at := start
		for _, d := range diffs[i:j] {
			write(&out, ' ', a[at:d.Start])
			write(&out, '-', a[d.Start:d.End])
			write(&out, '+', b[d.ReplStart:d.ReplEnd])
			at = d.End
		}
		write(&out, ' ', a[at:end])
		i = j
	}
	return out.String()
}

// span is lines[start:end] in the form of a hunk's head. An empty range names the
// line before it.
func span(start, end int) string {
	n := end - start
	if n > 0 {
		start++
	}
	if n == 1 {
		return strconv.Itoa(start)
	}
	return strconv.Itoa(start) + "," + strconv.Itoa(n)
}

func write(b *strings.Builder, mark byte, lines []string) {
	for _, l := range lines {
		b.WriteByte(mark)
		b.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			b.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// lines splits a text after each newline.
func lines(s string) []string {
	list := strings.SplitAfter(s, "\n")
	if list[len(list)-1] == "" {
		list = list[:len(list)-1]
	}
	return list
}

// isText reports whether content is worth showing line by line: as Git has it,
// that is what has no NUL in its beginning.
func isText(s string) bool {
	return strings.IndexByte(s[:min(len(s), 8000)], 0) < 0
}

// gitQuoted is a path as Git's patches have it: in quotes, with escapes, if it has
// characters that would not be read back, or that a reader does not see. GNU patch
// takes a name without quotes to end at a space, or what follows one for a date.
func gitQuoted(s string) string {
	if quote.Escape(s) == s && !strings.ContainsAny(s, " \"\\") {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + s[:1])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == utf8.RuneError && n == 1, quote.Hidden(r):
			for i := range n {
				fmt.Fprintf(&b, `\%03o`, s[i])
			}
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	b.WriteByte('"')
	return b.String()
}
