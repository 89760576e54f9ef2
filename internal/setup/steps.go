package setup

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Facts are what the steps follow from.
type Facts struct {
	Exe string // the program, without links
	Etc string // where the host's files go: /etc

	UID  int    // the user whose runs are to work, 0 for any
	User string // the user's name, "" if it has none

	Systemd   bool     // it runs here
	Manager   bool     // the user has one of its own running
	Delegated string   // controllers that systemd gives such a manager, separated by spaces
	Unified   bool     // cgroup v2 has the controllers
	V1        []string // directories to be the user's on cgroup v1

	Settings  map[string]string // of sysctl(8): those of user namespaces
	AppArmor4 bool              // profiles of this version can be read here

	// What follows is empty if there is nothing to do for the user: with sudo.
	Data, Config, Shell string // XDG_DATA_HOME and XDG_CONFIG_HOME with their defaults; the user's shell
	Home, Dir           string // the home, and the project
	Completion          func(shell string) []byte
	Taken               func(profile string) bool // the name is a profile's
}

// Steps returns what can be done here, and what of that is done already.
func Steps(f *Facts) ([]Step, error) {
	steps := []Step{}
	for _, one := range []func(*Facts) (*Step, error){appArmor, sysctl, delegation, linger, groupsV1,
		completion, project} {
		s, err := one(f)
		if err != nil {
			return nil, err
		}
		if s != nil {
			steps = append(steps, *s)
		}
	}
	return steps, nil
}

// appArmor lets the program make user namespaces where only programs with a profile may.
func appArmor(f *Facts) (*Step, error) {
	if !f.AppArmor4 || f.Settings["kernel.apparmor_restrict_unprivileged_userns"] != "1" {
		return nil, nil
	}
	// A path in a profile of AppArmor's is a pattern, see apparmor.d(5).
	if !regexp.MustCompile(`^/[A-Za-z0-9/._+-]+$`).MatchString(f.Exe) {
		return nil,
			fmt.Errorf(
				"%s cannot stand in an AppArmor profile as it is: put the program where the path has letters, digits and ./_+- alone", f.Exe)
	}
	file, note := f.Etc+"/apparmor.d/sbxrun", ""
	if !rootsAlone(f.Exe) {
		note = "who can write in " + filepath.Dir(f.Exe) + " can give a program of theirs the same right"
	}
	return &Step{
		Name: "apparmor", Root: true, Why: "AppArmor lets only programs with a profile make user namespaces", File: file,
		Note: note,
		Text: []byte("# " + f.Exe + " may make user namespaces. This confines nothing: sbxrun does.\n" +
			"abi <abi/4.0>,\ninclude <tunables/global>\n\nprofile sbxrun " + f.Exe +
			"{,-*} flags=(unconfined) {\n  userns,\n\n  include if exists <local/sbxrun>\n}\n"),
		Then:   [][]string{{"apparmor_parser", "-r", "-W", file}},
		Before: [][]string{{"apparmor_parser", "-R", file}},
	}, nil
}

