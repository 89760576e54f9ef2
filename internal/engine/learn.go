package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

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

	req   *profiles.Request
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
	if !base.Isolated || base.Drivers[0] != "native" {
		return nil, Usage("sbxrun learn watches sandboxes of the native driver, and the profile "+name+" has none",
			"name another with --profile")
	}
	home := realHome(f)
	open, err := resolveOpen(req, base, name, home, f)
	if err != nil {
		return nil, err
	}
	p := open.Policy
	p.Profile = base.Policy.Profile
	p.Egress.LogRequests = true
	if home != "" {
		p.Files = policy.Sort(append(p.Files, policy.FileRule{Path: home, Access: policy.ReadExec, Discard: true,
			Optional: true, Origin: "learn"}))
	}
	return &Learning{Run: open, Collector: learn.NewCollector(p, base.Policy), req: req, base: base.Policy, name: name,
		facts: f}, nil
}

// realHome is the caller's home without symbolic links, "" if there is none of its own.
func realHome(f *Facts) string {
	home, err := filepath.EvalSymlinks(f.Home)
	if err != nil || home == "/" {
		return ""
	}
	return home
}

// resolveOpen resolves a request under its profile, and the whole host with it. The secrets
// are those of both the profile and development.
func resolveOpen(req *profiles.Request, base *profiles.Resolved, name, home string,
	f *Facts) (*profiles.Resolved, error) {
	secrets, err := profiles.Show(&profiles.Request{Profile: "development"}, &f.Facts)
	if err != nil {
		return nil, err
	}
	if strings.Contains(name, "/") {
		if name, err = filepath.Abs(name); err != nil {
			return nil, err
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "extends: %q\nhome: host\nverify: false\nfiles:\n  read:\n    - /\n", name)
	if home != "" && driver.RuleFor(base.Policy, filepath.Dir(home)).At != "" {
		fmt.Fprintf(&text, "    - %q\n", home) // below storage of the sandbox's own
	}
	for _, key := range []string{"secrets", "secret_names", "secret_text"} {
		fmt.Fprintf(&text, "  %s:\n", key)
		for _, e := range secrets {
			if e.Key == "files."+key {
				fmt.Fprintf(&text, "    - %q\n", e.Value)
			}
		}
	}
	r := policy.LimitsOf(base.Policy.OCI.Linux.Resources)
	text.WriteString("limits:\n  cpus: none\n  wall_time: none\n")
	for _, l := range []struct {
		name string
		has  uint64
		most uint64
		unit string
	}{{"memory", uint64(max(r.Memory, 0)), 8 << 30, "b"}, {"pids", uint64(max(r.Pids, 0)), 4096, ""},
		{"disk", base.Policy.Scratch.Bytes, 10 << 30, "b"}} {
		if l.has > 0 && l.has < l.most {
			fmt.Fprintf(&text, "  %s: %d%s\n", l.name, l.most, l.unit)
		}
	}
	tmp, err := os.CreateTemp("", "learn-*.yaml")
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text.String())
	if err = errors.Join(err, tmp.Close()); err != nil {
		return nil, err
	}
	asked := *req
	asked.Profile = tmp.Name()
	if asked.Workspace != "none" && (asked.Workspace != "" || base.Workspace.Mode != "none") {
		asked.Workspace = "overlay"
	}
	open, err := Resolve(&asked, f)
	if err == nil && open.Policy.Egress.Mode == policy.EgressNone && req.Net == nil {
		proxy := policy.EgressProxy
		asked.Net = &proxy
		open, err = Resolve(&asked, f)
	}
	return open, err
}

