package rootfs

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/landlock"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// A Root is what a command finds at "/", in the vocabulary of the packages that
// make it so.
type Root struct {
	Tree    mounts.Tree      // what is mounted where
	Ruleset landlock.Ruleset // what of it may be used how
	Devices bool             // the usual device nodes are there
}

// devices are the nodes that every sandbox has; see "Default Devices" in the
// OCI runtime specification.
var devices = [...]string{"null", "zero", "full", "random", "urandom", "tty"}

// room is how much private storage, which is memory, a policy has memory for. Most of it
// counts towards the limit of memory where it is written; what the guard writes for a
// command, the targets of its symbolic links, counts where the supervisor is.
func room(p *policy.Policy) uint64 {
	const all = ^uint64(0)
	if p.OCI.Linux == nil || p.OCI.Linux.Resources == nil {
		return all
	}
	m := p.OCI.Linux.Resources.Memory
	if m == nil || m.Limit == nil || *m.Limit <= 0 || m.Swap != nil && *m.Swap < 0 {
		return all
	}
	if m.Swap != nil { // with memory
		return uint64(max(*m.Limit, *m.Swap))
	}
	return uint64(*m.Limit)
}

// Lower computes the root of a policy on a host with such files. It reads
// nothing else and acts on nothing. Errors name the driver for which it is done.
func Lower(driver string, p *policy.Policy, host Host) (*Root, error) {
	l := &lowering{driver: driver, p: p, host: host, out: &Root{}}
	l.out.Tree.ScratchBytes = min(p.Scratch.Bytes, room(p))
	l.out.Tree.ScratchInodes = p.Scratch.Inodes
	l.entries = make([]mounts.Entry, 0, 64)
	l.out.Ruleset.Rules = make([]landlock.Rule, 0, 32)

	// Names in the root may be listed; everything else is granted below.
	l.grant("/", landlock.ReadDir, false)
	for i := range p.OCI.Mounts {
		if err := l.mount(&p.OCI.Mounts[i]); err != nil {
			return nil, err
		}
	}
	for _, r := range policy.Sort(p.Files) {
		if err := l.file(r); err != nil {
			return nil, err
		}
	}
	if p.OCI.Linux != nil {
		for _, d := range p.OCI.Linux.Devices {
			l.device(d.Path, d.Path)
		}
	}
	for i := range p.Synthetic {
		if err := l.synthetic(&p.Synthetic[i]); err != nil {
			return nil, err
		}
	}
	for _, u := range p.Unix {
		l.out.Ruleset.Rules = append(l.out.Ruleset.Rules, landlock.Rule{Path: u, Access: landlock.ResolveUnix,
			IsFile: true, Optional: true})
	}
	l.entries = append(l.entries, l.masks...)
	mounts.SortEntries(l.entries)
	if err := l.masked(); err != nil {
		return nil, err
	}
	l.out.Tree.Entries = l.entries
	return l.out, nil
}

type lowering struct {
	driver  string
	p       *policy.Policy
	host    Host
	out     *Root
	entries []mounts.Entry
	masks   []mounts.Entry
	proc    bool // /proc is mounted
	procRO  bool
}

func (l *lowering) grant(path string, a landlock.Access, isFile bool) {
	l.out.Ruleset.Rules = append(l.out.Ruleset.Rules, landlock.Rule{Path: path, Access: a, IsFile: isFile})
}

// Rights are the Landlock rights for a policy's access.
func Rights(a policy.Access) landlock.Access {
	var r landlock.Access
	if a&policy.Read != 0 {
		r |= landlock.Read
	}
	if a&policy.Write != 0 {
		r |= landlock.Write
	}
	if a&policy.Execute != 0 {
		r |= landlock.Execute
	}
	return r
}

func attrs(a policy.Access) mounts.Attr {
	var m mounts.Attr
	if a&policy.Write == 0 {
		m |= mounts.ReadOnly
	}
	if a&policy.Execute == 0 {
		m |= mounts.NoExec
	}
	return m
}

