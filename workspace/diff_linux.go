package workspace

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// maxText is the largest file that a diff shows the lines of, bytes.
const maxText = 4 << 20

// Patch returns a change as a patch in the format of Git, against what the
// workspace has now. A file that is no text, or too large to show, is named and
// not shown.
func (s *Set) Patch(w *Workspace, st *Status) (string, error) {
	old, now := "", st.Now
	if now != nil && now.Type == "" {
		now = nil
	}
	name := st.Path
	head := "diff --git " + gitQuoted("a/"+name) + " " + gitQuoted("b/"+name) + "\n"
	to, remark := st.New, ""
	if to != nil && to.Type == Dir {
		// A patch has no word for directories; what they hold has its own.
		if now != nil && now.Type == Dir {
			return exactMode(name+"/", now, to), nil
		}
		remark, to = exactMode(name+"/", nil, to), nil
		if !s.holds(name) {
			remark += "# " + gitQuoted(name+"/") + ": a new directory\n"
		}
	}
	if now != nil && now.Type == Dir {
		if now = nil; !s.holds(name) {
			remark += "# " + gitQuoted(name+"/") + ": the directory is removed\n"
		}
	}
	if now == nil && to == nil {
		return remark, nil
	}
	unread := false
	var err error
	switch {
	case now == nil:
	case now.Type == Symlink:
		old = now.Target
	case now.Size > maxText:
		unread = true
	default:
		old, err = w.read(st.Path, now.Size)
		if unread = errors.Is(err, fs.ErrPermission); err != nil && !unread {
			return "", err
		}
	}
	text := ""
	switch {
	case to == nil:
	case to.Type == Symlink:
		text = to.Target
	case to.Size > maxText:
		unread = true
	default:
		if text, err = w.proposed(s, to); err != nil {
			return "", err
		}
	}
	if to != nil {
		remark += exactMode(name, now, to)
	}
	differ := old != text
	if unread {
		differ = now == nil || to == nil || to.Sum == "" || to.Sum != now.Sum && !(now.known(st.Old) && to.Sum == st.Old.Sum)
	}
	binary := unread || !isText(old) || !isText(text)
	if now != nil && to != nil && (now.Type != to.Type || now.Type == Symlink) {
		// Two patches, as Git has it: one takes away, the other adds.
		return remark + head + "deleted file mode " + mode(now) + "\n" + body(name, binary, old, "", true, false) +
			head + "new file mode " + mode(to) + "\n" + body(name, binary, "", text, false, true), nil
	}
	switch {
	case now == nil:
		head += "new file mode " + mode(to) + "\n"
	case to == nil:
		head += "deleted file mode " + mode(now) + "\n"
	case mode(now) != mode(to):
		head += "old mode " + mode(now) + "\nnew mode " + mode(to) + "\n"
	case !differ:
		head = "" // a mode that Git has no word for
	}
	if !differ {
		return remark + head, nil
	}
	return remark + head + body(name, binary, old, text, now != nil, to != nil), nil
}

// holds reports whether there are changes below a directory.
func (s *Set) holds(dir string) bool {
	if s.above == nil {
		s.above = map[string]bool{}
		for _, c := range s.Changes {
			for up, _ := split(c.Path); up != "" && !s.above[up]; up, _ = split(up) {
				s.above[up] = true
			}
		}
	}
	return s.above[dir]
}

// exactMode is a remark on a mode that Git has no word for: one that changes, or
// that grants more than Git's would.
func exactMode(name string, now, to *Node) string {
	git := uint32(0o644)
	if to.Type == Dir || to.Mode&0o100 != 0 {
		git = 0o755
	}
	was := ""
	switch {
	case to.Type == Symlink:
		return ""
	case now != nil && now.Type == to.Type && (to.Type == Dir || mode(now) == mode(to)):
		if now.Mode == to.Mode {
			return ""
		}
		was = fmt.Sprintf(", was %04o", now.Mode)
	case to.Mode&^git == 0:
		return ""
	}
	return fmt.Sprintf("# %s: mode %04o%s\n", gitQuoted(name), to.Mode, was)
}

// body is the part of a patch that shows content.
func body(name string, binary bool, old, text string, hasOld, hasNew bool) string {
	if old == text && !binary {
		return "" // empty
	}
	from, to := "/dev/null", "/dev/null"
	if hasOld {
		from = gitQuoted("a/" + name)
	}
	if hasNew {
		to = gitQuoted("b/" + name)
	}
	if binary {
		return "Binary files " + from + " and " + to + " differ\n"
	}
	return "--- " + from + "\n+++ " + to + "\n" + unified(old, text)
}

// mode is a mode as Git knows it.
func mode(n *Node) string {
	switch {
	case n.Type == Symlink:
		return "120000"
	case n.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// proposed reads the sandbox's content of a file, of maxText at most.
func (w *Workspace) proposed(s *Set, n *Node) (string, error) {
	f, err := w.content(s, n)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(b)
	return string(b), n.whole(int64(len(b)), h)
}

// read reads a file of the workspace.
func (w *Workspace) read(rel string, size int64) (string, error) {
	dir, name := split(rel)
	fd, err := openDir(w.root, dir)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: rel, Err: err}
	}
	defer unix.Close(fd)
	f, err := openFile(fd, name)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: rel, Err: err}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, size))
	return string(b), err
}
