package files

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sealedSelf is a copy of this process's executable in memory that can be
// executed, and not changed; see memfd_create(2) and fcntl(2), File Sealing.
func sealedSelf() (*os.File, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	fd, err := unix.MemfdCreate("sbxrun-files", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "agent")
	if _, err = io.Copy(f, self); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|
			unix.F_SEAL_WRITE)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// passing opens a directory on the way, which need not be readable.
const passing = unix.O_PATH
