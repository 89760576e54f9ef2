package egress

import (
	"bytes"
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
			if what, err := sniff(b[:6]); what != openingTLS || err != nil {
				t.Errorf("sniffed %v, %v", what, err)
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
	long := strings.Repeat("A", maxFirstLine)
	for _, c := range []struct {
		in   string
		want opening
		err  error
	}{
		{"", 0, errShort},
		{"GET / HTTP/1.1\r\n", openingRequest, nil},
		{"GET / HTTP/1.1", openingRequest, nil},
		{"GET", 0, errShort},
		{"GET ", 0, errShort},
		{"GET /", 0, errShort},
		{"\r\n\nGET / HTTP/1.0\n", openingRequest, nil},
		{"get / http/1.1\n", openingRequest, nil},
		{"X-ANY\t/ HTTP/9\n", openingRequest, nil},
		{"PRI * HTTP/2.0\r\n", openingRequest, nil},
		{" GET / HTTP/1.1\r\n", openingRequest, nil},
		{"\xa0GET\x1c/\x85HTTP/1.1\n", openingRequest, nil},
		{"GET\v/ HTTP/1.1\n", openingRequest, nil},
		{"GET\r/ HTTP/1.1\n", openingRequest, nil},
		{"{GET} / HTTP/1.1\n", openingRequest, nil},
		{"GET \x01 HTTP/1.1\n", openingRequest, nil},
		{long[:33] + " / HTTP/1.1\n", openingRequest, nil},
		{"G\xc9T / HTTP/1.1\n", openingRequest, nil},
		{"GET\xc2\xa0/ HTTP/1.1\n", openingRequest, nil},
		{"\xef\xbb\xbfGET / HTTP/1.1\n", openingRequest, nil},
		{"\xef\xbb", 0, errShort},
		{"\x80GET / HTTP/1.1\n", openingRequest, nil},
		{"\xff\xff\x00\x1d\x01 ", openingRaw, nil},
		{"CONNECT a:80 HTTP/1.1\n", openingRequest, nil},
		{"GET gopher://b.example/ HTTP/1.1\n", openingRequest, nil},
		{"GET /" + long, openingRequest, nil},
		{long, 0, errShort},
		{long + " ", openingRequest, nil},
		{"GET /\r\n", openingWords, nil},
		{"GET / RTSP/1.0\r\n", openingWords, nil},
		{"GET / ICE/1.0\r\n", openingWords, nil},
		{"get key\r\n", openingWords, nil},
		{"SSH-2.0-OpenSSH_9.2 Debian\r\n", openingWords, nil},
		{"EHLO me\r\n", openingWords, nil},
		{"{\"jsonrpc\": \"2.0\"}\n", openingWords, nil},
		{"\n", 0, errShort},
		{"PING\r\n", openingWord, nil},
		{"PING \r\nGET / HTTP/1.1\r\n", openingWord, nil},
		{"*1\r\n$4\r\nPING\r\n", openingWord, nil},
		{"{\"jsonrpc\"", 0, errShort},
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", 0, nil},      // PostgreSQL, SSLRequest
		{"0\x0c\x02\x01\x01\x60\x07\x02\x01\x03", 0, nil}, // LDAP, a bind
		{"\x10\x11\x00\x04MQTT\x05", 0, nil},              // MQTT
		{"\x14\x01\x00\x00\x2a\x07\x00\x00\x00", 0, nil},  // MongoDB, a message of 276 bytes
		{"\x80\x00\x00\x28\x01\x02\x03\x04", 0, nil},      // a remote procedure call of Sun's
		{"BitTorrent\x13protocol", 0, nil},
		{"\r\n\r\n\x00", 0, errShort},
		{"\r\n\r\n\x00\r\nQUIT\n", openingRequest, nil},
		{"\r\n\r\n\x00\r\nQUIX\n", openingRaw, nil},
		{"\x01", openingRaw, nil},
		{"\x01 / HTTP/1.1\r\n", openingRequest, nil},
		{"GET\x00 / http/1.1\r\n", openingRequest, nil},
		{"0\x0c\x02\x01\x01", openingRaw, nil}, // LDAP
		{"0 \x02 HTTP/1.1\r\n", openingRequest, nil},
		{"\x16", 0, errShort},
		{"\x16\x03", openingTLS, nil},
		{"\x14\x03", openingTLS, nil},
		{"\x15\x03", openingTLS, nil},
		{"\x17\x03", openingTLS, nil},
		{"\x18\x03", openingTLS, nil},
		{"\x16\x00\x00\x00\x10", 0, errShort},
		{"\x16\x00\x00\x00\x10\x01", openingTLS, nil},
		{"\x16\x00\x00\x00\x00\x16", openingTLS, nil},
		{"\x15\x00\x00\x00\x02\x01", openingTLS, nil},
		{"\x16\x10", 0, nil},
		{"\x80\x2e\x01", 0, errShort},
		{"\x80\x2e\x01\x03\x01", openingTLS, nil}, // SSLv2's form
		{"\xff\xff\xff\xff", 0, errShort},
	} {
		if got, err := sniff([]byte(c.in)); err != c.err || err == nil && got != c.want {
			t.Errorf("%.20q: %v, %v", c.in, got, err)
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

// TestSecondClientHello: a client that the server asks for another ClientHello, or that
// resumes, is served, and what TLS does not have a client send before the server's
// answer, and before a second ClientHello, does not reach the server (E23).
func TestSecondClientHello(t *testing.T) {
	cert, pool := certificate(t, "a.example")
	w := newPatientWorld(t, egressPolicy([]string{"a.example"}, nil), time.Second)
	retry := tls.Config{Certificates: []tls.Certificate{cert}, CurvePreferences: []tls.CurveID{tls.CurveP384}}
	w.host("a.example", "93.184.216.34", 443, func(c net.Conn) {
		if s := tls.Server(c, &retry); s.Handshake() == nil {
			io.Copy(s, s)
		}
	})
	// The control: clients whose key the server cannot use, and those that resume.
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := &tls.Config{ServerName: "a.example", RootCAs: pool, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}, MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		for range 3 {
			nc := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 443))
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
	warning, empty := []byte{21, 3, 1, 0, 2, 1, 90}, []byte{22, 3, 1, 0, 0}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	hello, again := serverHello([32]byte{1}), serverHello(retryRandom)
	long := forgedExt([2]any{0, sniExt("b.example")}, [2]any{21, make([]byte, 40<<10)})
	for i, c := range []struct {
		what   string
		in     []byte   // of the client, all at once
		answer []byte   // of the server, after each of its waits
		waits  [][]byte // what the server waits for, one after the other
		held   []byte   // what it does not get
	}{
		{"an alert first", join(warning, good), nil, nil, warning},
		{"an empty record first", join(empty, good), nil, nil, empty},
		{"a change of cipher first", join(cipher, good), nil, nil, cipher},
		{"SSLv2", []byte{0x80, 0x2e, 1, 3, 1, 0, 3, 0, 0, 0, 0x20}, nil, nil, []byte{0x80}},
		{"another name", other, nil, nil, []byte("b.example")},
		{"one", join(good, data), hello, [][]byte{good, data}, nil},
		{"before the answer", join(good, data), nil, [][]byte{good}, data},
		{"the same again, unasked", join(good, good), nil, [][]byte{good}, good},
		{"again", join(good, good, data), join(again, hello), [][]byte{good, good, data}, nil},
		{"again, cut", join(good, split(good, 3), data), join(again, cipher, hello), [][]byte{good, split(good, 3), data}, nil},
		{"again, after a change of cipher", join(good, cipher, good, data), again, [][]byte{good, join(cipher, good)}, data},
		{"early data", join(early, cipher, data, data, good, data), join(again, hello), [][]byte{join(early, cipher, data, data), good, data}, nil},
		{"early data that was not offered", join(good, data), nil, [][]byte{good}, data},
		{"early data, and another name", join(early, data, other), again, [][]byte{join(early, data)}, []byte("b.example")},
		{"another name, again", join(good, other), again, [][]byte{good}, []byte("b.example")},
		{"another name, cut", join(good, split(other, 2)), again, [][]byte{good}, split(other, 2)[:10]},
		{"another name, after a change of cipher", join(good, cipher, other), again, [][]byte{good, cipher}, []byte("b.example")},
		{"another name, after an alert", join(good, warning, other), again, [][]byte{good}, []byte("b.example")},
		{"another name, after an empty record", join(good, empty, other), again, [][]byte{good}, []byte("b.example")},
		{"another name, third", join(good, good, other), join(again, again), [][]byte{good, good}, []byte("b.example")},
		{"no name", join(good, forged()), again, [][]byte{good}, forged()},
		{"another name, in a long one", join(good, long), again, [][]byte{good}, []byte("b.example")},
		{"after a fatal alert", join(good, other), []byte{21, 3, 3, 0, 2, 2, 40}, [][]byte{good}, []byte("b.example")},
		{"after a warning", join(good, data), join([]byte{21, 3, 3, 0, 2, 1, 112}, hello), [][]byte{good, data}, nil},
		{"after no TLS", join(good, other), []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), [][]byte{good}, []byte("b.example")},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			port := uint16(9000 + i)
			got := make(chan []byte, 1)
			w.host("a.example", "93.184.216.34", port, func(nc net.Conn) {
				var all []byte
				defer func() { got <- all }()
				for n, want := range c.waits {
					b := make([]byte, len(want))
					nc.SetReadDeadline(time.Now().Add(2 * time.Second))
					k, err := io.ReadFull(nc, b)
					if all = append(all, b[:k]...); err != nil {
						return
					}
					if n == 0 && len(c.answer) > 0 && bytes.Contains(c.answer[1:], again) {
						nc.Write(again)
					} else if n == 1 && bytes.HasPrefix(c.answer, again) && len(c.answer) > len(again) {
						nc.Write(c.answer[len(again):])
					} else if n == 0 {
						nc.Write(c.answer)
					}
				}
				b, _ := io.ReadAll(nc)
				all = append(all, b...)
			})
			nc := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), port))
			defer nc.Close()
			nc.SetDeadline(time.Now().Add(10 * time.Second))
			go func() {
				nc.Write(c.in)
				if c.held == nil {
					nc.(*net.TCPConn).CloseWrite()
				}
			}()
			all := <-got
			want := bytes.Join(c.waits, nil)
			if c.held == nil && !bytes.Equal(all, c.in) || c.held != nil && !bytes.HasPrefix(want, all) {
				t.Errorf("the server got %d bytes of %d, %x", len(all), len(c.in), all)
			}
			if c.held != nil && len(c.waits) > 0 && !bytes.Equal(all, want) {
				t.Errorf("the server got %d bytes, not %d", len(all), len(want))
			}
		})
	}
}

