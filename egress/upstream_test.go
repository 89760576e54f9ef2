package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
)

func TestParseUpstream(t *testing.T) {
	for in, want := range map[string]string{
		"http://proxy.corp:3128":       "proxy.corp:3128 ",
		"proxy.corp:3128":              "proxy.corp:3128 ",
		"http://user:p%40ss@10.0.0.1/": "10.0.0.1:80 Basic dXNlcjpwQHNz",
		"http://[2001:db8::1]:8080":    "2001:db8::1:8080 ",
	} {
		u, err := parseUpstream(in, "")
		if err != nil || fmt.Sprintf("%s:%d %s", u.host, u.port, u.auth) != want {
			t.Errorf("%s: %+v, %v", in, u, err)
		}
	}
	for _, in := range []string{"https://user:secret@proxy.corp", "socks5://secret@proxy.corp:1", "http://secret@", "http://secret@proxy.corp:0", "http://secret@proxy.corp/path", "http://secret@127.1:80", "http://secret\x7f@x"} {
		_, err := parseUpstream(in, "")
		var invalid *policy.InvalidError
		if !errors.As(err, &invalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestNoProxy(t *testing.T) {
	u, err := parseUpstream("http://proxy.corp", "localhost, .corp.example,*.wild.example,exact.example:8080,10.0.0.0/8,192.0.2.1,[2001:db8::1]:80")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		t      target
		direct bool
	}{
		{target{name: "a.corp.example", port: 443}, true},
		{target{name: "corp.example", port: 443}, true},
		{target{name: "notcorp.example", port: 443}, false},
		{target{name: "a.wild.example", port: 443}, true},
		{target{name: "exact.example", port: 8080}, true},
		{target{name: "exact.example", port: 80}, false},
		{target{name: "other.example", port: 443}, false},
		{target{addr: mustAddr("10.1.1.1"), port: 443}, true},
		{target{addr: mustAddr("192.0.2.1"), port: 443}, true},
		{target{addr: mustAddr("192.0.2.2"), port: 443}, false},
		{target{addr: mustAddr("2001:db8::1"), port: 80}, true},
		{target{addr: mustAddr("127.0.0.1"), port: 80}, true},
		{target{name: "localhost", port: 80}, true},
	} {
		if (u.proxyFor(c.t) == nil) != c.direct {
			t.Errorf("%s: direct %v", c.t, !c.direct)
		}
	}
	if all, _ := parseUpstream("http://proxy.corp", "*"); all.proxyFor(target{name: "a.example"}) != nil {
		t.Error("NO_PROXY=*")
	}
}

// TestUpstream: with a proxy of the host's own, tunnels are asked of it and plain
// HTTP is sent to it, with its credentials, which the sandbox never sees; names
// that are denied do not get there (NET-7).
func TestUpstream(t *testing.T) {
	w := newWorld(t, allow("a.example", "down.example", "private.example", "10.0.0.7:7"), func(o *Options) {
		o.Upstream = "http://user:secret@proxy.corp:3128"
	})
	seen := make(chan string, 100)
	w.host("proxy.corp", "10.0.0.99", 3128, func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			seen <- req.Method + " " + req.RequestURI + " " + req.Header.Get("Proxy-Authorization")
			switch {
			case strings.HasPrefix(req.Host, "down.example"):
				io.WriteString(c, "HTTP/1.1 503 Down \x1b for secret reasons\r\nProxy-Authenticate: Basic realm=corp\r\nContent-Length: 0\r\n\r\n")
			case req.Method == "CONNECT":
				io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				io.Copy(c, r)
				return
			default:
				io.WriteString(c, "HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=corp\r\nContent-Length: 2\r\n\r\nok")
			}
		}
	})
	w.host("private.example", "10.0.0.50", 7, echo)
	const auth = " Basic dXNlcjpzZWNyZXQ="
	c, answer := w.dialConnect("a.example:7")
	if c == nil {
		t.Fatal(answer)
	}
	if err := talk(c, "\x00hello"); err != nil {
		t.Error(err)
	}
	c.Close()
	if got := <-seen; got != "CONNECT a.example:7"+auth {
		t.Error(got)
	}
	got := w.raw(w.dialProxy(), "GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\nProxy-Authorization: Basic x\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 407 ") || !strings.HasSuffix(got, "ok") || strings.Contains(got, "corp") {
		t.Errorf("%q", got)
	}
	if got := <-seen; got != "GET http://a.example/x"+auth {
		t.Error(got)
	}
	// The transparent route, port 80: HTTP for the proxy too.
	got = w.raw(w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 80)), "GET /y HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 407 ") {
		t.Errorf("%q", got)
	}
	if got := <-seen; got != "GET http://a.example/y"+auth {
		t.Error(got)
	}
	if _, answer := w.dialConnect("down.example:7"); !strings.HasPrefix(answer, "HTTP/1.1 502 ") || strings.ContainsRune(answer, 0x1b) || strings.Contains(answer, "user") {
		t.Errorf("%q", answer)
	}
	<-seen
	// What resolves to a private address here is refused here.
	if _, answer := w.dialConnect("private.example:7"); !strings.HasPrefix(answer, "HTTP/1.1 403 ") {
		t.Errorf("%q", answer)
	}
	if _, answer := w.dialConnect("evil.example:7"); !strings.HasPrefix(answer, "HTTP/1.1 403 ") {
		t.Errorf("%q", answer)
	}
	select {
	case s := <-seen:
		t.Error(s)
	default:
	}
	// The stub needs no resolver of the host: the proxy has one.
	if addrs, err := w.lookupBy("udp").LookupNetIP(context.Background(), "ip4", "a.example."); err != nil || len(addrs) != 1 {
		t.Error(addrs, err)
	}
}
