package persona

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// Claude is where Claude Code has its files on this host.
type Claude struct {
	// Config is the configuration directory, Temp the directories that its
	// temporary files can be in. All are clean and absolute.
	Config string
	Temp   []string
}

// A Wrapped is a script of Claude Code's Bash tool:
//
//	source SNAPSHOT 2>/dev/null || true && … && eval 'COMMAND' < /dev/null && pwd -P >| CWD
//
// SNAPSHOT, a file of the host, has the user's aliases, functions and options;
// into CWD, another, goes the directory in which the next command is to start.
// Neither is shown to the sandbox. The script that it is given reads the
// snapshot from a descriptor, which holds a copy, and writes the directory to
// another, so that what comes out can be looked at before the host's file is
// written.
type Wrapped struct {
	Snapshot string // file to copy; "" if the script sources none
	Cwd      string // file for the directory; "" if the script tells none

	head, body string
}

// Claude Code writes this around a command, at the very beginning and end of the script.
// Its names in either place are of one shape, and only in its own directories: whatever a
// model says in between, at most a file of that name is read or written.
//
// Regular expressions would take half a millisecond of each call to compile.
const (
	sourceBefore, sourceAfter = "source ", " 2>/dev/null || true && "
	tellBefore                = " && pwd -P >| "

	digits   = "0123456789"
	lower    = digits + "abcdefghijklmnopqrstuvwxyz"
	unquoted = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ_@%+=:,./-" // it leaves words of these unquoted
)

// Wrap recognises a script of Claude Code's. It reports false for every other,
// which is to run as it is.
func Wrap(script string, c Claude) (*Wrapped, bool) {
	w := &Wrapped{body: script}
	if rest, ok := strings.CutPrefix(script, sourceBefore); ok {
		file, rest, ok := word(rest)
		if rest, whole := strings.CutPrefix(rest, sourceAfter); ok && whole && c.snapshot(file) {
			w.Snapshot, w.head, w.body = file, script[:len(script)-len(rest)], rest
		}
	}
	if at, file := tells(w.body); at >= 0 && c.cwd(file) {
		w.Cwd, w.body = file, w.body[:at]
	}
	return w, w.Snapshot != "" || w.Cwd != ""
}

// word returns the word of a shell that a text begins with, and what follows it.
func word(s string) (word, rest string, ok bool) {
	if s, quoted := strings.CutPrefix(s, "'"); quoted {
		word, rest, ok = strings.Cut(s, "'")
		return word, rest, ok && word != "" && !strings.ContainsAny(word, "\x00\n")
	}
	rest = strings.TrimLeft(s, unquoted)
	word = s[:len(s)-len(rest)]
	return word, rest, word != ""
}

// tells finds the end of a script that writes its directory to a file; -1 if there is none.
func tells(script string) (at int, file string) {
	for from := 0; ; {
		at = strings.Index(script[from:], tellBefore)
		if at < 0 {
			return -1, ""
		}
		at += from
		if file, rest, ok := word(script[at+len(tellBefore):]); ok && rest == "" {
			return at, file
		}
		from = at + 1
	}
}

// snapshot reports whether a file is one of the user's shell's state.
func (c *Claude) snapshot(file string) bool {
	name, script := strings.CutSuffix(path.Base(file), ".sh")
	part := strings.Split(name, "-")
	return script && len(part) == 4 && part[0] == "snapshot" && slices.Contains(Shells, part[1]) &&
		consists(part[2], digits, 1, 20) && consists(part[3], lower, 1, 20) &&
		c.Config != "" && path.Dir(file) == path.Join(c.Config, "shell-snapshots")
}

// cwd reports whether a file is one for the directory that a script ended in.
func (c *Claude) cwd(file string) bool {
	name, before := strings.CutPrefix(path.Base(file), "claude-")
	name, after := strings.CutSuffix(name, "-cwd")
	return before && after && consists(name, lower, 4, 32) && slices.Contains(c.Temp, path.Dir(file))
}

// consists reports whether a text has from least to most of these characters, and no other.
func consists(s, of string, least, most int) bool {
	return len(s) >= least && len(s) <= most && strings.Trim(s, of) == ""
}

// Script returns the script as it is to run in the sandbox. The descriptors are
// those that the shell is started with; each counts only if the script has a use
// for it. They are moved out of the way of scripts, which use small numbers, where
// the shell knows higher ones.
func (w *Wrapped) Script(shell string, snapshotFD, cwdFD int) string {
	snap, cwd := 188, 187
	if shell != "bash" { // POSIX knows no descriptor of two digits, and zsh neither
		snap, cwd = 8, 9
	}
	var b strings.Builder
	move := func(from, to int) {
		b.WriteString("exec " + strconv.Itoa(to) + ">&" + strconv.Itoa(from) + " " + strconv.Itoa(from) + ">&-; ")
	}
	if w.Cwd != "" {
		move(cwdFD, cwd)
	}
	if w.Snapshot != "" {
		move(snapshotFD, snap)
		from := strconv.Itoa(snap)
		source := "source"
		if shell == "sh" {
			source = "."
		}
		b.WriteString(source + " /dev/fd/" + from + " 2>/dev/null || true && exec " + from + ">&- && ")
	}
	b.WriteString(w.body)
	if w.Cwd != "" {
		b.WriteString(" && pwd -P >&" + strconv.Itoa(cwd))
	}
	return b.String()
}

// Told returns the directory that a script told last; "" if none, or nothing that
// could be one. It comes from the sandbox: the caller has yet to see whether there
// is such a directory, and whether the sandbox shows it.
func Told(said string) string {
	said, whole := strings.CutSuffix(said, "\n")
	if !whole {
		return ""
	}
	dir := said[strings.LastIndexByte(said, '\n')+1:]
	if !path.IsAbs(dir) || path.Clean(dir) != dir || len(dir) > 4096 {
		return ""
	}
	for _, r := range dir {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return ""
		}
	}
	return dir
}

// Forget has the script do without its snapshot, as it does where there is none.
func (w *Wrapped) Forget() { w.Snapshot, w.head = "", "" }

// Telling returns a script that does what another does, and then tells the
// directory in which it ended on a descriptor that it is started with. If it
// failed, or ended by exit, it tells nothing, and its code is what it was: so the
// directory persists as in Claude Code's own script.
func Telling(shell, script string, fd int) string {
	to := "187"
	if shell != "bash" {
		to = "9"
	}
	from := strconv.Itoa(fd)
	return "exec " + to + ">&" + from + " " + from + ">&-; eval " + Quote(script) +
		"; case $? in (0) pwd -P >&" + to + ";; (*) exit;; esac"
}

// Quote makes one word of a text, for any shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" }
