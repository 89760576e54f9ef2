// Package docker is the driver for container engines: it lowers a policy to the
// arguments of the docker command, or of podman's, which takes the same, and
// has that create, start and end a container.
//
// The command line client is used, and not a library: it knows the caller's
// contexts, sockets and credentials (DOCKER_HOST, DOCKER_CONTEXT, config.json),
// and linking a client library would cost every start of sbxrun 1.1 ms.
//
// The container is of the policy's image, read-only, without capabilities, and
// with nothing of the host but what the policy shows. A container outlives its
// client, so every end goes to the container: the time limit and signals to it
// by name; and a process beside sbxrun, which waits for sbxrun's end of a pipe
// to close, removes the container even if sbxrun is killed. What that misses
// (both are killed, the machine stops) the next run finds by its label.
//
// It adds no user namespace to an engine that has none: the command has the
// caller's ids and sees them. The files of the image are the engine's. A
// volume that it declares is empty private storage, and its health check does not run. What the first process of a container was ended
// by is known only as an exit code: a signal that sbxrun did not send is
// reported as 128+N, with the reason "exit".
package docker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// A Driver runs commands in containers. The zero value is Docker without an
// image, which refuses to run.
type Driver struct {
	driver.Basic

	// Podman uses podman in Docker's place.
	Podman bool

	// Image is what the container is made of: "node:20-alpine".
	Image string

	// Progress, if not nil, gets what a pull prints: for a terminal.
	Progress *os.File

	// Bridge gives a policy that may use the host's network the engine's own
	// bridge instead, behind address translation. Ports implies it.
	Bridge bool

	Ports      []string // published, as docker run -p takes them: "127.0.0.1:8080:80"
	Labels     []string // KEY=VALUE
	Entrypoint string   // runs in the place of the command, which becomes its arguments
}

var _ driver.Driver = Driver{}

// Name returns "docker" or "podman".
func (d Driver) Name() string {
	if d.Podman {
		return "podman"
	}
	return "docker"
}

// Sandboxed reports true.
func (Driver) Sandboxed() bool { return true }

// Describe says what the driver enforces.
func (d Driver) Describe() driver.Description {
	yes := driver.Claim{Support: driver.Yes}
	part := func(note string) driver.Claim { return driver.Claim{Support: driver.Partly, Note: note} }
	no := func(note string) driver.Claim { return driver.Claim{Note: note} }
	noProxy := no("the egress proxy does not reach into containers")
	summary, user := "a container of an image, by Docker's command line", "by a rootless engine"
	if d.Podman {
		summary, user = "a container of an image, by podman's command line", "run by an ordinary user"
	}
	c := driver.Claims{
		"process":        part("in the image; the image's own variables come before; arguments in UTF-8"),
		"terminal":       part("engines before 23 give it its size a moment after the command has begun"),
		"user":           part("the caller's ids; rootless podman maps them"),
		"hostname":       part("not with --net host"),
		"files.read":     part("what is mounted below is not shown; /sbin stays the image's"),
		"files.write":    yes,
		"files.overlay":  no("only the native driver keeps a workspace's changes apart"),
		"files.noexec":   no("a bind mount of an engine is executable"),
		"files.hide":     part("what is there when the run starts"),
		"files.nested":   yes,
		"files.root":     no("the root is the image's"),
		"synthetic":      no("the image has its own files"),
		"scratch":        part("in equal parts for each place; root inside has the engine's /dev besides, 64 MiB"),
		"mounts.private": yes, "mounts.sized": yes,
		"mounts.noexec": part("private storage, not binds"),
		"mounts.bind":   yes,
		"mounts.system": part("the engine's own"), "masked": part("as the engine has it"),
		"mounts.other": no("only tmpfs and binds"),
		"devices":      yes,
		"egress.none":  yes, "egress.loopback": yes, "egress.host": yes, "egress.proxy": noProxy, "egress.publish": noProxy,
		"layer.egress":  noProxy,
		"layer.protect": {Note: "only the native driver makes calls for a command"},
		"limits.time":   part("SIGTERM goes to the command alone, SIGKILL to all"), "limits.output": yes,
		"limits.other":   no("memory, cpu and processes are what it limits"),
		"seccomp.custom": yes,
		"capabilities":   no("the command has none, and gains none"),
		"oci.other":      no("no profile sets it"),
		"layer.user":     part(user),
		"layer.pid":      yes, "layer.mount": yes, "layer.net": yes, "layer.ipc": yes, "layer.uts": yes,
		"layer.cgroupns": yes,
		"layer.seccomp":  yes, "layer.no_new_privs": yes, "layer.rlimits": yes,
		"layer.landlock":      no("an engine has no option for it"),
		"layer.cgroup.memory": part("where the engine can; swap too, where it counts swap"),
		"layer.cgroup.cpu":    part("where the engine can"),
		"layer.cgroup.pids":   part("where the engine can"),
		"layer.selinux":       no("the engine's own label holds"),
		"layer.apparmor":      part("where the engine can; a profile in complain mode is not noticed"),
		"result.signal":       no("an engine records an exit code alone"),
		"result.limits":       part("memory, but a busy engine may not hear of it; not processes"),
		"result.killed":       part("by a second process, or else by the next run"),
	}
	// What is new to policies is refused until an engine was taught it.
	for i := range driver.Features {
		if name := driver.Features[i].Name; c[name] == (driver.Claim{}) {
			c[name] = no("an engine has no option for it")
		}
	}
	return driver.Description{Summary: summary, Claims: c}
}

