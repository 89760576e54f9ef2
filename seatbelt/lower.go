package seatbelt

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/policy"
)

// Options are what lowering needs to know beside the policy.
type Options struct {
	// Home is the caller's home directory, where the sockets of agents and
	// container engines lie; "" if there is none.
	Home string

	// Scratch is the directory of the run's private storage.
	Scratch string

	// Terminal is the path of the command's terminal, for policies with one.
	Terminal string

	// ProxyPort is the port of the egress proxy on the host's loopback, for
	// policies that reach the network through it.
	ProxyPort uint16
}

// system are the host paths that every program needs to start: the loader, the
// system's libraries and what they read. Beside these the command sees what the
// policy shows.
var system = []policy.FileRule{
	{Path: "/System/Library", Access: policy.ReadExec},
	{Path: "/System/Volumes/Preboot/Cryptexes", Access: policy.ReadExec}, // the shared cache since macOS 13
	{Path: "/System/Cryptexes", Access: policy.ReadExec},
	{Path: "/usr/lib", Access: policy.ReadExec},
	{Path: "/Library/Apple", Access: policy.ReadExec},
	// What /usr/bin/cc, git and make are stubs for.
	{Path: "/Library/Developer/CommandLineTools", Access: policy.ReadExec},
	{Path: "/private/var/db/dyld", Access: policy.ReadExec},
	{Path: "/private/var/db/timezone", Access: policy.Read},
	{Path: "/private/var/db/xcode_select_link", Access: policy.Read},
	{Path: "/private/var/select", Access: policy.Read}, // which shell /bin/sh is
	{Path: "/private/etc/localtime", Access: policy.Read},
	{Path: "/usr/share", Access: policy.Read},
}

// sysctls are what the C library, language runtimes and build tools ask. A bare
// sysctl-read would list every process with its arguments (kern.proc*).
var sysctls = []string{
	"hw.activecpu", "hw.busfrequency_compat", "hw.byteorder", "hw.cacheconfig", "hw.cachelinesize",
	"hw.cachelinesize_compat", "hw.cpufamily",
	"hw.cpufrequency_compat", "hw.cputype", "hw.cpusubtype", "hw.l1dcachesize_compat", "hw.l1icachesize_compat",
	"hw.l2cachesize_compat", "hw.l3cachesize_compat",
	"hw.logicalcpu", "hw.logicalcpu_max", "hw.machine", "hw.memsize", "hw.model", "hw.ncpu", "hw.nperflevels",
	"hw.packages", "hw.pagesize",
	"hw.pagesize_compat", "hw.physicalcpu", "hw.physicalcpu_max", "hw.tbfrequency_compat", "hw.vectorunit",
	"kern.argmax", "kern.hostname", "kern.iossupportversion", "kern.maxfiles", "kern.maxfilesperproc", "kern.maxproc",
	"kern.ngroups", "kern.osproductversion", "kern.osrelease",
	"kern.ostype", "kern.osvariant_status", "kern.osversion", "kern.secure_kernel", "kern.usrstack64", "kern.version",
	"kern.willshutdown",
	"sysctl.proc_cputype", "sysctl.proc_native", "sysctl.proc_translated", "vm.loadavg",
}

