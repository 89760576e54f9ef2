package engine

import (
	"context"

	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/pool"
	"github.com/sbxrun/sbxrun/session"
)

// A Server is what sbxrun serve serves.
type Server struct {
	// Dir is where the sockets are made: a directory of the owner's alone.
	Dir string

	Version string
	Pools   []ServedPool
	Store   *session.Store

	// Serving is called when clients can connect.
	Serving func()

	// Prune removes what crashed owners left behind a day ago or longer.
	Prune func() error
}

// A ServedPool is one that a server is to keep.
type ServedPool struct {
	Name   string
	Config pool.Config

	// Resolve makes the policy for a workspace, "" for none.
	Resolve func(workspace string) (*policy.Policy, error)
}

// A Service is what sbxrun mcp serves: a policy, made by the operator, and sandboxes
// of it.
type Service struct {
	// Open builds one more sandbox, of the policy as the files have it then. Its
	// context bounds set-up.
	Open func(context.Context) (*session.Environment, error)

	// Bare is what a call that says dangerouslyDisableSandbox runs in: the bare
	// host, if the operator allows that. Nil, of the function or of what it
	// returns, is a refusal.
	Bare func(context.Context) (*session.Environment, error)

	// Audit has every run and every refusal. Nil is none.
	Audit *audit.Log

	Policy      *policy.Policy // as it was at the start, for what is said then
	Why         string         // commands are not sandboxed, "" if they are
	Asks        bool           // sandboxes ask before they refuse
	File        *ProfileFile   // that an answer can be added to, nil for none
	MaxSessions int            // sandboxes of one connection at a time
	Version     string
}
