//go:build linux && cgo

package main

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// The profiles, in the order of a verdict's letters.
var profiles = [...]string{"strict", "production", "default"}

// A group gives system calls one verdict per profile: A allows, D denies with
// EPERM, N answers ENOSYS as a kernel without the call would, so that programs
// use what they used before it existed. Calls in no group get ENOSYS as well;
// those with N are written down because somebody thought about them.
type group struct {
	verdicts string
	calls    string
}

// The table starts from what container engines allow by default, as far as
// amd64 and arm64 have it, and takes away. Every call of Linux 6.18 that is
// newer than 5.1 is in it by name.
var table = []group{
	// Files and directories. mknod makes FIFOs; devices need CAP_MKNOD.
	{"AAA", `access chdir chown close close_range copy_file_range creat dup dup2 dup3
		faccessat faccessat2 fadvise64 fallocate fchdir fchown fchownat
		fdatasync flock fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64
		lchown link linkat lseek lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2
		pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv
		rename renameat renameat2 rmdir sendfile splice stat statfs statx symlink symlinkat sync
		sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes write writev`},
	{"AAA", `fgetxattr flistxattr fremovexattr fsetxattr getxattr getxattrat lgetxattr listxattr
		listxattrat llistxattr lremovexattr lsetxattr removexattr removexattrat setxattr setxattrat`},
	{"AAA", `inotify_add_watch inotify_init inotify_init1 inotify_rm_watch`},
	// vmsplice maps a process's pages into a pipe: the way in of several
	// kernel exploits, and next to nothing uses it.
	{"ANA", `vmsplice`},

	// Waiting and events.
	{"AAA", `epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd
		eventfd2 pipe pipe2 poll ppoll pselect6 select signalfd signalfd4`},

	// Memory. mincore and cachestat tell only of files that the caller may
	// write or owns, on current kernels. mseal and map_shadow_stack harden.
	{"AAA", `brk cachestat madvise map_shadow_stack membarrier mincore mlock mlock2
		mlockall mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free
		pkey_mprotect`},
	// Deprecated since Linux 3.16 and emulated since 4.0.
	{"NNA", `remap_file_pages`},
	// Placement on NUMA nodes: a JVM or numpy asks and does without.
	{"DDA", `get_mempolicy mbind set_mempolicy set_mempolicy_home_node`},
	{"DDD", `migrate_pages move_pages`},

	// Processes, threads and signals. Identity changes nothing without
	// capabilities and with no_new_privs.
	{"AAA", `alarm capget capset execve execveat exit exit_group fork futex futex_requeue futex_wait
		futex_waitv futex_wake get_robust_list getcpu getegid geteuid getgid getgroups getitimer
		getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid
		gettid getuid ioprio_get ioprio_set kill nanosleep pause pidfd_open pidfd_send_signal prctl
		process_mrelease restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask
		rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo set_robust_list
		set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid
		setresgid setresuid setreuid setrlimit setsid setuid sigaltstack tgkill tkill vfork wait4
		waitid`},
	{"AAA", `sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
		sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setparam
		sched_yield`},
	// Its policy is behind a pointer, where no filter sees it: an inherited
	// RLIMIT_RTPRIO would let real-time scheduling through.
	{"DDD", `sched_setattr`},
	// amd64: thread-local storage; and the return from a probe that a tracer
	// outside has set. The kernel lets uretprobe past every filter since
	// 6.14, and uprobe (6.18) always.
	{"AAA", `arch_prctl uretprobe`},
	// clone3 hides its flags behind a pointer; everything falls back on clone.
	{"NNN", `clone3`},

	// Restricting oneself further is always welcome.
	{"AAA", `landlock_add_rule landlock_create_ruleset landlock_restrict_self seccomp`},

	// Time.
	{"AAA", `clock_getres clock_gettime clock_nanosleep gettimeofday time timer_create timer_delete
		timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
		times`},
	{"DDD", `adjtimex clock_adjtime clock_settime settimeofday`},

	// System information and randomness.
	{"AAA", `getrandom sysinfo uname`},

	// Sockets, but for the calls that arguments decide about; see rules.
	{"AAA", `accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg
		recvmsg shutdown`},

	// System V and POSIX queues and semaphores: databases and test suites.
	{"AAA", `semctl semget semop semtimedop shmat shmctl shmdt`},
	{"ANA", `mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget
		msgrcv msgsnd`},
	// Asynchronous I/O of the old kind; databases fall back on threads.
	{"NNA", `io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit`},

	// Other processes' insides. Debuggers need them; in default they reach
	// only the sandbox's own processes. A tracer cannot get out of a filter
	// by it: filters run after tracers (Linux 4.8), and suspending one needs
	// CAP_SYS_ADMIN.
	{"DDA", `pidfd_getfd process_vm_readv process_vm_writev ptrace`},
	{"DDD", `kcmp process_madvise`},

	// Namespaces, mounts and roots.
	{"DDD", `chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree
		open_tree_attr pivot_root setns umount2 unshare`},
	// Reading mounts and namespaces is harmless but new and intricate; all
	// that use them fall back on /proc.
	{"NNN", `listmount listns statmount`},
	// By handle, files are found that no path leads to.
	{"DDD", `name_to_handle_at open_by_handle_at`},
	// They repeat what an ioctl does, for more kinds of file; the ioctl is
	// what programs fall back on.
	{"NNN", `file_getattr file_setattr`},

	// Large surfaces with a long record of bugs.
	{"DDD", `add_key bpf io_uring_enter io_uring_register io_uring_setup keyctl perf_event_open
		request_key userfaultfd`},
	{"DDD", `fanotify_init fanotify_mark modify_ldt`},
	// Memory that nobody else can read: unmovable, and no one depends on it.
	{"NNN", `memfd_secret`},
	{"NNN", `lsm_get_self_attr lsm_list_modules lsm_set_self_attr`},
	// Newer than Linux 6.18, not looked at yet.
	{"NNN", `rseq_slice_yield`},

	// The machine's own affairs.
	{"DDD", `acct create_module delete_module finit_module init_module ioperm iopl kexec_file_load
		kexec_load lookup_dcookie nfsservctl quotactl quotactl_fd reboot setdomainname sethostname
		swapoff swapon syslog vhangup`},
}

