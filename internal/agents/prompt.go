package agents

import (
	"fmt"
	"strings"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// A Prompt is what a model is told of the sandbox that its commands run in.
type Prompt struct {
	Policy *policy.Policy

	// Outside says why the commands run on the host, without any of that; "" if they
	// do not.
	Outside string

	// Allowed and Denied are the lists of a command policy; both empty where none
	// is asked.
	Allowed, Denied []string
}

// mostListed bounds a list of paths or hosts: a prompt costs tokens in every turn.
const mostListed = 40

// String is a section of a system prompt, as Markdown.
func (p Prompt) String() string {
	var b strings.Builder
	line := func(f string, a ...any) { fmt.Fprintf(&b, f+"\n", a...) }
	line("# Sandbox")
	line("")
	if p.Outside != "" {
		line(
			"Your shell commands run on the host, WITHOUT a sandbox, because %s: with all that the person who started you can do.", p.Outside)
	} else {
		p.sandbox(line)
	}
	if len(p.Allowed)+len(p.Denied) > 0 {
		line("")
		line("## Commands")
		line("")
		line(
			"`execute_command` runs a script if it may call every command in it. `sbxrun command check SCRIPT` tells, and runs nothing.")
		line("")
		if len(p.Allowed) > 0 {
			line("- Allowed: %s.", codes(p.Allowed, len(p.Allowed)))
		}
		if len(p.Denied) > 0 {
			line("- Denied, whatever else is allowed: %s.", codes(p.Denied, len(p.Denied)))
		}
	}
	return b.String()
}

// sandbox is what the policy makes of them.
func (p Prompt) sandbox(line func(string, ...any)) {
	line(
		"Your shell commands run in a sandbox of sbxrun, under the profile %s. The operating system enforces it. No command, argument or file can loosen it;", code(p.Policy.Profile))
	line(
		"only the person who started you can. A refusal is final: do not look for a way around it, but say what you need and why.")
	line("")
	line("## Files")
	line("")
	p.files(line)
	line("")
	line("## Network")
	line("")
	p.network(line)
	line("")
	line("## Limits")
	line("")
	p.limits(line)
}

func (p Prompt) files(line func(string, ...any)) {
	var write, read []string
	for _, r := range p.Policy.Files {
		switch {
		case r.Access&policy.Write != 0:
			write = append(write, r.Path)
		case r.Access != 0 && !strings.HasPrefix(r.Path, "/etc/"):
			read = append(read, r.Path)
		}
	}
	var private []string
	for _, m := range p.Policy.OCI.Mounts {
		if m.Type == "tmpfs" && m.Destination != "/" && m.Destination != "/dev" {
			private = append(private, m.Destination)
		}
	}
	if len(write) > 0 {
		line("- You can write to %s.", codes(write, mostListed))
	} else {
		line("- You can write to no file of the host.")
	}
	if len(private) > 0 {
		line("- %s are empty and private, and are thrown away. Between two commands they persist only in a session.",
			codes(private, mostListed))
	}
	if len(read) > 0 {
		line("- You can read %s, without the secrets in them.", codes(read, mostListed))
	}
	line("- Everything else does not exist for you (\"No such file or directory\").")
	if n := len(p.Policy.Protect); n > 0 {
		line(
			"- Files that other programs obey cannot be changed, or made, in what you can write of the host (\"Permission denied\"), only in private directories: %s.", codes(p.Policy.Protect, 12))
	}
}

func (p Prompt) network(line func(string, ...any)) {
	e := &p.Policy.Egress
	switch e.Mode {
	case policy.EgressNone:
		line("There is none but loopback, which is the sandbox's own: downloads and package installation fail.")
		return
	case policy.EgressHost:
		line("The host's own network, without restriction.")
		return
	}
	hosts := func(rules []policy.EgressRule) []string {
		var list []string
		for _, r := range rules {
			list = append(list, r.String())
		}
		return list
	}
	if len(e.Allow) == 0 {
		line("- No host can be reached.")
	} else {
		line("- These hosts can be reached, by name, and no others: %s.", codes(hosts(e.Allow), mostListed))
	}
	if len(e.Deny) > 0 {
		line("- Never: %s.", codes(hosts(e.Deny), mostListed))
	}
	if e.RequestsPerMinute > 0 {
		line("- At most %d requests to a host in a minute.", e.RequestsPerMinute)
	}
	line("- Loopback is the sandbox's own: services of the host are not there.")
}

func (p Prompt) limits(line func(string, ...any)) {
	pol := p.Policy
	some := false
	say := func(f string, a ...any) { some = true; line("- "+f+".", a...) }
	if pol.Limits.WallTime > 0 {
		say("A command is ended after %s", profiles.FormatDuration(pol.Limits.WallTime))
	}
	if linux := pol.OCI.Linux; linux != nil {
		l := policy.LimitsOf(linux.Resources)
		if l.Memory > 0 {
			say("Memory: %s; what needs more is killed", profiles.FormatSize(uint64(l.Memory)))
		}
		if l.CPUs > 0 {
			say("Processors: %.4g", l.CPUs)
		}
		if l.Pids > 0 {
			say("Processes and threads: %d", l.Pids)
		}
	}
	if pol.Scratch.Bytes > 0 {
		say("Private storage: %s", profiles.FormatSize(pol.Scratch.Bytes))
	}
	if !some {
		line("There are none.")
	}
}

// codes lists the first so many of a list, and says how many there are more.
func codes(list []string, most int) string {
	var b strings.Builder
	for i, s := range list {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(list)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(code(s))
	}
	return b.String()
}

// code is a name as Markdown's code, whatever it holds: a path of the project's
// cannot add a line to what the model is told.
func code(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '`' || quote.Hidden(r) {
			return '\uFFFD'
		}
		return r
	}, s)
	return "`" + s + "`"
}
