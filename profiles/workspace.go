package profiles

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/sbxrun/sbxrun/policy"
)

// WorkspaceOf is the directory that a request works in, without symbolic links, for
// who needs no policy.
func WorkspaceOf(req *Request, facts *Facts) (string, error) {
	known := facts.known()
	dir, _, _, err := findWorkspace(req, &known)
	return dir, err
}

// known is a copy of the facts, for what is learned: everything is compared by its
// real path, the home too, and no path is looked up twice.
func (f *Facts) known() Facts {
	known := *f
	known.FS = &rememberingFS{f.FS, make(map[string]looked, 64)}
	if home := f.home(); home != "" {
		if pl, err := known.follow(home); err == nil && pl.mode.IsDir() {
			known.Home, known.homeLinks, known.homeReal = pl.real, pl.links, true
		}
	}
	return known
}

// findWorkspace returns the directory that a run works in, without symbolic
// links, how the caller named it, and how that led there.
func findWorkspace(req *Request, facts *Facts) (dir, where string, way place, err error) {
	if req.Dir == "" {
		if !path.IsAbs(facts.Cwd) {
			return "", "", place{}, &Error{Where: "workspace", What: "there is no working directory",
				Fix: "name one with --cd"}
		}
		// The system gave it, without symbolic links; it may be gone by now.
		info, err := fs.Lstat(facts.FS, fsPath(facts.Cwd))
		if err != nil {
			return "", "", place{}, &Error{Where: "workspace", What: facts.Cwd, Err: pathCause(err),
				Fix: "change to a directory that exists, or name one with --cd"}
		}
		if info.IsDir() {
			return path.Clean(facts.Cwd), "workspace", place{}, nil
		}
	}
	where = cmp.Or(req.DirFrom, "flag --cd")
	p, err := facts.absolute(req.Dir)
	if err != nil {
		return "", "", place{}, at(where, err)
	}
	pl, err := facts.follow(p)
	if err != nil {
		return "", "", place{}, at(where, err)
	}
	if !pl.mode.IsDir() {
		return "", "", place{}, &Error{Where: where, What: p + " is not a directory",
			Fix: "name the directory to work in"}
	}
	return pl.real, where, pl, nil
}

// checkWorkspace refuses directories that hold the system or the caller's whole
// home: writable, they would undo the rest of the policy.
func checkWorkspace(dir, where string, facts *Facts, secrets []part) error {
	fix := "change to a project's directory, name one with --cd, or show none with --workspace none"
	bad := func(why string) error {
		return &Error{Where: where, What: dir + " cannot be the workspace: " + why, Fix: fix}
	}
	if dir == "/" {
		return bad("it is the whole file system")
	}
	if strings.ContainsAny(dir, "\x00\n") {
		return bad("its name holds a newline")
	}
	if home := facts.home(); home != "" && policy.Below(home, dir) {
		if home == dir {
			return bad("it is the home directory, with keys and start-up files in it")
		}
		return bad("it holds the home directory")
	}
	if systemDirectory(dir) {
		return bad("it is a system directory")
	}
	if home := facts.home(); home != "" && policy.Below(dir, home) {
		for _, p := range secrets {
			for _, s := range p.items {
				if strings.HasPrefix(s, "~/") && policy.Below(dir[len(home):], s[1:]) {
					return bad("it is in " + s + ", which holds secrets")
				}
			}
		}
	}
	return nil
}

// Withheld says why no grant is proposed of a path, "" if one may be. A command can
// choose what a hint or a denial is about, and somebody may do what that says: so none
// names a root, a home or what holds homes, the state of the running system, what a
// preset has as a secret, or a place of the system's as writable, or one from which the
// user's own programs take what they execute. A secret within is no matter: it stays hidden
// unless a grant names it.
func Withheld(p, home string, write bool) string {
	switch {
	case !path.IsAbs(p), path.Clean(p) != p, strings.LastIndexByte(p, '/') == 0,
		slices.ContainsFunc(homesOf(p, home), func(h string) bool { return policy.Below(h, p) }):
		return "sbxrun proposes no grant of a home or a top-level directory"
	case Secret(p, home), credentialName(p) != "":
		return "a secret, which nothing proposes to show"
	case covers(sessionSockets, p):
		return "sbxrun proposes no grant of a session's or a service's socket"
	case write && (systemDirectory(p) || ofPackages(p) && (home == "" || !policy.Below(p, home))):
		return "sbxrun proposes no write access to the system's files"
	case write && obeyed(p, home):
		return "sbxrun proposes no write access to what your other programs execute or obey"
	case covers([]string{"/boot", "/proc", "/sys", "/run", "/var/run"}, p):
		return "sbxrun proposes no grant of the running system's files"
	case policy.Below(p, "/dev") && !slices.ContainsFunc(harmlessDevices,
		func(d string) bool { ok, _ := path.Match(d, p); return ok }):
		return "sbxrun proposes no grant of this device"
	}
	return ""
}

