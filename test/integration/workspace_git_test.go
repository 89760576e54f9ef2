//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const gitToken = "tok3n-of-nobody"

// A forge serves repositories by Git's own server, to who has the token.
type forge struct {
	*httptest.Server
	dir string

	mu      sync.Mutex
	asked   int // requests with the token
	refused int
}

func newForge(t *testing.T) *forge {
	t.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	g := &forge{dir: t.TempDir()}
	backend := &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"),
		Env: []string{"GIT_PROJECT_ROOT=" + g.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null"}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/private") {
			_, pass, _ := r.BasicAuth()
			g.mu.Lock()
			ok := pass == gitToken
			if ok {
				g.asked++
			} else {
				g.refused++
			}
			g.mu.Unlock()
			if !ok {
				w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(g.Close)
	script := `set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x
git init -q -b main work; cd work
echo one > f; git add .; git commit -qm one; git tag v1; echo two >> f; git commit -qam two; echo three >> f; git commit -qam three
git checkout -q -b feature/x; echo x > x; git add .; git commit -qm x
git checkout -q --detach main; echo proposed > p; git add .; git commit -qm p; git update-ref refs/pull/7/head HEAD
git checkout -q main
mkdir -p .husky; printf '#!/bin/sh\ntouch /tmp/hooked\n' > .husky/post-checkout; chmod +x .husky/post-checkout
printf '[submodule "s"]\n\tpath = s\n\turl = ext::sh -c touch%% /tmp/pwned\n' > .gitmodules; echo '* filter=evil' > .gitattributes; git add .; git commit -qm hostile
cd ..
git clone -q --mirror work public.git; cp -r public.git private.git
for r in public private; do git -C $r.git config uploadpack.allowReachableSHA1InWant true; printf '#!/bin/sh\ntouch %s/hooked\n' "$PWD" > $r.git/hooks/post-checkout; done`
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = g.dir
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, b)
	}
	return g
}

