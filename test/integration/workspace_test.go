//go:build linux

package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An overlay is a fixture whose workspace is shown copy-on-write.
type overlay struct {
	*fixture
	env []string
}

func newOverlay(t *testing.T, w who) *overlay {
	t.Helper()
	f := newFixture(t, w)
	for _, dir := range []string{"state-home", "run"} {
		if err := os.Mkdir(f.path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f.own()
	o := &overlay{f, []string{"XDG_STATE_HOME=" + f.path("state-home"), "XDG_RUNTIME_DIR=" + f.path("run")}}
	var u unix.Utsname
	unix.Uname(&u)
	var major, minor int
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	if major > 6 || major == 6 && minor >= 6 {
		return o
	}
	// Its tmpfs has no user attributes: refused with the reason, and nothing runs.
	args := append([]string{sbxrun, "-C", f.ws, "--workspace", "overlay"}, w.flags()...)
	out := f.do(call{args: w.command(append(args, "--", "/bin/sh", "-c", "echo > ran")...), env: o.env})
	if _, err := os.Lstat(filepath.Join(f.ws, "ran")); err == nil || out.code != 125 || !strings.Contains(out.stderr, "Linux 6.6 or later") {
		t.Fatalf("want a refusal: %v", out)
	}
	t.Skip("Linux before 6.6 has no copy-on-write workspaces, and said so")
	return nil
}

// script runs a shell script, and fails the test if that does not come about.
func (o *overlay) script(script string, flags ...string) *outcome {
	o.Helper()
	args := append([]string{sbxrun, "-C", o.ws, "--workspace", "overlay"}, o.who.flags()...)
	out := o.do(call{args: o.who.command(append(append(args, flags...), "--", "/bin/sh", "-c", script)...), env: o.env})
	if out.code == 125 {
		o.Fatalf("%v", out)
	}
	return out
}

// cli runs a subcommand in the workspace.
func (o *overlay) cli(args ...string) *outcome {
	o.Helper()
	return o.do(call{args: o.who.command(append([]string{"/usr/bin/env", "-C", o.ws, sbxrun}, args...)...), env: o.env})
}

func (o *overlay) file(name, content string) {
	o.Helper()
	o.write("ws/"+name, content, 0o644)
	o.own()
}

// has wants the host's workspace to hold a file of that content; "" is none.
func (o *overlay) has(name, content string) {
	o.Helper()
	b, err := os.ReadFile(filepath.Join(o.ws, name))
	if content == "" && !os.IsNotExist(err) || content != "" && string(b) != content {
		o.Errorf("%s holds %q (%v), want %q", name, b, err, content)
	}
}

// tree is what a directory holds: types, modes, targets and contents.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		switch {
		case fi.Mode().IsRegular() && d.Name() != "attack":
			c, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text = string(c)
		case fi.Mode()&fs.ModeSymlink != 0:
			text, _ = os.Readlink(p)
		}
		fmt.Fprintf(&b, "%v %s %q\n", fi.Mode(), p[len(dir):], text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// everyChange makes each kind of change that there is. The control runs it in a
// copy of the workspace, on the host.
const everyChange = `set -e
echo more >> modified; chmod 755 mode; rm deleted; rm -r gone
rm -r replaced; echo now a file > replaced; rm file; mkdir file; echo in >file/in
rm -r opaque; mkdir opaque; echo new > opaque/new; echo kept > opaque/kept
mkdir -p new/deep; echo 1 > new/deep/f; chmod 700 new/deep
ln -sfn elsewhere link; ln -s /nowhere dangling; mv moved renamed
printf '\0\1\2' > binary; printf 'no newline' > nonl; : > empty
touch -- '-dash' 'a b' 'new
line' "$(printf 'not\377utf8')"; chmod 1777 sticky; chmod u-w mode2
`

func (o *overlay) everyBase() {
	for name, content := range map[string]string{
		"modified": "one\ntwo\n", "mode": "m\n", "mode2": "m\n", "deleted": "d\n", "gone/a/b": "b\n", "gone/c": "c\n",
		"replaced/x": "x\n", "file": "f\n", "opaque/old": "old\n", "opaque/kept": "kept\n", "moved": "moved\n", "untouched": "u\n", "sticky/x": "",
	} {
		o.write("ws/"+name, content, 0o644)
	}
	if err := os.Symlink("target", filepath.Join(o.ws, "link")); err != nil {
		o.Fatal(err)
	}
	o.own()
}

// TestOverlay: nothing of what a command does reaches the workspace until it is
// applied, and then what it did is there and nothing else: what the same commands
// make of a copy.
func TestOverlay(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		o.everyBase()
		before := tree(t, o.ws)
		out := o.script(everyChange)
		if out.code != 0 || !strings.Contains(out.stderr, "kept as change set w") {
			t.Fatalf("%v", out)
		}
		if now := tree(t, o.ws); now != before {
			t.Fatalf("the workspace changed:\n%s\nwas\n%s", now, before)
		}
		copied := o.path("copy")
		if b, err := exec.Command("cp", "-a", o.ws, copied).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, b)
		}
		cmd := exec.Command("/bin/sh", "-c", everyChange)
		cmd.Dir = copied
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("control: %v %s", err, b)
		}
		// The bits beyond permissions are not taken over.
		os.Chmod(filepath.Join(copied, "sticky"), 0o777)
		if out := o.cli("diff", "--stat"); out.code != 0 || !strings.Contains(out.stdout, "M  modified\n") || !strings.Contains(out.stdout, "D  gone/a/b\n") || !strings.Contains(out.stdout, "T  replaced\n") ||
			strings.Contains(out.stdout, "untouched") || strings.Contains(out.stdout, "opaque/kept") {
			t.Errorf("%v", out)
		}
		if out := o.cli("apply"); out.code != 0 {
			t.Fatalf("%v", out)
		}
		if got, want := tree(t, o.ws), tree(t, copied); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if out := o.cli("diff"); out.code == 0 {
			t.Errorf("the change set is still there: %v", out)
		}
		o.wantUnchanged()
	})
}

