//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// effects does what K09 only asks for: each call has arguments with which it
// takes effect where it is allowed. It is for machines that are thrown away. dir
// has what the calls need; undo takes everything back.
func effects(r *report) {
	dir, undo := r.arg("dir"), r.arg("undo") == "yes"
	file := func(name string) string { return filepath.Join(dir, name) }
	none := ^uintptr(0)
	open := func(name string) uintptr {
		fd, err := unix.Open(file(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			r.err("open "+name, err)
		}
		return at(fd)
	}
	clock := func(d time.Duration) uintptr {
		t := unix.NsecToTimespec(time.Now().Add(d).UnixNano())
		return heap(t)
	}
	name := func(s string) (uintptr, uintptr) { return ptr([]byte(s)), uintptr(len(s)) }
	if undo {
		r.call("delete_module", unix.SYS_DELETE_MODULE, bytePtr(r.arg("module")), unix.O_NONBLOCK)
		r.call("swapoff", unix.SYS_SWAPOFF, bytePtr(file("swap")))
		r.call("acct", unix.SYS_ACCT, 0)
		r.call("kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, none, none, 0, 0, 1 /* KEXEC_FILE_UNLOAD */)
		r.call("reboot", unix.SYS_REBOOT, 0xfee1dead, 672274793, unix.LINUX_REBOOT_CMD_CAD_ON, 0)
		r.call("clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, clock(-24*time.Hour))
		s, n := name("vm")
		r.call("sethostname", unix.SYS_SETHOSTNAME, s, n)
		s, n = name("(none)")
		r.call("setdomainname", unix.SYS_SETDOMAINNAME, s, n)
		r.err("swappiness", os.WriteFile("/proc/sys/vm/swappiness", []byte("60"), 0))
		return
	}
	r.call("finit_module", unix.SYS_FINIT_MODULE, open("module.ko"), bytePtr(""), 0)
	r.call("swapon", unix.SYS_SWAPON, bytePtr(file("swap")), 0)
	r.call("acct", unix.SYS_ACCT, bytePtr(file("acct")))
	r.call("kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, open("vmlinuz"), none, 1, bytePtr(""), 4 /* KEXEC_FILE_NO_INITRAMFS */)
	r.call("reboot", unix.SYS_REBOOT, 0xfee1dead, 672274793, unix.LINUX_REBOOT_CMD_CAD_OFF, 0)
	r.call("clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, clock(24*time.Hour))
	s, n := name("taken")
	r.call("sethostname", unix.SYS_SETHOSTNAME, s, n)
	r.call("setdomainname", unix.SYS_SETDOMAINNAME, s, n)
	r.err("swappiness", os.WriteFile("/proc/sys/vm/swappiness", []byte("61"), 0))
	log := make([]byte, 1<<16)
	got := r.call("syslog", unix.SYS_SYSLOG, 3 /* READ_ALL */, ptr(log), uintptr(len(log)))
	r.got("bytes of the kernel's log", strconv.Itoa(max(0, int(got))))
}

// restart ends the machine.
func restart(r *report) {
	r.call("reboot", unix.SYS_REBOOT, 0xfee1dead, 672274793, unix.LINUX_REBOOT_CMD_RESTART, 0)
}

// piped is a core handler: it notes how much it was given of whom.
func piped(r *report) {
	n, err := io.Copy(io.Discard, os.Stdin)
	r.err("note", os.WriteFile(r.arg("to"), []byte(strings.Join([]string{fmt.Sprint(n), errnoName(err)}, " ")), 0o644))
}
