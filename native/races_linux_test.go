package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/reexec"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// A swap is one thing that an attacker on the host exchanges with a symbolic
// link to outside while a sandbox is set up, and a run that uses it.
type swap struct {
	name string
	// path, below the arena, and what is exchanged with it: a link to this
	// directory of another place.
	path, evil, link string
	// Whether the race is over once the policy is resolved: whoever moves what is
	// hidden before that has it in another place, of which nothing was said.
	late    bool
	request func(base string) profiles.Request
	want    string // what it prints if the right thing is mounted
}

// What the command of a swap does in the directory that it was given. The second
// name is for the canary: what is written goes where the mount leads.
const useIt = `cat $1/name && echo touched > $1/touched`

var swaps = []swap{
	{
		name: "source", path: "src", evil: "src.evil", link: "outside",
		request: func(base string) profiles.Request {
			return profiles.Request{Command: []string{"sh", "-c", useIt, "sh", base + "/src"}, ReadWrite: []string{base + "/src"}}
		}, want: "right\n",
	}, {
		name: "parent of a source", path: "parent", evil: "parent.evil", link: "elsewhere",
		request: func(base string) profiles.Request {
			return profiles.Request{Command: []string{"sh", "-c", useIt, "sh", base + "/parent/src"}, ReadWrite: []string{base + "/parent/src"}}
		}, want: "right\n",
	}, {
		name: "target", path: "ws/target", evil: "ws/target.evil", link: "outside",
		request: func(base string) profiles.Request {
			return profiles.Request{Command: []string{"sh", "-c", useIt, "sh", base + "/mnt"}, Binds: []profiles.Bind{{Source: base + "/right", Destination: base + "/ws/target"}, {Source: base + "/right", Destination: base + "/mnt"}}}
		}, want: "right\n",
	}, {
		name: "parent of a target", path: "ws/sub", evil: "ws/sub.evil", link: "elsewhere",
		request: func(base string) profiles.Request {
			return profiles.Request{Command: []string{"sh", "-c", useIt, "sh", base + "/mnt"}, Binds: []profiles.Bind{{Source: base + "/right", Destination: base + "/ws/sub/src"}, {Source: base + "/right", Destination: base + "/mnt"}}}
		}, want: "right\n",
	}, {
		name: "workspace", path: "ws2", evil: "ws2.evil", link: "outside",
		request: func(base string) profiles.Request {
			return profiles.Request{Command: []string{"sh", "-c", useIt, "sh", base + "/ws2"}, Dir: base + "/ws2"}
		}, want: "right\n",
	}, {
		// Wherever the directory is by then, nothing of it is to be read.
		name: "hidden directory", late: true, path: "ws/hidden", evil: "ws/hidden.evil", link: "outside",
		request: func(base string) profiles.Request {
			return profiles.Request{Command: []string{"sh", "-c", "cat hidden/name hidden.evil/name 2>/dev/null; echo done"}, Hide: []string{base + "/ws/hidden"}}
		}, want: "done\n",
	},
}

// arena makes the files that the swaps are about, and the place that the links
// lead to.
func arena(t *testing.T) (base, other string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if other, err = filepath.EvalSymlinks(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"src", "parent/src", "ws/target", "ws/sub/src", "ws2", "right"} {
		write(t, base+"/"+dir+"/name", "right\n")
	}
	write(t, base+"/ws/hidden/name", "hidden\n")
	write(t, other+"/outside/name", "outside\n")
	write(t, other+"/elsewhere/src/name", "outside\n")
	for _, s := range swaps {
		if err := os.Symlink(other+"/"+s.link, base+"/"+s.evil); err != nil {
			t.Fatal(err)
		}
	}
	return base, other
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// outsideChanged says what became of the canaries, "" if they are as they were.
func outsideChanged(other string) string {
	for dir, want := range map[string]string{"outside": "name", "elsewhere": "src", "elsewhere/src": "name"} {
		list, err := os.ReadDir(other + "/" + dir)
		if err != nil || len(list) != 1 || list[0].Name() != want {
			return fmt.Sprintf("%s: %v, %v", dir, list, err)
		}
	}
	return ""
}

func (s *swap) exchange(base string) error {
	return unix.Renameat2(unix.AT_FDCWD, base+"/"+s.path, unix.AT_FDCWD, base+"/"+s.evil, unix.RENAME_EXCHANGE)
}

// resolve is the policy of a swap's run.
func (s *swap) resolve(base string) (*policy.Policy, error) {
	req := s.request(base)
	req.Degrade = policy.LayerCgroup
	if req.Dir == "" {
		req.Dir = base + "/ws"
	}
	r, err := profiles.Resolve(&req, &profiles.Facts{Home: "/nonexistent", Cwd: base + "/ws", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		Environ: []string{"PATH=/usr/bin:/bin"}, CPUs: 2, FS: os.DirFS("/")})
	if err != nil {
		return nil, err
	}
	return r.Policy, nil
}

// TestSwapAtEveryStep is F04, deterministic: the set-up stops before each of its
// steps, the swap happens, and the set-up goes on. It is refused because of the
// link, or it goes on with what the policy meant; nothing outside changes.
func TestSwapAtEveryStep(t *testing.T) {
	every := 1
	if os.Getenv("SBXRUN_SOAK_RUNS") == "" {
		every = 7 // make test does all of them
	}
	for i := range swaps {
		s := &swaps[i]
		t.Run(s.name, func(t *testing.T) {
			base, other := arena(t)
			refused, right := 0, 0
			for at, n := 0, 1; at < n; at += every {
				p, err := s.resolve(base)
				if err != nil {
					t.Fatal(err)
				}
				stdout, pw, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				r := preparePolicy(t, p, driver.Stdio{Stdout: pw})
				n = r.cfg.Init.Len()
				pr, resume, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				r.cfg.Init.InsertPause(at, int(pr.Fd()))
				r.cfg.Keep = append(r.cfg.Keep, int(pr.Fd()))
				child, err := reexec.Start(r.cfg)
				if err != nil {
					t.Fatal(err)
				}
				if r.guard != nil {
					r.guard.Start()
				}
				waitForPause(t, child.Pid(), int(pr.Fd()))
				if err := s.exchange(base); err != nil {
					t.Fatal(err)
				}
				resume.Close()
				if r.group != nil {
					if err := r.group.Create(); err != nil {
						t.Fatal(err)
					}
				}
				child.Go()
				exit, err := child.Wait()
				child.Close(false)
				r.release()
				pr.Close()
				pw.Close()
				b, _ := io.ReadAll(stdout)
				stdout.Close()
				printed := string(b)
				var e *reexec.StepError
				switch {
				case errors.As(err, &e) && (errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)):
					refused++
				case err == nil && exit.Status == 0 && printed == s.want:
					right++
				default:
					t.Errorf("swapped before step %d: %+v, %v, %q", at, exit, err, printed)
				}
				if err := s.exchange(base); err != nil {
					t.Fatal(err)
				}
				if c := outsideChanged(other); c != "" {
					t.Fatalf("swapped before step %d: the other place changed: %s", at, c)
				}
				os.Remove(base + "/right/touched")
			}
			if refused == 0 || right == 0 {
				t.Errorf("refused %d times, right %d times: the swap did not matter", refused, right)
			}
			t.Logf("refused at %d steps, right at %d", refused, right)
		})
	}
}

