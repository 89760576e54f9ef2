package egress

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
)

func mustCompile(t testing.TB, allow, deny []string) *rules {
	t.Helper()
	r, err := compile(egressPolicy(allow, deny))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestDecide is the table of the rules (E01, E10, E14, E18).
func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name        string
		allow, deny []string
		q           query
		want        bool
		rule        string
	}{
		{name: "an empty list denies", q: query{target: target{name: "example.com", port: 443}}},
		{name: "an empty list denies addresses", q: query{target: target{addr: netip.MustParseAddr("1.1.1.1"), port: 443}}},

		{name: "exact", allow: []string{"example.com"}, q: query{target: target{name: "example.com", port: 443}}, want: true, rule: "example.com"},
		{name: "not below", allow: []string{"example.com"}, q: query{target: target{name: "a.example.com", port: 443}}},
		{name: "wildcard", allow: []string{"*.example.com"}, q: query{target: target{name: "a.example.com", port: 443}}, want: true, rule: "*.example.com"},
		{name: "wildcard, deeper", allow: []string{"*.example.com"}, q: query{target: target{name: "a.b.example.com", port: 443}}, want: true, rule: "*.example.com"},
		{name: "E01: not the name itself", allow: []string{"*.example.com"}, q: query{target: target{name: "example.com", port: 443}}},
		{name: "E01: not another name with that end", allow: []string{"*.example.com"}, q: query{target: target{name: "evil-example.com", port: 443}}},
		{name: "E01: not a name above it", allow: []string{"*.example.com"}, q: query{target: target{name: "example.com.evil", port: 443}}},

		{name: "E18: another port", allow: []string{"example.com:443"}, q: query{target: target{name: "example.com", port: 80}}},
		{name: "one of the ports", allow: []string{"example.com:80,443"}, q: query{target: target{name: "example.com", port: 80}}, want: true, rule: "example.com:80,443"},
		{name: "first of a range", allow: []string{"example.com:8000-8100"}, q: query{target: target{name: "example.com", port: 8000}}, want: true, rule: "example.com:8000-8100"},
		{name: "last of a range", allow: []string{"example.com:8000-8100"}, q: query{target: target{name: "example.com", port: 8100}}, want: true, rule: "example.com:8000-8100"},
		{name: "beyond a range", allow: []string{"example.com:8000-8100"}, q: query{target: target{name: "example.com", port: 8101}}},
		{name: "a look-up is for some port", allow: []string{"example.com:443"}, q: query{target: target{name: "example.com"}}, want: true, rule: "example.com:443"},

		{name: "deny wins", allow: []string{"*"}, deny: []string{"example.com"}, q: query{target: target{name: "example.com", port: 443}}, rule: "deny example.com"},
		{name: "deny wins, whatever is more exact", allow: []string{"a.example.com:443"}, deny: []string{"*.example.com"}, q: query{target: target{name: "a.example.com", port: 443}}, rule: "deny *.example.com"},
		{name: "deny on a port", allow: []string{"*"}, deny: []string{"example.com:22"}, q: query{target: target{name: "example.com", port: 443}}, want: true, rule: "*"},
		{name: "deny on a port refuses no look-up", allow: []string{"*"}, deny: []string{"example.com:22"}, q: query{target: target{name: "example.com"}}, want: true, rule: "*"},
		{name: "deny everything refuses addresses", allow: []string{"1.1.1.1"}, deny: []string{"*"}, q: query{target: target{addr: netip.MustParseAddr("1.1.1.1"), port: 53}}, rule: "deny *"},
		{name: "deny a network refuses names in it", allow: []string{"*"}, deny: []string{"93.184.0.0/16"}, q: query{target: target{name: "example.com", port: 443}, resolved: netip.MustParseAddr("93.184.216.34")}, rule: "deny 93.184.0.0/16"},

		{name: "any host", allow: []string{"*"}, q: query{target: target{name: "example.com", port: 443}}, want: true, rule: "*"},
		{name: "any public host has a dot", allow: []string{"*"}, q: query{target: target{name: "intranet", port: 443}}},
		{name: "any host is no address", allow: []string{"*"}, q: query{target: target{addr: netip.MustParseAddr("1.1.1.1"), port: 443}}},
		{name: "an address that is listed", allow: []string{"1.1.1.1:443"}, q: query{target: target{addr: netip.MustParseAddr("1.1.1.1"), port: 443}}, want: true, rule: "1.1.1.1:443"},
		{name: "a network", allow: []string{"1.1.1.0/24"}, q: query{target: target{addr: netip.MustParseAddr("1.1.1.7"), port: 443}}, want: true, rule: "1.1.1.0/24"},
		{name: "all of IPv4 is all that is public", allow: []string{"0.0.0.0/0"}, q: query{target: target{addr: netip.MustParseAddr("8.8.8.8"), port: 443}}, want: true, rule: "0.0.0.0/0"},
		{name: "and not what is private", allow: []string{"0.0.0.0/0", "*"}, q: query{target: target{addr: netip.MustParseAddr("10.0.0.1"), port: 443}}},
		{name: "nor metadata", allow: []string{"0.0.0.0/0", "169.254.0.0/16"}, q: query{target: target{addr: netip.MustParseAddr("169.254.169.254"), port: 80}}},
		{name: "metadata by itself", allow: []string{"169.254.169.254"}, q: query{target: target{addr: netip.MustParseAddr("169.254.169.254"), port: 80}}, want: true, rule: "169.254.169.254"},

		{name: "E10: a denied address, behind NAT64", allow: []string{"*"}, deny: []string{"93.184.216.0/24"}, q: query{target: target{name: "a.example", port: 443}, resolved: mustAddr("64:ff9b::5db8:d823")}, rule: "deny 93.184.216.0/24"},
		{name: "E10: a denied address, dialled behind NAT64", allow: []string{"::/0"}, deny: []string{"93.184.216.35"}, q: query{target: target{addr: mustAddr("64:ff9b::5db8:d823"), port: 443}}, rule: "deny 93.184.216.35"},
		{name: "E10: an address behind NAT64 that is not denied", allow: []string{"*"}, deny: []string{"93.184.216.34"}, q: query{target: target{name: "a.example", port: 443}, resolved: mustAddr("64:ff9b::5db8:d823")}, want: true, rule: "*"},
		{name: "E10: a name that is private", allow: []string{"*"}, q: query{target: target{name: "a.example", port: 443}, resolved: netip.MustParseAddr("10.0.0.1")}},
		{name: "E10: listed by itself", allow: []string{"*", "10.0.0.0/8:443"}, q: query{target: target{name: "a.example", port: 443}, resolved: netip.MustParseAddr("10.0.0.1")}, want: true, rule: "*"},
		{name: "E10: listed on another port", allow: []string{"*", "10.0.0.0/8:80"}, q: query{target: target{name: "a.example", port: 443}, resolved: netip.MustParseAddr("10.0.0.1")}},
		{name: "E10: the host's own public address", allow: []string{"*"}, q: query{target: target{name: "a.example", port: 443}, resolved: netip.MustParseAddr("5.5.5.5"), own: true}},
		{name: "the host's own, by a network", allow: []string{"*", "5.5.5.0/24"}, q: query{target: target{name: "a.example", port: 443}, resolved: netip.MustParseAddr("5.5.5.5"), own: true}},
		{name: "the host's own, by itself", allow: []string{"*", "5.5.5.5"}, q: query{target: target{name: "a.example", port: 443}, resolved: netip.MustParseAddr("5.5.5.5"), own: true}, want: true, rule: "*"},
		{name: "an address does not allow a name", allow: []string{"93.184.216.34"}, q: query{target: target{name: "a.example", port: 443}, resolved: netip.MustParseAddr("93.184.216.34")}},

		{name: "localhost", allow: []string{"localhost:3000"}, q: query{target: target{addr: netip.MustParseAddr("127.0.0.1"), port: 3000}, own: true}, want: true, rule: "localhost:3000"},
		{name: "localhost by name", allow: []string{"localhost:3000"}, q: query{target: target{name: "localhost", port: 3000}, resolved: netip.IPv6Loopback(), own: true}, want: true, rule: "localhost:3000"},
		{name: "localhost is not all of loopback", allow: []string{"localhost:3000"}, q: query{target: target{addr: netip.MustParseAddr("127.0.0.2"), port: 3000}, own: true}},

		{name: "a protocol that is not known yet", allow: []string{"https://a.example"}, q: query{target: target{name: "a.example", port: 443}}, want: true, rule: "https://a.example"},
		{name: "the protocol", allow: []string{"https://a.example"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoTLS}, want: true, rule: "https://a.example"},
		{name: "another protocol", allow: []string{"https://a.example"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoOther}},
		{name: "another protocol, by another rule", allow: []string{"https://a.example", "*.example"}, q: query{target: target{name: "a.example", port: 8443}, protocol: protoOther}, want: true, rule: "*.example"},
		{name: "443 is TLS", allow: []string{"a.example"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoOther}},
		{name: "443 is no HTTP", allow: []string{"a.example"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoHTTP}},
		{name: "unless a rule says so", allow: []string{"http://a.example:443"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoHTTP}, want: true, rule: "http://a.example:443"},
		{name: "443 of an address", allow: []string{"1.1.1.1"}, q: query{target: target{addr: netip.MustParseAddr("1.1.1.1"), port: 443}, protocol: protoOther}},
		{name: "80 is HTTP", allow: []string{"a.example"}, q: query{target: target{name: "a.example", port: 80}, protocol: protoOther}},
		{name: "80 is HTTP, of a network, too", allow: []string{"*", "10.0.0.0/8"}, q: query{target: target{name: "a.example", port: 80}, resolved: netip.MustParseAddr("10.0.0.1"), protocol: protoTLS}},
		{name: "unread", allow: []string{"tcp://a.example:443"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoUnread}, want: true, rule: "tcp://a.example:443"},
		{name: "unread only where a rule says so", allow: []string{"a.example", "tls://*", "http://*:1-65535"}, q: query{target: target{name: "a.example", port: 2222}, protocol: protoUnread}},
		{name: "unread on that port", allow: []string{"tcp://a.example:443", "a.example"}, q: query{target: target{name: "a.example", port: 444}, protocol: protoUnread}},
		{name: "unread, the protocol found out", allow: []string{"tcp://a.example:443"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoHTTP}, want: true, rule: "tcp://a.example:443"},
		{name: "unread at a private address", allow: []string{"tcp://a.example:443", "10.0.0.0/8:443"}, q: query{target: target{name: "a.example", port: 443}, resolved: mustAddr("10.0.0.1"), protocol: protoUnread}},
		{name: "unread at a private address that is", allow: []string{"tcp://a.example:443", "tcp://10.0.0.0/8:443"}, q: query{target: target{name: "a.example", port: 443}, resolved: mustAddr("10.0.0.1"), protocol: protoUnread}, want: true, rule: "tcp://a.example:443"},
		{name: "unread, a protocol denied", allow: []string{"tcp://a.example:443"}, deny: []string{"tls://*"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoUnread}, rule: "deny tls://*"},
		{name: "deny tcp is deny whatever it carries", allow: []string{"*"}, deny: []string{"tcp://*:443"}, q: query{target: target{name: "a.example", port: 443}, protocol: protoTLS}, rule: "deny *:443"},
		{name: "deny a protocol", allow: []string{"*"}, deny: []string{"http://*"}, q: query{target: target{name: "a.example", port: 80}, protocol: protoHTTP}, rule: "deny http://*"},
		{name: "deny a protocol and no other", allow: []string{"*"}, deny: []string{"http://*:8080"}, q: query{target: target{name: "a.example", port: 8080}, protocol: protoTLS}, want: true, rule: "*"},
	} {
		d := mustCompile(t, c.allow, c.deny).decide(c.q)
		if d.allow != c.want {
			t.Errorf("%s: %+v, want %v", c.name, d, c.want)
		}
		if c.rule == "" {
			c.rule = byDefault
		}
		if d.rule != c.rule {
			t.Errorf("%s: rule %q, want %q", c.name, d.rule, c.rule)
		}
		if d.allow == (d.reason != "") {
			t.Errorf("%s: reason %q", c.name, d.reason)
		}
	}
}

