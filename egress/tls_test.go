package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"io"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// hello is the ClientHello that a real client sends.
func hello(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		tls.Client(client, c).Handshake()
		client.Close()
	}()
	server.SetDeadline(time.Now().Add(10 * time.Second))
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(server, rest); err != nil {
		t.Fatal(err)
	}
	return append(head, rest...)
}

// split cuts the message of a record into records of n bytes.
func split(rec []byte, n int) []byte {
	var out []byte
	for msg := rec[5:]; len(msg) > 0; {
		k := min(n, len(msg))
		out = append(out, 22, 3, 1, byte(k>>8), byte(k))
		out = append(out, msg[:k]...)
		msg = msg[k:]
	}
	return out
}

func TestParseClientHello(t *testing.T) {
	for _, c := range []*tls.Config{
		{ServerName: "a.example"},
		{ServerName: "a.example", MaxVersion: tls.VersionTLS12},
		{ServerName: "a.example", NextProtos: []string{"h2", "http/1.1"}, CurvePreferences: []tls.CurveID{tls.X25519MLKEM768}},
		{ServerName: "", InsecureSkipVerify: true},
		{ServerName: "192.0.2.1", InsecureSkipVerify: true}, // sent as no name
	} {
		want := c.ServerName
		if strings.HasPrefix(want, "192.") {
			want = ""
		}
		rec := hello(t, c)
		for _, b := range [][]byte{rec, split(rec, 1), split(rec, 7), split(rec, len(rec)-6), append(rec[:len(rec):len(rec)], "more"...)} {
			h, err := parseClientHello(b)
			if err != nil || h.name != want || h.early || string(b[h.size:]) != "" && string(b[h.size:]) != "more" {
				t.Errorf("%+v, %v, want %q", h, err, want)
			}
			if p, err := sniff(b[:6], false); p != protoTLS && len(split(rec, 1)) != len(b) || err != nil {
				t.Errorf("sniffed %v, %v", p, err)
			}
		}
		for n := range rec {
			if _, err := parseClientHello(rec[:n]); err != errShort {
				t.Fatalf("%d of %d bytes: %v", n, len(rec), err)
			}
		}
	}
}

// forged is a ClientHello with the given server_name extensions.
func forged(ext ...[]byte) []byte {
	var all [][2]any
	for _, e := range ext {
		all = append(all, [2]any{0, e})
	}
	return forgedExt(all...)
}

// forgedExt is a ClientHello with extensions, each a number and its data.
func forgedExt(ext ...[2]any) []byte {
	body := make([]byte, 2+32, 512)
	body[0], body[1] = 3, 3
	body = append(body, 0, 0, 2, 0x13, 0x01, 1, 0)
	var all []byte
	for _, e := range ext {
		all = binary.BigEndian.AppendUint16(all, uint16(e[0].(int)))
		all = binary.BigEndian.AppendUint16(all, uint16(len(e[1].([]byte))))
		all = append(all, e[1].([]byte)...)
	}
	body = binary.BigEndian.AppendUint16(body, uint16(len(all)))
	body = append(body, all...)
	msg := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	if len(msg) > 1<<14 {
		return split(append(make([]byte, 5), msg...), 1<<14)
	}
	return append([]byte{22, 3, 1, byte(len(msg) >> 8), byte(len(msg))}, msg...)
}

func sniExt(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(append(list, 0, byte(len(n)>>8), byte(len(n))), n...)
	}
	return append([]byte{byte(len(list) >> 8), byte(len(list))}, list...)
}

// TestParseClientHelloBad: what a server could read otherwise is refused.
func TestParseClientHelloBad(t *testing.T) {
	if h, err := parseClientHello(forged(sniExt("a.example"))); err != nil || h.name != "a.example" {
		t.Fatalf("%+v, %v", h, err)
	}
	good := forged(sniExt("a.example"))
	second := append(append([]byte{}, good[:3]...), byte((len(good)-5+4)>>8), byte(len(good)-5+4))
	second = append(append(second, good[5:]...), 1, 0, 0, 0)
	trailing := append([]byte{}, good...)
	trailing[8] -= 1 // the message says that it is shorter
	for what, b := range map[string][]byte{
		"two extensions":       forged(sniExt("a.example"), sniExt("b.example")),
		"two names":            forged(sniExt("a.example", "b.example")),
		"an empty name":        forged(sniExt("")),
		"an empty list":        forged(sniExt()),
		"another kind of name": forged([]byte{0, 4, 1, 0, 1, 'a'}),
		"a short list":         forged([]byte{0, 9, 0, 0, 1, 'a'}),
		"a long list":          forged(append(sniExt("a.example"), 0)),
		"a second message":     second,
		"a shorter message":    trailing,
		"another handshake":    {22, 3, 1, 0, 4, 2, 0, 0, 0},
		"an empty record":      {22, 3, 1, 0, 0, 1},
		"a long record":        {22, 3, 1, 0xff, 0xff, 1},
		"a long message":       {22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff},
	} {
		if h, err := parseClientHello(b); err == nil || err == errShort {
			t.Errorf("%s: %+v, %v", what, h, err)
		}
	}
}

