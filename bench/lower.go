package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sbxrun/sbxrun/mounts"
	"github.com/sbxrun/sbxrun/policy"
)

// A sandbox is what every contender is asked to build: the policy's values and
// the very list of operations on the root that sbxrun itself lowers to system
// calls. Each contender gets it in its own words, and that is what makes the
// mounts equal.
type sandbox struct {
	hostname string
	uid, gid uint32
	cwd      string
	env      []string
	scratch  uint64 // bytes of private storage
	inodes   uint64
	ops      []mounts.Op
}

// newSandbox reads off a policy what the other contenders need of it. tree is
// the policy's file system. What is optional and not there is dropped here.
func newSandbox(p *policy.Policy, tree *mounts.Tree) (*sandbox, error) {
	ops, err := tree.Ops()
	if err != nil {
		return nil, err
	}
	s := &sandbox{
		hostname: p.OCI.Hostname,
		uid:      p.OCI.Process.User.UID, gid: p.OCI.Process.User.GID,
		cwd: p.OCI.Process.Cwd, env: p.OCI.Process.Env,
		scratch: tree.ScratchBytes, inodes: tree.ScratchInodes,
	}
	if s.scratch == 0 {
		s.scratch = 64 << 20 // as mounts.Tree documents
	}
	if s.inodes == 0 {
		s.inodes = 16384
	}
	for _, o := range ops {
		if o.Optional {
			if at, ok := hostPath(ops, o.Target); ok {
				if _, err := os.Lstat(at); err != nil {
					continue
				}
			}
		}
		s.ops = append(s.ops, o)
	}
	return s, nil
}

// hostPath is where the host has what the sandbox sees at target, if that is
// in a bind or in /proc.
func hostPath(ops []mounts.Op, target string) (string, bool) {
	for _, o := range slices.Backward(ops) {
		rest, ok := strings.CutPrefix(target, o.Target)
		if !ok || (rest != "" && rest[0] != '/') {
			continue
		}
		switch o.Kind {
		case mounts.Bind:
			return o.Source + rest, true
		case mounts.Proc:
			return "/proc" + rest, true
		case mounts.Scratch, mounts.Tmpfs:
			return "", false
		}
	}
	return "", false
}

func opMode(o *mounts.Op) uint32 {
	switch {
	case o.Mode != 0:
		return o.Mode
	case o.Kind == mounts.File:
		return 0o644
	}
	return 0o755
}

// What --dev of bubblewrap brings: see setup_newroot in bubblewrap.c.
var bwrapDev = []string{"null", "zero", "full", "random", "urandom", "tty", "stdin", "stdout", "stderr", "fd", "core", "pts", "ptmx"}

// What --proc of bubblewrap makes read-only, where it is not: see there.
var bwrapProc = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"}

