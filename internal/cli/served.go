package cli

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/driver/host"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// served is what a server opens sandboxes of: the request of its flags, and what
// the files make of it, which may change while it serves.
type served struct {
	o     *options
	facts *facts
	first *profiles.Resolved
	key   string // of the agent, for the roll-out

	mu      sync.Mutex
	now     *profiles.Resolved                // the last good one
	driver  driver.Driver                     // what isolates; nil until the first sandbox
	running map[driver.Sandbox]*policy.Policy // whose network rules follow the files
}

// service resolves what the flags ask for.
func (o *options) service(s *Service) error {
	if o.req.Terminal {
		return engine.Usage("mcp gives no command a terminal", "leave out --tty")
	}
	f, err := engine.GatherFacts()
	if err != nil {
		return err
	}
	o.req.Command = []string{"/"} // commands come later
	r, err := o.resolve(f)
	if err != nil {
		return err
	}
	v := &served{o: o, facts: f, first: r, now: r, key: s.RolloutKey, running: map[driver.Sandbox]*policy.Policy{}}
	if v.key == "" {
		v.key = rolloutKey(r.Workspace.Path)
	}
	s.Policy, s.Version, s.Note = r.Policy, versionOf().Version, say.note
	if s.Audit, err = engine.OpenAudit(&r.Operator, r.Policy.OCI.Process.Env); err != nil {
		return err
	}
	in, why := r.Operator.Rollout.Sandboxed(v.key)
	if in {
		if _, err := v.keeper(context.Background(), r); err != nil {
			return err
		}
		if !v.driver.Sandboxed() {
			why = "the driver is " + v.driver.Name()
		}
	}
	if s.Why = why; why != "" {
		say.warn("agents' commands are not sandboxed: " + why)
	}
	if r.Operator.Unsandboxed {
		say.warn("agents.unsandboxed: a call that says dangerouslyDisableSandbox runs on the bare host")
	}
	s.Open, s.Bare = v.open, v.openBare
	go v.follow()
	return nil
}

// keeper returns what isolates under a policy.
func (v *served) keeper(ctx context.Context, r *profiles.Resolved) (driver.Driver, error) {
	v.mu.Lock()
	d := v.driver
	v.mu.Unlock()
	if d != nil {
		return fit(d, v.facts, r, false), nil
	}
	d, err := selectDriver(ctx, v.facts, r, v.o.req.Require)
	if err != nil {
		return nil, err
	}
	fitted := fit(d, v.facts, r, false)
	if _, ok := fitted.(driver.Keeper); !ok && d.Sandboxed() {
		return nil, &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"sessions"}, Fix: "mcp needs the native driver"}
	}
	if d.Sandboxed() {
		if err := v.o.verify(ctx, fitted, r, v.facts); err != nil {
			return nil, err
		}
	}
	v.mu.Lock()
	v.driver = d
	v.mu.Unlock()
	return fitted, nil
}

// current is the request as the files have it now.
func (v *served) current() *profiles.Resolved {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now
}

// open builds one more sandbox.
func (v *served) open(ctx context.Context) (*Environment, error) {
	r := v.current()
	if in, why := r.Operator.Rollout.Sandboxed(v.key); !in {
		if path := engine.OverlayOf(r.Policy); path != "" {
			return nil, &driver.UnsupportedError{Driver: host.Name, Rules: []string{"files.overlay " + path}, Fix: "leave out --workspace overlay: " + why}
		}
		return v.onHost(r, why), nil
	}
	d, err := v.keeper(ctx, r)
	if err != nil {
		return nil, err
	}
	k, ok := d.(driver.Keeper)
	if !ok {
		return v.onHost(r, "the driver is "+d.Name()), nil
	}
	sb, err := engine.KeepsChanges{Keeper: k, Facts: v.facts, ID: engine.ChangesID, Tell: tellChanges}.Open(ctx, r.Policy)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	v.running[sb] = r.Policy
	late := v.now != r
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
	return &Environment{Sandbox: sb, Policy: r.Policy, Driver: d.Name()}, nil
}

// openBare returns the bare host, nil if no call may ask for it.
func (v *served) openBare(context.Context) (*Environment, error) {
	r := v.current()
	if !r.Operator.Unsandboxed {
		return nil, nil
	}
	return v.onHost(r, callAllowed), nil
}

func (v *served) onHost(r *profiles.Resolved, why string) *Environment {
	d := host.Driver{Home: v.facts.Home}
	return &Environment{Sandbox: d.Box(r.Policy), Policy: r.Policy, Driver: host.Name, Why: why}
}

// follow keeps what is served as the files say: network rules of sandboxes that
// run, and all else for those to come. A file that is broken leaves the last good
// state in place, and is told once.
func (v *served) follow() {
	told := ""
	for range time.Tick(engine.FollowEvery) {
		err := v.again()
		switch {
		case err == nil && told != "":
			say.note("the configuration can be read again", "")
			told = ""
		case err != nil && err.Error() != told:
			told = err.Error()
			say.warn("the configuration stays as it was: " + told)
		}
	}
}

// again reads the files once more, and puts what they say in place.
func (v *served) again() error {
	was := v.current()
	r, err := v.first.Again(&v.o.req, &v.facts.Facts)
	if err != nil {
		return err
	}
	if reflect.DeepEqual(r.Policy, was.Policy) && reflect.DeepEqual(r.Operator, was.Operator) {
		return nil
	}
	if in, _ := r.Operator.Rollout.Sandboxed(v.key); in {
		d, err := v.keeper(context.Background(), r)
		if err != nil {
			return err
		}
		if err := d.Check(r.Policy); err != nil {
			return err
		}
	}
	if !reflect.DeepEqual(r.Operator.Audit, was.Operator.Audit) {
		say.warn("audit: what has changed counts from the next start on")
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
	say.note("the configuration has changed: network rules count from now on, all else for new sessions", "")
	return nil
}

// renew gives a sandbox the network rules of a policy. One that cannot have them,
// and has more, ends: it must not reach what the files no longer allow.
func (v *served) renew(b driver.Sandbox, p *policy.Policy) {
	v.mu.Lock()
	had := v.running[b]
	v.mu.Unlock()
	if had == nil || reflect.DeepEqual(had.Egress, p.Egress) {
		return
	}
	if had.Egress.Mode == policy.EgressHost {
		say.warn("a session that shares the host's network has ended: the network rules have changed")
		b.Close()
		return
	}
	if had.Egress.Mode == policy.EgressNone {
		return // it has nothing to lose, and nothing to gain before the next
	}
	if p.Egress.Mode == policy.EgressHost {
		return
	}
	if err := b.(driver.Reloader).Reload(p.Egress); err != nil {
		say.warn("a session has ended, for it cannot have the new network rules: " + err.Error())
		b.Close()
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running[b] != nil {
		v.running[b] = p
	}
}
