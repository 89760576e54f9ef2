package workspace

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// A Workspace is the host's side of a set, open.
type Workspace struct {
	*Base

	// Obeyed are absolute paths of places that who applies the set obeys. They are
	// protected with all below them, and so is what leads there.
	Obeyed []string

	// The file of a set that content was read from last: most of it is in one.
	blob     *os.File
	blobPath string
}

// Close closes the workspace.
func (w *Workspace) Close() error {
	if w.blob != nil {
		w.blob.Close()
	}
	return w.Base.Close()
}

// content is what a file of a set is to hold, until the next one is asked for.
func (w *Workspace) content(s *Set, n *Node) (*io.SectionReader, error) {
	at := s.ID + "/" + cmp.Or(n.Blob, n.Pack)
	if w.blob == nil || w.blobPath != at {
		f, err := s.store.root.Open(at)
		if err != nil {
			return nil, err
		}
		if w.blob != nil {
			w.blob.Close()
		}
		w.blob, w.blobPath = f, at
	}
	return io.NewSectionReader(w.blob, n.At, n.Size), nil
}

var errDamaged = errors.New("the change set is damaged: it does not have the content that was kept")

// whole is an error if what was read of a file of a set, of that size and hash, is not what
// was kept. A disk can lose what is in the middle of a pack, and others' content is next to it.
func (n *Node) whole(size int64, h hash.Hash) error {
	if size != n.Size || n.Sum != "" && n.Sum != hex.EncodeToString(h.Sum(nil)) {
		return errDamaged
	}
	return nil
}

// Open opens the workspace of a set. It is an error if that is another directory
// by now.
func (s *Set) Open() (*Workspace, error) {
	b, err := openBase(s.Workspace)
	if err != nil {
		return nil, err
	}
	if b.Dev != s.Dev || b.Ino != s.Ino {
		b.Close()
		return nil, fmt.Errorf("%s is not the directory that change set %s was made of: it was removed, and made again",
			s.Workspace, s.ID)
	}
	return &Workspace{Base: b}, nil
}

// Check compares every change with the workspace as it is, and its path with the
// patterns that protect some.
func (s *Set) Check(w *Workspace) ([]*Status, error) {
	v, err := s.view(w)
	if err != nil {
		return nil, err
	}
	return v.check()
}

func (s *Set) view(w *Workspace) (*view, error) {
	rules, err := guard.NewRules(s.Protect)
	if err != nil {
		return nil, err
	}
	v := &view{set: s, w: w, rules: rules, byPath: make(map[string]*Change, len(s.Changes)),
		made: make(map[string]bool, len(s.Changes))}
	for _, c := range s.Changes {
		v.byPath[c.Path] = c
		if c.New != nil {
			v.made[strings.ToLower(c.Path)] = true
		}
	}
	return v, nil
}

func (v *view) check() ([]*Status, error) {
	s, w := v.set, v.w
	out := make([]*Status, len(s.Changes))
	in := searched{w: w, fd: -1}
	defer in.close()
	for i, c := range s.Changes {
		st := &Status{Change: c}
		var err error
		if st.Now, err = in.lookup(c.Path); err == nil {
			err = v.state(st)
		}
		if st.Protected = v.protected(c); st.Protected == "" {
			st.Protected = w.obeyed(c)
		}
		if err == nil && st.State == Conflict && st.Now != nil && st.Now.Type == Dir && (c.New == nil || c.New.Type != Dir) {
			st.holds, err = v.holds(c.Path)
		}
		switch {
		case errors.Is(err, fs.ErrPermission):
			st.State, st.Why, st.blocked = Conflict, "the workspace's directory cannot be read", true
		case errors.Is(err, unix.ENAMETOOLONG):
			st.State, st.Why, st.blocked = Conflict, "the workspace has a path there that is too long", true
		case err != nil:
			return nil, err
		}
		out[i] = st
	}
	return out, nil
}

// lookup describes what the workspace has at a path; nil is nothing.
func (w *Workspace) lookup(rel string) (*Node, error) {
	in := searched{w: w, fd: -1}
	defer in.close()
	return in.lookup(rel)
}

