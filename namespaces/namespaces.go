// Package namespaces turns the namespaces and id maps of an OCI specification
// into what clone3(2) and the second stage need: flags, and the system calls
// that write the maps, bring loopback up and set the host name.
//
// All namespaces but one come from a single clone3, together with the user
// namespace that owns them, so that an ordinary user may create them and no
// moment exists in which only some are there. The cgroup namespace is made by
// the command's process once it is in its cgroup, because the namespace's root
// is the cgroup that its maker is in (cgroup_namespaces(7)).
//
// The package knows nothing of mounts and of policies.
package namespaces

import (
	"fmt"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Clone flags; see clone(2). They are named here because the lowering is tested
// on systems that have none.
const (
	CloneNewNS     = 0x00020000
	CloneNewCgroup = 0x02000000
	CloneNewUTS    = 0x04000000
	CloneNewIPC    = 0x08000000
	CloneNewUser   = 0x10000000
	CloneNewPID    = 0x20000000
	CloneNewNet    = 0x40000000
)

// An Error says what of the namespaces cannot be made.
type Error struct {
	Namespace string
	Why       string
}

func (e *Error) Error() string { return e.Namespace + " namespace: " + e.Why }

// Flags returns the flags for clone3(2), and whether the command is to make a
// cgroup namespace of its own. Joining a namespace by path is refused: every
// sandbox has its own.
func Flags(list []specs.LinuxNamespace) (flags uint64, cgroup bool, err error) {
	for _, n := range list {
		if n.Path != "" {
			return 0, false, &Error{string(n.Type), "joining one by path is not supported"}
		}
		var f uint64
		switch n.Type {
		case specs.UserNamespace:
			f = CloneNewUser
		case specs.PIDNamespace:
			f = CloneNewPID
		case specs.MountNamespace:
			f = CloneNewNS
		case specs.NetworkNamespace:
			f = CloneNewNet
		case specs.IPCNamespace:
			f = CloneNewIPC
		case specs.UTSNamespace:
			f = CloneNewUTS
		case specs.CgroupNamespace:
			if cgroup {
				return 0, false, &Error{string(n.Type), "listed twice"}
			}
			cgroup = true
			continue
		default:
			return 0, false, &Error{string(n.Type), "not supported"}
		}
		if flags&f != 0 {
			return 0, false, &Error{string(n.Type), "listed twice"}
		}
		flags |= f
	}
	return flags, cgroup, nil
}

// IDMap is the content of /proc/PID/uid_map or gid_map for the mappings; see
// user_namespaces(7).
func IDMap(list []specs.LinuxIDMapping) (string, error) {
	if len(list) == 0 {
		return "", &Error{"user", "no id is mapped"}
	}
	var b []byte
	for _, m := range list {
		if m.Size == 0 {
			return "", &Error{"user", fmt.Sprintf("map of %d has size 0", m.ContainerID)}
		}
		b = strconv.AppendUint(b, uint64(m.ContainerID), 10)
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(m.HostID), 10)
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(m.Size), 10)
		b = append(b, '\n')
	}
	return string(b), nil
}
