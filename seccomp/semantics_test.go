package seccomp

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/seccomp/internal/bpf"
)

var update = flag.Bool("update", false, "rewrite golden files")

// archs are the architectures that programs are compiled for. Tests read the
// programs from their files: a binary embeds those of its own only.
var archs = [...]struct {
	name  string
	audit uint32
}{{"amd64", bpf.ArchAMD64}, {"arm64", bpf.ArchARM64}}

func load(t testing.TB, profile, arch string) []bpf.Inst {
	t.Helper()
	b, err := os.ReadFile("programs/" + profile + "." + arch + ".bpf")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := bpf.Decode(b)
	if err != nil {
		t.Fatalf("%s for %s: %v", profile, arch, err)
	}
	return prog
}

// calls reads every call's number on an architecture.
func calls(t testing.TB, arch string) map[string]uint32 {
	t.Helper()
	b, err := os.ReadFile("testdata/calls.tsv")
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]uint32{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		col := f[1]
		if arch == "arm64" {
			col = f[2]
		}
		if n, err := strconv.ParseUint(col, 10, 32); err == nil {
			m[f[0]] = uint32(n)
		}
	}
	return m
}

const (
	allowed = bpf.Allow
	eperm   = bpf.Errno | 1
	enosys  = bpf.Errno | 38
	enotty  = bpf.Errno | 25
	enomem  = bpf.Errno | 12
	einval  = bpf.Errno | 22

	eprotonosupport = bpf.Errno | 93
	eafnosupport    = bpf.Errno | 97
	eopnotsupp      = bpf.Errno | 95
	enoprotoopt     = bpf.Errno | 92

	hi = 1 << 63 // in the half of a register that the kernel ignores for an int
)

// perProfile is an outcome in strict, production and default.
type perProfile [3]uint32

func same(a uint32) perProfile { return perProfile{a, a, a} }

var all = struct{ allow, deny, nosys, noTTY perProfile }{same(allowed), same(eperm), same(enosys), same(enotty)}

type args = [6]uint64

