package landlock

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/internal/sys"
)

// TestMain: enforcing is irreversible, so it is done in a process of its own.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LANDLOCK_TEST_DIR"); dir != "" {
		restrictAndTry(dir)
		return
	}
	os.Exit(m.Run())
}

func restrictAndTry(dir string) {
	runtime.LockOSThread()
	abi := sys.LandlockABI()
	var p sys.Program
	root := p.NewReg()
	p.Call(root, sys.Step{Op: "open"}, unix.SYS_OPENAT, sys.Imm(unix.AT_FDCWD), p.Str("/"), sys.Imm(unix.O_PATH|unix.O_CLOEXEC), sys.Imm(0))
	rules := &Ruleset{Rules: []Rule{
		{Path: dir + "/rw", Access: Read | Write},
		{Path: dir + "/ro", Access: Read},
		{Path: dir + "/file", Access: Read | Write, IsFile: true},
		{Path: dir + "/absent", Access: Read, Optional: true},
	}}
	out, err := os.Create(dir + "/out")
	if err != nil {
		panic(err)
	}
	pipe := make([]int, 2)
	unix.Pipe(pipe)
	rules.FDs = []FDRule{{FD: int(out.Fd()), Access: WriteFile}, {FD: pipe[0], Access: ReadFile}}
	set := Append(&p, root, abi, rules)
	p.Call(0, sys.Step{Op: "prctl"}, unix.SYS_PRCTL, sys.Imm(unix.PR_SET_NO_NEW_PRIVS), sys.Imm(1), sys.Imm(0), sys.Imm(0), sys.Imm(0))
	AppendRestrict(&p, set)
	var regs sys.Regs
	if n, e := p.Runnable().Run(&regs); e != 0 {
		panic(p.Step(int(n)).Op + ": " + syscall.Errno(e).Error())
	}
	try := func(name string, err error) {
		s := "ok"
		if errors.Is(err, syscall.EACCES) {
			s = "EACCES"
		} else if err != nil {
			s = err.Error()
		}
		out.WriteString(name + " " + s + "\n")
	}
	read := func(f string) error { _, err := os.ReadFile(dir + "/" + f); return err }
	write := func(f string) error { return os.WriteFile(dir+"/"+f, []byte("x"), 0o644) }
	try("read rw/f", read("rw/f"))
	try("write rw/new", write("rw/new"))
	try("truncate rw/f", os.Truncate(dir+"/rw/f", 0))
	try("rename in rw", os.Rename(dir+"/rw/new", dir+"/rw/newer"))
	try("read ro/f", read("ro/f"))
	try("write ro/f", write("ro/f"))
	try("create ro/new", write("ro/new"))
	try("write file", write("file"))
	try("read hidden", read("hidden"))
	try("list top", func() error { _, err := os.ReadDir(dir); return err }())
	f, err := os.OpenFile("/proc/self/fd/"+itoa(int(out.Fd())), os.O_WRONLY, 0)
	f.Close()
	try("open the output again", err)
	try("mkfifo rw", unix.Mkfifo(dir+"/rw/p", 0o600))
	if os.Geteuid() == 0 {
		try("mknod rw", unix.Mknod(dir+"/rw/dev", unix.S_IFCHR|0o600, 0x103))
	}
}

func itoa(i int) string {
	return strings.TrimPrefix(string(rune('0'+i/10)), "0") + string(rune('0'+i%10))
}

func TestEnforced(t *testing.T) {
	if sys.LandlockABI() < 1 {
		t.Fatal("this kernel has no Landlock: the test needs Linux 5.13 with Landlock enabled")
	}
	dir := t.TempDir()
	for _, d := range []string{"rw", "ro"} {
		os.Mkdir(filepath.Join(dir, d), 0o755)
		os.WriteFile(filepath.Join(dir, d, "f"), []byte("data"), 0o644)
	}
	os.WriteFile(filepath.Join(dir, "file"), []byte("data"), 0o644)
	os.WriteFile(filepath.Join(dir, "hidden"), []byte("data"), 0o644)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "LANDLOCK_TEST_DIR="+dir)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	got, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	want := `read rw/f ok
write rw/new ok
truncate rw/f ok
rename in rw ok
read ro/f ok
write ro/f EACCES
create ro/new EACCES
write file ok
read hidden EACCES
list top EACCES
open the output again ok
mkfifo rw ok
`
	if os.Geteuid() == 0 {
		want += "mknod rw EACCES\n"
	}
	if string(got) != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
