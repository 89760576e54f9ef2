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
	"runtime"
	"time"

	"github.com/sbxrun/sbxrun/internal/cli"
	"github.com/sbxrun/sbxrun/internal/solo"
)

// beginning is how long the program has one processor: a cold run of true is over, and
// what goes on wants them all.
const beginning = 50 * time.Millisecond

func main() {
	if solo.Processors == runtime.NumCPU() {
		time.AfterFunc(beginning, solo.End)
	} else {
		solo.End() // GOMAXPROCS says so, or there are none
	}
	cli.Stay, cli.Spread = solo.Stay, solo.End
	growStack(len(os.Args))
	os.Exit(cli.Main(os.Args[1:]))
}

// growStack gives the goroutine at once the stack that a run takes. Growing it step by
// step, the runtime copies it each time, and looks each function on it up in tables that
// have to be read from the file: 4 % of the processor time of a run.
//
//go:noinline
func growStack(args int) int {
	if args >= 0 {
		return 0 // the frame is on the stack by now, and none of it was touched
	}
	var frame [28 << 10]byte
	for i := range frame {
		frame[i] = byte(args >> (i & 7))
	}
	return int(frame[-args&0xfff])
}
