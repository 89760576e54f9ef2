package native

import (
	"errors"
	"strings"
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
	layer := layerOf(step.Stage, step.Step, step.Path)
	if layer == policy.LayerUser && step.Errno == syscall.ENOSPC {
		// One call makes all namespaces, and one errno is for all their limits.
		for _, l := range [...]struct {
			layer policy.Layers
			name  string
		}{{policy.LayerPID, "pid"}, {policy.LayerMount, "mnt"}, {policy.LayerNet, "net"}, {policy.LayerIPC, "ipc"}, {policy.LayerUTS, "uts"}} {
			name := "max_" + l.name + "_namespaces"
			if sysctl("user/"+name) == "0" {
				return &driver.UnavailableError{What: "layer " + shortLayer(l.layer), Cause: "this host allows no such namespace (user." + name + " is 0)",
					Fix: "sysctl -w user." + name + "=10000 (as root)", Err: err}
			}
		}
	}
	cause, fix := causeOf(layer, step)
	if cause == "" {
		return &driver.SetupError{Driver: Name, Err: err, Fix: fix}
	}
	return &driver.UnavailableError{What: "layer " + shortLayer(layer), Cause: cause, Fix: fix, Err: err}
}

func causeOf(layer policy.Layers, e *reexec.StepError) (cause, fix string) {
	const (
		elsewhere = "; or run without any, which is weaker: --driver landlock --allow-degraded namespaces,protect"

		// All at once: each alone leads to the next refusal.
		container = "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined --security-opt apparmor=unconfined " +
			"(podman: --security-opt unmask=ALL for the second)"
	)
	switch layer {
	case policy.LayerUser:
		switch {
		case e.Errno == syscall.ENOSPC:
			return "the limit on user namespaces is reached or 0", "sysctl -w user.max_user_namespaces=10000 (as root)" + elsewhere
		case e.Errno == syscall.ENOSYS:
			return "clone3(2) is missing (before Linux 5.3) or filtered", "run on Linux 5.12 or later; in a container, " + container + elsewhere
		case sysctl("kernel/unprivileged_userns_clone") == "0":
			return "this host forbids user namespaces to ordinary users", "sysctl -w kernel.unprivileged_userns_clone=1 (as root)" + elsewhere
		case e.Errno == syscall.EPERM && sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
			return apparmorCause, apparmorFix + elsewhere
		case e.Errno == syscall.EPERM:
			return "creating one is forbidden, as in most containers", "outside of containers, look for a security module's denial in the kernel's log; in one, " + container + elsewhere
		}
	case policy.LayerMount:
		switch {
		case e.Path == "overlay" && e.Step == "fsetxattr" && e.Errno == syscall.EOPNOTSUPP:
			return "", "a copy-on-write workspace needs user attributes on tmpfs: Linux 6.6 or later, with CONFIG_TMPFS_XATTR"
		case e.Path == "overlay" && e.Step == "open_tree" && e.Errno == syscall.EINVAL:
			return "", "another file system is mounted below the workspace, which copy-on-write cannot show: use --workspace bind, or a directory without mounts"
		case e.Path == "overlay" && e.Step == "fsopen" && e.Errno == syscall.ENODEV:
			return "", "this kernel has no overlayfs, or its module is not loaded: modprobe overlay (as root)"
		case e.Path == "userxattr", e.Path == "overlay" && e.Errno == syscall.EPERM:
			return "", "a copy-on-write workspace needs overlayfs in user namespaces: Linux 5.11 or later, and no security module that forbids it"
		case e.Errno == syscall.ENOSYS:
			if cause, fix := sys.TooOld(); cause != "" {
				return cause, fix
			}
			return "the mount API is missing (before Linux 5.12) or filtered", "run on Linux 5.12 or later" + elsewhere
		case (e.Errno == syscall.EPERM || e.Errno == syscall.EACCES) && (e.Step == "fsopen" || e.Step == "fsmount" || e.Step == "move_mount") && sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
			return apparmorCause, apparmorFix + elsewhere
		case (e.Errno == syscall.EROFS || e.Errno == syscall.EACCES) && strings.HasPrefix(e.Path, "/proc/sys/"):
			return "the limits of a new user namespace cannot be set because /proc/sys is closed, as in most containers", container + elsewhere
		case e.Errno == syscall.EPERM && e.Path == "proc" || e.Errno == syscall.EPERM && e.Path == "/proc":
			return "a new /proc is forbidden because parts of this one are hidden, as in most containers", container + elsewhere
		case e.Errno == syscall.EPERM && (e.Step == "fsopen" || e.Step == "fsmount" || e.Step == "open_tree" || e.Step == "move_mount" || e.Step == "pivot_root"):
			return "mounting is forbidden in user namespaces here", "in a container, " + container + elsewhere
		case e.Errno == syscall.EACCES && (e.Step == "fsopen" || e.Step == "fsmount" || e.Step == "open_tree" || e.Step == "mount_setattr" || e.Step == "move_mount" || e.Step == "pivot_root"):
			// The kernel itself says EPERM: EACCES is a security module's.
			if label := sysfs("/proc/self/attr/apparmor/current"); label != "" && label != "unconfined" {
				return "the AppArmor profile that this program runs under, " + label + ", forbids mounting", "allow mount, umount, remount and pivot_root in that profile" + elsewhere
			}
			return "a security module forbids mounting in user namespaces", "allow it in the module's policy; the kernel's log has what was denied" + elsewhere
		case e.Step == "pivot_root" && e.Errno == syscall.EINVAL:
			return "the host's root is an initramfs, which cannot be left by pivot_root(2)", "switch to a real root file system first (switch_root)"
		case e.Step == "move_mount" && e.Errno == syscall.EINVAL:
			// See do_move_mount in fs/namespace.c.
			return "", "a directory cannot be mounted on a file, nor a file on a directory: name a place of the same kind"
		case e.Step == "openat2" && e.Errno == syscall.EACCES:
			return "", "the path, or a directory above it, is not open to this id without privilege, which a sandbox does not have, root's either"
		case e.Step == "openat2" && e.Errno == syscall.ENOENT:
			return "", "--tmpfs and --bind need a place in a directory of the host's: create it on the host, or correct the path"
		case e.Step == "openat2" && e.Errno == syscall.ELOOP:
			return "", "a part of this path is a symbolic link, or became one while the sandbox was set up: type the real path, or run again if it is one no more"
		}
	case policy.LayerLandlock:
		return "Landlock refused the rules", "please report this, with the message: the kernel has Landlock"
	case policy.LayerSeccomp:
		if e.Errno == syscall.EBUSY {
			return "another program watches the system calls of this one already (seccomp(2) allows one listener), as some containers do", "run sbxrun outside of it; or, where nothing of the host needs protection, --unprotect all"
		}
		return "the kernel refused the system call filter", "run on a kernel with CONFIG_SECCOMP_FILTER"
	case policy.LayerNoNewPrivs:
		return "the kernel refused no_new_privs", "run on Linux 3.5 or later, outside a container that filters prctl"
	case policy.LayerSELinux, policy.LayerAppArmor:
		return "the security module does not let this process change to the label or profile", "check that it is loaded, and that the caller may change to it"
	case policy.LayerCgroup:
		return "the command could not be put into its cgroup", "see sbxrun doctor; or go without it: --allow-degraded cgroup"
	}
	return "", ""
}

const (
	apparmorCause = "AppArmor restricts user namespaces of programs without a profile (Ubuntu 24.04)"
	apparmorFix   = "install sbxrun's AppArmor profile for this path, or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (as root)"
)

func sysctl(name string) string { return sysfs("/proc/sys/" + name) }
