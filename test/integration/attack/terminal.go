//go:build linux

package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// t04 opens every terminal in sight and writes to it.
func t04(r *report) {
	mark := []byte(r.arg("mark"))
	entries, _ := os.ReadDir("/dev/pts")
	n := 0
	for _, e := range entries {
		if only := r.arg("only"); only != "" && e.Name() != only {
			continue
		}
		p := filepath.Join("/dev/pts", e.Name())
		fd, err := unix.Open(p, unix.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
		if err != nil || e.Name() == "ptmx" {
			continue
		}
		n++
		unix.Write(fd, mark)
		unix.Close(fd)
	}
	few := "more than its own"
	if n <= 1 {
		few = "at most its own"
	}
	r.got("terminals in sight", few)
	for _, p := range []string{"/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ttyS0"} {
		r.err("open "+p, openFor(p, unix.O_WRONLY|unix.O_NOCTTY))
	}
	_, err := os.Stat("/dev/null")
	r.err("neighbour: /dev/null", err)
}

// raw sets the terminal on fd 0 to raw mode and dies before it can set it back.
func raw(r *report) {
	t, err := unix.IoctlGetTermios(0, unix.TCGETS)
	if err == nil {
		t.Lflag &^= unix.ICANON | unix.ECHO | unix.ISIG
		err = unix.IoctlSetTermios(0, unix.TCSETS, t)
	}
	if err != nil {
		r.err("raw mode", err)
		return
	}
	r.args["signal"] = fmt.Sprint(int(unix.SIGKILL))
	exit(r)
}

// watch says which signals come, and how large the terminal is. It ends at TERM,
// or when the terminal hangs up.
func watch(r *report) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	if f := r.arg("ready"); f != "" {
		os.WriteFile(f, nil, 0o644)
	}
	say := func(format string, a ...any) {
		line := fmt.Sprintf(format, a...)
		fmt.Println(line)
		if f, err := os.OpenFile(r.arg("log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644); err == nil {
			fmt.Fprintln(f, line)
			f.Close()
		}
	}
	say("ready")
	end := time.After(30 * time.Second)
	for {
		select {
		case <-end:
			os.Exit(9)
		case s := <-c:
			name := strings.TrimPrefix(unix.SignalName(s.(syscall.Signal)), "SIG")
			if s == syscall.SIGWINCH {
				if w, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ); err == nil {
					name += fmt.Sprintf(" %dx%d", w.Row, w.Col)
				}
			}
			say("got %s", name)
			if s == syscall.SIGTERM || s == syscall.SIGHUP {
				os.Exit(r.number("code", 0))
			}
		}
	}
}
