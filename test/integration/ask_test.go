//go:build linux

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asker is a session that asks, in the tests' own internet.
type asker struct {
	*session
	*world
}

type question struct {
	ID     int    `json:"id"`
	Denial denial `json:"denial"`
}

func newAsker(t *testing.T, flags ...string) *asker {
	t.Helper()
	f := newFixture(t, whos[0])
	return newAskerIn(f, inWorld(f), flags...)
}

// newAskerIn is newAsker in that internet, nil for the host's.
func newAskerIn(f *fixture, w *world, flags ...string) *asker {
	f.Helper()
	run := f.path("run")
	if err := os.Mkdir(run, 0o700); err != nil {
		f.Fatal(err)
	}
	s := &session{f, "asks", "XDG_RUNTIME_DIR=" + run}
	f.write("logs/audit", "", 0o600)
	f.own()
	args := append(f.who.command(sbxrun, "session", "create", "-C", f.ws), f.who.sessionFlags()...)
	if o := f.do(call{args: append(append(args, flags...), s.id), env: []string{s.env, "SBXRUN_AUDIT=" + f.path("logs/audit")}}); o.code != 0 {
		f.Fatalf("create: %v", o)
	}
	f.Cleanup(func() { s.cli("rm", "--force", s.id) })
	return &asker{s, w}
}

// starts runs a script in the session, which is about to wait.
func (a *asker) starts(script string) <-chan *outcome {
	c := make(chan *outcome, 1)
	go func() { c <- a.exec(script) }()
	return c
}

// asked waits until so many questions are open, and returns them.
func (a *asker) asked(n int) (list []question) {
	a.Helper()
	var o *outcome
	if !within(3*time.Minute, func() bool {
		o, list = a.cli("requests", "--json", a.id), nil
		return json.Unmarshal([]byte(o.stdout), &list) == nil && len(list) == n
	}) {
		a.Fatalf("want %d questions: %v", n, o)
	}
	return list
}

// record is the last answer that the audit log has.
func (a *asker) record() (last struct{ Event, Session, Operation, Target, Grant, Answer, By string }) {
	a.Helper()
	b, err := os.ReadFile(a.path("logs/audit"))
	if err != nil {
		a.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		a.Fatalf("%q: %v", b, err)
	}
	return last
}

// onRecord wants a record of an answer about a target.
func (a *asker) onRecord(answer, by, target string) {
	a.Helper()
	if r := a.record(); r.Event != "answer" || r.Session != a.id || r.Answer != answer || r.By != by || !strings.HasSuffix(r.Target, target) {
		a.Errorf("want %s by %q about %s: %+v", answer, by, target, r)
	}
}

func (a *asker) answer(verb string, id int, flags ...string) {
	a.Helper()
	if o := a.cli(append(append([]string{verb}, flags...), a.id, fmt.Sprint(id))...); o.code != 0 {
		a.Errorf("%s %d: %v", verb, id, o)
	}
}

func (a *asker) ends(c <-chan *outcome, code int, stdout string) {
	a.Helper()
	select {
	case o := <-c:
		if o.code != code || o.stdout != stdout {
			a.Errorf("want %d and %q: %v", code, stdout, o)
		}
	case <-time.After(time.Minute):
		a.Error("it did not end")
	}
}

