//go:build unix

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/policy"
)

func somePolicy() *policy.Policy {
	return &policy.Policy{Profile: "some", OCI: &specs.Spec{Process: &specs.Process{Args: []string{"cmd"}, Cwd: "/", Env: []string{"A=b"}}}}
}

// lender serves sandboxes that isolate nothing, and returns its socket and those
// that it gave.
func lender(t *testing.T, l *Lender) (socket string, boxes chan *box) {
	t.Helper()
	socket, boxes = filepath.Join(t.TempDir(), "s"), make(chan *box, 100)
	if l.Acquire == nil {
		l.Acquire = func(context.Context, *policy.Policy) (driver.Sandbox, error) {
			b := &box{done: make(chan struct{})}
			boxes <- b
			return b, nil
		}
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		ln.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket, boxes
}

func closed(t *testing.T, b *box) {
	t.Helper()
	select {
	case <-b.done:
	case <-time.After(10 * time.Second):
		t.Error("the sandbox is not ended")
	}
}

func TestLend(t *testing.T) {
	socket, boxes := lender(t, &Lender{Version: "1", Birth: "user: me\n"})
	for _, tt := range []struct {
		script string
		code   int
	}{{"echo out; exit 3", 3}, {"exit 0", 0}} {
		l, err := Borrow(socket, "1", "user: me\n", somePolicy())
		if err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sh", "-c", tt.script}}, driver.Stdio{Stdout: w}, false)
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		st, err := p.Wait()
		if err != nil || st.ExitCode != tt.code || !st.Pooled || st.PidsDenied != 7 || st.PidsBy != "a group above" || st.OOMBy != "the host" {
			t.Errorf("%+v, %v", st, err)
		}
		b := <-boxes
		// Before the result, not after it.
		select {
		case <-b.done:
		default:
			t.Error("the sandbox outlives its result")
		}
		r.Close()
	}

	l, err := Borrow(socket, "1", "user: me\n", somePolicy())
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Exec(context.Background(), &specs.Process{Args: []string{"/nonexistent"}}, driver.Stdio{}, true)
	var c *driver.CommandError
	if !errors.As(err, &c) || c.Command != "/nonexistent" {
		t.Errorf("%v", err)
	}
	closed(t, <-boxes)

	// Given back, and a client that is gone.
	for _, end := range []func(*Loan){func(l *Loan) { l.Close() }, func(l *Loan) { l.conn.send(&request{Op: "stop"}) }} {
		if l, err = Borrow(socket, "1", "user: me\n", somePolicy()); err != nil {
			t.Fatal(err)
		}
		end(l)
		closed(t, <-boxes)
		l.Close()
	}
	if l, err = Borrow(socket, "1", "user: me\n", somePolicy()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Exec(context.Background(), &specs.Process{Args: []string{"/bin/sleep", "1000"}}, driver.Stdio{}, true); err != nil {
		t.Fatal(err)
	}
	l.conn.Close()
	closed(t, <-boxes)
}

// TestLendRefuses: what would not be the same sandbox is not lent, and the client
// takes none that the lender does not know to be the same.
func TestLendRefuses(t *testing.T) {
	socket, boxes := lender(t, &Lender{Version: "1", Birth: "umask: 22\nuser: me\n"})
	broken := somePolicy()
	broken.OCI.Process.Cwd = "relative"
	for _, tt := range []struct {
		version, birth string
		p              *policy.Policy
		want           string
	}{
		{"2", "umask: 22\nuser: me\n", somePolicy(), "the server is sbxrun 1"},
		{"1", "umask: 77\nuser: me\n", somePolicy(), "another umask"},
		{"1", "", somePolicy(), "another umask"},
		{"1", "umask: 22\nuser: me\n", broken, "cwd"},
	} {
		if l, err := Borrow(socket, tt.version, tt.birth, tt.p); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v", tt.want, err)
			if err == nil {
				l.Close()
			}
		}
	}
	// A policy of a later version, of which this one would lose a part.
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	k := &conn{UnixConn: c.(*net.UnixConn)}
	raw, _ := json.Marshal(somePolicy())
	raw = append([]byte(`{"hide_more":["/"],`), raw[1:]...)
	if err := borrow(k, &request{Op: "lend", Version: "1", Birth: "umask: 22\nuser: me\n", Digest: digest(raw)}, raw); err == nil || !strings.Contains(err.Error(), "hide_more") {
		t.Errorf("%v", err)
	}
	c.Close()
	if len(boxes) != 0 {
		t.Error("a sandbox was made")
	}

	none, _ := lender(t, &Lender{Acquire: func(context.Context, *policy.Policy) (driver.Sandbox, error) { return nil, errors.New("none is ready") }})
	l, err := Borrow(none, "", "", somePolicy())
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Exec(context.Background(), &specs.Process{Args: []string{"/bin/true"}}, driver.Stdio{}, true)
	if !errors.Is(err, ErrRefused) || errors.Is(err, driver.ErrSandboxGone) || !strings.Contains(err.Error(), "none is ready") {
		t.Errorf("%v", err)
	}

	// A sandbox that turns out not to be one.
	none, _ = lender(t, &Lender{Acquire: func(context.Context, *policy.Policy) (driver.Sandbox, error) {
		return &unfinished{box{done: make(chan struct{})}}, nil
	}})
	if l, err = Borrow(none, "", "", somePolicy()); err != nil {
		t.Fatal(err)
	}
	_, err = l.Exec(context.Background(), &specs.Process{Args: []string{"/bin/true"}}, driver.Stdio{}, true)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "mount") {
		t.Errorf("%v", err)
	}

	// A lender that built another policy, one that says nothing, one that talks
	// nonsense, and nobody.
	for answer, want := range map[string]string{
		`{"lease":{"digest":"00"}}`: "another policy",
		`{}`:                        "unexpected answer",
		`{"error":{"text":"no"}}`:   "no",
		`[]`:                        "cannot unmarshal",
		"":                          "EOF",
	} {
		path := filepath.Join(t.TempDir(), "s")
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan int, 1)
		go func() {
			u, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			k := &conn{UnixConn: u}
			var req request
			k.receive(&req)
			if answer != "" {
				k.send(json.RawMessage(answer))
			} else {
				u.CloseWrite()
			}
			files, _ := k.receive(&req)
			got <- len(files)
			u.Close()
		}()
		if _, err := Borrow(path, "", "", somePolicy()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", answer, err)
		}
		if n := <-got; n != 0 {
			t.Errorf("%q: %d descriptors were sent", answer, n)
		}
		ln.Close()
		if _, err := Borrow(path, "", "", somePolicy()); err == nil {
			t.Error("nobody lends")
		}
	}
}

