package docker

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

var update = flag.Bool("update", false, "write the golden files")

// resolve makes the policy of the preset docker on a small host.
func resolve(t testing.TB, change func(*profiles.Request)) *policy.Policy {
	t.Helper()
	host := fstest.MapFS{}
	for _, d := range []string{"home/u/ws/sub", "data/a,b"} {
		host[d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
	host["home/u/ws/secret"] = &fstest.MapFile{Mode: 0o600}
	req := &profiles.Request{Command: []string{"make", "test"}, Profile: "docker"}
	if change != nil {
		change(req)
	}
	r, err := profiles.Resolve(req, &profiles.Facts{
		Home: "/home/u", Cwd: "/home/u/ws", UID: 501, GID: 20, CPUs: 4, FS: host, Environ: []string{"PATH=/usr/bin", "TERM=xterm", "LANG=C.UTF-8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.Policy
}

func facts() Facts {
	is := func(names ...string) func(string) bool {
		return func(p string) bool { return slices.Contains(names, p) }
	}
	return Facts{
		IsDir: is("/home/u/ws", "/home/u/ws/sub"), IsFile: is("/home/u/ws/secret"),
		Name: "sbxrun-h-1-2-r", Labels: []string{labelRun + "=sbxrun-h-1-2-r"}, EnvFile: "/dev/fd/3", Seccomp: "/dev/fd/4", Stdin: true,
	}
}

func TestArgs(t *testing.T) {
	for _, tt := range []struct {
		name   string
		driver Driver
		facts  func(*Facts)
		change func(*profiles.Request)
		policy func(*policy.Policy)
	}{
		{name: "preset"},
		{name: "podman", driver: Driver{Podman: true}, facts: func(f *Facts) { f.Podman, f.Rootless, f.Hosts = true, true, "/run/x/hosts" }, change: func(r *profiles.Request) { r.Hide = []string{"sub"} }},
		{name: "rootless", facts: func(f *Facts) { f.Rootless = true }},
		{name: "files", change: func(r *profiles.Request) {
			r.Hide = []string{"sub", "secret"}
			r.ReadOnly = []string{"/data/a,b"}
			r.Binds = []profiles.Bind{{Source: "/data/a,b", Destination: `/mnt/"q"`, ReadOnly: true}}
			r.Tmpfs = []profiles.Tmpfs{{Path: "/big", Size: 1 << 20}}
			r.Workspace = "bind"
		}},
		{name: "host", driver: Driver{Labels: []string{"team=x"}, Entrypoint: "/entry"}, change: func(r *profiles.Request) {
			m, zero, zeroF, zeroI, files := policy.EgressHost, uint64(0), 0.0, int64(0), uint64(64)
			r.Net, r.Memory, r.CPUs, r.Pids, r.OpenFiles = &m, &zero, &zeroF, &zeroI, &files
			r.Command = []string{"--flag", "a b"}
		}},
		{name: "ports", driver: Driver{Ports: []string{"127.0.0.1:8080:80"}}, change: func(r *profiles.Request) { m := policy.EgressHost; r.Net = &m }},
		{name: "volumes", change: func(r *profiles.Request) { r.Env = []string{"MY_VISIBLE_DEVICES=0"} }, policy: func(p *policy.Policy) { p.OCI.Process.ApparmorProfile = "p" }, facts: func(f *Facts) {
			f.Image, f.Volumes = "sha256:0123", []string{"/v", "/v/../v/deep/", "/tmp", "/tmp/v", "/home/u/ws"}
			f.Annotated, f.Labelled = []string{"org.opencontainers.image.title"}, []string{"", " ", "\t", "a b", "a ", "a=b", "a\x00", "io.containers.capabilities", labelRun, "traefik.enable"}
			f.Devices, f.NoAppArmor = []string{"NVIDIA_VISIBLE_DEVICES", "MY_VISIBLE_DEVICES"}, true
		}},
		{name: "options", policy: func(p *policy.Policy) {
			p.OCI.Process.ApparmorProfile = "p"
			p.OCI.Process.Terminal = true
			p.OCI.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm"}}
			p.OCI.Process.Rlimits = append(p.OCI.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: 5, Hard: 1<<64 - 1})
			p.Scratch = policy.Scratch{Bytes: 64 << 20, Inodes: 1000}
		}, facts: func(f *Facts) { f.Passed, f.Seccomp, f.Stdin = []string{"ODD"}, "", false }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := resolve(t, tt.change)
			if tt.policy != nil {
				tt.policy(p)
			}
			f := facts()
			if tt.facts != nil {
				tt.facts(&f)
			}
			tt.driver.Image = "node:20-alpine"
			if err := tt.driver.Check(p); err != nil {
				t.Fatal(err)
			}
			args, err := tt.driver.Args(p, f)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(args, "\n") + "\n"
			file := filepath.Join("testdata", tt.name+".args")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s differs; got\n%s", file, got)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for name, change := range map[string]func(p *policy.Policy){
		"egress by name":   func(p *policy.Policy) { p.Egress.Mode = policy.EgressProxy },
		"a synthetic file": func(p *policy.Policy) { p.Synthetic = []policy.SyntheticFile{{Path: "/etc/x"}} },
		"no execution":     func(p *policy.Policy) { p.Files = append(p.Files, policy.FileRule{Path: "/x", Access: policy.Read}) },
		"the host's root":  func(p *policy.Policy) { p.Files = append(p.Files, policy.FileRule{Path: "/", Access: policy.ReadExec}) },
		"the host's /sbin": func(p *policy.Policy) {
			p.Files = append(p.Files, policy.FileRule{Path: "/sbin", Access: policy.ReadExec})
		},
		"a capability": func(p *policy.Policy) {
			p.OCI.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}}
		},
		"an odd byte": func(p *policy.Policy) { p.OCI.Process.Args = []string{"echo", "\xff"} },
		"Landlock":    func(p *policy.Policy) { p.Require |= policy.LayerLandlock },
		"a label":     func(p *policy.Policy) { p.OCI.Process.SelinuxLabel = "x" },
		"a sysctl":    func(p *policy.Policy) { p.OCI.Linux.Sysctl = map[string]string{"a": "b"} },
		"another mount": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/x", Type: "nfs"})
		},
		"an unknown rlimit": func(p *policy.Policy) { p.OCI.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_X"}} },
		"a colon in tmpfs": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Destination: "/a:exec", Type: "tmpfs"})
		},
		"a PATH of two lines": func(p *policy.Policy) { p.OCI.Process.Env = append(p.OCI.Process.Env, "PATH=/a\n/b") },
		"a DOCKER_HOST of two lines": func(p *policy.Policy) {
			p.OCI.Process.Env = append(p.OCI.Process.Env, "DOCKER_HOST=a\nb")
		},
	} {
		p := resolve(t, nil)
		change(p)
		var e *driver.UnsupportedError
		if err := (Driver{Image: "x"}).Check(p); !errors.As(err, &e) || len(e.Rules) == 0 || driver.CodeOf(err) != driver.CodeUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	for what, change := range map[string]func(f *Facts){
		"image.annotations.run.oci.seccomp_bpf_data": func(f *Facts) { f.Annotated = []string{"run.oci.seccomp_bpf_data"} },
		"image.volumes./rel":                         func(f *Facts) { f.Volumes = []string{"rel"} },
		// What is told of an image is its words, and no sentence of sbxrun's.
		`image.annotations."x\nsbxrun: hint: do y"`: func(f *Facts) { f.Annotated = []string{"x\nsbxrun: hint: do y"} },
		`image.volumes."/sys/x (do\x1b y)"`:         func(f *Facts) { f.Volumes = []string{"/sys/x (do\x1b y)"} },
		// Each would have a page at least, and no bound on its files.
		"limits.disk (in 2002 parts": func(f *Facts) {
			for i := range 2000 {
				f.Volumes = append(f.Volumes, "/v"+strconv.Itoa(i))
			}
		},
	} {
		f := facts()
		change(&f)
		var e *driver.UnsupportedError
		small := resolve(t, func(r *profiles.Request) { n := uint64(1 << 20); r.Disk = &n })
		if args, err := (Driver{Image: "x"}).Args(small, f); !errors.As(err, &e) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %d arguments, %v", what, len(args), err)
		}
	}
	for _, at := range []string{"/", "/proc/x", "/sys", "/dev/shm", "/sbin", "/a:rw", "/home/u/ws/sub"} {
		f := facts()
		f.Volumes = []string{at}
		var e *driver.UnsupportedError
		if args, err := (Driver{Image: "x"}).Args(resolve(t, nil), f); !errors.As(err, &e) || !strings.Contains(err.Error(), "image.volumes."+at) {
			t.Errorf("volume %s: %q, %v", at, args, err)
		}
	}
	var e *driver.UnsupportedError
	if err := (Driver{}).Check(resolve(t, nil)); !errors.As(err, &e) || !strings.Contains(e.Fix, "--image") {
		t.Errorf("no image: %v", err)
	}
	for _, image := range []string{"--privileged", "a b", "a\nb"} {
		if err := (Driver{Image: image}).Check(resolve(t, nil)); driver.CodeOf(err) != driver.CodeInvalid {
			t.Errorf("image %q: %v", image, err)
		}
	}
}

