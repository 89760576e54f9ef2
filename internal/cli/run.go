package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
	"github.com/sbxrun/sbxrun/workspace"
)

// newRun returns the command that runs: "sbxrun run", and sbxrun itself.
func newRun(name string) *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   name + " [flags] [--] CMD [ARG...]",
		Short: "Run a command that nobody trusts in a sandbox",
		Long:  runLong,
		Args:  cobra.ArbitraryArgs,
		// Everything after the first word that is no flag is the command's.
		DisableFlagsInUseLine: true,
		Example:               runExample,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(args)
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().SortFlags = false
	c.Flags().AddFlagSet(newRunFlags(o, name))
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return o.unparsed(c.Flags(), os.Args[1:], err)
	})
	return c
}

// unparsed is the end of a run whose flags were not understood. Who asked for the
// result as JSON, before the flag that is wrong or after it, gets one of that
// too; the result file does not, for its name may be what is wrong.
func (o *options) unparsed(fs *pflag.FlagSet, args []string, err error) error {
	if err == pflag.ErrHelp {
		return err
	}
	own := args
	if i := slices.Index(args, "--"); i >= 0 {
		own = args[:i]
	}
	if !o.json && !slices.Contains(own, "--json") {
		return err
	}
	return failed(&engine.Results{JSON: true}, flagError(fs, err))
}

// failed says that a run did not come about, and why.
func failed(r *engine.Results, err error) error {
	res := &driver.Result{}
	driver.Fail(res, err)
	say.error(engine.Hinted(err, res.Hint))
	if err := r.Write(res); err != nil {
		say.error(err)
	}
	return exitError(res.ExitCode)
}

const runLong = `Run a command inside an isolation boundary that the operating system enforces.

Under the default profile, strict, the command sees a read-only system, a
private home and /tmp, the current directory as a writable workspace, no
network, no other process and no privilege, within limits on memory, cpu,
processes and time. Its standard streams pass through byte for byte.

The exit code is the command's own; 128+N if signal N ended it; 124 if the time
limit did; 123 if it may have run and how it ended is lost; 125 if sbxrun could
not run it; 126 if it cannot be executed; 127 if it was not found. --json and
--result-file tell a command's own 125 from ours.`

const runExample = `  sbxrun make test
  sbxrun -c 'make && make test | tail'
  sbxrun --ro /opt --timeout 10m -- make test
  sbxrun --memory 512m --pids 64 --json -- ./untrusted
  sbxrun -t bash`

// run runs a command and returns an exitError with its exit code, or what kept
// it from running.
func (o *options) run(args []string) error {
	result, err := engine.OpenResults(o.json, o.resultFD, o.resultFile)
	if err != nil {
		return failed(&engine.Results{JSON: o.json}, err)
	}
	res, err := o.do(args)
	if res == nil && err == nil {
		return nil // --dry-run
	}
	if res == nil {
		res = &driver.Result{Profile: o.req.Profile}
		driver.Fail(res, err)
	}
	if err != nil {
		say.error(engine.Hinted(err, res.Hint))
	}
	if err := result.Write(res); err != nil {
		if res.Reason == driver.ReasonSetup {
			say.error(err)
			return exitError(res.ExitCode)
		}
		// Not 125: whoever reads that nothing ran runs it again.
		say.error(engine.Hinted(fmt.Errorf("the command has run, and ended with %d; the result could not be written: %w",
			res.ExitCode, err), "do not take the missing result for a run that never was"))
		return exitError(driver.ExitLost)
	}
	if !o.json && err == nil {
		o.explain(res)
	}
	if o.unshown != nil {
		return unshown(o.unshown, res.ExitCode, "")
	}
	if res.ExitCode == 0 {
		return nil
	}
	return exitError(res.ExitCode)
}

// unshown says that not all could be written that a command's terminal showed, or that it
// printed before, and is never success.
func unshown(err error, code int, hint string) error {
	say.error(engine.Hinted(fmt.Errorf("some of the command's output is lost: %w", err), hint))
	if code == 0 {
		code = driver.ExitLost
	}
	return exitError(code)
}

