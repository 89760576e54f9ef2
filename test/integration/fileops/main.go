//go:build linux

// Fileops performs random file operations and says what each got, so that a
// sandbox with the guard can be compared with one whose kernel does the same
// alone.
//
//	fileops perform ROOT <JOBS   performs each job, and prints its results
//	fileops check ROOT <JOBS     the same, after results that the guard gave, and compares
//	fileops race ROOT <JOBS      two processes perform each job at once
//	fileops make UID DIR…        makes trees that jobs begin with, a user's
//	fileops tree DIR…            prints trees, whole
//	fileops protected DIR…       prints what the model protects in trees
//	fileops describe OPERATIONS  says what numbers stand for
//
// A job is a line: the name of its directory below ROOT, the operations, as
// numbers of eight hexadecimal digits, and for check the results that the guard
// gave, separated by tabs. An operation's number is the seed of all that is
// random in it, so that every part of a sequence is a sequence.
//
// What is protected is not compared with the kernel: check asks a model
// (model.go), written after docs/profiles.md and not after the guard.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "fileops perform|check|race|make|tree DIR")
		os.Exit(2)
	}
	switch mode, dir := os.Args[1], os.Args[2]; mode {
	case "make":
		for _, d := range os.Args[3:] {
			plant(d, dir)
		}
	case "tree", "protected":
		for _, d := range os.Args[2:] {
			if mode == "tree" {
				fmt.Print(tree(d))
			} else {
				fmt.Print(protected(d))
			}
			fmt.Print("\x00")
		}
	case "describe":
		p := newProcess("")
		for _, n := range decodeNumbers(dir) {
			fmt.Println(p.decode(n))
		}
	case "race":
		race(dir)
	case "perform", "check", "racer":
		runtime.LockOSThread()
		signal.Ignore(unix.SIGXFSZ, unix.SIGPIPE)
		perform(mode, dir)
	}
}

