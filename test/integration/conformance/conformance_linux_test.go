package conformance

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/bwrap"
	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/driver/docker"
	"github.com/sbxrun/sbxrun/driver/gvisor"
	"github.com/sbxrun/sbxrun/driver/host"
	"github.com/sbxrun/sbxrun/driver/landlocked"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/test/engine"
)

var update = flag.Bool("update", false, "rewrite testdata/declared")

// ordinary is the user that the suite runs as beside root.
const ordinary = 1000

// A subject is a driver under test.
type subject struct {
	name   string
	driver driver.Driver

	// root says that only root can run it here, and why.
	root string

	// refuses is in the cause for which the program refuses some hosts; the
	// cases are then skipped by it.
	refuses string

	// start prepares what the driver needs, and returns what ends it; nil for most.
	start func() (stop func(), err error)

	// adapt leaves out of a policy what it has for the host's system and the
	// driver has of its own; not what the case is about. Nil for most.
	adapt func(p *policy.Policy, about []string)

	// lacks are layers that the driver has a claim to, and not on this machine.
	lacks policy.Layers

	// unwatched is what the results of a run with a memory limit tell of the kernel's
	// memory.
	unwatched []string
}

// kernelMemory is what no cgroup counts.
var kernelMemory = []string{driver.Netlink, driver.FileLocks}

func subjects() []subject {
	return []subject{
		{name: "native", driver: native.Driver{}},
		{name: "landlock", driver: landlocked.Driver{}, unwatched: kernelMemory[1:]},
		{name: "bwrap", driver: bwrap.Driver{}, unwatched: kernelMemory},
		{name: "runc", driver: gvisor.Driver{Runtime: "runc"}, unwatched: kernelMemory},
		{name: "crun", driver: gvisor.Driver{Runtime: "crun"}, unwatched: kernelMemory, refuses: "hybrid mode not supported"},
		{name: "gvisor", driver: gvisor.Driver{}, root: "runsc run starts its helper with other ids"},
		{name: "docker", driver: docker.Driver{Image: engine.Image}, root: "its engine is started for the tests", start: engine.Docker, adapt: image, lacks: policy.LayerUser, unwatched: kernelMemory},
		{name: "podman", driver: docker.Driver{Podman: true, Image: engine.Image}, root: "its storage is made for the tests", start: engine.Podman, adapt: podman, lacks: policy.LayerUser, unwatched: kernelMemory},
		{name: "host", driver: &host.Driver{Home: os.TempDir(), Sweep: true}},
	}
}

// image fits a policy to a container's image. The host's programs are shown in
// it, for cases to use; what is below /etc is the image's, and so are /sbin, where an
// engine puts its first process, and the files that a policy makes up.
func image(p *policy.Policy, about []string) {
	if !slices.Contains(about, "synthetic") {
		p.Synthetic = nil
	}
	p.Files = slices.DeleteFunc(p.Files, func(r policy.FileRule) bool {
		return r.Path == "/sbin" || strings.HasPrefix(r.Path, "/etc/")
	})
}

// podman is image for podman, which raises these limits to more than a root without
// CAP_SYS_RESOURCE may, unless they are given.
func podman(p *policy.Policy, about []string) {
	image(p, about)
	for _, l := range []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 256, Hard: 256}, {Type: "RLIMIT_NPROC", Soft: 4096, Hard: 4096}} {
		if !slices.ContainsFunc(p.OCI.Process.Rlimits, func(r specs.POSIXRlimit) bool { return r.Type == l.Type }) {
			p.OCI.Process.Rlimits = append(p.OCI.Process.Rlimits, l)
		}
	}
}

// A world is what a case finds on the host.
type world struct {
	dir     string // all of it
	ws      string // the workspace
	outside string // beside it, with a canary
	extra   []*os.File
}

// An expect is what should happen.
type expect struct {
	code   int           // -1 is any
	reason driver.Reason // "" is exit, "*" any
	signal string        // "" is any
	stdout string        // exactly; "*" is any
	stderr string        // "" is any
	check  func(w *world, r *driver.Result) string
}

