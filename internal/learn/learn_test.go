package learn

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

const home, workspace = "/home/u", "/home/u/w"

// host is a host of these files; a directory's name ends with a slash.
type host struct {
	files   []string
	secrets []string
	links   map[string]string // real paths by their symbolic links
	partly  string            // a directory that is too large
}

func (h *host) Real(p string) string {
	for l, to := range h.links {
		if policy.Below(p, l) {
			return to + p[len(l):]
		}
	}
	return p
}

func (h *host) Kind(p string) Kind {
	p = h.Real(p)
	for _, f := range h.files {
		switch {
		case f == p && strings.HasSuffix(p, "sock"):
			return Other
		case f == p:
			return File
		case policy.Below(strings.TrimSuffix(f, "/"), p):
			return Dir
		}
	}
	return Nothing
}

func (h *host) Socket(p string) string {
	for _, f := range h.files {
		if policy.Below(f, p) && strings.HasSuffix(f, "sock") {
			return f
		}
	}
	return ""
}

func (h *host) Protected(p string) string {
	if strings.Contains(p, ".vscode") {
		return ".vscode"
	}
	return ""
}

func (h *host) Withheld(p string, write bool) string {
	switch {
	case policy.Below(home, p), path.Dir(p) == "/":
		return "a home"
	case path.Base(p) == ".netrc":
		return "a secret"
	}
	return ""
}

func (h *host) Secrets(p string) (found []Line, all bool) {
	for _, s := range h.secrets {
		if policy.Below(s, p) {
			found = append(found, Line{s, "looks like a credential"})
		}
	}
	return found, h.partly == "" || !policy.Below(h.partly, p)
}

func policies() (open, base *policy.Policy) {
	tmp := specs.Mount{Destination: "/tmp", Type: "tmpfs"}
	open = &policy.Policy{OCI: &specs.Spec{Mounts: []specs.Mount{tmp}}, Files: []policy.FileRule{
		{Path: "/", Access: policy.ReadExec}, {Path: home, Access: policy.ReadExec, Discard: true},
		{Path: workspace, Access: policy.All, Overlay: true}, {Path: home + "/.hidden"}, {Path: home + "/.rw", Access: policy.All}}}
	base = &policy.Policy{OCI: &specs.Spec{Mounts: []specs.Mount{tmp, {Destination: home, Type: "tmpfs"}}},
		Files: []policy.FileRule{{Path: "/usr", Access: policy.ReadExec}, {Path: home + "/.given", Access: policy.ReadExec}, {Path: home + "/.gfile", Access: policy.ReadExec},
			{Path: home + "/.gcopy", Access: policy.ReadExec, Discard: true}, {Path: home + "/.m/key", Access: policy.ReadExec}, {Path: workspace, Access: policy.All}}}
	return
}

// found is of uses "OP PATH", "OP PATH -> WHERE IT LEADS". A directory ends with a slash; the
// operation "replace" leaves nothing of what was there.
func (h *host) found(uses ...string) *Found {
	c := NewCollector(policies())
	for _, s := range uses {
		op, p, _ := strings.Cut(s, " ")
		target, leads, linked := strings.Cut(p, " -> ")
		u := driver.Use{Operation: op, Call: "openat", Target: strings.TrimSuffix(target, "/"), Dir: strings.HasSuffix(p, "/")}
		switch op {
		case "replace":
			u.Operation, u.Whole = driver.OpWrite, true
		case "unlink", "rename", "creat":
			u.Operation, u.Call, u.Whole = driver.OpWrite, op, true
		}
		if u.Leads = u.Target; linked {
			u.Dir = strings.HasSuffix(leads, "/")
			u.Leads = strings.TrimSuffix(leads, "/")
		}
		c.Add(u, func() *driver.Asker { return &driver.Asker{Command: "/usr/bin/tool --with arguments"} })
	}
	return c.Propose(h, home, workspace)
}

func items(list []Line) (out []string) {
	for _, l := range list {
		out = append(out, strings.Replace(l.Item, home, "~", 1))
	}
	return out
}

