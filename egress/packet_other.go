//go:build !linux

package egress

import (
	"net"
	"net/netip"
)

// packets reads and answers questions. Sockets that are bound to no address are
// for the transparent route, which only Linux has.
type packets struct{ conn net.PacketConn }

type asker struct {
	addr net.Addr
	ap   netip.AddrPort // not known
}

func newPackets(conn net.PacketConn) *packets { return &packets{conn} }

func (p *packets) read(b []byte) (int, asker, error) {
	n, addr, err := p.conn.ReadFrom(b)
	return n, asker{addr: addr}, err
}

func (p *packets) write(b []byte, to asker) { p.conn.WriteTo(b, to.addr) }
