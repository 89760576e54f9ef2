package native

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sbxrun/sbxrun/egress"
)

// TestSocketTables: a client's socket is found in tables as little-endian machines have them, and not guessed
// where it could be one of several.
func TestSocketTables(t *testing.T) {
	const tables = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0C38 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 10 1 0000000000000000 100 0 0 10 0
   1: 0100007F:9C40 0100007F:0C38 01 00000000:00000000 00:00000000 00000000  1000        0 11 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:9C40 09090909:0050 01 00000000:00000000 00:00000000 00000000  1000        0 12 1 0000000000000000 20 4 30 10 -1
   3: 0100007F:9C41 0100007F:0C38 06 00000000:00000000 03:000017A3 00000000     0        0 0 3 0000000000000000
   4: 00000000:1111 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 13 2 0000000000000000 0
   5: 0201007F:1111 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 14 2 0000000000000000 0
   6: 0100007F:2222 0100007F:0035 01 00000000:00000000 00:00000000 00000000  1000        0 15 2 0000000000000000 0
   7: 0100007F:2222 0200007F:0035 01 00000000:00000000 00:00000000 00000000  1000        0 16 2 0000000000000000 0
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: B80D0120000000000000000001000000:9C42 B80D0120000000000000000002000000:01BB 01 00000000:00000000 00:00000000 00000000  1000        0 20 1 0000000000000000 20 4 30 10 -1
   1: 0000000000000000FFFF00000100007F:9C43 0000000000000000FFFF00000100007F:0C38 01 00000000:00000000 00:00000000 00000000  1000        0 21 1 0000000000000000 20 4 30 10 -1
   2: 00000000000000000000000000000000:3333 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 22 2 0000000000000000 0
   3: 00000000000000000000000000000000:1111 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 23 2 0000000000000000 0
   4: short
`
	for _, tt := range []struct{ network, local, remote, want string }{
		{"tcp", "127.0.0.1:40000", "127.0.0.1:3128", "11"},
		{"tcp", "127.0.0.1:40000", "9.9.9.9:80", "12"},
		{"tcp", "127.0.0.1:40000", "9.9.9.9:81", ""},
		{"tcp", "127.0.0.1:3128", "127.0.0.1:40000", ""},
		{"tcp", "127.0.0.1:40001", "127.0.0.1:3128", ""}, // its process has closed it
		{"tcp", "[2001:db8::1]:40002", "[2001:db8::2]:443", "20"},
		{"tcp", "127.0.0.1:40003", "127.0.0.1:3128", "21"},
		{"tcp", "[::1]:4369", "[::1]:53", ""},
		{"udp", "127.0.1.2:4369", "", "14"},
		{"udp", "127.0.0.1:8738", "", ""},
		{"udp", "127.0.0.1:13107", "", "22"},
		{"udp", "[::1]:13107", "", "22"},
		{"udp", "[::1]:4369", "", "23"},
		{"udp", "127.0.0.1:4369", "", ""},
	} {
		s := egress.Socket{UDP: tt.network == "udp", Local: netip.MustParseAddrPort(tt.local)}
		if !s.UDP {
			s.Remote = netip.MustParseAddrPort(tt.remote)
		}
		if got := inodeOf(s, strings.NewReader(tables)); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// TestSocketFound: the kernel's own tables have the sockets of this process.
func TestSocketFound(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	for _, tt := range [][2]string{{"tcp4", "127.0.0.1"}, {"tcp6", "::1"}, {"udp4", "127.0.0.1"}, {"udp6", "::1"}} {
		c, err := net.Dial(tt[0], net.JoinHostPort(tt[1], port))
		if err != nil {
			t.Logf("%s: %v", tt[0], err) // no IPv6 here
			continue
		}
		defer c.Close()
		s := egress.Socket{UDP: tt[0][:3] == "udp", Local: netip.MustParseAddrPort(c.LocalAddr().String()), Remote: netip.MustParseAddrPort(c.RemoteAddr().String())}
		var tables []io.Reader
		for _, family := range []string{"", "6"} {
			b, _ := os.ReadFile("/proc/thread-self/net/" + tt[0][:3] + family)
			tables = append(tables, bytes.NewReader(b))
		}
		var stat syscall.Stat_t
		f, err := c.(interface{ File() (*os.File, error) }).File()
		if err == nil {
			err = syscall.Fstat(int(f.Fd()), &stat)
			f.Close()
		}
		if got := inodeOf(s, io.MultiReader(tables...)); err != nil || got != strconv.FormatUint(stat.Ino, 10) {
			t.Errorf("%v: %q, want %d, %v", tt, got, stat.Ino, err)
		}
	}
}
