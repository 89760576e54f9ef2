package egress

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A connection that moves much is carried by threads of its own, which wait in
// poll(2) for its two sockets alone. In the runtime's poller every segment that
// arrives would wake the thread that waits for all sockets, to tell what the one
// that copies finds out by itself: a seventh of the gateway's processor time.
const (
	// bulkWindow is how much one direction moves, within bulkTime, before its
	// connection is bulk.
	bulkWindow = 8 << 20
	bulkTime   = time.Second

	// maxBulk bounds the connections that have two threads each, and bulkBuffer
	// is what each of them has while there is something to read: fewer and larger
	// steps wake the peers less often.
	maxBulk    = 8
	bulkBuffer = 1 << 20
)

var (
	bulkInUse   atomic.Int32
	bulkBuffers = sync.Pool{New: func() any { b := make([]byte, bulkBuffer); return &b }}
)

// A bulk is a socket that was taken from the runtime's poller, for the rest of
// its connection.
type bulk struct {
	fd    int // not blocking
	wake  int // eventfd(2), readable once the connection is to end; both sides have it
	ended *atomic.Bool
	peer  *bulk // the other side's
}

// promote takes both sockets of a tunnel from the runtime's poller. Whoever uses
// them at the moment gets net.ErrClosed, and goes on with side.bulk; see
// side.write and pump. It is called only while nobody but pumps uses them.
func (c *connection) promote() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if runtime.GOMAXPROCS(0) == 1 {
		return // who copies would keep the one processor from all others
	}
	if c.dead || !c.steady || c.server == nil || c.client.bulk.Load() != nil {
		return
	}
	if bulkInUse.Add(1) > maxBulk {
		bulkInUse.Add(-1)
		return
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		bulkInUse.Add(-1)
		return
	}
	client, server := duplicate(c.client.conn), duplicate(c.server.conn)
	if client < 0 || server < 0 {
		for _, fd := range []int{client, server, wake} {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
		bulkInUse.Add(-1)
		return
	}
	ended := new(atomic.Bool)
	a, b := &bulk{fd: client, wake: wake, ended: ended}, &bulk{fd: server, wake: wake, ended: ended}
	a.peer, b.peer = b, a // a pump may see one side's before the other's is stored
	c.client.bulk.Store(a)
	c.server.bulk.Store(b)
	c.client.conn.Close()
	c.server.conn.Close()
}

// duplicate returns a descriptor for a connection's socket, or -1.
func duplicate(conn net.Conn) int {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return -1
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return -1
	}
	fd := -1
	rc.Control(func(s uintptr) {
		if fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			fd = -1
		}
	})
	return fd
}

// close closes a side's socket, once no pump uses it.
func (s *side) close() {
	s.conn.Close()
	if b := s.bulk.Swap(nil); b != nil {
		unix.Close(b.fd)
	}
}

// release gives back what a bulk connection holds besides its sockets.
func (b *bulk) release() {
	unix.Close(b.wake)
	bulkInUse.Add(-1)
}

// reset makes the end of the connection a reset, and its pumps end it.
func (b *bulk) reset() {
	unix.SetsockoptLinger(b.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	b.ended.Store(true)
	unix.Write(b.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// closeWrite passes an end on. What is reset has none.
func (b *bulk) closeWrite() {
	if !b.ended.Load() {
		unix.Shutdown(b.fd, unix.SHUT_WR)
	}
}

// write writes all of p, however long the peer takes within the bound on an idle
// connection.
func (b *bulk) write(p []byte, act *activity) (int, error) {
	n := 0
	for n < len(p) {
		if b.ended.Load() {
			return n, net.ErrClosed
		}
		k, err := syscall.Write(b.fd, p[n:])
		switch {
		case err == nil:
			n += k
			act.touch(time.Now())
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			if err := b.wait(unix.POLLOUT, idleTimeout+handshakeTimeout); err != nil {
				return n, err
			}
		default:
			return n, os.NewSyscallError("write", err)
		}
	}
	return n, nil
}

// wait waits until the socket is ready, or the connection is to end.
func (b *bulk) wait(events int16, timeout time.Duration) error {
	until := time.Now().Add(timeout)
	for {
		fds := [2]unix.PollFd{{Fd: int32(b.fd), Events: events}, {Fd: int32(b.wake), Events: unix.POLLIN}}
		n, err := unix.Poll(fds[:], int(max(0, time.Until(until)).Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("poll", err)
		case fds[1].Revents != 0:
			return net.ErrClosed
		case n == 0:
			return os.ErrDeadlineExceeded
		default:
			return nil
		}
	}
}

// pump moves bytes from b to its peer as connection.pump does, and d hears them as
// before: much may move before the server has answered.
func (b *bulk) pump(n *atomic.Int64, act *activity, idle time.Duration, d *direction) error {
	for !b.ended.Load() {
		buf := bulkBuffers.Get().(*[]byte)
		k, err := syscall.Read(b.fd, *buf)
		if k > 0 {
			act.touch(time.Now())
			err := d.hear((*buf)[:k])
			if err == nil {
				k, err = b.peer.write((*buf)[:k], act)
				n.Add(int64(k))
			}
			bulkBuffers.Put(buf)
			if err != nil {
				return err
			}
			continue
		}
		bulkBuffers.Put(buf)
		switch {
		case k == 0 && err == nil:
			b.peer.closeWrite()
			return nil
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			err := b.wait(unix.POLLIN, idle)
			if errors.Is(err, os.ErrDeadlineExceeded) && act.idle(time.Now()) < idle {
				continue // the other direction moved
			}
			if err != nil {
				return err
			}
		default:
			return os.NewSyscallError("read", err)
		}
	}
	return net.ErrClosed
}
