// Package pool keeps sandboxes ready, so that who needs one does not wait until
// it is built.
//
// A member of the pool is a [driver.Prepared]: a sandbox of the pool's policy in
// which nothing has run. [Pool.Acquire] completes one to the sandbox of the policy
// that it is given, which may show more files than the pool's, a workspace above
// all. It is then its owner's, who closes it; it never comes back, so that no owner
// finds what another has left. If no member is ready or about to be, or none can be
// completed to the policy, a sandbox is built from nothing: Acquire fails only where
// [driver.Driver.Open] would. A member may still be at work on the last of it when it
// is handed out. Should that fail, the first Exec does with [driver.ErrIncomplete],
// and [Pool.Open] is what is left to try; see also [Sandbox.Completed].
//
//	p, err := pool.New(pool.Config{Driver: native.Driver{}, Policy: base})
//	…
//	defer p.Close()
//	box, err := p.Acquire(ctx, pool.WithWorkspace(base, "/home/me/project", policy.All))
//	…
//	defer box.Close()
//	proc, err := box.Exec(ctx, &specs.Process{Args: []string{"make"}}, stdio)
//
// The pool looks after its members: each is asked at intervals whether it answers,
// one that died is replaced at once, one that has become old is replaced before it
// is handed out, and when nobody has asked for a sandbox for a while only a few
// are kept.
//
// The package knows no particular driver. Members live in the calling process, and
// end with it.
package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// Settings are how many members there are, and for how long. A field of 0 has the
// default.
type Settings struct {
	// MinSize is how many are ready at least, also when nobody asks. Default 2.
	MinSize int
	// TargetSize is how many are to be ready when the pool is used. Default 5.
	TargetSize int
	// MaxSize is how many are to be ready at most: each time that Acquire finds
	// none ready the pool aims at one more, up to this. Default 10.
	MaxSize int

	// IdleTimeout is after how long without an Acquire the pool shrinks to
	// MinSize. Default 300 s.
	IdleTimeout time.Duration
	// MaxLifetime is how old a member becomes: what is handed out is younger.
	// Default 3600 s.
	MaxLifetime time.Duration
	// HealthCheckInterval is how often each member is asked to do a job. Default
	// 30 s.
	HealthCheckInterval time.Duration
	// ReplenishInterval is how often the pool looks whether it has too many
	// members or too old ones, and tries again after it could not make one. What
	// was taken or has died is replaced at once. Default 10 s.
	ReplenishInterval time.Duration
}

// Defaults are the settings of fields that are 0.
var Defaults = Settings{
	MinSize: 2, TargetSize: 5, MaxSize: 10,
	IdleTimeout: 300 * time.Second, MaxLifetime: 3600 * time.Second,
	HealthCheckInterval: 30 * time.Second, ReplenishInterval: 10 * time.Second,
}

// withDefaults fills in what is 0, and reports what contradicts itself.
func (s Settings) withDefaults() (Settings, error) {
	target := s.TargetSize
	for _, f := range []struct {
		name  string
		to    *int
		value int
	}{{"min_size", &s.MinSize, Defaults.MinSize}, {"target_size", &s.TargetSize, Defaults.TargetSize},
		{"max_size", &s.MaxSize, Defaults.MaxSize}} {
		if *f.to < 0 {
			return s, &policy.InvalidError{Field: "pool." + f.name, Value: fmt.Sprint(*f.to),
				Want: "a number of sandboxes"}
		}
		*f.to = cmp.Or(*f.to, f.value)
	}
	if target == 0 {
		// Who sets the bounds alone has a target between them.
		s.TargetSize = min(max(s.TargetSize, s.MinSize), s.MaxSize)
	}
	if s.MinSize > s.TargetSize || s.TargetSize > s.MaxSize {
		return s, &policy.InvalidError{Field: "pool", Value: fmt.Sprintf("min_size %d, target_size %d, max_size %d",
			s.MinSize, s.TargetSize, s.MaxSize), Want: "sizes in ascending order"}
	}
	for _, f := range []struct {
		name  string
		to    *time.Duration
		value time.Duration
	}{
		{"idle_timeout", &s.IdleTimeout, Defaults.IdleTimeout}, {"max_lifetime", &s.MaxLifetime, Defaults.MaxLifetime},
		{"health_check_interval", &s.HealthCheckInterval, Defaults.HealthCheckInterval}, {"replenish_interval",
			&s.ReplenishInterval, Defaults.ReplenishInterval},
	} {
		if *f.to < 0 {
			return s, &policy.InvalidError{Field: "pool." + f.name, Value: f.to.String(), Want: "a time"}
		}
		*f.to = cmp.Or(*f.to, f.value)
	}
	return s, nil
}

