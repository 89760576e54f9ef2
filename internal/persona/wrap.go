package persona

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
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

// What is matched is what Claude Code itself writes around a command, at the very
// beginning and end of the script. Its names in either place are of one shape,
// and only in its own directories: whatever a model says in between, at most a
// file of that name is read or written.
var (
	sources = lazily(`^source (?:([A-Za-z0-9_@%+=:,./-]+)|'([^'\x00\n]+)') 2>/dev/null \|\| true && `)
	tells   = lazily(` && pwd -P >\| (?:([A-Za-z0-9_@%+=:,./-]+)|'([^'\x00\n]+)')$`)

	snapshotName = lazily(`^snapshot-(bash|zsh|sh)-[0-9]{1,20}-[a-z0-9]{1,20}\.sh$`)
	cwdName      = lazily(`^claude-[0-9a-z]{4,32}-cwd$`)
)

// lazily compiles an expression when it is first used: every run of sbxrun would
// pay for it otherwise.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// Wrap recognises a script of Claude Code's. It reports false for every other,
// which is to run as it is.
func Wrap(script string, c Claude) (*Wrapped, bool) {
	w := &Wrapped{body: script}
	if m := sources().FindStringSubmatch(script); m != nil {
		if file := m[1] + m[2]; c.Config != "" && path.Dir(file) == path.Join(c.Config, "shell-snapshots") && snapshotName().MatchString(path.Base(file)) {
			w.Snapshot, w.head, w.body = file, m[0], script[len(m[0]):]
		}
	}
	if at := tells().FindStringSubmatchIndex(w.body); at != nil {
		m := tells().FindStringSubmatch(w.body[at[0]:])
		file := m[1] + m[2]
		for _, dir := range c.Temp {
			if path.Dir(file) == dir && cwdName().MatchString(path.Base(file)) {
				w.Cwd, w.body = file, w.body[:at[0]]
				break
			}
		}
	}
	return w, w.Snapshot != "" || w.Cwd != ""
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
	return "exec " + to + ">&" + from + " " + from + ">&-; eval " + Quote(script) + " && pwd -P >&" + to
}

// Quote makes one word of a text, for any shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" }
