package cli

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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// A codingAgent is one that can run in a sandbox as a whole.
type codingAgent struct {
	name, install string // its name is its program's

	// keeps are the directories below HOME in which it keeps its login, its settings, what
	// it was told to trust and its conversations. All of them hold what it executes later
	// (hooks, servers, plugins), so that inside they are never the user's own.
	keeps []string
	named string // the variable that names the first of them, if without it something lies beside it

	hosts []string // its API's and those of its login, none for telemetry
	keys  []string // variables with keys
	base  string   // variable with the address of another API

	// A sandbox within the sandbox cannot be made, and what it fetches of itself it could
	// not replace.
	env, args []string
}

var codingAgents = []codingAgent{
	{
		name: "claude", install: "npm install -g @anthropic-ai/claude-code",
		keeps: []string{".claude"}, named: "CLAUDE_CONFIG_DIR", // or .claude.json lies beside it
		hosts: []string{"api.anthropic.com", "platform.claude.com"},
		keys:  []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"}, base: "ANTHROPIC_BASE_URL",
		env: []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"},
	},
	{
		name: "codex", install: "npm install -g @openai/codex",
		keeps: []string{".codex"},
		hosts: []string{"api.openai.com", "auth.openai.com", "chatgpt.com"},
		keys:  []string{"OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN"},
		args:  []string{"-c", `sandbox_mode="danger-full-access"`, "-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false"},
	},
	{
		name: "gemini", install: "npm install -g @google/gemini-cli",
		keeps: []string{".gemini"},
		hosts: []string{"generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com", "www.googleapis.com"},
		keys:  []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, base: "GOOGLE_GEMINI_BASE_URL",
		env: []string{"GEMINI_SANDBOX=false", "NO_BROWSER=true"},
	},
	{
		name: "opencode", install: "npm install -g opencode-ai",
		keeps: []string{".config/opencode", ".local/share/opencode", ".local/state/opencode"},
		hosts: []string{"opencode.ai", "models.opencode.ai", "models.dev", "api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "openrouter.ai"},
		keys:  []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "OPENROUTER_API_KEY", "OPENCODE_API_KEY"},
		env:   []string{"OPENCODE_DISABLE_AUTOUPDATE=1"},
	},
}

func codingAgentNames() []string {
	var names []string
	for _, a := range codingAgents {
		names = append(names, a.name)
	}
	return names
}

// agentLong explains the command, with what is shown and allowed for each agent.
func agentLong() string {
	var b strings.Builder
	b.WriteString(`Run a whole coding agent in a sandbox: its file tools, its hooks and its servers as
well as its commands. The profile is aicode, without its time limit, and the current
directory is the workspace. Other flags of a run change that; --dry-run prints what
would be shown and allowed. If there is a terminal, the agent has one of its own. What
follows the agent's name and flags is the agent's; -- ends the flags.

The agent finds its own directories in its home as it left them, kept by sbxrun: they
are not yours, and no agent on the host obeys what is written there. Log in once. Every
command that the agent runs can read the agent's key or login, and can write what the
next sbxrun agent with that state obeys, in its sandbox.
`)
	for _, a := range codingAgents {
		keys := a.keys
		if a.base != "" {
			keys = append(slices.Clone(keys), a.base+" (and its host)")
		}
		fmt.Fprintf(&b, "\n%s\n  keeps   ~/%s\n  hosts   %s\n  passes  %s\n", a.name, strings.Join(a.keeps, ", ~/"), strings.Join(a.hosts, ", "), strings.Join(keys, ", "))
	}
	return b.String()
}

func newAgent() *cobra.Command {
	o := &options{}
	fs := newRunFlags(o, "agent")
	fs.Lookup("profile").Usage = "profile to run under (default aicode)"
	program, state := "", "default"
	fs.VarPF(&value{"FILE", func(f string) error { program = f; return profiles.CheckPath(f) }}, "agent", "", "the agent's program (default: found in PATH)")
	fs.VarPF(&value{"NAME", func(s string) error { state = s; return checkState(s) }}, "state", "", "keep the agent's files apart from those of other names (default default)")
	c := &cobra.Command{
		Use:                   "agent AGENT [flags] [--] [ARG...]",
		Short:                 "Run a whole coding agent in a sandbox: " + strings.Join(codingAgentNames(), ", "),
		Long:                  agentLong(),
		Example:               "  sbxrun agent claude\n  sbxrun agent codex --allow-host api.example.com -- exec 'run the tests'\n  sbxrun agent claude --state client -- --dangerously-skip-permissions",
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return codingAgentNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			err := fs.Parse(args)
			rest := fs.Args()
			if err == nil && len(rest) > 0 {
				err = fs.Parse(rest[1:]) // its name ends the flags only for this
			}
			var unknown *pflag.NotExistError
			switch {
			case err == pflag.ErrHelp:
				return c.Help()
			case errors.As(err, &unknown):
				dashes := "--"
				if unknown.GetSpecifiedShortnames() != "" {
					dashes = "-"
				}
				err = engine.Usage("unknown flag "+dashes+unknown.GetSpecifiedName()+" of sbxrun agent", "the agent's own flags go after --")
			}
			if err != nil {
				return o.unparsed(fs, args, err)
			}
			i := -1
			if len(rest) > 0 {
				i = slices.IndexFunc(codingAgents, func(a codingAgent) bool {
					return a.name == strings.TrimSuffix(rest[0], "-code")
				})
			}
			if i < 0 {
				return engine.Usage("agent needs the name of one that can run inside", "one of "+strings.Join(codingAgentNames(), ", ")+"; sbxrun -P aicode -- CMD runs any other")
			}
			if o.hasScript || o.session != "" {
				return engine.Usage("agent runs an agent, in a sandbox of its own", "leave out --script and --session")
			}
			if err := codingAgents[i].prepare(o, fs, program, state); err != nil {
				return err
			}
			return o.run(slices.Concat(o.req.Command, codingAgents[i].args, fs.Args()))
		},
	}
	c.Flags().SortFlags = false
	c.Flags().AddFlagSet(fs)
	return c
}

