//go:build linux

package integration

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func owner(fi fs.FileInfo) int { return int(fi.Sys().(*syscall.Stat_t).Uid) }

// TestExitCodes is RUN-2: the code says who failed, and how.
func TestExitCodes(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.files(map[string]string{
			"plain":       "no program\n",
			"script":      "#!/bin/sh\nexit 9\n",
			"interpreter": "#!/no/such/interpreter\n",
		})
		if err := os.WriteFile(filepath.Join(f.ws, "garbage"), []byte{0x7f, 'E', 'L', 'F', 0, 0}, 0o755); err != nil {
			f.Fatal(err)
		}
		f.own()
		sh := func(script string) []string { return []string{"sh", "-c", script} }
		for _, tt := range []struct {
			name    string
			flags   []string
			command []string
			code    int
			reason  string
			message string // part of what stderr says
		}{
			{"0", nil, []string{"true"}, 0, "exit", ""},
			{"1", nil, []string{"false"}, 1, "exit", ""},
			{"42", nil, sh("exit 42"), 42, "exit", ""},
			{"255", nil, sh("exit 255"), 255, "exit", ""},
			{"own 124", nil, sh("exit 124"), 124, "exit", ""},
			{"own 125", nil, sh("exit 125"), 125, "exit", ""},
			{"own 126", nil, sh("exit 126"), 126, "exit", ""},
			{"own 127", nil, sh("exit 127"), 127, "exit", ""},
			{"TERM", nil, sh("kill -TERM $$"), 143, "signal", ""},
			{"KILL", nil, sh("kill -KILL $$"), 137, "signal", ""},
			{"SEGV", nil, sh("kill -SEGV $$"), 139, "signal", ""},
			{"real-time signal", nil, sh("kill -40 $$"), 168, "signal", ""},
			{"time limit", []string{"--timeout", "300ms"}, []string{"sleep", "60"}, 124, "timeout", "time limit"},
			{"time limit, TERM ignored", []string{"--timeout", "300ms", "--kill-after", "300ms"}, sh(`trap "" TERM; sleep 60; sleep 60`), 124, "timeout", "time limit"},
			{"time limit, exits itself", []string{"--timeout", "300ms"}, sh(`trap "exit 3" TERM; sleep 60 & wait`), 124, "timeout", "time limit"},
			{"unknown flag", []string{"--no-such-flag"}, []string{"true"}, 125, "", "unknown flag --no-such-flag"},
			{"unknown profile", []string{"--profile", "no-such-profile"}, []string{"true"}, 125, "setup", "no-such-profile"},
			{"bad size", []string{"--memory", "1x"}, []string{"true"}, 125, "", "1x"},
			{"missing path", []string{"--ro", "/no/such/path"}, []string{"true"}, 125, "setup", "/no/such/path"},
			{"result in no directory", []string{"--result-file", "/no/such/result"}, []string{"true"}, 125, "", "--result-file /no/such/result"},
			{"no command", nil, nil, 125, "setup", "no command"},
			{"not executable", nil, []string{"./plain"}, 126, "setup", "./plain"},
			{"a directory", nil, []string{"/usr"}, 126, "setup", "/usr is a directory"},
			{"not a program", nil, []string{"./garbage"}, 126, "setup", "./garbage"},
			{"not found", nil, []string{"no-such-command"}, 127, "setup", "no-such-command"},
			{"empty", nil, []string{""}, 127, "setup", "empty word"},
			{"not found by path", nil, []string{"./no/such"}, 127, "setup", "./no/such"},
			{"interpreter not found", nil, []string{"./interpreter"}, 127, "setup", "./interpreter"},
			{"script", nil, []string{"./script"}, 9, "exit", ""},
			{"-c", []string{"-c", "exit 5"}, nil, 5, "exit", ""},
		} {
			if f.who.noCgroup != "" && tt.message == "time limit" {
				tt.message = "" // --quiet
			}
			args := f.sandbox(tt.flags, tt.command...)
			o := f.run(call{args: args})
			if o.code != tt.code || o.stdout != "" || !strings.Contains(o.stderr, tt.message) || tt.message == "" && o.stderr != "" {
				f.Errorf("%s: want exit code %d and a message with %q\n%v", tt.name, tt.code, tt.message, o)
			}
			if tt.code == 125 && tt.reason != "exit" {
				lines := strings.Split(strings.TrimSpace(o.stderr), "\n")
				if len(lines) != 2 || !strings.HasPrefix(lines[0], "sbxrun: error: ") || !strings.HasPrefix(lines[1], "sbxrun: hint: ") {
					f.Errorf("%s: want one line with the error and one with a hint\n%v", tt.name, o)
				}
			}
			if tt.reason == "" {
				continue // the command line itself is wrong: --json may not have been read
			}
			// The result object says the same, and whose code it is.
			file := filepath.Join(f.ws, "result.json")
			for _, flag := range [][]string{{"--json"}, {"--result-file", file}} {
				o := f.run(call{args: f.sandbox(append(slices.Clone(tt.flags), flag...), tt.command...)})
				if flag[0] == "--result-file" {
					b, _ := os.ReadFile(file)
					o.stdout = string(b)
				}
				if r := f.result(o); o.code != tt.code || r.ExitCode != tt.code || r.Reason != tt.reason || (r.Error != "") != (tt.reason == "setup") {
					f.Errorf("%s %s: want %d %s, got %+v\n%v", tt.name, flag[0], tt.code, tt.reason, r, o)
				}
			}
		}
		f.wantNothingLeft()
	})
}

