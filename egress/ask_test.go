package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestAsk: of a host that no rule allows somebody is asked, before it is looked up or dialled,
// on every route; the answer holds for this connection, or for all.
func TestAsk(t *testing.T) {
	for route, use := range map[string]func(w *world, host string) net.Conn{
		"transparent": func(w *world, host string) net.Conn {
			return w.dialTransparent(netip.AddrPortFrom(w.number(host), 7))
		},
		"connect": func(w *world, host string) net.Conn { c, _ := w.dialConnect(host + ":7"); return c },
		"socks5":  func(w *world, host string) net.Conn { c, _ := w.dialSOCKS5(host, 7); return c },
		"socks4":  func(w *world, host string) net.Conn { c, _ := w.dialSOCKS4(host, 7); return c },
	} {
		t.Run(route, func(t *testing.T) {
			var mu sync.Mutex
			var asked []Record
			var answer Answer
			var before []string // what was looked up or dialled when it was asked
			var w *world
			w = newPatientWorld(t, egressPolicy([]string{"a.example"}, []string{"d.example"}), 300*time.Millisecond, func(o *Options) {
				o.Ask = func(ctx context.Context, r Record) Answer {
					dialled, names := w.taken()
					mu.Lock()
					defer mu.Unlock()
					asked = append(asked, r)
					for _, d := range dialled {
						before = append(before, d.String())
					}
					before = append(before, names...)
					time.Sleep(500 * time.Millisecond) // longer than the gateway waits for anybody
					return answer
				}
			})
			for i, h := range []string{"a", "b", "c", "d"} {
				w.host(h+".example", "93.184.216."+string(rune('1'+i)), 7, echo)
			}
			w.host("private.example", "10.1.2.3", 7, echo)
			works := func(host string) bool {
				c := use(w, host)
				if c == nil {
					return false
				}
				defer c.Close()
				return talk(c, "\x00") == nil
			}
			questions := func(n int, of string) {
				t.Helper()
				mu.Lock()
				defer mu.Unlock()
				if len(asked) != n || n > 0 && asked[n-1].Target() != of {
					t.Errorf("asked %+v, want %d, the last %s", asked, n, of)
				}
			}
			if !works("a.example") {
				t.Error("a.example: a rule allows it")
			}
			questions(0, "")
			if works("d.example") || works("single") {
				t.Error("d.example: a rule denies it; single: no host that a person could judge")
			}
			questions(0, "")
			if works("b.example") {
				t.Error("b.example: the answer was no")
			}
			questions(1, "b.example:7")
			if slices.ContainsFunc(before, func(s string) bool { return strings.Contains(s, "b.example") || strings.Contains(s, "93.184.216.2:") }) {
				t.Errorf("before the answer: %v", before)
			}
			answer = Once
			if !works("b.example") {
				t.Error("b.example: the answer was once")
			}
			questions(2, "b.example:7")
			answer = No
			if works("b.example") {
				t.Error("b.example: once was more often")
			}
			questions(3, "b.example:7")
			answer = Always
			for range 2 {
				if !works("b.example") {
					t.Error("b.example: the answer was always")
				}
			}
			questions(4, "b.example:7")
			// What resolves to a private address is not what was asked about.
			if works("private.example") {
				t.Error("private.example: it leads to a private address")
			}
			questions(5, "private.example:7")
			// The rules change: what was granted stays, and deny rules count.
			if err := w.g.Reload(egressPolicy([]string{"c.example"}, nil)); err != nil {
				t.Fatal(err)
			}
			answer = No
			if !works("b.example") || !works("c.example") || works("a.example") {
				t.Error("after a reload")
			}
			questions(6, "a.example:7")
			if err := w.g.Reload(egressPolicy(nil, []string{"b.example"})); err != nil {
				t.Fatal(err)
			}
			if works("b.example") {
				t.Error("b.example: it was granted, and is denied now")
			}
			questions(6, "a.example:7")
		})
	}
}

// TestAskLookup: a name that somebody is to be asked about has an address, and no server
// learns of it.
func TestAskLookup(t *testing.T) {
	var questions atomic.Int64
	w := newWorld(t, allow("a.example"), func(o *Options) {
		o.Ask = func(context.Context, Record) Answer { questions.Add(1); return No }
	})
	w.host("b.example", "93.184.216.35", 7, echo)
	addrs, err := w.lookupBy("udp").LookupNetIP(t.Context(), "ip4", "b.example")
	if err != nil || len(addrs) != 1 || !names4.Contains(addrs[0].Unmap()) {
		t.Errorf("%v, %v", addrs, err)
	}
	for _, name := range []string{"single", "a..b"} {
		if addrs, err := w.lookupBy("udp").LookupNetIP(t.Context(), "ip4", name+"."); err == nil {
			t.Errorf("%s: %v", name, addrs)
		}
	}
	if _, names := w.taken(); len(names) != 0 || questions.Load() != 0 {
		t.Errorf("looked up %v, asked %d times", names, questions.Load())
	}
	if _, all := w.g.Ports(); !all {
		t.Error("a port of which no rule tells has no listener")
	}
}

// TestAskEnds: who waits for an answer does not keep the gateway.
func TestAskEnds(t *testing.T) {
	waiting := make(chan bool)
	w := newWorld(t, allow("a.example"), func(o *Options) {
		o.Ask = func(ctx context.Context, _ Record) Answer {
			close(waiting)
			<-ctx.Done()
			return Always
		}
	})
	w.host("b.example", "93.184.216.35", 7, echo)
	c := w.dialTransparent(netip.AddrPortFrom(w.number("b.example"), 7))
	<-waiting
	// The world ends, and fails if the gateway does not; the client is there until then.
	w.stop()
	c.Close()
	if dialled, names := w.taken(); len(dialled)+len(names) != 0 {
		t.Errorf("%v, %v", dialled, names)
	}
}

// TestAskedNames: names that nobody has allowed take nothing from those that are.
func TestAskedNames(t *testing.T) {
	w := newWorld(t, allow("*.ok.example"), func(o *Options) {
		o.Ask = func(context.Context, Record) Answer { return No }
	})
	limited := 0
	for i := range newNamesBurst + 200 {
		if _, err := w.lookupBy("udp").LookupNetIP(t.Context(), "ip4", fmt.Sprintf("h%d.example", i)); err != nil {
			limited++
		}
	}
	if limited == 0 {
		t.Error("as many new names as it likes")
	}
	w.host("a.ok.example", "93.184.216.34", 7, echo)
	if _, err := w.lookupBy("udp").LookupNetIP(t.Context(), "ip4", "a.ok.example"); err != nil {
		t.Error(err)
	}
}
