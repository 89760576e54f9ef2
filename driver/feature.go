package driver

import (
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

// A Feature is one thing that a policy can ask for. [Features] lists all of
// them, and each driver's [Claims] says of each whether the driver has it:
// the refusals of a policy, "sbxrun driver list" and docs/drivers.md are made of
// the two.
type Feature struct {
	Name string // as messages name it: "files.hide"
	What string // a few words for tables

	// Fields are the fields of [policy.Policy] that ask for it. Every field of
	// the type belongs to a feature; a test walks the types.
	Fields []string

	// Uses names what of a policy asks for the feature, nothing if it does not.
	// Nil is a feature that no policy asks for: it is about what a result tells.
	Uses func(p *policy.Policy) []string
}

// Support is how far a driver has a feature. The zero Support is the safe one.
type Support uint8

const (
	No     Support = iota // a policy that asks for it is refused
	Partly                // with the difference that the note tells
	Yes
)

func (s Support) String() string {
	switch s {
	case Yes:
		return "yes"
	case Partly:
		return "partly"
	}
	return "no"
}

// MarshalText prints the support as String does.
func (s Support) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Claim is what one driver says of one feature.
type Claim struct {
	Support Support `json:"support"`
	Note    string  `json:"note,omitempty"` // how, for Yes and Partly; why not, for No
}

// A Claims is what a driver says of every feature, by name. A feature that it
// does not mention is not supported.
type Claims map[string]Claim

// A Description is what a driver says of itself.
type Description struct {
	Summary string // one line
	Claims  Claims // of every feature

	// Auto lets the name "auto" stand for the driver. Only drivers that need
	// nothing of the user are: no engine, image or program of others.
	Auto bool

	// Stays says that Open and Prepare are supported.
	Stays bool

	// Kernel says that the command runs on a kernel of the driver's own: a device
	// node that it makes is one of that kernel's, not of the host's.
	Kernel bool
}

// Refused returns an *UnsupportedError that names all that the policy asks for
// and the driver does not support, or nil.
func (c Claims) Refused(driver string, p *policy.Policy) *UnsupportedError {
	e := &UnsupportedError{Driver: driver}
	var layers []string
	for i := range Features {
		f := &Features[i]
		if f.Uses == nil || c[f.Name].Support != No {
			continue
		}
		rules := f.Uses(p)
		if len(rules) == 0 {
			continue
		}
		e.Rules = append(e.Rules, f.named(rules)...)
		if l, ok := strings.CutPrefix(f.Name, layerPrefix); ok {
			layers = append(layers, l)
		} else if e.Fix == "" && c[f.Name].Note != "" {
			e.Fix = f.Name + ": " + c[f.Name].Note
		}
	}
	switch {
	case len(e.Rules) == 0:
		return nil
	case e.Fix == "" && len(layers) != 0:
		e.Fix = "go without: --allow-degraded " + strings.Join(layers, ",") +
			"; or use another driver, see sbxrun driver list"
	case e.Fix == "":
		e.Fix = "use another driver, see sbxrun driver list"
	}
	return e
}

// maxRules bounds how many rules of one feature a message names.
const maxRules = 4

// named are a feature's rules as messages name them: by the feature, and by what
// in the policy asks for it.
func (f *Feature) named(rules []string) []string {
	if len(rules) > maxRules {
		rules = append(slices.Clone(rules[:maxRules]), "and "+strconv.Itoa(len(rules)-maxRules)+" more")
	}
	return []string{strings.TrimSpace(strings.Replace(f.Name, layerPrefix, "layer ", 1) + " " + strings.Join(rules, " "))}
}

// Missing lists the features that the coverage does not mention, the names in it
// that are no feature, and what is short of Yes without a note. A driver's test
// wants none.
func (c Claims) Missing() []string {
	var out []string
	known := map[string]bool{}
	for i := range Features {
		name := Features[i].Name
		known[name] = true
		if claim, ok := c[name]; !ok || claim.Support != Yes && claim.Note == "" {
			out = append(out, name)
		}
	}
	for name := range c {
		if !known[name] {
			out = append(out, name+" is no feature")
		}
	}
	slices.Sort(out)
	return out
}

// Layers are the isolation layers that a driver with this coverage can give.
func (c Claims) Layers() policy.Layers {
	var l policy.Layers
	for name, claim := range c {
		if layer, ok := strings.CutPrefix(name, layerPrefix); ok && claim.Support != No {
			if x, err := policy.ParseLayer(layer); err == nil {
				l |= x
			}
		}
	}
	return l
}

// Wanted are the layers that a run of the policy must have: those it requires,
// and those that its other fields call for, less what the caller agreed to go
// without.
func Wanted(p *policy.Policy) policy.Layers {
	return (p.Require | Called(p)) &^ p.Dispensable()
}

// Given are the layers that a driver which claims these gives a run of the policy, but
// for cgroup limits: also those that the run might have gone without.
func (c Claims) Given(p *policy.Policy) policy.Layers {
	return (p.Require | Called(p)) & c.Layers() &^ policy.LayerCgroup
}

// Without decides about layers that a run of the policy cannot have on this host, for
// a cause and with what mends it, or "": nil if the caller agreed to go without all of
// them, else an *UnavailableError.
func Without(p *policy.Policy, l policy.Layers, cause, fix string) error {
	if l&^p.Dispensable() == 0 {
		return nil
	}
	if fix != "" {
		fix += "; or "
	}
	return &UnavailableError{What: "layer " + l.String(), Cause: cause,
		Fix: fix + "go without it: --allow-degraded " + LayerName(l)}
}

// LayerName is the name to type for a set of layers.
func LayerName(l policy.Layers) string {
	switch l {
	case policy.LayerCgroup:
		return "cgroup"
	case policy.LayerNamespaces:
		return "namespaces"
	}
	return l.String()
}

// Called are the layers that a policy's fields call for.
func Called(p *policy.Policy) policy.Layers {
	var l policy.Layers
	call := func(called bool, layer policy.Layers) {
		if called {
			l |= layer
		}
	}
	if p.OCI == nil {
		return 0
	}
	if pr := p.OCI.Process; pr != nil {
		call(pr.NoNewPrivileges, policy.LayerNoNewPrivs)
		call(len(pr.Rlimits) != 0, policy.LayerRlimits)
		call(pr.ApparmorProfile != "", policy.LayerAppArmor)
		call(pr.SelinuxLabel != "", policy.LayerSELinux)
	}
	call(p.Seccomp != "", policy.LayerSeccomp)
	call(len(p.Protect) != 0, policy.LayerProtect)
	lx := p.OCI.Linux
	if lx == nil {
		return l
	}
	call(lx.Seccomp != nil, policy.LayerSeccomp)
	call(lx.MountLabel != "", policy.LayerSELinux)
	for _, n := range lx.Namespaces {
		l |= NamespaceLayer(n.Type)
	}
	limits := policy.LimitsOf(lx.Resources)
	call(limits.Memory > 0, policy.LayerCgroupMemory)
	call(limits.Quota > 0, policy.LayerCgroupCPU)
	call(limits.Pids > 0, policy.LayerCgroupPids)
	return l
}

// NamespaceLayer is the layer that a namespace is, 0 for one that is none.
func NamespaceLayer(t specs.LinuxNamespaceType) policy.Layers {
	switch t {
	case specs.UserNamespace:
		return policy.LayerUser
	case specs.PIDNamespace:
		return policy.LayerPID
	case specs.MountNamespace:
		return policy.LayerMount
	case specs.NetworkNamespace:
		return policy.LayerNet
	case specs.IPCNamespace:
		return policy.LayerIPC
	case specs.UTSNamespace:
		return policy.LayerUTS
	case specs.CgroupNamespace:
		return policy.LayerCgroupNS
	}
	return 0
}

const layerPrefix = "layer."

// layer is the feature of enforcing a layer.
func layer(l policy.Layers, what string, fields ...string) Feature {
	return Feature{Name: layerPrefix + l.String(), What: what, Fields: fields, Uses: func(p *policy.Policy) []string {
		if Wanted(p)&l == 0 {
			return nil
		}
		return []string{""}
	}}
}

// Features are all that a policy can ask for, in the order of tables.
var Features = []Feature{
	{Name: "process", What: "arguments, environment, working directory",
		Fields: []string{"OCI.Process.Args", "OCI.Process.Env", "OCI.Process.Cwd"},
		Uses:   when(func(p *policy.Policy) bool { return true })},
	{Name: "terminal", What: "a terminal of its own (-t)",
		Fields: []string{"OCI.Process.Terminal", "OCI.Process.ConsoleSize"},
		Uses:   process(func(pr *specs.Process) bool { return pr.Terminal })},
	{Name: "user", What: "an ordinary user id inside",
		Fields: []string{"OCI.Process.User.UID", "OCI.Process.User.GID", "OCI.Linux.UIDMappings", "OCI.Linux.GIDMappings"},
		Uses:   process(func(pr *specs.Process) bool { return pr.User.UID != 0 || pr.User.GID != 0 })},
	{Name: "hostname", What: "a host name of its own", Fields: []string{"OCI.Hostname"},
		Uses: when(func(p *policy.Policy) bool { return p.OCI.Hostname != "" })},

	{Name: "files.read", What: "host paths shown read-only",
		Fields: []string{"Files.Path", "Files.Access", "Files.Discard", "Files.Optional", "Files.Origin"},
		Uses:   files(func(r *policy.FileRule) bool { return r.Access&policy.Read != 0 && r.Access&policy.Write == 0 })},
	{Name: "files.write", What: "host paths shown writable",
		Uses: files(func(r *policy.FileRule) bool { return r.Access&policy.Write != 0 })},
	{Name: "files.overlay", What: "host paths copy-on-write (--workspace overlay)", Fields: []string{"Files.Overlay"},
		Uses: files(func(r *policy.FileRule) bool { return r.Overlay })},
	{Name: "files.noexec", What: "host paths without execution",
		Uses: files(func(r *policy.FileRule) bool { return r.Access != policy.Hide && r.Access&policy.Execute == 0 })},
	{Name: "files.hide", What: "paths hidden below shown ones", Fields: []string{"Hidden"},
		Uses: filesBelow(func(r, above *policy.FileRule) bool { return r.Access == policy.Hide })},
	{Name: "files.nested", What: "less access below a path with more",
		Uses: filesBelow(func(r, above *policy.FileRule) bool {
			return r.Access != policy.Hide && above.Access&^r.Access != 0
		})},
	{Name: "files.root", What: "the whole host, shown read-only",
		Uses: files(func(r *policy.FileRule) bool { return r.Path == "/" && r.Access != policy.Hide })},
	{Name: "synthetic", What: "files that exist only inside (/etc/passwd)", Fields: []string{"Synthetic"},
		Uses: func(p *policy.Policy) (rules []string) {
			for i := range p.Synthetic {
				rules = append(rules, p.Synthetic[i].Path)
			}
			return rules
		}},
	{Name: "scratch", What: "one bound for all private storage (--disk)", Fields: []string{"Scratch"},
		Uses: when(func(p *policy.Policy) bool { return p.Scratch.Bytes != 0 || p.Scratch.Inodes != 0 })},
	{Name: "mounts.private", What: "private, empty directories (/tmp, HOME)",
		Fields: []string{"OCI.Mounts.Destination", "OCI.Mounts.Type", "OCI.Mounts.Options"},
		Uses:   mount(func(m *specs.Mount) bool { return m.Type == "tmpfs" && m.Destination != "/dev" })},
	{Name: "mounts.sized", What: "private directories with a size of their own (--tmpfs PATH:SIZE)",
		Uses: mount(func(m *specs.Mount) bool {
			return m.Type == "tmpfs" && m.Destination != "/dev" && hasOption(m.Options, "size=")
		})},
	{Name: "mounts.noexec", What: "mounts from which nothing is executed",
		Uses: mount(func(m *specs.Mount) bool {
			return (m.Type == "tmpfs" || m.Type == "bind" || m.Type == "") && m.Destination != "/dev" &&
				hasOption(m.Options, "noexec")
		})},
	{Name: "mounts.bind", What: "a host path at another place (--bind)", Fields: []string{"OCI.Mounts.Source"},
		Uses: mount(func(m *specs.Mount) bool { return m.Type == "bind" || m.Type == "" })},
	{Name: "mounts.system", What: "/proc and /dev of its own",
		Uses: mount(func(m *specs.Mount) bool { return isSystem(m) })},
	{Name: "mounts.other", What: "other file systems",
		Uses: mount(func(m *specs.Mount) bool {
			return m.Type != "tmpfs" && m.Type != "bind" && m.Type != "" && m.Type != "mqueue" && !isSystem(m) ||
				len(m.UIDMappings)+len(m.GIDMappings) != 0
		}),
		Fields: []string{"OCI.Mounts.UIDMappings", "OCI.Mounts.GIDMappings"}},
	{Name: "masked", What: "parts of /proc and /sys that are hidden or read-only",
		Fields: []string{"OCI.Linux.MaskedPaths", "OCI.Linux.ReadonlyPaths"},
		Uses:   linux(func(l *specs.Linux) bool { return len(l.MaskedPaths)+len(l.ReadonlyPaths) != 0 })},
	{Name: "devices", What: "device nodes (--device)", Fields: []string{"OCI.Linux.Devices"},
		Uses: linux(func(l *specs.Linux) bool { return len(l.Devices) != 0 })},

	{Name: "egress.none", What: "no network", Fields: []string{"Egress.Mode"},
		Uses: when(func(p *policy.Policy) bool { return p.Egress.Mode == policy.EgressNone })},
	{Name: "egress.loopback", What: "no network, but sockets inside work",
		Uses: nil},
	{Name: "egress.proxy", What: "network by name (--net proxy)",
		Fields: []string{"Egress.Allow", "Egress.Deny", "Egress.RequestsPerMinute", "Egress.LogRequests"},
		Uses:   when(func(p *policy.Policy) bool { return p.Egress.Mode == policy.EgressProxy })},
	{Name: "egress.publish", What: "ports led in from the host (--publish)", Fields: []string{"Egress.Publish"},
		Uses: when(func(p *policy.Policy) bool { return len(p.Egress.Publish) != 0 })},
	{Name: "egress.host", What: "the host's network (--net host)",
		Uses: when(func(p *policy.Policy) bool { return p.Egress.Mode == policy.EgressHost })},

	{Name: "limits.time", What: "time limit, by signal and kill", Fields: []string{"Limits.WallTime", "Limits.KillAfter"},
		Uses: when(func(p *policy.Policy) bool { return p.Limits.WallTime != 0 })},
	{Name: "limits.output", What: "limit on captured output", Fields: []string{"Limits.Output"},
		Uses: when(func(p *policy.Policy) bool { return p.Limits.Output != 0 })},
	{Name: "limits.other", What: "block i/o, huge pages, cpu sets and other resources",
		Uses: linux(func(l *specs.Linux) bool { return otherResources(l.Resources) })},
	{Name: "seccomp.custom", What: "a system call filter of one's own",
		Uses: linux(func(l *specs.Linux) bool { return l.Seccomp != nil })},
	{Name: "capabilities", What: "capabilities, or privilege gained by execution",
		Fields: []string{"OCI.Process.Capabilities"},
		Uses: process(func(pr *specs.Process) bool {
			c := pr.Capabilities
			return !pr.NoNewPrivileges || c != nil && len(c.Bounding)+len(c.Effective)+len(c.Inheritable)+len(c.Permitted)+
				len(c.Ambient) != 0
		})},
	{Name: "oci.other", What: "hooks, sysctl, annotations and the rest of the OCI specification", Fields: otherFields,
		Uses: otherUses},

	layer(policy.LayerUser, "user namespace, no capabilities"),
	layer(policy.LayerPID, "pid namespace"),
	layer(policy.LayerMount, "mount namespace, a root of its own"),
	layer(policy.LayerNet, "network namespace"),
	layer(policy.LayerIPC, "ipc namespace"),
	layer(policy.LayerUTS, "uts namespace"),
	layer(policy.LayerCgroupNS, "cgroup namespace", "OCI.Linux.Namespaces"),
	layer(policy.LayerSeccomp, "system call filter", "Seccomp", "OCI.Linux.Seccomp"),
	layer(policy.LayerLandlock, "Landlock", "Unix"),
	layer(policy.LayerNoNewPrivs, "no privilege gained by execution", "OCI.Process.NoNewPrivileges"),
	layer(policy.LayerCgroupMemory, "memory limit for all together"),
	layer(policy.LayerCgroupCPU, "cpu limit"),
	layer(policy.LayerCgroupPids, "limit on processes", "OCI.Linux.Resources"),
	layer(policy.LayerRlimits, "limits of each process (open files, file size)", "OCI.Process.Rlimits"),
	layer(policy.LayerSELinux, "SELinux label", "OCI.Process.SelinuxLabel", "OCI.Linux.MountLabel"),
	layer(policy.LayerAppArmor, "AppArmor profile", "OCI.Process.ApparmorProfile"),
	layer(policy.LayerEgress, "connections policed by name"),
	layer(policy.LayerProtect, "protected paths in what is writable", "Protect", "Unprotected"),

	{Name: "result.signal", What: "tells a signal from an exit code above 128"},
	{Name: "result.limits", What: "tells that the memory or process limit was met"},
	{Name: "result.killed", What: "nothing is left when sbxrun itself is killed"},
}

// otherFields are parts of the OCI specification that no profile sets.
var otherFields = []string{
	"OCI.Root", "OCI.Domainname", "OCI.Hooks", "OCI.Annotations", "OCI.Solaris", "OCI.Windows", "OCI.VM", "OCI.ZOS",
	"OCI.FreeBSD",
	"OCI.Process.User.Umask", "OCI.Process.User.AdditionalGids", "OCI.Process.User.Username", "OCI.Process.CommandLine",
	"OCI.Process.OOMScoreAdj", "OCI.Process.Scheduler", "OCI.Process.IOPriority", "OCI.Process.ExecCPUAffinity",
	"OCI.Linux.Sysctl", "OCI.Linux.CgroupsPath", "OCI.Linux.RootfsPropagation", "OCI.Linux.IntelRdt",
	"OCI.Linux.MemoryPolicy",
	"OCI.Linux.Personality", "OCI.Linux.TimeOffsets", "OCI.Linux.NetDevices",
}

func otherUses(p *policy.Policy) (rules []string) {
	no := func(set bool, rule string) {
		if set {
			rules = append(rules, rule)
		}
	}
	o := p.OCI
	no(o.Root != nil && o.Root.Path != "", "root.path")
	no(o.Domainname != "", "domainname")
	no(o.Hooks != nil, "hooks")
	no(len(o.Annotations) != 0, "annotations")
	no(o.Solaris != nil, "solaris")
	no(o.Windows != nil, "windows")
	no(o.VM != nil, "vm")
	no(o.ZOS != nil, "zos")
	no(o.FreeBSD != nil, "freebsd")
	if pr := o.Process; pr != nil {
		no(len(pr.User.AdditionalGids) != 0, "process.user.additionalGids")
		no(pr.User.Umask != nil, "process.user.umask")
		no(pr.User.Username != "", "process.user.username")
		no(pr.CommandLine != "", "process.commandLine")
		no(pr.OOMScoreAdj != nil, "process.oomScoreAdj")
		no(pr.Scheduler != nil, "process.scheduler")
		no(pr.IOPriority != nil, "process.ioPriority")
		no(pr.ExecCPUAffinity != nil, "process.execCPUAffinity")
	}
	if l := o.Linux; l != nil {
		no(len(l.Sysctl) != 0, "linux.sysctl")
		no(l.CgroupsPath != "", "linux.cgroupsPath")
		no(l.RootfsPropagation != "", "linux.rootfsPropagation")
		no(l.IntelRdt != nil, "linux.intelRdt")
		no(l.MemoryPolicy != nil, "linux.memoryPolicy")
		no(l.Personality != nil, "linux.personality")
		no(len(l.TimeOffsets) != 0, "linux.timeOffsets")
		no(len(l.NetDevices) != 0, "linux.netDevices")
	}
	return rules
}

// otherResources reports whether limits are set that no cgroup layer stands for.
func otherResources(r *specs.LinuxResources) bool {
	if r == nil {
		return false
	}
	if m := r.Memory; m != nil && *m != (specs.LinuxMemory{Limit: m.Limit, Swap: m.Swap, UseHierarchy: m.UseHierarchy,
		CheckBeforeUpdate: m.CheckBeforeUpdate}) {
		return true
	}
	if c := r.CPU; c != nil && *c != (specs.LinuxCPU{Quota: c.Quota, Period: c.Period}) {
		return true
	}
	return r.BlockIO != nil || len(r.HugepageLimits) != 0 || r.Network != nil || len(r.Rdma) != 0 || len(r.Unified) != 0 ||
		len(r.Devices) != 0
}

func isSystem(m *specs.Mount) bool {
	return m.Type == "proc" && m.Destination == "/proc" || m.Type == "devpts" ||
		m.Type == "tmpfs" && m.Destination == "/dev"
}

func hasOption(options []string, prefix string) bool {
	return slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, prefix) })
}

