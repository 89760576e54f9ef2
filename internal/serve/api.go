//go:build unix

package serve

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/strictjson"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/pool"
	"github.com/sbxrun/sbxrun/session"
)

const (
	maxBody   = 16 << 20  // of a request, bytes
	maxOutput = 64 << 20  // of each stream of a command, bytes
	maxKept   = 256 << 20 // of the output of all commands until it is answered with, bytes
)

// handler is the interface, version 1.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, do := range map[string]func(*http.Request) (int, any, error){
		"GET /v1":                    s.about,
		"GET /v1/pools":              s.pools,
		"GET /v1/pools/{name}":       s.pool,
		"POST /v1/run":               s.run,
		"GET /v1/sessions":           s.sessions,
		"POST /v1/sessions":          s.create,
		"GET /v1/sessions/{id}":      s.session,
		"DELETE /v1/sessions/{id}":   s.remove,
		"POST /v1/sessions/{id}/run": s.runIn,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			err := checkQuery(r)
			var code int
			var v any
			if err == nil {
				code, v, err = do(r)
			}
			if res, ok := v.(*driver.Result); ok {
				defer s.room.Give(res)
			}
			if err != nil {
				err = named(err)
				code, v = statusOf(err), apiError{newError(err)}
			}
			told := r.Context().Err() == nil && s.answer(w, code, v) == nil
			if i, ok := v.(sessionInfo); ok && i.untold != nil && !told {
				i.untold()
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		code, message := http.StatusNotFound, "there is no "+r.URL.Path
		if allowed := methods(mux, r); allowed != "" {
			w.Header().Set("Allow", allowed)
			code, message = http.StatusMethodNotAllowed, r.URL.Path+" takes "+allowed+", not "+r.Method
		}
		s.answer(w, code, apiError{errorBody{Message: message, Hint: "docs/serve.md lists what there is"}})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A mux sends who asks for a/../b on to b: an id that is .. would be another request.
		if p := r.URL.EscapedPath(); path.Clean(p) != p {
			s.answer(w, http.StatusNotFound,
				apiError{errorBody{Message: "there is no " + r.URL.Path, Hint: "docs/serve.md lists what there is"}})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// checkQuery refuses what no request has, and what is there twice.
func checkQuery(r *http.Request) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	for k, v := range q {
		if r.Method != http.MethodDelete || k != "grace_ms" || len(v) > 1 {
			return &policy.InvalidError{Field: quote.Inside(k), Value: strings.Join(v, " "),
				Want: "nothing after ? but grace_ms of DELETE, once"}
		}
	}
	if err != nil {
		return &policy.InvalidError{Field: "query", Value: r.URL.RawQuery,
			Want: "nothing after ? but grace_ms of DELETE, once"}
	}
	return nil
}

// methods are those that a request's path is there for.
func methods(mux *http.ServeMux, r *http.Request) string {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		q := *r
		q.Method = m
		if _, pattern := mux.Handler(&q); pattern != "/" {
			allowed = append(allowed, m)
		}
	}
	return strings.Join(allowed, ", ")
}

