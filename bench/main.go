// Command bench measures what sbxrun costs, next to what else there is: the
// time of a cold run, runs per second in parallel, and how much slower work
// goes inside. "make bench" runs it; README.md beside it says how to read what
// it prints, what is equal between the contenders and what is not.
//
// sbxrun is asked for its policy (--dry-run), and from that policy bubblewrap's
// arguments, an OCI bundle and the plan of the floor are made: the same mounts
// by construction, not by care. Contenders run in turns, in an order shuffled
// each round, so that what disturbs the machine disturbs all of them.
//
// It does not judge: no number makes it fail.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A bench is one run of this program.
type bench struct {
	dir    string // scratch, removed at the end
	sbxrun string
	quick  bool
	parts  string   // of -before; "" for all
	extra  []string // flags for sbxrun, added to those of every run

	truePath string
	goEmpty  string // an empty Go program, static
	floor    string
	load     string

	report report
	ends   []func()
}

// atEnd has f called at the end, also of a benchmark that is interrupted: the last
// first, for the first removes the directory that the others' work is in.
func (b *bench) atEnd(f func()) { b.ends = append(b.ends, f) }

func (b *bench) end() {
	for _, f := range slices.Backward(b.ends) {
		f()
	}
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == workerArg {
		if err := work(); err != nil {
			fatal(err)
		}
		return
	}
	if len(os.Args) == 4 && os.Args[1] == clientArg {
		if err := client(os.Args[2], os.Args[3] == "true"); err != nil {
			fatal(err)
		}
		return
	}
	var (
		b       bench
		file    string
		startup bool
		network bool
		tools   bool
		calls   bool
		guard   bool
		explain bool
		ready   bool
		idle    bool
		before  string
		source  string
		extra   string
	)
	flag.BoolVar(&b.quick, "quick", false, "take about 20 seconds instead of five minutes; leaves the Go build out")
	flag.BoolVar(&startup, "startup", false, "report where sbxrun's own time goes, and measure nothing else")
	flag.BoolVar(&network, "network", false, "measure the egress gateway, and nothing else")
	flag.BoolVar(&guard, "guard", false, "measure what protected paths cost, and nothing else")
	flag.BoolVar(&explain, "explain", false, "measure what --explain costs, and nothing else")
	flag.BoolVar(&tools, "tools", false, "measure a tool call of sbxrun mcp, and nothing else")
	flag.BoolVar(&calls, "calls", false, "measure a call of Claude Code's, by way of integration, and nothing else")
	flag.BoolVar(&ready, "ready", false, "measure sessions and pools, and nothing else")
	flag.BoolVar(&idle, "idle", false, "measure a thousand sessions that nobody uses, and nothing else")
	flag.StringVar(&before, "before", "", "compare with an older sbxrun, a `program` with its companions beside it, and nothing else")
	flag.StringVar(&b.parts, "parts", "", "of -before: some of `starts,parallel,work,written,network,tools,calls`")
	flag.StringVar(&file, "json", "", "also write the results to `FILE`")
	flag.StringVar(&b.sbxrun, "sbxrun", "bin/sbxrun", "the `program` to measure")
	flag.StringVar(&source, "source", "bench", "the `directory` with this program's source")
	flag.StringVar(&extra, "with", "", "`flags` to add to every sbxrun, for example \"--allow-degraded cgroup\" where an ordinary user has no cgroup")
	flag.Parse()
	b.extra = strings.Fields(extra)
	if flag.NArg() > 0 {
		fatal(fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	err := b.run(source, before, startup, network, tools, calls, guard, explain, ready, idle)
	b.end()
	if err == nil && file != "" {
		var text []byte
		if text, err = json.MarshalIndent(&b.report, "", "  "); err == nil {
			err = os.WriteFile(file, append(text, '\n'), 0o644)
		}
	}
	if err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "bench: error:", err)
	os.Exit(1)
}

var errInterrupted = errors.New("interrupted")

func (b *bench) run(source, before string, startup, network, tools, calls, guard, explain, ready, idle bool) (err error) {
	if b.sbxrun, err = filepath.Abs(b.sbxrun); err != nil {
		return err
	}
	if _, err := os.Stat(b.sbxrun); err != nil {
		return fmt.Errorf("%w; build it first: make build", err)
	}
	// Below the module's .cache and not in /tmp, which is often another file
	// system than the one that people work on.
	if err := os.MkdirAll(".cache", 0o755); err != nil {
		return err
	}
	cache, err := filepath.Abs(".cache")
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(cache, "bench-"); err != nil {
		return err
	}
	b.atEnd(func() { os.RemoveAll(b.dir) })
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		b.end()
		fatal(errInterrupted)
	}()

	if err := b.build(source); err != nil {
		return err
	}
	switch {
	case startup:
		return b.startup()
	case network:
		return b.network()
	case tools:
		return b.tools()
	case calls:
		b.report.Host = describeHost(b)
		b.report.Host.print(os.Stdout)
		return b.calls()
	case guard:
		return b.guard()
	case explain:
		b.report.Host = describeHost(b)
		b.report.Host.print(os.Stdout)
		return b.explain()
	}
	cwd := filepath.Join(b.dir, "empty")
	if err := os.Mkdir(cwd, 0o755); err != nil {
		return err
	}
	env, err := newEnvironment(b, "cold", cwd)
	if err != nil {
		return err
	}

	// The garbage collector would run in the middle of somebody's turn.
	debug.SetGCPercent(-1)
	b.report.Host = describeHost(b)
	b.report.Host.print(os.Stdout)
	began := time.Now()
	switch {
	case ready:
		return b.ready(env)
	case before != "":
		return b.beside(env, before, b.parts)
	case idle:
		run, err := b.runtimeDir()
		if err != nil {
			return err
		}
		return b.idle(env, run)
	}
	if err := b.cold(env); err != nil {
		return err
	}
	if err := b.parallel(env); err != nil {
		return err
	}
	if err := b.steady(env); err != nil {
		return err
	}
	if err := b.network(); err != nil {
		return err
	}
	if err := b.tools(); err != nil {
		return err
	}
	if err := b.calls(); err != nil {
		return err
	}
	if err := b.guard(); err != nil {
		return err
	}
	if err := b.ready(env); err != nil {
		return err
	}
	b.report.Host.LoadAfter = loadAverage()
	fmt.Printf("\ntook %.0f s; load average %s before, %s after\n", time.Since(began).Seconds(), b.report.Host.LoadBefore, b.report.Host.LoadAfter)
	return nil
}

// build makes the programs that the benchmark needs.
func (b *bench) build(source string) error {
	var err error
	if b.truePath, err = exec.LookPath("true"); err != nil {
		return err
	}
	b.floor = filepath.Join(b.dir, "floor")
	b.load = filepath.Join(b.dir, "load")
	b.goEmpty = filepath.Join(b.dir, "empty-go")
	for _, argv := range [][]string{
		{"gcc", "-O2", "-static", "-o", b.floor, filepath.Join(source, "floor", "floor.c")},
		{"gcc", "-O2", "-static", "-o", b.load, filepath.Join(source, "load", "load.c")},
		{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", b.goEmpty, "./" + filepath.Join(source, "empty")},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
	}
	return nil
}
