// Package mounts builds the file system that a sandboxed command sees.
//
// A [Tree] says what is where: binds of host paths, private storage, proc, a
// minimal /dev, masks. [Tree.Ops] turns it into an ordered list of operations,
// a pure function of values, which [Append] (Linux) lowers to system calls for
// the second stage. The file system is built on a new tmpfs that becomes the
// root by pivot_root(2); nothing of the host's tree remains reachable.
//
// How the pieces hold:
//
//   - Every source is opened by openat2(2) with RESOLVE_NO_SYMLINKS: it was
//     resolved once, when the policy was, and whoever swaps a part of it for a
//     symlink afterwards gets ELOOP.
//   - A bind is a detached clone (open_tree(2)) that is made read-only, nosuid,
//     nodev and private, recursively and atomically (mount_setattr(2), Linux
//     5.12), before it is attached: there is no moment at which it is writable.
//   - Targets are resolved below the new root's descriptor, again without
//     symlinks, so that what a workspace contains cannot redirect a mount.
//   - All private storage that has no size of its own is one tmpfs, the scratch,
//     of which the root itself is a read-only part: one budget, and one
//     superblock to create. A private directory is never made in place: it is
//     made in the scratch and mounted, so that it is private also where the
//     target lies in a bind of the host.
//   - A copy-on-write directory is an overlayfs whose upper layer lies in the
//     scratch, under the same budget. Its layers are reached through the store, so
//     that nobody else can change what their names lead to.
//
// The package knows nothing of policies, profiles or namespaces; it needs to run
// in a mount namespace whose user namespace it is privileged in.
package mounts

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Kind is what an entry of a tree is.
type Kind uint8

// The kinds of entries.
const (
	Bind     Kind = iota + 1 // a host path
	Scratch                  // a directory of the scratch storage
	Tmpfs                    // a tmpfs with a size of its own
	Proc                     // procfs of the pid namespace
	Devpts                   // a devpts instance of its own
	Mqueue                   // POSIX message queues of the ipc namespace
	Device                   // a device node of the host
	Symlink                  // a symbolic link
	File                     // a file with given content
	Mask                     // nothing: whatever is there cannot be read or listed
	Dir                      // an empty directory of the read-only root
	Readonly                 // a path of an earlier entry becomes read-only
	Overlay                  // a host directory, copy-on-write: changes go to the scratch storage
)

var kindNames = [...]string{"", "bind", "scratch", "tmpfs", "proc", "devpts", "mqueue", "device", "symlink", "file",
	"mask", "dir", "readonly", "overlay"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "invalid"
}

// Attr are the properties of a mount; see mount_setattr(2). Every mount is
// nosuid and private whatever its Attr.
type Attr uint8

// Mount properties.
const (
	ReadOnly Attr = 1 << iota
	NoExec
	NoDev
)

func (a Attr) String() string {
	var s []string
	if a&ReadOnly != 0 {
		s = append(s, "ro")
	}
	if a&NoExec != 0 {
		s = append(s, "noexec")
	}
	if a&NoDev != 0 {
		s = append(s, "nodev")
	}
	if s == nil {
		return "-"
	}
	return strings.Join(s, ",")
}

// An Entry puts something at a path.
type Entry struct {
	Kind   Kind
	Target string // absolute and clean
	Source string // Bind, Overlay, Device: host path; Symlink: its content
	Origin string // what asked for it, for messages; may be empty
	Attr   Attr
	IsDir  bool // Bind, Mask: what the source (or what is masked) is

	// Discard lays what is changed below a Bind of a directory, which is
	// read-only, over it: an overlay whose upper layer nobody gets. If the kernel
	// refuses, or the host's tree was left already, the Bind stays alone.
	Discard bool

	// Optional entries that change what is there (Mask, Readonly) are passed
	// over if nothing is.
	Optional bool

	Mode   uint32 // Scratch, Tmpfs, Dir, File, Overlay: permission bits; 0 is 0755, for File 0644
	Size   uint64 // Tmpfs: bytes
	Inodes uint64 // Tmpfs: 0 means in proportion to Size
	Data   string // File: content
}

// Defaults for a Tree that names no scratch limits.
const (
	defaultScratchBytes  = 64 << 20
	defaultScratchInodes = 16384
)

// A Tree is a whole file system. The zero value is an empty read-only root.
type Tree struct {
	// ScratchBytes and ScratchInodes bound the private storage; 0 means 64 MiB
	// and 16,384 inodes.
	ScratchBytes, ScratchInodes uint64

	// Label is the SELinux context of all that is made here (the option
	// context= of mount(8)); "" leaves it to the host's policy.
	Label string

	// Entries are applied in order: later ones may lie in earlier ones. An
	// entry whose parent is part of the new root gets its parents made; below
	// a bind the target must exist. No more than one is an Overlay.
	Entries []Entry
}

// An Op is one operation on the new root.
type Op struct {
	Entry
	// InBind says that the target lies in a bind or another mount, so that it
	// is there already and must be resolved with care.
	InBind bool
}

func (o Op) String() string {
	s := fmt.Sprintf("%s %s", o.Kind, o.Target)
	if o.Source != "" {
		s += " from " + o.Source
	}
	if o.Attr != 0 {
		s += " " + o.Attr.String()
	}
	if o.Size != 0 {
		s += fmt.Sprintf(" size=%d", o.Size)
	}
	if o.Mode != 0 {
		s += fmt.Sprintf(" mode=%#o", o.Mode)
	}
	if o.InBind {
		s += " (in place)"
	}
	return s
}

// TargetError says that an entry of a tree cannot be made.
type TargetError struct {
	Target string
	Why    string
}

