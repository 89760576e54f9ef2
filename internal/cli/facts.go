package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/profiles"
)

// facts are what the host says; they are read once, here.
type facts struct{ profiles.Facts }

// gatherFacts reads what resolving a policy needs to know of the host.
func gatherFacts() (*facts, error) {
	f := &facts{profiles.Facts{
		Home:    os.Getenv("HOME"),
		UID:     uint32(os.Geteuid()),
		GID:     uint32(os.Getegid()),
		Environ: os.Environ(),
		// The runtime counts sched_getaffinity(2)'s processors at start.
		CPUs: runtime.NumCPU(),
		FS:   os.DirFS("/"),
	}}
	cwd, err := workingDirectory()
	if err != nil {
		return nil, err
	}
	f.Cwd = cwd
	if f.Home == "" {
		f.Home = homeOf(int(f.UID))
	}
	if f.Home != "" {
		// A home behind a symlink is hidden by its real name.
		if !filepath.IsAbs(f.Home) {
			return nil, &usageError{"HOME is " + strconv.Quote(f.Home) + ", not an absolute path", "set HOME to your home directory"}
		}
	}
	config := os.Getenv("XDG_CONFIG_HOME")
	if config == "" && f.Home != "" {
		config = f.Home + "/.config"
	}
	if filepath.IsAbs(config) {
		f.ConfigDirs = append(f.ConfigDirs, filepath.Join(config, "sbxrun"))
	}
	f.ConfigDirs = append(f.ConfigDirs, "/etc/sbxrun")
	f.Own = []string{runtimeDir("sessions"), runtimeDir("serve")}
	switch dir := os.Getenv(serverEnv); {
	case dir == "" || dir == "none":
	case !filepath.IsAbs(dir):
		return nil, errServerDir(dir)
	default:
		f.Own = append(f.Own, filepath.Clean(dir))
	}
	if dir, err := changesDir(f); err == nil {
		f.Own = append(f.Own, dir)
	}
	return f, nil
}

// workingDirectory returns the working directory without symlinks: $PWD, which
// os.Getwd believes, may have some.
func workingDirectory() (string, error) {
	cwd, err := syscall.Getwd()
	if err != nil {
		return "", &usageError{"the working directory is gone: " + err.Error(), "change to a directory that exists, or name one with --cd"}
	}
	// See getcwd(3): the directory is not below the caller's root.
	if !strings.HasPrefix(cwd, "/") {
		return "", &usageError{"the working directory " + strconv.Quote(cwd) + " cannot be reached from /", "change to another directory"}
	}
	return cwd, nil
}

// homeOf looks a user's home up in /etc/passwd, for callers without HOME.
func homeOf(uid int) string {
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
