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

// TestTooOld: a kernel is called too old where it says that it is and has not the call,
// and then nothing that could be given up is named.
func TestTooOld(t *testing.T) {
	for _, tt := range []struct {
		errno   syscall.Errno
		release string
		old     bool
	}{
		{syscall.ENOSYS, "5.10.0-46-cloud-amd64", true},
		{syscall.ENOSYS, "4.18", true},
		{syscall.ENOSYS, "5.12-rc1", false}, // a filter answered
		{syscall.ENOSYS, "6.1.0-13-amd64", false},
		{syscall.EPERM, "5.10.0", false},
		{syscall.EINVAL, "4.18.0-553.el8", false}, // brought back
		{syscall.ENOSYS, "unknown", false},
		{syscall.ENOSYS, "6", false},
	} {
		cause, fix := tooOld(tt.errno, tt.release)
		if (cause != "") != tt.old || tt.old && (!strings.Contains(cause, "Linux "+tt.release) || !strings.Contains(fix, "Linux 6.1 or later")) {
			t.Errorf("%v, %s: %q, %q", tt.errno, tt.release, cause, fix)
		}
	}
	if cause, _ := TooOld(); cause != "" {
		t.Errorf("here: %s", cause)
	}
}
