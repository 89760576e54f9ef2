package guard

import (
	"bytes"
	"strconv"
	"strings"
	"syscall"
)

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }

// numbers reads the numbers after a key at the beginning of a line, as
// /proc/PID/status has them; see proc_pid_status(5).
func numbers(text []byte, key string, radix int) ([]int, syscall.Errno) {
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte(key))
		if !ok {
			continue
		}
		var out []int
		for _, f := range strings.Fields(string(rest)) {
			n, err := strconv.ParseInt(f, radix, 32)
			if err != nil {
				return nil, syscall.EIO
			}
			out = append(out, int(n))
		}
		if len(out) > 0 {
			return out, 0
		}
	}
	return nil, syscall.EIO
}

// mountInfo is what the kernel tells of a mount.
type mountInfo struct {
	at     string // the mount point
	parent int    // the mount that this is on
	dev    string // the file system
	root   string // what of the file system is mounted
	proc   bool   // it is a procfs
}

// parseMounts reads /proc/PID/mountinfo, by the mounts' ids; see
// proc_pid_mountinfo(5).
func parseMounts(text []byte) map[int]mountInfo {
	list := map[int]mountInfo{}
	for line := range bytes.Lines(text) {
		line, fs, _ := bytes.Cut(line, []byte(" - "))
		f := bytes.SplitN(line, []byte(" "), 6)
		if len(f) < 6 {
			continue
		}
		id, err1 := strconv.Atoi(string(f[0]))
		parent, err2 := strconv.Atoi(string(f[1]))
		if err1 == nil && err2 == nil && len(f[3]) > 0 && len(f[4]) > 0 {
			list[id] = mountInfo{unescape(string(f[4])), parent, string(f[2]), unescape(string(f[3])),
				bytes.HasPrefix(fs, []byte("proc "))}
		}
	}
	return list
}

// unescape undoes the octal escapes for space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, "\\") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b = append(b, byte(n))
				i += 3
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

// terminalOf reads the device number of the controlling terminal from
// /proc/PID/stat; see proc_pid_stat(5). The name before it, in parentheses, may
// hold anything.
func terminalOf(stat []byte) (uint64, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, false
	}
	f := strings.Fields(string(stat[i+1:]))
	if len(f) < 5 {
		return 0, false
	}
	n, err := strconv.ParseInt(f[4], 10, 64)
	if err != nil || n == 0 {
		return 0, false
	}
	// Bits 31 to 20 and 7 to 0 are the minor number, 15 to 8 the major one.
	u := uint32(n)
	major, minor := uint64(u>>8&0xfff), uint64(u&0xff|u>>12&0xfff00)
	return major<<8 | minor&0xff | minor&^0xff<<12, true
}

// An idRange is a line of a user namespace's map; see user_namespaces(7).
type idRange struct{ inside, outside, count uint64 }

// idMap reads /proc/PID/uid_map or gid_map.
func idMap(text []byte) []idRange {
	list := []idRange{}
	for line := range bytes.Lines(text) {
		var n [3]uint64
		f := strings.Fields(string(line))
		for i := 0; i < len(f) && i < len(n); i++ {
			n[i], _ = strconv.ParseUint(f[i], 10, 32)
		}
		list = append(list, idRange{n[0], n[1], n[2]})
	}
	return list
}

// mapID is an id outside of its namespace, false if it has none.
func mapID(m []idRange, id uint32) (uint32, bool) {
	for _, r := range m {
		if n := uint64(id); n >= r.inside && n-r.inside < r.count {
			return uint32(r.outside + n - r.inside), true
		}
	}
	return 0, false
}

// pending reads from /proc/PID/status whether a signal that is not blocked waits
// for the thread, or for the process if the thread is its first.
func pending(status []byte) bool {
	n := map[string]uint64{}
	for line := range bytes.Lines(status) {
		key, value, _ := strings.Cut(string(line), ":")
		radix := 16
		switch key {
		case "Tgid", "Pid":
			radix = 10
		case "SigPnd", "ShdPnd", "SigBlk":
		default:
			continue
		}
		n[key], _ = strconv.ParseUint(strings.TrimSpace(value), radix, 64)
	}
	waits := n["SigPnd"]
	if n["Tgid"] == n["Pid"] {
		waits |= n["ShdPnd"]
	}
	return waits&^n["SigBlk"] != 0
}