// searched is the directory of the workspace in which a name was looked up last. Changes
// are in order, so the next one is often in the same.
type searched struct {
	w   *Workspace
	dir string
	fd  int  // -1: none
	ok  bool // the directory was looked for
}

func (s *searched) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
	s.fd, s.ok = -1, false
}

func (s *searched) lookup(rel string) (*Node, error) {
	dir, name := split(rel)
	if !s.ok || s.dir != dir {
		s.close()
		fd, err := openSearchable(s.w.root, dir)
		if err != nil && !isGone(err) {
			return nil, &os.PathError{Op: "open", Path: path.Join(s.w.Path, dir), Err: err}
		}
		s.dir, s.fd, s.ok = dir, fd, true
	}
	if s.fd < 0 {
		return nil, nil
	}
	n, _, err := lookup(s.fd, name)
	if err != nil {
		return nil, &os.PathError{Op: "stat", Path: path.Join(s.w.Path, rel), Err: err}
	}
	return n, nil
}

// view is the workspace as it would be with all changes.
type view struct {
	set    *Set
	w      *Workspace
	rules  *guard.Rules
	byPath map[string]*Change
	made   map[string]bool // paths that the changes make, in lower case

	// open is the directory of the only path that is asked about; nil: paths are looked
	// up by their names.
	open *guard.Opened
}

// state says what the host has.
func (v *view) state(st *Status) error {
	c, now := st.Change, st.Now
	if now != nil && now.Type == File && c.New != nil && c.New.Type == File && now.Size == c.New.Size &&
		now.Mode == c.New.Mode {
		if err := v.fill(c.Path, now); err != nil {
			return err
		}
	}
	if now.same(c.New) {
		st.State = Done
		return nil
	}
	gone := "" // a directory above
	if now == nil {
		above, n, err := v.way(c.Path)
		if err != nil {
			return err
		}
		if n != nil {
			st.conflict("the workspace has " + kind(n) + " at " + above + " by now")
			st.blocked = true
			return nil
		}
		gone = above
	}
	if st.decided(gone) {
		return nil
	}
	if c.Old != nil && !now.known(c.Old) &&
		!(c.Old.Type == Dir && now.Type == Dir && (c.Kind != Modified || now.Mode == c.Old.Mode)) {
		if now.Type == File && c.Old.Type == File && now.Size == c.Old.Size && c.Old.Sum != "" && now.Sum == "" {
			if err := v.fill(c.Path, now); err != nil {
				return err
			}
		}
		if !now.same(c.Old) {
			st.conflict("it was changed in the workspace")
			return nil
		}
	}
	st.State = Clean
	if c.Old != nil && c.Old.Type == Dir && c.Kind != Modified {
		return v.emptied(st)
	}
	return nil
}

func (st *Status) conflict(why string) { st.State, st.Why = Conflict, why }

// decided reports whether the types of what was, is and comes say it all. Gone is a
// directory above that is not there any more.
func (st *Status) decided(gone string) bool {
	c, now := st.Change, st.Now
	switch {
	case c.Stale != "":
		st.conflict(c.Stale)
	case now == nil && c.Old == nil:
		if gone == "" {
			return false
		}
		st.conflict("the workspace has no directory " + gone + " any more")
	case c.Old == nil && now.Type == Dir && c.New.Type == Dir:
		st.State = Clean // but for its mode, which was another's to choose
	case c.Old == nil:
		st.conflict("the workspace has " + kind(now) + " there by now")
	case now == nil && gone == "" && c.Kind == Replaced && (c.Old.Type == Dir) != (c.New.Type == Dir):
		st.State = Clean // an Apply that was interrupted had made room; there is nothing to lose
	case now == nil:
		st.conflict("it was removed from the workspace")
	case c.Old.Type != Dir && now.Type == Dir && c.New != nil && c.New.Type == Dir &&
		(now.Mode == 0o700 || now.Mode == c.New.Mode|0o700):
		st.State = Clean // it was made by an Apply that was interrupted, and has not got its mode
	default:
		return false
	}
	return true
}

