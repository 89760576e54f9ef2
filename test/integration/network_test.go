//go:build linux

package integration

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// Addresses of the outside world. No test sends anything to them: in the sandbox
// there is no way there, and in a control they are addresses of the jail's own
// loopback interface.
const (
	public4, public6 = "1.1.1.1", "2606:4700:4700::1111"
	metadata         = "169.254.169.254"
)

// unreached is what comes of reaching for where there is no way.
const unreached = "ENETUNREACH|EPERM|EACCES|EHOSTUNREACH|EADDRNOTAVAIL"

// A listener is a service of the host that counts who came.
type listener struct {
	addr string // network:address
	hits atomic.Int32
}

// listen starts one, for the time of the test.
func (f *fixture) listen(network, addr string) *listener {
	f.Helper()
	l := &listener{}
	if strings.HasPrefix(network, "udp") {
		c, err := net.ListenPacket(network, addr)
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { c.Close() })
		go func() {
			buf := make([]byte, 64)
			for {
				if _, _, err := c.ReadFrom(buf); err != nil {
					return
				}
				l.hits.Add(1)
			}
		}()
		l.addr = "udp:" + c.LocalAddr().String()
		return l
	}
	s, err := net.Listen(network, addr)
	if err != nil {
		f.Fatal(err)
	}
	if p, ok := strings.CutPrefix(addr, "/"); ok && network == "unix" {
		os.Chmod("/"+p, 0o777)
	}
	f.Cleanup(func() { s.Close() })
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			l.hits.Add(1)
			go func() { io.Copy(io.Discard, c); c.Close() }()
		}
	}()
	l.addr = strings.TrimRight(network, "46") + ":" + s.Addr().String()
	return l
}

// hostAddress is an address of the host's that is not loopback, or "".
func hostAddress() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// metadataHosts are addresses at which clouds tell a machine its secrets: of
// most, of AWS over IPv6, of Alibaba, Oracle and Azure.
var metadataHosts = []string{metadata, "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"}

func networkTests() []entry {
	jailNet := []string{"-addr", public4, "-addr", public6, "-addr", metadata, "-addr", "10.0.0.1"}
	for _, ip := range []string{public4, "[" + public6 + "]", metadata, "10.0.0.1"} {
		jailNet = append(jailNet, "-listen", "tcp:"+ip+":443", "-listen", "tcp:"+ip+":80", "-listen", "udp:"+ip+":53")
	}
	jailMetadata := []string{"-listen", "tcp:" + metadata + ":443", "-listen", "udp:" + metadata + ":53"}
	for _, ip := range metadataHosts {
		jailMetadata = append(jailMetadata, "-addr", ip, "-listen", "tcp:"+net.JoinHostPort(ip, "80"))
	}
	return []entry{
		{
			id: "N01", title: "TCP and UDP to public addresses",
			args: func(*fixture) []string {
				return []string{
					"to.tcp4=tcp:" + public4 + ":443", "to.tcp6=tcp:[" + public6 + "]:443", "to.udp4=udp:" + public4 + ":53", "to.udp6=udp:[" + public6 + "]:53",
					"to.metadata=tcp:" + metadata + ":80", "to.private=tcp:10.0.0.1:80",
				}
			},
			deny:     unreached,
			controls: []control{jailed(jail{flags: jailNet})},
		},
		{
			id: "N06", title: "metadata services of clouds",
			args: func(*fixture) []string {
				args := []string{"to.by a mapped address=tcp:[::ffff:" + metadata + "]:80", "to.by UDP=udp:" + metadata + ":53", "to.https=tcp:" + metadata + ":443"}
				for _, ip := range metadataHosts {
					args = append(args, "to."+ip+"=tcp:"+net.JoinHostPort(ip, "80"))
				}
				return args
			},
			deny:     unreached,
			controls: []control{jailed(jail{flags: jailMetadata})},
		},
		{id: "N02", title: "services on the host's loopback", test: n02},
		{id: "N03", title: "sockets of docker, agents, D-Bus, X11, systemd; abstract sockets", test: n03},
		{id: "N04", title: "names that are not allowed, by any route", test: n04},
		{id: "N08", title: "a server on 0.0.0.0", test: n08},
		{
			id: "N10", title: "ping, and changes of links and routes",
			args: func(*fixture) []string { return []string{"to=" + public4} },
			deny: unreached,
			want: map[string]string{"ping by a ping socket": unreached + "|EPROTONOSUPPORT"},
			controls: []control{jailed(jail{flags: jailNet, want: map[string]string{
				"ping by a ping socket": "ok|EACCES", // net.ipv4.ping_group_range
			}})},
		},
	}
}

