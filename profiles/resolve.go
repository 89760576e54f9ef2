package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

// A Resolved is a request turned into a policy, with what is not policy: which
// driver is to enforce it, and where each value came from.
type Resolved struct {
	Policy *policy.Policy

	// Drivers are the names of the drivers to try, in order. Falling back to a
	// later one is allowed only because a profile or flag lists it.
	Drivers []string

	// Image is the container image for drivers that use one, or "".
	Image string

	Workspace Workspace

	// Isolated is false for a profile that isolates nothing.
	Isolated bool

	// Verify asks for the boundary's self-test on the first run on a host.
	Verify bool

	Operator Operator

	// Notes are for the caller to see: what has no effect, or less than it
	// seems.
	Notes []string

	// Files are those that the policy is made of, and File is the profile's, "" for a preset.
	Files Files  `json:"-"`
	File  string `json:"-"`

	// Missing are directories of sbxrun's own that have to be there before the
	// command runs: a grant would let it make them.
	Missing []string `json:"-"`

	merged *profile
	began  began
}

// Again resolves the request of a running sandbox once more, for the network
// rules of files that have changed. What the workspace says counts as it did when
// the run began: by now the command can have written it.
func (r *Resolved) Again(req *Request, facts *Facts) (*Resolved, error) {
	f := *facts
	f.began = &r.began
	return Resolve(req, &f)
}

// A Workspace is the directory that a run works in.
type Workspace struct {
	Mode string // "bind", "overlay", "ro" or "none"
	Path string // without symbolic links
}

// Resolve makes a policy of a request. The sources, the strongest first: the
// request's own values (flags); SBXRUN_ variables; the project's .sbxrun.yaml,
// which may only tighten unless the caller trusts its content; config.yaml in
// the caller's and then the system's configuration directory; the profile, from
// those directories or built in. Scalars of a stronger source replace, lists
// add up.
//
// A mistake is an [*Error].
func Resolve(req *Request, facts *Facts) (*Resolved, error) {
	known := facts.known()
	workspace, where, way, err := findWorkspace(req, &known)
	if err != nil {
		return nil, err
	}
	c, err := collect(req, facts, workspace)
	if err != nil {
		return nil, err
	}
	if err := c.flags(req); err != nil {
		return nil, err
	}
	known.workspace = workspace
	r := &resolver{collected: c, req: req, facts: &known, workspace: workspace, way: way}
	return r.resolve(where)
}

type resolver struct {
	*collected
	req       *Request
	facts     *Facts
	workspace string
	way       place // to the workspace, if the request names it

	user     User
	userName string
	home     string   // HOME of the command
	kept     []string // sources of Request.Kept
	private  bool     // home is empty storage of the sandbox's own

	gpuShown []statement // of GPUs' drivers
	gpuLeft  []string    // what --gpu does not give, for a note
}

// enum returns an enumerated value; one that nobody set is the tightest.
func (p *profile) enum(k key) string { return cmp.Or(p.values[k].s, keys[k].enum[len(keys[k].enum)-1]) }

// flags lays the request's own values over all others.
func (c *collected) flags(req *Request) error {
	var f profile
	for i := range Flags {
		if err := Flags[i].lay(&f, req); err != nil {
			return err
		}
	}
	if err := c.network(req, &f); err != nil {
		return err
	}
	f.over(&c.profile)
	c.profile = f
	return nil
}

// network decides what flags about hosts mean for the mode.
func (c *collected) network(req *Request, f *profile) error {
	const allow = "flag --allow-host"
	mode := c.enum(keyNetMode)
	if req.Net != nil {
		mode = req.Net.String()
	}
	switch {
	case len(req.AllowHosts) == 0 && req.Ask == 0:
	case mode == "none" && req.Net == nil:
		from := allow
		if len(req.AllowHosts) == 0 {
			from = "flag --ask"
		}
		f.setText(keyNetMode, "proxy", from)
	case len(req.AllowHosts) == 0: // of the network nobody is asked then
	case mode == "none":
		return &Error{Where: allow, What: "--net none reaches no host",
			Fix: "leave out --net none: --allow-host implies --net proxy"}
	}
	if len(req.AllowHosts)+len(req.DenyHosts) > 0 && mode == "host" {
		return &Error{Where: "network.mode",
			What: "the host's own network is not filtered: --allow-host and --deny-host would have no effect",
			Fix:  "add --net proxy"}
	}
	return nil
}

