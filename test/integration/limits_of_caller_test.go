//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestCallersLimits: limits of the caller's that are too small for sbxrun itself are
// named before anything is set up; with enough it runs (the control).
func TestCallersLimits(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		f := newFixture(t, w)
		for _, tt := range []struct {
			limit, want string
			code        int
		}{
			{"ulimit -n 12", "the limit on open files is 12", 125},
			{"ulimit -n 128", "the limit on open files is 128", 125},
			{"ulimit -v 1600000", "the limit on address space is 1600000 KiB", 125}, // Go's own runtime takes 1.3 GiB, at times more
			{"ulimit -d 80000", "the limit on data is 80000 KiB", 125},
			{"ulimit -n 192 && ulimit -v 2097152 && ulimit -d 262144", "", 0},
		} {
			o := f.do(call{args: append([]string{"sh", "-c", tt.limit + ` && exec "$@"`, "sh"}, f.strict(nil, "true")...)})
			if o.code != tt.code || !strings.Contains(o.stderr, tt.want) || tt.code != 0 && !strings.Contains(o.stderr, "hint: raise it") {
				t.Errorf("%s: %v", tt.limit, o)
			}
		}
	})
}

// TestSessionLimitBy: a session's command that came to the limit of the group which the
// session was made in is told so, by its result and by inspect; one that came to the
// session's own limit is not.
func TestSessionLimitBy(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root: to make a group with a limit")
	}
	roots, _ := cgroupRoots()
	for _, tt := range []struct{ theirs, own, want string }{
		{"60", "200", "the caller's own cgroup, whose limit of 60 is smaller than what was asked for"},
		{"200", "60", ""},
	} {
		w := whos[0]
		w.become = []string{stage}
		for _, root := range roots {
			group := fmt.Sprintf("%s/sbxrun-test-%d-by-%s", root, os.Getpid(), tt.theirs)
			if err := os.Mkdir(group, 0o755); err != nil {
				t.Fatal(err)
			}
			defer removeGroups(group)
			if err := os.WriteFile(group+"/pids.max", []byte(tt.theirs), 0); err != nil && len(roots) == 1 {
				t.Fatal(err)
			}
			w.become = append(w.become, "-cgroup", group)
		}
		w.become = append(w.become, "--")
		s := newSession(t, w, "--pids", tt.own)
		s.who.become = nil
		var said struct {
			Reason string
			PidsBy string `json:"pids_by"`
		}
		forks := "i=0; while [ $i -lt 80 ]; do sleep 600 >/dev/null 2>&1 & i=$((i+1)); done; kill $(jobs -p); exit 9"
		if o := s.exec(forks, "--json"); json.Unmarshal([]byte(o.stdout), &said) != nil || said.Reason != "pids" || said.PidsBy != tt.want {
			t.Errorf("%+v: %+v: %v", tt, said, o)
		}
		said.PidsBy = "-"
		if o := s.cli("inspect", s.id); json.Unmarshal([]byte(o.stdout), &said) != nil || strings.TrimPrefix(said.PidsBy, "-") != tt.want {
			t.Errorf("%+v: inspect says %q", tt, said.PidsBy)
		}
		s.cli("rm", "--force", s.id)
	}
}

// TestNoThreads: where the command has taken all processes that the user may have, the
// supervisor goes on: it makes calls, passes output on, and ends the opens of FIFOs,
// for which it has no threads. Root's processes are not counted.
func TestNoThreads(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		if w.uid == 0 {
			return
		}
		for _, flags := range [][]string{nil, {"--net", "proxy", "--allow-host", "example.org"}} {
			f := newFixture(t, w)
			o := f.do(call{args: append(w.command("unshare", "-U", "-c", "prlimit", "--nproc=60"), f.strict(append(flags, "--timeout", "5m"), "python3", "-c", `
import os
N = 40
kids = []
for i in range(N): os.mkfifo("fifo%d" % i)
gate, opened = os.pipe()
start, ready = os.pipe()
def child(do):
    try: p = os.fork()
    except OSError: return False
    if p == 0:
        os.close(opened)
        os.write(ready, b"x")
        try: do()
        except OSError as e: os._exit(e.errno)
        os._exit(0)
    kids.append(p)
    return True
i = 0
while i < N and child(lambda: os.open("fifo%d" % i, os.O_WRONLY)): i += 1
while child(lambda: os.read(gate, 1)): pass # until no process is left to have
for _ in kids: os.read(start, 1)
for n in range(200):
    os.write(1, b"x" * 65536)
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT))
    try: os.open(".git/config", os.O_WRONLY)
    except OSError: pass
for n in range(i): os.open("fifo%d" % n, os.O_RDONLY | os.O_NONBLOCK)
os.close(opened)
print("ends", {os.waitpid(p, 0)[1] for p in kids})
`)[len(w.become):]...)})
			if tail := o.stdout[max(0, len(o.stdout)-30):]; o.code != 0 || !strings.HasSuffix(tail, "ends {0}\n") {
				t.Errorf("%v: %d %q: %.2000s", flags, o.code, tail, o.stderr)
			}
		}
	})
}

