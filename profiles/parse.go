package profiles

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/sbxrun/sbxrun/internal/nearest"
)

// Bounds of a profile file. The largest preset has 4 KiB and two levels.
const (
	maxFile  = 64 << 10
	maxDepth = 8
)

// parse reads a profile file. Values carry file:line as their origin, or origin
// itself if that is not empty.
//
// The subset of YAML is small on purpose: one document, no anchors, aliases,
// merge keys or tags, so that a file is never larger than it looks (billion
// laughs), and nothing in it stands for a Go type.
func parse(file, src, origin string) (*profile, error) {
	p := &fileParser{file: file, origin: origin}
	if len(src) > maxFile {
		return nil, &Error{Where: file, What: fmt.Sprintf("is larger than %d KiB", maxFile>>10)}
	}
	if !utf8.ValidString(src) || strings.ContainsRune(src, 0) {
		return nil, &Error{Where: file, What: "is not UTF-8 text"}
	}
	f, err := p.build(src)
	if err != nil {
		return nil, err
	}
	if len(f.Docs) > 1 {
		return nil, p.errorAt(f.Docs[1].Start, "a second document", "keep one document in each file")
	}
	if len(f.Docs) == 0 || f.Docs[0].Body == nil {
		return &p.profile, nil
	}
	if err := p.mapping("", f.Docs[0].Body); err != nil {
		return nil, err
	}
	return &p.profile, nil
}

// build makes a syntax tree. The parser is someone else's and the file may be a
// stranger's: a panic in it is a mistake of the file.
func (p *fileParser) build(src string) (f *ast.File, err error) {
	defer func() {
		if recover() != nil {
			f, err = nil, &Error{Where: p.file, What: "not YAML"}
		}
	}()
	tokens := lexer.Tokenize(src)
	if err := p.checkTokens(tokens); err != nil {
		return nil, err
	}
	// Duplicates are reported later, in one voice with the other mistakes.
	if f, err = parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()); err != nil {
		return nil, p.syntaxError(err)
	}
	return f, nil
}

// tokenOf returns the token at which a node begins, or nil.
func tokenOf(n ast.Node) *token.Token {
	if n == nil {
		return nil
	}
	return n.GetToken()
}

type fileParser struct {
	file    string
	origin  string
	profile profile
	seen    [numKeys]bool
}

func (p *fileParser) errorAt(t *token.Token, what, fix string) error {
	where := p.file
	if t != nil && t.Position != nil {
		where = fmt.Sprintf("%s:%d:%d", p.file, t.Position.Line, t.Position.Column)
	}
	return &Error{Where: where, What: what, Fix: fix}
}

// syntaxError makes one line of goccy/go-yaml's "[3:5] message\n source …": the
// source is left out, for a file that could not be read as a profile may be
// one whose content is nobody's business.
func (p *fileParser) syntaxError(err error) error {
	msg, _, _ := strings.Cut(err.Error(), "\n")
	where := p.file
	if rest, ok := strings.CutPrefix(msg, "["); ok {
		if pos, m, ok := strings.Cut(rest, "] "); ok {
			where, msg = p.file+":"+pos, m
		}
	}
	return &Error{Where: where, What: "not YAML: " + msg, Fix: yamlHint(msg)}
}

// yamlHint is what to do about a mistake that people make, by goccy/go-yaml's words
// for it.
func yamlHint(msg string) string {
	switch {
	case strings.Contains(msg, "'\t'"):
		return "indent with spaces"
	case strings.Contains(msg, "not allowed in this context"), strings.Contains(msg, "non-map value"):
		return "check the indentation: the keys of a group, and the items of a list, each begin in one column"
	}
	return ""
}

// checkTokens refuses, before anything is built from them, tokens that could
// make building expensive.
func (p *fileParser) checkTokens(tokens token.Tokens) error {
	flow, dashes, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position != nil && t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return p.errorAt(t, "anchors, aliases and merge keys are not allowed", "write the value out, or use extends")
		case token.TagType, token.DirectiveType:
			return p.errorAt(t, "tags and directives are not allowed", "")
		case token.MappingKeyType:
			return p.errorAt(t, "? keys are not allowed", "write KEY: VALUE")
		case token.InvalidType:
			return p.errorAt(t, "not YAML: "+t.Error, yamlHint(t.Error))
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType:
			dashes++
		}
		// Block nesting needs a deeper column at each level.
		if flow > maxDepth || dashes > maxDepth || t.Position != nil && t.Position.IndentNum > 16*maxDepth {
			return p.errorAt(t, "is nested too deeply", "a profile has two levels")
		}
	}
	return nil
}

// mapping reads a mapping whose keys begin with prefix ("files.").
func (p *fileParser) mapping(prefix string, n ast.Node) error {
	var entries []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	default:
		what := "a profile is a mapping of keys to values"
		if prefix != "" {
			what = strings.TrimSuffix(prefix, ".") + " is a mapping: want " + strings.Join(keysBelow(prefix), ", ")
		}
		return p.errorAt(tokenOf(n), what, "write KEY: VALUE lines")
	}
	var groups []string // seen at this level
	for _, e := range entries {
		t := e.Key.GetToken()
		if _, ok := e.Key.(*ast.StringNode); !ok {
			return p.errorAt(t, fmt.Sprintf("key %s is not text", strconv.Quote(t.Value)), "")
		}
		name := prefix + t.Value
		// A dot in the file's own key is not nesting: each key has one spelling.
		if k, ok := findKey(name); ok && !strings.Contains(t.Value, ".") {
			if p.seen[k] {
				return p.errorAt(t, "duplicate key "+name, "keep one of them")
			}
			p.seen[k] = true
			if err := p.value(k, e.Value); err != nil {
				return err
			}
			continue
		}
		if prefix == "" && !strings.Contains(name, ".") && len(keysBelow(name+".")) > 0 {
			if slices.Contains(groups, name) {
				return p.errorAt(t, "duplicate key "+name, "keep one of them")
			}
			groups = append(groups, name)
			if err := p.mapping(name+".", e.Value); err != nil {
				return err
			}
			continue
		}
		return p.errorAt(t, "unknown key "+name, p.suggest(prefix, t.Value))
	}
	return nil
}