func TestPropose(t *testing.T) {
	h := &host{files: []string{"/home/u/.a/1", "/home/u/.a/2", "/home/u/.a/3", "/home/u/.a/deep/4", "/home/u/.a/deep/5",
		"/home/u/.config/a/1", "/home/u/.config/a/2", "/home/u/.config/a/3", "/home/u/.config/b/1", "/home/u/docs/1",
		"/home/u/docs/2", "/home/u/docs/3", "/home/u/docs/p/x/1", "/home/u/docs/p/x/2", "/home/u/docs/p/x/3", "/home/u/.netrc", "/home/u/.key", "/home/u/.s/1", "/home/u/.s/2",
		"/home/u/.s/3", "/home/u/.s/key", "/home/u/.many/1", "/home/u/.many/2", "/home/u/.many/3", "/home/u/.big/1",
		"/home/u/.big/2", "/home/u/.big/3", "/opt/x/1", "/opt/x/2", "/opt/x/3", "/opt/y/1", "/srv/f", "/usr/bin/tool", "/home/u/.link",
		"/home/u/w/file", "/home/u/.sock", "/etc/x", "/home/u/.t/1", "/home/u/.t/2", "/home/u/.t/3", "/home/u/.t/a.sock", "/home/u/file"},
		secrets: []string{"/home/u/.s/key", "/home/u/.key", "/home/u/.odd/key\xff", "/home/u/.m/key"}, partly: "/home/u/.big",
		links: map[string]string{"/home/u/.link": "/opt/x/1", "/home/u/.prog": "/usr/bin/tool", "/home/u/.ldocs": "/home/u/docs", "/home/u/.la": "/home/u/.a",
			"/home/u/.lhome": "/home/u", "/home/u/.ls": "/home/u/.s", "/home/u/.lkey": "/home/u/.key", "/home/u/.lt": "/home/u/.t", "/home/u/.lmany": "/home/u/.many", "/home/u/.rw/l": "/home/u/.a"}}
	h.files = append(h.files, "/home/u/.odd/1", "/home/u/.odd/2", "/home/u/.odd/3", "/home/u/.odd/key\xff", "/home/u/.rw/f", "/home/u/.given/1", "/home/u/.gfile", "/home/u/.gcopy/1", "/home/u/.m/1", "/home/u/.m/2", "/home/u/.m/3", "/home/u/.m/key")
	for i := range maxHidden + 1 {
		f := "/home/u/.many/key" + string(rune('a'+i))
		h.files, h.secrets = append(h.files, f), append(h.secrets, f)
	}
	for name, tc := range map[string]struct {
		uses                   []string
		read, cp, hidden, left []string
	}{
		"what the base gives":                                       {uses: []string{"exec /usr/bin/tool", "read /home/u/w/file", "read /tmp/x"}},
		"files are granted one by one":                              {uses: []string{"read ~/.a/1", "read ~/.a/2"}, read: []string{"~/.a/1", "~/.a/2"}},
		"many are granted by their directory":                       {uses: []string{"read ~/.a/1", "read ~/.a/2", "read ~/.a/3"}, read: []string{"~/.a"}},
		"the deepest that has all":                                  {uses: []string{"read ~/.a/deep/4", "read ~/.a/deep/5", "read ~/.a/deep/"}, read: []string{"~/.a/deep"}},
		"the same file again is one":                                {uses: []string{"read ~/.a/1", "read ~/.a/1", "read ~/.a/1"}, read: []string{"~/.a/1"}},
		"not what belongs to all programs":                          {uses: []string{"read ~/.config/a/1", "read ~/.config/a/2", "read ~/.config/a/3", "read ~/.config/b/1"}, read: []string{"~/.config/a", "~/.config/b/1"}},
		"nor a person's own directory":                              {uses: []string{"read ~/docs/1", "read ~/docs/2", "read ~/docs/3"}, read: []string{"~/docs/1", "~/docs/2", "~/docs/3"}},
		"but one below it":                                          {uses: []string{"read ~/docs/p/x/1", "read ~/docs/p/x/2", "read ~/docs/p/x/3"}, read: []string{"~/docs/p/x"}},
		"nor the system's":                                          {uses: []string{"read /opt/x/1", "read /opt/x/2", "read /opt/x/3", "read /opt/y/1"}, read: []string{"/opt/x", "/opt/y/1"}},
		"a home is listed":                                          {uses: []string{"read /home/u/", "read /"}},
		"a directory of a person is listed":                         {uses: []string{"read ~/docs/"}, left: []string{"~/docs"}},
		"a secret by name":                                          {uses: []string{"read ~/.netrc"}, left: []string{"~/.netrc"}},
		"a secret by content":                                       {uses: []string{"read ~/.key"}, left: []string{"~/.key"}},
		"a secret in a directory is hidden":                         {uses: []string{"read ~/.s/1", "read ~/.s/2", "read ~/.s/3"}, read: []string{"~/.s"}, hidden: []string{"~/.s/key"}},
		"a place for secrets":                                       {uses: []string{"read ~/.many/1", "read ~/.many/2", "read ~/.many/3"}, read: []string{"~/.many/1", "~/.many/2", "~/.many/3"}, left: []string{"~/.many"}},
		"too large to look at":                                      {uses: []string{"read ~/.big/1", "read ~/.big/2", "read ~/.big/3"}, read: []string{"~/.big/1", "~/.big/2", "~/.big/3"}, left: []string{"~/.big"}},
		"what it made itself":                                       {uses: []string{"write ~/.a/new", "read ~/.a/new"}},
		"what it had replaced before":                               {uses: []string{"replace ~/.a/1", "read ~/.a/1"}},
		"what it had added to before":                               {uses: []string{"write ~/.a/1", "read ~/.a/1"}, cp: []string{"~/.a"}},
		"a link that leads elsewhere later":                         {uses: []string{"read ~/.link -> /usr/bin/tool", "read ~/.link -> /opt/x/1"}, read: []string{"~/.link", "/opt/x/1"}, left: []string{"~/.link"}},
		"many through a link":                                       {uses: []string{"read ~/.la/1 -> ~/.a/1", "read ~/.la/2 -> ~/.a/2", "read ~/.la/3 -> ~/.a/3"}, read: []string{"~/.a", "~/.la/1"}},
		"through a link, with changes":                              {uses: []string{"read ~/.la/1 -> ~/.a/1", "read ~/.la/2 -> ~/.a/2", "read ~/.la/3 -> ~/.a/3", "write ~/.a/2"}, cp: []string{"~/.a", "~/.la/1"}},
		"a link to a person's own directory":                        {uses: []string{"read ~/.ldocs/1 -> ~/docs/1", "read ~/.ldocs/2 -> ~/docs/2", "read ~/.ldocs/3 -> ~/docs/3"}, read: []string{"~/.ldocs/1", "~/docs/1", "~/docs/2", "~/docs/3"}},
		"a link to a home, listed":                                  {uses: []string{"read ~/.lhome/ -> ~/"}, left: []string{"~/.lhome"}},
		"a link to what is granted, listed":                         {uses: []string{"read ~/.la/ -> ~/.a/"}, read: []string{"~/.a", "~/.la"}},
		"a link to a directory with a secret":                       {uses: []string{"read ~/.ls/1 -> ~/.s/1", "read ~/.ls/2 -> ~/.s/2", "read ~/.ls/3 -> ~/.s/3"}, read: []string{"~/.s", "~/.ls/1"}, hidden: []string{"~/.s/key"}},
		"a link to a secret":                                        {uses: []string{"read ~/.lkey -> ~/.key"}, left: []string{"~/.key", "~/.lkey"}},
		"a link to a place for secrets":                             {uses: []string{"read ~/.lmany/ -> ~/.many/"}, left: []string{"~/.many", "~/.lmany"}},
		"a link to a directory with a socket":                       {uses: []string{"read ~/.lt/ -> ~/.t/"}, left: []string{"~/.t", "~/.lt"}},
		"a directory of the run's own, which is a link on the host": {uses: []string{"read ~/.la/1", "read ~/.la/2", "read ~/.la/3", "write ~/.la/1"}, left: []string{"~/.la/1", "~/.la/2", "~/.la/3"}},
		"a link that the command can change":                        {uses: []string{"read ~/.rw/l/ -> ~/.a/", "read ~/.rw/f"}, read: []string{"~/.a"}},
		"a change of what the base shows read-only":                 {uses: []string{"write ~/.given/new", "write ~/.given/1"}, cp: []string{"~/.given"}},
		"a change of a file that it shows":                          {uses: []string{"write ~/.gfile"}, left: []string{"~/.gfile"}},
		"a change of a copy":                                        {uses: []string{"write ~/.gcopy/1", "unlink ~/.gcopy/1"}},
		"what is removed has to be there":                           {uses: []string{"unlink ~/.a/1", "rename ~/.a/2", "rename ~/file"}, left: []string{"~/.a", "~"}},
		"and is not, if the command made it":                        {uses: []string{"replace ~/.a/1", "unlink ~/.a/1", "unlink ~/.a/new", "creat ~/.a/2"}},
		"nor said again if it is granted":                           {uses: []string{"unlink ~/.a/1", "read ~/.a/2", "read ~/.a/deep/4", "read ~/.a/deep/5"}, cp: []string{"~/.a"}},
		"what the base gives is not hidden":                         {uses: []string{"read ~/.m/1", "read ~/.m/2", "read ~/.m/3"}, read: []string{"~/.m"}},
		"a secret whose name cannot be written":                     {uses: []string{"read ~/.odd/1", "read ~/.odd/2", "read ~/.odd/3"}, read: []string{"~/.odd/1", "~/.odd/2", "~/.odd/3"}, left: []string{"~/.odd"}},
		"a socket that is opened":                                   {uses: []string{"read ~/.sock"}, left: []string{"~/.sock"}},
		"a directory with a socket":                                 {uses: []string{"read ~/.t/1", "read ~/.t/2", "read ~/.t/3"}, read: []string{"~/.t/1", "~/.t/2", "~/.t/3"}, left: []string{"~/.t"}},
		"a protected path":                                          {uses: []string{"write ~/w/.vscode/x"}, left: []string{"~/w/.vscode/x"}},
		"a directory that it reads and writes":                      {uses: []string{"read ~/.a/1", "read ~/.a/2", "read ~/.a/3", "write ~/.a/new"}, cp: []string{"~/.a"}},
		"a file that it reads and writes":                           {uses: []string{"read ~/.a/1", "write ~/.a/1"}, cp: []string{"~/.a"}},
		"one of no directory of its own":                            {uses: []string{"read ~/file", "write ~/file"}, read: []string{"~/file"}, left: []string{"~/file"}},
		"a change outside of the home":                              {uses: []string{"write /srv/f"}, left: []string{"/srv/f"}},
		"a socket":                                                  {uses: []string{"unix ~/.sock"}, left: []string{"~/.sock"}},
		"a link is granted, with what it is for":                    {uses: []string{"read ~/.link -> /opt/x/1"}, read: []string{"~/.link", "/opt/x/1"}},
		"a link into what the base gives":                           {uses: []string{"exec ~/.prog -> /usr/bin/tool"}, read: []string{"~/.prog"}},
		"what is hidden":                                            {uses: []string{"read ~/.hidden/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.uses {
				tc.uses[i] = strings.ReplaceAll(tc.uses[i], "~", home)
			}
			f := h.found(tc.uses...)
			for what, is := range map[string][2][]string{"read": {items(f.Read), tc.read}, "copy_try": {items(f.Copy), tc.cp},
				"hide": {items(f.Hide), tc.hidden}, "left": {items(slices.Concat(f.First, f.Left)), tc.left}} {
				slices.Sort(is[0])
				if slices.Sort(is[1]); !slices.Equal(is[0], is[1]) {
					t.Errorf("%s: %q, want %q", what, is[0], is[1])
				}
			}
		})
	}
}

