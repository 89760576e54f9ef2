package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestInContainer runs sbxrun in Docker's containers, as in CI: what a default
// one does not allow is refused, and what is said to do about it is right. Each
// advice is taken from the program's own words, and followed.
func TestInContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start dockerd")
	}
	stop, err := Docker()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	dir := t.TempDir()
	bin, work, tmp := filepath.Join(dir, "sbxrun"), filepath.Join(dir, "work"), filepath.Join(dir, "tmp")
	build := exec.Command("go", "build", "-o", bin, "github.com/sbxrun/sbxrun/cmd/sbxrun")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, d := range []string{work, tmp} {
		if err := os.Mkdir(d, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, 0o777|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
	}
	// The image is busybox; programs and libraries are this machine's.
	fixed := []string{"run", "--rm", "--network", "none", "-w", "/work", "-v", work + ":/work", "-v", tmp + ":/tmp", "-v", bin + ":/bin/sbxrun:ro"}
	for _, d := range []string{"/usr", "/lib", "/lib64"} {
		if _, err := os.Stat(d); err == nil {
			fixed = append(fixed, "-v", d+":"+d+":ro")
		}
	}
	run := func(options []string, argv ...string) (stdout, stderr string, code int) {
		t.Helper()
		args := append(append(append(fixed[:len(fixed):len(fixed)], options...), Image), argv...)
		cmd := exec.Command("docker", args...)
		var o, e bytes.Buffer
		cmd.Stdout, cmd.Stderr = &o, &e
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return o.String(), e.String(), cmd.ProcessState.ExitCode()
	}
	// What the command may and may not, whatever confines it.
	const acts = `echo ran; echo x >ws-$(id -u)-$$-$(cut -d. -f1 /proc/uptime) && echo wrote; (echo x >/home/outside) 2>/dev/null && echo escaped; ` +
		`(echo x >/tmp/../etc/plain) 2>/dev/null && echo escaped; grep ^Seccomp: /proc/self/status; grep ^NoNewPrivs: /proc/self/status; grep ^CapEff: /proc/self/status`
	held := func(t *testing.T, stdout string) {
		t.Helper()
		for _, want := range []string{"ran\nwrote\n", "Seccomp:\t2\n", "NoNewPrivs:\t1\n", "CapEff:\t0000000000000000\n"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("no %q in %q", want, stdout)
			}
		}
		if strings.Contains(stdout, "escaped") {
			t.Errorf("%q", stdout)
		}
	}
	option := regexp.MustCompile(`--security-opt [a-z]+=unconfined`)

	for _, user := range []string{"0:0", "1000:1000"} {
		t.Run("user "+user, func(t *testing.T) {
			as := []string{"--user", user}
			// The control: this container lets its user write there.
			if user == "0:0" {
				if out, _, _ := run(as, "sh", "-c", acts); !strings.Contains(out, "escaped") {
					t.Fatalf("without a sandbox: %q", out)
				}
			}
			_, stderr, code := run(as, "sbxrun", "--profile", "strict", "--", "true")
			if code != 125 || !strings.Contains(stderr, "hint:") {
				t.Errorf("strict in a default container: exit code %d, %s", code, stderr)
			}

			out, stderr, code := run(as, "sbxrun", "doctor", "--json")
			var d struct {
				Strict bool
				Weaker struct{ Driver, Without string }
			}
			if err := json.Unmarshal([]byte(out), &d); err != nil {
				// Without may be a list.
				var l struct {
					Weaker struct {
						Driver  string
						Without []string
					}
				}
				if err := json.Unmarshal([]byte(out), &l); err != nil {
					t.Fatalf("%v: %s%s", err, out, stderr)
				}
				d.Weaker.Driver, d.Weaker.Without = l.Weaker.Driver, strings.Join(l.Weaker.Without, ",")
			}
			if code != 1 || d.Strict || d.Weaker.Driver != "landlock" {
				t.Fatalf("doctor: exit code %d, %+v", code, d)
			}
			out, stderr, code = run(as, "sbxrun", "--profile", "strict", "--driver", d.Weaker.Driver, "--allow-degraded", d.Weaker.Without, "--", "sh", "-c", acts)
			if code != 0 || !strings.Contains(stderr, "ran without") {
				t.Errorf("exit code %d: %s", code, stderr)
			}
			held(t, out)

			// Each thing that the container forbids leads to the same advice, and
			// with all of it only the cgroups are missing.
			_, stderr, _ = run(as, "sbxrun", "--profile", "strict", "--allow-degraded", "cgroup", "--", "true")
			advice := option.FindAllString(stderr, -1)
			if len(advice) == 0 {
				t.Fatalf("no advice in: %s", stderr)
			}
			some := append(as[:2:2], strings.Fields(advice[0])...)
			_, stderr, code = run(some, "sbxrun", "--profile", "strict", "--allow-degraded", "cgroup", "--", "true")
			if again := option.FindAllString(stderr, -1); code != 125 || fmt.Sprint(again) != fmt.Sprint(advice) {
				t.Errorf("after half of the advice: exit code %d, %s", code, stderr)
			}
			all := as[:2:2]
			for _, a := range advice {
				all = append(all, strings.Fields(a)...)
			}
			out, stderr, code = run(all, "sbxrun", "--profile", "strict", "--allow-degraded", "cgroup", "--", "sh", "-c", acts+"; echo pid $$")
			if code != 0 {
				t.Errorf("after all of the advice: exit code %d, %s", code, stderr)
			}
			held(t, out)
		})
	}
}
