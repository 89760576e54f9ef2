package guard

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// evaluate runs a filter on a call, and counts its steps; see
// Documentation/networking/filter.rst.
func evaluate(t *testing.T, program string, nr, arch uint32, args [6]uint32) (answer uint32, steps int) {
	t.Helper()
	var a uint32
	for at := 0; ; steps++ {
		in := []byte(program[8*at : 8*at+8]) // forward only, and never past the end
		op, jt, jf, k := binary.NativeEndian.Uint16(in), int(in[2]), int(in[3]), binary.NativeEndian.Uint32(in[4:])
		take := false
		switch op {
		case unix.BPF_RET | unix.BPF_K:
			return k, steps + 1
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			switch {
			case k == 0:
				a = nr
			case k == 4:
				a = arch
			case k >= 16 && k%8 == 0 && k < 64:
				a = args[(k-16)/8]
			default:
				t.Fatalf("loads %d", k)
			}
			at++
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			take = a == k
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			take = a >= k
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			take = a&k != 0
		default:
			t.Fatalf("instruction %#x", op)
		}
		if take {
			at += jt + 1
		} else {
			at += jf + 1
		}
	}
}

// TestFilter holds the assembled programs to the table of rules, for every number
// of a call.
func TestFilter(t *testing.T) {
	const allow, kill, notify = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_KILL_PROCESS, unix.SECCOMP_RET_USER_NOTIF
	errno := func(e uint32) uint32 { return unix.SECCOMP_RET_ERRNO | e }
	all := [6]uint32{^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0)}
	nth := func(n int, v uint32) (a [6]uint32) { a[n] = v; return a }
	for _, paths := range []bool{false, true} {
		for _, connect := range []bool{false, true} {
			program := filter(paths, connect, false)
			if program != filter(paths, connect, false) || len(program)%8 != 0 {
				t.Fatal("not a program")
			}
			most := 0
			for nr := uint32(0); nr < 1024; nr++ {
				// What it says to the call with every argument 0, with all bits set, and
				// with what only the one argument decides.
				type want struct {
					args   [6]uint32
					answer uint32
				}
				wants := []want{{[6]uint32{}, allow}, {all, allow}}
				at := slices.IndexFunc(slices.Concat(native, common), func(r rule) bool { return uint32(r.nr) == nr })
				switch {
				case connect && nr == unix.SYS_CONNECT:
					wants = []want{{[6]uint32{}, notify}, {all, notify}}
				case paths && at >= 0:
					switch slices.Concat(native, common)[at].answer {
					case hold:
						wants = []want{{[6]uint32{}, notify}, {all, notify}}
					case holdW1:
						wants = []want{{[6]uint32{}, allow}, {all, allow}, {nth(1, ^uint32(unix.O_PATH)), notify}, {nth(1, unix.O_CREAT), notify}, {nth(2, unix.O_CREAT), allow}, {nth(1, unix.O_CLOEXEC), allow}}
					case holdW2:
						wants = []want{{[6]uint32{}, allow}, {all, allow}, {nth(2, ^uint32(unix.O_PATH)), notify}, {nth(2, unix.O_RDWR), notify}, {nth(1, unix.O_RDWR), allow}, {nth(2, unix.O_PATH), allow}}
					case noSys:
						wants = []want{{[6]uint32{}, errno(uint32(unix.ENOSYS))}, {all, errno(uint32(unix.ENOSYS))}}
					case noLSM:
						wants = []want{{[6]uint32{}, errno(uint32(unix.EOPNOTSUPP))}, {all, errno(uint32(unix.EOPNOTSUPP))}}
					case noTrees:
						wants = []want{{[6]uint32{}, allow}, {all, allow}, {nth(1, unix.TCGETS), allow}, {nth(1, unix.FICLONE), allow}, {nth(0, sys.Trees[0]), allow}}
						for _, request := range slices.Concat(sys.Trees[:], sys.Attributes[:]) {
							wants = append(wants, want{nth(1, request), errno(uint32(unix.ENOTTY))})
						}
					case holdNS:
						wants = []want{{[6]uint32{}, allow}, {all, notify}, {nth(0, unix.CLONE_NEWUSER), notify}, {nth(0, unix.CLONE_FS), allow}}
					}
				}
				for _, w := range wants {
					got, steps := evaluate(t, program, nr, auditArch, w.args)
					if got != w.answer {
						t.Errorf("paths %v, connect %v: call %d%v: %#x, want %#x", paths, connect, nr, w.args, got, w.answer)
					}
					most = max(most, steps)
				}
				if got, _ := evaluate(t, program, nr|0x40000000, auditArch, all); got != kill {
					t.Errorf("call %d of x32: %#x", nr, got)
				}
				if got, _ := evaluate(t, program, nr, auditArch^1, all); got != kill {
					t.Errorf("call %d of another architecture: %#x", nr, got)
				}
			}
			if most > 36 {
				t.Errorf("paths %v, connect %v: up to %d instructions", paths, connect, most)
			}
		}
	}
}

// TestRefused: of what is held, that which could make names unknown to this package is
// refused, and each call once.
func TestRefused(t *testing.T) {
	calls := map[uint32]string{}
	for _, c := range forbidden {
		if other := calls[c.nr]; other != "" {
			t.Errorf("%s and %s are call %d", other, c.name, c.nr)
		}
		calls[c.nr] = c.name
	}
	for _, nr := range []uint32{unix.SYS_CLONE, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_OPEN_TREE, sysOpenTreeAttr,
		unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_FSMOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_BY_HANDLE_AT} {
		held := false
		for _, r := range common {
			held = held || uint32(r.nr) == nr && (r.answer == hold || r.answer == holdNS)
		}
		if calls[nr] == "" || !held {
			t.Errorf("call %d: held %v, refused as %q", nr, held, calls[nr])
		}
	}
}

// TestFilterLooks: to explain, what looks is held back as well, and what is neither is
// not.
func TestFilterLooks(t *testing.T) {
	program := filter(true, true, true)
	for _, r := range slices.Concat(looks, []rule{{unix.SYS_OPENAT, hold}, {unix.SYS_CONNECT, hold}, {unix.SYS_MKDIRAT, hold}}) {
		if got, _ := evaluate(t, program, uint32(r.nr), auditArch, [6]uint32{}); got != unix.SECCOMP_RET_USER_NOTIF {
			t.Errorf("call %d: %#x", r.nr, got)
		}
		if got, _ := evaluate(t, filter(true, false, false), uint32(r.nr), auditArch, [6]uint32{}); r.nr != unix.SYS_MKDIRAT && got != unix.SECCOMP_RET_ALLOW {
			t.Errorf("call %d without: %#x", r.nr, got)
		}
	}
	for _, nr := range []uint32{unix.SYS_READ, unix.SYS_WRITE, unix.SYS_MMAP, unix.SYS_FSTAT, unix.SYS_CLOSE} {
		if got, _ := evaluate(t, program, nr, auditArch, [6]uint32{}); got != unix.SECCOMP_RET_ALLOW {
			t.Errorf("call %d: %#x", nr, got)
		}
	}
}
