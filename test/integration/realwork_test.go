//go:build linux

package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Real work: what people run in a sandbox must do there what it does outside.
// Every test runs under strict, offline, as each user; the tool chains that lie
// outside /usr are bound in with --ro.

// eachWho runs a test as each user, in parallel with others.
func eachWho(t *testing.T, test func(f *fixture)) {
	t.Helper()
	t.Parallel()
	eachOf(t, whos, test)
}

// eachOf is eachWho for some of them.
func eachOf(t *testing.T, list []who, test func(f *fixture)) {
	t.Helper()
	for _, w := range list {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(newFixture(t, w))
		})
	}
}

// atOnce is eachWho for a test that mostly waits: it takes one of -parallel's places for
// all users.
func atOnce(t *testing.T, test func(f *fixture)) {
	t.Helper()
	t.Parallel()
	var wg sync.WaitGroup
	for _, w := range whos {
		wg.Go(func() { t.Run(w.name, func(t *testing.T) { test(newFixture(t, w)) }) })
	}
	wg.Wait()
}

// run is do with a cache that all fixtures share: that a host's boundary was
// proved is kept there, and need not be proved again in each fixture's home.
func (f *fixture) run(c call) *outcome {
	f.Helper()
	c.env = append(c.env, f.cache())
	return f.do(c)
}

// quiet are the flags of who runs it. Where a user has no cgroup, sbxrun says so
// in every run, and is told not to: these tests are about what the command says.
func (f *fixture) quiet() []string {
	if f.who.noCgroup != "" {
		return append(f.who.flags(), "--quiet")
	}
	return f.who.flags()
}

// sandbox is strict, quiet.
func (f *fixture) sandbox(flags []string, command ...string) []string {
	return f.loud(append(f.quiet(), flags...), command...)
}

// loud is strict, and says why something was refused to whoever runs it.
func (f *fixture) loud(flags []string, command ...string) []string {
	args := append(f.who.command(sbxrun, "--profile", "strict", "-C", f.ws), f.who.flags()...)
	return append(append(append(args, flags...), "--"), command...)
}

func (f *fixture) cache() string {
	f.Helper()
	dir := filepath.Join(runDir, "cache-"+f.who.name)
	if err := os.Mkdir(dir, 0o700); err == nil && isRoot() {
		if err := os.Chown(dir, f.who.uid, f.who.uid); err != nil {
			f.Fatal(err)
		}
	} else if err != nil && !exists(dir) {
		f.Fatal(err)
	}
	return "XDG_CACHE_HOME=" + dir
}

// heavy bounds how many builds run beside each other: each has a limit on time,
// and under strict one processor.
var heavy = make(chan struct{}, runtime.NumCPU())

// build waits for its turn; the function that it returns ends it.
func build() (done func()) {
	heavy <- struct{}{}
	return func() { <-heavy }
}

// packages are the Debian packages that give the programs of these tests.
// tools/deps installs the same.
var packages = map[string]string{
	"gcc": "gcc libc6-dev", "make": "make", "git": "git", "python3": "python3 python3-venv",
	"node": "nodejs", "npm": "npm", "javac": "default-jdk-headless", "java": "default-jdk-headless", "rustc": "rustc",
	"bash": "bash", "script": "bsdutils", "flock": "util-linux", "sqlite3": "sqlite3", "tar": "tar", "find": "findutils", "xargs": "findutils", "ps": "procps",
	"cmake": "cmake", "ninja": "ninja-build", "tmux": "tmux", "strace": "strace", "rsync": "rsync", "ssh-keygen": "openssh-client", "perl": "perl", "ruby": "ruby",
	"vim": "vim", "htop": "htop", "gpg": "gpg", "gpg-agent": "gpg-agent", "gradle": "gradle", "pre-commit": "pre-commit",
	"curl": "curl", "ssh": "openssh-client", "psql": "postgresql-client", "ip": "iproute2",
}

