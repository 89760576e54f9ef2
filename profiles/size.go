package profiles

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseSize reads a number of bytes: digits, with a fraction if wanted, and one
// of the suffixes k, m, g or t (powers of 1024; "kb" and "kib" mean the same).
// "none" is 0, which every limit takes as no limit; what else is 0 is refused.
func ParseSize(s string) (uint64, error) {
	bad := &Error{What: strconv.Quote(s) + " is not a size: want a number with k, m or g", Fix: "for example 512m or 2g"}
	if s == "none" {
		return 0, nil
	}
	num := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	shift := 0
	switch strings.ToLower(s[len(num):]) {
	case "", "b":
	case "k", "kb", "kib":
		shift = 10
	case "m", "mb", "mib":
		shift = 20
	case "g", "gb", "gib":
		shift = 30
	case "t", "tb", "tib":
		shift = 40
	default:
		return 0, bad
	}
	n, ok := parseDecimal(num)
	if !ok {
		return 0, bad
	}
	n *= float64(uint64(1) << shift)
	if n >= math.MaxInt64 {
		return 0, &Error{What: strconv.Quote(s) + " is too large for a size", Fix: "none removes the limit"}
	}
	if n > 0 && n < 1 {
		return 0, bad
	}
	if n == 0 {
		return 0, zero(s)
	}
	// Whole numbers exactly: a float64 has only 53 bits.
	if whole, err := strconv.ParseUint(num, 10, 64); err == nil {
		return whole << shift, nil
	}
	return uint64(n), nil
}

// zero refuses a limit of 0. Nothing could run within it, and who has it of an empty
// variable does not mean to run without one.
func zero(s string) error {
	return &Error{What: strconv.Quote(s) + " is no limit that anything could run within", Fix: "none removes the limit"}
}

// FormatSize prints bytes as ParseSize reads them.
func FormatSize(n uint64) string {
	if n == 0 {
		return "none"
	}
	for shift, suffix := 40, "tgmk"; suffix != ""; shift, suffix = shift-10, suffix[1:] {
		if n%(1<<shift) == 0 {
			return strconv.FormatUint(n>>shift, 10) + suffix[:1]
		}
	}
	return strconv.FormatUint(n, 10)
}

// ParseDuration reads a duration in Go's form. "none" is 0, no limit; what else is
// 0, or negative, is refused.
func ParseDuration(s string) (time.Duration, error) {
	d, err := ParseGrace(s)
	if err == nil && d == 0 && s != "none" {
		return 0, zero(s)
	}
	return d, err
}

// ParseGrace reads a duration that is no limit but a time to wait: 0, or "none", is
// not to wait at all.
func ParseGrace(s string) (time.Duration, error) {
	if s == "none" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		fix := "for example 30s, 5m or 1h30m"
		if _, ok := parseDecimal(s); ok {
			fix = "say the unit: " + s + "s is in seconds"
		}
		return 0, &Error{What: strconv.Quote(s) + " is not a duration: want a number with ms, s, m or h", Fix: fix}
	}
	return d, nil
}

// ParseCPUs reads a number of processors, such as 1.5. "none" is 0, no limit; what
// else is 0 is refused.
func ParseCPUs(s string) (float64, error) {
	if s == "none" {
		return 0, nil
	}
	n, ok := parseDecimal(s)
	if ok && n == 0 {
		return 0, zero(s)
	}
	// cpu.cfs_quota_us is at least 1 ms of a 100 ms period; see
	// Documentation/scheduler/sched-bwc.rst.
	if !ok || n < 0.01 || n > 1<<16 {
		return 0, &Error{What: strconv.Quote(s) + " is not a number of cpus: want a number from 0.01 up",
			Fix: "for example 1.5; none removes the limit"}
	}
	return n, nil
}

// ParseCount reads a limit on things, such as processes. "none" is 0, no limit;
// what else is 0 is refused.
func ParseCount(s string) (int64, error) {
	n, err := parseNumber(s)
	if err == nil && n == 0 && s != "none" {
		return 0, zero(s)
	}
	return n, err
}

// parseNumber reads a whole number, of which "none" is 0.
func parseNumber(s string) (int64, error) {
	if s == "none" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || s[0] == '+' {
		return 0, &Error{What: strconv.Quote(s) + " is not a count: want a whole number",
			Fix: "for example 256; none removes the limit"}
	}
	return n, nil
}

// parseDecimal reads digits with at most one point among them: what a person
// writes, without the exponents, signs, underscores, hexadecimals and NaN that
// strconv takes too.
func parseDecimal(s string) (float64, bool) {
	if strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil
}
