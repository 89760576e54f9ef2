package docker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/pty"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

// labelRun is on every container of this driver's; its value is the name.
const labelRun = "io.sbxrun.run"

// detach gives a client a session of its own: what the terminal sends to the
// caller's process group is sbxrun's to pass on, and it passes it to the
// container.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
}

// Start makes a container of the policy's image and starts the command in it.
func (d Driver) Start(ctx context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	begin := time.Now()
	if err := d.Check(p); err != nil {
		return nil, err
	}
	if len(stdio.Extra) != 0 {
		return nil, &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"descriptors beyond the standard streams"}}
	}
	c, err := d.find()
	if err != nil {
		return nil, err
	}
	// Four answers that do not depend on each other.
	var e *engine
	var askErr, imageErr error
	var image *imageConfig
	var host string
	var all sync.WaitGroup
	all.Go(func() { e, askErr = c.ask(ctx) })
	all.Go(func() { image, imageErr = c.image(ctx) })
	if !d.Podman {
		all.Go(func() { host, _ = c.output(ctx, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}") })
	}
	all.Wait()
	if askErr != nil {
		return nil, askErr
	}
	if err := d.lacking(p, e); err != nil {
		return nil, err
	}
	if !local(host) && len(p.Files) != 0 {
		return nil, &driver.UnsupportedError{Driver: d.Name(),
			Rules: []string{"files (the engine is at " + host + ", where this host's paths are other files)"},
			Fix:   "use an engine on this machine, or show nothing of it: --workspace none"}
	}
	if imageErr != nil {
		if !isMissing(imageErr) {
			// One that is here and takes the engine long is not another's to replace.
			return nil, &ImagePullError{Image: d.Image, Err: imageErr}
		}
		if err := c.pull(ctx); err != nil {
			return nil, err
		}
		if image, err = c.image(ctx); err != nil {
			return nil, &ImagePullError{Image: d.Image, Err: err}
		}
	}

	name, err := newName()
	if err != nil {
		return nil, &driver.SetupError{Driver: d.Name(), Err: err}
	}
	r := &container{c: c, name: name, policy: p, layers: d.layers(p, e), image: image, local: local(host)}
	r.degraded = p.Dispensable() &^ r.layers
	if err := r.guard(); err != nil {
		return nil, &driver.SetupError{Driver: d.Name(), Err: err}
	}
	fail := func(err error) (driver.Process, error) {
		if !r.late && r.remove() != nil {
			r.late = true
		}
		r.cleanup()
		r.unguard()
		return nil, err
	}
	if d.Podman {
		// What watches a container for podman leaves a file "oom" in the directory
		// that it was started in when the memory limit ended a process, and podman
		// does not find it there.
		if r.dir, err = rundir.Make(rundir.Parent(os.Geteuid()), "podman", nil); err == nil {
			err = os.WriteFile(r.dir.Path+"/hosts", []byte(hosts), 0o644)
		}
		if err != nil {
			return fail(&driver.SetupError{Driver: d.Name(), Err: err})
		}
	}
	// A client that is killed leaves the engine to finish what it asked for, after
	// the container was looked for in vain: making it is not interrupted.
	if err := r.create(context.WithoutCancel(ctx), e, stdio.Stdin != nil); err != nil {
		return fail(err)
	}
	if err := r.sound(ctx, e); err != nil {
		return fail(err)
	}
	if err := r.orElse(ctx, e, stdio.Stdin != nil, stdio.Else); err != nil {
		return fail(err)
	}
	if err := ctx.Err(); err != nil {
		return fail(&driver.SetupError{Driver: d.Name(), Err: err})
	}
	if stdio.Starting != nil {
		stdio.Starting()
	}
	args := []string{"start", "--attach"}
	tty := p.OCI.Process.Terminal
	if stdio.Stdin != nil || tty {
		args = append(args, "--interactive", "--detach-keys", detachKeys)
	}
	// Signals reach the container by its name: this client gets none.
	r.client = exec.Command(c.path, append(args, name)...)
	r.client.Env = c.env
	detach(r.client)
	if tty {
		// The client sits between two terminals: this one, and the container's,
		// to which it brings the size of this one.
		master, slave, err := pty.Open(p.OCI.Process.ConsoleSize)
		if err != nil {
			return fail(&driver.SetupError{Driver: d.Name(), Err: err})
		}
		defer slave.Close()
		r.pty = master
		stdio.Stdin, stdio.Stdout, stdio.Stderr = slave, slave, slave
		r.client.SysProcAttr.Setctty = true // Ctty is descriptor 0 of the client
	}
	// A nil *os.File in an interface is not nil, and os/exec asks.
	if stdio.Stdin != nil {
		r.client.Stdin = stdio.Stdin
	}
	if stdio.Stdout != nil {
		r.client.Stdout = stdio.Stdout
	}
	if stdio.Stderr != nil {
		r.client.Stderr = stdio.Stderr
	}
	if d.Podman {
		r.client.Dir = r.dir.Path
	}
	if err := r.client.Start(); err != nil {
		return fail(&driver.SetupError{Driver: d.Name(), Err: err})
	}
	r.setup = time.Since(begin)
	r.pruned.Go(func() {
		// The end of the run waits for it. What it does not come to the next one does.
		ctx, cancel := context.WithTimeout(context.Background(), prunePatience)
		defer cancel()
		d.prune(ctx, c)
	})
	return r, nil
}

// image asks for the image's configuration.
func (c *client) image(ctx context.Context) (*imageConfig, error) {
	out, err := c.output(ctx, "image", "inspect", c.d.Image)
	if err != nil {
		return nil, err
	}
	var list []imageConfig
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0].ID == "" ||
		list[0].Config == nil {
		return nil, &engineError{op: c.d.Name() + " image inspect", text: "the image's configuration cannot be read"}
	}
	return &list[0], nil
}

