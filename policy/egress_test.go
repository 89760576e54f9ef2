package policy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestParseEgressRule(t *testing.T) {
	for _, c := range []struct {
		in   string
		want string // as String prints it
	}{
		{"example.com", "example.com"},
		{"Example.COM.:443", "example.com:443"},
		{"*.Example.com:443,80,443", "*.example.com:80,443"},
		{"*:8000-8100,8050-8200", "*:8000-8200"},
		{"https://example.com", "https://example.com"},
		{"https://example.com/", "https://example.com"},
		{"https://example.com:8443", "tls://example.com:8443"},
		{"http://example.com", "http://example.com"},
		{"http://example.com:8080", "http://example.com:8080"},
		{"tls://*.example.com", "tls://*.example.com"},
		{"tcp://example.com:22", "tcp://example.com:22"},
		{"TCP://[2001:db8::1]:443", "tcp://[2001:db8::1]:443"},
		{"bücher.example", "xn--bcher-kva.example"},
		{"BÜCHER.example:443", "xn--bcher-kva.example:443"},
		{"_sip._tcp.example.com", "_sip._tcp.example.com"},
		{"localhost:3000", "localhost:3000"},
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"192.0.2.1:80", "192.0.2.1:80"},
		{"[2001:DB8:0::1]:443", "[2001:db8::1]:443"},
		{"2001:db8::1", "2001:db8::1"},
		{"[2001:db8::/32]:443", "[2001:db8::/32]:443"},
		{"0.0.0.0/0", "0.0.0.0/0"},
	} {
		r, err := ParseEgressRule(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if r.String() != c.want {
			t.Errorf("%s: %s, want %s", c.in, r, c.want)
		}
		again, err := ParseEgressRule(r.String())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%s: printed and read again: %+v, %v", c.in, again, err)
		}
	}
}

// TestParseEgressRuleBad: every odd spelling of an address is no name (E04), and a
// malformed rule is an error (E14).
func TestParseEgressRuleBad(t *testing.T) {
	for _, in := range []string{
		"", ":80", "*.", "*x.com", "x.*.com", "**", "*.*.com", ".example.com", "a..b", "example.com..",
		"127.1", "0x7f.1", "0x7f000001", "017700000001", "2130706433", "127.0.0.01", "1.2.3", "1.2.3.4.", "1.2.3.4.5", "256.1.1.1",
		"example.0x1", "example.123", "0x", "::ffff:127.0.0.1", "[::ffff:127.0.0.1]:80", "fe80::1%eth0", "[fe80::1%25eth0]:80",
		"10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/08", "::ffff:10.0.0.0/104", "10.0.0.0/", "10/8",
		"example.com:", "example.com:0", "example.com:65536", "example.com:443,", "example.com:-1", "example.com:20-10", "example.com:+80", "example.com:080", "example.com:80-", "example.com:http",
		"[example.com]:80", "[::1", "[::1]80", "[::1]:", "ftp://example.com", "https://example.com/path", "https://", "https://user@example.com", "tcp://example.com", "tcp://*", "tcp://10.0.0.0/8", "tcp://",
		"exa mple.com", "example.com\n", "example.com\x00", "exa%6dple.com", "-example.com", "example-.com", "exa\x1bmple.com", "\xff.com", "a\u200b.com\u2028",
		strings.Repeat("a", 64) + ".com", strings.Repeat("a.", 127) + "com", strings.Repeat("ü", 1025),
	} {
		if r, err := ParseEgressRule(in); err == nil {
			t.Errorf("%q is read as %s", in, r)
		} else if _, ok := err.(*InvalidError); !ok {
			t.Errorf("%q: %T", in, err)
		}
	}
}

func TestEgressJSON(t *testing.T) {
	in := Egress{Mode: EgressProxy, Allow: []EgressRule{{Host: "a.example", Ports: []PortRange{{80, 80}, {8000, 8100}}, Protocol: ProtocolTLS}, {Host: "*"}}}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"mode":"proxy","allow":[{"host":"a.example","ports":[80,"8000-8100"],"protocol":"tls"},{"host":"*"}]}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	var out Egress
	if err := json.Unmarshal(b, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestEgressValidate(t *testing.T) {
	good := Egress{Mode: EgressProxy, Allow: []EgressRule{{Host: "*.example.com", Ports: []PortRange{{1, 65535}}}}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, e := range []Egress{
		{Mode: 9},
		{RequestsPerMinute: -1},
		{Allow: []EgressRule{{}}},
		{Allow: []EgressRule{{Host: "Example.com"}}},
		{Deny: []EgressRule{{Host: "127.1"}}},
		{Deny: []EgressRule{{Host: "a.example", Ports: []PortRange{{0, 0}}}}},
		{Deny: []EgressRule{{Host: "a.example", Ports: []PortRange{{2, 1}}}}},
		{Allow: []EgressRule{{Host: "a.example", Protocol: 7}}},
	} {
		if e.Validate() == nil {
			t.Errorf("%+v is valid", e)
		}
	}
}

// FuzzParseEgressRule: what is read is valid, and reads the same when printed.
func FuzzParseEgressRule(f *testing.F) {
	for _, s := range []string{"*.example.com:443,8000-8100", "https://bücher.example", "[2001:db8::/32]:1", "0x7f.1", "10.0.0.0/8:80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseEgressRule(s)
		if err != nil {
			return
		}
		e := Egress{Allow: []EgressRule{r}}
		if err := e.Validate(); err != nil {
			t.Fatalf("%q: %+v: %v", s, r, err)
		}
		again, err := ParseEgressRule(r.String())
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%q: %+v prints %s, which reads %+v, %v", s, r, r, again, err)
		}
	})
}
