package architecture

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestRest: what make test leaves out, make test-rest runs. A test that the
// Makefile's LONG names, in a package that is not in LONGIN, would run nowhere.
func TestRest(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	value := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + `\s*:= (.*)$`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("the Makefile has no %s", name)
		}
		return strings.ReplaceAll(string(m[1]), "$$", "$")
	}
	packages := strings.Fields(value("LONGIN"))
	// The first part names tests; the others name subtests, which the package's own
	// test runs in make test.
	whole, _, _ := strings.Cut(value("LONG"), "$|")
	long := regexp.MustCompile(whole + "$")
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	found := 0
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir := "." + strings.TrimPrefix(filepath.Dir(path), "../..")
		for _, m := range declared.FindAllSubmatch(code, -1) {
			if long.Match(m[1]) {
				found++
				if !slices.Contains(packages, dir) {
					t.Errorf("%s of %s is in LONG, and the package not in LONGIN", m[1], dir)
				}
			}
		}
		return nil
	})
	if err != nil || found < 10 {
		t.Errorf("%d tests found, %v", found, err)
	}
}
