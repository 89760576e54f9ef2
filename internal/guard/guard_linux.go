package guard

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// Supported reports whether the kernel can hold calls back so that they are made
// exactly once (Linux 5.19).
func Supported() bool { return sys.CanNotify() }

// A Guard makes the calls of one command that a filter holds back.
type Guard struct {
	rules   *Rules
	grants  []Grant
	streams []Stream
	shared  *sync.Mutex
	lock    func() (func(), error)
	connect func(to netip.AddrPort, stream func() bool, who func() (pid int, command string))
	dial    func(to netip.AddrPort) (int, syscall.Errno)
	explain bool
	seen    func(Use, func() (int, string))
	refused func(Denial)
	ask     func(context.Context, Denial) Answer
	doubts  atomic.Int32  // calls that wait for its answer
	looks   atomic.Uint64 // at them
	hidden  []string
	sockets *Sockets
	copies  *Copies
	sock    [2]int // the command sends the listener over the second

	mu      sync.Mutex // guards what follows
	denials []Denial
	told    [3]int // how many those are, by their rooms
	untold  uint64 // that denials have no room for

	thread  *thread
	started bool
	done    chan struct{}
	tid     int
	stop    bool
}

// MaxDenials bounds what is remembered of a command that tries again and again: of what
// was refused, and apart from that of protected paths, so that no command has the list full
// before it tries those. maxLooks bounds look-ups that found nothing.
const (
	MaxDenials = 64
	maxLooks   = 192
)

// room is which part of the list a denial takes, and how much that holds.
func (d *Denial) room() (part, most int) {
	switch {
	case d.Rule != "":
		return 0, MaxDenials
	case d.Leads == "":
		return 1, MaxDenials
	}
	return 2, maxLooks
}

// New prepares a guard. Close gives up what it holds.
func New(cfg Config) (*Guard, error) {
	r := cfg.Rules
	var err error
	if r == nil {
		if r, err = NewRules(cfg.Patterns); err != nil {
			return nil, err
		}
	}
	g := &Guard{rules: r, grants: slices.Clone(cfg.Grants), streams: cfg.Streams, shared: cfg.Shared, lock: cfg.Lock,
		connect: cfg.Connect, dial: cfg.Dial, explain: cfg.Explain, seen: cfg.Seen, refused: cfg.Refused, ask: cfg.Ask,
		hidden: cfg.Hidden, sockets: cfg.Sockets, copies: cfg.Copies, done: make(chan struct{})}
	slices.SortStableFunc(g.grants, func(a, b Grant) int { return len(b.Path) - len(a.Path) })
	if g.thread, err = hire(); err != nil {
		return nil, err
	}
	if g.sock, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		g.thread.release()
		return nil, fmt.Errorf("guard: socketpair: %w", err)
	}
	return g, nil
}

// FD is the descriptor that the command's program sends on; it must be open where
// that runs.
func (g *Guard) FD() int { return g.sock[1] }

// Filter is the program that holds calls back for the guard, an array of struct
// sock_filter. What it does not name it allows.
func (g *Guard) Filter() string {
	return filter(g.Paths(), g.connect != nil || g.dial != nil, g.explain)
}

// Paths reports whether the guard makes calls that write by path, and refuses others.
func (g *Guard) Paths() bool { return len(g.rules.texts) > 0 || g.explain }

// Append appends the steps that put the calling process, and all that it starts,
// under the guard: they install the filter and send its listener out, with the
// root directory that paths are resolved below. fd is what FD is in that process.
// All stay open: closing all descriptors is a later step. The filter is
// [Guard.Filter], or one that was joined to it, which the later steps must pass.
//
// Preconditions of the program: no_new_privs is set.
func (g *Guard) Append(p *sys.Program, root sys.Reg, fd sys.Value, step sys.Step, filter string) {
	listener := p.NewReg()
	p.Call(listener, step, unix.SYS_SECCOMP, sys.Imm(unix.SECCOMP_SET_MODE_FILTER), sys.Imm(sys.NotifyFlags),
		p.Fprog(filter))
	body := []byte{'g'}
	oob := unix.UnixRights(0, 0)
	p.Store32(oob, unix.CmsgLen(0), listener.Value())
	p.Store32(oob, unix.CmsgLen(0)+4, root.Value())
	iov := &unix.Iovec{Base: &body[0]}
	iov.SetLen(len(body))
	hdr := &unix.Msghdr{Iov: iov, Control: &oob[0]}
	hdr.Iovlen = 1
	hdr.SetControllen(len(oob))
	p.Call(0, sys.Step{Op: "sendmsg", Object: "guard"}, unix.SYS_SENDMSG, fd, sys.Ptr(p, hdr), sys.Imm(unix.MSG_NOSIGNAL))
}

