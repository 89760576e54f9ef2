package egress

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// A world is a gateway between a sandbox and a network, both made of loopback
// sockets: names resolve as the test says, and each address of the network leads
// to a server of the test.
type world struct {
	t     testing.TB
	g     *Gateway
	proxy string            // address of the proxy listener
	dns   map[string]string // addresses of the DNS listeners, "udp" and "tcp"

	transparent *handed // listener that takes connections from dialTransparent

	stop func() // ends the gateway, which has to leave nothing; the test's end does, too

	mu      sync.Mutex
	names   map[string][]string // what the host's resolver knows
	servers map[netip.AddrPort]string
	dialled []netip.AddrPort
	asked   []string
	records []Record
}

// handed is a listener that is handed its connections.
type handed struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}
func (h *handed) Close() error   { h.once.Do(func() { close(h.done) }); return nil }
func (h *handed) Addr() net.Addr { return &net.TCPAddr{} }

// dialledAs is an accepted connection that was made to another address, as AnyIP
// routes it.
type dialledAs struct {
	*net.TCPConn
	local netip.AddrPort
}

func (d dialledAs) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(d.local) }

func allow(rules ...string) policy.Egress { return egressPolicy(rules, nil) }

func egressPolicy(allow, deny []string) policy.Egress {
	p := policy.Egress{Mode: policy.EgressProxy}
	for i, list := range [...][]string{allow, deny} {
		for _, s := range list {
			r, err := policy.ParseEgressRule(s)
			if err != nil {
				panic(err)
			}
			if i == 0 {
				p.Allow = append(p.Allow, r)
			} else {
				p.Deny = append(p.Deny, r)
			}
		}
	}
	return p
}

func newWorld(t testing.TB, p policy.Egress, change ...func(*Options)) *world {
	t.Helper()
	return newPatientWorld(t, p, handshakeTimeout, change...)
}

func newPatientWorld(t testing.TB, p policy.Egress, patience time.Duration, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, names: map[string][]string{}, servers: map[netip.AddrPort]string{}, transparent: &handed{conns: make(chan net.Conn), done: make(chan struct{})}}
	o := Options{
		Resolve: func(ctx context.Context, name string) ([]netip.Addr, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = append(w.asked, name)
			var out []netip.Addr
			for _, s := range w.names[name] {
				out = append(out, netip.MustParseAddr(s))
			}
			if len(out) == 0 {
				return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
			}
			return out, nil
		},
		Dial: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			w.mu.Lock()
			w.dialled = append(w.dialled, addr)
			to := w.servers[addr]
			w.mu.Unlock()
			if to == "" {
				return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", to)
		},
		Own: func(a netip.Addr) (bool, error) {
			return slices.Contains([]string{"127.0.0.1", "5.5.5.5", "10.9.8.7"}, a.String()), nil
		},
		Record: func(r Record) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.records = append(w.records, r)
		},
	}
	for _, f := range change {
		f(&o)
	}
	g, err := New(p, o)
	if err != nil {
		t.Fatal(err)
	}
	g.patience = patience
	w.g = g
	proxy := listen(t)
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stream := listen(t)
	w.dns = map[string]string{"udp": udp.LocalAddr().String(), "tcp": stream.Addr().String()}
	w.proxy = proxy.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- g.Serve(ctx, Listeners{DNS: []net.PacketConn{udp}, DNSStream: []net.Listener{stream}, Transparent: []net.Listener{w.transparent}, Proxy: []net.Listener{proxy}})
	}()
	for started := false; !started; time.Sleep(50 * time.Microsecond) {
		g.mu.Lock()
		started = g.ctx != nil
		g.mu.Unlock()
	}
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Serve does not end")
		}
		if n := g.Stats().Active; n != 0 {
			t.Errorf("%d connections left", n)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// host makes a name resolve, and lets an address and port lead to a server.
func (w *world) host(name, addr string, port uint16, serve func(net.Conn)) {
	w.t.Helper()
	l := listen(w.t)
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	w.leads(name, addr, port, l.Addr().String())
}

// leads makes a name resolve, and lets an address and port lead to a server that runs.
func (w *world) leads(name, addr string, port uint16, server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := netip.MustParseAddr(addr)
	if name != "" && !slices.Contains(w.names[name], addr) {
		w.names[name] = append(w.names[name], addr)
	}
	w.servers[netip.AddrPortFrom(a, port)] = server
}

func (w *world) taken() (dialled []netip.AddrPort, asked []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dialled), slices.Clone(w.asked)
}

