//go:build unix

package engine

import (
	"os"
	"syscall"
)

// inheritOwner gives a file the owner of another.
func inheritOwner(file string, of os.FileInfo) error {
	st, ok := of.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		return nil
	}
	return os.Chown(file, int(st.Uid), int(st.Gid))
}

// names is how many names a file has.
func names(of os.FileInfo) uint64 {
	if st, ok := of.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink)
	}
	return 1
}
