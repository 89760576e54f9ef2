package profiles

import (
	"slices"
	"strings"
	"testing"
)

// TestFlags: each flag of the table takes a text into a request, refuses a wrong one,
// and what it says reaches its key, by its name.
func TestFlags(t *testing.T) {
	texts := map[string]string{
		"SIZE": "64m", "N": "7", "DURATION": "3s", "UID[:GID]": "7:8", "SRC:DST[:ro]": "/a:/b:ro", "PATH[:SIZE]": "/x:2m",
		"HOST[:PORT,...]": "example.org", "[ADDR:]HOSTPORT:PORT": "8080:80", "KEY[=VALUE]": "A=b", "LAYER": "landlock,net", "NAME": "name", "": "true",
	}
	wrong := map[string]string{
		"SIZE": "64x", "N": "many", "DURATION": "3", "UID[:GID]": "root", "SRC:DST[:ro]": "/a", "KEY[=VALUE]": "=b", "LAYER": "cake", "": "maybe",
		"PATH": "", "FILE": "a\nb", "DIR": "", "NAME|FILE": "", "bind|overlay|ro|none": "rw", "none|proxy|host": "some",
	}
	for i := range Flags {
		f := &Flags[i]
		if f.field == nil {
			continue // env-file, which the command line reads
		}
		text, ok := texts[f.Value]
		if !ok {
			text, _, _ = strings.Cut(f.Value, "|")
		}
		r := &Request{}
		if err := f.Set(r, text); err != nil {
			t.Errorf("--%s %s: %v", f.Name, text, err)
		}
		if bad, ok := wrong[f.Value]; ok {
			if err := f.Set(new(Request), bad); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("--%s %q: %v", f.Name, bad, err)
			}
		}
		var p profile
		if err := f.lay(&p, r); err != nil {
			t.Errorf("--%s %s: %v", f.Name, text, err)
		}
		said := slices.ContainsFunc(p.entries(), func(e Entry) bool { return e.Key == f.Key() && e.Origin == "flag --"+f.Name && e.Value != "" })
		if want := f.key != noKey && f.how != apart; said != want {
			t.Errorf("--%s %s: in its key: %v, want %v; %v", f.Name, text, said, want, p.entries())
		}
	}
}
