//go:build linux

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestPowerLoss takes the power away while runs keep change sets, apply takes them
// over, and sessions come and go: from a random moment on nothing reaches the disk
// (dm-flakey), all that runs is killed, and the file system is mounted anew. Each file
// is then as it was or as it was to be, whole; what was told as kept or applied is;
// the stores can be read, apply completes what it had begun, and prune leaves nothing.
func TestPowerLoss(t *testing.T) {
	if !isRoot() || exec.Command("dmsetup", "targets").Run() != nil {
		t.Skip("needs root, dmsetup and the kernel's device-mapper: the configuration power of test/vm has them")
	}
	const cuts = 24
	d := newDisk(t)
	zeros, gone := 0, 0
	for n := range cuts {
		p := &power{fixture: newFixture(t, whos[0]), dir: d.mount(), from: n * 1000}
		p.ws = p.dir + "/ws"
		p.prepare()
		var off atomic.Bool
		p.off = &off
		done := make(chan struct{})
		go func() { defer close(done); p.work() }()
		time.Sleep(time.Duration(rand.Int64N(int64(40 * time.Second))))
		kept, applied := p.kept.Load(), p.applied.Load()
		d.cut()
		off.Store(true)
		p.kill()
		<-done
		p.kill()
		d.unmount()
		d.renew()
		d.mount()
		p.check(int(kept), int(applied))
		t.Logf("cut %d: %d kept, %d applied, %d sessions; %s", n+1, kept, applied, p.sessions, p.found)
		if kept > 0 {
			zeros++
		}
		if p.sessions > 0 {
			gone++
		}
		d.unmount()
		if t.Failed() {
			return
		}
	}
	if zeros < cuts/4 || gone < cuts/4 {
		t.Errorf("of %d cuts %d were after a change set, and %d after a session", cuts, zeros, gone)
	}
}

// A disk is one whose power can be taken away.
type disk struct {
	*testing.T
	loop, name, at string
	sectors        int
}

func newDisk(t *testing.T) *disk {
	d := &disk{T: t, name: "sbxrun-power", at: filepath.Join(runDir, "power"), sectors: 192 << 11}
	image := filepath.Join(runDir, "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, int64(d.sectors)<<9); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.at, 0o755); err != nil {
		t.Fatal(err)
	}
	d.loop = strings.TrimSpace(d.run("losetup", "--find", "--show", image))
	t.Cleanup(func() {
		exec.Command("umount", d.at).Run()
		exec.Command("dmsetup", "remove", d.name).Run()
		exec.Command("losetup", "--detach", d.loop).Run()
		os.Remove(d.at)
		os.Remove(image)
	})
	d.run("dmsetup", "create", d.name, "--table", d.table("linear", ""))
	d.run("mkfs.ext4", "-q", d.device())
	return d
}

func (d *disk) run(args ...string) string {
	d.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		d.Fatalf("%q: %v: %s", args, err, out)
	}
	return string(out)
}

func (d *disk) device() string { return "/dev/mapper/" + d.name }

func (d *disk) table(target, features string) string {
	return fmt.Sprintf("0 %d %s %s 0 %s", d.sectors, target, d.loop, features)
}

// become gives the disk another table. What is on its way is not waited for.
func (d *disk) become(table string) {
	d.Helper()
	d.run("dmsetup", "load", d.name, "--table", table)
	d.run("dmsetup", "suspend", "--noflush", "--nolockfs", d.name)
	d.run("dmsetup", "resume", d.name)
}

func (d *disk) cut() { d.Helper(); d.become(d.table("flakey", "0 100000 1 drop_writes")) }

// renew makes the disk another device, whose writes arrive, once nobody has the old one.
// The mounts of a sandbox that was killed go a little later than umount(8) returns, and as
// long as one is left, the file system writes: that must not reach the disk any more.
func (d *disk) renew() {
	d.Helper()
	if !within(limit, func() bool { return exec.Command("dmsetup", "remove", d.name).Run() == nil }) {
		d.Fatal("dmsetup remove: the device is in use")
	}
	d.run("dmsetup", "create", d.name, "--table", d.table("linear", ""))
}

func (d *disk) mount() string {
	d.Helper()
	d.run("mount", d.device(), d.at)
	return d.at
}

func (d *disk) unmount() {
	d.Helper()
	if !within(limit, func() bool { return exec.Command("umount", d.at).Run() == nil }) {
		d.Fatalf("umount: %s", d.run("sh", "-c", "umount "+d.at+"; ls -l /proc/[0-9]*/fd /proc/[0-9]*/cwd /proc/[0-9]*/root | grep "+d.at))
	}
}

// power is what works until the power is gone. Content has a generation.
type power struct {
	*fixture
	dir           string
	from          int // the first generation
	off           *atomic.Bool
	kept, applied atomic.Int64 // generations, less from
	sessions      int
	found         string
}

func content(generation int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "generation %8d\n", generation), 5000)
}

