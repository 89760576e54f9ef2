package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/sys"
)

// patience bounds each child and each program that is asked for its version.
const patience = 5 * time.Second

// self is this program, also where it was replaced or its path is not visible.
const self = "/proc/self/exe"

// Host reports what this host can give a sandbox.
func Host(ctx context.Context) []Check {
	user, kernelChecks := namespaces(ctx)
	out := append([]Check{kernel()}, kernelChecks...)
	out = append(out, landlock(), seccomp())
	out = append(out, cgroup()...)
	out = append(out, settings(user)...)
	return append(out, others(ctx)...)
}

func kernel() Check {
	c := Check{Name: "kernel", Group: GroupKernel, State: Yes, Detail: "Linux " + sys.Release() + " " + runtime.GOARCH}
	if c.Cause, c.Fix = sys.TooOld(); c.Cause != "" {
		c.State = No
	}
	return c
}

// An act is something that a child does in namespaces of its own.
type act struct {
	name  string
	flags uintptr // CLONE_NEW*, beside CLONE_NEWUSER
	do    func() error
}

var acts = [...]act{
	{"user namespace", unix.CLONE_NEWNS, mountTmpfs},
	{"pid namespace", unix.CLONE_NEWNS | unix.CLONE_NEWPID, doProc},
	{"network namespace", unix.CLONE_NEWNET, doLoopback},
	{"other namespaces", unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP, func() error {
		return os.NewSyscallError("sethostname", unix.Sethostname([]byte("probe")))
	}},
	{"mount API", unix.CLONE_NEWNS, doMountAPI},
	{"overlayfs", unix.CLONE_NEWNS, doOverlay},
	{"id-mapped mounts", unix.CLONE_NEWNS, doIDMap},
}

// Child runs the probe that the arguments name and returns the exit code. What
// went wrong is on stdout, after the errno.
//
// Preconditions: the process was started by [Host].
func Child(args []string) int {
	if len(args) != 1 {
		return 2
	}
	if args[0] == "wait" { // holds a namespace until stdin is closed
		var b [1]byte
		os.Stdin.Read(b[:])
		return 0
	}
	for _, a := range acts {
		if a.name != args[0] {
			continue
		}
		if err := a.do(); err != nil {
			var errno syscall.Errno
			errors.As(err, &errno)
			fmt.Printf("%d %v\n", int(errno), err)
			return 1
		}
		return 0
	}
	return 2
}

// attempt runs an act in a child. A failure to make the namespaces and a
// failure of the act itself are told apart.
func attempt(ctx context.Context, a act) (made bool, errno syscall.Errno, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, Command, a.name)
	cmd.Args[0] = os.Args[0]
	cmd.Env = []string{Marker}
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | a.flags,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		errors.As(err, &errno)
		return false, errno, err
	}
	err = cmd.Wait()
	if err == nil {
		return true, 0, nil
	}
	number, text, ok := strings.Cut(strings.TrimSpace(out.String()), " ")
	if n, e := strconv.Atoi(number); ok && e == nil {
		return true, syscall.Errno(n), errors.New(text)
	}
	return true, 0, err
}

// namespaces tries every act. User is whether user namespaces can be used.
func namespaces(ctx context.Context) (user State, out []Check) {
	for i, a := range acts {
		c := Check{Name: a.name, Group: GroupKernel, State: Yes}
		if i > 0 && user == No {
			c.State, c.Cause = Unknown, "needs a user namespace"
			out = append(out, c)
			continue
		}
		made, errno, err := attempt(ctx, a)
		if err != nil {
			c.State, c.Cause = No, err.Error()
			switch {
			case !made:
				c.Cause, c.Fix = explainClone(errno, err, readSetting)
			case i == 0:
				c.Cause, c.Fix = explainMount(err, readSetting)
			case errno == 0:
				c.State = Unknown // the child itself went wrong
			default:
				c.Fix = fixFor(a.name)
			}
		}
		if i == 0 {
			user = c.State
		}
		out = append(out, c)
	}
	return user, out
}

// container are the options that let a container have sandboxes. All at once:
// each alone leads to the next refusal.
const container = "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined --security-opt apparmor=unconfined " +
	"(podman: --security-opt unmask=ALL for the second)"

