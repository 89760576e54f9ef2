package egress

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// routes asks the kernel where it would send what is for an address. The addresses of
// interfaces are not all that are the host's: a local route leads to the host's servers
// as well ("ip route add local 203.0.113.0/24 dev lo"), and clouds' agents make such
// routes for the addresses of load balancers.
//
// The socket stays open, for making one takes longer than the answer. No answer is kept:
// routes change, and the kernel tells of it only after a change counts.
type routes struct {
	mu     sync.Mutex
	socket *os.File // nil before the first question, and after an error
	closed bool
	seq    uint32 // of the last question
	answer [256]byte
}

// own reports whether what is for an address stays on this host.
func (r *routes) own(a netip.Addr) (own bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false, os.ErrClosed
	}
	if r.socket == nil {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err != nil {
			return false, os.NewSyscallError("socket", err)
		}
		r.socket = os.NewFile(uintptr(fd), "netlink")
	}
	defer func() {
		if err != nil { // what is left in it answers no other question
			r.socket.Close()
			r.socket = nil
		}
	}()
	r.seq++
	fd := int(r.socket.Fd())
	if _, err := unix.Write(fd, routeTo(a, r.seq)); err != nil {
		return false, os.NewSyscallError("write", err)
	}
	n, _, err := unix.Recvfrom(fd, r.answer[:], unix.MSG_DONTWAIT) // the answer is there by now; see netlink(7)
	if err != nil {
		return false, os.NewSyscallError("recvfrom", err)
	}
	return leadsHere(r.answer[:n], r.seq)
}

func (r *routes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed = true; r.socket != nil {
		r.socket.Close()
	}
}

// routeTo is the question: struct nlmsghdr, struct rtmsg, and one attribute, the
// address; see rtnetlink(7).
func routeTo(a netip.Addr, seq uint32) []byte {
	ne := binary.NativeEndian
	dst := a.AsSlice()
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr, 64)
	rt := b[unix.SizeofNlMsghdr:]
	rt[0] = unix.AF_INET
	if a.Is6() {
		rt[0] = unix.AF_INET6
	}
	rt[1] = byte(8 * len(dst))
	attr := rt[unix.SizeofRtMsg:]
	ne.PutUint16(attr, uint16(unix.SizeofRtAttr+len(dst)))
	ne.PutUint16(attr[2:], unix.RTA_DST)
	b = append(b, dst...)
	ne.PutUint32(b, uint32(len(b)))
	ne.PutUint16(b[4:], unix.RTM_GETROUTE)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST)
	ne.PutUint32(b[8:], seq)
	return b
}

// leadsHere reads the kernel's answer. Whatever is no way to another host is the host's
// own: local, broadcast and anycast routes. Where no route leads, nobody is.
func leadsHere(b []byte, seq uint32) (bool, error) {
	ne := binary.NativeEndian
	if len(b) < unix.SizeofNlMsghdr+unix.SizeofRtMsg || ne.Uint32(b[8:]) != seq {
		return false, syscall.EPROTO
	}
	switch ne.Uint16(b[4:]) {
	case unix.RTM_NEWROUTE:
		return b[unix.SizeofNlMsghdr+7] != unix.RTN_UNICAST, nil // rtm_type
	case unix.NLMSG_ERROR:
		switch errno := syscall.Errno(-int32(ne.Uint32(b[unix.SizeofNlMsghdr:]))); errno {
		case unix.ENETUNREACH, unix.EHOSTUNREACH:
			return false, nil
		default:
			return false, errno
		}
	}
	return false, syscall.EPROTO
}
