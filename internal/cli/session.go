package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/files"
	"github.com/sbxrun/sbxrun/internal/holder"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

func newSession() *cobra.Command {
	return group(&cobra.Command{
		Use:   "session COMMAND",
		Short: "Sandboxes that stay: create, exec, attach, cp, ls, logs, kill, inspect, requests, stop, rm",
		Long: `A session is a sandbox that stays, with its processes and private files, until
it is stopped. Each command in it is confined as the command of a run is; what
one leaves running, the next finds.`,
		Example: `  sbxrun session create --profile strict build
  sbxrun session exec build -- make
  sbxrun session exec -d build -- ./server
  sbxrun session stop build && sbxrun session rm build`,
	}, "create, exec, attach, cp, ls, logs, kill, inspect, requests, grant, deny, stop or rm",
		newSessionCreate(), newSessionExec(), newSessionAttach(), newSessionList(), newSessionLogs(), newSessionCopy(),
		newSessionKill(), newSessionInspect(), newSessionRequests(), newSessionGrant(), newSessionDeny(), newSessionStop(),
		newSessionRemove())
}

// entered is a session that was looked at before the command for it is made.
type entered struct {
	store  *session.Store
	info   *session.Info
	client *session.Client
	policy *policy.Policy // nil: not read yet
	again  func() error   // enters the one that took its place; nil if there is none
}

// entering is the session that the command is for; the caller closes its store.
func (o *options) entering() (*entered, error) {
	if o.entered != nil {
		return o.entered, nil
	}
	st, err := engine.OpenSessions()
	if err != nil {
		return nil, err
	}
	e := &entered{store: st}
	if e.info, e.client, err = st.Enter(o.session); err != nil {
		st.Close()
		return nil, sessionError(err)
	}
	return e, nil
}

// with runs a function on the session.
func (e *entered) with(do func(*session.Client) error) error {
	err := do(e.client)
	if e.again != nil && sessionGone(err) && e.again() == nil {
		err = do(e.client)
	}
	return err
}

// sessionGone reports whether nothing was done because the session is there no more.
func sessionGone(err error) bool {
	var lost *driver.LostError
	return !errors.As(err, &lost) && (errors.Is(err, session.ErrNotFound) || errors.Is(err, session.ErrNotRunning) ||
		errors.Is(err, driver.ErrSandboxGone))
}

// withSession runs a function on a session that is named.
func withSession(id string, do func(*session.Store, *session.Client) error) error {
	st, err := engine.OpenSessions()
	if err != nil {
		return err
	}
	defer st.Close()
	c, err := st.Connect(id)
	if err != nil {
		return sessionError(err)
	}
	return sessionError(do(st, c))
}

// sessionError adds what to do about an error.
func sessionError(err error) error {
	switch {
	case errors.Is(err, session.ErrNotFound):
		return engine.Hinted(err, "sbxrun session ls lists them; sbxrun session create makes one")
	case errors.Is(err, session.ErrExists):
		return engine.Hinted(err, "choose another name, or end it: sbxrun session stop, sbxrun session rm")
	case errors.Is(err, session.ErrAsksNothing):
		return engine.Hinted(err, "make one that does: sbxrun session create --ask")
	case errors.Is(err, session.ErrNotRunning):
		return engine.Hinted(err, "sbxrun session rm removes what is left of it")
	case errors.Is(err, syscall.EBUSY):
		return engine.Hinted(stillRuns{err}, "stop it first: sbxrun session stop; or sbxrun session rm --force")
	}
	return err
}

// stillRuns is a session that cannot be removed because it runs.
type stillRuns struct{ error }

func (e stillRuns) Error() string {
	return strings.TrimSuffix(e.error.Error(), syscall.EBUSY.Error()) + "it still runs"
}
func (e stillRuns) Unwrap() error { return e.error }

// noCommand adds to an error about a command of a session that is not there where
// those that are can be seen.
func noCommand(err error, id string) error {
	var none *session.NoCommandError
	if !errors.As(err, &none) {
		return err
	}
	return engine.Hinted(err,
		"sbxrun session inspect "+id+" lists the commands; exec --detach starts one that stays, with --tty one to attach to")
}

