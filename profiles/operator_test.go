package profiles

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
)

// hostWith is the host with more files.
func hostWith(files map[string]string) fstest.MapFS {
	f := hostFS()
	for name, text := range files {
		putFile(f, name, text)
	}
	return f
}

// TestOperator: what operators decide is read from their files alone (AGT-2, AGT-8).
func TestOperator(t *testing.T) {
	const yes = "agents:\n  unsandboxed: true\nrollout:\n  percent: 5\n  force: [ci]\n"
	base := map[string]string{"etc/sbxrun/x": ""}
	resolve := func(t *testing.T, files map[string]string, edit func(*Request, *Facts)) (*Resolved, error) {
		t.Helper()
		f, req := testFacts(hostWith(files)), &Request{Command: []string{"/bin/true"}, Dir: "/home/u/src/project"}
		if edit != nil {
			edit(req, f)
		}
		return Resolve(req, f)
	}
	r, err := resolve(t, base, nil)
	if err != nil {
		t.Fatal(err)
	}
	if o := r.Operator; o.Unsandboxed || !o.Rollout.Enabled || o.Rollout.Percent != 100 || o.Audit.File != "" {
		t.Errorf("if nothing is said: %+v", o)
	}
	r, err = resolve(t, map[string]string{"home/u/.config/sbxrun/config.yaml": yes + "audit:\n  file: ~/log/audit.jsonl\n  keep: 2\n", "home/u/log/x": ""}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if o := r.Operator; !o.Unsandboxed || o.Rollout.Percent != 5 || fmt.Sprint(o.Rollout.Force) != "[ci]" || o.Audit != (Audit{File: "/home/u/log/audit.jsonl", MaxSize: 10 << 20, Keep: 2}) {
		t.Errorf("%+v", o)
	}
	project := "home/u/src/project/.sbxrun.yaml"
	for name, c := range map[string]struct {
		files map[string]string
		edit  func(*Request, *Facts)
		want  string
	}{
		"a project":         {map[string]string{project: yes}, nil, "agents.unsandboxed: a project has no say"},
		"a trusted project": {map[string]string{project: yes, "home/u/.config/sbxrun/trusted": TrustLine("/"+project, yes)}, nil, "agents.unsandboxed: a project has no say"},
		"a profile":         {map[string]string{"home/u/.config/sbxrun/profiles/mine.yaml": yes}, func(r *Request, _ *Facts) { r.Profile = "mine" }, "profiles have no say"},
		"a profile file":    {map[string]string{"home/u/src/project/mine.yaml": "rollout:\n  enabled: false\n"}, func(r *Request, _ *Facts) { r.Profile = "/home/u/src/project/mine.yaml" }, "profiles have no say"},
		"more than all":     {map[string]string{"etc/sbxrun/config.yaml": "rollout:\n  percent: 101\n"}, nil, "want 0 to 100"},
		"a log in the ws":   {base, func(r *Request, _ *Facts) { r.Audit = "/home/u/src/project/audit" }, "where the command can write"},
		"a log in --rw":     {map[string]string{"home/u/w/x": ""}, func(r *Request, _ *Facts) { r.Audit, r.ReadWrite = "/home/u/w/audit", []string{"/home/u/w"} }, "where the command can write"},
		"a log by --bind": {map[string]string{"home/u/w/x": ""}, func(r *Request, _ *Facts) {
			r.Audit, r.Binds = "/home/u/w/a", []Bind{{Source: "/home/u/w", Destination: "/w"}}
		}, "where the command can write"},
		"a log in no place":   {base, func(r *Request, _ *Facts) { r.Audit = "/nowhere/audit" }, "mkdir"},
		"a relative log":      {map[string]string{"etc/sbxrun/config.yaml": "audit:\n  file: a.log\n"}, nil, "relative"},
		"an unknown variable": {base, func(_ *Request, f *Facts) { f.Environ = append(f.Environ, "SBXRUN_AUDIT=/home/u/src/project/x") }, "where the command can write"},
	} {
		_, err := resolve(t, c.files, c.edit)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error()+" "+e.Fix, c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// TestFiles: what a policy was made of is known by name and content, what would have
// counted too; the workspace's own file, which a command can write, is not part of it.
func TestFiles(t *testing.T) {
	const config, profile, seccomp, project = "home/u/.config/sbxrun/config.yaml", "home/u/.config/sbxrun/profiles/mine.yaml", "home/u/filter.json", "home/u/src/project/.sbxrun.yaml"
	base := map[string]string{profile: "extends: aicode\n", seccomp: `{"defaultAction": "SCMP_ACT_ALLOW"}`, project: "network:\n  mode: none\n"}
	r, err := Resolve(&Request{Command: []string{"/bin/true"}, Dir: "/home/u/src/project", Profile: "mine", Seccomp: "/" + seccomp}, testFacts(hostWith(base)))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"/" + profile: true, "/" + seccomp: true, "/" + config: false, "/etc/sbxrun/config.yaml": false, "/home/u/.config/sbxrun/profiles/aicode.yaml": false} {
		if sum, ok := r.Files[name]; !ok || (len(sum) == 64) != want {
			t.Errorf("%s: %q %v", name, sum, ok)
		}
	}
	if _, ok := r.Files["/"+project]; ok {
		t.Error("a project's file is among them")
	}
	changed := func(edit func(map[string]string)) string {
		files := map[string]string{}
		for k, v := range base {
			files[k] = v
		}
		edit(files)
		return strings.Join(r.Files.Changed(testFacts(hostWith(files))), " ")
	}
	for want, edit := range map[string]func(map[string]string){
		"":                            func(f map[string]string) { f[project] = ""; f["home/u/other"] = "" },
		"/" + profile:                 func(f map[string]string) { f[profile] += "home: host\n" },
		"/" + config + " /" + profile: func(f map[string]string) { f[config] = ""; delete(f, profile) },
		"/home/u/.config/sbxrun/profiles/aicode.yaml": func(f map[string]string) { f["home/u/.config/sbxrun/profiles/aicode.yaml"] = "home: host\n" },
	} {
		if got := changed(edit); got != want {
			t.Errorf("changed %q, want %q", got, want)
		}
	}
}

// TestRollout: the answer for a key stays, a greater share only adds, and the share
// is about that.
func TestRollout(t *testing.T) {
	inside := 0
	for i := range 2000 {
		key, was := fmt.Sprintf("agent-%d", i), false
		for percent := range 101 {
			in, why := Rollout{Enabled: true, Percent: percent}.Sandboxed(key)
			if was && !in {
				t.Fatalf("%s: in at %d percent and not at %d", key, percent-1, percent)
			}
			if in != (why == "") {
				t.Fatalf("%s: %v, because %q", key, in, why)
			}
			was = in
			if percent == 30 && in {
				inside++
			}
			if percent == 0 && in || percent == 100 && !in {
				t.Fatalf("%s: %v at %d percent", key, in, percent)
			}
		}
	}
	if inside < 500 || inside > 700 {
		t.Errorf("%d of 2000 at 30 percent", inside)
	}
	if in, why := (Rollout{Enabled: false, Percent: 100}).Sandboxed("a"); in || why == "" {
		t.Errorf("disabled: %v, %q", in, why)
	}
	if in, _ := (Rollout{Force: []string{"b", "a"}}).Sandboxed("a"); !in {
		t.Error("a forced key is not in")
	}
	// The same on every machine and in every version: the hash is SHA-256.
	if _, why := (Rollout{Enabled: true}).Sandboxed("agent-1"); !strings.Contains(why, "at 8 of 100") {
		t.Errorf("agent-1: %s", why)
	}
}
