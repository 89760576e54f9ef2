package engine

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/profiles"
)

// MCPProgram is the program beside sbxrun that serves MCP and parses shell
// scripts. What it links has init functions that no run should pay for.
const MCPProgram = "sbxrun-mcp"

// ServeProgram is the program beside sbxrun that keeps sandboxes ready and speaks
// HTTP.
const ServeProgram = "sbxrun-serve"

// ServerEnv names the directory with a server's sockets; "none" is no server.
const ServerEnv = "SBXRUN_SERVER"

// RuntimeVariable names the directory for what ends with the user's session.
const RuntimeVariable = "XDG_RUNTIME_DIR"

// BadServerDir says that a server's directory would be another one in each working
// directory, that of an untrusted project too.
func BadServerDir(dir string) error {
	return Usage(ServerEnv+" is "+strconv.Quote(dir)+", not an absolute path", "set it to one, or to none")
}

// Unreadable says why a file that a policy is made of cannot be read, where that is
// not the file's own mode.
func Unreadable(err error, req *profiles.Request, f *Facts) error {
	var file *profiles.Error
	if !errors.As(err, &file) || file.Fix != "" || !errors.Is(file.Err, fs.ErrPermission) {
		return err
	}
	dir := filepath.Dir(file.Where)
	switch {
	case filepath.Base(file.Where) == ".sbxrun.yaml" && unix.Access(dir, unix.X_OK) != nil:
		where := cmp.Or(req.DirFrom, "flag --cd") + ": "
		if req.Dir == "" {
			where = "the working directory "
		}
		return Usage(where+dir+" cannot be entered by this user",
			"name a directory of yours with --cd, or run it as its owner")
	case strings.HasPrefix(file.Where, f.Home+"/") && os.Getenv("HOME") == f.Home && !ownedBy(f.Home, f.UID):
		return Hinted(err, "HOME is "+f.Home+", which is not this user's")
	}
	return err
}

// ownedBy reports whether a directory is a user's. One that cannot be looked at is
// not.
func ownedBy(dir string, uid uint32) bool {
	fi, err := os.Stat(dir)
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return !ok || st.Uid == uid
}

// Unusable names the variable that led to a directory which cannot be used: the
// path in the system's message need not be one that the caller ever wrote.
func Unusable(err error, name, fix string) error {
	var path *fs.PathError
	dir := os.Getenv(name)
	if dir == "" || !errors.As(err, &path) {
		return err
	}
	for _, cause := range []error{fs.ErrPermission, fs.ErrNotExist, syscall.ENOTDIR, syscall.EROFS} {
		if errors.Is(err, cause) {
			return Usage(name+" is "+dir+", which cannot be used: "+err.Error(), fix)
		}
	}
	return err
}