func newSessionCreate() *cobra.Command {
	o := &options{}
	c := plain(&cobra.Command{
		Use:   "create [flags] [ID]",
		Short: "Create a session and print its id",
		Long: `Create a session: build the sandbox that a run with these flags would have, and
keep it. The limits on time and output are those of each command in it; the
limits on memory, cpu and processes hold for all of them together. When
configuration and profile files change, the rules of its network follow, as those
of a run do, and the rest of its policy stays: ls, inspect and exec say so.`,
		Example: "  sbxrun session create\n  sbxrun session create --profile strict --memory 1g -C ~/project build",
		Args:    maxArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			id := session.NewID()
			if len(args) == 1 {
				id = args[0]
			}
			if _, err := profiles.ParseDuration(id); err == nil && o.req.Ask == askPatience {
				return engine.Usage(id+" would be the session's name", "for a time to answer in: --ask="+id)
			}
			info, confirm, err := o.createSession(id, nil)
			if err != nil {
				return sessionError(err)
			}
			if o.json {
				err = PrintJSON(info)
			} else {
				_, err = fmt.Println(info.ID)
			}
			if err != nil {
				return err
			}
			return confirm()
		},
	}, o)
	o.policyFlags(c.Flags())
	o.gitFlags(c.Flags())
	o.askFlag(c.Flags())
	c.Flags().BoolVar(&o.json, "json", false, "print the session as JSON")
	return c
}

// createSession starts a holder and returns when the session is ready. It ends with
// the process that owns it, if one does, and with this process until that calls confirm.
func (o *options) createSession(id string,
	owner *holder.Process) (info *session.Info, confirm func() error, err error) {
	if err := session.CheckID(id); err != nil {
		return nil, nil, err
	}
	if o.req.Terminal {
		return nil, nil, engine.Usage("a session has no terminal of its own",
			"sbxrun session exec -t gives a command one")
	}
	ctx := context.Background()
	o.req.Command = []string{"/"} // commands come later
	r, f, _, err := o.workspace(ctx, engine.GatherFacts, true)
	if err != nil {
		return nil, nil, err
	}
	d, err := selectDriver(ctx, f, r, o.req.Require)
	if err != nil {
		return nil, nil, err
	}
	if err := engine.Stays(d, "sessions", "sessions need the native driver"); err != nil {
		return nil, nil, err
	}
	if err := o.verify(ctx, d, r, f); err != nil {
		return nil, nil, err
	}
	st, err := engine.OpenSessions()
	if err != nil {
		return nil, nil, err
	}
	defer st.Close()
	if confirm, err = holder.Create(st, id, &o.req, r, d, f, owner); err != nil {
		return nil, nil, err
	}
	if o.checkout.Install {
		if err := o.installInSession(id, r.Workspace.Path); err != nil {
			drop(st, id)
			return nil, nil, err
		}
	}
	info, err = st.Lookup(id)
	return info, confirm, err
}

// drop ends a session and removes it.
func drop(st *session.Store, id string) {
	if c, err := st.Connect(id); err == nil {
		c.Stop(0)
	}
	if err := st.Remove(id); err != nil {
		say.warn("session " + id + " was not removed: " + err.Error())
	}
}

func newSessionExec() *cobra.Command {
	e := &execution{}
	c := &cobra.Command{
		Use:   "exec [flags] ID [--] CMD [ARG...]",
		Short: "Run a command in a session",
		Long: `Run a command in a session, with this terminal's streams. It is confined as the
session is. It ends when sbxrun is ended; with --detach it goes on, and
sbxrun session logs shows what it printed. One with a terminal (--tty) can be left
to itself by typing ctrl-p ctrl-q, and come back to with sbxrun session attach.`,
		Example: "  sbxrun session exec build -- make\n  sbxrun session exec -t build bash\n  sbxrun session exec -c 'cd sub && make' build",
		Args:    cobra.ArbitraryArgs,
		RunE:    func(_ *cobra.Command, args []string) error { return e.run(args) },
	}
	c.DisableFlagsInUseLine = true
	e.flags(c.Flags())
	return c
}

