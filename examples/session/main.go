// Command session keeps a sandbox for several commands: what one leaves, files and
// processes, the next one finds.
//
//	go run ./examples/session
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "session:", err)
		if h := driver.HintOf(err); h != "" {
			fmt.Fprintln(os.Stderr, "hint:", h)
		}
		os.Exit(1)
	}
}

func run() error {
	f, err := facts()
	if err != nil {
		return err
	}
	// The command of the policy is not run: those of the sandbox are.
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"none"}, Degrade: policy.LayerCgroup}, f)
	if err != nil {
		return err
	}
	d := native.Driver{}
	ctx := context.Background()
	box, err := d.Open(ctx, r.Policy)
	if err != nil {
		return err
	}
	// Everything in it ends here.
	defer box.Close()
	for _, script := range []string{
		"echo kept > /tmp/note; sleep 60 >/dev/null 2>&1 & echo started",
		"cat /tmp/note; pgrep -c sleep || ps -e | grep -c sleep",
	} {
		// In makes a driver of the sandbox, so that driver.Run applies limits on time
		// and output to the command; box.Exec is the bare way.
		in := session.In(box, d.Name(), &specs.Process{Args: []string{"sh", "-c", script}})
		res, err := driver.Run(ctx, in, r.Policy, driver.RunOptions{Capture: true})
		if err != nil {
			return err
		}
		fmt.Print(res.Stdout, res.Stderr)
	}
	st, err := box.Status()
	if err != nil {
		return err
	}
	fmt.Printf("enforced: %v\n", st.Layers)
	return nil
}

// facts are what a policy is resolved with: what the host says.
func facts() (*profiles.Facts, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return &profiles.Facts{
		Home: os.Getenv("HOME"), Cwd: cwd, Environ: os.Environ(),
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), CPUs: runtime.NumCPU(), FS: os.DirFS("/"),
	}, nil
}
