package cli

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
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
	noPool     bool
	keys       []byte // that detach from a command of a session
	checkout   checkout
	session    string         // to run in, instead of a sandbox of the command's own
	policy     *policy.Policy // that runs; nil before, and where nothing is resolved
	given      *pflag.FlagSet // the flags of a run; nil where the command has others

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

// errNoValue is a flag whose value was forgotten: what comes next begins the
// command.
var errNoValue = errors.New("needs a value, and -- begins the command")

// policyFlags defines the flags that make the policy, or those of them that are
// named.
func (o *options) policyFlags(fs *pflag.FlagSet, only ...string) {
	r := &o.req
	wanted := func(name string) bool { return len(only) == 0 || slices.Contains(only, name) }
	arg := func(name, short, kind, usage string, set func(string) error) {
		if wanted(name) {
			fs.VarPF(&value{kind, set}, name, short, usage)
		}
	}
	yes := func(to *bool, name, short, usage string) {
		if wanted(name) {
			fs.BoolVarP(to, name, short, false, usage)
		}
	}
	text := func(s string) (string, error) { return s, nil }
	layers := func(to *policy.Layers) func(string) error {
		return func(s string) error {
			for name := range strings.SplitSeq(s, ",") {
				l, err := policy.ParseLayer(name)
				if err != nil {
					return engine.Usage(strconv.Quote(name)+" is not a layer", "one of "+strings.Join(policy.LayerNames(), ", "))
				}
				*to |= l
			}
			return nil
		}
	}

	arg("profile", "P", "NAME|FILE", "profile to run under (default strict)", into(&r.Profile, checked))
	arg("cd", "C", "DIR", "working directory and workspace (default: the current one)", into(&r.Dir, checked))

	arg("ro", "", "PATH", "show a host path, read-only", more(&r.ReadOnly, checked))
	arg("rw", "", "PATH", "show a host path, writable", more(&r.ReadWrite, checked))
	arg("hide", "", "PATH", "hide a host path; beats --ro and --rw", more(&r.Hide, checked))
	arg("unprotect", "", "PATTERN", "let a protected path be changed: .git/config, .vscode, …; all for every one", more(&r.Unprotect, text))
	arg("bind", "", "SRC:DST[:ro]", "show a host path at another place", more(&r.Binds, parseBind))
	arg("tmpfs", "", "PATH[:SIZE]", "private, empty storage at a path", more(&r.Tmpfs, parseTmpfs))
	arg("device", "", "PATH", "give access to a device node", more(&r.Devices, checked))
	arg("workspace", "", "bind|overlay|ro|none", "how the workspace is shown: writable; copy-on-write, see sbxrun diff; read-only; not at all", oneOf(&r.Workspace, "bind", "overlay", "ro", "none"))

	arg("env", "e", "KEY[=VALUE]", "set a variable, or pass the caller's", more(&r.Env, func(s string) (string, error) { return s, checkEnv(s) }))
	arg("env-file", "", "FILE", "read variables from a file, one KEY=VALUE a line", func(s string) error {
		env, err := readEnvFile(s)
		r.Env = append(r.Env, env...)
		return err
	})
	yes(&r.NoGit, "no-git", "", "do not show the repository that the workspace is a directory or a worktree of")
	yes(&r.ClearEnv, "clear-env", "", "start from an empty environment")
	yes(&r.InheritEnv, "inherit-env", "", "pass the caller's whole environment, secrets included")

	arg("net", "", "none|proxy|host", "network: loopback only, the allowed hosts, or the host's own", into(&r.Net, parseNet))
	arg("allow-host", "", "HOST[:PORT,...]", "let connections to a host through; implies --net proxy", more(&r.AllowHosts, text))
	arg("deny-host", "", "HOST[:PORT,...]", "refuse connections to a host, whatever is allowed", more(&r.DenyHosts, text))
	arg("publish", "", "[ADDR:]HOSTPORT:PORT", "lead a port of the host to one of the sandbox's", more(&r.Publish, text))

	arg("memory", "", "SIZE", "memory limit, for example 2g", given(&r.Memory, profiles.ParseSize))
	arg("cpus", "", "N", "cpu limit, for example 1.5", given(&r.CPUs, profiles.ParseCPUs))
	arg("pids", "", "N", "limit on processes and threads", given(&r.Pids, profiles.ParseCount))
	arg("fsize", "", "SIZE", "limit on the size of a file that is written", given(&r.FileSize, profiles.ParseSize))
	arg("nofile", "", "N", "limit on open files", given(&r.OpenFiles, func(s string) (uint64, error) { n, err := profiles.ParseCount(s); return uint64(n), err }))
	arg("disk", "", "SIZE", "limit on private storage (/tmp, home)", given(&r.Disk, profiles.ParseSize))
	arg("timeout", "", "DURATION", "end the command after this time, for example 30s", given(&r.Timeout, profiles.ParseDuration))
	arg("kill-after", "", "DURATION", "kill what is left this long after the timeout's SIGTERM; 0s: at once", given(&r.KillAfter, profiles.ParseGrace))
	arg("max-output", "", "SIZE", "keep this much of each stream with --json (default 1m)", given(&r.MaxOutput, func(s string) (int64, error) { n, err := profiles.ParseSize(s); return int64(n), err }))

	arg("seccomp", "", "NAME|FILE", "system call filter: a built-in one or an OCI JSON file", into(&r.Seccomp, checked))
	arg("user", "", "UID[:GID]", "user id that the command sees itself run as", into(&r.User, parseUser))
	arg("hostname", "", "NAME", "host name in the sandbox", into(&r.Hostname, text))
	arg("selinux-label", "", "LABEL", "SELinux label of the command", into(&r.SELinux, text))
	arg("apparmor-profile", "", "NAME", "AppArmor profile of the command", into(&r.AppArmor, text))
	arg("require", "", "LAYER", "refuse to run without this layer", layers(&r.Require))
	arg("allow-degraded", "", "LAYER", "run without this layer where the host cannot give it", layers(&r.Degrade))
	arg("driver", "", "NAME", "what isolates (default: as the profile says, mostly native); auto: the first that can, here", into(&r.Driver, text))
	arg("image", "", "NAME", "container image, for drivers that use one", into(&r.Image, text))
	arg("fallback", "", "NAME[,NAME]", "drivers to try, in order, when the first cannot be had", func(s string) error {
		r.Fallback = append(r.Fallback, strings.Split(s, ",")...)
		return nil
	})
	yes(&r.Terminal, "tty", "t", "give the command a terminal of its own")
}