// execution is what session exec is asked for.
type execution struct {
	options
	detach bool
}

func (e *execution) flags(fs *pflag.FlagSet) {
	e.resultFD = -1
	fs.SetInterspersed(false)
	fs.SortFlags = false
	e.execFlags(fs)
	fs.BoolVarP(&e.detach, "detach", "d", false, "run in the background and print the command's number")
	e.keysFlag(fs)
}

func (e *execution) run(args []string) error {
	if len(args) == 0 {
		return engine.Usage("exec needs a session", "for example: sbxrun session exec build -- make")
	}
	if err := session.CheckID(args[0]); err != nil {
		return err
	}
	e.session = args[0]
	args = args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if e.detach {
		return e.detached(args)
	}
	return e.options.run(args)
}

// sessionExec is session exec without the tree of all commands.
func sessionExec(args []string) (code int, ok bool) {
	e := &execution{}
	fs := pflag.NewFlagSet("exec", pflag.ContinueOnError)
	fs.Usage = func() {}
	e.flags(fs)
	err := fs.Parse(args)
	if leave(err) {
		return 0, false
	}
	if err != nil {
		helpHint = "see sbxrun session exec --help"
	} else {
		err = e.run(fs.Args())
	}
	return report(fs, err), true
}

// keysFlag defines the flag for the keys that detach.
func (o *options) keysFlag(fs *pflag.FlagSet) {
	o.keys, _ = terminal.ParseKeys(terminal.DefaultKeys)
	fs.VarPF(&value{"KEYS", into(&o.keys, terminal.ParseKeys)}, "detach-keys", "",
		"what to type to leave a command with a terminal to itself (default "+terminal.DefaultKeys+")")
}

func newSessionAttach() *cobra.Command {
	o := &options{}
	c := plain(&cobra.Command{
		Use:   "attach [flags] ID [COMMAND]",
		Short: "Attach this terminal to that of a command in a session",
		Long: `Attach this terminal to that of a command which was started with exec --detach
--tty, or was detached from. What it showed last is shown again. Without a number it is
the one that was started last. Ctrl-p ctrl-q detaches again; so does attaching from
elsewhere, and the end of this terminal. If the command ends, its exit code is that of
sbxrun.`,
		Example: "  n=$(sbxrun session exec -d -t build bash)\n  sbxrun session attach build $n",
		Args:    cobra.MatchAll(minArgs(1, "a session"), maxArgs(2)),
		RunE: func(_ *cobra.Command, args []string) error {
			n := 0 // the last
			if len(args) == 2 {
				var err error
				if n, err = strconv.Atoi(args[1]); err != nil || n < 1 {
					return notCommand(args[1])
				}
			}
			return withSession(args[0], func(_ *session.Store, c *session.Client) error { return o.attach(c, args[0], n) })
		},
	}, o)
	o.keysFlag(c.Flags())
	return c
}

func notCommand(s string) error {
	return engine.Usage(strconv.Quote(s)+" is not the number of a command", "sbxrun session inspect lists them")
}

// attach joins this terminal to that of a command.
func (o *options) attach(c *session.Client, id string, n int) error {
	a, err := c.Attach(n)
	if err != nil {
		return noCommand(err, id)
	}
	defer a.Close()
	// Their reads and writes end when this does.
	for _, f := range []*os.File{a.Terminal, a.Output} {
		if raw, err := f.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { syscall.SetNonblock(int(fd), true) })
		}
	}
	fds := [2]*os.File{}
	for i, f := range []*os.File{a.Terminal, a.Output} {
		fd, err := engine.Dup(f)
		if err != nil {
			return err
		}
		fds[i] = os.NewFile(uintptr(fd), f.Name())
	}
	defer fds[1].Close()
	t := terminal.Terminal{Keys: o.keys}
	defer t.Restore()
	signals := make(chan os.Signal, 1)
	terminal.Catch(signals, true)
	go t.EndBy(signals)
	left := make(chan struct{})
	end := t.Join(fds[0], fds[1], func() { close(left) })
	end()
	// Its logs have what was not shown.
	logs := "sbxrun session logs " + id + " " + strconv.Itoa(a.Command)
	select {
	case <-left:
		say.note("detached; the command goes on", "sbxrun session attach "+id+" "+strconv.Itoa(a.Command))
		if err := t.Unshown(); err != nil {
			return unshown(err, 0, logs)
		}
		return nil
	default:
	}
	out, err := c.Output(a.Command, [2]int{1 << 40, 1 << 40}, 2*time.Second)
	switch unseen := t.Unshown(); {
	case err != nil:
		return &driver.LostError{Err: err}
	case unseen != nil && out.Result == nil:
		return unshown(unseen, 0, logs)
	case unseen != nil:
		return unshown(unseen, out.Result.ExitCode, logs)
	case out.Result == nil:
		say.note("detached: somebody else has attached", "")
		return nil
	case out.Result.ExitCode == 0:
		return nil
	}
	return exitError(out.Result.ExitCode)
}