// Found is what the run showed.
func (l *Learning) Found(res *driver.Result) *learn.Found {
	home := realHome(l.facts)
	f := l.Propose(&learnHost{l.facts, l.base, l.Run.Policy, home, l.Run.Workspace.Path, map[string]string{},
		l.facts.Withheld()}, home,
		l.Run.Workspace.Path)
	f.Notes = l.notes()
	l.network(f, res)
	for i := range res.Denials {
		d := &res.Denials[i]
		switch d.Operation {
		case driver.OpSyscall:
			f.First = append(f.First, learn.Line{Item: d.Target, Comment: "a system call" + grantable(d)})
		case driver.OpUnix:
			f.First = append(f.First, learn.Line{Item: quote.Line(d.Target), Comment: "a socket, connected to" + whose(d)})
		case driver.OpWrite:
			f.Left = append(f.Left, learn.Line{Item: quote.Line(d.Target), Comment: "a change, refused" + grantable(d)})
		case driver.OpRead, driver.OpExec:
			switch {
			case !Used(d):
			case d.Reason == driver.ReasonSecret:
				f.First = append(f.First, learn.Line{Item: quote.Line(d.Target), Comment: d.Reason + whose(d)})
			default:
				f.Left = append(f.Left, learn.Line{Item: quote.Line(d.Target), Comment: "not shown in the run" + grantable(d)})
			}
		}
	}
	l.limits(f, res)
	return f
}

// notes are of what the run had and the profile does not say.
func (l *Learning) notes() (out []string) {
	r := l.req
	var flags []string
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"--rw", len(r.ReadWrite) > 0}, {"--allow-unix", len(r.Unix) > 0}, {"--bind", len(r.Binds) > 0},
		{"--tmpfs", len(r.Tmpfs) > 0}, {"--device", len(r.Devices) > 0},
		{"--gpu", r.GPU}, {"--env", len(r.Env) > 0},
		{"--clear-env", r.ClearEnv}, {"--inherit-env", r.InheritEnv}, {"--publish", len(r.Publish) > 0},
		{"--unprotect", len(r.Unprotect) > 0}, {"--seccomp", r.Seccomp != ""},
	} {
		if f.given {
			flags = append(flags, f.name)
		}
	}
	if len(flags) > 0 {
		out = append(out, "Learned with "+strings.Join(flags, ", ")+", which this does not say: give it to your runs, too.")
	}
	if r.Net != nil && *r.Net == policy.EgressHost {
		out = append(out, "Learned with --net host: what was reached was not seen, and this gives no network for it.")
	}
	if has, had := l.base.Scratch.Bytes, l.Run.Policy.Scratch.Bytes; has > 0 && (had == 0 || had > has) {
		out = append(out, "Not measured: the disk. This gives "+strconv.FormatUint(has>>20, 10)+
			" MiB of private storage, and the run had more.")
	}
	return out
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
		host, text, err := net.SplitHostPort(q.Target)
		port, perr := strconv.ParseUint(text, 10, 16)
		if err == nil && perr == nil && !l.allows(host, uint16(port)) {
			reached[quote.Line(q.Target)]++
		}
	}
	for _, target := range slices.Sorted(maps.Keys(reached)) {
		times := "connections: " + strconv.FormatUint(reached[target], 10)
		f.Hosts = append(f.Hosts, learn.Line{Item: target, Comment: times})
	}
	for i := range res.Denials {
		d := &res.Denials[i]
		if d.Operation != driver.OpConnect && d.Operation != driver.OpResolve {
			continue
		}
		target := d.Target
		if target == "" {
			target = "a host without a name"
		}
		f.Left = append(f.Left, learn.Line{Item: quote.Line(target), Comment: "a host, refused" + grantable(d)})
	}
	if n.LogDropped > 0 {
		f.Left = append(f.Left, learn.Line{Item: "hosts",
			Comment: strconv.FormatUint(n.LogDropped, 10) + " requests were not recorded"})
	}
}

// allows reports whether the base lets a connection through.
func (l *Learning) allows(host string, port uint16) bool {
	rec, err := egress.Ask(l.base.Egress, host, port)
	return err == nil && rec.Verdict == egress.Allow
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
	facts           *Facts
	base, open      *policy.Policy
	home, workspace string
	real            map[string]string
	withheld        driver.Withheld
}

func (h *learnHost) Real(path string) string {
	if path == "/" {
		return path
	}
	real, known := h.real[path]
	if known {
		return real
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		real, _ = filepath.EvalSymlinks(path)
	} else if up := h.Real(filepath.Dir(path)); err == nil && up != "" {
		real = filepath.Join(up, filepath.Base(path))
	}
	h.real[path] = real
	return real
}

