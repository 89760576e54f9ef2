package learn

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

func by(programs []string) string {
	if len(programs) == 0 {
		return ""
	}
	return ", by " + strings.Join(programs, ", ")
}

func number(n uint64, of string) string {
	s := strconv.FormatUint(n, 10) + " " + of
	if n != 1 {
		s += "s"
	}
	return s
}

// A Header is what a profile says of itself.
type Header struct {
	Base    string   // the profile that it extends
	Command []string // that it was learned from
	Home    string
}

// readOnly is the line of a workspace that nothing changed.
const readOnly = "workspace: ro  # the command changed nothing in it"

// Text is a profile of what was found.
func (f *Found) Text(h Header) string {
	text := "extends: " + scalar(h.Base) + "\n"
	if !f.Changed {
		text += readOnly + "\n"
	}
	text, _ = f.Into(text, h) // which has no list that could be in the way
	return "# Learned by sbxrun learn. A proposal: read it before you use it.\n" + text
}

// errForm is a profile that lines cannot be added to.
var errForm = errors.New("its lists are not written as sbxrun learn writes them, one item on a line")

// Into adds what was found to a profile, whose other lines stay as they are.
func (f *Found) Into(old string, h Header) (string, error) {
	f = f.Within(len(old), h.Home)
	t, err := textOf(old)
	if err != nil {
		return "", err
	}
	if f.Changed {
		t.lines = slices.DeleteFunc(t.lines, func(l string) bool { return l == readOnly })
	}
	short := func(l []Line) []Line {
		out := slices.Clone(l)
		for i := range out {
			out[i].Item = shorten(out[i].Item, h.Home)
		}
		return out
	}
	t.list("files", "read", short(f.Read))
	t.list("files", "copy_try", short(f.Copy))
	t.list("files", "hide", short(f.Hide))
	if len(f.Hosts) > 0 {
		t.value("network", "mode", "proxy", "")
		t.list("network", "allow", f.Hosts)
	}
	if f.Memory > 0 {
		t.value("limits", "memory", strconv.FormatUint((f.Memory+1<<20-1)>>20, 10)+"m", f.Peaks)
	}
	if f.Pids > 0 {
		t.value("limits", "pids", strconv.FormatInt(f.Pids, 10), f.Peaks)
	}
	if f.Minutes > 0 {
		t.value("limits", "wall_time", strconv.FormatInt(f.Minutes, 10)+"m", f.Peaks)
	}
	for _, l := range short(f.uses(h.Home)) {
		t.note("# Not granted: " + quote.Line(l.Item) + ": " + l.Comment)
	}
	for _, n := range f.Notes {
		t.note("# " + n)
	}
	if f.Lost > 0 {
		t.note("# Not seen: " + number(f.Lost, "use") + " of paths, which there was no room to remember.")
	}
	from := quote.Inside(h.Command[0]) // arguments can hold a password
	if len(h.Command) > 1 {
		from += " …"
	}
	t.note("# From: " + from)
	return strings.Join(t.lines, "\n") + "\n", nil
}

// Granted adds what a grant allows to a profile, whose other lines stay as they are.
func Granted(old string, g driver.Grant, comment string) (string, error) {
	t, err := textOf(old)
	if err != nil {
		return "", err
	}
	flag, value := g.Parts()
	item := []Line{{value, comment}}
	switch flag {
	case "allow-host":
		if has := t.has("network", "mode"); has != "" && has != "proxy" {
			return "", errors.New("its network.mode is " + has)
		}
		t.value("network", "mode", "proxy", "")
		t.list("network", "allow", item)
	case "unprotect":
		t.list("files", "unprotect", item)
	case "ro":
		// By the next run something else can have its name.
		return "", errors.New("a file is granted to one sandbox")
	default:
		return "", errors.New("no profile says " + g.Shell())
	}
	return strings.Join(t.lines, "\n") + "\n", nil
}

// textOf is a profile to which lines can be added.
func textOf(old string) (*text, error) {
	t := &text{lines: strings.Split(strings.TrimSuffix(old, "\n"), "\n")}
	for _, l := range t.lines {
		said := strings.TrimSpace(l)
		if strings.Contains(l, "\t") || flow().MatchString(l) ||
			strings.HasPrefix(said, "- ") && !strings.HasPrefix(l, "    - ") {
			return nil, errForm
		}
	}
	return t, nil
}

// Bounds of a profile.
const (
	maxLeft    = 200      // how many uses are named that are not granted
	maxProfile = 60 << 10 // bytes; 64 KiB are read, and a little is for what is in no list
	leftRoom   = 8 << 10  // of that, for the uses
)

// fit is how many of some lines fit into so many bytes, and what room they leave.
func fit(list []Line, room int, home string) (n, left int) {
	for i, l := range list {
		size := len(strconv.Quote(shorten(l.Item, home))) + len(l.Comment) + len("# Not granted: \n")
		if size > room {
			return i, room
		}
		room -= size
	}
	return len(list), room
}

