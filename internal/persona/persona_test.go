package persona

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	for argv0, want := range map[string]string{
		"bash": "bash", "/usr/local/bin/bash": "bash", "-bash": "bash", "/opt/x/sh": "sh", "zsh": "zsh",
		"sbxrun": "", "/usr/bin/sbxrun": "", "bash5": "", "": "", "/": "", "rbash": "", "/bash/sbxrun": "",
	} {
		if got := Name(argv0); got != want {
			t.Errorf("Name(%q) = %q, want %q", argv0, got, want)
		}
	}
}

func TestScript(t *testing.T) {
	for _, c := range []struct {
		args []string
		at   int
		ok   bool
	}{
		{[]string{"-c", "S"}, 1, true},
		{[]string{"-lc", "S", "name", "arg"}, 1, true},
		{[]string{"-c", "-l", "S"}, 2, true},
		{[]string{"-l", "-i", "-c", "S"}, 3, true},
		{[]string{"-ic", "S"}, 1, true},
		{[]string{"-l", "-c", "--", "S"}, 3, true},
		{[]string{"-c", "-", "S"}, 2, true},
		{[]string{"--login", "-c", "S"}, 2, true},
		{[]string{"--rcfile", "x", "-c", "S"}, 3, true},
		{[]string{"-o", "pipefail", "-c", "S"}, 3, true},
		{[]string{"-eo", "pipefail", "-c", "S"}, 3, true},
		{[]string{"-c", "-o", "pipefail", "S"}, 3, true},
		{[]string{"+o", "posix", "-c", "S"}, 3, true},
		{[]string{"-O", "extglob", "-ec", "S"}, 3, true},
		{[]string{"-c", "+e", "S"}, 2, true},
		{[]string{"-c"}, 0, false},
		{[]string{"-c", "--"}, 2, false},
		{[]string{"S", "-c"}, 0, false},
		{[]string{"-l", "S"}, 1, false},
		{[]string{"-s"}, 0, false},
		{nil, 0, false},
	} {
		at, ok := Script(c.args)
		if ok != c.ok || ok && at != c.at {
			t.Errorf("Script(%q) = %d, %v, want %d, %v", c.args, at, ok, c.at, c.ok)
		}
	}
}

// TestScriptAsBash holds the same to the real one: where a script is said to be,
// bash runs it.
func TestScriptAsBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-c", "S"}, {"-c", "-l", "S"}, {"-c", "-e", "-u", "S"}, {"-c", "-o", "pipefail", "S"}, {"-c", "--", "S"}, {"-c", "-", "S"}, {"--norc", "-c", "S"},
		{"-ceu", "S", "x"}, {"--rcfile", "/dev/null", "-c", "S"}, {"-O", "extglob", "-c", "S"}, {"-euo", "pipefail", "-c", "S", "a", "b"}, {"+O", "extglob", "-c", "+e", "S"},
	} {
		at, ok := Script(args)
		if !ok || args[at] != "S" {
			t.Errorf("Script(%q) = %d, %v", args, at, ok)
			continue
		}
		own := slices.Clone(args)
		own[at] = "echo ran"
		if out, err := exec.Command(bash, own...).CombinedOutput(); err != nil || string(out) != "ran\n" {
			t.Errorf("bash %q: %v %s", own, err, out)
		}
	}
}