// process is what a session's command is, from the flags, and what is recorded of
// the session; of that it is told if it is out of date.
func (o *options) process(e *entered, f *facts) (*session.Info, *specs.Process, error) {
	o.explainAge(e.info, f)
	pr, err := engine.SessionProcess(func() (*policy.Policy, error) {
		if e.policy != nil {
			return e.policy, nil
		}
		return e.store.Policy(o.session)
	}, &o.req)
	if err == nil && pr.Terminal {
		pr.ConsoleSize = terminal.Size()
	}
	return e.info, pr, err
}

// within are the limits that a session's command has of its own; nil for none.
func (o *options) within() *specs.LinuxResources {
	var memory *int64
	if m := o.req.Memory; m != nil {
		memory = new(int64(min(*m, math.MaxInt64)))
	}
	return policy.Within(memory, o.req.CPUs, o.req.Pids)
}

// checkFlags refuses flags that mean nothing to a session's command, but for those
// of the command line's own: who gave one takes it to hold.
func checkFlags(given *pflag.FlagSet, id string, own ...string) error {
	if given == nil {
		return nil
	}
	heeded, kept := pflag.NewFlagSet("", pflag.ContinueOnError), say
	new(options).execFlags(heeded)
	say = kept // the flags for it are defined anew, with their defaults
	var err error
	given.VisitAll(func(f *pflag.Flag) {
		if err != nil || !f.Changed || slices.Contains(own, f.Name) || heeded.Lookup(f.Name) != nil {
			return
		}
		hint := "the session has it from session create; leave it out"
		switch f.Name {
		case "dry-run":
			hint = "sbxrun session inspect " + id + " shows what it would run under"
		case "tell-refusals":
			hint = "what is refused is told when the command ends; leave it out"
		case "no-pool", "verify":
			hint = "the sandbox is there already; leave it out"
		}
		err = engine.Usage("--"+f.Name+" is not a flag of a session's command", hint)
	})
	return err
}

// inSession runs the command in a session that there is.
func (o *options) inSession() (*driver.Result, error) {
	log, f, err := o.sessionAudit()
	if err != nil {
		return nil, err
	}
	e, err := o.entering()
	if err != nil {
		return nil, err
	}
	defer e.store.Close()
	var res *driver.Result
	err = sessionError(e.with(func(c *session.Client) error {
		info, pr, err := o.process(e, f)
		if err != nil {
			return err
		}
		p := &policy.Policy{Profile: info.Profile, Limits: info.Limits,
			OCI: &specs.Spec{Process: &specs.Process{Terminal: pr.Terminal, Args: pr.Args}}}
		given(&p.Limits.WallTime, o.req.Timeout)
		given(&p.Limits.KillAfter, o.req.KillAfter)
		given(&p.Limits.Output, o.req.MaxOutput)
		number := 0
		record := audit.Record{Source: "session", Session: o.session, Command: o.req.Command, Cwd: pr.Cwd,
			Profile: info.Profile, Driver: info.Driver}
		res, err = engine.Recorded(log, record, func() (*driver.Result, error) {
			return o.execute(context.Background(), session.Within(c, info.Driver, pr, o.within()), p,
				func(proc driver.Process) func() {
					if n, ok := proc.(interface{ Command() int }); ok {
						number = n.Command()
					}
					return nil
				})
		})
		if err == nil && res.Reason == driver.ReasonDetached {
			say.note("detached; the command goes on", "sbxrun session attach "+o.session+" "+strconv.Itoa(number))
		}
		return err
	}))
	if res != nil && err != nil {
		res.Hint = driver.HintOf(err)
		var c *driver.CommandError
		if res.Hint == "" && errors.As(err, &c) && isNotFound(err) {
			res.Hint = misplaced(c.Command, os.Args[1:])
		}
	}
	return res, err
}

