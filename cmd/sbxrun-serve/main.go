// Command sbxrun-serve does the work of "sbxrun serve" and "sbxrun pool", which
// execute it: what it links (HTTP) has init functions that would be paid by every
// run.
package main

import (
	"os"

	"github.com/sbxrun/sbxrun/internal/cli"
)

func main() { os.Exit((&cli.Beside{Serve: serveAll, Pools: pools}).Main(os.Args[1:])) }
