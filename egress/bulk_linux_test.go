package egress

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stream is bytes that a seed makes, so that what arrives can be compared.
func stream(seed byte, size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size)
}

// same reads r to its end, which has to be that of want.
func same(r io.Reader, want io.Reader) error {
	a, b := make([]byte, 128<<10), make([]byte, 128<<10)
	for {
		n, err := r.Read(a)
		if _, werr := io.ReadFull(want, b[:n]); werr != nil || !bytes.Equal(a[:n], b[:n]) {
			return errors.New("other bytes")
		}
		if err == io.EOF {
			if n, _ := want.Read(b[:1]); n != 0 {
				return errors.New("too few bytes")
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in 20 s: " + what)
		}
	}
}

// TestBulk: connections that move much leave the runtime's poller in the middle
// of moving it, in both directions at once, and nothing is lost, doubled or left
// behind; more of them than have threads of their own are carried as before.
func TestBulk(t *testing.T) {
	const size = 6*bulkWindow + 12345
	w := newWorld(t, allow("a.example"), func(o *Options) { o.Connections = 100 })
	w.host("a.example", "93.184.216.34", 7, func(c net.Conn) {
		up := make(chan error, 1)
		go func() { up <- same(c, stream(1, size)) }()
		io.Copy(c, stream(2, size))
		if err := <-up; err != nil {
			t.Error("up:", err)
		}
		// The server ends its side last: the client's end has come through.
		c.(*net.TCPConn).CloseWrite()
	})
	before := descriptors(t)
	to := netip.AddrPortFrom(w.number("a.example"), 7)
	var most int32
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
				most = max(most, bulkInUse.Load())
			}
		}
	})
	var group sync.WaitGroup
	for range maxBulk + 2 {
		group.Go(func() {
			c := w.dialTransparent(to)
			defer c.Close()
			c.SetDeadline(time.Now().Add(2 * time.Minute))
			sent := make(chan error, 1)
			go func() {
				_, err := io.Copy(c, stream(1, size))
				c.(*net.TCPConn).CloseWrite()
				sent <- err
			}()
			if err := errors.Join(same(c, stream(2, size)), <-sent); err != nil {
				t.Error("down:", err)
			}
		})
	}
	group.Wait()
	close(done)
	watch.Wait()
	if most == 0 || most > maxBulk {
		t.Errorf("%d connections had threads of their own", most)
	}
	waitFor(t, "connections end", func() bool { return w.g.Stats().Active == 0 })
	if n := bulkInUse.Load(); n != 0 {
		t.Errorf("%d still count as bulk", n)
	}
	if s := w.g.Stats(); s.BytesIn != (maxBulk+2)*size || s.BytesOut != (maxBulk+2)*size {
		t.Errorf("%d in, %d out", s.BytesIn, s.BytesOut)
	}
	waitFor(t, "descriptors are closed", func() bool { return descriptors(t) <= before })
}

// TestBulkEnds: a bulk connection that new rules deny is reset at both ends, at
// whatever it is, and so is one whose peer goes; an end of file is none of these.
func TestBulkEnds(t *testing.T) {
	for _, test := range []struct {
		name  string
		stall bool                             // the client does not read, or nothing comes
		end   func(*world, net.Conn, net.Conn) // client, server
	}{
		{"reload while it moves", false, func(w *world, _, _ net.Conn) { w.g.Reload(allow("b.example")) }},
		{"reload while the client does not read", true, func(w *world, _, _ net.Conn) { w.g.Reload(allow("b.example")) }},
		{"the server resets", false, func(_ *world, _, s net.Conn) { s.(*net.TCPConn).SetLinger(0); s.Close() }},
		{"the client resets", false, func(_ *world, c, _ net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, allow("a.example"))
			server := make(chan net.Conn, 1)
			failed := make(chan error, 1)
			w.host("a.example", "93.184.216.34", 7, func(c net.Conn) {
				server <- c
				b := make([]byte, 64<<10)
				for {
					c.SetWriteDeadline(time.Now().Add(20 * time.Second))
					if _, err := c.Write(b); err != nil {
						failed <- err
						return
					}
				}
			})
			before := descriptors(t)
			c := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 7))
			defer c.Close()
			c.Write([]byte{0})
			s := <-server
			b := make([]byte, 64<<10)
			for bulkInUse.Load() == 0 {
				if _, err := c.Read(b); err != nil {
					t.Fatal(err)
				}
			}
			if test.stall {
				time.Sleep(50 * time.Millisecond) // until every buffer on the way is full
			}
			test.end(w, c, s)
			var err error
			for err == nil {
				_, err = c.Read(b)
			}
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("the client sees: %v", err)
			}
			if err := <-failed; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("the server sees: %v", err)
			}
			waitFor(t, "the connection ends", func() bool { return w.g.Stats().Active == 0 && bulkInUse.Load() == 0 })
			c.Close()
			waitFor(t, "descriptors are closed", func() bool { return descriptors(t) <= before })
		})
	}
}

// TestBulkUpgrade: a bulk connection that began as a request of HTTP, and is
// denied while nothing moves, ends by a reset too: an end of file would say that
// the answer is whole.
func TestBulkUpgrade(t *testing.T) {
	const size = 4 * bulkWindow
	w := newWorld(t, allow("a.example"))
	w.host("a.example", "93.184.216.34", 7, func(c net.Conn) {
		r := bufio.NewReader(c)
		for line := ""; line != "\r\n"; {
			var err error
			if line, err = r.ReadString('\n'); err != nil {
				return
			}
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		io.Copy(c, stream(3, size))
		r.ReadByte()
	})
	c := w.dialProxy()
	defer c.Close()
	io.WriteString(c, "GET http://a.example:7/ HTTP/1.1\r\nHost: a.example:7\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(c)
	for line := ""; line != "\r\n"; {
		var err error
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := same(io.LimitReader(r, size), stream(3, size)); err != nil {
		t.Fatal(err)
	}
	if bulkInUse.Load() == 0 {
		t.Fatal("the connection is not bulk")
	}
	time.Sleep(50 * time.Millisecond) // nothing moves
	if err := w.g.Reload(allow("b.example")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees: %v", err)
	}
}
