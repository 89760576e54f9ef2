package egress

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestNames(t *testing.T) {
	now := time.Unix(1e9, 0)
	n := names{now: func() time.Time { return now }}
	a, _ := n.number("a.example")
	b, _ := n.number("b.example")
	if again, _ := n.number("a.example"); a == b || again != a {
		t.Errorf("%d, %d, %d", a, b, again)
	}
	for _, addr := range []netip.Addr{netip.AddrFrom4(nameAddr4(b)), netip.AddrFrom16(nameAddr6(b))} {
		if name, ours := n.name(addr); name != "b.example" || !ours {
			t.Errorf("%s: %q, %v", addr, name, ours)
		}
		if c := classify(addr, false); c.what == "" {
			t.Errorf("%s could be dialled", addr)
		}
	}
	for s, want := range map[string]bool{"198.18.0.0": true, "198.19.255.255": true, "198.17.255.255": false, "198.20.0.0": false, "fd73:6278:7275:6e00::ffff:ffff": true, "fd73:6278:7275:6e00::1:0:0": false} {
		if name, ours := n.name(netip.MustParseAddr(s)); name != "" || ours != want {
			t.Errorf("%s: %q, %v", s, name, ours)
		}
	}

	// The table fills up, and no name in use loses its address.
	for i := 2; i < maxNames; i++ {
		if _, ok := n.number(fmt.Sprint("n", i)); !ok {
			t.Fatal(i)
		}
	}
	if _, ok := n.number("one.too.many"); ok {
		t.Error("a name in use lost its address")
	}
	now = now.Add(minNameAge)
	if again, _ := n.number("a.example"); again != a {
		t.Error("a.example has another address")
	}
	c, ok := n.number("one.too.many") // takes the place of b.example, not its number
	if !ok || c == b {
		t.Errorf("%d, %v", c, ok)
	}
	if name, ours := n.name(netip.AddrFrom4(nameAddr4(b))); name != "" || !ours {
		t.Errorf("%q", name)
	}
	// Numbers come round again without meeting one in use.
	seen := map[uint32]bool{}
	for i := range 2 * lastName {
		now = now.Add(minNameAge)
		num, ok := n.number(fmt.Sprint("m", i))
		if !ok || num == 0 || num > lastName {
			t.Fatal(i, num, ok)
		}
		seen[num] = true
		if got, _ := n.name(netip.AddrFrom4(nameAddr4(num))); got != fmt.Sprint("m", i) {
			t.Fatal(i, got)
		}
	}
	if len(seen) != lastName || len(n.byName) != maxNames || len(n.byNum) != maxNames || n.used.Len() != maxNames {
		t.Errorf("%d numbers, %d, %d, %d", len(seen), len(n.byName), len(n.byNum), n.used.Len())
	}
}
