package cgroups

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// usual is where a host mounts its cgroups: v2 itself, or a directory of v1's
// hierarchies, named after their controllers.
const usual = "/sys/fs/cgroup"

// Read describes this host's cgroups as the caller sees them. Where root has
// run sbxrun before, and everything is where it usually is, that takes about a
// dozen cheap system calls; /proc/self/mountinfo, of which hosts have hundreds
// of lines, is read only elsewhere.
func Read() (Layout, error) {
	if l, ok := readUsual(); ok {
		return l, nil
	}
	return readAll()
}

// readUsual looks for groups' parents below the tops of hierarchies in their
// usual place, and reports false if one of them is missing. A top that can be
// written is the right place wherever the caller itself is.
func readUsual() (Layout, bool) {
	var fs unix.Statfs_t
	if unix.Statfs(usual, &fs) != nil {
		return Layout{}, false
	}
	if fs.Type == unix.CGROUP2_SUPER_MAGIC {
		top := Dir{Path: usual}
		if top.Denied = denied(usual + "/cgroup.procs"); top.Denied != Granted {
			return Layout{}, false
		}
		readParentV2(&top)
		if !top.ParentUsable || !top.ParentEnabled.Has(Limiting) {
			return Layout{}, false
		}
		return Layout{Hierarchies: []Hierarchy{{V2: true, Dirs: []Dir{top}}}}, true
	}
	euid := uint32(unix.Geteuid())
	var devices [3]uint64
	l := Layout{Hierarchies: make([]Hierarchy, 3)}
	for i := range devices {
		dir := usual + "/" + controllerNames[i]
		parent := dir + "/" + Parent
		var st unix.Stat_t
		// Its owner may write it, and one call is enough to see that.
		if unix.Stat(parent, &st) != nil || st.Uid != euid || st.Mode&0o300 != 0o300 {
			return Layout{}, false
		}
		devices[i] = st.Dev
		l.Hierarchies[i] = Hierarchy{Controllers: 1 << i, Dirs: []Dir{{Path: dir, ParentUsable: true}}}
	}
	// Two names for one hierarchy, its controllers mounted together.
	if devices[0] == devices[1] || devices[0] == devices[2] || devices[1] == devices[2] {
		return Layout{}, false
	}
	return l, true
}

func readAll() (Layout, error) {
	members, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Layout{}, fmt.Errorf("cgroups: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, fmt.Errorf("cgroups: %w", err)
	}
	l := NewLayout(ParseMemberships(string(members)), ParseMounts(string(mounts)))
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		for j := range h.Dirs {
			if inspect(&h.Dirs[j], h.V2) {
				h.Dirs = h.Dirs[:j+1]
				break
			}
		}
	}
	return l, nil
}

// inspect fills in what the caller may do in a directory, and reports whether
// groups can go there.
func inspect(d *Dir, v2 bool) bool {
	if !v2 {
		d.ParentUsable = access(d.Path+"/"+Parent, unix.W_OK|unix.X_OK)
		if d.ParentUsable {
			return true
		}
		d.Denied = denied(d.Path)
		return d.Denied == Granted
	}
	if d.Denied = denied(d.Path + "/cgroup.procs"); d.Denied != Granted {
		return false
	}
	if d.Denied = denied(d.Path); d.Denied != Granted {
		return false
	}
	readParentV2(d)
	if d.ParentUsable && d.ParentEnabled.Has(Limiting) {
		return true
	}
	// The root of the whole hierarchy has no type; see cgroup-v2.rst.
	d.Top = unix.Access(d.Path+"/cgroup.type", unix.F_OK) == unix.ENOENT
	d.Available = readControllers(d.Path + "/cgroup.controllers")
	d.Enabled = readControllers(d.Path + "/cgroup.subtree_control")
	d.Occupants = occupants(d.Path)
	return true
}

func readParentV2(d *Dir) {
	parent := d.Path + "/" + Parent
	if d.ParentUsable = access(parent, unix.W_OK|unix.X_OK); d.ParentUsable {
		d.ParentEnabled = readControllers(parent + "/cgroup.subtree_control")
	}
}

func occupants(dir string) Occupants {
	b, err := os.ReadFile(dir + "/cgroup.procs")
	if err != nil {
		return Unknown // EOPNOTSUPP in a threaded group
	}
	switch s := strings.TrimSpace(string(b)); s {
	case "":
		return Nobody
	case strconv.Itoa(os.Getpid()):
		return OnlyCaller
	}
	return Others
}

func readControllers(file string) Controllers {
	var buf [256]byte
	n, err := readAt(unix.AT_FDCWD, file, buf[:])
	if err != nil {
		return 0
	}
	return parseControllers(string(buf[:n]), ' ')
}

// readAt reads a file that the kernel gives in one piece.
func readAt(dirfd int, name string, buf []byte) (int, error) {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	n, err := unix.Read(fd, buf)
	unix.Close(fd)
	return n, err
}

func access(path string, mode uint32) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS) == nil
}

func denied(path string) Denial {
	switch unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) {
	case nil:
		return Granted
	case unix.EROFS:
		return DeniedReadOnly
	case unix.EACCES, unix.EPERM:
		return DeniedOwner
	}
	return DeniedOther
}
