//go:build linux && cgo

package compile

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/seccomp/internal/bpf"
)

// A cond is one comparison of an argument, as in SCMP_CMP_*.
type cond struct {
	arg  uint
	op   specs.LinuxSeccompOperator
	a, b uint64 // value and valueTwo
}

// A rule is one entry of a profile for one call.
type rule struct {
	index  int // in the profile's syscalls
	name   string
	action uint32
	conds  []cond
}

// A plan is a profile for one architecture, by number and without names.
type plan struct {
	goarch string
	def    uint32
	nrs    []uint32 // sorted
	rules  map[uint32][]rule
}

const errnoMax = 4095 // MAX_ERRNO; see linux/err.h

// action returns the kernel's number for an action. The zero errno default is
// EPERM, as in runc and in the specification.
func action(a specs.LinuxSeccompAction, errnoRet *uint) (uint32, error) {
	data := uint32(1)
	if errnoRet != nil {
		if *errnoRet > errnoMax {
			return 0, fmt.Errorf("errnoRet %d is above %d", *errnoRet, errnoMax)
		}
		data = uint32(*errnoRet)
	}
	known := [...]specs.LinuxSeccompAction{specs.ActKill, specs.ActKillThread, specs.ActKillProcess, specs.ActTrap,
		specs.ActAllow, specs.ActLog}
	if errnoRet != nil && slices.Contains(known[:], a) {
		return 0, fmt.Errorf("errnoRet makes no sense with %s", a)
	}
	switch a {
	case specs.ActKill, specs.ActKillThread:
		return bpf.KillThread, nil
	case specs.ActKillProcess:
		return bpf.KillProcess, nil
	case specs.ActTrap:
		return bpf.Trap, nil
	case specs.ActErrno:
		return bpf.Errno | data, nil
	case specs.ActTrace:
		return bpf.Trace | data, nil
	case specs.ActAllow:
		return bpf.Allow, nil
	case specs.ActLog:
		return bpf.Log, nil
	case specs.ActNotify:
		return 0, errors.New("SCMP_ACT_NOTIFY needs a listener, which sbxrun has none of")
	case "":
		return 0, errors.New("no action")
	}
	return 0, fmt.Errorf("unknown action %q", string(a))
}

// checkArch refuses a profile that is not for goarch or that would let a second
// ABI of the machine in. Other machines' architectures may be named beside it.
func checkArch(list []specs.Arch, goarch string) error {
	native, foreign := specs.ArchX86_64, []specs.Arch{specs.ArchX86, specs.ArchX32}
	switch goarch {
	case "amd64":
	case "arm64":
		native, foreign = specs.ArchAARCH64, []specs.Arch{specs.ArchARM}
	default:
		return fmt.Errorf("architecture %s: only amd64 and arm64 are supported", goarch)
	}
	found := len(list) == 0
	for i, a := range list {
		found = found || a == native
		for _, f := range foreign {
			if a == f {
				return fmt.Errorf("architectures[%d]: %s is a foreign ABI, which is always killed; leave it out", i, a)
			}
		}
	}
	if !found {
		return fmt.Errorf("architectures: %s is missing", native)
	}
	return nil
}

// newPlan checks a profile and resolves its names. resolve returns a name's
// number, whether the call exists elsewhere but not on goarch, and an error for
// a name that nobody knows.
func newPlan(p *specs.LinuxSeccomp, goarch string,
	resolve func(name string) (nr uint32, absent bool, err error)) (*plan, error) {
	if err := checkArch(p.Architectures, goarch); err != nil {
		return nil, err
	}
	if p.ListenerPath != "" || p.ListenerMetadata != "" {
		return nil, errors.New("listenerPath: sbxrun has no seccomp listener")
	}
	pl := &plan{goarch: goarch, rules: map[uint32][]rule{}}
	var err error
	if pl.def, err = action(p.DefaultAction, p.DefaultErrnoRet); err != nil {
		return nil, fmt.Errorf("defaultAction: %w", err)
	}
	for i, sc := range p.Syscalls {
		act, err := action(sc.Action, sc.ErrnoRet)
		if err != nil {
			return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
		}
		if len(sc.Names) == 0 {
			return nil, fmt.Errorf("syscalls[%d]: no names", i)
		}
		conds, err := conditions(sc.Args)
		if err != nil {
			return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
		}
		for _, name := range sc.Names {
			nr, absent, err := resolve(name)
			if err != nil {
				return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
			}
			if absent {
				continue
			}
			if pl.rules[nr] == nil {
				pl.nrs = append(pl.nrs, nr)
			}
			pl.rules[nr] = append(pl.rules[nr], rule{i, name, act, conds})
		}
	}
	sort.Slice(pl.nrs, func(i, j int) bool { return pl.nrs[i] < pl.nrs[j] })
	for _, nr := range pl.nrs {
		if err := unconditional(pl.rules[nr]); err != nil {
			return nil, err
		}
	}
	return pl, nil
}

