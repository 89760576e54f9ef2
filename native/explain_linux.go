package native

import (
	"errors"
	"slices"
	"syscall"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/internal/sys"
	"github.com/sbxrun/sbxrun/policy"
)

// explain turns the report of a failed step into an error that names the layer,
// the cause and the fix. It looks at the host only now that something failed: a
// run that works pays nothing for it, and what the kernel just refused is better
// evidence than any probe.
func explain(err error) error {
	var step *reexec.StepError
	if !errors.As(err, &step) {
		return &driver.SetupError{Driver: Name, Err: err}
	}
	layer := policy.Layers(step.Layer)
	if layer == policy.LayerUser && step.Errno == syscall.ENOSPC {
		// One call makes all namespaces, and one errno is for all their limits.
		for _, l := range [...]struct {
			layer policy.Layers
			name  string
		}{{policy.LayerPID, "pid"}, {policy.LayerMount, "mnt"}, {policy.LayerNet, "net"}, {policy.LayerIPC, "ipc"},
			{policy.LayerUTS, "uts"}} {
			name := "max_" + l.name + "_namespaces"
			if sysctl("user/"+name) == "0" {
				return &driver.UnavailableError{What: "layer " + driver.LayerName(l.layer),
					Cause: "this host allows no such namespace (user." + name + " is 0)",
					Fix:   "sysctl -w user." + name + "=10000 (as root)", Err: err}
			}
		}
	}
	cause, fix := reasonOf(step)
	if cause == "" {
		return &driver.SetupError{Driver: Name, Err: err, Fix: fix}
	}
	return &driver.UnavailableError{What: "layer " + driver.LayerName(layer), Cause: cause, Fix: fix, Err: err}
}

// reasonOf returns the first of the reasons that is one of this step.
func reasonOf(e *reexec.StepError) (cause, fix string) {
	for i := range reasons {
		if r := &reasons[i]; r.of(e) {
			if r.ask == nil {
				return r.cause, r.fix
			}
			if cause, fix := r.ask(); cause != "" {
				return cause, fix
			}
		}
	}
	return "", ""
}

// A reason is why steps fail, and what to do about it. With a cause it is the host
// that cannot have the layer; without one, what was asked for cannot be done.
type reason struct {
	// Which steps: those of a layer that make one of the calls, about one of the
	// objects, with one of the errnos. Zero is all.
	layer   policy.Layers
	ops     []string
	objects []string
	errnos  []syscall.Errno

	cause, fix string
	ask        func() (cause, fix string) // what the host says instead; no cause is another reason
}

func (r *reason) of(e *reexec.StepError) bool {
	return (r.layer == 0 || r.layer == policy.Layers(e.Layer)) && among(r.ops, e.Op) && among(r.objects, e.Object) &&
		among(r.errnos, e.Errno)
}

func among[T comparable](list []T, v T) bool { return len(list) == 0 || slices.Contains(list, v) }

const (
	elsewhere = "; or run without any, which is weaker: --driver landlock --allow-degraded namespaces,protect"

	// All at once: each alone leads to the next refusal.
	container = "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined --security-opt apparmor=unconfined " +
		"(podman: --security-opt unmask=ALL for the second)"
)

