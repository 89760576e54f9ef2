package guard

import (
	"bytes"
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// act is what a call does to an entry.
type act uint8

const (
	makes    act = iota // a file, a FIFO, a socket or another name for a file
	makesDir            // an empty directory
	aliases             // a symbolic link
	removes
	movesFrom
	movesTo
)

// may decides about an entry that is to be made, removed or renamed.
func (w *worker) may(op string, e *entry, a act) syscall.Errno {
	errno := w.decide(op, e, a)
	if errno == 0 {
		return 0
	}
	// What the kernel would find before it asked for rights.
	there := w.there(e)
	switch a {
	case makes, makesDir, aliases:
		if there {
			return unix.EEXIST
		}
	case removes, movesFrom:
		if !there {
			return unix.ENOENT
		}
	}
	if errno == refused {
		return unix.EACCES
	}
	return w.readOnly(e.dir)
}

// refused and notGranted are between decide and may.
const (
	refused syscall.Errno = 4200 + iota
	notGranted
)

func (w *worker) decide(op string, e *entry, a act) syscall.Errno {
	g := grantOf(w.g.grants, e.parent)
	if g == nil || !g.Entries {
		return notGranted
	}
	if !g.Guarded {
		return 0
	}
	v, rule := w.g.rules.Match(e.full, len(g.Path), w)
	if v == Leads && a != aliases && a != movesFrom && a != movesTo {
		v = Free
	}
	if v == Free && a != removes && a != movesFrom {
		if rule = w.g.rules.Completes(e.parent, e.name, w); rule != "" {
			v = Protected
		}
	}
	if v == Free {
		return 0
	}
	if a != removes && a != movesFrom || w.there(e) {
		w.note(op, e.full, rule)
	}
	return refused
}

// note records a refusal.
func (w *worker) note(op string, path []byte, rule string) {
	w.g.deny(Denial{Operation: op, Path: string(path), Rule: rule})
}

// there reports whether an entry exists.
func (w *worker) there(e *entry) bool { return w.look(e) == 0 }

// look reads an entry's status into stat.
func (w *worker) look(e *entry) syscall.Errno {
	_, errno := sys.Call(sysFstatat, uintptr(e.dir), e.addr, sys.Addr(&w.stat), unix.AT_SYMLINK_NOFOLLOW, 0, 0)
	return syscall.Errno(errno)
}

// mayChange decides about a file that is to be written or to have another mode.
// Its status is in stat.
func (w *worker) mayChange(op string, fd int) syscall.Errno {
	for _, s := range w.g.streams {
		if s.Dev == w.stat.Dev && s.Ino == w.stat.Ino {
			return 0
		}
	}
	name, errno := w.nameOf(fd, &w.canon[0])
	if errno != 0 {
		return errno
	}
	if name[0] != '/' {
		return 0 // a pipe
	}
	if w.foreign(fd) {
		if w.stat.Nlink == 0 && bytes.HasPrefix(name, []byte("/memfd:")) {
			return 0
		}
		return unix.EACCES
	}
	if w.stat.Nlink == 0 {
		name, _ = bytes.CutSuffix(name, []byte(" (deleted)"))
	}
	g := grantOf(w.g.grants, name)
	if g == nil || !g.Files {
		return w.readOnly(fd)
	}
	if !g.Guarded {
		return 0
	}
	if v, rule := w.g.rules.Match(name, len(g.Path), w); v == Protected && w.stat.Nlink > 0 {
		w.note(op, name, rule)
		return unix.EACCES
	}
	return 0
}

// readOnly is how the kernel says that something may not be changed: by the
// mount, or by Landlock.
func (w *worker) readOnly(fd int) syscall.Errno {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) == nil && fs.Flags&unix.ST_RDONLY != 0 {
		return unix.EROFS
	}
	return unix.EACCES
}

// result is what a handler returns for a call without a result of its own.
func result(_, e uintptr) (int64, syscall.Errno) { return 0, syscall.Errno(e) }

func failed(errno syscall.Errno) (int64, syscall.Errno) { return 0, errno }

