package profiles

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/internal/nearest"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/seccomp"
)

// presetNames lists the built-in profiles in the order in which they are shown.
var presetNames = [...]string{"strict", "aicode", "development", "testing", "production", "webscraping", "docker",
	"unrestricted"}

// projectFile may lie in a workspace. It can make the sandbox tighter; anything
// else is refused unless the caller trusts that very content.
const projectFile = ".sbxrun.yaml"

// envPrefix begins the variables that set keys.
const envPrefix = "SBXRUN_"

// otherEnv are variables with the prefix that are no keys: where a server is, what
// shells and tools tell each other.
var otherEnv = []string{"SERVER", "SANDBOX", "REFUSALS", "SHELL_SESSION", "SHELL_WORKSPACE", "MCP_TOKEN"}

// MarkerEnv tells programs in a sandbox that they are in one, and which.
const MarkerEnv = "SBXRUN_SANDBOX"

// source reads configuration through facts.FS.
type source struct {
	facts *Facts
	files Files // what was looked for is noted here; nil to note nothing

	workspace string // for findTools, which believes nothing in there
}

// Files are those that a policy was made of, and those that would have counted and
// were not there: the name, and the SHA-256 of what it held, in hexadecimal; "" if
// there was no such file. The workspace's own is not among them.
type Files map[string]string

func (f Files) note(name, src string, ok bool) {
	if f == nil {
		return
	}
	f[name] = ""
	if ok {
		sum := sha256.Sum256([]byte(src))
		f[name] = hex.EncodeToString(sum[:])
	}
}

// Changed are the names of files that do not hold what they did, in order. One that
// cannot be read any more is among them.
func (f Files) Changed(facts *Facts) []string {
	var changed []string
	for name, was := range f {
		now := Files{}
		src, ok, err := source{facts: facts}.readFile(name, true, maxAny)
		if now.note(name, src, ok); err != nil || now[name] != was {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	return changed
}

// maxAny bounds every kind of file that a policy is made of.
const maxAny = max(maxFile, seccomp.MaxProfile)

// readFile returns the text of a regular file, or "" and false where there is
// none. Anything but a regular file is an error: a fifo would block, and a
// project's symbolic link could name any file of the caller.
func (s source) readFile(name string, follow bool, limit int64) (string, bool, error) {
	stat := fs.Lstat
	if follow {
		stat = fs.Stat
	}
	rel := fsPath(name)
	info, err := stat(s.facts.FS, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, &Error{Where: name, What: "cannot be read", Err: pathCause(err)}
	}
	if !info.Mode().IsRegular() {
		return "", false, &Error{Where: name, What: "is not a regular file"}
	}
	f, err := s.facts.FS.Open(rel)
	if err != nil {
		return "", false, &Error{Where: name, What: "cannot be read", Err: pathCause(err)}
	}
	defer f.Close()
	// It can be another by now.
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", false, &Error{Where: name, What: "is not a regular file"}
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1)) // the parsers refuse more
	if err != nil {
		return "", false, &Error{Where: name, What: "cannot be read", Err: pathCause(err)}
	}
	return string(b), true, nil
}

// pathCause drops what an fs.PathError repeats of the message around it.
func pathCause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// overlay reads a configuration file, nil if there is none.
func (s source) overlay(name string) (*profile, error) {
	src, ok, err := s.readFile(name, true, maxFile)
	s.files.note(name, src, ok)
	if !ok || err != nil {
		return nil, err
	}
	return parseOverlay(name, src)
}

func parseOverlay(name, src string) (*profile, error) {
	p, err := parse(name, src, "")
	if err != nil {
		return nil, err
	}
	if v := &p.values[keyExtends]; v.isSet() {
		return nil, &Error{Where: v.origin, What: "extends belongs in a profile file",
			Fix: "profile: " + v.s + " chooses the profile that this file changes"}
	}
	return p, nil
}

// load returns the profile of that name, or in that file, over what it extends.
func (s source) load(name, where string) (*profile, error) {
	return s.loadChain(name, where, nil)
}

func (s source) builtIn(name, where string, chain []string) (*profile, error) {
	if p := preset(name); p != nil {
		return p, nil
	}
	if slices.ContainsFunc(chain, func(f string) bool { return path.Base(f) == name+".yaml" }) {
		return nil, circle(where, chain, name)
	}
	all := s.names()
	fix := cmp.Or(didYouMean(name, all), "there are "+strings.Join(all, ", "))
	return nil, &Error{Where: where, What: "unknown profile " + name, Fix: fix}
}

