//go:build unix

package mcpserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sbxrun/sbxrun/internal/httpbody"
)

const (
	// maxConnections is how many clients there can be at a time. Sandboxes are
	// bounded by Config.MaxSessions for each client, and by maxClients times that.
	maxConnections = 64

	// maxMessage bounds a message: a file of maxWrite, in base64, and its JSON.
	maxMessage = 16 << 20 // bytes

	sessionHeader = "Mcp-Session-Id"

	// callHeader ties a call to the request that carried it. It is set here,
	// whatever a client sent.
	callHeader = "X-Sbxrun-Request"
)

// HTTPConfig is who may talk to a server over HTTP.
type HTTPConfig struct {
	// Token is what a request must bring: "Authorization: Bearer TOKEN".
	Token string

	// Hosts are the names, each with its port, by which a request may call the
	// server. A page in a browser can make a name of its own lead here (DNS
	// rebinding), and cannot choose another for the Host header.
	Hosts []string

	// Idle is how long a client can be silent before it counts as gone.
	Idle time.Duration
}

// HTTP serves clients by the protocol's streamable HTTP. Each has sessions of
// its own, and when it ends its connection, or is silent for too long, they
// end. It is an http.Handler for one address, to be given only to clients that
// bring the token; a request with a Host or an Origin that is not the server's
// is refused first.
type HTTP struct {
	config Config
	access HTTPConfig
	token  [sha256.Size]byte

	mu          sync.Mutex
	connections map[string]*connection
	closed      bool
	last        uint64
	calls       map[string]context.Context // of requests that are being served
}

// A connection is one client, by the id that the protocol gives it.
type connection struct {
	id      string
	server  *Server
	handler http.Handler

	mu     sync.Mutex
	active int // requests, a stream that waits for news included
	ended  bool
	idle   *time.Timer // nil as long as a request is served
}

// NewHTTP returns a handler that has no client yet.
func NewHTTP(c Config, access HTTPConfig) (*HTTP, error) {
	switch {
	case len(access.Token) < MinToken:
		return nil, errors.New("the token is too short to be a secret")
	case len(access.Hosts) == 0:
		return nil, errors.New("no name to be called by")
	}
	c.quota, c.room, c.schemas = newQuota(c.MaxSessions), newShared(maxConnections), newSchemas()
	return &HTTP{config: c, access: access, token: sha256.Sum256([]byte(access.Token)),
		connections: map[string]*connection{}, calls: map[string]context.Context{}}, nil
}

// MinToken is the fewest characters that a token may have.
const MinToken = 16

// Serve serves a listener until the context ends. When it returns nothing of
// any client is left.
func (h *HTTP) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           httpbody.Within(httpbody.Patience, h),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// OPTIONS * is asked by who may, too.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	defer h.Close()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends every connection, and what runs for it.
func (h *HTTP) Close() {
	h.mu.Lock()
	h.closed = true
	var all []*connection
	for _, c := range h.connections {
		all = append(all, c)
	}
	h.mu.Unlock()
	var ends sync.WaitGroup
	for _, c := range all {
		ends.Go(func() { h.end(c) })
	}
	ends.Wait()
}

// end ends a connection. Whoever calls, everything has ended when it returns.
func (h *HTTP) end(c *connection) {
	h.mu.Lock()
	delete(h.connections, c.id)
	h.mu.Unlock()
	c.server.close()
	for ss := range c.server.mcp.Sessions() {
		ss.Close()
	}
	c.mu.Lock()
	c.ended = true
	if c.idle != nil {
		c.idle.Stop()
	}
	c.mu.Unlock()
}

