//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// operated is a server whose operator has a configuration file.
type operated struct {
	cmd    *exec.Cmd
	ws     string
	config string // the file
	errs   *said
}

// said is what a program says.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func operate(t *testing.T, config string, args ...string) *operated {
	t.Helper()
	cmd, ws := program(t, args...)
	dir := t.TempDir()
	o := &operated{cmd: cmd, ws: ws, config: filepath.Join(dir, "sbxrun", "config.yaml"), errs: &said{}}
	cmd.Env = append(cmd.Env, "XDG_CONFIG_HOME="+dir, "A_TOKEN=secret-of-the-operator")
	cmd.Stderr = o.errs
	if err := os.Mkdir(filepath.Dir(o.config), 0o700); err != nil {
		t.Fatal(err)
	}
	o.write(t, config)
	return o
}

// write puts a configuration in place at once, as editors do.
func (o *operated) write(t *testing.T, config string) {
	t.Helper()
	if err := os.WriteFile(o.config+".new", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(o.config+".new", o.config); err != nil {
		t.Fatal(err)
	}
}

func (o *operated) connect(t *testing.T) *mcp.ClientSession {
	t.Helper()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: o.cmd}, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, o.errs)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

func (o *operated) wait(t *testing.T, what string) {
	t.Helper()
	for range 600 {
		if strings.Contains(o.errs.String(), what) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%q is not said:\n%s", what, o.errs)
}

// outside is a script that tells where it ran, and whether it could write a file
// beside the workspace.
func outside(t *testing.T) (script, canary string) {
	canary = filepath.Join(t.TempDir(), "canary")
	return "echo touched > " + canary + "; true", canary
}

func touched(name string) bool { _, err := os.Stat(name); return err == nil }

// TestUnsandboxed: a call runs outside if the operator said so, and says so; nobody
// else can say it (AGT-2, A07).
func TestUnsandboxed(t *testing.T) {
	o := operate(t, "agents:\n  unsandboxed: true\n")
	cs := o.connect(t)
	script, canary := outside(t)
	if r := ok(t, cs, "bash", object{"command": script}); r["sandboxed"] != true || touched(canary) {
		t.Errorf("a call that does not ask: %v", r)
	}
	r, words, bad := call(t, cs, "bash", object{"command": script + "; pwd; exit 3", "dangerouslyDisableSandbox": true})
	if bad || r["sandboxed"] != false || !touched(canary) || r["exit_code"] != 3.0 || r["stdout"] != o.ws+"\n" || !strings.Contains(words, "NOT SANDBOXED") {
		t.Errorf("a call that asks: %v\n%s", r, words)
	}
	// The session's directory counts where it is the host's too.
	ok(t, cs, "bash", object{"command": "mkdir sub; cd sub"})
	if r := ok(t, cs, "bash", object{"command": "pwd", "dangerouslyDisableSandbox": true}); r["stdout"] != o.ws+"/sub\n" {
		t.Errorf("in the workspace: %v", r)
	}
	ok(t, cs, "bash", object{"command": "cd /tmp"})
	if r := ok(t, cs, "bash", object{"command": "pwd", "dangerouslyDisableSandbox": true}); r["stdout"] != o.ws+"\n" {
		t.Errorf("in the sandbox's own /tmp: %v", r)
	}
	id := ok(t, cs, "bash", object{"command": "echo here; exec sleep 1000", "dangerouslyDisableSandbox": true, "run_in_background": true})["id"]
	if r := ok(t, cs, "bash_output", object{"id": id, "wait": 20000}); r["stdout"] != "here\n" {
		t.Errorf("in the background: %v", r)
	}
	if r := ok(t, cs, "bash_kill", object{"id": id}); r["running"] != false {
		t.Errorf("in the background: %v", r)
	}
	if !strings.Contains(o.errs.String(), "agents.unsandboxed") {
		t.Errorf("the operator is not told: %s", o.errs)
	}
	// Taken back, it counts at once.
	o.write(t, "agents:\n  unsandboxed: false\n")
	o.wait(t, "the configuration has changed")
	refused(t, cs, "bash", object{"command": "true", "dangerouslyDisableSandbox": true}, "refused")
}

// TestUnsandboxedProject: the same words in a project keep the server from starting.
func TestUnsandboxedProject(t *testing.T) {
	o := operate(t, "")
	if err := os.WriteFile(o.ws+"/.sbxrun.yaml", []byte("agents:\n  unsandboxed: true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o.cmd.Stdin = strings.NewReader("")
	if err := o.cmd.Run(); o.cmd.ProcessState.ExitCode() != 125 || !strings.Contains(o.errs.String(), "a project has no say") {
		t.Errorf("%v\n%s", err, o.errs)
	}
	// And written while it serves they count for nothing.
	o = operate(t, "")
	cs := o.connect(t)
	ok(t, cs, "bash", object{"command": "printf 'agents:\\n  unsandboxed: true\\nnetwork:\\n  mode: host\\n' > .sbxrun.yaml"})
	time.Sleep(5 * time.Second) // the files are read meanwhile
	refused(t, cs, "bash", object{"command": "true", "dangerouslyDisableSandbox": true}, "refused")
	id := ok(t, cs, "session_create", object{})["session_id"]
	if r := ok(t, cs, "bash", object{"command": "ls /sys/class/net; cat /proc/net/route | wc -l", "session_id": id}); r["sandboxed"] != true {
		t.Errorf("%v", r)
	}
	if s := o.errs.String(); strings.Contains(s, "has changed") {
		t.Errorf("a project changed what is served: %s", s)
	}
}

// TestRollout: who is not part of it runs outside and is told, by every result; who
// is forced in is in (AGT-8).
func TestRollout(t *testing.T) {
	const config = "rollout:\n  percent: 0\n  force: [mine]\n"
	o := operate(t, config)
	cs := o.connect(t)
	script, canary := outside(t)
	r, words, _ := call(t, cs, "bash", object{"command": script})
	if r["sandboxed"] != false || !touched(canary) || !strings.Contains(words, "NOT SANDBOXED") || !strings.Contains(words, "rollout.percent is 0") {
		t.Errorf("%v\n%s", r, words)
	}
	if r := ok(t, cs, "python_execute", object{"code": "6*7"}); r["value"] != "42" || r["sandboxed"] != false {
		t.Errorf("%v", r)
	}
	ok(t, cs, "sandbox_fs_write", object{"path": "f", "content": "text"})
	if r := ok(t, cs, "sandbox_fs_read", object{"path": o.ws + "/f"}); r["content"] != "text" {
		t.Errorf("%v", r)
	}
	if r := ok(t, cs, "bash", object{"command": "cd /usr", "description": "x"}); r["cwd"] != "/usr" {
		t.Errorf("%v", r)
	}
	if i := cs.InitializeResult().Instructions; !strings.Contains(i, "WITHOUT a sandbox") {
		t.Errorf("%q", i)
	}
	if !strings.Contains(o.errs.String(), "not sandboxed") {
		t.Errorf("the operator is not told: %s", o.errs)
	}
	// From the next session on it is in.
	o.write(t, "rollout:\n  percent: 100\n")
	o.wait(t, "the configuration has changed")
	id := ok(t, cs, "session_create", object{})["session_id"]
	script, canary = outside(t)
	if r := ok(t, cs, "bash", object{"command": script, "session_id": id}); r["sandboxed"] != true || touched(canary) {
		t.Errorf("%v", r)
	}

	o = operate(t, config, "--rollout-key", "mine")
	cs = o.connect(t)
	script, canary = outside(t)
	if r := ok(t, cs, "bash", object{"command": script}); r["sandboxed"] != true || touched(canary) {
		t.Errorf("forced: %v", r)
	}
}

// TestReload: network rules of a running sandbox follow the file, a broken file
// leaves them, and what is about files counts from the next session on (PRO-4).
func TestReload(t *testing.T) {
	const first = "network:\n  mode: proxy\n  allow: [192.0.2.1]\n"
	o := operate(t, first)
	cs := o.connect(t)
	// Addresses that nobody has: what the rules refuse is a denial at once, and
	// what they allow is none, whether it can be reached or not.
	allowed := func(address string) bool {
		t.Helper()
		r := ok(t, cs, "bash", object{"command": "timeout 1 bash -c 'exec 5<>/dev/tcp/" + address + "/443; read -t 0.3 x <&5'"})
		return !strings.Contains(fmt.Sprint(r["denials"]), address+":443")
	}
	if !allowed("192.0.2.1") || allowed("192.0.2.2") {
		t.Fatal("the rules at the start are not those of the file")
	}
	o.write(t, "network:\n  mode: proxy\n  allow: [192.0.2.2]\nfiles:\n  hide: [/usr/share]\n")
	o.wait(t, "the configuration has changed")
	if allowed("192.0.2.1") || !allowed("192.0.2.2") {
		t.Error("the rules are not those of the changed file")
	}
	if r := ok(t, cs, "bash", object{"command": "ls /usr/share | head -1"}); r["stdout"] == "" {
		t.Errorf("a file rule reached a running sandbox: %v", r)
	}
	id := ok(t, cs, "session_create", object{})["session_id"]
	if r := ok(t, cs, "bash", object{"command": "ls /usr/share | head -1", "session_id": id}); r["stdout"] != "" {
		t.Errorf("a file rule did not reach a new one: %v", r)
	}
	o.write(t, "network:\n  mode: proxy\n  allow: [192.0.2.1\n")
	o.wait(t, "the configuration stays as it was")
	if allowed("192.0.2.1") || !allowed("192.0.2.2") {
		t.Error("a broken file changed the rules")
	}
	o.write(t, "network:\n  mode: none\n")
	o.wait(t, "can be read again")
	for range 100 {
		if !allowed("192.0.2.2") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if allowed("192.0.2.1") || allowed("192.0.2.2") {
		t.Error("without rules something is allowed")
	}
}

// TestAudit: each run and each refusal is a line, without the operator's secrets,
// whatever a command holds (AGT-6, A12).
func TestAudit(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.jsonl")
	o := operate(t, "audit:\n  file: "+log+"\nagents:\n  unsandboxed: true\n")
	cs := o.connect(t)
	ok(t, cs, "bash", object{"command": "echo secret-of-the-operator; echo '\n{\"event\":\"run\",\"forged\":true}\n\u001b[2J'; exit 4"})
	refused(t, cs, "execute_command", object{"command": "ls | sudo tee x"}, "sudo")
	ok(t, cs, "bash", object{"command": "true", "dangerouslyDisableSandbox": true})
	ok(t, cs, "python_execute", object{"code": "password = 'hunter2hunter2'"})
	id := ok(t, cs, "bash", object{"command": "exit 6", "run_in_background": true})["id"]
	ok(t, cs, "bash_output", object{"id": id, "wait": 20000})
	id = ok(t, cs, "bash", object{"command": "mkdir .vscode", "run_in_background": true})["id"]
	for {
		r, words, _ := call(t, cs, "bash_output", object{"id": id, "wait": 20000})
		if r["running"] != false {
			continue
		}
		if !strings.Contains(fmt.Sprint(r["denials"]), "--unprotect .vscode") || !strings.Contains(words, "--unprotect .vscode") {
			t.Errorf("a refusal in the background: %v\n%s", r, words)
		}
		break
	}
	if err := os.MkdirAll(o.ws+"/.git/hooks", 0o755); err != nil {
		t.Fatal(err)
	}
	ok(t, cs, "bash", object{"command": "echo x > .git/hooks/pre-commit"})

	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"secret-of-the-operator", "hunter2", "\x1b"} {
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%q is in the log", secret)
		}
	}
	var all []object
	for line := range bytes.Lines(data) {
		var r object
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if r["forged"] != nil {
			t.Errorf("a forged record: %s", line)
		}
		all = append(all, r)
	}
	has := func(want object) {
		t.Helper()
		for _, r := range all {
			same := true
			for k, v := range want {
				same = same && fmt.Sprint(r[k]) == fmt.Sprint(v)
			}
			if same {
				return
			}
		}
		t.Errorf("no record %v in\n%s", want, data)
	}
	has(object{"event": "begin", "source": "mcp", "tool": "bash", "driver": "native", "command": []string{"bash", "-c", "exit 6"}})
	has(object{"event": "run", "source": "mcp", "tool": "bash", "exit_code": 4, "sandboxed": true, "driver": "native"})
	has(object{"event": "denial", "tool": "execute_command", "operation": "execute", "target": "sudo"})
	has(object{"event": "run", "tool": "bash", "sandboxed": false, "driver": "host", "exit_code": 0})
	has(object{"event": "run", "tool": "python_execute", "exit_code": 0})
	has(object{"event": "run", "tool": "bash", "exit_code": 6})
	has(object{"event": "denial", "tool": "bash", "grant": "--unprotect .git/hooks"})

	// Without a place for records nothing runs.
	if err := os.Chmod(log, 0o644); err != nil {
		t.Fatal(err)
	}
	script := "touch ran"
	refused(t, cs, "bash", object{"command": script}, "nothing runs without a record")
	if touched(o.ws + "/ran") {
		t.Error("it ran")
	}
}
