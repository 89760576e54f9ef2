package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pick chooses between the quick and the full measurement.
func pick[T any](b *bench, quick, full T) T {
	if b.quick {
		return quick
	}
	return full
}

// usable runs each contender once and reports those that work; the others
// become rows that say why not.
func (b *bench) usable(section, where string, list []*contender, argv ...string) []*contender {
	var ok []*contender
	for _, c := range list {
		if c.skip == "" {
			if _, err := c.wrap(argv...).output(); err != nil {
				c.skip = "does not run: " + err.Error()
			}
		}
		if c.skip != "" {
			b.report.add(row{Section: section, Name: c.name, Where: where, Note: c.skip})
			continue
		}
		ok = append(ok, c)
	}
	return ok
}

// cold measures a run of true from fork to wait.
func (b *bench) cold(env *environment) error {
	const section = "cold"
	b.report.begin(section, "Cold run of true, ms (fork to wait); ratio to bubblewrap, with its 95 % interval")
	plain := func(name string, argv ...string) *contender {
		return &contender{name: name, wrap: func(...string) command {
			return command{Argv: argv, Env: env.box.env, Dir: env.cwd}
		}}
	}
	floor, bwrap := env.floorContender(b.floor), env.bwrapContender()
	list := []*contender{
		plain("true", b.truePath),
		plain("empty Go program", b.goEmpty),
		plain("sbxrun version", b.sbxrun, "version"),
		floor, env.sbxrunContender(), bwrap,
		env.bubblewrap("bubblewrap, one tmpfs", true),
	}
	list = b.usable(section, "", append(list, env.peers(b)...), b.truePath)
	counts := b.mountCounts(env)

	type runner struct {
		*spawner
		name  string
		every int // rounds between its turns: the slow ones get fewer
		got   samples
		cpu   samples
	}
	var runners []*runner
	for _, c := range list {
		s, err := newSpawner(c.wrap(b.truePath))
		if err != nil {
			return err
		}
		defer s.close()
		var fastest time.Duration
		for range 5 { // the warm-up
			d, err := s.once()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if fastest == 0 || d < fastest {
				fastest = d
			}
		}
		runners = append(runners, &runner{s, c.name, max(1, int(fastest/(8*time.Millisecond))), samples{}, samples{}})
	}
	turns := slices.Clone(runners)
	until := time.Now().Add(pick(b, 5*time.Second, 60*time.Second))
	for round := 0; time.Now().Before(until) || round < 20; round++ {
		rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
		for _, r := range turns {
			if round%r.every != 0 {
				continue
			}
			d, err := r.once()
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			r.got[round] = float64(d.Nanoseconds()) / 1e6
			r.cpu[round] = float64(r.spawner.cpu.Nanoseconds()) / 1e6
		}
	}
	var base, baseCPU samples
	for _, r := range runners {
		switch r.name {
		case bwrap.name:
			base = r.got
		case floor.name:
			baseCPU = r.cpu
		}
	}
	for i, r := range runners {
		note := list[i].note
		if n := counts[r.name]; n != 0 {
			note = strings.TrimPrefix(note+fmt.Sprintf("; %d mounts", n), "; ")
		}
		b.report.add(measured(section, r.name, "", "ms", r.got, base, note))
	}
	b.report.print(os.Stdout, section)

	// Only of those that wait for all that they start: the others' time is in
	// nobody's account (bubblewrap's parent exits before its child is reaped,
	// docker's work is the daemon's).
	const cpu = "cpu"
	b.report.begin(cpu, "Processor time of the same runs, ms; ratio to the floor; disturbed less by what else runs")
	for _, name := range []string{"true", "empty Go program", "sbxrun version", floor.name, "sbxrun"} {
		for _, r := range runners {
			if r.name == name {
				b.report.add(measured(cpu, r.name, "", "ms", r.cpu, baseCPU, ""))
			}
		}
	}
	b.report.print(os.Stdout, cpu)
	return nil
}

// mountCounts looks from inside how many mounts each contender made: the check
// on what is said to be equal.
func (b *bench) mountCounts(env *environment) map[string]int {
	counts := map[string]int{}
	for _, c := range []*contender{
		env.floorContender(b.floor), env.sbxrunContender(), env.bwrapContender(), env.bubblewrap("bubblewrap, one tmpfs", true),
	} {
		if c.skip != "" {
			continue
		}
		if out, err := c.wrap("/bin/cat", "/proc/self/mountinfo").output(); err == nil {
			counts[c.name] = strings.Count(out, "\n")
		}
	}
	return counts
}

