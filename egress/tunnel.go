package egress

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// transparent serves a connection whose program knows of no proxy.
func (g *Gateway) transparent(c *connection) {
	local, ok := c.local()
	if !ok {
		c.client.reset()
		return
	}
	t, refused := g.target(local.Addr(), local.Port())
	if refused == nil && t.port == 80 && g.upstream.proxyFor(t) != nil {
		// An upstream proxy takes tunnels to port 443 and requests to port 80,
		// as a rule, so what comes has to be seen first: HTTP clients speak first.
		c.relay(RouteTransparent, &flow{target: t})
		return
	}
	if refused == nil {
		_, refused = c.open(RouteTransparent, t, false)
	}
	if refused != nil {
		// The kernel accepted the connection before anyone could decide: a
		// reset is the closest to "connection refused" that is left.
		c.deny(RouteTransparent, t, "", refused)
		c.client.reset()
		return
	}
	c.tunnel()
}

// tunnel carries the current flow until both sides have ended. Both directions
// run from the start, because in many protocols the server speaks first; what the
// client sends is held until its first bytes have shown what it is.
func (c *connection) tunnel() {
	c.mu.Lock()
	f, server := c.flow, c.server
	c.mu.Unlock()
	if f == nil {
		return
	}
	var act activity
	act.touch(time.Now())
	down := &direction{done: make(chan struct{})}
	start := func() {
		go func() {
			defer close(down.done)
			down.err = c.pump(&c.client, server, &f.in, &act, idleTimeout, &down.stop)
			if down.err != nil && down.err != errStopped {
				c.abort(nil) // the other direction may wait for long
			}
		}()
	}
	// A rule that asks for a protocol gets to see it before anything is passed
	// on.
	started := !f.pending
	if started {
		start()
	}
	var first clientHello
	p, err := c.first(f, server, !started)
	if err == nil {
		switch {
		case p == protoHTTP:
			if started {
				down.stop.Store(true)
				server.conn.SetReadDeadline(time.Unix(1, 0))
				<-down.done
				if down.err != errStopped { // it ended by itself, and so does this
					err = io.EOF
					break
				}
				server.conn.SetReadDeadline(time.Time{})
			}
			c.relay(f.route, f)
			return
		case p == protoTLS:
			if first, err = c.hello(f); err != nil {
				c.alert()
			}
		default:
			err = asError(c.recheck(f, p, ""))
		}
	}
	if err == nil {
		if !started {
			start()
			started = true
		}
		if p == protoTLS {
			if err = c.laterHello(f, server, first, &act); err != nil {
				c.alert()
			}
		}
	}
	if err == nil {
		var never atomic.Bool
		c.settle()
		err = c.pump(server, &c.client, &f.out, &act, idleTimeout, &never)
	}
	var refused *refusal
	if errors.As(err, &refused) {
		f.refused.CompareAndSwap(nil, refused)
	}
	if err != nil {
		c.abort(nil)
	}
	if started {
		<-down.done
	}
}

// settle says that from now on only pumps use the connection's sockets.
func (c *connection) settle() {
	c.mu.Lock()
	c.steady = true
	c.mu.Unlock()
}

// direction is one half of a tunnel that runs by itself.
type direction struct {
	stop atomic.Bool
	done chan struct{}
	err  error
}

// asError keeps a nil refusal a nil error.
func asError(r *refusal) error {
	if r == nil {
		return nil
	}
	return r
}

// first reads ahead until it is clear what the client sends. A client that sends
// nothing may wait for the server as long as it likes, unless a rule waits for
// it; but one that began has to go on.
//
// What could become the method of an HTTP request and has not yet, a word, is
// passed on meanwhile: in another protocol it may be all that the client has to
// say before it wants an answer, and in HTTP it says nothing of the host.
func (c *connection) first(f *flow, server *side, hurry bool) (protocol, error) {
	web := f.target.port == 80
	c.client.conn.SetReadDeadline(time.Now().Add(idleTimeout))
	if hurry {
		c.client.conn.SetReadDeadline(time.Now().Add(c.g.patience))
	}
	passed, begun := 0, false
	for {
		b := c.client.pre
		p, err := sniff(b, web)
		if err == nil {
			f.out.Add(int64(passed))
			if p == protoHTTP {
				// Empty lines before a request mean nothing (RFC 9112, 2.2), and
				// the part of the method that is on its way is not sent twice.
				f.sent = max(0, passed-lineEnds(b))
				passed = lineEnds(b)
			}
			c.client.take(passed)
			return p, nil
		}
		if word := b[lineEnds(b):]; !web && !hurry && len(b) > passed && (len(word) == 0 || word[0] != 22 && isTokenString(string(word))) {
			server.conn.SetWriteDeadline(time.Now().Add(c.g.patience))
			if _, err := server.conn.Write(b[passed:]); err != nil {
				return protoUnknown, err
			}
			passed = len(b)
		} else if len(b) > passed && !begun {
			begun = true
			c.client.conn.SetReadDeadline(time.Now().Add(c.g.patience))
		}
		switch err := c.client.fill(maxFirstLine); {
		case err == nil:
		case err == errTooLong:
			return protoUnknown, malformed(f.target.String() + ": nothing but empty lines")
		case errors.Is(err, io.EOF):
			c.client.take(passed)
			f.out.Add(int64(passed))
			return protoOther, nil
		case begun && errors.Is(err, os.ErrDeadlineExceeded):
			return protoUnknown, malformed(f.target.String() + ": a request that does not go on")
		default:
			return protoUnknown, err
		}
	}
}

