package cgroups

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// usual is where a host mounts its cgroups: v2 itself, or a directory of v1's
// hierarchies, named after their controllers.
const usual = "/sys/fs/cgroup"

// Read describes this host's cgroups as the caller sees them. Where sbxrun has
// run before, and everything is where it usually is, that takes about a dozen
// cheap system calls; /proc/self/mountinfo, of which hosts have hundreds of
// lines, is read only elsewhere.
func Read() (Layout, error) {
	members, err := memberships()
	if err != nil {
		return Layout{}, err
	}
	l, ok := readUsual(members)
	if !ok {
		if l, err = readAll(members); err != nil {
			return Layout{}, err
		}
	}
	l.User = uint32(unix.Geteuid())
	return l, nil
}

func memberships() ([]Membership, error) {
	// Not os.ReadFile, which would start the runtime's poller in every run.
	const file = "/proc/self/cgroup"
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cgroups: open %s: %w", file, err)
	}
	defer unix.Close(fd)
	text := make([]byte, 0, 4096)
	for {
		text = slices.Grow(text, 1024)
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if err != nil {
			return nil, fmt.Errorf("cgroups: read %s: %w", file, err)
		}
		if n == 0 {
			return ParseMemberships(string(text)), nil
		}
		text = text[:len(text)+n]
	}
}

// readUsual takes hierarchies to be mounted in their usual place, and reports
// false if the caller's groups are not to be found there, or if of version 1
// there are not yet the groups' parents below the tops.
func readUsual(members []Membership) (Layout, bool) {
	var fs unix.Statfs_t
	if unix.Statfs(usual, &fs) != nil {
		return Layout{}, false
	}
	if fs.Type == unix.CGROUP2_SUPER_MAGIC {
		l := NewLayout(members, []Mount{{V2: true, Point: usual, Root: "/"}})
		if len(l.Hierarchies) != 1 {
			return Layout{}, false
		}
		h := &l.Hierarchies[0]
		if !access(h.Dirs[len(h.Dirs)-1].Path+"/cgroup.procs", unix.F_OK) {
			return Layout{}, false
		}
		inspectV2(h)
		return l, true
	}
	euid := uint32(unix.Geteuid())
	var devices [3]uint64
	var mounts [3]Mount
	for i := range devices {
		dir := usual + "/" + controllerNames[i]
		var st unix.Stat_t
		// Root may write what is another's, but its groups are not to be this caller's.
		// A mount that is read-only (ProtectControlGroups= in systemd.exec(5)) shows by
		// access(2) alone.
		if unix.Stat(dir+"/"+Parent, &st) != nil || st.Uid != euid || !access(dir+"/"+Parent, unix.W_OK|unix.X_OK) {
			return Layout{}, false
		}
		devices[i] = st.Dev
		mounts[i] = Mount{Controllers: 1 << i, Point: dir, Root: "/"}
	}
	// Two names for one hierarchy, its controllers mounted together.
	if devices[0] == devices[1] || devices[0] == devices[2] || devices[1] == devices[2] {
		return Layout{}, false
	}
	l := NewLayout(members, mounts[:])
	var c Controllers
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		h.Dirs[0].ParentUsable = true
		h.readLimits(0)
		c |= h.Controllers
	}
	return l, c.Has(Limiting)
}

func readAll(members []Membership) (Layout, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, fmt.Errorf("cgroups: %w", err)
	}
	l := NewLayout(members, ParseMounts(string(mounts)))
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		if h.V2 {
			inspectV2(h)
			continue
		}
		for j := range h.Dirs {
			d := &h.Dirs[j]
			if d.ParentUsable = access(d.Path+"/"+Parent, unix.W_OK|unix.X_OK); !d.ParentUsable {
				d.Denied = denied(d.Path)
			}
			if d.ParentUsable || d.Denied == Granted {
				h.readLimits(j)
				break
			}
		}
	}
	return l, nil
}

// inspectV2 fills in what the caller may do in its own group and those above,
// up to the first that has all that is wanted. What is above is left out.
func inspectV2(h *Hierarchy) {
	// Where a run of this process put it: the group above is the caller's own.
	if n := len(h.Dirs) - 1; n > 0 && strings.HasSuffix(h.Dirs[n].Path, "/"+Supervisor) {
		h.Dirs = h.Dirs[:n]
	}
	for j := len(h.Dirs) - 1; j >= 0; j-- {
		d := &h.Dirs[j]
		if inspect(d) {
			h.Dirs = h.Dirs[j:]
			h.readLimits(0)
			return
		}
	}
	h.readLimits(0)
}

// inspect reports whether groups can go into a directory, with every controller
// and without a change above it.
func inspect(d *Dir) bool {
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
	if d.Occupants == OnlyCaller {
		// The mark is the system's manager's, since systemd 251; a user's sets
		// none (seen with 252). Into a scope systemd puts nobody by itself.
		var b [1]byte
		n, err := unix.Getxattr(d.Path, "user.delegate", b[:])
		d.Delegated = err == nil && n == 1 && b[0] == '1' || strings.HasSuffix(d.Path, ".scope")
	}
	return d.Available.Has(Limiting) && (d.Top || d.Occupants == Nobody || d.Delegated)
}

// readLimits reads the limits of the directories below one of them.
func (h *Hierarchy) readLimits(at int) {
	for i := at + 1; i < len(h.Dirs); i++ {
		d := &h.Dirs[i]
		if h.V2 {
			var quota, period int64
			d.Limits.Memory, _ = readLimit(d.Path + "/memory.max")
			if quota, period = readLimit(d.Path + "/cpu.max"); quota > 0 && period > 0 {
				d.Limits.CPUQuota, d.Limits.CPUPeriod = quota, uint64(period)
			}
			d.Limits.Pids, _ = readLimit(d.Path + "/pids.max")
			continue
		}
		if h.Controllers.Has(Memory) {
			// What is no limit is a number too, the largest whole page.
			if d.Limits.Memory, _ = readLimit(d.Path + "/memory.limit_in_bytes"); d.Limits.Memory >= 1<<62 {
				d.Limits.Memory = 0
			}
		}
		if h.Controllers.Has(CPU) {
			if quota, _ := readLimit(d.Path + "/cpu.cfs_quota_us"); quota > 0 {
				if period, _ := readLimit(d.Path + "/cpu.cfs_period_us"); period > 0 {
					d.Limits.CPUQuota, d.Limits.CPUPeriod = quota, uint64(period)
				}
			}
		}
		if h.Controllers.Has(Pids) {
			d.Limits.Pids, _ = readLimit(d.Path + "/pids.max")
		}
	}
}

// readLimit reads a file with one number or two, the first of which may be
// "max" or -1: no limit, which is 0 here as is a file that is not there. A limit
// of 0 is the smallest that there is here, 1.
func readLimit(file string) (limit, second int64) {
	var buf [64]byte
	n, err := readAt(unix.AT_FDCWD, file, buf[:])
	if err != nil {
		return 0, 0
	}
	first, rest, _ := strings.Cut(strings.TrimSuffix(string(buf[:n]), "\n"), " ")
	v, err := strconv.ParseInt(first, 10, 64)
	if err != nil || v < 0 {
		return 0, 0
	}
	second, _ = strconv.ParseInt(rest, 10, 64)
	return max(v, 1), second
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
	return parseControllers(string(buf[:n]), " ")
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
