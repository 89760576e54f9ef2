package native

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// Prepare builds what sandboxes of the policy, and of policies that show more,
// have in common: the program of Open, cut off before the first thing that is not
// known yet. Process 1 waits there, in its namespaces and in the new root, with the
// host's tree still mounted. Nothing else runs in there, and nothing does until
// Complete has run the rest of the program, which detaches that tree and closes what
// is open of it: a command finds what it finds in a sandbox that was opened in one go.
func (d Driver) Prepare(ctx context.Context, p *policy.Policy) (driver.Prepared, error) {
	// Before anything of the host is looked at.
	tree, _, err := hostMounts.since(0, nil)
	if err != nil {
		return nil, err
	}
	files := witness{seen: map[string]sight{}}
	s, err := d.plan(ctx, withoutCommand(p), files)
	if err != nil {
		return nil, err
	}
	if overlaid(&s.low.Tree) {
		return nil, &driver.UnsupportedError{Driver: Name,
			Rules: []string{"files.overlay before the workspace is known"}, Fix: "prepare without a workspace"}
	}
	layers, degraded := s.layers, s.degraded
	if err := s.prepareCgroup(); err != nil {
		return nil, err
	}
	defer s.release()
	q := &prepared{d: d, s: s, mounts: tree, files: files, got: s.layers &^ layers, lost: layers &^ s.layers,
		degraded: s.degraded &^ degraded, group: s.group != nil}
	if s.net, err = newNetwork(d, p); err != nil {
		return nil, err
	}
	s.onDemand()
	var cfg *reexec.Config
	if cfg, q.tree, err = s.beginToStay(); err != nil {
		return nil, err
	}
	if q.rules, err = guard.NewRules(p.Protect); err != nil {
		return nil, err
	}
	q.init, cfg.Hold = cfg.Init, q.tree.Hold()
	if s.abi > 0 {
		s.low.Ruleset.Unscoped = true
		cfg.Init.Layer(uint32(policy.LayerLandlock))
		q.ruleset = landlock.Append(cfg.Init, q.tree.Root(), s.abi, &s.low.Ruleset)
		cfg.Hold = append(cfg.Hold, q.ruleset)
	}
	if q.box, err = s.open(cfg); err != nil {
		return nil, err
	}
	if err := q.box.answers(); err != nil {
		q.box.Close()
		return nil, q.box.gone(err)
	}
	q.box.makeSpare()
	return q, nil
}

// prepared is a sandbox of which the program is not written to its end.
type prepared struct {
	d       Driver
	s       *starter
	box     *sandbox
	init    *sys.Program
	tree    *mounts.Building
	ruleset sys.Reg // of what is there already; 0 for none
	mounts  int     // of hostMounts, at the beginning
	files   witness // what the host's files were
	rules   *guard.Rules

	// What the cgroup changed of the layers.
	got, lost, degraded policy.Layers
	group               bool

	mu   sync.Mutex // guards what follows, and Check against Complete
	used bool
	rest *sys.Program // by which it was completed
}

// Done is closed when nothing is left.
func (q *prepared) Done() <-chan struct{} { return q.box.Done() }

// Close ends it.
func (q *prepared) Close() error { return q.box.Close() }