// file lowers one rule for a host path.
func (l *lowering) file(r policy.FileRule) error {
	if r.Access == policy.Hide && !l.shown(r.Path) {
		return nil // rules are sorted: what could show it has been seen
	}
	node, err := l.host.Lookup(r.Path)
	if err != nil {
		return err
	}
	if r.Access == policy.Hide {
		return l.hide(r, node)
	}
	switch node.Kind {
	case NodeAbsent:
		if r.Optional {
			return nil
		}
		return &driver.SetupError{Driver: l.driver, Err: &pathError{r.Path, "does not exist", r.Origin}}
	case NodeSymlink:
		l.entries = append(l.entries, mounts.Entry{Kind: mounts.Symlink, Target: r.Path, Source: node.Link, Origin: r.Origin})
		return nil
	}
	if r.Path == "/" {
		return l.wholeRoot(r)
	}
	isDir := node.Kind == NodeDir
	e := mounts.Entry{Kind: mounts.Bind, Target: r.Path, Source: r.Path, Origin: r.Origin, Attr: attrs(r.Access),
		IsDir: isDir}
	if r.Overlay {
		if !isDir {
			return &driver.SetupError{Driver: l.driver,
				Err: &pathError{r.Path, "is no directory, and cannot be copy-on-write", r.Origin}}
		}
		e.Kind, e.Mode = mounts.Overlay, node.Mode
	}
	access := r.Access
	if r.Discard && isDir && access&policy.Write == 0 {
		// The mount is read-only where it stays the host's.
		e.Discard = true
		access |= policy.Write
	}
	l.entries = append(l.entries, e)
	l.grant(r.Path, Rights(access), !isDir)
	return nil
}

// hide lowers a rule that hides what the host has at its path.
func (l *lowering) hide(r policy.FileRule, node Node) (err error) {
	target := r.Path
	if node.Kind == NodeSymlink {
		// What it leads to is hidden where that is; the link itself
		// tells only a name.
		if target = node.Real; target == "" {
			return nil
		}
		if node, err = l.host.Lookup(target); err != nil {
			return err
		}
	}
	if node.Kind == NodeAbsent {
		return nil
	}
	e := mounts.Entry{Kind: mounts.Mask, Target: target, Origin: r.Origin, IsDir: node.Kind == NodeDir, Optional: true}
	if e.IsDir && l.grantedBelow(target) {
		// Hidden but for what is granted in it: an empty directory, in
		// which that has its place.
		e.Kind, e.Mode = mounts.Scratch, 0o700
	}
	l.masks = append(l.masks, e)
	return nil
}

// grantedBelow reports whether a rule shows something below a hidden directory.
func (l *lowering) grantedBelow(dir string) bool {
	return slices.ContainsFunc(l.p.Files, func(f policy.FileRule) bool {
		return f.Access != policy.Hide && f.Path != dir && policy.Below(f.Path, dir)
	})
}

// wholeRoot lowers a rule for "/": each directory in it is shown, but for those
// that a sandbox has of its own. The root itself stays the sandbox's, so that
// targets can be made in it.
func (l *lowering) wholeRoot(r policy.FileRule) error {
	names, err := l.host.List("/")
	if err != nil {
		return err
	}
	for _, n := range names {
		sub := r
		sub.Path = "/" + n
		sub.Optional = true // it may be gone by now
		if n == "proc" || n == "sys" || n == "dev" || l.given(sub.Path) {
			continue
		}
		if err := l.file(sub); err != nil {
			return err
		}
	}
	return nil
}

// given reports whether the policy has something of its own at path.
func (l *lowering) given(path string) bool {
	return slices.ContainsFunc(l.p.OCI.Mounts, func(m specs.Mount) bool { return m.Destination == path }) ||
		slices.ContainsFunc(l.p.Files, func(f policy.FileRule) bool { return f.Path == path })
}