// reasons are all that are known, those of few steps before those of many.
var reasons = [...]reason{
	// The mounts are built beside each other, each with a descriptor.
	{errnos: []syscall.Errno{syscall.EMFILE}, fix: "the limit on open files is too low: ulimit -n 1024"},
	{ops: []string{"keyctl"}, errnos: []syscall.Errno{syscall.EDQUOT}, fix: driver.FixKeys},

	{layer: policy.LayerUser, errnos: []syscall.Errno{syscall.ENOSPC},
		cause: "the limit on user namespaces is reached or 0", fix: "sysctl -w user.max_user_namespaces=10000 (as root)" +
			elsewhere},
	{layer: policy.LayerUser, errnos: []syscall.Errno{syscall.ENOSYS},
		cause: "clone3(2) is missing (before Linux 5.3) or filtered", fix: "run on Linux 5.12 or later; in a container, " +
			container + elsewhere},
	{layer: policy.LayerUser, ask: func() (cause, fix string) {
		if sysctl("kernel/unprivileged_userns_clone") != "0" {
			return "", ""
		}
		return "this host forbids user namespaces to ordinary users",
			"sysctl -w kernel.unprivileged_userns_clone=1 (as root)" + elsewhere
	}},
	{layer: policy.LayerUser, errnos: []syscall.Errno{syscall.EPERM}, ask: apparmorRestricts},
	{layer: policy.LayerUser, errnos: []syscall.Errno{syscall.EPERM},
		cause: "creating one is forbidden, as in most containers",
		fix: "outside of containers, look for a security module's denial in the kernel's log; in one, " + container +
			elsewhere},

	{ops: []string{"fsetxattr"}, objects: []string{"overlay"}, errnos: []syscall.Errno{syscall.EOPNOTSUPP},
		fix: "a copy-on-write workspace needs user attributes on tmpfs: Linux 6.6 or later, with CONFIG_TMPFS_XATTR"},
	{ops: []string{"open_tree"}, objects: []string{"overlay"}, errnos: []syscall.Errno{syscall.EINVAL},
		fix: "another file system is mounted below the workspace, which copy-on-write cannot show: use --workspace bind, or a directory without mounts"},
	{ops: []string{"fsopen"}, objects: []string{"overlay"}, errnos: []syscall.Errno{syscall.ENODEV},
		fix: "this kernel has no overlayfs, or its module is not loaded: modprobe overlay (as root)"},
	{objects: []string{"userxattr"}, fix: overlayFix},
	{objects: []string{"overlay"}, errnos: []syscall.Errno{syscall.EPERM}, fix: overlayFix},

	{layer: policy.LayerMount, errnos: []syscall.Errno{syscall.ENOSYS}, ask: sys.TooOld},
	{layer: policy.LayerMount, errnos: []syscall.Errno{syscall.ENOSYS},
		cause: "the mount API is missing (before Linux 5.12) or filtered", fix: "run on Linux 5.12 or later" + elsewhere},
	{layer: policy.LayerMount, ops: []string{"fsopen", "fsmount", "move_mount"},
		errnos: []syscall.Errno{syscall.EPERM, syscall.EACCES}, ask: apparmorRestricts},
	// Nothing else in this layer is opened by its path on the host and written to.
	{layer: policy.LayerMount, ops: []string{"open", "write"}, errnos: []syscall.Errno{syscall.EROFS, syscall.EACCES},
		cause: "the limits of a new user namespace cannot be set because /proc/sys is closed, as in most containers",
		fix:   container + elsewhere},
	{layer: policy.LayerMount, objects: []string{"proc", "/proc"}, errnos: []syscall.Errno{syscall.EPERM},
		cause: "a new /proc is forbidden because parts of this one are hidden, as in most containers",
		fix:   container + elsewhere},
	{layer: policy.LayerMount, ops: []string{"fsopen", "fsmount", "open_tree", "move_mount", "pivot_root"},
		errnos: []syscall.Errno{syscall.EPERM},
		cause:  "mounting is forbidden in user namespaces here", fix: "in a container, " + container + elsewhere},
	{layer: policy.LayerMount, ops: []string{"fsopen", "fsmount", "open_tree", "mount_setattr", "move_mount",
		"pivot_root"}, errnos: []syscall.Errno{syscall.EACCES}, ask: moduleForbids},
	{ops: []string{"pivot_root"}, errnos: []syscall.Errno{syscall.EINVAL},
		cause: "the host's root is an initramfs, which cannot be left by pivot_root(2)",
		fix:   "switch to a real root file system first (switch_root)"},
	// See do_move_mount in fs/namespace.c.
	{ops: []string{"move_mount"}, errnos: []syscall.Errno{syscall.EINVAL},
		fix: "a directory cannot be mounted on a file, nor a file on a directory: name a place of the same kind"},
	{ops: []string{"openat2"}, errnos: []syscall.Errno{syscall.EACCES},
		fix: "the path, or a directory above it, is not open to this id without privilege, which a sandbox does not have, root's either"},
	{ops: []string{"openat2"}, errnos: []syscall.Errno{syscall.ENOENT},
		fix: "--tmpfs and --bind need a place in a directory of the host's: create it on the host, or correct the path"},
	{ops: []string{"openat2"}, errnos: []syscall.Errno{syscall.ELOOP},
		fix: "a part of this path is a symbolic link, or became one while the sandbox was set up: type the real path, or run again if it is one no more"},

	{layer: policy.LayerLandlock, ops: []string{"landlock_create_ruleset", "landlock_restrict_self"},
		cause: "Landlock refused the rules", fix: "please report this, with the message: the kernel has Landlock"},
	{layer: policy.LayerSeccomp, ops: []string{"seccomp"}, errnos: []syscall.Errno{syscall.EBUSY},
		cause: "another program watches the system calls of this one already (seccomp(2) allows one listener), as some containers do",
		fix:   "run sbxrun outside of it; or, where nothing of the host needs protection, --unprotect all"},
	{layer: policy.LayerSeccomp, ops: []string{"seccomp"}, cause: "the kernel refused the system call filter",
		fix: "run on a kernel with CONFIG_SECCOMP_FILTER"},
	{layer: policy.LayerNoNewPrivs, cause: "the kernel refused no_new_privs",
		fix: "run on Linux 3.5 or later, outside a container that filters prctl"},
	{layer: policy.LayerSELinux, cause: moduleCause, fix: moduleFix},
	{layer: policy.LayerAppArmor, cause: moduleCause, fix: moduleFix},
	{layer: policy.LayerCgroup, cause: "the command could not be put into its cgroup",
		fix: "see sbxrun doctor; or go without it: --allow-degraded cgroup"},
}

const (
	overlayFix  = "a copy-on-write workspace needs overlayfs in user namespaces: Linux 5.11 or later, and no security module that forbids it"
	moduleCause = "the security module does not let this process change to the label or profile"
	moduleFix   = "check that it is loaded, and that the caller may change to it"
)

// apparmorRestricts is the reason of hosts such as Ubuntu 24.04.
func apparmorRestricts() (cause, fix string) {
	if sysctl("kernel/apparmor_restrict_unprivileged_userns") != "1" {
		return "", ""
	}
	return "AppArmor restricts user namespaces of programs without a profile (Ubuntu 24.04)",
		"install sbxrun's AppArmor profile for this path, or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (as root)" + elsewhere
}

// moduleForbids is the reason of EACCES: the kernel itself says EPERM.
func moduleForbids() (cause, fix string) {
	if label := sysfs("/proc/self/attr/apparmor/current"); label != "" && label != "unconfined" {
		return "the AppArmor profile that this program runs under, " + label + ", forbids mounting",
			"allow mount, umount, remount and pivot_root in that profile" + elsewhere
	}
	return "a security module forbids mounting in user namespaces",
		"allow it in the module's policy; the kernel's log has what was denied" + elsewhere
}

func sysctl(name string) string { return sysfs("/proc/sys/" + name) }