// make makes a directory, a symbolic link or a node; the type is in mode.
func (w *worker) make(op string, dirfd int, addr uint64, mode uint32, target uint64, slot int) (int64, syscall.Errno) {
	kind := mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		n, errno := w.copyString(target, &w.link)
		if errno != 0 {
			return failed(errno)
		}
		if n == 0 {
			return failed(unix.ENOENT)
		}
	} else if errno := w.umask(); errno != 0 {
		return failed(errno)
	}
	e, errno := w.at(slot, dirfd, addr)
	if errno != 0 {
		return failed(errno)
	}
	defer e.close()
	if e.special {
		return failed(unix.EEXIST)
	}
	a := makes
	switch kind {
	case unix.S_IFDIR:
		a = makesDir
	case unix.S_IFLNK:
		a = aliases
	}
	if errno := w.may(op, &e, a); errno != 0 {
		return failed(errno)
	}
	switch kind {
	case unix.S_IFDIR:
		return result(sys.Call(unix.SYS_MKDIRAT, uintptr(e.dir), e.addr, uintptr(mode&0o7777), 0, 0, 0))
	case unix.S_IFLNK:
		return result(sys.Call(unix.SYS_SYMLINKAT, sys.Addr(&w.link[0]), uintptr(e.dir), e.addr, 0, 0, 0))
	}
	return result(sys.Call(unix.SYS_MKNODAT, uintptr(e.dir), e.addr, uintptr(mode), 0, 0, 0))
}

func (w *worker) mknod(op string, dirfd int, addr uint64, mode uint32) (int64, syscall.Errno) {
	switch mode & unix.S_IFMT {
	case 0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK:
		return w.make(op, dirfd, addr, mode, 0, 0)
	case unix.S_IFCHR, unix.S_IFBLK:
		return failed(unix.EPERM) // Landlock grants it to nobody
	}
	return failed(unix.EINVAL)
}

func (w *worker) remove(op string, dirfd int, addr uint64, flags uint32) (int64, syscall.Errno) {
	if flags&^unix.AT_REMOVEDIR != 0 {
		return failed(unix.EINVAL)
	}
	e, errno := w.at(0, dirfd, addr)
	if errno != 0 {
		return failed(errno)
	}
	defer e.close()
	if e.special {
		switch {
		case flags == 0:
			return failed(unix.EISDIR)
		case len(e.name) == 1:
			return failed(unix.EINVAL)
		case len(e.name) == 2:
			return failed(unix.ENOTEMPTY)
		}
		return failed(unix.EBUSY)
	}
	if errno := w.may(op, &e, removes); errno != 0 {
		return failed(errno)
	}
	return result(sys.Call(unix.SYS_UNLINKAT, uintptr(e.dir), e.addr, uintptr(flags), 0, 0, 0))
}

func (w *worker) rename(op string, dirfd1 int, addr1 uint64, dirfd2 int, addr2 uint64, flags uint32) (int64, syscall.Errno) {
	// RENAME_WHITEOUT makes a device node, which Landlock grants to nobody.
	if flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return failed(unix.EINVAL)
	}
	from, errno := w.at(0, dirfd1, addr1)
	if errno != 0 {
		return failed(errno)
	}
	defer from.close()
	to, errno := w.at(1, dirfd2, addr2)
	if errno != 0 {
		return failed(errno)
	}
	defer to.close()
	if from.special || to.special {
		return failed(unix.EBUSY)
	}
	if errno := w.may(op, &from, movesFrom); errno != 0 {
		return failed(errno)
	}
	if errno := w.may(op, &to, movesTo); errno != 0 {
		return failed(errno)
	}
	if flags&unix.RENAME_EXCHANGE != 0 {
		if errno := w.may(op, &to, movesFrom); errno != 0 {
			return failed(errno)
		}
		if errno := w.may(op, &from, movesTo); errno != 0 {
			return failed(errno)
		}
	}
	return result(sys.Call(unix.SYS_RENAMEAT2, uintptr(from.dir), from.addr, uintptr(to.dir), to.addr, uintptr(flags), 0))
}

