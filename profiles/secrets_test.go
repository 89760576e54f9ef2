package profiles

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
)

// TestSecretNames: files are hidden by name at any depth, by what they hold where
// the name says too little, and not where projects need them.
func TestSecretNames(t *testing.T) {
	const key = "-----BEGIN PRIVATE KEY-----\n"
	f := hostFS()
	ws := "home/u/src/project/"
	for name, text := range map[string]string{
		"a/b/c/.env": "A=1", "a/.ENV.local": "A=1", "a/x.tfstate": "{}", "a/.npmrc": "//r/:_authToken=abcdefgh", "a/tls.pem": key, "a/id_ed25519": key,
		"a/.env.example": "A=", "b/.npmrc": "engine-strict=true", "b/ca.pem": "-----BEGIN CERTIFICATE-----", "testdata/tls.pem": key, "node_modules/x/.env": "A=1", "a/env": "A=1",
		"m/package.json": `{"author": "Jordan Someone", "dependencies": {"js-tokens": "^4.0.0"}}`, "m/package-lock.json": `{"resolved": "https://user:hunter2@registry.example/x.tgz"}`,
		"m/AUTHORS": "Author: Somebody Else git+ssh://git@example.org/x", "m/remote": "https://a:b@example.org/", "m/remote2": "https://0123456789@example.org/", "m/conf": "auth = hunter2xyz", "m/conf2": "http_auth_pass: hunter2xyz", "m/conf3": `{"tokens": "hunter2xyz"}`,
		"n/.npmrc": "\x00//r/:_authToken=abcdefgh", "n/blob": "\x00//r/:_authToken=abcdefgh",
	} {
		putFile(f, ws+name, text)
	}
	putFile(f, "home/u/go/pkg/.netrc", "machine x password y")
	putFile(f, "data/other/deep/.env", "A=1")
	putFile(f, "data/test/server.key", key)
	r := mustResolve(t, Request{Profile: "aicode", ReadOnly: []string{"/data/other", "/data/test"}}, testFacts(f))
	for _, p := range []string{"/" + ws + "a/b/c/.env", "/" + ws + "a/.ENV.local", "/" + ws + "a/x.tfstate", "/" + ws + "a/.npmrc", "/" + ws + "a/tls.pem", "/" + ws + "a/id_ed25519",
		"/home/u/go/pkg/.netrc", "/data/other/deep/.env", "/data/test/server.key"} {
		if access(t, r, p) != "---" {
			t.Errorf("%s is shown", p)
		}
	}
	for _, n := range []string{"a/.env.example", "b/.npmrc", "b/ca.pem", "testdata/tls.pem", "node_modules/x/.env", "a/env"} {
		if got := access(t, r, "/"+ws+n); got != "" { // as the workspace
			t.Errorf("%s is %q", n, got)
		}
	}
	// A grant that names one shows it; strict does not look.
	r = mustResolve(t, Request{Profile: "aicode", ReadOnly: []string{"a/b/c/.env"}}, testFacts(f))
	if got := access(t, r, "/"+ws+"a/b/c/.env"); got != "r-x" {
		t.Errorf("named: %q", got)
	}
	r = mustResolve(t, Request{}, testFacts(f))
	if got := access(t, r, "/"+ws+"a/b/c/.env"); got != "" {
		t.Errorf("strict: %q", got)
	}

	// What doctor lists is what is not hidden.
	found, complete := Credentials(r.Policy, testFacts(f))
	has := func(found []Credential, name string) bool {
		return slices.ContainsFunc(found, func(c Credential) bool { return c.Path == "/"+ws+name })
	}
	for name, want := range map[string]bool{"a/b/c/.env": true, "a/.npmrc": true, "a/tls.pem": true, "b/.npmrc": false, "a/.env.example": false, "b/ca.pem": false, "a/env": false,
		"m/package.json": false, "m/package-lock.json": true, "m/AUTHORS": false, "m/remote": true, "m/remote2": true, "m/conf": true, "m/conf2": true, "m/conf3": true, "n/.npmrc": true, "n/blob": false} {
		if has(found, name) != want {
			t.Errorf("doctor, %s: %v", name, found)
		}
	}
	if !complete {
		t.Error("not complete")
	}
	r = mustResolve(t, Request{Profile: "aicode"}, testFacts(f))
	if found, _ = Credentials(r.Policy, testFacts(f)); has(found, "a/b/c/.env") || has(found, "a/tls.pem") {
		t.Errorf("aicode: %v", found)
	}
}

// TestSecretNewline: no policy holds a path with a newline, so its directory is hidden.
func TestSecretNewline(t *testing.T) {
	f := hostFS()
	putFile(f, "home/u/src/project/keys/a\nb.pem", "-----BEGIN PRIVATE KEY-----\n")
	r := mustResolve(t, Request{Profile: "aicode"}, testFacts(f))
	if got := access(t, r, "/home/u/src/project/keys"); got != "---" {
		t.Errorf("%q", got)
	}
	putFile(f, "home/u/src/project/\n.env", "A=1")
	if _, err := Resolve(&Request{Command: []string{"true"}, Profile: "aicode"}, testFacts(f)); err == nil || !strings.Contains(err.Error(), "newline") {
		t.Errorf("%v", err)
	}
}

