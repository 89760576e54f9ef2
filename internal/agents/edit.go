package agents

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/pelletier/go-toml/v2"
	"github.com/tailscale/hujson"
)

// Whole is a file that is all ours.
type Whole []byte

// Apply returns the file.
func (w Whole) Apply(before []byte) ([]byte, error) {
	if before != nil && !bytes.HasPrefix(before, []byte("#!/bin/sh\n# The shell of ")) {
		return nil, &EditError{Cause: "is there, and was not written by sbxrun", Fix: "move it away"}
	}
	return w, nil
}

// Revert returns no file.
func (w Whole) Revert(_, _ []byte) ([]byte, error) { return nil, nil }

// JSON is a list of members to set in a JSON file, which may have comments and
// commas at the end of lists, as agents allow.
type JSON []Member

// A Member is a value of an object, or one element of a list that is such a value.
type Member struct {
	Path    []string // names, from the root
	Value   any      // to set; or
	Element any      // to have in the list
}

// Apply sets the members.
func (j JSON) Apply(before []byte) ([]byte, error) {
	text := before
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{\n}\n")
	}
	root, err := parseJSON(text)
	if err != nil {
		return nil, err
	}
	changed := false
	for _, m := range j {
		c, err := m.set(&root)
		if err != nil {
			return nil, err
		}
		changed = changed || c
	}
	if !changed {
		return before, nil
	}
	return checkedJSON(root)
}

// Revert takes the members out again, those that still are as they were set. A value
// that was there before comes back.
func (j JSON) Revert(now, before []byte) ([]byte, error) {
	root, err := parseJSON(now)
	if err != nil {
		return nil, err
	}
	old := hujson.Value{Value: &hujson.Object{}}
	if len(bytes.TrimSpace(before)) > 0 {
		if old, err = parseJSON(before); err != nil {
			return nil, err
		}
	}
	for _, m := range j {
		if err := m.unset(&root, m.values(&old)); err != nil {
			return nil, err
		}
	}
	return checkedJSON(root)
}

// values are those along the path, as far as there are any.
func (m Member) values(root *hujson.Value) (all []*hujson.Value) {
	for _, name := range m.Path {
		o, ok := root.Value.(*hujson.Object)
		if !ok {
			return all
		}
		member, err := find(o, name)
		if err != nil || member == nil {
			return all
		}
		root = &member.Value
		all = append(all, root)
	}
	return all
}

func parseJSON(text []byte) (hujson.Value, error) {
	root, err := hujson.Parse(text)
	if err != nil {
		return root, &EditError{Cause: "is not JSON: " + err.Error(), Fix: "mend it first"}
	}
	if _, ok := root.Value.(*hujson.Object); !ok {
		return root, &EditError{Cause: "holds no JSON object", Fix: "mend it first"}
	}
	return root, nil
}

func checkedJSON(root hujson.Value) ([]byte, error) {
	text := root.Pack()
	if _, err := hujson.Parse(text); err != nil {
		return nil, fmt.Errorf("the changed file would not be JSON: %w", err)
	}
	return text, nil
}

// find returns a member of an object. Where a name is there twice, which of them
// counts is for each reader to say.
func find(o *hujson.Object, name string) (*hujson.ObjectMember, error) {
	var at *hujson.ObjectMember
	for i := range o.Members {
		if o.Members[i].Name.Value.(hujson.Literal).String() == name {
			if at != nil {
				return nil, &EditError{Cause: strconv.Quote(name) + " is there twice", Fix: "mend it first"}
			}
			at = &o.Members[i]
		}
	}
	return at, nil
}

