package egress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"
)

// SOCKS4, 4a and 5 (RFC 1928, 1929), CONNECT only.

const maxSOCKS = 1 << 10

var errSOCKS = errors.New("malformed SOCKS request")

// parseSOCKSMethods reads the greeting of SOCKS5: the ways to authenticate that
// the client offers.
func parseSOCKSMethods(b []byte) (methods []byte, n int, err error) {
	if len(b) < 2 {
		return nil, 0, errShort
	}
	if b[0] != 5 || b[1] == 0 {
		return nil, 0, errSOCKS
	}
	n = 2 + int(b[1])
	if len(b) < n {
		return nil, 0, errShort
	}
	return b[2:n], n, nil
}

// parseSOCKSPassword reads RFC 1929.
func parseSOCKSPassword(b []byte) (password string, n int, err error) {
	if len(b) < 2 {
		return "", 0, errShort
	}
	if b[0] != 1 {
		return "", 0, errSOCKS
	}
	user := 2 + int(b[1])
	if len(b) < user+1 {
		return "", 0, errShort
	}
	n = user + 1 + int(b[user])
	if len(b) < n {
		return "", 0, errShort
	}
	return string(b[user+1 : n]), n, nil
}

// parseSOCKS5 reads a request. The host is in the form in which names and
// addresses are decided about; errHost says that it has none.
func parseSOCKS5(b []byte) (command byte, host authority, n int, err error) {
	if len(b) < 5 {
		return 0, host, 0, errShort
	}
	if b[0] != 5 || b[2] != 0 {
		return 0, host, 0, errSOCKS
	}
	var raw []byte
	switch b[3] {
	case 1:
		n = 4 + 4
	case 3:
		n = 5 + int(b[4])
	case 4:
		n = 4 + 16
	default:
		return 0, host, 0, errSOCKS
	}
	if len(b) < n+2 {
		return 0, host, 0, errShort
	}
	raw = b[4:n]
	port := binary.BigEndian.Uint16(b[n:])
	switch b[3] {
	case 3:
		host, err = socksHost(string(raw[1:]))
	default:
		host.addr, _ = netip.AddrFromSlice(raw)
		if host.addr.Is4In6() {
			err = errHost
		}
	}
	host.port, host.hasPort = port, true
	return b[1], host, n + 2, err
}

// parseSOCKS4 reads a request of SOCKS4 or 4a.
func parseSOCKS4(b []byte) (command byte, user string, host authority, n int, err error) {
	if len(b) < 9 {
		return 0, "", host, 0, errShort
	}
	end := bytes.IndexByte(b[8:], 0)
	if end < 0 {
		return 0, "", host, 0, errShort
	}
	user, n = string(b[8:8+end]), 8+end+1
	addr := [4]byte(b[4:8])
	if addr[0] == 0 && addr[1] == 0 && addr[2] == 0 && addr[3] != 0 { // 4a: a name follows
		l := bytes.IndexByte(b[n:], 0)
		if l < 0 {
			return 0, "", host, 0, errShort
		}
		host, err = socksHost(string(b[n : n+l]))
		n += l + 1
	} else {
		host.addr = netip.AddrFrom4(addr)
	}
	host.port, host.hasPort = binary.BigEndian.Uint16(b[2:]), true
	return b[1], user, host, n, err
}

// errHost says that a SOCKS request is well formed and names no host.
var errHost = errors.New("a host that is neither a name nor an address in its usual form")

// socksHost reads a name, or an address written as one.
func socksHost(s string) (a authority, err error) {
	if a.parseHost(s) != nil {
		return authority{}, errHost
	}
	return a, nil
}

// ahead calls parse until it has enough bytes, and takes what it used.
func (c *connection) ahead(parse func([]byte) (int, error)) error {
	for {
		n, err := parse(c.client.pre)
		if err != errShort {
			if n > 0 {
				c.client.take(n)
			}
			return err
		}
		if err := c.client.fill(maxSOCKS); err != nil {
			return err
		}
	}
}

