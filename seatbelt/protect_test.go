package seatbelt

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"

	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// written are the operations that change a file, by letter: make it, remove or
// rename it, write to it, change its mode.
var written = []struct{ letter, operation string }{
	{"c", "file-write-create"}, {"u", "file-write-unlink"}, {"w", "file-write-data"}, {"m", "file-write-mode"},
}

// changes asks what may be done to paths.
func changes(paths []string) []question {
	var qs []question
	for _, p := range paths {
		for _, o := range written {
			qs = append(qs, question{o.operation, "path", p})
		}
	}
	return qs
}

// change reads the answers for the i-th path.
func change(answers []string, i int) string {
	s := ""
	for j, o := range written {
		if answers[i*len(written)+j] == "allow" {
			s += o.letter
		}
	}
	return s
}

// TestProtected: what a profile of strict says of protected paths in the workspace,
// there or not (ISO-4, M07).
func TestProtected(t *testing.T) {
	const ws = workspace
	cases := []struct{ path, want string }{
		{ws + "/main.go", "cuwm"}, {ws + "/a/b", "cuwm"},
		{ws, "cwm"}, // a workspace that is moved away would be another path
		{ws + "/.git", ""}, {ws + "/sub/.git", ""}, {ws + "/.GIT", ""}, {ws + "/.gıt", "cuwm"},
		{ws + "/.git/hooks", ""}, {ws + "/.git/hooks/pre-commit", ""}, {ws + "/.git/config", ""}, {ws + "/a/b/.git/config", ""}, {ws + "/.git/config.lock", "cuwm"},
		{ws + "/.git/index", "cuwm"}, {ws + "/.git/objects/ab/cd", "cuwm"}, {ws + "/.git/refs/heads/main", "cuwm"}, {ws + "/.git/HEAD", "cuwm"},
		{ws + "/.git/modules/lib/config", ""}, {ws + "/.git/modules/a/b/hooks/post-checkout", ""}, {ws + "/.git/modules/lib/HEAD", "cuwm"}, {ws + "/.git/worktrees/x/config.worktree", ""}, {ws + "/.git/worktrees/x/index", "cuwm"},
		{ws + "/git/hooks/pre-commit", "cuwm"}, {ws + "/x.git/config", "cuwm"}, {ws + "/.gitx/config", "cuwm"}, {ws + "/hooks/pre-commit", "cuwm"},
		{ws + "/.vscode", ""}, {ws + "/.vscode/settings.json", ""}, {ws + "/.VSCode/settings.json", ""}, {ws + "/.v\u017fcode/tasks.json", ""}, {ws + "/.hus\u212ay/x", ""}, {ws + "/.vscode2/x", "cuwm"},
		{ws + "/a.code-workspace", ""}, {ws + "/sub/deep/x.code-workspace", ""}, {ws + "/.code-workspace", ""}, {ws + "/code-workspace", "cuwm"},
		{ws + "/.config", "wm"}, {ws + "/.CONFIG", "wm"}, {ws + "/.config/git", ""}, {ws + "/.config/git/config", ""}, {ws + "/.config/other", "cuwm"},
		{ws + "/.bashrc", ""}, {ws + "/bashrc", "cuwm"}, {ws + "/.mcp.json", ""}, {ws + "/xmcp.json", "cuwm"}, {ws + "/.mcpxjson", "cuwm"},
		{ws + "/.vs\u200ccode", "uwm"}, {ws + "/a/\ufeff.git", "uwm"}, {ws + "/\U0001f469\u200d\U0001f4bb", "cuwm"},
		{scratch + "/.bashrc", "cuwm"}, {scratch + "/tmp/r/.git/hooks/x", "cuwm"}, // the command's own
		{workspace + "2/x", ""}, {"/Users/u/.git", ""},
	}
	var paths []string
	for _, c := range cases {
		paths = append(paths, c.path)
	}
	r := evaluate(t, job{lower(t, resolve(t, "strict", nil)), changes(paths)})[0]
	for i, c := range cases {
		if got := change(r.answers, i); got != c.want {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}

	// What the caller lifts, and only that.
	free := resolve(t, "strict", func(r *profiles.Request) { r.Unprotect = []string{".git"} })
	r = evaluate(t, job{lower(t, free), changes([]string{ws + "/.git", ws + "/.git/hooks/x", ws + "/.vscode/x", ws + "/.gitconfig"})})[0]
	for i, want := range []string{"cuwm", "cuwm", "", ""} {
		if got := change(r.answers, i); got != want {
			t.Errorf("unprotected %d: %q, want %q", i, got, want)
		}
	}
}

// TestProtectedAsGuard: whatever the patterns and the writable paths are called, a
// profile decides by a path's names as the guard of the native driver does.
func TestProtectedAsGuard(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 9))
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	patterns := []string{".git/", ".git/hooks", ".git/config", ".vscode", "*.ws", ".config/fish", "a(b)+c|d$^", "x.y*z", `q"q`, "é/ü*", "sk", "- -;#", "#t/a,b"}
	// Names near the patterns, and others.
	near := []string{".git", "hooks", "config", ".vscode", "a.ws", ".config", "fish", "a(b)+c|d$^", "abbc", "x.y-z", "xay.z", `q"q`, "é", "üb", "sk", "s", "- -;#", "#t", "a,b", "plain", "*", ".ws", "日本"}
	name := func() string {
		s := near[rnd.IntN(len(near))]
		switch rnd.IntN(6) {
		case 0:
			s = strings.ToUpper(s)
		case 1:
			s = strings.Map(func(c rune) rune { // now and then another case
				if rnd.IntN(2) == 0 {
					return unicode.ToUpper(c)
				}
				return c
			}, s)
		case 2:
			s = strings.NewReplacer("s", "\u017f", "k", "\u212a").Replace(s)
		case 3:
			s += pick("x", ".", " ")
		}
		return s
	}
	roots := []string{"/w", "/w (1) [a] {2} ^$.*+?|", `/o\"p`, "/Users/u/.vscode/work", "/w.ws", "/ü/.git"}
	var jobs []job
	var asked [][]string
	var used [][2]any
	for n := range 18 {
		root := roots[n%len(roots)]
		p := resolve(t, "strict", nil)
		p.Files = []policy.FileRule{{Path: root, Access: policy.All}}
		p.Protect = nil
		for _, x := range patterns {
			if rnd.IntN(3) > 0 {
				p.Protect = append(p.Protect, x)
			}
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		var paths []string
		for range 60 {
			s := root
			for range 1 + rnd.IntN(4) {
				s += "/" + name()
			}
			paths = append(paths, s)
		}
		jobs, asked, used = append(jobs, job{lower(t, p), changes(paths)}), append(asked, paths), append(used, [2]any{root, p.Protect})
	}
	count := map[guard.Verdict]int{}
	for n, r := range evaluate(t, jobs...) {
		root, list := used[n][0].(string), used[n][1].([]string)
		rules, err := guard.NewRules(list)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range asked[n] {
			v, rule := rules.Match([]byte(p), len(root), nil)
			count[v]++
			want := map[guard.Verdict]string{guard.Free: "cuwm", guard.Leads: "wm", guard.Protected: ""}[v]
			if got := change(r.answers, i); got != want {
				t.Errorf("%q of %q: %q, want %q (%s)", p, list, got, want, rule)
			}
		}
	}
	if min(count[guard.Free], count[guard.Leads], count[guard.Protected]) < 20 {
		t.Errorf("too few of a kind: %v", count)
	}
}

