// Package gateway joins an egress gateway (package egress) to a driver: the
// variables by which the command finds its proxy, what the result tells of it, and,
// for drivers without a network namespace, one on the host's own loopback.
package gateway

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/egress"
	"github.com/sbxrun/sbxrun/policy"
)

// Environ adds variables to an environment, but for those that it sets itself.
func Environ(env, add []string) []string {
	out := slices.Clone(env)
	for _, kv := range add {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(env, func(own string) bool { return strings.HasPrefix(own, name+"=") }) {
			out = append(out, kv)
		}
	}
	return out
}

// A Local is the network of one run in egress mode proxy, where the driver holds
// the command to one port of the host's loopback.
type Local struct {
	local   *egress.Local
	journal Journal
	ended   bool
}

// Serve starts one. Upstream and noProxy are as in [egress.Options].
func Serve(p *policy.Policy, upstream, noProxy string) (*Local, error) {
	l := &Local{journal: Journal{Requests: p.Egress.LogRequests}}
	var err error
	l.local, err = egress.ServeLocal(p.Egress,
		egress.Options{Upstream: upstream, NoProxy: noProxy, Record: l.journal.Record})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Port is the proxy's, on 127.0.0.1.
func (l *Local) Port() uint16 { return l.local.Port }

// Environ is the command's environment with the proxy's variables.
func (l *Local) Environ(env []string) []string { return Environ(env, l.local.Env) }

// Direct records a connection that was refused because it did not go to the proxy.
func (l *Local) Direct(to netip.AddrPort) { l.local.Direct(to) }

// Reload puts other rules in place; see [driver.Changeable].
func (l *Local) Reload(e policy.Egress) error {
	if e.Mode == policy.EgressHost {
		return errors.New("the network's mode changes with the next run")
	}
	return l.local.Reload(e)
}

// drainTime is how long what a command sent last may take to leave after its end.
const drainTime = time.Second

// End ends the gateway of a command that is over, and adds to its status what went
// through it. Only the first call does; the status may be nil.
func (l *Local) End(st *driver.Status) {
	if l.ended {
		return
	}
	l.ended = true
	for end := time.Now().Add(drainTime); st != nil && l.local.Stats().Active > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := l.local.Close(); err != nil {
		l.journal.Failed(err)
	}
	if st != nil {
		l.journal.Report(st, l.local.Stats())
	}
}