// TestGrant: what a denial suggests does allow it, and nothing is suggested where
// a deny rule would still refuse.
func TestGrant(t *testing.T) {
	for _, q := range []query{
		{target: target{name: "a.example", port: 443}},
		{target: target{name: "a.example"}},
		{target: target{addr: netip.MustParseAddr("10.0.0.1"), port: 80}},
		{target: target{addr: netip.MustParseAddr("2001:4860::1"), port: 80}},
		{target: target{name: "b.example", port: 443}, resolved: netip.MustParseAddr("192.168.0.1")},
		{target: target{name: "b.example", port: 443}, protocol: protoOther},
	} {
		allow := []string{"b.example"}
		d := mustCompile(t, allow, nil).decide(q)
		if d.allow || d.grant == "" {
			t.Errorf("%v: %+v", q, d)
			continue
		}
		if again := mustCompile(t, append(allow, d.grant), nil).decide(q); !again.allow {
			t.Errorf("%v: with %s: %+v", q, d.grant, again)
		}
		if d := mustCompile(t, allow, []string{"*"}).decide(q); d.grant != "" {
			t.Errorf("%v: %+v", q, d)
		}
	}
	// The host itself, and its account with a cloud, are nothing to be advised.
	for _, q := range []query{
		{target: target{addr: netip.MustParseAddr("169.254.169.254"), port: 80}},
		{target: target{addr: netip.MustParseAddr("fd00:ec2::254"), port: 80}},
		{target: target{addr: netip.MustParseAddr("127.0.0.1"), port: 80}, own: true},
		{target: target{addr: netip.MustParseAddr("5.5.5.5"), port: 80}, own: true},
		{target: target{name: "b.example", port: 443}, resolved: netip.MustParseAddr("127.0.0.1"), own: true},
		{target: target{name: "b.example", port: 443}, resolved: netip.MustParseAddr("64:ff9b::7f00:1")},
	} {
		if d := mustCompile(t, []string{"b.example"}, nil).decide(q); d.allow || d.grant != "" {
			t.Errorf("%v: %+v", q, d)
		}
	}
}

