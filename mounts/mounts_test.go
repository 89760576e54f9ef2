package mounts

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestOps(t *testing.T) {
	for _, tt := range []struct {
		name    string
		entries []Entry
		want    string
	}{
		{"empty", nil, ""},
		{"parents are made once", []Entry{
			{Kind: Bind, Target: "/usr", Source: "/usr", IsDir: true, Attr: ReadOnly},
			{Kind: Bind, Target: "/etc/a", Source: "/etc/a", Attr: ReadOnly | NoExec},
			{Kind: Bind, Target: "/etc/b/c", Source: "/etc/b/c"},
		}, `
bind /usr from /usr ro
dir /etc
bind /etc/a from /etc/a ro,noexec
dir /etc/b
bind /etc/b/c from /etc/b/c`},
		{"what lies in a bind is there already", []Entry{
			{Kind: Bind, Target: "/home/u", Source: "/home/u", IsDir: true, Attr: ReadOnly},
			{Kind: Bind, Target: "/home/u/ws/sub", Source: "/home/u/ws/sub", IsDir: true},
			{Kind: Scratch, Target: "/home/u/.cache", Mode: 0o700},
			{Kind: File, Target: "/home/u/.profile", Data: "x"},
		}, `
dir /home
bind /home/u from /home/u ro
bind /home/u/ws/sub from /home/u/ws/sub (in place)
scratch /home/u/.cache mode=0700 (in place)
file /home/u/.profile (in place)`},
		{"private storage is made, also on top of a bind", []Entry{
			{Kind: Scratch, Target: "/tmp", Mode: 0o1777},
			{Kind: Bind, Target: "/tmp/a/ws", Source: "/tmp/a/ws", IsDir: true},
			{Kind: Tmpfs, Target: "/tmp/a/ws/t", Size: 4096},
			{Kind: File, Target: "/tmp/a/ws/t/d/f"},
		}, `
scratch /tmp mode=01777
dir /tmp/a
bind /tmp/a/ws from /tmp/a/ws
tmpfs /tmp/a/ws/t size=4096 (in place)
dir /tmp/a/ws/t/d
file /tmp/a/ws/t/d/f`},
		{"masks hide what is there and make nothing", []Entry{
			{Kind: Proc, Target: "/proc", Attr: ReadOnly},
			{Kind: Mask, Target: "/proc/keys", Optional: true},
			{Kind: Mask, Target: "/home/u/.ssh", IsDir: true, Optional: true},
			{Kind: Bind, Target: "/home/v", Source: "/home/v", IsDir: true},
			{Kind: Mask, Target: "/home/v/.ssh", IsDir: true, Optional: true},
			{Kind: Mask, Target: "/home/v/.ssh/id", Optional: true},
			{Kind: Readonly, Target: "/home/v/ro"},
		}, `
proc /proc ro
mask /proc/keys (in place)
dir /home
bind /home/v from /home/v
mask /home/v/.ssh (in place)
readonly /home/v/ro (in place)`},
		{"a copy-on-write directory is mounted as a bind is", []Entry{
			{Kind: Scratch, Target: "/tmp", Mode: 0o1777},
			{Kind: Overlay, Target: "/tmp/ws", Source: "/tmp/ws", IsDir: true, Mode: 0o755},
			{Kind: Bind, Target: "/tmp/ws/ro", Source: "/tmp/ws/ro", IsDir: true, Attr: ReadOnly},
			{Kind: Mask, Target: "/tmp/ws/.env", Optional: true},
		}, `
scratch /tmp mode=01777
overlay /tmp/ws from /tmp/ws mode=0755
bind /tmp/ws/ro from /tmp/ws/ro ro (in place)
mask /tmp/ws/.env (in place)`},
		{"a later mount covers an earlier one", []Entry{
			{Kind: Scratch, Target: "/tmp"},
			{Kind: Bind, Target: "/tmp", Source: "/tmp", IsDir: true},
		}, `
scratch /tmp
bind /tmp from /tmp (in place)`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := Tree{Entries: tt.entries}
			ops, err := tree.Ops()
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, o := range ops {
				b.WriteString("\n" + o.String())
			}
			if b.String() != tt.want {
				t.Errorf("got%s\nwant%s", b.String(), tt.want)
			}
		})
	}
}

