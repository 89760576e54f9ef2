//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// script is what runs in each sandbox: processes that nothing but a kill ends.
const script = "echo up; sleep 1000 & (sleep 1000 & wait) & wait"

// session is the contender whose server is made by a client, in a process group of its own.
const session = "sbxrun-session"

// A contender is one way to run a command.
type contender struct {
	name string
	main bool // one that is killed most often
	one  bool // there is one at a time
	skip string

	// before makes what a client is served by: a server, or a session. up says when it
	// does, and end ends it properly.
	before func(*item) []string
	up     func(*item) bool
	end    func(*item)

	client func(*item) []string
	silent bool // a client says nothing before its command has ended

	// next is a run that comes afterwards.
	next func(*world) []string

	takes time.Duration // until the command runs
	line  []string      // of the table
}

// try runs it, finds out how long that takes, and kills it once: what is made at the
// first time only, and what a server leaves in its place, is there from then on.
func (c *contender) try(w *world, k kind) error {
	w.count++
	i := &item{contender: c, number: w.count}
	if err := w.begin(i, k); err != nil {
		return err
	}
	if i.signal(syscall.SIGKILL, i.client); c.end != nil {
		c.end(i)
	}
	w.clean(left{})
	for range 3 {
		begin := time.Now()
		if err := w.run(c.next(w), 60*time.Second); err != nil {
			return err
		}
		c.takes = time.Since(begin)
	}
	w.clean(left{})
	return nil
}

func contenders(w *world) []*contender {
	sbx := filepath.Join(w.bin, "sbxrun")
	run := func(flags ...string) []string {
		return append(append([]string{sbx, "--profile", "strict", "-C", w.ws}, flags...), "--", "sh", "-c")
	}
	plain := func(name string, prefix []string) *contender {
		with := func(s string) []string { return append(append([]string{}, prefix...), s) }
		c := &contender{name: name, client: func(*item) []string { return with(script) }, next: func(*world) []string { return with("true") }}
		if path, err := exec.LookPath(prefix[0]); err != nil {
			c.skip = "not installed"
		} else {
			prefix[0] = path
		}
		return c
	}
	native := plain("sbxrun", run())
	landlock := plain("sbxrun-landlock", run("--driver", "landlock", "--allow-degraded", "namespaces,protect"))
	native.main, landlock.main = true, true
	id := func(i *item) string { return fmt.Sprintf("k%d", i.number) }
	held := plain(session, run())
	held.before = func(i *item) []string {
		return []string{sbx, "session", "create", "-q", "--profile", "strict", "-C", w.ws, id(i)}
	}
	held.up = func(i *item) bool { return !living(i.server) }
	held.client = func(i *item) []string { return []string{sbx, "session", "exec", id(i), "--", "sh", "-c", script} }
	held.end = func(i *item) {
		w.run([]string{sbx, "session", "stop", "-t", "0s", id(i)}, 20*time.Second)
		w.run([]string{sbx, "session", "rm", id(i)}, 20*time.Second)
	}
	held.next = func(*world) []string { return []string{sbx, "prune", "-q", "--older-than", "0s"} }
	serve := plain("sbxrun-serve", run())
	serve.before = func(i *item) []string {
		return []string{sbx, "serve", "-q", "--min-size", "1", "--target-size", "1", "--profile", "strict", "-C", w.ws}
	}
	serve.up = func(i *item) bool { _, err := os.Stat(w.server(i) + "/run.sock"); return err == nil }
	serve.client = native.client
	stop := func(i *item) { syscall.Kill(i.server, syscall.SIGTERM) }
	serve.end, serve.one = stop, true

	bwrap := plain("bubblewrap", []string{"bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/",
		"--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--", "sh", "-c"})
	bare := plain("bubblewrap-alone", []string{"bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--", "sh", "-c"})
	firejail := plain("firejail", []string{"firejail", "--quiet", "--noprofile", "--net=none", "--private-dev", "--private-tmp", "--ipc-namespace",
		"--caps.drop=all", "--nonewprivs", "--seccomp", "--read-only=/", "--", "sh", "-c"})
	gvisor := plain("gVisor", []string{"runsc", "--network=none", "--ignore-cgroups", "do", "sh", "-c"})
	return []*contender{native, landlock, held, serve, bwrap, bare, w.oci("runc"), w.oci("crun", "--cgroup-manager=disabled"), firejail, gvisor, w.judge(stop)}
}

