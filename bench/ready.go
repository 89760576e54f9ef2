package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/pool"
	"github.com/sbxrun/sbxrun/session"
)

// ready measures sandboxes that are there before they are asked for: sessions and
// pools, from the command line and within one process, and what they cost while
// nobody uses them.
func (b *bench) ready(env *environment) error {
	run, err := b.runtimeDir()
	if err != nil {
		return err
	}
	if err := b.warmCommands(env, run); err != nil {
		return err
	}
	if err := b.warmLibrary(env); err != nil {
		return err
	}
	if err := b.warmAPI(env, run); err != nil {
		return err
	}
	return b.idle(env, run)
}

// runtimeDir makes the directory for sessions and servers of the benchmark's own.
func (b *bench) runtimeDir() (string, error) {
	run := filepath.Join(b.dir, "run")
	return run, os.Mkdir(run, 0o700)
}

// sbxrunIn is sbxrun with sessions and a server of the benchmark's own.
func (e *environment) sbxrunIn(run string, args ...string) command {
	return command{Argv: append([]string{e.sbxrun}, args...), Env: append(os.Environ(), "XDG_RUNTIME_DIR="+run), Dir: e.cwd}
}

// warmCommands measures commands of sbxrun, next to a cold bubblewrap.
func (b *bench) warmCommands(env *environment, run string) error {
	const section = "ready"
	b.report.begin(section, "A run of true, ms (fork to wait), in a sandbox that is ready; ratio to bubblewrap, cold")
	if _, err := env.sbxrunIn(run, slices.Concat([]string{"session", "create"}, env.flags, []string{"bench"})...).output(); err != nil {
		return err
	}
	defer env.sbxrunIn(run, "session", "rm", "--force", "bench").output()
	end, err := b.serve(env, run)
	if err != nil {
		return err
	}
	defer end()

	bwrap := env.bwrapContender()
	list := b.usable(section, "", []*contender{
		bwrap, env.sbxrunContender(),
		{name: "sbxrun session exec", wrap: func(argv ...string) command {
			return env.sbxrunIn(run, slices.Concat([]string{"session", "exec", "bench", "--"}, argv)...)
		}},
		{name: "sbxrun, pooled", wrap: func(argv ...string) command {
			return env.sbxrunIn(run, slices.Concat(env.flags, []string{"--"}, argv)...)
		}},
	}, b.truePath)
	var spawners []*spawner
	for _, c := range list {
		s, err := newSpawner(c.wrap(b.truePath))
		if err != nil {
			return err
		}
		defer s.close()
		spawners = append(spawners, s)
	}
	got := make([]samples, len(list))
	for i := range got {
		got[i] = samples{}
	}
	turns := make([]int, len(list))
	for i := range turns {
		turns[i] = i
	}
	until := time.Now().Add(pick(b, 5*time.Second, 40*time.Second))
	pooled := 0
	for round := -5; time.Now().Before(until) || round < 20; round++ {
		rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
		for _, i := range turns {
			d, err := spawners[i].once()
			if err != nil {
				return fmt.Errorf("%s: %w", list[i].name, err)
			}
			if round >= 0 {
				got[i][round] = float64(d.Nanoseconds()) / 1e6
			}
			if list[i].name == "sbxrun, pooled" {
				pooled++
				// What was used is replaced, and what it was used for is taken down:
				// not in the time of another.
				time.Sleep(30 * time.Millisecond)
			}
		}
	}
	var base samples
	for i, c := range list {
		if c.name == bwrap.name {
			base = got[i]
		}
	}
	for i, c := range list {
		note := c.note
		if c.name == "sbxrun, pooled" {
			stats, err := env.sbxrunIn(run, "pool", "stats").output()
			if err != nil {
				return err
			}
			note = fmt.Sprintf("%s of %d runs were", field(stats, "POOLED"), pooled+1)
		}
		b.report.add(measured(section, c.name, "", "ms", got[i], base, note))
	}
	b.report.print(os.Stdout, section)
	return nil
}

