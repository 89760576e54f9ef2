//go:build linux

package integration

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plant writes what a later run would obey below a home, and moves away what keeps
// it from that. It prints what came of it.
const plant = `H=$1
w() { mkdir -p "${1%/*}"; echo planted >"$1" && echo "wrote ${1#$H/}"; }
for f in .config/sbxrun/config.yaml .config/sbxrun/trusted .local/state/sbxrun/changes/x .cache/sbxrun/verified-x .local/share/sbxrun/agents/bash .local/bin/bwrap; do w $H/$f; done
for d in .config .config/sbxrun .local .local/state .local/state/sbxrun .local/share .local/bin .cache; do mv $H/$d $H/$d.moved && echo "moved $d"; rm -rf $H/$d; done
w $H/.config/sbxrun/config.yaml
rm -rf $H/.local; ln -sT /tmp $H/.local && echo linked
echo ok >$H/neighbour && echo ok >$H/.config/neighbour && echo granted
`

// grantDrivers are those under which a grant of the home can be kept, with the layers
// that they go without.
var grantDrivers = map[string][]string{
	"native": nil,
	"bwrap":  {"--driver", "bwrap", "--allow-degraded", "landlock,protect,cgroup"},
	"runc":   {"--driver", "runc", "--allow-degraded", "landlock,protect,cgroup"},
	"gvisor": {"--driver", "gvisor", "--allow-degraded", "landlock,protect,cgroup,seccomp"},
}

// f25 is F25: with the home granted, a command makes the configuration, the state
// and the programs of later runs, and exchanges the directories that lead there.
func f25(f *fixture) {
	script := f.write("ws/plant", plant, 0o755)
	f.own()
	planted := func(home string) (found []string) {
		filepath.WalkDir(home, func(name string, d fs.DirEntry, err error) error {
			if b, rerr := os.ReadFile(name); err == nil && rerr == nil && strings.Contains(string(b), "planted") {
				found = append(found, name)
			}
			return nil
		})
		return found
	}
	env := []string{"XDG_CACHE_HOME="}
	for name, flags := range grantDrivers {
		f.step(name, func() {
			if name != "native" && f.who.name != "root" && isRoot() {
				return // as root they need no set-up of their own
			}
			// The file of an earlier grant is not in the way of the next.
			home := f.write(name+"/home/file", "", 0o644)
			home = filepath.Dir(home)
			f.own()
			args := append(append([]string{"--rw", home}, flags...), "--verify=false")
			o := f.do(call{args: f.strict(args, "/bin/sh", script, home), env: append(env, "HOME="+home)})
			if strings.Contains(o.stderr, "is not available") || strings.Contains(o.stderr, "cgroups in hybrid mode") || strings.Contains(o.stderr, "cannot create gofer process") {
				f.Logf("%s cannot run here: %s", name, o.stderr)
				return
			}
			if o.stdout != "granted\n" {
				f.Errorf("%s: %v", name, o)
			}
			if found := planted(home); len(found) != 0 {
				f.Errorf("%s: %q", name, found)
			}
			for _, dir := range []string{".config/sbxrun", ".local/state/sbxrun"} {
				if fi, err := os.Lstat(filepath.Join(home, dir)); err != nil || !fi.IsDir() {
					f.Errorf("%s: %s: %v", name, dir, err)
				}
			}
			// The next run has the profile that its caller chose.
			if o := f.do(call{args: f.strict(append(flags, "--verify=false"), "/bin/sh", "-c", "echo $SBXRUN_SANDBOX"), env: append(env, "HOME="+home)}); o.stdout != "strict\n" {
				f.Errorf("%s: %v", name, o)
			}
		})
	}
	f.step("control without the sandbox", func() {
		home := filepath.Dir(f.write("control/home/file", "", 0o644))
		f.own()
		o := f.do(call{args: f.jail(ownUser, nil, "/bin/sh", script, home)})
		for _, want := range []string{"wrote .config/sbxrun/config.yaml", "moved .config", "moved .local", "linked"} {
			if !strings.Contains(o.stdout, want+"\n") {
				f.Errorf("no %q: %v", want, o)
			}
		}
		if len(planted(home)) == 0 {
			f.Error("nothing was planted")
		}
	})
	// Landlock cannot take back what it granted above: the run does not begin.
	f.step("landlock", func() {
		o := f.do(call{args: f.strict([]string{"--driver", "landlock", "--allow-degraded", "namespaces,protect,cgroup", "--rw", f.home}, "true")})
		if o.code != 125 {
			f.Errorf("%v", o)
		}
	})
}

