//go:build linux

// Command faults kills sandboxes, and counts what is left of them: processes, cgroups,
// mounts and files, for sbxrun and for what else is installed. docs/reliability.md has
// what it found.
//
// Everything happens in a world of its own: namespaces, a cgroup of every hierarchy
// with limits, and empty file systems for what is written. Whatever is in there came of
// a kill, so nothing of the machine is counted or touched.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var (
	kills   = flag.Int("kills", 100, "kills of each kind, of each `contender`; a quarter of it for those that take ten seconds")
	total   = flag.Int("total", 10000, "kills of the rows sbxrun and sbxrun-landlock, of all kinds together")
	only    = flag.String("only", "", "comma-separated `names` of contenders")
	kindArg = flag.String("kind", "", "comma-separated `names` of kinds of kill")
	program = flag.String("sbxrun", "bin/sbxrun", "the `program`")
	judge   = flag.String("go-judge", "", "go-judge's `program`, if it is not on the PATH")
	verbose = flag.Bool("v", false, "list what is left")
	seed    = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the moments")
	random  *rand.Rand
)

// batch is how many are killed before somebody looks.
const batch = 25

func main() {
	if len(os.Args) > 3 && os.Args[1] == "-enter" {
		enter(os.Args[2], os.Args[3:])
	}
	if len(os.Args) > 1 && os.Args[1] == "-hog" {
		hog()
	}
	if len(os.Args) > 1 && os.Args[1] == "-thread" {
		write("/proc/self/comm", "kthreadd")
		time.Sleep(1000 * time.Hour)
	}
	flag.Parse()
	random = rand.New(rand.NewPCG(*seed, 0))
	var err error
	if os.Getpid() == 1 {
		err = inside()
	} else {
		err = outside()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// A kind is a way to end a sandbox.
type kind struct {
	name string
	few  bool // takes long
	kill func(*item)
}

func kinds() []kind {
	stopped := func(i *item) {
		i.signal(syscall.SIGSTOP, i.supervisor, i.init)
		i.later = func() { i.signal(syscall.SIGKILL, i.supervisor, i.init) }
	}
	return []kind{
		{name: "client", kill: func(i *item) { i.signal(syscall.SIGKILL, i.client) }},
		{name: "supervisor", kill: func(i *item) { i.signal(syscall.SIGKILL, i.supervisor) }},
		{name: "process 1", kill: func(i *item) {
			if i.init == 0 { // it is not there yet
				i.init = i.client
			}
			i.signal(syscall.SIGKILL, i.init)
		}},
		{name: "both", kill: func(i *item) {
			if i.number%2 == 0 {
				i.signal(syscall.SIGKILL, i.supervisor, i.init)
			} else {
				i.signal(syscall.SIGKILL, i.init, i.supervisor)
			}
		}},
		{name: "each", kill: func(i *item) {
			all := append([]int{i.supervisor}, i.all...)
			if i.number%2 == 0 {
				slices.Reverse(all)
			}
			i.signal(syscall.SIGKILL, all...)
		}},
		{name: "process group", kill: func(i *item) { i.signal(syscall.SIGKILL, -i.server, -i.client) }},
		{name: "cgroup.kill", kill: func(i *item) { write(i.group+"/cgroup.kill", "1") }},
		{name: "parent's oom", few: true, kill: (*item).starve},
		{name: "stopped 10 s", few: true, kill: stopped},
	}
}

// An item is one sandbox that is killed.
type item struct {
	contender        *contender
	number           int
	group            string // of cgroup v2, the caller's
	memory           string // of the controller, the caller's
	client           int
	server           int // 0: none
	supervisor, init int
	all              []int
	later            func() // ten seconds on
}

// signal sends to each, -pid being a process group. That it is gone is no error.
func (i *item) signal(sig syscall.Signal, pids ...int) {
	for _, pid := range pids {
		if pid != 0 && pid != 1 && pid != -1 {
			syscall.Kill(pid, sig)
		}
	}
}

// starve lets the caller's memory group run out: some processes eat what there is until
// the supervisor, which the kernel is told to kill first, is gone. One alone would be
// larger than all that is told.
func (i *item) starve() {
	for _, pid := range append([]int{i.supervisor}, i.all...) {
		write(fmt.Sprintf("/proc/%d/oom_score_adj", pid), "1000")
	}
	var hogs []int
	for range 4 {
		pid, err := start([]string{"/proc/self/exe", "-enter", i.memory, "/proc/self/exe", "-hog"}, os.Environ(), nil, -1)
		if err != nil {
			fatal(err)
		}
		hogs = append(hogs, pid)
	}
	within(10*time.Second, func() bool { return !living(i.supervisor) })
	i.signal(syscall.SIGKILL, hogs...)
	within(5*time.Second, func() bool { return !slices.ContainsFunc(hogs, living) })
}

// A left is what was found.
type left struct{ processes, groups, mounts, files []string }

func (l left) counts() [4]int {
	groups := map[string]bool{} // one that is in several hierarchies is one
	for _, g := range l.groups {
		groups[filepath.Base(g)] = true
	}
	return [4]int{len(l.processes), len(groups), len(l.mounts), len(l.files)}
}

// A row is one contender under one kind of kill.
type row struct {
	kills       int
	after, next [4]int
}

func inside() error {
	w, err := newWorld()
	if err != nil {
		return err
	}
	list := contenders(w)
	if *only != "" {
		list = slices.DeleteFunc(list, func(c *contender) bool { return !slices.Contains(strings.Split(*only, ","), c.name) })
	}
	names := kinds()
	sum := 0
	for _, c := range list {
		if c.skip == "" {
			if err := c.try(w, names[0]); err != nil {
				c.skip = err.Error()
			}
		}
		if c.skip != "" {
			w.clean(left{})
			continue
		}
		known := w.look()
		for _, k := range names {
			if *kindArg != "" && !slices.Contains(strings.Split(*kindArg, ","), k.name) || k.name == "client" && c.before == nil ||
				k.name == "process group" && c.name == session || k.name == "parent's oom" && w.memory == "" {
				c.line = append(c.line, "–")
				continue
			}
			n := *kills
			if c.main {
				n = (*total + 12) / 13 // two rows of six kinds, and of two that are few
			}
			if k.few || c.one {
				n = (n + 3) / 4
			}
			r := row{}
			begin := time.Now()
			for r.kills < n {
				if err := w.batch(c, k, n-r.kills, known, &r); err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, k.name, err)
				}
			}
			fmt.Fprintf(os.Stderr, "%s, %s: %d kills in %.0f s: %s\n", c.name, k.name, r.kills, time.Since(begin).Seconds(), r)
			c.line = append(c.line, r.String())
			sum += r.kills
		}
	}
	fmt.Printf("%d kills, seed %d\n\n| |", sum, *seed)
	for _, k := range names {
		fmt.Printf(" %s |", k.name)
	}
	fmt.Printf("\n|---|%s\n", strings.Repeat("---|", len(names)))
	for _, c := range list {
		if c.skip != "" {
			fmt.Printf("| %s | not measured: %s |\n", c.name, strings.ReplaceAll(c.skip, "\n", " "))
		} else if len(c.line) > 0 {
			fmt.Printf("| %s | %s |\n", c.name, strings.Join(c.line, " | "))
		}
	}
	return nil
}