// Values that rules compare with. They are the same on amd64 and arm64.
const (
	epermErrno   = 1
	enomem       = 12
	einval       = 22
	enottyErrno  = 25
	eafnosupport = 97
	eprotonosup  = 93
	eopnotsupp   = 95
	enoprotoopt  = 92

	low32 = 0xffffffff // int and unsigned int arguments: the kernel ignores the rest

	// CLONE_NEW*; see linux/sched.h. CLONE_NEWTIME is 0x80, which clone(2)
	// reads as part of the exit signal.
	cloneNew = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000

	cloneFiles, cloneThread = 0x400, 0x10000

	tiocsti   = 0x5412
	tioclinux = 0x541c
	tioccons  = 0x541d
	tiocsetd  = 0x5423 // line disciplines

	afUnix, afInet, afInet6, afNetlink = 1, 2, 10, 16

	sockTypeMask          = 0xf // the rest is SOCK_CLOEXEC and SOCK_NONBLOCK
	sockStream, sockDgram = 1, 2

	ipprotoTCP, ipprotoUDP = 6, 17

	tcpFastOpenConnect = 30
	tcpULP             = 31
	msgFastOpen        = 0x20000000

	fOFDSetLock, fOFDSetLockWait, fSetLease = 37, 38, 1024

	solSocket                             = 1
	soAttachFilter, soAttachReuseportCBPF = 26, 51

	mapHugeTLB, mfdHugeTLB, shmHugeTLB = 0x40000, 0x4, 0o4000

	schedResetOnFork = 0x40000000
)

// is compares an int argument, on the 32 bits that the kernel looks at: with 64
// a caller could set the upper half and slip past (CVE-2019-10063,
// CVE-2023-28100).
func is(index uint, value uint64) specs.LinuxSeccompArg { return masked(index, low32, value) }

func masked(index uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
}

// otherwise always holds. A rule with it is what is left for a call that other
// rules with more conditions do not cover.
func otherwise(index uint) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Op: specs.OpGreaterEqual}
}

func allow(name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}
}

func errno(n uint, name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActErrno, ErrnoRet: &n, Args: args}
}

