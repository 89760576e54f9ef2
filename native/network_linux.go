package native

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/egress"
	"github.com/sbxrun/sbxrun/internal/gateway"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/namespaces"
	"github.com/sbxrun/sbxrun/policy"
)

// ProxyPort is the port on 127.0.0.1 in a sandbox at which the HTTP and SOCKS
// proxy listens, in egress mode proxy. It is the one that Squid made usual.
const ProxyPort = 3128

// A network is what the supervisor does for a sandbox's network: it carries the
// connections that the policy allows, and leads published ports in. Its sockets
// in the sandbox's network come from PID 1 there; nothing else of it is inside.
type network struct {
	p         *policy.Policy
	gateway   *egress.Gateway // nil without egress
	token     string
	journal   gateway.Journal
	published []*net.TCPListener // on the host, one for each of p.Egress.Publish
	leading   atomic.Int32       // connections to those on which the sandbox has not said its last

	mu       sync.Mutex
	families []int           // that the sandbox has
	ports    map[uint16]bool // that have transparent listeners
	onDemand bool            // connect is told of others

	child *reexec.Child
	ctx   context.Context
	stop  context.CancelFunc
	group sync.WaitGroup
}

// newNetwork prepares a policy's network on the host's side, nil if it needs
// nothing.
func newNetwork(d Driver, p *policy.Policy) (*network, error) {
	if p.Egress.Mode != policy.EgressProxy && len(p.Egress.Publish) == 0 {
		return nil, nil
	}
	n := &network{p: p}
	if p.Egress.Mode == policy.EgressProxy {
		var secret [16]byte
		if _, err := unix.Getrandom(secret[:], 0); err != nil {
			return nil, &driver.SetupError{Driver: Name, Err: os.NewSyscallError("getrandom", err)}
		}
		n.token = hex.EncodeToString(secret[:])
		n.journal.Requests = p.Egress.LogRequests
		var err error
		o := egress.Options{Token: n.token, Upstream: d.Upstream, NoProxy: d.NoProxy, Record: n.journal.Record, Who: n.who}
		if d.Ask != nil {
			o.Ask = func(ctx context.Context, r egress.Record) egress.Answer {
				return egressAnswers[d.Ask(ctx, gateway.Denial(r), func() *driver.Asker { return driver.NewAsker(r.Who()) })]
			}
		}
		n.gateway, err = egress.New(p.Egress, o)
		if err != nil {
			return nil, err
		}
	}
	for _, pub := range p.Egress.Publish {
		addr := netip.AddrPortFrom(netip.MustParseAddr(pub.Address), pub.HostPort)
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
		if err != nil {
			n.close()
			var op *net.OpError
			if errors.As(err, &op) {
				err = op.Err
			}
			return nil, &driver.SetupError{Driver: Name, Err: errors.New("publish " + addr.String() + ": " + err.Error()),
				Fix: "publish another port of the host: --publish HOSTPORT:" + strconv.Itoa(int(pub.Port))}
		}
		n.published = append(n.published, l)
	}
	return n, nil
}

// egressAnswers are the gateway's words for answers.
var egressAnswers = map[driver.Answer]egress.Answer{driver.GrantOnce: egress.Once, driver.GrantAlways: egress.Always}

// environ adds the variables by which programs find the proxy, but for those
// that the policy sets itself. None is needed: they make refusals readable.
func (n *network) environ(env []string) []string {
	if n == nil || n.gateway == nil {
		return env
	}
	return gateway.Environ(env, egress.ProxyEnv(ProxyPort, n.token))
}

// open makes the network of a stage that has set itself up: before the command
// runs, everything listens.
//
// The error wraps ESRCH if the stage is gone.
func (n *network) open(child *reexec.Child) error {
	if n == nil {
		return nil
	}
	n.child = child
	n.ctx, n.stop = context.WithCancel(context.Background())
	if n.gateway != nil {
		l, err := n.listeners()
		if err != nil {
			return &driver.SetupError{Driver: Name, Err: fmt.Errorf("the sandbox's network: %w", err)}
		}
		n.group.Go(func() {
			if err := n.gateway.Serve(n.ctx, l); err != nil {
				n.journal.Failed(err)
			}
		})
	}
	for i, l := range n.published {
		port := n.p.Egress.Publish[i].Port
		n.group.Go(func() { n.publish(l, port) })
	}
	return nil
}

