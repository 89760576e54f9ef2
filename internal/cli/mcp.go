package cli

import (
	"context"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/agents/whole"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// tokenEnv holds the token of sbxrun mcp --http, if it is not in a file.
const tokenEnv = "SBXRUN_MCP_TOKEN"

// A Service is what sbxrun mcp was asked to serve, and how.
type Service struct {
	engine.Service
	Commands   string // file with the command policy, "" for the built-in lists
	HTTP       *HTTP  // nil: one client, on stdin and stdout
	RolloutKey string // of this agent; "" is made of user and workspace

	// Note tells who started the server something.
	Note func(text, hint string)
}

// HTTP is how to serve clients over HTTP.
type HTTP struct {
	Address   netip.AddrPort
	Remote    bool     // Address may be one that other machines reach
	Hosts     []string // names to be called by, beside the address
	Token     string   // "" if TokenFile has it, or one is to be made
	TokenFile string   // "" for none
	Idle      time.Duration
}

func (b *Beside) newMCP() *cobra.Command {
	o := &options{}
	s := &Service{Service: engine.Service{MaxSessions: 4}}
	c := plain(&cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve sandboxed commands to an agent, by the Model Context Protocol",
		Long: `Serve tools that run commands, scripts and Python in sandboxes, and read and
write files there, to a client of the Model Context Protocol: to one on stdin
and stdout, or with --http to any that bring the token.

The flags make the policy, as those of a run do; no call can change it. Each
sandbox is a session: a connection has one of its own, made at the first call,
and can create more. All end with the connection. The limits on time and output
are those of each command; the limits on memory, cpu and processes are those of
each session.`,
		Example: "  sbxrun mcp --profile strict -C ~/project\n  claude mcp add sandbox -- sbxrun mcp --profile strict\n  sbxrun mcp --http 127.0.0.1:7777 --token-file ~/.config/sbxrun/token",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if b.MCP == nil {
				return executeBeside(engine.MCPProgram)
			}
			if err := s.checkHTTP(c); err != nil {
				return err
			}
			o.req.Own = s.own()
			if err := o.service(s); err != nil {
				return err
			}
			if s.HTTP == nil && terminal.Is(os.Stdin) {
				say.note("waiting for a client of the Model Context Protocol on stdin",
					"an agent starts this command; docs/agents.md tells how")
			}
			return b.MCP(s)
		},
	}, o)
	o.policyFlags(c.Flags())
	c.Flags().VarPF(&value{"FILE", into(&s.Commands, checked)}, "command-policy", "",
		"JSON file that says which commands execute_command runs (default: the built-in lists)")
	c.Flags().VarPF(&value{"N", func(n string) error {
		var err error
		if s.MaxSessions, err = strconv.Atoi(n); err != nil || s.MaxSessions < 1 || s.MaxSessions > 1000 {
			return engine.Usage(strconv.Quote(n)+" is not a number of sessions",
				"1 to 1000; each can use the limits on memory, cpu and processes in full")
		}
		return nil
	}}, "max-sessions", "", "sessions that a client can have at a time (default 4)")
	rolloutFlag(c.Flags(), &s.RolloutKey)
	o.askFlag(c.Flags())
	o.pythonFlags(c.Flags())
	o.policyFlags(c.Flags(), "audit")
	s.httpFlags(c.Flags())
	return c
}

// pythonFlags say where python_execute gets dependencies from. They are words for
// flags that make the policy: pip reads its own variables, and the policy decides
// what it reaches.
func (o *options) pythonFlags(fs *pflag.FlagSet) {
	fs.VarPF(&value{"URL", func(s string) error {
		u, err := url.Parse(s)
		if err == nil {
			_, err = policy.ParseEgressRule(whole.HostPort(u))
		}
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return engine.Usage(strconv.Quote(s)+" is not the address of a package index",
				"for example https://pypi.org/simple")
		}
		o.req.AllowHosts = append(o.req.AllowHosts, whole.HostPort(u))
		o.req.Env = append(o.req.Env, "PIP_INDEX_URL="+s)
		if u.Scheme == "http" {
			o.req.Env = append(o.req.Env, "PIP_TRUSTED_HOST="+u.Host)
		}
		return nil
	}}, "python-index", "", "package index for the dependencies of python_execute; lets commands reach its host")
	fs.VarPF(&value{"DIR", func(s string) error {
		if err := profiles.CheckPath(s); err != nil {
			return err
		}
		dir, err := filepath.Abs(s)
		if err != nil || strings.ContainsAny(dir, " \t") {
			return engine.Usage(strconv.Quote(s)+" cannot be a directory of wheels: pip would read more than one from it",
				"rename it, without spaces")
		}
		if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
			return engine.Usage(quote.Inside(dir)+" is not a directory",
				"make one with the wheels, with pip download -d, or correct the path")
		}
		o.req.ReadOnly = append(o.req.ReadOnly, dir)
		o.req.Env = append(o.req.Env, "PIP_NO_INDEX=1", "PIP_FIND_LINKS="+dir)
		return nil
	}}, "python-wheels", "", "directory of wheels to take them from instead, without a network")
}

