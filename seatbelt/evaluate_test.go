package seatbelt

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A question is what the kernel would ask of a profile.
type question struct{ operation, kind, value string }

// evaluate has TinyScheme load a profile and answer questions: "allow" or
// "deny". The second result is the number of rules; the third, those without a
// filter.
func evaluate(t testing.TB, p *Profile, questions []question) (answers []string, forms string, bare []string) {
	t.Helper()
	scheme, err := exec.LookPath("tinyscheme")
	if err != nil {
		t.Fatal("tinyscheme is not installed: tools/deps test installs it")
	}
	dir := t.TempDir()
	var before, after strings.Builder
	for _, d := range p.Params {
		before.WriteString("(set-param " + quote(d.Key) + " " + quote(d.Value) + ")\n")
	}
	for _, q := range questions {
		after.WriteString("(ask '" + q.operation + " '" + q.kind + " " + quote(q.value) + ")\n")
	}
	after.WriteString("(summary)\n(display \"end\")\n(newline)\n(quit)\n")
	args := []string{filepath.Join("testdata", "evaluate.scm")}
	for _, f := range []struct{ name, text string }{{"params.scm", before.String()}, {"profile.sb", p.Text}, {"questions.scm", after.String()}} {
		name := filepath.Join(dir, f.name)
		if err := os.WriteFile(name, []byte(f.text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, name)
	}
	out, err := exec.CommandContext(t.Context(), scheme, args...).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) < len(questions)+2 || lines[len(lines)-1] != "end" {
		tail := lines
		if len(tail) > 5 {
			tail = tail[len(tail)-5:]
		}
		t.Fatalf("%d questions, %d lines, %v; last: %q\n%s", len(questions), len(lines), err, tail, p.Text)
	}
	answers = lines[:len(questions)]
	for _, l := range lines[len(questions) : len(lines)-1] {
		if n, ok := strings.CutPrefix(l, "forms "); ok {
			forms = n
		}
		if r, ok := strings.CutPrefix(l, "bare "); ok {
			bare = append(bare, r)
		}
	}
	return answers, forms, bare
}

// TestEvaluator: the evaluator itself tells right from wrong. A regular
// expression or a filter that it took for another would prove nothing.
func TestEvaluator(t *testing.T) {
	text := `(version 1)
(deny default)
(allow file-read* (subpath "/a") (literal "/b"))
(deny file-read* (subpath "/a/x"))
(allow file-read-data (regex "^/r/[a-c]+(x|yz)?$"))
(allow file-read-data (regex "/t\\.[^/]*$"))
(allow file-write* (require-all (subpath "/a") (require-not (require-any (literal "/a/n") (subpath "/a/m")))))
(allow mach-lookup (global-name "one" "two"))
(allow network-outbound (remote tcp "localhost:80"))
(allow sysctl-read (sysctl-name-prefix "hw."))
`
	cases := []struct {
		question
		want string
	}{
		{question{"file-read-data", "path", "/a"}, "allow"}, {question{"file-read-data", "path", "/a/b"}, "allow"},
		{question{"file-read-data", "path", "/ab"}, "deny"}, {question{"file-read-metadata", "path", "/b"}, "allow"},
		{question{"file-read-data", "path", "/b/c"}, "deny"}, {question{"file-read-data", "path", "/a/x/y"}, "deny"}, {question{"file-read-data", "path", "/a/xy"}, "allow"},
		{question{"file-read-data", "path", "/r/abc"}, "allow"}, {question{"file-read-data", "path", "/r/abcx"}, "allow"}, {question{"file-read-data", "path", "/r/ayz"}, "allow"},
		{question{"file-read-data", "path", "/r/ad"}, "deny"}, {question{"file-read-data", "path", "/r/axyz"}, "deny"}, {question{"file-read-data", "path", "/q/r/a"}, "deny"}, {question{"file-read-data", "path", "/r/"}, "deny"},
		{question{"file-read-data", "path", "/q/t.x"}, "allow"}, {question{"file-read-data", "path", "/q/tx"}, "deny"}, {question{"file-read-data", "path", "/q/t.x/y"}, "deny"},
		{question{"file-read-metadata", "path", "/r/abc"}, "deny"},
		{question{"file-write-create", "path", "/a/b"}, "allow"}, {question{"file-write-create", "path", "/a/n"}, "deny"}, {question{"file-write-create", "path", "/a/n/o"}, "allow"}, {question{"file-write-create", "path", "/a/m/o"}, "deny"},
		{question{"mach-lookup", "mach", "two"}, "allow"}, {question{"mach-lookup", "mach", "three"}, "deny"},
		{question{"network-outbound", "remote", "localhost:80"}, "allow"}, {question{"network-outbound", "remote", "localhost:800"}, "deny"}, {question{"network-outbound", "remote", "10.0.0.1:80"}, "deny"},
		{question{"sysctl-read", "sysctl", "hw.ncpu"}, "allow"}, {question{"sysctl-read", "sysctl", "kern.proc"}, "deny"},
	}
	var qs []question
	for _, c := range cases {
		qs = append(qs, c.question)
	}
	answers, forms, bare := evaluate(t, &Profile{Text: text}, qs)
	for i, c := range cases {
		if answers[i] != c.want {
			t.Errorf("%v: %s, want %s", c.question, answers[i], c.want)
		}
	}
	if forms != "9" || len(bare) != 1 || bare[0] != "deny (default)" {
		t.Errorf("%s forms, bare %q", forms, bare)
	}
}