// listeners makes every address local to the namespace and opens the sockets that
// the gateway serves.
func (n *network) listeners() (l egress.Listeners, err error) {
	defer func() {
		if err != nil {
			closeListeners(&l)
		}
	}()
	route, err := n.child.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return l, err
	}
	defer unix.Close(route)
	if err := namespaces.AddLocalDefault(route, unix.AF_INET); err != nil {
		return l, os.NewSyscallError("local route", err)
	}
	n.families = []int{unix.AF_INET}
	// Without IPv6 in the kernel, or switched off, there is none inside either:
	// nothing to police.
	if namespaces.AddLocalDefault(route, unix.AF_INET6) == nil {
		n.families = append(n.families, unix.AF_INET6)
	}
	n.ports = map[uint16]bool{}
	if l.Transparent, err = n.missing(); err != nil {
		return l, err
	}
	for _, family := range n.families {
		var s net.Listener
		if s, err = n.listen(family, nil, 53); err != nil {
			return l, err
		}
		l.DNSStream = append(l.DNSStream, s)
		var p net.PacketConn
		if p, err = n.listenPacket(family, 53); err != nil {
			return l, err
		}
		l.DNS = append(l.DNS, p)
	}
	s, err := n.listen(unix.AF_INET, []byte{127, 0, 0, 1}, ProxyPort)
	if err != nil {
		return l, err
	}
	l.Proxy = append(l.Proxy, s)
	return l, nil
}

// missing opens transparent listeners for the ports of rules that have none.
func (n *network) missing() (list []net.Listener, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ports, all := n.gateway.Ports()
	if all && !n.onDemand {
		ports = append(slices.Clone(ports), usualPorts[:]...)
	}
	for _, port := range ports {
		s, err := n.open1(port)
		list = append(list, s...)
		if err != nil {
			return list, err
		}
	}
	return list, nil
}

// open1 opens the transparent listeners of one port, none if it has them. The
// caller holds mu.
func (n *network) open1(port uint16) (list []net.Listener, err error) {
	if n.ports[port] || port == 53 { // the resolver's
		return nil, nil
	}
	for _, family := range n.families {
		s, err := n.listen(family, nil, int(port))
		if err != nil {
			return list, err
		}
		list = append(list, s)
	}
	n.ports[port] = true
	return list, nil
}

// everyPort reports whether some rule's ports are more than are listened on from
// the start.
func (n *network) everyPort() bool {
	if n == nil || n.gateway == nil {
		return false
	}
	_, all := n.gateway.Ports()
	return all
}

// maxPorts bounds the ports that have listeners: each takes two descriptors, and
// what is inside asks for them.
const maxPorts = 2048

// connect is told that a process in the sandbox is about to connect somewhere.
// The gateway decides about the connection, as about all; here it gets a listener
// to arrive at if rules name every port. Where they do not, a port without
// listener refuses, and that is recorded.
func (n *network) connect(to netip.AddrPort, stream func() bool, who func() (pid int, command string)) {
	n.mu.Lock()
	known := n.ports[to.Port()]
	n.mu.Unlock()
	if known || to.Port() == 53 {
		return
	}
	every := n.everyPort()
	if !every && !stream() {
		return // nothing else gets anywhere, and asking who one is sends nothing
	}
	// Not on the caller's thread, which may do no more than the command.
	done := make(chan struct{})
	go func() {
		defer close(done)
		if every {
			n.add(to.Port())
		} else if !n.taken(to.Port()) {
			n.gateway.Refused(to, who)
		}
	}()
	<-done
}

// add opens the transparent listeners of a port while the sandbox runs.
func (n *network) add(port uint16) {
	n.mu.Lock()
	var list []net.Listener
	if len(n.ports) < maxPorts {
		list, _ = n.open1(port) // without one, the connection is refused
	}
	n.mu.Unlock()
	for _, s := range list {
		n.gateway.Add(s)
	}
}

// taken reports whether a server of the sandbox's own has a port.
func (n *network) taken(port uint16) bool {
	for _, family := range n.families {
		fd, err := n.bind(family, unix.SOCK_STREAM, nil, int(port), false)
		if err != nil {
			return true
		}
		unix.Close(fd)
	}
	return false
}

// reload puts other rules in place.
func (n *network) reload(e policy.Egress) error {
	if n == nil || n.gateway == nil || e.Mode == policy.EgressHost {
		return errors.New("the network's mode changes with the next run")
	}
	if err := n.gateway.Reload(e); err != nil {
		return err
	}
	list, err := n.missing()
	for _, s := range list {
		n.gateway.Add(s)
	}
	if err != nil {
		// The sandbox has a server of its own at that port, or is gone.
		return fmt.Errorf("a new rule's port: %w", err)
	}
	return nil
}

func closeListeners(l *egress.Listeners) {
	for _, c := range l.DNS {
		c.Close()
	}
	for _, list := range [...][]net.Listener{l.DNSStream, l.Transparent, l.Proxy} {
		for _, c := range list {
			c.Close()
		}
	}
}

