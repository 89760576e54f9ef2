// Package probe finds out what this host can give a sandbox, by doing it: a
// child process makes a user namespace and mounts in it, because some hosts let
// the namespace be made and then deny what it is for (Ubuntu 24.04). Reading a
// setting only explains a failure, and never stands for trying.
//
// Each probe has one of three answers, and a "no" comes with its cause and with
// the exact thing to do about it. What cannot be told (a file that may not be
// read, a program that does not answer) is "unknown", never "no".
//
// It changes nothing on the host: what a probe makes, it makes in namespaces of
// its own, which end with it. It knows no policy and decides nothing.
package probe

import "strings"

// A State is the answer to one probe. The zero value is Unknown.
type State uint8

// The answers.
const (
	Unknown State = iota
	No
	Yes
)

func (s State) String() string {
	switch s {
	case No:
		return "no"
	case Yes:
		return "yes"
	}
	return "unknown"
}

// MarshalText prints the state in words.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Check is one probe and its answer.
type Check struct {
	Name   string `json:"name"`
	Group  string `json:"group"` // what the check belongs to, for printing
	State  State  `json:"state"`
	Detail string `json:"detail,omitempty"` // what was found: a version, a value
	Cause  string `json:"cause,omitempty"`  // why not
	Fix    string `json:"fix,omitempty"`    // what to do about it
}

// The groups, in the order in which they are printed.
const (
	GroupKernel   = "kernel"
	GroupSettings = "settings"
	GroupDrivers  = "drivers"
	GroupBoundary = "boundary"
)

// Command is the first argument of a process that this package starts of the
// calling program's own executable; its main function hands the rest to
// [Child].
const Command = "__probe"

// parseVersion takes the version out of what a program prints about itself:
// the first word that begins with a digit, or with v and a digit.
func parseVersion(out string) string {
	for word := range strings.FieldsSeq(out) {
		w := strings.TrimRight(strings.TrimPrefix(word, "v"), ",;")
		if w != "" && w[0] >= '0' && w[0] <= '9' {
			return w
		}
	}
	return ""
}

// Marker is the variable of what doctor starts this program again for. A program that is
// not sbxrun's own looks for it, and not for arguments alone.
const (
	MarkerName = "SBXRUN_PROBE"
	Marker     = MarkerName + "=1"
)
