package egress

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// A Local is a gateway on a port of this host's own loopback interface: for
// sandboxes without a network namespace, whose means (Landlock's rules for TCP,
// Seatbelt) can hold them to one port. It has the proxies only. What is lost
// against a gateway with a namespace of its own: programs that know nothing of
// proxies reach nothing, and the sandbox's own servers and UDP are whatever those
// means make of them. Other users of the host reach the port, and lack the token.
type Local struct {
	*Gateway
	Port uint16   // on 127.0.0.1
	Env  []string // the variables by which programs find it, with its token

	stop context.CancelFunc
	done chan error
}

// ServeLocal starts one. The token of the options is made here.
func ServeLocal(p policy.Egress, o Options) (*Local, error) {
	var secret [16]byte
	rand.Read(secret[:]) // never fails, see crypto/rand
	o.Token = hex.EncodeToString(secret[:])
	g, err := New(p, o)
	if err != nil {
		return nil, err
	}
	s, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Local{Gateway: g, Port: s.Addr().(*net.TCPAddr).AddrPort().Port(), done: make(chan error, 1)}
	l.Env = ProxyEnv(l.Port, o.Token)
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() { l.done <- g.Serve(ctx, Listeners{Proxy: []net.Listener{s}}) }()
	return l, nil
}

// Close ends the gateway and every connection, and returns why it had ended
// before, if it had.
func (l *Local) Close() error {
	l.stop()
	return <-l.done
}

// Direct records that a program connected by itself, and was refused: it may be
// allowed to go there, but not that way.
func (l *Local) Direct(to netip.AddrPort) {
	l.refuse(Record{Time: time.Now(), Route: RouteTransparent, Addr: to.Addr().Unmap(), Port: to.Port()},
		malformed("it was connected to without the proxy, which is the only way out here: see HTTP_PROXY"))
}

// ProxyEnv are the variables by which programs find a gateway's proxy at a port of
// 127.0.0.1. ALL_PROXY too is spoken to in HTTP: programs without SOCKS are many,
// and some fail at the sight of it.
func ProxyEnv(port uint16, token string) []string {
	proxy := "http://sbxrun:" + token + "@127.0.0.1:" + strconv.Itoa(int(port))
	var env []string
	for _, v := range [...][2]string{{"HTTP_PROXY", proxy}, {"HTTPS_PROXY", proxy}, {"ALL_PROXY", proxy},
		{"NO_PROXY", "localhost,127.0.0.1,::1"}} {
		env = append(env, v[0]+"="+v[1], strings.ToLower(v[0])+"="+v[1])
	}
	return env
}
