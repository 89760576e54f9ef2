package egress

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// parse reads a request as the gateway does.
func parseText(s string) (*request, []byte, error) {
	b := []byte(s)
	n, err := endOfHead(b, 0)
	if err != nil {
		return nil, nil, err
	}
	h, err := parseHead(b[:n])
	if err != nil {
		return nil, nil, err
	}
	r, err := parseRequest(h)
	return r, b[n:], err
}

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		in     string
		target target
		url    bool
		want   string
	}{
		{"GET http://a.example/x?y HTTP/1.1\r\nHost: a.example\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nX: y\r\n\r\n", target{name: "a.example", port: 80}, false,
			"GET /x?y HTTP/1.1\r\nHost: a.example\r\nX: y\r\n\r\n"},
		{"GET http://A.Example:8080 HTTP/1.1\r\nHost: a.example:8080\r\nConnection: X, keep-alive\r\nX: y\r\nTE: trailers\r\n\r\n", target{name: "a.example", port: 8080}, false,
			"GET / HTTP/1.1\r\nHost: a.example:8080\r\n\r\n"},
		{"GET http://a.example?q HTTP/1.0\r\n\r\n", target{name: "a.example", port: 80}, true,
			"GET http://a.example/?q HTTP/1.1\r\nHost: a.example\r\nProxy-Authorization: secret\r\n\r\n"},
		{"POST http://[2001:db8::1]:80/ HTTP/1.1\r\nHost: [2001:db8::1]\r\nContent-Length: 3\r\n\r\n", target{addr: mustAddr("2001:db8::1"), port: 80}, false,
			"POST / HTTP/1.1\r\nHost: [2001:db8::1]\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"},
		{"PUT http://a.example/ HTTP/1.1\r\nHost: a.example\r\ntransfer-ENCODING: Chunked\r\nExpect: 100-continue\r\n\r\n", target{name: "a.example", port: 80}, false,
			"PUT / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"},
		{"GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: k\r\n\r\n", target{name: "a.example", port: 80}, false,
			"GET / HTTP/1.1\r\nHost: a.example\r\nSec-WebSocket-Key: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"},
		{"GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n", target{name: "a.example", port: 80}, false,
			"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"},
		{"OPTIONS http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n", target{name: "a.example", port: 80}, true,
			"OPTIONS http://a.example HTTP/1.1\r\nHost: a.example\r\nProxy-Authorization: secret\r\n\r\n"},
		{"GET / HTTP/1.1\r\nHost: name.example\r\n\r\n", target{addr: mustAddr("192.0.2.1"), port: 8080}, false,
			"GET / HTTP/1.1\r\nHost: name.example:8080\r\n\r\n"},
	} {
		r, _, err := parseText(c.in)
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		auth := ""
		if c.url {
			auth = "secret"
		}
		if got := string(r.append(nil, c.target, c.url, auth)); got != c.want {
			t.Errorf("%q:\n got %q\nwant %q", c.in, got, c.want)
		}
	}
}