// ServeHTTP answers a request of a client.
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// 403 for each, and no WWW-Authenticate: a client that sees 401 looks for
	// an authorization server, and there is none.
	if why := h.refuse(r); why != "" {
		http.Error(w, why, http.StatusForbidden)
		return
	}
	if r.URL.Path != "/mcp" {
		http.Error(w, "there is only /mcp here", http.StatusNotFound)
		return
	}
	call, done := h.begin(r)
	defer done()
	r.Header.Set(callHeader, call)

	if r.Method == http.MethodPost && !readable(w, r) {
		return
	}

	if len(r.Header.Values(sessionHeader)) > 1 {
		http.Error(w, "the request names two sessions", http.StatusBadRequest)
		return
	}
	id := r.Header.Get(sessionHeader)
	if id == "" && r.Method == http.MethodPost {
		h.connect(w, r)
		return
	}
	h.mu.Lock()
	c := h.connections[id]
	h.mu.Unlock()
	if c == nil {
		// What the protocol says for one that has ended: the client begins anew.
		http.Error(w, "there is no such session", http.StatusNotFound)
		return
	}
	defer c.enter(func() { h.end(c) }, h.access.Idle)()
	if r.Method == http.MethodDelete {
		h.end(c)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	c.handler.ServeHTTP(w, r)
}

// readable reads the message of a request, and answers one that two readers could
// take for two things.
func readable(w http.ResponseWriter, r *http.Request) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, "the message is larger than "+strconv.Itoa(maxMessage)+" bytes", http.StatusRequestEntityTooLarge)
		return false
	case err != nil:
		http.Error(w, "the message broke off", http.StatusBadRequest)
		return false
	}
	if _, bad := decode(body); bad != nil {
		var id finder
		id.feed(body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		w.Write(refusal(&id, bad))
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return true
}

// connect serves the first request of a client.
func (h *HTTP) connect(w http.ResponseWriter, r *http.Request) {
	s := New(h.config)
	c := &connection{id: s.id, server: s}
	s.carrier = h.call
	c.handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.mcp }, &mcp.StreamableHTTPOptions{
		Logger:              slog.New(slog.DiscardHandler),
		MaxRequestBodyBytes: maxMessage,
		// Hosts are checked before, also on addresses that are not loopback.
		DisableLocalhostProtection: true,
	})
	h.mu.Lock()
	full := len(h.connections) >= maxConnections
	if !full && !h.closed {
		h.connections[c.id] = c
	}
	closed := h.closed
	h.mu.Unlock()
	if full || closed {
		s.close()
		http.Error(w, "there are too many clients: end one, or wait", http.StatusServiceUnavailable)
		return
	}
	leave := c.enter(func() { h.end(c) }, h.access.Idle)
	c.handler.ServeHTTP(w, r)
	leave()
	for range s.mcp.Sessions() {
		return
	}
	h.end(c) // the request was no initialize
}

// enter says that a request of the client is served, until the function that it
// returns is called. If none comes after that for a time, the client is gone.
func (c *connection) enter(gone func(), after time.Duration) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active++
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.active--; c.active == 0 && !c.ended && after > 0 {
			c.idle = time.AfterFunc(after, func() {
				c.mu.Lock()
				idle := c.active == 0
				c.mu.Unlock()
				if idle {
					gone()
				}
			})
		}
	}
}

// refuse says why a request may not speak to the server, "" if it may.
func (h *HTTP) refuse(r *http.Request) string {
	known := func(host string) bool {
		return slices.ContainsFunc(h.access.Hosts, func(ok string) bool { return strings.EqualFold(host, ok) })
	}
	if !known(r.Host) {
		return "the Host header does not name this server"
	}
	// One is what a browser sends for a page; agents send none.
	for _, origin := range r.Header.Values("Origin") {
		host, ok := strings.CutPrefix(strings.ToLower(origin), "http://")
		if !ok || !known(host) {
			return "the Origin header is of a page that is not this server's"
		}
	}
	given := r.Header.Values("Authorization")
	if len(given) != 1 {
		return "the request needs one Authorization header: Bearer and the token"
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	sum := sha256.Sum256([]byte(token))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(sum[:], h.token[:]) != 1 {
		return "the token is wrong"
	}
	return ""
}

// begin names a request, so that a call that came with it can find it.
func (h *HTTP) begin(r *http.Request) (name string, done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	name = strconv.FormatUint(h.last, 10)
	h.calls[name] = r.Context()
	return name, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.calls, name)
	}
}

// call returns the context of the request that carried a call. A client that
// goes away can get no result any more: streams are not resumed.
func (h *HTTP) call(req *mcp.CallToolRequest) context.Context {
	if req == nil || req.Extra == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[req.Extra.Header.Get(callHeader)]
}