// do resolves, selects and runs. The result is nil if it did not come to a run.
func (o *options) do(args []string) (*driver.Result, error) {
	if err := o.command(args); err != nil {
		return nil, err
	}
	if o.session != "" {
		if err := checkFlags(o.given, o.session, "session"); err != nil {
			return nil, err
		}
	}
	if o.req.Ask > 0 && (!o.req.Terminal || !terminal.Interactive()) {
		return nil, engine.Usage("--ask asks whoever sits at this terminal: it needs one, and --tty",
			"sbxrun session create --ask asks by sbxrun session requests instead")
	}
	if o.json && o.req.Terminal {
		return nil, engine.Usage("--json captures the output, and --tty shows it on the terminal",
			"use --result-file with --tty")
	}
	if o.session != "" {
		return o.inSession()
	}
	ctx := context.Background()
	r, facts, done, err := o.workspace(ctx, func() (*facts, error) { return engine.GatherFactsAnywhere(o.req.Dir) }, false)
	defer done()
	if err == nil && o.cwd != "" {
		err = startIn(r.Policy, o.cwd)
	}
	if err != nil {
		return nil, err
	}
	if o.dryRun {
		d, err := selectDriver(ctx, facts, r, o.req.Require)
		return nil, PrintJSON(engine.DryRunOf(facts, r, o.req.Kept, d, err))
	}
	log, err := engine.OpenAudit(&r.Operator, r.Policy.OCI.Process.Env)
	if err != nil {
		return nil, err
	}
	record := audit.Record{Source: "run", Command: o.req.Command, Cwd: r.Policy.OCI.Process.Cwd,
		Profile: r.Policy.Profile}
	o.log = log
	return engine.Recorded(log, record, func() (*driver.Result, error) { return o.start(ctx, r, facts) })
}

// workspace clones what is to be cloned, and makes the policy. The function that it
// returns removes a clone that does not stay.
func (o *options) workspace(ctx context.Context, gather func() (*facts, error),
	stay bool) (r *profiles.Resolved, f *facts, done func(), err error) {
	done = func() {}
	if err = engine.Enough(); err != nil {
		return
	}
	if f, err = gather(); err != nil {
		return
	}
	if err = o.checkout.Check(); err != nil {
		return
	}
	if o.dryRun && o.checkout.Git != nil {
		err = engine.Usage("--dry-run starts nothing, and --git clones", "leave out one of the two")
		return
	}
	if done, err = o.clone(ctx, f, stay); err == nil {
		r, err = resolveRequest(&o.req, f)
	}
	return
}

// start selects what isolates, and runs.
func (o *options) start(ctx context.Context, r *profiles.Resolved, facts *facts) (*driver.Result, error) {
	p := r.Policy
	o.policy = p
	inst, err := o.installFirst(p, r.Workspace.Path)
	if err != nil {
		return nil, err
	}
	if o.decided != nil {
		o.decided(p)
	}
	d, err := selectDriver(ctx, facts, r, o.req.Require)
	if err != nil {
		return nil, err
	}
	if err := o.canTell(d, p); err != nil {
		return nil, err
	}
	d = fit(d, facts, r, o.frugal())
	if !d.Sandboxed() {
		// The host driver's commands die with the thread that started them
		// (golang/go#27505), so this goroutine keeps its own. A sandbox does
		// not depend on a thread, and locking costs every run one more.
		runtime.LockOSThread()
		say.warn("driver " + d.Name() + ": nothing is isolated, the command can do whatever you can")
	}

	if err := o.verify(ctx, d, r, facts); err != nil {
		return nil, err
	}

	if o.req.Ask > 0 {
		if d, o.board, err = engine.Asking(d, o.req.Ask, o.log, audit.Record{Source: "run", Command: o.req.Command,
			Cwd: p.OCI.Process.Cwd, Profile: p.Profile}); err != nil {
			return nil, err
		}
		o.file = engine.NewProfileFile(r.File, facts)
	}
	var follow func(driver.Process) func()
	if p.Egress.Mode == policy.EgressProxy && o.seen == nil {
		follow = func(proc driver.Process) func() { return o.follow(r, facts, proc) }
	}
	kept, err := engine.KeepChanges(facts, p, workspace.Info{ID: engine.ChangesID(), Command: o.req.Command})
	if err != nil {
		return nil, err
	}
	if kept != nil {
		defer kept.Close()
		follow = both(kept.Started, follow)
	} else if !o.noPool && !o.looks && !o.tells && o.board == nil {
		d = engine.FromPool(d, p, engine.Build(), o.frugal(), func(why string) { say.detail("not pooled: " + why) })
	}
	res, err := o.execute(ctx, d, p, follow)
	if inst != nil {
		res.Dependencies = inst.Result()
	}
	if kept != nil {
		failed := err != nil
		if err = kept.Into(res, err); failed {
			explainChanges(res.Changes, o.agreed)
		}
	}
	return res, err
}

