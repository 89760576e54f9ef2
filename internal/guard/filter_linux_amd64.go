package guard

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// native are the calls of this architecture that later ones do without.
var native = []rule{
	{unix.SYS_OPEN, holdW1}, {unix.SYS_CREAT, hold}, {unix.SYS_MKDIR, hold}, {unix.SYS_MKNOD, hold},
	{unix.SYS_RENAME, hold}, {unix.SYS_RENAMEAT, hold}, {unix.SYS_LINK, hold}, {unix.SYS_SYMLINK, hold},
	{unix.SYS_UNLINK, hold}, {unix.SYS_RMDIR, hold}, {unix.SYS_CHMOD, hold},
	{unix.SYS_CHOWN, hold}, {unix.SYS_LCHOWN, hold},
}

// nativeLooks are those of looks.
var nativeLooks = []rule{{unix.SYS_ACCESS, hold}, {unix.SYS_STAT, hold}, {unix.SYS_LSTAT, hold},
	{unix.SYS_READLINK, hold}, {unix.SYS_UTIME, hold}, {unix.SYS_UTIMES, hold}}

const sysAccess, sysStat, sysLstat, sysReadlink = unix.SYS_ACCESS, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_READLINK

// The same calls, for the table of handlers.
const (
	sysOpen, sysCreat, sysMkdir, sysMknod     = unix.SYS_OPEN, unix.SYS_CREAT, unix.SYS_MKDIR, unix.SYS_MKNOD
	sysRename, sysRenameat, sysLink           = unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_LINK
	sysSymlink, sysUnlink, sysRmdir, sysChmod = unix.SYS_SYMLINK, unix.SYS_UNLINK, unix.SYS_RMDIR, unix.SYS_CHMOD
	sysChown, sysLchown                       = unix.SYS_CHOWN, unix.SYS_LCHOWN
	sysUtime, sysUtimes                       = unix.SYS_UTIME, unix.SYS_UTIMES
)

// largeFile is the flag that openat(2) adds; see O_LARGEFILE in asm/fcntl.h.
const largeFile = 0o100000

const sysFstatat = unix.SYS_NEWFSTATAT