func (r *resolver) resolve(where string) (*Resolved, error) {
	isolated := r.enum(keyIsolation) == "full"
	mode := r.enum(keyWorkspace)
	out := &Resolved{
		Image:     r.text(keyImage),
		Isolated:  isolated,
		Verify:    r.flag(keyVerify),
		Workspace: Workspace{Mode: mode, Path: r.workspace},
		merged:    &r.profile,
		began:     r.began,
		Files:     r.read,
		File:      r.file,
	}
	var err error
	if out.Operator, err = r.operator(r.facts); err != nil {
		return nil, err
	}
	if file := out.Operator.Audit.File; file != "" {
		// Who can read it can lock it.
		r.facts.Own = append(slices.Clone(r.facts.Own), Own{What: "the audit log", Path: file, File: true})
	}
	r.facts.Own = slices.Concat(r.facts.Own, r.req.Own)
	out.Drivers = []string{cmp.Or(r.text(keyDriver), "native")}
	for _, d := range r.items(keyFallback) {
		if !slices.Contains(out.Drivers, d) {
			out.Drivers = append(out.Drivers, d)
		}
	}
	if err := r.identify(isolated); err != nil {
		return nil, err
	}
	env, notes, err := environment(r.collected, r.req, r.facts, r.home, r.userName)
	if err != nil {
		return nil, err
	}
	r.notes = append(r.notes, notes...)

	p := &policy.Policy{
		Profile: r.name,
		OCI: &specs.Spec{
			Version:  specs.Version,
			Hostname: r.text(keyHostname),
			Process: &specs.Process{
				Args:            r.req.Command,
				Env:             env,
				Cwd:             r.workspace,
				Terminal:        r.req.Terminal,
				User:            specs.User{UID: r.user.UID, GID: r.user.GID},
				Capabilities:    &specs.LinuxCapabilities{},
				NoNewPrivileges: true,
				SelinuxLabel:    r.text(keySELinux),
				ApparmorProfile: r.text(keyAppArmor),
			},
			Linux: &specs.Linux{},
		},
		Limits: policy.Limits{
			WallTime:  time.Duration(r.num(keyWallTime)),
			KillAfter: time.Duration(r.num(keyKillAfter)),
			Output:    r.num(keyOutput),
		},
	}
	out.Policy = p
	r.limits(p)
	if err := r.egress(p); err != nil {
		return nil, err
	}
	if isolated {
		if err := r.isolate(p, mode, where); err != nil {
			return nil, err
		}
	} else {
		p.OCI.Hostname = ""
		p.OCI.Process.Capabilities = nil
		p.OCI.Process.NoNewPrivileges = false
		r.notes = append(r.notes, "profile "+r.name+" isolates nothing: the command runs as the caller, on the host")
		for _, unmet := range [...]struct {
			set  bool
			flag string
		}{
			{len(r.req.ReadOnly) > 0, "--ro"}, {len(r.req.Hide) > 0, "--hide"}, {len(r.req.Binds)+len(r.req.Kept) > 0,
				"--bind"}, {len(r.req.Tmpfs) > 0, "--tmpfs"},
			{r.req.Workspace != "" && r.req.Workspace != "bind", "--workspace"}, {r.req.User != nil,
				"--user"}, {r.req.Hostname != "", "--hostname"},
			{p.Egress.Mode != policy.EgressHost, "--net"},
		} {
			if unmet.set {
				return nil, &Error{Where: "flag " + unmet.flag,
					What: "profile " + r.name + " isolates nothing, and cannot keep to it", Fix: "use another profile"}
			}
		}
	}
	if err := r.layers(p, isolated); err != nil {
		return nil, err
	}
	if isolated {
		// A log is put away and begun anew beside itself: its directory counts.
		if out.Operator.Audit.File != "" {
			if err := auditable(out.Operator.Audit.File, p); err != nil {
				return nil, at(r.where(keyAuditFile), err)
			}
		}
		if out.Missing, err = r.keepOwn(p); err != nil {
			return nil, err
		}
	}
	if len(r.req.Command) > 0 {
		if err := p.Validate(); err != nil {
			return nil, &Error{What: err.Error()}
		}
	}
	out.Notes = r.notes
	return out, nil
}

// identify decides who the command sees itself run as.
func (r *resolver) identify(isolated bool) error {
	if !isolated {
		r.user = User{r.facts.UID, r.facts.GID}
		r.home = r.facts.Home
		return nil
	}
	r.user, r.userName = User{1000, 1000}, "sandbox"
	if s := r.text(keyUser); s != "" {
		u, err := ParseUser(s)
		if err != nil {
			return at(r.where(keyUser), err)
		}
		r.user = u
	}
	switch r.user.UID {
	case 0:
		r.userName = "root"
	case 65534:
		r.userName = "nobody"
	}
	r.home = "/home/sandbox"
	if r.showsHomes() {
		// The host's /home is there, read-only, and nothing can be made in it.
		r.home = "/tmp/home"
	}
	r.private = true
	h := r.facts.home()
	switch r.enum(keyHome) {
	case "host":
		if h != "" {
			r.home, r.private = path.Clean(h), false
		} else {
			r.notes = append(r.notes, "there is no home directory to show: the command gets an empty one")
		}
	case "private":
		// At the caller's own path, so that tools find what a grant shows of the home.
		if info, err := fs.Stat(r.facts.FS, fsPath(h)); h != "" && err == nil && info.IsDir() && !ofSystem(h) {
			r.home = path.Clean(h)
		}
	}
	return nil
}

// showsHomes reports whether a grant shows /home itself.
func (r *resolver) showsHomes() bool {
	homes := func(item string) bool {
		return item != "" && item[0] == '/' && len(item) < len("/home")+4 && policy.Below("/home", path.Clean(item))
	}
	for _, k := range [...]key{keyRead, keyReadTry, keyCopyTry, keyWrite, keyWriteTry, keyUnix} {
		for _, item := range r.values[k].each() {
			if homes(item) {
				return true
			}
		}
	}
	return slices.ContainsFunc(slices.Concat(r.req.ReadOnly, r.req.ReadWrite, r.req.Unix), homes)
}

// cpuPeriod is the kernel's default cpu.cfs_period_us, in microseconds.
const cpuPeriod = 100_000

