package cli

import (
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// Every subcommand of the tree is one that Main looks for, or it would be run
// as a program.
func TestSubcommands(t *testing.T) {
	for _, c := range Root().Commands() {
		if !isSubcommand(c.Name()) {
			t.Errorf("%s is in the tree, and Main does not know it", c.Name())
		}
	}
	// The page that tells scripts when "--" is needed names them all.
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "- A subcommand (`")
	list, _, _ = strings.Cut(list, "`")
	for _, c := range append(Root().Commands(), &cobra.Command{Use: "help"}) {
		if !slices.Contains(strings.Fields(list), c.Name()) {
			t.Errorf("docs/cli.md does not name %s", c.Name())
		}
	}
	for _, arg := range []string{"ls", "--", "--json", "doctor2", ""} {
		if isSubcommand(arg) {
			t.Errorf("%q is taken for a subcommand", arg)
		}
	}
}

func TestParseRunFlags(t *testing.T) {
	o := &options{}
	fs := newRunFlags(o, "sbxrun")
	err := fs.Parse([]string{"-P", "strict", "--memory", "2g", "--bind", "/a:/b:ro", "--tmpfs", "/c:1m", "--user", "5:6", "-it", "--verify=false", "--allow-degraded", "cgroup,landlock", "--fallback", "bwrap,runc", "--fallback", "host", "cmd", "--json", "-v"})
	if err != nil {
		t.Fatal(err)
	}
	r := o.req
	if r.Profile != "strict" || *r.Memory != 2<<30 || !r.Terminal || *r.Verify || r.Degrade != policy.LayerCgroup|policy.LayerLandlock {
		t.Errorf("got %+v", r)
	}
	if got := strings.Join(r.Fallback, " "); got != "bwrap runc host" {
		t.Errorf("fallback %q", got)
	}
	if want := (profiles.Bind{Source: "/a", Destination: "/b", ReadOnly: true}); r.Binds[0] != want {
		t.Errorf("bind %+v", r.Binds)
	}
	if want := (profiles.Tmpfs{Path: "/c", Size: 1 << 20}); r.Tmpfs[0] != want {
		t.Errorf("tmpfs %+v", r.Tmpfs)
	}
	if want := (profiles.User{UID: 5, GID: 6}); *r.User != want {
		t.Errorf("user %+v", r.User)
	}
	if got := strings.Join(fs.Args(), " "); got != "cmd --json -v" || o.json || say.verbose {
		t.Errorf("the command's flags were taken: %q", got)
	}
}

// What was refused is said with what would allow it, a path once, and of many the
// first; --verbose has all, --quiet none.
func TestExplainDenials(t *testing.T) {
	path := func(name string) driver.Denial {
		return driver.Denial{Operation: "openat", Target: "/w/" + name, Rule: "protected path " + name, Grant: driver.GrantOf("unprotect", name)}
	}
	again := path(".bashrc")
	again.Operation = "rename"
	host := driver.Denial{Operation: "connect", Target: "a.example:443", Grant: "--allow-host a.example"}
	list := []driver.Denial{path(".bashrc"), again, host, path(".vscode"), path(".idea"), path(".claude")}
	first := "sbxrun: note: network: refused a.example:443\nsbxrun: hint: --allow-host a.example\n"
	for _, name := range []string{".bashrc", ".vscode", ".idea"} {
		first += "sbxrun: note: refused: /w/" + name + ": protected path " + name + "\nsbxrun: hint: --unprotect " + name + "\n"
	}
	for _, tt := range []struct {
		speaker speaker
		want    string
	}{
		{speaker{}, first + "sbxrun: note: refused: 1 more, in the denials of --json\n"},
		{speaker{verbose: true}, first + "sbxrun: note: refused: /w/.claude: protected path .claude\nsbxrun: hint: --unprotect .claude\n"},
		{speaker{quiet: true}, ""},
	} {
		if got := said(t, tt.speaker, func() { explainDenials(&driver.Result{Denials: list}, false) }); got != tt.want {
			t.Errorf("%+v: said\n%swant\n%s", tt.speaker, got, tt.want)
		}
	}
}

// TestNotReached: a command that failed is told why a host that it may reach was not
// reached; of one that succeeded nobody asks.
func TestNotReached(t *testing.T) {
	res := &driver.Result{Network: &driver.Network{Failed: 1, Failure: "a.example:443: no such name"}}
	if got := said(t, speaker{}, func() { explainDenials(res, false) }); got != "" {
		t.Errorf("it succeeded: %q", got)
	}
	res.ExitCode = 56
	if got, want := said(t, speaker{}, func() { explainDenials(res, false) }), "sbxrun: note: network: allowed, and not reached: a.example:443: no such name\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// said is what a function says on stderr.
func said(t *testing.T, s speaker, do func()) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	was, stderr := say, os.Stderr
	say, os.Stderr = s, f
	defer func() { say, os.Stderr = was, stderr }()
	do()
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestQuoted(t *testing.T) {
	for in, want := range map[string]string{"/a/b-c_1.d": "/a/b-c_1.d", "/a b": "'/a b'", "/a'b": `'/a'\''b'`, "$(x)": "'$(x)'"} {
		if got := quote.Shell(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func BenchmarkParseFlags(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		o := &options{}
		if err := newRunFlags(o, "sbxrun").Parse([]string{"--memory", "1g", "--", "true"}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestStartIn: a command can have named the directory that an agent's next command
// starts in.
func TestStartIn(t *testing.T) {
	p := &policy.Policy{OCI: &specs.Spec{Process: &specs.Process{Cwd: "/ws"}}}
	if err := startIn(p, "/nowhere/x is fine"); err == nil || !strings.Contains(err.Error(), `"/nowhere/x is fine"`) {
		t.Error(err)
	}
}
