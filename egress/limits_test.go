package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// TestSameDecision: for random rules and targets, every route comes to the same
// verdict by the same rule, for the same reason (E06).
func TestSameDecision(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	hosts := []string{"a.example", "b.a.example", "*.example", "*.a.example", "*", "93.184.216.34", "93.184.0.0/16", "10.0.0.0/8", "0.0.0.0/0", "example", "127.0.0.1", "2606:4700::/32"}
	ports := []string{"", ":7", ":9", ":7,9", ":1-8"}
	pick := func(list []string) string { return list[rng.IntN(len(list))] }
	rule := func() string {
		h, p := pick(hosts), pick(ports)
		if strings.Contains(h, "::") && p != "" {
			h = "[" + h + "]"
		}
		return h + p
	}
	for round := range 60 {
		var allowed, denied []string
		for range rng.IntN(4) {
			allowed = append(allowed, rule())
		}
		for range rng.IntN(2) {
			denied = append(denied, rule())
		}
		t.Run(fmt.Sprint(round, allowed, denied), func(t *testing.T) {
			w := newWorld(t, egressPolicy(allowed, denied))
			for name, addr := range map[string]string{"a.example": "93.184.216.34", "b.a.example": "10.1.2.3", "c.example": "127.0.0.1", "d.example": "93.185.0.1", "example": "2606:4700::1"} {
				w.host(name, addr, 7, echo)
			}
			for _, host := range []string{"a.example", "b.a.example", "c.example", "d.example", "example", "missing.example", "a.example.evil", "93.184.216.34", "10.1.2.3", "127.0.0.1", "2606:4700::1"} {
				to, literal := netip.ParseAddr(host)
				hostport := net.JoinHostPort(host, "7")
				verdicts := map[Route]string{}
				for route, dial := range map[Route]func() net.Conn{
					RouteTransparent: func() net.Conn {
						if literal != nil {
							to = w.number(host)
						}
						return w.dialTransparent(netip.AddrPortFrom(to, 7))
					},
					RouteConnect: func() net.Conn { c, _ := w.dialConnect(hostport); return c },
					RouteSOCKS:   func() net.Conn { c, _ := w.dialSOCKS5(host, 7); return c },
					RouteHTTP: func() net.Conn {
						c := w.dialProxy()
						fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", hostport, hostport)
						r := bufio.NewReader(c)
						resp, err := http.ReadResponse(r, nil)
						if err != nil {
							t.Fatal(err)
						}
						// The echo server answers with no answer of HTTP.
						if resp.StatusCode == 502 && resp.Header.Get("Proxy-Status") != "" && !strings.Contains(resp.Header.Get("Proxy-Status"), "dns_error") {
							return c
						}
						c.Close()
						return nil
					},
				} {
					w.mu.Lock()
					w.records = nil
					w.mu.Unlock()
					c := dial()
					ok := c != nil
					if c != nil && route != RouteHTTP {
						ok = talk(c, "\x00hello") == nil
					}
					if c != nil {
						c.Close()
					}
					verdicts[route] = fmt.Sprint(ok)
					if !ok {
						r := w.record(func(r Record) bool { return r.Verdict != Allow })
						verdicts[route] = fmt.Sprint(r.Verdict, r.Rule, r.Reason, r.Grant)
					} else if route != RouteHTTP {
						r := w.record(func(r Record) bool { return r.Verdict == Allow })
						verdicts[route] = fmt.Sprint(r.Verdict, r.Rule)
					}
				}
				if verdicts[RouteHTTP] == "true" && strings.HasPrefix(verdicts[RouteConnect], "allow") {
					delete(verdicts, RouteHTTP) // recorded as failed: an echo is no answer of HTTP
				}
				for _, v := range verdicts {
					if v != verdicts[RouteConnect] {
						t.Errorf("%s: %v", host, verdicts)
						break
					}
				}
				// What may connect may be looked up.
				if literal != nil && strings.HasPrefix(verdicts[RouteConnect], "allow") {
					if _, err := w.lookupBy("udp").LookupNetIP(context.Background(), "ip4", host+"."); err != nil {
						t.Errorf("%s connects and has no address: %v", host, err)
					}
				}
			}
		})
	}
}

