package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// A connection is one that the sandbox made, for as long as it lasts. A plain
// HTTP one can carry requests for several targets, one after the other.
type connection struct {
	g      *Gateway
	ctx    context.Context // of Serve
	client side

	mu     sync.Mutex
	server *side // nil while there is none
	flow   *flow // what server is for
	dead   bool
	steady bool // from now on nothing but pumps uses the two sides

	who func() (pid int, arguments string) // see asker
}

// A flow is what a connection carries at the moment: one target, allowed by one
// rule.
type flow struct {
	route    Route
	target   target
	resolved netip.Addr // dialled; invalid behind an upstream proxy
	own      bool
	protocol protocol
	claim    string // the name that the connection says it is for; "" if it says none
	method   string // of a plain HTTP request
	rule     string
	absolute bool                // the server is an upstream proxy, and takes absolute URLs
	once     []policy.EgressRule // what was granted for it alone
	sent     int                 // bytes of the method of the first request that went ahead
	start    time.Time
	in, out  atomic.Int64
	refused  atomic.Pointer[refusal]
}

// A refusal says why a target was not reached.
type refusal struct {
	verdict Verdict
	cause   cause
	rule    string
	grant   string
	reason  string
}

// cause is a refusal's kind, for the answer in each protocol.
type cause uint8

const (
	causeDenied    cause = iota // by the rules
	causeLimited                // by a limit
	causeMalformed              // not a request that can be decided
	causeName                   // no such name
	causeRefused                // the host refused the connection
	causeUnreachable
	causeTimeout
	causeFailed // anything else
)

func (r *refusal) Error() string { return r.reason }

func denial(d decision) *refusal {
	return &refusal{verdict: Deny, cause: causeDenied, rule: d.rule, grant: d.grant, reason: d.reason}
}

func malformed(reason string) *refusal {
	return &refusal{verdict: Deny, cause: causeMalformed, rule: byDefault, reason: reason}
}

// byLimit is the rule that refuses what is too much.
const byLimit = "limit"

// failed words an error of the host's network.
func failed(t target, err error) *refusal {
	r := &refusal{verdict: Error, cause: causeFailed}
	var de *net.DNSError
	var fault *refusal
	switch {
	case errors.As(err, &fault):
		return fault
	case errors.Is(err, errTooManyNames):
		r.verdict, r.cause, r.rule, r.reason = Deny, causeLimited, byLimit, err.Error()
	case errors.As(err, &de) && de.IsNotFound:
		r.cause, r.reason = causeName, "no such name"
	case errors.As(err, &de):
		r.cause, r.reason = causeFailed, "look-up failed: "+de.Err
	case errors.Is(err, syscall.ECONNREFUSED):
		r.cause, r.reason = causeRefused, "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.ETIMEDOUT):
		r.cause, r.reason = causeTimeout, "timed out"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		r.cause, r.reason = causeUnreachable, "unreachable"
	default:
		r.reason = err.Error()
	}
	r.reason = t.String() + ": " + r.reason
	return r
}

// temporary reports whether accept(2) may succeed later.
func temporary(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
		// "Linux accept() passes already-pending network errors on the new
		// socket"; see accept(2).
		syscall.ENETDOWN, syscall.EPROTO, syscall.ENOPROTOOPT, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.EOPNOTSUPP,
		syscall.ENETUNREACH,
	}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// local returns the address that the client dialled, which may be one that
// stands for a name.
func (c *connection) local() (netip.AddrPort, bool) {
	ap := addrPort(c.client.conn.LocalAddr())
	return ap, ap.IsValid()
}

// addrPort is the address of a TCP socket, invalid for any other.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// target returns what an address of the sandbox means: the name that owns it, or
// the address itself.
func (g *Gateway) target(a netip.Addr, port uint16) (target, *refusal) {
	name, ours := g.names.name(a)
	if ours && name == "" {
		r := malformed(a.String() + " is the resolver's, and stands for no name: look the name up again")
		r.cause = causeDenied
		return target{addr: a, port: port}, r
	}
	if ours {
		return target{name: name, port: port}, nil
	}
	return target{addr: a, port: port}, nil
}