// Check reports what of a policy a container cannot have.
func (d Driver) Check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if d.Image == "" {
		return &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"a run without an image"},
			Fix: "name one with --image, or in the profile (image: node:20-alpine)"}
	}
	// An image's name that begins with a dash would be an option.
	if strings.HasPrefix(d.Image, "-") || strings.ContainsAny(d.Image, " \t\n\x00") {
		return &policy.InvalidError{Field: "image", Value: d.Image, Want: "a name such as node:20-alpine"}
	}
	if err := d.Describe().Claims.Refused(d.Name(), p); err != nil {
		return err
	}
	e := &driver.UnsupportedError{Driver: d.Name()}
	_, _, rules := environment(p.OCI.Process.Env)
	e.Rules = append(e.Rules, rules...)
	if len(e.Rules) == 0 {
		_, err := d.Args(p, Facts{Podman: d.Podman})
		return err
	}
	return e
}

// Lowered returns the arguments of the client that create the container.
func (d Driver) Lowered(p *policy.Policy) (any, error) {
	env, passed, _ := environment(p.OCI.Process.Env)
	f := Facts{Podman: d.Podman, Rootless: d.Podman && os.Geteuid() != 0, IsDir: isDir, IsFile: isFile,
		Name: "sbxrun-PID-RANDOM", Labels: []string{labelRun + "=sbxrun-PID-RANDOM"}, Stdin: true}
	if len(env) != 0 {
		f.EnvFile = "/dev/fd/3"
	}
	for _, e := range passed {
		key, _, _ := strings.Cut(e, "=")
		f.Passed = append(f.Passed, key)
	}
	if filtered(p) {
		f.Seccomp = "/dev/fd/4"
	}
	args, err := d.Args(p, f)
	if err != nil {
		return nil, err
	}
	return append([]string{d.Name()}, args...), nil
}

func isDir(p string) bool {
	fi, err := os.Stat(p)
	return err == nil && fi.IsDir()
}

func isFile(p string) bool {
	fi, err := os.Stat(p)
	return err == nil && !fi.IsDir()
}

// An ImagePullError says that an image is not here and could not be fetched.
type ImagePullError struct {
	Image string
	Err   error
}

func (e *ImagePullError) Error() string { return "image " + e.Image + ": " + e.Err.Error() }

// Unwrap returns what the engine said.
func (e *ImagePullError) Unwrap() error { return e.Err }

// Code returns IMAGE_PULL_FAILED.
func (*ImagePullError) Code() driver.Code { return driver.CodeImagePull }

// Hint says what to do.
func (e *ImagePullError) Hint() string {
	return "check the name and that its registry can be reached, or load the image: docker load, docker import; --image names another"
}

// client is the engine's command line program, found once.
type client struct {
	d    Driver
	path string
	env  []string // for what output runs; nil is the caller's
}

// find looks the client up on the caller's PATH.
func (d Driver) find() (*client, error) {
	file, err := programs.Find(d.Name())
	if err == nil {
		return &client{d: d, path: file, env: environ()}, nil
	}
	fix := "install Docker (https://docs.docker.com/engine/install; Debian: apt-get install docker.io)"
	if d.Podman {
		fix = "install podman (Debian: apt-get install podman)"
	}
	return nil, &driver.UnavailableError{What: "driver " + d.Name(), Cause: err.Error(), Fix: err.Hint(fix)}
}

// patience bounds each request to an engine that should answer at once.
const patience = 30 * time.Second

