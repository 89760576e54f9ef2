package guard

import (
	"bytes"
	"encoding/binary"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// observe notes a call that only looks if the sandbox lacks what the host has, and reports
// whether it was such a call. The kernel goes on with the command's own call, whose
// path can change after this was here: that may be, because nothing is decided here and
// what the sandbox shows is up to the mounts. No call that the guard decides comes
// this way.
func (w *worker) observe() bool {
	a := &w.n.Args
	at := func(i int) int { return int(int32(a[i])) }
	const cwd = unix.AT_FDCWD
	opens := func(call string, dirfd int, addr, flags uint64) bool {
		flags = uint64(uint32(flags))
		if flags&unix.O_PATH == 0 && flags&writes != 0 {
			if n, errno := w.copyString(addr, &w.path[0]); errno == 0 && n > 0 {
				text := string(w.path[0][:n])
				if flags&unix.O_CREAT != 0 {
					text = path.Dir(text) // the file need not be there
				}
				w.lookAt(Write, call, dirfd, []byte(text), 0, unix.W_OK, 0)
			}
			return false // to be made here
		}
		w.opens = flags&(unix.O_PATH|unix.O_DIRECTORY) == 0
		w.lookFor(Read, call, dirfd, addr, flags&unix.O_NOFOLLOW, unix.R_OK)
		w.opens = false
		return true
	}
	follow := func(flags uint64) uint64 {
		if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
			return unix.O_NOFOLLOW
		}
		return 0
	}
	switch int(w.n.NR) {
	case unix.SYS_OPENAT:
		return opens("openat", at(0), a[1], a[2])
	case sysOpen:
		return opens("open", cwd, a[0], a[1])
	case unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2:
		w.lookFor(Read, "access", at(0), a[1], 0, uint32(a[2]))
	case sysAccess:
		w.lookFor(Read, "access", cwd, a[0], 0, uint32(a[1]))
	case sysFstatat:
		w.lookFor(Read, "stat", at(0), a[1], follow(a[3]), unix.F_OK)
	case unix.SYS_STATX:
		w.lookFor(Read, "stat", at(0), a[1], follow(a[2]), unix.F_OK)
	case sysStat:
		w.lookFor(Read, "stat", cwd, a[0], 0, unix.F_OK)
	case sysLstat:
		w.lookFor(Read, "lstat", cwd, a[0], unix.O_NOFOLLOW, unix.F_OK)
	case unix.SYS_READLINKAT:
		w.lookFor(Read, "readlink", at(0), a[1], unix.O_NOFOLLOW, unix.F_OK)
	case sysReadlink:
		w.lookFor(Read, "readlink", cwd, a[0], unix.O_NOFOLLOW, unix.F_OK)
	case unix.SYS_CHDIR:
		w.lookFor(Read, "chdir", cwd, a[0], 0, unix.X_OK)
	case unix.SYS_EXECVE:
		w.lookFor(Exec, "execve", cwd, a[0], 0, unix.X_OK)
	case unix.SYS_EXECVEAT:
		w.lookFor(Exec, "execveat", at(0), a[1], follow(a[4]), unix.X_OK)
	case unix.SYS_CONNECT:
		w.lookAtSocket(a[1], uint32(a[2]))
		return false
	case unix.SYS_STATFS:
		w.lookFor(Read, "statfs", cwd, a[0], 0, unix.F_OK)
	case unix.SYS_LISTXATTR:
		w.lookFor(Read, "listxattr", cwd, a[0], 0, unix.F_OK)
	case unix.SYS_LLISTXATTR:
		w.lookFor(Read, "listxattr", cwd, a[0], unix.O_NOFOLLOW, unix.F_OK)
	case unix.SYS_UTIMENSAT: // no mechanism holds it back, so the kernel may make it
		w.lookFor(Write, "utime", at(0), a[1], follow(a[3]), unix.F_OK)
	case sysUtime, sysUtimes:
		w.lookFor(Write, "utime", cwd, a[0], 0, unix.F_OK)
	default:
		return false
	}
	return true
}

// lookFor looks a path up inside and, if it is not there or cannot be read, on the host.
func (w *worker) lookFor(kind Kind, call string, dirfd int, addr, flags uint64, mode uint32) {
	n, errno := w.copyString(addr, &w.path[0])
	if errno != 0 || n == 0 {
		return
	}
	w.lookAt(kind, call, dirfd, bytes.Clone(w.path[0][:n]), flags, mode, 0)
}

