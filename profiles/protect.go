package profiles

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// unprotectAll takes every pattern off the list of protected paths.
const unprotectAll = "all"

// protect sets the protected paths, where anything of the host is writable.
func (r *resolver) protect(p *policy.Policy) error {
	list := []string{}
	for _, part := range r.values[keyProtect].parts {
		others := list // no preset has a pattern twice
		for _, item := range part.items {
			if !strings.HasPrefix(part.origin, "preset ") {
				others = list
			}
			if !slices.Contains(others, item) {
				list = append(list, item)
			}
		}
	}
	all := list
	for origin, item := range r.values[keyUnprotect].each() {
		list = slices.DeleteFunc(slices.Clone(list), func(pattern string) bool {
			return item == unprotectAll || lifts(item, pattern)
		})
		if item != unprotectAll && !slices.ContainsFunc(all, func(pattern string) bool { return lifts(item, pattern) }) {
			return &Error{Where: origin, What: quote.Text(item) + " is not protected, and nothing below it is",
				Fix: cmp.Or(didYouMean(item, parts(all)), "sbxrun profile show lists what is, as files.protect")}
		}
	}
	if writesHost(p) {
		p.Protect = list
	}
	return nil
}

// lifts reports whether an item of files.unprotect names a pattern or what it
// begins with: ".git" is ".git/" and ".git/hooks", too.
func lifts(item, pattern string) bool {
	return item == pattern || item != "" && strings.HasPrefix(pattern, strings.TrimSuffix(item, "/")+"/")
}

// writesHost reports whether anything of the host is writable.
func writesHost(p *policy.Policy) bool {
	return slices.ContainsFunc(p.Files, func(f policy.FileRule) bool { return f.Access&policy.Write != 0 }) ||
		slices.ContainsFunc(p.OCI.Mounts, writableBind)
}

// parts are patterns and the first names of those with several, which stand for all that
// begin with them.
func parts(patterns []string) []string {
	all := slices.Clone(patterns)
	for _, p := range patterns {
		if first, _, more := strings.Cut(p, "/"); more && !slices.Contains(all, first) {
			all = append(all, first)
		}
	}
	return all
}

// checkPattern reports what is wrong with a pattern as this package does.
func checkPattern(pattern string) error {
	err := policy.CheckProtect(pattern)
	var invalid *policy.InvalidError
	if errors.As(err, &invalid) {
		return &Error{What: quote.Text(pattern) + " is not a pattern of names: want " + invalid.Want}
	}
	return err
}
