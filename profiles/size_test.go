package profiles

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for s, want := range map[string]uint64{
		"none": 0, "1": 1, "512": 512, "1k": 1 << 10, "1K": 1 << 10, "2m": 2 << 20, "1.5g": 3 << 29, "1GiB": 1 << 30, "10kb": 10 << 10, ".5m": 1 << 19,
		"9007199254740993": 9007199254740993, "3t": 3 << 40, "7b": 7,
	} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
	for s, want := range map[string]string{
		"1x": `"1x" is not a size: want a number with k, m or g`, "": "is not a size", "m": "is not a size", "-1": "is not a size", "+1": "is not a size", "1 m": "is not a size",
		"1e3": "is not a size", "0x10": "is not a size", "1_000": "is not a size", "NaN": "is not a size", "inf": "is not a size", "1..2": "is not a size", "1mm": "is not a size",
		"0.1": "is not a size", "99999999999g": "too large", "9223372036854775807": "too large", "1m\n": "is not a size", "１m": "is not a size",
	} {
		if _, err := ParseSize(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", s, err, want)
		}
	}
}

func TestParseOthers(t *testing.T) {
	if d, err := ParseDuration("1h30m"); err != nil || d != 90*time.Minute {
		t.Error(d, err)
	}
	for _, s := range []string{"", "5", "-5s", "1d", "5 s"} {
		if _, err := ParseDuration(s); err == nil {
			t.Errorf("duration %q passes", s)
		}
	}
	if n, err := ParseCPUs("1.5"); err != nil || n != 1.5 {
		t.Error(n, err)
	}
	for _, s := range []string{"", "0.001", "-1", "1e9", "100000", "x"} {
		if _, err := ParseCPUs(s); err == nil {
			t.Errorf("cpus %q passes", s)
		}
	}
	if n, err := ParseCount("256"); err != nil || n != 256 {
		t.Error(n, err)
	}
	for _, s := range []string{"", "-1", "+1", "1.5", "1k", "99999999999999999999"} {
		if _, err := ParseCount(s); err == nil {
			t.Errorf("count %q passes", s)
		}
	}
}

// A limit of 0 is refused wherever one is said; no limit is "none".
func TestZeroIsNoLimit(t *testing.T) {
	refused := func(what string, err error) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) || e.Fix != "none removes the limit" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, s := range []string{"0", "00", "0k", "0.0g"} {
		_, err := ParseSize(s)
		refused("size "+s, err)
	}
	for _, s := range []string{"0", "0.0"} {
		_, err := ParseCPUs(s)
		refused("cpus "+s, err)
	}
	for _, s := range []string{"0", "0s", "0h0m"} {
		_, err := ParseDuration(s)
		refused("duration "+s, err)
		if d, err := ParseGrace(s); d != 0 || err != nil {
			t.Errorf("grace %q: %v, %v", s, d, err)
		}
	}
	_, err := ParseCount("0")
	refused("count", err)
	for k := range keys {
		value := "0"
		switch keys[k].kind {
		case kindSize, kindCPUs, kindCount:
		case kindDuration:
			value = "0s"
		default:
			continue
		}
		_, err := parseScalar(key(k), value, "test")
		switch key(k) {
		case keyKillAfter, keyRolloutPercent, keyAuditKeep: // no limits
			if err != nil {
				t.Errorf("%s: %v", keys[k].name, err)
			}
		default:
			refused(keys[k].name, err)
		}
		if _, err := parseScalar(key(k), "none", "test"); (err != nil) != (key(k) == keyDisk) {
			t.Errorf("%s: none: %v", keys[k].name, err)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"1x", "1.5g", "none", "9007199254740993", "", ".5k"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		back, err := ParseSize(FormatSize(n))
		if err != nil || back != n {
			t.Fatalf("%q is %d, prints as %q, reads as %d, %v", s, n, FormatSize(n), back, err)
		}
	})
}
