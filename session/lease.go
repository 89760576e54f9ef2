//go:build unix

package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/oncejson"
	"github.com/sbxrun/sbxrun/policy"
)

// A Lender gives sandboxes that are ready to other processes of its owner, each
// for one command: the connection is the sandbox's life.
//
// A client says what it would build itself: the digest of the policy, the policy in
// full if the lender has not read it before, and what its own process passes on to
// what it starts ([Birth]). The lender answers with the digest of the policy that it
// builds, from its own reading of it. Only then does it get the command and its
// descriptors. It builds meanwhile, exactly that or nothing: then it refuses the
// command, of which nothing has happened.
type Lender struct {
	// Version is that of the program: policies mean the same in the same version.
	Version string

	// Birth is the lender's own.
	Birth string

	// Acquire returns a sandbox of exactly this policy, or an error: the client
	// builds one itself then.
	Acquire func(context.Context, *policy.Policy) (driver.Sandbox, error)

	mu    sync.Mutex
	known map[string]*policy.Policy // by digest
}

// keepKnown bounds the policies that a lender remembers having read.
const keepKnown = 32

// lease is what a lender says of the sandbox that it gives.
type lease struct {
	Digest string `json:"digest"`

	// Unread says that the lender has to read the policy first.
	Unread bool `json:"unread,omitempty"`
}

// Serve serves connections until the listener is closed.
func (l *Lender) Serve(ctx context.Context, ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors, for instance
			continue
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			c.Close()
			return fmt.Errorf("session: a listener for %s", c.LocalAddr().Network())
		}
		go l.serve(ctx, &conn{UnixConn: u})
	}
}

// serve lends one sandbox.
func (l *Lender) serve(ctx context.Context, c *conn) {
	defer c.Close()
	pol, err := l.agree(c)
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			c.send(reply{Error: newWireError(err)})
		}
		return
	}
	// The client gets its command ready meanwhile.
	box, refused := l.acquire(ctx, c, pol)
	if box == nil && refused == nil {
		return
	}
	if box != nil {
		defer box.Close()
	}
	var req request
	files, err := c.receive(&req)
	defer func() { closeFiles(files) }()
	if err != nil {
		return // the client has thought better of it, or is gone
	}
	if refused != nil {
		c.send(reply{Refused: true, Error: newWireError(refused)})
		return
	}
	if req.Op != "exec" {
		c.send(reply{Error: newWireError(&policy.InvalidError{Field: "op", Value: req.Op, Want: "exec"})})
		return
	}
	stdio, err := passed(req.Streams, files)
	var p driver.Process
	if err == nil {
		stdio.Else = req.Else
		p, err = box.Exec(ctx, req.Process, stdio)
	}
	closeFiles(files)
	if err != nil {
		c.send(reply{Error: newWireError(err)})
		return
	}
	c.started(p, 0, nil)
	st, err := p.Wait()
	if err != nil {
		c.send(reply{Error: newWireError(err)})
		return
	}
	if !req.Frugal || st.ExitCode != 0 || st.Signal != 0 {
		whole(st, box)
	}
	// What the command left behind ends with it, as in a run. The rest, taking the
	// sandbox down, the client need not wait for.
	if err := box.End(); err != nil {
		c.send(reply{Error: newWireError(err)})
		return
	}
	st.Pooled = true
	c.send(reply{Status: st})
}

// started tells the client that its command runs, and does what it asks of that from
// then on. Adopt is as in control.
func (c *conn) started(p driver.Process, command int, adopt func(*limits) error) {
	r := reply{Started: true, Command: command}
	var fds []int
	if pty := p.Pty(); pty != nil {
		r.Pty = true
		fds = []int{int(pty.Fd())}
	}
	if err := c.send(r, fds...); err != nil {
		p.Kill()
		return
	}
	go control(c, p, adopt)
}

// whole makes the usage of a command that of its sandbox.
func whole(st *driver.Status, box driver.Sandbox) {
	all, err := box.Status()
	if err != nil {
		return
	}
	own := st.Usage
	st.Usage = all.Usage
	if own.CPUUserMS+own.CPUSystemMS > st.Usage.CPUUserMS+st.Usage.CPUSystemMS {
		st.Usage.CPUUserMS, st.Usage.CPUSystemMS = own.CPUUserMS, own.CPUSystemMS
	}
	st.OOMKilled = st.OOMKilled || all.OOMKilled
	st.PidsDenied = max(st.PidsDenied, all.PidsDenied)
	st.OOMBy, st.PidsBy = all.OOMBy, all.PidsBy
	st.Network = all.Network
}

// acquire gets the sandbox, or the reason why there is none. It returns neither if
// it took so long that the client was told so.
func (l *Lender) acquire(ctx context.Context, c *conn, p *policy.Policy) (box driver.Sandbox, refused error) {
	var decided atomic.Bool
	late := time.AfterFunc(borrowPatience, func() {
		if !decided.Swap(true) {
			c.send(reply{Refused: true, Error: newWireError(errors.New("the server takes its time over a sandbox"))})
		}
	})
	defer late.Stop()
	box, refused = l.Acquire(ctx, p)
	if refused == nil {
		if refused = box.Completed(); refused != nil {
			box.Close()
		}
	}
	if decided.Swap(true) {
		if refused == nil {
			box.Close()
		}
		return nil, nil
	}
	if refused != nil {
		return nil, refused
	}
	return box, nil
}