// TestResultFD: the result goes to a descriptor while the streams pass through.
func TestResultFD(t *testing.T) {
	eachWho(t, func(f *fixture) {
		path := f.write("ws/result", "", 0o666)
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			f.Fatal(err)
		}
		defer file.Close()
		o := f.run(call{args: f.sandbox([]string{"--result-fd", "3"}, "sh", "-c", "echo out; echo err >&2; { echo x >&3; } 2>/dev/null || echo closed; exit 125"), extra: []*os.File{file}})
		b, _ := os.ReadFile(path)
		if o.code != 125 || o.stdout != "out\nclosed\n" || o.stderr != "err\n" {
			f.Errorf("%v", o)
		}
		o.stdout = string(b)
		if r := f.result(o); r.ExitCode != 125 || r.Reason != "exit" || r.Stdout != "" {
			f.Errorf("%+v", r)
		}
	})
}

// TestArguments: they arrive as they were given.
func TestArguments(t *testing.T) {
	eachWho(t, func(f *fixture) {
		args := []string{"", "a b", "a\nb", " ", "--", "-t", "--profile", "*", "$HOME", `"'\`, "ä", "\xff\xfe", "", "\x01", strings.Repeat("x", 100_000), ""}
		o := f.run(call{args: f.sandbox(nil, append([]string{"sh", "-c", `printf '<%s>' "$@"`, "sh"}, args...)...)})
		if want := "<" + strings.Join(args, "><") + ">"; o.code != 0 || o.stdout != want || o.stderr != "" {
			f.Errorf("want %.500q\n%v", want, o)
		}
		// -c takes $0 and the rest, as bash -c does.
		if o := f.run(call{args: f.sandbox([]string{"-c", `printf '<%s>' "$0" "$@"`}, "zero", "-x", "a b")}); o.stdout != "<zero><-x><a b>" {
			f.Errorf("%v", o)
		}
		// Without --, everything after the first word that is no flag is the command's.
		bare := append(f.who.command(sbxrun), f.quiet()...)
		if o := f.run(call{args: append(bare, "-P", "strict", "printf", "<%s>", "-t", "--json")}); o.stdout != "<-t><--json>" {
			f.Errorf("%v", o)
		}

		// 1 MB in all; a single one may have 128 KiB (MAX_ARG_STRLEN).
		many := make([]string, 16)
		for i := range many {
			many[i] = strings.Repeat(string(rune('a'+i)), 64<<10)
		}
		o = f.run(call{args: f.sandbox(nil, append([]string{"sh", "-c", `echo $#; printf %s "$@" | wc -c; printf '%.1s' "$@"`, "sh"}, many...)...)})
		if want := fmt.Sprintf("16\n%d\nabcdefghijklmnop", 1<<20); o.code != 0 || o.stdout != want {
			f.Errorf("want %q, exit code %d: %.500s %.500s", want, o.code, o.stdout, o.stderr)
		}
		script := "exit 3 #" + strings.Repeat("x", 120_000)
		if o := f.run(call{args: f.sandbox([]string{"-c", script})}); o.code != 3 {
			f.Errorf("a script of 120 kB: exit code %d: %.500s", o.code, o.stderr)
		}

		// More than the kernel takes: said by sbxrun, not by a crash.
		file := f.write("ws/env", "BIG="+strings.Repeat("x", 200_000)+"\n", 0o644)
		for _, flags := range [][]string{{"--env-file", file}, {"--env-file", file, "--json"}} {
			o = f.run(call{args: f.sandbox(flags, "true")})
			if o.code != 126 && o.code != 125 || !strings.Contains(o.stderr, "argument list too long") || len(o.stderr) > 1000 {
				f.Errorf("want a short error that says what is too long: exit code %d: %.1000s", o.code, o.stderr)
			}
		}
	})
}

// TestEnvironment is RUN-7.
func TestEnvironment(t *testing.T) {
	host := []string{
		"LANG=C.UTF-8", "LC_TIME=C", "TERM=xterm", "TZ=UTC", "SSH_AUTH_SOCK=/s", "LD_PRELOAD=/no/such.so", "LD_LIBRARY_PATH=/no", "BASH_ENV=/no/such", "ENV=/no/such",
		"GIT_DIR=/no/such", "GIT_SSH_COMMAND=x", "NODE_OPTIONS=--no-such", "PYTHONPATH=/no", "AWS_SECRET_ACCESS_KEY=secret", "GITHUB_TOKEN=secret", "ANTHROPIC_API_KEY=secret",
		"http_proxy=http://user:secret@proxy", "DBUS_SESSION_BUS_ADDRESS=unix:path=/x", "DISPLAY=:0", "XDG_RUNTIME_DIR=/run/user/1", "BASH_FUNC_ls%%=() { echo no; }", "MINE=mine", "EMPTY=",
	}
	eachWho(t, func(f *fixture) {
		file := f.write("ws/env", "# a comment\n\nFROM_FILE=a b\n", 0o644)
		// A command can write such a file, to be given a secret by the next run.
		written := f.write("ws/written", "FROM_FILE=a b\nGITHUB_TOKEN\n", 0o644)
		if o := f.run(call{args: f.sandbox([]string{"--env-file", written}, "env"), env: host}); o.code != 125 || o.stdout != "" || !strings.Contains(o.stderr, `GITHUB_TOKEN" would pass the caller's value`) {
			f.Errorf("a name in a file: %v", o)
		}
		path := "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		always := []string{"HOME=" + f.home, "USER=sandbox", "LOGNAME=sandbox", "SHELL=", "SBXRUN_SANDBOX=strict"}
		usual := append([]string{path, "LANG=C.UTF-8", "LC_TIME=C", "TERM=xterm", "TZ=UTC"}, always...)
		for _, tt := range []struct {
			name  string
			flags []string
			want  []string
		}{
			{"default", nil, usual},
			{"-e", []string{"-e", "MINE", "-e", "YOURS=a=b", "-e", "NONE=", "-e", "UNSET_HERE", "-e", "TERM=dumb"}, append(slices.DeleteFunc(slices.Clone(usual), func(s string) bool { return s == "TERM=xterm" }), "MINE=mine", "YOURS=a=b", "NONE=", "TERM=dumb")},
			{"--env-file", []string{"--env-file", file}, append(slices.Clone(usual), "FROM_FILE=a b")},
			{"a secret by name", []string{"-e", "GITHUB_TOKEN"}, append(slices.Clone(usual), "GITHUB_TOKEN=secret")},
		} {
			o := f.run(call{args: f.sandbox(tt.flags, "env", "-0"), env: host})
			got := strings.Split(strings.TrimSuffix(o.stdout, "\x00"), "\x00")
			for i, v := range got {
				if strings.HasPrefix(v, "SHELL=") { // bash or sh, as the host has
					got[i] = "SHELL="
				}
			}
			slices.Sort(got)
			want := slices.Clone(tt.want)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				f.Errorf("%s:\ngot  %q\nwant %q\n%s", tt.name, got, want, o.stderr)
			}
		}
		o := f.run(call{args: f.sandbox([]string{"--clear-env", "-e", "ONLY=1"}, "/usr/bin/env"), env: host})
		for line := range strings.Lines(o.stdout) {
			if name, _, _ := strings.Cut(line, "="); !slices.Contains([]string{"ONLY", "HOME", "USER", "LOGNAME", "PATH", "SHELL", "PWD", "SBXRUN_SANDBOX"}, name) {
				f.Errorf("--clear-env left %s", line)
			}
		}
		o = f.run(call{args: f.sandbox([]string{"--inherit-env"}, "/usr/bin/env"), env: host})
		if o.code != 0 {
			f.Errorf("%v", o)
		}
		f.wantLines(o.stdout, "MINE=mine", "EMPTY=", "GITHUB_TOKEN=secret", "HOME="+f.home)
	})
}

