package egress

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// hostsFile is the host's own table of names; see hosts(5).
const hostsFile = "/etc/hosts"

func hostResolve(ctx context.Context, name string) ([]netip.Addr, error) {
	return resolveWith(ctx, hostsFile, name)
}

// resolveWith looks a name up as the host does, with a file for its hosts(5).
func resolveWith(ctx context.Context, hosts, name string) ([]netip.Addr, error) {
	if !strings.Contains(name, ".") {
		// With the dot below, neither package net nor the C library finds a name
		// of one label in hosts(5).
		if f, err := os.Open(hosts); err == nil {
			defer f.Close()
			if addrs := inHosts(f, name); len(addrs) > 0 {
				return addrs, nil
			}
		}
	}
	// The dot at the end keeps the host's search list out: what is looked up
	// is the name that was decided about and no other.
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
}

// inHosts lists the addresses that a table in the form of hosts(5) has for a name.
func inHosts(table io.Reader, name string) []netip.Addr {
	var addrs []netip.Addr
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) < 2 || !slices.ContainsFunc(fields[1:],
			func(f string) bool { return strings.EqualFold(strings.TrimSuffix(f, "."), name) }) {
			continue
		}
		// An address with a zone is none that a rule could list.
		if a, err := netip.ParseAddr(fields[0]); err == nil && a.Zone() == "" && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

func hostDial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr.String())
}

const (
	// A look-up is kept for a short while, because a program looks a name up
	// and then connects. Go's resolver does not tell the TTL.
	foundTTL   = 15 * time.Second
	missingTTL = 3 * time.Second

	maxResolved = 4096

	// A name that a wildcard allows is chosen by the sandbox, and its owner
	// sees the question: that is a channel, as any connection would be. It is
	// kept narrow, by whatever route the question comes.
	newNamesPerSecond = 20
	newNamesBurst     = 400
)

// errTooManyNames says that names are looked up faster than is allowed.
var errTooManyNames = errors.New("too many names are looked up")

// resolver looks names up on the host, each once for all who ask at the same
// time.
type resolver struct {
	lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	ctx    context.Context // of Serve
	run    func(func())    // starts a goroutine that Serve waits for

	fresh *rate.Limiter // look-ups of names that are not in the cache

	mu    sync.Mutex
	cache map[string]*resolved
}

type resolved struct {
	done  chan struct{} // closed when what follows is set
	until time.Time     // set under the resolver's lock; zero while under way
	addrs []netip.Addr
	err   error
}

// resolve returns the addresses of a name that the rules allow. Quick asks for a
// short try: an upstream proxy will look the name up itself.
func (r *resolver) resolve(ctx context.Context, name string, quick bool) ([]netip.Addr, error) {
	if name == "localhost" { // RFC 6761: never asked of a server
		return loopbacks[:], nil
	}
	if quick {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
	}
	e := r.entry(name)
	select {
	case <-e.done:
		return e.addrs, e.err
	case <-ctx.Done():
		return nil, &net.DNSError{Err: "no answer in time", Name: name, IsTimeout: true}
	}
}

// cached returns what is known of a name, without asking.
func (r *resolver) cached(name string) (*resolved, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.cache[name]
	if e == nil || e.until.IsZero() || time.Now().After(e.until) {
		return nil, false
	}
	return e, true
}

// entry returns the look-up of a name, and starts it if there is none.
func (r *resolver) entry(name string) *resolved {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if e := r.cache[name]; e != nil && (e.until.IsZero() || now.Before(e.until)) {
		return e
	}
	if !r.fresh.AllowN(now, 1) {
		e := &resolved{done: make(chan struct{}), err: errTooManyNames}
		close(e.done)
		return e
	}
	if r.cache == nil {
		r.cache = map[string]*resolved{}
	}
	r.forget(now)
	e := &resolved{done: make(chan struct{})}
	if len(r.cache) >= maxResolved { // all of them under way
		e.err = &net.DNSError{Err: "too many look-ups at a time", Name: name, IsTemporary: true}
		close(e.done)
		return e
	}
	r.cache[name] = e
	r.run(func() {
		// Not the context of whoever asked first: others wait too.
		ctx, cancel := context.WithTimeout(r.ctx, lookupTimeout)
		defer cancel()
		addrs, err := func() (addrs []netip.Addr, err error) {
			defer caught(&err)
			return r.lookup(ctx, name)
		}()
		ttl := foundTTL
		if err == nil {
			for i := range addrs {
				addrs[i] = addrs[i].Unmap()
			}
			addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !a.IsValid() })
			if len(addrs) > maxAddrs {
				addrs = addrs[:maxAddrs]
			}
			if len(addrs) == 0 {
				err = &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
			}
		}
		if err != nil {
			addrs, ttl = nil, missingTTL
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		e.addrs, e.err, e.until = addrs, err, time.Now().Add(ttl)
		close(e.done)
	})
	return e
}

// forget makes room if the cache is full: what has run out goes, and of the rest no more
// than has to.
func (r *resolver) forget(now time.Time) {
	if len(r.cache) < maxResolved {
		return
	}
	for n, e := range r.cache {
		if !e.until.IsZero() && (now.After(e.until) || len(r.cache) >= maxResolved) {
			delete(r.cache, n)
		}
	}
}

// maxAddrs is how many addresses of a name are tried.
const maxAddrs = 8

// race dials addresses, each a moment after the one before or as soon as that
// failed, and returns the first connection; RFC 8305 without the sorting, which
// the resolver did.
func race(ctx context.Context, addrs []netip.Addr, port uint16,
	dial func(context.Context, netip.AddrPort) (net.Conn, error)) (net.Conn, netip.Addr, error) {
	if len(addrs) == 1 {
		conn, err := dial(ctx, netip.AddrPortFrom(addrs[0], port))
		return conn, addrs[0], err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		addr netip.Addr
		err  error
	}
	results := make(chan result, len(addrs))
	next, pending := 0, 0
	launch := func() {
		a := addrs[next]
		next++
		pending++
		go func() {
			conn, err := func() (conn net.Conn, err error) {
				defer caught(&err)
				return dial(ctx, netip.AddrPortFrom(a, port))
			}()
			results <- result{conn, a, err}
		}()
	}
	launch()
	timer := time.NewTimer(250 * time.Millisecond)
	defer timer.Stop()
	var first error
	for pending > 0 {
		select {
		case r := <-results:
			pending--
			if r.err == nil {
				cancel()
				go func() { // those that come too late
					for range pending {
						if r := <-results; r.conn != nil {
							r.conn.Close()
						}
					}
				}()
				return r.conn, r.addr, nil
			}
			first = cmp.Or(first, r.err)
			if next < len(addrs) {
				launch()
			}
		case <-timer.C:
			if next < len(addrs) {
				launch()
				timer.Reset(250 * time.Millisecond)
			}
		}
	}
	return nil, netip.Addr{}, first
}
