// Package egress decides which connections leave a sandbox, by the name that
// each was meant for, and carries those that may.
//
// A [Gateway] runs in the supervisor, outside of the sandbox, on listeners that
// were opened inside it and handed out. Four routes lead to it:
//
//   - transparent: a program connects to an address as it always does. The stub
//     resolver gave every allowed name an address of its own, so the address that
//     was dialled says which name was meant;
//   - CONNECT and plain HTTP, for programs that use HTTP_PROXY;
//   - SOCKS4a and SOCKS5, for those that use ALL_PROXY.
//
// All of them ask the one pure function, rules.decide, with a name in the one form
// that [policy.HostName] gives it. The name is looked up on the host, every
// address is checked, and the address that was checked is the one dialled. What
// the first bytes of a connection claim (the name in a TLS ClientHello, the Host
// of an HTTP request) must agree with what was decided.
//
// The package does not open listeners, knows no driver and no namespace, and
// sees nothing of what TLS hides. It links neither net/http nor crypto/tls:
// every run of sbxrun would pay for their initialisation.
package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sbxrun/sbxrun/policy"
)

// Options are what a Gateway is given besides the rules. The zero value is the
// host's own resolver and network.
type Options struct {
	// Resolve looks a name up on the host: a name as policy.HostName has it,
	// without the search list of the host. Nil is the host's own resolver.
	// An error that is a *net.DNSError with IsNotFound says that the name does
	// not exist.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)

	// Dial connects to an address that was checked. Nil is net.Dialer.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

	// Own reports whether an address is one of the host's own, which are refused
	// unless a rule lists them one by one. Nil asks the host's routes, and where
	// these cannot be asked (not Linux) its interfaces.
	Own func(netip.Addr) (bool, error)

	// Upstream is the proxy that the host itself must use, as
	// http://[USER:PASSWORD@]HOST:PORT; "" is none. The sandbox never sees it.
	Upstream string

	// NoProxy lists what the host dials without Upstream, as NO_PROXY does.
	NoProxy string

	// Token is what the CONNECT, HTTP and SOCKS routes ask for, as the
	// password of any user (for SOCKS4, as the user); "" asks for nothing.
	Token string

	// Connections bounds connections at one time, each of which takes two
	// descriptors of the supervisor; 0 is 1024.
	Connections int

	// Ask, if not nil, is asked about a connection that no rule allows and none denies,
	// before anything is looked up or dialled: Record.Grant is the rule that would allow
	// it. Names are then given addresses without a look-up, as those of the rules. It may
	// wait, and is called from many goroutines.
	Ask func(ctx context.Context, r Record) Answer

	// Who, if not nil, finds the process that has a client's socket, by its number and its
	// arguments; 0 is not known. It is called by who calls Record.Who.
	Who func(Socket) (pid int, arguments string)

	// Record is told every decision and every connection that ended. It is
	// called from many goroutines and must not block, but for Record.Who.
	Record func(Record)
}

// An Answer is what came of a question.
type Answer uint8

// The answers.
const (
	No     Answer = iota
	Once          // this connection may be made
	Always        // so may all that the rule allows, for as long as the gateway runs
)

// A Socket is a client's in the sandbox, as the kernel has it there.
type Socket struct {
	UDP           bool
	Local, Remote netip.AddrPort // Remote is the gateway's end, for TCP
}

// Route is the way by which a connection came to the gateway.
type Route string

// The routes.
const (
	RouteTransparent Route = "transparent"
	RouteConnect     Route = "connect"
	RouteHTTP        Route = "http"
	RouteSOCKS       Route = "socks"
	RouteDNS         Route = "dns"
)

// Verdict is what became of a request.
type Verdict string

// The verdicts.
const (
	Allow Verdict = "allow"
	Deny  Verdict = "deny"  // a rule, the address guard or a limit refused it
	Error Verdict = "error" // it was allowed, and failed: no such name, no answer
)

