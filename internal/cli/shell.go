package cli

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/persona"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/standin"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// Variables that configure a shell where no flag can: an agent that is told of one
// by its path alone.
const (
	envShellWorkspace = "SBXRUN_SHELL_WORKSPACE"
	envShellSession   = "SBXRUN_SHELL_SESSION"
)

// autoSession is the session of the agent that calls, which ends with it.
const autoSession = "auto"

// A shell is sbxrun in the place of an agent's shell.
type shell struct {
	options
	name      string // of the shell to run, "" for bash, else sh
	keep      string // session: "", auto or an id
	cwdFD     int    // where to tell the directory that the script ended in; -1 is nowhere
	ignoreEnv bool
	key       string // for a roll-out; "" is made of user and workspace
	typed     *pflag.FlagSet
}

// asShell is sbxrun called by the name of a shell.
func asShell(name string, args []string) int {
	s := &shell{name: name, cwdFD: -1}
	s.resultFD = -1
	return report(pflag.NewFlagSet(name, pflag.ContinueOnError), s.run(args))
}

func newShell() *cobra.Command {
	s := &shell{}
	fs := s.flags()
	c := &cobra.Command{
		Use:   "shell [flags] [--] [SHELL-ARG...]",
		Short: "Stand in the place of an agent's shell: run bash, with its own arguments, in a sandbox",
		Long: `Run a shell in a sandbox, with the arguments of a shell: -c SCRIPT, -lc SCRIPT,
-c -l SCRIPT, -i -c SCRIPT, a file, or none. The same is done by a symbolic link
to sbxrun by the name of bash, sh or zsh, which an agent can be given as its shell.

The workspace is the directory that the caller, the agent, runs in; the shell starts
in the current one, which must be in there. A script of Claude Code's tells the
agent the directory that it ended in, as outside. Flags come first, in their long
form; what follows is the shell's. --session auto keeps one sandbox for as long as
the calling agent lives.

Where no flag can be given, SBXRUN_SHELL_WORKSPACE and SBXRUN_SHELL_SESSION take
the place of --cd and --session, beside the variables that every run heeds.

An agent that the operator's roll-out leaves out (rollout in config.yaml) has the
shell itself, on the host. That is said on stderr and in the audit log.`,
		Example: `  sbxrun shell -c 'make test'
  sbxrun shell --profile aicode --session auto -- -lc 'npm test'
  mkdir -p ~/.local/sandboxed && ln -sf "$(command -v sbxrun)" ~/.local/sandboxed/bash
  CLAUDE_CODE_SHELL_PREFIX="$HOME/.local/sandboxed/bash -c" claude`,
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true,
		RunE: func(c *cobra.Command, args []string) error {
			own, rest := splitShell(fs, args)
			err := fs.Parse(own)
			if err == pflag.ErrHelp {
				return c.Help()
			}
			if err != nil {
				return err
			}
			return s.run(rest)
		},
	}
	c.Flags().SortFlags = false
	c.Flags().AddFlagSet(fs)
	return c
}

// shellCall is sbxrun shell without the tree of all commands.
func shellCall(args []string) (code int, ok bool) {
	s := &shell{}
	fs := s.flags()
	own, rest := splitShell(fs, args)
	err := fs.Parse(own)
	if leave(err) {
		return 0, false
	}
	if err != nil {
		helpHint = "see sbxrun shell --help"
	} else {
		err = s.run(rest)
	}
	return report(fs, err), true
}