// limits sets what the OCI specification has words for.
func (r *resolver) limits(p *policy.Policy) {
	res := &specs.LinuxResources{}
	if n := r.num(keyMemory); n != 0 {
		swap := n // memory and swap together: none of it swap
		res.Memory = &specs.LinuxMemory{Limit: &n, Swap: &swap}
	}
	if n := r.num(keyCPUs); n != 0 {
		quota, period := max(n*(cpuPeriod/1000), 1000), uint64(cpuPeriod)
		res.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if n := r.num(keyPids); n != 0 {
		res.Pids = &specs.LinuxPids{Limit: &n}
	}
	if res.Memory != nil || res.CPU != nil || res.Pids != nil {
		p.OCI.Linux.Resources = res
	}
	rlimit := func(name string, n uint64) {
		p.OCI.Process.Rlimits = append(p.OCI.Process.Rlimits, specs.POSIXRlimit{Type: name, Soft: n, Hard: n})
	}
	if r.enum(keyIsolation) == "full" {
		rlimit("RLIMIT_CORE", 0)
	}
	if n := r.num(keyOpenFiles); n != 0 {
		rlimit("RLIMIT_NOFILE", uint64(n))
	}
	if n := r.num(keyFileSize); n != 0 {
		rlimit("RLIMIT_FSIZE", uint64(n))
	}
}

// egress sets the network policy.
func (r *resolver) egress(p *policy.Policy) error {
	switch r.enum(keyNetMode) {
	case "proxy":
		p.Egress.Mode = policy.EgressProxy
	case "host":
		p.Egress.Mode = policy.EgressHost
	}
	for origin, item := range r.values[keyNetPublish].each() {
		pub, err := parsePublish(item)
		if err == nil && p.Egress.Mode == policy.EgressHost {
			err = &Error{What: "on the host's own network every port is the host's",
				Fix: "leave out --publish, or use --net none or proxy"}
		}
		if err != nil {
			return at(origin, err)
		}
		p.Egress.Publish = append(p.Egress.Publish, pub)
	}
	proxy := p.Egress.Mode == policy.EgressProxy
	for _, l := range [...]struct {
		key   key
		to    *[]policy.EgressRule
		parse func(string) (policy.EgressRule, error)
	}{{keyNetAllow, &p.Egress.Allow, parseAllow}, {keyNetDeny, &p.Egress.Deny, parseEgress}} {
		for origin, item := range r.values[l.key].each() {
			parse := l.parse
			if !proxy { // which hosts they are has no effect, but a mistake is one
				parse = parseEgress
			}
			rule, err := parse(item)
			if err != nil {
				return at(origin, err)
			}
			if proxy {
				*l.to = append(*l.to, rule)
			}
		}
	}
	if !proxy {
		return nil
	}
	p.Egress.RequestsPerMinute = int(r.num(keyNetRate))
	p.Egress.LogRequests = r.flag(keyNetLog)
	return nil
}

// parseEgress reads what policy.ParseEgressRule does, and words its error as this
// package does.
func parseEgress(s string) (policy.EgressRule, error) {
	rule, err := policy.ParseEgressRule(s)
	var bad *policy.InvalidError
	if errors.As(err, &bad) {
		want, example, _ := strings.Cut(bad.Want, "; ")
		return rule, &Error{What: quote.Text(s) + " is not a host: want " + want, Fix: example}
	}
	return rule, err
}

// maxLoopbackPorts is how many ports of a rule can have listeners from the start; see
// package egress.
const maxLoopbackPorts = 1024

// parseAllow reads a rule that allows. One for the host's own loopback has to name its
// ports: those have listeners inside from the start, while any other port of the
// sandbox's loopback stays free for its own servers, where the rule would do nothing.
func parseAllow(s string) (policy.EgressRule, error) {
	rule, err := parseEgress(s)
	if err != nil || !loopback(rule.Host) {
		return rule, err
	}
	ports := 0
	for _, p := range rule.Ports {
		ports += int(p.Last) - int(p.First) + 1
	}
	if 0 < ports && ports <= maxLoopbackPorts {
		return rule, nil
	}
	what := quote.Text(s) + " names too many ports of this host: at most " + strconv.Itoa(maxLoopbackPorts)
	if ports == 0 {
		what = rule.Host + " needs a port"
	}
	rule.Ports = []policy.PortRange{{First: 3000, Last: 3000}}
	return rule, &Error{What: what, Fix: "--allow-host " + rule.String()}
}

// loopback reports whether a rule's host is nothing but the host's loopback.
func loopback(host string) bool {
	if p, err := netip.ParsePrefix(host); err == nil {
		return p.Addr().IsLoopback()
	}
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// parsePublish reads [ADDRESS:]HOSTPORT:PORT. An IPv6 address is in brackets.
func parsePublish(s string) (policy.Publish, error) {
	bad := func() (policy.Publish, error) {
		return policy.Publish{}, &Error{What: quote.Text(s) + " does not say which port leads to which",
			Fix: "want [ADDRESS:]HOSTPORT:PORT, for example 8080:80 or 127.0.0.1:8080:80"}
	}
	pub := policy.Publish{Address: "127.0.0.1"}
	ports := s
	if i := strings.LastIndexByte(s, ':'); i > 0 {
		if j := strings.LastIndexByte(s[:i], ':'); j >= 0 {
			host := s[:j]
			ports = s[j+1:]
			if h, ok := strings.CutPrefix(host, "["); ok {
				if host, ok = strings.CutSuffix(h, "]"); !ok || !strings.Contains(host, ":") {
					return bad()
				}
			} else if strings.Contains(host, ":") {
				return bad()
			}
			a, err := netip.ParseAddr(host)
			if err != nil || a.Zone() != "" {
				return bad()
			}
			pub.Address = a.String()
		}
	}
	h, p, ok := strings.Cut(ports, ":")
	if !ok {
		return bad()
	}
	for _, f := range [...]struct {
		s  string
		to *uint16
	}{{h, &pub.HostPort}, {p, &pub.Port}} {
		n, err := strconv.ParseUint(f.s, 10, 16)
		if err != nil || n == 0 {
			return policy.Publish{}, &Error{What: quote.Text(s) + ": " + quote.Text(f.s) + " is no port",
				Fix: "ports are 1 to 65535: [ADDRESS:]HOSTPORT:PORT, for example 8080:80"}
		}
		*f.to = uint16(n)
	}
	return pub, nil
}

// layers decides what must hold: what the profile requires, less what the
// caller agreed to go without, less what the policy itself turned off.
func (r *resolver) layers(p *policy.Policy, isolated bool) error {
	require, err := parseLayers(r.values[keyRequire].parts)
	if err != nil {
		return err
	}
	degrade, err := parseLayers(r.values[keyDegrade].parts)
	if err != nil {
		return err
	}
	degrade |= r.req.Degrade
	res := p.OCI.Linux.Resources
	for _, off := range [...]struct {
		off   bool
		layer policy.Layers
	}{
		{!isolated, ^policy.Layers(0)},
		{p.Egress.Mode == policy.EgressHost, policy.LayerNet},
		{p.Seccomp == "" && p.OCI.Linux.Seccomp == nil, policy.LayerSeccomp},
		{len(p.Protect) == 0, policy.LayerProtect},
		{res == nil || res.Memory == nil, policy.LayerCgroupMemory},
		{res == nil || res.CPU == nil, policy.LayerCgroupCPU},
		{res == nil || res.Pids == nil, policy.LayerCgroupPids},
	} {
		if off.off {
			require &^= off.layer
		}
	}
	if p.OCI.Process.SelinuxLabel != "" {
		require |= policy.LayerSELinux
	}
	if p.OCI.Process.ApparmorProfile != "" {
		require |= policy.LayerAppArmor
	}
	p.Require = require&^degrade | r.req.Require
	p.Degrade = degrade &^ r.req.Require
	return nil
}

// isolate sets namespaces, mounts and file rules.
func (r *resolver) isolate(p *policy.Policy, mode, where string) error {
	l := p.OCI.Linux
	l.Namespaces = []specs.LinuxNamespace{
		{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
		{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace},
	}
	if p.Egress.Mode != policy.EgressHost {
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	l.UIDMappings = []specs.LinuxIDMapping{{ContainerID: r.user.UID, HostID: r.facts.UID, Size: 1}}
	l.GIDMappings = []specs.LinuxIDMapping{{ContainerID: r.user.GID, HostID: r.facts.GID, Size: 1}}

	if err := r.seccomp(p); err != nil {
		return err
	}
	if err := r.mounts(p); err != nil {
		return err
	}
	if err := r.files(p, mode, where); err != nil {
		return err
	}
	if err := r.keep(p); err != nil {
		return err
	}
	if err := r.protect(p); err != nil {
		return err
	}
	bytes := uint64(r.num(keyDisk))
	p.Scratch = policy.Scratch{Bytes: bytes, Inodes: bytes / bytesPerInode}
	p.OCI.Process.Cwd = cmp.Or(p.OCI.Process.Cwd, r.home)
	if r.text(keyImage) == "" {
		r.synthetic(p)
	}
	return nil
}

// bytesPerInode bounds the files of scratch storage: as many as would fill it
// with one page each.
const bytesPerInode = 4096

// seccomp names the filter, or reads a custom one.
func (r *resolver) seccomp(p *policy.Policy) error {
	name := r.text(keySeccomp)
	switch {
	case name == "" || name == "none":
		return nil
	case !strings.Contains(name, "/") && !strings.HasSuffix(name, ".json"):
		names := seccomp.Names()
		if !slices.Contains(names, name) {
			fix := cmp.Or(didYouMean(name, names), "a file is named with a / or ends in .json")
			return &Error{Where: r.where(keySeccomp), What: "unknown system call filter " + quote.Text(name) + ": want none, " +
				strings.Join(names, ", ") + " or a file", Fix: fix}
		}
		p.Seccomp = name
		return nil
	}
	file, err := r.facts.absolute(name)
	if err != nil {
		return at(r.where(keySeccomp), err)
	}
	src, ok, err := source{facts: r.facts}.readFile(file, true, seccomp.MaxProfile)
	r.read.note(file, src, ok)
	if err == nil && !ok {
		err = &Error{What: "seccomp profile " + file + " does not exist",
			Fix: "correct the path, or name a built-in filter: strict, production or default"}
	}
	if err != nil {
		return at(r.where(keySeccomp), err)
	}
	p.OCI.Linux.Seccomp, err = seccomp.Parse([]byte(src))
	if err != nil {
		return &Error{Where: r.where(keySeccomp), What: file, Err: err}
	}
	return nil
}

// mounts sets what is not a host path shown in place.
func (r *resolver) mounts(p *policy.Policy) error {
	m := make([]specs.Mount, 0, 12)
	if r.text(keyImage) == "" {
		m = append(m,
			specs.Mount{Destination: "/proc", Type: "proc", Source: "proc",
				Options: []string{"nosuid", "nodev", "noexec", "ro"}},
			// It holds device nodes and nothing else, and so is not scratch.
			specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "noexec", "mode=0755", "size=64k"}},
			specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		)
		l := p.OCI.Linux
		// What container runtimes hide of procfs and sysfs: kernel memory, keys,
		// and side channels. See the defaults of the containers that use the
		// OCI runtime specification.
		l.MaskedPaths = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
			"/proc/latency_stats",
			"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
			"/sys/firmware"}
		if r.facts.UID == 0 {
			// Files that belong to root, who can read them here, too: which
			// pages of memory hold what, and who else has keys. Others are
			// refused by their mode, and each mask costs time.
			l.MaskedPaths = append(l.MaskedPaths, "/proc/key-users", "/proc/kpagecgroup", "/proc/kpagecount",
				"/proc/kpageflags", "/proc/pagetypeinfo", "/proc/slabinfo", "/proc/vmallocinfo")
		}
		l.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	}
	tmpfs := func(dest string, size uint64, origin string) error {
		dest, err := r.facts.expand(dest, r.workspace)
		if err != nil {
			return at(origin, err)
		}
		if dest == "/" || dest == "/proc" || dest == "/dev" || policy.Below(dest, "/proc") {
			return &Error{Where: origin, What: dest + " cannot be private storage"}
		}
		mode := "mode=0755"
		switch dest {
		case "/tmp", "/var/tmp", "/dev/shm":
			mode = "mode=1777"
		case r.home:
			mode = "mode=0700"
		}
		mt := specs.Mount{Destination: dest, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", mode}}
		if size != 0 {
			mt.Options = append(mt.Options, "size="+strconv.FormatUint(size, 10))
		}
		if i := slices.IndexFunc(m, func(o specs.Mount) bool { return o.Destination == dest }); i >= 0 {
			m[i] = mt
			return nil
		}
		m = append(m, mt)
		return nil
	}
	for origin, item := range r.values[keyTmpfs].each() {
		dest, size, err := ParseTmpfs(item)
		if err != nil {
			return at(origin, err)
		}
		if dest == "~" && r.private {
			continue // there is no home to stand in for
		}
		if err := tmpfs(dest, size, origin); err != nil {
			return err
		}
	}
	if r.private {
		if err := tmpfs(r.home, 0, ""); err != nil {
			return err
		}
	}
	for _, t := range r.req.Tmpfs {
		if err := tmpfs(t.Path, t.Size, "flag --tmpfs"); err != nil {
			return err
		}
	}
	for origin, item := range r.values[keyDevices].each() {
		if err := r.device(p, item); err != nil {
			return at(origin, err)
		}
	}
	if r.flag(keyGPU) {
		if err := r.gpu(p); err != nil {
			return at(r.where(keyGPU), err)
		}
	}
	for _, b := range r.req.Binds {
		mt, err := r.bind(b)
		if err != nil {
			return at("flag --bind", err)
		}
		m = append(m, mt)
	}
	p.OCI.Mounts = m
	return nil
}

// keep shows what the command is to find again, in the place of what the host has there.
func (r *resolver) keep(p *policy.Policy) error {
	env := variables(p.OCI.Process.Env)
	for _, k := range r.req.Kept {
		pl, err := r.facts.find(k.Source)
		if err != nil {
			return err
		}
		dest := path.Join(r.home, k.Below)
		if err := free(p, dest); err != nil {
			return err
		}
		p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: dest, Type: "bind", Source: pl.real,
			Options: []string{"rbind", "nosuid", "nodev", "rw"}})
		p.Unprotected = append(p.Unprotected, dest)
		r.kept = append(r.kept, pl.real)
		// Secrets of the host there are covered.
		p.Files = slices.DeleteFunc(p.Files, func(f policy.FileRule) bool {
			return f.Access == policy.Hide && policy.Below(f.Path, dest) && strings.HasPrefix(f.Origin,
				"preset ") && !shownBelow(p, f.Path, dest)
		})
		if k.Variable != "" {
			env.set(k.Variable + "=" + dest)
		}
	}
	p.OCI.Process.Env = env
	return nil
}