// A later run adds lines, and nothing else is changed.
func TestInto(t *testing.T) {
	h := Header{Base: "strict", Command: []string{"make"}, Home: home}
	first := (&Found{Read: []Line{{home + "/.a", "why"}}, Peaks: "it used 1 MiB"}).Text(h)
	own := strings.Replace(first, "  read:\n", "  read:\n    - ~/mine   # I want it\n", 1) + "limits:\n  pids: 10\n"
	second := &Found{Read: []Line{{home + "/.a", "again"}, {home + "/a b: c", "spaces"}}, Copy: []Line{{home + "/.c", ""}},
		Hosts: []Line{{"h:443", "x"}}, Changed: true, Pids: 99, Peaks: "p", Left: []Line{{"/x", "no"}}, Lost: 3}
	got, err := second.Into(own, h)
	if err != nil {
		t.Fatal(err)
	}
	want := `# Learned by sbxrun learn. A proposal: read it before you use it.
extends: strict

files:
  read:
    - ~/mine   # I want it
    - ~/.a  # why
    - "~/a b: c"  # spaces
  copy_try:
    - ~/.c
# From: make
limits:
  pids: 99  # p

network:
  mode: proxy
  allow:
    - h:443  # x
# Not granted: /x: no
# Not seen: 3 uses of paths, which there was no room to remember.
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if again, err := second.Into(got, h); err != nil || again != got {
		t.Errorf("the same again, %v:\n%s", err, again)
	}
	// A comment ends nothing, wherever it begins.
	got, err = (&Found{Read: []Line{{"/r", ""}}, Changed: true}).Into("files:\n  hide:\n    - /a\n#   - /b\n    - /c\n\nhome: host\n", h)
	if want := "files:\n  hide:\n    - /a\n#   - /b\n    - /c\n  read:\n    - /r\n\nhome: host\n# From: make\n"; err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	for _, form := range []string{"files: {read: [/a]}\n", "files:\n  read: [/a]\n", "files:\n\tread:\n", "files:\n  read:\n  - /a\n"} {
		if _, err := second.Into(form, h); err == nil {
			t.Errorf("%q was added to", form)
		}
	}
}

// TestRoom: what is remembered is bounded by its size.
func TestRoom(t *testing.T) {
	c := NewCollector(policies())
	long := strings.Repeat("/"+strings.Repeat("x", 200), 19)
	const n = 20000
	for i := range n {
		for _, dir := range []string{"/usr", "/srv"} {
			at := dir + long + "/" + strconv.Itoa(i)
			c.Add(driver.Use{Operation: driver.OpRead, Call: "openat", Target: at, Leads: at}, func() *driver.Asker { return nil })
		}
	}
	size := key{"", "/srv" + long, "/srv" + long}.size()
	if len(c.known)*size > maxKnown || len(c.uses)*size > maxUses || len(c.uses) < maxUses/size/2 {
		t.Errorf("%d known, %d uses of %d bytes", len(c.known), len(c.uses), size)
	}
	if f := c.Propose(&host{}, home, workspace); f.Lost != uint64(n-len(c.uses)) {
		t.Errorf("%d lost", f.Lost)
	}
}

// TestWithin: a profile is no larger than can be read, and says what it has no room for;
// secrets are named first.
func TestWithin(t *testing.T) {
	f := &Found{Changed: true, First: []Line{{home + "/.netrc", "a secret"}}, Notes: []string{"a note"}}
	for i := range 12000 {
		f.Read = append(f.Read, Line{home + "/docs/" + strconv.Itoa(i), "opened 1 time"})
		f.Left = append(f.Left, Line{"/" + strings.Repeat("x", 100) + strconv.Itoa(i), "changed"})
	}
	text := f.Text(Header{Base: "strict", Command: []string{"make"}, Home: home})
	if len(text) > 64<<10 || len(text) < 40<<10 {
		t.Errorf("%d bytes", len(text))
	}
	for _, want := range []string{"- ~/docs/0 ", "lines for which a profile has no room", "# Not granted: ~/.netrc: a secret\n", "# a note\n", "# Not granted: others: "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	// What hides something is never left out alone.
	f.Read, f.Hide = []Line{{home + "/.a", ""}}, f.Read
	if text = f.Text(Header{Base: "strict", Command: []string{"make"}, Home: home}); strings.Contains(text, "  read:") {
		t.Error("a directory is shown, and what is in it not hidden")
	}
}
