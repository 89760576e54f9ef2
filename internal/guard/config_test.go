package guard

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const userConfig = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\thooksPath = ../hooks\n[remote \"origin\"]\n\turl = https://example.com/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n" +
	"[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n# mine\n[branch \"main\"]\n\tpushRemote = other\n[alias]\n\tst = status\n"

func TestGoodConfig(t *testing.T) {
	topic := "[branch \"topic/#1\"]\n\tremote = origin\n\tmerge = refs/heads/topic-1\n"
	for _, tt := range []struct {
		name, old, new string
		made, want     bool
	}{
		{"the same", userConfig, userConfig, false, true},
		{"a branch follows another", userConfig, userConfig + topic, false, true},
		{"and no more", userConfig + topic, userConfig, false, true},
		{"and no more, nor the empty line after it", userConfig + topic + "\n[x]\n", userConfig + "[x]\n", false, true},
		{"in another order", userConfig, strings.Replace(userConfig, "# mine", topic+"# mine", 1), false, false}, // the comment has another section
		{"follows one here", userConfig, userConfig + "[branch \"x\"]\n\tremote = .\n\tmerge = refs/heads/main\n", false, true},
		{"a remote that is none", userConfig, userConfig + "[branch \"x\"]\n\tremote = evil\n", false, false},
		{"a path for a remote", userConfig, userConfig + "[branch \"x\"]\n\tremote = ../evil\n", false, false},
		{"a URL for a remote", userConfig, userConfig + "[branch \"x\"]\n\tremote = https://evil\n", false, false},
		{"a ref above", userConfig, userConfig + "[branch \"x\"]\n\tremote = origin\n\tmerge = refs/heads/../../x\n", false, false},
		{"another URL", userConfig, strings.Replace(userConfig, "example.com", "evil.com", 1), false, false},
		{"another remote", userConfig, userConfig + "[remote \"x\"]\n\turl = https://example.com\n", false, false},
		{"a key of a branch", userConfig, userConfig + "[branch \"x\"]\n\tpushRemote = origin\n", false, false},
		{"one key less", userConfig, strings.Replace(userConfig, "\tst = status\n", "", 1), false, false},
		{"a section before a key", "[core]\n\tx = y\n", "[core]\n[branch \"a\"]\n\tx = y\n", false, false},
		{"a key before a section", userConfig, "\tfsmonitor = x\n" + userConfig, false, false},
		{"nothing", userConfig, "", false, false},
		{"a key of a section that goes on", "[core]\n\tx = y \\\n  z\n", "[core]\n\tx = y \\\n[branch \"a\"]\n\tremote = .\n  z\n", false, false},
		{"a section with a key in its line", userConfig, userConfig + "[branch \"x\"] remote = .\n", false, false},
		{"a name in quotes", userConfig, userConfig + "[branch \"x\\\"]\n\tremote = .\n", false, false},
		{"an included file", userConfig, userConfig + "[include]\n\tpath = x\n", false, false},
		{"without an end", userConfig, userConfig + "[branch \"x\"]\n\tremote = .", false, false},
		{"CR", userConfig, userConfig + "[branch \"x\"]\r\n\tremote = .\r\n", false, false},
		{"BOM", "\ufeff" + userConfig, "\ufeff" + userConfig, false, false},

		{"new, as Git makes it", "", "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n[remote \"origin\"]\n\turl = git@example.com:a/b.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n[user]\n\tname = Zoë O'Hara\n\temail = z+x@example.com\n", true, true},
		{"nothing, new", "", "", true, true},
		{"in a repository that is there", "", "[core]\n\tbare = false\n", false, false},
		{"hooks", "", "[core]\n\thooksPath = x\n", true, false},
		{"a subsection", "", "[core \"x\"]\n\tbare = true\n", true, false},
		{"a work tree", "", "[core]\n\tworktree = ../..\n", true, false},
		{"other hashes", "", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = sha256\n", true, false},
		{"a program for a remote", "", "[remote \"x\"]\n\tuploadpack = x\n", true, false},
		{"a refspec elsewhere", "", "[remote \"x\"]\n\turl = /x\n\tfetch = +refs/heads/*:refs/heads/*\n", true, false},
		{"a remote that is renamed", "", "[remote \"x\"]\n\turl = /x\n\tfetch = +refs/heads/*:refs/remotes/y/*\n", true, true},
		{"and its branch, which comes last", "", "[remote \"x\"]\n\turl = /x\n[branch \"main\"]\n\tremote = origin\n", true, true},
		{"another branch's ref", "", "[remote \"x\"]\n\turl = /x\n\tfetch = +refs/heads/a:refs/remotes/x/b\n", true, false},
		{"refs above", "", "[remote \"x\"]\n\turl = /x\n\tfetch = +refs/heads/*:refs/remotes/../*\n", true, false},
		{"refs of no remote", "", "[remote \"x\"]\n\turl = /x\n\tfetch = +refs/heads/*:refs/remotes/*\n", true, false},
		{"a remote above", "", "[remote \"a..b\"]\n\turl = /x\n", true, false},
		{"a program that signs", "", "[commit]\n\tgpgsign = true\n", true, false},
		{"a comment", "", "# x\n", true, false},
	} {
		if got := goodConfig([]byte(tt.old), []byte(tt.new), tt.made); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	long := "[a \"" + strings.Repeat("x", maxConfigLine-10) + "\"]\n"
	if long += strings.Repeat("a\n", (maxConfig-len(long))/2); !goodConfig([]byte(long), []byte(long), false) {
		t.Error("a long configuration is none")
	}
	section := "[" + strings.Repeat("x", maxConfigLine-10) + "]\n"
	section += strings.Repeat("a\n", (maxConfig-len(section))/2)
	if n := testing.AllocsPerRun(1, func() { goodConfig([]byte(section), []byte(section), false) }); n > 1000 {
		t.Errorf("%v pieces of memory for a section of a long name", n)
	}
	for _, text := range []string{long + "a\n", "[a \"" + strings.Repeat("x", maxConfigLine) + "\"]\n"} {
		if goodConfig([]byte(text), []byte(text), false) {
			t.Errorf("%d bytes that begin with %.20q", len(text), text)
		}
	}
	for text, want := range map[string]bool{
		"https://example.com/x.git": true, "ssh://git@example.com:22/x": true, "git@example.com:x/y.git": true, "/a/b": true, "../x": true, "./x": true, "file:///x": true, "http://a:b%40@h/~x": true, "https://h/x?a=b&c": true,
		"ssh://h&x/y": false, "h&x:y": false, "ssh://u&x@h/y": false, "https://h%0ax/y": false, "https://u%1b@h/y": false,
		"ext::sh -c x": false, "ext::x": false, "fd::3": false, "-x": false, "ssh://-oProxyCommand=x/y": false, "ssh://u@-x/y": false, "ssh://%2DoProxyCommand=x/y": false, "ssh://u@%2dx/y": false, "h:-x": false, "foo://x": false, "": false, "https://": false, "a b": false, "a\"": false, "../-x": false, "a#b": false, "a;b": false,
	} {
		if got := url(text); got != want {
			t.Errorf("url(%q) = %v", text, got)
		}
	}
	for name, want := range map[string]bool{"pre-commit.sample": true, "README.sample": true, "pre-commit": false, ".sample": false, "pre-commit:x.sample": false, "pre-commit.sample.": false, "pre-commit~1.sample": false, "pré.sample": false, "-x.sample": false} {
		if sampleHook([]byte(name)) != want {
			t.Errorf("sampleHook(%q)", name)
		}
	}
}

// TestGoodConfigAsGit compares what goodConfig lets a command change with what Git then
// reads: lines and parts of lines are put together at random.
func TestGoodConfigAsGit(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	line := func() string {
		switch r.IntN(12) {
		case 0, 1:
			return pick("[branch \"main\"]", "[branch \"x\"]", "[branch \"x\"] ", "[Branch \"a b\"]", "[branch.x]", "[branch]", "[branch \"x\" ]", "[ branch \"x\"]", "[branch  \"x\"]", "[branch \"x\\\"y\"]", "[branch \"x]\"]", "[branch \"#\"]")
		case 2:
			return pick("[core]", "[CORE]", "[core \"x\"]", "[remote \"origin\"]", "[remote \"x\"]", "[alias]", "[include]", "[user]", "[core] bare = true", "[a.b \"c\"]", "[]", "[", "[x")
		case 3:
			return pick("", "# x", "; x", "#\\", "\\", "\ufeff", "\"", "x", "fsmonitor", "-x = y", "\tfsmonitor = x # y", "\tx = \"a", "\tx = a\\", "\tx = \"a\\", "b\"", "\tx = \"a # b\"", "x=\"\\n[branch \\\"a\\\"]\"")
		case 4, 5, 6:
			return pick("\t", "", " ", "\t \t") + pick("remote", "Remote", "REMOTE") + pick(" = ", "=", " =", "= ", "\t=\t", "  =  ") + pick("origin", ".", "x", "evil", "/x", "\"origin\"", "origin ", "origin # x", "origin\\", "https://x", "a..b", "")
		case 7, 8:
			return "\tmerge = " + pick("refs/heads/main", "refs/heads/a/b", "refs/tags/x", "refs/heads/../x", "main", "refs/heads/x # y", "refs/heads/x;y", "\"refs/heads/x\"")
		case 9:
			return "\trebase = " + pick("true", "false", "merges", "interactive", "yes", "true \\")
		case 10:
			return "\t" + pick("url = ", "fetch = ", "tagopt = ", "name = ", "email = ", "filemode = ", "bare = ", "worktree = ", "hooksPath = ", "gpgsign = ", "pushRemote = ") + pick("true", "false", "x", "https://x/y", "ext::sh", "+refs/heads/*:refs/remotes/origin/*", "+refs/heads/*:refs/remotes/x/*", "+refs/heads/*:refs/heads/*", "--tags", "a b", "A. B.", "a@b.c")
		}
		return pick("\tremote = origin", "\tmerge = refs/heads/main", "\turl = https://x/y")
	}
	file := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(line())
			b.WriteString(pick("\n", "\n", "\n", "\n", "\n", "\n", "\n", "\n", "\r\n", ""))
		}
		return b.String()
	}
	dir := t.TempDir()
	list := func(text string) ([]string, error) {
		p := filepath.Join(dir, "config")
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := git(t, dir, "", "config", "--no-includes", "-z", "-l", "-f", p)
		return strings.Split(out, "\x00"), err
	}
	// kept are the settings that may not change.
	kept := func(all []string) string {
		var rest []string
		for _, s := range all {
			key, _, _ := strings.Cut(s, "\n")
			parts := strings.Split(key, ".")
			switch last := parts[len(parts)-1]; {
			case parts[0] == "branch" && len(parts) > 2 && (last == "remote" || last == "merge" || last == "rebase"):
			default:
				rest = append(rest, s)
			}
		}
		return strings.Join(rest, "\x00")
	}
	accepted, n := 0, 0
	for range 200_000 {
		if accepted == 300 {
			break
		}
		n++
		old, made := "", r.IntN(3) == 0
		if !made {
			old = file(1 + r.IntN(6))
		}
		new := file(r.IntN(5))
		if !made { // what is there, with lines added and taken away
			lines := strings.SplitAfter(old, "\n")
			at := r.IntN(len(lines) + 1)
			to := min(len(lines), at+r.IntN(3))
			new = strings.Join(lines[:at], "") + new + strings.Join(lines[to:], "")
			if new == old {
				continue
			}
		}
		if !goodConfig([]byte(old), []byte(new), made) {
			continue
		}
		accepted++
		before, err1 := list(old)
		after, err2 := list(new)
		if err1 != nil || err2 != nil { // Git ends at the same line, or at a new one: it obeys nothing
			if (err1 == nil) != (err2 == nil) {
				t.Errorf("seed %d: of one of these Git reads nothing: %q, %q", seed, old, new)
			}
			continue
		}
		if made {
			for _, s := range after {
				key, value, _ := strings.Cut(s, "\n")
				if parts := strings.Split(key, "."); key != "" && (strings.ContainsAny(value, "\n\\\"#;") || strings.Contains(value, "::") ||
					!strings.Contains(" core.filemode core.bare user.name user.email commit.gpgsign tag.gpgsign remote.url remote.fetch remote.tagopt branch.remote branch.merge branch.rebase ", fmt.Sprintf(" %s.%s ", parts[0], parts[len(parts)-1]))) {
					t.Errorf("seed %d: a new repository has %q: %q", seed, s, new)
				}
			}
		} else if kept(before) != kept(after) {
			t.Errorf("seed %d: from\n%q\nto\n%q\nGit reads\n%q\nand\n%q", seed, old, new, before, after)
		}
	}
	if t.Logf("%d of %d were accepted", accepted, n); accepted < 300 {
		t.Errorf("only %d of %d were accepted", accepted, n)
	}
}