// free reports an error if a policy shows something at a place itself: what is there
// would be the host's, where the rules for it are not made for that.
func free(p *policy.Policy, dest string) error {
	const fix = "name parts of it, such as a file, instead"
	for i := range p.Files {
		if f := &p.Files[i]; f.Path == dest && f.Access != policy.Hide {
			return at(f.Origin, &Error{What: quote.Text(dest) + " has storage of sbxrun's own in this run", Fix: fix})
		}
	}
	for i := range p.OCI.Mounts {
		if p.OCI.Mounts[i].Destination == dest {
			return &Error{What: quote.Text(dest) +
				" has storage of sbxrun's own in this run, and a flag puts something else there", Fix: fix}
		}
	}
	return nil
}

// shownBelow reports whether something below a directory shows a path.
func shownBelow(p *policy.Policy, name, dir string) bool {
	return slices.ContainsFunc(p.Files, func(f policy.FileRule) bool {
		return f.Access != policy.Hide && policy.Below(name, f.Path) && policy.Below(f.Path, dir)
	})
}

// ParseTmpfs reads PATH or PATH:SIZE. Size 0 is what all such places share.
func ParseTmpfs(s string) (dest string, size uint64, err error) {
	dest = s
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		dest = s[:i]
		if size, err = ParseSize(s[i+1:]); err != nil {
			var e *Error
			if errors.As(err, &e) {
				e.Fix = "for example " + dest + ":64m; without a size it shares what --disk allows"
			}
			return "", 0, err
		}
	}
	if dest == "" || strings.ContainsAny(dest, "\x00\n") {
		return "", 0, &Error{What: quote.Text(s) + " is not a place for private storage: want PATH or PATH:SIZE"}
	}
	return dest, size, nil
}