// Start begins to answer. It is called once the process that runs the program of
// Append has its own copy of FD. The guard ends by itself when nobody is left to
// answer; Close waits for that.
func (g *Guard) Start() {
	unix.Close(g.sock[1])
	g.sock[1] = -1
	g.begin()
}

// Early is for who calls Start only when the command was executed: it could have taken all
// threads by then, and where that is a call to be explained, the guard has to answer before.
func (g *Guard) Early() {
	g.thread.begin()
	if g.explain {
		g.begin()
	}
}

func (g *Guard) begin() {
	if !g.started {
		g.started = true
		g.thread.begin()
		g.thread.work <- g
	}
}

// Close ends the guard once nothing is left that it could answer, and returns
// what [Guard.Denials] does.
func (g *Guard) Close() (list []Denial, untold uint64) {
	if g.sock[1] >= 0 {
		unix.Close(g.sock[1])
	}
	if !g.started {
		unix.Close(g.sock[0])
		g.thread.release()
		return nil, 0
	}
	// Where the kernel does not tell that the last caller is gone, a signal
	// that the runtime has for such purposes does.
	wait := time.NewTimer(2 * time.Millisecond)
	defer wait.Stop()
	for {
		select {
		case <-g.done:
			return g.Denials()
		case <-wait.C:
			g.mu.Lock()
			g.stop = true
			if g.tid != 0 {
				unix.Shutdown(g.sock[0], unix.SHUT_RDWR)
				unix.Tgkill(unix.Getpid(), g.tid, unix.SIGURG)
			}
			g.mu.Unlock()
			wait.Reset(2 * time.Millisecond)
		}
	}
}

// Denials are what was refused so far: each call and path once, and no more than
// [MaxDenials]. Untold counts the others.
func (g *Guard) Denials() (list []Denial, untold uint64) {
	// Of those that wait for an answer some may just have ended: the second look from now
	// on begins later than this.
	late := time.Now().Add(time.Second)
	for looks := g.looks.Load() + 2; g.doubts.Load() > 0 && g.looks.Load() < looks && time.Now().Before(late); {
		time.Sleep(lookEvery / 4)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.denials), g.untold
}

func (g *Guard) stopped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stop
}

