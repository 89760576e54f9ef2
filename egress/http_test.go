package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

// web serves HTTP for a name with Go's own server.
func (w *world) web(name, addr string, port uint16, h http.HandlerFunc) {
	l := &handed{conns: make(chan net.Conn), done: make(chan struct{})}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	w.t.Cleanup(func() { s.Close() })
	w.host(name, addr, port, func(c net.Conn) {
		ended := make(chan struct{})
		l.conns <- tellClose{c, ended}
		<-ended
	})
}

type tellClose struct {
	net.Conn
	closed chan struct{}
}

func (c tellClose) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return c.Conn.Close()
}

func (w *world) client(token string) *http.Client {
	u := &url.URL{Scheme: "http", Host: w.proxy}
	if token != "" {
		u.User = url.UserPassword("any", token)
	}
	tr := &http.Transport{Proxy: http.ProxyURL(u)}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// TestHTTP: Go's client and server, through the proxy: bodies of every framing
// in both directions, keep-alive, each request recorded.
func TestHTTP(t *testing.T) {
	w := newWorld(t, allow("a.example:80", "b.example:80"))
	for i, name := range []string{"a.example", "b.example"} {
		w.web(name, fmt.Sprintf("93.184.216.%d", 34+i), 80, func(rw http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil || r.Header.Get("Proxy-Authorization") != "" || r.Host != name {
				t.Errorf("%v, %v, %s", err, r.Header, r.Host)
			}
			rw.Header().Set("X-Trailer-Of-Request", r.Trailer.Get("X-Sum"))
			switch r.URL.Path {
			case "/chunked":
				rw.Header().Set("Trailer", "X-Sum")
				rw.Write(b)
				rw.(http.Flusher).Flush()
				fmt.Fprintf(rw, "%s", b)
				rw.Header().Set("X-Sum", "7")
			case "/none":
				rw.WriteHeader(204)
			case "/close":
				rw.Header().Set("Connection", "close")
				rw.Write(b)
			default:
				rw.Header().Set("Content-Length", fmt.Sprint(len(b)))
				rw.Write(b)
			}
		})
	}
	c := w.client("")
	big := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB
	for round := range 3 {
		for _, host := range []string{"a.example", "b.example", "a.example"} {
			for path, n := range map[string]int{"/plain": 1, "/chunked": 2, "/none": 0, "/close": 1} {
				for _, text := range []string{"", "hello", big} {
					for _, stream := range []bool{false, true} {
						var body io.Reader = strings.NewReader(text)
						if stream {
							body = struct{ io.Reader }{body} // its length is not known
						}
						req, _ := http.NewRequest("POST", "http://"+host+path, body)
						resp, err := c.Do(req)
						if err != nil {
							t.Fatalf("round %d: %s%s: %v", round, host, path, err)
						}
						got, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if err != nil || string(got) != strings.Repeat(text, n) {
							t.Fatalf("%s%s: %d bytes of %d, %v", host, path, len(got), n*len(text), err)
						}
					}
				}
			}
			resp, err := c.Head("http://" + host + "/plain")
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%v, %v", resp, err)
			}
		}
	}
	r := w.record(func(r Record) bool { return r.Route == RouteHTTP && r.Method == "HEAD" })
	if r.Target() != "a.example:80" || r.Verdict != Allow || r.Protocol != "http" || r.BytesIn == 0 {
		t.Errorf("%+v", r)
	}
	if s := w.g.Stats(); s.Requests != 3*3*(4*3*2+1) {
		t.Errorf("%+v", s)
	}
}

