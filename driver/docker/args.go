package docker

import (
	"cmp"
	"encoding/csv"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/rlimit"
	"github.com/sbxrun/sbxrun/policy"
)

// Facts are what lowering needs to know beside the policy. The zero value is an
// engine that has everything and runs as root, with no host paths that are
// hidden.
type Facts struct {
	Podman   bool
	Rootless bool // the engine is the caller's own: root inside is the caller

	// IsDir and IsFile report what a host path is that is to be hidden; one that
	// is neither is not there. Nil is nothing there.
	IsDir, IsFile func(path string) bool

	// Name is the container's, Labels are what it is found by.
	Name   string
	Labels []string

	// EnvFile and Seccomp name files that the client reads; "" for none.
	EnvFile, Seccomp string

	// Passed are the names of variables that an environment file cannot hold
	// and that the client passes from its own environment.
	Passed []string

	// Init is the program that podman is to use as the first process, where its
	// own is not installed; "" is the engine's own.
	Init string

	// Image is the id of the driver's image, "" for its name. Volumes are the
	// directories that it declares to be volumes, Annotated and Labelled the names
	// of its annotations and labels.
	Image     string
	Volumes   []string
	Annotated []string
	Labelled  []string

	// Devices are the variables of the image by which runtimes choose devices of the
	// host for a container.
	Devices []string

	// Hosts is the file that becomes podman's /etc/hosts; "" is podman's own, which
	// has the host's names.
	Hosts string

	// NoAppArmor leaves the policy's profile out: the engine has no AppArmor.
	NoAppArmor bool

	// Stdin attaches the command's standard input.
	Stdin bool
}

// noCopy keeps podman from copying into a tmpfs what it covers, which it does
// otherwise: what is to be hidden as well.
const noCopy = "notmpcopyup"

// scratchDefault bounds private storage that the policy leaves to the driver.
const scratchDefault = 512 << 20

// Args are the arguments of "docker create" for a policy. They are pure: the
// same policy and facts give the same list on every system.
func (d Driver) Args(p *policy.Policy, f Facts) ([]string, error) {
	proc := p.OCI.Process
	e := &driver.UnsupportedError{Driver: d.Name()}
	a := []string{"create", "--pull", "never", "--name", f.Name}
	add := func(s ...string) { a = append(a, s...) }
	// A container inherits the labels of its image, and programs of the host obey
	// those of containers: an update service restarts the unit that one names.
	for _, name := range f.Labelled {
		// podman gives a container no capability by that one that it would not have, and
		// takes an empty one for a mistake. The others no option can name: Docker takes
		// no blank in it but at the beginning. No program obeys such names.
		plain := strings.TrimLeft(name, " \t")
		if plain != "" && !strings.ContainsAny(plain, "= \t\x00") && name != "io.containers.capabilities" {
			add("--label", name+"=")
		}
	}
	for _, l := range slices.Concat(f.Labels, d.Labels) {
		add("--label", l)
	}
	// Podman hands an image's annotations to the runtime and its hooks, which obey
	// them: run.oci.seccomp_bpf_data replaces crun's filter, org.systemd.property.*
	// the unit's limits.
	for _, name := range f.Annotated {
		if !slices.ContainsFunc(informative, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			e.Rules = append(e.Rules, "image.annotations."+quote.Inside(name))
		}
	}
	if f.Stdin || proc.Terminal {
		add("--interactive")
	}
	if proc.Terminal {
		add("--tty")
	}
	// Engines keep what a container prints, on their disk and without a bound,
	// unless they are told not to. It reaches the client all the same.
	add("--log-driver", "none")
	// What an image wants to be run every now and then is not the command.
	add("--no-healthcheck")
	add(d.own(p, f)...)
	// Its first process gets signals as any other does, and orphans are reaped.
	// The engine puts that program into /sbin, which must be the image's.
	if coversInit(p) {
		e.Rules = append(e.Rules,
			"files./sbin (the engine's own first process lies there; --profile docker shows the image's system and not the host's)")
	}
	add("--init")
	if f.Init != "" {
		add("--init-path", f.Init)
	}
	add("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
	if f.Seccomp != "" {
		add("--security-opt", "seccomp="+f.Seccomp)
	}
	if proc.ApparmorProfile != "" && !f.NoAppArmor {
		add("--security-opt", "apparmor="+proc.ApparmorProfile)
	}
	add(d.user(p, f)...)
	add(d.network(p)...)
	add("--ipc", "private")
	if slices.ContainsFunc(namespaces(p), func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace }) {
		add("--cgroupns", "private")
	}
	if p.OCI.Hostname != "" && p.Egress.Mode != policy.EgressHost {
		add("--hostname", p.OCI.Hostname)
	}
	if p.OCI.Linux != nil {
		add(resources(p.OCI.Linux.Resources)...)
		for _, dev := range p.OCI.Linux.Devices {
			if strings.Contains(dev.Path, ":") {
				e.Rules = append(e.Rules, "oci.linux.devices."+dev.Path+" (a colon)")
			}
			add("--device", dev.Path+":"+dev.Path+":rw")
		}
	}
	for _, l := range rlimit.NoCore(proc.Rlimits) {
		name, ok := strings.CutPrefix(l.Type, "RLIMIT_")
		if !ok || !slices.Contains(ulimits, name) {
			e.Rules = append(e.Rules, "oci.process.rlimits."+l.Type)
			continue
		}
		add("--ulimit", strings.ToLower(name)+"="+limit(l.Soft)+":"+limit(l.Hard))
	}
	m, rules := mounts(p, f)
	add(m...)
	e.Rules = append(e.Rules, rules...)
	for _, port := range d.Ports {
		add("--publish", port)
	}
	if f.EnvFile != "" {
		add("--env-file", f.EnvFile)
	}
	for _, name := range f.Passed {
		add("--env", name)
	}
	for _, name := range f.Devices {
		if !slices.ContainsFunc(proc.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
			add("--env", name+"=void")
		}
	}
	add("--workdir", proc.Cwd)
	if slices.ContainsFunc(proc.Args, func(s string) bool { return !utf8.ValidString(s) }) {
		// They reach the engine as JSON, in which such bytes would be others.
		e.Rules = append(e.Rules, "oci.process.args (an argument that is not UTF-8)")
	}
	// The command is all of what runs: an image's own entry point is not what
	// was asked for, unless the caller wants it.
	command := proc.Args
	if d.Entrypoint != "" {
		add("--entrypoint", d.Entrypoint)
	} else {
		add("--entrypoint", d.command(p))
		command = command[1:]
	}
	add("--", cmp.Or(f.Image, d.Image))
	add(command...)
	if len(e.Rules) != 0 {
		return nil, e
	}
	return a, nil
}

