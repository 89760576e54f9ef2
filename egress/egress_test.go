package egress

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestRoutes: an allowed name is reached by every route, at the address that was
// looked up; the bytes come through and are counted; a half-closed connection
// stays half open.
func TestRoutes(t *testing.T) {
	w := newWorld(t, allow("allowed.example:7"))
	w.host("allowed.example", "93.184.216.34", 7, echo)
	for route, dial := range map[Route]func() net.Conn{
		RouteTransparent: func() net.Conn { return w.dialTransparent(netip.AddrPortFrom(w.number("allowed.example"), 7)) },
		RouteConnect:     func() net.Conn { return w.openConnect("Allowed.Example.:7") },
		RouteSOCKS:       func() net.Conn { return w.openSOCKS5("ALLOWED.example", 7) },
		"socks4":         func() net.Conn { return w.openSOCKS4("allowed.example", 7) },
		"socks number":   func() net.Conn { return w.openSOCKS5(w.number("allowed.example").String(), 7) },
		"connect number": func() net.Conn { return w.openConnect(w.number("allowed.example").String() + ":7") },
	} {
		t.Run(string(route), func(t *testing.T) {
			c := dial()
			if c == nil {
				t.Fatal("refused")
			}
			defer c.Close()
			if err := talk(c, "\x00hello"); err != nil {
				t.Fatal(err)
			}
			c.(interface{ CloseWrite() error }).CloseWrite()
			if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
				t.Errorf("%q, %v", rest, err)
			}
		})
	}
	r := w.record(func(r Record) bool { return r.Verdict == Allow && r.Route == RouteTransparent })
	if r.Target() != "allowed.example:7" || r.Addr.String() != "93.184.216.34" || r.BytesIn != 6 || r.BytesOut != 6 || r.Rule != "allowed.example:7" {
		t.Errorf("%+v", r)
	}
	dialled, _ := w.taken()
	for _, a := range dialled {
		if a.String() != "93.184.216.34:7" {
			t.Errorf("dialled %s", a)
		}
	}
	if s := w.g.Stats(); s.Connections != 6 || s.Denied != 0 {
		t.Errorf("%+v", s)
	}
}

// TestServerSpeaksFirst: the gateway does not wait for the client.
func TestServerSpeaksFirst(t *testing.T) {
	w := newWorld(t, allow("ssh.example"))
	w.host("ssh.example", "93.184.216.34", 22, func(c net.Conn) {
		io.WriteString(c, "SSH-2.0-test\r\n")
		echo(c)
	})
	c := w.dialTransparent(netip.AddrPortFrom(w.number("ssh.example"), 22))
	defer c.Close()
	got := make([]byte, 14)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "SSH-2.0-test\r\n" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := talk(c, "SSH-2.0-client\r\n"); err != nil {
		t.Fatal(err)
	}
}

// TestUnread: what tcp:// lets through goes as it is, on every route, whatever it looks
// like; without it each is refused; and it ends when the rule does.
func TestUnread(t *testing.T) {
	sent := []string{
		"SSH-2.0-client of_two_words\r\n", // where the server has not spoken
		"set key 0 0 1\r\nx\r\n",          // memcached
		"some.metric 1 1700000000\n",      // Graphite
		"\x16\x03\x01\x00\x05hello",       // no ClientHello
		"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n",
	}
	for _, port := range []uint16{443, 80, 11211} {
		rule := fmt.Sprintf("a.example:%d", port)
		for _, unread := range []bool{true, false} {
			p := allow(rule, "*.example:1-65535") // a wider rule takes nothing away
			if unread {
				p = allow("*.example:1-65535", "tcp://"+rule)
			}
			w := newPatientWorld(t, p, 300*time.Millisecond)
			w.host("a.example", "93.184.216.34", port, echo)
			for _, say := range sent {
				for route, dial := range map[string]func() net.Conn{
					"transparent": func() net.Conn { return w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), port)) },
					"CONNECT":     func() net.Conn { return w.openConnect(rule) },
					"SOCKS":       func() net.Conn { return w.openSOCKS5("a.example", port) },
				} {
					c := dial()
					if err := talk(c, say); (err == nil) != unread {
						t.Errorf("unread %v, port %d, %s: %q: %v", unread, port, route, say, err)
					}
					c.Close()
				}
			}
			if !unread {
				continue
			}
			w.record(func(r Record) bool { return r.Verdict == Allow && r.Protocol == "unread" })
			c := w.openConnect(rule)
			defer c.Close()
			if err := talk(c, sent[0]); err != nil {
				t.Error(err)
			}
			if err := w.g.Reload(allow("*.example:1-65535")); err != nil {
				t.Fatal(err)
			}
			if err := talk(c, sent[0]); err == nil {
				t.Errorf("port %d: it goes on without its rule", port)
			}
		}
	}
}

// TestDenied: what no rule allows is refused by every route, says why, and
// nothing of it reaches the host's resolver or network.
func TestDenied(t *testing.T) {
	w := newWorld(t, egressPolicy([]string{"allowed.example:7", "*.example.com"}, []string{"bad.example.com"}))
	w.host("evil.example", "93.184.216.34", 7, echo)
	w.host("bad.example.com", "93.184.216.35", 7, echo)
	for _, host := range []string{"evil.example", "bad.example.com", "example.com", "evil-example.com", "93.184.216.34"} {
		if c, answer := w.dialConnect(host + ":7"); c != nil || !strings.HasPrefix(answer, "HTTP/1.1 403 ") || !strings.Contains(answer, host+":7") {
			t.Errorf("CONNECT %s: %s", host, answer)
		}
		if c, code := w.dialSOCKS5(host, 7); c != nil || code != 2 {
			t.Errorf("SOCKS5 %s: %d", host, code)
		}
		if c, code := w.dialSOCKS4(host, 7); c != nil || code != 91 {
			t.Errorf("SOCKS4 %s: %d", host, code)
		}
		to := netip.MustParseAddr("93.184.216.34")
		if host != to.String() {
			to = w.number(host)
		}
		c := w.dialTransparent(netip.AddrPortFrom(to, 7))
		if err := talk(c, "hello"); err == nil {
			t.Errorf("transparent %s: allowed", host)
		}
		c.Close()
		r := w.record(func(r Record) bool { return r.Route == RouteTransparent && r.Target() == host+":7" })
		if r.Verdict != Deny || r.Reason == "" || (r.Grant != host+":7") == (host != "bad.example.com") {
			t.Errorf("%+v", r)
		}
	}
	if dialled, asked := w.taken(); len(dialled)+len(asked) > 0 {
		t.Errorf("dialled %v, asked for %v", dialled, asked)
	}
}

func TestServeEnds(t *testing.T) {
	w := newWorld(t, allow("allowed.example"))
	w.host("allowed.example", "93.184.216.34", 7, echo)
	c := w.dialTransparent(netip.AddrPortFrom(w.number("allowed.example"), 7))
	defer c.Close()
	if err := talk(c, "hello"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	t.Cleanup(func() {
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%v", d)
		}
	})
}
