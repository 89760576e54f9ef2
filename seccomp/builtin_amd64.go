package seccomp

import _ "embed"

//go:embed programs/strict.amd64.bpf
var strictProgram string

//go:embed programs/production.amd64.bpf
var productionProgram string

//go:embed programs/default.amd64.bpf
var defaultProgram string