// TestHTTPDenied: each request is decided by itself (E13), and the answer says
// why.
func TestHTTPDenied(t *testing.T) {
	w := newWorld(t, allow("a.example:80"))
	w.web("a.example", "93.184.216.34", 80, func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "http://evil.example/", http.StatusFound)
	})
	w.web("evil.example", "93.184.216.35", 80, func(rw http.ResponseWriter, r *http.Request) { t.Error("reached") })
	resp, err := w.client("").Get("http://a.example/")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 403 || resp.Request.URL.Host != "evil.example" || !strings.Contains(string(b), "--allow-host evil.example:80") || !strings.HasPrefix(resp.Header.Get("Proxy-Status"), "sbxrun; error=http_request_denied") {
		t.Errorf("%v %s", resp, b)
	}
	if _, asked := w.taken(); len(asked) != 1 {
		t.Errorf("asked for %v", asked)
	}
	// On one connection, after a request that was allowed.
	c := w.dialProxy()
	defer c.Close()
	r := bufio.NewReader(c)
	for _, q := range []struct {
		host   string
		status int
	}{{"a.example", 302}, {"evil.example", 403}} {
		fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", q.host, q.host)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != q.status {
			t.Fatalf("%s: %v, %v", q.host, resp, err)
		}
		io.Copy(io.Discard, resp.Body)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
}

// raw sends bytes to the proxy and returns all that it answers.
func (w *world) raw(c net.Conn, s string) string {
	defer c.Close()
	io.WriteString(c, s)
	b, _ := io.ReadAll(c)
	return string(b)
}