func (s source) loadChain(name, where string, chain []string) (*profile, error) {
	file, src, ok, err := s.find(name, where, chain)
	if err != nil {
		return nil, err
	}
	if !ok {
		return s.builtIn(name, where, chain)
	}
	if slices.Contains(chain, file) || len(chain) > 16 {
		return nil, circle(where, chain, file)
	}
	p, err := parse(file, src, "")
	if err != nil {
		return nil, err
	}
	if v := &p.values[keyProfile]; v.isSet() {
		return nil, &Error{Where: v.origin, What: "profile belongs in a configuration file",
			Fix: "extends: " + v.s + " builds on that profile"}
	}
	if err := p.operators("profiles have no say in it"); err != nil {
		return nil, err
	}
	ext := p.values[keyExtends]
	p.values[keyExtends] = value{}
	p.name, p.file = strings.TrimSuffix(strings.TrimSuffix(path.Base(file), ".yaml"), ".yml"), file
	if !ext.isSet() {
		ext = value{origin: file, s: "strict"}
	}
	if ext.s != "none" {
		if isFileName(ext.s) && !path.IsAbs(ext.s) && !strings.HasPrefix(ext.s, "~") {
			ext.s = path.Join(path.Dir(file), ext.s)
		}
		base, err := s.loadChain(ext.s, ext.origin, append(chain, file))
		if err != nil {
			return nil, err
		}
		p.over(base)
	}
	return p, nil
}

func circle(where string, chain []string, back string) error {
	return &Error{Where: where, What: "extends goes in a circle: " + strings.Join(chain, " -> ") + " -> " + back,
		Fix: "extend a built-in profile, or none"}
}

// isFileName tells a profile file from a profile name.
func isFileName(s string) bool {
	return strings.Contains(s, "/") || strings.HasSuffix(s, ".yaml") || strings.HasSuffix(s, ".yml")
}

// find returns the file that defines a profile; none if only a preset can. A
// profile file that extends its own name means the next of that name.
func (s source) find(name, where string, chain []string) (file, src string, ok bool, err error) {
	if isFileName(name) {
		file, err := s.facts.absolute(name)
		if err != nil {
			return "", "", false, &Error{Where: where, What: err.Error()}
		}
		src, ok, err := s.readFile(file, true, maxFile)
		s.files.note(file, src, ok)
		if err == nil && !ok {
			err = &Error{Where: where, What: "profile file " + file + " does not exist",
				Fix: "correct the path, or name a profile: " + strings.Join(s.names(), ", ")}
		}
		return file, src, ok, err
	}
	if name == "" || strings.ContainsAny(name, "\x00\n") || !fs.ValidPath(name) || name == "." {
		return "", "", false, &Error{Where: where, What: "not a profile name: " + quote.Text(name)}
	}
	for _, dir := range s.facts.ConfigDirs {
		file := path.Join(dir, "profiles", name+".yaml")
		if slices.Contains(chain, file) {
			continue
		}
		src, ok, err := s.readFile(file, true, maxFile)
		s.files.note(file, src, ok)
		if ok || err != nil {
			return file, src, ok, err
		}
	}
	return "", "", false, nil
}

