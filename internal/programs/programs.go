// Package programs finds the programs of others that sbxrun executes on the host,
// with the caller's rights: container engines and runtimes, bubblewrap.
//
// PATH alone does not say which program to trust: a virtual environment, node_modules
// or a build's output can be in it, and commands of earlier runs wrote there. So a
// program counts only in a directory that no run can be given to write: those of the
// system, and one of the user's. The command line keeps grants from all of them.
package programs

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Names are the programs that are executed.
var Names = []string{"bwrap", "runc", "crun", "runsc", "docker", "podman", "cu", "container-use", "catatonit",
	"tini-static", "docker-init"}

// Dirs are the directories in which programs are found. Home may be "".
func Dirs(home string) []string {
	dirs := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin",
		"/run/current-system/sw/bin", "/nix/var/nix/profiles/default/bin"}
	if runtime.GOOS == "darwin" {
		dirs = append(dirs, "/opt/homebrew/bin", "/opt/local/bin")
	}
	if filepath.IsAbs(home) && filepath.Clean(home) != "/" {
		dirs = append(dirs, filepath.Join(home, ".local/bin"))
	}
	return dirs
}

// NotFoundError says that a program is in none of the directories.
type NotFoundError struct {
	Name   string
	Passed string // where PATH has it all the same, "" if it has it nowhere
}

func (e *NotFoundError) Error() string {
	if e.Passed != "" {
		return e.Passed + " is passed over: commands may have written there"
	}
	return "there is no " + e.Name + " in PATH"
}

// Hint says what to do about a program that is passed over, else instead.
func (e *NotFoundError) Hint(instead string) string {
	if e.Passed != "" {
		return "if you trust it, put it or a copy of it in /usr/local/bin or ~/.local/bin"
	}
	return instead
}

// Find returns the absolute path of the program that PATH names, where it is in one
// of the directories.
func Find(name string) (string, *NotFoundError) {
	if !slices.Contains(Names, name) {
		return "", &NotFoundError{Name: name}
	}
	home := os.Getenv("HOME")
	missing := &NotFoundError{Name: name}
	for dir := range strings.SplitSeq(os.Getenv("PATH"), ":") {
		file := filepath.Join(dir, name)
		if !filepath.IsAbs(file) || !executable(file) {
			continue
		}
		if trusted(filepath.Dir(file), home) {
			// A link may lead out of them, but not to where people work.
			real, err := filepath.EvalSymlinks(file)
			if err == nil && (trusted(filepath.Dir(real), home) || !worked(real, home)) {
				return file, nil
			}
		}
		missing.Passed = cmp.Or(missing.Passed, file)
	}
	return "", missing
}

// Version is what a program says of --version; "" if it cannot be asked.
func Version(file string) string {
	if file == "" {
		return ""
	}
	out, err := exec.Command(file, "--version").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func trusted(dir, home string) bool { return slices.Contains(Dirs(home), filepath.Clean(dir)) }

// worked reports whether a file is where commands usually write.
func worked(file, home string) bool {
	cwd, _ := os.Getwd()
	for _, dir := range []string{home, cwd, "/tmp", "/var/tmp"} {
		if real, err := filepath.EvalSymlinks(dir); err == nil && filepath.IsAbs(real) && real != "/" &&
			strings.HasPrefix(file, real+"/") {
			return true
		}
	}
	return false
}

func executable(file string) bool {
	fi, err := os.Stat(file)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}