// pull fetches the image.
func (c *client) pull(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.path, "pull", "--", c.d.Image)
	cmd.Env = c.env
	detach(cmd)
	var errs bytes.Buffer
	keep := &limited{w: &errs, n: 64 << 10}
	cmd.Stderr = keep
	if c.d.Progress != nil {
		cmd.Stdout = c.d.Progress
		shown := &printable{w: c.d.Progress}
		defer shown.flush()
		cmd.Stderr = io.MultiWriter(shown, keep)
	}
	if err := cmd.Run(); err != nil {
		if text := said(errs.String()); text != "" {
			err = errors.New(text)
		}
		return &ImagePullError{Image: c.d.Image, Err: err}
	}
	return nil
}

// printable passes on lines of which somebody else, a registry, may have chosen the
// words, without what would speak to the terminal.
type printable struct {
	w    io.Writer
	part []byte
}

func (p *printable) Write(b []byte) (int, error) {
	n := len(b)
	for line := range bytes.Lines(b) {
		p.part = append(p.part, line[:min(len(line), 4096)]...)
		if line[len(line)-1] == '\n' || len(p.part) > 4096 {
			p.flush()
		}
	}
	return n, nil
}

func (p *printable) flush() {
	if line := bytes.TrimRight(p.part, "\r\n"); len(line) > 0 {
		io.WriteString(p.w, quote.Escape(string(line))+"\n")
	}
	p.part = p.part[:0]
}

// detachKeys end a client and leave the container alone, which is never wanted. They
// cannot be switched off, so they are a sequence that nobody types. Its first key
// is held back until the next one comes: Ctrl-@, which shows nothing by itself.
const detachKeys = "ctrl-@,ctrl-^,ctrl-@,ctrl-_,ctrl-@,ctrl-^,ctrl-@,ctrl-_"

// A container is a driver.Process.
type container struct {
	driver.Fixed
	c        *client
	name     string
	policy   *policy.Policy
	image    *imageConfig
	client   *exec.Cmd // attached to it
	local    bool      // the engine is on this machine
	pty      *os.File  // the master of the client's terminal, or nil
	layers   policy.Layers
	degraded policy.Layers
	setup    time.Duration
	pruned   sync.WaitGroup

	dir  *rundir.Dir // of the client, or nil
	late bool        // the engine may still be making the container

	guardian *exec.Cmd
	release  *os.File // its standard input

	mu     sync.Mutex
	killed bool
	silent bool // the engine did not answer when the container was to end
	over   bool
}

