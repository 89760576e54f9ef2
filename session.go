package sbxrun

import (
	"context"
	"errors"
	"reflect"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/session"
)

// A Session is a sandbox that stays, with many commands in it: files in its private
// places and processes that they leave are there for the next one. It ends with
// [Session.Close], or with this process. Its methods may be called at the same time.
type Session struct {
	box     driver.Sandbox
	p       *prepared
	changes *driver.Changes // set before box is done
}

// Open builds a sandbox that stays. Limits on time and output are those of each
// command in it; those on memory, processors and processes hold for all together. The
// context bounds set-up only.
func Open(ctx context.Context, o Options) (*Session, error) {
	o.Command, o.DirFrom = []string{"none"}, "Options.Dir" // commands come later
	p, err := prepare(ctx, &o)
	if err != nil {
		return nil, err
	}
	if err := engine.Stays(p.driver, "sessions", "sessions need the native driver"); err != nil {
		return nil, err
	}
	s := &Session{p: p}
	tell := func(c *driver.Changes, _ error) { s.changes = c }
	s.box, err = engine.KeepsChanges{Driver: p.driver, Facts: p.facts, ID: engine.ChangesID, Tell: tell}.Open(ctx,
		p.policy)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Command returns a command that runs in the session. Its Dir is a path in the
// sandbox; "" is the session's working directory. Its environment is the session's if
// Env is nil. What it leaves running stays when it ends.
func (s *Session) Command(name string, arg ...string) *Cmd {
	return s.CommandContext(context.Background(), name, arg...)
}

// CommandContext is [Session.Command]; see [CommandContext].
func (s *Session) CommandContext(ctx context.Context, name string, arg ...string) *Cmd {
	c := CommandContext(ctx, name, arg...)
	c.session = s
	return c
}

// Done is closed when nothing of the session is left.
func (s *Session) Done() <-chan struct{} { return s.box.Done() }

// Changes says where the changes of a session with Workspace "overlay" are kept. It
// waits until the session has ended.
func (s *Session) Changes() *driver.Changes {
	<-s.box.Done()
	return s.changes
}

// Close ends everything in the session and waits until it is gone.
func (s *Session) Close() error { return s.box.Close() }

func (s *Session) prepare(c *Cmd) (*prepared, error) {
	if !reflect.ValueOf(&c.Options).Elem().IsZero() {
		return nil, errors.New("sbxrun: a command of a session has no Options: they are those of Open")
	}
	p := *s.p
	p.facts = nil
	p.driver = session.In(s.box, s.p.driver.Name(), &specs.Process{Args: c.Args, Cwd: c.Dir, Env: c.Env})
	return &p, nil
}
