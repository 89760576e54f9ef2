//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// create makes a new file and says what that got.
func create(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// openFor opens an existing file and changes nothing.
func openFor(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// read reads a file's first bytes, or lists a directory.
func read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.IsDir() {
		_, err := f.Readdirnames(1)
		if err == io.EOF {
			return fmt.Errorf("empty")
		}
		return err
	}
	_, err = f.Read(make([]byte, 1))
	if err == io.EOF {
		return fmt.Errorf("empty")
	}
	return err
}

// f01 writes where the system lives. dirs are the directories, file and other
// are existing files.
func f01(r *report) {
	for dir := range strings.SplitSeq(r.arg("dirs"), ",") {
		r.err("create in "+dir, create(filepath.Join(dir, r.arg("name"))))
	}
	file := r.arg("file")
	r.err("open for writing", openFor(file, unix.O_WRONLY))
	r.err("open for appending", openFor(file, unix.O_WRONLY|unix.O_APPEND))
	r.err("mkdir", unix.Mkdir(file+".dir", 0o755))
	r.err("symlink", unix.Symlink("x", file+".link"))
	r.err("link", unix.Link(file, file+".hard"))
	r.err("chmod", unix.Chmod(file, 0o666))
	r.err("utimes", unix.UtimesNano(file, []unix.Timespec{{Sec: 1}, {Sec: 1}}))
	r.err("setxattr", unix.Setxattr(file, "user.sbxrun", []byte("x"), 0))
	r.err("truncate", unix.Truncate(file, 0))
	r.err("rename", unix.Rename(file, file+".moved"))
	r.err("unlink", unix.Unlink(r.arg("other")))
	r.err("neighbour: create in the workspace", create(filepath.Join(r.arg("ws"), r.arg("name"))))
	r.err("neighbour: create in /tmp", create(filepath.Join("/tmp", r.arg("name"))))
	r.err("neighbour: create in HOME", create(filepath.Join(os.Getenv("HOME"), r.arg("name"))))
	os.Remove(filepath.Join("/tmp", r.arg("name")))
	os.Remove(filepath.Join(os.Getenv("HOME"), r.arg("name")))
}

// f02 reads what is secret: every argument named secret.NAME, straight and
// around corners. It serves V10 as well.
func f02(r *report) {
	if f := r.arg("wait"); f != "" {
		waitFor(r.arg("ready"), f)
	}
	for _, k := range sortedKeys(r.args, "secret.") {
		path := r.args[k]
		name := strings.TrimPrefix(k, "secret.")
		r.err("read "+name, read(path))
		r.err("read "+name+" by /proc/self/cwd", read("/proc/self/cwd/../../../../../../../.."+path))
		r.err("read "+name+" by /proc/1/root", read("/proc/1/root"+path))
	}
	own := filepath.Join(os.Getenv("HOME"), ".sbxrun-own")
	err := os.WriteFile(own, []byte("x"), 0o600)
	if err == nil {
		err = read(own)
		os.Remove(own)
	}
	r.err("neighbour: a file of its own in HOME", err)
	r.err("neighbour: read the workspace", read(r.arg("ws")))
}

// sortedKeys are the arguments with a prefix, in order.
func sortedKeys(m map[string]string, prefix string) []string {
	var keys []string
	for k := range m {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// f03 writes through symlinks in the workspace that lead outside: those that it
// makes itself, and the one named host-link that was there before.
func f03(r *report) {
	ws, outside := r.arg("ws"), r.arg("outside")
	link := func(name, target string) string {
		p := filepath.Join(ws, name)
		os.Remove(p)
		if err := os.Symlink(target, p); err != nil {
			r.err("symlink "+name, err)
		}
		return p
	}
	rel, _ := filepath.Rel(ws, outside)
	file := link("file-link", filepath.Join(outside, "canary"))
	dir := link("dir-link", outside)
	dots := link("dots-link", rel)
	proc := link("proc-link", "/proc/1/root"+outside)
	cwd := link("cwd-link", "/proc/self/cwd/"+rel)
	r.err("write a file link", openFor(file, unix.O_WRONLY|unix.O_TRUNC))
	r.err("write the host's link", openFor(filepath.Join(ws, "host-link"), unix.O_WRONLY|unix.O_TRUNC))
	r.err("truncate a file link", unix.Truncate(file, 0))
	r.err("chmod a file link", unix.Chmod(file, 0o777))
	for _, l := range []string{dir, dots, proc, cwd} {
		r.err("create below "+filepath.Base(l), create(filepath.Join(l, "new-"+filepath.Base(l))))
	}
	r.err("rename into a directory link", unix.Rename(file, filepath.Join(dir, "moved")))
	r.err("unlink below a directory link", unix.Unlink(filepath.Join(dir, "victim")))
	own := filepath.Join(ws, "own")
	r.err("neighbour: create in the workspace", create(own))
	link("own-link", own)
	r.err("neighbour: write a link that stays inside", openFor(filepath.Join(ws, "own-link"), unix.O_WRONLY|unix.O_TRUNC))
}

// f11 makes hard links to files outside the workspace.
func f11(r *report) {
	ws := r.arg("ws")
	canary := filepath.Join(r.arg("outside"), "canary")
	r.err("link", unix.Link(canary, filepath.Join(ws, "l1")))
	fd, err := unix.Open(canary, unix.O_PATH, 0)
	if err == nil {
		r.err("link by /proc/self/fd", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, filepath.Join(ws, "l2"), unix.AT_SYMLINK_FOLLOW))
		r.err("link by AT_EMPTY_PATH", unix.Linkat(fd, "", unix.AT_FDCWD, filepath.Join(ws, "l3"), unix.AT_EMPTY_PATH))
		unix.Close(fd)
	} else {
		r.err("link by /proc/self/fd", err)
		r.err("link by AT_EMPTY_PATH", err)
	}
	r.err("rename", unix.Rename(canary, filepath.Join(ws, "l4")))
	own := filepath.Join(ws, "own")
	create(own)
	r.err("neighbour: link in the workspace", unix.Link(own, filepath.Join(ws, "own-link")))
	r.err("neighbour: read the outside file", read(filepath.Join(r.arg("outside"), "second")))
}

// f13 makes device nodes, and opens one that the host made in the workspace.
func f13(r *report) {
	ws := r.arg("ws")
	null := int(unix.Mkdev(1, 3))
	r.err("mknod char", unix.Mknod(filepath.Join(ws, "char"), unix.S_IFCHR|0o666, null))
	r.err("mknod block", unix.Mknod(filepath.Join(ws, "block"), unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))))
	tmp := filepath.Join("/tmp", r.arg("name"))
	r.err("mknod in /tmp", unix.Mknod(tmp, unix.S_IFCHR|0o666, null))
	os.Remove(tmp)
	if node := r.arg("node"); node != "" {
		r.err("open the host's node", openFor(node, unix.O_RDWR))
	}
	r.err("neighbour: mkfifo", unix.Mkfifo(filepath.Join(ws, "fifo"), 0o600))
	r.err("neighbour: open /dev/null", openFor("/dev/null", unix.O_RDWR))
}

