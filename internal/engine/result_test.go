package engine

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/driver"
)

func TestText(t *testing.T) {
	for _, tt := range []struct {
		in        string
		truncated bool
		text, raw string
	}{
		{"text", false, "text", ""},
		{"", true, "", ""},
		{"a\xff", false, "a\xff", "Yf8="},
		{"abc\xc3", true, "abc", ""},             // é cut in two
		{"abc\xe2\x82", true, "abc", ""},         // € cut
		{"abc\xf0\x9f\x98", true, "abc", ""},     // an emoji cut
		{"abc\xc3\xa9", true, "abcé", ""},        // whole
		{"abc\xff", true, "abc\xff", "YWJj/w=="}, // not cut: never was a character
	} {
		text, raw := text(tt.in, tt.truncated)
		if text != tt.text || raw != tt.raw {
			t.Errorf("%q: %q, %q; want %q, %q", tt.in, text, raw, tt.text, tt.raw)
		}
	}
}

// The result object has every field that RUN-3 names, and its lists are lists.
func TestEncodeResult(t *testing.T) {
	b, err := EncodeResult(&driver.Result{Stdout: "<a>\n"})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(b, []byte("\n")) != 1 || bytes.Contains(b, []byte(`\u003c`)) {
		t.Errorf("got %s", b)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range strings.Fields("exit_code reason stdout stderr stdout_truncated stderr_truncated duration_ms setup_ms sandboxed driver profile layers degraded usage denials") {
		if m[k] == nil {
			t.Errorf("%s is missing or null in %s", k, b)
		}
	}
}
