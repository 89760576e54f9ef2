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
	if refused == nil && t.port == 80 && g.upstream.proxyFor(t) != nil &&
		!g.rules.Load().decide(query{target: t, protocol: protoUnread}).allow {
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

// tunnel carries the current flow until both sides have ended.
//
// Where the rules let anything through, both directions run from the start, because in
// many protocols the server speaks first; what the client sends is held until its first
// bytes have shown what it is. Elsewhere nothing passes before that.
func (c *connection) tunnel() {
	c.mu.Lock()
	f, server := c.flow, c.server
	c.mu.Unlock()
	if f == nil {
		return
	}
	var act activity
	act.touch(time.Now())
	up := &direction{target: f.target}
	down := &direction{target: f.target, done: make(chan struct{}), spoke: make(chan struct{}),
		answers: make(chan answer, 2), wake: func() { c.client.conn.SetReadDeadline(time.Unix(1, 0)) }}
	defer c.survive(func() {
		if down.started {
			<-down.done
		}
	})
	start := func() {
		down.started = true
		go func() {
			defer close(down.done)
			down.err = c.caughtPump(&c.client, server, &f.in, &act, down)
			if down.err != nil && down.err != errStopped {
				c.abort(nil) // the other direction may wait for long
			}
		}()
	}
	p, err := protoUnknown, error(nil)
	if c.carries(f, protoUnread) {
		p = protoUnread
		start()
	} else if c.carries(f, protoOther) {
		start()
		p, err = c.first(f, server, up, down)
	} else if p, err = c.firstByte(); err == nil {
		err = asError(c.recheck(f, p, ""))
	}
	if p == protoHTTP && err == nil && down.started {
		down.stop.Store(true)
		server.conn.SetReadDeadline(time.Unix(1, 0))
		<-down.done
		if err = down.err; err == errStopped {
			err = nil
			server.conn.SetReadDeadline(time.Time{})
		} else if err == nil {
			err = io.EOF // it ended by itself, and so does this
		}
	}
	var refused *refusal
	switch {
	case p == protoHTTP && err == nil:
		c.relay(f.route, f)
		return
	case p == protoHTTP && errors.As(err, &refused):
		c.answerRefusal(refused)
	case p == protoTLS && err == nil:
		err = c.handshake(f, server, down, &act, start)
		fallthrough
	case p == protoTLS:
		if errors.As(err, &refused) && refused.verdict == Deny {
			c.alert()
		}
	case err == nil:
		err = asError(c.recheck(f, p, ""))
	}
	if err == nil {
		if p == protoOther {
			down.state.Store(stateRaw)
		}
		c.settle()
		err = c.pump(server, &c.client, &f.out, &act, idleTimeout, up)
	}
	if err != nil {
		c.abort(nil)
	}
	if down.started {
		<-down.done
	}
	if errors.As(err, &refused) || errors.As(down.err, &refused) {
		f.refused.CompareAndSwap(nil, refused)
	}
}

// settle says that from now on only pumps use the connection's sockets.
func (c *connection) settle() {
	c.mu.Lock()
	c.steady = true
	c.mu.Unlock()
}

// A direction is one half of a tunnel. That from the server tells what it hears.
type direction struct {
	target  target
	stop    atomic.Bool
	started bool
	done    chan struct{} // closed once it has ended
	err     error         // after done

	// what is spoken, as far as it matters to the other half
	state    atomic.Uint32
	server   *direction    // of a client's: that from the server
	spoke    chan struct{} // closed when the server spoke before anything else was known
	answers  chan answer   // to ClientHellos: two at most
	heard    []byte        // of the next answer
	retried  bool
	answered atomic.Bool // before answers has the first
	wake     func()      // the other half, which may read early data
}

func (d *direction) hasSpoken() bool {
	select {
	case <-d.spoke:
		return true
	default:
		return false
	}
}

// The states of a direction.
const (
	stateOpen uint32 = iota // nothing was said
	stateTLS                // the client began a TLS handshake, which goes on
	stateRaw                // the client said what is neither TLS nor HTTP, as far as one can tell
	stateFree               // whatever comes is passed on
)

// hear is told what one side says, before the other is. An error ends the connection.
func (d *direction) hear(b []byte) error {
	if d.state.CompareAndSwap(stateOpen, stateFree) && d.spoke != nil {
		close(d.spoke)
	}
	switch state := d.state.Load(); {
	case state == stateRaw && d.server != nil:
		return d.hearRaw(b)
	case state == stateRaw:
		// What is raw here the server may have taken for TLS or HTTP.
		d.heard = append(d.heard, b[:min(len(b), maxAnswerSeen)]...)
		switch p, err := answersAs(d.heard); {
		case err != nil:
		case p != protoOther:
			return malformed(d.target.String() + ": the server answers in " + p.String() + " to what does not look like it")
		default:
			d.heard = nil
			d.state.Store(stateFree)
		}
		return nil
	case state != stateTLS:
		return nil
	}
	for d.heard = append(d.heard, b...); ; {
		a, n, err := parseAnswer(d.heard)
		if err != nil {
			return nil
		}
		d.heard = d.heard[n:]
		if a == answerRetry && d.retried {
			a = answerOther // there is one at most; RFC 8446, 4.1.4
		}
		d.answered.Store(true)
		d.wake()
		d.answers <- a
		if a != answerRetry {
			d.state.Store(stateFree)
			d.heard = nil
			return nil
		}
		d.retried = true
	}
}

// maxAnswerSeen is how much of an answer tells what it is.
const maxAnswerSeen = 16

// hearRaw is told what a client goes on to say that began with what is no text. Until
// the server has answered, it may still become a request, to who takes any byte for text.
func (d *direction) hearRaw(b []byte) error {
	if d.server.state.Load() == stateFree {
		d.state.Store(stateFree)
		d.heard = nil
		return nil
	}
	// It may be in two pieces, of which heard has the end of the first.
	d.heard = append(d.heard, b[:min(len(b), maxNamed)]...)
	if saysRequest(d.heard) || saysRequest(b) {
		return malformed(d.target.String() + ": HTTP after bytes that are no text")
	}
	if len(b) > maxNamed {
		d.heard = append(d.heard[:0], b[len(b)-maxNamed:]...)
	} else {
		d.heard = d.heard[max(0, len(d.heard)-maxNamed):]
	}
	return nil
}

// asError keeps a nil refusal a nil error.
func asError(r *refusal) error {
	if r == nil {
		return nil
	}
	return r
}

// firstByte tells by a client's first byte what it speaks, where the rules ask for TLS or
// HTTP: which of them it is, and whether it is, is checked by those who go on.
func (c *connection) firstByte() (protocol, error) {
	c.client.conn.SetReadDeadline(time.Now().Add(c.g.patience))
	if len(c.client.pre) == 0 {
		if err := c.client.fill(maxHead); err != nil {
			return protoUnknown, err
		}
	}
	switch b := c.client.pre[0]; {
	case b == 22:
		return protoTLS, nil
	case isToken(b), b == '\r', b == '\n', b == ' ', b == '\t':
		return protoHTTP, nil
	}
	return protoOther, nil
}

// first reads ahead until it is clear what the client sends, where it may be anything. A
// client that sends nothing may wait for the server as long as it likes; but one that
// began has to go on.
//
// A word is passed on meanwhile: in another protocol it may be all that the client has
// to say before it wants an answer, and in HTTP it says nothing of the host.
//
// Words that are no request are held until the server has spoken, as those of SSH, SMTP
// and FTP do by themselves; those of HTTP wait for a request.
func (c *connection) first(f *flow, server *side, up, down *direction) (protocol, error) {
	c.client.conn.SetReadDeadline(time.Now().Add(idleTimeout))
	passed, begun := 0, false
	for {
		b := c.client.pre
		what, err := sniff(b)
		p := protoOther
		switch {
		case err == nil && what == openingTLS:
			// Even after the server has spoken: what it says from now on is its answer.
			down.state.Store(stateTLS)
			p = protoTLS
		case err == nil && what == openingRaw:
			up.server = down
			up.state.Store(stateRaw)
		case err == nil && what == openingRequest:
			p = protoHTTP
		case err == nil && what == openingWords:
			timer := time.NewTimer(c.g.patience)
			defer timer.Stop()
			select {
			case <-down.spoke:
			case <-down.done:
				return protoUnknown, io.EOF
			case <-timer.C:
				p = protoHTTP
			}
		case err != nil && len(b) > passed:
			if word := separators(b); word == len(b) || len(bytes.TrimFunc(b[word:], isPrintable)) == 0 {
				server.conn.SetWriteDeadline(time.Now().Add(c.g.patience))
				if _, err := server.conn.Write(b[passed:]); err != nil {
					return protoUnknown, err
				}
				if passed = len(b); passed > maxFirstLine/2 && word == 0 {
					// More of a word than any method has: its length is all that matters.
					f.out.Add(int64(passed - 64))
					passed = 64
					c.client.pre = b[:passed]
				}
			} else if !begun {
				begun = true
				c.client.conn.SetReadDeadline(time.Now().Add(c.g.patience))
			}
		}
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
		switch err := c.client.fill(maxFirstLine); {
		case err == nil:
		case errors.Is(err, io.EOF):
			if begun && !down.hasSpoken() {
				return protoUnknown, malformed(f.target.String() + ": the first line has no end")
			}
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

func isPrintable(r rune) bool { return r > ' ' && r != 0x7f }

// lineEnds counts the bytes of line ends at the start of b.
func lineEnds(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "\r\n")) }

// alert tells a TLS client that its connection is refused, which says more than a
// reset: access_denied, fatal; RFC 8446, 6.
func (c *connection) alert() {
	c.client.conn.SetWriteDeadline(time.Now().Add(graceTimeout))
	c.client.conn.Write([]byte{21, 3, 1, 0, 2, 2, 49})
	c.linger()
}

// handshake carries a TLS handshake as far as names are said in it. Nothing but what TLS
// has a client send there reaches the server: a ClientHello, which is checked; early
// data; and after a HelloRetryRequest a change of cipher and one more ClientHello. Start
// starts the other direction, if it is to wait for the ClientHello.
func (c *connection) handshake(f *flow, server *side, down *direction, act *activity, start func()) error {
	pass := func(n int) error {
		server.conn.SetWriteDeadline(time.Now().Add(c.g.patience))
		k, err := server.conn.Write(c.client.pre[:n])
		f.out.Add(int64(k))
		c.client.take(n)
		act.touch(time.Now())
		return err
	}
	// passBetween passes on what may come between; it ends at what may not.
	passBetween := func(early bool) error {
		for {
			n, err := between(c.client.pre, early)
			switch {
			case n > 0:
				err = pass(n)
			case err == errShort:
				err = c.client.fill(2 * maxHello)
			default:
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
	// await waits for the server's answer, and passes on early data meanwhile.
	await := func(early bool) (answer, error) {
		for early {
			c.client.conn.SetReadDeadline(time.Now().Add(c.g.patience))
			if down.answered.Load() {
				break
			}
			n, err := between(c.client.pre, true)
			if n > 0 {
				err = pass(n)
			} else if err == errShort {
				err = c.client.fill(2 * maxHello)
			} else {
				break // held
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
				return answerEnd, err
			}
			early = err == nil
		}
		timer := time.NewTimer(c.g.patience)
		defer timer.Stop()
		select {
		case a := <-down.answers:
			return a, nil
		case <-down.done:
			return answerEnd, io.EOF
		case <-timer.C:
			return answerEnd, os.ErrDeadlineExceeded
		}
	}
	for retried, name := false, ""; ; retried = true {
		h, err := c.hello(f)
		if err != nil {
			return err
		}
		if retried && h.name != name {
			return malformed(f.target.String() + ": the second TLS ClientHello is for another name than the first")
		}
		name = h.name
		early := h.early && !retried
		if !down.started {
			down.state.Store(stateTLS)
			start()
		}
		if err := pass(h.size); err != nil {
			return err
		}
		switch a, err := await(early); {
		case err != nil:
			return err
		case a == answerGoOn:
			return nil
		case a != answerRetry:
			// The client has what the server said, and may not say more.
			server.closeWrite()
			select {
			case <-down.done:
			case <-time.After(graceTimeout):
			}
			if a == answerOther {
				return &refusal{verdict: Error, cause: causeFailed,
					reason: f.target.String() + ": the server does not answer a TLS ClientHello"}
			}
			return io.EOF
		}
		c.client.conn.SetReadDeadline(time.Now().Add(c.g.patience))
		if err := passBetween(early); err != nil {
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
	if f.target.name != "" && claim != f.target.name && (claim != "" || !c.carries(f, protoOther)) {
		said := "has no server name"
		if claim != "" {
			said = "is for " + claim
		}
		return &refusal{verdict: Deny, cause: causeDenied, rule: byAgreement,
			reason: "the TLS ClientHello to " + f.target.String() + " " + said}
	}
	return c.recheck(f, protoTLS, claim)
}

// carries reports whether the rules let a flow carry p.
func (c *connection) carries(f *flow, p protocol) bool {
	r := c.g.rules.Load()
	return (p != protoUnread || r.unread) && f.decide(r, p) == nil
}

// byAgreement is the rule that what a connection claims must be what it is for.
const byAgreement = "agreement"

// hostAgrees decides about the host that an HTTP request names, against what the
// connection is for.
func (c *connection) hostAgrees(f *flow, host authority) *refusal {
	disagree := func() *refusal {
		return &refusal{verdict: Deny, cause: causeDenied, rule: byAgreement,
			reason: "the HTTP request to " + f.target.String() + " is for " + host.String()}
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