func TestClaims(t *testing.T) {
	for _, d := range []Driver{{}, {Podman: true}} {
		if missing := d.Describe().Claims.Missing(); len(missing) != 0 {
			t.Errorf("%s says nothing of %q", d.Name(), missing)
		}
	}
}

func TestEnvironmentSplit(t *testing.T) {
	file, passed, refused := environment([]string{"A=1", "B= x # y", "C=a\nb", "D=a\rb", "E=\xff", "#F=1", "G=", "HOME=a\nb", "http_proxy=a\nb", "LD_PRELOAD=\xff", "DOCKER_HOST=tcp://x"})
	if got := string(file); got != "A=1\nB= x # y\nG=\nDOCKER_HOST=tcp://x\n" {
		t.Errorf("%q", got)
	}
	if want := []string{"C=a\nb", "D=a\rb", "#F=1"}; !slices.Equal(passed, want) {
		t.Errorf("%q", passed)
	}
	if len(refused) != 4 {
		t.Errorf("%q", refused)
	}
}

// TestLacking: an engine drops a limit that its kernel does not know with a
// warning; the driver does not.
func TestLacking(t *testing.T) {
	d := Driver{Image: "x"}
	all := engine{seccomp: true, memory: true, cpu: true, pids: true}
	bare := resolve(t, func(r *profiles.Request) { r.Seccomp = "none" })
	if unconfined := (engine{seccomp: true, unconfined: true}); d.layers(bare, &unconfined).Has(policy.LayerSeccomp) || !d.layers(resolve(t, nil), &unconfined).Has(policy.LayerSeccomp) {
		t.Error("the engine's own filter")
	}
	p := resolve(t, nil)
	if err := d.lacking(p, &all); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*engine){
		"cgroup.memory": func(e *engine) { e.memory = false }, "cgroup.cpu": func(e *engine) { e.cpu = false },
		"cgroup.pids": func(e *engine) { e.pids = false }, "seccomp": func(e *engine) { e.seccomp = false },
	} {
		e := all
		change(&e)
		var u *driver.UnavailableError
		p := resolve(t, nil)
		if err := d.lacking(p, &e); !errors.As(err, &u) || !strings.Contains(u.What, name) {
			t.Errorf("%s: %v", name, err)
		}
		l, err := policy.ParseLayer(name)
		if err != nil {
			t.Fatal(err)
		}
		p.Degrade, p.Require = l, p.Require&^l
		if err := d.lacking(p, &e); err != nil {
			t.Errorf("%s, agreed to go without: %v", name, err)
		}
		if d.layers(p, &e).Has(l) {
			t.Errorf("%s is reported", name)
		}
		p.Require |= l
		if err := d.lacking(p, &e); !errors.As(err, &u) {
			t.Errorf("%s, required and agreed to be missing: %v", name, err)
		}
	}
	p.Require |= policy.LayerUser
	if err := d.lacking(p, &all); err == nil {
		t.Error("a user namespace is required and not there")
	}
	all.rootless = true
	if err := d.lacking(p, &all); err != nil {
		t.Error(err)
	}
}

