package egress

import (
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rates bounds requests to each host. The zero value is ready.
type rates struct {
	mu     sync.Mutex
	limits map[string]*rate.Limiter
	limit  int
	swept  time.Time
}

// maxRates bounds how many hosts are remembered.
const maxRates = 8192

// rate takes one request to t's host from its budget.
func (g *Gateway) rate(r *rules, t target) *refusal {
	if r.perMinute == 0 {
		return nil
	}
	host := target{name: t.name, addr: t.addr}.String()
	if !g.rates.take(host, r.perMinute, time.Now()) {
		return &refusal{verdict: Deny, cause: causeLimited, rule: byLimit,
			reason: "more than " + strconv.Itoa(r.perMinute) + " requests a minute to " + host}
	}
	return nil
}

// take reports whether one more request is within the bound: perMinute at once,
// and as many again over each minute.
func (r *rates) take(host string, perMinute int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limits == nil || r.limit != perMinute {
		r.limits, r.limit = map[string]*rate.Limiter{}, perMinute
	}
	l := r.limits[host]
	if l == nil {
		if len(r.limits) >= maxRates {
			// A full budget is the same as none remembered. To look for them
			// takes long, so it is done now and then.
			if now.Sub(r.swept) < time.Second {
				return false
			}
			r.swept = now
			for h, l := range r.limits {
				if l.TokensAt(now) >= float64(perMinute) {
					delete(r.limits, h)
				}
			}
			if len(r.limits) >= maxRates {
				return false
			}
		}
		l = rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute)
		r.limits[host] = l
	}
	return l.AllowN(now, 1)
}
