package cli

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/workspace"
)

// checkout is what of the flags is about where the workspace comes from.
type checkout struct {
	git      *workspace.Git
	depth    *int
	tokenEnv string
	install  bool // dependencies

	Commit string // that was checked out
	own    *rundir.Dir
}

// gitFlags defines the flags of a workspace that is cloned.
func (o *options) gitFlags(fs *pflag.FlagSet) {
	arg := func(name, kind, usage string, set func(string) error) {
		fs.VarPF(&value{kind, set}, name, "", usage)
	}
	c := &o.checkout
	arg("git", "URL[#REF]", "clone a repository for the workspace; REF is a branch, tag, commit or pull/N/head", func(s string) error {
		g, err := workspace.ParseGit(s)
		c.git = g
		return err
	})
	arg("git-depth", "N", "commits of history that --git clones (default 1); none is all", func(s string) error {
		n := 0
		if s != "none" {
			var err error
			if n, err = strconv.Atoi(s); err != nil || n < 1 {
				return engine.Usage(strconv.Quote(s)+" is not a number of commits", "1 or more, or none for all of them")
			}
		}
		c.depth = &n
		return nil
	})
	arg("git-token-env", "NAME", "variable that holds a token for --git; nothing but the clone gets it", func(s string) error {
		c.tokenEnv = s
		return profiles.CheckVariable(s)
	})
	fs.BoolVar(&c.install, "install-deps", false, "first install what the workspace's files say it depends on, in the sandbox")
}

// check reports flags that say nothing without another.
func (c *checkout) check() error {
	switch {
	case c.git != nil:
		return nil
	case c.depth != nil:
		return engine.Usage("--git-depth is about --git, which was not given", "add --git URL, or leave it out")
	case c.tokenEnv != "":
		return engine.Usage("--git-token-env is about --git, which was not given", "add --git URL, or leave it out")
	}
	return nil
}

// clone makes the workspace of --git: in --cd if that was given, else, to stay, in
// a directory of the repository's name, or in one that goes when done is called.
func (o *options) clone(ctx context.Context, f *facts, stay bool) (done func(), err error) {
	c := &o.checkout
	done = func() {}
	if c.git == nil {
		return done, nil
	}
	if c.depth != nil {
		c.git.Depth = *c.depth
	}
	token := ""
	if c.tokenEnv != "" {
		if token = os.Getenv(c.tokenEnv); token == "" {
			return done, engine.Usage("--git-token-env: there is no variable "+c.tokenEnv+", or it is empty", "set it to a token, for example from a secret store")
		}
		if strings.ContainsAny(token, "\r\n\x00") {
			return done, engine.Usage("--git-token-env: the token in "+c.tokenEnv+" has a line break in it", "see how the variable is set")
		}
		for _, e := range o.req.Env {
			if name, v, _ := strings.Cut(e, "="); name == c.tokenEnv || v == token {
				return done, engine.Usage("--env gives the command the token that --git-token-env keeps from it", "leave out one of the two")
			}
		}
		// By no way does the command get it: not with --inherit-env, nor from a
		// process that this one starts.
		f.Environ = slices.DeleteFunc(slices.Clone(f.Environ), func(e string) bool { return strings.HasPrefix(e, c.tokenEnv+"=") || strings.Contains(e, token) })
		os.Unsetenv(c.tokenEnv)
		if strings.HasPrefix(c.git.URL, "http:") && !isLoopback(c.git.Host()) {
			return done, engine.Usage("a token would cross the network unencrypted", "use an https URL")
		}
	}
	dir, made := o.req.Dir, false
	if dir == "" && stay {
		dir = c.git.Name()
	}
	switch {
	case dir == "" && o.req.Workspace == "overlay":
		return done, engine.Usage("the changes of a copy-on-write workspace need one that stays, and --git makes one for this run alone", "name a directory to clone into with --cd")
	case dir == "":
		if c.own, err = rundir.Make(rundir.Parent(os.Geteuid())+"-clones", "r", nil); err != nil {
			return done, err
		}
		done = func() {
			if err := c.own.Remove(); err != nil {
				say.warn("the clone was not removed: " + err.Error())
			}
		}
		dir = c.own.Path
	default:
		if made, err = emptyDir(dir); err != nil {
			return done, err
		}
	}
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err == nil {
		err = c.run(ctx, f, dir, token, o.req)
	}
	if err != nil {
		if made {
			os.RemoveAll(dir)
		} else if c.own == nil {
			empty(dir)
		}
		done()
		return func() {}, err
	}
	o.req.Dir = dir
	say.note("cloned "+c.git.URL+" at "+c.Commit+" into "+dir, "")
	return done, nil
}

