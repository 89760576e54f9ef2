module github.com/sbxrun/sbxrun

go 1.26.0

require github.com/opencontainers/runtime-spec v1.3.0

require (
	github.com/seccomp/libseccomp-golang v0.11.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
