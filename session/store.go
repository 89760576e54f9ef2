//go:build unix

package session

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/oncejson"
	"github.com/sbxrun/sbxrun/policy"
)

// A Store is the directory that sessions are kept in: one directory each, with a
// record and, while the holder lives, its socket. Nobody but the owner can look
// into it.
type Store struct {
	root *os.Root
	dir  string
}

const (
	recordFile = "session.json"
	policyFile = "policy.json"
	socketFile = "socket"
)

// OpenStore opens the store at a path and makes it if it is not there. A
// directory that is another's, or that others can write to, is refused: whoever
// made it could put a session of his own in it.
func OpenStore(path string) (*Store, error) {
	if !filepath.IsAbs(path) {
		return nil, &policy.InvalidError{Field: "sessions", Value: path, Want: "an absolute path"}
	}
	if err := PrivateDir(path); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Store{root: root, dir: path}, nil
}

// PrivateDir makes a directory that is the caller's alone, if it is not there. One
// that is another's, or that others can look into, is refused.
func PrivateDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return &StoreError{Path: path, Cause: "it belongs to user " + strconv.Itoa(int(st.Uid)) + " and has mode " + fmt.Sprintf("%#o", st.Mode&0o7777)}
	}
	return nil
}

// StoreError says that the directory for sessions cannot be trusted.
type StoreError struct{ Path, Cause string }

func (e *StoreError) Error() string { return "will not keep sessions in " + e.Path + ": " + e.Cause }

// Hint says what to do.
func (e *StoreError) Hint() string {
	return "remove it, or set XDG_RUNTIME_DIR to a directory that is yours alone"
}

// Close closes the store's directory. Sessions live on.
func (s *Store) Close() error { return s.root.Close() }

// Create makes the directory of a new session. It is ErrExists if there is one of
// that name.
func (s *Store) Create(info *Info, p *policy.Policy) error {
	if err := CheckID(info.ID); err != nil {
		return err
	}
	if err := s.root.Mkdir(info.ID, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("session %s: %w", info.ID, ErrExists)
		}
		return err
	}
	b, err := oncejson.Marshal(p)
	if err == nil {
		err = s.write(info.ID, policyFile, b)
	}
	if err == nil {
		err = s.Record(info)
	}
	if err != nil {
		s.remove(info.ID)
	}
	return err
}

// Discard removes a session that did not come about.
func (s *Store) Discard(id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	return s.remove(id)
}

// Socket is the path of a session's socket, for who looks at it.
func (s *Store) Socket(id string) string { return filepath.Join(s.dir, id, socketFile) }

// Record writes what is known of a session.
func (s *Store) Record(info *Info) error {
	b, err := oncejson.Marshal(info)
	if err != nil {
		return err
	}
	return s.write(info.ID, recordFile, b)
}

// write replaces a file as a whole.
func (s *Store) write(id, name string, b []byte) error {
	path := filepath.Join(id, name)
	tmp := path + ".tmp"
	if err := s.root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := s.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = s.root.Rename(tmp, path)
	}
	if err != nil {
		s.root.Remove(tmp)
	}
	return err
}

