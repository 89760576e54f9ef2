package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/egress"
	"github.com/sbxrun/sbxrun/internal/learn"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// Learning is a run from which a profile is made.
type Learning struct {
	Run *profiles.Resolved // what it runs under
	*learn.Collector

	base  *policy.Policy // of the profile that is extended
	name  string         // that profile
	facts *Facts
}

// Learn makes a run whose command sees the host read-only but for secrets, changes copies,
// and has the network that the request says: hosts that it does not allow are noted. The
// profile extends the request's.
func Learn(req *profiles.Request, f *Facts) (*Learning, error) {
	name := req.Profile
	if name == "" {
		name = "strict"
	}
	base, err := Resolve(&profiles.Request{Command: req.Command, Profile: name, Dir: req.Dir}, f)
	if err != nil {
		return nil, err
	}
	if !base.Isolated {
		return nil, Usage("the profile "+name+" isolates nothing: there is nothing to learn", "name another with --profile")
	}
	asked := *req
	asked.Workspace = "overlay"
	user, err := Resolve(&asked, f)
	if err != nil {
		return nil, err
	}
	if user.Policy.Egress.Mode == policy.EgressNone && req.Net == nil {
		proxy := policy.EgressProxy
		asked.Net = &proxy
		if user, err = Resolve(&asked, f); err != nil {
			return nil, err
		}
	}
	asked.Profile, asked.Net, asked.AllowHosts, asked.DenyHosts = "development", nil, nil, nil
	open, err := Resolve(&asked, f)
	if err != nil {
		return nil, err
	}
	p := open.Policy
	p.Profile, p.Protect, p.Egress, p.Seccomp = user.Policy.Profile, nil, user.Policy.Egress, user.Policy.Seccomp
	p.OCI.Linux.Seccomp = user.Policy.OCI.Linux.Seccomp
	p.Egress.LogRequests = true
	if variable(p.OCI.Process, "HOME") == variable(user.Policy.OCI.Process, "HOME") {
		p.OCI.Process.Env = user.Policy.OCI.Process.Env
	}
	if home, err := filepath.EvalSymlinks(f.Home); err == nil {
		p.Files = policy.Sort(append(p.Files, policy.FileRule{Path: home, Access: policy.ReadExec, Discard: true,
			Optional: true, Origin: "learn"}))
	}
	return &Learning{Run: open, Collector: learn.NewCollector(p, base.Policy), base: base.Policy, name: name,
		facts: f}, nil
}

