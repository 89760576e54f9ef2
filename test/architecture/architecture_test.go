// Package architecture holds no code: its tests keep the packages apart as
// docs/architecture.md has them.
package architecture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const module = "github.com/sbxrun/sbxrun/"

// rooms are the packages and what of this module each may import. What is not
// listed may not be imported: a new dependency between packages is a decision,
// and is made here.
var rooms = map[string][]string{
	"policy":                       {},
	"profiles":                     {"policy", "seccomp", "internal/nearest", "internal/quote"},
	"driver":                       {"policy", "internal/quote"},
	"egress":                       {"policy"},
	"seccomp":                      {"internal/strictjson"},
	"seccomp/compile":              {"internal/nearest", "seccomp", "seccomp/internal/bpf"},
	"seccomp/internal/bpf":         {},
	"bench/empty":                  {},
	"cgroups":                      {"internal/systemd"},
	"internal/systemd":             {"internal/quote"},
	"internal/sys":                 {},
	"internal/reexec":              {"internal/quote", "internal/sys"},
	"mounts":                       {"internal/sys"},
	"namespaces":                   {"internal/sys"},
	"landlock":                     {"internal/sys"},
	"internal/rootfs":              {"policy", "driver", "mounts", "landlock"},
	"native":                       {"policy", "driver", "namespaces", "mounts", "cgroups", "seccomp", "landlock", "internal/rootfs", "internal/guard", "egress", "internal/gateway", "internal/reexec", "internal/rlimit", "internal/rundir", "internal/supervisor", "internal/sys"},
	"workspace":                    {"internal/quote", "internal/sparse", "policy", "internal/guard"},
	"internal/guard":               {"policy", "internal/sys"},
	"driver/host":                  {"policy", "driver", "internal/pty"},
	"internal/rlimit":              {"internal/sys"},
	"internal/holder":              {"profiles", "driver", "session", "internal/audit", "internal/engine", "internal/oncejson"},
	"internal/httpbody":            {},
	"internal/nearest":             {},
	"internal/oncejson":            {},
	"internal/strictjson":          {},
	"internal/quote":               {},
	"internal/sparse":              {},
	"internal/pty":                 {"internal/sys"},
	"internal/gateway":             {"policy", "driver", "egress"},
	"internal/programs":            {},
	"internal/rundir":              {},
	"internal/supervisor":          {"policy", "driver", "mounts", "cgroups", "seccomp", "internal/pty", "internal/reexec", "internal/rlimit", "internal/sys"},
	"bwrap":                        {"internal/programs", "policy", "driver", "mounts", "seccomp", "internal/rootfs", "internal/supervisor", "internal/rundir"},
	"driver/landlocked":            {"policy", "driver", "landlock", "seccomp", "namespaces", "internal/rootfs", "internal/guard", "internal/gateway", "internal/supervisor", "internal/rundir", "internal/reexec", "internal/sys"},
	"driver/gvisor":                {"internal/programs", "internal/rlimit", "policy", "driver", "mounts", "cgroups", "seccomp", "internal/rootfs", "internal/supervisor", "internal/rundir"},
	"test/integration/conformance": {},
	"seatbelt":                     {"policy", "driver", "internal/gateway", "internal/pty"},
	"driver/docker":                {"internal/rlimit", "internal/programs", "internal/rundir", "policy", "driver", "seccomp", "internal/pty", "internal/quote"},
	"driver/containeruse":          {"internal/programs", "policy", "driver"},
	"session":                      {"policy", "driver", "internal/oncejson", "internal/questions", "internal/sys"},
	"internal/questions":           {"driver", "internal/quote"},
	"pool":                         {"policy", "driver"},
	"internal/serve":               {"internal/engine", "policy", "driver", "pool", "session", "internal/httpbody", "internal/strictjson", "internal/quote"},
	"internal/files":               {"driver", "internal/quote", "internal/sparse"},
	"internal/audit":               {"driver", "internal/quote"},
	"internal/command":             {"policy", "internal/quote"},
	"internal/persona":             {"internal/strictjson"},
	"internal/mcpserver":           {"internal/audit", "internal/questions", "internal/engine", "policy", "driver", "session", "internal/files", "internal/command", "internal/httpbody", "internal/strictjson", "internal/quote"},
	"internal/agents":              {"internal/programs", "policy", "profiles", "internal/persona", "internal/agents/model", "internal/quote"},
	"internal/agents/model":        {},
	"test/agents":                  {"internal/agents/model"},
	"internal/mcpserver/fuzz":      {},
	"internal/probe":               {"internal/programs", "cgroups", "internal/sys"},
	"internal/sigpipe":             {"internal/sys"},
	"internal/learn":               {"policy", "driver", "internal/quote"},
	"internal/engine":              {"internal/learn", "internal/questions", "egress", "seccomp", "internal/guard", "internal/quote", "workspace", "internal/oncejson", "policy", "profiles", "driver", "internal/audit", "session", "pool", "native", "driver/landlocked", "bwrap", "driver/gvisor", "driver/host", "seatbelt", "driver/docker", "driver/containeruse", "internal/probe", "internal/programs", "internal/rundir"},
	"github.com/sbxrun/sbxrun":     {"pool", "internal/probe", "workspace", "policy", "profiles", "driver", "internal/audit", "session", "internal/engine"},
	"internal/setup":               {"cgroups"},
	"internal/terminal":            {"driver", "internal/engine", "internal/sigpipe"},
	"internal/standin":             {"policy", "driver", "session", "internal/engine", "internal/holder", "internal/persona"},
	"internal/agents/whole":        {"policy", "profiles", "driver", "internal/engine"},
	"internal/cli":                 {"internal/engine", "internal/questions", "internal/agents/whole", "internal/setup", "internal/standin", "internal/terminal", "internal/holder", "internal/nearest", "internal/programs", "internal/quote", "internal/audit", "policy", "profiles", "driver", "driver/host", "seccomp", "cgroups", "internal/oncejson", "internal/probe", "session", "internal/files", "internal/persona", "workspace", "pool"},
	"internal/solo":                {},
	"cmd/sbxrun":                   {"internal/cli", "internal/solo"},
	"cmd/sbxrun-mcp":               {"internal/agents", "internal/agents/whole", "internal/engine", "driver", "internal/cli", "internal/strictjson", "internal/mcpserver", "internal/command", "policy"},
	"cmd/sbxrun-serve":             {"internal/cli", "internal/engine", "internal/serve"},
	"cmd/sbxrun-seccomp":           {"seccomp", "seccomp/compile"},
	"seccomp/internal/gen":         {"seccomp", "seccomp/compile", "internal/sys"},
	"profiles/internal/gen":        {"profiles"},
	"internal/cli/man":             {"internal/cli", "driver", "profiles"},
	"tools/man":                    {"internal/cli"},
	"bench":                        {"internal/persona", "policy", "internal/rootfs", "mounts", "seccomp", "driver", "native", "pool", "session"},
	"test/dispositions":            {},
	"test/engine":                  {},
	"test/faults":                  {},
	"examples":                     {},
	"bench/picture":                {},
	"examples/egress":              {"policy", "profiles", "driver", "native"},
	"examples/mcphost":             {},
	"test/integration":             {},
	"test/integration/attack":      {},
	"test/integration/fetch":       {},
	"test/integration/fileops":     {},
	"test/integration/stage":       {"internal/reexec", "internal/sys"},
	"test/mcp":                     {},
	"test/survivors":               {},
	"test/vm":                      {},
	"test/architecture":            {},
	"test/report":                  {},
}