// serve starts a server of sbxrun's, and returns how to end it.
func (b *bench) serve(env *environment, run string) (end func(), err error) {
	server := exec.Command(env.sbxrun, slices.Concat([]string{"serve", "--min-size", "2", "--target-size", "8"}, env.flags)...)
	server.Env, server.Dir, server.Stderr = append(os.Environ(), "XDG_RUNTIME_DIR="+run), env.cwd, os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, err
	}
	end = sync.OnceFunc(func() { server.Process.Signal(syscall.SIGTERM); server.Wait() })
	b.atEnd(end)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		end()
		return nil, fmt.Errorf("sbxrun serve: %w", err)
	}
	return end, nil
}

// field reads a column of the first row of a table.
func field(table, name string) string {
	lines := strings.SplitN(table, "\n", 3)
	if len(lines) < 2 {
		return "?"
	}
	if i := slices.Index(strings.Fields(lines[0]), name); i >= 0 && i < len(strings.Fields(lines[1])) {
		return strings.Fields(lines[1])[i]
	}
	return "?"
}

// warmLibrary measures a pool within this process.
func (b *bench) warmLibrary(env *environment) error {
	const section = "library"
	b.report.begin(section, "Within one process: start true, wait, result; ms; ratio to fork, exec, wait")
	ctx := context.Background()
	base := *env.policy
	base.Files = slices.DeleteFunc(slices.Clone(base.Files), func(f policy.FileRule) bool { return f.Path == env.cwd })
	d := native.Driver{Frugal: true}
	p, err := pool.New(pool.Config{Driver: d, Policy: &base, Settings: pool.Settings{MinSize: 2, TargetSize: 8}})
	if err != nil {
		return err
	}
	defer p.Close()
	process := &specs.Process{Args: []string{b.truePath}}
	// A process with several threads does not fork faster for that; but one with a
	// collector at work would.
	plain, err := newSpawner(command{Argv: []string{b.truePath}, Env: env.box.env, Dir: env.cwd})
	if err != nil {
		return err
	}
	defer plain.close()
	in := func(box driver.Sandbox) error {
		res, err := driver.Run(ctx, session.In(box, d.Name(), process), env.policy, driver.RunOptions{})
		if err == nil && res.ExitCode != 0 {
			err = fmt.Errorf("exit code %d", res.ExitCode)
		}
		return err
	}
	stays, err := d.Open(ctx, env.policy)
	if err != nil {
		return err
	}
	defer stays.Close()
	list := []struct {
		name, note string
		do         func() (time.Duration, error)
	}{
		{"fork, exec, wait", "", plain.once},
		{"exec in a session", "", func() (time.Duration, error) {
			start := time.Now()
			err := in(stays)
			return time.Since(start), err
		}},
		{"acquire, exec, result", "", func() (time.Duration, error) {
			if err := p.Ready(ctx, 8); err != nil {
				return 0, err
			}
			start := time.Now()
			box, err := p.Acquire(ctx, env.policy)
			if err == nil {
				err = in(box)
			}
			took := time.Since(start)
			if err == nil && !box.Pooled {
				err = fmt.Errorf("not pooled: %+v", p.Stats())
			}
			if box != nil {
				box.Close()
			}
			return took, err
		}},
		{"open, exec, result", "cold", func() (time.Duration, error) {
			start := time.Now()
			box, err := d.Open(ctx, env.policy)
			if err != nil {
				return 0, err
			}
			err = in(box)
			took := time.Since(start)
			box.Close()
			return took, err
		}},
	}
	got := make([]samples, len(list))
	for i := range got {
		got[i] = samples{}
	}
	turns := []int{0, 1, 2, 3}
	until := time.Now().Add(pick(b, 4*time.Second, 30*time.Second))
	for round := -5; time.Now().Before(until) || round < 20; round++ {
		rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
		for _, i := range turns {
			took, err := list[i].do()
			if err != nil {
				return fmt.Errorf("%s: %w", list[i].name, err)
			}
			if round >= 0 {
				got[i][round] = float64(took.Nanoseconds()) / 1e6
			}
		}
		runtime.GC()
	}
	for i, c := range list {
		b.report.add(measured(section, c.name, "", "ms", got[i], got[0], c.note))
	}

	// How many a second, one after the other, each with a command, the pool filling
	// itself meanwhile.
	rates := map[string]samples{"pool": {}, "cold": {}}
	for round := range pick(b, 3, 9) {
		for _, how := range []string{"pool", "cold"} {
			n := 0
			start := time.Now()
			for time.Since(start) < 500*time.Millisecond {
				var box driver.Sandbox
				var err error
				if how == "pool" {
					box, err = p.Acquire(ctx, env.policy)
				} else {
					box, err = d.Open(ctx, env.policy)
				}
				if err == nil {
					err = in(box)
				}
				if err != nil {
					return err
				}
				box.Close()
				n++
			}
			rates[how][round] = float64(n) / time.Since(start).Seconds()
			runtime.GC()
		}
	}
	b.report.add(measured(section, "sandboxes a second", "", "1/s", rates["pool"], rates["cold"], "from a pool; ratio to cold"))
	b.report.print(os.Stdout, section)
	return nil
}