// read reads jobs without an os.File, which would have descriptors of its own.
func read() [][]string {
	var all []byte
	b := make([]byte, 1<<16)
	for {
		n, err := unix.Read(0, b)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			break
		}
		all = append(all, b[:n]...)
	}
	var jobs [][]string
	for line := range strings.Lines(string(all)) {
		jobs = append(jobs, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return jobs
}

func decodeNumbers(s string) (numbers []uint32) {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	for ; len(b) >= 4; b = b[4:] {
		numbers = append(numbers, binary.BigEndian.Uint32(b))
	}
	return numbers
}

// private is where a job has files of its own outside the workspace.
const private = "/tmp/private-fileops"

func perform(mode, root string) {
	p := newProcess(root)
	for _, job := range read() {
		p.begin(filepath.Join(root, job[0], "t"))
		if mode == "racer" {
			await()
		}
		guard := job[2:]
		var out strings.Builder
		out.WriteString(job[0])
		for i, n := range decodeNumbers(job[1]) {
			o := p.decode(n)
			if mode == "racer" {
				o.flags |= unix.O_NONBLOCK // a FIFO may come between a look and the call
				p.do(o)
				continue
			}
			var got string
			if mode == "perform" {
				got = p.do(o)
			} else {
				got = p.compare(o, guard[i])
			}
			out.WriteString("\t" + got)
			if strings.HasPrefix(got, "!") || strings.HasPrefix(got, "#") {
				break
			}
		}
		if mode != "racer" {
			// What lies outside the workspace is seen from in here only.
			if t := tree(private); mode == "perform" {
				out.WriteString("\t" + hex.EncodeToString([]byte(t)))
			} else if want, _ := hex.DecodeString(guard[len(guard)-1]); !strings.Contains(out.String(), "\t!") && !strings.Contains(out.String(), "\t#") && string(want) != t {
				fmt.Fprintf(&out, "\t!private tree\x01the private tree under the guard:\n%sand without:\n%s", want, t)
			}
			out.WriteString("\x00")
		}
		p.finish(mode)
		for b := []byte(out.String()); len(b) > 0; {
			n, err := unix.Write(1, b)
			if err != nil {
				panic(err)
			}
			b = b[n:]
		}
	}
}

// await tells race that this process stands where its job begins, and waits for the
// other, whose operations could keep it from getting there.
func await() {
	const ready, start = 3, 4
	unix.Close(ready)
	for {
		if _, err := unix.Read(start, make([]byte, 1)); err != unix.EINTR {
			break
		}
	}
	unix.Close(start)
}

// race has two processes perform each job's two halves at once.
func race(root string) {
	jobs := read()
	for _, job := range jobs {
		var racers []*exec.Cmd
		half := len(job[1]) / 16 * 8
		ready, isReady, err := os.Pipe()
		if err != nil {
			panic(err)
		}
		start, started, err := os.Pipe()
		if err != nil {
			panic(err)
		}
		for i, part := range []string{job[1][:half], job[1][half:]} {
			// Not by its path: an operation can have closed a directory above it.
			c := exec.Command("/proc/self/exe", "racer", root)
			c.Env = append(os.Environ(), fmt.Sprintf("RACER=%d", i))
			c.Stdin, c.Stderr = strings.NewReader(job[0]+"\t"+part+"\n"), os.Stderr
			c.ExtraFiles = []*os.File{isReady, start}
			if err := c.Start(); err != nil {
				panic(err)
			}
			racers = append(racers, c)
		}
		isReady.Close()
		start.Close()
		ready.Read(make([]byte, 1)) // until both have closed it
		ready.Close()
		started.Close()
		for _, c := range racers {
			if err := c.Wait(); err != nil {
				panic(err)
			}
		}
	}
}

// others are users and groups that the tree has files of, if it is made by root.
const otherUser, otherGroup = 4321, 5432

// plant makes the tree that a job begins with: t, and below it everything; rw is
// what is shown at t/rw.
func plant(dir, owner string) {
	unix.Umask(0)
	check := func(err error) {
		if err != nil && os.Getuid() == 0 {
			panic(err)
		}
	}
	for _, d := range []string{"t", "rw", "t/a", "t/a/sub", "t/b", "t/empty", "t/vendor", "t/vendor/d", "t/secret", "t/rw", "t/.git/hooks", "t/.git/objects", "t/.git/refs", "t/.git/info", "t/.git/rebase-merge", "t/.git/worktrees/w", "t/bare/objects", "t/bare/refs", "t/bare/hooks",
		"t/.claude", "t/.config/nvim", "t/.config/git", "t/.config/plain", "t/b/.config", "t/group", "t/sticky", "t/nox", "rw/d", "rw/.claude"} {
		check(os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	for f, mode := range map[string]os.FileMode{"t/a/file": 0o644, "t/a/sub/f": 0o600, "t/b/file": 0o664, "t/c": 0o644, "t/hidden": 0o600, "t/secret/key": 0o600, "t/vendor/file": 0o644, "t/vendor/d/f": 0o644,
		"t/.git/config": 0o644, "t/.git/HEAD": 0o644, "t/.git/hooks/pre-commit": 0o755, "t/.git/index": 0o644, "t/.git/lock": 0o644, "t/.git/steps": 0o644, "t/.git/rebase-merge/done": 0o644, "t/.git/rebase-merge/git-rebase-todo": 0o644, "t/bare/lock": 0o600, "t/bare/config": 0o644, "t/bare/HEAD": 0o644, "t/.mcp.json": 0o644, "t/.claude/settings.json": 0o644,
		"t/.config/nvim/init.lua": 0o644, "t/.config/plain/f": 0o644, "t/b/.config/f": 0o644, "t/readonly": 0o444, "t/setuid": 0o755, "t/nox/f": 0o644, "t/sticky/mine": 0o644, "t/sticky/theirs": 0o666, "t/theirs": 0o644, "t/theirs-w": 0o666,
		"t/group/f": 0o664, "rw/file": 0o644, "rw/.mcp.json": 0o644, "rw/d/f": 0o644} {
		content := f + "\n"
		if strings.HasSuffix(f, "/HEAD") {
			content = "ref: refs/heads/main\n"
		} else if strings.HasSuffix(f, "/index") || strings.HasSuffix(f, "/lock") {
			content = goodIndex
		} else if strings.HasSuffix(f, "/steps") || strings.HasSuffix(f, "-todo") {
			content = goodSteps
		}
		check(os.WriteFile(filepath.Join(dir, f), []byte(content), mode))
	}
	for name, to := range map[string]string{"d": "a", "e": "c", "f": "missing", "g": "g", "i": "d/sub", "a/up": "../b", ".vscode": "b", "hook": ".git/hooks/pre-commit", "conf": ".config", "sticky/link": "../c", "mnt": "vendor"} {
		check(os.Symlink(to, filepath.Join(dir, "t", name)))
	}
	check(os.Link(filepath.Join(dir, "t/c"), filepath.Join(dir, "t/h")))
	check(unix.Mknod(filepath.Join(dir, "t/fifo"), unix.S_IFIFO|0o644, 0))
	check(unix.Mknod(filepath.Join(dir, "t/sock"), unix.S_IFSOCK|0o644, 0))
	unix.Setxattr(filepath.Join(dir, "t/b/file"), "user.x", []byte("value"), 0) // not on every file system
	check(os.Chmod(filepath.Join(dir, "t/nox"), 0o600))
	if os.Getuid() != 0 {
		return
	}
	uid := 0
	fmt.Sscan(owner, &uid)
	check(filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, uid, uid)
		}
		return err
	}))
	for _, name := range []string{"sticky", "sticky/theirs", "sticky/link", "theirs", "theirs-w"} {
		check(os.Lchown(filepath.Join(dir, "t", name), otherUser, otherUser))
	}
	check(os.Lchown(filepath.Join(dir, "t/group"), uid, otherGroup))
	check(os.Lchown(filepath.Join(dir, "t/group/f"), uid, otherGroup))
	check(unix.Chmod(filepath.Join(dir, "t/group"), 0o2775))
	check(unix.Chmod(filepath.Join(dir, "t/sticky"), 0o1777))
	check(unix.Chmod(filepath.Join(dir, "t/setuid"), 0o4755))
}

