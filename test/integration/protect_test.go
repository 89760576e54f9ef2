//go:build linux

package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/test/survivors"
)

// repository makes a repository with a hook in the workspace, below dir.
func (f *fixture) repository(dir string) {
	f.Helper()
	at := filepath.Join(f.ws, dir)
	if err := os.MkdirAll(at, 0o755); err != nil {
		f.Fatal(err)
	}
	f.own()
	f.git("init", "-q", "-b", "main", at)
	config, err := os.ReadFile(filepath.Join(at, ".git/config"))
	if err != nil {
		f.Fatal(err)
	}
	// The attack restores both from the first.
	if err := os.WriteFile(filepath.Join(at, ".git/hooks/pre-commit"), config, 0o644); err != nil {
		f.Fatal(err)
	}
	f.own()
}

// git runs Git on the host, as the user of the fixture.
func (f *fixture) git(args ...string) *outcome {
	f.Helper()
	o := f.do(call{args: f.who.command(append([]string{f.need("git")}, args...)...), env: []string{"GIT_CONFIG_NOSYSTEM=1"}})
	if o.code != 0 {
		f.Fatalf("%v", o)
	}
	return o
}

// names lists what is in the workspace.
func (f *fixture) names() string {
	f.Helper()
	var b strings.Builder
	filepath.WalkDir(f.ws, func(path string, _ os.DirEntry, _ error) error {
		b.WriteString(strings.TrimPrefix(path, f.ws) + "\n")
		return nil
	})
	return b.String()
}

// unprotected is the control: the same acts, in the same sandbox without its
// protected paths.
func unprotected(except map[string]string) control {
	return control{"without protected paths", func(f *fixture, e *entry) {
		f.Helper()
		o := f.do(call{args: f.strict([]string{"--unprotect", "all"}, append([]string{f.attack, e.id}, e.arguments(f)...)...)})
		e.judge(f, f.report(o), func(act string) string {
			if _, ok := except[act]; ok {
				return "*"
			}
			return "ok"
		})
	}}
}

func protectTests() []entry {
	deepest := "1/2/3/4/5/6/7/8/9/10/r"
	before := map[string]string{}
	unchanged := func(f *fixture, _ *outcome) {
		f.Helper()
		if now := f.names(); now != before[f.dir] {
			f.Errorf("the workspace held\n%sand holds\n%s", before[f.dir], now)
		}
		for _, dir := range []string{"r", deepest} {
			p := filepath.Join(f.ws, dir, ".git/hooks/pre-commit")
			fi, err := os.Stat(p)
			if err != nil {
				continue
			}
			if fi.Mode().Perm() != 0o644 || f.sha(p) != f.sha(filepath.Join(f.ws, dir, ".git/config")) {
				f.Errorf("%s was changed: %v", p, fi.Mode())
			}
		}
	}
	setup := func(dir string) func(*fixture) {
		return func(f *fixture) {
			f.repository(dir)
			before[f.dir] = f.names()
		}
	}
	// The guard has no openat2(2): its flags are behind a pointer.
	want := map[string]string{"create, by openat2": "ENOSYS", "removexattrat": "ENOSYS", "FS_IOC_SETFLAGS": "ENOTTY", "FS_IOC_FSSETXATTR": "ENOTTY", "FS_IOC_ENABLE_VERITY": "ENOTTY"}
	except := map[string]string{"set the mode of config by its ACL": "not every file system has them", "set the mode of hook by its ACL": "not every file system has them"}
	for _, act := range []string{"removexattrat", "FS_IOC_SETFLAGS", "FS_IOC_FSSETXATTR", "FS_IOC_ENABLE_VERITY"} {
		except[act] = "not every kernel or file system has it"
	}
	if _, _, e := unix.Syscall6(unix.SYS_FCHMODAT2, ^uintptr(0), 0, 0, 0, 0, 0); e == unix.ENOSYS {
		for _, name := range []string{"config", "hook"} {
			except["chmod "+name+", the newer way"] = "fchmodat2(2) came with Linux 6.6"
		}
	}
	return []entry{
		{
			id: "F06", title: "change, remove and create protected paths", alone: true,
			setup:    setup("r"),
			args:     func(f *fixture) []string { return []string{"in=" + filepath.Join(f.ws, "r"), "move=1"} },
			deny:     denied,
			want:     want,
			check:    unchanged,
			controls: []control{unprotected(except), jailed(jail{except: except})},
		},
		{
			id: "F08", title: "protected paths ten levels deep", alone: true,
			setup:    setup(deepest),
			args:     func(f *fixture) []string { return []string{"in=" + filepath.Join(f.ws, deepest)} },
			deny:     denied,
			want:     want,
			check:    unchanged,
			controls: []control{unprotected(except)},
		},
		{
			id: "F10", title: "shell start-up files, autostart, systemd user units",
			args: func(f *fixture) []string { return []string{"in=" + f.ws} },
			deny: denied + "|ENOENT", // ENOENT: the directory above could not be made
			check: func(f *fixture, _ *outcome) {
				for _, n := range []string{".bashrc", ".profile", ".config/autostart/x.desktop"} {
					if exists(filepath.Join(f.ws, n)) {
						f.Errorf("%s is on the host", n)
					}
				}
			},
			controls: []control{unprotected(nil)},
		},
		{id: "F09", title: "hostile git config, worktree, bare repository; then git on the host", test: hostileGit},
		{id: "F35", title: "a rebase with lines of the command's; then git rebase --continue on the host", test: hostileRebase},
		{id: "F39", title: "linked worktrees with a configuration of the command's; then git on the host", test: hostileTree},
		{
			id: "F34", title: "change what was passed in for reading",
			stdin: func(f *fixture) *os.File {
				in, err := os.Open(filepath.Join(f.outside, "canary"))
				if err != nil {
					f.Fatal(err)
				}
				f.Cleanup(func() { in.Close() })
				return in
			},
			deny: denied,
			controls: []control{{"without protected paths", func(f *fixture, e *entry) {
				o := f.do(call{args: f.strict([]string{"--unprotect", "all"}, f.attack, e.id), stdin: e.stdin(f)})
				e.judge(f, f.report(o), func(string) string { return "ok" })
				if fi, err := os.Stat(filepath.Join(f.outside, "canary")); err != nil || fi.Mode() != 0o777 {
					f.Errorf("%v %v", fi.Mode(), err)
				}
			}}},
		},
		{id: "F23", title: "sbxrun SIGKILLed leaves no placeholder", test: killedGuard},
	}
}

// TestProtectedMadeDuringRun: directories that the command makes are no way
// around.
func TestProtectedMadeDuringRun(t *testing.T) {
	eachWho(t, func(f *fixture) {
		o := f.do(call{args: f.strict(nil, f.attack, "F08", "in="+f.ws, "make=12")})
		e := &entry{id: "F08", deny: denied, want: map[string]string{"create, by openat2": "ENOSYS"}}
		e.judge(f, f.report(o), e.inside)
	})
}

// TestProtectedRaces: threads that change the path, the directories on the way
// and the working directory while a call is made do not get past.
func TestProtectedRaces(t *testing.T) { protectedRaces(t, "300") }

// TestLongProtectedRaces tries more often.
func TestLongProtectedRaces(t *testing.T) { protectedRaces(t, "1500") }

func protectedRaces(t *testing.T, rounds string) {
	eachWho(t, func(f *fixture) {
		run := func(want, rounds string, flags ...string) {
			f.Helper()
			o := f.do(call{args: f.strict(flags, f.attack, "races", "in="+f.ws, "rounds="+rounds, "once="+map[bool]string{true: "1", false: "0"}[want == "ok"])})
			e := &entry{id: "races", deny: want}
			e.judge(f, f.report(o), e.inside)
		}
		run("never", rounds)
		// The control: these do make what is protected, sooner or later.
		run("ok", "100000", "--unprotect", "all")
	})
}

// TestProtectedTwoRuns: two runs in one workspace, each with a guard of its own, do not
// do together what neither may do alone: exchange the directory between the question
// whether it is a repository and the act, or make one part of a repository each.
func TestProtectedTwoRuns(t *testing.T) { protectedTwoRuns(t, "500", "100") }

// TestLongProtectedTwoRuns tries for longer.
func TestLongProtectedTwoRuns(t *testing.T) { protectedTwoRuns(t, "5000", "1500") }

// protectedTwoRuns has ms for the first, and each for every act of the second.
func protectedTwoRuns(t *testing.T, ms, each string) {
	eachWho(t, func(f *fixture) {
		// both runs an attack twice, and returns what the parts reported.
		both := func(flags, args []string, parts ...string) (reports []*report) {
			var wg sync.WaitGroup
			reports = make([]*report, len(parts))
			for i, part := range parts {
				wg.Go(func() {
					o := f.do(call{args: f.strict(flags, slices.Concat([]string{f.attack}, args, []string{"in=" + f.ws, "part=" + part})...)})
					reports[i] = f.report(o)
				})
			}
			wg.Wait()
			return reports
		}
		for _, tt := range []struct {
			want, ms, each, once string
			flags                []string
		}{
			{"never", ms, each, "0", nil},
			{"ok", "10000", "10000", "1", []string{"--unprotect", "all"}}, // the control
		} {
			for _, name := range []string{"bare", "empty", "started", "stop", "moved", "moved.l", "moved.h", "done"} {
				os.RemoveAll(filepath.Join(f.ws, name))
			}
			os.MkdirAll(filepath.Join(f.ws, "bare/refs"), 0o755)
			f.own()
			got := "never"
			for i, r := range both(tt.flags, []string{"completes", "ms=" + tt.ms, "once=" + tt.once}, "HEAD", "objects") {
				if r.got("a repository is completed by two") == "ok" {
					got = "ok"
				}
				if part := []string{"HEAD", "objects"}[i]; r.got(neighbour+part+" alone") != "ok" {
					f.Errorf("%s alone: %q", part, r.got(neighbour+part+" alone"))
				}
			}
			if got != tt.want {
				f.Errorf("%v: a repository made by two: %s, want %s", tt.flags, got, tt.want)
			}

			os.RemoveAll(filepath.Join(f.ws, "bare"))
			f.git("init", "-q", "--bare", filepath.Join(f.ws, "bare"))
			os.MkdirAll(filepath.Join(f.ws, "bare/hooks"), 0o755)
			os.Mkdir(filepath.Join(f.ws, "empty"), 0o755)
			f.own()
			reports := both(tt.flags, []string{"exchanged", "ms=" + tt.each}, "change", "exchange")
			if got := reports[1].got(neighbour + "exchange"); got != "ok" {
				f.Errorf("the directories were exchanged: %q", got)
			}
			if len(reports[0].Acts) < 9 {
				f.Errorf("not all was tried: %v", reports[0].Acts)
			}
			for _, a := range reports[0].Acts {
				if a.Got != tt.want {
					f.Errorf("%v: %s: %s, want %s", tt.flags, a.Act, a.Got, tt.want)
				}
			}
		}
	})
}

