//go:build linux

// Attack tries what a command in a sandbox must not be able to do, and the
// permitted neighbour of each such act, and reports what came of it:
//
//	attack ID [key=value]…
//
// prints one line of JSON, {"id": "F01", "acts": [{"act": "create in /etc",
// "got": "EROFS"}, …]}. What an act got is "ok", the name of an errno,
// "killed:SIGSYS" if the kernel ended it, or a value that the act reads.
//
// It holds no opinion: what each act should have got, in a sandbox and without
// one, is in the tests that run it. The identifiers are those of the tests. It
// is one static program without needs of its own, so that it runs in any
// sandbox, and it makes its system calls itself, so that no library's caution
// stands between an attack and the kernel.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An act is one thing tried.
type act struct {
	Act string `json:"act"`
	Got string `json:"got"`
}

// A report is what an attack found.
type report struct {
	ID   string `json:"id"`
	Acts []act  `json:"acts"`

	args map[string]string
	exit int
}

// arg is the value that key=value gave on the command line.
func (r *report) arg(key string) string { return r.args[key] }

// number is the value of key, or def.
func (r *report) number(key string, def int) int {
	if v, ok := r.args[key]; ok {
		fmt.Sscan(v, &def)
	}
	return def
}

// got records what an act got.
func (r *report) got(name, value string) {
	r.Acts = append(r.Acts, act{name, value})
}

// err records an act that ends in an error or in none.
func (r *report) err(name string, err error) { r.got(name, errnoName(err)) }

// call makes one system call and records its errno.
func (r *report) call(name string, nr uintptr, args ...uintptr) uintptr {
	var a [6]uintptr
	copy(a[:], args)
	v, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno == 0 {
		r.got(name, "ok")
	} else {
		r.err(name, errno)
	}
	return v
}

// forked makes one system call in a forked process and records its errno, or
// the signal that the call brought.
func (r *report) forked(name string, nr uintptr, args ...uintptr) {
	r.got(name, fork(raw6(nr, args...)))
}

// A rawCall is a system call for a process that has no runtime.
type rawCall struct {
	nr   uintptr
	a    [6]uintptr
	i386 bool // by int 0x80
}

func raw6(nr uintptr, args ...uintptr) rawCall {
	c := rawCall{nr: nr}
	copy(c.a[:], args)
	return c
}

// fork makes system calls, one after the other until one fails, in a forked
// process, and says what came of it.
func fork(calls ...rawCall) string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, errno := forkCalls(calls)
	if errno != 0 {
		return "fork: " + errnoName(errno)
	}
	return ending(int(pid))
}

// defaultAction is a struct sigaction with SIG_DFL.
var defaultAction [32]byte

// forkCalls forks. The child has one thread and no scheduler: were its stack to
// be checked for room, and the check to find that the parent's scheduler had
// wanted the thread, it would wait for ever. Hence nosplit, as in the syscall
// package's own fork; what it calls is assembly.
//
//go:nosplit
//go:noinline
func forkCalls(calls []rawCall) (uintptr, syscall.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	// A processor that has no int 0x80 says so by a fault, at which the runtime would
	// look for its threads.
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSEGV), uintptr(unsafe.Pointer(&defaultAction)), 0, 8, 0, 0)
	failed := uintptr(0)
	for i := 0; i < len(calls) && failed == 0; i++ {
		c := &calls[i]
		if c.i386 {
			if v := int80(uint32(c.nr), uint32(c.a[0]), uint32(c.a[1]), uint32(c.a[2]), uint32(c.a[3]), uint32(c.a[4])); v < 0 {
				failed = uintptr(-v)
			}
			continue
		}
		_, _, e := unix.RawSyscall6(c.nr, c.a[0], c.a[1], c.a[2], c.a[3], c.a[4], c.a[5])
		failed = uintptr(e)
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, failed, 0, 0)
	}
}

// ending waits for a process whose exit code is an errno.
func ending(pid int) string {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "wait: " + errnoName(err)
		}
		break
	}
	if ws.Signaled() {
		return "killed:" + unix.SignalName(ws.Signal())
	}
	return errnoName(unix.Errno(ws.ExitStatus()))
}

// errnoName is "ok" for no error, and else the errno's name.
func errnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil || err == unix.Errno(0):
		return "ok"
	case errors.As(err, &errno):
		if errno == unix.EOPNOTSUPP {
			return "EOPNOTSUPP" // on Linux ENOTSUP is the same number
		}
		if n := unix.ErrnoName(errno); n != "" {
			return n
		}
		return fmt.Sprintf("errno %d", int(errno))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	}
	return err.Error()
}

// self starts this program again with other arguments.
func self(args ...string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{"attack"}, args...), Stderr: os.Stderr}
}