func TestSniff(t *testing.T) {
	for _, c := range []struct {
		in   string
		web  bool
		want protocol
		err  error
	}{
		{"", false, 0, errShort},
		{"GET / HTTP/1.1\r\n", false, protoHTTP, nil},
		{"GET / HTTP/1.1", false, 0, errShort},
		{"GET ", false, 0, errShort},
		{"GET ", true, protoHTTP, nil},
		{"GET", true, 0, errShort},
		{"\r\n\nGET / HTTP/1.0\n", false, protoHTTP, nil},
		{"get / http/1.1\n", false, protoHTTP, nil},
		{"X-ANY\t/ HTTP/9\n", false, protoHTTP, nil},
		{"PRI * HTTP/2.0\r\n", false, protoHTTP, nil},
		{"get key", false, protoOther, nil},
		{"GET h", false, 0, errShort},
		{"GET  HTTP:", false, 0, errShort},
		{"say hello", false, protoOther, nil},
		{"get key\r\n", true, protoHTTP, nil},
		{"SSH-2.0-OpenSSH_9.2 Debian\r\n", false, protoOther, nil},
		{"EHLO me\r\n", false, protoOther, nil},
		{"*1\r\n$4\r\nPING\r\n", false, protoOther, nil},
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", false, protoOther, nil},
		{"{\"jsonrpc\"", false, protoOther, nil},
		{strings.Repeat("A", 33), false, protoOther, nil},
		{"GET /" + strings.Repeat("a", maxFirstLine), false, protoHTTP, nil},
		{"\x16", false, 0, errShort},
		{"\x16\x03\x01\x00\x10", false, 0, errShort},
		{"\x16\x03\x01\x00\x10\x01", false, protoTLS, nil},
		{"\x16\x03\x01\x00\x10\x02", false, protoOther, nil},
		{"\x16\x02", false, 0, errShort},
		{"\x16\x03\x30\x00\x10\x01", false, protoTLS, nil},
	} {
		if got, err := sniff([]byte(c.in), c.web); got != c.want || err != c.err {
			t.Errorf("%.20q, %v: %v, %v", c.in, c.web, got, err)
		}
	}
}

// certificate is one of the test's own for some names.
func certificate(t testing.TB, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// TestTLS: a server name must agree with the name that was meant (E07, NET-5), by
// every route and however the ClientHello is cut; nothing is taken from the
// connection.
func TestTLS(t *testing.T) {
	cert, pool := certificate(t, "a.example", "b.example")
	w := newWorld(t, egressPolicy([]string{"a.example", "93.184.216.34"}, []string{"denied.example"}))
	serve := func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		if s.Handshake() == nil {
			io.Copy(s, s)
		}
	}
	for _, port := range []uint16{443, 8443} {
		w.host("a.example", "93.184.216.34", port, serve)
	}
	for _, c := range []struct {
		sni  string
		port uint16
		name bool // dialled by name
		ok   bool
	}{
		{"a.example", 443, true, true},
		{"A.Example", 443, true, true},
		{"b.example", 443, true, false},
		{"b.example", 8443, true, false},
		{"", 443, true, false},
		{"", 8443, true, true},
		{"", 443, false, true},
		{"b.example", 443, false, true},
		{"denied.example", 443, false, false},
	} {
		for route, dial := range map[Route]func() net.Conn{
			RouteTransparent: func() net.Conn {
				to := netip.MustParseAddr("93.184.216.34")
				if c.name {
					to = w.number("a.example")
				}
				return w.dialTransparent(netip.AddrPortFrom(to, c.port))
			},
			RouteSOCKS: func() net.Conn {
				to := "93.184.216.34"
				if c.name {
					to = "a.example"
				}
				return w.openSOCKS5(to, c.port)
			},
			RouteConnect: func() net.Conn {
				to := "93.184.216.34"
				if c.name {
					to = "a.example"
				}
				return w.openConnect(net.JoinHostPort(to, map[uint16]string{443: "443", 8443: "8443"}[c.port]))
			},
		} {
			nc := dial()
			client := tls.Client(&dribble{nc}, &tls.Config{ServerName: c.sni, RootCAs: pool, InsecureSkipVerify: c.sni == "" || c.sni == "denied.example"})
			err := client.Handshake()
			if err == nil {
				err = talk(client, strings.Repeat("hello", 1000))
			}
			nc.Close()
			if (err == nil) != c.ok {
				t.Errorf("%s: %+v: %v", route, c, err)
			}
			if err != nil && !strings.Contains(err.Error(), "access denied") {
				t.Errorf("%s: %+v: the client does not learn why: %v", route, c, err)
			}
		}
	}
	r := w.record(func(r Record) bool { return r.Verdict == Deny && r.Port == 8443 })
	if r.Rule != byAgreement || !strings.Contains(r.Reason, "b.example") || r.Protocol != "" && r.Protocol != "tls" {
		t.Errorf("%+v", r)
	}
	r = w.record(func(r Record) bool { return r.Verdict == Deny && r.Rule == "deny denied.example" })
	if r.Addr.String() != "93.184.216.34" {
		t.Errorf("%+v", r)
	}
}

