package driver

import (
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// A PathRule is what of a policy decides about a path of the host.
type PathRule struct {
	Access policy.Access // to what the host has there
	Text   string        // "read-only: /usr"
	Origin string        // as in [Denial]
	At     string        // the place that the rule is about, "" for none

	Copy bool // changes of what the host has there are kept apart, until somebody applies them
	Lost bool // what is changed there is the run's own, and ends with it

	own   bool   // what is there is sbxrun's own, or hidden: nothing grants it
	bound string // SRC:DST of what is shown at another place
}

func ruleOf(m *specs.Mount) PathRule {
	r := PathRule{Text: "sbxrun's own: " + m.Destination, At: m.Destination, own: true}
	switch {
	case m.Type == "tmpfs" && m.Destination != "/dev":
		r.Text, r.own = "private storage: "+m.Destination, false
	case m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind"):
		r.Text, r.own, r.bound = "read-only: "+m.Destination, false, m.Source+":"+m.Destination
		if !slices.Contains(m.Options, "ro") {
			r.Text = "writable: " + m.Destination
		}
	}
	return r
}

// RuleFor returns the rule that decides about a path, which is absolute and clean: the
// longest that it lies below, as mounts cover each other.
func RuleFor(p *policy.Policy, at string) PathRule {
	r, best := PathRule{Text: "not shown"}, -1
	for i := range p.Files {
		f := &p.Files[i]
		if !policy.Below(at, f.Path) || len(f.Path) < best || f.Path == "/" && policy.Below(at, "/sys") {
			continue // of the whole host, the kernel's files are left out
		}
		best = len(f.Path)
		r = PathRule{Access: f.Access, Origin: f.Origin, At: f.Path, own: f.Access == policy.Hide,
			Copy: f.Overlay, Lost: f.Discard && f.Access&policy.Write == 0}
		switch {
		case f.Access == policy.Hide:
			r.Text = "hidden: " + f.Path
		case f.Access&policy.Write == 0:
			r.Text = "read-only: " + f.Path
		default:
			r.Text = "writable: " + f.Path
		}
	}
	for i := range p.OCI.Mounts {
		m := &p.OCI.Mounts[i]
		if !policy.Below(at, m.Destination) || len(m.Destination) <= best {
			continue
		}
		best = len(m.Destination)
		r = ruleOf(m)
	}
	for i := range p.Synthetic {
		if at == p.Synthetic[i].Path {
			r = PathRule{Text: "made by sbxrun: " + at, At: at, own: true}
		}
	}
	for i := range p.Hidden {
		h := &p.Hidden[i]
		named := func(name string) bool { ok, _ := path.Match(h.Path, name); return ok }
		if r.Access == 0 && r.bound == "" && !r.own && (policy.Below(at, h.Path) ||
			slices.ContainsFunc(strings.Split(at, "/"), named)) {
			r = PathRule{Text: "hidden: " + h.Path, At: h.Path, Origin: h.Origin, own: true}
		}
	}
	return r
}

// Own reports whether what is there is sbxrun's own.
func (r PathRule) Own() bool { return r.own && !r.Hidden() }

// Hidden reports whether somebody has asked for what is there to be hidden.
func (r PathRule) Hidden() bool { return r.own && r.Text == "hidden: "+r.At }

// Bound reports whether what is there is the host's from another place.
func (r PathRule) Bound() bool { return r.bound != "" }

// Grant is the least that gives what the rule does not give of a path, "" if nothing
// would, or should.
func (r PathRule) Grant(at string, want policy.Access) Grant {
	switch {
	case at == "/" || quote.Escape(at) != at:
		return ""
	case policy.Below(at, "/dev") && want&policy.Write == 0 && r.Access == 0:
		return GrantOf("device", at)
	case r.own:
		return ""
	case r.bound != "":
		return GrantOf("bind", r.bound)
	case want&policy.Write != 0:
		return GrantOf("rw", at)
	}
	return GrantOf("ro", at)
}

// Explain completes a denial about a path by the policy's rule for it. Narrow is what is
// to be granted: the path, or its directory if a name in that was to be made. Leads is
// where that leads on the host, as far as it is known. What is withheld is not granted,
// nor what the user could not have on the host either.
func (d *Denial) Explain(p *policy.Policy, narrow, leads string, want policy.Access, withheld Withheld,
	may func(path string) bool) {
	r := RuleFor(p, d.Target)
	if want == policy.Read && narrow != d.Target {
		r = RuleFor(p, narrow)
		r.Text += ", " + narrow + ", where it leads"
	}
	d.Rule, d.Origin = r.Text, r.Origin
	narrow = path.Clean(narrow)
	switch why := withheld.why(d.Target, narrow, leads, want); {
	case why != "":
		d.Reason = why
	case !may(narrow):
		d.Reason = "this user may not do it on the host either"
	default:
		d.Grant = r.Grant(narrow, want)
	}
}

// Withheld says why nothing is to propose a grant of a path, "" if something may. Nil
// withholds nothing.
type Withheld func(path string, write bool) string

// why is of what was asked for and of what would be granted, wherever that leads.
func (w Withheld) why(target, narrow, leads string, want policy.Access) string {
	if w == nil {
		return ""
	}
	write := want&policy.Write != 0
	if why := w(narrow, write); why != "" {
		return why
	}
	if leads != "" && leads != narrow {
		if why := w(leads, write); why != "" {
			return why
		}
	}
	if why := w(target, false); why == ReasonSecret {
		return why
	}
	return ""
}

// NewAsker describes a process by its arguments, with NULs between.
func NewAsker(pid int, arguments string) *Asker {
	if pid == 0 {
		return nil
	}
	b := []byte(arguments)
	for i := range b {
		if b[i] == 0 {
			b[i] = ' '
		}
	}
	for len(b) > 0 && b[len(b)-1] == ' ' {
		b = b[:len(b)-1]
	}
	return &Asker{PID: pid, Command: quote.Line(string(b))}
}