// TestParseRequestBad: whatever has two readings is refused (E03, E04, E07, E11, E21).
func TestParseRequestBad(t *testing.T) {
	const get = "GET http://a.example/ HTTP/1.1\r\n"
	const post = "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n"
	for _, in := range []string{
		"\r\n" + get + "Host: a.example\r\n\r\n",
		"GET  http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET\thttp://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://a.example/ HTTP/1.1 \r\nHost: a.example\r\n\r\n",
		"GET http://a.example/ HTTP/1.2\r\nHost: a.example\r\n\r\n",
		"GET http://a.example/ http/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://a.example/\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET ftp://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET * HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://user@a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http:///x HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://a.example#x HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://a.example\\@b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://a.example%00.b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://127.1/ HTTP/1.1\r\nHost: 127.1\r\n\r\n",
		"GET http://0x7f000001/ HTTP/1.1\r\nHost: 0x7f000001\r\n\r\n",
		"GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n\r\n",
		"GET http://0177.0.0.1/ HTTP/1.1\r\nHost: 0177.0.0.1\r\n\r\n",
		"GET http://[::ffff:127.0.0.1]/ HTTP/1.1\r\nHost: [::ffff:127.0.0.1]\r\n\r\n",
		"GET http://[fe80::1%25eth0]/ HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n",
		"GET http://a.example:0/ HTTP/1.1\r\nHost: a.example:0\r\n\r\n",
		"GET http://a.example:80:80/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://a.example:/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://m\u00fcnchen.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		get + "Host: b.example\r\n\r\n",
		get + "Host: a.example:81\r\n\r\n",
		get + "Host: a.example\r\nHost: a.example\r\n\r\n",
		get + "Host: a.example\r\nhost: b.example\r\n\r\n",
		get + "\r\n",
		get + "Host: \r\n\r\n",
		get + "Host : a.example\r\n\r\n",
		get + "Host: a.example\n\r\n",
		get + "Host: a.example\r\nX: a\rb\r\n\r\n",
		get + "Host: a.example\r\nX: a\x00b\r\n\r\n",
		get + "Host: a.example\r\nX: a\x1bb\r\n\r\n",
		get + "Host: a.example\r\n folded\r\n\r\n",
		get + " Host: a.example\r\n\r\n",
		get + "Host: a.example\r\nX\r\n\r\n",
		get + "Host: a.example\r\n: x\r\n\r\n",
		get + "Host: a.example\r\nConnection: host\r\n\r\n",
		get + "Host: a.example\r\nConnection: content-length, x\r\nContent-Length: 5\r\n\r\n",
		get + "Host: a.example\r\n" + strings.Repeat("X: y\r\n", maxFields) + "\r\n",
		get + "Host: a.example\r\nX: " + strings.Repeat("y", maxHead) + "\r\n\r\n",
		post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
		post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
		post + "Content-Length: 5, 5\r\n\r\n",
		post + "Content-Length: +5\r\n\r\n",
		post + "Content-Length: -5\r\n\r\n",
		post + "Content-Length: 0x5\r\n\r\n",
		post + "Content-Length: 5_0\r\n\r\n",
		post + "Content-Length: \r\n\r\n",
		post + "Content-Length: 99999999999999999999\r\n\r\n",
		post + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		post + "Transfer-Encoding: chunked, chunked\r\n\r\n",
		post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		post + "Transfer-Encoding: \x0bchunked\r\n\r\n",
		post + "Transfer-Encoding: identity\r\n\r\n",
		post + "Transfer-Encoding:\r\n\r\n",
		strings.Replace(post, "1.1", "1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n",
		"CONNECT a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
		"CONNECT http://a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
		"CONNECT a.example:443/x HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nContent-Length: 5\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nTransfer-Encoding: chunked\r\n\r\n",
		"CONNECT a.exam\x00ple:443 HTTP/1.1\r\n\r\n",
		"CONNECT a.example%00.evil:443 HTTP/1.1\r\n\r\n",
		"CONNECT a.example\rX:443 HTTP/1.1\r\n\r\n",
		"CONNECT [a.example]:443 HTTP/1.1\r\n\r\n",
		"CONNECT user@a.example:443 HTTP/1.1\r\n\r\n",
		"CONNECT fe80::1:443 HTTP/1.1\r\n\r\n",
	} {
		if r, _, err := parseText(in); err == nil || err == errShort {
			t.Errorf("%.120q: %+v, %v", in, r, err)
		}
	}
}

// TestHeadInPieces: a head is the same, or refused the same, however it arrives.
func TestHeadInPieces(t *testing.T) {
	for _, in := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n", "GET / HTTP/1.1\r\nHost: a\n\r\n", "\r\n\r\n"} {
		want, wantErr := endOfHead([]byte(in), 0)
		got, err := 0, error(errShort)
		for from, n := 0, 1; n <= len(in) && err == errShort; n++ {
			got, err = endOfHead([]byte(in[:n]), from)
			from = n
		}
		if got != want || (err == nil) != (wantErr == nil) {
			t.Errorf("%q: %d, %v; at once %d, %v", in, got, err, want, wantErr)
		}
	}
}

