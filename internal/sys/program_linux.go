package sys

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// A Value is an argument of a system call: an immediate number or the result of
// an earlier call.
type Value struct {
	n   uintptr
	reg bool
}

// Imm is the number n, sign-extended as C would (AT_FDCWD is -100).
func Imm[T ~int | ~int32 | ~int64 | ~uint32 | ~uint64 | ~uintptr | ~uint8 | ~uint16](n T) Value {
	return Value{n: uintptr(n)}
}

// A Reg holds the result of a system call for later ones. The zero Reg is
// none: a result stored there is dropped.
type Reg uint8

// Value is the register's content at the time of the call that it is given to.
func (r Reg) Value() Value { return Value{n: uintptr(r), reg: true} }

const numRegs = 64

// RegControl is a register that NewReg never returns: whoever starts a process
// leaves the descriptor there that its programs report on.
const RegControl Reg = numRegs - 1

// Regs are a process's registers. Registers survive from one program to the
// next that is run with the same Regs, also across Vfork.
type Regs [numRegs]uintptr

// numbers of pseudo calls: no system call has them.
const (
	callFail  = ^uintptr(0) - iota // fails with the errno in the first argument
	callStore                      // *(int32*)arg0 = arg1
)

// A call is one system call. Its size matters: a strict run makes about 250.
type call struct {
	nr     uintptr
	args   [6]uintptr
	regs   uint8  // bit i: args[i] is the number of a register
	out    Reg    // where the result goes
	allow  uint16 // an errno that counts as success, or anyErrno
	skip   uint16 // how many calls to pass over after that errno
	op     string
	object string // what the call is about, for StepError
}

// A part is a stretch of a program, for messages: from its first call to the next
// part's.
type part struct {
	from   int
	layer  uint32
	origin string
}

// A Program is a list of system calls. The zero value is an empty program.
//
// Building is not safe for concurrent use; running does not change the program.
type Program struct {
	calls []call
	parts []part
	keep  []any // what the calls point to: uintptr does not keep memory alive
	next  Reg
	arena []byte
}

// Grow makes room for n calls and for bytes of strings, to save copies.
func (p *Program) Grow(n, bytes int) {
	p.calls = make([]call, 0, n)
	p.arena = make([]byte, 0, bytes)
	p.keep = make([]any, 0, n/4)
}

// Len is the number of calls.
func (p *Program) Len() int { return len(p.calls) }

// NewReg returns a register that no earlier call of this program uses.
func (p *Program) NewReg() Reg {
	p.next++
	if p.next >= RegControl {
		panic("sys: program needs more registers than there are")
	}
	return p.next
}

// ReserveRegs makes NewReg start after the registers that other uses, so that
// both can run on the same Regs.
func (p *Program) ReserveRegs(other *Program) {
	if other.next > p.next {
		p.next = other.next
	}
}

// Step describes a call for error messages.
type Step struct {
	Op     string // the system call
	Object string // the path or the like that it is about; may be empty
}

// Layer says which layer of isolation the calls from here on make, in numbers of
// whoever composes the program; 0 is none. They have no origin until Origin is called.
func (p *Program) Layer(l uint32) { p.begin(part{layer: l}) }

// Origin says what asked for the calls from here on ("flag --ro"); "" for nothing.
func (p *Program) Origin(origin string) {
	var last part
	if n := len(p.parts); n > 0 {
		last = p.parts[n-1]
	}
	if origin != last.origin {
		p.begin(part{layer: last.layer, origin: origin})
	}
}

func (p *Program) begin(next part) {
	next.from = len(p.calls)
	p.parts = append(p.parts, next)
}

// Step returns the description of call i.
func (p *Program) Step(i int) Step {
	if i < 0 || i >= len(p.calls) {
		return Step{Op: "step " + strconv.Itoa(i)}
	}
	return Step{Op: p.calls[i].op, Object: p.calls[i].object}
}

