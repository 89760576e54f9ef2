#include "textflag.h"

#define SYS_clone3 435

// func rawVfork(args uintptr, size uintptr) (pid, errno uintptr)
//
// The child runs on this very stack until it execs. The return address is in
// R30, which the kernel preserves for each of the two processes; a leaf without
// a frame does not spill it.
TEXT ·rawVfork(SB),NOSPLIT|NOFRAME,$0-32
	MOVD	args+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	$SYS_clone3, R8
	SVC
	CMN	$4095, R0
	BCC	ok
	MOVD	ZR, pid+16(FP)
	NEG	R0, R0
	MOVD	R0, errno+24(FP)
	RET
ok:
	MOVD	R0, pid+16(FP)
	MOVD	ZR, errno+24(FP)
	RET

// func rawClone(args uintptr, size uintptr, start uintptr) (pid, errno uintptr)
//
// The parent goes on as from any system call. The child begins on the stack
// that args names, which is empty, and calls start's function; registers are the parent's.
TEXT ·rawClone(SB),NOSPLIT|NOFRAME,$0-40
	MOVD	args+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	start+16(FP), R20
	MOVD	$SYS_clone3, R8
	SVC
	CBZ	R0, child
	CMN	$4095, R0
	BCC	ok
	MOVD	ZR, pid+24(FP)
	NEG	R0, R0
	MOVD	R0, errno+32(FP)
	RET
ok:
	MOVD	R0, pid+24(FP)
	MOVD	ZR, errno+32(FP)
	RET
child:
	// A Go function is called the way that compiled code does (ABIInternal):
	// the wrapper for assembly is instrumented by the race detector, which has
	// no state for this process. g stays in R28.
	MOVD	ZR, R29
	MOVD	8(R20), R0	// childStart.arg
	MOVD	0(R20), R26	// childStart.fn
	MOVD	0(R26), R1
	SUB	$16, RSP
	BL	(R1)
	BRK
