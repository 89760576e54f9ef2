package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sbxrun/sbxrun/internal/rootfs"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/seccomp"
)

// A contender is one way to run a command.
type contender struct {
	name string
	note string // what is not equal

	// wrap returns how the contender runs argv; nil if it cannot.
	wrap func(argv ...string) command
	skip string // why it cannot
}

// An environment is a directory with all that the contenders need, for one
// working directory and one set of flags.
type environment struct {
	policy *policy.Policy
	dir    string   // scratch of the benchmark itself
	cwd    string   // the sandbox's workspace
	sbxrun string   // path of the program
	flags  []string // of sbxrun, before "--"
	box    *sandbox
	filter string // file of the seccomp program
}

// newEnvironment asks sbxrun what it would do and writes down the same for the
// others.
func newEnvironment(b *bench, name, cwd string, flags ...string) (*environment, error) {
	e := &environment{dir: filepath.Join(b.dir, "env-"+name), cwd: cwd, sbxrun: b.sbxrun}
	e.flags = slices.Concat([]string{"--profile", "strict", "--cd", cwd}, b.extra, flags)
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return nil, err
	}
	out, err := command{
		Argv: slices.Concat([]string{b.sbxrun, "--dry-run"}, e.flags, []string{"--", b.truePath}),
		Env:  os.Environ(), Dir: cwd,
	}.output()
	if err != nil {
		return nil, fmt.Errorf("sbxrun --dry-run: %w", err)
	}
	var dry struct {
		Policy *policy.Policy `json:"policy"`
	}
	if err := json.Unmarshal([]byte(out), &dry); err != nil {
		return nil, fmt.Errorf("sbxrun --dry-run: %w", err)
	}
	if dry.Policy == nil {
		return nil, errors.New("sbxrun --dry-run printed no policy")
	}
	root, err := rootfs.Lower("native", dry.Policy, hostFiles{})
	if err != nil {
		return nil, err
	}
	e.policy = dry.Policy
	if e.box, err = newSandbox(dry.Policy, &root.Tree); err != nil {
		return nil, err
	}
	if dry.Policy.Seccomp != "" {
		program, err := seccomp.Builtin(dry.Policy.Seccomp)
		if err != nil {
			return nil, err
		}
		e.filter = filepath.Join(e.dir, "filter.bpf")
		if err := os.WriteFile(e.filter, []byte(program.Filter), 0o644); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// bare runs the command as it is, in the sandbox's environment.
func (e *environment) bare() *contender {
	return &contender{name: "bare", wrap: func(argv ...string) command {
		return command{Argv: argv, Env: e.box.env, Dir: e.cwd}
	}}
}

func (e *environment) sbxrunContender() *contender {
	note := "and Landlock, cgroup, rlimits"
	if slices.Contains(e.flags, "--allow-degraded") {
		note = "with what was not degraded"
	}
	return &contender{
		name: "sbxrun", note: note,
		wrap: func(argv ...string) command {
			return command{Argv: slices.Concat([]string{e.sbxrun}, e.flags, []string{"--"}, argv), Env: os.Environ(), Dir: e.cwd}
		},
	}
}

func (e *environment) bwrapContender() *contender { return e.bubblewrap("bubblewrap", false) }

func (e *environment) bubblewrap(name string, oneTmpfs bool) *contender {
	c := &contender{name: name}
	path, err := exec.LookPath("bwrap")
	if err != nil {
		c.skip = "not installed"
		return c
	}
	args, files, missing, err := e.box.bwrap(e.filter, e.dir, oneTmpfs)
	if err != nil {
		c.skip = err.Error()
		return c
	}
	if len(missing) > 0 {
		c.note = "without " + strings.Join(missing, ", ")
	}
	if oneTmpfs {
		c.note = "weaker: root writable, no size limits"
	}
	c.wrap = func(argv ...string) command {
		return command{Argv: slices.Concat([]string{path}, args, []string{"--"}, argv), Env: e.box.env, Dir: e.cwd, Files: files}
	}
	return c
}

func (e *environment) floorContender(floor string) *contender {
	c := &contender{name: "floor (C)"}
	plan, err := e.box.floorPlan()
	file := filepath.Join(e.dir, "plan")
	if err == nil {
		err = os.WriteFile(file, []byte(plan), 0o644)
	}
	if err != nil {
		c.skip = err.Error()
		return c
	}
	args := []string{floor, "-h", e.box.hostname, "-u", fmt.Sprint(e.box.uid), "-g", fmt.Sprint(e.box.gid), "-d", e.box.cwd}
	if e.filter != "" {
		args = append(args, "-f", e.filter)
	}
	args = append(args, file)
	c.wrap = func(argv ...string) command {
		return command{Argv: slices.Concat(args, argv), Env: e.box.env, Dir: e.cwd}
	}
	return c
}

// peers are the runtimes that cannot be given an equal sandbox, each as close
// as its own flags get.
func (e *environment) peers(b *bench) []*contender {
	return []*contender{e.runc(b), e.firejail(), e.gvisor(), e.docker(b)}
}

func (e *environment) runc(b *bench) *contender {
	c := &contender{name: "runc", note: "same mounts and namespaces, no filter, user 0"}
	path, err := exec.LookPath("runc")
	if err != nil {
		c.skip = "not installed"
		return c
	}
	bundle := filepath.Join(e.dir, "bundle")
	// A bundle holds one command, so this one only ever runs what it was
	// made for.
	spec, err := e.box.ociBundle(bundle, []string{b.truePath})
	if err == nil {
		var text []byte
		if text, err = json.Marshal(spec); err == nil {
			err = os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644)
		}
	}
	if err != nil {
		c.skip = err.Error()
		return c
	}
	c.wrap = func(...string) command {
		return command{
			Argv: []string{path, "--root", filepath.Join(e.dir, "runc"), "run", "--bundle", bundle, fmt.Sprintf("sbxrun-bench-%d", os.Getpid())},
			Env:  os.Environ(), Dir: e.cwd,
		}
	}
	return c
}

