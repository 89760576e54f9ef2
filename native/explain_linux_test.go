package native

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/policy"
)

// TestExplain holds the reasons to their order: of those that are one of a step's,
// the first is told.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		op, object string
		layer      policy.Layers
		errno      syscall.Errno
		what       string // "" for a step of what was asked for
		cause, fix string
	}{
		{"clone3", "", policy.LayerUser, syscall.ENOSYS, "layer user", "clone3(2) is missing", "Linux 5.12"},
		{"write", "/proc/sys/user/max_user_namespaces", policy.LayerMount, syscall.EROFS, "layer mount", "/proc/sys is closed", "systempaths=unconfined"},
		{"fsetxattr", "overlay", policy.LayerMount, syscall.EOPNOTSUPP, "", "", "CONFIG_TMPFS_XATTR"},
		{"fsconfig", "userxattr", policy.LayerMount, syscall.EINVAL, "", "", "Linux 5.11"},
		{"fsconfig", "overlay", policy.LayerMount, syscall.EPERM, "", "", "Linux 5.11"},
		{"fsconfig", "proc", policy.LayerMount, syscall.EPERM, "layer mount", "a new /proc is forbidden", "unmask=ALL"},
		{"pivot_root", "/", policy.LayerMount, syscall.EINVAL, "layer mount", "initramfs", "switch_root"},
		{"move_mount", "/x", policy.LayerMount, syscall.EINVAL, "", "", "a place of the same kind"},
		{"openat2", "/x", policy.LayerMount, syscall.ELOOP, "", "", "symbolic link"},
		{"openat2", "/x", policy.LayerLandlock, syscall.EACCES, "", "", "not open to this id"},
		{"landlock_restrict_self", "", policy.LayerLandlock, syscall.E2BIG, "layer landlock", "refused the rules", "report this"},
		{"seccomp", "filter", policy.LayerSeccomp, syscall.EBUSY, "layer seccomp", "one listener", "--unprotect all"},
		{"seccomp", "filter", policy.LayerSeccomp, syscall.EINVAL, "layer seccomp", "refused the system call filter", "CONFIG_SECCOMP_FILTER"},
		{"setexeccon", "profile", policy.LayerAppArmor, syscall.ENOENT, "layer apparmor", "does not let this process change", "loaded"},
		{"join", "cgroup", policy.LayerCgroup, syscall.ENODEV, "layer cgroup", "into its cgroup", "--allow-degraded cgroup"},
		{"keyctl", "session keyring", 0, syscall.EDQUOT, "", "", "kernel.keys.maxkeys"},
		{"setsid", "", 0, syscall.ENOSYS, "", "", ""},
	} {
		step := &reexec.StepError{Op: c.op, Object: c.object, Layer: uint32(c.layer), Origin: "flag --ro", Errno: c.errno}
		err := explain(step)
		var setup *driver.SetupError
		var unavailable *driver.UnavailableError
		switch {
		case errors.As(err, &unavailable):
			if unavailable.What != c.what || c.cause == "" || !strings.Contains(unavailable.Cause, c.cause) || !strings.Contains(unavailable.Fix, c.fix) {
				t.Errorf("%v: %+v, want %s: %s: %s", step, unavailable, c.what, c.cause, c.fix)
			}
		case !errors.As(err, &setup) || c.what != "" || !strings.Contains(setup.Fix, c.fix) || c.fix == "" && setup.Fix != "":
			t.Errorf("%v: %#v, want %q and %q", step, err, c.what, c.fix)
		}
		if !errors.Is(err, c.errno) || !strings.Contains(err.Error(), "(flag --ro): ") {
			t.Errorf("%v: want the errno and the origin", err)
		}
	}
}
