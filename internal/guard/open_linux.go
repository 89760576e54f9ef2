package guard

import (
	"bytes"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

const tmpfile = unix.O_TMPFILE &^ unix.O_DIRECTORY

// open makes open(2) that can write, in any of its forms.
func (w *worker) open(op string, dirfd int, addr uint64, flags, mode uint32) (int64, syscall.Errno) {
	switch {
	case flags&tmpfile != 0 && (flags&(unix.O_DIRECTORY|unix.O_CREAT) != unix.O_DIRECTORY ||
		flags&unix.O_ACCMODE == unix.O_RDONLY),
		flags&(unix.O_CREAT|unix.O_DIRECTORY) == unix.O_CREAT|unix.O_DIRECTORY:
		return failed(unix.EINVAL)
	case flags&(unix.O_CREAT|unix.O_TRUNC) != 0 && (!fresh(flags) || w.tight) && w.full():
		return failed(unix.EMFILE) // before a file is made or truncated
	}
	n, errno := w.copyString(addr, &w.path[0])
	if errno != 0 {
		return failed(errno)
	}
	if n == 0 {
		return failed(unix.ENOENT)
	}
	path := w.path[0][:n]
	if flags&(unix.O_CREAT|tmpfile) != 0 {
		if errno = w.umask(); errno != 0 {
			return failed(errno)
		}
	}
	base := -1
	if path[0] != '/' {
		base, errno = w.from(dirfd)
	} else if !w.l.Valid(w.n.ID) {
		errno = unix.ESRCH
	}
	var res int64
	switch {
	case errno != 0:
	case flags&tmpfile != 0:
		res, errno = w.openTemporary(op, base, path, flags, mode)
	default:
		res, errno = w.openEntry(op, base, path, flags, mode)
	}
	if errno != 0 && fresh(flags) && w.full() {
		errno = unix.EMFILE // which the kernel finds first
	}
	w.leave(base)
	return res, errno
}

// full reports whether the caller has no number left for a descriptor. The lowest
// one that is free is taken, so the last is the first to look for.
func (w *worker) full() bool {
	var limit unix.Rlimit
	if unix.Prlimit(int(w.n.PID), unix.RLIMIT_NOFILE, nil, &limit) != nil {
		return false
	}
	b := append(appendInt(w.num[:0], int(w.n.PID)), "/fd/"...)
	dir := len(b)
	if limit.Cur > 0 {
		b = append(appendInt(b, int(min(limit.Cur, 1<<30)-1)), 0)
		if _, e := sys.Raw(sysFstatat, uintptr(w.proc), sys.Addr(&b[0]), sys.Addr(&w.stat), unix.AT_SYMLINK_NOFOLLOW, 0,
			0); e != 0 {
			return false
		}
	}
	f, err := unix.Openat(w.proc, string(b[:dir]), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	list := os.NewFile(uintptr(f), "")
	defer list.Close()
	names, err := list.Readdirnames(-1)
	return err == nil && uint64(len(names)) >= limit.Cur && w.l.Valid(w.n.ID)
}

// install gives an open file to the caller and closes it here, before the caller
// goes on: a file that is open for writing somewhere cannot be executed.
func (w *worker) install(fd int, flags uint32) (int64, syscall.Errno) {
	n, err := w.addFD(fd, flags)
	closeFD(fd)
	if err != nil {
		return failed(err.(syscall.Errno))
	}
	return int64(n), 0
}

// A pace chooses how open files are given to callers: with both on one processor
// ([sys.Listener.AddNear]) where that is faster. It tries both ways now and again.
type pace struct {
	files int              // since both were tried first
	sums  [2]time.Duration // of the last tries; near is the second
	last  time.Time        // when a file was given
}

const (
	tries = 8                      // of each way
	keeps = 1024                   // with the faster one
	spike = 200 * time.Microsecond // longer ones say more of the machine's other work
)

// near is the way of the next file.
func (p *pace) near() bool {
	if p.files < 2*tries {
		return p.files >= tries
	}
	return p.sums[1] < p.sums[0]
}

// took notes how long that was.
func (p *pace) took(d time.Duration, now time.Time) {
	p.last = now
	if p.files < 2*tries {
		p.sums[p.files/tries] += min(d, spike)
	}
	if p.files++; p.files == 2*tries+keeps {
		*p = pace{}
	}
}

// addFD gives an open file to the caller.
func (w *worker) addFD(fd int, flags uint32) (n int, err error) {
	begin := time.Now()
	if w.pace.near() {
		w.l.Near()
		n, err = w.l.AddNear(w.n.ID, w.n.PID, fd, flags&unix.O_CLOEXEC)
	} else {
		w.l.Far()
		n, err = w.l.AddFD(w.n.ID, fd, flags&unix.O_CLOEXEC)
	}
	now := time.Now()
	w.pace.took(now.Sub(begin), now)
	return n, err
}

// openTemporary makes a file without a name.
func (w *worker) openTemporary(op string, base int, path []byte, flags, mode uint32) (int64, syscall.Errno) {
	dir, errno := w.object(base, path, unix.O_DIRECTORY|uint64(flags&unix.O_NOFOLLOW))
	if errno != 0 {
		return failed(errno)
	}
	defer closeFD(dir)
	_, m, errno := w.named(dir, &w.canon[0])
	if errno != 0 {
		return failed(errno)
	}
	if m == nil {
		return failed(unix.EACCES)
	}
	if g := m.grant; g == nil || !g.Entries || !g.Files {
		return failed(w.readOnly(dir))
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	b := append(w.num[:0], ".\x00"...)
	fd, e := sys.Call(unix.SYS_OPENAT, uintptr(dir), sys.Addr(&b[0]), uintptr(flags|unix.O_CLOEXEC), uintptr(mode), 0, 0)
	if e != 0 {
		return failed(syscall.Errno(e))
	}
	return w.install(int(fd), flags)
}

// openEntry opens or makes a file, following symbolic links at the end of the
// path as the call would.
func (w *worker) openEntry(op string, base int, path []byte, flags, mode uint32) (int64, syscall.Errno) {
	links := 0
	own := false // base is ours to close
	defer func() {
		if own {
			closeFD(base)
		}
	}()
	for {
		e, errno := w.entryOf(0, base, path)
		if errno != 0 {
			return failed(errno)
		}
		if e.special || e.slash || e.none != 0 {
			errno := w.openDirectory(&e, base, path, flags)
			e.close()
			return failed(errno)
		}
		res, errno := w.openIn(op, &e, flags, mode)
		if errno != isLink {
			e.close()
			return res, errno
		}
		if links++; links > 40 {
			e.close()
			return failed(unix.ELOOP)
		}
		if proc, root := isProc(e.dir); proc && !root {
			fd, errno := w.magicLink(e.dir, string(e.name))
			e.close()
			if errno != 0 {
				return failed(errno)
			}
			return w.reopen(op, fd, flags)
		}
		n, errno2 := sys.Call(unix.SYS_READLINKAT, uintptr(e.dir), e.addr, sys.Addr(&w.link[0]), pathMax, 0, 0)
		if errno2 != 0 || n == 0 {
			e.close()
			return failed(unix.ENOENT)
		}
		path = bytes.Clone(w.link[:n])
		if !e.own {
			continue // from the same directory on
		}
		if own {
			closeFD(base)
		}
		base, own = e.dir, true
	}
}

// isLink is between openIn and openEntry.
const isLink syscall.Errno = 4300

// openDirectory is for paths that can only be directories, which cannot be
// opened for writing, and for those that lead nowhere: it says why not.
func (w *worker) openDirectory(e *entry, base int, path []byte, flags uint32) syscall.Errno {
	creates := flags&unix.O_CREAT != 0
	switch {
	case creates && e.slash && !e.special:
		return unix.EISDIR // whatever it is; see open_last_lookups in fs/namei.c
	case e.none != 0 && !e.special:
		return e.none
	}
	fd, errno := w.object(base, path, 0)
	closeFD(fd)
	switch {
	case errno != 0:
		return errno
	case creates && flags&unix.O_EXCL != 0:
		return unix.EEXIST
	}
	return unix.EISDIR
}

// openIn opens or makes an entry of a directory; isLink if that is a symbolic
// link to follow.
func (w *worker) openIn(op string, e *entry, flags, mode uint32) (int64, syscall.Errno) {
	changes := flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0
	var g *Grant
	if m := w.shows(e); m != nil {
		g = m.grant
	}
	if within(e.parent, "/dev") && (g == nil || !g.Entries) {
		// Opening a device does something: it is looked at first.
		return w.openNode(op, e, flags)
	}
	errno := syscall.Errno(0)
	rule := ""
	switch {
	case g == nil || !g.Files || e.mount.proc:
		errno = notGranted
	case g.Guarded:
		var v Verdict
		dirs := w.dirs(e)
		if v, rule = w.rules(e.full).Match(e.full, len(g.Path), dirs); v == Protected {
			text := ""
			if flags&unix.O_CREAT != 0 {
				text = w.fixed(e, dirs, rule)
			}
			switch state := w.state(e.full, len(g.Path), dirs, rule); {
			case rule == ".git/hooks" && w.spared(e, makes, rule), state == stateFree:
			case text != "":
				return w.makeFixed(e, flags, mode, text)
			case state == stateLost && (changes || flags&unix.O_CREAT != 0):
				return w.openLost(e, flags)
			case rule == ConfigPattern && flags&(unix.O_CREAT|unix.O_EXCL|unix.O_RDWR) == unix.O_CREAT &&
				w.spared(e, removes, rule) && !w.there(e):
				return w.makeConfig(e, flags, mode)
			default:
				errno = refused
			}
		} else if flags&unix.O_CREAT != 0 {
			if rule = w.rules(e.full).Completes(e.parent, e.name, dirs); rule != "" {
				errno = refused
			}
		}
	}
	if errno != 0 {
		return w.openAnyway(op, e, flags, errno, rule, changes)
	}
	if flags&unix.O_CREAT != 0 && !g.Entries { // a single file that was granted
		if fresh(flags) && w.there(e) {
			return failed(unix.EEXIST)
		}
		flags &^= unix.O_CREAT
	}
	return w.openFile(e, flags, mode)
}

// openLost is an open of a file that the command only seems to write: what it writes is in
// memory, and gone when it is closed.
func (w *worker) openLost(e *entry, flags uint32) (int64, syscall.Errno) {
	there := w.there(e)
	switch {
	case there && flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL:
		return failed(unix.EEXIST)
	case !there && flags&unix.O_CREAT == 0:
		return failed(unix.ENOENT)
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.MemfdCreate("sbxrun", unix.MFD_CLOEXEC)
	if err != nil {
		return failed(err.(syscall.Errno))
	}
	return w.install(fd, flags)
}

// openAnyway is for a file that may not be changed: if it exists and is not to
// be changed, it is opened, as without O_CREAT. It finds what the kernel would
// find before it asked for rights.
func (w *worker) openAnyway(op string, e *entry, flags uint32, errno syscall.Errno, rule string,
	changes bool) (int64, syscall.Errno) {
	found := w.look(e)
	if found != 0 && found != unix.ENOENT {
		return failed(found)
	}
	there := found == 0
	link := there && w.stat.Mode&unix.S_IFMT == unix.S_IFLNK
	switch {
	case there && flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL:
		return failed(unix.EEXIST)
	case link && flags&unix.O_NOFOLLOW != 0:
		return failed(notFollowed(flags))
	case link:
		// What it leads to decides; a protected link can still be followed.
		return failed(isLink)
	case there && w.stat.Mode&unix.S_IFMT == unix.S_IFDIR:
		return failed(unix.EISDIR)
	case there && !changes && !e.mount.proc:
		return w.openFile(e, flags&^(unix.O_CREAT|unix.O_EXCL), 0)
	case !there && flags&unix.O_CREAT == 0:
		return failed(unix.ENOENT)
	}
	switch {
	case there && !changes:
		// What /proc shows depends on who opens it.
		return failed(unix.EACCES)
	case errno == notGranted:
		return failed(w.readOnly(e.dir))
	}
	w.note(op, e.full, rule)
	return failed(unix.EACCES)
}

// openFile opens an entry, without following it, and without waiting for
// anybody.
func (w *worker) openFile(e *entry, flags, mode uint32) (int64, syscall.Errno) {
	if waitsForWriter(flags) && w.look(e) == 0 && w.stat.Mode&unix.S_IFMT == unix.S_IFIFO {
		return w.waitAt(e, flags, 0)
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	// O_NOFOLLOW would be seen by who asks for the descriptor's flags. What openat(2)
	// passes over, openat2(2) refuses.
	const known = unix.O_ACCMODE | unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_APPEND | unix.O_SYNC | unix.O_DSYNC |
		unix.O_ASYNC |
		unix.O_DIRECT | largeFile | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NOATIME
	w.how = unix.OpenHow{Flags: uint64(flags&known | largeFile | unix.O_CLOEXEC | unix.O_NOCTTY),
		Resolve: unix.RESOLVE_NO_SYMLINKS}
	if !fresh(flags) {
		w.how.Flags |= unix.O_NONBLOCK
	} else {
		w.how.Flags |= uint64(flags & unix.O_NONBLOCK)
	}
	if flags&unix.O_CREAT != 0 {
		w.how.Mode = uint64(mode & 0o7777)
	}
	fd, errno := sys.Call(unix.SYS_OPENAT2, uintptr(e.dir), e.addr, sys.Addr(&w.how), unix.SizeofOpenHow, 0, 0)
	switch syscall.Errno(errno) {
	case 0:
		if fresh(flags) {
			return w.installNew(int(fd), e, flags)
		}
		return w.deliver(int(fd), flags)
	case unix.ELOOP:
		if flags&unix.O_NOFOLLOW == 0 {
			return failed(isLink)
		}
	case unix.ENXIO, unix.EAGAIN:
		if flags&unix.O_NONBLOCK == 0 {
			return w.waitAt(e, flags, syscall.Errno(errno))
		}
	}
	return failed(syscall.Errno(errno))
}

// fresh reports whether what an open opens is new: nothing that it could wait for.
func fresh(flags uint32) bool {
	return flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
}

// installNew is install for an entry that was made. The kernel would have looked for a
// number first: if the caller has none, the entry goes, and from then on callers are asked
// first. Somebody else of the host can rename a file to that name meanwhile.
func (w *worker) installNew(fd int, e *entry, flags uint32) (int64, syscall.Errno) {
	n, err := w.addFD(fd, flags)
	w.tight = w.tight || err == unix.EMFILE
	if err == unix.EMFILE && w.identify(fd, "") == 0 {
		if made := w.same(); w.identify(e.dir, string(e.name)) == 0 && w.same() == made {
			sys.Call(unix.SYS_UNLINKAT, uintptr(e.dir), e.addr, 0, 0, 0, 0)
		}
	}
	closeFD(fd)
	if err != nil {
		return failed(err.(syscall.Errno))
	}
	return int64(n), 0
}

// waitsForWriter reports whether an open waits for a writer if it is of a FIFO. To try
// it would be to open it, and to end a writer's waiting.
func waitsForWriter(flags uint32) bool {
	return flags&(unix.O_ACCMODE|unix.O_NONBLOCK|unix.O_DIRECTORY) == 0 && !fresh(flags)
}

// waitAt is wait for an entry of a directory.
func (w *worker) waitAt(e *entry, flags uint32, errno syscall.Errno) (int64, syscall.Errno) {
	place, no := sys.Call(unix.SYS_OPENAT, uintptr(e.dir), e.addr, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0, 0, 0)
	if no != 0 {
		return failed(syscall.Errno(no))
	}
	return w.wait(int(place), flags, errno)
}

// deliver gives an open file to the caller as it asked for it.
func (w *worker) deliver(fd int, flags uint32) (int64, syscall.Errno) {
	w.own(fd, flags)
	return w.install(fd, flags)
}

// own gives a file that was opened without waiting the flags that the caller asked
// for: fcntl(2) takes those of them that can be set.
func (w *worker) own(fd int, flags uint32) {
	if flags&unix.O_NONBLOCK == 0 {
		sys.Raw(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFL, uintptr(flags&(unix.O_APPEND|unix.O_DIRECT|unix.O_NOATIME)), 0, 0,
			0)
	}
}

// openNode opens an entry of /dev.
func (w *worker) openNode(op string, e *entry, flags uint32) (int64, syscall.Errno) {
	r, errno := sys.Call(unix.SYS_OPENAT, uintptr(e.dir), e.addr, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0, 0, 0)
	switch syscall.Errno(errno) {
	case 0:
	case unix.ENOENT:
		if flags&unix.O_CREAT != 0 {
			return failed(w.readOnly(e.dir))
		}
		fallthrough
	default:
		return failed(syscall.Errno(errno))
	}
	fd := int(r)
	if err := unix.Fstat(fd, &w.stat); err != nil {
		closeFD(fd)
		return failed(err.(syscall.Errno))
	}
	switch {
	case flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL:
		closeFD(fd)
		return failed(unix.EEXIST)
	case w.stat.Mode&unix.S_IFMT == unix.S_IFLNK:
		closeFD(fd)
		if flags&unix.O_NOFOLLOW != 0 {
			return failed(notFollowed(flags))
		}
		return failed(isLink)
	case w.stat.Mode&unix.S_IFMT != unix.S_IFDIR && flags&unix.O_NOFOLLOW != 0 && w.stat.Rdev != unix.Mkdev(5, 0):
		// By its name, for the flag would be seen; nobody inside can exchange it.
		errno := w.mayReopen(op, fd, flags)
		closeFD(fd)
		if errno != 0 {
			return failed(errno)
		}
		return w.openFile(e, flags&^(unix.O_CREAT|unix.O_EXCL), 0)
	}
	return w.reopen(op, fd, flags)
}

// notFollowed is how a symbolic link is refused that is not to be followed.
func notFollowed(flags uint32) syscall.Errno {
	if flags&unix.O_DIRECTORY != 0 {
		return unix.ENOTDIR
	}
	return unix.ELOOP
}

// reopen opens a place again, for what the caller wants, and closes it.
func (w *worker) reopen(op string, fd int, flags uint32) (int64, syscall.Errno) {
	if err := unix.Fstat(fd, &w.stat); err != nil {
		closeFD(fd)
		return failed(err.(syscall.Errno))
	}
	errno := syscall.Errno(0)
	switch {
	case flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL:
		errno = unix.EEXIST
	case w.stat.Mode&unix.S_IFMT == unix.S_IFDIR:
		errno = unix.EISDIR
	case w.stat.Mode&unix.S_IFMT == unix.S_IFLNK:
		errno = notFollowed(flags)
	case w.stat.Mode&unix.S_IFMT == unix.S_IFCHR && w.stat.Rdev == unix.Mkdev(5, 0):
		// /dev/tty would be the terminal of this process.
		closeFD(fd)
		if fd, errno = w.terminal(); errno != 0 {
			return failed(errno)
		}
	default:
		errno = w.mayReopen(op, fd, flags)
	}
	if errno != 0 {
		closeFD(fd)
		return failed(errno)
	}
	flags &^= unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
	if waitsForWriter(flags) && w.stat.Mode&unix.S_IFMT == unix.S_IFIFO {
		return w.wait(fd, flags, 0)
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	file, errno := w.again(fd, flags)
	switch errno {
	case 0:
		closeFD(fd)
		return w.deliver(file, flags)
	case unix.ENXIO, unix.EAGAIN:
		if flags&unix.O_NONBLOCK == 0 {
			return w.wait(fd, flags, errno)
		}
	}
	closeFD(fd)
	return failed(errno)
}

// again opens a place by its descriptor, without waiting.
func (w *worker) again(fd int, flags uint32) (int, syscall.Errno) {
	cwd := unix.AT_FDCWD
	file, e := sys.Call(unix.SYS_OPENAT, uintptr(cwd), w.selfPath(fd),
		uintptr(flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK), 0, 0, 0)
	if e != 0 {
		return -1, syscall.Errno(e)
	}
	return int(file), 0
}

// terminal opens the caller's controlling terminal, which is one of the
// sandbox's own, as a place.
func (w *worker) terminal() (int, syscall.Errno) {
	b := append(appendInt(w.num[:0], int(w.n.PID)), "/stat\x00"...)
	fd, e := sys.Raw(unix.SYS_OPENAT, uintptr(w.proc), sys.Addr(&b[0]), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return -1, unix.ENXIO
	}
	n, err := unix.Read(int(fd), w.canon[1][:])
	closeFD(int(fd))
	if err != nil || !w.l.Valid(w.n.ID) {
		return -1, unix.ENXIO
	}
	dev, ok := terminalOf(w.canon[1][:max(n, 0)])
	if !ok {
		return -1, unix.ENXIO
	}
	major, minor := unix.Major(dev), unix.Minor(dev)
	if major < 136 || major > 143 { // UNIX98_PTY_SLAVE_MAJOR; see linux/major.h
		return -1, unix.ENXIO
	}
	path := appendInt([]byte("/dev/pts/"), int(major-136)<<8|int(minor))
	place, errno := w.openat2(w.root, path, unix.O_NOFOLLOW, magic|unix.RESOLVE_NO_SYMLINKS)
	if errno != 0 {
		return -1, unix.ENXIO
	}
	if err := unix.Fstat(place, &w.stat); err != nil || w.stat.Rdev != dev {
		closeFD(place)
		return -1, unix.ENXIO
	}
	return place, 0
}