// explainClone says why no user namespace could be made; see clone(2), ERRORS.
func explainClone(errno syscall.Errno, err error, read func(string) string) (cause, fix string) {
	cause = err.Error()
	switch {
	case errno == unix.ENOSPC && read("user.max_user_namespaces") == "0":
		return "user.max_user_namespaces is 0",
			"sudo sysctl -w user.max_user_namespaces=15000 (and a file in /etc/sysctl.d to keep it)"
	case errno == unix.ENOSPC:
		return "too many user namespaces, or too deeply nested: " + cause, "sudo sysctl -w user.max_user_namespaces=15000"
	case errno == unix.EPERM && read("kernel.unprivileged_userns_clone") == "0":
		return "kernel.unprivileged_userns_clone is 0",
			"sudo sysctl -w kernel.unprivileged_userns_clone=1 (and a file in /etc/sysctl.d to keep it)"
	case errno == unix.EPERM && read("kernel.apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor restricts user namespaces to programs with a profile", appArmorFix()
	case errno == unix.EPERM:
		return "a seccomp filter or security module denies it, as in a default container: " + cause,
			"run outside the container, or " + container
	case errno == unix.EINVAL || errno == unix.ENOSYS:
		return "the kernel has no user namespaces (CONFIG_USER_NS): " + cause, "run a kernel with CONFIG_USER_NS=y"
	}
	return cause, ""
}

// explainMount says why a namespace could be made and not used.
func explainMount(err error, read func(string) string) (cause, fix string) {
	if read("kernel.apparmor_restrict_unprivileged_userns") == "1" {
		return "AppArmor lets the namespace be made and denies what it is for: " + err.Error(), appArmorFix()
	}
	return "the namespace was made, but mounting in it is denied: " + err.Error(),
		"a security module or container denies mount(2): " + container
}

// appArmorFix names the profile that allows this executable, where it is.
func appArmorFix() string {
	exe, err := os.Executable()
	if err != nil {
		exe = "/usr/bin/sbxrun"
	}
	return "printf 'abi <abi/4.0>,\\nprofile sbxrun " + exe +
		" flags=(unconfined) { userns, }\\n' | sudo tee /etc/apparmor.d/sbxrun && sudo apparmor_parser -r /etc/apparmor.d/sbxrun"
}

func fixFor(name string) string {
	switch name {
	case "pid namespace":
		return "a container masks parts of /proc, and then no fresh one can be mounted: " + container
	case "overlayfs":
		return "needs Linux 5.11 or later with the overlay module: sudo modprobe overlay"
	case "id-mapped mounts":
		return "needs Linux 6.3 or later for tmpfs"
	case "mount API":
		return "needs Linux 5.12 or later, and a container that allows mount_setattr(2)"
	}
	return ""
}

// mountTmpfs makes the mounts private and mounts a tmpfs on /tmp.
func mountTmpfs() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return os.NewSyscallError("mount", unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m"))
}

func doProc() error {
	if err := mountTmpfs(); err != nil {
		return err
	}
	if err := os.Mkdir("/tmp/proc", 0o755); err != nil {
		return err
	}
	return os.NewSyscallError("mount",
		unix.Mount("proc", "/tmp/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
}

// doLoopback brings the loopback interface up, which is all that a network
// namespace has.
func doLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return os.NewSyscallError("ioctl", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr))
}

func doMountAPI() error {
	if err := mountTmpfs(); err != nil {
		return err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/usr", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return os.NewSyscallError("mount_setattr", err)
	}
	if err := os.Mkdir("/tmp/usr", 0o755); err != nil {
		return err
	}
	return os.NewSyscallError("move_mount",
		unix.MoveMount(fd, "", unix.AT_FDCWD, "/tmp/usr", unix.MOVE_MOUNT_F_EMPTY_PATH))
}

func doOverlay() error {
	if err := mountTmpfs(); err != nil {
		return err
	}
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir("/tmp/"+d, 0o755); err != nil {
			return err
		}
	}
	return os.NewSyscallError("mount", unix.Mount("overlay", "/tmp/merged", "overlay", 0,
		"lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr"))
}

func doIDMap() error {
	if err := mountTmpfs(); err != nil {
		return err
	}
	// The mapping is that of another namespace, which a process must hold.
	cmd := exec.Command(self, Command, "wait")
	cmd.Args[0], cmd.Env = os.Args[0], []string{Marker}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 0, Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	hold, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	defer hold.Close()
	ns, err := os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/user")
	if err != nil {
		return err
	}
	defer ns.Close()
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/tmp", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	return os.NewSyscallError("mount_setattr", unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr))
}

func landlock() Check {
	c := Check{Name: "landlock", Group: GroupKernel}
	// landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION).
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch errno {
	case 0:
		c.State, c.Detail = Yes, "ABI "+strconv.Itoa(int(abi))
	default:
		c.State = No
		if c.Cause, c.Fix = sys.NoLandlock(); errno == unix.EOPNOTSUPP {
			c.Fix += "; the lsm= list is now " + lsms()
		}
		c.Fix += "; or agree to go without: --allow-degraded landlock"
	}
	return c
}

func seccomp() Check {
	c := Check{Name: "seccomp", Group: GroupKernel}
	// With a null program a kernel that has filters says EFAULT, before it
	// looks at anything else; see seccomp(2).
	switch err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0); err {
	case unix.EFAULT:
		c.State = Yes
	case unix.EINVAL:
		c.State, c.Cause = No, "the kernel has no system call filters (CONFIG_SECCOMP_FILTER)"
		c.Fix = "run a kernel with CONFIG_SECCOMP_FILTER=y"
	default:
		c.Cause = fmt.Sprint(err)
	}
	return c
}