// need fails the test if a program is missing: a test that passes because it was
// skipped proves nothing. It returns the program's path.
func (f *fixture) need(program string) string {
	f.Helper()
	// Where sbxrun will look for it: the user's own PATH does not count.
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"} {
		if p := filepath.Join(dir, program); exists(p) {
			return p
		}
	}
	f.Fatalf("%s is not installed: apt-get install %s", program, packages[program])
	return ""
}

// files writes files into the workspace and gives them to the user.
func (f *fixture) files(files map[string]string) {
	f.Helper()
	for path, content := range files {
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		f.write(filepath.Join("ws", path), content, mode)
	}
	f.own()
}

// work runs a bash script in the workspace under strict, ends the test if it
// fails, and returns what it printed.
func (f *fixture) work(flags []string, script string) string {
	f.Helper()
	f.need("bash")
	o := f.run(call{args: f.sandbox(flags, "bash", "-euo", "pipefail", "-c", script), timeout: 5 * time.Minute})
	if o.code != 0 {
		f.Fatalf("%v", o)
	}
	return o.stdout
}

// wantLines reports lines that are missing in what was printed.
func (f *fixture) wantLines(got string, lines ...string) {
	f.Helper()
	have := strings.Split(strings.TrimRight(got, "\n"), "\n")
	for _, l := range lines {
		if !slices.Contains(have, l) {
			f.Errorf("no line %q in:\n%s", l, got)
		}
	}
}

// A toolchain is a directory with a tool chain that every user can read, and the
// flags that show it to a sandbox.
type toolchain struct {
	root  string
	flags []string
}

// readable makes a tool chain readable for the ordinary user. One that lies in
// root's home is linked file by file into the tests' own directory, without a
// copy of its contents.
func (f *fixture) readable(root string, parts ...string) toolchain {
	f.Helper()
	if strings.HasPrefix(root, "/usr/") {
		return toolchain{root: root}
	}
	if f.who.uid == os.Getuid() {
		return toolchain{root, []string{"--ro", root}}
	}
	to := filepath.Join(runDir, "toolchains", fmt.Sprintf("%s-%d", filepath.Base(root), fixtures.Add(1)))
	for _, part := range parts {
		if err := linkTree(filepath.Join(root, part), filepath.Join(to, part)); err != nil {
			f.Fatal(err)
		}
	}
	return toolchain{to, []string{"--ro", to}}
}

func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		dst := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(dst, 0o755)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			return errors.Join(err, os.Symlink(target, dst))
		}
		if err := os.Link(path, dst); err == nil {
			return nil
		}
		// Another file system.
		b, err := os.ReadFile(path)
		fi, ferr := d.Info()
		if err := errors.Join(err, ferr); err != nil {
			return err
		}
		return os.WriteFile(dst, b, fi.Mode().Perm())
	})
}

// goEnv asks the go command that runs this test.
func goEnv(t *testing.T, key string) string {
	t.Helper()
	cmd := exec.Command("go", "env", key)
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go env %s: %v", key, err)
	}
	return strings.TrimSpace(string(out))
}

// TestGo builds, runs and vets a program that needs no more of the standard library than
// the runtime. TestLongGo does more, and tests.
func TestGo(t *testing.T) {
	t.Parallel()
	eachOf(t, whos[len(whos)-1:], func(f *fixture) {
		f.files(map[string]string{
			"hello/go.mod":                            "module example.com/hello\n\ngo 1.22\n\nrequire example.com/greet v1.0.0\n",
			"hello/vendor/modules.txt":                "# example.com/greet v1.0.0\n## explicit; go 1.22\nexample.com/greet\n",
			"hello/vendor/example.com/greet/greet.go": "package greet\n\nfunc Greeting(to string) string { return \"hello, \" + to }\n",
			"hello/main.go":                           "package main\n\nimport \"example.com/greet\"\n\nfunc main() { println(greet.Greeting(\"42\")) }\n",
		})
		tc := f.readable(goEnv(f.T, "GOROOT"), "bin", "pkg", "src", "VERSION", "go.env")
		defer build()()
		out := f.work(append(tc.flags, "-e", "GOTOOLCHAIN=local", "-e", "CGO_ENABLED=0", "-e", "PATH="+tc.root+"/bin:/usr/bin:/bin"), `
			cd hello
			go env GOCACHE
			go build -o hello .
			./hello 2>&1
			go vet ./...`)
		f.wantLines(out, f.home+"/.cache/go-build", "hello, 42")
		if !exists(filepath.Join(f.ws, "hello/hello")) {
			f.Error("the binary is not in the workspace")
		}
		f.wantUnchanged()
	})
}

