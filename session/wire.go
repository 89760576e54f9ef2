//go:build unix

package session

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/oncejson"
	"github.com/sbxrun/sbxrun/internal/questions"
	"github.com/sbxrun/sbxrun/policy"
)

// The wire: a connection carries one operation. Each message is its length, four
// bytes in network order, and a JSON object. Descriptors travel with the first
// byte of the message that they belong to.

// maxMessage bounds a message, bytes: an argument list may take 2 MiB on Linux
// (execve(2)), and JSON can make it longer.
const maxMessage = 16 << 20

// maxFiles bounds the descriptors of one message; SCM_MAX_FD is 253.
const maxFiles = 16

// request is what a client sends: first Op with what belongs to it, then, while a
// command runs, signals.
type request struct {
	Op string `json:"op"` // exec, start (both also with -within), output, questions, answer, info, stop, retire; attach, lend; signal, terminate, kill, detach

	Process *specs.Process `json:"process,omitempty"` // exec, start
	Streams []bool         `json:"streams,omitempty"` // exec: which of 0, 1, 2, … came as descriptors
	Explain bool           `json:"explain,omitempty"` // exec: see driver.Stdio
	Else    string         `json:"else,omitempty"`    // likewise
	Unasked bool           `json:"unasked,omitempty"` // likewise
	Signal  int            `json:"signal,omitempty"`

	// Within are limits of the one command, of exec-within and start-within: an
	// earlier version's holder, which knows of none, refuses these.
	Within *specs.LinuxResources `json:"within,omitempty"`

	Command int     `json:"command,omitempty"` // output, kill: which
	Offset  [2]int  `json:"offset,omitempty"`  // output: of stdout and stderr
	WaitMS  int64   `json:"wait_ms,omitempty"` // output: wait so long for more
	GraceMS int64   `json:"grace_ms,omitempty"`
	Limits  *limits `json:"limits,omitempty"` // start, detach

	Version string          `json:"version,omitempty"` // lend
	Birth   string          `json:"birth,omitempty"`
	Digest  string          `json:"digest,omitempty"` // of the policy
	Policy  json.RawMessage `json:"policy,omitempty"`
	// Questions, and an answer to one.
	Question int    `json:"question,omitempty"` // answer: which; questions: the last that is known
	Answer   uint8  `json:"answer,omitempty"`   // see driver.Answer
	By       string `json:"by,omitempty"`

	Frugal bool `json:"frugal,omitempty"` // exec in what was lent

	within time.Duration // the reply has to come; 0: as long as the holder answers others
}

// limits are those of a background command.
type limits struct {
	WallMS      int64 `json:"wall_ms"`
	KillAfterMS int64 `json:"kill_after_ms"`
	Output      int64 `json:"output"`
}

// reply is what a holder sends.
type reply struct {
	Error   *wireError     `json:"error,omitempty"`
	Started bool           `json:"started,omitempty"`
	Pty     bool           `json:"pty,omitempty"` // the terminal's master came with it
	Status  *driver.Status `json:"status,omitempty"`
	Info    *Info          `json:"info,omitempty"`
	Command int            `json:"command,omitempty"`
	Output  *Output        `json:"output,omitempty"`
	Lease   *lease         `json:"lease,omitempty"`
	Refused bool           `json:"refused,omitempty"` // exec in what was lent

	Questions []questions.Question `json:"questions,omitempty"`
	Untold    uint64               `json:"untold,omitempty"`

	Detached bool `json:"detached,omitempty"`
}

// OwnerOnly is a listener that hangs up on whoever is not its owner, or root.
func OwnerOnly(l *net.UnixListener) net.Listener { return ownerOnly{l} }

type ownerOnly struct{ *net.UnixListener }

// Accept returns the next connection of the owner's.
func (l ownerOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if _, err := checkPeer(c); err == nil {
			return c, nil
		}
		c.Close()
	}
}

// conn is a connection with messages.
type conn struct {
	*net.UnixConn
	peer int        // who listened, where this side connected
	mu   sync.Mutex // one writer at a time
}

// send writes a message, with descriptors.
func (c *conn) send(v any, fds ...int) error {
	body, err := oncejson.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return &policy.InvalidError{Field: "message", Value: "too long", Want: "arguments and environment that fit execve(2)"}
	}
	b := append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// receive reads a message and the descriptors that came with it. They are the
