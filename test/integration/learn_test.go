//go:build linux

package integration

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A project is work that needs more of the home than strict shows.
type project struct {
	name   string
	need   []string
	home   map[string]string // files of the home
	files  map[string]string // and of the workspace
	before string            // bash on the host, as the user, which prepares the home
	script string            // what is learned from
	want   []string          // in the profile
	never  []string          // and not in it
}

// goTool is replaced by the directory of the go command.
const goTool = "$GOBIN"

var projects = []project{
	{name: "a Go module", script: "export PATH=" + goTool + ":$PATH GOPROXY=off GOFLAGS=-mod=mod GOTOOLCHAIN=local; go test ./...",
		files: map[string]string{"go.mod": "module example.com/m\n\ngo 1.22\n\nrequire example.com/dep v1.0.0\n",
			"m.go":      "package m\n\nimport \"example.com/dep\"\n\nfunc V() string { return dep.Version }\n",
			"m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestV(t *testing.T) {\n\tif V() != \"v1.0.0\" {\n\t\tt.Fatal(V())\n\t}\n}\n"},
		home:   map[string]string{".config/go/telemetry/mode": "off"},
		before: "cd $W && GOFLAGS=-modcacherw GOPROXY=$PROXY GOSUMDB=off GOTOOLCHAIN=local " + goTool + "/go mod tidy",
		want:   []string{"- ~/go/pkg/mod"}},
	{name: "an npm project", need: []string{"node", "npm"}, script: "npm ci --offline --no-audit --registry $REGISTRY && npm test",
		files:  map[string]string{"package.json": `{"name":"a","version":"1.0.0","dependencies":{"dep":"1.2.3"},"scripts":{"test":"node -e 'if (require(\"dep\") != \"dep 1.2.3\") process.exit(1)'"}}`},
		home:   map[string]string{".npmrc": "//127.0.0.1/:_authToken=npm_0123456789abcdefghijklmn\n"},
		before: "cd $W && npm install --no-audit --registry $REGISTRY && rm -r node_modules",
		want:   []string{"- ~/.npm/_cacache"}, never: []string{"- ~/.npmrc"}},
	{name: "a Python package", need: []string{"python3"}, script: "/usr/bin/python3 -m unittest -v",
		files: map[string]string{"test_it.py": "import unittest, netrc, greet.one, greet.two, greet.three\n\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(greet.one.x + greet.two.x + greet.three.x, 6)\n        try:\n            netrc.netrc()\n        except OSError:\n            pass\n"},
		home:  map[string]string{".netrc": "machine h login u password hunter2hunter2\n"},
		before: `d=$(/usr/bin/python3 -m site --user-site); mkdir -p $d/greet; for n in one:1 two:2 three:3; do echo "x = ${n#*:}" >$d/greet/${n%:*}.py; done
			touch $d/greet/__init__.py; chmod 600 ~/.netrc`,
		want: []string{"- ~/.local/lib/python3"}, never: []string{"- ~/.netrc", "- ~/.local/lib\n", "- ~/.local\n"}},
	{name: "a C project with cmake", need: []string{"cmake", "make", "gcc"},
		script: "cmake -S . -B build -DCMAKE_PREFIX_PATH=$HOME/opt/libx >/dev/null && cmake --build build >/dev/null && ctest --test-dir build",
		files: map[string]string{"CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nenable_testing()\nfind_path(X x.h)\nfind_library(LX x)\nadd_executable(p p.c)\ntarget_include_directories(p PRIVATE ${X})\ntarget_link_libraries(p ${LX})\nadd_test(NAME p COMMAND p)\n",
			"p.c": "#include <x.h>\nint main(void) { return x() - 42; }\n"},
		home:   map[string]string{"opt/libx/include/x.h": "int x(void);\n", "opt/other/private": "nobody reads this\n"},
		before: "cd ~/opt/libx && mkdir lib && echo 'int x(void) { return 42; }' >x.c && gcc -c x.c && ar rc lib/libx.a x.o && rm x.c x.o",
		want:   []string{"- ~/opt/libx"}, never: []string{"- ~/opt\n", "opt/other"}},
	{name: "a static site", need: []string{"python3", "make"}, script: "make site && grep -q '<h1>home</h1><footer>' public/index.html",
		files: map[string]string{"Makefile": "site:\n\t/usr/bin/python3 build.py\n", "index.md": "home",
			"build.py": "import os\nt = os.path.expanduser('~/.config/site/theme/')\nos.makedirs('public', exist_ok=True)\nread = lambda n: open(t + n).read().strip()\nopen('public/index.html', 'w').write(read('head').replace('X', open('index.md').read()) + read('foot') + read('style'))\n"},
		home: map[string]string{".config/site/theme/head": "<h1>X</h1>\n", ".config/site/theme/foot": "<footer>\n", ".config/site/theme/style": "<style>\n",
			".config/site/theme/deploy.conf": "password = correct-horse-battery\n", ".config/other/conf": "private\n"},
		want: []string{"- ~/.config/site/theme", "  hide:\n    - ~/.config/site/theme/deploy.conf"}, never: []string{"- ~/.config\n", "- ~/.config/site\n", ".config/other"}},
}

