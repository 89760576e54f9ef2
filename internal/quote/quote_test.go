package quote

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestInside(t *testing.T) {
	for in, want := range map[string]string{
		"/a/b-c_1.d": "/a/b-c_1.d", "x.org:443": "x.org:443", "": `""`, "a b": `"a b"`, "é": `"é"`, `a"b\`: `"a\"b\\"`, "a\nb\t": `"a\nb\t"`, "app/[id].tsx": `"app/\x5bid\x5d.tsx"`,
		"\x1b[2J": `"\x1b\x5b2J"`, "a\x00\x7f": `"a\x00\x7f"`, "\u009b": `"\u009b"`, "\u202etxt": `"\u202etxt"`, "z\u200bw": `"z\u200bw"`, "\U000e0041": `"\U000e0041"`, "\ufe0f": `"\ufe0f"`,
		"\xff\xc3": `"\xff\xc3"`, "\u00a0": `"\u00a0"`, "\u3164": `"\u3164"`,
		strings.Repeat("x", 300): `"` + strings.Repeat("x", 256) + `"… (44 bytes more)`, strings.Repeat("é", 128) + "é": `"` + strings.Repeat("é", 128) + `"… (2 bytes more)`,
		"x" + strings.Repeat("é", 128): `"x` + strings.Repeat("é", 127) + `"… (2 bytes more)`,
	} {
		if got := Inside(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain é": "plain é", "a\nsbxrun: error: forged": `a\nsbxrun: error: forged`, "\x1b[2J": `\x1b[2J`, "a\x00b\x7f": `a\x00b\x7f`, "reversed \u202etxt.exe": `reversed \u202etxt.exe`,
		"C1 \u009b31m": `C1 \u009b31m`, "\xff": `\xff`, `"a\b"`: `"a\b"`, strings.Repeat("x", 5000): strings.Repeat("x", 4096) + "… (904 bytes more)",
	} {
		if got := Line(in); got != want {
			t.Errorf("%q: %.100q, want %.100q", in, got, want)
		}
	}
}

func TestError(t *testing.T) {
	err := fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "/a; hint: run\nit", Err: fs.ErrNotExist})
	if got := Error(err); got != `x: open "/a; hint: run\nit": file does not exist` {
		t.Error(got)
	}
}

// FuzzQuote: whatever comes, it is one line, short, and shows all of its characters;
// what is quoted ends at its mark; and JSON means what it meant.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a", "a\n\"", "\xff\u202e\U000e0041", strings.Repeat("\u200b", 300), `\"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, out := range []string{Inside(s), Text(s), Line(s)} {
			if !utf8.ValidString(out) || strings.ContainsFunc(out, Hidden) || len(out) > 10*maxInside+64 && len(out) > 10*maxLine+64 {
				t.Fatalf("%q: %q", s, out)
			}
		}
		in := Text(s)
		body, _, ok := strings.Cut(in[1:], "… (")
		if !ok {
			body = in[1:]
		}
		body, ok = strings.CutSuffix(body, `"`)
		if plain := strings.NewReplacer(`\\`, "", `\"`, "").Replace(body); !ok || strings.ContainsAny(plain, `"[]`) || strings.HasSuffix(plain, `\`) {
			t.Fatalf("%q: %s", s, in)
		}
		raw, err := json.Marshal(map[string]string{s: s})
		if err != nil {
			t.Fatal(err)
		}
		var before, after map[string]string
		out := JSON(raw)
		if err := json.Unmarshal(raw, &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &after); err != nil || len(after) != 1 || strings.ContainsFunc(string(out), Hidden) {
			t.Fatalf("%q: %s, %v", s, out, err)
		}
		for k, v := range before {
			if after[k] != v {
				t.Fatalf("%q: %s", s, out)
			}
		}
	})
}
