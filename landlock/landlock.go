// Package landlock turns file rules into a Landlock ruleset, as a second layer
// under the mounts: what a mistake in the file system would show or leave
// writable is still refused by the kernel at open(2).
//
// A ruleset is built by the second stage in the new root and enforced by the
// command's process on itself, right before its system call filter; see
// landlock(7). Rights grow with the version of the kernel's interface (its ABI),
// and [Handled] is the one table of that. What a kernel does not know it does not
// handle, which leaves that right to the mounts.
//
// What it does not do: Landlock cannot take back below a path what it granted
// above it, so hidden and read-only places within granted ones are the mounts'.
// It handles TCP rights only where a ruleset says so: in a network namespace
// there is no route to deny, and a sandbox may use its own loopback.
//
// The go-landlock module enforces rulesets on a running Go program; the process
// that is restricted here has no Go runtime, hence system calls of our own.
package landlock

// Access is a set of LANDLOCK_ACCESS_FS_ rights.
type Access uint64

// Rights, by their names in linux/landlock.h.
const (
	Execute Access = 1 << iota
	WriteFile
	ReadFile
	ReadDir
	RemoveDir
	RemoveFile
	MakeChar
	MakeDir
	MakeReg
	MakeSock
	MakeFifo
	MakeBlock
	MakeSym
	Refer       // ABI 2, Linux 5.19
	Truncate    // ABI 3, Linux 6.2
	IoctlDev    // ABI 5, Linux 6.10
	ResolveUnix // ABI 9, Linux 7.1: Unix sockets by their path that no process of the same domain has made

	// Read and Write are what the words mean for files and directories. Nobody
	// is granted MakeChar and MakeBlock.
	Read  = ReadFile | ReadDir
	Write = WriteFile | RemoveDir | RemoveFile | MakeDir | MakeReg | MakeSock | MakeFifo | MakeSym | Refer | Truncate

	// File are the rights that apply to a file itself; a rule for one may hold
	// no others (EINVAL).
	File = Execute | WriteFile | ReadFile | Truncate | IoctlDev | ResolveUnix
)

// Scope is a set of LANDLOCK_SCOPE_ restrictions (ABI 6, Linux 6.12).
type Scope uint64

// Scopes, by their names in linux/landlock.h.
const (
	ScopeAbstractUnixSocket Scope = 1 << iota
	ScopeSignal
)

// Handled returns what a kernel with this ABI can restrict: everything that is
// not granted by a rule is denied. ABI 0 is a kernel without Landlock.
func Handled(abi int) (Access, Scope) {
	if abi < 1 {
		return 0, 0
	}
	a := MakeSym<<1 - 1
	if abi >= 2 {
		a |= Refer
	}
	if abi >= 3 {
		a |= Truncate
	}
	if abi >= 5 {
		a |= IoctlDev
	}
	if abi < 6 {
		return a, 0
	}
	if HandledUnix(abi) {
		a |= ResolveUnix
	}
	return a, ScopeAbstractUnixSocket | ScopeSignal
}

// HandledUnix reports whether a kernel with this ABI can restrict Unix sockets by path.
func HandledUnix(abi int) bool { return abi >= 9 }

// HandledTCP reports whether a kernel with this ABI can restrict TCP ports.
func HandledTCP(abi int) bool { return abi >= 4 }

// A Rule grants rights at a path and below it.
type Rule struct {
	Path   string // absolute, in the sandbox
	Access Access
	IsFile bool // the path is not a directory

	// Optional rules are passed over if there is nothing at Path.
	Optional bool
}

// A Ruleset is all that a command is granted. The zero value grants nothing.
type Ruleset struct {
	Rules []Rule

	// FDs grant rights on what descriptors of the program are open on, where
	// that is a file, so that a command can open /dev/stdout again.
	FDs []FDRule

	// Late is for a root in which commands run already: they may have moved what leads
	// to a path, and then it grants nothing.
	Late bool

	// DenyTCP handles TCP rights (ABI 4, Linux 6.7): no port but those of
	// ConnectTCP can be connected to, and none be bound.
	DenyTCP    bool
	ConnectTCP []uint16

	// Unscoped leaves out the scopes and ResolveUnix, for processes that are in a
	// domain with these by [AppendScope] already. A domain of each own would part them:
	// none could signal another, or connect to its sockets.
	Unscoped bool
}

// handled is what a ruleset restricts.
func (r *Ruleset) handled(abi int) (Access, Scope) {
	access, scope := Handled(abi)
	if r.Unscoped {
		access, scope = access&^ResolveUnix, 0
	}
	return access, scope
}

// An FDRule grants rights on an open file.
type FDRule struct {
	FD     int
	Access Access
}