func TestParseChunk(t *testing.T) {
	for in, want := range map[string]int64{"0\r\n": 0, "a\r\n": 10, "FfF\r\nrest": 0xfff, "5;ext=1\r\n": 5, "5 ;x\r\n": 5, "00000000000000a\r\n": 10} {
		if size, n, err := parseChunk([]byte(in)); size != want || n != strings.Index(in, "\n")+1 || err != nil {
			t.Errorf("%q: %d, %d, %v", in, size, n, err)
		}
	}
	for _, in := range []string{"\r\n", "5\n", "x\r\n", "0x5\r\n", "-5\r\n", "+5\r\n", " 5\r\n", "5 \r\n", "5\r\r\n", "1234567890abcdef\r\n", ";x\r\n", "5;\x00\r\n", "5;\x1b\r\n", "5;" + strings.Repeat("x", 300) + "\r\n", strings.Repeat("0", 300)} {
		if size, _, err := parseChunk([]byte(in)); err == nil || err == errShort {
			t.Errorf("%q: %d, %v", in, size, err)
		}
	}
	for _, in := range []string{"", "5", "5\r", "5;x"} {
		if _, _, err := parseChunk([]byte(in)); err != errShort {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// FuzzRequest: what is taken is passed on as a request that Go's own parser
// reads in the same way, with the framing and the host that were decided about.
func FuzzRequest(f *testing.F) {
	f.Add("GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\nConnection: x\r\nX: y\r\n\r\n")
	f.Add("POST / HTTP/1.1\r\nHost: a.example:8080\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	f.Add("OPTIONS * HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")
	f.Fuzz(func(t *testing.T, in string) {
		r, _, err := parseText(in)
		if err != nil || r.connect {
			return
		}
		to := target{name: "a.example", port: 80}
		if r.absolute {
			to = target{r.url.name, r.url.addr, r.url.port}
		}
		out := r.append(nil, to, false, "")
		again, rest, err := parseText(string(out))
		if err != nil || len(rest) != 0 {
			t.Fatalf("%q: %v", out, err)
		}
		if again.body != r.body || again.method != r.method || again.path != r.path {
			t.Fatalf("%q became %q", in, out)
		}
		std, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(out)))
		if err != nil {
			// It refuses more: fields of some names, paths that net/url has no
			// reading of.
			return
		}
		if std.Method != r.method || std.ContentLength != r.body.length && !r.body.chunked || r.body.chunked != (len(std.TransferEncoding) == 1) {
			t.Fatalf("%q: %d %v, ours %+v", out, std.ContentLength, std.TransferEncoding, r.body)
		}
		if h, err := parseAuthority(std.Host); err != nil || to.name != "" && h.name != to.name {
			t.Fatalf("%q: host %q", out, std.Host)
		}
	})
}

func FuzzResponse(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
	f.Add("HTTP/1.0 101 x\r\nTransfer-Encoding: chunked\r\n\r\n")
	f.Fuzz(func(t *testing.T, in string) {
		n, err := endOfHead([]byte(in), 0)
		if err != nil {
			return
		}
		h, err := parseHead([]byte(in)[:n])
		if err != nil {
			return
		}
		if _, err := h.status(); err != nil {
			return
		}
		b, err := h.body(-1)
		if err == nil && b.chunked && b.length != 0 {
			t.Fatalf("%+v", b)
		}
		out := b.append(h.appendFields([]byte("HTTP/1.1 200 OK\r\n")))
		if _, err := endOfHead(append(out, "\r\n"...), 0); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
	})
}

func FuzzChunk(f *testing.F) {
	f.Add([]byte("5;x\r\nhello\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		size, n, err := parseChunk(b)
		if err != nil {
			return
		}
		if size < 0 || n > len(b) || n < 3 || b[n-1] != '\n' {
			t.Fatal(size, n)
		}
	})
}