// TestRunDirectories: what a container runtime keeps of a run is not where TMPDIR
// says, which a workspace can hold, and a grant of what holds it hides it.
func TestRunDirectories(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root: runc as another user needs a delegated cgroup")
	}
	f := newFixture(t, whos[0])
	tmp := filepath.Dir(f.write("ws/tmp/file", "", 0o644))
	f.own()
	flags := append([]string{"--rw", "/var/tmp", "--verify=false"}, grantDrivers["runc"]...)
	look := "find " + tmp + " /var/tmp -name state.json; echo ready; while [ ! -e go ]; do sleep 0.1; done; find " + tmp + " /var/tmp -name state.json; cd /var/tmp && mv sbxrun-0 sbxrun-x; echo $?"
	seen := false
	o := f.do(call{args: f.strict(flags, "/bin/sh", "-c", look), env: []string{"TMPDIR=" + tmp}, started: func(*exec.Cmd) {
		// The control: the host has such a file while the container runs.
		for range 200 {
			if m, _ := filepath.Glob("/var/tmp/sbxrun-0/runc-*/state/*/state.json"); len(m) != 0 {
				seen = true
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err := os.WriteFile(filepath.Join(f.ws, "go"), nil, 0o644); err != nil {
			t.Error(err)
		}
	}})
	if strings.Contains(o.stderr, "is not available") {
		t.Skip(o.stderr)
	}
	if o.stdout != "ready\n1\n" || !seen {
		t.Errorf("seen on the host: %v; %v", seen, o)
	}
	if m, _ := filepath.Glob(tmp + "/*sbxrun*"); len(m) != 0 {
		t.Errorf("in TMPDIR: %q", m)
	}
}

// TestAuditHidden: a command cannot lock the log of the runs, though it is shown the
// directory that holds it; a file beside it can be locked, which is the control.
func TestAuditHidden(t *testing.T) {
	for _, w := range whos {
		f := newFixture(t, w)
		log := f.write("logs/audit", "", 0o600)
		other := f.write("logs/other", "", 0o600)
		f.own()
		lock := "for x in " + log + " " + other + "; do flock -n -s $x echo locked ${x##*/}; done"
		for name, flags := range map[string][]string{
			"native": {"--ro", filepath.Dir(log)},
			"bwrap":  append([]string{"--ro", filepath.Dir(log)}, grantDrivers["bwrap"]...),
		} {
			if name != "native" && w.name != "root" && isRoot() {
				continue
			}
			o := f.do(call{args: f.strict(append(flags, "--audit", log, "--verify=false"), "/bin/sh", "-c", lock)})
			if o.stdout != "locked other\n" {
				t.Errorf("%s: %v", name, o)
			}
		}
		if b, err := os.ReadFile(log); err != nil || strings.Count(string(b), "\n") == 0 {
			t.Errorf("the log: %q, %v", b, err)
		}
	}
}

// TestAuditBegins: what ran has a record, whatever ended sbxrun; and what has none did
// not run.
func TestAuditBegins(t *testing.T) {
	atOnce(t, func(f *fixture) {
		log := f.write("logs/audit", "", 0o600)
		f.own()
		script := func(name string) []string {
			return f.strict([]string{"--audit", log, "--verify=false"}, "/bin/sh", "-c", "echo x > "+name+"; [ "+name+" != killed ] || sleep 600")
		}
		ran := func(name string) bool {
			_, err := os.Stat(filepath.Join(f.ws, name))
			return err == nil
		}
		f.do(call{args: script("killed"), started: func(cmd *exec.Cmd) {
			for range 600 {
				if ran("killed") {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			cmd.Process.Kill()
		}})
		if b, err := os.ReadFile(log); err != nil || !ran("killed") || strings.Count(string(b), `"event":"begin"`) != 1 || !strings.Contains(string(b), "sleep 600") {
			f.Errorf("killed: it ran: %v; the log: %q, %v", ran("killed"), b, err)
		}
		lock, err := os.Open(log)
		if err != nil {
			f.Fatal(err)
		}
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			f.Fatal(err)
		}
		if o := f.do(call{args: script("locked")}); o.code != 125 || ran("locked") || !strings.Contains(o.stderr, "keeps it locked") {
			f.Errorf("it ran without a record: %v; %v", ran("locked"), o)
		}
		lock.Close()
		if o := f.do(call{args: script("free")}); o.code != 0 || !ran("free") {
			f.Errorf("the control: %v", o)
		}
	})
}

// TestOwnByAnotherName: a grant of what holds the configuration, by the name that a
// bind mount gives it, is a grant of the configuration.
func TestOwnByAnotherName(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root: a mount in a namespace of the test's own")
	}
	f := newFixture(t, whos[0])
	other := filepath.Dir(f.write("other/file", "", 0o644))
	f.write("home/.config/file", "", 0o644)
	f.own()
	for from, refused := range map[string]bool{f.home: true, f.home + "/.config": true, f.outside: false} {
		script := "mount --bind " + from + " " + other + " && exec " + strings.Join(f.strict([]string{"--rw", other, "--verify=false"}, "/bin/sh", "-c", "mkdir -p "+other+"/.config/sbxrun "+other+"/sbxrun; echo ran"), " ")
		script = strings.Replace(script, "-c mkdir", "-c 'mkdir", 1) + "'"
		o := f.do(call{args: []string{"unshare", "-m", "--propagation", "private", "/bin/sh", "-c", script}})
		if (o.stdout == "ran\n") == refused || refused && !strings.Contains(o.stderr, "another name") {
			t.Errorf("%s: %v", from, o)
		}
	}
}

// TestOverlayObeyed: what was no place of sbxrun's when the command ran, and is one when
// the changes are applied, is not made by that unless it is named. The control: where
// the place is another, it is.
func TestOverlayObeyed(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		o.script("mkdir -p conf/sbxrun && echo 'profile: unrestricted' >conf/sbxrun/config.yaml && echo x >beside")
		env := o.env
		o.env = append(env[:len(env):len(env)], "XDG_CONFIG_HOME="+filepath.Join(o.ws, "conf"))
		if out := o.cli("apply"); out.code != 1 || !strings.Contains(out.stderr, "conf/sbxrun/config.yaml is protected") {
			t.Errorf("%v", out)
		}
		o.has("conf/sbxrun/config.yaml", "")
		o.has("beside", "")
		if out := o.cli("diff"); !strings.Contains(out.stdout, "# conf/sbxrun/config.yaml: protected") {
			t.Errorf("%v", out)
		}
		o.env = env
		if out := o.cli("apply"); out.code != 0 {
			t.Errorf("%v", out)
		}
		o.has("beside", "x\n")
		o.has("conf/sbxrun/config.yaml", "profile: unrestricted\n")
	})
}
