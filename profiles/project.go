package profiles

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
)

// trustedFile lists the project files that the caller trusts, in the first
// configuration directory: one "HASH PATH" a line.
const trustedFile = "trusted"

// TrustLine returns the line that trusts a project file with that content. It
// goes into the file "trusted" of the caller's configuration directory; any
// change of the project's file ends the trust.
func TrustLine(file, content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:]) + " " + file
}

func (s source) trusts(file, content string) (bool, error) {
	if len(s.facts.ConfigDirs) == 0 {
		return false, nil
	}
	list, ok, err := s.readFile(path.Join(s.facts.ConfigDirs[0], trustedFile), true)
	if !ok || err != nil {
		return false, err
	}
	return slices.Contains(strings.Split(list, "\n"), TrustLine(file, content)), nil
}

// tightens reports the first value of over that would give the command more
// than base does.
func tightens(base, over *profile, file string) error {
	for k := range over.values {
		v := &over.values[k]
		if !v.isSet() || tighter(key(k), &base.values[k], v) {
			continue
		}
		where := v.origin
		if where == "" {
			where = v.parts[0].origin
		}
		return &Error{
			Where: where,
			What:  keys[k].name + ": a project may only make the sandbox tighter, and this gives more than profile and configuration do",
			Fix:   "to trust the file as it is now, run: sbxrun profile check --trust " + file,
		}
	}
	return nil
}

// tighter reports whether v in place of, or added to, base gives no more.
func tighter(k key, base, v *value) bool {
	info := &keys[k]
	switch info.order {
	case orderFree, orderMore:
		return true
	case orderFewer:
		// Lists add up, so only what is there already is harmless.
		for _, p := range v.parts {
			for _, item := range p.items {
				if !slices.ContainsFunc(base.parts, func(b part) bool { return slices.Contains(b.items, item) }) {
					return false
				}
			}
		}
		return true
	case orderLess:
		return base.n == 0 || v.n != 0 && v.n <= base.n
	case orderTrue:
		return v.n >= base.n
	case orderFalse:
		return v.n <= base.n
	case orderEnum:
		if base.s == "" { // the tightest; see profile.enum
			return v.s == info.enum[len(info.enum)-1]
		}
		return slices.Index(info.enum, v.s) >= slices.Index(info.enum, base.s)
	}
	return v.s == base.s && v.n == base.n
}
