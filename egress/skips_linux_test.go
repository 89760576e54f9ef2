package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A probe is a client that tries to reach the denied name at a server that the rules
// allow by another name. It is given the connection and the allowed name.
type probe func(c net.Conn, name string)

// says is a probe that says something, and hears what the server has to say to it. N in
// it is the denied name, and A the one that is allowed.
func says(parts ...string) probe {
	return func(c net.Conn, name string) {
		for i, p := range parts {
			if i > 0 { // the server may answer first
				c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
				c.Read(make([]byte, 1<<14))
			}
			io.WriteString(c, strings.NewReplacer("{N}", denied, "{A}", name).Replace(p))
		}
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(400 * time.Millisecond))
		io.Copy(io.Discard, c)
	}
}

// changed is a connection whose first writes are changed.
type changed struct {
	net.Conn
	n      int
	change func(n int, b []byte) []byte
}

func (c *changed) Write(b []byte) (int, error) {
	c.n++
	if _, err := c.Conn.Write(c.change(c.n, b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// handshakes is a probe by a real TLS client. Change is given each of its writes, and
// which it is.
func handshakes(sni func(name string) string, change func(name string, n int, b []byte) []byte) probe {
	return func(c net.Conn, name string) {
		config := &tls.Config{ServerName: sni(name), InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}}
		client := tls.Client(&changed{Conn: c, change: func(n int, b []byte) []byte { return change(name, n, b) }}, config)
		c.SetDeadline(time.Now().Add(time.Second))
		fmt.Fprintf(client, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", denied)
		io.Copy(io.Discard, client)
	}
}

// after puts bytes before the first record of a client that names the denied host.
func after(prefix string) probe {
	return handshakes(func(string) string { return denied }, func(_ string, n int, b []byte) []byte {
		if n == 1 {
			return append([]byte(prefix), b...)
		}
		return b
	})
}

// secondHello puts the denied name into the ClientHello that a server asks for, after
// some bytes, cut into records of size bytes.
func secondHello(prefix string, size int) probe {
	return func(c net.Conn, name string) {
		seen := 0
		handshakes(func(string) string { return name }, func(name string, _ int, b []byte) []byte {
			at := bytes.Index(b, []byte(name))
			if at < 0 {
				return b
			}
			if seen++; seen == 1 {
				return b
			}
			b = bytes.ReplaceAll(b, []byte(name), []byte(denied))
			start := 0
			if b[0] == 20 {
				start = 6
			}
			if size > 0 {
				b = append(b[:start:start], split(b[start:], size)...)
			}
			return append(append(b[:start:start], prefix...), b[start:]...)
		})(c, name)
	}
}

// http2 is what a client that knows of HTTP/2 says: its preface, and a request.
func http2(authority string, stream byte) string {
	head := "\x82\x86\x84\x41" + string(rune(len(authority))) + authority
	return "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00" + string(rune(len(head))) + "\x01\x05\x00\x00\x00" + string(rune(stream)) + head
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// skips are ways in which a client got past the gateway, or might.
var skips = []struct {
	what string
	tls  bool
	p    probe

	by string // a server that it reaches without the gateway, "" if none does
}{
	{"a request", false, says("GET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"a method of 33 bytes", false, says(strings.Repeat("A", 33) + " / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"CONNECT", false, says("CONNECT {N}:80 HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"CONNECT, then another", false, says("CONNECT {A}:80 HTTP/1.1\r\nHost: {A}:80\r\n\r\n", "GET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"a target of another scheme", false, says("GET gopher://{N}/ HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"https in plain HTTP", false, says("GET https://{N}/ HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"a target without a slash", false, says("GET x HTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"no version", false, says("GET /\r\nHost: {N}\r\n\r\n", "GET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"the version of RTSP", false, says("DESCRIBE / RTSP/1.0\r\nHost: {N}\r\n\r\n"), "nodejs"},
	{"the version of ICE", false, says("SOURCE / ICE/1.0\r\nHost: {N}\r\n\r\n"), "nodejs"},
	{"another version", false, says("GET / HTTP/1.7\r\nHost: {N}\r\n\r\n"), "golang"},
	{"a tab", false, says("GET\t/\tHTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a vertical tab", false, says("GET\v/\vHTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a separator of ASCII", false, says("GET\x1c/\x1dHTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a space that is not to be broken", false, says("GET\xa0/\xa0HTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a space before the method", false, says(" GET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a control character in the target", false, says("GET /\x01 HTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a control character in the method", false, says("G\x01T / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a NUL in the method, in pieces", false, says("G\x00", "T / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a method with other characters", false, says("G(ET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "python"},
	{"a method in the second piece", false, says("GE", "T / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"a method that is no text", false, says("\x01 / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "javase"},
	{"a method that is no text, and no version", false, says("\x01 / X\r\nHost: {N}\r\n\r\n"), "javase"},
	{"a method that is no text, and an end of line that is none", false, says("\x01 / X\r\nA: B\rhOST:{N}\r\n\r\n"), "javase"},
	{"a method that is no text, in pieces", false, says("\x01 / X\r\nHo", "st: {N}\r\n\r\n"), "javase"},
	{"empty lines", false, says("\r\n\n\r\n", "GET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "nodejs"},
	{"a word", false, says("PING\r\n", "GET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), ""},
	{"pipelined", false, says("GET / HTTP/1.1\r\nHost: {A}\r\n\r\nGET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"smuggled", false, says("POST / HTTP/1.1\r\nHost: {A}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},
	{"in a body", false, says("GET / HTTP/1.1\r\nHost: {A}\r\nContent-Length: 47\r\n\r\nGET /xx HTTP/1.1\r\nHost: {N}\r\nX: \r\n\r\n"), "python"},
	{"in chunks", false, says("HEAD / HTTP/1.1\r\nHost: {A}\r\nTransfer-Encoding: chunked\r\n\r\n2f\r\n\r\nGET /xx HTTP/1.1\r\nHost: {N}\r\nX: y\r\n\r\n\r\n0\r\n\r\n"), ""},
	{"a line feed alone", false, says("GET / HTTP/1.1\nHost: {N}\n\n"), "golang"},
	{"HTTP/2 that the client knows of", false, says(preface + http2(denied, 1)), "golan2"},
	{"HTTP/2 in pieces", false, says("PRI", " * HTTP/2.0\r\n\r\nSM\r\n\r\n"+http2(denied, 1)), "golan2"},
	{"HTTP/2 by an upgrade", false, says("GET / HTTP/1.1\r\nHost: {A}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", preface+http2(denied, 3)), "lighty"},
	{"HTTP/2 by an upgrade to two things", false, says("GET / HTTP/1.1\r\nHost: {A}\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n", "GET / HTTP/1.1\r\nHost: {N}\r\n\r\n"), "golang"},

	{"a ClientHello", true, after(""), "golang"},
	{"a warning first", true, after("\x15\x03\x01\x00\x02\x01\x5a"), "golang"},
	{"a warning of an odd version first", true, after("\x15\x00\x00\x00\x02\x01\x5a"), "golang"},
	{"an empty record first", true, after("\x16\x03\x01\x00\x00"), "python"},
	{"a change of cipher first", true, after("\x14\x03\x01\x00\x01\x01"), "gnutls"},
	{"an empty change of cipher first", true, after("\x14\x03\x01\x00\x00"), "python"},
	{"data first", true, after("\x17\x03\x01\x00\x00"), ""},
	{"a heartbeat first", true, after("\x18\x03\x01\x00\x03\x01\x00\x00"), ""},
	{"a second ClientHello", true, secondHello("", 0), "python"},
	{"a second ClientHello in records of 1 byte", true, secondHello("", 1), "python"},
	{"a second ClientHello in records of 3 bytes", true, secondHello("", 3), "python"},
	{"a second ClientHello after a warning", true, secondHello("\x15\x03\x03\x00\x02\x01\x5a", 0), "python"},
	{"a second ClientHello after an empty record", true, secondHello("\x16\x03\x03\x00\x00", 0), ""},
	{"a second ClientHello after a change of cipher", true, secondHello("\x14\x03\x03\x00\x01\x01", 0), "python"},
}

// TestSkips: what reaches the denied name at a server without the gateway does not
// through it, by the servers' own logs (E07, E21, E23, E24).
func TestSkips(t *testing.T) {
	list := fleet(t)
	var names []string
	for _, s := range list {
		names = append(names, s.name)
	}
	w := newPatientWorld(t, allow(names...), 500*time.Millisecond)
	w.place(list)
	settled := func() []int64 {
		time.Sleep(150 * time.Millisecond) // logs are written by other processes
		var all []int64
		for _, s := range list {
			all = append(all, s.reached(t))
		}
		return all
	}
	run := func(p probe, s *real, c net.Conn) {
		defer c.Close()
		p(c, s.name)
	}
	each := func(secure bool, f func(s *real)) {
		var group sync.WaitGroup
		for _, s := range list {
			if secure && s.tls != "" || !secure && s.plain != "" {
				group.Go(func() { f(s) })
			}
		}
		group.Wait()
	}
	before := settled()
	var group sync.WaitGroup
	slots := make(chan bool, 32)
	for _, k := range skips {
		ports := []uint16{80, 8080}
		if k.tls {
			ports = []uint16{443, 8443}
		}
		for _, s := range list {
			if s.plain == "" && !k.tls || s.tls == "" && k.tls {
				continue
			}
			for _, port := range ports {
				slots <- true
				group.Go(func() {
					defer func() { <-slots }()
					run(k.p, s, w.dialTransparent(netip.AddrPortFrom(w.number(s.name), port)))
					if host := net.JoinHostPort(s.name, strconv.Itoa(int(port))); port > 443 {
						run(k.p, s, w.openConnect(host).(bufferedConn).Conn)
						run(k.p, s, w.openSOCKS5(s.name, port))
					}
				})
			}
		}
	}
	group.Wait()
	now := settled()
	for i, s := range list {
		if now[i] != before[i] {
			t.Errorf("%s was asked for the denied name %d times", s.name, now[i]-before[i])
		}
	}
	// The control: the same without the gateway; and the allowed name through it.
	each(true, func(s *real) {
		c := tls.Client(w.dialTransparent(netip.AddrPortFrom(w.number(s.name), 443)), &tls.Config{ServerName: s.name, InsecureSkipVerify: true})
		if err := c.Handshake(); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		c.Close()
	})
	for _, k := range skips {
		i := slices.IndexFunc(list, func(s *real) bool { return s.name == k.by+".example" })
		if i < 0 {
			continue
		}
		s := list[i]
		to, n := s.plain, s.reached(t)
		if k.tls {
			to = s.tls
		}
		c, err := net.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		go run(k.p, s, c)
		waitFor(t, k.what+" reaches "+s.name+" without the gateway", func() bool { return s.reached(t) > n })
	}
}

// A say is what a client of the fuzz test says, and whether it then waits for an
// answer.
type say struct {
	b    []byte
	wait bool
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// records makes what a TLS client may never say: records, ClientHellos, and their order.
// Hellos are those of real clients, with the allowed name.
func records(r *rand.Rand, name string, hellos [][]byte) []say {
	var all []say
	record := func(kind, minor byte, body []byte) []byte {
		major := byte(3)
		if r.IntN(12) == 0 {
			major = byte(pick(r, 0, 1, 2, 4, 15, 16, 254))
		}
		n := len(body)
		if r.IntN(40) == 0 {
			n += r.IntN(5) - 2
		}
		return append([]byte{kind, major, minor, byte(n >> 8), byte(n)}, body...)
	}
	junk := func() []byte {
		kind := byte(pick(r, 20, 20, 21, 21, 21, 22, 22, 23, 24, 0, 25, 128))
		minor := byte(pick(r, 0, 1, 3, 3, 4))
		switch kind {
		case 20:
			return record(kind, minor, pick(r, []byte{1}, []byte{1}, nil, []byte{2}, []byte{1, 1}))
		case 21:
			return record(kind, minor, []byte{byte(pick(r, 1, 1, 1, 2)), byte(pick(r, 0, 10, 40, 41, 90, 100, 112))}[:pick(r, 2, 2, 2, 1)])
		case 22:
			return record(kind, minor, pick(r, nil, nil, []byte{0, 0, 0, 0}, []byte{1}, []byte{1, 0}, []byte{20, 0, 0, 0}, []byte{2, 0, 0, 0}))
		case 128:
			return []byte{0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10, 0, 0, 0x2f}
		}
		return record(kind, minor, make([]byte, pick(r, 0, 1, 3, 100)))
	}
	hello := func(to string) []byte {
		b := bytes.Clone(pick(r, hellos...))
		if r.IntN(16) == 0 {
			to = pick(r, strings.ToUpper(to), to[:len(to)-1]+".", "."+to[1:])
		}
		b = bytes.ReplaceAll(b, []byte(name), []byte(to))
		msg := b[5:]
		if r.IntN(20) == 0 {
			msg = append(msg, pick(r, []byte{0, 0, 0, 0}, []byte{1, 0, 0, 0}, msg)...)
		}
		var out []byte
		if r.IntN(3) > 0 {
			return record(22, byte(pick(r, 1, 1, 3, 0, 4)), msg)
		}
		for len(msg) > 0 {
			n := min(len(msg), pick(r, 1, 2, 3, 4, 5, 6, 50, 100, 1000))
			out = append(out, record(22, byte(pick(r, 1, 3)), msg[:n])...)
			msg = msg[n:]
			if r.IntN(10) == 0 {
				out = append(out, junk()...)
			}
			if len(out) > 200 {
				out = append(out, record(22, 3, msg)...)
				break
			}
		}
		return out
	}
	if r.IntN(3) > 0 {
		all = append(all, say{hello(name), r.IntN(4) > 0})
	}
	for range r.IntN(4) {
		switch r.IntN(6) {
		case 0:
			all = append(all, say{hello(name), r.IntN(2) == 0})
		case 1:
			all = append(all, say{[]byte(pick(r, "\r\n", "A", "A B\r\n", "\x00", "GET / HTTP/1.1\r\n")), false})
		default:
			all = append(all, say{junk(), r.IntN(4) == 0})
		}
	}
	all = append(all, say{hello(denied), false})
	if r.IntN(4) == 0 {
		all = append(all, say{append(junk(), hello(denied)...), false})
	}
	return all
}

// requests makes what an HTTP client may never say: methods, separators, targets,
// versions, line ends, fields and their order, at least one of which names the denied
// host.
func requests(r *rand.Rand, name string) []say {
	var all []say
	end := func() string {
		if r.IntN(12) == 0 {
			return pick(r, "\n", "\r", "\r\r\n", "\n\r", " \r\n", "\x00\r\n", "\t\r\n")
		}
		return "\r\n"
	}
	one := func(to string) string {
		method := pick(r, "GET", "GET", "GET", "POST", "HEAD", "OPTIONS", "CONNECT", "get", "PRI", "DESCRIBE", "SOURCE", "X-Y", "A"+strings.Repeat("B", r.IntN(40)), "G(T", "M-SEARCH", "0", "*3", "GET/x", "G\xc9T", "{\"a\":")
		sep := func() string {
			if r.IntN(5) == 0 {
				return pick(r, "\t", "  ", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\r", " \t", "\x00", "\xc2\xa0", "\n", "")
			}
			return " "
		}
		target := pick(r, "/", "/", "/", "/x?y", "*", "http://"+to+"/", "HTTP://"+to, "gopher://"+to+"/", "https://"+to+"/", to, to+":80", "x", "//"+to+"/", "/\x01", "/\xff", "http:/", "/#", "http://"+to+":80@"+name+"/", "http://"+name+"/")
		version := pick(r, "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "http/1.1", "HTTP/2.0", "RTSP/1.0", "ICE/1.0", "HTTP/01.1", "HTTP/1.1 ", "HTTP/1", "HTTP", "", "HTTP/1.1 x", "HTCPCP/1.0")
		line := method + sep() + target + sep() + version + end()
		if r.IntN(12) == 0 {
			line = pick(r, " ", "\t", "\xa0", "\x85", "\x1c", "\x00", "\xef\xbb\xbf", "\x16", "\x80", "x\r\n", "PING\r\n", "\r\n", "\n", "\r", "\x0b", "*1\r\n", "a b\r\n", "0\x0c\x02", "word ") + line
		}
		for range 1 + r.IntN(2) {
			host := pick(r, to, to, to, name, to+":80", to+":8080", to+".", strings.ToUpper(to), name+","+to, to+"/", to+"@"+name, name+"@"+to, "["+to+"]", to+"\t", "\t"+to, to+"\x00"+name)
			line += pick(r, "Host: ", "Host: ", "Host: ", "host:", "Host : ", "Host:\t", " Host: ", "Host\t:", "HOST: ", "X: y\r\n Host: ", "Host: \r\n ", "X-Forwarded-Host: ", ":authority: ", "Ho\x00st: ", "X:\nHost: ", "X: y\rHost: ") + host + end()
		}
		body := ""
		if r.IntN(3) == 0 {
			line += pick(r, "Content-Length: 0", "Content-Length: 5", "Content-Length: +5", "Content-Length: 5, 5", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5", "Transfer-Encoding: identity", "Transfer-Encoding: xchunked", "Transfer-Encoding:\vchunked",
				"Transfer-Encoding: chunked, identity", "Expect: 100-continue", "Connection: upgrade\r\nUpgrade: websocket", "Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk", "Connection: close, host", "Connection: keep-alive") + end()
			body = pick(r, "", "", "hello", "0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "5;a=\n\r\nhello\r\n0\r\n\r\n", "0\r\nHost: "+denied+"\r\n\r\n", "5\r\nhelloXX0\r\n\r\n", "-1\r\n", "FFFFFFFFFFFFFFFFF\r\n")
		}
		return line + end() + body
	}
	if r.IntN(12) == 0 {
		all = append(all, say{[]byte(pick(r, preface, "PRI", preface[:10], "\x00")), r.IntN(2) == 0}, say{[]byte(http2(denied, 1)), false})
	}
	for range r.IntN(3) {
		all = append(all, say{[]byte(one(pick(r, name, denied))), r.IntN(3) == 0})
	}
	last := one(denied)
	if r.IntN(5) == 0 { // in pieces
		n := r.IntN(min(len(last), 30))
		all = append(all, say{[]byte(last[:n]), r.IntN(2) == 0})
		last = last[n:]
	}
	return append(all, say{[]byte(last), false})
}

// TestFuzzServers: sequences that a grammar makes do not reach the denied name at any
// server, by its own log (E23, E24). SBXRUN_PROBES is how many it makes, five
// seconds of them otherwise; with SBXRUN_PROBES_REAL no server gets more of them than
// the others. A probe is known by its number.
func TestFuzzServers(t *testing.T) {
	total, err := strconv.Atoi(os.Getenv("SBXRUN_PROBES"))
	limit := time.Now().Add(5 * time.Second)
	if err == nil {
		limit = time.Now().Add(24 * time.Hour)
	} else {
		total = 1 << 30
	}
	first, _ := strconv.Atoi(os.Getenv("SBXRUN_FIRST_PROBE"))
	list := fleet(t)
	var names []string
	for _, s := range list {
		names = append(names, s.name)
	}
	quiet := func(o *Options) { o.Record = func(Record) {} }
	worlds := []*world{
		newPatientWorld(t, allow(names...), 30*time.Millisecond, quiet),
		// Addresses, public and private, whose servers may be called anything but one name.
		newPatientWorld(t, egressPolicy([]string{"93.184.216.0/24", "10.1.0.0/16"}, []string{denied}), 30*time.Millisecond, quiet),
		newPatientWorld(t, allow(names...), 60*time.Millisecond, quiet, func(o *Options) { o.Upstream = "http://" + upstreamTo(t, list) }),
	}
	for _, w := range worlds {
		w.place(list)
	}
	worlds[2].mu.Lock()
	up := worlds[2].g.upstream
	worlds[2].servers[netip.AddrPortFrom(netip.MustParseAddr(up.host), up.port)] = net.JoinHostPort(up.host, strconv.Itoa(int(up.port)))
	worlds[2].mu.Unlock()
	hellos := map[string][][]byte{}
	for _, s := range list {
		for _, c := range []*tls.Config{
			{}, {MaxVersion: tls.VersionTLS12}, {CurvePreferences: []tls.CurveID{tls.CurveP384}}, {CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}}, {NextProtos: []string{"h2", "http/1.1"}},
		} {
			c.ServerName = s.name
			hellos[s.name] = append(hellos[s.name], hello(t, c))
		}
		hellos[s.name] = append(hellos[s.name], forgedExt([2]any{0, sniExt(s.name)}, [2]any{42, []byte{}}))
	}
	var mu sync.Mutex
	count := map[string]int{}
	// What is made of a number does not change.
	made := func(n int) (s *real, port uint16, steps []say) {
		r := rand.New(rand.NewPCG(uint64(n), 1))
		s = list[r.IntN(2)] // those in this process
		if n%4 == 0 || os.Getenv("SBXRUN_PROBES_REAL") != "" {
			s = list[r.IntN(len(list))]
		}
		if s.plain == "" || s.tls != "" && r.IntN(2) == 0 {
			return s, pick[uint16](r, 443, 8443), records(r, s.name, hellos[s.name])
		}
		return s, pick[uint16](r, 80, 8080, 8080), requests(r, s.name)
	}
	probe := func(l net.Listener, n int) {
		s, port, steps := made(n)
		r := rand.New(rand.NewPCG(uint64(n), 2))
		world := pick(r, 0, 0, 1, 2)
		w, host, to := worlds[world], s.name, netip.Addr{}
		if world == 1 {
			host = pick(r, s.addr, strings.Replace(s.addr, "93.184", "10.1", 1))
			to = netip.MustParseAddr(host)
		} else {
			to = w.number(host)
		}
		var c net.Conn
		route := pick(r, "transparent", "transparent", "connect", "socks5", "socks4")
		switch route {
		case "connect":
			c, _ = w.dialConnect(net.JoinHostPort(host, strconv.Itoa(int(port))))
			if c != nil {
				c = c.(bufferedConn).Conn
			}
		case "socks5":
			c, _ = w.dialSOCKS5(host, port)
		case "socks4":
			c, _ = w.dialSOCKS4(host, port)
		default:
			var err error
			if c, err = net.Dial("tcp", l.Addr().String()); err != nil {
				t.Error(err)
				return
			}
			near, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			w.transparent.conns <- dialledAs{near.(*net.TCPConn), netip.AddrPortFrom(to, port)}
		}
		if c == nil {
			route = "refused" // for want of time
		}
		mu.Lock()
		count[strings.TrimSuffix(s.name, ".example")]++
		count[route]++
		count[[]string{"by name", "by address", "upstream"}[world]]++
		count[fmt.Sprint(port)]++
		mu.Unlock()
		if c == nil {
			return
		}
		defer c.Close()
		c.(*net.TCPConn).SetLinger(0)
		b := make([]byte, 1<<14)
		for _, st := range steps {
			if _, err := c.Write(st.b); err != nil {
				break
			}
			if st.wait {
				c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
				c.Read(b)
			}
		}
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(60 * time.Millisecond))
		for {
			if _, err := c.Read(b); err != nil {
				break
			}
		}
	}
	var before []int64
	for _, s := range list {
		before = append(before, s.reached(t))
	}
	// check looks into the logs after some probes, and tries those of a server that was
	// reached once more, one by one.
	check := func(first, n int) bool {
		time.Sleep(300 * time.Millisecond)
		good := true
		for i, s := range list {
			k := s.reached(t)
			if k == before[i] {
				continue
			}
			t.Errorf("probes %d to %d: %s was asked for the denied name %d times", first, first+n, s.name, k-before[i])
			good = false
			l := listen(t)
			defer l.Close()
			for p := first; p < first+n; p++ {
				to, port, steps := made(p)
				if to != s {
					continue
				}
				before[i] = s.reached(t)
				probe(l, p)
				time.Sleep(30 * time.Millisecond)
				if s.reached(t) != before[i] {
					t.Errorf("probe %d, port %d: %v", p, port, steps)
				}
			}
		}
		return good
	}
	const batch = 5000
	done := 0
	for ; done < total && time.Now().Before(limit); done += batch {
		var group sync.WaitGroup
		next := make(chan int)
		for range 48 {
			group.Go(func() {
				l := listen(t)
				defer l.Close()
				for n := range next {
					probe(l, n)
				}
			})
		}
		for n := range min(batch, total-done) {
			if time.Now().Before(limit) {
				next <- first + done + n
			}
		}
		close(next)
		group.Wait()
		if !check(first+done, batch) {
			return
		}
		if done%50000 == 0 {
			fmt.Fprintf(os.Stderr, "%d probes, %v\n", first+done+batch, count)
		}
	}
	t.Logf("%v", count)
}

func (s say) String() string { return fmt.Sprintf("%q, wait %v", s.b, s.wait) }

// upstreamTo is a proxy that leads to the servers of a fleet.
func upstreamTo(t testing.TB, list []*real) string {
	l := listen(t)
	t.Cleanup(func() { l.Close() })
	serve := func(c net.Conn) {
		defer c.Close()
		c.SetDeadline(time.Now().Add(2 * time.Second))
		r := bufio.NewReader(c)
		head := ""
		for !strings.HasSuffix(head, "\r\n\r\n") {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			head += line
		}
		for _, s := range list {
			if !strings.Contains(head, s.name) {
				continue
			}
			secure := strings.Contains(head, s.name+":443 ") || strings.Contains(head, s.name+":8443 ")
			to := s.plain
			if secure {
				to = s.tls
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer server.Close()
			server.SetDeadline(time.Now().Add(2 * time.Second))
			if strings.HasPrefix(head, "CONNECT ") {
				io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			} else {
				io.WriteString(server, head)
			}
			go func() {
				io.Copy(server, r)
				server.(*net.TCPConn).CloseWrite()
			}()
			io.Copy(c, server)
			return
		}
		t.Errorf("the upstream proxy was asked for %.200q", head)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}

// TestGreetingThenTLS: TLS that a client begins with is held to its name even where the
// server has spoken (NATS's INFO), and the right name goes through.
func TestGreetingThenTLS(t *testing.T) {
	const greeting = "INFO {\"tls_required\":true} \r\n"
	cert, pool := certificate(t, "a.example", "b.example")
	names := make(chan string, 8)
	w := newWorld(t, allow("a.example", "tcp://c.example:4222"))
	for name, addr := range map[string]string{"a.example": "93.184.216.34", "c.example": "93.184.216.35"} {
		w.host(name, addr, 4222, func(c net.Conn) {
			io.WriteString(c, greeting)
			s := tls.Server(c, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
				names <- h.ServerName
				return &cert, nil
			}})
			if s.Handshake() == nil {
				io.Copy(s, s)
			}
		})
	}
	for _, q := range []struct {
		name, sni string
		piece     int // size of the writes in which the ClientHello comes
		want      bool
	}{
		{"a.example", "a.example", 1 << 20, true},
		{"a.example", "a.example", 1, true},
		{"a.example", "b.example", 1 << 20, false},
		{"a.example", "b.example", 1, false},
		{"c.example", "b.example", 1, true}, // unread
	} {
		c := w.dialTransparent(netip.AddrPortFrom(w.number(q.name), 4222))
		b := make([]byte, len(greeting))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != greeting {
			t.Fatalf("%q, %v", b, err)
		}
		s := tls.Client(&changed{Conn: c, change: func(_ int, b []byte) []byte {
			for len(b) > q.piece {
				c.Write(b[:q.piece])
				b = b[q.piece:]
			}
			return b
		}}, &tls.Config{ServerName: q.sni, RootCAs: pool})
		if err := talk(s, "hello"); (err == nil) != q.want {
			t.Errorf("%+v: %v", q, err)
		}
		c.Close()
		select {
		case got := <-names:
			if !q.want {
				t.Errorf("%+v: the server is asked for %s", q, got)
			}
		default:
			if q.want {
				t.Errorf("%+v: the server is asked for nothing", q)
			}
		}
	}
}
