// Package setup prepares a host and a user for sbxrun, once: what needs root and what
// does not, each told before it is done, and taken back by Undo.
//
// It writes new files and changes none that somebody else wrote. A file's own mark has a
// sum of the rest, so that one which was edited is known as its editor's.
package setup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// A Step is one thing to do: a file, and commands that make it count.
type Step struct {
	Name string
	Why  string // what it is good for
	Note string // what is left to do for a person, or ""
	Root bool   // needs root

	File string   // to write; "" if there is none
	Text []byte   // of the file, without the mark
	Dirs []string // to make for a user, one that is the last of each path
	User int      // that the directories are for

	Then, Before [][]string // commands after the file is written, and before it is removed
	Undone       [][]string // commands after it was removed
}

// States of a step.
const (
	ToDo  = "to do"
	Done  = "done"
	Other = "there is another" // which somebody else wrote, or edited
)

// State says how far a step is.
func (s *Step) State() string {
	for _, d := range s.Dirs {
		if fi, err := os.Stat(d); err != nil || !Owns(fi, s.User) {
			return ToDo
		}
	}
	if s.File == "" {
		if len(s.Dirs) == 0 {
			return ToDo // commands alone: whoever lists it has looked
		}
		return Done
	}
	b, err := read(s.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ToDo
	case err != nil || !Ours(b):
		return Other
	case bytes.Equal(b, marked(s.Text)):
		return Done
	}
	return ToDo // of another version, and as that wrote it
}

// Do does it. What cannot be done leaves nothing.
func (s *Step) Do() error {
	for _, d := range s.Dirs {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if fi, err := os.Stat(d); err != nil || !Owns(fi, s.User) && !Owns(fi, 0) {
			return fmt.Errorf("%s is another user's", d)
		}
		if err := os.Chown(d, s.User, -1); err != nil {
			return err
		}
	}
	had, _ := read(s.File) // an earlier version's
	if s.File != "" {
		if err := s.write(marked(s.Text)); err != nil {
			return err
		}
	}
	for _, args := range s.Then {
		err := run(args)
		switch {
		case err == nil:
			continue
		case had != nil:
			err = errors.Join(err, s.write(had))
		case s.File != "":
			err = errors.Join(err, os.Remove(s.File))
		}
		return err
	}
	return nil
}

// write puts the file in place as a whole, and never in that of somebody else's.
func (s *Step) write(text []byte) error {
	dir := filepath.Dir(s.File)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".sbxrun-setup-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err != nil {
		return err
	}
	if s.State() == Other {
		return fmt.Errorf("%s: %w", s.File, fs.ErrExist)
	}
	if _, err := os.Lstat(s.File); err == nil {
		return os.Rename(tmp.Name(), s.File)
	}
	return os.Link(tmp.Name(), s.File)
}

// Undo takes it back. It reports whether there was anything.
func (s *Step) Undo() (bool, error) {
	had, err := s.undoDirs()
	if err != nil || s.File == "" {
		return had, err
	}
	b, err := read(s.File)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !Ours(b) {
		return had, nil
	}
	if err != nil {
		return had, err
	}
	for _, args := range s.Before {
		run(args) // what it undoes may not be in force
	}
	if err := os.Remove(s.File); err != nil {
		return had, err
	}
	if dir := filepath.Dir(s.File); !s.Root || filepath.Base(dir) == "user@.service.d" {
		syscall.Rmdir(dir) // if nothing else is in it, and not if it is a link
	}
	for _, args := range s.Undone {
		if err := run(args); err != nil {
			return true, err
		}
	}
	return true, nil
}

// undoDirs takes back the directories, and reports whether there was one.
func (s *Step) undoDirs() (had bool, err error) {
	for _, d := range s.Dirs {
		fi, err := os.Stat(d)
		if err != nil || !Owns(fi, s.User) {
			continue
		}
		if err = os.Remove(d); err != nil {
			err = os.Chown(d, 0, -1) // it is in use: root's runs have theirs there
		}
		if err != nil {
			return had, err
		}
		had = true
	}
	return had, nil
}

// read reads a regular file; of what else is there, such as a FIFO, it returns nothing.
func read(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// maxFile bounds what is read of a file, more than any of these files has.
const maxFile = 1 << 20 // bytes

// find returns the path of one of the host's programs. Root executes them, so that they
// are not looked for in a PATH that a user may have made.
var find = func(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if fi, err := os.Stat(dir + "/" + name); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return dir + "/" + name, nil
		}
	}
	return "", fmt.Errorf("there is no %s here", name)
}

func run(args []string) error {
	file, err := find(args[0])
	if err != nil {
		return err
	}
	out, err := exec.Command(file, args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

const mark = "# Made by sbxrun setup, and removed by sbxrun setup --undo unless it is edited: "

// marked is a text with the mark on its second line, for the first may be a word to
// whatever reads it.
func marked(text []byte) []byte {
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	sum := sha256.Sum256(text)
	return join(first, []byte("\n"+mark+hex.EncodeToString(sum[:8])+"\n"), rest)
}

// Ours reports whether a file is as Do wrote it, in whatever version.
func Ours(b []byte) bool {
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	line, rest, ok := bytes.Cut(rest, []byte("\n"))
	return ok && bytes.HasPrefix(line, []byte(mark)) && bytes.Equal(b, marked(join(first, []byte("\n"), rest)))
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