func TestLongGo(t *testing.T) {
	for i, cgo := range []string{"0", "1"} {
		t.Run("CGO_ENABLED="+cgo, func(t *testing.T) {
			t.Parallel()
			// Where there are two users, each compiles in one of the two ways: each
			// takes a minute's work.
			eachOf(t, whos[i%len(whos):][:1], func(f *fixture) {
				f.files(map[string]string{
					"hello/go.mod":                            "module example.com/hello\n\ngo 1.22\n\nrequire example.com/greet v1.0.0\n",
					"hello/vendor/modules.txt":                "# example.com/greet v1.0.0\n## explicit; go 1.22\nexample.com/greet\n",
					"hello/vendor/example.com/greet/greet.go": "// Package greet greets.\npackage greet\n\nfunc Greeting(to string) string { return \"hello, \" + to }\n",
					"hello/main.go":                           "package main\n\nimport (\n\t\"fmt\"\n\n\t\"example.com/greet\"\n)\n\nfunc main() { fmt.Println(greet.Greeting(fmt.Sprint(double(21)))) }\n",
					"hello/double_cgo.go":                     "package main\n\n// static int twice(int n) { return 2 * n; }\nimport \"C\"\n\nfunc double(n int) int { return int(C.twice(C.int(n))) }\n",
					"hello/double_nocgo.go":                   "//go:build !cgo\n\npackage main\n\nfunc double(n int) int { return 2 * n }\n",
					"hello/main_test.go":                      "package main\n\nimport \"testing\"\n\nfunc TestDouble(t *testing.T) {\n\tif double(21) != 42 {\n\t\tt.Fatal(\"no\")\n\t}\n}\n",
					"hello/internal/deep/deep.go":             "package deep\n\nfunc Deep() bool { return true }\n",
					"hello/internal/deep/deep_test.go":        "package deep\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestDeep(t *testing.T) {\n\tif err := os.WriteFile(t.TempDir()+\"/x\", nil, 0o600); err != nil || !Deep() {\n\t\tt.Fatal(err)\n\t}\n}\n",
				})
				if cgo == "1" {
					f.need("gcc")
				}
				tc := f.readable(goEnv(t, "GOROOT"), "bin", "pkg", "src", "VERSION", "go.env")
				defer build()()
				out := f.work(append(tc.flags, "-e", "GOFLAGS=-mod=vendor", "-e", "GOTOOLCHAIN=local", "-e", "CGO_ENABLED="+cgo, "-e", "PATH="+tc.root+"/bin:/usr/bin:/bin"), `
					cd hello
					go env GOCACHE
					go build -o hello .
					./hello
					go test ./...
					go vet ./...`)
				f.wantLines(out, f.home+"/.cache/go-build", "hello, 42")
				for _, pkg := range []string{"example.com/hello", "example.com/hello/internal/deep"} {
					if !strings.Contains(out, "ok  \t"+pkg+"\t") {
						f.Errorf("%s was not tested:\n%s", pkg, out)
					}
				}
				if !exists(filepath.Join(f.ws, "hello/hello")) {
					f.Error("the binary is not in the workspace")
				}
				f.wantUnchanged()
			})
		})
	}
}

