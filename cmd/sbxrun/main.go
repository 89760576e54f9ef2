// The Go runtime otherwise reads mountinfo and cgroup files at every start, to
// set GOMAXPROCS by the container's cpu limit; sbxrun waits for one process.
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
	"runtime"

	"github.com/sbxrun/sbxrun/internal/cli"
)

func init() {
	// The main goroutine keeps the main thread: drivers clone from it, and a
	// parent-death signal follows the thread, not the process (golang/go#27505).
	runtime.LockOSThread()
}

func main() { os.Exit(cli.Main(os.Args[1:])) }