// lineEnds counts the bytes of line ends at the start of b.
func lineEnds(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "\r\n")) }

// alert tells a TLS client that its connection is refused, which says more than a
// reset: access_denied, fatal; RFC 8446, 6.
func (c *connection) alert() {
	c.client.conn.SetWriteDeadline(time.Now().Add(graceTimeout))
	c.client.conn.Write([]byte{21, 3, 1, 0, 2, 2, 49})
	c.linger()
}

// laterHello passes on what the client sends until no further ClientHello can
// come, and checks one that does. See afterHello.
func (c *connection) laterHello(f *flow, server *side, first clientHello, act *activity) error {
	pass := func(n int) error {
		server.conn.SetWriteDeadline(time.Now().Add(idleTimeout))
		k, err := server.conn.Write(c.client.pre[:n])
		f.out.Add(int64(k))
		c.client.take(n)
		act.touch(time.Now())
		return err
	}
	if err := pass(first.size); err != nil {
		return err
	}
	for {
		kind, size := afterHello(c.client.pre, first.early)
		switch {
		case kind == recordLast:
			return nil
		case kind == recordHello:
			h, err := c.hello(f)
			if err != nil {
				return err
			}
			if err := pass(h.size); err != nil {
				return err
			}
			continue
		case kind == recordPass && len(c.client.pre) >= size:
			if err := pass(size); err != nil {
				return err
			}
			continue
		}
		c.client.conn.SetReadDeadline(time.Now().Add(idleTimeout))
		switch err := c.client.fill(2 * maxHello); {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil // passed on by who called
		case errors.Is(err, os.ErrDeadlineExceeded) && act.idle(time.Now()) < idleTimeout:
		default:
			return err
		}
	}
}

// hello checks that the name in a TLS ClientHello is the one that was decided
// about.
func (c *connection) hello(f *flow) (clientHello, error) {
	c.client.conn.SetReadDeadline(time.Now().Add(c.g.patience))
	for {
		h, err := parseClientHello(c.client.pre)
		if err == nil {
			return h, asError(c.checkHello(f, h.name))
		}
		if err == errShort {
			// Records add 5 bytes each.
			err = c.client.fill(2 * maxHello)
			if err == nil {
				continue
			}
		}
		if errors.Is(err, io.EOF) || err == errTooLong || errors.Is(err, os.ErrDeadlineExceeded) {
			err = errors.New("incomplete TLS ClientHello")
		}
		return clientHello{}, malformed(f.target.String() + ": " + err.Error())
	}
}

// checkHello decides about a server name, "" if the ClientHello has none.
//
// Where a name was meant, another one is refused: a server that many share would
// take the connection for it. No name at all is refused on port 443 and where a
// rule asks for TLS; elsewhere old clients leave it out.
func (c *connection) checkHello(f *flow, sni string) *refusal {
	claim := ""
	if sni != "" {
		name, err := policy.HostName(sni)
		if err != nil {
			if a, err := policy.HostAddr(sni); f.target.name != "" || err != nil || a != f.target.addr {
				return malformed(f.target.String() + ": the TLS server name \"" + sni + "\" is not a name")
			}
		}
		claim = name
	}
	if f.target.name != "" && claim != f.target.name && (claim != "" || f.target.port == 443 || f.pending) {
		said := "has no server name"
		if claim != "" {
			said = "is for " + claim
		}
		return &refusal{verdict: Deny, cause: causeDenied, rule: byAgreement, reason: "the TLS ClientHello to " + f.target.String() + " " + said}
	}
	return c.recheck(f, protoTLS, claim)
}

// byAgreement is the rule that what a connection claims must be what it is for.
const byAgreement = "agreement"

// hostAgrees decides about the host that an HTTP request names, against what the
// connection is for.
func (c *connection) hostAgrees(f *flow, host authority) *refusal {
	disagree := func() *refusal {
		return &refusal{verdict: Deny, cause: causeDenied, rule: byAgreement, reason: "the HTTP request to " + f.target.String() + " is for " + host.String()}
	}
	if host.hasPort && host.port != f.target.port {
		return disagree()
	}
	if f.target.name != "" {
		if host.name != f.target.name && !c.standsFor(host.addr, f.target.name) {
			return disagree()
		}
		return c.recheck(f, protoHTTP, "")
	}
	if host.addr.IsValid() && host.addr != f.target.addr {
		return disagree()
	}
	return c.recheck(f, protoHTTP, host.name)
}

// standsFor reports whether an address is the resolver's for a name.
func (c *connection) standsFor(a netip.Addr, name string) bool {
	if !a.IsValid() {
		return false
	}
	owner, _ := c.g.names.name(a)
	return owner == name
}