// guard starts the process that removes the container when this one is gone:
// it reads a line, and the end of file without one means that nobody is left.
// The container may be on its way to being made just then: it looks twice.
func (r *container) guard() error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	cmd := exec.Command("/bin/sh", "-c", `read -r _ && exit; "$0" rm -f -v "$1"; sleep 2; "$0" rm -f -v "$1"`,
		r.c.path, r.name)
	cmd.Stdin, cmd.Env = in, r.c.env
	detach(cmd)
	if err := cmd.Start(); err != nil {
		out.Close()
		return err
	}
	r.guardian, r.release = cmd, out
	return nil
}

func (r *container) unguard() {
	if r.late {
		r.release.Close() // it looks again in a while
		go r.guardian.Wait()
		return
	}
	r.release.WriteString("\n")
	r.release.Close()
	r.guardian.Wait()
}

// hosts is the container's /etc/hosts, as Docker's is. Podman's has the host's names.
const hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// create makes the container.
func (r *container) create(ctx context.Context, e *engine, stdin bool) error {
	p := r.policy
	f := Facts{Podman: r.c.d.Podman, Rootless: e.rootless, IsDir: isDir, IsFile: isFile, Name: r.name,
		Labels: []string{labelRun + "=" + r.name}, Stdin: stdin,
		NoAppArmor: !e.apparmor}
	f.declare(r.image)
	if r.c.d.Podman {
		f.Init, f.Hosts = initProgram(), r.dir.Path+"/hosts"
	}
	env, passed, _ := environment(p.OCI.Process.Env)
	filter, err := filterOf(p)
	if err != nil {
		return &driver.SetupError{Driver: r.c.d.Name(), Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.c.path)
	defer func() {
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
	}()
	if len(env) != 0 {
		if f.EnvFile, err = give(cmd, env); err != nil {
			return &driver.SetupError{Driver: r.c.d.Name(), Err: err}
		}
	}
	if filter != nil {
		if f.Seccomp, err = give(cmd, filter); err != nil {
			return &driver.SetupError{Driver: r.c.d.Name(), Err: err}
		}
	}
	cmd.Env, f.Passed = r.clientEnv(passed)
	args, err := r.c.d.Args(p, f)
	if err != nil {
		return err
	}
	cmd.Args = append(cmd.Args, args...)
	if p.OCI.Process.Terminal && p.OCI.Process.ConsoleSize != nil {
		// The size that a container's terminal begins with is that of what its
		// client prints to.
		master, slave, err := pty.Open(p.OCI.Process.ConsoleSize)
		if err != nil {
			return &driver.SetupError{Driver: r.c.d.Name(), Err: err}
		}
		defer master.Close()
		defer slave.Close()
		cmd.Stdout = slave
	}
	if _, err := r.c.run(ctx, cmd, "create"); err != nil {
		if ctx.Err() != nil {
			r.late = true
		}
		fix := ""
		if strings.Contains(err.Error(), "container-init") {
			fix = "install catatonit, a static tini, or docker-init"
		}
		return &driver.SetupError{Driver: r.c.d.Name(), Err: err, Fix: fix}
	}
	return nil
}

// give has a client read data from a file, whose name is returned.
func give(client *exec.Cmd, data []byte) (string, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	go func() {
		out.Write(data) // EPIPE: the client gave up, and says why
		out.Close()
	}()
	client.ExtraFiles = append(client.ExtraFiles, in)
	return "/dev/fd/" + strconv.Itoa(2+len(client.ExtraFiles)), nil
}

// clientEnv is the environment of the client that makes the container, and the names of
// those of its variables that the container gets.
func (r *container) clientEnv(passed []string) (env, names []string) {
	env = environ()
	for _, v := range passed {
		key, _, _ := strings.Cut(v, "=")
		names = append(names, key)
	}
	if !r.c.d.Podman && r.local {
		// The client needs no proxy itself, and would give the container those of its
		// configuration.
		env = slices.DeleteFunc(env, isProxy)
		for _, kv := range r.policy.OCI.Process.Env {
			if isProxy(kv) {
				passed = append(passed, kv)
			}
		}
		names = append(names, proxies...)
	}
	return append(env, passed...), names
}

// cleanup removes the client's directory, and closes its terminal.
func (r *container) cleanup() {
	if r.pty != nil {
		r.pty.Close()
	}
	if r.dir != nil {
		r.dir.Remove()
	}
}

// initProgram is a program to use in the place of catatonit, which podman looks
// for and does not always come with: "" if that is there, or nothing is. It has to
// be static, for it runs in the image.
func initProgram() string {
	for _, own := range [...]string{"/usr/libexec/podman/catatonit", "/usr/local/libexec/podman/catatonit",
		"/usr/lib/podman/catatonit", "/usr/local/lib/podman/catatonit"} {
		if isFile(own) {
			return ""
		}
	}
	for _, name := range [...]string{"catatonit", "tini-static", "docker-init"} {
		if file, err := programs.Find(name); err == nil {
			return file
		}
	}
	return ""
}

// filterOf is the policy's system call filter as the engine reads it, or nil for
// the engine's own.
func filterOf(p *policy.Policy) ([]byte, error) {
	if p.OCI.Linux != nil && p.OCI.Linux.Seccomp != nil {
		return json.Marshal(p.OCI.Linux.Seccomp)
	}
	if p.Seccomp == "" {
		return nil, nil
	}
	s, err := seccomp.Spec(p.Seccomp)
	if err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

func (r *container) Pty() *os.File { return r.pty }

// Signal sends a signal to the container's first process, which passes it to
// the command.
func (r *container) Signal(sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return os.ErrProcessDone
	}
	err := r.send(strconv.Itoa(int(sig)))
	if err != nil && !isSilent(err) && r.exited() {
		return os.ErrProcessDone
	}
	return err
}

// endPatience bounds what is asked of the engine to end a container.
var endPatience = patience

func (r *container) send(sig string) error {
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	_, err := r.c.output(ctx, "kill", "--signal", sig, r.name)
	return err
}

// exited reports whether the command has ended, and the engine has its exit code.
func (r *container) exited() bool {
	s, err := r.inspect()
	return err == nil && s.Status == "exited"
}

// Terminate sends SIGTERM to the command. The engine has no way to send it to
// every process; Kill ends them all.
func (r *container) Terminate() error { return r.Signal(syscall.SIGTERM) }

// Kill ends the container, one that is not running yet as well.
func (r *container) Kill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return os.ErrProcessDone
	}
	killed := r.killed
	r.killed = true
	err := r.send("KILL")
	if err == nil {
		return nil
	}
	if isSilent(err) {
		// An image can hold up its engine: Docker's opens /etc/passwd in there, which may
		// be a FIFO. Nobody waits for that longer than for the command.
		r.silent = true
		r.client.Process.Kill()
		return nil
	}
	if r.exited() {
		r.killed = killed
		return os.ErrProcessDone
	}
	return r.remove()
}