// TestReadClean: settings are shown as they are, or without what looks like a
// credential.
func TestReadClean(t *testing.T) {
	f := hostFS()
	clean := "[user]\n\tname = Me\n[alias]\n\tst = status\n"
	putFile(f, "home/u/.gitconfig", clean)
	r := mustResolve(t, Request{Profile: "aicode"}, testFacts(f))
	if got := access(t, r, "/home/u/.gitconfig"); got != "r--" {
		t.Errorf("%q", got)
	}
	putFile(f, "home/u/.gitconfig", "[url \"https://me:hunter22@x.org/\"]\n\tinsteadOf = https://x.org/\n[user]\n\tname = Me\n[credential \"https://x.org\"]\n\tusername = me\n\thelper = \"!f() { \\\n echo password=hunter22; \\\n}; f\"\n"+
		"[http]\n\textraHeader = X: y\n[github]\n\ttoken = abcdefghijk\n[alias]\n\tst = status\n")
	r = mustResolve(t, Request{Profile: "aicode"}, testFacts(f))
	i := slices.IndexFunc(r.Policy.Synthetic, func(s policy.SyntheticFile) bool { return s.Path == "/home/u/.gitconfig" })
	if want := "[user]\n\tname = Me\n[http]\n[github]\n[alias]\n\tst = status\n"; i < 0 || r.Policy.Synthetic[i].Content != want || access(t, r, "/home/u/.gitconfig") != "" {
		t.Errorf("%+v", r.Policy.Synthetic)
	}
	// The caller's own word is final.
	r = mustResolve(t, Request{Profile: "aicode", ReadOnly: []string{"~/.gitconfig"}}, testFacts(f))
	if got := access(t, r, "/home/u/.gitconfig"); got != "r-x" || slices.ContainsFunc(r.Policy.Synthetic, func(s policy.SyntheticFile) bool { return s.Path == "/home/u/.gitconfig" }) {
		t.Errorf("%q", got)
	}
}

// TestNames: a name matches as path.Match has it, letter by letter.
func TestNames(t *testing.T) {
	patterns := []string{"a", "ab", "a*", "*a", "*a*", "a*b", "*a*b", "a*b*", "a*b*a", "*a*a", "*ab*", "**b", "*", "a?", "[ab]b"}
	var each func(name string)
	each = func(name string) {
		for _, p := range patterns {
			want, _ := path.Match(p, name)
			if name != "" && newNames([]string{p}).has(name) != want {
				t.Errorf("%q and %q: want %v", p, name, want)
			}
		}
		if len(name) < 5 {
			for _, c := range "ab." {
				each(name + string(c))
			}
		}
	}
	each("")
}

// TestSecretsInLargeTree: several goroutines that search find what is there, all of it,
// each once, and stop at the bounds.
func TestSecretsInLargeTree(t *testing.T) {
	f := hostFS()
	want := 0
	for i := range 200 {
		dir := fmt.Sprintf("home/u/src/project/%d/%d/", i%7, i)
		putFile(f, dir+"main.go", "x")
		if i%3 == 0 {
			putFile(f, dir+".env", "x")
			want++
		}
	}
	for _, cpus := range []int{1, 2, 8} {
		facts := testFacts(f)
		facts.CPUs = cpus
		r, err := Resolve(&Request{Profile: "aicode", Command: []string{"true"}}, facts)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, rule := range r.Policy.Files {
			if rule.Access == policy.Hide && strings.HasSuffix(rule.Path, "/.env") && rule.Path != "/home/u/src/project/.env" {
				got[rule.Path]++
			}
		}
		if len(got) != want {
			t.Errorf("%d processors: %d of %d are hidden", cpus, len(got), want)
		}
	}
}

// TestSecretsFound: no tree that a command made keeps the next run from hiding what
// lies beside it, and neither does what a preset shows around the workspace.
func TestSecretsFound(t *testing.T) {
	const ws = "home/u/src/project/"
	f := hostFS()
	putFile(f, ws+"a/b/.env", "A=1")
	putFile(f, ws+"0/"+strings.Repeat("d/", 20)+"x", "")
	w := &secretWalk{fsys: f, seen: map[string]bool{}, at: 1, match: func(_, _, name string) bool { return name == ".env" }, dirs: maxSearched - 6}
	if w.walk("/"+ws[:len(ws)-1], "/"+ws[:len(ws)-1], searchDepth); !slices.Contains(w.found, "/"+ws+"a/b/.env") || w.dirs <= maxSearched {
		t.Errorf("beside a deep tree: %q", w.found)
	}

	f = hostFS()
	putFile(f, ws+"z/.env", "A=1")
	for i := range maxMatches {
		putFile(f, ws+"many/"+strconv.Itoa(i)+".env", "")
	}
	if _, err := Resolve(&Request{Profile: "aicode", Command: []string{"true"}}, testFacts(f)); err == nil || !strings.Contains(err.Error(), "more than 2048 files of secret names") {
		t.Errorf("too many: %v", err)
	}
	r := mustResolve(t, Request{Profile: "aicode", Hide: []string{"many"}}, testFacts(f))
	if got := access(t, r, "/"+ws+"z/.env"); got != "---" {
		t.Errorf("beside a hidden directory: %q", got)
	}

	f = hostFS()
	putFile(f, "home/u/.claude/skills/mine/a/b/c/.env", "A=1")
	r = mustResolve(t, Request{Profile: "aicode", Dir: "/home/u/.claude/skills/mine"}, testFacts(f))
	if got := access(t, r, "/home/u/.claude/skills/mine/a/b/c/.env"); got != "---" {
		t.Errorf("in a workspace that a preset shows: %q", got)
	}
}