// TestDecisions has each denied call with a permitted neighbour.
func TestDecisions(t *testing.T) {
	const (
		cloneThread = 0x3d0f00 // what pthread_create(3) passes
		cloneVfork  = 0x4111   // CLONE_VM | CLONE_VFORK | SIGCHLD
		cloexec     = 0x80000 | 0x800
	)
	tests := []struct {
		call string
		args args
		want perProfile
	}{
		// P09, P10: namespaces.
		{"clone", args{17}, all.allow}, // SIGCHLD: fork
		{"clone", args{cloneThread}, all.allow},
		{"clone", args{cloneVfork}, all.allow},
		{"clone", args{0x400 | 17}, perProfile{eperm, eperm, allowed}},    // CLONE_FILES
		{"clone", args{hi | 0x800700}, perProfile{eperm, eperm, allowed}}, // as leak sanitizers call it
		{"clone", args{0x80 | 17}, all.allow},                             // CLONE_NEWTIME is no flag of clone(2)
		{"clone", args{17 | 0x20000}, all.deny},
		{"clone", args{17 | 0x2000000}, all.deny},
		{"clone", args{17 | 0x4000000}, all.deny},
		{"clone", args{17 | 0x8000000}, all.deny},
		{"clone", args{17 | 0x10000000}, all.deny},
		{"clone", args{17 | 0x20000000}, all.deny},
		{"clone", args{17 | 0x40000000}, all.deny},
		{"clone", args{hi | 17 | 0x10000000}, all.deny},
		{"clone", args{cloneThread | 0x10000000}, all.deny},
		{"clone", args{^uint64(0)}, all.deny},
		{"clone3", args{}, all.nosys},
		{"fork", args{}, all.allow},
		{"vfork", args{}, all.allow},
		{"unshare", args{0x10000000}, all.deny},
		{"unshare", args{0x200}, all.deny}, // CLONE_FS needs no privilege, but no tool chain either
		{"setns", args{3}, all.deny},
		{"chroot", args{}, all.deny},

		// K03, T01, T02: terminal ioctls, compared on 32 bits.
		{"ioctl", args{0, 0x5412}, all.deny},
		{"ioctl", args{0, 0x541c}, all.deny},
		{"ioctl", args{0, 0x541d}, all.deny},
		{"ioctl", args{0, 0x5423}, all.deny},
		{"ioctl", args{0, 0x100005412}, all.deny},
		{"ioctl", args{0, 0xffffffff00005412}, all.deny},
		{"ioctl", args{0, hi | 0x541c}, all.deny},
		{"ioctl", args{0, 0x5413}, all.allow}, // TIOCGWINSZ
		{"ioctl", args{0, 0x5401}, all.allow}, // TCGETS
		{"ioctl", args{0, 0x541b}, all.allow}, // FIONREAD
		{"ioctl", args{0, 0x541e}, all.allow}, // TIOCGSERIAL
		{"ioctl", args{0, 0xffffffff80045430}, all.allow},
		{"ioctl", args{0x5412, 0x5401, 0x5412}, all.allow},

		// K15: leases.
		{"fcntl", args{3, 1024}, all.deny},
		{"fcntl", args{3, hi | 1024, 1}, all.deny},
		{"fcntl", args{3, 1025}, all.allow},       // F_GETLEASE
		{"fcntl", args{1024, 1, 1024}, all.allow}, // F_GETFD

		// Entries that a file system makes by name: subvolumes, snapshots, reflinks.
		{"ioctl", args{3, 0x50009401}, all.noTTY},
		{"ioctl", args{3, 0x50009417}, all.noTTY},
		{"ioctl", args{3, hi | 0x50009418}, all.noTTY},
		{"ioctl", args{3, 0x5000940e}, all.noTTY},
		{"ioctl", args{3, 0x5000940f}, all.noTTY},
		{"ioctl", args{3, 0x5000943f}, all.noTTY},
		{"ioctl", args{3, 0x4020bc10}, all.noTTY},
		{"ioctl", args{3, 0x4020bc11}, all.noTTY},
		{"ioctl", args{3, 0x40186f04}, all.noTTY},
		{"ioctl", args{3, 0xc0406618}, all.noTTY},
		{"ioctl", args{3, 0x40049409}, all.allow}, // FICLONE
		{"ioctl", args{3, 0xc0189436}, all.allow}, // FIDEDUPERANGE

		// K05: mounts.
		{"mount", args{}, all.deny}, {"umount2", args{}, all.deny}, {"pivot_root", args{}, all.deny},
		{"open_tree", args{}, all.deny}, {"open_tree_attr", args{}, all.deny}, {"move_mount", args{}, all.deny},
		{"fsopen", args{}, all.deny}, {"fsconfig", args{}, all.deny}, {"fsmount", args{}, all.deny},
		{"fspick", args{}, all.deny}, {"mount_setattr", args{}, all.deny},
		{"statmount", args{}, all.nosys}, {"listmount", args{}, all.nosys}, {"listns", args{}, all.nosys},
		{"openat2", args{}, all.allow}, {"statfs", args{}, all.allow},

		// K06: large surfaces.
		{"bpf", args{}, all.deny}, {"perf_event_open", args{}, all.deny}, {"userfaultfd", args{}, all.deny},
		{"io_uring_setup", args{}, all.deny}, {"io_uring_enter", args{}, all.deny}, {"io_uring_register", args{}, all.deny},
		{"keyctl", args{}, all.deny}, {"add_key", args{}, all.deny}, {"request_key", args{}, all.deny},
		{"modify_ldt", args{}, all.deny}, {"fanotify_init", args{}, all.deny},
		{"arch_prctl", args{}, all.allow}, {"inotify_init1", args{}, all.allow}, {"epoll_pwait2", args{}, all.allow},
		{"io_setup", args{}, perProfile{enosys, enosys, allowed}},

		// K07: socket families.
		{"socket", args{1, 1}, all.allow},           // AF_UNIX
		{"socket", args{1, 5 | cloexec}, all.allow}, // SOCK_SEQPACKET
		{"socket", args{hi | 1, 1}, all.allow},      // an int: the kernel sees AF_UNIX as well
		{"socket", args{16, 3, 0}, all.allow},       // NETLINK_ROUTE
		{"socket", args{16, 3 | cloexec, 0}, all.allow},
		{"socket", args{16, 2, 0}, all.allow},
		{"socket", args{16, 3, hi}, all.allow},
		{"socket", args{16, 3, 4}, same(eafnosupport)},  // SOCK_DIAG
		{"socket", args{16, 3, 6}, same(eafnosupport)},  // XFRM
		{"socket", args{16, 3, 12}, same(eafnosupport)}, // NETFILTER
		{"socket", args{16, 3, 15}, same(eafnosupport)}, // KOBJECT_UEVENT
		{"socket", args{16, 3, 16}, same(eafnosupport)}, // GENERIC
		{"socket", args{38, 5}, same(eafnosupport)},     // AF_ALG
		{"socket", args{1<<32 | 38, 5}, same(eafnosupport)},
		{"socket", args{40, 1}, same(eafnosupport)},    // AF_VSOCK
		{"socket", args{17, 3}, same(eafnosupport)},    // AF_PACKET
		{"socket", args{33, 2, 2}, same(eafnosupport)}, // AF_RXRPC
		{"socket", args{15, 3, 2}, same(eafnosupport)}, // AF_KEY
		{"socket", args{43, 1}, same(eafnosupport)},    // AF_SMC
		{"socket", args{31, 3}, same(eafnosupport)},    // AF_BLUETOOTH
		{"socket", args{44, 3}, same(eafnosupport)},    // AF_XDP
		{"socket", args{30, 1}, same(eafnosupport)},    // AF_TIPC
		{"socket", args{29, 3}, same(eafnosupport)},    // AF_CAN
		{"socket", args{0, 1}, same(eafnosupport)},     // AF_UNSPEC
		{"socket", args{3, 1}, same(eafnosupport)},     // AF_AX25
		{"socket", args{^uint64(0), 1}, same(eafnosupport)},
		{"socketpair", args{1, 1}, all.allow},
		{"socketpair", args{2, 1}, same(eafnosupport)},
		{"socketpair", args{30, 1}, same(eafnosupport)},

		// K08: protocols beside TCP and UDP.
		{"socket", args{2, 1}, all.allow},
		{"socket", args{2, 1 | cloexec, 6}, all.allow},
		{"socket", args{2, 2 | cloexec, 17}, all.allow},
		{"socket", args{10, 1, 0}, all.allow},
		{"socket", args{10, 2 | cloexec, 0}, all.allow},
		{"socket", args{10, hi | 2, hi | 17}, all.allow},
		{"socket", args{2, 1, 262}, same(eprotonosupport)},  // MPTCP
		{"socket", args{10, 1, 262}, same(eprotonosupport)}, //
		{"socket", args{2, 1, 1<<32 | 262}, same(eprotonosupport)},
		{"socket", args{2, 1, 132}, same(eprotonosupport)},  // SCTP
		{"socket", args{2, 1, 256}, same(eprotonosupport)},  // SMC
		{"socket", args{2, 2, 136}, same(eprotonosupport)},  // UDPLITE
		{"socket", args{2, 2, 1}, same(eprotonosupport)},    // ICMP
		{"socket", args{10, 2, 58}, same(eprotonosupport)},  // ICMPv6
		{"socket", args{10, 2, 115}, same(eprotonosupport)}, // L2TP
		{"socket", args{2, 3, 255}, all.deny},               // raw
		{"socket", args{2, 3, 1}, all.deny},
		{"socket", args{2, hi | 3, 6}, all.deny},
		{"socket", args{10, 3 | cloexec, 58}, all.deny},
		{"socket", args{2, 10}, all.deny},     // SOCK_PACKET, an old name of AF_PACKET
		{"socket", args{2, 5, 132}, all.deny}, // SOCK_SEQPACKET
		{"socket", args{2, 6, 33}, all.deny},  // SOCK_DCCP
		{"setsockopt", args{0, 6, 30}, same(enoprotoopt)},
		{"setsockopt", args{0, 1<<32 | 6, 1<<32 | 30}, same(enoprotoopt)},
		{"setsockopt", args{0, 6, 31}, same(enoprotoopt)},
		{"setsockopt", args{0, 6, 1}, all.allow},  // TCP_NODELAY
		{"setsockopt", args{0, 1, 30}, all.allow}, // SO_ACCEPTCONN's number, of another level
		{"setsockopt", args{6, 1, 31}, all.allow},

		// R14: the room for compiled programs, and pages that somebody else set aside.
		{"fcntl", args{3, 37}, same(einval)}, // F_OFD_SETLK
		{"fcntl", args{3, hi | 38}, same(einval)},
		{"fcntl", args{3, 36}, all.allow},                 // F_OFD_GETLK
		{"fcntl", args{3, 6}, all.allow},                  // F_SETLK
		{"setsockopt", args{0, 1, 26}, same(enoprotoopt)}, // SO_ATTACH_FILTER
		{"setsockopt", args{0, 1, 51}, same(enoprotoopt)}, // SO_ATTACH_REUSEPORT_CBPF
		{"setsockopt", args{0, hi | 1, hi | 26}, same(enoprotoopt)},
		{"setsockopt", args{0, 1, 27}, all.allow}, // SO_DETACH_FILTER
		{"setsockopt", args{0, 0, 26}, all.allow}, // of another level
		{"mmap", args{0, 0, 3, 0x22}, all.allow},
		{"mmap", args{0, 0, 3, 0x40022}, same(enomem)},
		{"mmap", args{0, 0, 3, hi | 0x54040022}, same(enomem)}, // MAP_HUGE_2MB
		{"memfd_create", args{0, 1}, all.allow},
		{"memfd_create", args{0, 5}, same(einval)},
		{"memfd_create", args{0, 0xffffffff}, same(einval)}, // how Chromium asks whether flags are looked at
		{"shmget", args{0, 4096, 0o1600}, all.allow},
		{"shmget", args{0, 4096, 0o5600}, same(enomem)},
		{"sendto", args{0, 0, 0, 0x4000}, all.allow}, // MSG_NOSIGNAL
		{"sendto", args{0, 0, 0, 0x20004000}, same(eopnotsupp)},
		{"sendto", args{0, 0, 0, 1<<32 | 0x20000000}, same(eopnotsupp)},
		{"sendto", args{0, 0, 0x20000000}, all.allow},
		{"sendmsg", args{0, 0, 0x4000, 0x20000000}, all.allow},
		{"sendmsg", args{0, 0, 0x20000000}, same(eopnotsupp)},
		{"sendmmsg", args{0, 0, 0x20000000, 0}, all.allow},
		{"sendmmsg", args{0, 0, 0, 0x20000000}, same(eopnotsupp)},

		// K09: the machine's affairs.
		{"kexec_load", args{}, all.deny}, {"kexec_file_load", args{}, all.deny}, {"init_module", args{}, all.deny},
		{"finit_module", args{}, all.deny}, {"delete_module", args{}, all.deny}, {"reboot", args{}, all.deny},
		{"swapon", args{}, all.deny}, {"swapoff", args{}, all.deny}, {"acct", args{}, all.deny},
		{"quotactl", args{}, all.deny}, {"quotactl_fd", args{}, all.deny}, {"syslog", args{}, all.deny},
		{"iopl", args{}, all.deny}, {"ioperm", args{}, all.deny}, {"sethostname", args{}, all.deny},
		{"vhangup", args{}, all.deny}, {"lookup_dcookie", args{}, all.deny}, {"nfsservctl", args{}, all.deny},
		{"settimeofday", args{}, all.deny}, {"clock_settime", args{}, all.deny}, {"adjtimex", args{}, all.deny},
		{"clock_adjtime", args{}, all.deny}, {"clock_gettime", args{}, all.allow}, {"uname", args{}, all.allow},

		// K13 and other processes.
		{"ptrace", args{}, perProfile{eperm, eperm, allowed}},
		{"process_vm_readv", args{}, perProfile{eperm, eperm, allowed}},
		{"process_vm_writev", args{}, perProfile{eperm, eperm, allowed}},
		{"pidfd_getfd", args{}, perProfile{eperm, eperm, allowed}},
		{"process_madvise", args{}, all.deny}, {"kcmp", args{}, all.deny},
		{"pidfd_open", args{}, all.allow}, {"pidfd_send_signal", args{}, all.allow}, {"process_mrelease", args{}, all.allow},

		// F15: set-id bits. R11: the limits of another process.
		{"chmod", args{0, 0o755}, all.allow}, {"chmod", args{0, 0o4755}, all.deny}, {"chmod", args{0, 1<<32 | 0o6755}, all.deny},
		{"chmod", args{0, 0o2775}, perProfile{eperm, eperm, allowed}}, {"chmod", args{0, 0o1777}, all.allow},
		{"fchmod", args{3, 0o755}, all.allow}, {"fchmod", args{3, 0o4755}, all.deny},
		{"fchmodat", args{0, 0, 0o644}, all.allow}, {"fchmodat", args{0, 0, 0o4644}, all.deny},
		{"fchmodat2", args{0, 0, 0o644}, all.allow}, {"fchmodat2", args{0, 0, 0o4644}, all.deny},
		{"prlimit64", args{0}, all.allow}, {"prlimit64", args{1}, all.deny}, {"prlimit64", args{1 << 32}, all.allow},

		// P18: scheduling.
		{"sched_setscheduler", args{0, 0}, all.allow}, {"sched_setscheduler", args{0, 3}, all.allow},
		{"sched_setscheduler", args{0, 5}, all.allow}, {"sched_setscheduler", args{0, 0x40000003}, all.allow},
		{"sched_setscheduler", args{0, 1}, all.deny}, {"sched_setscheduler", args{0, 2}, all.deny},
		{"sched_setscheduler", args{0, 6}, all.deny}, {"sched_setscheduler", args{0, 7}, all.deny},
		{"sched_setscheduler", args{0, 0x40000001}, all.deny}, {"sched_setscheduler", args{0, 1<<32 | 1}, all.deny},
		{"sched_setattr", args{}, all.deny}, {"sched_setaffinity", args{}, all.allow},

		// Personalities.
		{"personality", args{0}, all.allow}, {"personality", args{0xffffffff}, all.allow},
		{"personality", args{^uint64(0)}, all.allow}, {"personality", args{1 << 32}, all.allow},
		{"personality", args{8}, perProfile{allowed, eperm, allowed}},
		{"personality", args{0x20000}, perProfile{allowed, eperm, allowed}},
		{"personality", args{0x20008}, perProfile{allowed, eperm, allowed}},
		{"personality", args{0x40000}, all.deny},  // ADDR_NO_RANDOMIZE
		{"personality", args{0x400000}, all.deny}, // READ_IMPLIES_EXEC
		{"personality", args{0x100000}, all.deny}, // MMAP_PAGE_ZERO
		{"personality", args{1<<32 | 0x40000}, all.deny},

		// Files by handle, and what duplicates older calls.
		{"name_to_handle_at", args{}, all.deny}, {"open_by_handle_at", args{}, all.deny},
		{"file_getattr", args{}, all.nosys}, {"file_setattr", args{}, all.nosys}, {"memfd_secret", args{}, all.nosys},
		{"memfd_create", args{}, all.allow}, {"execveat", args{}, all.allow}, {"mseal", args{}, all.allow},
		{"landlock_create_ruleset", args{}, all.allow}, {"landlock_restrict_self", args{}, all.allow},
		{"seccomp", args{}, all.allow}, {"rseq", args{}, all.allow}, {"membarrier", args{}, all.allow},
		{"statx", args{}, all.allow}, {"faccessat2", args{}, all.allow}, {"close_range", args{}, all.allow},
		{"futex_waitv", args{}, all.allow}, {"futex_wait", args{}, all.allow}, {"map_shadow_stack", args{}, all.allow},
		{"cachestat", args{}, all.allow}, {"fchmodat2", args{}, all.allow}, {"getxattrat", args{}, all.allow},
		{"set_mempolicy_home_node", args{}, perProfile{eperm, eperm, allowed}},
		{"mbind", args{}, perProfile{eperm, eperm, allowed}},
		{"vmsplice", args{}, perProfile{allowed, enosys, allowed}},
		{"mq_open", args{}, perProfile{allowed, enosys, allowed}},
	}
	for _, arch := range archs {
		nrs := calls(t, arch.name)
		for i, profile := range names {
			prog := load(t, profile, arch.name)
			for _, tt := range tests {
				nr, ok := nrs[tt.call]
				if !ok {
					if arch.name == "amd64" {
						t.Errorf("%s: no such call", tt.call)
					}
					continue
				}
				got, _ := bpf.Run(prog, &bpf.Data{NR: nr, Arch: arch.audit, Args: tt.args})
				if got != tt.want[i] {
					t.Errorf("%s %s: %s%#x = %s, want %s", profile, arch.name, tt.call, tt.args, bpf.String(got), bpf.String(tt.want[i]))
				}
			}
		}
	}
}

