// Package native is the driver that builds a sandbox from the kernel's own
// parts: namespaces, mounts, cgroups, Landlock and a seccomp filter. It needs
// no other program and no privilege.
//
// It composes. The policy is lowered, without acting, to what the packages
// namespaces, mounts, cgroups, landlock and seccomp understand; each appends its
// system calls to the programs of the second stage; internal/reexec runs them.
// The order of the steps is decided here and nowhere else:
//
//	PID 1    id maps, keyring, mounts, pivot_root, host name, loopback, ruleset
//	         … wait until the supervisor has made the cgroup …
//	command  cgroup, cgroup namespace, session, capabilities, no_new_privs,
//	         Landlock, guard of protected paths with seccomp, descriptors,
//	         rlimits, seccomp where it was not with the guard, execve
//
// Every layer that a policy names is enforced or the run does not happen. The
// layers that a caller may agree to go without (policy.Degrade) are the cgroup
// limits, for which rlimits then stand in as far as they can, Landlock, and the
// guard of protected paths.
//
// In egress mode proxy the supervisor runs a gateway (package egress) on sockets of
// the sandbox's network namespace: PID 1 opens them and passes them out, and
// every address leads there. No other program takes part.
//
// The package knows nothing of profiles.
package native

import (
	"context"

	"github.com/sbxrun/sbxrun/driver"
)

// Name is the driver's name.
const Name = "native"

// A Driver is the native driver. The zero value is ready to use, but for
// policies with a seccomp profile of their own.
type Driver struct {
	driver.Basic

	// SeccompCompiler is the path of sbxrun-seccomp, which compiles seccomp
	// profiles that are not built in, and CacheDir the directory in which the
	// results are kept. Both are absolute.
	SeccompCompiler, CacheDir string

	// Frugal leaves out what only a caller who reports usage needs: the
	// cgroup's counts are read only of a command that failed, for the verdict.
	Frugal bool

	// Upstream is the proxy through which this host reaches the network, as
	// http://[USER:PASSWORD@]HOST:PORT, "" for none; NoProxy lists what it
	// reaches without, as the variable NO_PROXY does. Sandboxes in egress mode
	// proxy use them without seeing them.
	Upstream, NoProxy string

	// Withheld is what no denial proposes a grant of, whoever asked for it inside.
	Withheld driver.Withheld

	// Ask, if not nil, is asked about what a grant could allow, before it is refused: a host
	// that no rule names, a protected path. What asked waits. It is called from many
	// goroutines, and returns when the context is done. Who, if not nil, finds the process
	// that asks, which is not cheap: it is for a question that is put.
	Ask func(ctx context.Context, d driver.Denial, who func() *driver.Asker) driver.Answer
}

// Name returns the driver's name.
func (Driver) Name() string { return Name }

// Sandboxed reports that the driver isolates.
func (Driver) Sandboxed() bool { return true }
