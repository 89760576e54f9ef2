//go:build linux && cgo

package compile

import (
	"fmt"

	"github.com/sbxrun/sbxrun/seccomp/internal/bpf"
)

// maxNR is above every system call number that Linux has or will have soon.
const maxNR = 1024

// Offsets in struct seccomp_data; see linux/seccomp.h.
const (
	offNR   = 0
	offArch = 4
)

// A node is a decision that is left once the number and the architecture are
// known: a returned action, or a test of an argument's word. Equal decisions
// are one node.
type node struct {
	ret     bool
	k       uint32 // the action, or what is compared with
	off     uint32
	mask    uint32
	op      uint16
	yes, no *node
}

// A specialiser evaluates a program as far as it goes without arguments.
type specialiser struct {
	prog  []bpf.Inst
	nr    uint32
	arch  uint32
	nodes map[node]*node
}

func (s *specialiser) intern(n node) *node {
	if !n.ret && n.yes == n.no {
		return n.yes
	}
	if p := s.nodes[n]; p != nil {
		return p
	}
	p := new(node)
	*p = n
	s.nodes[n] = p
	return p
}

// acc is what the accumulator holds: a constant, or a word of the data under a
// mask.
type acc struct {
	known     bool
	v         uint32
	off, mask uint32
}

// fact is what an earlier test on the path said about an unmasked word.
type fact struct {
	off, v uint32
	next   *fact
}

func (f *fact) find(off uint32) (uint32, bool) {
	for ; f != nil; f = f.next {
		if f.off == off {
			return f.v, true
		}
	}
	return 0, false
}

// walk follows the program from pc. A test whose outcome is known, because the
// word is or because every value passes, leaves no trace.
func (s *specialiser) walk(pc int, a acc, facts *fact) *node {
	for ; ; pc++ {
		switch in := s.prog[pc]; in.Op {
		case bpf.Load:
			a = acc{off: in.K, mask: ^uint32(0)}
			switch in.K {
			case offNR:
				a = acc{known: true, v: s.nr}
			case offArch:
				a = acc{known: true, v: s.arch}
			default:
				if v, ok := facts.find(in.K); ok {
					a = acc{known: true, v: v}
				}
			}
		case bpf.And:
			a.v &= in.K
			a.mask &= in.K
			if !a.known && a.mask == 0 {
				a = acc{known: true}
			}
		case bpf.Jump:
			pc += int(in.K)
		case bpf.Ret:
			return s.intern(node{ret: true, k: in.K})
		default:
			yes, no := pc+1+int(in.JT), pc+1+int(in.JF)
			if a.known {
				if pc = no - 1; in.Holds(a.v) {
					pc = yes - 1
				}
				continue
			}
			op, k := in.Op, in.K
			always, never := false, false
			switch op {
			case bpf.JumpN: // >= k is > k-1
				if always = k == 0; !always {
					op, k = bpf.JumpG, k-1
				}
			case bpf.JumpE:
				never = k&^a.mask != 0
			case bpf.JumpS:
				never = k&a.mask == 0
			}
			if op == bpf.JumpG {
				never = k >= a.mask
			}
			if always || never {
				if pc = no - 1; always {
					pc = yes - 1
				}
				continue
			}
			yesFacts, noFacts := facts, facts
			if a.mask == ^uint32(0) {
				if op == bpf.JumpE {
					yesFacts = &fact{a.off, k, facts}
				}
				if op == bpf.JumpG && k == 0 {
					noFacts = &fact{a.off, 0, facts}
				}
			}
			return s.intern(node{op: op, k: k, off: a.off, mask: a.mask,
				yes: s.walk(yes, a, yesFacts), no: s.walk(no, a, noFacts)})
		}
	}
}

// A span gives every number from lo to the next span's lo one decision.
type span struct {
	lo uint32
	n  *node
}

// spans evaluates a program for every number.
func spans(prog []bpf.Inst, arch uint32, goarch string) ([]span, error) {
	s := &specialiser{prog: prog, arch: arch, nodes: map[node]*node{}}
	var out []span
	add := func(lo uint32, n *node) {
		if len(out) == 0 || out[len(out)-1].n != n {
			out = append(out, span{lo, n})
		}
	}
	at := func(nr uint32) *node {
		s.nr = nr
		return s.walk(0, acc{known: true}, nil)
	}
	for nr := range uint32(maxNR) {
		add(nr, at(nr))
	}
	if !out[len(out)-1].n.ret {
		return nil, fmt.Errorf("a call above %d has a rule", maxNR-1)
	}
	if goarch == "amd64" {
		// A tracer that has its tracee skip a call writes -1 as the number,
		// so -1 gets the default action and is not taken for an x32 call.
		def := out[len(out)-1].n
		add(bpf.X32, s.intern(node{ret: true, k: bpf.KillProcess}))
		add(^uint32(0), def)
	}
	return out, nil
}

