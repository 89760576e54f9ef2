// Package systemd asks a user's service manager for a transient scope: a group
// of its own, delegated, that the calling process is put into.
//
// How: one method call, org.freedesktop.systemd1.Manager.StartTransientUnit, on
// the manager's own socket, and then waiting for its job to be removed. The
// scope names process 0, which the manager takes for its caller and asks the
// kernel who that is (SO_PEERCRED). So what is moved is the process that calls,
// whatever the pid namespaces are, and never another.
//
// Why not a library: every run of an ordinary user goes this way, so its client
// is linked into the program that runs, and with the usual one the call takes
// three times as long; see docs/dependencies.md. Why the manager's
// socket and not the session bus: no second daemon has to be there, nobody can
// stand between (behind a proxy, process 0 is the proxy), and signals come
// without a subscription. It is the way that systemctl --user goes.
//
// Everything is bounded: the time by a deadline, what is received by maxMessage
// and maxSignals. A scope ends with its last process, and the manager forgets
// it then (CollectMode=inactive-or-failed), however that process ended.
//
// What this package does not do: it knows no other call, no other type of unit
// and no other bus, and it does not look at control groups. Whether the caller
// is where it wanted to be, /proc/self/cgroup says.
package systemd

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sbxrun/sbxrun/internal/quote"
)

// Socket is where a user's manager listens. The path is what pam_systemd(8)
// gives every manager; XDG_RUNTIME_DIR of the caller may be another user's
// (su, sudo -E), so it is not asked.
func Socket(uid int) string { return "/run/user/" + strconv.Itoa(uid) + "/systemd/private" }

// ErrAbsent says that no manager listens.
var ErrAbsent = errors.New("no systemd user manager is running")

// ErrTimeout says that the manager did not finish in time.
var ErrTimeout = errors.New("systemd did not answer in time")

// A CallError is the manager's refusal.
type CallError struct {
	Name    string // of a D-Bus error: "org.freedesktop.DBus.Error.AccessDenied"
	Message string // of the manager, for people
}

func (e *CallError) Error() string {
	if e.Message == "" {
		return "systemd refused: " + quote.Line(e.Name)
	}
	return "systemd refused: " + quote.Line(e.Message) + " (" + quote.Line(e.Name) + ")"
}

// A JobError says that the manager took the call, and that the scope's start
// then ended otherwise than with "done"; see JobRemoved in org.freedesktop.systemd1(5).
type JobError struct {
	Unit   string
	Result string // "failed", "canceled", "timeout", …
}

func (e *JobError) Error() string {
	return "systemd could not start " + e.Unit + ": " + quote.Line(e.Result)
}

// A ProtocolError says that what listens does not speak D-Bus as it should.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "systemd's answer makes no sense: " + e.What }

// A Scope is what is asked for.
type Scope struct {
	Unit        string // its name, which ends in ".scope"
	Description string
	Stop        time.Duration // from SIGTERM to SIGKILL when the manager stops it; 0 is the manager's own
}

func protocol(format string, a ...any) error {
	return &ProtocolError{fmt.Sprintf(format, a...)}
}
