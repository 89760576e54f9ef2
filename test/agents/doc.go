// Package agents tests sbxrun with real coding agents, of the versions that
// tools/agents installs. A model of our own has them run commands
// (internal/agents/model); nothing leaves this machine.
package agents
