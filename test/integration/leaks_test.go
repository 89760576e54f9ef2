//go:build linux

package integration

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A state is what of the host could have leaked: open descriptors of this
// process, and the run directories of sbxrun.
type state struct {
	fds      int
	temps    map[string]bool
	patience time.Duration // with what is about to end
}

// lookAround notes the state before the tests.
func lookAround() state {
	s := state{fds: openFDs(), temps: temporaries(), patience: 10 * time.Second}
	if breakLayer == "kill" {
		s.patience = time.Second // it is in vain, and who runs beside it finds what it left
	}
	return s
}

// leaks names what is left behind: processes, mounts, cgroups, temporary files
// and descriptors. It looks at what carries the tests' own names only, for other
// sandboxes may run on this host.
func (s state) leaks() []string {
	var left []string
	within(s.patience, func() bool {
		left = nil
		for _, p := range processes(runDir) {
			left = append(left, "process "+p)
		}
		left = append(left, mountsOf(runDir)...)
		left = append(left, deadGroups()...)
		for path := range temporaries() {
			if !s.temps[path] {
				left = append(left, "file "+path)
			}
		}
		return len(left) == 0
	})
	if n := openFDs(); n > s.fds {
		left = append(left, fmt.Sprintf("%d descriptors of the test, %d before", n, s.fds))
	}
	return left
}

func openFDs() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	n := 0
	for _, e := range entries {
		// The poller's own descriptors come with the first use of it.
		link, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if !strings.HasPrefix(link, "anon_inode:") {
			n++
		}
	}
	return n
}

// perUser are directories that stay: those that drivers and sessions keep their
// state in where a user has no runtime directory.
var perUser = regexp.MustCompile(`^sbxrun-[0-9]+(-[a-z]+)?(-[0-9])?$`)

// temporaries are files of the names that sbxrun gives to such, where programs
// put them. The tests of other packages, which run beside these, have others.
func temporaries() map[string]bool {
	m := map[string]bool{}
	for _, pattern := range []string{"sbxrun-[0-9]*/canary-*", "sbxrun-doctor-*", "sbxrun-[0-9]*", ".sbxrun*"} {
		for _, dir := range []string{os.TempDir(), "/tmp", "/run", "/dev/shm", "/var/tmp"} {
			paths, _ := filepath.Glob(filepath.Join(dir, pattern))
			for _, p := range paths {
				if !perUser.MatchString(filepath.Base(p)) {
					m[p] = true
				}
			}
		}
	}
	return m
}

// mountsOf are the mounts whose source or target is below dir.
func mountsOf(dir string) []string {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	defer f.Close()
	var found []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.Contains(s.Text(), dir) {
			found = append(found, "mount "+s.Text())
		}
	}
	return found
}

// deadGroups are cgroups of runs whose sbxrun is gone. A group is named for the
// process that made it, r-TIME-PID-RANDOM.
func deadGroups() []string {
	var found []string
	roots, _ := cgroupRoots()
	for _, root := range roots {
		for _, pattern := range []string{root + "/sbxrun/r-*", root + "/sbxrun-test-*/sbxrun/r-*", root + "/sbxrun-test-*/*/sbxrun/r-*"} {
			dirs, _ := filepath.Glob(pattern)
			for _, dir := range dirs {
				parts := strings.Split(filepath.Base(dir), "-")
				if len(parts) != 4 {
					continue
				}
				pid, err := strconv.Atoi(parts[2])
				// EPERM: it lives, and is somebody else's.
				if err != nil || syscall.Kill(pid, 0) != syscall.ESRCH {
					continue
				}
				if exists(dir) {
					found = append(found, "cgroup "+dir)
				}
			}
		}
	}
	return found
}

// TestLeakCheck shows that what is left behind is found: a process, a cgroup and
// a temporary file.
func TestLeakCheck(t *testing.T) {
	s := lookAround()
	s.patience = time.Second // it is in vain
	sleeper := exec.Command(attack, "sleep")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sleeper.Process.Kill(); sleeper.Wait() }()
	temp, err := os.CreateTemp("", "sbxrun-doctor-leak-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { temp.Close(); os.Remove(temp.Name()) }()
	want := []string{"process ", "file " + temp.Name(), "descriptors"}
	for _, w := range whos {
		for _, dir := range w.delegated() {
			// A process id beyond the largest that there is.
			group := filepath.Join(dir, "leak", "sbxrun", "r-0-4194305-0")
			if os.MkdirAll(group, 0o755) == nil {
				defer removeGroups(filepath.Join(dir, "leak"))
				want = append(want, "cgroup "+group)
			}
		}
	}
	left := strings.Join(s.leaks(), "\n")
	for _, w := range want {
		if !strings.Contains(left, w) {
			t.Errorf("%q is not found in:\n%s", w, left)
		}
	}
}
