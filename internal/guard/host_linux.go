package guard

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// answered are the file systems of which the kernel alone answers for what they hold. In
// others a look-up can wait for a program or a server for ever, or hand it the name.
var answered = []string{"bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660",
	"jfs", "msdos",
	"ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "sysfs", "tmpfs", "ubifs", "udf", "vfat", "xfs", "zfs"}

// A pass is whether the guard may look into what is mounted at a place of the host.
type pass uint8

const (
	never   pass = iota
	through      // to what is mounted further down
	shown        // the sandbox waits for it anyway, or reading does something
	always
)

// passes are those of the host's mounts, by their places. What the sandbox shows a part
// of, the command can wait for without us.
func passes(mountinfo []byte, grants []Grant) map[string]pass {
	all := map[string]pass{}
	for line := range bytes.Lines(mountinfo) {
		line, rest, _ := bytes.Cut(line, []byte(" - "))
		f, fs := bytes.Fields(line), bytes.Fields(rest)
		if len(f) < 5 || len(fs) == 0 {
			continue
		}
		p := never // a later line is of what is mounted above
		switch kind := string(fs[0]); {
		case kind == "autofs":
			p = through
		case kind == "sysfs", kind == "devtmpfs":
			p = shown
		case slices.Contains(answered, kind):
			p = always
		}
		all[unescape(string(f[4]))] = p
	}
	for _, g := range grants {
		for at := g.Path; ; at = at[:strings.LastIndexByte(at, '/')] {
			if p, ok := all[at]; ok {
				if p == never && at != "/proc" {
					all[at] = shown
				}
				break
			}
			if at == "" || at == "/" {
				break
			}
		}
	}
	return all
}

// onHost looks a path up on the host, and returns where it leads and whether this user may
// do there what mode says.
func (w *worker) onHost(full string, flags uint64, mode uint32) (leads string, ok bool) {
	fd, leads, _ := w.hostPlace(full, flags)
	if fd < 0 {
		return "", false
	}
	defer closeFD(fd)
	link := flags&unix.O_NOFOLLOW != 0 && unix.Fstat(fd, &w.stat) == nil && w.stat.Mode&unix.S_IFMT == unix.S_IFLNK
	return leads, link || mode == unix.F_OK || unix.Faccessat(w.self, strconv.Itoa(fd), mode, 0) == nil
}

// hostPlace opens, as a place, what a path leads to on the host; -1 is for nothing. This
// thread is in the host's mounts, and has no capabilities. The command has chosen the path,
// and can change what it made of it at any time: so it is followed name by name, without
// crossing to a file system that may keep us waiting.
func (w *worker) hostPlace(full string, flags uint64) (fd int, leads string, p pass) {
	if w.passes == nil {
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return -1, "", never
		}
		w.passes = passes(text, w.g.grants)
	}
	root, errno := w.openat2(unix.AT_FDCWD, []byte("/"), unix.O_DIRECTORY, 0)
	if errno != 0 {
		return -1, "", never
	}
	type step struct {
		fd   int
		at   string
		dir  bool
		pass pass
	}
	way := []step{{root, "", true, always}}
	defer func() {
		for _, s := range way {
			closeFD(s.fd)
		}
	}()
	back := func(to int) {
		for _, s := range way[to:] {
			closeFD(s.fd)
		}
		way = way[:to]
	}
	rest, links := full, 0
	for names := 0; ; names++ {
		here := way[len(way)-1]
		name := strings.TrimLeft(rest, "/")
		if rest != "" && !here.dir || names > maxNames {
			return -1, "", never
		}
		if name == "" {
			break
		}
		if i := strings.IndexByte(name, '/'); i >= 0 {
			name, rest = name[:i], name[i:]
		} else {
			rest = ""
		}
		switch name {
		case ".", "..":
			if name == ".." && len(way) > 1 {
				back(len(way) - 1)
			}
			rest = "/" + rest
			continue
		}
		next := step{at: here.at + "/" + name, pass: here.pass}
		resolve := uint64(unix.RESOLVE_NO_SYMLINKS)
		if p, is := w.passes[next.at]; is {
			next.pass = p
		} else {
			resolve |= unix.RESOLVE_NO_XDEV
			if here.pass == through {
				return -1, "", never
			}
		}
		if next.pass == never {
			return -1, "", never
		}
		if next.fd, errno = w.openat2(here.fd, []byte(name), unix.O_NOFOLLOW, resolve); errno != 0 {
			return -1, "", never
		}
		way = append(way, next)
		if err := unix.Fstat(next.fd, &w.stat); err != nil {
			return -1, "", never
		}
		kind := w.stat.Mode & unix.S_IFMT
		way[len(way)-1].dir = kind == unix.S_IFDIR
		if kind != unix.S_IFLNK {
			continue
		}
		if rest == "" && flags&unix.O_NOFOLLOW != 0 {
			break
		}
		n, err := unix.Readlinkat(next.fd, "", w.link[:])
		if links++; err != nil || n <= 0 || links > 40 { // MAXSYMLINKS
			return -1, "", never
		}
		rest = string(w.link[:n]) + rest
		if back(len(way) - 1); rest[0] == '/' {
			back(1)
		}
	}
	last := way[len(way)-1]
	way = way[:len(way)-1]
	return last.fd, cmp.Or(last.at, "/"), last.pass
}