// bwrap returns bubblewrap's arguments, up to "--", and the files that they
// name by descriptor, from 3 on. What bubblewrap has no words for is returned
// by name. Contents of files are written below dir.
//
// With oneTmpfs, private storage is part of the root, which then stays
// writable and has no limit: what bubblewrap takes without the file systems
// that sbxrun does not need either, at the price of a weaker sandbox.
func (s *sandbox) bwrap(filter, dir string, oneTmpfs bool) (args, files, missing []string, err error) {
	args = []string{
		"--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
		"--die-with-parent", "--new-session", "--cap-drop", "ALL",
		"--uid", fmt.Sprint(s.uid), "--gid", fmt.Sprint(s.gid), "--hostname", s.hostname,
	}
	descriptor := func(file string) string {
		files = append(files, file)
		return fmt.Sprint(len(files) + 2)
	}
	if filter != "" {
		args = append(args, "--seccomp", descriptor(filter))
	}
	dev := slices.ContainsFunc(s.ops, func(o mounts.Op) bool { return o.Kind == mounts.Devpts })
	made := false
	for i := range s.ops {
		o := &s.ops[i]
		if o.Target == "/dev" || strings.HasPrefix(o.Target, "/dev/") {
			if dev && !made {
				made = true
				args = append(args, "--dev", "/dev")
			}
			if o.Target == "/dev" || slices.Contains(bwrapDev, o.Target[len("/dev/"):]) {
				continue
			}
		}
		mode := fmt.Sprintf("%04o", opMode(o))
		ro := o.Attr&mounts.ReadOnly != 0
		switch o.Kind {
		case mounts.Dir:
			args = append(args, "--perms", mode, "--dir", o.Target)
		case mounts.Symlink:
			args = append(args, "--symlink", o.Source, o.Target)
		case mounts.File:
			file := filepath.Join(dir, fmt.Sprintf("data%d", i))
			if err := os.WriteFile(file, []byte(o.Data), 0o644); err != nil {
				return nil, nil, nil, err
			}
			args = append(args, "--perms", mode, "--file", descriptor(file), o.Target)
		case mounts.Bind:
			if ro {
				args = append(args, "--ro-bind", o.Source, o.Target)
			} else {
				args = append(args, "--bind", o.Source, o.Target)
			}
		case mounts.Device:
			args = append(args, "--dev-bind", o.Source, o.Target)
		case mounts.Scratch, mounts.Tmpfs:
			if oneTmpfs && o.Kind == mounts.Scratch {
				args = append(args, "--perms", mode, "--dir", o.Target)
				continue
			}
			// bubblewrap cannot bind a part of a tmpfs that it made, so each
			// scratch directory is a tmpfs here.
			size := o.Size
			if o.Kind == mounts.Scratch {
				size = s.scratch
			}
			args = append(args, "--perms", mode)
			if size != 0 {
				args = append(args, "--size", fmt.Sprint(size))
			}
			args = append(args, "--tmpfs", o.Target)
			if ro {
				args = append(args, "--remount-ro", o.Target)
			}
		case mounts.Proc:
			args = append(args, "--proc", o.Target)
			if ro {
				args = append(args, "--remount-ro", o.Target)
			}
		case mounts.Mqueue:
			args = append(args, "--mqueue", o.Target)
		case mounts.Mask:
			// An empty directory is cheaper to bind than a tmpfs to mount.
			src := os.DevNull
			if o.IsDir {
				src = filepath.Join(dir, "nothing")
				if err := os.MkdirAll(src, 0); err != nil {
					return nil, nil, nil, err
				}
			}
			args = append(args, "--ro-bind", src, o.Target)
		case mounts.Readonly:
			src, ok := hostPath(s.ops[:i], o.Target)
			switch {
			case slices.Contains(bwrapProc, o.Target):
			case ok && !strings.HasPrefix(src, "/proc/"):
				args = append(args, "--ro-bind", src, o.Target)
			default:
				missing = append(missing, "read-only "+o.Target)
			}
		default:
			missing = append(missing, o.Kind.String()+" "+o.Target)
		}
	}
	if !oneTmpfs {
		args = append(args, "--remount-ro", "/")
	}
	if s.cwd != "" {
		args = append(args, "--chdir", s.cwd)
	}
	return args, files, missing, nil
}

// floorPlan is the floor's plan file; see floor/floor.c.
func (s *sandbox) floorPlan() (string, error) {
	var b strings.Builder
	var bad error
	line := func(fields ...string) {
		for _, f := range fields {
			if strings.ContainsAny(f, "\t\n") {
				bad = fmt.Errorf("a path with a tab or newline: %q", f)
			}
		}
		b.WriteString(strings.Join(fields, "\t") + "\n")
	}
	flags := func(a mounts.Attr) string {
		f := "nosuid"
		if a != 0 {
			f += "," + a.String()
		}
		return f
	}
	line("root", fmt.Sprint(s.scratch), fmt.Sprint(s.inodes))
	masks := map[bool]string{true: "/.mask.d", false: "/.mask.f"}
	for dir, at := range masks {
		if slices.ContainsFunc(s.ops, func(o mounts.Op) bool { return o.Kind == mounts.Mask && o.IsDir == dir }) {
			if dir {
				line("dir", "0", at)
			} else {
				line("file", "0", at, "")
			}
		}
	}
	for i := range s.ops {
		o := &s.ops[i]
		mode := fmt.Sprintf("%o", opMode(o))
		point := func() {
			switch {
			case o.InBind:
			case o.Kind == mounts.Device, o.Kind == mounts.Bind && !o.IsDir:
				line("file", "444", o.Target, "")
			default:
				line("dir", mode, o.Target)
			}
		}
		switch o.Kind {
		case mounts.Dir:
			line("dir", mode, o.Target)
		case mounts.Symlink:
			line("symlink", o.Source, o.Target)
		case mounts.File:
			line("file", mode, o.Target, escape(o.Data))
		case mounts.Bind:
			point()
			line("bind", o.Source, o.Target, flags(o.Attr|mounts.NoDev))
		case mounts.Device:
			point()
			line("bind", o.Source, o.Target, flags(o.Attr))
		case mounts.Scratch:
			point()
			line("bind", "."+o.Target, o.Target, flags(o.Attr|mounts.NoDev))
		case mounts.Tmpfs:
			point()
			line("mount", "tmpfs", o.Target, flags(o.Attr|mounts.NoDev), fmt.Sprintf("mode=%o,size=%d", opMode(o), o.Size))
		case mounts.Proc, mounts.Mqueue:
			point()
			line("mount", o.Kind.String(), o.Target, flags(o.Attr|mounts.NoDev), "-")
		case mounts.Devpts:
			point()
			line("mount", "devpts", o.Target, flags(o.Attr), "ptmxmode=0666,mode=0620")
		case mounts.Mask:
			line("bind", "."+masks[o.IsDir], o.Target, "ro,nosuid,nodev,noexec")
		case mounts.Readonly:
			line("bind", "."+o.Target, o.Target, flags(o.Attr|mounts.ReadOnly))
		default:
			return "", fmt.Errorf("the floor has no %s", o.Kind)
		}
	}
	return b.String(), bad
}

