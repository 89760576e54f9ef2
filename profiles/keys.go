package profiles

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/internal/nearest"
	"github.com/sbxrun/sbxrun/policy"
)

// key is one setting of a profile. The order is the one in which they are shown.
type key uint8

const (
	keyDescription key = iota
	keyProfile
	keyExtends
	keyIsolation
	keyDriver
	keyFallback
	keyImage
	keyVerify
	keyWorkspace
	keyGit
	keyHome
	keyUser
	keyHostname
	keyNetMode
	keyNetAllow
	keyNetDeny
	keyNetTools
	keyNetPublish
	keyNetRate
	keyNetLog
	keyRead
	keyReadTry
	keyCopyTry
	keyWrite
	keyWriteTry
	keyUnix
	keyHide
	keySecrets
	keyReadClean
	keySecretNames
	keySecretText
	keyDenyWrite
	keyDenyExec
	keyProtect
	keyUnprotect
	keyTmpfs
	keyDevices
	keyGPU
	keyEnvPass
	keyEnvSet
	keyEnvInherit
	keyMemory
	keyCPUs
	keyPids
	keyFileSize
	keyOpenFiles
	keyDisk
	keyWallTime
	keyKillAfter
	keyOutput
	keySeccomp
	keyRequire
	keyDegrade
	keySELinux
	keyAppArmor
	keyAuditFile
	keyAuditSize
	keyAuditKeep
	keyUnsandboxed
	keyRolloutEnabled
	keyRolloutPercent
	keyRolloutForce
	numKeys
)

// kind is the form of a key's value.
type kind uint8

const (
	kindText     kind = iota
	kindEnum          // one of keyInfo.enum
	kindBool          // value.n is 0 or 1
	kindSize          // value.n in bytes
	kindCPUs          // value.n in thousandths of a processor
	kindCount         // value.n
	kindDuration      // value.n in nanoseconds
	kindList          // value.parts; a file's list is added to the one it extends
)

// order says which change of a value makes a sandbox tighter; see tightens.
type order uint8

const (
	orderFixed order = iota // none: any change counts as loosening
	orderFree               // every change is harmless
	orderLess               // a smaller number, but 0 is no limit
	orderTrue               // true is tighter than false
	orderFalse              // false is tighter than true
	orderEnum               // the later in keyInfo.enum the tighter
	orderMore               // a longer list is tighter
	orderFewer              // a shorter list is tighter
)

// keyInfo describes a key. It is all that the parser, the schema, the
// environment, the project rule and "profile show" know of it.
type keyInfo struct {
	name  string // dotted
	kind  kind
	order order
	env   string // variable that sets it, without "SBXRUN_"; "" if none does
	doc   string
	enum  []string

	// operator keys are about who runs agents, not about what a command may do:
	// no profile and no project has a say in them, however trusted.
	operator bool
}

