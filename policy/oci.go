package policy

import (
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// OCIOptions is what [Policy.ToOCI] needs to know beside the policy.
type OCIOptions struct {
	// Seccomp is the profile that Policy.Seccomp names, or nil.
	Seccomp *specs.LinuxSeccomp

	// Exists reports whether a host path exists: a container runtime refuses
	// to mount one that does not. If it is nil, optional paths are kept.
	Exists func(path string) bool
}

// ToOCI makes one complete OCI runtime specification of a policy, with the host
// paths as bind mounts below an empty root file system, "rootfs". It also names
// the values that the specification has no words for; a runtime that is given
// the specification alone does not enforce those.
//
// The policy is not changed, and the specification shares no memory with it
// that either would change.
func (p *Policy) ToOCI(o OCIOptions) (*specs.Spec, []string) {
	var left []string
	s := specs.Spec{Version: specs.Version}
	if p.OCI != nil {
		s = *p.OCI
	}
	s.Root = &specs.Root{Path: "rootfs", Readonly: true}

	linux := specs.Linux{}
	if s.Linux != nil {
		linux = *s.Linux
	}
	linux.MaskedPaths = slices.Clone(linux.MaskedPaths)
	if id, ok := lacksRoot(linux.UIDMappings); ok && s.Process != nil {
		// Runtimes set up as root of the user namespace and refuse one that
		// has none; only one id of the caller can be mapped.
		proc := *s.Process
		proc.User.UID, proc.User.GID = 0, 0
		s.Process = &proc
		linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: id, Size: 1}}
		if gid, ok := lacksRoot(linux.GIDMappings); ok {
			linux.GIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: gid, Size: 1}}
		}
		left = append(left, "user (here the command sees itself as root, without capabilities)")
	}
	if p.Seccomp != "" {
		linux.Seccomp = o.Seccomp
		if o.Seccomp == nil {
			left = append(left, "seccomp."+p.Seccomp)
		}
	}

	mounts := []specs.Mount{}
	sized := 0
	if p.OCI != nil {
		for _, m := range p.OCI.Mounts {
			m.Options = slices.Clone(m.Options)
			if m.Type == "tmpfs" && !hasOption(m.Options, "size=") {
				m.Options = p.scratchOptions(m.Options, s.Process)
				sized++
			}
			mounts = append(mounts, m)
		}
	}
	if sized > 1 {
		left = append(left, "scratch (one budget for "+strconv.Itoa(sized)+" mounts; here each has its own)")
	}
	shown, without := p.shownOCI(o, &linux)
	mounts, left = append(mounts, shown...), append(left, without...)
	// What is above comes first, or it would cover what is below.
	slices.SortStableFunc(mounts, func(a, b specs.Mount) int { return ComparePaths(a.Destination, b.Destination) })
	s.Mounts = mounts
	s.Linux = &linux

	return &s, append(left, p.beyondOCI()...)
}

// shownOCI are the host paths that a policy shows, as mounts. What it hides is masked.
func (p *Policy) shownOCI(o OCIOptions, linux *specs.Linux) (mounts []specs.Mount, left []string) {
	hidden := ""
	for _, r := range Sort(p.Files) {
		if o.Exists != nil && r.Optional && !o.Exists(r.Path) {
			continue
		}
		if r.Access == Hide {
			hidden = r.Path
			linux.MaskedPaths = append(linux.MaskedPaths, r.Path)
			continue
		}
		if r.Path == "/" {
			// A root of its own and the host's in one have no words.
			left = append(left, "files./")
			continue
		}
		if hidden != "" && Below(r.Path, hidden) {
			// Runtimes mask after they mount.
			left = append(left, "files."+r.Path+" (below "+hidden+")")
			continue
		}
		mounts = append(mounts, specs.Mount{Destination: r.Path, Type: "bind", Source: r.Path,
			Options: bindOptions(r.Access)})
	}
	return mounts, left
}

// beyondOCI is what of a policy the specification has no words for.
func (p *Policy) beyondOCI() (left []string) {
	for _, f := range p.Synthetic {
		left = append(left, "synthetic."+f.Path)
	}
	if p.Egress.Mode == EgressProxy {
		left = append(left, "egress.allow", "egress.deny")
	}
	if p.Limits.WallTime != 0 {
		left = append(left, "limits.wall_time")
	}
	if p.Limits.Output != 0 {
		left = append(left, "limits.output")
	}
	if p.Require.Has(LayerLandlock) {
		left = append(left, "require.landlock")
	}
	return left
}

// scratchOptions gives a tmpfs mount bounds and an owner; a runtime mounts it
// as root of the user namespace, and the command could not write to it.
func (p *Policy) scratchOptions(opts []string, proc *specs.Process) []string {
	if p.Scratch.Bytes != 0 {
		opts = append(opts, "size="+strconv.FormatUint(p.Scratch.Bytes, 10))
	}
	if p.Scratch.Inodes != 0 {
		opts = append(opts, "nr_inodes="+strconv.FormatUint(p.Scratch.Inodes, 10))
	}
	if proc != nil {
		opts = append(opts, "uid="+strconv.FormatUint(uint64(proc.User.UID), 10),
			"gid="+strconv.FormatUint(uint64(proc.User.GID), 10))
	}
	return opts
}

// lacksRoot returns the host's side of a mapping of a single id that is not 0.
func lacksRoot(m []specs.LinuxIDMapping) (uint32, bool) {
	if len(m) == 1 && m[0].Size == 1 && m[0].ContainerID != 0 {
		return m[0].HostID, true
	}
	return 0, false
}

func hasOption(opts []string, prefix string) bool {
	return slices.ContainsFunc(opts, func(o string) bool { return len(o) > len(prefix) && o[:len(prefix)] == prefix })
}

// bindOptions are the mount options for an access. "rro" makes what is mounted
// below the path read-only too; "ro" alone does not. See "Linux mount options"
// in the OCI runtime specification.
func bindOptions(a Access) []string {
	opts := []string{"rbind", "nosuid", "nodev"}
	if a&Write == 0 {
		opts = append(opts, "ro", "rro")
	} else {
		opts = append(opts, "rw")
	}
	if a&Execute == 0 {
		opts = append(opts, "noexec")
	}
	return opts
}