// A scenario is a case.
type scenario struct {
	name    string
	about   string // features, separated by spaces
	request func(w *world, r *profiles.Request)
	change  func(w *world, p *policy.Policy)
	setup   func(w *world) error
	args    []string
	script  string
	stdin   []byte
	act     func(w *world, p driver.Process, cancel func()) // while it runs
	want    expect
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}

// TestConformance runs every case through every driver.
func TestConformance(t *testing.T) {
	root := os.Geteuid() == 0
	who := "root"
	if !root {
		who = "user"
	}
	declared := map[string][]string{}
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			if s.root != "" && !root {
				t.Skip("needs root: " + s.root)
			}
			if s.start != nil {
				stop, err := s.start()
				if err != nil {
					t.Fatal(err)
				}
				defer stop()
			}
			if err := s.driver.Available(context.Background()); err != nil {
				if s.refuses != "" && strings.Contains(err.Error(), s.refuses) {
					t.Skip(err)
				}
				t.Fatalf("%v (%s)", err, driver.HintOf(err))
			}
			claims := s.driver.Describe().Claims
			t.Run("required and agreed to be missing", func(t *testing.T) { both(t, s, claims) })
			for _, c := range cases() {
				ok := t.Run(c.name, func(t *testing.T) {
					if d := c.run(t, s, claims); d != "" {
						t.Log(d)
						declared[s.name] = append(declared[s.name], c.name+": "+d)
					}
				})
				_ = ok
			}
		})
		if len(declared[s.name]) > 0 {
			golden(t, filepath.Join("testdata", "declared", who, s.name), declared[s.name])
		}
	}
}

// golden compares the cases in which a driver is excused.
func golden(t *testing.T, file string, got []string) {
	t.Helper()
	if f := flag.Lookup("test.run"); f != nil && strings.Count(f.Value.String(), "/") > 1 {
		return // not all of them were run
	}
	slices.Sort(got)
	text := strings.Join(append(got, ""), "\n")
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	// What a driver declared to be different may be right on a lucky day: process 1
	// can be slow enough to handle a signal. Nothing else may change.
	known := strings.Split(strings.TrimSpace(string(want)), "\n")
	for _, g := range got {
		if !slices.Contains(known, g) {
			t.Errorf("%s: a driver is excused that was not: %s", file, g)
		}
	}
	for _, k := range known {
		if !strings.HasSuffix(k, differs) && !slices.Contains(got, k) {
			t.Errorf("%s: no more: %s (run with -update)", file, k)
		}
	}
}

// both asks for each layer as one that is required and that may be missing, which
// is required; see policy.Policy.Degrade. A driver refuses it or has it.
func both(t *testing.T, s subject, claims driver.Claims) {
	if !s.driver.Sandboxed() {
		return // it has none, and is used for that
	}
	w := newWorld(t)
	ran, limited := 0, 0
	for l := policy.Layers(1); l <= policy.LayerAppArmor; l <<= 1 {
		c := scenario{name: l.String(), script: "exit 0", want: expect{check: func(_ *world, r *driver.Result) string {
			if !r.Layers.Has(l) || r.Degraded.Has(l) {
				return fmt.Sprintf("%v is required, and the run was without: layers %v, degraded %v", l, r.Layers, r.Degraded)
			}
			var unwatched []string
			if r.Layers.Has(policy.LayerCgroupMemory) {
				limited++
				unwatched = s.unwatched
			}
			if !slices.Equal(r.Unwatched, unwatched) {
				return fmt.Sprintf("unwatched: %q, want %q", r.Unwatched, unwatched)
			}
			ran++
			return ""
		}}}
		p := c.policy(t, w, claims.Layers()&^s.lacks, nil)
		p.Degrade |= l
		p.Require |= l
		if l == policy.LayerAppArmor {
			p.OCI.Process.ApparmorProfile = "sbxrun-test-none"
		}
		if s.adapt != nil {
			s.adapt(p, nil)
		}
		res, err := c.do(t, s, w, p)
		if err != nil && res.Reason == driver.ReasonSetup {
			continue // nothing ran
		}
		if d := c.want.compare(w, res, err); d != "" {
			t.Errorf("%v: %s; %s", l, d, describe(res, err))
		}
	}
	if ran == 0 && claims.Layers() != 0 {
		t.Error("no layer was had")
	}
	// An ordinary user may have no cgroups here.
	if limited == 0 && claims.Layers().Has(policy.LayerCgroupMemory) && os.Getuid() == 0 {
		t.Error("no run had a memory limit")
	}
}

