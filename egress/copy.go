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

const copyBuffer = 64 << 10

var buffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// splicing bounds how many directions use splice(2) at one time: each holds a
// pipe, and the kernel counts pipes' pages for each user
// (/proc/sys/fs/pipe-user-pages-soft), those of the user's other programs too.
var splicing atomic.Int32

const (
	maxSplicing = 32

	// spliceAfter is how much a direction moves before it is worth a pipe.
	spliceAfter = 1 << 20

	// spliceChunk is how much is spliced before the deadline is set anew.
	spliceChunk = 64 << 20
)

// activity is the last time when either direction of a connection moved.
type activity struct{ last atomic.Int64 }

func (a *activity) touch(now time.Time) { a.last.Store(now.UnixNano()) }

func (a *activity) idle(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, a.last.Load()))
}

// errStopped says that a pump was asked to stop before its source ended.
var errStopped = errors.New("stopped")

// pump moves bytes from src to dst until src ends, and passes the end on. It
// holds no memory while it waits. It can be stopped: set stop, then the read
// deadline of src to the past, in this order.
func pump(dst, src *side, n *atomic.Int64, act *activity, idle time.Duration, stop *atomic.Bool) error {
	act.touch(time.Now())
	if len(src.pre) > 0 {
		b := src.pre
		src.pre = nil
		dst.conn.SetWriteDeadline(time.Now().Add(idle))
		k, err := dst.conn.Write(b)
		n.Add(int64(k))
		if err != nil {
			return err
		}
	}
	for {
		now := time.Now()
		src.conn.SetReadDeadline(now.Add(idle))
		dst.conn.SetWriteDeadline(now.Add(idle + handshakeTimeout))
		if stop.Load() {
			return errStopped
		}
		k, err := step(dst.conn, src.conn, n.Load(), spliceChunk)
		n.Add(k)
		if k > 0 {
			act.touch(time.Now())
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			dst.closeWrite()
			return nil
		case stop.Load() && errors.Is(err, os.ErrDeadlineExceeded):
			return errStopped
		case errors.Is(err, os.ErrDeadlineExceeded) && act.idle(time.Now()) < idle:
			// The other direction moved.
		default:
			return err
		}
	}
}

// step moves some bytes, at most limit, as the sides allow and their number is
// worth.
func step(dst, src net.Conn, moved, limit int64) (int64, error) {
	limit = min(limit, spliceChunk)
	st, ok1 := src.(*net.TCPConn)
	dt, ok2 := dst.(*net.TCPConn)
	if ok1 && ok2 && moved >= spliceAfter && splicing.Add(1) <= maxSplicing {
		defer splicing.Add(-1)
		k, err := dt.ReadFrom(&io.LimitedReader{R: st, N: limit})
		if err == nil && k < limit {
			err = io.EOF
		}
		return k, err
	} else if ok1 && ok2 && moved >= spliceAfter {
		splicing.Add(-1)
	}
	var buf *[copyBuffer]byte
	var k int
	var err error
	if ok1 {
		buf, k, err = readReady(st, limit)
	} else {
		buf = buffers.Get().(*[copyBuffer]byte)
		k, err = src.Read(buf[:min(limit, copyBuffer)])
	}
	if buf != nil {
		defer buffers.Put(buf)
	}
	if k > 0 {
		w, werr := dst.Write(buf[:k])
		if werr != nil {
			return int64(w), werr
		}
	}
	return int64(k), err
}

// readReady reads into a buffer that it takes only once there is something to
// read.
func readReady(c *net.TCPConn, limit int64) (buf *[copyBuffer]byte, n int, err error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	rerr := rc.Read(func(fd uintptr) bool {
		buf = buffers.Get().(*[copyBuffer]byte)
		for {
			n, err = syscall.Read(int(fd), buf[:min(limit, copyBuffer)])
			if err != syscall.EINTR {
				break
			}
		}
		if err == syscall.EAGAIN {
			buffers.Put(buf)
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