// deny notes a refusal. Who is asked who met it, if it is a new one.
func (g *Guard) deny(d Denial, who func() (pid int, command string)) {
	if g.refused != nil {
		d.Count = 1
		defer func() { g.refused(d) }()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.denials {
		if e := &g.denials[i]; e.Kind == d.Kind && e.Path == d.Path && e.Call == d.Call && e.Rule == d.Rule {
			e.Count++
			return
		}
	}
	part, most := d.room()
	if g.told[part] == most {
		g.untold++
		return
	}
	g.told[part]++
	d.Count = 1
	d.PID, d.Command = who()
	g.denials = append(g.denials, d)
}

// threads are those that wait for another guard. A thread that makes calls is
// confined for good, and fit for nothing else; but it must not end either. It may
// have cloned a second stage before it came here, which goes on with the thread's
// local storage (internal/sys), and that is freed with the thread.
var threads struct {
	mu   sync.Mutex
	made int
	idle []*thread
}

// A thread is confined before it takes work.
type thread struct {
	work  chan *Guard
	begun bool
}

// hire finds a confined thread for a guard. Once commands run they may have taken all
// threads that the system has for this user, and the runtime ends the process if it
// gets none: so that is found out first. The first one is begun by who has it, and a run
// makes its cgroup and has its second stage go on before.
func hire() (*thread, error) {
	threads.mu.Lock()
	defer threads.mu.Unlock()
	if n := len(threads.idle); n > 0 {
		t := threads.idle[n-1]
		threads.idle = threads.idle[:n-1]
		return t, nil
	}
	t := &thread{work: make(chan *Guard, 1)}
	if threads.made++; threads.made > 1 {
		if err := sys.CanThread(); err != nil {
			return nil, fmt.Errorf("guard: a thread: %w", err)
		}
		t.begin()
	}
	return t, nil
}

// begin makes the thread, once; only who hired it calls this.
func (t *thread) begin() {
	if t.begun {
		return
	}
	t.begun = true
	go func() {
		runtime.LockOSThread()
		w := &worker{}
		confined := w.confine()
		for g := range t.work {
			g.run(w, confined)
			t.release()
			close(g.done)
		}
	}()
}

func (t *thread) release() {
	threads.mu.Lock()
	defer threads.mu.Unlock()
	if !t.begun {
		threads.made-- // there is none
		return
	}
	threads.idle = append(threads.idle, t)
}

// run answers for one guard, on a confined thread. Without a listener that
// anybody holds, calls fail with ENOSYS.
func (g *Guard) run(w *worker, err error) {
	w.begin(g)
	g.mu.Lock()
	g.tid = unix.Gettid()
	g.mu.Unlock()
	// Where a container's filter keeps the thread from being confined, connections
	// alone can be made: nothing of that goes by the thread's own rights.
	if err == nil || len(g.rules.texts) == 0 && !g.explain {
		err = w.accept(g.sock[0])
	}
	if err == nil {
		w.serve()
	}
	w.end()
	g.mu.Lock()
	g.tid = 0
	unix.Close(g.sock[0])
	g.mu.Unlock()
}

// begin forgets what was learned of another sandbox.
func (w *worker) begin(g *Guard) {
	w.g, w.root, w.l.FD, w.event = g, -1, -1, -1
	w.first, w.masks, w.mounts, w.ties, w.trees, w.passes = unknown, false, nil, nil, nil, nil
	w.given = nil
	w.begins, w.known, w.pace, w.tight = [len(w.begins)]begin{}, -1, pace{}, false
}

// confine takes from the thread what the command does not have.
func (w *worker) confine() error {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	var err error
	if w.proc, err = unix.Open("/proc", flags, 0); err != nil {
		return err
	}
	if w.self, err = unix.Open("/proc/self/fd", flags, 0); err != nil {
		return err
	}
	// A umask and a working directory of its own.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	unix.Umask(0)
	w.mask = 0
	if unix.Geteuid() == 0 {
		// The command has none, or those that could not be left; see native.
		if err := sys.SetThreadGroups(nil); err != nil && err != unix.EPERM {
			return err
		}
	}
	none := &[2]unix.CapUserData{}
	hdr := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capset(hdr, &none[0])
}

// accept receives the listener and the root directory.
func (w *worker) accept(sock int) error {
	oob := make([]byte, unix.CmsgSpace(8))
	var body [2]byte
	for {
		n, oobn, flags, _, err := unix.Recvmsg(sock, body[:], oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EINTR:
			if w.g.stopped() {
				return err
			}
			continue
		case err != nil:
			return err
		case n != 1 || flags&unix.MSG_CTRUNC != 0:
			// The command did not come to be; or this process has room for one descriptor
			// alone. Nobody would answer at that one: it must not stay open.
			closeRights(oob[:oobn])
			return unix.EPIPE
		}
		fds := rights(oob[:oobn])
		if len(fds) != 2 {
			closeRights(oob[:oobn])
			return unix.EPROTO
		}
		w.l.FD, w.root = fds[0], fds[1]
		w.l.Synchronous()
		return nil
	}
}

// rights are the descriptors of a message.
func rights(oob []byte) (fds []int) {
	msgs, _ := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		more, _ := unix.ParseUnixRights(&msgs[i])
		fds = append(fds, more...)
	}
	return fds
}

func closeRights(oob []byte) {
	for _, fd := range rights(oob) {
		unix.Close(fd)
	}
}

// end closes what was the sandbox's.
func (w *worker) end() {
	w.forget()
	w.l.Far()
	for _, fd := range []int{w.l.FD, w.root} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	for _, b := range w.begins {
		if b.open {
			closeFD(b.fd)
		}
	}
}

