//go:build linux

package integration

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestBlame: an error blames what the caller gave. What sbxrun sets itself, for a shell, an
// agent or a clone, goes by the name of what asked for it, and never by that of a flag that
// nobody typed.
func TestBlame(t *testing.T) {
	p := newPersona(t, whos[0])
	p.write("bin/claude", "#!/bin/sh\n", 0o755)
	p.write("ws/wheel", "", 0o644)
	p.own()
	home := "HOME=" + p.home
	for _, tt := range []struct {
		dir  string
		env  []string
		args []string
		want string // how the error begins
	}{
		{p.home, nil, []string{"shell", "-c", "true"}, "workspace: " + p.home + " cannot be the workspace: it is the home directory"},
		{p.home, nil, []string{"--", "true"}, "workspace: " + p.home + " cannot be the workspace: it is the home directory"},
		{p.home, nil, []string{"shell", "--session", "auto", "-c", "true"}, "workspace: "},
		{p.home, nil, []string{"session", "create"}, "workspace: "},
		{p.home, nil, []string{"mcp"}, "workspace: "},
		{p.home, nil, []string{"agent", "claude"}, "workspace: "},
		{p.ws, []string{"SBXRUN_SHELL_WORKSPACE=" + p.home}, []string{"shell", "-c", "true"}, "SBXRUN_SHELL_WORKSPACE: " + p.home + " cannot be the workspace"},
		{p.ws, []string{"SBXRUN_SHELL_WORKSPACE=/nonexistent"}, []string{"shell", "-c", "true"}, "SBXRUN_SHELL_WORKSPACE: /nonexistent does not exist"},
		{p.ws, nil, []string{"shell", "--cd", p.home, "-c", "true"}, "flag --cd: "},
		{p.ws, nil, []string{"mcp", "--python-wheels", "/nonexistent"}, "flag --python-wheels: /nonexistent is not a directory"},
		{p.ws, nil, []string{"mcp", "--python-wheels", "wheel"}, "flag --python-wheels: "},
		{p.ws, nil, []string{"mcp", "--python-index", "http://127.0.0.1:99999/simple"}, "flag --python-index: "},
		{p.ws, []string{"ANTHROPIC_BASE_URL=http://127.0.0.1:99999"}, []string{"agent", "claude"}, "ANTHROPIC_BASE_URL: "},
		{p.ws, nil, []string{"--git", "/nonexistent", "--", "true"}, "flag --git: "},
		{p.ws, nil, []string{"serve", "strct"}, "unknown profile strct"},
		{"/usr", nil, []string{"--", "true"}, "workspace: "},
		{"/usr", nil, []string{"shell", "-c", "true"}, "workspace: "},
	} {
		// A shell's workspace is where its caller runs.
		c := p.who.command(append([]string{"/usr/bin/python3", "-c", caller, tt.dir, sbxrun}, tt.args...)...)
		there := *p.fixture
		there.ws = tt.dir
		o := there.do(call{args: c, env: slices.Concat(p.env, []string{home, "PATH=" + p.bin + ":/usr/bin:/bin"}, tt.env)})
		first, rest, _ := strings.Cut(o.stderr, "\n")
		if o.code != 125 || !strings.HasPrefix(first, "sbxrun: error: "+tt.want) || !strings.Contains(rest, "sbxrun: hint: ") {
			t.Errorf("%q: want %q, got %v", tt.args, tt.want, o)
		}
		for _, m := range regexp.MustCompile("flag (--[a-z-]+)").FindAllStringSubmatch(o.stderr, -1) {
			if !slices.Contains(tt.args, m[1]) {
				t.Errorf("%q: blames %s, which nobody typed: %v", tt.args, m[1], o)
			}
		}
	}
}
