package engine

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// lookups are the ways in which the product comes to places and programs that no
// caller named: every use of them, by function, and the place of Own that covers it,
// or why none has to. A use that is not here fails the test, and so does a line
// without a use.
var lookups = map[string]string{
	"internal/engine hostFacts: xdg XDG_CONFIG_HOME":                              "/config/sbxrun",
	"internal/engine hostFacts: /etc/sbxrun":                                      "/etc/sbxrun",
	"internal/agents -: /etc/sbxrun/agents":                                       "/etc/sbxrun",
	"internal/engine StateHome: xdg XDG_STATE_HOME":                               "/state/sbxrun",
	"internal/engine cacheHome: xdg XDG_CACHE_HOME":                               "/cache/sbxrun",
	"internal/engine verifiedMark: /sbxrun/verified-":                             "/cache/sbxrun",
	"seccomp writeEntry: CreateTemp dir":                                          "/cache/sbxrun",
	"internal/engine ownPlaces: xdg name":                                         "/data/sbxrun",
	"internal/engine RuntimeDir: Getenv XDG_RUNTIME_DIR":                          "/run/user/7/sbxrun",
	"internal/engine ownPlaces: Getenv XDG_RUNTIME_DIR":                           "/run/user/7/sbxrun",
	"internal/engine ownPlaces: Getenv SBXRUN_SERVER":                             "/server",
	"internal/engine hostFacts: Getenv SBXRUN_SERVER":                             "/server",
	"internal/engine ServerDir: Getenv SBXRUN_SERVER":                             "/server",
	"internal/rundir Usual: /var/tmp":                                             "/var/tmp/sbxrun-",
	"internal/engine ownRuntimeDir: Getenv HOME":                                  "/home/.local/state/sbxrun",
	"internal/rundir Make: MkdirTemp parent":                                      "/var/tmp/sbxrun-",
	"internal/programs Find: Getenv PATH":                                         "/usr/local/bin",
	"internal/programs Find: Getenv HOME":                                         "/home/.local/bin",
	"internal/engine ownPlaces: Executable":                                       "sbxrun itself",
	"internal/cli executeBeside: Executable":                                      "sbxrun itself",
	"internal/engine Fit: Executable":                                             "sbxrun itself",
	"internal/holder Start: Executable":                                           "sbxrun itself",
	"internal/engine SelfTest: Executable":                                        "sbxrun itself",
	"internal/cli hook: Executable":                                               "sbxrun itself",
	"cmd/sbxrun-mcp siteOf: Executable":                                           "sbxrun itself",
	"internal/engine -: /run/sbxrun":                                              "root's, where XDG_RUNTIME_DIR is not set; Own has it for root",
	"internal/rundir Usual: /tmp":                                                 "where there is no /var/tmp; Own asks it too",
	"internal/engine XDG: Getenv name":                                            "its callers are here",
	"cmd/sbxrun-mcp siteOf: xdg name":                                             "the directories of the agent that integrate is asked to change",
	"internal/agents/whole Program: LookPath":                                     "the agent, which the caller named: it runs in a sandbox, or a test of the integration asks for its version",
	"internal/agents/whole reach: Getenv Base":                                    "the address of the agent's API, which the caller named",
	"internal/engine hostFacts: Getenv HOME":                                      "where ~ is; all that is below is here",
	"internal/engine FindSessions: Getenv XDG_RUNTIME_DIR":                        "for a message",
	"internal/engine OpenSessions: Getenv XDG_RUNTIME_DIR":                        "for a message",
	"internal/engine OpenChanges: Getenv name":                                    "for a message",
	"internal/engine Unusable: Getenv name":                                       "for a message",
	"internal/engine Unreadable: Getenv HOME":                                     "for a message",
	"internal/engine propose: Getenv HOME":                                        "for a message",
	"internal/engine hides: Getenv HOME":                                          "for a message",
	"internal/engine onHost: Getenv PATH":                                         "for a message",
	"internal/probe appArmorFix: Executable":                                      "for a message",
	"internal/probe appArmorFix: /usr/bin/sbxrun":                                 "for a message",
	"seatbelt Lower: /private/tmp/sbxrun":                                         "for a message",
	"internal/standin CleanPath: Executable":                                      "compared, not executed",
	"internal/standin Find: Executable":                                           "compared, not executed",
	"internal/cli environ: Getenv PATH":                                           "given to the command",
	"internal/standin SessionID: Getenv PATH":                                     "part of a session's key",
	"internal/engine ProxyVariable: Getenv name":                                  "the caller's proxy",
	"internal/engine ProxyVariable: Getenv strings.ToLower":                       "the caller's proxy",
	"internal/engine verifiedMark: Getenv name":                                   "which container engine",
	"internal/cli checkHTTP: Getenv tokenEnv":                                     "a token",
	"internal/engine token: Getenv TokenEnv":                                      "a token",
	"internal/engine HintOf: Getenv MarkerEnv":                                    "the marker of a sandbox",
	"driver/docker endPause: Getenv XDG_RUNTIME_DIR":                              "a number, of a process that has to have the home it was given",
	"driver/docker environ: Getenv HOME":                                          "for the directories that programs.Find takes",
	". init: Getenv MarkerName":                                                   "the marker of what doctor starts",
	"internal/cli hook: Getenv name":                                              "given to the command line that the agent runs",
	"internal/holder Start: Getenv k":                                             "given to the holder, which is the same program",
	"internal/engine SessionProcess: Getenv k":                                    "given to the command",
	"internal/cli settle: Getenv envShellSession":                                 "the caller's own choice of a session",
	"internal/cli settle: Getenv envShellWorkspace":                               "the caller's own choice of a workspace",
	"internal/standin claude: Getenv name":                                        "files of Claude Code's own; what is read or written of them is bounded there",
	"internal/standin claude: Getenv HOME":                                        "files of Claude Code's own",
	"internal/standin claude: Getenv CLAUDE_CONFIG_DIR":                           "files of Claude Code's own",
	"internal/standin claude: /tmp":                                               "files of Claude Code's own",
	"internal/engine acts: /tmp":                                                  "what the self-test tries inside",
	"internal/engine try: MkdirTemp ":                                             "the workspace of doctor's canaries, which they write",
	"internal/standin anonymous: CreateTemp ":                                     "a file without a name",
	"seatbelt start: MkdirTemp ":                                                  "a command's private storage, which it writes",
	"internal/agents layBait: MkdirTemp ":                                         "the project of an agent that is tried, which its commands write",
	"internal/cli facts: Executable":                                              "named in what setup writes",
	"internal/cli list: Executable":                                               "for a message",
	"internal/cli own: xdg config":                                                "where setup writes, and Own has the profiles there",
	"internal/cli own: xdg data":                                                  "where setup writes what the user's shell reads",
	"internal/engine readable: CreateTemp filepath.Dir":                           "beside the profile that the caller named",
	"internal/engine Ready: CreateTemp filepath.Dir":                              "beside the profile that the caller named",
	"internal/engine resolveOpen: CreateTemp ":                                    "read once, by this process, before anything runs",
	"internal/learn -: /tmp":                                                      "compared, not opened",
	"internal/learn -: /var/tmp":                                                  "compared, not opened",
	"internal/setup write: CreateTemp dir":                                        "beside what setup writes",
	"internal/setup Left: /apparmor.d/sbxrun":                                     "root's",
	"internal/setup Left: /sysctl.d/50-sbxrun.conf":                               "root's",
	"internal/setup Left: /systemd/system/user@.service.d/50-sbxrun.conf":         "root's",
	"internal/setup appArmor: /apparmor.d/sbxrun":                                 "root's",
	"internal/setup sysctl: /sysctl.d/50-sbxrun.conf":                             "root's",
	"internal/setup delegation: /systemd/system/user@.service.d/50-sbxrun.conf":   "root's",
	"internal/setup completion: /bash-completion/completions/sbxrun":              "the user's shell reads it",
	"internal/setup completion: /zsh/site-functions/_sbxrun":                      "the user's shell reads it",
	"internal/setup completion: /fish/completions/sbxrun.fish":                    "the user's shell reads it",
	"internal/setup completion: /usr/share/bash-completion/completions/sbxrun":    "whether the package is installed",
	"internal/setup completion: /usr/share/zsh/vendor-completions/_sbxrun":        "whether the package is installed",
	"internal/setup completion: /usr/share/fish/vendor_completions.d/sbxrun.fish": "whether the package is installed",
}