func (w *worker) linkat(op string, dirfd1 int, addr1 uint64, dirfd2 int, addr2 uint64, flags uint32) (int64, syscall.Errno) {
	if flags&^(unix.AT_SYMLINK_FOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return failed(unix.EINVAL)
	}
	var old int
	var errno syscall.Errno
	if flags&unix.AT_EMPTY_PATH != 0 && w.emptyString(addr1) {
		// As the kernel allows whoever opened the file (Linux 6.10).
		old, errno = w.base(dirfd1)
	} else {
		how := uint64(unix.O_NOFOLLOW)
		if flags&unix.AT_SYMLINK_FOLLOW != 0 {
			how = 0
		}
		old, errno = w.place(dirfd1, addr1, how)
	}
	if errno != 0 {
		return failed(errno)
	}
	defer closeFD(old)
	to, errno := w.at(1, dirfd2, addr2)
	if errno != 0 {
		return failed(errno)
	}
	defer to.close()
	if to.special {
		return failed(unix.EEXIST)
	}
	if err := unix.Fstat(old, &w.stat); err != nil {
		return failed(err.(syscall.Errno))
	}
	// The kernel finds this before it asks for rights, and programs copy then.
	if w.mountOf(old) != w.mountOf(to.dir) {
		if errno := w.may(op, &to, makes); errno != 0 {
			return failed(errno)
		}
		if w.there(&to) {
			return failed(unix.EEXIST)
		}
		return failed(unix.EXDEV)
	}
	// Another name for it would be a way to change it.
	if errno := w.mayChange(op, old); errno != 0 {
		return failed(errno)
	}
	if errno := w.may(op, &to, makes); errno != 0 {
		return failed(errno)
	}
	cwd := unix.AT_FDCWD
	return result(sys.Call(unix.SYS_LINKAT, uintptr(cwd), w.selfPath(old), uintptr(to.dir), to.addr, unix.AT_SYMLINK_FOLLOW, 0))
}

func (w *worker) emptyString(addr uint64) bool {
	n, errno := w.copyString(addr, &w.path[0])
	return errno == 0 && n == 0
}

func (w *worker) truncate(addr uint64, length int64) (int64, syscall.Errno) {
	if length < 0 {
		return failed(unix.EINVAL)
	}
	fd, errno := w.place(unix.AT_FDCWD, addr, 0)
	if errno != 0 {
		return failed(errno)
	}
	defer closeFD(fd)
	if err := unix.Fstat(fd, &w.stat); err != nil {
		return failed(err.(syscall.Errno))
	}
	switch w.stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return failed(unix.EISDIR)
	default:
		return failed(unix.EINVAL)
	}
	if errno := w.mayChange("truncate", fd); errno != 0 {
		return failed(errno)
	}
	// The limit that counts is the caller's.
	var limit unix.Rlimit
	if err := unix.Prlimit(int(w.n.PID), unix.RLIMIT_FSIZE, nil, &limit); err != nil {
		return failed(unix.EACCES)
	}
	if length > w.stat.Size && uint64(length) > limit.Cur {
		return failed(unix.EFBIG)
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	cwd := unix.AT_FDCWD
	file, e := sys.Call(unix.SYS_OPENAT, uintptr(cwd), w.selfPath(fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return failed(syscall.Errno(e))
	}
	defer closeFD(int(file))
	return result(sys.Call(unix.SYS_FTRUNCATE, file, uintptr(length), 0, 0, 0, 0))
}

func (w *worker) chmod(op string, dirfd int, addr uint64, mode, flags uint32) (int64, syscall.Errno) {
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return failed(unix.EINVAL)
	}
	if flags&unix.AT_EMPTY_PATH != 0 && w.emptyString(addr) {
		fd, errno := w.base(dirfd)
		return w.setMode(op, fd, errno, mode)
	}
	how := uint64(0)
	if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		how = unix.O_NOFOLLOW
	}
	fd, errno := w.place(dirfd, addr, how)
	return w.setMode(op, fd, errno, mode)
}

func (w *worker) fchmod(fd int, mode uint32) (int64, syscall.Errno) {
	place, errno := w.file(fd)
	if errno == 0 && !w.l.Valid(w.n.ID) {
		errno = unix.ESRCH
	}
	return w.setMode("fchmod", place, errno, mode)
}

// setMode changes the mode of an open place, which it closes.
func (w *worker) setMode(op string, fd int, errno syscall.Errno, mode uint32) (int64, syscall.Errno) {
	defer closeFD(fd)
	if errno != 0 {
		return failed(errno)
	}
	if err := unix.Fstat(fd, &w.stat); err != nil {
		return failed(err.(syscall.Errno))
	}
	if w.stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		return failed(unix.EOPNOTSUPP)
	}
	if errno := w.mayAlter(op, fd); errno != 0 {
		return failed(errno)
	}
	cwd := unix.AT_FDCWD
	return result(sys.Call(unix.SYS_FCHMODAT, uintptr(cwd), w.selfPath(fd), uintptr(mode), 0, 0, 0))
}