// serverHello is a record with that message.
func serverHello(random [32]byte) []byte {
	msg := append([]byte{2, 0, 0, 2 + 32 + 1 + 3, 3, 3}, random[:]...)
	msg = append(msg, 0, 0x13, 1, 0)
	return append([]byte{22, 3, 3, 0, byte(len(msg))}, msg...)
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

// TestClaimDenied: a deny rule that comes for the name that a connection to an address
// said ends it, and none for another name does.
func TestClaimDenied(t *testing.T) {
	cert, pool := certificate(t, "a.example")
	listed := []string{"93.184.216.34:443,8443"}
	w := newWorld(t, allow(listed...))
	for _, port := range []uint16{443, 8443} {
		w.host("", "93.184.216.34", port, func(c net.Conn) {
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
			if s.Handshake() == nil {
				io.Copy(s, s)
			}
		})
		c := tls.Client(w.dialTransparent(netip.AddrPortFrom(netip.MustParseAddr("93.184.216.34"), port)), &tls.Config{ServerName: "a.example", RootCAs: pool})
		defer c.Close()
		if err := talk(c, "hello"); err != nil {
			t.Fatal(err)
		}
		for _, denied := range []string{"b.example", "a.example"} {
			if err := w.g.Reload(egressPolicy(listed, []string{denied})); err != nil {
				t.Fatal(err)
			}
			if err := talk(c, "hello"); (err != nil) != (denied == "a.example") {
				t.Errorf("port %d, denied %s: %v", port, denied, err)
			}
		}
		if err := w.g.Reload(allow(listed...)); err != nil {
			t.Fatal(err)
		}
	}
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
		what, serr := sniff(b)
		if err == nil && (what != openingTLS || serr != nil) {
			t.Fatalf("a ClientHello is taken for %v, %v", what, serr)
		}
		if n, _ := between(b, true); err == nil && n != 0 {
			t.Fatal("a ClientHello is passed on unread")
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