// TestProtectedNested: where one writable path lies in another, its own name does
// not count for what is in it.
func TestProtectedNested(t *testing.T) {
	p := resolve(t, "strict", nil)
	p.Files = []policy.FileRule{{Path: "/w", Access: policy.All}, {Path: "/w/.claude/tree", Access: policy.All}, {Path: "/w/ro", Access: policy.ReadExec}, {Path: "/w/.claude/tree/.vscode/x", Access: policy.All}}
	p.Protect = []string{".claude", ".vscode"}
	paths := []string{"/w/.claude", "/w/.claude/x", "/w/.claude/tree", "/w/.claude/tree/a", "/w/.claude/tree/.claude/a", "/w/.claude/tree/.vscode/y", "/w/.claude/tree/.vscode/x/y", "/w/ro/a"}
	want := []string{"", "", "cwm", "cuwm", "", "", "cuwm", ""}
	r := evaluate(t, job{lower(t, p), changes(paths)})[0]
	for i, w := range want {
		if got := change(r.answers, i); got != w {
			t.Errorf("%s: %q, want %q", paths[i], got, w)
		}
	}
	whole := resolve(t, "strict", nil)
	whole.Files = []policy.FileRule{{Path: "/", Access: policy.All}}
	whole.Protect = []string{".vscode"}
	r = evaluate(t, job{lower(t, whole), changes([]string{"/.vscode", "/a/.vscode/b", "/a/b"})})[0]
	for i, w := range []string{"", "", "cuwm"} {
		if got := change(r.answers, i); got != w {
			t.Errorf("the whole: %d: %q, want %q", i, got, w)
		}
	}
}

// TestLiterals: no string of a profile is longer than the reader's buffer, and all
// of them together are the whole.
func TestLiterals(t *testing.T) {
	long := strings.Repeat("skü", 80)
	p := resolve(t, "strict", nil)
	p.Protect = []string{long, "*.ws"}
	out := lower(t, p)
	for _, line := range strings.Split(out.Text, "\n") {
		for i, s := range strings.Split(line, `"`) {
			if i%2 == 1 && len(s) > maxLiteral {
				t.Errorf("%d bytes: %s", len(s), s)
			}
		}
	}
	r := evaluate(t, job{out, changes([]string{workspace + "/" + long, workspace + "/" + strings.ToUpper(long), workspace + "/" + long[1:], workspace + "/x.ws"})})[0]
	for i, w := range []string{"", "", "cuwm", ""} {
		if got := change(r.answers, i); got != w {
			t.Errorf("%d: %q, want %q", i, got, w)
		}
	}
}