// record waits for a record that fits.
func (w *world) record(fits func(Record) bool) Record {
	w.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		w.mu.Lock()
		i := slices.IndexFunc(w.records, fits)
		var r Record
		if i >= 0 {
			r = w.records[i]
		}
		w.mu.Unlock()
		if i >= 0 {
			return r
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t.Errorf("no such record among %+v", w.records)
	return Record{}
}

// echo answers what it gets, and ends when the other side has.
func echo(c net.Conn) { io.Copy(c, c); c.(*net.TCPConn).CloseWrite() }

// errReset is what a client sees of a connection that was refused.
var errReset = errors.New("reset")

// dialTransparent connects to an address as a program in the sandbox does.
func (w *world) dialTransparent(to netip.AddrPort) net.Conn {
	w.t.Helper()
	l := listen(w.t)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.transparent.conns <- dialledAs{s.(*net.TCPConn), to}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// number is the address that stands for a name.
func (w *world) number(name string) netip.Addr {
	n, ok := w.g.names.number(name)
	if !ok {
		w.t.Fatal("no number for " + name)
	}
	return netip.AddrFrom4(nameAddr4(n))
}

func (w *world) dialProxy() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.proxy)
	if err != nil { // reset already: one too many
		near, _ := net.Pipe()
		near.Close()
		return near
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// bufferedConn is a connection some of which was read ahead.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (b bufferedConn) Read(p []byte) (int, error) { return b.r.Read(p) }
func (b bufferedConn) CloseWrite() error          { return b.Conn.(*net.TCPConn).CloseWrite() }

// dialConnect asks for a tunnel by CONNECT.
func (w *world) dialConnect(hostport string) (net.Conn, string) {
	c := w.dialProxy()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", hostport, hostport)
	r := bufio.NewReader(c)
	line, _ := r.ReadString('\n')
	if !strings.Contains(line, " 200 ") {
		rest, _ := io.ReadAll(r)
		c.Close()
		return nil, line + string(rest)
	}
	for {
		l, err := r.ReadString('\n')
		if err != nil || l == "\r\n" {
			break
		}
	}
	return bufferedConn{c, r}, line
}

// dialSOCKS5 asks for a tunnel to a name or an address; the code is the reply's.
func (w *world) dialSOCKS5(host string, port uint16) (net.Conn, byte) {
	c := w.dialProxy()
	c.Write([]byte{5, 1, 0})
	var b [2]byte
	io.ReadFull(c, b[:])
	req := []byte{5, 1, 0}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		req = append(append(req, 1), a.AsSlice()...)
	} else if err == nil {
		req = append(append(req, 4), a.AsSlice()...)
	} else {
		req = append(append(req, 3, byte(len(host))), host...)
	}
	c.Write(binary.BigEndian.AppendUint16(req, port))
	var reply [10]byte
	if _, err := io.ReadFull(c, reply[:]); err != nil {
		c.Close()
		return nil, 0xff
	}
	if reply[1] != 0 {
		c.Close()
		return nil, reply[1]
	}
	return c, 0
}

// dialSOCKS4 asks for a tunnel by SOCKS4a, or SOCKS4 for an address.
func (w *world) dialSOCKS4(host string, port uint16) (net.Conn, byte) {
	c := w.dialProxy()
	req := binary.BigEndian.AppendUint16([]byte{4, 1}, port)
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		req = append(append(req, a.AsSlice()...), 0)
	} else {
		req = append(append(append(req, 0, 0, 0, 1, 0), host...), 0)
	}
	c.Write(req)
	var reply [8]byte
	if _, err := io.ReadFull(c, reply[:]); err != nil || reply[1] != 90 {
		c.Close()
		return nil, reply[1]
	}
	return c, 0
}

// openConnect, openSOCKS5 and openSOCKS4 are for tunnels that have to come about.
func (w *world) openConnect(hostport string) net.Conn {
	w.t.Helper()
	c, answer := w.dialConnect(hostport)
	return w.opened(c, answer)
}

func (w *world) openSOCKS5(host string, port uint16) net.Conn {
	w.t.Helper()
	c, code := w.dialSOCKS5(host, port)
	return w.opened(c, code)
}

func (w *world) openSOCKS4(host string, port uint16) net.Conn {
	w.t.Helper()
	c, code := w.dialSOCKS4(host, port)
	return w.opened(c, code)
}

func (w *world) opened(c net.Conn, answer any) net.Conn {
	w.t.Helper()
	if c == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t.Fatalf("refused: %v; %+v", answer, w.records)
	}
	return c
}

// talk says something to an echo server and reports whether it came back.
func talk(c net.Conn, say string) error {
	if _, err := io.WriteString(c, say); err != nil {
		return errors.Join(errReset, err)
	}
	got := make([]byte, len(say))
	if _, err := io.ReadFull(c, got); err != nil {
		return errors.Join(errReset, err)
	}
	if string(got) != say {
		return fmt.Errorf("got %q, want %q", got, say)
	}
	return nil
}
