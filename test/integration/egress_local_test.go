//go:build linux

package integration

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// withoutNamespaces are the flags of a run by the landlock driver.
var withoutNamespaces = []string{"--driver", "landlock", "--allow-degraded", "namespaces,protect"}

// TestEgressWithoutNamespaces: where there is no network namespace, programs that
// know of proxies reach what rules allow by the same decision, and are told what was
// refused.
func TestEgressWithoutNamespaces(t *testing.T) {
	for _, w := range whos {
		for _, c := range clients {
			if c.route == "transparent" {
				continue
			}
			t.Run(w.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, w)
				world := inWorld(f)
				if c.need != "" {
					f.need(c.need)
				}
				flags := append(append(slices.Clone(withoutNamespaces), allowed...), "--profile", f.logging())
				// /tmp is not granted.
				script := func(s string) string { return strings.ReplaceAll(s, "/tmp/", "$TMPDIR/") }
				o, r := f.netRun(flags, script(c.ok))
				if r.ExitCode != 0 || !strings.Contains(r.Stdout, c.want) {
					f.Fatalf("got %d, want %q\n%v", r.ExitCode, c.want, o)
				}
				if !slices.Contains(r.Layers, "egress") || r.Network.Connections == 0 || r.Network.BytesReceived == 0 {
					f.Errorf("layers %v, %+v", r.Layers, r.Network)
				}
				found := false
				for _, q := range r.Network.Log {
					found = found || q.Route == c.route && q.Verdict == "allow" && q.Rule != ""
				}
				if !found {
					f.Errorf("no request by route %s in the log: %+v", c.route, r.Network.Log)
				}

				before := world.reached(evilServer)
				begin := time.Now()
				o, r = f.netRun(flags, script(c.denied))
				if r.ExitCode == 0 {
					f.Errorf("a denied name was reached: %v", o)
				}
				if took := time.Since(begin); took > 30*time.Second {
					f.Errorf("it took %v to fail", took)
				}
				found = false
				for _, d := range r.Denials {
					found = found || strings.HasPrefix(d.Target, "denied.test") && strings.HasPrefix(d.Grant, "--allow-host denied.test") && d.Rule != "" && d.Operation == "connect"
				}
				if !found {
					f.Errorf("no denial: %+v\n%v", r.Denials, o)
				}
				if n := world.reached(evilServer); n != before {
					f.Errorf("the server was reached")
				}
				if world.asked("denied.test") {
					f.Errorf("the host's resolver was asked")
				}
				f.wantUnchanged()
			})
		}
	}
}

// roundabout tries every way to a server that is not the proxy's, and says what
// each came to. The host's own servers are on HOST, one that listens everywhere on
// the proxy's port is nobody's.
const roundabout = `
import errno, os, socket, sys, threading
server, host, hostport = sys.argv[1], sys.argv[2], int(sys.argv[3])
proxy = int(os.environ["HTTP_PROXY"].rsplit(":", 1)[1].rstrip("/"))
def attempt(name, f):
    try:
        f()
        print(name, "ok", flush=True)
    except OSError as e:
        print(name, errno.errorcode.get(e.errno, e), flush=True)
def connect(*to, family=socket.AF_INET):
    with socket.socket(family) as s:
        s.connect(to)
attempt("server", lambda: connect(server, 80))
attempt("proxy's port elsewhere", lambda: connect(server, proxy))
attempt("proxy's port on another loopback", lambda: connect("127.0.0.2", proxy))
attempt("proxy's port, IPv6", lambda: connect("::1", proxy, family=socket.AF_INET6))
attempt("host's server", lambda: connect(host, hostport))
attempt("proxy", lambda: connect("127.0.0.1", proxy))
attempt("proxy, mapped", lambda: connect("::ffff:127.0.0.1", proxy, family=socket.AF_INET6))
def nonblocking():
    with socket.socket() as s:
        s.setblocking(False)
        fd, flags = s.fileno(), os.get_inheritable(s.fileno())
        s.connect(("127.0.0.1", proxy))
        assert s.fileno() == fd and os.get_inheritable(fd) == flags
        try:
            s.recv(1)
            print("it blocked")
        except BlockingIOError:
            pass
attempt("proxy, without blocking", nonblocking)
attempt("fast open", lambda: socket.socket().sendto(b"x", 0x20000000, (server, 80)))
attempt("datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("datagram pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
attempt("MPTCP", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262))
attempt("UNIX", lambda: socket.socket(socket.AF_UNIX))
attempt("server of its own", lambda: socket.socket().bind(("127.0.0.1", 0)))
attempt("listening unbound", lambda: socket.socket().listen())
def swap():
    # The address changes while the call is under way, all the time.
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    good = b"\x02\x00" + proxy.to_bytes(2, "big") + socket.inet_aton("127.0.0.1") + bytes(8)
    bad = b"\x02\x00" + (80).to_bytes(2, "big") + socket.inet_aton(server) + bytes(8)
    buf = ctypes.create_string_buffer(good, 16)
    stop = False
    def flip():
        while not stop:
            ctypes.memmove(buf, bad, 16)
            ctypes.memmove(buf, good, 16)
    t = threading.Thread(target=flip)
    t.start()
    try:
        for _ in range(2000):
            with socket.socket() as s:
                if libc.connect(s.fileno(), buf, 16) == 0:
                    assert s.getpeername() == ("127.0.0.1", proxy), s.getpeername()
    finally:
        stop = True
        t.join()
attempt("swap", swap)
`

// TestEgressLocalOnly: without a network namespace nothing but the proxy is reached,
// and what else was tried is told.
func TestEgressLocalOnly(t *testing.T) {
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			f := newFixture(t, w)
			world := inWorld(f)
			host := f.listen("tcp4", "127.0.0.1:0")
			_, port, _ := strings.Cut(strings.TrimPrefix(host.addr, "tcp:"), ":")
			f.write("ws/roundabout.py", roundabout, 0o644)
			f.own()
			f.before = f.snapshot()
			before := world.reached(evilServer)
			o, r := f.netRun(append(slices.Clone(withoutNamespaces), append(allowed, "--allow-host", evilServer+":80")...), "exec /usr/bin/python3 roundabout.py "+evilServer+" 127.0.0.1 "+port)
			want := `server ECONNREFUSED
proxy's port elsewhere ECONNREFUSED
proxy's port on another loopback ECONNREFUSED
proxy's port, IPv6 ECONNREFUSED
host's server ECONNREFUSED
proxy ok
proxy, mapped ok
proxy, without blocking ok
fast open ENOTSUP
datagram EPERM
datagram pair EPERM
MPTCP EPROTONOSUPPORT
UNIX EPERM
server of its own EPERM
listening unbound EPERM
swap ok
`
			if r.Stdout != want {
				f.Errorf("got\n%s\n%v", r.Stdout, o)
			}
			told := false
			for _, d := range r.Denials {
				told = told || d.Target == evilServer+":80" && strings.Contains(d.Reason, "HTTP_PROXY")
			}
			if !told {
				f.Errorf("not told: %+v", r.Denials)
			}
			if n := world.reached(evilServer); n != before {
				f.Errorf("the server was reached %d times", n-before)
			}
			if host.hits.Load() != 0 {
				f.Errorf("the host's server was reached")
			}
			f.wantUnchanged()
		})
	}
}
