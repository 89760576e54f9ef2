#include "textflag.h"

#define SYS_clone3 435

// func rawVfork(args uintptr, size uintptr) (pid, errno uintptr)
//
// The child runs on this very stack until it execs, so the return address that
// CALL pushed may be overwritten before the parent goes on: it is kept in R12,
// which the kernel preserves for each of the two processes.
TEXT ·rawVfork(SB),NOSPLIT|NOFRAME,$0-32
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	$SYS_clone3, AX
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $0xfffffffffffff001
	JLS	ok
	MOVQ	$0, pid+16(FP)
	NEGQ	AX
	MOVQ	AX, errno+24(FP)
	RET
ok:
	MOVQ	AX, pid+16(FP)
	MOVQ	$0, errno+24(FP)
	RET

// func rawClone(args uintptr, size uintptr, start uintptr) (pid, errno uintptr)
//
// The parent goes on as from any system call. The child begins on the stack
// that args names, which is empty, and calls start's function; registers are the parent's.
TEXT ·rawClone(SB),NOSPLIT|NOFRAME,$0-40
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	start+16(FP), R12
	MOVQ	$SYS_clone3, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	child
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
