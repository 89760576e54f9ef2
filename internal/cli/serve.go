package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/cgroups"
	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/pool"
	"github.com/sbxrun/sbxrun/profiles"
)

func (b *Beside) newServe() *cobra.Command {
	o := &options{}
	s, settings := &engine.Server{}, pool.Settings{}
	c := plain(&cobra.Command{
		Use:   "serve [flags] [PROFILE...]",
		Short: "Keep sandboxes ready for runs, and serve an HTTP interface to them",
		Long: `Keep sandboxes ready, for as long as this program runs, and lend them to the runs of
this user: a run finds the server by itself, and uses a sandbox of it if that is
exactly the one that it would build. Else, and with --no-pool, it builds its own.
The result says pooled.

There is a pool for each profile that is named (default strict). The flags are those
of a run, and hold for all of them. A sandbox is used for one run, and then it is
gone. The directory with the server's sockets is printed once it serves; docs/serve.md
describes the interface.`,
		Example: "  sbxrun serve &\n  sbxrun serve --target-size 8 --memory 2g strict testing\n  curl --unix-socket DIR/api.sock http://sbxrun/v1/pools    # DIR is what sbxrun serve printed",
		Args:    cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if b.Serve == nil {
				return executeBeside(engine.ServeProgram)
			}
			return o.serve(b, s, settings, args)
		},
	}, o)
	o.policyFlags(c.Flags())
	poolFlags(c.Flags(), &settings)
	return c
}

// poolFlags defines the flags that say how many sandboxes are kept, and how long.
func poolFlags(fs *pflag.FlagSet, s *pool.Settings) {
	d := pool.Defaults
	num := func(to *int, name, usage string, def int) {
		fs.VarPF(&value{"N", func(s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > 1000 {
				return engine.Usage(strconv.Quote(s)+" is not a number of sandboxes", "1 to 1000")
			}
			*to = n
			return nil
		}}, name, "", usage+" (default "+strconv.Itoa(def)+")")
	}
	num(&s.MinSize, "min-size", "sandboxes of a pool that are ready at least", d.MinSize)
	num(&s.TargetSize, "target-size", "sandboxes of a pool that are ready while it is used", d.TargetSize)
	num(&s.MaxSize, "max-size", "sandboxes of a pool that are ready at most, when runs find none", d.MaxSize)
	dur := func(to *time.Duration, name, usage string, def time.Duration) {
		fs.VarPF(&value{"DURATION", func(s string) error {
			t, err := profiles.ParseDuration(s)
			if err == nil && t <= 0 {
				return engine.Usage("--"+name+" "+s, "want more than 0")
			}
			*to = t
			return err
		}}, name, "", usage+" (default "+strconv.Itoa(int(def/time.Second))+"s)")
	}
	dur(&s.IdleTimeout, "idle-timeout", "shrink to --min-size when nothing was run for so long", d.IdleTimeout)
	dur(&s.MaxLifetime, "max-lifetime", "replace a sandbox that has been ready for so long", d.MaxLifetime)
	dur(&s.HealthCheckInterval, "health-check-interval", "see whether sandboxes answer", d.HealthCheckInterval)
	dur(&s.ReplenishInterval, "replenish-interval", "see whether there are too many, and try again to make one",
		d.ReplenishInterval)
}