// keys is plain data: no package initialisation builds it.
var keys = [numKeys]keyInfo{
	keyDescription: {name: "description", order: orderFree, doc: "What the profile gives and to whom."},
	keyProfile: {name: "profile", env: "PROFILE",
		doc: "The profile to use when no flag names one. Configuration files only."},
	keyExtends: {name: "extends",
		doc: "The profile that this one changes, by name or file; strict if not said. Profile files only."},
	keyIsolation: {name: "isolation", kind: kindEnum, order: orderEnum, enum: []string{"none", "full"},
		doc: "none is a bare process of the host: nothing is isolated."},
	keyDriver: {name: "driver", env: "DRIVER",
		doc: "What enforces the policy: native, landlock, bwrap, gvisor, runc, crun, docker, container-use, seatbelt or host."},
	keyFallback: {name: "fallback", kind: kindList, order: orderFewer, env: "FALLBACK",
		doc: "Drivers to try, in order, when the first cannot run here."},
	keyImage: {name: "image", doc: "Container image, for drivers that use one."},
	keyVerify: {name: "verify", kind: kindBool, order: orderTrue, env: "VERIFY",
		doc: "Prove with canaries, once per host, that what is denied is denied."},
	keyWorkspace: {name: "workspace", kind: kindEnum, order: orderEnum, env: "WORKSPACE",
		enum: []string{"bind", "overlay", "ro", "none"},
		doc:  "How the working directory is shown: writable; copy-on-write, so that what is changed is kept apart until sbxrun apply; read-only; or not at all."},
	keyGit: {name: "git", kind: kindBool, order: orderFalse,
		doc: "Show the Git repository that the workspace belongs to where it lies outside: of a directory in a repository, of a linked worktree and of a submodule."},
	keyHome: {name: "home", kind: kindEnum, order: orderEnum, enum: []string{"host", "private", "anonymous"},
		doc: "private is an empty home that is thrown away, at the path of the caller's; anonymous is the same at /home/sandbox, and tells nothing of the caller; host is the caller's, as far as files shows it."},
	keyUser:     {name: "user", doc: "User and group id inside, UID[:GID]; 1000:1000 if not said."},
	keyHostname: {name: "hostname", order: orderFree, doc: "Host name inside."},

	keyNetMode: {name: "network.mode", kind: kindEnum, order: orderEnum, env: "NET", enum: []string{"host",
		"proxy", "none"}, doc: "none has loopback only; proxy reaches what allow names; host is not isolated."},
	keyNetAllow: {name: "network.allow", kind: kindList, order: orderFewer,
		doc: "Hosts that the proxy lets through: [PROTOCOL://]HOST[:PORT[,PORT…]]; a HOST is NAME, *.NAME, an address or a network; * is any public host; a PORT can be FIRST-LAST; PROTOCOL is https, http, tls or tcp, which is anything, unread."},
	keyNetDeny: {name: "network.deny", kind: kindList, order: orderMore,
		doc: "Hosts that the proxy refuses, whatever allow says."},
	keyNetTools: {name: "network.tools", kind: kindBool, order: orderFalse,
		doc: "Also let through the hosts that the caller's own tools are set up to use: package registries, and git remotes that the caller is known to use."},
	keyNetPublish: {name: "network.publish", kind: kindList, order: orderFewer,
		doc: "Ports of the sandbox that the host can connect to, [ADDRESS:]HOSTPORT:PORT; the address is 127.0.0.1 if not said."},
	keyNetRate: {name: "network.requests_per_minute", kind: kindCount, order: orderLess,
		doc: "Requests to each host in a minute."},
	keyNetLog: {name: "network.log", kind: kindBool, order: orderTrue, doc: "Log every request."},

	keyRead: {name: "files.read", kind: kindList, order: orderFewer, doc: "Host paths to read and execute."},
	keyReadTry: {name: "files.read_try", kind: kindList, order: orderFewer,
		doc: "As read, but passed over where the host has no such path."},
	keyCopyTry: {name: "files.copy_try", kind: kindList, order: orderFewer,
		doc: "As read_try, and what the command changes below is kept in private storage and thrown away: for caches of tools. Only read where the driver or the kernel has no overlays."},
	keyWrite: {name: "files.write", kind: kindList, order: orderFewer,
		doc: "Host paths to read, write and execute."},
	keyWriteTry: {name: "files.write_try", kind: kindList, order: orderFewer,
		doc: "As write, but passed over where the host has no such path."},
	keyUnix: {name: "files.unix", kind: kindList, order: orderFewer,
		doc: "Unix sockets of the host to connect to, or directories of such; shown read-only if nothing else shows them. Before Linux 7.1 a command can connect to every socket that is shown."},
	keyHide: {name: "files.hide", kind: kindList, order: orderMore,
		doc: "Host paths that are not there, whatever else is said of them."},
	keySecrets: {name: "files.secrets", kind: kindList, order: orderMore,
		doc: "As hide, but a grant that names the path itself, without a pattern, shows it."},
	keyReadClean: {name: "files.read_clean", kind: kindList, order: orderFewer,
		doc: "Text files to read, without the lines that look like credentials: where there are any, the command gets a copy."},
	keySecretNames: {name: "files.secret_names", kind: kindList, order: orderMore,
		doc: "Names of files that are hidden at any depth of the workspace and of what else is shown of the home or by the caller, where they exist when the run starts; * matches within a name."},
	keySecretText: {name: "files.secret_text", kind: kindList, order: orderMore,
		doc: "As secret_names, if what such a file holds looks like a credential."},
	keyDenyWrite: {name: "files.deny_write", kind: kindList, order: orderMore,
		doc: "Host paths that cannot be written, whatever write says."},
	keyDenyExec: {name: "files.deny_exec", kind: kindList, order: orderMore,
		doc: "Host paths that cannot be executed."},
	keyProtect: {name: "files.protect", kind: kindList, order: orderMore,
		doc: "Names below what is writable of the host that cannot be changed, removed or made, at any depth; * matches within a name, and a slash at the end protects the entry but not what it holds."},
	keyUnprotect: {name: "files.unprotect", kind: kindList, order: orderFewer,
		doc: "Names of protect, or the first part of them, to take off the list; all for every one."},
	keyTmpfs: {name: "tmpfs", kind: kindList, order: orderMore,
		doc: "Places of private, empty storage, PATH or PATH:SIZE; without a size they share limits.disk."},
	keyDevices: {name: "devices", kind: kindList, order: orderFewer,
		doc: "Device nodes of the host, such as /dev/kvm."},
	keyGPU: {name: "gpu", kind: kindBool, order: orderFalse,
		doc: "The host's GPUs: their device nodes, and read-only what their drivers consist of; by CDI files where there are any."},

	keyEnvPass: {name: "env.pass", kind: kindList, order: orderFewer,
		doc: "Variables of the caller that the command gets; a trailing * matches any rest."},
	keyEnvSet: {name: "env.set", kind: kindList, order: orderFewer, doc: "Variables to set, KEY=VALUE."},
	keyEnvInherit: {name: "env.inherit", kind: kindBool, order: orderFalse,
		doc: "Pass every variable but those that make programs load code."},

	keyMemory: {name: "limits.memory", kind: kindSize, order: orderLess, env: "MEMORY",
		doc: "Memory of all processes together, without swap; at least 1m."},
	keyCPUs: {name: "limits.cpus", kind: kindCPUs, order: orderLess, env: "CPUS",
		doc: "Processors' worth of time."},
	keyPids: {name: "limits.pids", kind: kindCount, order: orderLess, env: "PIDS", doc: "Processes and threads."},
	keyFileSize: {name: "limits.file_size", kind: kindSize, order: orderLess, env: "FSIZE",
		doc: "Largest file that can be written."},
	keyOpenFiles: {name: "limits.open_files", kind: kindCount, order: orderLess, env: "NOFILE",
		doc: "Open files of each process."},
	keyDisk: {name: "limits.disk", kind: kindSize, order: orderLess, env: "DISK",
		doc: "Private storage: /tmp, the private home and their like together; none is the driver's own bound, for there is always one."},
	keyWallTime: {name: "limits.wall_time", kind: kindDuration, order: orderLess, env: "TIMEOUT",
		doc: "Time after which the run is ended."},
	keyKillAfter: {name: "limits.kill_after", kind: kindDuration, order: orderLess, env: "KILL_AFTER",
		doc: "Time from SIGTERM to SIGKILL; 0s is SIGKILL at once."},
	keyOutput: {name: "limits.output", kind: kindSize, order: orderLess, env: "MAX_OUTPUT",
		doc: "Bytes kept of each captured stream."},

	keySeccomp: {name: "seccomp", doc: "System call filter: a built-in name, a file in the OCI JSON form, or none."},
	keyRequire: {name: "require", kind: kindList, order: orderMore, env: "REQUIRE",
		doc: "Layers without which the run must not happen."},
	keyDegrade: {name: "allow_degraded", kind: kindList, order: orderFewer, env: "ALLOW_DEGRADED",
		doc: "Layers to go without where the host cannot give them."},
	keySELinux:  {name: "selinux_label", doc: "SELinux label of the process."},
	keyAppArmor: {name: "apparmor_profile", doc: "AppArmor profile of the process."},

	keyAuditFile: {name: "audit.file", env: "AUDIT", operator: true,
		doc: "File to append a line of JSON to for each run and each refusal. Configuration files only."},
	keyAuditSize: {name: "audit.max_size", kind: kindSize, operator: true,
		doc: "Size at which the file is put away and begun anew; 10m if not said, none for never. Configuration files only."},
	keyAuditKeep: {name: "audit.keep", kind: kindCount, operator: true,
		doc: "Files that were put away and are kept; 5 if not said. Configuration files only."},
	keyUnsandboxed: {name: "agents.unsandboxed", kind: kindBool, operator: true,
		doc: "Let an agent's call that says dangerouslyDisableSandbox run on the bare host. Configuration files only."},
	keyRolloutEnabled: {name: "rollout.enabled", kind: kindBool, operator: true,
		doc: "Whether agents' commands are sandboxed at all; true if not said. Configuration files only."},
	keyRolloutPercent: {name: "rollout.percent", kind: kindCount, operator: true,
		doc: "Share of agents, by a hash of each one's key, whose commands are sandboxed; 100 if not said. Configuration files only."},
	keyRolloutForce: {name: "rollout.force", kind: kindList, operator: true,
		doc: "Keys of agents whose commands are sandboxed whatever percent says. Configuration files only."},
}

