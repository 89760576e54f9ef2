package native

import (
	"context"
	"os"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// needOverlay skips on kernels whose tmpfs has no user attributes, once such a
// policy was seen to be refused there with the reason.
func needOverlay(t *testing.T) {
	t.Helper()
	p := overlayPolicy(t, t.TempDir(), "true")
	proc, err := Driver{}.Start(context.Background(), p, driver.Stdio{})
	if err == nil {
		_, err = proc.Wait()
	}
	var u unix.Utsname
	unix.Uname(&u)
	release := unix.ByteSliceToString(u.Release[:])
	old := strings.HasPrefix(release, "5.") || strings.HasPrefix(release, "6.") && len(release) > 3 && release[3] == '.' && release[2] < '6'
	switch {
	case err == nil && old:
		t.Fatalf("an overlay on Linux %s?", release)
	case err != nil && old && strings.Contains(driver.HintOf(err), "Linux 6.6"):
		t.Skip("Linux " + release + ": its tmpfs has no user attributes")
	case err != nil:
		t.Fatalf("Linux %s: %v (%s)", release, err, driver.HintOf(err))
	}
}

func overlayPolicy(t *testing.T, dir string, script string) *policy.Policy {
	t.Helper()
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"/bin/sh", "-c", script}, Dir: dir, Workspace: "overlay", Degrade: policy.LayerCgroup},
		&profiles.Facts{Home: "/nonexistent", Cwd: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	return r.Policy
}

// TestLayer: what a command changed is in a directory that outlives the sandbox,
// and not on the host; who does not ask for it keeps nothing open.
func TestLayer(t *testing.T) {
	needOverlay(t)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/old", []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	fds := openFiles(t)
	for _, kill := range []bool{false, true} {
		script := "rm old; mkdir new; echo x > new/f; exit 3"
		if kill {
			script += " | cat; read x"
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		or, ow, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		proc, err := Driver{}.Start(context.Background(), overlayPolicy(t, dir, strings.Replace(script, "read x", "echo; read x", 1)), driver.Stdio{Stdin: r, Stdout: ow})
		if err != nil {
			t.Fatal(err)
		}
		ow.Close()
		if kill {
			or.Read(make([]byte, 1)) // it is done with the rest
			proc.Kill()
		}
		st, err := proc.Wait()
		if err != nil || !kill && st.ExitCode != 3 || kill && st.Signal == 0 {
			t.Fatalf("%+v %v", st, err)
		}
		layer, err := proc.Layer()
		if err != nil || layer == nil {
			t.Fatal(layer, err)
		}
		at := "/proc/self/fd/" + itoa(int(layer.Fd()))
		if b, err := os.ReadFile(at + "/new/f"); err != nil || string(b) != "x\n" {
			t.Errorf("%q %v", b, err)
		}
		var stat unix.Stat_t
		if err := unix.Lstat(at+"/old", &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR || stat.Rdev != 0 {
			t.Errorf("%+v %v", stat, err)
		}
		if again, err := proc.Layer(); err == nil || again != nil {
			t.Error("handed out twice")
		}
		layer.Close()
		for _, f := range []*os.File{r, w, or} {
			f.Close()
		}
	}
	if b, err := os.ReadFile(dir + "/old"); err != nil || string(b) != "old" {
		t.Errorf("%q %v", b, err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("the host has %v", list)
	}
	closes(t, fds)
}

// TestLayerOfSandbox: the layer of a sandbox that stays is there from the first, and
// shows what each command changed.
func TestLayerOfSandbox(t *testing.T) {
	needOverlay(t)
	dir := t.TempDir()
	fds := openFiles(t)
	for _, take := range []bool{true, false} {
		p := overlayPolicy(t, dir, "true")
		b, err := Driver{}.Open(context.Background(), p)
		if err != nil {
			t.Fatal(err)
		}
		if take {
			layer, err := b.Layer()
			if err != nil {
				t.Fatal(err)
			}
			pr := *p.OCI.Process
			for _, name := range []string{"a", "b"} {
				run := pr
				run.Args = []string{"/bin/sh", "-c", "echo > " + name}
				proc, err := b.Exec(context.Background(), &specs.Process{Args: run.Args}, driver.Stdio{})
				if err != nil {
					t.Fatal(err)
				}
				if st, err := proc.Wait(); err != nil || st.ExitCode != 0 {
					t.Fatalf("%+v %v", st, err)
				}
				if _, err := os.Lstat("/proc/self/fd/" + itoa(int(layer.Fd())) + "/" + name); err != nil {
					t.Error(err)
				}
			}
			defer layer.Close()
		}
		b.Close()
	}
	fds["the layer"] = "kept"
	closes(t, fds)
	// What has none hands none out.
	p := overlayPolicy(t, dir, "true")
	for i := range p.Files {
		p.Files[i].Overlay = false
	}
	proc, err := Driver{}.Start(context.Background(), p, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	proc.Wait()
	if layer, err := proc.Layer(); layer != nil || err != nil {
		t.Error(layer, err)
	}
}
