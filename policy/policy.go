// Package policy is the one intermediate representation of what a command may
// do. Profiles and flags resolve to a [Policy]; drivers lower it to namespaces
// and mounts, to the arguments of another sandbox, or to a Seatbelt profile.
//
// The OCI runtime specification carries what it has words for (process, mounts,
// namespaces, resources, seccomp); the fields beside it carry what it has no
// words for: access by host path, network egress by name, limits on time and
// output, and the layers without which a run must not happen. Nothing is said
// twice: a value lives in the OCI part or beside it, never in both.
//
// The package decides nothing and reads nothing: no environment, no file
// system, no GOOS. A Policy is complete once it is resolved; a driver adds
// nothing to it but the means.
package policy

import (
	"slices"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A Policy says what a command may do. The zero value has no command and
// therefore does not validate; every field's zero value is its safe one.
type Policy struct {
	// Profile is the name of the profile that the policy came from, for
	// results and messages only.
	Profile string `json:"profile,omitempty"`

	// OCI is the part that the OCI runtime specification has words for: the
	// process (arguments, environment, working directory, terminal, user,
	// rlimits, LSM labels), mounts that are not host paths shown in place,
	// namespaces, resources, masked paths, devices and the seccomp profile.
	OCI *specs.Spec `json:"oci"`

	// Files are the host paths that the command sees, each at its own path.
	// The zero value shows nothing of the host. See [Sort] for how rules that
	// overlap combine.
	Files []FileRule `json:"files,omitempty"`

	// Hidden are rules that hide what nothing shows, and names that are hidden at any depth,
	// in which * matches within a name. They enforce nothing: what a refusal proposes, and what
	// is asked about, goes by them.
	Hidden []FileRule `json:"hidden,omitempty"`

	// Unix are paths whose Unix sockets, at the path and below, the command may connect
	// to, where Files or mounts show them. It may always connect to sockets of its own.
	// A driver that cannot restrict that lets it connect to every socket that is shown.
	Unix []string `json:"unix,omitempty"`

	// Protect are patterns for paths that cannot be changed, removed or made
	// below what Files and mounts show writable of the host: ".git/hooks",
	// ".vscode". What is copy-on-write is the sandbox's own: there they are for
	// who takes the changes over. A name, or several with slashes between them, match at any
	// depth, whatever their letter case, and * matches within a name. What
	// matches is protected with all below it; with a slash at the end, the
	// entry itself and not what it holds. ".git" in front of other names also
	// stands for any directory that Git would take for a repository. What leads
	// to a writable directory, and its own name, do not count.
	Protect []string `json:"protect,omitempty"`

	// Unprotected are places of mounts in which Protect does not count: what is there no
	// tool of the host obeys. A driver may protect it all the same.
	Unprotected []string `json:"unprotected,omitempty"`

	// Synthetic are files that exist only in the sandbox, each with the
	// content given here: /etc/passwd, /etc/resolv.conf and their like. The
	// command can read them and not change them. One replaces what Files shows
	// at its path.
	Synthetic []SyntheticFile `json:"synthetic,omitempty"`

	// Scratch is the private, empty storage behind every tmpfs mount of OCI
	// that names no size of its own: they share one budget, so that filling
	// /tmp is the same as filling HOME.
	Scratch Scratch `json:"scratch"`

	// Egress is the network policy. The zero value denies all traffic.
	Egress Egress `json:"egress"`

	// Limits are the limits that the OCI specification has no words for.
	Limits Limits `json:"limits"`

	// Seccomp names a built-in system call filter; "" is none. A custom one is
	// in OCI.Linux.Seccomp, and then this is empty.
	Seccomp string `json:"seccomp,omitempty"`

	// Require are the layers without which the run must not happen. A layer
	// that is neither required nor in Degrade is used where the policy's other
	// fields call for it, and its absence is an error as well.
	Require Layers `json:"require"`

	// Degrade are the layers that the caller agreed to go without when the
	// host cannot give them; the result lists those that were missing. A layer
	// in both sets is required.
	Degrade Layers `json:"degrade"`
}

// Dispensable are the layers that a run may be without: those in Degrade that are
// not in Require. Every driver decides by it, and by nothing else.
func (p *Policy) Dispensable() Layers { return p.Degrade &^ p.Require }

// Scratch bounds private storage. Zero means the driver's own default, never
// unlimited.
type Scratch struct {
	Bytes  uint64 `json:"bytes,omitempty"`  // tmpfs size=, bytes; see tmpfs(5)
	Inodes uint64 `json:"inodes,omitempty"` // tmpfs nr_inodes=; see tmpfs(5)
}

// Access is what a rule allows at a path and below it.
type Access uint8

// The zero Access hides the path: it cannot be read, written or executed, and
// what it holds cannot be listed.
const (
	Read    Access = 1 << iota // read files, list directories
	Write                      // create, change, rename, remove
	Execute                    // execve(2), and mmap(2) with PROT_EXEC

	Hide      Access = 0
	ReadExec         = Read | Execute
	ReadWrite        = Read | Write
	All              = Read | Write | Execute
)

// A FileRule gives access to one host path and all below it.
type FileRule struct {
	// Path is absolute and clean, and holds no pattern: globs are expanded
	// when the policy is resolved.
	Path string `json:"path"`

	Access Access `json:"access"`

	// Overlay makes the path copy-on-write: what is changed below it goes to
	// the private storage that Scratch bounds, and the host's stays as it is.
	// It needs Write, and at most one rule has it.
	Overlay bool `json:"overlay,omitempty"`

	// Discard lets the command change what is below a directory that it may
	// read: the changes are the sandbox's own, in the private storage that
	// Scratch bounds, and end with it. Where a driver or the kernel cannot do
	// that, the path is read-only, as Access says. With access to write it
	// means nothing.
	Discard bool `json:"discard,omitempty"`

	// Optional rules are passed over when Path does not exist. A rule that is
	// not optional and does not exist is an error.
	Optional bool `json:"optional,omitempty"`

	// Origin says where the rule came from ("profile strict", "flag --rw"),
	// for messages.
	Origin string `json:"origin,omitempty"`
}

// A SyntheticFile is a regular file with content of its own.
type SyntheticFile struct {
	Path    string `json:"path"`           // absolute and clean
	Mode    uint32 `json:"mode,omitempty"` // permission bits; 0 is 0444
	Content string `json:"content"`
}

// Limits are limits that the OCI specification has no words for. Memory, CPU
// and process limits are in OCI.Linux.Resources; file size, open files and
// their like in OCI.Process.Rlimits.
type Limits struct {
	// WallTime ends the run: SIGTERM to every process, and SIGKILL after
	// KillAfter. 0 means no limit.
	WallTime  time.Duration `json:"wall_time,omitempty"`
	KillAfter time.Duration `json:"kill_after,omitempty"`

	// Output bounds each captured stream, bytes; 0 means no limit. Streams
	// that are passed through are not bounded.
	Output int64 `json:"output,omitempty"`
}

// String prints access as ls(1) would: "r-x"; a hidden path is "---".
func (a Access) String() string {
	b := []byte("---")
	if a&Read != 0 {
		b[0] = 'r'
	}
	if a&Write != 0 {
		b[1] = 'w'
	}
	if a&Execute != 0 {
		b[2] = 'x'
	}
	return string(b)
}

// MarshalText prints access as String does.
func (a Access) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText prints.
func (a *Access) UnmarshalText(b []byte) error {
	for v := Hide; v <= All; v++ {
		if v.String() == string(b) {
			*a = v
			return nil
		}
	}
	return &InvalidError{Field: "access", Value: string(b), Want: `"rwx", with - for what is not allowed`}
}

// Connects reports whether the policy lets a command connect to a socket of the host.
func (p *Policy) Connects(socket string) bool {
	return slices.ContainsFunc(p.Unix, func(dir string) bool { return Below(socket, dir) })
}

// Below reports whether p is dir or lies below it. Both are absolute and clean.
func Below(p, dir string) bool {
	return len(p) >= len(dir) && p[:len(dir)] == dir && (len(p) == len(dir) || dir == "/" || p[len(dir)] == '/')
}