// Config is what a pool is made of.
type Config struct {
	Driver driver.Driver

	// Policy is what all sandboxes have in common.
	Policy *policy.Policy

	Settings
}

// Stats say what a pool has, and had since it was made.
type Stats struct {
	Ready  int `json:"ready"`
	Making int `json:"making"`
	Out    int `json:"out"`  // handed out and not closed
	Goal   int `json:"goal"` // how many the pool wants to be ready

	Created uint64 `json:"created"` // members that became ready
	Pooled  uint64 `json:"pooled"`  // handed out of the pool
	Cold    uint64 `json:"cold"`    // built from nothing: the next three

	Empty      uint64 `json:"empty"`      // because none was ready
	Mismatched uint64 `json:"mismatched"` // because of another policy
	Broken     uint64 `json:"broken"`     // because those that were ready could not be completed

	Crashed   uint64 `json:"crashed"`   // members that ended by themselves
	Unhealthy uint64 `json:"unhealthy"` // that did not answer
	Expired   uint64 `json:"expired"`   // that became too old
	Idle      uint64 `json:"idle"`      // that nobody needed
	Failures  uint64 `json:"failures"`  // times that a member could not be made
	LastError string `json:"last_error,omitempty"`
}

// ErrClosed says that a pool was closed.
var ErrClosed = errors.New("the pool is closed")

// checkPatience is how long a member may take to answer.
const checkPatience = 5 * time.Second

// A Pool keeps sandboxes ready. Its methods may be called at the same time.
type Pool struct {
	cfg  Config
	ctx  context.Context
	stop context.CancelFunc
	wake chan struct{} // something has changed
	work sync.WaitGroup

	building chan struct{} // a token for each sandbox that is built from nothing

	mu       sync.Mutex // guards what follows
	ready    []*member  // the oldest first
	stats    Stats
	asked    int // members that are asked whether they answer
	goal     int
	made     chan struct{} // closed when the member that is being made is ready, or failed
	awaited  bool          // somebody waits for that
	used     time.Time     // the last Acquire
	patience time.Time     // when to try again after a failure
	closed   bool
	closing  int        // sandboxes that their owners close
	gone     *sync.Cond // one of them is gone
}

// member is a sandbox that is ready.
type member struct {
	driver.Prepared
	born time.Time
}

// New makes a pool and begins to fill it.
func New(cfg Config) (*Pool, error) {
	s, err := cfg.Settings.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.Settings = s
	if cfg.Driver == nil || cfg.Policy == nil {
		return nil, &policy.InvalidError{Field: "pool", Want: "a driver and a policy"}
	}
	if err := cfg.Driver.Check(cfg.Policy); err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, building: make(chan struct{}, buildsEach*runtime.GOMAXPROCS(0)),
		wake: make(chan struct{}, 1), goal: s.TargetSize, made: make(chan struct{}), used: time.Now()}
	p.gone = sync.NewCond(&p.mu)
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.work.Go(p.maintain)
	return p, nil
}

// Settings are those of the pool, with defaults filled in.
func (p *Pool) Settings() Settings { return p.cfg.Settings }

// Policy is what all sandboxes of the pool have in common.
func (p *Pool) Policy() *policy.Policy { return p.cfg.Policy }