// TestSessionProtected: protected paths hold for the commands of a session as for
// that of a run: against the same attacks, against two commands that do together
// what neither may do alone, and when the session's holder is killed.
func TestSessionProtected(t *testing.T) {
	t.Parallel()
	const deep = "1/2/3/4/5/6/7/8/9/10/r"
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		protected := map[string]entry{}
		for _, e := range protectTests() {
			protected[e.id] = e
		}
		attack := func(s *session, id string, judged func(string) string, args ...string) {
			s.Helper()
			e, ok := protected[id]
			if !ok {
				e = entry{id: id, deny: "never"}
			}
			if judged == nil {
				judged = e.inside
			}
			e.judge(s.fixture, s.report(s.cli(append([]string{"exec", s.id, "--", s.attack, id}, args...)...)), judged)
		}
		// Repositories that came while the session was there are as protected as
		// those that it began with.
		for _, dir := range []string{"r", deep} {
			s.repository(dir)
		}
		before, config := s.names(), s.sha(filepath.Join(s.ws, "r/.git/config"))
		attack(s, "F06", nil, "in="+filepath.Join(s.ws, "r"), "move=1")
		attack(s, "F08", nil, "in="+filepath.Join(s.ws, deep))
		attack(s, "races", nil, "in="+s.ws, "rounds=400")
		if now := s.names(); now != before {
			t.Errorf("the workspace held\n%sand holds\n%s", before, now)
		}
		s.want("mkdir -p made/by/another", "")
		attack(s, "F08", nil, "in="+filepath.Join(s.ws, "made/by/another"), "make=12")
		attack(s, "F10", nil, "in="+s.ws)

		// Together they make what neither may make once the other two are there.
		together := func(s *session, ms, once string) bool {
			s.Helper()
			s.want("mkdir -p bare/refs", "")
			var completed atomic.Bool
			var wg sync.WaitGroup
			for _, part := range []string{"HEAD", "objects"} {
				wg.Go(func() {
					o := s.cli("exec", s.id, "--", s.attack, "completes", "in="+s.ws, "part="+part, "ms="+ms, "once="+once)
					if got := s.report(o).got("a repository is completed by two"); got == "ok" {
						completed.Store(true)
					} else if got != "never" {
						s.Errorf("%s: got %q: %v", part, got, o)
					}
					if got := s.report(o).got(neighbour + part + " alone"); got != "ok" {
						s.Errorf("%s alone: %q: %v", part, got, o)
					}
				})
			}
			wg.Wait()
			return completed.Load()
		}
		if together(s, "1500", "0") {
			t.Error("two commands made a repository")
		}

		// The denials are in the result of the command that met them.
		r := s.result(s.exec("mkdir .vscode; echo x >r/.git/hooks/pre-commit; true", "--json"))
		if len(r.Denials) != 2 || !strings.HasPrefix(r.Denials[0].Call, "mkdir") || r.Denials[1].Target != filepath.Join(s.ws, "r/.git/hooks/pre-commit") {
			t.Errorf("denials: %+v", r.Denials)
		}
		if r := s.result(s.exec("touch plain", "--json")); len(r.Denials) != 0 {
			t.Errorf("another command's denials: %+v", r.Denials)
		}

		// The holder is killed in the middle of it, at several moments.
		s.want("rm -rf made bare plain", "")
		for i := range 4 {
			k := s
			if i > 0 {
				k = newSession(t, w)
				k.repository("r")
			}
			before := k.names()
			k.exec(`while :; do mkdir .vscode; echo x >.mcp.json; echo x >>r/.git/config; mv r/.git g; ln -s x .claude; mkdir -p a/b; rm -r a; done 2>/dev/null`, "-d")
			if !within(10*time.Second, func() bool { return len(processes("mkdir .vscode; echo x")) > 0 }) {
				t.Fatal("the command does not run")
			}
			time.Sleep(time.Duration(3+i*11) * time.Millisecond)
			if err := syscall.Kill(k.info().Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := survivors.Gone(func() []string { return processes("mkdir .vscode; echo x") }); err != nil {
				t.Error(err)
			}
			os.RemoveAll(filepath.Join(k.ws, "a"))
			if now := k.names(); now != before {
				t.Errorf("the workspace held\n%sand holds\n%s", before, now)
			}
			if k.sha(filepath.Join(k.ws, "r/.git/config")) != config && i == 0 {
				t.Error("a protected file was changed")
			}
		}

		// The control: in a session without protected paths all of it succeeds.
		c := newSession(t, w, "--unprotect", "all")
		c.repository("r")
		except := func(act string) string {
			if strings.Contains(act, "by its ACL") || strings.Contains(act, "the newer way") || strings.HasPrefix(act, "FS_IOC") || act == "removexattrat" {
				return "*"
			}
			return "ok"
		}
		attack(c, "F06", except, "in="+filepath.Join(c.ws, "r"), "move=1")
		attack(c, "F10", except, "in="+c.ws)
		if !together(c, "10000", "1") {
			t.Error("two commands made no repository where nothing is protected: the attack is none")
		}
	})
}

// TestSessionPeers: what the guard opens for a command of a session is what the
// command itself may open. A process that is about to become a command shares the
// memory of the session's holder.
func TestSessionPeers(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T, w who) {
		s := newSession(t, w)
		s.exec("sleep 60", "-d")
		done := make(chan *outcome)
		go func() { done <- s.cli("exec", s.id, "--", s.attack, "F33", "ms=1500") }()
		for range 10 {
			s.exec("true")
		}
		e := &entry{id: "F33", deny: "never"}
		o := <-done
		e.judge(s.fixture, s.report(o), e.inside)
		if len(s.report(o).Acts) < 7 {
			t.Errorf("%v", o)
		}
		// The control: of one command's own processes both may open all of it.
		s.want(`sleep 5 & python3 -c 'import os, sys; os.open("/proc/%s/mem" % sys.argv[1], os.O_RDONLY)' $! && echo opened; kill $!`, "opened\n")

		// A file that is open for writing is no file to read.
		out, err := os.OpenFile(filepath.Join(s.outside, "second"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		for _, flags := range []string{"O_RDONLY", "O_RDONLY | os.O_CREAT", "O_RDWR"} {
			script := `import os
try: print(os.read(os.open("/dev/stdin", os.` + flags + `), 9))
except PermissionError: print("no")`
			if o := s.do(call{args: s.strict(nil, "python3", "-c", script), stdin: out}); o.stdout != "no\n" {
				t.Errorf("%s: %v", flags, o)
			}
		}
	})
}

