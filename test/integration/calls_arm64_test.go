//go:build linux

package integration

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Calls that only some architectures have.
var (
	portCalls []string
	setrlimit = fmt.Sprint(unix.SYS_SETRLIMIT)

	syscallPrlimit = unix.SYS_PRLIMIT64
)
