//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// protected tries to change, remove and make protected paths in one directory:
// "in", where .git is a repository with a hook. With make=N it first makes N
// directories, one in the other, and tries in the last, where nothing protected
// exists. Each act that succeeds is undone.
func protected(r *report) {
	dir := r.arg("in")
	for i := range r.number("make", 0) {
		dir = filepath.Join(dir, fmt.Sprint("d", i))
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			r.err("make directories", err)
			return
		}
	}
	absent(r, dir)
	if r.arg("make") == "" {
		existing(r, dir)
	}
}

func openClose(dirfd int, path string, flags int) error {
	fd, err := unix.Openat(dirfd, path, flags|unix.O_CLOEXEC, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// absent makes what does not exist.
func absent(r *report, dir string) {
	if err := unix.Chdir(dir); err != nil {
		r.err("chdir", err)
		return
	}
	own := filepath.Join(dir, "own")
	os.RemoveAll(own)
	os.WriteFile(own, []byte("x"), 0o644)
	ownDir := filepath.Join(dir, "own.d")
	os.RemoveAll(ownDir)
	os.MkdirAll(filepath.Join(ownDir, "hooks"), 0o755)
	os.WriteFile(filepath.Join(ownDir, "config"), nil, 0o644)
	os.Symlink(".", filepath.Join(dir, "here"))
	os.Mkdir(filepath.Join(dir, "side"), 0o755)
	defer func() {
		for _, n := range []string{"own", "own.d", "here", "side"} {
			os.RemoveAll(filepath.Join(dir, n))
		}
	}()
	dfd, _ := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	pfd, _ := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	defer unix.Close(dfd)
	defer unix.Close(pfd)

	const name = ".mcp.json"
	path := filepath.Join(dir, name)
	try := func(what string, do func() error) {
		r.err(what, do())
		os.RemoveAll(path)
	}
	const cwd, create = unix.AT_FDCWD, unix.O_WRONLY | unix.O_CREAT
	try("create", func() error { return openClose(cwd, path, create) })
	try("create, exclusively", func() error { return openClose(cwd, path, create|unix.O_EXCL) })
	try("create, for reading", func() error { return openClose(cwd, path, unix.O_RDONLY|unix.O_CREAT) })
	try("create, truncating", func() error { return openClose(cwd, path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC) })
	try("create, relative", func() error { return openClose(cwd, name, create) })
	try("create, by a directory's descriptor", func() error { return openClose(dfd, name, create) })
	try("create, by a path descriptor", func() error { return openClose(pfd, "./"+name, create) })
	try("create, by ..", func() error { return openClose(cwd, "side/../"+name, create) })
	try("create, by .. of an absolute path", func() error { return openClose(cwd, dir+"/side//.././"+name, create) })
	try("create, by a symlink", func() error { return openClose(cwd, "here/here/"+name, create) })
	try("create, by /proc/self/cwd", func() error { return openClose(cwd, "/proc/self/cwd/"+name, create) })
	try("create, by /proc/thread-self/cwd", func() error { return openClose(cwd, "/proc/thread-self/cwd/"+name, create) })
	try("create, by /proc/self/root", func() error { return openClose(cwd, "/proc/self/root"+path, create) })
	try("create, by /proc/self/fd", func() error { return openClose(cwd, fmt.Sprintf("/proc/self/fd/%d/%s", dfd, name), create) })
	try("create, by /dev/fd", func() error { return openClose(cwd, fmt.Sprintf("/dev/fd/%d/%s", pfd, name), create) })
	try("create, by /proc/PID/cwd", func() error {
		return openClose(cwd, fmt.Sprintf("/proc/%d/task/%d/cwd/%s", os.Getpid(), os.Getpid(), name), create)
	})
	try("create, by openat2", func() error {
		fd, err := unix.Openat2(cwd, path, &unix.OpenHow{Flags: create, Mode: 0o644})
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
	try("create through a dangling symlink", func() error {
		l := filepath.Join(dir, "dangling")
		os.Symlink(name, l)
		defer os.Remove(l)
		return openClose(cwd, l, create)
	})
	for _, variant := range []string{".MCP.JSON", ".Mcp.json"} {
		p := filepath.Join(dir, variant)
		r.err("create "+variant, openClose(cwd, p, create))
		os.Remove(p)
	}
	try("mkdir", func() error { return unix.Mkdirat(cwd, path, 0o755) })
	try("mkdir with a slash", func() error { return unix.Mkdirat(dfd, name+"/", 0o755) })
	try("mkfifo", func() error { return unix.Mknodat(cwd, path, unix.S_IFIFO|0o644, 0) })
	try("mknod of a file", func() error { return unix.Mknodat(cwd, path, unix.S_IFREG|0o644, 0) })
	try("mknod of a socket", func() error { return unix.Mknodat(cwd, path, unix.S_IFSOCK|0o644, 0) })
	try("symlink", func() error { return unix.Symlinkat("own", cwd, path) })
	try("link", func() error { return unix.Linkat(cwd, own, cwd, path, 0) })
	try("rename", func() error {
		defer os.Rename(path, own)
		return unix.Renameat(cwd, own, cwd, path)
	})
	try("rename, without replacing", func() error {
		defer os.Rename(path, own)
		return unix.Renameat2(dfd, "own", pfd, name, unix.RENAME_NOREPLACE)
	})
	try("rename of a directory", func() error {
		defer os.Rename(path, ownDir)
		return unix.Renameat(cwd, ownDir, cwd, path)
	})
	try("link of a file without a name", func() error {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("O_TMPFILE: %w", err)
		}
		defer unix.Close(fd)
		return unix.Linkat(cwd, fmt.Sprintf("/proc/self/fd/%d", fd), cwd, path, unix.AT_SYMLINK_FOLLOW)
	})
	for _, l := range legacy {
		try(l.name, func() error { return l.make(path, own) })
	}

	// What holds something protected comes into being.
	r.err("rename a directory to .config", func() error {
		to := filepath.Join(dir, ".config")
		defer os.Rename(to, ownDir)
		return unix.Renameat(cwd, ownDir, cwd, to)
	}())
	r.err("symlink .config", func() error {
		to := filepath.Join(dir, ".config")
		defer os.Remove(to)
		return os.Symlink("own.d", to)
	}())
	// Repositories by another name.
	for _, last := range []string{"HEAD", "objects", "refs"} {
		bare := filepath.Join(dir, "bare")
		r.err("make a bare repository, "+last+" last", func() error {
			defer os.RemoveAll(bare)
			var err error
			for _, n := range append(remove([]string{"objects", "refs", "HEAD"}, last), last) {
				if n == "HEAD" {
					os.MkdirAll(bare, 0o755)
					err = os.WriteFile(filepath.Join(bare, n), []byte("ref: refs/heads/main\n"), 0o644)
				} else {
					err = os.MkdirAll(filepath.Join(bare, n), 0o755)
				}
			}
			return pathErr(err)
		}())
		r.err("make a bare repository, "+last+" renamed into it", func() error {
			defer os.RemoveAll(bare)
			for _, n := range remove([]string{"objects", "refs", "HEAD"}, last) {
				os.MkdirAll(filepath.Join(bare, n), 0o755)
			}
			os.MkdirAll(filepath.Join(bare, "x"), 0o755)
			return unix.Renameat(cwd, filepath.Join(bare, "x"), cwd, filepath.Join(bare, last))
		}())
	}
	r.err("make a bare repository of sockets", func() error {
		bare := filepath.Join(dir, "bare")
		defer os.RemoveAll(bare)
		os.MkdirAll(bare, 0o755)
		os.Chdir(bare)
		defer os.Chdir(dir)
		for _, n := range []string{"objects", "refs"} {
			s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return fmt.Errorf("socket: %w", err)
			}
			defer unix.Close(s)
			if err := unix.Bind(s, &unix.SockaddrUnix{Name: n}); err != nil {
				return fmt.Errorf("bind: %w", err)
			}
		}
		return pathErr(os.WriteFile("HEAD", []byte("ref: refs/heads/main\n"), 0o644))
	}())
	r.err("put HEAD beside a config", func() error {
		bare := filepath.Join(dir, "bare")
		defer os.RemoveAll(bare)
		os.MkdirAll(bare, 0o755)
		os.WriteFile(filepath.Join(bare, "config"), nil, 0o644)
		return openClose(cwd, filepath.Join(bare, "HEAD"), create)
	}())
	r.err("make a linked worktree's directory", func() error {
		wt := filepath.Join(dir, "wt")
		defer os.RemoveAll(wt)
		os.MkdirAll(wt, 0o755)
		os.WriteFile(filepath.Join(wt, "commondir"), []byte("../x\n"), 0o644)
		return pathErr(os.WriteFile(filepath.Join(wt, "HEAD"), []byte("ref: refs/heads/main\n"), 0o644))
	}())
	side := filepath.Join(dir, "side")
	repository := "neighbour: mkdir .git"
	if unix.Setxattr(side, "user.sbxrun", []byte("x"), 0) == unix.EOPNOTSUPP {
		repository = "mkdir .git, where nothing could mark it" // tmpfs before Linux 6.6
	}
	r.err(repository, func() error { defer os.Remove(side + "/.git"); return unix.Mkdir(side+"/.git", 0o755) }())
	r.err("create .git", func() error { defer os.Remove(side + "/.git"); return openClose(cwd, side+"/.git", create) }())
	r.err("symlink .git", func() error { defer os.Remove(side + "/.git"); return os.Symlink("../own.d", side+"/.git") }())
	r.err("rename a directory to .git", func() error {
		defer os.Rename(side+"/.git", ownDir)
		return unix.Rename(ownDir, side+"/.git")
	}())

	r.err("neighbour: create", func() error { defer os.Remove("plain"); return openClose(cwd, "plain", create) }())
	r.err("neighbour: create, exclusively", func() error { defer os.Remove("plain"); return openClose(dfd, "plain", create|unix.O_EXCL) }())
	r.err("neighbour: by /proc/self/fd", func() error {
		defer os.Remove("plain")
		return openClose(cwd, fmt.Sprintf("/proc/self/fd/%d/plain", dfd), create)
	}())
	r.err("neighbour: mkdir", func() error { defer os.Remove("config"); return unix.Mkdir("config", 0o755) }())
	r.err("neighbour: mkdir .config", func() error { defer os.Remove(".config"); return unix.Mkdir(".config", 0o755) }())
	r.err("neighbour: symlink", func() error { defer os.Remove("l"); return unix.Symlink(".vscode", "l") }())
	r.err("neighbour: mkfifo", func() error { defer os.Remove("fifo"); return unix.Mkfifo("fifo", 0o644) }())
	r.err("neighbour: rename", func() error { defer os.Rename("own2", "own"); return unix.Rename("own", "own2") }())
	r.err("neighbour: link", func() error { defer os.Remove("own2"); return unix.Link("own", "own2") }())
	r.err("neighbour: a file without a name", func() error {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		defer os.Remove("named")
		return unix.Linkat(cwd, fmt.Sprintf("/proc/self/fd/%d", fd), cwd, "named", unix.AT_SYMLINK_FOLLOW)
	}())
	attributes(r, own, false)
	r.err("neighbour: an ACL names its own user", func() error {
		defer os.Chmod(own, 0o644)
		// u::rw- u:ID:rw- g::r-- m::rw- o::r--
		acl := binary.LittleEndian.AppendUint32(nil, 2)
		for _, e := range [][3]uint32{{1, 6, ^uint32(0)}, {2, 6, uint32(os.Getuid())}, {4, 4, ^uint32(0)}, {16, 6, ^uint32(0)}, {32, 4, ^uint32(0)}} {
			acl = binary.LittleEndian.AppendUint16(acl, uint16(e[0]))
			acl = binary.LittleEndian.AppendUint16(acl, uint16(e[1]))
			acl = binary.LittleEndian.AppendUint32(acl, e[2])
		}
		const name = "system.posix_acl_access"
		err := unix.Setxattr(own, name, acl, 0)
		if err == unix.EOPNOTSUPP {
			return nil // a file system without them
		}
		if err != nil {
			return err
		}
		got := make([]byte, len(acl)+8)
		if n, err := unix.Getxattr(own, name, got); err != nil || string(got[:n]) != string(acl) {
			return fmt.Errorf("set %x, got %x: %v", acl, got[:max(n, 0)], err)
		}
		// Of who has no number on the host nothing can be said.
		binary.LittleEndian.PutUint32(acl[16:], uint32(os.Getuid())+7)
		if err := unix.Setxattr(own, name, acl, 0); err != unix.EINVAL && os.Getenv("SBXRUN_SANDBOX") != "" {
			return fmt.Errorf("another user: %v", err)
		}
		return nil
	}())
	for _, d := range []string{"/tmp", os.Getenv("HOME")} {
		p := filepath.Join(d, ".mcp.json")
		if d == "" {
			continue
		}
		r.err("neighbour: create in "+map[bool]string{true: "/tmp", false: "HOME"}[d == "/tmp"], openClose(cwd, p, create))
		os.Remove(p)
	}
}

// existing changes what exists: .git/config and .git/hooks/pre-commit.
func existing(r *report, dir string) {
	config, hook, hooks := filepath.Join(dir, ".git/config"), filepath.Join(dir, ".git/hooks/pre-commit"), filepath.Join(dir, ".git/hooks")
	content, err := os.ReadFile(config)
	r.err("neighbour: read", pathErr(err))
	const cwd = unix.AT_FDCWD
	restore := func() {
		for _, p := range []string{config, hook} {
			if b, err := os.ReadFile(p); err != nil || string(b) != string(content) {
				os.MkdirAll(filepath.Dir(p), 0o755)
				os.WriteFile(p, content, 0o644)
			}
			os.Chmod(p, 0o644)
		}
	}
	try := func(what string, do func() error) {
		r.err(what, do())
		restore()
	}
	for name, p := range map[string]string{"config": config, "hook": hook} {
		for _, f := range []struct {
			name  string
			flags int
		}{{"writing", unix.O_WRONLY}, {"both", unix.O_RDWR}, {"appending", unix.O_WRONLY | unix.O_APPEND}, {"reading, truncating", unix.O_RDONLY | unix.O_TRUNC}, {"no access", 3}} {
			try("open "+name+" for "+f.name, func() error { return openClose(cwd, p, f.flags) })
		}
		try("truncate "+name, func() error { return unix.Truncate(p, 0) })
		try("unlink "+name, func() error { return unix.Unlink(p) })
		try("rename "+name+" away", func() error { defer os.Rename(p+".x", p); return unix.Rename(p, p+".x") })
		try("rename over "+name, func() error {
			own := filepath.Join(dir, ".git/own.x")
			os.WriteFile(own, nil, 0o644)
			defer os.Remove(own)
			return unix.Rename(own, p)
		})
		try("exchange "+name, func() error {
			own := filepath.Join(dir, ".git/own.x")
			os.WriteFile(own, nil, 0o644)
			defer os.Remove(own)
			return unix.Renameat2(cwd, own, cwd, p, unix.RENAME_EXCHANGE)
		})
		try("chmod "+name, func() error { return unix.Chmod(p, 0o755) })
		try("chmod "+name+", the newer way", func() error { return unix.Fchmodat(cwd, p, 0o755, unix.AT_SYMLINK_NOFOLLOW) })
		try("chmod "+name+" by its descriptor", func() error {
			fd, err := unix.Open(p, unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Fchmod(fd, 0o755)
		})
		try("set the mode of "+name+" by its ACL", func() error {
			// u::rwx g::r-x o::r-x; see acl(5) and linux/posix_acl_xattr.h.
			acl := binary.LittleEndian.AppendUint32(nil, 2)
			for _, e := range [][2]uint16{{1, 7}, {4, 5}, {32, 5}} {
				acl = binary.LittleEndian.AppendUint16(acl, e[0])
				acl = binary.LittleEndian.AppendUint16(acl, e[1])
				acl = binary.LittleEndian.AppendUint32(acl, 0xffffffff)
			}
			return unix.Setxattr(p, "system.posix_acl_access", acl, 0)
		})
		try("reopen "+name, func() error {
			fd, err := unix.Open(p, unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return openClose(cwd, fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY)
		})
		try("reopen a path descriptor of "+name, func() error {
			fd, err := unix.Open(p, unix.O_PATH, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return openClose(cwd, fmt.Sprintf("/dev/fd/%d", fd), unix.O_WRONLY)
		})
		try("another name for "+name, func() error {
			own := filepath.Join(dir, "own.x")
			defer os.Remove(own)
			return unix.Link(p, own)
		})
		try("another name for "+name+", by a descriptor", func() error {
			own := filepath.Join(dir, "own.x")
			defer os.Remove(own)
			fd, err := unix.Open(p, unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Linkat(cwd, fmt.Sprintf("/proc/self/fd/%d", fd), cwd, own, unix.AT_SYMLINK_FOLLOW)
		})
		try("write "+name+" through a symlink", func() error {
			own := filepath.Join(dir, "own.x")
			os.Symlink(p, own)
			defer os.Remove(own)
			return openClose(cwd, own, unix.O_WRONLY)
		})
	}
	attributes(r, config, true)
	git := filepath.Join(dir, ".git")
	try("rename .git", func() error { defer os.Rename(git+"2", git); return unix.Rename(git, git+"2") })
	try("exchange .git", func() error {
		os.Mkdir(git+"2", 0o755)
		defer os.RemoveAll(git + "2")
		err := unix.Renameat2(cwd, git+"2", cwd, git, unix.RENAME_EXCHANGE)
		if err == nil {
			unix.Renameat2(cwd, git+"2", cwd, git, unix.RENAME_EXCHANGE)
		}
		return err
	})
	try("rename hooks", func() error { defer os.Rename(hooks+"2", hooks); return unix.Rename(hooks, hooks+"2") })
	try("create a hook", func() error {
		defer os.Remove(hooks + "/post-checkout")
		return openClose(cwd, hooks+"/post-checkout", unix.O_WRONLY|unix.O_CREAT)
	})
	try("create .git/commondir", func() error {
		defer os.Remove(git + "/commondir")
		return openClose(cwd, git+"/commondir", unix.O_WRONLY|unix.O_CREAT)
	})
	try("create .git/config.worktree", func() error {
		defer os.Remove(git + "/config.worktree")
		return openClose(cwd, git+"/config.worktree", unix.O_WRONLY|unix.O_CREAT)
	})
	r.err("neighbour: create in .git", func() error {
		defer os.Remove(git + "/index.lock")
		return openClose(cwd, git+"/index.lock", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	}())
	r.err("neighbour: open for reading, with O_CREAT", openClose(cwd, config, unix.O_RDONLY|unix.O_CREAT))
	moved := filepath.Join(filepath.Dir(dir), "moved")
	if r.arg("move") != "" {
		r.err("neighbour: rename a directory above", func() error { defer os.Rename(moved, dir); return unix.Rename(dir, moved) }())
	}
}

func remove(list []string, s string) []string {
	var out []string
	for _, l := range list {
		if l != s {
			out = append(out, l)
		}
	}
	return out
}

// pathErr is the errno of an error of package os.
func pathErr(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// attributes changes what a file is beside its content and mode: another's, which
// may be read, or the command's own.
func attributes(r *report, p string, other bool) {
	const cwd, name = unix.AT_FDCWD, "user.sbxrun"
	prefix, flags := "", os.O_RDWR
	if other {
		flags = os.O_RDONLY
	} else {
		prefix = "neighbour: "
	}
	fd, err := unix.Open(p, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		r.err(prefix+"open", err)
		return
	}
	defer unix.Close(fd)
	uid, gid := os.Getuid(), os.Getgid()
	try := func(what string, err error) {
		if err == unix.ENODATA || err == unix.EOPNOTSUPP {
			err = nil // it is not there, or the file system has none
		}
		r.err(prefix+what, err)
	}
	try("fchownat", unix.Fchownat(cwd, p, uid, gid, 0))
	try("fchownat of a descriptor", unix.Fchownat(fd, "", uid, -1, unix.AT_EMPTY_PATH))
	try("chown", unix.Chown(p, uid, gid))
	try("lchown", unix.Lchown(p, -1, gid))
	try("fchown", unix.Fchown(fd, uid, gid))
	if !other {
		try("fsetxattr", unix.Fsetxattr(fd, name, []byte("x"), 0))
	}
	try("removexattr", unix.Removexattr(p, name))
	try("lremovexattr", unix.Lremovexattr(p, name))
	try("fremovexattr", unix.Fremovexattr(fd, name))
	try("removexattr of an ACL", unix.Removexattr(p, "system.posix_acl_access"))
	if !other {
		return
	}
	_, _, e := unix.Syscall6(466, uintptr(0xffffff9c), 0, 0, 0, 0, 0) // removexattrat(2)
	r.err("removexattrat", map[bool]error{true: nil, false: e}[e == unix.EFAULT])
	v := 0
	for what, request := range map[string]uintptr{"FS_IOC_SETFLAGS": 0x40086602, "FS_IOC_FSSETXATTR": 0x401c5820, "FS_IOC_ENABLE_VERITY": 0x40806685} {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(v)) // EFAULT where it is known
		r.err(what, map[bool]error{true: nil, false: e}[e == unix.EFAULT])
	}
}

// passed changes a file that was passed in for reading.
func passed(r *report) {
	const in, cwd = "/dev/stdin", unix.AT_FDCWD
	r.err("fchmod", unix.Fchmod(0, 0o777))
	r.err("chmod", unix.Chmod(in, 0o777))
	r.err("fchown", unix.Fchown(0, os.Getuid(), -1))
	err := unix.Fremovexattr(0, "user.sbxrun")
	if err == unix.ENODATA || err == unix.EOPNOTSUPP {
		err = nil
	}
	r.err("fremovexattr", err)
	r.err("neighbour: open for reading, with O_CREAT", openClose(cwd, in, unix.O_RDONLY|unix.O_CREAT))
}

// peers reads the memory of the processes beside it, and of those that are starting:
// by its own calls, and by those that are made for it.
func peers(r *report) {
	end := time.Now().Add(time.Duration(r.number("ms", 1000)) * time.Millisecond)
	opened := map[string]string{}
	own := os.Getpid()
	for time.Now().Before(end) {
		list, _ := os.ReadDir("/proc")
		for _, d := range list {
			var pid int
			if fmt.Sscan(d.Name(), &pid); pid == 0 || pid == own {
				continue
			}
			for _, file := range []string{"environ", "maps"} {
				p := fmt.Sprintf("/proc/%d/%s", pid, file)
				for what, open := range map[string]func() (int, error){
					"as it is":     func() (int, error) { return unix.Open(p, unix.O_RDONLY, 0) },
					"with O_CREAT": func() (int, error) { return unix.Open(p, unix.O_RDONLY|unix.O_CREAT, 0) },
					"by a path, with O_CREAT": func() (int, error) {
						fd, err := unix.Open(p, unix.O_PATH, 0)
						if err != nil {
							return -1, err
						}
						defer unix.Close(fd)
						return unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CREAT, 0)
					},
				} {
					key := file + " " + what
					if opened[key] == "" {
						opened[key] = "never"
					}
					if fd, err := open(); err == nil {
						// Of a process that ends anybody may open it, and it is empty.
						if n, _ := unix.Read(fd, make([]byte, 64)); n > 0 {
							opened[key] = "read"
						}
						unix.Close(fd)
					}
				}
			}
		}
	}
	for k, v := range opened {
		r.got(k, v)
	}
	r.err("neighbour: its own", openClose(unix.AT_FDCWD, "/proc/self/environ", unix.O_RDONLY))
}

// f10 makes what starts with a session, in every directory named "in".
func f10(r *report) {
	for dir := range strings.SplitSeq(r.arg("in"), ",") {
		base := filepath.Base(dir)
		for _, n := range []string{".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".inputrc", ".envrc", ".gitconfig", ".config/autostart/x.desktop", ".config/systemd/user/x.service", ".config/fish/config.fish", ".config/environment.d/x.conf"} {
			p := filepath.Join(dir, n)
			os.MkdirAll(filepath.Dir(p), 0o755)
			r.err(n+" in "+base, create(p))
			os.Remove(p)
		}
	}
	r.err("neighbour: a file", create(filepath.Join(strings.Split(r.arg("in"), ",")[0], "bashrc")))
}

// races has threads change what a call depends on while it is made: the path in
// memory, the working directory, and the directories on the way. It reports how
// often a protected name could be made.
func races(r *report) {
	dir := r.arg("in")
	rounds := r.number("rounds", 2000)
	once := r.number("once", 0) != 0 // a control needs to win once only
	plain, bad := dir+"/race/a/xxxxxxx", dir+"/race/.vscode"
	os.MkdirAll(dir+"/race/a", 0o755)
	os.MkdirAll(dir+"/race/b", 0o755)
	os.MkdirAll(dir+"/race/.config/x", 0o755)
	defer os.RemoveAll(dir + "/race")
	won := func() bool {
		_, err := os.Lstat(bad)
		_, err2 := os.Lstat(dir + "/race/.config/fish")
		return err == nil || err2 == nil
	}
	run := func(name string, flip func(i int), act func(i int)) {
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			for i := 0; !stop.Load(); i++ {
				flip(i)
			}
		}()
		wins := 0
		for i := range rounds {
			act(i)
			if won() {
				wins++
				os.RemoveAll(bad)
				os.RemoveAll(dir + "/race/.config/fish")
				if once {
					break
				}
			}
		}
		stop.Store(true)
		wg.Wait()
		r.got(name, map[bool]string{true: "ok", false: "never"}[wins > 0])
	}
	// The path in memory: "…/race/a/xxxxxxx" and "…/race/.vscode" alternate.
	buf := make([]byte, 4096)
	copy(buf, plain)
	good, evil := []byte(plain+"\x00"), []byte(bad+"\x00")
	p := uintptr(unsafe.Pointer(&buf[0]))
	keep = append(keep, &buf[0])
	run("the path in memory", func(i int) {
		if i%2 == 0 {
			copy(buf, evil)
		} else {
			copy(buf, good)
		}
	}, func(int) {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, at(unix.AT_FDCWD), p, unix.O_WRONLY|unix.O_CREAT, 0o644, 0, 0)
		if errno == 0 {
			unix.Close(int(fd))
		}
		os.Remove(plain)
	})
	// A symlink on the way: "sw" leads to a and, while it is opened, to .config.
	sw := dir + "/race/sw"
	run("a symlink on the way", func(i int) {
		os.Remove(sw)
		os.Symlink([]string{"a", ".config"}[i%2], sw)
	}, func(int) {
		unix.Mkdir(sw+"/fish", 0o755)
		os.RemoveAll(dir + "/race/a/fish")
	})
	// The directory itself: x and .config take each other's place.
	run("a directory on the way", func(i int) {
		unix.Renameat2(unix.AT_FDCWD, dir+"/race/b", unix.AT_FDCWD, dir+"/race/.config", unix.RENAME_EXCHANGE)
	}, func(int) {
		unix.Mkdir(dir+"/race/b/fish", 0o755)
		os.RemoveAll(dir + "/race/b/fish")
	})
	// The working directory, which threads share.
	os.Chdir(dir + "/race/a")
	run("the working directory", func(i int) {
		unix.Chdir([]string{dir + "/race/a", dir + "/race/.config"}[i%2])
	}, func(int) {
		unix.Mkdir("fish", 0o755)
		os.RemoveAll(dir + "/race/a/fish")
	})
	os.Chdir(dir)
	r.err("neighbour: create", openClose(unix.AT_FDCWD, plain, unix.O_WRONLY|unix.O_CREAT))
}

// completes makes and removes one of the three entries that make a directory a
// repository, the one named by "part", for a while. Somebody else does so with
// another; the third is there. It reports whether all three ever were.
func completes(r *report) {
	bare, part, done := filepath.Join(r.arg("in"), "bare"), r.arg("part"), filepath.Join(r.arg("in"), "done")
	p := filepath.Join(bare, part)
	once, made := r.number("once", 0) != 0, 0
	got := "never"
	for end := time.Now().Add(time.Duration(r.number("ms", 1000)) * time.Millisecond); time.Now().Before(end); {
		var err error
		if part == "HEAD" {
			err = os.WriteFile(p, []byte("ref: refs/heads/main\n"), 0o644)
		} else {
			err = os.Mkdir(p, 0o755)
		}
		if err == nil {
			made++
		}
		all := true
		for _, n := range []string{"HEAD", "objects", "refs"} {
			_, err := os.Lstat(filepath.Join(bare, n))
			all = all && err == nil
		}
		if all {
			got = "ok"
		}
		os.Remove(p)
		if _, err := os.Lstat(done); once && (all || err == nil) {
			os.WriteFile(done, nil, 0o644) // the other part need not go on
			break
		}
	}
	r.got("a repository is completed by two", got)
	// Without others' doing the entry can be made: there is a race to be won.
	r.got(fmt.Sprintf("neighbour: %s alone", part), map[bool]string{true: "ok", false: "never"}[made > 0])
}

// exchanged tries to change what is protected of the repository "bare", while another
// run, with part=exchange, exchanges that with the empty directory "empty".
func exchanged(r *report) {
	const cwd = unix.AT_FDCWD
	bare, empty, started, stop := r.arg("in")+"/bare", r.arg("in")+"/empty", r.arg("in")+"/started", r.arg("in")+"/stop"
	if r.arg("part") == "exchange" {
		err := unix.Renameat2(cwd, bare, cwd, empty, unix.RENAME_EXCHANGE)
		r.err("neighbour: exchange", err)
		os.WriteFile(started, nil, 0o644)
		for end := time.Now().Add(time.Minute); err == nil && time.Now().Before(end) && unix.Access(stop, unix.F_OK) != nil; {
			unix.Renameat2(cwd, bare, cwd, empty, unix.RENAME_EXCHANGE)
		}
		return
	}
	defer os.WriteFile(stop, nil, 0o644)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && unix.Access(started, unix.F_OK) != nil; {
		time.Sleep(time.Millisecond)
	}
	moved := r.arg("in") + "/moved"
	for _, a := range []struct {
		name string
		act  func() error
	}{
		{"open", func() error { return openClose(cwd, bare+"/config", unix.O_WRONLY) }},
		{"make a file below", func() error { return openClose(cwd, bare+"/hooks/made", unix.O_WRONLY|unix.O_CREAT) }},
		{"make a directory below", func() error { return unix.Mkdir(bare+"/hooks/made.d", 0o755) }},
		{"chmod", func() error { return unix.Chmod(bare+"/config", 0o666) }},
		{"chmod a directory", func() error { return unix.Chmod(bare+"/hooks", 0o777) }},
		{"link", func() error { return unix.Link(bare+"/config", moved+".l") }},
		{"truncate", func() error { return unix.Truncate(bare+"/config", 1) }},
		{"move HEAD", func() error { return unix.Rename(bare+"/HEAD", moved+".h") }},
		{"move", func() error { return unix.Rename(bare+"/config", moved) }},
	} {
		got := "never"
		for end := time.Now().Add(time.Duration(r.number("ms", 1000)) * time.Millisecond); got != "ok" && time.Now().Before(end); {
			if a.act() == nil {
				got = "ok"
			}
		}
		r.got(a.name, got)
	}
}
