//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDay has a server with its pool, an MCP server over HTTP, and a session with a
// gateway live for more than a day. In the first hours runs, sessions, clients and
// connections are made, used, killed and forgotten; then comes a day in which nobody
// asks for anything. What is forgotten expires, the server prunes, and in the end
// there is no more memory, descriptor, process, cgroup, mount or file than at the
// beginning.
//
// SBXRUN_DAY is the number of hours with work, and says that an hour has 60 minutes.
// That is for a machine whose clock jumps where it would wait: test/vm has one (day).
// SBXRUN_SOAK_TIME is how much of these hours is work. Without SBXRUN_DAY there are
// two hours of a second, everything expires after a second, and the test prunes.
func TestDay(t *testing.T) {
	hours, hour, work := 2, time.Second, time.Duration(0)
	serve, mcp := []string{"--idle-timeout", "1s", "--replenish-interval", "200ms"}, []string{"--idle-timeout", "1s"}
	real := os.Getenv("SBXRUN_DAY")
	if real != "" {
		var err error
		if hours, err = strconv.Atoi(real); err != nil || hours < 2 {
			t.Fatalf("SBXRUN_DAY is %q, not a number of hours from 2 on", real)
		}
		if s := os.Getenv("SBXRUN_SOAK_TIME"); s != "" {
			if work, err = time.ParseDuration(s); err != nil {
				t.Fatal(err)
			}
		}
		hour, serve, mcp = time.Hour, nil, nil
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go greet(l)
	d := &day{session: newSession(t, whos[0], "--allow-host", l.Addr().String(), "--timeout", "none"), addr: l.Addr().String(), servers: map[string]int{}}
	b, err := os.ReadFile(fetch)
	if err != nil {
		t.Fatal(err)
	}
	d.write("ws/fetch", string(b), 0o755)
	d.own()
	d.start("serve", "/sbxrun/serve", slices.Concat([]string{"serve", "-C", d.ws}, serve)...)
	d.url = d.start("mcp", "http://", slices.Concat([]string{"mcp", "-C", d.ws, "--http", "127.0.0.1:0"}, mcp)...)
	d.servers["session"] = d.info().Pid

	d.pass()
	if o := d.sbx("prune", "--older-than", "0s"); o.code != 0 {
		t.Errorf("%v", o)
	}
	time.Sleep(hour)
	d.settle()
	begin := d.look()
	t.Logf("at the beginning: %v", begin)
	var second figures
	for n := range hours {
		from := time.Now()
		d.forget()
		for d.pass(); time.Since(from) < work/time.Duration(hours); d.pass() {
		}
		time.Sleep(max(0, time.Until(from.Add(hour))))
		d.settle()
		now := d.look()
		t.Logf("after hour %d, %d passes: %v", n+1, d.passes, now)
		if n == 1 {
			second = now
		}
	}
	last := d.look()
	if real != "" {
		// What ended in the last hour is a day old, and an hourly prune has come.
		time.Sleep(26 * hour)
	} else {
		d.want("pkill -x cat", "")
		if o := d.sbx("prune", "--older-than", "0s"); o.code != 0 {
			t.Errorf("%v", o)
		}
	}
	d.settle()
	end := d.look()
	// The server may not have closed yet what it was asked through, nor the session the
	// pipes of commands that have just ended.
	within(5*time.Second, func() bool {
		end = d.look()
		for name := range d.servers {
			if len(end.descriptors[name]) > len(begin.descriptors[name]) {
				return false
			}
		}
		return true
	})
	t.Logf("at the end: %v", end)
	for name := range d.servers {
		if early, late := second.memory[name], max(last.memory[name], end.memory[name]); late > early+early/5+8<<20 {
			t.Errorf("%s: %d bytes of memory after two hours, %d at the end", name, early, late)
		}
		if more := minus(end.descriptors[name], begin.descriptors[name]); len(end.descriptors[name]) > len(begin.descriptors[name]) {
			t.Errorf("%s has new descriptors: %q", name, more)
		}
	}
	for what, list := range end.lists {
		if more := minus(list, begin.lists[what]); len(list) > len(begin.lists[what]) {
			t.Errorf("%d %s, %d at the beginning; new are %q", len(list), what, len(begin.lists[what]), more)
		}
	}
	d.want("wc -l < /tmp/ended", fmt.Sprintln(hours))
}

// greet sends each client a line and waits for its end.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			c.Write([]byte("hello\n"))
			io.Copy(io.Discard, c)
		}()
	}
}