// Part returns what Layer and Origin said of call i.
func (p *Program) Part(i int) (layer uint32, origin string) {
	for _, part := range p.parts {
		if part.from <= i {
			layer, origin = part.layer, part.origin
		}
	}
	return layer, origin
}

// Call appends a system call; its result goes to out. The arguments' memory
// must be kept alive by Keep, Str or Bytes.
func (p *Program) Call(out Reg, step Step, nr uintptr, args ...Value) *CallRef {
	c := call{nr: nr, out: out, op: step.Op, object: step.Object}
	for i, a := range args {
		c.args[i] = a.n
		if a.reg {
			c.regs |= 1 << i
		}
	}
	p.calls = append(p.calls, c)
	return &CallRef{p, len(p.calls) - 1}
}

// A CallRef is a call that was just appended.
type CallRef struct {
	p *Program
	i int
}

// Allow makes an error that the call may meet count as success; its result is
// then 0.
func (c *CallRef) Allow(e syscall.Errno) { c.p.calls[c.i].allow = uint16(e) }

// AllowSkip makes an error that the call may meet count as success and skips
// the n calls after it, which make no sense then.
func (c *CallRef) AllowSkip(e syscall.Errno, n int) {
	c.p.calls[c.i].allow = uint16(e)
	c.p.calls[c.i].skip = uint16(n)
}

// anyErrno stands for each: errnos are below 4096.
const anyErrno = ^uint16(0)

// AllowAny is AllowSkip for every error: the n calls after it are passed over.
func (c *CallRef) AllowAny(n int) {
	c.p.calls[c.i].allow = anyErrno
	c.p.calls[c.i].skip = uint16(n)
}

// AllowAnyFrom makes the calls that were appended since there were n one attempt:
// an error of one of them counts as success, and skips those after it.
func (p *Program) AllowAnyFrom(n int) {
	for i := n; i < len(p.calls); i++ {
		(&CallRef{p, i}).AllowAny(len(p.calls) - 1 - i)
	}
}

// Str is a pointer to s with a NUL after it, alive as long as the program.
//
// Preconditions: s holds no NUL.
func (p *Program) Str(s string) Value {
	if len(s)+1 > cap(p.arena)-len(p.arena) {
		// The old arena stays where it is: earlier calls point into it.
		p.keep = append(p.keep, p.arena)
		p.arena = make([]byte, 0, max(4096, len(s)+1))
	}
	n := len(p.arena)
	p.arena = append(append(p.arena, s...), 0)
	return Value{n: address(unsafe.Pointer(&p.arena[n]))}
}

// Addr is what Str is, as a number.
func (p *Program) Addr(s string) uintptr { return p.Str(s).n }

// Vector is a pointer to an array of C strings ended by NULL, as execve(2)
// takes them.
func (p *Program) Vector(list []string) uintptr {
	v := make([]uintptr, len(list)+1)
	for i, s := range list {
		v[i] = p.Addr(s)
	}
	p.keep = append(p.keep, v)
	return address(unsafe.Pointer(&v[0]))
}

// Bytes is a pointer to b, alive as long as the program. An empty b is NULL.
func (p *Program) Bytes(b []byte) Value {
	if len(b) == 0 {
		return Value{}
	}
	p.keep = append(p.keep, b)
	return Value{n: address(unsafe.Pointer(&b[0]))}
}

// Data is a pointer to the bytes of s, without a NUL and without a copy.
func (p *Program) Data(s string) Value {
	p.keep = append(p.keep, s)
	return Value{n: address(unsafe.Pointer(unsafe.StringData(s)))}
}

// Ptr is a pointer to *v, alive as long as the program.
func Ptr[T any](p *Program, v *T) Value {
	p.keep = append(p.keep, v)
	return Value{n: address(unsafe.Pointer(v))}
}

// fprog is struct sock_fprog of seccomp(2).
type fprog struct {
	len    uint16
	filter uintptr
}

// Fprog is a pointer to a struct sock_fprog for an array of struct sock_filter.
func (p *Program) Fprog(filter string) Value {
	return Ptr(p, &fprog{len: uint16(len(filter) / 8), filter: p.Data(filter).n})
}

