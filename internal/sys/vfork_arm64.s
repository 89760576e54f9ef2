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