func (g *forge) commit(t *testing.T, ref string) string {
	t.Helper()
	out, err := exec.Command("git", "-C", filepath.Join(g.dir, "public.git"), "rev-parse", ref).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// git runs sbxrun with --git in a directory of the fixture's.
func (o *overlay) git(url string, env []string, flags []string, command ...string) *outcome {
	o.Helper()
	args := append([]string{"/usr/bin/env", "-C", o.dir, sbxrun, "run", "--git", url}, o.who.flags()...)
	return o.do(call{args: o.who.command(append(append(append(args, flags...), "--"), command...)...), env: append(env, o.env...)})
}

// TestGitWorkspace: branch, tag, commit and what is proposed are cloned, one commit
// deep, and what a run cloned for itself goes with it.
func TestGitWorkspace(t *testing.T) {
	t.Parallel()
	g := newForge(t)
	asEachUser(t, func(t *testing.T, w who) {
		url := g.URL + "/public.git"
		for _, c := range []struct{ ref, flags, want, depth string }{
			{"", "", "main", "1"}, {"#feature/x", "", "feature/x", "1"}, {"#v1", "", "v1", "1"}, {"#pull/7/head", "", "refs/pull/7/head", "1"},
			{"#" + g.commit(t, "main~1"), "", "main~1", "1"}, {"", "--git-depth=none", "main", "4"}, {"#main", "--git-depth=2", "main", "2"},
		} {
			o := newOverlay(t, w)
			var flags []string
			if c.flags != "" {
				flags = []string{c.flags}
			}
			out := o.git(url+c.ref, nil, flags, "/bin/sh", "-c", "git log --oneline | wc -l; git rev-parse HEAD; git status --short; git config remote.origin.url; pwd")
			lines := strings.Split(out.stdout, "\n")
			if out.code != 0 || len(lines) != 5 || lines[0] != c.depth || lines[1] != g.commit(t, c.want) || lines[2] != url {
				t.Errorf("%s %s: want %s: %v", c.ref, c.flags, g.commit(t, c.want), out)
				continue
			}
			if _, err := os.Lstat(lines[3]); !os.IsNotExist(err) {
				t.Errorf("%s is still there: %v", lines[3], err)
			}
		}
		for _, name := range []string{filepath.Join(g.dir, "hooked"), "/tmp/hooked", "/tmp/pwned"} {
			if _, err := os.Lstat(name); !os.IsNotExist(err) {
				t.Errorf("%s: something of the repository ran", name)
			}
		}
		o := newOverlay(t, w)
		// From a directory of this machine.
		if out := o.git("file://"+filepath.Join(g.dir, "public.git"), nil, nil, "git", "rev-parse", "HEAD"); w.uid == 0 && (out.code != 0 || strings.TrimSpace(out.stdout) != g.commit(t, "main")) {
			t.Errorf("%v", out)
		}
		// Into a directory that stays, and with nothing of it in the way.
		dst := o.path("ws/dst")
		if out := o.git(url, nil, []string{"-C", dst}, "/bin/sh", "-c", "echo mine > mine; cat f"); out.code != 0 || out.stdout != "one\ntwo\nthree\n" {
			t.Errorf("%v", out)
		}
		o.has("dst/mine", "mine\n")
		if out := o.git(url, nil, []string{"-C", dst}, "true"); out.code != 125 || !strings.Contains(out.stderr, "not empty") {
			t.Errorf("%v", out)
		}
		o.has("dst/mine", "mine\n")
		// A clone that fails leaves nothing.
		none := o.path("ws/none")
		for _, u := range []string{g.URL + "/absent.git", url + "#no-such-branch"} {
			if out := o.git(u, nil, []string{"-C", none}, "true"); out.code != 125 || !strings.Contains(out.stderr, "clone of ") {
				t.Errorf("%s: %v", u, out)
			}
			if _, err := os.Lstat(none); !os.IsNotExist(err) {
				t.Errorf("%s: %v", u, err)
			}
		}
		// Why a server was not reached is said, which git itself does not know.
		if out := o.git("https://git.example.invalid/x", nil, []string{"-C", none}, "true"); out.code != 125 || !strings.Contains(out.stderr, "; git.example.invalid:443: ") {
			t.Errorf("%v", out)
		}
	})
}

// TestGitWorkspaceToken: the token opens the repository, and is nowhere else: not
// in the sandbox, not in its configuration, not in an argument, an output or a
// file.
func TestGitWorkspaceToken(t *testing.T) {
	g := newForge(t)
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		env := []string{"FORGE_TOKEN=" + gitToken}
		url := g.URL + "/private.git"
		if out := o.git(url, env, nil, "true"); out.code != 125 || !strings.Contains(out.stderr, "clone of ") {
			t.Errorf("without a token: %v", out)
		}
		dst := o.path("ws/dst")
		look := `env; cat .git/config; tr '\0' '\n' < /proc/self/environ; grep -r tok3n . /proc/*/cmdline /proc/*/environ 2>/dev/null; git config -l`
		out := o.git(url, env, []string{"-C", dst, "--inherit-env", "--git-token-env", "FORGE_TOKEN", "-v"}, "/bin/sh", "-c", look)
		if out.code != 0 && out.code != 1 || !strings.Contains(out.stdout, "url = "+url) {
			t.Errorf("%v", out)
		}
		g.mu.Lock()
		if g.asked == 0 {
			t.Error("the token was not sent")
		}
		g.mu.Unlock()
		for _, s := range []string{gitToken, "eC1hY2Nlc3MtdG9rZW4", "extraHeader", "FORGE_TOKEN"} {
			if strings.Contains(out.stdout, s) || strings.Contains(strings.ReplaceAll(out.stderr, "--git-token-env FORGE_TOKEN", ""), s) {
				t.Errorf("%s got out: %v", s, out)
			}
		}
		// Control: without the flag the variable would be passed.
		if out := o.do(call{args: o.strict([]string{"--inherit-env"}, "env"), env: env}); !strings.Contains(out.stdout, gitToken) {
			t.Errorf("control: %v", out)
		}
		err := filepath.WalkDir(o.dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(p)
			if strings.Contains(string(b), gitToken) || strings.Contains(string(b), "eC1hY2Nlc3MtdG9rZW4") {
				t.Errorf("the token is in %s", p)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		// Errors that quote it do not.
		for _, c := range []struct {
			env   string
			flags []string
			want  string
		}{
			{"FORGE_TOKEN=wrong-" + gitToken, nil, "clone of "},
			{"FORGE_TOKEN=", nil, "there is no variable FORGE_TOKEN"},
			{"FORGE_TOKEN=" + gitToken + "\nX: y", nil, "a line break"},
			{"FORGE_TOKEN=" + gitToken, []string{"-e", "FORGE_TOKEN"}, "keeps from it"},
		} {
			out := o.git(url, []string{c.env}, append(c.flags, "--git-token-env", "FORGE_TOKEN"), "true")
			if out.code != 125 || !strings.Contains(out.stderr, c.want) || strings.Contains(out.stderr+out.stdout, gitToken) {
				t.Errorf("%q: %v", c.env, out)
			}
		}
	})
}

// TestGitWorkspaceSession: a session's clone stays, in a directory of its name.
func TestGitWorkspaceSession(t *testing.T) {
	g := newForge(t)
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		id := o.unique("s")
		if len(id) > 60 {
			id = id[len(id)-60:]
		}
		args := append([]string{"session", "create", "--git", g.URL + "/private.git#feature/x", "--git-token-env", "FORGE_TOKEN"}, w.flags()...)
		out := o.do(call{args: o.who.command(append([]string{"/usr/bin/env", "-C", o.ws, "FORGE_TOKEN=" + gitToken, sbxrun}, append(args, id)...)...), env: o.env})
		if out.code != 0 {
			t.Fatalf("%v", out)
		}
		t.Cleanup(func() { o.cli("session", "rm", "--force", id) })
		if out := o.cli("session", "exec", id, "--", "/bin/sh", "-c", "cat x; pwd; env"); out.code != 0 || !strings.HasPrefix(out.stdout, "x\n"+o.ws+"/private\n") || strings.Contains(out.stdout, gitToken) {
			t.Errorf("%v", out)
		}
		if out := o.cli("session", "inspect", id); strings.Contains(out.stdout, gitToken) || !json.Valid([]byte(out.stdout)) {
			t.Errorf("%v", out)
		}
		for _, p := range []string{"/proc/*/cmdline"} {
			list, _ := filepath.Glob(p)
			for _, f := range list {
				if b, _ := os.ReadFile(f); strings.Contains(string(b), gitToken) && strings.Contains(string(b), "session-holder") {
					t.Errorf("%s: %s", f, b)
				}
			}
		}
		if out := o.cli("session", "stop", id); out.code != 0 {
			t.Errorf("%v", out)
		}
	})
}

// TestGitWorkspaceConfined: the clone reaches its own host alone, and its server
// cannot lead it elsewhere.
func TestGitWorkspaceConfined(t *testing.T) {
	var mu sync.Mutex
	reached := ""
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		reached = fmt.Sprint(r.URL, r.Header["Authorization"])
	}))
	defer other.Close()
	evil := httptest.NewServer(http.RedirectHandler(other.URL+"/x.git/info/refs?service=git-upload-pack", http.StatusFound))
	defer evil.Close()
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		for _, flags := range [][]string{nil, {"--git-token-env", "FORGE_TOKEN"}} {
			out := o.git(evil.URL+"/a.git", []string{"FORGE_TOKEN=" + gitToken}, flags, "true")
			if out.code != 125 || !strings.Contains(out.stderr, "clone of ") || strings.Contains(out.stderr, gitToken) {
				t.Errorf("%v", out)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if reached != "" {
			t.Errorf("the other host was reached: %s", reached)
		}
	})
}