// hostileGit lets a command do its worst to repositories, and runs Git on the
// host afterwards. Whatever Git would run touches a canary.
func hostileGit(f *fixture) {
	script := `
		evil='[core]
	fsmonitor = "touch CANARY; false"
	hooksPath = HOOKS
	pager = "touch CANARY; cat"
	sshCommand = "touch CANARY"
[alias]
	st = "!touch CANARY"
[filter "x"]
	clean = "touch CANARY; cat"
	smudge = "touch CANARY; cat"
[diff]
	external = "touch CANARY; true"
[gpg]
	program = "touch CANARY"
'
		evil=${evil//CANARY/$PWD/canary}; evil=${evil//HOOKS/$PWD/evil-hooks}
		mkdir evil-hooks; printf '#!/bin/sh\ntouch %s\n' "$PWD/canary" >evil-hooks/post-index-change; chmod +x evil-hooks/*
		cp evil-hooks/post-index-change evil-hooks/pre-commit
		cp evil-hooks/post-index-change evil-hooks/post-checkout
		echo "$evil" >plain-config
		cd r
		# in the repository that is there
		echo "$evil" >>.git/config
		git config core.fsmonitor "touch $PWD/../canary"
		cp ../evil-hooks/* .git/hooks/
		echo ../../evil >.git/commondir
		echo "$evil" >.git/config.worktree
		mv .git old; cp -r old .git; mv .git/config .git/c2; cp ../plain-config .git/config
		echo '* filter=x' >.gitattributes
		mkdir -p .git/worktrees/w; echo ../.. >.git/worktrees/w/commondir; cp .git/HEAD .git/worktrees/w/
		# one of its own, in each disguise
		for d in sub bare file link tree made; do mkdir ../$d; done
		(cd ../sub; git init -q .; mkdir -p .git/objects .git/refs; echo 'ref: refs/heads/main' >.git/HEAD; echo "$evil" >.git/config)
		(cd ../made; git init -q .; cp ../plain-config .git/config; cp ../plain-config .git/config.lock; mv .git/config.lock .git/config; (cat .git/config; echo "$evil") >.git/c; mv .git/c .git/config
			cp ../evil-hooks/pre-commit .git/hooks/pre-commit.sample; mv .git/hooks/pre-commit.sample .git/hooks/pre-commit; ln .git/hooks/pre-commit.sample .git/hooks/pre-commit; mv ../evil-hooks .git/h; mv .git/h .git/hooks
			git config core.hooksPath ../evil-hooks; git config core.fsmonitor "touch $PWD/../canary"; git remote add origin "ext::sh -c touch% $PWD/../canary"; git fetch -q origin
			rm -f .git/config; ln ../plain-config .git/config; ln -s ../plain-config .git/config; ln -s testing .git/tabcdef; cp ../plain-config .git/testing; mv .git/tabcdef .git/config
			: >.git/config; echo "$evil" >>.git/config; chmod 666 .git/config; echo "$evil" | dd of=.git/config conv=nocreat
			mkdir -p .git/modules/x/objects .git/modules/x/refs; echo 'ref: refs/heads/main' >.git/modules/x/HEAD; echo "$evil" >.git/modules/x/config; echo ../../evil >.git/commondir
			python3 -c 'import hashlib, os; c = "../r/.git/config"; os.setxattr(c, "user.sbxrun.made", hashlib.sha256(open(c, "rb").read()).digest())'; cp ../plain-config ../r/.git/c; mv ../r/.git/c ../r/.git/config; rm ../r/.git/config)
		(cd ../bare; git init -q --bare .; mkdir -p objects refs; echo 'ref: refs/heads/main' >HEAD; (echo "$evil"; printf '[core]\n worktree = .\n') >config)
		(cd ../file; mkdir -p x/objects x/refs; ln -s refs/heads/main x/HEAD; echo "$evil" >x/config; echo 'gitdir: x' >.git)
		(cd ../link; mkdir -p x/refs x/objects; cp ../r/.git/HEAD x/; echo "$evil" >x/config; ln -s x .git)
		(cd ../tree; mkdir x y; echo ../y >x/commondir; echo 'ref: refs/heads/main' >x/HEAD; mkdir y/objects y/refs; echo "$evil" >y/config; ln x/HEAD y/HEAD; echo 'gitdir: x' >.git; mv x .git)
		# one that is there, taken apart: what is missing could be a socket afterwards
		(cd ../taken; mv objects o; echo "$evil" | dd of=config conv=nocreat; cp ../evil-hooks/* hooks/)
		(cd ../bare2 2>/dev/null || mkdir ../bare2 && cd ../bare2; cp -r ../r/.git/. .; echo "$evil" >config)
		true`
	canary := filepath.Join(f.ws, "canary")
	host := func() {
		for _, dir := range []string{"r", "sub", "made", "made/.git/modules/x", "bare", "bare2", "file", "link", "tree", "tree/x", "file/x", "link/x", "."} {
			if !exists(filepath.Join(f.ws, dir)) {
				continue
			}
			for _, args := range [][]string{{"status"}, {"log", "-1"}, {"diff"}, {"st"}, {"add", "-A"}, {"checkout", "-q", "HEAD"}, {"-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"}} {
				// What it says does not matter: many of these fail.
				f.do(call{args: f.who.command(append([]string{f.need("git"), "-C", filepath.Join(f.ws, dir)}, args...)...)})
			}
		}
	}
	prepare := func(f *fixture) {
		f.repository("r")
		// The hook that the fixture has is not the attacker's.
		os.Remove(filepath.Join(f.ws, "r/.git/hooks/pre-commit"))
		f.git("-C", filepath.Join(f.ws, "r"), "-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "--allow-empty", "-m", "first")
		f.git("init", "-q", "--bare", filepath.Join(f.ws, "taken"))
	}
	prepare(f)
	config := f.sha(filepath.Join(f.ws, "r/.git/config"))
	taken := f.sha(filepath.Join(f.ws, "taken/config"))
	o := f.do(call{args: f.strict(nil, "bash", "-c", script)})
	if f.sha(filepath.Join(f.ws, "r/.git/config")) != config {
		f.Errorf("the repository's configuration was changed: %v", o)
	}
	if f.sha(filepath.Join(f.ws, "taken/config")) != taken || exists(filepath.Join(f.ws, "taken/hooks/pre-commit")) {
		f.Errorf("a repository without objects was given commands: %v", o)
	}
	os.Remove(canary)
	host()
	if exists(canary) {
		f.Errorf("Git on the host ran what the command planted: %v", o)
	}
	// The neighbour: Git still works there.
	if log := f.git("-C", filepath.Join(f.ws, "r"), "log", "--format=%s"); !strings.Contains(log.stdout, "first") {
		f.Errorf("the repository is broken: %v", log)
	}

	// The control: without protected paths the same script gets its canary run.
	f.Run("control without protected paths", func(t *testing.T) {
		c := newFixture(t, f.who)
		prepare(c)
		outer := f
		f = c
		defer func() { f = outer }()
		canary = filepath.Join(c.ws, "canary")
		c.do(call{args: c.strict([]string{"--unprotect", "all"}, "bash", "-c", script)})
		os.Remove(canary)
		host()
		if !exists(canary) {
			t.Error("Git on the host ran nothing: the attack is none")
		}
	})
}

// hostileRebase leaves a rebase whose state holds what Git executes, each file by each way
// that there is, and goes on with it on the host.
func hostileRebase(f *fixture) {
	const script = `import ctypes, os, shutil, subprocess, sys
os.chdir("r")
libc = ctypes.CDLL(None, use_errno=True)
d, canary = ".git/rebase-merge/", sys.argv[1]
todo, other, evil = d + "git-rebase-todo", ".git/other", "exec touch " + canary + "\n"
def put(name, text):
    with open(name, "w") as f: f.write(text)
def read(name):
    try: return open(name).read()
    except OSError: return ""
def renameat2(a, b, flags):
    if libc.syscall(316 if os.uname().machine == "x86_64" else 276, -100, a.encode(), -100, b.encode(), flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def rename(text, to):
    put(other, text); os.rename(other, to)
def state(text): # a whole one, elsewhere
    shutil.rmtree(".git/state", True); shutil.copytree(d, ".git/state"); put(".git/state/git-rebase-todo", text)
def swapped():
    state(evil); os.rename(d, ".git/was"); os.rename(".git/state", d)
def exchanged():
    state(evil); renameat2(".git/state", d.rstrip("/"), 2)
def linked():
    state(evil); shutil.rmtree(d); os.symlink("state", d.rstrip("/"))
def kept():
    with open(d + "message", "w+") as f:
        f.write("noop\n"); f.flush(); os.rename(d + "message", todo); f.seek(0); f.write(evil)
def reader():
    rename("noop\n", todo); os.rename(todo, other)
    fd = os.open(other, os.O_RDONLY); os.rename(other, todo); open("/proc/self/fd/%d" % fd, "w").write(evil)
def second():
    os.link(todo, other); put(other, evil)
def hidden():
    shutil.rmtree(".git/made", True); os.makedirs(".git/made/rebase-merge"); put(".git/made/rebase-merge/git-rebase-todo", evil); put(".git/made/HEAD", "ref: refs/heads/main"); put(".git/made/commondir", "..")
said = []
def bad(*what):
    print("BAD", *what); said.append("BAD")
def begin():
    if os.path.islink(d.rstrip("/")) or not os.path.exists(d + "head-name"):
        subprocess.run("rm -rf .git/rebase-merge; git checkout -qf main; GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git rebase -q -i " + base, shell=True, check=True)
base = subprocess.run(["git", "rev-parse", "HEAD~1"], capture_output=True, text=True, check=True).stdout
ways = [lambda t, x=x: f(t, x) for x in (evil, "noop\n" + evil, "\t" + evil, "pick HEAD\0\n" + evil) for f in (
    lambda t, x: put(t, x), lambda t, x: rename(x, t), lambda t, x: (put(t + ".lock", x), os.rename(t + ".lock", t)),
    lambda t, x: (put(d + "sedAbCdEf", x), os.rename(d + "sedAbCdEf", t)), lambda t, x: (put(d + "done", x), os.rename(d + "done", t)),
    lambda t, x: (put(other, x), os.link(other, t)), lambda t, x: (put(other, x), os.symlink("../other", t)),
    lambda t, x: (put(other, x), renameat2(other, t, 2)), lambda t, x: open(t, "a").write(x))]
for way in ways + [lambda t, f=f: f() for f in (swapped, exchanged, linked, kept, reader, second, hidden)]:
    for name in "git-rebase-todo", "strategy", "strategy_opts", "gpg_sign_opt", "trailer", "author-script", "msgnum", "end", "Git-Rebase-Todo":
        begin()
        try: way(d + name); got = "done"
        except OSError as e: got = e.strerror
        if "touch" in read(d + name) or os.path.islink(d.rstrip("/")): bad(ways.index(way) if way in ways else way, name, got)
rename("[options]\n\tstrategy = ../x\n", other)
for name in ".git/sequencer", ".git/rebase-apply":
    try: os.mkdir(name)
    except OSError: pass
for name in ".git/sequencer/opts", ".git/sequencer/todo", ".git/rebase-apply/next", d + "message/x":
    for f in put, lambda n, x: rename(x, n):
        try: f(name, "[options]\n\tstrategy = touch ../x\n" + evil)
        except OSError: pass
    if "touch" in read(name): bad(name)
for name in ".git/sequencer", ".git/rebase-apply", ".git/state":
    shutil.rmtree(name, True)
if "BAD" in said: shutil.rmtree(d, True) # the control: with all of it Git only complains
begin()
try: put(todo, evil)
except OSError: pass
print("left:", *sorted(os.listdir(d)))
`
	act := func(f *fixture, flags ...string) (canary string, o *outcome) {
		f.repository("r")
		r := filepath.Join(f.ws, "r")
		os.Remove(filepath.Join(r, ".git/hooks/pre-commit"))
		for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}, {"commit", "-q", "--allow-empty", "-m", "first"}, {"commit", "-q", "--allow-empty", "-m", "second"}} {
			f.git(append([]string{"-C", r}, args...)...)
		}
		canary = filepath.Join(f.ws, "canary")
		o = f.do(call{args: f.strict(flags, "python3", "-c", script, canary)})
		for _, args := range [][]string{{"status"}, {"rebase", "--continue"}, {"rebase", "--skip"}, {"rebase", "--abort"}, {"cherry-pick", "--continue"}, {"am", "--continue"}} {
			f.do(call{args: f.who.command(append([]string{f.need("git"), "-C", r}, args...)...)})
		}
		return canary, o
	}
	canary, o := act(f)
	if exists(canary) || strings.Contains(o.stdout, "BAD") || !strings.Contains(o.stdout, " head-name interactive ") || strings.Contains(o.stdout, "msgnum") {
		f.Errorf("Git on the host ran what the command planted, or could have: %v", o)
	}
	f.Run("control without protected paths", func(t *testing.T) {
		c := newFixture(t, f.who)
		if canary, o := act(c, "--unprotect", ".git/rebase-merge", "--unprotect", ".git/rebase-apply", "--unprotect", ".git/sequencer"); !exists(canary) {
			t.Errorf("Git on the host ran nothing: the attack is none: %v", o)
		}
	})
}

// TestWorktree: a command makes linked worktrees in the workspace, works in them, in this run
// and in later ones, moves and removes them; so does the host.
func TestWorktree(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.repository("r")
		r := filepath.Join(f.ws, "r")
		os.Remove(filepath.Join(r, ".git/hooks/pre-commit"))
		for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}, {"commit", "-q", "--allow-empty", "-m", "first"}, {"worktree", "add", "-q", "theirs"}} {
			f.git(append([]string{"-C", r}, args...)...)
		}
		run := func(script string) string { f.Helper(); return f.work([]string{"-C", r}, script) }
		out := run(`
			git worktree add -q -b one .worktrees/one; cd .worktrees/one; git rev-parse --git-common-dir
			echo text >file; git add file; git commit -qm one; git worktree add -q -b two ../../two; cd ../../two; git log --format=%s -1 one; git rebase -q one
			# Git reads the files of worktrees that others are making, and ends if one is empty still.
			add() { git worktree add -q --force -B b$1 ../w$1; }
			for i in 1 2 3 4; do { add $i 2>/dev/null || { sleep 0.3; add $i 2>/dev/null; } || { sleep 0.$i; add $i; }; } & done; wait; git -C ../w3 status --porcelain --branch
			git worktree remove ../w2; git worktree move ../w3 ../moved; git worktree lock ../w4; git worktree list | wc -l; ls ../w2 2>/dev/null || true`)
		f.wantLines(out, r+"/.git", "one", "## b3", "7")
		if got := f.git("-C", filepath.Join(r, "two"), "log", "--format=%s").stdout; got != "one\nfirst\n" {
			t.Errorf("on the host: %q", got)
		}
		// A later run, in the worktree alone.
		f.wantLines(f.work([]string{"-C", filepath.Join(r, ".worktrees/one")}, `echo more >>file; git commit -qam more; git log --format=%s -1`), "more")
		// What is the workspace's own stays; what the host made goes too.
		f.work([]string{"-C", filepath.Join(r, ".worktrees/one")}, `! rm .git 2>/dev/null; ! echo x >.git`)
		run(`git worktree remove theirs; git worktree unlock w4; for w in .worktrees/one two w1 w4 moved; do git worktree remove $w; done; git worktree list; ! ls .git/worktrees 2>/dev/null`)
		if got := f.git("-C", r, "log", "--all", "--topo-order", "--format=%s").stdout; got != "more\none\nfirst\n" {
			t.Errorf("on the host: %q", got)
		}
		run(`git worktree add -q last`)
		f.git("-C", r, "worktree", "remove", "last")
		// What leads to a repository whose place can be taken by a link is not made.
		f.wantLines(f.work(nil, `git -C r worktree add -q ../no 2>/dev/null || echo refused; ! ls no/.git 2>/dev/null; ls r/.git/worktrees 2>/dev/null || true`), "refused")
	})
}