// TestOverlayPatch: what diff prints, git makes the same of.
func TestOverlayPatch(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		o.everyBase()
		o.script(strings.Replace(everyChange, "printf '\\0\\1\\2' > binary;", "", 1))
		copied := o.path("copy")
		if b, err := exec.Command("cp", "-a", o.ws, copied).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, b)
		}
		patch := o.cli("diff")
		if patch.code != 0 {
			t.Fatalf("%v", patch)
		}
		if out := o.cli("apply"); out.code != 0 {
			t.Fatalf("%v", out)
		}
		cmd := exec.Command("git", "apply", "--whitespace=nowarn", "-")
		cmd.Dir, cmd.Stdin = copied, strings.NewReader(patch.stdout)
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+o.dir)
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git apply: %v %s\n%s", err, b, patch.stdout)
		}
		// Git knows one bit of a mode, and no empty directories.
		strip := func(dir string) string {
			filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
				if fi, err := d.Info(); err == nil && fi.Mode()&fs.ModeSymlink == 0 {
					mode := fs.FileMode(0o644)
					if fi.IsDir() || fi.Mode()&0o100 != 0 {
						mode = 0o755
					}
					os.Chmod(p, mode)
				}
				return nil
			})
			return tree(t, dir)
		}
		if got, want := strip(copied), strip(o.ws); got != want {
			t.Errorf("git made\n%s\nand apply\n%s\nof\n%s", got, want, patch.stdout)
		}
	})
}

