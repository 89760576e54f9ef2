package egress

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestProxyHeader: a server that lets its clients say by the PROXY protocol for whom they
// speak takes TLS and HTTP after that; nothing reaches it for a name that is denied (E23,
// E24).
func TestProxyHeader(t *testing.T) {
	w := newPatientWorld(t, allow("a.example:8080"), 300*time.Millisecond)
	var mu sync.Mutex
	var hosts []string
	w.host("a.example", "93.184.216.34", 8080, func(c net.Conn) {
		r := bufio.NewReader(c)
		if b, err := r.Peek(16); err == nil && string(b[:12]) == proxyHeader {
			r.Discard(16 + int(b[14])<<8 + int(b[15]))
		}
		q, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		mu.Lock()
		hosts = append(hosts, q.Host)
		mu.Unlock()
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	const header, request = proxyHeader + "\x20\x00\x00\x00", "GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n"
	to := netip.AddrPortFrom(w.number("a.example"), 8080)
	for _, parts := range [][]string{{header + request}, {header, request}, {header[:4], header[4:] + request}, {header[:7], header[7:], request}} {
		c := w.dialTransparent(to)
		says(parts...)(c, "a.example")
		c.Close()
	}
	c := w.dialTransparent(to) // the neighbour
	says(strings.Replace(request, "denied", "a", 1))(c, "a.example")
	c.Close()
	mu.Lock()
	if len(hosts) != 1 || hosts[0] != "a.example:8080" {
		t.Errorf("the server was asked for %q", hosts)
	}
	mu.Unlock()
	// The control: without the gateway.
	c, err := net.Dial("tcp", w.servers[netip.MustParseAddrPort("93.184.216.34:8080")])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(c, header+request)
	if b, err := io.ReadAll(io.LimitReader(c, 12)); string(b) != "HTTP/1.1 200" {
		t.Errorf("control: %q, %v", b, err)
	}
}

// TestRaw: what is no text and no TLS is no HTTP either, for as long as the server has not
// answered; and a server that answers in HTTP or TLS has taken it for that.
func TestRaw(t *testing.T) {
	for _, c := range []struct {
		what    string
		say     []string // by the client, each after a while
		hear    string   // of the server: all that may reach it
		answer  string   // of the server, once it has heard
		answers bool     // the client gets it
	}{
		{"bytes", []string{"\x01\x02", "\x03"}, "\x01\x02\x03", "\x04", true},
		{"a word", []string{"PING\r\n"}, "PING\r\n", "+PONG\r\n", true},
		{"HTTP within words of Redis", []string{"*3\r\n", "$14\r\nGET / HTTP/1.1\r\n"}, "*3\r\n$14\r\nGET / HTTP/1.1\r\n", "+OK\r\n", true},
		{"bytes, and HTTP", []string{"\x01", " / ht", "tp/1.1\r\n"}, "\x01 / ht", "", false},
		{"bytes, and a host", []string{"\x01 / X\r\nA: B\r\nHo", "st", ": b.example\r\n"}, "\x01 / X\r\nA: B\r\nHost", "", false},
		{"bytes, and a host after much space", []string{"\x01 / X\r\n" + strings.Repeat(" ", 100), "Host:"}, "\x01 / X\r\n" + strings.Repeat(" ", 100), "", false},
		{"bytes, and a host before much space", []string{"\x01 / X\r\nHost" + strings.Repeat(" ", 100), ":"}, "\x01 / X\r\nHost" + strings.Repeat(" ", 100), "", false},
		{"bytes, and a host that is no field", []string{"\x01\nlocalhost:9092\na host: ", "host:1"}, "\x01\nlocalhost:9092\na host: host:1", "\x04", true},
		{"bytes, answered in HTTP", []string{"\x01 / \n"}, "\x01 / \n", "HTTP/1.1 200 OK\r\n", false},
		{"a word, answered in HTTP", []string{"GET\r\n"}, "GET\r\n", "HTTP/1.1 400 Bad Request\r\n", false},
		{"bytes, answered in TLS", []string{"\x01"}, "\x01", "\x16\x03\x03\x00\x40\x02\x00\x00\x3c", false},
		{"bytes, answered by an alert of TLS", []string{"\x01"}, "\x01", "\x15\x03\x01\x00\x02\x02\x28", false},
		{"bytes, answered by what is like TLS", []string{"\x01"}, "\x01", "\x16\x03\x00\x00\x07\x00\x00\x00", true},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t, allow("a.example:7000"))
			heard, answer := make(chan string, 1), make(chan bool)
			w.host("a.example", "93.184.216.34", 7000, func(s net.Conn) {
				s.SetReadDeadline(time.Now().Add(20 * time.Second))
				var all []byte
				b := make([]byte, 100)
				for len(all) < len(c.hear) || c.answer == "" {
					n, err := s.Read(b)
					if all = append(all, b[:n]...); err != nil {
						break
					}
				}
				heard <- string(all)
				io.WriteString(s, c.answer)
				<-answer
			})
			client := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 7000))
			defer client.Close()
			defer close(answer)
			for _, s := range c.say {
				io.WriteString(client, s)
				time.Sleep(50 * time.Millisecond)
			}
			if got := <-heard; got != c.hear {
				t.Errorf("the server heard %q", got)
			}
			b := make([]byte, len(c.answer))
			if n, err := io.ReadFull(client, b); (err == nil && n > 0) != c.answers || c.answers && string(b) != c.answer {
				t.Errorf("the client got %q, %v", b[:n], err)
			}
			if !c.answers {
				w.record(func(r Record) bool { return r.Verdict == Deny && strings.HasPrefix(r.Reason, "a.example:7000: ") })
			}
		})
	}
}