// Lookup returns the record of a session, as its holder left it. A holder that
// is gone without saying so makes the state Failed. It is ErrNotFound if there
// is no such session.
func (s *Store) Lookup(id string) (*Info, error) {
	info, err := s.Recorded(id)
	if err != nil {
		return nil, err
	}
	if info.State != Stopped && info.State != Failed {
		c, err := s.dial(id)
		switch {
		case err == nil:
			c.Close()
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist) && time.Since(info.Created) > startPatience:
			info.State, info.Error = Failed, "its holder, process "+strconv.Itoa(info.Pid)+", is gone"
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return info, nil
}

// Recorded returns the record of a session without asking whether its holder is
// there.
func (s *Store) Recorded(id string) (*Info, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	b, err := s.root.ReadFile(filepath.Join(id, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("session %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	info := &Info{}
	if err := oncejson.Unmarshal(b, info); err != nil {
		return nil, fmt.Errorf("session %s: the record is damaged: %w", id, err)
	}
	if info.ID != id {
		return nil, fmt.Errorf("session %s: the record is of another: %q", id, info.ID)
	}
	return info, nil
}

// startPatience is how long a holder may take from the session's directory to
// its socket before it counts as dead.
const startPatience = 10 * time.Second

// Policy returns the policy that a session was made with.
func (s *Store) Policy(id string) (*policy.Policy, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	b, err := s.root.ReadFile(filepath.Join(id, policyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("session %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	p := &policy.Policy{}
	return p, oncejson.Unmarshal(b, p)
}

// List returns every session, by name. One of which the record cannot be read is
// in the list as Failed.
func (s *Store) List() ([]*Info, error) {
	d, err := s.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	list := []*Info{}
	for _, e := range entries {
		if CheckID(e.Name()) != nil || !e.IsDir() {
			continue
		}
		info, err := s.Lookup(e.Name())
		if errors.Is(err, ErrNotFound) {
			// Being made, or left by a crash before there was a record.
			info, err = &Info{ID: e.Name(), State: Created}, nil
			if fi, e := e.Info(); e == nil {
				info.Created = fi.ModTime()
			}
		}
		if err != nil {
			info = &Info{ID: e.Name(), State: Failed, Error: err.Error()}
		}
		list = append(list, info)
	}
	sortInfos(list)
	return list, nil
}

// Remove removes what is left of a session that has ended.
func (s *Store) Remove(id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	info, err := s.Lookup(id)
	switch {
	case errors.Is(err, ErrNotFound):
		if _, serr := s.root.Lstat(id); serr != nil {
			return err
		}
	case err == nil && info.State != Stopped && info.State != Failed:
		return fmt.Errorf("session %s: %w", id, syscall.EBUSY)
	}
	return s.remove(id)
}

func (s *Store) remove(id string) error {
	// A holder that does not answer any more may be writing its last record.
	for end := time.Now().Add(startPatience); ; time.Sleep(time.Millisecond) {
		err := s.root.RemoveAll(id)
		if !errors.Is(err, syscall.ENOTEMPTY) || time.Now().After(end) {
			return err
		}
	}
}

// Prune removes what is left of sessions that ended longer ago than age, and
// returns their names.
func (s *Store) Prune(age time.Duration) ([]string, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	var gone []string
	var errs []error
	for _, info := range list {
		over := info.State == Stopped || info.State == Failed || info.State == Created && time.Since(info.Created) > startPatience
		if fi, err := s.root.Lstat(info.ID); !over || err != nil || time.Since(fi.ModTime()) < age {
			continue
		}
		if err := s.remove(info.ID); err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, info.ID)
	}
	return gone, errors.Join(errs...)
}

// dial connects to a session's holder.
func (s *Store) dial(id string) (*conn, error) {
	path, done, err := s.socket(id)
	if err != nil {
		return nil, err
	}
	defer done()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &conn{UnixConn: c}, nil
}

// listen makes a session's socket.
func (s *Store) listen(id string) (*net.UnixListener, error) {
	path, done, err := s.socket(id)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by a path that holds only now
	return l, nil
}

// socket is a path of a session's socket that fits into a socket address (108
// bytes, unix(7)) however long the store's own is.
func (s *Store) socket(id string) (path string, done func(), err error) {
	d, err := s.root.Open(id)
	if err != nil {
		return "", nil, err
	}
	fd := "/proc/self/fd/" + strconv.Itoa(int(d.Fd()))
	if _, err := os.Lstat(fd); err != nil {
		// No /proc, as on macOS.
		d.Close()
		return filepath.Join(s.dir, id, socketFile), func() {}, nil
	}
	return fd + "/" + socketFile, func() { d.Close() }, nil
}
