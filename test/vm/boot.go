//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A machine is one boot of a configuration.
type machine struct {
	config               configuration
	image, kernel, tests string
	log                  string // log.out is what it printed, log.console what its kernel did
	echo                 io.Writer
	timeout              time.Duration
}

// boot runs the machine to its end and gives the results of its tests. The error
// is about the machine: it did not come up, or not to its end.
func (m *machine) boot(ctx context.Context) ([]result, error) {
	// The signal comes when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	console := m.log + ".console"
	os.Remove(console)
	emulator := emulators[m.config.processor()]
	cmd := exec.CommandContext(ctx, emulator.command[0], slices.Concat(emulator.command[1:], []string{
		// Emulated even where the host could do better: what works nowhere else
		// but here is what everybody gets.
		"-accel", "tcg",
		"-m", "1536", "-smp", "1",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", filepath.Join(m.kernel, "vmlinuz"), "-initrd", filepath.Join(m.kernel, "initrd"),
		// no_timer_check: a busy machine emulates it too late for the kernel's taste.
		// norandmaps: qemu translates code anew at each new address, so that programs
		// start several times as fast at the same ones. No sandbox relies on them.
		"-append", strings.TrimSpace("console=" + emulator.console + " quiet panic=-1 no_timer_check random.trust_cpu=on mitigations=off norandmaps init_on_alloc=0 vm.config=" + m.config.name + " " + m.config.cmdline),
		// What it writes to its disk is gone when it ends.
		"-drive", "file=" + m.image + ",if=virtio,format=raw,snapshot=on",
		"-drive", "file=" + m.tests + ",if=virtio,format=raw,readonly=on",
		"-drive", "file=" + filepath.Join(m.kernel, "modules.img") + ",if=virtio,format=raw,readonly=on",
		"-serial", "file:" + console,
		"-chardev", "file,id=results,path=/dev/fd/1", "-device", "virtio-serial", "-device", "virtserialport,chardev=results,name=results",
	})...)
	if m.config.nightly {
		// The machine's clock counts its instructions, and jumps where it would wait:
		// no timeout in it knows how busy the host is, and no sleep takes time.
		cmd.Args = append(cmd.Args, "-icount", "shift=1,sleep=off", "-rtc", "clock=vm")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	log, err := os.Create(m.log + ".out")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	var to io.Writer = log
	if m.echo != nil {
		to = io.MultiWriter(log, m.echo)
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := reader{config: m.config.name}
	err = r.read(io.TeeReader(out, to))
	err = errors.Join(err, cmd.Wait())
	switch ctx.Err() {
	case context.Canceled:
		return r.results, errors.New("interrupted")
	case context.DeadlineExceeded:
		err = fmt.Errorf("still running after %v", m.timeout)
	}
	if err == nil && r.done {
		return r.results, nil
	}
	if err == nil {
		err = errors.New("it did not come to its end")
	}
	b, _ := os.ReadFile(console)
	if len(b) > 4000 {
		b = b[len(b)-4000:]
	}
	return r.results, fmt.Errorf("%w\n%s\nconsole:\n%s", err, stderr.String(), b)
}
