package egress

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// upstream is the proxy that the host itself has to use. A nil one is none.
type upstream struct {
	host    string // name or address
	port    uint16
	auth    string // value of Proxy-Authorization, or ""
	noProxy []string
}

// parseUpstream reads a proxy's URL. Errors do not repeat it: it may hold a
// password.
func parseUpstream(s, noProxy string) (*upstream, error) {
	if s == "" {
		return nil, nil
	}
	bad := func(want string) (*upstream, error) {
		return nil, upstreamError{&policy.InvalidError{Field: "HTTPS_PROXY, the host's own proxy", Value: "…", Want: want}}
	}
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
		return bad("http://[USER:PASSWORD@]HOST:PORT")
	}
	if u.Scheme != "http" {
		return bad("a proxy that is spoken to by http:// (https and socks are not supported)")
	}
	up := &upstream{host: u.Hostname(), port: 80}
	if _, err := policy.HostAddr(up.host); err != nil {
		if up.host, err = policy.HostName(up.host); err != nil {
			return bad("http://[USER:PASSWORD@]HOST:PORT")
		}
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return bad("a port from 1 to 65535")
		}
		up.port = uint16(n)
	}
	if u.User != nil {
		password, _ := u.User.Password()
		up.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	}
	for e := range strings.SplitSeq(noProxy, ",") {
		if e = strings.ToLower(strings.TrimSpace(e)); e != "" {
			up.noProxy = append(up.noProxy, e)
		}
	}
	return up, nil
}

// upstreamError is a proxy of the host's that cannot be used.
type upstreamError struct{ *policy.InvalidError }

func (e upstreamError) Unwrap() error { return e.InvalidError }
func (e upstreamError) Hint() string {
	return "start sbxrun with HTTPS_PROXY=http://HOST:PORT, or with HTTPS_PROXY= to connect without a proxy"
}

// proxyFor returns the proxy for a target, or nil where it is dialled directly.
// Addresses of the host and its own networks never go through a proxy; NO_PROXY
// takes names with all below them, addresses, networks and "*".
func (u *upstream) proxyFor(t target) *upstream {
	if u == nil || t.name == "localhost" || t.addr.IsLoopback() {
		return nil
	}
	for _, e := range u.noProxy {
		if e == "*" {
			return nil
		}
		if p, err := netip.ParsePrefix(e); err == nil {
			if t.addr.IsValid() && p.Contains(t.addr) {
				return nil
			}
			continue
		}
		host := e
		if h, port, err := net.SplitHostPort(e); err == nil {
			if port != strconv.Itoa(int(t.port)) {
				continue
			}
			host = h
		}
		if a, err := netip.ParseAddr(host); err == nil {
			if a == t.addr {
				return nil
			}
			continue
		}
		host = strings.TrimPrefix(strings.TrimPrefix(host, "*"), ".")
		if t.name == host || strings.HasSuffix(t.name, "."+host) {
			return nil
		}
	}
	return u
}

// connect reaches a target: one of its addresses, or the upstream proxy, which is
// asked for a tunnel unless it is to take absolute URLs.
func (g *Gateway) connect(ctx context.Context, t target, addrs []netip.Addr, via *upstream,
	absolute bool) (*side, netip.Addr, error) {
	if via == nil {
		conn, addr, err := race(ctx, addrs, t.port, g.o.Dial)
		if err != nil {
			return nil, netip.Addr{}, err
		}
		return &side{conn: conn}, addr, nil
	}
	addrs, err := g.upstreamAddrs(ctx, via)
	if err != nil {
		return nil, netip.Addr{}, errors.New("the host's upstream proxy: look-up failed")
	}
	conn, _, err := race(ctx, addrs, via.port, g.o.Dial)
	if err != nil {
		return nil, netip.Addr{}, errors.New("the host's upstream proxy cannot be reached")
	}
	s := &side{conn: conn}
	if absolute {
		return s, netip.Addr{}, nil
	}
	if err := s.tunnelThrough(t, via); err != nil {
		conn.Close()
		return nil, netip.Addr{}, err
	}
	return s, netip.Addr{}, nil
}

// upstreamAddrs looks the proxy up. It is the host's own choice, so the address
// guard has no say: it is on a private address more often than not.
func (g *Gateway) upstreamAddrs(ctx context.Context, via *upstream) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(via.host); err == nil {
		return []netip.Addr{a}, nil
	}
	return g.resolver.resolve(ctx, via.host, false)
}

// tunnelThrough asks an upstream proxy for a tunnel.
func (s *side) tunnelThrough(t target, via *upstream) error {
	s.conn.SetDeadline(time.Now().Add(handshakeTimeout))
	defer s.conn.SetDeadline(time.Time{})
	var b bytes.Buffer
	b.WriteString("CONNECT " + t.String() + " HTTP/1.1\r\nHost: " + t.String() + "\r\n")
	if via.auth != "" {
		b.WriteString("Proxy-Authorization: " + via.auth + "\r\n")
	}
	b.WriteString("\r\n")
	if _, err := s.conn.Write(b.Bytes()); err != nil {
		return err
	}
	h, err := s.readHead(nil)
	if err != nil {
		return errors.New("the host's upstream proxy does not speak HTTP")
	}
	status, err := h.status()
	if err != nil || status != 200 {
		return errors.New("the host's upstream proxy refused: " + clean(string(h.line)))
	}
	return nil
}