// given takes a value that was asked for.
func given[T any](to, v *T) {
	if v != nil {
		*to = *v
	}
}

// sessionAudit opens the log for a command of a session, nil if there is none.
func (o *options) sessionAudit() (*audit.Log, *facts, error) {
	f, err := engine.SessionFacts()
	if err != nil {
		return nil, nil, err
	}
	op, err := engine.OperatorOf(&o.req, f)
	if err != nil {
		return nil, nil, err
	}
	l, err := engine.OpenAudit(&op, o.req.Env)
	return l, f, err
}

// aged are the files of a session's policy that are not what they were when it was
// created. The policy is what it was.
func aged(i *session.Info, f *facts) []string { return profiles.Files(i.Files).Changed(&f.Facts) }

// explainAge says that a session's policy is not what a new one's would be. Whoever
// shares a shell's session cannot make it anew, and is told only with --verbose.
func (o *options) explainAge(i *session.Info, f *facts) {
	if o.agreed && !say.verbose {
		return
	}
	if changed := aged(i, f); len(changed) > 0 {
		say.note("session "+agedText(i, changed), "sbxrun session rm --force "+i.ID+", and create it again")
	}
}

// agedText says what it means for a session that files have changed.
func agedText(i *session.Info, changed []string) string {
	text := i.ID + " has the policy that it was created with"
	if i.Follows {
		text += ", but for the rules of its network"
	}
	return text + ": changed since: " + strings.Join(changed, ", ")
}

// detached starts a command in the background of a session.
func (o *options) detached(args []string) error {
	if err := o.command(args); err != nil {
		return err
	}
	if o.json || o.resultFile != "" || o.resultFD >= 0 {
		return engine.Usage("a command in the background has no result yet",
			"leave out --json and --result-file; see sbxrun session logs --json")
	}
	log, f, err := o.sessionAudit()
	if err != nil {
		return err
	}
	e, err := o.entering()
	if err != nil {
		return err
	}
	defer e.store.Close()
	return sessionError(e.with(func(c *session.Client) error {
		info, pr, err := o.process(e, f)
		if err != nil {
			return err
		}
		if log != nil {
			// How it ends is the session's to know: sbxrun session logs.
			r := audit.Record{Source: "session", Session: o.session, Command: o.req.Command, Cwd: pr.Cwd,
				Profile: info.Profile, Driver: info.Driver, Sandboxed: true}
			if err := log.Run(r, nil, nil); err != nil {
				return err
			}
		}
		n, err := c.StartWithin(pr, o.within())
		if err != nil {
			return err
		}
		if err = engine.Write(os.Stdout, []byte(strconv.Itoa(n)+"\n")); err != nil {
			return &driver.LostError{Err: err, Fix: "sbxrun session inspect " + o.session + " lists it"}
		}
		return nil
	}))
}

func newSessionList() *cobra.Command {
	o := &options{}
	return listing(&cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List sessions",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			list, err := engine.ListSessions()
			if err != nil {
				return err
			}
			f, err := engine.GatherFactsAnywhere("/")
			if err != nil {
				return err
			}
			type entry struct {
				*session.Info
				Changed []string `json:"changed,omitempty"` // of its files, since
			}
			all := []entry{}
			rows := [][]string{{"ID", "STATE", "PROFILE", "COMMANDS", "CREATED", "DIRECTORY"}}
			for _, i := range list {
				e := entry{Info: i}
				if i.State == session.Ready || i.State == session.Running {
					e.Changed = aged(i, f)
				}
				all = append(all, e)
				running := 0
				for _, c := range i.Commands {
					if c.Running {
						running++
					}
				}
				rows = append(rows, []string{i.ID, string(i.State), dash(i.Profile), strconv.Itoa(running),
					i.Created.Format(time.DateTime), dash(i.Dir)})
			}
			if err = o.list(all, rows); o.json {
				return err
			}
			for _, e := range all {
				if len(e.Changed) > 0 {
					say.note(agedText(e.Info, e.Changed), "")
				}
				if e.Notice != "" {
					say.warn(e.ID + ": " + e.Notice)
				}
			}
			return err
		},
	}, o)
}