// emptyDir makes a directory to clone into, if it is not there. One that holds
// something is refused.
func emptyDir(dir string) (made bool, err error) {
	if err := os.Mkdir(dir, 0o777); err == nil {
		return true, nil
	} else if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	if len(list) > 0 {
		return false, engine.Usage(dir+" is not empty, and --git clones into it", "name another directory with --cd")
	}
	return false, nil
}

// empty removes what a clone that failed left in a directory.
func empty(dir string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		os.RemoveAll(filepath.Join(dir, e.Name()))
	}
}

func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	a, _ := netip.ParseAddr(name) // no address is none of it
	return err == nil && (name == "localhost" || a.IsLoopback())
}

// cloneTime bounds a clone.
const cloneTime = 30 * time.Minute

// run clones in a sandbox of its own, which sees an empty directory and reaches
// one host: a server's data is as little to be trusted as a command.
func (c *checkout) run(ctx context.Context, f *facts, dir, token string, req profiles.Request) error {
	limit := cloneTime
	own := profiles.Request{
		Command: c.git.Command(), Profile: "strict", Dir: dir, Workspace: "bind", Unprotect: []string{"all"},
		Degrade: req.Degrade, Require: req.Require, Timeout: &limit, ClearEnv: true, Env: append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, c.git.Env(token)...),
	}
	mode := policy.EgressNone
	if host := c.git.Host(); host != "" {
		mode = policy.EgressProxy
		own.AllowHosts = []string{host}
	}
	own.Net = &mode
	if from := c.git.Dir(); from != "" {
		own.ReadOnly = []string{from}
	}
	r, err := profiles.Resolve(&own, &f.Facts)
	if err != nil {
		return engine.Invalid(err)
	}
	r.Policy.Egress.LogRequests = mode == policy.EgressProxy // for why the server was not reached
	d, err := selectDriver(ctx, f, r, req.Require)
	if err != nil {
		return err
	}
	if !d.Sandboxed() {
		return &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"--git"}, Fix: "clone it yourself, and name the directory with --cd"}
	}
	signals := make(chan os.Signal, 16)
	ro := driver.RunOptions{Capture: true, Signals: signals}
	ro.Stdio.Starting = func() { catch(signals, false) }
	res, err := driver.Run(ctx, fit(d, f, r, true), r.Policy, ro)
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		text := strings.TrimSpace(workspace.Scrub(res.Stderr, token))
		if text == "" {
			text = "git ended with " + strconv.Itoa(res.ExitCode)
		}
		hint := "see that the URL, the branch and the token are right"
		for _, denial := range res.Denials {
			if denial.Reason != "" {
				text += "; " + denial.Reason
				hint = "the clone reaches " + c.git.Host() + " and nothing else"
				break
			}
		}
		if n := res.Network; n != nil {
			// libcurl tells of a proxy's answer no more than its number.
			i := slices.IndexFunc(n.Log, func(q driver.Request) bool { return q.Verdict == "error" && q.Reason != "" })
			if i >= 0 {
				text += "; " + n.Log[i].Reason
			}
		}
		if res.Reason == driver.ReasonTimeout {
			text = "not done after " + cloneTime.String()
		}
		return engine.Hinted(errors.New("clone of "+c.git.URL+": "+strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), ": ")), hint)
	}
	c.Commit = strings.TrimSpace(res.Stdout)
	return nil
}
