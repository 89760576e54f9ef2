//go:build linux && cgo

package compile

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/seccomp"
	"github.com/sbxrun/sbxrun/seccomp/internal/bpf"
)

// TestBuiltin: the embedded programs are what their profiles compile to.
func TestBuiltin(t *testing.T) {
	for _, name := range seccomp.Names() {
		p, err := seccomp.Spec(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, arch := range []string{"amd64", "arm64"} {
			got, err := Compile(p, arch)
			if err != nil {
				t.Fatalf("%s for %s: %v", name, arch, err)
			}
			want, err := os.ReadFile("../programs/" + name + "." + arch + ".bpf")
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s for %s differs from a fresh compile by libseccomp %s; run go generate ./seccomp", name, arch, Version())
			}
		}
	}
}

func errno(n uint) *uint { return &n }

func one(r ...specs.LinuxSyscall) *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: errno(38), Syscalls: r}
}

func arg(i uint, op specs.LinuxSeccompOperator, a, b uint64) []specs.LinuxSeccompArg {
	return []specs.LinuxSeccompArg{{Index: i, Value: a, ValueTwo: b, Op: op}}
}

func rules(names string, act specs.LinuxSeccompAction, args []specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: strings.Fields(names), Action: act, Args: args}
}

func TestErrors(t *testing.T) {
	with := func(change func(*specs.LinuxSeccomp)) *specs.LinuxSeccomp {
		p := one(rules("read", specs.ActAllow, nil))
		change(p)
		return p
	}
	tests := []struct {
		name string
		p    *specs.LinuxSeccomp
		want string
	}{
		{"typo", one(rules("read", specs.ActAllow, nil), rules("opennat", specs.ActAllow, nil)), `syscalls[1]: unknown system call "opennat"; did you mean "openat"`},
		{"newest typo", one(rules("msael", specs.ActAllow, nil)), `did you mean "mseal"`},
		{"nonsense", one(rules("frobnicate_the_kernel", specs.ActAllow, nil)), `unknown system call "frobnicate_the_kernel"`},
		{"empty name", one(specs.LinuxSyscall{Names: []string{""}, Action: specs.ActAllow}), `unknown system call ""`},
		{"NUL", one(specs.LinuxSyscall{Names: []string{"read\x00x"}, Action: specs.ActAllow}), `unknown system call "read\x00x"`},
		{"no names", one(rules("", specs.ActAllow, nil)), "syscalls[0]: no names"},
		{"no action", one(rules("read", "", nil)), "syscalls[0]: no action"},
		{"action", one(rules("read", "SCMP_ACT_MAYBE", nil)), `syscalls[0]: unknown action "SCMP_ACT_MAYBE"`},
		{"notify", one(rules("read", specs.ActNotify, nil)), "syscalls[0]: SCMP_ACT_NOTIFY"},
		{"default action", with(func(p *specs.LinuxSeccomp) { p.DefaultAction = "ALLOW" }), `defaultAction: unknown action "ALLOW"`},
		{"errno", with(func(p *specs.LinuxSeccomp) { p.DefaultErrnoRet = errno(4096) }), "errnoRet 4096"},
		{"errno on allow", with(func(p *specs.LinuxSeccomp) { p.Syscalls[0].ErrnoRet = errno(1) }), "syscalls[0]: errnoRet makes no sense"},
		{"listener", with(func(p *specs.LinuxSeccomp) { p.ListenerPath = "/x" }), "listenerPath"},
		{"x32", with(func(p *specs.LinuxSeccomp) { p.Architectures = []specs.Arch{specs.ArchX86_64, specs.ArchX32} }), "architectures[1]: SCMP_ARCH_X32 is a foreign ABI"},
		{"not ours", with(func(p *specs.LinuxSeccomp) { p.Architectures = []specs.Arch{specs.ArchAARCH64} }), "SCMP_ARCH_X86_64 is missing"},
		{"index", one(rules("read", specs.ActAllow, arg(6, specs.OpEqualTo, 0, 0))), "syscalls[0]: args[0]: index 6"},
		{"op", one(rules("read", specs.ActAllow, arg(0, "EQ", 0, 0))), `unknown op "EQ"`},
		{"two values", one(rules("read", specs.ActAllow, arg(0, specs.OpEqualTo, 0, 1))), "valueTwo makes no sense"},
		{"never", one(rules("read", specs.ActAllow, arg(0, specs.OpMaskedEqual, 1, 2))), "never matches"},
		{"mask 0", one(rules("read", specs.ActAllow, arg(0, specs.OpMaskedEqual, 0, 0))), "always matches"},
		{"twice", one(rules("read", specs.ActAllow, append(arg(0, specs.OpGreaterThan, 1, 0), arg(0, specs.OpLessThan, 9, 0)...))), "compared twice"},
		// libseccomp would drop the second rule and allow TIOCSTI.
		{"swallowed", one(rules("ioctl", specs.ActAllow, nil), rules("ioctl", specs.ActErrno, arg(1, specs.OpMaskedEqual, 0xffffffff, 0x5412))), "syscalls[1]: ioctl: syscalls[0] covers the same call"},
		{"overlap", one(rules("ioctl", specs.ActAllow, arg(0, specs.OpEqualTo, 3, 0)), rules("ioctl", specs.ActKillProcess, arg(1, specs.OpEqualTo, 4, 0))), "overlaps with"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := Compile(tt.p, "amd64")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %d bytes, %v; want an error with %q", len(b), err, tt.want)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("error is not one line: %q", err)
			}
		})
	}
	if _, err := Compile(one(rules("read", specs.ActAllow, nil)), "riscv64"); err == nil {
		t.Error("riscv64 succeeded")
	}
}

