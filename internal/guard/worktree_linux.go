package guard

import (
	"bytes"
	"io"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxTrees bounds how many directories of linked worktrees are remembered, of which Git may
// not have made all.
const maxTrees = 16

// began remembers a directory that was made, if it can be a linked worktree's and stays where
// it is. Of other repositories in the workspace a command can move what is above .git away,
// and put a link in its place; then what leads to the worktree leads elsewhere.
func (w *worker) began(e *entry) {
	if g := e.mount.grant; g != nil && g.Guarded && isTree(e.full) && stays(e.full, g.Path) &&
		w.g.rules.Current().checksConfig() {
		w.trees = slices.Insert(w.trees, 0, string(e.full))
		w.trees = w.trees[:min(len(w.trees), maxTrees)]
	}
}

// fixed returns what a file that is protected by a rule holds if a command makes it, whatever
// the command writes: what makes a linked worktree. It is "" for others.
func (w *worker) fixed(e *entry, dirs Dirs, rule string) string {
	if root := len(e.mount.grant.Path); len(e.parent) <= root || w.there(e) || !w.only(e.full, root, dirs, rule) {
		return ""
	}
	switch name := string(e.name); {
	case rule == commonPattern && name == "commondir" && isTree(e.parent):
		return commonDir
	case rule == ".git/" && name == ".git":
		for _, dir := range w.trees {
			if w.names(dir, e.full) {
				return treeLink(dir)
			}
		}
	}
	return ""
}

// names reports whether the directory of a linked worktree says that this is where its .git
// is. The link would lead nowhere else than to a directory of that kind if it lied.
func (w *worker) names(dir string, link []byte) bool {
	fd, errno := w.openat2(w.root, []byte(dir), unix.O_DIRECTORY, magic|unix.RESOLVE_NO_SYMLINKS)
	if errno != 0 {
		return false
	}
	defer closeFD(fd)
	if m := w.mountOf(fd); m == nil || m.grant == nil || !m.grant.Guarded {
		return false
	}
	return bytes.Equal(bytes.TrimSuffix(readSmall(fd, "gitdir"), []byte("\n")), link)
}

// readSmall reads a small file of an open directory, nil if that is none.
func readSmall(dir int, name string) []byte {
	fd, err := openUnseen(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(f, 2*pathMax))
	return text
}

// makeFixed is an open that makes a file whose text is fixed.
func (w *worker) makeFixed(e *entry, flags, mode uint32, text string) (int64, syscall.Errno) {
	if fresh(flags) && w.full() {
		return failed(unix.EMFILE) // of others, open knows
	}
	fd, err := unix.Openat(e.dir, string(e.name), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode&0o777)
	if err != nil {
		return failed(err.(syscall.Errno))
	}
	n, err := unix.Write(fd, []byte(text))
	unix.Close(fd)
	if err != nil || n < len(text) {
		unix.Unlinkat(e.dir, string(e.name), 0)
		return failed(unix.ENOSPC)
	}
	return w.openLost(e, flags&^unix.O_EXCL)
}
