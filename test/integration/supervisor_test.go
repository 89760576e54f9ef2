//go:build linux

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func supervisorTests() []entry {
	return []entry{
		{id: "V05", title: "descriptors of the caller's", test: v05},
		{
			id: "V06", title: "attach to process 1 (CVE-2026-41163)",
			deny: "EPERM|EACCES|ENOSYS",
			// pidfd_getfd of a process that may not be opened in the first place.
			want: map[string]string{
				"pidfd_getfd of 1": "EPERM|EACCES|ENOSYS|EBADF", "pidfd_getfd of parent": "EPERM|EACCES|ENOSYS|EBADF",
				"write mem of 1": "EACCES|EPERM|EROFS", "write mem of parent": "EACCES|EPERM|EROFS",
			},
			controls: []control{jailed(jail{
				except: map[string]string{"kcmp of 1": "by the kernel's configuration", "kcmp of parent": "by the kernel's configuration"},
				want:   map[string]string{"process_vm_readv of 1": "ok|EFAULT", "process_vm_readv of parent": "ok|EFAULT"}, // EFAULT: allowed, and nothing is at that address
			})},
		},
		{id: "V10", title: "the policy file is edited during a run", test: v10},
	}
}

// v05 is V05: a caller that left its descriptors open, files that may be
// written and sockets among them.
func v05(f *fixture) {
	files := func() []*os.File {
		victim, err := os.OpenFile(filepath.Join(f.outside, "victim"), os.O_RDWR, 0)
		if err != nil {
			f.Fatal(err)
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			f.Fatal(err)
		}
		a, b := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
		f.Cleanup(func() { victim.Close(); a.Close(); b.Close() })
		list := []*os.File{victim, a}
		for len(list) < 998 {
			list = append(list, victim)
		}
		return list
	}()
	e := entry{id: "V05", deny: "EBADF", want: map[string]string{"descriptors beyond 2": "none"}}
	// The result's descriptor is sbxrun's, and a socket here.
	for _, flags := range [][]string{nil, {"--json"}, {"--result-fd", "4"}} {
		o := f.do(call{args: f.strict(flags, f.attack, "V05"), extra: files})
		if len(flags) == 1 {
			o.stdout = f.result(o).Stdout
		}
		e.judge(f, f.report(o), e.inside)
	}
	f.wantUnchanged()
	f.step("control without the sandbox", func() {
		r := f.report(f.do(call{args: f.who.command(f.attack, "V05"), extra: files}))
		e.judge(f, r, func(act string) string {
			if act == "descriptors beyond 2" {
				return ">=998" // and what the runtime of Go opens
			}
			return "ok"
		})
		if len(f.changed()) == 0 {
			f.Error("the canary does not see a change")
		}
	})
}

// v10 is V10: a run keeps the policy that it began with.
func v10(f *fixture) {
	policy := f.write("state/policy.yaml", "extends: strict\n", 0o644)
	up, on := filepath.Join(f.ws, "up"), filepath.Join(f.ws, "go")
	f.own()
	// The edit shows what is outside, and takes the filter and the network away.
	edited := "extends: strict\nfiles:\n  read:\n    - " + f.outside + "\n"
	args := func() []string {
		return append(append(append(f.who.command(sbxrun, "--profile", policy, "-C", f.ws), f.who.flags()...), "--"),
			f.attack, "V10", "wait="+on, "ready="+up, "ws="+f.ws, "secret.canary="+filepath.Join(f.outside, "canary"))
	}
	e := entry{id: "V10", deny: unreadable}
	o := f.do(call{args: args(), started: func(*exec.Cmd) {
		if !within(10*time.Second, func() bool { return exists(up) }) {
			f.Error("the command did not start")
		}
		f.write("state/policy.yaml", edited, 0o644)
		f.write("ws/go", "", 0o644)
	}})
	e.judge(f, f.report(o), e.inside)
	if f.Failed() {
		f.Logf("%v", o)
	}
	f.step("control: the next run has the edited policy", func() {
		r := f.report(f.do(call{args: args()}))
		if got := r.got("read canary"); got != "ok" {
			f.Errorf("the edit means nothing: %+v", r)
		}
	})
	f.wantUnchanged()
}