// agree reads what a client wants a sandbox of, and answers that it will be built.
// The error is net.ErrClosed if there is nobody to tell.
func (l *Lender) agree(c *conn) (*policy.Policy, error) {
	if _, err := checkPeer(c.UnixConn); err != nil {
		return nil, err
	}
	for {
		var req request
		files, err := c.receive(&req)
		closeFiles(files)
		switch {
		case err != nil:
			return nil, net.ErrClosed
		case req.Op != "lend":
			return nil, &policy.InvalidError{Field: "op", Value: req.Op, Want: "lend"}
		case req.Version != l.Version:
			return nil, fmt.Errorf("the server is sbxrun %s", l.Version)
		case req.Birth != l.Birth:
			return nil, errors.New("the server passes on something else: " + differ(l.Birth, req.Birth))
		}
		ours := lease{Digest: req.Digest}
		l.mu.Lock()
		pol := l.known[req.Digest]
		l.mu.Unlock()
		switch {
		case pol == nil && req.Policy == nil:
			ours.Unread = true
		case pol == nil:
			if pol, ours.Digest, err = l.read(req.Policy); err != nil {
				return nil, err
			}
		}
		if err := c.send(reply{Lease: &ours}); err != nil {
			return nil, net.ErrClosed
		}
		if pol != nil {
			return pol, nil
		}
	}
}

// read reads a policy, of which it must understand everything, and remembers it by
// the digest of what it would say of it itself.
func (l *Lender) read(raw []byte) (*policy.Policy, string, error) {
	p := &policy.Policy{}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, "", &policy.InvalidError{Field: "policy", Want: "one of this version: " + err.Error()}
	}
	if err := p.Validate(); err != nil {
		return nil, "", err
	}
	again, err := oncejson.Marshal(p)
	if err != nil {
		return nil, "", err
	}
	sum := digest(again)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil || len(l.known) >= keepKnown {
		l.known = map[string]*policy.Policy{}
	}
	l.known[sum] = p
	return p, sum, nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// sandboxOf is a policy without what is about the command.
func sandboxOf(p *policy.Policy) *policy.Policy {
	q, oci, pr := *p, *p.OCI, *p.OCI.Process
	pr.Args, pr.Terminal, pr.ConsoleSize = []string{"/"}, false, nil
	oci.Process, q.OCI = &pr, &oci
	return &q
}

// A Loan is a sandbox that a [Lender] gave, for one command.
type Loan struct{ conn *conn }

// Borrow asks the lender at a socket for a sandbox of a policy. After any error
// nothing has happened, and the caller builds one itself.
func Borrow(socket, version, birth string, p *policy.Policy) (*Loan, error) {
	raw, err := oncejson.Marshal(sandboxOf(p))
	if err != nil {
		return nil, err
	}
	u, err := Dial(socket)
	if err != nil {
		return nil, err
	}
	c := &conn{UnixConn: u}
	if err := borrow(c, &request{Op: "lend", Version: version, Birth: birth, Digest: digest(raw)}, raw); err != nil {
		c.Close()
		return nil, err
	}
	return &Loan{conn: c}, nil
}

// borrowPatience is how long a lender may take.
const borrowPatience = 2 * time.Second

// borrow asks by the digest first, which is all that a lender needs that has seen the
// policy before.
func borrow(c *conn, req *request, raw []byte) error {
	c.SetDeadline(time.Now().Add(borrowPatience))
	defer c.SetDeadline(time.Time{})
	for {
		if err := c.send(req); err != nil {
			return err
		}
		var r reply
		files, err := c.receive(&r)
		closeFiles(files)
		if err == nil {
			err = r.Error.err()
		}
		switch {
		case err != nil:
			return err
		case r.Lease == nil:
			return errors.New("unexpected answer")
		case r.Lease.Digest != req.Digest:
			return errors.New("the server built another policy")
		case !r.Lease.Unread:
			return nil
		case req.Policy != nil:
			return errors.New("unexpected answer")
		}
		req.Policy = raw
	}
}

// ErrRefused says that a lender did not start a command, and has not the sandbox for
// it: nothing has happened.
var ErrRefused = errors.New("the server has no sandbox for it")

// Exec starts the command. The sandbox and all that is in it end with that, before
// Wait returns. Frugal is for who does not look at the usage of a command that
// succeeds.
//
// After an error that is [ErrRefused] the caller builds a sandbox itself. A
// *[driver.LostError] may come after the command has begun.
func (l *Loan) Exec(ctx context.Context, process *specs.Process, stdio driver.Stdio,
	frugal bool) (driver.Process, error) {
	req, files, err := execRequest(process, stdio)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		l.conn.Close()
		return nil, err
	}
	if stdio.Starting != nil {
		stdio.Starting()
	}
	req.Frugal = frugal
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if err := l.conn.send(req, fds...); err != nil {
		l.conn.Close()
		return nil, fmt.Errorf("the server: %w", driver.ErrSandboxGone)
	}
	return started(l.conn, "the server", nil, nil)
}

// Close gives a sandbox back that Exec was not called for.
func (l *Loan) Close() error { return l.conn.Close() }

// differ names what two births differ in.
func differ(a, b string) string {
	has := strings.Split(b, "\n")
	for l := range strings.Lines(a) {
		if l = strings.TrimSuffix(l, "\n"); !slices.Contains(has, l) {
			name, _, _ := strings.Cut(l, ":")
			return "another " + name
		}
	}
	return "more"
}
