//go:build linux

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// caller is an agent as far as a shell sees one: it runs in the workspace, and
// starts the shell in the directory that is its first argument.
const caller = `import subprocess, sys
r = subprocess.run(sys.argv[2:], cwd=sys.argv[1]).returncode
sys.exit(r if r >= 0 else 128 - r)`

// A persona is sbxrun by the name of a shell, called by an agent.
type persona struct {
	*fixture
	bin string // has bash, sh and zsh
	env []string
}

func newPersona(t *testing.T, w who) *persona {
	t.Helper()
	f := newFixture(t, w)
	p := &persona{fixture: f, bin: f.path("bin")}
	run, tmp := f.path("run"), f.path("tmp")
	err := errors.Join(os.Mkdir(p.bin, 0o755), os.Mkdir(run, 0o700), os.Mkdir(tmp, 0o755), os.MkdirAll(f.ws+"/sub/deep", 0o755))
	for _, n := range []string{"bash", "sh", "zsh"} {
		err = errors.Join(err, os.Symlink(sbxrun, filepath.Join(p.bin, n)))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.own()
	p.env = []string{"XDG_RUNTIME_DIR=" + run, "TMPDIR=" + tmp}
	if w.noCgroup != "" {
		p.env = append(p.env, "SBXRUN_ALLOW_DEGRADED=cgroup")
	}
	if breakLayer != "" {
		p.env = append(p.env, "SBXRUN_VERIFY=false")
	}
	return p
}

// agent has the agent start a program in a directory of the workspace.
func (p *persona) agent(dir string, env []string, args ...string) *outcome {
	p.Helper()
	return p.do(call{args: p.who.command(append([]string{"/usr/bin/python3", "-c", caller, filepath.Join(p.ws, dir)}, args...)...), env: append(append([]string{}, p.env...), env...)})
}

// shell is a call of the shell.
func (p *persona) shell(env []string, args ...string) *outcome {
	p.Helper()
	return p.agent(".", env, append([]string{p.bin + "/bash"}, args...)...)
}

func eachPersona(t *testing.T, test func(p *persona)) {
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) { test(newPersona(t, w)) })
	}
}

// TestShell: what agents call a shell with does what a shell does, in a sandbox.
func TestShell(t *testing.T) {
	t.Parallel()
	eachPersona(t, func(p *persona) {
		file := p.write("ws/file.sh", "echo file $1; exit 5\n", 0o644)
		p.own()
		for _, c := range []struct {
			dir  string
			args []string
			code int
			out  string
		}{
			{".", []string{"bash", "-c", "echo $SBXRUN_SANDBOX $0 $BASH_VERSION | cut -c1-16"}, 0, "strict /bin/bash\n"},
			{".", []string{"bash", "-c", `echo "$0|$1|$2"`, "zero", "it's", "a  b\n"}, 0, "zero|it's|a  b\n\n"},
			{".", []string{"bash", "-lc", "shopt -q login_shell && exit 7"}, 7, ""},
			{".", []string{"bash", "-c", "-l", "shopt -q login_shell && exit 8"}, 8, ""},
			{".", []string{"bash", "-i", "-c", "case $- in *i*) exit 9;; esac"}, 9, ""},
			{".", []string{"bash", "-o", "pipefail", "-c", "false | true"}, 1, ""},
			{".", []string{"bash", "-ec", "false; echo no"}, 1, ""},
			{".", []string{"sh", "-c", "echo $0"}, 0, "/bin/sh\n"},
			{".", []string{"bash", file, "arg"}, 5, "file arg\n"},
			{"sub/deep", []string{"bash", "-c", "pwd; ls -d ../../sub"}, 0, p.ws + "/sub/deep\n../../sub\n"},
			{".", []string{"bash", "-c", "kill -TERM $$"}, 143, ""},
			{".", []string{"bash", "-c", "no-such-command"}, 127, ""},
			{".", []string{"bash", "-c", "/usr/share"}, 126, ""},
			{".", []string{"bash", "-c", "echo 'unbalanced"}, 2, ""},
			{".", []string{"bash", "--no-such-option"}, 2, ""},
			{".", []string{"bash", "-c"}, 2, ""},
			{".", []string{"bash", "no-such-file"}, 127, ""},
		} {
			o := p.agent(c.dir, nil, append([]string{filepath.Join(p.bin, c.args[0])}, c.args[1:]...)...)
			if o.code != c.code || o.stdout != c.out {
				t := fmt.Sprintf("want code %d and %q", c.code, c.out)
				p.Errorf("%s: %v", t, o)
			}
		}
		// A shell between the agent and this one, that stays.
		if o := p.agent("sub", nil, "/bin/sh", "-c", p.bin+"/bash -c 'pwd; ls -d ../sub'; true"); o.stdout != p.ws+"/sub\n../sub\n" {
			p.Errorf("through a shell: %v", o)
		}
		// A script on stdin.
		r, w, err := os.Pipe()
		if err != nil {
			p.Fatal(err)
		}
		fmt.Fprintln(w, "echo read; exit 4")
		w.Close()
		defer r.Close()
		o := p.do(call{args: p.who.command("/usr/bin/python3", "-c", caller, p.ws, p.bin+"/bash"), env: p.env, stdin: r})
		if o.code != 4 || o.stdout != "read\n" {
			p.Errorf("stdin: %v", o)
		}
		p.wantUnchanged()
	})
}