// TestLendLate: who lends too slowly refuses, and what it gets too late ends.
func TestLendLate(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	late := &box{done: make(chan struct{})}
	socket, _ := lender(t, &Lender{Acquire: func(context.Context, *policy.Policy) (driver.Sandbox, error) {
		<-slow
		return late, nil
	}})
	l, err := Borrow(socket, "", "", somePolicy())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Exec(context.Background(), &specs.Process{Args: []string{"/bin/true"}}, driver.Stdio{}, true); !errors.Is(err, ErrRefused) {
		t.Errorf("%v", err)
	}
	close(slow)
	closed(t, late)
}

func TestBirth(t *testing.T) {
	a, err := Birth()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	b, err2 := Birth()
	if err != nil || err2 != nil || a != b || !strings.Contains(a, "mnt namespace: ") || !strings.Contains(a, "umask: ") {
		t.Errorf("%q, %q, %v, %v", a, b, err, err2)
	}
	if d := differ(a, strings.Replace(a, "umask: ", "umask: 1", 1)); d != "another umask" {
		t.Errorf("%q", d)
	}
}

// unfinished is a box that was to be completed and could not be.
type unfinished struct{ box }

func (*unfinished) Completed() error { return fmt.Errorf("%w: mount", driver.ErrIncomplete) }
