package cgroups

import (
	"bytes"
	"strconv"
	"time"
)

// Stats are what a group's files say of a run. A value that the kernel does not
// keep is 0.
//
// They are evidence, and a verdict on a run rests on them together with how the
// command ended:
//
//   - OOMKills > 0: the kernel's out-of-memory killer ended processes of the
//     group (memory.events oom_kill; v1: memory.oom_control oom_kill).
//     MemoryLimitReached beside it: for the group's own limit. Without it, the
//     memory of the host or of a group above ran out.
//   - PidsDenied > 0: forks failed with EAGAIN at the group's limit
//     (pids.events max).
//
// On v2 an OOM kill ends the whole group (memory.oom.group). On v1 it ends one
// process, the largest, and the others go on; the kernel would tell an eventfd
// that was registered in cgroup.event_control, which costs each run more than
// it gives: the count is read when the command has ended, which ends the rest.
type Stats struct {
	MemoryPeak uint64 // bytes; memory.peak, since Linux 5.19. v1: memory.max_usage_in_bytes, and what sockets held at their peak
	OOMKills   uint64 // kills; where the group dies as a whole its first victim is counted again (seen on Linux 6.1)

	// MemoryLimitReached reports that the group asked for more than its limit
	// and nothing could be reclaimed: memory.events oom. v1: the peak is the
	// limit, which may also have been reached by what could be reclaimed.
	MemoryLimitReached bool

	// OOMBy says whose shortage of memory the kills are for if it was not the group's
	// own limit: "" for that, and where there are no kills.
	OOMBy string

	// PidsBy says whose limit on processes refused the forks if it was not what the
	// resources ask for: "" for that, and where there were no such forks. Like OOMBy,
	// it is known with the usage only.
	PidsBy string

	PidsPeak   uint64 // processes and threads; pids.peak, since Linux 6.1
	PidsDenied uint64 // forks

	// On v1 the times are known only where cpuacct is mounted together with
	// cpu; elsewhere they are 0 and a caller takes wait4(2)'s rusage.
	CPU       time.Duration // user and system
	CPUUser   time.Duration
	CPUSystem time.Duration

	Throttled        time.Duration // that the group's processes were held back by cpu.max
	Periods          uint64        // that the group ran in
	ThrottledPeriods uint64        // of these, that used up the quota
}

// A counter is one value of a group's file, and the key before it if the file
// has more than one.
type counter struct {
	key  string
	into *uint64
}

// scan reads a file of "key value" lines, or one that is a single value, for
// which the key is "".
func scan(data []byte, counters ...counter) {
	for line := range bytes.Lines(data) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		key, value, ok := bytes.Cut(line, []byte(" "))
		if !ok {
			key, value = nil, line
		}
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil {
			continue
		}
		for _, c := range counters {
			if c.key == string(key) {
				*c.into = n
			}
		}
	}
}