// TestShellInside: what runs is inside, however it is asked for.
func TestShellInside(t *testing.T) {
	t.Parallel()
	eachPersona(t, func(p *persona) {
		breach := "cat " + p.outside + "/canary " + p.home + "/notes 2>/dev/null; echo x >> " + p.outside + "/canary; touch " + p.outside + "/new; echo done"
		for _, args := range [][]string{
			{"-c", breach},
			{"-lc", breach},
			{"-c", "true", "$(" + breach + ")", "`" + breach + "`"},
			{"-c", "eval '" + strings.ReplaceAll(breach, "'", `'"'"'`) + "'"},
			{"-c", "true\n" + breach},
			{"-c", "true'; " + breach + "; echo '"},
			{"-c", `true"; ` + breach + `; echo "`},
			{"-c", breach + " #"},
			{"-c", "--", breach},
			{"--rcfile", p.ws + "/rc", "-i", "-c", breach},
			{"-c", "exec " + sbxrun + " --driver host --profile unrestricted -- sh -c '" + breach + "'"},
			{"-c", "SBXRUN_DRIVER=host " + p.bin + "/bash -c '" + breach + "'"},
		} {
			for _, env := range [][]string{nil, {"CLAUDECODE=1"}} {
				if o := p.shell(env, args...); strings.Contains(o.stdout, "canary\n") || strings.Contains(o.stdout, "private") || o.code == 125 && !strings.Contains(args[1], sbxrun) {
					p.Errorf("%v", o)
				}
			}
		}
		p.wantUnchanged()
	})
}

