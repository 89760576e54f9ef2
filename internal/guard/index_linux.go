package guard

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// moveIndex is a rename of a file to the name of an index. It returns indexed for what is
// no good index.
func (w *worker) moveIndex(from, to *entry, flags uint32) syscall.Errno {
	temp := fmt.Sprintf("sharedindex.%016x", rand.Uint64()) // which Git removes after some weeks, if a kill leaves it
	return w.moveCopy(from, to, temp, maxIndex, indexed, func(index *os.File, size int64, _ bool) (uint, bool) {
		return uint(flags), GoodIndex(index, size, to.dir)
	})
}

// moveCopy is a rename of a file by a copy, which good has to approve: whatever has the file
// open, mapped or under another name, or renames it meanwhile, nobody changes the copy, for
// its names are protected from the first. It returns no for what is not approved. Good
// returns the flags of the rename. It is asked about the file itself too, before there is a
// copy: a refused rename leaves no trace, as a new time of the directory would be.
func (w *worker) moveCopy(from, to *entry, temp string, limit int64, no syscall.Errno,
	good func(f *os.File, size int64, copied bool) (uint, bool)) syscall.Errno {
	if w.look(from) != 0 || w.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return no
	}
	fd, err := openUnseen(from.dir, string(from.name), unix.O_NOFOLLOW)
	if err != nil {
		return no
	}
	source := os.NewFile(uintptr(fd), "")
	defer source.Close()
	if err := unix.Fstat(fd, &w.stat); err != nil || w.stat.Mode&unix.S_IFMT != unix.S_IFREG || w.stat.Size > limit {
		return no
	}
	if _, ok := good(source, w.stat.Size, false); !ok {
		return no
	}
	if fd, err = unix.Openat(to.dir, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600); err != nil {
		return err.(syscall.Errno)
	}
	file := os.NewFile(uintptr(fd), "")
	defer file.Close()
	errno := no
	n, err := io.Copy(file, io.LimitReader(source, limit))
	if err == nil {
		if flags, ok := good(file, n, true); ok {
			// What Git compares with the times of files is the time of the index.
			times := [2]unix.Timespec{w.stat.Atim, w.stat.Mtim}
			unix.Fchmod(fd, w.stat.Mode&0o7777)
			sys.Call(unix.SYS_UTIMENSAT, uintptr(fd), 0, sys.Addr(&times[0]), 0, 0, 0)
			err = unix.Renameat2(to.dir, temp, to.dir, string(to.name), flags)
			if errno = 0; err == nil {
				err = unix.Unlinkat(from.dir, string(from.name), 0)
			}
		}
	}
	if errors.As(err, &errno); errno != 0 {
		unix.Unlinkat(to.dir, temp, 0)
	}
	return errno
}

// GoodIndex reports whether a file is an index for a repository, whose directory is open,
// and names nothing that Git would not enter there itself.
func GoodIndex(f io.ReaderAt, size int64, repository int) bool {
	return goodIndex(f, size, hashSize(repository))
}

// openUnseen opens a file for reading, and leaves its access time where it can.
func openUnseen(dir int, name string, flags int) (int, error) {
	flags |= unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, flags|unix.O_NOATIME, 0)
	if err == unix.EPERM { // the file is another user's
		fd, err = unix.Openat(dir, name, flags, 0)
	}
	return fd, err
}

// hashSize is that of a repository, bytes.
func hashSize(repository int) int {
	read := func(name string) string {
		fd, err := openUnseen(repository, name, 0)
		if err != nil {
			return ""
		}
		f := os.NewFile(uintptr(fd), "")
		defer f.Close()
		b, _ := io.ReadAll(io.LimitReader(f, 1<<20))
		return string(b)
	}
	// By lines, for a command can have a branch, and so a section, of any name.
	for line := range strings.Lines(read(cmp.Or(strings.TrimSpace(read("commondir")), ".") + "/config")) {
		line = strings.Map(func(c rune) rune {
			if c == '"' || unicode.IsSpace(c) {
				return -1
			}
			return unicode.ToLower(c)
		}, line)
		if strings.HasPrefix(strings.TrimPrefix(line, "[extensions]"), "objectformat=sha256") {
			return 32
		}
	}
	return 20
}