// TestOverlayProtected: what could not be changed in a bind cannot be taken over
// without being named.
func TestOverlayProtected(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		for _, c := range []struct{ name, script, pattern string }{
			{"a hook", "mkdir -p .git/hooks; echo 'touch /tmp/pwned' > .git/hooks/post-commit", ".git/"},
			{"another case", "mkdir -p .GIT/Hooks; echo x > .GIT/Hooks/post-commit", ".git/"},
			{"an editor's task", "mkdir -p sub/.vscode; echo x > sub/.vscode/tasks.json", ".vscode"},
			{"a bare repository", "mkdir -p bare/objects bare/refs; echo x > bare/HEAD; echo '[core] fsmonitor=x' > bare/config", ".git/config"},
			{"a link to where a protected name could be", "mkdir -p evil/git; echo x > evil/git/config; ln -s evil .config", ".config/git"},
			{"deletion", "rm -r .envrc", ".envrc"},
			{"a repository's own config", "rm -rf repo; mkdir -p repo/.git; echo evil > repo/.git/config", ".git/config"},
		} {
			o := newOverlay(t, w)
			o.file(".envrc", "x\n")
			o.file("repo/.git/config", "[core]\n")
			o.file("repo/.git/HEAD", "ref: refs/heads/main\n")
			before := tree(t, o.ws)
			if out := o.script(c.script + "; echo fine > other"); out.code != 0 {
				t.Errorf("%s: %v", c.name, out)
			}
			out := o.cli("apply")
			if out.code != 1 || !strings.Contains(out.stderr, "protected ("+c.pattern) || !strings.Contains(out.stderr, "nothing was changed") {
				t.Errorf("%s: %v", c.name, out)
			}
			if now := tree(t, o.ws); now != before {
				t.Errorf("%s: the workspace changed:\n%s", c.name, now)
			}
			if out := o.cli("apply", "--allow-protected", "all"); out.code != 0 {
				t.Errorf("%s: %v", c.name, out)
			}
			o.has("other", "fine\n")
		}
	})
}

// TestOverlayConflict: what the workspace has become meanwhile is not overwritten
// unless that is asked for.
func TestOverlayConflict(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		for _, c := range []struct {
			name, script string
			after        string // done on the host, when the run is over
			why          string
		}{
			{"both modified", "echo s >> a", "echo h >> a", "it was changed in the workspace"},
			{"both added", "echo s > n", "echo h > n", "the workspace has a file there by now"},
			{"deleted, modified", "rm a", "echo h >> a", "it was changed in the workspace"},
			{"modified, deleted", "echo s >> a", "rm a", "it was removed from the workspace"},
			{"in a directory that is gone", "echo s > d/n", "rm -r d", "no directory d"},
			{"a file in a directory that goes", "rm -r d", "echo h > d/n", "has n in it by now"},
			{"a directory became a link", "echo s > d/n", "rm -r d; ln -s ../outside d", "has a symbolic link at d by now"},
			{"a file became a link", "echo s >> a", "ln -sf ../outside/canary a", "it was changed in the workspace"},
			{"by chmod", "chmod 755 a", "chmod 600 a", "it was changed in the workspace"},
		} {
			t.Run(c.name, func(t *testing.T) {
				setup := func() *overlay {
					o := newOverlay(t, w)
					o.file("a", "a\n")
					o.file("d/b", "b\n")
					o.script(c.script + "; echo fine > other")
					if out := o.do(call{args: o.who.command("/usr/bin/env", "-C", o.ws, "/bin/sh", "-c", c.after)}); out.code != 0 {
						t.Fatalf("%v", out)
					}
					return o
				}
				o := setup()
				before := tree(t, o.ws)
				if out := o.cli("apply"); out.code != 1 || !strings.Contains(out.stderr, c.why) {
					t.Errorf("%v", out)
				}
				if now := tree(t, o.ws); now != before {
					t.Errorf("the workspace changed:\n%s", now)
				}
				if out := o.cli("diff"); !strings.Contains(out.stdout, "conflict: ") {
					t.Errorf("%v", out)
				}
				out := o.cli("apply", "--on-conflict", "keep")
				if out.code != 0 || !strings.Contains(out.stderr, "was kept") {
					t.Errorf("keep: %v", out)
				}
				if c.name == "a file in a directory that goes" {
					before = strings.Replace(before, "-rw-r--r-- /d/b \"b\\n\"\n", "", 1) // nobody else's
				}
				if now := tree(t, o.ws); strings.Replace(now, "-rw-r--r-- /other \"fine\\n\"\n", "", 1) != before {
					t.Errorf("keep: the workspace is\n%s\nwas\n%s", now, before)
				}
				o.has("other", "fine\n")
				o.wantUnchanged()
			})
		}
		o := newOverlay(t, w)
		o.file("a", "a\n")
		o.file("d/b", "b\n")
		o.script("echo s >> a; echo s > d/n")
		o.file("a", "h\n")
		gone := func(more string) {
			t.Helper()
			if out := o.do(call{args: o.who.command("/usr/bin/env", "-C", o.ws, "/bin/sh", "-c", "rm -r d"+more)}); out.code != 0 {
				t.Fatalf("%v", out)
			}
		}
		gone("; ln -s ../outside d")
		if out := o.cli("apply", "--on-conflict", "overwrite"); out.code != 1 || !strings.Contains(out.stderr, "sbxrun writes nothing there") {
			t.Errorf("%v", out)
		}
		o.has("a", "h\n")
		o.wantUnchanged()
		gone("")
		if out := o.cli("apply", "--on-conflict", "overwrite"); out.code != 0 {
			t.Errorf("%v", out)
		}
		o.has("a", "a\ns\n")
		o.has("d/n", "s\n")
	})
}