// TestShellFailsClosed: what cannot be understood, or is not allowed, does not run.
func TestShellFailsClosed(t *testing.T) {
	t.Parallel()
	eachPersona(t, func(p *persona) {
		script := "touch " + p.ws + "/ran"
		for _, c := range []struct {
			env  []string
			dir  string
			args []string
			says string
		}{
			{nil, ".", []string{sbxrun, "shell", "--no-such-flag", "-c", script}, "unknown flag"},
			{nil, ".", []string{sbxrun, "shell", "--profile", "no-such", "-c", script}, "no-such"},
			{nil, ".", []string{sbxrun, "shell", "--shell", "fish", "-c", script}, "fish"},
			{nil, ".", []string{sbxrun, "shell", "--session", "no-such", "-c", script}, "no such session"},
			{[]string{"SBXRUN_PROFILE=no-such"}, ".", []string{p.bin + "/bash", "-c", script}, "no-such"},
			{[]string{"SBXRUN_SHELL_SESSION=../x"}, ".", []string{p.bin + "/bash", "-c", script}, "SBXRUN_SHELL_SESSION"},
			{[]string{"SBXRUN_SHELL_WORKSPACE=/"}, ".", []string{p.bin + "/bash", "-c", script}, "cannot be the workspace"},
			{[]string{"SBXRUN_SHELL_WORKSPACE=" + p.ws + "/sub"}, ".", []string{p.bin + "/bash", "-c", script}, "not in the sandbox"},
			{nil, "../outside", []string{p.bin + "/bash", "-c", "touch ran"}, "not in the sandbox"},
			{nil, "../home", []string{p.bin + "/bash", "-c", "touch ran"}, "not in the sandbox"},
			{nil, "../../../../../..", []string{p.bin + "/bash", "-c", script}, "not in the sandbox"},
		} {
			o := p.agent(c.dir, c.env, c.args...)
			if o.code != 125 || !strings.Contains(o.stderr, c.says) || !strings.Contains(o.stderr, "sbxrun: error: ") {
				p.Errorf("want 125 and %q: %v", c.says, o)
			}
			if exists(p.ws+"/ran") || exists(p.outside+"/ran") {
				p.Fatalf("it ran: %v", o)
			}
		}
		// What a project says of itself may only tighten.
		p.write("ws/.sbxrun.yaml", "network:\n  mode: host\n", 0o644)
		if o := p.shell(nil, "-c", script); o.code != 125 || exists(p.ws+"/ran") {
			p.Errorf("a planted .sbxrun.yaml: %v", o)
		}
		os.Remove(p.ws + "/.sbxrun.yaml")

		// A project that sets variables for the agent sets these, and they count for
		// nothing where the shell was told so.
		p.write("ws/config/sbxrun/config.yaml", "profile: unrestricted\n", 0o644)
		p.own()
		read := "cat " + p.outside + "/canary; echo $SBXRUN_SANDBOX"
		for _, env := range [][]string{
			{"SBXRUN_PROFILE=unrestricted"}, {"SBXRUN_DRIVER=host", "SBXRUN_ALLOW_DEGRADED=user,pid,mount,net,ipc,uts,cgroupns,seccomp,landlock,no_new_privs,cgroup,rlimits,protect"},
			{"SBXRUN_NET=host"}, {"SBXRUN_SHELL_WORKSPACE=" + p.outside}, {"SBXRUN_SHELL_SESSION=mine"},
		} {
			args := append([]string{sbxrun, "shell", "--ignore-env", "--profile", "strict"}, p.who.flags()...)
			for i, a := range args {
				if strings.HasPrefix(a, "--verify") { // not a flag of a shell
					args = append(args[:i], args[i+1:]...)
					break
				}
			}
			if o := p.agent(".", env, append(args, "--", "-c", read)...); o.stdout != "strict\n" {
				p.Errorf("%v: %v", env, o)
			}
		}
		p.wantUnchanged()
	})
}

