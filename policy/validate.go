package policy

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// An InvalidError says which value of a policy is wrong and what it may be.
type InvalidError struct {
	Field string // dotted name of the field
	Value string
	Want  string // what would be right, completing "want …"
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: invalid value %q: want %s", e.Field, e.Value, e.Want)
}

// Validate reports the first value that no driver could honour. It knows
// nothing of the host: that a path exists is found out when it is mounted.
func (p *Policy) Validate() error {
	if p.OCI == nil {
		return CheckProcess(nil)
	}
	if err := CheckProcess(p.OCI.Process); err != nil {
		return err
	}
	if err := p.validateFiles(); err != nil {
		return err
	}
	if len(p.Protect) > MaxProtect {
		return &InvalidError{Field: "protect", Value: fmt.Sprint(len(p.Protect)),
			Want: fmt.Sprintf("no more than %d patterns", MaxProtect)}
	}
	for _, pattern := range p.Protect {
		if err := CheckProtect(pattern); err != nil {
			return err
		}
	}
	if err := p.validateMounts(); err != nil {
		return err
	}
	if p.Seccomp != "" && p.OCI.Linux != nil && p.OCI.Linux.Seccomp != nil {
		return &InvalidError{Field: "seccomp", Value: p.Seccomp,
			Want: "either a built-in filter or one of its own, not both"}
	}
	if err := p.Egress.Validate(); err != nil {
		return err
	}
	if err := p.validatePublish(); err != nil {
		return err
	}
	return p.Limits.validate()
}

func (l *Limits) validate() error {
	if l.WallTime < 0 || l.KillAfter < 0 {
		return &InvalidError{Field: "limits.wall_time", Value: l.WallTime.String(), Want: "a positive duration"}
	}
	if l.Output < 0 {
		return &InvalidError{Field: "limits.output", Value: fmt.Sprint(l.Output), Want: "a positive size"}
	}
	return nil
}

func (p *Policy) validateFiles() error {
	overlay := ""
	for _, r := range p.Files {
		if err := cleanPath("files", r.Path); err != nil {
			return err
		}
		if r.Overlay {
			if r.Access&Write == 0 || r.Access&Read == 0 {
				return &InvalidError{Field: "files." + r.Path + ".overlay", Value: r.Access.String(),
					Want: "access to read and write"}
			}
			if overlay != "" && overlay != r.Path {
				return &InvalidError{Field: "files." + r.Path + ".overlay", Value: "true",
					Want: "no more than one, and " + overlay + " is"}
			}
			overlay = r.Path
		}
		if r.Access > All {
			return &InvalidError{Field: "files." + r.Path, Value: fmt.Sprint(uint8(r.Access)),
				Want: "a set of read, write and execute"}
		}
		if r.Access&Write != 0 && r.Path == "/" {
			return &InvalidError{Field: "files", Value: "/",
				Want: "a directory below / (the whole file system is never writable)"}
		}
	}
	for _, dir := range p.Unix {
		if err := cleanPath("unix", dir); err != nil {
			return err
		}
	}
	return nil
}

func (p *Policy) validateMounts() error {
	for _, f := range p.Synthetic {
		if err := cleanPath("synthetic", f.Path); err != nil {
			return err
		}
		if f.Path == "/" || f.Mode&^0o777 != 0 {
			return &InvalidError{Field: "synthetic." + f.Path, Value: fmt.Sprintf("%#o", f.Mode),
				Want: "a file below / with permission bits only"}
		}
	}
	for _, m := range p.OCI.Mounts {
		if err := cleanPath("mounts", m.Destination); err != nil {
			return err
		}
		if m.Destination == "/" {
			return &InvalidError{Field: "mounts", Value: "/", Want: "a destination below /"}
		}
	}
	return nil
}

func (p *Policy) validatePublish() error {
	for _, pub := range p.Egress.Publish {
		if _, err := netip.ParseAddr(pub.Address); err != nil || pub.HostPort == 0 || pub.Port == 0 {
			return &InvalidError{Field: "egress.publish",
				Value: fmt.Sprintf("%s:%d:%d", pub.Address, pub.HostPort, pub.Port), Want: "an address and two ports"}
		}
		if p.Egress.Mode == EgressHost {
			return &InvalidError{Field: "egress.publish", Value: fmt.Sprint(pub.Port),
				Want: "a network of the sandbox's own: on the host's every port is published"}
		}
	}
	return nil
}

// CheckProcess reports what of a command is not valid, whatever the sandbox is.
func CheckProcess(proc *specs.Process) error {
	if proc == nil || len(proc.Args) == 0 {
		return &InvalidError{Field: "command", Value: "", Want: "a command to run"}
	}
	for _, a := range proc.Args {
		if strings.ContainsRune(a, 0) {
			return &InvalidError{Field: "command", Value: a, Want: "arguments without NUL bytes"}
		}
	}
	for _, e := range proc.Env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.ContainsRune(e, 0) {
			return &InvalidError{Field: "env", Value: e, Want: "KEY=VALUE without NUL bytes"}
		}
	}
	return cleanPath("cwd", proc.Cwd)
}

func cleanPath(field, p string) error {
	switch {
	case !path.IsAbs(p) || path.Clean(p) != p:
		return &InvalidError{Field: field, Value: p, Want: "an absolute path without . or .."}
	case strings.IndexByte(p, 0) >= 0, strings.IndexByte(p, '\n') >= 0:
		return &InvalidError{Field: field, Value: p, Want: "a path without NUL or newline"}
	}
	return nil
}

// Sort orders rules for lowering: a rule comes before every rule for a path
// below its own, so that the more specific one is applied last and wins. Rules
// for one path are merged into one: hiding beats every grant, else the grants
// add up, and a rule that any source requires is required. The result does not
// depend on the order in which the rules were given.
func Sort(rules []FileRule) []FileRule {
	out := slices.Clone(rules)
	slices.SortStableFunc(out, func(a, b FileRule) int {
		if c := ComparePaths(a.Path, b.Path); c != 0 {
			return c
		}
		// Equal paths in a fixed order too: the merged Origin must not
		// depend on the input's order either.
		if a.Access != b.Access {
			return int(a.Access) - int(b.Access)
		}
		return strings.Compare(a.Origin, b.Origin)
	})
	merged := out[:0]
	for _, r := range out {
		n := len(merged)
		if n == 0 || merged[n-1].Path != r.Path {
			merged = append(merged, r)
			continue
		}
		last := &merged[n-1]
		last.Optional = last.Optional && r.Optional
		if last.Access == Hide {
			continue
		}
		last.Access |= r.Access
		last.Overlay = last.Overlay || r.Overlay
		last.Discard = last.Discard || r.Discard
		last.Origin = r.Origin
	}
	return merged
}

// ComparePaths orders paths so that a directory comes right before what it
// holds: by element, not by byte ("/a/b" before "/a-b").
func ComparePaths(a, b string) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		switch {
		case a[i] == b[i]:
		case a[i] == '/': // the shorter element is a prefix of the longer
			return -1
		case b[i] == '/':
			return 1
		case a[i] < b[i]:
			return -1
		default:
			return 1
		}
	}
	// "/" is above everything, though "/a" does not begin with "//".
	return len(a) - len(b)
}
