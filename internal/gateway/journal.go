package gateway

import (
	"slices"
	"sync"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/egress"
)

// A Journal keeps what the result of a run tells of its gateway: what was refused,
// counts, and a log of requests where the policy wants one. What is inside the
// sandbox decides how much happens, so that all of it is bounded. The zero value
// keeps denials.
type Journal struct {
	// Requests keeps every decision.
	Requests bool

	// Told, if not nil, is called with each refusal; see [driver.Stdio].
	Told func(driver.Denial)

	mu      sync.Mutex
	denials []driver.Denial
	last    []uint64 // when each of them was refused last, as refused counts
	refused uint64
	untold  uint64 // refusals that denials have no room for
	latest  uint64 // when that was last
	log     []driver.Request
	dropped uint64
	err     string
	failure string // why the first that was allowed failed
}

const (
	maxDenials = 64   // that differ
	maxLog     = 1000 // requests
)

// Record is for [egress.Options].
func (j *Journal) Record(r egress.Record) {
	i := j.record(r)
	if i < 0 || r.Who == nil {
		return
	}
	who := driver.NewAsker(r.Who()) // it takes its time, and others go on
	j.mu.Lock()
	defer j.mu.Unlock()
	j.denials[i].Process = who
}

// record returns which denial is new, -1 for none.
func (j *Journal) record(r egress.Record) (added int) {
	added = -1
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.Verdict == egress.Deny {
		d := Denial(r)
		if j.Told != nil {
			j.Told(d)
		}
		j.refused++
		switch i := slices.IndexFunc(j.denials, d.Same); {
		case i >= 0:
			j.last[i] = j.refused
			j.denials[i].Count++
		case len(j.denials) < maxDenials:
			added = len(j.denials)
			j.denials, j.last = append(j.denials, d), append(j.last, j.refused)
		default:
			j.untold++
			j.latest = j.refused
		}
	}
	if r.Verdict == egress.Error && j.failure == "" {
		j.failure = r.Reason
	}
	if !j.Requests {
		return added
	}
	if len(j.log) >= maxLog {
		j.dropped++
		return added
	}
	q := driver.Request{Time: r.Time, Route: string(r.Route), Target: r.Target(), Verdict: string(r.Verdict), Rule: r.Rule,
		Reason:        r.Reason,
		BytesReceived: r.BytesIn, BytesSent: r.BytesOut, DurationMS: float64(r.Duration.Microseconds()) / 1e3}
	if r.Name != "" && r.Addr.IsValid() {
		q.Address = r.Addr.String()
	}
	j.log = append(j.log, q)
	return added
}

// Denial is a refusal of the gateway's.
func Denial(r egress.Record) driver.Denial {
	d := driver.Denial{Operation: driver.OpConnect, Target: r.Target(), Rule: r.Rule, Reason: r.Reason, Count: 1}
	if r.Grant != "" {
		d.Grant = driver.GrantOf("allow-host", r.Grant)
	}
	if r.Route == egress.RouteDNS {
		d.Operation = driver.OpResolve
	}
	return d
}

// Refused counts what was refused so far.
func (j *Journal) Refused() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.refused
}

// Since is what was refused since so many were.
func (j *Journal) Since(refused uint64) (all []driver.Denial) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, d := range j.denials {
		if j.last[i] > refused {
			all = append(all, d)
		}
	}
	if j.latest > refused {
		all = append(all, j.others())
	}
	return all
}

// others is what denials have no room for. Preconditions: the caller holds j.mu.
func (j *Journal) others() driver.Denial {
	return driver.Others(driver.OpConnect, j.untold)
}

// Failed notes why the gateway ended before the run did.
func (j *Journal) Failed(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err.Error()
}

// Report adds to a status what went through the gateway.
func (j *Journal) Report(st *driver.Status, s egress.Stats) {
	j.mu.Lock()
	defer j.mu.Unlock()
	st.Denials = append(st.Denials, j.denials...)
	if j.untold > 0 {
		st.Denials = append(st.Denials, j.others())
	}
	st.Network = &driver.Network{
		Connections: s.Connections, Denied: s.Denied, Failed: s.Failed, Lookups: s.Lookups, LookupsDenied: s.LookupsDenied,
		BytesReceived: s.BytesIn, BytesSent: s.BytesOut,
		Failure: j.failure, Log: j.log, LogDropped: j.dropped, Error: j.err,
	}
}
