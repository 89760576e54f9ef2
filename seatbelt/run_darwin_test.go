package seatbelt_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/seatbelt"
)

// These run on a Mac. Elsewhere TestOnMac says that they did not.

func run(t *testing.T, dir, script string, change func(*profiles.Request)) *driver.Result {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	home, _ := os.UserHomeDir()
	req := &profiles.Request{
		Command: []string{"/bin/sh", "-c", script}, Dir: dir,
		Degrade: policy.LayerUser | policy.LayerPID | policy.LayerMount | policy.LayerUTS | policy.LayerCgroupNS | policy.LayerSeccomp | policy.LayerCgroup,
	}
	if change != nil {
		change(req)
	}
	r, err := profiles.Resolve(req, &profiles.Facts{Home: home, Cwd: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	res, err := driver.Run(context.Background(), seatbelt.Driver{Home: home}, r.Policy, driver.RunOptions{Capture: true})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestOnMac(t *testing.T) {
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	canary, err := os.CreateTemp(home, ".sbxrun-canary-")
	if err != nil {
		t.Fatal(err)
	}
	canary.WriteString("secret")
	canary.Close()
	defer os.Remove(canary.Name())

	for _, c := range []struct{ name, script, stdout string }{
		{"the workspace is written", "echo x > f && cat f", "x\n"},
		{"private storage is written", "echo x > $HOME/f && cat $HOME/f && echo y > $TMPDIR/f && cat $TMPDIR/f", "x\ny\n"},
		{"the home is not read", "cat " + canary.Name() + " 2>/dev/null || echo denied", "denied\n"},
		{"the home is not written", "echo y > " + canary.Name() + " 2>/dev/null || echo denied", "denied\n"},
		{"/tmp is not written", "touch /tmp/sbxrun-x 2>/dev/null || echo denied", "denied\n"},
		{"the network is out of reach", "curl -s -m 2 http://127.0.0.1:1/ ; [ $? != 0 ] && echo denied", "denied\n"},
		{"others are not signalled", "kill -0 1 2>/dev/null || echo denied", "denied\n"},
		{"others are not listed", "sysctl kern.procargs2 2>/dev/null || echo denied", "denied\n"},
		{"nothing is opened outside", "open -a Calculator 2>/dev/null || echo denied", "denied\n"},
		{"protected paths stay", "mkdir .git .GIT .config 2>/dev/null || echo denied; echo x > .vSCode 2>/dev/null || echo denied; mkdir d && echo x > d/f && mv d e && cat e/f", "denied\ndenied\nx\n"},
		{"limits hold", "ulimit -c; ulimit -n", "0\n4096\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if res := run(t, t.TempDir(), c.script, nil); res.Stdout != c.stdout {
				t.Errorf("%q, want %q; stderr %q, exit %d", res.Stdout, c.stdout, res.Stderr, res.ExitCode)
			}
		})
	}
	if b, _ := os.ReadFile(canary.Name()); string(b) != "secret" {
		t.Errorf("the canary was changed: %q", b)
	}
	t.Run("a terminal", func(t *testing.T) {
		if out := typed(t, "test -t 0 && test -t 1 && stty size && : </dev/tty && read x && echo got $x", "it\n"); !strings.Contains(out, "17 91") || !strings.Contains(out, "got it") {
			t.Errorf("%q", out)
		}
	})
	t.Run("everything ends with the time limit", func(t *testing.T) {
		d, k := time.Second, time.Second
		begin := time.Now()
		res := run(t, t.TempDir(), "trap '' TERM; (sleep 60 &) ; while :; do sleep 1; done", func(r *profiles.Request) { r.Timeout, r.KillAfter = &d, &k })
		if res.Reason != driver.ReasonTimeout || time.Since(begin) > 20*time.Second {
			t.Errorf("%+v after %v", res, time.Since(begin))
		}
	})
	t.Run("memory is watched", func(t *testing.T) {
		m := uint64(64 << 20)
		res := run(t, t.TempDir(), "x=$(yes | head -c 400000000); sleep 5; echo ${#x}", func(r *profiles.Request) { r.Memory = &m })
		if res.Reason != driver.ReasonOOM || strings.Contains(res.Stdout, "4") {
			t.Errorf("%+v", res)
		}
	})
}

// typed runs a script with a terminal, types, and returns what was shown.
func typed(t *testing.T, script, text string) string {
	t.Helper()
	home, _ := os.UserHomeDir()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r, err := profiles.Resolve(&profiles.Request{
		Command: []string{"/bin/sh", "-c", script}, Dir: dir, Terminal: true,
		Degrade: policy.LayerUser | policy.LayerPID | policy.LayerMount | policy.LayerUTS | policy.LayerCgroupNS | policy.LayerSeccomp | policy.LayerCgroup,
	}, &profiles.Facts{Home: home, Cwd: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	r.Policy.OCI.Process.ConsoleSize = &specs.Box{Width: 91, Height: 17}
	p, err := seatbelt.Driver{Home: home}.Start(context.Background(), r.Policy, driver.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string)
	go func() {
		p.Pty().WriteString(text)
		b, _ := io.ReadAll(p.Pty())
		out <- string(b)
	}()
	var shown string
	select {
	case shown = <-out:
	case <-time.After(20 * time.Second):
		t.Error("the terminal stays open")
		p.Kill()
	}
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	return shown
}
