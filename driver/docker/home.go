package docker

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/rundir"
)

// unused reports whether nobody has used podman in a home directory: it then has
// neither images nor a configuration there.
func unused(env func(string) string) bool {
	home := env("HOME")
	if home == "" {
		return false
	}
	for _, dir := range [...][2]string{{"XDG_DATA_HOME", ".local/share"}, {"XDG_CONFIG_HOME", ".config"}} {
		at := cmp.Or(env(dir[0]), filepath.Join(home, dir[1]))
		if _, err := os.Lstat(filepath.Join(at, "containers")); err == nil {
			return false
		}
	}
	return true
}

// borrowHome gives podman another home directory for what only asks it something,
// where it has not been used: it makes its stores and databases at the first
// question. The function that is returned removes that directory, and ends the process that
// podman leaves to hold an ordinary user's namespace.
func (c *client) borrowHome() (func(), error) {
	if !c.d.Podman || !unused(os.Getenv) {
		return func() {}, nil
	}
	dir, err := rundir.Make(rundir.Parent(os.Geteuid()), "podman", nil)
	if err != nil {
		return nil, err
	}
	c.env = slices.DeleteFunc(environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"}, name)
	})
	c.env = append(c.env, "HOME="+dir.Path)
	return func() {
		endPause(dir.Path)
		dir.Remove()
	}, nil
}

// endPause ends podman's pause process if that began with a home directory. Podman starts
// another when it needs one.
func endPause(home string) {
	uid := strconv.Itoa(os.Geteuid())
	for _, dir := range [...]string{os.Getenv("XDG_RUNTIME_DIR"), "/run/user/" + uid, "/tmp/podman-run-" + uid} {
		file := filepath.Join(dir, "libpod/tmp/pause.pid")
		pid, err := strconv.Atoi(strings.TrimSpace(small(file)))
		if err != nil {
			continue
		}
		env, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if slices.Contains(strings.Split(string(env), "\x00"), "HOME="+home) && syscall.Kill(pid, syscall.SIGKILL) == nil {
			os.Remove(file)
		}
	}
}

// small is what a file holds, "" for one that is not the user's own, or is no small file: who
// else can write there may have made it.
func small(file string) string {
	if !filepath.IsAbs(file) {
		return ""
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		return ""
	}
	var b [32]byte
	n, _ := f.Read(b[:])
	return string(b[:n])
}

// environ is the caller's environment for a client and what that starts (credential
// helpers, podman's runtime and network): programs in the places that [programs.Find]
// takes alone, since commands may have written to others in PATH; and without what podman
// passes on to the container, descriptors and a socket of the service manager's.
func environ() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "PATH" || name == "NOTIFY_SOCKET" || strings.HasPrefix(name, "LISTEN_")
	})
	return append(env, "PATH="+strings.Join(programs.Dirs(os.Getenv("HOME")), ":"))
}
