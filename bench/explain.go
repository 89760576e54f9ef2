package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// explain measures what --explain costs: work that looks much up, with it and without.
func (b *bench) explain() error {
	const section = "explain"
	b.report.begin(section, "Work inside with --explain; ratio to the same without it")
	list, err := b.workloads()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(w workload) bool {
		return w.name == "getpid" || w.name == "read" || w.name == "mix"
	})
	test, err := b.npmTest()
	if err != nil {
		return err
	}
	for _, w := range append(list, *test) {
		w.contenders = []*contender{w.env.with("sbxrun"), w.env.with("sbxrun --explain", "--explain")}
		if err := b.compare(section, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}

// with is sbxrun with more flags than the others of the environment have.
func (e *environment) with(name string, flags ...string) *contender {
	c := e.sbxrunContender()
	plain := c.wrap
	c.name, c.note = name, ""
	c.wrap = func(argv ...string) command {
		cmd := plain(argv...)
		cmd.Argv = slices.Insert(slices.Clone(cmd.Argv), 1, flags...)
		return cmd
	}
	return c
}

// npmTest makes a project of which npm runs the tests, by node's own runner.
func (b *bench) npmTest() (*workload, error) {
	dir := filepath.Join(b.dir, "npm")
	if err := os.MkdirAll(filepath.Join(dir, "test"), 0o755); err != nil {
		return nil, err
	}
	files := map[string]string{
		"package.json": `{"name": "app", "version": "1.0.0", "scripts": {"test": "node --test"}}` + "\n",
		"index.js":     "exports.add = (a, b) => a + b;\n",
	}
	for i := range 5 {
		files[fmt.Sprintf("test/add%d.test.js", i)] = `const { test } = require('node:test');
const assert = require('node:assert');
const { add } = require('../index.js');
test('adds', () => assert.equal(add(1, 2), 3));
`
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return nil, err
	}
	env, err := newEnvironment(b, "npm", dir, b.limits()...)
	if err != nil {
		return nil, err
	}
	return &workload{name: "npm test, 5 files", env: env, rounds: pick(b, 3, 8),
		argv: []string{npm, "test"}, per: 1e6, unit: "ms"}, nil
}
