package guard

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/quick"
)

// tree is a file system of names: entries that exist, by full path.
type tree map[string]bool

func (t tree) has(dir []byte, name, more string) bool {
	return t[string(dir)+"/"+name] || strings.EqualFold(name, more)
}

func (t tree) repo(dir []byte, more string) bool {
	return t.has(dir, "HEAD", more) && (t.has(dir, "objects", more) && t.has(dir, "refs", more) || t.has(dir, "commondir", more))
}

func (t tree) commands(dir []byte, more string) bool {
	return t.has(dir, "HEAD", more) && (t.has(dir, "config", more) || t.has(dir, "hooks", more))
}

func (t tree) Repository(dir []byte) bool { return t.repo(dir, "") || t.commands(dir, "") }
func (t tree) Completes(dir []byte, name string) bool {
	return !t.repo(dir, "") && (t.repo(dir, name) || t.commands(dir, name))
}

var patterns = []string{".git/", ".git/config", ".git/hooks", ".git/commondir", ".vscode", ".bashrc", ".config/fish", "*.code-workspace", "a/*x/c"}

func newRules(t testing.TB, list ...string) *Rules {
	t.Helper()
	r, err := NewRules(list)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMatch(t *testing.T) {
	r := newRules(t, patterns...)
	bare := tree{}
	for _, n := range []string{"HEAD", "objects", "refs"} {
		bare["/w/bare.git/"+n] = true
		bare["/w/.git/modules/sub/"+n] = true
	}
	bare["/w/.git/worktrees/w2/HEAD"] = true
	bare["/w/.git/worktrees/w2/commondir"] = true
	for _, tt := range []struct {
		path string
		want Verdict
		rule string
	}{
		{"/w", Free, ""},
		{"/w/file", Free, ""},
		{"/w/.vscode", Protected, ".vscode"},
		{"/w/.VSCode", Protected, ".vscode"},
		{"/w/.v\u017fcode", Protected, ".vscode"},
		{"/w/.vs\u200ccode", Protected, ".vscode"},
		{"/w/.git/con\ufb01g", Protected, ".git/config"},
		{"/w/.CON\ufb01G/\ufb01sh", Protected, ".config/fish"},
		// where capitals are compared: ZFS, Samba, FAT with a Turkish character set
		{"/w/.g\u0131t", Protected, ".git/"},
		{"/w/.g\u0131t/hooks/x", Protected, ".git/hooks"},
		{"/w/.git/conf\u0131g", Protected, ".git/config"},
		{"/w/.G\u0130T/CONF\u0130G", Protected, ".git/config"},
		{"/w/.g\xddt", Protected, ".git/"}, // ISO 8859-9
		{"/w/.git/conf\xfdg", Protected, ".git/config"},
		{"/w/.g\x98t", Protected, ".git/"}, // code page 857
		{"/w/.g\x8dt", Protected, ".git/"},
		{"/w/.g\xa9t", Protected, ".git/"}, // ISO 8859-3
		{"/w/.g\xb9t", Protected, ".git/"},
		{"/w/.g\u00ddt", Free, ""},
		{"/w/.g\u00edt", Free, ""},
		// streams of NTFS that are the file or the directory itself
		{"/w/.git::$INDEX_ALLOCATION", Protected, ".git/"},
		{"/w/.git. :$I30:$Index_Allocation/config", Protected, ".git/config"},
		{"/w/.git/config::$DATA", Protected, ".git/config"},
		{"/w/.vscode::$data/x", Protected, ".vscode"},
		{"/w/GIT~1::$INDEX_ALLOCATION", Protected, ".git/"},
		{"/w/.vscode:x", Free, ""},
		{"/w/b:$c", Free, ""},
		{"/w/::$DATA", Free, ""},
		{"/w/.vscode/settings.json", Protected, ".vscode"},
		// as vfat, exfat and NTFS take names
		{"/w/.vscode.", Protected, ".vscode"},
		{"/w/.vscode. . /x", Protected, ".vscode"},
		{"/w/VSCODE~1/x", Protected, ".vscode"},
		{"/w/VS3F0A~1", Protected, ".vscode"},
		{"/w/GIT~1", Protected, ".git/"},
		{"/w/GIT~1/hooks./x", Protected, ".git/hooks"},
		{"/w/.git./CONFIG", Protected, ".git/config"},
		{"/w/GI1B2C~1/index", Free, ""},
		{"/w/CONFIG~2", Leads, ".config/fish"},
		{"/w/CONFIG~2/fish", Protected, ".config/fish"},
		{"/w/A~1.COD", Protected, "*.code-workspace"},
		{"/w/a/longn~1/c", Protected, "a/*x/c"},
		{"/w/a/x~1/c", Protected, "a/*x/c"},
		{"/w/git~x", Free, ""},
		{"/w/git~1.txt", Free, ""},
		{"/w/bashrc~", Free, ""},
		{"/w/bashrc~1", Protected, ".bashrc"},
		{"/w/bashrc2~1", Free, ""},
		{"/w/a/b/c/d/e/f/g/h/i/j/.vscode/x/y", Protected, ".vscode"},
		{"/w/.vscode2", Free, ""},
		{"/w/x.vscode", Free, ""},
		{"/w/.git", Protected, ".git/"},
		{"/w/sub/.git", Protected, ".git/"},
		{"/w/.git/index", Free, ""},
		{"/w/.git/refs/heads/main", Free, ""},
		{"/w/.git/config", Protected, ".git/config"},
		{"/w/.git/config.lock", Free, ""},
		{"/w/.git/hooks", Protected, ".git/hooks"},
		{"/w/.git/hooks/pre-commit", Protected, ".git/hooks"},
		{"/w/.git/x/hooks/pre-commit", Free, ""},
		{"/w/deep/.git/hooks/pre-commit", Protected, ".git/hooks"},
		{"/w/config", Free, ""},
		{"/w/config/routes.rb", Free, ""},
		{"/w/hooks/x", Free, ""},
		{"/w/bare.git/config", Protected, ".git/config"},
		{"/w/bare.git/hooks/post-update", Protected, ".git/hooks"},
		{"/w/bare.git/HEAD", Free, ""},
		{"/w/.git/modules/sub/config", Protected, ".git/config"},
		{"/w/.git/worktrees/w2/commondir", Protected, ".git/commondir"},
		{"/w/.config", Leads, ".config/fish"},
		{"/w/.config/fish", Protected, ".config/fish"},
		{"/w/.config/other", Free, ""},
		{"/w/x.Code-Workspace", Protected, "*.code-workspace"},
		{"/w/.code-workspace", Protected, "*.code-workspace"},
		{"/w/a", Leads, "a/*x/c"},
		{"/w/a/bx", Leads, "a/*x/c"},
		{"/w/a/b", Free, ""},
		{"/w/a/bx/c/d", Protected, "a/*x/c"},
		{"/w/a/q/bx/c", Free, ""},
	} {
		got, rule := r.Match([]byte(tt.path), len("/w"), bare)
		if got != tt.want || rule != tt.rule {
			t.Errorf("%s: %d %q, want %d %q", tt.path, got, rule, tt.want, tt.rule)
		}
	}
}

// TestRoot: what leads to a writable directory, and its own name, are no reason
// to protect all of it.
func TestRoot(t *testing.T) {
	r := newRules(t, patterns...)
	for _, tt := range []struct {
		root, path string
		want       Verdict
	}{
		{"/h/.vscode", "/h/.vscode", Free},
		{"/h/.vscode", "/h/.vscode/x", Free},
		{"/h/.vscode", "/h/.vscode/x/.vscode", Protected},
		{"/h/r/.git", "/h/r/.git/config", Protected},
		{"/h/r/.git", "/h/r/.git/index", Free},
		{"/h/r/.git/hooks", "/h/r/.git/hooks/x", Free},
		{"/h/.config", "/h/.config/fish/x", Protected},
	} {
		if got, rule := r.Match([]byte(tt.path), len(tt.root), tree{}); got != tt.want {
			t.Errorf("%s below %s: %d %q, want %d", tt.path, tt.root, got, rule, tt.want)
		}
	}
}

func TestCompletes(t *testing.T) {
	for _, tt := range []struct {
		there string
		name  string
		want  bool
	}{
		{"", "HEAD", false},
		{"objects refs", "HEAD", true},
		{"HEAD objects", "refs", true},
		{"HEAD refs", "objects", true},
		{"HEAD refs", "OBJECTS", true},
		{"HEAD", "commondir", true},
		{"commondir", "HEAD", true},
		{"HEAD", "config", true},
		{"config", "HEAD", true},
		{"HEAD", "hooks", true},
		{"objects refs", "config", false},
		{"HEAD objects refs", "HEAD", false}, // it is one already
		{"objects refs", "head.txt", false},
	} {
		d := tree{}
		for _, n := range strings.Fields(tt.there) {
			d["/w/x/"+n] = true
		}
		if got := newRules(t, patterns...).Completes([]byte("/w/x"), []byte(tt.name), d) != ""; got != tt.want {
			t.Errorf("%q and %s: %v, want %v", tt.there, tt.name, got, tt.want)
		}
		if newRules(t, ".vscode").Completes([]byte("/w/x"), []byte(tt.name), d) != "" {
			t.Errorf("%q and %s: refused without the pattern", tt.there, tt.name)
		}
	}
}

// TestWithin: what is part of a repository of any name is found, and a symbolic link is not
// copied there.
func TestWithin(t *testing.T) {
	d := tree{"/w/x/HEAD": true, "/w/x/commondir": true, "/w/b.git/HEAD": true, "/w/b.git/objects": true, "/w/b.git/refs": true}
	for _, tt := range []struct {
		dir  string
		root int
		want string
	}{
		{"/w/.git", 2, "/w/.git"},
		{"/w/.GIT/logs/refs", 2, "/w/.GIT"},
		{"/w/.git/logs", 11, "/w/.git"}, // above what is writable, by its name
		{"/w/.git/a/.git/b", 2, "/w/.git/a/.git"},
		{"/w/x/logs", 2, "/w/x"},
		{"/w/b.git", 8, "/w/b.git"},
		{"/w/b.git/refs", 13, ""},
		{"/w/sub/logs", 2, ""},
		{"/w/git", 2, ""},
		{"/", 0, ""},
	} {
		if got := string(newRules(t, patterns...).Within([]byte(tt.dir), tt.root, d)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.dir, got, tt.want)
		}
		if got := newRules(t, ".vscode").Within([]byte(tt.dir), tt.root, d); got != nil {
			t.Errorf("%s: %q without the pattern", tt.dir, got)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"/r/.git", "/b/objects", "/b/refs", "/b/HEAD"} {
		if err := os.MkdirAll(dir+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	open := func(name string) int {
		d, err := os.Open(dir + "/" + filepath.Dir(name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return int(d.Fd())
	}
	for name, want := range map[string]string{"r/.git/COMMIT_EDITMSG": ".git/", "b/refs/x": ".git/", "r/x": "", "b": ""} {
		parent := open(name)
		if got := newRules(t, patterns...).Copied(dir, name, true, parent); got != want {
			t.Errorf("a link %s: %q, want %q", name, got, want)
		}
		if got := newRules(t, patterns...).Copied(dir, name, false, parent); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	// What was opened is asked, and not what has its name by now.
	for _, name := range []string{"/b/hooks", "/plain/hooks"} {
		if err := os.MkdirAll(dir+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	name := "b/hooks/post-update"
	parent := open(name)
	for _, move := range [][2]string{{"/b", "/away"}, {"/plain", "/b"}} {
		if err := os.Rename(dir+move[0], dir+move[1]); err != nil {
			t.Fatal(err)
		}
	}
	if got := newRules(t, patterns...).Copied(dir, name, false, parent); got != ".git/hooks" {
		t.Errorf("%s, open in a repository: %q", name, got)
	}
	if got := newRules(t, patterns...).Copied(dir, name, false, open(name)); got != "" {
		t.Errorf("%s: %q", name, got)
	}
}

// TestDepth: a protected path is protected below any directories, and all below
// it is.
func TestDepth(t *testing.T) {
	r := newRules(t, patterns...)
	name := func(b []byte) string {
		b = bytes.Map(func(r rune) rune {
			if r == '/' || r == 0 {
				return 'x'
			}
			return r
		}, b)
		return "/n" + string(b[:min(len(b), 40)])
	}
	check := func(above, below [][]byte) bool {
		p := "/w"
		for _, b := range above[:min(len(above), 12)] {
			p += name(b)
		}
		p += "/.git/hooks"
		for _, b := range below[:min(len(below), 6)] {
			p += name(b)
		}
		v, _ := r.Match([]byte(p), 2, tree{})
		return v == Protected
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
}

func TestPatternsRefused(t *testing.T) {
	for _, p := range []string{"", "/", "/etc", "~/.x", "a//b", "a/./b", "../x", "*", "a/**/b", "a\x00", "[ab]", "a?", strings.Repeat("x", 300), "\xff"} {
		if _, err := NewRules([]string{p}); err == nil {
			t.Errorf("%q is taken", p)
		}
	}
}

func TestMatchName(t *testing.T) {
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a*", "a", true}, {"*a", "ba", true}, {"*a", "ab", false},
		{"a*b*c", "aXbYc", true}, {"a*b*c", "acb", false}, {"*.x", ".x", true}, {"x*x", "x", false},
	} {
		if got := matchName(tt.pattern, []byte(tt.name)); got != tt.want {
			t.Errorf("%s, %s: %v", tt.pattern, tt.name, got)
		}
	}
}

// FuzzMatch: no path makes matching fail, and one that is protected stays so in
// capitals and with more below it.
func FuzzMatch(f *testing.F) {
	f.Add("/w/.git/hooks/x", 2)
	f.Add("/", 1)
	f.Add("/.config/FISH", 1)
	f.Fuzz(func(t *testing.T, path string, root int) {
		if path == "" || path[0] != '/' || strings.Contains(path, "//") || len(path) > 1 && path[len(path)-1] == '/' || root < 1 || root > len(path) {
			t.Skip()
		}
		r := newRules(t, patterns...)
		v, rule := r.Match([]byte(path), root, tree{})
		if v != Protected {
			return
		}
		if strings.HasSuffix(rule, "/") {
			return
		}
		if up, _ := r.Match([]byte(path+"/x"), root, tree{}); up != Protected {
			t.Errorf("%q is protected, and not what is below it", path)
		}
		b := []byte(path)
		for i, c := range b {
			if c >= 'a' && c <= 'z' {
				b[i] = c - 'a' + 'A'
			}
		}
		if up, _ := r.Match(b, root, tree{}); up != Protected {
			t.Errorf("%q is protected, and not %q", path, b)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	r := newRules(b, patterns...)
	path := []byte("/home/user/src/project/node_modules/some-package/lib/index.js")
	b.ReportAllocs()
	for b.Loop() {
		r.Match(path, len("/home/user/src/project"), tree{})
	}
}

func TestNumbers(t *testing.T) {
	status := []byte("Name:\tx\nUmask:\t0022\nNSpid:\t100\t2\n")
	if n, e := numbers(status, "Umask:", 8); e != 0 || len(n) != 1 || n[0] != 0o22 {
		t.Errorf("%v, %v", n, e)
	}
	if n, e := numbers(status, "NSpid:", 10); e != 0 || len(n) != 2 || n[1] != 2 {
		t.Errorf("%v, %v", n, e)
	}
	if _, e := numbers(status, "Absent:", 10); e == 0 {
		t.Error("found what is not there")
	}
}

func TestTerminalOf(t *testing.T) {
	dev, ok := terminalOf([]byte("7 (a) b) S 1 7 7 34817 7 4194304"))
	if !ok || dev != 136<<8|1 {
		t.Errorf("%#x, %v", dev, ok)
	}
	for _, s := range []string{"", "7 (x", "7 (x) S 1 7 7 0 -1"} {
		if _, ok := terminalOf([]byte(s)); ok {
			t.Errorf("%q has a terminal", s)
		}
	}
}

func TestParseMounts(t *testing.T) {
	m := parseMounts([]byte("30 1 0:5 / / rw - tmpfs x rw\n31 30 8:1 /x\\040y /a\\040b rw shared:1 - proc x rw\nbroken\n"))
	if len(m) != 2 || m[30] != (mountInfo{"/", 1, "0:5", "/", false}) || m[31] != (mountInfo{"/a b", 30, "8:1", "/x y", true}) {
		t.Errorf("%v", m)
	}
}

func TestMapID(t *testing.T) {
	m := idMap([]byte("      1000       1001          1\n         0     100000        100\n"))
	for _, tt := range []struct {
		id, want uint32
		ok       bool
	}{{1000, 1001, true}, {0, 100000, true}, {99, 100099, true}, {100, 0, false}, {1001, 0, false}, {^uint32(0), 0, false}} {
		if got, ok := mapID(m, tt.id); got != tt.want || ok != tt.ok {
			t.Errorf("%d: got %d, %v", tt.id, got, ok)
		}
	}
}

func TestPending(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tx\nTgid:\t7\nPid:\t7\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\n": false,
		"Tgid:\t7\nPid:\t7\nSigPnd:\t0000000000000000\nShdPnd:\t8000000000000000\nSigBlk:\t0000000000000000\n":           true,
		"Tgid:\t7\nPid:\t7\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000002000\nSigBlk:\t0000000000002000\n":           false,
		"Tgid:\t7\nPid:\t8\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000002000\nSigBlk:\t0000000000000000\n":           false,
		"Tgid:\t7\nPid:\t8\nSigPnd:\t0000000000002000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\n":           true,
		"": false,
	} {
		if got := pending([]byte(status)); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
}