func TestPython(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("python3")
		f.files(map[string]string{
			"calc.py": "def double(n):\n    return 2 * n\n",
			"test_calc.py": `import multiprocessing, os, sqlite3, ssl, subprocess, sys, tempfile, threading, unittest
import calc

class TestCalc(unittest.TestCase):
    def test_double(self):
        self.assertEqual(calc.double(21), 42)
    def test_venv(self):
        self.assertNotEqual(sys.prefix, sys.base_prefix)
    def test_subprocess(self):
        self.assertEqual(subprocess.check_output([sys.executable, "-c", "print(42)"]), b"42\n")
    def test_sqlite(self):
        with tempfile.TemporaryDirectory() as d, sqlite3.connect(d + "/db") as db:
            db.execute("create table t (n)")
            db.execute("insert into t values (42)")
            self.assertEqual(db.execute("select n from t").fetchone(), (42,))
    def test_pool(self):
        # Semaphores in /dev/shm, and a process for each worker.
        with multiprocessing.Pool(3) as pool:
            self.assertEqual(pool.map(calc.double, range(4)), [0, 2, 4, 6])
    def test_threads(self):
        seen = []
        threads = [threading.Thread(target=seen.append, args=(i,)) for i in range(20)]
        for t in threads: t.start()
        for t in threads: t.join()
        self.assertEqual(len(seen), 20)
    def test_certificates(self):
        self.assertIsNotNone(ssl.create_default_context())
`,
		})
		defer build()()
		out := f.work(nil, `
			python3 -m venv env
			env/bin/python -m pip --version
			env/bin/python -m unittest -v 2>&1`)
		f.wantLines(out, "OK")
		if !strings.HasPrefix(out, "pip ") {
			f.Errorf("no pip in the venv:\n%s", out)
		}
	})
}

func TestNode(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("node")
		f.need("npm")
		f.files(map[string]string{
			"package.json": `{"name": "hello", "version": "1.0.0", "private": true, "scripts": {"pretest": "node -e 'console.log(\"pretest ran\")'", "test": "node --test"}}` + "\n",
			"hello.js":     "exports.double = n => 2 * n;\n",
			"hello.test.js": `const test = require('node:test'), assert = require('node:assert');
const { double } = require('./hello');
const { Worker } = require('node:worker_threads');
const { execFileSync } = require('node:child_process');
const http = require('node:http');
test('double', () => assert.strictEqual(double(21), 42));
test('worker', async () => {
  const w = new Worker('require("worker_threads").parentPort.postMessage(42)', { eval: true });
  assert.strictEqual(await new Promise(r => w.on('message', r)), 42);
});
test('child', () => assert.strictEqual(execFileSync(process.execPath, ['-p', '6*7']).toString(), '42\n'));
test('loopback', async () => {
  const s = http.createServer((_, r) => r.end('42')).listen(0, '127.0.0.1');
  await new Promise(r => s.on('listening', r));
  const r = await fetch('http://127.0.0.1:' + s.address().port);
  assert.strictEqual(await r.text(), '42');
  s.close();
});
`,
		})
		defer build()()
		out := f.work(nil, `npm test`)
		f.wantLines(out, "pretest ran")
		// TAP and the reporter for people say it in their own ways.
		if !strings.Contains(out, "# pass 4\n") && !strings.Contains(out, "ℹ pass 4\n") {
			f.Errorf("not four tests passed:\n%s", out)
		}
	})
}

