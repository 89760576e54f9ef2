package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// clientArg makes this program the client of the network's measurements: it is
// run outside and inside.
const clientArg = "-client"

// What a client measures: one connection's throughput, the time of a connection
// until the first byte, and connections in a second.
const (
	bulkBytes     = 1 << 30
	latencyRounds = 200
	rateWorkers   = 16
)

// What a client asks the server for. A letter could begin a request of HTTP, and
// the gateway would wait for the rest of it.
const (
	kindBulk = 0
	kindOne  = 1
)

// A clientReport is what a client prints.
type clientReport struct {
	BytesPerSecond       float64
	Latency              float64 // s, median
	ConnectionsPerSecond float64
}

// client measures against a server at an address; see serveNetwork.
func client(addr string, quick bool) error {
	var r clientReport
	bytes, during := int64(bulkBytes), 3*time.Second
	if quick {
		bytes, during = bulkBytes/4, time.Second
	}
	dial := func(kind byte) (net.Conn, error) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_, err = c.Write([]byte{kind})
		}
		return c, err
	}
	c, err := dial(kindBulk)
	if err != nil {
		return err
	}
	start := time.Now()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(c, bytes), make([]byte, 256<<10))
	c.Close()
	if err != nil || n != bytes {
		return fmt.Errorf("%d of %d bytes: %v", n, bytes, err)
	}
	r.BytesPerSecond = float64(n) / time.Since(start).Seconds()

	once := func() error {
		c, err := dial(kindOne)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.ReadFull(c, make([]byte, 1))
		return err
	}
	var took []float64
	for range latencyRounds {
		start := time.Now()
		if err := once(); err != nil {
			return err
		}
		took = append(took, time.Since(start).Seconds())
	}
	slices.Sort(took)
	r.Latency = quantile(took, 0.5)

	var made atomic.Int64
	var failed error
	var mu sync.Mutex
	var group sync.WaitGroup
	start = time.Now()
	for range rateWorkers {
		group.Go(func() {
			for time.Since(start) < during {
				if err := once(); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				made.Add(1)
			}
		})
	}
	group.Wait()
	if failed != nil {
		return failed
	}
	r.ConnectionsPerSecond = float64(made.Load()) / time.Since(start).Seconds()
	return json.NewEncoder(os.Stdout).Encode(r)
}

// serveNetwork is the server: after a byte of the client's it sends one, or bytes
// without end.
func serveNetwork(l net.Listener) {
	zeros := make([]byte, 256<<10)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var kind [1]byte
			if _, err := io.ReadFull(c, kind[:]); err != nil {
				return
			}
			for ok := true; ok; ok = kind[0] == kindBulk {
				b := zeros
				if kind[0] != kindBulk {
					b = zeros[:1]
				}
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
	}
}

// networkWork starts the server, and returns the client's command and what stands before it
// in a sandbox of a program's.
func (b *bench) networkWork() (argv []string, inside func(sbxrun string) []string, end func(), err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, err
	}
	go serveNetwork(l)
	addr, dir := l.Addr().String(), filepath.Join(b.dir, "network")
	prog := filepath.Join(dir, "client")
	self, err := os.Executable()
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil {
		err = copyFile(prog, self)
	}
	inside = func(sbxrun string) []string {
		return slices.Concat([]string{sbxrun, "--profile", "strict", "--verify=false", "-C", dir, "--allow-host", addr}, b.limits(), b.extra, []string{"--"})
	}
	return []string{prog, clientArg, addr, strconv.FormatBool(b.quick)}, inside, func() { l.Close() }, err
}

// runClient runs a client, and returns what it printed.
func runClient(line []string) (r clientReport, err error) {
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		err = fmt.Errorf("network: %w", err)
	}
	return r, err
}

// network measures the egress gateway: connections from a sandbox to a server on
// the host's loopback interface, which a rule lists, beside the same without a
// sandbox.
func (b *bench) network() error {
	const section = "network"
	b.report.begin(section, "Connections through the egress gateway (--net proxy), to loopback; ratio to the same outside")
	argv, inside, end, err := b.networkWork()
	if err != nil {
		return err
	}
	defer end()
	rounds := 7
	if b.quick {
		rounds = 3
	}
	type column struct{ outside, inside samples }
	rate, latency, conns := column{samples{}, samples{}}, column{samples{}, samples{}}, column{samples{}, samples{}}
	for round := range rounds {
		for i := range 2 {
			out := (i+round)%2 == 0
			line := append(inside(b.sbxrun), argv...)
			if out {
				line = argv
			}
			r, err := runClient(line)
			if err != nil {
				return err
			}
			put := func(c *column, v float64) {
				if out {
					c.outside[round] = v
				} else {
					c.inside[round] = v
				}
			}
			put(&rate, r.BytesPerSecond/1e6)
			put(&latency, r.Latency*1e3)
			put(&conns, r.ConnectionsPerSecond)
		}
	}
	for _, m := range []struct {
		where, unit string
		column
	}{{"throughput", "MB/s", rate}, {"connect, first byte", "ms", latency}, {"connections", "/s", conns}} {
		b.report.add(measured(section, "outside", m.where, m.unit, m.outside, nil, ""))
		b.report.add(measured(section, "sbxrun", m.where, m.unit, m.inside, m.outside, ""))
	}
	b.report.print(os.Stdout, section)
	return nil
}