// socks serves a SOCKS client.
func (c *connection) socks() {
	defer c.client.conn.Close()
	c.client.conn.SetDeadline(time.Now().Add(c.g.patience))
	v5 := c.client.pre[0] == 5
	var command byte
	var host authority
	var err error
	if v5 {
		if !c.socksLogin() {
			return
		}
		err = c.ahead(func(b []byte) (n int, err error) {
			command, host, n, err = parseSOCKS5(b)
			return
		})
	} else {
		var user string
		err = c.ahead(func(b []byte) (n int, err error) {
			command, user, host, n, err = parseSOCKS4(b)
			return
		})
		if (err == nil || err == errHost) && c.g.o.Token != "" && !c.g.tokenIs(user) {
			t, _ := c.g.authorityTarget(host)
			c.denyToken(t)
			c.socksReply(false, 93) // "client program and identd report different user-ids"
			return
		}
	}
	switch {
	case err == errHost:
		c.deny(RouteSOCKS, target{port: host.port}, "", malformed("SOCKS: "+err.Error()))
		c.socksReply(v5, 2)
		return
	case err == errSOCKS || err == errTooLong:
		c.deny(RouteSOCKS, target{}, "", malformed(errSOCKS.Error()))
		c.socksReply(v5, 1)
		return
	case err != nil:
		return
	case command != 1:
		c.deny(RouteSOCKS, target{name: host.name, addr: host.addr, port: host.port}, "",
			malformed("SOCKS: only CONNECT, neither BIND nor UDP"))
		c.socksReply(v5, 7)
		return
	case host.port == 0:
		c.deny(RouteSOCKS, target{name: host.name, addr: host.addr}, "", malformed("SOCKS: no port"))
		c.socksReply(v5, 1)
		return
	}
	t, refused := c.g.authorityTarget(host)
	if refused == nil {
		_, refused = c.open(RouteSOCKS, t, false)
	}
	if refused != nil {
		c.deny(RouteSOCKS, t, "", refused)
		c.socksReply(v5, map[cause]byte{
			causeDenied: 2, causeLimited: 2, causeMalformed: 2, causeName: 4, causeRefused: 5, causeUnreachable: 3,
			causeTimeout: 6, causeFailed: 1,
		}[refused.cause])
		return
	}
	if !c.socksReply(v5, 0) {
		return
	}
	c.client.conn.SetDeadline(time.Time{})
	c.tunnel()
}

// socksLogin does the greeting of SOCKS5.
func (c *connection) socksLogin() bool {
	var methods []byte
	if err := c.ahead(func(b []byte) (n int, err error) {
		methods, n, err = parseSOCKSMethods(b)
		methods = bytes.Clone(methods)
		return
	}); err != nil {
		return false
	}
	want := byte(0) // no authentication
	if c.g.o.Token != "" {
		want = 2 // user and password
	}
	if bytes.IndexByte(methods, want) < 0 {
		if want == 2 {
			c.denyToken(target{})
		}
		c.client.conn.Write([]byte{5, 0xff})
		return false
	}
	if _, err := c.client.conn.Write([]byte{5, want}); err != nil || want == 0 {
		return err == nil
	}
	var password string
	if err := c.ahead(func(b []byte) (n int, err error) {
		password, n, err = parseSOCKSPassword(b)
		return
	}); err != nil {
		return false
	}
	if !c.g.tokenIs(password) {
		c.denyToken(target{})
		c.client.conn.Write([]byte{1, 1})
		return false
	}
	_, err := c.client.conn.Write([]byte{1, 0})
	return err == nil
}

// denyToken records a client without the token, and what it asked for, if it came to
// that: in SOCKS5 it does not.
func (c *connection) denyToken(t target) { c.deny(RouteSOCKS, t, "", noToken(t)) }

// socksReply answers a request with a code of RFC 1928, or for SOCKS4 with what
// it has for it.
func (c *connection) socksReply(v5 bool, code byte) bool {
	b := []byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0}
	if !v5 {
		b = []byte{0, 91, 0, 0, 0, 0, 0, 0}
		switch code {
		case 0:
			b[1] = 90
		case 93:
			b[1] = 93
		}
	}
	_, err := c.client.conn.Write(b)
	return err == nil
}