// A worker is the state of the thread. Its buffers are where calls' paths are
// copied to, once; all of it is on the heap and does not move.
type worker struct {
	g *Guard
	l sys.Listener
	n sys.Notification

	root int // the sandbox's
	proc int // the host's /proc
	self int // /proc/self/fd

	mask  uint32 // the thread's umask now
	first uint32 // with which the sandbox began
	masks bool   // some process has another

	path    [2][pathMax + 1]byte // the call's paths, NUL-terminated
	name    [2][pathMax + 1]byte // last names, NUL-terminated
	scrap   [pathMax + 1]byte    // for paths to the kernel
	canon   [2][2 * pathMax]byte // names of directories and objects
	link    [pathMax + 1]byte
	num     [64]byte
	local   [2]unix.Iovec
	remote  [2]unix.RemoteIovec
	stat    unix.Stat_t
	statx   unix.Statx_t
	mounts  map[int]*mount  // the sandbox's, by id; read when first asked for
	ties    map[File]tie    // what leads to mount points, and mount points as another mount shows them
	passes  map[string]pass // which of the host's mounts are looked into; read when first asked for
	trees   []string        // directories of linked worktrees that were made, the last first
	how     unix.OpenHow
	value   []byte
	held    held
	unlock  func()  // what exclude holds, nil for nothing
	told    bool    // the refusal of this call was noted
	doubt   *Denial // of this call, if it is to be asked about
	doubts  []*doubt
	doubted int             // looks at them
	settles time.Time       // when the next is
	permits []permit        // of this call
	opens   bool            // the call opens a file for reading
	gives   *Denial         // of which this call is to get the file
	given   map[string]bool // files that each such call gets
	made    bool            // the call was made, and what it changed is noted
	whole   bool            // and nothing is left of what the file held
	lacks   bool            // what the call changes is not there, and is looked for on the host
	entry   bool            // and it is a name in a directory

	begins [4]begin // where relative paths began last
	newest int      // of those
	known  int      // the directory that statx is about, -1 for another
	pace   pace     // how files are given to callers
	tight  bool     // some caller had no descriptor left

	waiting []*waiter // opens that wait for the other end
	event   int       // an eventfd for their threads, -1 for none yet
	looks   time.Time // when the next of them are looked at
	asked   int       // which of them was asked for signals
	next    int       // and which was tried again
}

const pathMax = 4096 // PATH_MAX, with the NUL; see limits.h

// serve answers until nobody is left to ask.
func (w *worker) serve() {
	polls := []unix.PollFd{{Fd: int32(w.l.FD), Events: unix.POLLIN}, {Events: unix.POLLIN}}
	poll := polls[:1]
	for {
		if timeout := w.attend(); timeout >= 0 || w.g.shared != nil {
			polls[1].Fd = int32(w.event)
			n, err := unix.Poll(polls, timeout)
			if n == 0 || err != nil {
				if w.g.stopped() {
					return
				}
				continue
			}
			switch {
			case poll[0].Revents == 0:
				continue
			case poll[0].Revents&unix.POLLIN == 0:
				return
			}
		}
		switch err := w.l.Receive(&w.n); err {
		case nil:
			if w.g.shared != nil {
				w.g.shared.Lock()
			}
			rest := w.answer()
			if w.g.shared != nil {
				w.g.shared.Unlock()
			}
			for ; rest > 0 && !w.g.stopped(); rest -= pause {
				time.Sleep(min(rest, pause))
			}
		case unix.EINTR:
			if w.g.stopped() {
				return
			}
		case unix.ENOENT:
			// The caller is gone, or all of them.
			n, _ := unix.Poll(poll, 0)
			if n > 0 && poll[0].Revents&unix.POLLIN == 0 {
				return
			}
		default:
			return
		}
	}
}

// answer makes one call and replies. It returns how long to rest. If a file of an overlay
// was copied as far as there was room, it can be again: for that, a tenth of a processor.
func (w *worker) answer() (rest time.Duration) {
	id := w.n.ID
	w.known = -1
	begin := time.Now()
	if begin.Sub(w.pace.last) > pause {
		w.l.Far() // others may be on that processor by now
	}
	w.told, w.doubt, w.gives = false, nil, nil
	res, errno := w.handle()
	if w.doubt != nil && w.suspend(errno) {
		errno = waits
	}
	if errno == unix.EROFS || errno == unix.EACCES || errno == unix.EPERM {
		w.tell(errno)
	} else if errno == unix.ENOENT && w.g.explain {
		w.lacks = true
		w.tell(unix.EROFS)
		w.lacks = false
	} else if errno == 0 && w.g.seen != nil {
		w.made = true
		w.tell(unix.EROFS)
		w.made = false
	}
	took := time.Since(begin)
	if w.unlock != nil {
		w.unlock()
		w.unlock = nil
	}
	switch {
	case errno == waits:
	case errno == goOn:
		w.l.Continue(id)
	default:
		w.l.Reply(id, res, errno)
	}
	if errno == unix.ENOSPC {
		return 9 * took
	}
	return 0
}

// pause is how long a guard rests before it looks whether it is to stop.
const pause = 10 * time.Millisecond

// Errors that no system call has, between a handler and answer.
const (
	waits syscall.Errno = 4096 + iota // answered later
	goOn                              // the kernel may make the call
)