func TestEnviron(t *testing.T) {
	got := Environ([]string{
		"ANTHROPIC_API_KEY=sk-ant-1", "CLAUDE_CODE_MESSAGING_TOKEN=abc", "CLAUDE_CODE_MESSAGING_SOCKET=/tmp/x.sock", "OPENAI_API_KEY=k", "BASH_ENV=/x", "LD_PRELOAD=/x.so",
		"CLAUDECODE=1", "GIT_EDITOR=true", "PAGER=cat", "EDITOR=/home/me/evil", "AI_AGENT=" + strings.Repeat("a", 33), "VISUAL=a b", "AGENT=", "CLAUDECODE=2",
	})
	if want := []string{"CLAUDECODE=1", "GIT_EDITOR=true", "PAGER=cat"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPath(t *testing.T) {
	ours := func(f string) bool { return f == "/shims/bash" || f == "/other/zsh" }
	if got := Path("/shims:/usr/bin::/other:/bin", ours); got != "/usr/bin::/bin" {
		t.Error(got)
	}
}

var claude = Claude{Config: "/home/me/.claude", Temp: []string{"/tmp", "/var/tmp/me"}}

// real is a script as Claude Code 2.1 writes it.
const real = `source /home/me/.claude/shell-snapshots/snapshot-bash-1795272789884-ino38t.sh 2>/dev/null || true && { \builtin shopt -u extglob || \builtin setopt NO_EXTENDED_GLOB; } >/dev/null 2>&1 || true && eval 'cd sub' < /dev/null && pwd -P >| /tmp/claude-a9bb-cwd`

func TestWrap(t *testing.T) {
	w, ok := Wrap(real, claude)
	if !ok || w.Snapshot != "/home/me/.claude/shell-snapshots/snapshot-bash-1795272789884-ino38t.sh" || w.Cwd != "/tmp/claude-a9bb-cwd" {
		t.Fatalf("%+v, %v", w, ok)
	}
	got := w.Script("bash", 3, 4)
	want := `exec 187>&4 4>&-; exec 188>&3 3>&-; source /dev/fd/188 2>/dev/null || true && exec 188>&- && { \builtin shopt -u extglob || \builtin setopt NO_EXTENDED_GLOB; } >/dev/null 2>&1 || true && eval 'cd sub' < /dev/null && pwd -P >&187`
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	quoted := `source '/home/me/.claude/shell-snapshots/snapshot-zsh-1-a.sh' 2>/dev/null || true && eval ls && pwd -P >| '/var/tmp/me/claude-0a1b-cwd'`
	if w, ok := Wrap(quoted, claude); !ok || w.Cwd != "/var/tmp/me/claude-0a1b-cwd" || w.Snapshot == "" {
		t.Errorf("%+v, %v", w, ok)
	}
}

// TestWrapNarrow: nothing but Claude Code's own files in its own places is read or
// written outside, whatever a script says.
func TestWrapNarrow(t *testing.T) {
	for _, s := range []string{
		`echo hi`,
		``,
		`source /home/me/.ssh/id_rsa 2>/dev/null || true && true`,
		`source /home/me/.claude/shell-snapshots/../.credentials.json 2>/dev/null || true && true`,
		`source /home/me/.claude/shell-snapshots/x/snapshot-bash-1-a.sh 2>/dev/null || true && true`,
		`source /home/me/.claude/shell-snapshots/snapshot-bash-1-a.sh.txt 2>/dev/null || true && true`,
		`source '/home/me/.claude/shell-snapshots/snapshot-bash-1-a.sh'x 2>/dev/null || true && true`,
		`source /tmp/shell-snapshots/snapshot-bash-1-a.sh 2>/dev/null || true && true`,
		`source /home/me/.claude/shell-snapshots/$(id)/snapshot-bash-1-a.sh 2>/dev/null || true && true`,
		` source /home/me/.claude/shell-snapshots/snapshot-bash-1-a.sh 2>/dev/null || true && true`,
		`true && pwd -P >| /home/me/.bashrc`,
		`true && pwd -P >| /tmp/claude-a9bb-cwd/../x`,
		`true && pwd -P >| /tmp/x/claude-a9bb-cwd`,
		`true && pwd -P >| /tmp/claude-a9bb-cwd2`,
		`true && pwd -P >| /tmp/claude-../../x-cwd`,
		`true && pwd -P >| /tmp/claude-a9bb-cwd; rm x`,
		`true && pwd -P >| /tmp/claude-a9bb-cwd` + "\n",
		`true && pwd -P > /tmp/claude-a9bb-cwd`,
		`true && pwd -P >| '/tmp/claude-a9bb-cwd`,
		`true && pwd -P >| ''/tmp/claude-a9bb-cwd'`,
	} {
		if w, ok := Wrap(s, claude); ok {
			t.Errorf("%s: taken for one of Claude Code's: %+v", s, w)
		}
	}
	if w, ok := Wrap(real, Claude{}); ok {
		t.Errorf("without its directories: %+v", w)
	}
}

func TestTold(t *testing.T) {
	for said, want := range map[string]string{
		"/a/b\n": "/a/b", "/a\n/b\n": "/b", "/\n": "/", "": "", "/a": "", "a\n": "", "/a/../b\n": "", "/a\x00\n": "", "/a\x1b[1m\n": "", "\n": "", "/a\r\n": "",
		"/" + strings.Repeat("x", 5000) + "\n": "", "/ü\n": "/ü",
	} {
		if got := Told(said); got != want {
			t.Errorf("Told(%q) = %q, want %q", said, got, want)
		}
	}
}

var (
	sources = regexp.MustCompile(`^source (?:([A-Za-z0-9_@%+=:,./-]+)|'([^'\x00\n]+)') 2>/dev/null \|\| true && `)
	ends    = regexp.MustCompile(` && pwd -P >\| (?:([A-Za-z0-9_@%+=:,./-]+)|'([^'\x00\n]+)')$`)

	snapshotName = regexp.MustCompile(`^snapshot-(bash|zsh|sh)-[0-9]{1,20}-[a-z0-9]{1,20}\.sh$`)
	cwdName      = regexp.MustCompile(`^claude-[0-9a-z]{4,32}-cwd$`)
)

// matched is what Wrap does, by regular expressions.
func matched(script string, c Claude) (*Wrapped, bool) {
	w := &Wrapped{body: script}
	if m := sources.FindStringSubmatch(script); m != nil {
		if file := m[1] + m[2]; c.Config != "" && path.Dir(file) == path.Join(c.Config, "shell-snapshots") && snapshotName.MatchString(path.Base(file)) {
			w.Snapshot, w.head, w.body = file, m[0], script[len(m[0]):]
		}
	}
	if at := ends.FindStringSubmatchIndex(w.body); at != nil {
		m := ends.FindStringSubmatch(w.body[at[0]:])
		if file := m[1] + m[2]; slices.Contains(c.Temp, path.Dir(file)) && cwdName.MatchString(path.Base(file)) {
			w.Cwd, w.body = file, w.body[:at[0]]
		}
	}
	return w, w.Snapshot != "" || w.Cwd != ""
}

// TestWrapRandom: scripts that are made of the pieces of Claude Code's are taken for its
// own exactly where regular expressions say so.
func TestWrapRandom(t *testing.T) {
	pieces := []string{"source ", " 2>/dev/null || true && ", " && pwd -P >| ", "&& pwd -P >| ", "'", "''", "/tmp/claude-a9bb-cwd", "/tmp/claude-", "a9bb", "-cwd",
		"/home/me/.claude/shell-snapshots/", "snapshot-bash-1-a.sh", "snapshot-", "zsh-", "1", "-", "a", ".sh", "/", "..", "x", " ", "\n", "\x00", "\xff", "ü",
		"0123456789012345678901234567890123", "$(id)", real}
	r, taken := rand.New(rand.NewPCG(1, 2)), 0
	for range 200_000 {
		s := ""
		if r.IntN(3) == 0 {
			s = "source /home/me/.claude/shell-snapshots/snapshot-bash-"
		}
		for range r.IntN(9) {
			s += pieces[r.IntN(len(pieces))]
		}
		if r.IntN(3) == 0 {
			s += " && pwd -P >| /tmp/claude-a9bb-cwd"
		}
		got, ok := Wrap(s, claude)
		want, wanted := matched(s, claude)
		if ok != wanted || *got != *want {
			t.Fatalf("%q: %+v, %v; want %+v, %v", s, got, ok, want, wanted)
		}
		if ok {
			taken++
		}
	}
	if taken < 1000 {
		t.Errorf("only %d were taken for Claude Code's", taken)
	}
}

// FuzzWrap: a file that a script is let name is of the one shape, and the rest of
// the script is as it was; and regular expressions say the same.
func FuzzWrap(f *testing.F) {
	f.Add(real)
	f.Add(`eval 'x' && pwd -P >| /tmp/claude-0000-cwd`)
	f.Add(`x && pwd -P >| && pwd -P >| /tmp/claude-0000-cwd`)
	f.Fuzz(func(t *testing.T, s string) {
		w, ok := Wrap(s, claude)
		if want, wanted := matched(s, claude); ok != wanted || *w != *want {
			t.Fatalf("%+v, %v; want %+v, %v", w, ok, want, wanted)
		}
		if !ok {
			if w.Snapshot != "" || w.Cwd != "" {
				t.Fatalf("%+v", w)
			}
			return
		}
		if w.Cwd != "" && (!slices.Contains(claude.Temp, filepath.Dir(w.Cwd)) || !cwdName.MatchString(filepath.Base(w.Cwd)) || !strings.Contains(s, w.Cwd)) {
			t.Fatalf("cwd %q", w.Cwd)
		}
		if w.Snapshot != "" && (filepath.Dir(w.Snapshot) != "/home/me/.claude/shell-snapshots" || !snapshotName.MatchString(filepath.Base(w.Snapshot))) {
			t.Fatalf("snapshot %q", w.Snapshot)
		}
		if !strings.Contains(s, w.body) || !strings.Contains(w.Script("bash", 3, 4), w.body) {
			t.Fatal("another script")
		}
	})
}

// FuzzQuote: a quoted text is one word to a shell, and the same text.
func FuzzQuote(f *testing.F) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "it's", "'; rm -rf /; '", "a\nb", "$(id) `id` \\", "'\"'\"'", "-n", "\x1b[31m", "ü"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ContainsRune(s, 0) || len(s) > 1<<16 {
			return
		}
		out, err := exec.Command(sh, "-c", "printf %s. "+Quote(s)).Output()
		if err != nil || string(out) != s+"." {
			t.Fatalf("%q became %q: %v", s, out, err)
		}
	})
}

