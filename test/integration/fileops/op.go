//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slots is how many descriptors an operation can be about.
const slots = 6

// A process is what operations act on: the state of this process.
type process struct {
	root   string // of all jobs
	dir    string // of the job: what $W stands for
	fds    [slots]int
	mounts []string // where what is writable begins, longest first

	free bool // an index may be removed, renamed away, or exchanged for a good one

	first map[string]bool // what is in the sandbox's own directories to begin with

	// memory holds what the kernel reads; what comes behind it is not mapped.
	memory []byte
	end    uintptr
	used   uintptr
}

const room = 64 << 10

func newProcess(root string) *process {
	m, err := unix.Mmap(-1, 0, room+os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = unix.Mprotect(m[room:], unix.PROT_NONE)
	}
	if err != nil {
		panic(err)
	}
	p := &process{root: root, memory: m, end: uintptr(unsafe.Pointer(&m[0])) + room, first: map[string]bool{}}
	for _, dir := range common {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			p.first[filepath.Join(dir, e.Name())] = true
		}
	}
	return p
}

// begin makes the process what it is at the beginning of each job.
func (p *process) begin(dir string) {
	p.dir = dir
	if _, err := unix.FcntlInt(0, unix.F_GETFD, 0); err != nil {
		unix.Open("/dev/null", unix.O_RDONLY, 0) // it is 0
	}
	for i := range p.fds {
		p.fds[i] = -1
	}
	unix.Umask(0o022)
	// What leads here may be the sandbox's own, and have had its mode changed.
	var ups []string
	for up := p.root; up != "/"; up = filepath.Dir(up) {
		ups = append(ups, up)
	}
	for _, up := range slices.Backward(ups) {
		unix.Chmod(up, 0o755)
	}
	reopen()
	unix.Chmod(filepath.Dir(dir), 0o755)
	if err := unix.Chdir(dir); err != nil {
		panic(err)
	}
	if os.Getenv("RACER") == "" {
		p.clean()
		os.Mkdir(private, 0o755)
		os.WriteFile(private+"/c", []byte("c"), 0o644)
		os.Mkdir(private+"/a", 0o755)
	}
	p.readMounts()
}

// finish closes what a job left open, and removes what it made outside the workspace.
func (p *process) finish(mode string) {
	for _, fd := range p.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if mode == "racer" {
		return
	}
	unix.Chdir("/")
	reopen()
	p.clean() // for a process that comes after this one
}

// reopen gives the directories that all jobs share their modes back.
func reopen() {
	for _, d := range common {
		unix.Chmod(d, 0o777)
	}
}

// common are the sandbox's own directories, which all jobs share.
var common = []string{"/tmp", "/var/tmp", "/run", "/dev/shm"}

// clean removes what earlier jobs left there.
func (p *process) clean() {
	for _, dir := range common {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			left := filepath.Join(dir, e.Name())
			if strings.HasPrefix(p.root+"/", left+"/") || p.first[left] {
				continue
			}
			filepath.WalkDir(left, func(path string, d os.DirEntry, err error) error {
				if d != nil && d.IsDir() {
					os.Chmod(path, 0o700)
				}
				return nil
			})
			os.RemoveAll(left)
		}
	}
}

// A path is what an operation hands over for one.
type named struct {
	text    string // $W is the job's directory, $0 … $5 are descriptors
	pointer int    // 0: text; 1: null; 2: not mapped; 3: text without an end before what is not mapped
	dirfd   int    // a slot; cwd; or one that is none
}

const (
	cwd      = -1
	noFD     = -2 // -1
	highFD   = -3 // never open
	negative = -4 // another negative number
)

func (a named) String() string {
	s := fmt.Sprintf("%q", a.text)
	if len(a.text) > 200 {
		s = fmt.Sprintf("<%d bytes>", len(a.text))
	}
	switch a.pointer {
	case 1:
		s = "NULL"
	case 2:
		s = "unmapped"
	case 3:
		s += " without an end"
	}
	switch a.dirfd {
	case cwd:
		return s
	case noFD:
		return "-1, " + s
	case highFD:
		return "1000, " + s
	case negative:
		return "-7, " + s
	}
	return fmt.Sprintf("$%d, %s", a.dirfd, s)
}

