#include "textflag.h"

#define SYS_write 1
#define SYS_rt_sigreturn 15

// The handler of WriteOnSignal: write(signalPipe, &signalBytes[sig], 1). The
// kernel restores every register afterwards, and there is no errno to save.
TEXT ·handler(SB),NOSPLIT|NOFRAME,$0
	LEAQ	·signalBytes(SB), SI
	MOVLQSX	DI, DI
	ADDQ	DI, SI
	MOVL	·signalPipe(SB), DI
	MOVL	$1, DX
	MOVL	$SYS_write, AX
	SYSCALL
	RET

// What a handler returns to; see sigreturn(2).
TEXT ·restorer(SB),NOSPLIT|NOFRAME,$0
	MOVL	$SYS_rt_sigreturn, AX
	SYSCALL
	INT	$3

// func handlerPC() uintptr
TEXT ·handlerPC(SB),NOSPLIT,$0-8
	LEAQ	·handler(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// func restorerPC() uintptr
TEXT ·restorerPC(SB),NOSPLIT,$0-8
	LEAQ	·restorer(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// The handler of InterruptOn.
TEXT ·nothing(SB),NOSPLIT|NOFRAME,$0
	RET

// func nothingPC() uintptr
TEXT ·nothingPC(SB),NOSPLIT,$0-8
	LEAQ	·nothing(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
