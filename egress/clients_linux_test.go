package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestClients: TLS clients of other libraries are served, though each server asks them for
// a second ClientHello; they resume, and send early data; and with another name none of
// that reaches a server, by its log (E07, E23).
func TestClients(t *testing.T) {
	list := fleet(t)
	var names []string
	for _, s := range list {
		names = append(names, s.name)
	}
	w := newPatientWorld(t, allow(names...), 2*time.Second)
	w.place(list)
	session := filepath.Join(t.TempDir(), "session")
	request := filepath.Join(t.TempDir(), "request")
	os.WriteFile(request, []byte("GET / HTTP/1.0\r\n\r\n"), 0o600)
	run := func(args ...string) (string, bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdin = strings.NewReader("GET / HTTP/1.0\r\n\r\n")
		out, err := cmd.CombinedOutput()
		return string(out), err == nil
	}
	var group sync.WaitGroup
	clients := []struct {
		what string
		args func(to, name, session string) []string
		good string // in the output of one that was served
	}{
		{"OpenSSL", func(to, name, session string) []string {
			return []string{"openssl", "s_client", "-connect", to, "-servername", name, "-groups", "X25519:P-384", "-sess_out", session}
		}, "Cipher is TLS_"},
		{"OpenSSL, TLS 1.2", func(to, name, session string) []string {
			return []string{"openssl", "s_client", "-connect", to, "-servername", name, "-tls1_2", "-sess_out", session}
		}, "Cipher is ECDHE"},
		{"OpenSSL, resumed", func(to, name, session string) []string {
			return []string{"openssl", "s_client", "-connect", to, "-servername", name, "-sess_in", session}
		}, "Cipher is "},
		{"OpenSSL, early data", func(to, name, session string) []string {
			return []string{"openssl", "s_client", "-connect", to, "-servername", name, "-groups", "X25519:P-384", "-sess_in", session, "-early_data", request}
		}, "Cipher is "},
		{"GnuTLS", func(to, name, session string) []string {
			host, port, _ := net.SplitHostPort(to)
			return []string{"gnutls-cli", "--insecure", "--sni-hostname", name, "-p", port, host}
		}, "Handshake was completed"},
		{"GnuTLS, TLS 1.2", func(to, name, session string) []string {
			host, port, _ := net.SplitHostPort(to)
			return []string{"gnutls-cli", "--insecure", "--priority", "NORMAL:-VERS-ALL:+VERS-TLS1.2", "--sni-hostname", name, "-p", port, host}
		}, "Handshake was completed"},
		{"curl", func(to, name, session string) []string {
			host, port, _ := net.SplitHostPort(to)
			return []string{"curl", "-sk", "-m", "3", "-o", "/dev/null", "-w", "%{http_code}", "--connect-to", name + ":443:" + host + ":" + port, "https://" + name + "/"}
		}, ""},
	}
	for _, s := range list {
		if s.tls == "" {
			continue
		}
		group.Go(func() {
			session := session + s.name
			to := w.way(netip.AddrPortFrom(w.number(s.name), 443))
			before := s.reached(t)
			for _, c := range clients {
				if _, err := exec.LookPath(c.args(to, s.name, session)[0]); err != nil {
					missing(t, c.what)
					continue
				}
				if out, _ := run(c.args(to, s.name, session)...); !strings.Contains(out, c.good) && !(s.name == "golan2.example" && c.what == "OpenSSL") {
					t.Errorf("%s to %s: %.600s", c.what, s.name, out)
				}
				run(c.args(to, denied, session)...)
			}
			time.Sleep(100 * time.Millisecond)
			if n := s.reached(t); n != before {
				t.Errorf("%s was asked for the denied name %d times", s.name, n-before)
			}
			// The control: without the gateway.
			run(clients[0].args(s.tls, denied, session)...)
			run(clients[len(clients)-1].args(s.tls, denied, session)...)
			waitFor(t, s.name+" logs the denied name", func() bool { return s.reached(t) != before })
		})
	}
	group.Wait()
}