// flags defines those of sbxrun shell, which have no short forms: those are the
// shell's.
func (s *shell) flags() *pflag.FlagSet {
	s.cwdFD, s.resultFD = -1, -1
	all := pflag.NewFlagSet("shell", pflag.ContinueOnError)
	s.policyFlags(all)
	s.voiceFlags(all)
	fs := pflag.NewFlagSet("shell", pflag.ContinueOnError)
	s.typed = fs
	fs.Usage = func() {}
	fs.SortFlags = false
	all.SortFlags = false
	all.VisitAll(func(f *pflag.Flag) {
		if f.Name == "tty" { // a shell has a terminal if its caller has
			return
		}
		long := *f
		long.Shorthand = ""
		if f.Name == "cd" {
			long.Usage = "workspace (default: the directory that the calling agent runs in)"
		}
		fs.AddFlag(&long)
	})
	fs.VarPF(&value{"NAME", func(n string) error {
		s.name = n
		if persona.Name(n) != n {
			return engine.Usage(strconv.Quote(n)+" is not a shell that can be stood in for",
				"one of "+strings.Join(persona.Shells, ", "))
		}
		return nil
	}}, "shell", "", "the shell to run: bash, sh or zsh (default: bash, else sh)")
	fs.VarPF(&value{"auto|ID", func(id string) error {
		s.keep = id
		return session.CheckID(id)
	}}, "session", "",
		"run in this session; auto: in one of the calling agent's own, which has these flags and ends with it")
	rolloutFlag(fs, &s.key)
	fs.BoolVar(&s.ignoreEnv, "ignore-env", false,
		"let no SBXRUN_ variable count: a project may be able to set them for an agent")
	fs.VarPF(&value{"N", func(n string) error {
		var err error
		if s.cwdFD, err = strconv.Atoi(n); err != nil || s.cwdFD < 3 {
			return engine.Usage(strconv.Quote(n)+" is not a descriptor", "an open one above 2")
		}
		return nil
	}}, "cwd-fd", "", "write the directory that a script of -c ended in to an open descriptor")
	return fs
}

// splitShell tells the flags of sbxrun shell from the arguments of the shell: the
// first word that is no long flag, or what follows "--".
func splitShell(fs *pflag.FlagSet, args []string) (own, rest []string) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return args[:i], args[i+1:]
		case arg == "-h" && i == 0:
			return []string{"--help"}, nil
		case !strings.HasPrefix(arg, "--"):
			return args[:i], args[i:]
		}
		name, _, has := strings.Cut(arg[2:], "=")
		f := fs.Lookup(name)
		switch {
		case f != nil && !has && f.NoOptDefVal == "":
			i++ // its value
		case f == nil && slices.Contains([]string{"login", "norc", "noprofile", "posix", "rcfile", "init-file",
			"restricted", "noediting"}, name):
			return args[:i], args[i:] // the shell's
		}
	}
	return args, nil
}

// run runs the shell.
func (s *shell) run(args []string) error {
	s.agreed = true
	environ := os.Environ()
	agent, start, err := s.settle()
	if err != nil {
		return err
	}
	file, err := standin.Find(s.name)
	if err != nil {
		return commandError(err)
	}
	op, why, err := engine.RolledOut(&s.req, s.key)
	if err != nil {
		return err
	}
	if why != "" {
		return s.outside(&op, why, file, start, args, environ)
	}
	// Before the agent's own, which count less than what the flags say.
	s.req.Env = append(s.environ(), s.req.Env...)

	script, err := standin.Prepare(filepath.Base(file), args, s.cwdFD)
	if err != nil {
		return err
	}
	defer script.Close()
	s.req.Command = append([]string{file}, script.Args...)
	s.req.Terminal = terminal.Is(os.Stdin) && terminal.Is(os.Stdout)
	s.extra = script.Extra

	if s.keep == "" {
		s.cwd = start
		s.decided = func(p *policy.Policy) { script.Policy = p }
	} else if script.Policy, err = s.enter(agent, start); err != nil {
		return err
	}
	err = s.options.run(s.req.Command)
	switch dir, alone, terr := script.Tell(s.cwdFD); {
	case terr != nil:
		say.warn("the next command does not start in " + quote.Inside(dir) + ": " + terr.Error())
	case alone:
		say.note("the next command does not start in "+quote.Inside(dir)+", which is the sandbox's alone", "")
	}
	return err
}