// own are the options that take back what an engine, or its configuration, gives
// each container of its own accord.
func (d Driver) own(p *policy.Policy, f Facts) []string {
	if !f.Podman {
		if p.Egress.Mode != policy.EgressHost {
			return []string{"--dns", "127.0.0.1", "--dns-search", "."} // not the host's resolver
		}
		return nil
	}
	// Without a bound: /run and /var/tmp. By the caller's variables: proxies, which may
	// hold a password. By containers.conf: the host's namespaces, no cgroup. A stop
	// (rm --force) waits for ten seconds otherwise.
	a := []string{"--image-volume", "ignore", "--read-only-tmpfs=false", "--systemd", "false", "--http-proxy=false",
		"--env-host=false",
		"--pid", "private", "--cgroups", "enabled", "--stop-timeout", "0"}
	if p.Egress.Mode != policy.EgressHost {
		a = append(a, "--uts", "private")
		if f.Hosts != "" {
			a = append(a, "--no-hosts")
		}
	}
	return a
}

// informative are the beginnings of the names of annotations that no runtime obeys.
var informative = []string{"org.opencontainers.image.", "com.docker."}

// coversInit reports whether the policy shows something else in the place of the
// image's /sbin.
func coversInit(p *policy.Policy) bool {
	const dir = "/sbin"
	for _, r := range p.Files {
		if r.Path == dir && r.Access != policy.Hide {
			return true
		}
	}
	return slices.ContainsFunc(p.OCI.Mounts, func(m specs.Mount) bool { return m.Destination == dir })
}

// ulimits are the limits that docker run --ulimit knows.
var ulimits = []string{"CORE", "CPU", "DATA", "FSIZE", "LOCKS", "MEMLOCK", "MSGQUEUE", "NICE", "NOFILE", "NPROC",
	"RSS", "RTPRIO", "RTTIME", "SIGPENDING", "STACK"}

// limit prints a limit; RLIM_INFINITY is -1.
func limit(n uint64) string {
	if n == 1<<64-1 {
		return "-1"
	}
	return strconv.FormatUint(n, 10)
}

func namespaces(p *policy.Policy) []specs.LinuxNamespace {
	if p.OCI.Linux == nil {
		return nil
	}
	return p.OCI.Linux.Namespaces
}

