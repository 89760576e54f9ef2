package workspace

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestUnified(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"", "", ""},
		{"a\n", "a\n", ""},
		{"", "a\n", "@@ -0,0 +1 @@\n+a\n"},
		{"a\n", "", "@@ -1 +0,0 @@\n-a\n"},
		{"a", "b", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"},
		{"1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nx\n6\n7\n8\n9\n", "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n"},
	} {
		if got := unified(c.a, c.b); got != c.want {
			t.Errorf("%q %q: got\n%s\nwant\n%s", c.a, c.b, got, c.want)
		}
	}
}

// TestUnifiedPatch: patch(1) makes the new text of the old one and the diff, of
// any texts.
func TestUnifiedPatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string {
		var b strings.Builder
		for range r.IntN(n) {
			b.WriteString(string(rune('a'+r.IntN(4))) + "\n")
		}
		if r.IntN(3) == 0 {
			b.WriteString("end")
		}
		return b.String()
	}
	dir := t.TempDir()
	for range 200 {
		a, b := text(40), text(40)
		if a == b {
			continue
		}
		if err := os.WriteFile(dir+"/f", []byte(a), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("git", "apply", "--unidiff-zero", "--whitespace=nowarn", "-")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES=/")
		patch := "--- a/f\n+++ b/f\n" + unified(a, b)
		if b == "" {
			patch = "diff --git a/f b/f\n" + patch
		}
		cmd.Stdin = strings.NewReader(patch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v %s\n%q %q\n%s", err, out, a, b, patch)
		}
		if got, err := os.ReadFile(dir + "/f"); err != nil || string(got) != b {
			t.Fatalf("%q %q: %q\n%s", a, b, got, patch)
		}
	}
}

// TestUnifiedBounded: texts that have nothing in common take no longer than others.
func TestUnifiedBounded(t *testing.T) {
	var a, b strings.Builder
	for i := range 100_000 {
		a.WriteString(strings.Repeat("a", i%50) + "\n")
		b.WriteString(strings.Repeat("b", i%49) + "\n")
	}
	done := make(chan string, 1)
	go func() { done <- unified(a.String(), b.String()) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("no end")
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"a b": `"a b"`, "\u202eb": `"\342\200\256b"`, "\xff": `"\377"`, "ü b": `"ü b"`, "a ": `"a "`, "a\nb": `"a\nb"`, `a"b`: `"a\"b"`, "\x1b[2J": `"\033[2J"`, "ü": "ü", `a\b`: `"a\\b"`} {
		if got := gitQuoted(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