// TestOwnIsWhole finds in the product's code what reads places and programs by the
// environment, and holds it to the list.
func TestOwnIsWhole(t *testing.T) {
	for name, dir := range map[string]string{"XDG_CONFIG_HOME": "/config", "XDG_STATE_HOME": "/state", "XDG_CACHE_HOME": "/cache", "XDG_DATA_HOME": "/data",
		RuntimeVariable: "/run/user/7", ServerEnv: "/server", "HOME": "/home"} {
		t.Setenv(name, dir)
	}
	f := &Facts{Facts: profiles.Facts{Home: "/home", UID: uint32(os.Geteuid()), ConfigDirs: []string{"/config/sbxrun", "/etc/sbxrun"}}}
	var places []string
	for _, o := range ownPlaces(f) {
		places = append(places, o.What+" "+o.Path)
	}
	// A run without the variables, later, looks here.
	os.Unsetenv(RuntimeVariable)
	withoutVariable := RuntimeDir("sessions")
	for _, usual := range []string{"/home/.config/sbxrun", "/home/.cache/sbxrun", "/home/.local/state/sbxrun", "/home/.local/share/sbxrun", withoutVariable} {
		if !slices.ContainsFunc(places, func(p string) bool {
			return strings.HasSuffix(p, " "+usual) || strings.HasSuffix(p, " "+filepath.Dir(usual))
		}) {
			t.Errorf("%s is not in %q", usual, places)
		}
	}
	used := map[string]bool{}
	for _, use := range uses(t, "../..") {
		why, ok := lookups[use]
		if !ok {
			t.Errorf("%s: by this the program finds a place or a program that no line of lookups accounts for", use)
			continue
		}
		used[use] = true
		if strings.HasPrefix(why, "/") && !slices.ContainsFunc(places, func(p string) bool { return strings.Contains(p, " "+why) }) {
			t.Errorf("%s: %s is not in %q", use, why, places)
		}
	}
	for use := range lookups {
		if !used[use] {
			t.Errorf("%s: no such use", use)
		}
	}
}

