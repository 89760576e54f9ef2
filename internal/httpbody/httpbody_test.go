package httpbody

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestWithin: a body that does not come ends its connection, whether anybody reads it
// or not, and one that came is served for as long as that takes.
func TestWithin(t *testing.T) {
	const patience = 50 * time.Millisecond
	s := httptest.NewServer(Within(patience, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			http.Error(w, "refused", http.StatusForbidden)
			return
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(4 * patience):
			fmt.Fprintf(w, "%s, served", b)
		case <-r.Context().Done():
		}
	})))
	defer s.Close()
	send := func(request string) (net.Conn, *bufio.Reader) {
		t.Helper()
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		return c, bufio.NewReader(c)
	}
	for _, path := range []string{"/", "/refused"} {
		for _, how := range []string{"Content-Length: 9", "Transfer-Encoding: chunked"} {
			_, r := send("POST " + path + " HTTP/1.1\r\nHost: x\r\n" + how + "\r\n\r\n4")
			if _, err := io.Copy(io.Discard, r); err != nil {
				t.Errorf("%s, %s, and no more: the connection is held: %v", path, how, err)
			}
		}
	}
	// The control, twice on one connection.
	c, r := send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none")
	for i, want := range []string{"one, served", "two, served"} {
		if i > 0 {
			io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n")
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != want || err != nil {
			t.Errorf("%q, %v, want %q", b, err, want)
		}
	}
}