// TestRepairAndSubmodule: what docs/jobs.md says of linked worktrees that were moved, and
// of submodules that are new.
func TestRepairAndSubmodule(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.repository("r")
		f.repository("lib")
		r, lib := filepath.Join(f.ws, "r"), filepath.Join(f.ws, "lib")
		for _, dir := range []string{r, lib} {
			os.Remove(filepath.Join(dir, ".git/hooks/pre-commit"))
			f.git("-C", dir, "-c", "user.name=Ann", "-c", "user.email=ann@example.com", "commit", "-q", "--allow-empty", "-m", "first")
		}
		in := []string{"-C", r, "--ro", lib}
		f.work(in, `git worktree add -q one; mv one two; git worktree repair two 2>/dev/null; git worktree list --porcelain | grep -qx "worktree $PWD/two"; git -C two status`)
		if got := f.git("-C", filepath.Join(r, "two"), "rev-parse", "--git-common-dir").stdout; got != r+"/.git\n" {
			f.Errorf("on the host: %q", got)
		}
		try := func(flags []string, words ...string) *outcome {
			f.Helper()
			return f.run(call{args: f.strict(append(slices.Clone(in), flags...), append([]string{"git"}, words...)...)})
		}
		wantRefused := func(o *outcome, path, grant string) {
			f.Helper()
			if o.code == 0 || !strings.Contains(o.stderr, "note: refused: "+path+": protected path ") || !strings.Contains(o.stderr, "hint: --unprotect "+grant+"\n") {
				f.Errorf("%v", o)
			}
		}
		// The repository was moved, by the host.
		moved := filepath.Join(f.ws, "moved")
		if err := os.Rename(r, moved); err != nil {
			f.Fatal(err)
		}
		in[1] = moved
		wantRefused(try(nil, "worktree", "repair", "two"), moved+"/two/.git", ".git/")
		if o := try([]string{"--unprotect", ".git/"}, "worktree", "repair", "two"); o.code != 0 {
			f.Errorf("%v", o)
		}
		f.git("-C", filepath.Join(moved, "two"), "status")

		add := []string{"-c", "protocol.file.allow=always", "submodule", "add", "-q", "file://" + lib, "sub"}
		wantRefused(try(nil, add...), moved+"/sub/.git", ".git/")
		if o := try([]string{"--workspace", "overlay"}, add...); o.code != 0 || !strings.Contains(o.stderr, "kept as change set") {
			f.Errorf("%v", o)
		}
		if o := f.do(call{args: f.who.command(sbxrun, "discard", "--all")}); o.code != 0 {
			f.Errorf("%v", o)
		}
		if o := try([]string{"--unprotect", ".git/"}, add...); o.code != 0 {
			f.Errorf("%v", o)
		}
		if got := f.git("-C", moved, "submodule", "status").stdout; !strings.Contains(got, " sub (") {
			f.Errorf("on the host: %q", got)
		}
		// A clone has the submodule's name and not its URL yet.
		f.git("-C", moved, "-c", "user.name=Ann", "-c", "user.email=ann@example.com", "commit", "-qm", "sub")
		clone := filepath.Join(f.ws, "clone")
		f.git("clone", "-q", moved, clone)
		in[1] = clone
		update := []string{"-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init"}
		wantRefused(try(nil, update...), clone+"/.git/config", ".git/config")
		if o := try([]string{"--unprotect", ".git/"}, update...); o.code != 0 {
			f.Errorf("%v", o)
		}
	})
}

// hostileTree gives linked worktrees another configuration, by each part of them and by
// places where the way to it leads elsewhere, and runs Git on the host in all of them.
func hostileTree(f *fixture) {
	const script = `import os, shutil, socket, subprocess, sys
config = "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = touch " + sys.argv[1] + "; false\n\thooksPath = " + os.getcwd() + "/evil\n"
shutil.copytree("hooks", "evil")
def put(name, text):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "w") as f: f.write(text)
def repository(at): # the part that a directory with HEAD would find
    for d in "objects", "refs": os.makedirs(at + "/" + d, exist_ok=True)
    put(at + "/config", config)
def swap(a, b):
    os.rename(a, a + ".was"); os.rename(b, a)
def away(): # where ../.. is no repository of Git's
    repository(".git/modules"); swap(".git/modules/libs/foo", ".git/worktrees/theirs")
def above():
    repository(".git/modules/deep"); os.rename(".git/worktrees", ".git/modules/deep/libs"); os.rename(".git/modules/deep/libs/theirs", ".git/theirs"); swap(".git/modules/libs/foo", ".git/theirs")
def deeper():
    put(".git/modules/libs/new/HEAD", "ref: refs/heads/main\n"); put(".git/modules/libs/new/commondir", "../.."); repository(".git/modules"); swap(".git/modules/libs/foo", ".git/modules/libs/new")
def directly(to):
    d = ".git/worktrees/mine"
    put(d + "/HEAD", "ref: refs/heads/main\n"); put(d + "/gitdir", os.getcwd() + "/mine/.git"); put("mine/file", "")
    to(d)
    put("mine/.git", "gitdir: " + os.getcwd() + "/evil-git")
def renamed(d):
    repository("evil-git"); put(".git/c", "../../evil-git"); os.rename(".git/c", d + "/commondir")
def linked(d):
    repository("evil-git"); put(".git/c", "../../evil-git"); os.link(".git/c", d + "/commondir")
def written(d):
    repository("evil-git")
    with open(d + "/commondir", "w") as c:
        with open("mine/.git", "w") as link:
            for f, text in (c, "../../../evil-git"), (link, "gitdir: " + os.getcwd() + "/evil-git"): f.write(text); f.flush()
def own(d):
    repository(d); put(d + "/hooks/post-index-change", "#!/bin/sh\ntouch " + sys.argv[1]); put(d + "/config.worktree", config)
def removed(d):
    put(d + "/commondir", "../.."); put("mine/.git", ""); os.unlink(d + "/HEAD"); put(d + "/config.worktree", config); os.unlink(d + "/commondir"); repository(d); put(d + "/HEAD", "ref: refs/heads/main\n")
def before(d): # in a directory that is moved there
    put(".git/state/HEAD", "ref: refs/heads/main\n"); put(".git/state/commondir", "../../../evil-git"); repository("evil-git"); shutil.rmtree(d); os.rename(".git/state", d)
def other(d): # a repository that a socket makes one, until it is removed
    put("fake/HEAD", "ref: refs/heads/main\n"); os.mkdir("fake/objects"); s = socket.socket(socket.AF_UNIX); s.bind("fake/refs")
    put("fake/worktrees/x/HEAD", "ref: refs/heads/main\n"); put("fake/worktrees/x/gitdir", os.getcwd() + "/fake2/.git"); put("fake/worktrees/x/commondir", "../.."); put("fake2/.git", "gitdir: " + os.getcwd() + "/fake/worktrees/x")
    os.unlink("fake/refs"); os.unlink("fake/HEAD"); repository("fake")
def bare(d):
    os.makedirs("b/.git/worktrees/x"); put("b/.git/worktrees/x/gitdir", os.getcwd() + "/mine/.git"); put("b/.git/worktrees/x/HEAD", "ref: refs/heads/main\n"); put("b/.git/worktrees/x/commondir", ""); put("mine/.git", "")
    repository("b"); put("b/.git/objects/x", ""); put("b/.git/config", config); os.rename("b/.git", "b/git")
for f in [lambda t=t: directly(t) for t in (renamed, linked, written, own, removed, before, other, bare)] + [away, above, deeper]:
    for d in ".git/worktrees/mine", "mine", "evil-git": shutil.rmtree(d, True)
    try: f()
    except OSError as e: print(e)
`
	act := func(f *fixture, flags ...string) (canary string, o *outcome) {
		for _, name := range []string{"lib", "r"} {
			f.repository(name)
			r := filepath.Join(f.ws, name)
			os.Remove(filepath.Join(r, ".git/hooks/pre-commit"))
			for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}, {"commit", "-q", "--allow-empty", "-m", "first"}} {
				f.git(append([]string{"-C", r}, args...)...)
			}
		}
		r := filepath.Join(f.ws, "r")
		f.git("-C", r, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", filepath.Join(f.ws, "lib"), "libs/foo")
		f.git("-C", r, "worktree", "add", "-q", "theirs")
		canary = filepath.Join(f.ws, "canary")
		f.write("ws/r/hooks/post-index-change", "#!/bin/sh\ntouch "+canary+"\n", 0o755)
		f.own()
		o = f.do(call{args: f.strict(append([]string{"-C", r}, flags...), "python3", "-c", script, canary)})
		for _, dir := range []string{"", "mine", "theirs", "libs/foo", "fake2"} {
			for _, args := range [][]string{{"status"}, {"log", "-1"}, {"add", "-A"}, {"worktree", "list"}} {
				if dir = filepath.Join(r, dir); exists(dir) {
					f.do(call{args: f.who.command(append([]string{f.need("git"), "-C", dir}, args...)...)})
				}
			}
		}
		return canary, o
	}
	if canary, o := act(f); exists(canary) {
		f.Errorf("Git on the host ran what the command planted: %v", o)
	}
	f.Run("control without protected paths", func(t *testing.T) {
		c := newFixture(t, f.who)
		if canary, o := act(c, "--unprotect", "all"); !exists(canary) {
			t.Errorf("Git on the host ran nothing: the attack is none: %v", o)
		}
	})
}

// TestCommonDir: Git on the host makes .git/commondir of a ref that a command names so. What
// that file leads to is nothing of the command's.
func TestCommonDir(t *testing.T) {
	eachWho(t, func(f *fixture) {
		// Git says which of its hashes the file will hold.
		const plant = `h=$(git rev-parse HEAD); d=.git/$h; [ "$1" = rebase ] && h=$(git rev-parse HEAD~1) && d=.git/$h
			mkdir $d || { mkdir -p x/$h && mv x/$h $d; } || { mkdir -p .git/y/$h && mv .git/y .git/worktrees; }; mkdir -p $d/info
			cp -r .git/objects .git/refs $d/; printf '[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "touch %s; false"\n' "$2" >$d/config
			if [ "$1" = rebase ]; then
				GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git rebase -q -i HEAD~1
				printf 'commondir\n%040d\n%s\n' 0 $h >.git/rebase-merge/update-refs
			else
				echo 'ref: commondir' >.git/ORIG_HEAD
			fi
			ls -d $d`
		for _, act := range [][]string{{"reset", "-q", "--hard", "HEAD~1"}, {"rebase", "--continue"}} {
			attack := func(f *fixture, flags ...string) (canary string, o *outcome) {
				name := "r-" + act[0]
				f.repository(name)
				r := filepath.Join(f.ws, name)
				os.Remove(filepath.Join(r, ".git/hooks/pre-commit"))
				for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}, {"commit", "-q", "--allow-empty", "-m", "first"}, {"commit", "-q", "--allow-empty", "-m", "second"}} {
					f.git(append([]string{"-C", r}, args...)...)
				}
				f.own()
				canary = filepath.Join(f.ws, "canary")
				o = f.do(call{args: f.strict(append([]string{"-C", r}, flags...), "bash", "-c", plant, "bash", act[0], canary)})
				for _, args := range [][]string{act, {"status"}} {
					f.do(call{args: f.who.command(append([]string{f.need("git"), "-C", r}, args...)...)})
				}
				return canary, o
			}
			if canary, o := attack(f); exists(canary) || o.code == 0 {
				f.Errorf("git %s: Git on the host ran what the command planted, or could have: %v", act[0], o)
			}
			f.Run("control without protected paths, git "+act[0], func(t *testing.T) {
				c := newFixture(t, f.who)
				if canary, o := attack(c, "--unprotect", "all"); !exists(canary) {
					t.Errorf("Git on the host ran nothing: the attack is none: %v", o)
				}
			})
		}
	})
}

