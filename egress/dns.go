package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/policy"
	"golang.org/x/net/dns/dnsmessage"
)

// The stub resolver. It answers from the rules, not from the network: a name that
// some rule may allow gets an address of the gateway's own, every other name
// does not exist. A name that may be allowed is looked up on the host, so that
// one that does not exist does not exist in the sandbox either; nothing of the
// answer gets in but that. HTTPS and SVCB records are always absent: they carry
// keys for encrypted ClientHellos, addresses and HTTP/3.

const (
	// maxAnswering bounds the questions that wait for the host's resolver; UDP
	// ones beyond are dropped, and asked again by the client.
	maxAnswering = 256

	dnsIdle = 10 * time.Second

	maxUDP = 512 // the answers are all smaller; RFC 1035, 4.2.1

	// codeProhibited is an extended error; RFC 8914, 4.19.
	codeProhibited = 18
)

// A question is what a DNS message asks, as far as the gateway answers it.
type question struct {
	header dnsmessage.Header
	q      dnsmessage.Question
	edns   bool
}

// errDrop says that a message deserves no answer.
var errDrop = errors.New("not a question")

// parseQuestion reads a message. If the error is nil, rcode says whether the
// question can be answered at all.
func parseQuestion(b []byte) (q question, rcode dnsmessage.RCode, err error) {
	var p dnsmessage.Parser
	if q.header, err = p.Start(b); err != nil || q.header.Response {
		return q, 0, errDrop
	}
	if q.header.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, nil
	}
	if q.q, err = p.Question(); err != nil {
		return q, dnsmessage.RCodeFormatError, nil
	}
	_, err = p.Question()
	if err != dnsmessage.ErrSectionDone || p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, nil
	}
	if rcode = q.extensions(&p); rcode == dnsmessage.RCodeSuccess && q.q.Class != dnsmessage.ClassINET {
		rcode = dnsmessage.RCodeRefused
	}
	return q, rcode, nil
}

// extensions reads the last section of a message.
func (q *question) extensions(p *dnsmessage.Parser) dnsmessage.RCode {
	for {
		h, err := p.AdditionalHeader()
		if err == dnsmessage.ErrSectionDone {
			return dnsmessage.RCodeSuccess
		}
		if err != nil || p.SkipAdditional() != nil {
			return dnsmessage.RCodeFormatError
		}
		if h.Type == dnsmessage.TypeOPT {
			if q.edns {
				return dnsmessage.RCodeFormatError // RFC 6891, 6.1.1
			}
			q.edns = true
			if h.TTL>>16&0xff != 0 {
				return 16 // BADVERS
			}
		}
	}
}

// A reply is what the gateway answers to a question.
type reply struct {
	rcode dnsmessage.RCode
	num   uint32       // of a name, for A and AAAA
	addrs []netip.Addr // or addresses as they are
	ptr   string       // or a name
	why   string       // for people
}

// pack writes a reply.
func (q *question) pack(r reply) ([]byte, error) {
	b := dnsmessage.NewBuilder(make([]byte, 0, maxUDP), dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, RecursionDesired: q.header.RecursionDesired,
		RecursionAvailable: true, RCode: r.rcode & 15,
	})
	b.EnableCompression()
	if q.q.Name.Length > 0 {
		if err := errors.Join(b.StartQuestions(), b.Question(q.q)); err != nil {
			return nil, err
		}
	}
	if err := q.answers(&b, r); err != nil {
		return nil, err
	}
	if q.edns {
		var opt dnsmessage.OPTResource
		if r.why != "" {
			why := r.why[:min(len(r.why), 100)]
			opt.Options = []dnsmessage.Option{{Code: 15, Data: append([]byte{0, codeProhibited}, why...)}}
		}
		var oh dnsmessage.ResourceHeader
		if err := errors.Join(oh.SetEDNS0(1232, r.rcode, false), b.StartAdditionals(), b.OPTResource(oh, opt)); err != nil {
			return nil, err
		}
	}
	return b.Finish()
}