// A day is what lives in TestDay. Its session is the one that stays.
type day struct {
	*session
	addr    string         // of a server
	url     string         // of the MCP server
	servers map[string]int // their processes
	passes  int
}

// sbx runs sbxrun.
func (d *day) sbx(args ...string) *outcome {
	d.Helper()
	return d.do(call{args: d.who.command(append([]string{sbxrun}, args...)...), env: []string{d.env}})
}

// start starts a server and returns the word of its first line that holds a text.
func (d *day) start(name, tells string, args ...string) string {
	d.Helper()
	args = d.who.command(append([]string{sbxrun}, args...)...)
	args = slices.Concat(args, d.who.flags())
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = d.ws, d.environ(d.env, "SBXRUN_MCP_TOKEN=a-token-of-mine-0123")
	r, w, err := os.Pipe()
	if err != nil {
		d.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		d.Fatal(err)
	}
	w.Close()
	d.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			d.Errorf("%s: %v", name, err)
		}
		r.Close()
	})
	d.servers[name] = cmd.Process.Pid
	said := ""
	for lines := bufio.NewScanner(r); lines.Scan(); {
		said += lines.Text() + "\n"
		for _, word := range strings.Fields(lines.Text()) {
			if strings.Contains(word, tells) {
				go io.Copy(io.Discard, r)
				return word
			}
		}
	}
	d.Fatalf("%s says %q", name, said)
	return ""
}

