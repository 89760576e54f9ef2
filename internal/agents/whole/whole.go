// Package whole runs a whole coding agent in a sandbox: what each needs of the host and
// of the network, and the directories that it finds again. It knows no flags, and changes
// no agent's configuration; package agents does.
package whole

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// An Agent is one that can run in a sandbox as a whole.
type Agent struct {
	Name    string // its program's, too
	install string

	// Keeps are the directories below HOME in which it keeps its login, its settings, what
	// it was told to trust and its conversations. All of them hold what it executes later
	// (hooks, servers, plugins), so that inside they are never the user's own.
	Keeps []string
	named string // the variable that names the first of them, if without it something lies beside it

	Hosts []string // its API's and those of its login, none for telemetry
	Keys  []string // variables with keys
	Base  string   // variable with the address of another API

	// A sandbox within the sandbox cannot be made, and what it fetches of itself it could
	// not replace.
	env, Args []string
}

// Agents are those that there are.
var Agents = []Agent{
	{
		Name: "claude", install: "npm install -g @anthropic-ai/claude-code",
		Keeps: []string{".claude"}, named: "CLAUDE_CONFIG_DIR", // or .claude.json lies beside it
		Hosts: []string{"api.anthropic.com", "platform.claude.com"},
		Keys: []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN",
			"CLAUDE_CODE_OAUTH_TOKEN"}, Base: "ANTHROPIC_BASE_URL",
		env: []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"},
	},
	{
		Name: "codex", install: "npm install -g @openai/codex",
		Keeps: []string{".codex"},
		Hosts: []string{"api.openai.com", "auth.openai.com", "chatgpt.com"},
		Keys:  []string{"OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN"},
		Args: []string{"-c", `sandbox_mode="danger-full-access"`, "-c", "check_for_update_on_startup=false", "-c",
			"analytics.enabled=false"},
	},
	{
		Name: "gemini", install: "npm install -g @google/gemini-cli",
		Keeps: []string{".gemini"},
		Hosts: []string{"generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com",
			"www.googleapis.com"},
		Keys: []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, Base: "GOOGLE_GEMINI_BASE_URL",
		env: []string{"GEMINI_SANDBOX=false", "NO_BROWSER=true"},
	},
	{
		Name: "opencode", install: "npm install -g opencode-ai",
		Keeps: []string{".config/opencode", ".local/share/opencode", ".local/state/opencode"},
		Hosts: []string{"opencode.ai", "models.opencode.ai", "models.dev", "api.anthropic.com", "api.openai.com",
			"generativelanguage.googleapis.com", "openrouter.ai"},
		Keys: []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY",
			"OPENROUTER_API_KEY", "OPENCODE_API_KEY"},
		env: []string{"OPENCODE_DISABLE_AUTOUPDATE=1"},
	},
}

// Names are theirs.
func Names() []string {
	var names []string
	for _, a := range Agents {
		names = append(names, a.Name)
	}
	return names
}

// Prepare makes a run of a request that has an agent's flags, and returns what is to be
// done before that, when its policy is known. What the caller gave beats what an agent
// has. Program is what the caller named, "" for the one in PATH; with dry nothing is made.
func (a *Agent) Prepare(r *profiles.Request, program, state string,
	dry bool) (decided func(*policy.Policy), err error) {
	f, err := engine.GatherFacts()
	if err != nil {
		return nil, err
	}
	if f.Home == "" {
		return nil, engine.Usage("there is no home directory to keep the agent's files in", "set HOME")
	}
	named, file, err := Program(program, a.Name)
	if err != nil {
		return nil, err
	}
	if file == "" {
		return nil, &driver.UnavailableError{
			What: a.Name, Cause: "no directory of PATH has it",
			Fix: "install it: " + a.install + "; or name its program: --agent FILE",
		}
	}
	if r.Profile == "" {
		r.Profile = "aicode"
		if r.Timeout == nil {
			r.Timeout = new(time.Duration)
		}
	}
	r.Command = []string{file}
	workspace, err := profiles.WorkspaceOf(r, &f.Facts)
	if err != nil {
		return nil, engine.Invalid(engine.Unreadable(err, r, f))
	}
	// In the workspace a command can have put it there, as a link to what it wants to read.
	// Elsewhere, too: by its name, a link to a secret is refused.
	if !leadsInto(named, workspace, engine.StateHome(f)) {
		r.ReadOnly = append(r.ReadOnly, named, root(file))
	}
	if err := a.reach(r); err != nil {
		return nil, err
	}
	r.Env = slices.Concat(a.env, a.Keys, r.Env)
	r.Kept, err = a.keep(f, state, dry)
	return placesIn(r.Kept), err
}

// CheckState reports a name that is not one of a directory.
func CheckState(name string) error {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" ||
		name[0] == '.' {
		return engine.Usage("the name has to be letters, digits, dots, dashes and underscores, and not to begin with a dot",
			"for example --state work")
	}
	return nil
}

