package driver

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// streamGrace is how long a stream may stay open after its command has ended. Only
// a process that outlives the command, or one outside the sandbox, makes anybody
// wait this long.
const streamGrace = 100 * time.Millisecond

// maxLeft is how much of a stream is taken at once without waiting, bytes: no pipe
// of an ordinary user holds more; see /proc/sys/fs/pipe-max-size in pipe(7).
const maxLeft = 1 << 20

// A Stream reads what a command prints, from a pipe or the master of a terminal, and
// passes it on as it comes.
//
// Nothing that the command printed is missing once Settle has returned, however late
// this process runs: Settle takes what is in the pipe itself, and does not rely on a
// deadline, which a busy machine or a stopped process lets pass.
type Stream struct {
	file *os.File
	raw  syscall.RawConn
	done chan struct{} // closed when nothing more is read

	pace func() // or nil

	mu  sync.Mutex // held from a read until it is passed on: the order stays
	to  func([]byte)
	buf []byte
	end bool // at its end, or failed
	cut bool // failed
}

// NewStream begins to read a file, which is the Stream's from then on, and calls to
// with what there is, which is valid until to returns. The calls come one after the
// other. Pace, unless it is nil, is called after each, except by Settle, and may wait:
// the command waits too, once the pipe is full.
func NewStream(file *os.File, to func([]byte), pace func()) *Stream {
	s := &Stream{file: file, to: to, pace: pace, done: make(chan struct{}),
		buf: make([]byte, 64<<10)} // a pipe's default capacity; see pipe(7)
	var err error
	if s.raw, err = file.SyscallConn(); err != nil {
		s.end, s.cut = true, true
		close(s.done)
		return s
	}
	go func() {
		defer close(s.done)
		// The runtime polls when take has found nothing.
		s.raw.Read(func(fd uintptr) bool {
			for {
				n, more := s.take(fd)
				if !more {
					return s.over()
				}
				if n > 0 && s.pace != nil {
					s.pace()
				}
			}
		})
	}()
	return s
}

// take reads once, without waiting, and passes on what there was. More says that
// there may be more at once.
func (s *Stream) take(fd uintptr) (n int, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end {
		return 0, false
	}
	n, err := syscall.Read(int(fd), s.buf)
	switch {
	case n > 0:
		s.to(s.buf[:n])
		return n, true
	case err == syscall.EINTR:
		return 0, true
	case err == syscall.EAGAIN:
		return 0, false
	}
	// EIO is the end of a terminal that no process has open; see pty(7).
	s.end, s.cut = true, err != nil && err != syscall.EIO
	return 0, false
}

func (s *Stream) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// drain passes on what there is now, and reports whether that was all of it.
func (s *Stream) drain() (all bool) {
	err := s.raw.Control(func(fd uintptr) {
		for left := maxLeft; left > 0; {
			n, more := s.take(fd)
			if all = !more; all {
				return
			}
			left -= n
		}
	})
	return all && (err == nil || errors.Is(err, os.ErrClosed))
}

// Settle returns when all that the command printed was passed on. Where a process
// still has the stream open, it waits a moment for that to end as well.
//
// It is false if something may be missing: the stream could not be read, or somebody
// fills it faster than it is read.
//
// Preconditions: the command has ended.
func (s *Stream) Settle() bool {
	all := s.over() || s.drain()
	if !s.over() {
		t := time.NewTimer(streamGrace)
		defer t.Stop()
		select {
		case <-s.done:
		case <-t.C:
		}
		all = s.over() || s.drain()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return all && !s.cut
}

// Done is closed when the stream is at its end, or closed.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Close ends the reading. Nothing is passed on after it returns.
func (s *Stream) Close() error {
	s.mu.Lock()
	s.end = true
	s.mu.Unlock()
	return s.file.Close()
}

// Waiting returns what is in a pipe now, at most limit bytes, and does not wait for
// more: for what a command has told before it ended, of which a process that it left
// running may hold the other end.
func Waiting(file *os.File, limit int) []byte {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil
	}
	var data []byte
	buf := make([]byte, 4<<10)
	raw.Control(func(fd uintptr) {
		if syscall.SetNonblock(int(fd), true) != nil {
			return
		}
		for len(data) < limit {
			n, err := syscall.Read(int(fd), buf[:min(len(buf), limit-len(data))])
			if err == syscall.EINTR {
				continue
			}
			if n <= 0 {
				return
			}
			data = append(data, buf[:n]...)
		}
	})
	return data
}
