// Package containeruse is the driver for container-use: it has its command line
// program, cu, create an environment, run the command in it and delete it.
//
// The contract is three commands, in the project's directory, which is a git
// repository:
//
//	cu environment create --json [--image IMAGE]   prints {"id": "…"}
//	cu environment run ID -- CMD [ARG…]            streams, and exits as CMD does
//	cu environment delete ID
//
// Releases of container-use up to 0.4 have delete and terminal for people, and
// create and run environments only for agents, by MCP; Available asks the
// program whether it has the commands, and says so if it has not. The driver is
// tested against a stand-in program that keeps to the contract, not against
// container-use itself.
//
// An environment is a container of Dagger's engine on a branch of its own of the
// repository: what the command writes is in that branch, and not in the working
// directory. The engine takes no limits, filters or network rules, so a policy
// that has some is refused.
package containeruse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/policy"
)

// Name is the driver's name.
const Name = "container-use"

// A Driver runs commands in environments of container-use. The zero value makes
// one for each run and deletes it.
type Driver struct {
	driver.Basic

	// Image is what a new environment is made of; "" is the project's own
	// configuration.
	Image string

	// ID is an environment to use again. It is not deleted.
	ID string
}

var _ driver.Driver = Driver{}

// Name returns "container-use".
func (Driver) Name() string { return Name }

// Sandboxed reports true.
func (Driver) Sandboxed() bool { return true }

// Describe says what the driver enforces.
func (Driver) Describe() driver.Description {
	yes := driver.Claim{Support: driver.Yes}
	engine := driver.Claim{Support: driver.Partly, Note: "as Dagger's engine has it"}
	no := driver.Claim{Note: "container-use has no word for it"}
	c := driver.Claims{
		"process":     {Support: driver.Partly, Note: "in the environment; no variables but its own configuration's"},
		"user":        engine,
		"hostname":    engine,
		"files.write": {Support: driver.Partly, Note: "the workspace alone, as a branch of its repository"},
		"scratch":     engine, "mounts.private": engine,
		"egress.host":     {Support: driver.Partly, Note: "a network of the engine's that reaches everything"},
		"egress.loopback": yes,
		"limits.time":     {Support: driver.Partly, Note: "ends the client, and deletes the environment"},
		"limits.output":   yes,
		"layer.user":      engine, "layer.pid": engine, "layer.mount": engine, "layer.ipc": engine, "layer.uts": engine,
		"layer.cgroupns": engine,
		"layer.rlimits":  engine,
		"result.killed":  {Note: "cu delete removes what is left"},
	}
	for i := range driver.Features {
		if name := driver.Features[i].Name; c[name] == (driver.Claim{}) {
			c[name] = no
		}
	}
	return driver.Description{Summary: "an environment of container-use (tested against a stand-in for cu only)",
		Claims: c}
}

// Check reports what of a policy an environment cannot have.
func (d Driver) Check(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if d.ID != "" && !validID(d.ID) {
		return &policy.InvalidError{Field: "id", Value: d.ID, Want: "the name of an environment, such as fancy-mallard"}
	}
	if err := d.Describe().Claims.Refused(Name, p); err != nil {
		return err
	}
	for _, r := range p.Files {
		if r.Access != policy.Hide && r.Path != p.OCI.Process.Cwd {
			return &driver.UnsupportedError{Driver: Name, Rules: []string{"files." + r.Path},
				Fix: "an environment has the working directory's repository alone"}
		}
	}
	return nil
}

// validID reports whether a name can be an environment's, and no option.
func validID(id string) bool {
	for i, c := range []byte(id) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return id != "" && len(id) <= 128
}

// CreateArgs, RunArgs and DeleteArgs are the arguments of cu.
func (d Driver) CreateArgs() []string {
	args := []string{"environment", "create", "--json"}
	if d.Image != "" {
		args = append(args, "--image", d.Image)
	}
	return args
}

// RunArgs run a command in an environment.
func RunArgs(id string, command []string) []string {
	return append([]string{"environment", "run", id, "--"}, command...)
}

// DeleteArgs delete an environment.
func DeleteArgs(id string) []string { return []string{"environment", "delete", id} }

// Lowered returns the commands that a run is.
func (d Driver) Lowered(p *policy.Policy) (any, error) {
	id := d.ID
	out := [][]string{}
	if id == "" {
		id = "ID"
		out = append(out, append([]string{"cu"}, d.CreateArgs()...))
	}
	out = append(out, append([]string{"cu"}, RunArgs(id, p.OCI.Process.Args)...))
	if d.ID == "" {
		out = append(out, append([]string{"cu"}, DeleteArgs(id)...))
	}
	return out, nil
}

// patience bounds what cu is asked for beside running the command; making an
// environment may fetch an image.
const patience = 10 * time.Minute