const differs = "differs as declared"

// run runs one case. It returns "" if the driver did what was expected, else how
// it is excused.
func (c *scenario) run(t *testing.T, s subject, claims driver.Claims) string {
	about := strings.Fields(c.about)
	worst := driver.Yes
	for _, f := range about {
		if _, ok := claims[f]; !ok {
			t.Fatalf("no claim about %q", f)
		}
		worst = min(worst, claims[f].Support)
	}
	if !s.driver.Sandboxed() && worst == driver.No {
		return "isolates nothing"
	}
	w := newWorld(t)
	if c.setup != nil {
		if err := c.setup(w); err != nil {
			t.Fatal(err)
		}
	}
	p := c.policy(t, w, claims.Layers()&^s.lacks, about)
	if s.start != nil && p.Limits.WallTime < 5*time.Second {
		// An engine takes its time to start a container, and what a case is about
		// comes after that.
		p.Limits.WallTime *= 6
	}
	if s.adapt != nil {
		s.adapt(p, about)
	}
	res, err := c.do(t, s, w, p)
	var unsupported *driver.UnsupportedError
	refused := errors.As(err, &unsupported)
	difference := ""
	if !refused {
		difference = c.want.compare(w, res, err)
	}
	switch {
	case worst == driver.No && refused:
		return "refused"
	case worst == driver.No:
		// A feature that no policy asks for cannot be refused.
		for _, f := range about {
			if claims[f].Support == driver.No && asked(f) {
				t.Errorf("the driver claims not to have %s, and did not refuse it; %s", f, describe(res, err))
			}
		}
		return differs
	case refused && worst == driver.Partly:
		return "refused"
	case refused:
		t.Errorf("refused: %v", err)
	case difference != "" && worst == driver.Partly:
		t.Log(difference, describe(res, err))
		return differs
	case difference != "":
		t.Errorf("%s; %s", difference, describe(res, err))
	}
	return ""
}

func asked(feature string) bool {
	for i := range driver.Features {
		if driver.Features[i].Name == feature {
			return driver.Features[i].Uses != nil
		}
	}
	return false
}

func describe(r *driver.Result, err error) string {
	short := func(s string) string {
		if len(s) > 600 {
			s = s[:600] + "…"
		}
		return strconv.Quote(s)
	}
	return fmt.Sprintf("got code %d, reason %s, signal %q, stdout %s, stderr %s, layers %v, error %v", r.ExitCode, r.Reason, r.Signal, short(r.Stdout), short(r.Stderr), r.Layers, err)
}

func (e *expect) compare(w *world, r *driver.Result, err error) string {
	reason := e.reason
	if reason == "" {
		reason = driver.ReasonExit
	}
	switch {
	case e.code >= 0 && r.ExitCode != e.code:
		return fmt.Sprintf("want exit code %d", e.code)
	case reason != "*" && r.Reason != reason:
		return fmt.Sprintf("want reason %s", reason)
	case e.signal != "" && r.Signal != e.signal:
		return "want signal " + e.signal
	case e.stdout != "*" && r.Stdout != e.stdout:
		return fmt.Sprintf("want stdout %q", e.stdout)
	case e.stderr != "" && r.Stderr != e.stderr:
		return fmt.Sprintf("want stderr %q", e.stderr)
	}
	if e.check != nil {
		if d := e.check(w, r); d != "" {
			return d
		}
	}
	if b, err := os.ReadFile(w.outside + "/canary"); err != nil || string(b) != "canary\n" {
		return "the host's canary changed"
	}
	return ""
}

