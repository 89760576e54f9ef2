package supervisor

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// Present returns the tree without what is optional and not on this host, which
// other programs would stumble over, and all of its operations.
func Present(tree *mounts.Tree) (*mounts.Tree, []mounts.Op, error) {
	ops, err := tree.Ops()
	if err != nil {
		return nil, nil, err
	}
	keep := *tree
	keep.Entries = nil
	for _, e := range tree.Entries {
		if e.Optional {
			at, ok := mounts.HostPath(ops, e.Target)
			if !ok && within(e.Target, "/proc") {
				at, ok = e.Target, true
			}
			if ok {
				if _, err := os.Lstat(at); err != nil {
					continue
				}
			}
		}
		keep.Entries = append(keep.Entries, e)
	}
	return &keep, ops, nil
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// Lookup reports a command that is certain not to be there, or not to be
// executable: other programs would say so only in words. Preconditions: nothing is
// in private storage but what the tree puts there.
func Lookup(p *policy.Policy, ops []mounts.Op) error {
	found := error(syscall.ENOENT)
	for _, c := range reexec.Candidates(p.OCI.Process.Args[0], p.OCI.Process.Env) {
		if !strings.HasPrefix(c, "/") {
			c = strings.TrimSuffix(p.OCI.Process.Cwd, "/") + "/" + c
		}
		v := view{ops: ops, cwd: p.OCI.Process.Cwd, links: 40} // as many as the kernel follows; see path_resolution(7)
		switch err := v.execute(c, true); err {
		case nil:
			return nil
		case syscall.EACCES:
			found = err
		case syscall.ENOEXEC:
			return &driver.CommandError{Command: p.OCI.Process.Args[0], Err: err}
		}
	}
	return &driver.CommandError{Command: p.OCI.Process.Args[0], Err: found}
}

// view is the file system as a sandbox will see it.
type view struct {
	ops   []mounts.Op
	cwd   string
	links int // that may yet be followed
}

// execute tells what executing a path will come to: ENOENT, EACCES or ENOEXEC if that
// is certain, else nil. It goes by names inside: a link of the host's can lead to what
// is not shown, or shown elsewhere.
func (v *view) execute(path string, script bool) error {
	if slices.Contains(strings.Split(path, "/"), "..") {
		return nil
	}
	path = filepath.Clean(path)
	if within(path, "/proc") || within(path, "/dev") {
		return nil // the kernel's own, and the program's
	}
	for end := 1; end <= len(path); end++ {
		if end < len(path) && path[end] != '/' {
			continue
		}
		name, rest := path[:end], path[end:]
		at, ok := mounts.HostPath(v.ops, name)
		if !ok {
			if dir, err := v.own(name); !dir {
				return err
			}
			if rest == "" {
				return syscall.EACCES
			}
			continue
		}
		fi, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
			return syscall.ENOENT
		case err != nil:
			return nil
		case fi.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(at)
			if v.links--; err != nil || v.links < 0 {
				return nil
			}
			if !filepath.IsAbs(to) {
				if slices.ContainsFunc(v.ops, func(o mounts.Op) bool { return o.Kind == mounts.Symlink && o.Target == name }) {
					return nil // it is relative to where the tree's own link leads
				}
				dir := filepath.Dir(name)
				for up, ok := strings.CutPrefix(to, "../"); ok; up, ok = strings.CutPrefix(to, "../") {
					if v.linked(dir) {
						return nil // what is above it has another name
					}
					to, dir = up, filepath.Dir(dir)
				}
				to = strings.TrimSuffix(dir, "/") + "/" + to
			}
			return v.execute(to+rest, script)
		case rest != "":
		case !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0:
			return syscall.EACCES
		default:
			head, err := head(at)
			switch in := interpreter(head); {
			case err != nil || bytes.HasPrefix(head, []byte("\x7fELF")):
			case !bytes.HasPrefix(head, []byte("#!")):
				// execvp(3), by which other programs execute, takes it for a script of sh.
				if !otherFormats() {
					return syscall.ENOEXEC
				}
			case script && in != "":
				if !strings.HasPrefix(in, "/") {
					in = strings.TrimSuffix(v.cwd, "/") + "/" + in
				}
				return v.execute(in, false)
			}
		}
	}
	return nil
}

// own looks at a name that the host does not have: whether it is a directory of the
// sandbox's, else what executing it will come to.
func (v *view) own(name string) (dir bool, err error) {
	for i := range slices.Backward(v.ops) {
		o := &v.ops[i]
		if o.Target != name && within(o.Target, name) {
			return true, nil // what is mounted below has it made
		}
		if !within(name, o.Target) {
			continue
		}
		switch o.Kind {
		case mounts.Scratch, mounts.Tmpfs, mounts.Dir:
			if o.Target == name {
				return true, nil
			}
			return false, syscall.ENOENT
		case mounts.File:
			switch {
			case o.Target != name:
				return false, syscall.ENOENT
			case o.Mode&0o111 != 0:
				return false, nil
			}
			return false, syscall.EACCES
		case mounts.Mask:
			return false, syscall.ENOENT
		case mounts.Readonly:
		default:
			return false, nil // who knows
		}
	}
	return false, syscall.ENOENT
}

// linked reports whether a name is reached by a link of the tree's own.
func (v *view) linked(name string) bool {
	return slices.ContainsFunc(v.ops, func(o mounts.Op) bool { return o.Kind == mounts.Symlink && within(name, o.Target) })
}

// head is the beginning of a regular file, as long as the kernel looks at it; see
// execve(2).
func head(name string) ([]byte, error) {
	// By now it may be a pipe that nobody writes to, or a link.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(err, syscall.EACCES)
	}
	b := make([]byte, 256)
	n, err := io.ReadFull(f, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return b[:n], err
}

// interpreter is what runs a script that begins so, "" if that is none.
func interpreter(head []byte) string {
	line, ok := bytes.CutPrefix(head, []byte("#!"))
	line, _, whole := bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if !ok || !whole || len(words) == 0 {
		return ""
	}
	return words[0]
}

// otherFormats reports whether the kernel may execute more than ELF and scripts; see
// binfmt-misc.rst in its documentation.
func otherFormats() bool {
	list, err := os.ReadDir("/proc/sys/fs/binfmt_misc")
	return err != nil && !errors.Is(err, fs.ErrNotExist) || len(list) > 2 // register and status are always there
}