// n02 is N02: the sandbox's loopback is not the host's.
func n02(f *fixture) {
	listeners := map[string]*listener{
		"tcp4": f.listen("tcp4", "127.0.0.1:0"), "udp4": f.listen("udp4", "127.0.0.1:0"), "tcp6": f.listen("tcp6", "[::1]:0"), "loopback alias": f.listen("tcp4", "127.0.0.53:0"),
	}
	if a := hostAddress(); a != "" {
		listeners["host address"] = f.listen("tcp4", a+":0")
	}
	var args []string
	for name, l := range listeners {
		args = append(args, "to."+name+"="+l.addr)
	}
	e := entry{id: "N02", deny: unreached + "|ECONNREFUSED"}
	e.judge(f, f.report(f.attackIn(nil, append([]string{"N02"}, args...)...)), e.inside)
	for name, l := range listeners {
		if n := l.hits.Load(); n != 0 {
			f.Errorf("the host's listener %s was reached %d times", name, n)
		}
	}
	f.step("control on the host's network", func() {
		o := f.do(call{args: f.jail(hostNet, nil, append([]string{f.attack, "N02"}, args...)...)})
		e.judge(f, f.report(o), func(string) string { return "ok" })
		for name, l := range listeners {
			if !within(10*time.Second, func() bool { return l.hits.Load() > 0 }) {
				f.Errorf("the host's listener %s was not reached", name)
			}
		}
	})
}

// wellKnown are sockets that command the host.
var wellKnown = []string{
	"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/stdout",
	"/run/user/1000/bus", "/run/user/1000/gnupg/S.gpg-agent", "/run/user/1000/systemd/private", "/tmp/.X11-unix/X0", "/run/nscd/socket", "/run/snapd.socket",
}

// n03 is N03.
func n03(f *fixture) {
	path := f.listen("unix", filepath.Join(f.outside, "agent.sock"))
	abstract := f.listen("unix", "@"+f.unique("abstract"))
	args := []string{"N03", "to.agent=" + path.addr, "to.abstract=" + abstract.addr}
	f.before = f.snapshot()
	e := entry{id: "N03", deny: "ENOENT|ECONNREFUSED|EACCES|EPERM"}
	var known []string
	for _, p := range wellKnown {
		known = append(known, "to."+p+"=unix:"+p)
	}
	o := f.do(call{args: f.strict(nil, append([]string{f.attack}, append(args, known...)...)...), env: []string{"SSH_AUTH_SOCK=" + path.addr}})
	e.judge(f, f.report(o), e.inside)
	untouched := func() {
		if n := path.hits.Load() + abstract.hits.Load(); n != 0 {
			f.Errorf("the host's sockets were reached %d times", n)
		}
	}
	untouched()

	f.step("an abstract socket on the host's network: Landlock's scope", func() {
		tcp := f.listen("tcp4", "127.0.0.1:0")
		o := f.attackIn([]string{"--net", "host"}, append(args, "to.the host's network="+tcp.addr)...)
		e := entry{id: "N03", deny: "ENOENT|EACCES|EPERM", want: map[string]string{"reach the host's network": "ok"}}
		if landlockABI() < 6 {
			f.Log("named: this kernel's Landlock has no scopes (before Linux 6.12): the socket is in reach of --net host")
			return
		}
		e.judge(f, f.report(o), e.inside)
		untouched()
	})
	f.wantUnchanged()

	f.step("control on the host's network", func() {
		o := f.do(call{args: f.jail(hostNet, nil, append([]string{f.attack}, args...)...)})
		e.judge(f, f.report(o), func(string) string { return "ok" })
		if !within(10*time.Second, func() bool { return path.hits.Load() > 0 && abstract.hits.Load() > 0 }) {
			f.Error("the host's sockets were not reached")
		}
	})
	f.step("control with services in a jail", func() {
		// /tmp holds the fixture, so its X11 socket is left to the sandbox's side.
		stageFlags := []string{"-tmpfs", "/run"}
		var in []string
		for _, p := range wellKnown {
			if strings.HasPrefix(p, "/run/") {
				stageFlags = append(stageFlags, "-listen", "unix:"+p)
				in = append(in, "to."+p+"=unix:"+p)
			}
		}
		o := f.do(call{args: f.jail(ownUser, stageFlags, append([]string{f.attack, "N03"}, in...)...)})
		e.judge(f, f.report(o), func(string) string { return "ok" })
	})
}