// user decides the ids of the command. What it makes in the workspace is to
// belong to the caller, as the policy's id maps have it. A rootless podman maps
// ids so; any other engine maps none, or root to the caller, and the command
// runs, and sees itself run, as the id that the caller has there.
func (d Driver) user(p *policy.Policy, f Facts) []string {
	uid, gid := p.OCI.Process.User.UID, p.OCI.Process.User.GID
	id := func(uid, gid uint32) string {
		return strconv.FormatUint(uint64(uid), 10) + ":" + strconv.FormatUint(uint64(gid), 10)
	}
	if f.Rootless && f.Podman {
		return []string{"--userns", "keep-id:uid=" + strconv.FormatUint(uint64(uid),
			10) + ",gid=" + strconv.FormatUint(uint64(gid), 10), "--user", id(uid, gid)}
	}
	if f.Rootless {
		return []string{"--user", "0:0"}
	}
	if l := p.OCI.Linux; l != nil && len(l.UIDMappings) == 1 && len(l.GIDMappings) == 1 {
		uid, gid = l.UIDMappings[0].HostID, l.GIDMappings[0].HostID
	}
	return []string{"--user", id(uid, gid)}
}

func (d Driver) network(p *policy.Policy) []string {
	switch {
	case p.Egress.Mode != policy.EgressHost:
		return []string{"--network", "none"}
	case d.Bridge || len(d.Ports) != 0:
		return []string{"--network", "bridge"}
	}
	return []string{"--network", "host"}
}

func resources(r *specs.LinuxResources) []string {
	if r == nil {
		return nil
	}
	var a []string
	num := func(flag string, n int64) { a = append(a, flag, strconv.FormatInt(n, 10)) }
	l := policy.LimitsOf(r)
	if l.Memory > 0 {
		num("--memory", l.Memory)
		if swap := r.Memory.Swap; swap != nil && *swap > 0 {
			num("--memory-swap", *swap)
		}
	}
	if l.Period > 0 {
		num("--cpu-period", int64(l.Period))
	}
	if l.Quota > 0 {
		num("--cpu-quota", l.Quota)
	}
	if l.Pids > 0 {
		num("--pids-limit", l.Pids)
	}
	return a
}

// A mount is one of a container's, by the arguments that ask for it.
type mount struct {
	at   string
	args []string
}

// A list is the mounts of a container, and what of the policy cannot be one.
type list struct {
	p       *policy.Policy
	f       Facts
	all     []mount
	refused []string
}

func (l *list) add(at string, fields ...string) {
	l.all = append(l.all, mount{at, []string{"--mount", csvLine(fields)}})
}

func (l *list) refuse(what string) { l.refused = append(l.refused, what) }

func (l *list) bind(src, dst string, access policy.Access) {
	fields := []string{"type=bind", "source=" + src, "target=" + dst}
	if access&policy.Write == 0 {
		// What is mounted below would stay writable: engines before 25 make
		// only the mount itself read-only.
		fields = append(fields, "readonly", "bind-nonrecursive=true")
	}
	l.add(dst, fields...)
}

// files are the host paths that the policy shows, and hides below them.
func (l *list) files() {
	rules := policy.Sort(l.p.Files)
	for i, r := range rules {
		above := policy.Hide
		for j := range i {
			if within(r.Path, rules[j].Path) {
				above = rules[j].Access
			}
		}
		switch {
		case !utf8.ValidString(r.Path):
			// The engine would take another, with other bytes for these.
			l.refuse("files." + strconv.QuoteToASCII(r.Path) + " (a path that is not UTF-8)")
		case r.Path == "/":
			l.refuse("files./ (the root is the image's)")
		case r.Access == policy.Hide && above == policy.Hide:
		case r.Access == policy.Hide:
			l.hide(r.Path)
		case r.Access&policy.Execute == 0:
			l.refuse("files." + r.Path + " " + r.Access.String() + " (a bind that cannot be executed from)")
		case r.Optional && l.f.IsDir != nil && !l.f.IsDir(r.Path) && !l.f.IsFile(r.Path):
		default:
			l.bind(r.Path, r.Path, r.Access)
		}
	}
}

func (l *list) hide(at string) {
	switch {
	case l.f.IsDir != nil && l.f.IsDir(at):
		fields := []string{"type=tmpfs", "target=" + at, "tmpfs-size=4096", "tmpfs-mode=0"}
		if l.f.Podman {
			fields = append(fields, noCopy)
		}
		l.add(at, fields...)
	case l.f.IsFile != nil && l.f.IsFile(at):
		l.add(at, "type=bind", "source=/dev/null", "target="+at, "readonly")
	}
}

