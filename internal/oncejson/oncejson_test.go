package oncejson

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

type named string

type embeds struct {
	specs.Box
	Own int `json:"own"`
}

// message has a field of every kind that a message may have.
type message struct {
	Op      string          `json:"op"`
	Policy  *policy.Policy  `json:"policy,omitempty"`
	Process *specs.Process  `json:"process,omitempty"`
	Result  *driver.Result  `json:"result,omitempty"`
	Raw     json.RawMessage `json:"raw,omitempty"`
	Bytes   []byte          `json:"bytes"`
	Pair    [2]int          `json:"pair,omitempty"`
	Flags   []bool          `json:"flags,omitempty"`
	Float   float64         `json:"float"`
	Named   named
	Any     any                `json:"any,omitempty"`
	Map     map[string]int     `json:"map,omitempty"`
	Inner   struct{ A, B int } `json:"inner"`
	Embeds  embeds             `json:"embeds"`
	Time    time.Time          `json:"time"`
	TimeP   *time.Time         `json:"timep,omitempty"`
	Skipped int                `json:"-"`
	Quoted  struct {
		N int `json:"n,string"`
		Z int `json:"z,omitzero"`
	} `json:"quoted"`
	hidden int //lint:ignore U1000 what is not exported is passed over
}

var texts = []string{"", "a", "plain words", "<&>", "quote\"back\\slash", "ü\u2028", "line\nbreak\x00\x7f", `{"a":[1,"]}"]}`}

// fill puts random values into a value, some of them zero.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	if v.Type() == reflect.TypeFor[policy.PortRange]() {
		v.Set(reflect.ValueOf(policy.PortRange{First: 1, Last: uint16(1 + r.Intn(9))}))
		return
	}
	if r.Intn(4) == 0 {
		return
	}
	switch v.Interface().(type) {
	case json.RawMessage:
		v.SetBytes([]byte([]string{`{"a":1}`, `[]`, `"<"`, `null`}[r.Intn(4)]))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(r.Int63n(1<<32), r.Int63n(1e9)).UTC()))
		return
	case policy.Layers:
		v.SetUint(uint64(policy.LayerUser) | uint64(policy.LayerPID)*uint64(r.Intn(2)))
		return
	case policy.Access, policy.EgressMode, policy.EgressProtocol:
		return // what has a name only
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(r.Int63() >> (64 - v.Type().Bits()) * int64(1-2*r.Intn(2)))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64() >> (64 - v.Type().Bits()))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(r.NormFloat64())
	case reflect.String:
		v.SetString(texts[r.Intn(len(texts))])
	case reflect.Pointer:
		if depth < 8 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem(), depth+1)
		}
	case reflect.Slice:
		n := r.Intn(3)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(r, v.Index(i), depth+1)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i), depth+1)
		}
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		if v.Type().Key().Kind() == reflect.String {
			for range r.Intn(3) {
				e := reflect.New(v.Type().Elem()).Elem()
				fill(r, e, depth+1)
				m.SetMapIndex(reflect.ValueOf(texts[r.Intn(3)]).Convert(v.Type().Key()), e)
			}
		}
		v.Set(m)
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf(texts[r.Intn(len(texts))]))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).PkgPath == "" {
				fill(r, v.Field(i), depth+1)
			}
		}
	}
}

// TestAsEncodingJSON holds both directions to encoding/json.
func TestAsEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	filled := 0
	for range 3000 {
		var m message
		fill(r, reflect.ValueOf(&m).Elem(), 0)
		want, err := json.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Fatalf("written\n%s\nwant\n%s", got, want)
		}
		filled = max(filled, len(want))
		if r.Intn(2) == 0 {
			if want, err = json.MarshalIndent(&m, " ", "\t"); err != nil {
				t.Fatal(err)
			}
		}
		var back, as message
		if err := json.Unmarshal(want, &as); err != nil {
			t.Fatal(err)
		}
		if err := Unmarshal(want, &back); err != nil {
			t.Fatalf("%v: %s", err, want)
		}
		if !reflect.DeepEqual(back, as) {
			t.Fatalf("read\n%+v\nwant\n%+v\nof %s", back, as, want)
		}
	}
	if filled < 4000 {
		t.Errorf("the largest message had %d bytes", filled)
	}
}

