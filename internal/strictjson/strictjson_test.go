package strictjson

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, text := range []string{`"\ud83d\ude00"`, `"\\ud800"`, `"\u0041\ud83d\uDE00\ufffd"`, `{}`, ` {"a":1,"b":1} `, `{"a":"a","b":"a"}`, `{"a":{"b":1},"c":{"b":1}}`, `{"a":[{"b":1},{"b":1}]}`, `{"a":["a","a"],"b":[]}`,
		`[1,1]`, `"x"`, `null`, `{"b":{"a":1},"a":2}`, nested(MaxDepth)} {
		if err := Check([]byte(text)); err != nil {
			t.Errorf("%.100s: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		`{"a":1,"a":2}`: `key "a" is there twice`, `{"a":1,"\u0061":2}`: `key "a"`, `{"a":1,"A":2}`: `key "A"`, `{"k":1,"K":2}`: "twice",
		`{"x":{"b":1,"b":2}}`: `key "b"`, `{"x":[{"b":1,"c":[],"b":2}]}`: `key "b"`, `{"a":{},"a":1}`: `key "a"`, `{"a":[],"a":1}`: `key "a"`,
		`{"\ud800":1,"\ud801":2}`: "twice", // both are U+FFFD when they are read
		`["\ud800"]`:              "surrogate", `["\udc00"]`: "surrogate", `["\ud800x"]`: "surrogate", `["\ud800\n"]`: "surrogate", `["\ud800\ud800\udc00"]`: "surrogate", `{"\uDFFF":1}`: "surrogate", `["\\\ud800"]`: "surrogate", `["\ud83d\ude00\ude00"]`: "surrogate",
		"{\"\xff\":1}": "UTF-8", ``: "unexpected", `{`: "unexpected", `{"a"}`: "invalid", `]`: "invalid", `{"a":1,}`: "invalid", `x`: "invalid",
		`{} {}`: "follows", `{"a":1}x`: "follows", `[1,]`: "invalid", `{1:2}`: "",
		nested(MaxDepth + 1): "nested deeper", nested(100_000): "nested deeper", strings.Repeat("[", 1<<20): "nested deeper", strings.Repeat(`{"a":`, 100_000): "nested deeper",
		`[{}` + strings.Repeat(`,{"a":1}`, MaxMembers+1) + `]`: "members",
	} {
		if err := Check([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: %v; want %q", text, err, want)
		}
		if len(text) < 1000 && json.Valid([]byte(text)) {
			// The control: encoding/json takes it.
			var v any
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				t.Errorf("%s: is not taken without us, too: %v", text, err)
			}
		}
	}
}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestUnmarshal(t *testing.T) {
	type inner struct {
		X int `json:"x"`
	}
	type outer struct {
		Args []string          `json:"args"`
		Env  map[string]string `json:"env"`
		In   []*inner          `json:"in,omitempty"`
		Raw  json.RawMessage   `json:"raw"`
		Bare int
		Not  int `json:"-"`
	}
	var v outer
	if err := Unmarshal([]byte(`{"args":["a"],"env":{"no_proxy":"1","NO_PROXY":"2"},"in":[{"x":1},null],"raw":{"any":{"thing":1}},"Bare":3}`), &v); err != nil ||
		len(v.Env) != 2 || v.In[0].X != 1 || v.Bare != 3 {
		t.Errorf("%+v, %v", v, err)
	}
	for text, want := range map[string]string{
		`{"Args":["a"]}`: `unknown key "Args"`, `{"args":[],"ARGS":["a"]}`: `unknown key "ARGS"`, `{"args":["a"],"args":["b"]}`: "twice", `{"env":{"A":"1","A":"2"}}`: "twice",
		`{"in":[{"X":1}]}`: `unknown key "X"`, `{"bare":1}`: "unknown", `{"Not":1}`: "unknown", `{"-":1}`: "unknown", `{"other":1}`: "unknown", `{"args":1}`: "cannot unmarshal", `{} x`: "follows",
		`{"args":["a",1]}`: ".args[1] of type string", `{"env":{"A":{}}}`: ".env.A of type string", `{"in":[{},{"x":"1"}]}`: ".in[1].x of type int", `{"in":{}}`: "cannot unmarshal object",
		// encoding/json would read "" and 0.
		`{"args":[null]}`: "cannot unmarshal null", `{"env":{"A":null}}`: "cannot unmarshal null",
	} {
		if err := Unmarshal([]byte(text), &outer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// FuzzCheck: what is taken reads the same to one who takes the first of two members
// and to one who takes the last, and is JSON.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":2}`, `{"a":{"b":[{"c":1,"C":1}]}}`, `[{"\u0061":1,"a":2}]`, "{\"\xff\":1}", nested(101), `{"a":1,}`, `{"a":1 "b":2}`, `[1 2]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if Check(text) != nil {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("taken, and no JSON: %q", text)
		}
		if first, last := read(t, text, true), read(t, text, false); !bytes.Equal(first, last) {
			t.Fatalf("%q is %s and %s", text, first, last)
		}
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

// read is a reader that keeps the first or the last of members with one name in any
// case; it is written apart from what it judges.
func read(t *testing.T, raw []byte, first bool) []byte {
	raw = bytes.TrimSpace(raw)
	var out any
	switch raw[0] {
	case '{':
		m := map[string]json.RawMessage{}
		d := json.NewDecoder(bytes.NewReader(raw))
		d.Token()
		for d.More() {
			name, err := d.Token()
			if err != nil {
				t.Fatal(err)
			}
			var v json.RawMessage
			if err := d.Decode(&v); err != nil {
				t.Fatal(err)
			}
			key := strings.ToLower(name.(string))
			if _, ok := m[key]; ok && first {
				continue
			}
			m[key] = read(t, v, first)
		}
		out = m
	case '[':
		var l []json.RawMessage
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatal(err)
		}
		for i := range l {
			l[i] = read(t, l[i], first)
		}
		out = l
	default:
		return raw
	}
	b, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