// device gives a device node of the host, or all of a directory below /dev
// (/dev/dri), in its place.
func (r *resolver) device(p *policy.Policy, item string) error {
	name, err := r.facts.absolute(item)
	if err != nil {
		return err
	}
	pl, err := r.facts.follow(name)
	if err != nil {
		return err
	}
	if err := pl.escapes(name); err != nil {
		return err
	}
	if pl.mode.IsDir() && strings.HasPrefix(pl.real, "/dev/") {
		entries, err := fs.ReadDir(r.facts.FS, fsPath(pl.real))
		if err != nil {
			return &Error{What: name + " cannot be listed", Err: pathCause(err)}
		}
		for _, e := range entries {
			if e.Type()&fs.ModeDevice == 0 {
				continue
			}
			if err := r.device(p, path.Join(pl.real, e.Name())); err != nil {
				return err
			}
		}
		return nil
	}
	if pl.mode&fs.ModeDevice == 0 {
		return &Error{What: name + " is not a device", Fix: "files are shown with --ro and --rw"}
	}
	info, err := fs.Stat(r.facts.FS, fsPath(pl.real))
	if err != nil {
		return &Error{What: name, Err: pathCause(err)}
	}
	d := specs.LinuxDevice{Path: pl.real, Type: "b"}
	if pl.mode&fs.ModeCharDevice != 0 {
		d.Type = "c"
	}
	d.Major, d.Minor = deviceNumber(info)
	p.OCI.Linux.Devices = append(p.OCI.Linux.Devices, d)
	return nil
}

