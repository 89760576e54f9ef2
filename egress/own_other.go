//go:build !linux

package egress

import (
	"net"
	"net/netip"
)

// routes looks for an address among those of the interfaces.
type routes struct{}

func (*routes) close() {}

func (*routes) own(a netip.Addr) (bool, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	for _, each := range list {
		if n, ok := each.(*net.IPNet); ok {
			if x, ok := netip.AddrFromSlice(n.IP); ok && x.Unmap() == a {
				return true, nil
			}
		}
	}
	return false, nil
}
