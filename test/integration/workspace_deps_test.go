//go:build linux

package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newRegistry serves one npm package, whose installation script leaves a file.
func newRegistry(t *testing.T) *httptest.Server {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	w := tar.NewWriter(zw)
	for name, content := range map[string]string{
		"package/package.json": `{"name":"dep","version":"1.2.3","main":"index.js","scripts":{"postinstall":"id -u > /tmp/installed-as; echo ran > postinstall-ran"}}`,
		"package/index.js":     `module.exports = "dep 1.2.3"`,
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(content))
	}
	w.Close()
	zw.Close()
	tarball := b.Bytes()
	sum := sha1.Sum(tarball)
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/dep":
			json.NewEncoder(w).Encode(map[string]any{"name": "dep", "dist-tags": map[string]string{"latest": "1.2.3"}, "versions": map[string]any{"1.2.3": map[string]any{
				"name": "dep", "version": "1.2.3", "hasInstallScript": true, "dist": map[string]string{"tarball": s.URL + "/dep.tgz", "shasum": hex.EncodeToString(sum[:])}}}})
		case "/dep.tgz":
			w.Write(tarball)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// TestInstallDeps: what the workspace's files name is installed in the sandbox,
// under its rules, before the command, and the result lists it.
func TestInstallDeps(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	host := strings.TrimPrefix(reg.URL, "http://")
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		o.file("package.json", `{"name":"a","version":"1.0.0","dependencies":{"dep":"^1.0.0"}}`)
		run := func(flags []string, command ...string) (*outcome, result, []struct {
			Manager, File, Command string
			ExitCode               *int `json:"exit_code"`
		}) {
			args := append([]string{sbxrun, "--json", "-C", o.ws, "--install-deps", "-e", "npm_config_registry=" + reg.URL}, w.flags()...)
			out := o.do(call{args: w.command(append(append(append(args, flags...), "--"), command...)...), env: o.env})
			var r struct {
				result
				Dependencies []struct {
					Manager, File, Command string
					ExitCode               *int `json:"exit_code"`
				}
			}
			if err := json.Unmarshal([]byte(out.stdout), &r); err != nil {
				t.Fatalf("%v: %v", err, out)
			}
			return out, r.result, r.Dependencies
		}
		// Without a rule for the registry nothing is installed, and the command
		// does not run.
		out, r, deps := run([]string{"-e", "npm_config_fetch_retries=0"}, "/bin/sh", "-c", "echo ran")
		if r.ExitCode == 0 || strings.Contains(r.Stdout, "ran") || len(deps) != 1 || deps[0].ExitCode == nil || *deps[0].ExitCode != r.ExitCode {
			t.Errorf("without a rule: %v %+v", out, deps)
		}
		out, r, deps = run([]string{"--allow-host", host}, "/bin/sh", "-c", `node -p 'require("dep")'; cat /tmp/installed-as; id -u; cat - | wc -c; ls /proc/self/fd | wc -l`)
		if r.ExitCode != 0 || !strings.HasPrefix(r.Stdout, "dep 1.2.3\n1000\n1000\n0\n4\n") || len(deps) != 1 || deps[0].Manager != "npm" || deps[0].File != "package.json" || *deps[0].ExitCode != 0 {
			t.Errorf("%v %+v", out, deps)
		}
		if _, err := os.Stat(filepath.Join(o.ws, "node_modules/dep/postinstall-ran")); err != nil {
			t.Error(err)
		}
		// From the lock file that this made, in an overlay: nothing of it stays.
		if err := os.RemoveAll(filepath.Join(o.ws, "node_modules")); err != nil {
			t.Fatal(err)
		}
		out, r, deps = run([]string{"--allow-host", host, "--workspace", "overlay"}, "node", "-p", `require("dep")`)
		if r.ExitCode != 0 || r.Stdout != "dep 1.2.3\n" || len(deps) != 1 || deps[0].File != "package-lock.json" {
			t.Errorf("%v %+v", out, deps)
		}
		o.has("node_modules/dep/index.js", "")
		// The command's own code and signal stay its own.
		if out, r, _ := run([]string{"--allow-host", host}, "/bin/sh", "-c", "exit 7"); r.ExitCode != 7 {
			t.Errorf("%v", out)
		}
		if out, r, _ := run([]string{"--allow-host", host}, "/bin/sh", "-c", "kill -TERM $$"); r.Signal != "SIGTERM" {
			t.Errorf("%v", out)
		}
		// What has no tool says so; what names nothing runs at once.
		o = newOverlay(t, w)
		o.file("Gemfile", "source 'http://127.0.0.1:1'\n")
		if out, r, deps := run([]string{"-e", "PATH=/nowhere"}, "/bin/echo", "ran"); r.ExitCode != 127 || r.Stdout != "" || len(deps) != 1 || *deps[0].ExitCode != 127 {
			t.Errorf("%v %+v", out, deps)
		}
		o = newOverlay(t, w)
		if out, r, deps := run(nil, "/bin/echo", "ran"); r.ExitCode != 0 || r.Stdout != "ran\n" || len(deps) != 0 {
			t.Errorf("%v %+v", out, deps)
		}
	})
}

// TestInstallDepsSession: a session is created with its dependencies in place, or
// not at all.
func TestInstallDepsSession(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		o.file("package.json", `{"name":"a","version":"1.0.0","dependencies":{"dep":"^1.0.0"}}`)
		id := o.unique("s")
		if len(id) > 60 {
			id = id[len(id)-60:]
		}
		create := append([]string{"session", "create", "--install-deps", "--workspace", "overlay", "-e", "npm_config_fetch_retries=0", "-e", "npm_config_registry=" + reg.URL, "-C", o.ws}, w.flags()...)
		if out := o.cli(append(create, id)...); out.code == 0 || !strings.Contains(out.stderr, "installing what package.json names failed") {
			t.Errorf("%v", out)
		}
		if out := o.cli("session", "ls"); strings.Contains(out.stdout, id) {
			t.Errorf("a session without its dependencies is there: %v", out)
		}
		o.cli("discard", id)
		if out := o.cli(append(create, "--allow-host", strings.TrimPrefix(reg.URL, "http://"), id)...); out.code != 0 {
			t.Fatalf("%v", out)
		}
		t.Cleanup(func() { o.cli("session", "rm", "--force", id) })
		if out := o.cli("session", "exec", id, "--", "node", "-p", `require("dep")`); out.code != 0 || out.stdout != "dep 1.2.3\n" {
			t.Errorf("%v", out)
		}
		if out := o.cli("session", "stop", id); out.code != 0 {
			t.Errorf("%v", out)
		}
		if out := o.cli("diff", "--stat", id); !strings.Contains(out.stdout, "A  node_modules/dep/index.js\n") {
			t.Errorf("%v", out)
		}
		if out := o.cli("discard", id); out.code != 0 {
			t.Errorf("%v", out)
		}
		o.has("node_modules/dep/index.js", "")
	})
}