func newSessionInspect() *cobra.Command {
	o := &options{}
	return plain(&cobra.Command{
		Use:   "inspect ID",
		Short: "Show a session: its state, commands, usage and policy, as JSON",
		Args:  exactArgs(1, "a session"),
		RunE: func(_ *cobra.Command, args []string) error {
			return withSession(args[0], func(st *session.Store, c *session.Client) error {
				info, err := st.Lookup(args[0])
				if err != nil {
					return err
				}
				out := struct {
					*session.Info
					Changed   []string       `json:"changed,omitempty"` // of its files, since
					Usage     *driver.Usage  `json:"usage,omitempty"`
					OOMBy     string         `json:"oom_by,omitempty"`
					PidsBy    string         `json:"pids_by,omitempty"`
					Layers    *policy.Layers `json:"layers,omitempty"`
					Degraded  *policy.Layers `json:"degraded,omitempty"`
					Unwatched []string       `json:"unwatched,omitempty"`
					Policy    *policy.Policy `json:"policy,omitempty"`
				}{Info: info}
				now, status, err := c.Info()
				var silent *session.SilentError
				switch {
				case errors.As(err, &silent):
					out.Notice = silent.Notice()
				case err == nil:
					out.Info = now
					if status != nil {
						out.OOMBy, out.PidsBy, out.Unwatched = status.OOMBy, status.PidsBy, status.Unwatched
						out.Usage, out.Layers, out.Degraded = &status.Usage, &status.Layers, &status.Degraded
					}
				}
				if p, err := st.Policy(args[0]); err == nil {
					out.Policy = p
				}
				f, err := engine.GatherFacts()
				if err != nil {
					return err
				}
				out.Changed = aged(out.Info, f)
				return PrintJSON(out)
			})
		},
	}, o)
}

func newSessionLogs() *cobra.Command {
	o := &options{}
	follow := false
	c := plain(&cobra.Command{
		Use:   "logs [flags] ID COMMAND",
		Short: "Print what a background command has printed",
		Long: `Print what a command that was started with exec --detach has printed so far, its
stdout to stdout and its stderr to stderr.`,
		Example: "  n=$(sbxrun session exec -d build -- make)\n  sbxrun session logs -f build $n",
		Args:    exactArgs(2, "a session and the number of a command"),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return notCommand(args[1])
			}
			return withSession(args[0], func(_ *session.Store, c *session.Client) error {
				var offset [2]int
				for {
					wait := time.Duration(0)
					if follow {
						wait = time.Minute
					}
					if o.json {
						out, err := c.Output(n, offset, wait)
						if err != nil {
							return err
						}
						if err = PrintJSON(out); err != nil {
							return unshown(err, 0, "")
						}
						return nil
					}
					out, err := c.OutputPart(n, offset, wait)
					if err != nil {
						return noCommand(err, args[0])
					}
					if len(out.Stdout) > 0 { // a write of nothing can fail
						_, err = os.Stdout.Write(out.Stdout)
					}
					if len(out.Stderr) > 0 {
						if _, also := os.Stderr.Write(out.Stderr); err == nil {
							err = also
						}
					}
					if err != nil {
						return unshown(err, 0, "")
					}
					offset = out.Offset
					if out.Result != nil && len(out.Stdout)+len(out.Stderr) == 0 || !follow && !out.More {
						if out.StdoutTruncated || out.StderrTruncated {
							say.note("the output was longer than is kept",
								"--max-output of sbxrun session create sets how much")
						}
						return nil
					}
				}
			})
		},
	}, o)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the command ends")
	c.Flags().BoolVar(&o.json, "json", false,
		"print one JSON object, with the result if the command has ended; streams are base64")
	return c
}

