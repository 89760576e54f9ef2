//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lo brings the loopback interface up and gives it addresses, so that what is
// sent to them arrives somewhere and never leaves the machine.
func lo(addrs []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("lo up: %w", err)
	}
	for i, a := range addrs {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		if ip.Is6() {
			err = addIPv6(ip)
		} else {
			alias, _ := unix.NewIfreq(fmt.Sprintf("lo:%d", i+1))
			b := ip.As4()
			alias.SetInet4Addr(b[:])
			err = unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias)
		}
		if err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

// addIPv6 gives lo (interface 1 of every network namespace) an IPv6 address.
func addIPv6(ip netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// struct in6_ifreq; see <linux/ipv6.h>.
	req := struct {
		addr   [16]byte
		prefix uint32
		index  int32
	}{ip.As16(), 128, 1}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return errno
	}
	return nil
}

// listen accepts on a socket, as a service of the host would, and discards what
// comes in.
func listen(spec string) error {
	network, addr, _ := strings.Cut(spec, ":")
	if network == "udp" {
		// Bound and never read: what is sent to it is not refused.
		_, err := net.ListenPacket(network, addr)
		return err
	}
	if network == "unix" && !strings.HasPrefix(addr, "@") {
		os.MkdirAll(filepath.Dir(addr), 0o755)
	}
	l, err := net.Listen(network, addr)
	// A new address takes a moment to be there.
	for end := time.Now().Add(5 * time.Second); errors.Is(err, unix.EADDRNOTAVAIL) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		l, err = net.Listen(network, addr)
	}
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(io.Discard, c)
		}
	}()
	return nil
}
