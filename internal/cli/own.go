package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/profiles"
)

// This file has every place that sbxrun reads, executes or trusts in a later run. A
// test looks for others in the code.

// companions are the files that are executed from beside sbxrun, and it.
var companions = []string{"sbxrun", mcpProgram, serveProgram, compilerProgram}

// compilerProgram compiles filters that are not built in.
const compilerProgram = "sbxrun-seccomp"

// ownPlaces are the places of this user's, by the environment.
func ownPlaces(f *facts) []profiles.Own {
	uid := int(f.UID)
	var out []profiles.Own
	for _, dir := range f.ConfigDirs {
		out = append(out, profiles.Own{What: "sbxrun's configuration", Path: dir, Shown: true})
	}
	hidden := func(what, dir string) {
		out = append(out, profiles.Own{What: what, Path: dir})
	}
	if filepath.IsAbs(os.Getenv(runtimeVariable)) || uid == 0 {
		hidden("the directory of sessions and servers", filepath.Dir(runtimeDir("sessions")))
	} else {
		hidden("the directory of sessions", runtimeDir("sessions"))
		hidden("the directory of servers", runtimeDir("serve"))
	}
	if dir := os.Getenv(serverEnv); dir != "" && dir != "none" {
		hidden("the server's directory", filepath.Clean(dir))
	}
	hidden("the directory of runs", rundir.Parent(uid))
	if dir := stateHome(f); dir != "" {
		hidden("sbxrun's state", filepath.Join(dir, "sbxrun"))
	}
	shown := func(what, dir string) {
		out = append(out, profiles.Own{What: what, Path: dir, Shown: true})
	}
	if dir := cacheHome(f); dir != "" {
		shown("sbxrun's cache", filepath.Join(dir, "sbxrun"))
	}
	if dir := xdg(f, "XDG_DATA_HOME", ".local/share"); dir != "" {
		shown("what agents execute of sbxrun", filepath.Join(dir, "sbxrun"))
	}
	for _, dir := range programs.Dirs(f.Home) {
		shown("a program that sbxrun executes", dir)
	}
	if self, err := os.Executable(); err == nil {
		for _, name := range companions {
			out = append(out, profiles.Own{What: "sbxrun itself", Path: filepath.Join(filepath.Dir(self), name), File: true, Shown: true})
		}
	}
	return out
}

// obeyed are the paths of these places: the names that lead there, and those without
// symbolic links.
func obeyed(f *facts) []string {
	var out []string
	for _, o := range f.Own {
		out = append(out, o.Path)
		dir, rest := o.Path, ""
		for dir != "/" {
			if real, err := filepath.EvalSymlinks(dir); err == nil {
				out = append(out, filepath.Join(real, rest))
				break
			}
			dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest)
		}
	}
	return out
}

// xdg is a directory of the XDG Base Directory Specification, "" if there is none.
func xdg(f *facts, name, below string) string {
	if dir := os.Getenv(name); filepath.IsAbs(dir) {
		return dir
	}
	if f.Home == "" {
		return ""
	}
	return filepath.Join(f.Home, below)
}

func cacheHome(f *facts) string { return xdg(f, "XDG_CACHE_HOME", ".cache") }
func stateHome(f *facts) string { return xdg(f, "XDG_STATE_HOME", ".local/state") }

// runtimeDir is where a directory of this user's, that ends with the machine's
// uptime, is.
func runtimeDir(name string) string {
	if dir := os.Getenv(runtimeVariable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sbxrun", name)
	}
	if os.Geteuid() == 0 {
		return "/run/sbxrun/" + name
	}
	return rundir.Parent(os.Geteuid()) + "-" + name
}

// makeOwn makes the directories that a grant would let a command make.
func makeOwn(r *profiles.Resolved) error {
	for _, dir := range r.Missing {
		err := os.MkdirAll(dir, 0o700)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			continue // what the caller cannot make, the command cannot
		}
		if err != nil {
			return &hinted{err, "a command that can write in " + filepath.Dir(dir) + " could make it, and later runs obey what is there; grant less"}
		}
	}
	return nil
}
