// Package standin is what sbxrun needs to stand in the place of an agent's shell: who calls,
// the shell itself, the script that it was given, and where that tells the directory that
// it ended in. Package persona has the texts. It knows no flags.
package standin

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/persona"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/session"
)

// CleanPath is a search path on which no shell leads back to this program.
func CleanPath(path string) string {
	self, err := os.Executable()
	if err != nil {
		return path
	}
	me, err := os.Stat(self)
	if err != nil {
		return path
	}
	return persona.Path(path, func(file string) bool {
		fi, err := os.Stat(file)
		return err == nil && os.SameFile(fi, me)
	})
}

// Find returns the shell itself, which is not this program.
func Find(name string) (string, error) {
	names := []string{name}
	if name == "" {
		names = []string{"bash", "sh"}
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	me, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	for _, n := range names {
		for _, dir := range []string{"/bin", "/usr/bin", "/usr/local/bin", "/run/current-system/sw/bin",
			"/opt/homebrew/bin"} {
			file := filepath.Join(dir, n)
			if fi, err := os.Stat(file); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 && !os.SameFile(fi, me) {
				return file, nil
			}
		}
	}
	return "", &driver.CommandError{Command: names[0], Err: syscall.ENOENT, Fix: "install it in /bin or /usr/bin"}
}

// OutsideEnviron is the agent's environment, but for what leads back to sbxrun where
// a shell is looked for: what a shell starts is part of the agent, for which it has
// been decided. A home that the caller took away is the user's.
func OutsideEnviron(environ []string) []string {
	env := []string{}
	home := false
	for _, kv := range environ {
		if p, ok := strings.CutPrefix(kv, "PATH="); ok && p != "" {
			kv = "PATH=" + CleanPath(p)
		}
		home = home || strings.HasPrefix(kv, "HOME=") && kv != "HOME="
		env = append(env, kv)
	}
	if dir := engine.HomeOf(os.Getuid()); !home && dir != "" {
		env = append(env, "HOME="+dir)
	}
	return env
}

// SessionID names the session of an agent's for a workspace and the words that sbxrun was
// called with.
func SessionID(agent *Process, dir string, args []string) string {
	// The command line, the configuration and the workspace are the session's; a shell
	// with another must not get into it, nor one for which another directory has the
	// workspace's name by now.
	h := fnv.New64a()
	if fi, err := os.Stat(dir); err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			fmt.Fprintf(h, "%d %d\x00", st.Dev, st.Ino)
		}
	}
	for _, a := range append([]string{dir, os.Getenv("PATH")}, args...) {
		h.Write([]byte(a))
		h.Write([]byte{0})
	}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "SBXRUN_") || strings.HasPrefix(kv, "HOME=") || strings.HasPrefix(kv, "XDG_") {
			h.Write([]byte(kv))
			h.Write([]byte{0})
		}
	}
	return "agent-" + strconv.Itoa(agent.Pid) + "-" + strconv.FormatUint(agent.Began,
		36) + "-" + strconv.FormatUint(h.Sum64(), 36)
}