// remove removes the container with all that runs in it. That there is none is
// no error.
func (r *container) remove() error {
	_, err := r.c.output(context.Background(), "rm", "--force", "--volumes", r.name)
	if err != nil && isGone(err) {
		return nil
	}
	return err
}

// isGone reports that the engine knows no such container.
func isGone(err error) bool {
	s := strings.ToLower(err.Error())
	return strings.Contains(s, "no such container") || strings.Contains(s, "no such object") ||
		strings.Contains(s, "no container with")
}

// state is what the engine recorded of a container.
type state struct {
	Status    string
	Running   bool
	OOMKilled bool
	ExitCode  int
	Error     string
}

func (r *container) inspect() (*state, error) {
	out, err := r.c.output(context.Background(), "inspect", "--type", "container", "--format", "{{json .State}}", r.name)
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return nil, &engineError{op: r.c.d.Name() + " inspect", text: err.Error()}
	}
	return &s, nil
}

// stuck is the error for an engine that does not answer.
func (r *container) stuck() error {
	return &driver.LostError{Err: &driver.UnavailableError{What: "driver " + r.c.d.Name(),
		Cause: "the engine does not answer, so the command may still be running: container " + r.name},
		Fix: "what is left of it is removed when the engine answers; an image can hold it up, so look at what is in this one"}
}