// An engineError is what the client printed when it failed.
type engineError struct {
	op     string
	text   string
	code   int
	silent bool // the engine did not answer in time
}

// isSilent reports that the engine did not answer in time.
func isSilent(err error) bool {
	var e *engineError
	return errors.As(err, &e) && e.silent
}

func (e *engineError) Error() string { return e.op + ": " + e.text }

// output runs the client and returns what it printed.
func (c *client) output(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, args...)
	cmd.Env = c.env
	return c.run(ctx, cmd, args[0])
}

func (c *client) run(ctx context.Context, cmd *exec.Cmd, op string) (string, error) {
	var out answer
	var errs bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	cmd.Stderr = &limited{w: &errs, n: 64 << 10}
	cmd.WaitDelay = time.Second
	detach(cmd)
	err := cmd.Run()
	if err == nil && !out.tooLong() {
		return strings.TrimSpace(out.b.String()), nil
	}
	if out.tooLong() {
		return "", &engineError{op: c.d.Name() + " " + op, text: "the engine's answer is too long"}
	}
	if ctx.Err() != nil {
		return "", &engineError{op: c.d.Name() + " " + op, text: "no answer from the engine: " + ctx.Err().Error(),
			silent: true}
	}
	e := &engineError{op: c.d.Name() + " " + op, text: said(errs.String()), code: cmd.ProcessState.ExitCode()}
	e.text = cmp.Or(e.text, err.Error())
	return "", e
}

// said is the last line of what a client printed, without its name for itself. An
// image or a registry may have chosen words of it.
func said(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	last := ""
	for _, l := range lines {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "See '") && !strings.HasPrefix(l, "Run '") &&
			!strings.HasPrefix(l, "WARNING:") {
			last = l
		}
	}
	for _, p := range [...]string{"docker: ", "Error: ", "Error response from daemon: "} {
		last = strings.TrimPrefix(last, p)
	}
	return quote.Line(last)
}

// maxAnswer bounds what an engine says, which can be an image's words.
const maxAnswer = 16 << 20 // bytes

// An answer is what an engine says. It takes no more than maxAnswer and a little.
type answer struct{ b bytes.Buffer }

func (a *answer) tooLong() bool { return a.b.Len() > maxAnswer }

func (a *answer) Write(b []byte) (int, error) {
	if a.tooLong() {
		return 0, io.ErrShortWrite
	}
	return a.b.Write(b)
}

// limited writes the first n bytes and passes over the rest.
type limited struct {
	w io.Writer
	n int
}

func (l *limited) Write(b []byte) (int, error) {
	keep := min(len(b), l.n)
	l.n -= keep
	l.w.Write(b[:keep])
	return len(b), nil
}

// engine is what an engine says of itself.
type engine struct {
	rootless, seccomp bool
	memory, cpu, pids bool
	apparmor, remote  bool
	unconfined        bool // without a filter where it is not given one
}

// ask asks the engine what it is, and so whether it is there.
func (c *client) ask(ctx context.Context) (*engine, error) {
	format := `{{json .SecurityOptions}} {{.MemoryLimit}} {{.CPUCfsQuota}} {{.PidsLimit}} {{.ServerErrors}}`
	if c.d.Podman {
		format = `{{.Host.Security.Rootless}} {{.Host.Security.SECCOMPEnabled}} {{.Host.Security.AppArmorEnabled}} {{eq .Host.Security.SECCOMPProfilePath "unconfined"}} {{.Host.ServiceIsRemote}} {{.Host.CgroupControllers}}`
	}
	out, err := c.output(ctx, "info", "--format", format)
	if err != nil {
		if _, e := c.output(ctx, "version", "--format", "{{.Client.Version}}{{.Server.Version}}"); e != nil {
			err = e // old clients fail at the format, and say nothing of the engine
		}
		return nil, c.unavailable(err)
	}
	if c.d.Podman {
		return podmanEngine(out), nil
	}
	options, rest, ok := strings.Cut(out, "] ")
	if !ok { // null: the engine refused
		options, rest, _ = strings.Cut(out, " ")
	}
	f := strings.Fields(rest)
	if len(f) < 3 || len(f) > 3 && f[3] != "[]" && f[3] != "<no" {
		// Clients before 23 print that the engine is away and succeed.
		return nil, c.unavailable(errors.New(quote.Line(strings.Trim(strings.Join(f[min(3, len(f)):], " "), "[]"))))
	}
	return &engine{
		rootless: strings.Contains(options, "name=rootless"),
		seccomp:  strings.Contains(options, "name=seccomp") && !strings.Contains(options, "profile=unconfined"),
		memory:   f[0] == "true", cpu: f[1] == "true", pids: f[2] == "true",
	}, nil
}