// TestTelling: a script that tells the directory that it ended in does all else as it does
// without.
func TestTelling(t *testing.T) {
	for _, shell := range []string{"bash", "sh"} {
		for _, tt := range []struct {
			script string
			told   bool
		}{
			{"cd /usr; echo a", true},
			{"cd /usr; false", false},
			{"set -e; false; echo after", false},
			{"set -e; cd /usr; (exit 3) || echo caught; echo a", true},
			{"set -eu; echo $unset; echo after", false},
			{"cd /usr; exit 0", false},
			{"trap 'echo end $?' EXIT; (exit 5)", false},
			{"trap 'echo end $?' EXIT; cd /usr", true},
			{"echo $?; (exit 4); echo $?; return 6", false},
			{"if", false},
			{"cat <<E\n$(pwd)\nE\n# the end", true},
		} {
			run := func(script string, told *os.File) (string, int) {
				cmd := exec.Command(shell, "-c", script)
				cmd.Dir, cmd.ExtraFiles = "/", []*os.File{told}
				out, err := cmd.Output()
				if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				return string(out), cmd.ProcessState.ExitCode()
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			want, code := run(tt.script, w)
			got, gotCode := run(Telling(shell, tt.script, 3), w)
			w.Close()
			told, _ := io.ReadAll(r)
			r.Close()
			if got != want || gotCode != code || (len(told) > 0) != tt.told {
				t.Errorf("%s %q: %q %d, want %q %d; told %q", shell, tt.script, got, gotCode, want, code, told)
			}
		}
	}
}
