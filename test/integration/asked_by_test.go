//go:build linux

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// proxied is Python for a request to the proxy, on a socket that it has or makes.
const proxied = `import array, base64, os, re, socket, sys, time
user, at, port = re.match("http://(.*)@(.*):([0-9]+)", os.environ["HTTP_PROXY"]).groups()
def connected():
    return socket.create_connection((at, int(port)))
def ask(s, host):
    s.sendall(("CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\nProxy-Authorization: Basic %s\r\n\r\n" % (host, host, base64.b64encode(user.encode()).decode())).encode())
    assert b" 403 " in s.recv(999)
`

// TestDeniedBy: a denial of a host names the process that asked, by each way to the gateway;
// and no process where it could be one of several.
func TestDeniedBy(t *testing.T) {
	t.Parallel()
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			f.need("curl")
			f.need("python3")
			f.write("ws/forks.py", proxied+`
held = [socket.socket() for _ in range(300)] + [connected() for _ in range(50)]
s = connected()
if os.fork() == 0:
    time.sleep(60)
ask(s, "forks.denied.test")
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    ask(connected(), "child.denied.test")
    os._exit(0)
os.waitpid(child, 0)
`, 0o644)
			f.write("ws/passes.py", proxied+`
a, b = socket.socketpair()
if os.fork() == 0:
    s = connected()
    socket.send_fds(a, [b"x"], [s.fileno()])
    time.sleep(60)
if os.fork() == 0:
    _, fds, _, _ = socket.recv_fds(b, 1, 1)
    ask(socket.socket(fileno=fds[0]), "passed.denied.test")
    os._exit(0)
os.wait()
`, 0o644)
			f.write("ws/six.py", `import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0\6denied\5test6\0\0\1\0\1", ("::ffff:127.0.0.1", 53))
s.recv(512)
`, 0o644)
			f.own()
			f.before = f.snapshot()
			const curl = `sh -c 'echo $$; exec curl -o /dev/null -sS -m 20 %s' 2>/dev/null; `
			_, r := f.netRun(nil, fmt.Sprintf(curl+curl+curl+curl+curl, "http://http.denied.test/", "https://connect.denied.test/",
				`-x "socks5h${ALL_PROXY#http}" http://socks.denied.test/`, `--noproxy "*" http://look.denied.test/`, `--noproxy "*" http://9.9.9.9/`)+
				`sh -c 'echo $$; exec curl -o /dev/null -sS -m 20 --noproxy "*" http://9.9.9.9:4444/' 2>/dev/null; sh -c 'echo $$; exec python3 six.py'; python3 forks.py; python3 passes.py; echo over`)
			pids := strings.Fields(r.Stdout)
			if len(pids) != 9 || pids[8] != "over" {
				f.Fatalf("%q %q", r.Stdout, r.Stderr)
			}
			for i, want := range [][2]string{{"http.denied.test:80", "curl "}, {"connect.denied.test:443", "curl "}, {"socks.denied.test:80", "curl "}, {"look.denied.test", "curl "},
				{"9.9.9.9:80", "curl "}, {"9.9.9.9:4444", "curl "}, {"denied.test6", "python3 six.py"}, {"child.denied.test:443", "python3 forks.py"}, {"forks.denied.test:443", "python3 forks.py"}, {"passed.denied.test:443", ""}} {
				at := slices.IndexFunc(r.Denials, func(d denial) bool { return d.Target == want[0] })
				if at < 0 {
					f.Errorf("%s is not told: %+v", want[0], r.Denials)
					continue
				}
				p := r.Denials[at].Process
				if !strings.HasPrefix(p.Command, want[1]) || i < 8 && fmt.Sprint(p.PID) != pids[i] || (p.PID == 0) != (want[1] == "") {
					f.Errorf("%s: %+v, and the processes are %q", want[0], p, pids)
				}
				if i == 8 && fmt.Sprint(p.PID) == pids[7] {
					f.Errorf("the child was not there: %+v", p)
				}
			}
		})
	}
}

// TestAskedBy: a question about a host names the process that asks, by the proxy and without,
// and what that is called is escaped.
func TestAskedBy(t *testing.T) {
	t.Parallel()
	f := newFixture(t, whos[0])
	f.need("curl")
	a := newAskerIn(f, nil, "--ask=60s")
	for host, flag := range map[string]string{"by.asked.test": "", "by2.asked.test": `--noproxy "*" `} {
		c := a.starts(`sh -c 'echo $$; exec curl -o /dev/null -sS -m 60 -H "X: $(printf "a\tb")" ` + flag + "http://" + host + "/' 2>/dev/null; true")
		q := a.asked(1)[0]
		p := q.Denial.Process
		if q.Denial.Target != host+":80" || !strings.HasPrefix(p.Command, "curl -o /dev/null -sS -m 60 ") || strings.Contains(p.Command, "\t") {
			a.Errorf("%+v", q)
		}
		if o := a.cli("requests", a.id); !strings.Contains(o.stdout, fmt.Sprintf("(%d)", p.PID)) || !strings.Contains(o.stdout, `"curl -o /dev/null -sS -m 60 `) {
			a.Errorf("%v", o)
		}
		a.answer("deny", q.ID)
		a.ends(c, 0, fmt.Sprintf("%d\n", p.PID))
	}
}
