package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// copies is how many there are of each program. Where the page cache has a program's pages
// makes starts differ by percents, and no copy has the same.
const copies = 4

// A build is one version of sbxrun.
type build struct {
	name     string
	programs []string // copies, with what stands beside them
	turn     int
}

func (b *bench) newBuild(name, program string) (*build, error) {
	v := &build{name: name}
	for i := range copies {
		dir := filepath.Join(b.dir, fmt.Sprint(name, "-", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		for _, file := range []string{"sbxrun", "sbxrun-mcp", "sbxrun-serve"} {
			if err := copyFile(filepath.Join(dir, file), filepath.Join(filepath.Dir(program), file)); err != nil {
				return nil, err
			}
		}
		v.programs = append(v.programs, filepath.Join(dir, "sbxrun"))
	}
	return v, nil
}

// next is the copy whose turn it is.
func (v *build) next() string {
	v.turn++
	return v.programs[v.turn%copies]
}

// beside compares an older sbxrun with this one, in all that goes through their command line.
func (b *bench) beside(env *environment, program, parts string) error {
	old, err := b.newBuild("before", program)
	if err != nil {
		return err
	}
	now, err := b.newBuild("now", b.sbxrun)
	if err != nil {
		return err
	}
	builds := []*build{old, now}
	for _, p := range []struct {
		name string
		do   func([]*build, *environment) error
	}{{"starts", b.besideStarts}, {"parallel", b.besideParallel}, {"work", b.besideWork}, {"written", b.besideWritten},
		{"network", b.besideNetwork}, {"tools", b.besideTools}, {"calls", b.besideCalls}} {
		if parts != "" && !slices.Contains(strings.Split(parts, ","), p.name) {
			continue
		}
		if err := p.do(builds, env); err != nil {
			return err
		}
	}
	return nil
}

// inTurns measures both builds in each round, and adds the rows.
func (b *bench) inTurns(section, where, unit string, builds []*build, rounds int, once func(i int) (float64, error)) error {
	got := []samples{{}, {}}
	for round := -3; round < rounds; round++ {
		for _, i := range rand.Perm(2) {
			v, err := once(i)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", where, builds[i].name, err)
			}
			if round >= 0 {
				got[i][round] = v
			}
		}
	}
	b.report.add(measured(section, builds[0].name, where, unit, got[0], nil, ""))
	b.report.add(measured(section, builds[1].name, where, unit, got[1], got[0], ""))
	return nil
}

func (b *bench) besideStarts(builds []*build, env *environment) error {
	const section = "starts"
	b.report.begin(section, "A run of true, ms (fork to wait); ratio of this sbxrun to the one before")
	// A copy has a session, and a server, of its own.
	var cold, warm, pooled [2][copies]*spawner
	for i, v := range builds {
		for j, program := range v.programs {
			e := *env
			e.sbxrun = program
			run := filepath.Join(filepath.Dir(program), "run")
			if err := os.Mkdir(run, 0o700); err != nil {
				return err
			}
			if _, err := e.sbxrunIn(run, slices.Concat([]string{"session", "create"}, e.flags, []string{"bench"})...).output(); err != nil {
				return err
			}
			end := func() { e.sbxrunIn(run, "session", "rm", "--force", "bench").output() }
			defer end()
			stop, err := b.serve(&e, run)
			if err != nil {
				return err
			}
			defer stop()
			for _, s := range []struct {
				to  *[2][copies]*spawner
				cmd command
			}{
				{&cold, e.sbxrunContender().wrap(b.truePath)},
				{&warm, e.sbxrunIn(run, "session", "exec", "bench", "--", b.truePath)},
				{&pooled, e.sbxrunIn(run, slices.Concat(e.flags, []string{"--", b.truePath})...)},
			} {
				if s.to[i][j], err = newSpawner(s.cmd); err != nil {
					return err
				}
				defer s.to[i][j].close()
			}
		}
	}
	for _, s := range []struct {
		name string
		of   *[2][copies]*spawner
		rest time.Duration // what was used is replaced meanwhile
	}{{"cold", &cold, 0}, {"session exec", &warm, 0}, {"pooled", &pooled, 30 * time.Millisecond}} {
		turn := [2]int{}
		if err := b.inTurns(section, s.name, "ms", builds, pick(b, 100, 1500), func(i int) (float64, error) {
			turn[i]++
			d, err := s.of[i][turn[i]%copies].once()
			time.Sleep(s.rest)
			return float64(d.Nanoseconds()) / 1e6, err
		}); err != nil {
			return err
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}

func (b *bench) besideParallel(builds []*build, env *environment) error {
	const section = "parallel"
	b.report.begin(section, "Runs of true per second; ratio of this sbxrun to the one before")
	for _, n := range []int{1, 2, 4, 8} {
		if err := b.inTurns(section, fmt.Sprint(n, " parallel"), "runs/s", builds, pick(b, 4, 24), func(i int) (float64, error) {
			e := *env
			e.sbxrun = builds[i].next()
			return throughput(e.sbxrunContender().wrap(b.truePath), n, 600*time.Millisecond)
		}); err != nil {
			return err
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}

func (b *bench) besideWork(builds []*build, _ *environment) error {
	const section = "work"
	b.report.begin(section, "Work inside; ratio of this sbxrun to the one before")
	list, err := b.workloads()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(w workload) bool { return w.name == "go build" }) // in what is written
	return b.besideList(section, builds, list)
}

func (b *bench) besideWritten(builds []*build, _ *environment) error {
	const section = "written"
	b.report.begin(section, "Work that writes in the workspace; ratio of this sbxrun to the one before")
	list, err := b.writing(pick(b, 2000, 10000))
	if err != nil {
		return err
	}
	return b.besideList(section, builds, list)
}

func (b *bench) besideList(section string, builds []*build, list []workload) error {
	for _, w := range list {
		w.contenders = nil
		for _, v := range builds {
			w.contenders = append(w.contenders, &contender{name: v.name, wrap: func(argv ...string) command {
				e := *w.env
				e.sbxrun = v.next()
				return e.sbxrunContender().wrap(argv...)
			}})
		}
		w.rounds = w.rounds * 2
		if err := b.compare(section, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}

func (b *bench) besideNetwork(builds []*build, _ *environment) error {
	const section = "network"
	b.report.begin(section, "Through the egress gateway, to loopback; ratio of this sbxrun to the one before")
	argv, inside, end, err := b.networkWork()
	if err != nil {
		return err
	}
	defer end()
	rate, latency, conns := []samples{{}, {}}, []samples{{}, {}}, []samples{{}, {}}
	for round := range pick(b, 3, 15) {
		for _, i := range rand.Perm(2) {
			r, err := runClient(append(inside(builds[i].next()), argv...))
			if err != nil {
				return err
			}
			rate[i][round], latency[i][round], conns[i][round] = r.BytesPerSecond/1e6, r.Latency*1e3, r.ConnectionsPerSecond
		}
	}
	for _, m := range []struct {
		where, unit string
		got         []samples
	}{{"throughput", "MB/s", rate}, {"connect, first byte", "ms", latency}, {"connections", "/s", conns}} {
		b.report.add(measured(section, builds[0].name, m.where, m.unit, m.got[0], nil, ""))
		b.report.add(measured(section, builds[1].name, m.where, m.unit, m.got[1], m.got[0], ""))
	}
	b.report.print(os.Stdout, section)
	return nil
}

func (b *bench) besideTools(builds []*build, _ *environment) error {
	const section = "tools"
	b.report.begin(section, "A call of tool bash (true), ms; ratio of this sbxrun to the one before")
	var servers [2][copies]*toolServer
	for i, v := range builds {
		for j, program := range v.programs {
			config := filepath.Join(filepath.Dir(program), "tools")
			ws := filepath.Join(config, "ws")
			if err := os.MkdirAll(ws, 0o755); err != nil {
				return err
			}
			s, err := startTools(v.name, exec.Command(program, append([]string{"mcp", "-q", "-C", ws}, b.extra...)...), config)
			if err != nil {
				return err
			}
			defer func() { s.in.Close(); s.cmd.Wait() }()
			servers[i][j] = s
			for range 20 {
				if _, err := s.call(true); err != nil {
					return err
				}
			}
		}
	}
	turn := [2]int{}
	if err := b.inTurns(section, "", "ms", builds, pick(b, 200, 1500), func(i int) (float64, error) {
		turn[i]++
		took, err := servers[i][turn[i]%copies].call(true)
		return took.Seconds() * 1e3, err
	}); err != nil {
		return err
	}
	b.report.print(os.Stdout, section)
	return nil
}

func (b *bench) besideCalls(builds []*build, _ *environment) error {
	const section = "calls"
	b.report.begin(section, "A call of Claude Code's Bash tool, ms; ratio of this sbxrun to the one before")
	ws := filepath.Join(b.dir, "calls")
	project := filepath.Join(ws, "project")
	if err := os.MkdirAll(project, 0o755); err != nil {
		return err
	}
	was, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.Chdir(project); err != nil { // the agent is this process
		return err
	}
	defer os.Chdir(was)
	for _, way := range []string{"prefix", "shell", "hook"} {
		for _, session := range []string{"auto", ""} {
			where := way
			if session != "" {
				where += ", a session"
			}
			var callers [2][copies]*caller
			for i, v := range builds {
				for j, program := range v.programs {
					e := *b
					e.sbxrun = program
					c, err := e.newCaller(ws, fmt.Sprint(v.name, j, " ", where), way, session)
					if err != nil {
						return err
					}
					defer c.endSession(program)
					callers[i][j] = c
				}
			}
			turn := [2]int{}
			if err := b.inTurns(section, where, "ms", builds, pick(b, 20, 200), func(i int) (float64, error) {
				turn[i]++
				took, err := callers[i][turn[i]%copies].call()
				return took.Seconds() * 1e3, err
			}); err != nil {
				return err
			}
		}
	}
	b.report.print(os.Stdout, section)
	return nil
}