// names lists every profile: the presets, then those of the files.
func (s source) names() []string {
	names := slices.Clone(presetNames[:])
	for _, dir := range s.facts.ConfigDirs {
		entries, _ := fs.ReadDir(s.facts.FS, fsPath(path.Join(dir, "profiles")))
		for _, e := range entries {
			if n, ok := strings.CutSuffix(e.Name(), ".yaml"); ok && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names
}

// fromEnviron reads the SBXRUN_ variables of the caller.
func fromEnviron(environ []string) (p *profile, notes []string, err error) {
	p = new(profile)
	for _, kv := range environ {
		rest, ok := strings.CutPrefix(kv, envPrefix)
		if !ok {
			continue
		}
		name, text, _ := strings.Cut(rest, "=")
		k, ok := keyOfEnv(name)
		where := "environment " + envPrefix + name
		if !ok {
			if near := nearEnv(name); near != "" && !slices.Contains(otherEnv, name) {
				notes = append(notes, envPrefix+name+" is not known; did you mean "+envPrefix+near+"?")
			}
			continue
		}
		if text == "" {
			continue // as if unset
		}
		if keys[k].kind == kindList {
			items := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
			for _, item := range items {
				if err := checkItem(k, item); err != nil {
					return nil, nil, at(where, err)
				}
			}
			p.add(k, where, items...)
			continue
		}
		if keys[k].kind == kindBool {
			switch text {
			case "1":
				text = "true"
			case "0":
				text = "false"
			}
		}
		v, err := parseScalar(k, text, where)
		if err != nil {
			return nil, nil, at(where, err)
		}
		p.values[k] = v
	}
	return p, notes, nil
}

// nearEnv is the variable that may have been meant, "" if none is near.
func nearEnv(name string) string {
	var all []string
	for i := range keys {
		if keys[i].env != "" {
			all = append(all, keys[i].env)
		}
	}
	return nearest.Name(name, all)
}

func keyOfEnv(name string) (key, bool) {
	for i := range keys {
		if keys[i].env == name && name != "" {
			return key(i), true
		}
	}
	return 0, false
}

// at gives err a place, if it has none.
func at(where string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) && e.Where == "" {
		moved := *e
		moved.Where = where
		return &moved
	}
	if e != nil {
		return err
	}
	return &Error{Where: where, What: err.Error()}
}

// collected is every source below the flags, merged.
type collected struct {
	profile
	name  string // of the profile
	file  string // likewise
	notes []string
	env   []string // of the caller's tools; see findTools
	read  Files
	began began
}

// began is what the workspace said when a run began.
type began struct {
	project *profile
	src     string
	trusted bool
	remotes []part // of network.allow
}

// namedBy is the first profile that one of several names, strict if none does.
func namedBy(from []*profile) (name, where string) {
	for _, p := range from {
		if v := &p.values[keyProfile]; v.isSet() {
			return v.s, v.origin
		}
	}
	return "strict", ""
}

// clear removes the keys of an order.
func (p *profile) clear(o order) {
	for k := range p.values {
		if keys[k].order == o {
			p.values[k] = value{}
		}
	}
}

// collect merges the profile, the configuration files, the project's file and
// the environment; see [Resolve] for the order.
func collect(req *Request, facts *Facts, workspace string) (*collected, error) {
	c := &collected{read: Files{}}
	s := source{facts: facts, files: c.read}
	env, notes, err := fromEnviron(facts.Environ)
	if err != nil {
		return nil, err
	}
	c.notes = notes

	// Overlays, the strongest first.
	var overlays []*profile
	for _, dir := range facts.ConfigDirs {
		p, err := s.overlay(path.Join(dir, "config.yaml"))
		if err != nil {
			return nil, err
		}
		if p != nil {
			overlays = append(overlays, p)
		}
	}
	b := facts.began
	if b == nil {
		b = new(began)
		if b.project, b.src, b.trusted, err = s.project(workspace); err != nil {
			return nil, err
		}
	}
	project, src, trusted := b.project, b.src, b.trusted

	from := append([]*profile{env}, overlays...)
	if trusted {
		from = slices.Insert(from, 1, project)
	}
	name, where := req.Profile, "flag --profile"
	if name == "" {
		name, where = namedBy(from)
	}
	base, err := s.load(name, where)
	if err != nil {
		return nil, err
	}
	c.profile = *base
	c.name, c.file = base.name, base.file

	lay := func(p *profile) {
		q := *p
		q.over(&c.profile)
		c.profile = q
	}
	for _, p := range slices.Backward(overlays) {
		lay(p)
	}
	if project != nil {
		p := *project
		if !trusted {
			if err := tightens(&c.profile, project, s.howToTrust(path.Join(workspace, projectFile), src)); err != nil {
				return nil, err
			}
			p.clear(orderFewer)
		}
		lay(&p)
	}
	lay(env)
	c.profile.name = c.name
	c.values[keyProfile] = value{}
	if c.flag(keyNetTools) && c.enum(keyNetMode) == "proxy" {
		t := s.findTools(workspace)
		v := &c.values[keyNetAllow]
		v.parts = slices.Concat(v.parts, t.parts)
		w := &c.values[keyCopyTry]
		w.parts = slices.Concat(w.parts, t.copies)
		c.notes = append(c.notes, t.notes...)
		c.env = t.env
		b.remotes = t.remotes
	}
	c.began = *b
	return c, nil
}

// project reads the workspace's own file and tells whether the caller trusts
// its content.
func (s source) project(workspace string) (p *profile, src string, trusted bool, err error) {
	if workspace == "" {
		return nil, "", false, nil
	}
	name := path.Join(workspace, projectFile)
	src, ok, err := s.readFile(name, false, maxFile)
	if !ok || err != nil {
		return nil, "", false, err
	}
	if p, err = parseOverlay(name, src); err != nil {
		return nil, "", false, err
	}
	if err := p.operators("a project has no say in it, trusted or not"); err != nil {
		return nil, "", false, err
	}
	// A file would change, by a command of a run that it has no part in or by
	// whoever writes the project, and the trust would stay.
	for _, k := range []key{keyProfile, keySeccomp} {
		if v := &p.values[k]; isFileName(v.s) || strings.HasSuffix(v.s, ".json") {
			return nil, "", false,
				&Error{Where: v.origin,
					What: keys[k].name + ": a project names no other file, trusted or not: trust is in the content of this one",
					Fix:  "say the same in here, or name a profile of your configuration"}
		}
	}
	trusted, err = s.trusts(name, src)
	return p, src, trusted, err
}
