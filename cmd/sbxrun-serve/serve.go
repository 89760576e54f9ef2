package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/sbxrun/sbxrun/internal/cli"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/serve"
)

// statusPatience is how long a server may take to tell of its pools.
const statusPatience = 5 * time.Second

// serveAll fills the pools and serves them.
func serveAll(ctx context.Context, s *engine.Server) error {
	// What it keeps is a few MB, of which the collector would look at all for every
	// third sandbox.
	debug.SetGCPercent(400)
	err := serve.Serve(ctx, s)
	if errors.Is(err, serve.ErrRunning) {
		return engine.Hinted(fmt.Errorf("%s: %w", s.Dir, err),
			"sbxrun pool status shows it; SBXRUN_SERVER=DIR makes and finds another")
	}
	return err
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
			rows = append(rows, []string{p.Name, strconv.Itoa(p.Stats.Ready), strconv.Itoa(p.Stats.Goal),
				strconv.Itoa(p.Stats.Out), strconv.Itoa(p.Stats.Making),
				strconv.Itoa(p.MinSize), strconv.Itoa(p.TargetSize), strconv.Itoa(p.MaxSize), p.Driver})
		}
		return cli.PrintTable(rows)
	}
	rows := [][]string{{"POOL", "CREATED", "POOLED", "COLD", "EMPTY", "MISMATCHED", "BROKEN", "CRASHED", "UNHEALTHY",
		"EXPIRED", "IDLE", "FAILURES"}}
	for _, p := range list {
		row := []string{p.Name}
		for _, n := range []uint64{p.Stats.Created, p.Stats.Pooled, p.Stats.Cold, p.Stats.Empty, p.Stats.Mismatched,
			p.Stats.Broken,
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
