package seatbelt

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
)

// A question is what the kernel would ask of a profile.
type question struct{ operation, kind, value string }

// A job is a profile and what is asked of it; a ruling is what it decides: "allow"
// or "deny" to each question, and what the whole of it looks like: the number of
// rules, and those without a filter.
type job struct {
	profile   *Profile
	questions []question
}
type ruling struct {
	answers []string
	forms   int
	bare    []string
}

// room bounds what one TinyScheme is given: it keeps every name, and has room for
// 50,000 pairs of everything.
const room = 600

// evaluate has TinyScheme load profiles, as many after each other as it has room
// for, and decides by the rules that come out.
func evaluate(t testing.TB, jobs ...job) []ruling {
	t.Helper()
	var all []ruling
	for len(jobs) > 0 {
		n, names := 0, 0
		for n < len(jobs) && (n == 0 || names < room) {
			names += len(jobs[n].profile.Params)
			n++
		}
		all = append(all, evaluateSome(t, jobs[:n])...)
		jobs = jobs[n:]
	}
	return all
}

func evaluateSome(t testing.TB, jobs []job) []ruling {
	t.Helper()
	scheme, err := exec.LookPath("tinyscheme")
	if err != nil {
		t.Fatal("tinyscheme is not installed: tools/deps test installs it")
	}
	var b strings.Builder
	for i, j := range jobs {
		b.WriteString("(profile " + quote(strconv.Itoa(i)) + ")\n")
		for _, d := range j.profile.Params {
			b.WriteString("(set-param " + quote(d.Key) + " " + quote(d.Value) + ")\n")
		}
		b.WriteString(j.profile.Text)
	}
	b.WriteString("(profile \"end\")\n(quit)\n")
	name := filepath.Join(t.TempDir(), "profiles.scm")
	if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), scheme, filepath.Join("testdata", "evaluate.scm"), name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %.2000s", err, out)
	}
	// TinyScheme ends some of its messages, and not all, by a newline.
	list, rest := readList(string(out))
	if rest != "" {
		t.Fatalf("TinyScheme says: %.2000s", rest)
	}
	var all []ruling
	for i, j := range jobs {
		if !slices.Equal(list[0].texts(), []string{"profile", strconv.Itoa(i)}) {
			t.Fatalf("%v; want profile %d", list[0], i)
		}
		var rules []rule
		for list = list[1:]; list[0].list[0].text != "profile"; list = list[1:] {
			f := list[0].list
			rules = append(rules, rule{action: f[0].text, operations: f[1].texts(), filters: f[2].list})
		}
		r := ruling{forms: len(rules)}
		for _, f := range rules {
			if len(f.filters) == 0 {
				r.bare = append(r.bare, f.action+" "+strings.Join(f.operations, " "))
			}
		}
		for _, q := range j.questions {
			r.answers = append(r.answers, decide(t, rules, q))
		}
		all = append(all, r)
	}
	return all
}

// A datum is a symbol, a string or a list, as TinyScheme prints it.
type datum struct {
	text   string
	list   []datum
	isList bool
}

func (d datum) texts() []string {
	var out []string
	for _, e := range d.list {
		out = append(out, e.text)
	}
	return out
}

// readList reads data to the end, or to what is none.
func readList(s string) (list []datum, rest string) {
	for {
		s = strings.TrimLeft(s, " \n")
		if s == "" {
			return list, ""
		}
		d, next, ok := read(s)
		if !ok || !d.isList || len(d.list) == 0 {
			return list, s
		}
		list, s = append(list, d), next
	}
}

func read(s string) (d datum, rest string, ok bool) {
	switch s[0] {
	case '(':
		d.isList = true
		for s = s[1:]; ; {
			s = strings.TrimLeft(s, " \n")
			switch {
			case s == "":
				return d, "", false
			case s[0] == ')':
				return d, s[1:], true
			}
			e, next, ok := read(s)
			if !ok {
				return d, s, false
			}
			d.list, s = append(d.list, e), next
		}
	case '"':
		var b strings.Builder
		for i := 1; i < len(s); i++ {
			switch {
			case s[i] == '"':
				d.text = b.String()
				return d, s[i+1:], true
			case s[i] == '\\' && i+3 < len(s) && s[i+1] == 'x':
				n, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
				if err != nil {
					return d, s, false
				}
				b.WriteByte(byte(n))
				i += 3
			case s[i] == '\\' && i+1 < len(s):
				i++
				b.WriteByte(s[i])
			default:
				b.WriteByte(s[i])
			}
		}
		return d, "", false
	}
	n := strings.IndexAny(s, " ()\n")
	if n <= 0 {
		return d, s, false
	}
	return datum{text: s[:n]}, s[n:], true
}