// now stands for every time that no operation chose.
func when(ts unix.Timespec) string {
	if ts.Sec > 1_500_000_000 {
		return "now"
	}
	return fmt.Sprintf("%d.%09d", ts.Sec, ts.Nsec)
}

// tree prints a tree: names, types, modes, owners, links, contents, attributes and
// the times that were set. What is protected by the model has a line of its own.
func tree(dir string) string {
	var b bytes.Buffer
	first := map[uint64]string{}
	var walk func(rel string)
	walk = func(rel string) {
		path := filepath.Join(dir, rel)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			fmt.Fprintf(&b, "%q %v\n", rel, err)
			return
		}
		fmt.Fprintf(&b, "%q %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			fmt.Fprintf(&b, " %d links %d bytes", st.Nlink, st.Size)
			if f, ok := first[st.Ino]; ok {
				fmt.Fprintf(&b, " is %q\n", f)
				return
			}
			first[st.Ino] = rel
		}
		// Who looks at a directory or follows a link sets its access time.
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			fmt.Fprintf(&b, " atime %s", when(st.Atim))
		}
		fmt.Fprintf(&b, " mtime %s", when(st.Mtim))
		if names, err := listxattr(path); err == nil {
			for _, n := range names {
				v := make([]byte, 4096)
				k, _ := unix.Lgetxattr(path, n, v)
				fmt.Fprintf(&b, " %s=%x", n, v[:max(k, 0)])
			}
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if c, err := content(path); err != nil {
				fmt.Fprintf(&b, " %v", err)
			} else {
				fmt.Fprintf(&b, " %q", c)
			}
		case unix.S_IFLNK:
			to, _ := os.Readlink(path)
			fmt.Fprintf(&b, " -> %q", to)
		}
		b.WriteString("\n")
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			entries, err := os.ReadDir(path)
			if err != nil {
				fmt.Fprintf(&b, "%v\n", err)
			}
			for _, e := range entries {
				walk(filepath.Join(rel, e.Name()))
			}
		}
	}
	walk(".")
	return strings.ReplaceAll(b.String(), dir, "DIR")
}

// content is a file's, short; what lies far in a file that is sparse counts too. A FIFO,
// which nobody waits for, has none.
func content(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOATIME|unix.O_NONBLOCK, 0)
	if err != nil {
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeNamedPipe != 0 {
		return "", err
	}
	c, err := io.ReadAll(io.LimitReader(f, 1<<21))
	return strings.ReplaceAll(string(c), strings.Repeat("\x00", 512), "0"), err
}

func listxattr(path string) ([]string, error) {
	b := make([]byte, 4096)
	n, err := unix.Llistxattr(path, b)
	if err != nil || n == 0 {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00")
	return sorted(slices.DeleteFunc(names, func(n string) bool { return n == "user.sbxrun.made" })), nil
}

// The name of an errno, "ok" for none.
func name(e syscall.Errno) string {
	if e == 0 {
		return "ok"
	}
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return fmt.Sprintf("errno %d", e)
}
