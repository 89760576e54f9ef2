package engine

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/egress"
	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
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
// what would grant it. Paths begin at dir, and ~ is the home.
func Why(what string, p *policy.Policy, f *Facts, dir string) (*Ruling, error) {
	if rest, ok := strings.CutPrefix(what, "~"); ok && (rest == "" || rest[0] == '/') {
		what = f.Home + rest
	}
	path := what
	if dir != "" && !filepath.IsAbs(path) {
		path = dir + "/" + path
	}
	_, err := os.Lstat(path)
	switch {
	case strings.Contains(what, "/") || what[0] == '.' || err == nil:
		if !filepath.IsAbs(path) {
			cwd, err := WorkingDirectory()
			if err != nil {
				return nil, err
			}
			path = cwd + "/" + path
		}
		return whyPath(path, p, f.Withheld()), nil
	case isCall(what):
		return whyCall(what, p)
	}
	return whyHost(what, p)
}

// leads is where a path leads in the sandbox: of the host's symbolic links those are
// followed that the sandbox shows, or that lie on the way to what it shows.
func leads(path string, p *policy.Policy) string {
	at, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		to, err := os.Readlink(next)
		r := driver.RuleFor(p, next)
		if err != nil || links == 40 || r.Access&policy.Read == 0 && (r.At != "" || !onTheWay(next, p)) {
			at = next
			continue
		}
		links++
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return at
}

// leadsOnHost is where a path leads on the host, as far as it is there.
func leadsOnHost(path string) string {
	for up, rest := path, ""; up != "/"; up, rest = filepath.Dir(up), filepath.Join(filepath.Base(up), rest) {
		if real, err := filepath.EvalSymlinks(up); err == nil {
			return filepath.Join(real, rest)
		}
	}
	return path
}

// onTheWay reports whether a path leads to what the sandbox shows.
func onTheWay(path string, p *policy.Policy) bool {
	return slices.ContainsFunc(p.Files,
		func(f policy.FileRule) bool { return f.Access != 0 && policy.Below(f.Path, path) }) ||
		slices.ContainsFunc(p.OCI.Mounts, func(m specs.Mount) bool { return policy.Below(m.Destination, path) })
}

func whyPath(path string, p *policy.Policy, withheld driver.Withheld) *Ruling {
	of, at := filepath.Clean(path), leads(path, p)
	r := driver.RuleFor(p, at)
	if at != of && r.Access == 0 {
		r.Text += ", " + quote.Inside(at) + ", where it leads"
	}
	out := &Ruling{Kind: "path", Of: path, Rule: r.Text, Origin: r.Origin, Grants: map[string]driver.Grant{}}
	var missing policy.Access
	switch {
	case r.Copy:
		out.Answer = "visible, and changes are kept apart"
	case r.Access&policy.Write != 0:
		out.Answer = "visible and writable"
		if pattern := protects(p, at, r.At); strings.HasSuffix(pattern, "/") {
			out.Answer, out.Rule = "visible and writable, and kept in its place", driver.RuleProtected+pattern
		} else if pattern != "" {
			out.Answer, out.Rule = "visible, and protected from changes", driver.RuleProtected+pattern
			out.Grants["write"] = driver.GrantOf("unprotect", pattern)
		}
	case r.Lost:
		out.Answer, missing = "visible, and changes are thrown away", policy.Write
	case r.Access&policy.Read != 0:
		out.Answer, missing = "visible, read-only", policy.Write
	case p.OCI.Linux != nil && slices.ContainsFunc(p.OCI.Linux.Devices,
		func(d specs.LinuxDevice) bool { return d.Path == at }):
		out.Answer, out.Rule = "visible and writable", "device: "+at
	case r.At == "/dev" && at != "/dev" && !slices.Contains(ownDevices, at):
		out.Answer, missing = "not visible", policy.ReadWrite
	case r.Own(), r.Bound():
		out.Answer = "the sandbox has its own"
	default:
		out.Answer, missing = "not visible", policy.ReadWrite
		// An empty one, or the way to what is shown.
		if at == "/" || r.At == at && !r.Hidden() || onTheWay(at, p) {
			out.Answer = "the sandbox has its own"
		}
	}
	if r.Access&policy.Read != 0 && !r.Bound() {
		whySocket(out, at, p, r.Copy || r.Lost, withheld(at, false) == "")
	}
	for want, name := range map[policy.Access]string{policy.Read: "read", policy.Write: "write"} {
		if missing&want == 0 {
			continue
		}
		why := withheld(at, want == policy.Write)
		if why == "" { // a grant follows the host's links
			why = withheld(leadsOnHost(at), want == policy.Write)
		}
		if why != "" {
			if want == policy.Read || out.Reason == "" {
				out.Reason = why
			}
		} else if g := r.Grant(at, want); g != "" {
			out.Grants[name] = g
		}
	}
	return out
}

// whySocket says of a Unix socket that is shown whether it can be connected to.
func whySocket(out *Ruling, at string, p *policy.Policy, copied, proposed bool) {
	info, err := os.Lstat(at)
	switch {
	case err != nil || info.Mode()&os.ModeSocket == 0:
	case copied:
		out.Answer += "; a socket, which does not work in a copy"
	case p.Connects(at):
		out.Answer += "; a socket that can be connected to"
	default:
		out.Answer += "; a socket that cannot be connected to"
		if runtime.GOOS == "linux" {
			out.Answer += ", from Linux 7.1 on with the drivers native and landlock"
		}
		if proposed {
			out.Grants["connect"] = driver.GrantOf("allow-unix", at)
		}
	}
}

// ownDevices is what the sandbox's own /dev has.
var ownDevices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts",
	"/dev/ptmx", "/dev/shm", "/dev/mqueue",
	"/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"}

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
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is4In6() {
		host = addr.Unmap().String() // as a connection is judged
	}
	if addr, err := policy.HostAddr(host); err == nil {
		host = addr.String()
	} else if host, err = policy.HostName(host); err != nil {
		return nil, Usage(quote.Inside(what)+" is no path that exists, no system call and no host",
			"write a path with a slash: ./"+what)
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
	if out.Answer != "refused" && guarded(p) && slices.Contains(guard.Missing, name) {
		out.Answer, out.Rule, out.Reason = "refused", "protected paths",
			"the supervisor, which makes the calls that write by path, does not know this one"
	}
	if other, err := seccomp.Spec("default"); out.Reason == "" && err == nil && out.Answer == "refused" &&
		slices.Contains(answersOf(other, name), "allowed") {
		out.Grants["call"] = driver.GrantOf("seccomp", "default")
	}
	return out, nil
}

// guarded reports whether calls that write by path are made for the command.
func guarded(p *policy.Policy) bool {
	return len(p.Protect) > 0 && slices.ContainsFunc(p.Files, func(f policy.FileRule) bool {
		return (f.Access&policy.Write != 0 || f.Discard) && !slices.Contains(p.Unprotected, f.Path)
	})
}
