package workspace

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/sparse"
)

// allowed reports whether a protected path may be changed.
func (o *Options) allowed(st *Status) bool { return guard.Allowed(o.Allow, st.Protected, st.Path) }

// Apply makes the changes of a set in its workspace. It looks at everything first,
// and changes nothing if something is protected or in conflict; see [Options]. Each
// file takes its place in one step, with what it is to hold. An error in between
// leaves what was done, and the rest can be applied by doing it again. What the set
// was not asked for is then in the Report's Remaining.
func (s *Set) Apply(w *Workspace, o Options) (*Report, error) {
	lock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := s.returnModes(w); err != nil {
		return nil, err
	}
	v, err := s.view(w)
	if err != nil {
		return nil, err
	}
	list, err := v.check()
	if err != nil {
		return nil, err
	}
	j := &job{
		applier: applier{w: w, set: s, view: v, overwrite: o.OnConflict == Overwrite, unlinked: map[inode]bool{}},
		r:       &Report{Applied: []*Status{}}, kept: map[string]bool{}, stays: map[string]bool{},
	}
	j.choose(list, &o)
	if j.r.Refused() {
		return j.r, nil
	}
	defer j.restore()
	defer j.drop()
	// What goes makes room for what takes its place: the deepest first.
	deepest := slices.SortedFunc(slices.Values(j.todo),
		func(a, b *Status) int { return strings.Compare(b.Path, a.Path) })
	// Modes of directories come last: one may keep its owner from filling it.
	for _, step := range []func([]*Status) (*Status, error){j.clear, j.fill, j.modes} {
		if st, err := step(deepest); err != nil {
			return j.failed(st, err)
		}
	}
	r := j.r
	slices.SortFunc(r.Applied, func(a, b *Status) int { return strings.Compare(a.Path, b.Path) })
	// The set goes when this returns: what it became is to be on the disk by then.
	if err := unix.Syncfs(w.root); err != nil {
		return r, os.NewSyscallError("syncfs", err)
	}
	return r, nil
}

// A job is a set that is applied.
type job struct {
	applier
	r     *Report
	todo  []*Status
	kept  map[string]bool // paths that stay, and directories above them
	stays map[string]bool // paths of r.Kept; false for one at which there is to be a directory, and is none
}

func (j *job) keep(st *Status) {
	j.r.Kept = append(j.r.Kept, st)
	j.stays[st.Path] = st.New == nil || st.New.Type != Dir || st.Now != nil && st.Now.Type == Dir
}

// choose says of each change whether it is to be made.
func (j *job) choose(list []*Status, o *Options) {
	for _, st := range list {
		if j.overwrite && st.Protected == "" {
			st.Protected = st.holds
		}
		switch {
		case st.State == Done:
			j.r.Done++
		case st.Protected != "" && !o.allowed(st):
			j.r.Protected = append(j.r.Protected, st)
		case st.State == Conflict && o.OnConflict == KeepOurs:
			j.keep(st)
			for p := st.Path; p != ""; p, _ = split(p) {
				j.kept[p] = true
			}
		case st.State == Conflict && (!j.overwrite || st.blocked):
			j.r.Conflicts = append(j.r.Conflicts, st)
		default:
			j.todo = append(j.todo, st)
		}
	}
}

// clear removes what goes.
func (j *job) clear(deepest []*Status) (*Status, error) {
	for _, st := range deepest {
		switch {
		case st.Now == nil || st.New != nil && st.Now.Type == st.New.Type:
			continue
		case j.kept[st.Path]:
			j.keep(st)
			continue
		case st.New != nil && st.Now.Type != Dir && st.New.Type != Dir:
			continue // what comes takes its place in one step
		}
		if err := j.remove(st); err != nil {
			return st, err
		}
		if st.New == nil {
			j.r.Applied = append(j.r.Applied, st)
		}
	}
	return nil, nil
}

