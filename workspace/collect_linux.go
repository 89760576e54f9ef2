package workspace

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sparse"
)

// Bounds on what of a layer is looked at. A path that is longer than the system
// lets programs say cannot be taken over; a file can claim a size that nothing
// is behind.
const (
	maxPath  = 4000 // bytes, below the workspace
	minTotal = 64 << 20

	// Paths and targets of a set together, in bytes, of a storage with as many or
	// less: a path may take thousands of bytes, and a set is held in memory.
	minNames   = 16 << 20
	namesShare = 8 // of what the layer could hold, one in
)

// Collect compares a layer with the workspace that it was taken of, and keeps the
// difference as a set in the store; it is nil, and nothing is kept, if there is
// none. Of info, ID, Profile, Command, Session and Protect are the caller's. Limit
// is how many bytes the layer could hold. With replace an earlier set of the same
// sandbox gives way when the new one is complete.
func Collect(st *Store, info Info, b *Base, layer *os.File, limit uint64, replace bool) (*Set, error) {
	w, err := st.create(info.ID, replace)
	if err != nil {
		return nil, err
	}
	info.Workspace, info.Dev, info.Ino, info.Taken, info.Created = b.Path, b.Dev, b.Ino, b.Taken, time.Now()
	c := &collector{w: w, base: b, layer: int(layer.Fd()), set: &Set{Info: info}, taken: b.Taken.UnixNano(),
		left: int64(max(2*limit, minTotal)), sums: int64(max(2*limit, minTotal)),
		names: int64(max(limit/namesShare, minNames))}
	defer c.restore()
	if err := c.dir(sub{lower: true}); err != nil {
		w.abort()
		return nil, fmt.Errorf("the changes were not kept: %w", err)
	}
	if c.over > 0 {
		c.skip(c.first, "with it the paths of all changes are too long together; it is one of "+strconv.Itoa(c.over)+
			" that are left out for that, with what is below them")
	}
	slices.SortFunc(c.set.Changes, compare)
	c.origins()
	for _, ch := range c.set.Changes {
		switch ch.Kind {
		case Added:
			c.set.Added++
		case Deleted:
			c.set.Deleted++
		default:
			c.set.Modified++
		}
	}
	c.set.Skipped = len(c.set.Skips)
	if len(c.set.Changes)+len(c.set.Skips) == 0 {
		return nil, w.none()
	}
	// After a crash there is a set with all that it has, or none.
	if err := errors.Join(w.small.close(), w.sync()); err != nil {
		w.abort()
		return nil, fmt.Errorf("the changes were not kept: %w", err)
	}
	if err := w.commit(c.set); err != nil {
		return nil, fmt.Errorf("the changes were not kept: %w", err)
	}
	return c.set, nil
}

// sync has the content of the set's files written to the disk, with one call for all of
// them.
func (w *writer) sync() error {
	d, err := w.dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(d.Fd())))
}

// Full reports whether the file system that a layer is in had no room left.
func Full(layer *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(layer.Fd()), &st); err != nil {
		return false
	}
	return st.Bavail == 0 || st.Files > 0 && st.Ffree == 0
}

// compare orders changes so that a directory comes before what it holds, but for
// one that gives way to something else: that comes when it is empty.
func compare(a, b *Change) int {
	if inside(b, a) {
		return 1
	}
	if inside(a, b) {
		return -1
	}
	// What is in a directory follows it at once: "d", "d/x", "d-x".
	p, q := a.Path, b.Path
	for i := range min(len(p), len(q)) {
		switch {
		case p[i] == q[i]:
		case p[i] == '/':
			return -1
		case q[i] == '/':
			return 1
		default:
			return cmp.Compare(p[i], q[i])
		}
	}
	return cmp.Compare(len(p), len(q))
}

// inside reports whether a change is to what another one replaces.
func inside(c, by *Change) bool {
	return by.Kind == Replaced && by.Old.Type == Dir && strings.HasPrefix(c.Path, by.Path+"/")
}

type collector struct {
	w     *writer
	base  *Base
	layer int
	set   *Set
	taken int64
	left  int64    // bytes that may still be copied
	sums  int64    // bytes of the workspace's files that may still be read, but for those of which copies are
	names int64    // bytes that paths and targets may still have
	over  int      // paths for which that was not enough
	first string   // of those
	modes []func() // that give back what was made readable

	// strays are files that the kernel copied from the workspace, which has
	// none of the name: renamed in the sandbox, or removed from the workspace.
	strays []*Change
}

