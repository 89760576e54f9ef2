package egress

import (
	"bytes"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// readHead reads the head of a message ahead and takes it. io.EOF says that there
// was none, *badMessage that it is not acceptable. Start, unless it is nil, checks the
// start line as soon as that is whole.
func (s *side) readHead(start func(line string) error) (*head, error) {
	from := 0
	for {
		if line, _, whole := bytes.Cut(s.pre, []byte("\r\n")); whole && start != nil {
			if err := start(string(line)); err != nil {
				return nil, err
			}
			start = nil
		}
		n, err := endOfHead(s.pre, from)
		if err == nil {
			h, err := parseHead(s.pre[:n])
			s.take(n)
			return h, err
		}
		if err != errShort {
			return nil, err
		}
		from = len(s.pre)
		if err := s.fill(maxHead); err != nil {
			if errors.Is(err, io.EOF) && from > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// relay carries HTTP requests one after the other, each decided by itself, until
// the client has no more. Pin is the one target that all of them have to be for:
// that of a transparent connection or a tunnel; nil is a proxy's client, who
// names the target in each request.
func (c *connection) relay(route Route, pin *flow) {
	for first := true; ; first = false {
		wait := keepAliveTimeout
		if first {
			wait = c.g.patience
		}
		c.client.conn.SetReadDeadline(time.Now().Add(wait))
		if !first && len(c.client.pre) == 0 {
			// Idle: the next request has the time of one from its first byte.
			if err := c.client.fill(maxHead); err != nil {
				return
			}
			c.client.conn.SetReadDeadline(time.Now().Add(c.g.patience))
		}
		h, err := c.client.readHead(checkRequestLine)
		var r *request
		if err == nil {
			r, err = parseRequest(h)
		}
		if err == nil && pin == nil && !c.authorized(route, r) {
			c.answer(407, "Proxy-Authenticate: Basic realm=\"sbxrun\"\r\n",
				"sbxrun: this proxy asks for the sandbox's token: use the address in HTTP_PROXY\n")
			return
		}
		if err != nil {
			var b *badMessage
			if !errors.As(err, &b) {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					c.answer(408, "", "sbxrun: no request within "+wait.String()+"\n")
				}
				return
			}
			t := target{}
			if pin != nil {
				t = pin.target
			}
			refused := malformed(b.what)
			c.deny(route, t, "", refused)
			c.answer(b.status, "", "sbxrun: refused: "+clean(b.what)+"\n")
			return
		}
		if r.connect {
			if pin != nil {
				c.answer(400, "", "sbxrun: refused: CONNECT to a server that is no proxy\n")
				return
			}
			c.connectTunnel(r)
			return
		}
		if !c.exchange(route, pin, r) {
			return
		}
	}
}

// authorized checks the token of a proxy request, and sees to it that one without is
// recorded.
func (c *connection) authorized(route Route, r *request) bool {
	if c.g.o.Token == "" {
		return true
	}
	asked, method := r.url, r.method
	if r.connect {
		route, method = RouteConnect, ""
	} else if !r.absolute {
		asked = r.host
	}
	t, _ := c.g.authorityTarget(asked)
	switch v := r.values("Proxy-Authorization"); {
	case c.hasToken(v):
		c.g.met(t)
		return true
	case len(v) == 0:
		c.g.challenged(Record{Time: time.Now(), Route: route, Name: t.name, Addr: t.addr, Port: t.port, Method: method})
	default:
		c.deny(route, t, method, noToken(t))
	}
	return false
}

// hasToken checks the values of Proxy-Authorization.
func (c *connection) hasToken(v []string) bool {
	if len(v) != 1 {
		return false
	}
	scheme, cred, _ := strings.Cut(v[0], " ")
	raw, err := base64.StdEncoding.DecodeString(strings.TrimLeft(cred, " "))
	if err != nil || !strings.EqualFold(scheme, "Basic") {
		return false
	}
	_, password, _ := strings.Cut(string(raw), ":")
	return c.g.tokenIs(password)
}

// byToken is the rule that a proxy's client shows the sandbox's token.
const byToken = "token"

func (g *Gateway) tokenIs(s string) bool {
	return subtle.ConstantTimeCompare([]byte(s), []byte(g.o.Token)) == 1
}

// connectTunnel serves CONNECT.
func (c *connection) connectTunnel(r *request) {
	t, refused := c.g.authorityTarget(r.url)
	c.closeServer()
	if refused == nil {
		_, refused = c.open(RouteConnect, t, false)
	}
	if refused != nil {
		c.deny(RouteConnect, t, "", refused)
		c.answerRefusal(refused)
		return
	}
	c.client.conn.SetWriteDeadline(time.Now().Add(c.g.patience))
	if _, err := c.client.conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		return
	}
	c.tunnel()
}

// authorityTarget returns what a request's authority means.
func (g *Gateway) authorityTarget(a authority) (target, *refusal) {
	if a.addr.IsValid() {
		return g.target(a.addr, a.port)
	}
	return target{name: a.name, port: a.port}, nil
}

// serve makes sure that the connection has a server for a request, and returns
// the flow that stands for it.
func (c *connection) serve(route Route, t target, method string, host authority, pinned bool) (*flow, *refusal) {
	c.mu.Lock()
	old, server := c.flow, c.server
	c.mu.Unlock()
	var f *flow
	switch {
	case old != nil && old.target == t && old.method == "" && old.in.Load() == 0 && (old.sent > 0 || alive(server.conn)):
		f = old // a tunnel that turned out to carry HTTP
	case old != nil && old.target == t && len(server.pre) == 0 && (pinned || old.once == nil) && alive(server.conn):
		if refused := c.g.rate(c.g.rules.Load(), t); refused != nil {
			return nil, refused
		}
		c.finish(old)
		f = &flow{route: route, target: t, resolved: old.resolved, own: old.own, rule: old.rule, absolute: old.absolute,
			start: time.Now()}
		if old.method == "" {
			f.sent = old.sent
		}
		f.once = old.once // it is still the connection that was asked about
		if !c.carry(f, server) {
			return nil, &refusal{verdict: Error, cause: causeFailed, reason: "the sandbox ended"}
		}
	default:
		c.closeServer()
		var refused *refusal
		if f, refused = c.open(route, t, true); refused != nil {
			return nil, refused
		}
	}
	f.method = method
	var refused *refusal
	if pinned {
		refused = c.hostAgrees(f, host)
	} else {
		refused = c.recheck(f, protoHTTP, host.name)
	}
	if refused != nil {
		f.refused.CompareAndSwap(nil, refused)
		return nil, refused
	}
	c.g.stats.requests.Add(1)
	return f, nil
}

// exchange carries one request and its response. It reports whether the client
// may send another.
func (c *connection) exchange(route Route, pin *flow, r *request) bool {
	var t target
	var refused *refusal
	host := r.host
	switch {
	case pin != nil:
		t = pin.target
		if r.absolute || !r.hasHost {
			host = r.url
		}
		if !r.absolute && !r.hasHost { // HTTP/1.0
			host = authority{name: t.name, addr: t.addr}
		}
	case !r.absolute:
		c.answer(400, "", "sbxrun: this is the sandbox's proxy: it takes http:// URLs and CONNECT\n")
		return false
	default:
		t, refused = c.g.authorityTarget(r.url)
		host = authority{name: r.host.name}
	}
	var f *flow
	if refused == nil {
		f, refused = c.serve(route, t, r.method, host, pin != nil)
	}
	if refused != nil {
		c.mu.Lock()
		recorded := c.flow != nil && c.flow.refused.Load() == refused
		c.mu.Unlock()
		if !recorded {
			c.deny(route, t, r.method, refused)
		}
		c.closeServer()
		c.answerRefusal(refused)
		return false
	}
	c.mu.Lock()
	server := c.server
	c.mu.Unlock()
	if server == nil {
		return false
	}

	auth := ""
	if f.absolute {
		auth = c.g.upstream.auth
	}
	out := r.append(make([]byte, 0, 1024), t, f.absolute, auth)
	server.conn.SetWriteDeadline(time.Now().Add(c.g.patience))
	n, err := server.conn.Write(out[f.sent:])
	f.out.Add(int64(n))
	if err != nil {
		c.answerRefusal(c.fail(f, err))
		return false
	}

	// The body goes while the answer comes: a server may answer first, and with
	// "Expect: 100-continue" it has to.
	sent, watched := make(chan error, 1), make(chan struct{})
	var answered atomic.Bool
	server.conn.SetReadDeadline(time.Now().Add(idleTimeout))
	go func() {
		defer close(watched)
		var err error
		if !r.body.empty() {
			err = func() (err error) {
				defer caught(&err)
				return copyBody(server.conn, &c.client, r.body, &f.out, true)
			}()
		}
		sent <- err
		if err != nil {
			// An answer may be on its way already, but none is to be waited for.
			server.conn.SetReadDeadline(time.Now().Add(graceTimeout))
			return
		}
		c.client.conn.SetReadDeadline(time.Time{})
		if !answered.Load() && gone(c.client.conn) {
			// A client that has ended its side may have done so for good, and
			// rarely waits for long.
			server.conn.SetReadDeadline(time.Now().Add(c.g.patience))
		}
	}()
	defer c.survive(func() { <-watched })
	stop := func() { // the watch, before anyone else reads from the client
		answered.Store(true)
		c.client.conn.SetReadDeadline(time.Unix(1, 0))
		<-watched
	}
	keep, err := c.respond(f, server, r, stop)
	// What is still under way of the body is of no use to anyone.
	if !keep {
		c.client.conn.SetReadDeadline(time.Unix(1, 0))
	}
	select {
	case e := <-sent:
		err = errors.Join(err, e)
	case <-time.After(graceTimeout):
		c.client.conn.SetReadDeadline(time.Unix(1, 0))
		server.conn.SetWriteDeadline(time.Unix(1, 0))
		err = errors.Join(err, <-sent, errors.New("the answer came before the end of the request"))
	}
	stop()
	if err != nil || !keep {
		c.closeServer()
		c.linger()
		return false
	}
	return true
}

// fail notes that a flow failed.
func (c *connection) fail(f *flow, err error) *refusal {
	refused := failed(f.target, err)
	f.refused.CompareAndSwap(nil, refused)
	c.closeServer()
	return refused
}

const (
	// stallTimeout ends a body that does not go on.
	stallTimeout = 5 * time.Minute

	// graceTimeout is how long a request's body may go on after its answer.
	graceTimeout = time.Second

	// maxInterim bounds answers before the answer.
	maxInterim = 16
)

// respond carries the answer to a request. It reports whether the client's
// connection can go on; the server's is closed where it cannot be used again.
// Upgrade is called before the connection leaves HTTP.
func (c *connection) respond(f *flow, server *side, r *request, upgrade func()) (keep bool, err error) {
	for range maxInterim {
		h, err := server.readHead(nil)
		var status int
		if err == nil {
			status, err = h.status()
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the server closed the connection without an answer")
			}
			c.answerRefusal(c.fail(f, err))
			return false, err
		}
		switch {
		case status == 101 && r.upgrade && h.has("Upgrade", "websocket"):
			b := append([]byte(h.line+"\r\n"), "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
			b = append(h.appendFields(b), "\r\n"...)
			if err := c.toClient(f, b); err != nil {
				return false, err
			}
			upgrade()
			c.bothWays(f, server)
			return false, nil
		case status == 101:
			err := bad("the server switched to a protocol that was not asked for")
			c.answerRefusal(c.fail(f, err))
			return false, err
		case status < 200:
			if r.minor() == 1 {
				b := append(h.appendFields([]byte(h.line+"\r\n")), "\r\n"...)
				if err := c.toClient(f, b); err != nil {
					return false, err
				}
			}
			continue
		}
		return c.final(f, server, r, h, status)
	}
	err = bad("too many interim answers")
	c.answerRefusal(c.fail(f, err))
	return false, err
}

// final carries the last head of an answer, and its body.
func (c *connection) final(f *flow, server *side, r *request, h *head, status int) (keep bool, err error) {
	framing, err := h.body(-1)
	if err != nil {
		c.answerRefusal(c.fail(f, err))
		return false, err
	}
	announced := framing
	if r.method == "HEAD" || status == 204 || status == 304 {
		framing = body{}
	}
	delimited := framing.chunked || framing.length >= 0
	keep = delimited && r.persistent()
	b := append(make([]byte, 0, 1024), h.line...)
	b = append(b, "\r\n"...)
	b = h.appendFields(b)
	for _, v := range h.values("Proxy-Authenticate") {
		if !f.absolute { // the upstream proxy's is the host's affair
			b = appendField(b, "Proxy-Authenticate", v)
		}
	}
	rechunk := true
	if framing.chunked && r.minor() == 0 {
		// The client knows no chunks: the end of the connection ends it.
		rechunk, keep = false, false
	} else if status != 204 {
		b = announced.append(b)
	}
	if !keep {
		b = append(b, "Connection: close\r\n"...)
	}
	b = append(b, "\r\n"...)
	if err := c.toClient(f, b); err != nil {
		return false, err
	}
	if !framing.empty() {
		if err := copyBody(c.client.conn, server, framing, &f.in, rechunk); err != nil {
			// Half an answer must not look like a whole one.
			f.refused.CompareAndSwap(nil, failed(f.target, err))
			c.abort(nil)
			return false, err
		}
	}
	if !delimited || !h.persistent() || len(server.pre) > 0 || !r.body.empty() {
		c.closeServer()
	}
	return keep, nil
}

func (c *connection) toClient(f *flow, b []byte) error {
	c.client.conn.SetWriteDeadline(time.Now().Add(stallTimeout))
	n, err := c.client.conn.Write(b)
	f.in.Add(int64(n))
	return err
}

// bothWays passes bytes on until both sides have ended.
func (c *connection) bothWays(f *flow, server *side) {
	var act activity
	act.touch(time.Now())
	c.settle()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.caughtPump(&c.client, server, &f.in, &act, new(direction)); err != nil {
			var why *refusal
			errors.As(err, &why)
			c.abort(why)
		}
	}()
	defer c.survive(func() { <-done })
	if c.pump(server, &c.client, &f.out, &act, idleTimeout, new(direction)) != nil {
		c.abort(nil)
	}
	<-done
}

// copyBody moves the body of a message. Rechunk writes chunks where they are
// read; otherwise their content.
func copyBody(dst net.Conn, src *side, b body, n *atomic.Int64, rechunk bool) error {
	switch {
	case !b.chunked && b.length < 0:
		err := copyN(dst, src, 1<<62, n)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	case !b.chunked:
		return unexpected(copyN(dst, src, b.length, n))
	}
	for {
		var size int64
		for {
			var used int
			var err error
			if size, used, err = parseChunk(src.pre); err == nil {
				src.take(used)
				break
			} else if err != errShort {
				return err
			}
			if err := src.more(maxHead); err != nil {
				return err
			}
		}
		if size == 0 {
			break
		}
		if rechunk {
			if err := write(dst, strconv.AppendInt(nil, size, 16), "\r\n"); err != nil {
				return err
			}
		}
		if err := copyN(dst, src, size, n); err != nil {
			return unexpected(err)
		}
		if err := src.crlf(); err != nil {
			return err
		}
		if rechunk {
			if err := write(dst, nil, "\r\n"); err != nil {
				return err
			}
		}
	}
	out := []byte("0\r\n")
	for total := 0; ; {
		line, err := src.line()
		if err != nil {
			return err
		}
		if line == "" {
			break
		}
		if total += len(line); total > 8<<10 {
			return errTrailers
		}
		f, err := parseField(line)
		if err != nil {
			return err
		}
		if trailerAllowed(&head{}, f.name) {
			out = appendField(out, f.name, f.value)
		}
	}
	if !rechunk {
		return nil
	}
	return write(dst, append(out, "\r\n"...), "")
}

func write(dst net.Conn, b []byte, s string) error {
	dst.SetWriteDeadline(time.Now().Add(stallTimeout))
	_, err := dst.Write(append(b, s...))
	return err
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// more reads ahead in the middle of a message.
func (s *side) more(limit int) error {
	s.conn.SetReadDeadline(time.Now().Add(stallTimeout))
	return unexpected(s.fill(limit))
}

// crlf takes the end of a line.
func (s *side) crlf() error {
	for len(s.pre) < 2 {
		if err := s.more(maxHead); err != nil {
			return err
		}
	}
	if s.pre[0] != '\r' || s.pre[1] != '\n' {
		return bad("a chunk without its end")
	}
	s.take(2)
	return nil
}

// line takes a line, without its end.
func (s *side) line() (string, error) {
	for {
		for i, b := range s.pre {
			if b == '\n' {
				if i == 0 || s.pre[i-1] != '\r' {
					return "", bad("a line feed without a carriage return")
				}
				l := string(s.pre[:i-1])
				s.take(i + 1)
				if strings.ContainsFunc(l, isControl) {
					return "", bad("a control character in a trailer")
				}
				return l, nil
			}
		}
		if len(s.pre) > 8<<10 {
			return "", errTrailers
		}
		if err := s.more(maxHead); err != nil {
			return "", err
		}
	}
}

// copyN moves exactly limit bytes, and reads none beyond.
func copyN(dst net.Conn, src *side, limit int64, n *atomic.Int64) error {
	for moved := int64(0); moved < limit; {
		now := time.Now()
		dst.SetWriteDeadline(now.Add(stallTimeout))
		if len(src.pre) > 0 {
			k := min(int64(len(src.pre)), limit-moved)
			w, err := dst.Write(src.pre[:k])
			src.take(int(k))
			moved += int64(w)
			n.Add(int64(w))
			if err != nil {
				return err
			}
			continue
		}
		src.conn.SetReadDeadline(now.Add(stallTimeout))
		k, err := step(dst, src.conn, moved, limit-moved)
		moved += k
		n.Add(k)
		if err != nil && !(errors.Is(err, io.EOF) && moved == limit) {
			return err
		}
	}
	return nil
}

// gone waits until a client says more or ends its side, and reports the latter.
// It can be stopped by a deadline.
func gone(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	n, said := 0, error(nil)
	err = rc.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, said = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return said != syscall.EAGAIN && said != syscall.EINTR
	})
	return err == nil && (n <= 0 || said != nil)
}

