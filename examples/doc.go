// Package examples holds small programs that use sbxrun as a library, each to be read
// from top to bottom: run (one command), session (a sandbox that stays), pool (sandboxes
// that are ready), egress (a network by name) and mcphost (tools of sbxrun mcp for a
// model). Its test runs all of them.
package examples