func (s *Service) httpFlags(fs *pflag.FlagSet) {
	h := &HTTP{Idle: 30 * time.Minute}
	fs.VarPF(&value{"ADDR:PORT", func(a string) error {
		ap, err := netip.ParseAddrPort(a)
		if err != nil {
			return engine.Usage(strconv.Quote(a)+" is not an address and a port",
				"for example 127.0.0.1:7777, or [::1]:0 for any free port")
		}
		h.Address, s.HTTP = ap, h
		return nil
	}}, "http", "", "serve clients over HTTP at this address, path /mcp")
	fs.BoolVar(&h.Remote, "http-remote", false,
		"let --http be an address that other machines reach; needs --token-file")
	fs.VarPF(&value{"NAME[:PORT]", func(n string) error {
		if n == "" || strings.ContainsAny(n, "/ \t\r\n\x00@") {
			return engine.Usage(strconv.Quote(n)+" is not a host name", "what clients have between http:// and /mcp")
		}
		h.Hosts = append(h.Hosts, n)
		return nil
	}}, "http-host", "", "a name by which clients call --http, beside its address")
	fs.VarPF(&value{"FILE", into(&h.TokenFile, checked)}, "token-file", "",
		"file with the token that clients of --http bring; made if there is none (default: $"+tokenEnv+
			", else a new one, on stderr)")
	fs.VarPF(&value{"DURATION", into(&h.Idle, profiles.ParseDuration)}, "idle-timeout", "",
		"end what a client of --http has, after it was silent for so long (default 30m)")
}

// own are the files that this server, and the next, obeys: no command writes them,
// and none reads the token. What is wrong with them is told when they are opened.
func (s *Service) own() (own []profiles.Own) {
	if s.HTTP != nil && s.HTTP.TokenFile != "" {
		if file, err := engine.Named(s.HTTP.TokenFile); err == nil {
			own = append(own, profiles.Own{What: "the token", Path: file, File: true})
		}
	}
	if s.Commands != "" && !engine.IsDescriptor(s.Commands) {
		if file, err := engine.Named(s.Commands); err == nil {
			own = append(own, profiles.Own{What: "the command policy", Path: file, File: true, Shown: true})
		}
	}
	return own
}

// checkHTTP reports what is unsafe to serve, and what has no effect.
func (s *Service) checkHTTP(c *cobra.Command) error {
	// No command inherits the token, whatever the policy passes on.
	token := os.Getenv(tokenEnv)
	os.Unsetenv(tokenEnv)
	h := s.HTTP
	if h == nil {
		names := []string{"http-remote", "http-host", "token-file", "idle-timeout"}
		if i := slices.IndexFunc(names, c.Flags().Changed); i >= 0 {
			return engine.Usage("--"+names[i]+" is about --http, which is not there",
				"--http 127.0.0.1:7777 serves over HTTP; without it there is one client, on stdin and stdout")
		}
		return nil
	}
	if h.TokenFile == "" {
		h.Token = token
	}
	if h.Address.Addr().IsLoopback() {
		return nil
	}
	if !h.Remote {
		return engine.Usage("--http "+h.Address.String()+" is not a loopback address: other machines could call",
			"name 127.0.0.1, or say --http-remote")
	}
	if h.TokenFile == "" && h.Token == "" {
		return engine.Usage("--http-remote needs a token that you chose", "--token-file FILE, or $"+tokenEnv)
	}
	say.warn("--http-remote: token and commands cross the network unencrypted; put a proxy with TLS in front")
	return nil
}

// service resolves what the flags ask for.
func (o *options) service(s *Service) error {
	if o.req.Terminal {
		return engine.Usage("mcp gives no command a terminal", "leave out --tty")
	}
	r, f, err := o.resolveHere("/") // commands come later
	if err != nil {
		return err
	}
	key := s.RolloutKey
	if key == "" {
		key = engine.RolloutKey(r.Workspace.Path)
	}
	v := &engine.Served{Request: &o.req, Facts: f, First: r, Key: key, Tell: tellChanges, Warn: say.warn,
		Note: func(text string) { say.note(text, "") }}
	v.Choose = func(ctx context.Context, r *profiles.Resolved) (driver.Driver, error) {
		d, err := selectDriver(ctx, f, r, o.req.Require)
		if err != nil || !d.Sandboxed() {
			return d, err
		}
		fitted := fit(d, f, r, false)
		if err := engine.Stays(fitted, "sessions", "mcp needs the native driver"); err != nil {
			return nil, err
		}
		return d, o.verify(ctx, fitted, r, f)
	}
	s.Policy, s.Version, s.Note = r.Policy, engine.VersionOf().Version, say.note
	if s.Audit, err = engine.OpenAudit(&r.Operator, r.Policy.OCI.Process.Env); err != nil {
		return err
	}
	v.Audit, s.Asks = s.Audit, o.req.Ask > 0
	if s.HTTP == nil { // a client of many has no say in what the others get
		s.File = engine.NewProfileFile(r.File, f)
	}
	in, why := r.Operator.Rollout.Sandboxed(key)
	if in {
		d, err := v.Choose(context.Background(), r)
		if err != nil {
			return err
		}
		if v.Driver = d; !d.Sandboxed() {
			why = "the driver is " + d.Name()
		}
	}
	if s.Why = why; why != "" {
		say.warn("agents' commands are not sandboxed: " + why)
	}
	if r.Operator.Unsandboxed {
		say.warn("agents.unsandboxed: a call that says dangerouslyDisableSandbox runs on the bare host")
	}
	s.Open, s.Bare = v.Open, v.OpenBare
	go v.Follow()
	return nil
}