func (c *collector) restore() {
	for _, f := range slices.Backward(c.modes) {
		f()
	}
}

func (c *collector) skip(rel, why string) {
	c.set.Skips = append(c.set.Skips, &Skip{Path: rel, Why: why})
}

// dir collects a directory of the layer. Lower says that the workspace has one
// there, and opaque that nothing of that shows through. Directories are opened by
// their path from the top, one at a time: neither depth nor width takes
// descriptors.
func (c *collector) dir(at sub) error {
	rel, opaque := at.rel, at.opaque
	up, err := c.openUpper(rel)
	if isGone(err) && rel != "" {
		return nil // a sandbox that still runs goes on
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: rel, Err: err}
	}
	list, err := names(up)
	if isGone(err) && rel != "" {
		unix.Close(up)
		return nil
	}
	if err != nil {
		unix.Close(up)
		return &os.PathError{Op: "readdir", Path: rel, Err: err}
	}
	low := -1
	if at.lower {
		if low, err = openSearchable(c.base.root, rel); err != nil {
			low = -1
			if !isGone(err) {
				c.skip(rel, "the workspace's directory cannot be read, so what was removed in it is not known: "+err.Error())
				opaque = false
				at.stale = cmp.Or(at.stale, "the workspace's directory could not be read when the sandbox ended")
			}
		}
	}
	var subs []sub
	for _, name := range list {
		path := join(rel, name)
		if len(path) > maxPath {
			c.skip(path[:64]+"…", "its path is too long")
			continue
		}
		next, err := c.entry(up, low, path, name, opaque, at.stale)
		if err != nil {
			unix.Close(up)
			if low >= 0 {
				unix.Close(low)
			}
			return err
		}
		if next != nil {
			subs = append(subs, *next)
		}
	}
	unix.Close(up)
	var gone []string
	if low >= 0 {
		if opaque {
			all, err := names(low)
			if err != nil {
				unix.Close(low)
				return &os.PathError{Op: "readdir", Path: rel, Err: err}
			}
			for _, name := range all {
				if _, ok := slices.BinarySearch(list, name); !ok {
					gone = append(gone, name)
				}
			}
		}
		unix.Close(low)
	}
	for _, name := range gone {
		if err := c.deleted(join(rel, name), at.stale); err != nil {
			return err
		}
	}
	for _, s := range subs {
		if err := c.dir(s); err != nil {
			return err
		}
	}
	return nil
}

// sub is a directory of the layer that is still to be collected; see dir.
type sub struct {
	rel           string
	lower, opaque bool
	stale         string // of all below, if the workspace's is another by now
}

// openUpper opens a directory of the layer. One that its owner took the right to
// read from gets it back for as long as this takes.
func (c *collector) openUpper(rel string) (int, error) {
	fd, err := openSearchable(c.layer, rel)
	if err != unix.EACCES {
		return fd, err
	}
	if rel == "" { // below which nothing can be looked up
		var st unix.Stat_t
		if err := unix.Fstat(c.layer, &st); err != nil {
			return -1, err
		}
		if err := unix.Chmod(procPath(c.layer), st.Mode&0o7777|0o700); err != nil {
			return -1, err
		}
		c.modes = append(c.modes, func() { unix.Chmod(procPath(c.layer), st.Mode&0o7777) })
		return openDir(c.layer, rel)
	}
	mode, err := addMode(c.layer, rel, 0o700)
	if err != nil {
		return -1, err
	}
	c.modes = append(c.modes, func() { setMode(c.layer, rel, mode) })
	return openDir(c.layer, rel)
}

// addMode adds bits to the mode of something in the layer, and returns what it was.
func addMode(dir int, rel string, bits uint32) (was uint32, err error) {
	fd, err := openBelow(dir, rel, unix.O_PATH)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	was = st.Mode & 0o7777
	// By a descriptor that is known to be of no link.
	return was, unix.Chmod(procPath(fd), was|bits)
}

func setMode(dir int, rel string, mode uint32) {
	if fd, err := openBelow(dir, rel, unix.O_PATH); err == nil {
		unix.Chmod(procPath(fd), mode)
		unix.Close(fd)
	}
}