// Lower makes the SBPL profile of a policy. It reads nothing: the same policy
// gives the same text on every system.
//
// Seatbelt takes the last rule that matches. Still no rule depends on that but
// in one way, that denials come after what is allowed: a path that is shown
// below one that is hidden is an exception in the denial. Sockets that a policy names in
// places that are denied to all come after those.
func Lower(p *policy.Policy, o Options) (*Profile, error) {
	o.Scratch = cmp.Or(o.Scratch, "/private/tmp/sbxrun") // for printing; Start makes one
	o.ProxyPort = cmp.Or(o.ProxyPort, 3128)              // the same
	rules := fileRules(p, o.Scratch)
	w := &writer{}
	w.b.WriteString("(version 1)\n(deny default)\n")

	w.comment("processes: its own only")
	w.always("allow", "process-fork")
	w.rule("allow", "signal", "(target same-sandbox)")
	w.rule("allow", "process-info*", "(target same-sandbox)")
	var names []string
	for _, s := range sysctls {
		names = append(names, quote(s))
	}
	w.rule("allow", "sysctl-read", "(sysctl-name "+strings.Join(names, " ")+")", `(sysctl-name-prefix "hw.optional.")`,
		`(sysctl-name-prefix "hw.perflevel")`, `(sysctl-name-prefix "machdep.cpu.")`)

	w.comment("services: user names and the private directory; see getpwuid(3), confstr(3)")
	w.rule("allow", "mach-lookup",
		`(global-name "com.apple.bsd.dirhelper")`,
		`(global-name "com.apple.system.opendirectoryd.libinfo")`,
		`(global-name "com.apple.system.opendirectoryd.membership")`)
	// The semaphores of Python's multiprocessing, and the runtime of OpenMP.
	w.rule("allow", "ipc-posix-sem", `(ipc-posix-name-regex "^/mp-[0-9a-zA-Z_]+$")`)
	w.rule("allow", "ipc-posix-shm-read-data ipc-posix-shm-write-create ipc-posix-shm-write-unlink",
		`(ipc-posix-name-regex "^/__KMP_REGISTERED_LIB_[0-9]+$")`)

	w.comment("files")
	w.files(rules)
	w.rule("allow", "file-ioctl", w.devices(p)...)
	if p.OCI.Process.Terminal {
		w.terminal(o.Terminal)
	}

	w.comment("network: " + p.Egress.Mode.String())
	w.rule("allow", "network-bind network-outbound", w.subpath(real(o.Scratch))) // sockets in private storage
	w.connects(p, rules)
	switch p.Egress.Mode {
	case policy.EgressProxy:
		w.rule("allow", "network-outbound", `(remote tcp `+w.param("PROXY", "localhost:"+strconv.Itoa(int(o.ProxyPort)))+`)`)
	case policy.EgressHost:
		w.rule("allow", "network-outbound", `(remote ip "*:*")`, `(literal "/private/var/run/mDNSResponder")`)
		w.rule("allow", "network-bind network-inbound", `(local ip "*:*")`)
		w.rule("allow", "mach-lookup", `(global-name "com.apple.SystemConfiguration.configd")`,
			`(global-name "com.apple.trustd.agent")`)
	}

	w.comment("denied, whatever is allowed above")
	w.denials(p, rules, o)
	w.named(p, o)
	if w.err != nil {
		return nil, w.err
	}
	return &Profile{Text: w.b.String(), Params: w.params}, nil
}

// devices are there in every sandbox; the descriptors are the command's own.
var devices = []policy.FileRule{
	{Path: "/dev/null", Access: policy.ReadWrite},
	{Path: "/dev/zero", Access: policy.ReadWrite},
	{Path: "/dev/random", Access: policy.Read},
	{Path: "/dev/urandom", Access: policy.Read},
	{Path: "/dev/dtracehelper", Access: policy.ReadWrite}, // the loader opens it
	{Path: "/dev/fd", Access: policy.ReadWrite},
	{Path: "/dev/stdin", Access: policy.ReadWrite},
	{Path: "/dev/stdout", Access: policy.ReadWrite},
	{Path: "/dev/stderr", Access: policy.ReadWrite},
}

// devices names the devices that take ioctl(2): not those that the caller's
// descriptors lead to, which may be a terminal.
func (w *writer) devices(p *policy.Policy) []string {
	filters := []string{w.literal("/dev/null"), w.literal("/dev/zero"), w.literal("/dev/dtracehelper")}
	if p.OCI.Linux != nil {
		for _, d := range p.OCI.Linux.Devices {
			filters = append(filters, w.literal(d.Path))
		}
	}
	return filters
}

