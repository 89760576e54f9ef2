// Report tells which of the security design's threats was tried where, and what
// came of it: a table for people, and the same as JSON.
//
//	go run ./test/report [-host FILE] [-vm FILE] [-o FILE]
//
// It runs the battery, and the tests that the catalogue names beside it, on this
// host, and takes what make vmtest found on other kernels. A threat that a test
// failed, or that no test is for, makes it end with 1.
//
// It judges no threat itself: that is in the tests. It does not run the virtual
// machines either.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// A result is what one test came to in one configuration. It is also a line of
// what test/vm writes.
type result struct {
	Configuration string `json:"configuration"`
	Test          string `json:"test"`
	ID            string `json:"id,omitempty"`
	Result        string `json:"result"` // pass, fail, skip
	Detail        string `json:"detail,omitempty"`
}

// A verdict is what is said of a threat in a configuration.
type verdict struct {
	ID            string   `json:"id"`
	Title         string   `json:"title"`
	Configuration string   `json:"configuration"`
	Result        string   `json:"result"` // pass, fail, skip, not run, not built, no test
	Reason        string   `json:"reason,omitempty"`
	Tests         []string `json:"tests,omitempty"`
	// Partly are the parts that were left out of a test that passed: a control
	// that only root can do, and the like.
	Partly []string `json:"partly,omitempty"`
}

// thePackage stands for what fails outside of a test: a package that leaves
// something behind, or that cannot be built.
const thePackage = "the package"

const module = "github.com/sbxrun/sbxrun/"

func main() {
	host := flag.String("host", "", "read the host's results from `file` (of go test -json) instead of running the tests")
	vm := flag.String("vm", ".cache/vm/results.jsonl", "results of make vmtest")
	out := flag.String("o", ".cache/security-report.json", "write the report as JSON")
	flag.Parse()
	bad, err := run(*host, *vm, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if bad > 0 {
		os.Exit(1)
	}
}

func run(host, vm, out string) (bad int, err error) {
	var results []result
	if host == "" {
		results, err = runHost()
	} else {
		var f *os.File
		if f, err = os.Open(host); err == nil {
			results, err = readEvents(f)
			f.Close()
		}
	}
	if err != nil {
		return 0, err
	}
	others, err := readVM(vm)
	if err != nil {
		return 0, err
	}
	results = append(results, others...)
	verdicts := judge(catalogue, results)
	if err := write(out, verdicts); err != nil {
		return 0, err
	}
	bad = table(os.Stdout, catalogue, verdicts)
	for _, r := range results {
		if r.Result == "fail" && strings.HasSuffix(r.Test, thePackage) {
			bad++
			fmt.Printf("fail, outside of a test: %s: %s\n", r.Test, r.Detail)
		}
	}
	if len(others) == 0 {
		fmt.Printf("\nno results of other kernels in %s: make vmtest makes them\n", vm)
	}
	fmt.Printf("\nthe whole, with the tests and the reasons: %s\n", out)
	return bad, nil
}

// runHost runs what the catalogue names, and nothing else.
func runHost() ([]result, error) {
	names := map[string]map[string]bool{"test/integration": {"TestBattery": true}}
	for _, t := range catalogue {
		for _, test := range t.tests {
			pkg, name := split(test)
			if names[pkg] == nil {
				names[pkg] = map[string]bool{}
			}
			names[pkg][name] = true
		}
	}
	var results []result
	for pkg, tests := range names {
		var list []string
		for name := range tests {
			list = append(list, name)
		}
		fmt.Fprintln(os.Stderr, "report: testing", pkg)
		cmd := exec.Command("go", "test", "-count=1", "-json", "-timeout=30m", "-run=^("+strings.Join(list, "|")+")$", "./"+pkg)
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		r, err := readEvents(pipe)
		// A test that failed is in the results; what else can go wrong is not.
		if werr := cmd.Wait(); err == nil && werr != nil && !slices.ContainsFunc(r, func(r result) bool { return r.Result == "fail" }) {
			err = fmt.Errorf("%s: %w", pkg, werr)
		}
		if err != nil {
			return nil, err
		}
		results = append(results, r...)
	}
	return results, nil
}

// split takes a test's name apart: package and function.
func split(test string) (pkg, name string) {
	if i := strings.LastIndexByte(test, '.'); i >= 0 {
		return test[:i], test[i+1:]
	}
	return "test/integration", test
}

var idOf = regexp.MustCompile(`^Test[A-Za-z]*/([A-Z][0-9]{2})(/|$)`)

// readEvents reads what go test -json prints. Which user a test ran as is in its
// name, or is the one who runs it.
func readEvents(in io.Reader) ([]result, error) {
	type event struct{ Action, Package, Test, Output string }
	me := "host-root"
	if os.Getuid() != 0 {
		me = "host-user"
	}
	output := map[string]string{}
	var results []result
	s := bufio.NewScanner(in)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil {
			continue // what a build prints
		}
		test := e.Test
		if pkg := strings.TrimPrefix(e.Package, module); pkg != "test/integration" {
			test = pkg + "." + test
		}
		switch e.Action {
		case "output":
			if t := strings.TrimSpace(e.Output); !strings.HasPrefix(t, "===") && !strings.HasPrefix(t, "---") {
				output[test] += e.Output
			}
		case "pass", "fail", "skip":
			if e.Test == "" {
				if e.Action == "fail" {
					// Outside of the tests: leaks, or no build.
					results = append(results, result{Configuration: me, Test: test + thePackage, Result: "fail", Detail: output[test]})
				}
				continue
			}
			r := result{Configuration: me, Test: test, Result: e.Action}
			if m := idOf.FindStringSubmatch(e.Test); m != nil {
				r.ID = m[1]
			}
			switch {
			case strings.Contains(e.Test+"/", "/root/"):
				r.Configuration = "host-root"
			case strings.Contains(e.Test+"/", "/user/"):
				r.Configuration = "host-user"
			}
			if e.Action != "pass" {
				r.Detail = strings.TrimSpace(output[test])
			}
			results = append(results, r)
		}
	}
	return results, s.Err()
}

