// Package guard keeps protected paths of a writable workspace as they are while
// a command runs: files that other tools obey (.git/hooks, .git/config, .vscode,
// shell start-up files) cannot be changed, renamed away or, where they do not
// exist, created.
//
// Mounts cannot do that: a path that does not exist has nothing to mount over
// but a placeholder, which would be left behind, and the directory above can be
// renamed. So the calls that write by path are held back by a small system call
// filter ([Guard.Filter], [Guard.Append]) and made by the supervisor on the
// command's behalf (seccomp_unotify(2)). It copies the path once, opens the
// directory that the path leads to below the sandbox's root, asks the kernel
// what that directory is called, decides by that name ([Rules]), and makes the
// call on the open directory with the copied name. The kernel is never told to
// go on with the command's own call, whose path can change after the check.
//
// One thread makes one call after the other, so that nothing in the sandbox is
// renamed between the check and the act. Another run in the same workspace has another
// guard, which may rename meanwhile: whether a directory is a repository is asked of the
// open directory and of those above it, and what makes one waits for the other
// guards ([Config.Lock]). No rename crosses the border of a repository, so that what an
// open directory is part of stays so. The thread has given up every capability and
// has a umask of its own. It is not under Landlock, which would keep it from
// looking at the callers (hook_ptrace_access_check in security/landlock/task.c);
// the sandbox's Landlock rules are looked up by the mount instead ([Grant]), beside
// the read-only mounts, which hold for it as for everybody. It is not in the
// sandbox's mount namespace either, so it looks for mount points itself, and keeps
// them, and what leads to them, in their places.
//
// # Which calls
//
// Held back are: open, openat and creat that write, create or truncate; mkdir,
// mknod, rename, link, symlink, unlink, rmdir, truncate, chmod, chown, setxattr
// and removexattr in all their forms. Times change neither what a file holds nor who
// may use it, and tar(1) sets them for each file: they are left alone. Answered by
// the filter: openat2, setxattrat, removexattrat and clone3 do not exist, because
// what they do is behind a pointer; the flags of files (chattr(1)) seem unknown to
// the file system, for setting them takes no more than a descriptor for reading; what would make names that this package does not know (mounts,
// namespaces, io_uring, handles) is refused, and told of, whatever a filter beside it says; and
// Landlock looks disabled, for a ruleset of the command's own could not hold for
// calls that are made on its behalf.
//
// # Connections
//
// The same filter can hold connect(2) back: to be told of it, or to make it
// ([Config.Dial]) where the sandbox has the host's network. Then too the address is
// copied once, and the command's own call is never made: a socket that is connected
// already takes the place of its own.
//
// # Explaining
//
// With [Config.Explain] calls that only look are held back as well: to be noted if what
// they look for is the host's and not the sandbox's ([worker.observe]), and then made by the
// kernel, whatever their arguments are by then. A file that somebody grants meanwhile is
// given as a copy ([worker.show]).
//
// # What it does not do
//
// A socket that bind(2) makes can take a protected name that is free: nothing
// reads or runs one, and bound on the command's behalf it would have another
// address than the command gave it. Where sockets could stand in for parts of a
// repository, the rules do not rely on those ([Rules.Completes]).
//
// What is reached by another name that existed before the run, a hard link or a
// target of a symbolic link with a protected name, is not protected under that
// other name. Programs of the host are not held back.
package guard

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A Denial is a call that was refused, by this or by what it was made in the place of.
type Denial struct {
	Kind  Kind
	Call  string // the system call: "openat"
	Path  string // in the sandbox; of a system call its name
	Leads string // of what was looked for: where that leads on the host
	Entry bool   // it was about the name in its directory, not about what a file holds
	Rule  string // the pattern that protects it; "" if none does

	// Count is how often it was met, and the others are the process that met it first:
	// its number in the sandbox, and its arguments, as much of them as fits, with NULs
	// between.
	Count   uint64
	PID     int
	Command string
}

// Kind is what was tried.
type Kind uint8

// The kinds of denials.
const (
	Write   Kind = iota // to change, make, rename or remove a file
	Syscall             // a call that nothing in the sandbox may make
	Read                // to look up or open what the host has and the sandbox does not show
	Exec                // to execute that
	Unix                // to connect to that; without Leads, to what is shown and the kernel refuses
)

// A Use is a path of the sandbox that the command used.
type Use struct {
	Kind  Kind
	Call  string // the system call: "openat"
	Path  string // as the command named it, absolute and clean
	Leads string // where that leads: the same, or past symbolic links
	Dir   bool   // it is a directory
	Whole bool   // it was changed, and nothing is left of what was there before
}

// A Grant is a right to write below a path in the sandbox, where something is
// mounted. A mount has the nearest grant at or above its place. It repeats what
// Landlock enforces on the command itself.
type Grant struct {
	Path    string
	Files   bool // files may be written
	Entries bool // entries may be made and removed
	Guarded bool // the path is the host's: patterns apply below it
}