// open decides about a target, and connects to it. The answer is a flow, which
// is then the connection's current one, or the reason why there is none.
// Absolute asks for a server that takes absolute URLs where an upstream proxy is
// in the way.
func (c *connection) open(route Route, t target, absolute bool) (*flow, *refusal) {
	g := c.g
	r := g.rules.Load()
	f := &flow{route: route, target: t, start: time.Now()}
	q := query{target: t}
	if t.name == "" {
		q.own = g.isOwn(t.addr)
	}
	d := r.decide(q)
	if !d.allow {
		if r = g.ask(c, f, d); r == nil {
			return nil, denial(d)
		}
		if d = r.decide(q); !d.allow {
			return nil, denial(d)
		}
	}
	if refused := g.rate(r, t); refused != nil {
		return nil, refused
	}
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()

	via := g.upstream.proxyFor(t)
	asked := time.Now()
	candidates, own := []netip.Addr{t.addr}, []bool{q.own}
	if t.name != "" {
		found, err := g.resolver.resolve(ctx, t.name, via != nil)
		if err != nil && via == nil {
			return nil, failed(t, err)
		}
		candidates, own, asked = candidates[:0], own[:0], time.Now()
		for _, a := range found {
			q.resolved, q.own = a, g.isOwn(a)
			if each := r.decide(q); each.allow {
				candidates, own = append(candidates, a), append(own, q.own)
			} else {
				d = each
			}
		}
		if len(candidates) == 0 && len(found) > 0 {
			return nil, denial(d)
		}
	}
	f.rule = d.rule
	if !d.allow {
		f.rule = r.decide(query{target: t}).rule // some addresses were passed over
	}
	server, addr, err := g.connect(ctx, t, candidates, via, absolute)
	if err != nil {
		return nil, failed(t, err)
	}
	g.mu.Lock()
	if len(g.active) > maxWide {
		narrow(server.conn)
	}
	g.mu.Unlock()
	if via == nil {
		f.resolved = addr
		// A dial may take long, and routes change.
		if i := slices.Index(candidates, addr); i >= 0 && time.Since(asked) < routesHold {
			f.own = own[i]
		} else {
			f.own = g.isOwn(addr)
		}
	}
	f.absolute = via != nil && absolute
	if !c.carry(f, server) {
		return nil, &refusal{verdict: Error, cause: causeFailed, reason: "the sandbox ended"}
	}
	// Rules that came while it was dialled count, too: from carry on, a reload finds
	// the flow.
	if now := g.rules.Load(); now != r || f.once != nil {
		if refused := f.decide(now, f.protocol); refused != nil {
			c.mu.Lock()
			c.server, c.flow = nil, nil
			c.mu.Unlock()
			server.close()
			return nil, refused
		}
	}
	g.stats.connections.Add(1)
	return f, nil
}

// carry makes a server and its flow the current ones, unless the connection was
// ended meanwhile.
func (c *connection) carry(f *flow, server *side) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		server.conn.Close()
		return false
	}
	c.server, c.flow = server, f
	return true
}

// recheck asks the rules again, now that the protocol of a flow is known and it
// claims to be for a name; "" claims nothing.
func (c *connection) recheck(f *flow, p protocol, claim string) *refusal {
	c.mu.Lock()
	f.protocol, f.claim = p, claim
	c.mu.Unlock()
	return f.decide(c.g.rules.Load(), p)
}

// decide asks the rules about a flow that carries p.
func (f *flow) decide(r *rules, p protocol) *refusal {
	r = r.with(f.once)
	q := query{target: f.target, protocol: p, own: f.own}
	if f.target.name != "" {
		q.resolved = f.resolved
	}
	if d := r.decide(q); !d.allow {
		return denial(d)
	}
	if f.target.name != "" || f.claim == "" {
		return nil
	}
	// The connection was made to an address that a rule lists. A name that it
	// claims cannot widen that, but a deny rule for it counts.
	if d := r.denied(query{target: target{name: f.claim, port: f.target.port}, protocol: p}); d.rule != "" {
		return denial(d)
	}
	return nil
}

// again decides anew about what the connection carries, after a reload.
func (c *connection) again(r *rules) *refusal {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flow == nil {
		return nil
	}
	return c.flow.decide(r, c.flow.protocol)
}

// closeServer ends the current flow and records it.
func (c *connection) closeServer() {
	c.mu.Lock()
	s, f := c.server, c.flow
	c.server, c.flow = nil, nil
	c.mu.Unlock()
	if s == nil {
		return
	}
	s.close()
	c.finish(f)
}

// abort ends a connection from outside: both its sides are reset, and whoever
// serves it finds them closed.
func (c *connection) abort(why *refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	if c.flow != nil && why != nil {
		c.flow.refused.CompareAndSwap(nil, why)
	}
	c.reset()
}

// reset closes both sides so that the peers see a reset: an end of file would
// look like the end of an answer.
func (c *connection) reset() {
	c.client.reset()
	if c.server != nil {
		c.server.reset()
	}
}

