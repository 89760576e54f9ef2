//go:build unix

package seccomp

import (
	"fmt"
	"os"
	"syscall"
)

// private refuses a file or directory that somebody else owns or may write to,
// and a symbolic link in its place.
func private(path string, dir bool) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case st.IsDir() != dir || !dir && !st.Mode().IsRegular():
		return fmt.Errorf("%s: not the kind of file it should be", path)
	case !ok || int(sys.Uid) != os.Geteuid():
		return fmt.Errorf("%s: belongs to another user", path)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s: others may write to it", path)
	}
	return nil
}
