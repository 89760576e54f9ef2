package guard

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// tell records a call that failed for want of a grant. It looks the path up a second
// time, after the decision: nothing but a report depends on it, and calls that succeed
// pay nothing. What only the mode or the owner of a file refuses is none of the
// sandbox's doing, and not recorded.
func (w *worker) tell(errno syscall.Errno) {
	if w.told {
		return
	}
	a := &w.n.Args
	at := func(i int) int { return int(int32(a[i])) }
	const cwd = unix.AT_FDCWD
	switch int(w.n.NR) {
	case unix.SYS_OPENAT:
		w.tellOpen("openat", at(0), a[1], a[2])
	case sysOpen:
		w.tellOpen("open", cwd, a[0], a[1])
	case sysCreat:
		w.tellOpen("creat", cwd, a[0], 0)
	case unix.SYS_MKDIRAT:
		w.tellEntry("mkdirat", at(0), a[1])
	case sysMkdir:
		w.tellEntry("mkdir", cwd, a[0])
	case unix.SYS_MKNODAT:
		w.tellEntry("mknodat", at(0), a[1])
	case sysMknod:
		w.tellEntry("mknod", cwd, a[0])
	case unix.SYS_SYMLINKAT:
		w.tellEntry("symlinkat", at(1), a[2])
	case sysSymlink:
		w.tellEntry("symlink", cwd, a[1])
	case unix.SYS_UNLINKAT:
		w.tellEntry("unlinkat", at(0), a[1])
	case sysUnlink:
		w.tellEntry("unlink", cwd, a[0])
	case sysRmdir:
		w.tellEntry("rmdir", cwd, a[0])
	case unix.SYS_RENAMEAT2, sysRenameat:
		w.tellEntry("rename", at(0), a[1])
		w.tellNew("rename", at(2), a[3])
	case sysRename:
		w.tellEntry("rename", cwd, a[0])
		w.tellNew("rename", cwd, a[1])
	case unix.SYS_LINKAT:
		w.tellFile("link", at(0), a[1], unix.O_NOFOLLOW)
		w.tellNew("link", at(2), a[3])
	case sysLink:
		w.tellFile("link", cwd, a[0], unix.O_NOFOLLOW)
		w.tellNew("link", cwd, a[1])
	case unix.SYS_TRUNCATE:
		w.tellFile("truncate", cwd, a[0], 0)
	}
	// Landlock has no right for modes, owners and attributes: the mount alone refuses them.
	if errno != unix.EROFS {
		return
	}
	switch int(w.n.NR) {
	case unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2:
		w.tellFile("chmod", at(0), a[1], 0)
	case sysChmod:
		w.tellFile("chmod", cwd, a[0], 0)
	case unix.SYS_FCHOWNAT:
		w.tellFile("chown", at(0), a[1], 0)
	case sysChown:
		w.tellFile("chown", cwd, a[0], 0)
	case sysLchown:
		w.tellFile("lchown", cwd, a[0], unix.O_NOFOLLOW)
	case unix.SYS_SETXATTR, unix.SYS_REMOVEXATTR:
		w.tellFile("xattr", cwd, a[0], 0)
	case unix.SYS_LSETXATTR, unix.SYS_LREMOVEXATTR:
		w.tellFile("lxattr", cwd, a[0], unix.O_NOFOLLOW)
	case unix.SYS_FCHMOD:
		w.tellOpened("fchmod", at(0))
	case unix.SYS_FCHOWN:
		w.tellOpened("fchown", at(0))
	case unix.SYS_FSETXATTR, unix.SYS_FREMOVEXATTR:
		w.tellOpened("fxattr", at(0))
	}
}

// tellEntry is tell for a name in a directory.
func (w *worker) tellEntry(call string, dirfd int, addr uint64) {
	if w.lacks {
		w.entry = true // what is needed to change a name is its directory
		w.lookFor(Write, call, dirfd, addr, unix.O_NOFOLLOW, unix.F_OK)
		w.entry = false
		return
	}
	e, errno := w.at(0, dirfd, addr)
	if errno != 0 {
		return
	}
	defer e.close()
	switch g := e.mount.grant; {
	case e.special:
	case w.made:
		w.see(Use{Kind: Write, Call: call, Path: string(e.full), Leads: string(e.full), Whole: true})
	case g == nil || !g.Entries:
		w.tellOf(call, e.full, true)
	}
}

