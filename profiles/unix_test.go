package profiles

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sbxrun/sbxrun/policy"
)

// TestUnix: which sockets a request lets be connected to, and that nothing else of the
// policy changes by that.
func TestUnix(t *testing.T) {
	f := hostFS()
	socket := func(name string) { f[name] = &fstest.MapFile{Mode: fs.ModeSocket | 0o777} }
	for _, s := range []string{"home/u/src/project/s.sock", "home/u/src/project/d/s.sock", "home/u/.gnupg/S.gpg-agent", "run/app/s.sock", "opt/s.sock"} {
		socket(s)
	}
	f["home/u/src/project/out"] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte("/opt")}
	facts := func(project string) *Facts {
		g := fstest.MapFS{}
		for n, file := range f {
			g[n] = file
		}
		if project != "" {
			putFile(g, "home/u/src/project/.sbxrun.yaml", project)
		}
		putFile(g, "home/u/.config/sbxrun/profiles/copies.yaml", "extends: strict\nfiles:\n  copy_try: [./d]\n")
		return testFacts(g)
	}
	const ws = "/home/u/src/project"
	for _, tt := range []struct {
		name    string
		req     Request
		project string
		want    []string
		shows   []string // rules beyond those without
		err     string
	}{
		{name: "nothing"},
		{name: "a socket of the workspace", req: Request{Unix: []string{"s.sock"}}, want: []string{ws + "/s.sock"}},
		{name: "the workspace", req: Request{Unix: []string{"."}}, want: []string{ws}},
		{name: "a directory in it", req: Request{Unix: []string{"d"}}, want: []string{ws + "/d"}},
		{name: "a place that is not shown", req: Request{Unix: []string{"/run/app"}}, want: []string{"/run/app"}, shows: []string{"/run/app r-x"}},
		{name: "a socket shown for itself", req: Request{ReadOnly: []string{"/run/app/s.sock"}}, want: []string{"/run/app/s.sock"}, shows: []string{"/run/app/s.sock r-x"}},
		{name: "a socket shown writable in what is writable", req: Request{ReadWrite: []string{"s.sock"}}, want: []string{ws + "/s.sock"}},
		{name: "its directory shown", req: Request{ReadOnly: []string{"/run/app"}}, shows: []string{"/run/app r-x"}},
		{name: "a pattern that matches it", req: Request{ReadOnly: []string{"/run/app/*"}}, shows: []string{"/run/app/s.sock r-x"}},
		{name: "with what is written there", req: Request{ReadWrite: []string{"/run/app"}, Unix: []string{"/run/app"}}, want: []string{"/run/app"}, shows: []string{"/run/app rwx"}},
		{name: "a secret directory stays one", req: Request{Unix: []string{"~/.gnupg"}}},
		{name: "but for who names it", req: Request{ReadOnly: []string{"~/.gnupg"}, Unix: []string{"~/.gnupg"}}, want: []string{"/home/u/.gnupg"}, shows: []string{"/home/u/.gnupg r-x"}},
		{name: "private storage", req: Request{Unix: []string{"/tmp"}}, err: "private storage"},
		{name: "the host's in its place", req: Request{ReadOnly: []string{"/tmp"}, Unix: []string{"/tmp"}}, want: []string{"/tmp"}, shows: []string{"/tmp r-x"}},
		{name: "below what is in the place of its copy", req: Request{Workspace: "overlay", ReadOnly: []string{"d"}, Unix: []string{"d/s.sock"}}, want: []string{ws + "/d/s.sock"}, shows: []string{ws + "/d r-x"}},
		{name: "below a copy of its own in its place", req: Request{Profile: "copies", Workspace: "overlay", Unix: []string{"d/s.sock"}}, err: "no socket of the host works there"},
		{name: "a socket in the place of its copy", req: Request{Workspace: "overlay", ReadOnly: []string{"s.sock"}}, want: []string{ws + "/s.sock"}, shows: []string{ws + "/s.sock r-x"}},
		{name: "a socket in it", req: Request{Unix: []string{"~/.gnupg/S.gpg-agent"}}, want: []string{"/home/u/.gnupg/S.gpg-agent"}, shows: []string{"/home/u/.gnupg/S.gpg-agent r-x"}},
		{name: "hidden beside it", req: Request{Unix: []string{"d"}, Hide: []string{"d"}}, shows: []string{ws + "/d ---"}},
		{name: "a link of an earlier command's", req: Request{Unix: []string{"out/s.sock"}}, err: "an earlier command can have made"},
		{name: "a file", req: Request{Unix: []string{"main.go"}}, err: "neither a Unix socket nor a directory"},
		{name: "what is not there", req: Request{Unix: []string{"none.sock"}}, err: "does not exist"},
		{name: "a project's denial", project: "files:\n  deny_exec: [s.sock]\n", shows: []string{ws + "/s.sock rw-"}},
		{name: "a project's wish", project: "files:\n  unix: [s.sock]\n", err: "files.unix"},
		{name: "in a copy", req: Request{Workspace: "overlay", Unix: []string{"d"}}, err: "no socket of the host works there"},
		{name: "above a copy", req: Request{Workspace: "overlay", Unix: []string{"/home"}}, want: []string{"/home"}, shows: []string{"/home r-x"}},
		{name: "the private home", req: Request{Unix: []string{"~"}}, err: "private storage"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.req.Command = []string{"true"}
			r, err := Resolve(&tt.req, facts(tt.project))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("%v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.Policy.Unix, tt.want) {
				t.Errorf("%q, want %q", r.Policy.Unix, tt.want)
			}
			without := mustResolve(t, Request{Workspace: tt.req.Workspace}, facts("")).Policy
			var shows []string
			for _, f := range r.Policy.Files {
				if !slices.ContainsFunc(without.Files, func(o policy.FileRule) bool {
					return o.Path == f.Path && o.Access == f.Access && o.Overlay == f.Overlay
				}) && !secretOf(f) {
					shows = append(shows, f.Path+" "+f.Access.String())
				}
			}
			if !slices.Equal(shows, tt.shows) {
				t.Errorf("shows %q, want %q", shows, tt.shows)
			}
		})
	}
}

// secretOf reports whether a rule hides a secret in what is shown.
func secretOf(f policy.FileRule) bool {
	return f.Access == policy.Hide && strings.HasPrefix(f.Origin, "preset ")
}
