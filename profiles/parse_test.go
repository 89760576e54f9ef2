package profiles

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"
)

// publishedSchema reads the schema as users of the file would.
func publishedSchema(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	b, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// schemaVerdict validates YAML text by the schema alone.
func schemaVerdict(s *jsonschema.Resolved, src string) error {
	var v any
	if err := yaml.Unmarshal([]byte(src), &v); err != nil {
		return err
	}
	if v == nil {
		v = map[string]any{}
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	v = nil
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	return s.Validate(v)
}

func TestPresetsFitTheSchema(t *testing.T) {
	s := publishedSchema(t)
	for _, name := range presetNames {
		src, err := os.ReadFile(name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if err := schemaVerdict(s, string(src)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.HasPrefix(string(src), "# "+name+": ") || !strings.Contains(string(src), "# Gives: ") {
			t.Errorf("%s.yaml does not begin with what it gives and to whom", name)
		}
	}
}

func TestParseGood(t *testing.T) {
	s := publishedSchema(t)
	for _, src := range []string{
		"",
		"# nothing but a comment\n",
		"description: x\nextends: strict\n",
		"limits: {memory: 2g, cpus: 1.5, pids: 64}\n",
		"limits:\n  memory: 1073741824\n  cpus: 2\n  wall_time: 1h30m\n  kill_after: none\n  output: none\n",
		"files:\n  read: [/opt, \"~/x\"]\n  hide:\n    - ./secret/**\n",
		"network: {mode: proxy, allow: [example.com, \"*.example.org:443\", \"10.0.0.0/8:80,443\", \"[::1]:80\"]}\n",
		"require: [cgroup, landlock]\nallow_degraded: []\n",
		"env: {set: [\"A=b=c\", \"E=\"], pass: [FOO_*], inherit: false}\n",
		"user: \"0\"\nhostname: a-b.c\nverify: true\n",
		"tmpfs: [/x, \"/y:10m\"]\n",
		"'description': \"quoted: keys and values\"\n",
		"---\nverify: false\n",
	} {
		if _, err := parse("f.yaml", src, ""); err != nil {
			t.Errorf("%q: %v", src, err)
		}
		if err := schemaVerdict(s, src); err != nil {
			t.Errorf("%q: the schema refuses what the parser takes: %v", src, err)
		}
	}
}

func TestParseBad(t *testing.T) {
	s := publishedSchema(t)
	for _, c := range []struct {
		src, want, hint string
		meaning         bool // the form is right, so that the schema takes it
	}{
		// unknown, misspelled, misplaced and wrong-case keys
		{src: "netwrok:\n  mode: none\n", want: "f.yaml:1:1: unknown key netwrok", hint: "did you mean network?"},
		{src: "limits:\n  memroy: 1g\n", want: "f.yaml:2:3: unknown key limits.memroy", hint: "did you mean limits.memory?"},
		{src: "limits:\n  timeout: 1m\n", want: "f.yaml:2:3: unknown key limits.timeout", hint: "did you mean limits.wall_time? the flag has another name"},
		{src: "net: none\n", want: "f.yaml:1:1: unknown key net", hint: "did you mean network.mode?"},
		{src: "limits:\n\tmemory: 1g\n", want: "f.yaml:2:1: not YAML", hint: "indent with spaces"},
		{src: "limits:\n memory: 1g\n  cpus: 2\n", want: "f.yaml:2:10: not YAML", hint: "check the indentation"},
		{src: "files:\n  read:\n  - /opt\n - /x\n", want: "f.yaml:4:2: not YAML", hint: "check the indentation"},
		{src: "memory: 1g\n", want: "f.yaml:1:1: unknown key memory", hint: "did you mean limits.memory? write it as nested keys"},
		{src: "Verify: true\n", want: "f.yaml:1:1: unknown key Verify", hint: "keys are in lower case: verify"},
		{src: "limits:\n  Memory: 1g\n", want: "f.yaml:2:3: unknown key limits.Memory", hint: "keys are in lower case: limits.memory"},
		{src: "limits.memory: 1g\n", want: "f.yaml:1:1: unknown key limits.memory", hint: "did you mean limits.memory? write it as nested keys"},
		{src: "xyzzy: 1\n", want: "f.yaml:1:1: unknown key xyzzy", hint: "want one of description, profile"},
		{src: "\"a\\e[2Jb\": 1\n", want: `unknown key a\x1b[2Jb`}, // a terminal would act on it
		{src: "1: 2\n", want: "f.yaml:1:1: key \"1\" is not text"},
		// wrong types
		{src: "verify: \"true\"\n", want: "f.yaml:1:9: verify has a value of the wrong type", hint: "want true or false"},
		{src: "verify: yes\n", want: "f.yaml:1:9: verify has a value of the wrong type"},
		{src: "hostname: 12\n", want: "f.yaml:1:11: hostname has a value of the wrong type", hint: "want text: put it in quotes"},
		{src: "hostname:\n", want: "hostname has a value of the wrong type"},
		{src: "limits: 5\n", want: "f.yaml:1:9: limits is a mapping: want memory, cpus"},
		{src: "limits: [1]\n", want: "limits is a mapping"},
		{src: "limits:\n  memory: [1g]\n", want: "f.yaml:2:11: limits.memory has a value of the wrong type", hint: "want a size such as 512m, or none"},
		{src: "limits:\n  pids: 1.5\n", want: "limits.pids has a value of the wrong type"},
		{src: "limits:\n  wall_time: 30\n", want: "limits.wall_time has a value of the wrong type", hint: "want a duration such as 30s, or none"},
		{src: "files:\n  read: /opt\n", want: "f.yaml:2:9: files.read is a list", hint: "write each item as - ITEM"},
		{src: "files:\n  read: [1]\n", want: "f.yaml:2:10: files.read is a list of texts"},
		{src: "files:\n  read:\n    - ~\n", want: "files.read is a list of texts", hint: `write "~" in quotes`},
		{src: "files:\n  read:\n    - [a]\n", want: "files.read is a list of texts"},
		{src: "- a\n- b\n", want: "f.yaml:1:1: a profile is a mapping of keys to values"},
		{src: "strict\n", want: "f.yaml:1:1: a profile is a mapping of keys to values"},
		// wrong values
		{src: "limits:\n  memory: 1x\n", want: `f.yaml:2:11: "1x" is not a size: want a number with k, m or g`},
		{src: "limits:\n  memory: -1\n", want: "is not a size"},
		{src: "limits:\n  cpus: -1\n", want: "is not a number of cpus"},
		{src: "limits:\n  wall_time: \"30\"\n", want: `"30" is not a duration`, hint: "say the unit: 30s is in seconds"},
		{src: "limits:\n  wall_time: -5s\n", want: "is not a duration"},
		{src: "network:\n  mode: nonw\n", want: `f.yaml:2:9: "nonw" is not a value of network.mode: want host, proxy, none`, hint: "did you mean none?"},
		{src: "user: root\n", want: `"root" is not a user`},
		{src: "hostname: a_b\n", want: `"a_b" is not a host name`},
		{src: "require:\n  - landlok\n", want: `f.yaml:2:5: "landlok" is not a layer`, hint: "did you mean landlock?"},
		{src: "env:\n  set: [FOO]\n", want: `"FOO" is not a variable`, hint: "want KEY=VALUE"},
		{src: "files:\n  read: [\"a\\nb\"]\n", want: "holds a NUL byte or a newline"},
		{src: "files:\n  read: [\"\"]\n", want: "files.read is a list of texts"},
		{src: "limits:\n  memory: 4k\n", want: "is too little to start anything", meaning: true},
		{src: "limits:\n  disk: 1\n", want: "is too little for a sandbox", meaning: true},
		{src: "limits:\n  memory: 99999999t\n", want: "too large for a size", meaning: true},
		{src: "user: \"4294967295\"\n", want: "is not a user", meaning: true},
		{src: "network:\n  allow: [\"ftp://x\"]\n", want: `"ftp://x" is not a host`, meaning: true},
		{src: "network:\n  allow: [\"*x.com\"]\n", want: "is not a host", meaning: true},
		{src: "network:\n  allow: [\"x.com:0\"]\n", want: `"x.com:0" is not a host: want ports`, meaning: true},
		{src: "network:\n  allow: [localhost]\n", want: "f.yaml:2:11: localhost needs a port", hint: "--allow-host localhost:3000", meaning: true},
		{src: "tmpfs: [\"/x:1y\"]\n", want: `"1y" is not a size`, meaning: true},
		// what YAML or a JSON reader would let pass (A04, A06)
		{src: "verify: true\nverify: false\n", want: "f.yaml:2:1: duplicate key verify", hint: "keep one of them"},
		{src: "limits:\n  memory: 1g\nlimits:\n  pids: 5\n", want: "f.yaml:3:1: duplicate key limits"},
		{src: "limits:\n  memory: 1g\n  memory: 2g\n", want: "f.yaml:3:3: duplicate key limits.memory"},
		{src: "description: &a x\nimage: *a\n", want: "f.yaml:1:14: anchors, aliases and merge keys are not allowed", meaning: true},
		{src: "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n", want: "anchors, aliases and merge keys are not allowed"},
		{src: "limits:\n  <<: {memory: 1g}\n", want: "f.yaml:2:3: anchors, aliases and merge keys are not allowed", meaning: true},
		{src: "description: !!str x\n", want: "tags and directives are not allowed", meaning: true},
		{src: "%YAML 1.2\n---\nverify: true\n", want: "tags and directives are not allowed", meaning: true},
		{src: "? verify\n: true\n", want: "? keys are not allowed", meaning: true},
		{src: "verify: true\n---\nverify: false\n", want: "a second document", meaning: true},
		{src: strings.Repeat("[", 50000), want: "is nested too deeply"},
		{src: "description: " + strings.Repeat("{a: ", 100) + strings.Repeat("}", 100) + "\n", want: "is nested too deeply"},
		{src: strings.Repeat("- ", 20000) + "x\n", want: "is nested too deeply"},
		{src: "description: " + strings.Repeat("x", maxFile) + "\n", want: "f.yaml: is larger than 64 KiB", meaning: true},
		{src: "description: \x00\n", want: "f.yaml: is not UTF-8 text", meaning: true},
		{src: "description: \xff\n", want: "f.yaml: is not UTF-8 text", meaning: true},
		{src: "description: [\n", want: "not YAML"},
		{src: "description: \"x\n", want: "not YAML"},
		{src: "limits:\n\tmemory: 1g\n", want: "not YAML"},
	} {
		name := c.src
		if len(name) > 60 {
			name = name[:60]
		}
		_, err := parse("f.yaml", c.src, "")
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: got %v, want %q", name, err, c.want)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(e.Hint(), c.hint) {
			t.Errorf("%q:\n got %q, hint %q\nwant %q, hint %q", name, err, e.Hint(), c.want, c.hint)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: the message has more than one line: %q", name, err)
		}
		if len(c.src) > 10000 {
			continue // the schema's YAML reader is not the one that is bounded
		}
		if got := schemaVerdict(s, c.src) == nil; got != c.meaning {
			t.Errorf("%q: the schema's verdict is %v, want %v", name, got, c.meaning)
		}
	}
}

func TestExtendsAndSources(t *testing.T) {
	fs := hostFS()
	put := func(name, text string) { putFile(fs, name, text) }
	put("home/u/.config/sbxrun/profiles/mine.yaml", "extends: production\nlimits:\n  pids: 32\nfiles:\n  read_try: [/opt/tool]\n")
	put("home/u/.config/sbxrun/profiles/strict.yaml", "extends: strict\nlimits:\n  memory: 1500m\n")
	put("home/u/.config/sbxrun/profiles/a.yaml", "extends: b\n")
	put("home/u/.config/sbxrun/profiles/b.yaml", "extends: a\n")
	put("home/u/.config/sbxrun/profiles/self.yaml", "extends: self\n")
	put("home/u/.config/sbxrun/profiles/bad.yaml", "limits:\n  memroy: 1g\n")
	put("etc/sbxrun/config.yaml", "limits:\n  pids: 100\n  memory: 1g\n")
	put("etc/sbxrun/profiles/mine.yaml", "limits:\n  pids: 7\n")
	facts := testFacts(fs)

	get := func(req Request, key string) string {
		t.Helper()
		e, err := Show(&req, facts)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range e {
			if x.Key == key {
				return x.Value + " from " + x.Origin
			}
		}
		return ""
	}
	const dir = "/home/u/.config/sbxrun/"
	for _, c := range []struct{ profile, key, want string }{
		{"mine", "workspace", "ro from preset production"},
		{"mine", "files.read", "/usr from preset strict"},
		// configuration files beat profiles, whatever their directory
		{"mine", "limits.pids", "100 from /etc/sbxrun/config.yaml:2"},
		{"strict", "limits.memory", "1g from /etc/sbxrun/config.yaml:3"},
		{dir + "profiles/mine.yaml", "limits.wall_time", "5m from preset strict"},
	} {
		if got := get(Request{Profile: c.profile}, c.key); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.profile, c.key, got, c.want)
		}
	}
	put("home/u/.config/sbxrun/config.yaml", "limits:\n  pids: 90\nprofile: mine\n")
	for _, c := range []struct{ key, want string }{
		{"limits.pids", "90 from " + dir + "config.yaml:2"},
		{"limits.memory", "1g from /etc/sbxrun/config.yaml:3"},
		{"workspace", "ro from preset production"},
	} {
		if got := get(Request{}, c.key); got != c.want {
			t.Errorf("%s: %s, want %s", c.key, got, c.want)
		}
	}
	facts.Environ = []string{"SBXRUN_PIDS=80", "SBXRUN_PROFILE=strict", "SBXRUN_TIMEOUT=", "SBXRUN_ALLOW_DEGRADED=cgroup,landlock", "SBXRUN_VERIFY=0"}
	n := int64(70)
	for _, c := range []struct {
		req       Request
		key, want string
	}{
		{Request{}, "limits.pids", "80 from environment SBXRUN_PIDS"},
		{Request{}, "workspace", "bind from preset strict"},
		{Request{}, "limits.wall_time", "5m from preset strict"},
		{Request{}, "allow_degraded", "cgroup from environment SBXRUN_ALLOW_DEGRADED"},
		{Request{}, "verify", "false from environment SBXRUN_VERIFY"},
		{Request{Profile: "mine", Pids: &n}, "limits.pids", "70 from flag --pids"},
		{Request{Profile: "mine"}, "workspace", "ro from preset production"},
	} {
		if got := get(c.req, c.key); got != c.want {
			t.Errorf("%s: %s, want %s", c.key, got, c.want)
		}
	}
	facts.Environ = nil
	for _, c := range []struct{ profile, want string }{
		{"a", "extends goes in a circle"},
		{"self", "extends goes in a circle"}, // there is no other of that name
		{"bad", "profiles/bad.yaml:2:3: unknown key limits.memroy"},
		{"stict", "flag --profile: unknown profile stict"},
		{"../../etc/passwd", "does not exist"},
		{"./nope.yaml", "profile file /home/u/src/project/nope.yaml does not exist"},
		{"a\nb", "not a profile name"},
	} {
		_, err := Show(&Request{Profile: c.profile}, facts)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.profile, err, c.want)
		}
	}
	facts.Environ = []string{"SBXRUN_MEMORY=1x"}
	if _, err := Show(&Request{}, facts); err == nil || !strings.Contains(err.Error(), `environment SBXRUN_MEMORY: "1x" is not a size`) {
		t.Error(err)
	}
	names := []string{}
	for _, i := range List(facts) {
		names = append(names, i.Name)
		if (i.Err != nil) != (i.Name == "a" || i.Name == "b" || i.Name == "self" || i.Name == "bad") {
			t.Errorf("%s: %v", i.Name, i.Err)
		}
	}
	if got := strings.Join(names, " "); got != "strict aicode development testing production webscraping docker unrestricted a b bad mine self" {
		t.Error(got)
	}
	if err := Check(dir+"profiles/bad.yaml", facts); err == nil {
		t.Error("a bad file passes")
	}
	if err := Check(dir+"profiles/mine.yaml", facts); err != nil {
		t.Error(err)
	}
	if err := Check(dir+"config.yaml", facts); err != nil {
		t.Error(err)
	}
}

func FuzzProfile(f *testing.F) {
	for _, name := range presetNames {
		src, err := os.ReadFile(name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(src))
	}
	f.Add("a: &a [*a]\n")
	f.Add("limits: {memory: 1g, ? x : y}\n")
	f.Add("description: |\n  x\n")
	f.Add("description: >-\n\n x\n# c\nfiles: {read: [a, b]}")
	f.Fuzz(func(t *testing.T, src string) {
		p, err := parse("f.yaml", src, "")
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("not an *Error: %v", err)
			}
			return
		}
		// What it took means the same when it is written out again.
		for _, e := range p.entries() {
			k, ok := findKey(e.Key)
			if !ok {
				t.Fatalf("entry of no key: %v", e)
			}
			if keys[k].kind == kindList {
				if err := checkItem(k, e.Value); err != nil {
					t.Fatalf("took %v, and refuses it: %v", e, err)
				}
				continue
			}
			v, err := parseScalar(k, e.Value, e.Origin)
			if err != nil || v.n != p.values[k].n || v.s != p.values[k].s {
				t.Fatalf("%v: reads back as %+v, %v", e, v, err)
			}
		}
	})
}
