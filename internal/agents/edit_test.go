package agents

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/pelletier/go-toml/v2"
	"github.com/tailscale/hujson"
)

// edits are of each kind, with contents to make them in.
var edits = []struct {
	edit     Edit
	contents []string
}{
	{JSON{{Path: []string{"env", "SHELL_PREFIX"}, Value: "/a/b -c"}}, []string{
		"", "{}", "{}\n", "{\n}\n", `{"a":1}`, "{\n  \"a\": 1\n}\n", "{\n    // a comment\n    \"a\": [1, 2], // another\n}\n", "{\"env\": {}}", "{\"env\":{\"X\":\"y\"}}",
		"{\n\t\"env\": {\n\t\t\"X\": \"y\",\n\t},\n\t\"z\": null\n}", "{\n  \"a\": 1 /* c */ ,\n}", "{ \"a\\u0062\": \"<&>\" }",
	}},
	{JSON{{Path: []string{"hooks", "PreToolUse"}, Element: map[string]any{"matcher": "Bash", "hooks": []any{map[string]any{"type": "command", "command": "x & y"}}}}}, []string{
		"", "{}", `{"hooks":{"PreToolUse":[]}}`, "{\n  \"hooks\": {\n    \"PreToolUse\": [\n      {\"matcher\": \"Edit\", \"hooks\": []}\n    ],\n    \"Stop\": []\n  }\n}\n", "{\"hooks\":{\"PreToolUse\":[1,2,],},}",
	}},
	{JSON{{Path: []string{"mcpServers", "sandbox"}, Value: map[string]any{"command": "s", "args": []string{"a", "b"}}}, {Path: []string{"tools", "exclude"}, Element: "run_shell_command"}}, []string{
		"", "{}", "{\"tools\":{\"exclude\":[\"x\"]}}", "{\n  \"mcpServers\": {\n    \"other\": {\"command\": \"o\"}\n  }\n}\n",
	}},
	{CodexEnvironment{Program: "/usr/bin/sbxrun", Args: []string{"--profile", "it's", "a\"b", "--", "codex"}}, []string{
		"", "# mine\n[[environments]]\nid = \"other\"\nprogram = \"x\"\n", "x = 1", "[a]\nb = 2\n",
	}},
	{YAML{"GOOSE_SHELL", "/a/b: c #d"}, []string{
		"", "# mine\nGOOSE_PROVIDER: x\nextensions:\n  a:\n    b: [1, 2]\n", "a: |\n  text\n  more\n", "a: 1", "a: 'x'\n\n# end\n",
	}},
}