func TestOrphan(t *testing.T) {
	started := func(pid int) string { return map[int]string{10: "500", 11: "600"}[pid] }
	for name, want := range map[string]bool{
		"sbxrun-m-10-500-aa": false, "sbxrun-m-10-501-aa": true, "sbxrun-m-12-500-aa": true,
		"sbxrun-other-12-500-aa": false, "sbxrun-m-12-500": false, "x-m-12-500-aa": false, "sbxrun-m-x-500-aa": false, "": false, "sbxrun-m-0-1-a": false,
	} {
		if got := orphan(name, "m", started); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	if orphan("sbxrun-m-77-5-x", "m", func(int) string { return hidden }) {
		t.Error("a process that cannot be seen is not gone")
	}
	name, err := newName()
	if err != nil || orphan(name, machine(), startedAt) {
		t.Errorf("%s is an orphan's, %v", name, err)
	}
}

func TestSaid(t *testing.T) {
	for in, want := range map[string]string{
		"Unable to find image\ndocker: Error response from daemon: Get x: no route.\nSee 'docker run --help'.\n": "Get x: no route.",
		"Error response from daemon: nope\n": "nope", "Error: x\n": "x", "": "", "a\rb\n": "b",
		// The name of a file in an image.
		"Error: open /x\x1b[2K\u202e\xff: is a link": `open /x\x1b[2K\u202e\xff: is a link`,
	} {
		if got := said(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// TestPrintable: what a registry says while an image is pulled does not reach the
// terminal but as lines of text.
func TestPrintable(t *testing.T) {
	var b strings.Builder
	p := &printable{w: &b}
	for _, s := range []string{"Trying to", " pull x\n", "\x1b[2Ksbxrun: \x9b1m\xff\u202e\r\nCopying é\n\n", strings.Repeat("y", 10000), "end"} {
		if n, err := p.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
	p.flush()
	if want := "Trying to pull x\n\\x1b[2Ksbxrun: \\x9b1m\\xff\\u202e\nCopying é\n" + strings.Repeat("y", 4096) + "end\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestStartError(t *testing.T) {
	if err := startError(`failed to create task: OCI runtime create failed: runc create failed: exec: "nope": executable file not found in $PATH: unknown`); driver.ExitCodeOf(err) != driver.ExitNotFound {
		t.Error(err)
	}
	if err := startError(`exec: "/x": permission denied: unknown`); driver.ExitCodeOf(err) != driver.ExitNotExecutable {
		t.Error(err)
	}
	if err := startError(`exec: "/sbin/docker-init": stat /sbin/docker-init: no such file or directory: unknown`); err != nil {
		t.Error("the engine's own program is taken for the command:", err)
	}
	if err := startError("no space left on device"); err != nil {
		t.Error(err)
	}
}

func TestLocal(t *testing.T) {
	for host, want := range map[string]bool{"": true, "unix:///var/run/docker.sock": true, "npipe:////./pipe/x": true, "tcp://127.0.0.1:2375": false, "ssh://u@h": false} {
		if local(host) != want {
			t.Error(host)
		}
	}
}

func TestUnexecuted(t *testing.T) {
	file := func(mode int64, typ byte) *tar.Header { return &tar.Header{Mode: mode, Typeflag: typ} }
	plain, program, dir := file(0o644, tar.TypeReg), file(0o755, tar.TypeReg), file(0o755, tar.TypeDir)
	for _, tt := range []struct {
		code  int
		found []*tar.Header
		want  syscall.Errno
	}{
		{127, []*tar.Header{nil, nil}, syscall.ENOENT},
		{127, []*tar.Header{nil, program}, 0},
		{127, []*tar.Header{plain}, 0},
		{126, []*tar.Header{plain, nil}, syscall.EACCES},
		{126, []*tar.Header{dir}, syscall.EACCES},
		{126, []*tar.Header{plain, program}, 0},
		{126, []*tar.Header{nil}, 0},
		{1, []*tar.Header{nil}, 0},
	} {
		if got := unexecuted(tt.code, tt.found); got != tt.want {
			t.Errorf("%d %v: %v, want %v", tt.code, tt.found, got, tt.want)
		}
	}
	for _, tt := range []struct {
		name string
		env  []string
		want string
	}{
		{"x", []string{"PATH=/a:/b/"}, "/a/x /b/x"},
		{"x", []string{"PATH=:d"}, "/ws/x /ws/d/x"},
		{"./x", nil, "/ws/x"},
		{"/x/../y", nil, "/y"},
		{"x", nil, "/usr/local/sbin/x /usr/local/bin/x /usr/sbin/x /usr/bin/x /sbin/x /bin/x"},
		{"x", []string{"PATH=/a" + strings.Repeat(":/a", 63)}, strings.TrimSpace(strings.Repeat("/a/x ", 64))},
		{"x", []string{"PATH=/a" + strings.Repeat(":/a", 64)}, ""},
	} {
		if got := strings.Join(candidates(tt.name, "/ws", tt.env), " "); got != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.name, tt.env, got, tt.want)
		}
	}
}

// TestFollow: links of an image stay in it, and lead to what the engine would read.
func TestFollow(t *testing.T) {
	image := fstest.MapFS{
		"etc":         {Mode: fs.ModeSymlink, Data: []byte("/nix/../nix/etc")},
		"nix/etc":     {Mode: fs.ModeDir | 0o755},
		"nix/etc/ok":  {Data: []byte("x")},
		"nix/etc/up":  {Mode: fs.ModeSymlink, Data: []byte("../../../../dev/zero")},
		"nix/etc/too": {Mode: fs.ModeSymlink, Data: []byte("big")},
		"nix/etc/big": {Data: make([]byte, maxAccounts+1)},
		"nix/etc/eye": {Mode: fs.ModeSymlink, Data: []byte("./eye")},
		"dev/zero":    {Mode: fs.ModeDevice | fs.ModeCharDevice},
	}
	lookup := func(name string) (fs.FileInfo, string, error) {
		f, ok := image[strings.TrimPrefix(name, "/")]
		if !ok {
			if name == "/nix" || name == "/dev" {
				f = &fstest.MapFile{Mode: fs.ModeDir}
			} else {
				return nil, "", nil
			}
		}
		link := ""
		if f.Mode&fs.ModeSymlink != 0 {
			link = string(f.Data)
		}
		return (&tar.Header{Name: name, Size: int64(len(f.Data)), Mode: int64(f.Mode.Perm()), Typeflag: typeflag(f.Mode)}).FileInfo(), link, nil
	}
	for name, want := range map[string]struct {
		at   string
		good bool
	}{
		"/etc/ok": {"/nix/etc/ok", true}, "/etc/up": {"/dev/zero", false}, "/etc/big": {"/nix/etc/big", false}, "/etc/too": {"/nix/etc/big", false},
		"/etc/nope": {"/nix/etc/nope", true}, "/x/y": {"/x/y", true}, "/etc": {"/nix/etc", false}, "/etc/eye": {"/nix/etc/eye", true},
	} {
		at, _, err := follow(lookup, name)
		refused, _ := accounts(lookup, name)
		if err != nil || at != want.at || (refused == "") != want.good {
			t.Errorf("%s: %s, %q, %v", name, at, refused, err)
		}
	}
}

func typeflag(m fs.FileMode) byte {
	switch {
	case m.IsDir():
		return tar.TypeDir
	case m&fs.ModeSymlink != 0:
		return tar.TypeSymlink
	case m&fs.ModeDevice != 0:
		return tar.TypeChar
	}
	return tar.TypeReg
}

// TestDeclare: what chooses devices of the host for a container is found.
func TestDeclare(t *testing.T) {
	var i imageConfig
	if err := json.Unmarshal([]byte(`{"Id":"x","Config":{"Env":["CUDA_VERSION=1","A=b","AMD_VISIBLE_DEVICES=all","NVIDIA_VISIBLE_DEVICES=0"]}}`), &i); err != nil {
		t.Fatal(err)
	}
	var f Facts
	if f.declare(&i); !slices.Equal(f.Devices, []string{"NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"}) {
		t.Errorf("%q", f.Devices)
	}
}

// TestAnswer: an engine's answer, which can be an image's words, has a bound; and only
// an image that is not here is fetched.
func TestAnswer(t *testing.T) {
	c := client{path: "/bin/sh"}
	out, err := c.output(t.Context(), "-c", "yes | head -c 40000000; exit 0")
	if err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	for text, want := range map[string]bool{
		"Error response from daemon: No such image: x:latest": true, "Error: No such image: x": true, "x: image not known": true, "Error: inspecting object: x: no such object": true,
		"no answer from the engine": false, "the image's configuration cannot be read": false,
	} {
		if isMissing(errors.New(text)) != want {
			t.Errorf("%q", text)
		}
	}
}

// TestNotText: an engine would take a path or a value with bytes that are not UTF-8 for
// another.
func TestNotText(t *testing.T) {
	for what, change := range map[string]func(p *policy.Policy){
		"a grant": func(p *policy.Policy) { p.Files = append(p.Files, policy.FileRule{Path: "/v\xff", Access: policy.All}) },
		"hidden": func(p *policy.Policy) {
			p.Files = append(p.Files, policy.FileRule{Path: p.OCI.Process.Cwd + "/d\xff", Access: policy.Hide})
		},
		"a bind": func(p *policy.Policy) {
			p.OCI.Mounts = append(p.OCI.Mounts, specs.Mount{Type: "bind", Source: "/v\xff", Destination: "/v"})
		},
		"no fault": func(*policy.Policy) {},
	} {
		p := resolve(t, nil)
		change(p)
		_, err := Driver{Image: "i"}.Args(p, Facts{Image: "sha256:1"})
		var e *driver.UnsupportedError
		if (what == "no fault") != (err == nil) || err != nil && !errors.As(err, &e) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestEnviron: a client gets no PATH that commands can have written to, and nothing that
// podman would hand on to the container.
func TestEnviron(t *testing.T) {
	for _, kv := range [][2]string{{"PATH", "/ws/.venv/bin:/usr/bin"}, {"NOTIFY_SOCKET", "/run/n"}, {"LISTEN_FDS", "1"}, {"LISTEN_PID", "2"}, {"LISTEN_FDNAMES", "x"}, {"DOCKER_HOST", "unix:///x"}} {
		t.Setenv(kv[0], kv[1])
	}
	env := environ()
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if name == "NOTIFY_SOCKET" || strings.HasPrefix(name, "LISTEN_") || name == "PATH" && strings.Contains(value, ".venv") {
			t.Error(kv)
		}
	}
	if !slices.Contains(env, "DOCKER_HOST=unix:///x") {
		t.Errorf("%q", env)
	}
}