// rootsAlone reports whether only root can put a file in the place of one.
func rootsAlone(file string) bool {
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if err != nil || !Owns(fi, 0) || fi.Mode()&0o022 != 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// sysctl lets users make user namespaces where the host has them switched off.
func sysctl(f *Facts) (*Step, error) {
	file := f.Etc + "/sysctl.d/50-sbxrun.conf"
	had, _ := read(file)
	text := ""
	for _, s := range [][3]string{{"kernel.unprivileged_userns_clone", "0", "1"},
		{"user.max_user_namespaces", "0", "15000"}} {
		if f.Settings[s[0]] == s[1] || Ours(had) && strings.Contains(string(had), "\n"+s[0]+" = ") {
			text += s[0] + " = " + s[2] + "\n"
		}
	}
	if text == "" {
		return nil, nil
	}
	return &Step{Name: "sysctl", Root: true, Why: "user namespaces are switched off", File: file,
		Text: []byte("# Users may make user namespaces, which sbxrun's sandboxes are made of.\n" + text),
		Note: "--undo removes the file; the setting goes back at the next boot",
		Then: [][]string{{"sysctl", "-q", "-p", file}}}, nil
}

// delegation has systemd give each user the controllers that the limits need.
func delegation(f *Facts) (*Step, error) {
	file := f.Etc + "/systemd/system/user@.service.d/50-sbxrun.conf"
	have := " " + f.Delegated + " "
	missing := !strings.Contains(have, " cpu ") || !strings.Contains(have, " memory ") || !strings.Contains(have, " pids ")
	b, err := read(file)
	if !f.Systemd || !f.Unified || f.UID == 0 || !missing && (err != nil || !Ours(b)) {
		return nil, nil
	}
	return &Step{Name: "delegation", Root: true,
		Why: "systemd delegates too few cgroup controllers for limits on memory, cpu and processes", File: file,
		Text: []byte(
			"# Limits on memory, cpu and processes for what users start, as sbxrun sets them.\n[Service]\nDelegate=cpu cpuset io memory pids\n"),
		Note:   "it holds from the next login on, once all of the user's sessions have ended",
		Then:   [][]string{{"systemctl", "daemon-reload"}},
		Undone: [][]string{{"systemctl", "daemon-reload"}}}, nil
}

// linger has systemd run the user's own manager without a login: it gives runs groups.
func linger(f *Facts) (*Step, error) {
	if !f.Systemd || !f.Unified || f.UID == 0 || f.Manager || f.User == "" {
		return nil, nil
	}
	return &Step{Name: "linger", Root: true, Why: "no systemd of the user's own runs, which would give its runs cgroups",
		Note: "loginctl disable-linger " + f.User + " takes it back",
		Then: [][]string{{"loginctl", "enable-linger", f.User}}}, nil
}

// groupsV1 gives the user groups of cgroup v1, where systemd cannot delegate any.
func groupsV1(f *Facts) (*Step, error) {
	if len(f.V1) == 0 || f.UID == 0 {
		return nil, nil
	}
	return &Step{Name: "cgroups", Root: true,
		Why:  "limits on memory, cpu and processes need groups of cgroup v1 that the user may write",
		Note: "until the next boot", Dirs: f.V1, User: f.UID}, nil
}

// completion completes commands and flags in the user's shell.
func completion(f *Facts) (*Step, error) {
	if f.Data == "" {
		return nil, nil
	}
	shell := filepath.Base(f.Shell)
	s := &Step{Name: "completion", Why: "commands and flags complete in " + shell}
	switch shell {
	case "bash":
		s.File = f.Data + "/bash-completion/completions/sbxrun"
		s.Note = "it needs the package bash-completion, and a new shell"
	case "zsh":
		s.File = f.Data + "/zsh/site-functions/_sbxrun"
		s.Note = "in ~/.zshrc, before compinit: fpath+=(" + filepath.Dir(s.File) + ")"
	case "fish":
		s.File = f.Config + "/fish/completions/sbxrun.fish"
	default:
		return nil, nil
	}
	if b, err := read(s.File); err != nil || Ours(b) {
		for _, there := range []string{"/usr/share/bash-completion/completions/sbxrun",
			"/usr/share/zsh/vendor-completions/_sbxrun", "/usr/share/fish/vendor_completions.d/sbxrun.fish"} {
			if _, err2 := os.Stat(there); err2 == nil && err != nil && strings.Contains(there, shell) {
				return nil, nil // the package's
			}
		}
	}
	s.Text = f.Completion(shell)
	return s, nil
}

// projects are files that a project has, and a line for a profile of such a one.
var projects = []struct{ file, hint string }{
	{"go.mod", "write: [~/.cache/go-build]  # a build cache that stays; with the variable GOCACHE"},
	{"package.json", "write: [~/.npm]             # a cache of packages that stays"},
	{"Cargo.toml", "write: [~/.cargo/registry]  # crates that stay"},
	{"pyproject.toml", "write: [~/.cache/pip]       # a cache of packages that stays"},
	{"requirements.txt", "write: [~/.cache/pip]       # a cache of packages that stays"},
	{"pom.xml", "write: [~/.m2/repository]   # artifacts that stay"},
	{"build.gradle", "write: [~/.gradle/caches]   # artifacts that stay"},
	{"CMakeLists.txt", "read: [~/src/library]       # another directory of yours"},
	{"Makefile", "read: [~/src/library]       # another directory of yours"},
	{".git", "read: [~/src/library]       # another directory of yours"},
}

// project writes a first profile for the directory, among the user's: the project's own
// .sbxrun.yaml is its author's, and can only make sandboxes tighter.
func project(f *Facts) (*Step, error) {
	if f.Config == "" || f.Dir == "" || f.Dir == "/" || f.Dir == f.Home {
		return nil, nil
	}
	name := strings.Trim(regexp.MustCompile(`[^a-z0-9_-]+`).ReplaceAllString(strings.ToLower(filepath.Base(f.Dir)), "-"),
		"-")
	name = cmp.Or(name, "project")
	if f.Taken(name) {
		name += "-project"
	}
	for _, p := range projects {
		if _, err := os.Lstat(filepath.Join(f.Dir, p.file)); err != nil {
			continue
		}
		return &Step{Name: "profile", Why: "a profile for this project, to be edited: sbxrun -P " + name + " -- COMMAND",
			File: filepath.Join(f.Config, "sbxrun", "profiles", name+".yaml"),
			Text: []byte("# sbxrun -P " + name + " -- COMMAND\n" +
				"# aicode: the home's tool chains can be read, and the hosts of package registries be reached.\n" +
				"# strict: no network, and nothing of the home. sbxrun profile show " + name + " shows what is in force.\n" +
				"extends: aicode\n\n#network:\n#  allow: [api.example.com]   # one more host\n#files:\n#  " + p.hint +
				"\n#limits:\n#  memory: 4g\n#  cpus: 2\n#  wall_time: 30m\n")}, nil
	}
	return nil, nil
}

// Left are files that an earlier Do made and no step of today names: profiles.
func Left(f *Facts, steps []Step) []Step {
	var left []Step
	var found []string
	if filepath.IsAbs(f.Config) { // with sudo there is none: a user's files are not root's to remove
		found, _ = filepath.Glob(filepath.Join(f.Config, "sbxrun", "profiles", "*.yaml"))
	}
	for _, s := range found {
		left = append(left, Step{Name: "profile", File: s})
	}
	apparmor, unit := f.Etc+"/apparmor.d/sbxrun", f.Etc+"/systemd/system/user@.service.d/50-sbxrun.conf"
	left = append(left, Step{Name: "apparmor", Root: true, File: apparmor,
		Before: [][]string{{"apparmor_parser", "-R", apparmor}}},
		Step{Name: "sysctl", Root: true, File: f.Etc + "/sysctl.d/50-sbxrun.conf"},
		Step{Name: "delegation", Root: true, File: unit, Undone: [][]string{{"systemctl", "daemon-reload"}}})
	known := map[string]bool{"": true}
	for _, s := range steps {
		known[s.File] = true
	}
	out := left[:0]
	for _, s := range left {
		if b, err := read(s.File); err == nil && Ours(b) && !known[s.File] {
			out = append(out, s)
		}
	}
	return out
}
