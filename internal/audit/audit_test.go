//go:build unix

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/sbxrun/sbxrun/driver"
)

func read(t *testing.T, name string) []Record {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []Record
	for line := range bytes.Lines(data) {
		var r Record
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil || line[len(line)-1] != '\n' {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	l, err := Open(Config{File: file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	denials := []driver.Denial{{Operation: "connect", Target: "x.org:443", Rule: "default", Grant: "--allow-host x.org:443"}}
	res := &driver.Result{ExitCode: 7, Reason: driver.ReasonExit, Denials: denials}
	if err := l.Run(Record{Source: "run", Command: []string{"ls", "a b"}, Sandboxed: true}, OutcomeOf(res), denials); err != nil {
		t.Fatal(err)
	}
	if err := l.Denied(Record{Source: "mcp", Tool: "execute_command", Command: []string{"sudo"}}, driver.Denial{Operation: "execute", Target: "sudo"}); err != nil {
		t.Fatal(err)
	}
	all := read(t, file)
	if len(all) != 3 {
		t.Fatalf("%d records", len(all))
	}
	run, denial, refusal := all[0], all[1], all[2]
	if run.Event != "run" || run.Outcome == nil || run.ExitCode != 7 || run.Outcome.Denials != 1 || run.Denial != nil || !run.Sandboxed || run.UID != os.Getuid() || run.Time.IsZero() || !slices.Equal(run.Command, []string{"ls", "a b"}) {
		t.Errorf("%+v", run)
	}
	if denial.Event != "denial" || denial.Outcome != nil || denial.Denial == nil || denial.Target != "x.org:443" || denial.Grant == "" || !slices.Equal(denial.Command, run.Command) {
		t.Errorf("%+v", denial)
	}
	if refusal.Event != "denial" || refusal.Target != "sudo" || refusal.Tool != "execute_command" {
		t.Errorf("%+v", refusal)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
}

// TestBegin: a run is recorded before it begins, and its other records name that one.
func TestBegin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	l, err := Open(Config{File: file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := Record{Source: "run", Command: []string{"ls"}}
	if err := l.Begin(&r); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || strings.Contains(string(data), "sandboxed") {
		t.Errorf("what is not known yet: %s, %v", data, err)
	}
	r.Sandboxed = true
	if err := l.Run(r, &Outcome{}, []driver.Denial{{Target: "x"}}); err != nil {
		t.Fatal(err)
	}
	all := read(t, file)
	if len(all) != 3 || all[0].Event != "begin" || all[0].Outcome != nil || all[0].Began != nil || !slices.Equal(all[0].Command, r.Command) {
		t.Fatalf("%+v", all)
	}
	for _, a := range all[1:] {
		if a.Began == nil || !a.Began.Equal(all[0].Time) || !a.Sandboxed {
			t.Errorf("%+v, which began %v", a, a.Began)
		}
	}
}

// TestTorn: what there was room for of a line does not swallow the next one.
func TestTorn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	l, err := Open(Config{File: file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := func() []string {
		var all []string
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(data) {
			var r Record
			if json.Unmarshal(line, &r) == nil {
				all = append(all, r.Command[0])
			}
		}
		return all
	}
	begin := func(command string) error { return l.Begin(&Record{Command: []string{command}}) }
	if err := begin("first"); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	// A file size limit is met in the middle of a line, as the end of a disk is.
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	low := was
	low.Cur = uint64(fi.Size()) + 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &low); err != nil {
		t.Fatal(err)
	}
	torn := begin("torn")
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(file); torn == nil || err != nil || after.Size() != fi.Size()+20 {
		t.Fatalf("no torn line: %v, %v", torn, err)
	}
	for _, next := range []string{"second", "third"} {
		if err := begin(next); err != nil {
			t.Fatal(err)
		}
	}
	if got := whole(); !slices.Equal(got, []string{"first", "second", "third"}) {
		t.Errorf("%q", got)
	}
}

// TestFile: what is not plainly the caller's own file is refused, and not changed.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	for name, make := range map[string]func(string) error{
		"link":      func(n string) error { return os.Symlink(plain, n) },
		"dangling":  func(n string) error { return os.Symlink(filepath.Join(dir, "nothing"), n) },
		"directory": func(n string) error { return os.Mkdir(n, 0o700) },
		"readable":  func(n string) error { return os.WriteFile(n, nil, 0o644) },
		"group":     func(n string) error { return os.WriteFile(n, nil, 0o620) },
		"fifo":      func(n string) error { return exec.Command("mkfifo", "-m", "600", n).Run() },
		"no place":  func(string) error { return nil },
	} {
		file := filepath.Join(dir, name)
		if name == "no place" {
			file = filepath.Join(dir, "nowhere", "audit")
		}
		if err := make(file); err != nil {
			t.Fatal(err)
		}
		if name == "readable" || name == "group" { // whatever the umask is
			if err := os.Chmod(file, map[string]fs.FileMode{"readable": 0o644, "group": 0o620}[name]); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(Config{File: file}, nil)
		var e *Error
		if !errors.As(err, &e) || e.Hint() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []string{plain, filepath.Join(dir, "nothing")} {
		if _, err := os.Lstat(n); err == nil {
			t.Errorf("%s was made", n)
		}
	}
}

// TestRotation: several writers at a time lose no line and break none, whoever puts
// the file away.
func TestRotation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	const writers, each = 8, 60
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			// A log of its own, as a process of its own has.
			l, err := Open(Config{File: file, MaxSize: 4 << 10, Keep: 1000}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range each {
				if err := l.Run(Record{Source: "run", Command: []string{fmt.Sprintf("%d/%d", w, i)}}, &Outcome{}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	files, err := filepath.Glob(file + "*")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	seen := map[string]int{}
	for _, f := range files {
		if fi, err := os.Stat(f); err != nil || fi.Size() > 4<<10 || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, fi, err)
		}
		for _, r := range read(t, f) {
			seen[r.Command[0]]++
		}
	}
	for w := range writers {
		for i := range each {
			if n := seen[fmt.Sprintf("%d/%d", w, i)]; n != 1 {
				t.Errorf("record %d of writer %d is there %d times", i, w, n)
			}
		}
	}
}

// TestKeep: no more files than asked for, the newest first.
func TestKeep(t *testing.T) {
	for _, keep := range []int{0, 2} {
		file := filepath.Join(t.TempDir(), "audit")
		l, err := Open(Config{File: file, MaxSize: 1, Keep: keep}, nil) // each line fills it
		if err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			if err := l.Run(Record{Command: []string{fmt.Sprint(i)}}, &Outcome{}, nil); err != nil {
				t.Fatal(err)
			}
		}
		files, _ := filepath.Glob(file + "*")
		if len(files) != keep+1 {
			t.Errorf("keep %d: %q", keep, files)
		}
		for i, f := range files {
			if got := read(t, f)[0].Command[0]; got != fmt.Sprint(5-i) {
				t.Errorf("%s has record %s", f, got)
			}
		}
	}
}

func TestRedact(t *testing.T) {
	r := NewRedactor([]string{"MY_TOKEN=abcdefgh1234", "PWD=/home/u/project", "DB_PASSWORD=short", "API_KEY=with\nnewline!", "HOME=/home/u"}, "the-servers-own")
	for _, c := range []struct{ in, without string }{
		{"curl -H x abcdefgh1234", "abcdefgh1234"},
		{"curl -H 'Authorization: Bearer zzzz.yyyy'", "zzzz"},
		{"curl -H 'authorization:zzzzyyyy'", "zzzzyyyy"},
		{`curl -H "X-Api-Key: zzzzyyyy"`, "zzzzyyyy"},
		{"git clone https://u:hunter2@example.com/x", "hunter2"},
		{"git clone https://hunter2@example.com/x", "hunter2"},
		{"PGPASSWORD=hunter2 psql", "hunter2"},
		{"export GITHUB_TOKEN='hunter two'; make", "hunter two"},
		{`{"password": "hunter2"}`, "hunter2"},
		{"mysql --password=hunter2", "hunter2"},
		{"mysql --password hunter2", "hunter2"},
		{"aws configure set aws_secret_access_key hunter2hunter2; echo AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"},
		{"echo ghp_0123456789abcdefghij0123456789abcdef", "ghp_0123"},
		{"echo github_pat_0123456789abcdefghij", "github_pat_0"},
		{"echo sk-ant-0123456789abcdefghij", "0123456789"},
		{"echo xoxb-012345678901-abc", "xoxb-0"},
		{"echo eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl", "c2lnbmF0"},
		{"cat <<E\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNza\n-----END OPENSSH PRIVATE KEY-----\nE", "b3BlbnNza"},
		{"x with\nnewline! y", "newline!"},
		{"--token the-servers-own", "the-servers-own"},
	} {
		got := r.Text(c.in)
		if strings.Contains(got, c.without) || !strings.Contains(got, Redacted) {
			t.Errorf("%q: %q", c.in, got)
		}
	}
	for _, same := range []string{"", "go test ./...", "cd /home/u/project && make", "grep -r password .", "git log --oneline", "ls tokenizer/", "curl https://example.com/a?b=c", "echo short", "user@example.com", "ssh://host/path", "a: b"} {
		if got := r.Text(same); got != same {
			t.Errorf("%q became %q", same, got)
		}
	}
	if got := r.Words([]string{"mysql", "--password", "hunter2", "-u", "root"}); strings.Contains(fmt.Sprint(got), "hunter2") || !slices.Contains(got, "root") {
		t.Errorf("%q", got)
	}
	if got := r.Words([]string{"curl", "-u", "me:hunter2", "https://x"}); strings.Contains(fmt.Sprint(got), "hunter2") || !slices.Contains(got, "https://x") {
		t.Errorf("%q", got)
	}
}

// FuzzLine: whatever was run, a record is one line that can be read back, of
// printable characters, and not long.
func FuzzLine(f *testing.F) {
	for _, s := range []string{"", "ls", "a\nb", "\r\n{\"event\":\"run\"}\n", "\x1b[2J\x9b\x7f\u202e\u2028", "\xff\xfe", strings.Repeat("x\n", 9000), "\u200b\ufeff", "</script>", "\\n\\u000a"} {
		f.Add(s, s)
	}
	l := &Log{redact: NewRedactor([]string{"A_TOKEN=secretsecret"})}
	f.Fuzz(func(t *testing.T, a, b string) {
		line, err := l.line(&Record{Event: "run", Source: a, Command: []string{a, b, a + b}, Cwd: b, Session: a, Tool: b, Profile: a, Driver: b, Why: a,
			Outcome: &Outcome{Error: a, Signal: b}, Denial: &driver.Denial{Operation: a, Target: b, Rule: a, Grant: driver.Grant(b), Reason: a}})
		if err != nil {
			t.Fatal(err)
		}
		body, ok := bytes.CutSuffix(line, []byte("\n"))
		if !ok || len(line) > 128<<10 {
			t.Fatalf("%d bytes, ends with %q", len(line), line[max(0, len(line)-10):])
		}
		for _, r := range string(body) {
			if unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
				t.Fatalf("%U in %q", r, body)
			}
		}
		if bytes.Contains(line, []byte("secretsecret")) {
			t.Fatalf("a secret in %q", body)
		}
		var back Record
		if err := json.Unmarshal(body, &back); err != nil || back.Event != "run" {
			t.Fatalf("%q: %v", body, err)
		}
	})
}

// TestLocked: who keeps the file locked costs a record, and no run its end.
func TestLocked(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	patience = 50 * time.Millisecond
	file := filepath.Join(t.TempDir(), "audit")
	l, err := Open(Config{File: file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(file) // to read is enough
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if err := l.Run(Record{Source: "run"}, nil, nil); err == nil || !strings.Contains(err.Error(), "keeps it locked") {
		t.Errorf("locked: %v", err)
	}
	other.Close()
	if err := l.Run(Record{Source: "run"}, nil, nil); err != nil || len(read(t, file)) != 1 {
		t.Errorf("free again: %v", err)
	}
}
