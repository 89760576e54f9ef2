//go:build unix

package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
)

// A Box is the files of a sandbox. The zero value of the fields but Sandbox is
// ready to use.
type Box struct {
	Sandbox driver.Sandbox

	// Check is asked of each path that Get is about to make, and of those that lead to
	// it; its error ends that. Nil refuses none. With it, the directory is a whole path
	// without symbolic links, and is made if it is not there: what was checked is what
	// is written to, whatever a command swaps in.
	Check Check

	// Limit is how long an operation may take, 0 is for ever: another command can keep
	// the agent from coming to an end.
	Limit time.Duration

	once  sync.Once
	agent *os.File
	err   error
}

// maxSmall bounds what Stat, List and an error may be, bytes.
const maxSmall = 64 << 20

// Close gives up the agent's copy. The sandbox stays.
func (b *Box) Close() error {
	b.once.Do(func() {})
	if b.agent != nil {
		return b.agent.Close()
	}
	return nil
}

// program is the agent, in memory that nobody can change any more.
func (b *Box) program() (*os.File, error) {
	b.once.Do(func() { b.agent, b.err = sealedSelf() })
	return b.agent, b.err
}

// do runs the agent. What it prints goes to out as it comes.
func (b *Box) do(ctx context.Context, in io.Reader, out io.Writer, op, path string, more ...string) error {
	program, err := b.program()
	if err != nil {
		return err
	}
	if b.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, b.Limit,
			&Error{Op: op, Path: path, Text: "the agent did not come to an end in " + b.Limit.String(), Errno: unix.ETIMEDOUT})
		defer cancel()
	}
	r, w, err := threePipes()
	if err != nil {
		return err
	}
	inR, outR, errR := r[0], r[1], r[2]
	inW, outW, errW := w[0], w[1], w[2]
	defer outR.Close()
	defer errR.Close()
	p, err := b.Sandbox.Exec(ctx,
		&specs.Process{Args: append([]string{"/proc/self/fd/3", agentCommand, op, path}, more...)},
		driver.Stdio{Stdin: inR, Stdout: outW, Stderr: errW, Extra: []*os.File{program}, Unasked: true})
	for _, f := range []*os.File{inR, outW, errW} {
		f.Close()
	}
	if err != nil {
		inW.Close()
		return err
	}
	stop := context.AfterFunc(ctx, func() { p.Kill() })
	defer stop()
	fed := make(chan error, 1)
	go func() {
		defer inW.Close()
		if in == nil {
			fed <- nil
			return
		}
		_, err := io.Copy(inW, in)
		if errors.Is(err, unix.EPIPE) {
			err = nil // the agent says why
		}
		fed <- err
	}()
	var said bytes.Buffer
	collected := make(chan struct{})
	go func() { io.Copy(&said, io.LimitReader(errR, 64<<10)); io.Copy(io.Discard, errR); close(collected) }()
	_, cerr := io.Copy(out, outR)
	if cerr != nil {
		p.Kill() // nobody takes what it has to give
	}
	st, err := p.Wait()
	<-collected
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case cerr != nil:
		return cerr
	case st.Signal != 0:
		return &Error{Op: op, Path: path, Text: "the agent was ended by " + driver.SignalName(st.Signal)}
	case st.ExitCode != 0:
		return parseError(op, path, said.Bytes(), st)
	}
	return <-fed
}

// threePipes makes all of them, or none.
func threePipes() (r, w [3]*os.File, err error) {
	for i := range r {
		if r[i], w[i], err = os.Pipe(); err != nil {
			for j := range i {
				r[j].Close()
				w[j].Close()
			}
			break
		}
	}
	return r, w, err
}

// Stat describes a file; a symbolic link itself, not what it leads to.
func (b *Box) Stat(ctx context.Context, path string) (*Info, error) {
	var out limited
	if err := b.do(ctx, nil, &out, "stat", path); err != nil {
		return nil, err
	}
	i := &Info{}
	return i, json.Unmarshal(out.Bytes(), i)
}

// List describes what is in a directory, in no order.
func (b *Box) List(ctx context.Context, dir string) ([]Info, error) {
	var out limited
	if err := b.do(ctx, nil, &out, "list", dir); err != nil {
		return nil, err
	}
	list := []Info{}
	for d := json.NewDecoder(&out); ; {
		var i Info
		switch err := d.Decode(&i); err {
		case nil:
			list = append(list, i)
		case io.EOF:
			return list, nil
		default:
			return nil, err
		}
	}
}

// limited is a buffer that what a stranger prints cannot make grow for ever.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxSmall {
		return 0, errors.New("too much output of the agent")
	}
	return l.Buffer.Write(p)
}

// atMost writes no more than was asked for: who reads has room for that.
type atMost struct {
	io.Writer
	left int64
}

func (a *atMost) Write(p []byte) (int, error) {
	if a.left -= int64(len(p)); a.left < 0 {
		return 0, errors.New("too much output of the agent")
	}
	return a.Writer.Write(p)
}

// Read copies a part of a regular file, or all of it if the length is negative.
func (b *Box) Read(ctx context.Context, path string, offset, length int64, w io.Writer) error {
	if length >= 0 {
		w = &atMost{w, length}
	}
	return b.do(ctx, nil, w, "read", path, strconv.FormatInt(offset, 10), strconv.FormatInt(length, 10))
}

// Write replaces a file by what is read: as a whole, or not at all. The mode is a
// new file's; one that is there keeps its own.
func (b *Box) Write(ctx context.Context, path string, mode fs.FileMode, r io.Reader) error {
	return b.do(ctx, r, io.Discard, "write", path, strconv.FormatUint(uint64(mode.Perm()), 8))
}

// Mkdir makes a directory and those above it.
func (b *Box) Mkdir(ctx context.Context, path string) error {
	return b.do(ctx, nil, io.Discard, "mkdir", path)
}

// Remove removes a file, or a directory and all below it.
func (b *Box) Remove(ctx context.Context, path string) error {
	return b.do(ctx, nil, io.Discard, "remove", path)
}

// Get copies a file or tree out of the sandbox into a directory of the host.
func (b *Box) Get(ctx context.Context, path, dir string) error {
	r, w := io.Pipe()
	extracted := make(chan error, 1)
	go func() {
		err := extract(dir, r, b.Check)
		if err == nil {
			io.Copy(io.Discard, r) // what follows the end of the archive
		}
		r.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		extracted <- err
	}()
	err := b.do(ctx, nil, w, "get", path)
	w.CloseWithError(io.EOF)
	if xerr := <-extracted; xerr != nil && (err == nil || errors.Is(err, xerr)) {
		return xerr
	}
	return err
}

// GetTar copies a file or tree out of the sandbox as a tar stream.
func (b *Box) GetTar(ctx context.Context, path string, w io.Writer) error {
	return b.do(ctx, nil, w, "get", path)
}

// Put copies a file or tree of the host into a directory of the sandbox, which is
// made if it is not there. The path is a whole one, and leads through no symbolic link.
func (b *Box) Put(ctx context.Context, path, dir string) error {
	if _, err := os.Lstat(path); err != nil {
		return err
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := packReal(w, path)
		w.CloseWithError(err)
		packed <- err
	}()
	err := b.do(ctx, r, io.Discard, "put", dir)
	r.Close()
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return perr
	}
	return err
}

// PutTar extracts a tar stream into a directory of the sandbox.
func (b *Box) PutTar(ctx context.Context, r io.Reader, dir string) error {
	return b.do(ctx, r, io.Discard, "put", dir)
}