// readVM reads what make vmtest left, nothing if it did not run. It writes
// packages with dashes.
func readVM(file string) ([]result, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var results []result
	for line := range strings.Lines(string(b)) {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if pkg, name, ok := strings.Cut(r.Test, "."); ok {
			r.Test = strings.ReplaceAll(pkg, "-", "/") + "." + name
		}
		results = append(results, r)
	}
	return results, nil
}

// judge says of each threat and configuration what the results say.
func judge(list []threat, results []result) []verdict {
	var configurations []string
	for _, r := range results {
		if !slices.Contains(configurations, r.Configuration) {
			configurations = append(configurations, r.Configuration)
		}
	}
	slices.Sort(configurations)
	var out []verdict
	for _, t := range list {
		any := slices.ContainsFunc(results, t.has)
		for _, c := range configurations {
			v := verdict{ID: t.id, Title: t.title, Configuration: c}
			var passed, failed, skipped int
			for _, r := range results {
				if r.Configuration != c || !t.has(r) {
					continue
				}
				whole := whole.MatchString(r.Test)
				switch {
				case r.Result == "fail":
					failed++
					v.Reason = strings.TrimSpace(v.Reason + "\n" + r.Test + ": " + r.Detail)
				case r.Result == "skip" && whole:
					skipped++
					v.Reason = strings.TrimSpace(v.Reason + "\n" + r.Detail)
				case r.Result == "skip":
					v.Partly = append(v.Partly, r.Test+": "+r.Detail)
				case whole:
					passed++
					v.Tests = append(v.Tests, r.Test)
				}
			}
			switch {
			case failed > 0:
				v.Result = "fail"
			case passed > 0:
				v.Result, v.Reason = "pass", ""
			case skipped > 0:
				v.Result = "skip"
			case any:
				v.Result, v.Reason = "not run", "no test of it ran in this configuration"
			case t.unbuilt != "":
				v.Result, v.Reason = "not built", t.unbuilt
			default:
				v.Result, v.Reason = "no test", "nothing tries this"
			}
			out = append(out, v)
		}
	}
	return out
}

// whole is the name of a test that stands for all of a threat, or for all of it
// that a user can do, and not for a part: TestBattery/F01/root, and functions.
var whole = regexp.MustCompile(`^(Test[A-Za-z]*/[A-Z][0-9]{2}/[^/]+|([a-z/-]+\.)?(Test|Fuzz)[A-Za-z0-9_]+(/(root|user))?)$`)

// has reports whether a result is of a test of the threat.
func (t *threat) has(r result) bool {
	if r.ID == t.id {
		return strings.Count(r.Test, "/") > 1 // the test of all users says nothing of one
	}
	return slices.ContainsFunc(t.tests, func(name string) bool {
		return r.Test == name || strings.HasPrefix(r.Test, name+"/")
	})
}

func write(file string, verdicts []verdict) error {
	b, err := json.MarshalIndent(verdicts, "", "  ")
	if err != nil {
		return err
	}
	if i := strings.LastIndexByte(file, '/'); i > 0 {
		if err := os.MkdirAll(file[:i], 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// marks are what the table says.
var marks = map[string]string{"pass": "ok", "fail": "FAIL", "skip": "skip", "not run": "-", "not built": "·", "no test": "NO TEST"}

// table prints the report, and the reasons for all that is neither passed nor
// unbuilt. It returns how many entries are bad.
func table(w io.Writer, list []threat, verdicts []verdict) (bad int) {
	var configurations []string
	at := map[[2]string]verdict{}
	for _, v := range verdicts {
		if !slices.Contains(configurations, v.Configuration) {
			configurations = append(configurations, v.Configuration)
		}
		at[[2]string{v.ID, v.Configuration}] = v
	}
	fmt.Fprintf(w, "%-4s", "id")
	for _, c := range configurations {
		fmt.Fprintf(w, " %-10s", c)
	}
	fmt.Fprintln(w)
	count := map[string]int{}
	var notes []string
	for _, t := range list {
		fmt.Fprintf(w, "%-4s", t.id)
		for _, c := range configurations {
			v := at[[2]string{t.id, c}]
			fmt.Fprintf(w, " %-10s", marks[v.Result])
			count[v.Result]++
			switch v.Result {
			case "fail", "no test":
				bad++
				notes = append(notes, fmt.Sprintf("%s %s %s: %s", v.Result, t.id, c, v.Reason))
			case "skip":
				notes = append(notes, fmt.Sprintf("skip %s %s: %s", t.id, c, v.Reason))
			}
		}
		fmt.Fprintf(w, " %s", t.title)
		if t.unbuilt != "" && at[[2]string{t.id, configurations[0]}].Result == "not built" {
			fmt.Fprintf(w, " (not built yet: %s)", t.unbuilt)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	for _, n := range notes {
		fmt.Fprintln(w, n)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped, %d not run there, %d of what is not built yet, %d without a test\n",
		count["pass"], count["fail"], count["skip"], count["not run"], count["not built"], count["no test"])
	return bad
}