// answer returns an error if nobody was left to answer.
func (s *server) answer(w http.ResponseWriter, code int, v any) error {
	var b []byte
	var err error
	if res, ok := v.(*driver.Result); ok {
		b, err = engine.EncodeResult(res)
	} else {
		var buf bytes.Buffer
		e := json.NewEncoder(&buf)
		e.SetEscapeHTML(false)
		err = e.Encode(v)
		b = buf.Bytes()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(code)
	if _, err := w.Write(b); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

type apiError struct {
	Error errorBody `json:"error"`
}

type errorBody struct {
	Message string      `json:"message"`
	Code    driver.Code `json:"code,omitempty"`
	Hint    string      `json:"hint,omitempty"`
}

func newError(err error) errorBody {
	return errorBody{Message: quote.Error(err), Code: driver.CodeOf(err), Hint: quote.Line(driver.HintOf(err))}
}

// fields are those of the interface, by what the rest of sbxrun calls them.
var fields = map[string]string{
	"command": "args", "session": "id", "limits.memory": "memory", "limits.cpus": "cpus", "limits.pids": "pids",
	"linux.resources.memory.limit": "memory", "linux.resources.cpu.quota": "cpus", "linux.resources.pids.limit": "pids",
}

// named is an error by the field of the request that is wrong.
func named(err error) error {
	var invalid *policy.InvalidError
	if errors.As(err, &invalid) && fields[invalid.Field] != "" {
		return &policy.InvalidError{Field: fields[invalid.Field], Value: invalid.Value, Want: invalid.Want}
	}
	return err
}

// statusOf is the status code for an error.
func statusOf(err error) int {
	var invalid *policy.InvalidError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &invalid), driver.CodeOf(err) == driver.CodeInvalid:
		return http.StatusBadRequest
	case errors.Is(err, session.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, session.ErrExists), errors.Is(err, session.ErrNotRunning), errors.Is(err,
		driver.ErrSandboxGone), errors.Is(err, syscall.EBUSY):
		return http.StatusConflict
	case errors.Is(err, pool.ErrClosed), errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// read reads a request's body, of which every field must be known, and there once.
func read(r *http.Request, v any) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	err = strictjson.Unmarshal(body, v)
	var key *strictjson.KeyError
	var of *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &key) && key.Twice:
		return &policy.InvalidError{Field: key.Path, Want: "one value: " + err.Error()}
	case errors.As(err, &key):
		return &policy.InvalidError{Field: quote.Inside(key.Path), Want: "a field that docs/serve.md has"}
	case errors.As(err, &of):
		return &policy.InvalidError{Field: cmp.Or(of.Field, "body"), Value: "a JSON " + of.Value, Want: kind(of.Type)}
	default:
		return &policy.InvalidError{Field: "body",
			Want: "one JSON object with the fields of docs/serve.md: " + err.Error()}
	}
}

// kind is what JSON calls a type.
func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct, reflect.Pointer:
		return "an object"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number below 2^63, in digits alone"
}

func (s *server) about(*http.Request) (int, any, error) {
	return http.StatusOK, map[string]any{"api": "v1", "version": s.Version, "pid": os.Getpid()}, nil
}

// poolInfo is a pool as the interface shows it. Times are in seconds.
type poolInfo struct {
	Name                string     `json:"name"`
	Profile             string     `json:"profile"`
	Driver              string     `json:"driver"`
	MinSize             int        `json:"min_size"`
	TargetSize          int        `json:"target_size"`
	MaxSize             int        `json:"max_size"`
	IdleTimeout         float64    `json:"idle_timeout"`
	MaxLifetime         float64    `json:"max_lifetime"`
	HealthCheckInterval float64    `json:"health_check_interval"`
	ReplenishInterval   float64    `json:"replenish_interval"`
	Stats               pool.Stats `json:"stats"`
}

func info(p *servedPool) poolInfo {
	c := p.Settings()
	return poolInfo{
		Name: p.Name, Profile: p.Policy().Profile, Driver: p.Config.Driver.Name(),
		MinSize: c.MinSize, TargetSize: c.TargetSize, MaxSize: c.MaxSize,
		IdleTimeout: c.IdleTimeout.Seconds(), MaxLifetime: c.MaxLifetime.Seconds(),
		HealthCheckInterval: c.HealthCheckInterval.Seconds(), ReplenishInterval: c.ReplenishInterval.Seconds(),
		Stats: p.Stats(),
	}
}

func (s *server) pools(*http.Request) (int, any, error) {
	list := []poolInfo{}
	for _, p := range s.kept {
		list = append(list, info(p))
	}
	return http.StatusOK, map[string]any{"pools": list}, nil
}

