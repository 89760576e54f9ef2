package cli

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/internal/engine"
)

// newLearn makes a profile of what a command uses.
func newLearn() *cobra.Command {
	o := &options{resultFD: -1}
	var out, into string
	var check bool
	c := &cobra.Command{
		Use:   "learn [flags] [--] CMD [ARG...]",
		Short: "Run a command that you trust, and write the smallest profile that it needs",
		Long: `Run a command, watch what it uses, and write a profile that gives no more.

While it is watched, the command sees the whole host read-only, except secrets. What it
changes in the workspace is kept as a change set, and what it changes in the home is
thrown away. It reaches the hosts that --allow-host names; others are refused and
noted. This is more than strict gives: learn from commands that you trust.

The profile extends strict, or the profile that --profile names. Each line says why it is
there. Secrets, sockets and whole homes are never granted; comments name what was left
out. Read the profile before you use it.

Without -o or --into the profile goes to stdout, and the command's stdout to stderr.
The exit code is the command's own.`,
		Example: `  sbxrun learn -o test.yaml -- make test
  sbxrun learn --into test.yaml -- make
  sbxrun learn --check -P ./test.yaml -- make test
  sbxrun -P ./test.yaml -- make test`,
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case out != "" && into != "":
				return engine.Usage("-o writes a new profile, and --into adds to one", "leave out one of the two")
			case check && (out != "" || into != ""):
				return engine.Usage("--check writes no profile", "leave out -o and --into")
			case check:
				return o.check(args)
			case into != "" && o.req.Profile != "":
				return engine.Usage("--into names the profile that is extended", "leave out --profile")
			}
			if into != "" {
				if _, err := os.Stat(into); errors.Is(err, os.ErrNotExist) {
					return engine.Usage("--into: "+into+" does not exist", "-o "+into+" makes a new profile")
				}
				o.req.Profile = asFile(into)
			}
			if err := o.command(args); err != nil {
				return failed(&engine.Results{}, err)
			}
			code, err := o.learn(out, into)
			if err != nil {
				return failed(&engine.Results{}, err)
			}
			if code != 0 {
				return exitError(code)
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().SortFlags = false
	c.Flags().StringVarP(&out, "output", "o", "", "write the profile to this new file")
	c.Flags().StringVar(&into, "into", "", "add to this profile what it does not give yet")
	c.Flags().BoolVar(&check, "check", false, "run the command under --profile, and say what is still refused")
	o.policyFlags(c.Flags())
	c.Flags().VarPF(&value{"SCRIPT", func(s string) error {
		o.script, o.hasScript = s, true
		return nil
	}}, "script", "c", "learn from a shell script (bash, else sh); what follows are its $0, $1, …")
	o.voiceFlags(c.Flags())
	return c
}

// check runs the command under a profile, and says what that refuses, also if the command
// does without.
func (o *options) check(args []string) error {
	o.looks = true
	res, err := o.do(args)
	if err != nil {
		return failed(&engine.Results{}, err)
	}
	o.explainEnd(res)
	o.explainLimits(res)
	var refused uint64
	for i := range res.Denials {
		if d := &res.Denials[i]; d.Operation != driver.OpLimit && engine.Used(d) {
			say.note(engine.Refusal(d, false))
			refused++
		}
	}
	explainChanges(res.Changes, false)
	say.note("refused: "+count(refused, "use", "uses"), "")
	if res.ExitCode != 0 {
		return exitError(res.ExitCode)
	}
	return nil
}

// asFile is a file's name as --profile takes it.
func asFile(name string) string {
	if name[0] != '/' && name[0] != '.' {
		return "./" + name
	}
	return name
}

// learn runs the command and writes the profile.
func (o *options) learn(out, into string) (code int, err error) {
	if err := engine.Enough(); err != nil {
		return 0, err
	}
	f, err := engine.GatherFactsAnywhere(o.req.Dir)
	if err != nil {
		return 0, err
	}
	l, err := engine.Learn(&o.req, f)
	if err != nil {
		return 0, err
	}
	if out != "" {
		if _, err := os.Lstat(out); err == nil {
			return 0, engine.Usage(out+" is there already", "--into "+out+" adds to it; or name another file")
		}
	}
	if name := out + into; name != "" {
		if err := l.Ready(name, into != ""); err != nil {
			return 0, err
		}
	}
	o.seen, o.aside = l.Collector.Add, out == "" && into == ""
	log, err := engine.OpenAudit(&l.Run.Operator, l.Run.Policy.OCI.Process.Env)
	if err != nil {
		return 0, err
	}
	record := audit.Record{Source: "learn", Command: o.req.Command, Cwd: l.Run.Policy.OCI.Process.Cwd,
		Profile: l.Run.Policy.Profile}
	res, err := engine.Recorded(log, record, func() (*driver.Result, error) {
		return o.start(context.Background(), l.Run, f)
	})
	if err != nil {
		return 0, err
	}
	if res.Driver != "native" {
		return 0, errors.New("driver " + res.Driver + " does not see what a command uses: nothing was learned")
	}
	o.explainEnd(res)
	if c := res.Changes; c != nil && (c.ID != "" || c.Error != "") {
		explainChanges(c, false)
	}
	found := l.Found(res)
	if res.ExitCode != 0 {
		say.warn("the command failed while it was watched: what it would have used after that is not in the profile")
	}
	switch {
	case out != "":
		err = l.Write(found, out, o.req.Command)
	case into != "":
		err = l.Add(found, into, o.req.Command)
	default:
		_, err = os.Stdout.WriteString(l.Text(found, ".", o.req.Command))
	}
	if err != nil {
		if out+into != "" { // it took a run to learn
			os.Stdout.WriteString(l.Text(found, ".", o.req.Command))
		}
		return 0, err
	}
	if name := out + into; name != "" {
		say.note("learned "+count(uint64(len(found.Read)+len(found.Copy)), "path", "paths")+" and "+
			count(uint64(len(found.Hosts)), "host", "hosts")+"; left out "+
			count(uint64(len(found.First)+len(found.Left)), "use", "uses")+": "+name,
			"read it, then: sbxrun learn --check -P "+asFile(name)+" -- "+o.req.Command[0]+" …")
	}
	return res.ExitCode, nil
}
