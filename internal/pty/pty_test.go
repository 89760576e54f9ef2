package pty

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// TestOpen: what runs on the other end has a terminal of that size, and its end is
// the master's.
func TestOpen(t *testing.T) {
	master, slave, err := Open(&specs.Box{Width: 91, Height: 17})
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	cmd := exec.Command("/bin/sh", "-c", "test -t 0 && test -t 2 && stty size && : </dev/tty && read x && echo got $x")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	if _, err := master.WriteString("it\n"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for s := bufio.NewScanner(master); s.Scan(); {
		got = append(got, strings.TrimSuffix(s.Text(), "\r"))
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	// The echo of what was typed comes as soon as it is there.
	if out := strings.Join(got, " "); !strings.Contains(out, "17 91") || !strings.HasSuffix(out, "got it") {
		t.Errorf("%q", got)
	}
}

// TestClose: a reader is woken.
func TestClose(t *testing.T) {
	master, slave, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	done := make(chan error, 1)
	go func() {
		_, err := master.Read(make([]byte, 1))
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	master.Close()
	select {
	case err := <-done:
		if err == nil || os.IsNotExist(err) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("still reading")
	}
}
