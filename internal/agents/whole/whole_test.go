package whole

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// prepared is the request for an agent's run with these flags, a name and a value each.
func prepared(t *testing.T, name string, args ...string) (*profiles.Request, error) {
	t.Helper()
	r := &profiles.Request{}
	for flag := range slices.Chunk(args, 2) {
		i := slices.IndexFunc(profiles.Flags[:], func(f profiles.Flag) bool { return f.Name == flag[0] })
		if err := profiles.Flags[i].Set(r, flag[1]); err != nil {
			t.Fatal(err)
		}
	}
	i := slices.IndexFunc(Agents, func(a Agent) bool { return a.Name == name })
	_, err := Agents[i].Prepare(r, "", "default", true)
	return r, err
}

// TestAgentPrepared: an agent gets its own hosts, keys and directories, and no flag of
// the caller's is lost for that.
func TestAgentPrepared(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	workspace := filepath.Join(dir, "workspace")
	for _, d := range []string{workspace, dir + "/bin", dir + "/node_modules/claude/bin"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/node_modules/claude/bin/claude", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{dir + "/bin/claude", workspace + "/claude"} {
		if err := os.Symlink(dir+"/node_modules/claude/bin/claude", link); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(workspace)
	t.Setenv("HOME", dir)
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("PATH", dir+"/bin")
	t.Setenv("ANTHROPIC_BASE_URL", "http://[::1]:99/x")
	r, err := prepared(t, "claude", "env", "DISABLE_AUTOUPDATER=0", "allow-host", "example.com")
	if err != nil {
		t.Fatal(err)
	}
	if r.Profile != "aicode" || r.Timeout == nil || *r.Timeout != 0 || r.Terminal {
		t.Errorf("%+v", r)
	}
	if want := []string{"example.com", "api.anthropic.com:443", "platform.claude.com:443", "[::1]:99"}; !slices.Equal(r.AllowHosts, want) {
		t.Errorf("hosts %q", r.AllowHosts)
	}
	if want := []string{dir + "/bin/claude", dir + "/node_modules"}; !slices.Equal(r.ReadOnly, want) || r.Command[0] != dir+"/node_modules/claude/bin/claude" {
		t.Errorf("shown %q, run %q", r.ReadOnly, r.Command)
	}
	if r.Env[0] != "ANTHROPIC_BASE_URL" && !slices.Contains(r.Env, "ANTHROPIC_API_KEY") || r.Env[len(r.Env)-1] != "DISABLE_AUTOUPDATER=0" {
		t.Errorf("variables %q", r.Env)
	}
	if want := []profiles.Keep{{Source: dir + "/.local/state/sbxrun/agents/claude/default/claude", Below: ".claude", Variable: "CLAUDE_CONFIG_DIR"}}; !slices.Equal(r.Kept, want) {
		t.Errorf("kept %+v", r.Kept)
	}
	if _, err := os.Stat(dir + "/.local"); err == nil {
		t.Error("a dry run made it")
	}

	// A program that the workspace has is not shown by where a link in it leads.
	t.Setenv("PATH", workspace)
	if r, err = prepared(t, "claude", "net", "none", "profile", "strict"); err != nil || len(r.ReadOnly) > 0 || len(r.AllowHosts) > 0 || r.Profile != "strict" {
		t.Errorf("%v %+v", err, r)
	}
	if _, err = prepared(t, "codex"); err == nil || !strings.Contains(err.Error(), "no directory of PATH has it") {
		t.Errorf("%v", err)
	}
}

// TestAgentPlaces: in what an agent keeps there is a place for what is shown there, and
// nothing that a command has put there instead leads out.
func TestAgentPlaces(t *testing.T) {
	dir := t.TempDir()
	kept, home, out := dir+"/kept", dir+"/home/.a", dir+"/out"
	for _, d := range []string{kept, home + "/skills", home + "/linked/x", out} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(home+"/A.md", []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(out, kept+"/linked"); err != nil {
		t.Fatal(err)
	}
	p := &policy.Policy{}
	for _, name := range []string{"skills", "A.md", "linked/x", "gone"} {
		p.Files = append(p.Files, policy.FileRule{Path: home + "/" + name, Access: policy.ReadExec})
	}
	placesAt(p, kept, home)
	if fi, err := os.Stat(kept + "/skills"); err != nil || !fi.IsDir() {
		t.Errorf("%v %v", fi, err)
	}
	if b, err := os.ReadFile(kept + "/A.md"); err != nil || len(b) > 0 {
		t.Errorf("%q %v", b, err)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) > 0 {
		t.Errorf("made outside: %v %v", entries, err)
	}
	if _, err := os.Lstat(kept + "/gone"); err == nil {
		t.Error("a place for what is not there")
	}
}

func TestAgentState(t *testing.T) {
	for name, ok := range map[string]bool{"default": true, "a-b_c.1": true, "": false, "..": false, ".a": false, "a/b": false, "a b": false, "ä": false} {
		if err := CheckState(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestAgentAddress: the address of an API lets the agent reach that host, and no others.
func TestAgentAddress(t *testing.T) {
	a := &Agents[0]
	for address, want := range map[string]string{"https://a.example": "a.example:443", "http://10.0.0.1:99/x": "10.0.0.1:99", "https://*": "", "http://*.example": "", "https://10.0.0.0%2f8": "", "x": ""} {
		t.Setenv(a.Base, address)
		r := &profiles.Request{}
		err := a.reach(r)
		if want == "" && err == nil || want != "" && (err != nil || !slices.Contains(r.AllowHosts, want)) {
			t.Errorf("%s: %q, %v", address, r.AllowHosts, err)
		}
	}
}

// TestLeadsInto: a program is the workspace's if a directory that it is spelt by leads there,
// wherever that leads in the end.
func TestLeadsInto(t *testing.T) {
	dir := t.TempDir()
	ws, state, out := dir+"/ws", dir+"/state", dir+"/out"
	for _, d := range []string{ws + "/node_modules", state + "/b", out + "/bin"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{ws + "/node_modules/.bin": state + "/b", ws + "/out": out + "/bin", dir + "/alias": ws, out + "/way": ws + "/out"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{
		out + "/bin/claude": false, ws + "/claude": true, ws + "/node_modules/.bin/claude": true, ws + "/out/claude": true, dir + "/alias/out/claude": true,
		state + "/b/claude": true, dir + "/wsx/claude": true, out + "/none/claude": true, dir + "/alias/claude": true,
	} {
		if got := leadsInto(name, ws, state); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestMakeKept: a link in the place of a kept directory, or of one above, is no directory.
func TestMakeKept(t *testing.T) {
	home, secret := t.TempDir(), t.TempDir()
	if err := makeKept(home, home+"/sbxrun/agents/claude/default/claude"); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"sbxrun/agents/claude/other", "sbxrun/agents/codex", "sbxrun/agents/claude/default/link"} {
		if err := os.Symlink(secret, home+"/"+link); err != nil {
			t.Fatal(err)
		}
		if err := makeKept(home, home+"/"+link+"/x"); err == nil {
			t.Errorf("%s was followed", link)
		}
		if err := makeKept(home, home+"/"+link); err == nil {
			t.Errorf("%s was taken", link)
		}
	}
	if list, err := os.ReadDir(secret); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}
