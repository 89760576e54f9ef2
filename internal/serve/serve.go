//go:build unix

// Package serve keeps pools of sandboxes for the processes of one user.
//
// It listens on two sockets in a directory that only its owner can reach, and
// checks who connects. One speaks HTTP with JSON: a documented, versioned interface
// for programs (docs/serve.md). The other lends sandboxes to sbxrun itself
// ([session.Lender]), with the command's own descriptors passed, so that a run that
// finds a server is a run like any other, but that its sandbox was ready.
//
// Sessions that it makes are those of [session.Store]: every client of sessions
// reaches them. The package decides nothing about policies: who starts it says what
// pools there are, and how a workspace becomes a policy.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/httpbody"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/pool"
	"github.com/sbxrun/sbxrun/session"
)

// Names of the sockets in the server's directory.
const (
	APISocket = "api.sock"
	RunSocket = "run.sock"
	lockFile  = "lock"
)

// A servedPool is one that the server keeps.
type servedPool struct {
	engine.ServedPool
	*pool.Pool
}

// A Server serves.
type server struct {
	*engine.Server
	kept []*servedPool
	ctx  context.Context
	work sync.WaitGroup // sessions that are held

	closing chan struct{} // a token for each sandbox that is taken down
	room    *driver.Room
}

// maxClosing is how many sandboxes are taken down while nobody waits for it. When
// more are used than can be taken down, their clients do wait: what is left of them
// is bounded.
const maxClosing = 8

// takeDown closes a sandbox in which nothing runs any more.
func (s *server) takeDown(box driver.Sandbox) {
	select {
	case s.closing <- struct{}{}:
		go func() {
			box.Close()
			<-s.closing
		}()
	default:
		box.Close()
	}
}

// firstPatience is how long the first sandboxes of a server may take.
const firstPatience = 30 * time.Second

// Serve fills the pools, and serves them until the context ends. Sessions are stopped
// then, and sandboxes that were lent end.
func Serve(ctx context.Context, of *engine.Server) error {
	s := &server{Server: of, closing: make(chan struct{}, maxClosing), room: driver.NewRoom(maxKept)}
	for _, p := range of.Pools {
		q, err := pool.New(p.Config)
		if err != nil {
			return err
		}
		defer q.Close()
		s.kept = append(s.kept, &servedPool{p, q})
	}
	// Who is told that it serves is to find something ready; and a host on which
	// nothing can be built is to be known now.
	first, cancel := context.WithTimeout(ctx, firstPatience)
	defer cancel()
	for _, p := range s.kept {
		if err := p.Ready(first, 1); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("pool %s: %w", p.Name, err)
		}
	}
	go s.prune(ctx)
	birth, err := session.Birth()
	if err != nil {
		return err
	}
	unlock, err := claim(of.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	api, err := listen(filepath.Join(of.Dir, APISocket))
	if err != nil {
		return err
	}
	defer api.Close()
	runs, err := listen(filepath.Join(of.Dir, RunSocket))
	if err != nil {
		return err
	}
	defer runs.Close()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.ctx = ctx
	lender := &session.Lender{Version: of.Version, Birth: birth, Acquire: s.lend}
	h := &http.Server{Handler: httpbody.Within(httpbody.Patience, s.handler()), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	failed := make(chan error, 2)
	go func() { failed <- h.Serve(session.OwnerOnly(api)) }()
	go func() { failed <- lender.Serve(ctx, runs) }()
	if of.Serving != nil {
		of.Serving()
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stop()
	runs.Close()
	h.Close()
	s.work.Wait()
	for range maxClosing {
		s.closing <- struct{}{} // all are taken down
	}
	return err
}

// prune removes what crashed owners left, now and every hour.
func (s *server) prune(ctx context.Context) {
	for {
		if err := s.Prune(); err != nil {
			fmt.Fprintln(os.Stderr, "sbxrun: warning: prune:", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Hour):
		}
	}
}

// claim makes the server's directory, and sees that there is no other server in
// it: what one that was killed left behind is taken over.
func claim(dir string) (unlock func(), err error) {
	if err := session.PrivateDir(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrRunning
		}
		return nil, err
	}
	return func() { f.Close() }, nil
}

// ErrRunning says that there is a server already.
var ErrRunning = errors.New("a server is running already")

func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// lend returns a sandbox of exactly this policy from one of the pools.
func (s *server) lend(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	// Those of the same profile first: the others will hardly do.
	order := slices.Clone(s.kept)
	slices.SortStableFunc(order, func(a, b *servedPool) int { return differs(a, p) - differs(b, p) })
	err := pool.ErrNone
	for _, q := range order {
		box, e := q.TryAcquire(ctx, p)
		if e == nil {
			return box, nil
		}
		err = e
	}
	return nil, err
}

func differs(q *servedPool, p *policy.Policy) int {
	if q.Policy().Profile == p.Profile {
		return 0
	}
	return 1
}

// noPool says that there is no pool of a name.
type noPool string

func (e noPool) Error() string        { return "pool: there is no " + strconv.Quote(string(e)) }
func (e noPool) Is(target error) bool { return target == fs.ErrNotExist }

// find returns the pool of a name; the first has no need of one.
func (s *server) find(name string) (*servedPool, error) {
	if name == "" && len(s.kept) > 0 {
		return s.kept[0], nil
	}
	for _, p := range s.kept {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, noPool(name)
}