// A value is what a profile says of one key. It is unset if origin is empty,
// or, for a list, if it has no parts.
type value struct {
	origin string
	s      string
	n      int64
	parts  []part
}

// A part is the share of one source in a list.
type part struct {
	origin string
	items  []string
}

// each yields the items of a list, with who said each.
func (v *value) each() iter.Seq2[string, string] {
	return func(yield func(origin, item string) bool) {
		for _, p := range v.parts {
			for _, item := range p.items {
				if !yield(p.origin, item) {
					return
				}
			}
		}
	}
}

func (v *value) isSet() bool { return v.origin != "" || len(v.parts) > 0 }

// A profile is a value for every key. The zero profile says nothing.
type profile struct {
	name   string
	file   string // that defines it, "" for a preset
	values [numKeys]value
}

// over lays what p says over what base says: lists add up, anything else is
// replaced.
func (p *profile) over(base *profile) {
	for k := range base.values {
		v := &p.values[k]
		switch {
		case !v.isSet():
			*v = base.values[k]
		case keys[k].kind == kindList:
			v.parts = slices.Concat(base.values[k].parts, v.parts)
		}
	}
}

func (p *profile) text(k key) string { return p.values[k].s }
func (p *profile) num(k key) int64   { return p.values[k].n }
func (p *profile) flag(k key) bool   { return p.values[k].n != 0 }