// entry collects one name of the layer, and returns what is to be gone into. Stale
// is why the directory that it is in is not the one that the overlay was taken of.
func (c *collector) entry(up, low int, rel, name string, opaque bool, stale string) (*sub, error) {
	n, st, err := lookup(up, name)
	if err != nil || n == nil {
		return nil, err
	}
	if size := int64(len(rel) + len(n.Target)); size <= c.names {
		c.names -= size
	} else {
		if c.over++; c.over == 1 {
			c.first = rel
		}
		return nil, nil
	}
	var old *Node
	if low >= 0 {
		var was *unix.Stat_t
		if old, was, err = lookup(low, name); err != nil {
			return nil, &os.PathError{Op: "stat", Path: rel, Err: err}
		}
		if n.Type != File {
			c.linked(low, name, old, was)
		}
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0:
		if old == nil {
			return nil, nil // and is gone from the workspace too
		}
		return nil, c.deleted(rel, stale)
	case n.Type == "":
		c.skip(rel, "it is a "+special(st.Mode)+", not a file, directory or symbolic link")
		return nil, nil
	case old != nil && old.Type == "":
		c.skip(rel, "the workspace has a special file there")
		return nil, nil
	}
	switch {
	case stale != "" || old == nil:
	case old.Type == Dir:
		// One that goes on to be a directory may well have got new entries.
		if n.Type != Dir || old.ModTime < c.taken {
			stale = c.moved(low, old)
		}
	case old.ChangeTime >= c.taken:
		stale = "it was changed in the workspace, too, while the sandbox ran"
	}
	add := func(k Kind) {
		n.Dev, n.Ino, n.ChangeTime = 0, 0, 0
		ch := &Change{Path: rel, Kind: k, Old: old, New: n, Stale: stale}
		c.set.Changes = append(c.set.Changes, ch)
		if old == nil && !opaque && c.touched(low) {
			if c.copied(up, name) {
				c.strays = append(c.strays, ch)
			}
		}
	}
	switch {
	case n.Type == Dir:
		switch {
		case old == nil:
			add(Added)
			return &sub{rel: rel}, nil
		case old.Type != Dir:
			add(Replaced)
			return &sub{rel: rel}, nil
		case old.Mode != n.Mode:
			add(Modified)
		}
		return &sub{rel, true, opaque || c.opaque(up, name), stale}, nil
	case n.Type == File:
		if ok, err := c.content(up, name, rel, n); !ok || err != nil {
			return nil, err
		}
	}
	switch {
	case old == nil:
		add(Added)
	case old.Type != n.Type:
		if old.Type == Dir {
			if err := c.deletedIn(rel, stale); err != nil {
				return nil, err
			}
		}
		add(Replaced)
	default:
		if old.Type == File {
			// A file that cannot be read differs, for all that is known.
			c.sum(low, name, old, old.Size == n.Size)
		}
		if !old.same(n) {
			add(Modified)
		} else if n.Blob != "" {
			c.w.drop(n.Blob)
		}
	}
	return nil, nil
}