// TestLearn: from what a project's own tests use, a profile is made under which they pass,
// and which shows no secret of the home.
func TestLearn(t *testing.T) { learnFrom(t, projects[1:]) }

// TestLongLearn is TestLearn for the Go module, whose tests compile the standard library.
func TestLongLearn(t *testing.T) { learnFrom(t, projects[:1]) }

func learnFrom(t *testing.T, list []project) {
	registry, proxy := newRegistry(t), newModuleProxy(t, "v1.0.0")
	root := goEnv(t, "GOROOT")
	for _, p := range list {
		t.Run(p.name, func(t *testing.T) {
			eachWho(t, func(f *fixture) {
				for _, n := range p.need {
					f.need(n)
				}
				var flags []string
				gobin := ""
				if strings.Contains(p.script, goTool) {
					tc := f.readable(root, "bin", "pkg", "src", "VERSION", "go.env")
					flags, gobin = tc.flags, tc.root+"/bin"
				}
				fill := strings.NewReplacer(goTool, gobin, "$W", f.ws, "$PROXY", proxy.URL, "$REGISTRY", registry.URL).Replace
				for name, text := range p.home {
					f.write(filepath.Join("home", name), text, 0o644)
				}
				f.files(p.files)
				if p.before != "" {
					if o := f.do(call{args: f.who.command("bash", "-euc", fill(p.before)), env: []string{"XDG_CACHE_HOME="}}); o.code != 0 {
						f.Fatalf("%v", o)
					}
				}
				state := f.dir + "-state" // where change sets are kept
				if err := errors.Join(os.Mkdir(state, 0o700), os.Chown(state, f.who.uid, f.who.uid)); err != nil {
					f.Fatal(err)
				}
				defer os.RemoveAll(state)
				f.before = f.snapshot()
				under := func(of ...string) *outcome {
					f.Helper()
					args := append(f.who.command(sbxrun), of...)
					args = append(append(append(args, f.quiet()...), flags...), "-C", f.ws)
					return f.do(call{args: append(args, "--", "bash", "-euc", fill(p.script)), env: []string{"XDG_STATE_HOME=" + state}})
				}
				if o := under("run", "--workspace", "overlay"); o.code == 0 {
					f.Fatalf("strict is enough for it: %v", o)
				}
				file := f.path("learned.yaml")
				if err := os.Chmod(f.dir, 0o777); err != nil {
					f.Fatal(err)
				}
				if o := under("learn", "-o", file); o.code != 0 {
					f.Fatalf("%v", o)
				}
				text, err := os.ReadFile(file)
				if err != nil {
					f.Fatal(err)
				}
				for _, w := range p.want {
					if !strings.Contains(string(text), w) {
						f.Errorf("the profile has no %q", w)
					}
				}
				for _, w := range append(p.never, "- ~\n", "- "+f.home+"\n", "- ~/.ssh", "- ~/.aws", "- ~/notes") {
					if strings.Contains(string(text), w) {
						f.Errorf("the profile has %q", w)
					}
				}
				if o := under("run", "-P", file, "--workspace", "overlay"); o.code != 0 {
					f.Errorf("%v", o)
				}
				// What a package could have planted in the project's tests.
				script := "cat ~/.ssh/* ~/.aws/* ~/notes ~/.npmrc ~/.netrc ~/.config/site/theme/deploy.conf ~/.config/other/conf ~/opt/other/private; ls -a ~ ; exec 3<>/dev/tcp/127.0.0.1/" + registry.URL[strings.LastIndexByte(registry.URL, ':')+1:]
				args := append(f.who.command(sbxrun, "-P", file, "-C", f.ws), f.quiet()...)
				o := f.do(call{args: append(append(args, flags...), "--", "bash", "-c", script)})
				for _, s := range []string{"a secret", "private", "_authToken", "hunter2", "correct-horse", "nobody reads this"} {
					if strings.Contains(o.stdout, s) {
						f.Errorf("%q can be read: %v", s, o)
					}
				}
				if o.code == 0 {
					f.Errorf("a server of the host was reached: %v", o)
				}
				if t.Failed() {
					f.Logf("%s", text)
				}
				os.Remove(file)
				os.Chmod(f.dir, 0o755)
				f.wantUnchanged()
			})
		})
	}
}

