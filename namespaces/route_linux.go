package namespaces

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// AddLocalDefault makes every address of a family local to a network namespace:
// "ip route add local default dev lo table local". A connection to any address
// then arrives at a listener on the wildcard address in the namespace, whose
// accepted socket has the address that was dialled as its own; a port without a
// listener refuses. fd is a routing socket (NETLINK_ROUTE) of that namespace;
// its creator and the caller have CAP_NET_ADMIN there; loopback is up.
//
// See rtnetlink(7); the kernel answers before sendto(2) returns.
func AddLocalDefault(fd int, family int) error {
	if err := unix.Sendto(fd, localDefault(uint8(family)), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
	if err != nil {
		return err
	}
	return acknowledgement(buf[:n])
}

// acknowledgement reads the kernel's answer to one request; see netlink(7).
func acknowledgement(b []byte) error {
	ne := binary.NativeEndian
	if len(b) < unix.SizeofNlMsghdr+4 || ne.Uint16(b[4:]) != unix.NLMSG_ERROR {
		return syscall.EPROTO
	}
	if e := int32(ne.Uint32(b[unix.SizeofNlMsghdr:])); e != 0 {
		return syscall.Errno(-e)
	}
	return nil
}

// loopbackIndex is the interface index of lo, the first of every network
// namespace (LOOPBACK_IFINDEX).
const loopbackIndex = 1

// localDefault is the request: struct nlmsghdr, struct rtmsg, and one attribute,
// the interface.
func localDefault(family uint8) []byte {
	ne := binary.NativeEndian
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr+4)
	ne.PutUint32(b, uint32(len(b)))
	ne.PutUint16(b[4:], unix.RTM_NEWROUTE)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	ne.PutUint32(b[8:], 1) // sequence number
	rt := b[unix.SizeofNlMsghdr:]
	rt[0] = family
	rt[4] = unix.RT_TABLE_LOCAL
	rt[5] = unix.RTPROT_STATIC
	rt[6] = unix.RT_SCOPE_HOST
	rt[7] = unix.RTN_LOCAL
	attr := rt[unix.SizeofRtMsg:]
	ne.PutUint16(attr, unix.SizeofRtAttr+4)
	ne.PutUint16(attr[2:], unix.RTA_OIF)
	ne.PutUint32(attr[4:], loopbackIndex)
	return b
}