// volumes are private storage in place of what an image declares: an engine would make
// a directory of its own on the host's disk for each, without a bound.
func (l *list) volumes() (private []specs.Mount) {
	for _, v := range l.f.Volumes {
		at := path.Clean("/" + v)
		under := func(dir string) bool { return within(at, dir) }
		there := func(m specs.Mount) bool { return m.Destination == at }
		switch {
		case !path.IsAbs(v) || slices.ContainsFunc([]string{"/proc", "/sys", "/dev", "/sbin"},
			under) || at == "/" || strings.ContainsAny(at, ":"):
			// Docker takes one without a slash for another, beside what is mounted there.
			l.refuse("image.volumes." + quote.Inside(at))
		case slices.ContainsFunc(l.all, func(m mount) bool { return m.at == at }) ||
			slices.ContainsFunc(l.p.OCI.Mounts, there):
			// Something else is there.
		case slices.ContainsFunc(l.all, func(m mount) bool { return under(m.at) }),
			slices.ContainsFunc(l.p.OCI.Mounts,
				func(m specs.Mount) bool { return m.Type == "bind" && under(m.Destination) }):
			l.refuse("image.volumes." + quote.Inside(at) + " (below a directory of this host)")
		default:
			private = append(private, specs.Mount{Destination: at, Type: "tmpfs", Options: []string{"mode=1777"}})
		}
	}
	return private
}

// other adds a mount of the policy's, of which as much private storage as the rest is
// shared by so many.
func (l *list) other(m *specs.Mount, rest uint64, storage int) {
	if !utf8.ValidString(m.Source + m.Destination) {
		l.refuse("oci.mounts." + strconv.QuoteToASCII(m.Destination) + " (a path that is not UTF-8)")
		return
	}
	switch m.Type {
	case "tmpfs":
		if m.Destination == "/dev" {
			return // the engine makes one
		}
		if strings.ContainsAny(m.Destination, ":") {
			l.refuse("oci.mounts." + m.Destination + " (a colon)")
			return
		}
		options := strings.Join(tmpfsOptions(l.p, m.Options, rest, storage, l.f), ",")
		l.all = append(l.all, mount{m.Destination, []string{"--tmpfs", m.Destination + ":" + options}})
	case "proc", "devpts":
		// The engine's own.
	case "bind":
		access := policy.All
		if slices.Contains(m.Options, "ro") {
			access = policy.ReadExec
		}
		if slices.Contains(m.Options, "noexec") {
			l.refuse("oci.mounts." + m.Destination + " noexec")
		}
		l.bind(m.Source, m.Destination, access)
	default:
		l.refuse("oci.mounts." + m.Destination + " of type " + m.Type)
	}
}

// mounts are the host paths that the policy shows, hides below them, and its
// private storage, what is above first.
func mounts(p *policy.Policy, f Facts) (args, refused []string) {
	l := &list{p: p, f: f}
	l.files()
	private := slices.Concat(p.OCI.Mounts, l.volumes())
	storage := 0
	for i := range private {
		if m := &private[i]; m.Type == "tmpfs" && !hasSize(m.Options) {
			storage++
		}
	}
	// An engine makes one more place, as large as it commonly is.
	shm := min(shmSize, share(bound(p), storage+1))
	args = append(args, "--shm-size", strconv.FormatUint(max(pageSize, shm), 10))
	rest := bound(p) - shm
	// A tmpfs has whole pages, and one of size 0 no bound.
	if shm == 0 || storage > 0 && share(rest, storage) == 0 {
		l.refuse("limits.disk (in " + strconv.Itoa(storage) + " parts, each of a page or more)")
	}
	for i := range private {
		l.other(&private[i], rest, storage)
	}
	if f.Hosts != "" && p.Egress.Mode != policy.EgressHost &&
		!slices.ContainsFunc(l.all, func(m mount) bool { return within("/etc/hosts", m.at) }) {
		l.bind(f.Hosts, "/etc/hosts", policy.ReadExec)
	}
	slices.SortStableFunc(l.all, func(a, b mount) int {
		switch {
		case a.at == b.at:
			return 0
		case within(b.at, a.at):
			return -1
		case within(a.at, b.at):
			return 1
		}
		return strings.Compare(a.at, b.at)
	})
	for _, m := range l.all {
		args = append(args, m.args...)
	}
	return args, l.refused
}

