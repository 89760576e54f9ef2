package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/cli"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/mcpserver"
	"github.com/sbxrun/sbxrun/policy"
)

// serveHTTP serves any number of clients that bring the token.
func serveHTTP(ctx context.Context, s *cli.Service, config mcpserver.Config) error {
	h := s.HTTP
	token, made, err := tokenOf(h)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", h.Address.String())
	if err != nil {
		fix := "name an address of this machine"
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = errno // the rest is in what is unavailable
		}
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			fix = "choose another port; 0 is any that is free"
		case errors.Is(err, syscall.EACCES):
			fix = "choose a port from 1024 on"
		}
		return &driver.UnavailableError{What: "--http " + h.Address.String(),
			Cause: "the address cannot be listened on", Fix: fix, Err: err}
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	server, err := mcpserver.NewHTTP(config, mcpserver.HTTPConfig{Token: token, Hosts: hostsOf(h, port), Idle: h.Idle})
	if err != nil {
		return err
	}
	s.Note("serving at http://"+net.JoinHostPort(h.Address.Addr().String(), strconv.Itoa(port))+"/mcp", "")
	if made {
		s.Note("clients need this header: Authorization: Bearer "+token,
			"--token-file FILE keeps a token from one start to the next")
	}
	return server.Serve(ctx, l)
}

// hostsOf lists what a request's Host header may be.
func hostsOf(h *cli.HTTP, port int) []string {
	var all []string
	add := func(name string) { all = append(all, net.JoinHostPort(name, strconv.Itoa(port))) }
	a := h.Address.Addr()
	if !a.IsUnspecified() {
		add(a.String())
	}
	if a.IsLoopback() || a.IsUnspecified() {
		add("localhost")
		add("127.0.0.1")
		add("::1")
	}
	// One without a port is at the default one, of a proxy in front.
	return append(all, h.Hosts...)
}

// tokenOf returns the token that clients bring; made if it is new and was not
// written to a file.
func tokenOf(h *cli.HTTP) (token string, made bool, err error) {
	bad := func(field, value, want string) error {
		return &policy.InvalidError{Field: field, Value: value, Want: want}
	}
	check := func(field, t string) (string, bool, error) {
		if len(t) < mcpserver.MinToken || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return "", false, bad(field, "…",
				fmt.Sprintf("a token of %d printable characters or more, without spaces", mcpserver.MinToken))
		}
		return t, false, nil
	}
	if h.TokenFile == "" {
		if h.Token != "" {
			return check("token", h.Token)
		}
		return rand.Text(), true, nil
	}
	// A new account has no configuration directory yet.
	if f, err := engine.GatherFacts(); err == nil && slices.Contains(f.ConfigDirs, filepath.Dir(h.TokenFile)) {
		if err := os.MkdirAll(filepath.Dir(h.TokenFile), 0o700); err != nil {
			return "", false, err
		}
	}
	file, err := engine.Named(h.TokenFile)
	if err != nil {
		return "", false, bad("token-file", h.TokenFile,
			"a file in a directory that is there and that you can write to: "+err.Error())
	}
	// Two servers at the first start do not take each other's half-written token:
	// one makes the file, and it is whole before it has its name.
	if err := makeToken(file); err != nil {
		return "", false, bad("token-file", h.TokenFile,
			"a file in a directory that is there and that you can write to: "+cause(err).Error())
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return "", false, bad("token-file", h.TokenFile, "a file that you can read: "+cause(err).Error())
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", false, err
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o077 != 0 {
		return "", false, bad("token-file", h.TokenFile, "a regular file that only you can read: chmod 600")
	}
	data := make([]byte, 4096)
	n, _ := f.Read(data)
	return check("token-file", strings.TrimSpace(string(data[:n])))
}

// cause drops what an fs.PathError repeats of the message around it.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// makeToken writes a new token to a file that is not there.
func makeToken(name string) error {
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	tmp := name + "." + strconv.Itoa(os.Getpid()) + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	_, err = f.WriteString(rand.Text() + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		if err = os.Link(tmp, name); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return err
}