// TestShellEnvironment: what an agent has for itself, and what would run code in a
// shell, does not get in.
func TestShellEnvironment(t *testing.T) {
	eachPersona(t, func(p *persona) {
		evil := p.write("ws/evil.sh", "echo evil; echo evil >> "+p.outside+"/canary\n", 0o755)
		p.write("ws/bin/bash", "#!/bin/sh\necho planted\n", 0o755)
		p.write("ws/bin/ls", "#!/bin/sh\necho own ls\n", 0o755)
		p.own()
		secrets := []string{"ANTHROPIC_API_KEY=sk-ant-canary", "ANTHROPIC_AUTH_TOKEN=sk-ant-canary", "OPENAI_API_KEY=sk-canary", "GEMINI_API_KEY=sk-canary", "CLAUDE_CODE_MESSAGING_TOKEN=sk-canary",
			"CLAUDE_CODE_MESSAGING_SOCKET=/tmp/sk-canary.sock", "CLAUDE_CODE_OAUTH_TOKEN=sk-canary", "AWS_SECRET_ACCESS_KEY=sk-canary", "GITHUB_TOKEN=sk-canary", "AI_AGENT=sk-canary/1"}
		smuggled := []string{"BASH_ENV=" + evil, "ENV=" + evil, "LD_PRELOAD=" + evil, "LD_AUDIT=" + evil, "PROMPT_COMMAND=" + evil, "PS4=$(" + evil + ")", "SHELLOPTS=xtrace", "ZDOTDIR=" + p.ws,
			"BASH_FUNC_true%%=() { " + evil + "; }", "GIT_SSH_COMMAND=" + evil, "EDITOR=" + evil, "SBXRUN_SANDBOX=1"}
		o := p.shell(append(append([]string{"CLAUDECODE=1", "GIT_EDITOR=true", "PATH=" + p.ws + "/bin:" + p.bin + ":/usr/bin:/bin"}, secrets...), smuggled...),
			"-c", "true; env; ls; tr '\\0' '\\n' < /proc/1/environ; cat /proc/*/environ; exit 3")
		if strings.Contains(o.stdout+o.stderr, "sk-") || strings.Contains(o.stdout, "evil") || strings.Contains(o.stdout, "planted") || o.code != 3 {
			p.Errorf("%v", o)
		}
		for _, want := range []string{"CLAUDECODE=1\n", "GIT_EDITOR=true\n", "SBXRUN_SANDBOX=strict\n", "PATH=" + p.ws + "/bin:/usr/bin:/bin\n", "own ls\n"} {
			if !strings.Contains(o.stdout, want) {
				p.Errorf("no %q: %v", want, o)
			}
		}
		p.wantUnchanged()
	})
}

// claudes is a script as Claude Code 2.1 writes it.
func (p *persona) claudes(snapshot, cwd, command string) string {
	q := `'` + strings.ReplaceAll(command, `'`, `'"'"'`) + `'`
	return `source ` + snapshot + ` 2>/dev/null || true && { \builtin shopt -u extglob || \builtin setopt NO_EXTENDED_GLOB; } >/dev/null 2>&1 || true && eval ` + q + ` < /dev/null && pwd -P >| ` + cwd
}

