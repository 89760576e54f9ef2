//go:build linux && cgo

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	profile, err := os.ReadFile("../../seccomp/profiles/strict.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		want, err := os.ReadFile("../../seccomp/programs/strict." + arch + ".bpf")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := run([]string{"-arch", arch}, bytes.NewReader(profile), &out); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s: %d bytes differ from the embedded program", arch, out.Len())
		}
	}
}

func TestRunErrors(t *testing.T) {
	tests := []struct{ args, in, want string }{
		{"", "", "unexpected EOF"},
		{"", "{", "unexpected"},
		{"", "[]", "seccomp profile"},
		{"", `{"defaultAction":"SCMP_ACT_ALLOW"} {}`, "follows"},
		{"", `{"defaultAction":"SCMP_ACT_ALLOW","syscall":[]}`, `unknown key "syscall"`},
		{"", strings.Repeat(" ", 1<<20+1), "larger than"},
		{"-arch mips", `{"defaultAction":"SCMP_ACT_ALLOW"}`, "mips"},
		{"-frob", "", "usage"},
		{"extra", "", "no arguments"},
	}
	for _, tt := range tests {
		var out bytes.Buffer
		err := run(strings.Fields(tt.args), strings.NewReader(tt.in), &out)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") || out.Len() != 0 {
			t.Errorf("run(%q) on %.40q: %q, %v; want one line with %q", tt.args, tt.in, out.String(), err, tt.want)
		}
	}
}
