//go:build unix

package profiles

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/sbxrun/sbxrun/policy"
)

func putLink(f fstest.MapFS, name, target string, owner ...uint32) {
	m := &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(target)}
	if len(owner) > 0 {
		m.Sys = &syscall.Stat_t{Uid: owner[0]}
	}
	f[name] = m
}

// TestPlantedLinks: what a link that an earlier command can have made leads to
// is not what the caller typed (F02).
func TestPlantedLinks(t *testing.T) {
	f := hostFS()
	for _, d := range []string{"home/u/.config/autostart/sub", "home/u/src/project/lib/v1", "var/home/v/.ssh", "var/home/v/p", "srv/app/data", "srv/other", "home/u/keys", "home/u/data"} {
		f[d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
	const p = "home/u/src/project/"
	putLink(f, p+"out", "../../.ssh")
	putLink(f, p+"key", "../../.ssh/id_ed25519")
	putLink(f, p+"hop", "out")
	putLink(f, p+"web", "../../.config/autostart")
	putLink(f, p+"disk", "/dev/kvm")
	putLink(f, p+"back", "lib/up/../../data") // by its text, data in the project
	putLink(f, p+"lib/up", "..")
	putLink(f, p+"lib/current", "v1")
	putLink(f, p+"lib/sibling", "../sub")
	putLink(f, "home/u/.gnupg", "keys")
	putLink(f, "srv/link", "other", 0)
	putLink(f, "srv/away", "/home/u/data", 0)
	putLink(f, "srv/mine", "/home/u/data", 501)
	putLink(f, "srv/app/out", "/srv/other", 0)
	putLink(f, "homes", "var/home", 0)
	secret, escape := "secret", "an earlier command can have made that link"
	for _, c := range []struct {
		req  Request
		want string // "" if it is fine
	}{
		// (a) A link does not name a secret.
		{Request{ReadWrite: []string{"./out"}}, escape},
		{Request{ReadOnly: []string{"./out"}}, secret},
		{Request{ReadOnly: []string{"hop"}}, secret},
		{Request{ReadOnly: []string{"key"}}, secret},
		{Request{ReadOnly: []string{"out/known_hosts"}}, secret},
		{Request{ReadOnly: []string{"~/.ssh"}}, ""},
		{Request{ReadOnly: []string{"~/.ssh/known_hosts"}}, ""},
		{Request{ReadOnly: []string{"../../.ssh"}}, ""},
		{Request{ReadOnly: []string{"~/.gnupg"}}, ""},
		{Request{ReadOnly: []string{"~/keys"}}, ""},
		{Request{ReadOnly: []string{"web"}}, ""},
		{Request{Binds: []Bind{{Source: "out", Destination: "/x", ReadOnly: true}}}, secret},
		{Request{Binds: []Bind{{Source: "web", Destination: "/x", ReadOnly: true}}}, ""},
		// (b) A link does not choose what is written.
		{Request{ReadWrite: []string{"web"}}, escape},
		{Request{ReadWrite: []string{"w*"}}, escape},
		{Request{ReadWrite: []string{"back"}}, escape},
		{Request{ReadWrite: []string{"lib/sibling"}}, escape},
		{Request{ReadWrite: []string{"lib/current"}}, ""},
		{Request{ReadWrite: []string{"~/.config/autostart"}}, ""},
		{Request{Dir: "web"}, escape},
		{Request{Dir: "web", Workspace: "ro"}, escape},
		{Request{Dir: "web", Workspace: "none"}, ""},
		{Request{Dir: "lib/current"}, ""},
		{Request{Dir: "~/.config/autostart"}, ""},
		{Request{Binds: []Bind{{Source: "web", Destination: "/x"}}}, escape},
		{Request{Binds: []Bind{{Source: "lib/current", Destination: "/x"}}}, ""},
		{Request{Devices: []string{"disk"}}, escape},
		{Request{Devices: []string{"/dev/kvm"}}, ""},
		{Request{ReadOnly: []string{"web/.."}}, ""}, // the working directory: .. goes before links
		{Request{Dir: "web/sub"}, "goes through the symbolic link /home/u/src/project/web to /home/u/.config/autostart/sub"},
		// Links of the system are fine; those of the caller are not, wherever.
		{Request{ReadWrite: []string{"/srv/away"}}, ""},
		{Request{ReadWrite: []string{"/srv/mine"}}, escape},
		{Request{ReadWrite: []string{"/srv/app/out"}}, ""},
	} {
		c.req.Command = []string{"true"}
		_, err := Resolve(&c.req, testFacts(f))
		var e *Error
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.req, err)
		case c.want == "":
		case !errors.As(err, &e) || !strings.Contains(e.Error(), c.want) || !strings.Contains(e.Error(), "symbolic link") || !strings.Contains(e.Hint(), "type the real path"):
			t.Errorf("%+v: %v, want %q", c.req, err, c.want)
		}
	}

	// A pattern that happens to match in a secret shows nothing of it.
	for _, pattern := range []string{"~/.s*/*", "k*", "[hko]*"} {
		r := mustResolve(t, Request{ReadOnly: []string{pattern}}, testFacts(f))
		for _, name := range []string{"/home/u/.ssh", "/home/u/.ssh/id_ed25519"} {
			if got := access(t, r, name); got != "" && got != "---" {
				t.Errorf("--ro %s: %s is %s", pattern, name, got)
			}
		}
	}

	// A profile's list that starts at the workspace is led by its links, too.
	for item, want := range map[string]string{"web": escape, "lib/current": ""} {
		putFile(f, "home/u/.config/sbxrun/profiles/mine.yaml", "files:\n  write: ["+item+"]\n")
		_, err := Resolve(&Request{Profile: "mine", Command: []string{"true"}}, testFacts(f))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("files.write [%s]: %v", item, err)
		}
	}

	// The message names the link and where it leads.
	_, err := Resolve(&Request{ReadWrite: []string{"./web"}}, testFacts(f))
	const says = "flag --rw: /home/u/src/project/web is a symbolic link to /home/u/.config/autostart: an earlier command can have made that link"
	if err == nil || err.Error() != says {
		t.Errorf("got  %v\nwant %s", err, says)
	}

	// A home behind a link of the system, or that is one itself.
	for _, home := range []string{"/homes/v", "/users"} {
		putLink(f, "users", "/var/home/v", 501)
		facts := testFacts(f)
		facts.Home, facts.Cwd = home, "/var/home/v/p"
		putLink(f, "var/home/v/p/out", "../.ssh")
		if _, err := Resolve(&Request{ReadOnly: []string{"~/.ssh"}, ReadWrite: []string{home + "/p"}, Command: []string{"true"}}, facts); err != nil {
			t.Errorf("%s: %v", home, err)
		}
		if _, err := Resolve(&Request{ReadOnly: []string{home + "/p/out"}, Command: []string{"true"}}, facts); err == nil || !strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", home, err)
		}
	}

	// To root every link belongs: there, only the system's directories count.
	root := testFacts(f)
	root.UID, root.Home, root.Cwd = 0, "/root", "/srv/app/data"
	for name, ok := range map[string]bool{"/srv/app/out": false, "/srv/away": true, "/homes/v/p": true, "/srv/mine": false} {
		if _, err := Resolve(&Request{ReadWrite: []string{name}, Command: []string{"true"}}, root); (err == nil) != ok {
			t.Errorf("root, --rw %s: %v", name, err)
		}
	}
}