// Wait waits for the container's end, and removes it.
func (r *container) Wait() (*driver.Status, error) {
	clientErr := r.client.Wait()
	r.mu.Lock()
	silent := r.silent
	r.over = silent
	r.mu.Unlock()
	if silent {
		r.late = true // the guardian removes it as soon as the engine can
		r.unguard()
		r.cleanup()
		return nil, r.stuck()
	}
	s, err := r.inspect()
	r.mu.Lock()
	r.over = true
	killed := r.killed
	r.mu.Unlock()
	// The engine hears of the end and of memory that was short one by one, in any order.
	const sigkilled = driver.ExitSignalBase + int(syscall.SIGKILL)
	for range 5 {
		if err != nil || killed || s.OOMKilled || s.ExitCode != sigkilled || s.Status != "exited" {
			break
		}
		time.Sleep(50 * time.Millisecond)
		later, lost := r.inspect()
		if lost != nil {
			break // what is known stays known
		}
		s = later
	}
	var missing error
	if err == nil && s.Status == "exited" && s.Error == "" && !killed &&
		(s.ExitCode == driver.ExitNotFound || s.ExitCode == driver.ExitNotExecutable) {
		missing = r.commandError(context.Background(), s.ExitCode)
	}
	switch e := r.remove(); {
	case e == nil || err != nil:
	case s.Status == "exited":
		r.late = true // how it ended is known, and the guardian removes it
	default:
		err = e
	}
	r.unguard()
	r.pruned.Wait()
	oom := r.dir != nil && isFile(r.dir.Path+"/oom")
	r.cleanup()

	name := r.c.d.Name()
	st := &driver.Status{
		Layers: r.layers, Degraded: r.degraded, Unwatched: driver.Unwatched(r.layers, driver.Netlink, driver.FileLocks),
		SetupNanos: r.setup.Nanoseconds(),
	}
	switch {
	case err != nil && killed && isGone(err):
		st.Signal = syscall.SIGKILL
		return st, nil
	case err != nil && isGone(err):
		return nil, &driver.LostError{Err: fmt.Errorf("driver %s: somebody removed the container while the command ran",
			name), Fix: "containers named sbxrun-… belong to running commands"}
	case err != nil:
		return nil, &driver.LostError{Err: fmt.Errorf("driver %s: the engine went away while the command ran: %w", name, err),
			Fix: "start the engine again; the next run removes what is left of the container"}
	case s.Running && clientErr != nil && (unread(r.client.Stdout) || unread(r.client.Stderr)):
		// The client got what the command gets elsewhere.
		st.Signal = syscall.SIGPIPE
		return st, nil
	case s.Running:
		clientErr = cmp.Or(clientErr, errors.New("the client ended before the container"))
		return nil, &driver.LostError{Err: fmt.Errorf("driver %s: %w", name, clientErr)}
	case s.Status == "created" && killed:
		st.Signal = syscall.SIGKILL
		return st, nil
	case s.Status == "created" && s.Error == "":
		return nil, &driver.SetupError{Driver: name, Err: errors.New("the container did not start"),
			Fix: "what the engine said of it is on the command's standard error"}
	case s.Error != "":
		if err := startError(s.Error); err != nil {
			return nil, err
		}
		return nil, &driver.SetupError{Driver: name, Err: errors.New(said(s.Error))}
	case missing != nil:
		return nil, missing
	}
	st.ExitCode = s.ExitCode
	st.OOMKilled = s.OOMKilled || oom
	if killed && s.ExitCode == sigkilled {
		st.ExitCode, st.Signal = 0, syscall.SIGKILL
	}
	return st, nil
}

