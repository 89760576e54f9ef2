#include "textflag.h"

// func rawVfork(nr, a, b uintptr) (pid, errno uintptr)
//
// The child runs on this very stack until it execs, so the return address that
// CALL pushed may be overwritten before the parent goes on: it is kept in R12,
// which the kernel preserves for each of the two processes.
TEXT ·rawVfork(SB),NOSPLIT|NOFRAME,$0-40
	MOVQ	nr+0(FP), AX
	MOVQ	a+8(FP), DI
	MOVQ	b+16(FP), SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $0xfffffffffffff001
	JLS	ok
	MOVQ	$0, pid+24(FP)
	NEGQ	AX
	MOVQ	AX, errno+32(FP)
	RET
ok:
	MOVQ	AX, pid+24(FP)
	MOVQ	$0, errno+32(FP)
	RET

// func rawClone(nr, a, b, c, start uintptr) (pid, errno uintptr)
//
// The parent goes on as from any system call. The child begins on the stack
// that args names, which is empty, and calls start's function; registers are the parent's.
TEXT ·rawClone(SB),NOSPLIT|NOFRAME,$0-56
	MOVQ	nr+0(FP), AX
	MOVQ	a+8(FP), DI
	MOVQ	b+16(FP), SI
	MOVQ	c+24(FP), DX
	MOVQ	start+32(FP), R12
	XORL	R10, R10
	XORL	R8, R8
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	CMPQ	AX, $0xfffffffffffff001
	JLS	ok
	MOVQ	$0, pid+40(FP)
	NEGQ	AX
	MOVQ	AX, errno+48(FP)
	RET
ok:
	MOVQ	AX, pid+40(FP)
	MOVQ	$0, errno+48(FP)
	RET
child:
	// A Go function is called the way that compiled code does (ABIInternal):
	// the wrapper for assembly is instrumented by the race detector, which has
	// no state for this process.
	XORL	BP, BP
	MOVQ	(TLS), R14
	XORPS	X15, X15
	MOVQ	8(R12), AX	// childStart.arg
	MOVQ	0(R12), DX	// childStart.fn
	MOVQ	0(DX), CX
	CALL	CX
	INT	$3
