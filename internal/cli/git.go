package cli

import (
	"context"
	"os"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/workspace"
)

// gitFlags defines the flags of a workspace that is cloned.
func (o *options) gitFlags(fs *pflag.FlagSet) {
	c := &o.checkout
	arg(fs, "git", "URL[#REF]", "clone a repository for the workspace; REF is a branch, tag, commit or pull/N/head",
		func(s string) error {
			g, err := workspace.ParseGit(s)
			c.Git = g
			return err
		})
	arg(fs, "git-depth", "N", "commits of history that --git clones (default 1); none is all", func(s string) error {
		n := 0
		if s != "none" {
			var err error
			if n, err = strconv.Atoi(s); err != nil || n < 1 {
				return engine.Usage(strconv.Quote(s)+" is not a number of commits",
					"1 or more, or none for all of them")
			}
		}
		c.Depth = &n
		return nil
	})
	arg(fs, "git-token-env", "NAME", "variable that holds a token for --git; nothing but the clone gets it",
		func(s string) error {
			c.TokenEnv = s
			return profiles.CheckVariable(s)
		})
	fs.BoolVar(&c.Install, "install-deps", false,
		"first install what the workspace's files say it depends on, in the sandbox")
}

// clone makes the workspace of --git, if it was given; see [engine.Checkout.Clone].
func (o *options) clone(ctx context.Context, f *facts, stay bool) (done func(), err error) {
	c := &o.checkout
	if c.Git == nil {
		return func() {}, nil
	}
	choose := func(ctx context.Context, r *profiles.Resolved) (driver.Driver, error) {
		d, err := selectDriver(ctx, f, r, o.req.Require)
		if err != nil {
			return nil, err
		}
		return fit(d, f, r, true), nil
	}
	signals := make(chan os.Signal, 16)
	ro := driver.RunOptions{Capture: true, Signals: signals}
	ro.Stdio.Starting = func() { terminal.Catch(signals, false) }
	if err := c.Clone(ctx, f, &o.req, stay, choose, ro); err != nil {
		return func() {}, err
	}
	say.note("cloned "+c.Git.URL+" at "+c.Commit+" into "+o.req.Dir, "")
	return func() {
		if err := c.Remove(); err != nil {
			say.warn("the clone was not removed: " + err.Error())
		}
	}, nil
}
