//go:build !(linux && cgo)

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr,
		"sbxrun-seccomp: error: built without libseccomp; rebuild it on Linux with CGO_ENABLED=1, gcc and libseccomp-dev")
	os.Exit(1)
}