// Config is what a guard holds.
type Config struct {
	Patterns []string
	Rules    *Rules // of the patterns, for who makes many guards; nil to read them
	Grants   []Grant
	Streams  []Stream

	// Connect, if not nil, is told of each connect(2) to an address that is not
	// loopback before it goes on: who polices connections elsewhere can make a
	// listener for it. It decides nothing, so that the kernel may make the call,
	// whatever becomes of the address in the meantime. Stream tells whether the
	// socket is a TCP one, as far as that can be found out. Both are called on the
	// guard's confined thread. Who finds the caller, on any thread until Connect returns.
	Connect func(to netip.AddrPort, stream func() bool, who func() (pid int, command string))

	// Dial, if not nil, makes every connect(2) to an Internet address: what it
	// returns, connected, takes the place of the caller's socket and is the
	// guard's to close, and an errno that is not 0 is the call's. The caller's own
	// call is never made. It is called on the guard's confined thread.
	Dial func(to netip.AddrPort) (fd int, errno syscall.Errno)

	// Explain has the guard look at every call that looks a path up, too, and note those
	// that find nothing although the host has something there that the user may read.
	// Nothing is decided: the kernel makes these calls. Hidden are the paths that the
	// sandbox covers with something unreadable.
	Explain bool
	Hidden  []string

	// Sockets are what the kernel lets the command connect to, nil where it does not ask.
	// No other socket is given a name that counts.
	Sockets *Sockets

	// Seen, if not nil, is called with each path that the command uses, with Explain alone:
	// what it looks up and finds, and what it has changed. It is called on the guard's
	// confined thread. Who finds out which process it is, and is good for that call alone.
	Seen func(u Use, who func() (pid int, command string))

	// Refused, if not nil, is called with each refusal, before the caller learns of it. It
	// is called on the guard's confined thread.
	Refused func(Denial)

	// Ask, if not nil, is asked about each call that a pattern refuses, while that waits; the
	// others go on. It is called on a goroutine of its own, and returns when the context is
	// done. Denial.Count is 0 then. With Explain it is asked about files, too, that an
	// open(2) for reading does not find and the host has: then Denial.Rule is "", and the
	// answer is about Denial.Leads.
	Ask func(ctx context.Context, d Denial) Answer

	// Copies are those of the sandbox, which Ask needs with Explain.
	Copies *Copies

	// Lock, if not nil, is held while a call is made that gives a directory a part of a
	// repository, by all runs that could give it the others. It returns what ends that,
	// and does not wait for ever: with an error the call is refused. It is called on the
	// guard's confined thread.
	Lock func() (unlock func(), err error)

	// Shared is held while a call is made, by all guards whose commands are in
	// one sandbox: what one checked, no other changes. Nil is for a guard that
	// is alone.
	Shared *sync.Mutex
}

// An Answer is what came of a question.
type Answer uint8

// The answers.
const (
	Refuse Answer = iota
	Once          // the pattern does not hold for this call
	Always        // nor for any other, of all guards that have the same Rules
)

// Sockets are the Unix sockets of the host's that the command may connect to, at Paths of the
// sandbox and below. Nothing that is older than Since is the command's own. All guards of a
// sandbox have the same.
type Sockets struct {
	Paths []string
	Since time.Time

	looked sync.Once
	files  []File // what the kernel's rules are about, whatever it is called by now
	lost   bool   // some of that was not found for want of something
}

// names reports whether a name is one of the paths, lies below one, or leads to one: what is
// there is granted by its name, if not now then to the next run.
func (s *Sockets) names(name []byte) bool {
	return slices.ContainsFunc(s.Paths, func(p string) bool { return within(name, p) || within([]byte(p), string(name)) })
}

// A Stream is a file that the command was given open: it may be opened again by its
// descriptor for the same, as Landlock grants it.
type Stream struct {
	File
	Read, Write bool
}

// A File is what identifies one.
type File struct {
	Dev, Ino uint64
}

// grantOf returns the nearest grant at or above a path, nil for none.
//
// Preconditions: grants are sorted so that a longer path comes first.
func grantOf(grants []Grant, path []byte) *Grant {
	for i := range grants {
		if within(path, grants[i].Path) {
			return &grants[i]
		}
	}
	return nil
}

func within(p []byte, dir string) bool {
	if dir == "/" {
		return true
	}
	return len(p) >= len(dir) && string(p[:len(dir)]) == dir && (len(p) == len(dir) || p[len(dir)] == '/')
}

// Needed reports whether a configuration protects anything at all.
func (c *Config) Needed() bool {
	if len(c.Patterns) == 0 {
		return false
	}
	for _, g := range c.Grants {
		if g.Guarded && (g.Files || g.Entries) {
			return true
		}
	}
	return false
}
