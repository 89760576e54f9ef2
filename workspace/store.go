//go:build unix

package workspace

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Store is the directory that sets are kept in: one directory each, which holds
// the list of changes and the new content of files. Nobody but the owner can look
// into it.
type Store struct {
	root *os.Root
	dir  string
}

const (
	setFile   = "changes.json"
	newPrefix = ".new-" // of a set that is being written
)

// OpenStore opens the store at a path and makes it if it is not there. A
// directory that is another's, or that others can look into, is refused.
func OpenStore(path string) (*Store, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("will not keep changes in %q: not an absolute path", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return nil, &StoreError{Path: path, Cause: "it belongs to user " + strconv.Itoa(int(st.Uid)) + " and has mode " +
			fmt.Sprintf("%#o", st.Mode&0o7777)}
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Store{root: root, dir: path}, nil
}

// StoreError says that the directory for changes cannot be trusted.
type StoreError struct{ Path, Cause string }

func (e *StoreError) Error() string { return "will not keep changes in " + e.Path + ": " + e.Cause }

// Hint says what to do.
func (e *StoreError) Hint() string {
	return "chmod 700 it if it is yours, or set XDG_STATE_HOME to a directory that is yours alone"
}

// Close closes the store's directory.
func (s *Store) Close() error { return s.root.Close() }

// Exists reports whether there is a set of that name.
func (s *Store) Exists(id string) bool {
	_, err := s.root.Lstat(id)
	return err == nil
}

// A writer makes a set. Until it is closed the set is not there.
type writer struct {
	store *Store
	id    string
	name  string // of the directory
	dir   *os.Root
	run   string // begins the names of contents: who reads a set that was replaced meanwhile finds none of the next one's
	blobs int
	small packer

	replace bool // one of the name that there is
}

// create begins a set, which replaces one of the same name only if that is said.
func (s *Store) create(id string, replace bool) (*writer, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	if !replace && s.Exists(id) {
		return nil, fmt.Errorf("%s: %w", id, ErrExists)
	}
	w := &writer{store: s, id: id, name: newPrefix + id, run: rand.Text() + "-", replace: replace}
	err := s.root.Mkdir(w.name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		// Of a process that died. Two that make one set do not exist: its name
		// is that of a run or a session.
		if err = s.root.RemoveAll(w.name); err == nil {
			err = s.root.Mkdir(w.name, 0o700)
		}
	}
	if err != nil {
		return nil, err
	}
	if w.dir, err = s.root.OpenRoot(w.name); err != nil {
		s.root.Remove(w.name)
		return nil, err
	}
	return w, nil
}

// blob makes a file for content.
func (w *writer) blob() (name string, f *os.File, err error) {
	w.blobs++
	name = w.run + strconv.Itoa(w.blobs)
	f, err = w.dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return name, f, err
}

// drop removes a blob that turned out to be of no use. What is in a pack stays.
func (w *writer) drop(name string) { w.dir.Remove(name) }

// A packer writes the content of small files one after the other into one file: to make a
// file for each would take most of the time.
type packer struct {
	name string
	f    *os.File
	at   int64  // in the file, of buf
	buf  []byte // not written yet
	sum  hash.Hash
}

// packed is up to which size content goes into a pack, bytes. What is larger may have
// holes, and has a file of its own without them.
const packed = 64 << 10

// pack copies what an open file holds, up to n.Size, and notes size, sum and place in n.
func (w *writer) pack(fd int, n *Node) (err error) {
	p := &w.small
	if p.f == nil {
		if p.name, p.f, err = w.blob(); err != nil {
			return err
		}
		p.buf, p.sum = make([]byte, 0, 16*packed), sha256.New()
	}
	if cap(p.buf)-len(p.buf) < packed {
		if err := p.flush(); err != nil {
			return err
		}
	}
	n.Pack, n.At = p.name, p.at+int64(len(p.buf))
	room := p.buf[len(p.buf) : len(p.buf)+int(n.Size)]
	n.Size = 0
	for len(room) > 0 {
		k, err := unix.Read(fd, room)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if k == 0 {
			break // a sandbox that still runs took some away
		}
		n.Size, room = n.Size+int64(k), room[k:]
	}
	content := p.buf[len(p.buf) : len(p.buf)+int(n.Size)]
	p.buf = p.buf[:len(p.buf)+len(content)]
	p.sum.Reset()
	p.sum.Write(content)
	n.Sum = hex.EncodeToString(p.sum.Sum(nil))
	return nil
}

// flush writes what is not written yet.
func (p *packer) flush() error {
	n, err := p.f.WriteAt(p.buf, p.at)
	p.at, p.buf = p.at+int64(n), p.buf[:0]
	return err
}

// close ends the pack, if there is one.
func (p *packer) close() error {
	if p.f == nil {
		return nil
	}
	err := errors.Join(p.flush(), p.f.Close())
	p.f = nil
	return err
}

// none is commit for a set without changes.
func (w *writer) none() error {
	w.abort()
	if w.replace {
		return w.store.root.RemoveAll(w.id)
	}
	return nil
}

// abort removes what was written.
func (w *writer) abort() {
	w.small.close()
	w.dir.Close()
	w.store.root.RemoveAll(w.name)
}

// commit makes the set exist, on the disk too.
//
// Preconditions: the content of its files is there.
func (w *writer) commit(set *Set) error {
	set.seal()
	b, err := json.Marshal(set)
	if err == nil {
		err = w.dir.WriteFile(setFile, b, 0o600)
	}
	if err == nil {
		err = sync(w.dir, setFile)
	}
	if err == nil && w.replace {
		err = w.store.root.RemoveAll(w.id)
	}
	if err == nil {
		err = w.store.root.Rename(w.name, w.id)
	}
	if err == nil {
		err = sync(w.store.root, ".")
	}
	if err != nil {
		w.abort()
		return err
	}
	set.store = w.store
	return w.dir.Close()
}

// sync has a file of a directory, or the directory's own list, written to the disk.
func sync(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Load reads a set.
func (s *Store) Load(id string) (*Set, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	b, err := s.root.ReadFile(id + "/" + setFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	set := &Set{store: s}
	if err := json.Unmarshal(b, set); err != nil {
		return nil, fmt.Errorf("change set %s: %w", id, err)
	}
	set.unseal()
	return set, nil
}

// List describes all sets, the oldest first. One that cannot be read is passed
// over, and its error returned beside the others.
func (s *Store) List() ([]*Info, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var errs []error
	list := []*Info{}
	for _, name := range names {
		if CheckID(name) != nil {
			continue
		}
		set, err := s.Load(name)
		if err != nil {
			if !errors.Is(err, ErrNotFound) {
				errs = append(errs, err)
			}
			continue
		}
		list = append(list, &set.Info)
	}
	slices.SortFunc(list, func(a, b *Info) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return list, errors.Join(errs...)
}

func (s *Store) names() ([]string, error) {
	d, err := s.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// Remove removes a set.
func (s *Store) Remove(id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	if !s.Exists(id) {
		return fmt.Errorf("%s: %w", id, ErrNotFound)
	}
	return s.root.RemoveAll(id)
}

// Prune removes what was left of sets that were never completed, and, with all,
// complete ones too, if they are older than age. It returns their names.
func (s *Store) Prune(age time.Duration, all bool) ([]string, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var gone []string
	var errs []error
	for _, name := range names {
		id, half := strings.CutPrefix(name, newPrefix)
		if CheckID(id) != nil {
			continue
		}
		if !half {
			_, err := s.root.Lstat(name + "/" + setFile)
			half = errors.Is(err, fs.ErrNotExist)
		}
		fi, err := s.root.Lstat(name)
		if err != nil || !half && !all || time.Since(fi.ModTime()) < age {
			continue
		}
		if err := s.root.RemoveAll(name); err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, id)
	}
	return gone, errors.Join(errs...)
}