// TestShellClaude: a script of Claude Code's has its snapshot, and tells where it
// ended; neither file can be made to be another.
func TestShellClaude(t *testing.T) {
	t.Parallel()
	eachPersona(t, func(p *persona) {
		snapshot := p.write("home/.claude/shell-snapshots/snapshot-bash-1795272789884-ino38t.sh", "greet() { echo \"hello $1\"; }\nalias g=greet\nshopt -s expand_aliases\n", 0o644)
		p.write("home/.claude/.credentials.json", "a secret\n", 0o600)
		p.own()
		p.before = p.snapshot()
		cwd := p.path("tmp/claude-a9bb-cwd")
		env := []string{"CLAUDECODE=1"}
		told := func() string { b, _ := os.ReadFile(cwd); os.Remove(cwd); return string(b) }
		run := func(command string) *outcome {
			p.Helper()
			return p.shell(env, "-c", p.claudes(snapshot, cwd, command))
		}

		if o := run("greet you; g 2; cd sub/deep"); o.stdout != "hello you\nhello 2\n" || o.code != 0 || o.stderr != "" {
			p.Errorf("%v", o)
		}
		if got := told(); got != p.ws+"/sub/deep\n" {
			p.Errorf("told %q", got)
		}
		if o := run("cd sub; false"); o.code != 1 || exists(cwd) {
			p.Errorf("after a failure: %v", o)
		}
		if o := run("cd sub; exit 3"); o.code != 3 || exists(cwd) {
			p.Errorf("after exit: %v", o)
		}
		if o := p.shell(nil, "-c", p.claudes(snapshot, cwd, "cd sub")); exists(cwd) {
			p.Errorf("another agent's: %v", o)
		}
		// The files themselves are not in there, nor what lies beside them.
		if o := run("cat " + snapshot + " " + p.home + "/.claude/.credentials.json; ls " + filepath.Dir(cwd) + "; echo $?"); strings.Contains(o.stdout, "greet") || strings.Contains(o.stdout, "secret") || strings.Contains(o.stdout, "claude-") {
			p.Errorf("%v", o)
		}
		told()
		// What is told comes from the sandbox.
		for _, lie := range []string{
			"echo " + p.outside + " >&187; exec true", "printf '/etc\\nx' >&187; exec true", "echo relative >&187; exec true", "echo " + p.ws + "/../outside >&187; exec true",
			"ln -s " + p.outside + " link; echo " + p.ws + "/link >&187; exec true", "head -c 200000 /dev/zero >&187 & sleep 0.2; exec true",
			"echo " + p.home + " >&187; kill -9 $$",
			"pwd() { echo " + p.outside + "; }",
			"mkdir -p /tmp/own; cd /tmp/own",
		} {
			if o := run(lie); exists(cwd) {
				p.Errorf("told %q: %v", told(), o)
			}
		}
		// A process that stays holds no one up, and keeps the descriptor open.
		if o := run("sleep 50 & cd sub"); o.took > 30*time.Second || told() != p.ws+"/sub\n" {
			p.Errorf("%v", o)
		}
		// The host's file is not what it was taken for.
		victim := p.outside + "/victim"
		if err := os.Symlink(victim, cwd); err != nil {
			p.Fatal(err)
		}
		if o := run("cd sub"); o.code != 0 || !strings.Contains(o.stderr, "does not start in") {
			p.Errorf("a symbolic link: %v", o)
		}
		os.Remove(cwd)
		if err := os.Link(victim, cwd); err != nil {
			p.Fatal(err)
		}
		if o := run("cd sub"); o.code != 0 || !strings.Contains(o.stderr, "does not start in") {
			p.Errorf("a hard link: %v", o)
		}
		os.Remove(cwd)
		if err := syscall.Mkfifo(cwd, 0o666); err != nil {
			p.Fatal(err)
		}
		if o := run("cd sub"); o.code != 0 || !strings.Contains(o.stderr, "does not start in") {
			p.Errorf("a fifo: %v", o)
		}
		os.Remove(cwd)
		// A snapshot that is a link to something else is none.
		link := p.home + "/.claude/shell-snapshots/snapshot-bash-1-b.sh"
		if err := os.Symlink(p.home+"/notes", link); err != nil {
			p.Fatal(err)
		}
		if o := p.shell(env, "-c", p.claudes(link, cwd, "cat <&188; cat /dev/fd/3 /dev/fd/4; true")); strings.Contains(o.stdout, "private") || o.code != 0 {
			p.Errorf("%v", o)
		}
		os.Remove(link)
		for _, d := range p.changed() {
			if !strings.Contains(d, "shell-snapshots: was") { // where the link was
				p.Errorf("the host changed: %s", d)
			}
		}
	})
}

// TestShellSession: the commands of one agent share a sandbox for as long as the
// agent lives.
func TestShellSession(t *testing.T) {
	eachPersona(t, func(p *persona) {
		const agent = `import subprocess, sys, os
from concurrent.futures import ThreadPoolExecutor
sh = [sys.argv[1], "-c"]
def run(script, cwd="."):
    r = subprocess.run(sh + [script], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return (r.stdout + " " + str(r.returncode)).strip()
with ThreadPoolExecutor(8) as e:
    print(sorted(set(e.map(lambda i: run("readlink /proc/self/ns/pid; exit 3"), range(8)))).__len__(), flush=True)
print(run("sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid; exit 4"), flush=True)
print(run("kill -0 $(cat /tmp/pid); exit $?"), flush=True)
print(run("pwd", cwd="sub"), flush=True)
print(run("cat /proc/1/cmdline", cwd="/usr"), flush=True)
`
		env := append([]string{"SBXRUN_SHELL_SESSION=auto"}, p.env...)
		o := p.do(call{args: p.who.command("/usr/bin/python3", "-c", agent, p.bin+"/bash"), env: env})
		lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
		if len(lines) < 4 || lines[0] != "1" || lines[1] != "4" || lines[2] != "0" || lines[3] != p.ws+"/sub" {
			p.Fatalf("%v", o)
		}
		// The agent has ended, and so has its session, with what ran in it and its record.
		var states []string
		gone := within(20*time.Second, func() bool {
			o := p.do(call{args: p.who.command(sbxrun, "session", "ls", "--json"), env: p.env})
			var list []struct{ ID, State string }
			if err := json.Unmarshal([]byte(o.stdout), &list); err != nil {
				p.Fatal(err)
			}
			states = nil
			for _, s := range list {
				states = append(states, s.ID+" "+s.State)
			}
			return len(list) == 0
		})
		if !gone {
			p.Errorf("sessions: %q", states)
		}
		p.do(call{args: p.who.command(sbxrun, "prune"), env: p.env})
		p.wantUnchanged()
	})
}

