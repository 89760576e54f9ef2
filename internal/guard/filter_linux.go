package guard

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// What the filter does with a call.
type answer uint8

const (
	hold    answer = iota // notify the supervisor
	holdW1                // if the flags in the second argument can write
	holdW2                // the same for the third
	noSys                 // ENOSYS: programs use what was there before
	noLSM                 // EOPNOTSUPP: as if Landlock were not enabled
	holdNS                // hold if the first argument has a flag of a namespace
	noTrees               // ENOTTY if the second argument is one of sys.Trees or sys.Attributes
	numAnswers
)

// A rule of the filter.
type rule struct {
	nr     uintptr
	answer answer
}

// common are the rules of every architecture. Of what is held, those of forbidden are
// told of and refused. For what those and noLSM are there, see the package comment.
var common = []rule{
	{unix.SYS_OPENAT, holdW2}, {unix.SYS_UNLINKAT, hold}, {unix.SYS_MKDIRAT, hold}, {unix.SYS_RENAMEAT2, hold},
	{unix.SYS_FCHMODAT, hold}, {unix.SYS_FCHMOD, hold}, {unix.SYS_FCHMODAT2, hold}, {unix.SYS_MKNODAT, hold},
	{unix.SYS_LINKAT, hold}, {unix.SYS_SYMLINKAT, hold}, {unix.SYS_TRUNCATE, hold},
	{unix.SYS_SETXATTR, hold}, {unix.SYS_LSETXATTR, hold}, {unix.SYS_FSETXATTR, hold}, {unix.SYS_UMASK, hold},
	{unix.SYS_REMOVEXATTR, hold}, {unix.SYS_LREMOVEXATTR, hold}, {unix.SYS_FREMOVEXATTR, hold}, {sysRemovexattrat, noSys},
	{unix.SYS_FCHOWNAT, hold}, {unix.SYS_FCHOWN, hold},
	{unix.SYS_OPENAT2, noSys}, {unix.SYS_CLONE3, noSys}, {sysSetxattrat, noSys},
	{unix.SYS_IO_URING_SETUP, noSys}, {sysFileSetattr, noSys},
	{unix.SYS_LANDLOCK_CREATE_RULESET, noLSM}, {unix.SYS_LANDLOCK_RESTRICT_SELF, noLSM},
	{unix.SYS_CLONE, holdNS}, {unix.SYS_UNSHARE, holdNS}, {unix.SYS_SETNS, hold}, {unix.SYS_CHROOT, hold},
	{unix.SYS_PIVOT_ROOT, hold},
	{unix.SYS_MOUNT, hold}, {unix.SYS_UMOUNT2, hold}, {unix.SYS_OPEN_TREE, hold}, {sysOpenTreeAttr, hold},
	{unix.SYS_MOVE_MOUNT, hold},
	{unix.SYS_FSOPEN, hold}, {unix.SYS_FSPICK, hold}, {unix.SYS_FSMOUNT, hold}, {unix.SYS_MOUNT_SETATTR, hold},
	{unix.SYS_OPEN_BY_HANDLE_AT, hold},
	{unix.SYS_IOCTL, noTrees}, // the built-in filters of package seccomp have it too, a user's own need not
}

