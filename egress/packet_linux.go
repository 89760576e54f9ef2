package egress

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// packets reads questions and answers them from the address that was asked. A
// socket that is bound to no address would answer from one that the kernel
// chooses, and a client that is connected to the other would not hear it.
type packets struct {
	conn net.PacketConn
	udp  *net.UDPConn // with packet information; nil for other sockets
}

// asker is where an answer goes.
type asker struct {
	addr net.Addr
	ap   netip.AddrPort
	oob  []byte // control message that sets the source of the answer
}

func newPackets(conn net.PacketConn) *packets {
	p := &packets{conn: conn}
	u, ok := conn.(*net.UDPConn)
	if !ok {
		return p
	}
	rc, err := u.SyscallConn()
	if err != nil {
		return p
	}
	rc.Control(func(fd uintptr) {
		// An IPv6 socket that takes IPv4 as well needs both; see ip(7), ipv6(7).
		err4 := unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		err6 := unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		// EINVAL: an answer from an address that no interface has. IPv4 asks the routes.
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
		if err4 == nil || err6 == nil {
			p.udp = u
		}
	})
	return p
}

func (p *packets) read(b []byte) (int, asker, error) {
	if p.udp == nil {
		n, addr, err := p.conn.ReadFrom(b)
		return n, asker{addr: addr}, err
	}
	var oob [128]byte
	n, oobn, _, from, err := p.udp.ReadMsgUDPAddrPort(b, oob[:])
	if err != nil {
		return 0, asker{}, err
	}
	return n, asker{ap: from, oob: answerFrom(oob[:oobn])}, nil
}

func (p *packets) write(b []byte, to asker) {
	if p.udp == nil {
		p.conn.WriteTo(b, to.addr)
		return
	}
	p.udp.WriteMsgUDPAddrPort(b, to.oob, to.ap)
}

// answerFrom makes the control message that sends from where a message was sent
// to. It does not fix the interface.
func answerFrom(oob []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			// struct in_pktinfo { unsigned ipi_ifindex; struct in_addr ipi_spec_dst, ipi_addr; }
			return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[8:12])})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 20:
			// struct in6_pktinfo { struct in6_addr ipi6_addr; unsigned ipi6_ifindex; }
			info := unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])}
			if a := netip.AddrFrom16(info.Addr); a.IsLinkLocalUnicast() {
				info.Ifindex = binary.NativeEndian.Uint32(m.Data[16:20])
			}
			return unix.PktInfo6(&info)
		}
	}
	return nil
}