// items lists what every source said of a list, in the order of the sources.
func (p *profile) items(k key) []string {
	var out []string
	for _, part := range p.values[k].parts {
		out = append(out, part.items...)
	}
	return out
}

// where names the source of a key's value for messages.
func (p *profile) where(k key) string { return cmp.Or(p.values[k].origin, keys[k].name) }

func (p *profile) setText(k key, s, origin string) { p.values[k] = value{origin: origin, s: s} }
func (p *profile) setBool(k key, b bool, origin string) {
	p.values[k] = value{origin: origin}
	if b {
		p.values[k].n = 1
	}
}
func (p *profile) add(k key, origin string, items ...string) {
	if len(items) > 0 {
		p.values[k].parts = append(p.values[k].parts, part{origin, items})
	}
}

// parseScalar reads the text of a scalar value of key k.
func parseScalar(k key, s, origin string) (value, error) {
	v, err := scalar(k, s, origin)
	if err == nil {
		err = checkValue(k, &v)
	}
	return v, err
}

// scalar is parseScalar without a look at what the value means.
func scalar(k key, s, origin string) (v value, err error) {
	v.origin = origin
	switch info := &keys[k]; info.kind {
	case kindText:
		v.s = s
	case kindEnum:
		if v.s = s; !slices.Contains(info.enum, s) {
			err = wrong(s, "is not a value of "+info.name+": want "+strings.Join(info.enum, ", "),
				didYouMean(s, info.enum))
		}
	case kindBool:
		if s == "true" {
			v.n = 1
		} else if s != "false" {
			err = wrong(s, "is not a value of "+info.name+": want true or false", "")
		}
	case kindSize:
		var n uint64
		n, err = ParseSize(s)
		v.n = int64(n)
	case kindCPUs:
		var n float64
		n, err = ParseCPUs(s)
		v.n = milli(n)
	case kindCount:
		parse := ParseCount
		if k == keyRolloutPercent || k == keyAuditKeep { // no limits
			parse = parseNumber
		}
		v.n, err = parse(s)
	case kindDuration:
		parse := ParseDuration
		if k == keyKillAfter {
			parse = ParseGrace
		}
		var d time.Duration
		d, err = parse(s)
		v.n = int64(d)
	}
	return v, err
}