// serve resolves what the flags ask for, and serves it.
func (o *options) serve(b *Beside, s *engine.Server, settings pool.Settings, names []string) error {
	if o.req.Terminal {
		return engine.Usage("a pool has no terminal", "leave out --tty: each run says whether it wants one")
	}
	if len(names) > 0 && o.req.Profile != "" {
		return engine.Usage("profiles are named twice, with --profile and after the flags", "leave one out")
	}
	if len(names) == 0 {
		names = []string{o.req.Profile}
	}
	if s.Dir = engine.ServerDir(); s.Dir == "" {
		return engine.Usage(engine.ServerEnv+" is none", "unset it")
	}
	f, err := engine.GatherFacts()
	if err != nil {
		return err
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		p, err := o.servePool(f, name, settings)
		if err != nil {
			if o.req.Profile == "" {
				err = engine.Unflagged(err)
			}
			return err
		}
		s.Pools = append(s.Pools, *p)
	}
	if s.Store, err = engine.OpenSessions(); err != nil {
		return err
	}
	defer s.Store.Close()
	s.Version = engine.Build()
	s.Serving = func() {
		os.Stdout.WriteString(s.Dir + "\n")
		if terminal.Is(os.Stdout) {
			say.note("serving, until this program is ended",
				"sbxrun pool status, in another terminal, shows what is ready")
		}
	}
	s.Prune = func() error {
		_, err := s.Store.Prune(leftAge)
		_, gerr := cgroups.Prune()
		if errors.Is(gerr, errors.ErrUnsupported) {
			gerr = nil
		}
		return errors.Join(err, gerr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return b.Serve(ctx, s)
}

// errServedOverlay: a server's sandboxes end with whoever borrowed them, and nobody
// would keep what was changed in one.
var errServedOverlay = &driver.UnsupportedError{Driver: "native",
	Rules: []string{"a copy-on-write workspace in a server's sandboxes"},
	Fix:   "use sbxrun session create --workspace overlay"}

// leftAge is how old must be what a server takes for left behind; that of sbxrun
// prune by default.
const leftAge = 24 * time.Hour

// servePool resolves one pool.
func (o *options) servePool(f *facts, name string, settings pool.Settings) (*engine.ServedPool, error) {
	req := o.req
	req.Profile = name
	req.Command = []string{"/"} // commands come later
	if req.Workspace == "overlay" {
		return nil, errServedOverlay
	}
	// What runs have in common is without any workspace.
	base := req
	base.Workspace, base.Dir = "none", "/"
	r, err := resolveRequest(&base, f)
	if err != nil {
		return nil, err
	}
	d, err := selectDriver(context.Background(), f, r, req.Require)
	if err != nil {
		return nil, err
	}
	d = fit(d, f, r, false)
	if err := engine.Stays(d, "pools", "serve needs the native driver"); err != nil {
		return nil, err
	}
	return &engine.ServedPool{Name: r.Policy.Profile, Config: pool.Config{Driver: d, Policy: r.Policy, Settings: settings},
		Resolve: func(workspace string) (*policy.Policy, error) {
			q := req
			if workspace == "" {
				q = base
			} else {
				q.Dir, q.DirFrom = workspace, "workspace"
			}
			r, err := resolveRequest(&q, f)
			if err != nil {
				return nil, engine.Invalid(err)
			}
			if engine.OverlayOf(r.Policy) != "" {
				return nil, errServedOverlay
			}
			return r.Policy, nil
		}}, nil
}

func (b *Beside) newPool() *cobra.Command {
	o := &options{}
	c := group(&cobra.Command{Use: "pool COMMAND", Short: "Show what a server keeps ready: status, stats"},
		"status or stats")
	for _, sub := range []struct{ name, short string }{
		{"status", "Show the pools of the server, and how many sandboxes are ready"},
		{"stats", "Show what was counted since the server began"},
	} {
		c.AddCommand(listing(&cobra.Command{
			Use: sub.name + " [flags]", Short: sub.short, Args: noArgs,
			RunE: func(*cobra.Command, []string) error {
				if b.Pools == nil {
					return executeBeside(engine.ServeProgram)
				}
				dir := engine.ServerDir()
				if dir == "" {
					return engine.Usage(engine.ServerEnv+" is none", "unset it")
				}
				if !filepath.IsAbs(dir) {
					return engine.BadServerDir(dir)
				}
				err := b.Pools(dir, sub.name == "stats", o.json)
				if errors.Is(err, syscall.EACCES) && driver.HintOf(err) == "" {
					return engine.Hinted(err, "a server is its owner's alone")
				}
				return err
			},
		}, o))
	}
	return c
}