// TestForeign: K01, K02. Every number of a foreign ABI kills, and so does the
// other architecture.
func TestForeign(t *testing.T) {
	for _, arch := range archs {
		for _, profile := range names {
			prog := load(t, profile, arch.name)
			run := func(nr, audit uint32) uint32 {
				got, _ := bpf.Run(prog, &bpf.Data{NR: nr, Arch: audit, Args: args{1, 1, 1}})
				return got
			}
			for nr := range uint32(1024) {
				for _, audit := range []uint32{bpf.Arch386, bpf.ArchARM, 0, bpf.ArchAMD64 ^ bpf.ArchARM64 ^ arch.audit} {
					if got := run(nr, audit); got != bpf.KillProcess {
						t.Fatalf("%s %s: call %d of architecture %#x = %s", profile, arch.name, nr, audit, bpf.String(got))
					}
				}
				want := uint32(enosys)
				if arch.name == "amd64" {
					want = bpf.KillProcess
				}
				if got := run(nr|bpf.X32, arch.audit); got != want {
					t.Fatalf("%s %s: call %#x = %s, want %s", profile, arch.name, nr|bpf.X32, bpf.String(got), bpf.String(want))
				}
			}
			// A tracer writes -1 to have a call skipped: no reason to kill.
			if got := run(^uint32(0), arch.audit); got != enosys {
				t.Errorf("%s %s: call -1 = %s", profile, arch.name, bpf.String(got))
			}
			for _, nr := range []uint32{512, 547, 600, 1 << 20, bpf.X32 - 1} {
				if got := run(nr, arch.audit); got != enosys {
					t.Errorf("%s %s: call %#x = %s", profile, arch.name, nr, bpf.String(got))
				}
			}
		}
	}
}

