//go:build linux

package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEffects is where attacks on the machine itself take effect in their
// controls: K09 and P16, whose entries in the battery only see that the calls
// are made. It runs on machines that are thrown away: test/vm. Of K09 it leaves
// out quotactl(2), for which those machines' kernels have no format of quotas.
func TestEffects(t *testing.T) {
	if os.Getenv("SBXRUN_TEST_THROWAWAY") == "" || !isRoot() {
		t.Skip("its controls load modules and set the clock of the machine: they are for test/vm's, as root")
	}
	t.Run("K09", func(t *testing.T) {
		dir := machineRoom(t)
		for _, w := range whos {
			t.Run(w.name, func(t *testing.T) { k09Effects(newFixture(t, w), dir) })
		}
	})
	t.Run("P16", func(t *testing.T) {
		for _, w := range whos {
			t.Run(w.name, func(t *testing.T) { p16Piped(newFixture(t, w)) })
		}
	})
}

// machineRoom is a directory on a disk with what K09's calls take: a module, a
// kernel, storage to swap on, a file for process accounts.
func machineRoom(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "effects-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	script := `chmod 755 . ; cp /modules/$(uname -r)/kernel/drivers/net/dummy.ko module.ko; cp /modules/vmlinuz vmlinuz
		: >acct; dd if=/dev/zero of=swap bs=1M count=8; chmod 600 swap; mkswap swap`
	cmd := exec.Command("sh", "-e", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// machine is what K09's calls change.
func machine(t *testing.T, dir string) map[string]string {
	t.Helper()
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	has := func(path, text string) string { return fmt.Sprint(strings.Contains(read(path), text)) }
	var real, boot unix.Timespec
	if err := errors.Join(unix.ClockGettime(unix.CLOCK_REALTIME, &real), unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot), exec.Command("true").Run()); err != nil {
		t.Fatal(err)
	}
	accounts, err := os.Stat(filepath.Join(dir, "acct"))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"finit_module":    has("/proc/modules", "dummy "),
		"swapon":          has("/proc/swaps", filepath.Join(dir, "swap")),
		"acct":            fmt.Sprint(accounts.Size() > 0),
		"kexec_file_load": read("/sys/kernel/kexec_loaded"),
		"reboot":          read("/proc/sys/kernel/ctrl-alt-del"),
		// The day on which it was started, or would have been.
		"clock_settime": time.Unix(real.Sec-boot.Sec, 0).UTC().Add(12 * time.Hour).Truncate(24 * time.Hour).String(),
		"sethostname":   read("/proc/sys/kernel/hostname"),
		"setdomainname": read("/proc/sys/kernel/domainname"),
		"swappiness":    read("/proc/sys/vm/swappiness"),
	}
}

// k09Effects is K09: nothing changes from inside, and everything from outside.
func k09Effects(f *fixture, dir string) {
	before := machine(f.T, dir)
	args := []string{"effects", "dir=" + dir, "module=dummy"}
	// What the calls take is there to be used.
	e := entry{id: "K09", deny: refused, want: map[string]string{"swappiness": unwritable, "bytes of the kernel's log": "0"}}
	for _, more := range [][]string{nil, {"undo=yes"}} {
		o := f.attackIn([]string{"--rw", dir}, append(args, more...)...)
		e.judge(f, f.report(o), e.inside)
	}
	after := machine(f.T, dir)
	for what, v := range before {
		if after[what] != v {
			f.Errorf("%s: the machine was %q, is %q", what, v, after[what])
		}
	}
	want := func(act string) string {
		switch {
		case act == "bytes of the kernel's log":
			return ">=1"
		case act == "kexec_file_load" && runtime.GOARCH == "arm64":
			return "ok|ENOSYS" // Debian's 6.1 for arm64 is built without
		}
		return "ok"
	}
	f.step("control as the machine's root without the sandbox", func() {
		f.who = who{name: "root"}
		defer func() {
			e.judge(f, f.report(f.do(call{args: append([]string{f.attack}, append(args, "undo=yes")...)})), want)
			if left := machine(f.T, dir); left["finit_module"] != before["finit_module"] || left["clock_settime"] != before["clock_settime"] {
				f.Errorf("not undone: %v", left)
			}
			os.Truncate(filepath.Join(dir, "acct"), 0)
		}()
		r := f.report(f.do(call{args: append([]string{f.attack}, args...)}))
		e.judge(f, r, want)
		for what, v := range machine(f.T, dir) {
			if before[what] == v && r.got(what) != "ENOSYS" {
				f.Errorf("%s: the control changed nothing: %q", what, v)
			}
		}
	})
}

// p16Piped is P16 where the machine pipes its cores to a program: it is not to
// be started for what crashes inside, nor to get a byte.
func p16Piped(f *fixture) {
	const pattern = "/proc/sys/kernel/core_pattern"
	old, err := os.ReadFile(pattern)
	if err != nil {
		f.Fatal(err)
	}
	note := filepath.Join("/run", f.unique("core"))
	handler := fmt.Sprintf("|%s piped to=%s", attack, note)
	if len(handler) > 127 {
		f.Fatalf("%d bytes are too long for a core_pattern: %s", len(handler), handler)
	}
	if err := os.WriteFile(pattern, []byte(handler), 0); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.WriteFile(pattern, old, 0); os.Remove(note) })
	r := f.report(f.attackIn(nil, "P16"))
	if r.got("neighbour: the crash") != "SIGSEGV" {
		f.Errorf("it did not crash: %+v", r)
	}
	if within(time.Second, func() bool { return exists(note) }) {
		b, _ := os.ReadFile(note)
		f.Errorf("the handler was started, and got %s bytes", b)
	}
	f.step("control without the sandbox", func() {
		o := f.do(call{args: f.who.command(f.attack, "crash")})
		if o.code != 128+int(syscall.SIGSEGV) || !within(10*time.Second, func() bool { return exists(note) }) {
			f.Fatalf("no handler was started: %v", o)
		}
		if !within(10*time.Second, func() bool { b, _ := os.ReadFile(note); return strings.HasSuffix(string(b), "ok") }) {
			b, _ := os.ReadFile(note)
			f.Errorf("the handler got %q", b)
		}
	})
}
