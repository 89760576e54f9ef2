package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/workspace"
)

// OpenChanges opens the directory that this user's change sets are in; see
// XDG_STATE_HOME in the XDG Base Directory Specification.
func OpenChanges(f *Facts) (*workspace.Store, error) {
	dir, err := ChangesDir(f)
	if err != nil {
		return nil, err
	}
	st, err := workspace.OpenStore(dir)
	if err != nil {
		name := "XDG_STATE_HOME"
		if !filepath.IsAbs(os.Getenv(name)) {
			name = "HOME"
		}
		err = Unusable(err, name, "changes are kept there: set HOME or XDG_STATE_HOME to a directory of yours")
	}
	return st, err
}

// ChangesDir is where change sets of this user are.
func ChangesDir(f *Facts) (string, error) {
	dir := StateHome(f)
	if dir == "" {
		return "", Usage("there is no home directory to keep changes in", "set HOME or XDG_STATE_HOME")
	}
	return filepath.Join(dir, "sbxrun", "changes"), nil
}

// OverlayOf is the path of a policy that is copy-on-write, "" for none.
func OverlayOf(p *policy.Policy) string {
	if i := slices.IndexFunc(p.Files, func(r policy.FileRule) bool { return r.Overlay }); i >= 0 {
		return p.Files[i].Path
	}
	return ""
}

var changesCount atomic.Uint32

// ChangesID names a change set of a run.
func ChangesID() string {
	id := "w" + strconv.FormatInt(time.Now().UnixMilli(), 36) + "-" + strconv.Itoa(os.Getpid())
	if n := changesCount.Add(1); n > 1 {
		id += "-" + strconv.Itoa(int(n))
	}
	return id
}

// FreeForChanges reports an error if the changes of a session of that name could
// not be kept.
func FreeForChanges(f *Facts, p *policy.Policy, id string) error {
	if OverlayOf(p) == "" {
		return nil
	}
	st, err := OpenChanges(f)
	if err != nil {
		return err
	}
	defer st.Close()
	if st.Exists(id) {
		return Hinted(fmt.Errorf("%s: %w", id, workspace.ErrExists),
			"sbxrun diff "+id+" shows the changes; sbxrun apply or discard them, or choose another name")
	}
	return nil
}

// Changes are those of one sandbox: from before its workspace is shown until they
// are a change set.
type Changes struct {
	store *workspace.Store
	base  *workspace.Base
	info  workspace.Info
	limit uint64

	layer   *os.File
	snapped bool // a set of what was changed so far has been made
	set     *workspace.Set
	full    bool
	err     error
}

// KeepChanges gets ready to keep what is changed in the workspace of a policy; it is
// nil if that is not copy-on-write.
func KeepChanges(f *Facts, p *policy.Policy, info workspace.Info) (*Changes, error) {
	path := OverlayOf(p)
	if path == "" {
		return nil, nil
	}
	st, err := OpenChanges(f)
	if err != nil {
		return nil, err
	}
	base, err := workspace.Take(path)
	if err != nil {
		st.Close()
		return nil, err
	}
	info.Profile, info.Protect = p.Profile, p.Protect
	return &Changes{store: st, base: base, info: info, limit: p.Scratch.Bytes}, nil
}

// Close ends what a change set is made of. The set stays.
func (c *Changes) Close() {
	c.base.Close()
	c.store.Close()
}

// Started returns what is to be done when a command has ended.
func (c *Changes) Started(proc driver.Process) func() {
	return func() {
		c.take(proc)
		c.collect()
	}
}

func (c *Changes) take(from driver.Changeable) { c.layer, c.err = from.Layer() }

// collect makes a change set of the layer.
func (c *Changes) collect() {
	if c.layer == nil || c.err != nil {
		return
	}
	defer c.layer.Close()
	c.full = workspace.Full(c.layer)
	c.set, c.err = workspace.Collect(c.store, c.info, c.base, c.layer, c.limit, c.snapped)
}

// Result tells what became of the changes.
func (c *Changes) Result() (*driver.Changes, error) {
	r := &driver.Changes{Workspace: c.base.Path, Full: c.full}
	if c.err != nil {
		r.Error = c.err.Error()
		return r, Hinted(c.err,
			"what the command changed is lost; see that there is room in the directory for changes ($XDG_STATE_HOME/sbxrun/changes)")
	}
	if c.set != nil {
		i := &c.set.Info
		r.ID, r.Added, r.Modified, r.Deleted, r.Skipped = i.ID, i.Added, i.Modified, i.Deleted, i.Skipped
	}
	return r, nil
}

// Into puts what became of the changes into the result of a run, which ended with an
// error or nil, and returns the run's error.
func (c *Changes) Into(res *driver.Result, err error) error {
	if err != nil {
		if c.set != nil { // the sandbox came to a bad end after the command had begun
			res.Changes, _ = c.Result()
		}
		return err
	}
	if res.Changes, err = c.Result(); err != nil {
		// What the command did is lost: whatever it said of itself, the run has failed.
		res.ExitCode, res.Error, res.Hint = driver.ExitLost, err.Error(), driver.HintOf(err)
	}
	return err
}

// KeepsChanges is a driver whose sandboxes leave a change set each when they end.
type KeepsChanges struct {
	driver.Driver
	Facts   *Facts
	ID      func() string
	Session bool

	// Tell, which may be nil, is told what became of the changes.
	Tell func(*driver.Changes, error)
}

// Open builds a sandbox.
func (k KeepsChanges) Open(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	c, err := KeepChanges(k.Facts, p, workspace.Info{ID: k.ID(), Session: k.Session})
	if err != nil {
		return nil, err
	}
	box, err := k.Driver.Open(ctx, p)
	if c == nil || err != nil {
		if c != nil {
			c.Close()
		}
		return box, err
	}
	c.take(box)
	s := &keptSandbox{Sandbox: box, changes: c, tell: k.Tell, done: make(chan struct{})}
	if c.err != nil || c.layer == nil {
		box.Close()
		c.Close()
		return nil, errors.Join(driver.ErrSandboxGone, c.err)
	}
	go func() {
		<-box.Done()
		s.keep()
	}()
	return s, nil
}

// keptSandbox is a sandbox whose changes are kept when it ends, before it says
// that it has.
type keptSandbox struct {
	driver.Sandbox
	changes *Changes
	tell    func(*driver.Changes, error)
	once    sync.Once
	done    chan struct{}

	mu sync.Mutex // one collection at a time
}

// Snapshot keeps what was changed so far.
func (s *keptSandbox) Snapshot() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	default:
	}
	c := s.changes
	_, err := workspace.Collect(c.store, c.info, c.base, c.layer, c.limit, c.snapped)
	c.snapped = c.snapped || err == nil
	return err
}

func (s *keptSandbox) keep() {
	s.once.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes.collect()
		if s.tell != nil {
			s.tell(s.changes.Result())
		}
		s.changes.Close()
		close(s.done)
	})
}

// Done is closed when the changes are kept.
func (s *keptSandbox) Done() <-chan struct{} { return s.done }

// Close ends the sandbox. The error is about its changes.
func (s *keptSandbox) Close() error {
	err := s.Sandbox.Close()
	<-s.done
	if s.changes.err != nil {
		return s.changes.err
	}
	return err
}