// Keep enters the session of an agent's, and makes it if it is not there. Retired ends one
// that is out of date, and reports whether it has ended. Create makes one, and returns what
// confirms it.
func Keep(st *session.Store, id string, retired func(*session.Info, *session.Client) bool,
	create func() (func() error, error)) (*session.Info, *session.Client, error) {
	// Another call of the same agent may be making it.
	for range 600 {
		info, client, err := st.Enter(id)
		switch {
		case errors.Is(err, session.ErrNotFound):
			confirm, err := create()
			if err == nil {
				if err = confirm(); err != nil {
					return nil, nil, err
				}
				continue
			}
			if !errors.Is(err, session.ErrExists) {
				return nil, nil, err
			}
		case errors.Is(err, syscall.EAGAIN): // another call exchanges it for a new one
		case err != nil:
			return nil, nil, err
		case info.State == session.Ready || info.State == session.Running:
			if !retired(info, client) {
				return info, client, nil
			}
		case info.Over():
			// It ended, and the agent did not: a new one.
			// Another call may have done that already, and made it.
			if err := st.Remove(id); err != nil && !errors.Is(err, session.ErrNotFound) && !errors.Is(err, syscall.EBUSY) {
				return nil, nil, err
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, nil, engine.Usage("session "+id+" did not become ready", "sbxrun session inspect "+id)
}

// A Script is what a shell was asked to run, and what it tells in the end.
type Script struct {
	Args   []string
	Extra  []*os.File // that the shell gets
	file   string     // of the host, for the directory; "" if there is none
	says   *os.File
	Policy *policy.Policy // decides whether the directory can be told
}

// Close closes its files.
func (s *Script) Close() {
	for _, f := range append(s.Extra, s.says) {
		if f != nil {
			f.Close()
		}
	}
}

// Prepare makes of a shell's arguments those of the shell inside.
func Prepare(name string, args []string, tellFD int) (*Script, error) {
	sc := &Script{Args: slices.Clone(args)}
	at, ok := persona.Script(args)
	if !ok {
		return sc, nil
	}
	w, ok := &persona.Wrapped{}, false
	if os.Getenv("CLAUDECODE") == "1" {
		w, ok = persona.Wrap(args[at], claude())
	}
	if !ok && tellFD < 0 {
		return sc, nil
	}
	next := 3
	snapshotFD, cwdFD := 0, 0
	if ok && w.Snapshot != "" {
		if f := copyOf(w.Snapshot); f != nil {
			sc.Extra = append(sc.Extra, f)
			snapshotFD = next
			next++
		} else {
			w.Forget()
		}
	}
	if tellFD >= 0 || w.Cwd != "" {
		r, pipe, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		sc.Extra, sc.says, sc.file = append(sc.Extra, pipe), r, w.Cwd
		cwdFD = next
	}
	if tellFD >= 0 {
		sc.Args[at] = persona.Telling(name, args[at], cwdFD)
	} else {
		sc.Args[at] = w.Script(name, snapshotFD, cwdFD)
	}
	return sc, nil
}

// claude is where Claude Code has its files, by the environment that it gives its
// commands.
func claude() persona.Claude {
	c := persona.Claude{Temp: []string{"/tmp"}}
	for _, name := range []string{"TMPDIR", "CLAUDE_CODE_TMPDIR"} {
		if dir := os.Getenv(name); filepath.IsAbs(dir) {
			c.Temp = append(c.Temp, filepath.Clean(dir))
		}
	}
	if dir := os.Getenv("CLAUDE_CONFIG_DIR"); filepath.IsAbs(dir) {
		c.Config = filepath.Clean(dir)
	} else {
		home := os.Getenv("HOME")
		if home == "" {
			home = engine.HomeOf(os.Geteuid())
		}
		if filepath.IsAbs(home) {
			c.Config = filepath.Join(home, ".claude")
		}
	}
	return c
}

// maxSnapshot bounds the copy of a snapshot: they are some ten kilobytes.
const maxSnapshot = 4 << 20

// copyOf returns a file that holds what a regular file of the caller's own holds,
// nil if it cannot be had: the script does without.
func copyOf(name string) *os.File {
	from, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer from.Close()
	if !own(from) {
		return nil
	}
	to, err := anonymous("snapshot")
	if err != nil {
		return nil
	}
	if _, err := io.Copy(to, io.LimitReader(from, maxSnapshot)); err == nil {
		_, err = to.Seek(0, io.SeekStart)
		if err == nil {
			return to
		}
	}
	to.Close()
	return nil
}

// own reports whether a file is a regular one of this user's, by one name.
func own(f *os.File) bool {
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && st.Nlink == 1
}

// Tell passes on the directory that a script ended in, if it did. Alone says that there is
// no such one outside.
func (s *Script) Tell(fd int) (dir string, alone bool, err error) {
	if s.says == nil || s.Policy == nil {
		return "", false, nil
	}
	s.Extra[len(s.Extra)-1].Close()
	// What the command left running may have the descriptor too: what there is
	// now is all that counts.
	dir = persona.Told(string(driver.Waiting(s.says, 64<<10)))
	if dir == "" {
		return "", false, nil // the script failed before its end, as it may
	}
	if !engine.Shown(s.Policy, dir) {
		return dir, true, nil
	}
	return dir, false, deliver(s.file, fd, dir)
}

// deliver writes a directory where the agent reads it: to a descriptor or else a file.
func deliver(file string, fd int, dir string) error {
	if fd >= 0 {
		f := os.NewFile(uintptr(fd), "cwd-fd")
		if f == nil {
			return syscall.EBADF
		}
		_, err := f.WriteString(dir + "\n")
		return err
	}
	// TMPDIR can lie in the workspace, and a command change what leads there.
	file, err := engine.Named(file)
	if err != nil {
		return err
	}
	f, err := engine.OpenRegular(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if !own(f) {
		return &os.PathError{Op: "write", Path: file, Err: errors.New("not a file of this user's alone")}
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteString(dir + "\n")
	return err
}
