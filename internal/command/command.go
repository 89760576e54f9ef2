// Package command decides which commands of a shell script a list allows.
//
// A script is parsed as bash would, and every command in it is looked up: in
// pipelines, lists, functions, loops, command and process substitutions, and in
// what env, xargs, timeout, find -exec, bash -c and their like are given to run.
// A word that only the shell's expansion would make known is refused, because
// nobody can tell what it runs.
//
// It is a convenience for who calls a model's commands: a refusal names the word
// and says what is allowed, before anything runs. It is never the boundary. An
// allowed interpreter, build tool or editor runs whatever it is told to; what
// keeps that in is the sandbox.
package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// Config says which commands are allowed, as a configuration has it.
type Config struct {
	// UseDefault starts from the built-in lists; nil is true.
	UseDefault *bool `json:"use_default,omitempty"`

	// Additional are allowed beside, Exclude are taken out, and Custom, if it is
	// not empty, takes the place of all the others. An entry is a command
	// ("make"), or a command and the words that it must be called with ("go
	// test", "npm run build").
	Additional []string `json:"additional,omitempty"`
	Exclude    []string `json:"exclude,omitempty"`
	Custom     []string `json:"custom_list,omitempty"`

	// Denied are refused whatever is allowed, beside the built-in ones.
	Denied []string `json:"denied,omitempty"`
}

// Rules is a list that decides. The zero value allows nothing.
type Rules struct {
	allowed map[string][]rule // by command
	denied  map[string][]rule
	list    []string // allowed, for people, in order
	refused []string
}

// A rule is a command and the words that must follow.
type rule struct {
	text  string
	words []string // after the command
}

// groups are the built-in allowed commands, by what they are for.
var groups = []struct {
	name string
	list []string
}{
	{"build and packages", []string{"npm", "yarn", "pnpm", "pip", "pip3", "conda", "mamba", "python", "python3", "go",
		"cargo", "mvn", "maven", "gradle", "make", "cmake", "bundle", "gem", "composer", "dotnet"}},
	{"test", []string{"pytest", "jest", "mocha", "rspec", "phpunit", "go test", "cargo test", "dotnet test"}},
	{"lint and format", []string{"eslint", "prettier", "black", "flake8", "pylint", "mypy", "rubocop", "gofmt", "golint",
		"rustfmt", "clippy", "tsc"}},
	{"files", []string{"ls", "cat", "head", "tail", "grep", "find", "wc", "diff", "tree", "file", "stat"}},
	{"git", []string{"git status", "git diff", "git log", "git branch", "git show", "git blame"}},
	{"utilities", []string{"echo", "pwd", "cd", "mkdir", "rm", "cp", "mv", "touch", "chmod", "env", "which", "curl",
		"wget", "tar", "unzip", "jq", "sed", "awk", "sort", "uniq", "xargs"}},
}

// defaultDenied are refused in any case.
var defaultDenied = []string{
	"sudo", "su", "rm -rf", "chmod 777", "chown", "mount", "umount", "iptables", "ip6tables", "systemctl", "service",
	"kill", "killall",
	"reboot", "shutdown", "dd", "mkfs", "fdisk", "parted", "nc", "netcat", "nmap", "ssh", "scp", "rsync",
}

// builtins are the shell's own words that start no program and open nothing that
// a redirection could not.
var builtins = []string{
	":", "true", "false", "test", "[", "printf", "export", "set", "unset", "read", "return", "exit", "shift", "wait",
	"local", "declare",
	"readonly", "typeset", "getopts", "break", "continue", "let", "shopt", "umask", "ulimit", "hash", "type", "pushd",
	"popd", "dirs", "mapfile", "readarray", "trap", "times", "jobs", "fg", "bg", "disown", "alias", "unalias",
}

// New makes the rules of a configuration.
func New(c Config) (*Rules, error) {
	r := &Rules{allowed: map[string][]rule{}, denied: map[string][]rule{}}
	var allow []string
	switch {
	case len(c.Custom) > 0:
		allow = slices.Clone(c.Custom)
	case c.UseDefault == nil || *c.UseDefault:
		for _, g := range groups {
			allow = append(allow, g.list...)
		}
	}
	if len(c.Custom) == 0 {
		allow = append(allow, c.Additional...)
	}
	allow = slices.DeleteFunc(allow, func(a string) bool { return slices.Contains(c.Exclude, a) })
	for _, list := range []struct {
		from  []string
		field string
		to    map[string][]rule
		text  *[]string
	}{{allow, "allowed_commands", r.allowed, &r.list},
		{append(slices.Clone(defaultDenied), c.Denied...), "denied_commands", r.denied, &r.refused}} {
		for _, text := range list.from {
			words := strings.Fields(text)
			if len(words) == 0 || strings.ContainsAny(text, "\x00\n;|&<>$`\"'\\") {
				return nil, &policy.InvalidError{Field: list.field, Value: text,
					Want: `a command, or a command and words that follow, such as "go test"`}
			}
			if !slices.Contains(*list.text, text) {
				*list.text = append(*list.text, text)
				list.to[words[0]] = append(list.to[words[0]], rule{text, words[1:]})
			}
		}
	}
	return r, nil
}

