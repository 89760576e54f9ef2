// Package supervisor runs a command or another sandbox's program for a driver
// that has no pid namespace of its own making: in a cgroup with the policy's
// limits, with its descriptors and resource limits, below a second stage that
// ends all that descends from it when it ends, or when sbxrun does.
//
// What the native driver gets from namespaces, drivers that run bubblewrap or an
// OCI runtime, or that have no namespaces at all, get from here: the stage
// (internal/reexec, Config.Tree) is the subreaper of what it started, so that
// nothing leaves its sight, and the cgroup counts and limits. A driver says what
// to execute, how a signal reaches the command, and what a status means.
//
// What any start needs, the native driver's too, is in functions of their own: the
// cgroup and what stands for it, the descriptors, and the status.
package supervisor