// Stats returns what there is now.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Ready, s.Goal = len(p.ready), p.goal
	return s
}

// Ready waits until n members are ready, for who wants to begin with a full pool.
func (p *Pool) Ready(ctx context.Context, n int) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		s := p.Stats()
		if s.Ready >= n {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			if s.LastError != "" {
				return fmt.Errorf("%d of %d sandboxes are ready: %s: %w", s.Ready, n, s.LastError, ctx.Err())
			}
			return fmt.Errorf("%d of %d sandboxes are ready: %w", s.Ready, n, ctx.Err())
		}
	}
}

// A Sandbox is one that was handed out. Its owner closes it.
type Sandbox struct {
	driver.Sandbox

	// Pooled is false for one that was built from nothing.
	Pooled bool

	pool *Pool
	once sync.Once
	err  error // of Close
}

// Close ends everything in the sandbox and waits until it is gone. Nobody gets it
// again.
func (s *Sandbox) Close() error {
	s.once.Do(func() {
		p := s.pool
		p.mu.Lock()
		p.closing++
		p.mu.Unlock()
		s.err = s.Sandbox.Close()
		p.mu.Lock()
		p.closing--
		p.stats.Out--
		p.mu.Unlock()
		p.gone.Broadcast()
	})
	return s.err
}

// Acquire hands out a sandbox of a policy, nil for the pool's own. The context
// bounds the making of it.
func (p *Pool) Acquire(ctx context.Context, pol *policy.Policy) (*Sandbox, error) {
	s, err := p.TryAcquire(ctx, pol)
	if s != nil || err != nil && !errors.Is(err, ErrNone) {
		return s, err
	}
	return p.open(ctx, pol)
}

// Open builds a sandbox from nothing, of a policy, nil for the pool's own, in the
// place of one that could not be completed.
func (p *Pool) Open(ctx context.Context, pol *policy.Policy) (*Sandbox, error) {
	p.mu.Lock()
	p.stats.Broken++
	p.mu.Unlock()
	return p.open(ctx, pol)
}

// buildsEach is how many sandboxes are built from nothing at a time, for each processor:
// it is work for the processor, and more at a time are ready no sooner and need the
// memory, the descriptors and the threads of all. None is begun while more are being
// taken down, which is such work too.
const buildsEach = 4

func (p *Pool) open(ctx context.Context, pol *policy.Policy) (*Sandbox, error) {
	pol = cmp.Or(pol, p.cfg.Policy)
	select {
	case p.building <- struct{}{}:
		defer func() { <-p.building }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	for p.closing > cap(p.building) {
		p.gone.Wait()
	}
	p.mu.Unlock()
	box, err := p.cfg.Driver.Open(ctx, pol)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Cold++
	p.stats.Out++
	return &Sandbox{Sandbox: box, pool: p}, nil
}

// ErrNone says that no member of a pool is ready that can be completed to a policy.
var ErrNone = errors.New("no sandbox of the pool will do")

// TryAcquire is Acquire without building a sandbox from nothing: the error is
// ErrNone then.
func (p *Pool) TryAcquire(ctx context.Context, pol *policy.Policy) (*Sandbox, error) {
	pol = cmp.Or(pol, p.cfg.Policy)
	tried := false
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m, err := p.take(ctx)
		if err != nil {
			return nil, err
		}
		if m == nil {
			p.none(tried)
			return nil, ErrNone
		}
		box, err := m.Complete(ctx, pol)
		switch {
		case err == nil:
			p.mu.Lock()
			p.stats.Pooled++
			p.stats.Out++
			p.mu.Unlock()
			p.poke()
			return &Sandbox{Sandbox: box, Pooled: true, pool: p}, nil
		case errors.Is(err, driver.ErrMismatch):
			p.giveBack(m)
			p.mu.Lock()
			p.stats.Mismatched++
			p.mu.Unlock()
			return nil, fmt.Errorf("%w: %w", ErrNone, err)
		}
		// It may be the policy's fault, which the cold way will tell, or the
		// member's.
		tried = true
		p.mu.Lock()
		p.stats.LastError = err.Error()
		if errors.Is(err, driver.ErrIncomplete) {
			// The host is another by now, for all that were made before.
			for _, m := range p.ready {
				p.end(m)
			}
			p.ready = nil
		}
		p.mu.Unlock()
		select {
		case <-m.Done():
			p.poke()
		default:
			p.giveBack(m)
			return nil, fmt.Errorf("%w: %w", ErrNone, err)
		}
	}
}