// canTell refuses --tell-refusals where nothing looks at refusals while a command runs.
func (o *options) canTell(d driver.Driver, p *policy.Policy) error {
	switch {
	case !o.tells:
	case d.Name() != "native":
		return &driver.UnavailableError{What: "--tell-refusals",
			Cause: "driver " + d.Name() + " does not tell while the command runs", Fix: "--driver native, or leave it out"}
	case len(p.Protect) == 0, !o.looks && slices.ContainsFunc(p.Files, func(f policy.FileRule) bool { return f.Overlay }):
		return engine.Usage("--tell-refusals needs protected paths in a workspace that is written to at once: "+
			"without any, nothing looks at writes while the command runs",
			"leave --tell-refusals out, or what takes the protected paths away")
	}
	return nil
}

// frugal reports whether nobody will see what a run used.
func (o *options) frugal() bool {
	return !o.json && o.resultFile == "" && o.resultFD < 0 && o.seen == nil
}

// execute runs a policy's command with the caller's own streams and terminal.
// Started may be nil; see [driver.RunOptions].
func (o *options) execute(ctx context.Context, d driver.Driver, p *policy.Policy,
	started func(driver.Process) func()) (*driver.Result, error) {
	ro := driver.RunOptions{Capture: o.json, Elsewhere: Stay != nil && o.session != "" && !p.OCI.Process.Terminal}
	ro.Stdio.Stdin, ro.Stdio.Extra, ro.Stdio.Explain = os.Stdin, o.extra, o.looks
	switch {
	case ro.Elsewhere:
		Stay()
	case Spread != nil && p.Egress.Mode == policy.EgressProxy:
		Spread() // the gateway is part of this program
	}
	if o.tells {
		r, err := engine.NewRefusals()
		if err != nil {
			return &driver.Result{Reason: driver.ReasonSetup, Driver: d.Name(), Profile: p.Profile, Error: err.Error()}, err
		}
		defer r.Close()
		// The command is the second process of its namespace.
		const name = "SBXRUN_REFUSALS="
		env := slices.DeleteFunc(slices.Clone(p.OCI.Process.Env), func(kv string) bool { return strings.HasPrefix(kv, name) })
		p.OCI.Process.Env = append(env, name+"/proc/2/fd/"+strconv.Itoa(3+len(o.extra)))
		ro.Stdio.Extra, ro.Stdio.Refused = append(slices.Clone(o.extra), r.File()), r.Add
	}
	if o.looks && d.Name() != "native" {
		say.note("driver "+d.Name()+" cannot tell what the command looks for; --explain does nothing", "")
	}
	if !o.json {
		ro.Stdio.Stdout, ro.Stdio.Stderr = os.Stdout, os.Stderr
	}
	if ro.Stdio.Seen = o.seen; o.aside {
		ro.Stdio.Stdout = os.Stderr
	}
	term := terminal.Terminal{Keys: o.keys, KillAfter: p.Limits.KillAfter}
	if p.Limits.WallTime > 0 {
		term.Deadline = time.Now().Add(p.Limits.WallTime)
	}
	defer term.Restore()
	signals := make(chan os.Signal, 16)
	ro.Signals = signals
	// Caught while the sandbox is mounted. A signal before that ends sbxrun, and
	// the sandbox with it.
	ro.Stdio.Starting = func() { terminal.Catch(signals, p.OCI.Process.Terminal) }
	ro.Started = started
	if p.OCI.Process.Terminal {
		ro.Started = both(term.Attach, started)
		if o.board != nil {
			ro.Started = both(func(driver.Process) func() { return o.interview(&term) }, ro.Started)
		}
		ro.Signals = term.Heed(signals)
		p.OCI.Process.ConsoleSize = terminal.Size()
	}
	if o.hasScript {
		ro.Stdio.Else = "sh"
	}
	res, err := driver.Run(ctx, d, p, ro)
	var missing *driver.CommandError
	if o.hasScript && isNotFound(err) && errors.As(err, &missing) && missing.Command == "bash" &&
		!byEngine(d.Name()) {
		// Nothing was started: the driver looked before.
		p.OCI.Process.Args[0] = "sh"
		res, err = driver.Run(ctx, d, p, ro)
	}
	o.unshown = term.Unshown()
	if errors.Is(err, session.ErrDetached) {
		return &driver.Result{Reason: driver.ReasonDetached, Driver: d.Name(), Sandboxed: true, Profile: p.Profile,
			DurationMS: res.DurationMS}, nil
	}
	if err != nil {
		if h := commandHint(err, p, d, o.req.Hide); h != "" {
			res.Hint = h
		}
		err = commandError(err)
		res.Error = err.Error()
	}
	return res, err
}