func hasSize(opts []string) bool {
	return slices.ContainsFunc(opts, func(o string) bool { return strings.HasPrefix(o, "size=") })
}

// pageSize is the largest that a page of a supported kernel commonly has.
const pageSize = 64 << 10 // bytes

// shmSize is what an engine gives /dev/shm.
const shmSize = 64 << 20 // bytes

// bound is what private storage may hold together.
func bound(p *policy.Policy) uint64 { return cmp.Or(p.Scratch.Bytes, scratchDefault) }

// share is one of n equal parts of so many bytes, in whole pages.
func share(bytes uint64, n int) uint64 { return bytes / uint64(n) &^ (pageSize - 1) }

// tmpfsOptions bounds private storage and gives it to the command. Mounts that
// share the policy's budget get equal parts of it: together they hold no more.
func tmpfsOptions(p *policy.Policy, opts []string, bytes uint64, n int, f Facts) []string {
	out := []string{"rw", "nosuid", "nodev"}
	if !slices.Contains(opts, "noexec") {
		out = append(out, "exec")
	} else {
		out = append(out, "noexec")
	}
	for _, o := range opts {
		if strings.HasPrefix(o, "mode=") || strings.HasPrefix(o, "size=") {
			out = append(out, o)
		}
	}
	if !hasSize(opts) {
		out = append(out, "size="+strconv.FormatUint(share(bytes, n), 10))
		if p.Scratch.Inodes != 0 {
			out = append(out, "nr_inodes="+strconv.FormatUint(max(1, p.Scratch.Inodes/uint64(n)), 10))
		}
	}
	u := (Driver{}).user(p, f)
	uid, gid, _ := strings.Cut(u[len(u)-1], ":")
	if f.Podman {
		// podman's --tmpfs knows no owner; a mode for everyone is as private.
		return append(slices.DeleteFunc(out, func(o string) bool {
			return strings.HasPrefix(o, "mode=") || strings.HasPrefix(o, "nr_inodes=")
		}), "mode=1777", noCopy)
	}
	return append(out, "uid="+uid, "gid="+gid)
}

// csvLine is the value of --mount, which is a line of comma-separated values.
func csvLine(fields []string) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	w.Write(fields)
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// within reports whether p is dir or below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// environment splits the policy's variables: those that a line of an
// environment file can hold, and those that the client has to pass from its own
// environment. A variable of the second kind that the client itself obeys is
// refused: it would change where the container runs.
func environment(env []string) (file []byte, passed []string, refused []string) {
	for _, e := range env {
		key, value, _ := strings.Cut(e, "=")
		plain := !strings.ContainsAny(e, "\n\r\x00") && len(e) < 60<<10 && strings.ToValidUTF8(e, "") == e &&
			!strings.ContainsAny(key, " \t") && !strings.HasPrefix(key, "#") && !strings.ContainsAny(key, "*")
		switch {
		case plain:
			file = append(append(append(append(file, key...), '='), value...), '\n')
		case !utf8.ValidString(e), clients(key):
			refused = append(refused, "oci.process.env."+key+" (a value that is not one line of text)")
		default:
			passed = append(passed, e)
		}
	}
	return file, passed, refused
}

// proxies are the variables that Docker's client sets in each container, if its
// configuration has them. It leaves alone what it is told to pass.
var proxies = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy",
	"ftp_proxy", "no_proxy", "all_proxy"}

func isProxy(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return slices.Contains(proxies, name)
}

// clients reports whether the client, or what it starts, obeys a variable.
func clients(key string) bool {
	for _, prefix := range [...]string{"DOCKER_", "BUILDKIT_", "COMPOSE_", "CONTAINER", "PODMAN_", "STORAGE_", "BUILDAH_",
		"REGISTRY_", "XDG_", "LD_", "GO", "SSH_", "OTEL_", "NO_COLOR", "_CONTAINERS_", "DBUS_", "LISTEN_", "NOTIFY_"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	switch key {
	case "PATH", "HOME", "TMPDIR", "USER", "TERM":
		return true
	}
	return strings.HasSuffix(strings.ToUpper(key), "_PROXY") || strings.ContainsAny(key, " \t") || key == ""
}

// local reports whether an engine's address is this machine's, so that a
// path of this host is the same file for it.
func local(host string) bool {
	return host == "" || strings.HasPrefix(host, "unix://") || strings.HasPrefix(host, "npipe://") || path.IsAbs(host)
}