// alive reports whether an idle server has neither closed its connection nor said
// anything that nobody asked for.
func alive(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = rc.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN
	})
	return err == nil && quiet
}

var statusText = map[int]string{
	400: "Bad Request", 403: "Forbidden", 407: "Proxy Authentication Required", 408: "Request Timeout",
	429: "Too Many Requests",
	431: "Request Header Fields Too Large", 501: "Not Implemented", 502: "Bad Gateway", 504: "Gateway Timeout",
	505: "HTTP Version Not Supported",
}

// answer sends an answer of the gateway's own, and ends the client's connection.
func (c *connection) answer(status int, fields, text string) {
	b := "HTTP/1.1 " + strconv.Itoa(status) + " " + statusText[status] + "\r\n" + fields +
		"Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nContent-Length: " +
		strconv.Itoa(len(text)) + "\r\nConnection: close\r\n\r\n" + text
	c.client.conn.SetWriteDeadline(time.Now().Add(c.g.patience))
	c.client.conn.Write([]byte(b))
	c.linger()
}

// linger ends the client's connection so that it gets what was sent: to close one
// with unread bytes resets it.
func (c *connection) linger() {
	c.client.closeWrite()
	c.client.conn.SetReadDeadline(time.Now().Add(graceTimeout))
	io.Copy(io.Discard, io.LimitReader(c.client.conn, 256<<10))
}