// handle makes the call in n.
func (w *worker) handle() (int64, syscall.Errno) {
	a := &w.n.Args
	at := func(i int) int { return int(int32(a[i])) }
	const cwd = unix.AT_FDCWD
	if w.g.explain && w.observe() {
		switch {
		case w.gives == nil:
			return 0, goOn
		case w.n.NR == unix.SYS_OPENAT:
			return w.show(uint32(a[2]))
		}
		return w.show(uint32(a[1]))
	}
	switch int(w.n.NR) {
	case unix.SYS_OPENAT:
		return w.open("openat", at(0), a[1], uint32(a[2]), uint32(a[3]))
	case sysOpen:
		return w.open("open", cwd, a[0], uint32(a[1]), uint32(a[2]))
	case sysCreat:
		return w.open("creat", cwd, a[0], unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, uint32(a[1]))
	case unix.SYS_MKDIRAT:
		return w.make("mkdirat", at(0), a[1], unix.S_IFDIR|uint32(a[2])&^unix.S_IFMT, 0, 0)
	case sysMkdir:
		return w.make("mkdir", cwd, a[0], unix.S_IFDIR|uint32(a[1])&^unix.S_IFMT, 0, 0)
	case unix.SYS_MKNODAT:
		return w.mknod("mknodat", at(0), a[1], uint32(a[2]))
	case sysMknod:
		return w.mknod("mknod", cwd, a[0], uint32(a[1]))
	case unix.SYS_SYMLINKAT:
		return w.make("symlinkat", at(1), a[2], unix.S_IFLNK, a[0], 1)
	case sysSymlink:
		return w.make("symlink", cwd, a[1], unix.S_IFLNK, a[0], 1)
	case unix.SYS_UNLINKAT:
		return w.remove("unlinkat", at(0), a[1], uint32(a[2]))
	case sysUnlink:
		return w.remove("unlink", cwd, a[0], 0)
	case sysRmdir:
		return w.remove("rmdir", cwd, a[0], unix.AT_REMOVEDIR)
	case unix.SYS_RENAMEAT2:
		return w.rename("renameat2", at(0), a[1], at(2), a[3], uint32(a[4]))
	case sysRenameat:
		return w.rename("renameat", at(0), a[1], at(2), a[3], 0)
	case sysRename:
		return w.rename("rename", cwd, a[0], cwd, a[1], 0)
	case unix.SYS_LINKAT:
		return w.linkat("linkat", at(0), a[1], at(2), a[3], uint32(a[4]))
	case sysLink:
		return w.linkat("link", cwd, a[0], cwd, a[1], 0)
	case unix.SYS_TRUNCATE:
		return w.truncate(a[0], int64(a[1]))
	case unix.SYS_FCHMODAT:
		return w.chmod("fchmodat", at(0), a[1], uint32(a[2]), 0)
	case sysChmod:
		return w.chmod("chmod", cwd, a[0], uint32(a[1]), 0)
	case unix.SYS_FCHMODAT2:
		return w.chmod("fchmodat2", at(0), a[1], uint32(a[2]), uint32(a[3]))
	case unix.SYS_FCHMOD:
		return w.fchmod(at(0), uint32(a[1]))
	case unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR:
		return w.setxattr(int(w.n.NR))
	case unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR:
		return w.removexattr(int(w.n.NR))
	case unix.SYS_FCHOWNAT:
		return w.chown("fchownat", at(0), a[1], uint32(a[2]), uint32(a[3]), uint32(a[4]))
	case sysChown:
		return w.chown("chown", cwd, a[0], uint32(a[1]), uint32(a[2]), 0)
	case sysLchown:
		return w.chown("lchown", cwd, a[0], uint32(a[1]), uint32(a[2]), unix.AT_SYMLINK_NOFOLLOW)
	case unix.SYS_FCHOWN:
		fd, errno := w.opened(at(0))
		return w.setOwner("fchown", fd, errno, uint32(a[1]), uint32(a[2]))
	case unix.SYS_CONNECT:
		if w.g.dial != nil {
			return w.dial(at(0), a[1], uint32(a[2]))
		}
		if to := w.address(a[1], uint32(a[2])); w.g.connect != nil && to.Port() != 0 {
			w.g.connect(to, func() bool { return w.stream(int(int32(a[0]))) }, w.asker)
		}
		return 0, goOn
	case unix.SYS_UMASK:
		w.learnUmask()
		w.masks = w.masks || uint32(a[0])&0o777 != w.first
		return 0, goOn
	}
	for _, c := range forbidden {
		if c.nr == uint32(w.n.NR) {
			w.tellCall(c.name)
			return 0, c.errno
		}
	}
	return 0, unix.ENOSYS
}