func TestGit(t *testing.T) {
	eachWho(t, func(f *fixture) {
		git := f.need("git")
		// The repository is the host's: what sees it inside must take it for its
		// own (safe.directory).
		at := filepath.Join(f.ws, "origin")
		for _, args := range [][]string{
			{"init", "-q", "-b", "main", at},
			{"-C", at, "-c", "user.name=Ann", "-c", "user.email=ann@example.com", "commit", "-q", "--allow-empty", "-m", "first"},
		} {
			if o := f.run(call{args: f.who.command(append([]string{git}, args...)...)}); o.code != 0 {
				f.Fatalf("%v", o)
			}
		}
		// A clone in the workspace would be a new repository; see TestGitProtected.
		out := f.work([]string{"--unprotect", ".git"}, `
			git clone -q origin clone
			cd clone
			git config user.name Bob
			git config user.email bob@example.com
			echo text >file
			git add file
			git commit -q -m second
			git switch -q -c topic
			git push -q origin topic
			git log --format='%an %s'
			git status --porcelain --branch
			git fsck --no-progress
			git gc -q
			git -C ../origin log -1 --format='pushed %s' topic`)
		f.wantLines(out, "Bob second", "Ann first", "## topic", "pushed second")
		if fi, err := os.Stat(filepath.Join(f.ws, "clone", "file")); err != nil {
			f.Error(err)
		} else if uid := owner(fi); uid != f.who.uid {
			f.Errorf("the clone belongs to user %d on the host, want %d", uid, f.who.uid)
		}
		f.wantUnchanged()
	})
}

// TestGitElsewhere: Git works where the repository lies outside of the workspace, and what
// Git takes commands from is protected there, too.
func TestGitElsewhere(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("git")
		const user = "user.name=Ann\nuser.email=ann@example.com\n"
		main, lib := filepath.Join(f.ws, "main"), filepath.Join(f.ws, "lib")
		for _, r := range []string{lib, main} {
			f.git("init", "-q", "-b", "trunk", r)
			for line := range strings.Lines(user) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				f.git("-C", r, "config", key, value)
			}
			f.write("ws/"+filepath.Base(r)+"/sub/file", "text\n", 0o644)
			f.write("ws/"+filepath.Base(r)+"/top", "text\n", 0o644)
			if isRoot() {
				must(f.T, exec.Command("chown", "-R", fmt.Sprint(f.who.uid), r).Run())
			}
			f.git("-C", r, "add", ".")
			f.git("-C", r, "commit", "-q", "-m", "first")
		}
		f.git("-C", main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", lib, "vendor/lib")
		f.git("-C", main, "commit", "-q", "-m", "lib")
		f.git("-C", main+"/vendor/lib", "config", "user.email", "ann@example.com")
		f.git("-C", main+"/vendor/lib", "config", "user.name", "Ann")
		tree := filepath.Join(f.ws, "tree")
		f.git("-C", main, "worktree", "add", "-q", "-b", "topic", tree)
		for _, c := range []struct{ dir, git, branch string }{
			{main + "/sub", main + "/.git", "trunk"},
			{tree, main + "/.git", "topic"},
			{tree + "/sub", main + "/.git", "topic"},
			{main + "/vendor/lib", main + "/.git/modules/vendor/lib", "trunk...origin/trunk"},
		} {
			config := f.sha(filepath.Join(c.git, "config"))
			at := []string{"-C", c.dir}
			out := f.work(at, `
				git status --porcelain --branch
				echo more >>new; git add new; git commit -q -m "in the sandbox"; git log --format=%s -1
				git stash list; git switch -q -c other; git switch -q -; git branch -q -d other
				g=$(git rev-parse --git-common-dir)
				for f in "$g/hooks/pre-commit" "$g/config" "$g/config.worktree" "$g/commondir"; do (echo x >>"$f") 2>/dev/null && echo "written: $f"; done
				mv "$g/hooks" "$g/hooks.was" 2>/dev/null && echo "moved"
				git status --porcelain`)
			f.wantLines(out, "## "+c.branch, "in the sandbox")
			if strings.Contains(out, "written") || strings.Contains(out, "moved") || f.sha(filepath.Join(c.git, "config")) != config {
				f.Errorf("%s: %s", c.dir, out)
			}
			if got := f.git("-C", c.dir, "log", "-1", "--format=%s").stdout; strings.TrimSpace(got) != "in the sandbox" {
				f.Errorf("%s: on the host %q", c.dir, got)
			}
			if o := f.run(call{args: f.sandbox(append(at, "--no-git"), "git", "status")}); o.code == 0 {
				f.Errorf("%s: --no-git: %v", c.dir, o)
			}
			if o := f.run(call{args: f.sandbox(append(at, "--workspace", "ro"), "sh", "-c", "git log --format=%s -1; git commit --allow-empty -qm x")}); o.code == 0 || o.stdout != "in the sandbox\n" {
				f.Errorf("%s: read-only: %v", c.dir, o)
			}
		}
		// What a command writes points nowhere.
		f.write("ws/planted/.git", "gitdir: "+main+"/.git/worktrees/tree\n", 0o644)
		if o := f.run(call{args: f.sandbox([]string{"-C", filepath.Join(f.ws, "planted")}, "ls", main+"/.git")}); o.code == 0 {
			f.Errorf("a file .git alone shows a repository: %v", o)
		}
	})
}