// TestLearnWithholds: what learn shows while it watches, and what it proposes, ends where its
// documentation says so.
func TestLearnWithholds(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.need("gcc")
		for path, text := range map[string]string{"home/.tool/f1": "one\n", "home/.tool/f2": "two\n", "home/.tool/f3": "three\n", "home/.priv/diary": "dear diary\n", "home/.glob/a": "x\n",
			"home/.glob/*": "star\n", "home/.own/notes": "mine\n", "base.yaml": "extends: strict\nfiles:\n  hide:\n    - ~/.own\n#   - ~/old\n    - ~/.priv\n"} {
			f.write(path, text, 0o644)
		}
		f.files(map[string]string{"README": "r\n"})
		f.repository(".")
		socket := f.home + "/.agent.sock"
		l, err := net.Listen("unix", socket)
		if err != nil {
			f.Fatal(err)
		}
		defer l.Close()
		os.Chmod(socket, 0o666)
		state := f.dir + "-state"
		if err := errors.Join(os.Mkdir(state, 0o700), os.Chown(state, f.who.uid, f.who.uid), os.Chmod(f.dir, 0o777)); err != nil {
			f.Fatal(err)
		}
		defer os.RemoveAll(state)
		sbx := func(args ...string) *outcome {
			f.Helper()
			return f.run(call{args: f.who.command(append([]string{sbxrun}, args...)...), env: []string{"XDG_STATE_HOME=" + state}})
		}
		learn := func(script string, flags ...string) *outcome {
			f.Helper()
			return sbx(append(append(append([]string{"learn", "-C", f.ws}, f.quiet()...), flags...), "--", "sh", "-c", script)...)
		}
		has := func(o *outcome, text string, want bool) {
			f.Helper()
			if strings.Contains(o.stdout, text) != want {
				f.Errorf("%q is there: want %v: %v", text, want, o)
			}
		}
		// The command's stdout is on stderr, and the profile on stdout.
		o := learn("cat ~/.ssh/id_ed25519 ~/.aws/credentials; true")
		if strings.Contains(o.stderr, "a secret") {
			f.Errorf("a secret is shown: %v", o)
		}
		has(o, "Not granted: ~/.ssh/id_ed25519", true)
		has(o, "- ~/.ssh", false)
		o = learn("cat ~/.priv/diary ~/.own/notes; true", "-P", f.path("base.yaml"))
		if strings.Contains(o.stderr, "dear diary") || strings.Contains(o.stderr, "mine") {
			f.Errorf("what the profile hides is shown: %v", o)
		}
		has(o, "- ~/.priv", false)
		has(o, "extends: ", true)
		has(learn("cat "+socket+"; true"), "- ~/.agent.sock", false)
		has(learn(`cat ~/.glob/\*`), `- "~/.glob/`, false)
		has(learn("echo x >>~/.tool/f1; cat ~/.tool/f1"), "copy_try:\n    - ~/.tool ", true)
		has(learn("echo x >~/.tool/f1; cat ~/.tool/f1"), "- ~/.tool", false)
		// What a symbolic link leads to is judged where it is, and no link stands for a directory.
		const private = "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret of a link\n"
		for path, text := range map[string]string{"docs/1": "1\n", "docs/2": "2\n", "docs/3": "3\n", "docs/id_rsa": private, "docs/plain": private, ".real/1": "1\n", ".real/2": "2\n", ".real/3": "3\n", ".real/key": private,
			".odd/1": "1\n", ".odd/2": "2\n", ".odd/3": "3\n", ".odd/k\xff.pem": private, ".nul/1": "1\n", ".nul/2": "2\n", ".nul/3": "3\n", ".nul/.npmrc": "\x00\n//r/:_authToken=secret-of-a-link\n",
			".hid/1": "1\n", ".hid/2": "2\n", ".hid/3": "3\n", ".hid/diary": "secret of a link\n"} {
			f.write(filepath.Join("home", path), text, 0o644)
		}
		for link, to := range map[string]string{".ldocs": "docs", ".lreal": ".real", ".lhome": f.home, ".lkey": "docs/plain"} {
			if err := os.Symlink(to, filepath.Join(f.home, link)); err != nil {
				f.Fatal(err)
			}
		}
		file := f.path("learned.yaml")
		for _, c := range []struct {
			script, has, lacks, shown string
			flags                     []string
		}{
			{script: "cat ~/.ldocs/[123]", has: "- ~/.ldocs/1  #", lacks: "- ~/.ldocs ", shown: "123"},
			{script: "cat ~/.lreal/1 ~/.lreal/2 ~/.lreal/3", has: "- ~/.lreal/1  #", lacks: "- ~/.lreal ", shown: "123"},
			{script: "ls ~/.lreal/", has: "- ~/.lreal  #", lacks: "~/docs"},
			{script: "ls ~/.lhome/", lacks: "- ~/.lhome"},
			{script: "cat ~/.lkey; true", lacks: "- ~/.lkey"},
			{script: "mv ~/.tool ~/.x; mv ~/.ldocs ~/.y; mkdir ~/.ldocs; cd ~/.ldocs; echo a | tee 1 >2; cp 1 3; echo >>1; cat 1 2 3", lacks: "- ~/.ldocs"},
			{script: "cat ~/.odd/[123]", has: "- ~/.odd/1  #", lacks: "- ~/.odd ", shown: "123"},
			{script: "cat ~/.nul/[123]", has: "- ~/.nul/.npmrc  #", shown: "123"},
			{script: "cat ~/.hid/[123]", has: "- ~/.hid/diary  #", flags: []string{"--hide", "~/.hid/diary"}, shown: "123"},
		} {
			os.Remove(file)
			if o := learn(c.script, append(c.flags, "-o", file)...); o.code != 0 {
				f.Errorf("%s: %v", c.script, o)
				continue
			}
			text, _ := os.ReadFile(file)
			if !strings.Contains(string(text), c.has) || c.lacks != "" && strings.Contains(string(text), c.lacks) {
				f.Errorf("%s\n%s", c.script, text)
			}
			o := sbx(append(append([]string{"-P", file, "-C", f.ws}, f.quiet()...), "--", "sh", "-c",
				c.script+`; cat ~/.ldocs/id_rsa ~/docs/id_rsa ~/docs/plain ~/.lreal/key ~/.real/key ~/.lhome/docs/* ~/.lkey ~/.odd/*.pem ~/.nul/.npmrc ~/.hid/diary 2>&1`)...)
			if strings.Contains(strings.ToLower(strings.ReplaceAll(o.stdout, "-", " ")), "secret of a link") || !strings.HasPrefix(strings.ReplaceAll(o.stdout, "\n", ""), c.shown) {
				f.Errorf("%s: %v\n%s", c.script, o, text)
			}
		}
		os.Remove(file)

		// What the run had and the profile does not say is a comment, and what the run was refused.
		o = learn("cat /sys/kernel/notes /run/none ~/.glob/a >/dev/null; echo >/usr/lib/sbxrun-x; true", "--net", "host", "--env", "A=b")
		for _, want := range []string{"# Learned with --env,", "# Learned with --net host", "# Not measured: the disk.", "# Not granted: /sys/kernel/notes: not shown in the run", "# Not granted: /usr/lib"} {
			has(o, want, true)
		}
		has(learn("rm ~/.glob/a"), "# Not granted: ~/.glob: what was renamed, removed", true)
		// What the profile shows read-only and the command changes becomes a copy.
		f.write("given.yaml", "extends: strict\nfiles:\n  read:\n    - ~/.real\n    - ~/.odd/1\n    - "+f.path("outside")+"\n", 0o666)
		f.own()
		if o := learn("echo x >~/.real/1; cat ~/.real/1 ~/.odd/[123] ~/.tool/f1", "--into", f.path("given.yaml")); o.code != 0 {
			f.Errorf("%v", o)
		}
		if text, _ := os.ReadFile(f.path("given.yaml")); !strings.Contains(string(text), "  copy_try:\n    - ~/.real  #") || !strings.Contains(string(text), "\n    - ~/.tool/f1  #") {
			f.Errorf("%s", text)
		}
		if o := sbx(append(append([]string{"-P", f.path("given.yaml"), "-C", f.ws}, f.quiet()...), "--", "sh", "-c", "echo x >~/.real/1 && cat ~/.real/1")...); o.stdout != "x\n" {
			f.Errorf("%v", o)
		}

		// Changes of protected paths are named, and apply refuses them as after any run.
		has(learn("mkdir .vscode && echo x >.vscode/tasks.json"), "Not granted: "+f.ws+"/.vscode/tasks.json: changed, and protected by .vscode", true)
		if o := sbx("apply"); o.code == 0 || !strings.Contains(o.stderr, "protected") || exists(f.ws+"/.vscode") {
			f.Errorf("a protected path was changed: %v", o)
		}

		// A loader of the program's own is needed as any other file.
		if o := f.do(call{args: f.who.command("sh", "-euc", "mkdir ~/.ld; cp $(gcc -print-file-name="+map[string]string{"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}[runtime.GOARCH]+") ~/.ld/ld.so; echo 'int main(void) { return 0; }' >~/.ld/p.c; gcc -o ~/.ld/p ~/.ld/p.c -Wl,--dynamic-linker=$HOME/.ld/ld.so")}); o.code != 0 {
			f.Fatalf("%v", o)
		}
		if o := learn("~/.ld/p", "-o", file); o.code != 0 {
			f.Fatalf("%v", o)
		}
		if o := sbx(append(append([]string{"-P", file, "-C", f.ws}, f.quiet()...), "--", "sh", "-c", "~/.ld/p")...); o.code != 0 {
			b, _ := os.ReadFile(file)
			f.Errorf("%v\n%s", o, b)
		}
		if o := learn("true", "-o", file); o.code != 125 {
			f.Errorf("a file was replaced: %v", o)
		}
		if o := learn("touch ran", "-o", f.path("none/x.yaml")); o.code != 125 || strings.Contains(o.stderr, "change set") {
			f.Errorf("it ran, and there is no place for the profile: %v", o)
		}

		// To add to a profile takes nothing from it.
		base, _ := os.ReadFile(f.path("base.yaml"))
		os.Chmod(f.path("base.yaml"), 0o600)
		os.Chown(f.path("base.yaml"), f.who.uid, f.who.uid)
		os.Symlink("base.yaml", f.path("link.yaml"))
		if o := learn("cat ~/.tool/f1", "--into", f.path("link.yaml")); o.code != 0 {
			f.Errorf("%v", o)
		}
		added, _ := os.ReadFile(f.path("base.yaml"))
		info, err := os.Lstat(f.path("base.yaml"))
		if !strings.HasPrefix(string(added), string(base)) || !strings.Contains(string(added), "\n    - ~/.tool/f1 ") || err != nil || info.Mode() != 0o600 {
			f.Errorf("%v %v\n%s", info, err, added)
		}
		if o := sbx(append(append([]string{"-P", f.path("base.yaml"), "-C", f.ws}, f.quiet()...), "--", "sh", "-c", "cat ~/.tool/f1; ! cat ~/.priv/diary ~/.own/notes")...); o.code != 0 || o.stdout != "one\n" {
			f.Errorf("%v", o)
		}
		os.Chmod(f.dir, 0o755)
	})
}