// runFlags defines the flags of a run.
func (o *options) runFlags(fs *pflag.FlagSet) {
	o.resultFD, o.given = -1, fs
	o.policyFlags(fs)
	o.gitFlags(fs)
	o.reportFlags(fs)
	fs.VarPF(&boolValue{&o.req.Verify}, "verify", "", "prove first that the boundary holds").NoOptDefVal = "true"
	fs.VarPF(&value{"ID", func(s string) error {
		o.session = s
		return session.CheckID(s)
	}}, "session", "", "run in this session; of the other flags, only those of sbxrun session exec can be given")
	o.auditFlag(fs)
	fs.BoolVar(&o.noPool, "no-pool", false, "build the sandbox, whatever a server (sbxrun serve) has ready")
	fs.BoolVar(&o.dryRun, "dry-run", false, "print what would run and start nothing")
	o.voiceFlags(fs)
}

func (o *options) auditFlag(fs *pflag.FlagSet) {
	fs.VarPF(&value{"FILE", into(&o.req.Audit, checked)}, "audit", "", "append what ran and what was refused to a file, a line of JSON each")
}

// execFlags defines the flags of a command in a session.
func (o *options) execFlags(fs *pflag.FlagSet) {
	o.policyFlags(fs, "cd", "env", "env-file", "clear-env", "timeout", "kill-after", "max-output", "memory", "cpus", "pids", "tty")
	fs.Lookup("cd").Usage = "working directory, in the session"
	fs.Lookup("memory").Usage = "memory limit of this command, within the session's"
	fs.Lookup("cpus").Usage = "cpu limit of this command, within the session's"
	fs.Lookup("pids").Usage = "limit on this command's processes and threads, within the session's"
	o.auditFlag(fs)
	o.reportFlags(fs)
	o.voiceFlags(fs)
}

// reportFlags defines the flags that say what to run and how to report it.
func (o *options) reportFlags(fs *pflag.FlagSet) {
	arg := func(name, short, kind, usage string, set func(string) error) {
		fs.VarPF(&value{kind, set}, name, short, usage)
	}
	arg("script", "c", "SCRIPT", "run a shell script (bash, else sh); what follows are its $0, $1, …", func(s string) error {
		o.script, o.hasScript = s, true
		return nil
	})
	fs.BoolP("interactive", "i", false, "pass stdin on, which is always done: for the habit of -it")
	fs.BoolVar(&o.json, "json", false, "capture the output and print one result object")
	arg("result-file", "", "FILE", "write the result object to a file", into(&o.resultFile, checked))
	arg("result-fd", "", "N", "write the result object to an open descriptor", func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return engine.Usage(strconv.Quote(s)+" is not a descriptor", "for example: sbxrun --result-fd 3 -- CMD 3>result.json")
		}
		o.resultFD = n
		return nil
	})
}

// voiceFlags defines the flags that say how sbxrun itself speaks.
func (o *options) voiceFlags(fs *pflag.FlagSet) {
	fs.BoolVarP(&say.quiet, "quiet", "q", false, "print nothing but errors and warnings")
	fs.BoolVarP(&say.verbose, "verbose", "v", false, "print what is done, on stderr")
	fs.VarPF(&value{"auto|always|never", oneOf(&say.color, "auto", "always", "never")}, "color", "", "colour sbxrun's own messages")
}

