package profiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/policy"
)

// hostFS is a small merged-/usr system with a user's home.
func hostFS() fstest.MapFS {
	f := fstest.MapFS{}
	for _, d := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/src/app", "etc/ssl/certs", "etc/ssh", "etc/sudoers.d", "opt/tool", "tmp", "run/user", "var/tmp", "var/log", "proc", "dev", "boot", "root/.ssh",
		"home/u/src/project/sub", "home/u/.ssh", "home/u/.aws", "home/u/.cache", "home/u/go/pkg", "home/other/.ssh", "data/real"} {
		f[d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
	for _, n := range []string{"etc/ld.so.cache", "etc/shadow", "home/u/.ssh/id_ed25519", "home/u/.ssh/known_hosts", "home/u/src/project/.env", "home/u/src/project/main.go", "home/u/src/project/a.pem", "home/u/src/project/sub/b.pem", "run/docker.sock"} {
		putFile(f, n, "x")
	}
	putFile(f, "home/u/.npmrc", "//npm.example/:_authToken=x\n")
	for l, t := range map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "home/u/link": "/data/real", "data/link": "real", "home/u/loop": "loop", "var/run": "/run", "home/u/src/plink": "project"} {
		f[l] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(t)}
	}
	f["dev/kvm"] = &fstest.MapFile{Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666}
	f["dev/dri/renderD128"] = f["dev/kvm"]
	return f
}