// milli rounds to thousandths, and never to 0, which would be no limit.
func milli(cpus float64) int64 {
	n := int64(cpus*1000 + 0.5)
	if n == 0 && cpus > 0 {
		return 1
	}
	return n
}

// minMemory is what a dynamic /bin/true needs, with room for the page cache of
// its own binary; below it no command can be started at all.
const minMemory = 1 << 20

// minDisk has room for what every sandbox has in its private storage: directories,
// mount points, /etc/passwd.
const minDisk = 1 << 20

// checkValue reports what no run could use, once the form is right.
func checkValue(k key, v *value) error {
	switch k {
	case keyMemory:
		if v.n != 0 && v.n < minMemory {
			return &Error{What: FormatSize(uint64(v.n)) + " of memory is too little to start anything: want 1m or more",
				Fix: "say the unit, as in 512m; none removes the limit"}
		}
	case keyDisk:
		if v.n == 0 {
			return &Error{What: "private storage is memory, and not without a limit",
				Fix: "name a large one, for example 8g"}
		}
		if v.n < minDisk {
			return &Error{What: FormatSize(uint64(v.n)) + " of private storage is too little for a sandbox: want 1m or more",
				Fix: "say the unit, as in 512m"}
		}
	case keyRolloutPercent:
		if v.n > 100 {
			return &Error{What: strconv.FormatInt(v.n, 10) + " is not a share: want 0 to 100"}
		}
	case keyAuditKeep:
		if v.n > 1000 {
			return &Error{What: strconv.FormatInt(v.n, 10) + " files are too many: want 0 to 1000"}
		}
	case keyUser:
		_, err := ParseUser(v.s)
		return err
	case keyHostname:
		// HOST_NAME_MAX; see gethostname(2). The characters are those of RFC 1123.
		const allowed = "-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		if v.s == "" || len(v.s) > 64 || strings.Trim(v.s, allowed) != "" {
			return &Error{What: strconv.Quote(v.s) + " is not a host name: want up to 64 letters, digits, dots and dashes"}
		}
	}
	return nil
}

// format prints a scalar value as a profile file would have it.
func (v *value) format(k key) string {
	switch keys[k].kind {
	case kindBool:
		return strconv.FormatBool(v.n != 0)
	case kindSize:
		return FormatSize(uint64(v.n))
	case kindCPUs:
		if v.n == 0 {
			return "none"
		}
		return strconv.FormatFloat(float64(v.n)/1000, 'f', -1, 64)
	case kindCount:
		if v.n == 0 {
			return "none"
		}
		return strconv.FormatInt(v.n, 10)
	case kindDuration:
		if v.n == 0 {
			return "none"
		}
		return FormatDuration(time.Duration(v.n))
	}
	return v.s
}

// FormatDuration drops the zeros that time.Duration prints: "5m0s" is "5m".
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseLayers reads a list of layer names.
func parseLayers(parts []part) (policy.Layers, error) {
	var set policy.Layers
	for _, p := range parts {
		for _, name := range p.items {
			l, err := policy.ParseLayer(name)
			if err != nil {
				return 0, &Error{Where: p.origin, What: strconv.Quote(name) + " is not a layer: want one of " +
					strings.Join(policy.LayerNames(), ", "), Fix: didYouMean(name, policy.LayerNames())}
			}
			set |= l
		}
	}
	return set, nil
}

// didYouMean is a hint that names the candidate nearest to s, or "" if none is
// near.
func didYouMean(s string, candidates []string) string {
	if c := nearest.Name(s, candidates); c != "" {
		return "did you mean " + c + "?"
	}
	return ""
}