// A Record is one decision, or one connection that ended. Its texts are
// printable ASCII, whatever the sandbox sent, and at most a few hundred bytes
// each.
type Record struct {
	Time     time.Time     `json:"time"` // when it began
	Route    Route         `json:"route"`
	Name     string        `json:"name,omitempty"` // the name that was meant; "" for an address
	Port     uint16        `json:"port,omitempty"` // 0 for a look-up
	Addr     netip.Addr    `json:"addr,omitzero"`  // dialled, or meant if there is no name
	Protocol string        `json:"protocol,omitempty"`
	Method   string        `json:"method,omitempty"` // of a plain HTTP request
	Verdict  Verdict       `json:"verdict"`
	Rule     string        `json:"rule,omitempty"`   // the rule that decided
	Grant    string        `json:"grant,omitempty"`  // the rule that would allow it, if one is to be advised
	Reason   string        `json:"reason,omitempty"` // why it was refused or failed, in words
	BytesIn  int64         `json:"bytes_in"`         // from the network to the sandbox
	BytesOut int64         `json:"bytes_out"`        // from the sandbox to the network
	Duration time.Duration `json:"duration_ns,omitempty"`

	// Who finds the process that was refused or asks, as Options.Who does. It is not cheap,
	// and tells nothing once Ask or Record has returned; nil is not known.
	Who func() (pid int, arguments string) `json:"-"`
}

// Target is what was asked for: "example.com:443", "[2001:db8::1]:80", or the name
// alone for a look-up.
func (r *Record) Target() string { return target{r.Name, r.Addr, r.Port}.String() }

// Stats counts what a gateway did since it was made.
type Stats struct {
	Connections   uint64 `json:"connections"` // allowed
	Denied        uint64 `json:"denied"`      // connections and requests refused
	Failed        uint64 `json:"failed"`      // allowed, and not reached
	Limited       uint64 `json:"limited"`     // of those denied: by a limit
	Requests      uint64 `json:"requests"`    // plain HTTP requests that were passed on
	Lookups       uint64 `json:"lookups"`     // DNS questions
	LookupsDenied uint64 `json:"lookups_denied"`
	Active        uint64 `json:"active"` // connections now
	BytesIn       uint64 `json:"bytes_in"`
	BytesOut      uint64 `json:"bytes_out"`
}

// Bounds of a gateway. None can be changed by what is inside of the sandbox.
const (
	defaultConnections = 1024

	// handshakeTimeout bounds every exchange that comes before bytes are
	// passed through: a proxy request, a ClientHello, a head of HTTP.
	handshakeTimeout = 30 * time.Second

	dialTimeout   = 30 * time.Second // all addresses of a name together
	lookupTimeout = 10 * time.Second

	// routesHold is how long an answer about an address counts while that is dialled.
	routesHold = 5 * time.Millisecond

	// narrowBuffer is what a socket holds each way, bytes, once there are more
	// connections than maxWide; the kernel doubles it for what it adds, see socket(7).
	// Before, it grows as the host's settings allow: with less, whoever moves much waits
	// for the other at every step.
	narrowBuffer = 64 << 10
	maxWide      = 16

	// idleTimeout ends a connection on which nothing moved.
	idleTimeout = time.Hour

	// keepAliveTimeout ends a proxy connection that waits for its next
	// request.
	keepAliveTimeout = 2 * time.Minute
)

// A Gateway carries the connections of one sandbox. It is safe for concurrent
// use.
type Gateway struct {
	o        Options
	upstream *upstream
	names    names
	resolver resolver
	routes   *routes // that Options.Own asks if it is nobody else's

	rules      atomic.Pointer[rules]
	changing   sync.Mutex    // guards the two that rules are made of
	policy     policy.Egress // as New and Reload had it
	granted    []policy.EgressRule
	rates      rates
	doubtful   *rate.Limiter // new names that would be asked about
	challenges challenges

	answering chan struct{}

	lastFull atomic.Int64  // when too many connections were last recorded
	patience time.Duration // handshakeTimeout; tests have less

	mu     sync.Mutex
	active map[*connection]struct{}
	ctx    context.Context // of Serve; nil before
	late   []net.Listener  // given to Add before Serve
	fail   func(error)
	group  sync.WaitGroup

	stats struct {
		connections, denied, failed, limited, requests, lookups, lookupsDenied, in, out atomic.Uint64
	}
}

// New makes a gateway for a network policy. A rule that is malformed is an
// *policy.InvalidError; the gateway never drops one.
func New(p policy.Egress, o Options) (*Gateway, error) {
	r, err := compile(p)
	if err != nil {
		return nil, err
	}
	up, err := parseUpstream(o.Upstream, o.NoProxy)
	if err != nil {
		return nil, err
	}
	if o.Resolve == nil {
		o.Resolve = hostResolve
	}
	if o.Dial == nil {
		o.Dial = hostDial
	}
	routes := new(routes)
	if o.Own == nil {
		o.Own = routes.own
	}
	if o.Connections <= 0 {
		o.Connections = defaultConnections
	}
	if o.Record == nil {
		o.Record = func(Record) {}
	}
	if o.Who == nil {
		o.Who = func(Socket) (int, string) { return 0, "" }
	}
	g := &Gateway{o: o, policy: p, upstream: up, routes: routes, patience: handshakeTimeout,
		active:    map[*connection]struct{}{},
		answering: make(chan struct{}, maxAnswering)}
	g.rules.Store(r)
	g.resolver.lookup = o.Resolve
	g.resolver.fresh = rate.NewLimiter(newNamesPerSecond, newNamesBurst)
	g.doubtful = rate.NewLimiter(newNamesPerSecond, newNamesBurst)
	return g, nil
}