// way looks at the directories above a path that has nothing: which is the highest
// that is not there, "" for none, or which is something else, and what. One that
// the changes make is there.
func (v *view) way(rel string) (above string, n *Node, err error) {
	for dir, _ := split(rel); dir != ""; dir, _ = split(dir) {
		if c := v.byPath[dir]; c != nil && c.New != nil && c.New.Type == Dir && c.Kind != Modified {
			return above, nil, nil
		}
		n, err := v.w.lookup(dir)
		if err != nil {
			return "", nil, err
		}
		if n != nil && n.Type == Dir {
			break
		}
		if above = dir; n != nil {
			return above, n, nil
		}
	}
	return above, nil, nil
}

// kind names what is at a path.
func kind(n *Node) string {
	switch n.Type {
	case File:
		return "a file"
	case Dir:
		return "a directory"
	case Symlink:
		return "a symbolic link"
	}
	return "a special file"
}

// fill completes what is known of a file of the host.
func (v *view) fill(rel string, n *Node) error {
	dir, name := split(rel)
	fd, err := openDir(v.w.root, dir)
	if err != nil {
		return nil // it is gone, and the next look will tell
	}
	defer unix.Close(fd)
	n.Sum, err = sumOf(fd, name)
	if err != nil && !isGone(err) && !errors.Is(err, fs.ErrPermission) && err != unix.ESTALE {
		return &os.PathError{Op: "read", Path: path.Join(v.w.Path, rel), Err: err}
	}
	return nil
}

// emptied is a conflict if a directory that goes holds what the sandbox did not
// know of.
func (v *view) emptied(st *Status) error {
	fd, err := openSearchable(v.w.root, st.Path)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path.Join(v.w.Path, st.Path), Err: err}
	}
	defer unix.Close(fd)
	list, err := names(fd)
	if err != nil {
		return &os.PathError{Op: "readdir", Path: path.Join(v.w.Path, st.Path), Err: err}
	}
	for _, name := range list {
		if c := v.byPath[st.Path+"/"+name]; c == nil || c.Kind != Deleted {
			st.State, st.Why = Conflict, "the workspace has "+quote.Inside(name)+" in it by now"
			return nil
		}
	}
	return nil
}

