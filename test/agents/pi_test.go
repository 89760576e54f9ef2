//go:build linux

package agents

import (
	"slices"
	"testing"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// piFlags have pi ask a model of ours, and nobody else.
func (w *world) piFlags(address string) []string {
	w.Helper()
	w.file(w.dir+"/model.js", `export default (pi) => pi.registerProvider("anthropic", { baseUrl: "`+address+`" })`+"\n", 0o644)
	return []string{"-p", "--no-session", "--offline", "-e", w.dir + "/model.js", "--provider", "anthropic", "--model", "claude-sonnet-4-5"}
}

// pi runs pi.
func (w *world) pi(m *model.Server, calls int, flags ...string) []string {
	w.Helper()
	args := slices.Concat([]string{client(w.T, pi, "pi")}, w.piFlags(w.serve(m)), flags, []string{"go"})
	return w.converse(m, calls, w.command([]string{"ANTHROPIC_API_KEY=" + key}, args...))
}

// TestPi: the bash tool of the real pi, joined by sbxrun integrate, runs inside, where a
// project does not name another shell. That of a project that is trusted counts, which
// docs say; commands inside cannot name one.
func TestPi(t *testing.T) {
	each(t, func(w *world) {
		out := opencodeBash("cat " + w.canary)
		w.expect("without sbxrun", w.pi(model.New(out), 1)[0], "canary sings")
		if out, ok := w.cli(nil, "integrate", "pi", "--allow-degraded", "cgroup"); !ok {
			w.Fatal(out)
		}
		calls := []model.Call{
			out,
			opencodeBash("pwd; exit 3"),
			opencodeBash(w.probe()),
			opencodeBash("printf '%s|' \"it's\" '$HOME' 'a\"b' $'c\\nd'; echo err >&2"),
			opencodeBash("echo begun; sleep 987 # "+w.mark, "timeout", 2),
			opencodeBash("mkdir .pi && echo x >.pi/settings.json"),
		}
		r := w.pi(model.New(calls...), len(calls))
		w.expect("outside", r[0], "!canary sings")
		w.expect("a code", r[1], w.project, "code 3")
		w.inside(r[2], "aicode")
		w.expect("quotation", r[3], `it's|$HOME|a"b|c`, "err")
		w.expect("a time limit", r[4], "begun", "timed out")
		w.expect("what is protected", r[5], "protected path .pi")

		w.file(w.project+"/.pi/settings.json", `{"shellPath": "/bin/bash"}`, 0o644)
		w.expect("a project that is not trusted", w.pi(model.New(out), 1)[0], "!canary sings")
		w.expect("a trusted project's shell", w.pi(model.New(out), 1, "--approve")[0], "canary sings")
	})
}