func putFile(f fstest.MapFS, name, text string) {
	f[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
}

func testFacts(f fs.FS) *Facts {
	return &Facts{
		Home: "/home/u", Cwd: "/home/u/src/project", UID: 501, GID: 20, CPUs: 4, FS: f,
		ConfigDirs: []string{"/home/u/.config/sbxrun", "/etc/sbxrun"},
		Environ: []string{"PATH=/usr/bin:/bin", "HOME=/home/u", "USER=u", "TERM=xterm", "LANG=C.UTF-8", "LC_TIME=C", "TZ=UTC",
			"LD_PRELOAD=/x.so", "BASH_ENV=/x", "GIT_DIR=/x", "NODE_OPTIONS=-r x", "AWS_SECRET_ACCESS_KEY=k", "SSH_AUTH_SOCK=/s", "EXTRA=1"},
	}
}

func mustResolve(t *testing.T, req Request, facts *Facts) *Resolved {
	t.Helper()
	if req.Command == nil {
		req.Command = []string{"true"}
	}
	r, err := Resolve(&req, facts)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return r
}

func access(t *testing.T, r *Resolved, p string) string {
	t.Helper()
	for _, f := range r.Policy.Files {
		if f.Path == p {
			return f.Access.String()
		}
	}
	return ""
}

// TestGolden shows what each preset becomes on one host.
func TestGolden(t *testing.T) {
	for _, name := range presetNames {
		r := mustResolve(t, Request{Profile: name}, testFacts(hostFS()))
		got, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		file := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.MkdirAll("testdata", 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, got, 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what %s says: run go test ./profiles -update, and read the difference", name, file)
		}
	}
}

// TestTable holds the presets to the table of the requirements (PRO-1).
func TestTable(t *testing.T) {
	const g, m = 1 << 30, 1 << 20
	for _, c := range []struct {
		name             string
		net              policy.EgressMode
		workspace        string
		memory, cpu, pid int64
		disk             uint64
		wall             string
		driver           string
	}{
		{"strict", policy.EgressNone, "rwx", 2 * g, 100000, 256, 512 * m, "5m0s", "native"},
		{"aicode", policy.EgressProxy, "rwx", 4 * g, 200000, 512, 10 * g, "30m0s", "native"},
		{"development", policy.EgressProxy, "rwx", 8 * g, 0, 4096, 10 * g, "0s", "native"},
		{"testing", policy.EgressNone, "rwx", 4 * g, 200000, 1024, 2 * g, "30m0s", "native"},
		{"production", policy.EgressNone, "r-x", 1 * g, 100000, 128, 512 * m, "5m0s", "native"},
		{"webscraping", policy.EgressProxy, "rwx", 2 * g, 100000, 256, 512 * m, "30m0s", "native"},
		{"docker", policy.EgressNone, "rwx", 1 * g, 100000, 512, 0, "30m0s", "docker"},
		{"unrestricted", policy.EgressHost, "", 0, 0, 0, 0, "0s", "host"},
	} {
		r := mustResolve(t, Request{Profile: c.name}, testFacts(hostFS()))
		p := r.Policy
		var memory, cpu, pid int64
		if res := p.OCI.Linux.Resources; res != nil {
			if res.Memory != nil {
				memory = *res.Memory.Limit
			}
			if res.CPU != nil {
				cpu = *res.CPU.Quota
			}
			if res.Pids != nil {
				pid = *res.Pids.Limit
			}
		}
		if p.Egress.Mode != c.net || access(t, r, "/home/u/src/project") != c.workspace || memory != c.memory || cpu != c.cpu || pid != c.pid ||
			p.Scratch.Bytes != c.disk || p.Limits.WallTime.String() != c.wall || r.Drivers[0] != c.driver {
			t.Errorf("%s: net %v, workspace %q, memory %d, cpu %d, pids %d, disk %d, wall %v, driver %v", c.name, p.Egress.Mode, access(t, r, "/home/u/src/project"), memory, cpu, pid, p.Scratch.Bytes, p.Limits.WallTime, r.Drivers)
		}
	}
	strict := mustResolve(t, Request{}, testFacts(hostFS())).Policy
	all := policy.LayerUser | policy.LayerPID | policy.LayerMount | policy.LayerNet | policy.LayerIPC | policy.LayerUTS | policy.LayerCgroupNS | policy.LayerSeccomp |
		policy.LayerLandlock | policy.LayerNoNewPrivs | policy.LayerCgroup | policy.LayerRlimits | policy.LayerProtect
	if strict.Require != all || strict.Degrade != 0 {
		t.Errorf("strict requires %v", strict.Require)
	}
	if n := mustResolve(t, Request{Profile: "unrestricted"}, testFacts(hostFS())).Notes; len(n) == 0 || !strings.Contains(n[0], "isolates nothing") {
		t.Errorf("unrestricted does not say so: %q", n)
	}
}

// TestHome: a private home is at the caller's path, and elsewhere where that is not wanted
// or leads nowhere.
func TestHome(t *testing.T) {
	for _, c := range []struct{ profile, home, want string }{
		{"strict", "/home/u", "/home/u"},
		{"strict", "/home/nobody-here", "/home/sandbox"},
		{"strict", "/etc/os-release", "/home/sandbox"}, // a file
		{"strict", "/usr/bin", "/home/sandbox"},        // of bin, daemon, games: storage there would hide the system
		{"strict", "/etc", "/home/sandbox"},
		{"strict", "/", "/home/sandbox"},
		{"strict", "", "/home/sandbox"},
		{"/home/u/anonymous.yaml", "/home/u", "/home/sandbox"},
	} {
		host := hostFS()
		host["home/u/anonymous.yaml"] = &fstest.MapFile{Data: []byte("home: anonymous\n"), Mode: 0o644}
		facts := testFacts(host)
		facts.Home = c.home
		r := mustResolve(t, Request{Profile: c.profile}, facts)
		private := slices.ContainsFunc(r.Policy.OCI.Mounts, func(m specs.Mount) bool { return m.Type == "tmpfs" && m.Destination == c.want })
		if env := r.Policy.OCI.Process.Env; !slices.Contains(env, "HOME="+c.want) || !private {
			t.Errorf("%v: %q, private %v", c, env, private)
		}
		if access(t, r, "/home/u/src/project") != "rwx" {
			t.Errorf("%v: no workspace", c)
		}
	}
}

// TestSecrets holds every profile that shows the home, and grants of it, to
// hiding what is secret (F02).
func TestSecrets(t *testing.T) {
	facts := testFacts(hostFS())
	for _, c := range []struct {
		name string
		req  Request
	}{
		{"aicode", Request{Profile: "aicode"}},
		{"development", Request{Profile: "development"}},
		{"strict --ro ~", Request{ReadOnly: []string{"~"}}},
		{"strict --ro /", Request{ReadOnly: []string{"/"}}},
		{"strict --ro /home", Request{ReadOnly: []string{"/home"}}},
		{"strict --ro ~/.*", Request{ReadOnly: []string{"~/.*", "~"}}},
	} {
		r := mustResolve(t, c.req, facts)
		for _, p := range []string{"/home/u/.ssh", "/home/u/.aws", "/home/u/.npmrc"} {
			want := "---"
			if c.name == "aicode" || c.name == "strict --ro /" || c.name == "strict --ro /home" {
				want = "" // nothing shows it: the home is private storage
			}
			if got := access(t, r, p); got != want {
				t.Errorf("%s: %s is %q", c.name, p, got)
			}
		}
		if access(t, r, "/home/u/src/project") != "rwx" { // the neighbour
			t.Errorf("%s: the workspace is %q", c.name, access(t, r, "/home/u/src/project"))
		}
	}
	// What ~/.npmrc says of tokens, if it does, is left out: TestCleanNpmrc.
	r := mustResolve(t, Request{Profile: "development"}, facts)
	for _, p := range []string{"/etc/shadow", "/etc/ssh", "/root", "/boot", "/home/other/.ssh", "/home/u/src/project/.env"} {
		if got := access(t, r, p); got != "---" {
			t.Errorf("development: %s is %q", p, got)
		}
	}
	// What a grant names is shown, and its neighbours are not.
	r = mustResolve(t, Request{Profile: "aicode", ReadOnly: []string{"~/.npmrc", "~/.ssh/known_hosts"}}, facts)
	if access(t, r, "/home/u/.npmrc") == "---" || access(t, r, "/home/u/.ssh/known_hosts") != "r-x" || access(t, r, "/home/u/.ssh") != "" {
		t.Errorf("%v", r.Policy.Files)
	}
	// The caller's own word is final.
	r = mustResolve(t, Request{ReadOnly: []string{"~/.ssh/known_hosts"}, Hide: []string{"~/.ssh"}}, facts)
	if access(t, r, "/home/u/.ssh/known_hosts") != "" {
		t.Errorf("%v", r.Policy.Files)
	}
	// A home that is a link hides by its real name.
	f := hostFS()
	f["users"] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte("home")}
	linked := testFacts(f)
	linked.Home = "/users/u"
	r = mustResolve(t, Request{Profile: "aicode"}, linked)
	if access(t, r, "/home/u/.ssh") != "" || access(t, r, "/home/u/go/pkg") != "r-x" || access(t, r, "/users") != "r-x" {
		t.Errorf("%v", r.Policy.Files)
	}
	// As does a secret that is one.
	f["home/u/.gnupg"] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte("/data/real")}
	r = mustResolve(t, Request{Profile: "development"}, testFacts(f))
	if access(t, r, "/data/real") != "---" {
		t.Errorf("%v", r.Policy.Files)
	}
	for _, b := range []Bind{{Source: "/home/u", Destination: "/mnt/h", ReadOnly: true}, {Source: "/", Destination: "/mnt/h", ReadOnly: true}} {
		if _, err := Resolve(&Request{Binds: []Bind{b}}, facts); err == nil || !strings.Contains(err.Error(), "a secret") {
			t.Errorf("--bind %v: %v", b, err)
		}
	}
	mustResolve(t, Request{Binds: []Bind{{Source: "/opt/tool", Destination: "/tool"}}}, facts)
}

