// Package solo has a program begin on one processor, for what lives a few milliseconds:
// most runs of sbxrun are over by the time at which the others are wanted.
//
// With more than one, the Go runtime starts and wakes a thread on another processor for
// each goroutine that is made, to look for work, and its monitor polls for as long as two
// system calls wait. That is 6 % of the processor time of a run that executes true.
//
// It imports next to nothing, so that it is initialised before most of the program. What
// sbxrun does must work on one processor anyway: there are such machines.
package solo

import (
	"runtime"
	"sync"
)

// Processors is how many there were: GOMAXPROCS, or those of sched_getaffinity(2).
var Processors = runtime.GOMAXPROCS(1)

var (
	mu    sync.Mutex
	stays bool
)

// Stay keeps the program on one processor, for as long as it lives.
func Stay() {
	mu.Lock()
	defer mu.Unlock()
	stays = true
	runtime.GOMAXPROCS(1)
}

// End gives the program all of them, unless it stays.
func End() {
	mu.Lock()
	defer mu.Unlock()
	if !stays {
		runtime.GOMAXPROCS(Processors)
	}
}