func newWorld(t *testing.T) *world {
	dir, err := os.MkdirTemp("", "sbxrun-conformance-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	w := &world{dir: dir, ws: dir + "/ws", outside: dir + "/outside"}
	for name, content := range map[string]string{"ws/file": "in the workspace\n", "outside/canary": "canary\n", "home/.ssh/id_rsa": "secret\n"} {
		if err := w.write(name, content); err != nil {
			t.Fatal(err)
		}
	}
	os.Chmod(dir, 0o755)
	return w
}

// write makes a file below the world's directory.
func (w *world) write(name, content string) error {
	p := filepath.Join(w.dir, name)
	return errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o755))
}

// policy is strict's for the case, less the layers that the driver does not have
// and the case is not about.
func (c *scenario) policy(t *testing.T, w *world, layers policy.Layers, about []string) *policy.Policy {
	req := &profiles.Request{Profile: "strict", Dir: w.ws, Command: c.args}
	if c.script != "" {
		req.Command = []string{"/bin/sh", "-c", c.script}
	}
	req.Degrade = ^layers & (policy.LayerAppArmor - 1 | policy.LayerProtect)
	if os.Geteuid() != 0 && !delegated() {
		req.Degrade |= policy.LayerCgroup
	}
	for _, f := range about {
		if name, ok := strings.CutPrefix(f, "layer."); ok {
			l, err := policy.ParseLayer(name)
			if err != nil {
				t.Fatal(err)
			}
			if os.Geteuid() != 0 && !delegated() && l&policy.LayerCgroup != 0 {
				t.Skip("no cgroup is delegated to this user")
			}
			req.Degrade &^= l
		}
	}
	timeout, grace := 20*time.Second, 2*time.Second
	req.Timeout, req.KillAfter = &timeout, &grace
	if c.request != nil {
		c.request(w, req)
	}
	facts := &profiles.Facts{
		Home: w.dir + "/home", Cwd: w.ws, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), CPUs: 2, FS: os.DirFS("/"),
		Environ: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "TERM=xterm", "AWS_SECRET_ACCESS_KEY=leak", "LD_LIBRARY_PATH=/leak"},
	}
	r, err := profiles.Resolve(req, facts)
	if err != nil {
		t.Fatal(err)
	}
	if c.change != nil {
		c.change(w, r.Policy)
	}
	return r.Policy
}

// delegated reports whether this user can have cgroups.
func delegated() bool {
	l, err := cgroups.Read()
	if err != nil {
		return false
	}
	limit := int64(64 << 20)
	g, err := cgroups.Prepare(l, resources(limit))
	if g != nil {
		g.Close()
	}
	return err == nil
}