// Check has process 1 do a job: nothing, and say so. And it looks whether the host's
// files are still what they were.
func (q *prepared) Check(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used {
		return errCompleted
	}
	if err := q.stale(q.files.seen); err != nil {
		return err
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
	// What is shown is what was seen when it was prepared. Whether that is still so
	// is found out while process 1 is at work.
	files := witness{seen: make(map[string]sight, 2*len(q.files.seen)), before: q.files.seen}
	s, err := q.d.plan(ctx, withoutCommand(p), files)
	if err != nil {
		return nil, err
	}
	rest, ok := q.fits(s)
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
	if s.protected != nil && slices.Equal(s.protected.Patterns, q.s.p.Protect) {
		s.protected.Rules = q.rules
	}
	s.ruleset, s.granted = q.grants(s, rest)
	if err := s.complete(start, q.tree, rest); err != nil {
		return fail(err)
	}
	b.mu.Lock()
	cgroup := openGroup(start, b.group)
	b.mu.Unlock()
	b.s, b.cgroup, q.rest = s, cgroup, start
	// Process 1 does as it is told in the order in which it is told: whatever the
	// owner asks for next comes after this, and fails if this did.
	b.unproven.Store(true)
	if err = b.child.Complete(start, s.hold(cgroup)); err != nil {
		return fail(err)
	}
	if err := q.stale(files.seen); err != nil {
		b.Close()
		return nil, fmt.Errorf("%w: %w", driver.ErrIncomplete, err)
	}
	return b, nil
}

// stale says why the host is another by now, nil if it is not: as far as it concerns
// paths that were looked at.
func (q *prepared) stale(seen map[string]sight) error {
	if _, at, err := hostMounts.since(q.mounts, seen); err != nil {
		return err
	} else if at != "" {
		return fmt.Errorf("something was mounted or unmounted at %s", at)
	}
	if name := q.files.changed(); name != "" {
		return fmt.Errorf("%s is another file by now", name)
	}
	return nil
}

// fits reports whether what is prepared is part of what a policy asks for, and
// what else that shows.
func (q *prepared) fits(s *starter) (rest []mounts.Entry, ok bool) {
	rest, ok = s.low.Tree.Rest(&q.s.low.Tree)
	if !ok || s.label != q.s.label || s.attr != q.s.attr || s.abi != q.s.abi || !sameOrigin(q.s.p, s.p) {
		return nil, false
	}
	return rest, true
}

// sameOrigin compares what of two policies is acted on before all files are known:
// namespaces, the cgroup, the network. What is about commands is not.
func sameOrigin(a, b *policy.Policy) bool {
	la, lb := a.OCI.Linux, b.OCI.Linux
	return a.OCI.Hostname == b.OCI.Hostname &&
		slices.Equal(la.Namespaces, lb.Namespaces) && slices.Equal(la.UIDMappings,
		lb.UIDMappings) && slices.Equal(la.GIDMappings, lb.GIDMappings) &&
		a.Require&policy.LayerCgroup == b.Require&policy.LayerCgroup &&
		a.Degrade&policy.LayerCgroup == b.Degrade&policy.LayerCgroup &&
		reflect.DeepEqual(la.Resources, lb.Resources) && reflect.DeepEqual(a.Egress, b.Egress)
}

// grants returns the ruleset that was made in advance and how many of the policy's
// rules, moved to the front, it has already; 0 if it is none for this policy.
func (q *prepared) grants(s *starter, rest []mounts.Entry) (ruleset sys.Reg, n int) {
	have, want := q.s.low.Ruleset, s.low.Ruleset
	want.Unscoped = true
	rules, old := want.Rules, have.Rules
	want.Rules, have.Rules = nil, nil
	if q.ruleset == 0 || !reflect.DeepEqual(have, want) {
		return 0, 0
	}
	for i := range old {
		for j := range rest {
			// The path leads to something else by now.
			if r := rest[j].Target; old[i].Path == r || strings.HasPrefix(old[i].Path, r+"/") {
				return 0, 0
			}
		}
	}
	var front, back []landlock.Rule
	for _, r := range rules {
		if len(front) < len(old) && r == old[len(front)] {
			front = append(front, r)
		} else {
			back = append(back, r)
		}
	}
	if len(front) < len(old) {
		return 0, 0 // it grants what the policy does not
	}
	s.low.Ruleset.Rules = append(front, back...)
	return q.ruleset, len(front)
}

// witness is [rootfs.HostFS] that remembers which files it saw.
type witness struct {
	seen   map[string]sight // nil to remember nothing
	before map[string]sight // what an earlier one saw, and is not looked at again
}

type sight struct {
	id   guard.File
	node rootfs.Node
	err  error

	// Of a symbolic link: when it was made, and what it leads to.
	made unix.Timespec
	to   guard.File
}

// Lookup describes what is at a path.
func (w witness) Lookup(p string) (rootfs.Node, error) {
	s, ok := w.before[p]
	if !ok {
		s = look(p, s)
	}
	if w.seen != nil {
		w.seen[p] = s
	}
	return s.node, s.err
}

// look looks at a file. What a link says never changes: one that says something else
// is another, and it need not be read again.
func look(p string, before sight) (s sight) {
	var st unix.Stat_t
	switch unix.Lstat(p, &st) {
	case nil:
		s.id = guard.File{Dev: st.Dev, Ino: st.Ino}
	case unix.ENOENT:
		return s
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.node.Kind = rootfs.NodeDir // its mode is for overlays, of which nothing is prepared
	case unix.S_IFLNK:
		s.made = st.Ctim
		var to unix.Stat_t
		if unix.Stat(p, &to) == nil {
			s.to = guard.File{Dev: to.Dev, Ino: to.Ino}
		}
		if before.id == s.id && before.made == s.made && before.to == s.to && before.node.Kind == rootfs.NodeSymlink {
			return before
		}
		s.node, s.err = rootfs.HostFS{}.Lookup(p)
	case 0: // nothing, or what cannot be looked at
		s.node, s.err = rootfs.HostFS{}.Lookup(p)
	default:
		s.node.Kind, s.node.Socket = rootfs.NodeFile, st.Mode&unix.S_IFMT == unix.S_IFSOCK
	}
	return s
}

// changed names a path that leads to something else by now than what was seen, "" if
// there is none.
func (w witness) changed() string {
	for p, s := range w.seen {
		// What the kernel has in /proc it has as long as it runs.
		if strings.HasPrefix(p, "/proc/") {
			continue
		}
		now := look(p, s)
		if now.id != s.id || now.node != s.node || now.made != s.made || now.to != s.to ||
			errnoOf(now.err) != errnoOf(s.err) {
			return p
		}
	}
	return ""
}

// errnoOf is the errno of a failed call, 0 for none.
func errnoOf(err error) (e syscall.Errno) {
	if err != nil && !errors.As(err, &e) {
		return syscall.EIO
	}
	return e
}

// List names what a directory holds.
func (w witness) List(dir string) ([]string, error) { return rootfs.HostFS{}.List(dir) }
