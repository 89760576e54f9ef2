package profiles

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/policy"
)

// A Flag is a flag of a run that makes its policy. Its row in [Flags] and the row of
// its key are all that the command line, the variables, files, the schema, the manual
// pages and docs/cli.md know of a setting.
type Flag struct {
	Name, Short string
	Value       string // what its value is called, A|B for one of those; "" for a flag without one
	Usage       string

	key   key // that it sets
	how   how
	field func(*Request) any // a pointer to what it fills
}

// noKey is the key of a flag that no file and no variable can say: the first one, of
// which there is no flag.
const noKey = keyDescription

// how a flag's value gets from the request into the policy.
type how uint8

const (
	laid   how = iota // it is laid over the key's
	apart             // by who reads the request's field
	ofRuns            // it is laid, and not every command that makes a policy has the flag
)

// RunOnly reports whether not every command that makes a policy has the flag.
func (f *Flag) RunOnly() bool { return f.how == ofRuns }

// Flags are in the order of --help. They are plain data, as the keys are.
var Flags = [...]Flag{
	{"profile", "P", "NAME|FILE", "profile to run under (default strict)",
		keyProfile, apart, func(r *Request) any { return &r.Profile }},
	{"cd", "C", "DIR", "working directory and workspace (default: the current one)",
		noKey, laid, func(r *Request) any { return &r.Dir }},
	{"ro", "", "PATH", "show a host path, read-only", keyRead, apart, func(r *Request) any { return &r.ReadOnly }},
	{"rw", "", "PATH", "show a host path, writable", keyWrite, apart, func(r *Request) any { return &r.ReadWrite }},
	{"allow-unix", "", "PATH", "let a Unix socket of the host, or those in a directory, be connected to",
		keyUnix, apart, func(r *Request) any { return &r.Unix }},
	{"hide", "", "PATH", "hide a host path; beats --ro and --rw",
		keyHide, apart, func(r *Request) any { return &r.Hide }},
	{"unprotect", "", "PATTERN", "let a protected path be changed: .git/config, .vscode, …; all for every one",
		keyUnprotect, laid, func(r *Request) any { return &r.Unprotect }},
	{"bind", "", "SRC:DST[:ro]", "show a host path at another place",
		noKey, laid, func(r *Request) any { return &r.Binds }},
	{"tmpfs", "", "PATH[:SIZE]", "private, empty storage at a path",
		keyTmpfs, apart, func(r *Request) any { return &r.Tmpfs }},
	{"device", "", "PATH", "give access to a device node",
		keyDevices, laid, func(r *Request) any { return &r.Devices }},
	{"gpu", "", "", "give access to the host's GPUs, and show their drivers",
		keyGPU, laid, func(r *Request) any { return &r.GPU }},
	{"workspace", "", "bind|overlay|ro|none",
		"how the workspace is shown: writable; copy-on-write, see sbxrun diff; read-only; not at all",
		keyWorkspace, laid, func(r *Request) any { return &r.Workspace }},

	{"env", "e", "KEY[=VALUE]", "set a variable, or pass the caller's",
		keyEnvSet, apart, func(r *Request) any { return &r.Env }},
	{"env-file", "", "FILE", "read variables from a file, one KEY=VALUE a line", noKey, laid, nil},
	{"no-git", "", "", "do not show the repository that the workspace is a directory or a worktree of",
		keyGit, laid, func(r *Request) any { return &r.NoGit }},
	{"clear-env", "", "", "start from an empty environment", noKey, laid, func(r *Request) any { return &r.ClearEnv }},
	{"inherit-env", "", "", "pass the caller's whole environment, secrets included",
		keyEnvInherit, laid, func(r *Request) any { return &r.InheritEnv }},

	{"net", "", "none|proxy|host", "network: loopback only, the allowed hosts, or the host's own",
		keyNetMode, laid, func(r *Request) any { return &r.Net }},
	{"allow-host", "", "HOST[:PORT,...]", "let connections to a host through; implies --net proxy",
		keyNetAllow, laid, func(r *Request) any { return &r.AllowHosts }},
	{"deny-host", "", "HOST[:PORT,...]", "refuse connections to a host, whatever is allowed",
		keyNetDeny, laid, func(r *Request) any { return &r.DenyHosts }},
	{"publish", "", "[ADDR:]HOSTPORT:PORT", "lead a port of the host to one of the sandbox's",
		keyNetPublish, laid, func(r *Request) any { return &r.Publish }},

	{"memory", "", "SIZE", "memory limit, for example 2g", keyMemory, laid, func(r *Request) any { return &r.Memory }},
	{"cpus", "", "N", "cpu limit, for example 1.5", keyCPUs, laid, func(r *Request) any { return &r.CPUs }},
	{"pids", "", "N", "limit on processes and threads", keyPids, laid, func(r *Request) any { return &r.Pids }},
	{"fsize", "", "SIZE", "limit on the size of a file that is written",
		keyFileSize, laid, func(r *Request) any { return &r.FileSize }},
	{"nofile", "", "N", "limit on open files", keyOpenFiles, laid, func(r *Request) any { return &r.OpenFiles }},
	{"disk", "", "SIZE", "limit on private storage (/tmp, home)",
		keyDisk, laid, func(r *Request) any { return &r.Disk }},
	{"timeout", "", "DURATION", "end the command after this time, for example 30s",
		keyWallTime, laid, func(r *Request) any { return &r.Timeout }},
	{"kill-after", "", "DURATION", "kill what is left this long after the timeout's SIGTERM; 0s: at once",
		keyKillAfter, laid, func(r *Request) any { return &r.KillAfter }},
	{"max-output", "", "SIZE", "keep this much of each stream with --json (default 1m)",
		keyOutput, laid, func(r *Request) any { return &r.MaxOutput }},

	{"seccomp", "", "NAME|FILE", "system call filter: a built-in one or an OCI JSON file",
		keySeccomp, laid, func(r *Request) any { return &r.Seccomp }},
	{"user", "", "UID[:GID]", "user id that the command sees itself run as",
		keyUser, laid, func(r *Request) any { return &r.User }},
	{"hostname", "", "NAME", "host name in the sandbox",
		keyHostname, laid, func(r *Request) any { return &r.Hostname }},
	{"selinux-label", "", "LABEL", "SELinux label of the command",
		keySELinux, laid, func(r *Request) any { return &r.SELinux }},
	{"apparmor-profile", "", "NAME", "AppArmor profile of the command",
		keyAppArmor, laid, func(r *Request) any { return &r.AppArmor }},
	{"require", "", "LAYER", "refuse to run without this layer",
		keyRequire, apart, func(r *Request) any { return &r.Require }},
	{"allow-degraded", "", "LAYER", "run without this layer where the host cannot give it",
		keyDegrade, apart, func(r *Request) any { return &r.Degrade }},
	{"driver", "", "NAME", "what isolates (default: as the profile says, mostly native); auto: the first that can, here",
		keyDriver, laid, func(r *Request) any { return &r.Driver }},
	{"image", "", "NAME", "container image, for drivers that use one",
		keyImage, laid, func(r *Request) any { return &r.Image }},
	{"fallback", "", "NAME[,NAME]", "drivers to try, in order, when the first cannot be had",
		keyFallback, laid, func(r *Request) any { return &r.Fallback }},
	{"tty", "t", "", "give the command a terminal of its own",
		noKey, laid, func(r *Request) any { return &r.Terminal }},

	{"verify", "", "", "prove first that the boundary holds",
		keyVerify, ofRuns, func(r *Request) any { return &r.Verify }},
	{"audit", "", "FILE", "append what ran and what was refused to a file, a line of JSON each",
		keyAuditFile, ofRuns, func(r *Request) any { return &r.Audit }},
}