// TestBadInput has every mistake of a caller that Resolve finds, with its message.
func TestBadInput(t *testing.T) {
	for _, c := range []struct {
		req        Request
		want, hint string
	}{
		{Request{Dir: "/"}, "flag --cd: / cannot be the workspace: it is the whole file system", "change to a project's directory"},
		{Request{Dir: "~"}, "flag --cd: /home/u cannot be the workspace: it is the home directory", "--cd"},
		{Request{Dir: "/home"}, "it holds the home directory", "--cd"},
		{Request{Dir: "/usr"}, "it is a system directory", "--cd"},
		{Request{Dir: "/bin"}, "/usr/bin cannot be the workspace: it is a system directory", "--cd"},
		{Request{Dir: "/etc/ssl"}, "it is a system directory", "--cd"},
		{Request{Dir: "/tmp"}, "it is a system directory", "--workspace none"},
		{Request{Dir: "/var"}, "it is a system directory", ""},
		{Request{Dir: "~/.ssh"}, "it is in ~/.ssh, which holds secrets", ""},
		{Request{Dir: "main.go"}, "flag --cd: /home/u/src/project/main.go is not a directory", "name the directory"},
		{Request{Dir: "/home/u/nope/deeper"}, "flag --cd: /home/u/nope/deeper does not exist (/home/u does, without \"nope\")", "create it"},
		{Request{Dir: "a\nb"}, `the path "a\nb" holds a NUL byte or a newline`, "rename it"},
		{Request{Dir: "a\x00b"}, `the path "a\x00b" holds a NUL byte or a newline`, ""},
		{Request{Dir: "~root/x"}, "only the caller's own ~ is known", "write the path out"},
		{Request{Dir: "~/loop"}, "too many symbolic links", ""},
		{Request{ReadOnly: []string{"/opt/nope"}}, "flag --ro: /opt/nope does not exist", "create it"},
		{Request{ReadWrite: []string{"/nope/x"}}, "flag --rw: /nope/x does not exist (/ does, without \"nope\")", ""},
		{Request{Hide: []string{"/opt/nope"}}, "flag --hide: /opt/nope does not exist", ""},
		{Request{ReadOnly: []string{""}}, "flag --ro: the path is empty", ""},
		{Request{ReadOnly: []string{"a\nb"}}, "flag --ro: the path", "rename it"},
		{Request{ReadOnly: []string{"\xff"}}, "is not UTF-8", ""},
		{Request{ReadOnly: []string{"/opt/*.x"}}, "flag --ro: \"/opt/*.x\" matches nothing", ""},
		{Request{ReadOnly: []string{"/opt/[x"}}, "is not a valid pattern", ""},
		{Request{ReadWrite: []string{"/"}}, "flag --rw: the whole file system is never writable", "name the directories"},
		{Request{ReadOnly: []string{"/proc"}}, "flag --ro: /proc: /proc is the sandbox's own", "--device"},
		{Request{ReadWrite: []string{"/dev/kvm"}}, "/dev is the sandbox's own", "--device"},
		{Request{Devices: []string{"/etc/shadow"}}, "flag --device: /etc/shadow is not a device", "--ro"},
		{Request{Devices: []string{"/dev/nope"}}, "flag --device: /dev/nope does not exist", ""},
		{Request{Binds: []Bind{{Source: "/opt", Destination: "x"}}}, "flag --bind: \"x\" is not a place in the sandbox", ""},
		{Request{Binds: []Bind{{Source: "/opt", Destination: "/dev/x"}}}, "sandbox's own", ""},
		{Request{Tmpfs: []Tmpfs{{Path: "/"}}}, "flag --tmpfs: / cannot be private storage", ""},
		{Request{Profile: "stict"}, "flag --profile: unknown profile stict", "did you mean strict?"},
		{Request{Profile: "Strict"}, "unknown profile Strict", "did you mean strict?"},
		{Request{Profile: "xyzzyxyzzy"}, "unknown profile", "there are strict, aicode"},
		{Request{Workspace: "overly"}, "flag --workspace: \"overly\" is not a value of workspace: want bind, overlay, ro, none", "did you mean overlay?"},
		{Request{Workspace: "overlay", ReadWrite: []string{"."}}, "the workspace cannot be copy-on-write: flag --rw says otherwise of /home/u/src/project", "leave one of the two out"},
		{Request{Workspace: "overlay", Profile: "unrestricted"}, "flag --workspace: profile unrestricted isolates nothing", ""},
		{Request{Memory: ptr(uint64(1000))}, "flag --memory: 1000 of memory is too little", ""},
		{Request{CPUs: ptr(-1.0)}, "flag --cpus: want a number", ""},
		{Request{Pids: ptr(int64(-1))}, "flag --pids: the value is negative", ""},
		{Request{DenyHosts: []string{"x?bad"}}, `flag --deny-host: "x?bad" is not a host`, "for example example.com"},
		{Request{Hostname: "a b"}, `flag --hostname: "a b" is not a host name`, ""},
		{Request{Seccomp: "strickt"}, `flag --seccomp: unknown system call filter "strickt"`, "did you mean strict?"},
		{Request{Seccomp: "./nope.json"}, "flag --seccomp: seccomp profile /home/u/src/project/nope.json does not exist", ""},
		{Request{Env: []string{"=x"}}, `flag --env: "=x" is not a variable`, "want KEY=VALUE"},
		{Request{Env: []string{"A=\x00"}}, "flag --env:", ""},
		{Request{Env: []string{""}}, "flag --env: \"\" is not a variable", "KEY to pass the caller's"},
		{Request{AllowHosts: []string{"localhost"}}, "flag --allow-host: localhost needs a port", "--allow-host localhost:3000"},
		{Request{AllowHosts: []string{"tls://LOCALHOST"}}, "flag --allow-host: localhost needs a port", "--allow-host tls://localhost:3000"},
		{Request{AllowHosts: []string{"127.0.0.1"}}, "flag --allow-host: 127.0.0.1 needs a port", "--allow-host 127.0.0.1:3000"},
		{Request{AllowHosts: []string{"::1"}}, "flag --allow-host: ::1 needs a port", "--allow-host [::1]:3000"},
		{Request{AllowHosts: []string{"127.0.0.0/8"}}, "flag --allow-host: 127.0.0.0/8 needs a port", "--allow-host 127.0.0.0/8:3000"},
		{Request{AllowHosts: []string{"localhost:80,1000-9000"}}, `"localhost:80,1000-9000" names too many ports of this host`, "--allow-host localhost:3000"},
		{Request{Command: []string{"a\x00b"}}, "command", ""},
		{Request{Profile: "unrestricted", ReadOnly: []string{"/opt"}}, "flag --ro: profile unrestricted isolates nothing", "another profile"},
		{Request{Profile: "unrestricted", Net: ptr(policy.EgressNone)}, "flag --net: profile unrestricted isolates nothing", ""},
	} {
		if c.req.Command == nil {
			c.req.Command = []string{"true"}
		}
		_, err := Resolve(&c.req, testFacts(hostFS()))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%+v: got %v, want %q", c.req, err, c.want)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(e.Hint(), c.hint) {
			t.Errorf("got %q, hint %q\nwant %q, hint %q", err, e.Hint(), c.want, c.hint)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %q", err)
		}
	}
}

