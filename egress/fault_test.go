package egress

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

// A faulty connection panics in one of its calls, while armed.
type faulty struct {
	*net.TCPConn
	in    string
	armed *atomic.Bool
}

func (f faulty) fault(in string) {
	if f.in == in && f.armed.Load() {
		var none []byte
		_ = none[len(in)]
	}
}
func (f faulty) Write(b []byte) (int, error) { f.fault("write"); return f.TCPConn.Write(b) }
func (f faulty) Read(b []byte) (int, error)  { f.fault("read"); return f.TCPConn.Read(b) }
func (f faulty) CloseWrite() error           { f.fault("end"); return f.TCPConn.CloseWrite() }
func (f faulty) SyscallConn() (int, error)   { return 0, io.EOF } // it is read by Read

// TestFault: a panic in what serves one connection ends that one, and is told; those
// beside it and after it are served.
func TestFault(t *testing.T) {
	for _, in := range []string{"own", "resolve", "dial", "write", "read", "end"} {
		for _, how := range []string{"transparent", "http", "socks"} {
			t.Run(in+"/"+how, func(t *testing.T) {
				var armed atomic.Bool
				injected := func(where string) {
					if in == where && armed.Load() {
						panic("injected\n" + strings.Repeat("x", 1000))
					}
				}
				w := newWorld(t, allow("a.example:7000", "b.example:7000"), func(o *Options) {
					resolve, dial, own := o.Resolve, o.Dial, o.Own
					o.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
						injected("resolve")
						return resolve(ctx, name)
					}
					o.Own = func(a netip.Addr) (bool, error) { injected("own"); return own(a) }
					o.Dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
						injected("dial")
						c, err := dial(ctx, a)
						if err != nil {
							return nil, err
						}
						if !armed.Load() {
							return c, nil // the connection beside, of which something may still be read
						}
						return faulty{c.(*net.TCPConn), in, &armed}, nil
					}
				})
				w.host("a.example", "93.184.216.34", 7000, echo)
				w.host("a.example", "93.184.216.35", 7000, echo)
				w.host("b.example", "93.184.216.36", 7000, echo)
				beside := w.openSOCKS5("b.example", 7000)
				defer beside.Close()
				if err := talk(beside, "before"); err != nil {
					t.Fatal(err)
				}
				open := func() net.Conn {
					switch how {
					case "http":
						c, _ := w.dialConnect("a.example:7000")
						return c
					case "socks":
						c, _ := w.dialSOCKS5("a.example", 7000)
						return c
					}
					return w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 7000))
				}
				armed.Store(true)
				if c := open(); c != nil {
					if err := talk(c, "\x01\x02"); err == nil && in != "end" {
						t.Error("it goes on")
					}
					if cw, ok := c.(interface{ CloseWrite() error }); ok {
						cw.CloseWrite()
					}
					if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
						t.Error("it does not end: ", err)
					}
					c.Close()
				}
				told := w.record(func(r Record) bool { return r.Verdict == Deny && r.Rule == byFault })
				if !strings.HasPrefix(told.Reason, "sbxrun has a fault in egress.") || len(told.Reason) > 500 || strings.Contains(told.Reason, "\n") {
					t.Errorf("it is told as %q", told.Reason)
				}
				armed.Store(false)
				if err := talk(beside, "after"); err != nil {
					t.Errorf("the connection beside: %v", err)
				}
				if in == "resolve" {
					return // that a name was not found is kept for a while
				}
				c := open()
				if c == nil {
					t.Fatal("no new connection")
				}
				defer c.Close()
				if err := talk(c, "\x01\x02"); err != nil {
					t.Errorf("a new connection: %v", err)
				}
			})
		}
	}
}

// TestFaultDNS: a panic in the answer to a question leaves that one without.
func TestFaultDNS(t *testing.T) {
	var armed atomic.Bool
	w := newWorld(t, allow("a.example:7000"), func(o *Options) {
		record := o.Record
		o.Record = func(r Record) {
			if armed.CompareAndSwap(true, false) {
				panic("injected")
			}
			record(r)
		}
	})
	w.host("a.example", "93.184.216.34", 7000, echo)
	msg := func(name string) []byte {
		b := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
		for _, l := range strings.Split(name, ".") {
			b = append(append(b, byte(len(l))), l...)
		}
		return append(b, 0, 0, 1, 0, 1)
	}
	c, err := net.Dial("udp", w.dns["udp"])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	armed.Store(true)
	c.Write(msg("denied.example"))
	w.record(func(r Record) bool { return r.Route == RouteDNS && r.Rule == byFault })
	c.Write(msg("a.example"))
	b := make([]byte, 512)
	if n, err := c.Read(b); err != nil || n < 12 || b[3]&15 != 0 {
		t.Errorf("answer: %x, %v", b[:n], err)
	}
}
