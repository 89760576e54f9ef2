package profiles

import (
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sbxrun/sbxrun/policy"
)

func TestHostOf(t *testing.T) {
	for in, want := range map[string]string{
		"https://mirror.example/go":             "mirror.example:443",
		"http://user:pw@mirror.example:8081/x":  "mirror.example:8081",
		"sparse+https://crates.example/index/":  "crates.example:443",
		"git+ssh://git@forge.example/a/b":       "forge.example:22",
		"ssh://git@forge.example:2222/a/b.git":  "forge.example:2222",
		"git@forge.example:a/b.git":             "forge.example:22",
		"forge.example:a/b.git":                 "forge.example:22",
		"git://forge.example/a":                 "forge.example:9418",
		"https://10.0.0.5/simple":               "10.0.0.5:443",
		"https://[2001:db8::1]/simple":          "[2001:db8::1]:443",
		"/srv/git/a.git":                        "",
		"../a.git":                              "",
		`C:\repos\a`:                            "",
		"C:/repos/a":                            "",
		"./a:b":                                 "",
		"-oProxyCommand=x:y":                    "",
		"file:///srv/a":                         "",
		"direct":                                "",
		"off":                                   "",
		"https://*/x":                           "",
		"https://*.example/x":                   "",
		"https://10.0.0.0/8":                    "10.0.0.0:443",
		"https://${HOST}/x":                     "",
		"https://a b/":                          "",
		"https://evil.example\n:443/":           "",
		"ext::sh -c 'touch /tmp/x':y":           "",
		"https://" + strings.Repeat("a", 3000):  "",
		"ftp://ftp.example/debian":              "",
		"https://mirror.example:443,80/":        "",
		"cdrom:[Debian GNU/Linux 12]/ bookworm": "cdrom:22",
	} {
		if got := hostOf(in); got != "" && !strings.Contains(in, "://") {
			t.Errorf("%q, which is no URL: %q", in, got)
		}
		if got := remoteHost(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// found lists what the tools of a home name, as "HOST ORIGIN".
func found(t *testing.T, files map[string]string, environ ...string) (hosts []string, tools *toolset) {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[strings.TrimPrefix(name, "/")] = &fstest.MapFile{Data: []byte(text)}
	}
	s := source{facts: &Facts{Home: "/home/me", Cwd: "/home/me/src", Environ: environ, FS: fsys}}
	tools = s.findTools("/home/me/src")
	for _, p := range tools.parts {
		for _, i := range p.items {
			hosts = append(hosts, i+" "+p.origin)
		}
	}
	return hosts, tools
}

func TestFindTools(t *testing.T) {
	for _, tt := range []struct {
		name    string
		files   map[string]string
		environ []string
		want    []string
		env     []string
	}{
		{name: "nothing"},
		{
			name:    "what tools use without being told",
			files:   map[string]string{"/opt/go/bin/go": "", "/opt/js/npm": "", "/opt/js/yarn": ""},
			environ: []string{"PATH=.:/nowhere:/opt/go/bin:/opt/js"},
			want: []string{"proxy.golang.org:443 tool go: built in", "sum.golang.org:443 tool go: built in", "registry.npmjs.org:443 tool npm: built in",
				"registry.yarnpkg.com:443 tool yarn: built in", "repo.yarnpkg.com:443 tool yarn: built in"},
		},
		{
			name: "and what they are told instead",
			files: map[string]string{"/opt/go/bin/go": "", "/opt/go/go.env": "GOPROXY=direct\nGOSUMDB=off\n", "/opt/js/npm": "", "/opt/js/yarn": "",
				"/etc/npmrc": "registry=https://npm.example\n"},
			environ: []string{"PATH=/opt/go/bin:/opt/js"},
			want:    []string{"npm.example:443 tool npm: /etc/npmrc"},
			env:     []string{"npm_config_registry=https://npm.example"},
		},
		{
			name:    "yarn alone",
			files:   map[string]string{"/opt/js/yarn": "", "/home/me/.yarnrc.yml": "npmRegistryServer: \"https://yarn.example\"\n"},
			environ: []string{"PATH=/opt/js"},
			want:    []string{"yarn.example:443 tool yarn: ~/.yarnrc.yml"},
		},
		{
			name:    "go, in the environment",
			environ: []string{"GOPROXY=https://me:secret@goproxy.example|http://second.example:8080,direct", "GOSUMDB=sum.example+key https://sums.example/db"},
			files:   map[string]string{"/usr/local/go/go.env": "GOPROXY=https://default.example,direct\nGOSUMDB=default.example\n"},
			want:    []string{"goproxy.example:443 tool go: GOPROXY in environment", "second.example:8080 tool go: GOPROXY in environment", "sums.example:443 tool go: GOSUMDB in environment"},
			env:     []string{"GOPROXY=https://goproxy.example|http://second.example:8080,direct"},
		},
		{
			name: "go, in files",
			files: map[string]string{
				"/home/me/.config/go/env": "GOPROXY=https://goproxy.example\n",
				"/usr/local/go/go.env":    "# defaults\nGOPROXY=https://default.example,direct\nGOSUMDB=sums.example\n",
			},
			want: []string{"goproxy.example:443 tool go: GOPROXY in ~/.config/go/env", "sums.example:443 tool go: GOSUMDB in /usr/local/go/go.env"},
		},
		{
			name:  "npm",
			files: map[string]string{"/home/me/.npmrc": "; mine\nregistry = https://u:p@npm.example/all/\n@corp:registry=http://corp.example:4873\n//npm.example/:_authToken=secret\n"},
			want:  []string{"npm.example:443 tool npm: ~/.npmrc", "corp.example:4873 tool npm: ~/.npmrc"},
			env:   []string{"npm_config_registry=https://npm.example/all/"},
		},
		{
			name: "pip",
			files: map[string]string{
				"/home/me/.config/pip/pip.conf": "[global]\nindex-url = https://__token__:x@pypi.example/simple\nextra-index-url =\n    https://two.example/simple\n    https://three.example/a=b\n",
			},
			want: []string{"pypi.example:443 tool pip: ~/.config/pip/pip.conf", "two.example:443 tool pip: ~/.config/pip/pip.conf", "three.example:443 tool pip: ~/.config/pip/pip.conf"},
			env:  []string{"PIP_INDEX_URL=https://pypi.example/simple"},
		},
		{
			name: "cargo, maven, apt",
			files: map[string]string{
				"/home/me/.cargo/config.toml":           "[source.crates-io]\nreplace-with = \"corp\"\n[source.corp]\nregistry = \"sparse+https://crates.example/\"\n",
				"/home/me/.m2/settings.xml":             "<settings><!-- <url>https://old.example</url> --><mirrors><mirror><url>https://maven.example/m2</url></mirror></mirrors></settings>",
				"/etc/apt/sources.list":                 "# deb http://no.example x\ndeb [arch=amd64 signed-by=/k] http://apt.example/debian bookworm main\n",
				"/etc/apt/sources.list.d/a.sources":     "Types: deb\nURIs: https://sec.example/x\n https://more.example/y\nSuites: s\n",
				"/etc/apt/sources.list.d/a.sources.bak": "URIs: https://bak.example/x\n",
			},
			want: []string{
				"crates.example:443 tool cargo: ~/.cargo/config.toml", "maven.example:443 tool maven: ~/.m2/settings.xml", "apt.example:80 tool apt: /etc/apt/sources.list",
				"sec.example:443 tool apt: /etc/apt/sources.list.d/a.sources", "more.example:443 tool apt: /etc/apt/sources.list.d/a.sources",
			},
		},
		{
			name:  "git's own configuration",
			files: map[string]string{"/home/me/.gitconfig": "[user]\n\tname = me\n[url \"ssh://git@forge.example/\"]\n\tinsteadOf = https://forge.example/\n"},
			want:  []string{"forge.example:22 tool git: ~/.gitconfig"},
		},
		{
			name: "remotes of hosts that the caller uses",
			files: map[string]string{
				"/home/me/src/.git/config":      "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = git@forge.example:a/b.git\n[remote \"https\"] url = https://hub.example/x\n[remote \"hashed\"]\n\turl = ssh://git@hashed.example/x\n[remote \"cred\"]\n\tpushurl = https://cred.example/x\n",
				"/home/me/.ssh/known_hosts":     "forge.example,192.0.2.1 ssh-ed25519 AAAA\n|1|MDEyMzQ1Njc4OTAxMjM0NTY3ODk=|P4Cu2RUkImkax97qvA4Ah2trKXA= ssh-ed25519 AAAA\n",
				"/home/me/.config/gh/hosts.yml": "hub.example:\n    user: me\n    oauth_token: secret\n",
				"/home/me/.git-credentials":     "https://me:secret@cred.example\n",
			},
			want: []string{
				"forge.example:22 tool git: remote origin in .git/config, a host that you use", "hub.example:443 tool git: remote https in .git/config, a host that you use",
				"hashed.example:22 tool git: remote hashed in .git/config, a host that you use", "cred.example:443 tool git: remote cred in .git/config, a host that you use",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, tools := found(t, tt.files, tt.environ...)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
			if !slices.Equal(tools.env, tt.env) {
				t.Errorf("variables %q, want %q", tools.env, tt.env)
			}
			if len(tools.notes) > 0 {
				t.Errorf("notes %q", tools.notes)
			}
			if s := strings.Join(append(got, tools.env...), " "); strings.Contains(s, "secret") || strings.Contains(s, "token") {
				t.Errorf("credentials get in: %s", s)
			}
		})
	}
}

// TestGoElsewhere: modules in another place than ~/go are shown there.
func TestGoElsewhere(t *testing.T) {
	_, tools := found(t, map[string]string{"/home/me/.config/go/env": "GOMODCACHE=/data/mod\n"}, "GOPATH=/work/go:/more")
	if want := []part{{"tool go: GOPATH in environment", []string{"/work/go/pkg", "/work/go/bin"}}, {"tool go: GOMODCACHE in ~/.config/go/env", []string{"/data/mod"}}}; !reflect.DeepEqual(tools.copies, want) {
		t.Errorf("%v, want %v", tools.copies, want)
	}
	if !slices.Equal(tools.env, []string{"GOPATH=/work/go:/more"}) {
		t.Errorf("%q", tools.env)
	}
	for _, v := range []string{"GOPATH=/", "GOPATH=../x", "GOMODCACHE=off", "GOMODCACHE=/a\nb", "GOMODCACHE=/*"} {
		if _, tools := found(t, nil, v); tools.copies != nil {
			t.Errorf("%q: %v", v, tools.copies)
		}
	}
}

// TestCleanNpmrc: a command sees how npm works, and not as whom.
func TestCleanNpmrc(t *testing.T) {
	const keep = "# mine\nregistry = https://npm.example/\n@corp:registry=https://corp.example\nsave-exact=true\nengine-strict=true\nca[]=\"-----BEGIN CERTIFICATE-----\"\n"
	const drop = "//npm.example/:_authToken=${TOKEN}\n//r/:_password=x\n _auth = abc\n_authToken=y\nusername=me\nemail=me@example.org\nproxy=http://p:1\nhttps-proxy=http://p:1\nkey=\"-----BEGIN PRIVATE KEY-----\"\ncert=x\notp=123456\nregistry=https://me:secret@npm.example/\n"
	facts := testFacts(hostFS())
	facts.FS.(fstest.MapFS)["home/u/.npmrc"] = &fstest.MapFile{Data: []byte(drop + keep)}
	r := mustResolve(t, Request{Profile: "aicode"}, facts)
	i := slices.IndexFunc(r.Policy.Synthetic, func(f policy.SyntheticFile) bool { return f.Path == "/home/u/.npmrc" })
	if i < 0 || r.Policy.Synthetic[i].Content != keep || access(t, r, "/home/u/.npmrc") != "" {
		t.Errorf("%+v", r.Policy.Synthetic)
	}
}

// TestHostileRemote: a repository chooses no host that its user did not choose
// before.
func TestHostileRemote(t *testing.T) {
	known := "forge.example ssh-ed25519 AAAA\n@cert-authority *.example ssh-ed25519 AAAA\n@revoked evil.example ssh-ed25519 AAAA\n* ssh-ed25519 AAAA\nlocalhost,127.0.0.1,10.0.0.1 ssh-ed25519 AAAA\n# evil.example ssh-ed25519 AAAA\n"
	for _, url := range []string{
		"https://evil.example/x", "git@evil.example:x", "https://forge.example.evil.example/x", "https://forge.example@evil.example/x", "https://localhost:8080/x",
		"http://127.0.0.1/x", "http://10.0.0.1/x", "http://[::1]/x", "https://*/x", "https://sub.forge.example/x", "https://xforge.example/",
	} {
		got, tools := found(t, map[string]string{
			"/home/me/src/.git/config":  "[remote \"origin\"]\n\turl = " + url + "\n[url \"https://evil.example/\"]\n\tinsteadOf = https://forge.example/\n[credential \"https://evil.example\"]\n\thelper = x\n[include]\n\tpath = /home/me/src/more\n",
			"/home/me/.ssh/known_hosts": known,
		})
		if len(got) > 0 {
			t.Errorf("%s: allowed %q", url, got)
		}
		if strings.Contains(url, "//evil") && (len(tools.notes) != 1 || !strings.Contains(tools.notes[0], "--allow-host evil.example:443")) {
			t.Errorf("%s: notes %q", url, tools.notes)
		}
	}
	// The very file may not be a link either.
	fsys := fstest.MapFS{
		"home/me/.ssh/known_hosts": &fstest.MapFile{Data: []byte("forge.example ssh-ed25519 AAAA\n")},
		"home/me/other":            &fstest.MapFile{Data: []byte("[remote \"o\"]\n\turl = https://forge.example/x\n")},
		"home/me/src/.git/config":  &fstest.MapFile{Data: []byte("../../other"), Mode: 0o777 | 1<<27}, // fs.ModeSymlink
	}
	s := source{facts: &Facts{Home: "/home/me", Cwd: "/home/me/src", FS: fsys}}
	if tools := s.findTools("/home/me/src"); len(tools.parts) > 0 {
		t.Errorf("through a link: %v", tools.parts)
	}
}

func FuzzTools(f *testing.F) {
	f.Add("[remote \"a\\\"]\"]\nurl = git@x.example:y # c\n", "x.example,[y]:22 k v\n|1|a|b c d\n")
	f.Add("[url \"https://a/\"] insteadOf=b\n[a \"b\nurl=\"x", "machine x.example login y\n")
	f.Add("deb [a=b] http://x.example/ y\nURIs: a\n b\n", "<url>https://x</url><!-- <url>")
	f.Add("registry=https://x\n  https://y\n=\n", "GOPROXY=|,|\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		hosts, tools := found(t, map[string]string{
			"/home/me/.npmrc": a, "/home/me/.config/pip/pip.conf": b, "/home/me/.cargo/config.toml": a, "/home/me/.m2/settings.xml": b, "/etc/apt/sources.list": a,
			"/home/me/.gitconfig": b, "/home/me/src/.git/config": a, "/home/me/.ssh/known_hosts": b, "/home/me/.netrc": b, "/home/me/.config/go/env": b,
		})
		for _, h := range hosts {
			host, _, _ := strings.Cut(h, " ")
			if err := checkItem(keyNetAllow, host); err != nil {
				t.Errorf("%q cannot be a rule: %v", host, err)
			}
			if strings.ContainsAny(host, "*/") || !strings.Contains(host, ":") {
				t.Errorf("%q is more than a host and a port", host)
			}
		}
		for _, kv := range tools.env {
			if strings.ContainsAny(kv, "\x00") {
				t.Errorf("%q", kv)
			}
		}
	})
}

