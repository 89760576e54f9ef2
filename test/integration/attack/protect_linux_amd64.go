package main

import "golang.org/x/sys/unix"

// legacy are the calls that only this architecture has: each makes path, own
// being a file of the attacker's.
var legacy = []struct {
	name string
	make func(path, own string) error
}{
	{"raw open", func(p, _ string) error { return closing(unix.SYS_OPEN, bytePtr(p), unix.O_WRONLY|unix.O_CREAT, 0o644) }},
	{"raw creat", func(p, _ string) error { return closing(unix.SYS_CREAT, bytePtr(p), 0o644, 0) }},
	{"raw mkdir", func(p, _ string) error { return plainCall(unix.SYS_MKDIR, bytePtr(p), 0o755) }},
	{"raw mknod", func(p, _ string) error { return plainCall(unix.SYS_MKNOD, bytePtr(p), unix.S_IFREG|0o644) }},
	{"raw symlink", func(p, o string) error { return plainCall(unix.SYS_SYMLINK, bytePtr(o), bytePtr(p)) }},
	{"raw link", func(p, o string) error { return plainCall(unix.SYS_LINK, bytePtr(o), bytePtr(p)) }},
	{"raw rename", func(p, o string) error {
		err := plainCall(unix.SYS_RENAME, bytePtr(o), bytePtr(p))
		if err == nil {
			return unix.Rename(p, o)
		}
		return err
	}},
	{"raw open with high bits", func(p, _ string) error {
		return closing(unix.SYS_OPEN, bytePtr(p), 0xdead00000000|unix.O_WRONLY|unix.O_CREAT, 0o644)
	}},
}

func plainCall(nr, a, b uintptr) error {
	_, _, errno := unix.Syscall(nr, a, b, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func closing(nr, a, b, c uintptr) error {
	fd, _, errno := unix.Syscall(nr, a, b, c)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}
