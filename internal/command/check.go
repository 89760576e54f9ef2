package command

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// maxDepth bounds scripts within scripts (bash -c "bash -c …"), maxScript their
// length, bytes: an argument list may take 2 MiB.
const (
	maxDepth  = 8
	maxScript = 2 << 20
)

// Check decides on a script of bash's.
func (r *Rules) Check(script string) Decision {
	c := &checker{rules: r}
	c.script(script, 0, syntax.Pos{})
	return Decision{Allowed: len(c.refusals) == 0, Refusals: append([]Refusal{}, c.refusals...)}
}

// CheckArgs decides on a command that is executed as it is, without a shell.
func (r *Rules) CheckArgs(args []string) Decision {
	c := &checker{rules: r}
	words := make([]word, len(args))
	for i, a := range args {
		words[i] = word{a, true}
	}
	if len(words) > 0 {
		c.command(words, 0, syntax.Pos{})
	} else {
		c.refuse(nil, "", syntax.Pos{}, "", "no command")
	}
	return Decision{Allowed: len(c.refusals) == 0, Refusals: append([]Refusal{}, c.refusals...)}
}

type checker struct {
	rules    *Rules
	refusals []Refusal
	funcs    map[string]bool
}

// maxRefusals is how many are told.
const maxRefusals = 32

func (c *checker) refuse(words []word, at string, pos syntax.Pos, by, reason string) {
	if len(c.refusals) >= maxRefusals {
		return
	}
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		if w.known {
			b.WriteString(w.text)
		} else {
			b.WriteString("…")
		}
		if b.Len() > 120 {
			b.WriteString("…")
			break
		}
	}
	c.refusals = append(c.refusals, Refusal{Command: b.String(), Word: at, Line: int(pos.Line()),
		Column: int(pos.Col()), Rule: by, Reason: reason})
}

// word is one of a command's words, if it is known before the script runs.
type word struct {
	text  string
	known bool
}

// script checks a whole script. Positions in one that is within another are
// those of the outermost word.
func (c *checker) script(text string, depth int, outer syntax.Pos) {
	if depth > maxDepth {
		c.refuse(nil, "script", outer, "", "scripts within scripts, too deep to follow")
		return
	}
	if len(text) > maxScript {
		c.refuse(nil, "script", outer, "", "longer than a command line can be")
		return
	}
	f, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		what := err.Error()
		if pe, ok := err.(syntax.ParseError); ok {
			what = pe.Text
			if depth == 0 {
				outer = pe.Pos
			}
		}
		c.refuse(nil, "syntax", outer, "", "is not a script that bash would read: "+what)
		return
	}
	// Functions first: they may be called before they are written.
	funcs := c.funcs
	c.funcs = map[string]bool{}
	for k := range funcs {
		c.funcs[k] = true
	}
	syntax.Walk(f, func(n syntax.Node) bool {
		if d, ok := n.(*syntax.FuncDecl); ok && d.Name != nil {
			c.funcs[d.Name.Value] = true
		}
		return true
	})
	syntax.Walk(f, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		pos := call.Pos()
		if depth > 0 {
			pos = outer
		}
		words := make([]word, len(call.Args))
		for i, w := range call.Args {
			words[i].text, words[i].known = literal(w)
		}
		c.command(words, depth, pos)
		return true // substitutions in the words are walked as well
	})
	c.funcs = funcs
}

// command checks one command, and what it is told to run.
func (c *checker) command(words []word, depth int, pos syntax.Pos) {
	if !words[0].known {
		c.refuse(words, "…", pos, "", "the command is known only when the script runs")
		return
	}
	name := words[0].text
	if c.funcs[name] {
		return // its body is checked where it is written
	}
	base := name[strings.LastIndexByte(name, '/')+1:]
	if run, script, ok := wrapped(base, words[1:]); ok {
		// The wrapper itself must be allowed too, if it is no word of the
		// shell's.
		if !wordsOfShell[base] {
			c.one(words, pos)
		}
		switch {
		case script != nil && !script.known:
			c.refuse(words, base, pos, "", "the script that it runs is known only when it runs")
		case script != nil:
			c.script(script.text, depth+1, pos)
		case len(run) > 0:
			c.command(run, depth+1, pos)
		}
		return
	}
	c.one(words, pos)
	if base == "find" {
		c.found(words, depth, pos)
	}
}

// found checks the commands that find is told to run.
func (c *checker) found(words []word, depth int, pos syntax.Pos) {
	for i, w := range words {
		if !slices.Contains([]string{"-exec", "-execdir", "-ok", "-okdir"}, w.text) {
			continue
		}
		run := words[i+1:]
		if end := slices.IndexFunc(run, func(w word) bool { return w.text == ";" || w.text == "+" }); end >= 0 {
			run = run[:end]
		}
		if len(run) > 0 {
			c.command(run, depth+1, pos)
		}
	}
}

// one looks a command up.
func (c *checker) one(words []word, pos syntax.Pos) {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = w.text
		if !w.known {
			texts[i] = "\x00" // equal to nothing that a rule can say
		}
	}
	if reason, by := c.rules.lookup(texts); reason != "" {
		c.refuse(words, texts[0], pos, by, reason)
		return
	}
	// A rule on arguments cannot be judged by arguments that nobody knows yet.
	for _, d := range c.rules.denied[texts[0][strings.LastIndexByte(texts[0], '/')+1:]] {
		if len(d.words) == 0 {
			continue
		}
		for _, w := range words[1:] {
			if !w.known && strings.HasPrefix(d.words[0], "-") && strings.HasPrefix(w.text, "-") {
				c.refuse(words, texts[0], pos, d.text,
					"its flags are known only when the script runs, and "+quoted(d.text)+" is denied")
				return
			}
		}
	}
}