// take takes the oldest member that is not too old. If there is none, but one is
// being made for which nobody waits, that one: it is nearer its end than what would be
// begun now.
func (p *Pool) take(ctx context.Context) (*member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = time.Now()
	p.goal = max(p.goal, p.cfg.TargetSize)
	m, err := p.oldest()
	if m != nil || err != nil || p.stats.Making == 0 || p.awaited {
		return m, err
	}
	p.more()
	p.awaited = true
	made := p.made
	p.mu.Unlock()
	late := time.NewTimer(makingPatience)
	select {
	case <-made:
	case <-late.C:
	case <-ctx.Done():
	}
	late.Stop()
	p.mu.Lock()
	p.awaited = false
	return p.oldest()
}

// makingPatience is how long to wait for a member that is being made.
const makingPatience = 20 * time.Millisecond

// oldest takes the oldest member that is not too old, if there is one.
//
// Preconditions: mu is held.
func (p *Pool) oldest() (*member, error) {
	if p.closed {
		return nil, ErrClosed
	}
	p.expire()
	if len(p.ready) == 0 {
		return nil, nil
	}
	m := p.ready[0]
	p.ready = slices.Delete(p.ready, 0, 1)
	return m, nil
}

// more aims at one more member, up to the most that there may be.
//
// Preconditions: mu is held.
func (p *Pool) more() { p.goal = min(p.goal+1, p.cfg.MaxSize) }

// none notes that there was no member to hand out.
func (p *Pool) none(tried bool) {
	p.mu.Lock()
	if tried {
		p.stats.Broken++
	} else {
		p.stats.Empty++
		p.more()
	}
	p.mu.Unlock()
	p.poke()
}

// giveBack puts a member that nothing was done with in its place.
func (p *Pool) giveBack(m *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.end(m)
		return
	}
	i, _ := slices.BinarySearchFunc(p.ready, m, func(a, b *member) int { return a.born.Compare(b.born) })
	p.ready = slices.Insert(p.ready, i, m)
}

func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// end closes a member.
func (p *Pool) end(m *member) { p.work.Go(func() { m.Close() }) }

// expire ends members that are too old.
//
// Preconditions: mu is held.
func (p *Pool) expire() {
	p.ready = slices.DeleteFunc(p.ready, func(m *member) bool {
		if time.Since(m.born) < p.cfg.MaxLifetime {
			return false
		}
		p.stats.Expired++
		p.end(m)
		return true
	})
}

// shrink ends members that there are too many of.
//
// Preconditions: mu is held.
func (p *Pool) shrink() {
	if time.Since(p.used) >= p.cfg.IdleTimeout {
		p.goal = p.cfg.MinSize
	}
	for len(p.ready) > p.goal {
		p.stats.Idle++
		p.end(p.ready[0])
		p.ready = slices.Delete(p.ready, 0, 1)
	}
}

// maintain looks after the members until the pool is closed.
func (p *Pool) maintain() {
	replenish := time.NewTicker(p.cfg.ReplenishInterval)
	defer replenish.Stop()
	health := time.NewTicker(p.cfg.HealthCheckInterval)
	defer health.Stop()
	var checking sync.Mutex
	for {
		p.fill()
		select {
		case <-p.ctx.Done():
			return
		case <-p.wake:
		case <-replenish.C:
			p.mu.Lock()
			p.patience = time.Time{}
			p.expire()
			p.shrink()
			p.mu.Unlock()
		case <-health.C:
			p.work.Go(func() {
				if checking.TryLock() {
					defer checking.Unlock()
					p.checkAll()
				}
			})
		}
	}
}

