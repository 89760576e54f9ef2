package guard

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// What the filter does with a call.
type answer uint8

const (
	hold   answer = iota // notify the supervisor
	holdW1               // if the flags in the second argument can write
	holdW2               // the same for the third
	noSys                // ENOSYS: programs use what was there before
	noLSM                // EOPNOTSUPP: as if Landlock were not enabled
	never                // EPERM
	noNS                 // EPERM if the first argument has a flag of a namespace
	numAnswers
)

// A rule of the filter. The calls that are made most come first.
type rule struct {
	nr     uintptr
	answer answer
}

// common are the rules of every architecture. For what never and noLSM are
// there, see the package comment.
var common = []rule{
	{unix.SYS_OPENAT, holdW2}, {unix.SYS_UNLINKAT, hold}, {unix.SYS_MKDIRAT, hold}, {unix.SYS_RENAMEAT2, hold},
	{unix.SYS_FCHMODAT, hold}, {unix.SYS_FCHMOD, hold}, {unix.SYS_FCHMODAT2, hold}, {unix.SYS_MKNODAT, hold},
	{unix.SYS_LINKAT, hold}, {unix.SYS_SYMLINKAT, hold}, {unix.SYS_TRUNCATE, hold},
	{unix.SYS_SETXATTR, hold}, {unix.SYS_LSETXATTR, hold}, {unix.SYS_FSETXATTR, hold}, {unix.SYS_UMASK, hold},
	{unix.SYS_OPENAT2, noSys}, {unix.SYS_CLONE3, noSys}, {sysSetxattrat, noSys},
	{unix.SYS_IO_URING_SETUP, noSys}, {sysFileSetattr, noSys},
	{unix.SYS_LANDLOCK_CREATE_RULESET, noLSM}, {unix.SYS_LANDLOCK_RESTRICT_SELF, noLSM},
	{unix.SYS_CLONE, noNS}, {unix.SYS_UNSHARE, noNS}, {unix.SYS_SETNS, never}, {unix.SYS_CHROOT, never}, {unix.SYS_PIVOT_ROOT, never},
	{unix.SYS_MOUNT, never}, {unix.SYS_UMOUNT2, never}, {unix.SYS_OPEN_TREE, never}, {sysOpenTreeAttr, never}, {unix.SYS_MOVE_MOUNT, never},
	{unix.SYS_FSOPEN, never}, {unix.SYS_FSPICK, never}, {unix.SYS_FSMOUNT, never}, {unix.SYS_MOUNT_SETATTR, never},
	{unix.SYS_OPEN_BY_HANDLE_AT, never},
}

// Numbers that golang.org/x/sys/unix does not have; the same everywhere.
const (
	sysSetxattrat   = 463
	sysOpenTreeAttr = 467
	sysFileSetattr  = 469
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
// Paths are the rules for calls that write by path, connect that for connect(2).
func filter(paths, connect bool) string {
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
	}
	var rules []rule
	if paths {
		rules = append(append(rules, native...), common...)
	}
	if connect {
		rules = append(rules, rule{unix.SYS_CONNECT, hold})
	}
	// After the rules: what is allowed, then the answers in their order.
	tail := []inst{
		{ret, 0, 0, unix.SECCOMP_RET_ALLOW},
		{ret, 0, 0, unix.SECCOMP_RET_KILL_PROCESS},
	}
	const allow, kill = 0, 1
	var at [numAnswers]int
	place := func(a answer, list ...inst) {
		at[a] = len(tail)
		tail = append(tail, list...)
	}
	errno := func(e uint32) inst { return inst{ret, 0, 0, unix.SECCOMP_RET_ERRNO | e} }
	notify := inst{ret, 0, 0, unix.SECCOMP_RET_USER_NOTIF}
	allowed := inst{ret, 0, 0, unix.SECCOMP_RET_ALLOW}
	place(hold, notify)
	place(holdW1, inst{load, 0, 0, offArgs + 8}, inst{jset, 0, 1, writes}, notify, allowed)
	place(holdW2, inst{load, 0, 0, offArgs + 16}, inst{jset, 0, 1, writes}, notify, allowed)
	place(noSys, errno(uint32(unix.ENOSYS)))
	place(noLSM, errno(uint32(unix.EOPNOTSUPP)))
	place(never, errno(uint32(unix.EPERM)))
	place(noNS, inst{load, 0, 0, offArgs}, inst{jset, 0, 1, newNamespace}, errno(uint32(unix.EPERM)), allowed)

	head := []inst{{load, 0, 0, offArch}, {jeq, 1, 0, auditArch}, {ret, 0, 0, unix.SECCOMP_RET_KILL_PROCESS}, {load, 0, 0, offNR}}
	n := len(head) + len(rules) + 1 // and the check for x32
	to := func(from, index int) uint8 { return uint8(n + index - from - 1) }
	prog := append(head, inst{jge, to(len(head), kill), 0, 0x40000000})
	for i, r := range rules {
		in := inst{jeq, to(len(prog), at[r.answer]), 0, uint32(r.nr)}
		if i == len(rules)-1 {
			in.jf = to(len(prog), allow)
		}
		prog = append(prog, in)
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