// answers adds those of a reply that are of the type that was asked for.
func (q *question) answers(b *dnsmessage.Builder, r reply) error {
	err := b.StartAnswers()
	if err != nil || r.rcode != dnsmessage.RCodeSuccess {
		return err
	}
	h := dnsmessage.ResourceHeader{Name: q.q.Name, Class: dnsmessage.ClassINET, TTL: uint32(nameTTL / time.Second)}
	if r.num != 0 {
		r.addrs = []netip.Addr{netip.AddrFrom4(nameAddr4(r.num)), netip.AddrFrom16(nameAddr6(r.num))}
	}
	for _, a := range r.addrs {
		switch {
		case a.Is4() && q.q.Type == dnsmessage.TypeA:
			err = b.AResource(h, dnsmessage.AResource{A: a.As4()})
		case a.Is6() && q.q.Type == dnsmessage.TypeAAAA:
			err = b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
	if r.ptr != "" {
		n, err := dnsmessage.NewName(r.ptr + ".")
		if err != nil {
			return err
		}
		return b.PTRResource(h, dnsmessage.PTRResource{PTR: n})
	}
	return err
}

// answerDNS answers a message; nil is no answer. Wait says that the host may be
// asked, which takes time; if it has to be and wait is false, later is true. Who is as
// in Record.
func (g *Gateway) answerDNS(ctx context.Context, msg []byte, wait bool, who func() (int, string)) (out []byte,
	later bool) {
	defer func() {
		if v := recover(); v != nil {
			out, later = nil, false
			g.refuse(Record{Time: time.Now(), Route: RouteDNS}, fault(v))
		}
	}()
	q, rcode, err := parseQuestion(msg)
	if err != nil {
		return nil, false
	}
	r := reply{rcode: rcode}
	if rcode == dnsmessage.RCodeSuccess {
		if r, later = g.lookup(ctx, q.q, wait, who); later {
			return nil, true
		}
	}
	g.stats.lookups.Add(1)
	out, err = q.pack(r)
	if err != nil {
		return nil, false
	}
	return out, false
}

// lookup decides what a question is answered with.
func (g *Gateway) lookup(ctx context.Context, q dnsmessage.Question, wait bool, who func() (int, string)) (r reply,
	later bool) {
	raw := q.Name.String()
	name, err := policy.HostName(raw)
	rec := Record{Time: time.Now(), Route: RouteDNS, Name: name, Who: who}
	if err != nil {
		rec.Name = raw
		g.refuse(rec, malformed("not a name that can be looked up"))
		return reply{rcode: dnsmessage.RCodeNameError}, false
	}
	switch {
	case name == "localhost" || strings.HasSuffix(name, ".localhost"): // RFC 6761, 6.3
		return reply{addrs: loopbacks[:]}, false
	case strings.HasSuffix(name, ".in-addr.arpa") || strings.HasSuffix(name, ".ip6.arpa"):
		return g.reverse(name, q.Type), false
	}
	d := g.rules.Load().decide(query{target: target{name: name}})
	asked := g.asks(target{name: name}, d)
	if !d.allow && !asked {
		g.refuse(rec, denial(d))
		return reply{rcode: dnsmessage.RCodeNameError, why: "sbxrun: " + d.reason}, false
	}
	if q.Type != dnsmessage.TypeA && q.Type != dnsmessage.TypeAAAA {
		return reply{}, false
	}
	if asked && !g.names.has(name) && !g.doubtful.AllowN(rec.Time, 1) {
		refused := &refusal{verdict: Deny, cause: causeLimited, rule: byLimit, reason: "too many names at once"}
		g.refuse(rec, refused)
		return reply{rcode: dnsmessage.RCodeServerFailure, why: "sbxrun: " + refused.reason}, false
	}
	// Whoever is asked has not said yes: no server learns of the name.
	if !asked && g.upstream.proxyFor(target{name: name}) == nil {
		known, ok := g.resolver.cached(name)
		if !ok {
			if !wait {
				return r, true
			}
			_, err = g.resolver.resolve(ctx, name, false)
		} else {
			err = known.err
		}
		if err != nil {
			refused := failed(target{name: name}, err)
			g.refuse(rec, refused)
			switch refused.cause {
			case causeName:
				return reply{rcode: dnsmessage.RCodeNameError}, false
			case causeLimited:
				return reply{rcode: dnsmessage.RCodeServerFailure, why: "sbxrun: " + refused.reason}, false
			}
			return reply{rcode: dnsmessage.RCodeServerFailure}, false
		}
	}
	num, ok := g.names.number(name)
	if !ok {
		refused := &refusal{verdict: Deny, cause: causeLimited, rule: byLimit, reason: "too many names in use"}
		g.refuse(rec, refused)
		return reply{rcode: dnsmessage.RCodeServerFailure, why: "sbxrun: " + refused.reason}, false
	}
	if !asked {
		rec.Verdict, rec.Rule = Allow, d.rule
		g.record(rec)
	}
	return reply{num: num}, false
}

// reverse answers a question for the name of an address, which only the
// resolver's own have.
func (g *Gateway) reverse(name string, t dnsmessage.Type) reply {
	none := reply{rcode: dnsmessage.RCodeNameError}
	a, ok := parseReverse(name)
	if !ok {
		return none
	}
	owner, _ := g.names.name(a)
	if owner == "" {
		return none
	}
	if t != dnsmessage.TypePTR {
		return reply{}
	}
	return reply{ptr: owner}
}

// parseReverse reads the name under which an address's own name is kept; RFC
// 1035, 3.5 and RFC 3596, 2.5.
func parseReverse(name string) (netip.Addr, bool) {
	if v4, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		parts := strings.Split(v4, ".")
		slices.Reverse(parts)
		a, err := policy.HostAddr(strings.Join(parts, "."))
		return a, err == nil && a.Is4()
	}
	v6, ok := strings.CutSuffix(name, ".ip6.arpa")
	digits := strings.Split(v6, ".")
	if !ok || len(digits) != 32 {
		return netip.Addr{}, false
	}
	var b [16]byte
	for i, d := range digits {
		n := strings.IndexByte("0123456789abcdef", d[0])
		if len(d) != 1 || n < 0 {
			return netip.Addr{}, false
		}
		b[15-i/2] |= byte(n) << (i % 2 * 4)
	}
	return netip.AddrFrom16(b), true
}

// dnsPackets answers questions over UDP until the socket is closed.
func (g *Gateway) dnsPackets(ctx context.Context, conn net.PacketConn) {
	defer g.failing()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	u := newPackets(conn)
	buf := make([]byte, 4096)
	for {
		n, from, err := u.read(buf)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				g.fail(err)
				return
			}
			// An ICMP error of an answer that nobody waited for, or no memory.
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		who := func() (int, string) { return g.o.Who(Socket{UDP: true, Local: from.ap}) }
		out, later := g.answerDNS(ctx, buf[:n], false, who)
		switch {
		case out != nil:
			u.write(out, from)
		case later:
			select {
			case g.answering <- struct{}{}:
			default:
				continue
			}
			msg := append([]byte(nil), buf[:n]...)
			g.group.Go(func() {
				defer func() { <-g.answering }()
				if out, _ := g.answerDNS(ctx, msg, true, who); out != nil {
					u.write(out, from)
				}
			})
		}
	}
}

// dnsStream answers questions over TCP; RFC 7766.
func (g *Gateway) dnsStream(c *connection) {
	buf := make([]byte, 2+4096)
	for {
		c.client.conn.SetDeadline(time.Now().Add(dnsIdle))
		if _, err := io.ReadFull(c.client.conn, buf[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(buf))
		if n > len(buf)-2 {
			return
		}
		if _, err := io.ReadFull(c.client.conn, buf[2:2+n]); err != nil {
			return
		}
		out, _ := g.answerDNS(c.ctx, buf[2:2+n], true, c.asker())
		if out == nil {
			return
		}
		c.client.conn.SetDeadline(time.Now().Add(dnsIdle))
		if _, err := c.client.conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
			return
		}
	}
}
