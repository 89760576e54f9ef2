package guard

import (
	"bytes"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// An entry is a name in an open directory.
type entry struct {
	dir  int
	own  bool // dir is to be closed
	name []byte
	addr uintptr // of the name as a C string, with a slash if the path ended in one

	parent []byte // what the directory is called
	full   []byte // what the entry is called

	id    File   // the directory's
	mount *mount // that the directory is on
	leads bool   // something may be mounted on an entry of the directory, or below
	slash bool   // the path ended in one

	// none is why the entry can neither be there nor be made: the directory was removed, or
	// the name is too long.
	none syscall.Errno

	// special is a path that ends in no name: "/", "." or "..".
	special bool
}

func (e *entry) close() {
	if e.own {
		closeFD(e.dir)
		e.own = false
	}
}

// magic is how far the kernel follows paths for us: below the root, and through
// none of the links of /proc that are no paths, which would be ours and not the
// caller's.
const magic = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS

// A path may have 4096 bytes and lead through forty links that long. The kernel gets through
// that; name by name it would keep everybody waiting, and not at the caller's cost.
const (
	maxNames = 1024 // that walk looks up
	maxTries = 64   // of the kernel's walk, which any rename on the host disturbs if there is a ".." in the path
)

// openat2 opens a place. EAGAIN is for a path that was disturbed each time.
func (w *worker) openat2(dir int, path []byte, flags, resolve uint64) (int, syscall.Errno) {
	if len(path) >= pathMax {
		return -1, unix.ENAMETOOLONG
	}
	n := copy(w.scrap[:], path)
	w.scrap[n] = 0
	w.how = unix.OpenHow{Flags: flags | unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}
	for try := 1; ; try++ {
		fd, e := sys.Call(unix.SYS_OPENAT2, uintptr(dir), sys.Addr(&w.scrap[0]), sys.Addr(&w.how), unix.SizeofOpenHow, 0, 0)
		switch syscall.Errno(e) {
		case 0:
			return int(fd), 0
		case unix.EAGAIN, unix.EINTR: // a rename on the host meanwhile
			if try < maxTries {
				continue
			}
		}
		return -1, syscall.Errno(e)
	}
}

// object opens what a path leads to, as a place. base is where relative paths
// begin.
func (w *worker) object(base int, path []byte, flags uint64) (int, syscall.Errno) {
	var fd int
	var errno syscall.Errno
	if path[0] == '/' {
		fd, errno = w.openat2(w.root, path, flags, magic)
	} else {
		// Straight down is most of all.
		fd, errno = w.openat2(base, path, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
		if errno == unix.EXDEV || errno == unix.ELOOP {
			name, m, e := w.named(base, &w.canon[1])
			if e != 0 {
				return -1, e
			}
			if m == nil {
				return -1, unix.EACCES // nobody passes a directory of the host's in on purpose
			}
			switch half := bytes.LastIndexByte(path[:len(path)/2], '/'); {
			case name[0] != '/':
			case len(name)+1+len(path) < pathMax:
				full := append(append(name, '/'), path...)
				fd, errno = w.openat2(w.root, full, flags, magic)
			case half > 0: // too long by the name of where it begins
				if base, errno = w.object(base, path[:half], unix.O_DIRECTORY); errno != 0 {
					return -1, errno
				}
				defer closeFD(base)
				return w.object(base, append([]byte("./"), path[half+1:]...), flags)
			}
		}
	}
	switch errno {
	case unix.ELOOP, unix.ENOENT, unix.EXDEV, unix.EAGAIN:
		// Perhaps a link of /proc, which only looks like a path; or too many renames.
		return w.walk(base, path, flags, errno)
	}
	return fd, errno
}

// walk does what object does, name by name, for paths through /proc. It reports
// first if it finds no more than the kernel did.
func (w *worker) walk(base int, path []byte, flags uint64, first syscall.Errno) (int, syscall.Errno) {
	rest := bytes.Clone(path)
	start := base
	if rest[0] == '/' {
		start = w.root
	}
	cur, errno := dup(start)
	if errno != 0 {
		return -1, errno
	}
	links, passed := 0, false
	step := func(fd int) { closeFD(cur); cur = fd }
	fail := func(e syscall.Errno) (int, syscall.Errno) {
		closeFD(cur)
		if !passed && first != unix.EAGAIN && (e == unix.ENOENT || e == unix.ELOOP) {
			e = first
		}
		return -1, e
	}
	for names := 0; ; names++ {
		slash := bytes.HasPrefix(rest, []byte("/"))
		rest = bytes.TrimLeft(rest, "/")
		if len(rest) == 0 {
			var st unix.Stat_t
			if err := unix.Fstat(cur, &st); err != nil {
				return fail(err.(syscall.Errno))
			}
			if (slash || flags&unix.O_DIRECTORY != 0) && st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return fail(unix.ENOTDIR)
			}
			return cur, 0
		}
		if names == maxNames {
			return fail(unix.ELOOP)
		}
		name, after := rest, []byte(nil)
		if i := bytes.IndexByte(rest, '/'); i >= 0 {
			name, after = rest[:i], rest[i:]
		}
		switch string(name) {
		case ".", "..":
			if err := unix.Faccessat(cur, ".", unix.F_OK, 0); err != nil { // it may be searched
				return fail(err.(syscall.Errno))
			}
		}
		switch string(name) {
		case ".":
			for bytes.HasPrefix(after, []byte("/./")) {
				after = after[2:]
			}
			rest = append([]byte("/"), after...)
			continue
		case "..":
			up, errno := w.above(cur)
			if errno != 0 {
				return fail(errno)
			}
			step(up)
			rest = append([]byte("/"), after...)
			continue
		}
		proc, root := isProc(cur)
		if root && (string(name) == "self" || string(name) == "thread-self") {
			tgid, tid, errno := w.ids()
			if errno != 0 {
				return fail(errno)
			}
			text := appendInt(nil, tgid)
			if string(name) == "thread-self" {
				text = appendInt(append(text, "/task/"...), tid)
			}
			rest, passed = append(text, after...), true
			continue
		}
		n := copy(w.scrap[:], name)
		w.scrap[n] = 0
		r, e := sys.Call(unix.SYS_OPENAT, uintptr(cur), sys.Addr(&w.scrap[0]),
			unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0, 0, 0)
		if e != 0 {
			return fail(syscall.Errno(e))
		}
		next := int(r)
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil {
			closeFD(next)
			return fail(err.(syscall.Errno))
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK || len(after) == 0 && flags&unix.O_NOFOLLOW != 0 {
			step(next)
			rest = after
			continue
		}
		if links++; links > 40 { // MAXSYMLINKS
			closeFD(next)
			return fail(unix.ELOOP)
		}
		if proc && !root {
			closeFD(next)
			place, errno := w.magicLink(cur, string(name))
			if errno != 0 {
				return fail(errno)
			}
			passed = true
			step(place)
			rest = after
			continue
		}
		text := make([]byte, pathMax)
		tn, err := unix.Readlinkat(next, "", text)
		closeFD(next)
		if err != nil {
			return fail(err.(syscall.Errno))
		}
		rest = append(text[:tn:tn], after...)
		if tn > 0 && text[0] == '/' {
			up, errno := dup(w.root)
			if errno != 0 {
				return fail(errno)
			}
			step(up)
		}
	}
}

// above opens the directory that holds an open one; the root is its own.
func (w *worker) above(fd int) (int, syscall.Errno) {
	name, errno := w.nameOf(fd, &w.canon[1])
	if errno != 0 {
		return -1, errno
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1, unix.ENOTDIR
	}
	i := lastSlash(name)
	return w.openat2(w.root, name[:max(i, 1)], unix.O_DIRECTORY, magic|unix.RESOLVE_NO_SYMLINKS)
}

// isProc reports whether an open place is in a procfs, and whether it is its
// root, which always has the first inode.
func isProc(fd int) (proc, root bool) {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return false, false
	}
	var st unix.Stat_t
	return true, unix.Fstat(fd, &st) == nil && st.Ino == 1
}

// ids are the caller's process and thread as the sandbox numbers them.
func (w *worker) ids() (tgid, tid int, errno syscall.Errno) {
	tg, errno := w.status("NStgid:", 10)
	if errno != 0 {
		return 0, 0, errno
	}
	t, errno := w.status("NSpid:", 10)
	if errno != 0 {
		return 0, 0, errno
	}
	return tg[len(tg)-1], t[len(t)-1], 0
}

// magicLink opens what a link in a process's directory of the sandbox's /proc
// leads to. Only the caller's own are followed.
func (w *worker) magicLink(dir int, name string) (int, syscall.Errno) {
	at, errno := w.nameOf(dir, &w.canon[1])
	if errno != 0 {
		return -1, errno
	}
	tgid, tid, errno := w.idsKeeping(&at)
	if errno != 0 {
		return -1, errno
	}
	own := string(appendInt([]byte("/proc/"), tgid))
	task := own + "/task/" + string(appendInt(nil, tid))
	switch s := string(at); {
	case s == own || s == task:
		switch name {
		case "cwd", "exe":
			return w.ofCaller(name, -1)
		case "root":
			return dup(w.root)
		}
	case s == own+"/fd" || s == task+"/fd":
		n := 0
		for _, c := range []byte(name) {
			if c < '0' || c > '9' || n > 1<<27 {
				return -1, unix.ENOENT
			}
			n = n*10 + int(c-'0')
		}
		return w.file(n)
	}
	return -1, unix.EACCES
}

// idsKeeping is ids, for a name that lies in the memory that ids reads into.
func (w *worker) idsKeeping(name *[]byte) (tgid, tid int, errno syscall.Errno) {
	*name = bytes.Clone(*name)
	return w.ids()
}

// entryOf splits a path into an open directory and a name in it.
func (w *worker) entryOf(slot, base int, path []byte) (entry, syscall.Errno) {
	e := entry{dir: -1}
	end := len(path)
	for end > 0 && path[end-1] == '/' {
		end--
	}
	slash := end < len(path)
	i := end - 1
	for i >= 0 && path[i] != '/' {
		i--
	}
	last, above := path[i+1:end], path[:i+1]
	switch {
	case end == 0:
		e.special, above = true, path[:1]
	case string(last) == "." || string(last) == "..":
		e.special = true
	}
	if len(above) == 0 {
		e.dir = base
	} else {
		dir, errno := w.object(base, above, unix.O_DIRECTORY)
		if errno != 0 {
			return e, errno
		}
		e.dir, e.own = dir, true
	}
	if w.mounts == nil {
		w.readMounts()
	}
	// Whatever the name is, the kernel wants to search there first. So does a path of ".".
	if e.dir != w.known {
		if errno := w.identify(e.dir, "."); errno != 0 {
			e.close()
			return e, errno
		}
	}
	m := w.mounts[int(w.statx.Mnt_id)]
	e.id = w.same()
	if len(last) > 255 { // NAME_MAX
		e.none = unix.ENAMETOOLONG
	}
	name, errno := w.nameOn(m, e.dir, &w.canon[slot])
	if errno == unix.ENAMETOOLONG {
		name, errno = deep(m, &w.canon[slot])
	}
	switch {
	case errno != 0:
	case name[0] != '/':
		errno = unix.ENOTDIR // a descriptor that is no directory
	case m == nil:
		errno = unix.EACCES
	default:
		e.mount, e.leads, e.slash = m, w.ties[e.id] != 0, slash
	}
	if errno == 0 && bytes.HasSuffix(name, []byte(" (deleted)")) {
		if err := unix.Fstat(e.dir, &w.stat); err != nil || w.stat.Nlink == 0 {
			e.none = unix.ENOENT
		}
	}
	if errno != 0 {
		e.close()
		return e, errno
	}
	n := copy(w.name[slot][:], last)
	e.name = w.name[slot][:n]
	if slash && !e.special {
		w.name[slot][n] = '/'
		n++
	}
	w.name[slot][n] = 0
	e.addr = sys.Addr(&w.name[slot][0])
	// The buffer has room for both.
	full := name
	if len(name) > 1 {
		full = append(full, '/')
	}
	e.full = append(full, e.name...)
	e.parent = e.full[:len(name)]
	return e, 0
}

// at copies a path of the caller's and opens the directory of its last name.
func (w *worker) at(slot, dirfd int, addr uint64) (entry, syscall.Errno) {
	none := entry{dir: -1}
	n, errno := w.copyString(addr, &w.path[slot])
	if errno != 0 {
		return none, errno
	}
	if n == 0 {
		return none, unix.ENOENT
	}
	path := w.path[slot][:n]
	base := -1
	if path[0] != '/' {
		if base, errno = w.from(dirfd); errno != 0 {
			return none, errno
		}
	} else if !w.l.Valid(w.n.ID) {
		return none, unix.ESRCH
	}
	e, errno := w.entryOf(slot, base, path)
	if errno == 0 && e.dir == base && base >= 0 {
		e.own = !w.keeps(base)
		return e, 0
	}
	w.leave(base)
	return e, errno
}

// place copies a path of the caller's and opens what it leads to.
func (w *worker) place(dirfd int, addr uint64, flags uint64) (int, syscall.Errno) {
	n, errno := w.copyString(addr, &w.path[0])
	if errno != 0 {
		return -1, errno
	}
	if n == 0 {
		return -1, unix.ENOENT
	}
	path := w.path[0][:n]
	base := -1
	if path[0] != '/' {
		if base, errno = w.from(dirfd); errno != 0 {
			return -1, errno
		}
		defer w.leave(base)
	} else if !w.l.Valid(w.n.ID) {
		return -1, unix.ESRCH
	}
	return w.object(base, path, flags)
}

func dup(fd int) (int, syscall.Errno) {
	n, e := sys.Raw(unix.SYS_FCNTL, uintptr(fd), unix.F_DUPFD_CLOEXEC, 0, 0, 0, 0)
	if e != 0 {
		return -1, syscall.Errno(e)
	}
	return int(n), 0
}

// exists reports whether a directory has an entry, also where that is not to be
// found out.
func exists(dir int, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err != unix.ENOENT && err != unix.ENOTDIR
}

// A held is the [Dirs] of what an open place is below. It asks the open directory and
// those above it, and not what their names lead to: another run's guard lets its
// command exchange directories meanwhile. What is below a repository's protected names
// stays there, whichever run's command would move it.
type held struct {
	w    *worker
	fd   int
	name []byte // what fd was called when it was asked
	self bool   // fd itself is asked about, and not an entry of it
}

var _ Dirs = (*held)(nil)

// dirs are those above an entry.
func (w *worker) dirs(e *entry) Dirs {
	w.held = held{w, e.dir, e.parent, false}
	return &w.held
}

// dirsOf are those above an open place.
func (w *worker) dirsOf(fd int, name []byte) Dirs {
	w.held = held{w, fd, name, true}
	return &w.held
}

// open opens one of the directories above by its name. ESTALE is for one that cannot be
// told.
func (h *held) open(dir []byte) (int, syscall.Errno) {
	fd, up := h.fd, bytes.Count(h.name[len(dir):], []byte("/"))
	if h.self {
		// A file does not know its directory, and from a directory that may not be searched
		// nothing leads up. The one of that name is it, if it has the file.
		at := lastSlash(h.name)
		parent, errno := h.w.openat2(h.w.root, h.name[:max(at, 1)], unix.O_DIRECTORY, magic|unix.RESOLVE_NO_SYMLINKS)
		if errno != 0 {
			return -1, errno
		}
		defer closeFD(parent)
		if errno := h.w.identify(h.fd, ""); errno != 0 {
			return -1, errno
		}
		file := h.w.same()
		if h.w.identify(parent, string(h.name[at+1:])) != 0 || h.w.same() != file {
			return -1, unix.ESTALE
		}
		fd, up = parent, up-1
	}
	b := append(append(append(h.w.scrap[:0], '.'), bytes.Repeat([]byte("/.."), up)...), 0)
	r, e := sys.Call(unix.SYS_OPENAT, uintptr(fd), sys.Addr(&b[0]), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0, 0, 0)
	return int(r), syscall.Errno(e)
}

// Repository implements [Dirs].
func (h *held) Repository(dir []byte) bool {
	fd, errno := h.open(dir)
	if errno != 0 {
		return true // where it cannot be found out
	}
	defer closeFD(fd)
	// One that was taken apart counts too: a socket can stand in for what it lacks.
	has := entries(fd, "")
	return repository(has) || commands(has)
}

// Completes implements [Dirs]. The answer is good until the call is made: other runs'
// guards wait.
func (h *held) Completes(dir []byte, name string) bool {
	fd, errno := h.open(dir)
	if errno != 0 || !h.w.exclude() {
		closeFD(fd)
		return true
	}
	defer closeFD(fd)
	has := entries(fd, name)
	return (repository(has) || commands(has)) && !repository(func(name string) bool { return stands(fd, name) })
}

// exclude keeps the guards of other runs from making parts of a repository until this
// call is answered.
func (w *worker) exclude() bool {
	if w.g.lock == nil || w.unlock != nil {
		return true
	}
	// What is locked may have to be made, by this thread: its umask is the caller's.
	sys.Raw(unix.SYS_UMASK, 0o077, 0, 0, 0, 0, 0)
	defer sys.Raw(unix.SYS_UMASK, uintptr(w.mask), 0, 0, 0, 0, 0)
	var err error
	w.unlock, err = w.g.lock()
	return err == nil
}

// stands reports whether an entry exists that nobody can make anything else of: a socket
// can be replaced by what it stood in for.
func stands(dir int, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK
}

// entries tells what an open directory has, or would have with one entry more.
func entries(fd int, more string) func(string) bool {
	return func(name string) bool { return string(fold(nil, []byte(name))) == more || exists(fd, name) }
}
