package egress

import (
	"net/netip"
	"sync"
)

// A special is a kind of address that is not a public host.
type special struct {
	what string // completing "…, which has to be listed"
	bits int    // a rule lists it if its network has at least this many bits
	host bool   // it leads into the host or its cloud account: no grant is advised
}

const metadata = "cloud metadata"

// specials are the kinds, from the registries that IANA keeps
// (iana-ipv4-special-registry, iana-ipv6-special-registry) and from clouds'
// manuals. The longest prefix that contains an address decides.
var specials = [...]struct {
	net  string
	what string
}{
	{"0.0.0.0/8", "an address of this network"},
	{"10.0.0.0/8", "a private address"},
	{"100.64.0.0/10", "an address of carrier-grade NAT"},
	{"100.100.100.200/32", metadata}, // Alibaba
	{"127.0.0.0/8", "a loopback address"},
	{"168.63.129.16/32", metadata}, // Azure's wire server, in a public range
	{"169.254.0.0/16", "a link-local address"},
	{"169.254.169.254/32", metadata}, // all others
	{"169.254.170.2/32", metadata},   // Amazon ECS
	{"172.16.0.0/12", "a private address"},
	{"192.0.0.0/24", "an address of IETF protocols"},
	{"192.0.0.192/32", metadata}, // Oracle
	{"192.0.2.0/24", "an address of documentation"},
	{"192.88.99.0/24", "a 6to4 relay"},
	{"192.168.0.0/16", "a private address"},
	{"198.18.0.0/15", "an address of benchmarks, and of the sandbox's own resolver"},
	{"198.51.100.0/24", "an address of documentation"},
	{"203.0.113.0/24", "an address of documentation"},
	{"224.0.0.0/4", "a multicast address"},
	{"240.0.0.0/4", "a reserved address"},
	{"255.255.255.255/32", "the broadcast address"},

	{"::/96", "an IPv4-compatible address"},
	{"::/128", "the unspecified address"},
	{"::1/128", "a loopback address"},
	{"::ffff:0:0/96", "an IPv4-mapped address"},
	{"::ffff:0:0:0/96", "an IPv4-translated address"},
	{"64:ff9b:1::/48", "an address of local NAT64"},
	{"100::/64", "a discard address"},
	{"2001::/23", "an address of IETF protocols"},
	{"2001::/32", "a Teredo address"},
	{"2001:db8::/32", "an address of documentation"},
	{"2002::/16", "a 6to4 address"},
	{"3fff::/20", "an address of documentation"},
	{"5f00::/16", "a segment routing address"},
	{"fc00::/7", "a private address"},
	{"fd00:ec2::254/128", metadata}, // Amazon
	{"fd20:ce::254/128", metadata},  // Google
	{"fe80::/10", "a link-local address"},
	{"fe80::a9fe:a9fe/128", metadata}, // OpenStack
	{"fec0::/10", "a site-local address"},
	{"ff00::/8", "a multicast address"},
}

// nat64 carries an IPv4 address in its last 32 bits; RFC 6052. Networks without
// IPv4 resolve every IPv4-only name to it, so it is as public as what it
// carries.
var nat64 = netip.AddrFrom16([16]byte{0x00, 0x64, 0xff, 0x9b})

// specialNets are the parsed prefixes, made when a gateway is first asked:
// programs without one do not pay for them.
var specialNets = sync.OnceValue(func() []netip.Prefix {
	nets := make([]netip.Prefix, len(specials))
	for i, s := range specials {
		nets[i] = netip.MustParsePrefix(s.net)
	}
	return nets
})

// classify returns the kind of an address; the zero kind is public. Own says
// that it is one of the host's own.
func classify(a netip.Addr, own bool) special {
	if a.Zone() != "" || a.Is4In6() || !a.IsValid() {
		return special{"an address in an unusual form", a.BitLen() + 1, true} // no rule lists it
	}
	var s special
	for i, p := range specialNets() {
		if p.Contains(a) && p.Bits() >= s.bits {
			s = special{specials[i].what, p.Bits(), specials[i].what == metadata || a.IsLoopback() || a.IsUnspecified()}
		}
	}
	if v4 := behindNAT64(a); v4.IsValid() {
		if inner := classify(v4, false); inner.what != "" {
			s = special{inner.what + " behind NAT64", 128, inner.host}
		}
	}
	if own && !a.IsLoopback() {
		s = special{"one of this host's own addresses", a.BitLen(), true}
	}
	return s
}

// behindNAT64 returns the IPv4 address that a leads to, invalid if there is none.
func behindNAT64(a netip.Addr) netip.Addr {
	if !netip.PrefixFrom(nat64, 96).Contains(a) {
		return netip.Addr{}
	}
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

// isOwn reports whether an address leads to this host, as it is or behind NAT64. When
// the host does not say, every address might. Loopback does: no host is asked about that.
func (g *Gateway) isOwn(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	for _, a := range [...]netip.Addr{a, behindNAT64(a)} {
		if !a.IsValid() {
			continue
		}
		if own, err := g.o.Own(a); own || err != nil {
			return true
		}
	}
	return false
}