// TestSmuggling: what is refused is refused with 400 and the end of the
// connection, and what follows it is not looked at (E11, E21).
func TestSmuggling(t *testing.T) {
	w := newWorld(t, allow("a.example:80"))
	reached := make(chan string, 100)
	w.host("a.example", "93.184.216.34", 80, func(c net.Conn) {
		b, _ := io.ReadAll(c)
		reached <- string(b)
	})
	const after = "GET http://a.example/smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n"
	const head = "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n"
	for _, in := range []string{
		head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		head + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		head + "X: y\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00\n",
		"GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
	} {
		got := w.raw(w.dialProxy(), in+after)
		if !strings.HasPrefix(got, "HTTP/1.1 400 ") && !strings.HasPrefix(got, "HTTP/1.1 505 ") || strings.Count(got, "HTTP/1.1") != 1 || !strings.Contains(got, "Connection: close") {
			t.Errorf("%q: %q", in, got)
		}
	}
	if dialled, _ := w.taken(); len(dialled) != 0 {
		t.Errorf("dialled %v", dialled)
	}
	// A body that turns out to be malformed ends both connections, and its rest
	// is no request.
	for _, chunks := range []string{"5\nhello\n0\n\n", "5\r\nhelloX\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\nX : y\r\n\r\n", "5\r\nhello\r\n0\r\nX: y\n\r\n", "zz\r\n"} {
		w.raw(w.dialProxy(), head+"Transfer-Encoding: chunked\r\n\r\n"+chunks+after)
		select {
		case got := <-reached:
			if strings.Contains(got, "smuggled") || strings.Contains(got, "\n0\r\n\r\n") {
				t.Errorf("%q: the server got %q", chunks, got)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%q: the server is left waiting", chunks)
		}
	}
}

// TestBadServer: a server cannot confuse the gateway about where its answer ends.
func TestBadServer(t *testing.T) {
	var answer string
	w := newWorld(t, allow("a.example:80"))
	w.host("a.example", "93.184.216.34", 80, func(c net.Conn) {
		bufio.NewReader(c).ReadString('\n')
		io.WriteString(c, answer)
	})
	for _, c := range []struct {
		answer string
		want   string
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 502 "},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 502 "},
		{"HTTP/1.1 200 OK\nContent-Length: 2\n\nab", "HTTP/1.1 502 "},
		{"HTTP/2 200\r\n\r\n", "HTTP/1.1 502 "},
		{"SSH-2.0-x\r\n", "HTTP/1.1 502 "},
		{"", "HTTP/1.1 502 "},
		{"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "HTTP/1.1 502 "},
		{strings.Repeat("HTTP/1.1 103 Early\r\n\r\n", maxInterim), "HTTP/1.1 103 "},
		{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead), "HTTP/1.1 502 "},
		{"HTTP/1.1 200 OK\r\n\r\nuntil the end", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end"},
		{"HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\nextra", "HTTP/1.1 304 Not\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"},
	} {
		answer = c.answer
		got := w.raw(w.dialProxy(), "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(got, c.want) || strings.HasSuffix(c.want, "\r\n\r\n") && got != c.want {
			t.Errorf("%.60q: %.200q", c.answer, got)
		}
	}
	// An answer that is cut short does not look whole.
	answer = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
	c := w.dialProxy()
	defer c.Close()
	io.WriteString(c, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
	}
	if err == nil {
		t.Error("half an answer is taken for a whole one")
	}
}

// TestHost: plain HTTP on the transparent route and in tunnels: Host must agree,
// in every request of a connection (E07, E13).
func TestHost(t *testing.T) {
	w := newWorld(t, egressPolicy([]string{"a.example", "93.184.216.34"}, []string{"denied.example"}))
	for _, port := range []uint16{80, 8080} {
		w.web("a.example", "93.184.216.34", port, func(rw http.ResponseWriter, r *http.Request) {
			io.WriteString(rw, "for "+r.Host)
		})
	}
	for _, port := range []uint16{80, 8080} {
		for route, dial := range map[Route]func(string) net.Conn{
			RouteTransparent: func(to string) net.Conn {
				a := w.number("a.example")
				if to != "a.example" {
					a = netip.MustParseAddr(to)
				}
				return w.dialTransparent(netip.AddrPortFrom(a, port))
			},
			RouteConnect: func(to string) net.Conn { return w.openConnect(net.JoinHostPort(to, fmt.Sprint(port))) },
			RouteSOCKS:   func(to string) net.Conn { return w.openSOCKS5(to, port) },
		} {
			for _, q := range []struct {
				to, host string
				ok       bool
			}{
				{"a.example", "a.example", true},
				{"a.example", "A.EXAMPLE.", true},
				{"a.example", fmt.Sprintf("a.example:%d", port), true},
				{"a.example", "a.example:1", false},
				{"a.example", "b.example", false},
				{"a.example", "93.184.216.34", false},
				{"93.184.216.34", "93.184.216.34", true},
				{"93.184.216.34", "93.184.216.35", false},
				{"93.184.216.34", "b.example", true},
				{"93.184.216.34", "denied.example", false},
			} {
				c := dial(q.to)
				r := bufio.NewReader(c)
				for i, host := range []string{q.to, q.host} {
					fmt.Fprintf(c, "GET /%d HTTP/1.1\r\nHost: %s\r\n\r\n", i, host)
					resp, err := http.ReadResponse(r, nil)
					if err != nil {
						t.Fatalf("%s: %+v: %v", route, q, err)
					}
					b, _ := io.ReadAll(resp.Body)
					if ok := i == 0 || q.ok; (resp.StatusCode == 200) != ok || (resp.StatusCode == 403) == ok {
						t.Errorf("%s port %d: %+v: request %d: %d %s", route, port, q, i, resp.StatusCode, b)
					}
				}
				c.Close()
			}
		}
	}
}

// TestUpgrade: WebSocket is passed on if the server agrees, and nothing else
// leaves HTTP (E21).
func TestUpgrade(t *testing.T) {
	w := newWorld(t, allow("a.example:80"))
	got := make(chan string, 10)
	w.host("a.example", "93.184.216.34", 80, func(c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		got <- req.Header.Get("Upgrade")
		if req.URL.Path == "/ws" {
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst")
			io.Copy(c, r)
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		if req, err = http.ReadRequest(r); err == nil {
			got <- "second " + req.Host
		}
	})
	for _, dial := range []func() net.Conn{
		func() net.Conn { return w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 80)) },
		w.dialProxy,
	} {
		c := dial()
		io.WriteString(c, "GET http://a.example/ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 101 || <-got != "websocket" {
			t.Fatal(resp, err)
		}
		if err := talk(bufferedConn{c, bufio.NewReader(io.MultiReader(newSkip(r, "first"), r))}, "\x81\x05hello"); err != nil {
			t.Error(err)
		}
		c.Close()

		// The server does not switch: what follows is a request, and is decided.
		c = dial()
		io.WriteString(c, "GET http://a.example/no HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"+
			"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
		b, _ := io.ReadAll(c)
		c.Close()
		if n := bytes.Count(b, []byte("HTTP/1.1 ")); n != 2 || !bytes.Contains(b, []byte("HTTP/1.1 403 ")) {
			t.Errorf("%q", b)
		}
		<-got
		// h2c is not offered to the server.
		c = dial()
		io.WriteString(c, "GET http://a.example/no HTTP/1.1\r\nHost: a.example\r\nConnection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n")
		if b, _ := io.ReadAll(c); !bytes.HasPrefix(b, []byte("HTTP/1.1 200 ")) {
			t.Errorf("%q", b)
		}
		c.Close()
		if up := <-got; up != "" {
			t.Errorf("upgrade %q", up)
		}
	}
	select {
	case s := <-got:
		t.Error(s)
	default:
	}
}

func newSkip(r io.Reader, s string) io.Reader {
	io.ReadFull(r, make([]byte, len(s)))
	return strings.NewReader("")
}

// TestToken: no proxy route without the sandbox's own token (E16), and the token
// does not travel on.
func TestToken(t *testing.T) {
	w := newWorld(t, allow("a.example"), func(o *Options) { o.Token = "t0ken" })
	w.web("a.example", "93.184.216.34", 80, func(rw http.ResponseWriter, r *http.Request) {
		for k, v := range r.Header {
			if strings.Contains(strings.Join(v, ""), "dDBrZW4") || k == "Proxy-Authorization" {
				t.Errorf("%s: %v", k, v)
			}
		}
	})
	w.host("a.example", "93.184.216.34", 7, echo)
	for token, want := range map[string]int{"t0ken": 200, "other": 407, "": 407, "t0ken2": 407} {
		resp, err := w.client(token).Get("http://a.example/")
		if err != nil || resp.StatusCode != want {
			t.Errorf("%q: %v, %v", token, resp, err)
		}
		if err == nil {
			resp.Body.Close()
		}
		c := w.dialProxy()
		io.WriteString(c, "\x05\x02\x00\x02")
		b := make([]byte, 2)
		if io.ReadFull(c, b); b[1] != 2 {
			t.Errorf("method %d", b[1])
		}
		fmt.Fprintf(c, "\x01\x01u%c%s", len(token), token)
		if io.ReadFull(c, b); (b[1] == 0) != (want == 200) {
			t.Errorf("%q: %d", token, b[1])
		}
		c.Close()
		c = w.dialProxy()
		fmt.Fprintf(c, "\x04\x01\x00\x07\x00\x00\x00\x01%s\x00a.example\x00", token)
		b = make([]byte, 8)
		if io.ReadFull(c, b); (b[1] == 90) != (want == 200) {
			t.Errorf("socks4 %q: %d", token, b[1])
		}
		c.Close()
	}
	for _, head := range []string{"", "Proxy-Authorization: Bearer t0ken\r\n", "Proxy-Authorization: Basic ***\r\n"} {
		if got := w.raw(w.dialProxy(), "CONNECT a.example:7 HTTP/1.1\r\nHost: a.example:7\r\n"+head+"\r\n"); !strings.HasPrefix(got, "HTTP/1.1 407 ") {
			t.Errorf("%q: %q", head, got)
		}
	}
	c := w.dialProxy()
	io.WriteString(c, "\x05\x01\x00")
	b := make([]byte, 2)
	if io.ReadFull(c, b); b[1] != 0xff {
		t.Errorf("method %d", b[1])
	}
	c.Close()
}

// TestContinue: a client that waits for "100 Continue" gets it, and a server that
// answers before the end of a request is heard.
func TestContinue(t *testing.T) {
	w := newWorld(t, allow("a.example:80"))
	w.web("a.example", "93.184.216.34", 80, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/early" {
			rw.WriteHeader(413)
			return
		}
		io.Copy(rw, r.Body)
	})
	tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: w.proxy}), ExpectContinueTimeout: 20 * time.Second}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr, Timeout: 20 * time.Second}
	req, _ := http.NewRequest("PUT", "http://a.example/", strings.NewReader("hello"))
	req.Header.Set("Expect", "100-continue")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != "hello" {
		t.Errorf("%q", b)
	}
	nc := w.dialProxy()
	defer nc.Close()
	io.WriteString(nc, "POST http://a.example/early HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1000000\r\n\r\npart of it")
	resp, err = http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil || resp.StatusCode != 413 {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestTrickle: a request that comes byte by byte, part of which went ahead before
// it could be told, reaches the server once and whole; and one whose Host does not
// agree does not reach it but for its first word.
func TestTrickle(t *testing.T) {
	w := newWorld(t, allow("a.example"))
	got := make(chan string, 10)
	greetings := make(chan string, 1)
	w.host("a.example", "93.184.216.34", 8080, func(c net.Conn) {
		io.WriteString(c, <-greetings)
		var b []byte
		for one := make([]byte, 1); !bytes.HasSuffix(b, []byte("8080\r\n\r\n")); b = append(b, one...) {
			if _, err := c.Read(one); err != nil {
				break
			}
		}
		got <- string(b)
	})
	for _, greeting := range []string{"", "hello\r\n"} {
		for _, q := range []struct{ in, want string }{
			{"GET /x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", "GET /x HTTP/1.1\r\nHost: a.example:8080\r\n\r\n"},
			{"\r\n\r\nGET /x HTTP/1.1\r\nHost: a.example:8080\r\n\r\n", "GET /x HTTP/1.1\r\nHost: a.example:8080\r\n\r\n"},
			{"GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n", "GET"},
			{"GET\t/x HTTP/1.1\r\nHost: evil.example\r\n\r\n", "GET"},
			{"get /x http/1.1\nHost: evil.example\n\n", "get"},
			{"word", "word"},
			{"two words and more", map[bool]string{true: "two", false: "two words and more"}[greeting == ""]},
			{"\r\n", "\r\n"},
		} {
			greetings <- greeting
			c := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 8080))
			if greeting != "" {
				if _, err := io.ReadFull(c, make([]byte, len(greeting))); err != nil {
					t.Fatal(err)
				}
			}
			for i := range len(q.in) {
				if _, err := c.Write([]byte{q.in[i]}); err != nil {
					break
				}
				time.Sleep(100 * time.Microsecond)
			}
			c.(*net.TCPConn).CloseWrite()
			select {
			case s := <-got:
				if strings.HasSuffix(q.want, "8080\r\n\r\n") {
					s = strings.TrimLeft(s, "\r\n") // some of the empty lines may have gone ahead
				}
				if s != q.want && !(strings.HasPrefix(q.want, s) && len(q.want) <= 3) {
					t.Errorf("after %q, of %q the server got %q, want %q", greeting, q.in, s, q.want)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("after %q, %q: the server is left waiting", greeting, q.in)
			}
			c.Close()
		}
	}
}

// TestClientGone: a client that gives up while it waits does not keep a place or
// the server's connection.
func TestClientGone(t *testing.T) {
	w := newPatientWorld(t, allow("a.example"), 300*time.Millisecond)
	ended := make(chan struct{}, 10)
	w.host("a.example", "93.184.216.34", 80, func(c net.Conn) {
		io.Copy(io.Discard, c) // and never an answer
		ended <- struct{}{}
	})
	for _, dial := range []func() net.Conn{w.dialProxy, func() net.Conn { return w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), 80)) }} {
		c := dial()
		io.WriteString(c, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
		c.Close()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal("the server is left waiting")
		}
	}
}