// maxPorts is how many ports get listeners of their own, at most.
const maxPorts = 1024

// Ask says what a gateway of a policy would answer to a connection to a host, a name or
// an address, whatever the name resolves to. Port 0 is for a look-up of the name.
func Ask(p policy.Egress, host string, port uint16) (Record, error) {
	r, err := compile(p)
	if err != nil {
		return Record{}, err
	}
	q := query{target: target{name: host, port: port}}
	if addr, err := netip.ParseAddr(host); err == nil {
		q.name, q.addr = "", addr.Unmap()
	}
	d := r.decide(q)
	rec := Record{Name: q.name, Addr: q.addr, Port: port, Verdict: Deny, Rule: d.rule, Grant: d.grant, Reason: d.reason}
	if d.allow {
		rec.Verdict = Allow
	}
	return rec, nil
}

// Ports returns the ports that need transparent listeners, in order. Port 53 is
// never among them: it is the stub resolver's, whatever address is asked. All says
// that those are not enough: a rule names every port, or more than a thousand,
// and listeners for them are made as they are asked for; see Add.
func (g *Gateway) Ports() (list []uint16, all bool) {
	list, all = g.rules.Load().ports()
	return list, all || g.o.Ask != nil
}

// Reload replaces the rules of a running gateway: new connections are decided by
// them, and those that they refuse are closed. What was granted meanwhile stays. If a
// rule is malformed, the last good rules stay and the error says which.
func (g *Gateway) Reload(p policy.Egress) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	r, err := g.compile(p, g.granted)
	if err != nil {
		return err
	}
	g.policy = p
	g.rules.Store(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.active {
		if refused := c.again(r); refused != nil {
			c.abort(refused)
		}
	}
	return nil
}

// Stats returns the counts until now.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	active := len(g.active)
	g.mu.Unlock()
	s := &g.stats
	return Stats{
		Connections: s.connections.Load(), Denied: s.denied.Load(), Failed: s.failed.Load(), Limited: s.limited.Load(),
		Requests: s.requests.Load(), Lookups: s.lookups.Load(), LookupsDenied: s.lookupsDenied.Load(),
		Active: uint64(active), BytesIn: s.in.Load(), BytesOut: s.out.Load(),
	}
}

// Listeners are sockets of the sandbox. They belong to Serve.
type Listeners struct {
	// DNS are UDP sockets of port 53. One that is bound to no address answers
	// from the address that was asked, on Linux.
	DNS []net.PacketConn

	DNSStream []net.Listener // TCP port 53

	// Transparent are listeners bound to no address, one for each port and
	// family: the local address of what they accept is what was dialled.
	Transparent []net.Listener

	// Proxy are listeners for CONNECT, HTTP and SOCKS, told apart by the first
	// byte.
	Proxy []net.Listener
}

// Serve carries connections until ctx ends, or a listener fails. It closes the
// listeners and every connection, and returns once nothing of it is left; the
// error is nil if ctx ended it. It is called once.
func (g *Gateway) Serve(ctx context.Context, l Listeners) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g.mu.Lock()
	if g.ctx != nil {
		g.mu.Unlock()
		closeAll(l)
		return errors.New("egress: Serve was called before")
	}
	g.ctx, g.fail = ctx, cancel
	g.resolver.ctx, g.resolver.run = ctx, g.group.Go
	l.Transparent = append(l.Transparent, g.late...)
	g.late = nil
	for _, p := range l.DNS {
		g.group.Go(func() { g.dnsPackets(ctx, p) })
	}
	for _, s := range l.DNSStream {
		g.accept(ctx, s, g.dnsStream)
	}
	for _, s := range l.Transparent {
		g.accept(ctx, s, g.transparent)
	}
	for _, s := range l.Proxy {
		g.accept(ctx, s, g.proxy)
	}
	g.mu.Unlock()

	<-ctx.Done()
	g.mu.Lock()
	for c := range g.active {
		c.abort(nil)
	}
	g.mu.Unlock()
	g.group.Wait()
	g.routes.close()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func closeAll(l Listeners) {
	for _, p := range l.DNS {
		p.Close()
	}
	for _, list := range [...][]net.Listener{l.DNSStream, l.Transparent, l.Proxy} {
		for _, s := range list {
			s.Close()
		}
	}
}

