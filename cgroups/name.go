package cgroups

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A group's name is "r-TIME-PID-RANDOM": when it was made (seconds since 1970,
// hexadecimal), by whom (decimal), and 64 random bits. The time is
// in the name because a directory of a cgroup file system has no time of its
// own: its inode, and the times in it, are made anew when it was evicted.

// groupName makes a name.
func groupName(now time.Time, pid int, random uint64) string {
	return fmt.Sprintf("r-%x-%d-%016x", now.Unix(), pid, random)
}

// parseName reports when a group was made and by whom, and false for what is no
// group's name.
func parseName(s string) (made time.Time, pid int, ok bool) {
	const randomLen = 16
	part := strings.Split(s, "-")
	if len(part) != 4 || part[0] != "r" || len(part[3]) != randomLen || !all(part[1], true) || !all(part[2], false) ||
		!all(part[3], true) {
		return time.Time{}, 0, false
	}
	seconds, err := strconv.ParseInt(part[1], 16, 64)
	if err != nil {
		return time.Time{}, 0, false
	}
	if pid, err = strconv.Atoi(part[2]); err != nil {
		return time.Time{}, 0, false
	}
	return time.Unix(seconds, 0), pid, true
}

func all(s string, hex bool) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return (c < '0' || c > '9') && !(hex && c >= 'a' && c <= 'f') })
}