// leadsInto reports whether a path, or one of the directories that it is spelt by, lies in
// one of the directories: commands could have made links there.
func leadsInto(name string, dirs ...string) bool {
	for at := filepath.Dir(name); ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		for _, dir := range dirs {
			for _, d := range []string{dir, realOr(dir)} {
				for _, a := range []string{at, real} {
					if rel, e := filepath.Rel(d, a); err != nil || e == nil && filepath.IsLocal(rel) {
						return true
					}
				}
			}
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

func realOr(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// reach lets an agent through to its API.
func (a *Agent) reach(r *profiles.Request) error {
	if r.Net != nil && *r.Net != policy.EgressProxy {
		return nil // none, or all
	}
	for _, h := range a.Hosts {
		r.AllowHosts = append(r.AllowHosts, h+":443")
	}
	address := os.Getenv(a.Base)
	if a.Base == "" || address == "" {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return engine.Usage(a.Base+" is not an address", "set it to one, as https://api.example.com, or unset it")
	}
	if _, err := policy.HostAddr(u.Hostname()); err != nil {
		if _, err := policy.HostName(u.Hostname()); err != nil { // a pattern would let it reach others
			return engine.Usage(a.Base+": "+err.Error(),
				"set it to the address of one host, as https://api.example.com, or unset it")
		}
	}
	if _, err := policy.ParseEgressRule(HostPort(u)); err != nil {
		return engine.Usage(a.Base+": "+err.Error(), "set it to an address, as https://api.example.com, or unset it")
	}
	r.AllowHosts = append(r.AllowHosts, HostPort(u))
	r.Env = append([]string{a.Base}, r.Env...)
	return nil
}

// HostPort is a rule for the host and port of a URL.
func HostPort(u *url.URL) string {
	port := map[string]string{"http": "80"}[u.Scheme]
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port, "443"))
}

// keep has the directories that an agent finds again.
func (a *Agent) keep(f *engine.Facts, state string, dry bool) ([]profiles.Keep, error) {
	top := filepath.Join(engine.StateHome(f), "sbxrun", "agents", a.Name, state)
	var kept []profiles.Keep
	for _, below := range a.Keeps {
		k := profiles.Keep{Source: filepath.Join(top, strings.ReplaceAll(strings.TrimPrefix(below, "."), "/", "-")),
			Below: below}
		if len(kept) == 0 {
			k.Variable = a.named
		}
		kept = append(kept, k)
		if dry {
			continue
		}
		if err := makeKept(engine.StateHome(f), k.Source); err != nil {
			return nil, engine.Hinted(err, "the agent's own files are kept there; XDG_STATE_HOME names another place")
		}
	}
	return kept, nil
}

// makeKept makes a directory below another, in which no link counts: where a project is the
// home of state, its author can have put one there.
func makeKept(home, dir string) error {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	rel, err := filepath.Rel(home, dir)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return err
	}
	defer root.Close()
	at := ""
	for part := range strings.SplitSeq(rel, "/") {
		at = path.Join(at, part)
		if err := root.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if fi, err := root.Lstat(at); err != nil || !fi.IsDir() {
			return fmt.Errorf("%s is not a directory", path.Join(home, at))
		}
	}
	return nil
}

// placesIn makes, in directories that an agent keeps, the places of what a policy shows
// there of the host, such as its user's skills. What a command has put there instead the
// set-up refuses.
func placesIn(kept []profiles.Keep) func(*policy.Policy) {
	return func(p *policy.Policy) {
		for _, m := range p.OCI.Mounts {
			if !slices.ContainsFunc(kept, func(k profiles.Keep) bool { return realOr(k.Source) == m.Source }) {
				continue
			}
			placesAt(p, m.Source, m.Destination)
		}
	}
}

func placesAt(p *policy.Policy, source, dest string) {
	for _, f := range p.Files {
		rel, ok := strings.CutPrefix(f.Path, dest+"/")
		if !ok || f.Access == policy.Hide {
			continue
		}
		if fi, err := os.Stat(f.Path); err == nil {
			place(source, rel, fi)
		}
	}
}

func place(dir, name string, like fs.FileInfo) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	if like.IsDir() {
		root.MkdirAll(name, 0o700)
		return
	}
	root.MkdirAll(path.Dir(name), 0o700)
	if f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
		f.Close()
	}
}

// Program is the path of an agent's program, and the same without symbolic links; ""
// if no directory of PATH has it. Given is what the caller named, if that.
func Program(given, name string) (named, file string, err error) {
	if given == "" {
		if given, err = exec.LookPath(name); err != nil {
			return "", "", nil
		}
	}
	if named, err = filepath.Abs(given); err == nil {
		file, err = filepath.EvalSymlinks(named)
	}
	if err != nil {
		return "", "", engine.Usage("the agent's program: "+err.Error(), "--agent names it")
	}
	return named, launched(file), nil
}

// root is what has to be shown of the host for a program to run: what npm installed
// with it, or itself.
func root(file string) string {
	if at := strings.Index(file, "/node_modules/"); at >= 0 {
		return file[:at] + "/node_modules"
	}
	return file
}

// launched is the program that an npm package's launcher starts: the launcher needs
// node, which need not be in a sandbox.
func launched(path string) string {
	if filepath.Ext(path) != ".js" {
		return path
	}
	root := filepath.Dir(filepath.Dir(path)) // PACKAGE/bin/NAME.js
	for _, pattern := range []string{root + "-linux-*/vendor/*/bin/codex",
		root + "/node_modules/@openai/codex-linux-*/vendor/*/bin/codex", root + "/vendor/*/bin/codex"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) == 1 {
			return found[0]
		}
	}
	return path
}