// TestLoopbackPorts: what TestBadInput has refused is allowed with ports, and refused to
// the command with or without.
func TestLoopbackPorts(t *testing.T) {
	mustResolve(t, Request{
		AllowHosts: []string{"localhost:3000", "http://localhost", "127.0.0.1:1000-2000", "[::1]:80", "127.0.0.0/8:80", "localhost.example", "128.0.0.1", "0.0.0.0/0"},
		DenyHosts:  []string{"localhost", "127.0.0.1", "::1", "127.0.0.0/8"},
	}, testFacts(hostFS()))
}

func ptr[T any](v T) *T { return &v }

func TestWorkspace(t *testing.T) {
	facts := testFacts(hostFS())
	for _, c := range []struct{ dir, want string }{
		{"", "/home/u/src/project"}, {"sub", "/home/u/src/project/sub"}, {"../plink", "/home/u/src/project"}, {"/data/link", "/data/real"}, {"/usr/src/app", "/usr/src/app"},
	} {
		r := mustResolve(t, Request{Dir: c.dir}, facts)
		if r.Workspace.Path != c.want || r.Policy.OCI.Process.Cwd != c.want || access(t, r, c.want) != "rwx" {
			t.Errorf("%q: %v, cwd %s, %q", c.dir, r.Workspace, r.Policy.OCI.Process.Cwd, access(t, r, c.want))
		}
	}
	r := mustResolve(t, Request{Workspace: "none"}, facts)
	if r.Policy.OCI.Process.Cwd != "/home/u" || access(t, r, "/home/u/src/project") != "" {
		t.Errorf("none: %v", r.Policy)
	}
	facts.Cwd = "/"
	mustResolve(t, Request{Workspace: "none"}, facts)
	if _, err := Resolve(&Request{}, facts); err == nil {
		t.Error("/ passes as the workspace")
	}
	mustResolve(t, Request{Profile: "unrestricted"}, facts) // the neighbour: nothing is bound
}

