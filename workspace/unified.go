package workspace

import (
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
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

// quote is a path as Git's patches have it: in quotes, with escapes, if it has
// characters that would not be read back.
func quote(s string) string {
	plain := true
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == 0x7f || c == '"' || c == '\\' {
			plain = false
		}
	}
	if plain {
		return s
	}
	b := []byte{'"'}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', '0'+c>>6, '0'+c>>3&7, '0'+c&7)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}
