package engine

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

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/rundir"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/workspace"
)

// A Checkout is where a workspace comes from, if it is not there yet.
type Checkout struct {
	Git      *workspace.Git // to clone; nil for none
	Depth    *int           // commits of history; nil for Git's own
	TokenEnv string         // the variable with a token for the clone alone
	Install  bool           // dependencies

	Commit string // that was checked out
	own    *rundir.Dir
}

// A Choice chooses what isolates under a policy.
type Choice func(context.Context, *profiles.Resolved) (driver.Driver, error)

// Check reports flags that say nothing without another.
func (c *Checkout) Check() error {
	alone := ""
	switch {
	case c.Git != nil:
	case c.Depth != nil:
		alone = "--git-depth"
	case c.TokenEnv != "":
		alone = "--git-token-env"
	}
	if alone == "" {
		return nil
	}
	return Usage(alone+" is about --git, which was not given", "add --git URL, or leave it out")
}

// token takes the token out of the environment. By no way does the command get it: not
// with --inherit-env, nor from a process that this one starts.
func (c *Checkout) token(f *Facts, given []string) (string, error) {
	if c.TokenEnv == "" {
		return "", nil
	}
	token := os.Getenv(c.TokenEnv)
	if token == "" {
		return "", Usage("--git-token-env: there is no variable "+c.TokenEnv+", or it is empty",
			"set it to a token, for example from a secret store")
	}
	if strings.ContainsAny(token, "\r\n\x00") {
		return "", Usage("--git-token-env: the token in "+c.TokenEnv+" has a line break in it",
			"see how the variable is set")
	}
	for _, e := range given {
		if name, v, _ := strings.Cut(e, "="); name == c.TokenEnv || v == token {
			return "", Usage("--env gives the command the token that --git-token-env keeps from it",
				"leave out one of the two")
		}
	}
	f.Environ = slices.DeleteFunc(slices.Clone(f.Environ), func(e string) bool {
		return strings.HasPrefix(e, c.TokenEnv+"=") || strings.Contains(e, token)
	})
	os.Unsetenv(c.TokenEnv)
	if strings.HasPrefix(c.Git.URL, "http:") && !isLoopback(c.Git.Host()) {
		return "", Usage("a token would cross the network unencrypted", "use an https URL")
	}
	return token, nil
}

// Clone makes the workspace of a request: in its directory if it has one, else, to stay,
// in a directory of the repository's name, or in one that Remove removes.
func (c *Checkout) Clone(ctx context.Context, f *Facts, req *profiles.Request, stay bool, choose Choice,
	ro driver.RunOptions) error {
	if c.Depth != nil {
		c.Git.Depth = *c.Depth
	}
	token, err := c.token(f, req.Env)
	if err != nil {
		return err
	}
	dir, made := req.Dir, false
	if dir == "" {
		req.DirFrom = "flag --git"
	}
	if dir == "" && stay {
		dir = c.Git.Name()
	}
	switch {
	case dir == "" && req.Workspace == "overlay":
		return Usage("the changes of a copy-on-write workspace need one that stays, and --git makes one for this run alone",
			"name a directory to clone into with --cd")
	case dir == "":
		if c.own, err = rundir.Make(rundir.Parent(os.Geteuid())+"-clones", "r", nil); err != nil {
			return err
		}
		dir = c.own.Path
	default:
		if made, err = emptyDir(dir); err != nil {
			return err
		}
	}
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err == nil {
		err = c.run(ctx, f, dir, token, req, choose, ro)
	}
	if err == nil {
		req.Dir = dir
		return nil
	}
	switch {
	case made:
		os.RemoveAll(dir)
	case c.own == nil:
		empty(dir)
	}
	return errors.Join(err, c.Remove())
}

// Remove removes what was cloned for one run alone.
func (c *Checkout) Remove() error {
	if c.own == nil {
		return nil
	}
	own := c.own
	c.own = nil
	return own.Remove()
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
		return false, Usage(dir+" is not empty, and --git clones into it", "name another directory with --cd")
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
func (c *Checkout) run(ctx context.Context, f *Facts, dir, token string, req *profiles.Request, choose Choice,
	ro driver.RunOptions) error {
	limit := cloneTime
	own := profiles.Request{
		Command: c.Git.Command(), Profile: "strict", Dir: dir, DirFrom: req.DirFrom, Workspace: "bind",
		Unprotect: []string{"all"},
		Degrade:   req.Degrade, Require: req.Require, Timeout: &limit, ClearEnv: true,
		Env: append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, c.Git.Env(token)...),
	}
	mode := policy.EgressNone
	if host := c.Git.Host(); host != "" {
		mode = policy.EgressProxy
		own.AllowHosts = []string{host}
	}
	own.Net = &mode
	if from := c.Git.Dir(); from != "" {
		own.ReadOnly = []string{from}
	}
	r, err := profiles.Resolve(&own, &f.Facts)
	if err != nil {
		var of *profiles.Error
		if errors.As(err, &of) && (of.Where == "flag --ro" || of.Where == "flag --allow-host") {
			of.Where = "flag --git" // which asks for both
		}
		return Invalid(err)
	}
	r.Policy.Egress.LogRequests = mode == policy.EgressProxy // for why the server was not reached
	d, err := choose(ctx, r)
	if err != nil {
		return err
	}
	if !d.Sandboxed() {
		return &driver.UnsupportedError{Driver: d.Name(), Rules: []string{"--git"},
			Fix: "clone it yourself, and name the directory with --cd"}
	}
	res, err := driver.Run(ctx, d, r.Policy, ro)
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		return c.failed(res, token)
	}
	c.Commit = strings.TrimSpace(res.Stdout)
	return nil
}

// failed says why a clone did not come about.
func (c *Checkout) failed(res *driver.Result, token string) error {
	text := strings.TrimSpace(workspace.Scrub(res.Stderr, token))
	if text == "" {
		text = "git ended with " + strconv.Itoa(res.ExitCode)
	}
	hint := "see that the URL, the branch and the token are right"
	for _, denial := range res.Denials {
		if denial.Reason != "" {
			text += "; " + denial.Reason
			hint = "the clone reaches " + c.Git.Host() + " and nothing else"
			break
		}
	}
	if n := res.Network; n != nil && n.Failure != "" {
		// libcurl tells of a proxy's answer no more than its number.
		text += "; " + n.Failure
	}
	if res.Reason == driver.ReasonTimeout {
		text = "not done after " + cloneTime.String()
	}
	return Hinted(errors.New("clone of "+c.Git.URL+": "+strings.Join(strings.FieldsFunc(text,
		func(r rune) bool { return r == '\n' || r == '\r' }), ": ")), hint)
}
