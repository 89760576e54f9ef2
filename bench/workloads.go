package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// limits are flags that lift the limits which would be what is measured: a
// build on all processors against one on as many as the profile grants says
// nothing about isolation. The cgroup and its accounting stay.
func (b *bench) limits() []string {
	return []string{"--cpus", strconv.Itoa(runtime.NumCPU()), "--pids", "4096"}
}

func copyFile(dst, src string) error {
	data, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	return os.WriteFile(dst, data, 0o755)
}

// commitTree makes a repository with so many files, committed.
func (b *bench) commitTree(name string, files int) (dir string, err error) {
	dir = filepath.Join(b.dir, name)
	for i := range files {
		d := filepath.Join(dir, fmt.Sprintf("d%03d", i/50))
		if i%50 == 0 {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return "", err
			}
		}
		if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("f%02d.txt", i%50)), fmt.Appendf(nil, "file %d\n", i), 0o644); err != nil {
			return "", err
		}
	}
	git, err := exec.LookPath("git")
	if err != nil {
		return "", err
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"commit", "-q", "-m", "tree"}} {
		if err := gitIn(dir, git, args...); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// gitIn runs git in a repository of the benchmark's own.
func gitIn(dir, git string, args ...string) error {
	cmd := exec.Command(git, append([]string{"-c", "user.name=bench", "-c", "user.email=bench@example.invalid", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, firstLine(string(out)))
	}
	return nil
}

// gitTree is git status of a repository with so many files.
func (b *bench) gitTree(files int) (*workload, error) {
	dir, err := b.commitTree("tree", files)
	if err != nil {
		return nil, err
	}
	if err := copyFile(filepath.Join(dir, "load"), b.load); err != nil {
		return nil, err
	}
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	env, err := newEnvironment(b, "tree", dir, b.limits()...)
	if err != nil {
		return nil, err
	}
	const samples = 4
	return &workload{
		name: fmt.Sprintf("git status, %d files", files), env: env, rounds: pick(b, 2, 6), samples: samples,
		argv: []string{filepath.Join(dir, "load"), strconv.Itoa(samples), "1", "spawn", git, "status", "--porcelain"}, per: 1e6, unit: "ms",
	}, nil
}

// goBuild makes a module with a vendored dependency, to be built from nothing:
// -a compiles the standard library that it uses as well.
func (b *bench) goBuild() (*workload, error) {
	dir := filepath.Join(b.dir, "module")
	for name, text := range map[string]string{
		"go.mod":             "module example.invalid/app\n\ngo 1.24\n\nrequire example.invalid/dep v0.1.0\n",
		"main.go":            "package main\n\nimport \"example.invalid/dep\"\n\nfunc main() { println(dep.Greeting(\"world\")) }\n",
		"vendor/modules.txt": "# example.invalid/dep v0.1.0\n## explicit; go 1.24\nexample.invalid/dep\n",
		"vendor/example.invalid/dep/dep.go": `package dep

import (
	"sort"
	"strconv"
	"strings"
)

func Greeting(name string) string {
	words := strings.Fields("hello " + name)
	sort.Strings(words)
	return strconv.Quote(strings.Join(words, " "))
}
`,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	goroot := strings.TrimSpace(string(out))
	flags := b.limits()
	if !strings.HasPrefix(goroot, "/usr/") {
		flags = append(flags, "--ro", goroot)
	}
	// What the build writes lies in the workspace, inside and outside alike.
	for name, value := range map[string]string{
		"GOCACHE": filepath.Join(dir, ".cache"), "GOTMPDIR": dir, "GOPATH": filepath.Join(dir, ".gopath"),
		"GOFLAGS": "-mod=vendor", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOENV": "off", "CGO_ENABLED": "0", "GOTELEMETRY": "off",
	} {
		flags = append(flags, "--env", name+"="+value)
	}
	env, err := newEnvironment(b, "module", dir, flags...)
	if err != nil {
		return nil, err
	}
	return &workload{
		name: "go build", env: env, rounds: 5,
		argv: []string{filepath.Join(goroot, "bin", "go"), "build", "-a", "-o", "app", "."}, per: 1e9, unit: "s",
	}, nil
}