// An emitter writes a program from its end to its beginning, so that every
// jump's target is already there. Positions count from the end: position p is
// the p-th instruction before the end, 1 the last.
type emitter struct {
	rev   []bpf.Inst
	entry map[*node]int  // where a node starts, loading its word
	test  map[*node]int  // where its comparison is, the word being loaded
	rets  map[uint32]int // the nearest return of each action
}

func (e *emitter) put(in bpf.Inst) int {
	e.rev = append(e.rev, in)
	return len(e.rev)
}

// reach returns a position with the effect of pos that a conditional jump
// written next can reach: eight bits of distance.
func (e *emitter) reach(pos, slack int) int {
	if len(e.rev)-pos <= 255-slack {
		return pos
	}
	in := e.rev[pos-1]
	if in.Op == bpf.Ret {
		p := e.put(in)
		e.rets[in.K] = p
		return p
	}
	return e.put(bpf.Inst{Op: bpf.Jump, K: uint32(len(e.rev) - pos)})
}

// branch writes a conditional jump to two positions.
func (e *emitter) branch(op uint16, k uint32, yes, no int) int {
	// The second call may write one instruction, which moves the first
	// target one further away.
	yes = e.reach(yes, 1)
	no = e.reach(no, 0)
	return e.put(bpf.Inst{Op: op, K: k, JT: uint8(len(e.rev) - yes), JF: uint8(len(e.rev) - no)})
}

func (e *emitter) ret(k uint32) int {
	if p, ok := e.rets[k]; ok && len(e.rev)-p < 250 {
		return p
	}
	p := e.put(bpf.Inst{Op: bpf.Ret, K: k})
	e.rets[k] = p
	return p
}

// node writes a decision and returns where to jump when the accumulator holds
// the word at off under mask.
func (e *emitter) node(n *node, off, mask uint32) int {
	if n.ret {
		return e.ret(n.k)
	}
	if _, ok := e.entry[n]; !ok {
		no := e.node(n.no, n.off, n.mask)
		yes := e.node(n.yes, n.off, n.mask)
		e.test[n] = e.branch(n.op, n.k, yes, no)
		if n.mask != ^uint32(0) {
			e.put(bpf.Inst{Op: bpf.And, K: n.mask})
		}
		e.entry[n] = e.put(bpf.Inst{Op: bpf.Load, K: n.off})
	}
	if n.off == off && n.mask == mask {
		return e.test[n]
	}
	return e.entry[n]
}

// search writes a binary search over spans and returns its start.
func (e *emitter) search(s []span) int {
	if len(s) == 1 {
		return e.node(s[0].n, offNR, ^uint32(0))
	}
	// One number between two spans of the same decision needs one test.
	if len(s) == 3 && s[0].n == s[2].n && s[2].lo == s[1].lo+1 {
		no := e.node(s[0].n, offNR, ^uint32(0))
		yes := e.node(s[1].n, offNR, ^uint32(0))
		return e.branch(bpf.JumpE, s[1].lo, yes, no)
	}
	mid := len(s) / 2
	yes := e.search(s[mid:])
	no := e.search(s[:mid])
	return e.branch(bpf.JumpN, s[mid].lo, yes, no)
}

// layout writes the program for spans on an architecture.
func layout(s []span, arch uint32) []bpf.Inst {
	e := &emitter{entry: map[*node]int{}, test: map[*node]int{}, rets: map[uint32]int{}}
	start := e.search(s)
	if d := len(e.rev) - start; d > 0 {
		e.put(bpf.Inst{Op: bpf.Jump, K: uint32(d)})
	}
	e.put(bpf.Inst{Op: bpf.Load, K: offNR})
	start = len(e.rev)
	kill := e.put(bpf.Inst{Op: bpf.Ret, K: bpf.KillProcess})
	e.put(bpf.Inst{Op: bpf.JumpE, K: arch, JT: uint8(len(e.rev) - start), JF: uint8(len(e.rev) - kill)})
	e.put(bpf.Inst{Op: bpf.Load, K: offArch})
	prog := make([]bpf.Inst, len(e.rev))
	for i, in := range e.rev {
		prog[len(prog)-1-i] = in
	}
	return prog
}