// TestRuntimeDirTaken: where another has the name of a user's directory of sessions, that is
// kept at home, and stays there when the name is free again.
func TestRuntimeDirTaken(t *testing.T) {
	for what, take := range map[string]func(dir string) error{
		"another user's": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Lchown(dir, 54321, 54321)) },
		"open to others": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o755)) },
		"a link":         func(dir string) error { return os.Symlink(t.TempDir(), dir) },
		"a file":         func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			shared, own := filepath.Join(t.TempDir(), "shared"), filepath.Join(t.TempDir(), "state", "sbxrun", "run", "sessions")
			if got := userRuntimeDir(shared, own); got != shared {
				t.Errorf("free: %s", got)
			}
			if err := take(shared); errors.Is(err, fs.ErrPermission) {
				t.Skip("only root gives files away")
			} else if err != nil {
				t.Fatal(err)
			}
			if got := userRuntimeDir(shared, ""); got != shared {
				t.Errorf("without a home: %s", got)
			}
			if st, err := session.OpenStore(shared); err == nil {
				st.Close()
				t.Error("a store in another's directory")
			}
			if got := userRuntimeDir(shared, own); got != own {
				t.Errorf("taken: %s", got)
			}
			st, err := session.OpenStore(own)
			if err != nil {
				t.Fatal(err)
			}
			st.Close()
			if err := errors.Join(os.RemoveAll(shared), os.Mkdir(shared, 0o700)); err != nil {
				t.Fatal(err)
			}
			if got := userRuntimeDir(shared, own); got != own {
				t.Errorf("free again: %s", got)
			}
		})
	}
	shared := filepath.Join(t.TempDir(), "shared")
	os.Mkdir(shared, 0o700)
	if got := userRuntimeDir(shared, filepath.Join(t.TempDir(), "own")); got != shared {
		t.Errorf("the user's: %s", got)
	}
}

