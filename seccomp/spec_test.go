package seccomp

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const good = `{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"syscalls":[
		{"names":["read"],"action":"SCMP_ACT_ALLOW"},
		{"names":["ioctl"],"action":"SCMP_ACT_ALLOW","args":[{"index":1,"value":4294967295,"valueTwo":1,"op":"SCMP_CMP_MASKED_EQ"},{"index":0,"value":18446744073709551615,"op":"SCMP_CMP_NE"}]}]}`
	p, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.Syscalls); n != 2 || p.Syscalls[1].Args[1].Value != ^uint64(0) {
		t.Errorf("got %+v", p)
	}
	for _, tt := range []struct{ in, want string }{
		{``, "unexpected EOF"},
		{`null`, "defaultAction is missing"},
		{`{}`, "defaultAction is missing"},
		{`{"defaultaction":"SCMP_ACT_ALLOW"}`, `unknown key "defaultaction"`},
		{`{"defaultAction":"SCMP_ACT_ALLOW","defaultAction":"SCMP_ACT_KILL"}`, "twice"},
		{`{"defaultAction":"SCMP_ACT_ALLOW","archMap":[]}`, `unknown key "archMap"`},
		{`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"read"}]}`, `unknown key "name"`},
		{`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"Action":"SCMP_ACT_KILL"}]}`, `unknown key "Action"`},
		{`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"x","args":[{"index":0,"Index":1}]}]}`, `unknown key "Index"`},
		{`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"x","args":[{"index":-1}]}]}`, "seccomp profile"},
		{`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"x","args":[{"value":18446744073709551616}]}]}`, "seccomp profile"},
		{`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":{"names":{"x":{"y":1}}}}`, `cannot unmarshal object`},
		{`{"defaultAction":"SCMP_ACT_ALLOW"}}`, "seccomp profile"},
		{`{"defaultAction":"SCMP_ACT_ALLOW"} 1`, "follows"},
	} {
		p, err := Parse([]byte(tt.in))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Parse(%s) = %+v, %v; want %q", tt.in, p, err, tt.want)
		}
	}
}

// FuzzParse: what is read is read whole: it prints and reads back the same, and
// every key in it is one of the specification's.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","flags":["SECCOMP_FILTER_FLAG_LOG"],"syscalls":[{"names":["a"],"args":[{"index":1}]}]}`))
	f.Add([]byte(`{"a":[{"b":{}}],"a":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Parse(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if third, _ := json.Marshal(q); string(third) != string(again) {
			t.Errorf("%s, then %s", again, third)
		}
		d := json.NewDecoder(strings.NewReader(string(b)))
		d.DisallowUnknownFields()
		if err := d.Decode(reflect.New(reflect.TypeOf(*p)).Interface()); err != nil {
			t.Errorf("accepted what encoding/json refuses: %v", err)
		}
	})
}
