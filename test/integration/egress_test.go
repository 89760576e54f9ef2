//go:build linux

package integration

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// allowed are the rules of most tests here.
var allowed = []string{"--allow-host", "*.allowed.test:22,80,443,5432"}

// clients are programs of every kind, each with what it prints when it reaches a
// server of the allowed names, and a form of it for a name that is not allowed.
var clients = []struct {
	name    string
	need    string
	ok      string // a script
	want    string
	denied  string // the same for denied.test
	route   string // by which it comes, as the log has it
	noProbe bool   // its denied form makes no look-up outside of the proxy
}{
	{"curl", "curl", "curl -sS -m 20 --noproxy '*' --cacert ca.pem https://www.allowed.test/", "hello from www.allowed.test", "curl -sS -m 20 --noproxy '*' --cacert ca.pem https://denied.test/", "transparent", false},
	{"curl, plain", "curl", "curl -sS -m 20 --noproxy '*' http://www.allowed.test/", "hello from www.allowed.test", "curl -sS -m 20 --noproxy '*' http://denied.test/", "transparent", false},
	{"curl by CONNECT", "curl", "curl -sS -m 20 --cacert ca.pem https://www.allowed.test/", "hello from www.allowed.test", "curl -sS -m 20 --cacert ca.pem https://denied.test/", "connect", true},
	{"curl by HTTP", "curl", "curl -sSf -m 20 http://www.allowed.test/", "hello from www.allowed.test", "curl -sSf -m 20 http://denied.test/", "http", true},
	{"curl by SOCKS", "curl", `curl -sS -m 20 --cacert ca.pem -x "socks5h${ALL_PROXY#http}" https://www.allowed.test/`, "hello from www.allowed.test", `curl -sS -m 20 --cacert ca.pem -x "socks5h${ALL_PROXY#http}" https://denied.test/`, "socks", true},
	{"curl, IPv6", "curl", "curl -sS -m 20 -6 --noproxy '*' --cacert ca.pem https://six.allowed.test/", "hello from six.allowed.test", "curl -sS -m 20 -6 --noproxy '*' --cacert ca.pem https://denied.test/", "transparent", false},
	{"a static Go program", "", "./fetch -ca ca.pem https://www.allowed.test/", "hello from www.allowed.test", "./fetch -ca ca.pem https://denied.test/", "transparent", false},
	{"a Go program by the proxy", "", "./fetch -proxy -ca ca.pem https://www.allowed.test/", "hello from www.allowed.test", "./fetch -proxy -ca ca.pem https://denied.test/", "connect", true},
	{"git over https", "git", "git -c http.sslCAInfo=$PWD/ca.pem clone -q https://git.allowed.test/repo.git /tmp/c1 && cat /tmp/c1/file", "cloned", "git -c http.sslCAInfo=$PWD/ca.pem clone -q https://denied.test/repo.git /tmp/c2", "connect", true},
	{"git over ssh", "ssh", "GIT_SSH_COMMAND='ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR' git clone -q git@git.allowed.test:repo.git /tmp/c3 && cat /tmp/c3/file", "cloned",
		"GIT_SSH_COMMAND='ssh -o StrictHostKeyChecking=no -o ConnectTimeout=20' git clone -q git@denied.test:repo.git /tmp/c4", "transparent", false},
	{"psql", "psql", "psql -At 'postgresql://postgres@db.allowed.test/postgres?connect_timeout=20' -c 'select 40+2'", "42", "psql -At 'postgresql://postgres@denied.test/postgres?connect_timeout=20' -c 'select 1'", "transparent", false},
	{"python urllib", "python3", `/usr/bin/python3 -c 'import urllib.request,ssl; print(urllib.request.build_opener(urllib.request.ProxyHandler({}),urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile="ca.pem"))).open("https://www.allowed.test/",timeout=20).read().decode())'`,
		"hello from www.allowed.test", `/usr/bin/python3 -c 'import urllib.request; urllib.request.build_opener(urllib.request.ProxyHandler({})).open("https://denied.test/",timeout=20)'`, "transparent", false},
	{"python urllib by the proxy", "python3", `/usr/bin/python3 -c 'import urllib.request; print(urllib.request.urlopen("http://www.allowed.test/",timeout=20).read().decode())'`,
		"hello from www.allowed.test", `/usr/bin/python3 -c 'import urllib.request; urllib.request.urlopen("http://denied.test/",timeout=20)'`, "http", true},
	{"python requests", "python3", `REQUESTS_CA_BUNDLE=ca.pem /usr/bin/python3 -c 'import requests; s=requests.Session(); s.trust_env=False; s.verify="ca.pem"; print(s.get("https://www.allowed.test/",timeout=20).text)'`, "hello from www.allowed.test",
		`/usr/bin/python3 -c 'import requests; s=requests.Session(); s.trust_env=False; s.get("https://denied.test/",timeout=20)'`, "transparent", false},
	{"python requests by the proxy", "python3", `REQUESTS_CA_BUNDLE=ca.pem /usr/bin/python3 -c 'import requests; print(requests.get("https://www.allowed.test/",timeout=20).text)'`, "hello from www.allowed.test",
		`/usr/bin/python3 -c 'import requests; requests.get("https://denied.test/",timeout=20)'`, "connect", true},
	{"node fetch", "node", `NODE_EXTRA_CA_CERTS=ca.pem node -e 'fetch("https://www.allowed.test/").then(r=>r.text()).then(console.log)'`, "hello from www.allowed.test",
		`NODE_EXTRA_CA_CERTS=ca.pem node -e 'fetch("https://denied.test/").then(r=>r.text()).then(console.log).catch(e=>{console.error(e.cause.code);process.exit(1)})'`, "transparent", false},
	{"npm install", "npm", `mkdir -p /tmp/n && cd /tmp/n && npm install --cafile $OLDPWD/ca.pem --no-audit --no-fund --no-update-notifier --fetch-retries=0 --registry https://registry.allowed.test/ left-of >/dev/null && node -p 'require("left-of")'`, "left of it",
		`mkdir -p /tmp/m && cd /tmp/m && npm install --no-audit --no-fund --no-update-notifier --fetch-retries=0 --registry https://denied.test/ left-of`, "connect", true},
}