func (h *learnHost) Withheld(path string, write bool) string {
	switch {
	case !learn.Plain(path):
		return "its name would say something else in a profile"
	case driver.RuleFor(h.base, path).Hidden():
		return "hidden by the profile"
	}
	return h.withheld(path, write)
}

func (h *learnHost) Kind(path string) learn.Kind {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return learn.Dir
	case err == nil && info.Mode().IsRegular():
		return learn.File
	case err == nil:
		return learn.Other
	}
	if _, err := os.Lstat(path); err == nil {
		return learn.File // a link to nothing
	}
	return learn.Nothing
}

func (h *learnHost) Socket(path string) (socket string) {
	const most = 100_000
	seen := 0
	err := filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		seen++ // with more, there may be one
		if seen > most || err == nil && d.Type()&fs.ModeSocket != 0 {
			socket = at
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return path
	}
	return socket
}

func (h *learnHost) Protected(path string) string { return protects(h.base, path, h.workspace) }

func (h *learnHost) Secrets(path string) (found []learn.Line, all bool) {
	p := &policy.Policy{Files: []policy.FileRule{{Path: path, Access: policy.Read}}, OCI: &specs.Spec{}}
	list, all := profiles.Credentials(p, &h.facts.Facts)
	for _, f := range h.open.Files {
		if _, err := os.Lstat(f.Path); err == nil && f.Access == policy.Hide && policy.Below(f.Path, path) {
			found = append(found, learn.Line{Item: f.Path, Comment: "was hidden in the run"})
		}
	}
	hidden := found
	for _, c := range list {
		if !slices.ContainsFunc(hidden, func(l learn.Line) bool { return policy.Below(c.Path, l.Item) }) {
			found = append(found, learn.Line{Item: c.Path, Comment: "looks like a credential"})
		}
	}
	return found, all
}

// Ready reports what would keep a profile from being written, or from being added to.
func (l *Learning) Ready(file string, add bool) error {
	if add {
		old, err := os.ReadFile(file)
		if err != nil {
			return Usage("--into: "+err.Error(), "name a profile that is there, or make one with -o")
		}
		if _, err := (&learn.Found{Changed: true}).Into(string(old), learn.Header{Command: []string{""}}); err != nil {
			return unfit(file, err)
		}
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".learn-*.yaml")
	if err != nil {
		return err
	}
	tmp.Close()
	return os.Remove(tmp.Name())
}

func unfit(file string, err error) error {
	return Usage(file+": nothing was added: "+err.Error(),
		"sbxrun learn -P "+file+" -o FILE writes a new profile that extends it")
}

// Text is the profile, for a file in a directory.
func (l *Learning) Text(found *learn.Found, dir string, command []string) string {
	return found.Text(learn.Header{Base: l.extends(dir), Command: command, Home: realHome(l.facts)})
}

// extends is the name of the base, as a profile in a directory has it.
func (l *Learning) extends(dir string) string {
	if !strings.Contains(l.name, "/") {
		return l.name
	}
	base, err := filepath.Abs(l.name)
	if at, aerr := filepath.Abs(dir); err == nil && aerr == nil {
		if rel, err := filepath.Rel(at, base); err == nil && rel[0] != '.' {
			return "./" + rel
		}
	}
	return base
}

// Write writes what was found as a new profile.
func (l *Learning) Write(found *learn.Found, file string, command []string) error {
	*found = *found.Within(len(l.Text(&learn.Found{}, filepath.Dir(file), command)), realHome(l.facts))
	tmp, err := l.valid(found, file, func(f *learn.Found) (string, error) {
		return l.Text(f, filepath.Dir(file), command), nil
	})
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	if err := os.Chmod(tmp, 0o644); err != nil {
		return err
	}
	if err := os.Link(tmp, file); errors.Is(err, fs.ErrExist) {
		return Usage(file+" is there already", "--into "+file+" adds to it; or name another file")
	} else if err != nil {
		return err
	}
	return nil
}

