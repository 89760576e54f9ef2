package egress

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Bytes are copied through buffers that are taken once there is something to
// read, so that a connection that waits holds none. splice(2) would save the
// copy, but took a sixth more processor time than large buffers do, and its
// pipes count against the user's other programs (pipe-user-pages-soft).
const (
	smallBuffer = 16 << 10
	largeBuffer = 256 << 10

	// largeAfter is how much a direction moves before it is worth a large
	// buffer, and maxLarge how many of them there are in the process: a peer
	// that does not read keeps one from being given back.
	largeAfter = 256 << 10
	maxLarge   = 64
)

var (
	small = sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}
	large = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}

	largeInUse atomic.Int32
)

// getBuffer returns a buffer for a direction that moved so many bytes before.
func getBuffer(moved int64) *[]byte {
	if moved >= largeAfter {
		if largeInUse.Add(1) <= maxLarge {
			return large.Get().(*[]byte)
		}
		largeInUse.Add(-1)
	}
	return small.Get().(*[]byte)
}

func putBuffer(b *[]byte) {
	if len(*b) == largeBuffer {
		large.Put(b)
		largeInUse.Add(-1)
		return
	}
	small.Put(b)
}

// activity is the last time when either direction of a connection moved.
type activity struct{ last atomic.Int64 }

func (a *activity) touch(now time.Time) { a.last.Store(now.UnixNano()) }

func (a *activity) idle(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, a.last.Load()))
}

// errStopped says that a pump was asked to stop before its source ended.
var errStopped = errors.New("stopped")

// pump moves bytes from src to dst until src ends, and passes the end on. It can
// be stopped, unless the connection is steady: set d.stop, then the read deadline of
// src to the past, in this order.
func (c *connection) pump(dst, src *side, n *atomic.Int64, act *activity, idle time.Duration, d *direction) error {
	act.touch(time.Now())
	if len(src.pre) > 0 {
		b := src.pre
		src.pre = nil
		dst.conn.SetWriteDeadline(time.Now().Add(idle))
		if err := d.hear(b); err != nil {
			return err
		}
		k, err := dst.write(b, act)
		n.Add(int64(k))
		if err != nil {
			return err
		}
	}
	var werr error
	to := writerFunc(func(b []byte) (n int, err error) {
		if werr = d.hear(b); werr == nil {
			n, werr = dst.write(b, act)
		}
		return n, werr
	})
	var window int64 // moved since
	since := time.Now()
	for {
		if b := src.bulk.Load(); b != nil {
			return b.pump(n, act, idle, d)
		}
		now := time.Now()
		src.conn.SetReadDeadline(now.Add(idle))
		dst.conn.SetWriteDeadline(now.Add(idle + handshakeTimeout))
		if d.stop.Load() {
			return errStopped
		}
		k, err := step(to, src.conn, n.Load(), 1<<62)
		n.Add(k)
		if k > 0 {
			now = time.Now() // it may have waited for long
			act.touch(now)
			if window += k; window >= bulkWindow {
				if now.Sub(since) < bulkTime {
					c.promote()
				}
				window, since = 0, now
			}
		}
		switch {
		case err == nil:
		case werr != nil:
			return werr // what was read is lost, whatever it is
		case errors.Is(err, io.EOF):
			dst.closeWrite()
			return nil
		case d.stop.Load() && errors.Is(err, os.ErrDeadlineExceeded):
			return errStopped
		case errors.Is(err, os.ErrDeadlineExceeded) && act.idle(time.Now()) < idle:
			// The other direction moved.
		case errors.Is(err, net.ErrClosed) && src.bulk.Load() != nil:
			// The other direction took the sockets from the runtime's poller.
			// What was read is written: see side.write.
		default:
			return err
		}
	}
}

// caughtPump is pump in a goroutine of its own, of which a panic is the error.
func (c *connection) caughtPump(dst, src *side, n *atomic.Int64, act *activity, d *direction) (err error) {
	defer caught(&err)
	return c.pump(dst, src, n, act, idleTimeout, d)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// write writes to a side whose socket may be taken from the runtime's poller
// meanwhile.
func (s *side) write(b []byte, act *activity) (int, error) {
	n := 0
	if s.bulk.Load() == nil {
		k, err := s.conn.Write(b)
		if !errors.Is(err, net.ErrClosed) {
			return k, err
		}
		n = k
	}
	to := s.bulk.Load()
	if to == nil {
		return n, net.ErrClosed
	}
	k, err := to.write(b[n:], act)
	return n + k, err
}

// step moves what there is to read, at most limit bytes; moved is how much went
// before.
func step(dst io.Writer, src net.Conn, moved, limit int64) (int64, error) {
	var buf *[]byte
	var k int
	var err error
	if t, ok := src.(syscall.Conn); ok {
		buf, k, err = readReady(t, moved, limit)
	} else {
		buf = small.Get().(*[]byte)
		k, err = src.Read((*buf)[:min(limit, smallBuffer)])
	}
	if buf != nil {
		defer putBuffer(buf)
	}
	if k > 0 {
		w, werr := dst.Write((*buf)[:k])
		if werr != nil {
			return int64(w), werr
		}
	}
	return int64(k), err
}

// readReady reads into a buffer that it takes only once there is something to
// read.
func readReady(c syscall.Conn, moved, limit int64) (buf *[]byte, n int, err error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	rerr := rc.Read(func(fd uintptr) bool {
		buf = getBuffer(moved)
		for {
			n, err = syscall.Read(int(fd), (*buf)[:min(limit, int64(len(*buf)))])
			if err != syscall.EINTR {
				break
			}
		}
		if err == syscall.EAGAIN {
			putBuffer(buf)
			buf = nil
			return false
		}
		return true
	})
	if rerr != nil {
		n, err = 0, rerr
	}
	n = max(n, 0)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return buf, n, err
}
