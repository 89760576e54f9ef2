//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// v05 looks for descriptors that it was not given on purpose.
func v05(r *report) {
	// By number, first: opening /proc would add one.
	var found []string
	for fd := 3; fd < r.number("upto", 1100); fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			found = append(found, fmt.Sprint(fd))
		}
	}
	v := "none"
	if len(found) > 0 {
		v = fmt.Sprintf("%d", len(found))
		if len(found) < 10 {
			v = strings.Join(found, ",")
		}
	}
	r.got("descriptors beyond 2", v)
	_, err := unix.Write(3, []byte("stolen"))
	r.err("write to 3", err)
	_, err = unix.Write(4, []byte("stolen"))
	r.err("write to 4", err)
	_, err = unix.FcntlInt(1, unix.F_GETFD, 0)
	r.err("neighbour: stdout", err)
}

// v06 attaches to process 1 and to its own parent, by every way there is.
func v06(r *report) {
	buf := make([]byte, 8)
	local := []unix.Iovec{{Base: &buf[0], Len: 8}}
	remote := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&buf[0])), Len: 8}}
	for _, t := range []struct {
		name string
		pid  int
	}{{"1", 1}, {"parent", os.Getppid()}} {
		r.forked("PTRACE_SEIZE of "+t.name, unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(t.pid), 0, 0)
		_, err := unix.ProcessVMReadv(t.pid, local, remote, 0)
		r.err("process_vm_readv of "+t.name, err)
		r.call("pidfd_getfd of "+t.name, unix.SYS_PIDFD_GETFD, pidfd(t.pid), 0, 0)
		r.call("kcmp of "+t.name, unix.SYS_KCMP, uintptr(t.pid), uintptr(os.Getpid()), 0, 0, 0)
		for _, f := range []string{"mem", "environ", "maps", "auxv"} {
			r.err("open "+f+" of "+t.name, openFor(fmt.Sprintf("/proc/%d/%s", t.pid, f), unix.O_RDONLY))
		}
		r.err("open a descriptor of "+t.name, openAny(fmt.Sprintf("/proc/%d/fd", t.pid)))
		r.err("write mem of "+t.name, openFor(fmt.Sprintf("/proc/%d/mem", t.pid), unix.O_RDWR))
		for _, l := range []string{"exe", "root", "cwd", "fd/0"} {
			_, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", t.pid, l))
			r.err("readlink "+l+" of "+t.name, err)
		}
	}
	r.err("neighbour: its own memory", openFor("/proc/self/mem", unix.O_RDONLY))
	r.err("open cmdline of 1", openFor("/proc/1/cmdline", unix.O_RDONLY))
	r.err("open status of 1", openFor("/proc/1/status", unix.O_RDONLY))
	r.err("neighbour: its own status", openFor("/proc/self/status", unix.O_RDONLY))
}