// TestCompile: a rule that is malformed is an error of New and of Reload, which
// keeps the last good ones (E14).
func TestCompile(t *testing.T) {
	broken := policy.Egress{Mode: policy.EgressProxy, Allow: []policy.EgressRule{{Host: "*"}, {Host: "127.1"}}}
	if _, err := New(broken, Options{}); err == nil || !strings.Contains(err.Error(), "127.1") {
		t.Errorf("%v", err)
	}
	g, err := New(allow("example.com"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(broken); err == nil {
		t.Error("a broken policy is taken")
	}
	if d := g.rules.Load().decide(query{target: target{name: "example.com", port: 1}}); !d.allow {
		t.Errorf("%+v", d)
	}
	for _, mode := range []policy.EgressMode{policy.EgressNone, policy.EgressHost} {
		p := allow("*")
		p.Mode = mode
		r, err := compile(p)
		if d := r.decide(query{target: target{name: "example.com", port: 1}}); err != nil || d.allow {
			t.Errorf("mode %s: %+v, %v", mode, d, err)
		}
	}
}

func TestPorts(t *testing.T) {
	for _, c := range []struct {
		allow []string
		list  []uint16
		all   bool
	}{
		{nil, nil, false},
		{[]string{"a.example:443,80", "https://b.example", "10.0.0.0/8:22"}, []uint16{22, 80, 443}, false},
		{[]string{"a.example:443", "*"}, []uint16{443}, true},
		{[]string{"a.example:52-54", "1.1.1.1:53"}, []uint16{52, 54}, false},
		{[]string{"a.example:8000-8002"}, []uint16{8000, 8001, 8002}, false},
		{[]string{"a.example:1-65535"}, nil, true},
	} {
		list, all := mustCompile(t, c.allow, nil).ports()
		if !slices.Equal(list, c.list) || all != c.all {
			t.Errorf("%v: %v, %v", c.allow, list, all)
		}
	}
	if list, all := mustCompile(t, []string{"a.example:1-1000", "a.example:2001-3000"}, nil).ports(); len(list) != maxPorts || !all {
		t.Errorf("%d, %v", len(list), all)
	}
	list, all := mustCompile(t, []string{"a.example:1-1024", "localhost:3000,7", "127.0.0.0/8:4000"}, nil).ports()
	if len(list) != maxPorts || !all || !slices.IsSorted(list) || !slices.Contains(list, 7) || !slices.Contains(list, 3000) || !slices.Contains(list, 4000) {
		t.Errorf("with the host's loopback: %d, %v: %v", len(list), all, list)
	}
}

// TestClassify: every address that is no public host is refused (N06, E10), in
// every form of IPv6 that carries it; and the neighbours are public.
func TestClassify(t *testing.T) {
	for _, s := range []string{
		"0.0.0.0", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "169.254.169.254", "169.254.0.1", "168.63.129.16",
		"172.16.0.1", "172.31.255.255", "192.0.0.8", "192.168.0.1", "198.18.0.1", "198.19.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a00:1", "64:ff9b:1::1",
		"2002:7f00:1::", "2002:808:808::", "2001::1", "2001:db8::1", "fc00::1", "fd00:ec2::254", "fd73:6278:7275:6e00::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "100::1",
	} {
		if c := classify(netip.MustParseAddr(s), false); c.what == "" {
			t.Errorf("%s is public", s)
		}
	}
	for _, s := range []string{
		"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0",
		"192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.17",
		"2001:4860:4860::8888", "2606:4700::1111", "64:ff9b::808:808", "2a00::1", "2003::1",
	} {
		if c := classify(netip.MustParseAddr(s), false); c.what != "" {
			t.Errorf("%s is %s", s, c.what)
		}
	}
	if c := classify(netip.Addr{}, false); c.what == "" {
		t.Error("no address is public")
	}
}

func TestOwn(t *testing.T) {
	g := &Gateway{o: Options{Own: func(a netip.Addr) (bool, error) { return a == netip.MustParseAddr("5.5.5.5"), nil }}}
	for s, want := range map[string]bool{"5.5.5.5": true, "5.5.5.6": false, "64:ff9b::505:505": true, "64:ff9b::505:506": false} {
		if g.isOwn(netip.MustParseAddr(s)) != want {
			t.Errorf("%s: %v", s, !want)
		}
	}
	g.o.Own = func(netip.Addr) (bool, error) { return false, errors.New("no netlink") }
	if !g.isOwn(netip.MustParseAddr("8.8.8.8")) {
		t.Error("a host that does not say has no addresses")
	}
}

// FuzzDecide: a name that is denied has no address or port that is allowed, and
// an address that is not public is never allowed by a name.
func FuzzDecide(f *testing.F) {
	f.Add("*.example.com:443", "bad.example.com", "a.example.com", uint16(443), uint32(0x08080808))
	f.Add("10.0.0.0/8", "*:22", "a.example.com", uint16(22), uint32(0x0a000001))
	f.Fuzz(func(t *testing.T, allowed, denied, name string, port uint16, v4 uint32) {
		a, err1 := policy.ParseEgressRule(allowed)
		d, err2 := policy.ParseEgressRule(denied)
		n, err3 := policy.HostName(name)
		if err1 != nil || err2 != nil || err3 != nil || port == 0 {
			return
		}
		addr := netip.AddrFrom4([4]byte{byte(v4 >> 24), byte(v4 >> 16), byte(v4 >> 8), byte(v4)})
		only, err := compile(policy.Egress{Mode: policy.EgressProxy, Allow: []policy.EgressRule{a}})
		if err != nil {
			t.Fatal(err)
		}
		both, err := compile(policy.Egress{Mode: policy.EgressProxy, Allow: []policy.EgressRule{a}, Deny: []policy.EgressRule{d}})
		if err != nil {
			t.Fatal(err)
		}
		q := query{target: target{name: n, port: port}, resolved: addr}
		if both.decide(q).allow && !only.decide(q).allow {
			t.Fatal("a deny rule allows")
		}
		if only.decide(q).allow {
			if classify(addr, false).what != "" {
				t.Fatalf("%s allows %s at %s", allowed, n, addr)
			}
			if !only.decide(query{target: target{name: n}}).allow {
				t.Fatalf("%s allows %s, and no look-up of it", allowed, n)
			}
		}
	})
}

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }
