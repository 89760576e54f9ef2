//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// protect is the part of strict's list that the names in op.go can meet.
var protect = []string{".git/", ".git/config", ".git/config.worktree", ".git/commondir", ".git/hooks", ".git/rebase-merge", ".git/sequencer", ".config/git", ".config/nvim", ".bashrc", ".vscode", "*.code-workspace", ".mcp.json", ".claude",
	".git/worktrees/*/config", ".git/worktrees/*/config.worktree", ".git/worktrees/*/commondir", ".git/worktrees/*/hooks", ".git/worktrees/*/rebase-merge", ".git/worktrees/*/sequencer"}

// A verdict is what docs/profiles.md says of an operation.
type verdict int

const (
	allowed verdict = iota // the kernel's answer is the right one
	open                   // the documentation leaves it open: refused, or the kernel's answer
	denied                 // must fail
)

// matches reports whether a path, from where what is writable begins, is protected.
func matches(rel string) bool {
	v, ok := matched[rel]
	if !ok {
		if v = match(strings.Split(strings.ToLower(rel), "/")); len(matched) > 100_000 {
			clear(matched)
		}
		matched[rel] = v
	}
	return v
}

// matched are the answers of matches: it is asked for whole trees.
var matched = map[string]bool{}

func match(names []string) bool {
	for _, pattern := range protect {
		itself := strings.HasSuffix(pattern, "/")
		parts := strings.Split(strings.TrimSuffix(pattern, "/"), "/")
		for i := 0; i+len(parts) <= len(names); i++ {
			if itself && i+len(parts) != len(names) {
				continue
			}
			if slices.EqualFunc(parts, names[i:i+len(parts)], func(pattern, name string) bool {
				ok, _ := path.Match(pattern, name)
				return ok
			}) {
				return true
			}
		}
	}
	return false
}

// leads reports whether a name leads to another in a pattern.
func leads(name string) bool {
	return slices.ContainsFunc(protect, func(p string) bool {
		first, _, ok := strings.Cut(p, "/")
		return ok && strings.EqualFold(first, name)
	})
}

// What makes a directory a repository for Git, and what Git takes commands from
// in one.
var (
	gitParts    = []string{"head", "objects", "refs", "commondir"}
	gitCommands = []string{"config", "config.worktree", "commondir", "hooks"}
	gitStates   = []string{"rebase-merge", "sequencer"}
)

// goodSteps is a list of Git's that it takes, and steps are the names of such lists. The other
// names in the tree are of files that may hold anything; strategy is of none that may be made.
const goodSteps = "noop\n"

var steps = []string{"git-rebase-todo", "author-script"}

// inTree reports whether a directory has the place of a linked worktree's.
func inTree(dir string) bool {
	up := path.Dir(dir)
	return strings.EqualFold(path.Base(up), "worktrees") && strings.EqualFold(path.Base(path.Dir(up)), ".git")
}

// stateful reports whether a path can be a file of a rebase that may be changed.
func stateful(full string) bool {
	return path.Base(path.Dir(full)) == "rebase-merge" && (slices.Contains(steps, path.Base(full)) || slices.Contains([]string{"done", "done.lock", "msgnum"}, path.Base(full)))
}

// has reports whether a directory has an entry: denied for yes, open if nobody may tell.
func has(dir, name string) verdict {
	entries, err := os.ReadDir(dir)
	if err != nil { // that needs the right to read it
		switch _, err := os.Lstat(filepath.Join(dir, name)); {
		case err == nil:
			return denied
		case errors.Is(err, unix.EACCES):
			return open
		}
		return allowed
	}
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.EqualFold(e.Name(), name) }) {
		return denied
	}
	return allowed
}

// repository says how much of one a directory is, once with has been made in it.
func repository(dir, with string) verdict {
	h := func(name string) verdict {
		if strings.EqualFold(name, with) {
			return denied
		}
		return has(dir, name)
	}
	head := h("HEAD")
	whole := min(head, max(min(h("objects"), h("refs")), h("commondir")))
	return max(whole, min(open, head))
}

// goodIndex is an index of Git's that has no entry.
var goodIndex = "DIRC\x00\x00\x00\x02" + strings.Repeat("\x00", 4+20)

// index is the verdict on an entry that is the index of a repository, or part of one.
func (p *process) index(full string) verdict {
	for at, top := full, p.top(full); top != "" && len(at) > len(top); at = path.Dir(at) {
		if n := strings.ToLower(path.Base(at)); n != "index" && !strings.HasPrefix(n, "sharedindex.") {
			continue
		}
		if dir := path.Dir(at); dir != top && (strings.EqualFold(path.Base(dir), ".git") || inTree(dir)) {
			return denied
		} else if v := repository(dir, ""); v != allowed {
			return v
		}
	}
	return allowed
}

// replaces is the verdict on a rename to the name of an index. What is copied for that is
// not what the kernel renames, in what a copy has not.
func (p *process) replaces(from place, to string) (v verdict, copied bool) {
	if v = p.index(to); v == allowed || from.st == nil {
		return v, false
	}
	c, err := content(from.full)
	names, _ := listxattr(from.full)
	copied = from.st.Nlink != 1 || len(names) > 0 || int(from.st.Uid) != os.Getuid() || int(from.st.Gid) != os.Getgid() || from.st.Mode&0o7000 != 0
	for _, fd := range p.fds {
		var st unix.Stat_t
		copied = copied || fd >= 0 && unix.Fstat(fd, &st) == nil && st.Ino == from.st.Ino
	}
	switch {
	case err == nil && c == goodIndex:
		return allowed, copied
	case strings.HasPrefix(c, "DIRC"):
		return min(v, open), true
	}
	return v, false
}

// spares is the verdict on an operation that must fail unless it is part of making a
// repository, or of removing one that a command made. The sandbox without the guard
// does not know which of them have its mark.
func (p *process) spares(o op, v verdict, from, to place) verdict {
	dir, name := path.Dir(to.full), path.Base(to.full)
	config, err := content(dir + "/config")
	// By a path that may not be searched this cannot be told; the trees are compared anyway.
	made := path.Base(dir) == ".git" && (err == nil && config == "" || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES))
	switch {
	case name == ".git" && slices.Contains([]string{"mkdir", "rmdir", "unlink"}, o.call):
	case slices.Contains(gitStates, name) && slices.Contains([]string{"mkdir", "rmdir", "unlink"}, o.call):
	case slices.Contains(gitStates, path.Base(dir)) && slices.Contains([]string{"unlink", "rmdir"}, o.call):
	case stateful(to.full) && !slices.Contains(steps, name) && slices.Contains([]string{"open", "creat"}, o.call):
	case stateful(to.full) && strings.HasPrefix(o.call, "rename") && name != "msgnum" && from.st != nil && from.st.Mode&unix.S_IFMT == unix.S_IFREG:
		if c, err := content(from.full); slices.Contains(steps, name) && (err != nil || c != "" && (c != goodSteps || name != "git-rebase-todo")) {
			return v
		}
	case name == "commondir" && inTree(dir) && slices.Contains([]string{"open", "creat", "unlink", "rmdir"}, o.call):
	case name == "hooks" && made && slices.Contains([]string{"mkdir", "rmdir", "unlink"}, o.call):
	case name == "config" && made && slices.Contains([]string{"open", "creat", "unlink"}, o.call):
	case name == "config" && strings.HasPrefix(o.call, "rename") && path.Base(dir) == ".git" && from.st != nil && from.st.Mode&unix.S_IFMT == unix.S_IFREG:
		if c, err := content(from.full); err != nil || c != config && !(made && c == "") {
			return v
		}
	default:
		return v
	}
	return min(v, open)
}

// top is where what is writable and holds dir begins, "" if it is none of the host's.
func (p *process) top(dir string) string {
	for _, m := range p.mounts {
		if dir == m || strings.HasPrefix(dir, m+"/") {
			return m
		}
	}
	return ""
}