// An op is one operation.
type op struct {
	call       string
	a, b       named
	flags      int
	mode       uint32
	slot       int
	n          int64
	name       string
	value      string
	badPointer bool // for what is neither path
	at         bool // by the newer call, relative to a directory
	times      [2]unix.Timespec
}

func (o op) String() string {
	s := o.call
	if o.at {
		s += " (at)"
	}
	short := func(v string) string {
		if len(v) > 20 {
			return fmt.Sprintf("<%d bytes>", len(v))
		}
		return v
	}
	s += fmt.Sprintf(" %v", o.a)
	if strings.HasPrefix(o.call, "rename") || o.call == "link" || o.call == "symlink" {
		s += fmt.Sprintf(" to %v", o.b)
	}
	s += fmt.Sprintf(" flags %#x mode %#o slot %d n %d", o.flags, o.mode, o.slot, o.n)
	if strings.Contains(o.call, "xattr") {
		s += fmt.Sprintf(" %q=%q", short(o.name), short(o.value))
	}
	if strings.Contains(o.call, "utime") || o.call == "futimens" {
		s += fmt.Sprintf(" times %v", o.times)
	}
	if o.badPointer {
		s += " and a bad pointer"
	}
	return s
}

var (
	plainNames = []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "file", "sub", "fifo", "sock", "empty", "up", "n1", "n2", "n3", "n1", "n2", "file", "a", "b", "readonly", "setuid", "nox", "sticky", "theirs", "theirs-w", "group", "mine", "link"}
	mountNames = []string{"vendor", "vendor", "rw", "rw", "hidden", "hidden", "secret", "key", "mnt"}
	protNames  = []string{".git", ".git", "config", "hooks", "pre-commit", "HEAD", "objects", "refs", "index", "index", "lock", "bare", "info", ".mcp.json", ".MCP.json", ".claude", "settings.json", ".Claude", ".vscode", ".config", "nvim", "init.lua", "git", "plain", "conf", "hook",
		"x.code-workspace", "commondir", "config.worktree", ".bashrc", ".GIT", "Config", "INDEX", "sharedindex.x", "rebase-merge", "rebase-merge", "git-rebase-todo", "done", "done.lock", "msgnum", "strategy", "steps", "sequencer", "worktrees", "w"}
	// Names that are in the tree, so that much succeeds.
	wholePaths = []string{"a/file", "a/sub/f", "b/file", "c", "a/sub", "vendor/file", "vendor/d", "rw/file", "rw/d", "rw/d/f", "hidden", "secret/key", ".git/config", ".git/hooks/pre-commit", ".git/HEAD", ".git/index", "empty/.git", "empty/.git/config", ".git/lock", ".git/steps", ".git/rebase-merge/git-rebase-todo", ".git/rebase-merge/done", ".git/rebase-merge/msgnum", ".git/rebase-merge", ".git/worktrees", ".git/worktrees/w", ".git/worktrees/w/commondir", ".git/worktrees/w/HEAD", ".git/worktrees/w/config", "bare/index", "bare/lock", ".git/info", ".mcp.json", ".claude/settings.json",
		".config/nvim/init.lua", ".config/nvim", ".config/plain", ".config/plain/f", ".config/git", "b/.config", "b/.config/f", "bare/config", "bare/HEAD", "bare/hooks", "rw/.mcp.json", "rw/.claude", "sticky/theirs", "sticky/mine", "sticky/link", "group/f", "nox/f", "d/file", "a/up/file", "empty/.git/hooks", ".."}
	flagBits = []int{unix.O_CREAT, unix.O_CREAT, unix.O_CREAT, unix.O_EXCL, unix.O_TRUNC, unix.O_APPEND, unix.O_NONBLOCK, unix.O_DIRECTORY, unix.O_NOFOLLOW, unix.O_CLOEXEC, unix.O_PATH, unix.O_TMPFILE, unix.O_NOATIME, unix.O_SYNC, unix.O_DSYNC, unix.O_NOCTTY, unix.O_ASYNC, unix.O_LARGEFILE, 0x40000000}
	modes    = []uint32{0o644, 0o644, 0o755, 0o600, 0o666, 0o777, 0, 0o444, 0o4755, 0o2755, 0o2770, 0o1777, 0o7777, 0o111, 0o200, 0o17777, 0o644}
	sizes    = []int64{0, 0, 1, 3, 100, 4096, 70000, 1 << 20, -1}
)