// literal returns a word's value if no expansion is needed to know it. Globs are
// left as they are: a name that has one is a name. If the value is not known the
// text is how it begins.
func literal(w *syntax.Word) (string, bool) {
	var b strings.Builder
	for _, p := range w.Parts {
		switch p := p.(type) {
		case *syntax.Lit:
			b.WriteString(unescape(p.Value, false))
		case *syntax.SglQuoted:
			if p.Dollar {
				return b.String(), false // $'…' has escapes of its own
			}
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			if p.Dollar {
				return b.String(), false
			}
			for _, q := range p.Parts {
				l, ok := q.(*syntax.Lit)
				if !ok {
					return b.String(), false
				}
				b.WriteString(unescape(l.Value, true))
			}
		default:
			return b.String(), false
		}
	}
	s := b.String()
	if strings.HasPrefix(s, "~") {
		return s, true
	}
	// Braces make several words of one.
	if strings.Contains(s, "{") && strings.Contains(s, ",") && strings.Contains(s, "}") && len(w.Parts) == 1 {
		return s, false
	}
	return s, true
}

// unescape removes the backslashes that quote.
func unescape(s string, double bool) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			if s[i+1] == '\n' {
				i++
				continue
			}
			if !double || strings.IndexByte("$`\"\\", s[i+1]) >= 0 {
				i++
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// wordsOfShell run another command and are no programs.
var wordsOfShell = map[string]bool{"command": true, "builtin": true, "exec": true, "eval": true, "time": true,
	"bash": true, "sh": true, "dash": true, "zsh": true, "ksh": true,
	"nohup": true, "nice": true, "ionice": true, "timeout": true, "stdbuf": true, "setsid": true, "busybox": true,
	"source": true, ".": true, "chrt": true, "taskset": true}

// withValue are the flags of programs that run another which take a value.
var withValue = map[string]string{
	"env": "uCS", "xargs": "aEIdLnPs", "nice": "n", "timeout": "ks", "stdbuf": "ioe", "ionice": "cnp", "exec": "a",
	"chrt": "", "taskset": "", "nohup": "", "setsid": "", "command": "", "builtin": "", "time": "fo",
}

// ofShell returns the script file, or the script, that a shell is told to run.
func ofShell(args []word) (run []word, script *word) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		if !a.known {
			return nil, &word{}
		}
		switch {
		case slices.Contains([]string{"-o", "+o", "-O", "+O"}, a.text):
			i++
		case strings.HasPrefix(a.text, "--"):
		case a.text != "" && a.text[0] == '-' && strings.Contains(a.text, "c"):
			// The script is the first word after the flags.
			rest := args[i+1:]
			if at := slices.IndexFunc(rest, func(a word) bool { return !a.known || !isFlag(a.text) }); at >= 0 {
				return nil, &rest[at]
			}
			return nil, &word{}
		case !isFlag(a.text):
			return args[i:], nil // a script file: looked up by its path
		}
	}
	return nil, &word{} // reads commands from its input
}

func isFlag(s string) bool { return strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") }

// ofFlags returns how many words are flags of a program that runs another, and false if
// that cannot be known.
func ofFlags(base, flags string, args []word) (n int, known bool) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case !a.known:
			return 0, false
		case a.text == "--":
			return i + 1, true
		case base == "env" && strings.Contains(a.text, "=") && !strings.HasPrefix(a.text, "-"):
		case !strings.HasPrefix(a.text, "-") || a.text == "-":
			return i, true
		case base == "env" && (a.text == "-S" || strings.HasPrefix(a.text, "--split-string")):
			return 0, false
		case len(a.text) == 2 && strings.IndexByte(flags, a.text[1]) >= 0:
			i++
		}
	}
	return len(args), true
}

// joined is one word of several, as eval has it.
func joined(args []word) *word {
	var texts []string
	for _, a := range args {
		if !a.known {
			return &word{}
		}
		texts = append(texts, a.text)
	}
	return &word{strings.Join(texts, " "), true}
}

// wrapped returns the command, or the script, that a program is told to run.
func wrapped(base string, args []word) (run []word, script *word, ok bool) {
	switch base {
	case "bash", "sh", "dash", "zsh", "ksh":
		run, script = ofShell(args)
		return run, script, true
	case "eval":
		return nil, joined(args), true
	case "source", ".":
		return args, nil, true
	case "command":
		if len(args) > 0 && (args[0].text == "-v" || args[0].text == "-V") {
			return nil, nil, true // says what a name is
		}
	}
	flags, known := withValue[base]
	if !known {
		return nil, nil, false
	}
	i, known := ofFlags(base, flags, args)
	if !known {
		return nil, &word{}, true
	}
	if slices.Contains([]string{"timeout", "taskset", "chrt"}, base) {
		i++ // the duration, the mask, the priority
	}
	if i >= len(args) {
		return nil, nil, base != "env" && base != "command" // env alone prints
	}
	return args[i:], nil, true
}