func conditions(args []specs.LinuxSeccompArg) ([]cond, error) {
	var conds []cond
	for j, a := range args {
		if a.Index > 5 {
			return nil, fmt.Errorf("args[%d]: index %d is above 5", j, a.Index)
		}
		switch a.Op {
		case specs.OpMaskedEqual:
			if a.ValueTwo&^a.Value != 0 {
				return nil, fmt.Errorf("args[%d]: valueTwo %#x has bits outside the mask %#x, so it never matches", j,
					a.ValueTwo, a.Value)
			}
			if a.Value == 0 {
				return nil, fmt.Errorf("args[%d]: a mask of 0 always matches; leave it out", j)
			}
		case specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual,
			specs.OpGreaterThan:
			if a.ValueTwo != 0 {
				return nil, fmt.Errorf("args[%d]: valueTwo makes no sense with %s", j, a.Op)
			}
		default:
			return nil, fmt.Errorf("args[%d]: unknown op %q", j, string(a.Op))
		}
		for _, c := range conds {
			if c.arg == a.Index {
				return nil, fmt.Errorf("args[%d]: index %d is compared twice, which libseccomp cannot express; use two rules",
					j, a.Index)
			}
		}
		conds = append(conds, cond{a.Index, a.Op, a.Value, a.ValueTwo})
	}
	return conds, nil
}

// unconditional refuses a rule with arguments beside one without: libseccomp
// keeps the broader one and drops the other without a word.
func unconditional(rules []rule) error {
	for _, r := range rules {
		if len(r.conds) != 0 {
			continue
		}
		for _, o := range rules {
			if o.action != r.action {
				return fmt.Errorf(
					"syscalls[%d]: %s: syscalls[%d] covers the same call without arguments and says otherwise; give it a condition such as arg %s 0",
					max(o.index, r.index), r.name, min(o.index, r.index), specs.OpGreaterEqual)
			}
		}
	}
	return nil
}

// trivial reports whether a condition always holds. Rules use one such as
// "arg 0 >= 0" for what no other rule covers.
func (c cond) trivial() bool { return c.op == specs.OpGreaterEqual && c.a == 0 }

func (c cond) holds(args *[6]uint64) bool {
	v := args[c.arg]
	switch c.op {
	case specs.OpNotEqual:
		return v != c.a
	case specs.OpLessThan:
		return v < c.a
	case specs.OpLessEqual:
		return v <= c.a
	case specs.OpEqualTo:
		return v == c.a
	case specs.OpGreaterEqual:
		return v >= c.a
	case specs.OpGreaterThan:
		return v > c.a
	case specs.OpMaskedEqual:
		return v&c.a == c.b
	}
	return false
}

// want says what a profile asks for one call: the action of the matching rule
// with the most conditions that say something. It fails when two such rules
// disagree.
func (pl *plan) want(nr uint32, args *[6]uint64) (uint32, error) {
	act, best, by := pl.def, -1, rule{}
next:
	for _, r := range pl.rules[nr] {
		n := 0
		for _, c := range r.conds {
			if !c.holds(args) {
				continue next
			}
			if !c.trivial() {
				n++
			}
		}
		if n == best && r.action != act {
			return 0, fmt.Errorf("syscalls[%d]: %s: overlaps with syscalls[%d], which says otherwise, for arguments %#x",
				r.index, r.name, by.index, *args)
		}
		if n > best {
			act, best, by = r.action, n, r
		}
	}
	return act, nil
}

// samples returns argument lists that tell a call's rules apart: around each
// value that a rule compares with, with the upper half clear and set, in every
// combination of arguments that rules look at.
func (pl *plan) samples(nr uint32) [][6]uint64 {
	var vals [6][]uint64
	for _, r := range pl.rules[nr] {
		for _, c := range r.conds {
			v := c.a
			if c.op == specs.OpMaskedEqual {
				v = c.b
				// A value off by each bit of the mask would be thorough;
				// the lowest and the highest are enough to see a lost mask.
				vals[c.arg] = append(vals[c.arg], c.a, c.b|^c.a, c.b^(c.a&-c.a))
			}
			vals[c.arg] = append(vals[c.arg], v, v-1, v+1, v^1<<32, v|0xffffffff<<32)
		}
	}
	out := [][6]uint64{{}}
	for i, vs := range vals {
		sort.Slice(vs, func(a, b int) bool { return vs[a] < vs[b] })
		var grown [][6]uint64
		for _, base := range out {
			for j, v := range vs {
				if j > 0 && v == vs[j-1] {
					continue
				}
				base[i] = v
				grown = append(grown, base)
			}
		}
		if len(vs) > 0 {
			out = grown
		}
	}
	return out
}
