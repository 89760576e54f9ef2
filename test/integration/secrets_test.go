//go:build linux

package integration

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// plantCredentials fills the home, and a workspace in it, with the files that
// testdata/credentials.txt lists. It returns them by what each holds.
func (f *fixture) plantCredentials() map[string]string {
	f.Helper()
	b, err := os.ReadFile("testdata/credentials.txt")
	if err != nil {
		f.Fatal(err)
	}
	planted := map[string]string{}
	for line := range strings.Lines(string(b)) {
		dir, names, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || line[0] == '#' {
			continue
		}
		for name := range strings.FieldsSeq(names) {
			canary := fmt.Sprintf("canary-%04d", len(planted))
			file := path.Join("home", dir, name)
			f.write(file, "-----BEGIN OPENSSH PRIVATE KEY-----\npassword = "+canary+"-hunter2\n", 0o600)
			planted[canary] = strings.TrimPrefix(file, "home/")
		}
	}
	return planted
}

var canaryText = regexp.MustCompile(`canary-[0-9]{4}`)

// TestHomeSecrets: of five hundred files of a home and a workspace in which common
// tools keep credentials, aicode shows none and strict those of the workspace.
func TestHomeSecrets(t *testing.T) {
	eachWho(t, func(f *fixture) {
		planted := f.plantCredentials()
		all := slices.Sorted(maps.Values(planted))
		f.write("home/ws/list", f.home+"/"+strings.Join(all, "\n"+f.home+"/")+"\n", 0o644)
		f.own()
		read := func(profile string, flags ...string) (shown []string) {
			args := append(f.who.command(sbxrun, "--profile", profile, "-C", f.home+"/ws"), append(f.who.flags(), flags...)...)
			o := f.run(call{args: append(args, "--", "sh", "-c", "xargs cat <list 2>/dev/null; cp -r ~ /tmp/all 2>/dev/null; grep -raoh 'canary-[0-9]*' /tmp/all; echo end")})
			if o.code != 0 || !strings.Contains(o.stdout, "end") {
				f.Fatal(o)
			}
			for _, canary := range canaryText.FindAllString(o.stdout, -1) {
				if name := planted[canary]; !slices.Contains(shown, name) {
					shown = append(shown, name)
				}
			}
			slices.Sort(shown)
			return shown
		}
		if shown := read("aicode"); len(shown) != 0 {
			f.Errorf("aicode: %d of %d: %q", len(shown), len(planted), shown)
		}
		// strict looks for nothing at its start: it shows the workspace as it is, and
		// has no network to send it by.
		shown := read("strict")
		for _, name := range shown {
			if !strings.HasPrefix(name, "ws/") {
				f.Errorf("strict: %s", name)
			}
		}
		// The control: a grant of the home shows what no list knows.
		if control := read("strict", "--ro", "~"); len(shown) == 0 || len(control) < len(planted)/2 {
			f.Errorf("strict shows %d of the workspace, and with the home %d of %d", len(shown), len(control), len(planted))
		}
	})
}