// TestOverlayConflictDuring: a change of the host while the command runs is one,
// too, whichever of the two was first.
func TestOverlayConflictDuring(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		for _, c := range []struct{ name, before, host, after, why string }{
			{"modified", "echo s >> a", "echo h >> a", "true", "while the sandbox ran"},
			{"modified before the sandbox did", "true", "echo h > a", "echo s > a", "while the sandbox ran"},
			{"added", "echo s > n", "echo h > n", "true", "while the sandbox ran"},
			{"removed", "echo s >> a", "rm a", "true", "removed from the workspace while"},
			{"removed with its directory", "echo s > d/n", "rm -r d", "true", "removed from the workspace while"},
		} {
			t.Run(c.name, func(t *testing.T) {
				o := newOverlay(t, w)
				o.file("a", "a\n")
				o.file("d/b", "b\n")
				o.file("still", "x\n")
				args := append([]string{sbxrun, "-C", o.ws, "--workspace", "overlay"}, w.flags()...)
				args = w.command(append(args, "--", "/bin/sh", "-c", c.before+"; mv still moved; echo ready; read x; "+c.after)...)
				cmd := exec.Command(args[0], args[1:]...)
				cmd.Env, cmd.Dir = o.environ(o.env...), o.ws
				stdin, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				stdout, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer cmd.Process.Kill()
				if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
					t.Fatalf("%q %v", line, err)
				}
				if out := o.do(call{args: w.command("/usr/bin/env", "-C", o.ws, "/bin/sh", "-c", c.host)}); out.code != 0 {
					t.Fatalf("%v", out)
				}
				stdin.Close()
				if err := cmd.Wait(); err != nil {
					t.Fatal(err)
				}
				before := tree(t, o.ws)
				if out := o.cli("apply"); out.code != 1 || !strings.Contains(out.stderr, c.why) || strings.Contains(out.stderr, "error: moved") || strings.Contains(out.stderr, "error: still") {
					t.Errorf("%v", out)
				}
				if now := tree(t, o.ws); now != before {
					t.Errorf("the workspace changed:\n%s", now)
				}
			})
		}
	})
}