// byEngine reports whether a driver has a container engine start the command, and hears of it.
func byEngine(driver string) bool { return driver == "docker" || driver == "podman" }

// follow keeps the network rules of a run's sandbox as the files say. The function
// that it returns ends it.
func (o *options) follow(r *profiles.Resolved, f *facts, proc driver.Process) func() {
	w := engine.Follower{Request: &o.req, Facts: &f.Facts, Began: r, To: proc,
		Changed: func() {
			if o.board == nil { // whoever answers can have changed them, and looks at the command's screen
				say.note("the network rules have changed", "")
			}
		}, Broken: func(cause string) {
			if cause != "" {
				say.warn(engine.RulesStay + cause)
			}
		}}
	done := make(chan struct{})
	go w.Follow(done)
	return func() { close(done) }
}

// both calls two functions at the start of a process, and what they return at its
// end. The second may be nil.
func both(a, b func(driver.Process) func()) func(driver.Process) func() {
	if b == nil {
		return a
	}
	return func(p driver.Process) func() {
		ends := [...]func(){a(p), b(p)}
		return func() {
			for _, end := range ends {
				if end != nil {
					end()
				}
			}
		}
	}
}

// command sets the request's command from the arguments.
func (o *options) command(args []string) error {
	if o.hasScript {
		o.req.Command = append([]string{"bash", "-c", o.script}, args...)
		return nil
	}
	if len(args) == 0 && o.session != "" {
		return engine.Usage("no command to run", "for example: sbxrun session exec "+quote.Inside(o.session)+" -- make test")
	}
	if len(args) == 0 {
		return engine.Usage("no command to run", "for example: sbxrun -- make test; see sbxrun --help")
	}
	if args[0] == "" {
		// Looked for in PATH it would be each directory itself. Shells and
		// env(1) call it not found.
		return notFound{&driver.CommandError{Command: "''", Err: syscall.ENOENT,
			Fix: "the command is an empty word, perhaps a variable that is not set"}}
	}
	o.req.Command = args
	return nil
}

// explain says on stderr what an exit code alone does not tell.
func (o *options) explain(res *driver.Result) {
	o.explainEnd(res)
	o.explainLimits(res)
	explainDenials(res, o.agreed)
	if o.hints(res) {
		say.note("to see what the command looked for and the sandbox does not show, run it again with --explain", "")
	}
	explainDependencies(res.Dependencies)
	explainChanges(res.Changes, o.agreed)
	if res.Degraded != 0 && res.Sandboxed && (!o.agreed || say.verbose) {
		say.note("ran without "+res.Degraded.String()+", as allowed", "")
	}
	if !say.verbose {
		return
	}
	if res.Pooled {
		say.detail("the sandbox was ready before this run: it is from the pool of sbxrun serve")
	}
	say.detail("driver " + res.Driver + ", layers " + res.Layers.String())
	if len(res.Unwatched) > 0 {
		say.detail("memory of the kernel that is not limited and that nothing watched: " + strings.Join(res.Unwatched, ", "))
	}
	say.detail("set-up " + milliseconds(res.SetupMS) + ", whole run " + milliseconds(res.DurationMS))
}