// Within is what of the lines fits into a profile that has so many bytes already. What is
// left out is said; what hides something is not left out alone.
func (f *Found) Within(has int, home string) *Found {
	out := *f
	dropped, room := 0, maxProfile-leftRoom-has
	for _, list := range [...]*[]Line{&out.Hide, &out.Hosts, &out.Copy, &out.Read} {
		var n int
		if n, room = fit(*list, room, home); n < len(*list) && list == &out.Hide {
			n, room = 0, 0
		}
		dropped += len(*list) - n
		*list = (*list)[:n]
	}
	if dropped > 0 {
		out.Notes = append(slices.Clone(f.Notes),
			"Not here: "+number(uint64(dropped), "line")+" for which a profile has no room. Grant a directory instead.")
	}
	return &out
}

// uses are those that nothing grants, as many as are named.
func (f *Found) uses(home string) []Line {
	all := slices.Concat(f.First, f.Left)
	n, _ := fit(all[:min(len(all), maxLeft)], leftRoom, home)
	if more := len(all) - n; more > 0 {
		return append(all[:n], Line{"others", number(uint64(more), "use")})
	}
	return all
}

// flow matches a list or a map that is written on one line.
var flow = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*[a-z_]+:\s*[\[{]`) })

// shorten has ~ for the home.
func shorten(p, home string) string {
	if home != "" && p != home && policy.Below(p, home) {
		return "~" + p[len(home):]
	}
	return p
}

var plain = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[~/A-Za-z0-9._][~/A-Za-z0-9._@+:,-]*$`)
})

// scalar is a text as YAML has it.
func scalar(s string) string {
	if plain().MatchString(s) && !strings.HasSuffix(s, ":") && !strings.Contains(s, ": ") {
		return s
	}
	return strconv.Quote(s)
}

// text is a profile by its lines: keys at no indentation, theirs at two, items at four.
type text struct{ lines []string }

// section returns the first line of a key's value and the line behind it, and makes the
// key if it is not there.
func (t *text) section(key string, from, to int, indent string) (begin, end int) {
	for i := from; i < to; i++ {
		if !strings.HasPrefix(t.lines[i], indent+key+":") {
			continue
		}
		end = i + 1
		for j := i + 1; j < to; j++ {
			l := t.lines[j]
			switch said := strings.TrimSpace(l); {
			case said == "" || said[0] == '#':
				continue // a comment may stand anywhere
			case !strings.HasPrefix(l, indent+" "):
				return i + 1, end
			}
			end = j + 1
		}
		return i + 1, end
	}
	made := []string{indent + key + ":"}
	if indent == "" {
		for to > 0 && strings.HasPrefix(t.lines[to-1], "#") && to > 1 {
			to-- // before what was noted at the end
		}
		made = []string{"", made[0]}
	}
	t.lines = slices.Insert(t.lines, to, made...)
	return to + len(made), to + len(made)
}

func (t *text) list(section, key string, items []Line) {
	if len(items) == 0 {
		return
	}
	from, to := t.section(section, 0, len(t.lines), "")
	from, to = t.section(key, from, to, "  ")
	has := map[string]bool{}
	for _, l := range t.lines[from:to] {
		has[strings.TrimSpace(comment().ReplaceAllString(l, ""))] = true
	}
	for _, it := range items {
		item := "- " + scalar(it.Item)
		if has[item] {
			continue
		}
		if it.Comment != "" {
			it.Comment = "  # " + it.Comment
		}
		t.lines = slices.Insert(t.lines, to, "    "+item+it.Comment)
		to++
	}
}

var comment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\s+#.*$`) })

// has is the value of a key of a section, "" for none.
func (t *text) has(section, key string) string {
	in := false
	for _, l := range t.lines {
		if !strings.HasPrefix(l, " ") && l != "" {
			in = strings.HasPrefix(l, section+":")
		}
		if v, ok := strings.CutPrefix(l, "  "+key+":"); in && ok {
			return strings.TrimSpace(comment().ReplaceAllString(v, ""))
		}
	}
	return ""
}

// value sets a key of a section.
func (t *text) value(section, key, value, why string) {
	from, to := t.section(section, 0, len(t.lines), "")
	line := "  " + key + ": " + value
	if why != "" {
		line += "  # " + why
	}
	for i := from; i < to; i++ {
		if old, ok := strings.CutPrefix(t.lines[i], "  "+key+":"); ok {
			if c := comment().FindString(old); c != "" {
				line = "  " + key + ": " + value + c
			}
			t.lines[i] = line
			return
		}
	}
	t.lines = slices.Insert(t.lines, from, line)
}

// note adds a comment at the end, once.
func (t *text) note(line string) {
	if !slices.Contains(t.lines, line) {
		t.lines = append(t.lines, line)
	}
}