// TestSecondClientHello: when the server asks for another ClientHello, or a client
// sends one unasked, the name in that must agree as well (E07).
func TestSecondClientHello(t *testing.T) {
	cert, pool := certificate(t, "a.example")
	w := newWorld(t, egressPolicy([]string{"a.example"}, nil))
	retry := tls.Config{Certificates: []tls.Certificate{cert}, CurvePreferences: []tls.CurveID{tls.CurveP384}}
	w.host("a.example", "93.184.216.34", 443, func(c net.Conn) {
		if s := tls.Server(c, &retry); s.Handshake() == nil {
			io.Copy(s, s)
		}
	})
	w.host("a.example", "93.184.216.34", 8443, echo)
	dial := func(port uint16) net.Conn {
		return w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), port))
	}
	// The control: clients whose key the server cannot use, and those that resume.
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := &tls.Config{ServerName: "a.example", RootCAs: pool, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}, MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		for range 3 {
			nc := dial(443)
			client := tls.Client(nc, config)
			if err := talk(client, strings.Repeat("hello", 1000)); err != nil {
				t.Errorf("%x: %v", version, err)
			}
			if state := client.ConnectionState(); version == tls.VersionTLS13 && !state.HelloRetryRequest {
				t.Error("the server did not ask again")
			}
			nc.Close()
		}
	}

	good, other := forged(sniExt("a.example")), forged(sniExt("b.example"))
	early := forgedExt([2]any{0, sniExt("a.example")}, [2]any{42, []byte{}})
	cipher, data := []byte{20, 3, 3, 0, 1, 1}, append([]byte{23, 3, 3, 1, 0}, make([]byte, 256)...)
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	long := forgedExt([2]any{0, sniExt("b.example")}, [2]any{21, make([]byte, 40<<10)})
	for _, c := range []struct {
		what string
		in   []byte
		ok   bool
	}{
		{"one", good, true},
		{"the same again", join(good, good), true},
		{"the same, cut", join(good, split(good, 3)), true},
		{"after a change of cipher", join(good, cipher, good, cipher, data), true},
		{"data", join(good, data, other), true}, // encrypted: what looks like another record is no record
		{"a key exchange", join(good, []byte{22, 3, 3, 0, 5, 16, 0, 0, 1, 0}, cipher), true},
		{"the end of a resumed handshake", join(good, cipher, []byte{22, 3, 3, 0, 8, 1, 0xee, 0, 0, 5, 6, 7, 8}, data), true},
		{"early data", join(early, data, data, good, data), true},
		{"another name", join(good, other), false},
		{"another name, cut", join(good, split(other, 2)), false},
		{"another name, after a change of cipher", join(good, cipher, cipher, other), false},
		{"another name, after early data", join(early, data, data, cipher, other), false},
		{"another name, third", join(good, good, other), false},
		{"no name", join(good, forged()), false},
		{"another name, in a long one", join(good, long), false},
	} {
		t.Run(c.what, func(t *testing.T) {
			nc := dial(8443)
			defer nc.Close()
			nc.SetDeadline(time.Now().Add(10 * time.Second))
			go func() {
				nc.Write(c.in)
				nc.(*net.TCPConn).CloseWrite()
			}()
			out, err := io.ReadAll(nc)
			if c.ok && (err != nil || string(out) != string(c.in)) {
				t.Errorf("%d of %d bytes, %v", len(out), len(c.in), err)
			}
			if !c.ok {
				if strings.Contains(string(out), "b.example") {
					t.Error("the server saw it")
				}
				r := w.record(func(r Record) bool { return r.Verdict == Deny && r.Port == 8443 })
				if r.Name != "a.example" {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// dribble writes the first bytes one at a time.
type dribble struct{ net.Conn }

func (d *dribble) Write(b []byte) (int, error) {
	for i := range min(len(b), 8) {
		if _, err := d.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	n := min(len(b), 8)
	k, err := d.Conn.Write(b[n:])
	return n + k, err
}

// TestProtocolRule: a rule that asks for TLS lets nothing else through, in
// neither direction.
func TestProtocolRule(t *testing.T) {
	cert, pool := certificate(t, "a.example")
	w := newWorld(t, egressPolicy([]string{"https://a.example", "http://b.example", "c.example"}, []string{"http://c.example:8080"}))
	w.host("a.example", "93.184.216.34", 443, func(c net.Conn) {
		io.WriteString(c, "") // nothing
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		if s.Handshake() == nil {
			io.Copy(s, s)
		}
	})
	w.host("b.example", "93.184.216.35", 80, func(c net.Conn) {
		io.WriteString(c, "220 I speak first\r\n")
		echo(c)
	})
	w.host("c.example", "93.184.216.36", 8080, echo)
	dial := func(name string, port uint16) net.Conn {
		return w.dialTransparent(netip.AddrPortFrom(w.number(name), port))
	}
	c := tls.Client(dial("a.example", 443), &tls.Config{ServerName: "a.example", RootCAs: pool})
	if err := talk(c, "hello"); err != nil {
		t.Error(err)
	}
	c.Close()
	for name, port := range map[string]uint16{"a.example": 443, "b.example": 80} {
		nc := dial(name, port)
		if err := talk(nc, "SSH-2.0-x\r\n"); err == nil {
			t.Errorf("%s: something else gets through", name)
		}
		nc.Close()
		r := w.record(func(r Record) bool { return r.Name == name && r.Verdict == Deny })
		if r.BytesIn != 0 || r.BytesOut != 0 || r.Rule != byDefault {
			t.Errorf("%+v", r)
		}
	}
	nc := dial("c.example", 8080)
	if err := talk(nc, "SSH-2.0-x\r\n"); err != nil {
		t.Errorf("what is not HTTP: %v", err)
	}
	nc.Close()
	nc = dial("c.example", 8080)
	io.WriteString(nc, "GET / HTTP/1.1\r\nHost: c.example:8080\r\n\r\n")
	if b, _ := io.ReadAll(nc); !strings.HasPrefix(string(b), "HTTP/1.1 403 ") {
		t.Errorf("%q", b)
	}
	nc.Close()
}

func FuzzClientHello(f *testing.F) {
	f.Add(hello(f, &tls.Config{ServerName: "a.example"}))
	f.Add(split(hello(f, &tls.Config{ServerName: "a.example"}), 9))
	f.Add(forged(sniExt("a.example"), sniExt("b.example")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseClientHello(b)
		if err != nil && h != (clientHello{}) || h.size > len(b) {
			t.Fatal(h, err)
		}
		// A second ClientHello is seen as one, and its record is not passed over.
		if kind, _ := afterHello(b, true); err == nil && kind != recordHello {
			t.Fatalf("a second ClientHello is taken for %d", kind)
		}
		for _, web := range []bool{false, true} {
			p, serr := sniff(b, web)
			if err == nil && len(b) > 5 && b[5] == 1 && (p != protoTLS || serr != nil) {
				t.Fatalf("a ClientHello is taken for %v, %v", p, serr)
			}
		}
		// What is one with all bytes is not another one with fewer.
		for n := range b {
			if n > 300 {
				break
			}
			if less, lerr := parseClientHello(b[:n]); lerr == nil && (err != nil || less != h) {
				t.Fatalf("%+v after %d bytes, then %+v, %v", less, n, h, err)
			}
		}
	})
}