// TestGuardDials: the address that was checked is the one dialled, once for each
// connection (E09), and one that is not public is not dialled at all (E10).
func TestGuardDials(t *testing.T) {
	turn := 0
	w := newWorld(t, allow("*.example"), func(o *Options) {
		o.Resolve = func(_ context.Context, name string) ([]netip.Addr, error) {
			turn++
			if name == "mixed.example" {
				return []netip.Addr{mustAddr("127.0.0.1"), mustAddr("::ffff:10.0.0.1"), mustAddr("93.184.216.34"), mustAddr("fe80::1")}, nil
			}
			if turn%2 == 1 {
				return []netip.Addr{mustAddr("93.184.216.34")}, nil
			}
			return []netip.Addr{mustAddr("169.254.169.254")}, nil
		}
	})
	w.host("", "93.184.216.34", 7, echo)
	w.host("", "169.254.169.254", 7, echo)
	w.host("", "127.0.0.1", 7, echo)
	for i := range 4 {
		w.g.resolver.mu.Lock()
		w.g.resolver.cache = nil // as if its time were over: the name rebinds
		w.g.resolver.mu.Unlock()
		c, _ := w.dialSOCKS5("rebind.example", 7)
		if (c != nil) != (i%2 == 0) {
			t.Errorf("%d: %v", i, c)
		}
		if c != nil {
			c.Close()
		}
	}
	r := w.record(func(r Record) bool { return r.Verdict == Deny })
	if !strings.Contains(r.Reason, "cloud metadata") || r.Grant != "" {
		t.Errorf("%+v", r)
	}
	c, _ := w.dialSOCKS5("mixed.example", 7)
	if c == nil {
		t.Fatal("the public address of a name is not used")
	}
	c.Close()
	dialled, _ := w.taken()
	for _, a := range dialled {
		if a.Addr().String() != "93.184.216.34" {
			t.Errorf("dialled %s", a)
		}
	}
	if len(dialled) != 3 {
		t.Errorf("dialled %v", dialled)
	}
}

func TestRates(t *testing.T) {
	var r rates
	now := time.Unix(1e9, 0)
	for i := range 100 {
		if r.take("a.example", 60, now) != (i < 60) {
			t.Fatal(i)
		}
	}
	if !r.take("b.example", 60, now) {
		t.Error("hosts share a budget")
	}
	now = now.Add(10 * time.Second)
	for i := range 20 {
		if r.take("a.example", 60, now) != (i < 10) {
			t.Fatal(i)
		}
	}
	for i := range 2 * maxRates {
		r.take(fmt.Sprint(i), 60, now)
	}
	if len(r.limits) > maxRates {
		t.Error(len(r.limits))
	}
	if r.take("another", 60, now) {
		t.Error("a host too many has a budget")
	}
	if !r.take("another", 60, now.Add(time.Hour)) {
		t.Error("what is full again is not forgotten")
	}
}

// TestRateOfRoutes: requests of one connection and of many count alike (NET-6).
func TestRateOfRoutes(t *testing.T) {
	p := allow("*")
	p.RequestsPerMinute = 5
	w := newWorld(t, p)
	for i, n := range []string{"a.example", "b.example", "c.example"} {
		w.web(n, fmt.Sprint("93.184.216.", i+1), 80, func(rw http.ResponseWriter, r *http.Request) {})
		w.host(n, fmt.Sprint("93.184.216.", i+1), 7, echo)
	}
	c := w.client("")
	for i := range 8 {
		resp, err := c.Get("http://a.example/")
		if err != nil || (resp.StatusCode == 200) != (i < 5) || i >= 5 && (resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "") {
			t.Fatal(i, resp, err)
		}
		resp.Body.Close()
	}
	for i := range 8 {
		nc, code := w.dialSOCKS5("b.example", 7)
		if (code == 0) != (i < 5) {
			t.Fatal(i, code)
		}
		if nc != nil {
			nc.Close()
		}
	}
	nc := w.dialTransparent(netip.AddrPortFrom(w.number("c.example"), 80))
	defer nc.Close()
	r := bufio.NewReader(nc)
	for i := range 6 {
		io.WriteString(nc, "GET / HTTP/1.1\r\nHost: c.example\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil || (resp.StatusCode == 200) != (i < 5) {
			t.Fatal(i, resp, err)
		}
		io.Copy(io.Discard, resp.Body)
	}
	if s := w.g.Stats(); s.Limited != 3+3+1 {
		t.Errorf("%+v", s)
	}
}

