// Package holder is the process that holds a session: it starts it, and is it.
//
// A session lives as long as its holder. The holder is the program sbxrun, executed
// with Command as its first argument, in a session of its own and with a small
// environment. It gets the session's policy by a pipe and reports by another.
//
// It does not know how commands come to the session: package session does.
package holder

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/oncejson"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// Command is the first argument of a session's holder.
const Command = session.HolderCommand

// environ is what a holder itself needs of the environment: how to find its
// directories and what the drivers run. Commands have the policy's environment.
var environ = []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME", "TMPDIR",
	"DBUS_SESSION_BUS_ADDRESS",
	"HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"}

// Create records a session, and starts what holds it; see Start. It ends with the process
// that owns it, if one does. After an error nothing is left of it.
func Create(st *session.Store, id string, req *profiles.Request, r *profiles.Resolved, d driver.Driver, f *engine.Facts,
	owner *Process) (confirm func() error, err error) {
	origin, err := engine.OriginOf(req, r, f)
	if err != nil {
		return nil, err
	}
	if err := engine.FreeForChanges(f, r.Policy, id); err != nil {
		return nil, err
	}
	info := &session.Info{
		ID: id, State: session.Created, Profile: r.Policy.Profile, Driver: d.Name(), Dir: r.Policy.OCI.Process.Cwd,
		Created: time.Now(), Limits: r.Policy.Limits, Files: r.Files, Follows: origin != nil,
	}
	if err := st.Create(info, r.Policy); err != nil {
		return nil, err
	}
	spec := &session.Spec{ID: id, Driver: d.Name(), Policy: r.Policy, Origin: origin, AskMS: req.Ask.Milliseconds()}
	if a := r.Operator.Audit; a.File != "" {
		if spec.Audit, err = json.Marshal(&audit.Config{File: a.File, MaxSize: a.MaxSize, Keep: a.Keep}); err != nil {
			return nil, err
		}
	}
	if owner != nil {
		spec.Owner, spec.OwnerBegan = owner.Pid, owner.Began
	}
	if confirm, err = Start(spec); err == nil {
		return confirm, nil
	}
	rerr := st.Record(&session.Info{ID: id, State: session.Failed, Error: err.Error()})
	if rerr == nil {
		rerr = st.Remove(id)
	}
	if rerr != nil {
		err = errors.Join(err, errors.New("session "+id+" was not removed: "+rerr.Error()))
	}
	return nil, err
}

// haltedPatience is how long a holder that is not ready yet may be stopped.
const haltedPatience = 10 * time.Second

// ready reads the line by which a holder says that it is ready. The error is a deadline's
// if somebody has stopped it.
func ready(out *os.File, pid int) ([]byte, error) {
	line, r := []byte(nil), bufio.NewReader(out)
	for looks := 0; ; {
		out.SetReadDeadline(time.Now().Add(haltedPatience / 5)) // a pipe has one, or else there is none
		part, err := r.ReadBytes('\n')
		line = append(line, part...)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return line, err
		}
		if looks++; !halted(pid) {
			looks = 0
		}
		if looks > 5 {
			return nil, err
		}
	}
}

// halted reports whether somebody has stopped a process; see proc_pid_stat(5).
func halted(pid int) bool {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, ok := strings.Cut(string(b), ") ")
	return ok && (strings.HasPrefix(rest, "T") || strings.HasPrefix(rest, "t"))
}

