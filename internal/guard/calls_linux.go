package guard

import (
	"bytes"
	"cmp"
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
	removesDir
	movesFrom
	movesTo
)

// mayMake decides about an entry that is to be made.
func (w *worker) mayMake(op string, e *entry, a act) syscall.Errno {
	if e.special {
		return unix.EEXIST
	}
	if e.none != 0 {
		return e.none
	}
	errno, rule := w.decide(e, a)
	if errno == 0 {
		return 0
	}
	if errno := w.unmakable(e, a); errno != 0 {
		return errno
	}
	return w.refuse(op, e, errno, rule)
}

// unmakable is what the kernel finds before it asks for rights to make an entry, 0 for
// nothing. The kernel itself is not asked: if somebody removed meanwhile what is there,
// it would make the entry.
func (w *worker) unmakable(e *entry, a act) syscall.Errno {
	switch {
	case w.there(e):
		return unix.EEXIST
	case e.slash && a != makesDir:
		return unix.ENOENT
	}
	return 0
}

// nowhere is how the kernel refuses to move or to remove an entry that cannot be there.
func (w *worker) nowhere(e *entry) syscall.Errno {
	if w.readOnly(e.dir) == unix.EROFS {
		return unix.EROFS
	}
	return e.none
}

// refuse is how the kernel says what decide says. It records what a pattern refuses.
func (w *worker) refuse(op string, e *entry, errno syscall.Errno, rule string) syscall.Errno {
	switch errno {
	case notGranted:
		return w.readOnly(e.dir)
	case crossing:
		return unix.EXDEV
	}
	w.note(op, e.full, rule)
	return unix.EACCES
}

// What decide says.
const (
	refused    syscall.Errno = 4200 + iota // by a pattern
	notGranted                             // by what the mount is for
	crossing                               // by the border of a repository
	indexed                                // unless it is a rename of a good index
	configured                             // unless it is a rename of a good configuration
	continued                              // unless it is a rename of a good file of a rebase
)

func (w *worker) decide(e *entry, a act) (errno syscall.Errno, rule string) {
	g := e.mount.grant
	if g == nil || !g.Entries {
		return notGranted, ""
	}
	if !g.Guarded {
		return 0, ""
	}
	dirs := w.dirs(e)
	rules := w.rules(e.full)
	v, rule := rules.Match(e.full, len(g.Path), dirs)
	if v == Leads && a != aliases && a != movesFrom && a != movesTo {
		v = Free
	}
	if v == Free {
		ask := rules.Completes
		if a == removes || a == removesDir || a == movesFrom {
			ask = rules.Undoes
		}
		if rule = ask(e.parent, e.name, dirs); rule == "" && a == aliases && rules.Within(e.parent, len(g.Path),
			dirs) != nil {
			rule = ".git/"
		}
		if rule != "" {
			v = Protected
		}
	}
	switch {
	case v != Free && rule == IndexPattern && a == movesTo:
		return indexed, rule
	case v != Free && rule == ConfigPattern && a == movesTo && string(e.name) == "config":
		return configured, rule
	case v != Free && (a == movesTo || a == movesFrom) && w.state(e.full, len(g.Path), dirs, rule) != stateNone:
		if a == movesFrom {
			return 0, ""
		}
		return continued, rule
	case v == Free, rule == IndexPattern && (a == removes || a == removesDir || a == movesFrom),
		rule == rererePattern && a == removes, w.spared(e, a, rule):
		return 0, ""
	}
	return refused, rule
}

// crosses reports whether a rename would leave a repository or come into one. That is
// refused as between file systems, so that programs copy. What a directory is part of
// stays so, then, and no symbolic link comes in which another run puts in the place of
// what is renamed.
func (w *worker) crosses(from, to *entry) bool {
	if g := to.mount.grant; g == nil || !g.Guarded || from.id == to.id {
		return false
	}
	r1, ok1 := w.repositoryOf(from)
	r2, ok2 := w.repositoryOf(to)
	return !ok1 || !ok2 || r1 != r2
}

// repositoryOf is the repository that an entry is part of, the zero File for none; false
// if it cannot be told.
func (w *worker) repositoryOf(e *entry) (File, bool) {
	dir := w.g.rules.Current().Within(e.parent, len(e.mount.grant.Path), w.dirs(e))
	if dir == nil {
		return File{}, true
	}
	fd, errno := w.held.open(dir)
	if errno != 0 {
		return File{}, false
	}
	defer closeFD(fd)
	if w.identify(fd, "") != 0 {
		return File{}, false
	}
	return w.same(), true
}

