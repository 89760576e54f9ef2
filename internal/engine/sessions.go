package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/internal/guard"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
	"github.com/sbxrun/sbxrun/workspace"
)

// OpenSessions opens the directory that this user's sessions are in, and makes it if
// it is not there.
func OpenSessions() (*session.Store, error) {
	st, err := session.OpenStore(RuntimeDir("sessions"))
	if err != nil && filepath.IsAbs(os.Getenv(RuntimeVariable)) {
		err = Unusable(err, RuntimeVariable, "set it to a directory of yours, or unset it")
	}
	return st, err
}

// FindSessions is OpenSessions for who only looks at what is there: it makes nothing, and
// there is no store where none was made.
func FindSessions() (*session.Store, error) {
	dir := RuntimeDir("sessions")
	_, err := os.Lstat(dir)
	if above := os.Getenv(RuntimeVariable); errors.Is(err, fs.ErrNotExist) && filepath.IsAbs(above) {
		// A mistake in the variable is not the same as no sessions.
		if _, err := os.Stat(above); err != nil {
			return nil, Unusable(err, RuntimeVariable, "set it to a directory of yours, or unset it")
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return OpenSessions()
}

// ListSessions are the sessions of this user, as those that run describe themselves.
func ListSessions() ([]*session.Info, error) {
	st, err := FindSessions()
	if st == nil {
		return nil, err
	}
	defer st.Close()
	list, err := st.List()
	if err != nil {
		return nil, err
	}
	const patience = 2 * time.Second // one that does not answer keeps nobody from the others
	var asked sync.WaitGroup
	for _, i := range list {
		c, err := st.Connect(i.ID)
		if i.State != session.Ready || err != nil {
			continue
		}
		asked.Go(func() {
			var silent *session.SilentError
			switch now, _, err := c.InfoWithin(patience); {
			case err == nil:
				*i = *now
			case errors.As(err, &silent):
				i.Notice = silent.Notice()
			}
		})
	}
	asked.Wait()
	return list, nil
}

// SessionProcess is the process of a command in a session, by what a request changes of the
// session's own; its policy is asked for only if something is.
func SessionProcess(of func() (*policy.Policy, error), req *profiles.Request) (*specs.Process, error) {
	pr := &specs.Process{Args: req.Command, Terminal: req.Terminal}
	if req.Dir == "" && len(req.Env) == 0 && !req.ClearEnv {
		return pr, nil
	}
	p, err := of()
	if err != nil {
		return nil, err
	}
	if req.Dir != "" {
		// In the sandbox; it need not be there on the host.
		pr.Cwd = req.Dir
		if !filepath.IsAbs(pr.Cwd) {
			pr.Cwd = filepath.Join(p.OCI.Process.Cwd, pr.Cwd)
		}
		pr.Cwd = filepath.Clean(pr.Cwd)
	}
	pr.Env = slices.Clone(p.OCI.Process.Env)
	if req.ClearEnv {
		// As in a run, the mark stays. Without any variable it would be the
		// session's own environment.
		pr.Env = slices.DeleteFunc(pr.Env, func(s string) bool { return !strings.HasPrefix(s, profiles.MarkerEnv+"=") })
	}
	for _, e := range req.Env {
		k, v, given := strings.Cut(e, "=")
		if !given {
			if v, given = os.LookupEnv(k); !given {
				continue
			}
		}
		pr.Env = slices.DeleteFunc(pr.Env, func(s string) bool { return strings.HasPrefix(s, k+"=") })
		pr.Env = append(pr.Env, k+"="+v)
	}
	return pr, nil
}

// Unprotected refuses paths below a directory that patterns protect or that are obeyed,
// and nothing allows. The directory is a whole path without symbolic links; what of it is
// below chosen counts, too.
func Unprotected(protect, allow, obeyed []string, dir,
	chosen string) (func(path string, link bool, parent int) error, error) {
	rules, err := guard.NewRules(protect)
	if err != nil {
		return nil, err
	}
	return func(path string, link bool, parent int) error {
		whole := filepath.Join(dir, path)
		within, err := filepath.Rel(chosen, whole)
		if err != nil {
			return err
		}
		pattern := rules.Copied(chosen, within, link, parent)
		if pattern == "" {
			fi, err := os.Lstat(whole)
			pattern = workspace.ObeyedAt(obeyed, whole, !link && (err != nil || fi.IsDir()))
		}
		if pattern == "" || guard.Allowed(allow, pattern, path) {
			return nil
		}
		return Hinted(errors.New(quote.Inside(path)+" is protected ("+pattern+"): it was not copied, nor what follows it"),
			"--allow-protected "+pattern+" lets such paths be copied: look at them first, in the session")
	}, nil
}