func (p *power) prepare() {
	p.Helper()
	for _, dir := range []string{"", "home", "run", "cache", "ws"} {
		if err := os.MkdirAll(filepath.Join(p.dir, dir), 0o700); err != nil {
			p.Fatal(err)
		}
	}
	if err := os.WriteFile(p.ws+"/file", content(p.from), 0o644); err != nil {
		p.Fatal(err)
	}
	syscall.Sync()
}

// sbx runs sbxrun, whose files are on the disk.
func (p *power) sbx(args ...string) *outcome {
	p.Helper()
	args = append([]string{sbxrun}, args...)
	return p.do(call{args: args, env: []string{"HOME=" + p.dir + "/home", "XDG_CACHE_HOME=" + p.dir + "/cache", "XDG_RUNTIME_DIR=" + p.dir + "/run"}})
}

// work goes on until the power is gone; what fails from then on is no failure.
func (p *power) work() {
	pause := func() { time.Sleep(time.Duration(rand.Int64N(int64(7 * time.Second)))) }
	ok := func(o *outcome) bool {
		if o.code != 0 && !p.off.Load() {
			p.Errorf("%v", o)
		}
		return o.code == 0
	}
	for n := 1; !p.off.Load(); n++ {
		script := fmt.Sprintf(`yes "$(printf 'generation %%8d' %d)" | head -n 5000 | tee file > new-%d`, p.from+n, n)
		if !ok(p.sbx("-q", "--workspace", "overlay", "--", "sh", "-c", script)) {
			return
		}
		p.kept.Store(int64(n))
		pause()
		id := fmt.Sprint("s", p.from+n)
		if !ok(p.sbx("session", "create", "-q", id)) {
			return
		}
		p.sessions++
		pause()
		if n%2 == 0 && !ok(p.sbx("session", "stop", "-t", "0s", id)) {
			return
		}
		if !ok(p.sbx("apply")) {
			return
		}
		p.applied.Store(int64(n))
		pause()
	}
}

// kill kills all that has to do with the disk.
func (p *power) kill() {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range append(links, fds...) {
		var pid int
		fmt.Sscanf(link, "/proc/%d/", &pid)
		if to, err := os.Readlink(link); err == nil && pid > 1 && pid != os.Getpid() && strings.HasPrefix(to, p.dir) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// check looks at the disk after the power came back. Kept and applied are what sbxrun
// had said by the time it went.
func (p *power) check(kept, applied int) {
	p.Helper()
	generation := func(name string) int {
		b, err := os.ReadFile(filepath.Join(p.ws, name))
		if os.IsNotExist(err) {
			return 0
		}
		var g int
		fmt.Sscanf(string(b), "generation %d", &g)
		if err != nil || !bytes.Equal(b, content(g)) {
			p.Errorf("%s: %d bytes of generation %d, %v", name, len(b), g-p.from, err)
		}
		return g - p.from
	}
	whole := func(applied int) {
		p.Helper()
		if g := generation("file"); g < applied {
			p.Errorf("generation %d was applied, and the file is of %d", applied, g)
		}
		files, _ := filepath.Glob(p.ws + "/*")
		for _, path := range files {
			var n int
			if _, err := fmt.Sscanf(filepath.Base(path), "new-%d", &n); err == nil && generation(filepath.Base(path)) != n {
				p.Errorf("%s is of generation %d", path, generation(filepath.Base(path)))
			}
		}
		for n := 1; n <= applied; n++ {
			if generation(fmt.Sprint("new-", n)) == 0 {
				p.Errorf("generation %d was applied, and new-%d is gone", applied, n)
			}
		}
	}
	whole(applied)
	o := p.sbx("diff", "--list", "--json")
	var sets []struct{ ID string }
	if err := json.Unmarshal([]byte(o.stdout), &sets); o.code != 0 || err != nil {
		p.Errorf("diff --list: %v: %v", err, o)
	}
	p.found = fmt.Sprintf("%d change sets", len(sets))
	for range sets {
		if o := p.sbx("apply"); o.code != 0 {
			p.Errorf("%v", o)
		}
	}
	whole(kept)
	if o := p.sbx("session", "ls", "--json"); o.code != 0 {
		p.Errorf("%v", o)
	}
	if o := p.sbx("prune", "--older-than", "0s"); o.code != 0 {
		p.Errorf("%v", o)
	}
	for _, pattern := range []string{"ws/.*", "home/.local/state/sbxrun/changes/*", "home/.local/state/sbxrun/changes/.*", "run/sbxrun/sessions/*"} {
		left, _ := filepath.Glob(filepath.Join(p.dir, pattern))
		if len(left) > 0 {
			p.Errorf("left: %q", left)
		}
	}
	if o := p.sbx("--", "cat", "file"); o.code != 0 {
		p.Errorf("%v", o)
	}
	for _, path := range []string{"ws", "home", "run", "cache"} {
		os.RemoveAll(filepath.Join(p.dir, path))
	}
}
