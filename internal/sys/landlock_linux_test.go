package sys

import (
	"strings"
	"syscall"
	"testing"
)

// TestNoLandlock: that a kernel has no Landlock is said only where nobody else can have
// answered for it.
func TestNoLandlock(t *testing.T) {
	for _, tt := range []struct {
		errno    syscall.Errno
		filtered bool
		want     string
	}{
		{syscall.ENOSYS, false, "this kernel has no Landlock"},
		{syscall.ENOSYS, true, "system call filter"},
		{syscall.EPERM, true, "system call filter"},
		{syscall.EOPNOTSUPP, false, "not enabled at boot"},
		{syscall.EOPNOTSUPP, true, "system call filter"},
	} {
		if cause, fix := noLandlock(tt.errno, tt.filtered); !strings.Contains(cause, tt.want) || fix == "" || tt.filtered && strings.HasPrefix(cause, "this kernel has no") {
			t.Errorf("%v, %t: %q, %q", tt.errno, tt.filtered, cause, fix)
		}
	}
}