// TestAsk: what a session made with --ask is about to refuse waits for an answer, and goes on
// with a yes; who answers, and how, is on record; and no server hears of a name before.
func TestAsk(t *testing.T) {
	t.Parallel()
	a := newAsker(t, "--ask=60s")
	const get = "curl -sS -m 25 --noproxy '*' http://%s/ 2>/dev/null | head -c 5"
	denied, api := fmt.Sprintf(get, "asked.test"), fmt.Sprintf(get, "api.asked.test")
	before := a.reached(askServer + ":80")
	a.step("a host, once", func() {
		c := a.starts(denied)
		q := a.asked(1)[0]
		if q.Denial.Operation != "connect" || q.Denial.Target != "asked.test:80" || q.Denial.Grant != "--allow-host asked.test:80" {
			a.Errorf("%+v", q)
		}
		if a.world.asked("asked.test") || a.reached(askServer+":80") != before {
			a.Error("somebody heard of it before the answer")
		}
		a.answer("grant", q.ID, "--once")
		a.onRecord("once", "sbxrun session", "asked.test:80")
		a.ends(c, 0, "hello")
	})
	a.step("a host, no", func() {
		c := a.starts(denied)
		a.answer("deny", a.asked(1)[0].ID)
		a.onRecord("no", "sbxrun session", "asked.test:80")
		a.ends(c, 0, "")
		begin := time.Now()
		if o := a.exec(denied); o.stdout != "" || time.Since(begin) > 15*time.Second {
			a.Errorf("asked again, or not refused: %v", o)
		}
	})
	a.step("a host, for the session", func() {
		c, d := a.starts(api), a.starts(api)
		q := a.asked(1)[0]
		a.answer("grant", q.ID)
		a.onRecord("always", "sbxrun session", "api.asked.test:80")
		a.ends(c, 0, "hello")
		a.ends(d, 0, "hello")
		a.want(api, "hello")
		if o := a.cli("grant", a.id, fmt.Sprint(q.ID)); o.code != 125 || !strings.Contains(o.stderr, "not open") || !strings.Contains(o.stderr, "nothing was granted") {
			a.Errorf("answered twice: %v", o)
		}
	})
	a.step("for good", func() {
		const get = "curl -sS -m 25 --noproxy '*' http://www.asked.test/ 2>/dev/null | head -c 5"
		c := a.starts(get)
		q := a.asked(1)[0]
		a.write("mine.yaml", "extends: strict  # mine\n", 0o600)
		a.write("ws/mine.yaml", "extends: strict\n", 0o600)
		a.write("flow.yaml", "extends: strict\nnetwork: {allow: [x.test]}\n", 0o600)
		a.own()
		a.write("linked.yaml", "extends: strict\n", 0o600)
		if err := os.Link(a.path("linked.yaml"), a.path("other.yaml")); err != nil {
			t.Fatal(err)
		}
		a.write("host.yaml", "extends: strict\nnetwork:\n  mode: host\n", 0o600)
		a.write("dormant.yaml", "extends: strict\nnetwork:\n  allow:\n    - dormant.test\n", 0o600)
		if err := os.Symlink(a.path("mine.yaml"), a.ws+"/link.yaml"); err != nil {
			t.Fatal(err)
		}
		a.write("inherits.yaml", "extends: ./host.yaml\n", 0o600)
		for file, says := range map[string]string{"linked.yaml": "has other names", "host.yaml": "its network.mode is host", "inherits.yaml": "would not have network.mode host", "ws": "no regular file", "ws/mine.yaml": "the sandbox can write there", "none.yaml": "does not exist", "ws/link.yaml": "is a symbolic link", "flow.yaml": "nothing was added", "dormant.yaml": "dormant.test would count"} {
			if o := a.cli("grant", "--into", a.path(file), a.id, fmt.Sprint(q.ID)); o.code != 125 || !strings.Contains(o.stderr, says) {
				a.Errorf("%s: %v", file, o)
			}
		}
		a.asked(1)
		// From the home, in which nothing can run.
		if o := a.do(call{args: a.who.command("env", "-C", a.home, sbxrun, "session", "grant", "--into", a.path("mine.yaml"), a.id, fmt.Sprint(q.ID)), env: []string{a.env}}); o.code != 0 {
			a.Errorf("%v", o)
		}
		a.ends(c, 0, "hello")
		b, err := os.ReadFile(a.path("mine.yaml"))
		const want = "extends: strict  # mine\n\nnetwork:\n  mode: proxy\n  allow:\n    - www.asked.test:80  # granted in session asks\n"
		if err != nil || string(b) != want {
			a.Errorf("%q, %v", b, err)
		}
		if o := a.do(call{args: append(a.who.command(sbxrun, "-C", a.ws), "-P", a.path("mine.yaml"), "--", "sh", "-c", get)}); o.stdout != "hello" {
			a.Errorf("a run with that profile: %v", o)
		}
	})
	a.step("a protected path", func() {
		const hook = "mkdir -p .git/hooks && echo x >.git/hooks/$0 && echo written"
		c := a.starts("set -- post-merge; " + strings.ReplaceAll(hook, "$0", "post-merge"))
		q := a.asked(1)[0]
		if q.Denial.Operation != "write" || !strings.HasPrefix(q.Denial.Grant, "--unprotect ") {
			a.Errorf("%+v", q)
		}
		a.answer("grant", q.ID)
		if !within(time.Minute, func() bool { // each pattern in the way has a question of its own
			var list []question
			if o := a.cli("requests", "--json", a.id); json.Unmarshal([]byte(o.stdout), &list) == nil && len(list) > 0 {
				a.answer("grant", list[0].ID)
			}
			return len(c) > 0
		}) {
			a.Error("it still waits")
		}
		a.ends(c, 0, "written\n")
	})
	a.step("others go on meanwhile", func() {
		c := a.starts(fmt.Sprintf(get, "y.asked.test"))
		q := a.asked(1)[0]
		a.want("echo x > file && cat file && mkdir d && rmdir d", "x\n")
		a.answer("deny", q.ID)
		a.ends(c, 0, "")
	})
	a.step("who asks is killed", func() {
		cmd := exec.Command(a.who.command(sbxrun, "session", "exec", a.id, "--", "sh", "-c", fmt.Sprintf(get, "w.asked.test"))[0],
			a.who.command(sbxrun, "session", "exec", a.id, "--", "sh", "-c", fmt.Sprintf(get, "w.asked.test"))[1:]...)
		cmd.Env = a.environ(a.env)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		a.asked(1)
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		a.asked(0)
	})
	a.step("a flood", func() {
		c := a.starts(`for i in $(seq 60); do curl -s -m 3 --noproxy '*' http://h$i.flood.test/ & done; wait; echo over`)
		list := a.asked(16)
		a.answer("deny", list[0].ID)
		a.ends(c, 0, "over\n")
		a.asked(0)
		if o := a.cli("requests", a.id); !strings.Contains(o.stderr, "refused without a question") {
			a.Errorf("%v", o)
		}
	})
	a.step("the end of the session", func() {
		a.starts(fmt.Sprintf(get, "x.asked.test"))
		q := a.asked(1)[0]
		if o := a.cli("stop", "-t", "0s", a.id); o.code != 0 {
			a.Errorf("%v", o)
		}
		if o := a.cli("grant", a.id, fmt.Sprint(q.ID)); o.code != 125 || o.stderr == "" {
			a.Errorf("%v", o)
		}
	})
}

