package native

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

func TestProfileMode(t *testing.T) {
	policy := fstest.MapFS{}
	for file, text := range map[string]string{
		"profiles/strict.0/name": "strict\n", "profiles/strict.0/mode": "enforce\n",
		"profiles/usr.bin.x.1/name": "/usr/bin/x\n", "profiles/usr.bin.x.1/mode": "complain\n",
		"profiles/strict.0/profiles/hat.7/name": "hat\n", "profiles/strict.0/profiles/hat.7/mode": "unconfined\n",
		"profiles/strict.x.2/name": "strict.x\n", "profiles/strict.x.2/mode": "kill\n",
	} {
		policy[file] = &fstest.MapFile{Data: []byte(text)}
	}
	for name, want := range map[string]string{"strict": "enforce", "/usr/bin/x": "complain", "strict//hat": "unconfined", "strict.x": "kill", "strict//none": "", "hat": "", "none": ""} {
		if mode, err := profileMode(policy, name); mode != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, mode, err, want)
		}
	}
	for _, name := range []string{":ns:strict", "strict//&/usr/bin/x"} {
		if mode, err := profileMode(policy, name); err == nil {
			t.Errorf("%s: %q, and it cannot be told", name, mode)
		}
	}
	if _, err := profileMode(fstest.MapFS{}, "strict"); err == nil {
		t.Error("no securityfs, and no error")
	}
}

func TestUnenforced(t *testing.T) {
	for _, tt := range []struct {
		name, mode, global string
		err                error
		want               string // part of the cause; "" is enforced
	}{
		{"p", "enforce", "", nil, ""},
		{"p", "enforce", "enforce", nil, ""},
		{"p", "kill", "", nil, ""},
		{"p", "", "", nil, ""}, // there is none, as the kernel will say
		{"p", "complain", "enforce", nil, "p is in complain mode"},
		{"p", "enforce", "complain", nil, "AppArmor is in complain mode"},
		{"p", "unconfined", "", nil, "loaded as unconfined"},
		{"unconfined", "", "", nil, "forbids nothing"},
		{"p", "", "", errors.New("open: no such file"), "cannot be told: open: no such file"},
	} {
		cause, fix := unenforced(tt.name, tt.mode, tt.global, tt.err)
		if tt.want == "" && cause != "" || !strings.Contains(cause, tt.want) || (cause == "") != (fix == "") {
			t.Errorf("%+v: %q, %q", tt, cause, fix)
		}
	}
}