// note records a refusal by a pattern.
func (w *worker) note(op string, path []byte, rule string) {
	w.told = true
	d := Denial{Kind: Write, Call: op, Path: string(path), Rule: rule}
	if w.doubtful(rule) {
		w.doubt = &d
		return
	}
	w.g.deny(d, w.asker)
}

// there reports whether an entry exists.
func (w *worker) there(e *entry) bool { return w.identify(e.dir, string(e.name)) == 0 }

// look reads an entry's status into stat.
func (w *worker) look(e *entry) syscall.Errno {
	_, errno := sys.Call(sysFstatat, uintptr(e.dir), e.addr, sys.Addr(&w.stat), unix.AT_SYMLINK_NOFOLLOW, 0, 0)
	return syscall.Errno(errno)
}

// passed reports whether the command was given the file that stat is about open for
// reading, for writing.
func (w *worker) passed() (read, write bool) {
	for _, s := range w.g.streams {
		if s.File == (File{Dev: w.stat.Dev, Ino: w.stat.Ino}) {
			read, write = read || s.Read, write || s.Write
		}
	}
	return read, write
}

// mayReopen decides about an open place that is to be opened again. Its status is in
// stat.
func (w *worker) mayReopen(op string, fd int, flags uint32) syscall.Errno {
	m := w.mountOf(fd)
	switch read, _ := w.passed(); {
	case m != nil && m.proc:
		return unix.EACCES // what it shows depends on who opens it
	case m == nil && !read && w.stat.Nlink > 0 && w.stat.Mode&unix.S_IFMT == unix.S_IFREG &&
		flags&unix.O_ACCMODE != unix.O_WRONLY:
		return unix.EACCES
	case flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0:
		return w.mayChange(op, fd)
	}
	return 0
}

