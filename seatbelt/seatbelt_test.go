package seatbelt

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// agreed is strict without the layers that macOS has no equal of.
func agreed(t testing.TB) *policy.Policy {
	return resolve(t, "strict", func(r *profiles.Request) {
		r.Degrade = policy.LayerUser | policy.LayerPID | policy.LayerMount | policy.LayerUTS | policy.LayerCgroupNS | policy.LayerSeccomp | policy.LayerCgroup | policy.LayerProtect
	})
}

func TestCheck(t *testing.T) {
	p := resolve(t, "strict", nil)
	var e *driver.UnsupportedError
	if err := (Driver{}).Check(p); !errors.As(err, &e) || !slices.Contains(e.Rules, "layer pid") || !strings.Contains(e.Fix, "--allow-degraded user,pid,mount,uts,cgroupns,seccomp,cgroup.memory") {
		t.Errorf("layers that macOS lacks are not refused: %v", err)
	}
	if err := (Driver{}).Check(agreed(t)); err != nil {
		t.Errorf("refused once that is agreed to: %v", err)
	}
	for name, change := range map[string]func(p *policy.Policy){
		"a bind": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/x", Source: "/y", Type: "bind"})
		},
		"private storage in the workspace": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: workspace + "/t", Type: "tmpfs"})
		},
		"a label":           func(p *policy.Policy) { p.OCI.Process.SelinuxLabel = "x" },
		"a sysctl":          func(p *policy.Policy) { p.OCI.Linux.Sysctl = map[string]string{"a": "b"} },
		"a required layer":  func(p *policy.Policy) { p.Require |= policy.LayerSeccomp },
		"a hook":            func(p *policy.Policy) { p.OCI.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/x"}}} },
		"memory, required":  func(p *policy.Policy) { p.Require |= policy.LayerCgroupMemory; p.Degrade &^= policy.LayerCgroupMemory },
		"an annotation":     func(p *policy.Policy) { p.OCI.Annotations = map[string]string{"a": "b"} },
		"a block io weight": func(p *policy.Policy) { p.OCI.Linux.Resources.BlockIO = &specs.LinuxBlockIO{Weight: new(uint16)} },
	} {
		p := agreed(t)
		change(p)
		if err := (Driver{}).Check(p); !errors.As(err, &e) || len(e.Rules) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	p = agreed(t)
	p.Egress.Mode = policy.EgressProxy
	if err := (Driver{}).Check(p); err != nil {
		t.Errorf("a proxy is refused: %v", err)
	}
}

func TestCoverage(t *testing.T) {
	if missing := (Driver{}).Describe().Claims.Missing(); len(missing) != 0 {
		t.Errorf("says nothing of %q", missing)
	}
}

func TestEnvironment(t *testing.T) {
	p := resolve(t, "strict", func(r *profiles.Request) {
		r.Env = []string{"XDG_CACHE_HOME=/tmp/.cache", "LIST=/tmp:/x", "WS=" + workspace, "TMPX=/tmpx"}
	})
	env := Environment(p, "/s")
	for _, want := range []string{"HOME=/s/Users/u", "XDG_CACHE_HOME=/s/tmp/.cache", "LIST=/tmp:/x", "WS=" + workspace, "TMPX=/tmpx", "TMPDIR=/s/tmp", "SBXRUN_SANDBOX=strict"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is missing in %q", want, env)
		}
	}
	p.Files = append(p.Files, policy.FileRule{Path: "/tmp/shown", Access: policy.All})
	if got := place(p, "/tmp/shown/x", "/s"); got != "/tmp/shown/x" {
		t.Errorf("what is shown of the host in /tmp is taken for private: %s", got)
	}
}

func TestTree(t *testing.T) {
	all := parsePS(`  1 0 1 100
 50 1 50 10
 51 50 50 20
 52 51 52 30
 53 1 53 40
 54 53 53 50
 60 1 60 1
bad line
 61 x 60 1
`)
	if len(all) != 7 {
		t.Fatalf("%d processes", len(all))
	}
	pids := func(known map[int]bool) (out []int) {
		for _, p := range tree(all, 50, known) {
			out = append(out, p.pid)
		}
		return
	}
	if got := pids(nil); !slices.Equal(got, []int{50, 51, 52}) {
		t.Errorf("%v", got)
	}
	// 53 was seen below the command before its parent ended.
	if got := pids(map[int]bool{53: true}); !slices.Equal(got, []int{50, 51, 52, 53, 54}) {
		t.Errorf("%v", got)
	}
}

func TestUlimits(t *testing.T) {
	s, unknown := ulimits([]specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_FSIZE", Soft: 4096, Hard: 1 << 20}, {Type: "RLIMIT_NOFILE", Soft: 64, Hard: 64}, {Type: "RLIMIT_RTPRIO"}})
	want := `ulimit -S -c 0 && ulimit -H -c 0 && ulimit -S -f 4 && ulimit -H -f 1024 && ulimit -S -n 64 && ulimit -H -n 64 && unset OLDPWD SHLVL; exec "$@"`
	if s != want || !slices.Equal(unknown, []string{"RLIMIT_RTPRIO"}) {
		t.Errorf("%s, %q", s, unknown)
	}
	if s, _ := ulimits(nil); s != "" {
		t.Error(s)
	}
}

func TestFindCommand(t *testing.T) {
	p := resolve(t, "strict", nil)
	there := func(files ...string) func(string) bool {
		return func(f string) bool { return slices.Contains(files, f) }
	}
	for _, c := range []struct {
		command string
		files   []string
		found   bool
	}{{"make", []string{"/usr/bin/make"}, true}, {"make", []string{"/opt/make", "make"}, false}, {"./m", []string{workspace + "/m"}, true}, {"/x/m", []string{"/x/m"}, true}, {"/x/m", nil, false}} {
		p.OCI.Process.Args = []string{c.command}
		if err := findCommand(p, there(c.files...)); (err == nil) != c.found || err != nil && !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s: %v", c.command, err)
		}
	}
}
