//go:build linux

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A failure is a command that the sandbox refuses something, and what is to be told of
// it. $D is the fixture's directory, $W the workspace.
type failure struct {
	name   string
	flags  []string
	script string
	want   denial // Rule is how it begins; Call may be left out
	// ungranted says that nothing is proposed; otherwise the script succeeds with the
	// grant and fails without.
	ungranted bool
	// plus are flags that come with the grant.
	plus []string
}

// refusals are kinds of failure that a user meets. What each is for is in its name.
var refusals = []failure{
	// writes by path
	{name: "a new file beside a read-only grant's", flags: []string{"--ro", "$D/outside"}, script: "touch $D/outside/new",
		want: denial{Operation: "write", Call: "openat", Target: "$D/outside/new", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside"}},
	{name: "a change of a file", flags: []string{"--ro", "$D/outside"}, script: "echo x >>$D/outside/canary",
		want: denial{Operation: "write", Target: "$D/outside/canary", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside/canary"}},
	{name: "a directory", flags: []string{"--ro", "$D/outside"}, script: "mkdir $D/outside/a/dir",
		want: denial{Operation: "write", Target: "$D/outside/a/dir", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside/a"}},
	{name: "a symbolic link", flags: []string{"--ro", "$D/outside"}, script: "ln -s x $D/outside/link",
		want: denial{Operation: "write", Target: "$D/outside/link", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside"}},
	{name: "a removal", flags: []string{"--ro", "$D/outside"}, script: "rm $D/outside/victim",
		want: denial{Operation: "write", Target: "$D/outside/victim", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside"}},
	{name: "a rename", flags: []string{"--ro", "$D/outside"}, script: "mv $D/outside/second $D/outside/third",
		want: denial{Operation: "write", Call: "rename", Target: "$D/outside/third", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside"}},
	{name: "a mode", flags: []string{"--ro", "$D/outside"}, script: "chmod 600 $D/outside/a/file",
		want: denial{Operation: "write", Target: "$D/outside/a/file", Rule: "read-only: $D/outside", Origin: "flag --ro", Grant: "--rw $D/outside/a/file"}},
	{name: "a read-only directory of the workspace", flags: []string{"--ro", "vendor"}, script: "touch vendor/x",
		want: denial{Operation: "write", Target: "$W/vendor/x", Rule: "read-only: $W/vendor", Origin: "flag --ro", Grant: "--rw $W/vendor"}},
	{name: "a rule of a profile's file", flags: []string{"--profile", "$D/p.yaml"}, script: "touch $D/outside/profiled",
		want: denial{Operation: "write", Target: "$D/outside/profiled", Rule: "read-only: $D/outside", Origin: "$D/p.yaml:4", Grant: "--rw $D/outside"}},
	{name: "a system directory", script: "touch /usr/lib/sbxrun-x", ungranted: true,
		want: denial{Operation: "write", Target: "/usr/lib/sbxrun-x", Rule: "read-only: /usr", Origin: "preset strict"}},
	{name: "a file of sbxrun's own making", script: "echo x >>/etc/passwd", ungranted: true,
		want: denial{Operation: "write", Target: "/etc/passwd", Rule: "made by sbxrun: /etc/passwd"}},
	{name: "a setting of the kernel", script: "echo 1 >/proc/self/oom_score_adj", ungranted: true,
		want: denial{Operation: "write", Rule: "sbxrun's own: /proc"}},
	{name: "a protected path", script: "mkdir .vscode",
		want: denial{Operation: "write", Target: "$W/.vscode", Rule: "protected path .vscode", Grant: "--unprotect .vscode"}},
}

// TestRefusals: a refusal is told with its cause and its grant, once, and with the grant
// the same command succeeds. The neighbours that it does before are not told.
func TestRefusals(t *testing.T) {
	eachWho(t, func(f *fixture) {
		fill := func(s string) string { return strings.NewReplacer("$D", f.dir, "$W", f.ws).Replace(s) }
		for _, r := range refusals {
			f.Run(r.name, func(t *testing.T) {
				os.MkdirAll(filepath.Join(f.ws, "vendor"), 0o755)
				f.write("p.yaml", "extends: strict\nfiles:\n  read:\n    - "+f.path("outside")+"\n", 0o644)
				f.own()
				var flags []string
				for _, s := range r.flags {
					flags = append(flags, fill(s))
				}
				// Neighbours: what is there already is neither made nor changed.
				script := "mkdir -p /usr/bin /tmp/d; test -w /usr; cat README; echo x >/tmp/n; echo x >/dev/null; " + fill(r.script)
				res := f.result(f.run(call{args: f.sandbox(append([]string{"--json"}, flags...), "sh", "-c", script)}))
				if res.ExitCode == 0 {
					t.Fatalf("it was not refused: %+v", res)
				}
				want := r.want
				for _, s := range []*string{&want.Target, &want.Rule, &want.Origin, &want.Grant} {
					*s = fill(*s)
				}
				found := 0
				for _, d := range res.Denials {
					switch {
					case d.Operation == want.Operation && (want.Target == "" || d.Target == want.Target) && strings.HasPrefix(d.Rule, want.Rule) && d.Origin == want.Origin && (want.Call == "" || d.Call == want.Call):
						found++
						if !r.ungranted && d.Grant != want.Grant {
							t.Errorf("grant %q, want %q", d.Grant, want.Grant)
						}
						if d.Operation == "write" && (d.Count == 0 || d.Process.PID < 2 || d.Process.Command == "") {
							t.Errorf("%+v", d)
						}
					case d.Call != "rename": // of two names
						t.Errorf("told as well: %+v", d)
					}
				}
				if found != 1 {
					t.Fatalf("want %+v\nin %+v\nstderr: %s", want, res.Denials, res.Stderr)
				}
				if r.ungranted {
					return
				}
				flag, value, _ := strings.Cut(want.Grant, " ")
				granted := append(append(append([]string{"--json"}, flags...), flag, value), r.plus...)
				res = f.result(f.run(call{args: f.sandbox(granted, "sh", "-c", script)}))
				if res.ExitCode != 0 || len(res.Denials) != 0 {
					t.Errorf("with %s: %d %s %+v", want.Grant, res.ExitCode, res.Stderr, res.Denials)
				}
			})
		}
	})
}