func TestPaths(t *testing.T) {
	facts := testFacts(hostFS())
	r := mustResolve(t, Request{ReadOnly: []string{"/opt/tool", "**/*.pem", "~/link"}, ReadWrite: []string{"/data/link"}, Hide: []string{"sub"}}, facts)
	for p, want := range map[string]string{
		"/opt/tool": "r-x", "/home/u/src/project/a.pem": "r-x",
		"/home/u/src/project/sub": "---", "/home/u/src/project/sub/b.pem": "",
		"/data/real": "rwx", "/home/u/link": "r-x", "/data/link": "r-x",
	} {
		if got := access(t, r, p); got != want {
			t.Errorf("%s: %q, want %q", p, got, want)
		}
	}
	// A name that looks like a pattern and exists is a name.
	f := hostFS()
	putFile(f, "opt/[id]/x", "")
	putFile(f, "opt/i/x", "")
	r = mustResolve(t, Request{ReadOnly: []string{"/opt/[id]"}}, testFacts(f))
	if access(t, r, "/opt/[id]") != "r-x" || access(t, r, "/opt/i") != "" {
		t.Errorf("%v", r.Policy.Files)
	}
	// Naming the place of private storage shows the host's.
	r = mustResolve(t, Request{ReadWrite: []string{"/tmp"}}, facts)
	if access(t, r, "/tmp") != "rwx" || slices.ContainsFunc(r.Policy.OCI.Mounts, func(m specs.Mount) bool { return m.Destination == "/tmp" }) {
		t.Errorf("%v", r.Policy.OCI.Mounts)
	}
	// A flag beats what the profile says of the same path; flags add up.
	for _, c := range []struct {
		req        Request
		path, want string
	}{
		{Request{ReadOnly: []string{"."}}, "/home/u/src/project", "r-x"},
		{Request{Profile: "production", ReadWrite: []string{"."}}, "/home/u/src/project", "rwx"},
		{Request{Profile: "aicode"}, "/home/u/.cache", ""}, // as most of the home
		{Request{Profile: "aicode", ReadWrite: []string{"~/.cache"}}, "/home/u/.cache", "rwx"},
		{Request{Profile: "aicode", ReadOnly: []string{"."}}, "/home/u/src/project", "r-x"},
		{Request{ReadOnly: []string{"/opt"}, ReadWrite: []string{"/opt"}}, "/opt", "rwx"},
	} {
		if got := access(t, mustResolve(t, c.req, facts), c.path); got != c.want {
			t.Errorf("%+v: %s is %q, want %q", c.req, c.path, got, c.want)
		}
	}
	slash := testFacts(hostFS())
	slash.Home = "/home/u/"
	if r := mustResolve(t, Request{Profile: "aicode"}, slash); access(t, r, "/home/u/.ssh") != "" || access(t, r, "/home/u/go/pkg") != "r-x" {
		t.Errorf("HOME with a slash at its end: %v", r.Policy.Files)
	}
	r = mustResolve(t, Request{Devices: []string{"/dev/kvm"}}, facts)
	if d := r.Policy.OCI.Linux.Devices; len(d) != 1 || d[0].Path != "/dev/kvm" || d[0].Type != "c" {
		t.Errorf("%v", d)
	}
}

