package setup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// host is one that lacks all that setup can give, with its files below a directory.
func host(t *testing.T) *Facts {
	dir := t.TempDir()
	project := filepath.Join(dir, "home", "Some Project!")
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(project, "go.mod"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return &Facts{
		Exe: "/usr/local/bin/sbxrun", Etc: filepath.Join(dir, "etc"), UID: 1000, User: "ada",
		Systemd: true, Unified: true, Delegated: "memory pids", AppArmor4: true,
		Settings: map[string]string{"kernel.apparmor_restrict_unprivileged_userns": "1", "kernel.unprivileged_userns_clone": "0"},
		Data:     filepath.Join(dir, "home", "data"), Config: filepath.Join(dir, "home", "config"), Shell: "/bin/zsh",
		Home: filepath.Join(dir, "home"), Dir: project,
		Completion: func(shell string) []byte { return []byte("#compdef sbxrun\nfor " + shell + "\n") },
		Taken:      func(string) bool { return false },
	}
}

// programs puts programs into PATH that log how they are called, and returns the log's
// reader. One of them fails.
func programs(t *testing.T, failing string) func() string {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	for _, name := range []string{"apparmor_parser", "sysctl", "systemctl", "loginctl"} {
		end := "0"
		if name == failing {
			end = "1"
		}
		script := "#!/bin/sh\necho " + name + " \"$@\" >> " + log + "\nexit " + end + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	was := find
	find = func(name string) (string, error) { return filepath.Join(dir, name), nil }
	t.Cleanup(func() { find = was })
	return func() string {
		b, _ := os.ReadFile(log)
		os.Remove(log)
		return string(b)
	}
}

func steps(t *testing.T, f *Facts) []Step {
	t.Helper()
	list, err := Steps(f)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestSteps(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Facts)
		want   string
	}{
		{"everything", func(*Facts) {}, "apparmor sysctl delegation linger completion profile"},
		{"a host that has all", func(f *Facts) {
			f.Settings, f.Delegated, f.Manager = map[string]string{"user.max_user_namespaces": "63000"}, "cpuset cpu io memory pids", true
		}, "completion profile"},
		{"an old AppArmor needs no profile", func(f *Facts) { f.AppArmor4 = false }, "sysctl delegation linger completion profile"},
		{"no systemd", func(f *Facts) { f.Systemd = false }, "apparmor sysctl completion profile"},
		{"cgroup v1", func(f *Facts) { f.Unified, f.V1 = false, []string{"/none/memory/sbxrun"} }, "apparmor sysctl cgroups completion profile"},
		{"for no user", func(f *Facts) { f.UID, f.Data, f.Config = 0, "", "" }, "apparmor sysctl"},
		{"another shell", func(f *Facts) { f.Shell = "/bin/tcsh" }, "apparmor sysctl delegation linger profile"},
		{"in the home", func(f *Facts) { f.Dir = f.Home }, "apparmor sysctl delegation linger completion"},
		{"in no project", func(f *Facts) { os.Remove(filepath.Join(f.Dir, "go.mod")) }, "apparmor sysctl delegation linger completion"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := host(t)
			tt.change(f)
			got := []string{}
			for _, s := range steps(t, f) {
				got = append(got, s.Name)
				if s.State() != ToDo || s.Why == "" {
					t.Errorf("%s: %q, %q", s.Name, s.State(), s.Why)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	f := host(t)
	f.Exe = "/opt/my programs/sbxrun{,x}"
	if _, err := Steps(f); err == nil {
		t.Error("a path with a pattern stands in an AppArmor profile")
	}
}

// TestDoAndUndo: all is made, is done then, and gone after Undo.
func TestDoAndUndo(t *testing.T) {
	f := host(t)
	log := programs(t, "")
	for _, s := range steps(t, f) {
		if err := s.Do(); err != nil {
			t.Fatal(err)
		}
		if s.Name != "linger" && s.State() != Done {
			t.Errorf("%s: %q", s.Name, s.State())
		}
	}
	etc := f.Etc
	want := "apparmor_parser -r -W " + etc + "/apparmor.d/sbxrun\nsysctl -q -p " + etc + "/sysctl.d/50-sbxrun.conf\n" +
		"systemctl daemon-reload\nloginctl enable-linger ada\n"
	if got := log(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for file, want := range map[string]string{
		etc + "/apparmor.d/sbxrun":                                   "profile sbxrun /usr/local/bin/sbxrun{,-*} flags=(unconfined) {\n  userns,\n",
		etc + "/sysctl.d/50-sbxrun.conf":                             "\nkernel.unprivileged_userns_clone = 1\n",
		etc + "/systemd/system/user@.service.d/50-sbxrun.conf":       "\n[Service]\nDelegate=cpu cpuset io memory pids\n",
		f.Data + "/zsh/site-functions/_sbxrun":                       "#compdef sbxrun\n# Made by",
		filepath.Join(f.Config, "sbxrun/profiles/some-project.yaml"): "\nextends: aicode\n",
	} {
		if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %q, %v", file, b, err)
		}
	}
	// The host has what was missing, and the directory is another.
	f.Settings, f.Delegated, f.Dir = nil, "cpuset cpu io memory pids", f.Home
	f.AppArmor4 = false
	list := steps(t, f)
	for _, s := range append(list, Left(f, list)...) {
		if _, err := s.Undo(); err != nil {
			t.Error(err)
		}
	}
	filepath.Walk(filepath.Dir(etc), func(file string, fi os.FileInfo, err error) error {
		if err == nil && !fi.IsDir() && filepath.Base(file) != "go.mod" {
			t.Errorf("%s is left", file)
		}
		return nil
	})
	if got := log(); !strings.Contains(got, "systemctl daemon-reload") {
		t.Errorf("%q", got)
	}
}

// TestOthers: a file of somebody else's, and one that was edited, stay as they are.
func TestOthers(t *testing.T) {
	f := host(t)
	programs(t, "")
	list := steps(t, f)
	s := list[slices.IndexFunc(list, func(s Step) bool { return s.Name == "profile" })]
	if err := s.Do(); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile(s.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"extends: strict\n", "", string(made) + "# mine\n", strings.Replace(string(made), "aicode", "strict", 1)} {
		if err := os.WriteFile(s.File, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s.State() != Other || s.Do() == nil {
			t.Errorf("%q: %q", text, s.State())
		}
		had, err := s.Undo()
		if b, _ := os.ReadFile(s.File); had || err != nil || string(b) != text {
			t.Errorf("%q became %q: %v, %v", text, b, had, err)
		}
	}
	// Of an earlier version, and not edited, it is made anew.
	if err := os.WriteFile(s.File, marked([]byte("# an\n# earlier: one\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.State() != ToDo {
		t.Errorf("an earlier version's: %q", s.State())
	}
	if err := s.Do(); err != nil || s.State() != Done {
		t.Errorf("%v, %q", err, s.State())
	}
	// A link is its maker's, too.
	os.Remove(s.File)
	target := filepath.Join(f.Home, "target")
	if err := os.Symlink(target, s.File); err != nil {
		t.Fatal(err)
	}
	if s.State() != Other || s.Do() == nil {
		t.Errorf("a link: %q", s.State())
	}
	if had, err := s.Undo(); had || err != nil {
		t.Errorf("%v, %v", had, err)
	}
	for _, name := range []string{target, s.File} {
		if _, err := os.Lstat(name); (err == nil) != (name == s.File) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUndoLink: a link to a directory is its maker's, whatever is left in there.
func TestUndoLink(t *testing.T) {
	f := host(t)
	dotfiles := t.TempDir()
	profiles := filepath.Join(f.Config, "sbxrun", "profiles")
	if err := errors.Join(os.MkdirAll(filepath.Dir(profiles), 0o755), os.Symlink(dotfiles, profiles)); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps(t, f) {
		if s.Name == "profile" {
			if err := s.Do(); err != nil {
				t.Fatal(err)
			}
			if had, err := s.Undo(); !had || err != nil {
				t.Errorf("%v, %v", had, err)
			}
		}
	}
	if fi, err := os.Lstat(profiles); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		t.Errorf("%v, %v", fi, err)
	}
}

// TestDirs: directories become the user's, and are removed, or root's again where they
// are in use. Another user's stay.
func TestDirs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives directories to other users")
	}
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := os.MkdirAll(filepath.Join(b, "used"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &Step{Dirs: []string{a, b}, User: 1000}
	if err := s.Do(); err != nil || s.State() != Done {
		t.Fatal(err, s.State())
	}
	if err := (&Step{Dirs: []string{a}, User: 1001}).Do(); err == nil {
		t.Error("another user's directory was taken")
	}
	if had, err := s.Undo(); !had || err != nil || s.State() != ToDo {
		t.Errorf("%v, %v, %q", had, err, s.State())
	}
	if fi, err := os.Stat(b); err != nil || !Owns(fi, 0) {
		t.Errorf("%v, %v", fi, err)
	}
	if _, err := os.Stat(a); err == nil {
		t.Error("it is left")
	}
}

// TestNotRoots: with sudo, nothing is looked for in the current directory, and a FIFO at a
// file's place is not waited for.
func TestNotRoots(t *testing.T) {
	f := host(t)
	t.Chdir(f.Home)
	planted := filepath.Join(f.Home, "sbxrun", "profiles", "x.yaml")
	if err := os.MkdirAll(filepath.Dir(planted), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(planted, marked([]byte("# mine\nextends: strict\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	f.Data, f.Config = "", ""
	if left := Left(f, nil); len(left) != 0 {
		t.Errorf("%+v", left)
	}
	f = host(t)
	fifo := filepath.Join(f.Data, "zsh", "site-functions", "_sbxrun")
	if err := errors.Join(os.MkdirAll(filepath.Dir(fifo), 0o755), syscall.Mkfifo(fifo, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps(t, f) {
		if s.Name == "completion" && (s.State() != Other || s.Do() == nil) {
			t.Errorf("%q", s.State())
		}
	}
}

// TestFailedCommand: a command that fails leaves no file, or the one of an earlier version.
func TestFailedCommand(t *testing.T) {
	f := host(t)
	programs(t, "apparmor_parser")
	s := steps(t, f)[0]
	if err := s.Do(); err == nil || s.State() != ToDo {
		t.Errorf("%v, %q", err, s.State())
	}
	earlier := marked([]byte("# an\n# earlier one\n"))
	if err := os.WriteFile(s.File, earlier, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Do(); err == nil {
		t.Error("it did not fail")
	}
	if b, err := os.ReadFile(s.File); err != nil || string(b) != string(earlier) {
		t.Errorf("%q, %v", b, err)
	}
}