// Available reports nil if cu is there and has the commands.
func (Driver) Available(ctx context.Context) error {
	cu, err := find()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := output(ctx, cu, "", "environment", "create", "--help"); err != nil {
		return &driver.UnavailableError{What: "driver " + Name,
			Cause: cu + " has no command \"environment create\"", Err: err,
			Fix: "this release of container-use makes environments for agents only, by MCP; use --driver docker"}
	}
	return nil
}

func find() (string, error) {
	missing := &programs.NotFoundError{Name: "cu or container-use"}
	for _, name := range [...]string{"cu", "container-use"} {
		// cu(1) is also a program that calls up another system.
		file, err := programs.Find(name)
		if err == nil {
			return file, nil
		}
		if err.Passed != "" {
			missing = err
		}
	}
	return "", &driver.UnavailableError{What: "driver " + Name, Cause: missing.Error(),
		Fix: missing.Hint("install container-use (https://container-use.com), or use --driver docker")}
}

// output runs cu in a directory and returns what it printed.
func output(ctx context.Context, cu, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, cu, args...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, &out, &errs, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(errs.String()); text != "" {
			err = errors.New(text)
		}
		return nil, err
	}
	return out.Bytes(), nil
}

// parseID reads what create prints.
func parseID(out []byte) (string, error) {
	var v struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return "", errors.New("cu environment create printed no JSON: " + err.Error())
	}
	if !validID(v.ID) {
		return "", errors.New("cu environment create printed no id")
	}
	return v.ID, nil
}

// Start makes an environment, unless there is one to use again, and starts the
// command in it.
func (d Driver) Start(ctx context.Context, p *policy.Policy, stdio driver.Stdio) (driver.Process, error) {
	begin := time.Now()
	if err := d.Check(p); err != nil {
		return nil, err
	}
	if len(stdio.Extra) != 0 {
		return nil, &driver.UnsupportedError{Driver: Name, Rules: []string{"descriptors beyond the standard streams"}}
	}
	if err := d.Available(ctx); err != nil {
		return nil, err
	}
	cu, err := find()
	if err != nil {
		return nil, err
	}
	r := &run{cu: cu, dir: p.OCI.Process.Cwd, id: d.ID, keep: d.ID != ""}
	if r.id == "" {
		// Not interrupted: an environment whose id nobody knows stays.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		out, err := output(ctx, cu, r.dir, d.CreateArgs()...)
		if err == nil {
			r.id, err = parseID(out)
		}
		if err != nil {
			return nil, &driver.SetupError{Driver: Name, Err: err}
		}
	}
	if stdio.Starting != nil {
		stdio.Starting()
	}
	r.cmd = exec.Command(cu, RunArgs(r.id, p.OCI.Process.Args)...)
	r.cmd.Dir = r.dir
	if stdio.Stdin != nil {
		r.cmd.Stdin = stdio.Stdin
	}
	if stdio.Stdout != nil {
		r.cmd.Stdout = stdio.Stdout
	}
	if stdio.Stderr != nil {
		r.cmd.Stderr = stdio.Stderr
	}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := r.cmd.Start(); err != nil {
		r.delete()
		return nil, &driver.SetupError{Driver: Name, Err: err}
	}
	r.degraded = p.Dispensable()
	r.setup = time.Since(begin)
	return r, nil
}

type run struct {
	driver.Fixed
	cu, dir, id string
	keep        bool
	cmd         *exec.Cmd
	degraded    policy.Layers
	setup       time.Duration

	mu   sync.Mutex
	over bool
}

func (r *run) Pty() *os.File { return nil }

// Signal goes to cu's process group, and on from there.
func (r *run) Signal(sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return os.ErrProcessDone
	}
	return syscall.Kill(-r.cmd.Process.Pid, sig)
}

func (r *run) Terminate() error { return r.Signal(syscall.SIGTERM) }
func (r *run) Kill() error      { return r.Signal(syscall.SIGKILL) }

// delete deletes an environment that this run made.
func (r *run) delete() error {
	if r.keep {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := output(ctx, r.cu, r.dir, DeleteArgs(r.id)...)
	return err
}

func (r *run) Wait() (*driver.Status, error) {
	waitErr := r.cmd.Wait()
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	if err := r.delete(); err != nil {
		return nil, &driver.SetupError{Driver: Name, Err: err, Fix: "cu delete " + r.id}
	}
	if r.cmd.ProcessState == nil {
		return nil, &driver.SetupError{Driver: Name, Err: waitErr}
	}
	st := &driver.Status{Degraded: r.degraded, SetupNanos: r.setup.Nanoseconds()}
	if ws := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		st.Signal = ws.Signal()
	} else {
		st.ExitCode = ws.ExitStatus()
	}
	return st, nil
}
