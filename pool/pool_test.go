package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// fake is a driver whose sandboxes are counters.
type fake struct {
	driver.Basic
	mu        sync.Mutex
	alive     map[*box]bool
	opened    int
	prepare   error // what Prepare fails with
	complete  error
	unhealthy bool
	slow      chan struct{} // Prepare waits for it, if it is not nil
}

type box struct {
	driver.Fixed
	f    *fake
	done chan struct{}
	once sync.Once
	used string // whose it is
}

func newFake() *fake { return &fake{alive: map[*box]bool{}} }

func (f *fake) Name() string                    { return "fake" }
func (f *fake) Sandboxed() bool                 { return true }
func (f *fake) Available(context.Context) error { return nil }
func (f *fake) Check(*policy.Policy) error      { return nil }
func (f *fake) Start(context.Context, *policy.Policy, driver.Stdio) (driver.Process, error) {
	return nil, errors.ErrUnsupported
}

func (f *fake) make() *box {
	b := &box{f: f, done: make(chan struct{})}
	f.alive[b] = true
	return b
}

func (f *fake) Open(_ context.Context, p *policy.Policy) (driver.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	b := f.make()
	b.used = p.Profile
	return b, nil
}

func (f *fake) Prepare(ctx context.Context, _ *policy.Policy) (driver.Prepared, error) {
	if f.slow != nil {
		select {
		case <-f.slow:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.prepare != nil {
		return nil, f.prepare
	}
	return f.make(), nil
}

func (b *box) Complete(_ context.Context, p *policy.Policy) (driver.Sandbox, error) {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	if b.used != "" {
		panic("completed twice")
	}
	if err := b.f.complete; err != nil {
		if !errors.Is(err, driver.ErrMismatch) {
			b.die()
		}
		return nil, err
	}
	select {
	case <-b.done:
		return nil, driver.ErrSandboxGone
	default:
	}
	b.used = p.Profile
	return b, nil
}

func (b *box) Check(context.Context) error {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	if b.f.unhealthy {
		return errors.New("mute")
	}
	return nil
}
func (b *box) Exec(context.Context, *specs.Process, driver.Stdio) (driver.Process, error) {
	return nil, errors.ErrUnsupported
}
func (b *box) ExecWithin(context.Context, *specs.Process, *specs.LinuxResources, driver.Stdio) (driver.Process, error) {
	return nil, errors.ErrUnsupported
}
func (b *box) Status() (*driver.Status, error) { return &driver.Status{}, nil }
func (b *box) Done() <-chan struct{}           { return b.done }
func (b *box) die()                            { b.once.Do(func() { delete(b.f.alive, b); close(b.done) }) }

func (b *box) Close() error {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	b.die()
	return nil
}

// End is Close.
func (b *box) End() error { return b.Close() }

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.alive)
}

var someone = &policy.Policy{Profile: "someone"}

func start(t *testing.T, f *fake, s Settings) *Pool {
	t.Helper()
	p, err := New(Config{Driver: f, Policy: &policy.Policy{Profile: "base"}, Settings: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		p.mu.Lock()
		out := p.stats.Out
		p.mu.Unlock()
		if n := f.count(); n != out {
			t.Errorf("%d sandboxes are left, %d handed out", n, out)
		}
	})
	return p
}

// until waits for a condition.
func until(t *testing.T, p *Pool, what string, ok func(Stats) bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(p.Stats()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s: %+v", what, p.Stats())
		}
	}
}