// f15 makes a set-user-id copy of itself, and runs it and the one that the host
// prepared.
func f15(r *report) {
	copyOf := filepath.Join(r.arg("ws"), "setuid")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(copyOf, b, 0o755)
	}
	r.err("neighbour: copy a program", err)
	// Refused or not, what counts is what the file is worth, inside and, when
	// the run has ended, on the host.
	unix.Chmod(copyOf, 0o4755)
	unix.Fchmodat(unix.AT_FDCWD, copyOf, 0o6755, 0)
	if fd, err := unix.Open(copyOf, unix.O_RDONLY, 0); err == nil {
		unix.Fchmod(fd, 0o6755)
		unix.Syscall6(unix.SYS_FCHMODAT2, uintptr(fd), bytePtr(""), 0o6755, unix.AT_EMPTY_PATH, 0, 0)
		unix.Close(fd)
	}
	if fd, err := unix.Open(copyOf+"-born", unix.O_WRONLY|unix.O_CREAT, 0o6755); err == nil {
		unix.Write(fd, b)
		unix.Close(fd)
	}
	run := func(name, path string) {
		cmd := self("ids")
		cmd.Path = path
		m, err := askSelf(cmd)
		switch {
		case err != nil:
			r.got(name, "no run: "+err.Error())
		case m["euid"] != fmt.Sprint(os.Geteuid()) || m["egid"] != fmt.Sprint(os.Getegid()):
			r.got(name, "became "+m["euid"]+":"+m["egid"])
		case m["CapEff"] != statusOf("self", "CapEff"):
			r.got(name, "gained "+m["CapEff"])
		default:
			r.got(name, "nothing gained")
		}
	}
	run("own copy", copyOf)
	for _, k := range sortedKeys(r.args, "prepared.") {
		run(strings.TrimPrefix(k, "prepared."), r.args[k])
	}
}