// podmanEngine reads what podman says of itself: five words, and its controllers.
func podmanEngine(out string) *engine {
	f := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(out))
	is := func(i int) bool { return i < len(f) && f[i] == "true" }
	controllers := f[min(5, len(f)):]
	has := func(name string) bool { return slices.Contains(controllers, name) }
	return &engine{
		rootless: is(0), seccomp: is(1), apparmor: is(2), unconfined: is(3), remote: is(4),
		memory: has("memory"), cpu: has("cpu"), pids: has("pids"),
	}
}

func (c *client) unavailable(err error) error {
	fix := "start it (systemctl start docker), or set DOCKER_HOST to its socket"
	switch {
	case c.d.Podman:
		fix = "podman info tells more"
	case strings.Contains(err.Error(), "permission denied"):
		fix = "its socket is for root and the group docker, which is as good as root: use rootless Docker or podman, or run as root"
	}
	return &driver.UnavailableError{What: "driver " + c.d.Name(), Cause: "the engine does not answer", Err: err, Fix: fix}
}

// Program is the path of the client's file.
func (d Driver) Program() (string, error) {
	c, err := d.find()
	if err != nil {
		return "", nil
	}
	return c.path, nil
}

// Version is that of the client.
func (d Driver) Version() string {
	c, err := d.find()
	if err != nil {
		return ""
	}
	cmd := exec.Command(c.path, "--version")
	cmd.Env = c.env
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

// Available asks the engine.
func (d Driver) Available(ctx context.Context) error {
	c, err := d.find()
	if err != nil {
		return err
	}
	home, err := c.borrowHome()
	if err != nil {
		return c.unavailable(err)
	}
	defer home()
	_, err = c.ask(ctx)
	return err
}

// Layers are those that an engine gives a policy.
func (d Driver) layers(p *policy.Policy, e *engine) policy.Layers {
	l := policy.LayerPID | policy.LayerMount | policy.LayerIPC | policy.LayerUTS | policy.LayerNoNewPrivs
	if p.Egress.Mode != policy.EgressHost || d.Bridge || len(d.Ports) != 0 {
		l |= policy.LayerNet
	}
	if e.rootless {
		l |= policy.LayerUser
	}
	for _, n := range namespaces(p) {
		if n.Type == "cgroup" {
			l |= policy.LayerCgroupNS
		}
	}
	if e.seccomp && (filtered(p) || !e.unconfined) {
		l |= policy.LayerSeccomp
	}
	if len(p.OCI.Process.Rlimits) != 0 {
		l |= policy.LayerRlimits
	}
	if p.OCI.Process.ApparmorProfile != "" && e.apparmor {
		l |= policy.LayerAppArmor
	}
	return l | e.limits(p)
}

// limits are the layers of the limits that a policy has and the engine can keep.
func (e *engine) limits(p *policy.Policy) (l policy.Layers) {
	if p.OCI.Linux == nil {
		return 0
	}
	limits := policy.LimitsOf(p.OCI.Linux.Resources)
	if limits.Memory > 0 && e.memory {
		l |= policy.LayerCgroupMemory
	}
	if limits.Quota > 0 && e.cpu {
		l |= policy.LayerCgroupCPU
	}
	if limits.Pids > 0 && e.pids {
		l |= policy.LayerCgroupPids
	}
	return l
}

// filtered reports whether the policy has a filter of system calls.
func filtered(p *policy.Policy) bool {
	return p.Seccomp != "" || p.OCI.Linux != nil && p.OCI.Linux.Seccomp != nil
}

// lacking reports a limit or filter that the policy has and the engine would
// leave out with a warning.
func (d Driver) lacking(p *policy.Policy, e *engine) error {
	want := p.Require
	if filtered(p) {
		want |= policy.LayerSeccomp
	}
	all := *e
	all.memory, all.cpu, all.pids, all.apparmor = true, true, true, true
	want |= d.layers(p, &all) & (policy.LayerCgroup | policy.LayerAppArmor)
	if missing := want &^ p.Dispensable() &^ d.layers(p, e); missing != 0 {
		return &driver.UnavailableError{
			What: "layer " + missing.String(), Cause: "the engine of " + d.Name() + " does not have it",
			Fix: d.Name() + " info tells more; to go without: --allow-degraded " + missing.String(),
		}
	}
	return nil
}