// terminal allows a terminal of the command's own, by its path and as the one that
// controls it. What is typed and shown goes through it; no other is to be had.
func (w *writer) terminal(path string) {
	path = cmp.Or(path, "/dev/ttys000") // for printing; Start opens one
	filters := []string{w.literal(path), w.literal("/dev/tty")}
	w.rule("allow", "file-read* file-write-data file-ioctl", filters...)
}

// fileRules are the policy's rules by real path with those of the system. What
// the policy hides, or covers with private storage, the system does not show.
func fileRules(p *policy.Policy, scratch string) []policy.FileRule {
	var all []policy.FileRule
	for _, r := range p.Files {
		r.Path = real(r.Path)
		all = append(all, r)
	}
	var covered []policy.FileRule
	for i := range p.OCI.Mounts {
		if m := &p.OCI.Mounts[i]; m.Type == "tmpfs" {
			covered = append(covered, policy.FileRule{Path: real(m.Destination)})
		}
	}
	for _, s := range system {
		if !slices.ContainsFunc(append(all, covered...),
			func(r policy.FileRule) bool { return r.Access == policy.Hide && policy.Below(s.Path, r.Path) }) {
			all = append(all, s)
		}
	}
	all = append(append(all, covered...), devices...)
	if p.OCI.Linux != nil {
		for _, d := range p.OCI.Linux.Devices {
			all = append(all, policy.FileRule{Path: d.Path, Access: policy.ReadWrite})
		}
	}
	return policy.Sort(append(all, policy.FileRule{Path: real(scratch), Access: policy.All}))
}

// above returns the access that holds for the directory of rule i: that of the
// nearest rule above it.
func above(rules []policy.FileRule, i int) policy.Access {
	for j := i - 1; j >= 0; j-- {
		if rules[j].Path != rules[i].Path && policy.Below(rules[i].Path, rules[j].Path) {
			return rules[j].Access
		}
	}
	return policy.Hide
}

// classes are the kinds of access and the operations that each is.
var classes = []struct {
	access     policy.Access
	operations string
}{
	{policy.Read, "file-read*"},
	{policy.Write, "file-write*"},
	{policy.Execute, "process-exec* file-map-executable"},
}

// files allows what the rules grant.
func (w *writer) files(rules []policy.FileRule) {
	// Names on the way to what is shown can be asked for, not listed: programs
	// look at each when they resolve a path.
	way := map[string]bool{"/": true, "/tmp": true, "/var": true, "/etc": true, "/private": true}
	for _, c := range classes {
		var filters []string
		for i, r := range rules {
			if r.Access&c.access == 0 {
				continue
			}
			for d := path.Dir(r.Path); !way[d]; d = path.Dir(d) {
				way[d] = true
			}
			if above(rules, i)&c.access == 0 {
				filters = append(filters, w.subpath(r.Path))
			}
		}
		w.rule("allow", c.operations, filters...)
	}
	w.rule("allow", "file-read-metadata", w.literals(way)...)
	w.rule("allow", "file-read*", `(literal "/")`) // the loader lists it
}

// denials takes away what a rule does not give and one above it does, and what
// nobody is given.
func (w *writer) denials(p *policy.Policy, rules []policy.FileRule, o Options) {
	hold := map[string]bool{} // directories that hold what is denied
	w.protect(p, hold)
	for _, c := range classes {
		for i, r := range rules {
			if r.Access&c.access != 0 || above(rules, i)&c.access == 0 {
				continue
			}
			var not []string
			for j := i + 1; j < len(rules) && policy.Below(rules[j].Path, r.Path); j++ {
				if rules[j].Access&c.access != 0 && above(rules, j)&c.access == 0 {
					not = append(not, w.subpath(rules[j].Path))
				}
			}
			w.deny(c.operations, r.Path, not)
			// By another name the path would be another: whoever renames what
			// holds it has it.
			for d := path.Dir(r.Path); d != "/" && writable(rules, d); d = path.Dir(d) {
				hold[d] = true
			}
		}
	}
	w.rule("deny", "file-write-unlink", w.literals(hold)...)
	w.always("deny", "file-write-setugid")
	w.sockets(o)
}