// unsafeRooms may import unsafe: raw system calls are in one place.
var unsafeRooms = []string{"internal/sys", "test/integration/attack", "test/integration/fileops", "test/integration/stage"}

// heavy are modules that the program which runs must not link: each costs every
// start, and the run path needs none of them; see docs/dependencies.md.
var heavy = []string{
	"github.com/google/jsonschema-go", "github.com/seccomp/libseccomp-golang", "github.com/containerd/cgroups",
	"github.com/modelcontextprotocol", "github.com/tailscale/hujson", "github.com/pelletier/go-toml", "github.com/moby", "github.com/docker", "github.com/prometheus",
	"github.com/godbus", "github.com/cilium/ebpf", "github.com/cpuguy83/go-md2man", "google.golang.org",
	"github.com/opencontainers/selinux", "github.com/rogpeppe/go-internal", "github.com/creack/pty",
	"net/http", "crypto/tls", "testing", "mvdan.cc/sh",
}

// TestInit keeps what the packages of this module do before main, on every start,
// small: the runtime tells how much each allocates, which does not depend on how
// busy the machine is. A regular expression takes 20 KiB.
func TestInit(t *testing.T) {
	const maxBytes, maxAllocs = 8 << 10, 200
	program := filepath.Join(t.TempDir(), "sbxrun")
	build := exec.Command("go", "build", "-o", program, module+"cmd/sbxrun")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := exec.Command(program, "version")
	run.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		var name string
		var at, took float64
		var bytes, allocs int
		if n, _ := fmt.Sscanf(line, "init %s @%f ms, %f ms clock, %d bytes, %d allocs", &name, &at, &took, &bytes, &allocs); n != 5 || !strings.HasPrefix(name, module) {
			continue
		}
		seen++
		if bytes > maxBytes || allocs > maxAllocs {
			t.Errorf("%s allocates %d bytes in %d pieces before main: make it when it is used", name, bytes, allocs)
		}
	}
	if seen == 0 {
		t.Errorf("no package of this module: %s", out)
	}
}