// A rule is a form as it was evaluated.
type rule struct {
	action     string
	operations []string
	filters    []datum
}

// decide answers by the last rule that matches, as Seatbelt does.
func decide(t testing.TB, rules []rule, q question) string {
	for _, r := range slices.Backward(rules) {
		if slices.ContainsFunc(r.operations, func(op string) bool {
			stem, all := strings.CutSuffix(op, "*")
			return op == "default" || op == q.operation || all && strings.HasPrefix(q.operation, stem)
		}) && (len(r.filters) == 0 || slices.ContainsFunc(r.filters, func(f datum) bool { return holds(t, f, q) })) {
			return r.action
		}
	}
	return "deny"
}

// expressions are regular expressions, compiled once.
var expressions sync.Map

func matches(t testing.TB, expr, s string) bool {
	re, ok := expressions.Load(expr)
	if !ok {
		c, err := regexp.CompilePOSIX(expr)
		if err != nil {
			t.Fatal(err)
		}
		re, _ = expressions.LoadOrStore(expr, c)
	}
	return re.(*regexp.Regexp).MatchString(s)
}

// holds reports whether a filter is meant by a question.
func holds(t testing.TB, f datum, q question) bool {
	name, values := f.list[0].text, f.texts()[1:]
	path := q.kind == "path"
	switch name {
	case "literal":
		return path && q.value == values[0]
	case "subpath":
		return path && policy.Below(q.value, values[0])
	case "regex":
		return path && matches(t, values[0], q.value)
	case "ipc-regex":
		return q.kind == "ipc" && matches(t, values[0], q.value)
	case "mach", "sysctl", "target":
		return q.kind == name && slices.Contains(values, q.value)
	case "sysctl-prefix":
		return q.kind == "sysctl" && strings.HasPrefix(q.value, values[0])
	case "remote", "local":
		a := values[0]
		return q.kind == name && (a == "*:*" || a == q.value || a == "localhost:*" && strings.HasPrefix(q.value, "localhost:"))
	case "not":
		return !holds(t, f.list[1], q)
	case "all":
		return !slices.ContainsFunc(f.list[1:], func(f datum) bool { return !holds(t, f, q) })
	case "any":
		return slices.ContainsFunc(f.list[1:], func(f datum) bool { return holds(t, f, q) })
	}
	t.Fatalf("no filter %q", name)
	return false
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
(allow file-write-mode (regex (string-append "^" (regex-quote (param "Q")) "/(.*/)?(\\.[gG]|x(s|S|ſ))(/.*)?$")))
(allow file-write-flags (regex "^/anchored|alone$"))
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
	const q = `/q/(1).[2]\3^$`
	for p, want := range map[string]string{
		q + "/.g": "allow", q + "/.G": "allow", q + "/a/b/.g": "allow", q + "/.g/c/d": "allow", q + "/xs": "allow", q + "/xS/": "allow", q + "/a/x\u017f": "allow",
		q: "deny", q + "/g": "deny", q + "/a.g": "deny", q + "/.gg": "deny", q + ".g": "deny", q + "/.g.": "deny", "/x" + q + "/.g": "deny", `/q/(1)x[2]\3^$/.g`: "deny", "/q/1.2/.g": "deny",
	} {
		cases = append(cases, struct {
			question
			want string
		}{question{"file-write-mode", "path", p}, want})
	}
	for p, want := range map[string]string{"/anchored/x": "allow", "/x/alone": "allow", "/x/anchored": "deny", "/alone/x": "deny"} {
		cases = append(cases, struct {
			question
			want string
		}{question{"file-write-flags", "path", p}, want})
	}
	var qs []question
	for _, c := range cases {
		qs = append(qs, c.question)
	}
	// Twice, with another profile between: nothing of one is in the next.
	one := job{&Profile{Text: text, Params: []Parameter{{"Q", "/q/(1).[2]\\3^$"}}}, qs}
	for _, r := range evaluate(t, one, job{&Profile{Text: "(version 1)\n(allow default)\n"}, qs}, one)[0:3:3] {
		if len(r.bare) == 1 && r.bare[0] == "allow default" {
			if slices.Contains(r.answers, "deny") || r.forms != 1 {
				t.Errorf("%v", r)
			}
			continue
		}
		for i, c := range cases {
			if r.answers[i] != c.want {
				t.Errorf("%v: %s, want %s", c.question, r.answers[i], c.want)
			}
		}
		if r.forms != 11 || len(r.bare) != 1 || r.bare[0] != "deny default" {
			t.Errorf("%d forms, bare %q", r.forms, r.bare)
		}
	}
}
