package seccomp

import (
	"slices"
	"testing"

	"github.com/sbxrun/sbxrun/seccomp/internal/bpf"
)

// TestJoin holds the joint program to the rule by which the kernel joins the answers
// of two: the stricter, and of two alike that of the filter installed last.
func TestJoin(t *testing.T) {
	decode := func(filter string) []bpf.Inst {
		t.Helper()
		prog, err := bpf.Decode([]byte(filter))
		if err != nil {
			t.Fatal(err)
		}
		return prog
	}
	// One that holds calls back, by number and by argument, and has ENOSYS for some.
	holds := string(bpf.Encode([]bpf.Inst{
		{Op: bpf.Load, K: 0},
		{Op: bpf.JumpE, JT: 3, K: 257}, {Op: bpf.JumpE, JT: 4, K: 1}, {Op: bpf.JumpE, JT: 4, K: 437},
		{Op: bpf.Ret, K: bpf.Allow},
		{Op: bpf.Load, K: 32}, {Op: bpf.JumpS, JF: 1, K: 3},
		{Op: bpf.Ret, K: bpf.Notify}, {Op: bpf.Ret, K: bpf.Errno | 38},
	}))
	strictness := map[uint32]int{bpf.KillProcess: 0, bpf.KillThread: 1, bpf.Trap: 2, bpf.Errno: 3, bpf.Notify: 4, bpf.Trace: 5, bpf.Log: 6, bpf.Allow: 7}
	arguments := []args{{}, {1, 1, 1}, {2, 3, 4, 5}, {0x10000000, 1 << 17, 0x7e020000}, {^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}}
	answers := map[uint32]int{}
	for _, name := range Names() {
		first, err := Builtin(name)
		if err != nil {
			t.Fatal(err)
		}
		others := map[string]string{"holds": holds}
		for _, other := range Names() {
			p, err := Builtin(other)
			if err != nil {
				t.Fatal(err)
			}
			others[other] = p.Filter
		}
		for other, second := range others {
			joint, err := Join(first.Filter, second)
			if err != nil {
				t.Fatal(err)
			}
			a, b, both := decode(first.Filter), decode(second), decode(joint)
			for _, audit := range []uint32{bpf.ArchAMD64, bpf.ArchARM64, bpf.Arch386} {
				for nr := range uint32(1024) {
					for _, arg := range arguments {
						d := &bpf.Data{NR: nr, Arch: audit, Args: arg}
						want, _ := bpf.Run(a, d)
						if w, _ := bpf.Run(b, d); strictness[w&^0xffff] < strictness[want&^0xffff] {
							want = w
						}
						if got, _ := bpf.Run(both, d); got != want {
							t.Fatalf("%s and %s, architecture %#x: call %d %#x = %s, want %s", name, other, audit, nr, arg, bpf.String(got), bpf.String(want))
						}
						answers[want&^0xffff]++
					}
				}
			}
		}
	}
	for _, a := range []uint32{bpf.KillProcess, bpf.Errno, bpf.Notify, bpf.Allow} {
		if answers[a] == 0 {
			t.Errorf("no call was answered by %s: this test shows nothing", bpf.String(a))
		}
	}

	allow := string(bpf.Encode([]bpf.Inst{{Op: bpf.Ret, K: bpf.Allow}}))
	for _, k := range []uint32{bpf.Trap, bpf.Notify, bpf.Trace, bpf.Log} {
		if _, err := Join(string(bpf.Encode([]bpf.Inst{{Op: bpf.Ret, K: k}})), allow); err == nil {
			t.Errorf("a filter that answers %s was joined", bpf.String(k))
		}
	}
	long := make([]byte, (MaxInstructions-1)*InstructionSize)
	if joint, err := Join(allow, string(long)); err != nil || len(joint) != len(allow)+len(long) {
		t.Errorf("%d instructions: %v", len(joint)/InstructionSize, err)
	}
	if _, err := Join(allow+allow, string(long)); err == nil {
		t.Error("joined to more than the kernel takes")
	}
}

// TestJoinAsk: of what the first program refuses, exactly the calls that are asked for are
// notified, each for its own errno, and all else stays as it was.
func TestJoinAsk(t *testing.T) {
	first, err := Builtin("strict")
	if err != nil {
		t.Fatal(err)
	}
	allow := string(bpf.Encode([]bpf.Inst{{Op: bpf.Ret, K: bpf.Allow}}))
	// mount, ptrace and unshare of amd64, and of arm64; socket of both, for another errno.
	ask := []Ask{{Errno: 1, Calls: []uint32{165, 101, 272, 40, 117, 97}}, {Errno: 97, Calls: []uint32{41, 198}}}
	joint, err := Join(first.Filter, allow, ask...)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := bpf.Decode([]byte(first.Filter))
	if err != nil {
		t.Fatal(err)
	}
	both, err := bpf.Decode([]byte(joint))
	if err != nil {
		t.Fatal(err)
	}
	notified := map[uint32]bool{}
	for _, audit := range []uint32{bpf.ArchAMD64, bpf.ArchARM64, bpf.Arch386} {
		for nr := range uint32(1024) {
			for _, arg := range []args{{}, {17}, {1, 1, 1}, {0x10000000, 1 << 17}, {^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}} {
				d := &bpf.Data{NR: nr, Arch: audit, Args: arg}
				want, _ := bpf.Run(alone, d)
				for _, a := range ask {
					if want == bpf.Errno|uint32(a.Errno) && slices.Contains(a.Calls, nr) {
						want = bpf.Notify
						notified[nr] = true
					}
				}
				if got, _ := bpf.Run(both, d); got != want {
					t.Fatalf("architecture %#x: call %d %#x = %s, want %s", audit, nr, arg, bpf.String(got), bpf.String(want))
				}
			}
		}
	}
	if len(notified) < 4 {
		t.Errorf("notified: %v", notified)
	}
}