// fill makes what comes.
func (j *job) fill([]*Status) (*Status, error) {
	for _, st := range j.todo {
		_, stays := j.stays[st.Path]
		switch {
		case st.New == nil:
			if st.Now == nil {
				j.r.Applied = append(j.r.Applied, st)
			}
			continue
		case stays:
			continue
		case keptAbove(j.stays, st.Path):
			j.keep(st)
			continue
		}
		if err := j.put(st, j.r); err != nil {
			j.place(j.r)
			return st, err
		}
		if len(j.nameless) < atOnce {
			continue
		}
		if st, err := j.place(j.r); err != nil {
			return st, err
		}
	}
	return j.place(j.r)
}

// modes gives directories theirs.
func (j *job) modes(deepest []*Status) (*Status, error) {
	j.restore()
	for _, st := range deepest {
		if _, stays := j.stays[st.Path]; stays || st.New == nil || st.New.Type != Dir {
			continue
		}
		if err := j.mode(st); err != nil {
			return st, err
		}
	}
	return nil, nil
}

// failed says what is left to do after an error.
func (j *job) failed(st *Status, err error) (*Report, error) {
	done := make(map[*Status]bool, len(j.todo))
	for _, st := range slices.Concat(j.r.Applied, j.r.Kept) {
		done[st] = true
	}
	for _, st := range j.todo {
		if !done[st] {
			j.r.Remaining = append(j.r.Remaining, st)
		}
	}
	return j.r, fmt.Errorf("%s: %w", quote.Inside(path.Join(j.w.Path, st.Path)), err)
}

// lock keeps other processes from applying the set: one would give back the modes that
// another has taken.
func (s *Set) lock() (*os.File, error) {
	f, err := s.store.root.Open(s.ID)
	if err != nil {
		return nil, err
	}
	// A file system without locks on directories goes without.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		f.Close()
		return nil, fmt.Errorf("change set %s is being applied by another process", s.ID)
	}
	return f, nil
}

// keptAbove reports whether a directory was to come above a path that does not.
func keptAbove(stays map[string]bool, rel string) bool {
	for dir, _ := split(rel); dir != ""; dir, _ = split(dir) {
		if there, ok := stays[dir]; ok && !there {
			return true
		}
	}
	return false
}

type applier struct {
	w         *Workspace
	set       *Set
	view      *view
	overwrite bool
	modes     []func() // that take back what was made writable
	nameless  []nameless

	// unlinked are files that lost a name by this: the kernel notes that as a change
	// of those that have another.
	unlinked map[inode]bool
}

type inode struct{ dev, ino uint64 }

// lost notes that what the host had at a path lost that name.
func (a *applier) lost(st *Status) {
	if st.Now != nil && st.Now.Type != Dir {
		a.unlinked[inode{st.Now.Dev, st.Now.Ino}] = true
	}
}

var errRace = errors.New("the workspace is being changed by somebody else")

// open opens the directory that a change is in. Its name can lead elsewhere since the
// change was checked: a command exchanges directories, one of which holds a repository. So
// what is open is asked again.
func (a *applier) open(st *Status) (fd int, name string, err error) {
	dir, name := split(st.Path)
	if fd, err = openDir(a.w.root, dir); err == nil && st.Protected == "" &&
		a.view.opened(fd, dir).protected(st.Change) != "" {
		unix.Close(fd)
		return -1, name, errRace
	}
	return fd, name, err
}

// parent is open for what is put in and removed. A directory that its owner took the right
// to write to from, as the sandbox could give it back, has it for as long as this
// takes.
func (a *applier) parent(st *Status) (fd int, name string, err error) {
	dir, _ := split(st.Path)
	if fd, name, err = a.open(st); err != nil {
		return fd, name, err
	}
	var now unix.Stat_t
	const need = unix.S_IWUSR | unix.S_IXUSR
	if unix.Fstat(fd, &now) == nil && now.Mode&need != need && int(now.Uid) == os.Geteuid() {
		if err := a.set.lend(dir, now.Mode&0o777); err != nil {
			unix.Close(fd)
			return -1, name, err
		}
		if unix.Fchmod(fd, now.Mode&0o7777|need) == nil {
			a.modes = append(a.modes, func() { chmodDir(a.w.root, dir, now.Mode&0o777, now.Ino) })
		}
	}
	return fd, name, nil
}

