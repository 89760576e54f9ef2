package guard

import (
	"bytes"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Landlock's rules are about files and directories, whatever they are called. It refuses to
// move a socket to where the rules grant more, but not to the guard's thread, which is in none
// of its domains. So a granted directory, and what leads to it, is known by what it is, and by
// its name too: the next run goes by that.

// gains reports whether an entry is a socket, or may hold some, that could be connected to
// only once it has the place of the other.
func (w *worker) gains(e, place *entry) bool {
	s := w.g.sockets
	if s == nil || len(s.Paths) == 0 {
		return false
	}
	w.lookAtSockets()
	if w.identify(e.dir, string(e.name)) != 0 {
		return false
	}
	kind := w.statx.Mode & unix.S_IFMT
	if kind != unix.S_IFSOCK && kind != unix.S_IFDIR || slices.Contains(s.files, w.same()) || !w.leadsOut(place) {
		return false
	}
	granted, errno := w.connectable(e.dir)
	return errno != 0 || !granted
}

// lookAtSockets notes what the kernel's rules are about, before anything can have moved.
func (w *worker) lookAtSockets() {
	s := w.g.sockets
	s.looked.Do(func() {
		for _, p := range s.Paths {
			fd, errno := w.openat2(w.root, []byte(p), unix.O_NOFOLLOW, magic|unix.RESOLVE_NO_SYMLINKS)
			if errno == 0 {
				errno = w.identify(fd, "")
			}
			switch errno {
			case 0:
				s.files = append(s.files, w.same())
			case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN:
				s.lost = true // nobody will know where that is
			}
			closeFD(fd)
		}
	})
}

// leadsOut reports whether sockets at an entry, or below, are granted.
func (w *worker) leadsOut(e *entry) bool {
	s := w.g.sockets
	if s == nil || len(s.Paths) == 0 {
		return false
	}
	granted, errno := w.connectable(e.dir)
	return errno != 0 || granted || s.lost || s.names(e.full)
}

// connectable reports whether the kernel's rules grant the sockets in a directory: they are
// about it, or about one above it.
func (w *worker) connectable(dir int) (bool, syscall.Errno) {
	w.lookAtSockets()
	fd, errno := dup(dir)
	defer func() { closeFD(fd) }()
	var below File
	var on uint64 // the mount of that
	for depth := 0; errno == 0; depth++ {
		if errno = w.identify(fd, ""); errno != 0 {
			break
		}
		switch id := w.same(); {
		case slices.Contains(w.g.sockets.files, id):
			return true, 0
		case id == below && on == w.statx.Mnt_id: // the root
			return false, 0
		case depth == pathMax:
			return false, unix.ENAMETOOLONG
		default:
			below, on = id, w.statx.Mnt_id
		}
		var up int
		if up, errno = w.openat2(fd, []byte(".."), unix.O_DIRECTORY, 0); errno == 0 {
			closeFD(fd)
			fd = up
		}
	}
	return false, errno
}

// bars notes a socket of the host's that is shown and that the kernel refuses. One that was
// changed since the sandbox began may be its own; and behind the copy of a workspace no
// socket has anybody who listens.
func (w *worker) bars(fd int, m *mount) {
	var fs unix.Statfs_t
	if w.g.sockets == nil || unix.Fstat(fd, &w.stat) != nil || w.stat.Mode&unix.S_IFMT != unix.S_IFSOCK ||
		!time.Unix(w.stat.Ctim.Unix()).Before(w.g.sockets.Since) ||
		unix.Fstatfs(fd, &fs) != nil || fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return
	}
	name, errno := w.nameOn(m, fd, &w.canon[0])
	if errno != 0 {
		return
	}
	dir, errno := w.openat2(w.root, name[:max(bytes.LastIndexByte(name, '/'), 1)], unix.O_DIRECTORY, magic)
	if errno != 0 {
		return
	}
	granted, errno := w.connectable(dir)
	closeFD(dir)
	if errno != 0 || granted || w.identify(fd, "") != 0 || slices.Contains(w.g.sockets.files, w.same()) {
		return
	}
	w.told = true
	w.g.deny(Denial{Kind: Unix, Call: "connect", Path: string(name)}, w.asker)
}