// TestAskInside: a profile in the workspace, which the sandbox has mounted read-only, gets no
// grant: the new file would be beside that mount, and the command could write it.
func TestAskInside(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	const old = "extends: strict\n"
	f.write("ws/mine.yaml", old, 0o644)
	if err := os.MkdirAll(f.ws+"/.git/hooks", 0o755); err != nil {
		t.Fatal(err)
	}
	a := newAskerIn(f, nil, "--ask=60s", "-P", f.ws+"/mine.yaml")
	c := a.starts("echo x >.git/hooks/a && echo written")
	q := a.asked(1)[0]
	if o := a.cli("grant", "--into", f.ws+"/mine.yaml", a.id, fmt.Sprint(q.ID)); o.code != 125 || !strings.Contains(o.stderr, "the sandbox can write there") {
		a.Errorf("%v", o)
	}
	a.answer("deny", q.ID)
	a.ends(c, 2, "")
	a.want("(echo '# more' >>mine.yaml) 2>/dev/null || echo refused", "refused\n")
	if b, err := os.ReadFile(f.ws + "/mine.yaml"); string(b) != old {
		a.Errorf("%q, %v", b, err)
	}
}

// TestAskOnce: a yes for once is for the path that was shown, and for who asked: not for what
// the caller's memory, or another process, makes of it.
func TestAskOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	if err := os.MkdirAll(f.ws+"/.git/hooks", 0o755); err != nil {
		t.Fatal(err)
	}
	a := newAskerIn(f, nil, "--ask=60s")
	a.step("another path in the same memory", func() {
		// One thread opens a path again and again as another changes its last letter.
		const swaps = `import ctypes, os, threading, time
libc = ctypes.CDLL(None, use_errno=True)
path = ctypes.create_string_buffer(b".git/hooks/a")
def change():
    time.sleep(1)
    path[11] = b"b"
    open("changed", "w")
threading.Thread(target=change).start()
fd = libc.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
print("opened" if fd >= 0 else "refused", path.value.decode())`
		c := a.starts("python3 -c '" + swaps + "'")
		q := a.asked(1)[0]
		if !strings.HasSuffix(q.Denial.Target, "/.git/hooks/a") {
			a.Errorf("%+v", q)
		}
		if !within(time.Minute, func() bool { return exists(a.ws + "/changed") }) {
			a.Error("its memory did not change")
		}
		a.answer("grant", q.ID, "--once")
		if q = a.asked(1)[0]; !strings.HasSuffix(q.Denial.Target, "/.git/hooks/b") {
			a.Errorf("%+v", q)
		}
		a.answer("deny", q.ID)
		a.ends(c, 0, "refused .git/hooks/b\n")
	})
	a.step("what lasts", func() {
		a.write("ws/.git/hooks/c", "", 0o644)
		a.own()
		for _, call := range []string{`os.rename(".git/hooks/c", ".git/hooks/d")`, `os.link(".git/hooks/c", "alias")`, `os.symlink("x", ".vscode")`} {
			c := a.starts(`python3 -c 'import os; ` + call + `' 2>/dev/null || echo refused`)
			q := a.asked(1)[0]
			if o := a.cli("grant", "--once", a.id, fmt.Sprint(q.ID)); o.code != 125 || !strings.Contains(o.stderr, "there is no once") {
				a.Errorf("%s: %v", call, o)
			}
			a.asked(1)
			a.answer("deny", q.ID)
			a.ends(c, 0, "refused\n")
		}
	})
	a.step("another call of the same path", func() {
		const both = `import ctypes, os, signal, threading, time
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGUSR1, lambda *a: None)
signal.siginterrupt(signal.SIGUSR1, True)
def link():
    time.sleep(2)
    os.kill(os.getpid(), signal.SIGUSR1)
    print("link", libc.link(b".git/hooks/h", b"alias"), flush=True)
threading.Thread(target=link).start()
print("open", libc.open(b".git/hooks/h", os.O_WRONLY), flush=True)`
		a.write("ws/.git/hooks/h", "", 0o644)
		a.own()
		c := a.starts("python3 -c '" + both + "' | sort")
		first := a.asked(1)[0]
		var q question
		if !within(time.Minute, func() bool { q = a.asked(1)[0]; return q.ID != first.ID }) || !strings.HasPrefix(q.Denial.Call, "link") {
			a.Errorf("%+v", q)
		}
		a.answer("deny", q.ID)
		a.ends(c, 0, "link -1\nopen -1\n")
	})
	a.step("a repository of its own", func() {
		a.want("mkdir -p b/objects b/refs; (echo x >b/HEAD) 2>/dev/null || echo refused", "refused\n")
	})
	a.step("two that ask the same", func() {
		const write = "echo $$ >.git/hooks/e && echo written"
		c := a.starts(write)
		first := a.asked(1)[0]
		d := a.starts(write)
		time.Sleep(500 * time.Millisecond)
		a.answer("grant", first.ID, "--once")
		a.ends(c, 0, "written\n")
		q := a.asked(1)[0]
		a.answer("deny", q.ID)
		a.ends(d, 2, "")
	})
	// What is done to who asks comes once the question is there.
	asked := func(step string) string { return `until [ -e ` + step + ` ]; do sleep 0.05; done` }
	then := func(step string) {
		a.asked(1)
		a.write("ws/"+step, "", 0o644)
	}
	a.step("a signal", func() {
		c := a.starts(`bash -c 'trap "echo told; exit 5" USR1; (` + asked("one") + `; kill -USR1 $$) & echo x >.git/hooks/f'`)
		then("one")
		a.ends(c, 5, "told\n")
		a.asked(0)
	})
	a.step("one that was killed is on record", func() {
		c := make(chan *outcome, 1)
		go func() {
			c <- a.exec(`(echo x >.git/hooks/g) & `+asked("two")+`; kill -9 $!; wait; echo over`, "--json")
		}()
		then("two")
		r := a.result(<-c)
		if r.Stdout != "over\n" || len(r.Denials) != 1 || !strings.HasSuffix(r.Denials[0].Target, "/.git/hooks/g") {
			a.Errorf("%+v", r)
		}
		a.asked(0)
	})
}

