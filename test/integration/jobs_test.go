//go:build linux

package integration

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Everyday jobs, as they are typed: docs/jobs.md has the table.

// as is a run under a profile, quiet where who has no cgroup.
func (f *fixture) as(profile string, flags []string, script string) *outcome {
	f.Helper()
	args := append(f.who.command(sbxrun, "--profile", profile, "-C", f.ws), f.quiet()...)
	return f.run(call{args: append(append(args, flags...), "--", "bash", "-euo", "pipefail", "-c", script), timeout: 5 * time.Minute})
}

// TestCopyTry: what a tool fetches into can be changed for the run alone, and nothing
// that is hidden in it comes to light by that.
func TestCopyTry(t *testing.T) {
	eachWho(t, func(f *fixture) {
		for path, content := range map[string]string{
			"home/cache/file": "host\n", "home/cache/old": "old\n", "home/cache/dir/a": "a\n", "home/cache/dir/hidden": "a secret\n", "home/cache/dir/.npmrc": "//r/:_authToken=a-secret-too\n", "home/kept/file": "kept\n",
		} {
			f.write(path, content, 0o644)
		}
		f.write("ws/p.yaml", "extends: aicode\nnetwork: {mode: none}\nfiles:\n  copy_try: [~/cache, ~/nothing]\n  hide: [~/cache/dir/hidden]\n", 0o644)
		f.own()
		f.before = f.snapshot()
		profile := filepath.Join(f.ws, "p.yaml")
		script := `
			cd ~/cache
			cat file old
			echo more >>file; rm old; mkdir -p new/x; echo new >new/x/y; mv dir/a dir/b; ln file link; chmod 600 file
			cat file new/x/y dir/b link; ls
			! cat dir/hidden dir/.npmrc 2>/dev/null
			for i in dir/hidden dir/.npmrc; do ! rm -f $i 2>/dev/null; ! mv $i shown 2>/dev/null; ! ln $i shown 2>/dev/null; done
			mv dir moved 2>/dev/null || true; rm -rf dir 2>/dev/null || true; cp -r dir copy 2>/dev/null || true
			! grep -r secret . 2>/dev/null
			! touch ~/kept/x 2>/dev/null || true`
		for range 2 { // nothing stays for the second
			o := f.as(profile, nil, script)
			if want := "host\nold\nhost\nmore\nnew\na\nhost\nmore\ndir\nfile\nlink\nnew\n"; o.code != 0 || o.stdout != want {
				f.Errorf("want %q\n%v", want, o)
			}
			f.wantUnchanged()
		}
		// The supervisor copies a file that is opened for writing. If there is no room, it
		// takes little of a processor for that: without pauses, 0.97 to 1.00 of one here.
		f.write("home/cache/large", strings.Repeat("x", 48<<20), 0o644)
		f.own()
		if o := f.as(profile, []string{"--disk", "40m", "--cpus", "0.1"}, `end=$((SECONDS + 3)); while [ $SECONDS -lt $end ]; do ! : 2>/dev/null >>~/cache/large; done`); o.code != 0 || o.state.SystemTime()+o.state.UserTime() > o.took/2 {
			f.Errorf("%v and %v of the processor: %v", o.state.SystemTime(), o.state.UserTime(), o)
		}
		if err := os.Remove(f.path("home/cache/large")); err != nil {
			f.Fatal(err)
		}
		f.before = f.snapshot()
		// What the caller says of the directory itself comes first.
		if o := f.as(profile, []string{"--ro", "~/cache"}, `cat ~/cache/file; echo x >>~/cache/file`); o.code == 0 || o.stdout != "host\n" || !strings.Contains(o.stderr, "Read-only file system") && !strings.Contains(o.stderr, "Permission denied") {
			f.Errorf("--ro: %v", o)
		}
		f.wantUnchanged()
		if o := f.as(profile, []string{"--rw", "~/cache"}, `echo x >>~/cache/file`); o.code != 0 {
			f.Errorf("--rw: %v", o)
		}
		if b, _ := os.ReadFile(f.path("home/cache/file")); string(b) != "host\nx\n" {
			f.Errorf("--rw: the host has %q", b)
		}
	})
}

