#include "textflag.h"

#define SYS_write 64
#define SYS_rt_sigreturn 139

// The handler of WriteOnSignal: write(signalPipe, &signalBytes[sig], 1). The
// kernel restores every register afterwards, and there is no errno to save.
TEXT ·handler(SB),NOSPLIT|NOFRAME,$0
	MOVD	$·signalBytes(SB), R1
	SXTW	R0, R0
	ADD	R0, R1
	MOVW	·signalPipe(SB), R0
	MOVD	$1, R2
	MOVD	$SYS_write, R8
	SVC
	RET

// What a handler returns to; see sigreturn(2).
TEXT ·restorer(SB),NOSPLIT|NOFRAME,$0
	MOVD	$SYS_rt_sigreturn, R8
	SVC
	BRK

// func handlerPC() uintptr
TEXT ·handlerPC(SB),NOSPLIT,$0-8
	MOVD	$·handler(SB), R0
	MOVD	R0, ret+0(FP)
	RET

// func restorerPC() uintptr
TEXT ·restorerPC(SB),NOSPLIT,$0-8
	MOVD	$·restorer(SB), R0
	MOVD	R0, ret+0(FP)
	RET

// The handler of InterruptOn.
TEXT ·nothing(SB),NOSPLIT|NOFRAME,$0
	RET

// func nothingPC() uintptr
TEXT ·nothingPC(SB),NOSPLIT,$0-8
	MOVD	$·nothing(SB), R0
	MOVD	R0, ret+0(FP)
	RET
