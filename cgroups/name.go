package cgroups

import (
	"strconv"
	"time"
)

// A group's name is "r-TIME-PID-RANDOM": when it was made (seconds since 1970,
// hexadecimal), by whom (decimal), and 64 random bits. The time is
// in the name because a directory of a cgroup file system has no time of its
// own: its inode, and the times in it, are made anew when it was evicted.

// groupName makes a name.
func groupName(now time.Time, pid int, random uint64) string {
	b := make([]byte, 0, 48)
	b = append(b, 'r', '-')
	b = strconv.AppendInt(b, now.Unix(), 16)
	b = append(b, '-')
	b = strconv.AppendInt(b, int64(pid), 10)
	b = append(b, '-')
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, "0123456789abcdef"[random>>shift&15])
	}
	return string(b)
}

// parseName reports when a group was made and by whom, and false for what is no
// group's name.
func parseName(s string) (made time.Time, pid int, ok bool) {
	const randomLen = 16
	if len(s) < len("r-0-1-")+randomLen || s[0] != 'r' || s[1] != '-' {
		return time.Time{}, 0, false
	}
	random := s[len(s)-randomLen:]
	rest := s[2 : len(s)-randomLen]
	dash := -1
	for i := range rest {
		if rest[i] == '-' {
			dash = i
			break
		}
	}
	if dash < 1 || rest[len(rest)-1] != '-' || dash == len(rest)-1 {
		return time.Time{}, 0, false
	}
	by := rest[dash+1 : len(rest)-1]
	if !all(random, true) || !all(rest[:dash], true) || !all(by, false) {
		return time.Time{}, 0, false
	}
	seconds, err := strconv.ParseInt(rest[:dash], 16, 64)
	if err != nil {
		return time.Time{}, 0, false
	}
	if pid, err = strconv.Atoi(by); err != nil {
		return time.Time{}, 0, false
	}
	return time.Unix(seconds, 0), pid, true
}

func all(s string, hex bool) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && !(hex && c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}