// Add adds what was found to a profile, of which nothing else changes.
func (l *Learning) Add(found *learn.Found, file string, command []string) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	header := learn.Header{Command: command, Home: realHome(l.facts)}
	*found = *found.Within(len(old), header.Home)
	if _, err := found.Into(string(old), header); err != nil {
		return unfit(file, err)
	}
	tmp, err := l.valid(found, file, func(f *learn.Found) (string, error) { return f.Into(string(old), header) })
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	raised := func(e profiles.Entry) bool {
		return slices.Contains([]string{"network.mode", "limits.memory", "limits.pids", "limits.wall_time",
			"workspace"}, e.Key)
	}
	if err := keeps(l.facts, file, tmp, raised); err != nil {
		return unfit(file, err)
	}
	return replace(file, tmp, old)
}

// replace puts a new profile in the place of an old one, as that was.
func replace(file, tmp string, old []byte) error {
	now, err := os.ReadFile(file)
	info, serr := os.Stat(file)
	if err = errors.Join(err, serr); err == nil && !bytes.Equal(now, old) {
		err = errors.New("it was changed meanwhile")
	}
	if err != nil {
		return fmt.Errorf("%s: nothing was added: %w", file, err)
	}
	if err := errors.Join(os.Chmod(tmp, info.Mode().Perm()), inheritOwner(tmp, info)); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

// keeps reports what of an old profile is not in the new one, but for what is raised.
func keeps(facts *Facts, old, new string, raised func(profiles.Entry) bool) error {
	has := map[profiles.Entry]bool{}
	lists := [2][]profiles.Entry{}
	for i, name := range []string{old, new} {
		abs, err := filepath.Abs(name)
		if err == nil {
			lists[i], err = profiles.Show(&profiles.Request{Profile: abs}, &facts.Facts)
		}
		if err != nil {
			return err
		}
	}
	for _, e := range lists[1] {
		has[profiles.Entry{Key: e.Key, Value: e.Value}] = true
	}
	for _, e := range lists[0] {
		if !has[profiles.Entry{Key: e.Key, Value: e.Value}] && !raised(e) {
			return errors.New("the new one would not have " + e.Key + " " + quote.Inside(e.Value))
		}
	}
	return nil
}

// valid is readable without the lines for which the profile would be refused: it took a run
// to learn the others. They are left out of what was found, too.
func (l *Learning) valid(found *learn.Found, file string, text func(*learn.Found) (string, error)) (string, error) {
	write := func(f *learn.Found) (string, error) {
		t, err := text(f)
		if err != nil {
			return "", err
		}
		return readable(l.facts, file, t)
	}
	tmp, err := write(found)
	if err == nil || len(found.Read)+len(found.Copy) == 0 {
		return tmp, err
	}
	fit := *found
	fit.Read, fit.Copy = nil, nil
	try := func() error {
		tmp, err := write(&fit)
		if err == nil {
			err = os.Remove(tmp)
		}
		return err
	}
	if try() != nil {
		return "", err // no line is the cause
	}
	var add func(list *[]learn.Line, more []learn.Line)
	add = func(list *[]learn.Line, more []learn.Line) {
		if len(more) == 0 {
			return
		}
		had := len(*list)
		*list = append(*list, more...)
		if try() == nil {
			return
		}
		*list = (*list)[:had]
		if len(more) == 1 {
			fit.Left = append(fit.Left, learn.Line{Item: more[0].Item, Comment: "sbxrun refuses a profile with it"})
			return
		}
		add(list, more[:len(more)/2])
		add(list, more[len(more)/2:])
	}
	add(&fit.Read, found.Read)
	add(&fit.Copy, found.Copy)
	*found = fit
	return write(found)
}

// readable writes a profile beside a file, and makes sure that it can be read.
func readable(facts *Facts, file, text string) (name string, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".learn-*.yaml")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp.Name())
		}
	}()
	_, err = tmp.WriteString(text)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return "", err
	}
	abs, err := filepath.Abs(tmp.Name())
	if err == nil {
		// The directory that the caller is in need not be one to work in.
		_, err = profiles.Resolve(&profiles.Request{Command: []string{"true"}, Profile: abs, Workspace: "none"}, &facts.Facts)
	}
	if err != nil {
		return "", fmt.Errorf("the new profile is refused, so %s was not written: %w", file, err)
	}
	return tmp.Name(), nil
}