// boolValue is a flag that knows whether it was given.
type boolValue struct{ to **bool }

func (v *boolValue) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return engine.Usage(strconv.Quote(s)+" is neither true nor false", "say --verify or --verify=false")
	}
	*v.to = &b
	return nil
}
func (v *boolValue) String() string   { return "" }
func (v *boolValue) Type() string     { return "bool" }
func (v *boolValue) IsBoolFlag() bool { return true }

// into, given and more take a flag's argument: as a value, as one that can be left
// out, and as one of several.
func into[T any](to *T, parse func(string) (T, error)) func(string) error {
	return func(s string) (err error) {
		*to, err = parse(s)
		return err
	}
}

func given[T any](to **T, parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		v, err := parse(s)
		*to = &v
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

func checked(s string) (string, error) { return s, checkPath(s) }

func oneOf(to *string, names ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(names, s) {
			*to = s
			return nil
		}
		return engine.Usage(strconv.Quote(s)+" is not one of its values", "one of "+strings.Join(names, ", "))
	}
}

func checkPath(s string) error {
	switch {
	case s == "":
		return engine.Usage("the path is empty", "name a file or directory")
	case strings.ContainsAny(s, "\x00\n"):
		return engine.Usage(strconv.Quote(s)+" holds a newline or NUL byte", "rename the file: such paths are refused")
	}
	return nil
}

func checkEnv(s string) error {
	name, _, _ := strings.Cut(s, "=")
	if name == "" || strings.ContainsAny(s, "\x00") || strings.ContainsAny(name, " \t\n") {
		return engine.Usage(strconv.Quote(s)+" is not a variable", "want KEY=VALUE, or KEY to pass the caller's value")
	}
	return nil
}

// parseBind reads SRC:DST[:ro]. A colon in a path cannot be said: use --ro and
// --rw, which show a path in place.
func parseBind(s string) (profiles.Bind, error) {
	part := strings.Split(s, ":")
	ro := len(part) == 3 && part[2] == "ro"
	if len(part) < 2 || len(part) > 3 || len(part) == 3 && !ro && part[2] != "rw" {
		return profiles.Bind{}, engine.Usage(strconv.Quote(s)+" is not a bind", "want SRC:DST or SRC:DST:ro")
	}
	for _, p := range part[:2] {
		if err := checkPath(p); err != nil {
			return profiles.Bind{}, err
		}
	}
	return profiles.Bind{Source: part[0], Destination: part[1], ReadOnly: ro}, nil
}

// parseTmpfs reads PATH[:SIZE].
func parseTmpfs(s string) (profiles.Tmpfs, error) {
	path, size, err := profiles.ParseTmpfs(s)
	if err != nil {
		return profiles.Tmpfs{}, err
	}
	return profiles.Tmpfs{Path: path, Size: size}, checkPath(path)
}

// parseUser reads UID[:GID]; the group is the user's number unless given.
func parseUser(s string) (*profiles.User, error) {
	u, err := profiles.ParseUser(s)
	if err != nil {
		return nil, engine.Usage(strconv.Quote(s)+" is not a user", "want numbers, UID or UID:GID, for example 1000:1000")
	}
	return &u, nil
}

func parseNet(s string) (*policy.EgressMode, error) {
	m := new(policy.EgressMode)
	if m.UnmarshalText([]byte(s)) != nil {
		return nil, engine.Usage(strconv.Quote(s)+" is not a network mode", "none (loopback only), proxy (what --allow-host names) or host (not isolated)")
	}
	return m, nil
}

// maxNamed bounds a file that a flag names: a typing error can name a large one.
const maxNamed = 16 << 20

// readEnvFile reads lines KEY=VALUE. Empty lines and lines that begin with # are
// passed over; nothing is unquoted, as in docker run --env-file. A line KEY, which is
// the caller's value there, counts from a descriptor and from the configuration only:
// anywhere else a command of an earlier run can have written it, to be given a secret.
func readEnvFile(name string) ([]string, error) {
	kept := isDescriptor(name)
	if facts, err := engine.GatherFacts(); err == nil && !kept {
		if real, err := facts.Named(name, false); err == nil {
			kept = slices.ContainsFunc(facts.ConfigDirs, func(d string) bool { return strings.HasPrefix(real, d+"/") })
		}
	}
	data, err := ReadNamed(name, maxNamed)
	if err != nil {
		return nil, unnamed(name, err)
	}
	var env []string
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := checkEnv(line); err != nil {
			return nil, engine.Usage(name+":"+strconv.Itoa(n)+": "+err.Error(), driver.HintOf(err))
		}
		if !strings.Contains(line, "=") && !kept {
			return nil, engine.Usage(name+":"+strconv.Itoa(n)+": "+quote.Text(line)+" would pass the caller's value, and a command of an earlier run can have written this file",
				"--env "+quote.Text(line)+" passes it; a file may say so in the directory of sbxrun's configuration")

		}
		env = append(env, line)
	}
	return env, nil
}
