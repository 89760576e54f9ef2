package engine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewRefusals returns an empty file.
func NewRefusals() (*Refusals, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("refusals", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("refusals", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	r := &Refusals{file: os.NewFile(uintptr(fd), "refusals")}
	if err = unix.Ftruncate(fd, refusalsSize); err == nil {
		r.mem, err = unix.Mmap(fd, 0, refusalsSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		for i := range r.mem {
			r.mem[i] = ' '
			if i%refusalLine == refusalLine-1 {
				r.mem[i] = '\n'
			}
		}
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
			unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)
	}
	if err == nil {
		err = r.file.Chmod(0o444)
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("a file for refusals: %w", err)
	}
	return r, nil
}

// Close gives up the file. What is added later is not kept.
func (r *Refusals) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem != nil {
		unix.Munmap(r.mem)
		r.mem = nil
	}
	r.file.Close()
}