// Key is the key of a profile that the flag beats or adds to, "" if none is.
func (f *Flag) Key() string {
	if f.key == noKey {
		return ""
	}
	return keys[f.key].name
}

// Variable is the one that says the same, "" if none does.
func (f *Flag) Variable() string {
	if env := keys[f.key].env; env != "" {
		return envPrefix + env
	}
	return ""
}

// Set takes the text of the flag's value into a request.
func (f *Flag) Set(r *Request, s string) (err error) {
	is := func(kind string) bool { return strings.HasSuffix(f.Value, kind) }
	if slices.ContainsFunc([]string{"PATH", "FILE", "DIR"}, is) {
		if err := CheckPath(s); err != nil {
			return err
		}
	}
	switch to := f.field(r).(type) {
	case *string:
		if *to = s; f.key == keyWorkspace {
			err = OneOf(s, strings.Split(f.Value, "|"))
		}
	case *bool:
		*to, err = f.parseBool(s)
	case **bool:
		b, bad := f.parseBool(s)
		*to, err = &b, bad
	case **policy.EgressMode:
		if *to = new(policy.EgressMode); (*to).UnmarshalText([]byte(s)) != nil {
			err = wrong(s, "is not a network mode",
				"none (loopback only), proxy (what --allow-host names) or host (not isolated)")
		}
	case **User:
		u, bad := ParseUser(s)
		if *to = &u; bad != nil {
			err = wrong(s, "is not a user", "want numbers, UID or UID:GID, for example 1000:1000")
		}
	case **uint64, **int64, **float64, **time.Duration:
		return f.setNumber(to, s)
	default:
		return f.add(to, s)
	}
	return err
}

// setNumber takes a size, a count, a share of processors or a duration.
func (f *Flag) setNumber(to any, s string) error {
	v, err := scalar(f.key, s, "")
	switch to := to.(type) {
	case **uint64:
		*to = new(uint64(v.n))
	case **int64:
		*to = &v.n
	case **float64:
		*to = new(float64(v.n) / 1000)
	case **time.Duration:
		*to = (*time.Duration)(&v.n)
	}
	return err
}

