package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// guard measures what the guard of protected paths costs: work that writes in the
// workspace, with it, without it in an otherwise equal sandbox, and outside.
func (b *bench) guard() error {
	const section = "guard"
	b.report.begin(section, "Work that writes in the workspace, whole runs but for single files; ratio to the same sandbox with nothing protected")
	files := pick(b, 2000, 10000)
	list, err := b.writing(files)
	if err != nil {
		return err
	}
	for _, w := range list {
		outside := w.env.bare()
		outside.name = "outside"
		w.contenders = []*contender{w.env.with("sbxrun --unprotect all", "--unprotect", "all"), w.env.with("sbxrun"), outside}
		if err := b.compare(section, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}

func (b *bench) writing(files int) ([]workload, error) {
	work := filepath.Join(b.dir, "written")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	env, err := newEnvironment(b, "written", work, b.limits()...)
	if err != nil {
		return nil, err
	}
	load := filepath.Join(work, "load")
	if err := copyFile(load, b.load); err != nil {
		return nil, err
	}
	list := []workload{{
		name: "create, write and remove a file", env: env, rounds: pick(b, 3, 12), samples: 2,
		argv: []string{load, "2", strconv.Itoa(files), "create"}, per: float64(files) * 1e3, unit: "us",
	}}
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	// A commit with nothing but the files, and one without them.
	dir, err := b.commitTree("checkout", files)
	if err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"branch", "full"}, {"checkout", "-q", "--orphan", "empty"}, {"rm", "-rfq", "."}, {"commit", "-q", "--allow-empty", "-m", "nothing"}} {
		if err := gitIn(dir, git, args...); err != nil {
			return nil, err
		}
	}
	if env, err = newEnvironment(b, "checkout", dir, b.limits()...); err != nil {
		return nil, err
	}
	list = append(list, workload{
		name: fmt.Sprintf("git checkout of %d files, and back", files), env: env, rounds: pick(b, 3, 9),
		argv: []string{"/bin/sh", "-c", git + " checkout -q full && " + git + " checkout -q empty"}, per: 1e6, unit: "ms",
	})
	if b.quick {
		return list, nil
	}
	build, err := b.goBuild()
	if err != nil {
		return nil, err
	}
	build.rounds = 5
	return append(list, *build), nil
}
