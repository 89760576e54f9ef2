package landlock

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// rulesetAttr is struct landlock_ruleset_attr. A kernel that knows fewer fields
// takes the size as long as what it does not know is zero.
type rulesetAttr struct {
	fs, net, scoped uint64
}

// LANDLOCK_ACCESS_NET_ rights, and struct landlock_net_port_attr.
const (
	bindTCP = 1 << iota
	connectTCP
)

const ruleNetPort = 2 // LANDLOCK_RULE_NET_PORT

type portAttr struct{ access, port uint64 }

// Append appends the calls that build the ruleset, of which the result is the
// descriptor. Paths are resolved below root, a descriptor of the sandbox's root
// directory.
//
//	int landlock_create_ruleset(const struct landlock_ruleset_attr *attr, size_t size, __u32 flags);
//	int landlock_add_rule(int ruleset_fd, enum landlock_rule_type type, const void *rule, __u32 flags);
//
// Preconditions: abi is at least 1, and what the kernel of the program has.
func Append(p *sys.Program, root sys.Reg, abi int, r *Ruleset) sys.Reg {
	access, scope := r.handled(abi)
	ruleset := p.NewReg()
	attr := &rulesetAttr{fs: uint64(access), scoped: uint64(scope)}
	if r.DenyTCP && HandledTCP(abi) {
		attr.net = bindTCP | connectTCP
	}
	p.Call(ruleset, sys.Step{Op: "landlock_create_ruleset"}, unix.SYS_LANDLOCK_CREATE_RULESET, sys.Ptr(p, attr),
		sys.Imm(24), sys.Imm(0))
	for _, port := range r.ConnectTCP {
		if attr.net != 0 {
			p.Call(0, sys.Step{Op: "landlock_add_rule", Object: "tcp"}, unix.SYS_LANDLOCK_ADD_RULE,
				ruleset.Value(), sys.Imm(ruleNetPort), sys.Ptr(p, &portAttr{connectTCP, uint64(port)}), sys.Imm(0))
		}
	}
	r.AppendRules(p, root, ruleset, abi, 0)
	for _, f := range r.FDs {
		// EBADFD: a pipe, a socket or the like, which Landlock lets be opened
		// again through /proc anyway.
		addFD(p, ruleset, f)
	}
	return ruleset
}

// AppendRules appends the calls that add the rules from one on to the ruleset that
// Append has made.
func (r *Ruleset) AppendRules(p *sys.Program, root, ruleset sys.Reg, abi, from int) {
	access, _ := r.handled(abi)
	appendRules(p, root, ruleset, access, r.Rules[from:], r.Late)
}

func appendRules(p *sys.Program, root, ruleset sys.Reg, access Access, rules []Rule, late bool) {
	fd := p.NewReg()
	how := sys.Ptr(p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_IN_ROOT})
	for i := range rules {
		rule := &rules[i]
		allowed := rule.Access & access
		if rule.IsFile {
			allowed &= File
		}
		if allowed == 0 {
			continue
		}
		open := p.Call(fd, sys.Step{Op: "openat2", Object: rule.Path}, unix.SYS_OPENAT2, root.Value(), p.Str(rule.Path), how,
			sys.Imm(unix.SizeofOpenHow))
		const rest = 2 // the calls of add
		switch {
		case late:
			open.AllowAny(rest)
		case rule.Optional:
			open.AllowSkip(syscall.ENOENT, rest)
		}
		// The descriptors are close-on-exec, and PID 1 closes all that it has
		// no use for at once.
		added := add(p, ruleset, fd.Value(), rule.Path, allowed)
		if late {
			added.AllowAny(0)
		}
	}
}

