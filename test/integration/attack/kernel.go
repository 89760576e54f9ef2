//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// k01 makes system calls by the i386 ABI, where every number means another
// call, and sockets come from a call of their own.
func k01(r *report) {
	// The ABI has pointers of 32 bits.
	low, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|map32Bit)
	if err != nil {
		r.err("map low memory", err)
		return
	}
	copy(low, []byte{unix.AF_INET, 0, 0, 0, unix.SOCK_STREAM, 0, 0, 0, 0, 0, 0, 0})
	addr := uintptr(unsafe.Pointer(&low[0]))
	r.i386("getpid", 20)
	r.i386("socketcall", 102, 1, addr)
	r.i386("socket", 359, unix.AF_INET, unix.SOCK_STREAM, 0)
	r.i386("unshare", 310, unix.CLONE_NEWUSER)
	r.i386("keyctl", 288, 0, 0xfffffffd, 0)
	r.forked("neighbour: getpid by the native ABI", unix.SYS_GETPID)
}

// k02 makes calls by the x32 ABI: by native numbers, and by those that only it
// has.
func k02(r *report) {
	r.x32("getpid", unix.SYS_GETPID)
	r.x32("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	r.x32("ptrace", 521)
	r.x32("execve", 520)
	r.forked("neighbour: getpid by the native ABI", unix.SYS_GETPID)
}

// Terminal requests; see ioctl_tty(2) and ioctl_console(2).
const (
	tiocsti   = 0x5412
	tioclinux = 0x541c
	tiocsctty = 0x540e
)

// k03 puts bytes into the input of the terminal on fd 0, by the request's own
// number and by one that is equal in the 32 bits that the kernel reads
// (CVE-2019-10063).
func k03(r *report) {
	x := ptr([]byte("x"))
	shift := ptr([]byte{6, 0}) // TIOCL_GETSHIFTSTATE, which changes nothing
	for fd := range uintptr(3) {
		r.call(fmt.Sprintf("TIOCSTI on %d", fd), unix.SYS_IOCTL, fd, tiocsti, x)
		r.call(fmt.Sprintf("TIOCSTI with high bits on %d", fd), unix.SYS_IOCTL, fd, tiocsti|1<<32, x)
		r.call(fmt.Sprintf("TIOCLINUX on %d", fd), unix.SYS_IOCTL, fd, tioclinux, shift)
		r.call(fmt.Sprintf("TIOCLINUX with high bits on %d", fd), unix.SYS_IOCTL, fd, tioclinux|1<<32, shift)
	}
	r.err("open /dev/tty", openFor("/dev/tty", unix.O_RDWR|unix.O_NOCTTY))
	var buf [64]byte
	r.call("neighbour: TCGETS", unix.SYS_IOCTL, 0, unix.TCGETS, ptr(buf[:]))
	r.call("neighbour: TIOCGWINSZ", unix.SYS_IOCTL, 0, unix.TIOCGWINSZ, ptr(buf[:]))
}

// k05 changes the tree of mounts, by every call that can. Its target is a
// directory of its own.
func k05(r *report) {
	dir := filepath.Join(r.arg("ws"), "mnt")
	os.Mkdir(dir, 0o755)
	// Of its own, because what the host has mounted below a directory keeps that
	// from being bound without it.
	source := filepath.Join(r.arg("ws"), "source")
	os.Mkdir(source, 0o755)
	d, tmpfs, none, src := bytePtr(dir), bytePtr("tmpfs"), bytePtr(""), bytePtr(source)
	cwd := at(unix.AT_FDCWD)
	r.call("mount", unix.SYS_MOUNT, tmpfs, d, tmpfs, 0, 0)
	r.call("mount bind", unix.SYS_MOUNT, src, d, 0, unix.MS_BIND, 0)
	r.call("mount propagation", unix.SYS_MOUNT, 0, bytePtr("/"), 0, unix.MS_REC|unix.MS_PRIVATE, 0)
	r.call("mount proc", unix.SYS_MOUNT, bytePtr("proc"), d, bytePtr("proc"), 0, 0)
	r.call("umount2", unix.SYS_UMOUNT2, d, unix.MNT_DETACH)
	tree := r.call("open_tree", unix.SYS_OPEN_TREE, cwd, src, unix.OPEN_TREE_CLONE)
	r.call("move_mount", unix.SYS_MOVE_MOUNT, tree, none, cwd, d, unix.MOVE_MOUNT_F_EMPTY_PATH)
	fs := r.call("fsopen", unix.SYS_FSOPEN, tmpfs, 0)
	r.call("fsconfig", unix.SYS_FSCONFIG, fs, unix.FSCONFIG_CMD_CREATE, 0, 0, 0)
	r.call("fsmount", unix.SYS_FSMOUNT, fs, 0, 0)
	r.call("fspick", unix.SYS_FSPICK, cwd, d, 0)
	r.call("mount_setattr", unix.SYS_MOUNT_SETATTR, cwd, d, 0, ptr(mountAttr(unix.MOUNT_ATTR_NOSUID, 0)), 32)
	r.forked("chroot", unix.SYS_CHROOT, d)
	var st unix.Statfs_t
	r.err("neighbour: statfs", unix.Statfs(dir, &st))
	// Last: where it works it moves everybody's root.
	r.forked("pivot_root", unix.SYS_PIVOT_ROOT, d, d)
}

// k06 asks for the parts of the kernel that most escapes came through.
func k06(r *report) {
	attr := make([]byte, 128)
	attr[0], attr[4], attr[8], attr[12] = 2, 4, 4, 1 // an array of one element
	r.call("bpf", unix.SYS_BPF, 0, ptr(attr), 72)
	perf := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
	r.call("perf_event_open", unix.SYS_PERF_EVENT_OPEN, heap(perf), 0, ^uintptr(0), ^uintptr(0), 0)
	r.call("userfaultfd", unix.SYS_USERFAULTFD, 1 /* UFFD_USER_MODE_ONLY */)
	ring := r.call("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, ptr(make([]byte, 128)))
	r.call("io_uring_enter", unix.SYS_IO_URING_ENTER, ring, 0, 0, 0, 0, 0)
	r.call("io_uring_register", unix.SYS_IO_URING_REGISTER, ring, 3 /* UNREGISTER_FILES */, 0, 0)
	r.call("keyctl", unix.SYS_KEYCTL, 0, ^uintptr(2), 1)
	r.call("add_key", unix.SYS_ADD_KEY, bytePtr("user"), bytePtr("sbxrun"), ptr([]byte("x")), 1, ^uintptr(2))
	r.call("request_key", unix.SYS_REQUEST_KEY, bytePtr("user"), bytePtr("sbxrun"), 0, ^uintptr(2))
	r.forked("ptrace", unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0)
	buf := make([]byte, 8)
	p := heap(unix.Iovec{Base: &buf[0], Len: 8})
	r.call("process_vm_readv", unix.SYS_PROCESS_VM_READV, uintptr(os.Getpid()), p, 1, p, 1, 0)
	r.call("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, at(unix.AT_FDCWD), ptr(make([]byte, 64)), 0)
	r.call("fanotify_init", unix.SYS_FANOTIFY_INIT, 0, 0)
	r.call("neighbour: memfd_create", unix.SYS_MEMFD_CREATE, bytePtr("x"), 0)
	r.call("neighbour: epoll_create1", unix.SYS_EPOLL_CREATE1, 0)
}

// k07 opens sockets of families that a command has no use for. The numbers are
// those of <sys/socket.h>.
func k07(r *report) {
	for _, s := range []struct {
		name            string
		fam, typ, proto uintptr
	}{
		{"ALG", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"VSOCK", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"PACKET raw", unix.AF_PACKET, unix.SOCK_RAW, 0x0300},
		{"PACKET dgram", unix.AF_PACKET, unix.SOCK_DGRAM, 0},
		{"RXRPC", unix.AF_RXRPC, unix.SOCK_DGRAM, unix.AF_INET},
		{"NETLINK_XFRM", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM},
		{"NETLINK_NETFILTER", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		{"NETLINK_NETFILTER dgram", unix.AF_NETLINK, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER},
		{"NETLINK_AUDIT", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		{"NETLINK_KOBJECT_UEVENT", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT},
		{"KEY", unix.AF_KEY, unix.SOCK_RAW, 2},
		{"SMC", unix.AF_SMC, unix.SOCK_STREAM, 0},
		{"TIPC", unix.AF_TIPC, unix.SOCK_SEQPACKET, 0},
		{"CAN", unix.AF_CAN, unix.SOCK_RAW, 1},
		{"BLUETOOTH", unix.AF_BLUETOOTH, unix.SOCK_RAW, 1},
		{"XDP", unix.AF_XDP, unix.SOCK_RAW, 0},
		{"RDS", unix.AF_RDS, unix.SOCK_SEQPACKET, 0},
		{"KCM", unix.AF_KCM, unix.SOCK_DGRAM, 0},
		{"QIPCRTR", unix.AF_QIPCRTR, unix.SOCK_DGRAM, 0},
		{"NFC", unix.AF_NFC, unix.SOCK_RAW, 0},
		{"PPPOX", unix.AF_PPPOX, unix.SOCK_STREAM, 0},
		{"LLC", unix.AF_LLC, unix.SOCK_DGRAM, 0},
		{"neighbour: UNIX", unix.AF_UNIX, unix.SOCK_STREAM, 0},
		{"neighbour: INET", unix.AF_INET, unix.SOCK_STREAM, 0},
		{"neighbour: INET dgram", unix.AF_INET, unix.SOCK_DGRAM, 0},
		{"neighbour: INET6", unix.AF_INET6, unix.SOCK_STREAM, 0},
	} {
		r.call(s.name, unix.SYS_SOCKET, s.fam, s.typ, s.proto)
	}
	pair := ptr(make([]byte, 8))
	r.call("neighbour: socketpair", unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, pair)
	// The family's upper half is ignored by the kernel: an int.
	r.call("VSOCK with high bits", unix.SYS_SOCKET, unix.AF_VSOCK|1<<32, unix.SOCK_STREAM, 0)
	r.call("NETLINK_NETFILTER with high bits", unix.SYS_SOCKET, unix.AF_NETLINK|1<<32, unix.SOCK_RAW|1<<32, unix.NETLINK_NETFILTER|1<<32)
}

// k09 asks for what belongs to the whole machine. Every call has arguments with
// which it does nothing even where it is allowed.
func k09(r *report) {
	none := bytePtr("/nonexistent")
	r.call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 99, 0, ^uintptr(0))
	r.call("kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, ^uintptr(0), ^uintptr(0), 0, 0, ^uintptr(0))
	r.call("init_module", unix.SYS_INIT_MODULE, 0, 0, none)
	r.call("finit_module", unix.SYS_FINIT_MODULE, ^uintptr(0), none, 0)
	r.call("delete_module", unix.SYS_DELETE_MODULE, none, unix.O_NONBLOCK)
	r.call("reboot", unix.SYS_REBOOT, 0, 0, 0, 0)
	r.call("swapon", unix.SYS_SWAPON, none, 0)
	r.call("swapoff", unix.SYS_SWAPOFF, none)
	r.call("acct", unix.SYS_ACCT, none)
	r.call("quotactl", unix.SYS_QUOTACTL, 0x80000200, none, 0, 0)
	r.call("syslog", unix.SYS_SYSLOG, 3, ptr(make([]byte, 16)), 16)
	r.call("settimeofday", unix.SYS_SETTIMEOFDAY, ptr(make([]byte, 16)), ptr([]byte{0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0}))
	r.call("clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, ptr([]byte{15: 0xff}))
	r.call("clock_adjtime", unix.SYS_CLOCK_ADJTIME, unix.CLOCK_REALTIME, ptr(append([]byte{0, 0x20}, make([]byte, 254)...)))
	r.call("sethostname", unix.SYS_SETHOSTNAME, ptr([]byte("x")), ^uintptr(0))
	r.call("setdomainname", unix.SYS_SETDOMAINNAME, ptr([]byte("x")), ^uintptr(0))
	r.call("vhangup", unix.SYS_VHANGUP)
	k09amd64(r)
	r.call("neighbour: uname", unix.SYS_UNAME, ptr(make([]byte, 512)))
	r.call("neighbour: clock_gettime", unix.SYS_CLOCK_GETTIME, unix.CLOCK_REALTIME, ptr(make([]byte, 16)))
}

// k11 leaves its cgroup, or makes the host run a program when it ends.
func k11(r *report) {
	for path := range strings.SplitSeq(r.arg("groups"), ",") {
		pid := []byte(fmt.Sprint(os.Getpid()))
		r.err("make a group in "+path, unix.Mkdir(filepath.Join(path, r.arg("name")), 0o755))
		r.err("move to "+path, os.WriteFile(filepath.Join(path, r.arg("name"), "cgroup.procs"), pid, 0))
		os.WriteFile(filepath.Join(path, "cgroup.procs"), pid, 0)
		unix.Rmdir(filepath.Join(path, r.arg("name")))
		r.err("write cgroup.procs of "+path, openFor(filepath.Join(path, "cgroup.procs"), unix.O_WRONLY))
	}
	for p := range strings.SplitSeq(r.arg("agents"), ",") {
		r.err("write "+p, openFor(p, unix.O_WRONLY))
	}
	seen := "/"
	b, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && parts[2] != "/" {
			seen = parts[2]
		}
	}
	r.got("its group, as it sees it", seen)
	r.err("neighbour: read /proc/self/cgroup", openFor("/proc/self/cgroup", unix.O_RDONLY))
}

// k12 probes for the layers that a sandbox is built from, so that a host that is
// to lack one can be seen to lack it.
func k12(r *report) {
	r.forked("user", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	r.cloned("user by clone", unix.CLONE_NEWUSER)
	r.got("mount", fork(
		raw6(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS),
		raw6(unix.SYS_MOUNT, 0, bytePtr("/"), 0, unix.MS_REC|unix.MS_PRIVATE, 0)))
	for _, ns := range newNamespaces[1:] {
		r.cloned(ns.name, unix.CLONE_NEWUSER|ns.flag)
	}
	r.forked("seccomp", unix.SYS_SECCOMP, 2 /* SECCOMP_GET_ACTION_AVAIL */, 0, ptr([]byte{0, 0, 0, 0x80}))
	r.forked("landlock", unix.SYS_LANDLOCK_CREATE_RULESET, ptr([]byte{1, 0, 0, 0, 0, 0, 0, 0}), 8, 0)
	r.forked("no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	r.forked("rlimits", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, ptr(make([]byte, 16)), 0)
	r.err("cgroup", openFor("/sys/fs/cgroup/"+r.arg("controller")+"cgroup.procs", unix.O_RDONLY))
}

// k13 has a child's filter suspended by ptrace.
func k13(r *report) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		for {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	r.call("PTRACE_SEIZE with SUSPEND_SECCOMP", unix.SYS_PTRACE, unix.PTRACE_SEIZE, pid, 0, unix.PTRACE_O_SUSPEND_SECCOMP)
	r.call("PTRACE_SEIZE", unix.SYS_PTRACE, unix.PTRACE_SEIZE, pid, 0, 0)
	r.err("neighbour: KILL to a child", unix.Kill(int(pid), unix.SIGKILL))
	unix.Wait4(int(pid), nil, unix.WALL, nil)
}

// k15 takes leases, on a file that is only shown to it and on one of its own.
func k15(r *report) {
	for name, flags := range map[string]int{"shown": unix.O_RDONLY, "own": unix.O_RDONLY | unix.O_CREAT} {
		fd, err := unix.Open(r.arg(name), flags, 0o600)
		r.err("neighbour: open "+name, err)
		r.call("F_SETLEASE "+name, unix.SYS_FCNTL, uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
		r.call("F_SETLEASE "+name+", with more bits", unix.SYS_FCNTL, uintptr(fd), 1<<32|unix.F_SETLEASE, unix.F_UNLCK)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_GETLEASE, 0)
		r.err("neighbour: F_GETLEASE "+name, err)
	}
}

// k14 goes where only Landlock stands in the way: to a file of the host that it
// was given as fd 0, which no mount hides. It signals beyond its domain, too.
func k14(r *report) {
	const fd0 = "/proc/self/fd/0"
	argv, env := heap([3]uintptr{bytePtr("attack"), bytePtr("exit")}), heap(uintptr(0))
	r.forked("execute fd 0", unix.SYS_EXECVEAT, 0, bytePtr(""), argv, env, unix.AT_EMPTY_PATH)
	r.forked("execute fd 0 by name", unix.SYS_EXECVE, bytePtr(fd0), argv, env)
	r.err("link fd 0", unix.Linkat(unix.AT_FDCWD, fd0, unix.AT_FDCWD, filepath.Join(r.arg("ws"), "linked"), unix.AT_SYMLINK_FOLLOW))
	r.err("reopen fd 0 for writing", openFor(fd0, unix.O_WRONLY))
	r.err("reopen fd 0 for both", openFor(fd0, unix.O_RDWR))
	r.err("reopen fd 0 for writing, by /dev/stdin", openFor("/dev/stdin", unix.O_WRONLY))
	if r.arg("truncate") != "no" {
		r.err("truncate fd 0", unix.Truncate(fd0, 0))
	}
	r.err("open and truncate fd 0", openFor(fd0, unix.O_WRONLY|unix.O_TRUNC))
	_, err := unix.Read(0, make([]byte, 1))
	r.err("neighbour: read fd 0", err)
	r.err("signal 1", unix.Kill(1, 0))
	ws := r.arg("ws")
	os.MkdirAll(filepath.Join(ws, "a"), 0o755)
	os.MkdirAll(filepath.Join(ws, "b"), 0o755)
	r.err("neighbour: create", os.WriteFile(filepath.Join(ws, "a/own"), []byte("x"), 0o644))
	r.err("neighbour: refer", unix.Rename(filepath.Join(ws, "a/own"), filepath.Join(ws, "b/own")))
	r.err("neighbour: truncate", unix.Truncate(filepath.Join(ws, "b/own"), 0))
	r.err("neighbour: signal itself", unix.Kill(os.Getpid(), 0))
}
