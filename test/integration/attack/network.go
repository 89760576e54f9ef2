//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience bounds every attempt to reach something.
const patience = 2 * time.Second

// connects connects to every argument to.NAME=network:address. It is N01, N02
// and N03.
func connects(r *report) {
	for _, k := range sortedKeys(r.args, "to.") {
		network, addr, _ := strings.Cut(r.args[k], ":")
		r.err("reach "+strings.TrimPrefix(k, "to."), reach(network, addr))
	}
	// What a sandbox without a network still has: itself.
	for _, l := range []struct{ network, addr string }{
		{"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}, {"unix", filepath.Join("/tmp", fmt.Sprintf("sbxrun-own-%d", time.Now().UnixNano()))}, {"unix", fmt.Sprintf("@sbxrun-own-%d", time.Now().UnixNano())},
	} {
		name := "neighbour: its own listener, " + l.network
		if strings.HasPrefix(l.addr, "@") {
			name += " abstract"
		}
		lis, err := net.Listen(l.network, l.addr)
		if err == nil {
			err = reach(l.network, lis.Addr().String())
			lis.Close()
		}
		r.err(name, err)
	}
}

// reach connects, and over UDP sends twice: the first datagram's refusal is
// reported to the second.
func reach(network, addr string) error {
	c, err := net.DialTimeout(network, addr, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("sbxrun battery\n"))
	if err == nil && network == "udp" {
		time.Sleep(20 * time.Millisecond)
		_, err = c.Write([]byte("sbxrun battery\n"))
	}
	return err
}

// sockaddr is an address for unix.Connect, and its family.
func sockaddr(s string) (unix.Sockaddr, int) {
	ap := netip.MustParseAddrPort(s)
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}, unix.AF_INET6
}

// k08 reaches for TCP listeners by protocols that rules for TCP may forget.
func k08(r *report) {
	for _, k := range sortedKeys(r.args, "to.") {
		name := strings.TrimPrefix(k, "to.")
		addr, family := sockaddr(r.args[k])
		for _, p := range []struct {
			name       string
			typ, proto int
		}{
			{"MPTCP", unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, {"SCTP", unix.SOCK_STREAM, unix.IPPROTO_SCTP}, {"SCTP one-to-many", unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP},
			{"UDP-Lite", unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}, {"DCCP", unix.SOCK_DCCP, unix.IPPROTO_DCCP}, {"raw TCP", unix.SOCK_RAW, unix.IPPROTO_TCP},
		} {
			fd, err := unix.Socket(family, p.typ|unix.SOCK_CLOEXEC, p.proto)
			if err == nil {
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 2})
				if err = unix.Connect(fd, addr); err == nil {
					_, err = unix.Write(fd, []byte("sbxrun"))
				}
				unix.Close(fd)
			}
			r.err(p.name+" to "+name, err)
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 2})
			err = unix.Sendto(fd, []byte("sbxrun"), unix.MSG_FASTOPEN|unix.MSG_NOSIGNAL, addr)
			unix.Close(fd)
		}
		r.err("TCP Fast Open to "+name, err)
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 2})
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
			if err = unix.Connect(fd, addr); err == nil {
				// The connection is made by the first write.
				_, err = unix.Write(fd, []byte("sbxrun"))
			}
			unix.Close(fd)
		}
		r.err("TCP_FASTOPEN_CONNECT to "+name, err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	r.err("raw ICMP", err)
	unix.Close(fd)
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	r.err("raw IP", err)
	unix.Close(fd)
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	r.err("neighbour: a TCP socket", err)
	unix.Close(fd)
}

// n08 listens on every address, says where, and looks who came.
func n08(r *report) {
	l, err := net.Listen("tcp4", "0.0.0.0:"+r.arg("port"))
	r.err("neighbour: bind 0.0.0.0", err)
	if err != nil {
		return
	}
	r.err("neighbour: reach itself", reach("tcp", "127.0.0.1:"+r.arg("port")))
	if c, err := l.Accept(); err == nil {
		c.Close()
	}
	waitFor(r.arg("ready"), r.arg("go"))
	l.(*net.TCPListener).SetDeadline(time.Now().Add(100 * time.Millisecond))
	c, err := l.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		r.got("a caller from outside", "none")
		return
	}
	r.err("a caller from outside", err)
	c.Close()
}

// n10 pings, and changes links, addresses and routes.
func n10(r *report) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err == nil {
		err = unix.Sendto(fd, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(r.arg("to")).As4()})
		unix.Close(fd)
	}
	r.err("ping by a raw socket", err)
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	if err == nil {
		err = unix.Sendto(fd, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(r.arg("to")).As4()})
		unix.Close(fd)
	}
	r.err("ping by a ping socket", err)

	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.err("socket", err)
		return
	}
	defer unix.Close(fd)
	ifr, _ := unix.NewIfreq("lo")
	r.err("neighbour: read the flags of lo", unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr))
	r.err("write the flags of lo", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr))
	ifr.SetUint32(1400)
	r.err("write the mtu of lo", unix.IoctlIfreq(fd, unix.SIOCSIFMTU, ifr))
	ifr, _ = unix.NewIfreq("lo:9")
	ifr.SetInet4Addr([]byte{203, 0, 113, 9})
	r.err("add an address by ioctl", unix.IoctlIfreq(fd, unix.SIOCSIFADDR, ifr))

	// struct ifaddrmsg {family, prefixlen, flags, scope, index}, then IFA_LOCAL.
	addr := []byte{unix.AF_INET, 32, 0, 0, 1, 0, 0, 0, 8, 0, unix.IFA_LOCAL, 0, 203, 0, 113, 10}
	r.err("add an address by netlink", netlink(unix.RTM_NEWADDR, addr))
	// struct ifinfomsg {family, pad, type, index, flags, change}: lo, up.
	link := make([]byte, 16)
	link[4], link[8], link[12] = 1, 1, 1
	r.err("set a link by netlink", netlink(unix.RTM_NEWLINK, link))
	// struct rtmsg {family, dst_len, src_len, tos, table, protocol, scope, type,
	// flags}, then RTA_OIF: a local default route over lo.
	route := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0, 8, 0, unix.RTA_OIF, 0, 1, 0, 0, 0}
	r.err("add a route by netlink", netlink(unix.RTM_NEWROUTE, route))
	_, err = os.ReadFile("/proc/net/dev")
	r.err("neighbour: read /proc/net/dev", err)
}

// netlink sends one rtnetlink request and returns the errno of its answer.
func netlink(typ uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	h := unix.NlMsghdr{Len: uint32(unix.SizeofNlMsghdr + len(body)), Type: typ, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE}
	msg := append(unsafe.Slice((*byte)(unsafe.Pointer(&h)), unix.SizeofNlMsghdr), body...)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("answer of %d bytes: %w", n, err)
	}
	if errno := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}
