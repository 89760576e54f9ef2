package egress

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// tokenRequest sends a proxy request and returns the status line of the answer.
func (w *world) tokenRequest(line, auth string) string {
	w.t.Helper()
	c := w.dialProxy()
	defer c.Close()
	host := strings.TrimPrefix(strings.Fields(line)[1], "http://")
	host, _, _ = strings.Cut(host, "/")
	io.WriteString(c, line+" HTTP/1.1\r\nHost: "+host+"\r\n"+auth+"Connection: close\r\n\r\n")
	b := make([]byte, len("HTTP/1.1 407"))
	io.ReadFull(c, b)
	return string(b[len("HTTP/1.1 "):])
}

// TestChallenge: a client that shows the token once it was answered 407 is no denial,
// as libcurl does it; one that never does is, with the target that it asked for, when
// the sandbox ends at the latest (E16).
func TestChallenge(t *testing.T) {
	const token = "Proxy-Authorization: Basic c2J4cnVuOnQwa2Vu\r\n"
	var w *world
	t.Cleanup(func() { // after the gateway's end
		var got []string
		for _, r := range w.records {
			if r.Verdict == Deny {
				got = append(got, fmt.Sprint(r.Route, " ", r.Method, " ", r.Target(), " ", r.Rule, ": ", r.Reason))
			}
		}
		slices.Sort(got)
		want := []string{
			"connect  a.example:8 token: a.example:8: a proxy request without the sandbox's token",
			"connect  a.example:9 token: a.example:9: a proxy request without the sandbox's token",
			"http GET b.example:80 token: b.example:80: a proxy request without the sandbox's token",
			"socks  a.example:7 token: a.example:7: a proxy request without the sandbox's token",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q\nwant %q", got, want)
		}
		if n := w.g.Stats().Denied; n != 6 {
			t.Errorf("%d denied", n)
		}
	})
	w = newWorld(t, allow("a.example"), func(o *Options) { o.Token = "t0ken" })
	w.web("a.example", "93.184.216.34", 80, func(http.ResponseWriter, *http.Request) {})
	w.host("a.example", "93.184.216.34", 7, echo)
	for _, c := range []struct{ line, auth, want string }{
		{"CONNECT a.example:7", "", "407"},
		{"CONNECT a.example:7", "", "407"},
		{"CONNECT a.example:7", token, "200"},
		{"GET http://a.example/", "", "407"},
		{"GET http://a.example/", token, "200"},
		{"CONNECT a.example:8", "", "407"}, // three times, and told once
		{"CONNECT a.example:8", "", "407"},
		{"CONNECT a.example:8", "", "407"},
		{"GET http://b.example/x", "", "407"},
		{"CONNECT a.example:9", "Proxy-Authorization: Basic c2J4cnVuOm90aGVy\r\n", "407"},
	} {
		if got := w.tokenRequest(c.line, c.auth); got != c.want {
			t.Errorf("%s %s: got %s, want %s", c.line, c.auth, got, c.want)
		}
	}
	s := w.dialProxy()
	fmt.Fprint(s, "\x04\x01\x00\x07\x00\x00\x00\x01other\x00a.example\x00")
	io.ReadFull(s, make([]byte, 8))
	s.Close()
}

// TestChallengeTime: a client that never shows the token is told while the sandbox
// goes on, and what is waited for is bounded.
func TestChallengeTime(t *testing.T) {
	w := newPatientWorld(t, allow("a.example"), 300*time.Millisecond, func(o *Options) { o.Token = "t0ken" })
	w.tokenRequest("CONNECT a.example:7", "")
	w.record(func(r Record) bool { return r.Target() == "a.example:7" && r.Verdict == Deny && r.Rule == byToken })
	for i := range 2 * maxChallenged {
		w.g.challenged(Record{Name: "a.example", Port: uint16(i + 1000)})
	}
	w.g.challenges.mu.Lock()
	if n := len(w.g.challenges.waiting); n > maxChallenged {
		t.Errorf("%d are waited for", n)
	}
	w.g.challenges.mu.Unlock()
	for i := range 2 * maxChallenged {
		w.record(func(r Record) bool { return r.Port == uint16(i+1000) })
	}
}