// Start starts the process that holds a session, and waits until it
// serves. The holder ends, and its session with it, when this process does
// before it has called confirm.
func Start(spec *session.Spec) (confirm func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	told, err := oncejson.Marshal(spec)
	if err != nil {
		return nil, err
	}
	in, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			inW.Close()
		}
	}()
	outR, out, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer outR.Close()
	cmd := exec.Command(self, Command)
	cmd.ExtraFiles = []*os.File{in, out}
	cmd.Dir = "/"
	for _, k := range environ {
		if v, ok := os.LookupEnv(k); ok {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	in.Close()
	out.Close()
	if err != nil {
		return nil, err
	}
	go inW.Write(append(told, '\n'))
	line, err := ready(outR, cmd.Process.Pid)
	var res readiness
	if err == nil {
		err = json.Unmarshal(line, &res)
	}
	if err != nil {
		cmd.Process.Kill()
		werr := cmd.Wait()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, &driver.SetupError{Driver: spec.Driver, Err: errors.New("the session's holder was stopped, and killed")}
		}
		return nil, &driver.SetupError{Driver: spec.Driver,
			Err: fmt.Errorf("the session's holder ended before it was ready: %w", errors.Join(werr))}
	}
	if res.Error != "" {
		cmd.Wait()
		return nil, engine.Hinted(errors.New(res.Error), res.Hint)
	}
	return func() error {
		defer inW.Close()
		_, err := inW.Write([]byte("\n"))
		return err
	}, cmd.Process.Release()
}

// readiness is what a holder says when it serves, or cannot.
type readiness struct {
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// Hold is a session's holder: it takes the session from descriptor 3 and reports
// to 4.
func Hold() int {
	in, out := os.NewFile(3, "spec"), os.NewFile(4, "report")
	for fd := range 5 {
		syscall.CloseOnExec(fd)
	}
	report := func(err error) int {
		r := readiness{Error: err.Error(), Hint: driver.HintOf(err)}
		json.NewEncoder(out).Encode(r)
		return driver.ExitSetup
	}
	var spec session.Spec
	told := bufio.NewReader(in)
	b, err := told.ReadBytes('\n')
	if err != nil {
		return report(err)
	}
	if err := oncejson.Unmarshal(b, &spec); err != nil {
		return report(err)
	}
	// A holder waits most of its life. What it used to get there it gives back.
	debug.SetGCPercent(25)
	b = nil
	st, err := engine.OpenSessions()
	if err != nil {
		return report(err)
	}
	f, err := engine.GatherFacts()
	if err != nil {
		return report(err)
	}
	known := engine.Drivers(f)
	i := slices.IndexFunc(known, func(d driver.Driver) bool { return d.Name() == spec.Driver })
	if i < 0 || !known[i].Describe().Stays {
		return report(&driver.UnsupportedError{Driver: spec.Driver, Rules: []string{"sessions"}})
	}
	d := engine.Fit(known[i], f, &profiles.Resolved{Policy: spec.Policy}, false, nil)
	if spec.AskMS > 0 {
		log, err := engine.HolderAudit(spec.Audit, spec.Policy.OCI.Process.Env)
		if err == nil {
			d, spec.Board, err = engine.Asking(d, time.Duration(spec.AskMS)*time.Millisecond, log,
				audit.Record{Source: "session", Session: spec.ID, Profile: spec.Policy.Profile})
		}
		if err != nil {
			return report(err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var ownerGone atomic.Bool
	go func() {
		if _, err := told.ReadByte(); err != nil {
			ownerGone.Store(true) // nobody was told of the session
			stop()
		}
		in.Close()
	}()
	if spec.Owner != 0 {
		gone, err := Process{spec.Owner, spec.OwnerBegan}.Ended()
		if err != nil {
			return report(err)
		}
		go func() { <-gone; ownerGone.Store(true); stop() }()
	}
	if spec.Origin != nil {
		k := &engine.Follows{Driver: d, Origin: spec.Origin}
		d, spec.Notice = k, k.Notice
	}
	served := false
	d = engine.KeepsChanges{Driver: d, Facts: f, ID: func() string { return spec.ID }, Session: true}
	err = session.Hold(ctx, st, d, &spec, func() {
		served = true
		json.NewEncoder(out).Encode(readiness{})
		out.Close()
		debug.FreeOSMemory()
	})
	if ownerGone.Load() && (err == nil || !served) {
		// Nobody has made it by its name, and nobody would remove it.
		if err != nil {
			st.Discard(spec.ID)
		} else {
			st.Remove(spec.ID)
		}
	}
	if err != nil && !served {
		return report(err)
	}
	if err != nil {
		return driver.ExitSetup
	}
	return 0
}

// A Process is one that a session ends with.
type Process struct {
	Pid   int
	Began uint64 // since boot, in ticks; see proc_pid_stat(5). 0 if not known
}
