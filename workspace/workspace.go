// Package workspace keeps what was changed in a copy-on-write workspace apart
// from the workspace, until somebody has looked at it and takes it over.
//
// A run with an overlay leaves a layer, a directory in the form of the kernel's
// overlayfs that lies in the sandbox's own memory ([driver.Changeable] hands it
// out). [Collect] compares it with the workspace below and writes the difference
// down as a [Set]: a list of changes, and the new content of files. Sets are in a
// [Store], a directory that nobody but the owner can look into. [Set.Check] says
// what of a set could be taken over now, and [Set.Apply] does it.
//
// # What is believed
//
// Everything in a layer was made by a command that nobody trusts: names, links,
// sizes, depths. It is read without following a link, within bounds on length and
// size; what is neither file, directory nor symbolic link is left out, and said to
// be. Writing to the workspace goes through directories that are opened below the
// workspace without following any link (openat2(2)), so that nothing lands
// elsewhere, whatever the workspace looks like by then.
//
// # Three ways
//
// The base of a change is what the host had when the overlay was taken. No copy
// of it is made then. When the run is over its state is recorded; that the file
// was changed in between is told by its time of change (ctime), which no program
// can set, and makes a conflict, as does whatever differs from the record later.
//
// # What it does not do
//
// Owners, access control lists and extended attributes of new files are not taken
// over, and hard links become files of their own. Times of change that come from
// another clock (network file systems) are compared as if they did not.
package workspace

import (
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sbxrun/sbxrun/policy"
)

// A Kind says what became of a path.
type Kind string

// The kinds of changes.
const (
	Added    Kind = "added"
	Modified Kind = "modified" // content, target or mode
	Replaced Kind = "replaced" // by something of another type
	Deleted  Kind = "deleted"
)

// A Type is what is at a path.
type Type string

// The types that changes are made of.
const (
	File    Type = "file"
	Dir     Type = "dir"
	Symlink Type = "symlink"
)

// A Change is what became of one path.
type Change struct {
	Path string `json:"path"` // below the workspace, with slashes
	Kind Kind   `json:"kind"`
	Old  *Node  `json:"old,omitempty"` // nil if there was nothing
	New  *Node  `json:"new,omitempty"` // nil if there is nothing any more

	// Stale says why Old is not what the overlay was taken of, "" if it is.
	Stale string `json:"stale,omitempty"`

	// PathBase64 is the path where that is no UTF-8, and Path only like it.
	PathBase64 []byte `json:"path_base64,omitempty"`
}

// A Node is what is at a path, on one of the two sides.
type Node struct {
	Type   Type   `json:"type"`
	Mode   uint32 `json:"mode"`             // permission bits
	Size   int64  `json:"size,omitempty"`   // of a file, bytes
	Sum    string `json:"sha256,omitempty"` // of a file's content; "" is not known
	Target string `json:"target,omitempty"` // of a symbolic link

	TargetBase64 []byte `json:"target_base64,omitempty"` // where it is no UTF-8

	ModTime int64 `json:"mtime,omitempty"` // ns since 1970

	// Of the host's: by which it is known again.
	Dev        uint64 `json:"dev,omitempty"`
	Ino        uint64 `json:"ino,omitempty"`
	ChangeTime int64  `json:"ctime,omitempty"` // ns since 1970

	// Of the sandbox's files: which file of the set has the content, all of it or from
	// At on, bytes.
	Blob string `json:"blob,omitempty"`
	Pack string `json:"pack,omitempty"`
	At   int64  `json:"at,omitempty"`
}

// same reports whether two nodes hold the same. Unknown content is never the same.
func (n *Node) same(o *Node) bool {
	if n == nil || o == nil {
		return n == nil && o == nil
	}
	if n.Type != o.Type {
		return false
	}
	switch n.Type {
	case Symlink:
		return n.Target == o.Target
	case Dir:
		return n.Mode == o.Mode
	}
	return n.Mode == o.Mode && n.Size == o.Size && n.Sum != "" && n.Sum == o.Sum
}

// known reports whether a host's node was not touched since o was recorded.
func (n *Node) known(o *Node) bool {
	return n != nil && o != nil && n.Type == o.Type && n.Dev == o.Dev && n.Ino == o.Ino && n.ChangeTime == o.ChangeTime &&
		n.Size == o.Size && n.ModTime == o.ModTime
}

// A Skip is a path of the layer that cannot be taken over.
type Skip struct {
	Path       string `json:"path"`
	Why        string `json:"why"`
	PathBase64 []byte `json:"path_base64,omitempty"`
}

// Info describes a set.
type Info struct {
	ID        string    `json:"id"`
	Workspace string    `json:"workspace"` // its path
	Dev       uint64    `json:"dev"`
	Ino       uint64    `json:"ino"`
	Taken     time.Time `json:"taken"`   // when the overlay was
	Created   time.Time `json:"created"` // when the changes were collected
	Profile   string    `json:"profile,omitempty"`
	Command   []string  `json:"command,omitempty"`
	Session   bool      `json:"session,omitempty"` // made by a session of that name

	// Protect are the patterns of paths that are not to be changed unless
	// whoever applies the set says so.
	Protect []string `json:"protect,omitempty"`

	Added    int `json:"added"`
	Modified int `json:"modified"` // or replaced
	Deleted  int `json:"deleted"`
	Skipped  int `json:"skipped"`
}

// Len is the number of changes.
func (i *Info) Len() int { return i.Added + i.Modified + i.Deleted }

// A Set is the changes of one workspace.
type Set struct {
	Info
	Changes []*Change `json:"changes"`
	Skips   []*Skip   `json:"skipped_paths,omitempty"`

	store *Store
	above map[string]bool // directories that have changes below them; see holds
}

// ErrNotFound says that there is no set of that name.
var ErrNotFound = errors.New("no such change set")

// ErrExists says that there is one already.
var ErrExists = errors.New("there is a change set of that name already")

// CheckID reports an *InvalidError if a name is not one for a set: 1 to 64
// letters, digits, '-', '_' and '.', of which the first is a letter or a digit. So
// no name is a path, and every name of a session is one.
func CheckID(id string) error { return policy.CheckName("change set", id) }

// ObeyedAt returns the first of some places that a path is at or below, or above unless
// it stays a directory; "" for none. Letter case does not count, as for patterns.
func ObeyedAt(places []string, at string, stays bool) string {
	at = strings.ToLower(at)
	for _, o := range places {
		place := strings.ToLower(o)
		if policy.Below(at, place) || policy.Below(place, at) && !stays {
			return o
		}
	}
	return ""
}

// seal fills in what JSON cannot say of names that are not UTF-8.
func (s *Set) seal() {
	for _, c := range s.Changes {
		c.PathBase64 = raw(c.Path)
		for _, n := range [...]*Node{c.Old, c.New} {
			if n != nil {
				n.TargetBase64 = raw(n.Target)
			}
		}
	}
	for _, k := range s.Skips {
		k.PathBase64 = raw(k.Path)
	}
}

// unseal takes names from there.
func (s *Set) unseal() {
	for _, c := range s.Changes {
		take(&c.Path, c.PathBase64)
		for _, n := range [...]*Node{c.Old, c.New} {
			if n != nil {
				take(&n.Target, n.TargetBase64)
			}
		}
	}
	for _, k := range s.Skips {
		take(&k.Path, k.PathBase64)
	}
}

func raw(s string) []byte {
	if utf8.ValidString(s) {
		return nil
	}
	return []byte(s)
}

func take(s *string, b []byte) {
	if b != nil {
		*s = string(b)
	}
}