func TestMake(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("gcc")
		f.need("make")
		f.files(map[string]string{
			"Makefile": "CC = gcc\nCFLAGS = -O2 -Wall -Werror -pthread\nhello: main.o double.o\n\t$(CC) $(CFLAGS) -o $@ $^ -lm\ntest: hello\n\t./hello | grep -qx 42 && echo passed\n",
			"double.c": "int twice(int n) { return 2 * n; }\n",
			"main.c": `#include <pthread.h>
#include <stdio.h>
#include <math.h>
int twice(int);
static void *work(void *p) { *(int *)p = twice((int)sqrt(*(int *)p)); return 0; }
int main(void) {
	pthread_t t;
	int n = 441;
	if (pthread_create(&t, 0, work, &n) || pthread_join(t, 0)) return 1;
	return printf("%d\n", n) < 0;
}
`,
		})
		f.wantLines(f.work(nil, `make -j4 test`), "passed")
		f.wantLines(f.work(nil, `touch double.c; make -j4 test`), "gcc -O2 -Wall -Werror -pthread   -c -o double.o double.c", "passed")
	})
}

func TestJava(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("java")
		f.need("javac")
		f.files(map[string]string{"Hello.java": `import java.nio.file.*;
public class Hello {
	public static void main(String[] args) throws Exception {
		Path p = Files.createTempFile("hello", null);
		Files.writeString(p, "hello");
		int[] sum = {0};
		Thread t = new Thread(() -> { for (int i = 0; i < 1000; i++) sum[0] += 1; });
		t.start();
		t.join();
		System.out.println(Files.readString(p) + " " + sum[0] + " " + System.getProperty("user.home"));
	}
}
`})
		defer build()()
		f.wantLines(f.work(nil, `javac Hello.java; java Hello`), "hello 1000 "+f.home)
	})
}

func TestRust(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("gcc") // rustc links with it
		rustc, err := exec.LookPath("rustc")
		if err != nil {
			rustc = f.need("rustc")
		}
		// rustup's rustc is a proxy for one below its home.
		sysroot, err := exec.Command(rustc, "--print", "sysroot").Output()
		if err != nil {
			f.Fatalf("%s: %v", rustc, err)
		}
		var tc toolchain
		if root := strings.TrimSpace(string(sysroot)); root == "/usr" {
			tc.root = root
		} else {
			tc = f.readable(root, "bin", "lib")
		}
		f.files(map[string]string{"hello.rs": `use std::{sync::mpsc, thread};
fn main() {
    let (tx, rx) = mpsc::channel();
    for i in 0..6 { let tx = tx.clone(); thread::spawn(move || tx.send(i * 7).unwrap()); }
    drop(tx);
    println!("hello {}", rx.iter().max().unwrap() + 7);
}
#[test]
fn works() { assert_eq!(6 * 7, 42); }
`})
		defer build()()
		out := f.work(append(tc.flags, "-e", "PATH="+tc.root+"/bin:/usr/bin:/bin"), `
			rustc -O hello.rs
			./hello
			rustc --test -o tests hello.rs
			./tests`)
		f.wantLines(out, "hello 42", "test works ... ok")
	})
}

