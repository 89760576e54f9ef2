package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/mounts"
)

// A Stage is where what is shown of the host is mounted first, in a mount namespace of
// the program's own. Other programs take paths and follow symbolic links: by the time
// they do, a command of another run can have put one there. What is staged was opened
// without following any, and has a name that no command reaches.
type Stage struct {
	Dir     string // private, and empty
	sources []source

	// Still makes all that is not staged read-only, for a program that makes mount
	// points with the host's files within its reach, and writes none of them.
	Still bool
}

type source struct {
	path     string
	origin   string
	dir      bool
	readOnly bool
}

// NewStage returns a tree that shows the same, of the stage's files. It is nil, and the
// tree as it was, for who cannot mount: anybody but root.
func NewStage(tree *mounts.Tree, dir string) (*Stage, *mounts.Tree) {
	if os.Geteuid() != 0 {
		return nil, tree
	}
	s, out := &Stage{Dir: dir}, *tree
	out.Entries = slices.Clone(tree.Entries)
	for i := range out.Entries {
		if e := &out.Entries[i]; e.Kind == mounts.Bind {
			s.sources = append(s.sources, source{e.Source, e.Origin, e.IsDir, e.Attr&mounts.ReadOnly != 0})
			e.Source = filepath.Join(dir, strconv.Itoa(len(s.sources)))
		}
	}
	return s, &out
}

// append mounts what is staged. Preconditions: the process is in a mount namespace of
// its own, from which nothing propagates.
func (s *Stage) append(p *sys.Program) {
	empty := p.Str("")
	step := sys.Step{Op: "mount", Object: s.Dir}
	p.Call(0, step, unix.SYS_MOUNT, p.Str("tmpfs"), p.Str(s.Dir), p.Str("tmpfs"),
		sys.Imm(unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC), p.Str("mode=0700"))
	// A source that holds this directory is shown without it.
	p.Call(0, step, unix.SYS_MOUNT, p.Str("none"), p.Str(s.Dir), p.Str("none"), sys.Imm(unix.MS_UNBINDABLE), sys.Imm(0))
	fd, tree := p.NewReg(), p.NewReg()
	const clone = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH | unix.AT_RECURSIVE
	readOnly := sys.Ptr(p, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	how := sys.Ptr(p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	for i, src := range s.sources {
		at := p.Str(filepath.Join(s.Dir, strconv.Itoa(i+1)))
		p.Origin(src.origin)
		step := sys.Step{Op: "openat2", Object: src.path}
		p.Call(fd, step, unix.SYS_OPENAT2, sys.Imm(unix.AT_FDCWD), p.Str(src.path), how, sys.Imm(unix.SizeofOpenHow))
		step.Op = "stage"
		if src.dir {
			p.Call(0, step, unix.SYS_MKDIRAT, sys.Imm(unix.AT_FDCWD), at, sys.Imm(0o700))
		} else {
			p.Call(0, step, unix.SYS_MKNODAT, sys.Imm(unix.AT_FDCWD), at, sys.Imm(unix.S_IFREG|0o600), sys.Imm(0))
		}
		p.Call(tree, step, unix.SYS_OPEN_TREE, fd.Value(), empty, sys.Imm(clone))
		if src.readOnly {
			p.Call(0, step, unix.SYS_MOUNT_SETATTR, tree.Value(), empty, sys.Imm(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), readOnly,
				sys.Imm(unix.MOUNT_ATTR_SIZE_VER0))
		}
		p.Call(0, step, unix.SYS_MOVE_MOUNT, tree.Value(), empty, sys.Imm(unix.AT_FDCWD), at,
			sys.Imm(unix.MOVE_MOUNT_F_EMPTY_PATH))
		p.Call(0, step, unix.SYS_CLOSE, tree.Value())
		p.Call(0, step, unix.SYS_CLOSE, fd.Value())
	}
	p.Origin("")
	if !s.Still {
		return
	}
	// What is staged stays as it is, and so does /proc, where the program maps its ids:
	// their mounts are taken away meanwhile.
	step = sys.Step{Op: "make read-only", Object: "what is not shown"}
	p.Call(0, step, unix.SYS_MOUNT, p.Str("none"), p.Str(s.Dir), p.Str("none"), sys.Imm(unix.MS_PRIVATE), sys.Imm(0))
	p.Call(fd, step, unix.SYS_OPEN_TREE, sys.Imm(unix.AT_FDCWD), p.Str("/proc"), sys.Imm(clone))
	p.Call(tree, step, unix.SYS_OPEN_TREE, sys.Imm(unix.AT_FDCWD), p.Str(s.Dir), sys.Imm(clone))
	p.Call(0, step, unix.SYS_UMOUNT2, p.Str(s.Dir), sys.Imm(unix.MNT_DETACH))
	p.Call(0, step, unix.SYS_MOUNT_SETATTR, sys.Imm(unix.AT_FDCWD), p.Str("/"), sys.Imm(unix.AT_RECURSIVE), readOnly,
		sys.Imm(unix.MOUNT_ATTR_SIZE_VER0))
	p.Call(0, step, unix.SYS_MOVE_MOUNT, tree.Value(), empty, sys.Imm(unix.AT_FDCWD), p.Str(s.Dir),
		sys.Imm(unix.MOVE_MOUNT_F_EMPTY_PATH))
	p.Call(0, step, unix.SYS_MOVE_MOUNT, fd.Value(), empty, sys.Imm(unix.AT_FDCWD), p.Str("/proc"),
		sys.Imm(unix.MOVE_MOUNT_F_EMPTY_PATH))
	p.Call(0, step, unix.SYS_CLOSE, tree.Value())
	p.Call(0, step, unix.SYS_CLOSE, fd.Value())
}
