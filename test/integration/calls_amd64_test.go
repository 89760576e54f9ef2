//go:build linux

package integration

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Calls that only this architecture has.
var (
	portCalls = numbers(unix.SYS_IOPL, unix.SYS_IOPERM)
	setrlimit = fmt.Sprint(unix.SYS_SETRLIMIT)

	syscallPrlimit = unix.SYS_PRLIMIT64
)