// explainEnd says what ended a command.
func (o *options) explainEnd(res *driver.Result) {
	switch res.Reason {
	case driver.ReasonTimeout:
		text := "the time limit ended the command"
		if p := o.policy; p != nil && o.req.Timeout == nil {
			// Nobody typed it.
			text += ", after " + p.Limits.WallTime.String()
		}
		say.note(text, "--timeout sets it; --timeout none removes it")
	case driver.ReasonOOM:
		say.note(oomNote("the command", res.OOMBy))
	case driver.ReasonPids:
		refused := " refused it " + count(res.Usage.PidsDenied, "process", "processes")
		if res.PidsBy != "" {
			say.note("the command failed after "+res.PidsBy+refused, "more processes there; --pids cannot give them")
		} else {
			say.note("the command failed after the process limit"+refused, "--pids sets it")
		}
	case driver.ReasonExit:
		if n := res.Usage.OOMKills; n > 0 && res.ExitCode != 0 {
			say.note(oomNote(count(n, "process", "processes")+" of the command, which went on", res.OOMBy))
		}
		if res.ExitCode == driver.ExitSignalBase+int(syscall.SIGKILL) && res.Layers.Has(policy.LayerCgroupMemory) &&
			byEngine(res.Driver) {
			say.note("137 is what SIGKILL leaves, and "+res.Driver+" does not always hear that memory was short", "--memory sets its limit")
		}
	}
}

// explainLimits says what the sandbox has not enough of for a command.
func (o *options) explainLimits(res *driver.Result) {
	if p := o.policy; p != nil && o.req.CPUs == nil && p.OCI.Linux != nil {
		if n := policy.LimitsOf(p.OCI.Linux.Resources).CPUs; res.HeldBack(n) {
			say.note("the limit of "+strconv.FormatFloat(n, 'g', 3, 64)+" cpu held the command back for most of its run",
				"--cpus sets it; --cpus none removes it")
		}
	}
	if res.StorageFull && res.ExitCode != 0 && (res.Changes == nil || !res.Changes.Full) {
		say.note("the private storage (/tmp, /run, the home) was full: \"no space left on device\"",
			"--disk sets its size")
	}
	if res.NetworkTried {
		say.note("the command tried to reach the network, and it has none",
			"--allow-host HOST lets it reach a host; -P aicode, the registries of packages")
	}
	if res.Reason == driver.ReasonExit && res.ExitCode != 0 && o.policy != nil && res.Sandboxed {
		if text, hint := engine.Foreign(o.policy); text != "" {
			say.note(text, hint)
		}
	}
}

// hints reports whether a failure may have its reason in what the sandbox does not show,
// for all that is known. Many commands fail for reasons of their own: of those it is
// said on a terminal alone.
func (o *options) hints(res *driver.Result) bool {
	return !o.looks && !o.agreed && res.Driver == "native" && res.Reason == driver.ReasonExit && res.ExitCode != 0 &&
		len(res.Denials) == 0 &&
		terminal.Is(os.Stderr)
}

// oomNote says who ended something for want of memory, and what to do.
func oomNote(what, by string) (text, hint string) {
	if by == "" {
		return "the memory limit ended " + what, "--memory sets it"
	}
	return "the kernel ended " + what + ": short of memory was " + by + ", not the sandbox",
		"more memory there, or less for the command: --memory"
}

// mostDenials is how many refusals of a kind are told one by one, without
// --verbose.
const mostDenials = 3

