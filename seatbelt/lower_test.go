package seatbelt

import (
	"flag"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	home      = "/Users/u"
	workspace = "/Users/u/src/project"
	scratch   = "/private/var/folders/xy/T/sbxrun-1"
)

// mac is a small system as macOS has it, with a user's home.
func mac() fstest.MapFS {
	f := fstest.MapFS{}
	for _, d := range []string{"usr/bin", "usr/lib", "usr/share", "bin", "sbin", "System/Library", "Library/Apple", "private/tmp", "private/etc/ssl/certs", "private/etc/ssh",
		"private/var/run", "private/var/log", "private/var/db", "dev", "opt/tool", "Applications", "Volumes",
		"Users/u/src/project/sub", "Users/u/.ssh", "Users/u/.aws", "Users/u/Library/Keychains", "Users/other/.ssh"} {
		f[d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
	for _, n := range []string{"private/etc/sudoers", "Users/u/.npmrc", "Users/u/.ssh/id_ed25519", "Users/u/.ssh/known_hosts", "Users/u/src/project/.env", "Users/u/src/project/main.go", "private/var/run/docker.sock"} {
		f[n] = &fstest.MapFile{Data: []byte("x"), Mode: 0o644}
	}
	f["Users/u/.npmrc"].Data = []byte("//registry.example.org/:_authToken=x\n")
	for l, t := range map[string]string{"etc": "private/etc", "tmp": "private/tmp", "var": "private/var"} {
		f[l] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o755, Data: []byte(t)}
	}
	return f
}

func resolve(t testing.TB, profile string, change func(*profiles.Request)) *policy.Policy {
	t.Helper()
	req := &profiles.Request{Command: []string{"make", "test"}, Profile: profile}
	if change != nil {
		change(req)
	}
	r, err := profiles.Resolve(req, &profiles.Facts{
		Home: home, Cwd: workspace, UID: 501, GID: 20, CPUs: 4, FS: mac(),
		Environ: []string{"PATH=/usr/bin:/bin", "HOME=" + home, "USER=u", "TERM=xterm"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.Policy
}

func lower(t testing.TB, p *policy.Policy) *Profile {
	t.Helper()
	out, err := Lower(p, Options{Home: home, Scratch: scratch, ProxyPort: 3128})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGolden(t *testing.T) {
	for _, name := range []string{"strict", "aicode", "development"} {
		got := lower(t, resolve(t, name, nil)).String()
		file := filepath.Join("testdata", name+".sb")
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
			t.Errorf("%s differs; go test ./seatbelt -update writes it", file)
		}
	}
}

// operations are what is asked of each path in TestDecisions, by letter.
var operations = []struct{ letter, operation string }{
	{"r", "file-read-data"}, {"m", "file-read-metadata"},
	{"c", "file-write-create"}, {"u", "file-write-unlink"}, {"s", "file-write-setugid"},
	{"x", "process-exec"}, {"n", "network-outbound"},
}

const (
	none   = ""
	name   = "m"   // can be asked for, not read
	shown  = "rmx" // read-only
	data   = "rm"  // read-only, not executable
	ours   = "rmcux"
	file   = "rmcu" // writable, not executable
	pinned = "rmcx" // as ours, but cannot be renamed or removed: it holds what is denied
	store  = ours + "n"
)

// decisions are what each profile says of a path.
var decisions = []struct{ path, strict, aicode, development string }{
	// the workspace
	{workspace, pinned, pinned, pinned},
	{workspace + "/main.go", ours, ours, ours},
	{workspace + "/made/later", ours, ours, ours},
	{workspace + "/ünï cödé (1) \"quoted\" \\ back", ours, ours, ours},
	{workspace + "/.env", shown, none, none}, // protected; hidden where a home is shown
	{workspace + "/.env/below", shown, none, none},
	{workspace + "/.env.local", ours, none, none}, // absent
	{workspace + "/.envrc", shown, shown, ours},   // protected; development lifts that
	{workspace + "/sub/.git/hooks/pre-commit", shown, shown, ours},
	{workspace + "/.git/index", ours, ours, ours},
	{workspace + "/.vscode", shown, shown, ours}, // absent
	{workspace + "2", none, none, shown},
	{"/System/Volumes/Data" + workspace + "/.env", none, none, none},
	// what lies on the way to it
	{"/", data, data, shown},
	{"/Users", name, name, shown},
	{"/Users/u", name, name, shown},
	{"/Users/u/src", name, name, shown},
	{"/Users/u/src/other", none, none, shown},
	{"/Users/other", none, none, shown},
	{"/Users/other/.ssh", none, none, shown}, // /home/*/.ssh is Linux's
	// secrets
	{home + "/.ssh", none, none, none},
	{home + "/.ssh/id_ed25519", none, none, none},
	{"/System/Volumes/Data" + home + "/.ssh/id_ed25519", none, none, none},
	{home + "/.sshx", none, none, shown},
	{home + "/.aws/credentials", none, none, none},
	{home + "/.gnupg/S.gpg-agent", none, none, none},
	{home + "/.npmrc", none, none, none},
	{home + "/.docker/run/docker.sock", none, none, none},
	{home + "/.colima/default/docker.sock", none, none, none},
	{home + "/.orbstack/run/docker.sock", none, none, shown}, // can be seen, not connected to
	{home + "/Library/Containers/com.docker.docker/Data/docker-cli.sock", none, none, shown},
	{home + "/Library/Group Containers/2BUA8C4S2C.com.1password/t/agent.sock", none, none, shown},
	{"/private/var/run/docker.sock", none, none, none},
	{"/var/run/docker.sock", none, none, none},
	{"/private/tmp/com.apple.launchd.abc/Listeners", none, none, none},
	{"/private/etc/sudoers", none, none, none},
	{"/private/etc/ssh/ssh_host_rsa_key", none, none, none},
	{"/etc/ssh/ssh_host_rsa_key", none, none, none},
	// the system
	{"/usr/bin/make", shown, shown, shown},
	{"/usr/lib/libSystem.B.dylib", shown, shown, shown},
	{"/usr/local/bin/tool", shown, shown, shown},
	{"/bin/sh", shown, shown, shown},
	{"/System/Library/Frameworks/X.framework/X", shown, shown, shown},
	{"/System/Volumes/Preboot/Cryptexes/OS/System/Library/dyld/cache", shown, shown, shown},
	{"/Library/Developer/CommandLineTools/usr/bin/git", shown, shown, shown},
	{"/Library/Preferences/x.plist", none, none, shown},
	{"/Applications/X.app", none, none, shown},
	{"/opt/tool/bin", none, shown, shown},
	{"/private/etc/ssl/certs/ca.pem", shown, shown, shown},
	{"/private/etc/passwd", none, none, shown},
	{"/etc", name, name, shown},
	{"/private/var/log/system.log", none, none, none},
	{"/private/var/db/timezone/tz", data, data, data},
	{"/Volumes/USB", none, none, shown},
	// private storage is not /tmp
	{scratch, store, store, store},
	{scratch + "/tmp/x", store, store, store},
	{"/private/tmp", none, none, none},
	{"/private/tmp/x", none, none, none},
	{"/tmp/x", none, none, none},
	{"/private/var/folders/xy/T", name, name, shown},
	{"/private/var/folders/xy/T/other", none, none, shown},
	// devices
	{"/dev/null", file, file, file},
	{"/dev/urandom", data, data, data},
	{"/dev/disk0", none, none, none},
	{"/dev/ttys001", none, none, none},
	{"/dev/fd/1", file, file, file},
}

// TestDecisions asks each profile for every operation on each path.
func TestDecisions(t *testing.T) {
	for i, profile := range []string{"strict", "aicode", "development"} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			decided(t, i, profile)
		})
	}
}

func decided(t *testing.T, i int, profile string) {
	p := lower(t, resolve(t, profile, nil))
	var qs []question
	for _, d := range decisions {
		for _, o := range operations {
			qs = append(qs, question{o.operation, "path", d.path})
		}
	}
	answers := evaluate(t, job{p, qs})[0].answers
	t.Logf("%s: %d questions", profile, len(qs))
	for j, d := range decisions {
		want := []string{d.strict, d.aicode, d.development}[i]
		got := ""
		for k, o := range operations {
			if answers[j*len(operations)+k] == "allow" {
				got += o.letter
			}
		}
		if sorted(got) != sorted(want) {
			t.Errorf("%s: %s: %q, want %q", profile, d.path, got, want)
		}
	}
}

func sorted(s string) string { b := []byte(s); slices.Sort(b); return string(b) }

// TestSockets: of the sockets that a policy names, those are allowed that nothing hides,
// and those of engines and agents by a name of their own alone.
func TestSockets(t *testing.T) {
	p := resolve(t, "strict", nil)
	p.Unix = []string{home, home + "/.colima/default/docker.sock", home + "/.gnupg/S.gpg-agent", "/private/tmp/com.apple.launchd.Ab9/Listeners", "/private/var/run/app"}
	p.Files = append(p.Files, policy.FileRule{Path: home + "/hidden"}, policy.FileRule{Path: home + "/.gnupg"}, policy.FileRule{Path: home + "/.gnupg/S.gpg-agent", Access: policy.Read})
	var qs []question
	want := map[string]string{
		home + "/s.sock": "allow", workspace + "/sock": "allow", home + "/hidden/s.sock": "deny", home + "/hidden": "deny",
		home + "/.gnupg/S.gpg-agent": "allow", home + "/.gnupg/other": "deny",
		home + "/.colima/default/docker.sock": "allow", home + "/.colima/other/docker.sock": "deny", home + "/.orbstack/run/docker.sock": "deny",
		"/private/tmp/com.apple.launchd.Ab9/Listeners": "allow", "/private/tmp/com.apple.launchd.Cd7/Listeners": "deny",
		"/private/var/run/app/s.sock": "allow", "/private/var/run/docker.sock": "deny", "/private/var/run/app2": "deny",
	}
	paths := slices.Sorted(maps.Keys(want))
	for _, at := range paths {
		qs = append(qs, question{"network-outbound", "path", at})
	}
	for i, got := range evaluate(t, job{lower(t, p), qs})[0].answers {
		if got != want[paths[i]] {
			t.Errorf("%s: %s, want %s", paths[i], got, want[paths[i]])
		}
	}
}

// TestServices: what is not a file.
func TestServices(t *testing.T) {
	cases := []struct {
		question
		strict, aicode, host string
	}{
		{question{"network-outbound", "remote", "localhost:3128"}, "deny", "allow", "allow"},
		{question{"network-outbound", "remote", "localhost:3129"}, "deny", "deny", "allow"},
		{question{"network-outbound", "remote", "localhost:80"}, "deny", "deny", "allow"},
		{question{"network-outbound", "remote", "192.0.2.1:3128"}, "deny", "deny", "allow"},
		{question{"network-outbound", "remote", "192.0.2.1:443"}, "deny", "deny", "allow"},
		{question{"network-outbound", "path", "/private/var/run/mDNSResponder"}, "deny", "deny", "allow"},
		{question{"network-outbound", "path", "/private/var/run/docker.sock"}, "deny", "deny", "deny"},
		{question{"network-outbound", "path", home + "/.colima/default/docker.sock"}, "deny", "deny", "deny"},
		{question{"network-outbound", "path", home + "/.orbstack/run/docker.sock"}, "deny", "deny", "deny"},
		{question{"network-outbound", "path", "/private/tmp/com.apple.launchd.Ab9/Listeners"}, "deny", "deny", "deny"},
		{question{"network-outbound", "path", workspace + "/sock"}, "deny", "deny", "deny"},
		{question{"network-inbound", "local", "*:8080"}, "deny", "deny", "allow"},
		{question{"network-bind", "local", "*:8080"}, "deny", "deny", "allow"},
		{question{"mach-lookup", "mach", "com.apple.system.opendirectoryd.libinfo"}, "allow", "allow", "allow"},
		{question{"mach-lookup", "mach", "com.apple.trustd.agent"}, "deny", "deny", "allow"},
		{question{"mach-lookup", "mach", "com.apple.SecurityServer"}, "deny", "deny", "deny"},
		{question{"mach-lookup", "mach", "com.apple.coreservices.launchservicesd"}, "deny", "deny", "deny"},
		{question{"mach-lookup", "mach", "com.apple.coreservices.appleevents"}, "deny", "deny", "deny"},
		{question{"mach-lookup", "mach", "com.apple.pasteboard.1"}, "deny", "deny", "deny"},
		{question{"mach-lookup", "mach", "com.apple.windowserver.active"}, "deny", "deny", "deny"},
		{question{"mach-lookup", "mach", "com.apple.xpc.activity.unmanaged"}, "deny", "deny", "deny"},
		{question{"mach-register", "mach", "mine"}, "deny", "deny", "deny"},
		{question{"lsopen", "none", ""}, "deny", "deny", "deny"},
		{question{"appleevent-send", "none", ""}, "deny", "deny", "deny"},
		{question{"job-creation", "none", ""}, "deny", "deny", "deny"},
		{question{"system-socket", "none", ""}, "deny", "deny", "deny"},
		{question{"system-fsctl", "none", ""}, "deny", "deny", "deny"},
		{question{"iokit-open", "none", ""}, "deny", "deny", "deny"},
		{question{"process-fork", "none", ""}, "allow", "allow", "allow"},
		{question{"signal", "target", "same-sandbox"}, "allow", "allow", "allow"},
		{question{"signal", "target", "others"}, "deny", "deny", "deny"},
		{question{"process-info-pidinfo", "target", "others"}, "deny", "deny", "deny"},
		{question{"process-info-pidinfo", "target", "same-sandbox"}, "allow", "allow", "allow"},
		{question{"sysctl-read", "sysctl", "hw.ncpu"}, "allow", "allow", "allow"},
		{question{"sysctl-read", "sysctl", "kern.proc.all"}, "deny", "deny", "deny"},
		{question{"sysctl-read", "sysctl", "kern.procargs2"}, "deny", "deny", "deny"},
		{question{"sysctl-write", "sysctl", "kern.hostname"}, "deny", "deny", "deny"},
		{question{"ipc-posix-sem", "ipc", "/mp-a1_"}, "allow", "allow", "allow"},
		{question{"ipc-posix-sem", "ipc", "/other"}, "deny", "deny", "deny"},
		{question{"ipc-posix-shm-write-create", "ipc", "/x"}, "deny", "deny", "deny"},
		{question{"file-mknod", "path", workspace + "/x"}, "deny", "deny", "deny"},
		{question{"file-mount", "path", workspace}, "deny", "deny", "deny"},
		{question{"file-ioctl", "path", "/dev/ttys001"}, "deny", "deny", "deny"},
	}
	var qs []question
	for _, c := range cases {
		qs = append(qs, c.question)
	}
	policies := []*policy.Policy{
		resolve(t, "strict", nil), resolve(t, "aicode", nil),
		resolve(t, "strict", func(r *profiles.Request) { m := policy.EgressHost; r.Net = &m }),
	}
	var jobs []job
	for _, p := range policies {
		jobs = append(jobs, job{lower(t, p), qs})
	}
	rulings := evaluate(t, jobs...)
	for i, p := range policies {
		r := rulings[i]
		answers, bare := r.answers, r.bare
		for j, c := range cases {
			if want := []string{c.strict, c.aicode, c.host}[i]; answers[j] != want {
				t.Errorf("%s: %v: %s, want %s", p.Egress.Mode, c.question, answers[j], want)
			}
		}
		// M02: nothing is allowed as a whole but to fork.
		if want := []string{"deny default", "allow process-fork", "deny file-write-setugid"}; !slices.Equal(bare, want) {
			t.Errorf("rules without a filter: %q", bare)
		}
	}
}

// TestTerminal: a terminal is the command's own, and only with -t.
func TestTerminal(t *testing.T) {
	with := resolve(t, "strict", func(r *profiles.Request) { r.Terminal = true })
	out, err := Lower(with, Options{Home: home, Scratch: scratch, Terminal: "/dev/ttys007"})
	if err != nil {
		t.Fatal(err)
	}
	var qs []question
	for _, d := range []string{"/dev/ttys007", "/dev/tty", "/dev/ttys001", "/dev/ptmx"} {
		for _, o := range []string{"file-read-data", "file-write-data", "file-ioctl", "file-write-mode"} {
			qs = append(qs, question{o, "path", d})
		}
	}
	for i, r := range evaluate(t, job{out, qs}, job{lower(t, resolve(t, "strict", nil)), qs}) {
		for j, a := range r.answers {
			want := "deny"
			if i == 0 && j < 8 && j%4 != 3 {
				want = "allow"
			}
			if a != want {
				t.Errorf("%v, with a terminal %v: %s", qs[j], i == 0, a)
			}
		}
	}
}

// TestOrder: no rule that allows comes after one that denies, but the first
// (M06).
func TestOrder(t *testing.T) {
	for _, profile := range []string{"strict", "aicode", "development"} {
		denied := false
		for i, line := range strings.Split(lower(t, resolve(t, profile, nil)).Text, "\n") {
			if strings.HasPrefix(line, "(deny ") && line != "(deny default)" {
				denied = true
			}
			if denied && strings.HasPrefix(line, "(allow ") {
				t.Errorf("%s:%d: %s", profile, i+1, line)
			}
		}
		if !denied {
			t.Errorf("%s denies nothing", profile)
		}
	}
}

// TestNested: what is shown below what is hidden, and so on.
func TestNested(t *testing.T) {
	p := resolve(t, "strict", nil)
	p.Files = append(p.Files,
		policy.FileRule{Path: "/v", Access: policy.All},
		policy.FileRule{Path: "/v/a", Access: policy.Hide},
		policy.FileRule{Path: "/v/a/b", Access: policy.All},
		policy.FileRule{Path: "/v/a/b/c", Access: policy.Read},
		policy.FileRule{Path: "/v/a/b/c/d", Access: policy.ReadWrite},
		policy.FileRule{Path: "/v/x", Access: policy.ReadWrite},
		policy.FileRule{Path: "/System/Library/Private", Access: policy.Hide})
	var qs []question
	want := []struct{ path, access string }{
		{"/v/1", "rwx"}, {"/v/a", "---"}, {"/v/a/1", "---"}, {"/v/a/b/1", "rwx"}, {"/v/a/b/c/1", "r--"}, {"/v/a/b/c/d/1", "rw-"}, {"/v/x/1", "rw-"}, {"/v/ab", "rwx"},
		{"/System/Library/Private/x", "---"}, {"/System/Library/Other", "r-x"},
	}
	for _, w := range want {
		for _, o := range []string{"file-read-data", "file-write-data", "process-exec"} {
			qs = append(qs, question{o, "path", w.path})
		}
	}
	answers := evaluate(t, job{lower(t, p), qs})[0].answers
	for i, w := range want {
		var a policy.Access
		for j, bit := range []policy.Access{policy.Read, policy.Write, policy.Execute} {
			if answers[i*3+j] == "allow" {
				a |= bit
			}
		}
		if a.String() != w.access {
			t.Errorf("%s: %s, want %s", w.path, a, w.access)
		}
	}
}

// TestSameDecisions: for random rules each profile decides as policy.Sort says,
// whatever order the rules were given in (F24).
func TestSameDecisions(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	part := []string{"a", "b", "c c", `d"`, `e\`, "(f", "ü"}
	var jobs []job
	var policies []*policy.Policy
	var asked [][]string
	for range 12 {
		p := resolve(t, "strict", nil)
		p.Files = nil
		randomPath := func(depth int) string {
			s := "/z"
			for range 1 + rnd.IntN(depth) {
				s += "/" + part[rnd.IntN(len(part))]
			}
			return s
		}
		for range 12 {
			p.Files = append(p.Files, policy.FileRule{Path: randomPath(3), Access: policy.Access(rnd.IntN(8))})
		}
		var qs []question
		var paths []string
		for range 40 {
			x := randomPath(5)
			paths = append(paths, x)
			for _, o := range []string{"file-read-data", "file-write-data", "process-exec"} {
				qs = append(qs, question{o, "path", x})
			}
		}
		jobs = append(jobs, job{lower(t, p), qs})
		rnd.Shuffle(len(p.Files), func(i, j int) { p.Files[i], p.Files[j] = p.Files[j], p.Files[i] })
		jobs = append(jobs, job{lower(t, p), qs})
		policies, asked = append(policies, p), append(asked, paths)
	}
	rulings := evaluate(t, jobs...)
	for n, p := range policies {
		answers := rulings[2*n].answers
		if !slices.Equal(answers, rulings[2*n+1].answers) {
			t.Errorf("the order of rules matters: %v", p.Files)
		}
		for i, x := range asked[n] {
			want := policy.Hide
			for _, r := range policy.Sort(p.Files) {
				if policy.Below(x, r.Path) {
					want = r.Access
				}
			}
			var got policy.Access
			for j, bit := range []policy.Access{policy.Read, policy.Write, policy.Execute} {
				if answers[i*3+j] == "allow" {
					got |= bit
				}
			}
			if got != want {
				t.Errorf("%s: %s, want %s of %v", x, got, want, policy.Sort(p.Files))
			}
		}
	}
}

// TestHostilePaths: whatever a path holds, the profile has as many forms as
// with a plain one, and shows that path and no neighbour (M01).
func TestHostilePaths(t *testing.T) {
	plain := resolve(t, "strict", nil)
	plain.Files = []policy.FileRule{{Path: "/w", Access: policy.All}, {Path: "/w/plain", Access: policy.Hide}}
	jobs := []job{{lower(t, plain), nil}}
	names := []string{""}
	try := func(name string) {
		p := resolve(t, "strict", nil)
		dir := "/w/" + name
		p.Files = []policy.FileRule{{Path: "/w", Access: policy.All}, {Path: dir, Access: policy.Hide}}
		out, err := Lower(p, Options{Home: home, Scratch: scratch})
		if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			if err == nil {
				t.Errorf("%q is not refused", name)
			}
			return
		}
		if err != nil {
			t.Errorf("%q: %v", name, err)
			return
		}
		names = append(names, name)
		jobs = append(jobs, job{out, []question{
			{"file-read-data", "path", dir}, {"file-write-create", "path", dir + "/x"},
			{"file-read-data", "path", dir + "y"}, {"file-read-data", "path", "/w/other"},
		}})
		if strings.Contains(out.Text, name) && len(name) > 8 {
			t.Errorf("%q is in the text", name)
		}
	}
	for _, n := range []string{`")) (allow default) ("`, `\`, `\\`, `"`, `a"b`, `(`, `))))`, `; comment`, `#t`, `#\a`, `'x`, "`x", `,x`, `$(HOME)`, `${x}`, `*`, `[a]`, `^$`, `é`, `日本`, "🙂", "a\u202eb", "a b", `-D X=Y`, "=", "%n%s", "\x80\xff",
		"a\nb", "a\x00b", "a\tb", "\x1b[31m", "a\rb", "\x7f"} {
		try(n)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{`"`, `\`, `(`, `)`, `;`, `#`, `'`, ` `, `a`, `.`, `*`, `|`, "é", "\n", "[", "]", "^", "$", "{", "}", "\xfe", "?", "+"}
	for range 40 {
		var b strings.Builder
		for range 1 + rnd.IntN(12) {
			b.WriteString(alphabet[rnd.IntN(len(alphabet))])
		}
		if c := path.Clean("/" + b.String()); c != "/"+b.String() || b.String() == "plain" {
			continue
		}
		try(b.String())
	}
	rulings := evaluate(t, jobs...)
	for i, r := range rulings[1:] {
		if got := strings.Join(r.answers, " "); r.forms != rulings[0].forms || got != "deny deny allow allow" {
			t.Errorf("%q: %d forms, want %d; %s", names[i+1], r.forms, rulings[0].forms, got)
		}
	}
}

func TestReal(t *testing.T) {
	for in, want := range map[string]string{
		"/tmp": "/private/tmp", "/tmp/x": "/private/tmp/x", "/tmpx": "/tmpx", "/var/run/x": "/private/var/run/x", "/etc/passwd": "/private/etc/passwd",
		"/private/tmp/x": "/private/tmp/x", "/System/Volumes/Data/Users/u": "/Users/u", "/System/Volumes/Data": "/", "/System/Volumes/Data/tmp/x": "/private/tmp/x", "/Users": "/Users", "/": "/",
	} {
		if got := real(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestArgs(t *testing.T) {
	p := &Profile{Text: "(version 1)", Params: []Parameter{{"P0", "/a b"}, {"P1", "-D"}}}
	got := p.Args([]string{"-p", "x"})
	if want := []string{"-p", "(version 1)", "-D", "P0=/a b", "-D", "P1=-D", "--", "-p", "x"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
