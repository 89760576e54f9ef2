package egress

import (
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
		if r.Verdict != Deny || r.Reason == "" || (r.Grant != "--allow-host "+host+":7") == (host != "bad.example.com") {
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