// TestOverlaySpecial: what is no file, directory or link is left out and named,
// and a layer that was made to be hard to read is read.
func TestOverlaySpecial(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		out := o.script(`mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
mkdir -p locked/in; echo x > locked/in/f; chmod 000 locked/in/f locked/in locked
truncate -s 8E huge 2>/dev/null || truncate -s 1T huge
mkdir deep; cd deep; i=0; while [ $i -lt 3000 ]; do mkdir dddddddddd && cd dddddddddd || break; i=$((i+1)); done; :`)
		if out.code != 0 {
			t.Fatalf("%v", out)
		}
		out = o.cli("diff", "--stat")
		for _, want := range []string{"fifo is left out: it is a FIFO", "sock is left out: it is a socket", "huge is left out", "its path is too long"} {
			if !strings.Contains(out.stderr, want) {
				t.Errorf("no %q: %.3000v", want, out)
			}
		}
		if out := o.cli("apply"); out.code != 0 {
			t.Errorf("%.3000v", out)
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(o.ws, "locked"), &st); err != nil || st.Mode&0o777 != 0 {
			t.Errorf("locked: %v %o", err, st.Mode)
		}
		os.Chmod(filepath.Join(o.ws, "locked"), 0o700)
		os.Chmod(filepath.Join(o.ws, "locked/in"), 0o700)
		if err := unix.Lstat(filepath.Join(o.ws, "locked/in/f"), &st); err != nil || st.Mode&0o777 != 0 || st.Size != 2 {
			t.Errorf("locked/in/f: %v %o", err, st.Mode)
		}
		for _, name := range []string{"fifo", "sock", "huge"} {
			if err := unix.Lstat(filepath.Join(o.ws, name), &st); err != syscall.ENOENT {
				t.Errorf("%s was taken over: %v", name, err)
			}
		}
	})
}

// TestOverlayFull: the layer is bounded by --disk, the command is told at once,
// and what fitted is kept.
func TestOverlayFull(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		out := o.script("echo small > small; dd if=/dev/zero of=big bs=64k count=64 2>&1", "--disk", "1m")
		if out.code == 0 || !strings.Contains(out.stdout, "No space left on device") || !strings.Contains(out.stderr, "--disk") {
			t.Errorf("%v", out)
		}
		if out := o.cli("apply"); out.code != 0 {
			t.Errorf("%v", out)
		}
		o.has("small", "small\n")
		out = o.script("i=0; while : > f$i; do i=$((i+1)); done; echo $i", "--disk", "1m")
		if !strings.Contains(out.stderr, "No space left on device") {
			t.Errorf("files are not bounded: %v", out)
		}
		if out := o.script("dd if=/dev/zero of=big bs=64k count=64 2>/dev/null", "--disk", "8m"); out.code != 0 || strings.Contains(out.stderr, "--disk") {
			t.Errorf("with room: %v", out)
		}
	})
}

// TestOverlaySession: a session's changes are kept when it ends, however it does,
// under its name.
func TestOverlaySession(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		id := o.unique("s")
		if len(id) > 60 {
			id = id[len(id)-60:]
		}
		create := append([]string{"session", "create", "--workspace", "overlay", "-C", o.ws}, o.who.flags()...)
		if out := o.cli(append(create, id)...); out.code != 0 {
			t.Fatalf("%v", out)
		}
		t.Cleanup(func() { o.cli("session", "rm", "--force", id) })
		for _, script := range []string{"echo 1 > f", "echo 2 >> f; test $(cat f | wc -l) = 2"} {
			if out := o.cli("session", "exec", id, "--", "/bin/sh", "-c", script); out.code != 0 {
				t.Errorf("%v", out)
			}
		}
		o.has("f", "")
		// What it has changed so far can be looked at, and not yet be taken over.
		if out := o.cli("diff", "--stat", id); out.code != 0 || out.stdout != "A  f\n" {
			t.Errorf("%v", out)
		}
		for _, c := range []string{"apply", "discard"} {
			if out := o.cli(c, id); out.code == 0 || !strings.Contains(out.stderr, "still runs") {
				t.Errorf("%v", out)
			}
		}
		o.cli("session", "exec", id, "--", "/bin/sh", "-c", "mv f g; echo x > h; rm h")
		if out := o.cli("diff", "--stat", id); out.code != 0 || out.stdout != "A  g\n" {
			t.Errorf("%v", out)
		}
		o.cli("session", "exec", id, "--", "mv", "g", "f")
		if out := o.cli("session", "stop", id); out.code != 0 {
			t.Errorf("%v", out)
		}
		if out := o.cli("session", "rm", id); out.code != 0 {
			t.Errorf("%v", out)
		}
		if out := o.cli(append(create, id)...); out.code == 0 || !strings.Contains(out.stderr, "there is a change set of that name already") {
			t.Errorf("a session that could not keep its changes: %v", out)
		}
		if out := o.cli("apply", id); out.code != 0 {
			t.Errorf("%v", out)
		}
		o.has("f", "1\n2\n")

		// Its init is killed: what it had changed is kept all the same.
		if out := o.cli(append(create, id)...); out.code != 0 {
			t.Fatalf("%v", out)
		}
		o.cli("session", "exec", id, "--", "/bin/sh", "-c", "echo 3 >> f")
		o.killInit(id)
		if !within(10*time.Second, func() bool { return strings.Contains(o.cli("diff", "--stat", id).stdout, "M  f\n") }) {
			t.Errorf("%v", o.cli("diff", id))
		}
	})
}