// TestTools runs small programs that need more of the system than they seem to.
func TestTools(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		need   []string
		script string
		want   string
	}{
		{"process substitution", nil, `cat <(echo a) <(echo b); diff <(echo x) <(echo x) && echo same; echo out > >(cat); wait`, "a\nb\nsame\nout\n"},
		{"here-documents", nil, "cat <<end\nhere $((6*7))\nend\ncat <<<string", "here 42\nstring\n"},
		{"large here-document", nil, `x=$(printf '%070000d' 0); wc -c <<<"$x"`, "70001\n"},
		{"device files", nil, `head -c 3 /dev/zero | wc -c; echo x >/dev/null; head -c 8 /dev/urandom | wc -c; echo in | cat /dev/stdin; ! echo x 2>/dev/null >/dev/full && echo full`, "3\n8\nin\nfull\n"},
		{"script", []string{"script"}, `set -o pipefail; script -qec 'tty; echo out; exit 3' /dev/null </dev/null | tr -d '\r' || echo $?`, "/dev/pts/0\nout\n3\n"},
		{"timeout", nil, `timeout 0.1 sleep 60 || echo $?; timeout 60 echo in time`, "124\nin time\n"},
		{"nohup", nil, `nohup sh -c 'echo ran; kill -HUP $$; echo survived' 2>/dev/null </dev/null`, "ran\nsurvived\n"},
		{"xargs", []string{"xargs"}, `seq 40 | xargs -P 4 -n 1 sh -c 'echo $((2*$1))' sh | sort -n | tail -1`, "80\n"},
		{"find", []string{"find"}, `mkdir -p d/e; touch d/a d/e/b; find d -type f -exec basename {} \; | sort; find d -delete; ls`, "a\nb\nREADME\nattack\n"},
		{"tar", []string{"tar"}, `mkdir t; cd t; seq 2000 | xargs touch; tar cf - . | tar xf - -C "$(mktemp -d)" && tar czf ../t.tgz . && tar tzf ../t.tgz | wc -l; cd ..; rm -r t t.tgz`, "2001\n"},
		{"sqlite3", []string{"sqlite3"}, `sqlite3 db 'pragma journal_mode=wal; create table t(n); insert into t values(42); select n from t'; rm -f db*`, "wal\n42\n"},
		{"flock", []string{"flock"}, `exec 9>lock; flock 9; flock -n lock true || echo held; exec 9>&-; flock -n lock echo free; rm lock`, "held\nfree\n"},
		{"temporary files", nil, `t=$(mktemp); echo x >"$t"; cat "$t"; for d in /tmp /var/tmp /run /dev/shm "$HOME"; do echo y >$d/y; done; cat /dev/shm/y`, "x\ny\n"},
		{"names", nil, `whoami; id -un; id -gn; hostname; getent hosts localhost >/dev/null && echo localhost; `, "sandbox\nsandbox\nsandbox\nsandbox\nlocalhost\n"},
		{"named pipe", nil, `mkfifo p; echo through >p & cat p; wait; rm p`, "through\n"},
		{"background", nil, `sleep 60 & kill $!; wait $! || echo $?; (exit 5) & wait $! || echo $?`, "143\n5\n"},
		{"coprocess", nil, `coproc cat; echo co >&"${COPROC[1]}"; read -r x <&"${COPROC[0]}"; echo "$x"`, "co\n"},
		{"locale and time", nil, `LC_ALL=C.UTF-8 bash -c 'x=äö; echo ${#x}'; TZ=Europe/Berlin date -d @0 +%H`, "2\n01\n"},
		{"sockets", []string{"python3"}, `python3 -c '
import socket
s = socket.create_server(("localhost", 0)); c = socket.create_connection(s.getsockname()); d, _ = s.accept(); d.sendall(b"tcp\n"); print(c.recv(9).decode(), end="")
s = socket.create_server(("::1", 0), family=socket.AF_INET6); c = socket.create_connection(s.getsockname()[:2]); print("ipv6")
a, b = socket.socketpair(); a.sendall(b"unix\n"); print(b.recv(9).decode(), end="")
s = socket.socket(socket.AF_UNIX); s.bind("sock"); s.listen(); c = socket.socket(socket.AF_UNIX); c.connect("sock"); print("named")'; rm sock`, "tcp\nipv6\nunix\nnamed\n"},
		{"event loop", []string{"python3"}, `python3 -c '
import asyncio
async def main():
    p = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    print((await p.communicate())[0].decode(), end="")
    r, w = await asyncio.open_connection(*(await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)).sockets[0].getsockname())
    print(await r.read())
asyncio.run(main())'`, "child\nb''\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachWho(t, func(f *fixture) {
				for _, program := range tt.need {
					f.need(program)
				}
				o := f.run(call{args: f.sandbox(nil, "bash", "-c", tt.script)})
				if o.code != 0 || o.stdout != tt.want || o.stderr != "" {
					f.Errorf("want %q\n%v", tt.want, o)
				}
				f.wantUnchanged()
			})
		})
	}
}

