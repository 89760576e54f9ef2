//go:build linux

// Vm runs the tests on real kernels: it boots Debian's under qemu, without
// acceleration, with a root file system made of Debian's packages, runs the
// compiled tests in them as root and as an ordinary user, and brings the results
// back.
//
//	go run ./test/vm                       # what make vmtest does
//	go run ./test/vm -nightly              # what make vmtest-nightly does
//	go run ./test/vm -list
//	go run ./test/vm -config 6.1-root -run TestBattery/K09
//	go run ./test/vm -config 6.12-user -exec 'id; sbxrun doctor'
//
// It is a program, not a test, because what it runs are the tests: the same
// binaries that go test would make, in other places. A machine that has only
// cgroup v1, no AppArmor and one kernel proves nothing about the others.
//
// What differs between the places is data, in configurations.go; what a virtual
// machine does with it is shell, in guest/. Kernels, packages and images are
// kept in .cache/vm. The results are a line of JSON for each test in
// .cache/vm/results.jsonl, and all that was printed in .cache/vm/log.
//
// It needs no privilege. It does not measure: an emulated processor says nothing
// of time.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	var r runner
	list := flag.Bool("list", false, "list the configurations and end")
	config := flag.String("config", "", "only configurations that match this `regexp`, whole")
	nightly := flag.Bool("nightly", false, "the configurations that take too long for every change, and not the others; -config names any")
	flag.StringVar(&r.run, "run", "", "only tests that match this `regexp`, as in go test -run")
	flag.StringVar(&r.pkg, "pkg", "", "only the suites of packages that match this `regexp`")
	flag.StringVar(&r.exec, "exec", "", "run this shell `script` instead of the tests, as the configuration's user")
	flag.StringVar(&r.cache, "cache", ".cache/vm", "`directory` for packages, images and results")
	flag.IntVar(&r.parallel, "j", min(runtime.NumCPU(), 4), "how many machines at a time")
	flag.StringVar(&r.env, "env", "", "a variable for the tests, `NAME=VALUE`")
	flag.BoolVar(&r.verbose, "v", false, "print what the machines print, as it comes")
	flag.DurationVar(&r.timeout, "timeout", 40*time.Minute, "for one machine")
	flag.Parse()

	only, err := regexp.Compile("^(?:" + *config + ")$")
	if err != nil {
		fail(err)
	}
	for _, c := range configurations {
		if *config == "" && c.nightly == *nightly || *config != "" && only.MatchString(c.name) {
			r.configs = append(r.configs, c)
		}
	}
	if *list {
		for _, c := range r.configs {
			fmt.Printf("%-22s %s\n", c.name, c.about)
		}
		return
	}
	if len(r.configs) == 0 {
		fail(fmt.Errorf("no configuration matches %q; -list lists them", *config))
	}
	if err := r.all(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "vm:", err)
	os.Exit(1)
}

// A runner is one call of this program.
type runner struct {
	run, pkg, exec string
	env            string
	cache          string
	parallel       int
	verbose        bool
	timeout        time.Duration
	configs        []configuration
	downloads      sync.Mutex // held by who downloads packages
}

// errFailed is for failures that were printed as they came.
var errFailed = errors.New("failed")

func (r *runner) all() error {
	// mke2fs lies where an ordinary user does not look.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	var err error
	if r.cache, err = filepath.Abs(r.cache); err != nil {
		return err
	}
	logs := filepath.Join(r.cache, "log")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	start := time.Now()
	images, err := r.images()
	for _, c := range r.configs {
		defer os.Remove(images[c.tests()])
	}
	if err != nil {
		return err
	}
	fmt.Printf("vm: kernels, images and tests ready after %.1f s\n", time.Since(start).Seconds())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var mu sync.Mutex
	var results []result
	failed := false
	slots := make(chan struct{}, r.parallel)
	var wg sync.WaitGroup
	for _, c := range r.configs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m := machine{config: c, image: images[c.root()], kernel: images[c.kernel.key(c.processor())], tests: images[c.tests()], log: filepath.Join(logs, c.name), timeout: r.timeout}
			if r.verbose || r.exec != "" {
				m.echo = os.Stdout
			}
			began := time.Now()
			got, err := m.boot(ctx)
			mu.Lock()
			defer mu.Unlock()
			count := map[string]int{}
			for _, g := range got {
				count[g.Result]++
				if g.Result == "fail" && g.leaf {
					fmt.Printf("--- FAIL: %s: %s\n%s\n", c.name, g.Test, indent(g.Detail))
				}
			}
			if err != nil {
				fmt.Printf("--- FAIL: %s: %v\n", c.name, err)
				got = append(got, result{Configuration: c.name, Test: "boot", Result: "fail", Detail: err.Error()})
			}
			verdict := "ok"
			if err != nil || count["fail"] > 0 {
				verdict, failed = "FAIL", true
			}
			fmt.Printf("%-4s  %-20s %d passed, %d failed, %d skipped in %.0f s\n", verdict, c.name, count["pass"], count["fail"], count["skip"], time.Since(began).Seconds())
			results = append(results, got...)
		})
	}
	wg.Wait()
	if r.exec == "" && r.run == "" && r.pkg == "" {
		if err := r.save(results); err != nil {
			return err
		}
	}
	fmt.Printf("vm: %.0f s in all; what was printed is in %s\n", time.Since(start).Seconds(), logs)
	if failed {
		return errFailed
	}
	return nil
}

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString("    " + line)
	}
	return strings.TrimRight(b.String(), "\n")
}

