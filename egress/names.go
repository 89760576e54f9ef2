package egress

import (
	"container/list"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"
)

// The stub resolver's addresses. 198.18.0.0/15 is for benchmarks (RFC 2544) and
// routed nowhere; the IPv6 network is a unique local one (RFC 4193). They exist
// in the sandbox's network namespace only, and the gateway never dials them.
var (
	names4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, 0}), 15)
	names6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x73, 0x62, 0x78, 0x72, 0x75, 0x6e}), 96)
)

const (
	// maxNames bounds the table, about 200 bytes each.
	maxNames = 1 << 15

	// lastName is the last number that an address stands for: 198.19.255.254.
	lastName = 1<<17 - 2

	// nameTTL is how long a program may keep an address, by the answer's TTL.
	nameTTL = 60 * time.Second

	// minNameAge is how long a name that nobody used keeps its address, well
	// beyond the TTL: programs keep what they looked up. Numbers are given
	// out in a circle four times as long as the table, so that one comes to be
	// used again as late as can be.
	minNameAge = 10 * time.Minute
)

// names gives every name an address of its own, the same as long as the name is
// in use. The zero value is ready.
type names struct {
	mu     sync.Mutex
	byName map[string]*list.Element
	byNum  map[uint32]*list.Element
	used   list.List // of *nameEntry, the most recently used first
	next   uint32
	now    func() time.Time // nil: time.Now
}

type nameEntry struct {
	name string
	num  uint32
	last time.Time
}

func (n *names) clock() time.Time {
	if n.now != nil {
		return n.now()
	}
	return time.Now()
}

// has reports whether the name has a number.
func (n *names) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byName[name] != nil
}

// number returns the name's number; false if too many names are in use.
func (n *names) number(name string) (uint32, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clock()
	if e := n.byName[name]; e != nil {
		n.used.MoveToFront(e)
		entry := e.Value.(*nameEntry)
		entry.last = now
		return entry.num, true
	}
	if n.byName == nil {
		n.byName, n.byNum = map[string]*list.Element{}, map[uint32]*list.Element{}
	}
	if len(n.byName) >= maxNames {
		oldest := n.used.Back()
		entry := oldest.Value.(*nameEntry)
		if now.Sub(entry.last) < minNameAge {
			return 0, false
		}
		n.used.Remove(oldest)
		delete(n.byName, entry.name)
		delete(n.byNum, entry.num)
	}
	for {
		n.next = n.next%lastName + 1
		if n.byNum[n.next] == nil {
			break
		}
	}
	e := n.used.PushFront(&nameEntry{name, n.next, now})
	n.byName[name], n.byNum[n.next] = e, e
	return n.next, true
}

// name returns what an address stands for. Ours says that the address is one of
// the resolver's, whether a name owns it or not.
func (n *names) name(a netip.Addr) (name string, ours bool) {
	var num uint32
	switch {
	case names4.Contains(a):
		b := a.As4()
		num = binary.BigEndian.Uint32(b[:]) & (1<<17 - 1)
	case names6.Contains(a):
		b := a.As16()
		num = binary.BigEndian.Uint32(b[12:])
	default:
		return "", false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.byNum[num]
	if e == nil {
		return "", true
	}
	entry := e.Value.(*nameEntry)
	entry.last = n.clock()
	n.used.MoveToFront(e)
	return entry.name, true
}

func nameAddr4(num uint32) [4]byte {
	a := names4.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|num)
	return a
}

func nameAddr6(num uint32) [16]byte {
	a := names6.Addr().As16()
	binary.BigEndian.PutUint32(a[12:], num)
	return a
}
