package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/test/dispositions"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sbxrun": main,
	})
}

// TestScript runs the scripts over the real main function.
func TestScript(t *testing.T) {
	dispositions.Default() // here, for the scripts' sbxrun comes by TestMain, too
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			// A home beside the workspace, as people have it, not above it.
			for _, dir := range []string{"home", "ws"} {
				if err := os.MkdirAll(filepath.Join(env.WorkDir, dir), 0o755); err != nil {
					return err
				}
			}
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("LANG", "C.UTF-8")
			// By this a script knows its processes from those of tests that run beside it.
			env.Setenv("MARK", fmt.Sprintf("77%07d", os.Getpid()))
			env.Cd = filepath.Join(env.WorkDir, "ws")
			if !limits() {
				// An ordinary user without a delegated group; what is tested
				// here is the command line.
				env.Setenv("SBXRUN_ALLOW_DEGRADED", "cgroup")
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "native":
				return native.Driver{}.Available(context.Background()) == nil, nil
			case "limits": // by cgroup
				return limits(), nil
			}
			return false, os.ErrInvalid
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":    code,
			"gone":    gone,
			"newline": newline,
			"big":     big,
		},
	})
}

// limits reports whether this user can have cgroups here.
var limits = sync.OnceValue(func() bool {
	memory, pids, quota, period := int64(64<<20), int64(64), int64(100000), uint64(100000)
	resources := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Pids:   &specs.LinuxPids{Limit: &pids},
	}
	layout, err := cgroups.Acquire(resources)
	if err != nil {
		return false
	}
	g, err := cgroups.Prepare(layout, resources)
	if g != nil {
		g.Close()
	}
	return err == nil
})

// code runs sbxrun and checks its exit code: code 125 --memory 1x ls.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: code N [sbxrun's arguments]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec("sbxrun", args[1:]...)
	got := 0
	if err != nil {
		x, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = x.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// gone waits until no process has the word among its arguments.
func gone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gone WORD")
	}
	// Not as a part of another number, as temporary directories have them.
	word := regexp.MustCompile(`\b` + regexp.QuoteMeta(args[0]) + `\b`)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := ""
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range names {
			if b, err := os.ReadFile(name); err == nil && word.Match(b) {
				left = name
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s still has %s", left, args[0])
		}
	}
}

// newline runs sbxrun with arguments in which \n and \0 stand for those bytes,
// which a script cannot say. Only a newline can be passed to a process at all.
func newline(ts *testscript.TestScript, neg bool, args []string) {
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], `\n`, "\n")
	}
	code(ts, neg, args)
}

// big runs sbxrun with N arguments of 1 KiB after the others: big 125 1024 -- true.
func big(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	args = append([]string{args[0]}, args[2:]...)
	for range n {
		args = append(args, strings.Repeat("x", 1023))
	}
	code(ts, neg, args)
}