// TestOverlayLost: where the changes cannot be kept, the run has failed, and says
// why; nothing half written is taken for a change set.
func TestOverlayLost(t *testing.T) {
	asEachUser(t, func(t *testing.T, w who) {
		o := newOverlay(t, w)
		state := filepath.Join(o.path("state-home"), "sbxrun", "changes")
		if err := os.MkdirAll(state, 0o700); err != nil {
			t.Fatal(err)
		}
		o.own()
		args := append([]string{"--workspace", "overlay", "--json", "-C", o.ws}, w.flags()...)
		if err := os.Chmod(state, 0o500); err != nil {
			t.Fatal(err)
		}
		out := o.do(call{args: w.command(append(append([]string{sbxrun}, args...), "--", "/bin/sh", "-c", "echo 1 > f; echo done")...), env: o.env})
		var r struct {
			ExitCode int `json:"exit_code"`
			Stdout   string
			Error    string
			Changes  struct{ ID, Error string }
		}
		if err := json.Unmarshal([]byte(out.stdout), &r); err != nil {
			t.Fatalf("%v: %v", err, out)
		}
		if w.uid != 0 && (out.code != 123 || r.Stdout != "done\n" || r.Changes.ID != "" || r.Changes.Error == "" || r.Error == "" || !strings.Contains(out.stderr, "is lost")) {
			t.Errorf("%v", out)
		}
		if err := os.Chmod(state, 0o700); err != nil {
			t.Fatal(err)
		}
		if w.uid == 0 {
			// Root is not kept out by a mode: a small file system of its own is.
			out := o.do(call{args: []string{"unshare", "-m", "/bin/sh", "-c", "mount -t tmpfs -o size=64k,mode=700 none " + state + ` && exec "$@"`, "sh", sbxrun, "--workspace", "overlay", "-C", o.ws, "--", "/bin/sh", "-c", "dd if=/dev/urandom of=big bs=100k count=1"}, env: o.env})
			if out.code != 123 || !strings.Contains(out.stderr, "no space left on device") || !strings.Contains(out.stderr, "is lost") {
				t.Errorf("%v", out)
			}
			o.has("f", "")
			o.cli("discard", "--all")
		}
		if out := o.cli("diff", "--list"); strings.Count(out.stdout, "\n") != 1 {
			t.Errorf("%v", out)
		}
		// What others can look into is not used.
		os.Chmod(state, 0o755)
		if out := o.do(call{args: w.command(append(append([]string{sbxrun}, args...), "--", "true")...), env: o.env}); out.code != 125 || !strings.Contains(out.stderr, "will not keep changes") {
			t.Errorf("%v", out)
		}
		os.Chmod(state, 0o700)
		// And not what the command can write to.
		if out := o.do(call{args: w.command(append(append([]string{sbxrun}, args...), "--rw", o.path("state-home"), "--", "/bin/sh", "-c", "echo > "+state+"/forged")...), env: o.env}); out.code == 0 {
			t.Errorf("%v", out)
		}
		if _, err := os.Lstat(state + "/forged"); err == nil {
			t.Error("a command wrote where changes are kept")
		}
		// A set that was never completed is pruned, one that is complete is not.
		if err := os.MkdirAll(filepath.Join(state, ".new-w1-1"), 0o700); err != nil {
			t.Fatal(err)
		}
		o.own()
		o.script("echo 1 > f")
		o.cli("discard", "--all")
		o.script("echo 1 > f")
		out = o.cli("prune", "--older-than", "0s")
		if !strings.Contains(out.stdout, "changes w1-1\n") || strings.Count(out.stdout, "changes ") != 1 {
			t.Errorf("%v", out)
		}
		if out := o.cli("prune", "--older-than", "0s", "--changes"); strings.Count(out.stdout, "changes w") != 1 {
			t.Errorf("%v", out)
		}
	})
}

