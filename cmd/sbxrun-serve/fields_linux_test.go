package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/internal/quote"
)

// TestFields: whatever is wrong with a field of a request, the answer begins with the
// field's name, says that the request is at fault, and nothing has run.
func TestFields(t *testing.T) {
	// A value is what stands for the field in the request; the name is what the answer
	// has to begin with, the field's own if it is empty.
	type wrong struct{ value, name string }
	all := func(values ...string) (list []wrong) {
		for _, v := range values {
			list = append(list, wrong{value: v})
		}
		return list
	}
	no := func(kinds string) []wrong { // values of each type of JSON but those
		var list []wrong
		for kind, v := range map[string]string{"bool": "true", "number": "5", "string": `"a"`, "array": "[]", "object": "{}"} {
			if !strings.Contains(kinds, kind) {
				list = append(list, wrong{value: v})
			}
		}
		return list
	}
	long := strings.Repeat("x", 200<<10)
	count := append(no("number"), all("0", "-1", "1.5", "1e3", "1e400", "9223372036854775808", "-9223372036854775809")...)
	place := append(no("string"), all(`"relative"`, `"/nonexistent/x"`, `"`+"/etc/passwd"+`"`, `"/a\u0000b"`, `"/a\nb"`)...)
	within := append(no("string"), all(`"relative"`, `"/a\u0000b"`)...)
	name := append(no("string"), all(`"unrestricted"`, `"../strict"`, `"a\u0000b"`)...)
	id := append(no("string"), all(`""`, `"../x"`, `"."`, `"a b"`, `"a\u0000b"`, `"`+long+`"`)...)
	run := map[string][]wrong{
		"args":         append(no("array"), all("null", `[""]`, `[5]`, `[null]`, `["true", null]`, `["true", ["a"]]`, `["true", {}]`, `["tr\u0000ue"]`, `["true", "a\u0000b"]`)...),
		"env":          append(no("object"), wrong{`{"A": 1}`, "env.A"}, wrong{`{"A": null}`, "env.A"}, wrong{`{"A": {}}`, "env.A"}, wrong{`{"A": "a\u0000b"}`, "env.A"}, wrong{`{"": "a"}`, `env.""`}, wrong{`{"A=B": "a"}`, "env.A=B"}, wrong{`{"A\u0000": "a"}`, `env."A\x00"`}, wrong{`{"A": "1", "A": "2"}`, "env.A"}),
		"cwd":          within,
		"stdin":        no("string"),
		"stdin_base64": append(no("string"), all(`"?"`, `"A"`)...),
		"timeout_ms":   append(count, all("9223372036854")...),
		"max_output":   append(count, all("67108865")...),
		"memory":       append(count, all("1", "1099511627776")...),
		"cpus":         append(no("number"), all("0", "-1", "0.001", "65537", "1e400")...),
		"pids":         append(count, all("100000")...),
		"explain":      no("bool"),
		"pool":         name,
		"workspace":    place,
	}
	unknown := map[string][]wrong{}
	for _, n := range []string{"Args", "arg", "timeout", "mem", "profile", "", "a.b", "/x", "args[0]"} {
		unknown[n] = all("null", "1", `["true"]`, "{}")
	}
	create := map[string][]wrong{"id": id, "pool": name, "workspace": place}
	for field := range run {
		if create[field] == nil {
			create[field] = all("null", `"a"`) // of another request
		}
	}
	inside := map[string][]wrong{"id": all(`"one"`), "pool": append(name, all(`"strict"`)...), "workspace": append(place, all(`"/usr"`)...)}
	for field, list := range run {
		if inside[field] == nil {
			inside[field] = list
		}
	}
	run["id"] = all(`"one"`)
	// The table has every field that the documentation has.
	docs, err := os.ReadFile("../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(docs), "\nThe two `run` requests take these fields:\n")
	table, _, _ = strings.Cut(table, "\n`POST /v1/sessions` takes")
	documented := regexp.MustCompile("`([a-z0-9_]+)`[^|\n]* \\|").FindAllStringSubmatch(table, -1)
	for _, m := range documented {
		if run[m[1]] == nil {
			t.Errorf("the field %s is not in the table", m[1])
		}
	}
	if len(documented) < 10 {
		t.Errorf("docs/serve.md: the fields are %q", documented)
	}

	each(t, func(t *testing.T, w *world) {
		if code := w.do("POST", "/v1/sessions", fmt.Sprintf(`{"id":"mine","workspace":%q}`, w.ws), nil); code != 201 {
			t.Fatal(code)
		}
		for path, fields := range map[string]map[string][]wrong{"/v1/run": run, "/v1/sessions": create, "/v1/sessions/mine/run": inside} {
			for _, of := range []map[string][]wrong{fields, unknown} {
				for field, list := range of {
					for _, v := range append(list, wrong{"null, " + fmt.Sprintf("%q", field) + ": null", ""}) {
						var members []string
						if path != "/v1/sessions" && field != "args" {
							members = append(members, `"args": ["touch", "ran"]`)
						}
						if path == "/v1/run" && field != "workspace" {
							members = append(members, fmt.Sprintf(`"workspace": %q`, w.ws))
						}
						body := "{" + strings.Join(append(members, fmt.Sprintf("%q: %s", field, v.value)), ", ") + "}"
						want := v.name
						if want == "" {
							want = quote.Inside(field)
						}
						var e struct {
							Error struct{ Message, Code string }
						}
						code := w.do("POST", path, body, &e)
						if named := strings.HasPrefix(e.Error.Message, want+":") || strings.HasPrefix(e.Error.Message, want+"["); code < 400 || code > 499 || !named {
							t.Errorf("%s %.120s: %d, %.200s", path, body, code, e.Error.Message)
						}
					}
				}
			}
		}
		for _, path := range []string{"/v1/run", "/v1/sessions/mine/run"} {
			for _, body := range []string{"", "5", `"a"`, "[]", "true", "{", `{"args": ["touch", "ran"]`, `{"args"}`, `{"args": ["touch", "ran"]} {}`, "{\"args\": [\"touch\", \"ran\", \"\xff\"]}", `{"args": ["touch", "ran", "\ud800"]}`} {
				var e struct{ Error struct{ Message string } }
				if code := w.do("POST", path, body, &e); code != 400 || !strings.HasPrefix(e.Error.Message, "body:") {
					t.Errorf("%s %s: %d, %s", path, body, code, e.Error.Message)
				}
			}
		}
		for _, tt := range []struct{ method, path, name string }{
			{"DELETE", "/v1/sessions/mine?grace_ms=x", "grace_ms"},
			{"DELETE", "/v1/sessions/mine?grace_ms=", "grace_ms"},
			{"DELETE", "/v1/sessions/mine?grace_ms=-1", "grace_ms"},
			{"DELETE", "/v1/sessions/mine?grace_ms=1.5", "grace_ms"},
			{"DELETE", "/v1/sessions/mine?grace_ms=99999999999", "grace_ms"},
			{"DELETE", "/v1/sessions/mine?grace_ms=1&grace_ms=2", "grace_ms"},
			{"DELETE", "/v1/sessions/mine?grace=1", "grace"},
			{"GET", "/v1?grace_ms=1", "grace_ms"},
			{"GET", "/v1/pools?name=strict", "name"},
			{"POST", "/v1/run?args=true", "args"},
			{"GET", "/v1/pools/none", "pool"},
			{"GET", "/v1/sessions/a%20b", "id"},
			{"DELETE", "/v1/sessions/a%20b", "id"},
			{"POST", "/v1/sessions/a%20b/run", "id"},
		} {
			var e struct{ Error struct{ Message string } }
			if code := w.do(tt.method, tt.path, `{"args": ["touch", "ran"]}`, &e); code < 400 || code > 499 || !strings.HasPrefix(e.Error.Message, tt.name+":") {
				t.Errorf("%s %s: %d, %s", tt.method, tt.path, code, e.Error.Message)
			}
		}
		if _, err := os.Lstat(filepath.Join(w.ws, "ran")); err == nil {
			t.Error("a command of a request that was refused ran")
		}
		var list struct{ Sessions []struct{ ID string } }
		if code := w.get("/v1/sessions", &list); code != 200 || len(list.Sessions) != 1 {
			t.Errorf("sessions: %d, %+v", code, list)
		}
	})
}