// byArgument reports whether a program looks at a call's arguments.
func byArgument(prog []bpf.Inst, nr, audit uint32) bool {
	var a uint32
	d := bpf.Data{NR: nr, Arch: audit}
	for pc := 0; ; pc++ {
		switch in := prog[pc]; in.Op {
		case bpf.Load:
			if in.K >= 8 {
				return true
			}
			a, _ = d.Word(in.K)
		case bpf.And:
			a &= in.K
		case bpf.Jump:
			pc += int(in.K)
		case bpf.Ret:
			return false
		default:
			if in.Holds(a) {
				pc += int(in.JT)
			} else {
				pc += int(in.JF)
			}
		}
	}
}

// TestSummary evaluates every number and compares the outcome by name with a
// golden file, so that no change of a filter goes unseen. A number without a
// name must be unknown to the filter as well.
//
// A call in the list of the plainly allowed is one that the kernel's cache
// (Linux 5.11) lets through without running the filter: it evaluates a program
// as long as that looks at the number and the architecture only.
func TestSummary(t *testing.T) {
	var out bytes.Buffer
	for _, profile := range names {
		for _, arch := range archs {
			prog := load(t, profile, arch.name)
			byNumber := map[uint32]string{}
			for name, nr := range calls(t, arch.name) {
				byNumber[nr] = name
			}
			lists := map[string][]string{}
			longest := 0
			for nr := range uint32(601) {
				got, steps := bpf.Run(prog, &bpf.Data{NR: nr, Arch: arch.audit})
				longest = max(longest, steps)
				name, ok := byNumber[nr]
				if !ok {
					if got != enosys {
						t.Errorf("%s %s: nameless call %d = %s", profile, arch.name, nr, bpf.String(got))
					}
					continue
				}
				key := bpf.String(got)
				if byArgument(prog, nr, arch.audit) {
					key = "by argument"
				}
				lists[key] = append(lists[key], name)
			}
			fmt.Fprintf(&out, "%s %s: %d instructions, %d at most for a call with zero arguments\n", profile, arch.name, len(prog), longest)
			for _, key := range []string{"ALLOW", "by argument", "ERRNO(1)", "ERRNO(38)"} {
				slices.Sort(lists[key])
				fmt.Fprintf(&out, "  %s: %s\n", key, strings.Join(lists[key], " "))
				delete(lists, key)
			}
			if len(lists) > 0 {
				t.Errorf("%s %s: unexpected outcomes %v", profile, arch.name, lists)
			}
		}
	}
	if *update {
		if err := os.WriteFile("testdata/summary.txt", out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/summary.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("testdata/summary.txt differs; look at the change, then run go test -run TestSummary -update\n%s", out.Bytes())
	}
}

// TestBuiltin: what a binary hands out is its own architecture's file.
func TestBuiltin(t *testing.T) {
	for _, name := range Names() {
		p, err := Builtin(name)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := bpf.Decode([]byte(p.Filter))
		if err != nil {
			t.Fatal(err)
		}
		if p.Len() != len(prog) || p.Len() > 290 {
			t.Errorf("%s: %d instructions, want %d and at most 290", name, p.Len(), len(prog))
		}
		if p.Flags != 0 {
			t.Errorf("%s: flags %#x", name, p.Flags)
		}
		if n := testing.AllocsPerRun(10, func() { Builtin(name) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if _, err := Spec(name); err != nil {
			t.Errorf("Spec(%s): %v", name, err)
		}
	}
	for _, name := range []string{"", "Strict", "strict.amd64", "../strict"} {
		if p, err := Builtin(name); err == nil || p.Filter != "" {
			t.Errorf("Builtin(%q) = %d bytes, %v", name, len(p.Filter), err)
		}
		if _, err := Spec(name); err == nil {
			t.Errorf("Spec(%q) succeeded", name)
		}
	}
}