// dial makes the caller's connect(2).
func (w *worker) dial(fd int, addr uint64, size uint32) (int64, syscall.Errno) {
	to := w.internet(addr, size)
	if !to.IsValid() {
		return 0, unix.EACCES
	}
	flags, errno := w.socketFlags(fd)
	if errno != 0 {
		return 0, errno
	}
	s, errno := w.g.dial(to)
	if errno != 0 {
		return 0, errno
	}
	defer unix.Close(s)
	if flags&unix.O_NONBLOCK != 0 {
		unix.SetNonblock(s, true)
	}
	if err := w.l.Replace(w.n.ID, s, fd, uint32(flags)&unix.O_CLOEXEC); err != nil {
		return 0, unix.EACCES
	}
	return 0, 0
}

// socketFlags are the flags of a socket of the caller's, as open(2) has them; see
// "/proc/pid/fdinfo" in proc_pid_fdinfo(5).
func (w *worker) socketFlags(fd int) (int, syscall.Errno) {
	if fd < 0 {
		return 0, unix.EBADF
	}
	of := strconv.Itoa(int(w.n.PID))
	n, err := unix.Readlinkat(w.proc, of+"/fd/"+strconv.Itoa(fd), w.link[:])
	switch {
	case err == unix.ENOENT:
		return 0, unix.EBADF
	case err != nil:
		return 0, unix.EACCES
	case !bytes.HasPrefix(w.link[:n], []byte("socket:")):
		return 0, unix.ENOTSOCK
	}
	return w.flags(fd)
}

// flags are those of a descriptor of the caller's.
func (w *worker) flags(fd int) (int, syscall.Errno) {
	f, err := unix.Openat(w.proc, strconv.Itoa(int(w.n.PID))+"/fdinfo/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, unix.EACCES
	}
	defer unix.Close(f)
	n, err := unix.Read(f, w.scrap[:])
	if err != nil || !w.l.Valid(w.n.ID) {
		return 0, unix.EACCES
	}
	flags, errno := numbers(w.scrap[:n], "flags:", 8)
	if errno != 0 {
		return 0, unix.EACCES
	}
	return flags[0], 0
}

// address is an Internet address of the caller's, the zero one if it is none or is
// loopback.
func (w *worker) address(addr uint64, size uint32) netip.AddrPort {
	to := w.internet(addr, size)
	if ip := to.Addr(); ip.IsLoopback() || ip.IsUnspecified() {
		return netip.AddrPort{}
	}
	return to
}

// internet is a socket address of the caller's, the zero one if that is no Internet
// address.
func (w *worker) internet(addr uint64, size uint32) (to netip.AddrPort) {
	b := w.num[:min(size, unix.SizeofSockaddrInet6)]
	if len(b) < unix.SizeofSockaddrInet4 {
		return to
	}
	if n, errno := w.read(addr, b); errno != 0 || n < len(b) {
		return to
	}
	var ip netip.Addr
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		ip, _ = netip.AddrFromSlice(b[4:8])
	case unix.AF_INET6:
		if len(b) < unix.SizeofSockaddrInet6-4 { // without the scope; see ipv6(7)
			return to
		}
		ip, _ = netip.AddrFromSlice(b[8:24])
	default:
		return to
	}
	return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(b[2:]))
}

// stream reports whether a descriptor of the caller's is a TCP socket.
func (w *worker) stream(fd int) bool {
	tgid, errno := w.status("Tgid:", 10)
	if errno != 0 {
		return false
	}
	process, err := unix.PidfdOpen(tgid[0], 0)
	if err != nil {
		return false
	}
	defer unix.Close(process)
	s, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return false
	}
	defer unix.Close(s)
	proto, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && proto == unix.IPPROTO_TCP
}

// copyString copies a string of the caller's into buf, with its NUL.
func (w *worker) copyString(addr uint64, buf *[pathMax + 1]byte) (int, syscall.Errno) {
	const page, first = 4096, 256
	got := 0
	for got < pathMax {
		// Never past a page that may be the last: most paths are short and end
		// in the first piece.
		want := int(page - (addr+uint64(got))%page)
		if got == 0 {
			want = min(want, first)
		}
		want = min(want, pathMax-got)
		n, errno := w.read(addr+uint64(got), buf[got:got+want])
		if errno != 0 {
			return 0, errno
		}
		for i := got; i < got+n; i++ {
			if buf[i] == 0 {
				return i, 0
			}
		}
		got += n
		if n < want {
			return 0, unix.EFAULT
		}
	}
	return 0, unix.ENAMETOOLONG
}