// TestShellSessionRefused: in a session too, the command to which a host or a path was
// refused says so, each time, and no other does.
func TestShellSessionRefused(t *testing.T) {
	eachPersona(t, func(p *persona) {
		const agent = `import subprocess, sys
for script in ["exec 5<>/dev/tcp/denied.test/80", "true", "exec 5<>/dev/tcp/denied.test/80; echo > .mcp.json"]:
    r = subprocess.run([sys.argv[1], "shell", "--session", "auto", "--allow-host", "allowed.test", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("%r" % r.stdout, flush=True)
`
		o := p.do(call{args: p.who.command("/usr/bin/python3", "-c", agent, sbxrun), env: p.env})
		lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
		if len(lines) != 3 || lines[1] != "''" || !strings.Contains(lines[2], "protected path .mcp.json") {
			p.Fatalf("%v", o)
		}
		for _, line := range []string{lines[0], lines[2]} {
			if !strings.Contains(line, "network: no rule allows denied.test") || !strings.Contains(line, "--allow-host denied.test") {
				p.Errorf("the refusal is not told: %s", line)
			}
		}
		p.do(call{args: p.who.command(sbxrun, "prune"), env: p.env})
	})
}

// TestShellSessionAnew: an agent's session has the policy of the files as they are
// now as soon as nothing is left running in it, and not before; a profile that is
// broken changes nothing, and its commands cannot write one that they run under.
func TestShellSessionAnew(t *testing.T) {
	t.Parallel()
	eachPersona(t, func(p *persona) {
		const agent = `import subprocess, sys, os, time
sh, config = sys.argv[1], sys.argv[2]
def run(script, *flags):
    r = subprocess.run([sh, "shell", "--session", "auto", *flags, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("%r %d" % (r.stdout, r.returncode), flush=True)
def write(name, text):
    with open(name + ".new", "w") as f: f.write(text)
    os.rename(name + ".new", name)
run("ls -d /usr/share/doc; sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/pid")
write(config + "/config.yaml", "files:\n  hide: [/usr/share]\n")
run("ls -d /usr/share/doc; kill -0 $(cat /tmp/pid)")
run("kill -9 $(cat /tmp/pid); while kill -0 $(cat /tmp/pid) 2>/dev/null; do sleep 0.1; done")
run("ls -d /usr/share/doc /tmp/pid 2>/dev/null")
run("touch /tmp/stays; ls -d /usr/share/doc 2>/dev/null")
run("ls /tmp/stays")
mine = ["--profile", config + "/mine.yaml"]
write(config + "/mine.yaml", "extends: strict\n")
run("touch /tmp/stays", *mine)
write(config + "/mine.yaml", "extends: nonsense\n")
run("ls /tmp/stays", *mine)
mine = ["--profile", "./mine.yaml"]
write("mine.yaml", "extends: strict\n")
run("touch /tmp/stays", *mine)
run("echo 'network: {mode: host}' >mine.yaml; ls /tmp/stays", *mine)
run("ls /tmp/stays", *mine)
os.remove("mine.yaml")
`
		config := p.home + "/.config/sbxrun"
		if err := os.MkdirAll(config, 0o755); err != nil {
			p.Fatal(err)
		}
		p.own()
		o := p.do(call{args: p.who.command("/usr/bin/python3", "-c", agent, sbxrun, config), env: p.env})
		lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
		want := []string{`'/usr/share/doc\n' 0`, `'/usr/share/doc\n' 0`, `'' 0`, "the configuration has changed", `'' 2`, `'/tmp/stays\n' 0`, `'' 0`, `/tmp/stays\n' 0`, `'' 0`, `mine.yaml: Permission denied\n/tmp/stays\n' 0`, `'/tmp/stays\n' 0`}
		if len(lines) != len(want) {
			p.Fatalf("%v", o)
		}
		for i := range want {
			if !strings.Contains(lines[i], want[i]) {
				p.Errorf("command %d: want %s: %s", i+1, want[i], lines[i])
			}
		}
		if !strings.Contains(lines[7], "the configuration stays as it was") {
			p.Errorf("a broken profile is not told: %s", lines[7])
		}
		p.do(call{args: p.who.command(sbxrun, "prune"), env: p.env})
	})
}

