//go:build linux

// Stage sets up what a test runs in, and then runs it: another user, a cgroup
// that was delegated to it, throwaway namespaces, or a host that lacks one of
// the layers that sbxrun builds on.
//
// It is a program of its own, and not a part of the tests, because a Go process
// cannot change its namespaces or its ids for one of its threads and fork in
// safety; and because a stage can be set in a stage: each call does its steps in
// the order of the struct below and then runs the command, which may be stage
// again.
//
// With -jail the command runs as a child of stage, which is then process 1 of
// the new pid namespace and ends with the command: whatever an attack does to
// what it sees ends with it. Without, stage executes the command in its place.
//
// It does not judge: what a run showed is for the test to say.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// list is a flag that may be given many times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// A stage is what one call sets up, in this order.
type stage struct {
	cgroups list   // directories whose cgroup to enter
	uid     int    // user and group id to become; 0 leaves them
	jail    string // namespaces to create, comma separated
	inside  bool   // set in the re-executed half that is inside them

	// Only inside a jail.
	tmpfs   list // directories to cover with private, empty storage
	files   list // files to create in it
	ro      list // mounts to make read-only
	proc    bool // a fresh /proc
	limits  list // files below /proc/sys/user to write 0 to
	addrs   list // addresses to give to lo, which comes up
	listen  list // sockets to listen on, "tcp:127.0.0.1:80", "unix:/path", "unix:@name"
	linger  time.Duration
	count   string // after the command: report processes with this in their command line
	bystand bool   // run a bystander that an attack could hit
	thenUID int    // user to become once the jail stands

	answers list // system calls to answer with an errno, without doing them
}

func main() {
	var s stage
	flag.Var(&s.cgroups, "cgroup", "enter the cgroup `dir`")
	flag.IntVar(&s.uid, "uid", 0, "become this user and group")
	flag.StringVar(&s.jail, "jail", "", "create `namespaces`: user,pid,mnt,net,ipc,uts,cgroup")
	flag.BoolVar(&s.inside, "inside", false, "internal: the half inside the namespaces")
	flag.Var(&s.tmpfs, "tmpfs", "mount a tmpfs over `dir`")
	flag.Var(&s.files, "file", "create the file `path`")
	flag.Var(&s.ro, "ro", "remount `dir` read-only")
	flag.BoolVar(&s.proc, "proc", false, "mount a fresh /proc")
	flag.Var(&s.limits, "zero", "write 0 to /proc/sys/user/`name`")
	flag.Var(&s.addrs, "addr", "give lo the `address`")
	flag.Var(&s.listen, "listen", "listen on `network:address`")
	flag.DurationVar(&s.linger, "linger", 0, "live on for this long after the command")
	flag.StringVar(&s.count, "count", "", "report processes that carry this `text`, after the command")
	flag.BoolVar(&s.bystand, "bystander", false, "run a bystander; its pid replaces {bystander} in the command")
	flag.IntVar(&s.thenUID, "then-uid", 0, "become this user once the jail stands")
	flag.Var(&s.answers, "answer", "answer `ERRNO=call[:arg0|&mask],…` instead of the kernel")
	flag.Parse()
	if flag.NArg() == 0 {
		fail(errors.New("no command"))
	}
	// Ids and filters are the thread's, and execve carries them on.
	runtime.LockOSThread()
	fail(s.run(flag.Args()))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(99)
	}
}

func (s *stage) run(command []string) error {
	if s.jail != "" && !s.inside {
		for _, dir := range s.cgroups {
			if err := enter(dir); err != nil {
				return err
			}
		}
		if err := become(s.uid); err != nil {
			return err
		}
		return s.enterJail()
	}
	if s.inside {
		return s.stand(command)
	}
	for _, dir := range s.cgroups {
		if err := enter(dir); err != nil {
			return err
		}
	}
	if err := become(s.uid); err != nil {
		return err
	}
	if err := answer(s.answers); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("exec %s: %w", path, unix.Exec(path, command, os.Environ()))
}