func variable(p *specs.Process, name string) string {
	for _, kv := range p.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// Found is what the run showed.
func (l *Learning) Found(res *driver.Result) *learn.Found {
	home, _ := filepath.EvalSymlinks(l.facts.Home)
	f := l.Propose(&learnHost{l.facts, home}, home, l.Run.Workspace.Path)
	l.network(f, res)
	for i := range res.Denials {
		d := &res.Denials[i]
		switch d.Operation {
		case driver.OpSyscall:
			f.Left = append(f.Left, learn.Line{Item: d.Target, Comment: "a system call" + grantable(d)})
		case driver.OpUnix:
			f.Left = append(f.Left, learn.Line{Item: quote.Line(d.Target), Comment: "a socket, connected to" + whose(d)})
		case driver.OpRead, driver.OpExec:
			if d.Reason == driver.ReasonSecret && Used(d) {
				f.Left = append(f.Left, learn.Line{Item: quote.Line(d.Target), Comment: d.Reason + whose(d)})
			}
		}
	}
	l.limits(f, res)
	return f
}

// Used reports whether a command was refused more than to look whether something is there.
func Used(d *driver.Denial) bool { return !learn.Looks(d.Call) }

func whose(d *driver.Denial) string {
	if d.Process == nil || d.Process.Command == "" {
		return ""
	}
	return ", by " + filepath.Base(strings.Fields(d.Process.Command)[0])
}

func grantable(d *driver.Denial) string {
	if d.Grant == "" {
		return whose(d)
	}
	return "; " + d.Grant.Shell() + " would allow it" + whose(d)
}

// network has the hosts that were reached and that the base does not allow, and those that
// were refused.
func (l *Learning) network(f *learn.Found, res *driver.Result) {
	n := res.Network
	if n == nil {
		return
	}
	reached := map[string]uint64{}
	for _, q := range n.Log {
		if q.Verdict != "allow" || q.Route == "dns" {
			continue
		}
		host, port, ok := cutPort(q.Target)
		if ok && !l.allows(host, port) {
			reached[quote.Line(q.Target)]++
		}
	}
	for _, target := range sortedKeys(reached) {
		times := "connections: " + strconv.FormatUint(reached[target], 10)
		f.Hosts = append(f.Hosts, learn.Line{Item: target, Comment: times})
	}
	for i := range res.Denials {
		if d := &res.Denials[i]; d.Operation == driver.OpConnect || d.Operation == driver.OpResolve {
			f.Left = append(f.Left, learn.Line{Item: quote.Line(d.Target), Comment: "a host, refused" + grantable(d)})
		}
	}
	if n.LogDropped > 0 {
		f.Left = append(f.Left, learn.Line{Item: "hosts",
			Comment: strconv.FormatUint(n.LogDropped, 10) + " requests were not recorded"})
	}
}

func cutPort(target string) (host string, port uint16, ok bool) {
	i := strings.LastIndexByte(target, ':')
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseUint(target[i+1:], 10, 16)
	return strings.Trim(target[:i], "[]"), uint16(n), err == nil
}

// allows reports whether the base lets a connection through.
func (l *Learning) allows(host string, port uint16) bool {
	rec, err := egress.Ask(l.base.Egress, host, port)
	return err == nil && rec.Verdict == egress.Allow
}

func sortedKeys(m map[string]uint64) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// limits are raised where the run used three quarters of what the base gives.
func (l *Learning) limits(f *learn.Found, res *driver.Result) {
	u, r := res.Usage, policy.LimitsOf(l.base.OCI.Linux.Resources)
	took := time.Duration(res.DurationMS * float64(time.Millisecond))
	f.Peaks = "it used " + strconv.FormatUint(u.MemoryPeakBytes>>20, 10) + " MiB, " +
		strconv.FormatUint(u.PidsPeak, 10) + " processes and " + took.Round(time.Second/10).String()
	if r.Memory > 0 && u.MemoryPeakBytes > uint64(r.Memory)/4*3 {
		f.Memory = (2*u.MemoryPeakBytes + 255<<20) &^ (256<<20 - 1)
	}
	if r.Pids > 0 && u.PidsPeak > uint64(r.Pids)/4*3 {
		f.Pids = int64(2 * u.PidsPeak)
	}
	if w := l.base.Limits.WallTime; w > 0 && took > w/4*3 {
		f.Minutes = int64(math.Ceil(3 * took.Minutes()))
	}
}

// learnHost is the host that paths of a learned profile are about.
type learnHost struct {
	facts *Facts
	home  string
}

func (h *learnHost) Withheld(path string, write bool) string {
	if !utf8.ValidString(path) || quote.Escape(path) != path {
		return "its name cannot be written in a profile"
	}
	return profiles.Withheld(path, h.home, write)
}

func (h *learnHost) Stat(path string) (is, dir bool) {
	info, err := os.Stat(path)
	if err != nil {
		_, err = os.Lstat(path)
		return err == nil, false
	}
	return true, info.IsDir()
}

func (h *learnHost) Secrets(path string) (found []string, all bool) {
	p := &policy.Policy{Files: []policy.FileRule{{Path: path, Access: policy.Read}}, OCI: &specs.Spec{}}
	list, all := profiles.Credentials(p, &h.facts.Facts)
	for _, c := range list {
		found = append(found, c.Path)
	}
	return found, all
}

// Write writes what was found as a new profile, or adds it to one.
func (l *Learning) Write(found *learn.Found, file string, add bool, command []string) error {
	h := learn.Header{Base: l.name, Command: command, Home: l.facts.Home}
	if !add {
		return writeProfile(file, found.Text(h), false, l.facts)
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return Unusable(err, "--into", "name a profile that is there, or make one with -o")
	}
	text, err := found.Into(string(old), h)
	if err != nil {
		return Usage(file+": nothing was added: "+err.Error(), "add the lines by hand: sbxrun learn -P "+file+" prints them")
	}
	now, err := os.ReadFile(file)
	if err == nil && !bytes.Equal(now, old) {
		err = errors.New("it was changed meanwhile")
	}
	if err != nil {
		return fmt.Errorf("%s: nothing was added: %w", file, err)
	}
	return writeProfile(file, text, true, l.facts)
}

// Text is the profile, to be printed.
func (l *Learning) Text(found *learn.Found, command []string) string {
	return found.Text(learn.Header{Base: l.name, Command: command, Home: l.facts.Home})
}

// writeProfile writes a profile that can be read, whole or not at all.
func writeProfile(file, text string, replace bool, f *Facts) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".learn-*.yaml")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text)
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return err
	}
	name, err := filepath.Abs(tmp.Name())
	if err != nil {
		return err
	}
	if _, err := profiles.Resolve(&profiles.Request{Command: []string{"true"}, Profile: name}, &f.Facts); err != nil {
		return fmt.Errorf("the profile that was learned is refused, so %s was not written: %w", file, err)
	}
	if replace {
		return os.Rename(tmp.Name(), file)
	}
	if err := os.Link(tmp.Name(), file); errors.Is(err, fs.ErrExist) {
		return Usage(file+" is there already", "--into "+file+" adds to it; or name another file")
	} else if err != nil {
		return err
	}
	return nil
}