// idle measures what sessions cost that nobody uses, and those that many use.
func (b *bench) idle(env *environment, run string) error {
	const section = "idle"
	b.report.begin(section, "Sessions of the command line, each with a holder of its own")
	st, err := session.OpenStore(filepath.Join(run, "sbxrun", "sessions"))
	if err != nil {
		return err
	}
	defer st.Close()
	var made []string
	var holders []int
	var making sync.RWMutex // held for reading by who makes one; guards over
	over := false
	remove := func() (err error) {
		for chunk := range slices.Chunk(made, 50) {
			_, e := env.sbxrunIn(run, slices.Concat([]string{"session", "rm", "--force"}, chunk)...).output()
			if err == nil {
				err = e
			}
		}
		made = nil
		return err
	}
	end := func() {
		making.Lock()
		over = true
		making.Unlock()
		remove()
	}
	b.atEnd(end)
	defer end()
	create := func(n int) (each samples, err error) {
		each = samples{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		next := make(chan int)
		one := func(i int) {
			making.RLock()
			defer making.RUnlock()
			if over {
				return
			}
			id := "idle" + strconv.Itoa(i)
			start := time.Now()
			_, e := env.sbxrunIn(run, slices.Concat([]string{"session", "create"}, env.flags, []string{id})...).output()
			mu.Lock()
			defer mu.Unlock()
			if e == nil {
				made = append(made, id)
				each[i] = float64(time.Since(start).Nanoseconds()) / 1e6
			} else if err == nil {
				err = e
			}
		}
		for range runtime.NumCPU() {
			wg.Go(func() {
				for i := range next {
					one(i)
				}
			})
		}
		from := len(made)
		for i := range n {
			next <- from + i
		}
		close(next)
		wg.Wait()
		return each, err
	}
	memory := func() (samples, error) {
		s := samples{}
		holders = nil
		for i, id := range made {
			info, err := st.Recorded(id)
			if err != nil {
				return nil, err
			}
			holders = append(holders, info.Pid)
			kb, err := pss(info.Pid)
			if err != nil {
				return nil, err
			}
			s[i] = kb / 1024
		}
		return s, nil
	}

	const busy = 100
	if _, err := create(busy); err != nil {
		return err
	}
	mib, err := memory()
	if err != nil {
		return err
	}
	b.report.add(measured(section, "memory of one", fmt.Sprint(busy, " sessions"), "MiB", mib, nil, "proportional set size of its holder, whose memory its process 1 shares"))

	// Each of a hundred sessions is used by one client, who pauses between commands.
	latency, err := execAll(st, made[:busy], b.truePath, pick(b, 3*time.Second, 15*time.Second))
	if err != nil {
		return err
	}
	r := measured(section, "exec of true", fmt.Sprint(busy, " busy sessions"), "ms", latency, nil, "")
	r.P99 = quantile(latency.values(), 0.99)
	r.Note = fmt.Sprintf("p99 %s ms", number(r.P99))
	b.report.add(r)

	if !b.quick {
		const many = 1000
		began := time.Now()
		took, err := create(many - busy)
		if err != nil {
			return fmt.Errorf("after %d sessions: %w", len(made), err)
		}
		b.report.add(measured(section, "session create", fmt.Sprint(many, " sessions"), "ms", took, nil,
			fmt.Sprintf("the last %d, as many at a time as there are processors: %.1f s", many-busy, time.Since(began).Seconds())))
		if mib, err = memory(); err != nil {
			return err
		}
		total := 0.0
		for _, v := range mib.values() {
			total += v
		}
		b.report.add(measured(section, "memory of one", fmt.Sprint(many, " sessions"), "MiB", mib, nil, fmt.Sprintf("all: %.0f MiB", total)))
		var some []string
		for i := 0; i < many; i += many / 20 {
			some = append(some, made[i])
		}
		latency, err := execAll(st, some, b.truePath, 10*time.Second)
		if err != nil {
			return err
		}
		r := measured(section, "exec of true", fmt.Sprint(many, " sessions"), "ms", latency, nil, "")
		r.P99 = quantile(latency.values(), 0.99)
		r.Note = fmt.Sprintf("p99 %s ms; in %d of them, the others idle", number(r.P99), len(some))
		b.report.add(r)
		var inits []int
		for _, pid := range holders {
			inits = append(inits, children(pid)...)
		}
		began = time.Now()
		if err := remove(); err != nil {
			return err
		}
		down := float64(time.Since(began).Nanoseconds()) / 1e6
		kept, err := left(st, holders, inits)
		if err != nil {
			return err
		}
		b.report.add(measured(section, "session rm --force", fmt.Sprint(many, " sessions"), "ms", samples{0: down / many}, nil,
			fmt.Sprintf("each, one after the other: %.1f s; left of them: %s", down/1e3, kept)))
	}
	b.report.print(os.Stdout, section)
	return nil
}

// children are those of all threads of a process.
func children(pid int) (list []int) {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for n := range strings.FieldsSeq(string(b)) {
			if c, err := strconv.Atoi(n); err == nil {
				list = append(list, c)
			}
		}
	}
	return list
}

