package profiles

import (
	"cmp"
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

// maxTrusted bounds the list of trusted files: some ten thousand lines.
const maxTrusted = 1 << 20

func (s source) trusts(file, content string) (bool, error) {
	if len(s.facts.ConfigDirs) == 0 {
		return false, nil
	}
	list, ok, err := s.readFile(path.Join(s.facts.ConfigDirs[0], trustedFile), true, maxTrusted)
	if !ok || err != nil {
		return false, err
	}
	want := TrustLine(file, content)
	for line := range strings.SplitSeq(list, "\n") {
		// sha256sum(1) prints a second space, or an asterisk, before the name.
		if sum, name, ok := strings.Cut(line, " "); ok && len(name) > 0 && (name[0] == ' ' || name[0] == '*') {
			line = sum + " " + name[1:]
		}
		if line == want {
			return true, nil
		}
	}
	return false, nil
}

// howToTrust is the hint for a file that the caller may well have written.
func (s source) howToTrust(file, content string) string {
	if len(s.facts.ConfigDirs) == 0 {
		return "take the key out, or give the same by a flag"
	}
	return "take the key out, or trust the file as it is now by this line in " + path.Join(s.facts.ConfigDirs[0],
		trustedFile) + ": " + TrustLine(file, content)
}

// tightens reports the first value of over that would give the command more
// than base does.
func tightens(base, over *profile, fix string) error {
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
			What: keys[k].name +
				": a project may only make the sandbox tighter, and this gives more than profile and configuration do",
			Fix: fix,
		}
	}
	return nil
}

// tighter reports whether v in place of, or added to, base gives no more.
func tighter(k key, base, v *value) bool {
	info := &keys[k]
	switch k {
	case keyKillAfter, keyDisk:
		return v.n <= base.n // 0 is at once, and the driver's own bound
	case keyTmpfs:
		// A place with a size is storage beside that of limits.disk, and one
		// without takes the place of one that has.
		sized := func(parts []part) bool {
			return slices.ContainsFunc(parts, func(p part) bool {
				return slices.ContainsFunc(p.items, func(item string) bool { return strings.Contains(item, ":") })
			})
		}
		return !sized(base.parts) && !sized(v.parts)
	}
	switch info.order {
	case orderFree, orderMore:
		return true
	case orderFewer:
		// Lists add up, so only what is there already is harmless. It is not
		// added again: the last of several decides.
		for _, item := range v.each() {
			if !slices.ContainsFunc(base.parts, func(b part) bool { return slices.Contains(b.items, item) }) {
				return false
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
		tightest := info.enum[len(info.enum)-1] // what "" is; see profile.enum
		return slices.Index(info.enum, v.s) >= slices.Index(info.enum, cmp.Or(base.s, tightest))
	}
	return v.s == base.s && v.n == base.n
}