func (m Member) set(root *hujson.Value) (changed bool, err error) {
	at := root
	for depth, name := range m.Path {
		o, ok := at.Value.(*hujson.Object)
		if !ok {
			return false, &EditError{Cause: strings.Join(m.Path[:depth], ".") + " is no object", Fix: "mend it first"}
		}
		member, err := find(o, name)
		if err != nil {
			return false, err
		}
		last := depth == len(m.Path)-1
		if member == nil {
			var v any = map[string]any{}
			switch {
			case last && m.Element != nil:
				v = []any{}
			case last:
				v = m.Value
			}
			value, err := literal(v, depth+1)
			if err != nil {
				return false, err
			}
			add(o, name, value, depth+1)
			member = &o.Members[len(o.Members)-1]
			changed = true
		} else if last && m.Element == nil && !equal(member.Value, m.Value) {
			value, err := literal(m.Value, depth+1)
			if err != nil {
				return false, err
			}
			value.BeforeExtra, value.AfterExtra = member.Value.BeforeExtra, member.Value.AfterExtra
			member.Value = value
			changed = true
		}
		at = &member.Value
	}
	if m.Element == nil {
		return changed, nil
	}
	added, err := m.include(at)
	return changed || added, err
}

// include puts the element at the end of the list, if it is not in that.
func (m Member) include(at *hujson.Value) (changed bool, err error) {
	list, ok := at.Value.(*hujson.Array)
	if !ok {
		return false, &EditError{Cause: strings.Join(m.Path, ".") + " is no list", Fix: "mend it first"}
	}
	for i := range list.Elements {
		if equal(list.Elements[i], m.Element) {
			return false, nil
		}
	}
	value, err := literal(m.Element, len(m.Path)+1)
	if err != nil {
		return false, err
	}
	value.BeforeExtra = indent(len(m.Path) + 1)
	if !list.AfterExtra.IsStandard() {
		value.BeforeExtra = append(bytes.TrimRight(list.AfterExtra, " \t\r\n"), value.BeforeExtra...)
		list.AfterExtra = nil
	}
	if len(list.AfterExtra) == 0 {
		list.AfterExtra = indent(len(m.Path))
	}
	if n := len(list.Elements); n > 0 && list.Elements[n-1].AfterExtra != nil {
		value.AfterExtra = hujson.Extra{}
	}
	list.Elements = append(list.Elements, value)
	return true, nil
}

// unset takes out what set put in; an object or list that is then empty goes too, if
// it was not there before. Old are the values along the path at that time.
func (m Member) unset(root *hujson.Value, old []*hujson.Value) error {
	at := root
	var parents []*hujson.Object
	for depth, name := range m.Path {
		o, ok := at.Value.(*hujson.Object)
		if !ok {
			return nil
		}
		member, err := find(o, name)
		if err != nil {
			return err
		}
		if member == nil {
			return nil
		}
		if depth == len(m.Path)-1 && m.Element == nil {
			if !equal(member.Value, m.Value) {
				return nil // another's by now
			}
			if len(old) > depth {
				member.Value.Value = old[depth].Clone().Value
				return nil
			}
		}
		parents = append(parents, o)
		at = &member.Value
	}
	if m.Element != nil {
		list, ok := at.Value.(*hujson.Array)
		if !ok || !m.exclude(list) {
			return nil
		}
	}
	for depth := len(m.Path) - 1; depth >= len(old); depth-- {
		if !drop(parents[depth], m.Path[depth]) {
			return nil
		}
	}
	return nil
}

// exclude takes the element out of a list, and reports whether that is empty then.
func (m Member) exclude(list *hujson.Array) (empty bool) {
	keep := list.Elements[:0]
	for _, e := range list.Elements {
		if !equal(e, m.Element) {
			keep = append(keep, e)
		} else if !e.BeforeExtra.IsStandard() {
			list.AfterExtra = append(append(hujson.Extra{}, e.BeforeExtra...), list.AfterExtra...)
		}
	}
	comma := len(list.Elements) > 0 && list.Elements[len(list.Elements)-1].AfterExtra != nil
	list.Elements = keep
	if n := len(keep); n > 0 {
		list.AfterExtra = commaAtEnd(&keep[n-1], list.AfterExtra, comma)
	}
	return len(keep) == 0
}