// settle takes from the environment what no flag said, and finds the agent that
// calls and the directory that its command starts in.
func (s *shell) settle() (agent *standin.Process, start string, err error) {
	if s.ignoreEnv {
		for _, kv := range os.Environ() {
			if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "SBXRUN_") {
				os.Unsetenv(name)
			}
		}
	}
	workspace, keep := os.Getenv(envShellWorkspace), os.Getenv(envShellSession)
	// No keys of a profile.
	os.Unsetenv(envShellWorkspace)
	os.Unsetenv(envShellSession)
	if s.req.Dir == "" && workspace != "" {
		s.req.Dir, s.req.DirFrom = workspace, envShellWorkspace
	}
	if s.keep == "" {
		s.keep = keep
		if s.keep != "" {
			if err := session.CheckID(s.keep); err != nil {
				return nil, "", engine.Usage(envShellSession+": "+err.Error(), "auto, or the name of a session")
			}
		}
	}
	agent = standin.Caller()
	if start, err = engine.WorkingDirectory(); err != nil {
		return nil, "", err
	}
	return agent, start, s.place(start, agent)
}

// place chooses the workspace. What an agent passes for one command, the current
// directory among it, may be a model's choice; where the agent itself runs is its
// owner's.
func (s *shell) place(start string, agent *standin.Process) error {
	if s.req.Dir != "" {
		return nil
	}
	dir, err := agent.Dir()
	if errors.Is(err, errors.ErrUnsupported) {
		dir, err = start, nil
	}
	if err != nil {
		return engine.Usage("the directory that the calling process "+strconv.Itoa(agent.Pid)+" runs in is not known: "+
			err.Error(),
			"name the workspace: --cd DIR, or "+envShellWorkspace)

	}
	s.req.Dir, s.req.DirFrom = dir, "workspace"
	if dir != start {
		s.req.DirFrom = "the directory that the calling process " + strconv.Itoa(agent.Pid) + " runs in"
	}
	return nil
}

// environ is what the command gets beside what the profile gives it.
func (s *shell) environ() []string {
	env := persona.Environ(os.Environ())
	if path, ok := os.LookupEnv("PATH"); ok {
		if clean := standin.CleanPath(path); clean != path {
			env = append(env, "PATH="+clean)
		}
	}
	return env
}

const showMore = "--cd DIR or " + envShellWorkspace + " names another workspace, --ro and --rw show more"

// startIn has a run begin in a directory that need not be the workspace itself.
func startIn(p *policy.Policy, dir string) error {
	if !engine.Shown(p, dir) {
		return notShown(p, dir, showMore)
	}
	p.OCI.Process.Cwd = dir
	return nil
}

// notShown is the error about a directory to start in that the sandbox does not have.
func notShown(p *policy.Policy, dir, hint string) error {
	return engine.Usage("the directory to start in, "+quote.Inside(dir)+
		", is not in the sandbox: its workspace is "+p.OCI.Process.Cwd, hint)
}

// enter makes sure that there is the session to run in, and returns its policy.
func (s *shell) enter(agent *standin.Process, start string) (*policy.Policy, error) {
	st, err := engine.OpenSessions()
	if err != nil {
		return nil, err
	}
	e := &entered{store: st}
	id := s.keep
	if id == autoSession {
		id = standin.SessionID(agent, s.req.Dir, os.Args[:max(1, len(os.Args)-len(s.req.Command)+1)])
		workspace := s.req.Dir
		e.again = func() (err error) {
			child := *s
			child.req.Dir = workspace
			for range 10 {
				if err = child.open(e, id, agent); err != nil {
					return err
				}
				if e.policy, err = st.Policy(id); !sessionGone(err) {
					return err
				}
			}
			return err
		}
		err = e.again()
	} else if err = checkNamed(s.typed, id); err == nil {
		if e.info, e.client, err = st.Enter(id); err == nil {
			e.policy, err = st.Policy(id)
		}
	}
	if err == nil && !engine.Shown(e.policy, start) {
		hint := showMore
		if s.keep != autoSession {
			hint = "start the shell there, or create the session with --ro or --rw for that directory"
		}
		err = notShown(e.policy, start, hint)
	}
	if err != nil {
		return nil, sessionError(err)
	}
	// From here on the flags are those of a command in a session.
	s.session, s.entered = id, e
	s.req.Dir = start
	return e.policy, nil
}