// TestAskFiles: with --explain, a file that the sandbox does not show is a question, too. A yes
// gives a copy of that file, and of nothing that its name leads to by then.
func TestAskFiles(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	f.write("granted/tool", "one\n", 0o644)
	f.write("granted/once", "one\n", 0o644)
	f.write("granted/other", "other\n", 0o644)
	f.write("granted/id_rsa", "key\n", 0o600)
	f.write("granted/hidden/file", "hidden\n", 0o644)
	f.write("dotfiles/netrc", "secret\n", 0o600)
	f.write("granted/large", strings.Repeat("x", 16<<20+1), 0o644)
	f.write("mine.yaml", "extends: strict\n", 0o600)
	f.own()
	dir := f.path("granted")
	if err := syscall.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../dotfiles/netrc", f.path("home/.netrc")); err != nil {
		t.Fatal(err)
	}
	a := newAskerIn(f, nil, "--ask=60s", "--hide", dir+"/hidden")
	read := func(name string) string { return "cat " + dir + "/" + name + " 2>/dev/null || echo none" }
	start := func(script string) <-chan *outcome {
		c := make(chan *outcome, 1)
		go func() { c <- a.exec(script, "--explain") }()
		return c
	}
	about := func(name string) question {
		q := a.asked(1)[0]
		if q.Denial.Operation != "read" || q.Denial.Target != dir+"/"+name || q.Denial.Grant != "--ro "+dir+"/"+name {
			a.Errorf("%s: %+v", name, q)
		}
		return q
	}
	nothing := func(script, stdout string) {
		c := start(script)
		a.ends(c, 0, stdout) // and waits for nobody
		a.asked(0)
	}
	a.step("nothing without --explain", func() { a.want(read("tool"), "none\n") })
	a.step("once", func() {
		c := start(read("once") + "; " + read("once"))
		a.answer("grant", about("once").ID, "--once")
		a.onRecord("once", "sbxrun session", "/granted/once")
		a.answer("deny", about("once").ID)
		a.ends(c, 0, "one\nnone\n")
	})
	a.step("what nobody asks about", func() {
		nothing(read("id_rsa")+"; "+read("large")+"; "+read("fifo")+"; ls "+dir+" 2>/dev/null || echo none; "+read("absent"), strings.Repeat("none\n", 5))
		nothing(read("hidden/file")+"; "+read("../dotfiles/netrc")+"; cat ~/.netrc 2>/dev/null || echo none", "none\nnone\nnone\n")
	})
	a.step("where a link leads", func() {
		link := "ln -sf " + dir + "/other link; cat link 2>/dev/null || echo none"
		c := start(link)
		q := about("other")
		if q.Denial.Reason != "asked for as "+a.ws+"/link" {
			a.Errorf("%+v", q)
		}
		if err := os.Remove(a.ws + "/link"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir+"/id_rsa", a.ws+"/link"); err != nil {
			t.Fatal(err)
		}
		a.answer("grant", q.ID)
		a.ends(c, 0, "none\n")
		nothing("cat link 2>/dev/null || echo none; "+read("other"), "none\nother\n")
	})
	a.step("what the name leads to later", func() {
		for _, becomes := range []func(name string) error{
			os.Remove,
			func(name string) error { return errors.Join(os.Remove(name), os.Symlink("id_rsa", name)) },
			func(name string) error { return errors.Join(os.Remove(name), os.Symlink("/dev/zero", name)) },
			func(name string) error { return os.Truncate(name, 1<<30) },
		} {
			f.write("granted/moving", "moves\n", 0o644)
			f.own()
			c := make(chan *outcome, 1)
			go func() { c <- a.exec(read("moving"), "--explain", "--json") }()
			q := about("moving")
			if err := becomes(dir + "/moving"); err != nil {
				t.Fatal(err)
			}
			a.answer("grant", q.ID, "--once")
			r := a.result(<-c)
			_, err := os.Stat(dir + "/moving") // what the host does not have either is not refused
			if r.Stdout != "none\n" || err == nil != slices.ContainsFunc(r.Denials, func(d denial) bool { return d.Target == dir+"/moving" }) {
				a.Errorf("%+v", r)
			}
			os.Remove(dir + "/moving")
		}
	})
	a.step("for the session", func() {
		const use = `import os, sys
name = sys.argv[1]
f = os.open(name, os.O_RDONLY)
def tries(what):
    try: print("did", what())
    except OSError as e: print("no")
print(os.read(f, 2), os.pread(f, 9, 0), os.fstat(f).st_size)
tries(lambda: os.open("/proc/self/fd/%d" % f, os.O_RDWR))
tries(lambda: os.ftruncate(f, 0))
try: os.fchmod(f, 0o777) # of the copy, before Linux 6.3
except OSError: pass
tries(lambda: os.open("/proc/self/fd/%d/../other" % f, os.O_RDONLY))
tries(lambda: os.open("..", os.O_RDONLY, dir_fd=f))
tries(lambda: os.open(name, os.O_RDWR))
print(os.read(os.open(name, os.O_RDONLY), 9), os.read(f, 9))`
		c := start("python3 -c '" + use + "' " + dir + "/tool")
		q := about("tool")
		if o := a.cli("grant", "--into", a.path("mine.yaml"), a.id, fmt.Sprint(q.ID)); o.code != 125 || !strings.Contains(o.stderr, "a file is granted to one sandbox") {
			a.Errorf("%v", o)
		}
		a.answer("grant", q.ID)
		a.ends(c, 0, "b'on' b'one\\n' 4\n"+strings.Repeat("no\n", 5)+"b'one\\n' b'e\\n'\n")
		nothing(read("tool"), "one\n")
		f.write("granted/tool", "two\n", 0o644)
		nothing(read("tool"), "one\n") // it was copied
		if info, err := os.Stat(dir + "/tool"); err != nil || info.Mode() != 0o644 {
			a.Errorf("%v, %v", info, err)
		}
		a.want(read("tool"), "none\n") // without --explain nothing gives it
	})
	a.step("no more than is bounded", func() {
		// What is copied can be kept, and counts as long as the sandbox is there.
		f.write("granted/big", strings.Repeat("x", 16<<20), 0o644)
		c := start(`for i in 1 2 3 4 5; do wc -c <` + dir + `/big 2>/dev/null || echo none; done`)
		for range 3 {
			a.answer("grant", about("big").ID, "--once")
		}
		a.ends(c, 0, strings.Repeat("16777216\n", 3)+"none\nnone\n")
	})
}