func newSessionCopy() *cobra.Command {
	o := &options{}
	var allow []string
	c := plain(&cobra.Command{
		Use:   "cp ID:PATH DIR | cp PATH ID:DIR",
		Short: "Copy files into or out of a session",
		Long: `Copy a file, or a directory and all below it, into a directory on the other side,
which is made if it is not there. A session's side has its id before a colon.

Both sides are confined: in the session, what is done could be done by any
command in it; on the host, nothing is written outside DIR, whatever the files
from the session are called or link to. Links stay links; devices, FIFOs and
sockets are left out. The first path that the session's policy protects, such as
.git/hooks, or that sbxrun obeys, such as ~/.config/sbxrun, ends a copy to the
host. A host's path must not lead out of a directory by a symbolic link that a
command can have made.`,
		Example: "  sbxrun session cp build:/tmp/out ./results\n  sbxrun session cp ./data build:/tmp\n  sbxrun session cp --allow-protected .vscode build:/tmp/out ./results",
		Args:    exactArgs(2, "what to copy and where to"),
		RunE: func(_ *cobra.Command, args []string) error {
			from, fromPath, out := cutSession(args[0])
			to, toPath, in := cutSession(args[1])
			if out == in {
				return engine.Usage("one side must be a session and the other the host",
					"for example: sbxrun session cp build:/tmp/out ./results")
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			facts, err := engine.GatherFacts()
			if err != nil {
				return err
			}
			if in {
				if fromPath, err = facts.Named(fromPath, true); err != nil {
					return err
				}
				return withSession(to, func(_ *session.Store, c *session.Client) error {
					b := &files.Box{Sandbox: c}
					defer b.Close()
					return b.Put(ctx, fromPath, toPath)
				})
			}
			dir, chosen, err := facts.Into(toPath)
			if err != nil {
				return err
			}
			return withSession(from, func(st *session.Store, c *session.Client) error {
				pol, err := st.Policy(from)
				if err != nil {
					return err
				}
				b := &files.Box{Sandbox: c}
				if b.Check, err = engine.Unprotected(pol.Protect, allow, engine.Obeyed(facts), dir, chosen); err != nil {
					return err
				}
				defer b.Close()
				return b.Get(ctx, fromPath, dir)
			})
		},
	}, o)
	c.Flags().Var(&value{"PATTERN", more(&allow, checked)}, "allow-protected",
		"copy protected paths of this pattern, or this path, to the host; all for every one")
	return c
}

// cutSession reads ID:PATH. A path of the host's that has a colon is said with
// "./" before it.
func cutSession(s string) (id, path string, ok bool) {
	id, path, ok = strings.Cut(s, ":")
	if !ok || session.CheckID(id) != nil {
		return "", s, false
	}
	return id, path, true
}

func newSessionKill() *cobra.Command {
	o := &options{}
	return plain(&cobra.Command{
		Use:   "kill ID COMMAND",
		Short: "End a command of a session, and all that it started",
		Args:  exactArgs(2, "a session and the number of a command"),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return notCommand(args[1])
			}
			return withSession(args[0],
				func(_ *session.Store, c *session.Client) error { return noCommand(c.KillCommand(n), args[0]) })
		},
	}, o)
}

func newSessionStop() *cobra.Command {
	o := &options{}
	grace := 10 * time.Second
	c := plain(&cobra.Command{
		Use:   "stop [flags] ID...",
		Short: "End a session: SIGTERM to its commands, then SIGKILL to all that is left",
		Args:  minArgs(1, "a session"),
		RunE: func(_ *cobra.Command, args []string) error {
			for _, id := range args {
				if err := withSession(id, func(_ *session.Store, c *session.Client) error { return c.Stop(grace) }); err != nil {
					return err
				}
			}
			return nil
		},
	}, o)
	c.Flags().VarP(&value{"DURATION", into(&grace, profiles.ParseGrace)}, "time", "t",
		"how long commands have to end (default 10s)")
	return c
}

