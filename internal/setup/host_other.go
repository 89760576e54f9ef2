//go:build !linux

package setup

import (
	"os"
	"syscall"
)

// Host fills in what the host says: nothing that sandboxes need is missing on macOS.
func (f *Facts) Host() { f.Etc = "/etc" }

// Owns reports whether a file is a directory of a user's.
func Owns(fi os.FileInfo, uid int) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && fi.IsDir() && int(st.Uid) == uid
}
