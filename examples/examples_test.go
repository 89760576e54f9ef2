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
			{[]string{"run"}, []string{"sandbox\n", "Read-only file system", "exit 1, enforced: user,pid,mount,net"}},
			{[]string{"run", "sh", "-c", "exit 7"}, []string{"exit 7"}},
			{[]string{"session"}, []string{"started\nkept\n1\n", "landlock"}},
			{[]string{"pool"}, []string{"0\nproject0\nbuilt\npooled: true\n0\nproject1\nbuilt\npooled: true\n0\nproject2\nbuilt\npooled: true\n"}},
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