type listed struct {
	ImportPath   string
	Dir          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	CgoFiles     []string
}

// list runs go list for linux, without cgo as the program is built.
func list(t *testing.T, cgo string, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Imports,TestImports,XTestImports,Deps,CgoFiles"}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func TestRooms(t *testing.T) {
	for _, p := range list(t, "1", "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		allowed, ok := rooms[name]
		if !ok {
			t.Errorf("package %s is in no room: say in this test what it may import", name)
			continue
		}
		for _, i := range p.Imports {
			dep, own := strings.CutPrefix(i, module)
			if own && !slices.Contains(allowed, dep) {
				t.Errorf("%s imports %s, which it must not know", name, dep)
			}
			if i == "unsafe" && !slices.Contains(unsafeRooms, name) {
				t.Errorf("%s imports unsafe; raw calls belong in internal/sys", name)
			}
		}
	}
}

// TestRunPath keeps what every run pays for small.
func TestRunPath(t *testing.T) {
	all := list(t, "0", "./cmd/sbxrun")
	if len(all) != 1 {
		t.Fatalf("%d packages", len(all))
	}
	for _, dep := range all[0].Deps {
		for _, h := range heavy {
			if dep == h || strings.HasPrefix(dep, h+"/") {
				t.Errorf("cmd/sbxrun links %s", dep)
			}
		}
	}
}

// TestStyle finds what a reader should not find.
func TestStyle(t *testing.T) {
	for _, p := range list(t, "1", "./...") {
		base := filepath.Base(p.ImportPath)
		if slices.Contains([]string{"util", "utils", "common", "helpers", "helper", "manager", "misc"}, base) {
			t.Errorf("%s: a name that says nothing", p.ImportPath)
		}
	}
}

// TestLines keeps lines within 120 columns, a tab being one, but for the end of a string or
// a comment.
func TestLines(t *testing.T) {
	files := 0
	defer func() {
		if files < 100 {
			t.Errorf("looked at %d files alone", files)
		}
	}()
	for _, p := range list(t, "1", "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		if room, _, _ := strings.Cut(name, "/"); slices.Contains([]string{"test", "bench", "examples", "tools"}, room) {
			continue
		}
		all, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range all {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			files++
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte("\n// Code generated ")) || bytes.HasPrefix(text, []byte("// Code generated ")) {
				continue
			}
			for _, n := range long(text, 120) {
				t.Errorf("%s/%s:%d is longer than 120 columns", name, filepath.Base(file), n)
			}
		}
	}
}

// long are the numbers of a program's lines that are longer than most, and at that column
// are in neither a string nor a comment.
func long(text []byte, most int) (numbers []int) {
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	excused := map[int]bool{}
	for pos, tok, lit := s.Scan(); tok != token.EOF; pos, tok, lit = s.Scan() {
		at := file.Position(pos)
		if tok != token.STRING && tok != token.COMMENT {
			continue
		}
		if lines := strings.Count(lit, "\n"); lines > 0 || at.Column <= most && at.Column+len(lit) > most {
			for i := range lines + 1 {
				excused[at.Line+i] = true
			}
		}
	}
	for i, line := range strings.Split(string(text), "\n") {
		if utf8.RuneCountInString(line) > most && !excused[i+1] {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}