// waitForPause waits until a stage reads from the pause's pipe.
func waitForPause(t *testing.T, pid, fd int) {
	t.Helper()
	want := fmt.Sprintf("%d 0x%x ", unix.SYS_READ, fd)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/syscall")
		if err != nil {
			// Not readable for this user or on this kernel: long enough.
			time.Sleep(3 * time.Millisecond)
			return
		}
		if strings.HasPrefix(string(b), want) {
			return
		}
	}
	t.Fatal("the set-up did not reach its pause")
}

// swapper is the attacker: it exchanges in a tight loop until its standard input
// ends.
func swapper(base string) {
	go func() {
		for {
			for i := range swaps {
				swaps[i].exchange(base)
			}
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// TestSwapRaces is F04, statistical: an attacker swaps while thousands of runs
// resolve their policy, set up and end.
func TestSwapRaces(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 200
	}
	if s := os.Getenv("SBXRUN_SOAK_RUNS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		rounds = n
	}
	base, other := arena(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "NATIVE_TEST_SWAP="+base)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); cmd.Wait() }()

	type tally struct{ resolve, setup, dangling, right int }
	tallies := make([]tally, len(swaps))
	naive := 0
	for round := range rounds {
		i := round % len(swaps)
		s := &swaps[i]
		if s.late {
			continue
		}
		// The control: who looks first and acts then is led astray.
		for range 20 {
			if st, err := os.Lstat(base + "/src"); err == nil && st.IsDir() {
				if b, _ := os.ReadFile(base + "/src/name"); string(b) == "outside\n" {
					naive++
				}
			}
		}
		p, err := s.resolve(base)
		if err != nil {
			// The link was there already: refused before anything is done.
			if !strings.Contains(err.Error(), "symbolic link") && !strings.Contains(err.Error(), "cannot be looked up") {
				t.Fatalf("%s: %v", s.name, err)
			}
			tallies[i].resolve++
			continue
		}
		res, err := driver.Run(context.Background(), Driver{}, p, driver.RunOptions{Capture: true})
		switch {
		case err == nil && res.ExitCode == 0 && res.Stdout == s.want:
			tallies[i].right++
		case err != nil && res.Reason == driver.ReasonSetup:
			tallies[i].setup++
		case err == nil && res.ExitCode != 0 && res.Stdout == "":
			// The link came after the policy was resolved and before it was
			// lowered: it is in the sandbox as the link that it is, and leads
			// to nothing there.
			tallies[i].dangling++
		default:
			t.Errorf("%s, round %d: %+v, %v", s.name, round, res, err)
		}
		if c := outsideChanged(other); c != "" {
			t.Fatalf("%s, round %d: the other place changed: %s", s.name, round, c)
		}
	}
	for i := range swaps {
		c := tallies[i]
		if swaps[i].late {
			continue
		}
		t.Logf("%-20s refused when resolved %5d, refused in set-up %5d, nothing shown %5d, right %5d", swaps[i].name, c.resolve, c.setup, c.dangling, c.right)
		if c.setup == 0 {
			t.Errorf("%s: no swap fell between the policy and the mount", swaps[i].name)
		}
	}
	t.Logf("who checks and then uses was led astray %d times of %d", naive, 20*rounds)
	if naive == 0 {
		t.Error("the attacker is too slow for a race: the test shows nothing")
	}
}