// escape writes a file's content on one line, as the floor reads it.
func escape(data string) string {
	return strings.NewReplacer("\\", `\\`, "\n", `\n`, "\t", `\t`).Replace(data)
}

// ociBundle writes an OCI runtime's bundle into dir: config.json and the root.
// Such a runtime starts from a directory and not from nothing, so links, files
// and mount points are made there beforehand.
func (s *sandbox) ociBundle(dir string, argv []string) (*specs.Spec, error) {
	root := filepath.Join(dir, "rootfs")
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs", Readonly: true},
		Process: &specs.Process{
			Args: argv, Env: s.env, Cwd: "/",
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
		},
		Hostname: s.hostname,
		Linux: &specs.Linux{
			// runc refuses a map that does not have 0.
			UIDMappings: []specs.LinuxIDMapping{{HostID: uint32(os.Geteuid()), Size: 1}},
			GIDMappings: []specs.LinuxIDMapping{{HostID: uint32(os.Getegid()), Size: 1}},
		},
	}
	for _, n := range []specs.LinuxNamespaceType{
		specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace, specs.NetworkNamespace,
		specs.IPCNamespace, specs.UTSNamespace, specs.CgroupNamespace,
	} {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: n})
	}
	if s.cwd != "" {
		spec.Process.Cwd = s.cwd
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	// Devices and their links are the runtime's own doing.
	spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=64k"}})
	for i := range s.ops {
		o := &s.ops[i]
		at := filepath.Join(root, o.Target)
		inDev := o.Target == "/dev" || strings.HasPrefix(o.Target, "/dev/")
		var err error
		switch {
		case o.InBind || inDev && (o.Kind == mounts.Symlink || o.Kind == mounts.Device):
		case o.Kind == mounts.Symlink:
			err = os.Symlink(o.Source, at)
		case o.Kind == mounts.File:
			err = os.WriteFile(at, []byte(o.Data), fs.FileMode(opMode(o)))
		case o.Kind == mounts.Bind && !o.IsDir:
			err = os.WriteFile(at, nil, 0o444)
		default:
			err = os.MkdirAll(at, 0o755)
		}
		if err != nil {
			return nil, err
		}
		m := specs.Mount{Destination: o.Target, Type: o.Kind.String(), Source: o.Kind.String(), Options: []string{"nosuid"}}
		if o.Attr&mounts.ReadOnly != 0 {
			m.Options = append(m.Options, "ro")
		}
		if o.Attr&mounts.NoExec != 0 {
			m.Options = append(m.Options, "noexec")
		}
		if o.Kind != mounts.Devpts {
			m.Options = append(m.Options, "nodev")
		}
		switch o.Kind {
		case mounts.Bind:
			m.Source, m.Options = o.Source, append(m.Options, "rbind")
		case mounts.Scratch, mounts.Tmpfs:
			size := o.Size
			if o.Kind == mounts.Scratch {
				size = s.scratch
			}
			m.Type, m.Source = "tmpfs", "tmpfs"
			m.Options = append(m.Options, fmt.Sprintf("mode=%o", opMode(o)), fmt.Sprintf("size=%d", size))
			if o.Target == "/dev" {
				continue
			}
		case mounts.Devpts:
			m.Options = append(m.Options, "newinstance", "ptmxmode=0666", "mode=0620")
		case mounts.Proc, mounts.Mqueue:
		case mounts.Mask:
			if o.Target == "/proc/1" {
				continue // where runc's own init is at work
			}
			spec.Linux.MaskedPaths = append(spec.Linux.MaskedPaths, o.Target)
			continue
		case mounts.Readonly:
			spec.Linux.ReadonlyPaths = append(spec.Linux.ReadonlyPaths, o.Target)
			continue
		default:
			continue
		}
		spec.Mounts = append(spec.Mounts, m)
	}
	return spec, nil
}