// tellNew is tellEntry for the second name of a call, which need not be there.
func (w *worker) tellNew(call string, dirfd int, addr uint64) {
	if w.made {
		call = "creat"
	}
	if !w.lacks {
		w.tellEntry(call, dirfd, addr)
	}
}

// tellOpen is tell for open(2), which makes a file or changes one.
func (w *worker) tellOpen(call string, dirfd int, addr, flags uint64) {
	if w.lacks && call != "creat" {
		return // observe has looked
	}
	w.whole = call == "creat" || flags&unix.O_TRUNC != 0
	defer func() { w.whole = false }()
	if w.made && flags&unix.O_ACCMODE == unix.O_RDWR && flags&unix.O_TRUNC == 0 {
		if fd, errno := w.place(dirfd, addr, 0); errno == 0 {
			if name, m, errno := w.named(fd, &w.canon[0]); errno == 0 && m != nil {
				w.see(Use{Kind: Read, Call: call, Path: string(name), Leads: string(name)})
			}
			closeFD(fd)
		}
	}
	if uint32(flags)&tmpfile != 0 {
		w.tellFile(call, dirfd, addr, 0)
	} else if errno := w.tellFile(call, dirfd, addr, 0); errno == unix.ENOENT {
		w.tellEntry(call, dirfd, addr)
	}
}

// tellFile is tell for what a path leads to.
func (w *worker) tellFile(call string, dirfd int, addr uint64, flags uint64) syscall.Errno {
	if w.lacks {
		w.lookFor(Write, call, dirfd, addr, flags, unix.F_OK)
		return 0
	}
	fd, errno := w.place(dirfd, addr, flags)
	if errno == 0 {
		w.tellPlace(call, fd)
	}
	return errno
}

func (w *worker) tellOpened(call string, fd int) {
	if fd, errno := w.opened(fd); errno == 0 {
		w.tellPlace(call, fd)
	}
}

// tellPlace is tell for an open place, which it closes.
func (w *worker) tellPlace(call string, fd int) {
	defer closeFD(fd)
	name, m, errno := w.named(fd, &w.canon[0])
	switch {
	case errno != 0 || m == nil:
	case w.made:
		w.see(Use{Kind: Write, Call: call, Path: string(name), Leads: string(name), Whole: w.whole})
	case m.grant == nil || !m.grant.Files:
		w.tellOf(call, name, false)
	}
}

func (w *worker) see(u Use) { w.g.seen(u, w.asker) }

func (w *worker) tellOf(call string, path []byte, entry bool) {
	w.g.deny(Denial{Kind: Write, Call: call, Path: string(path), Entry: entry}, w.asker)
}

// tellCall records a call that is refused for its number, or for the family of a socket.
func (w *worker) tellCall(name string) {
	w.told = true
	if w.n.Arch != auditArch {
		return // a number of another table
	}
	target := name
	if name == "socket" || name == "socketpair" {
		target = string(appendInt([]byte(name+" of family "), int(w.n.Args[0]&0xff)))
	}
	w.g.deny(Denial{Kind: Syscall, Call: name, Path: target}, w.asker)
}

// maxCommand is how much of a process's arguments is kept, bytes.
const maxCommand = 200

// asker is the caller's number in the sandbox, and its arguments.
func (w *worker) asker() (pid int, command string) {
	pid, command = Asker(w.proc, int(w.n.PID))
	if !w.l.Valid(w.n.ID) {
		return 0, "" // gone: the number may be another's by now
	}
	return pid, command
}

// Asker is a process's number in the innermost pid namespace, 0 if it is gone, and its
// arguments, as much of them as is kept. Proc is a descriptor of the host's /proc.
func Asker(proc, pid int) (inside int, command string) {
	var room [4096]byte
	text, _ := about(proc, pid, "status", room[:])
	if ids, errno := numbers(text, "NStgid:", 10); errno == 0 {
		inside = ids[len(ids)-1]
	}
	if command = arguments(proc, pid); command == arguments(proc, unix.Getpid()) {
		command = "" // it has this memory until it executes the command
	}
	return inside, command
}

func arguments(proc, pid int) string {
	var room [maxCommand]byte
	text, _ := about(proc, pid, "cmdline", room[:])
	if len(text) == maxCommand {
		return string(text) + "…"
	}
	return string(text)
}