// forbidden are calls that no policy allows, or few do, and that few programs make: that
// one was refused is worth a notification.
var forbidden = []struct {
	nr    uint32
	name  string
	errno syscall.Errno // as the built-in filters say it
}{
	{unix.SYS_ACCT, "acct", unix.EPERM}, {unix.SYS_ADD_KEY, "add_key", unix.EPERM}, {unix.SYS_BPF, "bpf", unix.EPERM},
	{unix.SYS_CHROOT, "chroot", unix.EPERM}, {unix.SYS_CLOCK_SETTIME, "clock_settime", unix.EPERM},
	{unix.SYS_CLONE, "clone", unix.EPERM},
	{unix.SYS_DELETE_MODULE, "delete_module", unix.EPERM}, {unix.SYS_FANOTIFY_INIT, "fanotify_init", unix.EPERM},
	{unix.SYS_FINIT_MODULE, "finit_module", unix.EPERM},
	{unix.SYS_FSCONFIG, "fsconfig", unix.EPERM}, {unix.SYS_FSMOUNT, "fsmount", unix.EPERM},
	{unix.SYS_FSOPEN, "fsopen", unix.EPERM}, {unix.SYS_FSPICK, "fspick", unix.EPERM},
	{unix.SYS_INIT_MODULE, "init_module", unix.EPERM}, {unix.SYS_IO_URING_SETUP, "io_uring_setup", unix.EPERM},
	{unix.SYS_KCMP, "kcmp", unix.EPERM},
	{unix.SYS_KEXEC_FILE_LOAD, "kexec_file_load", unix.EPERM}, {unix.SYS_KEXEC_LOAD, "kexec_load", unix.EPERM},
	{unix.SYS_KEYCTL, "keyctl", unix.EPERM},
	{unix.SYS_MOUNT, "mount", unix.EPERM}, {unix.SYS_MOUNT_SETATTR, "mount_setattr", unix.EPERM},
	{unix.SYS_MOVE_MOUNT, "move_mount", unix.EPERM},
	{unix.SYS_OPEN_BY_HANDLE_AT, "open_by_handle_at", unix.EPERM}, {unix.SYS_OPEN_TREE, "open_tree", unix.EPERM},
	{sysOpenTreeAttr, "open_tree_attr", unix.EPERM},
	{unix.SYS_PERF_EVENT_OPEN, "perf_event_open", unix.EPERM}, {unix.SYS_PIDFD_GETFD, "pidfd_getfd", unix.EPERM},
	{unix.SYS_PIVOT_ROOT, "pivot_root", unix.EPERM},
	{unix.SYS_PROCESS_VM_READV, "process_vm_readv", unix.EPERM},
	{unix.SYS_PROCESS_VM_WRITEV, "process_vm_writev", unix.EPERM}, {unix.SYS_PTRACE, "ptrace", unix.EPERM},
	{unix.SYS_QUOTACTL, "quotactl", unix.EPERM}, {unix.SYS_REBOOT, "reboot", unix.EPERM},
	{unix.SYS_REQUEST_KEY, "request_key", unix.EPERM},
	{unix.SYS_SETDOMAINNAME, "setdomainname", unix.EPERM}, {unix.SYS_SETHOSTNAME, "sethostname", unix.EPERM},
	{unix.SYS_SETNS, "setns", unix.EPERM},
	{unix.SYS_SETTIMEOFDAY, "settimeofday", unix.EPERM}, {unix.SYS_SWAPOFF, "swapoff", unix.EPERM},
	{unix.SYS_SWAPON, "swapon", unix.EPERM}, {unix.SYS_SYSLOG, "syslog", unix.EPERM},
	{unix.SYS_UMOUNT2, "umount2", unix.EPERM}, {unix.SYS_UNSHARE, "unshare", unix.EPERM},
	{unix.SYS_USERFAULTFD, "userfaultfd", unix.EPERM}, {unix.SYS_VHANGUP, "vhangup", unix.EPERM},
	{unix.SYS_SOCKET, "socket", unix.EAFNOSUPPORT}, {unix.SYS_SOCKETPAIR, "socketpair", unix.EAFNOSUPPORT},
}

// Refused calls f for each errno with which a policy's filter may refuse a call that the
// guard refuses and tells of just the same, with the numbers of these calls.
func Refused(f func(errno uint16, calls []uint32)) {
	for _, errno := range [...]syscall.Errno{unix.EPERM, unix.EAFNOSUPPORT} {
		var calls []uint32
		for _, c := range forbidden {
			if c.errno == errno {
				calls = append(calls, c.nr)
			}
		}
		f(uint16(errno), calls)
	}
}

// looks are calls that only look, held back to explain: see worker.observe in
// explain_linux.go. Calls of this architecture alone are in nativeLooks.
var looks = append([]rule{
	{unix.SYS_FACCESSAT, hold}, {unix.SYS_FACCESSAT2, hold}, {sysFstatat, hold}, {unix.SYS_STATX, hold},
	{unix.SYS_READLINKAT, hold}, {unix.SYS_STATFS, hold}, {unix.SYS_LISTXATTR, hold}, {unix.SYS_LLISTXATTR, hold},
	{unix.SYS_UTIMENSAT, hold},
	{unix.SYS_EXECVE, hold}, {unix.SYS_EXECVEAT, hold}, {unix.SYS_CHDIR, hold},
}, nativeLooks...)

// Numbers that golang.org/x/sys/unix does not have; the same everywhere.
const (
	sysSetxattrat    = 463
	sysRemovexattrat = 466
	sysOpenTreeAttr  = 467
	sysFileSetattr   = 469
)

// writes are the flags with which open(2) can change something.
const writes = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC | unix.O_TMPFILE&^unix.O_DIRECTORY

// newNamespace are the flags of clone(2) and unshare(2) for namespaces with
// which a process could mount. CLONE_FS and its like, which unshare(2) also
// takes, are harmless.
const newNamespace = unix.CLONE_NEWUSER | unix.CLONE_NEWNS