// Store32 appends a step that writes a value into b at off, such as a descriptor
// number into a control message.
func (p *Program) Store32(b []byte, off int, v Value) {
	_ = b[off+3]
	addr := p.Bytes(b)
	addr.n += uintptr(off)
	p.Call(0, Step{Op: "store"}, callStore, addr, v)
}

// InjectFault makes call i fail with e without reaching the kernel.
func (p *Program) InjectFault(i int, e syscall.Errno) {
	p.calls[i] = call{nr: callFail, args: [6]uintptr{uintptr(e)}, op: p.calls[i].op, object: p.calls[i].object}
}

// InsertPause makes the process stop before call i, at which it waits until the
// other end of the pipe fd is closed.
func (p *Program) InsertPause(i int, fd int) {
	b := make([]byte, 1)
	p.insert(i, call{nr: syscall.SYS_READ, args: [6]uintptr{uintptr(fd), p.Bytes(b).n, 1}, op: "pause"})
}

// InsertSleep makes the process stop before call i for some time, where there is
// no descriptor to wait for.
func (p *Program) InsertSleep(i int, d time.Duration) {
	ts := syscall.NsecToTimespec(d.Nanoseconds())
	p.insert(i, call{nr: syscall.SYS_NANOSLEEP, args: [6]uintptr{Ptr(p, &ts).n}, op: "sleep"})
}

func (p *Program) insert(i int, c call) {
	p.calls = slices.Insert(p.calls, i, c)
	for j := range p.parts {
		if p.parts[j].from > i {
			p.parts[j].from++
		}
	}
}

// String lists the program, one call a line, for tests and debugging. Pointers
// are left out: the object says what they point to.
func (p *Program) String() string {
	var b strings.Builder
	for i := range p.calls {
		c := &p.calls[i]
		b.WriteString(c.op)
		if c.object != "" {
			b.WriteString(" " + strconv.Quote(c.object))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// A Runnable is a program in the form that a child runs: plain numbers, no
// pointer that the garbage collector or a write barrier would care about.
type Runnable struct {
	calls uintptr
	n     uintptr
}

// Runnable returns the program's form for Run. The program must stay reachable
// and unchanged for as long as it may run.
func (p *Program) Runnable() Runnable {
	if len(p.calls) == 0 {
		return Runnable{}
	}
	return Runnable{address(unsafe.Pointer(&p.calls[0])), uintptr(len(p.calls))}
}

// Run makes the calls in order and stops at the first that fails. It returns
// the number of calls that succeeded and the errno of the one that failed, 0 if
// none did.
//
// It may run in a child of Clone or Vfork: it does not allocate, split the
// stack, write pointers or take locks.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (r Runnable) Run(regs *Regs) (done uintptr, errno uintptr) {
	for done < r.n {
		// A uintptr that was made from a pointer which the Program keeps.
		c := (*call)(*(*unsafe.Pointer)(unsafe.Pointer(&r.calls)))
		r.calls += unsafe.Sizeof(call{})
		a := c.args
		for i := uintptr(0); i < 6; i++ {
			if c.regs&(1<<i) != 0 {
				a[i] = regs[a[i]%numRegs]
			}
		}
		var res, e uintptr
		switch c.nr {
		case callFail:
			e = a[0]
		case callStore:
			*(*int32)(*(*unsafe.Pointer)(unsafe.Pointer(&a[0]))) = int32(a[1])
		default:
			res, e = Raw(c.nr, a[0], a[1], a[2], a[3], a[4], a[5])
		}
		if e != 0 {
			if e != uintptr(c.allow) && c.allow != anyErrno {
				return done, e
			}
			res = 0
			done += uintptr(c.skip)
			r.calls += uintptr(c.skip) * unsafe.Sizeof(call{})
		}
		if c.out != 0 {
			regs[c.out%numRegs] = res
		}
		done++
	}
	return done, 0
}
