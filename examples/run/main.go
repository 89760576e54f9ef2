// Command run runs one command in a sandbox under the profile strict, with the
// current directory as its workspace, and prints how it ended.
//
//	go run ./examples/run ls -l
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		if h := driver.HintOf(err); h != "" {
			fmt.Fprintln(os.Stderr, "hint:", h)
		}
		os.Exit(1)
	}
}

func run() error {
	args := os.Args[1:]
	if len(args) == 0 {
		args = []string{"sh", "-c", "id -un; touch /usr/x"}
	}
	f, err := facts()
	if err != nil {
		return err
	}
	// A profile and what is asked for beside make a policy. Degrade is what we agree to
	// go without where the host cannot give it: an ordinary user has not always cgroups.
	r, err := profiles.Resolve(&profiles.Request{Command: args, Degrade: policy.LayerCgroup}, f)
	if err != nil {
		return err
	}
	// A driver enforces it, or refuses. Output is captured, up to the policy's limit.
	res, err := driver.Run(context.Background(), native.Driver{}, r.Policy, driver.RunOptions{Capture: true})
	if err != nil {
		return err // it did not run
	}
	fmt.Print(res.Stdout, res.Stderr)
	fmt.Printf("%s %d, enforced: %v, missing: %v\n", res.Reason, res.ExitCode, res.Layers, res.Degraded)
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
