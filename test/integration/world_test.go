//go:build linux

package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// A world is a small internet of the tests' own: network namespaces, in one of
// which sbxrun runs as on any host, with a resolv.conf and a hosts of its own, and in
// the other the servers that names lead to. No packet of it leaves the machine, and
// sbxrun knows nothing of it.
type world struct {
	host, inet *network

	dir string // of its servers' files
	ca  string // the certificate that its servers' were signed with, PEM

	mu      sync.Mutex
	queries []string          // names that the host's resolver was asked for
	hits    map[string]int    // connections, by server
	zone    map[string][]zone // answers, by name
	turns   map[string]int
}

// zone is what a name leads to; with more than one, each answer is the next.
type zone []string

// The servers' addresses. They are public ones of others, which nobody can reach
// from here.
const (
	dnsServer  = "9.9.9.53"
	webServer  = "9.9.9.10"
	webServer6 = "2620:fe::10"
	gitServer  = "9.9.9.22"
	dataServer = "9.9.9.32"
	evilServer = "9.9.9.66"
	askServer  = "9.9.9.67" // of the tests that ask, as are the next two
	askServer2 = "9.9.9.68"
	askServer3 = "9.9.9.69"
	privateIP  = "10.77.7.7"
	hostIP     = "10.99.0.2"
	hostIP6    = "fd00:99::2"
	routedIP   = "9.9.8.8" // the host's, by a route
)

var theWorld struct {
	once sync.Once
	w    *world
	err  error
}

// needWorld makes the world, once, and moves the calling test to its host: what
// the test starts from then on runs there.
func needWorld(f *fixture) *world {
	f.Helper()
	if !isRoot() {
		f.Skip("needs root: to make network namespaces that are connected")
	}
	theWorld.once.Do(func() { theWorld.w, theWorld.err = newWorld() })
	if theWorld.err != nil {
		f.Fatal(theWorld.err)
	}
	theWorld.w.host.enter(f.T)
	return theWorld.w
}

// The main thread is TestMain's alone: a test that moves to another network takes
// its thread there for good, and what is left behind on the host is looked for by
// the main one.
func init() { runtime.LockOSThread() }

// A network is a pair of a network and a mount namespace.
type network struct{ net, mnt *os.File }

// newNetwork makes one, and has its thread prepare it.
func newNetwork(prepare func() error) (*network, error) {
	n := &network{}
	atExit = append(atExit, func() { n.net.Close(); n.mnt.Close() })
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
				return err
			}
			task := fmt.Sprintf("/proc/self/task/%d/ns/", unix.Gettid())
			var err1, err2 error
			n.net, err1 = os.Open(task + "net")
			n.mnt, err2 = os.Open(task + "mnt")
			return errors.Join(err1, err2, command("ip", "link", "set", "lo", "up"), prepare())
		}()
	}()
	return n, <-done
}

func (n *network) move() error {
	runtime.LockOSThread()
	return errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(n.net.Fd()), unix.CLONE_NEWNET), unix.Setns(int(n.mnt.Fd()), unix.CLONE_NEWNS))
}

// enter moves the calling goroutine there for the rest of its life.
func (n *network) enter(t *testing.T) {
	t.Helper()
	if err := n.move(); err != nil {
		t.Fatal(err)
	}
}

