package main

import "golang.org/x/sys/unix"

// The older calls do not exist there.
const (
	sysOpen, sysCreat             = 0, 0
	sysRename, sysRenameat        = 0, unix.SYS_RENAMEAT
	sysLink, sysSymlink           = 0, 0
	sysUnlink, sysRmdir           = 0, 0
	sysMkdir, sysMknod            = 0, 0
	sysChmod                      = 0
	sysChown, sysLchown           = 0, 0
	sysUtime, sysUtimes           = 0, 0
	sysFutimesat                  = 0
	sysSetxattrat, sysFileSetattr = 463, 469
)