// suggest names the key that was meant: one of this level, or one of another.
func (p *fileParser) suggest(prefix, name string) string {
	level := keysBelow(prefix)
	if c := nearest.Name(name, level); c != "" {
		if strings.EqualFold(c, name) {
			return "keys are in lower case: " + prefix + c
		}
		return "did you mean " + prefix + c + "?"
	}
	for i := range keys {
		if keys[i].env != "" && strings.EqualFold(keys[i].env, name) && !strings.HasSuffix(keys[i].name, name) {
			return "did you mean " + keys[i].name + "? the flag has another name"
		}
	}
	for i := range keys {
		if _, last, ok := strings.Cut(keys[i].name, "."); ok && nearest.Name(name, []string{last}) != "" ||
			keys[i].name == name {
			return "did you mean " + keys[i].name + "? write it as nested keys"
		}
	}
	return "want one of " + strings.Join(level, ", ")
}

// keysBelow lists the key names that follow prefix, groups once.
func keysBelow(prefix string) []string {
	var out []string
	for i := range keys {
		rest, ok := strings.CutPrefix(keys[i].name, prefix)
		if !ok {
			continue
		}
		rest, _, _ = strings.Cut(rest, ".")
		if len(out) == 0 || out[len(out)-1] != rest {
			out = append(out, rest)
		}
	}
	return out
}

// findKey returns the key of that dotted name.
func findKey(name string) (key, bool) {
	for i := range keys {
		if keys[i].name == name {
			return key(i), true
		}
	}
	return 0, false
}

// value reads the value of key k.
func (p *fileParser) value(k key, n ast.Node) error {
	t := tokenOf(n)
	if keys[k].kind != kindList {
		text, err := p.scalar(k, n)
		if err != nil {
			return err
		}
		v, err := parseScalar(k, text, p.originAt(t))
		if err != nil {
			return p.at(t, err)
		}
		p.profile.values[k] = v
		return nil
	}
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return p.errorAt(t, keys[k].name+" is a list", "write each item as - ITEM")
	}
	var parts []part
	for _, item := range seq.Values {
		t := tokenOf(item)
		s, ok := item.(*ast.StringNode)
		if !ok || s.Value == "" {
			fix := ""
			if t != nil && t.Value == "~" {
				fix = `write "~" in quotes: alone it means null in YAML`
			}
			return p.errorAt(t, keys[k].name+" is a list of texts", fix)
		}
		if err := checkItem(k, s.Value); err != nil {
			return p.at(t, err)
		}
		origin := p.originAt(t)
		if len(parts) > 0 && parts[len(parts)-1].origin == origin {
			last := &parts[len(parts)-1]
			last.items = append(last.items, s.Value)
			continue
		}
		parts = append(parts, part{origin, []string{s.Value}})
	}
	p.profile.values[k].parts = parts
	return nil
}

// scalar returns the text of a value and refuses the wrong type: a number is
// not a text, and the text "true" is not a boolean.
func (p *fileParser) scalar(k key, n ast.Node) (string, error) {
	t := tokenOf(n)
	kind := keys[k].kind
	ok, want := false, ""
	var text string
	switch n := n.(type) {
	case *ast.StringNode:
		text = n.Value
		ok = kind != kindBool
	case *ast.BoolNode:
		text = strconv.FormatBool(n.Value)
		ok = kind == kindBool
	case *ast.IntegerNode:
		text = t.Value
		ok = kind == kindSize || kind == kindCPUs || kind == kindCount
	case *ast.FloatNode:
		text = t.Value
		ok = kind == kindCPUs
	}
	if ok {
		return text, nil
	}
	switch kind {
	case kindText:
		want = "text: put it in quotes"
	case kindEnum:
		want = strings.Join(keys[k].enum, ", ")
	case kindBool:
		want = "true or false"
	case kindSize:
		want = "a size such as 512m, or none"
	case kindCPUs:
		want = "a number such as 1.5, or none"
	case kindCount:
		want = "a whole number, or none"
	case kindDuration:
		want = "a duration such as 30s, or none"
	}
	return "", p.errorAt(t, keys[k].name+" has a value of the wrong type", "want "+want)
}

func (p *fileParser) originAt(t *token.Token) string {
	if p.origin != "" || t == nil || t.Position == nil {
		return p.origin
	}
	return p.file + ":" + strconv.Itoa(t.Position.Line)
}

// at gives err the place of t.
func (p *fileParser) at(t *token.Token, err error) error {
	if e, ok := err.(*Error); ok {
		return p.errorAt(t, e.What, e.Fix)
	}
	return p.errorAt(t, err.Error(), "")
}
