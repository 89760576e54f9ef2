package guard

import (
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// A mount is one of the sandbox's. All that is on it has the rights of one grant:
// whatever a policy grants to write is a mount of its own.
type mount struct {
	mountInfo
	grant *Grant // nil for none
}

// mountOf is the mount that an open place is on, nil if that is none of the
// sandbox's: of a file that was passed in, a pipe, memory. The name of such a place
// says nothing in the sandbox. The place's identity is in statx.
func (w *worker) mountOf(fd int) *mount {
	if w.mounts == nil && !w.readMounts() {
		return nil
	}
	if w.identify(fd, "") != 0 {
		return nil
	}
	return w.mounts[int(w.statx.Mnt_id)]
}

// identify reads the status of an entry, or of the open place itself if name is "",
// into statx. A mount point is what is mounted on it, whoever asks: a path walk
// crosses the mounts of the mount that it began on.
func (w *worker) identify(fd int, name string) syscall.Errno {
	n := copy(w.scrap[:pathMax], name)
	w.scrap[n] = 0
	w.known = -1
	// struct statx has the mount since Linux 5.8.
	_, e := sys.Raw(unix.SYS_STATX, uintptr(fd), sys.Addr(&w.scrap[0]),
		unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT,
		unix.STATX_MNT_ID|unix.STATX_TYPE|unix.STATX_INO, sys.Addr(&w.statx), 0)
	return syscall.Errno(e)
}

// same is what identifies the file that statx is about.
func (w *worker) same() File {
	return File{Dev: unix.Mkdev(w.statx.Dev_major, w.statx.Dev_minor), Ino: w.statx.Ino}
}

// shows is the mount that an entry is on: the directory's, or what is mounted on the
// entry.
func (w *worker) shows(e *entry) *mount {
	if e.leads && w.identify(e.dir, string(e.name)) == 0 {
		return w.mounts[int(w.statx.Mnt_id)]
	}
	return e.mount
}

// A tie is why an entry has to stay where it is.
type tie uint8

const (
	leads tie = 1 + iota // to a mount point further down
	point                // something is mounted on it
)

// tied finds out whether an entry is a mount point or leads to one, and what it is:
// 0 if it is not there.
func (w *worker) tied(e *entry) (t tie, id File, kind uint16) {
	if w.identify(e.dir, string(e.name)) != 0 {
		return 0, id, 0
	}
	t, id, kind = w.ties[w.same()], w.same(), w.statx.Mode&unix.S_IFMT
	if w.mounts[int(w.statx.Mnt_id)] != e.mount {
		t = point
	}
	return t, id, kind
}

// writable reports whether the kernel would let entries of a directory be changed at
// all; it asks that before it looks for mount points.
func (w *worker) writable(e *entry) syscall.Errno {
	if w.readOnly(e.dir) == unix.EROFS {
		return unix.EROFS
	}
	if err := unix.Faccessat(e.dir, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return err.(syscall.Errno)
	}
	return 0
}

// unremovable is how the kernel refuses to remove an entry that is refused anyhow, or
// that is a mount point; 0 if it would not. For mount points it goes by the mount
// namespace of who asks, and that is the host's here. A directory that leads to one is
// not empty.
func (w *worker) unremovable(e *entry, flags uint32, refusal syscall.Errno) syscall.Errno {
	if !e.leads && refusal == 0 {
		return 0
	}
	t, _, kind := w.tied(e)
	if t != point && refusal == 0 {
		return 0
	}
	if kind == 0 && (refusal == refused || w.readOnly(e.dir) != unix.EROFS) {
		return unix.ENOENT
	}
	if errno := w.writable(e); errno != 0 {
		return errno
	}
	switch dir := kind == unix.S_IFDIR; {
	case dir && flags&unix.AT_REMOVEDIR == 0:
		return unix.EISDIR
	case !dir && (flags&unix.AT_REMOVEDIR != 0 || e.slash):
		return unix.ENOTDIR
	case t == point:
		return unix.EBUSY
	case dir && holds(e):
		return unix.ENOTEMPTY
	}
	return 0
}

// holds reports whether a directory has an entry, as far as it can be read.
func holds(e *entry) bool {
	fd, err := unix.Openat(e.dir, string(e.name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) > 0
}

// unmovable is how the kernel refuses a rename that is refused anyhow, or one of a mount
// point. What leads to one is kept in its place too, which the kernel would not do: the
// names of mounts stay what they are, and a file that is hidden by its path is there
// when the next run hides it. If the kernel would not refuse it, done is false; errno is
// 0 with done for two names of one file, of which the kernel makes nothing.
func (w *worker) unmovable(from, to *entry, flags uint32, refusal syscall.Errno) (errno syscall.Errno, done bool) {
	if !from.leads && !to.leads && refusal == 0 {
		return 0, false
	}
	exchange := flags&unix.RENAME_EXCHANGE != 0
	t1, id1, kind1 := w.tied(from)
	t2, id2, kind2 := w.tied(to)
	// To take the place of what leads somewhere, it would have to be empty.
	busy := t1 != 0 || t2 == point || t2 != 0 && exchange
	if !busy && refusal == 0 {
		return 0, false
	}
	dir1, dir2 := kind1 == unix.S_IFDIR, kind2 == unix.S_IFDIR
	switch {
	case w.readOnly(from.dir) == unix.EROFS:
		return unix.EROFS, true
	case kind1 == 0, exchange && kind2 == 0:
		return unix.ENOENT, true
	case kind2 != 0 && flags&unix.RENAME_NOREPLACE != 0:
		return unix.EEXIST, true
	case !dir1 && (from.slash || to.slash && !exchange), exchange && !dir2 && to.slash:
		return unix.ENOTDIR, true
	case within(to.parent, string(from.full)), exchange && within(from.parent, string(to.full)):
		return unix.EINVAL, true
	case within(from.parent, string(to.full)):
		return unix.ENOTEMPTY, true
	case kind2 != 0 && id1 == id2:
		return 0, true
	}
	for _, e := range [...]*entry{from, to} {
		if errno := w.writable(e); errno != 0 {
			return errno, true
		}
	}
	switch {
	case kind2 != 0 && !exchange && dir1 && !dir2:
		return unix.ENOTDIR, true
	case kind2 != 0 && !exchange && !dir1 && dir2:
		return unix.EISDIR, true
	case busy:
		return unix.EBUSY, true
	}
	return 0, false
}

// named asks the kernel what an open place is called, and on which mount it is: nil
// for none of the sandbox's. A name that does not lie where the mount is was changed
// by the host: nothing that a command does moves a mount.
func (w *worker) named(fd int, buf *[2 * pathMax]byte) ([]byte, *mount, syscall.Errno) {
	m := w.mountOf(fd)
	name, errno := w.nameOn(m, fd, buf)
	return name, m, errno
}

// nameOn is named, of a place on a mount that is known.
func (w *worker) nameOn(m *mount, fd int, buf *[2 * pathMax]byte) ([]byte, syscall.Errno) {
	name, errno := w.nameOf(fd, buf)
	if errno == 0 && m != nil && !within(name, m.at) {
		errno = unix.EACCES
	}
	return name, errno
}

// deep stands in for the name of a directory that is too far down for the kernel
// to tell. Where no pattern applies, it is enough to know the mount.
func deep(m *mount, buf *[2 * pathMax]byte) ([]byte, syscall.Errno) {
	if m == nil {
		return nil, unix.EACCES
	}
	if m.grant != nil && m.grant.Guarded {
		return nil, unix.ENAMETOOLONG
	}
	n := copy(buf[:pathMax], m.at)
	n += copy(buf[n:], "/…")
	return buf[:n], 0
}

// readMounts lists the sandbox's mounts, of which there will be no others, and what
// leads to them. Nothing that a command does moves either.
func (w *worker) readMounts() bool {
	text, err := w.readProc("/mountinfo")
	if err != nil || !w.l.Valid(w.n.ID) {
		return false
	}
	infos := parseMounts(text)
	mounts := make(map[int]*mount, len(infos))
	for id, info := range infos {
		mounts[id] = &mount{info, grantOf(w.g.grants, []byte(info.at))}
	}
	ties := map[File]tie{}
	seen := map[string]bool{}
	for id, m := range mounts {
		for dir := m.at; len(dir) > 1; {
			dir = dir[:strings.LastIndexByte(dir, '/')]
			if seen[dir] {
				break
			}
			seen[dir] = true
			if w.identify(w.root, "."+dir) == 0 {
				ties[w.same()] = leads
			}
		}
		// The kernel goes by the directory entry, by whichever mount it is reached.
		up := mounts[m.parent]
		if up == nil || !within([]byte(m.at), up.at) {
			continue
		}
		covered := join(up.root, m.at[len(strings.TrimSuffix(up.at, "/")):])
		for other, o := range mounts {
			if other == id || o == up || o.dev != up.dev || !within([]byte(covered), o.root) {
				continue
			}
			path := join(o.at, covered[len(strings.TrimSuffix(o.root, "/")):])
			if w.identify(w.root, "."+path) == 0 && int(w.statx.Mnt_id) == other {
				ties[w.same()] = point
			}
		}
	}
	w.mounts, w.ties = mounts, ties
	return len(mounts) > 0
}

// join appends a path that begins with a slash, or is empty, to a directory.
func join(dir, path string) string { return strings.TrimSuffix(dir, "/") + path }
