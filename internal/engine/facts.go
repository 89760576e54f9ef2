package engine

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/profiles"
)

// Facts are what the host says; they are read once, here.
type Facts struct {
	profiles.Facts

	library bool // the program is not sbxrun: nothing beside it is executed
}

// GatherFacts reads what resolving a policy needs to know of the host.
func GatherFacts() (*Facts, error) {
	cwd, err := WorkingDirectory()
	if err != nil {
		return nil, err
	}
	return gatherFactsIn(cwd, false)
}

// SessionFacts is [GatherFacts] for a command in a session that is there: nothing is
// shown to it, so the places that no command may write are not looked for.
func SessionFacts() (*Facts, error) {
	cwd, err := WorkingDirectory()
	if err != nil {
		return nil, err
	}
	return hostFacts(cwd, false)
}

// LibraryFacts is [GatherFactsAnywhere] for a program that is not sbxrun.
func LibraryFacts(dir string) (*Facts, error) { return gatherAnywhere(dir, true) }

// GatherFactsAnywhere is gatherFacts for what needs no working directory, or has
// another as dir: that one was removed, or has too long a name, is no error then. A
// relative path leads nowhere.
func GatherFactsAnywhere(dir string) (*Facts, error) { return gatherAnywhere(dir, false) }

func gatherAnywhere(dir string, library bool) (*Facts, error) {
	cwd, err := WorkingDirectory()
	if err != nil {
		if !filepath.IsAbs(dir) {
			return nil, err
		}
		cwd = "/the working directory is gone"
	}
	return gatherFactsIn(cwd, library)
}

func gatherFactsIn(cwd string, library bool) (*Facts, error) {
	f, err := hostFacts(cwd, library)
	if err == nil {
		f.Own = ownPlaces(f)
	}
	return f, err
}

// hostFacts are the facts without Own.
func hostFacts(cwd string, library bool) (*Facts, error) {
	f := &Facts{library: library, Facts: profiles.Facts{
		Home:    os.Getenv("HOME"),
		UID:     uint32(os.Geteuid()),
		GID:     uint32(os.Getegid()),
		Environ: os.Environ(),
		// The runtime counts sched_getaffinity(2)'s processors at start.
		CPUs: runtime.NumCPU(),
		FS:   HostFS{},
	}}
	f.Cwd = cwd
	if f.Home == "" {
		f.Home = HomeOf(int(f.UID))
	}
	if f.Home != "" {
		// A home behind a symlink is hidden by its real name.
		if !filepath.IsAbs(f.Home) {
			return nil, Usage("HOME is "+strconv.Quote(f.Home)+", not an absolute path", "set HOME to your home directory")
		}
	}
	if config := XDG(f, "XDG_CONFIG_HOME", ".config"); config != "" {
		f.ConfigDirs = append(f.ConfigDirs, filepath.Join(config, "sbxrun"))
	}
	f.ConfigDirs = append(f.ConfigDirs, "/etc/sbxrun")
	if dir := os.Getenv(ServerEnv); dir != "" && dir != "none" && !filepath.IsAbs(dir) {
		return nil, BadServerDir(dir)
	}
	return f, nil
}

// These are what sbxrun needs itself, whatever the command needs: descriptors, processes
// and threads of its user, and memory in bytes.
const (
	minFiles  = 192
	minTasks  = 32
	minMemory = 2 << 30 // of address space, of which Go's runtime takes 1.3 GiB and uses little
	minData   = 256 << 20
)

// Enough reports an error if limits of the caller's are too small for sbxrun, which
// would fail at some step, or in the runtime of Go, otherwise. Nothing else says by how
// many processes of the user a limit is used up.
func Enough() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err == nil && l.Cur < minFiles {
		return Usage("the limit on open files is "+strconv.FormatUint(l.Cur, 10)+", and sbxrun needs "+strconv.Itoa(minFiles),
			"raise it: ulimit -n 1024")
	}
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &l); err == nil && os.Getuid() != 0 && l.Cur < minTasks {
		return Usage("the limit on processes of this user is "+strconv.FormatUint(l.Cur, 10)+", and sbxrun needs "+
			strconv.Itoa(minTasks), "raise it: ulimit -u 4096; --pids limits the command alone")
	}
	for _, m := range [...]struct {
		resource int
		least    uint64
		name, to string
	}{{unix.RLIMIT_AS, minMemory, "address space", "-v"}, {unix.RLIMIT_DATA, minData, "data", "-d"}} {
		if err := unix.Getrlimit(m.resource, &l); err == nil && l.Cur < m.least {
			return Usage("the limit on "+m.name+" is "+strconv.FormatUint(l.Cur>>10, 10)+" KiB, and sbxrun needs "+
				strconv.FormatUint(m.least>>10, 10), "raise it: ulimit "+m.to+" unlimited; --memory limits the command alone")
		}
	}
	return nil
}

// HostFS is os.DirFS("/"), but that no file is waited for: a FIFO can have taken the
// place of one that was looked at.
type HostFS struct{}

func (HostFS) Open(name string) (fs.File, error) {
	return os.OpenFile("/"+name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
}
func (HostFS) Stat(name string) (fs.FileInfo, error)      { return os.Stat("/" + name) }
func (HostFS) Lstat(name string) (fs.FileInfo, error)     { return os.Lstat("/" + name) }
func (HostFS) ReadLink(name string) (string, error)       { return os.Readlink("/" + name) }
func (HostFS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir("/" + name) }

// IsLink makes one system call and no garbage; a run asks for some fifty names.
func (HostFS) IsLink(name string) bool {
	var buf [1]byte // of what the link holds; it only has to be one
	for {
		if _, err := unix.Readlink("/"+name, buf[:]); err != unix.EINTR {
			return err == nil
		}
	}
}

// WorkingDirectory returns the working directory without symlinks: $PWD, which
// os.Getwd believes, may have some.
func WorkingDirectory() (string, error) {
	cwd, err := syscall.Getwd()
	if err != nil {
		what := "the working directory is gone: "
		if err != syscall.ENOENT {
			what = "the working directory has no path that can be used: "
		}
		return "", Usage(what+err.Error(), "change to a directory that exists, or name one with --cd")
	}
	// See getcwd(3): the directory is not below the caller's root.
	if !strings.HasPrefix(cwd, "/") {
		return "", Usage("the working directory "+strconv.Quote(cwd)+" cannot be reached from /",
			"change to another directory")
	}
	return cwd, nil
}

// HomeOf looks a user's home up in /etc/passwd, for callers without HOME.
func HomeOf(uid int) string {
	data, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return ""
	}
	id := strconv.Itoa(uid)
	for line := range strings.Lines(string(data)) {
		if f := strings.Split(strings.TrimRight(line, "\n"), ":"); len(f) == 7 && f[2] == id {
			return f[5]
		}
	}
	return ""
}