// said is what a content says, without how.
func said(t *testing.T, e Edit, text []byte) map[string]any {
	t.Helper()
	m := map[string]any{}
	var err error
	switch e.(type) {
	case JSON:
		if len(text) > 0 {
			var std []byte
			if std, err = hujson.Standardize(append([]byte{}, text...)); err == nil {
				err = json.Unmarshal(std, &m)
			}
		}
	case CodexEnvironment:
		err = toml.Unmarshal(text, &m)
	case YAML:
		err = yaml.Unmarshal(text, &m)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

func TestEdit(t *testing.T) {
	for _, c := range edits {
		for _, before := range c.contents {
			after, err := c.edit.Apply([]byte(before))
			if err != nil {
				t.Errorf("%q: %v", before, err)
				continue
			}
			if reflect.DeepEqual(said(t, c.edit, []byte(before)), said(t, c.edit, after)) {
				t.Errorf("%q: nothing was changed: %q", before, after)
			}
			// Every line and comment that was there still is.
			for line := range strings.Lines(before) {
				if line = strings.Trim(line, " \t\n{}[],"); !strings.Contains(string(after), line) {
					t.Errorf("%q is lost:\n%s", line, after)
				}
			}
			again, err := c.edit.Apply(after)
			if err != nil || string(again) != string(after) {
				t.Errorf("twice: %v\n%s\n%s", err, after, again)
			}
			back, err := c.edit.Revert(after, []byte(before))
			if err != nil {
				t.Errorf("%q: %v", before, err)
				continue
			}
			was, is := said(t, c.edit, []byte(before)), said(t, c.edit, back)
			if !reflect.DeepEqual(was, is) {
				t.Errorf("%q came back as %q", before, back)
			}
		}
	}
}

// TestStandardStays: what was plain JSON stays plain JSON, which is all that some
// agents read.
func TestStandardStays(t *testing.T) {
	for _, c := range edits {
		if _, ok := c.edit.(JSON); !ok {
			continue
		}
		for _, before := range c.contents {
			if before != "" && !json.Valid([]byte(before)) {
				continue
			}
			after, err := c.edit.Apply([]byte(before))
			if err != nil || !json.Valid(after) {
				t.Errorf("%q: %v\n%s", before, err, after)
			}
			if back, err := c.edit.Revert(after, []byte(before)); err != nil || !json.Valid(back) {
				t.Errorf("%q: %v\n%s", after, err, back)
			}
		}
	}
	got, err := edits[0].edit.Apply([]byte("{\n  \"a\": 1\n}\n"))
	if want := "{\n  \"a\": 1,\n  \"env\": {\n    \"SHELL_PREFIX\": \"/a/b -c\"\n  }\n}\n"; err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}

// TestEditRefuses: what cannot be changed without guessing is left alone.
func TestEditRefuses(t *testing.T) {
	j := edits[0].edit
	for _, c := range []struct {
		edit    Edit
		content string
	}{
		{j, "{"}, {j, "[]"}, {j, "null"}, {j, `{"env": 1}`}, {j, `{"env": {}, "env": {}}`}, {j, `{"env": {"SHELL_PREFIX": 1, "SHELL_PREFIX": 2}}`}, {j, "{} {}"},
		{edits[1].edit, `{"hooks": {"PreToolUse": {}}}`},
		{CodexEnvironment{}, "default = \"x\"\n"}, {CodexEnvironment{}, "include_local = true\n"}, {CodexEnvironment{}, "x = "}, {CodexEnvironment{}, "environments = []\n"},
		{CodexEnvironment{}, "[[environments]]\nid = \"sbxrun\"\nprogram = \"x\"\n"}, {CodexEnvironment{}, "a = \"\"\"\nopen"},
		{YAML{"K", "v"}, "K: other\n"}, {YAML{"K", "v"}, "- a\n"}, {YAML{"K", "v"}, "{a: 1}\n"}, {YAML{"K", "v"}, "a: 1\n---\nb: 2\n"}, {YAML{"K", "v"}, "a: b: c\n"}, {YAML{"K", "v"}, "just text"},
		{YAML{"K", "v"}, "a: |\n  open\n   more\n ...\n"},
		{Whole("x"), "another's"},
	} {
		if after, err := c.edit.Apply([]byte(c.content)); err == nil {
			t.Errorf("%T: %q became %q", c.edit, c.content, after)
		}
	}
}

func FuzzEdit(f *testing.F) {
	for i, c := range edits {
		for _, s := range c.contents {
			f.Add(byte(i), s)
		}
	}
	f.Add(byte(4), "a: &a [x]\nb: [*a, *a]\n")
	f.Fuzz(func(t *testing.T, i byte, s string) {
		e := edits[int(i)%len(edits)].edit
		after, err := e.Apply([]byte(s))
		if err != nil {
			return
		}
		if again, err := e.Apply(after); err != nil || string(again) != string(after) {
			t.Fatalf("%T: %q: %v\n%q\n%q", e, s, err, after, again)
		}
		if _, err := e.Revert(after, []byte(s)); err != nil {
			t.Fatalf("%T: %q: %v", e, after, err)
		}
	})
}

// TestAliases: a file of aliases that stand for more than fits into memory is as
// long to read as it is.
func TestAliases(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := range 30 {
		item := "*a" + strconv.Itoa(i)
		b.WriteString("a" + strconv.Itoa(i+1) + ": &a" + strconv.Itoa(i+1) + " [" + strings.Repeat(item+", ", 8) + item + "]\n")
	}
	if _, err := (YAML{"K", "v"}).Apply([]byte(b.String())); err != nil {
		t.Error(err)
	}
	if _, err := (YAML{"K", "v"}).Apply([]byte(b.String() + "K: *a30\n")); err == nil {
		t.Error("taken for ours")
	}
	if after, err := (YAML{"K", "v"}).Apply([]byte("a: &a [*a]\n")); err == nil && len(after) > 100 {
		t.Errorf("%s", after)
	}
}