// String is a cell of the table: what was left per hundred kills, and after the arrow
// what the next run left of it, if that is less.
func (r row) String() string {
	per := func(n [4]int) string {
		if n == [4]int{} {
			return "0"
		}
		var out []string
		for _, v := range n {
			out = append(out, strconv.FormatFloat(math.Round(float64(v)*1000/float64(r.kills))/10, 'f', -1, 64))
		}
		return strings.Join(out, "/")
	}
	if r.after == r.next {
		return per(r.after)
	}
	return per(r.after) + " → " + per(r.next)
}

// batch kills some, looks after a second, has the next run come, and looks again.
func (w *world) batch(c *contender, k kind, n int, known left, r *row) error {
	if n = min(n, batch); c.one {
		n = 1
	}
	var items []*item
	for range n {
		w.count++
		i := &item{contender: c, number: w.count}
		if err := w.begin(i, k); err != nil {
			return err
		}
		k.kill(i)
		items = append(items, i)
		r.kills++
	}
	if slices.ContainsFunc(items, func(i *item) bool { return i.later != nil }) {
		time.Sleep(10 * time.Second)
		for _, i := range items {
			i.later()
		}
	}
	lives := k.name == "client" || k.name == "process 1" && c.before != nil
	if c.before != nil {
		// A client whose server was killed ends, or has its command run in a sandbox of
		// its own, which is no leak.
		time.Sleep(500 * time.Millisecond)
		for _, i := range items {
			i.signal(syscall.SIGKILL, i.client)
		}
	}
	clear := func() left {
		within(time.Second, func() bool { return w.look().minus(known).counts() == [4]int{} })
		return w.look().minus(known)
	}
	found := clear()
	if lives {
		// The server is to live; the command is not.
		found.processes = slices.DeleteFunc(found.processes, func(p string) bool { return !strings.HasSuffix(p, " sleep") })
		commands := found.processes
		for _, i := range items {
			c.end(i)
		}
		within(10*time.Second, func() bool { return len(w.look().minus(known).processes) == 0 })
		found = clear()
		found.processes = append(found.processes, commands...)
	}
	add(&r.after, found)
	if err := w.run(c.next(w), 60*time.Second); err != nil {
		return fmt.Errorf("the next run: %w", err)
	}
	again := clear()
	add(&r.next, again)
	if *verbose && (found.counts() != [4]int{} || again.counts() != [4]int{}) {
		fmt.Fprintf(os.Stderr, "%s, %s: %.600q, then %.600q\n", c.name, k.name, fmt.Sprint(found), fmt.Sprint(again))
	}
	w.clean(known)
	return nil
}

