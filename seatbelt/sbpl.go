package seatbelt

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/policy"
)

// A Profile is text in the Sandbox Profile Language (SBPL) and the values of
// the parameters that it names. Paths of the policy are parameters: whatever
// they hold, the text and its number of forms stay the same.
type Profile struct {
	Text   string      `json:"text"`
	Params []Parameter `json:"params"`
}

// A Parameter is what sandbox-exec(1) takes as -D KEY=VALUE.
type Parameter struct{ Key, Value string }

// Args are the arguments of sandbox-exec that run a command under the profile.
func (p *Profile) Args(command []string) []string {
	args := []string{"-p", p.Text}
	for _, d := range p.Params {
		args = append(args, "-D", d.Key+"="+d.Value)
	}
	return append(append(args, "--"), command...)
}

// String is the text with the parameters as comments before it.
func (p *Profile) String() string {
	var b strings.Builder
	for _, d := range p.Params {
		b.WriteString("; -D " + d.Key + "=" + d.Value + "\n")
	}
	return b.String() + p.Text
}

// writer collects rules. A path that is named twice is one parameter.
type writer struct {
	b      strings.Builder
	params []Parameter
	seen   map[string]string // value → key
	err    error
}

// rule writes one form: an action on operations, where one of the filters
// holds; without a filter it always holds, which only the default rule wants.
func (w *writer) rule(action, operations string, filters ...string) {
	if len(filters) == 0 {
		return
	}
	w.b.WriteString("(" + action + " " + operations)
	for _, f := range filters {
		w.b.WriteString("\n  " + f)
	}
	w.b.WriteString(")\n")
}

// always writes a form without filters.
func (w *writer) always(action, operations string) {
	w.b.WriteString("(" + action + " " + operations + ")\n")
}

func (w *writer) comment(s string) { w.b.WriteString("\n; " + s + "\n") }

// param names a value by a parameter.
func (w *writer) param(prefix, value string) string {
	if key, ok := w.seen[value]; ok {
		return `(param "` + key + `")`
	}
	if w.seen == nil {
		w.seen = map[string]string{}
	}
	key := prefix + strconv.Itoa(len(w.params))
	w.seen[value] = key
	w.params = append(w.params, Parameter{key, value})
	return `(param "` + key + `")`
}

func (w *writer) literal(p string) string { return "(literal " + w.path(p) + ")" }

// literals names each of the paths alone, in order.
func (w *writer) literals(paths map[string]bool) (filters []string) {
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		filters = append(filters, w.literal(p))
	}
	return filters
}

func (w *writer) subpath(p string) string { return "(subpath " + w.path(p) + ")" }

// path names a path of the policy by a parameter.
func (w *writer) path(p string) string {
	if w.err == nil {
		w.err = checkPath(p)
	}
	return w.param("P", p)
}

// checkPath refuses what no path can hold, or what a line of text cannot.
func checkPath(p string) error {
	for _, c := range []byte(p) {
		if c < ' ' || c == 0x7f {
			return &policy.InvalidError{Field: "files", Value: p, Want: "a path without control characters"}
		}
	}
	if !path.IsAbs(p) {
		return &policy.InvalidError{Field: "files", Value: p, Want: "an absolute path"}
	}
	return nil
}

// quote makes a string literal of SBPL, whose reader is TinyScheme's: a
// backslash quotes itself and a double quote, and nothing else needs quoting.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// real is the path by which the kernel knows what is at p: on a Mac /tmp, /var
// and /etc are links into /private, and the data volume's files are found at
// the root as well.
func real(p string) string {
	if rest, ok := strings.CutPrefix(p, "/System/Volumes/Data"); ok && (rest == "" || rest[0] == '/') {
		p = "/" + strings.TrimPrefix(rest, "/")
	}
	for _, link := range [...]string{"/tmp", "/var", "/etc"} {
		if p == link || strings.HasPrefix(p, link+"/") {
			return "/private" + p
		}
	}
	return p
}

// names are all paths by which what is at a real path p can be asked for: rules
// match the real one, but a denial costs nothing to say for each.
func names(p string) []string {
	out := []string{p}
	if rest, ok := strings.CutPrefix(p, "/private"); ok && real(rest) == p {
		out = append(out, rest)
	}
	if p != "/" && !strings.HasPrefix(p, "/System/") {
		out = append(out, "/System/Volumes/Data"+p)
	}
	return out
}
