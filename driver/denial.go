package driver

import (
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/internal/quote"
)

// A Denial is something that the command tried and the policy refused.
type Denial struct {
	Operation Operation `json:"operation"`
	Call      string    `json:"call,omitempty"`    // the system call, where the guard was asked
	Target    string    `json:"target"`            // path, host, name of a system call or of a limit
	Rule      string    `json:"rule"`              // the rule that refused it
	Origin    string    `json:"origin,omitempty"`  // where the rule is from: "flag --ro", "preset strict", FILE:LINE
	Grant     Grant     `json:"grant,omitempty"`   // the least that would allow it; "" if nothing would, or should
	Reason    string    `json:"reason,omitempty"`  // in words, where the rule does not say it
	Count     uint64    `json:"count,omitempty"`   // how often; 0 is not known
	Process   *Asker    `json:"process,omitempty"` // that was refused first; nil if not known
}

// An Operation is what was tried.
type Operation = string

// The operations of denials.
const (
	OpRead    Operation = "read"
	OpWrite   Operation = "write" // change, make, rename or remove
	OpExec    Operation = "exec"
	OpConnect Operation = "connect" // to a host
	OpResolve Operation = "resolve" // the name of a host
	OpUnix    Operation = "unix"    // connect to a socket by its path
	OpSyscall Operation = "syscall"
	OpLimit   Operation = "limit"
)

// Rules, and a reason, that fronts tell from others.
const (
	RuleProtected = "protected path " // the pattern follows
	RuleNoNetwork = "no network"
	ReasonSecret  = "a secret, which nothing proposes to show"
)

// A Use is a path that a command used and was not refused.
type Use struct {
	Operation Operation
	Call      string // the system call
	Target    string // as the command named it, absolute and clean
	Leads     string // where that leads: the same, or past symbolic links
	Dir       bool
	Whole     bool // of a change: nothing is left of what was there before
}

// An Asker is a process of the sandbox.
type Asker struct {
	PID     int    `json:"pid"`               // as the sandbox numbers it
	Command string `json:"command,omitempty"` // its arguments, shortened and escaped
}

// Same reports whether two denials differ in no more than how often, and by whom, they
// were met.
func (d Denial) Same(e Denial) bool {
	e.Count, e.Process = d.Count, d.Process
	return d == e
}

// Others stands for denials that a list has no room for.
func Others(op Operation, n uint64) Denial {
	return Denial{Operation: op, Target: "others", Rule: "limit",
		Reason: strconv.FormatUint(n, 10) + " more refusals are not listed one by one"}
}

// A Grant is what would allow something: the name of a flag, which profiles have too,
// and its value. As text, and in JSON, it is that flag: "--ro /opt/tool".
type Grant string

// GrantOf is the grant of a flag, named without its dashes, with a value.
func GrantOf(flag, value string) Grant { return Grant("--" + flag + " " + value) }

// Parts are the flag's name without its dashes, and its value.
func (g Grant) Parts() (flag, value string) {
	flag, value, _ = strings.Cut(strings.TrimPrefix(string(g), "--"), " ")
	return flag, value
}

// Shell is the grant as it can be pasted into a shell, "" for none.
func (g Grant) Shell() string {
	if g == "" {
		return ""
	}
	flag, value := g.Parts()
	return "--" + flag + " " + quote.Shell(value)
}

// An Answer is what came of a question whether a denial is to be one.
type Answer uint8

// The answers.
const (
	Refuse      Answer = iota
	GrantOnce          // what was asked about goes on, and nothing else
	GrantAlways        // so does each that the grant allows, for as long as the sandbox is there
)

// String is the answer in a word.
func (a Answer) String() string {
	switch a {
	case GrantOnce:
		return "once"
	case GrantAlways:
		return "always"
	}
	return "no"
}