func (s *server) pool(r *http.Request) (int, any, error) {
	p, err := s.find(r.PathValue("name"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, info(p), nil
}

// runRequest is a command to run.
type runRequest struct {
	Args        []string          `json:"args"`
	Env         map[string]string `json:"env"`
	Cwd         string            `json:"cwd"`
	Stdin       string            `json:"stdin"`
	StdinBase64 *string           `json:"stdin_base64"`
	TimeoutMS   *int64            `json:"timeout_ms"`
	MaxOutput   *int64            `json:"max_output"`
	Memory      *int64            `json:"memory"`
	CPUs        *float64          `json:"cpus"`
	Pids        *int64            `json:"pids"`
	Explain     bool              `json:"explain"` // see driver.Stdio

	// Of a run outside of a session.
	Pool      string `json:"pool"`
	Workspace string `json:"workspace"`
}

func (q *runRequest) process(p *policy.Policy) (*specs.Process, error) {
	if len(q.Args) == 0 || q.Args[0] == "" {
		return nil, &policy.InvalidError{Field: "args", Want: "a command"}
	}
	pr := &specs.Process{Args: q.Args, Cwd: q.Cwd}
	if len(q.Env) > 0 {
		for _, kv := range p.OCI.Process.Env {
			if k, _, _ := strings.Cut(kv, "="); !has(q.Env, k) {
				pr.Env = append(pr.Env, kv)
			}
		}
		for k, v := range q.Env {
			if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
				return nil, &policy.InvalidError{Field: "env." + quote.Inside(k), Value: v,
					Want: "names and values without NUL, names without ="}
			}
			pr.Env = append(pr.Env, k+"="+v)
		}
	}
	return pr, nil
}

func has(m map[string]string, k string) bool { _, ok := m[k]; return ok }

func (q *runRequest) limits(l policy.Limits) (policy.Limits, error) {
	if t := q.TimeoutMS; t != nil {
		if *t < 1 || *t > int64(1<<53)/1e6 {
			return l, &policy.InvalidError{Field: "timeout_ms", Value: strconv.FormatInt(*t, 10),
				Want: "milliseconds, 1 or more"}
		}
		l.WallTime = time.Duration(*t) * time.Millisecond
	}
	if n := q.MaxOutput; n != nil {
		if *n < 1 || *n > maxOutput {
			return l, &policy.InvalidError{Field: "max_output", Value: strconv.FormatInt(*n, 10),
				Want: "bytes, 1 to " + strconv.Itoa(maxOutput)}
		}
		l.Output = *n
	}
	if l.Output == 0 || l.Output > maxOutput {
		l.Output = maxOutput
	}
	return l, nil
}

// within are limits of the command's own, nil for none.
func (q *runRequest) within() (*specs.LinuxResources, error) {
	for _, l := range []struct {
		field string
		value *int64
	}{{"memory", q.Memory}, {"pids", q.Pids}} {
		if l.value != nil && *l.value < 1 {
			return nil, &policy.InvalidError{Field: l.field, Value: strconv.FormatInt(*l.value, 10), Want: "1 or more"}
		}
	}
	if n := q.CPUs; n != nil && (*n < 0.01 || *n > 1<<16) {
		return nil, &policy.InvalidError{Field: "cpus", Value: strconv.FormatFloat(*n, 'g', -1, 64),
			Want: "processors, 0.01 or more"}
	}
	return policy.Within(q.Memory, q.CPUs, q.Pids), nil
}

// stdin is a pipe with the request's input, nil without any, and what closes it: a
// process that the command leaves behind may keep it open and read nothing.
func (q *runRequest) stdin() (*os.File, func(), error) {
	data := []byte(q.Stdin)
	if of := q.StdinBase64; of != nil {
		if q.Stdin != "" {
			return nil, nil, &policy.InvalidError{Field: "stdin", Want: "either stdin or stdin_base64"}
		}
		var err error
		if data, err = base64.StdEncoding.DecodeString(*of); err != nil {
			return nil, nil, &policy.InvalidError{Field: "stdin_base64", Want: "base64: " + err.Error()}
		}
	}
	if len(data) == 0 {
		return nil, func() {}, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	go func() {
		w.Write(data) // ends with an error when nobody is left to read
		w.Close()
	}()
	return r, func() {
		r.Close()
		w.Close()
	}, nil
}

// in runs a command in a sandbox and returns its result.
func (q *runRequest) in(ctx context.Context, box driver.Sandbox, name string, p *policy.Policy,
	room *driver.Room) (*driver.Result, error) {
	pr, err := q.process(p)
	if err != nil {
		return nil, err
	}
	lim, err := q.limits(p.Limits)
	if err != nil {
		return nil, err
	}
	own, err := q.within()
	if err != nil {
		return nil, err
	}
	in, closeIn, err := q.stdin()
	if err != nil {
		return nil, err
	}
	defer closeIn()
	of := *p
	of.Limits = lim
	started := false
	res, err := driver.Run(ctx, session.Within(box, name, pr, own), &of,
		driver.RunOptions{Capture: true, Room: room, Stdio: driver.Stdio{Stdin: in, Explain: q.Explain},
			Started: func(driver.Process) func() {
				started = true
				return nil
			}})
	// That a command cannot be executed, or how it was lost, is a result; that there is
	// no sandbox to run it in is none.
	var command *driver.CommandError
	var lost *driver.LostError
	if err != nil && !started && !errors.As(err, &command) && !errors.As(err, &lost) {
		return nil, err
	}
	return res, nil
}

// run runs a command in a sandbox of its own.
func (s *server) run(r *http.Request) (int, any, error) {
	var q runRequest
	if err := read(r, &q); err != nil {
		return 0, nil, err
	}
	p, pol, err := s.resolve(q.Pool, q.Workspace)
	if err != nil {
		return 0, nil, err
	}
	box, err := p.Acquire(r.Context(), pol)
	if err != nil {
		return 0, nil, err
	}
	defer func() { s.takeDown(box) }()
	res, err := q.in(r.Context(), box, p.Config.Driver.Name(), pol, s.room)
	if errors.Is(err, driver.ErrIncomplete) {
		// Nothing has run. One that is built from nothing, or why there is none:
		whole, e := p.Open(r.Context(), pol)
		if e != nil {
			return 0, nil, e
		}
		box.Close()
		box = whole
		res, err = q.in(r.Context(), box, p.Config.Driver.Name(), pol, s.room)
	}
	if err != nil {
		return 0, nil, err
	}
	res.Pooled = box.Pooled
	if st, err := box.Status(); err == nil {
		res.Usage.MemoryPeakBytes, res.Usage.PidsPeak = st.Usage.MemoryPeakBytes, st.Usage.PidsPeak
	}
	// Before the answer nothing of the command is left to run. To take the sandbox
	// down is nothing that its client waits for.
	return http.StatusOK, res, box.End()
}

// resolve finds a pool and makes the policy for a workspace.
func (s *server) resolve(name, workspace string) (*servedPool, *policy.Policy, error) {
	p, err := s.find(name)
	if err != nil {
		return nil, nil, err
	}
	if workspace != "" && (!filepath.IsAbs(workspace) || strings.ContainsAny(workspace, "\x00\n")) {
		return nil, nil, &policy.InvalidError{Field: "workspace", Value: workspace, Want: "an absolute path"}
	}
	pol, err := p.Resolve(workspace)
	if err != nil {
		return nil, nil, err
	}
	return p, pol, nil
}

// sessionRequest is a session to create.
type sessionRequest struct {
	ID        *string `json:"id"` // nil for one that is made up
	Pool      string  `json:"pool"`
	Workspace string  `json:"workspace"`
}

// sessionInfo is a session as the interface shows it.
type sessionInfo struct {
	*session.Info
	Socket string `json:"socket,omitempty"`
	Pooled *bool  `json:"pooled,omitempty"`

	untold func() // ends a new session that nobody heard of
}

func (s *server) sessions(*http.Request) (int, any, error) {
	list, err := s.Store.List()
	if err != nil {
		return 0, nil, err
	}
	out := []sessionInfo{}
	for _, i := range list {
		out = append(out, sessionInfo{Info: i})
	}
	return http.StatusOK, map[string]any{"sessions": out}, nil
}

func (s *server) session(r *http.Request) (int, any, error) {
	id := r.PathValue("id")
	i, err := s.Store.Lookup(id)
	if err != nil {
		return 0, nil, err
	}
	if c, err := s.Store.Connect(id); err == nil {
		if now, _, err := c.Info(); err == nil {
			i = now
		}
	}
	return http.StatusOK, sessionInfo{Info: i, Socket: s.Store.Socket(id)}, nil
}

// handedOut is a driver whose one sandbox is there already.
type handedOut struct {
	driver.Driver
	box driver.Sandbox
}

// Open returns the sandbox.
func (h handedOut) Open(context.Context, *policy.Policy) (driver.Sandbox, error) { return h.box, nil }

// create makes a session of which the sandbox comes from a pool. This process holds
// it.
func (s *server) create(r *http.Request) (int, any, error) {
	var q sessionRequest
	if err := read(r, &q); err != nil {
		return 0, nil, err
	}
	id := session.NewID()
	if q.ID != nil {
		id = *q.ID
	}
	p, pol, err := s.resolve(q.Pool, q.Workspace)
	if err != nil {
		return 0, nil, err
	}
	i := &session.Info{ID: id, State: session.Created, Profile: pol.Profile, Driver: p.Config.Driver.Name(),
		Dir: pol.OCI.Process.Cwd, Created: time.Now(), Limits: pol.Limits}
	if err := s.Store.Create(i, pol); err != nil {
		return 0, nil, err
	}
	box, err := p.Acquire(r.Context(), pol)
	if err == nil && box.Completed() != nil {
		box.Close()
		box, err = p.Open(r.Context(), pol)
	}
	if err != nil {
		s.Store.Discard(id)
		return 0, nil, err
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	s.work.Go(func() {
		ended <- session.Hold(s.ctx, s.Store, handedOut{p.Config.Driver, box},
			&session.Spec{ID: id, Driver: p.Config.Driver.Name(), Policy: pol}, func() { close(ready) })
	})
	select {
	case <-ready:
	case err := <-ended:
		box.Close()
		s.Store.Discard(id)
		return 0, nil, cmp.Or(err, driver.ErrSandboxGone)
	}
	if i, err = s.Store.Lookup(id); err != nil {
		return 0, nil, err
	}
	c, err := s.Store.Connect(id)
	if err != nil {
		return 0, nil, err
	}
	untold := func() {
		if err := c.Stop(0); err == nil || errors.Is(err, session.ErrNotRunning) {
			s.Store.Remove(id)
		}
	}
	return http.StatusCreated, sessionInfo{Info: i, Socket: s.Store.Socket(id), Pooled: &box.Pooled,
		untold: untold}, nil
}

// remove stops a session and removes its record.
func (s *server) remove(r *http.Request) (int, any, error) {
	id, grace := r.PathValue("id"), 10*time.Second
	if q := r.URL.Query(); q.Has("grace_ms") {
		g := q.Get("grace_ms")
		n, err := strconv.ParseInt(g, 10, 32)
		if err != nil || n < 0 {
			return 0, nil, &policy.InvalidError{Field: "grace_ms", Value: g, Want: "milliseconds, 0 or more"}
		}
		grace = time.Duration(n) * time.Millisecond
	}
	c, err := s.Store.Connect(id)
	if err != nil {
		return 0, nil, err
	}
	if err := c.Stop(grace); err != nil && !errors.Is(err, session.ErrNotRunning) {
		return 0, nil, err
	}
	if err := s.Store.Remove(id); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, struct{}{}, nil
}

// runIn runs a command in a session.
func (s *server) runIn(r *http.Request) (int, any, error) {
	var q runRequest
	if err := read(r, &q); err != nil {
		return 0, nil, err
	}
	for field, value := range map[string]string{"pool": q.Pool, "workspace": q.Workspace} {
		if value != "" {
			return 0, nil, &policy.InvalidError{Field: field, Value: value, Want: "none: the session has its own"}
		}
	}
	id := r.PathValue("id")
	pol, err := s.Store.Policy(id)
	if err != nil {
		return 0, nil, err
	}
	c, err := s.Store.Connect(id)
	if err != nil {
		return 0, nil, err
	}
	i, err := s.Store.Recorded(id)
	if err != nil {
		return 0, nil, err
	}
	res, err := q.in(r.Context(), c, i.Driver, pol, s.room)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, res, nil
}