// AppendScope appends the calls that put a process, and so its children, into
// one scope for signals, abstract sockets and, where the ABI has that, sockets by path: of
// those that no child has made, the children may connect to what the rules grant. No
// files are restricted, but no mount can be made any more. It appends nothing if the ABI
// has no scopes (before 6). root is as for Append.
//
// Moving and linking files between directories (LANDLOCK_ACCESS_FS_REFER) has to
// be granted: every domain denies it, handled or not, as soon as any of a
// process's domains is about files. See landlock(7).
//
// Preconditions of the program: as for AppendRestrict.
func AppendScope(p *sys.Program, root sys.Reg, abi int, rules []Rule) {
	access, scope := Handled(abi)
	if scope == 0 {
		return
	}
	access &= ResolveUnix
	ruleset := p.NewReg()
	p.Call(ruleset, sys.Step{Op: "landlock_create_ruleset", Object: "scope"}, unix.SYS_LANDLOCK_CREATE_RULESET,
		sys.Ptr(p, &rulesetAttr{fs: uint64(Refer | access), scoped: uint64(scope)}), sys.Imm(24), sys.Imm(0))
	add(p, ruleset, root.Value(), "scope", Refer)
	appendRules(p, root, ruleset, access, rules, false)
	AppendRestrict(p, ruleset)
	p.Call(0, sys.Step{Op: "close"}, unix.SYS_CLOSE, ruleset.Value())
}

// add appends landlock_add_rule for the file in a register: struct
// landlock_path_beneath_attr is packed, allowed_access and then parent_fd.
func add(p *sys.Program, ruleset sys.Reg, v sys.Value, path string, a Access) *sys.CallRef {
	attr := make([]byte, 12)
	binary.NativeEndian.PutUint64(attr, uint64(a))
	p.Store32(attr, 8, v)
	return p.Call(0, sys.Step{Op: "landlock_add_rule", Object: path}, unix.SYS_LANDLOCK_ADD_RULE,
		ruleset.Value(), sys.Imm(unix.LANDLOCK_RULE_PATH_BENEATH), p.Bytes(attr), sys.Imm(0))
}

// AppendStream appends a rule for an open file of which the number is known only
// when the program runs.
func AppendStream(p *sys.Program, ruleset sys.Reg, fd sys.Value, a Access) {
	attr := make([]byte, 12)
	binary.NativeEndian.PutUint64(attr, uint64(a))
	p.Store32(attr, 8, fd)
	p.Call(0, sys.Step{Op: "landlock_add_rule", Object: "standard stream"}, unix.SYS_LANDLOCK_ADD_RULE,
		ruleset.Value(), sys.Imm(unix.LANDLOCK_RULE_PATH_BENEATH), p.Bytes(attr), sys.Imm(0)).Allow(unix.EBADFD)
}

// Reopen is the access to what a descriptor is open for already, for a rule by which
// it can be opened anew by its path in /proc: /dev/stdout and its like.
func Reopen(fd int) Access {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return 0
	}
	a := IoctlDev
	if m := flags & unix.O_ACCMODE; m == unix.O_RDONLY || m == unix.O_RDWR {
		a |= ReadFile
	}
	if m := flags & unix.O_ACCMODE; m == unix.O_WRONLY || m == unix.O_RDWR {
		a |= WriteFile | Truncate
	}
	return a
}

func addFD(p *sys.Program, ruleset sys.Reg, f FDRule) {
	attr := make([]byte, 12)
	binary.NativeEndian.PutUint64(attr, uint64(f.Access))
	binary.NativeEndian.PutUint32(attr[8:], uint32(f.FD))
	p.Call(0, sys.Step{Op: "landlock_add_rule", Object: "standard stream"}, unix.SYS_LANDLOCK_ADD_RULE,
		ruleset.Value(), sys.Imm(unix.LANDLOCK_RULE_PATH_BENEATH), p.Bytes(attr), sys.Imm(0)).Allow(unix.EBADFD)
}

// AppendRestrict appends the call that enforces the ruleset on the process.
//
//	int landlock_restrict_self(int ruleset_fd, __u32 flags);
//
// Preconditions of the program: no_new_privs is set, or it has CAP_SYS_ADMIN.
func AppendRestrict(p *sys.Program, ruleset sys.Reg) {
	p.Call(0, sys.Step{Op: "landlock_restrict_self"}, unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset.Value(), sys.Imm(0))
}
