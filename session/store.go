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
		return &StoreError{Path: path, Cause: "it belongs to user " + strconv.Itoa(int(st.Uid)) + " and has mode " +
			fmt.Sprintf("%#o", st.Mode&0o7777)}
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
		err = s.holding(info.ID, func(d *held) error {
			if err := d.write(policyFile, b); err != nil {
				return err
			}
			return d.record(info)
		})
	}
	if err != nil {
		s.root.RemoveAll(info.ID)
	}
	return err
}

// Discard removes a session that did not come about.
func (s *Store) Discard(id string) error {
	return s.remove(id, time.Second, func() error { return nil })
}

// Socket is the path of a session's socket, for who looks at it.
func (s *Store) Socket(id string) string { return filepath.Join(s.dir, id, socketFile) }

// Record writes what is known of a session that nobody holds.
func (s *Store) Record(info *Info) error {
	return s.holding(info.ID, func(d *held) error { return d.record(info) })
}

// held is a session's directory that is locked: by its holder for as long as it may
// write there, by others for a moment. The lock ends with the process that has it,
// and a name that is given again is that of another directory.
type held struct {
	store *Store
	id    string
	root  *os.Root
	lock  *os.File
}

// hold locks a session's directory, for which it waits so long. The error is
// ErrNotFound if there is none, and EBUSY if somebody else has it.
func (s *Store) hold(id string, patience time.Duration) (*held, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	root, err := s.root.OpenRoot(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("session %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	lock, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	d := &held{store: s, id: id, root: root, lock: lock}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			break
		}
	}
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = fmt.Errorf("session %s: its holder has not ended: %w", id, syscall.EBUSY)
	case err != nil:
		err = &os.PathError{Op: "flock", Path: filepath.Join(s.dir, id), Err: err}
	default:
		// Whoever had the lock may have removed it.
		own, oerr := lock.Stat()
		named, nerr := s.root.Lstat(id)
		if oerr != nil || nerr != nil || !os.SameFile(own, named) {
			err = fmt.Errorf("session %s: %w", id, ErrNotFound)
		}
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// lookPatience is how long a lock is waited for that somebody may have only to see
// whether it is free.
const lookPatience = time.Second

// holding does something with a session's directory that nobody holds.
func (s *Store) holding(id string, do func(*held) error) error {
	d, err := s.hold(id, lookPatience)
	if err != nil {
		return err
	}
	defer d.close()
	return do(d)
}

// isHeld reports whether somebody has the lock of a session's directory.
func (s *Store) isHeld(id string) bool {
	d, err := s.root.Open(id)
	if err != nil {
		return false
	}
	defer d.Close()
	err = syscall.Flock(int(d.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	syscall.Flock(int(d.Fd()), syscall.LOCK_UN)
	return errors.Is(err, syscall.EWOULDBLOCK)
}

// close unlocks the directory: not only by closing it, because a sandbox that was
// cloned meanwhile may have a copy of the descriptor.
func (d *held) close() {
	syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN)
	d.lock.Close()
	d.root.Close()
}

// record writes what is known of the session.
func (d *held) record(info *Info) error {
	b, err := oncejson.Marshal(info)
	if err != nil {
		return err
	}
	return d.write(recordFile, b)
}

// write replaces a file as a whole.
func (d *held) write(name string, b []byte) error {
	tmp := name + ".tmp"
	if err := d.root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = d.root.Rename(tmp, name)
	}
	if err != nil {
		d.root.Remove(tmp)
	}
	return err
}

// Lookup returns the record of a session, as its holder left it. A holder that
// is gone without saying so makes the state Failed. It is ErrNotFound if there
// is no such session.
func (s *Store) Lookup(id string) (*Info, error) {
	info, c, err := s.lookup(id, false)
	if c != nil {
		c.Close()
	}
	return info, err
}

// Enter is Lookup and [Store.Connect] with one connection, for a request that follows at
// once. The client of a session that runs is that session's alone: where another has its
// name by now, a request is ErrNotRunning.
func (s *Store) Enter(id string) (*Info, *Client, error) {
	info, conn, err := s.lookup(id, false)
	if err != nil {
		return nil, nil, err
	}
	c := &Client{store: s, id: id}
	if info.State == Ready || info.State == Running {
		c.holder = info.Pid
		c.unused.Store(conn)
	} else if conn != nil {
		conn.Close() // no request follows yet
	}
	return info, c, nil
}

// lookup is Lookup. Ours says that the caller has the lock of the session's
// directory, and so no holder has. The connection is nil if no holder listens.
func (s *Store) lookup(id string, ours bool) (*Info, *conn, error) {
	for range 10 {
		info, err := s.Recorded(id)
		if err != nil || info.Over() {
			return info, nil, err
		}
		c, err := s.dial(id)
		if err != nil {
			info, err = s.unanswered(id, ours, err)
			return info, nil, err
		}
		if c.peer == info.Pid {
			return info, c, nil
		}
		// The record is of the time before this holder, or of another session that had
		// the name.
		c.Close()
	}
	return nil, nil, fmt.Errorf("session %s: another holds it than its record says: %w", id, syscall.EAGAIN)
}

// unanswered is the state of a session whose holder does not answer.
func (s *Store) unanswered(id string, ours bool, err error) (*Info, error) {
	if errors.Is(err, syscall.EAGAIN) {
		// It is there, and more wait for an answer than may.
		info, err := s.Recorded(id)
		if err == nil {
			info.Notice = (&SilentError{id, info.Pid}).Notice()
		}
		return info, err
	}
	refused := errors.Is(err, syscall.ECONNREFUSED)
	if !refused && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// A holder stops to listen when its last record is written.
	info, err := s.Recorded(id)
	if err != nil || info.Over() {
		return info, err
	}
	if !refused && time.Since(info.Created) <= startPatience {
		return info, nil
	}
	// It may take longer to begin.
	if starting := info.State == Created || info.State == Initializing; starting && !ours && s.isHeld(id) {
		return info, nil
	}
	info.State, info.Error = Failed, "its holder, process "+strconv.Itoa(info.Pid)+", is gone"
	return info, nil
}

// Over reports whether only the record is left.
func (i *Info) Over() bool { return i.State == Stopped || i.State == Failed }

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

// startPatience is how long it may take from a session's directory to a holder that
// has locked it, and from the end of a holder to that of all that it had.
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

// Remove removes what is left of a session that has ended. It is EBUSY if the session
// has not, or if its holder is not done with it.
func (s *Store) Remove(id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	if err := s.removable(id, false); err != nil {
		return err
	}
	return s.remove(id, startPatience, func() error { return s.removable(id, true) })
}

// Reclaim is Remove also of a session whose holder may be about to begin: that ends then,
// for it finds nothing to hold.
func (s *Store) Reclaim(id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	return s.remove(id, startPatience, func() error { return nil })
}

// removable is nil if nothing but a record is left of a session. Ours is as in lookup.
func (s *Store) removable(id string, ours bool) error {
	info, c, err := s.lookup(id, ours)
	if c != nil {
		c.Close()
	}
	over := err != nil || info.Over() // one with a damaged record is
	if errors.Is(err, ErrNotFound) {
		// Being made, or left by a crash before there was a record.
		fi, serr := s.root.Lstat(id)
		if serr != nil {
			return err
		}
		over = time.Since(fi.ModTime()) > startPatience
	}
	if !over {
		return fmt.Errorf("session %s: %w", id, syscall.EBUSY)
	}
	return nil
}

// remove removes a session's directory if it may be, which is asked when nobody else
// has it: another may have removed it before, and a third made one of that name.
func (s *Store) remove(id string, patience time.Duration, may func() error) error {
	if fi, err := s.root.Lstat(id); err == nil && !fi.IsDir() {
		return s.root.Remove(id) // nobody can hold it
	}
	d, err := s.hold(id, patience)
	if err != nil {
		return err
	}
	defer d.close()
	if err := may(); err != nil {
		return err
	}
	return s.root.RemoveAll(id)
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
		over := info.Over() || info.State == Created && time.Since(info.Created) > startPatience
		if fi, err := s.root.Lstat(info.ID); !over || err != nil || time.Since(fi.ModTime()) < age {
			continue
		}
		switch err := s.Remove(info.ID); {
		case err == nil:
			gone = append(gone, info.ID)
		case !errors.Is(err, ErrNotFound) && !errors.Is(err, syscall.EBUSY):
			errs = append(errs, err)
		}
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
	c, pid, err := dial(path)
	if errors.Is(err, syscall.ESRCH) {
		err = fmt.Errorf("%w: %w", syscall.ECONNREFUSED, err) // a moment later it would have been
	}
	if err != nil {
		return nil, err
	}
	return &conn{UnixConn: c, peer: pid}, nil
}

// Dial connects to a socket of this user's, if who listens there is this user, or
// root, and no sandboxed command.
func Dial(path string) (*net.UnixConn, error) {
	c, _, err := dial(path)
	return c, err
}

// dial is Dial, and says who listens.
func dial(path string) (c *net.UnixConn, pid int, err error) {
	c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, 0, err
	}
	if pid, err = checkPeer(c); err != nil {
		c.Close()
		return nil, 0, err
	}
	return c, pid, nil
}

// listen makes the session's socket.
func (d *held) listen() (*net.UnixListener, error) {
	if path, ok := within(d.lock); ok {
		return listen(path)
	}
	return listen(d.store.Socket(d.id))
}

func listen(path string) (*net.UnixListener, error) {
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
	path, ok := within(d)
	if !ok {
		d.Close()
		return s.Socket(id), func() {}, nil
	}
	return path, func() { d.Close() }, nil
}

// within is the path of the socket in an open directory, if there is /proc: on macOS
// there is not.
func within(d *os.File) (string, bool) {
	fd := "/proc/self/fd/" + strconv.Itoa(int(d.Fd()))
	_, err := os.Lstat(fd)
	return fd + "/" + socketFile, err == nil
}
