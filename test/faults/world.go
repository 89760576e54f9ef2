//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchies are the mounts of cgroups: their places and what they are mounted with.
func hierarchies() (list [][2]string) {
	b, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 4 || !strings.HasPrefix(f[1], "/sys/fs/cgroup"):
		case f[2] == "cgroup2":
			list = append(list, [2]string{f[1], ""})
		case f[2] == "cgroup":
			options := slices.DeleteFunc(strings.Split(f[3], ","), func(o string) bool {
				return slices.Contains([]string{"rw", "ro", "relatime", "nosuid", "nodev", "noexec"}, o) || strings.HasPrefix(o, "release_agent")
			})
			if o := strings.Join(options, ","); strings.HasPrefix(o, "name=") {
				list = append(list, [2]string{f[1], "none," + o})
			} else {
				list = append(list, [2]string{f[1], o})
			}
		}
	}
	return list
}

// outside makes the groups and the namespaces, and waits for what is in them.
func outside() error {
	if os.Geteuid() != 0 {
		return errors.New("it makes namespaces and groups of its own: run it as root")
	}
	name := fmt.Sprintf("/sbxrun-faults-%d", os.Getpid())
	home := map[string]string{}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			home[f[1]] = f[2]
		}
	}
	if all := hierarchies(); len(all) == 1 && all[0][1] == "" {
		// As systemd does; without it, a group has no limits.
		write(all[0][0]+"/cgroup.subtree_control", "+memory +pids +cpu")
	}
	var made []string
	back := func() {
		for _, h := range hierarchies() {
			controller, _ := strings.CutPrefix(h[1], "none,")
			write(h[0]+home[controller]+"/cgroup.procs", strconv.Itoa(os.Getpid()))
		}
	}
	defer func() {
		back()
		for _, dir := range made {
			within(5*time.Second, func() bool { rmdirs(dir); _, err := os.Stat(dir); return err != nil })
		}
	}()
	for _, h := range hierarchies() {
		dir := h[0] + name
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		made = append(made, dir)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(h[0] + "/" + file); err == nil && h[1] != "" {
				write(dir+"/"+file, strings.TrimSpace(string(value)))
			}
		}
		for file, limit := range map[string]string{"memory.limit_in_bytes": "6442450944", "memory.max": "6442450944", "pids.max": "5000"} {
			if _, err := os.Stat(dir + "/" + file); err == nil {
				if err := write(dir+"/"+file, limit); err != nil {
					return err
				}
			}
		}
		if err := write(dir+"/cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Pdeathsig:  syscall.SIGKILL, Setsid: true,
	}
	if err := c.Start(); err != nil {
		return err
	}
	back() // on v2, a group that hands controllers down has no process
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		c.Process.Kill() // process 1, and so all of it
	}()
	return c.Wait()
}

// rmdirs removes a group and those below it.
func rmdirs(dir string) {
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != dir {
			rmdirs(path)
			return fs.SkipDir
		}
		return nil
	})
	unix.Rmdir(dir)
}

// A world is where all of it happens.
type world struct {
	dir, bin, ws        string
	groups              []string // where cgroups are mounted
	unified             string
	memory, memoryLimit string
	count               int
}

// written are the directories in which files are left.
var written = []string{"/tmp", "/var/tmp", "/run", "/root", "/dev/shm"}

func newWorld() (*world, error) {
	w := &world{dir: "/tmp/faults", bin: "/tmp/faults/bin", ws: "/tmp/faults/ws"}
	programs := map[string][]byte{}
	for _, name := range []string{"sbxrun", "sbxrun-serve", "sbxrun-mcp"} {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(*program), name))
		if err != nil {
			return nil, err
		}
		programs[name] = b
	}
	if *judge == "" {
		*judge, _ = exec.LookPath("go-judge")
	}
	if b, err := os.ReadFile(*judge); err == nil {
		programs["go-judge"] = b
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, err
	}
	cgroups := hierarchies()
	for _, h := range slices.Backward(cgroups) {
		if err := unix.Unmount(h[0], unix.MNT_DETACH); err != nil {
			return nil, fmt.Errorf("unmount %s: %w", h[0], err)
		}
	}
	for _, h := range cgroups {
		kind := "cgroup"
		if h[1] == "" {
			kind, w.unified = "cgroup2", h[0]
		}
		if err := unix.Mount(kind, h[0], kind, 0, h[1]); err != nil {
			return nil, fmt.Errorf("mount %s: %w", h[0], err)
		}
		w.groups = append(w.groups, h[0])
		if slices.Contains(strings.Split(h[1], ","), "memory") {
			w.memory, w.memoryLimit = h[0], "memory.limit_in_bytes"
		}
	}
	if w.unified == "" {
		return nil, errors.New("there is no cgroup v2")
	}
	if len(cgroups) == 1 {
		// Who has children with controllers has no process.
		os.Mkdir(w.unified+"/harness", 0o755)
		if err := write(w.unified+"/harness/cgroup.procs", "1"); err != nil {
			return nil, err
		}
		var err error
		if !within(5*time.Second, func() bool { err = write(w.unified+"/cgroup.subtree_control", "+memory +pids +cpu"); return err == nil }) {
			return nil, err
		}
		w.memory, w.memoryLimit = w.unified, "memory.max"
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return nil, err
	}
	for _, dir := range written {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=1777,size=1g"); err != nil {
			return nil, fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	os.Chmod("/root", 0o700)
	os.Chmod("/run", 0o755)
	if err := errors.Join(os.MkdirAll(w.bin, 0o755), os.MkdirAll(w.ws, 0o755), os.Mkdir("/run/lock", 0o1777)); err != nil {
		return nil, err
	}
	for name, b := range programs {
		if err := os.WriteFile(filepath.Join(w.bin, name), b, 0o755); err != nil {
			return nil, err
		}
	}
	// Firejail takes a place without threads of the kernel, among the first ten numbers,
	// for a sandbox, and makes none.
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte("1"), 0); err != nil {
		return nil, err
	}
	var err error
	if thread, err = start([]string{"/proc/self/exe", "-thread"}, nil, nil, -1); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *world) server(i *item) string {
	if i == nil || i.contender.name != "sbxrun-serve" {
		return "none"
	}
	return "/run/server"
}