// TestNothingToRunLater: but for the workspace, no preset lets a command write
// what the host runs later; a cache that the caller gives is writable.
func TestNothingToRunLater(t *testing.T) {
	f := hostFS()
	for _, d := range []string{"home/u/.cache/go-build", "home/u/.rustup", "home/u/.gradle/init.d", "home/u/go/pkg/mod", "home/u/.m2/repository", "home/u/.npm"} {
		f[d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
	for _, name := range presetNames {
		if name == "unrestricted" {
			continue
		}
		for _, rule := range mustResolve(t, Request{Profile: name}, testFacts(f)).Policy.Files {
			if rule.Access&policy.Write != 0 && rule.Path != "/home/u/src/project" {
				t.Errorf("%s: %s is writable", name, rule.Path)
			}
		}
	}
	for _, name := range []string{"aicode", "development"} {
		r := mustResolve(t, Request{Profile: name, ReadWrite: []string{"~/.cache/go-build"}, Env: []string{"GOCACHE=/home/u/.cache/go-build"}}, testFacts(f))
		e := variables(r.Policy.OCI.Process.Env)
		xdg, _ := e.get("XDG_CACHE_HOME")
		gocache, _ := e.get("GOCACHE")
		if access(t, r, "/home/u/.cache/go-build") != "rwx" || access(t, r, "/home/u/.cache") != "" || xdg != "/tmp/.cache" || gocache != "/home/u/.cache/go-build" {
			t.Errorf("%s: %v, %q", name, r.Policy.Files, e)
		}
	}
}

func TestEnvironment(t *testing.T) {
	facts := testFacts(hostFS())
	env := func(req Request) variables {
		t.Helper()
		return variables(mustResolve(t, req, facts).Policy.OCI.Process.Env)
	}
	get := func(e variables, name string) string {
		v, ok := e.get(name)
		if !ok {
			return "absent"
		}
		return v
	}
	check := func(what string, e variables, want map[string]string) {
		t.Helper()
		for name, w := range want {
			if got := get(e, name); got != w {
				t.Errorf("%s: %s is %q, want %q", what, name, got, w)
			}
		}
	}
	leaks := map[string]string{"LD_PRELOAD": "absent", "BASH_ENV": "absent", "GIT_DIR": "absent", "NODE_OPTIONS": "absent", "SSH_AUTH_SOCK": "absent"}
	e := env(Request{})
	check("default", e, leaks)
	check("default", e, map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/home/u", "USER": "sandbox", "LOGNAME": "sandbox", "LC_TIME": "C", "TZ": "UTC", "TERM": "xterm",
		"EXTRA": "absent", "AWS_SECRET_ACCESS_KEY": "absent", "SBXRUN_SANDBOX": "strict"})
	e = env(Request{InheritEnv: true})
	check("inherit", e, leaks)
	check("inherit", e, map[string]string{"EXTRA": "1", "HOME": "/home/u", "AWS_SECRET_ACCESS_KEY": "k"})
	if n := mustResolve(t, Request{InheritEnv: true}, facts).Notes; len(n) != 1 || !strings.Contains(n[0], "AWS_SECRET_ACCESS_KEY") {
		t.Errorf("notes: %q", n)
	}
	check("--env", env(Request{Env: []string{"EXTRA", "NEW=a=b", "ABSENT", "LD_PRELOAD", "HOME=/x"}}),
		map[string]string{"EXTRA": "1", "NEW": "a=b", "ABSENT": "absent", "LD_PRELOAD": "/x.so", "HOME": "/x"})
	if e := env(Request{ClearEnv: true, Env: []string{"A=1"}}); !slices.Equal(e, variables{"A=1", "SBXRUN_SANDBOX=strict"}) {
		t.Errorf("clear: %q", e)
	}
	check("unrestricted", env(Request{Profile: "unrestricted"}), map[string]string{"LD_PRELOAD": "/x.so", "HOME": "/home/u", "SBXRUN_SANDBOX": "absent"})
	check("marker", env(Request{Env: []string{"SBXRUN_SANDBOX=no"}}), map[string]string{"SBXRUN_SANDBOX": "strict"})
	facts.Environ = nil
	check("empty", env(Request{}), map[string]string{"PATH": defaultPath})
}

// TestProject holds a workspace's own file to making the sandbox tighter.
func TestProject(t *testing.T) {
	const name = "home/u/src/project/.sbxrun.yaml"
	for _, src := range []string{
		"limits: {memory: 1g, pids: 10, wall_time: 1m, disk: 1m}\n", "workspace: ro\n", "workspace: none\n", "files: {hide: [sub], deny_write: [.], deny_exec: [sub]}\n",
		"network: {mode: none, deny: [x.com]}\n", "require: [selinux]\n", "verify: true\n", "env: {inherit: false}\n", "home: private\n", "files: {read: [/usr]}\n", "",
		"hostname: other\n", "seccomp: strict\n", "limits: {file_size: 1g}\n",
	} {
		f := hostFS()
		putFile(f, name, src)
		if _, err := Resolve(&Request{Command: []string{"true"}}, testFacts(f)); err != nil {
			t.Errorf("%q: %v", src, err)
		}
	}
	for _, c := range []struct{ src, key string }{
		{"limits: {memory: 3g}\n", "limits.memory"}, {"limits: {memory: none}\n", "limits.memory"}, {"limits: {wall_time: 6m}\n", "limits.wall_time"},
		{"network: {mode: proxy}\n", "network.mode"}, {"network: {allow: [x.com]}\n", "network.allow"}, {"files: {read: [/home/u]}\n", "files.read"}, {"files: {write: [\"~/.cache\"]}\n", "files.write"},
		{"files: {read_try: [/nope]}\n", "files.read_try"}, {"verify: false\n", "verify"}, {"env: {pass: [EXTRA]}\n", "env.pass"}, {"env: {set: [A=b]}\n", "env.set"}, {"env: {inherit: true}\n", "env.inherit"},
		{"seccomp: none\n", "seccomp"}, {"seccomp: default\n", "seccomp"}, {"isolation: none\n", "isolation"}, {"driver: host\n", "driver"}, {"fallback: [host]\n", "fallback"}, {"home: host\n", "home"},
		{"allow_degraded: [cgroup]\n", "allow_degraded"}, {"profile: unrestricted\n", "profile"}, {"user: \"0\"\n", "user"}, {"devices: [/dev/kvm]\n", "devices"}, {"image: x\n", "image"},
		{"selinux_label: x\n", "selinux_label"}, {"apparmor_profile: unconfined\n", "apparmor_profile"},
	} {
		f := hostFS()
		putFile(f, name, c.src)
		facts := testFacts(f)
		_, err := Resolve(&Request{Command: []string{"true"}}, facts)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), "/"+name+":1: "+c.key+": a project may only") {
			t.Errorf("%q: %v", c.src, err)
			continue
		}
		// Trusted by its content, it may; changed afterwards, it may not.
		for _, sep := range []string{" ", "  ", " *"} { // the last two as sha256sum prints it
			putFile(f, "home/u/.config/sbxrun/trusted", "# mine\n"+strings.Replace(TrustLine("/"+name, c.src), " ", sep, 1)+"\n")
			if _, err := Resolve(&Request{Command: []string{"true"}}, facts); err != nil && strings.Contains(err.Error(), "a project may only") {
				t.Errorf("%q, trusted: %v", c.src, err)
			}
		}
		putFile(f, name, c.src+"# changed\n")
		if _, err := Resolve(&Request{Command: []string{"true"}}, facts); err == nil {
			t.Errorf("%q: trusted after a change", c.src)
		}
	}
	// Every key has a rule: a change of a fixed one is refused, so a new key is safe
	// until someone says otherwise.
	f := hostFS()
	f[name] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte("/etc/shadow")}
	if _, err := Resolve(&Request{}, testFacts(f)); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a link: %v", err)
	}
	f[name] = &fstest.MapFile{Mode: fs.ModeNamedPipe | 0o666}
	if _, err := Resolve(&Request{}, testFacts(f)); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a fifo: %v", err)
	}
	putFile(f, name, "extends: strict\n")
	if _, err := Resolve(&Request{}, testFacts(f)); err == nil || !strings.Contains(err.Error(), "extends belongs in a profile file") {
		t.Errorf("extends: %v", err)
	}
}