// manners is how long who was just given a sandbox has the processors for himself: a
// member costs as much as a cold run. It is briefManners when few are left, and
// nothing when none is.
const (
	manners      = 10 * time.Millisecond
	briefManners = 2 * time.Millisecond
)

// fill makes one more member, if one is missing and none is being made.
func (p *Pool) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := manners
	switch n := len(p.ready); {
	case n == 0 || n >= p.goal:
		wait = 0
	case n < p.cfg.MinSize:
		wait = briefManners
	}
	if wait -= time.Since(p.used); wait > 0 {
		time.AfterFunc(wait, p.poke)
		return
	}
	if p.closed || p.stats.Making > 0 || len(p.ready)+p.asked >= p.goal || time.Now().Before(p.patience) {
		return
	}
	p.stats.Making++
	p.work.Go(func() {
		q, err := p.cfg.Driver.Prepare(p.ctx, p.cfg.Policy)
		p.mu.Lock()
		p.stats.Making--
		defer func() {
			close(p.made)
			p.made = make(chan struct{})
			p.mu.Unlock()
			p.poke()
		}()
		if err != nil {
			if p.ctx.Err() == nil {
				p.stats.Failures++
				p.stats.LastError = err.Error()
				p.patience = time.Now().Add(p.cfg.ReplenishInterval)
			}
			return
		}
		m := &member{Prepared: q, born: time.Now()}
		p.stats.Created++
		if p.closed {
			p.end(m)
		} else {
			p.ready = append(p.ready, m)
			go p.watch(m)
		}
	})
}

// watch waits for a member's end. If that comes while it is ready it was nobody's
// doing.
func (p *Pool) watch(m *member) {
	<-m.Done()
	if p.drop(m) {
		p.mu.Lock()
		p.stats.Crashed++
		p.mu.Unlock()
		p.poke()
	}
}

// drop takes a member out of those that are ready, and reports whether it was one.
func (p *Pool) drop(m *member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.ready, m)
	if i < 0 {
		return false
	}
	p.ready = slices.Delete(p.ready, i, i+1)
	return true
}

// checkAll asks every member whether it answers, one at a time.
func (p *Pool) checkAll() {
	p.mu.Lock()
	all := slices.Clone(p.ready)
	p.mu.Unlock()
	for _, m := range all {
		if !p.drop(m) {
			continue // handed out by now
		}
		p.mu.Lock()
		p.asked++
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(p.ctx, checkPatience)
		err := m.Check(ctx)
		cancel()
		if err == nil {
			p.giveBack(m)
		} else {
			p.end(m)
		}
		p.mu.Lock()
		p.asked--
		if err != nil && p.ctx.Err() == nil {
			p.stats.Unhealthy++
			p.stats.LastError = err.Error()
		}
		p.mu.Unlock()
		p.poke()
	}
}

// Close ends every member, and returns when they are gone. Sandboxes that were
// handed out are their owners'.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.work.Wait()
		return nil
	}
	p.closed = true
	for _, m := range p.ready {
		p.end(m)
	}
	p.ready = nil
	p.mu.Unlock()
	p.stop()
	p.work.Wait()
	return nil
}

// WithWorkspace is a policy with a directory of the host shown at its own path, in
// which commands begin. The path is absolute and holds no symbolic link.
func WithWorkspace(p *policy.Policy, dir string, access policy.Access) *policy.Policy {
	q, oci, pr := *p, *p.OCI, *p.OCI.Process
	pr.Cwd = dir
	oci.Process, q.OCI = &pr, &oci
	q.Files = append(slices.Clone(p.Files), policy.FileRule{Path: dir, Access: access, Origin: "workspace"})
	return &q
}
