package profiles

import (
	"io/fs"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// A Request is what a caller asks of one run: the command, the profile by name
// or file, and what is changed on top of it. A nil pointer or slice leaves the
// profile's value; the zero Request but for Command runs under "strict".
type Request struct {
	Command []string // argv
	Profile string   // name or file; "" is "strict"
	Dir     string   // working directory and workspace; "" is Facts.Cwd
	DirFrom string   // where Dir was named, for errors; "" is "flag --cd"

	// Files, each "PATH" with ~ and globs, in the order given.
	ReadOnly  []string // --ro
	ReadWrite []string // --rw
	Unix      []string // --allow-unix
	Hide      []string // --hide
	Unprotect []string // --unprotect PATTERN
	Binds     []Bind   // --bind SRC:DST[:ro]
	Tmpfs     []Tmpfs  // --tmpfs PATH[:size]
	Devices   []string // --device PATH
	GPU       bool     // --gpu
	Workspace string   // --workspace bind|overlay|ro|none; "" leaves the profile's

	NoGit bool // --no-git

	Env        []string // --env KEY or KEY=VALUE
	ClearEnv   bool     // --clear-env
	InheritEnv bool     // --inherit-env

	Net        *policy.EgressMode // --net
	AllowHosts []string           // --allow-host; implies proxy where the network is none
	DenyHosts  []string           // --deny-host
	Ask        time.Duration      // --ask: what may be granted is asked about, for so long; implies proxy as AllowHosts does
	Publish    []string           // --publish [ADDRESS:]HOSTPORT:PORT

	Memory    *uint64        // --memory, bytes; 0 removes the limit
	CPUs      *float64       // --cpus; 0 removes the limit
	Pids      *int64         // --pids; 0 removes the limit
	FileSize  *uint64        // --fsize, bytes; 0 removes the limit
	OpenFiles *uint64        // --nofile
	Disk      *uint64        // --disk, bytes of private storage
	Timeout   *time.Duration // --timeout; 0 removes the limit
	KillAfter *time.Duration // --kill-after
	MaxOutput *int64         // --max-output, bytes; 0 removes the limit
	Seccomp   string         // --seccomp: a built-in name or a file in the OCI JSON form
	User      *User          // --user UID[:GID], ids inside
	Hostname  string         // --hostname
	Terminal  bool           // --tty
	Degrade   policy.Layers  // --allow-degraded
	Require   policy.Layers  // --require
	Driver    string         // --driver
	Image     string         // --image
	Fallback  []string       // --fallback
	Verify    *bool          // --verify
	Audit     string         // --audit
	Own       []Own          // files that the caller obeys, beside Facts.Own
	Kept      []Keep         // storage of sbxrun's own that outlives the run
	SELinux   string         // --selinux-label
	AppArmor  string         // --apparmor-profile
}

// A Bind shows a host path at another place.
type Bind struct {
	Source, Destination string
	ReadOnly            bool
}

// A Keep is a directory that a program finds in its home as it left it. Nothing on the
// host obeys what is in it, so it may lie in a hidden place of sbxrun's own.
type Keep struct {
	Source   string // absolute, without links that a command can have made
	Below    string // where, from the command's HOME
	Variable string // that names it, "" for none
}

// A Tmpfs is private storage at a path; Size 0 shares the scratch budget.
type Tmpfs struct {
	Path string
	Size uint64 // bytes
}

// User is the user and group id that the command sees itself run as.
type User struct {
	UID, GID uint32
}

// Facts are what resolving needs to know of the host. They come in as values,
// so that a policy can be resolved for any host on any machine.
type Facts struct {
	Home     string   // the caller's home directory, "" if there is none
	Cwd      string   // the caller's working directory, symlinks resolved
	UID, GID uint32   // the caller's effective ids
	Environ  []string // the caller's environment, KEY=VALUE
	CPUs     int      // processors that the caller may use

	// ConfigDirs are searched for profiles, the first that has one wins:
	// $XDG_CONFIG_HOME/sbxrun, then /etc/sbxrun.
	ConfigDirs []string

	// Own are the places that sbxrun itself keeps: no command writes there.
	Own []Own

	// FS is the host's file tree from /. Paths in it have no leading slash
	// (io/fs). It must implement fs.ReadLinkFS, as os.DirFS("/") does.
	FS fs.FS

	// What resolving adds as it learns it, in a copy of its own.
	homeLinks []string // symbolic links on the way to the home
	homeReal  bool     // Home exists and is without symbolic links
	workspace string
	began     *began // for Again
}
