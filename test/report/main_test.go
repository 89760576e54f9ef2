package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	list := []threat{
		{id: "F01"}, {id: "F02"}, {id: "F03"}, {id: "F04", tests: []string{"native.TestSwap"}}, {id: "F05"}, {id: "F06", unbuilt: "x"}, {id: "F07", unbuilt: "x"},
	}
	results := []result{
		{"host-root", "TestBattery/F01/root/control a", "F01", "skip", "needs a network"},
		{"host-root", "TestBattery/F01/root", "F01", "pass", ""},
		{"host-root", "TestBattery/F01", "F01", "pass", ""},
		{"host-user", "TestBattery/F01/user", "F01", "skip", "no cgroup"},
		{"host-root", "TestBattery/F02/root/control", "F02", "fail", "a control failed"},
		{"host-root", "TestBattery/F02/root", "F02", "fail", ""},
		{"host-user", "TestBattery/F02/user", "F02", "pass", ""},
		{"host-user", "TestBattery/F03/user", "F03", "pass", ""},
		{"host-root", "native.TestSwap", "", "pass", ""},
		{"host-root", "native.TestSwap/source", "", "pass", ""},
		{"host-user", "native.TestSwapOther", "", "pass", ""},
		{"host-root", "TestBattery/F06/root", "F06", "pass", ""},
	}
	want := map[string]string{
		"F01 host-root": "pass", "F01 host-user": "skip", "F02 host-root": "fail", "F02 host-user": "pass", "F03 host-root": "not run", "F03 host-user": "pass",
		"F04 host-root": "pass", "F04 host-user": "not run", "F05 host-root": "no test", "F05 host-user": "no test", "F06 host-root": "pass", "F06 host-user": "not run",
		"F07 host-root": "not built", "F07 host-user": "not built",
	}
	got := judge(list, results)
	for _, v := range got {
		if w := want[v.ID+" "+v.Configuration]; v.Result != w {
			t.Errorf("%s %s: %s, want %s", v.ID, v.Configuration, v.Result, w)
		}
		if v.ID == "F01" && v.Configuration == "host-root" && len(v.Partly) != 1 {
			t.Errorf("the control that was left out is not told: %+v", v)
		}
	}
	var b bytes.Buffer
	// One failed, and one without a test in two configurations.
	if bad := table(&b, list, got); bad != 3 {
		t.Errorf("%d bad entries:\n%s", bad, b.String())
	}
	if !strings.Contains(b.String(), "a control failed") || !strings.Contains(b.String(), "no cgroup") {
		t.Errorf("reasons are missing:\n%s", b.String())
	}
}

// TestReadEvents reads what go test prints, of a test that ran as each user.
func TestReadEvents(t *testing.T) {
	const in = `FAIL build noise
{"Action":"output","Package":"github.com/sbxrun/sbxrun/test/integration","Test":"TestBattery/K09/user","Output":"    x.go:1: not here\n"}
{"Action":"skip","Package":"github.com/sbxrun/sbxrun/test/integration","Test":"TestBattery/K09/user"}
{"Action":"pass","Package":"github.com/sbxrun/sbxrun/internal/reexec","Test":"TestThreadExit"}
{"Action":"fail","Package":"github.com/sbxrun/sbxrun/native"}
`
	r, err := readEvents(strings.NewReader(in))
	if err != nil || len(r) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	if r[0].ID != "K09" || r[0].Configuration != "host-user" || r[0].Detail != "x.go:1: not here" {
		t.Errorf("%+v", r[0])
	}
	if r[1].Test != "internal/reexec.TestThreadExit" || r[2].Result != "fail" {
		t.Errorf("%+v", r[1:])
	}
}

// TestCatalogue: every test that the catalogue names is there, and so is every id
// that docs/security.md rests a promise on; the registry of the battery and the
// catalogue agree.
func TestCatalogue(t *testing.T) {
	known := map[string]bool{}
	for _, e := range catalogue {
		if known[e.id] || e.title == "" {
			t.Errorf("%s is there twice, or has no title", e.id)
		}
		known[e.id] = true
		for _, test := range e.tests {
			pkg, name := split(test)
			if !declared(t, pkg, name) {
				t.Errorf("%s: there is no %s in %s", e.id, name, pkg)
			}
		}
	}
	doc, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	promises, _, _ := strings.Cut(string(doc), "## Not promised")
	unbuilt := map[string]bool{}
	for _, e := range catalogue {
		unbuilt[e.id] = e.unbuilt != ""
	}
	ids := regexp.MustCompile(`\b[A-Z][0-9]{2}\b`).FindAllString(promises, -1)
	if len(ids) < 40 {
		t.Errorf("docs/security.md names %d ids only", len(ids))
	}
	for _, id := range ids {
		if !known[id] {
			t.Errorf("docs/security.md rests a promise on %s, which the catalogue does not know", id)
		}
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z][A-Za-z]*\b[^…]`).FindAllString(promises, -1) {
		name = name[:len(name)-1]
		if !slices.ContainsFunc([]string{"test/integration", "native", "internal/reexec", "test/agents"}, func(pkg string) bool { return declared(t, pkg, name) }) {
			t.Errorf("docs/security.md rests a promise on %s, which does not exist", name)
		}
	}
	// What the battery registers is in the catalogue.
	files, _ := filepath.Glob("../integration/*_test.go")
	n := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bid: +"([A-Z][0-9]{2})", +title:`).FindAllStringSubmatch(string(b), -1) {
			n++
			if !known[m[1]] {
				t.Errorf("the battery's %s is not in the catalogue", m[1])
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d tests of the battery were found", n)
	}
}

var sources = map[string]string{}

// declared reports whether a package declares a test.
func declared(t *testing.T, pkg, name string) bool {
	t.Helper()
	if _, ok := sources[pkg]; !ok {
		out, err := exec.Command("grep", "-rhoE", "--include=*_test.go", "^func (Test|Fuzz)[A-Za-z0-9_]+", "../../"+pkg).Output()
		if err != nil {
			t.Fatalf("%s: %v", pkg, err)
		}
		sources[pkg] = string(out) + "\n"
	}
	return strings.Contains(sources[pkg], "func "+name+"\n")
}
