// Package persona knows how coding agents call a shell, so that sbxrun can stand
// in its place.
//
// An agent is told which shell to use and expects one: the options of bash, a
// directory that persists from call to call, its exit codes. What the options
// mean is the shell's own business: they are handed on, as they are, to a shell
// inside the sandbox, so that nothing here can be misread in a way that runs a
// command outside. What must be understood is what an agent's script wants of the
// host beyond the workspace, and that is recognised by its exact shape; see
// [Wrap].
//
// The package decides and does nothing: it opens no file and starts no program.
package persona

import (
	"path"
	"strings"
)

// Shells are the names under which sbxrun is a shell.
var Shells = []string{"bash", "sh", "zsh"}

// Name returns the shell that argv[0] asks for, "" if it names none. A dash in
// front is how login(1) marks a login shell.
func Name(argv0 string) string {
	base := strings.TrimPrefix(path.Base(argv0), "-")
	for _, s := range Shells {
		if base == s {
			return s
		}
	}
	return ""
}

// Script returns the place in a shell's arguments, without argv[0], of the script
// that its option -c runs. It reports false if there is none, or if it cannot
// tell: then the arguments are handed on as they are.
func Script(args []string) (at int, ok bool) {
	command := false
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--" || arg == "-":
			return i + 1, command && i+1 < len(args)
		case strings.HasPrefix(arg, "--"):
			switch arg {
			case "--rcfile", "--init-file":
				i++
			}
		case len(arg) > 1 && (arg[0] == '-' || arg[0] == '+'):
			if strings.ContainsRune(arg[1:], 'c') && arg[0] == '-' {
				command = true
			}
			// Each o or O takes one of the following words.
			i += strings.Count(arg[1:], "o") + strings.Count(arg[1:], "O")
		default:
			return i, command
		}
	}
	return 0, false
}

// passed are the variables of an agent that its commands are given: what tells
// programs that an agent calls them, and keeps them from waiting for a person.
// What an agent has for itself (API keys, sockets and tokens to message it) is
// not among them.
var passed = []string{
	"CLAUDECODE", "AI_AGENT", "AGENT", "GEMINI_CLI", "OPENCODE", "GOOSE_TERMINAL", "CODEX_CI",
	"GIT_EDITOR", "GIT_PAGER", "PAGER", "MANPAGER", "GH_PAGER", "EDITOR", "VISUAL", "GIT_TERMINAL_PROMPT",
	"DEBIAN_FRONTEND",
}

// Environ returns what of an agent's environment its commands are given beside
// what the profile passes: a few names, and of them only values that are one
// plain word. A key is none, and a path would be one of the host.
func Environ(environ []string) []string {
	var env []string
	for _, name := range passed {
		for _, kv := range environ {
			if v, ok := strings.CutPrefix(kv, name+"="); ok && plain(v) {
				env = append(env, kv)
				break
			}
		}
	}
	return env
}

// plain reports whether a value is a word that can be no path, no list and no
// key: at most 32 bytes.
func plain(v string) bool {
	if v == "" || len(v) > 32 {
		return false
	}
	for i := 0; i < len(v); i++ {
		c := v[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-.:", c) >= 0) {
			return false
		}
	}
	return true
}

// Path returns a search path without the directories in which a shell's name
// leads back to sbxrun, which inside could not build a sandbox of its own.
func Path(list string, ours func(file string) bool) string {
	var keep []string
	for dir := range strings.SplitSeq(list, ":") {
		own := false
		for _, s := range Shells {
			own = own || ours(path.Join(dir, s))
		}
		if !own {
			keep = append(keep, dir)
		}
	}
	return strings.Join(keep, ":")
}
