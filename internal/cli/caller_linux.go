package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/persona"
)

// A process is the one that calls a shell: an agent.
type process struct {
	pid   int
	began uint64 // since boot, in ticks; see proc_pid_stat(5). 0 if not known
}

// caller is the process that called this one. A shell in between, which an agent
// starts for one command and which did not become it, is passed over.
func caller() *process {
	p := &process{pid: os.Getppid()}
	for range 4 {
		_, parent := stat(p.pid)
		cmdline, err := os.ReadFile(proc(p.pid, "cmdline"))
		if err != nil || parent <= 1 {
			break
		}
		args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		name := strings.TrimPrefix(filepath.Base(args[0]), "-")
		if name != "dash" && persona.Name(name) == "" {
			break
		}
		if _, ok := persona.Script(args[1:]); !ok {
			break
		}
		p.pid = parent
	}
	p.began, _ = stat(p.pid)
	return p
}

// dir is the directory that the process runs in.
func (p *process) dir() (string, error) {
	dir, err := os.Readlink(proc(p.pid, "cwd"))
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(dir) || strings.HasSuffix(dir, " (deleted)") {
		return "", &os.PathError{Op: "find", Path: dir, Err: os.ErrNotExist}
	}
	return dir, nil
}

func proc(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// stat returns when a process began, and its parent; see proc_pid_stat(5).
func stat(pid int) (began uint64, parent int) {
	b, err := os.ReadFile(proc(pid, "stat"))
	if err != nil {
		return 0, 0
	}
	// The second field, a name, may hold anything; the last ")" ends it.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(f[1])
	began, _ = strconv.ParseUint(f[19], 10, 64)
	return began, parent
}

// anonymous is a file without a name.
func anonymous(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ended returns a channel that is closed when a process has ended.
func ended(p *process) (<-chan struct{}, error) {
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, &os.SyscallError{Syscall: "pidfd_open", Err: err}
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	gone := make(chan struct{})
	if began, _ := stat(p.pid); began != p.began {
		f.Close()
		close(gone)
		return gone, nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	go func() {
		defer close(gone)
		defer f.Close()
		// Readable when it has ended; see pidfd_open(2).
		conn.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
	}()
	return gone, nil
}