// calls are the operations, each as often as it is to come.
var calls = func() (all []string) {
	for c, n := range map[string]int{"open": 26, "creat": 2, "close": 3, "read": 2, "write": 3, "stat": 3, "lstat": 2, "readlink": 1, "fstat": 3, "getdents": 2, "rename": 12, "renameat2": 7, "link": 8, "symlink": 4, "unlink": 7, "rmdir": 4, "mkdir": 5, "mknod": 4,
		"truncate": 4, "ftruncate": 2, "chmod": 3, "fchmod": 1, "fchmodat2": 2, "chown": 2, "lchown": 1, "fchown": 1, "utimensat": 4, "utime": 1, "utimes": 1, "futimens": 1, "setxattr": 2, "lsetxattr": 1, "fsetxattr": 1, "getxattr": 1, "fgetxattr": 1,
		"removexattr": 1, "lremovexattr": 1, "fremovexattr": 1, "listxattr": 1, "umask": 1, "chdir": 3, "fchdir": 2, "dup": 1, "setflags": 1, "fdlink": 1, "access": 1, "xattrat": 1, "fileattr": 1, "bind": 1} {
		all = append(all, slices.Repeat([]string{c}, n)...)
	}
	slices.Sort(all)
	return all
}()

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func sorted(s []string) []string { slices.Sort(s); return s }

func component(r *rand.Rand) string {
	switch n := r.IntN(100); {
	case n < 70:
		return pick(r, plainNames)
	case n < 78:
		return pick(r, mountNames)
	case n < 92:
		return pick(r, protNames)
	case n < 95:
		return ".."
	case n < 97:
		return "."
	case n < 98:
		return ""
	case n < 99:
		return strings.Repeat("l", 255)
	}
	return strings.Repeat("l", 256)
}

func (p *process) path(r *rand.Rand) named {
	a := named{dirfd: cwd}
	switch n := r.IntN(100); {
	case n < 20:
		a.dirfd = r.IntN(slots)
	case n < 21:
		a.dirfd = noFD - r.IntN(3)
	}
	if r.IntN(100) < 35 {
		a.text = pick(r, wholePaths)
	} else {
		depth := 1 + min(r.IntN(3), r.IntN(4))
		var parts []string
		for range depth {
			parts = append(parts, component(r))
		}
		a.text = strings.Join(parts, pick(r, []string{"/", "/", "/", "/", "/", "/", "//", "/./"}))
	}
	switch n := r.IntN(200); {
	case n < 16:
		a.text = "$W/" + a.text
	case n < 24:
		a.text = private + "/" + component(r)
	case n < 26:
		a.text = private + "/" + component(r) + "/" + component(r)
	case n < 34:
		a.text = fmt.Sprintf("/proc/self/fd/$%d", r.IntN(slots))
	case n < 38:
		a.text = fmt.Sprintf("/proc/self/fd/$%d/%s", r.IntN(slots), a.text)
	case n < 39:
		a.text = fmt.Sprintf("/dev/fd/$%d", r.IntN(slots))
	case n < 41:
		a.text = pick(r, []string{"/proc/self/cwd/", "/proc/thread-self/cwd/", "/proc/self/root/tmp/", "/proc/self/root$W/"}) + a.text
	case n < 43:
		a.text = pick(r, []string{"/usr/fileops-none", "/fileops-none", "/proc/self/none", "/etc/fileops-none", "/dev/none", "/dev/shm/n1", "/var/tmp/n2", "/proc/self/status", "/proc/self/oom_score_adj", "/dev/null", "/dev/zero", "/", "/tmp", "$W", "$W/..", "$W/../..", "/tmp/n1", "/run/n1", "/sys/x"})
	case n < 45:
		a.text = strings.Repeat("./", pick(r, []int{2045, 2046, 2047, 2048})) + a.text
	case n < 46:
		a.text = ""
	}
	switch n := r.IntN(100); {
	case n < 5:
		a.text += "/"
	case n < 6:
		a.text += "/."
	case n < 7:
		a.text += "/.."
	}
	if n := r.IntN(300); n < 3 {
		a.pointer = 1 + n
	}
	return a
}