// TestNoThreadsTerminal: the same for one that has the command's terminal to see to, which
// waits in more system calls. Go's runtime ended it in every second run.
func TestNoThreadsTerminal(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		if w.uid == 0 {
			return
		}
		f := newFixture(t, w)
		take := `import os, time
end = time.time() + 0.4
while time.time() < end:
    try:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
    except OSError: pass
os._exit(7)`
		for _, driver := range [][]string{nil, {"--driver", "landlock", "--allow-degraded", "namespaces,protect"}} {
			for range 4 {
				o := f.do(call{args: append(w.command("unshare", "-U", "-c", "prlimit", "--nproc=64", "script", "-qec"),
					quoted(f.strict(append(driver, "-t"), "python3", "-c", take)[len(w.become):]), "/dev/null")})
				if o.code != 7 || strings.Contains(o.stdout, "goroutine") {
					t.Errorf("%v: %d: %.1000s", driver, o.code, o.stdout)
				}
			}
		}
	})
}

// quoted is a command line for a shell.
func quoted(args []string) string {
	var b strings.Builder
	for _, a := range args {
		b.WriteString("'" + strings.ReplaceAll(a, "'", `'\''`) + "' ")
	}
	return b.String()
}

// TestClientNoThreads: the client of a session goes on where it gets no other thread once
// its command has begun: it collects garbage, passes signals and output on, and ends as the
// command does. Root's threads are not counted. A Go program that wants a thread in vain
// ends with 2: a race, which too few threads in reserve lose in two of a hundred rounds.
func TestClientNoThreads(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		if w.uid == 0 {
			return
		}
		s := newSession(t, w)
		for _, flags := range [][]string{nil, {"--json", "--max-output", "64k"}, {"--timeout", "2m"}} {
			args := append([]string{sbxrun, "session", "exec", "--kill-after", "5s"}, flags...)
			o := s.do(call{args: w.command(append([]string{"python3", "-c", `
import os, sys, time, subprocess, resource, signal, tempfile
for i in range(12):
    if os.path.exists("ready"): os.remove("ready")
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    p = subprocess.Popen(sys.argv[1:], stdout=out, stderr=err)
    end = time.monotonic() + 20
    while not os.path.exists("ready") and time.monotonic() < end: time.sleep(0.0002)
    resource.prlimit(p.pid, resource.RLIMIT_NPROC, (1, 1))
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        p.send_signal(signal.SIGUSR1)
        time.sleep(0.0002)
    p.send_signal(signal.SIGTERM)
    code = p.wait(60)
    err.seek(0)
    if code != 7: sys.exit("%d: %d: %s" % (i, code, err.read()[-2000:]))
print("well")
`}, append(args, s.id, "--", "/bin/bash", "-c", `trap : USR1; trap 'kill $(jobs -p); exit 7' TERM
: >ready; head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2 & while :; do wait; sleep 0.01; done`)...)...), env: []string{s.env, "GOGC=1"}})
			if o.code != 0 || o.stdout != "well\n" {
				t.Errorf("%v: %v", flags, o)
			}
		}
	})
}

// TestDirectoryGone: from a working directory that was removed, what needs none works.
func TestDirectoryGone(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		f := newFixture(t, w)
		for _, tt := range []struct {
			name string
			args []string
			code int
			want string
		}{
			{"-C", f.strict(nil, "pwd"), 0, f.ws + "\n"},
			{"session ls", w.command(sbxrun, "session", "ls"), 0, "ID"},
			{"doctor", w.command(sbxrun, "doctor"), 0, "strict runs here"},
			{"no -C", w.command(sbxrun, "--", "pwd"), 125, "the working directory is gone"},
			{"a relative path", f.strict([]string{"--ro", "x"}, "pwd"), 125, "flag --ro"},
		} {
			gone := f.path("gone")
			if err := os.MkdirAll(gone, 0o777); err != nil {
				t.Fatal(err)
			}
			c := exec.Command("sh", append([]string{"-c", `cd "$0" && rmdir "$0" && exec "$@"`, gone}, tt.args...)...)
			if w.uid != os.Getuid() {
				os.Chown(f.dir, 0, 0) // the shell is not that user, and the directory is to go all the same
			}
			c.Dir, c.Env = f.ws, f.environ()
			out, _ := c.CombinedOutput()
			if c.ProcessState.ExitCode() != tt.code || !strings.Contains(string(out), tt.want) {
				if tt.name == "doctor" && w.noCgroup != "" {
					continue // it says what is missing
				}
				t.Errorf("%s: %d: %s", tt.name, c.ProcessState.ExitCode(), out)
			}
		}
	})
}
