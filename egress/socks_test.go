package egress

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// TestSOCKSBad: E03, E04, and commands that are not CONNECT.
func TestSOCKSBad(t *testing.T) {
	w := newWorld(t, allow("a.example", "127.0.0.1", "10.0.0.0/8"))
	five := func(cmd byte, host string) string {
		return "\x05\x01\x00\x05" + string(cmd) + "\x00\x03" + string(byte(len(host))) + host + "\x00\x50"
	}
	four := func(cmd byte, host string) string {
		return "\x04" + string(cmd) + "\x00\x50\x00\x00\x00\x01user\x00" + host + "\x00"
	}
	for _, host := range []string{
		"a.example\r\nX", "a.example%00", "a.exam ple", "", ".", "a..example", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "::ffff:127.0.0.1", "fe80::1%eth0", "[::1]", "a.example:80", "m\u00fcnchen.example", strings.Repeat("a", 250) + ".com",
	} {
		if got := w.raw(w.dialProxy(), five(1, host)); got != "\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00" {
			t.Errorf("5 %q: %q", host, got)
		}
		if got := w.raw(w.dialProxy(), four(1, host)); got != "\x00\x5b\x00\x00\x00\x00\x00\x00" {
			t.Errorf("4 %q: %q", host, got)
		}
	}
	if got := w.raw(w.dialProxy(), five(1, "a.example\x00.evil")); got != "\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00" {
		t.Errorf("NUL: %q", got)
	}
	for _, cmd := range []byte{0, 2, 3, 9} {
		if got := w.raw(w.dialProxy(), five(cmd, "a.example")); !strings.HasPrefix(got, "\x05\x00\x05\x07") {
			t.Errorf("5 command %d: %q", cmd, got)
		}
		if got := w.raw(w.dialProxy(), four(cmd, "a.example")); !strings.HasPrefix(got, "\x00\x5b") {
			t.Errorf("4 command %d: %q", cmd, got)
		}
	}
	// ::ffff:127.0.0.1 by its number, and a type of address that is none.
	if got := w.raw(w.dialProxy(), "\x05\x01\x00\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x7f\x00\x00\x01\x00\x50"); !strings.HasPrefix(got, "\x05\x00\x05\x02") {
		t.Errorf("%q", got)
	}
	if got := w.raw(w.dialProxy(), "\x05\x01\x00\x05\x01\x00\x02aaaa\x00\x50"); !strings.HasPrefix(got, "\x05\x00\x05\x01") {
		t.Errorf("%q", got)
	}
	if dialled, asked := w.taken(); len(dialled)+len(asked) > 0 {
		t.Errorf("dialled %v, asked for %v", dialled, asked)
	}
}

// TestSOCKSPieces: a request that comes byte by byte, with the first bytes of the
// tunnel right behind it.
func TestSOCKSPieces(t *testing.T) {
	w := newWorld(t, allow("a.example"), func(o *Options) { o.Token = "t" })
	w.host("a.example", "93.184.216.34", 7, echo)
	for _, c := range []struct{ in, want string }{
		{"\x05\x02\x00\x02\x01\x01u\x01t\x05\x01\x00\x03\x09a.example\x00\x07hello", "\x05\x02\x01\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00hello"},
		{"\x04\x01\x00\x07\x00\x00\x00\x01t\x00a.example\x00hello", "\x00\x5a\x00\x00\x00\x00\x00\x00hello"},
	} {
		nc := w.dialProxy()
		for i := range len(c.in) {
			if _, err := nc.Write([]byte(c.in[i : i+1])); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, len(c.want))
		if _, err := io.ReadFull(nc, got); err != nil || string(got) != c.want {
			t.Errorf("%q, %v, want %q", got, err, c.want)
		}
		nc.Close()
	}
}

func FuzzSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x03\x09a.example\x00\x07"))
	f.Add([]byte("\x04\x01\x00\x07\x00\x00\x00\x01t\x00a.example\x00"))
	f.Add([]byte("\x05\x02\x00\x02"))
	f.Add([]byte("\x01\x01u\x01t"))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(n int, host authority, err error) {
			if n < 0 || n > len(b) || err == nil && n == 0 {
				t.Fatal(n, err)
			}
			if err == nil && host.name == "" && !host.addr.IsValid() || host.addr.Is4In6() && err == nil {
				t.Fatalf("%+v", host)
			}
			if err != nil && err != errShort && !errors.Is(err, errSOCKS) && !errors.Is(err, errHost) {
				t.Fatal(err)
			}
		}
		_, host, n, err := parseSOCKS5(b)
		check(n, host, err)
		_, _, host, n, err = parseSOCKS4(b)
		check(n, host, err)
		some := authority{name: "x"}
		_, n, err = parseSOCKSMethods(b)
		check(n, some, err)
		_, n, err = parseSOCKSPassword(b)
		check(n, some, err)
	})
}
