package guard

import (
	"maps"
	"testing"
)

// TestPasses: a file system that may keep a look-up waiting is not looked into, but for
// the one that the sandbox shows a part of.
func TestPasses(t *testing.T) {
	const text = `22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
24 22 0:30 / /net rw - autofs auto rw
25 22 0:31 / /home rw - autofs auto rw
26 25 0:32 / /home/u rw - nfs4 server:/u rw
27 25 0:33 / /home/o rw - nfs4 server:/o rw
28 22 0:34 / /mnt/a\040b rw - fuse.sshfs x rw
29 22 0:35 / /boot rw - autofs auto rw
30 29 8:2 / /boot rw master:1 - vfat /dev/sda2 rw
31 22 0:36 / /data rw - xfs /dev/sdb rw
32 31 0:37 / /data rw - fuse x rw
`
	want := map[string]pass{"/": always, "/proc": never, "/net": through, "/home": through, "/home/u": shown, "/home/o": never, "/mnt/a b": never, "/boot": always, "/data": never}
	if got := passes([]byte(text), []Grant{{Path: "/home/u/project"}, {Path: "/proc"}, {Path: "/nowhere"}}); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
