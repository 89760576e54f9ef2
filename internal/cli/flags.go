package cli

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/questions"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// options are the flags of a run: what is asked of it, and how to report.
type options struct {
	req profiles.Request

	script     string
	hasScript  bool
	json       bool
	resultFile string
	resultFD   int
	dryRun     bool
	board      *questions.Board                       // what is asked at the terminal, nil for nothing
	file       *engine.ProfileFile                    // that an answer can be added to, nil for none
	log        *audit.Log                             // of answers, nil for none
	looks      bool                                   // are told of too: --explain
	tells      bool                                   // the command what it was refused: --tell-refusals
	seen       func(driver.Use, func() *driver.Asker) // is told what the command uses; nil for nobody
	aside      bool                                   // the command's stdout goes to stderr
	noPool     bool
	keys       []byte // that detach from a command of a session
	checkout   engine.Checkout
	session    string         // to run in, instead of a sandbox of the command's own
	entered    *entered       // that session, if it was looked at
	policy     *policy.Policy // that runs; nil before, and where nothing is resolved
	given      *pflag.FlagSet // the flags of a run; nil where the command has others
	unshown    error          // why not all of the terminal was shown; nil if it was

	// What only a shell has: another directory to start in than the workspace,
	// descriptors beside the standard ones, and a look at the policy; and that
	// what was agreed to is not said again after each command.
	cwd     string
	extra   []*os.File
	decided func(*policy.Policy)
	agreed  bool
}

// value is a flag whose argument a function takes.
type value struct {
	kind string
	set  func(string) error
}

func (v *value) Set(s string) error {
	if s == "--" {
		return errNoValue
	}
	return v.set(s)
}
func (v *value) String() string { return "" }
func (v *value) Type() string   { return v.kind }

// arg defines a flag whose argument a function takes.
func arg(fs *pflag.FlagSet, name, kind, usage string, set func(string) error) {
	fs.VarPF(&value{kind, set}, name, "", usage)
}

// errNoValue is a flag whose value was forgotten: what comes next begins the
// command.
var errNoValue = errors.New("needs a value, and -- begins the command")

// setting is a flag that makes the policy.
type setting struct {
	*profiles.Flag
	req *profiles.Request
}

// Set takes a value into the request.
func (f *setting) Set(s string) error {
	if s == "--" && f.Value != "" {
		return errNoValue
	}
	if f.Name == "env-file" {
		env, err := engine.EnvFile(s)
		f.req.Env = append(f.req.Env, env...)
		return err
	}
	return f.Flag.Set(f.req, s)
}

func (f *setting) IsBoolFlag() bool { return f.Value == "" }
func (f *setting) Type() string     { return cmp.Or(f.Value, "bool") }
func (f *setting) String() string {
	if f.Flag != nil && f.IsBoolFlag() {
		return "false"
	}
	return ""
}

// policyFlags defines the flags that make the policy, or those of them that are
// named.
func (o *options) policyFlags(fs *pflag.FlagSet, only ...string) {
	for i := range profiles.Flags {
		f := &setting{&profiles.Flags[i], &o.req}
		if len(only) == 0 && f.RunOnly() || len(only) > 0 && !slices.Contains(only, f.Name) {
			continue
		}
		if flag := fs.VarPF(f, f.Name, f.Short, f.Usage); f.IsBoolFlag() {
			flag.NoOptDefVal = "true"
		}
	}
}

// runFlags defines the flags of a run.
func (o *options) runFlags(fs *pflag.FlagSet) {
	o.resultFD, o.given = -1, fs
	o.policyFlags(fs)
	o.gitFlags(fs)
	o.reportFlags(fs)
	o.askFlag(fs)
	fs.BoolVar(&o.tells, "tell-refusals", false,
		"tell the command what it is refused, in the file that SBXRUN_REFUSALS names")
	o.policyFlags(fs, "verify")
	fs.VarPF(&value{"ID", func(s string) error {
		o.session = s
		return session.CheckID(s)
	}}, "session", "", "run in this session; of the other flags, only those of sbxrun session exec can be given")
	o.policyFlags(fs, "audit")
	fs.BoolVar(&o.noPool, "no-pool", false, "build the sandbox, whatever a server (sbxrun serve) has ready")
	fs.BoolVar(&o.dryRun, "dry-run", false, "print what would run and start nothing")
	o.voiceFlags(fs)
}

// execFlags defines the flags of a command in a session.
func (o *options) execFlags(fs *pflag.FlagSet) {
	o.policyFlags(fs, "cd", "env", "env-file", "clear-env", "timeout", "kill-after", "max-output", "memory", "cpus",
		"pids", "tty")
	fs.Lookup("cd").Usage = "working directory, in the session"
	fs.Lookup("memory").Usage = "memory limit of this command, within the session's"
	fs.Lookup("cpus").Usage = "cpu limit of this command, within the session's"
	fs.Lookup("pids").Usage = "limit on this command's processes and threads, within the session's"
	o.policyFlags(fs, "audit")
	o.reportFlags(fs)
	o.voiceFlags(fs)
}

// reportFlags defines the flags that say what to run and how to report it.
func (o *options) reportFlags(fs *pflag.FlagSet) {
	fs.VarPF(&value{"SCRIPT", func(s string) error {
		o.script, o.hasScript = s, true
		return nil
	}}, "script", "c", "run a shell script (bash, else sh); what follows are its $0, $1, …")
	fs.BoolVar(&o.looks, "explain", false,
		"also tell what the command looks for and the sandbox does not show; takes time")
	fs.BoolP("interactive", "i", false, "pass stdin on, which is always done: for the habit of -it")
	fs.BoolVar(&o.json, "json", false, "capture the output and print one result object")
	arg(fs, "result-file", "FILE", "write the result object to a file", into(&o.resultFile, checked))
	arg(fs, "result-fd", "N", "write the result object to an open descriptor", func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return engine.Usage(strconv.Quote(s)+" is not a descriptor",
				"for example: sbxrun --result-fd 3 -- CMD 3>result.json")
		}
		o.resultFD = n
		return nil
	})
}

// voiceFlags defines the flags that say how sbxrun itself speaks.
func (o *options) voiceFlags(fs *pflag.FlagSet) {
	fs.BoolVarP(&say.quiet, "quiet", "q", false, "print nothing but errors and warnings")
	fs.BoolVarP(&say.verbose, "verbose", "v", false, "print what is done, on stderr")
	fs.VarPF(&value{"auto|always|never", oneOf(&say.color, "auto", "always", "never")}, "color", "",
		"colour sbxrun's own messages")
}

// into and more take a flag's argument: as a value, and as one of several.
func into[T any](to *T, parse func(string) (T, error)) func(string) error {
	return func(s string) (err error) {
		*to, err = parse(s)
		return err
	}
}

func more[T any](to *[]T, parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		v, err := parse(s)
		*to = append(*to, v)
		return err
	}
}

func checked(s string) (string, error) { return s, profiles.CheckPath(s) }

func oneOf(to *string, names ...string) func(string) error {
	return func(s string) error {
		*to = s
		return profiles.OneOf(s, names)
	}
}
