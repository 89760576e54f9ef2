//go:build linux

package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/native"
)

// TestExamples runs each program as its comment says, as root and as an ordinary user.
func TestExamples(t *testing.T) {
	if err := (native.Driver{}).Available(context.Background()); err != nil {
		t.Skip("the native driver is needed: ", err)
	}
	bin, err := os.MkdirTemp("", "examples")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(bin) })
	if err := os.Chmod(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", bin+"/", "./...", "../cmd/sbxrun", "../cmd/sbxrun-mcp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	users := map[string]uint32{"": 0}
	if os.Getuid() == 0 {
		users["user"] = 54321
	}
	for name, uid := range users {
		for _, tt := range []struct {
			args []string
			want []string
		}{
			{[]string{"egress"}, []string{"hello from outside\n", "denied: connect 192.0.2.1:80", "1 connections"}},
			{[]string{"mcphost", bin + "/sbxrun"}, []string{" tools\n", "/tmp\nkept"}},
		} {
			t.Run(strings.TrimSpace(tt.args[0]+" "+name), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				c := exec.CommandContext(ctx, filepath.Join(bin, tt.args[0]), tt.args[1:]...)
				ws, err := os.MkdirTemp("", "ws")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { os.RemoveAll(ws) })
				c.Dir, c.Env = ws, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "LANG=C"}
				if uid != 0 {
					if err := os.Chown(ws, int(uid), int(uid)); err != nil {
						t.Fatal(err)
					}
					c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
				}
				out, err := c.CombinedOutput()
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
				for _, w := range tt.want {
					if !strings.Contains(string(out), w) {
						t.Errorf("no %q in %q", w, out)
					}
				}
			})
		}
	}
}

// program is a whole program that uses package sbxrun.
const program = `package main

import "github.com/sbxrun/sbxrun"

func main() {
	cmd := sbxrun.Command("make", "-s")
	cmd.Options.Fallback = []string{"landlock"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		println(string(out), err.Error(), sbxrun.HintOf(err))
	}
	println(string(out), cmd.Result.Reason, cmd.Result.ExitCode)
}
`

// TestProgram: a program of another module runs make under strict and prints how it
// ended.
func TestProgram(t *testing.T) {
	here, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": program, "Makefile": "all:\n\t@echo made; touch /usr/x || echo refused\n",
		"go.mod": "module example.test\n\ngo 1.26\n\nrequire github.com/sbxrun/sbxrun v0.0.0\n\nreplace github.com/sbxrun/sbxrun => " + here + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sums, err := os.ReadFile("../go.sum")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-mod=mod", "-o", dir+"/program", ".")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := exec.Command(dir + "/program")
	c.Dir = dir
	out, err := c.CombinedOutput()
	if os.Geteuid() != 0 && strings.Contains(string(out), "layer cgroup.") {
		t.Skipf("strict needs a cgroup of its own (root, or a delegated group): %s", out)
	}
	if want := "made\ntouch: cannot touch '/usr/x': Read-only file system\nrefused\n exit 0\n"; err != nil || string(out) != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}
