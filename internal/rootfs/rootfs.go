// Package rootfs says what a command is to find at "/": it lowers a policy's
// files, mounts and masks to a list of mounts (package mounts) and the rights to
// what is in them (package landlock), as two views of one decision. The drivers
// that build a root of their own start from it, each by its own means.
//
// Lowering is a function of the policy and of what is at the paths that it names
// ([Host]): the same on every machine. It mounts nothing.
package rootfs

// Host is what lowering needs to know of the host's files: what is at a path.
// It is a function of values, so that a policy lowers the same on any machine.
type Host interface {
	// Lookup describes what is at an absolute path, not following a symbolic
	// link at its end.
	Lookup(path string) (Node, error)

	// List names what a directory holds.
	List(dir string) ([]string, error)
}

// Node is what is at a path.
type Node struct {
	Kind   NodeKind
	Socket bool   // of a file: it is a Unix socket
	Mode   uint32 // permission bits of a directory
	Link   string // content of a symbolic link
	Real   string // for a symbolic link: the path it leads to, "" if nowhere
}

// NodeKind is the type of a file.
type NodeKind uint8

// Kinds of nodes. The zero value is a path at which there is nothing.
const (
	NodeAbsent NodeKind = iota
	NodeFile
	NodeDir
	NodeSymlink
)
