//go:build !(linux && cgo)

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr,
		"gen: needs Linux, cgo and libseccomp's development files (apt-get install gcc libseccomp-dev)")
	os.Exit(1)
}