// TestConnectionCap: connections beyond the bound are closed at once, and the
// next after one has ended is served (NET-6).
func TestConnectionCap(t *testing.T) {
	w := newWorld(t, allow("a.example"), func(o *Options) { o.Connections = 4 })
	w.host("a.example", "93.184.216.34", 7, echo)
	var open []net.Conn
	for range 4 {
		c, _ := w.dialSOCKS5("a.example", 7)
		if c == nil {
			t.Fatal("refused")
		}
		defer c.Close()
		open = append(open, c)
	}
	for range 3 {
		if c, _ := w.dialSOCKS5("a.example", 7); c != nil {
			t.Error("one too many")
		}
	}
	w.record(func(r Record) bool { return r.Rule == byLimit && r.Reason == "more than 4 connections at one time" })
	if s := w.g.Stats(); s.Limited != 3 {
		t.Errorf("%+v", s)
	}
	open[0].Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if c, _ := w.dialSOCKS5("a.example", 7); c != nil {
			c.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal("the place of a connection that ended is not given to another")
		}
	}
	if err := talk(open[1], "still-there"); err != nil {
		t.Error(err)
	}
}

// TestReload: new rules hold for new connections and for those that run; broken
// ones change nothing (PRO-4).
func TestReload(t *testing.T) {
	w := newWorld(t, allow("a.example", "b.example"))
	w.host("a.example", "93.184.216.34", 7, echo)
	w.host("b.example", "93.184.216.35", 7, echo)
	a := w.openSOCKS5("a.example", 7)
	b := w.openSOCKS5("b.example", 7)
	defer a.Close()
	defer b.Close()
	if err := errors.Join(talk(a, "\x00"), talk(b, "\x00")); err != nil {
		t.Fatal(err)
	}
	if err := w.g.Reload(policy.Egress{Mode: policy.EgressProxy, Allow: []policy.EgressRule{{Host: "127.1"}}}); err == nil {
		t.Error("a broken policy is taken")
	}
	if err := errors.Join(talk(a, "\x00"), talk(b, "\x00")); err != nil {
		t.Fatal(err)
	}
	if err := w.g.Reload(allow("b.example:7", "c.example")); err != nil {
		t.Fatal(err)
	}
	if err := talk(a, "\x00"); err == nil {
		t.Error("a connection that is denied goes on")
	}
	if err := talk(b, "\x00"); err != nil {
		t.Error(err)
	}
	if c, code := w.dialSOCKS5("a.example", 7); c != nil || code != 2 {
		t.Error(code)
	}
	r := w.record(func(r Record) bool { return r.Name == "a.example" && r.BytesIn > 0 })
	if r.Verdict != Deny || r.Rule != byDefault {
		t.Errorf("%+v", r)
	}
}

