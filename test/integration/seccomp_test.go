//go:build linux

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCustomSeccomp: a filter of the caller's own is compiled, enforced, and
// found compiled the next time; one that is wrong, or cannot be compiled, ends
// the run.
func TestCustomSeccomp(t *testing.T) {
	eachWho(t, func(f *fixture) {
		write := func(name, content string) string {
			file := filepath.Join(f.ws, name)
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				f.Fatal(err)
			}
			return file
		}
		// mkdir(2) is denied, and its neighbours are not.
		profile := write("filter.json", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]}`)
		for _, when := range []string{"compiled", "found"} {
			o := f.run(call{args: f.sandbox([]string{"--seccomp", profile}, "sh", "-c", "mkdir d; touch f && grep Seccomp: /proc/self/status")})
			if o.code != 0 || !strings.Contains(o.stderr, "Function not implemented") || !strings.Contains(o.stdout, "2") {
				f.Errorf("%s: %v", when, o)
			}
		}
		if list, _ := filepath.Glob(filepath.Join(f.who.cache(), "sbxrun", "seccomp", "*.bpf")); len(list) != 1 {
			f.Errorf("in the cache: %v", list)
		}
		for name, content := range map[string]string{
			"unknown key":  `{"defaultAction": "SCMP_ACT_ALLOW", "sycalls": []}`,
			"unknown call": `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdirr"], "action": "SCMP_ACT_ERRNO"}]}`,
			"no JSON":      `all: allow`,
		} {
			o := f.run(call{args: f.sandbox([]string{"--seccomp", write("bad.json", content)}, "touch", "ran")})
			if o.code != 125 || exists(filepath.Join(f.ws, "ran")) || !strings.Contains(o.stderr, "sbxrun: error: ") {
				f.Errorf("%s: %v", name, o)
			}
		}
	})
}
