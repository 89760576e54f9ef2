package native

import (
	"errors"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/mounts"
)

// layer is the way of an overlay's upper directory out of the sandbox: a pair of
// sockets, to one of which PID 1 writes the descriptor once, when all is mounted.
// The open directory keeps the file system that it lies in, so that it can be
// read when the sandbox is gone.
type layer struct {
	mu    sync.Mutex
	outer int // -1 once closed
	inner int // PID 1's end, until that has its own; -1 then
	dir   *os.File
}

// overlaid reports whether anything of a tree is copy-on-write.
func overlaid(t *mounts.Tree) bool {
	return slices.ContainsFunc(t.Entries, func(e mounts.Entry) bool { return e.Kind == mounts.Overlay })
}

func newLayer() (*layer, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: os.NewSyscallError("socketpair", err)}
	}
	return &layer{outer: pair[0], inner: pair[1]}, nil
}

// sendLayer appends the steps that pass the directory on, if there is one.
func (s *starter) sendLayer(p *sys.Program, tree *mounts.Building) {
	layer := tree.Layer()
	if layer == 0 {
		return
	}
	body := make([]byte, 1)
	oob := unix.UnixRights(0)
	p.Store32(oob, unix.CmsgLen(0), layer.Value())
	iov := &unix.Iovec{Base: &body[0]}
	iov.SetLen(len(body))
	hdr := &unix.Msghdr{Iov: iov, Control: &oob[0]}
	hdr.Iovlen = 1
	hdr.SetControllen(len(oob))
	p.Call(0, sys.Step{Op: "sendmsg", Object: "overlay"}, unix.SYS_SENDMSG, sys.Imm(s.layer.inner), sys.Ptr(p, hdr),
		sys.Imm(unix.MSG_NOSIGNAL))
	// The command is not to have it: it leads to the whole store.
	p.Call(0, sys.Step{Op: "close", Object: "overlay"}, unix.SYS_CLOSE, layer.Value())
}

// started says that PID 1 has its own end.
func (l *layer) started() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inner >= 0 {
		unix.Close(l.inner)
		l.inner = -1
	}
}

// receive takes what PID 1 has sent by now, and closes the sockets.
func (l *layer) receive() {
	if l == nil {
		return
	}
	l.started()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outer < 0 {
		return
	}
	oob := make([]byte, unix.CmsgSpace(4))
	var oobn int
	err := error(unix.EINTR)
	for err == unix.EINTR {
		_, oobn, _, _, err = unix.Recvmsg(l.outer, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	}
	unix.Close(l.outer)
	l.outer = -1
	if err != nil {
		return // it did not come so far
	}
	if cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(cmsgs) == 1 {
		if fds, err := unix.ParseUnixRights(&cmsgs[0]); err == nil && len(fds) == 1 {
			l.dir = os.NewFile(uintptr(fds[0]), "layer")
		}
	}
}

// close gives up what nobody has taken.
func (l *layer) close() {
	if l == nil {
		return
	}
	l.receive()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir != nil {
		l.dir.Close()
		l.dir = nil
	}
}

// take hands the directory over.
func (l *layer) take() (*os.File, error) {
	if l == nil {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir == nil {
		return nil, errors.New("there is no layer of changes: it was taken, or the sandbox did not come about")
	}
	dir := l.dir
	l.dir = nil
	return dir, nil
}

// Layer hands over the directory with what is changed; see [driver.Changeable].
func (p *process) Layer() (*os.File, error) { return p.layer.take() }

// Layer hands over the directory with what is changed; see [driver.Changeable].
func (b *sandbox) Layer() (*os.File, error) { return b.layer.take() }
