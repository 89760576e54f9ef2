package workspace

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestDependencies(t *testing.T) {
	for _, c := range []struct{ files, want string }{
		{"README.md src", ""},
		{"package.json", "npm:package.json"},
		{"package.json package-lock.json", "npm:package-lock.json"},
		{"package.json yarn.lock", "yarn:yarn.lock"},
		{"package.json pnpm-lock.yaml", "pnpm:pnpm-lock.yaml"},
		{"package.json package-lock.json yarn.lock", "npm:package-lock.json"},
		{"package.json bun.lock", "bun:bun.lock"},
		{"requirements.txt", "pip:requirements.txt"},
		{"requirements.txt pyproject.toml", "pip:requirements.txt"},
		{"pyproject.toml", "pip:pyproject.toml"},
		{"pyproject.toml uv.lock", "uv:uv.lock"},
		{"pyproject.toml poetry.lock requirements.txt", "poetry:poetry.lock"},
		{"Pipfile Pipfile.lock", "pipenv:Pipfile.lock"},
		{"environment.yml", "conda:environment.yml"},
		{"setup.py", "pip:setup.py"},
		{"go.mod go.sum", "go:go.mod"},
		{"Cargo.toml", "cargo:Cargo.toml"},
		{"Cargo.toml Cargo.lock", "cargo:Cargo.lock"},
		{"pom.xml", "maven:pom.xml"},
		{"build.gradle.kts", "gradle:build.gradle.kts"},
		{"Gemfile Gemfile.lock", "bundler:Gemfile"},
		{"composer.json", "composer:composer.json"},
		{"mix.exs", "mix:mix.exs"},
		{"pubspec.yaml", "pub:pubspec.yaml"},
		{"Package.swift", "swift:Package.swift"},
		{"package.json requirements.txt go.mod Cargo.toml pom.xml Gemfile", "npm:package.json pip:requirements.txt go:go.mod cargo:Cargo.toml maven:pom.xml bundler:Gemfile"},
	} {
		files := strings.Fields(c.files)
		var got []string
		for _, d := range Dependencies(func(name string) bool { return slices.Contains(files, name) }) {
			got = append(got, d.Manager+":"+d.File)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %s, want %s", c.files, s, c.want)
		}
	}
}

// TestDependencyCommands: every command is a script that a shell can read.
func TestDependencyCommands(t *testing.T) {
	for i := range managers {
		if b, err := exec.Command("/bin/sh", "-n", "-c", managers[i].Command).CombinedOutput(); err != nil {
			t.Errorf("%s: %v %s", managers[i].Command, err, b)
		}
	}
}