// decode is the operation that a number stands for.
func (p *process) decode(number uint32) op {
	r := rand.New(rand.NewPCG(uint64(number), 14))
	o := op{call: pick(r, calls), a: p.path(r), b: p.path(r), slot: r.IntN(slots), mode: pick(r, modes), n: pick(r, sizes), badPointer: r.IntN(100) == 0, at: r.IntN(2) == 0}
	if r.IntN(8) == 0 {
		o.mode = r.Uint32()
	}
	o.name = pick(r, []string{"user.x", "user.x", "user.y", "user." + strings.Repeat("n", 250), "user." + strings.Repeat("n", 251), "trusted.x", "security.x", "nothing", "", "user.", "system.posix_acl_access", "system.posix_acl_default"})
	o.value = pick(r, []string{"", "v", "another", strings.Repeat("v", 300)})
	if strings.HasPrefix(o.name, "system.") {
		// rw for the owner, r for a user of its own, and what the mask lets through
		o.value = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"
	}
	for i := range o.times {
		o.times[i] = unix.Timespec{Sec: 1_000_000_000 + int64(r.IntN(1000)), Nsec: int64(r.IntN(1_000_000_000))}
		switch r.IntN(12) {
		case 0:
			o.times[i].Nsec = unix.UTIME_NOW
		case 1:
			o.times[i].Nsec = unix.UTIME_OMIT
		case 2:
			o.times[i].Nsec = 1_000_000_000
		}
	}
	switch o.call {
	case "open":
		o.flags = pick(r, []int{unix.O_RDONLY, unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR, 3})
		for range r.IntN(4) {
			o.flags |= pick(r, flagBits)
		}
		if r.IntN(40) == 0 {
			o.n = -2 // no descriptor is left
		}
	case "renameat2":
		o.flags = pick(r, []int{0, unix.RENAME_NOREPLACE, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE, unix.RENAME_EXCHANGE, unix.RENAME_EXCHANGE, unix.RENAME_WHITEOUT, unix.RENAME_NOREPLACE | unix.RENAME_EXCHANGE, 8})
	case "link":
		o.flags = pick(r, []int{0, unix.AT_SYMLINK_FOLLOW, unix.AT_SYMLINK_FOLLOW, unix.AT_EMPTY_PATH, unix.AT_EMPTY_PATH, unix.AT_EMPTY_PATH | unix.AT_SYMLINK_FOLLOW, unix.AT_SYMLINK_NOFOLLOW})
		if o.flags&unix.AT_EMPTY_PATH != 0 && r.IntN(3) > 0 {
			o.a = named{dirfd: r.IntN(slots)}
		}
	case "mknod":
		o.mode = o.mode&0o7777 | pick(r, []uint32{0, unix.S_IFREG, unix.S_IFREG, unix.S_IFIFO, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFDIR, unix.S_IFLNK, 0o130000})
		o.n = pick(r, []int64{0, 0, 259, -1})
	case "unlink", "rmdir":
		o.flags = pick(r, []int{0, 0, unix.AT_REMOVEDIR, unix.AT_REMOVEDIR, 0x400, unix.AT_EMPTY_PATH})
	case "fchmodat2", "chown", "utimensat", "xattrat", "fileattr", "access":
		o.flags = pick(r, []int{0, 0, unix.AT_SYMLINK_NOFOLLOW, unix.AT_SYMLINK_NOFOLLOW, unix.AT_EMPTY_PATH, unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW, unix.AT_SYMLINK_FOLLOW, 0x8000})
		if o.flags&unix.AT_EMPTY_PATH != 0 && r.IntN(2) > 0 {
			o.a = named{dirfd: r.IntN(slots)}
		} else if o.call == "utimensat" && r.IntN(6) == 0 {
			o.a = named{dirfd: r.IntN(slots), pointer: 1}
		}
	case "setxattr", "lsetxattr", "fsetxattr":
		o.flags = pick(r, []int{0, 0, 0, unix.XATTR_CREATE, unix.XATTR_REPLACE, 3, 8})
	case "truncate":
		if r.IntN(6) == 0 {
			o.flags = 1 // under a limit on the sizes of files
		}
	case "symlink":
		if r.IntN(2) == 0 {
			o.a.text, o.a.pointer = pick(r, []string{"a", "c", "../c", "n1", "n2", "d", "missing/x", ".git", ".git/config", ".mcp.json", "/proc/self/fd/0", "$W/a", "bare", private}), 0
		}
	}
	return o
}