// TestOverlayMount: a workspace with a file system mounted in it is refused, with
// what to do.
func TestOverlayMount(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root to mount")
	}
	o := newOverlay(t, whos[0])
	if err := os.Mkdir(filepath.Join(o.ws, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := o.do(call{args: []string{"unshare", "-m", "/bin/sh", "-c", "mount -t tmpfs none sub && exec </dev/null " + sbxrun + " --workspace overlay " + strings.Join(whos[0].flags(), " ") + " -- true"}, env: o.env})
	if out.code != 125 || !strings.Contains(out.stderr, "mounted below the workspace") {
		t.Errorf("%v", out)
	}
}

// TestOverlayRefused: drivers that cannot keep changes apart say so, and write
// nothing.
func TestOverlayRefused(t *testing.T) {
	o := newOverlay(t, whos[0])
	for _, d := range []string{"landlock", "bwrap", "gvisor", "host"} {
		out := o.do(call{args: []string{sbxrun, "--driver", d, "--allow-degraded", "namespaces,protect,cgroup", "-C", o.ws, "--workspace", "overlay", "--", "/bin/sh", "-c", "echo > written"}, env: o.env})
		if out.code != 125 || !strings.Contains(out.stderr, "overlay") && !strings.Contains(out.stderr, "not available") {
			t.Errorf("%s: %v", d, out)
		}
		o.has("written", "")
	}
}

// killInit kills process 1 of a session's sandbox.
func (o *overlay) killInit(id string) {
	o.Helper()
	var info struct{ Pid int }
	if out := o.cli("session", "inspect", id); json.Unmarshal([]byte(out.stdout), &info) != nil || info.Pid == 0 {
		o.Fatalf("%v", out)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", info.Pid, info.Pid))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", info.Pid))
	for _, t := range tasks {
		c, _ := os.ReadFile(t)
		b = append(b, c...)
	}
	if len(strings.Fields(string(b))) == 0 {
		o.Fatalf("no children of %d: %v", info.Pid, err)
	}
	for _, pid := range strings.Fields(string(b)) {
		var n int
		fmt.Sscan(pid, &n)
		syscall.Kill(n, syscall.SIGKILL)
	}
}

// TestOverlayNames: names of change sets that are paths, or none, lead nowhere.
func TestOverlayNames(t *testing.T) {
	o := newOverlay(t, whos[0])
	o.script("echo 1 > f")
	for _, id := range []string{"", "../x", "a/b", "..", ".", ".new-x", "/etc", "a\nb", strings.Repeat("x", 10<<10)} {
		for _, c := range []string{"diff", "apply", "discard"} {
			out := o.cli(c, id)
			if out.code != 125 || !strings.Contains(out.stderr, "change set") || len(out.stderr) > 1000 {
				t.Errorf("%s %.20q: %v", c, id, out)
			}
		}
	}
	if out := o.cli("discard"); out.code != 0 {
		t.Errorf("%v", out)
	}
}