// inWorld prepares a fixture's workspace for the world.
func inWorld(f *fixture) *world {
	f.Helper()
	w := needWorld(f)
	b, err := os.ReadFile(fetch)
	if err != nil {
		f.Fatal(err)
	}
	f.write("ws/fetch", string(b), 0o755)
	f.write("ws/ca.pem", w.ca, 0o644)
	f.own()
	f.before = f.snapshot()
	return w
}

// netRun runs a script under strict with a proxied network.
func (f *fixture) netRun(flags []string, script string) (*outcome, *result) {
	f.Helper()
	f.need("bash")
	o := f.run(call{args: f.sandbox(append([]string{"--net", "proxy", "--json"}, flags...), "bash", "-c", script), timeout: 2 * time.Minute})
	return o, f.result(o)
}

// TestEgressClients: real programs reach real servers by name, whatever they know
// of proxies; what no rule allows fails at once, is recorded, and reaches
// nobody.
func TestEgressClients(t *testing.T) {
	for _, w := range whos {
		for _, c := range clients {
			t.Run(w.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				defer build()()
				f := newFixture(t, w)
				world := inWorld(f)
				if c.need != "" {
					f.need(c.need)
				}
				o, r := f.netRun(append([]string{}, append(allowed, "--profile", f.logging())...), c.ok)
				if r.ExitCode != 0 || !strings.Contains(r.Stdout, c.want) {
					f.Fatalf("got %d, want %q\n%v", r.ExitCode, c.want, o)
				}
				if r.Network.Connections == 0 || r.Network.BytesReceived == 0 {
					f.Errorf("nothing counted: %+v", r.Network)
				}
				if len(r.Denials) != 0 || r.Network.Denied != 0 {
					f.Errorf("denials without a cause: %d %+v", r.Network.Denied, r.Denials)
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
				o, r = f.netRun(allowed, c.denied)
				if r.ExitCode == 0 {
					f.Errorf("a denied name was reached: %v", o)
				}
				if took := time.Since(begin); took > 15*time.Second {
					f.Errorf("it took %v to fail", took)
				}
				found = false
				for _, d := range r.Denials {
					found = found || strings.HasPrefix(d.Target, "denied.test") && strings.HasPrefix(d.Grant, "--allow-host denied.test") && d.Rule != "" && (d.Operation == "connect" || d.Operation == "resolve")
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

// logging is a profile file that has every request logged.
func (f *fixture) logging() string {
	f.write("profile/logging.yaml", "extends: strict\nverify: false\nnetwork:\n  log: true\n", 0o644)
	return f.path("profile/logging.yaml")
}

// TestEgressControl: what is denied in the sandbox is within reach of the host.
func TestEgressControl(t *testing.T) {
	f := newFixture(t, whos[0])
	world := inWorld(f)
	for _, url := range []string{"http://evil.test/", "http://private.allowed.test/", "http://meta.allowed.test/", "http://" + evilServer + "/"} {
		o := f.do(call{args: f.who.command(f.path("ws/fetch"), url)})
		if o.code != 0 || !strings.Contains(o.stdout, "hello") {
			t.Errorf("%s: %v", url, o)
		}
	}
	if !world.asked("meta.allowed.test") {
		t.Error("the host's resolver was not asked")
	}
	if world.reached(evilServer) == 0 || world.reached(metadata) == 0 || world.reached(privateIP) == 0 {
		t.Error("the servers do not count")
	}
}

// TestEgressAddresses: names that lead to where nobody may go, and addresses in
// every spelling (N06, E01, E04, E09, E10, E18).
func TestEgressAddresses(t *testing.T) {
	for _, w := range whos {
		// Not beside others, which reach the same servers by right.
		t.Run(w.name, func(t *testing.T) {
			f := newFixture(t, w)
			world := inWorld(f)
			host := f.listen("tcp4", "127.0.0.1:0")
			_, port, _ := strings.Cut(strings.TrimPrefix(host.addr, "tcp:"), ":")
			self := f.listen("tcp4", hostIP+":0")
			_, selfPort, _ := strings.Cut(strings.TrimPrefix(self.addr, "tcp:"), ":")
			// Local by a route alone, as a load balancer's address is.
			routed := f.listen("tcp4", routedIP+":0")
			_, routedPort, _ := strings.Cut(strings.TrimPrefix(routed.addr, "tcp:"), ":")
			private, meta, evil := world.reached(privateIP), world.reached(metadata), world.reached(evilServer)
			targets := []string{
				// N06
				"http://" + metadata + "/", "http://[fd00:ec2::254]/", "http://meta.allowed.test/", "http://[::ffff:" + metadata + "]/", "http://2852039166/", "http://0xa9.0xfe.0xa9.0xfe/",
				// E01
				"http://evil-allowed.test/", "http://www.allowed.test.evil.test/", "http://allowed.test/",
				// E04
				"http://127.1:" + port + "/", "http://0177.0.0.1:" + port + "/", "http://0x7f000001:" + port + "/", "http://2130706433:" + port + "/", "http://[::ffff:127.0.0.1]:" + port + "/", "http://[::1]:" + port + "/",
				// E10
				"http://private.allowed.test/", "http://self.allowed.test:" + selfPort + "/", "http://routed.allowed.test:" + routedPort + "/", "http://loop.allowed.test:" + port + "/", "http://" + privateIP + "/", "http://" + hostIP + ":" + selfPort + "/",
				// E18: no rule names the port.
				"https://www.allowed.test:8443/", "http://www.allowed.test:22/",
				// An address is no name.
				"http://" + webServer + "/", "http://[" + webServer6 + "]/",
			}
			var script strings.Builder
			for _, url := range targets {
				for _, how := range []string{"--noproxy '*'", "", `-x "socks5h${ALL_PROXY#http}"`} {
					fmt.Fprintf(&script, "curl -sSfg -m 20 -k %s '%s' >/dev/null 2>&1 && echo REACHED %s %s\n", how, url, url, strings.ReplaceAll(how, "$", ""))
				}
			}
			rules := []string{"--allow-host", "*.allowed.test:80,443," + port + "," + selfPort + "," + routedPort}
			o, r := f.netRun(rules, script.String()+"echo done")
			if strings.TrimSpace(r.Stdout) != "done" {
				f.Errorf("got %s\n%s", r.Stdout, r.Stderr)
			}
			if len(r.Denials) < 5 {
				f.Errorf("denials: %v", o)
			}
			if host.hits.Load()+self.hits.Load()+routed.hits.Load() != 0 || world.reached(privateIP) != private || world.reached(metadata) != meta || world.reached(evilServer) != evil {
				f.Errorf("servers were reached: %d %d %d", host.hits.Load(), self.hits.Load(), routed.hits.Load())
			}
			// The neighbours: listed by address, they are reached.
			_, r = f.netRun([]string{"--allow-host", privateIP + ":80", "--allow-host", webServer + ":80", "--allow-host", "private.allowed.test:80"},
				"curl -sSf -m 20 --noproxy '*' http://"+privateIP+"/ && curl -sSf -m 20 http://"+webServer+"/ && curl -sSf -m 20 --noproxy '*' http://private.allowed.test/")
			if r.ExitCode != 0 || strings.Count(r.Stdout, "hello") != 3 {
				f.Errorf("listed addresses: %+v", r)
			}
			// E09: the second answer is private.
			private = world.reached(privateIP)
			f.netRun(allowed, "for i in 1 2 3 4; do curl -sS -m 20 --noproxy '*' http://rebind.allowed.test/; curl -sS -m 20 http://rebind.allowed.test/; done")
			if world.reached(privateIP) != private {
				f.Error("rebinding reached a private address")
			}
		})
	}
}

// n04 is N04: no route leads a name that is not allowed to the host's resolver.
func n04(f *fixture) {
	world := inWorld(f)
	mark := strings.ReplaceAll(f.unique("n04"), "_", "-")
	script := fmt.Sprintf(`n() { echo "$RANDOM-$1.%[1]s.test"; }
		for i in 1 2 3; do
		getent hosts $(n getent); ./fetch resolve $(n udp) 127.0.0.1:53; ./fetch resolve $(n other) 9.9.9.53:53; ./fetch resolve $(n v6) '[2620:fe::53]:53'
		curl -m 5 --noproxy '*' http://$(n curl)/; curl -m 5 http://$(n proxy)/; curl -m 5 -k https://$(n connect)/; curl -m 5 -x "socks5h${ALL_PROXY#http}" http://$(n socks)/; curl -m 5 -x "socks4a${ALL_PROXY#http}" http://$(n socks4)/
		curl -m 5 http://www.allowed.test/ -H "Host: $(n host)"
		/usr/bin/python3 -c 'import socket,sys; socket.getaddrinfo(sys.argv[1],80)' $(n python)
		done >/dev/null 2>&1
		/usr/bin/python3 - <<'EOF'
import socket,struct
def q(name,t): return b'\x12\x34\x01\0\0\1\0\0\0\0\0\0'+b''.join(bytes([len(l)])+l.encode() for l in name.split('.'))+b'\0'+struct.pack('>HH',t,1)
for i,t in enumerate((1,2,5,6,12,15,16,28,33,65,255)):
    for dst in ('127.0.0.1','9.9.9.53','8.8.8.8'):
        s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(1); s.connect((dst,53))
        try:
            s.send(q('type%%d.%[1]s.test'%%t,t)); s.recv(512)
        except OSError: pass
        s.close()
    c=socket.create_connection(('9.9.9.53',53),5); m=q('tcp%%d.%[1]s.test'%%t,t); c.sendall(struct.pack('>H',len(m))+m); c.settimeout(1)
    try: c.recv(512)
    except OSError: pass
    c.close()
EOF
		curl -sS -m 10 http://www.allowed.test/ && getent hosts www.allowed.test >/dev/null && echo fine`, mark)
	o, r := f.netRun(allowed, script)
	if r.ExitCode != 0 || !strings.HasSuffix(r.Stdout, "fine\n") {
		f.Errorf("the allowed name: %v", o)
	}
	if world.asked(mark) {
		f.Error("the host's resolver was asked for a name that is not allowed")
	}
	if r.Network.LookupsDenied < 10 {
		f.Errorf("look-ups denied: %d", r.Network.LookupsDenied)
	}
	f.step("control on the host", func() {
		f.do(call{args: f.who.command(f.path("ws/fetch"), "resolve", "x."+mark+".test", dnsServer+":53")})
		if !world.asked(mark) {
			f.Error("the host's resolver was not asked")
		}
	})
}

// TestEgressProxy: what only the explicit routes have (E13, E14, E15, E16).
func TestEgressProxy(t *testing.T) {
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			world := inWorld(f)
			evil := world.reached(evilServer)
			o, r := f.netRun(allowed, `curl -sS -m 20 http://denied.test/; curl -s -m 20 -L -o /dev/null -w 'redirect %{http_code}\n' http://www.allowed.test/redirect
				curl -sS -m 20 --noproxy '*' -L -o /dev/null http://www.allowed.test/redirect || echo redirect refused
				NO_PROXY='*' no_proxy='*' curl -sS -m 20 http://denied.test/ || echo no proxy, no way
				curl -s -m 20 -o /dev/null -w 'wrong token %{http_code}\n' -x http://sbxrun:00000000000000000000000000000000@127.0.0.1:3128 http://www.allowed.test/
				curl -s -m 20 -o /dev/null -w 'no token %{http_code}\n' -x http://127.0.0.1:3128 http://www.allowed.test/
				curl -sS -m 20 -x "$HTTP_PROXY" http://www.allowed.test/
				cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -c "${HTTP_PROXY#*sbxrun:}"`)
			for _, want := range []string{"no rule allows denied.test:80", "--allow-host denied.test:80", "redirect 403", "redirect refused", "no proxy, no way", "wrong token 407", "no token 407", "hello from www.allowed.test"} {
				if !strings.Contains(r.Stdout, want) {
					f.Errorf("%q is missing: %v", want, o)
				}
			}
			if world.reached(evilServer) != evil {
				f.Error("the server was reached")
			}
			if !slices.ContainsFunc(r.Denials, func(d denial) bool {
				return d.Rule == "token" && d.Target == "www.allowed.test:80"
			}) {
				f.Errorf("the wrong token is not told: %+v", r.Denials)
			}
			// Nothing allowed: nothing reached.
			_, r = f.netRun(nil, "curl -sS -m 20 --noproxy '*' http://www.allowed.test/ || curl -sSf -m 20 http://www.allowed.test/")
			if r.ExitCode == 0 {
				f.Error("without a rule a host was reached")
			}
			// A rule that cannot be read: no run.
			for _, bad := range []string{"*allowed.test", "127.1", "a..b", "www.allowed.test:0", "www.allowed.test:99999", "ftp://www.allowed.test", "", "localhost", "127.0.0.1"} {
				o := f.do(call{args: f.sandbox([]string{"--allow-host", bad, "--json"}, "true")})
				if r := f.result(o); o.code != 125 || r.Code != "POLICY_INVALID" {
					f.Errorf("--allow-host %q: %v", bad, o)
				}
			}
			// Deny wins.
			_, r = f.netRun([]string{"--allow-host", "*.allowed.test", "--deny-host", "www.allowed.test"}, "curl -sSf -m 20 http://api.allowed.test/ && ! curl -sSf -m 20 http://www.allowed.test/ && ! curl -sSf -m 20 --noproxy '*' http://www.allowed.test/")
			if r.ExitCode != 0 {
				f.Errorf("deny: %+v", r)
			}
		})
	}
}

// TestEgressSingleLabel: a name of one label is what the host's table of names has for
// it; the search list of its resolv.conf makes no other name of it.
func TestEgressSingleLabel(t *testing.T) {
	eachWho(t, func(f *fixture) {
		world := inWorld(f)
		_, r := f.netRun([]string{"--allow-host", "www:80", "--allow-host", "single:80"}, `curl -sSf -m 20 --noproxy '*' http://www/; curl -sSf -m 20 http://www/
			curl -sSf -m 20 --noproxy '*' http://single/ || curl -sSf -m 20 http://single/ || echo none`)
		if want := "hello from www\nhello from www\nnone\n"; r.Stdout != want {
			f.Errorf("got %q, want %q\n%s", r.Stdout, want, r.Stderr)
		}
		if !world.asked("single") || world.asked("single.searched.test") {
			f.Error("the host's resolver was asked for another name, or for none")
		}
	})
}

// TestEgressInside: what a command does within its own network stays as it is.
func TestEgressInside(t *testing.T) {
	eachWho(t, func(f *fixture) {
		inWorld(f)
		_, r := f.netRun(allowed, `
			/usr/bin/python3 -c '
import http.server,threading,urllib.request,socket,errno
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(s): s.send_response(200); s.end_headers(); s.wfile.write(b"own")
    def log_message(s,*a): pass
for host in ("127.0.0.1","0.0.0.0"):
    srv=http.server.HTTPServer((host,0),H); threading.Thread(target=srv.serve_forever,daemon=True).start()
    for name in ("localhost","127.0.0.1"):
        print(host,name,urllib.request.urlopen("http://%s:%d/"%(name,srv.server_port),timeout=10).read().decode())
def quick(f):
    try: f(); return "reached"
    except OSError as e: return errno.errorcode.get(e.errno,str(e))
def udp(dst,port):
    s=socket.socket(socket.AF_INET6 if ":" in dst else socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5); s.connect((dst,port)); s.send(b"x"); s.recv(10)
print("quic",quick(lambda: udp("9.9.9.10",443)), quick(lambda: udp("2620:fe::10",443)))
def asks(dst):
    s=socket.socket(socket.AF_INET6 if ":" in dst else socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5); s.connect((dst,53)); s.send(b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\3www\\7allowed\\4test\\0\\0\\1\\0\\1"); s.recv(600)
print("dns",quick(lambda: asks("9.9.9.53")), quick(lambda: asks("2620:fe::53")))
print("port",quick(lambda: socket.create_connection(("9.9.9.10",8443),5)))
print("icmp",quick(lambda: socket.socket(socket.AF_INET,socket.SOCK_RAW,1)), quick(lambda: socket.socket(socket.AF_INET,socket.SOCK_DGRAM,1)))
'`)
		for _, want := range []string{"127.0.0.1 localhost own", "127.0.0.1 127.0.0.1 own", "0.0.0.0 localhost own", "0.0.0.0 127.0.0.1 own", "quic ECONNREFUSED ECONNREFUSED", "dns reached reached", "port ECONNREFUSED"} {
			if !strings.Contains(r.Stdout, want+"\n") {
				f.Errorf("%q is missing: %s%s", want, r.Stdout, r.Stderr)
			}
		}
		if strings.Contains(r.Stdout, "icmp reached") || strings.HasSuffix(r.Stdout, "reached\n") {
			f.Errorf("icmp: %s", r.Stdout)
		}
	})
}

// TestEgressPort: a port that no rule names refuses at once, and the result says
// which it was and what would allow it; a socket that sends nothing and a server
// of the sandbox's own are no denials.
func TestEgressPort(t *testing.T) {
	eachWho(t, func(f *fixture) {
		inWorld(f)
		_, r := f.netRun(allowed, `/usr/bin/python3 -c '
import socket,sys
for host,port in (("www.allowed.test",8022),("9.9.9.10",8023),("2620:fe::10",8024)):
    for again in range(2):
        try: socket.create_connection((host,port),10); print("reached")
        except ConnectionRefusedError: print("refused")
socket.socket(socket.AF_INET,socket.SOCK_DGRAM).connect(("9.9.9.10",8025))
own=socket.create_server(("0.0.0.0",8026)); socket.create_connection(("9.9.9.10",8026),10); print("own")
'`)
		if want := strings.Repeat("refused\n", 6) + "own\n"; r.Stdout != want {
			f.Fatalf("%s%s", r.Stdout, r.Stderr)
		}
		var got []string
		for _, d := range r.Denials {
			got = append(got, d.Operation+" "+d.Target+" "+d.Rule+" "+d.Grant)
		}
		want := []string{"connect www.allowed.test:8022 default --allow-host www.allowed.test:8022", "connect 9.9.9.10:8023 default --allow-host 9.9.9.10:8023", "connect [2620:fe::10]:8024 default --allow-host [2620:fe::10]:8024"}
		if !slices.Equal(got, want) {
			f.Errorf("%q, want %q", got, want)
		}
	})
}

// TestPublish: a port of the host leads to a server in the sandbox, without a
// network and with one, and is gone with it.
func TestPublish(t *testing.T) {
	for _, mode := range []string{"none", "proxy"} {
		for _, w := range whos {
			t.Run(mode+"/"+w.name, func(t *testing.T) {
				f := newFixture(t, w)
				l, err := net.Listen("tcp4", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				addr := l.Addr().String()
				_, port, _ := net.SplitHostPort(addr)
				flags := []string{"--net", mode, "--publish", port + ":8000"}
				// In use: the run does not start, and says why.
				o := f.do(call{args: f.sandbox(append(flags, "--json"), "true")})
				if r := f.result(o); o.code != 125 || !strings.Contains(r.Error, "publish 127.0.0.1:"+port) || !strings.Contains(r.Error, "in use") {
					t.Errorf("a port in use: %v", o)
				}
				l.Close()
				f.files(map[string]string{"serve.py": `
import socket,os
l=socket.socket(); l.bind(("127.0.0.1",8000)); l.listen(16)
open("up","w").close()
for i in range(3):
    c,a=l.accept(); n=0
    while True:
        d=c.recv(65536)
        if not d: break
        n+=len(d)
    c.sendall(b"got %d from %s\n"%(n,a[0].encode())); c.close()
`})
				o = f.run(call{args: f.sandbox(flags, "/usr/bin/python3", "serve.py"), started: func(*exec.Cmd) {
					if !within(20*time.Second, func() bool { return exists(f.path("ws/up")) }) {
						t.Error("the server did not start")
						return
					}
					for _, n := range []int{0, 5, 1 << 20} {
						c, err := net.Dial("tcp4", addr)
						if err != nil {
							t.Error(err)
							return
						}
						c.SetDeadline(time.Now().Add(20 * time.Second))
						c.Write(make([]byte, n))
						c.(*net.TCPConn).CloseWrite()
						b, err := io.ReadAll(c)
						if want := fmt.Sprintf("got %d from 127.0.0.1\n", n); string(b) != want || err != nil {
							t.Errorf("got %q, %v, want %q", b, err, want)
						}
						c.Close()
					}
				}})
				if o.code != 0 {
					t.Errorf("%v", o)
				}
				if c, err := net.Dial("tcp4", addr); err == nil {
					c.Close()
					t.Error("the port is still open")
				}
				// What the command said last arrives, though it ends at once and
				// the client is slow.
				f.files(map[string]string{"last.py": `
import socket
l=socket.socket(); l.bind(("127.0.0.1",8000)); l.listen(1)
open("last","w").close()
c,a=l.accept(); c.sendall(b"x"*(6<<20))
`})
				o = f.run(call{args: f.sandbox(flags, "/usr/bin/python3", "last.py"), started: func(*exec.Cmd) {
					if !within(20*time.Second, func() bool { return exists(f.path("ws/last")) }) {
						t.Error("the server did not start")
						return
					}
					c, err := net.Dial("tcp4", addr)
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					c.SetDeadline(time.Now().Add(20 * time.Second))
					time.Sleep(100 * time.Millisecond)
					if b, err := io.ReadAll(c); len(b) != 6<<20 || err != nil {
						t.Errorf("%d bytes of the last answer, %v", len(b), err)
					}
				}})
				if o.code != 0 {
					t.Errorf("%v", o)
				}
			})
		}
	}
}

// TestEgressTools: aicode reaches what the caller's own tools are set up to use,
// and nothing that only the workspace names.
func TestEgressTools(t *testing.T) {
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			defer build()()
			f := newFixture(t, w)
			world := inWorld(f)
			f.need("npm")
			f.write("home/.npmrc", "registry=https://me:hunter2@registry.allowed.test/\n//registry.allowed.test/:_authToken=hunter3\n", 0o600)
			f.write("home/.ssh/known_hosts", "git.allowed.test ssh-ed25519 AAAA\n", 0o600)
			f.write("ws/.git/config", "[remote \"origin\"]\n\turl = https://git.allowed.test/repo.git\n[remote \"evil\"]\n\turl = https://denied.test/repo.git\n", 0o644)
			f.own()
			args := func(command ...string) []string {
				return append(append(f.who.command(sbxrun, "--profile", "aicode", "-C", f.ws), append(f.who.flags(), "--result-file", f.path("ws/result"))...), append([]string{"--"}, command...)...)
			}
			o := f.run(call{args: args("bash", "-c", `set -e
				mkdir /tmp/n; cd /tmp/n; npm install --cafile "$OLDPWD/ca.pem" --no-audit --no-fund --no-update-notifier --fetch-retries=0 left-of >/dev/null; node -p 'require("left-of")'
				git -c http.sslCAInfo="$OLDPWD/ca.pem" clone -q https://git.allowed.test/repo.git /tmp/c; cat /tmp/c/file
				! curl -sSf -m 20 -k https://denied.test/; ! curl -sSf -m 20 -k --noproxy '*' https://denied.test/; ! curl -sSf -m 20 -k https://www.allowed.test/
				! cat ~/.npmrc; ! env | grep hunter`), timeout: 2 * time.Minute})
			if o.code != 0 || !strings.Contains(o.stdout, "left of it") || !strings.Contains(o.stdout, "cloned") || strings.Contains(o.stdout, "hunter") {
				t.Errorf("%v", o)
			}
			for _, want := range []string{`git remote "evil" is on denied.test:443`, "add --allow-host denied.test:443", "no rule allows denied.test:443"} {
				if !strings.Contains(o.stderr, want) {
					t.Errorf("%q is not on stderr: %v", want, o)
				}
			}
			if world.asked("denied.test") {
				t.Error("the host's resolver was asked")
			}
			o = f.run(call{args: f.who.command(sbxrun, "profile", "show", "aicode")})
			for _, want := range []string{"registry.allowed.test:443", "tool npm: ~/.npmrc", "git.allowed.test:443", "remote origin"} {
				if !strings.Contains(o.stdout, want) {
					t.Errorf("%q is not shown: %v", want, o)
				}
			}
			if strings.Contains(o.stdout, "denied.test") || strings.Contains(o.stdout, "hunter") {
				t.Errorf("shown: %v", o)
			}
			// What the caller refuses is refused, and a project cannot widen.
			f.write("ws/.sbxrun.yaml", "network:\n  deny: [git.allowed.test]\n", 0o644)
			o = f.run(call{args: args("bash", "-c", "! curl -sSf -m 20 -k https://git.allowed.test/")})
			if o.code != 0 || !strings.Contains(o.stderr, "deny git.allowed.test") {
				t.Errorf("a project that denies: %v", o)
			}
			for _, more := range []string{"network:\n  allow: [denied.test]\n", "network:\n  mode: host\n", "network:\n  publish: ['8080:80']\n"} {
				f.write("ws/.sbxrun.yaml", more, 0o644)
				if o := f.run(call{args: args("true")}); o.code != 125 || !strings.Contains(o.stderr, "may only make the sandbox tighter") {
					t.Errorf("a project that allows %q: %v", more, o)
				}
			}
		})
	}
}

// liveProfile writes a profile with one rule for the network, and a project's file with
// one more. The function writes the profile anew with other rules.
func (f *fixture) liveProfile() func(rules string) {
	f.Helper()
	profile := func(rules string) {
		f.write("profile/live.yaml", "extends: strict\nverify: false\nnetwork:\n  mode: proxy\n"+rules, 0o644)
	}
	profile("  allow: ['www.allowed.test:80']\n")
	f.write("ws/.sbxrun.yaml", "network:\n  deny: [six.allowed.test]\n", 0o644)
	f.own()
	return profile
}

// TestEgressReload: rules of files hold for running sandboxes as they are now; a
// broken file changes nothing, and the workspace widens nothing (PRO-4).
func TestEgressReload(t *testing.T) {
	atOnce(t, func(f *fixture) {
		inWorld(f)
		profile := f.liveProfile()
		script := `get() { curl -sSf -m 5 --noproxy '*' "$@" >/dev/null 2>&1; }
				until_() { for i in {1..100}; do if get "$@"; then return 0; fi; sleep 0.1; done; echo "$* was not allowed"; exit 1; }
				get http://www.allowed.test/ || exit 2; ! get -k https://api.allowed.test:8443/ || exit 3
				rm .sbxrun.yaml # what the workspace said stays
				touch 1; until_ -k https://api.allowed.test:8443/; ! get http://six.allowed.test/ || exit 4
				touch 2; for i in {1..100}; do get http://www.allowed.test/ || break; sleep 0.1; done; ! get http://www.allowed.test/ || exit 5
				get -k https://api.allowed.test:8443/ || exit 6
				touch 3; sleep 5; get -k https://api.allowed.test:8443/ || exit 7; echo fine`
		done := make(chan bool)
		o := f.run(call{args: append(append(f.who.command(sbxrun, "-P", f.path("profile/live.yaml"), "-C", f.ws), f.quiet()...), "--", "bash", "-c", script), started: func(*exec.Cmd) {
			go func() {
				defer close(done)
				for i, rules := range []string{
					"  allow: ['www.allowed.test:80', '*.allowed.test:80,8443']\n", "  allow: ['*.allowed.test:8443']\n", "  allow: [*broken\n",
				} {
					if !within(30*time.Second, func() bool { return exists(f.path(fmt.Sprint("ws/", i+1))) }) {
						return
					}
					profile(rules)
				}
			}()
		}})
		<-done
		if o.code != 0 || !strings.Contains(o.stdout, "fine") || !strings.Contains(o.stderr, "the network rules stay as they were") {
			f.Errorf("%v", o)
		}
	})
}

// TestEgressReloadSession: the network of a session follows its files, as that of a
// run does; a broken one is told by ls and inspect.
func TestEgressReloadSession(t *testing.T) {
	atOnce(t, func(f *fixture) {
		inWorld(f)
		profile := f.liveProfile()
		sbx := func(args ...string) *outcome { return f.run(call{args: append(f.who.command(sbxrun), args...)}) }
		create := append([]string{"session", "create", "-P", f.path("profile/live.yaml"), "-C", f.ws}, f.quiet()...)
		if o := sbx(append(create, "net")...); o.code != 0 {
			f.Fatal(o)
		}
		defer sbx("session", "rm", "--force", "net")
		get := func(url string) bool {
			return sbx("session", "exec", "net", "--", "curl", "-sSfk", "-m", "5", "--noproxy", "*", "-o", "/dev/null", url).code == 0
		}
		const www, api, six = "http://www.allowed.test/", "https://api.allowed.test:8443/", "http://six.allowed.test/"
		if !get(www) || get(api) {
			f.Fatal("the rules that it was created with do not count")
		}
		os.Remove(f.path("ws/.sbxrun.yaml")) // what the workspace said stays
		profile("  allow: ['www.allowed.test:80', '*.allowed.test:80,8443']\n")
		if !within(30*time.Second, func() bool { return get(api) }) || get(six) || !get(www) {
			f.Error("what is allowed by now is not, or too much is")
		}
		profile("  allow: ['*.allowed.test:8443']\n")
		if !within(30*time.Second, func() bool { return !get(www) }) || !get(api) {
			f.Error("what is allowed no more is, or too little is")
		}
		if o := sbx("session", "ls"); o.code != 0 || strings.Contains(o.stderr, "stay as they were") || !strings.Contains(o.stderr, "but for the rules of its network: changed since: "+f.path("profile/live.yaml")) {
			f.Errorf("%v", o)
		}
		profile("  allow: [*broken\n")
		if !within(30*time.Second, func() bool {
			return strings.Contains(sbx("session", "inspect", "net").stdout, "the network rules stay as they were: ")
		}) || !get(api) || get(www) {
			f.Error("a broken file is not told, or has changed the rules")
		}
		if o := sbx("session", "ls"); o.code != 0 || !strings.Contains(o.stderr, "net: the network rules stay as they were: ") {
			f.Errorf("%v", o)
		}
		profile("  allow: ['www.allowed.test:80']\n")
		if !within(30*time.Second, func() bool { return get(www) }) || get(api) {
			f.Error("after a broken file the rules do not follow")
		}
		if o := sbx("session", "inspect", "net"); strings.Contains(o.stdout, "stay as they were") {
			f.Errorf("%v", o)
		}
	})
}

// TestEgressPresets: the profiles with a network have it.
func TestEgressPresets(t *testing.T) {
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			inWorld(f)
			for profile, script := range map[string]string{
				"development": "curl -sSf -m 20 --noproxy '*' -k https://www.allowed.test/ && curl -sSf -m 20 -k https://www.allowed.test:8443/ && ! curl -sSf -m 20 http://private.allowed.test/ && ! curl -sSf -m 20 --noproxy '*' http://meta.allowed.test/",
				"webscraping": "curl -sSf -m 20 --noproxy '*' -k https://www.allowed.test/ && curl -sSf -m 20 http://www.allowed.test/ && ! curl -sSf -m 20 -k https://www.allowed.test:8443/ && ! curl -sSf -m 20 --noproxy '*' -k https://www.allowed.test:8443/ && ! curl -sSf -m 20 http://private.allowed.test/",
			} {
				o := f.run(call{args: append(append(f.who.command(sbxrun, "-P", profile, "-C", f.ws), f.who.flags()...), "bash", "-c", script)})
				if o.code != 0 || strings.Count(o.stdout, "hello from www.allowed.test") != 2 {
					t.Errorf("%s: %v", profile, o)
				}
			}
		})
	}
}