// expand makes a path's text what the kernel is handed.
func (p *process) expand(text string) string {
	text = strings.ReplaceAll(text, "$W", p.dir)
	for i, fd := range p.fds {
		text = strings.ReplaceAll(text, fmt.Sprintf("$%d", i), fmt.Sprint(fd))
	}
	return text
}

func (p *process) fd(slot int) int {
	switch slot {
	case cwd:
		return unix.AT_FDCWD
	case noFD:
		return -1
	case highFD:
		return 1000
	case negative:
		return -7
	}
	return p.fds[slot]
}

// put copies b to the end of what is left of the memory, and returns where it is.
func (p *process) put(b []byte) uintptr {
	p.used += uintptr(len(b))
	copy(p.memory[room-p.used:], b)
	at := p.end - p.used
	p.used = (p.used + 7) &^ 7
	return at
}

func (p *process) pointer(a named) uintptr {
	switch a.pointer {
	case 1:
		return 0
	case 2:
		return p.end + 8
	case 3:
		if p.used > 0 {
			return p.end // another path is at the end
		}
		return p.put([]byte(p.expand(a.text)))
	}
	return p.put(append([]byte(p.expand(a.text)), 0))
}

func words[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// madeFirst follows the answer to an open that made a file, found no number for the
// descriptor, and removed the file again. The guard does so once in a thread: the times
// of the directory show it.
const madeFirst = " made first"

// above is the directory that a path's last name is in.
func (p *process) above(a named) (dir int, text string) {
	text = p.expand(a.text)
	return p.fd(a.dirfd), cmp.Or(text[:strings.LastIndexByte(text, '/')+1], ".")
}

// changedAt is when the entries of the directory above a path changed last.
func (p *process) changedAt(a named) unix.Timespec {
	var st unix.Stat_t
	dir, text := p.above(a)
	unix.Fstatat(dir, text, &st, 0)
	return st.Mtim
}

// changeNow has them change now.
func (p *process) changeNow(a named) {
	dir, text := p.above(a)
	unix.UtimesNanoAt(dir, text, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}, 0)
}