func TestDefaults(t *testing.T) {
	p := start(t, newFake(), Settings{})
	want := Settings{2, 5, 10, 5 * time.Minute, time.Hour, 30 * time.Second, 10 * time.Second}
	if p.Settings() != want {
		t.Errorf("%+v", p.Settings())
	}
	until(t, p, "filled", func(s Stats) bool { return s.Ready == 5 && s.Making == 0 })
	for _, s := range []Settings{{MinSize: 6, TargetSize: 5}, {MaxSize: -1}, {TargetSize: 11}, {IdleTimeout: -1}, {MinSize: 11}} {
		if p, err := New(Config{Driver: newFake(), Policy: someone, Settings: s}); err == nil {
			p.Close()
			t.Errorf("%+v is allowed", s)
		}
	}
	for _, s := range []Settings{{MinSize: 7}, {MaxSize: 3}, {MinSize: 1, MaxSize: 1}} {
		if s, err := s.withDefaults(); err != nil || s.TargetSize < s.MinSize || s.TargetSize > s.MaxSize {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// TestNeverReused: what was handed out ends, and what comes after is new.
func TestNeverReused(t *testing.T) {
	p := start(t, newFake(), Settings{})
	if err := p.Ready(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	seen := map[driver.Sandbox]bool{}
	for i := range 100 {
		s, err := p.Acquire(t.Context(), &policy.Policy{Profile: fmt.Sprint("owner ", i)})
		if err != nil {
			t.Fatal(err)
		}
		b := s.Sandbox.(*box)
		if seen[b] || b.used != fmt.Sprint("owner ", i) {
			t.Fatalf("sandbox %d is %q's", i, b.used)
		}
		seen[b] = true
		s.Close()
		s.Close()
		select {
		case <-b.done:
		default:
			t.Fatal("not ended")
		}
	}
	if s := p.Stats(); s.Out != 0 || s.Pooled+s.Cold != 100 || s.Pooled == 0 {
		t.Errorf("%+v", s)
	}
}

// TestEmpty: who finds none gets one all the same, and the pool aims higher.
func TestEmpty(t *testing.T) {
	f := newFake()
	f.slow = make(chan struct{})
	p := start(t, f, Settings{MaxSize: 7})
	for range 4 {
		s, err := p.Acquire(t.Context(), someone)
		if err != nil || s.Pooled {
			t.Fatalf("%+v, %v", s, err)
		}
		defer s.Close()
	}
	if s := p.Stats(); s.Cold != 4 || s.Empty != 4 || s.Goal != 7 || s.Out != 4 {
		t.Errorf("%+v", s)
	}
	if _, err := p.TryAcquire(t.Context(), someone); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
	close(f.slow)
	until(t, p, "filled", func(s Stats) bool { return s.Ready == 7 })
	s, err := p.Acquire(t.Context(), someone)
	if err != nil || !s.Pooled {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Acquire(ctx, someone); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestOutdated: when the host has changed, no member that was made before is tried
// after the first; all are replaced.
func TestOutdated(t *testing.T) {
	f := newFake()
	p := start(t, f, Settings{})
	until(t, p, "filled", func(s Stats) bool { return s.Ready == 5 && s.Making == 0 })
	f.mu.Lock()
	f.complete = driver.ErrIncomplete
	f.mu.Unlock()
	s, err := p.Acquire(t.Context(), someone)
	if err != nil || s.Pooled {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Close()
	f.mu.Lock()
	f.complete = nil
	f.mu.Unlock()
	until(t, p, "replaced", func(s Stats) bool { return s.Created == 10 && s.Ready == 5 && s.Broken == 1 && s.Cold == 1 })
	if s, err = p.Acquire(t.Context(), someone); err != nil || !s.Pooled {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Close()
}

func TestMismatch(t *testing.T) {
	f := newFake()
	p := start(t, f, Settings{})
	until(t, p, "filled", func(s Stats) bool { return s.Ready == 5 })
	f.complete = driver.ErrMismatch
	s, err := p.Acquire(t.Context(), someone)
	if err != nil || s.Pooled {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Close()
	if s := p.Stats(); s.Ready != 5 || s.Mismatched != 1 || s.Cold != 1 {
		t.Errorf("%+v", s)
	}
	// One that fails is gone, and the next is tried; the last way is the cold one.
	f.complete = errors.New("broken")
	if s, err = p.Acquire(t.Context(), someone); err != nil || s.Pooled {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Close()
	if s := p.Stats(); s.Broken != 1 || s.LastError != "broken" {
		t.Errorf("%+v", s)
	}
}

// TestUpkeep: members that died, do not answer or are old are replaced, and idle
// ones end.
func TestUpkeep(t *testing.T) {
	f := newFake()
	p := start(t, f, Settings{})
	until(t, p, "filled", func(s Stats) bool { return s.Ready == 5 })
	f.mu.Lock()
	for b := range f.alive {
		b.die()
		break
	}
	f.mu.Unlock()
	until(t, p, "replaced", func(s Stats) bool { return s.Crashed == 1 && s.Ready == 5 && s.Created == 6 })

	f.mu.Lock()
	f.unhealthy = true
	f.mu.Unlock()
	p.checkAll()
	f.mu.Lock()
	f.unhealthy = false
	f.mu.Unlock()
	until(t, p, "replaced", func(s Stats) bool { return s.Unhealthy >= 5 && s.Ready == 5 })
	p.checkAll()
	if s := p.Stats(); s.Ready != 5 || s.Crashed != 1 {
		t.Errorf("%+v", s)
	}

	old := start(t, newFake(), Settings{MaxLifetime: 30 * time.Millisecond, ReplenishInterval: 5 * time.Millisecond})
	until(t, old, "renewed", func(s Stats) bool { return s.Expired > 10 })
	idle := start(t, newFake(), Settings{IdleTimeout: 50 * time.Millisecond, ReplenishInterval: 5 * time.Millisecond})
	until(t, idle, "shrunk", func(s Stats) bool { return s.Ready == 2 && s.Goal == 2 })
	s, err := idle.Acquire(t.Context(), someone)
	if err != nil || !s.Pooled {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Close()
	asked := start(t, newFake(), Settings{HealthCheckInterval: time.Millisecond})
	asked.cfg.Driver.(*fake).mu.Lock()
	asked.cfg.Driver.(*fake).unhealthy = true
	asked.cfg.Driver.(*fake).mu.Unlock()
	until(t, asked, "asked", func(s Stats) bool { return s.Unhealthy > 10 })
}

// TestCannotMake: a host on which no member can be made is not tried without a
// pause, and Acquire says what is wrong.
func TestCannotMake(t *testing.T) {
	f := newFake()
	f.prepare = errors.New("no namespaces")
	p := start(t, f, Settings{ReplenishInterval: 20 * time.Millisecond})
	until(t, p, "failed", func(s Stats) bool { return s.Failures == 3 })
	if s := p.Stats(); s.LastError != "no namespaces" {
		t.Errorf("%+v", s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Ready(ctx, 1); err == nil {
		t.Error("ready")
	}
	f.mu.Lock()
	f.prepare = nil
	f.mu.Unlock()
	if err := p.Ready(t.Context(), 5); err != nil {
		t.Error(err)
	}
}

// TestChaos acquires from many goroutines while members die at random.
func TestChaos(t *testing.T) {
	f := newFake()
	p := start(t, f, Settings{HealthCheckInterval: time.Millisecond, ReplenishInterval: time.Millisecond, MaxLifetime: 20 * time.Millisecond})
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
			f.mu.Lock()
			for b := range f.alive {
				if rand.IntN(4) == 0 {
					b.die()
				}
			}
			f.mu.Unlock()
		}
	})
	var owners sync.WaitGroup
	for i := range 8 {
		owners.Go(func() {
			for j := range 200 {
				s, err := p.Acquire(context.Background(), &policy.Policy{Profile: fmt.Sprint(i, " ", j)})
				if err != nil {
					t.Error(err)
					return
				}
				if got := s.Sandbox.(*box).used; got != fmt.Sprint(i, " ", j) {
					t.Errorf("the sandbox of %d %d is %s's", i, j, got)
				}
				s.Close()
			}
		})
	}
	owners.Wait()
	close(stop)
	killer.Wait()
	if s := p.Stats(); s.Pooled+s.Cold != 1600 || s.Out != 0 {
		t.Errorf("%+v", s)
	}
}

func TestClose(t *testing.T) {
	f := newFake()
	p := start(t, f, Settings{})
	s, err := p.Acquire(t.Context(), someone)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if n := f.count(); n != 1 {
		t.Errorf("%d sandboxes are left", n)
	}
	if _, err := p.Acquire(t.Context(), someone); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	s.Close()
	p.Close()
}

// TestAwaitsMaking: who finds no member ready waits for one that is being made, but
// not for long, and not behind somebody else.
func TestAwaitsMaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.slow = make(chan struct{})
		p := start(t, f, Settings{MinSize: 1, TargetSize: 1, MaxSize: 3})
		synctest.Wait()
		if s := p.Stats(); s.Making != 1 || s.Ready != 0 {
			t.Fatalf("%+v", s)
		}
		got := make(chan *Sandbox, 2)
		acquire := func() {
			b, err := p.Acquire(t.Context(), someone)
			if err != nil {
				t.Error(err)
			}
			got <- b
		}
		begin := time.Now()
		go acquire()
		go acquire()
		cold := <-got
		if cold.Pooled || time.Since(begin) != 0 {
			t.Errorf("the second: pooled %v after %v", cold.Pooled, time.Since(begin))
		}
		time.Sleep(makingPatience / 2)
		f.slow <- struct{}{}
		pooled := <-got
		if !pooled.Pooled || time.Since(begin) != makingPatience/2 {
			t.Errorf("the first: pooled %v after %v", pooled.Pooled, time.Since(begin))
		}

		synctest.Wait() // the next one is being made
		begin = time.Now()
		go acquire()
		late := <-got
		if late.Pooled || time.Since(begin) != makingPatience {
			t.Errorf("too late: pooled %v after %v", late.Pooled, time.Since(begin))
		}
		if s := p.Stats(); s.Goal != 3 || s.Empty != 2 || s.Cold != 2 || s.Pooled != 1 {
			t.Errorf("%+v", s)
		}
		for _, b := range []*Sandbox{cold, pooled, late} {
			b.Close()
		}
	})
}
