package egress

import (
	"sync"
	"time"
)

// A client of an HTTP proxy may ask without credentials first, and show them once it
// was answered 407 (RFC 9110, 11.7.1): libcurl does, and with it git. That is no
// attempt to get out without the token, unless it was all that came.

const (
	// challengeTime is how long a client has to ask again. One that has the
	// token does so at once.
	challengeTime = 10 * time.Second

	// maxChallenged bounds the targets that are waited for.
	maxChallenged = 256
)

// challenges are the targets that were asked for without credentials, and not with the
// token since. The zero value is ready.
type challenges struct {
	mu      sync.Mutex
	waiting map[target]*challenge
}

type challenge struct {
	requests uint64        // under the lock of challenges
	met      chan struct{} // closed when one came with the token
}

// noToken is why a proxy request is refused.
func noToken(t target) *refusal {
	r := &refusal{verdict: Deny, cause: causeDenied, rule: byToken, reason: "a proxy request without the sandbox's token"}
	if t.name != "" || t.addr.IsValid() {
		r.reason = t.String() + ": " + r.reason
	}
	return r
}

// challenged notes a request that was answered 407. It is recorded unless one with the
// token for the same target follows.
func (g *Gateway) challenged(rec Record) {
	t := target{rec.Name, rec.Addr, rec.Port}
	w := &g.challenges
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.waiting[t]; c != nil {
		c.requests++
		return
	}
	if len(w.waiting) >= maxChallenged {
		g.refuse(rec, noToken(t))
		return
	}
	if w.waiting == nil {
		w.waiting = map[target]*challenge{}
	}
	c := &challenge{requests: 1, met: make(chan struct{})}
	w.waiting[t] = c
	g.group.Go(func() {
		timer := time.NewTimer(min(challengeTime, g.patience))
		defer timer.Stop()
		select {
		case <-c.met:
			return
		case <-timer.C:
		case <-g.ctx.Done():
		}
		w.mu.Lock()
		requests := uint64(0)
		if w.waiting[t] == c {
			delete(w.waiting, t)
			requests = c.requests
		}
		w.mu.Unlock()
		if requests > 0 {
			g.stats.denied.Add(requests - 1) // each counts, one is told
			g.refuse(rec, noToken(t))
		}
	})
}

// met notes that a target was asked for with the token.
func (g *Gateway) met(t target) {
	w := &g.challenges
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.waiting[t]; c != nil {
		delete(w.waiting, t)
		close(c.met)
	}
}
