package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// startup reports where the time of a cold run goes: to the Go runtime, to the
// init of packages, to system calls. What it prints is for reading, not for
// comparing: strace and perf slow a run several times over, and shares of it
// are all that they tell.
func (b *bench) startup() error {
	cwd := filepath.Join(b.dir, "empty")
	if err := os.Mkdir(cwd, 0o755); err != nil {
		return err
	}
	run := slices.Concat([]string{b.sbxrun, "--profile", "strict", "--cd", cwd}, b.extra, []string{"--", b.truePath})

	describeHost(b).print(os.Stdout)
	fmt.Println("\nShares of a start, ms, medians in turns")
	if err := b.shares([][]string{{b.truePath}, {b.goEmpty}, {b.sbxrun, "version"}, run}, cwd); err != nil {
		return err
	}
	fmt.Println("\nPackage initialisation, GODEBUG=inittrace=1 (the runtime's own start is not in it)")
	if err := b.inits(run, cwd); err != nil {
		return err
	}
	b.trace("System calls by number, strace -fc (counts are right, times are the tracer's)",
		"strace", append([]string{"-fc", "-S", "calls"}, run...), cwd, 45)
	b.trace("System calls by time, perf trace -s (much closer to the truth)",
		"perf", append([]string{"trace", "-s"}, run...), cwd, 120)
	return b.timeline(run, cwd)
}

func (b *bench) shares(commands [][]string, cwd string) error {
	spawners := make([]*spawner, len(commands))
	got := make([]samples, len(commands))
	for i, argv := range commands {
		s, err := newSpawner(command{Argv: argv, Env: os.Environ(), Dir: cwd})
		if err != nil {
			return err
		}
		defer s.close()
		spawners[i], got[i] = s, samples{}
	}
	for round := -5; round < pick(b, 100, 400); round++ { // -5: the warm-up
		for i, s := range spawners {
			d, err := s.once()
			if err != nil {
				return err
			}
			if round >= 0 {
				got[i][round] = float64(d.Nanoseconds()) / 1e6
			}
		}
	}
	for i, what := range []string{"fork, exec, exit (true)", "and the Go runtime (an empty program)", "and packages and flags (sbxrun version)", "and the sandbox (a strict run of true)"} {
		v := got[i].values()
		fmt.Printf("  %-42s %s  (p10 %s, p90 %s)\n", what, number(quantile(v, 0.5)), number(quantile(v, 0.1)), number(quantile(v, 0.9)))
	}
	return nil
}

var initLine = regexp.MustCompile(`^init (\S+) @\S+ ms, (\S+) ms clock, (\d+) bytes, (\d+) allocs`)

// inits sums what package initialisation costs, the median of several runs for
// each package.
func (b *bench) inits(argv []string, cwd string) error {
	type cost struct {
		ms            []float64
		bytes, allocs int
	}
	costs := map[string]*cost{}
	const runs = 25
	for range runs {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = cwd
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", argv[0], err, firstLine(stderr.String()))
		}
		for line := range strings.Lines(stderr.String()) {
			m := initLine.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			c := costs[m[1]]
			if c == nil {
				c = &cost{}
				costs[m[1]] = c
			}
			ms, _ := strconv.ParseFloat(m[2], 64)
			c.ms = append(c.ms, ms)
			c.bytes, _ = strconv.Atoi(m[3])
			c.allocs, _ = strconv.Atoi(m[4])
		}
	}
	type line struct {
		name string
		ms   float64
		*cost
	}
	var lines []line
	total := line{name: "total", cost: &cost{}}
	for name, c := range costs {
		slices.Sort(c.ms)
		l := line{name, quantile(c.ms, 0.5), c}
		lines = append(lines, l)
		total.ms += l.ms
		total.bytes += c.bytes
		total.allocs += c.allocs
	}
	slices.SortFunc(lines, func(x, y line) int {
		if x.ms != y.ms {
			if x.ms > y.ms {
				return -1
			}
			return 1
		}
		return strings.Compare(x.name, y.name)
	})
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  package\tms\tbytes\tallocations")
	for _, l := range append([]line{total}, lines[:min(len(lines), 20)]...) {
		fmt.Fprintf(t, "  %s\t%.3f\t%d\t%d\n", l.name, l.ms, l.bytes, l.allocs)
	}
	t.Flush()
	fmt.Printf("  %d packages with an init of their own\n", len(lines))
	return nil
}

// trace prints what a tracer says of a run, if it is there and works.
func (b *bench) trace(title, tool string, args []string, cwd string, lines int) {
	fmt.Printf("\n%s\n", title)
	path, err := exec.LookPath(tool)
	if err != nil {
		fmt.Printf("  %s is not installed\n", tool)
		return
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = cwd
	out, err := cmd.CombinedOutput()
	if err != nil {
		fmt.Printf("  %s: %v: %s\n", tool, err, firstLine(string(out)))
		return
	}
	sc := bufio.NewScanner(bytes.NewReader(out))
	for n := 0; n < lines && sc.Scan(); n++ {
		if strings.TrimSpace(sc.Text()) != "" && !strings.HasPrefix(sc.Text(), path+": Process ") {
			fmt.Println("  " + sc.Text())
		}
	}
}

// timeline prints when the calls came that divide a run into its phases.
func (b *bench) timeline(argv []string, cwd string) error {
	fmt.Println("\nWhat happens when, strace -f -ttt (ms since exec; the tracer stretches it)")
	path, err := exec.LookPath("strace")
	if err != nil {
		fmt.Println("  strace is not installed")
		return nil
	}
	log := filepath.Join(b.dir, "strace")
	cmd := exec.Command(path, append([]string{"-f", "-ttt", "-o", log}, argv...)...)
	cmd.Dir = cwd
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Printf("  strace: %v: %s\n", err, firstLine(string(out)))
		return nil
	}
	f, err := os.Open(log)
	if err != nil {
		return err
	}
	defer f.Close()
	landmark := regexp.MustCompile(`^(execve|clone3?|vfork|unshare|pivot_root|umount2|seccomp|landlock_restrict_self|sethostname|fsopen|wait4|waitid|exit_group)\(|^\+\+\+ exited`)
	var first float64
	calls, since := 0, 0
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		part := strings.SplitN(sc.Text(), " ", 3)
		if len(part) < 3 {
			continue
		}
		call := strings.TrimSpace(part[2])
		at, err := strconv.ParseFloat(strings.TrimSpace(part[1]), 64)
		if err != nil { // the pid is padded with blanks
			fields := strings.Fields(sc.Text())
			if len(fields) < 3 {
				continue
			}
			if at, err = strconv.ParseFloat(fields[1], 64); err != nil {
				continue
			}
			call = strings.Join(fields[2:], " ")
		}
		if first == 0 {
			first = at
		}
		calls++
		since++
		if landmark.MatchString(call) {
			if len(call) > 110 {
				call = call[:110] + "…"
			}
			fmt.Printf("  %8.3f  +%3d calls  [%s] %s\n", (at-first)*1e3, since, part[0], call)
			since = 0
		}
	}
	fmt.Printf("  %d lines in all, %s\n", calls, time.Now().Format("2006-01-02 15:04"))
	return sc.Err()
}
