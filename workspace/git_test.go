package workspace

import (
	"slices"
	"strings"
	"testing"
)

func TestParseGit(t *testing.T) {
	for _, c := range []struct {
		in             string
		url, ref       string
		host, dir, dst string
	}{
		{"https://git.example.org/a/b.git", "https://git.example.org/a/b.git", "", "git.example.org:443", "", "b"},
		{"https://git.example.org/a/b#main", "https://git.example.org/a/b", "main", "git.example.org:443", "", "b"},
		{"http://127.0.0.1:8080/b.git#pull/12/head", "http://127.0.0.1:8080/b.git", "pull/12/head", "127.0.0.1:8080", "", "b"},
		{"http://[::1]/b/#v1.2", "http://[::1]/b/", "v1.2", "[::1]:80", "", "b"},
		{"/srv/git/b.git#feature/x", "file:///srv/git/b.git", "feature/x", "", "/srv/git/b.git", "b"},
		{"file:///srv/b/.git", "file:///srv/b/.git", "", "", "/srv/b/.git", "b"},
		{"https://h/..", "https://h/..", "", "h:443", "", "repository"},
	} {
		g, err := ParseGit(c.in)
		if err != nil || g.URL != c.url || g.Ref != c.ref || g.Host() != c.host || g.Dir() != c.dir || g.Name() != c.dst || g.Depth != 1 {
			t.Errorf("%s: %+v %v; host %q dir %q name %q", c.in, g, err, g.Host(), g.Dir(), g.Name())
		}
	}
	for _, in := range []string{
		"", "x", "git@host:a/b.git", "ssh://host/a", "git://host/a", "ext::sh -c id", "https:///a", "https://h/a#", "https://h/a#--upload-pack=id", "https://h/a#a..b",
		"https://h/a#a b", "https://h/a#a;id", "https://h/a#$(id)", "https://h/a#x.lock", "https://h/a b", "https://-h/a", "file://host/a", "file:relative", "https://h/a\n",
		"https://h/a#" + strings.Repeat("x", 10<<10),
	} {
		if g, err := ParseGit(in); err == nil {
			t.Errorf("%q: %+v", in, g)
		}
	}
	for _, in := range []string{"https://user:s3cret@h/a", "https://s3cret@h/a", "https://user:s3cret%zz@h/a", "https://s3cret@h/a#a..b", "https://user:s3cret/x@h/a"} {
		if _, err := ParseGit(in); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a password: %v", err)
		}
	}
}

func TestGitCommand(t *testing.T) {
	for _, c := range []struct {
		ref   string
		depth int
		want  []string
	}{
		{"", 1, []string{"1", "https://h/a", ""}},
		{"main", 0, []string{"", "https://h/a", "main"}},
		{"pull/12/head", 1, []string{"1", "https://h/a", "refs/pull/12/head", "--detach"}},
		{"merge-requests/3/head", 5, []string{"5", "https://h/a", "refs/merge-requests/3/head", "--detach"}},
		{"refs/heads/x", 1, []string{"1", "https://h/a", "refs/heads/x", "--detach"}},
		{"pull/request", 1, []string{"1", "https://h/a", "pull/request"}},
		{strings.Repeat("a1", 20), 1, []string{"1", "https://h/a", strings.Repeat("a1", 20), "--detach"}},
	} {
		g := Git{URL: "https://h/a", Ref: c.ref, Depth: c.depth}
		cmd := g.Command()
		if !slices.Equal(cmd[4:], c.want) {
			t.Errorf("%q: %q", c.ref, cmd[4:])
		}
		if strings.Contains(cmd[2], "h/a") || c.ref != "" && strings.Contains(cmd[2], c.ref) {
			t.Errorf("%q is part of the script", c.ref)
		}
	}
}

func TestGitToken(t *testing.T) {
	g := Git{URL: "https://h:8443/a", Depth: 1}
	env := strings.Join(g.Env("s3cret"), "\n")
	if !strings.Contains(env, "=http.https://h:8443/.extraHeader\n") || !strings.Contains(env, "Authorization: Basic eC1hY2Nlc3MtdG9rZW46czNjcmV0") || !strings.Contains(env, "followRedirects\nGIT_CONFIG_VALUE_14=false") {
		t.Error(env)
	}
	if strings.Contains(strings.Join(g.Env(""), "\n"), "Authorization") || strings.Contains(strings.Join(g.Command(), " "), "s3cret") {
		t.Error("a token where there is none")
	}
	if s := Scrub("fatal: s3cret, eC1hY2Nlc3MtdG9rZW46czNjcmV0", "s3cret"); s != "fatal: ***, ***" {
		t.Error(s)
	}
	if s := Scrub("fatal", ""); s != "fatal" {
		t.Error(s)
	}
}