// writable reports whether the rules let a path be written.
func writable(rules []policy.FileRule, p string) bool {
	access := policy.Hide
	for _, r := range rules {
		if policy.Below(p, r.Path) {
			access = r.Access
		}
	}
	return access&policy.Write != 0
}

// deny writes a denial for a path, there or not, and all below it but what is
// in not.
func (w *writer) deny(operations, p string, not []string) {
	var filters []string
	for _, n := range names(p) {
		if len(not) == 0 {
			filters = append(filters, w.literal(n), w.subpath(n))
			continue
		}
		filters = append(filters, "(require-all "+w.subpath(n)+" (require-not (require-any "+strings.Join(not, " ")+")))")
	}
	w.rule("deny", operations, filters...)
}

// homeSockets lie below the home: container engines, which are root for who can
// speak to them, and agents that sign with keys.
var homeSockets = []string{
	".docker/run", ".docker/desktop", ".colima", ".orbstack", ".lima", ".rd", ".local/share/containers/podman",
	"Library/Containers/com.docker.docker", "Library/Group Containers/HUAQ24HBR6.dev.orbstack",
	".gnupg", ".1password", "Library/Group Containers/2BUA8C4S2C.com.1password", ".bitwarden-ssh-agent.sock", ".ssh/agent",
}

// connects allows the sockets that a policy names, but for what it hides below.
func (w *writer) connects(p *policy.Policy, rules []policy.FileRule) {
	for _, u := range p.Unix {
		at := real(u)
		w.rule("allow", "network-outbound", w.literal(at), w.subpath(at))
		for _, r := range rules {
			if r.Access&policy.Read == 0 && r.Path != at && policy.Below(r.Path, at) {
				w.rule("deny", "network-outbound", w.literal(r.Path), w.subpath(r.Path))
			}
		}
	}
}

// named allows what sockets has denied and the policy names itself.
func (w *writer) named(p *policy.Policy, o Options) {
	for _, u := range p.Unix {
		at := real(u)
		if isLaunchd(at) || slices.ContainsFunc(usual(o), func(place string) bool { return policy.Below(at, place) }) {
			w.rule("allow", "network-outbound", w.literal(at), w.subpath(at))
		}
	}
}

// usual are the places of sockets that are a way out for whoever can connect to them.
func usual(o Options) []string {
	places := []string{"/private/var/run/docker.sock", "/private/var/run/com.docker.vmnetd.sock", "/private/var/run/usbmuxd"}
	if o.Home != "" {
		for _, s := range homeSockets {
			places = append(places, path.Join(real(o.Home), s))
		}
	}
	return places
}

func isLaunchd(at string) bool {
	return slices.ContainsFunc([]string{"/tmp", "/var/run", "/private/tmp", "/private/var/run"}, func(dir string) bool {
		ok, _ := path.Match(dir+"/com.apple.launchd.*/Listeners", at)
		return ok
	})
}

// launchd is the socket of the agent that launchd starts: SSH_AUTH_SOCK.
const launchd = `^(/private)?/(tmp|var/run)/com\.apple\.launchd\.[^/]+/Listeners$`

// sockets denies those at their usual places. No rule above allows them but one that
// names what holds them.
func (w *writer) sockets(o Options) {
	var filters []string
	for _, p := range usual(o) {
		for _, n := range names(p) {
			filters = append(filters, w.literal(n), w.subpath(n))
		}
	}
	filters = append(filters, `(regex "`+strings.ReplaceAll(launchd, `\`, `\\`)+`")`)
	w.rule("deny", "network-outbound", filters...)
}
