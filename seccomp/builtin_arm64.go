package seccomp

import _ "embed"

//go:embed programs/strict.arm64.bpf
var strictProgram string

//go:embed programs/production.arm64.bpf
var productionProgram string

//go:embed programs/default.arm64.bpf
var defaultProgram string
