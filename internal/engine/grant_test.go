package engine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

// TestProfileFile: a grant is added to a profile that nothing inside can write, and to no
// other: then nothing is granted.
func TestProfileFile(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	facts, err := GatherFactsAnywhere(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mine.yaml")
	const old = "extends: strict\n"
	const more = old + "\nfiles:\n  unprotect:\n    - .git/hooks  # why\n"
	rule := func(path string, a policy.Access) policy.FileRule { return policy.FileRule{Path: path, Access: a} }
	rw, ro := policy.Read|policy.Write, policy.Read
	var preset *ProfileFile
	own := NewProfileFile(file, facts)
	for _, tt := range []struct {
		name string
		file *ProfileFile
		p    policy.Policy
		want string
	}{
		{"a preset", preset, policy.Policy{}, old},
		{"nothing shown", own, policy.Policy{}, more},
		{"its directory, read-only", own, policy.Policy{Files: []policy.FileRule{rule(filepath.Dir(dir), rw), rule(dir, ro)}}, more},
		{"its directory", own, policy.Policy{Files: []policy.FileRule{rule(dir, rw)}}, old},
		{"its directory, and the file read-only", own, policy.Policy{Files: []policy.FileRule{rule(dir, rw), rule(file, ro)}}, old},
		{"the file alone", own, policy.Policy{Files: []policy.FileRule{rule(file, rw)}}, old},
		{"at another place", own, policy.Policy{OCI: &specs.Spec{Mounts: []specs.Mount{{Source: dir, Destination: "/x"}}}}, old},
	} {
		if err := os.WriteFile(file, []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
		if tt.p.OCI == nil {
			tt.p.OCI = &specs.Spec{}
		}
		g := driver.GrantOf("unprotect", ".git/hooks")
		takes, said := tt.file.Takes(g, &tt.p), false
		granted, err := tt.file.Grant(g, "why", &tt.p, func() error { said = true; return nil })
		b, rerr := os.ReadFile(file)
		if fits := tt.want == more; takes != fits || granted != fits || said != fits || err == nil != fits || rerr != nil || string(b) != tt.want {
			t.Errorf("%s: takes %t, granted %t, said %t, %v: %q, %v", tt.name, takes, granted, said, err, b, rerr)
		}
	}
	granted, err := own.Grant("--unprotect .git/config", "", &policy.Policy{OCI: &specs.Spec{}}, func() error {
		return os.WriteFile(file, []byte(old+"# changed\n"), 0o600)
	})
	if b, _ := os.ReadFile(file); !granted || err == nil || string(b) != old+"# changed\n" {
		t.Errorf("changed meanwhile: %t, %v: %q", granted, err, b)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("left beside it: %v, %v", list, err)
	}
	if err := errors.Join(os.Rename(dir, dir+".moved"), os.Symlink(dir+".moved", dir)); err != nil {
		t.Fatal(err)
	}
	if own.Takes("--unprotect .git/config", &policy.Policy{OCI: &specs.Spec{}}) {
		t.Error("a directory that is a link by now")
	}
}