// TestOtherProtocols: what is neither TLS nor HTTP goes through, whoever speaks first and
// whenever: PostgreSQL's TLS, which begins later, among it.
func TestOtherProtocols(t *testing.T) {
	cert, _ := certificate(t, "a.example")
	for i, c := range []struct {
		what   string
		server []string // says these, each after it has heard something, but for the first
		client []string // says these, likewise
		late   bool     // the server waits before it says the first
	}{
		{"SMTP", []string{"220 mail\r\n", "250 hello\r\n", "250 ok\r\n"}, []string{"", "EHLO me you\r\n", "MAIL FROM:<a@b>\r\n"}, false},
		{"SMTP, a slow server", []string{"220 mail\r\n", "250 hello\r\n"}, []string{"EHLO me you\r\n", "MAIL FROM:<a@b>\r\n"}, true},
		{"SSH, both at once", []string{"SSH-2.0-server Debian 12\r\n", "\x00\x00\x04\x14\x07\x14"}, []string{"SSH-2.0-client Debian 12\r\n", "\x00\x00\x04\x14\x07\x14"}, true},
		{"Redis", []string{"", "+PONG\r\n", "+OK\r\n"}, []string{"*1\r\n$4\r\nPING\r\n", "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\nb c\r\n"}, false},
		{"Redis, a line", []string{"", "+PONG\r\n", "+OK\r\n"}, []string{"PING\r\n", "SET a b\r\n"}, false},
		{"MySQL", []string{"\x4a\x00\x00\x00\x0a8.0\x00", "\x07\x00"}, []string{"", "\x20\x00\x00\x01\x85\xae"}, false},
		{"LDAP", []string{"", "0\x0c\x02"}, []string{"0\x0c\x02\x01\x01`\x07\x02\x01\x03\x04\x00\x80\x00"}, false},
		{"a long word", []string{"", "ok"}, []string{strings.Repeat("A", 3*maxFirstLine) + "\n"}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t, allow("a.example"))
			port := uint16(5000 + i)
			heard := make(chan string, 1)
			w.host("a.example", "93.184.216.34", port, func(nc net.Conn) {
				var all []byte
				nc.SetDeadline(time.Now().Add(5 * time.Second))
				for n, s := range c.server {
					if n == 0 && c.late {
						time.Sleep(50 * time.Millisecond)
					}
					if n > 0 {
						b := make([]byte, 1<<16)
						want := len(strings.Join(c.client[:min(len(c.client), n+b2i(c.client[0] == ""))], ""))
						for len(all) < want {
							k, err := nc.Read(b)
							if all = append(all, b[:k]...); err != nil {
								break
							}
						}
					}
					io.WriteString(nc, s)
				}
				heard <- string(all)
			})
			nc := w.dialTransparent(netip.AddrPortFrom(w.number("a.example"), port))
			defer nc.Close()
			b := make([]byte, 1<<10)
			for n, s := range c.client {
				if n > 0 {
					if _, err := nc.Read(b); err != nil {
						t.Fatal(err)
					}
				}
				io.WriteString(nc, s)
			}
			if got := <-heard; !strings.HasPrefix(strings.Join(c.client, ""), got) || len(got) < len(c.client[0]) {
				t.Errorf("the server heard %.100q", got)
			}
		})
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		if _, err := exec.LookPath("psql"); err != nil {
			missing(t, "psql")
			return
		}
		w := newWorld(t, allow("a.example"))
		startup := make(chan string, 4)
		w.host("a.example", "93.184.216.34", 5432, func(nc net.Conn) {
			b := make([]byte, 8)
			if _, err := io.ReadFull(nc, b); err != nil || !bytes.Equal(b, []byte{0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f}) {
				startup <- fmt.Sprintf("%x, %v", b, err)
				return
			}
			nc.Write([]byte("S"))
			s := tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{cert}})
			b = make([]byte, 200)
			n, err := s.Read(b)
			startup <- fmt.Sprintf("%q, %v", b[:n], err)
		})
		host, port, _ := net.SplitHostPort(w.way(netip.AddrPortFrom(w.number("a.example"), 5432)))
		cmd := exec.CommandContext(t.Context(), "psql", "host="+host+" port="+port+" sslmode=require user=me dbname=mine connect_timeout=5", "-c", "select 1")
		cmd.CombinedOutput()
		if got := <-startup; !strings.Contains(got, "mine") {
			t.Errorf("the server got %s", got)
		}
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// missing tells of a program that the tests need: tools/deps installs it everywhere but
// in the virtual machines.
func missing(t testing.TB, program string) {
	t.Helper()
	if os.Getenv("SBXRUN_TEST_THROWAWAY") == "" {
		t.Errorf("no %s here: tools/deps test installs it", program)
	} else {
		t.Logf("no %s in this machine", program)
	}
}