func (w *world) env(i *item) []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "SBXRUN_SERVER=" + w.server(i)}
}

// run runs a program to its end. Processes are waited for in one place only: [reap].
func (w *world) run(argv []string, limit time.Duration) error {
	r, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	pid, err := start(argv, w.env(nil), out, -1)
	out.Close()
	if err != nil {
		return err
	}
	if !within(limit, func() bool { return !living(pid) }) {
		syscall.Kill(pid, syscall.SIGKILL)
		return fmt.Errorf("%s: not done in %v", argv[0], limit)
	}
	if status := ended[pid]; !status.Exited() || status.ExitStatus() != 0 {
		said := make([]byte, 2048)
		r.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, _ := r.Read(said)
		return fmt.Errorf("%s: status %#x: %s", argv[0], status, bytes.TrimSpace(said[:n]))
	}
	return nil
}

// start starts a program in a process group of its own, with what it says in out, and
// in a group of cgroup v2, unless that is -1.
func start(argv, env []string, out *os.File, group int) (int, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	if out == nil {
		out = null
	}
	attr := &syscall.ProcAttr{Dir: "/tmp/faults/ws", Env: env, Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	if group >= 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, group
	}
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", argv[0], err)
	}
	delete(ended, pid)
	return pid, nil
}

// ended are the children that were waited for; this is process 1, and so everybody's
// parent in the end.
var ended = map[int]syscall.WaitStatus{}

func reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if pid <= 0 || err != nil {
			return
		}
		ended[pid] = status
	}
}

func living(pid int) bool {
	reap()
	p, ok := read(pid)
	return ok && p.state != "Z" && p.state != "X"
}

type process struct {
	pid, parent int
	name, state string
	pids        []int // in each pid namespace, from this one's
}

func read(pid int) (p process, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return p, false
	}
	p.pid = pid
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			p.name = value
		case "State":
			p.state = value[:1]
		case "PPid":
			p.parent, _ = strconv.Atoi(value)
		case "NSpid":
			for f := range strings.FieldsSeq(value) {
				n, _ := strconv.Atoi(f)
				p.pids = append(p.pids, n)
			}
		}
	}
	return p, true
}

// thread is the process that passes for one of the kernel's.
var thread int

// processes are all that live in this world but for this one.
func processes() (list []process) {
	reap()
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 || pid == thread {
			continue
		}
		if p, ok := read(pid); ok && p.state != "Z" && p.state != "X" {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b process) int { return a.pid - b.pid })
	return list
}

// look lists all there is.
func (w *world) look() (l left) {
	for _, p := range processes() {
		l.processes = append(l.processes, fmt.Sprintf("%d %s", p.pid, p.name))
	}
	for _, top := range w.groups {
		filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			// The callers' own are the harness's.
			if err == nil && d.IsDir() && path != top && !(filepath.Dir(path) == top && strings.HasPrefix(d.Name(), "c") && strings.Trim(d.Name(), "c0123456789") == "") {
				l.groups = append(l.groups, path)
			}
			return nil
		})
	}
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		l.mounts = append(l.mounts, f[0]+" "+f[4])
	}
	for _, dir := range written {
		var top unix.Stat_t
		unix.Lstat(dir, &top)
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err != nil || unix.Lstat(path, &st) != nil {
				return nil
			}
			if path != dir {
				l.files = append(l.files, path)
			}
			if st.Dev != top.Dev && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		})
	}
	return l
}

func (l left) minus(known left) left {
	drop := func(list, known []string) []string {
		set := map[string]bool{}
		for _, k := range known {
			set[k] = true
		}
		return slices.DeleteFunc(list, func(s string) bool { return set[s] })
	}
	return left{drop(l.processes, known.processes), drop(l.groups, known.groups), drop(l.mounts, known.mounts), drop(l.files, known.files)}
}

// clean makes the world what it was.
func (w *world) clean(known left) {
	if !within(20*time.Second, func() bool {
		for _, p := range w.look().minus(known).processes {
			pid, _, _ := strings.Cut(p, " ")
			if n, _ := strconv.Atoi(pid); n > 1 {
				syscall.Kill(n, syscall.SIGKILL)
			}
		}
		return len(w.look().minus(known).processes) == 0
	}) {
		fatal(fmt.Errorf("cannot be killed: %q", w.look().minus(known).processes))
	}
	found := w.look()
	if known.mounts != nil {
		found = found.minus(known)
		for _, m := range slices.Backward(found.mounts) {
			_, at, _ := strings.Cut(m, " ")
			unix.Unmount(at, unix.MNT_DETACH)
		}
		for _, f := range slices.Backward(found.files) {
			os.RemoveAll(f)
		}
		for _, g := range slices.Backward(found.groups) {
			unix.Rmdir(g)
		}
	}
	for _, top := range w.groups {
		for _, dir := range glob(top + "/c[0-9]*") {
			rmdirs(dir)
		}
	}
}
