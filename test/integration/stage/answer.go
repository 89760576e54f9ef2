//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// x32 marks a call of the x32 ABI; see syscall(2).
const x32 = 0x40000000

// errnos are the answers that tests ask for.
var errnos = map[string]unix.Errno{
	"EPERM": unix.EPERM, "ENOSYS": unix.ENOSYS, "EINVAL": unix.EINVAL, "ENOSPC": unix.ENOSPC,
	"EOPNOTSUPP": unix.EOPNOTSUPP, "ENOANO": unix.ENOANO,
}

// answer installs a system call filter that gives fixed answers, "EPERM=165,166"
// or, by first argument, "EINVAL=157:22" (equal) and "EPERM=56&268435456" (any
// of these bits). It serves twice: as a host that lacks a layer, and as a
// witness that an attack makes the call that it names, with an errno (ENOANO)
// that no kernel gives it, so that a call can be witnessed which no test may
// ever let through. The name "x32" stands for every call of that ABI.
func answer(specs []string) error {
	if len(specs) == 0 {
		return nil
	}
	const (
		offNr   = 0  // struct seccomp_data.nr
		offArg0 = 16 // .args[0], low half (little endian)
	)
	ld := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	jmp := func(op uint16, k uint32, t, f uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: t, Jf: f}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

	var prog []unix.SockFilter
	for _, spec := range specs {
		name, calls, _ := strings.Cut(spec, "=")
		errno, ok := errnos[name]
		if !ok {
			return fmt.Errorf("answer: no errno %q", name)
		}
		deny := ret(unix.SECCOMP_RET_ERRNO | uint32(errno))
		for call := range strings.SplitSeq(calls, ",") {
			if call == "x32" {
				prog = append(prog, ld(offNr), jmp(unix.BPF_JSET, x32, 0, 1), deny)
				continue
			}
			op := uint16(0)
			nr, arg, has := strings.Cut(call, ":")
			if has {
				op = unix.BPF_JEQ
			} else if nr, arg, has = strings.Cut(call, "&"); has {
				op = unix.BPF_JSET
			}
			n, err := strconv.ParseUint(nr, 10, 32)
			if err != nil {
				return fmt.Errorf("answer: %w", err)
			}
			if !has {
				prog = append(prog, ld(offNr), jmp(unix.BPF_JEQ, uint32(n), 0, 1), deny)
				continue
			}
			a, err := strconv.ParseUint(arg, 10, 32)
			if err != nil {
				return fmt.Errorf("answer: %w", err)
			}
			prog = append(prog, ld(offNr), jmp(unix.BPF_JEQ, uint32(n), 0, 3), ld(offArg0), jmp(op, uint32(a), 0, 1), deny)
		}
	}
	prog = append(prog, ret(unix.SECCOMP_RET_ALLOW))
	// An ordinary user may install a filter only so; see seccomp(2).
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