// rules are the calls that arguments decide about.
func rules(profile string) []specs.LinuxSyscall {
	// The locks of a process that shares its descriptors, and is no thread, stay when it
	// has ended, and then no list that the supervisor reads has them. In default, leak
	// sanitizers need such a process.
	clone := []specs.LinuxSyscall{allow("clone", masked(0, cloneNew|cloneFiles, 0)),
		allow("clone", masked(0, cloneNew|cloneThread, cloneThread))}
	if profile == "default" {
		clone = []specs.LinuxSyscall{allow("clone", masked(0, cloneNew, 0))}
	}
	r := append(clone, []specs.LinuxSyscall{
		errno(epermErrno, "clone", otherwise(0)),

		errno(epermErrno, "ioctl", is(1, tiocsti)),
		errno(epermErrno, "ioctl", is(1, tioclinux)),
		errno(epermErrno, "ioctl", is(1, tioccons)),
		errno(epermErrno, "ioctl", is(1, tiocsetd)),
	}...)
	for _, request := range sys.Trees {
		r = append(r, errno(enottyErrno, "ioctl", is(1, uint64(request))))
	}
	r = append(r, allow("ioctl", otherwise(1)))

	// A lease on a file that is only shown holds every open of it on the host up for
	// /proc/sys/fs/lease-break-time, again and again; see fcntl(2).
	r = append(r, errno(epermErrno, "fcntl", is(1, fSetLease)))
	// Locks of an open file, as before Linux 3.15: the supervisor bounds the number of
	// locks, which no cgroup counts, and cannot tell whose these are.
	for _, lock := range []uint64{fOFDSetLock, fOFDSetLockWait} {
		r = append(r, errno(einval, "fcntl", is(1, lock)))
	}
	r = append(r, allow("fcntl", otherwise(1)))

	// Set-user-id and set-group-id bits: what root's sandbox leaves in the
	// workspace is root's, and would make everybody root by it. A file that is
	// created with them loses them when it is written (inode(7)). In default,
	// directories may keep a set-group-id bit, as teams use it; a filter cannot
	// tell them from files.
	setIDs := uint64(0o6000) // S_ISUID and S_ISGID
	if profile == "default" {
		setIDs = 0o4000
	}
	for _, chmod := range []struct {
		name string
		mode uint
	}{{"chmod", 1}, {"fchmod", 1}, {"fchmodat", 2}, {"fchmodat2", 2}} {
		r = append(r, allow(chmod.name, masked(chmod.mode, setIDs, 0)), errno(epermErrno, chmod.name, otherwise(0)))
	}

	// Its own limits only: process 1 has the same user, which is all that
	// prlimit(2) asks for.
	r = append(r, allow("prlimit64", is(0, 0)), errno(epermErrno, "prlimit64", otherwise(0)))

	// Query, and the plain personality. In others, PER_LINUX32 (8) and
	// UNAME26 (0x20000), which only change what uname(2) says; the flags that
	// take randomisation or the mmap floor away stay out.
	r = append(r, allow("personality", is(0, 0)), allow("personality", is(0, 0xffffffff)))
	if profile != "production" {
		r = append(r, allow("personality", is(0, 0x8)), allow("personality", is(0, 0x20000)),
			allow("personality", is(0, 0x20008)))
	}
	r = append(r, errno(epermErrno, "personality", otherwise(0)))

	// Huge pages are set aside by the host's owner, for somebody else, and count
	// towards no limit of memory. Without them, programs take what there is. Chromium
	// asks memfd_create(2) with every flag set, and ends if that is not EINVAL.
	for _, huge := range []struct {
		name  string
		flags uint
		bit   uint64
		errno uint
	}{{"mmap", 3, mapHugeTLB, enomem}, {"memfd_create", 1, mfdHugeTLB, einval}, {"shmget", 2, shmHugeTLB, enomem}} {
		r = append(r, allow(huge.name, masked(huge.flags, huge.bit, 0)), errno(huge.errno, huge.name, otherwise(0)))
	}

	// SCHED_OTHER, SCHED_BATCH, SCHED_IDLE.
	for _, policy := range []uint64{0, 3, 5} {
		r = append(r, allow("sched_setscheduler", masked(1, low32&^schedResetOnFork, policy)))
	}
	r = append(r, errno(epermErrno, "sched_setscheduler", otherwise(1)))

	// Local sockets, TCP and UDP, and the routing netlink that getifaddrs(3)
	// asks. All other families and protocols look as if the kernel had been
	// built without them. Raw sockets need a capability elsewhere, too.
	r = append(r, allow("socket", is(0, afUnix)))
	for _, family := range []uint64{afInet, afInet6} {
		for _, proto := range []uint64{0, ipprotoTCP} {
			r = append(r, allow("socket", is(0, family), masked(1, sockTypeMask, sockStream), is(2, proto)))
		}
		for _, proto := range []uint64{0, ipprotoUDP} {
			r = append(r, allow("socket", is(0, family), masked(1, sockTypeMask, sockDgram), is(2, proto)))
		}
		r = append(r,
			errno(eprotonosup, "socket", is(0, family), masked(1, sockTypeMask, sockStream), otherwise(2)),
			errno(eprotonosup, "socket", is(0, family), masked(1, sockTypeMask, sockDgram), otherwise(2)),
			errno(epermErrno, "socket", is(0, family), otherwise(1)))
	}
	r = append(r,
		allow("socket", is(0, afNetlink), is(2, 0)),
		errno(eafnosupport, "socket", otherwise(0)),
		allow("socketpair", is(0, afUnix)),
		errno(eafnosupport, "socketpair", otherwise(0)),

		// TCP Fast Open sends before connect(2), past Landlock's rule for
		// it; an upper layer protocol turns a TCP socket into another kind.
		errno(enoprotoopt, "setsockopt", is(1, ipprotoTCP), is(2, tcpFastOpenConnect)),
		errno(enoprotoopt, "setsockopt", is(1, ipprotoTCP), is(2, tcpULP)),
	)
	// Programs on sockets, in the kernel's room for compiled ones, which all of
	// the host shares and no cgroup counts. Without that room no filter of system
	// calls can be installed, by anybody but root.
	for _, option := range []uint64{soAttachFilter, soAttachReuseportCBPF} { // those by descriptor need bpf(2)
		r = append(r, errno(enoprotoopt, "setsockopt", is(1, solSocket), is(2, option)))
	}
	r = append(r, allow("setsockopt", otherwise(1)))
	for _, send := range []struct {
		name  string
		flags uint
	}{{"sendto", 3}, {"sendmsg", 2}, {"sendmmsg", 3}} {
		r = append(r,
			allow(send.name, masked(send.flags, msgFastOpen, 0)),
			errno(eopnotsupp, send.name, masked(send.flags, msgFastOpen, msgFastOpen)))
	}
	return r
}
