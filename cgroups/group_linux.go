package cgroups

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// patience bounds how long Kill and Remove wait for processes to be gone.
const patience = 2 * time.Second

// A Group is one directory in each hierarchy that a run needs. Its methods are
// not for concurrent use, but for Kill, which may be called while others run.
type Group struct {
	name   string
	memory int64  // limit, bytes
	pids   int64  // limit
	theirs Limits // limits that are the caller's own groups', which are tighter than those asked for
	slots  []slot

	subs []*Group // that Sub made and that are still there

	// closed is 0 until Kill lets nothing fork any more, and then one more than the
	// forks that had been refused before.
	closed atomic.Uint64
}

type slot struct {
	fd     int // O_PATH, of the parent
	made   bool
	lock   int         // the directory, with flock(2): its owner lives; 0 in groups within
	handed Controllers // that groups within have too
	ParentSetup
}

// Prepare decides where the group goes, makes the directory above it where this
// is the first run, and opens that. It makes no group yet.
//
// A *MissingError says that some of what the resources ask for cannot be had;
// the group that comes with it is good for the rest. With any other error the
// group is nil; a *LimitError says that the resources are invalid.
func Prepare(l Layout, r *specs.LinuxResources) (*Group, error) {
	var random [8]byte
	if _, err := unix.Getrandom(random[:], 0); err != nil {
		return nil, fmt.Errorf("cgroups: getrandom: %w", err)
	}
	name := groupName(time.Now(), os.Getpid(), binary.NativeEndian.Uint64(random[:]))
	limits, err := LimitsOf(r)
	if err != nil {
		return nil, err
	}
	setup := plan(l, limits, name)
	g := &Group{name: name, memory: setup.Limits.Memory, pids: setup.Limits.Pids,
		slots: make([]slot, 0, len(setup.Parents))}
	if setup.Limits.Memory != limits.Memory {
		g.theirs.Memory = setup.Limits.Memory
	}
	if setup.Limits.Pids != limits.Pids {
		g.theirs.Pids = setup.Limits.Pids
	}
	missing := setup.Missing
	for _, p := range setup.Parents {
		fd, err := openParent(&p)
		if err != nil {
			missing = append(missing, each(p.Controllers, err.Error(), "see sbxrun doctor")...)
			continue
		}
		g.slots = append(g.slots, slot{fd: fd, ParentSetup: p})
	}
	if missing != nil {
		return g, &MissingError{missing}
	}
	return g, nil
}

// openParent takes a parent's steps and opens it.
func openParent(p *ParentSetup) (int, error) {
	for _, s := range p.Steps {
		var err error
		switch s.Kind {
		case Mkdir:
			if err = unix.Mkdir(s.Path, 0o755); err == unix.EEXIST {
				err = nil // another first run was faster
			}
			if err != nil {
				err = fmt.Errorf("mkdir %s: %w", s.Path, err)
			}
		case WriteFile:
			if err = writeAt(unix.AT_FDCWD, s.Path, s.Value); err != nil {
				err = fmt.Errorf("write %s to %s: %w", s.Value, s.Path, err)
			}
		}
		if err != nil {
			return -1, err
		}
	}
	fd, err := unix.Open(p.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", p.Path, err)
	}
	return fd, nil
}

// Name is the name of the group's directories.
func (g *Group) Name() string { return g.name }

// Controllers are those whose limits the group holds.
func (g *Group) Controllers() Controllers {
	var c Controllers
	for i := range g.slots {
		c |= g.slots[i].Controllers
	}
	return c & Limiting
}

// Parents lists where the group's directories are, or will be once Create was
// called, for the process that joins them and for one that removes them should
// the caller be killed: unlinkat(ParentFD, Name, AT_REMOVEDIR). The descriptors
// are the group's, valid until Close, and close-on-exec; the command must not
// get them.
func (g *Group) Parents() []Slot {
	out := make([]Slot, len(g.slots))
	for i := range g.slots {
		s := &g.slots[i]
		out[i] = Slot{ParentFD: s.fd, Name: s.Name, V2: s.V2}
	}
	return out
}

