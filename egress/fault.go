package egress

import (
	"fmt"
	"runtime"
	"strings"
)

// A panic in what serves one connection is a fault of the gateway's, which whoever
// speaks may have found: that connection ends, the result says so among what was
// refused, and the run goes on. Left alone it would end the supervisor.

// byFault is the rule that refuses what the gateway has failed in.
const byFault = "fault"

// fault words a panic.
func fault(v any) *refusal {
	where := ""
	pc := make([]uintptr, 32)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for f, more := frames.Next(); ; f, more = frames.Next() {
		// The first below what the runtime and this file do about it.
		if !strings.HasPrefix(f.Function, "runtime.") && !strings.HasSuffix(f.File, "/fault.go") {
			where = fmt.Sprintf(" in %s, line %d", f.Function[strings.LastIndexByte(f.Function, '/')+1:], f.Line)
			break
		}
		if !more {
			break
		}
	}
	return &refusal{verdict: Deny, cause: causeFailed, rule: byFault,
		reason: fmt.Sprintf("sbxrun has a fault%s, the connection was ended: %v", where, v)}
}

// caught makes a panic the error of the function that defers it.
func caught(err *error) {
	if v := recover(); v != nil {
		*err = fault(v)
	}
}

// survive ends the connection after a panic in the function that defers it, and waits
// for the goroutines that this function has started.
func (c *connection) survive(wait func()) {
	v := recover()
	if v == nil {
		return
	}
	why := fault(v)
	c.mu.Lock()
	carries := c.flow != nil
	c.mu.Unlock()
	if !carries {
		local, _ := c.local()
		c.deny(RouteTransparent, target{addr: local.Addr(), port: local.Port()}, "", why)
	}
	c.abort(why)
	wait()
}

// failing ends the gateway, and not the supervisor, after a panic in what accepts.
func (g *Gateway) failing() {
	if v := recover(); v != nil {
		g.fail(fault(v))
	}
}
