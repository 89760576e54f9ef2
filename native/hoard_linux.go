package native

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/policy"
)

// Some memory of the kernel that a command can make it take is in no cgroup's limit:
//
//   - Netlink sockets and what waits unread in them, in no version of cgroups. A process
//     may have as many sockets as descriptors, and 200 KiB or more in each. A filter
//     cannot refuse the sockets, which getifaddrs(3) needs, and cannot see who reads.
//   - On cgroup v1 what TCP and UDP sockets hold has a limit of its own, which each
//     socket passes by a few KiB; see __sk_mem_raise_allocated in net/core/sock.c.
//   - Locks of files, in no version; see fs/locks.c, and 3754707bcc3e, which took it
//     back. The filter refuses those of an open file (F_OFD_SETLK), which no pid
//     namespace keeps apart.
//
// So the supervisor looks, and ends a sandbox that takes too much, as the kernel ends
// one for the rest of its memory.
const (
	// maxUnread is more than programs leave unread: an answer is a few KiB.
	maxUnread = 16 << 20

	// maxLocks is more than a database takes. Each is 200 bytes. The kernel walks
	// its list from the beginning for each page that is read, so far more would
	// take long.
	maxLocks = 8 << 10

	// hoardEvery is how often it looks. That takes some hundred microseconds of the
	// processor, most of them the runtime's, and the list of locks as long as an RCU grace
	// period, milliseconds, in which it sleeps.
	//
	// It does not look less often while the command is idle: nothing tells when that ends,
	// so a command would wait for the longest interval, and take that much more in it.
	hoardEvery = 50 * time.Millisecond
)

// A hoard watches a sandbox for memory of the kernel. Nil watches nothing.
type hoard struct {
	pid   int  // of a process in the sandbox's pid namespace, which is alive when stop is called
	net   bool // it has a network namespace of its own
	group *cgroups.Group
	kill  func()      // ends the sandbox
	idle  func() bool // whether nothing runs, until start is called again; nil for never

	mu    sync.Mutex
	timer *time.Timer
	over  bool // stop was called
	full  bool

	scratch bool // there was no room in the private storage at one of the looks
}

// newHoard prepares to watch; nil if there is no limit of memory to hold.
func (s *starter) newHoard(child *reexec.Child, kill func(), idle func() bool) *hoard {
	if !s.layers.Has(policy.LayerCgroupMemory) {
		return nil
	}
	return &hoard{pid: child.Pid(), net: s.layers.Has(policy.LayerNet), group: s.group, kill: kill, idle: idle}
}

// start begins to watch, if nobody does.
func (h *hoard) start() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer == nil && !h.over {
		h.timer = time.AfterFunc(hoardEvery, h.look)
	}
}

// look reads the tables once, and then waits for the next time.
func (h *hoard) look() {
	locks, full := h.tables()
	// Without h.mu: locks_start in fs/locks.c waits for a grace period.
	full = full || locksIn(locks) > maxLocks
	locks.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over:
	case full:
		h.full = true
		h.kill()
	case h.timer != nil:
		h.timer.Reset(hoardEvery)
	}
}

// tables opens the list of locks, nil if nothing runs, and reads the others: full says
// that they are.
func (h *hoard) tables() (locks *os.File, full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return nil, false
	}
	if h.idle != nil && h.idle() {
		h.timer = nil
		return nil, false
	}
	// No error: what the kernel does not have is not hoarded.
	proc := "/proc/" + strconv.Itoa(h.pid)
	netlink := 0
	if h.net {
		netlink = unread(proc+"/net/netlink") + netlinkSock*netlinkSockets(proc+"/net/protocols")
	}
	locks, _ = os.Open(proc + "/root/proc/locks")
	var st unix.Statfs_t // of the host's root, while PID 1 is still there
	if unix.Statfs(proc+"/root", &st) == nil && st.Type == unix.TMPFS_MAGIC &&
		(st.Blocks > 0 && st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
		h.scratch = true
	}
	sockets, limit := h.group.Sockets()
	return locks, sockets > 2*limit || netlink > maxUnread
}

// stop ends the watch, and reports whether it has ended the sandbox.
func (h *hoard) stop() bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if h.timer != nil {
		h.timer.Stop()
	}
	return h.full
}

// scratchFull reports whether a look found no room in the private storage.
func (h *hoard) scratchFull() bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.scratch
}

// netlinkSock is a socket without anything in it, bytes, as the kernel's allocator rounds
// it up; see netlink_sock in net/netlink/af_netlink.h.
const netlinkSock = 2 << 10

// netlinkSockets is how many a list of protocols has; see proto_seq_printf in
// net/core/sock.c.
func netlinkSockets(list string) (n int) {
	linesOf(list, func(line []byte) bool {
		// protocol size sockets …
		f := bytes.Fields(line)
		if len(f) < 3 || string(f[0]) != "NETLINK" {
			return true
		}
		n, _ = strconv.Atoi(string(f[2]))
		return false
	})
	return n
}

// unread adds up what waits in the sockets of a table, bytes; see
// netlink_seq_show in net/netlink/af_netlink.c. It stops where that is enough.
func unread(table string) (sum int) {
	linesOf(table, func(line []byte) bool {
		// sk Eth Pid Groups Rmem Wmem …
		if f := bytes.Fields(line); len(f) > 4 {
			rmem, _ := strconv.Atoi(string(f[4]))
			sum += rmem
		}
		return sum <= maxUnread
	})
	return sum
}

// locksIn counts the locks of a pid namespace, from a file of its procfs. It stops
// where that is enough. This process' own procfs is the host's, in whose root PID 1
// may still be. Locks of an open file (OFDLCK) are in the lists of all namespaces,
// whosever they are, and those of a process that has ended in none.
func locksIn(file *os.File) (n int) {
	var own, st unix.Stat_t
	if file == nil || unix.Stat("/proc", &own) != nil || unix.Fstat(int(file.Fd()), &st) != nil || own.Dev == st.Dev {
		return 0
	}
	lines(file, func(line []byte) bool {
		if !bytes.Contains(line, []byte(" OFDLCK ")) {
			n++
		}
		return n <= maxLocks
	})
	return n
}

// linesOf is lines of a file by its name. One that is not there has none.
func linesOf(name string, do func(line []byte) bool) {
	f, _ := os.Open(name)
	defer f.Close()
	lines(f, do)
}

// lines calls do for each line of a file of the kernel's, until that returns false.
func lines(table *os.File, do func(line []byte) bool) {
	var buf [16 << 10]byte
	kept := 0
	for at := int64(0); ; {
		n, _ := table.ReadAt(buf[kept:], at)
		if n == 0 {
			return
		}
		at += int64(n)
		text := buf[:kept+n]
		for {
			line, rest, ok := bytes.Cut(text, []byte("\n"))
			if !ok {
				break
			}
			text = rest
			if !do(line) {
				return
			}
		}
		kept = copy(buf[:], text)
	}
}
