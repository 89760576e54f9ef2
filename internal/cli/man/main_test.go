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
	if err := write(filepath.Join(made, pages), root); err != nil {
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
	for name, part := range map[string][2]string{
		filepath.Join("docs", "cli.md"): {"the table of flags", flags()}, filepath.Join("docs", "drivers.md"): {drivers, features()}, "README.md": {drivers, summary()},
	} {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(made, name)
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := insert(file, part[0], part[1]); err != nil {
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

// TestValues: a page names the value of each flag that takes one, and there is a page
// of section 5 for profiles.
func TestValues(t *testing.T) {
	for page, wants := range map[string][]string{
		"sbxrun.1":         {`\-\-memory\fP=SIZE`, `\-\-profile\fP=NAME`, `\-\-timeout\fP=`},
		"sbxrun-profile.5": {`.TH "SBXRUN-PROFILE" "5"`, `limits.memory\fP`, `network.allow\fP`, "extends: strict"},
	} {
		b, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "man", page))
		if err != nil {
			t.Fatal(err)
		}
		text := bytes.ReplaceAll(b, []byte("--"), []byte(`\-\-`))
		for _, want := range wants {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s: %q wanted", page, want)
			}
		}
	}
}