// f16 writes the programs that run: its own, and the one that built the sandbox
// (CVE-2019-5736).
func f16(r *report) {
	r.err("write /proc/self/exe", openFor("/proc/self/exe", unix.O_WRONLY))
	r.err("read /proc/1/exe", openFor("/proc/1/exe", unix.O_RDONLY))
	r.err("write /proc/1/exe", openFor("/proc/1/exe", unix.O_WRONLY))
	r.err("take a path descriptor of /proc/1/exe", openFor("/proc/1/exe", unix.O_PATH))
	r.err("execute /proc/1/exe", execAsChild("/proc/1/exe"))
	r.err("map_files of 1", read("/proc/1/map_files"))
	if p := r.arg("sbxrun"); p != "" {
		r.err("write the binary by path", openFor(p, unix.O_WRONLY))
	}
	r.err("neighbour: read /proc/self/exe", openFor("/proc/self/exe", unix.O_RDONLY))
}

// openAny opens a file of a directory that has numbers for names, and returns
// nil if any can be opened.
func openAny(dir string) error {
	var err error
	for n := range 256 {
		e := openFor(fmt.Sprintf("%s/%d", dir, n), unix.O_RDONLY)
		if e == nil {
			return nil
		}
		if err == nil || err == unix.ENOENT {
			err = e
		}
	}
	return err
}

func execAsChild(path string) error {
	cmd := self("exit", "code=0")
	cmd.Path = path
	return cmd.Run()
}

// f18 opens the kernel's switches for writing, and writes nothing.
func f18(r *report) {
	for p := range strings.SplitSeq(r.arg("paths"), ",") {
		r.err("write "+p, openFor(p, unix.O_WRONLY))
	}
	for _, p := range []string{"/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/port", "/sys/kernel/debug/sched", "/sys/fs/bpf/x"} {
		r.err("read "+p, openFor(p, unix.O_RDONLY))
	}
	r.err("neighbour: read /proc/sys/kernel/ostype", read("/proc/sys/kernel/ostype"))
	r.err("neighbour: read /proc/self/status", read("/proc/self/status"))
}

// f19 takes mounts away, or gives them rights back. dirs are mount points that
// are read-only.
func f19(r *report) {
	for dir := range strings.SplitSeq(r.arg("dirs"), ",") {
		r.err("remount "+dir, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
		r.call("mount_setattr "+dir, unix.SYS_MOUNT_SETATTR, at(unix.AT_FDCWD), bytePtr(dir), 0x8000 /* AT_RECURSIVE */, ptr(mountAttr(0, unix.MOUNT_ATTR_RDONLY)), 32)
		// /proc/self is a directory with nothing mounted below it, which would
		// keep it from being bound without that.
		r.err("bind over "+dir, unix.Mount("/proc/self", dir, "", unix.MS_BIND, ""))
		r.err("umount "+dir, unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		r.err("umount "+dir+" again", unix.Unmount(dir, unix.MNT_DETACH))
	}
	r.err("neighbour: read mountinfo", read("/proc/self/mountinfo"))
	var st unix.Statfs_t
	r.err("neighbour: statfs", unix.Statfs("/", &st))
}

// mountAttr is a struct mount_attr; see mount_setattr(2).
func mountAttr(set, clear uint64) []byte {
	b := make([]byte, 32)
	for i := range 8 {
		b[i] = byte(set >> (8 * i))
		b[8+i] = byte(clear >> (8 * i))
	}
	return b
}

// f21 looks for what sbxrun knows: its policy, its filter, its memory, and the
// state that it keeps in files.
func f21(r *report) {
	for _, k := range sortedKeys(r.args, "state.") {
		r.err("read "+strings.TrimPrefix(k, "state."), read(r.args[k]))
		r.err("write "+strings.TrimPrefix(k, "state."), openFor(r.args[k], unix.O_WRONLY))
	}
	for _, f := range []string{"environ", "maps", "auxv", "stack", "syscall", "cwd/.", "root/."} {
		r.err("read /proc/1/"+f, read("/proc/1/"+f))
	}
	r.err("open /proc/1/mem", openFor("/proc/1/mem", unix.O_RDONLY))
	r.err("open a descriptor of 1", openAny("/proc/1/fd"))
	r.err("read the position of a descriptor of 1", openAny("/proc/1/fdinfo"))
	// Index 0 is the newest filter; see PTRACE_SECCOMP_GET_FILTER in ptrace(2).
	r.call("read the filter of 1", unix.SYS_PTRACE, 0x420c, 1, 0, 0)
	r.forked("read the filter of its own parent", unix.SYS_PTRACE, 0x420c, uintptr(os.Getpid()), 0, 0)
	cmdline, err := os.ReadFile("/proc/1/cmdline")
	found := "not there"
	if secret := r.arg("cmdline"); err == nil && secret != "" && strings.Contains(string(cmdline), secret) {
		found = "there"
	}
	r.got("the policy's path in the command line of 1", found)
	r.err("neighbour: read /proc/self/environ", read("/proc/self/environ"))
	r.err("neighbour: read /proc/self/maps", read("/proc/self/maps"))
}
