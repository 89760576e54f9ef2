package guard

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// A file of the host that the sandbox lacks, and that somebody grants while a command runs,
// is given to open(2) as a sealed copy in memory. The host's own file would be more than was
// granted: its owner can change its mode by any descriptor, and open it again for writing
// where the kernel has no Landlock.

// maxCopy bounds the copy of a file, bytes: it is memory of this process.
const maxCopy = 16 << 20

// A copied is a copy of a file of the host, and what the file was like by then.
type copied struct {
	fd          int
	file        File
	size        int64
	mtim, ctime unix.Timespec
}

// offer has an open(2) for reading asked about, which finds nothing although the host has a
// file there, or made if the answer was yes. It reports whether that is so.
func (w *worker) offer(d Denial) bool {
	if !w.opens || w.g.ask == nil {
		return false
	}
	if w.given[d.Leads] || slices.Contains(w.permits, permit{path: d.Leads}) {
		w.gives = d.Leads
		return true
	}
	// Every program looks for files in /etc that it does without.
	if within([]byte(d.Leads), "/etc") || len(w.doubts) >= maxDoubts {
		return false
	}
	place, _, ok := w.hostFile(d.Leads)
	if !ok {
		return false
	}
	closeFD(place)
	w.doubt = &d
	return true
}

// hostFile opens a regular file of the host's as a place, if it is no larger than what is
// copied. The path is where others led.
func (w *worker) hostFile(leads string) (place int, c copied, ok bool) {
	place, at := w.hostPlace(leads, unix.O_NOFOLLOW)
	if place < 0 {
		return -1, c, false
	}
	s := &w.stat
	if at != leads || unix.Fstat(place, s) != nil || s.Mode&unix.S_IFMT != unix.S_IFREG || s.Size > maxCopy {
		closeFD(place)
		return -1, c, false
	}
	return place, copied{-1, File{s.Dev, s.Ino}, s.Size, s.Mtim, s.Ctim}, true
}

// show opens the copy of a file of the host for the caller. Without one, the kernel goes on
// with the command's call.
func (w *worker) show(leads string, flags uint32) (int64, syscall.Errno) {
	place, c, ok := w.hostFile(leads)
	if !ok {
		return 0, goOn
	}
	defer closeFD(place)
	old, has := w.copies[leads]
	c.fd = old.fd
	if !has || c != old {
		if c.fd, ok = w.copyOf(place); !ok {
			return 0, goOn
		}
		if has {
			closeFD(old.fd)
		}
		if w.copies == nil {
			w.copies = map[string]copied{}
		}
		w.copies[leads] = c
	}
	fd, errno := w.openPlace(c.fd)
	if errno != 0 {
		return 0, goOn
	}
	return w.install(fd, flags&unix.O_CLOEXEC)
}

// openPlace opens a file for reading, at its beginning.
func (w *worker) openPlace(fd int) (int, syscall.Errno) {
	cwd := unix.AT_FDCWD
	f, e := sys.Raw(unix.SYS_OPENAT, uintptr(cwd), w.selfPath(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0, 0, 0)
	return int(f), syscall.Errno(e)
}

// copyOf copies a file of the host's into memory that nobody can change.
func (w *worker) copyOf(place int) (fd int, ok bool) {
	from, errno := w.openPlace(place)
	if errno != 0 {
		return -1, false
	}
	defer closeFD(from)
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("granted", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("granted", flags)
	}
	if err != nil {
		return -1, false
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	for n, size := 1, 0; err == nil && n > 0 && size <= maxCopy; size += n {
		n, err = unix.Sendfile(fd, from, nil, maxCopy+1-size)
		ok = err == nil && size+n <= maxCopy
	}
	if ok && unix.Fchmod(fd, 0o444) == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err == nil {
			return fd, true
		}
	}
	closeFD(fd)
	return -1, false
}