// TestSaysHTTP: the search finds what a plain one finds, in texts of what it looks for.
func TestSaysHTTP(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 200000 {
		b := make([]byte, r.IntN(24))
		for i := range b {
			b[i] = "HTTP/http//\x00\xc5\x10"[r.IntN(14)]
			if i > 0 && r.IntN(2) == 0 {
				b[i] = map[byte]byte{'H': 't', 'h': 'T', 'T': "TP"[r.IntN(2)], 't': "tp"[r.IntN(2)], 'P': '/', 'p': '/'}[b[i-1]]
			}
		}
		want := strings.Contains(strings.ToLower(string(b)), "http/")
		if want {
			found++
		}
		if saysHTTP(b) != want {
			t.Fatalf("%q: %v", b, !want)
		}
	}
	if found < 1000 || found > 199000 {
		t.Errorf("%d of the texts have it", found)
	}
}

// TestHostOwn: what a local route leads to is the host's own, an interface's address or not.
func TestHostOwn(t *testing.T) {
	g, err := New(allow("*"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true, "203.0.113.9": false} {
		if got := g.isOwn(mustAddr(s)); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
}

// TestNarrow: the gateway's sockets hold little of what nobody reads, however fast it came
// before.
func TestNarrow(t *testing.T) {
	const clients, fast = maxWide + 6, 12 << 20
	w := newWorld(t, allow("a.example:7000"))
	done := make(chan bool)
	w.host("a.example", "93.184.216.34", 7000, func(s net.Conn) {
		s.(*net.TCPConn).SetReadBuffer(narrowBuffer)
		io.CopyN(io.Discard, s, fast)
		s.Write([]byte{1})
		<-done
	})
	defer close(done)
	zeros := make([]byte, 256<<10)
	for i := range clients {
		c := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 7000)).(*net.TCPConn)
		defer c.Close()
		c.SetWriteBuffer(narrowBuffer)
		for range fast / len(zeros) {
			if _, err := c.Write(zeros); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if i < clients-4 {
			continue // the first may hold more towards the server
		}
		// Nobody reads from now on. What can be written is in the buffers.
		left := 0
		for c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); ; {
			n, err := c.Write(zeros)
			if left += n; err != nil {
				break
			}
		}
		// Six of the kernel's, twice as large as they are set, and what copies.
		if most := 6*2*narrowBuffer + bulkBuffer + largeBuffer; left > most {
			t.Errorf("client %d: %d bytes wait, %d may", i, left, most)
		}
	}
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	wide := 0
	for c := range w.g.active {
		fd := duplicate(c.client.conn)
		if b := c.client.bulk.Load(); b != nil {
			fd = b.fd
		}
		n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		if n > 2*narrowBuffer {
			wide++
		}
		if err != nil {
			t.Error(err)
		}
		if c.client.bulk.Load() == nil {
			unix.Close(fd)
		}
	}
	if wide > maxWide {
		t.Errorf("%d clients' sockets are wide", wide)
	}
}

// TestOwnByRoute: routes are asked anew each time, by one socket. What is left in it from
// another question is no answer.
func TestOwnByRoute(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs a network namespace of its own")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		ip := func(args string) {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v %s", args, err, out)
			}
		}
		r := new(routes)
		defer r.close()
		addr := mustAddr("203.0.113.9")
		want := func(want bool) {
			t.Helper()
			if own, err := r.own(addr); own != want || err != nil {
				t.Errorf("own: %v, %v", own, err)
			}
		}
		ip("link set lo up")
		want(false)
		socket := r.socket
		ip("route add local 203.0.113.0/24 dev lo")
		want(true)
		ip("route del local 203.0.113.0/24 dev lo")
		want(false)
		if r.socket != socket {
			t.Error("each question has a socket")
		}
		ip("route add local 203.0.113.0/24 dev lo")
		if _, err := unix.Write(int(socket.Fd()), routeTo(mustAddr("198.51.100.9"), 1)); err != nil {
			t.Error(err)
		}
		if own, err := r.own(addr); err == nil {
			t.Errorf("the answer to another question: %v", own)
		}
		want(true)
		r.close()
		if own, err := r.own(addr); err == nil {
			t.Errorf("after the end: %v", own)
		}
	}()
	<-done
}
