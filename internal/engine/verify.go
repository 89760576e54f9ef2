package engine

import (
	"context"
	"encoding/hex"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/probe"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// Verify proves, if that is asked for, that what the policy denies is denied:
// it runs a program of ours under the same policy, which tries. Without
// --verify it does so once for each kernel, executable, driver and configuration,
// and then costs one stat(2).
func Verify(ctx context.Context, d driver.Driver, r *profiles.Resolved, f *Facts, asked bool,
	detail func(string)) error {
	if !r.Verify && !asked || !d.Sandboxed() {
		return nil
	}
	mark := verifiedMark(d, r, f)
	if !asked && mark != "" {
		if _, err := os.Stat(mark); err == nil {
			return nil
		}
	}
	if mark == "" && !asked {
		detail("self-test left out: there is no place to keep its result")
		return nil
	}
	checks, err := SelfTest(ctx, d, r.Policy)
	if err != nil {
		return err
	}
	if err := BoundaryError(checks); err != nil {
		return err
	}
	detail("self-test passed: " + strconv.Itoa(len(checks)) + " acts" + " denied as they should be")
	if mark != "" {
		// Not being able to keep the result costs time, not safety. A home that
		// does not exist is not made.
		dir := filepath.Dir(mark)
		os.Mkdir(filepath.Dir(dir), 0o700)
		os.Mkdir(dir, 0o700)
		os.WriteFile(mark, nil, 0o600)
	}
	return nil
}

// BoundaryError is nil if every canary held.
func BoundaryError(checks []probe.Check) error {
	if i := slices.IndexFunc(checks, func(c probe.Check) bool { return c.Name == "finish" }); i >= 0 &&
		!slices.ContainsFunc(checks, func(c probe.Check) bool { return c.State == probe.No }) {
		return &driver.UnavailableError{
			What:  "boundary",
			Cause: "the self-test did not finish, and proved nothing: " + checks[i].Cause,
			Fix:   "if the limits of this run are small (--pids, --memory, --nofile), give it more; --verify=false runs without the proof",
		}
	}
	for _, c := range checks {
		if c.State != probe.Yes {
			return &driver.UnavailableError{
				What:  "boundary",
				Cause: "self-test " + c.Name + " did not hold: " + c.Cause,
				Fix:   "do not run untrusted code here; sbxrun doctor tells more, and --verify=false runs without the proof",
			}
		}
	}
	return nil
}

// SelfTest runs the canaries under the policy.
func SelfTest(ctx context.Context, d driver.Driver, of *policy.Policy) ([]probe.Check, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	bait, err := layBait()
	if err != nil {
		return nil, &driver.SetupError{Driver: d.Name(), Err: err,
			Fix: "the self-test needs a directory of its own in /var/tmp, and a loopback socket"}
	}
	defer bait.close()

	p := canaryPolicy(of, exe)
	acts := bait.acts(p, describe(d))
	p.OCI.Process.Args = append([]string{exe, probe.CanaryCommand}, acts...)
	res, err := driver.Run(ctx, d, p, driver.RunOptions{Capture: true})
	if err != nil {
		return nil, err
	}
	names := make([]string, len(acts))
	for i, a := range acts {
		names[i], _, _ = strings.Cut(a, "=")
	}
	checks := probe.ParseCanaries(res.Stdout, names)
	if res.Reason != driver.ReasonExit || res.ExitCode != 0 {
		checks = append(checks, probe.Check{
			Name: "finish", Group: probe.GroupBoundary, State: probe.Unknown,
			Cause: "the program ended with " + string(res.Reason) + " " + strconv.Itoa(res.ExitCode) + ": " +
				firstLine(res.Stderr),
		})
	}
	layers := probe.Check{Name: "layers", Group: probe.GroupBoundary, State: probe.Yes, Detail: res.Layers.String()}
	if missing := p.Require &^ res.Layers; missing != 0 {
		layers.State, layers.Cause = probe.No, "required and not enforced: "+missing.String()
	}
	return append(checks, bait.taken(), layers), nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// canaryPolicy is the policy with our own program for its command: what is
// tested is the boundary, and that program is all that is added to it.
func canaryPolicy(of *policy.Policy, exe string) *policy.Policy {
	p := *of
	oci := *of.OCI
	proc := *of.OCI.Process
	proc.Terminal, proc.Env = false, append(slices.Clone(proc.Env), probe.Marker)
	oci.Process = &proc
	p.OCI = &oci
	if !Visible(of, exe) {
		p.Files = policy.Sort(append(slices.Clone(of.Files),
			policy.FileRule{Path: exe, Access: policy.ReadExec, Origin: "self-test"}))
	}
	p.Limits = policy.Limits{WallTime: 20 * time.Second, KillAfter: time.Second, Output: 64 << 10}
	return &p
}

// bait is what the canaries are to reach for, each thing reachable from here.
type bait struct {
	own    *rundir.Dir // holds the secret
	secret string
	tcp    net.Listener
	unix   net.Listener
	caught chan string // connections that arrived
}

func layBait() (_ *bait, err error) {
	b := &bait{caught: make(chan string, 2)}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	// Whatever a grant of another run lets that write, it is not here.
	if b.own, err = rundir.Make(rundir.Parent(os.Geteuid()), "canary", nil); err != nil {
		return nil, err
	}
	b.secret = filepath.Join(b.own.Path, "secret")
	if err = os.WriteFile(b.secret, []byte("canary\n"), 0o644); err != nil {
		return nil, err
	}
	if err = os.Chmod(b.own.Path, 0o755); err != nil { // mode bits are not what denies it
		return nil, err
	}
	if b.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if b.unix, err = net.Listen("unix", "@"+"sbxrun-"+filepath.Base(b.own.Path)); err != nil {
		return nil, err
	}
	for _, l := range []net.Listener{b.tcp, b.unix} {
		// It answers from here, or that it does not from inside proves nothing.
		c, err := net.Dial(l.Addr().Network(), l.Addr().String())
		if err != nil {
			return nil, err
		}
		c.Close()
		if c, err = l.Accept(); err != nil {
			return nil, err
		}
		c.Close()
		go func() {
			if c, err := l.Accept(); err == nil {
				c.Close()
				b.caught <- l.Addr().String()
			}
		}()
	}
	return b, nil
}

func (b *bait) close() {
	if b.tcp != nil {
		b.tcp.Close()
	}
	if b.unix != nil {
		b.unix.Close()
	}
	if b.own != nil {
		b.own.Remove()
	}
}

// taken reports what reached the host, whatever the canaries say.
func (b *bait) taken() probe.Check {
	c := probe.Check{Name: "host-untouched", Group: probe.GroupBoundary, State: probe.Yes,
		Detail: "no connection arrived, the secret is as it was"}
	select {
	case addr := <-b.caught:
		c.State, c.Cause = probe.No, "a connection arrived at "+addr
	default:
	}
	if data, err := os.ReadFile(b.secret); err != nil || string(data) != "canary\n" {
		c.State, c.Cause = probe.No, "the secret file was changed"
	}
	return c
}

// describe returns what a driver says of itself. One that says nothing is held to
// everything.
func describe(d driver.Driver) driver.Description {
	about := d.Describe()
	if about.Claims == nil {
		about.Claims = driver.Claims{}
		for _, f := range driver.Features {
			about.Claims[f.Name] = driver.Claim{Support: driver.Yes}
		}
	}
	return about
}

// acts lists the canaries whose acts the policy denies. What a policy allows on
// purpose is no breach; nor is what the run goes without by agreement, because the
// driver cannot give it.
func (b *bait) acts(p *policy.Policy, of driver.Description) []string {
	given := of.Claims.Layers()
	acts := []string{"gain-privilege", "change-kernel"}
	add := func(denied bool, act string) {
		if denied {
			acts = append(acts, act)
		}
	}
	place := private(p)
	add(place != "" && given.Has(policy.LayerMount), "write-private="+place) // an act that is allowed
	if place == "" {
		place = "/tmp"
	}
	add(true, "mount="+place)
	// On a kernel of the driver's own a node can be made, which says nothing. What
	// must not be is that it leads to the host's memory, log or disk.
	add(!of.Kernel, "make-device="+place)
	add(of.Kernel, "use-device="+place)
	add(given.Has(policy.LayerUser), "capabilities") // the bounding set among them
	writable := func(path string) bool { return Access(p, path)&policy.Write != 0 }
	add(!slices.ContainsFunc([]string{"/etc", "/usr", "/usr/bin"}, writable), "write-system")
	add(Access(p, b.secret) == 0, "read-secret="+b.secret)
	add(Access(p, "/etc/shadow") == 0, "read-shadow")
	add(p.Egress.Mode != policy.EgressHost, "connect-loopback="+b.tcp.Addr().String())
	add(p.Egress.Mode != policy.EgressHost, "connect-abstract="+b.unix.Addr().String())
	add(hasNamespace(p, specs.PIDNamespace) && given.Has(policy.LayerPID), "see-process="+probe.Process())
	filtered := p.Seccomp != ""
	add(filtered, "unshare")
	add(filtered || p.OCI.Linux != nil && p.OCI.Linux.Seccomp != nil, "call-freely")
	add(p.Seccomp == "strict", "trace")
	// Where the command is called root from the beginning, that name must give it
	// nothing, and everywhere else it must not have it.
	ordinary := p.OCI.Process.User.UID != 0 && of.Claims["user"].Support == driver.Yes
	add(given.Has(policy.LayerUser) && ordinary, "become-root")
	add(given.Has(policy.LayerUser) && !ordinary, "use-root") // last: it changes who it is
	return acts
}

// private is a place of the sandbox's own that any user can write to, /tmp first;
// "" if the policy has none.
func private(p *policy.Policy) string {
	for i := range p.OCI.Mounts {
		m := &p.OCI.Mounts[i]
		if m.Type != "tmpfs" || slices.Contains(m.Options, "ro") || !slices.Contains(m.Options, "mode=1777") &&
			!slices.Contains(m.Options, "mode=0700") {
			continue
		}
		covered := func(o specs.Mount) bool { return o.Destination == m.Destination }
		if !slices.ContainsFunc(p.OCI.Mounts[i+1:], covered) {
			return m.Destination
		}
	}
	return ""
}

// Access is what the policy's rules give to a host path.
func Access(p *policy.Policy, path string) policy.Access { return driver.RuleFor(p, path).Access }

// Visible reports whether the policy's rules let a host path be executed.
func Visible(p *policy.Policy, path string) bool {
	return Access(p, path)&policy.Execute != 0
}

func hasNamespace(p *policy.Policy, t specs.LinuxNamespaceType) bool {
	return p.OCI.Linux != nil && slices.ContainsFunc(p.OCI.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == t && n.Path == ""
	})
}

// verifiedMark returns the file that stands for a self-test that passed with
// this kernel, executable, driver and configuration; "" if there is no place for it.
// The workspace is not part of the configuration: it differs from run to run,
// and no canary depends on it.
func verifiedMark(d driver.Driver, r *profiles.Resolved, f *Facts) string {
	cache := cacheHome(f)
	if cache == "" {
		return ""
	}
	h := fnv.New128a()
	word := func(s string) {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	num := func(n uint64) { word(strconv.FormatUint(n, 36)) }
	if !hostIdentity(word, num) {
		return ""
	}
	p := r.Policy
	// What one driver was seen to deny says nothing of another, nor of what comes
	// in the place of the program that it is made of.
	word(d.Name())
	if program, err := d.Program(); err == nil && !fileIdentity(program, num) {
		return ""
	}
	if runsImages(d) {
		word(r.Image)
		for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST"} {
			word(os.Getenv(name)) // which engine
		}
	}
	num(uint64(f.UID))
	word(p.Profile)
	word(p.Seccomp)
	num(uint64(p.Require))
	num(uint64(p.Degrade))
	num(uint64(p.Egress.Mode))
	num(uint64(p.OCI.Process.User.UID))
	if l := p.OCI.Linux; l != nil {
		for i := range l.Namespaces {
			word(string(l.Namespaces[i].Type))
			word(l.Namespaces[i].Path)
		}
		for i := range l.Devices {
			word(l.Devices[i].Path)
		}
	}
	for i := range p.OCI.Mounts {
		m := &p.OCI.Mounts[i]
		word(m.Destination)
		word(m.Type)
		word(m.Source)
		for _, o := range m.Options {
			word(o)
		}
	}
	ws := r.Workspace.Path
	for i := range p.Files {
		rule := &p.Files[i]
		if ws != "" && policy.Below(rule.Path, ws) {
			continue
		}
		word(rule.Path)
		num(uint64(rule.Access))
	}
	return cache + "/sbxrun/verified-" + hex.EncodeToString(h.Sum(nil))
}

// Shown reports whether a directory of the host is in the sandbox under its own
// name.
func Shown(p *policy.Policy, dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || real != dir {
		return false
	}
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir() && Access(p, dir)&(policy.Read|policy.Execute) != 0
}