// mount lowers one mount of the OCI part.
func (l *lowering) mount(m *specs.Mount) error {
	e := mounts.Entry{Target: m.Destination, IsDir: true}
	if err := l.options(m, &e); err != nil {
		return err
	}
	var node Node
	access := policy.All
	if e.Attr&mounts.ReadOnly != 0 {
		access &^= policy.Write
	}
	if e.Attr&mounts.NoExec != 0 {
		access &^= policy.Execute
	}
	switch m.Type {
	case "proc":
		e.Kind = mounts.Proc
		if m.Destination != "/proc" {
			return &driver.UnsupportedError{Driver: l.driver, Rules: []string{"mounts." + m.Destination + " type proc"}}
		}
		l.proc, l.procRO = true, e.Attr&mounts.ReadOnly != 0
	case "devpts":
		e.Kind = mounts.Devpts
		l.grant(m.Destination, landlock.Read|landlock.WriteFile|landlock.IoctlDev, false)
		l.entries = append(l.entries, e)
		return nil
	case "mqueue":
		e.Kind = mounts.Mqueue
	case "tmpfs":
		if m.Destination == "/dev" {
			l.dev()
			return nil
		}
		e.Kind, e.Size = mounts.Tmpfs, min(e.Size, room(l.p))
		if e.Size == 0 {
			e.Kind = mounts.Scratch
		}
	case "bind", "":
		var err error
		if node, err = l.host.Lookup(m.Source); err != nil {
			return err
		}
		if node.Kind != NodeDir && node.Kind != NodeFile {
			return &driver.SetupError{Driver: l.driver,
				Err: &pathError{m.Source, "is no file or directory", "mount " + m.Destination}}
		}
		e.Kind, e.Source, e.IsDir = mounts.Bind, m.Source, node.Kind == NodeDir
	default:
		return &driver.UnsupportedError{Driver: l.driver, Rules: []string{"mounts." + m.Destination + " type " + m.Type}}
	}
	l.entries = append(l.entries, e)
	rights := Rights(access)
	if node.Socket {
		rights |= landlock.ResolveUnix // who shows a socket wants it used
	}
	l.grant(m.Destination, rights, !e.IsDir)
	if e.Kind == mounts.Bind {
		return l.hideIn(e.Source, e.Target)
	}
	return nil
}

// hideIn hides what rules hide below a source also where a bind shows it under
// another name.
func (l *lowering) hideIn(source, target string) error {
	for i := range l.p.Files {
		f := &l.p.Files[i]
		if f.Access != policy.Hide || !policy.Below(f.Path, source) {
			continue
		}
		node, err := l.host.Lookup(f.Path)
		if err != nil {
			return err
		}
		if node.Kind == NodeFile || node.Kind == NodeDir {
			l.masks = append(l.masks, mounts.Entry{Kind: mounts.Mask, Target: target + f.Path[len(source):], Origin: f.Origin,
				IsDir: node.Kind == NodeDir, Optional: true})
		}
	}
	return nil
}

// options reads mount options in their OCI form.
func (l *lowering) options(m *specs.Mount, e *mounts.Entry) error {
	if m.Type == "tmpfs" {
		e.Mode = 0o1777
	}
	for _, o := range m.Options {
		key, value, _ := strings.Cut(o, "=")
		var err error
		switch key {
		case "ro":
			e.Attr |= mounts.ReadOnly
		case "noexec":
			e.Attr |= mounts.NoExec
		case "nosuid", "nodev", "rw", "exec", "bind", "rbind", "private", "rprivate", "newinstance":
			// Every mount is nosuid, nodev (but for devices), private and
			// recursive; devpts is always an instance of its own.
		case "size":
			e.Size, err = size(value)
		case "nr_inodes":
			e.Inodes, err = strconv.ParseUint(value, 10, 64)
		case "mode":
			var v uint64
			v, err = strconv.ParseUint(value, 8, 12)
			e.Mode = uint32(v)
		case "ptmxmode":
			if value != "0666" {
				return &driver.UnsupportedError{Driver: l.driver, Rules: []string{"mounts." + m.Destination + " option " + o}}
			}
		default:
			return &driver.UnsupportedError{Driver: l.driver, Rules: []string{"mounts." + m.Destination + " option " + o}}
		}
		if err != nil {
			return &policy.InvalidError{Field: "mounts." + m.Destination, Value: o, Want: "a number"}
		}
	}
	return nil
}