func TestValuesAlone(t *testing.T) {
	for _, v := range []any{nil, 1, "x", true, []string{}, []string(nil), map[string]int{"a": 1}, struct{}{}, message{}, json.Number("12"), policy.LayerUser} {
		want, err := json.Marshal(v)
		got, gerr := Marshal(v)
		if err != nil || gerr != nil || string(got) != string(want) {
			t.Errorf("%T: %s %v, want %s %v", v, got, gerr, want, err)
		}
	}
	if _, err := Marshal(make(chan int)); err == nil {
		t.Error("a channel was written")
	}
}

func TestBadInput(t *testing.T) {
	for _, s := range []string{"", " ", "{", `{"op":`, `{"op":"x"`, `{"op":"x"}}`, `[1,2`, `{"op" "x"}`, "{\"op\":\"\x01\"}", `nul`, strings.Repeat("[", 20000)} {
		var m message
		if err := Unmarshal([]byte(s), &m); err == nil {
			t.Errorf("%q was read", s)
		}
	}
	// What is JSON and not what the field holds.
	for _, s := range []string{`{"op":1}`, `{"pair":{}}`, `{"flags":[1]}`, `{"process":[]}`, `{"process":{"args":"x"}}`, `{"policy":{"limits":{"output":"x"}}}`, `[]`, `"x"`, `{"flags":3}`} {
		var m, n message
		if err, want := Unmarshal([]byte(s), &m), json.Unmarshal([]byte(s), &n); (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", s, err, want)
		}
	}
	for _, s := range []string{`null`, `{}`, ` { } `, `{"unknown":[{"a":"}\\\""}],"op":"y"}`, `{"process":null,"flags":null,"op":null}`, `{"op":"a","op":"b"}`} {
		m, n := message{Op: "x", Flags: []bool{true}, Process: &specs.Process{}}, message{Op: "x", Flags: []bool{true}, Process: &specs.Process{}}
		if err, want := Unmarshal([]byte(s), &m), json.Unmarshal([]byte(s), &n); err != nil || want != nil || !reflect.DeepEqual(m, n) {
			t.Errorf("%s: %+v %v, want %+v %v", s, m, err, n, want)
		}
	}
	var m message
	if Unmarshal([]byte("{}"), m) == nil || Unmarshal([]byte("{}"), (*message)(nil)) == nil || Unmarshal([]byte("{}"), nil) == nil {
		t.Error("read into nothing")
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"op":"x","process":{"args":["a"],"env":null},"pair":[1,2],"inner":{"A":1},"raw":{"x":[1]},"quoted":{"n":"1"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		if Unmarshal(b, &m) == nil && !json.Valid(b) {
			t.Fatalf("%q is no JSON", b)
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	var m message
	fill(rand.New(rand.NewSource(3)), reflect.ValueOf(&m).Elem(), 0)
	for _, c := range []struct {
		name string
		do   func(any) ([]byte, error)
	}{{"once", Marshal}, {"encoding", json.Marshal}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.do(&m)
			}
		})
	}
}

// TestBytes: what is not UTF-8 arrives as it was, and no two texts are one.
func TestBytes(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []string{
		"\xff", "\xfe", "\x80", "a\xffb", "\xff\xfe\xff", "ü\xffü", "\xed\xb2\x80", "\xc3", "\xe2\x82", "\ufffd", "\xff\"\\\n<", `\udc80`, "😀\x80", "\\\xff",
	} {
		b, err := Marshal([]string{s})
		if err != nil || !json.Valid(b) {
			t.Fatalf("%q: %s, %v", s, b, err)
		}
		if other, ok := seen[string(b)]; ok {
			t.Errorf("%q and %q are both %s", s, other, b)
		}
		seen[string(b)] = s
		var back []string
		if err := Unmarshal(b, &back); err != nil || len(back) != 1 || back[0] != s {
			t.Errorf("%q became %s and %q, %v", s, b, back, err)
		}
	}
	// A pair of surrogates is a character, whoever wrote it so.
	for text, want := range map[string]string{
		`"\ud83d\udc80"`: "💀", `"\uD83D\uDC80"`: "💀", `"\ud83d\ud83d\udc80x\udc80"`: "", `"\\udc80"`: `\udc80`, `"x\udcffy"`: "x\xffy", `"\udc7f"`: "\ufffd",
	} {
		var got string
		err := Unmarshal([]byte(text), &got)
		if want == "" { // anything, and no panic
			continue
		}
		if err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", text, got, err, want)
		}
	}
}