// answerRefusal says why a target was not reached. The field is that of RFC 9209.
func (c *connection) answerRefusal(r *refusal) {
	status, kind := 502, "destination_unavailable"
	more := ""
	switch r.cause {
	case causeDenied:
		status, kind = 403, "http_request_denied"
	case causeLimited:
		status, kind = 429, "http_request_denied"
		more = "Retry-After: 60\r\n"
	case causeMalformed:
		status, kind = 400, "http_request_error"
	case causeName:
		kind = "dns_error"
	case causeRefused:
		kind = "connection_refused"
	case causeUnreachable:
		kind = "destination_ip_unroutable"
	case causeTimeout:
		status, kind = 504, "connection_timeout"
	}
	reason := clean(r.reason)
	c.answer(status, more+"Proxy-Status: sbxrun; error="+kind+"; details="+quoted(reason)+"\r\n", explain(reason, r))
}

// quoted makes a string of RFC 8941 from printable ASCII.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// explain is a refusal for people, and for programs that read what people do.
func explain(reason string, r *refusal) string {
	verb := "refused"
	if r.verdict == Error {
		verb = "failed"
	}
	s := "sbxrun: " + verb + ": " + reason + "\n"
	if r.rule != "" {
		s += "rule: " + clean(r.rule) + "\n"
	}
	if r.grant != "" {
		s += "hint: to allow it, run sbxrun with --allow-host " + clean(r.grant) + "\n"
	}
	return s
}

// proxy serves a connection to the proxy port: SOCKS or HTTP, by its first byte.
func (g *Gateway) proxy(c *connection) {
	c.client.conn.SetReadDeadline(time.Now().Add(g.patience))
	if err := c.client.fill(maxHead); err != nil {
		return
	}
	switch c.client.pre[0] {
	case 4, 5:
		c.socks()
	default:
		c.relay(RouteHTTP, nil)
	}
}