// do performs an operation, and says what it got.
func (p *process) do(o op) (got string) {
	p.used = 0
	call := func(nr uintptr, args ...uintptr) (uintptr, syscall.Errno) {
		var a [6]uintptr
		copy(a[:], args)
		r, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		return r, e
	}
	plain := func(nr uintptr, args ...uintptr) string {
		_, e := call(nr, args...)
		return name(e)
	}
	other := func(b []byte) uintptr {
		if o.badPointer {
			return p.end + 8
		}
		return p.put(b)
	}
	da, db := uintptr(p.fd(o.a.dirfd)), uintptr(p.fd(o.b.dirfd))
	slot, mode, flags := uintptr(p.fds[o.slot]), uintptr(o.mode), uintptr(o.flags)
	pa, pb := uintptr(0), uintptr(0)
	pa = p.pointer(o.a)
	if strings.HasPrefix(o.call, "rename") || o.call == "link" || o.call == "symlink" {
		pb = p.pointer(o.b)
	}
	// The older call, where the machine has it, is relative to the working directory.
	old := func(nr uintptr) bool { return nr != 0 && !o.at && o.a.dirfd == cwd && o.b.dirfd == cwd }
	opened := func(r uintptr, e syscall.Errno) string {
		if e != 0 {
			return name(e)
		}
		if r == 0 {
			return "no descriptor" // 0 is open
		}
		if at := p.fds[o.slot]; at >= 0 {
			unix.Close(at)
		}
		p.fds[o.slot] = int(r)
		return fmt.Sprintf("ok %d %s", r, describe(int(r)))
	}
	switch o.call {
	case "open", "creat":
		if o.call == "creat" {
			o.flags = unix.O_CREAT | unix.O_WRONLY | unix.O_TRUNC
		}
		// A FIFO would be waited for.
		var st unix.Stat_t
		if o.flags&unix.O_NONBLOCK == 0 && o.flags&unix.O_PATH == 0 && o.a.pointer == 0 && unix.Fstatat(int(da), p.expand(o.a.text), &st, 0) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			if o.call == "creat" {
				return "a FIFO"
			}
			o.flags |= unix.O_NONBLOCK
		}
		flags = uintptr(o.flags)
		if o.n == -2 {
			free, err := unix.Dup(0)
			if err != nil {
				return err.Error()
			}
			unix.Close(free)
			var was unix.Rlimit
			unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &was)
			unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: was.Max}, nil)
			defer unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil)
			if o.flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL {
				before := p.changedAt(o.a)
				defer func() {
					if got == "EMFILE" && p.changedAt(o.a) != before {
						got += madeFirst
					}
				}()
			}
		}
		if o.call == "creat" && old(sysCreat) {
			return opened(call(sysCreat, pa, mode))
		}
		if old(sysOpen) {
			return opened(call(sysOpen, pa, flags, mode))
		}
		return opened(call(unix.SYS_OPENAT, da, pa, flags, mode))
	case "close":
		p.fds[o.slot] = -1
		return plain(unix.SYS_CLOSE, slot)
	case "dup":
		to := int(o.mode) % slots
		if to == o.slot || slot == ^uintptr(0) {
			return "none"
		}
		n, err := unix.Dup(int(slot))
		if err != nil {
			return err.Error()
		}
		if p.fds[to] >= 0 {
			unix.Close(p.fds[to])
		}
		p.fds[to] = n
		return fmt.Sprint("ok ", n)
	case "read":
		b := make([]byte, 20)
		n, err := unix.Pread(int(slot), b, 0)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("ok %q", b[:n])
	case "write":
		n, err := unix.Write(int(slot), []byte("written"))
		return fmt.Sprint(n, err)
	case "fstat":
		return describe(int(slot))
	case "stat", "lstat":
		var st unix.Stat_t
		how := 0
		if o.call == "lstat" {
			how = unix.AT_SYMLINK_NOFOLLOW
		}
		if _, e := call(unix.SYS_NEWFSTATAT, da, pa, uintptr(unsafe.Pointer(&st)), uintptr(how)); e != 0 {
			return name(e)
		}
		return status(&st)
	case "readlink":
		b := make([]byte, 300)
		n, e := call(unix.SYS_READLINKAT, da, pa, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e != 0 {
			return name(e)
		}
		if strings.Contains(string(b[:n]), "/#") {
			return "none" // as below
		}
		return p.show(string(b[:n]))
	case "fdlink":
		to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", int(slot)))
		if err != nil || strings.Contains(to, "/#") || strings.HasPrefix(to, "pipe:") {
			return "none" // one without a name is called by its number
		}
		return p.show(to)
	case "getdents":
		fd, e := call(unix.SYS_OPENAT, da, pa, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if e != 0 {
			return name(e)
		}
		defer unix.Close(int(fd))
		b := make([]byte, 1<<16)
		n, err := unix.Getdents(int(fd), b)
		if err != nil {
			return err.Error()
		}
		if strings.HasPrefix(p.expand(o.a.text), "/") && !strings.HasPrefix(p.expand(o.a.text), p.root) {
			return "ok"
		}
		_, _, names := unix.ParseDirent(b[:n], -1, nil)
		if slices.Contains(names, "version") || slices.Contains(names, "status") || slices.Contains(names, "bin") {
			return "ok" // not what the test made
		}
		return strings.Join(sorted(names), " ")
	case "rename":
		if old(sysRename) {
			return plain(sysRename, pa, pb)
		}
		if o.flags == 0 && o.mode&1 == 0 && sysRenameat != 0 {
			return plain(sysRenameat, da, pa, db, pb)
		}
		return plain(unix.SYS_RENAMEAT2, da, pa, db, pb, 0)
	case "renameat2":
		return plain(unix.SYS_RENAMEAT2, da, pa, db, pb, flags)
	case "link":
		if old(sysLink) {
			return plain(sysLink, pa, pb)
		}
		return plain(unix.SYS_LINKAT, da, pa, db, pb, flags)
	case "symlink":
		if sysSymlink != 0 && !o.at && o.b.dirfd == cwd {
			return plain(sysSymlink, pa, pb)
		}
		return plain(unix.SYS_SYMLINKAT, pa, db, pb)
	case "unlink", "rmdir":
		if o.call == "unlink" && old(sysUnlink) {
			return plain(sysUnlink, pa)
		}
		if o.call == "rmdir" && old(sysRmdir) {
			return plain(sysRmdir, pa)
		}
		return plain(unix.SYS_UNLINKAT, da, pa, flags)
	case "mkdir":
		if old(sysMkdir) {
			return plain(sysMkdir, pa, mode)
		}
		return plain(unix.SYS_MKDIRAT, da, pa, mode)
	case "mknod":
		if old(sysMknod) {
			return plain(sysMknod, pa, mode, uintptr(o.n))
		}
		return plain(unix.SYS_MKNODAT, da, pa, mode, uintptr(o.n))
	case "truncate":
		if o.flags == 1 {
			var was unix.Rlimit
			unix.Prlimit(0, unix.RLIMIT_FSIZE, nil, &was)
			unix.Prlimit(0, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 2000, Max: was.Max}, nil)
			defer unix.Prlimit(0, unix.RLIMIT_FSIZE, &was, nil)
		}
		return plain(unix.SYS_TRUNCATE, pa, uintptr(o.n))
	case "ftruncate":
		return plain(unix.SYS_FTRUNCATE, slot, uintptr(o.n))
	case "chmod":
		if old(sysChmod) {
			return plain(sysChmod, pa, mode)
		}
		return plain(unix.SYS_FCHMODAT, da, pa, mode)
	case "fchmod":
		return plain(unix.SYS_FCHMOD, slot, mode)
	case "fchmodat2":
		return plain(unix.SYS_FCHMODAT2, da, pa, mode, flags)
	case "chown", "lchown":
		uid, gid := p.owner(o.n), p.owner(o.n>>1)
		if o.call == "lchown" && sysLchown != 0 && o.a.dirfd == cwd {
			return plain(sysLchown, pa, uid, gid)
		}
		if o.call == "lchown" {
			return plain(unix.SYS_FCHOWNAT, da, pa, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
		}
		if old(sysChown) {
			return plain(sysChown, pa, uid, gid)
		}
		return plain(unix.SYS_FCHOWNAT, da, pa, uid, gid, flags)
	case "fchown":
		return plain(unix.SYS_FCHOWN, slot, p.owner(o.n), p.owner(o.n>>1))
	case "utimensat":
		t := uintptr(0)
		if o.mode&3 != 0 {
			t = other(words(&o.times))
		}
		return plain(unix.SYS_UTIMENSAT, da, pa, t, flags)
	case "utime", "utimes":
		nr := uintptr(sysUtimes)
		if o.call == "utime" {
			nr = sysUtime
		}
		if nr == 0 || o.a.dirfd != cwd {
			return plain(unix.SYS_UTIMENSAT, da, pa, 0, 0)
		}
		tv := [4]int64{o.times[0].Sec, o.times[0].Nsec / 1000, o.times[1].Sec, o.times[1].Nsec / 1000}
		if o.call == "utime" {
			tv[1] = o.times[1].Sec
		}
		if o.call == "utimes" && o.at && sysFutimesat != 0 {
			return plain(sysFutimesat, da, pa, other(words(&tv)))
		}
		return plain(nr, pa, other(words(&tv)))
	case "futimens":
		return plain(unix.SYS_UTIMENSAT, slot, 0, other(words(&o.times)), 0)
	case "setxattr", "lsetxattr", "fsetxattr":
		value := []byte(o.value)
		n, v, size := p.put(append([]byte(o.name), 0)), other(value), uintptr(len(value))
		if o.mode == 0o17777 {
			size = 70000
		}
		switch o.call {
		case "setxattr":
			return plain(unix.SYS_SETXATTR, pa, n, v, size, flags)
		case "lsetxattr":
			return plain(unix.SYS_LSETXATTR, pa, n, v, size, flags)
		}
		return plain(unix.SYS_FSETXATTR, slot, n, v, size, flags)
	case "getxattr", "fgetxattr":
		b := make([]byte, 400)
		n := p.put(append([]byte(o.name), 0))
		nr, first := uintptr(unix.SYS_GETXATTR), pa
		if o.call == "fgetxattr" {
			nr, first = unix.SYS_FGETXATTR, slot
		}
		k, e := call(nr, first, n, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e != 0 {
			return name(e)
		}
		return fmt.Sprintf("ok %x", b[:k])
	case "removexattr":
		return plain(unix.SYS_REMOVEXATTR, pa, p.put(append([]byte(o.name), 0)))
	case "lremovexattr":
		return plain(unix.SYS_LREMOVEXATTR, pa, other(append([]byte(o.name), 0)))
	case "fremovexattr":
		return plain(unix.SYS_FREMOVEXATTR, slot, p.put(append([]byte(o.name), 0)))
	case "listxattr":
		b := make([]byte, 1000)
		n, e := call(unix.SYS_LISTXATTR, pa, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e != 0 {
			return name(e)
		}
		return strings.Join(sorted(strings.Split(string(b[:n]), "\x00")), " ")
	case "xattrat": // Linux 6.13
		args := struct {
			value uint64
			size  uint32
			flags uint32
		}{uint64(p.put([]byte(o.value + "\x00"))), uint32(len(o.value)), 0}
		return plain(sysSetxattrat, da, pa, flags, p.put(append([]byte(o.name), 0)), other(words(&args)), 16)
	case "fileattr": // Linux 6.17
		var attr [24]byte
		if o.mode&1 == 0 {
			attr[0] = 0x80 // not dumped
		}
		return plain(sysFileSetattr, da, pa, other(attr[:]), 24, flags)
	case "setflags":
		f := int64(0x40) // not dumped
		return plain(unix.SYS_IOCTL, slot, unix.FS_IOC_SETFLAGS, p.put(words(&f)))
	case "umask":
		if os.Getenv("RACER") != "" {
			return ""
		}
		return fmt.Sprintf("%o", unix.Umask(int(o.mode)&0o777))
	case "chdir":
		return plain(unix.SYS_CHDIR, pa)
	case "fchdir":
		return plain(unix.SYS_FCHDIR, slot)
	case "access":
		return plain(unix.SYS_FACCESSAT2, da, pa, mode&7, flags)
	case "bind":
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err.Error()
		}
		defer unix.Close(s)
		text := p.expand(o.a.text)
		at, ok := p.resolve(named{text: o.a.text, dirfd: cwd}, false)
		if len(text) > 100 || text == "" || ok && p.judge(at.full, true) != allowed {
			return "none" // sockets with a protected name are not held back
		}
		if err := unix.Bind(s, &unix.SockaddrUnix{Name: text}); err != nil {
			return err.Error()
		}
		return "ok"
	}
	panic(o.call)
}

// owner is an id: the process's own, none, or one that it may not give.
func (p *process) owner(n int64) uintptr {
	switch n & 3 {
	case 0:
		return uintptr(os.Getuid())
	case 3:
		return ^uintptr(0)
	}
	return 0
}

// show leaves the job's directory out of a path.
func (p *process) show(path string) string {
	if i := strings.Index(path, "/proc/"); i == 0 {
		return "in /proc"
	}
	return fmt.Sprintf("%q", strings.ReplaceAll(strings.ReplaceAll(path, p.dir, "$W"), p.root, "$ROOT"))
}

func status(st *unix.Stat_t) string {
	size := st.Size
	if st.Mode&unix.S_IFMT == unix.S_IFDIR || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		size = 0
	}
	links := st.Nlink
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		links = 0
	}
	mode := st.Mode
	if mode&unix.S_IFMT == unix.S_IFLNK {
		mode = unix.S_IFLNK // in /proc the rest is of when somebody looked last
	}
	return fmt.Sprintf("%o links %d %d:%d size %d rdev %d mtime %s", mode, links, st.Uid, st.Gid, size, st.Rdev, when(st.Mtim))
}

// describe is what a descriptor is: its file, its flags, its place and its mount.
func describe(fd int) string {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err.Error()
	}
	fl, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	cl, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	at, _ := unix.Seek(fd, 0, unix.SEEK_CUR)
	return fmt.Sprintf("%s flags %#x %d at %d", status(&st), fl, cl, at)
}