// TestAskTerminal: at the terminal only the word that is shown is a yes: neither what was typed
// for the command, nor what a terminal sends by itself, nor a line from inside.
func TestAskTerminal(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	w := inWorld(f)
	const get = "curl -sS -m 25 --noproxy '*' http://asked2.test/ 2>/dev/null | head -c 5; echo; read ahead; read x; echo got $x; exit 3"
	before := w.reached(askServer2 + ":80")
	ask := func(answer func(tm *terminal, word string), flags ...string) (string, int) {
		tm := f.newTerminal()
		cmd := tm.start(f.strict(append(flags, "-t", "--ask=30s"), "bash", "-c", get))
		tm.master.WriteString("for run or n\r")
		tm.wait("sbxrun: answer: ")
		text := tm.text()
		i := strings.Index(text, "once-")
		if i < 0 {
			t.Fatalf("%q", text)
		}
		answer(tm, text[i+5:i+9])
		tm.wait("got ")
		cmd.Wait()
		tm.wait("got")
		return tm.text(), cmd.ProcessState.ExitCode()
	}
	text, code := ask(func(tm *terminal, word string) {
		for _, s := range []string{"\x1b]11;rgb:0000/0000/0000\x1b\\", "\x1bP1$r0m\x1b\\", "o", "r", "n", "\r", "once-\r", "run-zzzz\r"} {
			tm.master.WriteString(s)
		}
		time.Sleep(300 * time.Millisecond)
		if w.reached(askServer2+":80") != before {
			t.Error("somebody was asked who did not answer")
		}
		tm.master.WriteString("once-x\x7f" + word + "\rtyped\r")
	})
	if code != 3 || !strings.Contains(text, "hello") || !strings.Contains(text, "got typed") {
		t.Errorf("%d: %q", code, text)
	}
	text, code = ask(func(tm *terminal, word string) { tm.master.WriteString("profile-" + word + "\rno\rtyped\r") })
	if code != 3 || strings.Contains(text, "hello") || strings.Contains(text, "and adds it to") || !strings.Contains(text, "none of the answers") {
		t.Errorf("a preset: %d: %q", code, text)
	}

	// Into the profile, which a link leads to.
	const old = "extends: strict  # mine\n"
	mine, link, inside := f.path("mi\u202ene.yaml"), f.path("link.yaml"), f.ws+"/mine.yaml"
	f.write("mi\u202ene.yaml", old, 0o600)
	f.write("ws/mine.yaml", old, 0o600)
	if err := os.Symlink(mine, link); err != nil {
		t.Fatal(err)
	}
	f.own()
	holds := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(mine); string(b) != want {
			t.Errorf("%q, %v", b, err)
		}
	}
	text, code = ask(func(tm *terminal, word string) { tm.master.WriteString("profile-" + word + "\rno\rtyped\r") }, "-P", inside)
	if code != 3 || strings.Contains(text, "hello") || strings.Contains(text, "and adds it to") {
		t.Errorf("a profile that the sandbox can write: %d: %q", code, text)
	}
	for name, change := range map[string]func() error{
		"removed": func() error { return os.Rename(mine, mine+".old") },
		"a link":  func() error { return errors.Join(os.Rename(mine, mine+".old"), os.Symlink(mine+".old", mine)) },
	} {
		text, code = ask(func(tm *terminal, word string) {
			if err := change(); err != nil {
				t.Error(err)
			}
			tm.master.WriteString("profile-" + word + "\r")
			tm.wait("nothing was granted: ")
			if !within(15*time.Second, func() bool { return strings.Count(tm.text(), "sbxrun: answer: ") == 2 }) {
				t.Errorf("%s: not asked again: %q", name, tm.text())
			}
			tm.master.WriteString("no\rtyped\r")
		}, "-P", link)
		if code != 3 || strings.Contains(text, "hello") || strings.Count(text, "and adds it to") != 1 || strings.Contains(text, "\u202e") {
			t.Errorf("%s: %d: %q", name, code, text)
		}
		if err := os.Rename(mine+".old", mine); err != nil {
			t.Fatal(err)
		}
		holds(old)
	}
	text, code = ask(func(tm *terminal, word string) { tm.master.WriteString("profile-" + word + "\rtyped\r") }, "-P", link)
	if code != 3 || !strings.Contains(text, "hello") {
		t.Errorf("%d: %q", code, text)
	}
	holds(old + "\nnetwork:\n  mode: proxy\n  allow:\n    - asked2.test:80  # granted at the terminal\n")
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link: %v, %v", info, err)
	}
	if o := f.do(call{args: f.strict([]string{"-P", link}, "bash", "-c", get)}); !strings.Contains(o.stdout, "hello") {
		t.Errorf("a run with that profile: %v", o)
	}
}

