//go:build linux && cgo

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestFresh: what is committed is what the table gives.
func TestFresh(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "testdata"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"profiles/*", "programs/*", "testdata/*"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, f := range files {
			rel, err := filepath.Rel(dir, f)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join("../..", rel)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is out of date (%v); run go generate ./seccomp", rel, err)
			}
		}
	}
}