// TestDirectory: the command starts where it was told to, in the new root.
func TestDirectory(t *testing.T) {
	eachWho(t, func(f *fixture) {
		f.files(map[string]string{"sub dir/file": "x\n"})
		for _, tt := range []struct{ dir, want string }{{f.ws, f.ws}, {f.ws + "/sub dir", f.ws + "/sub dir"}, {".", f.ws}, {"sub dir", f.ws + "/sub dir"}} {
			args := append(f.who.command(sbxrun, "-P", "strict", "-C", tt.dir), f.quiet()...)
			o := f.run(call{args: append(args, "--", "sh", "-c", `pwd; pwd -P; readlink /proc/self/cwd; touch new && ls`)})
			if want := strings.Repeat(tt.want+"\n", 3); o.code != 0 || !strings.HasPrefix(o.stdout, want) || !exists(filepath.Join(tt.want, "new")) {
				f.Errorf("-C %s: want %q\n%v", tt.dir, want, o)
			}
		}
		// The default is the current directory.
		args := append(f.who.command(sbxrun), f.quiet()...)
		if o := f.run(call{args: append(args, "pwd")}); o.stdout != f.ws+"\n" {
			f.Errorf("%v", o)
		}
		for _, dir := range []string{"/", f.ws + "/missing", f.ws + "/README"} {
			args := append(f.who.command(sbxrun, "-P", "strict", "-C", dir), f.quiet()...)
			if o := f.run(call{args: append(args, "--", "true")}); o.code != 125 || !strings.Contains(o.stderr, "sbxrun: hint: ") {
				f.Errorf("-C %s: want 125 and a hint\n%v", dir, o)
			}
		}
	})
}