// do runs a function there.
func (n *network) do(f func() error) error {
	done := make(chan error)
	go func() {
		if err := n.move(); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func newWorld() (*world, error) {
	w := &world{dir: filepath.Join(runDir, "world"), hits: map[string]int{}, zone: map[string][]zone{}, turns: map[string]int{}}
	if err := os.Mkdir(w.dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	w.inet, err = newNetwork(func() error {
		for _, a := range []string{dnsServer, webServer, gitServer, dataServer, evilServer, askServer, askServer2, askServer3, privateIP, metadata} {
			if err := command("ip", "addr", "add", a+"/32", "dev", "lo"); err != nil {
				return err
			}
		}
		return command("ip", "-6", "addr", "add", webServer6+"/128", "dev", "lo", "nodad")
	})
	if err != nil {
		return nil, err
	}
	resolv := filepath.Join(w.dir, "resolv.conf")
	hosts := filepath.Join(w.dir, "hosts")
	if err := errors.Join(os.WriteFile(resolv, []byte("nameserver "+dnsServer+"\nsearch searched.test\n"), 0o644),
		os.WriteFile(hosts, []byte("127.0.0.1 localhost\n::1 localhost\n"+webServer+" www\n"), 0o644)); err != nil {
		return nil, err
	}
	w.host, err = newNetwork(func() error {
		for _, c := range []string{
			"ip link add toinet type veth peer name tohost",
			"ip addr add " + hostIP + "/24 dev toinet", "ip -6 addr add " + hostIP6 + "/64 dev toinet nodad",
		} {
			if err := command(strings.Fields(c)...); err != nil {
				return err
			}
		}
		// ip(8) moves a link to the namespace of a descriptor by its path.
		return errors.Join(moveLink("tohost", w.inet.net), unix.Mount(resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""), unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, ""))
	})
	if err != nil {
		return nil, err
	}
	err = w.inet.do(func() error {
		for _, c := range []string{"ip addr add 10.99.0.1/24 dev tohost", "ip -6 addr add fd00:99::1/64 dev tohost nodad", "ip link set tohost up"} {
			if err := command(strings.Fields(c)...); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = w.host.do(func() error {
			for _, c := range []string{"ip link set toinet up", "ip route add local " + routedIP + " dev lo", "ip route add default via 10.99.0.1", "ip -6 route add default via fd00:99::1"} {
				if err := command(strings.Fields(c)...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil {
		err = w.inet.do(w.serve)
	}
	return w, err
}

// moveLink moves a network link to a namespace.
func moveLink(name string, ns *os.File) error {
	// A child has the descriptor as its 3.
	cmd := exec.Command("ip", "link", "set", name, "netns", "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{ns}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("move %s: %w: %s", name, err, out)
	}
	return nil
}

// serve starts the servers, in their network.
func (w *world) serve() error {
	for name, addrs := range map[string][]zone{
		"www.allowed.test": {{webServer}}, "api.allowed.test": {{webServer, webServer6}}, "six.allowed.test": {{webServer6}},
		"registry.allowed.test": {{webServer}}, "git.allowed.test": {{gitServer}}, "db.allowed.test": {{dataServer}},
		"single.searched.test": {{webServer}}, "denied.test": {{evilServer}}, "asked.test": {{askServer}}, "www.asked.test": {{askServer}}, "api.asked.test": {{askServer}}, "asked2.test": {{askServer2}}, "asked3.test": {{askServer3}}, "evil-allowed.test": {{evilServer}}, "www.allowed.test.evil.test": {{evilServer}}, "evil.test": {{evilServer}},
		"private.allowed.test": {{privateIP}}, "meta.allowed.test": {{metadata}}, "loop.allowed.test": {{"127.0.0.1"}}, "self.allowed.test": {{hostIP}}, "routed.allowed.test": {{routedIP}},
		"rebind.allowed.test": {{webServer}, {privateIP}},
	} {
		w.zone[name] = addrs
	}
	pc, err := net.ListenPacket("udp4", dnsServer+":53")
	if err != nil {
		return err
	}
	atExit = append(atExit, func() { pc.Close() })
	go w.dns(pc)

	cert, err := w.certificates()
	if err != nil {
		return err
	}
	quiet := log.New(io.Discard, "", 0)
	for addr, secure := range map[string]bool{
		webServer + ":80": false, webServer + ":443": true, webServer + ":8443": true, webServer + ":7777": false, "[" + webServer6 + "]:443": true, "[" + webServer6 + "]:80": false,
		gitServer + ":443": true, evilServer + ":80": false, evilServer + ":443": true, evilServer + ":22": false, askServer + ":80": false, askServer2 + ":80": false, askServer3 + ":80": false, privateIP + ":80": false, privateIP + ":443": true, metadata + ":80": false,
	} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		l = &counted{l, w, addr}
		if secure {
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
		}
		s := &http.Server{Handler: w, ErrorLog: quiet}
		atExit = append(atExit, func() { s.Close() })
		go s.Serve(l)
	}
	if err := w.repository(); err != nil {
		return err
	}
	return errors.Join(w.ssh(), w.database())
}

// counted counts who came.
type counted struct {
	net.Listener
	w    *world
	name string
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.w.mu.Lock()
		l.w.hits[l.name]++
		l.w.mu.Unlock()
	}
	return c, err
}

// reached is how often a server was connected to.
func (w *world) reached(addr string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for name, hits := range w.hits {
		if strings.HasPrefix(name, addr) {
			n += hits
		}
	}
	return n
}

// asked reports whether the host's resolver was asked for a name that holds
// part.
func (w *world) asked(part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.queries, func(q string) bool { return strings.Contains(q, part) })
}

// dns is the resolver of the world's host.
func (w *world) dns(pc net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
		w.mu.Lock()
		w.queries = append(w.queries, name)
		answers, ok := w.zone[name]
		var addrs zone
		if ok {
			addrs = answers[w.turns[name]%len(answers)]
			if q.Type == dnsmessage.TypeA {
				w.turns[name]++
			}
		}
		w.mu.Unlock()
		r := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true}, Questions: m.Questions}
		if !ok {
			r.RCode = dnsmessage.RCodeNameError
		}
		for _, a := range addrs {
			ip := netip.MustParseAddr(a)
			h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}
			switch {
			case ip.Is4() && q.Type == dnsmessage.TypeA:
				r.Answers = append(r.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: ip.As4()}})
			case ip.Is6() && q.Type == dnsmessage.TypeAAAA:
				r.Answers = append(r.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
			}
		}
		if b, err := r.Pack(); err == nil {
			pc.WriteTo(b, from)
		}
	}
}

// certificates makes an authority and a certificate for every server.
func (w *world) certificates() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	w.ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{"*.allowed.test", "denied.test", "evil-allowed.test", "evil.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if der, err = x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), key); err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// ServeHTTP is every web server: pages, a registry of packages, repositories.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	host, _, _ := strings.Cut(r.Host, ":")
	switch {
	case host == "registry.allowed.test":
		w.registry(rw, r)
	case host == "git.allowed.test":
		h := &cgi.Handler{Path: gitBackend(), Env: []string{"GIT_PROJECT_ROOT=" + w.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
		h.ServeHTTP(rw, r)
	case r.URL.Path == "/redirect":
		http.Redirect(rw, r, "http://denied.test/", http.StatusFound)
	case r.URL.Path == "/upload":
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "got %d\n", n)
	default:
		fmt.Fprintf(rw, "hello from %s\n", r.Host)
	}
}

func gitBackend() string {
	out, _ := exec.Command("git", "--exec-path").Output()
	return filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
}

// registry serves one package in npm's form.
func (w *world) registry(rw http.ResponseWriter, r *http.Request) {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	t := tar.NewWriter(z)
	for _, f := range [][2]string{{"package/package.json", `{"name":"left-of","version":"1.0.0","main":"index.js"}`}, {"package/index.js", "module.exports = 'left of it';\n"}} {
		t.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))})
		io.WriteString(t, f[1])
	}
	t.Close()
	z.Close()
	if strings.HasSuffix(r.URL.Path, ".tgz") {
		rw.Write(buf.Bytes())
		return
	}
	if r.URL.Path != "/left-of" {
		http.NotFound(rw, r)
		return
	}
	sum := sha512.Sum512(buf.Bytes())
	rw.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(rw, `{"name":"left-of","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"left-of","version":"1.0.0","dist":{"tarball":"https://registry.allowed.test/left-of.tgz","integrity":"sha512-%s"}}}}`,
		base64.StdEncoding.EncodeToString(sum[:]))
}