func (e *TargetError) Error() string { return "mount target " + e.Target + ": " + e.Why }

// Ops returns the operations that build the tree: entries in their order with
// the directories in between. It reports a *TargetError for an entry that would
// replace the root, repeat a target without masking it, or lie below a file.
func (t *Tree) Ops() ([]Op, error) {
	b := newBuilder(len(t.Entries))
	for i := range t.Entries {
		if err := b.add(&t.Entries[i]); err != nil {
			return nil, err
		}
	}
	return b.ops, nil
}

type builder struct {
	ops   []Op
	kinds map[string]Kind // what is at each path that was made

	overlay bool // there is one
}

func newBuilder(entries int) builder {
	return builder{ops: make([]Op, 0, entries*2), kinds: make(map[string]Kind, entries*2)}
}

// Rest returns the entries that a tree has beside those of another one, and
// whether the other can be completed to the tree: applied after the other's, the
// rest leads to the same file system. That is so if the other has nothing of its
// own, and nothing of the rest is at, above or below what in the tree comes after
// it and in the other is there already. Origins do not count.
func (t *Tree) Rest(other *Tree) (rest []Entry, ok bool) {
	if t.ScratchBytes != other.ScratchBytes || t.ScratchInodes != other.ScratchInodes || t.Label != other.Label {
		return nil, false
	}
	n := 0
	for i := range t.Entries {
		e := &t.Entries[i]
		if n == len(other.Entries) || !e.is(&other.Entries[n]) {
			rest = append(rest, *e)
			continue
		}
		n++
		for j := range rest {
			if within(rest[j].Target, e.Target) || within(e.Target, rest[j].Target) {
				return nil, false
			}
		}
	}
	return rest, n == len(other.Entries)
}

// Size is what bounds the storage that an operation makes, bytes, where each is
// bounded by itself.
func (t *Tree) Size(o *Op) uint64 {
	size := o.Size
	if o.Kind == Scratch {
		size = t.ScratchBytes
	}
	return cmp.Or(size, defaultScratchBytes)
}

func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

func (b *builder) add(e *Entry) error {
	switch {
	case e.Target == "" || e.Target[0] != '/' || path.Clean(e.Target) != e.Target:
		return &TargetError{e.Target, "not an absolute, clean path"}
	case e.Target == "/":
		return &TargetError{e.Target, "the root is the sandbox's own"}
	case strings.IndexByte(e.Target, 0) >= 0 || strings.IndexByte(e.Source, 0) >= 0:
		return &TargetError{e.Target, "contains a NUL byte"}
	}
	change := e.Kind == Mask || e.Kind == Readonly
	mount, err := b.parents(e.Target, !change)
	if err != nil {
		if change && e.Optional {
			return nil // hidden already
		}
		return err
	}
	op := Op{Entry: *e, InBind: mount}
	old := b.kinds[e.Target]
	switch e.Kind {
	case Symlink, File, Dir:
		if e.Kind == File && (mount || old == Bind) {
			// Mounted over what is there.
			op.InBind = true
			break
		}
		if mount {
			return &TargetError{e.Target, "lies in a mount, where nothing is created"}
		}
		if old == Dir && e.Kind == Dir {
			return nil
		}
		if old != 0 {
			return &TargetError{e.Target, "is there already, as " + old.String()}
		}
	case Mask, Readonly:
		if !mount && old == 0 {
			if e.Optional {
				return nil // nothing of the host is visible there
			}
			return &TargetError{e.Target, "is not there, so there is nothing to change"}
		}
		op.InBind = true
	case Overlay:
		if b.overlay {
			return &TargetError{e.Target, "is a second overlay, and there can be one"}
		}
		b.overlay = true
		fallthrough
	default:
		if old == Symlink {
			// Mounting on it would be a mount elsewhere.
			return &TargetError{e.Target, "is a symbolic link"}
		}
		if old != 0 {
			op.InBind = true
		}
	}
	b.ops = append(b.ops, op)
	if e.Kind != Readonly {
		b.kinds[e.Target] = e.Kind
	}
	return nil
}

// is reports whether both put the same there.
func (e *Entry) is(other *Entry) bool {
	same := *e
	same.Origin = other.Origin
	return same == *other
}

// isDir reports whether the entry is mounted on a directory.
func (e *Entry) isDir() bool {
	switch e.Kind {
	case Bind, Mask:
		return e.IsDir
	case Device, File, Symlink:
		return false
	}
	return true
}

// parents looks at the directories above target and reports whether target lies
// in a mount. With create it makes those that are part of the root or of private
// storage.
func (b *builder) parents(target string, create bool) (mount bool, err error) {
	for i := 1; i < len(target); i++ {
		if target[i] != '/' {
			continue
		}
		dir := target[:i]
		switch k := b.kinds[dir]; k {
		case 0:
			if mount || !create {
				continue // a directory of the mount's own
			}
			b.ops = append(b.ops, Op{Entry: Entry{Kind: Dir, Target: dir}})
			b.kinds[dir] = Dir
		case Dir:
			// After a mount nothing is made, so a Dir is always the root's.
		case Scratch, Tmpfs:
			// Private and empty: directories are made in it as in the root.
			mount = false
		case Symlink, File, Device:
			return false, &TargetError{target, "lies below " + dir + ", a " + k.String()}
		case Mask:
			return false, &TargetError{target, "lies below " + dir + ", which is hidden"}
		default:
			mount = true
		}
	}
	return mount, nil
}

// SortEntries orders entries so that what lies deeper comes later; entries for
// one path keep their order.
func SortEntries(list []Entry) {
	slices.SortStableFunc(list, func(a, b Entry) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
}