func (e *environment) firejail() *contender {
	c := &contender{name: "firejail", note: "its own sandbox, closest flags"}
	path, err := exec.LookPath("firejail")
	if err != nil {
		c.skip = "not installed"
		return c
	}
	c.wrap = func(argv ...string) command {
		return command{Argv: append([]string{path, "--quiet", "--noprofile", "--net=none", "--private-dev", "--private-tmp",
			"--ipc-namespace", "--caps.drop=all", "--nonewprivs", "--seccomp", "--read-only=/", "--"}, argv...), Env: e.box.env, Dir: e.cwd}
	}
	return c
}

func (e *environment) gvisor() *contender {
	c := &contender{name: "gVisor", note: "runsc do, its own kernel"}
	path, err := exec.LookPath("runsc")
	if err != nil {
		c.skip = "not installed"
		return c
	}
	// runsc as root gives its standard streams to nobody (fchown), which must
	// not be the host's /dev/null.
	stdio := filepath.Join(e.dir, "stdio")
	if err := os.WriteFile(stdio, nil, 0o644); err != nil {
		c.skip = err.Error()
		return c
	}
	args := []string{path, "--network=none", "--ignore-cgroups"}
	if os.Geteuid() != 0 {
		args = append(args, "--rootless")
	}
	c.wrap = func(argv ...string) command {
		return command{Argv: slices.Concat(args, []string{"do"}, argv), Env: os.Environ(), Dir: e.cwd, Stdio: stdio}
	}
	return c
}

const dockerImage = "sbxrun-bench:latest"

// docker uses an image that holds one static program, so that nothing has to
// be pulled; it is removed at the end.
func (e *environment) docker(b *bench) *contender {
	c := &contender{name: "docker run", note: "--network none, an image with one static program"}
	path, err := exec.LookPath("docker")
	if err != nil {
		c.skip = "not installed"
		return c
	}
	if _, err := (command{Argv: []string{path, "version", "--format", "{{.Server.Version}}"}, Env: os.Environ()}).output(); err != nil {
		c.skip = "no daemon: " + err.Error()
		return c
	}
	program, err := os.ReadFile(b.goEmpty)
	if err != nil {
		c.skip = err.Error()
		return c
	}
	var image bytes.Buffer
	tw := tar.NewWriter(&image)
	if err = tw.WriteHeader(&tar.Header{Name: "empty", Mode: 0o755, Size: int64(len(program))}); err == nil {
		if _, err = tw.Write(program); err == nil {
			err = tw.Close()
		}
	}
	if err == nil {
		load := exec.Command(path, "import", "-", dockerImage)
		load.Stdin = &image
		var out []byte
		if out, err = load.CombinedOutput(); err != nil {
			err = fmt.Errorf("import: %s", firstLine(string(out)))
		}
	}
	if err != nil {
		c.skip = err.Error()
		return c
	}
	b.atEnd(func() { exec.Command(path, "image", "rm", "-f", dockerImage).Run() })
	c.wrap = func(...string) command {
		return command{Argv: []string{path, "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL",
			"--security-opt", "no-new-privileges", dockerImage, "/empty"}, Env: os.Environ(), Dir: e.cwd}
	}
	return c
}
