package egress

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// TestDNSSource: a socket that is bound to no address answers from the address
// that was asked.
func TestDNSSource(t *testing.T) {
	for _, family := range []struct{ network, listen, ask string }{
		{"udp4", "0.0.0.0:0", "127.7.7.7"},
		{"udp6", "[::]:0", "::1"},
		{"udp", "[::]:0", "127.7.7.8"}, // dual stack
	} {
		w := newWorld(t, allow("a.example"))
		w.host("a.example", "93.184.216.34", 443, echo)
		s, err := net.ListenPacket(family.network, family.listen)
		if err != nil {
			t.Fatalf("%s: %v", family.network, err)
		}
		w.g.mu.Lock()
		w.g.group.Go(func() { w.g.dnsPackets(w.g.ctx, s) })
		w.g.mu.Unlock()
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(family.ask), uint16(s.LocalAddr().(*net.UDPAddr).Port)))
		c, err := net.DialUDP("udp", nil, to) // connected: it hears that address only
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		c.Write(dnsQuery(t, "a.example.", dnsmessage.TypeA, dnsmessage.ClassINET, false))
		b := make([]byte, 512)
		n, err := c.Read(b)
		if err != nil {
			t.Fatalf("%s: %v", family.ask, err)
		}
		var m dnsmessage.Message
		if err := m.Unpack(b[:n]); err != nil || len(m.Answers) != 1 {
			t.Error(m, err)
		}
	}
}
