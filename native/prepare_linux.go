package native

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/guard"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/rootfs"
)

var _ driver.Preparer = Driver{}

// Prepare builds what sandboxes of the policy, and of policies that show more,
// have in common: the program of Open, cut off before the first thing that is not
// known yet. Process 1 waits there, in its namespaces, with the host's tree still
// its root. Nothing else runs in there, and nothing does until Complete has run
// the rest of the program, which leaves that tree and closes what is open of it:
// a command finds what it finds in a sandbox that was opened in one go.
func (d Driver) Prepare(ctx context.Context, p *policy.Policy) (driver.Prepared, error) {
	files := witness{}
	s, err := d.plan(ctx, withoutCommand(p), files)
	if err != nil {
		return nil, err
	}
	if overlaid(&s.low.Tree) {
		return nil, &driver.UnsupportedError{Driver: Name, Rules: []string{"files.overlay before the workspace is known"}, Fix: "prepare without a workspace"}
	}
	layers, degraded := s.layers, s.degraded
	if err := s.prepareCgroup(); err != nil {
		return nil, err
	}
	defer s.release()
	q := &prepared{d: d, s: s, files: files, got: s.layers &^ layers, lost: layers &^ s.layers, degraded: s.degraded &^ degraded, group: s.group != nil}
	if s.net, err = newNetwork(d, p); err != nil {
		return nil, err
	}
	s.onDemand()
	var cfg *reexec.Config
	if cfg, q.tree, err = s.begin(); err != nil {
		return nil, err
	}
	q.init = cfg.Init
	if q.box, err = s.open(cfg); err != nil {
		return nil, err
	}
	if err := q.box.answers(); err != nil {
		q.box.Close()
		return nil, q.box.gone(err)
	}
	return q, nil
}

// prepared is a sandbox of which the program is not written to its end.
type prepared struct {
	d     Driver
	s     *starter
	box   *sandbox
	init  *sys.Program
	tree  *mounts.Building
	files witness // what the host's files were

	// What the cgroup changed of the layers.
	got, lost, degraded policy.Layers
	group               bool

	mu   sync.Mutex // guards what follows, and Check against Complete
	used bool
}

// Done is closed when nothing is left.
func (q *prepared) Done() <-chan struct{} { return q.box.Done() }

// Close ends it.
func (q *prepared) Close() error { return q.box.Close() }

// Check has process 1 do a job: nothing, and say so.
func (q *prepared) Check(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used {
		return errCompleted
	}
	answer := make(chan error, 1)
	go func() { answer <- q.box.answers() }()
	select {
	case err := <-answer:
		if err != nil {
			return q.box.gone(err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the sandbox does not answer: %w", ctx.Err())
	}
}

var errCompleted = errors.New("the sandbox is completed already")

// Complete runs the rest of the program.
func (q *prepared) Complete(ctx context.Context, p *policy.Policy) (driver.Sandbox, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used {
		return nil, errCompleted
	}
	select {
	case <-q.Done():
		return nil, q.box.gone(syscall.ESRCH)
	default:
	}
	files := witness{}
	s, err := q.d.plan(ctx, withoutCommand(p), files)
	if err != nil {
		return nil, err
	}
	rest, ok := q.fits(s, files)
	if !ok || overlaid(&s.low.Tree) { // process 1 has nothing to send the layer on
		return nil, driver.ErrMismatch
	}
	s.layers = (s.layers | q.got) &^ q.lost
	s.degraded |= q.degraded
	s.limits, s.connect, s.cgroupNS = q.s.limits, q.s.connect, q.s.cgroupNS

	q.used = true
	b := q.box
	fail := func(err error) (driver.Sandbox, error) {
		b.Close()
		return nil, b.gone(err)
	}
	start := &sys.Program{}
	start.ReserveRegs(q.init)
	start.Grow(160, 4<<10)
	if err := s.complete(start, q.tree, rest); err != nil {
		return fail(err)
	}
	b.mu.Lock()
	cgroup := openGroup(start, b.group)
	b.mu.Unlock()
	b.s, b.cgroup = s, cgroup
	if err = b.child.Complete(start, s.hold(cgroup)); err == nil {
		err = b.answers()
	}
	if err != nil {
		return fail(err)
	}
	return b, nil
}

// fits reports whether what is prepared is part of what a policy asks for, and
// what else that shows.
func (q *prepared) fits(s *starter, files witness) (rest []mounts.Entry, ok bool) {
	rest, ok = s.low.Tree.Rest(&q.s.low.Tree)
	if !ok || s.label != q.s.label || s.attr != q.s.attr || s.abi != q.s.abi || !sameOrigin(q.s.p, s.p) {
		return nil, false
	}
	// Another file by the same name is another file.
	for i := range q.s.low.Tree.Entries {
		e := &q.s.low.Tree.Entries[i]
		if e.Kind == mounts.Bind && files[e.Source] != q.files[e.Source] {
			return nil, false
		}
	}
	return rest, true
}

// sameOrigin compares what of two policies is acted on before all files are known:
// namespaces, the cgroup, the network. What is about commands is not.
func sameOrigin(a, b *policy.Policy) bool {
	la, lb := a.OCI.Linux, b.OCI.Linux
	return a.OCI.Hostname == b.OCI.Hostname &&
		slices.Equal(la.Namespaces, lb.Namespaces) && slices.Equal(la.UIDMappings, lb.UIDMappings) && slices.Equal(la.GIDMappings, lb.GIDMappings) &&
		a.Require&policy.LayerCgroup == b.Require&policy.LayerCgroup && a.Degrade&policy.LayerCgroup == b.Degrade&policy.LayerCgroup &&
		reflect.DeepEqual(la.Resources, lb.Resources) && reflect.DeepEqual(a.Egress, b.Egress)
}

// witness is [rootfs.HostFS] that remembers which files it saw.
type witness map[string]guard.File

// Lookup describes what is at a path.
func (w witness) Lookup(p string) (rootfs.Node, error) {
	var st unix.Stat_t
	if unix.Lstat(p, &st) == nil {
		w[p] = guard.File{Dev: st.Dev, Ino: st.Ino}
	}
	return rootfs.HostFS{}.Lookup(p)
}

// List names what a directory holds.
func (w witness) List(dir string) ([]string, error) { return rootfs.HostFS{}.List(dir) }
