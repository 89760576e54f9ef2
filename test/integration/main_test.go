//go:build linux

package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/sbxrun/sbxrun/test/dispositions"
)

// What every test uses, made once by TestMain.
var (
	// runDir holds all that the tests put on the host. Its name is in the
	// command line of every process that they start: by it they are found.
	runDir string

	sbxrun string // the binary under test
	attack string // test/integration/attack
	stage  string // test/integration/stage
	fetch  string // test/integration/fetch

	fileops string // test/integration/fileops
)

func TestMain(m *testing.M) {
	flag.Parse()
	dispositions.Default()
	// Those that run beside others here wait more than they work: half as many again.
	if n, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); err == nil {
		flag.Set("test.parallel", strconv.Itoa(n*3/2))
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	defer os.RemoveAll(runDir)
	subjects, cleanup, err := findSubjects()
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	defer cleanup()
	whos = subjects
	before := lookAround()
	code = m.Run()
	for _, end := range atExit {
		end()
	}
	if left := before.leaks(); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "integration: left behind on the host:")
		for _, l := range left {
			fmt.Fprintln(os.Stderr, "\t"+l)
		}
		return 1
	}
	return code
}

// prepare builds the programs, or takes them from SBXRUN_TEST_BIN, where there is
// no compiler: test/vm. Those that run inside are static: they run in any root.
func prepare() (err error) {
	if runDir, err = os.MkdirTemp("", "sbxrun-battery-"); err != nil {
		return err
	}
	// The ordinary user must get at what is below.
	if err := os.Chmod(runDir, 0o755); err != nil {
		return err
	}
	bin := filepath.Join(runDir, "bin")
	sbxrun, attack, stage, fetch = bin+"/sbxrun", bin+"/attack", bin+"/stage", bin+"/fetch"
	fileops = bin + "/fileops"
	if built := os.Getenv("SBXRUN_TEST_BIN"); built != "" {
		// Copies: some attacks write to them, and leaks are found by runDir.
		return os.CopyFS(bin, os.DirFS(built))
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	// Without tables for debuggers, as what is released: they take half of the time.
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin+"/",
		"github.com/sbxrun/sbxrun/cmd/sbxrun", "github.com/sbxrun/sbxrun/cmd/sbxrun-serve", "github.com/sbxrun/sbxrun/cmd/sbxrun-mcp", "github.com/sbxrun/sbxrun/test/integration/attack", "github.com/sbxrun/sbxrun/test/integration/stage", "github.com/sbxrun/sbxrun/test/integration/fetch", "github.com/sbxrun/sbxrun/test/integration/fileops")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	// The compiler for filters of one's own is found beside sbxrun.
	cmd = exec.Command("go", "build", "-o", bin+"/", "github.com/sbxrun/sbxrun/cmd/sbxrun-seccomp")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w (it needs gcc, pkg-config and libseccomp-dev)\n%s", err, out)
	}
	return nil
}