// readMounts finds the workspace's mounts: in those, names are protected.
func (p *process) readMounts() {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	p.mounts = nil
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == p.root || strings.HasPrefix(f[4], p.root+"/")) {
			p.mounts = append(p.mounts, f[4])
		}
	}
	if len(p.mounts) == 0 {
		p.mounts = []string{p.root}
	}
	slices.SortFunc(p.mounts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// judge is the verdict on an entry that is made, changed or removed.
func (p *process) judge(full string, made bool) verdict {
	top := p.top(full)
	if top == "" || full == top {
		return allowed
	}
	rel := full[len(top)+1:]
	if matches(rel) {
		return denied
	}
	v := allowed
	if !p.free {
		v = p.index(full)
	}
	names := strings.Split(rel, "/")
	for i, n := range names {
		dir := path.Join(top, path.Join(names[:i]...))
		if slices.Contains(gitCommands, strings.ToLower(n)) || slices.Contains(gitStates, strings.ToLower(n)) {
			v = max(v, repository(dir, ""))
		}
		if i == len(names)-1 && slices.Contains(gitParts, strings.ToLower(n)) {
			v = max(v, open)
			if made && !strings.EqualFold(path.Base(dir), ".git") && !inTree(dir) && repository(dir, "") != denied {
				v = max(v, repository(dir, n))
			}
		}
	}
	return v
}

// part is the repository that an entry is part of, the nearest, "" for none. It is unsure
// if a nearer directory has some of what makes one.
func (p *process) part(full string) (repo string, unsure bool) {
	top := p.top(full)
	for dir := path.Dir(full); top != "" && len(dir) >= len(top); dir = path.Dir(dir) {
		switch v := repository(dir, ""); {
		case v == denied || strings.EqualFold(path.Base(dir), ".git"):
			return dir, unsure
		case v == open:
			unsure = true
		}
	}
	return "", unsure
}

// linked is the verdict on a symbolic link that is made.
func (p *process) linked(full string) verdict {
	switch repo, unsure := p.part(full); {
	case full == "":
	case repo != "":
		return denied
	case unsure || leads(path.Base(full)): // in the place of what leads to something protected
		return open
	}
	return allowed
}

// crosses is the verdict on a rename, which must not leave a repository or come into one.
func (p *process) crosses(from, to string) verdict {
	if p.top(from) == "" || p.top(from) != p.top(to) || path.Dir(from) == path.Dir(to) {
		return allowed
	}
	r1, unsure1 := p.part(from)
	r2, unsure2 := p.part(to)
	switch {
	case unsure1 || unsure2:
		return open
	case r1 != r2:
		return denied
	}
	return allowed
}

// A place is where a path leads: an entry of a directory.
type place struct {
	full string // the entry, or what is open
	st   *unix.Stat_t
}

// protected lists what the model protects in a tree: from where its pattern
// begins, for what is above may get another name.
func protected(dir string) string {
	var lines []string
	filepath.WalkDir(dir, func(full string, d os.DirEntry, err error) error {
		if err != nil || full == dir {
			return nil
		}
		names := strings.Split(strings.TrimPrefix(full, dir+"/"), "/")
		if matches(strings.Join(names, "/")) {
			for len(names) > 1 && matches(strings.Join(names[1:], "/")) {
				names = names[1:]
			}
			c := ""
			if d.Type().IsRegular() {
				c, _ = content(full)
			} else if d.Type()&os.ModeSymlink != 0 {
				c, _ = os.Readlink(full)
			}
			switch {
			case d.Name() == "config" && d.Type().IsRegular() && c == "": // which a new repository has
			case d.Name() == "commondir" && d.Type().IsRegular() && c == "../..\n":
			case slices.Contains(gitStates, d.Name()) && d.IsDir():
			case d.Type().IsRegular() && stateful(full) && (!slices.Contains(steps, d.Name()) && d.Name() != "msgnum" || c == "" || c == goodSteps && d.Name() == "git-rebase-todo"):
			default:
				lines = append(lines, fmt.Sprintf("%s %v %q\n", strings.Join(names, "/"), d.Type(), c))
			}
		}
		if dir, c := path.Dir(full), ""; strings.EqualFold(d.Name(), "index") && len(names) > 1 && (strings.EqualFold(path.Base(dir), ".git") || repository(dir, "") == denied) {
			if c, _ = content(full); c != goodIndex && !strings.HasPrefix(c, "DIRC") && !d.IsDir() && d.Type()&(os.ModeSocket|os.ModeNamedPipe) == 0 {
				lines = append(lines, fmt.Sprintf("index %q\n", c))
			}
		}
		if d.IsDir() && d.Name() != ".git" && !inTree(full) && repository(full, "") == denied {
			c, _ := content(full + "/config")
			lines = append(lines, fmt.Sprintf("repository %q\n", c))
		}
		return nil
	})
	return strings.Join(sorted(lines), "")
}

// resolve finds what a path names, as the kernel would. It reports whether it
// leads anywhere.
func (p *process) resolve(a named, follow bool) (place, bool) {
	dirfd, text := p.fd(a.dirfd), p.expand(a.text)
	if a.pointer != 0 || len(text) >= unix.PathMax {
		return place{}, false
	}
	for range 41 {
		if text == "" {
			return p.opened(dirfd)
		}
		trimmed := strings.TrimRight(text, "/")
		slash := trimmed != text
		dir, last := split(trimmed)
		if last == "" || last == "." || last == ".." {
			fd, err := unix.Openat(dirfd, text, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return place{}, false
			}
			defer unix.Close(fd)
			return p.opened(fd)
		}
		parent, err := unix.Openat(dirfd, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return place{}, false
		}
		defer unix.Close(parent)
		at, ok := p.opened(parent)
		if !ok {
			return place{}, false
		}
		var st unix.Stat_t
		if unix.Fstatat(parent, last, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return place{full: filepath.Join(at.full, last)}, true
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK || !follow && !slash {
			return place{filepath.Join(at.full, last), &st}, true
		}
		if strings.HasPrefix(at.full, "/proc/") {
			fd, err := unix.Openat(parent, last, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return place{}, false
			}
			defer unix.Close(fd)
			return p.opened(fd)
		}
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(parent, last, b)
		if err != nil {
			return place{}, false
		}
		dirfd, text = parent, string(b[:n])
		if slash {
			text += "/"
		}
	}
	return place{}, false
}

// opened is the place of a descriptor.
func (p *process) opened(fd int) (place, bool) {
	var st unix.Stat_t
	if fd == unix.AT_FDCWD {
		d, err := os.Getwd()
		if err != nil || unix.Stat(".", &st) != nil {
			return place{}, false
		}
		return place{d, &st}, true
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd), b)
	if err != nil || unix.Fstat(fd, &st) != nil || n == 0 || b[0] != '/' || strings.HasSuffix(string(b[:n]), " (deleted)") {
		return place{}, false
	}
	return place{string(b[:n]), &st}, true
}

// nameless is the verdict on what a descriptor is open on if it was made without a name, or
// removed: where that happened is all that is known of it, and it may have another name.
func (p *process) nameless(fd int) verdict {
	to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !path.IsAbs(to) {
		return allowed
	}
	dir := path.Dir(to)
	for n := range strings.SplitSeq(strings.ToLower(dir), "/") {
		// From a file alone nobody can tell what its directories are parts of.
		if n == "index" || strings.HasPrefix(n, "sharedindex.") || slices.Contains(gitCommands, n) || slices.Contains(gitStates, n) {
			return open
		}
	}
	return min(open, p.judge(dir, false))
}

// namelessAt is the same of what a path leads to: a descriptor's name in /proc.
func (p *process) namelessAt(a named) verdict {
	if a.pointer != 0 || a.text == "" && a.dirfd == cwd {
		return allowed
	}
	if a.text == "" {
		return p.nameless(p.fd(a.dirfd))
	}
	fd, err := unix.Openat(p.fd(a.dirfd), p.expand(a.text), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return allowed
	}
	defer unix.Close(fd)
	return p.nameless(fd)
}

// unsearchable reports whether an open directory cannot be reached by its path.
func (p *process) unsearchable(dirfd int) bool {
	at, ok := p.opened(p.fd(dirfd))
	return ok && unix.Access(at.full+"/..", unix.F_OK) == unix.EACCES
}

// unreachable reports whether a path begins at a directory that is, also by what it is
// called in /proc.
func (p *process) unreachable(a named) bool {
	_, fd, ok := strings.Cut(a.text, "/fd/$")
	return p.unsearchable(a.dirfd) || ok && p.unsearchable(int(fd[0]-'0'))
}

// moves is the verdict on a directory that gets another name: what is below it
// must be protected afterwards by the same as before. Nothing moves to another mount,
// nor is a mount itself moved.
func (p *process) moves(from, to string) (v verdict) {
	top := p.top(from)
	if top == "" || top == from || top != p.top(to) {
		return allowed
	}
	filepath.WalkDir(from, func(full string, _ os.DirEntry, err error) error {
		below := strings.TrimPrefix(full, from)
		if matches(strings.TrimPrefix(full, top+"/")) != matches(strings.TrimPrefix(to+below, top+"/")) {
			v = denied
			return filepath.SkipAll
		}
		return nil
	})
	return v
}

// verdict is what the documentation says of an operation, before it is done.
func (p *process) verdict(o op) verdict {
	v := allowed
	defer func() { p.free = false }()
	entry := func(a named, follow, made bool) place {
		at, ok := p.resolve(a, follow)
		if ok {
			v = max(v, p.judge(at.full, made))
		} else {
			v = max(v, p.namelessAt(a))
		}
		return at
	}
	flags := o.flags
	if !o.at && o.a.dirfd == cwd && o.b.dirfd == cwd && sysOpen != 0 && (o.call == "link" || o.call == "chown") {
		flags = 0
	}
	switch o.call {
	case "open", "creat":
		if o.call == "creat" {
			flags = unix.O_CREAT | unix.O_WRONLY | unix.O_TRUNC
		}
		if flags&unix.O_PATH != 0 {
			return allowed
		}
		at, ok := p.resolve(o.a, flags&unix.O_NOFOLLOW == 0 && flags&(unix.O_CREAT|unix.O_EXCL) != unix.O_CREAT|unix.O_EXCL)
		if !ok {
			return p.namelessAt(o.a)
		}
		switch creates := flags&unix.O_CREAT != 0; {
		case flags&unix.O_TMPFILE == unix.O_TMPFILE:
			return min(open, max(p.judge(at.full, false), p.judge(at.full+"/x", false)))
		case at.st == nil && creates:
			return p.spares(o, p.judge(at.full, true), place{}, at)
		case at.st == nil:
			return allowed
		case flags&unix.O_ACCMODE != 0 || flags&unix.O_TRUNC != 0:
			if stateful(at.full) && !slices.Contains(steps, path.Base(at.full)) {
				return min(open, p.judge(at.full, false))
			}
			return p.judge(at.full, false)
		case creates:
			return min(open, p.judge(at.full, false))
		}
		return allowed
	case "mkdir", "mknod":
		at := entry(o.a, false, true)
		v = p.spares(o, v, place{}, at)
	case "symlink":
		at := entry(o.b, false, true)
		v = max(v, p.linked(at.full))
	case "unlink", "rmdir":
		p.free = true
		at := entry(o.a, false, false)
		v = p.spares(o, v, place{}, at)
	case "truncate":
		o.a.dirfd = cwd
		entry(o.a, true, false)
	case "link":
		to := entry(o.b, false, true)
		if o.a.text != "" || flags&unix.AT_EMPTY_PATH != 0 {
			from := entry(o.a, flags&unix.AT_SYMLINK_FOLLOW != 0, false)
			if from.st != nil && from.st.Mode&unix.S_IFMT == unix.S_IFLNK {
				v = max(v, p.linked(to.full))
			}
		}
	case "rename", "renameat2":
		exchange := o.call == "renameat2" && flags&unix.RENAME_EXCHANGE != 0
		p.free = !exchange
		from, _ := p.resolve(o.a, false)
		if from = entry(o.a, false, exchange); !exchange && stateful(from.full) {
			v = min(v, open)
		}
		to := entry(o.b, false, true)
		if !exchange {
			i, _ := p.replaces(from, to.full)
			v = max(v, i)
		}
		if !exchange {
			v = p.spares(o, v, from, to)
		}
		for _, full := range []string{from.full, to.full} {
			if leads(path.Base(full)) || strings.EqualFold(path.Base(full), "worktrees") || inTree(full) {
				v = max(v, open)
			}
		}
		if from.full != "" && to.full != "" {
			v = max(v, p.crosses(from.full, to.full))
		}
		if from.st != nil && to.full != "" && from.st.Mode&unix.S_IFMT == unix.S_IFDIR {
			v = max(v, p.moves(from.full, to.full))
		}
		if exchange && to.st != nil && from.full != "" && to.st.Mode&unix.S_IFMT == unix.S_IFDIR {
			v = max(v, p.moves(to.full, from.full))
		}
	// The documentation says nothing of what is beside contents.
	case "chmod", "utime", "utimes", "setxattr", "removexattr":
		if strings.HasSuffix(o.call, "xattr") {
			o.a.dirfd = cwd
		}
		entry(o.a, true, false)
		v = min(v, open)
	case "lchown", "lsetxattr", "lremovexattr":
		if o.call != "lchown" {
			o.a.dirfd = cwd
		}
		entry(o.a, false, false)
		v = min(v, open)
	case "chown", "fchmodat2", "utimensat", "xattrat", "fileattr":
		if o.a.pointer == 1 {
			o.a.pointer, o.a.text = 0, ""
		}
		entry(o.a, flags&unix.AT_SYMLINK_NOFOLLOW == 0, false)
		v = min(v, open)
	case "fchmod", "fchown", "futimens", "fsetxattr", "fremovexattr", "setflags":
		if at, ok := p.opened(p.fds[o.slot]); ok {
			v = p.judge(at.full, false)
		} else {
			v = p.nameless(p.fds[o.slot])
		}
		v = min(v, open)
	}
	return v
}

// vain reports whether an operation changes nothing, whatever is protected: what is to be
// made is there, or what is to be moved or removed is not or is of another type. The kernel
// finds that before it asks for rights, or right after those of the directory.
func (p *process) vain(o op) bool {
	made := func(a named) bool {
		at, ok := p.resolve(a, false)
		return ok && (at.st != nil || o.call != "mkdir" && strings.HasSuffix(p.expand(a.text), "/"))
	}
	switch o.call {
	case "mkdir", "mknod":
		return made(o.a)
	case "symlink", "link":
		return made(o.b)
	case "open":
		return o.flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL && o.flags&unix.O_PATH == 0 && made(o.a)
	case "unlink", "rmdir":
		at, ok := p.resolve(o.a, false)
		dir := o.call == "rmdir"
		if o.at || o.a.dirfd != cwd || o.b.dirfd != cwd || sysRmdir == 0 {
			dir = o.flags&unix.AT_REMOVEDIR != 0
		}
		if ok && at.st != nil && dir && at.st.Mode&unix.S_IFMT == unix.S_IFDIR {
			entries, _ := os.ReadDir(at.full)
			return len(entries) > 0
		}
		return ok && (at.st == nil || dir != (at.st.Mode&unix.S_IFMT == unix.S_IFDIR))
	case "rename", "renameat2":
		from, ok1 := p.resolve(o.a, false)
		to, ok2 := p.resolve(o.b, false)
		flags := o.flags
		if o.call == "rename" {
			flags = 0
		}
		switch {
		case !ok1 || !ok2:
			return false
		case from.st == nil, to.st == nil && flags&unix.RENAME_EXCHANGE != 0, to.st != nil && flags&unix.RENAME_NOREPLACE != 0:
			return true
		}
		return to.st != nil && from.st.Dev == to.st.Dev && from.st.Ino == to.st.Ino
	}
	return false
}

// byDescriptor are the calls that change what a descriptor is open on.
var byDescriptor = []string{"fchmod", "fchown", "fsetxattr", "fremovexattr"}

// split is a path without its last name, and that.
func split(text string) (dir, last string) {
	i := strings.LastIndexByte(text, '/')
	dir, last = text[:i+1], text[i+1:]
	if dir == "" {
		dir = "."
	}
	return dir, last
}

// refusal reports whether the guard's answer is one.
func refusal(got string) bool { return got == "EACCES" || got == "EPERM" || got == "EXDEV" }

// lacking is the errno of what the guard does not have, and refuses.
func lacking(o op) (errno string, ok bool) {
	switch {
	case o.call == "open" && o.flags&unix.O_ACCMODE == 3: // on a read-only mount: a way of access for ioctl(2) alone
		return "EROFS", true
	case o.call == "setflags":
		return "ENOTTY", true
	case o.call == "xattrat" || o.call == "fileattr": // Linux 6.13, 6.17
		return "ENOSYS", true
	case o.call == "renameat2" && o.flags&unix.RENAME_WHITEOUT != 0: // for overlayfs's tools
		return "EINVAL", true
	}
	return "", false
}

// older reports whether a difference is that of a kernel which lacks what the guard has.
func older(o op, guard, kernel string) bool {
	switch {
	case o.call == "fchmodat2":
		return kernel == "ENOSYS" // before Linux 6.6
	case o.call == "link" && o.flags&unix.AT_EMPTY_PATH != 0:
		return kernel == "ENOENT" && before(6, 10) // it was for privilege alone
	case strings.Contains(o.call, "xattr") && strings.HasPrefix(o.name, "security."):
		return guard == "EPERM" && before(6, 11) // where BPF is a security module, nobody needed a capability
	}
	return false
}

// before reports whether the kernel is older than a release.
func before(major, minor int) bool {
	var u unix.Utsname
	var a, b int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b)
	return a < major || a == major && b < minor
}

