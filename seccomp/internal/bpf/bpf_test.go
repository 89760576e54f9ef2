package bpf

import (
	"reflect"
	"testing"
)

func TestDecode(t *testing.T) {
	good := []Inst{{Op: Load, K: 4}, {Op: JumpE, JT: 1, K: ArchAMD64}, {Op: Ret, K: KillProcess}, {Op: Load, K: 60}, {Op: And, K: 1}, {Op: Jump}, {Op: Ret, K: Allow}}
	got, err := Decode(Encode(good))
	if err != nil || !reflect.DeepEqual(got, good) {
		t.Errorf("got %v, %v", got, err)
	}
	long := make([]Inst, MaxLen+1)
	for i := range long {
		long[i] = Inst{Op: Ret}
	}
	if _, err := Decode(Encode(long[1:])); err != nil {
		t.Errorf("%d instructions: %v", MaxLen, err)
	}
	for name, prog := range map[string][]Inst{
		"empty":            {},
		"no return":        {{Op: Load}},
		"unknown":          {{Op: 0x28}, {Op: Ret}},
		"unaligned":        {{Op: Load, K: 2}, {Op: Ret}},
		"outside":          {{Op: Load, K: 64}, {Op: Ret}},
		"jump to the end":  {{Op: Jump, K: 1}, {Op: Ret}},
		"jump wraps":       {{Op: Jump, K: ^uint32(0)}, {Op: Ret}},
		"condition beyond": {{Op: JumpE, JT: 1}, {Op: Ret}},
		"else beyond":      {{Op: JumpE, JF: 255}, {Op: Ret}},
		"too long":         long,
	} {
		if _, err := Decode(Encode(prog)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Decode(make([]byte, 7)); err == nil {
		t.Error("7 bytes: accepted")
	}
}

func TestRun(t *testing.T) {
	d := &Data{NR: 7, Arch: 9, IP: 0x1122334455667788, Args: [6]uint64{0x100000002, 0, 0, 0, 0, 0xabcdef0012345678}}
	for _, tt := range []struct {
		off, want uint32
	}{{0, 7}, {4, 9}, {8, 0x55667788}, {12, 0x11223344}, {16, 2}, {20, 1}, {56, 0x12345678}, {60, 0xabcdef00}} {
		for _, c := range []struct {
			in   Inst
			want bool
		}{
			{Inst{Op: JumpE, K: tt.want}, true}, {Inst{Op: JumpE, K: tt.want + 1}, false},
			{Inst{Op: JumpG, K: tt.want - 1}, true}, {Inst{Op: JumpG, K: tt.want}, false},
			{Inst{Op: JumpN, K: tt.want}, true}, {Inst{Op: JumpN, K: tt.want + 1}, false},
			{Inst{Op: JumpS, K: tt.want}, true}, {Inst{Op: JumpS, K: ^tt.want}, false},
		} {
			c.in.JF = 1
			prog := []Inst{{Op: Load, K: tt.off}, c.in, {Op: Ret, K: 1}, {Op: Ret, K: 2}}
			want := uint32(2)
			if c.want {
				want = 1
			}
			if got, steps := Run(prog, d); got != want || steps != 3 {
				t.Errorf("offset %d, %+v: %d after %d steps, want %d", tt.off, c.in, got, steps, want)
			}
		}
	}
}
