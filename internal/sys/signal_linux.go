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

// The addresses of the handlers, and of what they return to; implemented in
// assembly.
func handlerPC() uintptr
func restorerPC() uintptr
func nothingPC() uintptr

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
	return act(sig, handlerPC(), saRestart)
}

// DefaultOn makes a signal do what it does to a program that says nothing of it.
func DefaultOn(sig syscall.Signal) error { return act(sig, 0, 0) }

// InterruptOn makes a signal do nothing but to end the call in which a thread waits,
// with EINTR. The runtime's own handlers have the kernel go on with it.
func InterruptOn(sig syscall.Signal) error { return act(sig, nothingPC(), 0) }

func act(sig syscall.Signal, handler uintptr, flags uint64) error {
	// On the stack that each of the runtime's threads has for signals; goroutines'
	// are too small.
	a := &sigaction{handler: handler, restorer: restorerPC(), flags: flags | saOnstack | saRestorer, mask: ^uint64(0)}
	_, e := Raw(unix.SYS_RT_SIGACTION, uintptr(sig), Addr(a), 0, 8, 0, 0)
	return errnoError(0, e)
}