// drop takes a member out of an object, and reports whether that is empty then.
func drop(o *hujson.Object, name string) (empty bool) {
	comma := o.Members[len(o.Members)-1].Value.AfterExtra != nil
	for i := range o.Members {
		if o.Members[i].Name.Value.(hujson.Literal).String() == name {
			if x := o.Members[i].Name.BeforeExtra; !x.IsStandard() {
				o.AfterExtra = append(append(hujson.Extra{}, x...), o.AfterExtra...)
			}
			o.Members = append(o.Members[:i], o.Members[i+1:]...)
			break
		}
	}
	if n := len(o.Members); n > 0 {
		o.AfterExtra = commaAtEnd(&o.Members[n-1].Value, o.AfterExtra, comma)
	}
	return len(o.Members) == 0
}

// commaAtEnd has a comma follow the last value, or none, and returns what is to
// stand before the closing bracket.
func commaAtEnd(last *hujson.Value, after hujson.Extra, comma bool) hujson.Extra {
	switch {
	case comma && last.AfterExtra == nil:
		last.AfterExtra = hujson.Extra{}
	case !comma && last.AfterExtra != nil:
		after = append(append(hujson.Extra{}, last.AfterExtra...), after...)
		last.AfterExtra = nil
	}
	return after
}

func indent(depth int) hujson.Extra { return hujson.Extra("\n" + strings.Repeat("  ", depth)) }

// add puts a member at the end of an object.
func add(o *hujson.Object, name string, value hujson.Value, depth int) {
	before := indent(depth)
	if n := len(o.Members); n > 0 {
		x := o.Members[n-1].Name.BeforeExtra
		if at := bytes.LastIndexByte(x, '\n'); at >= 0 && x[at:].IsStandard() {
			before = append(hujson.Extra{}, x[at:]...) // as the others are
		}
	}
	if !o.AfterExtra.IsStandard() { // a comment on what stands before
		before = append(bytes.TrimRight(o.AfterExtra, " \t\r\n"), before...)
		o.AfterExtra = nil
	}
	value.BeforeExtra = hujson.Extra(" ")
	if len(o.AfterExtra) == 0 {
		o.AfterExtra = indent(depth - 1)
	}
	if n := len(o.Members); n > 0 && o.Members[n-1].Value.AfterExtra != nil {
		value.AfterExtra = hujson.Extra{} // a comma at the end, as before
	}
	o.Members = append(o.Members, hujson.ObjectMember{Name: hujson.Value{BeforeExtra: before, Value: hujson.String(name)},
		Value: value})
}

// literal is a value, formatted to stand so deep.
func literal(v any, depth int) (hujson.Value, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent(strings.Repeat("  ", depth), "  ")
	if err := e.Encode(v); err != nil {
		return hujson.Value{}, err
	}
	return hujson.Parse(bytes.TrimSpace(b.Bytes()))
}

