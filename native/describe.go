package native

import "github.com/sbxrun/sbxrun/driver"

// Describe says what the driver enforces.
func (Driver) Describe() driver.Description {
	yes := driver.Claim{Support: driver.Yes}
	return driver.Description{
		Summary: "the Linux kernel's own means: namespaces, mounts, cgroups, Landlock and seccomp, without another program",
		Auto:    true,
		Stays:   true,
		Claims: driver.Claims{
			"process": yes, "terminal": yes, "user": yes, "hostname": yes,
			"files.read": yes, "files.write": yes, "files.noexec": yes, "files.hide": yes, "files.nested": yes,
			"files.root":    yes,
			"files.overlay": {Support: driver.Yes, Note: "from Linux 6.6 on; what is changed is within the private storage"},
			"synthetic":     yes, "scratch": yes,
			"mounts.private": yes, "mounts.sized": yes, "mounts.noexec": yes, "mounts.bind": yes, "mounts.system": yes,
			"mounts.other": {Note: "only proc, devpts, tmpfs, mqueue and binds"},
			"masked":       yes, "devices": yes,
			"egress.none": yes, "egress.loopback": yes, "egress.host": yes,
			"egress.proxy": yes, "egress.publish": yes, "layer.egress": yes,
			"limits.time": yes, "limits.output": yes,
			"limits.other":   {Note: "memory, cpu and processes are what it limits"},
			"seccomp.custom": {Support: driver.Yes, Note: "compiled by sbxrun-seccomp, a program beside sbxrun"},
			"capabilities":   {Note: "the command has none, and gains none"},
			"oci.other":      {Note: "no profile sets it"},
			"layer.user":     yes, "layer.pid": yes, "layer.mount": yes, "layer.net": yes, "layer.ipc": yes, "layer.uts": yes,
			"layer.cgroupns": yes,
			"layer.seccomp":  yes, "layer.landlock": yes, "layer.no_new_privs": yes,
			"layer.cgroup.memory": yes, "layer.cgroup.cpu": yes, "layer.cgroup.pids": yes, "layer.rlimits": yes,
			"layer.protect":  {Support: driver.Yes, Note: "from Linux 5.19 on"},
			"layer.selinux":  {Support: driver.Yes, Note: "where the host has it"},
			"layer.apparmor": {Support: driver.Yes, Note: "where the host has it"},
			"result.signal":  yes, "result.limits": yes, "result.killed": yes,
		},
	}
}