// read copies the caller's memory.
//
//	ssize_t process_vm_readv(pid_t pid, const struct iovec *local_iov, unsigned long liovcnt,
//	                         const struct iovec *remote_iov, unsigned long riovcnt, unsigned long flags);
func (w *worker) read(addr uint64, b []byte) (int, syscall.Errno) {
	if len(b) == 0 {
		return 0, 0
	}
	w.local[0].Base = &b[0]
	w.local[0].SetLen(len(b))
	w.remote[0] = unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
	n, e := sys.Raw(unix.SYS_PROCESS_VM_READV, uintptr(w.n.PID), sys.Addr(&w.local[0]), 1, sys.Addr(&w.remote[0]), 1, 0)
	switch syscall.Errno(e) {
	case 0:
		return int(n), 0
	case unix.EFAULT:
		return 0, unix.EFAULT
	case unix.EPERM:
		return 0, unix.EACCES // a program that may be executed but not read
	}
	return 0, unix.ESRCH
}

// ofPID is the path of an entry of the caller's directory in /proc, with the number n if
// that is one.
func (w *worker) ofPID(entry string, n int) []byte {
	b := append(append(appendInt(w.num[:0], int(w.n.PID)), '/'), entry...)
	if n >= 0 {
		b = appendInt(b, n)
	}
	return b
}

// ofCaller opens an entry of the caller's directory in /proc, "cwd" or "fd/7",
// as a place. ESRCH, which nobody gets, is for a caller that is gone: by then its number
// may be another process's, of the host.
func (w *worker) ofCaller(entry string, n int) (int, syscall.Errno) {
	b := append(w.ofPID(entry, n), 0)
	fd, e := sys.Raw(unix.SYS_OPENAT, uintptr(w.proc), sys.Addr(&b[0]), unix.O_PATH|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return -1, syscall.Errno(e)
	}
	if !w.l.Valid(w.n.ID) {
		closeFD(int(fd))
		return -1, unix.ESRCH
	}
	return int(fd), 0
}

// base opens the directory that relative paths of the caller begin at.
func (w *worker) base(dirfd int) (int, syscall.Errno) {
	if dirfd == unix.AT_FDCWD {
		return w.ofCaller("cwd", -1)
	}
	return w.file(dirfd)
}

// A begin is a directory that relative paths of a caller's begin at. Most calls of a
// program have the one of the call before, and to see that it is the same takes less than
// to open it.
type begin struct {
	open  bool
	fd    int
	id    File
	mount uint64
}

// from is base for a path, by a descriptor that leave gives back. The one of the call
// before stays open: a call can have two paths.
func (w *worker) from(dirfd int) (int, syscall.Errno) {
	entry, n := "fd/", dirfd
	switch {
	case dirfd == unix.AT_FDCWD:
		entry, n = "cwd", -1
	case dirfd < 0:
		return -1, unix.EBADF
	}
	b := append(w.ofPID(entry, n), "/."...)
	if w.identify(w.proc, string(b)) == 0 {
		for i, b := range w.begins {
			if b.open && b.id == w.same() && b.mount == w.statx.Mnt_id {
				if !w.l.Valid(w.n.ID) {
					return -1, unix.ESRCH
				}
				w.newest, w.known = i, b.fd
				return b.fd, 0
			}
		}
	}
	fd, errno := w.base(dirfd)
	if errno == 0 && w.identify(fd, ".") == 0 {
		if local(fd) {
			w.newest = (w.newest + 1) % len(w.begins)
			if old := w.begins[w.newest]; old.open {
				closeFD(old.fd)
			}
			w.begins[w.newest] = begin{true, fd, w.same(), w.statx.Mnt_id}
		}
		w.known = fd
	}
	return fd, errno
}

// leave gives back what from opened.
func (w *worker) leave(fd int) {
	w.known = -1
	if !w.keeps(fd) {
		closeFD(fd)
	}
}

func (w *worker) keeps(fd int) bool {
	for _, b := range w.begins {
		if b.open && b.fd == fd {
			return true
		}
	}
	return false
}

// local reports whether a directory is on a file system that numbers its files itself, so
// that no two have the same device and inode: one that asks a server may not.
func local(fd int) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return false
	}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC:
		return true
	}
	return false
}