// filter assembles the program, an array of struct sock_filter. What it does not
// name is allowed: it is stacked on the filter that is a layer of its own, and
// the stricter answer counts.
//
// Paths are the rules for calls that write by path, connect that for connect(2), and
// explain those for calls that only look, with both.
func filter(paths, connect, explain bool) string {
	n := 0
	for i, is := range [...]bool{paths, connect, explain} {
		if is {
			n |= 1 << i
		}
	}
	f := &filters[n]
	f.once.Do(func() { f.program = assemble(paths, connect, explain) })
	return f.program
}

// filters are those that were assembled by now.
var filters [8]struct {
	once    sync.Once
	program string
}

func assemble(paths, connect, explain bool) string {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K

		offNR, offArch, offArgs = 0, 4, 16
	)
	type inst struct {
		op     uint16
		jt, jf uint8
		k      uint32

		// Instructions of the tail that are jumped to, the first being 1.
		yes, no int
	}
	rules := make([]rule, 0, len(native)+len(common)+len(looks)+1)
	if paths {
		rules = append(append(rules, native...), common...)
	}
	if connect || explain {
		rules = append(rules, rule{unix.SYS_CONNECT, hold})
	}
	if explain {
		rules = append(rules, looks...)
		for i := range rules {
			if a := &rules[i].answer; *a == holdW1 || *a == holdW2 {
				*a = hold
			}
		}
	}
	// After the rules: what is allowed, then the answers in their order.
	tail := []inst{
		{op: ret, k: unix.SECCOMP_RET_ALLOW},
		{op: ret, k: unix.SECCOMP_RET_KILL_PROCESS},
	}
	const allow, kill = 1, 2
	var at [numAnswers]int
	place := func(a answer, list ...inst) {
		at[a] = len(tail) + 1
		tail = append(tail, list...)
	}
	errno := func(e uint32) inst { return inst{op: ret, k: unix.SECCOMP_RET_ERRNO | e} }
	notify := inst{op: ret, k: unix.SECCOMP_RET_USER_NOTIF}
	allowed := inst{op: ret, k: unix.SECCOMP_RET_ALLOW}
	arg := func(n uint32) inst { return inst{op: load, k: offArgs + 8*n} }
	with := func(bits uint32) inst { return inst{op: jset, jf: 1, k: bits} }
	place(hold, notify)
	// A place is opened for nothing, whatever else is said; see O_PATH in open(2).
	place(holdW1, arg(1), inst{op: jset, jt: 2, k: unix.O_PATH}, with(writes), notify, allowed)
	place(holdW2, arg(2), inst{op: jset, jt: 2, k: unix.O_PATH}, with(writes), notify, allowed)
	place(noSys, errno(uint32(unix.ENOSYS)))
	place(noLSM, errno(uint32(unix.EOPNOTSUPP)))
	none := []inst{arg(1)}
	requests := slices.Concat(sys.Trees[:], sys.Attributes[:])
	for i, request := range requests {
		none = append(none, inst{op: jeq, jt: uint8(len(requests) - i), k: request})
	}
	place(noTrees, append(none, allowed, errno(uint32(unix.ENOTTY)))...)
	place(holdNS, arg(0), with(newNamespace), notify, allowed)

	// By halves: what is not named takes as long as what is, and the kernel walks
	// the program for each number that there is when it is installed.
	slices.SortFunc(rules, func(a, b rule) int { return cmp.Compare(a.nr, b.nr) })
	prog := make([]inst, 0, 2*len(rules)+8+len(tail))
	prog = append(prog, inst{op: load, k: offArch}, inst{op: jeq, k: auditArch, no: kill}, inst{op: load, k: offNR},
		inst{op: jge, k: 0x40000000, yes: kill})
	var search func(rules []rule)
	search = func(rules []rule) {
		if n := len(rules); n > 3 {
			half := len(prog)
			prog = append(prog, inst{op: jge, k: uint32(rules[n/2].nr)})
			search(rules[:n/2])
			prog[half].jt = uint8(len(prog) - half - 1)
			search(rules[n/2:])
			return
		}
		for i, r := range rules {
			in := inst{op: jeq, k: uint32(r.nr), yes: at[r.answer]}
			if i == len(rules)-1 {
				in.no = allow
			}
			prog = append(prog, in)
		}
	}
	search(rules)
	for i := range prog {
		in := &prog[i]
		if in.yes > 0 {
			in.jt = uint8(len(prog) + in.yes - 1 - i - 1)
		}
		if in.no > 0 {
			in.jf = uint8(len(prog) + in.no - 1 - i - 1)
		}
	}
	prog = append(prog, tail...)
	b := make([]byte, 0, len(prog)*8)
	for _, in := range prog {
		b = binary.NativeEndian.AppendUint16(b, in.op)
		b = append(b, in.jt, in.jf)
		b = binary.NativeEndian.AppendUint32(b, in.k)
	}
	return string(b)
}