// Add serves one more transparent listener, which belongs to the gateway from
// then on: for a port that was asked for while the sandbox runs.
func (g *Gateway) Add(l net.Listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ctx == nil:
		g.late = append(g.late, l)
	case g.ctx.Err() != nil:
		l.Close()
	default:
		g.accept(g.ctx, l, g.transparent)
	}
}

// Refused records that a program tried to connect to an address of the sandbox
// where nothing listens, for want of a rule. Who is as in Record.
func (g *Gateway) Refused(to netip.AddrPort, who func() (pid int, arguments string)) {
	t, refused := g.target(to.Addr().Unmap(), to.Port())
	if refused == nil {
		d := g.rules.Load().decide(query{target: t})
		if d.allow {
			return // a rule that came meanwhile
		}
		refused = denial(d)
	}
	g.refuse(Record{Time: time.Now(), Route: RouteTransparent, Name: t.name, Addr: t.addr, Port: t.port, Who: who},
		refused)
}

// accept hands every connection of l to handle, within the bound on
// connections. The caller holds g.mu.
func (g *Gateway) accept(ctx context.Context, l net.Listener, handle func(*connection)) {
	g.group.Go(func() {
		defer g.failing()
		stop := context.AfterFunc(ctx, func() { l.Close() })
		defer stop()
		defer l.Close()
		for delay := time.Duration(0); ; {
			nc, err := l.Accept()
			if ctx.Err() != nil {
				if err == nil {
					nc.Close()
				}
				return
			}
			if err != nil {
				// Out of descriptors, or the peer gave up: neither may end the
				// sandbox's network, and neither may spin.
				var ne net.Error
				if errors.Is(err, net.ErrClosed) || !errors.As(err, &ne) || !temporary(err) {
					g.fail(err)
					return
				}
				delay = min(max(2*delay, time.Millisecond), 100*time.Millisecond)
				select {
				case <-time.After(delay):
				case <-ctx.Done():
				}
				continue
			}
			delay = 0
			c := &connection{g: g, ctx: ctx, client: side{conn: nc}}
			n := g.register(c)
			if n == 0 {
				g.full(c)
				c.reset()
				continue
			}
			if n > maxWide {
				narrow(nc)
			}
			g.group.Go(func() {
				defer g.unregister(c)
				defer c.survive(func() {})
				handle(c)
			})
		}
	})
}

// narrow bounds what a connection's socket holds. The kernel lets one grow to tens of MiB,
// which are in no sandbox's limit of memory and of which the host has a few GiB for all of
// its TCP: thousands of connections whose other side does not read would take those.
func narrow(conn net.Conn) {
	if t, ok := conn.(interface {
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
	}); ok {
		t.SetReadBuffer(narrowBuffer)
		t.SetWriteBuffer(narrowBuffer)
	}
}

// full counts and records a connection that is one too many. A flood of them is
// one record a second.
func (g *Gateway) full(c *connection) {
	now := time.Now()
	last := g.lastFull.Load()
	if now.UnixNano()-last < int64(time.Second) || !g.lastFull.CompareAndSwap(last, now.UnixNano()) {
		g.stats.denied.Add(1)
		g.stats.limited.Add(1)
		return
	}
	c.deny(RouteTransparent, target{}, "", &refusal{
		verdict: Deny, cause: causeLimited, rule: byLimit, reason: "more than " + strconv.Itoa(g.o.Connections) +
			" connections at one time",
	})
}

// register counts a connection, and returns how many there are: 0 if it is one too many.
func (g *Gateway) register(c *connection) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.active) >= g.o.Connections || g.ctx.Err() != nil {
		return 0
	}
	g.active[c] = struct{}{}
	return len(g.active)
}

func (g *Gateway) unregister(c *connection) {
	b := c.client.bulk.Load()
	c.mu.Lock()
	c.client.close()
	c.mu.Unlock()
	c.closeServer()
	if b != nil {
		b.release()
	}
	g.mu.Lock()
	delete(g.active, c)
	g.mu.Unlock()
}
