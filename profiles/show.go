package profiles

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// An Entry is one value of a profile and where it came from. A list has an
// entry for each item.
type Entry struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

// entries lists the values, in the order of the documentation.
func (p *profile) entries() []Entry {
	out := []Entry{}
	for k := range p.values {
		v := &p.values[k]
		if keys[k].kind != kindList {
			if v.isSet() {
				out = append(out, Entry{keys[k].name, v.format(key(k)), v.origin})
			}
			continue
		}
		for origin, item := range v.each() {
			out = append(out, Entry{keys[k].name, item, origin})
		}
	}
	return out
}

// Show lists the values that a run of req would have: the profile with the
// configuration files, the environment and the flags over it. Unlike [Resolve]
// it looks up no path of the profile, and works where no run would.
func Show(req *Request, facts *Facts) ([]Entry, error) {
	workspace := ""
	if dir, _, _, err := findWorkspace(req, facts); err == nil {
		workspace = dir
	}
	c, err := collect(req, facts, workspace)
	if err != nil {
		return nil, err
	}
	if err := c.flags(req); err != nil {
		return nil, err
	}
	return c.entries(), nil
}

// A Change is a value that two profiles do not share; "" is none.
type Change struct {
	Key string `json:"key"`
	A   string `json:"a"`
	B   string `json:"b"`
}

// Diff lists in which values two profiles differ.
func Diff(a, b []Entry) []Change {
	out := []Change{}
	for k := range keys {
		name := keys[k].name
		if keys[k].kind != kindList {
			if va, vb := valueOf(a, name), valueOf(b, name); va != vb {
				out = append(out, Change{name, va, vb})
			}
			continue
		}
		for _, e := range a {
			if e.Key == name && !hasValue(b, name, e.Value) {
				out = append(out, Change{Key: name, A: e.Value})
			}
		}
		for _, e := range b {
			if e.Key == name && !hasValue(a, name, e.Value) {
				out = append(out, Change{Key: name, B: e.Value})
			}
		}
	}
	return out
}

func valueOf(entries []Entry, key string) string {
	for _, e := range entries {
		if e.Key == key {
			return e.Value
		}
	}
	return ""
}

func hasValue(entries []Entry, key, value string) bool {
	return slices.ContainsFunc(entries, func(e Entry) bool { return e.Key == key && e.Value == value })
}

// Info describes a profile that can be named.
type Info struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Origin      string `json:"origin"` // "built in", or its file

	// Err is what is wrong with the file, or nil.
	Err error `json:"-"`
}

// List describes every profile that can be named, the presets first.
func List(facts *Facts) []Info {
	s := source{facts: facts}
	var out []Info
	for _, name := range s.names() {
		info := Info{Name: name, Origin: "built in"}
		for _, dir := range facts.ConfigDirs {
			file := path.Join(dir, "profiles", name+".yaml")
			if _, err := fs.Stat(facts.FS, fsPath(file)); err == nil {
				info.Origin = file
				break
			}
		}
		p, err := s.load(name, "")
		if err != nil {
			info.Err = err
		} else {
			info.Description = p.text(keyDescription)
		}
		out = append(out, info)
	}
	return out
}

// Check reports the first mistake in a file: a configuration file if it is
// named config.yaml or .sbxrun.yaml, a profile otherwise, with all that it
// extends.
func Check(file string, facts *Facts) error {
	s := source{facts: facts}
	name, err := facts.absolute(file)
	if err != nil {
		return err
	}
	if base := path.Base(name); base == "config.yaml" || base == projectFile {
		src, ok, err := s.readFile(name, base != projectFile, maxFile)
		if err != nil {
			return err
		}
		if !ok {
			return &Error{Where: name, What: "does not exist"}
		}
		_, err = parseOverlay(name, src)
		return err
	}
	if !isFileName(file) || !strings.Contains(file, "/") {
		file = "./" + file
	}
	_, err = s.load(file, "profile check")
	return err
}