// TestToolsOfWorkspace: what a command can have written names no host and shows no
// directory, whatever leads there: a PATH with the project's programs, a variable, a
// link. The same outside of the workspace does.
func TestToolsOfWorkspace(t *testing.T) {
	const told = "GOPROXY=https://evil.example\nGOSUMDB=evil.example\nGOMODCACHE=/home/me/.ssh\n"
	link := func(to string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink | 0o777}
	}
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text), Mode: 0o755} }
	for _, tt := range []struct {
		name, environ string
		files         fstest.MapFS
		builtin       bool // counts, as of a program that is installed
		planted       bool // does not count with another workspace either
	}{
		{name: "a virtual environment", environ: "PATH=/home/me/src/venv/bin", planted: true,
			files: fstest.MapFS{"home/me/src/venv/bin/go": file(""), "home/me/src/venv/bin/npm": file(""), "home/me/src/venv/go.env": file(told)}},
		{name: "another project's", environ: "PATH=/home/me/other/bin", planted: true, builtin: true,
			files: fstest.MapFS{"home/me/other/bin/go": file(""), "home/me/other/go.env": file(told)}},
		{name: "a link out", environ: "PATH=/home/me/src/bin", planted: true,
			files: fstest.MapFS{"home/me/src/bin/go": link("../../x/bin/go"), "home/me/x/bin/go": file(""), "home/me/x/go.env": file(told)}},
		{name: "a link in", files: fstest.MapFS{"home/me/.config/go/env": link("../../src/env"), "home/me/src/env": file(told)}},
		{name: "a link on the way", environ: "GOENV=/home/me/src/l/env", files: fstest.MapFS{"home/me/src/l": link("../x"), "home/me/x/env": file(told)}},
		{name: "GOENV", environ: "GOENV=/home/me/src/env", files: fstest.MapFS{"home/me/src/env": file(told)}},
		{name: "GOROOT", environ: "GOROOT=/home/me/src", files: fstest.MapFS{"home/me/src/go.env": file(told)}},
		{name: "CARGO_HOME", environ: "CARGO_HOME=/home/me/src", files: fstest.MapFS{"home/me/src/config.toml": file("[registries.x]\nindex = \"https://evil.example\"\n")}},
		{name: "XDG_CONFIG_HOME", environ: "XDG_CONFIG_HOME=/home/me/src", files: fstest.MapFS{"home/me/src/go/env": file(told)}},
	} {
		s := source{facts: &Facts{Home: "/home/me", UID: 1000, Environ: []string{tt.environ}, FS: tt.files}}
		tools := s.findTools("/home/me/src")
		if len(tools.copies) > 0 || strings.Contains(fmt.Sprint(tools.parts), "evil") || !tt.builtin && len(tools.parts) > 0 {
			t.Errorf("%s: %v %v", tt.name, tools.parts, tools.copies)
		}
		tools = s.findTools("/home/me/elsewhere")
		if strings.Contains(fmt.Sprint(tools.parts), "evil") == tt.planted {
			t.Errorf("%s, with another workspace: %v", tt.name, tools.parts)
		}
	}
}
