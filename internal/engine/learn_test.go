package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/internal/learn"
)

// TestLearnValid: a line for which the profile would be refused costs no other line.
func TestLearnValid(t *testing.T) {
	dir := t.TempDir()
	f, err := GatherFactsAnywhere(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := &learn.Found{Changed: true}
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		found.Read = append(found.Read, learn.Line{Item: filepath.Join(dir, name)}, learn.Line{Item: "/proc/self/" + name})
	}
	l := &Learning{name: "strict", facts: f}
	file := filepath.Join(dir, "learned.yaml")
	if err := l.Write(found, file, []string{"make"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), "- "+dir) != 3 || strings.Contains(string(text), "- /proc") ||
		strings.Count(string(text), "# Not granted: /proc") != 3 || len(found.Read) != 3 {
		t.Errorf("%v\n%s", err, text)
	}
}
