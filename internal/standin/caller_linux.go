package standin

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/holder"
	"github.com/sbxrun/sbxrun/internal/persona"
)

// A Process is the one that calls a shell: an agent.
type Process struct{ holder.Process }

// Caller is the process that called this one. A shell in between, which an agent
// starts for one command and which did not become it, is passed over.
func Caller() *Process {
	p := &Process{holder.Process{Pid: os.Getppid()}}
	for range 4 {
		_, parent := holder.Stat(p.Pid)
		cmdline, err := os.ReadFile(proc(p.Pid, "cmdline"))
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
		p.Pid = parent
	}
	p.Began, _ = holder.Stat(p.Pid)
	return p
}

// Dir is the directory that the process runs in.
func (p *Process) Dir() (string, error) {
	dir, err := os.Readlink(proc(p.Pid, "cwd"))
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(dir) || strings.HasSuffix(dir, " (deleted)") {
		return "", &os.PathError{Op: "find", Path: dir, Err: os.ErrNotExist}
	}
	return dir, nil
}

func proc(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// anonymous is a file without a name.
func anonymous(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
