package guard

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// madeMark is the extended attribute of the configuration of a repository that a command
// made, a hash of its content. No command can set it: the guard refuses that for protected
// paths. Whoever changes the file on the host, in place or as `git config` does, makes the
// repository the user's.
const madeMark = "user.sbxrun.made"

// spared reports whether an entry that a pattern protects may be made or removed all the
// same, as part of a repository that a command makes.
func (w *worker) spared(e *entry, a act, rule string) bool {
	if a > removesDir || !w.only(e.full, len(e.mount.grant.Path), w.dirs(e), rule) {
		return false
	}
	name, dir := string(e.name), e.parent
	at := dir[lastSlash(dir)+1:]
	switch rule {
	case rebasePattern, sequencerPattern:
		if ".git/"+name == rule {
			return a == makesDir || a == removesDir
		}
		return a == removes && ".git/"+string(at) == rule
	case ".git/":
		return name == ".git" && (a == removesDir || a == makesDir && w.marks(e.dir) ||
			a == removes && len(dir) > len(e.mount.grant.Path) && linksTree(readSmall(e.dir, name)))
	case commonPattern:
		return a == removes && name == "commondir" && isTree(dir)
	case ConfigPattern:
		if strings.HasPrefix(name, "config.sbxrun-") { // of a guard that was killed
			return a == removes
		}
		return a == removes && name == "config" && string(at) == ".git" && made(e.dir)
	case ".git/hooks":
		if name == "hooks" && string(at) == ".git" {
			return (a == makesDir || a == removesDir) && made(e.dir)
		}
		if (a == makes || a == removes) && bytes.HasSuffix(dir, []byte("/.git/hooks")) && sampleHook(e.name) {
			fd, err := unix.Openat(e.dir, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return false
			}
			defer unix.Close(fd)
			return made(fd)
		}
	}
	return false
}

// only reports whether a path that a pattern protects is protected by no other one, where
// that one allows something.
func (w *worker) only(path []byte, root int, dirs Dirs, rule string) bool {
	if !w.g.rules.Current().checksConfig() {
		return false
	}
	v, _ := w.rules(path).match(path, root, dirs, rule)
	return v != Protected
}

// probes reports whether a symbolic link to be made, whose text is in link, is the one by
// which Git finds out whether a new repository can have any. It leads nowhere but to a
// file "testing" beside it.
func (w *worker) probes(e *entry) bool {
	return w.g.rules.Current().checksConfig() && bytes.HasPrefix(w.link[:], []byte("testing\x00")) && len(e.name) == 7 &&
		e.name[0] == 't' &&
		string(e.parent[lastSlash(e.parent)+1:]) == ".git" && e.none == 0 && made(e.dir)
}

// madeConfig reports whether an open place is the configuration of a repository that a
// command made.
func (w *worker) madeConfig(fd int) bool {
	name, m, errno := w.named(fd, &w.canon[0])
	if errno != 0 || m == nil || m.grant == nil || !m.grant.Guarded || !bytes.HasSuffix(name, []byte("/.git/config")) {
		return false
	}
	dirs := w.dirsOf(fd, name)
	v, rule := w.rules(name).Match(name, len(m.grant.Path), dirs)
	if v != Protected || rule != ConfigPattern || !w.only(name, len(m.grant.Path), dirs, rule) {
		return false
	}
	dir, errno := w.held.open(name[:lastSlash(name)])
	if errno != 0 {
		return false
	}
	defer closeFD(dir)
	return made(dir)
}

// made reports whether a command made the repository whose directory is open: it has no
// configuration, or one with the mark and nothing else than such a repository may have.
func made(dir int) bool {
	config, marked, err := readConfig(dir)
	return err == unix.ENOENT || err == nil && marked && goodConfig(nil, config, true)
}

// readConfig reads the configuration of a repository. ENOENT is for one that has none.
func readConfig(dir int) (config []byte, marked bool, err error) {
	fd, err := openUnseen(dir, "config", unix.O_NOFOLLOW)
	if err != nil {
		return nil, false, err
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	if config, err = io.ReadAll(io.LimitReader(f, maxConfig+1)); err != nil {
		return nil, false, err
	}
	var is [sha256.Size]byte
	n, err := unix.Fgetxattr(fd, madeMark, is[:])
	return config, err == nil && n == len(is) && is == sha256.Sum256(config), nil
}

// mark marks a configuration. If it fails, the repository counts as the user's.
func mark(fd int, config []byte) {
	sum := sha256.Sum256(config)
	unix.Fsetxattr(fd, madeMark, sum[:], 0)
}

// marks reports whether the file system of an open directory can have the mark: if not,
// no repository is begun that could not be finished or removed.
func (w *worker) marks(dir int) bool {
	name := append([]byte(madeMark), 0)
	_, e := sys.Call(unix.SYS_GETXATTR, w.selfPath(dir), sys.Addr(&name[0]), 0, 0, 0, 0)
	return e == 0 || syscall.Errno(e) == unix.ENODATA
}

// moveConfig is a rename of a file to the name of a repository's configuration. It returns
// configured for one that the command may not put there.
func (w *worker) moveConfig(from, to *entry, flags uint32) syscall.Errno {
	temp := fmt.Sprintf("config.sbxrun-%016x", rand.Uint64())
	return w.moveCopy(from, to, temp, maxConfig, configured, func(f *os.File, size int64, copied bool) (uint, bool) {
		config := make([]byte, size)
		if _, err := f.ReadAt(config, 0); err != nil && size > 0 {
			return 0, false
		}
		old, marked, err := readConfig(to.dir)
		there := err != unix.ENOENT
		if there && err != nil {
			return 0, false // what it holds cannot be kept
		}
		made := w.g.rules.Current().checksConfig() && string(to.parent[lastSlash(to.parent)+1:]) == ".git" &&
			(!there || marked && goodConfig(nil, old, true))
		how := uint(flags)
		w.stat.Mode &^= 0o7022
		var st unix.Stat_t
		if there && unix.Fstatat(to.dir, "config", &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			w.stat.Mode = st.Mode
		}
		switch {
		case made:
			if copied {
				mark(int(f.Fd()), config)
			}
			if !there {
				how |= unix.RENAME_NOREPLACE
			}
		case !there:
			return 0, false
		}
		return how, goodConfig(old, config, made)
	})
}

// makeConfig is an open of the configuration of a new repository that makes it (libgit2
// does): it stays empty, for the descriptor is one to read.
func (w *worker) makeConfig(e *entry, flags, mode uint32) (int64, syscall.Errno) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Openat(e.dir, "config", unix.O_RDONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode&0o7777)
	if err != nil {
		return failed(err.(syscall.Errno))
	}
	mark(fd, nil)
	return w.install(fd, flags)
}