// checkState reports a name that is not one of a directory.
func checkState(name string) error {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || name[0] == '.' {
		return engine.Usage("the name has to be letters, digits, dots, dashes and underscores, and not to begin with a dot", "for example --state work")
	}
	return nil
}

// prepare makes a run of options that have an agent's flags. What the caller gave beats
// what an agent has.
func (a *codingAgent) prepare(o *options, flags *pflag.FlagSet, program, state string) error {
	f, err := engine.GatherFacts()
	if err != nil {
		return err
	}
	if f.Home == "" {
		return engine.Usage("there is no home directory to keep the agent's files in", "set HOME")
	}
	named, file, err := agentProgram(program, a.name)
	if err != nil {
		return err
	}
	if file == "" {
		return &driver.UnavailableError{What: a.name, Cause: "no directory of PATH has it", Fix: "install it: " + a.install + "; or name its program: --agent FILE"}
	}
	r := &o.req
	if r.Profile == "" {
		r.Profile = "aicode"
		if r.Timeout == nil {
			r.Timeout = new(time.Duration)
		}
	}
	if !flags.Changed("tty") && !o.json {
		r.Terminal = isTerminal(os.Stdin) && isTerminal(os.Stdout)
	}
	r.Command = []string{file}
	workspace, err := profiles.WorkspaceOf(r, &f.Facts)
	if err != nil {
		return engine.Invalid(engine.Unreadable(err, r, f))
	}
	// In the workspace a command can have put it there, as a link to what it wants to read.
	// Elsewhere, too: by its name, a link to a secret is refused.
	if !leadsInto(named, workspace, engine.StateHome(f)) {
		r.ReadOnly = append(r.ReadOnly, named, agentRoot(file))
	}
	if err := a.reach(r); err != nil {
		return err
	}
	r.Env = slices.Concat(a.env, a.keys, r.Env)
	kept, err := a.keep(f, state, o.dryRun)
	r.Kept = kept
	o.decided = placesIn(kept)
	return err
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
func (a *codingAgent) reach(r *profiles.Request) error {
	if r.Net != nil && *r.Net != policy.EgressProxy {
		return nil // none, or all
	}
	for _, h := range a.hosts {
		r.AllowHosts = append(r.AllowHosts, h+":443")
	}
	address := os.Getenv(a.base)
	if a.base == "" || address == "" {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return engine.Usage(a.base+" is not an address", "set it to one, as https://api.example.com, or unset it")
	}
	if _, err := policy.HostAddr(u.Hostname()); err != nil {
		if _, err := policy.HostName(u.Hostname()); err != nil { // a pattern would let it reach others
			return engine.Usage(a.base+": "+err.Error(), "set it to the address of one host, as https://api.example.com, or unset it")
		}
	}
	r.AllowHosts = append(r.AllowHosts, hostPort(u))
	r.Env = append([]string{a.base}, r.Env...)
	return nil
}

// hostPort is a rule for the host and port of a URL.
func hostPort(u *url.URL) string {
	port := map[string]string{"http": "80"}[u.Scheme]
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port, "443"))
}

// keep has the directories that an agent finds again.
func (a *codingAgent) keep(f *facts, state string, dry bool) ([]profiles.Keep, error) {
	top := filepath.Join(engine.StateHome(f), "sbxrun", "agents", a.name, state)
	var kept []profiles.Keep
	for _, below := range a.keeps {
		k := profiles.Keep{Source: filepath.Join(top, strings.ReplaceAll(strings.TrimPrefix(below, "."), "/", "-")), Below: below}
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

// agentProgram is the path of an agent's program, and the same without symbolic links; ""
// if no directory of PATH has it. Given is what the caller named, if that.
func agentProgram(given, name string) (named, file string, err error) {
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

// agentRoot is what has to be shown of the host for a program to run: what npm installed
// with it, or itself.
func agentRoot(file string) string {
	if at := strings.Index(file, "/node_modules/"); at >= 0 {
		return file[:at] + "/node_modules"
	}
	return file
}
