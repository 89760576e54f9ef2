package guard

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// native are the calls of this architecture that later ones do without.
var native = []rule{{unix.SYS_RENAMEAT, hold}}

var nativeLooks []rule

const sysAccess, sysStat, sysLstat, sysReadlink = -13, -14, -15, -16

// Calls that this architecture never had: negative, as no call is.
const (
	sysOpen, sysCreat, sysMkdir, sysMknod     = -1, -2, -3, -4
	sysRename, sysRenameat, sysLink           = -5, unix.SYS_RENAMEAT, -6
	sysSymlink, sysUnlink, sysRmdir, sysChmod = -7, -8, -9, -10
	sysChown, sysLchown                       = -11, -12
	sysUtime, sysUtimes                       = -17, -18
)

// largeFile is the flag that openat(2) adds; see O_LARGEFILE in asm/fcntl.h.
const largeFile = 0o400000

const sysFstatat = unix.SYS_FSTATAT
