package workspace

// State says whether a change can be taken over.
type State string

// The states of changes.
const (
	Clean    State = "clean"    // the host has what the change was made of
	Done     State = "done"     // the host has what the change would make of it
	Conflict State = "conflict" // the host has something else
)

// A Status is a change, and what the host says of it.
type Status struct {
	*Change
	State     State  `json:"state"`
	Why       string `json:"why,omitempty"`       // of a conflict
	Protected string `json:"protected,omitempty"` // the pattern that protects the path

	// Now is what the host has.
	Now *Node `json:"now,omitempty"`

	// blocked says that nothing can be put there: what should be a directory
	// above it is something else, and nobody asked for that to go.
	blocked bool

	// holds is the pattern that protects something in a directory that would have to
	// go, with what the sandbox did not know of; "" for none.
	holds string
}

// OnConflict says what becomes of changes that conflict with the workspace.
type OnConflict string

// What can become of them.
const (
	Stop      OnConflict = ""          // nothing is changed at all
	KeepOurs  OnConflict = "keep"      // the workspace's stays, and the set with it
	Overwrite OnConflict = "overwrite" // the sandbox's takes its place, but for a path below what is no directory any more
)

// Options say how a set is applied.
type Options struct {
	// Allow are patterns of the set's Protect, or the first part of them, whose
	// paths may be changed; "all" is every one. A path itself can be named, too.
	Allow []string

	OnConflict OnConflict
}

// A Report is what came of applying a set.
type Report struct {
	Applied   []*Status `json:"applied"`
	Done      int       `json:"done"` // changes that the workspace had already
	Kept      []*Status `json:"kept,omitempty"`
	Protected []*Status `json:"protected,omitempty"` // why nothing was changed
	Conflicts []*Status `json:"conflicts,omitempty"` // why nothing was changed
	Remaining []*Status `json:"-"`
}

// Refused reports whether nothing was changed, because of protected paths or
// conflicts.
func (r *Report) Refused() bool { return len(r.Protected)+len(r.Conflicts) > 0 }
