package profiles

import (
	"io/fs"
	"syscall"
)

// deviceNumber returns a device node's number, 0:0 if the file tree does not
// tell. See makedev(3) for the layout of dev_t.
func deviceNumber(info fs.FileInfo) (major, minor int64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	d := uint64(st.Rdev)
	return int64(d>>8&0xfff | d>>32&^uint64(0xfff)), int64(d&0xff | d>>12&^uint64(0xff)&0xffffffff)
}
