package sbxrun

import (
	"context"

	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/pool"
)

// A Pool keeps sandboxes ready, for a program that opens many sessions which differ in
// their workspace. Its methods may be called at the same time. Its sandboxes end with
// [Pool.Close], or with this process; the sessions are their owners'.
type Pool struct {
	options Options
	pool    *pool.Pool
}

// NewPool makes a pool of sandboxes with these options, and begins to fill it. Dir is
// [Pool.Open]'s. The zero Settings are the defaults. The context bounds set-up only.
func NewPool(ctx context.Context, o Options, s pool.Settings) (*Pool, error) {
	if o.Workspace == "overlay" {
		return nil, engine.Usage("Options.Workspace overlay: sandboxes of a pool keep no changes",
			"use Open for sessions that do")
	}
	o.Command, o.Dir = []string{"none"}, ""
	base := o
	base.Workspace = "none"
	p, err := prepare(ctx, &base)
	if err != nil {
		return nil, err
	}
	if err := engine.Stays(p.driver, "pools", "pools need the native driver"); err != nil {
		return nil, err
	}
	q, err := pool.New(pool.Config{Driver: p.driver, Policy: p.policy, Settings: s})
	if err != nil {
		return nil, err
	}
	return &Pool{o, q}, nil
}

// Open hands out a session with a directory as its workspace, "" for the current one: one
// that was ready, or else a new one. Nothing has run in it. The project's .sbxrun.yaml
// counts, as for [Open].
func (p *Pool) Open(ctx context.Context, dir string) (*Session, error) {
	o := p.options
	o.Dir, o.DirFrom = dir, "workspace"
	whole, err := prepare(ctx, &o)
	if err != nil {
		return nil, err
	}
	if engine.OverlayOf(whole.policy) != "" {
		return nil, engine.Usage("workspace overlay: sandboxes of a pool keep no changes",
			"use Open for sessions that do, or set Options.Workspace")
	}
	box, err := p.pool.Acquire(ctx, whole.policy)
	if err == nil && box.Completed() != nil {
		box.Close() // the host's files have changed since it was made
		box, err = p.pool.Open(ctx, whole.policy)
	}
	if err != nil {
		return nil, err
	}
	return &Session{box: box, p: whole}, nil
}

// Ready waits until n sandboxes are ready.
func (p *Pool) Ready(ctx context.Context, n int) error { return p.pool.Ready(ctx, n) }

// Stats says what the pool has, and had since it was made.
func (p *Pool) Stats() pool.Stats { return p.pool.Stats() }

// Close ends the sandboxes that are ready, and returns when they are gone.
func (p *Pool) Close() error { return p.pool.Close() }