func (c *scenario) do(t *testing.T, s subject, w *world, p *policy.Policy) (*driver.Result, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o := driver.RunOptions{Capture: true}
	o.Stdio.Extra = w.extra
	if c.stdin != nil {
		r, wr, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		go func() {
			wr.Write(c.stdin)
			wr.Close()
		}()
		o.Stdio.Stdin = r
	}
	var terminal chan []byte
	if p.OCI.Process.Terminal {
		terminal = make(chan []byte, 1)
		o.Capture = false
	}
	if c.act != nil || terminal != nil {
		o.Started = func(proc driver.Process) func() {
			done := make(chan struct{})
			if terminal != nil {
				// Of our own: Wait closes the process's.
				master := duplicate(t, proc.Pty())
				go func() {
					defer master.Close()
					var b bytes.Buffer
					io.Copy(&b, master)
					terminal <- b.Bytes()
				}()
			}
			if c.act != nil {
				go func() {
					defer close(done)
					c.act(w, proc, cancel)
				}()
			} else {
				close(done)
			}
			return func() { <-done }
		}
	}
	// A driver that hangs fails here, and not the whole suite. Container engines take their
	// time on a busy machine.
	type answer struct {
		res *driver.Result
		err error
	}
	ch := make(chan answer, 1)
	go func() {
		res, err := driver.Run(ctx, s.driver, p, o)
		ch <- answer{res, err}
	}()
	select {
	case a := <-ch:
		if terminal != nil && a.err == nil {
			select {
			case b := <-terminal:
				a.res.Stdout = strings.ReplaceAll(string(b), "\r\n", "\n")
			case <-time.After(5 * time.Second):
				t.Error("the terminal stayed open")
			}
		}
		return a.res, a.err
	case <-time.After(3 * time.Minute):
		t.Fatal("still running after three minutes")
	}
	return nil, nil
}

func duplicate(t *testing.T, f *os.File) *os.File {
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	raw.Control(func(from uintptr) { fd, err = syscall.Dup(int(from)) })
	if err != nil {
		t.Fatal(err)
	}
	syscall.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "pty")
}

