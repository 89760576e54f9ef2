#include "textflag.h"

// func rawVfork(nr, a, b uintptr) (pid, errno uintptr)
//
// The child runs on this very stack until it execs. The return address is in
// R30, which the kernel preserves for each of the two processes; a leaf without
// a frame does not spill it.
TEXT ·rawVfork(SB),NOSPLIT|NOFRAME,$0-40
	MOVD	nr+0(FP), R8
	MOVD	a+8(FP), R0
	MOVD	b+16(FP), R1
	MOVD	ZR, R2
	MOVD	ZR, R3
	MOVD	ZR, R4
	SVC
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

// func rawClone(nr, a, b, c, start uintptr) (pid, errno uintptr)
//
// The parent goes on as from any system call. The child begins on the stack
// that args names, which is empty, and calls start's function; registers are the parent's.
TEXT ·rawClone(SB),NOSPLIT|NOFRAME,$0-56
	MOVD	nr+0(FP), R8
	MOVD	a+8(FP), R0
	MOVD	b+16(FP), R1
	MOVD	c+24(FP), R2
	MOVD	start+32(FP), R20
	MOVD	ZR, R3
	MOVD	ZR, R4
	SVC
	CBZ	R0, child
	CMN	$4095, R0
	BCC	ok
	MOVD	ZR, pid+40(FP)
	NEG	R0, R0
	MOVD	R0, errno+48(FP)
	RET
ok:
	MOVD	R0, pid+40(FP)
	MOVD	ZR, errno+48(FP)
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