// size reads a size as tmpfs(5) writes it: a number with k, m or g.
func size(s string) (uint64, error) {
	shift := 0
	if n := len(s); n > 0 {
		switch s[n-1] | 0x20 {
		case 'k':
			shift = 10
		case 'm':
			shift = 20
		case 'g':
			shift = 30
		}
		if shift != 0 {
			s = s[:n-1]
		}
	}
	v, err := strconv.ParseUint(s, 10, 64-shift)
	return v << shift, err
}

// dev lowers the minimal /dev: part of the read-only root, with the device nodes
// of the host bound into it.
func (l *lowering) dev() {
	l.out.Devices = true
	l.entries = append(l.entries, mounts.Entry{Kind: mounts.Dir, Target: "/dev"})
	l.grant("/dev", landlock.Read, false)
	for _, d := range devices {
		l.device("/dev/"+d, "/dev/"+d)
	}
	for _, s := range [...][2]string{
		{"/dev/fd", "/proc/self/fd"}, {"/dev/stdin", "/proc/self/fd/0"},
		{"/dev/stdout", "/proc/self/fd/1"}, {"/dev/stderr", "/proc/self/fd/2"},
		{"/dev/ptmx", "pts/ptmx"},
	} {
		l.entries = append(l.entries, mounts.Entry{Kind: mounts.Symlink, Target: s[0], Source: s[1]})
	}
}

// device shows a device node. Read-only is the node, not the device: its mode,
// owner and times are the host's.
func (l *lowering) device(source, target string) {
	l.entries = append(l.entries, mounts.Entry{Kind: mounts.Device, Target: target, Source: source,
		Attr: mounts.NoExec | mounts.ReadOnly})
	l.grant(target, landlock.ReadFile|landlock.WriteFile|landlock.IoctlDev, true)
}

// synthetic lowers a file that exists only in the sandbox.
func (l *lowering) synthetic(f *policy.SyntheticFile) error {
	target := f.Path
	// Where the host's directory is shown, what is at the path may be a link
	// (/etc/resolv.conf usually is): the file then goes where it leads.
	if l.shown(path.Dir(target)) {
		node, err := l.host.Lookup(target)
		if err != nil {
			return err
		}
		switch node.Kind {
		case NodeAbsent:
			return nil // nothing to replace, and nowhere to put it
		case NodeSymlink:
			if node.Real == "" {
				return nil
			}
			target = node.Real
		}
	}
	mode := f.Mode
	mode = cmp.Or(mode, 0o444)
	l.entries = append(l.entries, mounts.Entry{Kind: mounts.File, Target: target, Mode: mode, Data: f.Content})
	l.grant(target, landlock.ReadFile, true)
	return nil
}

// shown reports whether the host's directory is visible in the sandbox.
func (l *lowering) shown(dir string) bool {
	for i := range l.entries {
		e := &l.entries[i]
		if (e.Kind == mounts.Bind || e.Kind == mounts.Overlay) && e.Source == e.Target && policy.Below(dir, e.Target) {
			return true
		}
	}
	return false
}

// masked lowers the OCI lists of paths to hide or to make read-only.
func (l *lowering) masked() error {
	if l.p.OCI.Linux == nil {
		return nil
	}
	if l.proc {
		// PID 1 is the second stage; see internal/reexec.
		l.entries = append(l.entries, mounts.Entry{Kind: mounts.Mask, Target: "/proc/1", IsDir: true})
	}
	for _, t := range l.p.OCI.Linux.MaskedPaths {
		node, err := l.host.Lookup(t)
		if err != nil {
			return err
		}
		if node.Kind == NodeFile || node.Kind == NodeDir {
			l.entries = append(l.entries, mounts.Entry{Kind: mounts.Mask, Target: t, IsDir: node.Kind == NodeDir,
				Optional: true})
		}
	}
	for _, t := range l.p.OCI.Linux.ReadonlyPaths {
		if l.procRO && policy.Below(t, "/proc") {
			continue
		}
		l.entries = append(l.entries, mounts.Entry{Kind: mounts.Readonly, Target: t, Optional: true})
	}
	return nil
}

// pathError is about a host path that a rule names.
type pathError struct{ Path, What, Origin string }

func (e *pathError) Error() string {
	s := e.Path + " " + e.What
	if e.Origin != "" {
		s += " (" + e.Origin + ")"
	}
	return s
}
