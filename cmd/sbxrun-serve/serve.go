package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/sbxrun/sbxrun/internal/cli"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/serve"
	"github.com/sbxrun/sbxrun/pool"
)

// firstPatience is how long the first sandboxes of a server may take.
const firstPatience = 30 * time.Second

// statusPatience is how long a server may take to tell of its pools.
const statusPatience = 5 * time.Second

// serveAll fills the pools and serves them.
func serveAll(ctx context.Context, s *cli.Server) error {
	// What it keeps is a few MB, of which the collector would look at all for every
	// third sandbox.
	debug.SetGCPercent(400)
	cfg := serve.Config{Dir: s.Dir, Version: s.Version, Store: s.Store, Encode: s.Encode, Serving: s.Serving}
	for _, p := range s.Pools {
		q, err := pool.New(pool.Config{Driver: p.Driver, Policy: p.Policy, Settings: s.Settings})
		if err != nil {
			return err
		}
		defer q.Close()
		cfg.Pools = append(cfg.Pools, &serve.Pool{Name: p.Name, Driver: p.Driver, Pool: q, Resolve: p.Resolve})
	}
	// Who is told that it serves is to find something ready; and a host on which
	// nothing can be built is to be known now.
	first, cancel := context.WithTimeout(ctx, firstPatience)
	defer cancel()
	for _, p := range cfg.Pools {
		if err := p.Ready(first, 1); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("pool %s: %w", p.Name, err)
		}
	}
	go prune(ctx, s.Prune)
	err := serve.Serve(ctx, cfg)
	if errors.Is(err, serve.ErrRunning) {
		return engine.Hinted(fmt.Errorf("%s: %w", s.Dir, err), "sbxrun pool status shows it; SBXRUN_SERVER=DIR makes and finds another")
	}
	return err
}

// prune removes what crashed owners left, now and every hour.
func prune(ctx context.Context, do func() error) {
	for {
		if err := do(); err != nil {
			fmt.Fprintln(os.Stderr, "sbxrun: warning: prune:", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Hour):
		}
	}
}

// pools prints what a server has, or has counted.
func pools(dir string, counted, json bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), statusPatience)
	defer cancel()
	version, list, err := serve.Pools(ctx, dir)
	if errors.Is(err, serve.ErrNotRunning) {
		return engine.Hinted(fmt.Errorf("%s: %w", dir, err), "sbxrun serve starts one")
	}
	if err != nil {
		return err
	}
	if json {
		return cli.PrintJSON(map[string]any{"version": version, "pools": list})
	}
	if !counted {
		rows := [][]string{{"POOL", "READY", "GOAL", "OUT", "MAKING", "MIN", "TARGET", "MAX", "DRIVER"}}
		for _, p := range list {
			rows = append(rows, []string{p.Name, strconv.Itoa(p.Stats.Ready), strconv.Itoa(p.Stats.Goal), strconv.Itoa(p.Stats.Out), strconv.Itoa(p.Stats.Making),
				strconv.Itoa(p.MinSize), strconv.Itoa(p.TargetSize), strconv.Itoa(p.MaxSize), p.Driver})
		}
		return cli.PrintTable(rows)
	}
	rows := [][]string{{"POOL", "CREATED", "POOLED", "COLD", "EMPTY", "MISMATCHED", "BROKEN", "CRASHED", "UNHEALTHY", "EXPIRED", "IDLE", "FAILURES"}}
	for _, p := range list {
		row := []string{p.Name}
		for _, n := range []uint64{p.Stats.Created, p.Stats.Pooled, p.Stats.Cold, p.Stats.Empty, p.Stats.Mismatched, p.Stats.Broken,
			p.Stats.Crashed, p.Stats.Unhealthy, p.Stats.Expired, p.Stats.Idle, p.Stats.Failures} {
			row = append(row, strconv.FormatUint(n, 10))
		}
		rows = append(rows, row)
	}
	if err := cli.PrintTable(rows); err != nil {
		return err
	}
	for _, p := range list {
		if p.Stats.LastError != "" {
			fmt.Printf("%s: the last error: %s\n", p.Name, p.Stats.LastError)
		}
	}
	return nil
}
