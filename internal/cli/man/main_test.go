package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What is made of the program is in the repository as the program is now.
func TestGenerated(t *testing.T) {
	root, made := filepath.Join("..", "..", ".."), t.TempDir()
	pages := filepath.Join("docs", "man")
	if err := write(filepath.Join(made, pages)); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, dir := range []string{root, made} {
		list, err := filepath.Glob(filepath.Join(dir, pages, "*"))
		if err != nil || len(list) == 0 {
			t.Fatal(dir, list, err)
		}
		for _, name := range list {
			names[filepath.Join(pages, filepath.Base(name))] = true
		}
	}
	for name, text := range map[string]string{filepath.Join("docs", "drivers.md"): features(), "README.md": summary()} {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(made, name)
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := insert(file, text); err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	for name := range names {
		is, _ := os.ReadFile(filepath.Join(root, name))
		want, _ := os.ReadFile(filepath.Join(made, name))
		if !bytes.Equal(is, want) {
			t.Errorf("%s is not what the program says of itself: run make generate", name)
		}
	}
}
