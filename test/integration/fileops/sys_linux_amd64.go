package main

import "golang.org/x/sys/unix"

const (
	sysOpen, sysCreat             = unix.SYS_OPEN, unix.SYS_CREAT
	sysRename, sysRenameat        = unix.SYS_RENAME, unix.SYS_RENAMEAT
	sysLink, sysSymlink           = unix.SYS_LINK, unix.SYS_SYMLINK
	sysUnlink, sysRmdir           = unix.SYS_UNLINK, unix.SYS_RMDIR
	sysMkdir, sysMknod            = unix.SYS_MKDIR, unix.SYS_MKNOD
	sysChmod                      = unix.SYS_CHMOD
	sysChown, sysLchown           = unix.SYS_CHOWN, unix.SYS_LCHOWN
	sysUtime, sysUtimes           = unix.SYS_UTIME, unix.SYS_UTIMES
	sysFutimesat                  = unix.SYS_FUTIMESAT
	sysSetxattrat, sysFileSetattr = 463, 469
)
