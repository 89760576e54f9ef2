package mounts

import (
	"cmp"
	"errors"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// resolveInside is how targets in mounts are resolved: below the new root, and
// through no symlink, whatever the mount contains.
const resolveInside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// Append appends the system calls that build t, enter it and leave the host's
// tree behind. The working directory is / afterwards. The result holds the
// descriptor of the new root.
//
// Preconditions of the program: it runs in a mount namespace of its own, with
// CAP_SYS_ADMIN in the user namespace that owns it; Proc needs a pid namespace
// owned by that user namespace and a procfs in the old tree that is fully
// visible.
func Append(p *sys.Program, t *Tree) (root sys.Reg, err error) {
	b, err := Begin(p, t)
	if err != nil {
		return 0, err
	}
	return b.Finish(p, nil)
}

// A Building is a tree of which the rest is not known yet. The host's tree is
// still within reach of who builds it: nothing that is not trusted may run before
// Finish.
type Building struct {
	builder  builder
	lowering *lowering
}

// Begin appends the system calls that build t, as Append does, but for those
// that enter it.
func Begin(p *sys.Program, t *Tree) (*Building, error) {
	b := &Building{builder: newBuilder(len(t.Entries))}
	b.lowering = &lowering{p: p, store: p.NewReg(), root: p.NewReg(), src: p.NewReg(), tree: p.NewReg(), dst: p.NewReg(),
		label: t.Label}
	b.lowering.prepare(t)
	return b, b.append(t.Entries)
}

// Enter appends the system calls that make what is built so far the root. The host's
// tree stays until Finish: it lies on top of the root, where no path leads, and what
// Finish needs of it is found by a descriptor. It is called before Finish, or not at
// all: then Finish does the same, and pivot_root(2), which looks at every thread of
// the host, is part of that.
//
// No Overlay may come after it.
func (b *Building) Enter(p *sys.Program) {
	l := b.lowering
	l.p, l.host = p, p.NewReg()
	p.Call(l.host, sys.Step{Op: "openat", Object: "old root"}, unix.SYS_OPENAT, sys.Imm(unix.AT_FDCWD), p.Str("/"),
		sys.Imm(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC), sys.Imm(0))
	l.pivot()
}

// Root holds the descriptor of the new root, as the result of Finish does.
func (b *Building) Root() sys.Reg { return b.lowering.root }

// Hold are the registers with descriptors that Finish needs.
func (b *Building) Hold() []sys.Reg {
	list := []sys.Reg{b.lowering.root, b.lowering.store}
	if b.lowering.host != 0 {
		list = append(list, b.lowering.host)
	}
	return list
}

// Finish appends the system calls for more entries, which are applied after those
// of Begin, and those that enter the tree and leave the host's behind. The program
// may be another than that of Begin, if it is run after that on the same
// registers. Finish is called once.
func (b *Building) Finish(p *sys.Program, more []Entry) (root sys.Reg, err error) {
	b.lowering.p = p
	if err := b.append(more); err != nil {
		return 0, err
	}
	b.lowering.enter()
	return b.lowering.root, nil
}

// Layer is the register with the directory that takes what is changed in the
// tree's Overlay, open for reading; 0 if there is none. It is known once the entry
// was appended.
func (b *Building) Layer() sys.Reg { return b.lowering.layer }

func (b *Building) append(entries []Entry) error {
	done := len(b.builder.ops)
	for i := range entries {
		if entries[i].Kind == Overlay && b.lowering.host != 0 {
			// Its layers are named by paths in the old tree.
			return errEntered
		}
		if err := b.builder.add(&entries[i]); err != nil {
			return err
		}
	}
	for i := range b.builder.ops[done:] {
		b.lowering.op(&b.builder.ops[done+i])
	}
	return nil
}

var errEntered = errors.New("mounts: an overlay is mounted before its tree is entered")

type lowering struct {
	p              *sys.Program
	store, root    sys.Reg // the scratch tmpfs, and the directory of it that is the new root
	src, tree, dst sys.Reg
	umask          sys.Reg // the caller's
	layer          sys.Reg // what is changed in the overlay
	host           sys.Reg // the old root, once the new one was entered; 0 before

	label             string // SELinux context
	stored            int    // how many things were made in the store
	maskDir, maskFile bool   // whether the mask sources were made
}

// Names in the store.
const (
	rootName     = "root"
	maskDirName  = "hidden.d"
	maskFileName = "hidden.f"
)

func (b *lowering) empty() sys.Value { return b.p.Str("") }

// attr is struct mount_attr of mount_setattr(2).
func (b *lowering) attr(a Attr) sys.Value {
	m := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if a&ReadOnly != 0 {
		m.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if a&NoExec != 0 {
		m.Attr_set |= unix.MOUNT_ATTR_NOEXEC
	}
	if a&NoDev != 0 {
		m.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	return sys.Ptr(b.p, m)
}

// fsmountFlags are the same properties for fsmount(2).
func fsmountFlags(a Attr) uint64 {
	f := uint64(unix.MOUNT_ATTR_NOSUID)
	if a&ReadOnly != 0 {
		f |= unix.MOUNT_ATTR_RDONLY
	}
	if a&NoExec != 0 {
		f |= unix.MOUNT_ATTR_NOEXEC
	}
	if a&NoDev != 0 {
		f |= unix.MOUNT_ATTR_NODEV
	}
	return f
}

// flagOption is the value of an option that has none.
const flagOption = ""

// filesystem creates a superblock and leaves a detached mount of it in out.
//
//	int fsopen(const char *fstype, unsigned int flags);
//	int fsconfig(int fd, unsigned int cmd, const char *key, const void *value, int aux);
//	int fsmount(int fd, unsigned int flags, unsigned int attr_flags);
func (b *lowering) filesystem(out sys.Reg, fstype, about string, a Attr, options ...string) {
	p := b.p
	p.Call(b.src, sys.Step{Op: "fsopen", Object: fstype}, unix.SYS_FSOPEN, p.Str(fstype), sys.Imm(unix.FSOPEN_CLOEXEC))
	if b.label != "" && fstype != "proc" && fstype != "mqueue" {
		options = append(options, "context", b.label)
	}
	for i := 0; i < len(options); i += 2 {
		if options[i+1] == flagOption {
			p.Call(0, sys.Step{Op: "fsconfig", Object: options[i]}, unix.SYS_FSCONFIG, b.src.Value(),
				sys.Imm(unix.FSCONFIG_SET_FLAG), p.Str(options[i]), sys.Imm(0), sys.Imm(0))
			continue
		}
		p.Call(0, sys.Step{Op: "fsconfig", Object: options[i]}, unix.SYS_FSCONFIG, b.src.Value(),
			sys.Imm(unix.FSCONFIG_SET_STRING), p.Str(options[i]), p.Str(options[i+1]), sys.Imm(0))
	}
	p.Call(0, sys.Step{Op: "fsconfig", Object: fstype}, unix.SYS_FSCONFIG, b.src.Value(),
		sys.Imm(unix.FSCONFIG_CMD_CREATE), sys.Imm(0), sys.Imm(0), sys.Imm(0))
	p.Call(out, sys.Step{Op: "fsmount", Object: about}, unix.SYS_FSMOUNT, b.src.Value(), sys.Imm(unix.FSMOUNT_CLOEXEC),
		sys.Imm(fsmountFlags(a)))
}

// prepare creates the scratch tmpfs and the new root in it. The root is a
// directory of the tmpfs, so that what else lies there (private directories,
// the sources of masks) cannot be reached through it.
func (b *lowering) prepare(t *Tree) {
	p := b.p
	bytes, inodes := cmp.Or(t.ScratchBytes, defaultScratchBytes), cmp.Or(t.ScratchInodes, defaultScratchInodes)
	b.umask = p.NewReg()
	p.Call(b.umask, sys.Step{Op: "umask"}, unix.SYS_UMASK, sys.Imm(0))
	b.filesystem(b.store, "tmpfs", "/", NoDev, "size", strconv.FormatUint(bytes, 10), "nr_inodes",
		strconv.FormatUint(inodes, 10), "mode", "0755")
	// Only what is part of the namespace can be cloned (before Linux 6.15), so
	// the store is attached to the old tree, and goes when that goes. /proc is
	// a directory that every host has, and no source lies in.
	b.over(b.store, storeDir)
	b.make(rootName, 0o755)
	p.Call(b.root, sys.Step{Op: "open_tree", Object: "/"}, unix.SYS_OPEN_TREE, b.store.Value(), p.Str(rootName),
		sys.Imm(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	// pivot_root(2) wants its new root to be mounted. On top of the old one no
	// path walk sees it: that starts below.
	b.over(b.root, "/")
}

// over attaches a mount on top of a directory of the old tree.
func (b *lowering) over(mount sys.Reg, dir string) {
	b.p.Call(0, sys.Step{Op: "move_mount", Object: dir}, unix.SYS_MOVE_MOUNT, mount.Value(), b.empty(),
		sys.Imm(unix.AT_FDCWD), b.p.Str(dir), sys.Imm(unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// make makes a directory in the store.
func (b *lowering) make(name string, mode uint32) {
	b.p.Call(0, sys.Step{Op: "mkdirat", Object: name}, unix.SYS_MKDIRAT, b.store.Value(), b.p.Str(name), sys.Imm(mode))
}

// fresh is a name in the store that nothing has.
func (b *lowering) fresh() string {
	b.stored++
	return strconv.Itoa(b.stored)
}

// mask returns the source of masks of a kind, and makes it the first time.
func (b *lowering) mask(dir bool) string {
	if dir {
		if !b.maskDir {
			b.maskDir = true
			b.make(maskDirName, 0)
		}
		return maskDirName
	}
	if !b.maskFile {
		b.maskFile = true
		b.p.Call(0, sys.Step{Op: "mknodat", Object: maskFileName}, unix.SYS_MKNODAT, b.store.Value(), b.p.Str(maskFileName),
			sys.Imm(unix.S_IFREG), sys.Imm(0))
	}
	return maskFileName
}

// rel is target relative to the root's descriptor.
func rel(target string) string { return target[1:] }

func (b *lowering) op(o *Op) {
	p := b.p
	p.Origin(o.Origin)
	switch o.Kind {
	case Dir:
		b.mkdir(o)
	case Symlink:
		p.Call(0, sys.Step{Op: "symlinkat", Object: o.Target}, unix.SYS_SYMLINKAT, p.Str(o.Source), b.root.Value(),
			p.Str(rel(o.Target)))
	case File:
		b.file(o)
	case Scratch:
		name := b.fresh()
		b.make(name, mode(o))
		b.cloneFrom(name, o, o.Attr|NoDev)
		b.mountpoint(o)
		b.attach(o)
	case Bind, Device:
		from, source := sys.Imm(unix.AT_FDCWD), o.Source
		if b.host != 0 {
			if from, source = b.host.Value(), rel(o.Source); source == "" {
				source = "."
			}
		}
		p.Call(b.src, sys.Step{Op: "openat2", Object: o.Source}, unix.SYS_OPENAT2, from, p.Str(source),
			sys.Ptr(p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
				Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}),
			sys.Imm(unix.SizeofOpenHow))
		attr := o.Attr
		if o.Kind == Bind {
			attr |= NoDev
		}
		b.clone(b.src.Value(), o, attr, true)
		b.mountpoint(o)
		b.attach(o)
		if o.Discard && b.host == 0 {
			b.discard(o)
		}
	case Overlay:
		b.overlay(o)
	case Tmpfs:
		opts := []string{"size", strconv.FormatUint(o.Size, 10), "mode", "0" + strconv.FormatUint(uint64(mode(o)), 8)}
		if o.Inodes != 0 {
			opts = append(opts, "nr_inodes", strconv.FormatUint(o.Inodes, 10))
		}
		b.filesystem(b.tree, "tmpfs", o.Target, o.Attr|NoDev, opts...)
		b.mountpoint(o)
		b.attach(o)
	case Proc:
		b.filesystem(b.tree, "proc", o.Target, o.Attr|NoDev)
		b.mountpoint(o)
		b.attach(o)
	case Mqueue:
		b.filesystem(b.tree, "mqueue", o.Target, o.Attr|NoDev)
		b.mountpoint(o)
		b.attach(o)
	case Devpts:
		// Every mount of devpts is an instance of its own since Linux 4.7. All
		// instances share kernel.pty.max, of which this is to leave the rest.
		b.filesystem(b.tree, "devpts", o.Target, o.Attr, "ptmxmode", "0666", "mode", "0620", "max", "64")
		b.mountpoint(o)
		b.attach(o)
	case Mask:
		name := b.mask(o.IsDir)
		open := b.openTarget(o)
		n := p.Len()
		b.cloneFrom(name, o, ReadOnly|NoExec|NoDev)
		b.moveTo(o)
		if o.Optional {
			open.AllowSkip(syscall.ENOENT, p.Len()-n)
		}
	case Readonly:
		open := b.openTarget(o)
		n := p.Len()
		b.clone(b.dst.Value(), o, o.Attr|ReadOnly, true)
		b.moveTo(o)
		if o.Optional {
			open.AllowSkip(syscall.ENOENT, p.Len()-n)
		}
	}
}

// storeDir is where the store is attached, in the old tree; see prepare.
const storeDir = "/proc"

// overlay mounts the source below a layer in the store that takes all changes;
// see overlayfs.rst. The mark of what is removed and replaced is a user
// attribute (userxattr, Linux 5.11), of which tmpfs has had any since Linux 6.6:
// without them the mount would come about, and fail at the first such change.
//
//	int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
func (b *lowering) overlay(o *Op) {
	p := b.p
	name := b.layers(o)
	b.layer = p.NewReg()
	p.Call(b.layer, sys.Step{Op: "openat", Object: overlayStep}, unix.SYS_OPENAT, b.store.Value(), p.Str(name+upperName),
		sys.Imm(unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC), sys.Imm(0))
	attr, value := p.Str("user.sbxrun"), p.Data("y")
	p.Call(0, sys.Step{Op: "fsetxattr", Object: overlayStep}, unix.SYS_FSETXATTR, b.layer.Value(), attr, value, sys.Imm(1),
		sys.Imm(0))
	p.Call(0, sys.Step{Op: "fremovexattr", Object: overlayStep}, unix.SYS_FREMOVEXATTR, b.layer.Value(), attr)
	b.stack(name, o, o.Attr)
	b.mountpoint(o)
	b.attach(o)
}

// discard lays an overlay over a bind, for what is changed below it. On tmpfs
// without user attributes files can be made, replaced and removed in it; of what is
// removed, a directory cannot be made again. All of it is one attempt.
func (b *lowering) discard(o *Op) {
	n := b.p.Len()
	name := b.layers(o)
	b.stack(name, o, o.Attr&^ReadOnly)
	b.openTarget(o)
	b.moveTo(o)
	b.p.AllowAnyFrom(n)
}

// Names of an overlay's directories in its own one of the store.
const lowerName, upperName, workName = "/lower", "/upper", "/work"

// layers makes the directories of an overlay, and returns the name in the store of
// the one that holds them.
func (b *lowering) layers(o *Op) string {
	name := b.fresh()
	b.make(name, 0o700)
	b.make(name+lowerName, 0o700)
	b.make(name+upperName, mode(o)) // its mode is that of the overlay's root
	b.make(name+workName, 0o700)
	return name
}

// stack leaves an overlay of those layers over the source in tree.
func (b *lowering) stack(name string, o *Op, a Attr) {
	p := b.p
	p.Call(b.src, sys.Step{Op: "openat2", Object: o.Source}, unix.SYS_OPENAT2, sys.Imm(unix.AT_FDCWD), p.Str(o.Source),
		sys.Ptr(p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}),
		sys.Imm(unix.SizeofOpenHow))
	// Not recursive: an overlay shows nothing of what is mounted below its
	// layers, and EINVAL says that there is something, which the caller mounted.
	p.Call(b.tree, sys.Step{Op: "open_tree", Object: overlayStep}, unix.SYS_OPEN_TREE, b.src.Value(), b.empty(),
		sys.Imm(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH))
	b.setattr(o.Target, unix.AT_EMPTY_PATH, ReadOnly|NoDev)
	p.Call(0, sys.Step{Op: "move_mount", Object: o.Target}, unix.SYS_MOVE_MOUNT, b.tree.Value(), b.empty(),
		b.store.Value(), p.Str(name+lowerName), sys.Imm(unix.MOVE_MOUNT_F_EMPTY_PATH))
	dir := storeDir + "/" + name
	b.filesystem(b.tree, "overlay", o.Target, a|NoDev, "userxattr", flagOption,
		"lowerdir", dir+lowerName, "upperdir", dir+upperName, "workdir", dir+workName)
}

// overlayStep is what steps are about that only an overlay takes.
const overlayStep = "overlay"

func mode(o *Op) uint32 {
	if o.Mode != 0 {
		return o.Mode
	}
	if o.Kind == File {
		return 0o644
	}
	return 0o755
}

func (b *lowering) mkdir(o *Op) {
	b.p.Call(0, sys.Step{Op: "mkdirat", Object: o.Target}, unix.SYS_MKDIRAT, b.root.Value(), b.p.Str(rel(o.Target)),
		sys.Imm(mode(o)))
}

// file creates a file. Where a mount already shows something at the target, the
// file is made in the store and mounted over it.
func (b *lowering) file(o *Op) {
	if !o.InBind {
		b.create(o, b.root, rel(o.Target))
		return
	}
	name := b.fresh()
	b.create(o, b.store, name)
	b.cloneFrom(name, o, ReadOnly|NoExec|NoDev)
	b.attach(o)
}

func (b *lowering) create(o *Op, dir sys.Reg, name string) {
	p := b.p
	p.Call(b.src, sys.Step{Op: "openat", Object: o.Target}, unix.SYS_OPENAT, dir.Value(), p.Str(name),
		sys.Imm(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC), sys.Imm(mode(o)))
	if o.Data != "" {
		p.Call(0, sys.Step{Op: "write", Object: o.Target}, unix.SYS_WRITE, b.src.Value(), p.Data(o.Data),
			sys.Imm(len(o.Data)))
	}
	// Open for writing, it would keep the root from becoming read-only.
	p.Call(0, sys.Step{Op: "close", Object: o.Target}, unix.SYS_CLOSE, b.src.Value())
}

// mountpoint makes what the mount in tree will be attached to, if it is not
// there.
func (b *lowering) mountpoint(o *Op) {
	if o.InBind {
		return
	}
	if o.isDir() {
		b.mkdir(o)
		return
	}
	b.p.Call(0, sys.Step{Op: "mknodat", Object: o.Target}, unix.SYS_MKNODAT, b.root.Value(), b.p.Str(rel(o.Target)),
		sys.Imm(unix.S_IFREG|0o444), sys.Imm(0))
}

// clone leaves a detached, private copy of the mounts at fd in tree.
//
//	int open_tree(int dfd, const char *path, unsigned int flags);
//	int mount_setattr(int dfd, const char *path, unsigned int flags, struct mount_attr *attr, size_t size);
func (b *lowering) clone(fd sys.Value, o *Op, a Attr, recursive bool) {
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH
	sflags := unix.AT_EMPTY_PATH
	if recursive {
		// A user namespace may not look below a mount that it did not make,
		// so the mounts below come along or nothing does.
		flags |= unix.AT_RECURSIVE
		sflags |= unix.AT_RECURSIVE
	}
	b.p.Call(b.tree, sys.Step{Op: "open_tree", Object: o.Target}, unix.SYS_OPEN_TREE, fd, b.empty(), sys.Imm(flags))
	b.setattr(o.Target, sflags, a)
}

// cloneFrom is clone of something in the store.
func (b *lowering) cloneFrom(name string, o *Op, a Attr) {
	b.p.Call(b.tree, sys.Step{Op: "open_tree", Object: o.Target}, unix.SYS_OPEN_TREE, b.store.Value(), b.p.Str(name),
		sys.Imm(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW))
	b.setattr(o.Target, unix.AT_EMPTY_PATH, a)
}

func (b *lowering) setattr(target string, flags int, a Attr) {
	b.p.Call(0, sys.Step{Op: "mount_setattr", Object: target}, unix.SYS_MOUNT_SETATTR, b.tree.Value(), b.empty(),
		sys.Imm(flags),
		b.attr(a), sys.Imm(unix.MOUNT_ATTR_SIZE_VER0))
}

// openTarget leaves the target, which lies in a mount, in dst. ELOOP: it is a
// symbolic link by now. With O_NOFOLLOW that would be opened itself; see
// RESOLVE_NO_SYMLINKS in openat2(2).
func (b *lowering) openTarget(o *Op) *sys.CallRef {
	return b.p.Call(b.dst, sys.Step{Op: "openat2", Object: o.Target}, unix.SYS_OPENAT2, b.root.Value(),
		b.p.Str(rel(o.Target)),
		sys.Ptr(b.p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolveInside}), sys.Imm(unix.SizeofOpenHow))
}

// attach puts the mount in tree at the target.
//
//	int move_mount(int from_dfd, const char *from, int to_dfd, const char *to, unsigned int flags);
func (b *lowering) attach(o *Op) {
	if o.InBind {
		b.openTarget(o)
		b.moveTo(o)
		return
	}
	b.p.Call(0, sys.Step{Op: "move_mount", Object: o.Target}, unix.SYS_MOVE_MOUNT, b.tree.Value(), b.empty(),
		b.root.Value(), b.p.Str(rel(o.Target)), sys.Imm(unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// moveTo puts the mount in tree at dst.
func (b *lowering) moveTo(o *Op) {
	b.p.Call(0, sys.Step{Op: "move_mount", Object: o.Target}, unix.SYS_MOVE_MOUNT, b.tree.Value(), b.empty(),
		b.dst.Value(), b.empty(), sys.Imm(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// enter makes the new root the root, if that is not done, and detaches the old one.
func (b *lowering) enter() {
	p := b.p
	p.Origin("")
	p.Call(0, sys.Step{Op: "mount_setattr", Object: "/"}, unix.SYS_MOUNT_SETATTR, b.root.Value(), b.empty(),
		sys.Imm(unix.AT_EMPTY_PATH),
		b.attr(ReadOnly|NoDev), sys.Imm(unix.MOUNT_ATTR_SIZE_VER0))
	if b.host == 0 {
		b.pivot()
	}
	p.Call(0, sys.Step{Op: "umount2", Object: "old root"}, unix.SYS_UMOUNT2, p.Str("."), sys.Imm(unix.MNT_DETACH))
	if b.host != 0 {
		p.Call(0, sys.Step{Op: "close", Object: "old root"}, unix.SYS_CLOSE, b.host.Value())
	}
	p.Call(0, sys.Step{Op: "chdir", Object: "/"}, unix.SYS_CHDIR, p.Str("/"))
	p.Call(0, sys.Step{Op: "umask"}, unix.SYS_UMASK, b.umask.Value())
}

// pivot makes the new root the root, and the working directory. The old one then
// lies on top of it. "." is below that, and leads umount2(2) to what is on top; see
// "pivot_root(".", ".")" in pivot_root(2).
//
//	int pivot_root(const char *new_root, const char *put_old);
func (b *lowering) pivot() {
	p := b.p
	p.Origin("")
	p.Call(0, sys.Step{Op: "fchdir", Object: "/"}, unix.SYS_FCHDIR, b.root.Value())
	dot := p.Str(".")
	p.Call(0, sys.Step{Op: "pivot_root", Object: "/"}, unix.SYS_PIVOT_ROOT, dot, dot)
}
