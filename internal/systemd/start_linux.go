package systemd

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/quote"
)

// maxSignals bounds what is read of a manager that talks without end: it sends
// each change of each of its units.
const maxSignals = 10000

// Start asks the manager that listens on socket for a scope around the calling
// process, and returns once the process is in it. Nothing waits past the
// deadline.
//
// Errors: ErrAbsent, ErrTimeout, *CallError, *JobError, *ProtocolError, or a
// system call's. After any of them the caller is where it was, but that after
// ErrTimeout it may still be moved.
func Start(socket string, s Scope, deadline time.Time) error {
	c, err := dial(socket, deadline)
	if err != nil {
		return err
	}
	defer unix.Close(c.fd)
	if err := c.authenticate(); err != nil {
		return err
	}
	const serial = 1
	if err := c.write(append([]byte("BEGIN\r\n"), startTransientUnit(s, serial)...)); err != nil {
		return err
	}
	// The signal is what counts, by whichever order the two come.
	for range maxSignals {
		m, err := c.message()
		if err != nil {
			return err
		}
		if m.kind == errorReply && m.reply == serial {
			return &CallError{Name: m.errorName, Message: m.text()}
		}
		if unit, result, ok := m.jobRemoved(); ok && unit == s.Unit {
			if result != "done" {
				return &JobError{Unit: s.Unit, Result: result}
			}
			return nil
		}
	}
	return protocol("%d messages, and none that says what became of %s", maxSignals, s.Unit)
}

type conn struct {
	fd       int
	deadline time.Time
	buf      []byte // received, and not used yet
}

func dial(socket string, deadline time.Time) (*conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		switch err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err {
		case nil:
			return &conn{fd: fd, deadline: deadline}, nil
		case unix.EINTR, unix.EAGAIN:
			// EAGAIN: the queue of connections is full; poll(2) does not tell
			// when it no longer is. See unix_stream_connect in net/unix/af_unix.c.
			if time.Now().Before(deadline) {
				time.Sleep(wait)
				continue
			}
			err = ErrTimeout
		case unix.ENOENT, unix.ENOTDIR, unix.ECONNREFUSED:
			err = ErrAbsent
		default:
			err = &os.PathError{Op: "connect", Path: socket, Err: err}
		}
		unix.Close(fd)
		return nil, err
	}
}

// authenticate says who we are, which the other side knows from the kernel; see
// EXTERNAL in the D-Bus specification.
func (c *conn) authenticate() error {
	id := hex.EncodeToString([]byte(strconv.Itoa(unix.Geteuid())))
	if err := c.write([]byte("\x00AUTH EXTERNAL " + id + "\r\n")); err != nil {
		return err
	}
	for {
		if line, rest, ok := bytes.Cut(c.buf, []byte("\r\n")); ok {
			if !bytes.HasPrefix(line, []byte("OK ")) {
				return protocol("it does not accept this user: %s", quote.Line(string(line)))
			}
			c.buf = rest
			return nil
		}
		if len(c.buf) > 4096 {
			return protocol("a line of %d bytes", len(c.buf))
		}
		if err := c.read(); err != nil {
			return err
		}
	}
}

// message receives one.
func (c *conn) message() (message, error) {
	if err := c.fill(headerSize); err != nil {
		return message{}, err
	}
	n, err := length(c.buf)
	if err != nil {
		return message{}, err
	}
	if err := c.fill(n); err != nil {
		return message{}, err
	}
	m, err := parse(c.buf[:n])
	c.buf = c.buf[n:]
	return m, err
}

// fill reads until n bytes are there.
func (c *conn) fill(n int) error {
	for len(c.buf) < n {
		if err := c.read(); err != nil {
			return err
		}
	}
	return nil
}

// read receives what is there, waiting if that is nothing.
func (c *conn) read() error {
	for {
		var chunk [4096]byte
		n, err := unix.Read(c.fd, chunk[:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			if err := c.wait(unix.POLLIN); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("read from systemd: %w", err)
		case n == 0:
			return protocol("it hung up")
		default:
			c.buf = append(c.buf, chunk[:n]...)
			return nil
		}
	}
}

func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		// SIGPIPE would be this program's end.
		n, err := unix.SendmsgN(c.fd, b, nil, nil, unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			b = b[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			if err := c.wait(unix.POLLOUT); err != nil {
				return err
			}
		case unix.EPIPE, unix.ECONNRESET:
			return protocol("it hung up")
		default:
			return fmt.Errorf("write to systemd: %w", err)
		}
	}
	return nil
}

// wait blocks until the socket is ready, or the time is up.
func (c *conn) wait(events int16) error {
	for {
		left := time.Until(c.deadline)
		if left <= 0 {
			return ErrTimeout
		}
		fds := []unix.PollFd{{Fd: int32(c.fd), Events: events}}
		n, err := unix.Poll(fds, int(left/time.Millisecond)+1)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("poll: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}