// TestDescriptors is RUN-8: the command gets 0, 1 and 2 and no other.
func TestDescriptors(t *testing.T) {
	eachWho(t, func(f *fixture) {
		script := `for i in 3 4 5 6 7 8 9; do { true <&$i; } 2>/dev/null && echo $i is open; done; ls /proc/self/fd | wc -l`
		var extra []*os.File
		for range 7 {
			file, err := os.Open(filepath.Join(f.ws, "README"))
			if err != nil {
				f.Fatal(err)
			}
			defer file.Close()
			extra = append(extra, file)
		}
		// The fourth is ls's own, on the directory.
		if o := f.run(call{args: f.sandbox(nil, "bash", "-c", script), extra: extra}); o.code != 0 || o.stdout != "4\n" {
			f.Errorf("%v", o)
		}
		// The control: without a sandbox they are there.
		if o := f.run(call{args: f.who.command("bash", "-c", script), extra: extra}); !strings.HasPrefix(o.stdout, "3 is open\n4 is open\n") {
			f.Errorf("the control: %v", o)
		}
	})
}

// TestSignals is RUN-6: what sbxrun is sent reaches the command.
func TestSignals(t *testing.T) {
	tests := []struct {
		name   string
		script string
		send   []syscall.Signal
		code   int
		stdout string
	}{
		{"TERM", `trap "echo got TERM; exit 7" TERM`, []syscall.Signal{syscall.SIGTERM}, 7, "got TERM\n"},
		{"INT", `trap "echo got INT; exit 8" INT`, []syscall.Signal{syscall.SIGINT}, 8, "got INT\n"},
		{"HUP", `trap "echo got HUP; exit 9" HUP`, []syscall.Signal{syscall.SIGHUP}, 9, "got HUP\n"},
		{"QUIT", `trap "echo got QUIT; exit 10" QUIT`, []syscall.Signal{syscall.SIGQUIT}, 10, "got QUIT\n"},
		{"USR1 and USR2", `trap "echo got USR1; >told" USR1; trap "echo got USR2; exit 11" USR2`, []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2}, 11, "got USR1\ngot USR2\n"},
		{"WINCH", `trap "echo got WINCH; exit 12" WINCH`, []syscall.Signal{syscall.SIGWINCH}, 12, "got WINCH\n"},
		{"TERM without a handler", ``, []syscall.Signal{syscall.SIGTERM}, 143, ""},
		{"INT without a handler", `trap - INT`, []syscall.Signal{syscall.SIGINT}, 130, ""},
		{"INT once is ignored", `trap "echo once; >told" INT; trap "exit 5" TERM`, []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}, 5, "once\n"},
		{"INT twice kills", `trap "echo ignored; >told" INT`, []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 137, "ignored\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachWho(t, func(f *fixture) {
				ready, told := filepath.Join(f.ws, "ready"), filepath.Join(f.ws, "told")
				script := tt.script + `; echo >ready; while :; do sleep 60 & wait; done`
				o := f.run(call{args: f.sandbox([]string{"--kill-after", "30s"}, "bash", "-c", strings.TrimPrefix(script, "; ")), started: func(cmd *exec.Cmd) {
					if !within(20*time.Second, func() bool { return exists(ready) }) {
						f.Error("the command did not start")
					}
					for i, s := range tt.send {
						// Of two signals that wait bash may forget one.
						if i > 0 && !within(20*time.Second, func() bool { return exists(told) }) {
							f.Error("it was not told of the first signal")
						}
						cmd.Process.Signal(s)
					}
				}})
				// A killed shell may or may not have had the time to speak.
				if o.code != tt.code || o.stdout != tt.stdout && tt.code != 137 {
					f.Errorf("want exit code %d and %q\n%v", tt.code, tt.stdout, o)
				}
				f.wantNothingLeft()
			})
		})
	}
}
