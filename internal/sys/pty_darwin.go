package sys

import (
	"bytes"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PtyName is the path of the other end of a terminal's master.
//
//	int ioctl(int fd, TIOCPTYGNAME, char name[128]);
func PtyName(master int) (string, error) {
	var name [128]byte
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCPTYGNAME,
		uintptr(unsafe.Pointer(&name))); errno != 0 {
		return "", errno
	}
	end := max(bytes.IndexByte(name[:], 0), 0)
	return string(name[:end]), nil
}