// TestNeighbours has profiles close to those of TestErrors that are good.
func TestNeighbours(t *testing.T) {
	for name, p := range map[string]*specs.LinuxSeccomp{
		"both architectures": {DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64}},
		"elsewhere only":     one(rules("open arch_prctl uretprobe riscv_flush_icache socketcall", specs.ActAllow, nil)),
		"newest":             one(rules("mseal file_setattr", specs.ActAllow, nil)),
		"twice the same":     one(rules("read read", specs.ActAllow, nil), rules("read", specs.ActAllow, nil)),
		"as the default":     one(rules("clone3", specs.ActErrno, nil)),
		"every action": one(rules("read", specs.ActKill, nil), rules("write", specs.ActKillProcess, nil), rules("close", specs.ActKillThread, nil),
			rules("dup", specs.ActTrap, nil), rules("fstat", specs.ActTrace, nil), rules("lseek", specs.ActLog, nil)),
		"ranges": one(rules("socket", specs.ActAllow, arg(0, specs.OpLessThan, 12, 0)), rules("socket", specs.ActAllow, arg(0, specs.OpGreaterThan, 40, 0))),
		"else":   one(rules("ioctl", specs.ActErrno, arg(1, specs.OpMaskedEqual, 0xffffffff, 0x5412)), rules("ioctl", specs.ActAllow, arg(1, specs.OpGreaterEqual, 0, 0))),
	} {
		for _, arch := range []string{"amd64", "arm64"} {
			if _, err := Compile(p, arch); err != nil {
				t.Errorf("%s for %s: %v", name, arch, err)
			}
		}
	}
}

// TestLayout compares random programs of libseccomp's with their new layout on
// random data: the rules' own values are what Compile checks itself.
func TestLayout(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	ops := []specs.LinuxSeccompOperator{specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual}
	var names []string
	for _, name := range Calls() {
		if _, ok := Number(name, "amd64"); ok {
			names = append(names, name)
		}
	}
	value := func() uint64 { return uint64(rnd.IntN(4)) << (32 * rnd.IntN(2)) }
	for range 60 {
		p := one()
		// libseccomp 2.5.4 can loop for ever over overlapping rules with
		// several arguments, so a call has one rule of any form, or several
		// that compare one argument with different values.
		for _, i := range rnd.Perm(len(names))[:1+rnd.IntN(200)] {
			act := func() specs.LinuxSeccompAction {
				return []specs.LinuxSeccompAction{specs.ActAllow, specs.ActLog, specs.ActTrap}[rnd.IntN(3)]
			}
			r := rules(names[i], act(), nil)
			switch rnd.IntN(4) {
			case 0:
				for j := range uint(1 + rnd.IntN(3)) {
					op, a, b := ops[rnd.IntN(len(ops))], value(), uint64(0)
					if op == specs.OpMaskedEqual {
						a |= 1
						b = value() & a
					}
					r.Args = append(r.Args, arg(j, op, a, b)...)
				}
			case 1:
				for v := range uint64(1 + rnd.IntN(4)) {
					p.Syscalls = append(p.Syscalls, rules(names[i], act(), arg(2, specs.OpEqualTo, v<<(16*v), 0)))
				}
				continue
			}
			p.Syscalls = append(p.Syscalls, r)
		}
		pl, err := newPlan(p, "amd64", func(name string) (uint32, bool, error) {
			nr, ok := Number(name, "amd64")
			return nr, !ok, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := export(pl)
		if err != nil {
			t.Fatal(err)
		}
		s, err := spans(raw, bpf.ArchAMD64, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		prog, err := bpf.Decode(bpf.Encode(layout(s, bpf.ArchAMD64)))
		if err != nil {
			t.Fatal(err)
		}
		for nr := range uint32(maxNR) {
			for range 8 {
				d := bpf.Data{NR: nr, Arch: bpf.ArchAMD64, Args: [6]uint64{value() + value(), value() + value(), value()}}
				got, _ := bpf.Run(prog, &d)
				want, _ := bpf.Run(raw, &d)
				if got != want {
					t.Fatalf("%+v: %s, want %s", d, bpf.String(got), bpf.String(want))
				}
			}
		}
	}
}

// TestLong: a program in which decisions are further apart than a jump reaches.
func TestLong(t *testing.T) {
	p := one()
	for i, name := range Calls() {
		r := specs.LinuxSyscall{Names: []string{name}, Action: specs.ActErrno, ErrnoRet: errno(uint(100 + i%7))}
		r.Args = arg(uint(i%6), specs.OpEqualTo, uint64(i)<<20, 0)
		p.Syscalls = append(p.Syscalls, r)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		b, err := Compile(p, arch)
		if err != nil {
			t.Fatal(err)
		}
		if len(b)/bpf.Size < 600 {
			t.Errorf("%d instructions: too short for this test", len(b)/bpf.Size)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	p, err := seccomp.Spec("strict")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Compile(p, "amd64"); err != nil {
			b.Fatal(err)
		}
	}
}
