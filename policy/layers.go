package policy

import (
	"encoding/json"
	"strings"
)

// Layers is a set of isolation layers. The zero value is the empty set.
type Layers uint32

// The layers, in the order in which they are reported. The cgroup layers are
// one each for memory, cpu and pids, because hosts give some and not others.
const (
	LayerUser         Layers = 1 << iota // user namespace, no capabilities
	LayerPID                             // pid namespace, all die together
	LayerMount                           // mount namespace and a root of its own
	LayerNet                             // network namespace
	LayerIPC                             // System V and POSIX message queues
	LayerUTS                             // host name
	LayerCgroupNS                        // view of the cgroup tree
	LayerSeccomp                         // system call filter
	LayerLandlock                        // file rules by the Landlock LSM
	LayerNoNewPrivs                      // no privilege gained by execve(2)
	LayerCgroupMemory                    // memory limit by cgroup
	LayerCgroupCPU                       // cpu bandwidth limit by cgroup
	LayerCgroupPids                      // process count limit by cgroup
	LayerRlimits                         // setrlimit(2)
	LayerSELinux                         // SELinux process and mount label
	LayerAppArmor                        // AppArmor profile
	LayerEgress                          // connections policed by name
	LayerProtect                         // protected paths in what is writable
	layersEnd
)

// LayerCgroup is every limit that a cgroup enforces.
const LayerCgroup = LayerCgroupMemory | LayerCgroupCPU | LayerCgroupPids

// LayerNamespaces is every namespace. What a run without them is left with is
// what a process can restrict itself by.
const LayerNamespaces = LayerUser | LayerPID | LayerMount | LayerNet | LayerIPC | LayerUTS | LayerCgroupNS

var layerNames = [...]string{
	"user", "pid", "mount", "net", "ipc", "uts", "cgroupns",
	"seccomp", "landlock", "no_new_privs",
	"cgroup.memory", "cgroup.cpu", "cgroup.pids",
	"rlimits", "selinux", "apparmor", "egress", "protect",
}

// ParseLayer returns the layer that name names; "cgroup" names all three cgroup
// limits, "namespaces" all namespaces.
func ParseLayer(name string) (Layers, error) {
	switch name {
	case "cgroup":
		return LayerCgroup, nil
	case "namespaces":
		return LayerNamespaces, nil
	}
	for i, n := range layerNames {
		if n == name {
			return 1 << i, nil
		}
	}
	return 0, &InvalidError{Field: "layer", Value: name,
		Want: "one of cgroup, namespaces, " + strings.Join(layerNames[:], ", ")}
}

// LayerNames lists every name that ParseLayer takes.
func LayerNames() []string {
	return append([]string{"cgroup", "namespaces"}, layerNames[:]...)
}

// Has reports whether every layer of x is in l.
func (l Layers) Has(x Layers) bool { return l&x == x }

// Names lists the layers in reporting order.
func (l Layers) Names() []string {
	names := []string{}
	for i, n := range layerNames {
		if l&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

func (l Layers) String() string { return strings.Join(l.Names(), ",") }

// MarshalJSON prints the set as a list of names.
func (l Layers) MarshalJSON() ([]byte, error) { return json.Marshal(l.Names()) }

// UnmarshalJSON reads a list of names.
func (l *Layers) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	*l = 0
	for _, n := range names {
		x, err := ParseLayer(n)
		if err != nil {
			return err
		}
		*l |= x
	}
	return nil
}
