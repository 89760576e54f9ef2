package probe

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CanaryCommand is the first argument of the program that tries, inside a
// sandbox, what the sandbox is to deny.
const CanaryCommand = "__canary"

// A canary is one act. Do reports nil if the act succeeded, which is what the
// boundary must not let happen, or must if the canary is a neighbour: an act
// like the forbidden ones that is allowed, so that a sandbox in which nothing
// works at all does not pass for one that holds.
type canary struct {
	name      string
	neighbour bool
	do        func(arg string) error
}

var canaries = [...]canary{
	{"write-private", true, create},
	{"write-system", false, func(string) error {
		for _, dir := range []string{"/", "/etc", "/usr", "/usr/bin"} {
			if create(dir) == nil {
				return nil
			}
		}
		return syscall.EROFS
	}},
	{"read-secret", false, func(arg string) error { _, err := os.ReadFile(arg); return err }},
	{"read-shadow", false, func(string) error { _, err := os.ReadFile("/etc/shadow"); return err }},
	{"connect-loopback", false, func(arg string) error { return connect("tcp", arg) }},
	{"connect-abstract", false, func(arg string) error { return connect("unix", arg) }},
	{"see-process", false, func(arg string) error {
		number, space, _ := strings.Cut(arg, ":")
		pid, err := strconv.Atoi(number)
		if err != nil {
			return nil
		}
		// EPERM says that it is there, and is no denial.
		if err := unix.Kill(pid, 0); err == nil || err == unix.EPERM {
			// In a container, where numbers are small too, it can be another
			// process that has this one: in a namespace of its own, of which
			// /proc is too. The machine's first namespace is nobody's own.
			self, err := os.Readlink("/proc/self")
			if own := processSpace(); err == nil && self == strconv.Itoa(os.Getpid()) && own != "" && own != firstSpace &&
				space != "" && own != space {
				return errors.New("that is another process, in a namespace of its own")
			}
			return nil
		}
		_, err = os.Stat("/proc/" + number)
		return err
	}},
	{"mount", false, func(at string) error { return unix.Mount("tmpfs", at, "tmpfs", 0, "") }},
	{"unshare", false, func(string) error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"make-device", false, func(in string) error {
		return unix.Mknod(in+"/.sbxrun-canary-device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1)))
	}},
	{"use-device", false, func(in string) error {
		for _, dev := range []struct {
			kind         uint32
			major, minor uint32
		}{{unix.S_IFCHR, 1, 1}, {unix.S_IFCHR, 1, 11}, {unix.S_IFBLK, 8, 0}, {unix.S_IFBLK, 254, 0},
			{unix.S_IFBLK, 259, 0}} { // mem, kmsg, sda, vda, nvme
			name := in + "/.sbxrun-canary-device"
			if err := unix.Mknod(name, dev.kind|0o600, int(unix.Mkdev(dev.major, dev.minor))); err != nil {
				continue
			}
			f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
			os.Remove(name)
			if err == nil {
				f.Close()
				return nil
			}
		}
		return errors.New("none of the host's can be opened")
	}},
	{"become-root", false, func(string) error { return unix.Setresuid(0, 0, 0) }},
	{"use-root", false, func(string) error {
		// With the name of root or without it: neither this process nor a program
		// that it executes has a capability, and no set from which to get one.
		unix.Setresgid(0, 0, 0)
		unix.Setresuid(0, 0, 0)
		if err := noCapabilities(); err == nil {
			return nil
		}
		out, err := exec.Command("/proc/self/exe", CanaryCommand, "capabilities").Output()
		if err != nil {
			return nil
		}
		if c := ParseCanaries(string(out), []string{"capabilities"})[0]; c.State != Yes {
			return nil
		}
		return errors.New("root has no capability, and gains none by execution")
	}},
	{"trace", false, func(string) error {
		// A filter answers before the kernel looks for the process, which does
		// not exist: pid_max is at most 4194304.
		_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1<<30, 0, 0, 0, 0)
		if errno == 0 || errno == unix.ESRCH {
			return nil
		}
		return errno
	}},
	{"change-kernel", false, func(string) error {
		f, err := os.OpenFile("/proc/sys/kernel/core_pattern", os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		return err
	}},
	{"capabilities", false, func(string) error { return noCapabilities() }},
	{"gain-privilege", false, func(string) error {
		if status("NoNewPrivs") == "" {
			// gVisor's status has no such line.
			if n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && n == 1 {
				return errors.New("no_new_privs is 1")
			}
		}
		return isSet("NoNewPrivs", "1")
	}},
	{"call-freely", false, func(string) error { return isSet("Seccomp", "2") }},
}

// Canary tries the acts that the arguments name, each NAME or NAME=ARGUMENT, and
// prints for each a line that [ParseCanaries] reads. It returns the exit code.
func Canary(args []string) int {
	for _, a := range args {
		name, arg, _ := strings.Cut(a, "=")
		for _, c := range canaries {
			if c.name != name {
				continue
			}
			err := c.do(arg)
			held := err != nil
			if c.neighbour {
				held = err == nil
			}
			text := "it succeeded"
			if err != nil {
				text = err.Error()
			}
			fmt.Printf("%s\t%t\t%s\n", c.name, held, strings.ReplaceAll(text, "\n", " "))
		}
	}
	return 0
}

// ParseCanaries reads what Canary printed for the names that it was asked for.
// One without a line has not held: that it was tried is what must be shown.
func ParseCanaries(out string, names []string) []Check {
	said := map[string][2]string{}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimRight(line, "\n"), "\t", 3)
		if len(f) == 3 {
			said[f[0]] = [2]string{f[1], f[2]}
		}
	}
	var checks []Check
	for _, name := range names {
		c := Check{Name: name, Group: GroupBoundary, State: No}
		switch s := said[name]; s[0] {
		case "true":
			c.State, c.Detail = Yes, s[1]
		case "false":
			c.Cause = s[1]
		default:
			c.State, c.Cause = Unknown, "it was not tried"
		}
		checks = append(checks, c)
	}
	return checks
}

// noCapabilities reports an error, that is a denial, if there is no capability to
// have.
func noCapabilities() error {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		got := status(set)
		// gVisor does not tell the ambient set, of which all is permitted and
		// inheritable too; see capabilities(7).
		if strings.Trim(got, "0") != "" || got == "" && set != "CapAmb" {
			return nil
		}
	}
	return errors.New("all five sets are empty")
}

// create makes a file in a directory and removes it again.
func create(dir string) error {
	name := strings.TrimRight(dir, "/") + "/.sbxrun-canary-" + strconv.Itoa(os.Getpid())
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(name)
}

func connect(network, addr string) error {
	c, err := net.DialTimeout(network, addr, 2*time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// status returns a field of /proc/self/status; see proc_pid_status(5).
func status(field string) string {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(field+":")); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

// isSet reports an error, that is a denial, if the field has the value.
func isSet(field, want string) error {
	if got := status(field); got != want {
		return nil
	}
	return errors.New(field + " is " + want)
}

// Process identifies the calling process to the canary see-process.
func Process() string { return strconv.Itoa(os.Getpid()) + ":" + processSpace() }

// firstSpace is the pid namespace of the machine: PROC_PID_INIT_INO of the kernel.
const firstSpace = "pid:[4026531836]"

// processSpace names the pid namespace of the caller, "" if that is not told.
func processSpace() string {
	s, _ := os.Readlink("/proc/self/ns/pid")
	return s
}
