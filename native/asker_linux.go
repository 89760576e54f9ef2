package native

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/egress"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/supervisor"
)

// Only the guard is told by the kernel which process calls, and it does not see datagrams and
// clients of the proxy. For those the process that has the client's socket is looked for: once
// for each entry of the list of denials, and for each question.

// The bounds of one search. The command decides how much there is to look at.
const (
	maxTable  = 4 << 20 // of the tables of sockets, bytes
	maxLooks  = 1 << 14 // at processes and descriptors
	maxSearch = time.Second
)

// who is for [egress.Options].
func (n *network) who(s egress.Socket) (pid int, arguments string) {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, ""
	}
	defer unix.Close(proc)
	table := "/proc/" + strconv.Itoa(n.child.Pid()) + "/net/tcp"
	if s.UDP {
		table = table[:len(table)-3] + "udp"
	}
	var tables []io.Reader
	for _, family := range [...]string{"", "6"} { // an IPv4 client may have an IPv6 socket
		if f, err := os.Open(table + family); err == nil {
			defer f.Close()
			tables = append(tables, f)
		}
	}
	inode := inodeOf(s, io.LimitReader(io.MultiReader(tables...), maxTable))
	if inode == "" {
		return 0, ""
	}
	h := holders{link: "socket:[" + inode + "]"}
	owner, fd := h.below(n.child.Pid())
	if owner == 0 {
		return 0, ""
	}
	if pid, arguments = guard.Asker(proc, owner); !h.is(fd) {
		return 0, "" // gone: the number may be another's by now
	}
	return pid, arguments
}

// inodeOf finds a socket in tables of /proc/net, which have a line for each; see
// proc_pid_net(5). It is "" if the socket is not there, or not the only one that it could be.
func inodeOf(s egress.Socket, tables io.Reader) string {
	local, remote, port := entries(s.Local), entries(s.Remote), s.Local.Port()
	unbound := entries(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if s.Local.Addr().Is4() {
		unbound = append(unbound, entry(make([]byte, 4), port))
	}
	var found, others []string
	for lines := bufio.NewScanner(tables); lines.Scan(); {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) < 10 || f[9] == "0": // no process has it
		case slices.Contains(local, f[1]) && s.UDP:
			found = append(found, f[9])
		case slices.Contains(local, f[1]) && slices.Contains(remote, f[2]):
			return f[9] // to read on takes the kernel a millisecond
		case s.UDP && slices.Contains(unbound, f[1]):
			others = append(others, f[9])
		}
	}
	if len(found) == 0 {
		found = others
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// entries are an address as the tables have it: that of IPv6, and that of IPv4.
func entries(a netip.AddrPort) []string {
	b := a.Addr().As16()
	list := []string{entry(b[:], a.Port())}
	if a.Addr().Is4() {
		list = append(list, entry(b[12:], a.Port()))
	}
	return list
}

// entry is words of four bytes, each as a number of this machine, and the port.
func entry(addr []byte, port uint16) (s string) {
	for ; len(addr) > 0; addr = addr[4:] {
		s += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(addr))
	}
	return fmt.Sprintf("%s:%04X", s, port)
}

// holders are the processes that have a socket.
type holders struct {
	link  string // of a descriptor of it
	looks int    // so far
}

// below finds the process below another that has the socket, and its descriptor. What it has
// forked may have the socket from it; if any other process has it, nobody knows who asked.
func (h *holders) below(pid int) (owner int, fd string) {
	until := time.Now().Add(maxSearch)
	for next := supervisor.Children(pid); len(next) > 0; {
		pid, next = next[0], next[1:]
		at := h.at(pid)
		switch {
		case h.looks >= maxLooks || time.Now().After(until) || at != "" && owner != 0:
			return 0, ""
		case at != "":
			owner, fd = pid, at
		default:
			next = append(next, supervisor.Children(pid)...)
		}
	}
	return owner, fd
}

// at finds a process's descriptor of the socket.
func (h *holders) at(pid int) (fd string) {
	of := "/proc/" + strconv.Itoa(pid) + "/fd/"
	dir, err := os.Open(of)
	if err != nil {
		return ""
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxLooks - h.looks)
	h.looks += 1 + len(names)
	for _, name := range names {
		if h.is(of + name) {
			return of + name
		}
	}
	return ""
}

func (h *holders) is(fd string) bool {
	link, err := os.Readlink(fd)
	return err == nil && link == h.link
}