// bind shows a host path at another place.
func (r *resolver) bind(b Bind) (specs.Mount, error) {
	src, err := r.facts.absolute(b.Source)
	if err != nil {
		return specs.Mount{}, err
	}
	pl, err := r.facts.follow(src)
	if err != nil {
		return specs.Mount{}, err
	}
	if strings.ContainsAny(b.Destination, "\x00\n") || !path.IsAbs(b.Destination) || path.Clean(b.Destination) == "/" {
		return specs.Mount{},
			&Error{What: quote.Text(b.Destination) + " is not a place in the sandbox: want an absolute path below /"}
	}
	dest := path.Clean(b.Destination)
	if d := ownDirectory(dest); d != "" || ownDirectory(pl.real) != "" {
		return specs.Mount{}, &Error{What: src + ":" + dest + ": /proc and /dev are the sandbox's own",
			Fix: "a device is given with --device"}
	}
	if err := r.reaches(src, &pl, r.facts, r.workspace); err != nil {
		return specs.Mount{}, err
	}
	if err := r.bindHides(src, &pl); err != nil {
		return specs.Mount{}, err
	}
	if !b.ReadOnly {
		if err := pl.escapes(src); err != nil {
			return specs.Mount{}, err
		}
	}
	opts := []string{"rbind", "nosuid", "nodev", "rw"}
	if b.ReadOnly {
		opts[3] = "ro"
	} else if pl.real == "/" {
		return specs.Mount{}, &Error{What: "the whole file system is never writable", Fix: "add :ro"}
	}
	return specs.Mount{Destination: dest, Type: "bind", Source: pl.real, Options: opts}, nil
}

// bindHides refuses to show elsewhere what is hidden in its own place, for only
// there do drivers hide it. A source that names a secret shows that alone.
func (r *resolver) bindHides(src string, pl *place) error {
	refuse := func(p, kind string) error {
		how := " holds "
		if policy.Below(pl.real, p) {
			how = " is in "
		}
		return &Error{What: src + how + p + ", a " + kind + " that is hidden in its own place only",
			Fix: "bind the parts that are needed, or show it in place with --ro or --rw"}
	}
	hides := append(slices.Clone(r.values[keyHide].parts), part{"flag --hide", r.req.Hide})
	for _, part := range hides {
		base := r.workspace
		if part.origin == "flag --hide" {
			base = r.facts.Cwd
		}
		for _, item := range part.items {
			found, err := appendStatements(nil, statement{hide: true, optional: true}, item, base, r.facts)
			if err != nil {
				return at(part.origin, err)
			}
			for _, s := range found {
				if related(s.path, pl.real) {
					return refuse(s.path, "path")
				}
			}
		}
	}
	if w := r.secretFinder(); w != nil {
		w.walk(pl.real, pl.real, searchDepth)
		for _, f := range w.found {
			return refuse(f, "secret")
		}
		if w.dirs > maxSearched {
			return &Error{What: src + " is too large to be searched for secrets",
				Fix: "bind the parts that are needed, or show it in place with --ro or --rw"}
		}
	}
	return r.eachSecret(r.facts, r.workspace, func(_ string, names []string) error {
		if covers(names, pl.written) {
			return nil
		}
		secret, err := r.secretAt(names, pl.real)
		if err == nil && secret != "" {
			err = refuse(secret, "secret")
		}
		return err
	})
}

