package docker

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

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
		at := env(dir[0])
		if at == "" {
			at = filepath.Join(home, dir[1])
		}
		if _, err := os.Lstat(filepath.Join(at, "containers")); err == nil {
			return false
		}
	}
	return true
}

// borrowHome gives podman another home directory for what only asks it something,
// where it has not been used: it makes its stores and databases at the first
// question. The function that is returned removes that directory.
func (c *client) borrowHome() (func(), error) {
	if !c.d.Podman || !unused(os.Getenv) {
		return func() {}, nil
	}
	dir, err := rundir.Make(rundir.Parent(os.Geteuid()), "podman", nil)
	if err != nil {
		return nil, err
	}
	c.env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"}, name)
	})
	c.env = append(c.env, "HOME="+dir.Path)
	return func() { dir.Remove() }, nil
}
