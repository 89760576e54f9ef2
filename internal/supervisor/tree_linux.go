package supervisor

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Children lists the children of a process, oldest first, of all its threads.
func Children(pid int) []int {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []int
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil && n > 1 {
				out = append(out, n)
			}
		}
	}
	return out
}

// SignalChild sends signals to a process, if that is a child of parent: what has
// ended meanwhile may have left its number to another.
func SignalChild(parent, pid int, sigs ...syscall.Signal) error {
	fd, err := openChild(parent, pid)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return signalAll(fd, sigs)
}

func openChild(parent, pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	if !slices.Contains(Children(parent), pid) {
		unix.Close(fd)
		return -1, syscall.ESRCH
	}
	return fd, nil
}

// signalAll fails if the first signal cannot be sent: a process that the first
// one ended does not take the others.
func signalAll(pidfd int, sigs []syscall.Signal) error {
	for i, sig := range sigs {
		if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != nil && i == 0 {
			return err
		}
	}
	return nil
}

// SignalBelow sends signals to every process below one. The error is ESRCH if
// there is none.
//
// Parents get theirs before their children: a shell whose child is ended first
// goes on with its script. All are held by descriptors before the first is
// signalled, as a parent that ends hands its children to another.
func SignalBelow(pid int, sigs ...syscall.Signal) error {
	return signalTree(below(nil, pid), sigs)
}

// SignalTree sends signals to a process, if that is a child of parent, and to
// every process below it, as SignalBelow does.
func SignalTree(parent, pid int, sigs ...syscall.Signal) error {
	fd, err := openChild(parent, pid)
	if err != nil {
		return err
	}
	return signalTree(below([]int{fd}, pid), sigs)
}

// signalTree sends signals to processes, and closes their descriptors.
func signalTree(pidfds []int, sigs []syscall.Signal) error {
	err := error(syscall.ESRCH)
	for _, fd := range pidfds {
		switch e := signalAll(fd, sigs); {
		case e == nil:
			err = nil
		case !errors.Is(e, syscall.ESRCH) && err != nil:
			err = e
		}
		unix.Close(fd)
	}
	return err
}

// below opens all processes below one, parents before their children.
func below(pidfds []int, pid int) []int {
	for level := []int{pid}; len(level) > 0; {
		var next []int
		for _, parent := range level {
			for _, c := range Children(parent) {
				if fd, err := openChild(parent, c); err == nil {
					pidfds, next = append(pidfds, fd), append(next, c)
				}
			}
		}
		level = next
	}
	return pidfds
}
