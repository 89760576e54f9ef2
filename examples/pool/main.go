// Command pool keeps sandboxes ready and runs each command in one of its own, with a
// workspace of its own.
//
//	go run ./examples/pool
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/native"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/pool"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pool:", err)
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
	// What all have in common is without a workspace.
	base, err := profiles.Resolve(&profiles.Request{Command: []string{"none"}, Workspace: "none", Dir: "/", Degrade: policy.LayerCgroup}, f)
	if err != nil {
		return err
	}
	d := native.Driver{}
	p, err := pool.New(pool.Config{Driver: d, Policy: base.Policy, Settings: pool.Settings{TargetSize: 3}})
	if err != nil {
		return err
	}
	defer p.Close()
	ctx := context.Background()
	if err := p.Ready(ctx, 3); err != nil {
		return err
	}
	top, err := os.MkdirTemp("", "pool")
	if err != nil {
		return err
	}
	defer os.RemoveAll(top)
	if top, err = filepath.EvalSymlinks(top); err != nil {
		return err
	}
	for i := range 3 {
		dir := filepath.Join(top, fmt.Sprint("project", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		pol := pool.WithWorkspace(base.Policy, dir, policy.All)
		box, err := p.Acquire(ctx, pol)
		if err != nil {
			return err
		}
		in := session.In(box, d.Name(), &specs.Process{Args: []string{"sh", "-c", "ls ~ | wc -l; echo built > result; basename $PWD"}})
		res, err := driver.Run(ctx, in, pol, driver.RunOptions{Capture: true})
		// Nobody gets it after us.
		box.Close()
		if err != nil {
			return err
		}
		out, err := os.ReadFile(filepath.Join(dir, "result"))
		if err != nil {
			return err
		}
		fmt.Printf("%s%spooled: %t\n", res.Stdout, out, box.Pooled)
	}
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