// checkNamed refuses flags that mean nothing to a shell in a session that there is.
func checkNamed(fs *pflag.FlagSet, id string, own ...string) error {
	if fs != nil && fs.Changed("cd") {
		return engine.Usage("--cd names a workspace, and session "+id+" has its own",
			"leave it out: the shell starts where its caller is")
	}
	return checkFlags(fs, id, append(own, "session", "shell", "cwd-fd", "ignore-env", "rollout-key")...)
}

// open enters an agent's session, and makes it if it is not there.
func (s *shell) open(e *entered, id string, agent *standin.Process) (err error) {
	if agent.Pid <= 1 || agent.Began == 0 {
		return engine.Usage("there is no calling process whose session this could be",
			"name a session, or leave --session out")
	}
	retired := func(info *session.Info, c *session.Client) bool { return s.retired(e.store, info, c) }
	e.info, e.client, err = standin.Keep(e.store, id, retired, func() (func() error, error) {
		child := s.options
		child.req.Terminal = false
		_, confirm, err := child.createSession(id, &agent.Process)
		return confirm, err
	})
	return err
}

// retired ends an agent's session of which the files are not what they were, if
// nothing runs in it: what a command left running is more to its agent than rules
// that are new. Where the files make no policy, the last good one holds; and so it
// does where only such have changed that commands of the session can write.
func (s *shell) retired(st *session.Store, info *session.Info, c *session.Client) bool {
	f, err := engine.SessionFacts()
	if err != nil {
		return false
	}
	changed := aged(info, f)
	if len(changed) == 0 {
		return false
	}
	if f, err = engine.GatherFacts(); err != nil {
		return false
	}
	p, err := st.Policy(info.ID)
	if errors.Is(err, session.ErrNotFound) {
		return true // another call was faster
	}
	if err != nil || !slices.ContainsFunc(changed,
		func(name string) bool { return engine.Access(p, name)&policy.Write == 0 }) {
		return false
	}
	child := s.req
	child.Command, child.Terminal = []string{"/"}, false
	if _, err := profiles.Resolve(&child, &f.Facts); err != nil {
		say.warn("the configuration stays as it was: " + err.Error())
		return false
	}
	switch gone, err := c.Retire(); {
	case sessionGone(err):
		return true // another call was faster
	case err != nil || !gone:
		return false
	}
	say.note("the configuration has changed: this command begins a new session, with empty private directories", "")
	return true
}

// rolloutFlag defines the flag for what a roll-out knows an agent by.
func rolloutFlag(fs *pflag.FlagSet, key *string) {
	fs.VarPF(&value{"KEY", func(k string) error { *key = k; return nil }}, "rollout-key", "",
		"what rollout.percent and rollout.force of config.yaml know this agent by (default USER:WORKSPACE)")
}

// outside becomes the shell itself, as the agent would have had it: with its own
// arguments, environment and streams. It returns only if it could not.
func (s *shell) outside(op *profiles.Operator, why, file, start string, args, environ []string) error {
	argv := append([]string{file}, args...)
	if err := engine.RecordOutside(op, audit.Record{Source: "run", Command: argv, Cwd: start}, why); err != nil {
		return err
	}
	say.warn("NOT SANDBOXED: this runs on the host with all that its user can do, because " + why)
	if at, ok := persona.Script(args); ok && s.cwdFD >= 0 {
		argv[1+at] = persona.Telling(persona.Name(file), args[at], s.cwdFD)
	}
	err := syscall.Exec(file, argv, standin.OutsideEnviron(environ))
	return commandError(&driver.CommandError{Command: file, Err: err})
}