// oci is a runtime that is told by a bundle what to run.
func (w *world) oci(name string, flags ...string) *contender {
	c := &contender{name: name}
	path, err := exec.LookPath(name)
	if err != nil {
		c.skip = "not installed"
		return c
	}
	bundle := func(kind, command string) string {
		dir := filepath.Join(w.dir, name+"-"+kind)
		bind := func(at string) map[string]any {
			return map[string]any{"destination": at, "type": "bind", "source": at, "options": []string{"rbind", "ro", "nosuid"}}
		}
		var spaces []map[string]string
		for _, n := range []string{"pid", "mount", "ipc", "uts", "network"} {
			spaces = append(spaces, map[string]string{"type": n})
		}
		config, err := json.Marshal(map[string]any{
			"ociVersion": "1.0.2", "root": map[string]any{"path": "rootfs"}, "hostname": "faults",
			"process": map[string]any{"user": map[string]int{"uid": 0, "gid": 0}, "args": []string{"sh", "-c", command}, "cwd": "/", "env": []string{"PATH=/usr/bin:/bin"}, "noNewPrivileges": true},
			"mounts": []any{map[string]any{"destination": "/proc", "type": "proc", "source": "proc"}, bind("/usr"),
				map[string]any{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"mode=755", "size=64k"}}},
			"linux": map[string]any{"namespaces": spaces},
		})
		for _, at := range []string{"usr", "proc", "dev"} {
			err = errors.Join(err, os.MkdirAll(filepath.Join(dir, "rootfs", at), 0o755))
		}
		for _, at := range []string{"bin", "lib", "lib64"} {
			if to, e := os.Readlink("/" + at); e == nil {
				err = errors.Join(err, os.Symlink(to, filepath.Join(dir, "rootfs", at)))
			}
		}
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)); err != nil {
			fatal(err)
		}
		return dir
	}
	long, short := bundle("long", script), bundle("short", "true")
	with := func(dir, id string) []string {
		return append(append([]string{path}, flags...), "run", "--bundle", dir, id)
	}
	n := 0
	c.client = func(i *item) []string { return with(long, fmt.Sprintf("k%d", i.number)) }
	c.next = func(*world) []string { n++; return with(short, fmt.Sprintf("n%d", n)) }
	return c
}

// judge is go-judge: a server, and a request to it by curl.
func (w *world) judge(stop func(*item)) *contender {
	c := &contender{name: "go-judge", silent: true, end: stop}
	path := filepath.Join(w.bin, "go-judge")
	curl, err := exec.LookPath("curl")
	if _, e := os.Stat(path); e != nil || err != nil {
		c.skip = "not installed, or no curl"
		return c
	}
	port := func(i *item) string { return fmt.Sprintf("127.0.0.1:%d", 20000+i.number%10000) }
	request := func(command string) string {
		b, _ := json.Marshal(map[string]any{"cmd": []any{map[string]any{
			"args": []string{"/bin/sh", "-c", command}, "env": []string{"PATH=/usr/bin:/bin"},
			"files":    []any{map[string]string{"content": ""}, map[string]any{"name": "stdout", "max": 4096}, map[string]any{"name": "stderr", "max": 4096}},
			"cpuLimit": int64(100 * time.Second), "clockLimit": int64(1000 * time.Second), "memoryLimit": 256 << 20, "procLimit": 50,
		}}})
		return string(b)
	}
	serve := func(addr string) []string { return []string{path, "-http-addr", addr, "-pre-fork", "1", "-silent"} }
	c.before = func(i *item) []string { return serve(port(i)) }
	c.up = func(i *item) bool {
		conn, err := net.Dial("tcp", port(i))
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	c.client = func(i *item) []string {
		return []string{curl, "-s", "http://" + port(i) + "/run", "-H", "Content-Type: application/json", "-d", request(script)}
	}
	// The next run is by a server that is started anew.
	c.next = func(*world) []string {
		const addr = "127.0.0.1:19999"
		return []string{"/bin/sh", "-c", fmt.Sprintf(`%s & pid=$!
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do %s -sf http://%s/version >/dev/null && break; sleep 0.1; done
%s -sf http://%s/run -H 'Content-Type: application/json' -d '%s' | grep -q Accepted; ok=$?; kill $pid; wait $pid; exit $ok`,
			strings.Join(serve(addr), " "), curl, addr, curl, addr, request("true"))}
	}
	return c
}
