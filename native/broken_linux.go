//go:build broken

package native

import (
	"encoding/binary"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// breakLayer takes away the layer that SBXRUN_BREAK names. A build with the tag
// "broken" exists for one purpose: TestBrokenLayers of test/integration shows
// with it that the battery fails when a layer does. The program that ships has
// none of this, which TestShippedIsNotBroken proves.
//
// Where one layer stands behind another, both go: what is to be shown is that
// their loss is noticed.
func (s *starter) breakLayer(cfg *reexec.Config) {
	name := os.Getenv("SBXRUN_BREAK")
	switch name {
	case "", "none":
	case "seccomp":
		drop(cfg.Command, step("seccomp"))
	case "landlock":
		drop(cfg.Command, step("landlock_restrict_self"))
	case "capabilities":
		drop(cfg.Command, capabilities)
	case "no_new_privs":
		// Filters want one of the two.
		drop(cfg.Command, capabilities)
		drop(cfg.Command, about("no_new_privs"))
	case "root":
		// What lies outside the new root is not Landlock's to begin with.
		drop(cfg.Init, step("pivot_root"))
		drop(cfg.Init, about("old root"))
		drop(cfg.Init, step("fchdir"))
		drop(cfg.Command, step("landlock_restrict_self"))
	case "masks":
		masked := map[string]bool{}
		for _, e := range s.low.Tree.Entries {
			if e.Kind == mounts.Mask {
				masked[e.Target] = true
			}
		}
		drop(cfg.Init, func(st sys.Step) bool { return st.Op == "move_mount" && masked[st.Object] })
	case "pid":
		cfg.CloneFlags &^= unix.CLONE_NEWPID
	case "net":
		cfg.CloneFlags &^= unix.CLONE_NEWNET
		drop(cfg.Init, step("loopback"))
	case "ipc":
		cfg.CloneFlags &^= unix.CLONE_NEWIPC
	case "uts":
		cfg.CloneFlags &^= unix.CLONE_NEWUTS
		drop(cfg.Init, step("sethostname")) // it would be the host's
	case "cgroupns":
		drop(cfg.Command, step("unshare"))
	case "rlimits":
		drop(cfg.Command, step("prlimit64"))
	case "limits":
		drop(cfg.Init, func(st sys.Step) bool {
			return st.Object == "/proc/sys/user/max_user_namespaces" && st.Op == "write"
		})
	case "cgroup":
		cfg.Cgroup = 0
		drop(cfg.Command, about("cgroup"))
	case "descriptors":
		list, _ := os.ReadDir("/proc/self/fd")
		for _, e := range list {
			if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
				cfg.Keep = append(cfg.Keep, fd)
			}
		}
		drop(cfg.Command, step("close_range"))
	case "guard":
		// Of a run, whose guard is prepared, and of a session's commands, each
		// of which would get one. The tests' controls have none.
		if s.guard != nil {
			drop(cfg.Command, about("guard"))
		}
		s.protected = nil
	case "egress":
		// The gateway is there, and carries everything anywhere.
		if s.net == nil || s.net.gateway == nil {
			return // the tests have runs without a network, too
		}
		if err := s.net.gateway.Reload(policy.Egress{Mode: policy.EgressProxy,
			Allow: []policy.EgressRule{{Host: "*"}, {Host: "0.0.0.0/0"}, {Host: "::/0"}}}); err != nil {
			panic(err)
		}
	case "kill":
		// PID 1 is told that there is nobody to kill.
		seccompESRCH(cfg.Start, unix.SYS_KILL)
	default:
		panic("no layer " + name)
	}
}

// breaking keeps apart what would otherwise be one step.
func breaking() bool { return os.Getenv("SBXRUN_BREAK") != "" }

// drop makes steps succeed without doing anything.
func drop(p *sys.Program, match func(sys.Step) bool) {
	n := 0
	for i := range p.Len() {
		if match(p.Step(i)) {
			p.InjectFault(i, 0)
			n++
		}
	}
	if n == 0 {
		panic("there is no such step: this layer is enforced by another now")
	}
}

func step(name string) func(sys.Step) bool {
	return func(s sys.Step) bool { return s.Op == name }
}

func about(path string) func(sys.Step) bool {
	return func(s sys.Step) bool { return s.Object == path }
}

func capabilities(s sys.Step) bool {
	return s.Object == "PR_CAPBSET_DROP" || s.Object == "PR_CAP_AMBIENT" || s.Op == "capset"
}

// seccompESRCH answers one system call with ESRCH, and lets all others pass.
func seccompESRCH(p *sys.Program, nr uint32) {
	var f []byte
	for _, i := range []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.ESRCH)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                      // SECCOMP_RET_ALLOW
	} {
		f = binary.NativeEndian.AppendUint16(f, i.Code)
		f = append(f, i.Jt, i.Jf)
		f = binary.NativeEndian.AppendUint32(f, i.K)
	}
	p.Call(0, sys.Step{Op: "seccomp", Object: "broken"}, unix.SYS_SECCOMP, sys.Imm(unix.SECCOMP_SET_MODE_FILTER),
		sys.Imm(0), p.Fprog(string(f)))
}
