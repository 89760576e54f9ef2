package guard

import (
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// A file of the host that the sandbox lacks, and that somebody grants while a command runs,
// is given to open(2) as a sealed copy in memory. The host's own file would be more than was
// granted: its owner can change its mode by any descriptor, and open it again for writing
// where the kernel has no Landlock.

// offer has an open(2) for reading asked about, which finds nothing although the host has a
// file there, or made if the answer was yes. It reports whether that is so.
func (w *worker) offer(d Denial) bool {
	if !w.opens || w.g.ask == nil {
		return false
	}
	if w.given[d.Leads] || slices.Contains(w.permits, d.permit()) {
		w.gives = &d
		return true
	}
	// Every program looks for files in /etc that it does without.
	if within([]byte(d.Leads), "/etc") || len(w.doubts) >= maxDoubts {
		return false
	}
	if w.g.copies.of(d.Leads) == nil {
		place, size := w.hostFile(d.Leads)
		closeFD(place)
		if place < 0 || !w.g.copies.room(size) {
			return false
		}
	}
	w.doubt = &d
	return true
}

// hostFile opens a regular file of the host's as a place, -1 if it is none. The path is where
// others led. A file that its server would have to be waited for is none.
func (w *worker) hostFile(leads string) (place int, size int64) {
	place, at, pass := w.hostPlace(leads, unix.O_NOFOLLOW)
	s := &w.stat
	if place >= 0 && (at != leads || pass != always || unix.Fstat(place, s) != nil || s.Mode&unix.S_IFMT != unix.S_IFREG) {
		closeFD(place)
		place = -1
	}
	return place, s.Size
}

// show opens the copy of a file of the host for the caller. Without one the call is refused
// after all, and the kernel goes on with it.
func (w *worker) show(flags uint32) (int64, syscall.Errno) {
	d := w.gives
	file := w.g.copies.of(d.Leads)
	if file == nil {
		if file = w.copyOf(d.Leads); file == nil {
			w.denied(*d)
			return 0, goOn
		}
		if w.given[d.Leads] {
			w.g.copies.keep(d.Leads, file)
		} else {
			defer file.Close()
		}
	}
	fd, errno := w.openPlace(int(file.Fd()))
	if errno != 0 {
		w.denied(*d)
		return 0, goOn
	}
	w.own(fd, flags)
	return w.install(fd, flags&unix.O_CLOEXEC)
}

// openPlace opens a file for reading, at its beginning.
func (w *worker) openPlace(fd int) (int, syscall.Errno) {
	cwd := unix.AT_FDCWD
	f, e := sys.Raw(unix.SYS_OPENAT, uintptr(cwd), w.selfPath(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0, 0, 0)
	return int(f), syscall.Errno(e)
}

// copyOf copies a file of the host's into memory that nobody can change, nil if it cannot be.
func (w *worker) copyOf(leads string) *os.File {
	place, size := w.hostFile(leads)
	if place < 0 {
		return nil
	}
	defer closeFD(place)
	from, errno := w.openPlace(place)
	if errno != 0 || !w.g.copies.take(size) {
		closeFD(from)
		return nil
	}
	defer closeFD(from)
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("granted", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("granted", flags)
	}
	if err != nil {
		return nil
	}
	to := os.NewFile(uintptr(fd), "granted")
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	n := 1
	for left := int(size); err == nil && n > 0 && left > 0; left -= n { // it may have grown since
		n, err = unix.Sendfile(fd, from, nil, left)
	}
	if err == nil {
		err = unix.Fchmod(fd, 0o444)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		to.Close()
		return nil
	}
	return to
}
