//go:build unix

package profiles

import (
	"io/fs"
	"syscall"
)

// ownerOf returns the user that a file belongs to; false if the file tree does
// not tell.
func ownerOf(info fs.FileInfo) (uid uint32, known bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}