// mayAlter decides about a file's mode and attributes. Landlock has no right for
// them; the mounts and the file's owner decide, and the patterns.
func (w *worker) mayAlter(op string, fd int) syscall.Errno {
	name, errno := w.nameOf(fd, &w.canon[0])
	if errno != 0 {
		return errno
	}
	if name[0] != '/' || w.stat.Nlink == 0 || w.foreign(fd) {
		return 0
	}
	g := grantOf(w.g.grants, name)
	if g == nil || !g.Guarded {
		return 0
	}
	if v, rule := w.g.rules.Match(name, len(g.Path), w); v == Protected {
		w.note(op, name, rule)
		return unix.EACCES
	}
	return 0
}

// Bounds of extended attributes; see xattr(7).
const (
	xattrName = 255
	xattrSize = 64 << 10
)

func (w *worker) setxattr(nr int) (int64, syscall.Errno) {
	a := &w.n.Args
	n, errno := w.copyString(a[1], &w.link)
	switch {
	case errno != 0:
		return failed(errno)
	case n == 0 || n > xattrName:
		return failed(unix.ERANGE)
	case a[3] > xattrSize:
		return failed(unix.E2BIG)
	}
	if w.value == nil {
		w.value = make([]byte, xattrSize)
	}
	if got, errno := w.read(a[2], w.value[:a[3]]); errno != 0 || got != int(a[3]) {
		return failed(unix.EFAULT)
	}
	if acl := string(w.link[:n]); acl == "system.posix_acl_access" || acl == "system.posix_acl_default" {
		if errno := w.ownIDs(w.value[:a[3]]); errno != 0 {
			return failed(errno)
		}
	}
	var fd int
	op := "setxattr"
	switch nr {
	case unix.SYS_FSETXATTR:
		op = "fsetxattr"
		if fd, errno = w.file(int(int32(a[0]))); errno == 0 && !w.l.Valid(w.n.ID) {
			closeFD(fd)
			errno = unix.ESRCH
		}
	case unix.SYS_LSETXATTR:
		op = "lsetxattr"
		fd, errno = w.place(unix.AT_FDCWD, a[0], unix.O_NOFOLLOW)
	default:
		fd, errno = w.place(unix.AT_FDCWD, a[0], 0)
	}
	if errno != 0 {
		return failed(errno)
	}
	defer closeFD(fd)
	if err := unix.Fstat(fd, &w.stat); err != nil {
		return failed(err.(syscall.Errno))
	}
	if errno := w.mayAlter(op, fd); errno != 0 {
		return failed(errno)
	}
	return result(sys.Call(unix.SYS_SETXATTR, w.selfPath(fd), sys.Addr(&w.link[0]), sys.Addr(&w.value[0]), uintptr(a[3]), uintptr(a[4]), 0))
}

// ownIDs makes the users and groups that an ACL names, as numbers of the caller's
// user namespace, those of this one, as the kernel would; see
// linux/posix_acl_xattr.h. What is no ACL is left to the kernel to refuse.
func (w *worker) ownIDs(acl []byte) syscall.Errno {
	const version, head, entry, user, group = 2, 4, 8, 0x02, 0x08
	if len(acl) < head || binary.LittleEndian.Uint32(acl) != version {
		return 0
	}
	var maps [2][]idRange
	for e := acl[head:]; len(e) >= entry; e = e[entry:] {
		i, file := 0, "/uid_map"
		switch binary.LittleEndian.Uint16(e) {
		case user:
		case group:
			i, file = 1, "/gid_map"
		default:
			continue
		}
		if maps[i] == nil {
			text, err := w.readProc(file)
			if err != nil || !w.l.Valid(w.n.ID) {
				return unix.EACCES
			}
			maps[i] = idMap(text)
		}
		id, ok := mapID(maps[i], binary.LittleEndian.Uint32(e[4:]))
		if !ok {
			return unix.EINVAL
		}
		binary.LittleEndian.PutUint32(e[4:], id)
	}
	return 0
}