// explainDenials says what was refused: a program's own message is "connection
// refused" or "permission denied" at best, and never what would allow it. Of a command
// that succeeded nobody asks why: programs try what they can do without. A model that
// reads it is told, in no more than three causes, that it cannot grant anything itself.
func explainDenials(res *driver.Result, model bool) {
	var network, paths []driver.Denial
	targets := map[string]bool{}
	for _, d := range res.Denials {
		switch {
		case d.Operation == driver.OpLimit, d.Rule == driver.RuleNoNetwork: // said already, with how the command ended
		case d.Operation == driver.OpConnect || d.Operation == driver.OpResolve:
			network = append(network, d)
		case res.ExitCode == 0 && engine.Expected(&d):
		case !targets[d.Target]:
			targets[d.Target] = true
			paths = append(paths, d)
		}
	}
	explainKind(network, model, "more refusal", "more refusals")
	if model {
		paths = paths[:min(len(paths), max(0, mostDenials-len(network)))]
	}
	explainKind(paths, model, "more", "more")
	// libcurl tells of the proxy's answer no more than its number.
	if n := res.Network; n != nil && n.Failure != "" && res.ExitCode != 0 {
		say.note("network: allowed, and not reached: "+quote.Line(n.Failure), "")
	}
	if res.Network != nil && res.Network.Error != "" {
		say.warn("the network gateway stopped before the command did: " + res.Network.Error)
	}
}

// explainKind says the first refusals of a kind, and how many there were besides.
func explainKind(list []driver.Denial, model bool, one, many string) {
	most := len(list)
	if !say.verbose {
		most = min(most, mostDenials)
	}
	for i := range list[:most] {
		say.note(engine.Refusal(&list[i], model))
	}
	if more := len(list) - most; more > 0 {
		kind, _, _ := strings.Cut(engine.RefusalText(&list[0]), " ")
		say.note(kind+" "+count(uint64(more), one, many)+", in the denials of --json", "")
	}
}

// selectDriver chooses what runs the policy, and says what was passed over.
func selectDriver(ctx context.Context, f *facts, r *profiles.Resolved, require policy.Layers) (driver.Driver, error) {
	failed := false
	d, err := engine.Select(ctx, f, r, require, func(s driver.Step) {
		switch {
		case s.Err != nil:
			failed = true
			if len(r.Drivers) > 1 {
				say.note("driver "+s.Driver+" passed over: "+s.Err.Error(), driver.HintOf(s.Err))
			}
		case failed:
			say.note("driver "+s.Driver+" chosen instead", "")
		default:
			say.detail("driver " + s.Driver + " chosen")
		}
	})
	if err != nil {
		return nil, driverError(err, f)
	}
	return d, nil
}

// fit is [engine.Fit] for one run of this program's.
func fit(d driver.Driver, f *facts, r *profiles.Resolved, frugal bool) driver.Driver {
	var progress *os.File
	if terminal.Is(os.Stderr) && !say.quiet {
		progress = os.Stderr
	}
	return engine.Fit(d, f, r, frugal, progress)
}

// verify proves, if that is asked for, that the boundary holds; see [engine.Verify].
func (o *options) verify(ctx context.Context, d driver.Driver, r *profiles.Resolved, f *facts) error {
	return engine.Verify(ctx, d, r, f, o.req.Verify != nil && *o.req.Verify, say.detail)
}

func isNotFound(err error) bool {
	var c *driver.CommandError
	return errors.As(err, &c) && errors.Is(c.Err, syscall.ENOENT)
}

// resolveHere gathers the facts, and turns the request with a command into a policy of them.
func (o *options) resolveHere(command ...string) (*profiles.Resolved, *facts, error) {
	f, err := engine.GatherFacts()
	if err != nil {
		return nil, nil, err
	}
	o.req.Command = command
	r, err := resolveRequest(&o.req, f)
	return r, f, err
}

// resolveRequest is [engine.Resolve]; it says what there is to note.
func resolveRequest(req *profiles.Request, f *facts) (*profiles.Resolved, error) {
	r, err := engine.Resolve(req, f)
	if err != nil {
		return nil, err
	}
	for _, n := range r.Notes {
		say.note(n, "")
	}
	return r, nil
}

// facts are what the host says; see [engine.GatherFacts].
type facts = engine.Facts