func add(to *[4]int, l left) {
	for i, n := range l.counts() {
		to[i] += n
	}
}

// begin starts a sandbox, and returns at a random moment, of which half are later than
// the command's begin.
func (w *world) begin(i *item, k kind) error {
	c := i.contender
	before := processes()
	var err error
	i.group = fmt.Sprintf("%s/c%d", w.unified, i.number)
	if err := os.Mkdir(i.group, 0o755); err != nil {
		return err
	}
	prefix := []string{}
	if k.name == "parent's oom" && w.memory != "" {
		i.memory = fmt.Sprintf("%s/c%d", w.memory, i.number)
		os.Mkdir(i.memory, 0o755)
		if err := write(i.memory+"/"+w.memoryLimit, fmt.Sprint(256<<20)); err != nil {
			return err
		}
		prefix = []string{"/proc/self/exe", "-enter", i.memory}
	}
	fd, err := os.Open(i.group)
	if err != nil {
		return err
	}
	defer fd.Close()
	if c.before != nil {
		if i.server, err = start(append(prefix, c.before(i)...), w.env(i), nil, int(fd.Fd())); err != nil {
			return err
		}
		if !within(20*time.Second, func() bool { return c.up(i) }) {
			return fmt.Errorf("it does not get ready")
		}
		if !living(i.server) {
			i.server = 0 // it made one that stays
		}
	}
	r, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	if i.client, err = start(append(prefix, c.client(i)...), w.env(i), out, int(fd.Fd())); err != nil {
		return err
	}
	out.Close()
	fresh := func() (list []process) {
		for _, p := range processes() {
			if !slices.ContainsFunc(before, func(q process) bool { return q.pid == p.pid }) {
				list = append(list, p)
			}
		}
		return list
	}
	if i.number%2 == 0 || k.few {
		r.SetReadDeadline(time.Now().Add(20 * time.Second))
		if c.silent {
			if !within(20*time.Second, func() bool {
				return slices.ContainsFunc(fresh(), func(p process) bool { return p.name == "sleep" })
			}) {
				return fmt.Errorf("nothing runs")
			}
		} else if n, err := r.Read(make([]byte, 1)); n == 0 {
			return fmt.Errorf("nothing runs: %w", err)
		}
		time.Sleep(time.Duration(random.IntN(5000)) * time.Microsecond)
	} else {
		time.Sleep(time.Duration(random.Int64N(int64(c.takes) + 1)))
	}
	// The first process of the outermost pid namespace; without one, the child of the
	// client, or of its server.
	list := fresh()
	depth := 0
	for _, p := range list {
		i.all = append(i.all, p.pid)
		if n := len(p.pids); n > 1 && p.pids[n-1] == 1 && (depth == 0 || n < depth) && (c.before == nil || p.parent != i.client) {
			depth, i.init, i.supervisor = n, p.pid, p.parent
		}
	}
	if i.init == 0 {
		i.supervisor = i.client
		if i.server != 0 {
			i.supervisor = i.server
		}
		for _, p := range list {
			if p.parent == i.supervisor {
				i.init = p.pid
				break
			}
		}
	}
	if i.supervisor <= 1 {
		i.supervisor = i.client
	}
	return nil
}

// enter joins a cgroup and becomes another program.
func enter(group string, argv []string) {
	if err := write(group+"/cgroup.procs", "0"); err != nil {
		fatal(err)
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		fatal(err)
	}
	fatal(syscall.Exec(path, argv, os.Environ()))
}

// hog eats memory. Its group has a limit.
func hog() {
	for range 1024 {
		// Not populated by the call: a call that cannot have memory fails, and only a
		// process that touches it has others killed.
		b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			break
		}
		for at := 0; at < len(b); at += 4096 {
			b[at] = 1
		}
	}
	os.Exit(0)
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "faults:", err)
	os.Exit(1)
}

func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func within(d time.Duration, done func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(2 * time.Millisecond) {
		if done() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func glob(pattern string) []string {
	list, _ := filepath.Glob(pattern)
	return list
}
