package workspace

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestPatchNames: patch(1) and git apply write a diff's files by their whole names,
// one that ends like a date included.
func TestPatchNames(t *testing.T) {
	for _, name := range []string{"mark\u202e \xff\r\v", ".envrc 2001-01-01 00:00:00 +0000", "a b", "sub dir/.envrc 2001-01-01 00:00:00.000000000 +0000", "end ", "\"q\" 2001-01-01"} {
		w := newWorld(t)
		w.write(w.layer+"/"+name, "new\n")
		set := w.collect()
		ws, err := set.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer ws.Close()
		status, err := set.Check(ws)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, st := range status {
			one, err := set.Patch(ws, st)
			if err != nil {
				t.Fatal(err)
			}
			text += one
		}
		for _, program := range [][]string{{"patch", "-p1", "--batch"}, {"git", "apply", "-"}} {
			// Git's own header says more than patch needs: without it, too.
			for _, git := range []bool{true, false} {
				if !git && program[0] == "git" {
					continue
				}
				if _, err := exec.LookPath(program[0]); err != nil {
					t.Fatal(err)
				}
				in := text
				if !git {
					in = in[strings.Index(in, "--- "):]
				}
				dir := t.TempDir()
				cmd := exec.Command(program[0], program[1:]...)
				cmd.Dir, cmd.Stdin = dir, strings.NewReader(in)
				cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES=/")
				out, err := cmd.CombinedOutput()
				got, _ := os.ReadFile(dir + "/" + name)
				if err != nil || string(got) != "new\n" {
					t.Errorf("%q by %v: %q, %v\n%s%s", name, program, got, err, out, in)
				}
			}
		}
	}
}

// TestPatchTells: whatever Apply would change stands in the patch: content that is too
// large to show though only the mode has another word for it, modes that Git has none
// for, and files without content, for patch(1) too.
func TestPatchTells(t *testing.T) {
	w := newWorld(t)
	large := strings.Repeat("a", maxText+1)
	mode := func(path string, m os.FileMode) {
		if err := os.Chmod(path, m); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{w.ws, w.layer} {
		w.write(dir+"/large", large)
		w.write(dir+"/same", large)
		w.write(dir+"/wide", "#!")
		w.write(dir+"/zero", "\x00")
	}
	w.write(w.layer+"/large", "evil"+large[4:])
	w.write(w.layer+"/dir/plain", "x")
	w.write(w.layer+"/dir/open", "x")
	w.write(w.layer+"/dir/new empty", "")
	for name, m := range map[string]os.FileMode{"large": 0o664, "same": 0o664, "zero": 0o664, "wide": 0o777, "dir": 0o777, "dir/open": 0o666} {
		mode(w.layer+"/"+name, m)
	}
	set := w.collect()
	ws, err := set.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	status, err := set.Check(ws)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, st := range status {
		if got[st.Path], err = set.Patch(ws, st); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"large":         "# large: mode 0664, was 0644\ndiff --git a/large b/large\nBinary files a/large and b/large differ\n",
		"same":          "# same: mode 0664, was 0644\n",
		"zero":          "# zero: mode 0664, was 0644\n",
		"wide":          "# wide: mode 0777\ndiff --git a/wide b/wide\nold mode 100644\nnew mode 100755\n",
		"dir":           "# dir/: mode 0777\n",
		"dir/open":      "# dir/open: mode 0666\ndiff --git a/dir/open b/dir/open\nnew file mode 100644\n--- /dev/null\n+++ b/dir/open\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n",
		"dir/plain":     "diff --git a/dir/plain b/dir/plain\nnew file mode 100644\n--- /dev/null\n+++ b/dir/plain\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n",
		"dir/new empty": "diff --git \"a/dir/new empty\" \"b/dir/new empty\"\nnew file mode 100644\n",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	for _, program := range [][]string{{"patch", "-p1", "--batch"}, {"git", "apply", "-"}} {
		dir := t.TempDir()
		cmd := exec.Command(program[0], program[1:]...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(got["dir"]+got["dir/new empty"])
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES=/")
		out, err := cmd.CombinedOutput()
		if fi, serr := os.Stat(dir + "/dir/new empty"); err != nil || serr != nil || fi.Size() != 0 {
			t.Errorf("%v: %v, %v\n%s", program, err, serr, out)
		}
	}
}