// bytePtr is a NUL-terminated string for a raw call.
func bytePtr(s string) uintptr {
	b, err := unix.BytePtrFromString(s)
	if err != nil {
		panic(err)
	}
	keep = append(keep, b)
	return uintptr(unsafe.Pointer(b))
}

// ptr is the address of a buffer that lives until the program ends.
func ptr(b []byte) uintptr {
	keep = append(keep, &b[0])
	return uintptr(unsafe.Pointer(&b[0]))
}

// keep holds what raw calls point to. Heap memory of Go does not move.
var keep []*byte

// heap copies a value to where raw calls may point.
func heap[T any](v T) uintptr {
	p := &v
	keepAny = append(keepAny, p)
	return uintptr(unsafe.Pointer(p))
}

var keepAny []any

// at is a directory descriptor as an argument of a raw call.
func at(fd int) uintptr { return uintptr(fd) }

// attacks are the attacks by identifier, and the parts that they run as
// processes of their own, in lower case.
var attacks = map[string]func(*report){
	"F01": f01, "F02": f02, "F03": f03, "F11": f11, "F13": f13, "F15": f15, "F16": f16, "F18": f18, "F19": f19, "F21": f21,
	"P01": p01, "P02": p02, "P03": p03, "P05": p05, "P06": p06, "P07": p07, "P08": p08, "P09": p09, "P10": p10, "P12": p12,
	"P14": p14, "P16": p16, "P18": p18, "P20": p20,
	"K01": k01, "K02": k02, "K03": k03, "K05": k05, "K06": k06, "K07": k07, "K08": k08, "K09": k09, "K11": k11, "K12": k12,
	"K13": k13, "K14": k14, "K15": k15,
	"N01": connects, "N06": connects, "N02": connects, "N03": connects, "N08": n08, "N10": n10,
	"R01": r01, "R02": r02, "R03": r03, "R04": r04, "R05": r05, "R07": r07, "R10": r10, "R11": r11, "R14": r14, "pin": pin,
	"T04": t04, "V05": v05, "V06": v06, "V10": f02,
	"ids": ids, "sleep": sleep, "daemon": daemon, "crash": crash, "bomb": bomb, "exit": exit, "raw": raw, "watch": watch,
	"touch": touch, "look": look, "stopped": stopped, "effects": effects, "restart": restart, "piped": piped,
	"F06": protected, "F08": protected, "F10": f10, "F31": points, "F32": parents, "F34": passed, "F33": peers, "races": races, "completes": completes, "exchanged": exchanged,
}

func main() {
	// Forked processes have no collector to stop the world with.
	debug.SetGCPercent(-1)
	if len(os.Args) < 2 || attacks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "attack: no such attack")
		os.Exit(98)
	}
	r := &report{ID: os.Args[1], Acts: []act{}, args: map[string]string{}}
	for _, a := range os.Args[2:] {
		k, v, _ := strings.Cut(a, "=")
		r.args[k] = v
	}
	attacks[r.ID](r)
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
	os.Exit(r.exit)
}

// exit ends as its argument says: with a code, by a signal, or not at all.
func exit(r *report) {
	if sig := r.number("signal", 0); sig != 0 {
		// The runtime of Go catches some signals and ends otherwise.
		var act [32]byte
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), ptr(act[:]), 0, 8, 0, 0)
		unix.Kill(os.Getpid(), syscall.Signal(sig))
		time.Sleep(time.Minute)
	}
	os.Exit(r.number("code", 0))
}

// touch writes a file: the canary that shows that a command ran.
func touch(r *report) {
	r.err("touch", os.WriteFile(r.arg("path"), []byte("ran\n"), 0o644))
}

// ids reports who the process is.
func ids(r *report) {
	r.got("uid", fmt.Sprint(os.Getuid()))
	r.got("euid", fmt.Sprint(os.Geteuid()))
	r.got("egid", fmt.Sprint(os.Getegid()))
	r.got("CapEff", statusOf("self", "CapEff"))
	r.got("NoNewPrivs", statusOf("self", "NoNewPrivs"))
	if file := r.arg("read"); file != "" {
		_, err := os.ReadFile(file)
		r.err("read", err)
	}
	r.exit = r.number("code", 0)
}

// statusOf is a field of /proc/PID/status.
func statusOf(pid, field string) string {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return errnoName(err)
	}
	for line := range strings.Lines(string(b)) {
		if k, v, _ := strings.Cut(line, ":"); k == field {
			return strings.TrimSpace(v)
		}
	}
	return "absent"
}

// askSelf runs another attack as a child and returns what its acts got.
func askSelf(cmd *exec.Cmd) (map[string]string, error) {
	out, err := cmd.Output()
	var sub report
	if jsonErr := json.Unmarshal(out, &sub); jsonErr != nil {
		if err != nil {
			return nil, err
		}
		return nil, jsonErr
	}
	m := map[string]string{}
	for _, a := range sub.Acts {
		m[a.Act] = a.Got
	}
	return m, nil
}