// pass uses all that there is, once.
func (d *day) pass() {
	d.Helper()
	d.passes++
	n, flags := d.passes, d.who.flags()
	want := func(o *outcome, stdout string) {
		d.Helper()
		if o.code != 0 || o.stdout != stdout {
			d.Errorf("pass %d: want %q: %v", n, stdout, o)
		}
	}
	word := fmt.Sprint("pass ", n)
	run := func(more ...string) []string { return slices.Concat([]string{"-C", d.ws}, flags, more) }
	// Runs, by the pool and without it, and through a gateway.
	want(d.sbx(run("--", "echo", word)...), word+"\n")
	want(d.sbx(run("--no-pool", "--", "echo", word)...), word+"\n")
	want(d.sbx(run("--allow-host", d.addr, "--", d.ws+"/fetch", "tcp", d.addr)...), "hello\n")
	// A change set that is taken over.
	if o := d.sbx(run("-q", "--workspace", "overlay", "--", "sh", "-c", "echo "+word+" > word")...); o.code != 0 {
		d.Errorf("%v", o)
	}
	if o := d.sbx("apply"); o.code != 0 {
		d.Errorf("%v", o)
	}
	if b, err := os.ReadFile(d.ws + "/word"); string(b) != word+"\n" {
		d.Errorf("pass %d: %q, %v", n, b, err)
	}
	// Runs that die with all that would tidy up after them.
	d.do(call{args: d.who.command(append([]string{sbxrun}, run("--no-pool", "--", "sleep", "1000")...)...), env: []string{d.env}, started: func(c *exec.Cmd) {
		time.Sleep(time.Duration(n%5) * 10 * time.Millisecond)
		for _, pid := range append(childrenOf(c.Process.Pid), c.Process.Pid) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}})
	// Sessions, whose records nobody removes.
	id := fmt.Sprint("pass", n)
	want(d.cli(slices.Concat([]string{"create", "-C", d.ws}, flags, []string{id})...), id+"\n")
	s := &session{d.fixture, id, d.env}
	s.want("echo "+word, word+"\n")
	s.cli("exec", "-d", id, "--", "sleep", "1000")
	holder := s.info().Pid
	switch n % 3 {
	case 0:
		if o := s.cli("stop", "-t", "0s", id); o.code != 0 {
			d.Errorf("%v", o)
		}
	case 1:
		syscall.Kill(holder, syscall.SIGKILL)
	case 2:
		for _, pid := range append(childrenOf(holder), holder) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	// The one that stays, and its gateway.
	d.want("echo "+word, word+"\n")
	d.want("./fetch tcp "+d.addr, "hello\n")
	d.agent(word).ask("DELETE", "")
}

// agent is a client of the MCP server, which leaves something running.
func (d *day) agent(word string) *agent {
	d.Helper()
	c := &agent{day: d}
	c.say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"day","version":"1"}}}`, "serverInfo")
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "")
	c.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bash","arguments":{"command":"echo `+word+`"}}}`, word)
	c.say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"bash","arguments":{"command":"sleep 1000","run_in_background":true}}}`, "running")
	return c
}

// forget leaves a connection through the gateway open on which nothing moves, and a
// client of the MCP server that says no more.
func (d *day) forget() {
	d.Helper()
	addr, port, _ := strings.Cut(d.addr, ":")
	if o := d.cli("exec", "-d", d.id, "--", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%s; cat <&3 >/dev/null; echo >>/tmp/ended", addr, port)); o.code != 0 {
		d.Errorf("%v", o)
	}
	d.agent("forget")
}

// An agent is a client of the MCP server.
type agent struct {
	*day
	id string
}

// say sends a message and wants an answer that holds a text.
func (a *agent) say(message, want string) {
	a.Helper()
	if got := a.ask("POST", message); !strings.Contains(got, want) {
		a.Errorf("%s: %s", message, got)
	}
}

func (a *agent) ask(method, body string) string {
	a.Helper()
	req, err := http.NewRequest(method, a.url, strings.NewReader(body))
	if err != nil {
		a.Fatal(err)
	}
	req.Close = true
	for k, v := range map[string]string{"Authorization": "Bearer a-token-of-mine-0123", "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": a.id} {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 300 {
		a.Errorf("%s %s: %s, %s, %v", method, body, res.Status, b, err)
	}
	if a.id == "" {
		a.id = res.Header.Get("Mcp-Session-Id")
	}
	return string(b)
}

// settle waits until the pool has what it keeps when nobody asks for anything, the
// MCP server no client.
func (d *day) settle() {
	d.Helper()
	var pools struct {
		Pools []struct {
			MinSize int `json:"min_size"`
			Stats   struct{ Ready, Making, Out int }
		}
	}
	settled := func() bool {
		o := d.sbx("pool", "status", "--json")
		if err := json.Unmarshal([]byte(o.stdout), &pools); err != nil || len(pools.Pools) != 1 {
			d.Fatalf("%v: %v", err, o)
		}
		p := pools.Pools[0]
		// Of its children all but that of the session are sandboxes.
		return p.Stats.Ready == p.MinSize && p.Stats.Making == 0 && p.Stats.Out == 0 && len(childrenOf(d.servers["mcp"])) == 0
	}
	if !within(limit, settled) {
		d.Errorf("after a while: %+v, children of the MCP server: %v", pools, childrenOf(d.servers["mcp"]))
	}
}

// figures are what there is at one moment.
type figures struct {
	memory      map[string]int // resident, bytes
	descriptors map[string][]string
	lists       map[string][]string // of what the machine, or the test, has
}

func (f figures) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.memory)) {
		fmt.Fprintf(&b, "%s %.1f MiB, %d descriptors; ", name, float64(f.memory[name])/(1<<20), len(f.descriptors[name]))
	}
	for _, what := range slices.Sorted(maps.Keys(f.lists)) {
		fmt.Fprintf(&b, "%d %s, ", len(f.lists[what]), what)
	}
	return strings.TrimSuffix(b.String(), ", ")
}

// look counts. On a machine where others work, too, it counts what is the test's.
func (d *day) look() figures {
	d.Helper()
	f := figures{map[string]int{}, map[string][]string{}, map[string][]string{}}
	for name, pid := range d.servers {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		var size, pages int
		if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
			d.Errorf("%s, process %d: %v", name, pid, err)
		}
		f.memory[name] = pages * os.Getpagesize()
		f.descriptors[name] = descriptors(pid)
	}
	whole := os.Getenv("SBXRUN_TEST_THROWAWAY") != ""
	files := []string{runDir}
	if whole {
		files = []string{"/tmp", "/run", "/var/tmp", "/dev/shm", "/root", "/home"}
	}
	for _, dir := range files {
		filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if path == filepath.Join(runDir, "world") { // its database writes when it likes
				return fs.SkipDir
			}
			if err == nil {
				f.lists["files"] = append(f.lists["files"], path)
			}
			return nil
		})
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		d.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if whole || strings.Contains(line, runDir) {
			f.lists["mounts"] = append(f.lists["mounts"], line)
		}
	}
	f.lists["processes"] = processes(runDir)
	if whole {
		f.lists["processes"] = nil
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range all {
			if b, _ := os.ReadFile(path); len(b) > 0 {
				f.lists["processes"] = append(f.lists["processes"], string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
			}
		}
		roots, _ := cgroupRoots()
		for _, root := range roots {
			filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					f.lists["groups"] = append(f.lists["groups"], path)
				}
				return nil
			})
		}
	}
	return f
}

// minus are the elements of a that b has not.
func minus(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
