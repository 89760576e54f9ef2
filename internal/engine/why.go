package engine

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/egress"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/seccomp"
)

// A Ruling is what sbxrun why says of one thing.
type Ruling struct {
	Kind   string                  `json:"kind"` // path, host, syscall
	Of     string                  `json:"of"`   // what was asked for, in full
	Answer string                  `json:"answer"`
	Rule   string                  `json:"rule"`
	Origin string                  `json:"origin,omitempty"`
	Reason string                  `json:"reason,omitempty"`
	Grants map[string]driver.Grant `json:"grants,omitempty"` // by what they allow: read, write, connect, call
}

// Why says what a policy allows of a path, a host or a system call, by which rule, and
// what would grant it. Paths begin at dir, and ~ is home.
func Why(what string, p *policy.Policy, home, dir string) (*Ruling, error) {
	if rest, ok := strings.CutPrefix(what, "~"); ok && (rest == "" || rest[0] == '/') {
		what = home + rest
	}
	path := what
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	_, err := os.Lstat(path)
	switch {
	case strings.Contains(what, "/") || what[0] == '.' || err == nil:
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		return whyPath(abs, p, home), nil
	case isCall(what):
		return whyCall(what, p)
	}
	return whyHost(what, p)
}

func whyPath(path string, p *policy.Policy, home string) *Ruling {
	at := path
	r := driver.RuleFor(p, at)
	if real, err := filepath.EvalSymlinks(at); err == nil && real != at && (r.Access&policy.Read != 0 || r.At == "") {
		at = real
		if r = driver.RuleFor(p, at); r.Access == 0 {
			r.Text += ", " + quote.Inside(at) + ", where it leads"
		}
	}
	out := &Ruling{Kind: "path", Of: path, Rule: r.Text, Origin: r.Origin, Grants: map[string]driver.Grant{}}
	switch {
	case r.Access&policy.Write != 0:
		out.Answer = "visible and writable"
		if pattern := protects(p, at, r.At); pattern != "" {
			out.Answer, out.Rule = "visible, and protected from changes", driver.RuleProtected+pattern
			out.Grants["write"] = driver.GrantOf("unprotect", pattern)
		}
	case r.Access&policy.Read != 0:
		out.Answer = "visible, read-only"
		out.grant(r, at, home, policy.Write)
	case r.Own():
		out.Answer = "the sandbox has its own"
	default:
		out.Answer = "not visible"
		// An empty one, or the way to what is shown.
		if at == "/" || r.At == at && !r.Hidden() || slices.ContainsFunc(p.Files, func(f policy.FileRule) bool { return f.Access != 0 && policy.Below(f.Path, at) }) {
			out.Answer = "the sandbox has its own"
		}
		out.grant(r, at, home, policy.Write)
		out.grant(r, at, home, policy.Read)
	}
	return out
}

// grant adds what would give a path, or why nothing is to.
func (w *Ruling) grant(r driver.PathRule, at, home string, want policy.Access) {
	name := "read"
	if want == policy.Write {
		name = "write"
	}
	if why := profiles.Withheld(at, home, want == policy.Write); why != "" {
		w.Reason = why // for reading, which comes last, before for writing
	} else if g := r.Grant(at, want); g != "" {
		w.Grants[name] = g
	}
}

// protects returns the pattern that protects a path below a writable place, "" for none.
func protects(p *policy.Policy, path, root string) string {
	rules, err := guard.NewRules(p.Protect)
	if err != nil || root == "" || slices.Contains(p.Unprotected, root) {
		return ""
	}
	if v, pattern := rules.Match([]byte(path), len(root), repositories{}); v == guard.Protected {
		return pattern
	}
	return ""
}

// repositories knows a repository of the host's by what Git looks for in one.
type repositories struct{}

func (repositories) Repository(dir []byte) bool {
	_, head := os.Lstat(string(dir) + "/HEAD")
	_, objects := os.Lstat(string(dir) + "/objects")
	return head == nil && objects == nil
}

func (repositories) Completes([]byte, string) bool { return false }

func whyHost(what string, p *policy.Policy) (*Ruling, error) {
	host, port := what, uint64(0)
	if h, text, err := net.SplitHostPort(what); err == nil {
		if port, err = strconv.ParseUint(text, 10, 16); err != nil || port == 0 {
			return nil, Usage(quote.Inside(text)+" is not a port", "1 to 65535")
		}
		host = h
	}
	if addr, err := policy.HostAddr(host); err == nil {
		host = addr.String()
	} else if host, err = policy.HostName(host); err != nil {
		return nil, Usage(quote.Inside(what)+" is no path that exists, no system call and no host", "write a path with a slash: ./"+what)
	}
	out := &Ruling{Kind: "host", Of: what, Grants: map[string]driver.Grant{}}
	rec, err := egress.Ask(p.Egress, host, uint16(port))
	switch {
	case err != nil:
		return nil, err
	case p.Egress.Mode == policy.EgressHost:
		out.Answer, out.Rule = "reachable", "the host's network"
		return out, nil
	case rec.Verdict == egress.Allow:
		out.Answer, out.Rule = "reachable", "allow "+rec.Rule
		return out, nil
	}
	out.Answer, out.Rule, out.Reason = "not reachable", rec.Rule, rec.Reason
	if p.Egress.Mode == policy.EgressNone {
		out.Rule = driver.RuleNoNetwork
	}
	if rec.Grant != "" {
		out.Grants["connect"] = driver.GrantOf("allow-host", rec.Grant)
	}
	return out, nil
}

// isCall reports whether a built-in filter knows a system call.
func isCall(name string) bool {
	s, err := seccomp.Spec("default")
	return err == nil && (answersOf(s, name) != nil)
}

// answersOf are what a profile does with a system call, "" for what it does by default
// alone.
func answersOf(s *specs.LinuxSeccomp, name string) (all []string) {
	for _, rule := range s.Syscalls {
		if !slices.Contains(rule.Names, name) {
			continue
		}
		answer := "refused"
		if rule.Action == specs.ActAllow {
			answer = "allowed"
		}
		if len(rule.Args) > 0 {
			answer += " with some arguments"
		}
		if !slices.Contains(all, answer) {
			all = append(all, answer)
		}
	}
	return all
}

func whyCall(name string, p *policy.Policy) (*Ruling, error) {
	out := &Ruling{Kind: "syscall", Of: name, Rule: "no filter", Answer: "allowed", Grants: map[string]driver.Grant{}}
	var s *specs.LinuxSeccomp
	if p.OCI.Linux != nil && p.OCI.Linux.Seccomp != nil {
		s, out.Rule = p.OCI.Linux.Seccomp, "system call filter of a file"
	} else if p.Seccomp != "" {
		var err error
		if s, err = seccomp.Spec(p.Seccomp); err != nil {
			return nil, err
		}
		out.Rule = "system call filter " + p.Seccomp
	}
	if s != nil {
		all := answersOf(s, name)
		if all == nil {
			all = []string{"refused"}
			if s.DefaultAction == specs.ActAllow {
				all[0] = "allowed"
			}
		}
		out.Answer = strings.Join(all, ", ")
	}
	if other, err := seccomp.Spec("default"); err == nil && out.Answer == "refused" && slices.Contains(answersOf(other, name), "allowed") {
		out.Grants["call"] = driver.GrantOf("seccomp", "default")
	}
	return out, nil
}
