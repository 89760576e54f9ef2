package egress

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// asks reports whether a connection that was refused is one to ask about: nothing but
// the want of a rule refuses it, and a rule can be advised. A name without a dot is no
// host that a person could judge.
func (g *Gateway) asks(t target, d decision) bool {
	return g.o.Ask != nil && !d.allow && d.rule == byDefault && d.grant != "" &&
		(t.name == "" || strings.Contains(t.name, "."))
}

// lookAtClient is how often it is looked whether who asks is still there.
const lookAtClient = 200 * time.Millisecond

// ask waits for an answer about a connection, and returns the rules to go on with: they may
// have changed meanwhile, whatever the answer is. Nil is no. The client, which waits as well,
// is given as much time as it takes.
func (g *Gateway) ask(c *connection, f *flow, d decision) *rules {
	if !g.asks(f.target, d) {
		return nil
	}
	rule, err := policy.ParseEgressRule(d.grant)
	if err != nil {
		return nil
	}
	c.client.conn.SetDeadline(time.Time{})
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	go func() { // nobody reads from the client meanwhile
		for ctx.Err() == nil && !hungUp(c.client.conn) {
			select {
			case <-ctx.Done():
			case <-time.After(lookAtClient):
			}
		}
		cancel()
	}()
	answer := g.o.Ask(ctx, Record{Time: f.start, Route: f.route, Name: f.target.name, Addr: f.target.addr,
		Port: f.target.port, Verdict: Deny, Rule: d.rule, Grant: d.grant, Reason: d.reason, Who: c.asker()})
	c.client.conn.SetDeadline(time.Now().Add(g.patience))
	switch {
	case ctx.Err() != nil:
		return nil
	case answer == Once:
		f.once = append(f.once, rule)
		return g.rules.Load().with(f.once)
	case answer == Always && g.grant(rule) != nil:
		return nil
	}
	return g.rules.Load()
}

// grant adds a rule to those of the policy.
func (g *Gateway) grant(rule policy.EgressRule) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	if slices.ContainsFunc(g.granted, func(r policy.EgressRule) bool {
		return r.Host == rule.Host && r.Protocol == rule.Protocol && slices.Equal(r.Ports, rule.Ports)
	}) {
		return nil // others waited for the same answer
	}
	granted := append(slices.Clone(g.granted), rule)
	r, err := g.compile(g.policy, granted)
	if err == nil {
		g.granted = granted
		g.rules.Store(r)
	}
	return err
}

// compile reads a policy's rules, and those that were granted since.
func (g *Gateway) compile(p policy.Egress, granted []policy.EgressRule) (*rules, error) {
	if len(granted) > 0 {
		p.Allow = slices.Concat(p.Allow, granted)
	}
	return compile(p)
}

// with is the rules and more that allow.
func (r *rules) with(more []policy.EgressRule) *rules {
	if len(more) == 0 {
		return r
	}
	w := *r
	w.allow = slices.Clone(r.allow)
	for _, er := range more {
		w.allow = appendRule(w.allow, er)
	}
	return &w
}
