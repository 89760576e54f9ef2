package landlocked

import (
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/gateway"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/policy"
)

// A network is that of a command in egress mode proxy. Landlock's rules for TCP know
// ports and no addresses: with the proxy's port allowed, that port of every host
// would be. So they allow none (where the kernel has them), and the command's
// connect(2) is made for it, to the proxy or to nothing.
type network struct {
	local *gateway.Local
	guard *guard.Guard
}

func (d Driver) network(p *policy.Policy) (*network, error) {
	if !guard.Supported() {
		return nil, &driver.UnavailableError{What: "network by name",
			Cause: "this kernel cannot hold calls back so that they are made exactly once, or a filter forbids it",
			Fix:   "run on Linux 5.19 or later; or without a network: --net none"}
	}
	local, err := gateway.Serve(p, d.Upstream, d.NoProxy)
	if err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	n := &network{local: local}
	if n.guard, err = guard.New(guard.Config{Dial: n.dial}); err != nil {
		local.End(nil)
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	return n, nil
}

// dial answers a connect(2) of the command's.
func (n *network) dial(to netip.AddrPort) (int, syscall.Errno) {
	if to != netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), n.local.Port()) {
		n.local.Direct(to)
		return -1, unix.ECONNREFUSED
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, unix.ENOBUFS
	}
	if err := sys.Connect(s, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, dialTimeout); err != nil {
		unix.Close(s)
		return -1, unix.ECONNREFUSED
	}
	return s, 0
}

// dialTimeout bounds connecting to the gateway, which accepts at once.
const dialTimeout = 10 * time.Second

// end ends the network when the command and all that it started is gone. It may be
// called twice.
func (n *network) end(st *driver.Status) {
	if n == nil {
		return
	}
	if n.guard != nil {
		n.guard.Close()
		n.guard = nil
	}
	n.local.End(st)
}

// connected is a command with a network.
type connected struct {
	driver.Process
	net *network
}

func (c *connected) Reload(e policy.Egress) error { return c.net.local.Reload(e) }