// repository makes what git clones.
func (w *world) repository() error {
	script := `set -e; cd "$1"; git init -q --bare repo.git; git init -q tree; cd tree
		git config user.email t@example.test; git config user.name t; echo cloned > file; git add file; git commit -qm one; git push -q ../repo.git HEAD:master; git -C ../repo.git symbolic-ref HEAD refs/heads/master`
	cmd := exec.Command("sh", "-c", script, "sh", w.dir)
	cmd.Env = append(os.Environ(), "HOME="+w.dir, "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("repository: %w: %s", err, out)
	}
	return nil
}

// ssh serves the repository to git over ssh, to everyone.
func (w *world) ssh() error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	l, err := net.Listen("tcp", gitServer+":22")
	if err != nil {
		return err
	}
	atExit = append(atExit, func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.sshSession(c, config)
		}
	}()
	return nil
}

func (w *world) sshSession(c net.Conn, config *ssh.ServerConfig) {
	defer c.Close()
	_, channels, requests, err := ssh.NewServerConn(c, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for nc := range channels {
		ch, reqs, err := nc.Accept()
		if err != nil {
			return
		}
		for r := range reqs {
			if r.Type != "exec" {
				r.Reply(r.Type == "env", nil)
				continue
			}
			r.Reply(true, nil)
			cmd := exec.Command("git", "-c", "safe.directory=*", "upload-pack", filepath.Join(w.dir, "repo.git"))
			cmd.Stdin, cmd.Stdout = ch, ch
			err := cmd.Run()
			status := struct{ Code uint32 }{}
			if err != nil {
				status.Code = 1
			}
			ch.SendRequest("exit-status", false, ssh.Marshal(status))
			ch.Close()
			break
		}
	}
}

// database starts PostgreSQL, as the user that its package made.
func (w *world) database() error {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		return errors.New("PostgreSQL is not installed: apt-get install postgresql")
	}
	bin := filepath.Dir(found[len(found)-1])
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	dir := filepath.Join(w.dir, "db")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, gid)); err != nil {
		return err
	}
	as := func(args ...string) *exec.Cmd {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, Setpgid: true}
		cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
		return cmd
	}
	if out, err := as(bin+"/initdb", "-D", dir+"/data", "-A", "trust", "-N", "-U", "postgres").CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	if err := os.WriteFile(dir+"/data/pg_hba.conf", []byte("host all all 0.0.0.0/0 trust\n"), 0o600); err != nil {
		return err
	}
	// It must end with the suite, however that ends: on a thread that stays.
	started := make(chan error)
	go func() {
		if err := w.inet.move(); err != nil {
			started <- err
			return
		}
		cmd := as(bin+"/postgres", "-D", dir+"/data", "-h", dataServer, "-k", "", "-c", "shared_buffers=1MB", "-c", "max_connections=20", "-c", "fsync=off")
		cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
		err := cmd.Start()
		if err != nil {
			started <- err
			return
		}
		atExit = append(atExit, func() { cmd.Process.Signal(syscall.SIGQUIT); <-started })
		started <- nil
		cmd.Wait()
		close(started)
	}()
	if err := <-started; err != nil {
		return err
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.Dial("tcp", dataServer+":5432")
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("PostgreSQL does not answer: %w", err)
		}
	}
}

// atExit ends what the tests started and share.
var atExit []func()