// testsImage compiles for a processor the program and the tests that some
// configuration runs, and makes a file system of them.
func (r *runner) testsImage(arch string) (image string, err error) {
	dir, err := os.MkdirTemp(r.cache, "tests-")
	if err != nil {
		return "", err
	}
	image = dir + ".img"
	defer os.RemoveAll(dir)
	bin, tests := filepath.Join(dir, "bin"), filepath.Join(dir, "tests")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(tests, 0o755)); err != nil {
		return image, err
	}
	configs := slices.DeleteFunc(slices.Clone(r.configs), func(c configuration) bool { return c.processor() != arch })
	var packages []string
	for _, c := range configs {
		for _, s := range r.suites(c) {
			if !slices.Contains(packages, s.pkg) {
				packages = append(packages, s.pkg)
			}
		}
	}
	// Static, so that they run on any root file system.
	static := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch}
	build := [][]string{{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin + "/", module + "/cmd/sbxrun", module + "/cmd/sbxrun-serve", module + "/cmd/sbxrun-mcp", module + "/test/integration/attack", module + "/test/integration/stage", module + "/test/integration/fetch", module + "/test/integration/fileops", module + "/test/faults"}}
	for _, p := range packages {
		build = append(build, []string{"go", "test", "-c", "-ldflags=-s -w", "-o", filepath.Join(tests, name(p)+".test"), module + "/" + p})
		// What a test reads lies beside it.
		to := filepath.Join(dir, "src", p)
		if err := os.MkdirAll(to, 0o755); err != nil {
			return image, err
		}
		if _, err := os.Stat(filepath.Join(p, "testdata")); err == nil {
			if err := os.CopyFS(filepath.Join(to, "testdata"), os.DirFS(filepath.Join(p, "testdata"))); err != nil {
				return image, err
			}
		}
	}
	for _, b := range build {
		if err := command(static, b...); err != nil {
			return image, err
		}
	}
	if err := command(nil, "tools/seccomp", arch, filepath.Join(bin, "sbxrun-seccomp")); err != nil {
		return image, err
	}
	if slices.ContainsFunc(configs, func(c configuration) bool { return c.deb }) {
		if err := copyFile(filepath.Join(dir, "sbxrun.deb"), "dist/sbxrun_"+arch+".deb"); err != nil {
			return image, fmt.Errorf("%w: make packages makes it", err)
		}
	}
	guest, err := guestFiles.ReadDir("guest")
	if err != nil {
		return image, err
	}
	for _, g := range guest {
		b, err := guestFiles.ReadFile("guest/" + g.Name())
		if err != nil {
			return image, err
		}
		if err := os.WriteFile(filepath.Join(dir, g.Name()), b, 0o755); err != nil {
			return image, err
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o755); err != nil {
		return image, err
	}
	for _, c := range configs {
		if err := os.WriteFile(filepath.Join(dir, "config", c.name), []byte(r.script(c)), 0o755); err != nil {
			return image, err
		}
	}
	return image, makeImage(image, dir, 16<<20)
}

// suites are those of a configuration that this call runs. What -run names runs
// once, though the configuration would leave it out.
func (r *runner) suites(c configuration) []suite {
	var all []suite
	for _, s := range c.suites {
		if ok, err := regexp.MatchString("^(?:"+r.pkg+")$", s.pkg); r.exec != "" || r.pkg != "" && (err != nil || !ok) {
			continue
		}
		if r.run != "" {
			if slices.ContainsFunc(all, func(o suite) bool { return o.pkg == s.pkg }) {
				continue
			}
			s.run, s.skip = r.run, ""
		}
		all = append(all, s)
	}
	return all
}

// script is what a machine does for a configuration; guest/init runs it.
func (r *runner) script(c configuration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "PATH=$PATH:/vm/bin\nwho=%s\n[ $who != user ] || delegate\n%s\n", c.who, c.setup)
	if r.env != "" {
		fmt.Fprintf(&b, "export %s\n", quote(r.env))
	}
	if c.nightly {
		// Its clock jumps while it waits for its disk, too: on a busy host a timeout of a
		// minute passed within a second. What is in memory is not waited for.
		b.WriteString("find / /vm -xdev -type f -exec cat {} + >/dev/null 2>&1\n")
	}
	if r.exec != "" {
		fmt.Fprintf(&b, "begin exec\nas_user /bin/bash -c %s\nend exec $?\n", quote(r.exec))
		return b.String()
	}
	for _, s := range r.suites(c) {
		timeout := r.timeout - time.Minute
		if c.nightly { // more time passes in it than here
			timeout = 0
		}
		args := []string{"as_user", "/vm/tests/" + name(s.pkg) + ".test", "-test.v=test2json", "-test.parallel=4", "-test.timeout=" + timeout.String()}
		if s.short {
			args = append(args, "-test.short")
		}
		if s.run != "" {
			args = append(args, "-test.run="+s.run)
		}
		if s.skip != "" {
			args = append(args, "-test.skip="+s.skip)
		}
		for i, a := range args {
			args[i] = quote(a)
		}
		fmt.Fprintf(&b, "cd /vm/src/%s\nbegin %s\n%s\nend %[2]s $?\n", s.pkg, name(s.pkg), strings.Join(args, " "))
	}
	return b.String() + c.finish + "\n"
}

// name is a package's, of its last parts: that of a binary.
func name(pkg string) string { return strings.ReplaceAll(pkg, "/", "-") }

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// command runs a command and shows its output only if it fails.
func command(env []string, args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// lines runs a command and gives what it printed.
func lines(args ...string) ([]string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	var l []string
	for s := bufio.NewScanner(strings.NewReader(string(out))); s.Scan(); {
		l = append(l, s.Text())
	}
	return l, nil
}