// TestRerere: the next commit on the host resolves no conflict in a file that a command named,
// and keeps no copy of one, where the command can read it.
func TestRerere(t *testing.T) {
	eachWho(t, func(f *fixture) {
		const conflict = "mine\n<<<<<<< a\nx\n=======\ny\n>>>>>>> b\n"
		act := func(f *fixture, flags ...string) (changed, copied bool) {
			f.repository("r")
			r, outside := filepath.Join(f.ws, "r"), filepath.Join(f.ws, "outside")
			os.Remove(filepath.Join(r, ".git/hooks/pre-commit"))
			for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}} {
				f.git(append([]string{"-C", r}, args...)...)
			}
			f.write("ws/outside/conflict", conflict, 0o644)
			f.write("ws/outside/secret", "the secret\n", 0o644)
			f.own()
			f.do(call{args: f.strict(append([]string{"-C", r}, flags...), "bash", "-c", `cd .git; one=$(printf '1%.0s' {1..40}) two=$(printf '2%.0s' {1..40}); mkdir -p rr-cache/$one rr-cache/$two
				: >rr-cache/$one/preimage; : >rr-cache/$two/preimage; echo theirs >rr-cache/$two/postimage; mkdir -p info; echo "* merge=union" >info/attributes
				printf '%s\t%s\0' $one ../outside/secret $two ../outside/conflict >rr; mv rr MERGE_RR || cp rr MERGE_RR || ln rr MERGE_RR; mv rr MERGE_RR.lock; mv MERGE_RR.lock MERGE_RR`)})
			f.do(call{args: f.who.command(f.need("git"), "-C", r, "commit", "-q", "--allow-empty", "-m", "x")})
			b, err := os.ReadFile(filepath.Join(outside, "conflict"))
			if err != nil {
				f.Fatal(err)
			}
			images, _ := filepath.Glob(r + "/.git/rr-cache/*/postimage*")
			for _, name := range images {
				text, _ := os.ReadFile(name)
				copied = copied || strings.Contains(string(text), "the secret")
			}
			return string(b) != conflict, copied
		}
		if changed, copied := act(f); changed || copied {
			f.Errorf("outside: changed %v, copied %v", changed, copied)
		}
		// Git removes the file, there or not, and that is no refusal.
		res := f.result(f.do(call{args: f.strict([]string{"--json"}, "bash", "-ec", "cd r; rm -rf .git/rr-cache .git/MERGE_RR.lock .git/info/attributes; echo 1 >f; git add f; git commit -qm f; git switch -qc t HEAD~1; echo 2 >f; git add f; git commit -qm 2; ! git merge main; git merge --abort")}))
		if res.ExitCode != 0 || len(res.Denials) != 0 {
			f.Errorf("a merge that was ended: %+v", res)
		}
		f.Run("control without protected paths", func(t *testing.T) {
			if changed, copied := act(newFixture(t, f.who), "--unprotect", "all"); !changed || !copied {
				t.Errorf("outside: changed %v, copied %v; the attack is none", changed, copied)
			}
		})
	})
}

// killedGuard kills sbxrun at random moments of a command that tries to make
// protected paths all the time.
func killedGuard(f *fixture) {
	f.repository("r")
	before := f.names()
	const script = `mkdir began; while :; do mkdir .vscode; echo x >.mcp.json; echo x >>r/.git/config; mv r/.git g; ln -s x .claude; mkdir -p a/b; rm -r a; done 2>/dev/null`
	config := f.sha(filepath.Join(f.ws, "r/.git/config"))
	began := filepath.Join(f.ws, "began")
	for i := range 12 {
		f.do(call{args: f.strict(nil, "bash", "-c", script), started: func(cmd *exec.Cmd) {
			// A third while it is being set up, the others while the command is at it, which
			// on a busy machine takes longer than any of these moments.
			if i%3 > 0 && !within(30*time.Second, func() bool { return exists(began) }) {
				f.Error("the command does not run")
			}
			time.Sleep(time.Duration(5+i*9) * time.Millisecond)
			cmd.Process.Signal(unix.SIGKILL)
		}})
		if err := survivors.Gone(func() []string { return processes(f.ws) }); err != nil {
			f.Fatal(err)
		}
		os.RemoveAll(began)
	}
	os.RemoveAll(filepath.Join(f.ws, "a"))
	if now := f.names(); now != before {
		f.Errorf("the workspace held\n%sand holds\n%s", before, now)
	}
	if f.sha(filepath.Join(f.ws, "r/.git/config")) != config {
		f.Error("a protected file was changed")
	}
}

// TestGitProtected: Git works in the repository that is there, and makes new ones; what
// would change what Git takes commands from fails, is recorded, and works in /tmp.
func TestGitProtected(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.repository("r")
		os.Remove(filepath.Join(f.ws, "r/.git/hooks/pre-commit"))
		r := filepath.Join(f.ws, "r")
		for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}} {
			f.git(append([]string{"-C", r}, args...)...)
		}
		config := f.sha(filepath.Join(r, ".git/config"))
		out := f.work(nil, `
			cd r
			echo one >file; git add file; git commit -q -m one
			git switch -q -c topic; echo two >>file; git commit -qam two
			git switch -q main; echo three >other; git add .; git commit -q -m three
			git rebase -q main topic; git status --porcelain --branch
			git clone -q . /tmp/copy; (cd /tmp/copy; export GIT_COMMITTER_NAME=Ann GIT_COMMITTER_EMAIL=ann@example.com; git switch -q topic; git rebase -q origin/main; git push -qf origin topic); rm -rf /tmp/copy
			git checkout -q main; git merge -q --ff-only topic
			echo four >>file; git stash -q; git stash pop -q; git checkout -q -- file
			git tag v1; git gc -q; git fsck --no-progress
			git reset -q --hard; git clean -qfd; git status --porcelain --branch
			git log --format=%s
			git clone -q --bare . /tmp/up; git branch -q --set-upstream-to=main topic; git config branch.topic.merge
			git switch -q -c other; git switch -q main; git branch -q -D topic other
			for c in "config a.b c" "remote add o /x" "config branch.main.remote /tmp/up" "init -q --bare ../bare"; do
				if git $c 2>/dev/null; then echo "worked: $c"; else echo "failed: $c"; fi
			done
			git init -q /tmp/new; git -C /tmp/new config a.b c; git clone -q . "$HOME/copy" && echo elsewhere`)
		f.wantLines(out, "## topic", "## main", "one", "two", "three", "failed: config a.b c", "failed: remote add o /x", "failed: config branch.main.remote /tmp/up", "failed: init -q --bare ../bare", "elsewhere", "refs/heads/main")
		if f.sha(filepath.Join(r, ".git/config")) != config {
			t.Error("the configuration was changed")
		}
		res := f.result(f.do(call{args: f.strict([]string{"--json"}, "sh", "-c", "cd r; git config a.b c; git config a.b c; mkdir .vscode")}))
		if len(res.Denials) != 2 || res.Denials[0].Target != filepath.Join(r, ".git/config") || res.Denials[0].Grant != "--unprotect .git/config" || !strings.HasPrefix(res.Denials[1].Call, "mkdir") {
			t.Errorf("denials: %+v", res.Denials)
		}
		f.work([]string{"--unprotect", ".git/config"}, `git -C r config a.b c; ! mkdir r/.vscode`)
		f.work([]string{"--unprotect", ".git"}, `git init -q new; ! mkdir r/.vscode`)
	})
}

// TestRebase: a rebase, a cherry-pick and a revert of several commits work, stop at a conflict
// and go on, each step in a run of its own or on the host; one with programs does not begin.
func TestRebase(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.repository("r")
		os.Remove(filepath.Join(f.ws, "r/.git/hooks/pre-commit"))
		r := filepath.Join(f.ws, "r")
		for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}, {"config", "pull.rebase", "true"}, {"config", "core.editor", "true"},
			{"commit", "-q", "--allow-empty", "-m", "first"}, {"config", "remote.up.url", filepath.Join(f.ws, "up")}, {"config", "remote.up.fetch", "+refs/heads/*:refs/remotes/up/*"},
			{"config", "branch.topic.remote", "up"}, {"config", "branch.topic.merge", "refs/heads/main"}} {
			f.git(append([]string{"-C", r}, args...)...)
		}
		in := func(script string) string {
			f.Helper()
			return f.work(nil, "cd r; "+script)
		}
		want := func(what, script, want string) {
			f.Helper()
			if got := in(script + `; echo; git log --format=%s -5 | tr '\n' ' '; git status --porcelain --branch | head -1; ls -d .git/rebase-* .git/sequencer 2>/dev/null || true`); !strings.HasSuffix(got, "\n"+want+"\n") {
				f.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		in(`echo base >file; git add file; git commit -qm base; git tag base
			for i in 1 2 3; do git switch -qc topic$i; echo $i >>file; echo $i >n$i; git add .; git commit -qm "$i"; done; git switch -qc topic
			git switch -q main; echo other >m; git add m; git commit -qm m`)
		f.git("clone", "-q", "--bare", r, filepath.Join(f.ws, "up"))
		want("pull", `git switch -q topic; git pull -q`, "3 2 1 m base ## topic...up/main [ahead 3]")
		want("interactive", `GIT_SEQUENCE_EDITOR="sed -i 2s/pick/squash/" git rebase -q -i HEAD~2 >/dev/null`, "2 1 m base first ## topic...up/main [ahead 2]")
		want("autosquash", `echo x >>n1; git commit -qa --fixup=:/1; GIT_SEQUENCE_EDITOR=: git rebase -q -i --autosquash HEAD~3`, "2 1 m base first ## topic...up/main [ahead 2]")
		want("merges, branches, what is not committed", `git branch stack HEAD~1; echo y >>n1; git rebase -q --autostash --rebase-merges --update-refs --force-rebase HEAD~2; git stash -q; git log -1 --format=%s stack`, "2 1 m base first ## topic...up/main [ahead 2]")
		in(`git stash drop -q; git switch -q main; echo conflict >>file; git commit -qam c; git switch -q topic; git tag before; ! git rebase -q main 2>/dev/null`)
		want("abort", `git rebase --abort`, "2 1 m base first ## topic...up/main [ahead 2]")
		in(`! git rebase -q main 2>/dev/null`)
		in(`echo solved >file; git add file; ! git rebase --continue 2>/dev/null`)
		want("skip", `git rebase --skip`, "1 c m base first ## topic...up/main [ahead 2]")
		in(`git reset -q --hard before; ! git rebase -q main 2>/dev/null`)
		// On the host, what a command began; and in a run, what the host began.
		f.git("-C", r, "checkout", "-q", "--theirs", "file")
		f.git("-C", r, "add", "file")
		f.git("-C", r, "rebase", "--continue")
		want("host", `true`, "2 1 c m base ## topic...up/main [ahead 3]")
		f.git("-C", r, "reset", "-q", "--hard", "before")
		f.do(call{args: f.who.command(f.need("git"), "-C", r, "rebase", "-q", "main")})
		want("of the host", `git checkout -q --theirs file; git add .; git rebase --continue`, "2 1 c m base ## topic...up/main [ahead 3]")
		want("pick", `git reset -q --hard base; git cherry-pick -x -X theirs main topic1 >/dev/null`, "1 c base first ## topic...up/main [ahead 2, behind 1]")
		in(`git switch -q main; git reset -q --hard topic3; echo new >file; git commit -qam new; ! git revert --no-edit HEAD~1 HEAD~2 HEAD~3 2>/dev/null; [ -s .git/sequencer/opts ]`)
		want("revert", `for i in 1 2 3; do echo $i >file; git add .; git revert --continue >/dev/null 2>&1 || true; done`, `Revert "1" Revert "2" Revert "3" new 3 ## main`)
		// Programs, and what names one.
		for _, c := range []string{"-x true main~1", "-s ours main~1", "-S main~1", "--apply main~1"} {
			o := f.do(call{args: f.strict([]string{"--json"}, "sh", "-c", "cd r; git reset -q --hard; git rebase "+c+" --force-rebase; git rebase --abort; ls -d .git/rebase-*; git switch -q main; git status --porcelain --branch")})
			res := f.result(o)
			told := false
			for _, d := range res.Denials {
				told = told || strings.HasPrefix(d.Target, r+"/.git/rebase-")
			}
			if !told || !strings.HasSuffix(res.Stdout, "## main\n") {
				f.Errorf("%s: %v", c, o)
			}
		}
	})
}

