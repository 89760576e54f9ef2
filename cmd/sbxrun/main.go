// The Go runtime otherwise starts a goroutine that follows changes of the
// container's cpu limit; sbxrun waits for one process.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command sbxrun runs a command that nobody trusts inside an isolation boundary
// that the operating system enforces.
//
// Everything is in internal/cli; this file holds what only package main can say.
package main

import (
	"os"

	"github.com/sbxrun/sbxrun/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