// holds returns the pattern that protects something in a directory, "" for none.
func (v *view) holds(rel string) (string, error) {
	fd, err := openDir(v.w.root, rel)
	if isGone(err) {
		return "", nil
	}
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path.Join(v.w.Path, rel), Err: err}
	}
	list, err := names(fd)
	unix.Close(fd)
	if err != nil {
		return "", &os.PathError{Op: "readdir", Path: path.Join(v.w.Path, rel), Err: err}
	}
	for _, name := range list {
		at := join(rel, name)
		if verdict, pattern := v.rules.Match(v.name(at), len(v.w.Path), v); verdict == guard.Protected {
			return pattern, nil
		}
		n, err := v.w.lookup(at)
		if err == nil && n != nil && n.Type == Dir {
			var pattern string
			if pattern, err = v.holds(at); pattern != "" {
				return pattern, nil
			}
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// obeyed returns the place of w.Obeyed that a change makes or changes, or to which it
// changes the way; "" for none.
func (w *Workspace) obeyed(c *Change) string {
	stays := c.New != nil && c.New.Type == Dir && (c.Old == nil || c.Old.Type == Dir)
	return ObeyedAt(w.Obeyed, path.Join(w.Path, c.Path), stays)
}

// Fixed names of what makes a directory a repository, in lower case.
var repositoryNames = []string{"head", "objects", "refs", "commondir", "config", "config.worktree", "hooks"}

// opened is the view of what lies in an open directory of that path.
func (v *view) opened(fd int, dir string) *view {
	w := *v
	w.open = &guard.Opened{FD: fd, Name: v.name(dir)}
	return &w
}

// protected returns the pattern that protects a change's path, "" for none.
func (v *view) protected(c *Change) string {
	verdict, pattern := v.rules.Match(v.name(c.Path), len(v.w.Path), v)
	link := c.New != nil && c.New.Type == Symlink
	dir, name := split(c.Path)
	switch above := v.name(dir); {
	case verdict == guard.Protected && (pattern == guard.IndexPattern && v.index(c) || pattern == guard.ConfigPattern &&
		name == "config" && v.config(c)):
		return ""
	case verdict == guard.Protected:
		return pattern
	case verdict == guard.Leads && link:
		return pattern // where it leads could be what is protected by its name
	case c.New == nil:
		return ""
	case link && v.rules.Within(above, len(v.w.Path), v) != nil:
		return ".git/"
	case v.open != nil:
		return "" // it was asked for all changes together
	default:
		return v.rules.Completes(above, []byte(name), v)
	}
}

// directory opens the directory of a path, which may be open already.
func (v *view) directory(dir string) (int, error) {
	if v.open != nil {
		return openDir(v.open.FD, "")
	}
	return openDir(v.w.root, dir)
}

// index reports whether a change of an index removes it or leaves a good one.
func (v *view) index(c *Change) bool {
	if c.New == nil || c.New.Type != File {
		return c.New == nil
	}
	dir, _ := split(c.Path)
	repository, err := v.directory(dir)
	if err != nil {
		return false
	}
	defer unix.Close(repository)
	f, err := v.w.content(v.set, c.New)
	if err != nil {
		return false
	}
	return guard.GoodIndex(f, c.New.Size, repository)
}

// config reports whether a change of a repository's configuration is one that a command may
// make in place.
func (v *view) config(c *Change) bool {
	if c.New == nil || c.New.Type != File || c.New.Size > 1<<20 || c.Old == nil || c.Old.Mode != c.New.Mode {
		return false
	}
	dir, name := split(c.Path)
	repository, err := v.directory(dir)
	if err != nil {
		return false
	}
	defer unix.Close(repository)
	old, err := openBelow(repository, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	before := os.NewFile(uintptr(old), c.Path)
	defer before.Close()
	f, err := v.w.content(v.set, c.New)
	if err != nil {
		return false
	}
	after := make([]byte, c.New.Size)
	if _, err := f.ReadAt(after, 0); err != nil && len(after) > 0 {
		return false
	}
	now, err := io.ReadAll(io.LimitReader(before, 1<<20))
	return err == nil && guard.GoodConfig(now, after)
}

// name is the path of what lies in the workspace: the workspace's own name counts, as it
// can be a repository, or part of one.
func (v *view) name(rel string) []byte { return []byte(path.Join(v.w.Path, rel)) }

// rel is what name was made of; false for what does not lie in the workspace.
func (v *view) rel(name []byte) (string, bool) {
	rel := strings.TrimPrefix(string(name), v.w.Path)
	return strings.TrimPrefix(rel, "/"), policy.Below(string(name), v.w.Path)
}

var _ guard.Dirs = (*view)(nil)

// Repository reports whether Git would take a directory for a repository, before
// the changes or after.
func (v *view) Repository(dir []byte) bool {
	rel, ok := v.rel(dir)
	if !ok {
		return false
	}
	return repository(func(name string) bool { return v.before(rel, name) }) ||
		repository(func(name string) bool { return v.after(rel, name) }) ||
		repository(func(name string) bool { return v.folded(rel, name) })
}

// Completes reports whether the changes make a repository, or what can stand for
// one, of a directory that is none.
func (v *view) Completes(dir []byte, name string) bool {
	rel, _ := v.rel(dir)
	if !slices.Contains(repositoryNames, name) || repository(func(name string) bool { return v.before(rel, name) }) {
		return false
	}
	after := func(name string) bool { return v.after(rel, name) }
	return repository(after) || repository(func(name string) bool { return v.folded(rel, name) }) ||
		after("HEAD") && (after("config") || after("config.worktree") || after("hooks") || after("commondir"))
}

// repository is is_git_directory of Git's setup.c.
func repository(has func(string) bool) bool {
	return has("HEAD") && (has("objects") && has("refs") || has("commondir"))
}

func (v *view) before(dir, name string) bool {
	if v.open != nil {
		return v.open.Has(v.name(dir), name)
	}
	n, err := v.w.lookup(join(dir, name))
	return err != nil || n != nil
}

// after reports whether there can be something after the changes: one that takes it
// away may be left out.
func (v *view) after(dir, name string) bool {
	c := v.byPath[join(dir, name)]
	return c != nil && c.New != nil || v.before(dir, name)
}

// folded is after on a file system that ignores letter case.
func (v *view) folded(dir, name string) bool {
	return v.made[strings.ToLower(join(dir, name))] || v.after(dir, name)
}
