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