// TestShellSessionAnewAtOnce: of calls that an agent makes at the same time after the
// configuration has changed, each runs, all in the session that is new.
func TestShellSessionAnewAtOnce(t *testing.T) {
	t.Parallel()
	eachPersona(t, func(p *persona) {
		const agent = `import subprocess, sys, os
from concurrent.futures import ThreadPoolExecutor
sh, config = sys.argv[1], sys.argv[2]
def run(script):
    r = subprocess.run([sh, "shell", "--quiet", "--session", "auto", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return (r.stdout + " " + str(r.returncode)).strip()
with ThreadPoolExecutor(8) as e:
    for i in range(12):
        with open(config + "/config.yaml.new", "w") as f: f.write("# %d\naudit:\n  keep: 5\n" % i)
        os.rename(config + "/config.yaml.new", config + "/config.yaml")
        print(sorted(set(e.map(lambda n: run("cat /tmp/round 2>/dev/null || true; echo ran"), range(8)))), flush=True)
        print(run("echo %d >/tmp/round" % i), flush=True)
`
		config := p.home + "/.config/sbxrun"
		if err := os.MkdirAll(config, 0o755); err != nil {
			p.Fatal(err)
		}
		p.own()
		o := p.do(call{args: p.who.command("/usr/bin/python3", "-c", agent, sbxrun, config), env: p.env})
		if want := strings.Repeat(`['ran\n 0']`+"\n0\n", 12); o.stdout != want {
			p.Errorf("%v", o)
		}
		p.do(call{args: p.who.command(sbxrun, "prune"), env: p.env})
	})
}

// TestSignalEndsAll: a signal that ends a command of a session ends what that started, and
// one that does not leaves it.
func TestSignalEndsAll(t *testing.T) {
	eachPersona(t, func(p *persona) {
		if p.who.noCgroup != "" {
			p.Skip("a command without a cgroup ends alone: " + p.who.noCgroup)
		}
		const agent = `import subprocess, sys, signal, time
def run(*args): return subprocess.run(["sbxrun-test", *args], executable=sys.argv[1], stdout=subprocess.PIPE, text=True)
def alive(): return run("session", "exec", "s", "--", "sh", "-c", "kill -0 $(cat /tmp/pid) && echo alive || echo gone").stdout.strip()
run("session", "create", "s")
for how, script in [
    ("TERM", "sleep 976 & echo $! >/tmp/pid; echo begun; sleep 976"),
    ("TERM", "trap 'exit 7' TERM; sleep 976 & echo $! >/tmp/pid; echo begun; wait"),
    ("HUP", "sleep 976 & echo $! >/tmp/pid; echo begun; sleep 976"),
    ("INT", "trap 'exit 130' INT; sleep 976 & echo $! >/tmp/pid; echo begun; wait"),
    ("HUP", "trap 'exit 0' HUP; sleep 976 >/dev/null & echo $! >/tmp/pid; echo begun; wait"),
    ("", "sleep 976 >/dev/null & echo $! >/tmp/pid; echo begun"),
]:
    c = subprocess.Popen([sys.argv[1], "session", "exec", "s", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    c.stdout.readline()
    if how: c.send_signal(getattr(signal, "SIG" + how))
    c.stdout.read()
    print(how, c.wait(), alive(), flush=True)
run("session", "stop", "-t", "0s", "s"); run("session", "rm", "s")
`
		o := p.do(call{args: p.who.command("/usr/bin/python3", "-c", agent, sbxrun), env: p.env})
		want := "TERM 143 gone\nTERM 7 gone\nHUP 129 gone\nINT 130 gone\nHUP 0 alive\n 0 alive\n"
		if o.stdout != want {
			p.Errorf("want %q: %v", want, o)
		}
	})
}