// secretAt returns a file of one of the names that a place holds or is in, "" for none.
func (r *resolver) secretAt(names []string, place string) (string, error) {
	is := func(p string) bool {
		if !related(p, place) {
			return false
		}
		_, err := fs.Lstat(r.facts.FS, fsPath(p))
		return err == nil
	}
	for _, n := range names {
		if !isGlob(n) {
			if n = "/" + fsPath(n); is(n) {
				return n, nil
			}
			continue
		}
		if !shows([]statement{{path: place, access: policy.ReadExec}}, n) {
			continue
		}
		found, err := appendStatements(nil, statement{secret: true, optional: true}, n, "/", r.facts)
		if err != nil {
			return "", err
		}
		if i := slices.IndexFunc(found, func(s statement) bool { return is(s.path) }); i >= 0 {
			return found[i].path, nil
		}
	}
	return "", nil
}

func related(a, b string) bool { return policy.Below(a, b) || policy.Below(b, a) }

// showWorkspace refuses a workspace that no run may have.
func (r *resolver) showWorkspace(st []statement, mode, where string) ([]statement, error) {
	if err := r.way.escapes(r.req.Dir); err != nil {
		return nil, at(where, err)
	}
	if err := r.reaches(r.req.Dir, &r.way, r.facts, r.workspace); err != nil {
		return nil, at(where, err)
	}
	if err := checkWorkspace(r.workspace, where, r.facts, r.values[keySecrets].parts); err != nil {
		return nil, err
	}
	access := policy.All
	if mode == "ro" {
		access = policy.ReadExec
	}
	return append(st, statement{path: r.workspace, access: access, named: true, overlay: mode == "overlay",
		origin: "workspace"}), nil
}

// shown are the paths that are asked for, whatever is secret in them.
func (r *resolver) shown(p *policy.Policy, mode, where string) ([]statement, error) {
	st, err := r.listedStatements(r.facts, r.workspace)
	if err != nil {
		return nil, err
	}
	if mode != "none" {
		if st, err = r.showWorkspace(st, mode, where); err != nil {
			return nil, err
		}
	} else if p.OCI.Process.Cwd = ""; r.req.Dir != "" {
		p.OCI.Process.Cwd = r.workspace
	}
	for _, f := range [...]struct {
		flag  string
		paths []string
		statement
	}{
		{"flag --ro", r.req.ReadOnly, statement{access: policy.ReadExec, flag: true}},
		{"flag --rw", r.req.ReadWrite, statement{access: policy.All, flag: true}},
		{"flag --allow-unix", r.req.Unix, socketsAt},
		{"flag --hide", r.req.Hide, statement{hide: true}},
	} {
		for _, item := range f.paths {
			f.statement.origin = f.flag
			if st, err = appendStatements(st, f.statement, item, r.facts.Cwd, r.facts); err != nil {
				return nil, at(f.flag, err)
			}
		}
	}
	st = append(st, r.gpuShown...)
	if st, err = r.hideOwn(st); err != nil {
		return nil, err
	}
	if !r.private {
		for _, l := range r.facts.homeLinks {
			st = append(st, statement{path: l, access: policy.ReadExec, optional: true, named: true, link: true,
				origin: "home"})
		}
	}
	if p.Egress.Mode == policy.EgressHost {
		for _, name := range [...]string{"/etc/resolv.conf", "/etc/hosts"} {
			s := statement{access: policy.ReadExec, optional: true, origin: "network host"}
			if st, err = appendStatements(st, s, name, "/", r.facts); err != nil {
				return nil, err
			}
		}
	}
	if mode != "none" {
		st = r.repository(st, mode)
	}
	return st, nil
}

// files sets the host paths that are shown in place.
func (r *resolver) files(p *policy.Policy, mode, where string) error {
	st, err := r.shown(p, mode, where)
	if err != nil {
		return err
	}
	if st, err = r.cleanStatements(p, st); err != nil {
		return err
	}
	if st, err = r.secretStatements(st, r.facts, r.workspace); err != nil {
		return err
	}
	if st, err = r.namedSecrets(st); err != nil {
		return err
	}
	for i := range st {
		s := &st[i]
		shown := func(g statement) bool { return g.access != 0 && !g.link && g.path == s.path }
		if s.unix && s.link && !slices.ContainsFunc(st, shown) && slices.ContainsFunc(p.OCI.Mounts,
			func(m specs.Mount) bool { return m.Type == "tmpfs" && m.Destination == s.path }) {
			return &Error{Where: s.origin, What: s.path + " is private storage, which has none of the host's sockets",
				Fix: "name the socket itself, or a directory below"}
		}
	}
	// A grant of the very place of private storage shows the host's instead.
	p.OCI.Mounts = slices.DeleteFunc(p.OCI.Mounts, func(m specs.Mount) bool {
		return m.Type == "tmpfs" && slices.ContainsFunc(st,
			func(s statement) bool { return s.access != 0 && !s.link && s.path == m.Destination })
	})
	mounts := make([]string, len(p.OCI.Mounts))
	for i, m := range p.OCI.Mounts {
		mounts[i] = m.Destination
	}
	p.Files = combine(st, mounts)
	for _, s := range st {
		at := func(f policy.FileRule) bool { return f.Path == s.path }
		hides := s.hide && s.origin != ownOrigin || s.secret && !s.named && !strings.HasPrefix(s.origin, "preset ")
		if hides && !slices.ContainsFunc(p.Files, at) && !slices.ContainsFunc(p.Hidden, at) {
			p.Hidden = append(p.Hidden, policy.FileRule{Path: s.path, Origin: s.origin})
		}
	}
	for _, k := range [...]key{keySecretNames, keySecretText} {
		for origin, name := range r.values[k].each() {
			if !strings.HasPrefix(origin, "preset ") { // those are known without
				p.Hidden = append(p.Hidden, policy.FileRule{Path: name, Origin: origin})
			}
		}
	}
	p.Unix = connectable(st)
	if mode == "overlay" {
		return r.checkOverlay(p)
	}
	return nil
}