func special(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "FIFO"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// opaque reports whether a directory of the layer hides the workspace's.
func (c *collector) opaque(up int, name string) bool {
	fd, err := c.openUpperIn(up, name)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var v [4]byte
	k, err := unix.Fgetxattr(fd, "user.overlay.opaque", v[:])
	return err == nil && k == 1 && v[0] == 'y'
}

func (c *collector) openUpperIn(up int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := openBelow(up, name, flags)
	if err != unix.EACCES {
		return fd, err
	}
	was, err := addMode(up, name, 0o600)
	if err != nil {
		return -1, err
	}
	defer setMode(up, name, was)
	return openBelow(up, name, flags)
}

// touched reports whether something was made in or removed from a directory of the
// workspace while the sandbox ran.
func (c *collector) touched(low int) bool {
	var st unix.Stat_t
	return low >= 0 && unix.Fstat(low, &st) == nil && st.Ctim.Nano() >= c.taken
}

// moved says why a directory of the workspace could have come to its name while the
// sandbox ran, "" if it was there: what is in it keeps its own times of change. One
// that only had its entries changed can look the same.
func (c *collector) moved(parent int, n *Node) string {
	if n.Type != Dir || n.ChangeTime < c.taken || !c.touched(parent) {
		return ""
	}
	return "a directory there was moved or changed in the workspace while the sandbox ran"
}

// copied reports whether the kernel made something of the layer of what the
// workspace had. Its attribute for that is empty here: what names the origin needs
// privilege.
func (c *collector) copied(up int, name string) bool {
	fd, err := c.openUpperIn(up, name)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.Fgetxattr(fd, "user.overlay.origin", nil)
	return err == nil
}

// origins decides what strays are. A file that is as large and as old as one that
// the sandbox took from its name was renamed. Directories of the workspace cannot
// be (EXDEV; see "renaming directories" in overlayfs.rst).
func (c *collector) origins() {
	if len(c.strays) == 0 {
		return
	}
	type looks struct{ size, mtime int64 }
	taken := map[looks]bool{}
	for _, ch := range c.set.Changes {
		if ch.Old != nil && ch.Old.Type == File {
			taken[looks{ch.Old.Size, ch.Old.ModTime}] = true
		}
	}
	for _, ch := range c.strays {
		if ch.New.Type != File || !taken[looks{ch.New.Size, ch.New.ModTime}] {
			ch.Stale = "it was removed from the workspace while the sandbox ran"
		}
	}
}

// content copies a file of the layer into the set. It is false for one that is
// left out.
func (c *collector) content(up int, name, rel string, n *Node) (bool, error) {
	if n.Size > c.left {
		c.skip(rel, "it claims to hold more than the layer could")
		return false, nil
	}
	fd, err := c.openUpperIn(up, name)
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if isGone(err) || err == unix.ENXIO || err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		if fd >= 0 {
			unix.Close(fd)
		}
		return false, nil // not what it was, in a sandbox that still runs
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: rel, Err: err}
	}
	if n.Size <= packed {
		defer unix.Close(fd)
		if err = c.w.pack(fd, n); err != nil {
			return false, &os.PathError{Op: "read", Path: rel, Err: err}
		}
		c.left -= n.Size
		return true, nil
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	blob, to, err := c.w.blob()
	if err != nil {
		return false, err
	}
	defer to.Close()
	h := sha256.New()
	// No more than was said: a sandbox that still runs can write on.
	size, err := sparse.Copy(to, io.TeeReader(io.LimitReader(f, n.Size), h))
	if err != nil {
		return false, err
	}
	n.Size, n.Sum, n.Blob = size, hex.EncodeToString(h.Sum(nil)), blob
	c.left -= size
	return true, nil
}

// deleted notes that a path of the workspace is not there any more, nor what is
// below it. Stale is why that may not be what the sandbox removed.
func (c *collector) deleted(rel, stale string) error {
	dir, name := split(rel)
	fd, err := openDir(c.base.root, dir)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	old, st, err := lookup(fd, name)
	if err == nil && old != nil && stale == "" {
		stale = c.moved(fd, old)
	}
	c.linked(fd, name, old, st)
	unix.Close(fd)
	if err != nil {
		return &os.PathError{Op: "stat", Path: rel, Err: err}
	}
	if old == nil {
		return nil
	}
	if old.Type == "" {
		c.skip(rel, "the workspace has a special file there")
		return nil
	}
	ch := &Change{Path: rel, Kind: Deleted, Old: old, Stale: stale}
	if stale == "" && old.Type != Dir && old.ChangeTime >= c.taken {
		ch.Stale = "it was changed in the workspace while the sandbox ran"
	}
	c.set.Changes = append(c.set.Changes, ch)
	if old.Type == Dir {
		return c.deletedIn(rel, stale)
	}
	return nil
}

// linked notes what a file with several names holds: an Apply that was interrupted may
// have removed another of them, which changes the time of change.
func (c *collector) linked(dir int, name string, old *Node, st *unix.Stat_t) {
	if old != nil && old.Type == File && st.Nlink > 1 {
		c.sum(dir, name, old, false)
	}
}

// sum notes what a file of the workspace holds, if it must or while there is time: it can
// claim any size, and an earlier command can have made it.
func (c *collector) sum(dir int, name string, old *Node, must bool) {
	if !must {
		if old.Size > c.sums {
			return
		}
		c.sums -= old.Size
	}
	old.Sum, _ = sumOf(dir, name)
}

// deletedIn is deleted for all that a directory of the workspace holds. If it cannot be
// read, Check makes a conflict of that.
func (c *collector) deletedIn(rel, stale string) error {
	fd, err := openSearchable(c.base.root, rel)
	if isGone(err) || err == unix.EACCES {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: rel, Err: err}
	}
	list, err := names(fd)
	unix.Close(fd)
	if err != nil {
		return &os.PathError{Op: "readdir", Path: rel, Err: err}
	}
	for _, name := range list {
		if path := join(rel, name); len(path) <= maxPath {
			if err := c.deleted(path, stale); err != nil {
				return err
			}
		}
	}
	return nil
}