// explained are the differences that are meant, or borne, each with its reason. Answers
// are lists of patterns.
var explained = []struct {
	calls, guard, kernel string
	reason               string
}{
	{"open creat mkdir mknod symlink link", "EROFS", "ENOENT", "what is not there in /proc, which is read-only"},
	{"unlink rmdir", "ENOENT", "EROFS", "what is not there in /proc, which is read-only"},
	{"truncate", "EFBIG", "EACCES EROFS", "the limit is looked at before the file"},
	{"truncate", "EROFS", "EACCES", "the mount is looked at before the file, as by older kernels"},
	{"open", "EROFS", "EACCES EISDIR ENOTDIR ELOOP", "the mount is looked at before the file"},
	{"chown lchown fchown", "EINVAL", "EROFS", "ids are looked at before the mount"},
	{"open", "ENOTDIR", "ELOOP", "of a link to itself that is to be a directory"},
	{"open creat", "ENOENT", "ENOTDIR", "below a removed file"},
	{"open creat", "EACCES", "EROFS", "the mount is looked at later than the directory"},
	{"open", "ENOTDIR", "ENOENT", "a link that leads nowhere is no directory, either"},
	{"open", "EACCES EBADF EINVAL EISDIR ELOOP ENAMETOOLONG ENOENT ENOTDIR ENXIO EPERM EROFS", "EMFILE", "a path that leads nowhere is told before a descriptor is wanted"},
	{"setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr", "EPERM", "EROFS", "names that only privilege sets are refused first"},
	{"rename renameat2", "EBUSY", "ok", "a directory that leads to a mount point stays where it is"},
	{"open", "EMFILE", "EACCES EBADF EEXIST EFAULT EISDIR ELOOP ENAMETOOLONG ENOENT ENOTDIR ENXIO EROFS", "no descriptor is left, and the path is wrong"},
	{"*", "ELOOP", "ENOENT", "a path of two thousand names"},
	{"rename renameat2", "EBUSY", "EACCES", "a mount point, and a directory that may not be written and would get another parent"},
	{"rename renameat2", "EACCES EBUSY EISDIR ENOTDIR", "EPERM", "a mount point, and what a sticky directory keeps"},
}

