package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
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

// sayUntilBulk sends bytes that are no text until a connection is bulk.
func sayUntilBulk(t *testing.T, c net.Conn) {
	t.Helper()
	b := bytes.Repeat([]byte{1}, 64<<10)
	for end := time.Now().Add(15 * time.Second); bulkInUse.Load() == 0; {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("the connection is not bulk")
		}
	}
}

// TestBulkRaw: a connection that becomes bulk before the server has answered is held to
// what it began with: the client may not go on in HTTP, and the server may not answer in
// HTTP or TLS (E23). Once the server has answered in something else, anything passes.
func TestBulkRaw(t *testing.T) {
	const request = " / HTTP/1.1\r\nHost: denied.example\r\n\r\n"
	w := newWorld(t, allow("a.example"))
	to := netip.AddrPortFrom(w.number("a.example"), 7)
	dial := func() net.Conn {
		waitFor(t, "no connection is bulk", func() bool { return bulkInUse.Load() == 0 })
		return w.dialTransparent(to)
	}
	denials := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := 0
		for _, r := range w.records {
			if r.Verdict == Deny {
				n++
			}
		}
		return n
	}

	t.Run("a request", func(t *testing.T) {
		list := fleet(t)
		i := slices.IndexFunc(list, func(s *real) bool { return s.name == "javase.example" })
		if i < 0 {
			t.Skip("no java in this machine")
		}
		java := list[i]
		w.leads("a.example", "93.184.216.34", 7, java.plain)
		for _, parts := range [][]string{{request}, {request[:6], request[6:]}} {
			before := denials()
			c := dial()
			sayUntilBulk(t, c)
			for _, p := range parts {
				io.WriteString(c, p)
				time.Sleep(50 * time.Millisecond)
			}
			c.(*net.TCPConn).CloseWrite()
			if b, err := io.ReadAll(c); len(b) > 0 {
				t.Errorf("%q: the client got %q, %v", parts, b, err)
			}
			waitFor(t, "a denial is recorded", func() bool { return denials() > before })
			c.Close()
		}
		if n := java.reached(t); n > 0 {
			t.Errorf("the server was asked for the denied name %d times", n)
		}
		// The control: without the gateway.
		c, err := net.Dial("tcp", java.plain)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		c.Write(bytes.Repeat([]byte{1}, 2*bulkWindow))
		io.WriteString(c, request)
		b := make([]byte, 12)
		if _, err := io.ReadFull(c, b); string(b) != "HTTP/1.1 200" || java.reached(t) != 1 {
			t.Errorf("control: %q, %v; the server was asked for the denied name %d times", b, err, java.reached(t))
		}
	})

	for _, test := range []struct {
		what, answer string
		passes       bool
	}{
		{"answered in HTTP", "HTTP/1.1 200 OK\r\n", false},
		{"answered in TLS", "\x16\x03\x03\x00\x40\x02\x00\x00\x3c", false},
		{"answered in something else", "\x04 is not HTTP/", true},
	} {
		t.Run(test.what, func(t *testing.T) {
			release, heard := make(chan bool), make(chan string, 1)
			w.host("a.example", "93.184.216.34", 7, func(s net.Conn) {
				go func() {
					<-release
					io.WriteString(s, test.answer)
				}()
				b := make([]byte, 1<<20)
				for {
					n, err := s.Read(b)
					if i := bytes.IndexByte(b[:n], request[0]); i >= 0 {
						rest, _ := io.ReadAll(s)
						heard <- string(b[i:n]) + string(rest)
					}
					if err != nil {
						return
					}
				}
			})
			before := denials()
			c := dial()
			defer c.Close()
			sayUntilBulk(t, c)
			close(release)
			b := make([]byte, len(test.answer))
			n, err := io.ReadFull(c, b)
			if !test.passes {
				if n > 0 || err == nil {
					t.Errorf("the client got %q, %v", b[:n], err)
				}
				waitFor(t, "a denial is recorded", func() bool { return denials() > before })
				return
			}
			if string(b) != test.answer {
				t.Fatalf("the client got %q, %v", b[:n], err)
			}
			io.WriteString(c, request)
			c.(*net.TCPConn).CloseWrite()
			if got := <-heard; got != request {
				t.Errorf("the server heard %q", got)
			}
			if n := denials(); n != before {
				t.Errorf("%d denials", n-before)
			}
		})
	}
}

// TestBulkHTTP: a connection that carries HTTP is never bulk, however much moves: each of
// its requests is checked.
func TestBulkHTTP(t *testing.T) {
	const size = 3 * bulkWindow
	var mu sync.Mutex
	var hosts []string
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		hosts = append(hosts, r.Host)
		mu.Unlock()
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", strconv.Itoa(size))
		io.Copy(w, stream(4, size))
	})}
	l := listen(t)
	go server.Serve(l)
	defer server.Close()
	w := newWorld(t, allow("a.example", "http://b.example:8081"))
	asked := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(hosts)
	}
	for _, host := range []string{"a.example:80", "a.example:8080", "b.example:8081"} {
		name, port, _ := strings.Cut(host, ":")
		n, _ := strconv.Atoi(port)
		w.leads(name, "93.184.216.34", uint16(n), l.Addr().String())
		for _, route := range []string{"transparent", "CONNECT"} {
			c := net.Conn(nil)
			if route == "CONNECT" {
				c = w.openConnect(host)
			} else {
				c = w.dialTransparent(netip.AddrPortFrom(w.number(name), uint16(n)))
			}
			r := bufio.NewReader(c)
			for _, body := range []int{0, 0, size} {
				before := len(asked())
				fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", host, body)
				go io.Copy(c, stream(5, int64(body)))
				a, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(host, route, err)
				}
				if err := same(a.Body, stream(4, size)); err != nil {
					t.Error(host, route, err)
				}
				if n := bulkInUse.Load(); n != 0 || len(asked()) != before+1 {
					t.Errorf("%s, %s: %d bulk connections, asked for %q", host, route, n, asked())
				}
			}
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n")
			if a, err := http.ReadResponse(r, nil); err != nil || a.StatusCode != 403 {
				t.Errorf("%s, %s: %v, %v", host, route, a, err)
			}
			c.Close()
		}
	}
	if hosts := asked(); slices.Contains(hosts, denied) || len(hosts) != 3*2*3 {
		t.Errorf("the server was asked for %q", hosts)
	}
}
