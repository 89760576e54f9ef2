package probe

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain makes the test binary do what the program's main function does with
// the first argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case Command:
			os.Exit(Child(os.Args[2:]))
		case CanaryCommand:
			os.Exit(Canary(os.Args[2:]))
		}
	}
	os.Exit(m.Run())
}

func TestExplain(t *testing.T) {
	settings := func(name, value string) func(string) string {
		return func(s string) string {
			if s == name {
				return value
			}
			return ""
		}
	}
	const restrict = "kernel.apparmor_restrict_unprivileged_userns"
	for _, tt := range []struct {
		errno      syscall.Errno
		read       func(string) string
		cause, fix string
	}{
		{unix.ENOSPC, settings("user.max_user_namespaces", "0"), "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces"},
		{unix.ENOSPC, settings("user.max_user_namespaces", "9"), "too many", "sysctl -w"},
		{unix.EPERM, settings("kernel.unprivileged_userns_clone", "0"), "unprivileged_userns_clone is 0", "unprivileged_userns_clone=1"},
		{unix.EPERM, settings(restrict, "1"), "AppArmor", "apparmor_parser -r"},
		{unix.EPERM, settings("", ""), "seccomp filter", "container"},
		{unix.EINVAL, settings("", ""), "CONFIG_USER_NS", "CONFIG_USER_NS"},
	} {
		cause, fix := explainClone(tt.errno, tt.errno, tt.read)
		if !strings.Contains(cause, tt.cause) || !strings.Contains(fix, tt.fix) {
			t.Errorf("%v: %q, %q; want %q, %q", tt.errno, cause, fix, tt.cause, tt.fix)
		}
	}
	// Ubuntu 24.04: the namespace can be made, and then the mount is denied.
	cause, fix := explainMount(unix.EACCES, settings(restrict, "1"))
	if !strings.Contains(cause, "denies what it is for") || !strings.Contains(fix, "apparmor_parser") {
		t.Errorf("mount: %q, %q", cause, fix)
	}
}

// Every answer that is a no has a cause, and nothing is made on the host.
func TestHost(t *testing.T) {
	mounts := func() []byte {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// Others mount and unmount meanwhile, but not each time.
	for try := 1; ; try++ {
		before := mounts()
		checks := Host(context.Background())
		same := bytes.Equal(before, mounts())
		if try == 1 {
			names := map[string]State{}
			for _, c := range checks {
				names[c.Name] = c.State
				if c.State != Yes && c.Cause == "" {
					t.Errorf("%s is %v without a cause", c.Name, c.State)
				}
			}
			for _, want := range []string{"kernel", "user namespace", "landlock", "seccomp", "cgroup.memory", "overlayfs", "id-mapped mounts", "bwrap"} {
				if _, ok := names[want]; !ok {
					t.Errorf("%s was not probed", want)
				}
			}
		}
		if same {
			return
		}
		if try == 100 {
			t.Fatal("the host's mounts changed, each time")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// The canaries' control: without a sandbox every act succeeds, so that none of
// them passes for denied by being broken. They run in namespaces of their own,
// as root there, in which what they do is undone with them. Left out are the
// three that would reach the host from there or that even that root is denied.
func TestCanariesUnconfined(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	abstract, err := net.Listen("unix", "@sbxrun-test-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	args := map[string]string{
		"write-private":    dir,
		"mount":            dir,
		"read-secret":      secret,
		"connect-loopback": tcp.Addr().String(),
		"connect-abstract": abstract.Addr().String(),
		"see-process":      Process(),
	}
	skip := map[string]string{
		"write-system":  "writes to the host",
		"make-device":   "denied in every user namespace",
		"use-device":    "denied in every user namespace",
		"change-kernel": "allowed to the host's root only",
		"read-shadow":   "allowed to the host's root only",
	}
	var acts, names []string
	for _, c := range canaries {
		name := c.name
		if skip[name] != "" {
			continue
		}
		names = append(names, name)
		if a, ok := args[name]; ok {
			name += "=" + a
		}
		acts = append(acts, name)
	}
	// What changes the process comes last: after unshare(2) it holds every
	// capability in a namespace of its own.
	slices.SortStableFunc(acts, func(a, b string) int {
		return strings.Count(a, "unshare") - strings.Count(b, "unshare")
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, append([]string{CanaryCommand}, acts...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
			t.Skipf("needs user namespaces: %v", err)
		}
		t.Fatal(err)
	}
	for _, c := range ParseCanaries(out.String(), names) {
		want := No
		if c.Name == "write-private" {
			want = Yes
		}
		if c.Name == "unshare" && strings.Contains(c.Detail, "invalid argument") {
			continue // a threaded process may not unshare its user namespace
		}
		if c.State != want {
			t.Errorf("%s: held %v without a sandbox (%s%s)", c.Name, c.State, c.Detail, c.Cause)
		}
	}
}

// A device node that can be made is one that can be used, without a sandbox.
func TestUseDeviceUnconfined(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mknod(dir+"/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("needs the right to make device nodes: %v", err)
	}
	if f, err := os.Open(dir + "/null"); err != nil {
		t.Skipf("needs a file system with device nodes: %v", err)
	} else {
		f.Close()
	}
	for _, c := range canaries {
		if c.name == "use-device" {
			if err := c.do(dir); err != nil {
				t.Errorf("held without a sandbox: %v", err)
			}
		}
	}
}

func TestParseCanaries(t *testing.T) {
	got := ParseCanaries("mount\ttrue\tdenied\nunshare\tfalse\tit succeeded\nnoise\nextra\ttrue\tx\n", []string{"mount", "unshare", "trace"})
	if len(got) != 3 || got[0].State != Yes || got[1].State != No || got[2].State != Unknown {
		t.Errorf("got %+v", got)
	}
	for _, c := range got[1:] {
		if c.Cause == "" {
			t.Errorf("%s has no cause", c.Name)
		}
	}
}
