package namespaces

import (
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// AppendIDMaps appends the calls by which a process maps ids in the user
// namespace that it was cloned into. Without privilege in the parent namespace
// the kernel takes one id of each kind, the caller's own, and only once
// setgroups(2) is given up (user_namespaces(7), CVE-2014-8989).
func AppendIDMaps(p *sys.Program, uidMap, gidMap string) {
	fd := p.NewReg()
	write := func(path, content string) {
		p.Call(fd, sys.Step{Op: "open", Object: path}, unix.SYS_OPENAT, sys.Imm(unix.AT_FDCWD), p.Str(path),
			sys.Imm(unix.O_WRONLY|unix.O_CLOEXEC), sys.Imm(0))
		p.Call(0, sys.Step{Op: "write", Object: path}, unix.SYS_WRITE, fd.Value(), p.Data(content), sys.Imm(len(content)))
		p.Call(0, sys.Step{Op: "close", Object: path}, unix.SYS_CLOSE, fd.Value())
	}
	write("/proc/self/setgroups", "deny")
	write("/proc/self/uid_map", uidMap)
	write("/proc/self/gid_map", gidMap)
}

// AppendLimits appends the calls that bound what the processes of a new user
// namespace take from the caller's budgets, which the kernel counts in it and in
// every namespace above: no user namespaces of their own at all, whatever the
// system call filter says, and half of the usual inotify instances. See
// namespaces(7) and /proc/sys/user.
//
// Preconditions of the program: CAP_SYS_RESOURCE in the user namespace, and the
// ids are mapped.
func AppendLimits(p *sys.Program) {
	fd := p.NewReg()
	for _, l := range [...][2]string{{"max_user_namespaces", "0"}, {"max_inotify_instances", "64"}} {
		path := "/proc/sys/user/" + l[0]
		open := p.Call(fd, sys.Step{Op: "open", Object: path}, unix.SYS_OPENAT, sys.Imm(unix.AT_FDCWD), p.Str(path),
			sys.Imm(unix.O_WRONLY|unix.O_CLOEXEC), sys.Imm(0))
		open.AllowSkip(unix.ENOENT, 2) // a kernel without it
		p.Call(0, sys.Step{Op: "write", Object: path}, unix.SYS_WRITE, fd.Value(), p.Data(l[1]), sys.Imm(len(l[1])))
		p.Call(0, sys.Step{Op: "close", Object: path}, unix.SYS_CLOSE, fd.Value())
	}
}

// ifreq is struct ifreq of netdevice(7) with flags in its union.
type ifreq struct {
	name  [unix.IFNAMSIZ]byte
	flags uint16
	_     [22]byte
}

// AppendLoopback appends the calls that bring up the loopback interface of a
// new network namespace, which starts out down.
func AppendLoopback(p *sys.Program) {
	fd := p.NewReg()
	step := sys.Step{Op: "loopback", Object: "lo"}
	req := &ifreq{flags: unix.IFF_UP | unix.IFF_RUNNING}
	copy(req.name[:], "lo")
	p.Call(fd, step, unix.SYS_SOCKET, sys.Imm(unix.AF_INET), sys.Imm(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), sys.Imm(0))
	p.Call(0, step, unix.SYS_IOCTL, fd.Value(), sys.Imm(unix.SIOCSIFFLAGS), sys.Ptr(p, req))
	p.Call(0, step, unix.SYS_CLOSE, fd.Value())
}

// AppendHostname appends the call that names the host of a new UTS namespace.
func AppendHostname(p *sys.Program, name string) {
	p.Call(0, sys.Step{Op: "sethostname", Object: name}, unix.SYS_SETHOSTNAME, p.Data(name), sys.Imm(len(name)))
}

// AppendCgroup appends the call by which the command's process makes the cgroup
// that it is in the root of what it sees of cgroups.
func AppendCgroup(p *sys.Program) {
	p.Call(0, sys.Step{Op: "unshare", Object: "cgroup"}, unix.SYS_UNSHARE, sys.Imm(CloneNewCgroup))
}

// lastCap is the highest capability that a kernel of this interface could have:
// two words of 32.
const lastCap = 63

// AppendDropCapabilities appends the calls that leave a process without any
// capability in any of the five sets; see capabilities(7).
//
// Preconditions of the program: CAP_SETPCAP.
func AppendDropCapabilities(p *sys.Program) {
	AppendDropBounding(p)
	p.Call(0, sys.Step{Op: "prctl", Object: "PR_CAP_AMBIENT"}, unix.SYS_PRCTL, sys.Imm(unix.PR_CAP_AMBIENT),
		sys.Imm(unix.PR_CAP_AMBIENT_CLEAR_ALL), sys.Imm(0), sys.Imm(0), sys.Imm(0))
	AppendClearCapabilities(p)
}

// AppendDropBounding appends the calls that empty the bounding set. What a process
// has it keeps, but nothing that it starts has one again: the set is inherited.
//
// Preconditions of the program: CAP_SETPCAP.
func AppendDropBounding(p *sys.Program) {
	for c := 0; c <= lastCap; c++ {
		ref := p.Call(0, sys.Step{Op: "prctl", Object: "PR_CAPBSET_DROP"}, unix.SYS_PRCTL, sys.Imm(unix.PR_CAPBSET_DROP),
			sys.Imm(c), sys.Imm(0), sys.Imm(0), sys.Imm(0))
		// EINVAL: beyond the last one that this kernel has.
		ref.AllowSkip(unix.EINVAL, lastCap-c)
	}
}

// AppendShield appends the call after which a process with an empty bounding set can
// use no capability, and after execve(2) has none. Until then one is permitted, not
// effective: who has none may not trace it then, nor use its /proc files, by
// ptrace(2)'s access mode check. It may still share the memory and the descriptors of
// a process that is out of the others' reach.
func AppendShield(p *sys.Program) {
	p.Call(0, sys.Step{Op: "capset"}, unix.SYS_CAPSET,
		sys.Ptr(p, &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}),
		sys.Ptr(p, &[2]unix.CapUserData{{Permitted: 1 << unix.CAP_SETPCAP}}))
}

// AppendClearCapabilities appends the call that empties the permitted, effective
// and inheritable sets.
//
//	int capset(cap_user_header_t hdrp, const cap_user_data_t datap);
func AppendClearCapabilities(p *sys.Program) {
	p.Call(0, sys.Step{Op: "capset"}, unix.SYS_CAPSET,
		sys.Ptr(p, &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}), sys.Ptr(p, &[2]unix.CapUserData{}))
}
