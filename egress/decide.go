package egress

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/policy"
)

// A target is what a connection is for: a name, or an address that no name
// stands for; and a port, or 0 for a look-up.
type target struct {
	name string
	addr netip.Addr
	port uint16
}

func (t target) String() string {
	host := t.name
	switch {
	case host != "":
	case t.addr.Is6() && t.port != 0:
		host = "[" + t.addr.String() + "]"
	case t.addr.IsValid():
		host = t.addr.String()
	}
	if t.port == 0 {
		return host
	}
	return host + ":" + strconv.Itoa(int(t.port))
}

// protocol is what the first bytes of a connection said that it carries.
type protocol uint8

const (
	protoUnknown protocol = iota // no bytes yet
	protoOther
	protoTLS
	protoHTTP
	protoUnread // whatever it is: tcp://HOST:PORT
)

func (p protocol) String() string { return [...]string{"", "tcp", "tls", "http", "unread"}[p] }

// A query is one question to the rules. What they allow while the protocol is not
// known has to be asked again once it is.
type query struct {
	target
	protocol protocol
	resolved netip.Addr // an address of the name; invalid before it is looked up
	own      bool       // the address, resolved or meant, is one of the host's own
}

// A decision is the answer, with the rule that gave it.
type decision struct {
	allow  bool
	rule   string // as it was written
	grant  string // the rule that would allow what was denied; "" if none would, or if none is to be advised
	reason string // why it was denied
}

// byDefault is the rule that denies what no rule allows.
const byDefault = "default"

// A rule is a policy.EgressRule in a form that is quick to match.
type rule struct {
	text     string
	name     string       // exact, or ".example.com" for all below it; "" if net is set
	any      bool         // "*"
	net      netip.Prefix // an address or network
	ports    []policy.PortRange
	protocol protocol // protoUnknown: what is usual; protoUnread: any
}

// rules are the rules of a policy. The zero value denies everything.
type rules struct {
	allow, deny []rule
	perMinute   int
	unread      bool // some rule lets through what is not read
}

// compile reads a policy's rules.
func compile(p policy.Egress) (*rules, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r := &rules{perMinute: p.RequestsPerMinute}
	if p.Mode != policy.EgressProxy {
		return r, nil
	}
	for _, er := range p.Allow {
		r.allow = appendRule(r.allow, er)
		r.unread = r.unread || er.Protocol == policy.ProtocolTCP
	}
	for _, er := range p.Deny {
		if er.Protocol == policy.ProtocolTCP {
			er.Protocol = policy.ProtocolAny // whatever it carries is refused
		}
		r.deny = appendRule(r.deny, er)
	}
	return r, nil
}

func appendRule(list []rule, er policy.EgressRule) []rule {
	ru := rule{text: er.String(), ports: slices.Clone(er.Ports)}
	switch er.Protocol {
	case policy.ProtocolTLS:
		ru.protocol = protoTLS
	case policy.ProtocolHTTP:
		ru.protocol = protoHTTP
	case policy.ProtocolTCP:
		ru.protocol = protoUnread
	}
	switch {
	case er.Host == "*":
		ru.any = true
	case strings.HasPrefix(er.Host, "*."):
		ru.name = er.Host[1:]
	case er.Host == "localhost":
		// The host's loopback, by its name or its addresses.
		for _, a := range loopbacks {
			lo := ru
			lo.net = netip.PrefixFrom(a, a.BitLen())
			list = append(list, lo)
		}
		ru.name = er.Host
	default:
		if p, err := netip.ParsePrefix(er.Host); err == nil {
			ru.net = p
		} else if a, err := netip.ParseAddr(er.Host); err == nil {
			ru.net = netip.PrefixFrom(a, a.BitLen())
		} else {
			ru.name = er.Host
		}
	}
	return append(list, ru)
}

var loopbacks = [...]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// matchName reports whether the rule is about a name.
func (r *rule) matchName(name string) bool {
	switch {
	case name == "":
		return false
	case r.any:
		return strings.Contains(name, ".") // "any public host": those have a dot
	case strings.HasPrefix(r.name, "."):
		return len(name) > len(r.name) && strings.HasSuffix(name, r.name)
	}
	return r.name != "" && r.name == name
}

// reaches reports whether the rule is about where an address leads.
func (r *rule) reaches(a netip.Addr) bool {
	return r.net.Contains(a) || r.net.Contains(behindNAT64(a))
}

// carries reports whether an allow rule lets a protocol through on a port; one that is
// not known yet may turn out to be right. What is not read passes only where a rule says
// so, and there anything does.
func (r *rule) carries(port uint16, p protocol) bool {
	only := r.protocol
	if only == protoUnknown {
		only = usual(port)
	}
	if p == protoUnread || only == protoUnread {
		return only == protoUnread
	}
	return only == protoUnknown || p == protoUnknown || p == only
}

// usual is the one protocol of a port that is for TLS or HTTP; protoUnknown is any.
// There a server that many share goes by the name that the connection says, so that
// nothing may pass in which the name cannot be read.
func usual(port uint16) protocol {
	switch port {
	case 443:
		return protoTLS
	case 80:
		return protoHTTP
	}
	return protoUnknown
}

func (r *rule) matchPort(port uint16) bool {
	return len(r.ports) == 0 || slices.ContainsFunc(r.ports, func(p policy.PortRange) bool { return p.Has(port) })
}