// cgroup makes a group with every limit, as a run does, and removes it.
func cgroup() []Check {
	type controller struct {
		name string
		bit  cgroups.Controllers
	}
	all := []controller{{"cgroup.memory", cgroups.Memory}, {"cgroup.cpu", cgroups.CPU}, {"cgroup.pids", cgroups.Pids}}
	fail := func(s State, cause string) []Check {
		var out []Check
		for _, k := range all {
			out = append(out, Check{Name: k.name, Group: GroupKernel, State: s, Cause: cause})
		}
		return out
	}
	memory, pids, quota, period := int64(64<<20), int64(64), int64(100000), uint64(100000)
	resources := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Pids:   &specs.LinuxPids{Limit: &pids},
	}
	layout, err := cgroups.Acquire(resources)
	if err != nil {
		return fail(Unknown, err.Error())
	}
	g, err := cgroups.Prepare(layout, resources)
	var missing *cgroups.MissingError
	if err != nil && !errors.As(err, &missing) {
		return fail(No, err.Error())
	}
	if g != nil {
		defer g.Close()
		if err := g.Create(); err != nil {
			return fail(No, err.Error())
		}
		defer g.Remove()
	}
	var out []Check
	for _, k := range all {
		c := Check{Name: k.name, Group: GroupKernel, State: Yes, Detail: way(layout, k.bit)}
		if missing != nil {
			for _, m := range missing.Missing {
				if m.Controller == k.bit {
					c.State, c.Cause, c.Fix, c.Detail = No, m.Cause, m.Fix, ""
				}
			}
		}
		out = append(out, c)
	}
	return out
}

// way says in which hierarchy a controller is, and by what right groups are made
// there.
func way(l cgroups.Layout, c cgroups.Controllers) string {
	version := "cgroup v2"
	for _, h := range l.Hierarchies {
		if !h.V2 && h.Controllers.Has(c) {
			version = "cgroup v1"
		}
	}
	switch {
	case os.Geteuid() == 0:
		return version + ", as root"
	case l.Scope != "" && version == "cgroup v2":
		return version + ", each run in a scope of its own from systemd"
	}
	return version + ", in a group that is delegated to this user"
}

// settings are what explains the answers above. User is whether user namespaces
// can be used: a setting that restricts them and does not keep us from them is
// no problem.
func settings(user State) []Check {
	var out []Check
	add := func(name, value string) {
		if value != "" {
			out = append(out, Check{Name: name, Group: GroupSettings, State: Yes, Detail: value})
		}
	}
	add("security modules", lsms())
	out = append(out, restriction("user.max_user_namespaces", "0", user))
	out = append(out, restriction("kernel.unprivileged_userns_clone", "0", user))
	out = append(out, restriction("kernel.apparmor_restrict_unprivileged_userns", "1", user))
	if label := appArmorLabel(); label != "" {
		c := Check{Name: "AppArmor profile", Group: GroupSettings, State: Yes, Detail: label}
		if readSetting("kernel.apparmor_restrict_unprivileged_userns") == "1" && strings.HasPrefix(label, "unconfined") &&
			os.Geteuid() != 0 {
			c.State, c.Cause, c.Fix = No, "no profile matches this executable by its path", appArmorFix()
		}
		out = append(out, c)
	}
	return out
}

// restriction reports a setting that has a value which restricts user
// namespaces.
func restriction(name, bad string, user State) Check {
	v := readSetting(name)
	c := Check{Name: name, Group: GroupSettings, State: Yes, Detail: v}
	switch {
	case v == "":
		c.Detail = "not set on this kernel"
	case v == bad && user != Yes:
		c.State, c.Cause = No, "is "+v
	case v == bad:
		c.Detail += ", which does not concern this user"
	}
	return c
}

// readSetting returns a sysctl's value, "" if the kernel has none.
func readSetting(name string) string {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// lsms lists the active security modules, "" if that cannot be read.
func lsms() string {
	b, err := os.ReadFile("/sys/kernel/security/lsm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// appArmorLabel is the profile that this process runs under.
func appArmorLabel() string {
	b, err := os.ReadFile("/proc/self/attr/apparmor/current")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// others looks for the other drivers' programs.
func others(ctx context.Context) []Check {
	var out []Check
	for _, p := range []struct {
		name string
		args []string
	}{
		{"bwrap", []string{"--version"}},
		{"docker", []string{"--version"}},
		{"podman", []string{"--version"}},
		{"runsc", []string{"--version"}},
		{"runc", []string{"--version"}},
		{"crun", []string{"--version"}},
	} {
		c := Check{Name: p.name, Group: GroupDrivers}
		file, missing := programs.Find(p.name)
		if missing != nil {
			c.State, c.Cause = No, missing.Error()
			out = append(out, c)
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		text, err := exec.CommandContext(ctx, file, p.args...).Output()
		cancel()
		if err != nil {
			c.Cause = file + " " + strings.Join(p.args, " ") + ": " + err.Error()
		} else {
			c.State, c.Detail = Yes, strings.TrimSpace(parseVersion(string(text))+" "+file)
		}
		out = append(out, c)
	}
	return out
}
