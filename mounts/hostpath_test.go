package mounts

import "testing"

func TestHostPath(t *testing.T) {
	tree := &Tree{Entries: []Entry{
		{Kind: Bind, Target: "/usr", Source: "/usr", IsDir: true},
		{Kind: Symlink, Target: "/bin", Source: "usr/bin"},
		{Kind: Proc, Target: "/proc"},
		{Kind: Scratch, Target: "/tmp"},
		{Kind: Bind, Target: "/ws", Source: "/home/u/odd 'name", IsDir: true},
		{Kind: File, Target: "/etc/passwd"},
		{Kind: Symlink, Target: "/loop", Source: "/loop"},
		{Kind: Symlink, Target: "/abs", Source: "/ws/d"},
	}}
	ops, err := tree.Ops()
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		"/usr/bin/ls": "/usr/bin/ls", "/bin/ls": "/usr/bin/ls", "/ws/x": "/home/u/odd 'name/x", "/abs/e": "/home/u/odd 'name/d/e",
		"/tmp/x": "", "/nonesuch": "", "/loop/x": "", "/proc/self": "", "/usrx": "", "/etc/passwd": "",
	} {
		if got, ok := HostPath(ops, target); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", target, got, ok, want)
		}
	}
}