// Create makes the group and writes its limits. If it fails nothing is left of
// it. Nothing in the group exists yet, so the command must not join before.
func (g *Group) Create() error {
	for i := range g.slots {
		s := &g.slots[i]
		err := s.hold()
		if err == nil {
			err = s.limit()
		}
		if err != nil {
			return errors.Join(err, g.Remove())
		}
	}
	return nil
}

// hold makes the directory and locks it, for as long as this process lives or until
// Close: [Prune] removes what nobody holds. Nobody else may open it, and so lock it.
func (s *slot) hold() error {
	for range holdTries {
		if err := s.mkdir(heldMode); err != nil {
			return err
		}
		fd, err := unix.Openat(s.fd, s.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT {
			continue // removed, before it was held
		}
		if err != nil {
			return fmt.Errorf("cgroups: open %s/%s: %w", s.Path, s.Name, err)
		}
		for {
			if err = unix.Flock(fd, unix.LOCK_EX); err != unix.EINTR {
				break
			}
		}
		if err == nil {
			// Who removed it meanwhile had it locked.
			err = unix.Faccessat(fd, "cgroup.procs", unix.F_OK, 0)
		}
		if err == nil {
			s.lock = fd
			return nil
		}
		unix.Close(fd)
		if err != unix.ENOENT {
			return fmt.Errorf("cgroups: lock %s/%s: %w", s.Path, s.Name, err)
		}
	}
	return fmt.Errorf("cgroups: %s/%s is removed as often as it is made", s.Path, s.Name)
}

// heldMode is the mode of a group that is locked while its owner lives.
const heldMode = 0o700

// holdTries bounds how often a group is made that somebody removes.
const holdTries = 100

// create makes a directory within a group.
func (s *slot) create() error {
	if err := s.mkdir(0o755); err != nil {
		return err
	}
	return s.limit()
}

func (s *slot) mkdir(mode uint32) error {
	// An existing directory is never taken over: whoever made it set its limits.
	if err := unix.Mkdirat(s.fd, s.Name, mode); err != nil {
		return fmt.Errorf("cgroups: mkdir %s/%s: %w", s.Path, s.Name, err)
	}
	s.made = true
	return nil
}

func (s *slot) limit() error {
	for _, w := range s.Writes {
		err := writeAt(s.fd, s.Name+"/"+w.File, w.Value)
		switch {
		case err == nil:
		case w.Refused == SkipAbsent && err == unix.ENOENT:
			err = nil
		case w.Refused == SwappinessInstead && err == unix.ENOENT:
			err = writeAt(s.fd, s.Name+"/memory.swappiness", "0")
		case w.Refused == TighterAbove && err == unix.EINVAL:
			err = nil
		}
		if err != nil {
			return fmt.Errorf("cgroups: write %s to %s/%s/%s: %w", w.Value, s.Path, s.Name, w.File, err)
		}
	}
	return nil
}

// writeAt writes an existing file in one piece.
func writeAt(dirfd int, name, value string) error {
	fd, err := unix.Openat(dirfd, name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	// The longest value is two decimal numbers.
	var buf [64]byte
	b := append(buf[:0], value...)
	for {
		// EINTR: mem_cgroup_resize_max (v1) gives up when any signal is
		// pending, and Go's scheduler sends SIGURG.
		if _, err = unix.Write(fd, b); err != unix.EINTR {
			break
		}
	}
	unix.Close(fd)
	return err
}

// Stats reads what the group counted. It costs about 10 µs for each of three to
// six files, so a caller that needs no usage need not call it after a command
// that succeeded. Call it before Remove.
func (g *Group) Stats() (Stats, error) { return g.stats(true) }

// Counts is Stats with what a verdict rests on only: kills for memory, and forks
// that were refused. It reads two files at most.
func (g *Group) Counts() (Stats, error) { return g.stats(false) }

func (g *Group) stats(usage bool) (Stats, error) {
	var (
		st  Stats
		err error
		buf [1024]byte
	)
	for i := range g.slots {
		s := &g.slots[i]
		read := func(file string, need need, counters ...counter) {
			if need == optional && !usage {
				return
			}
			n, e := readAt(s.fd, s.Name+"/"+file, buf[:])
			switch {
			case e == nil:
				scan(buf[:n], counters...)
			case e == unix.ENOENT && need == optional:
			case err == nil:
				err = fmt.Errorf("cgroups: read %s/%s/%s: %w", s.Path, s.Name, file, e)
			}
		}
		if s.Controllers.Has(Memory) {
			if s.V2 {
				read("memory.peak", optional, counter{"", &st.MemoryPeak})
				var reached uint64
				read("memory.events", required, counter{"oom", &reached}, counter{"oom_kill", &st.OOMKills})
				st.MemoryLimitReached = reached > 0
			} else {
				if usage {
					read("memory.max_usage_in_bytes", required, counter{"", &st.MemoryPeak})
				}
				read("memory.oom_control", required, counter{"oom_kill", &st.OOMKills})
				// v1 counts no such event, and what memsw refused is not in any
				// failcnt (seen on Linux 6.18). A page that did not fit in
				// means that the peak is the limit, rounded down to pages.
				st.MemoryLimitReached = usage && st.MemoryPeak+uint64(os.Getpagesize()) > uint64(g.memory)
				var sockets uint64
				read("memory.kmem.tcp.max_usage_in_bytes", optional, counter{"", &sockets})
				st.MemoryPeak += sockets
			}
		}
		if s.Controllers.Has(Pids) {
			read("pids.peak", optional, counter{"", &st.PidsPeak})
			read("pids.events", required, counter{"max", &st.PidsDenied})
			if c := g.closed.Load(); c > 0 {
				st.PidsDenied = min(st.PidsDenied, c-1)
			}
		}
		var used, user, system, throttled uint64
		switch {
		case !usage:
		case s.V2:
			// The times are in every group's cpu.stat, the rest where cpu is on.
			read("cpu.stat", required, counter{"usage_usec", &used}, counter{"user_usec", &user},
				counter{"system_usec", &system},
				counter{"nr_periods", &st.Periods}, counter{"nr_throttled", &st.ThrottledPeriods},
				counter{"throttled_usec", &throttled})
			st.CPU, st.CPUUser, st.CPUSystem = microseconds(used), microseconds(user), microseconds(system)
			st.Throttled = microseconds(throttled)
		case s.Controllers.Has(CPU):
			read("cpu.stat", required, counter{"nr_periods", &st.Periods}, counter{"nr_throttled", &st.ThrottledPeriods},
				counter{"throttled_time", &throttled})
			read("cpuacct.usage", optional, counter{"", &used})
			if used != 0 {
				read("cpuacct.usage_user", optional, counter{"", &user})
				read("cpuacct.usage_sys", optional, counter{"", &system})
			}
			st.CPU, st.CPUUser, st.CPUSystem = time.Duration(used), time.Duration(user), time.Duration(system)
			st.Throttled = time.Duration(throttled)
		}
	}
	if usage && st.OOMKills > 0 {
		switch {
		case !st.MemoryLimitReached:
			if st.OOMBy = g.above(Memory); st.OOMBy == "" {
				st.OOMBy = "the host"
			}
		case g.theirs.Memory != 0:
			st.OOMBy = fmt.Sprintf("the caller's own cgroup, whose limit of %d bytes is smaller than what was asked for",
				g.theirs.Memory)
		}
	}
	if usage && st.PidsDenied > 0 {
		st.PidsBy = g.PidsBy(st.PidsPeak)
	}
	return st, err
}

// PidsBy says whose limit refused a process to the group, or to one within it without a
// limit of its own, which has had so many: "" if it was what the policy asked for.
func (g *Group) PidsBy(peak uint64) string {
	switch {
	case peak > 0 && peak < uint64(g.pids):
		// Until Linux 6.11, and on v1, a fork is counted in the group that it was
		// refused to, whichever group's limit it was; see pids_event in
		// kernel/cgroup/pids.c.
		return g.above(Pids)
	case g.theirs.Pids != 0:
		return fmt.Sprintf("the caller's own cgroup, whose limit of %d is smaller than what was asked for", g.theirs.Pids)
	}
	return ""
}

// above is the nearest group above that has a limit and has reached it, "" for none.
func (g *Group) above(c Controllers) string {
	value := func(file, key string) (n uint64) {
		var buf [1024]byte
		if got, err := readAt(unix.AT_FDCWD, file, buf[:]); err == nil {
			scan(buf[:got], counter{key, &n})
		}
		return n
	}
	for i := range g.slots {
		s := &g.slots[i]
		if !s.Controllers.Has(c) {
			continue
		}
		// Above the hierarchy's root there are no such files.
		for dir := filepath.Clean(s.Path); dir != "/"; dir = filepath.Dir(dir) {
			var limit uint64
			var reached bool
			unit := "bytes"
			switch {
			case c == Pids:
				unit = "processes"
				limit = value(dir+"/pids.max", "") // "max" is no number
				reached = value(dir+"/pids.peak", "") >= limit
			case s.V2:
				limit = value(dir+"/memory.max", "")
				reached = value(dir+"/memory.events.local", "oom") > 0 // Linux 5.2; what is below counts its own
			default:
				limit = value(dir+"/memory.limit_in_bytes", "")
				reached = value(dir+"/memory.max_usage_in_bytes", "")+uint64(os.Getpagesize()) > limit
			}
			if limit > 0 && reached {
				return fmt.Sprintf("the cgroup %s, which has a limit of %d %s", dir, limit, unit)
			}
		}
	}
	return ""
}

// Sockets returns what TCP and UDP sockets hold beside memory on v1, bytes, and how
// much they may. They may pass that: the kernel never denies a socket a few KiB. On
// v2 they are part of memory, and both are 0.
func (g *Group) Sockets() (used, limit int64) {
	for i := range g.slots {
		s := &g.slots[i]
		if s.V2 || !s.Controllers.Has(Memory) {
			continue
		}
		var buf [32]byte
		var n uint64
		if m, err := readAt(s.fd, s.Name+"/memory.kmem.tcp.usage_in_bytes", buf[:]); err == nil {
			scan(buf[:m], counter{"", &n})
			return int64(n), g.memory / socketShare
		}
	}
	return 0, 0
}

// need says whether every kernel that has the controller has a file. The files
// that a verdict rests on are required: a group that is gone must not read as
// one in which nothing happened.
type need bool

const (
	required need = true
	optional need = false
)

func microseconds(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }

// Kill sends SIGKILL to every process in the group, and on v1 goes on until
// none is left or its patience ends. It is for what outlives the sandbox's
// PID 1, which should be nothing: the end of a pid namespace kills all in it.
func (g *Group) Kill() error {
	var errs []error
	for i := range g.slots {
		s := &g.slots[i]
		if s.V2 {
			// Linux 5.14; at once, also against forks.
			err := writeAt(s.fd, s.Name+"/cgroup.kill", "1")
			if err == nil {
				continue
			}
			if err != unix.ENOENT {
				errs = append(errs, fmt.Errorf("cgroups: kill %s/%s: %w", s.Path, s.Name, err))
				continue
			}
		}
		if err := g.killAll(s); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// killAll kills by the list of processes, again and again: it may grow
// meanwhile.
func (g *Group) killAll(s *slot) error {
	deadline := time.Now().Add(patience)
	for round := 0; ; round++ {
		pids, err := s.processes()
		if err == unix.ENOENT || err == nil && len(pids) == 0 {
			return nil // gone or never made, or empty
		}
		if err != nil {
			return fmt.Errorf("cgroups: read %s/%s/cgroup.procs: %w", s.Path, s.Name, err)
		}
		if round == 1 && s.Controllers.Has(Pids) {
			// They fork faster than they are killed. No more forks then.
			if err := g.closeForks(s); err != nil {
				return err
			}
		}
		s.signalListed(pids, unix.SIGKILL)
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroups: kill %s/%s: %d processes remain: %w", s.Path, s.Name, len(pids), unix.EBUSY)
		}
		time.Sleep(time.Millisecond)
	}
}

// closeForks lets nothing in the group fork any more. What is refused from here on is
// not the limit's doing, and no part of PidsDenied.
func (g *Group) closeForks(s *slot) error {
	if st, err := g.Counts(); err == nil {
		g.closed.CompareAndSwap(0, st.PidsDenied+1)
	}
	if err := writeAt(s.fd, s.Name+"/pids.max", "0"); err != nil && err != unix.ENOENT {
		return fmt.Errorf("cgroups: write 0 to %s/%s/pids.max: %w", s.Path, s.Name, err)
	}
	return nil
}

// ForksClosed says that somebody else lets nothing fork in the group any more, as Kill
// does at the end, and what pids.events was before: forks that are refused since then
// were refused by no limit of the policy's.
func (g *Group) ForksClosed(events []byte) {
	var denied uint64
	scan(events, counter{"max", &denied})
	g.closed.CompareAndSwap(0, denied+1)
}

// signalListed signals processes without hitting one that got a dead one's number:
// what is listed both before and after its pidfd was opened is either what the
// pidfd stands for, or that has died and the signal goes nowhere.
func (s *slot) signalListed(pids []int, sig unix.Signal) {
	fds := make([]int, len(pids))
	for i, pid := range pids {
		fds[i] = -1
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			fds[i] = fd
		}
	}
	again, _ := s.processes()
	listed := make(map[int]bool, len(again))
	for _, pid := range again {
		listed[pid] = true
	}
	for i, pid := range pids {
		if fds[i] < 0 {
			continue
		}
		if listed[pid] {
			// ESRCH: dead by now. EPERM cannot be: the caller started it.
			_ = unix.PidfdSendSignal(fds[i], sig, nil, 0)
		}
		unix.Close(fds[i])
	}
}

// processes lists at most a few thousand processes of the group; a caller
// repeats until there are none. Processes outside of the caller's pid namespace
// are listed as 0 by the kernel, and left out.
func (s *slot) processes() ([]int, error) {
	fd, err := unix.Openat(s.fd, s.Name+"/cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var text []byte
	var buf [4096]byte
	for len(text) < 32<<10 {
		n, err := unix.Read(fd, buf[:])
		if err == unix.ENODEV {
			break // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		text = append(text, buf[:n]...)
	}
	var pids []int
	// Not a number that the bound above cut short: it would be another process.
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Remove removes the group, first killing what is still in it. The directory
// above it stays. What is gone already, because PID 1 removed it, is no error.
func (g *Group) Remove() error {
	var errs []error
	// What could not be removed is tried again when this is called again.
	g.subs = slices.DeleteFunc(g.subs, func(sub *Group) bool {
		err := sub.Remove()
		errs = append(errs, err)
		return err == nil
	})
	for i := range g.slots {
		s := &g.slots[i]
		if !s.made {
			continue
		}
		if err := s.remove(); err != nil {
			errs = append(errs, err)
			continue
		}
		s.made = false
	}
	return errors.Join(errs...)
}

func (s *slot) remove() error {
	var deadline time.Time
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Unlinkat(s.fd, s.Name, unix.AT_REMOVEDIR)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY {
			return fmt.Errorf("cgroups: rmdir %s/%s: %w", s.Path, s.Name, err)
		}
		// Processes: still there, or on their way out.
		switch now := time.Now(); {
		case deadline.IsZero():
			deadline = now.Add(patience)
			g := Group{slots: []slot{*s}}
			if err := g.Kill(); err != nil {
				return err
			}
		case now.After(deadline):
			return fmt.Errorf("cgroups: rmdir %s/%s: %w", s.Path, s.Name, err)
		}
		time.Sleep(wait)
	}
}

// Close closes the group's descriptors. It removes nothing.
func (g *Group) Close() {
	if sweepDue() {
		sweep(g.slots)
	}
	for i := range g.slots {
		s := &g.slots[i]
		if s.lock > 0 {
			unix.Close(s.lock)
		}
		unix.Close(s.fd)
	}
	g.slots = nil
}