// TestBindHides: what is hidden in its place is not shown in another (F02).
func TestBindHides(t *testing.T) {
	f := hostFS()
	for _, d := range []string{"home/u/vault/keys", "home/u/vault/notes", "home/u/src/project/sub/deep"} {
		f[d] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
	putLink(f, "home/u/.gnupg", "vault/keys")
	putFile(f, "home/u/.config/sbxrun/profiles/mine.yaml", "files:\n  hide: [sub/deep]\n")
	for _, c := range []struct {
		req  Request
		want string // "" if it is fine
	}{
		{Request{Hide: []string{"sub/deep"}, Binds: []Bind{{Source: "sub", Destination: "/mnt/d", ReadOnly: true}}}, "holds /home/u/src/project/sub/deep, a path"},
		{Request{Hide: []string{"sub/*"}, Binds: []Bind{{Source: "sub", Destination: "/mnt/d", ReadOnly: true}}}, "holds /home/u/src/project/sub/b.pem, a path"},
		{Request{Hide: []string{"sub"}, Binds: []Bind{{Source: "sub/deep", Destination: "/mnt/d", ReadOnly: true}}}, "is in /home/u/src/project/sub, a path"},
		{Request{Profile: "mine", Binds: []Bind{{Source: "sub", Destination: "/mnt/d"}}}, "holds /home/u/src/project/sub/deep, a path"},
		{Request{Hide: []string{"sub"}, Binds: []Bind{{Source: "/opt/tool", Destination: "/mnt/d"}}}, ""},
		{Request{Binds: []Bind{{Source: "~/vault", Destination: "/mnt/d", ReadOnly: true}}}, "holds /home/u/vault/keys, a secret"},
		{Request{Binds: []Bind{{Source: "~/vault/notes", Destination: "/mnt/d", ReadOnly: true}}}, ""},
		{Request{Binds: []Bind{{Source: "~/.gnupg", Destination: "/mnt/d", ReadOnly: true}}}, ""},
		{Request{Binds: []Bind{{Source: "~/.ssh", Destination: "/mnt/d", ReadOnly: true}}}, ""},
		{Request{Binds: []Bind{{Source: "~/.ssh/known_hosts", Destination: "/mnt/d", ReadOnly: true}}}, ""},
		{Request{Binds: []Bind{{Source: "/home", Destination: "/mnt/d", ReadOnly: true}}}, "a secret"},
		{Request{Binds: []Bind{{Source: "/home/other", Destination: "/mnt/d", ReadOnly: true}}}, "holds /home/other/.ssh, a secret"},
		{Request{Profile: "aicode", Net: new(policy.EgressMode), Binds: []Bind{{Source: ".", Destination: "/mnt/d"}}}, "holds /home/u/src/project/.env, a secret"},
		{Request{Profile: "aicode", Net: new(policy.EgressMode), Binds: []Bind{{Source: "sub", Destination: "/mnt/d"}}}, ""},
	} {
		c.req.Command = []string{"true"}
		_, err := Resolve(&c.req, testFacts(f))
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v %v: %v, want %q", c.req.Profile, c.req.Hide, c.req.Binds, err, c.want)
		}
	}
}
