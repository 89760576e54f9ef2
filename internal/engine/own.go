package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// This file has every place that sbxrun reads, executes or trusts in a later run. A
// test looks for others in the code.

// companions are the files that are executed from beside sbxrun, and it.
var companions = []string{"sbxrun", MCPProgram, ServeProgram, compilerProgram}

// compilerProgram compiles filters that are not built in.
const compilerProgram = "sbxrun-seccomp"

// ownPlaces are the places of this user's, by the environment.
func ownPlaces(f *Facts) []profiles.Own {
	uid := int(f.UID)
	var out []profiles.Own
	for _, dir := range f.ConfigDirs {
		out = append(out, profiles.Own{What: "sbxrun's configuration", Path: dir, Shown: true})
	}
	hidden := func(what, dir string) {
		out = append(out, profiles.Own{What: what, Path: dir})
	}
	shown := func(what, dir string) {
		out = append(out, profiles.Own{What: what, Path: dir, Shown: true})
	}
	// A later run may have no such variables: what they move counts in both places.
	both := func(to func(what, dir string), what, name, below string) {
		dir := XDG(f, name, below)
		if dir != "" {
			to(what, filepath.Join(dir, "sbxrun"))
		}
		if usual := filepath.Join(f.Home, below); f.Home != "" && dir != usual {
			to(what, filepath.Join(usual, "sbxrun"))
		}
	}
	if usual := filepath.Join(f.Home, ".config/sbxrun"); f.Home != "" && !slices.Contains(f.ConfigDirs, usual) {
		shown("sbxrun's configuration", usual)
	}
	if dir := os.Getenv(RuntimeVariable); filepath.IsAbs(dir) {
		hidden("the directory of sessions and servers", filepath.Dir(RuntimeDir("sessions")))
	}
	if uid == 0 {
		hidden("the directory of sessions and servers", rootRuntimeDir)
	} else {
		// Of a name that another user has, nothing is obeyed; and a link by that
		// name would hide whatever it leads to.
		for name, what := range map[string]string{"sessions": "the directory of sessions",
			"serve": "the directory of servers"} {
			if dir := rundir.Usual(uid) + "-" + name; !rundir.Taken(dir) {
				hidden(what, dir)
			}
			if dir := ownRuntimeDir(name); dir != "" {
				hidden(what, dir)
			}
		}
	}
	if dir := os.Getenv(ServerEnv); dir != "" && dir != "none" {
		hidden("the server's directory", filepath.Clean(dir))
	}
	hidden("the directory of runs", rundir.Parent(uid))
	both(hidden, "sbxrun's state", "XDG_STATE_HOME", ".local/state")
	both(shown, "sbxrun's cache", "XDG_CACHE_HOME", ".cache")
	both(shown, "what agents execute of sbxrun", "XDG_DATA_HOME", ".local/share")
	for _, dir := range programs.Dirs(f.Home) {
		out = append(out, profiles.Own{What: "a program that sbxrun executes", Path: dir, Shown: true,
			Programs: programs.Names})
	}
	if self, err := os.Executable(); err == nil {
		names := companions
		if f.library {
			names = []string{filepath.Base(self)}
		}
		for _, name := range names {
			out = append(out, profiles.Own{What: "sbxrun itself", Path: filepath.Join(filepath.Dir(self), name), File: true,
				Shown: true})
		}
	}
	return out
}

// Obeyed are the paths of these places: the names that lead there, and those without
// symbolic links.
func Obeyed(f *Facts) []string {
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

// XDG is a directory of the XDG Base Directory Specification, "" if there is none.
func XDG(f *Facts, name, below string) string {
	if dir := os.Getenv(name); filepath.IsAbs(dir) {
		return dir
	}
	if f.Home == "" {
		return ""
	}
	return filepath.Join(f.Home, below)
}

func cacheHome(f *Facts) string { return XDG(f, "XDG_CACHE_HOME", ".cache") }
func StateHome(f *Facts) string { return XDG(f, "XDG_STATE_HOME", ".local/state") }

// rootRuntimeDir is where root's are, without the variable.
const rootRuntimeDir = "/run/sbxrun"

// RuntimeDir is where a directory of this user's, that ends with the machine's
// uptime, is.
func RuntimeDir(name string) string {
	if dir := os.Getenv(RuntimeVariable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sbxrun", name)
	}
	if os.Geteuid() == 0 {
		return rootRuntimeDir + "/" + name
	}
	return userRuntimeDir(rundir.Usual(os.Geteuid())+"-"+name, ownRuntimeDir(name))
}

// userRuntimeDir chooses between a place where every user can make a name, and one of
// the user's own, "" for none. The second is made when another has the name in the
// first, and is the place from then on: whoever has the name can give it up, to a
// command that runs by then.
func userRuntimeDir(shared, own string) string {
	if own == "" {
		return shared
	}
	if _, err := os.Lstat(own); err == nil || rundir.Taken(shared) && session.PrivateDir(own) == nil {
		return own
	}
	return shared
}

// ownRuntimeDir is below the user's home, "" without one.
func ownRuntimeDir(name string) string {
	state := StateHome(&Facts{Facts: profiles.Facts{Home: os.Getenv("HOME")}})
	if state == "" {
		return ""
	}
	return filepath.Join(state, "sbxrun", "run", name)
}

// makeOwn makes the directories that a grant would let a command make.
func makeOwn(r *profiles.Resolved) error {
	for _, dir := range r.Missing {
		err := os.MkdirAll(dir, 0o700)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			continue // what the caller cannot make, the command cannot
		}
		if err != nil {
			return Hinted(err, "a command that can write in "+filepath.Dir(dir)+
				" could make it, and later runs obey what is there; grant less")
		}
	}
	return nil
}
