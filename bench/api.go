package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// An apiContender is a server that runs commands in sandboxes that it keeps ready.
type apiContender struct {
	name, url, note string
	client          *http.Client
	body            []byte
	ran             func(answer []byte) (ready bool, err error)

	asked, ready int // requests, and those for which a sandbox was ready
}

// once is the time of one request.
func (c *apiContender) once() (time.Duration, error) {
	start := time.Now()
	resp, err := c.client.Post(c.url, "application/json", bytes.NewReader(c.body))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	took := time.Since(start)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	if err == nil {
		var ready bool
		if ready, err = c.ran(answer); ready {
			c.ready++
		}
		c.asked++
	}
	return took, err
}

// warmAPI measures requests to the local servers of sbxrun and, where it is
// installed, of go-judge: a command of which the output is wanted.
func (b *bench) warmAPI(env *environment, run string) error {
	const section = "api"
	b.report.begin(section, "A request to run true, ms, to a local server with sandboxes that are ready; ratio to go-judge")
	end, err := b.serve(env, run)
	if err != nil {
		return err
	}
	defer end()
	ours, err := b.sbxrunAPI(env, run)
	if err != nil {
		return err
	}
	list := []*apiContender{ours}
	if judge, err := exec.LookPath("go-judge"); err != nil {
		b.report.add(row{Section: section, Name: "go-judge", Note: "not installed"})
	} else {
		theirs, end, err := b.judgeAPI(judge)
		if err != nil {
			return err
		}
		defer end()
		list = append(list, theirs)
	}
	for _, way := range []struct {
		where string
		pause time.Duration
		row   int // requests to one server before it is the other's turn
	}{{"after 30ms", 30 * time.Millisecond, 1}, {"at once", 0, 1}, {"100 in a row", 0, 100}} {
		got := []samples{{}, {}}
		turns := []int{0, 1}[:len(list)]
		for _, c := range list {
			c.asked, c.ready = 0, 0
		}
		until := time.Now().Add(pick(b, 3*time.Second, 20*time.Second))
		for round := -5; time.Now().Before(until) || round < 20; round++ {
			rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
			for _, i := range turns {
				var sum time.Duration
				for range way.row {
					took, err := list[i].once()
					if err != nil {
						return fmt.Errorf("%s: %w", list[i].name, err)
					}
					sum += took
					time.Sleep(way.pause) // both have something to clear away
				}
				if round >= 0 {
					got[i][round] = float64(sum.Nanoseconds()) / 1e6 / float64(way.row)
				}
			}
		}
		for i, c := range list {
			note := fmt.Sprintf("%s; %d of %d were ready", c.note, c.ready, c.asked)
			b.report.add(measured(section, c.name, way.where, "ms", got[i], got[1], note))
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}

func (b *bench) sbxrunAPI(env *environment, run string) (*apiContender, error) {
	socket := filepath.Join(run, "sbxrun", "serve", "api.sock")
	body, err := json.Marshal(map[string]any{"args": []string{b.truePath}, "workspace": env.cwd})
	if err != nil {
		return nil, err
	}
	return &apiContender{
		name: "sbxrun serve", url: "http://sbxrun/v1/run", body: body, note: "a sandbox of its own each, used once",
		client: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}},
		ran: func(answer []byte) (bool, error) {
			var r struct {
				ExitCode *int `json:"exit_code"`
				Pooled   bool `json:"pooled"`
			}
			if err := json.Unmarshal(answer, &r); err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
				return false, fmt.Errorf("it did not run: %s", answer)
			}
			return r.Pooled, nil
		},
	}, nil
}

// judgeAPI starts a server of go-judge's with containers made in advance.
func (b *bench) judgeAPI(program string) (*apiContender, func(), error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	addr := l.Addr().String()
	l.Close()
	server := exec.Command(program, "-http-addr", addr, "-pre-fork", "8", "-silent")
	server.Dir = b.dir
	if err := server.Start(); err != nil {
		return nil, nil, err
	}
	end := func() { server.Process.Kill(); server.Wait() }
	b.atEnd(end)
	out := func(name string) map[string]any { return map[string]any{"name": name, "max": 64 << 10} }
	body, err := json.Marshal(map[string]any{"cmd": []any{map[string]any{
		"args": []string{b.truePath}, "env": []string{"PATH=/usr/bin:/bin"},
		"files":    slices.Concat([]map[string]any{{"content": ""}}, []map[string]any{out("stdout"), out("stderr")}),
		"cpuLimit": int64(10 * time.Second), "memoryLimit": 512 << 20, "procLimit": 50,
	}}})
	if err != nil {
		end()
		return nil, nil, err
	}
	c := &apiContender{
		name: "go-judge", url: "http://" + addr + "/run", body: body, client: &http.Client{Transport: &http.Transport{}}, note: "containers that it uses again",
		ran: func(answer []byte) (bool, error) {
			var r []struct {
				Status string `json:"status"`
			}
			if err := json.Unmarshal(answer, &r); err != nil || len(r) != 1 || r[0].Status != "Accepted" {
				return false, fmt.Errorf("not accepted: %s", answer)
			}
			return true, nil
		},
	}
	for i := 0; ; i++ {
		if _, err = c.once(); err == nil {
			return c, end, nil
		}
		if i == 100 {
			end()
			return nil, nil, fmt.Errorf("go-judge: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
