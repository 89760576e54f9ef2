//go:build amd64 || arm64

package sys

import (
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalBytes has each signal's number at its index: what the handler writes.
var signalBytes [65]byte

// signalPipe is the descriptor that the handler writes to.
var signalPipe int32

// handlerPC and restorerPC are the addresses of the handler and of what it
// returns to; implemented in assembly.
func handlerPC() uintptr
func restorerPC() uintptr

// sigaction is the kernel's struct sigaction on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// Flags of struct sigaction; see asm/signal.h.
const (
	saRestorer = 0x04000000
	saOnstack  = 0x08000000
	saRestart  = 0x10000000
)

// WriteOnSignal makes a signal write its number, one byte, to the descriptor,
// from a handler that is not the Go runtime's. All signals share one descriptor,
// the one named last; it should be non-blocking.
//
//	int rt_sigaction(int signum, const struct sigaction *act, struct sigaction *oldact, size_t sigsetsize);
func WriteOnSignal(sig syscall.Signal, fd int) error {
	if sig <= 0 || int(sig) >= len(signalBytes) {
		return syscall.EINVAL
	}
	signalBytes[sig] = byte(sig)
	atomic.StoreInt32(&signalPipe, int32(fd))
	act := &sigaction{
		handler: handlerPC(), restorer: restorerPC(),
		// On the stack that each of the runtime's threads has for signals;
		// goroutines' are too small.
		flags: saOnstack | saRestart | saRestorer,
		mask:  ^uint64(0),
	}
	_, e := Raw(unix.SYS_RT_SIGACTION, uintptr(sig), Addr(act), 0, 8, 0, 0)
	if e != 0 {
		return syscall.Errno(e)
	}
	return nil
}
