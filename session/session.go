// Package session keeps sandboxes: one stays, with its processes, while commands
// come and go.
//
// There is no central daemon. Each session has a holder, a process that opened
// the sandbox (Open of a [driver.Driver]) and lives as long as that; it listens on a socket
// in the session's directory, which only its owner can reach. [Hold] is the
// holder; [Client] is the other end, and is a [driver.Sandbox] itself: a command
// gets its caller's own descriptors, passed over the socket, so that no byte of
// its streams goes through the holder.
//
// When the holder dies, however it dies, the sandbox dies with it; what is left
// is a directory, which [Store.Prune] removes.
//
// The package knows no particular driver, and reads no environment: who calls it
// says where sessions are kept.
package session

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/questions"
	"github.com/sbxrun/sbxrun/policy"
)

// State is how far a session is in its life.
type State string

const (
	Created      State = "created"      // there is a directory
	Initializing State = "initializing" // the sandbox is being built
	Ready        State = "ready"        // nothing runs
	Running      State = "running"      // at least one command runs
	Stopping     State = "stopping"     // its end has begun
	Stopped      State = "stopped"      // ended by its owner; only the record is left
	Failed       State = "error"        // ended by itself, or its holder died
)

// Info describes a session.
type Info struct {
	ID      string    `json:"id"`
	State   State     `json:"state"`
	Profile string    `json:"profile"`
	Driver  string    `json:"driver"`
	Dir     string    `json:"dir"` // working directory of commands
	Created time.Time `json:"created"`
	Pid     int       `json:"pid,omitempty"`   // of the holder
	Error   string    `json:"error,omitempty"` // why it failed

	// Limits of each command, unless it is run with others.
	Limits policy.Limits `json:"limits"`

	// Files are those that the policy was made of: what who made it wants to know
	// of them, by name.
	Files map[string]string `json:"files,omitempty"`

	// Follows says that the network rules follow those files, and all else stays.
	Follows bool `json:"follows,omitempty"`

	// What a running holder tells beside. Notice is what the owner should know.
	Notice   string         `json:"notice,omitempty"`
	Commands []CommandInfo  `json:"commands,omitempty"`
	Status   *driver.Status `json:"-"`
}

// CommandInfo describes a command in a session.
type CommandInfo struct {
	ID         int       `json:"id"`
	Args       []string  `json:"args"`
	Started    time.Time `json:"started"`
	Running    bool      `json:"running"`
	Background bool      `json:"background"`
	ExitCode   *int      `json:"exit_code,omitempty"` // nil as long as it runs
	Signal     string    `json:"signal,omitempty"`
}

// ErrNotFound says that there is no session of that name.
var ErrNotFound = errors.New("no such session")

// ErrExists says that there is one already.
var ErrExists = errors.New("the session exists already")

// ErrNotRunning says that a session has ended: only its record is left.
var ErrNotRunning = errors.New("the session has ended")

// ErrStarting says that the holder of a session has not begun to listen.
var ErrStarting = errors.New("it takes no commands yet")

// A NoCommandError says that a session has no such command.
type NoCommandError struct {
	Session string
	Command int // 0: one with a terminal to attach to
}

func (e *NoCommandError) Error() string {
	if e.Command == 0 {
		return "session " + e.Session + ": there is no command with a terminal to attach to"
	}
	return "session " + e.Session + ": there is no command " + strconv.Itoa(e.Command)
}

// Is makes it an fs.ErrNotExist.
func (e *NoCommandError) Is(target error) bool { return target == fs.ErrNotExist }

// ErrAsksNothing says that a session was made without questions.
var ErrAsksNothing = errors.New("the session was made without --ask, and asks nothing")

// ErrEnding says that a session begins no command any more. It is an ErrNotRunning
// and a [driver.ErrSandboxGone], for who does not tell it from these.
var ErrEnding error = endingError{}

type endingError struct{}

func (endingError) Error() string { return "the session is ending" }

// Is reports whether the target is an error that this one counts as.
func (endingError) Is(target error) bool {
	return target == ErrNotRunning || target == driver.ErrSandboxGone
}

// CheckID reports an *InvalidError if a name is not one for a session: 1 to 64
// letters, digits, '-', '_' and '.', of which the first is a letter or a digit.
// So no name is a path.
func CheckID(id string) error { return policy.CheckName("session", id) }

// NewID makes a name for a session.
func NewID() string {
	return "s" + strconv.FormatInt(time.Now().UnixMilli(), 36) + "-" + strconv.FormatUint(uint64(rand.Uint32()), 36)
}

// Spec is what a holder is started with.
type Spec struct {
	ID     string         `json:"id"`
	Driver string         `json:"driver"`
	Policy *policy.Policy `json:"policy"`

	// Origin is what the policy was made of, for whoever opens the sandbox; nil if
	// nobody needs to know.
	Origin json.RawMessage `json:"origin,omitempty"`

	// Notice, if not nil, gives what [Info] is to say of the session.
	Notice func() string `json:"-"`

	// AskMS is how long a refusal waits for somebody to say that it is none, 0 if nobody is
	// asked. Board has those, for who opens the sandbox, and Audit is where answers are
	// recorded.
	AskMS int64            `json:"ask_ms,omitempty"`
	Board *questions.Board `json:"-"`
	Audit json.RawMessage  `json:"audit,omitempty"`

	// Owner is a process whose end is the session's, 0 if there is none, and when
	// it began (in ticks since boot), because numbers are used again.
	Owner      int    `json:"owner,omitempty"`
	OwnerBegan uint64 `json:"owner_began,omitempty"`
}

// An Environment is where the commands of a session run.
type Environment struct {
	Sandbox driver.Sandbox
	Policy  *policy.Policy
	Driver  string           // the name of what isolates, for results
	Why     string           // it is no sandbox, "" if it is one
	Board   *questions.Board // what it asks before it refuses; nil if it does not
}