func isExplained(call, guard, kernel string) bool {
	for _, e := range explained {
		if anyOf(e.guard, guard) && anyOf(e.kernel, kernel) && (e.calls == "*" || slices.Contains(strings.Fields(e.calls), call)) {
			return true
		}
	}
	return false
}

// anyOf reports whether an answer is one of some patterns.
func anyOf(patterns, answer string) bool {
	return slices.ContainsFunc(strings.Fields(patterns), func(p string) bool {
		ok, _ := path.Match(p, answer)
		return ok
	})
}

// compare performs an operation that the guard has given its answer to, where it
// may be performed, and says what came of it; what begins with ! is a difference.
func (p *process) compare(o op, guard string) string {
	guard, first := strings.CutSuffix(guard, madeFirst)
	if errno, ok := lacking(o); ok && guard == errno {
		return "lacking"
	}
	if at, ok := p.resolve(o.a, true); guard == "EACCES" && o.call == "open" && ok && strings.HasPrefix(at.full, "/proc/") {
		return "lacking" // O_CREAT of what is there
	}
	if guard == "EACCES" && (p.unreachable(o.a) || p.unreachable(o.b) || p.unsearchable(cwd) || slices.Contains(byDescriptor, o.call) && p.unsearchable(o.slot)) {
		return "lacking" // the guard looks at what is above an open directory
	}
	v := p.verdict(o)
	if v != allowed && p.vain(o) {
		v = allowed
	}
	// What matters of an operation that must fail is that it did.
	if v == denied {
		if strings.HasPrefix(guard, "ok") {
			return fmt.Sprintf("!protected: %s\x01%v: the guard says %s", o.call, o, guard)
		}
		return "denied"
	}
	if v == open && refusal(guard) {
		return "denied"
	}
	copied, begun := false, false
	if from, ok := p.resolve(o.a, false); ok && strings.HasPrefix(o.call, "rename") {
		if to, ok := p.resolve(o.b, false); ok {
			_, copied = p.replaces(from, to.full)
			copied = copied || path.Base(to.full) == "config" || stateful(to.full)
		}
	}
	if at, ok := p.resolve(o.a, true); v == open && ok && (o.call == "open" && o.flags&(unix.O_ACCMODE|unix.O_CREAT) != unix.O_RDONLY || o.call == "creat") && (slices.Contains([]string{"config", "commondir"}, path.Base(at.full)) && at.st == nil || path.Base(at.full) == "msgnum") {
		begun = true // the guard's descriptor is one to read, or of nothing
	}
	kernel := p.do(o)
	if first {
		p.changeNow(o.a)
	}
	if begun && strings.HasPrefix(kernel, "ok") && strings.HasPrefix(guard, "ok") {
		return "#explained"
	}
	if kernel == guard {
		if copied && strings.HasPrefix(kernel, "ok") {
			return "#explained"
		}
		return kernel
	}
	if older(o, guard, kernel) || isExplained(o.call, guard, kernel) {
		if strings.HasPrefix(guard, "ok") != strings.HasPrefix(kernel, "ok") {
			return "#explained" // what comes now cannot be compared
		}
		return "explained"
	}
	// If both failed the rest can be compared all the same.
	mark := "!"
	if !strings.HasPrefix(guard, "ok") && !strings.HasPrefix(kernel, "ok") {
		mark = "?"
	}
	return fmt.Sprintf("%s%s: %s, not %s\x01%v: the guard says %s, the kernel %s", mark, o.call, kind(guard, kernel), kind(kernel, guard), o, guard, kernel)
}

// kind is what is particular to an answer, beside another.
func kind(got, beside string) string {
	if !strings.HasPrefix(got, "ok") || !strings.HasPrefix(beside, "ok") {
		first, _, _ := strings.Cut(got, " ")
		return first
	}
	g, b := strings.Fields(got), strings.Fields(beside)
	var differ []string
	for i := range g {
		if i >= len(b) || g[i] != b[i] {
			differ = append(differ, fmt.Sprintf("%d:%s", i, g[i]))
		}
	}
	return "ok " + strings.Join(differ, ",")
}
