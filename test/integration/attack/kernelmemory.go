//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// r14 has children take memory of the kernel that is in no process, of one kind
// (kind=), together up to mb MiB, and holds it for a moment. Each child stops at
// the first call that fails. It reports what they took by their own count, and how
// much less memory the host has. sleep= is how many milliseconds it waits first.
func r14(r *report) {
	time.Sleep(time.Duration(r.number("sleep", 0)) * time.Millisecond)
	procs := r.number("procs", 8)
	before := available()
	var ends []io.Closer
	var lines []*bufio.Reader
	for range procs {
		cmd := self("pin", "kind="+r.arg("kind"), fmt.Sprintf("kb=%d", r.number("mb", 64)<<10/procs))
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err1 != nil || err2 != nil || cmd.Start() != nil {
			r.got("stopped by", "fork")
			break
		}
		ends = append(ends, in)
		lines = append(lines, bufio.NewReader(out))
		defer cmd.Wait()
	}
	taken, stopped := 0, "nothing"
	for _, l := range lines {
		var kb int
		var why string
		if n, _ := fmt.Fscan(l, &kb, &why); n != 2 {
			why = "killed"
		}
		taken += kb
		if why != "ok" {
			stopped = why
		}
	}
	r.got("taken", fmt.Sprint(taken>>10))
	r.got("of the host", fmt.Sprint((before-available())>>10))
	r.got("stopped by", stopped)
	time.Sleep(time.Duration(r.number("hold", 0)) * time.Millisecond)
	for _, e := range ends {
		e.Close()
	}
}

// available is the host's memory that is available, KiB.
func available() int {
	b, _ := os.ReadFile("/proc/meminfo")
	n := 0
	if _, after, ok := strings.Cut(string(b), "MemAvailable:"); ok {
		fmt.Sscan(after, &n)
	}
	return n
}