// left says what is left of sessions that were removed: records, their holders' and
// sandboxes' processes, cgroups.
func left(st *session.Store, holders, inits []int) (string, error) {
	records, err := st.List()
	if err != nil {
		return "", err
	}
	processes, groups := 0, 0
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		// A holder says that its session has ended, and then ends.
		processes = 0
		for _, pid := range append(inits, holders...) {
			if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
				processes++
			}
		}
		if processes == 0 || time.Now().After(end) {
			break
		}
	}
	// The name of a group has its maker's number in it; see cgroups/name.go.
	made := map[string]bool{}
	for _, pid := range holders {
		made[strconv.Itoa(pid)] = true
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return nil // it is another's, or gone by now
		}
		if part := strings.Split(e.Name(), "-"); e.IsDir() && len(part) == 4 && part[0] == "r" && made[part[2]] {
			groups++
		}
		return nil
	})
	if len(records) == 0 && processes == 0 && groups == 0 {
		return "nothing", err
	}
	return fmt.Sprintf("%d records, %d processes, %d cgroups", len(records), processes, groups), err
}

// pss is the proportional set size of a process, KiB; see proc_pid_smaps(5).
func pss(pid int) (float64, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "Pss:"); ok {
			return strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 64)
		}
	}
	return 0, fmt.Errorf("%s: no Pss", f.Name())
}

// execAll runs a command in each session, again and again with a pause, and returns
// how long each took from request to result.
func execAll(st *session.Store, ids []string, argv string, d time.Duration) (samples, error) {
	all := samples{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var first error
	until := time.Now().Add(d)
	for _, id := range ids {
		c, err := st.Connect(id)
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			time.Sleep(rand.N(200 * time.Millisecond))
			for time.Now().Before(until) {
				start := time.Now()
				p, err := c.Exec(context.Background(), &specs.Process{Args: []string{argv}}, driver.Stdio{})
				if err == nil {
					_, err = p.Wait()
				}
				took := time.Since(start)
				mu.Lock()
				if err != nil && first == nil {
					first = err
				}
				all[len(all)] = float64(took.Nanoseconds()) / 1e6
				mu.Unlock()
				time.Sleep(150*time.Millisecond + rand.N(100*time.Millisecond))
			}
		})
	}
	wg.Wait()
	return all, first
}