// TestMadeRepository: a command makes repositories in the workspace and works with them, in
// this run and in later ones. Their hooks and programs are protected as those of any other.
func TestMadeRepository(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.repository("r")
		out := f.work(nil, `
			set -e; umask 022
			git init -q -b main new; cd new
			git config user.name "Ann Ä."; git config user.email ann@example.com; git remote add origin ../up
			echo one >file; git add file; git commit -q -m one
			git clone -q . ../copy; cd ../copy; git config user.name Ann; git config user.email ann@example.com
			git switch -q -c topic; git commit -q --allow-empty -m two; git push -q -u origin topic; git fsck --no-progress
			git config -l --local; ls .git/hooks; git -C ../new log --all --format=%s; cd ..
			git clone -q new gone; rm -r gone`)
		f.wantLines(out, "core.filemode=true", "remote.origin.fetch=+refs/heads/*:refs/remotes/origin/*", "branch.topic.remote=origin", "branch.topic.merge=refs/heads/topic", "pre-commit.sample", "two")
		for _, setting := range []string{"core.symlinks", "core.hookspath"} {
			if strings.Contains(out, setting) {
				t.Errorf("%s is set:\n%s", setting, out)
			}
		}
		if fi, err := os.Stat(filepath.Join(f.ws, "copy/.git/config")); err != nil || fi.Mode().Perm() != 0o644 {
			t.Errorf("the configuration: %v %v", fi, err)
		}
		// A later run goes on. What the user changes is the user's from then on.
		f.work(nil, `cd copy; git remote set-url origin https://example.com/x; git config user.name Bea; cd ..; rm -r new`)
		if exists(filepath.Join(f.ws, "new")) {
			t.Error("the repository was not removed")
		}
		copied := filepath.Join(f.ws, "copy")
		f.git("-C", copied, "config", "core.fsmonitor", "false")
		config := f.sha(filepath.Join(copied, ".git/config"))
		f.work(nil, `! git -C copy remote set-url origin https://example.com/y; ! git -C copy config user.name Cem; ! rm copy/.git/config; ! touch copy/.git/hooks/x.sample; ! rm copy/.git/hooks/pre-commit.sample
			! git -C copy config --unset core.fsmonitor`)
		if f.sha(filepath.Join(copied, ".git/config")) != config {
			t.Error("the user's configuration was changed")
		}
		// So is one that the user changes in place, by what a command might have, too.
		edited := filepath.Join(f.ws, "edited/.git/config")
		f.work(nil, `git clone -q copy edited; git -C edited remote set-url origin https://example.com/y`)
		b, err := os.ReadFile(edited)
		if err == nil {
			err = os.WriteFile(edited, []byte(strings.Replace(string(b), "/y", "/z", 1)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.work(nil, `! git -C edited remote set-url origin https://example.com/y; ! rm edited/.git/config`)
		if b, err := os.ReadFile(edited); err != nil || !strings.Contains(string(b), "example.com/z") {
			t.Errorf("what the user edited: %v %q", err, b)
		}
		if log := f.git("-C", copied, "log", "--format=%s"); log.stdout != "two\none\n" {
			t.Errorf("the repository: %v", log)
		}
		// A remote gets another name; who wants to read and write a new configuration is told that this fails.
		o := f.work(nil, `git clone -q copy named; cd named; git remote rename origin upstream; git branch -vv; git fetch -q upstream; cd ..; rm -r named
			mkdir -p rw/.git; python3 -c 'import os; os.open("rw/.git/config", os.O_RDWR|os.O_CREAT)' && exit 1; rm -r rw`)
		if !strings.Contains(o, "[upstream/topic]") {
			t.Error(o)
		}
		// The copy that a killed guard leaves goes with the repository, and is for nothing else.
		f.work(nil, `git init -q killed`)
		f.write("ws/killed/.git/config.sbxrun-0123456789abcdef", "x", 0o600)
		f.own()
		f.work(nil, `cd killed/.git; mv config.sbxrun-* x && exit 1; echo y >config.sbxrun-0 && exit 1; cd ../..; rm -r killed`)
		if exists(filepath.Join(f.ws, "killed")) {
			t.Error("what a killed guard left was not removed")
		}
		// A configuration that the guard cannot read stays.
		for _, name := range []string{"linked", "unread"} {
			f.repository(name)
			f.git("-C", filepath.Join(f.ws, name), "config", "core.hooksPath", "none")
		}
		linked, unread := filepath.Join(f.ws, "linked/.git"), filepath.Join(f.ws, "unread/.git/config")
		for _, err := range []error{os.Rename(linked+"/config", linked+"/mine"), os.Symlink("mine", linked+"/config"), os.Chmod(unread, 0)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		f.work(nil, `for r in linked unread; do printf '[branch "a"]\n\tremote = .\n' >$r/.git/c; ! mv -f $r/.git/c $r/.git/config; done`)
		for _, path := range []string{linked + "/config", unread} {
			os.Chmod(unread, 0o600)
			if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "hooksPath") {
				t.Errorf("%s: %v %q", path, err, b)
			}
		}
		if isRoot() { // A file system without attributes gets none that could not be removed.
			script := `mount -t ramfs -o mode=777 none "$0" && exec "$@"`
			o := f.do(call{args: append([]string{"unshare", "-m", "sh", "-c", script, f.ws}, f.strict(nil, "sh", "-c", "git init -q a; ls -A a")...)})
			if o.code != 0 || o.stdout != "" || !strings.Contains(o.stderr, "protected path .git/") {
				t.Error(o)
			}
		}
		// An additional pattern of the user's counts.
		f.write("home/own.yaml", "extends: strict\nfiles:\n  protect: [.git]\n", 0o644)
		f.work([]string{"-P", f.path("home/own.yaml")}, `! git init -q another 2>/dev/null`)
	})
}

// TestProtectedVain: a call that would change nothing of what is protected gets the kernel's
// answer, and is no denial. The kernel's is what the same gets without protected paths. The
// call is not made all the same: where somebody on the host removes and makes the entry
// meanwhile, it never succeeds.
func TestProtectedVain(t *testing.T) {
	const script = `import errno, os, socket, stat, ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(what, f):
    try: got = f()
    except OSError as e: got = errno.errorcode[e.errno]
    print(what, got)
def renameat2(a, b, flags):
    if libc.syscall(316 if os.uname().machine == "x86_64" else 276, -100, a.encode(), -100, b.encode(), flags):
        raise OSError(ctypes.get_errno(), "")
os.chdir("r")
open("/tmp/here", "w").close()
hooks, config, hook = ".git/hooks", ".git/config", ".git/hooks/pre-commit"
for name in hooks, config, ".vscode":
    call("mkdir " + name, lambda: os.mkdir(name))
    call("mkdir / " + name, lambda: os.mkdir(name + "/"))
    call("mknod " + name, lambda: os.mknod(name))
    call("mkfifo " + name, lambda: os.mkfifo(name))
    call("symlink " + name, lambda: os.symlink("x", name))
    call("link plain " + name, lambda: os.link("plain", name))
    call("link itself " + name, lambda: os.link(config, name))
    call("link from elsewhere " + name, lambda: os.link("/tmp/here", name))
    call("create " + name, lambda: os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    call("no replace " + name, lambda: renameat2("plain", name, 1))
    call("rename itself " + name, lambda: os.rename(name, name))
    call("rename what is missing " + name, lambda: os.rename("missing", name))
    call("exchange what is missing " + name, lambda: renameat2(name, "missing", 2))
    call("rename from elsewhere " + name, lambda: os.rename("/tmp/here", name))
call("link from elsewhere, new", lambda: os.link("/tmp/here", ".mcp.json"))
for path in "plain/", "missing", ".mcp.json":
    call("rename " + path, lambda: os.rename(path, hook + "/" if path == "plain/" else ".claude" if path == "missing" else "p"))
call("mknod with a slash", lambda: os.mknod(".mcp.json/"))
call("symlink with a slash", lambda: os.symlink("x", ".mcp.json/"))
call("create with a slash", lambda: os.open(".mcp.json/", os.O_CREAT | os.O_WRONLY))
call("unlink what is missing", lambda: os.unlink(".mcp.json"))
call("rmdir what is missing", lambda: os.rmdir(".claude"))
call("unlink a directory", lambda: os.unlink(hooks))
call("rmdir a file", lambda: os.rmdir(hook))
call("rmdir what is not empty", lambda: os.rmdir(hooks))
call("rmdir a repository", lambda: os.rmdir(".git"))
call("into itself", lambda: os.rename(hooks, hooks + "/below"))
call("over what it is in", lambda: os.rename(hook, hooks))
call("makedirs", lambda: os.makedirs(hooks, exist_ok=True))
for flags in os.O_RDONLY, os.O_RDONLY | os.O_CREAT:
    call("open", lambda: os.close(os.open(config, flags)))
call("directory", lambda: os.open(hooks, os.O_WRONLY))
`
	eachWho(t, func(f *fixture) {
		f.repository("r")
		r := filepath.Join(f.ws, "r")
		for _, err := range []error{os.Mkdir(filepath.Join(r, ".vscode"), 0o755), os.WriteFile(filepath.Join(r, "plain"), []byte("plain"), 0o644), os.WriteFile(f.path("vain.py"), []byte(script), 0o644)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		f.own()
		before := f.names()
		vain := func(flags ...string) *result {
			f.Helper()
			res := f.result(f.do(call{args: f.strict(append(flags, "--json", "--ro", f.path("vain.py")), "python3", f.path("vain.py"))}))
			if now := f.names(); now != before || res.ExitCode != 0 {
				f.Errorf("%v: the workspace held\n%sand holds\n%s%+v", flags, before, now, res)
			}
			return res
		}
		guard, kernel := vain(), vain("--unprotect", "all")
		if guard.Stdout != kernel.Stdout {
			f.Errorf("the guard and the kernel differ:\n%s", lineDifference(guard.Stdout, kernel.Stdout))
		}
		if n := strings.Count(guard.Stdout, "EEXIST"); n < 25 {
			f.Errorf("%d times EEXIST:\n%s", n, guard.Stdout)
		}
		if len(guard.Denials) != 0 {
			f.Errorf("denials: %+v", guard.Denials)
		}
		// The neighbour: what would have changed something is told.
		res := f.result(f.do(call{args: f.strict([]string{"--json"}, "sh", "-c", "cd r; mkdir .git/hooks .git/hooks/new; rmdir .vscode; mv plain .mcp.json")}))
		if len(res.Denials) != 3 {
			f.Errorf("denials: %+v", res.Denials)
		}

		// Somebody on the host makes and removes what the command makes, too.
		toggled := func(flags ...string) string {
			f.Helper()
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for {
					select {
					case <-stop:
						return
					default:
						unix.Mkdir(filepath.Join(r, ".claude"), 0o755)
						unix.Rmdir(filepath.Join(r, ".claude"))
					}
				}
			}()
			defer func() { close(stop); <-done; os.Remove(filepath.Join(r, ".claude")) }()
			return f.work(flags, `python3 - <<'END'
import errno, os, time
got, n, end = set(), 0, time.time() + 20
while time.time() < end:
    n += 1
    try: os.mkdir("r/.claude"); got.add("made")
    except OSError as e: got.add(errno.errorcode[e.errno])
    if got >= {"EEXIST", "made"} or got >= {"EEXIST", "EACCES"} and n > 3000: break
print(*sorted(got))
END`)
		}
		if got := toggled(); got != "EACCES EEXIST\n" {
			f.Errorf("with the host at it, too: %s", got)
		}
		if got := toggled("--unprotect", "all"); got != "EEXIST made\n" {
			f.Errorf("the control: %s", got)
		}
	})
}

// TestHeadIsHeld: a socket where HEAD belongs is no repository that a real HEAD could
// complete unasked, and the HEAD of a repository cannot be taken away, which would leave
// its config to anybody. Each control is what is refused without the trick.
func TestHeadIsHeld(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.git("init", "-q", "--bare", filepath.Join(f.ws, "bare"))
		out := f.work(nil, `python3 - <<'END'
import os, socket
def try_(what, call):
    try: call(); print(what, "done")
    except OSError as e: print(what, e.strerror)
os.makedirs("d/objects"); os.makedirs("d/refs"); open("d/config", "w").close(); open("t", "w").close()
try_("control", lambda: os.rename("t", "d/HEAD"))
socket.socket(socket.AF_UNIX).bind("d/HEAD")
try_("socket", lambda: os.rename("t", "d/HEAD"))
try_("control", lambda: open("bare/config", "a"))
try_("move", lambda: os.rename("bare/HEAD", "bare/H"))
try_("remove", lambda: os.remove("bare/HEAD"))
open("bare/HEAD.lock", "w").write("ref: refs/heads/other\\n")
try_("replace", lambda: os.rename("bare/HEAD.lock", "bare/HEAD"))
END`)
		f.wantLines(out, "control Permission denied", "socket Permission denied", "control Permission denied", "move Permission denied", "remove Permission denied", "replace done")
	})
}