// TestAskTime: no answer in time is no.
func TestAskTime(t *testing.T) {
	t.Parallel()
	a := newAsker(t, "--ask=1s")
	begin, before := time.Now(), a.reached(askServer3+":80")
	if o := a.exec("curl -sS -m 25 --noproxy '*' http://asked3.test/"); o.code == 0 || time.Since(begin) > 20*time.Second || a.reached(askServer3+":80") != before {
		a.Errorf("after %v: %v", time.Since(begin), o)
	}
}

// TestAskWhere: what cannot ask says so.
func TestAskWhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	f.own()
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"--ask", "--", "true"}, "needs one, and --tty"},
		{[]string{"-t", "--ask", "--", "true"}, "needs one, and --tty"},
		{[]string{"--ask=0s", "-t", "--", "true"}, "no time to answer in"},
		{[]string{"--ask=x", "-t", "--", "true"}, "no time to answer in"},
	} {
		if o := f.do(call{args: append(f.who.command(sbxrun, "-C", f.ws), tt.args...)}); o.code != 125 || !strings.Contains(o.stderr, tt.says) {
			f.Errorf("%q: %v", tt.args, o)
		}
	}
	s := newSession(t, whos[0])
	if o := s.cli("create", "-C", s.ws, "--ask", "5s"); o.code != 125 || !strings.Contains(o.stderr, "--ask=5s") {
		f.Errorf("a time for a name: %v", o)
	}
	for _, args := range [][]string{{"requests", s.id}, {"requests", "-f", s.id}, {"grant", s.id, "1"}, {"deny", s.id, "1"}} {
		if o := s.cli(args...); o.code != 125 || !strings.Contains(o.stderr, "asks nothing") || !strings.Contains(o.stderr, "session create --ask") {
			f.Errorf("%q: %v", args, o)
		}
	}
}
