package supervisor

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A feed gives the command what a file holds through a pipe. /proc/self/fd opens a
// file anew, on the mount of the host's that it was opened on: whoever owns the file
// writes to what was passed to be read (proc_pid_fd(5)), and no mount of a sandbox and
// no filter of system calls stands in the way. Landlock does, where it is.
type feed struct {
	file  *os.File
	at    int64 // where the file stood; -1 is a file without a position
	r, w  *os.File
	given chan int64 // how much the pipe was given
}

// needsFeed reports whether a descriptor is of what is stored on the host, and open
// for reading alone.
func needsFeed(fd int, mode uint32) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY &&
		(mode&unix.S_IFMT == unix.S_IFREG || mode&unix.S_IFMT == unix.S_IFBLK)
}

// newFeed starts a feed of a file, which stays its owner's to close.
func newFeed(f *os.File) (*feed, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	fed := &feed{file: os.NewFile(uintptr(fd), f.Name()), given: make(chan int64, 1)}
	if fed.r, fed.w, err = os.Pipe(); err != nil {
		fed.file.Close()
		return nil, err
	}
	var from io.Reader = fed.file
	if fed.at, err = fed.file.Seek(0, io.SeekCurrent); err != nil {
		fed.at = -1
	} else {
		from = io.NewSectionReader(fed.file, fed.at, 1<<63-1-fed.at)
	}
	go func() {
		n, _ := io.Copy(fed.w, from)
		fed.w.Close()
		fed.given <- n
	}()
	return fed, nil
}

// end ends the feed. The file then stands where the command has read to, for whoever
// reads on. Preconditions: no process has the pipe any more.
func (f *feed) end() {
	f.w.Close()
	if f.at >= 0 {
		n := <-f.given
		// TIOCINQ is FIONREAD: what nobody has read; see pipe(7).
		if left, err := unix.IoctlGetInt(int(f.r.Fd()), unix.TIOCINQ); err == nil {
			f.file.Seek(max(f.at, f.at+n-int64(left)), io.SeekStart) // the command can write to its pipe
		}
	}
	f.r.Close()
	f.file.Close()
}