// n08 is N08: a server of the sandbox's is for the sandbox only.
func n08(f *fixture) {
	try := func(prefix func(...string) []string) (*report, bool) {
		// A port that is free on the host, for the control's sake.
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			f.Fatal(err)
		}
		port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
		l.Close()
		up, on := filepath.Join(f.ws, "up"), filepath.Join(f.ws, "go")
		os.Remove(up)
		os.Remove(on)
		reached := false
		o := f.do(call{args: prefix(f.attack, "N08", "port="+port, "ready="+up, "go="+on), started: func(*exec.Cmd) {
			if !within(10*time.Second, func() bool { return exists(up) }) {
				f.Error("the server did not start")
			}
			for _, host := range []string{"127.0.0.1", hostAddress()} {
				if c, err := net.DialTimeout("tcp4", net.JoinHostPort(host, port), time.Second); host != "" && err == nil {
					reached = true
					c.Close()
				}
			}
			f.write("ws/go", "", 0o644)
		}})
		return f.report(o), reached
	}
	e := entry{id: "N08", want: map[string]string{"a caller from outside": "none"}}
	r, reached := try(func(command ...string) []string { return f.strict(nil, command...) })
	e.judge(f, r, e.inside)
	if reached {
		f.Error("the server was reached from outside")
	}
	f.step("control on the host's network", func() {
		r, reached := try(func(command ...string) []string { return f.jail(hostNet, nil, command...) })
		if !reached || r.got("a caller from outside") != "ok" {
			f.Errorf("the server was not reached: %+v", r)
		}
	})
}

// k08 is K08: no protocol leads to a listener of the host's.
func k08(f *fixture) {
	listeners := map[string]*listener{"loopback": f.listen("tcp4", "127.0.0.1:0"), "loopback6": f.listen("tcp6", "[::1]:0")}
	if a := hostAddress(); a != "" {
		listeners["the host"] = f.listen("tcp4", a+":0")
	}
	args := []string{f.attack, "K08", "to.public=" + public4 + ":443"}
	var control []string
	for name, l := range listeners {
		args = append(args, "to."+name+"="+strings.TrimPrefix(l.addr, "tcp:"))
		if name == "loopback" {
			control = append(control, "to."+name+"="+strings.TrimPrefix(l.addr, "tcp:"))
		}
	}
	no := "EPERM|EACCES|EPROTONOSUPPORT|ESOCKTNOSUPPORT|EAFNOSUPPORT|ENETUNREACH|ECONNREFUSED|ENOPROTOOPT|EOPNOTSUPP|EHOSTUNREACH"
	e := entry{id: "K08", deny: no, want: map[string]string{}}
	for name := range listeners {
		if strings.HasPrefix(name, "loopback") {
			// A datagram into its own, empty loopback may be sent; nobody gets it.
			e.want["UDP-Lite to "+name] = no + "|ok"
		}
	}
	e.judge(f, f.report(f.do(call{args: f.strict(nil, args...)})), e.inside)
	for name, l := range listeners {
		if n := l.hits.Load(); n != 0 {
			f.Errorf("the listener on %s was reached %d times", name, n)
		}
	}
	f.step("control on the host's network", func() {
		// To the test's own listener on loopback only. Raw sockets are looked at
		// in a network of the jail's own.
		o := f.do(call{args: f.jail(hostNet, nil, append([]string{f.attack, "K08"}, control...)...)})
		r := f.report(o)
		if got := r.got("TCP Fast Open to loopback"); got != "ok" {
			f.Errorf("TCP Fast Open without the sandbox: %s", got)
		}
		if got := r.got("MPTCP to loopback"); !match("ok|EPROTONOSUPPORT|ENOPROTOOPT", got) {
			f.Errorf("MPTCP without the sandbox: %s", got)
		}
		if !within(10*time.Second, func() bool { return listeners["loopback"].hits.Load() >= 2 }) {
			f.Errorf("the listener was reached %d times", listeners["loopback"].hits.Load())
		}
		o = f.do(call{args: f.jail(ownUser, nil, f.attack, "K08")})
		for _, act := range []string{"raw ICMP", "raw IP"} {
			if got := f.report(o).got(act); got != "ok" {
				f.Errorf("%s without the sandbox: %s", act, got)
			}
		}
	})
}