// TestReloadDial: a rule that goes while a connection is being made is asked before the
// first byte, on every route (E25).
func TestReloadDial(t *testing.T) {
	dialling, dial := make(chan bool), make(chan bool)
	w := newWorld(t, allow("a.example"), func(o *Options) {
		real := o.Dial
		o.Dial = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			dialling <- true
			<-dial
			return real(ctx, addr)
		}
	})
	got := make(chan string, 10)
	w.host("a.example", "93.184.216.34", 7, func(c net.Conn) {
		io.WriteString(c, "greeting")
		b, _ := io.ReadAll(c)
		got <- string(b)
	})
	to := netip.AddrPortFrom(w.number("a.example"), 7)
	for route, use := range map[string]func() string{
		"transparent": func() string {
			c := w.dialTransparent(to)
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Second))
			io.WriteString(c, "secret")
			b, _ := io.ReadAll(c)
			return string(b)
		},
		"connect": func() string {
			c, answer := w.dialConnect("a.example:7")
			if c == nil {
				return ""
			}
			io.WriteString(c, "secret")
			c.Close()
			return answer
		},
		"socks": func() string {
			c, _ := w.dialSOCKS5("a.example", 7)
			if c == nil {
				return ""
			}
			io.WriteString(c, "secret")
			c.Close()
			return "open"
		},
		"http": func() string {
			c := w.dialProxy()
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Second))
			io.WriteString(c, "POST http://a.example:7/ HTTP/1.1\r\nHost: a.example:7\r\nContent-Length: 6\r\n\r\nsecret")
			b, _ := io.ReadAll(c)
			if strings.HasPrefix(string(b), "HTTP/1.1 403 ") {
				return ""
			}
			return string(b)
		},
	} {
		w.g.Reload(allow("a.example"))
		answer := make(chan string, 1)
		go func() { answer <- use() }()
		<-dialling
		w.g.Reload(allow("b.example"))
		dial <- true
		if a, s := <-answer, <-got; a != "" || s != "" {
			t.Errorf("%s: the client got %q, the server %q", route, a, s)
		}
	}
	w.record(func(r Record) bool { return r.Verdict == Deny && r.Rule == byDefault && r.Name == "a.example" })
	// The control: rules that stay the same.
	w.g.Reload(allow("a.example"))
	go func() { <-dialling; dial <- true }()
	if c, _ := w.dialSOCKS5("a.example", 7); c == nil {
		t.Error("refused")
	} else {
		io.WriteString(c, "secret")
		c.Close()
		if s := <-got; s != "secret" {
			t.Errorf("the server got %q", s)
		}
	}
}

// TestMany: 10,000 connections, most of which say too little or nothing, cost
// memory within bounds, and others are served meanwhile (E19).
func TestMany(t *testing.T) {
	// Pipes take no descriptors, of which not every machine gives that many.
	w := newWorld(t, allow("a.example"), func(o *Options) {
		o.Connections = 10_001
		o.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
			near, far := net.Pipe()
			go io.Copy(far, far)
			return near, nil
		}
	})
	w.host("a.example", "93.184.216.34", 80, echo)
	piped := &handed{conns: make(chan net.Conn), done: make(chan struct{})}
	w.g.mu.Lock()
	w.g.accept(w.g.ctx, piped, w.g.proxy)
	w.g.mu.Unlock()
	dial := func(h *handed, local netip.AddrPort) net.Conn {
		near, far := net.Pipe()
		h.conns <- pipedAs{far, local}
		return near
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	to := netip.AddrPortFrom(w.number("a.example"), 80)
	var clients []net.Conn
	open := func(c net.Conn, say string) {
		c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	for range 2500 {
		open(dial(w.transparent, to), "GE")
		open(dial(piped, to), "GET http://a.example/ HTTP/1.1\r\nHost:")
		open(dial(piped, to), "\x05\x09\x00")
		open(dial(piped, to), "POST http://a.example:7/ HTTP/1.1\r\nHost: a.example:7\r\nContent-Length: 1000000\r\n\r\nstalled")
	}
	c, _ := w.dialSOCKS5("a.example", 7)
	if c == nil {
		t.Fatal("no place for one that works")
	}
	if err := talk(c, "\x00hello"); err != nil {
		t.Error(err)
	}
	c.Close()
	runtime.ReadMemStats(&after)
	// The servers' goroutines are counted too.
	used := int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)
	t.Logf("%d connections: %d MiB of heap and stacks, %d KiB each; %d goroutines", len(clients), used>>20, used>>10/int64(len(clients)), runtime.NumGoroutine())
	if used > 64<<10*int64(len(clients)) {
		t.Errorf("%d bytes for each connection", used/int64(len(clients)))
	}
	for _, c := range clients {
		c.Close()
	}
}