// TestNothingComesIn: the next commit on the host writes through no symbolic link that a
// command put into the repository, a worktree's part of it is not exchanged for a repository
// that came with the project, and no name that leads to protected ones becomes a link.
func TestNothingComesIn(t *testing.T) {
	eachWho(t, func(f *fixture) {
		act := func(f *fixture, flags ...string) (out, ran string) {
			f.repository("r")
			r, wt, ran := filepath.Join(f.ws, "r"), filepath.Join(f.ws, "wt"), filepath.Join(f.ws, "ran")
			os.Remove(filepath.Join(r, ".git/hooks/pre-commit"))
			for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}, {"commit", "-q", "--allow-empty", "-m", "first"},
				{"worktree", "add", "-q", wt}, {"init", "-q", "--bare", r + "/testdata/x.git"}} {
				f.git(append([]string{"-C", r}, args...)...)
			}
			f.write("ws/r/testdata/x.git/config", "[core]\n\trepositoryformatversion = 0\n\tworktree = "+wt+"\n\tfsmonitor = echo worktree >>"+ran+";\n", 0o644)
			f.own()
			o := f.do(call{args: f.strict(flags, "python3", "-c", `
import os, sys
ran = sys.argv[1]
def try_(what, call):
    try: call(); print(what, "done")
    except OSError as e: print(what, e.strerror)
os.makedirs("made"); open("made/config.toml", "w").close(); os.symlink("made", "link"); os.symlink("made", "other")
try_("beside", lambda: os.link("link", "second", follow_symlinks=False))
try_("leads", lambda: os.link("link", ".cargo", follow_symlinks=False))
git = "r/.git/"
if os.path.exists(git + "COMMIT_EDITMSG"): os.remove(git + "COMMIT_EDITMSG")
open(git + "MERGE_MSG", "w").write("[core]\n\trepositoryformatversion = 0\n\tfsmonitor = echo message >>" + ran + ";\n[user]\n\tname = A\n\temail = a@example.com\n")
os.symlink("config", "config")
try_("symlink", lambda: os.symlink("config", git + "COMMIT_EDITMSG"))
try_("link", lambda: os.link("config", git + "logs/x", follow_symlinks=False))
try_("rename", lambda: os.rename("config", git + "refs/x"))
os.makedirs("full"); os.symlink("x", "full/x"); os.makedirs(git + "logs/mine")
try_("directory", lambda: os.rename("full", git + "logs/full"))
open("plain", "w").close()
try_("file", lambda: os.rename("plain", git + "info/plain"))
try_("out", lambda: os.rename(git + "logs/mine", "mine"))
try_("between", lambda: os.rename("r/testdata/x.git/description", git + "description2"))
if os.path.isdir("mine"): os.rename("mine", git + "logs/mine")
os.system("touch moved; mv moved " + git + "info/; test -e " + git + "info/moved && echo moved")
try_("within", lambda: os.rename(git + "logs/mine", git + "refs/mine"))
try_("bare", lambda: os.symlink("x", "r/testdata/x.git/refs/x"))
try_("aside", lambda: os.rename(git + "worktrees/wt", git + "worktrees/was"))
try_("worktree", lambda: os.rename("r/testdata/x.git", git + "worktrees/wt"))
if os.path.exists(git + "worktrees/was") and not os.path.exists(git + "worktrees/wt"): os.rename(git + "worktrees/was", git + "worktrees/wt")
try_("safe", lambda: os.mkdir(git + "safe"))
`, ran)})
			git := f.need("git")
			f.do(call{args: f.who.command(git, "-C", r, "commit", "--allow-empty"), env: []string{"GIT_EDITOR=true"}})
			f.do(call{args: f.who.command(git, "-C", r, "status")})
			f.do(call{args: f.who.command(git, "-C", wt, "status")})
			b, _ := os.ReadFile(ran)
			return o.stdout, string(b)
		}
		const no, copy = "Permission denied", "Invalid cross-device link"
		out, ran := act(f)
		f.wantLines(out, "beside done", "leads "+no, "symlink "+no, "link "+no, "rename "+copy, "directory "+copy, "file "+copy, "out "+copy, "between "+copy,
			"moved", "within done", "bare "+no, "aside "+no, "worktree "+no, "safe "+no)
		if ran != "" {
			f.Errorf("Git on the host ran what the command planted: %q", ran)
		}
		f.Run("control without protected paths", func(t *testing.T) {
			c := newFixture(t, f.who)
			out, ran := act(c, "--unprotect", "all")
			if strings.Contains(out, no) || strings.Contains(out, copy) || !strings.Contains(ran, "message") || !strings.Contains(ran, "worktree") {
				t.Errorf("Git on the host ran %q: %s", ran, out)
			}
		})
	})
}

// TestIndexIsGood: no index names what Git would not enter there, whichever way it comes to
// its name and whatever has it open, and Git on the host runs nothing of the command's; an
// index that names nothing of the kind is put there by a rename as ever.
func TestIndexIsGood(t *testing.T) {
	eachWho(t, func(f *fixture) {
		act := func(f *fixture, flags ...string) (out, ran string, res *result) {
			f.repository("r")
			r, git, ran := filepath.Join(f.ws, "r"), f.need("git"), filepath.Join(f.ws, "ran")
			os.Remove(filepath.Join(r, ".git/hooks/pre-commit"))
			for _, args := range [][]string{{"config", "user.name", "Ann"}, {"config", "user.email", "ann@example.com"}, {"commit", "-q", "--allow-empty", "-m", "first"}} {
				f.git(append([]string{"-C", r}, args...)...)
			}
			f.write("ws/r/file", "file", 0o644)
			f.own()
			res = f.result(f.do(call{args: f.strict(append(flags, "--json"), "python3", "-c", `
import ctypes, hashlib, mmap, os, struct, subprocess, sys
os.chdir("r")
libc = ctypes.CDLL(None, use_errno=True)
config = open(".git/config").read() + "[core]\n\tfsmonitor = echo ran >>" + sys.argv[1] + ";\n"
oid = bytes.fromhex(subprocess.run(["git", "hash-object", "-w", "--stdin"], input=config.encode(), capture_output=True, check=True).stdout.decode())
def made(name):
    b = b"DIRC" + struct.pack(">II", 2, 1) + bytes(24) + struct.pack(">I", 0o100644) + bytes(12) + oid + struct.pack(">H", len(name)) + name
    b += bytes(8 - (62 + len(name)) % 8)
    return b + hashlib.sha1(b).digest()
bad, fine = made(b".git/config"), made(b"another-one")
index, other = ".git/index", ".git/other"
def put(name, content):
    with open(name, "wb") as f: f.write(content)
def try_(what, call):
    put(other, fine)
    try: call(); got = "done"
    except OSError as e: got = e.strerror
    try: b = open(index, "rb").read()
    except FileNotFoundError: b = b""
    print(what + ":", got, "BAD" if b".git/config" in b else "")
def renameat2(a, b, flags):
    if libc.syscall(316 if os.uname().machine == "x86_64" else 276, -100, a.encode(), -100, b.encode(), flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def rename(content=bad, to=index):
    put(other, content); os.rename(other, to)
def kept():
    with open(other, "r+b") as f:
        os.rename(other, index); f.write(bad)
def mapped():
    with open(other, "r+b") as f: m = mmap.mmap(f.fileno(), len(bad))
    os.rename(other, index); m[:] = bad
def second(): os.link(other, other + "2"); os.rename(other, index); put(other + "2", bad)
def again():
    fd = os.open(other, os.O_RDONLY); os.rename(other, index); open("/proc/self/fd/%d" % fd, "r+b").write(bad)
def nameless():
    fd = os.open(".git", os.O_TMPFILE | os.O_RDWR); os.write(fd, fine)
    reader = os.open("/proc/self/fd/%d" % fd, os.O_RDONLY); os.unlink(other)
    if libc.linkat(-100, b"/proc/self/fd/%d" % reader, -100, other.encode(), 0x400): raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(fd)
    os.rename(other, index); open("/proc/self/fd/%d" % reader, "r+b").write(bad)
def alias():
    reader = os.open(other, os.O_RDONLY); os.link(other, other + "3"); os.unlink(other)
    os.rename(other + "3", index); open("/proc/self/fd/%d" % reader, "r+b").write(bad)
def away():
    os.rename(index, other); put(other, bad); os.rename(other, index)
def split():
    rename(bad, ".git/sharedindex." + "1" * 40)
def directory():
    os.mkdir(".git/d"); put(".git/d/index", bad); os.rename(".git/d/index", index)
try_("in place", lambda: put(index, bad))
try_("truncated", lambda: os.truncate(index, 1))
try_("rename", rename)
try_("case", lambda: rename(bad, ".git/INDEX"))
try_("link", lambda: (put(other, bad), os.unlink(index) if os.path.exists(index) else 0, os.link(other, index)))
try_("created", lambda: os.open(index, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
try_("symlink", lambda: os.symlink("other", index))
try_("node", lambda: os.mkfifo(index))
try_("directory", lambda: os.mkdir(index))
try_("good", lambda: rename(fine))
try_("exchange", lambda: (put(other, bad), renameat2(other, index, 2)))
try_("exchange back", lambda: (put(other, bad), renameat2(index, other, 2)))
try_("no replace", lambda: renameat2(other, index, 1))
for f in kept, mapped, second, again, nameless, alias, away, split, directory: try_(f.__name__, f)
try_("good again", lambda: rename(fine))
try_("from it", lambda: os.link(index, ".git/third"))
try_("mode", lambda: os.chmod(index, 0o600))
st = os.stat(other); os.utime(other, ns=(st.st_atime_ns, 1234567890123456789)); os.chmod(other, 0o640); os.rename(other, index)
st = os.stat(index); print("kept:", st.st_mtime_ns, oct(st.st_mode), open(index, "rb").read() == fine, os.path.exists(other))
os.mkdir("not"); put("not/index", bad); put("not/x", bad); os.rename("not/x", "not/index"); print("elsewhere: done")
os.unlink(index); subprocess.run(["git", "reset", "-q"], check=True)
subprocess.run("git add file; git commit -q -m second; git status --short; git update-index --split-index; git mv file moved; git status --short; git update-index --no-split-index --index-version 4; git commit -q -m third", shell=True, check=True)
rename(bad)
`, ran)}))
			f.do(call{args: f.who.command(git, "-C", r, "checkout", "--", ".")})
			f.do(call{args: f.who.command(git, "-C", r, "status")})
			b, _ := os.ReadFile(ran)
			if out, _ := filepath.Glob(filepath.Join(r, ".git/sharedindex.*")); slices.ContainsFunc(out, func(s string) bool { return len(filepath.Base(s)) != len("sharedindex.")+40 }) {
				f.Errorf("left behind: %q", out)
			}
			return res.Stdout, string(b), res
		}
		const no = ": Permission denied "
		out, ran, res := act(f)
		f.wantLines(out, "in place"+no, "truncated"+no, "rename"+no, "case"+no, "link"+no, "created"+no, "symlink"+no, "node"+no, "directory"+no, "good: done ", "exchange"+no, "exchange back"+no, "no replace: File exists ",
			"kept: done ", "mapped: done ", "second: done ", "again: done ", "nameless: done ", "alias: done ", "away"+no, "split"+no, "directory"+no, "good again: done ", "from it"+no, "mode"+no,
			"kept: 1234567890123456789 0o100640 True False", "elsewhere: done")
		if ran != "" || strings.Contains(out, "BAD") {
			f.Errorf("Git on the host ran %q: %s", ran, out)
		}
		if !slices.ContainsFunc(res.Denials, func(d denial) bool {
			return d.Grant == "--unprotect .git/index"
		}) || !strings.Contains(res.Stderr, "PermissionError") {
			f.Errorf("%+v", res)
		}
		f.Run("control with an index that is not protected", func(t *testing.T) {
			c := newFixture(t, f.who)
			out, ran, res := act(c, "--unprotect", ".git/index")
			if strings.Count(out, "BAD") < 8 || !strings.HasPrefix(ran, "ran") || strings.Contains(res.Stderr, "Error") {
				t.Errorf("Git on the host ran %q: %s%s", ran, out, res.Stderr)
			}
		})
	})
}

