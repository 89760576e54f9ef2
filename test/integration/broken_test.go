//go:build linux

package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// breakLayer is the layer that the binary under test lacks, "" but in the runs
// that TestBrokenLayers starts.
var breakLayer = os.Getenv("SBXRUN_BREAK")

// broken are layers that a build with the tag "broken" can go without, and the
// tests that must notice: ids of the battery, and functions. For each there is
// one that fails; the whole battery would take an hour.
var broken = []struct{ layer, tests string }{
	{"seccomp", "P02 K05"},
	{"landlock", "K14"},
	{"capabilities", "P01"},
	{"no_new_privs", "P02"},
	{"root", "F02"},
	{"masks", "F21"},
	{"pid", "P14"}, // the second stage refuses to be: nothing runs, and the test sees that
	{"net", "N02"},
	{"ipc", "P20"},
	{"uts", "P20"},
	{"cgroupns", "K11"},
	{"rlimits", "R04 R11"},
	{"limits", "P09"},
	{"cgroup", "R01"}, // its 40 polite forks; no bomb follows
	{"descriptors", "V05"},
	{"kill", "P07"},
	{"guard", "F06 F08 F10 F23 TestSessionProtected"},
	{"egress", "N04 TestEgressAddresses"},
}

// TestBrokenLayers is the test of the tests: with each layer taken away in turn,
// the tests that are about it fail; with none taken away, by the same build, they
// pass.
func TestBrokenLayers(t *testing.T) {
	if breakLayer != "" {
		t.Skip("this is such a run")
	}
	bin := brokenPrograms(t)
	w := whos[0]
	here := slices.DeleteFunc(slices.Clone(broken), func(b struct{ layer, tests string }) bool {
		switch {
		case b.layer == "cgroup" && w.noCgroup != "":
			t.Logf("cgroup: %s", w.noCgroup)
			return true
		case b.layer == "egress" && !isRoot():
			t.Log("egress: needs root: to make a network with servers in it")
			return true
		}
		return false
	})
	// It takes longest, so it is the first.
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		var all []string
		for _, b := range here {
			all = append(all, strings.Fields(b.tests)...)
		}
		if out, err := battery(t, bin, "none", w, all); err != nil {
			t.Errorf("the tests fail with all layers there: %v\n%s", err, out)
		}
	})
	for _, b := range here {
		tests := strings.Fields(b.tests)
		t.Run(b.layer, func(t *testing.T) {
			// Before the others, which would find what is left behind by this one.
			if b.layer != "kill" {
				t.Parallel()
			}
			out, err := battery(t, bin, b.layer, w, tests)
			if err == nil {
				t.Fatalf("the tests pass without %s:\n%s", b.layer, out)
			}
			for _, test := range tests {
				if !strings.HasPrefix(test, "Test") {
					test = "TestBattery/" + test
				}
				if !strings.Contains(out, "--- FAIL: "+test+"/"+w.name) {
					t.Errorf("%s passes without %s:\n%s", test, b.layer, out)
				}
			}
		})
	}
}

// battery runs tests in a process of its own.
func battery(t *testing.T, bin, layer string, w who, tests []string) (string, error) {
	t.Helper()
	// Of the battery by id and user, of others by user.
	first, second := []string{"TestBattery"}, []string{w.name}
	for _, test := range tests {
		if strings.HasPrefix(test, "Test") {
			first = append(first, test)
		} else {
			second = append(second, test)
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.timeout=5m",
		"-test.run=^("+strings.Join(first, "|")+")$/^("+strings.Join(second, "|")+")$/^("+w.name+"|control.*)$")
	// All that it starts has this name in its command line.
	dir, err := os.MkdirTemp(runDir, "broken-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "SBXRUN_TEST_BIN="+bin, "SBXRUN_BREAK="+layer)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if layer == "kill" {
		// A sandbox that kills nobody has to be taken down by hand.
		for range 10 {
			for _, p := range processes(dir) {
				var pid int
				if fmt.Sscan(p, &pid); pid > 0 {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		for _, g := range deadGroups() {
			os.Remove(strings.TrimPrefix(g, "cgroup "))
		}
	}
	return string(out), err
}

// brokenPrograms is a directory of the programs that the tests use, of which
// sbxrun is a build that can be broken.
func brokenPrograms(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bin")
	if err := os.CopyFS(dir, os.DirFS(filepath.Dir(sbxrun))); err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(dir, "sbxrun-broken")
	if _, err := os.Stat(built); err != nil {
		if _, err := exec.LookPath("go"); err != nil {
			t.Skip("no Go compiler here, and no sbxrun-broken among the programs")
		}
		cmd := exec.Command("go", "build", "-tags", "broken", "-o", built, "github.com/sbxrun/sbxrun/cmd/sbxrun")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	if err := os.Rename(built, filepath.Join(dir, "sbxrun")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestShippedIsNotBroken shows that no build but one with the tag can lose a
// layer: it does not so much as hold the variable's name.
func TestShippedIsNotBroken(t *testing.T) {
	t.Parallel()
	if breakLayer != "" {
		t.Skip("this is a run of the other build")
	}
	contains := func(path string) bool {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(b, []byte("SBXRUN_BREAK"))
	}
	if contains(sbxrun) {
		t.Error("sbxrun knows SBXRUN_BREAK")
	}
	if !contains(filepath.Join(brokenPrograms(t), "sbxrun")) {
		t.Error("the build that can be broken does not know SBXRUN_BREAK: this test shows nothing")
	}
}