// pin takes kb KiB of a kind, tells how much it got and what stopped it, and waits
// for the end of its standard input.
func pin(r *report) {
	take := pins[r.arg("kind")]
	want, got := r.number("kb", 0), 0
	var err error
	for nothing := 0; got < want && err == nil; {
		var n int
		if n, err = take(); n>>10 == 0 && err == nil {
			if nothing++; nothing == 50 {
				err = unix.ENOBUFS // it goes on, and gets nothing
			}
		}
		got += n >> 10
	}
	fmt.Println(got, errnoName(err))
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// pins take some memory of the kernel, and say how many bytes it is, about.
var pins = map[string]func() (int, error){
	"netlink": func() (int, error) {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
		if err != nil {
			return 0, err
		}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<30)
		ask := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofRtMsg)
		*(*unix.NlMsghdr)(unsafe.Pointer(&ask[0])) = unix.NlMsghdr{Len: uint32(len(ask)), Type: unix.RTM_GETADDR, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP}
		// Each answer takes some KiB until the buffer is full; then there is none.
		for range 300 {
			if err := unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				break
			}
		}
		return memoryOf(fd, 0), nil // SK_MEMINFO_RMEM_ALLOC
	},
	"udp": func() (int, error) {
		in, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return 0, err
		}
		unix.SetsockoptInt(in, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<30)
		if err := unix.Bind(in, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return 0, err
		}
		to, err := unix.Getsockname(in)
		if err != nil {
			return 0, err
		}
		out, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(out)
		for range 200 {
			if err := unix.Sendto(out, make([]byte, 32<<10), unix.MSG_DONTWAIT, to); err != nil {
				break
			}
		}
		return memoryOf(in, 0), nil
	},
	"tcp": func() (int, error) {
		if listener == nil {
			var err error
			if listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
				return 0, err
			}
		}
		c, err := net.DialTimeout("tcp4", listener.Addr().String(), 10*time.Second)
		if err != nil {
			return 0, err
		}
		other, err := listener.Accept()
		if err != nil {
			return 0, err
		}
		keepAny = append(keepAny, c, other)
		c.SetWriteDeadline(time.Now().Add(5 * time.Millisecond))
		n := 0
		for {
			m, err := c.Write(make([]byte, 1<<20))
			n += m
			if err != nil {
				return n, nil
			}
		}
	},
	"unix": func() (int, error) {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return 0, err
		}
		unix.SetsockoptInt(p[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<30)
		n := 0
		for {
			m, err := unix.SendmsgN(p[0], make([]byte, 64<<10), nil, nil, unix.MSG_DONTWAIT)
			if err != nil {
				return n, nil
			}
			n += m
		}
	},
	"pipe": func() (int, error) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_NONBLOCK); err != nil {
			return 0, err
		}
		unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 1<<20)
		n, _ := unix.Write(p[1], make([]byte, 1<<20))
		return max(n, 0), nil
	},
	"socket filter": func() (int, error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			return 0, err
		}
		return jitted, unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, longProgram())
	},
	"system call filter": func() (int, error) {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return 0, err
		}
		p := longProgram()
		p.Filter = &filterCode[0]
		_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(p)))
		if e != 0 {
			return 0, e
		}
		return jitted, nil
	},
	"key": func() (int, error) {
		_, err := unix.AddKey("user", fmt.Sprint(time.Now().UnixNano()), make([]byte, 8<<10), unix.KEY_SPEC_PROCESS_KEYRING)
		return 8 << 10, err
	},
	"inotify": func() (int, error) {
		if watcher < 0 {
			var err error
			if watcher, err = unix.InotifyInit1(0); err != nil {
				return 0, err
			}
		}
		counter++
		name := fmt.Sprintf("/tmp/watch-%d-%d", os.Getpid(), counter)
		if err := unix.Mknod(name, unix.S_IFREG|0o600, 0); err != nil {
			return 0, err
		}
		_, err := unix.InotifyAddWatch(watcher, name, unix.IN_ALL_EVENTS)
		return 1 << 10, err
	},
	"epoll": func() (int, error) {
		// Each of 60 instances watches each of many descriptors.
		if len(epolls) == 0 {
			for range 60 {
				e, err := unix.EpollCreate1(0)
				if err != nil {
					return 0, err
				}
				epolls = append(epolls, e)
			}
		}
		fd, err := unix.Eventfd(0, 0)
		if err != nil {
			return 0, err
		}
		for _, e := range epolls {
			if err := unix.EpollCtl(e, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
				return 0, err
			}
		}
		return 60 * 256, nil
	},
	"page table": func() (int, error) {
		// One page of each 2 MiB has a table of its own, 4 KiB; all share the page
		// of zeroes.
		b, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err != nil {
			return 0, err
		}
		unix.Madvise(b, unix.MADV_NOHUGEPAGE)
		for i := 0; i < len(b); i += 2 << 20 {
			counter += int(b[i])
		}
		return 512 * 4 << 10, nil
	},
	"System V queue": func() (int, error) {
		id, _, e := unix.Syscall(unix.SYS_MSGGET, 0, 0o600, 0)
		if e != 0 {
			return 0, e
		}
		n := 0
		message := make([]byte, 8+8000)
		message[0] = 1
		for {
			if _, _, e := unix.Syscall6(unix.SYS_MSGSND, id, ptr(message), 8000, unix.IPC_NOWAIT, 0, 0); e != 0 {
				return n, nil
			}
			n += 8000
		}
	},
	"System V semaphore": func() (int, error) {
		_, _, e := unix.Syscall(unix.SYS_SEMGET, 0, 32000, 0o600)
		if e != 0 {
			return 0, e
		}
		return 32000 * 64, nil
	},
	"System V memory": func() (int, error) {
		id, _, e := unix.Syscall(unix.SYS_SHMGET, 0, 1<<20, 0o600)
		if e != 0 {
			return 0, e
		}
		b, err := unix.SysvShmAttach(int(id), 0, 0)
		if err != nil {
			return 0, err
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		return 1 << 20, unix.SysvShmDetach(b)
	},
	"POSIX queue": func() (int, error) {
		counter++
		attr := [8]int64{0, 10, 8192}
		fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, bytePtr(fmt.Sprintf("q%d-%d", os.Getpid(), counter)), unix.O_CREAT|unix.O_RDWR|unix.O_NONBLOCK, 0o600, uintptr(unsafe.Pointer(&attr)), 0, 0)
		if e != 0 {
			return 0, e
		}
		for range 10 {
			unix.Syscall6(unix.SYS_MQ_TIMEDSEND, fd, ptr(make([]byte, 8192)), 8192, 0, 0, 0)
		}
		return 80 << 10, nil
	},
	"timer": func() (int, error) {
		for range 16 {
			var id int32
			if _, _, e := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id))); e != 0 {
				return 0, e
			}
		}
		return 16 * 400, nil
	},
	"file lock": func() (int, error) {
		// The list of a file's locks is walked from its beginning.
		counter++
		fd, err := unix.MemfdCreate("locks", 0)
		if err != nil {
			return 0, err
		}
		for i := range 500 {
			if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 * i), Len: 1}); err != nil {
				return 0, err
			}
		}
		return 500 * 250, nil
	},
	"left lock": func() (int, error) {
		// A process that shares the descriptors takes them, and has ended.
		counter++
		fd, err := unix.MemfdCreate("locks", 0)
		if err != nil {
			return 0, err
		}
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_FILES|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		if pid == 0 {
			for i := range 500 {
				lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 * i), Len: 1}
				unix.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETLK, uintptr(unsafe.Pointer(&lock)))
			}
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		_, err = unix.Wait4(int(pid), nil, 0, nil)
		return 500 * 250, err
	},
	"netlink socket": func() (int, error) {
		_, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
		return 2 << 10, err // a slab of 2 KiB
	},
	"memfd": func() (int, error) { return filled(0, 1<<20) },
	"huge page": func() (int, error) {
		b, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB)
		if err != nil {
			return 0, err
		}
		b[0] = 1
		return 2 << 20, nil
	},
	"huge memfd": func() (int, error) { return filled(unix.MFD_HUGETLB, 2<<20) },
	"inode": func() (int, error) {
		for range 8 {
			counter++
			if err := unix.Mknod(fmt.Sprintf("/tmp/inode-%d-%d", os.Getpid(), counter), unix.S_IFREG|0o600, 0); err != nil {
				return 0, err
			}
		}
		return 8 << 10, nil
	},
	"dentry": func() (int, error) {
		// Names that do not exist are remembered.
		var st unix.Stat_t
		for range 64 {
			counter++
			unix.Stat(fmt.Sprintf("/usr/%d-%d-%0200d", os.Getpid(), counter, 0), &st)
		}
		return 64 * 450, nil
	},
	"symbolic link": func() (int, error) {
		// A target of 128 bytes or more has a page of its own, which the guard's call takes.
		for i := range 64 {
			counter++
			if err := unix.Symlink(strings.Repeat("x", 200), fmt.Sprintf("/tmp/%d-%d", os.Getpid(), counter)); err != nil {
				return i * 4096, err
			}
		}
		return 64 * 4096, nil
	},
	"descriptor": func() (int, error) {
		_, err := unix.Eventfd(0, 0)
		return 512, err
	},
	"poll": func() (int, error) {
		fd, err := unix.Eventfd(0, 0)
		if err != nil {
			return 0, err
		}
		fds := make([]unix.PollFd, 4096)
		for i := range fds {
			fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		}
		for range 8 {
			go unix.Poll(fds, -1)
		}
		time.Sleep(50 * time.Millisecond)
		return 8 * 4096 * 80, nil
	},
	"terminal": func() (int, error) {
		m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
		if err != nil {
			return 0, err
		}
		unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0)
		n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
		if err != nil {
			return 0, err
		}
		s, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
		if err != nil {
			return 0, err
		}
		unix.Write(s, make([]byte, 256<<10))
		return 128 << 10, nil
	},
}

var (
	listener   net.Listener
	watcher    = -1
	counter    int
	epolls     []int
	filterCode []unix.SockFilter
)

// filled is a file of memory that is full.
func filled(flags, size int) (int, error) {
	fd, err := unix.MemfdCreate("pin", flags)
	if err != nil {
		return 0, err
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return 0, err
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return size, unix.Munmap(b)
}

// memoryOf is one of a socket's counts of memory, see SO_MEMINFO in socket(7).
func memoryOf(fd, index int) int {
	var info [9]uint32
	size := uint32(unsafe.Sizeof(info))
	unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	return int(info[index])
}

// jitted is what the longest program takes when it is compiled, about.
const jitted = 32 << 10

// longProgram is the longest program that the kernel takes, which allows all.
func longProgram() *unix.SockFprog {
	if filterCode == nil {
		filterCode = make([]unix.SockFilter, 4096)
		for i := range filterCode {
			filterCode[i] = unix.SockFilter{Code: unix.BPF_LD | unix.BPF_IMM, K: 0x12345678}
		}
		filterCode[4095] = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	}
	return &unix.SockFprog{Len: uint16(len(filterCode)), Filter: &filterCode[0]}
}
