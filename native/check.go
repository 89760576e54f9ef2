package native

import (
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/rlimit"
	"github.com/sbxrun/sbxrun/policy"
)

// unsupported names every part of the policy that this driver has no means to
// enforce, with what to do about it. A field that is neither read by the
// lowering nor named here would be ignored silently; a test walks the types and
// finds such fields.
func unsupported(p *policy.Policy) *driver.UnsupportedError {
	e := &driver.UnsupportedError{Driver: Name}
	no := func(set bool, rule string) {
		if set {
			e.Rules = append(e.Rules, rule)
		}
	}
	o := p.OCI
	no(o.Root != nil && o.Root.Path != "", "oci.root.path")
	no(o.Domainname != "", "oci.domainname")
	no(o.Hooks != nil, "oci.hooks")
	no(len(o.Annotations) != 0, "oci.annotations")
	no(o.Solaris != nil, "oci.solaris")
	no(o.Windows != nil, "oci.windows")
	no(o.VM != nil, "oci.vm")
	no(o.ZOS != nil, "oci.zos")
	no(o.FreeBSD != nil, "oci.freebsd")
	if pr := o.Process; pr != nil {
		no(len(pr.User.AdditionalGids) != 0, "oci.process.user.additionalGids")
		no(pr.User.Umask != nil, "oci.process.user.umask")
		no(pr.User.Username != "", "oci.process.user.username")
		no(pr.CommandLine != "", "oci.process.commandLine")
		no(!pr.NoNewPrivileges, "oci.process.noNewPrivileges false")
		no(pr.OOMScoreAdj != nil, "oci.process.oomScoreAdj")
		no(pr.Scheduler != nil, "oci.process.scheduler")
		no(pr.IOPriority != nil, "oci.process.ioPriority")
		no(pr.ExecCPUAffinity != nil, "oci.process.execCPUAffinity")
		if c := pr.Capabilities; c != nil {
			no(len(c.Bounding)+len(c.Effective)+len(c.Inheritable)+len(c.Permitted)+len(c.Ambient) != 0,
				"oci.process.capabilities")
		}
		for _, r := range pr.Rlimits {
			if _, ok := rlimit.Number(r.Type); !ok {
				no(true, "oci.process.rlimits."+r.Type)
			}
		}
	}
	for i := range o.Mounts {
		no(len(o.Mounts[i].UIDMappings)+len(o.Mounts[i].GIDMappings) != 0,
			"oci.mounts."+o.Mounts[i].Destination+" id mappings")
	}
	if l := o.Linux; l != nil {
		no(len(l.UIDMappings) != 1 || len(l.GIDMappings) != 1, "oci.linux id mappings of more or less than one id")
		no(len(l.Sysctl) != 0, "oci.linux.sysctl")
		no(l.CgroupsPath != "", "oci.linux.cgroupsPath")
		no(l.RootfsPropagation != "", "oci.linux.rootfsPropagation")
		no(l.IntelRdt != nil, "oci.linux.intelRdt")
		no(l.MemoryPolicy != nil, "oci.linux.memoryPolicy")
		no(l.Personality != nil, "oci.linux.personality")
		no(len(l.TimeOffsets) != 0, "oci.linux.timeOffsets")
		no(len(l.NetDevices) != 0, "oci.linux.netDevices")
		for _, d := range l.Devices {
			no(!strings.HasPrefix(d.Path, "/dev/"), "oci.linux.devices."+d.Path)
		}
	} else {
		no(true, "oci.linux missing")
	}
	if o.Linux != nil {
		e.Rules = append(e.Rules, cgroups.Unsupported(o.Linux.Resources)...)
	}
	if len(e.Rules) == 0 {
		return nil
	}
	return e
}

// check reports what of a policy is invalid, unsupported or contradictory.
func check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := unsupported(p); err != nil {
		return err
	}
	return contradiction(p)
}

// planned are the layers that the policy's own fields call for.
func planned(p *policy.Policy) policy.Layers {
	// Those of SELinux, AppArmor and cgroups are added once the host is known to have them.
	l := driver.Called(p)&^(policy.LayerSELinux|policy.LayerAppArmor|policy.LayerCgroup) | policy.LayerNoNewPrivs |
		policy.LayerLandlock
	if p.Egress.Mode == policy.EgressProxy {
		l |= policy.LayerEgress
	}
	return l
}

// essential are the namespaces that this driver is built on.
const essential = policy.LayerUser | policy.LayerPID | policy.LayerMount

// contradiction reports a policy that requires a layer which its own fields do
// not call for, or lacks one without which this driver cannot work.
func contradiction(p *policy.Policy) error {
	have := planned(p) | driver.Called(p)
	if missing := essential &^ have; missing != 0 {
		return &driver.UnsupportedError{Driver: Name, Rules: []string{"no namespaces: " + missing.String()}}
	}
	if p.Egress.Mode != policy.EgressHost && !have.Has(policy.LayerNet) {
		return &driver.UnsupportedError{Driver: Name,
			Rules: []string{"egress.mode " + p.Egress.Mode.String() + " without a network namespace"}}
	}
	// A cgroup limit that is required and removed ("--memory none") is a wish to
	// run without it, so only the layers that are no limits are checked.
	if missing := p.Require &^ have &^ policy.LayerCgroup; missing != 0 {
		return &driver.UnsupportedError{Driver: Name,
			Rules: []string{"required layers that the policy itself leaves out: " + missing.String()},
			Fix:   "the profile requires what another setting switches off; a profile of its own can say otherwise"}
	}
	return nil
}

func itoa(i int) string { return strconv.Itoa(i) }