// deny records that a target was refused, before anything was carried.
func (c *connection) deny(route Route, t target, method string, r *refusal) {
	c.g.refuse(Record{Time: time.Now(), Route: route, Name: t.name, Addr: t.addr, Port: t.port, Method: method,
		Who: c.asker()}, r)
}

// asker finds the process at the other end, once: who has asked and gone is refused, too.
func (c *connection) asker() func() (pid int, arguments string) {
	if c.who == nil {
		c.who = sync.OnceValues(func() (int, string) {
			conn := c.client.conn
			pid, arguments := c.g.o.Who(Socket{Local: addrPort(conn.RemoteAddr()), Remote: addrPort(conn.LocalAddr())})
			if hungUp(conn) { // the address may be another's
				return 0, ""
			}
			return pid, arguments
		})
	}
	return c.who
}

// refuse counts and records a refusal.
func (g *Gateway) refuse(rec Record, r *refusal) {
	switch {
	case r.verdict == Error:
		g.stats.failed.Add(1)
	case rec.Route == RouteDNS:
		g.stats.lookupsDenied.Add(1)
	default:
		g.stats.denied.Add(1)
	}
	if r.cause == causeLimited {
		g.stats.limited.Add(1)
	}
	rec.Verdict, rec.Rule, rec.Grant, rec.Reason = r.verdict, r.rule, r.grant, r.reason
	g.record(rec)
}

// finish records a flow that ended.
func (c *connection) finish(f *flow) {
	g := c.g
	rec := Record{
		Time: f.start, Route: f.route, Name: f.target.name, Addr: f.target.addr, Port: f.target.port,
		Protocol: f.protocol.String(), Method: f.method,
		Verdict: Allow, Rule: f.rule, BytesIn: f.in.Load(), BytesOut: f.out.Load(), Duration: time.Since(f.start),
	}
	if f.resolved.IsValid() {
		rec.Addr = f.resolved
	}
	g.stats.in.Add(uint64(rec.BytesIn))
	g.stats.out.Add(uint64(rec.BytesOut))
	if r := f.refused.Load(); r != nil {
		rec.Who = c.asker()
		g.refuse(rec, r)
		return
	}
	g.record(rec)
}

func (g *Gateway) record(r Record) {
	r.Name, r.Reason, r.Rule, r.Grant, r.Method = clean(r.Name), clean(r.Reason), clean(r.Rule), clean(r.Grant),
		clean(r.Method)
	g.o.Record(r)
}

// clean makes a text that may hold what the sandbox sent safe for a log: one
// line of printable ASCII, of bounded length.
func clean(s string) string {
	const limit = 400
	plain := len(s) <= limit
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] >= ' ' && s[i] < 0x7f
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if b.Len() >= limit {
			b.WriteString("...")
			break
		}
		if s[i] >= ' ' && s[i] < 0x7f {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		}
	}
	return b.String()
}

// A side is one end of a connection, with what was read ahead from it.
type side struct {
	conn net.Conn
	pre  []byte
	bulk atomic.Pointer[bulk] // the socket, once conn is closed for it
}

// errTooLong says that more would have to be read ahead than is kept.
var errTooLong = errors.New("too long")

// fill reads ahead once, up to limit bytes in all.
func (s *side) fill(limit int) error {
	if len(s.pre) >= limit {
		return errTooLong
	}
	if cap(s.pre)-len(s.pre) < 512 {
		s.pre = append(make([]byte, 0, min(max(2048, 2*len(s.pre)), limit+512)), s.pre...)
	}
	n, err := s.conn.Read(s.pre[len(s.pre):min(cap(s.pre), limit)])
	s.pre = s.pre[:len(s.pre)+n]
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// take drops n bytes that were read ahead.
func (s *side) take(n int) {
	s.pre = s.pre[n:]
	if len(s.pre) == 0 {
		s.pre = nil
	}
}

// Read reads what was read ahead, then from the connection.
func (s *side) Read(b []byte) (int, error) {
	if len(s.pre) > 0 {
		n := copy(b, s.pre)
		s.take(n)
		return n, nil
	}
	return s.conn.Read(b)
}

func (s *side) closeWrite() {
	if s.bulk.Load() == nil {
		cw, ok := s.conn.(interface{ CloseWrite() error })
		if !ok || !errors.Is(cw.CloseWrite(), net.ErrClosed) {
			return
		}
	}
	if b := s.bulk.Load(); b != nil {
		b.closeWrite()
	}
}

func (s *side) reset() {
	if b := s.bulk.Load(); b != nil {
		b.reset()
		return
	}
	if t, ok := s.conn.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	s.conn.Close()
}
