package seatbelt

import (
	"path"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// findCommand reports a command that is nowhere: sandbox-exec(1) says so with an
// exit code that could be the command's own.
func findCommand(p *policy.Policy, runs func(file string) bool) error {
	name := p.OCI.Process.Args[0]
	if strings.Contains(name, "/") {
		file := name
		if !path.IsAbs(file) {
			file = path.Join(p.OCI.Process.Cwd, file)
		}
		if runs(file) {
			return nil
		}
		return &driver.CommandError{Command: name, Err: syscall.ENOENT}
	}
	for _, e := range p.OCI.Process.Env {
		list, ok := strings.CutPrefix(e, "PATH=")
		for dir := range strings.SplitSeq(list, ":") {
			if ok && path.IsAbs(dir) && runs(path.Join(dir, name)) {
				return nil
			}
		}
	}
	return &driver.CommandError{Command: name, Err: syscall.ENOENT}
}

// A process as ps(1) lists it: pid, ppid, pgid, resident kilobytes.
type process struct {
	pid, parent, group int
	resident           uint64 // bytes
}

// parsePS reads what ps prints. Lines that are none are passed over.
func parsePS(out string) []process {
	var all []process
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 4 {
			continue
		}
		var n [4]int
		ok := true
		for i := range f {
			v, err := strconv.Atoi(f[i])
			n[i], ok = v, ok && err == nil && v >= 0
		}
		if ok {
			all = append(all, process{n[0], n[1], n[2], uint64(n[3]) << 10})
		}
	}
	return all
}

// tree are the processes of a run among all: those in the command's process
// group, those that descend from one of it, and those in known, which is what
// an earlier look found: a process whose parent ended has another now.
func tree(all []process, command int, known map[int]bool) []process {
	in := map[int]bool{command: true}
	for pid := range known {
		in[pid] = true
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !in[p.pid] && (p.group == command || in[p.parent]) {
				in[p.pid], grown = true, true
			}
		}
	}
	var out []process
	for _, p := range all {
		if in[p.pid] {
			out = append(out, p)
		}
	}
	return out
}

// ulimits is a script for bash(1) that sets limits and executes what follows,
// or "" if there are none to set. bash counts file sizes and core files in
// kilobytes, which rounds down. The numbers are all that varies in it.
func ulimits(limits []specs.POSIXRlimit) (script string, unknown []string) {
	var b strings.Builder
	for _, l := range limits {
		flag, unit := "", uint64(1)
		switch l.Type {
		case "RLIMIT_CORE":
			flag, unit = "c", 1024
		case "RLIMIT_FSIZE":
			flag, unit = "f", 1024
		case "RLIMIT_STACK":
			flag, unit = "s", 1024
		case "RLIMIT_NOFILE":
			flag = "n"
		case "RLIMIT_CPU":
			flag = "t"
		default:
			unknown = append(unknown, l.Type)
			continue
		}
		b.WriteString("ulimit -S -" + flag + " " + strconv.FormatUint(l.Soft/unit, 10) + " && ")
		b.WriteString("ulimit -H -" + flag + " " + strconv.FormatUint(l.Hard/unit, 10) + " && ")
	}
	if b.Len() == 0 {
		return "", unknown
	}
	return b.String() + `unset OLDPWD SHLVL; exec "$@"`, unknown
}