// equal compares by what is said, not how.
func equal(have hujson.Value, want any) bool {
	a := have.Clone()
	a.Standardize()
	var x, y any
	b, err := json.Marshal(want)
	return err == nil && json.Unmarshal(a.Pack(), &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// CodexEnvironment is the entry of Codex's environments.toml by which all that it
// executes is executed by a program, and by no other.
type CodexEnvironment struct {
	Program string
	Args    []string
}

const (
	codexHead = "# Written by sbxrun integrate codex; with --undo it goes.\ndefault = \"sbxrun\"\ninclude_local = false\n"
	codexID   = "sbxrun"
)

func (c CodexEnvironment) entry() (string, error) {
	var doc struct {
		Environments []map[string]any `toml:"environments"`
	}
	doc.Environments = []map[string]any{{"id": codexID, "program": c.Program, "args": c.Args}}
	b, err := toml.Marshal(doc)
	return "\n" + string(b), err
}

// Apply adds the entry: what must come before all tables at the beginning, the rest
// at the end, so that nothing that is there has to be touched.
func (c CodexEnvironment) Apply(before []byte) ([]byte, error) {
	entry, err := c.entry()
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(before, []byte(codexHead)) && bytes.HasSuffix(before, []byte(entry)) {
		return before, nil
	}
	var was, is map[string]any
	if err := toml.Unmarshal(before, &was); err != nil {
		return nil, &EditError{Cause: "is not TOML: " + err.Error(), Fix: "mend it first"}
	}
	for _, key := range []string{"default", "include_local"} {
		if v, ok := was[key]; ok {
			return nil, &EditError{Cause: fmt.Sprintf("says %s = %v already", key, v),
				Fix: "take that line out, or change the file by hand: --print shows to what"}
		}
	}
	text := string(before)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	after := []byte(codexHead + text + entry)
	// What it says now is what it said and the entry, and nothing else.
	if err := toml.Unmarshal(after, &is); err != nil {
		return nil, &EditError{Cause: "cannot have an entry added: " + err.Error(),
			Fix: "change it by hand: --print shows to what"}
	}
	list, _ := is["environments"].([]any)
	old, _ := was["environments"].([]any)
	if len(list) != len(old)+1 || is["default"] != codexID || is["include_local"] != false {
		return nil, &EditError{Cause: "cannot have an entry added", Fix: "change it by hand: --print shows to what"}
	}
	for _, e := range old {
		if m, ok := e.(map[string]any); ok && m["id"] == codexID {
			return nil, &EditError{Cause: "has an environment " + codexID + " already", Fix: "remove that"}
		}
	}
	return after, nil
}

// Revert cuts the entry out.
func (c CodexEnvironment) Revert(now, _ []byte) ([]byte, error) {
	entry, err := c.entry()
	if err != nil {
		return nil, err
	}
	text := string(now)
	if strings.Count(text, codexHead) != 1 || strings.Count(text, entry) != 1 {
		return nil, &EditError{Cause: "was changed since, where sbxrun had changed it",
			Fix: "take out the environment " + codexID + ", default and include_local by hand"}
	}
	text = strings.Replace(strings.Replace(text, codexHead, "", 1), entry, "", 1)
	var is map[string]any
	if err := toml.Unmarshal([]byte(text), &is); err != nil {
		return nil, fmt.Errorf("the changed file would not be TOML: %w", err)
	}
	return []byte(text), nil
}

// CodexSandbox has Codex make no sandbox of its own, in its config.toml.
type CodexSandbox struct{}

const codexSandbox = "# By sbxrun integrate codex, whose sandbox has Codex's commands; with --undo it goes.\nsandbox_mode = \"danger-full-access\"\n"

// codexMode is the line that says what Codex's own sandbox is to be.
var codexMode = regexp.MustCompile(`(?m)^[ \t]*sandbox_mode[ \t]*=[^\n]*(\n|$)`)

// Apply puts the line in the place of the one that is there, or at the beginning:
// before all tables.
func (CodexSandbox) Apply(before []byte) ([]byte, error) {
	was, err := parseTOML(before)
	if err != nil {
		return nil, err
	}
	if v, ok := was["default_permissions"]; ok && v != ":danger-full-access" {
		return nil,
			&EditError{Cause: fmt.Sprintf(
				"says default_permissions = %q, by which Codex makes a sandbox of its own, and that cannot be made in another one",
				v), Fix: "take that line out; sbxrun's sandbox has the commands"}
	}
	v, ok := was["sandbox_mode"]
	if v == "danger-full-access" {
		return before, nil
	}
	after := []byte(codexSandbox + string(before))
	if ok {
		at := codexMode.FindIndex(before)
		if at == nil {
			return nil,
				&EditError{Cause: fmt.Sprintf("says sandbox_mode = %q, and Codex's own sandbox cannot be made in another one", v),
					Fix: `say sandbox_mode = "danger-full-access" there`}
		}
		after = slices.Concat(before[:at[0]], []byte(codexSandbox), before[at[1]:])
	}
	was["sandbox_mode"] = "danger-full-access"
	if is, err := parseTOML(after); err != nil || !reflect.DeepEqual(is, was) {
		return nil, &EditError{Cause: "cannot be changed without changing more",
			Fix: `say sandbox_mode = "danger-full-access" there, by hand`}
	}
	return after, nil
}

// Revert puts the line back that was there, or none.
func (CodexSandbox) Revert(now, before []byte) ([]byte, error) {
	text := string(now)
	if strings.Count(text, codexSandbox) != 1 {
		return nil, &EditError{Cause: "was changed since, where sbxrun had changed it", Fix: "see to sandbox_mode by hand"}
	}
	was, err := parseTOML(before)
	if err != nil {
		return nil, err
	}
	line := ""
	if was["sandbox_mode"] != nil {
		line = string(codexMode.Find(before))
	}
	text = strings.Replace(text, codexSandbox, line, 1)
	_, err = parseTOML([]byte(text))
	return []byte(text), err
}

func parseTOML(text []byte) (map[string]any, error) {
	m := map[string]any{}
	if err := toml.Unmarshal(text, &m); err != nil {
		return nil, &EditError{Cause: "is not TOML: " + err.Error(), Fix: "mend it first"}
	}
	return m, nil
}

// YAML is a key at the top of a YAML file.
type YAML struct{ Key, Value string }

func (y YAML) line() (string, error) {
	b, err := yaml.Marshal(map[string]string{y.Key: y.Value})
	return string(b), err
}

// Apply adds the key at the end, so that nothing that is there has to be touched.
func (y YAML) Apply(before []byte) ([]byte, error) {
	line, err := y.line()
	if err != nil {
		return nil, err
	}
	was, err := parseYAML(before)
	if err != nil {
		return nil, err
	}
	if v, ok := was[y.Key]; ok {
		if v == y.Value {
			return before, nil
		}
		said := "something else" // aliases can make it larger than memory
		if text, ok := v.(string); ok {
			said = strconv.Quote(text)
		}
		return nil, &EditError{Cause: "says " + y.Key + ": " + said + " already", Fix: "take that line out"}
	}
	text := string(before)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	after := []byte(text + line)
	is, err := parseYAML(after)
	if err != nil || is[y.Key] != y.Value || len(is) != len(was)+1 {
		return nil, &EditError{Cause: "cannot have a line added", Fix: "add it by hand: " + strings.TrimSpace(line)}
	}
	for k, v := range was {
		if !reflect.DeepEqual(is[k], v) {
			return nil, &EditError{Cause: "cannot have a line added without changing " + k,
				Fix: "add it by hand: " + strings.TrimSpace(line)}
		}
	}
	return after, nil
}

// Revert cuts the line out.
func (y YAML) Revert(now, _ []byte) ([]byte, error) {
	line, err := y.line()
	if err != nil {
		return nil, err
	}
	if strings.Count("\n"+string(now), "\n"+line) != 1 {
		return nil, &EditError{Cause: "was changed since, where sbxrun had changed it", Fix: "take out " + y.Key + " by hand"}
	}
	text := strings.Replace("\n"+string(now), "\n"+line, "\n", 1)[1:]
	if _, err := parseYAML([]byte(text)); err != nil {
		return nil, err
	}
	return []byte(text), nil
}

func parseYAML(text []byte) (map[string]any, error) {
	m := map[string]any{}
	if len(bytes.TrimSpace(text)) == 0 {
		return m, nil
	}
	if len(text) > 1<<20 {
		return nil, &EditError{Cause: "is too large", Fix: "change it by hand"}
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		return nil, &EditError{Cause: "is not a YAML mapping: " + err.Error(), Fix: "mend it first"}
	}
	return m, nil
}