// mayChange decides about a file that is to be written or to have another mode.
// Its status is in stat.
func (w *worker) mayChange(op string, fd int) syscall.Errno {
	if _, write := w.passed(); write {
		return 0
	}
	name, m, errno := w.named(fd, &w.canon[0])
	switch {
	case errno != 0:
		return errno
	case name[0] != '/':
		return 0 // a pipe
	case m == nil && w.stat.Nlink == 0 && bytes.HasPrefix(name, []byte("/memfd:")):
		return 0
	case m == nil:
		return unix.EACCES
	}
	g := m.grant
	if g == nil || !g.Files {
		return w.readOnly(fd)
	}
	if !g.Guarded {
		return 0
	}
	if v, rule := w.rules(name).Match(name, len(g.Path), w.dirsOf(fd, name)); v == Protected && w.stat.Nlink > 0 {
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
	a := makes
	switch kind {
	case unix.S_IFDIR:
		a = makesDir
	case unix.S_IFLNK:
		if a = aliases; w.probes(&e) {
			a = makes
		}
	}
	if errno := w.mayMake(op, &e, a); errno != 0 {
		return failed(errno)
	}
	switch kind {
	case unix.S_IFDIR:
		_, no := sys.Call(unix.SYS_MKDIRAT, uintptr(e.dir), e.addr, uintptr(mode&0o7777), 0, 0, 0)
		if no == 0 {
			w.began(&e)
		}
		return result(0, no)
	case unix.S_IFLNK:
		return result(sys.Call(unix.SYS_SYMLINKAT, sys.Addr(&w.link[0]), uintptr(e.dir), e.addr, 0, 0, 0))
	case unix.S_IFCHR, unix.S_IFBLK:
		return failed(cmp.Or(w.unmakable(&e, a), unix.EACCES))
	}
	return result(sys.Call(unix.SYS_MKNODAT, uintptr(e.dir), e.addr, uintptr(mode), 0, 0, 0))
}

func (w *worker) mknod(op string, dirfd int, addr uint64, mode uint32) (int64, syscall.Errno) {
	switch mode & unix.S_IFMT {
	case 0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK:
		return w.make(op, dirfd, addr, mode, 0, 0)
	case unix.S_IFCHR, unix.S_IFBLK:
		// Landlock grants it to nobody. The path is looked at first.
		return w.make(op, dirfd, addr, mode, 0, 0)
	case unix.S_IFDIR:
		return failed(unix.EPERM)
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
	if e.none != 0 {
		return failed(w.nowhere(&e))
	}
	a := removes
	if flags != 0 {
		a = removesDir
	}
	refusal, rule := w.decide(&e, a)
	if errno := w.unremovable(&e, flags, refusal); errno != 0 {
		return failed(errno)
	}
	if refusal != 0 {
		return failed(w.refuse(op, &e, refusal, rule))
	}
	return result(sys.Call(unix.SYS_UNLINKAT, uintptr(e.dir), e.addr, uintptr(flags), 0, 0, 0))
}

func (w *worker) rename(op string, dirfd1 int, addr1 uint64, dirfd2 int, addr2 uint64,
	flags uint32) (int64, syscall.Errno) {
	// RENAME_WHITEOUT makes a device node, which Landlock grants to nobody.
	if flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 || flags == unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE {
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
	if from.mount != to.mount {
		return failed(unix.EXDEV)
	}
	switch {
	case from.special:
		return failed(unix.EBUSY)
	case to.special && flags&unix.RENAME_NOREPLACE != 0:
		return failed(unix.EEXIST)
	case to.special:
		return failed(unix.EBUSY)
	}
	if from.none != 0 {
		return failed(w.nowhere(&from))
	}
	if to.none != 0 {
		if w.readOnly(to.dir) != unix.EROFS && !w.there(&from) {
			return failed(unix.ENOENT)
		}
		return failed(w.nowhere(&to))
	}
	asked := [...]struct {
		e *entry
		a act
	}{{&from, movesFrom}, {&to, movesTo}, {&to, movesFrom}, {&from, movesTo}}
	n := 2
	if flags&unix.RENAME_EXCHANGE != 0 {
		n = 4
	}
	var refusal syscall.Errno
	var of *entry
	var rule string
	for _, q := range asked[:n] {
		if refusal == 0 {
			of = q.e
			refusal, rule = w.decide(q.e, q.a)
		}
	}
	var move func(from, to *entry, flags uint32) syscall.Errno
	switch refusal {
	case indexed:
		move = w.moveIndex
	case configured:
		move = w.moveConfig
	case continued:
		move = w.moveState
	}
	if (refusal == 0 || move != nil) && w.crosses(&from, &to) {
		refusal = crossing
	}
	if errno, done := w.unmovable(&from, &to, flags, refusal); done {
		return failed(errno)
	}
	if move != nil && refusal != crossing && flags&unix.RENAME_EXCHANGE == 0 {
		if errno := move(&from, &to, flags); errno != refusal {
			return failed(errno)
		}
	}
	if refusal != 0 {
		return failed(w.refuse(op, of, refusal, rule))
	}
	if w.gains(&from, &to) || flags&unix.RENAME_EXCHANGE != 0 && w.gains(&to, &from) {
		return failed(unix.EXDEV)
	}
	return result(sys.Call(unix.SYS_RENAMEAT2, uintptr(from.dir), from.addr, uintptr(to.dir), to.addr, uintptr(flags), 0))
}

func (w *worker) linkat(op string, dirfd1 int, addr1 uint64, dirfd2 int, addr2 uint64,
	flags uint32) (int64, syscall.Errno) {
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
	switch {
	case to.special:
		return failed(unix.EEXIST)
	case to.none != 0:
		return failed(to.none)
	}
	// The kernel finds these before it asks for rights. Programs copy if it is EXDEV.
	if errno := w.unmakable(&to, makes); errno != 0 {
		return failed(errno)
	}
	if w.mountOf(old) != to.mount {
		if w.readOnly(to.dir) == unix.EROFS {
			return failed(unix.EROFS)
		}
		return failed(unix.EXDEV)
	}
	if err := unix.Fstat(old, &w.stat); err != nil {
		return failed(err.(syscall.Errno))
	}
	a := makes
	switch w.stat.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		a = aliases // a second name for a symbolic link is one
	case unix.S_IFSOCK:
		if w.leadsOut(&to) {
			return failed(unix.EXDEV)
		}
	}
	// Another name for it would be a way to change it.
	if errno := w.mayChange(op, old); errno != 0 {
		return failed(errno)
	}
	if errno := w.mayMake(op, &to, a); errno != 0 {
		return failed(errno)
	}
	cwd := unix.AT_FDCWD
	return result(sys.Call(unix.SYS_LINKAT, uintptr(cwd), w.selfPath(old), uintptr(to.dir), to.addr,
		unix.AT_SYMLINK_FOLLOW, 0))
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
	file, e := sys.Call(unix.SYS_OPENAT, uintptr(cwd), w.selfPath(fd),
		unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return failed(syscall.Errno(e))
	}
	defer closeFD(int(file))
	// By name, for ftruncate(2) sets the times of what has that size already.
	return result(sys.Call(unix.SYS_TRUNCATE, w.selfPath(int(file)), uintptr(length), 0, 0, 0, 0))
}

func (w *worker) chmod(op string, dirfd int, addr uint64, mode, flags uint32) (int64, syscall.Errno) {
	fd, errno := w.target(dirfd, addr, flags)
	return w.setMode(op, fd, errno, mode)
}

// target opens what a call with flags leads to, as a place.
func (w *worker) target(dirfd int, addr uint64, flags uint32) (int, syscall.Errno) {
	switch {
	case flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0:
		return -1, unix.EINVAL
	case flags&unix.AT_EMPTY_PATH != 0 && w.emptyString(addr):
		return w.base(dirfd)
	case flags&unix.AT_SYMLINK_NOFOLLOW != 0:
		return w.place(dirfd, addr, unix.O_NOFOLLOW)
	}
	return w.place(dirfd, addr, 0)
}

func (w *worker) fchmod(fd int, mode uint32) (int64, syscall.Errno) {
	place, errno := w.opened(fd)
	return w.setMode("fchmod", place, errno, mode)
}

func (w *worker) chown(op string, dirfd int, addr uint64, uid, gid, flags uint32) (int64, syscall.Errno) {
	fd, errno := w.target(dirfd, addr, flags)
	return w.setOwner(op, fd, errno, uid, gid)
}

// setOwner changes the owner of an open place, which it closes.
func (w *worker) setOwner(op string, fd int, errno syscall.Errno, uid, gid uint32) (int64, syscall.Errno) {
	defer closeFD(fd)
	if errno != 0 {
		return failed(errno)
	}
	var maps idMaps
	for i, id := range [...]*uint32{&uid, &gid} {
		if *id == ^uint32(0) {
			continue // stays
		}
		if errno := w.ownID(&maps, i, id); errno != 0 {
			return failed(errno)
		}
	}
	if err := unix.Fstat(fd, &w.stat); err != nil {
		return failed(err.(syscall.Errno))
	}
	if errno := w.mayAlter(op, fd); errno != 0 {
		return failed(errno)
	}
	w.num[0] = 0
	return result(sys.Call(unix.SYS_FCHOWNAT, uintptr(fd), sys.Addr(&w.num[0]), uintptr(uid), uintptr(gid),
		unix.AT_EMPTY_PATH, 0))
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
		if w.readOnly(fd) == unix.EROFS {
			return failed(unix.EROFS)
		}
		return failed(unix.EOPNOTSUPP)
	}
	// Git and libgit2 change the mode of a new configuration to see whether that can be done.
	if more := mode &^ (w.stat.Mode | 0o755) & 0o7777; more != 0 || !w.madeConfig(fd) {
		if errno := w.mayAlter(op, fd); errno != 0 {
			return failed(errno)
		}
	}
	cwd := unix.AT_FDCWD
	return result(sys.Call(unix.SYS_FCHMODAT, uintptr(cwd), w.selfPath(fd), uintptr(mode), 0, 0, 0))
}

// mayAlter decides about a file's mode and attributes. Landlock has no right for
// them; the mounts and the file's owner decide, and the patterns.
func (w *worker) mayAlter(op string, fd int) syscall.Errno {
	name, m, errno := w.named(fd, &w.canon[0])
	switch {
	case errno != 0:
		return errno
	case name[0] != '/', w.stat.Nlink == 0:
		return 0
	case m == nil:
		// Of what was passed in, a terminal and what is open for writing.
		if _, write := w.passed(); write || w.stat.Mode&unix.S_IFMT == unix.S_IFCHR {
			return 0
		}
		return unix.EACCES
	}
	g := m.grant
	if g == nil || !g.Guarded {
		return 0
	}
	dirs := w.dirsOf(fd, name)
	if v, rule := w.rules(name).Match(name, len(g.Path), dirs); v == Protected && w.state(name, len(g.Path), dirs,
		rule) != stateFree {
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
	if uint32(a[4])&^(unix.XATTR_CREATE|unix.XATTR_REPLACE) != 0 {
		return failed(unix.EINVAL)
	}
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
	fd, errno := w.attributed("setxattr", nr == unix.SYS_LSETXATTR, nr == unix.SYS_FSETXATTR)
	defer closeFD(fd)
	if errno != 0 {
		return failed(errno)
	}
	return result(sys.Call(unix.SYS_SETXATTR, w.selfPath(fd), sys.Addr(&w.link[0]), sys.Addr(&w.value[0]), uintptr(a[3]),
		uintptr(a[4]), 0))
}

func (w *worker) removexattr(nr int) (int64, syscall.Errno) {
	n, errno := w.copyString(w.n.Args[1], &w.link)
	switch {
	case errno != 0:
		return failed(errno)
	case n == 0 || n > xattrName:
		return failed(unix.ERANGE)
	}
	fd, errno := w.attributed("removexattr", nr == unix.SYS_LREMOVEXATTR, nr == unix.SYS_FREMOVEXATTR)
	defer closeFD(fd)
	if errno != 0 {
		return failed(errno)
	}
	return result(sys.Call(unix.SYS_REMOVEXATTR, w.selfPath(fd), sys.Addr(&w.link[0]), 0, 0, 0, 0))
}

// attributed opens what an extended attribute is to be changed of, as a place: the
// call's first argument is a path or, with open, a descriptor.
func (w *worker) attributed(op string, nofollow, open bool) (fd int, errno syscall.Errno) {
	switch a := w.n.Args[0]; {
	case open:
		op = "f" + op
		fd, errno = w.opened(int(int32(a)))
	case nofollow:
		op = "l" + op
		fd, errno = w.place(unix.AT_FDCWD, a, unix.O_NOFOLLOW)
	default:
		fd, errno = w.place(unix.AT_FDCWD, a, 0)
	}
	if errno != 0 {
		return fd, errno
	}
	if err := unix.Fstat(fd, &w.stat); err != nil {
		return fd, err.(syscall.Errno)
	}
	// The command has no capability for these. This thread's user owns the sandbox's
	// user namespace, and so has them all on file systems that were mounted in it.
	for _, space := range [...]string{"security.", "trusted."} {
		if bytes.HasPrefix(w.link[:], []byte(space)) {
			return fd, unix.EPERM
		}
	}
	return fd, w.mayAlter(op, fd)
}

// ownIDs makes the users and groups that an ACL names, as numbers of the caller's
// user namespace, those of this one, as the kernel would; see
// linux/posix_acl_xattr.h. What is no ACL is left to the kernel to refuse.
func (w *worker) ownIDs(acl []byte) syscall.Errno {
	const version, head, entry, user, group = 2, 4, 8, 0x02, 0x08
	if len(acl) < head || binary.LittleEndian.Uint32(acl) != version {
		return 0
	}
	var maps idMaps
	for e := acl[head:]; len(e) >= entry; e = e[entry:] {
		i := 0
		switch binary.LittleEndian.Uint16(e) {
		case user:
		case group:
			i = 1
		default:
			continue
		}
		id := binary.LittleEndian.Uint32(e[4:])
		if errno := w.ownID(&maps, i, &id); errno != 0 {
			return errno
		}
		binary.LittleEndian.PutUint32(e[4:], id)
	}
	return 0
}

// idMaps are those of the caller's user namespace for users and groups, nil if they
// were not read yet.
type idMaps [2][]idRange

// ownID makes the number of a user (0) or group (1) in the caller's user namespace
// the one that it has here.
func (w *worker) ownID(maps *idMaps, kind int, id *uint32) syscall.Errno {
	if maps[kind] == nil {
		text, err := w.readProc([...]string{"/uid_map", "/gid_map"}[kind])
		if err != nil || !w.l.Valid(w.n.ID) {
			return unix.EACCES
		}
		maps[kind] = idMap(text)
	}
	n, ok := mapID(maps[kind], *id)
	if !ok {
		return unix.EINVAL
	}
	*id = n
	return 0
}
