//go:build !amd64 && !arm64

package seccomp

// No program is compiled for this architecture; [Builtin] says so.
const strictProgram, productionProgram, defaultProgram = "", "", ""
