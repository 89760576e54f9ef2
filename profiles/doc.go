// Package profiles turns what a caller asks for into a [policy.Policy]: it
// finds the profile, lays the configuration files, the environment and the
// flags over it, expands paths and globs, and remembers where every value came
// from.
//
// A profile is a set of values for the keys of one table (keys.go). The parser
// of profile files, the published JSON Schema, merging, the rule that a project
// may only tighten, and "profile show" all read that table, so they cannot
// disagree. The presets are YAML files beside this one; "go generate" turns them
// into Go data, because a run must not pay for parsing them.
//
// [Resolve] is a function of its arguments: the host comes in as [Facts], its
// file tree as an io/fs.FS.
//
// What it does not do: it enforces nothing, knows no driver, makes no system
// call of its own, and does not look into globs again once a run has started.
package profiles

//go:generate go test -run ^TestGenerated$ . -update