// lookAt is lookFor for a path that was read. Scripts are those that led to it.
func (w *worker) lookAt(kind Kind, call string, dirfd int, text []byte, flags uint64, mode uint32, scripts int) {
	base, begin := -1, ""
	if text[0] != '/' {
		var errno syscall.Errno
		if base, errno = w.base(dirfd); errno != 0 {
			return
		}
		defer closeFD(base)
		name, errno := w.nameOf(base, &w.canon[1])
		if errno != 0 || name[0] != '/' {
			return
		}
		begin = string(name) + "/"
	} else if !w.l.Valid(w.n.ID) {
		return
	}
	fd, errno := w.object(base, text, flags)
	if errno == 0 {
		m := w.mountOf(fd)
		hides := kind != Write && mode != unix.F_OK && m != nil && slices.Contains(w.g.hidden, m.at)
		var interpreter string
		if !hides && kind == Exec {
			interpreter = w.interpreter(fd)
		}
		if !hides && m != nil && kind != Write && w.g.seen != nil {
			w.found(Use{Kind: kind, Call: call, Path: begin + string(text)}, fd, m)
		}
		if kind == Unix && !hides && m != nil {
			w.bars(fd, m)
		}
		closeFD(fd)
		switch {
		case interpreter != "" && scripts < maxScripts:
			w.lookAt(Exec, call, unix.AT_FDCWD, []byte(interpreter), 0, unix.X_OK, scripts+1)
			return
		case !hides:
			return
		}
	}
	if errno != 0 && errno != unix.ENOENT && errno != unix.ENOTDIR && errno != unix.EACCES && errno != unix.ELOOP {
		return
	}
	leads, has := w.onHost(begin+string(text), flags, mode)
	if !has {
		return
	}
	name := path.Clean(begin + string(text))
	if slices.Contains(strings.Split(string(text), "/"), "..") {
		name = leads // a link before it leads elsewhere than the text says
	}
	w.told = true
	d := Denial{Kind: kind, Call: call, Path: name, Leads: leads, Entry: w.entry}
	if w.offer(d) {
		return
	}
	w.g.deny(d, w.asker)
}

// found notes what a path led to.
func (w *worker) found(u Use, fd int, m *mount) {
	name, errno := w.nameOn(m, fd, &w.canon[0])
	if errno != 0 || name[0] != '/' {
		return
	}
	u.Dir = w.statx.Mode&unix.S_IFMT == unix.S_IFDIR // mountOf has asked
	u.Leads = string(name)
	if slices.Contains(strings.Split(u.Path, "/"), "..") {
		u.Path = u.Leads
	}
	u.Path = path.Clean(u.Path)
	w.see(u)
}

// maxScripts is how many interpreters are scripts themselves before the kernel gives up, see
// exec_binprm in fs/exec.c, and a loader.
const maxScripts = 6

// interpreter is the program that the kernel executes a file by, "" for none: what the
// first line of a script names, or the loader of an ELF program; see execve(2), elf(5).
func (w *worker) interpreter(fd int) string {
	if err := unix.Fstat(fd, &w.stat); err != nil || w.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return "" // opening a device does something
	}
	cwd := unix.AT_FDCWD
	file, e := sys.Raw(unix.SYS_OPENAT, uintptr(cwd), w.selfPath(fd),
		unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return ""
	}
	defer closeFD(int(file))
	var head [256]byte // BINPRM_BUF_SIZE, Linux 5.1
	n, _ := unix.Pread(int(file), head[:], 0)
	if line, ok := strings.CutPrefix(string(head[:max(n, 0)]), "#!"); ok {
		line, _, _ = strings.Cut(line, "\n")
		if f := strings.Fields(line); len(f) > 0 {
			return f[0]
		}
		return ""
	}
	return loader(int(file), head[:max(n, 0)])
}

// loader reads the name of the loader of a program of this machine's kind, 64 bits and
// little-endian.
func loader(file int, head []byte) string {
	const interp, entry, most = 3, 56, 64 // PT_INTERP, the size of an Elf64_Phdr, and how many are read
	le := binary.LittleEndian
	if len(head) < 64 || string(head[:6]) != "\x7fELF\x02\x01" || le.Uint16(head[54:]) != entry {
		return ""
	}
	table := make([]byte, entry*min(int(le.Uint16(head[56:])), most))
	n, _ := unix.Pread(file, table, int64(le.Uint64(head[32:])))
	for table = table[:max(n, 0)]; len(table) >= entry; table = table[entry:] {
		if le.Uint32(table) != interp {
			continue
		}
		name := make([]byte, min(le.Uint64(table[32:]), pathMax))
		n, _ := unix.Pread(file, name, int64(le.Uint64(table[8:])))
		text, _, _ := bytes.Cut(name[:max(n, 0)], []byte{0})
		return string(text)
	}
	return ""
}

// lookAtSocket looks for a socket that is named by its path; see unix(7).
func (w *worker) lookAtSocket(addr uint64, size uint32) {
	b := w.num[:0:0]
	b = append(b, make([]byte, min(size, unix.SizeofSockaddrUnix))...)
	if n, errno := w.read(addr, b); errno != 0 || n < len(b) || len(b) < 4 ||
		binary.NativeEndian.Uint16(b) != unix.AF_UNIX || b[2] == 0 {
		return
	}
	name, _, _ := bytes.Cut(b[2:], []byte{0})
	w.lookAt(Unix, "connect", unix.AT_FDCWD, name, 0, unix.R_OK|unix.W_OK, 0)
}
