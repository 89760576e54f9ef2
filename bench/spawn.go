package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A command is all that starting a contender takes, resolved beforehand, so
// that nothing but fork, exec and wait is timed. It is plain data because
// workers get it over a pipe.
type command struct {
	Argv []string // Argv[0] is an absolute path
	Env  []string
	Dir  string

	// Stdio is the file that the command gets as its three standard streams;
	// "" is /dev/null.
	Stdio string

	// Files are what the command finds open from descriptor 3 on, at their
	// beginning.
	Files []string
}

func (c command) openStdio() (*os.File, error) {
	name := c.Stdio
	if name == "" {
		name = os.DevNull
	}
	return os.OpenFile(name, os.O_RDWR, 0)
}

// A spawner starts one command over and over.
type spawner struct {
	command
	stdio *os.File
	files []*os.File
	attr  syscall.ProcAttr

	// cpu is the processor time of the last run and all that it waited for.
	cpu time.Duration
}

func newSpawner(c command) (*spawner, error) {
	s := &spawner{command: c}
	var err error
	if s.stdio, err = c.openStdio(); err != nil {
		return nil, err
	}
	fd := s.stdio.Fd()
	s.attr = syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: []uintptr{fd, fd, fd}}
	for _, name := range c.Files {
		f, err := os.Open(name)
		if err != nil {
			s.close()
			return nil, err
		}
		s.files = append(s.files, f)
		s.attr.Files = append(s.attr.Files, f.Fd())
	}
	return s, nil
}

func (s *spawner) close() {
	s.stdio.Close()
	for _, f := range s.files {
		f.Close()
	}
}

// once runs the command and returns how long that took, from before fork until
// it was reaped.
func (s *spawner) once() (time.Duration, error) {
	for _, f := range s.files {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
	}
	start := time.Now() // CLOCK_MONOTONIC
	pid, err := syscall.ForkExec(s.Argv[0], s.Argv, &s.attr)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.Argv[0], err)
	}
	var (
		ws syscall.WaitStatus
		ru syscall.Rusage
	)
	for {
		if _, err = syscall.Wait4(pid, &ws, 0, &ru); err != syscall.EINTR {
			break
		}
	}
	d := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("wait: %w", err)
	}
	if !ws.Exited() || ws.ExitStatus() != 0 {
		return 0, fmt.Errorf("%s: wait status %#x", s.Argv[0], ws)
	}
	s.cpu = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	return d, nil
}

// output runs the command, within half a minute, and returns what it printed.
func (c command) output() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = c.Env
	stdin, err := c.openStdio()
	if err != nil {
		return "", err
	}
	defer stdin.Close()
	cmd.Stdin = stdin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	for _, name := range c.Files {
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if err := cmd.Run(); err != nil {
		said := firstLine(stderr.String())
		if said == "" {
			said = firstLine(stdout.String())
		}
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return stdout.String(), nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}

// A worker is this program run again to start one command as often as it can:
// throughput is measured with a process for each, because in one process
// syscall.ForkLock would make them wait for one another.
const workerArg = "-worker"

// A workOrder is what a worker reads from its standard input.
type workOrder struct {
	Command command
	For     time.Duration
}

// work is the worker's main: it reads an order, runs the command once, says
// that it is ready, waits for the end of its input, runs the command until the
// time is up, and prints how often.
func work() error {
	runtime.GOMAXPROCS(1)
	var w workOrder
	if err := json.NewDecoder(os.Stdin).Decode(&w); err != nil {
		return err
	}
	s, err := newSpawner(w.Command)
	if err != nil {
		return err
	}
	defer s.close()
	if _, err := s.once(); err != nil {
		return err
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	n := 0
	for start := time.Now(); time.Since(start) < w.For; n++ {
		if _, err := s.once(); err != nil {
			return err
		}
	}
	fmt.Println(n)
	return nil
}

// throughput returns the runs per second of so many workers together.
func throughput(c command, parallel int, d time.Duration) (perSecond float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	order, err := json.Marshal(workOrder{c, d})
	if err != nil {
		return 0, err
	}
	var (
		commands []*exec.Cmd
		inputs   []io.WriteCloser
		outputs  []*bufio.Reader
	)
	defer func() {
		for i, cmd := range commands {
			inputs[i].Close()
			if e := cmd.Wait(); err == nil {
				err = e
			}
		}
	}()
	for range parallel {
		cmd := exec.Command(self, workerArg)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return 0, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return 0, err
		}
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		commands, inputs, outputs = append(commands, cmd), append(inputs, in), append(outputs, bufio.NewReader(out))
		if _, err := in.Write(order); err != nil {
			return 0, err
		}
	}
	for _, out := range outputs {
		if _, err := out.ReadString('\n'); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	for _, in := range inputs {
		in.Close()
	}
	total := 0
	for _, out := range outputs {
		line, err := out.ReadString('\n')
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return 0, err
		}
		total += n
	}
	return float64(total) / time.Since(start).Seconds(), nil
}
