package cgroups

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/systemd"
)

const (
	// answer bounds how long a run waits for systemd. It takes milliseconds; an
	// overloaded machine, seconds (more than 5 were seen on an emulated one).
	answer = 20 * time.Second

	// stop is what a run has to end in, once it is told to by systemd.
	stop = 10 * time.Second
)

// Acquire is Read for a run that wants the resources limited. Where no group
// of the caller's can hold them, and systemd runs for this user, it first has
// the caller put into a scope of its own: user@UID.service/app.slice/sbxrun-….
//
// It moves this process, with all its threads, and none of its children. In the
// end that is left to systemd: the scope goes with the last process in it.
func Acquire(r *specs.LinuxResources) (Layout, error) {
	l, err := Read()
	if err != nil {
		return l, err
	}
	limits, err := LimitsOf(r)
	if err != nil {
		return l, nil // Prepare reports it
	}
	uid := os.Geteuid()
	if uid == 0 || !l.needsScope(limits.Controllers()) {
		return l, nil
	}
	before := l.unified()
	if why, ok := mayLeave(before); !ok {
		l.NoScope = why
		return l, nil
	}
	unit, err := enterScope(systemd.Socket(uid))
	if err == nil {
		var moved Layout
		if moved, err = Read(); err == nil {
			h := moved.unified()
			if h != nil && path.Base(h.Dirs[len(h.Dirs)-1].Path) == unit {
				moved.Scope = unit
				moved.Left = leftBehind(before, h.Dirs[len(h.Dirs)-1].Path)
				return moved, nil
			}
			err = fmt.Errorf("systemd reports that it started %s, and sbxrun is not in it", unit)
		}
	}
	l.NoScope = noScope(err)
	return l, nil
}

func enterScope(socket string) (unit string, err error) {
	var random [8]byte
	if _, err := unix.Getrandom(random[:], 0); err != nil {
		return "", fmt.Errorf("getrandom: %w", err)
	}
	pid := strconv.Itoa(os.Getpid())
	unit = fmt.Sprintf("sbxrun-%s-%016x.scope", pid, binary.NativeEndian.Uint64(random[:]))
	s := systemd.Scope{Unit: unit, Description: "sbxrun, process " + pid, Stop: stop}
	return unit, systemd.Start(socket, s, time.Now().Add(answer))
}

// noScope explains an error of systemd's.
func noScope(err error) Cause {
	c := Cause{err.Error(), "see: systemctl --user status, journalctl --user"}
	switch {
	case errors.Is(err, systemd.ErrAbsent) && !access("/run/systemd/system", unix.F_OK):
		c.Cause = "systemd, which could give it one, does not run here"
		c.Fix = "have root delegate a cgroup to this user; see delegation in cgroups(7)"
	case errors.Is(err, systemd.ErrAbsent):
		c.Fix = "log in with a session of one's own (ssh, machinectl shell, not su), or as root: loginctl enable-linger USER"
	case errors.Is(err, systemd.ErrTimeout):
		c.Cause += fmt.Sprintf(" (%v)", answer)
	}
	return c
}