func TestOpsRefuses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		entries []Entry
	}{
		{"the root", []Entry{{Kind: Scratch, Target: "/"}}},
		{"a relative target", []Entry{{Kind: Dir, Target: "etc"}}},
		{"dots", []Entry{{Kind: Dir, Target: "/etc/../usr"}}},
		{"a trailing slash", []Entry{{Kind: Dir, Target: "/etc/"}}},
		{"NUL", []Entry{{Kind: Dir, Target: "/a\x00b"}}},
		{"NUL in a source", []Entry{{Kind: Bind, Target: "/a", Source: "/a\x00b"}}},
		{"a mount on a symlink", []Entry{{Kind: Symlink, Target: "/bin", Source: "usr/bin"}, {Kind: Bind, Target: "/bin", Source: "/x", IsDir: true}}},
		{"below a symlink", []Entry{{Kind: Symlink, Target: "/bin", Source: "usr/bin"}, {Kind: Bind, Target: "/bin/x", Source: "/x"}}},
		{"below a file", []Entry{{Kind: File, Target: "/etc"}, {Kind: Dir, Target: "/etc/x"}}},
		{"below a mask", []Entry{{Kind: Bind, Target: "/h", Source: "/h", IsDir: true}, {Kind: Mask, Target: "/h/s", IsDir: true}, {Kind: Bind, Target: "/h/s/x", Source: "/h/s/x"}}},
		{"a symlink in a bind", []Entry{{Kind: Bind, Target: "/h", Source: "/h", IsDir: true}, {Kind: Symlink, Target: "/h/l", Source: "x"}}},
		{"two overlays", []Entry{{Kind: Overlay, Target: "/a", Source: "/a", IsDir: true}, {Kind: Overlay, Target: "/b", Source: "/b", IsDir: true}}},
		{"the same file twice", []Entry{{Kind: File, Target: "/f"}, {Kind: File, Target: "/f"}}},
		{"a mask of nothing, if that must be", []Entry{{Kind: Mask, Target: "/f"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := Tree{Entries: tt.entries}
			ops, err := tree.Ops()
			var e *TargetError
			if !errors.As(err, &e) {
				t.Errorf("got %v, %v; want a TargetError", ops, err)
			}
		})
	}
}

func TestSortEntries(t *testing.T) {
	list := []Entry{{Target: "/a/b/c"}, {Target: "/b"}, {Target: "/a/b", Kind: Bind}, {Target: "/a/b", Kind: File}, {Target: "/a"}}
	SortEntries(list)
	var got []string
	for _, e := range list {
		got = append(got, e.Target+":"+e.Kind.String())
	}
	if s := strings.Join(got, " "); s != "/b: /a: /a/b:bind /a/b:file /a/b/c:" {
		t.Error(s)
	}
}

func TestRest(t *testing.T) {
	bind := func(p string) Entry { return Entry{Kind: Bind, Target: p, Source: p, IsDir: true} }
	mask := func(p string) Entry { return Entry{Kind: Mask, Target: p, Optional: true} }
	tree := func(e ...Entry) *Tree { return &Tree{ScratchBytes: 1, Entries: e} }
	for _, tt := range []struct {
		name        string
		other, tree *Tree
		rest        []Entry
		ok          bool
	}{
		{"equal", tree(bind("/usr")), tree(bind("/usr")), nil, true},
		{"origin", tree(bind("/usr")), tree(Entry{Kind: Bind, Target: "/usr", Source: "/usr", IsDir: true, Origin: "flag --ro"}), nil, true},
		{"more", tree(bind("/usr"), mask("/proc/1")), tree(bind("/usr"), bind("/work"), mask("/proc/1")), []Entry{bind("/work")}, true},
		{"less", tree(bind("/usr"), bind("/opt")), tree(bind("/usr")), nil, false},
		{"changed", tree(bind("/usr")), tree(Entry{Kind: Bind, Target: "/usr", Source: "/usr", IsDir: true, Attr: ReadOnly}), nil, false},
		{"below", tree(bind("/usr")), tree(bind("/usr"), bind("/usr/x")), []Entry{bind("/usr/x")}, true},
		// What is mounted above would hide what is there, and a mask that found
		// nothing to hide would now have something.
		{"above", tree(bind("/usr/x")), tree(bind("/usr"), bind("/usr/x")), nil, false},
		{"unmasked", tree(mask("/work/secret")), tree(bind("/work"), mask("/work/secret")), nil, false},
		{"twice", tree(mask("/a/b")), tree(bind("/a/b"), mask("/a/b")), nil, false},
		{"name", tree(bind("/workshop")), tree(bind("/work"), bind("/workshop")), []Entry{bind("/work")}, true},
		{"scratch", &Tree{ScratchBytes: 2}, tree(), nil, false},
		{"inodes", &Tree{ScratchBytes: 1, ScratchInodes: 1}, tree(), nil, false},
		{"label", &Tree{ScratchBytes: 1, Label: "x"}, tree(), nil, false},
	} {
		rest, ok := tt.tree.Rest(tt.other)
		if ok != tt.ok || ok && !slices.Equal(rest, tt.rest) {
			t.Errorf("%s: %v, %t", tt.name, rest, ok)
		}
	}
}
