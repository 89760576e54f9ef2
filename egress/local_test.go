package egress

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
)

func TestLocal(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	defer srv.Close()
	var rules policy.Egress
	rules.Mode = policy.EgressProxy
	rule, err := policy.ParseEgressRule("www.example.com:80")
	if err != nil {
		t.Fatal(err)
	}
	rules.Allow = append(rules.Allow, rule)
	l, err := ServeLocal(rules, Options{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("1.1.1.1")}, nil
		},
		Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
		},
		Own: func(netip.Addr) (bool, error) { return false, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	var proxy string
	for _, kv := range l.Env {
		if v, ok := strings.CutPrefix(kv, "http_proxy="); ok {
			proxy = v
		}
	}
	get := func(proxy, target string) (int, string) {
		u, err := url.Parse(proxy)
		if err != nil {
			t.Fatal(err)
		}
		c := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u), DisableKeepAlives: true}}
		r, err := c.Get(target)
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	if code, body := get(proxy, "http://www.example.com/"); code != 200 || body != "hello" {
		t.Errorf("an allowed host: %d %s", code, body)
	}
	if code, body := get(proxy, "http://other.example.com/"); code != 403 || !strings.Contains(body, "--allow-host") {
		t.Errorf("another host: %d %s", code, body)
	}
	if code, _ := get("http://127.0.0.1:"+strconv.Itoa(int(l.Port)), "http://www.example.com/"); code != 407 {
		t.Errorf("without the token: %d", code)
	}
	l.Direct(netip.MustParseAddrPort("1.1.1.1:80"))
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if s := l.Stats(); s.Denied != 3 || s.Connections != 1 {
		t.Errorf("%+v", s)
	}
	if c, err := net.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(int(l.Port))); err == nil {
		c.Close()
		t.Error("still open")
	}
	if _, err := ServeLocal(policy.Egress{Mode: policy.EgressProxy, Allow: []policy.EgressRule{{Host: "a..b"}}}, Options{}); err == nil {
		t.Error("a malformed rule was taken")
	}
}