// TestMaskedPaths: what only root can read of the kernel's memory is masked for
// root alone; the rest is for everyone.
func TestMaskedPaths(t *testing.T) {
	for _, uid := range []uint32{0, 501} {
		facts := testFacts(hostFS())
		facts.UID = uid
		masked := mustResolve(t, Request{}, facts).Policy.OCI.Linux.MaskedPaths
		for _, p := range []string{"kpageflags", "kpagecount", "kpagecgroup", "slabinfo", "vmallocinfo", "pagetypeinfo", "key-users"} {
			if got := slices.Contains(masked, "/proc/"+p); got != (uid == 0) {
				t.Errorf("uid %d: /proc/%s masked: %v", uid, p, got)
			}
		}
		if !slices.Contains(masked, "/proc/keys") {
			t.Errorf("uid %d: /proc/keys is not masked", uid)
		}
	}
}

func TestLayers(t *testing.T) {
	facts := testFacts(hostFS())
	p := mustResolve(t, Request{Degrade: policy.LayerCgroup}, facts).Policy
	if p.Require&policy.LayerCgroup != 0 || p.Degrade != policy.LayerCgroup || !p.Require.Has(policy.LayerSeccomp) {
		t.Errorf("require %v, degrade %v", p.Require, p.Degrade)
	}
	p = mustResolve(t, Request{Degrade: policy.LayerCgroup, Require: policy.LayerCgroupMemory}, facts).Policy
	if !p.Require.Has(policy.LayerCgroupMemory) || p.Degrade.Has(policy.LayerCgroupMemory) {
		t.Errorf("require %v, degrade %v", p.Require, p.Degrade)
	}
	p = mustResolve(t, Request{Memory: ptr(uint64(0)), Net: ptr(policy.EgressHost)}, facts).Policy
	if p.Require&(policy.LayerCgroupMemory|policy.LayerNet) != 0 || !p.Require.Has(policy.LayerCgroupPids) {
		t.Errorf("require %v", p.Require)
	}
	p = mustResolve(t, Request{SELinux: "a:b:c:s0", AppArmor: "x"}, facts).Policy
	if !p.Require.Has(policy.LayerSELinux | policy.LayerAppArmor) {
		t.Errorf("require %v", p.Require)
	}
}

// TestCombineOrder: overlapping statements mean the same in any order (F24).
func TestCombineOrder(t *testing.T) {
	paths := []string{"/", "/a", "/a/b", "/a/b/c", "/a-b", "/a/b-c", "/d", "/d/e"}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var st []statement
		for range 1 + rnd.IntN(9) {
			s := statement{path: paths[rnd.IntN(len(paths))], origin: string(rune('a' + rnd.IntN(3)))}
			switch rnd.IntN(6) {
			case 0:
				s.hide = true
			case 1:
				s.secret = true
			case 2:
				s.deny = policy.Write
			case 3:
				s.deny = policy.Execute
			case 4:
				s.access, s.named = policy.All, rnd.IntN(2) == 0
			case 5:
				s.access, s.named, s.optional = policy.ReadExec, rnd.IntN(2) == 0, rnd.IntN(2) == 0
			}
			s.flag = s.access != 0 && rnd.IntN(2) == 0
			st = append(st, s)
		}
		mounts := []string{"/a/b"}[:rnd.IntN(2)]
		want := combine(st, mounts)
		for range 4 {
			mixed := slices.Clone(st)
			rnd.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
			if got := combine(mixed, mounts); !slices.Equal(got, want) {
				t.Fatalf("%+v\n gives %v,\nin another order %v", st, want, got)
			}
		}
		checkCombined(t, st, want, paths, mounts)
	}
}

// checkCombined holds rules to what combine promises, by asking of each path
// what the deepest rule gives.
func checkCombined(t *testing.T, st []statement, rules []policy.FileRule, paths, mounts []string) {
	t.Helper()
	for _, p := range paths {
		var got policy.Access
		for _, r := range rules { // a directory comes before what it holds
			if policy.Below(p, r.Path) {
				got = r.Access
			}
		}
		for _, m := range mounts {
			// What is private shows nothing of the host, but for what is
			// granted in it.
			if policy.Below(p, m) && !slices.ContainsFunc(rules, func(r policy.FileRule) bool { return policy.Below(p, r.Path) && policy.Below(r.Path, m) }) {
				got = 0
			}
		}
		granted, named := policy.Access(0), false
		for _, s := range st {
			if policy.Below(p, s.path) {
				granted |= s.access
				named = named || s.access != 0 && s.named
			}
		}
		if got&^granted != 0 {
			t.Fatalf("%s: %v, and only %v is granted by %+v", p, got, granted, st)
		}
		for _, s := range st {
			if !policy.Below(p, s.path) {
				continue
			}
			if s.hide && got != 0 {
				t.Fatalf("%s is hidden, and shown %v: %+v", p, got, st)
			}
			if got&s.deny != 0 {
				t.Fatalf("%s is denied %v, and has %v: %+v", p, s.deny, got, st)
			}
			if s.secret && got != 0 && !named {
				t.Fatalf("%s is secret, named by no grant, and shown: %+v", p, st)
			}
		}
	}
}

func TestDiff(t *testing.T) {
	facts := testFacts(hostFS())
	a, err := Show(&Request{Profile: "strict"}, facts)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Show(&Request{Profile: "testing"}, facts)
	if err != nil {
		t.Fatal(err)
	}
	d := Diff(a, b)
	for _, want := range []Change{{"limits.memory", "2g", "4g"}, {"files.read_try", "", "/opt"}, {"verify", "true", "false"}} {
		if !slices.Contains(d, want) {
			t.Errorf("%v is not in %v", want, d)
		}
	}
	if len(Diff(a, a)) != 0 {
		t.Error("a profile differs from itself")
	}
	if c := Diff(b, a); !slices.Contains(c, Change{"files.read_try", "/opt", ""}) {
		t.Errorf("%v", c)
	}
	if _, err := os.Stat(path.Join("testdata", "strict.json")); err != nil {
		t.Error(err)
	}
}