// restore takes back the right to write from directories that had not given it.
func (a *applier) restore() {
	if a.modes == nil {
		return
	}
	for _, f := range slices.Backward(a.modes) {
		f()
	}
	a.modes = nil
	a.set.store.root.Remove(a.set.ID + "/" + lentFile)
}

// lentFile lists the modes of directories that Apply makes writable: one that is killed
// cannot give them back. Each is an octal number, a space, the path and a NUL.
const lentFile = "modes"

// lend notes that a directory is about to be writable that was not.
func (s *Set) lend(dir string, mode uint32) error {
	f, err := s.store.root.OpenFile(s.ID+"/"+lentFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%o %s\x00", mode, dir)
	return errors.Join(err, f.Close())
}

// returnModes gives directories the modes back that an Apply which was killed took.
func (s *Set) returnModes(w *Workspace) error {
	b, err := s.store.root.ReadFile(s.ID + "/" + lentFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	list := strings.Split(string(b), "\x00")
	for _, entry := range slices.Backward(list[:len(list)-1]) {
		text, dir, _ := strings.Cut(entry, " ")
		mode, err := strconv.ParseUint(text, 8, 9)
		if err != nil {
			continue
		}
		dir = cmp.Or(dir, ".") // the workspace itself
		n, err := w.lookup(dir)
		// Not one that somebody gave another mode since.
		if err == nil && n != nil && n.Type == Dir && n.Mode == uint32(mode)|unix.S_IWUSR|unix.S_IXUSR {
			if err := chmodDir(w.root, dir, uint32(mode), n.Ino); err != nil {
				return err
			}
		}
	}
	return s.store.root.Remove(s.ID + "/" + lentFile)
}

// above makes the directories above a path, which the workspace had.
func (a *applier) above(rel string) error {
	for i := range len(rel) {
		if rel[i] != '/' {
			continue
		}
		up, name := split(rel[:i])
		fd, err := openDir(a.w.root, up)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(fd, name, 0o777)
		unix.Close(fd)
		if err != nil && err != unix.EEXIST {
			return err
		}
	}
	return nil
}

// unchanged is an error if the host has not what it had when the change was
// checked.
func (a *applier) unchanged(dir int, name string, st *Status) error {
	now, _, err := lookup(dir, name)
	if err != nil {
		return err
	}
	if now != nil && st.Now != nil && a.unlinked[inode{now.Dev, now.Ino}] {
		now.ChangeTime = st.Now.ChangeTime
	}
	if now == nil && st.Now == nil || now.known(st.Now) || now != nil && st.Now != nil && now.Type == Dir &&
		st.Now.Type == Dir && now.Ino == st.Now.Ino {
		return nil
	}
	return errRace
}

// remove removes what the host has at a path.
func (a *applier) remove(st *Status) error {
	dir, name, err := a.parent(st)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := a.unchanged(dir, name, st); err != nil {
		return err
	}
	if st.Now.Type != Dir {
		a.lost(st)
		return unix.Unlinkat(dir, name, 0)
	}
	err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	if err == unix.ENOTEMPTY && a.overwrite {
		return a.removeAll(dir, name, st.Path, st)
	}
	return err
}

// removeAll removes a directory with what nobody knew of, of the change st.
func (a *applier) removeAll(up int, name, rel string, st *Status) error {
	fd, err := openDir(up, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	list, err := names(fd)
	if err != nil {
		return err
	}
	for _, entry := range list {
		at := join(rel, entry)
		if st.Protected == "" && a.view.opened(fd, rel).protected(&Change{Path: at}) != "" {
			return errRace // it was not there when that was checked
		}
		n, _, err := lookup(fd, entry)
		switch {
		case err != nil || n == nil:
		case n.Type == Dir:
			err = a.removeAll(fd, entry, at, st)
		default:
			err = unix.Unlinkat(fd, entry, 0)
		}
		if err != nil {
			return err
		}
	}
	return unix.Unlinkat(up, name, unix.AT_REMOVEDIR)
}

// A nameless file has the content of a change, and not its name yet.
type nameless struct {
	st   *Status
	dir  int
	name string
	file *os.File
}

// atOnce is how many nameless files there are at a time.
const atOnce = 100

// place gives nameless files their names. Their content is on the disk by then: if the
// power goes, a file is as it was or as it is to be, and not empty. The error is about
// the change that it returns.
func (a *applier) place(r *Report) (*Status, error) {
	defer a.drop()
	for i, n := range a.nameless {
		if i == 0 {
			if err := unix.Syncfs(int(n.file.Fd())); err != nil {
				return n.st, os.NewSyscallError("syncfs", err)
			}
		}
		temp, err := tempName()
		if err == nil && n.st.Now == nil {
			temp = n.name // in one step
		}
		if err == nil {
			err = unix.Linkat(unix.AT_FDCWD, procPath(int(n.file.Fd())), n.dir, temp, unix.AT_SYMLINK_FOLLOW)
		}
		if err == nil && temp != n.name {
			err = a.rename(n.dir, temp, n.name, n.st)
		}
		if err != nil {
			return n.st, err
		}
		r.Applied = append(r.Applied, n.st)
	}
	return nil, nil
}

// drop forgets nameless files.
func (a *applier) drop() {
	for _, n := range a.nameless {
		n.file.Close()
		unix.Close(n.dir)
	}
	a.nameless = nil
}

// put makes what a change has in the place of what was there, or a nameless file.
func (a *applier) put(st *Status, r *Report) (err error) {
	dir, name, err := a.parent(st)
	if err == unix.ENOENT && a.overwrite {
		if err = a.above(st.Path); err == nil {
			dir, name, err = a.parent(st)
		}
	}
	if err != nil {
		return err
	}
	waits := false
	defer func() {
		if err == nil && !waits {
			r.Applied = append(r.Applied, st)
		}
		if !waits {
			unix.Close(dir)
		}
	}()
	if st.New.Type == Dir {
		return a.directory(dir, name, st)
	}
	temp, err := tempName()
	if err != nil {
		return err
	}
	if st.New.Type == Symlink {
		err = unix.Symlinkat(st.New.Target, dir, temp)
	} else {
		waits, err = a.file(dir, name, temp, st)
	}
	if err != nil || waits {
		return err
	}
	return a.rename(dir, temp, name, st)
}

// rename gives what is complete its place, if the host still has there what it had.
func (a *applier) rename(dir int, temp, name string, st *Status) (err error) {
	if st.Now != nil && st.Now.Type != Dir {
		err = a.unchanged(dir, name, st)
	}
	flags := uint(0)
	if st.Now == nil || st.Now.Type == Dir {
		flags = unix.RENAME_NOREPLACE // whatever came meanwhile is not ours
	}
	if err == nil {
		err = unix.Renameat2(dir, temp, dir, name, flags)
	}
	if err == unix.EINVAL && flags != 0 { // a file system without it
		err = unix.Renameat(dir, temp, dir, name)
	}
	if err != nil {
		unix.Unlinkat(dir, temp, 0)
		return err
	}
	a.lost(st)
	return nil
}

// directory makes a directory, which its owner can fill.
func (a *applier) directory(dir int, name string, st *Status) error {
	if st.Now != nil && st.Now.Type == Dir {
		return nil
	}
	err := unix.Mkdirat(dir, name, 0o700)
	if err == unix.EEXIST {
		return a.unchanged(dir, name, st)
	}
	if err != nil {
		return err
	}
	return chmodDir(dir, name, st.New.Mode|0o700, 0)
}

// mode gives a directory its mode. One that is somebody else's by now keeps its
// own, but for the mode that one has which was made and not completed.
func (a *applier) mode(st *Status) error {
	if st.Old == nil && st.Now != nil && st.Now.Mode != st.New.Mode|0o700 {
		return nil
	}
	dir, name, err := a.open(st)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return chmodDir(dir, name, st.New.Mode, 0)
}

// chmodDir gives a directory a mode; one of another number than ino, which is not 0, keeps
// its own.
func chmodDir(root int, rel string, mode uint32, ino uint64) error {
	fd, err := openBelow(root, cmp.Or(rel, "."), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil || ino != 0 && now.Ino != ino {
		return err
	}
	return unix.Chmod(procPath(fd), now.Mode&0o7000|mode)
}

// file makes a file with what a change's is to hold. It waits for its name, and has
// the directory for as long; or it has another name, if the file system has no files
// without one.
func (a *applier) file(dir int, name, temp string, st *Status) (waits bool, err error) {
	from, err := a.w.content(a.set, st.New)
	if err != nil {
		return false, err
	}
	// Without a name until it is complete: nothing stays of one that a kill interrupts.
	// The errors are those of file systems and kernels without such files; see open(2).
	waits = true
	fd, err := unix.Openat(dir, ".", unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.ENOENT || err == unix.EINVAL {
		waits = false
		fd, err = unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return false, err
	}
	to := os.NewFile(uintptr(fd), temp)
	defer func() {
		if err == nil && waits {
			a.nameless = append(a.nameless, nameless{st, dir, name, to})
			return
		}
		if err == nil {
			err = to.Sync()
		}
		if cerr := to.Close(); err == nil {
			err = cerr
		}
		if err != nil && !waits {
			unix.Unlinkat(dir, temp, 0)
		}
		waits = false
	}()
	h := sha256.New()
	n, err := sparse.Copy(to, io.TeeReader(from, h))
	if err == nil {
		err = st.New.whole(n, h)
	}
	if err != nil {
		return waits, err
	}
	if st.Now != nil && st.Now.Type == File {
		a.inherit(dir, name, fd)
	}
	// After the owner, which takes bits of the mode away. Bits that give
	// privilege are none of a change.
	if err = unix.Fchmod(fd, st.New.Mode&0o777); err != nil {
		return waits, err
	}
	t := unix.NsecToTimespec(st.New.ModTime)
	return waits, unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), []unix.Timespec{{Nsec: unix.UTIME_NOW}, t}, 0)
}

// inherit gives a file what is not part of a change, owner and extended
// attributes, from the one whose place it takes, as far as that can be given: who
// is not its owner makes it his, as an editor would.
func (a *applier) inherit(dir int, name string, to int) {
	from, err := openBelow(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return
	}
	defer unix.Close(from)
	var was, is unix.Stat_t
	if unix.Fstat(from, &was) != nil || unix.Fstat(to, &is) != nil {
		return
	}
	if was.Uid != is.Uid || was.Gid != is.Gid {
		if unix.Fchown(to, int(was.Uid), int(was.Gid)) != nil {
			unix.Fchown(to, -1, int(was.Gid))
		}
	}
	buf := make([]byte, 64<<10)
	n, err := unix.Flistxattr(from, buf)
	if err != nil {
		return
	}
	value := make([]byte, 64<<10)
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		// Not what gives privilege, and not what the system writes itself.
		if !strings.HasPrefix(attr, "user.") && attr != "system.posix_acl_access" {
			continue
		}
		if k, err := unix.Fgetxattr(from, attr, value); err == nil {
			unix.Fsetxattr(to, attr, value[:k], 0)
		}
	}
}

func tempName() (string, error) {
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return ".sbxrun-" + hex.EncodeToString(b), nil
}