// TestConcurrent runs many sandboxes at once: each gets its own result.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	const n = 50
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			f := newFixture(t, w)
			var wg sync.WaitGroup
			outcomes := make([]*outcome, n)
			for i := range n {
				wg.Go(func() {
					outcomes[i] = &outcome{code: -1} // where the run itself fails
					script := fmt.Sprintf(`echo out %[1]d; echo err %[1]d >&2; echo %[1]d >/tmp/same; echo %[1]d >~/same; sleep 0.2
						cat /tmp/same ~/same /dev/stdin; hostname; cat /proc/[0-9]*/comm | grep -c sleep; exit %[1]d`, i+1)
					outcomes[i] = f.run(call{args: f.sandbox(nil, "bash", "-c", script)})
				})
			}
			wg.Wait()
			for i, o := range outcomes {
				if want := fmt.Sprintf("out %[1]d\n%[1]d\n%[1]d\nsandbox\n0\n", i+1); o.code != i+1 || o.stdout != want || o.stderr != fmt.Sprintf("err %d\n", i+1) {
					t.Errorf("want exit code %d and %q\n%v", i+1, want, o)
				}
			}
			f.wantNothingLeft()
		})
	}
}

// TestNothingLeft ends runs in every way, and looks for what they left.
func TestNothingLeft(t *testing.T) {
	eachWho(t, func(f *fixture) {
		for _, tt := range []struct {
			name string
			code int
			args []string
		}{
			{"exit", 0, f.sandbox(nil, "true")},
			{"failure", 3, f.sandbox(nil, "sh", "-c", "exit 3")},
			{"signal", 137, f.sandbox(nil, "sh", "-c", "kill -KILL $$")},
			{"time limit", 124, f.sandbox([]string{"--timeout", "200ms"}, "sleep", "60")},
			{"not found", 127, f.sandbox(nil, "no-such-command")},
			{"bad flag", 125, f.sandbox([]string{"--memory", "1x"}, "true")},
			{"daemon", 0, f.sandbox(nil, "sh", "-c", `setsid sh -c 'trap "" HUP TERM; sleep 600 & sleep 600' >/dev/null 2>&1 & exit 0`)},
			{"files", 0, f.sandbox(nil, "sh", "-c", `echo x >/tmp/f; echo x >~/f; echo x >/dev/shm/f; mkfifo /run/p`)},
		} {
			if o := f.run(call{args: tt.args}); o.code != tt.code {
				f.Errorf("%s: want %d\n%v", tt.name, tt.code, o)
			}
			f.wantNothingLeft()
		}
		f.wantUnchanged()
	})
}

// wantNothingLeft reports processes, mounts and cgroups of this fixture's that
// are still there.
func (f *fixture) wantNothingLeft() {
	f.Helper()
	var left []string
	if !within(10*time.Second, func() bool {
		left = append(processes(f.dir), mountsOf(f.dir)...)
		left = append(left, deadGroups()...)
		return len(left) == 0
	}) {
		f.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}