// TestOverlay: the workspace is copy-on-write as a whole, with what profile and
// flags say of paths in it, or the request is refused.
func TestOverlay(t *testing.T) {
	const ws = "/home/u/src/project"
	resolve := func(req Request) ([]policy.FileRule, error) {
		req.Command, req.Workspace = []string{"true"}, "overlay"
		r, err := Resolve(&req, testFacts(hostFS()))
		if err != nil {
			return nil, err
		}
		var out []policy.FileRule
		for _, f := range r.Policy.Files {
			if policy.Below(f.Path, ws) {
				out = append(out, f)
			}
		}
		return out, nil
	}
	rules, err := resolve(Request{})
	if err != nil || len(rules) == 0 || rules[0].Path != ws || !rules[0].Overlay || rules[0].Access != policy.All {
		t.Errorf("%+v %v", rules, err)
	}
	// What may be written above it is another's.
	if rules, err = resolve(Request{ReadWrite: []string{"/home/u/src"}}); err != nil || len(rules) == 0 || !rules[0].Overlay {
		t.Errorf("%+v %v", rules, err)
	}
	for _, req := range []Request{{ReadOnly: []string{ws}}, {ReadWrite: []string{ws}}, {Hide: []string{ws}}} {
		if rules, err := resolve(req); err == nil {
			t.Errorf("%+v: %+v", req, rules)
		}
	}
}

// TestDiscard: what may be changed for the run alone can be read, and no rule that says
// otherwise of the path or of one in it is lost.
func TestDiscard(t *testing.T) {
	const dir = "/home/u/go/pkg"
	list := statement{path: dir, access: policy.ReadExec, discard: true}
	for _, tt := range []struct {
		name string
		more []statement
		want []policy.FileRule
	}{
		{"alone", nil, []policy.FileRule{{Path: dir, Access: policy.ReadExec, Discard: true}}},
		{"in what is shown", []statement{{path: "/", access: policy.ReadExec}}, []policy.FileRule{{Path: "/", Access: policy.ReadExec}, {Path: dir, Access: policy.ReadExec, Discard: true}}},
		{"writable by a flag", []statement{{path: dir, access: policy.All, flag: true}}, []policy.FileRule{{Path: dir, Access: policy.All}}},
		{"read-only by a flag", []statement{{path: dir, access: policy.ReadExec, flag: true}}, []policy.FileRule{{Path: dir, Access: policy.ReadExec}}},
		{"writable by a list", []statement{{path: dir, access: policy.All}}, []policy.FileRule{{Path: dir, Access: policy.All}}},
		{"no writing", []statement{{path: dir, deny: policy.Write}}, []policy.FileRule{{Path: dir, Access: policy.ReadExec}}},
		{"read-only below", []statement{{path: dir + "/x", access: policy.ReadExec}}, []policy.FileRule{{Path: dir, Access: policy.ReadExec, Discard: true}, {Path: dir + "/x", Access: policy.ReadExec}}},
		{"hidden below", []statement{{path: dir + "/x", hide: true}}, []policy.FileRule{{Path: dir, Access: policy.ReadExec, Discard: true}, {Path: dir + "/x", Optional: true}}},
		{"hidden", []statement{{path: "/home/u/go", hide: true}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := combine(append(tt.more, list), nil)
			if !reflect.DeepEqual(got, tt.want) && len(got)+len(tt.want) > 0 {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestLoginShell: the password file of the sandbox names the shell that SHELL does.
func TestLoginShell(t *testing.T) {
	for env, want := range map[string]string{"": "/bin/sh", "SHELL=/bin/bash": "/bin/bash", "SHELL=bash": "/bin/sh", "SHELL=/a:b": "/bin/sh",
		"SHELL=/a\nx:x:0:0::/:/bin/sh": "/bin/sh", "SHELL=/a\r": "/bin/sh", "SHELL=/\x1b[2J": "/bin/sh",
		"SHELL=/" + strings.Repeat("a", 2000): "/bin/sh", "SHELL=/opt/é h/zsh": "/opt/é h/zsh"} {
		req := Request{Profile: "strict"}
		if env != "" {
			req.Env = []string{env}
		}
		r := mustResolve(t, req, testFacts(hostFS()))
		i := slices.IndexFunc(r.Policy.Synthetic, func(s policy.SyntheticFile) bool { return s.Path == "/etc/passwd" })
		var got []string
		for _, line := range strings.Split(strings.TrimSpace(r.Policy.Synthetic[i].Content), "\n") {
			if f := strings.Split(line, ":"); f[0] != "root" && f[0] != "nobody" {
				got = append(got, strings.Join(f[6:], ":"))
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%q: %q", env, got)
		}
	}
}

// TestSysBelowAll: a grant of the whole host leaves /sys out, so that one within is not
// in it.
func TestSysBelowAll(t *testing.T) {
	f := hostFS()
	putFile(f, "sys/devices/pci/1/vendor", "x")
	r := mustResolve(t, Request{ReadOnly: []string{"/", "/sys/devices/pci/1", "/data/real"}}, testFacts(f))
	if access(t, r, "/sys/devices/pci/1") != "r-x" || access(t, r, "/data/real") != "" || access(t, r, "/") != "r-x" {
		t.Errorf("%v", r.Policy.Files)
	}
}