// uses lists what could lead to a place, as "package function: what".
func uses(t *testing.T, root string) []string {
	var out []string
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, file)
		if d.IsDir() {
			if slices.Contains([]string{"test", "bench", "tools", "examples", "internal/cli/man"}, rel) || strings.HasPrefix(d.Name(), ".") && rel != "." {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || slices.Contains(profilesData, rel) {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range parsed.Decls {
			name := "-"
			if fn, ok := decl.(*ast.FuncDecl); ok {
				name = fn.Name.Name
			}
			dir := filepath.ToSlash(filepath.Dir(rel))
			at := dir + " " + name + ": "
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if what := called(n); what != "" {
						out = append(out, at+what)
					}
				case *ast.BasicLit:
					if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && fixed(s) && !slices.Contains(inside, dir+" "+s) {
						out = append(out, at+s)
					}
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// inside are literals that are about what commands see.
var inside = []string{"profiles /tmp", "profiles /var/tmp", "seatbelt /tmp", "seatbelt /var/tmp", "driver/landlocked /tmp", "driver/landlocked /var/tmp", "internal/probe /tmp",
	"internal/programs /tmp", "internal/programs /var/tmp", "internal/probe /.sbxrun-canary-", "internal/probe /.sbxrun-canary-device"}

// profilesData are presets: paths in them are about what commands see.
var profilesData = []string{"profiles/presets_gen.go"}

// fixed reports whether a string is a place where a program keeps what is its own.
func fixed(s string) bool {
	return s == "/tmp" || s == "/var/tmp" || strings.HasPrefix(s, "/") && strings.Contains(s, "sbxrun") && !strings.ContainsAny(s, " \n")
}

// called names a call by which a place or a program is found.
func called(c *ast.CallExpr) string {
	name := ""
	switch f := c.Fun.(type) {
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); !ok || !slices.Contains([]string{"os", "exec", "syscall", "engine"}, x.Name) {
			return ""
		}
		name = f.Sel.Name
	case *ast.Ident:
		name = f.Name
	}
	arg := func(i int) string {
		if i >= len(c.Args) {
			return ""
		}
		switch a := c.Args[i].(type) {
		case *ast.BasicLit:
			s, _ := strconv.Unquote(a.Value)
			return s
		case *ast.Ident:
			return constant(a.Name)
		case *ast.SelectorExpr:
			return constant(a.Sel.Name)
		case *ast.CallExpr:
			if s, ok := a.Fun.(*ast.SelectorExpr); ok {
				return fmt.Sprint(s.X, ".", s.Sel)
			}
		}
		return "?"
	}
	switch name {
	case "Getenv", "LookupEnv":
		if s := arg(0); placeVariable(s) {
			return "Getenv " + s
		}
	case "XDG":
		return "xdg " + arg(1)
	case "MkdirTemp", "CreateTemp":
		return name + " " + arg(0)
	case "TempDir", "UserHomeDir", "UserCacheDir", "UserConfigDir", "Executable", "LookPath":
		return name
	}
	return ""
}

// constant is the value of a constant that names a variable, and any other name.
func constant(name string) string {
	switch name {
	case "RuntimeVariable":
		return RuntimeVariable
	case "ServerEnv":
		return ServerEnv
	}
	return name
}

// placeVariable reports whether a variable can hold a place. One whose name is not
// said where it is read can.
func placeVariable(name string) bool {
	for _, part := range []string{"HOME", "DIR", "PATH", "TMP", "XDG", "SERVER", "STATE", "CACHE"} {
		if strings.Contains(strings.ToUpper(name), part) {
			return true
		}
	}
	return name == "?" || strings.ToUpper(name) != name
}