// caller's to close, also if there is an error.
func (c *conn) receive(v any) ([]*os.File, error) {
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	files, err := rights(oob[:oobn])
	if err != nil {
		return files, err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return files, fmt.Errorf("session: the descriptors of a message found no room: %w", unix.EMFILE)
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return files, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxMessage {
		return files, errors.New("session: message too long")
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c, body); err != nil {
		return files, err
	}
	return files, oncejson.Unmarshal(body, v)
}

// rights takes the descriptors out of control messages; they are close-on-exec.
func rights(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range cmsgs {
		fds, err := unix.ParseUnixRights(&cmsgs[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// wireError carries an error over a socket such that its kind, code and hint
// survive.
type wireError struct {
	Kind    string `json:"kind,omitempty"`
	Text    string `json:"text"`
	Code    string `json:"code,omitempty"`
	Hint    string `json:"hint,omitempty"`
	Command string `json:"command,omitempty"`
	Errno   int    `json:"errno,omitempty"`
	Field   string `json:"field,omitempty"`
	Value   string `json:"value,omitempty"`
	Want    string `json:"want,omitempty"`
}

func newWireError(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Text: err.Error(), Code: string(driver.CodeOf(err)), Hint: driver.HintOf(err)}
	var e syscall.Errno
	if errors.As(err, &e) {
		w.Errno = int(e)
	}
	var lost *driver.LostError
	var command *driver.CommandError
	var invalid *policy.InvalidError
	var none *NoCommandError
	var closed *questions.NotOpenError
	var lasts *questions.LastsError
	switch {
	case errors.As(err, &lasts):
		w.Kind, w.Value, w.Text = "lasts", strconv.Itoa(lasts.ID), lasts.Call
	case errors.As(err, &closed):
		w.Kind, w.Value = "not open", strconv.Itoa(closed.ID)
	case errors.As(err, &lost): // before all that it may hold, after which nothing ran
		w.Kind, w.Text, w.Hint = "lost", lost.Err.Error(), lost.Fix
	case errors.As(err, &command):
		w.Kind, w.Command = "command", command.Command
	case errors.As(err, &invalid):
		w.Kind, w.Field, w.Value, w.Want = "invalid", invalid.Field, invalid.Value, invalid.Want
	case errors.As(err, &none):
		w.Kind, w.Field, w.Value = "no command", none.Session, strconv.Itoa(none.Command)
	case errors.Is(err, ErrAsksNothing):
		w.Kind = "asks nothing"
	case errors.Is(err, ErrEnding):
		w.Kind = "ending"
	case errors.Is(err, driver.ErrSandboxGone):
		w.Kind = "gone"
	}
	return w
}

// err is the error that was sent.
func (w *wireError) err() error {
	if w == nil {
		return nil
	}
	switch w.Kind {
	case "lost":
		return &driver.LostError{Err: &remoteError{*w}, Fix: w.Hint}
	case "command":
		return &driver.CommandError{Command: w.Command, Err: syscall.Errno(w.Errno), Fix: w.Hint}
	case "invalid":
		return &policy.InvalidError{Field: w.Field, Value: w.Value, Want: w.Want}
	case "no command":
		n, _ := strconv.Atoi(w.Value)
		return &NoCommandError{w.Field, n}
	case "lasts":
		n, _ := strconv.Atoi(w.Value)
		return &questions.LastsError{ID: n, Call: w.Text}
	case "not open":
		n, _ := strconv.Atoi(w.Value)
		return &questions.NotOpenError{ID: n}
	case "asks nothing":
		return ErrAsksNothing
	case "ending":
		return ErrEnding
	case "gone":
		return driver.ErrSandboxGone
	}
	return &remoteError{*w}
}

// remoteError is an error of the holder's.
type remoteError struct{ w wireError }

func (e *remoteError) Error() string     { return e.w.Text }
func (e *remoteError) Code() driver.Code { return driver.Code(e.w.Code) }
func (e *remoteError) Hint() string      { return e.w.Hint }

// Unwrap returns the errno below, so that errors.Is holds on this side too.
func (e *remoteError) Unwrap() error {
	if e.w.Errno == 0 {
		return nil
	}
	return syscall.Errno(e.w.Errno)
}