// A moduleProxy serves versions of one Go module, and says what it was asked.
type moduleProxy struct {
	*httptest.Server
	mu       sync.Mutex
	versions []string
	asked    []string
}

func newModuleProxy(t *testing.T, versions ...string) *moduleProxy {
	p := &moduleProxy{versions: versions}
	const dir = "/example.com/dep/@v/"
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked = append(p.asked, r.URL.Path)
		name, ok := strings.CutPrefix(r.URL.Path, dir)
		if ok && name == "list" {
			fmt.Fprintln(w, strings.Join(p.versions, "\n"))
			return
		}
		for _, v := range p.versions {
			switch name {
			case v + ".info":
				fmt.Fprintf(w, `{"Version":%q,"Time":"2026-01-02T03:04:05Z"}`, v)
				return
			case v + ".mod":
				fmt.Fprint(w, "module example.com/dep\n\ngo 1.22\n")
				return
			case v + ".zip":
				var b bytes.Buffer
				z := zip.NewWriter(&b)
				for file, text := range map[string]string{"go.mod": "module example.com/dep\n\ngo 1.22\n", "dep.go": "package dep\n\nconst Version = \"" + v + "\"\n"} {
					w, err := z.Create("example.com/dep@" + v + "/" + file)
					if err == nil {
						_, err = w.Write([]byte(text))
					}
					if err != nil {
						t.Error(err)
					}
				}
				z.Close()
				w.Write(b.Bytes())
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// took returns what was asked since the last time, of files with an ending.
func (p *moduleProxy) took(end string) (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, path := range p.asked {
		if strings.HasSuffix(path, end) {
			list = append(list, path)
		}
	}
	p.asked = nil
	return list
}

// goJob is a module that needs another, and the tool chain as the user has it.
func (f *fixture) goJob(proxy string) (flags, env []string) {
	f.Helper()
	// A go command on the host would count in the background, also when it has ended.
	f.write("home/.config/go/telemetry/mode", "off", 0o644)
	f.files(map[string]string{
		"m/go.mod":       "module example.com/m\n\ngo 1.22\n",
		"m/main.go":      "package main\n\nimport \"example.com/dep\"\n\nfunc main() { println(dep.Version) }\n",
		"m/main_test.go": "package main\n\nimport \"testing\"\n\nfunc TestMain(t *testing.T) {}\n",
	})
	f.before = f.snapshot()
	tc := f.readable(goEnv(f.T, "GOROOT"), "bin", "pkg", "src", "VERSION", "go.env")
	return tc.flags, []string{"GOPROXY=" + proxy, "GOSUMDB=off", "PATH=" + tc.root + "/bin:/usr/bin:/bin"}
}

// TestGoGet: modules are fetched as they are outside, whatever the caller has fetched
// before, and what the command fetches stays in the sandbox.
func TestGoGet(t *testing.T) {
	eachWho(t, func(f *fixture) {
		proxy := newModuleProxy(t, "v1.0.0")
		flags, env := f.goJob(proxy.URL)
		in := func(script string) *outcome {
			f.Helper()
			args := append(f.who.command(sbxrun, "--profile", "aicode", "-C", f.ws+"/m"), f.quiet()...)
			return f.run(call{args: append(append(args, flags...), "--", "bash", "-euo", "pipefail", "-c", script), env: env})
		}
		want := func(o *outcome, version string) {
			f.Helper()
			if mod, _ := os.ReadFile(f.path("ws/m/go.mod")); o.code != 0 || !strings.Contains(string(mod), "example.com/dep "+version) || !strings.HasSuffix(o.stdout, version+"\n") {
				f.Errorf("want %s\n%s\n%v", version, mod, o)
			}
			f.wantUnchanged()
		}
		const show = `; go list -m -f '{{.Version}}' example.com/dep`
		want(in(`go get example.com/dep; go mod tidy; go mod verify >/dev/null; test -f ~/go/pkg/mod/example.com/dep@v1.0.0/dep.go`+show), "v1.0.0")
		if len(proxy.took(".zip")) != 1 {
			f.Error("an empty cache was not filled")
		}

		// What the caller fetched is there, and is not fetched again.
		gobin := strings.TrimPrefix(strings.Split(env[2], ":")[0], "PATH=") + "/go"
		if o := f.do(call{args: f.who.command("env", "-C", f.ws+"/m", gobin, "mod", "download"), env: append(env, "GOFLAGS=-modcacherw")}); o.code != 0 {
			f.Fatalf("%v", o)
		}
		f.before = f.snapshot()
		proxy.took("")
		want(in(`go mod download; go mod verify >/dev/null`+show), "v1.0.0")
		if got := proxy.took(""); len(got) > 0 {
			f.Errorf("a full cache was filled again: %q", got)
		}
		// Nor does it hide what is newer.
		proxy.mu.Lock()
		proxy.versions = append(proxy.versions, "v1.1.0")
		proxy.mu.Unlock()
		want(in(`go get -u ./...; test -d ~/go/pkg/mod/example.com/dep@v1.0.0`+show), "v1.1.0")
	})
}

// TestNpmInstall: npm works with the caller's settings and without the caller's tokens,
// and says nothing of the sandbox's own variables.
func TestNpmInstall(t *testing.T) {
	reg := newRegistry(t)
	eachWho(t, func(f *fixture) {
		f.need("npm")
		f.write("home/.npmrc", "save-exact=true\nfund=false\naudit=false\n//127.0.0.1/:_authToken=a-secret\nproxy=http://127.0.0.1:1\n", 0o600)
		f.files(map[string]string{"package.json": `{"name":"a","version":"1.0.0","scripts":{"test":"node -p 'require(\"dep\")'"}}`})
		f.before = f.snapshot()
		args := append(f.who.command(sbxrun, "--profile", "aicode", "-C", f.ws), f.quiet()...)
		o := f.run(call{args: append(args, "--", "bash", "-euo", "pipefail", "-c", `npm install dep; npm --silent test; ! grep -r secret ~ 2>/dev/null`), env: []string{"npm_config_registry=" + reg.URL}})
		if o.code != 0 || !strings.HasSuffix(o.stdout, "\ndep 1.2.3\n") || strings.Contains(o.stderr, "config") || strings.Contains(o.stderr, "sbxrun:") {
			f.Errorf("%v", o)
		}
		if b, _ := os.ReadFile(f.path("ws/package.json")); !strings.Contains(strings.ReplaceAll(string(b), ": ", ":"), `"dep":"1.2.3"`) {
			f.Errorf("save-exact of ~/.npmrc was not heard: %s", b)
		}
		f.wantUnchanged()
	})
}

// A job is what people do every day, and what it prints.
type job struct {
	name   string
	need   []string
	flags  []string // without which strict does not do it
	script string
	want   string
	npm    string // package of test/integration/npm that is shown, and is $tool in the script
}

// shortJobs cost little; longJobs do not.
var shortJobs = []job{
	{name: "make", need: []string{"make", "gcc"}, script: `printf 'all: p\n\t./p\np: p.c\n\tgcc -o p p.c\n' >Makefile; echo 'int puts(const char *); int main(void) { puts("built"); return 0; }' >p.c; make -s -j4`, want: "built\n"},
	{name: "cmake and ninja", need: []string{"cmake", "ninja", "gcc"}, script: `printf 'cmake_minimum_required(VERSION 3.10)\nproject(p C)\nenable_testing()\nadd_executable(p p.c)\nadd_test(NAME p COMMAND p)\n' >CMakeLists.txt
		echo 'int main(void) { return 0; }' >p.c; cmake -G Ninja -S . -B build >/dev/null; cmake --build build >/dev/null; ctest --test-dir build | grep -o '100% tests passed'`, want: "100% tests passed\n"},
	{name: "node server", need: []string{"node", "curl"}, script: `node -e 'require("http").createServer((q, r) => r.end("served\n")).listen(3000)' & until curl -s http://localhost:3000/; do sleep 0.1; done; kill $!`, want: "served\n"},
	{name: "sqlite3", need: []string{"sqlite3"}, script: `sqlite3 db 'create table t(n); insert into t values(42)'; sqlite3 db 'select n from t'`, want: "42\n"},
	{name: "tmux", need: []string{"tmux"}, script: `tmux new-session -d 'echo in tmux >out; tmux wait-for -S ready; sleep 60'; tmux wait-for ready; cat out; tmux kill-server`, want: "in tmux\n"},
	{name: "strace", need: []string{"strace"}, flags: []string{"--seccomp", "default"}, script: `strace -qq -e trace=write -o trace echo out; grep -o 'write(1, "out' trace`, want: "out\nwrite(1, \"out\n"},
	{name: "vim", need: []string{"vim", "tmux"}, want: "typed in vim\n", script: `
		see() { for i in $(seq 600); do tmux capture-pane -p | grep -q "$1" && return; sleep 0.1; done; echo "no $1:"; tmux capture-pane -p; exit 1; }
		tmux new-session -d -x 80 -y 24 'vim -u NONE f; echo vim has ended; sleep 600'
		see '^~'; tmux send-keys 'ityped in vim'; see '^typed in vim'; tmux send-keys Escape; sleep 0.5; tmux send-keys ':wq'; see '^:wq'; tmux send-keys Enter; see '^vim has ended'
		tmux kill-server; cat f`},
	{name: "htop", need: []string{"htop", "tmux"}, want: "Load average\n", script: `
		tmux new-session -d -x 100 -y 30 htop; for i in $(seq 100); do tmux capture-pane -p | grep -q Load && break; sleep 0.1; done
		tmux capture-pane -p | grep -o 'Load average'; tmux kill-server`},
	{name: "git commit -S with a key that the command made", need: []string{"git", "gpg", "gpg-agent"}, want: "G\n", script: `
		export GNUPGHOME=/tmp/keys; mkdir -m 700 /tmp/keys; gpg -q --batch --passphrase '' --quick-gen-key 'me <me@example.org>' 2>/dev/null
		git init -q .; git -c user.name=me -c user.email=me@example.org commit -q -S --allow-empty -m signed; git log -1 --format=%G?`},
	{name: "tar", need: []string{"tar"}, script: `mkdir -p d/e; echo x >d/e/f; tar czf d.tgz d; mkdir o; tar xzf d.tgz -C o; cat o/d/e/f`, want: "x\n"},
	{name: "rsync", need: []string{"rsync"}, script: `mkdir -p a/b c; echo x >a/b/f; echo old >c/old; rsync -a --delete a/ c/; diff -r a c; ls c`, want: "b\n"},
	{name: "ssh-keygen", need: []string{"ssh-keygen"}, script: `ssh-keygen -q -t ed25519 -N '' -f ~/key; ssh-keygen -y -f ~/key | cut -d' ' -f1`, want: "ssh-ed25519\n"},
	{name: "perl and ruby", need: []string{"perl", "ruby"}, script: `perl -e 'print 6*7, "\n"'; ruby -e 'puts 6*7'`, want: "42\n42\n"},
}

// localDep is a project that needs a package beside it: no registry is asked.
const localDep = `mkdir dep; echo '{"name":"dep","version":"1.2.3"}' >dep/package.json; echo 'module.exports = 42' >dep/index.js; echo 'console.log(require("dep"))' >test.js
		echo '{"name":"a","version":"1.0.0","license":"MIT","scripts":{"test":"node test.js"},"dependencies":{"dep":"file:./dep"}}' >package.json`

var longJobs = []job{
	{name: "cargo new, cargo build, cargo test", need: []string{"cargo", "git"}, want: "3\nhello\ntest result: ok.\n", script: `
		/usr/bin/cargo new -q --offline demo 2>/dev/null || /usr/bin/cargo new -q demo; cd demo; git add -A; git status --porcelain | grep -c '^A'
		printf 'fn main() { println!("hello") }\n#[test]\nfn works() {}\n' >src/main.rs
		/usr/bin/cargo build -q --offline && ./target/debug/demo
		/usr/bin/cargo test -q --offline | grep -o 'test result: ok.'`},
	{name: "redis", need: []string{"redis-server", "redis-cli"}, want: "OK\nb\n", script: `
		redis-server --port 6399 --daemonize yes --dir /tmp >/dev/null
		for i in $(seq 100); do redis-cli -p 6399 ping >/dev/null 2>&1 && break; sleep 0.1; done
		redis-cli -p 6399 set a b; redis-cli -p 6399 get a; redis-cli -p 6399 shutdown nosave`},
	{name: "javac, java", need: []string{"javac", "java"}, want: "hello\n", script: `
		echo 'public class H { public static void main(String[] a) { System.out.println("hello"); } }' >H.java
		javac H.java; java H`},
	{name: "maven, offline", need: []string{"mvn", "javac"}, want: "hello\n", script: `
		mkdir -p src/main/java ~/.m2; cp -rs /usr/share/maven-repo ~/.m2/repository
		echo 'public class H { public static void main(String[] a) { System.out.println("hello"); } }' >src/main/java/H.java
		printf '<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>p</artifactId><version>1</version><properties>
			<maven.compiler.source>11</maven.compiler.source><maven.compiler.target>11</maven.compiler.target></properties></project>' >pom.xml
		mvn -o -B -q -DskipTests package >log 2>&1 || cat log; java -cp target/p-1.jar H`},
	{name: "gradle, offline", need: []string{"gradle", "javac"}, want: "hello\n", script: `
		echo "apply plugin: 'java'" >build.gradle; mkdir -p src/main/java
		echo 'public class H { public static void main(String[] a) { System.out.println("hello"); } }' >src/main/java/H.java
		gradle --offline --no-daemon -q jar >log 2>&1 || cat log; java -cp "build/libs/*" H`},
	{name: "pre-commit", need: []string{"pre-commit", "git"}, want: "shouts....................Failed\n- hook id: shouts\n- exit code: 1\nshouts....................Passed\n", script: `
		printf 'repos:\n- repo: local\n  hooks:\n  - {id: shouts, name: shouts, entry: sh -c "! grep -q LOUD f", language: system, pass_filenames: false}\n' >/tmp/hooks.yaml
		git init -q .; echo LOUD >f; git add f; export COLUMNS=33; hooks() { pre-commit run -c /tmp/hooks.yaml --color never -a | sed 's/\.\.*/..................../; /^$/d'; }
		! hooks; echo quiet >f; git add f; hooks`},
	{name: "pnpm", npm: "pnpm", need: []string{"node"}, want: "42\n", script: localDep + `
		node $tool/bin/pnpm.cjs install --offline --reporter=silent; node $tool/bin/pnpm.cjs --silent test`},
	{name: "yarn", npm: "yarn", need: []string{"node"}, want: "42\n", script: localDep + `
		node $tool/bin/yarn.js install --offline --silent 2>/dev/null; node $tool/bin/yarn.js --silent test`},
	{name: "Playwright", npm: "playwright-core", need: []string{"node", "chromium"}, want: "clicked\nPNG\n", script: `
		node -e '
			const {chromium} = require(process.argv[1]);
			(async () => {
				const b = await chromium.launch({executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND"]}), p = await b.newPage();
				await p.setContent("<button onclick=\"document.title = this.id\" id=clicked>b</button>");
				await p.click("button"); console.log(await p.title()); await p.screenshot({path: "s.png"}); await b.close();
			})()' $tool
		head -c 4 s.png | tail -c 3; echo`},
	{name: "gdb", need: []string{"gdb", "gcc"}, flags: []string{"--seccomp", "default"}, want: "in broken ()\n", script: `
		echo 'void broken(void) { *(volatile int *)0 = 1; } int main(void) { broken(); return 0; }' >p.c; gcc -o p p.c
		gdb -q -batch -ex run -ex bt ./p 2>/dev/null | grep -o 'in broken ()' | head -1`},
	{name: "jupyter nbconvert", need: []string{"jupyter-nbconvert"}, want: "\"42\\n\"\n", script: `
		echo '{"cells": [{"cell_type": "code", "execution_count": null, "metadata": {}, "outputs": [], "source": ["print(6*7)"]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}' >n.ipynb
		jupyter-nbconvert --to notebook --execute --stdout n.ipynb 2>/dev/null | grep -o '"42.n"'`},
	{name: "fonts", need: []string{"fc-match"}, want: "the host's\n", script: `fc-match sans >/dev/null 2>err; [ -s err ] || echo "the host's"`},
	{name: "headless Chromium", need: []string{"chromium"}, want: "PNG\n<body><h1>hi</h1>\n", script: `
		c() { chromium --headless --no-sandbox --no-proxy-server --host-resolver-rules='MAP * ~NOTFOUND' "$@" 2>/dev/null; }
		c --screenshot=/tmp/s.png 'data:text/html,<h1>hi</h1>'
		head -c 4 /tmp/s.png | tail -c 3; echo
		c --dump-dom 'data:text/html,<h1>hi</h1>' | grep -o '<body><h1>hi</h1>'`},
	{name: "ipython", need: []string{"ipython3"}, want: "42\n", script: `ipython3 --no-term-title -c 'print(6*7)'`},
	{name: "pip install of a wheel", need: []string{"python3"}, script: `python3 - <<end
import zipfile
with zipfile.ZipFile("hello-1.0-py3-none-any.whl", "w") as z:
    info = "hello-1.0.dist-info/"
    z.writestr("hello.py", "answer = 42\n")
    z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
    z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr(info + "RECORD", "hello.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n")
end
		python3 -m venv env; env/bin/pip --disable-pip-version-check install -q --no-index ./hello-1.0-py3-none-any.whl; env/bin/python -c 'import hello; print(hello.answer)'`, want: "42\n"},
	{name: "postgres", need: []string{"psql"}, script: `PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin | tail -1); initdb -N -A trust -D db -U me >/dev/null 2>&1; pg_ctl -D db -o '-k /tmp -c fsync=off' -l log -w start >/dev/null
		psql -h /tmp -U me -Atc 'select 6*7' postgres; pg_ctl -D db -m fast -w stop >/dev/null`, want: "42\n"},
}

// TestJobs does everyday jobs with the real tools, as each user, under strict and under
// aicode.
func TestJobs(t *testing.T) { runJobs(t, shortJobs) }

// TestLongJobs does those that take longer.
func TestLongJobs(t *testing.T) {
	runJobs(t, longJobs)
	t.Run("go build and test", func(t *testing.T) {
		eachWho(t, func(f *fixture) {
			proxy := newModuleProxy(t, "v1.0.0")
			flags, env := f.goJob(proxy.URL)
			defer build()()
			args := append(f.who.command(sbxrun, "--profile", "aicode", "-C", f.ws+"/m"), f.quiet()...)
			o := f.run(call{args: append(append(args, flags...), "--", "bash", "-euo", "pipefail", "-c", `go get example.com/dep; go build; ./m 2>&1; go test ./...; go vet ./...; go install; ~/go/bin/m 2>&1`), env: env, timeout: 5 * limit})
			if o.code != 0 || !strings.HasPrefix(o.stdout, "v1.0.0\nok  \texample.com/m\t") || !strings.HasSuffix(o.stdout, "\nv1.0.0\n") {
				f.Errorf("%v", o)
			}
			f.wantUnchanged()
		})
	})
}

func runJobs(t *testing.T, list []job) {
	table, err := os.ReadFile("../../docs/jobs.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list {
		t.Run(j.name, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(string(table), "| "+j.name+" |") {
				t.Errorf("docs/jobs.md has no line for it")
			}
			for i, w := range whos {
				for k, profile := range []string{"strict", "aicode"} {
					// Both users and both profiles, not each with each: that takes longer.
					if len(whos) > 1 && i != k {
						continue
					}
					t.Run(w.name+"/"+profile, func(t *testing.T) {
						f := newFixture(t, w)
						for _, program := range j.need {
							f.need(program)
						}
						script := j.script
						var flags []string
						if j.npm != "" {
							dir, err := filepath.Abs("../../.cache/clients/jobs/node_modules/" + j.npm)
							if err != nil || !exists(dir) {
								t.Fatalf("%s is not installed: run tools/deps all, as make test-all does (%v)", j.npm, err)
							}
							tool := f.readable(dir, ".")
							flags, script = tool.flags, "tool="+tool.root+"\n"+script
						}
						if profile == "strict" && j.flags != nil {
							flags = append(flags, j.flags...)
							if o := f.as(profile, nil, script); o.code == 0 {
								f.Errorf("it does without %q: docs/jobs.md says otherwise: %v", flags, o)
							}
						}
						o := f.as(profile, flags, script)
						if o.code != 0 || o.stdout != j.want || strings.Contains(o.stderr, "sbxrun:") {
							f.Errorf("want %q\n%v", j.want, o)
						}
						f.wantUnchanged()
					})
				}
			}
		})
	}
}

// TestTold: a limit that nobody typed is named when it ended the command or held it back.
func TestTold(t *testing.T) {
	atOnce(t, func(f *fixture) {
		f.who.needCgroup(f.T)
		const busy = "the limit of 0.02 cpu held the command back for most of its run"
		const full = "note: the private storage (/tmp, /run, the home) was full: \"no space left on device\""
		for _, tt := range []struct {
			env, script string
			flags       []string
			code        int
			want, not   string
		}{
			{"SBXRUN_CPUS=0.02", `timeout 7 sh -c "while :; do :; done" || true`, nil, 0, "sbxrun: note: " + busy + "\nsbxrun: hint: --cpus", ""},
			{"SBXRUN_CPUS=0.02", "sleep 6", nil, 0, "", busy},
			{"SBXRUN_TIMEOUT=1s", "sleep 60", nil, 124, "the time limit ended the command, after 1s\nsbxrun: hint: --timeout", ""},
			{"A=b", "sleep 60", []string{"--timeout", "1s"}, 124, "the time limit ended the command\n", ""},
			{"A=b", "head -c 9m /dev/zero >/tmp/x", []string{"--disk", "8m"}, 1, full + "\nsbxrun: hint: --disk", ""},
			{"A=b", "head -c 9m /dev/zero >/tmp/x; sleep 1; rm /tmp/x; exit 3", []string{"--disk", "8m"}, 3, full, ""},
			{"A=b", "getent hosts example.org", nil, 2, "the command tried to reach the network, and it has none\nsbxrun: hint: --allow-host", ""},
			{"A=b", "curl -s http://192.0.2.1/", nil, 7, "the command tried to reach the network", ""},
			{"A=b", "getent hosts example.org; exit 0", nil, 0, "", "the network"},
			{"A=b", "getent hosts localhost; curl -s http://127.0.0.1:9/; exit 3", nil, 3, "", "the network"},
			{"A=b", "head -c 7m /dev/zero >/tmp/x; exit 4", []string{"--disk", "8m"}, 4, "", full},
		} {
			o := f.run(call{args: f.strict(tt.flags, "sh", "-c", tt.script), env: []string{tt.env}})
			if o.code != tt.code || !strings.Contains(o.stderr, tt.want) || tt.not != "" && strings.Contains(o.stderr, tt.not) {
				f.Errorf("%s: want %q, and not %q\n%v", tt.env, tt.want, tt.not, o)
			}
		}
	})
}

// TestSigned: commits are signed by a key that a flag shows, and only by such a one.
func TestSigned(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("git")
		f.need("ssh-keygen")
		f.write("home/.gitconfig", "[user]\n\tname = me\n\temail = me@example.org\n\tsigningkey = ~/.ssh/signing\n[gpg]\n\tformat = ssh\n[commit]\n\tgpgsign = true\n", 0o644)
		f.own()
		if o := f.do(call{args: f.who.command("/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f.home+"/.ssh/signing")}); o.code != 0 {
			f.Fatalf("%v", o)
		}
		public, err := os.ReadFile(f.home + "/.ssh/signing.pub")
		if err != nil {
			f.Fatal(err)
		}
		f.write("home/signers", "me@example.org "+string(public), 0o644)
		f.own()
		f.before = f.snapshot()
		commit := func(flags []string, script string) *outcome {
			f.Helper()
			return f.as("aicode", flags, "[ -d .git ] || git init -q .; git "+script)
		}
		if o := commit(nil, "commit -q --allow-empty -m one"); o.code != 128 || !strings.Contains(o.stderr, "ailed to write commit object") {
			f.Errorf("without the key: %v", o)
		}
		if o := commit(nil, "commit -q --allow-empty --no-gpg-sign -m two"); o.code != 0 {
			f.Errorf("not signed: %v", o)
		}
		if o := commit([]string{"--ro", "~/.ssh/signing"}, "commit -q --allow-empty -m three"); o.code != 0 {
			f.Errorf("with the key: %v", o)
		}
		o := f.do(call{args: f.who.command("git", "-C", f.ws, "-c", "gpg.ssh.allowedSignersFile="+f.home+"/signers", "log", "--format=%s %G?")})
		if o.stdout != "three G\ntwo N\n" {
			f.Errorf("what the host sees: %v", o)
		}
		f.wantUnchanged()
	})
}

// TestCompose: two servers that know each other, as developers start them, in one
// session, and both reached from the host.
func TestCompose(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		var ports []string
		for range 2 {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := net.SplitHostPort(l.Addr().String())
			ports = append(ports, port)
			l.Close()
		}
		s := newSession(t, w, "--publish", ports[0]+":8000", "--publish", ports[1]+":3000")
		s.need("node")
		s.files(map[string]string{"page": "a page\n", "web.js": `require("http").createServer(async (q, r) => {
			try { r.end("by way of node: " + await (await fetch("http://localhost:8000/page")).text()) } catch (e) { r.statusCode = 502; r.end(String(e)) }
		}).listen(3000)`})
		for _, command := range [][]string{{"python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"}, {"node", "web.js"}} {
			if o := s.cli(append([]string{"exec", "-d", s.id, "--"}, command...)...); o.code != 0 {
				t.Fatalf("exec -d: %v", o)
			}
		}
		for i, want := range []string{"a page\n", "by way of node: a page\n"} {
			var got string
			if !within(20*time.Second, func() bool {
				r, err := http.Get("http://127.0.0.1:" + ports[i] + "/page")
				if err != nil {
					got = err.Error()
					return false
				}
				defer r.Body.Close()
				b, _ := io.ReadAll(r.Body)
				got = string(b)
				return got == want
			}) {
				t.Errorf("port %s: %q, want %q: %v", ports[i], got, want, s.cli("logs", s.id))
			}
		}
		if o := s.cli("rm", "--force", s.id); o.code != 0 {
			t.Errorf("%v", o)
		}
		for _, port := range ports {
			if c, err := net.Dial("tcp4", "127.0.0.1:"+port); err == nil {
				c.Close()
				t.Errorf("port %s is still open", port)
			}
		}
	})
}