// TestEgressEveryPort: a rule without a port is for every port, for programs that
// know nothing of proxies; ports of the sandbox's own stay free.
func TestEgressEveryPort(t *testing.T) {
	eachWho(t, func(f *fixture) {
		inWorld(f)
		for _, flags := range [][]string{{"--allow-host", "*.allowed.test"}, {"--allow-host", "*.allowed.test:1000-9000", "--workspace", "ro"}} {
			_, r := f.netRun(flags, `for i in 1 2; do curl -sS -m 20 --noproxy '*' http://www.allowed.test:7777/; done; ./fetch http://www.allowed.test:7777/
				curl -sS -m 20 --noproxy '*' http://www.allowed.test:7776/ || echo none there
				curl -sS -m 20 --noproxy '*' http://private.allowed.test:7777/ || echo private refused
				curl -sS -m 20 --noproxy '*' http://localhost:7778/ || echo not yet
				/usr/bin/python3 -m http.server --bind 0.0.0.0 7778 >/dev/null 2>&1 & for i in {1..100}; do curl -sf -m 5 -o /dev/null --noproxy '*' http://localhost:7778/ && echo own server && break; sleep 0.1; done`)
			for want, n := range map[string]int{"hello from www.allowed.test:7777": 3, "none there": 1, "private refused": 1, "not yet": 1, "own server": 1} {
				if strings.Count(r.Stdout, want) != n {
					f.Errorf("%v: %q is not there %d times: %s%s", flags, want, n, r.Stdout, r.Stderr)
				}
			}
		}
	})
}