// decide answers a query. It depends on nothing else.
//
// Deny rules come first and win. A deny rule for an address refuses every name
// that resolves to it. Then some allow rule has to name the target. Then the
// address guard: an address that is not public has to be listed as an address,
// whatever name led to it.
func (r *rules) decide(q query) decision {
	d := r.denied(q)
	if d.rule != "" {
		return d
	}
	if q.name == "" {
		d = r.allowAddr(q.addr, q)
	} else {
		d = r.allowName(q)
		if d.allow && q.resolved.IsValid() {
			if s := classify(q.resolved, q.own); s.what != "" {
				listed := r.allowAddr(q.resolved, q)
				if !listed.allow {
					d = decision{
						rule: byDefault, grant: listed.grant,
						reason: q.name + " resolves to " + q.resolved.String() + ", " + s.what + ", which has to be listed by itself",
					}
				}
			}
		}
	}
	return d
}

// denied asks the deny rules only; the decision has no rule if none of them
// denies.
func (r *rules) denied(q query) decision {
	for i := range r.deny {
		ru := &r.deny[i]
		match := ru.any || ru.matchName(q.name) || ru.reaches(q.addr) || ru.reaches(q.resolved)
		if !match {
			continue
		}
		if q.port == 0 {
			// A look-up is refused if no port is left that it could be for.
			match = (len(ru.ports) == 0 || ru.ports[0] == policy.PortRange{First: 1, Last: 65535}) && ru.protocol == protoUnknown
		} else {
			match = ru.matchPort(q.port)
		}
		// What is not read may be what the rule is about.
		if match && (ru.protocol == protoUnknown || ru.protocol == q.protocol || q.protocol == protoUnread) {
			return decision{rule: "deny " + ru.text, reason: "the rule \"deny " + ru.text + "\" refuses " + q.target.String()}
		}
	}
	return decision{}
}

// allowName looks for an allow rule for q's name.
func (r *rules) allowName(q query) decision {
	var other []string // what rules for the name ask for instead
	for i := range r.allow {
		ru := &r.allow[i]
		if !ru.matchName(q.name) {
			continue
		}
		if q.port == 0 || ru.matchPort(q.port) && ru.carries(q.port, q.protocol) {
			return decision{allow: true, rule: ru.text}
		}
		other = append(other, ru.text)
	}
	return none(q, other)
}

// none is the answer where no rule allows.
func none(q query, other []string) decision {
	d := decision{rule: byDefault, grant: grant(q.target, q.protocol), reason: "no rule allows " + q.target.String()}
	if len(other) == 0 {
		return d
	}
	if q.protocol != protoUnknown {
		d.reason += " carrying " + q.protocol.String()
	}
	d.reason += " (allowed: " + strings.Join(other[:min(len(other), 3)], ", ")
	if u := usual(q.port); u != protoUnknown && u != q.protocol {
		d.reason += "; port " + strconv.Itoa(int(q.port)) + " carries " + u.String() + " unless the rule says otherwise"
	}
	d.reason += ")"
	return d
}

// allowAddr looks for an allow rule that lists an address. One that is not
// public is listed only by a network that lies within its kind of addresses:
// 10.0.0.0/8 lists private ones, 0.0.0.0/0 does not.
func (r *rules) allowAddr(a netip.Addr, q query) decision {
	s := classify(a, q.own)
	var other []string
	for i := range r.allow {
		ru := &r.allow[i]
		if !ru.net.IsValid() || !ru.net.Contains(a) {
			continue
		}
		if ru.net.Bits() >= s.bits && (q.port == 0 || ru.matchPort(q.port)) && ru.carries(q.port, q.protocol) {
			return decision{allow: true, rule: ru.text}
		}
		other = append(other, ru.text)
	}
	t := target{addr: a, port: q.port}
	d := none(query{target: t, protocol: q.protocol}, other)
	if s.what != "" {
		d.reason = "no rule lists " + t.String() + ", " + s.what
	}
	if s.host {
		d.grant = ""
	}
	return d
}

// grant is the rule that allows t, carrying p.
func grant(t target, p protocol) string {
	switch u := usual(t.port); {
	case p == protoUnknown || u == protoUnknown || u == p:
		return t.String()
	case p == protoTLS:
		return "tls://" + t.String()
	case p == protoHTTP:
		return "http://" + t.String()
	}
	return "tcp://" + t.String()
}

// ports lists the ports of allow rules. Where they are too many, those of rules for
// the host's loopback are kept: nothing is told of a connection to loopback before it
// is made, so that no listener would be made for it later.
func (r *rules) ports() (list []uint16, all bool) {
	var near []uint16
	for i := range r.allow {
		ru := &r.allow[i]
		if len(ru.ports) == 0 {
			all = true
		}
		for _, p := range ru.ports {
			if int(p.Last)-int(p.First)+1 > maxPorts {
				all = true
				continue
			}
			for n := int(p.First); n <= int(p.Last); n++ {
				if n == 53 {
					continue
				}
				list = append(list, uint16(n))
				if ru.net.IsValid() && ru.net.Addr().IsLoopback() {
					near = append(near, uint16(n))
				}
			}
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) <= maxPorts {
		return list, all
	}
	slices.Sort(near)
	near = slices.Compact(near)
	far := slices.DeleteFunc(list, func(n uint16) bool {
		_, found := slices.BinarySearch(near, n)
		return found
	})
	list = append(near, far...)[:maxPorts]
	slices.Sort(list)
	return list, true
}