// enter joins a cgroup, of either version: both have cgroup.procs.
func enter(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

// become drops every group and takes uid as user and group id, for good.
func become(uid int) error {
	if uid == 0 || uid == os.Getuid() {
		return nil
	}
	if err := unix.Setgroups(nil); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := unix.Setresgid(uid, uid, uid); err != nil {
		return fmt.Errorf("setresgid: %w", err)
	}
	if err := unix.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	// A change of ids takes /proc/self away from us, and with it the id maps of
	// a child; see PR_SET_DUMPABLE in prctl(2).
	return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
}

var namespaces = map[string]uintptr{
	"user": unix.CLONE_NEWUSER, "pid": unix.CLONE_NEWPID, "mnt": unix.CLONE_NEWNS, "net": unix.CLONE_NEWNET,
	"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP,
}

// enterJail runs stage again inside new namespaces and ends as that one ends.
func (s *stage) enterJail() error {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for name := range strings.SplitSeq(s.jail, ",") {
		flag, ok := namespaces[name]
		if !ok {
			return fmt.Errorf("no namespace %q", name)
		}
		attr.Cloneflags |= flag
	}
	if attr.Cloneflags&unix.CLONE_NEWUSER != 0 {
		// One id, so that an ordinary user may write the map as well; see
		// user_namespaces(7).
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		if os.Getuid() == 0 {
			// A user inside who is not root, for a stage that drops to one.
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
			attr.GidMappings = attr.UidMappings
			attr.GidMappingsEnableSetgroups = true
		}
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{"stage", "-inside"}, os.Args[1:]...),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: attr,
	}
	return s.finish(cmd)
}

// finish runs cmd and ends as it does, by exit code or by signal.
func (s *stage) finish(cmd *exec.Cmd) error {
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	s.after()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		os.Exit(128 + int(ws.Signal()))
	}
	os.Exit(cmd.ProcessState.ExitCode())
	return nil
}

// stand builds what the jail shows and runs the command in it.
func (s *stage) stand(command []string) error {
	if strings.Contains(s.jail, "mnt") {
		// Nothing that is mounted here may reach the host.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make / private: %w", err)
		}
	}
	if s.proc {
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
	}
	for _, dir := range s.tmpfs {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
		}
	}
	for _, f := range s.files {
		os.MkdirAll(filepath.Dir(f), 0o755)
		if err := os.WriteFile(f, []byte("from the stage\n"), 0o644); err != nil {
			return err
		}
	}
	for _, dir := range s.ro {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("remount %s: %w", dir, err)
		}
	}
	for _, name := range s.limits {
		if err := os.WriteFile("/proc/sys/user/"+name, []byte("0"), 0); err != nil {
			return err
		}
	}
	if strings.Contains(s.jail, "net") {
		if err := lo(s.addrs); err != nil {
			return err
		}
	}
	for _, l := range s.listen {
		if err := listen(l); err != nil {
			return err
		}
	}
	if s.bystand {
		b := exec.Command("/bin/sleep", "60")
		if err := b.Start(); err != nil {
			return err
		}
		defer b.Process.Kill()
		for i := range command {
			command[i] = strings.ReplaceAll(command[i], "{bystander}", fmt.Sprint(b.Process.Pid))
		}
		go func() { b.Wait(); fmt.Fprintln(os.Stderr, "stage: the bystander died") }()
	}
	// As process 1 of a pid namespace the kernel spares it, but the runtime of Go
	// ends it at a signal that it may not be ended by.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	attr := &syscall.SysProcAttr{}
	if s.thenUID != 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(s.thenUID), Gid: uint32(s.thenUID)}
	}
	if err := answer(s.answers); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: path, Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: attr}
	return s.finish(cmd)
}

// after does what was asked for when the command has ended.
func (s *stage) after() {
	if s.jail != "" && !s.inside {
		return
	}
	if s.linger > 0 {
		fmt.Fprintln(os.Stderr, "stage: the command ended")
		time.Sleep(s.linger)
	}
	if s.count != "" {
		n := 0
		cmdlines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range cmdlines {
			if f == fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
				continue
			}
			if b, _ := os.ReadFile(f); strings.Contains(string(b), s.count) {
				n++
			}
		}
		json.NewEncoder(os.Stderr).Encode(map[string]int{"survivors": n})
	}
}
