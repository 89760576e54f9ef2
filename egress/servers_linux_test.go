package egress

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// denied is a name that every server of the fleet serves and no rule allows. The names
// that are allowed are as long, so that one can take the other's place in a message.
const denied = "denied.example"

// A real is a server as Debian has it, or a library's, that serves two names from one
// address, and logs which of them was asked for.
type real struct {
	name  string // that is allowed
	addr  string // in the world
	plain string // address of HTTP, "" if it has none
	tls   string // of TLS
	log   string // file in which a line that holds the denied name is a request for it
	hits  atomic.Int64
}

// reached counts the requests and handshakes for the denied name so far.
func (s *real) reached(t testing.TB) int64 {
	t.Helper()
	if s.log == "" {
		return s.hits.Load()
	}
	b, err := os.ReadFile(s.log)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return int64(bytes.Count(b, []byte(denied)))
}

// fleet starts every server that this machine has. Each listens on a port for HTTP and
// on one for TLS; TLS wants the curve P-384, so that other clients are asked again.
func fleet(t testing.TB) []*real {
	t.Helper()
	dir := t.TempDir()
	os.Chmod(dir, 0o777)
	var names []string
	for _, n := range []string{"golang", "golan2", "nginxa", "haprox", "apache", "lighty", "nodejs", "python", "javase", "openss", "gnutls"} {
		names = append(names, n+".example")
	}
	cert, _ := certificate(t, append(names, denied)...)
	key, err := x509.MarshalECPrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key})
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file("cert.pem", string(certPEM))
	file("key.pem", string(keyPEM))
	both := file("both.pem", string(certPEM)+string(keyPEM))
	file("empty", "")

	var list []*real
	add := func(name string) *real {
		s := &real{name: name + ".example", addr: fmt.Sprintf("93.184.216.%d", 20+len(list)), log: filepath.Join(dir, name+".log")}
		list = append(list, s)
		return s
	}
	port := func() string {
		l := listen(t)
		defer l.Close()
		return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	// run starts a server, and waits for its ports. Its standard output goes to out.
	run := func(out string, ports []string, program string, args ...string) bool {
		path, err := exec.LookPath(program)
		if err != nil {
			path = "/usr/sbin/" + program
			if _, err := os.Stat(path); err != nil {
				missing(t, program)
				return false
			}
		}
		cmd := exec.Command(path, args...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		w, err := os.Create(filepath.Join(dir, program+".out"))
		if out != "" {
			w, err = os.Create(out)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		stdin, err := cmd.StdinPipe() // s_server ends with its input
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = w, w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			stdin.Close()
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			cmd.Wait()
		})
		for _, p := range ports {
			for end := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				c, err := net.Dial("tcp", "127.0.0.1:"+p)
				if err == nil {
					c.Close()
					break
				}
				if time.Now().After(end) {
					b, _ := os.ReadFile(w.Name())
					t.Fatalf("%s: %v: %s", program, err, b)
				}
			}
		}
		return true
	}
	loop := func(port string) string { return "127.0.0.1:" + port }

	// Go's, in this process, once with each version's handshake.
	for i, name := range []string{"golang", "golan2"} {
		s := add(name)
		s.log = ""
		config := &tls.Config{
			Certificates: []tls.Certificate{cert}, CurvePreferences: []tls.CurveID{tls.CurveP384}, MinVersion: tls.VersionTLS10,
			GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				if strings.EqualFold(h.ServerName, denied) {
					s.hits.Add(1)
				}
				return nil, nil
			},
		}
		if i == 1 {
			config.MaxVersion = tls.VersionTLS12
		}
		server := &http.Server{
			ReadTimeout: 5 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.TLS == nil && strings.HasPrefix(strings.ToLower(r.Host), denied) {
					s.hits.Add(1)
				}
				io.Copy(io.Discard, r.Body)
			}),
		}
		if i == 1 { // and HTTP/2 without TLS, whose server speaks first
			server.Protocols = new(http.Protocols)
			server.Protocols.SetHTTP1(true)
			server.Protocols.SetUnencryptedHTTP2(true)
		}
		plain, secure := listen(t), listen(t)
		s.plain, s.tls = plain.Addr().String(), secure.Addr().String()
		go server.Serve(plain)
		go server.Serve(tls.NewListener(secure, config))
		t.Cleanup(func() { server.Close() })
	}

	p, q := port(), port()
	if run("", []string{p, q}, "nginx", "-p", dir, "-c", file("nginx.conf", `daemon off; master_process off; pid nginx.pid; error_log /dev/null; events { worker_connections 4096; }
http { log_format seen $server_name; access_log nginxa.log seen; ssl_certificate cert.pem; ssl_certificate_key key.pem; ssl_ecdh_curve secp384r1;
ssl_session_cache shared:s:1m; ssl_early_data on; ssl_protocols TLSv1.2 TLSv1.3; client_body_temp_path .; proxy_temp_path .; fastcgi_temp_path .; uwsgi_temp_path .; scgi_temp_path .;
server { listen `+loop(p)+` default_server; listen `+loop(q)+` ssl http2 default_server; server_name other; return 200 hello; }
server { listen `+loop(p)+`; listen `+loop(q)+` ssl http2; server_name `+denied+`; return 200 hello; } }`)) {
		s := add("nginxa")
		s.plain, s.tls = loop(p), loop(q)
	}

	p, q = port(), port()
	if run(filepath.Join(dir, "haprox.log"), []string{p, q}, "haproxy", "-db", "-f", file("haproxy.cfg", `global
  log stdout format raw local0
  maxconn 2000
defaults
  mode http
  log global
  timeout client 5s
  timeout server 1s
  timeout connect 1s
  log-format "%b %[ssl_fc_sni]"
  error-log-format "%[ssl_fc_sni]"
frontend plain
  bind `+loop(p)+`
  bind `+loop(q)+` ssl crt `+both+` curves secp384r1 alpn h2,http/1.1
  use_backend `+denied+` if { req.hdr(host) -i -m beg `+denied+` }
  default_backend other
backend `+denied+`
  http-request return status 200
backend other
  http-request return status 200
`)) {
		s := add("haprox")
		s.plain, s.tls = loop(p), loop(q)
	}

	p, q = port(), port()
	var modules strings.Builder
	for _, m := range []string{"mpm_event", "authz_core", "ssl", "socache_shmcb", "alias"} {
		modules.WriteString("LoadModule " + m + "_module /usr/lib/apache2/modules/mod_" + m + ".so\n")
	}
	if run("", []string{p, q}, "apache2", "-X", "-d", dir, "-f", file("apache.conf", modules.String()+`
ServerName other
PidFile `+dir+`/apache.pid
DefaultRuntimeDir `+dir+`
ErrorLog `+dir+`/apache.log
LogLevel crit ssl:debug
HttpProtocolOptions Unsafe LenientMethods Allow0.9
Listen `+loop(p)+`
Listen `+loop(q)+` https
LogFormat "%v" seen
SSLSessionCache none
<VirtualHost *:`+p+`>
ServerName other
</VirtualHost>
<VirtualHost *:`+p+`>
ServerName `+denied+`
CustomLog `+dir+`/apache.log seen
</VirtualHost>
<VirtualHost *:`+q+`>
ServerName other
SSLEngine on
SSLCertificateFile `+dir+`/cert.pem
SSLCertificateKeyFile `+dir+`/key.pem
SSLOpenSSLConfCmd Curves secp384r1
</VirtualHost>
<VirtualHost *:`+q+`>
ServerName `+denied+`
SSLEngine on
SSLCertificateFile `+dir+`/cert.pem
SSLCertificateKeyFile `+dir+`/key.pem
CustomLog `+dir+`/apache.log seen
</VirtualHost>
`)) {
		s := add("apache")
		s.plain, s.tls = loop(p), loop(q)
	}

	p = port()
	if run("", []string{p}, "lighttpd", "-D", "-f", file("lighttpd.conf", `server.document-root = "`+dir+`"
server.bind = "127.0.0.1"
server.port = `+p+`
server.errorlog = "`+dir+`/lighty.log"
server.http-parseopts = ("header-strict" => "disable", "host-strict" => "disable", "url-ctrls-reject" => "disable")
$HTTP["host"] =~ "^`+denied+`" { server.document-root = "`+dir+`/`+denied+`" debug.log-request-handling = "enable" }
`)) {
		s := add("lighty")
		s.plain = loop(p)
	}

	p, q = port(), port()
	if run(filepath.Join(dir, "nodejs.log"), []string{p, q}, "node", "-e", `
const http = require("http"), https = require("https"), fs = require("fs"), out = (s) => s && fs.writeSync(1, s + "\n")
const seen = (q, s) => { out(q.headers.host); s.end("hello") }
const o = { insecureHTTPParser: true, requestTimeout: 5000 }
http.createServer(o, seen).on("connect", (q, c) => { out(q.headers.host); c.end() }).on("clientError", (e, c) => c.destroy()).listen(`+p+`, "127.0.0.1")
https.createServer({ ...o, cert: fs.readFileSync("cert.pem"), key: fs.readFileSync("key.pem"), ecdhCurve: "P-384", SNICallback: (n, f) => { out(n); f(null) } }, (q, s) => s.end("hello"))
  .on("tlsClientError", (e, c) => c.destroy()).listen(`+q+`, "127.0.0.1")
process.on("uncaughtException", () => {})`) {
		s := add("nodejs")
		s.plain, s.tls = loop(p), loop(q)
	}

	p, q = port(), port()
	if run(filepath.Join(dir, "python.log"), []string{p, q}, "python3", "-c", `
import http.server, ssl, sys, threading, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5
    def __getattr__(self, name):
        if not name.startswith("do_"): raise AttributeError(name)
        def do():
            host = self.headers.get("Host", "")
            if host: sys.stdout.write(host + "\n"); sys.stdout.flush()
            self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
        return do
    def log_message(self, *a): pass
class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    def handle_error(self, *a): pass
    def finish_request(self, request, address):
        if self.context:
            request.settimeout(5)
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, address)
def serve(port, context):
    s = Server(("127.0.0.1", port), Handler); s.context = context
    threading.Thread(target=s.serve_forever).start()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
context.set_ecdh_curve("secp384r1")
def sni(s, name, c):
    if name: sys.stdout.write(name + "\n"); sys.stdout.flush()
context.sni_callback = sni
serve(`+p+`, None); serve(`+q+`, context)`) {
		s := add("python")
		s.plain, s.tls = loop(p), loop(q)
	}

	// Java's has no bound on the length of a head here, as it had none for years.
	p = port()
	if run(filepath.Join(dir, "javase.log"), []string{p}, "java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Dsun.net.httpserver.maxReqHeaderSize=1000000000", file("Server.java", `public class Server {
  public static void main(String[] args) throws Exception {
    var s = com.sun.net.httpserver.HttpServer.create(new java.net.InetSocketAddress("127.0.0.1", `+p+`), 128);
    s.createContext("/", x -> {
      System.out.println(x.getRequestHeaders().getFirst("Host"));
      x.getRequestBody().readAllBytes();
      x.sendResponseHeaders(200, -1);
      x.close();
    });
    s.setExecutor(java.util.concurrent.Executors.newCachedThreadPool());
    s.start();
  }
}`)) {
		s := add("javase")
		s.plain = loop(p)
	}

	q = port()
	if run(filepath.Join(dir, "openss.log"), []string{q}, "stdbuf", "-oL", "openssl", "s_server", "-accept", loop(q), "-cert", "cert.pem", "-key", "key.pem", "-cert2", "cert.pem", "-key2", "key.pem",
		"-servername", "other", "-groups", "P-384", "-www") {
		s := add("openss")
		s.tls = loop(q)
	}
	q = port()
	if run(filepath.Join(dir, "gnutls.log"), []string{q}, "stdbuf", "-oL", "gnutls-serv", "-p", q, "--http", "--x509certfile", "cert.pem", "--x509keyfile", "key.pem", "--priority", "NORMAL:-GROUP-ALL:+GROUP-SECP384R1") {
		s := add("gnutls")
		s.tls = loop(q)
	}
	return list
}

// place makes the servers of the fleet those of a world: HTTP on 80 and 8080, TLS on 443
// and 8443.
func (w *world) place(list []*real) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range list {
		w.names[s.name] = []string{s.addr}
		a := netip.MustParseAddr(s.addr)
		for port, to := range map[uint16]string{80: s.plain, 8080: s.plain, 443: s.tls, 8443: s.tls} {
			if to != "" {
				w.servers[netip.AddrPortFrom(a, port)] = to
				private := a.As4()
				private[0], private[1] = 10, 1
				w.servers[netip.AddrPortFrom(netip.AddrFrom4(private), port)] = to
			}
		}
	}
}

// way leads connections of programs that know of no gateway to an address of the
// world: through it, as if they had dialled that.
func (w *world) way(to netip.AddrPort) string {
	l := listen(w.t)
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case w.transparent.conns <- dialledAs{c.(*net.TCPConn), to}:
			case <-w.transparent.done:
				c.Close()
				return
			}
		}
	}()
	return l.Addr().String()
}
