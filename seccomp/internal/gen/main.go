//go:build linux && cgo

// Command gen writes the built-in seccomp profiles in the OCI runtime
// specification's form, and the programs for them, from the table beside it.
//
// The profiles are generated so that their differences are in one place, with
// the reasons; the programs, so that what runs needs neither libseccomp nor
// time. Both are committed: run it by go generate after a change, and the
// compile package's test fails until that was done. It takes no arguments and
// writes below the directory it is started in.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/seccomp/compile"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	for i, name := range profiles {
		p, err := profile(i)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := write(filepath.Join(dir, "profiles", name+".json"), format(p)); err != nil {
			return err
		}
		for _, arch := range []string{"amd64", "arm64"} {
			b, err := compile.Compile(p, arch)
			if err != nil {
				return fmt.Errorf("%s for %s: %w", name, arch, err)
			}
			if err := write(filepath.Join(dir, "programs", name+"."+arch+".bpf"), b); err != nil {
				return err
			}
			fmt.Printf("%s for %s: %d instructions\n", name, arch, len(b)/8)
		}
	}
	return nil
}

func write(path string, b []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// profile puts one profile together: unknown calls get ENOSYS.
func profile(i int) (*specs.LinuxSeccomp, error) {
	enosys := uint(38)
	eperm := uint(epermErrno)
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: &enosys}
	names := map[byte][]string{}
	seen := map[string]bool{}
	for _, g := range table {
		for _, name := range strings.Fields(g.calls) {
			if seen[name] {
				return nil, fmt.Errorf("%s is in the table twice", name)
			}
			seen[name] = true
			names[g.verdicts[i]] = append(names[g.verdicts[i]], name)
		}
	}
	for _, v := range []struct {
		verdict byte
		action  specs.LinuxSeccompAction
		errno   *uint
	}{{'A', specs.ActAllow, nil}, {'D', specs.ActErrno, &eperm}, {'N', specs.ActErrno, &enosys}} {
		sort.Strings(names[v.verdict])
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: names[v.verdict], Action: v.action, ErrnoRet: v.errno})
		delete(names, v.verdict)
	}
	if len(names) != 0 {
		return nil, fmt.Errorf("unknown verdict in the table")
	}
	for _, r := range rules(profiles[i]) {
		if seen[r.Names[0]] {
			return nil, fmt.Errorf("%s is in the table and has rules", r.Names[0])
		}
		p.Syscalls = append(p.Syscalls, r)
	}
	return p, nil
}

// format prints a profile with one rule to a line, long lists of names folded.
// encoding/json alone gives each name a line of its own.
func format(p *specs.LinuxSeccomp) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"defaultAction\": %q,\n  \"defaultErrnoRet\": %d,\n  \"syscalls\": [", p.DefaultAction, *p.DefaultErrnoRet)
	for i, r := range p.Syscalls {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n    {\"names\": [")
		width := 0
		for j, n := range r.Names {
			if j > 0 {
				b.WriteByte(',')
			}
			if len(r.Names) > 1 && (width == 0 || width+len(n)+4 > 90) {
				b.WriteString("\n      ")
				width = 0
			} else if j > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprintf(&b, "%q", n)
			width += len(n) + 4
		}
		if len(r.Names) > 1 {
			b.WriteString("\n    ")
		}
		fmt.Fprintf(&b, "], \"action\": %q", r.Action)
		if r.ErrnoRet != nil {
			fmt.Fprintf(&b, ", \"errnoRet\": %d", *r.ErrnoRet)
		}
		if len(r.Args) > 0 {
			args, err := json.Marshal(r.Args)
			if err != nil {
				panic(err) // numbers and strings only
			}
			fmt.Fprintf(&b, ",\n      \"args\": %s", args)
		}
		b.WriteByte('}')
	}
	b.WriteString("\n  ]\n}\n")
	return b.Bytes()
}