// add takes one of several values.
func (f *Flag) add(to any, s string) (err error) {
	switch to := to.(type) {
	case *[]string:
		items := []string{s}
		switch f.key {
		case keyFallback:
			items = strings.Split(s, ",")
		case keyEnvSet:
			err = CheckVariable(s)
		}
		*to = append(*to, items...)
	case *[]Bind:
		b, bad := parseBind(s)
		*to, err = append(*to, b), bad
	case *[]Tmpfs:
		path, size, bad := ParseTmpfs(s)
		if err = bad; err == nil {
			err = CheckPath(path)
		}
		*to = append(*to, Tmpfs{Path: path, Size: size})
	case *policy.Layers:
		for name := range strings.SplitSeq(s, ",") {
			l, err := policy.ParseLayer(name)
			if err != nil {
				return wrong(name, "is not a layer", "one of "+strings.Join(policy.LayerNames(), ", "))
			}
			*to |= l
		}
	}
	return err
}

// said is what a field holds, as text or a number: "" and nil for nothing.
func said(field any) (text string, n *int64) {
	switch from := field.(type) {
	case *string:
		return *from, nil
	case **policy.EgressMode:
		if *from != nil {
			text = (*from).String()
		}
	case **User:
		if *from != nil {
			text = fmt.Sprintf("%d:%d", (*from).UID, (*from).GID)
		}
	case **uint64:
		if *from != nil {
			n = new(int64(**from))
		}
	case **int64:
		n = *from
	case **time.Duration:
		n = (*int64)(*from)
	case **float64:
		if c := *from; c != nil {
			if n = new(int64(-1)); *c >= 0 && *c <= 1<<16 {
				*n = milli(*c)
			}
		}
	}
	return text, n
}

// lay sets the flag's key to what a request says of it.
func (f *Flag) lay(to *profile, r *Request) error {
	if f.key == noKey || f.how == apart {
		return nil
	}
	v := value{origin: "flag --" + f.Name}
	var n *int64
	switch from := f.field(r).(type) {
	case *bool:
		if *from {
			to.setBool(f.key, !strings.HasPrefix(f.Name, "no-"), v.origin)
		}
	case **bool:
		if *from != nil {
			to.setBool(f.key, **from, v.origin)
		}
	case *[]string:
		to.add(f.key, v.origin, *from...)
	default:
		v.s, n = said(from)
	}
	switch {
	case n != nil && *n < 0 && f.key == keyCPUs:
		return &Error{Where: v.origin, What: "want a number from 0.01 up"}
	case n != nil && *n < 0:
		return &Error{Where: v.origin, What: "the value is negative"}
	case n != nil:
		v.n = *n
		to.values[f.key] = v
		return at(v.origin, checkValue(f.key, &v))
	case v.s != "":
		var err error
		to.values[f.key], err = parseScalar(f.key, v.s, v.origin)
		return at(v.origin, err)
	}
	return nil
}

// wrong is the error of a word that is not what it should be.
func wrong(s, is, fix string) error { return &Error{What: strconv.Quote(s) + " " + is, Fix: fix} }

// CheckPath reports a path that nothing can be granted by.
func CheckPath(s string) error {
	switch {
	case s == "":
		return &Error{What: "the path is empty", Fix: "name a file or directory"}
	case strings.ContainsAny(s, "\x00\n"):
		return wrong(s, "holds a newline or NUL byte", "rename the file: such paths are refused")
	}
	return nil
}

// CheckVariable reports what is neither KEY=VALUE nor KEY.
func CheckVariable(s string) error {
	name, _, _ := strings.Cut(s, "=")
	if name == "" || strings.ContainsAny(s, "\x00") || strings.ContainsAny(name, " \t\n") {
		return wrong(s, "is not a variable", "want KEY=VALUE, or KEY to pass the caller's value")
	}
	return nil
}

// OneOf reports a word that is not among those that there are.
func OneOf(s string, names []string) error {
	if slices.Contains(names, s) {
		return nil
	}
	return wrong(s, "is not one of its values", "one of "+strings.Join(names, ", "))
}

func (f *Flag) parseBool(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		err = wrong(s, "is neither true nor false", "say --"+f.Name+" or --"+f.Name+"=false")
	}
	return b, err
}

// parseBind reads SRC:DST[:ro]. A colon in a path cannot be said: use --ro and
// --rw, which show a path in place.
func parseBind(s string) (Bind, error) {
	part := strings.Split(s, ":")
	ro := len(part) == 3 && part[2] == "ro"
	if len(part) < 2 || len(part) > 3 || len(part) == 3 && !ro && part[2] != "rw" {
		return Bind{}, wrong(s, "is not a bind", "want SRC:DST or SRC:DST:ro")
	}
	if err := cmp.Or(CheckPath(part[0]), CheckPath(part[1])); err != nil {
		return Bind{}, err
	}
	return Bind{Source: part[0], Destination: part[1], ReadOnly: ro}, nil
}