// bind opens a socket of the sandbox's network, bound to a port of an IPv4
// address, or to no address; it may listen.
func (n *network) bind(family, typ int, addr []byte, port int, listen bool) (int, error) {
	fd, err := n.child.Socket(family, typ|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	sockopt := func(level, opt int) {
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, opt, 1))
		}
	}
	if port == ProxyPort {
		// A rule may name this very port: both then listen, and the proxy has
		// the more specific address.
		sockopt(unix.SOL_SOCKET, unix.SO_REUSEPORT)
	}
	var sa unix.Sockaddr
	if family == unix.AF_INET6 {
		sockopt(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		sa = &unix.SockaddrInet6{Port: port}
	} else {
		v4 := &unix.SockaddrInet4{Port: port}
		copy(v4.Addr[:], addr)
		sa = v4
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sa))
	}
	if err == nil && listen {
		err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// backlog is what the kernel bounds by net.core.somaxconn.
const backlog = 4096

func (n *network) listen(family int, addr []byte, port int) (net.Listener, error) {
	fd, err := n.bind(family, unix.SOCK_STREAM, addr, port, true)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	return net.FileListener(f)
}

func (n *network) listenPacket(family, port int) (net.PacketConn, error) {
	fd, err := n.bind(family, unix.SOCK_DGRAM, nil, port, false)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	return net.FilePacketConn(f)
}

// usualPorts get listeners where a rule names every port and the kernel cannot
// tell of a connection beforehand (before Linux 5.19).
var usualPorts = [...]uint16{21, 22, 25, 80, 110, 143, 389, 443, 465, 587, 636, 853, 989, 990, 993, 995, 1433, 1521,
	1883, 2375, 2376, 3000, 3306, 3389,
	4222, 4317, 4318, 4443, 5000, 5432, 5671, 5672, 5900, 6379, 6443, 7687, 8000, 8008, 8080, 8081, 8086, 8443, 8883, 8888,
	9000, 9042, 9090, 9092, 9200, 9418, 9443, 11211, 11371, 15672, 27017}

// publish leads connections to a port of the host to one of the sandbox's.
func (n *network) publish(l *net.TCPListener, port uint16) {
	stop := context.AfterFunc(n.ctx, func() { l.Close() })
	defer stop()
	slots := make(chan struct{}, maxPublished)
	for {
		outside, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		slots <- struct{}{}
		n.leading.Add(1)
		n.group.Go(func() {
			defer func() { <-slots }()
			n.lead(outside, port)
		})
	}
}

// maxPublished bounds the connections of one published port at a time.
const maxPublished = 512

// lead connects to a port in the sandbox and carries one connection there.
func (n *network) lead(outside *net.TCPConn, port uint16) {
	defer outside.Close()
	said := sync.OnceFunc(func() { n.leading.Add(-1) })
	defer said()
	inside, err := n.dial(port)
	if err != nil {
		outside.SetLinger(0) // as refused as it can be by now
		return
	}
	defer inside.Close()
	stop := context.AfterFunc(n.ctx, func() {
		outside.Close()
		inside.Close()
	})
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(inside, outside)
		inside.CloseWrite()
	}()
	io.Copy(outside, inside)
	outside.CloseWrite()
	said()
	<-done
}

// dialTimeout bounds connecting to a server in the sandbox, which is the
// kernel's own doing unless the server is too busy to accept.
const dialTimeout = 10 * time.Second

// dial connects to a port of the sandbox's loopback interface.
func (n *network) dial(port uint16) (*net.TCPConn, error) {
	var err error
	for _, sa := range [...]unix.Sockaddr{
		&unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}},
		&unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}},
	} {
		family := unix.AF_INET
		if _, ok := sa.(*unix.SockaddrInet6); ok {
			family = unix.AF_INET6
		}
		var fd int
		if fd, err = n.child.Socket(family, unix.SOCK_STREAM, 0); err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), "published")
		if err = sys.Connect(fd, sa, dialTimeout); err != nil {
			f.Close()
			continue
		}
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		return c.(*net.TCPConn), nil
	}
	return nil, err
}

// drainTime is how long what a command sent last may take to leave after its
// end.
const drainTime = time.Second

// close ends the network of a sandbox in which nothing runs any more, and waits
// until nothing of it is left. It may be called twice.
func (n *network) close() {
	if n == nil {
		return
	}
	if n.stop != nil {
		// To the published ports it is over when the kernel has passed on what is
		// on its way, unless a client does not read it.
		for end := time.Now().Add(drainTime); (n.leading.Load() > 0 || n.gateway != nil && n.gateway.Stats().Active > 0) &&
			time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		n.stop()
	}
	for _, l := range n.published {
		l.Close()
	}
	n.group.Wait()
}

// refused counts what the gateway refused so far.
func (n *network) refused() uint64 {
	if n == nil || n.gateway == nil {
		return 0
	}
	return n.journal.Refused()
}

// since is what the gateway refused since so many were.
func (n *network) since(refused uint64) []driver.Denial {
	if n == nil || n.gateway == nil {
		return nil
	}
	return n.journal.Since(refused)
}

// report adds to a status what went through the network.
func (n *network) report(st *driver.Status) {
	if n == nil || n.gateway == nil {
		return
	}
	n.journal.Report(st, n.gateway.Stats())
}
