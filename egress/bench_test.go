package egress

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"
)

// benchWorld is a gateway on loopback, with TCP all the way, whose transparent
// listener leads to a server: what is dialled is 127.0.0.1 at the listener's port.
func benchWorld(b *testing.B, serve func(net.Conn)) (direct, through string) {
	b.Helper()
	server := listen(b)
	b.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	g, err := New(allow("127.0.0.1"), Options{
		Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", server.Addr().String())
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	l := listen(b)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Serve(ctx, Listeners{Transparent: []net.Listener{l}}) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	return server.Addr().String(), l.Addr().String()
}

// BenchmarkThroughput moves bytes to a server and back from it, directly and
// through the gateway.
func BenchmarkThroughput(b *testing.B) {
	const size = 256 << 20
	zeros := make([]byte, 256<<10)
	send := func(c net.Conn) {
		for n := 0; n < size; n += len(zeros) {
			if _, err := c.Write(zeros); err != nil {
				return
			}
		}
		c.(*net.TCPConn).CloseWrite()
	}
	direct, through := benchWorld(b, func(c net.Conn) {
		var one [1]byte
		if _, err := io.ReadFull(c, one[:]); err != nil {
			return
		}
		if one[0] == 'd' {
			send(c)
			return
		}
		n, _ := io.Copy(io.Discard, c)
		if n == size {
			c.Write(one[:])
		}
	})
	for _, way := range []struct{ name, addr string }{{"direct", direct}, {"gateway", through}} {
		for _, dir := range []string{"down", "up"} {
			b.Run(dir+"/"+way.name, func(b *testing.B) {
				b.SetBytes(size)
				before := processorTime()
				for b.Loop() {
					c, err := net.Dial("tcp", way.addr)
					if err != nil {
						b.Fatal(err)
					}
					c.Write([]byte(dir[:1]))
					if dir == "down" {
						if n, err := io.Copy(io.Discard, c); n != size {
							b.Fatal(n, err)
						}
					} else {
						send(c)
						if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
							b.Fatal(err)
						}
					}
					c.Close()
				}
				// On a machine that does other things too, this says more than
				// the bytes per second: client, gateway and server together.
				b.ReportMetric(float64(size>>20)*float64(b.N)/(processorTime()-before).Seconds(), "MiB/cpu-s")
			})
		}
	}
}

func processorTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkConnect opens a connection, says a byte, hears one and closes it.
func BenchmarkConnect(b *testing.B) {
	direct, through := benchWorld(b, func(c net.Conn) {
		var one [1]byte
		if _, err := io.ReadFull(c, one[:]); err == nil {
			c.Write(one[:])
		}
	})
	once := func(b *testing.B, addr string) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		c.Write([]byte{0})
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
	for _, way := range []struct{ name, addr string }{{"direct", direct}, {"gateway", through}} {
		b.Run("one/"+way.name, func(b *testing.B) {
			for b.Loop() {
				once(b, way.addr)
			}
		})
		b.Run("many/"+way.name, func(b *testing.B) {
			var wg sync.WaitGroup
			start := time.Now()
			n := 0
			slots := make(chan struct{}, 64)
			for b.Loop() {
				n++
				slots <- struct{}{}
				wg.Go(func() {
					defer func() { <-slots }()
					once(b, way.addr)
				})
			}
			wg.Wait()
			b.ReportMetric(float64(n)/time.Since(start).Seconds(), "conn/s")
		})
	}
}

// BenchmarkDecide is the cost of a decision among many rules.
func BenchmarkDecide(b *testing.B) {
	var allow []string
	for i := range 100 {
		allow = append(allow, "*.n"+string(rune('a'+i%26))+string(rune('a'+i/26))+".example:443")
	}
	r := mustCompile(b, append(allow, "last.example:443"), []string{"bad.example"})
	q := query{target: target{name: "last.example", port: 443}, resolved: netip.MustParseAddr("93.184.216.34")}
	for b.Loop() {
		if !r.decide(q).allow {
			b.Fatal("denied")
		}
	}
}