// TestShellSessionOthers: a directory that has the workspace's name by now, and another
// home, with a configuration of its own, have another session.
func TestShellSessionOthers(t *testing.T) {
	eachPersona(t, func(p *persona) {
		const agent = `import subprocess, sys, os
def run(script, **env):
    r = subprocess.run([sys.argv[1], "shell", "--session", "auto", "-c", script], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("%r %d" % (r.stdout, r.returncode), flush=True)
os.mkdir("a"); os.chdir("a")
run("touch /tmp/first; touch one")
run("ls /tmp/first")
os.rename("../a", "../b"); os.mkdir("../a"); os.chdir("../a")
run("ls /tmp/first 2>/dev/null; touch two")
print(os.listdir("../a"), os.listdir("../b"), flush=True)
run("ls -d /usr/share/doc 2>/dev/null", HOME=sys.argv[2])
run("ls -d /usr/share/doc")
`
		other := p.write("other/.config/sbxrun/config.yaml", "files:\n  hide: [/usr/share]\n", 0o600)
		p.own()
		home := filepath.Dir(filepath.Dir(filepath.Dir(other)))
		o := p.do(call{args: p.who.command("/usr/bin/python3", "-c", agent, sbxrun, home), env: p.env})
		want := "'' 0\n'/tmp/first\\n' 0\n'' 0\n['two'] ['one']\n'' 2\n'/usr/share/doc\\n' 0\n"
		if o.stdout != want {
			p.Errorf("want %s: %v", want, o)
		}
		p.do(call{args: p.who.command(sbxrun, "prune"), env: p.env})
	})
}

// TestShellEnd: a shell's end, however it comes, is the end of what it ran.
func TestShellEnd(t *testing.T) {
	eachPersona(t, func(p *persona) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			mark := p.ws + "/" + p.unique("mark")
			script := "trap '' TERM; (setsid sleep 987 &) ; touch " + mark + "; sleep 987; sleep 987"
			args := p.who.command("/usr/bin/python3", "-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])", p.bin+"/bash", "-c", script)
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Dir, cmd.Env = p.ws, p.environ(append(p.env, "SBXRUN_SHELL_WORKSPACE="+p.ws, "SBXRUN_KILL_AFTER=200ms")...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := cmd.Start(); err != nil {
				p.Fatal(err)
			}
			if !within(20*time.Second, func() bool { return exists(mark) }) {
				p.Error("it does not run")
			}
			// As Claude Code does: the group, and what does not heed it 60 ms later.
			syscall.Kill(-cmd.Process.Pid, sig)
			time.Sleep(60 * time.Millisecond)
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			cmd.Wait()
			os.Remove(mark)
			if !within(10*time.Second, func() bool { return len(processes(mark)) == 0 }) {
				p.Errorf("%v: left: %q", sig, processes(mark))
			}
		}
		p.wantUnchanged()
	})
}

// TestPipeOnce: a wrong file of variables that is a pipe ends the command line. It can be
// read once: who parses again finds nothing wrong.
func TestPipeOnce(t *testing.T) {
	s := newSession(t, whos[0])
	for _, args := range [][]string{{"shell", "--env-file", "/dev/fd/3", "-c", "echo ran"}, {"session", "exec", "--env-file", "/dev/fd/3", s.id, "echo", "ran"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.WriteString("A B=c\n")
		w.Close()
		o := s.do(call{args: s.who.command(append([]string{sbxrun}, args...)...), env: []string{s.env}, extra: []*os.File{r}})
		if r.Close(); o.code != 125 || o.stdout != "" || !strings.Contains(o.stderr, `"A B=c" is not a variable`) {
			t.Errorf("%v: %v", args, o)
		}
	}
}