// TestHandedOver: a file that the guard opened for the command is handed over as if the
// command had opened it: its processors stay as they were, what it wrote can be executed
// at once, and nothing is made or emptied for a process that has no descriptor left.
func TestHandedOver(t *testing.T) {
	atOnce(t, func(f *fixture) {
		f.repository(".")
		single := f.write("single", "granted", 0o644)
		f.own()
		out := f.work([]string{"--rw", single, "--env", "SINGLE=" + single}, `python3 - <<'END'
import os, resource, shutil
all = os.sched_getaffinity(0)
changed = 0
for only in all, {min(all)}:
    os.sched_setaffinity(0, only)
    for i in range(3000):
        os.close(os.open("made", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        changed += os.sched_getaffinity(0) != only
        os.remove("made")
os.sched_setaffinity(0, all)
print("changed", changed)

true = open("/bin/true", "rb").read()
busy = 0
for i in range(300):
    fd = os.open("program", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o755)
    os.write(fd, true); os.close(fd)
    try: busy += os.spawnv(os.P_WAIT, "./program", ["program"]) != 0
    except OSError as e: busy += 1
    os.remove("program")
print("busy", busy)

# The directory of the call before is not taken for the one of this call.
wrong = 0
def put(name):
    global wrong
    here = os.getcwd()
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    wrong += not os.path.exists(os.path.join(here, name))
for i in range(20):
    for d in "abcdefg":
        os.makedirs("d/" + d, exist_ok=True)
        os.chdir("d/" + d); put("x%d" % i); os.chdir("../..")
    shutil.rmtree("d/a"); os.mkdir("d/a"); os.chdir("d/a"); put("y"); os.chdir("../..")
    os.rename("d/b", "d/moved"); os.mkdir("d/b"); os.chdir("d/b"); put("z"); os.chdir("../moved"); put("z"); os.chdir("../..")
    shutil.rmtree("d/b"); os.rename("d/moved", "d/b"); os.remove("d/b/z")
os.mkdir("gone"); os.chdir("gone"); put("x"); os.remove("x"); os.rmdir("../gone")
try: put("x")
except OSError as e: print(e.strerror)
os.chdir("..")
print("wrong", wrong)

with open("full", "w") as f: f.write("kept")
last = os.dup(0); os.close(last)
was = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (last, was[1]))
for name, flags in ("new", os.O_CREAT | os.O_EXCL), ("new", os.O_CREAT), ("full", os.O_TRUNC):
    try: os.open(name, flags | os.O_WRONLY)
    except OSError as e: print(e.strerror)
resource.setrlimit(resource.RLIMIT_NOFILE, was)
print(os.path.exists("new"), open("full").read())

try: os.open(os.environ["SINGLE"], os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC)
except OSError as e: print(e.strerror)
print(open(os.environ["SINGLE"]).read())
tree = ".git/worktrees/x"
os.makedirs(tree)
resource.setrlimit(resource.RLIMIT_NOFILE, (last, was[1]))
try: os.open(tree + "/commondir", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
except OSError as e: print(e.strerror)
print("made", os.path.exists(tree + "/commondir"))
END`)
		f.wantLines(out, "changed 0", "busy 0", "No such file or directory", "wrong 0",
			"Too many open files", "Too many open files", "Too many open files", "False kept",
			"File exists", "granted", "Too many open files", "made False")
	})
}

// TestHandedOverCpuset: a process that was given files follows its cpuset as others do: when
// that gets more processors, so does the process.
func TestHandedOverCpuset(t *testing.T) {
	const top = "/sys/fs/cgroup/cpuset"
	all, err := os.ReadFile(top + "/cpuset.cpus")
	mems, err2 := os.ReadFile(top + "/cpuset.mems")
	if err := errors.Join(err, err2); err != nil || !isRoot() {
		t.Skip("needs root and the cpuset controller of cgroup v1, which is apart from a run's own groups: ", err)
	}
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors")
	}
	group := fmt.Sprintf("%s/sbxrun-test-%d", top, os.Getpid())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	defer removeGroups(group)
	set := func(file, value string) {
		if err := os.WriteFile(group+"/"+file, []byte(value), 0); err != nil {
			t.Error(err)
		}
	}
	set("cpuset.mems", string(mems))
	set("cpuset.cpus", "0")
	w := whos[0]
	w.become = []string{stage, "-cgroup", group, "--"}
	f := newFixture(t, w)
	o := f.run(call{started: func(*exec.Cmd) {
		for range 600 {
			if _, err := os.Stat(f.ws + "/ready"); err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		set("cpuset.cpus", string(all))
		if err := os.Mkdir(f.ws+"/wide", 0o755); err != nil {
			t.Error(err)
		}
	}, args: f.sandbox(nil, "python3", "-c", `
import os, time
print("at first", len(os.sched_getaffinity(0)))
for i in range(200):
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY))
os.mkdir("ready")
for i in range(600):
    if os.path.exists("wide"): break
    time.sleep(0.05)
print("at last", len(os.sched_getaffinity(0)))
`)})
	f.wantLines(o.stdout, "at first 1", fmt.Sprint("at last ", runtime.NumCPU()))
}

// TestProtectedAnswers: calls that the guard makes fail as the kernel lets them
// fail, where programs go by it.
func TestProtectedAnswers(t *testing.T) {
	atOnce(t, func(f *fixture) {
		// Programs that cannot link copy, on EXDEV only.
		out := f.work(nil, `set +e +o pipefail; touch there; for to in env .mcp.json there; do ln /usr/bin/env $to 2>&1 | grep -o -e 'cross-device' -e 'Permission denied' -e 'File exists'; done`)
		if out != "cross-device\ncross-device\nFile exists\n" {
			t.Errorf("link: %s", out)
		}

		// A signal ends an open that waits for the other end of a FIFO: one that is
		// not held to be deadly, for it dumps core. What is sent to a handler that
		// restarts calls ends nothing.
		out = f.work(nil, `set +e; mkfifo fifo; timeout -s QUIT -k 20 1 sh -c ': >fifo'; echo "timeout: $?"
			(trap : USR1; echo through >fifo) & sleep 1; kill -USR1 $!; sleep 1; cat fifo; wait; rm fifo there`)
		f.wantLines(out, "timeout: 124", "through")

		// Who opens for reading waits for a writer, whatever else the flags ask for, also
		// by a descriptor's name; who only names a file cannot change it by that.
		out = f.work(nil, `python3 - <<'END'
import os
os.mkfifo("fifo")
place = os.open("fifo", os.O_PATH)
for name in "fifo", "/proc/self/fd/%d" % place:
    if os.fork() == 0:
        import time; time.sleep(0.5)
        os.write(os.open("fifo", os.O_WRONLY), b"through"); os._exit(0)
    print(os.read(os.open(name, os.O_RDONLY | os.O_CREAT), 9)); os.wait()
for call in lambda: os.fchmod(place, 0o600), lambda: os.fchown(place, -1, -1), lambda: os.removexattr(place, "user.x"), lambda: os.setxattr(place, "user.x", b""):
    try: call(); print("done")
    except OSError as e: print(e.strerror)
os.remove("fifo")
END`)
		f.wantLines(out, "b'through'", "b'through'", "Bad file descriptor", "Bad file descriptor", "Bad file descriptor", "Bad file descriptor")

		// More wait than the guard has threads for: each gets what is written to it,
		// is killed, or meets its signal, and the guard goes on.
		out = f.work(nil, `python3 - <<'END'
import os, signal
N = 100
os.mkdir("fifos")
def start(i):
    p = os.fork()
    if p == 0:
        def interrupt(*_): raise InterruptedError
        try:
            signal.signal(signal.SIGUSR1, interrupt)
            os.write(ready, b"x")
            fd = os.open("fifos/%d" % i, os.O_WRONLY)
        except InterruptedError: os._exit(7)
        os.write(fd, b"%d" % i)
        os._exit(0)
    return p
start_of, ready = os.pipe()
for i in range(N): os.mkfifo("fifos/%d" % i)
pids = [start(i) for i in range(N)]
for _ in pids: os.read(start_of, 1)
for p in pids[:15]: os.kill(p, signal.SIGKILL)
for p in pids[15:30]: os.kill(p, signal.SIGUSR1)
ended = [os.waitpid(p, 0)[1] for p in pids[:30]]
print("killed", ended.count(9), "interrupted", ended.count(7 << 8))
print("read", sum(open("fifos/%d" % i).read() == str(i) for i in reversed(range(30, N))))
print("ended", sum(os.waitpid(p, 0)[1] == 0 for p in pids[30:]))
END
rm -r fifos`)
		f.wantLines(out, "killed 15 interrupted 15", "read 70", "ended 70")
	})
}