func newSessionRemove() *cobra.Command {
	o := &options{}
	force := false
	c := plain(&cobra.Command{
		Use:     "rm [flags] ID...",
		Aliases: []string{"remove"},
		Short:   "Remove the record of a session that has ended",
		Args:    minArgs(1, "a session"),
		RunE: func(_ *cobra.Command, args []string) error {
			st, err := engine.OpenSessions()
			if err != nil {
				return err
			}
			defer st.Close()
			remove := st.Remove
			if force {
				remove = st.Reclaim
			}
			for _, id := range args {
				if force {
					if err := endSession(st, id); err != nil {
						return err
					}
				}
				if err := remove(id); err != nil {
					return sessionError(err)
				}
			}
			return nil
		},
	}, o)
	c.Flags().BoolVarP(&force, "force", "f", false, "end it first, at once")
	return c
}

// endSession ends a session at once, if it has to by its holder's end.
func endSession(st *session.Store, id string) error {
	c, err := st.Connect(id)
	if err != nil {
		return nil // Remove says so
	}
	err = c.Stop(0)
	var silent *session.SilentError
	if errors.As(err, &silent) {
		say.warn(err.Error() + ", and is killed")
		return st.KillHolder(id)
	}
	switch {
	case errors.Is(err, session.ErrStarting):
		return st.KillHolder(id) // who makes it may be stopped, or dead
	case errors.Is(err, session.ErrNotRunning), errors.Is(err, driver.ErrSandboxGone):
		return nil
	}
	return err
}

// A pruner is a driver of which something can be left behind.
type pruner interface {
	// Prune removes what is left of runs whose supervisor was killed, and
	// returns its names.
	Prune(ctx context.Context) ([]string, error)
}

// pruneSessions removes what is left of sessions that have ended.
func pruneSessions(age time.Duration) error {
	st, err := engine.FindSessions()
	if st == nil {
		return err
	}
	defer st.Close()
	gone, err := st.Prune(age)
	for _, id := range gone {
		fmt.Println("session " + id)
	}
	if err == nil {
		explainKept(st, age)
	}
	return err
}

// explainKept says that prune left sessions that have ended, for they may be what
// it was called for.
func explainKept(st *session.Store, age time.Duration) {
	list, err := st.List()
	if err != nil {
		return // it was listed a moment ago
	}
	kept := uint64(0)
	for _, i := range list {
		if i.Over() {
			kept++
		}
	}
	switch text := count(kept, "session", "sessions") + " that ended less than " + profiles.FormatDuration(age) +
		" ago "; kept {
	case 0:
	case 1:
		say.note(text+"was kept", "--older-than 0s removes it too")
	default:
		say.note(text+"were kept", "--older-than 0s removes them too")
	}
}

func newPrune() *cobra.Command {
	o := &options{}
	age, containers, changes := 24*time.Hour, false, false
	c := plain(&cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove what is left of sessions that ended, and of runs that were killed",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			errs := []error{pruneSessions(age)}
			errs = append(errs, pruneChanges(age, changes))
			groups, err := cgroups.Prune()
			if !errors.Is(err, errors.ErrUnsupported) {
				errs = append(errs, err)
			}
			for _, g := range groups {
				fmt.Println("cgroup " + g)
			}
			if !containers {
				return errors.Join(errs...)
			}
			f, err := engine.GatherFacts()
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			for _, d := range engine.Drivers(f) {
				p, ok := d.(pruner)
				// What is not there has left nothing that could be removed now.
				if !ok || d.Available(context.Background()) != nil {
					continue
				}
				gone, err := p.Prune(context.Background())
				for _, name := range gone {
					fmt.Println(d.Name() + " " + name)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}, o)
	c.Flags().Var(&value{"DURATION", into(&age, profiles.ParseGrace)}, "older-than",
		"only what ended longer ago (default 24h)")
	c.Flags().BoolVar(&changes, "changes", false, "change sets that nobody has applied or discarded, too")
	c.Flags().BoolVar(&containers, "containers", false,
		"ask Docker and podman for containers of runs that were killed, too")
	return c
}
