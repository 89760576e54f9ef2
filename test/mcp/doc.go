// Package mcp runs real clients of the Model Context Protocol against sbxrun mcp:
// the protocol's TypeScript libraries, over stdio and over HTTP, and its
// conformance suite. tools/deps installs them from package-lock.json into .cache; without
// them the tests fail and name what is missing.
//
// It has no code of its own; what the server does is tested beside it, in
// mcpserver and cmd/sbxrun-mcp.
package mcp