// parallel measures runs per second.
func (b *bench) parallel(env *environment) error {
	const section = "parallel"
	b.report.begin(section, "Runs of true per second; ratio to bubblewrap at the same parallelism")
	bwrap := env.bwrapContender()
	list := b.usable(section, "", []*contender{env.floorContender(b.floor), env.sbxrunContender(), bwrap}, b.truePath)
	levels := []int{1, 2, 4, 8}
	got := map[string]map[int]samples{}
	for _, c := range list {
		got[c.name] = map[int]samples{}
		for _, n := range levels {
			got[c.name][n] = samples{}
		}
	}
	slot := pick(b, 200*time.Millisecond, 600*time.Millisecond)
	for round := range pick(b, 2, 8) {
		for _, n := range levels {
			turns := slices.Clone(list)
			rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
			for _, c := range turns {
				rate, err := throughput(c.wrap(b.truePath), n, slot)
				if err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				got[c.name][n][round] = rate
			}
		}
	}
	for _, n := range levels {
		for _, c := range list {
			b.report.add(measured(section, c.name, fmt.Sprintf("%d parallel", n), "runs/s", got[c.name][n], got[bwrap.name][n], ""))
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}

// A workload is work of which the time inside is compared with that outside.
type workload struct {
	name   string
	env    *environment
	rounds int
	argv   []string

	// samples is how many times argv prints, each in nanoseconds; 0 means
	// that the whole run is timed, the sandbox's own start with it.
	samples int
	per     float64 // what the nanoseconds are divided by
	unit    string

	// contenders are who does it, the first of whom the others are compared
	// with; nil is outside, bubblewrap and sbxrun.
	contenders []*contender
}

// steady measures how much slower work goes inside.
func (b *bench) steady(env *environment) error {
	const section = "steady"
	b.report.begin(section, "Work inside, without the sandbox's start but for the Go build; ratio to the same work outside")
	loads, err := b.workloads()
	if err != nil {
		return err
	}
	for _, w := range loads {
		if err := b.compare(section, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}

func (b *bench) compare(section string, w workload) error {
	list := w.contenders
	if list == nil {
		list = []*contender{w.env.bare(), w.env.bwrapContender(), w.env.sbxrunContender()}
		list[0].name = "outside"
		list[2].note = ""
	}
	first := list[0]
	// The first run is the check that it works, and the warm-up.
	list = b.usable(section, w.name, list, w.argv...)
	got, cpu := make([]samples, len(list)), make([]samples, len(list))
	order := make([]int, len(list))
	for i := range list {
		got[i], cpu[i], order[i] = samples{}, samples{}, i
	}
	for round := range w.rounds {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, i := range order {
			cmd := list[i].wrap(w.argv...)
			if w.samples == 0 {
				s, err := newSpawner(cmd)
				if err != nil {
					return err
				}
				d, err := s.once()
				s.close()
				if err != nil {
					return err
				}
				got[i][round] = float64(d.Nanoseconds()) / w.per
				if list[i].name != "bubblewrap" { // which does not wait for its child
					cpu[i][round] = float64(s.cpu.Nanoseconds()) / w.per
				}
				continue
			}
			out, err := cmd.output()
			if err != nil {
				return fmt.Errorf("%s: %w", list[i].name, err)
			}
			lines := strings.Fields(out)
			if len(lines) != w.samples {
				return fmt.Errorf("%s: %d samples, want %d", list[i].name, len(lines), w.samples)
			}
			for k, line := range lines {
				ns, err := strconv.ParseFloat(line, 64)
				if err != nil {
					return err
				}
				got[i][round*w.samples+k] = ns / w.per
			}
		}
	}
	show := func(where string, got []samples) {
		var base samples
		if len(list) > 0 && list[0] == first {
			base = got[0]
		}
		for i, c := range list {
			if len(got[i]) > 0 {
				b.report.add(measured(section, c.name, where, w.unit, got[i], base, c.note))
			}
		}
	}
	show(w.name, got)
	if w.samples == 0 {
		show(w.name+", cpu time", cpu)
	}
	return nil
}

// workloads makes what there is to work on, each in a directory of its own
// that is the sandbox's workspace.
func (b *bench) workloads() ([]workload, error) {
	var list []workload
	work := filepath.Join(b.dir, "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	env, err := newEnvironment(b, "work", work, b.limits()...)
	if err != nil {
		return nil, err
	}
	load := filepath.Join(work, "load")
	if err := copyFile(load, b.load); err != nil {
		return nil, err
	}
	const per = 10
	for _, kind := range []struct {
		name  string
		count int // so that a sample takes about 5 ms
	}{{"getpid", 40000}, {"open", 3000}, {"stat", 5000}, {"read", 12000}, {"mix", 1500}} {
		list = append(list, workload{
			name: kind.name, env: env, rounds: pick(b, 3, 15), samples: per,
			argv: []string{load, strconv.Itoa(per), strconv.Itoa(kind.count), kind.name}, per: float64(kind.count), unit: "ns",
		})
	}
	const spawns = 40
	list = append(list, workload{
		name: "fork and exec", env: env, rounds: pick(b, 2, 12), samples: per,
		argv: []string{load, strconv.Itoa(per), strconv.Itoa(spawns), "spawn", b.truePath}, per: spawns * 1e3, unit: "us",
	})

	tree, err := b.gitTree(pick(b, 5000, 20000))
	if err != nil {
		return nil, err
	}
	list = append(list, *tree)
	if b.quick {
		b.report.add(row{Section: "steady", Name: "outside", Where: "go build", Note: "left out by -quick"})
		return list, nil
	}
	build, err := b.goBuild()
	if err != nil {
		return nil, err
	}
	return append(list, *build), nil
}