// Allowed lists what is allowed, in words.
func (r *Rules) Allowed() []string { return slices.Clone(r.list) }

// Denied lists what is refused whatever is allowed.
func (r *Rules) Denied() []string { return slices.Clone(r.refused) }

// Describe groups what is allowed, for a person or a model to read.
func (r *Rules) Describe() string {
	var b strings.Builder
	rest := slices.Clone(r.list)
	for _, g := range groups {
		var in []string
		for _, c := range g.list {
			if i := slices.Index(rest, c); i >= 0 {
				in = append(in, c)
				rest = slices.Delete(rest, i, i+1)
			}
		}
		if len(in) > 0 {
			fmt.Fprintf(&b, "- %s: %s\n", g.name, strings.Join(in, ", "))
		}
	}
	if len(rest) > 0 {
		fmt.Fprintf(&b, "- others: %s\n", strings.Join(rest, ", "))
	}
	return b.String()
}

// A Decision is what the rules say of a script.
type Decision struct {
	Allowed  bool      `json:"allowed"`
	Refusals []Refusal `json:"refusals"`
}

// A Refusal is a command of a script that is not allowed.
type Refusal struct {
	Command string `json:"command"` // the words of this command, shortened
	Word    string `json:"word"`    // the one that decided
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Rule    string `json:"rule,omitempty"` // of the denied ones; "" if none allows it
	Reason  string `json:"reason"`
}

func (f Refusal) String() string {
	return fmt.Sprintf("%d:%d: %s: %s", f.Line, f.Column, quote.Inside(f.Word), f.Reason)
}

// lookup decides on one command by its words. The empty string is yes.
func (r *Rules) lookup(words []string) (reason, by string) {
	name := words[0]
	base := name
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		base = name[i+1:]
	}
	for _, rule := range r.denied[base] {
		if rule.matchesDenied(words[1:]) {
			return "denied by the rule " + quoted(rule.text), rule.text
		}
	}
	if name != base && !systemDir(name[:len(name)-len(base)]) {
		// A program of its own that is called like an allowed one is not that.
		for _, rule := range r.allowed[name] {
			if rule.matchesAllowed(words[1:]) {
				return "", rule.text
			}
		}
		return "is a program by path, and not in the list", ""
	}
	if slices.Contains(builtins, name) {
		return "", "builtin"
	}
	var near []string
	for _, rule := range r.allowed[base] {
		if rule.matchesAllowed(words[1:]) {
			return "", rule.text
		}
		near = append(near, quoted(rule.text))
	}
	if len(near) > 0 {
		return "only " + strings.Join(near, ", ") + " is allowed of it", ""
	}
	return "is not in the list of allowed commands", ""
}

func quoted(s string) string { return `"` + s + `"` }

// systemDir reports whether programs in a directory are what their names say.
func systemDir(dir string) bool {
	return slices.Contains([]string{"/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/", "/usr/local/sbin/"},
		dir)
}

// matchesAllowed reports whether the rule's words are the first that are no
// flags: "go test" is also go -C dir test? It is not: a flag before the word may
// take it as its value.
func (r rule) matchesAllowed(args []string) bool {
	return len(args) >= len(r.words) && slices.Equal(args[:len(r.words)], r.words)
}

// matchesDenied reports whether all the rule's words are among the arguments, in
// any order and spelling: -rf is -r -f, -fr and --recursive --force; 777 is 0777.
func (r rule) matchesDenied(args []string) bool {
	return !slices.ContainsFunc(r.words, func(w string) bool { return !has(args, w) })
}

// longFlags are the long spellings of flags in denied rules.
var longFlags = map[byte][]string{'r': {"--recursive"}, 'R': {"--recursive"}, 'f': {"--force"}}

func has(args []string, word string) bool {
	if len(word) > 1 && word[0] == '-' && word[1] != '-' {
		for i := 1; i < len(word); i++ {
			if !hasFlag(args, word[i]) {
				return false
			}
		}
		return true
	}
	return slices.ContainsFunc(args, func(a string) bool {
		return a == word || strings.TrimLeft(a, "0") == word && strings.Trim(word, "01234567") == ""
	})
}

func hasFlag(args []string, flag byte) bool {
	for _, a := range args {
		switch {
		case a == "--":
			return false
		case strings.HasPrefix(a, "--"):
			// getopt_long takes any unambiguous beginning.
			for _, long := range longFlags[flag] {
				if len(a) > 3 && strings.HasPrefix(long, a) {
					return true
				}
			}
		case strings.HasPrefix(a, "-"):
			if strings.IndexByte(a, flag) > 0 || flag == 'r' && strings.IndexByte(a, 'R') > 0 {
				return true
			}
		}
	}
	return false
}
