package engine

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/driver/host"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/questions"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// A Served is where a server gets its sandboxes: a request, and what the files make of
// it, which may change while the server runs. The fields are set before it is used.
type Served struct {
	Request *profiles.Request
	Facts   *Facts
	First   *profiles.Resolved
	Key     string        // of the agent, for the roll-out
	Driver  driver.Driver // what isolates; nil to choose it for the first sandbox
	Audit   *audit.Log    // of answers; nil for none

	// Choose selects what isolates under a policy, and proves that it does.
	Choose func(context.Context, *profiles.Resolved) (driver.Driver, error)

	// Tell is told what became of the changes of a sandbox; Note and Warn tell the rest.
	Tell       func(*driver.Changes, error)
	Note, Warn func(text string)

	mu      sync.Mutex
	now     *profiles.Resolved                // the last good one; nil for First
	running map[driver.Sandbox]*policy.Policy // whose network rules follow the files
}

// keeper returns what isolates under a policy.
func (v *Served) keeper(ctx context.Context, r *profiles.Resolved) (driver.Driver, error) {
	v.mu.Lock()
	d := v.Driver
	v.mu.Unlock()
	if d == nil {
		var err error
		if d, err = v.Choose(ctx, r); err != nil {
			return nil, err
		}
		v.mu.Lock()
		v.Driver = d
		v.mu.Unlock()
	}
	return Fit(d, v.Facts, r, false, nil), nil
}

// current is the request as the files have it now.
func (v *Served) current() *profiles.Resolved {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.now == nil {
		return v.First
	}
	return v.now
}

// Open builds one more sandbox.
func (v *Served) Open(ctx context.Context) (*session.Environment, error) {
	r := v.current()
	if in, why := r.Operator.Rollout.Sandboxed(v.Key); !in {
		if path := OverlayOf(r.Policy); path != "" {
			return nil, &driver.UnsupportedError{Driver: host.Name, Rules: []string{"files.overlay " + path},
				Fix: "leave out --workspace overlay: " + why}
		}
		return v.onHost(r, why), nil
	}
	d, err := v.keeper(ctx, r)
	if err != nil {
		return nil, err
	}
	if !d.Sandboxed() {
		return v.onHost(r, "the driver is "+d.Name()), nil
	}
	var board *questions.Board
	if v.Request.Ask > 0 {
		d, board, err = Asking(d, v.Request.Ask, v.Audit, audit.Record{Source: "mcp", Profile: r.Policy.Profile})
		if err != nil {
			return nil, err
		}
	}
	sb, err := KeepsChanges{Driver: d, Facts: v.Facts, ID: ChangesID, Tell: v.Tell}.Open(ctx, r.Policy)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	if v.running == nil {
		v.running = map[driver.Sandbox]*policy.Policy{}
	}
	v.running[sb] = r.Policy
	late := v.now != nil && v.now != r
	v.mu.Unlock()
	if late {
		v.renew(sb, v.current().Policy)
	}
	go func() {
		<-sb.Done()
		v.mu.Lock()
		delete(v.running, sb)
		v.mu.Unlock()
	}()
	return &session.Environment{Sandbox: sb, Policy: r.Policy, Driver: d.Name(), Board: board}, nil
}

// CallAllowed is why a call runs on the host that asked for that itself.
const CallAllowed = "the call said dangerouslyDisableSandbox, and the operator allows that"

// OpenBare returns the bare host, nil if no call may ask for it.
func (v *Served) OpenBare(context.Context) (*session.Environment, error) {
	r := v.current()
	if !r.Operator.Unsandboxed {
		return nil, nil
	}
	return v.onHost(r, CallAllowed), nil
}

func (v *Served) onHost(r *profiles.Resolved, why string) *session.Environment {
	d := host.Driver{Home: v.Facts.Home}
	return &session.Environment{Sandbox: d.Box(r.Policy), Policy: r.Policy, Driver: host.Name, Why: why}
}

// Follow keeps what is served as the files say: network rules of sandboxes that
// run, and all else for those to come. A file that is broken leaves the last good
// state in place, and is told once.
func (v *Served) Follow() {
	told := ""
	for range time.Tick(FollowEvery) {
		err := v.again()
		switch {
		case err == nil && told != "":
			v.Note("the configuration can be read again")
			told = ""
		case err != nil && err.Error() != told:
			told = err.Error()
			v.Warn("the configuration stays as it was: " + told)
		}
	}
}

// again reads the files once more, and puts what they say in place.
func (v *Served) again() error {
	was := v.current()
	r, err := v.First.Again(v.Request, &v.Facts.Facts)
	if err != nil {
		return err
	}
	if reflect.DeepEqual(r.Policy, was.Policy) && reflect.DeepEqual(r.Operator, was.Operator) {
		return nil
	}
	if in, _ := r.Operator.Rollout.Sandboxed(v.Key); in {
		d, err := v.keeper(context.Background(), r)
		if err != nil {
			return err
		}
		if err := d.Check(r.Policy); err != nil {
			return err
		}
	}
	if !reflect.DeepEqual(r.Operator.Audit, was.Operator.Audit) {
		v.Warn("audit: what has changed counts from the next start on")
	}
	v.mu.Lock()
	v.now = r
	var boxes []driver.Sandbox
	for b := range v.running {
		boxes = append(boxes, b)
	}
	v.mu.Unlock()
	for _, b := range boxes {
		v.renew(b, r.Policy)
	}
	v.Note("the configuration has changed: network rules count from now on, all else for new sessions")
	return nil
}

// renew gives a sandbox the network rules of a policy. One that cannot have them,
// and has more, ends: it must not reach what the files no longer allow.
func (v *Served) renew(b driver.Sandbox, p *policy.Policy) {
	v.mu.Lock()
	had := v.running[b]
	v.mu.Unlock()
	if had == nil || reflect.DeepEqual(had.Egress, p.Egress) {
		return
	}
	if had.Egress.Mode == policy.EgressHost {
		v.Warn("a session that shares the host's network has ended: the network rules have changed")
		b.Close()
		return
	}
	if had.Egress.Mode == policy.EgressNone {
		return // it has nothing to lose, and nothing to gain before the next
	}
	if p.Egress.Mode == policy.EgressHost {
		return
	}
	if err := b.Reload(p.Egress); err != nil {
		v.Warn("a session has ended, for it cannot have the new network rules: " + err.Error())
		b.Close()
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running[b] != nil {
		v.running[b] = p
	}
}