// The functions below make a Feature's Uses of a predicate. They name what they
// find by the fields of the policy, for messages.

func when(ok func(p *policy.Policy) bool) func(*policy.Policy) []string {
	return func(p *policy.Policy) []string {
		if p.OCI == nil || !ok(p) {
			return nil
		}
		return []string{""}
	}
}

func process(ok func(*specs.Process) bool) func(*policy.Policy) []string {
	return when(func(p *policy.Policy) bool { return p.OCI.Process != nil && ok(p.OCI.Process) })
}

func linux(ok func(*specs.Linux) bool) func(*policy.Policy) []string {
	return when(func(p *policy.Policy) bool { return p.OCI.Linux != nil && ok(p.OCI.Linux) })
}

func mount(ok func(*specs.Mount) bool) func(*policy.Policy) []string {
	return func(p *policy.Policy) (rules []string) {
		if p.OCI == nil {
			return nil
		}
		for i := range p.OCI.Mounts {
			if m := &p.OCI.Mounts[i]; ok(m) {
				rules = append(rules, m.Destination)
			}
		}
		return rules
	}
}

func files(ok func(*policy.FileRule) bool) func(*policy.Policy) []string {
	return func(p *policy.Policy) (rules []string) {
		for i := range p.Files {
			if r := &p.Files[i]; ok(r) {
				rules = append(rules, r.Path)
			}
		}
		return rules
	}
}

// filesBelow is files for rules whose path lies below another rule's, the
// nearest of which is handed to ok.
func filesBelow(ok func(r, above *policy.FileRule) bool) func(*policy.Policy) []string {
	return func(p *policy.Policy) (rules []string) {
		for i := range p.Files {
			r := &p.Files[i]
			var above *policy.FileRule
			for j := range p.Files {
				a := &p.Files[j]
				if a.Path != r.Path && (a.Path == "/" || strings.HasPrefix(r.Path, a.Path+"/")) &&
					(above == nil || len(a.Path) > len(above.Path)) {
					above = a
				}
			}
			if above != nil && above.Access != policy.Hide && ok(r, above) {
				rules = append(rules, r.Path)
			}
		}
		return rules
	}
}