// TestSlow: a request that does not go on is ended, however it trickles (E19).
func TestSlow(t *testing.T) {
	w := newPatientWorld(t, allow("a.example"), 300*time.Millisecond)
	w.host("a.example", "93.184.216.34", 7, echo)
	var wg sync.WaitGroup
	for what, dial := range map[string]func() net.Conn{
		"head":  w.dialProxy,
		"socks": w.dialProxy,
		"hello": func() net.Conn { return w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 7)) },
		"line":  func() net.Conn { return w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 7)) },
	} {
		wg.Go(func() {
			c := dial()
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				io.Copy(io.Discard, c)
			}()
			io.WriteString(c, map[string]string{"head": "GET /", "socks": "\x05\x09", "hello": "\x16\x03\x01\x0f\x00\x01\x00\x00\xff", "line": "GET /"}[what])
			for range 2000 {
				select {
				case <-ended:
					return
				case <-time.After(10 * time.Millisecond):
					c.Write([]byte{9}) // a byte now and then
				}
			}
			t.Errorf("%s: goes on for ever", what)
		})
	}
	wg.Wait()
}

// TestClean: nothing that the sandbox sends gets to a log as anything but
// printable ASCII (E22).
func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain text": "plain text", "a\nb": `a\x0ab`, "\x1b[2J": `\x1b[2J`, "\u202e": `\xe2\x80\xae`, "\x7f\x00\r": `\x7f\x00\x0d`,
	} {
		if got := clean(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	if got := clean(strings.Repeat("\n", 10000)); len(got) > 410 {
		t.Error(len(got))
	}
	w := newWorld(t, allow("a.example"))
	w.raw(w.dialProxy(), "GET http://evil\x1b[31m\n.example/ HTTP/1.1\r\n\r\n")
	w.raw(w.dialProxy(), "G\x1bET http://evil/ HTTP/1.1\r\n\r\n")
	w.raw(w.dialProxy(), "GET http://a.example/ HTTP/1.1\r\nHost: \xe2\x80\xae\r\n\r\n")
	w.raw(w.dialProxy(), "\x05\x01\x00\x05\x01\x00\x03\x06a\n\x1b[2J\x00\x50")
	w.record(func(r Record) bool { return r.Route == RouteSOCKS })
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		for _, s := range []string{r.Name, r.Rule, r.Reason, r.Grant, r.Method, r.Target()} {
			if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("%q in %+v", s, r)
			}
		}
	}
}

// TestNothingLeft: no goroutine outlives Serve.
func TestNothingLeft(t *testing.T) {
	time.Sleep(10 * time.Millisecond)
	before := runtime.NumGoroutine()
	t.Run("work", func(t *testing.T) {
		w := newWorld(t, allow("*.example"))
		w.host("a.example", "93.184.216.34", 7, func(c net.Conn) { io.Copy(io.Discard, c) })
		for i := range 20 {
			c := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 7))
			defer c.Close()
			io.WriteString(c, "\x00hello")
			c = w.openConnect("a.example:7")
			defer c.Close()
			if i%2 == 0 {
				c.(interface{ CloseWrite() error }).CloseWrite()
			}
			d := w.dialProxy()
			defer d.Close()
			io.WriteString(d, "\x05")
		}
	})
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// TestAdd: a listener for a port that was asked for later.
func TestAdd(t *testing.T) {
	w := newWorld(t, allow("a.example"))
	w.host("a.example", "93.184.216.34", 7, echo)
	late := &handed{conns: make(chan net.Conn), done: make(chan struct{})}
	w.g.Add(late)
	first := w.transparent
	w.transparent = late
	c := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 7))
	defer c.Close()
	if err := talk(c, "\x00hello"); err != nil {
		t.Error(err)
	}
	w.transparent = first
}

// pipedAs is one end of a pipe that says which address was dialled.
type pipedAs struct {
	net.Conn
	local netip.AddrPort
}

func (p pipedAs) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(p.local) }

// stuck is a connection whose peer does not read.
type stuck struct{ net.Conn }

func (stuck) Write([]byte) (int, error)        { return 0, os.ErrDeadlineExceeded }
func (stuck) SetWriteDeadline(time.Time) error { return nil }

// TestStuckWriter: what was read and cannot be written within its time ends the
// connection, whatever the other direction does: the rest would be another stream.
func TestStuckWriter(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	go near.Write([]byte("some"))
	var n atomic.Int64
	var act activity
	c := &connection{}
	if err := c.pump(&side{conn: stuck{far}}, &side{conn: far}, &n, &act, time.Hour, new(direction)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}
