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
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// lookupBy asks the stub as Go's own resolver does.
func (w *world) lookupBy(network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, w.dns[network])
	}}
}

// TestDNS: Go's resolver over UDP and TCP: an allowed name has an address of its
// own, stable and mapped back; a denied one does not exist and no query for it
// leaves (NET-8, N04).
func TestDNS(t *testing.T) {
	w := newWorld(t, egressPolicy([]string{"a.example:443", "*.b.example"}, []string{"bad.b.example", "port.b.example:22"}))
	for _, n := range []string{"a.example", "x.b.example", "port.b.example", "evil.example", "bad.b.example", "b.example"} {
		w.host(n, "93.184.216.34", 443, echo)
	}
	ctx := context.Background()
	for _, network := range []string{"udp", "tcp"} {
		r := w.lookupBy(network)
		seen := map[netip.Addr]string{}
		for _, name := range []string{"a.example", "x.b.example", "X.B.example", "port.b.example"} {
			addrs, err := r.LookupNetIP(ctx, "ip", name+".")
			if err != nil || len(addrs) != 2 {
				t.Fatalf("%s %s: %v, %v", network, name, addrs, err)
			}
			for _, a := range addrs {
				a = a.Unmap()
				owner, ours := w.g.names.name(a)
				if !ours || owner != strings.ToLower(name) || seen[a] != "" && seen[a] != owner {
					t.Errorf("%s: %s is %q's", name, a, owner)
				}
				seen[a] = owner
				back, err := r.LookupAddr(ctx, a.String())
				if err != nil || !slices.Equal(back, []string{owner + "."}) {
					t.Errorf("%s: %v, %v", a, back, err)
				}
			}
		}
		for _, name := range []string{"evil.example", "bad.b.example", "b.example", "a.example.evil", "xb.example", "127.0.0.1.example", "nothing.b.example", "intranet"} {
			start := time.Now()
			addrs, err := r.LookupNetIP(ctx, "ip", name+".")
			var de *net.DNSError
			if !errors.As(err, &de) || !de.IsNotFound {
				t.Errorf("%s %s: %v, %v", network, name, addrs, err)
			}
			if d := time.Since(start); d > 4*time.Second {
				t.Errorf("%s takes %v to be refused", name, d)
			}
		}
		if addrs, err := r.LookupNetIP(ctx, "ip", "localhost."); err != nil || !addrs[0].IsLoopback() {
			t.Errorf("localhost: %v, %v", addrs, err)
		}
		for what, err := range map[string]error{
			"TXT": func() error { _, err := r.LookupTXT(ctx, "a.example."); return err }(),
			"MX":  func() error { _, err := r.LookupMX(ctx, "a.example."); return err }(),
			"PTR": func() error { _, err := r.LookupAddr(ctx, "8.8.8.8"); return err }(),
		} {
			var de *net.DNSError
			if !errors.As(err, &de) || !de.IsNotFound {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	_, asked := w.taken()
	for _, name := range asked {
		if !slices.Contains([]string{"a.example", "x.b.example", "port.b.example", "nothing.b.example"}, name) {
			t.Errorf("the host was asked for %s", name)
		}
	}
	r := w.record(func(r Record) bool { return r.Route == RouteDNS && r.Name == "evil.example" })
	if r.Verdict != Deny || r.Grant != "evil.example" || r.Port != 0 {
		t.Errorf("%+v", r)
	}
	r = w.record(func(r Record) bool { return r.Route == RouteDNS && r.Name == "nothing.b.example" })
	if r.Verdict != Error || r.Grant != "" {
		t.Errorf("%+v", r)
	}
}

// query makes a message.
func dnsQuery(t testing.TB, name string, typ dnsmessage.Type, class dnsmessage.Class, edns bool) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	n, err := dnsmessage.NewName(name)
	if err := errors.Join(err, b.StartQuestions(), b.Question(dnsmessage.Question{Name: n, Type: typ, Class: class})); err != nil {
		t.Fatal(err)
	}
	if edns {
		var h dnsmessage.ResourceHeader
		if err := errors.Join(h.SetEDNS0(1232, 0, false), b.StartAdditionals(), b.OPTResource(h, dnsmessage.OPTResource{})); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *world) answer(msg []byte) *dnsmessage.Message {
	w.t.Helper()
	out, _ := w.g.answerDNS(context.Background(), msg, true, nil)
	if out == nil {
		return nil
	}
	var m dnsmessage.Message
	if err := m.Unpack(out); err != nil {
		w.t.Fatal(err)
	}
	if len(out) > maxUDP {
		w.t.Errorf("an answer of %d bytes", len(out))
	}
	return &m
}

func TestDNSMessages(t *testing.T) {
	w := newWorld(t, allow("a.example", strings.Repeat(strings.Repeat("x", 62)+".", 3)+strings.Repeat("y", 60)))
	w.host("a.example", "93.184.216.34", 443, echo)
	const in, chaos = dnsmessage.ClassINET, dnsmessage.ClassCHAOS
	two := dnsQuery(t, "a.example.", dnsmessage.TypeA, in, false)
	two[5] = 2
	status := dnsQuery(t, "a.example.", dnsmessage.TypeA, in, false)
	status[2] |= 2 << 3
	response := dnsQuery(t, "a.example.", dnsmessage.TypeA, in, false)
	response[2] |= 0x80
	none := slices.Clone(two[:12])
	none[5] = 0
	twoOPT := dnsQuery(t, "a.example.", dnsmessage.TypeA, in, true)
	twoOPT = append(twoOPT, twoOPT[len(twoOPT)-11:]...)
	twoOPT[11] = 2
	version := dnsQuery(t, "a.example.", dnsmessage.TypeA, in, true)
	version[len(version)-5] = 1
	pointer := append(slices.Clone(two[:12]), 0xc0, 12, 0, 1, 0, 1)
	pointer[5] = 1
	dot := append(slices.Clone(two[:12]), 3, 'a', '.', 'b', 0, 0, 1, 0, 1)
	dot[5] = 1
	for _, c := range []struct {
		what  string
		msg   []byte
		rcode dnsmessage.RCode
		drop  bool
		n     int
	}{
		{what: "A", msg: dnsQuery(t, "a.example.", dnsmessage.TypeA, in, false), n: 1},
		{what: "A in odd case", msg: dnsQuery(t, "A.eXample.", dnsmessage.TypeA, in, true), n: 1},
		{what: "HTTPS", msg: dnsQuery(t, "a.example.", dnsmessage.TypeHTTPS, in, true)},
		{what: "SVCB", msg: dnsQuery(t, "a.example.", dnsmessage.TypeSVCB, in, true)},
		{what: "ANY", msg: dnsQuery(t, "a.example.", dnsmessage.TypeALL, in, true)},
		{what: "TXT", msg: dnsQuery(t, "a.example.", dnsmessage.TypeTXT, in, true)},
		{what: "AXFR", msg: dnsQuery(t, "a.example.", dnsmessage.TypeAXFR, in, true)},
		{what: "another class", msg: dnsQuery(t, "version.bind.", dnsmessage.TypeTXT, chaos, true), rcode: dnsmessage.RCodeRefused},
		{what: "the root", msg: dnsQuery(t, ".", dnsmessage.TypeA, in, true), rcode: dnsmessage.RCodeNameError},
		{what: "no name", msg: dnsQuery(t, "a b.example.", dnsmessage.TypeA, in, true), rcode: dnsmessage.RCodeNameError},
		{what: "an address", msg: dnsQuery(t, "127.0.0.1.", dnsmessage.TypeA, in, true), rcode: dnsmessage.RCodeNameError},
		{what: "control characters", msg: dnsQuery(t, "a\x1b[31m\n.example.", dnsmessage.TypeA, in, true), rcode: dnsmessage.RCodeNameError},
		{what: "two questions", msg: two, rcode: dnsmessage.RCodeFormatError},
		{what: "no question", msg: none, rcode: dnsmessage.RCodeFormatError},
		{what: "two OPT", msg: twoOPT, rcode: dnsmessage.RCodeFormatError},
		{what: "a version of EDNS", msg: version, rcode: 16},
		{what: "another operation", msg: status, rcode: dnsmessage.RCodeNotImplemented},
		{what: "a name that points at itself", msg: pointer, rcode: dnsmessage.RCodeFormatError},
		{what: "a dot in a label", msg: dot, rcode: dnsmessage.RCodeFormatError},
		{what: "an answer", msg: response, drop: true},
		{what: "nothing", msg: nil, drop: true},
		{what: "half a header", msg: two[:11], drop: true},
	} {
		m := w.answer(c.msg)
		if m == nil || c.drop {
			if (m == nil) != c.drop {
				t.Errorf("%s: %v", c.what, m)
			}
			continue
		}
		rcode := m.RCode
		for _, a := range m.Additionals {
			if a.Header.Type == dnsmessage.TypeOPT {
				rcode = a.Header.ExtendedRCode(m.RCode)
			}
		}
		if m.ID != 7 || !m.Response || rcode != c.rcode || len(m.Answers) != c.n {
			t.Errorf("%s: %v", c.what, m.GoString())
		}
	}
	// The reason goes along where the client understands it; RFC 8914.
	m := w.answer(dnsQuery(t, strings.Repeat("e.", 120)+"evil.", dnsmessage.TypeA, in, true))
	opt, ok := m.Additionals[0].Body.(*dnsmessage.OPTResource)
	if !ok || len(opt.Options) != 1 || opt.Options[0].Code != 15 || !strings.Contains(string(opt.Options[0].Data[2:]), "sbxrun: no rule allows e.e.e") {
		t.Errorf("%v", m.GoString())
	}
	w.record(func(r Record) bool {
		return strings.Contains(r.Name, `\x1b[31m\x0a`) || strings.Contains(r.Name, `\\027`)
	})
	for _, r := range w.records {
		if strings.ContainsAny(r.Name+r.Reason+r.Grant, "\n\x1b") {
			t.Errorf("%+v", r)
		}
	}
}

// TestDNSStream: several questions on a connection; what is no message ends it.
func TestDNSStream(t *testing.T) {
	w := newWorld(t, allow("a.example"))
	w.host("a.example", "93.184.216.34", 443, echo)
	c, err := net.Dial("tcp", w.dns["tcp"])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	q := dnsQuery(t, "a.example.", dnsmessage.TypeA, dnsmessage.ClassINET, false)
	msg := append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	c.Write(append(msg, msg...))
	for range 2 {
		var n [2]byte
		if _, err := io.ReadFull(c, n[:]); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, binary.BigEndian.Uint16(n[:]))
		io.ReadFull(c, b)
		var m dnsmessage.Message
		if err := m.Unpack(b); err != nil || len(m.Answers) != 1 {
			t.Fatal(m, err)
		}
	}
	c.Write([]byte{0xff, 0xff, 1})
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Error(b, err)
	}
}

// TestDNSFlood: names that a wildcard allows are looked up within a rate, and no
// more; names that are denied cost nothing.
func TestDNSFlood(t *testing.T) {
	w := newWorld(t, allow("*.example"))
	for i := range 2 * newNamesBurst {
		w.answer(dnsQuery(t, "x"+strings.Repeat("y", i%50)+string(rune('a'+i%26))+string(rune('a'+i/26%26))+".example.", dnsmessage.TypeA, dnsmessage.ClassINET, false))
		w.answer(dnsQuery(t, "x"+strings.Repeat("y", i%50)+".evil.", dnsmessage.TypeA, dnsmessage.ClassINET, false))
	}
	_, asked := w.taken()
	if len(asked) < newNamesBurst/2 || len(asked) > newNamesBurst+100 {
		t.Errorf("%d look-ups", len(asked))
	}
	w.record(func(r Record) bool { return r.Rule == byLimit && r.Route == RouteDNS })
}

func FuzzDNS(f *testing.F) {
	f.Add(dnsQuery(f, "a.example.", dnsmessage.TypeA, dnsmessage.ClassINET, true))
	f.Add(dnsQuery(f, "1.0.18.198.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.ClassINET, false))
	f.Add([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	g, err := New(egressPolicy([]string{"*.example"}, nil), Options{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("1.1.1.1")}, nil
	}})
	if err != nil {
		f.Fatal(err)
	}
	g.resolver.ctx, g.resolver.run = context.Background(), func(f func()) { go f() }
	f.Fuzz(func(t *testing.T, b []byte) {
		out, _ := g.answerDNS(context.Background(), b, true, nil)
		if out == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(out); err != nil || !m.Response || len(out) > maxUDP || [2]byte(out) != [2]byte(b) {
			t.Fatal(err, m, len(out))
		}
		for _, a := range m.Answers {
			if _, ok := a.Body.(*dnsmessage.PTRResource); ok {
				continue
			}
			if !strings.HasSuffix(strings.ToLower(a.Header.Name.String()), ".example.") && !strings.HasSuffix(strings.ToLower(a.Header.Name.String()), "localhost.") {
				t.Fatalf("an answer for %s", a.Header.Name)
			}
		}
	})
}