// readProc reads a file of the caller's directory in /proc, of any length.
func (w *worker) readProc(file string) ([]byte, error) {
	b := append(append(appendInt(w.num[:0], int(w.n.PID)), file...), 0)
	fd, e := sys.Raw(unix.SYS_OPENAT, uintptr(w.proc), sys.Addr(&b[0]), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return nil, syscall.Errno(e)
	}
	f := os.NewFile(fd, file)
	defer f.Close()
	return io.ReadAll(f)
}

// file opens what a descriptor of the caller is open on, as a place.
func (w *worker) file(fd int) (int, syscall.Errno) {
	if fd < 0 {
		return -1, unix.EBADF
	}
	place, errno := w.ofCaller("fd/", fd)
	if errno == unix.ENOENT {
		errno = unix.EBADF
	}
	return place, errno
}

// opened is file for a call that wants a file and not only its place; see O_PATH in
// open(2).
func (w *worker) opened(fd int) (int, syscall.Errno) {
	place, errno := w.file(fd)
	if errno != 0 {
		return -1, errno
	}
	// The link's mode is what the descriptor is open for: nothing, or ioctl(2) alone.
	b := append(appendInt(append(appendInt(w.num[:0], int(w.n.PID)), "/fd/"...), fd), 0)
	_, e := sys.Raw(sysFstatat, uintptr(w.proc), sys.Addr(&b[0]), sys.Addr(&w.stat), unix.AT_SYMLINK_NOFOLLOW, 0, 0)
	if errno = syscall.Errno(e); errno == 0 && w.stat.Mode&0o700 == 0 {
		var flags int
		if flags, errno = w.flags(fd); flags&unix.O_PATH != 0 {
			errno = unix.EBADF
		}
	}
	if errno != 0 {
		closeFD(place)
		return -1, errno
	}
	return place, 0
}

// nameOf asks the kernel what an open file is called in the sandbox.
func (w *worker) nameOf(fd int, buf *[2 * pathMax]byte) ([]byte, syscall.Errno) {
	b := append(appendInt(w.num[:0], fd), 0)
	n, e := sys.Raw(unix.SYS_READLINKAT, uintptr(w.self), sys.Addr(&b[0]), sys.Addr(&buf[0]), pathMax, 0, 0)
	if e != 0 {
		return nil, syscall.Errno(e)
	}
	if n >= pathMax {
		return nil, unix.ENAMETOOLONG
	}
	return buf[:n], 0
}

// selfPath is "/proc/self/fd/N" for the kernel, by which an open place is named.
func (w *worker) selfPath(fd int) uintptr {
	b := append(append(appendInt(append(w.num[:0], "/proc/self/fd/"...), fd), 0), 0)
	return sys.Addr(&b[0])
}

// unknown is no umask.
const unknown = ^uint32(0)

// learnUmask finds out with which umask the sandbox began: what the first caller
// has that anything depends on, as nobody has changed it by then.
func (w *worker) learnUmask() {
	if w.first != unknown {
		return
	}
	m, errno := w.status("Umask:", 8)
	if errno != 0 {
		w.masks = true // asked for each time
		return
	}
	w.first = uint32(m[0])
}

// umask makes the thread's the caller's own.
func (w *worker) umask() syscall.Errno {
	w.learnUmask()
	want := w.first
	if w.masks {
		m, errno := w.status("Umask:", 8)
		if errno != 0 {
			return errno
		}
		want = uint32(m[0])
	}
	if want != w.mask {
		sys.Raw(unix.SYS_UMASK, uintptr(want), 0, 0, 0, 0, 0)
		w.mask = want
	}
	return 0
}

// status reads the numbers of a line of the caller's /proc/PID/status.
func (w *worker) status(key string, radix int) ([]int, syscall.Errno) {
	text, errno := about(w.proc, int(w.n.PID), "status", w.canon[1][:])
	if errno != 0 {
		return nil, errno
	}
	return numbers(text, key, radix)
}

// about reads a file of a process, as much of it as there is room for. Proc is the host's.
func about(proc, pid int, file string, room []byte) ([]byte, syscall.Errno) {
	fd, err := unix.Openat(proc, strconv.Itoa(pid)+"/"+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err.(syscall.Errno)
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, room)
	if err != nil || n <= 0 {
		return nil, unix.ESRCH
	}
	return room[:n], 0
}

func closeFD(fd int) {
	if fd >= 0 {
		sys.Raw(unix.SYS_CLOSE, uintptr(fd), 0, 0, 0, 0, 0)
	}
}