// TestDeviceNodes: a command with the id that owns the host's device nodes changes them
// neither by path nor by a descriptor. Under landlock, which has no mounts of its own
// and says so, the same act changes them.
func TestDeviceNodes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs who owns /dev/full")
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	changed := func() unix.Timespec {
		var st unix.Stat_t
		if err := unix.Fstat(int(full.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ctim
	}
	for _, s := range subjects() {
		if !slices.Contains([]string{"native", "bwrap", "runc", "crun", "gvisor", "landlock"}, s.name) {
			continue // an engine makes nodes of its own
		}
		for _, act := range []string{"chmod 666 /dev/full", "chmod 666 /proc/self/fd/0"} {
			t.Run(s.name+" "+act, func(t *testing.T) {
				if err := s.driver.Available(context.Background()); err != nil {
					t.Skip(err)
				}
				c := scenario{script: act + "; : </dev/zero; echo x 2>/dev/null >/dev/full || echo full"}
				p := c.policy(t, newWorld(t), s.driver.Describe().Claims.Layers()&^s.lacks, nil)
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				before := changed()
				proc, err := s.driver.Start(context.Background(), p, driver.Stdio{Stdin: full, Stdout: w})
				w.Close()
				if err != nil {
					t.Fatal(err)
				}
				out, _ := io.ReadAll(r)
				if st, err := proc.Wait(); err != nil || string(out) != "full\n" {
					t.Errorf("%+v, %v, %q", st, err, out)
				}
				if did, can := changed() != before, s.name == "landlock"; did != can {
					t.Errorf("the host's node changed: %v", did)
				}
			})
		}
	}
}

// TestPassedForReading: a file of the caller's that is passed to be read is not changed,
// though the command has the id that owns it, and stands afterwards where the command
// stopped. Under host, which isolates nothing, the same acts change it, and under
// landlock chmod(2) does.
func TestPassedForReading(t *testing.T) {
	const before = "one\ntwo\nthree\n"
	for _, s := range subjects() {
		if s.start != nil {
			continue // an engine's client reads the file, and the container never has it
		}
		t.Run(s.name, func(t *testing.T) {
			if err := s.driver.Available(context.Background()); err != nil {
				t.Skip(err)
			}
			w := newWorld(t)
			if err := w.write("outside/list", before); err != nil {
				t.Fatal(err)
			}
			name := w.outside + "/list"
			in, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			run := func(script string) (string, error) {
				c := scenario{script: script}
				p := c.policy(t, w, s.driver.Describe().Claims.Layers()&^s.lacks, nil)
				res, err := driver.Run(context.Background(), s.driver, p, driver.RunOptions{Capture: true, Stdio: driver.Stdio{Stdin: in}})
				if err != nil {
					return "", err
				}
				return res.Stdout, nil
			}
			if out, err := run("read a; echo $a"); err != nil || out != "one\n" {
				t.Errorf("%q, %v", out, err)
			}
			at, err := in.Seek(0, io.SeekCurrent)
			// runc and runsc read ahead, and do not tell how much of it the command read.
			if ahead := s.name == "runc" || s.name == "gvisor"; err != nil || (at == 4) == ahead {
				t.Errorf("the file stands at %d, %v", at, err)
			}
			for _, act := range []string{": >/proc/self/fd/0", "echo x >>/dev/stdin", "truncate -s 1 /proc/self/fd/0", "chmod 777 /proc/self/fd/0"} {
				if _, err := in.Seek(0, io.SeekStart); err != nil {
					t.Fatal(err)
				}
				if _, err := run(act); err != nil {
					t.Errorf("%s: %v", act, err)
				}
				b, err := os.ReadFile(name)
				fi, e := os.Stat(name)
				if err != nil || e != nil {
					t.Fatal(err, e)
				}
				can := s.name == "host" || s.name == "landlock" && strings.HasPrefix(act, "chmod")
				if did := string(b) != before || fi.Mode() != 0o755; did != can {
					t.Errorf("%s: it changed: %v; %q, %v", act, did, b, fi.Mode())
				}
				if err := errors.Join(os.WriteFile(name, []byte(before), 0o755), os.Chmod(name, 0o755)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// swappable are the drivers that have a program build the sandbox, with the program.
var swappable = map[string]func(path string) driver.Driver{
	"bwrap": func(path string) driver.Driver { return bwrap.Driver{Path: path} },
	"runc":  func(path string) driver.Driver { return gvisor.Driver{Runtime: "runc", Path: path} },
	"crun":  func(path string) driver.Driver { return gvisor.Driver{Runtime: "crun", Path: path} },
	"runsc": func(path string) driver.Driver { return gvisor.Driver{Path: path} },
}

// swapped runs do for each of these drivers, whose program is a script that swaps paths
// where the tests run, not where the program's mounts are, and then becomes it.
func swapped(t *testing.T, swap func(w *world) string, do func(t *testing.T, w *world, d driver.Driver)) {
	if os.Geteuid() != 0 {
		t.Skip("needs who can mount: another user's program gets the host's paths")
	}
	for name, make := range swappable {
		t.Run(name, func(t *testing.T) {
			real, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := make(real).Available(context.Background()); err != nil {
				t.Skip(err)
			}
			w := newWorld(t)
			if err := w.write("program", fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *--args*|*' run '*) nsenter --mount=/proc/%d/ns/mnt sh -c '%s';; esac\nexec %s \"$@\"\n", os.Getpid(), swap(w), real)); err != nil {
				t.Fatal(err)
			}
			do(t, w, make(w.dir+"/program"))
		})
	}
}

// TestSwappedForProgram: where a path is another file by the time the program that builds
// the sandbox takes it, the command has what sbxrun opened, and nothing else is written.
func TestSwappedForProgram(t *testing.T) {
	swapped(t, func(w *world) string {
		return "cd " + w.dir + "; mv ws ws.was; ln -s outside ws; mv list list.was; ln -s outside/canary list"
	}, func(t *testing.T, w *world, d driver.Driver) {
		if err := w.write("list", "list\n"); err != nil {
			t.Fatal(err)
		}
		c := scenario{script: "cat file ../list; echo new >made; : >../list; : >canary", request: func(w *world, r *profiles.Request) { r.ReadWrite = []string{w.dir + "/list"} }}
		p := c.policy(t, w, d.Describe().Claims.Layers(), nil)
		res, err := driver.Run(context.Background(), d, p, driver.RunOptions{Capture: true})
		if err != nil || res.Stdout != "in the workspace\nlist\n" {
			t.Errorf("%+v, %v", res, err)
		}
		if to, err := os.Readlink(w.ws); err != nil || to != "outside" {
			t.Fatalf("nothing was swapped: %q, %v", to, err)
		}
		for file, want := range map[string]string{"outside/canary": "canary\n", "ws.was/made": "new\n", "list.was": ""} {
			if d := on(file, want)(w, nil); d != "" {
				t.Error(d)
			}
		}
		if d := absent(w.outside+"/made")(w, nil); d != "" {
			t.Error(d)
		}
	})
}

// TestSwappedMountPoint: where a hidden file is a dangling link by the time the program
// makes its mount point, the program makes no file of the host's, and nothing is read.
func TestSwappedMountPoint(t *testing.T) {
	swapped(t, func(w *world) string {
		// bwrap has the host's files below /oldroot while it mounts.
		return fmt.Sprintf("cd %s; ln -sf %s/planted hidden; ln -sf /oldroot%[2]s/planted hidden2; ln -sf ../outside/planted hidden3", w.ws, w.outside)
	}, func(t *testing.T, w *world, d driver.Driver) {
		for _, hidden := range []string{"/hidden", "/hidden2", "/hidden3"} {
			os.Remove(w.ws + hidden)
			if err := w.write("ws"+hidden, "secret\n"); err != nil {
				t.Fatal(err)
			}
			c := scenario{script: "cat ." + hidden, request: func(w *world, r *profiles.Request) { r.Hide = []string{w.ws + hidden} }}
			p := c.policy(t, w, d.Describe().Claims.Layers(), nil)
			// bwrap refuses with an error, the others' cat finds nothing.
			res, err := driver.Run(context.Background(), d, p, driver.RunOptions{Capture: true})
			if err == nil && res.ExitCode == 0 || res.Stdout != "" {
				t.Errorf("%s: %+v, %v", hidden, res, err)
			}
			if to, err := os.Readlink(w.ws + hidden); err != nil || !strings.HasSuffix(to, "planted") {
				t.Fatalf("nothing was swapped: %q, %v", to, err)
			}
			if d := absent(w.outside+"/planted")(w, nil); d != "" {
				t.Errorf("%s: %s", hidden, d)
			}
			os.Remove(w.outside + "/planted")
		}
	})
}

// engines are the drivers that the Makefile's LONG leaves to make test-rest.
const engines = "^TestConformance$/^(runc|crun|gvisor|docker|podman)$"

// TestOrdinaryUser runs the suite once more as a user who is not root, and
// TestOrdinaryUserEngines its part that takes long.
func TestOrdinaryUser(t *testing.T) {
	asOrdinary(t, "-test.run=^(TestConformance|TestPassedForReading)$", "-test.skip="+engines)
}

func TestOrdinaryUserEngines(t *testing.T) { asOrdinary(t, "-test.run="+engines) }

func asOrdinary(t *testing.T, args ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this is that user")
	}
	dir, err := os.MkdirTemp("", "sbxrun-conformance-bin-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	bin := filepath.Join(dir, "conformance.test")
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, b, 0o755); err != nil {
		t.Fatal(err)
	}
	args = append(args, "-test.v="+strconv.FormatBool(testing.Verbose()))
	if *update {
		args = append(args, "-update")
		filepath.WalkDir("testdata", func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, ordinary, ordinary))
		})
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
	if *update {
		filepath.WalkDir("testdata", func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, 0, 0))
		})
	}
}

// TestEnoughCases counts: DRV-4 wants sixty.
func TestEnoughCases(t *testing.T) {
	names := map[string]bool{}
	for _, c := range cases() {
		if names[c.name] {
			t.Errorf("%s is there twice", c.name)
		}
		names[c.name] = true
		for _, f := range strings.Fields(c.about) {
			if !slices.ContainsFunc(driver.Features, func(x driver.Feature) bool { return x.Name == f }) {
				t.Errorf("%s: no feature %q", c.name, f)
			}
		}
	}
	if len(names) < 60 {
		t.Errorf("%d cases", len(names))
	}
}