// Withheld is the function of that name for a host. What a place of secrets leads to is
// withheld, too, by whatever name, and so are sbxrun's own directories.
func (f *Facts) Withheld() func(p string, write bool) string {
	led := sync.OnceValue(func() (to []string) {
		for _, s := range slices.Concat(listStrictSecrets, listAicodeSecrets, listDevelopmentSecrets, listAicodeReadClean) {
			if rest, ok := strings.CutPrefix(s, "~/"); ok && f.Home != "" && !isGlob(rest) {
				name := path.Join(f.Home, rest)
				if pl, err := f.find(name); err == nil && !pl.missing && pl.real != name {
					to = append(to, pl.real)
				}
			}
		}
		return to
	})
	return func(p string, write bool) string {
		if why := Withheld(p, f.Home, write); why != "" {
			return why
		}
		if slices.ContainsFunc(led(), func(dir string) bool { return policy.Below(p, dir) }) {
			return "a secret, which nothing proposes to show"
		}
		if slices.ContainsFunc(f.Own, func(o Own) bool { return !o.Shown && policy.Below(p, o.Path) }) {
			return "sbxrun's own"
		}
		return ""
	}
}

// sessionSockets take orders from whoever can connect to them, outside of the directories of
// which nothing is proposed.
var sessionSockets = []string{"/tmp/.X11-unix", "/tmp/.ICE-unix", "/tmp/ssh-*", "/tmp/dbus-*", "/tmp/tmux-*",
	"/tmp/screens",
	"/**/docker.sock", "/**/podman.sock", "/**/containerd.sock", "/**/S.gpg-agent*"}

// ofPackages reports what is the system's beside [systemDirectory], and may hold a workspace.
func ofPackages(p string) bool {
	return policy.Below(p, "/var") && !policy.Below(p, "/var/tmp") && !policy.Below(p, "/var/www") ||
		policy.Below(p, "/nix") || policy.Below(p, "/snap")
}

// obeyed reports whether programs of the user's execute what is at a path, or take commands
// from it: what every workspace has protected, and where programs are installed.
func obeyed(p, home string) bool {
	for _, s := range listStrictProtect {
		if !strings.HasSuffix(s, "/") && covers([]string{"/**/" + s}, p) {
			return true
		}
	}
	for _, h := range homesOf(p, home) {
		if covers([]string{h + "/bin", h + "/go/bin", h + "/.*/**/bin", h + "/.*/**/shims", h + "/.config/systemd",
			h + "/.local/share/systemd", h + "/.local/share/applications", h + "/.local/share/dbus-1"}, p) {
			return true
		}
		// A whole one of these holds some of those: ~/.local, ~/.cargo, ~/.config.
		if whole, _ := path.Match(h+"/.*", p); whole || p == h+"/go" || p == h+"/.local/share" {
			return true
		}
	}
	return false
}

// harmlessDevices are those that a grant may be proposed of: who has one has no file, disk
// or memory of another's by it.
var harmlessDevices = []string{"/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/dri/*", "/dev/nvidia*", "/dev/kfd",
	"/dev/snd/*"}

// Proposable reports whether a hint may say to show a program, or where one lies.
func Proposable(p, home string) bool {
	return Withheld(p, home, false) == "" && !policy.Below(p, "/etc") && !policy.Below(p, "/dev")
}

// homesOf are the homes that a path may be about.
func homesOf(p, home string) []string {
	homes := []string{"/root"}
	if home != "" && home != "/" {
		homes = append(homes, home)
	}
	for _, all := range [...]string{"/home/", "/Users/"} {
		if rest, ok := strings.CutPrefix(p, all); ok {
			user, _, _ := strings.Cut(rest, "/")
			homes = append(homes, all+user)
		}
	}
	return homes
}

// Secret reports whether a preset has a path as a secret, in any home.
func Secret(p, home string) bool {
	homes := homesOf(p, home)
	for _, list := range [][]string{listStrictSecrets, listAicodeSecrets, listDevelopmentSecrets} {
		for _, s := range list {
			rest, ofHome := strings.CutPrefix(s, "~")
			switch {
			case ofHome:
				for _, h := range homes {
					if covers([]string{h + rest}, p) {
						return true
					}
				}
			case path.IsAbs(s) && !policy.Below(home, s) && covers([]string{s}, p):
				return true
			case strings.HasPrefix(s, "./") && covers([]string{"/**/" + s[2:]}, p):
				return true
			}
		}
	}
	return false
}

// systemDirectory reports whether dir belongs to the system (hier(7)). Places
// below /usr where people keep sources are not the system's.
func systemDirectory(dir string) bool {
	if ofSystem(dir) {
		return !strings.HasPrefix(dir, "/usr/src/") && !strings.HasPrefix(dir, "/usr/local/src/")
	}
	for _, d := range [...]string{"/home", "/root", "/run", "/var", "/tmp", "/var/tmp", "/opt", "/srv", "/mnt",
		"/media", "/nix", "/snap",
		"/var/lib", "/var/log", "/var/run", "/var/spool", "/var/cache", "/usr/src", "/usr/local/src"} {
		if dir == d {
			return true
		}
	}
	return false
}

// ofSystem reports whether dir is or lies in a directory that is the system's with all
// that it holds.
func ofSystem(dir string) bool {
	return slices.ContainsFunc([]string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32",
		"/proc", "/sbin", "/sys", "/usr"},
		func(d string) bool { return policy.Below(dir, d) })
}