// checkOverlay refuses rules under which the workspace would not be copy-on-write
// as a whole.
func (r *resolver) checkOverlay(p *policy.Policy) error {
	i := slices.IndexFunc(p.Files, func(f policy.FileRule) bool { return f.Overlay })
	if i < 0 {
		what := "another rule"
		if i := slices.IndexFunc(p.Files, func(f policy.FileRule) bool { return f.Path == r.workspace }); i >= 0 &&
			p.Files[i].Origin != "" {
			what = p.Files[i].Origin
		}
		return &Error{Where: r.where(keyWorkspace), What: "the workspace cannot be copy-on-write: " + what +
			" says otherwise of " + r.workspace, Fix: "leave one of the two out"}
	}
	for _, f := range p.Files {
		if f.Path != r.workspace && policy.Below(f.Path, r.workspace) && f.Access&policy.Write != 0 {
			return &Error{Where: f.Origin,
				What: f.Path + " lies in the workspace, which is copy-on-write, and would be written to at once",
				Fix:  "leave it out, or use --workspace bind"}
		}
	}
	for _, m := range p.OCI.Mounts {
		if m.Destination == r.workspace {
			return &Error{Where: r.where(keyWorkspace), What: m.Destination +
				" is private storage or a bind, and cannot be a copy-on-write workspace", Fix: "leave one of the two out"}
		}
	}
	for _, u := range p.Unix {
		own := false // the host's, shown in the place of its copy: the nearest rule, which is the last, says so
		for _, f := range p.Files {
			if policy.Below(u, f.Path) {
				own = !f.Overlay && !f.Discard && f.Access&policy.Read != 0
			}
		}
		if policy.Below(u, r.workspace) && !own {
			return &Error{Where: r.where(keyWorkspace),
				What: u + " lies in the workspace, which is copy-on-write: no socket of the host works there",
				Fix:  "leave it out, or use --workspace bind"}
		}
	}
	return nil
}

// passwdPath is a path as passwd(5) has room for it, or else another: nothing in there can
// be escaped.
func passwdPath(path, otherwise string) string {
	if !strings.HasPrefix(path, "/") || len(path) > 1024 || strings.ContainsFunc(path, func(r rune) bool {
		return r == ':' || unicode.IsControl(r)
	}) {
		return otherwise
	}
	return path
}

// synthetic sets the files of /etc that tell about the sandbox and not about
// the host.
func (r *resolver) synthetic(p *policy.Policy) {
	shell, _ := variables(p.OCI.Process.Env).get("SHELL")
	user := fmt.Sprintf("%s:x:%d:%d::%s:%s\n", r.userName, r.user.UID, r.user.GID, passwdPath(r.home, "/"),
		passwdPath(shell, "/bin/sh"))
	passwd, group := user, fmt.Sprintf("%s:x:%d:\n", r.userName, r.user.GID)
	if r.user.UID != 0 {
		passwd = "root:x:0:0::/root:/bin/sh\n" + passwd
	}
	if r.user.GID != 0 {
		group = "root:x:0:\n" + group
	}
	if r.user.UID != 65534 {
		passwd += "nobody:x:65534:65534::/nonexistent:/bin/false\n"
	}
	if r.user.GID != 65534 {
		group += "nogroup:x:65534:\n"
	}
	host := p.OCI.Hostname
	p.Synthetic = append(p.Synthetic,
		policy.SyntheticFile{Path: "/etc/passwd", Content: passwd},
		policy.SyntheticFile{Path: "/etc/group", Content: group},
		policy.SyntheticFile{Path: "/etc/nsswitch.conf",
			Content: "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"},
	)
	if host != "" {
		p.Synthetic = append(p.Synthetic, policy.SyntheticFile{Path: "/etc/hostname", Content: host + "\n"})
	}
	if p.Egress.Mode != policy.EgressHost {
		resolv := ""
		if p.Egress.Mode == policy.EgressProxy {
			// The gateway's own resolver; any other address leads to it as well.
			resolv = "nameserver 127.0.0.1\n"
		}
		hosts := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
		if host != "" {
			hosts += "127.0.1.1 " + host + "\n"
		}
		p.Synthetic = append(p.Synthetic,
			policy.SyntheticFile{Path: "/etc/hosts", Content: hosts},
			policy.SyntheticFile{Path: "/etc/resolv.conf", Content: resolv},
		)
	}
}