// unread reports whether a stream is a pipe from which nobody can read any more.
func unread(w io.Writer) (gone bool) {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n == 1 && fds[0].Revents&unix.POLLERR != 0
	})
	return gone
}

// startError is the error of a command that the runtime could not execute.
func startError(text string) error {
	var errno syscall.Errno
	switch {
	case strings.Contains(text, "executable file not found"), strings.Contains(text, "no such file or directory"):
		errno = syscall.ENOENT
	case strings.Contains(text, "permission denied"):
		errno = syscall.EACCES
	default:
		return nil
	}
	_, after, ok := strings.Cut(text, `exec: "`)
	if !ok {
		return nil
	}
	command, _, _ := strings.Cut(after, `"`)
	if strings.HasSuffix(command, "-init") && strings.HasPrefix(command, "/") {
		return nil // the engine's own first process, not the command
	}
	return &driver.CommandError{Command: command, Err: errno, Fix: lookedFor}
}

// newName makes a name that tells whose the container is: the machine, the
// process, when that started, and something random.
func newName() (string, error) {
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return strings.Join([]string{"sbxrun", machine(), strconv.Itoa(os.Getpid()), startedAt(os.Getpid()),
		hex.EncodeToString(b[:])}, "-"), nil
}

// machine tells this host, and those who see the same processes of it, from others that
// use the same engine.
func machine() string {
	name, err := os.Hostname()
	if err != nil {
		return "0"
	}
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil {
		name += "\n" + ns
	}
	h := uint32(2166136261) // FNV-1a
	for _, c := range []byte(name) {
		h = (h ^ uint32(c)) * 16777619
	}
	return strconv.FormatUint(uint64(h), 16)
}

// hidden is the start of a process that there is, and that this user cannot see; see
// hidepid in proc(5).
const hidden = "?"

// startedAt is when a process of this host started, in the kernel's own count, or
// "0" where that is not known; "" if there is no such process.
func startedAt(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil && syscall.Kill(pid, 0) == syscall.EPERM {
		return hidden
	}
	if err != nil {
		if _, err := os.Stat("/proc/self"); err != nil {
			// No /proc: macOS.
			if syscall.Kill(pid, 0) == syscall.ESRCH {
				return ""
			}
			return "0"
		}
		return ""
	}
	// Field 22 of proc_pid_stat(5), the 20th after the program's name.
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 {
		if f := bytes.Fields(stat[i+1:]); len(f) > 19 {
			return string(f[19])
		}
	}
	return "0"
}

// orphan reports whether a container's name says that its owner was a process
// of this machine that is gone.
func orphan(name, machine string, started func(pid int) string) bool {
	f := strings.Split(name, "-")
	if len(f) != 5 || f[0] != "sbxrun" || f[1] != machine {
		return false
	}
	pid, err := strconv.Atoi(f[2])
	if err != nil || pid <= 0 {
		return false
	}
	at := started(pid)
	return at != hidden && at != f[3]
}

// prunePatience bounds what a run does for those before it.
const prunePatience = 10 * time.Second

// Prune removes the containers that sbxrun left behind when it was killed and
// so was what it leaves to clean up after it. It returns their names.
func (d Driver) Prune(ctx context.Context) ([]string, error) {
	c, err := d.find()
	if err != nil {
		return nil, err
	}
	return d.prune(ctx, c)
}

func (d Driver) prune(ctx context.Context, c *client) ([]string, error) {
	out, err := c.output(ctx, "ps", "--all", "--filter", "label="+labelRun, "--format", "{{.Names}}")
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, name := range strings.Fields(out) {
		if !orphan(name, machine(), startedAt) {
			continue
		}
		if _, e := c.output(ctx, "rm", "--force", "--volumes", name); e != nil && !isGone(e) {
			err = e
			continue
		}
		removed = append(removed, name)
	}
	return removed, err
}
