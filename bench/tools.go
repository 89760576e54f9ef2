package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// A toolServer is sbxrun mcp, spoken to as an agent does: lines of JSON on its stdin
// and stdout.
type toolServer struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	id   int
}

// tools measures what an agent waits for one call of tool bash: the same server once
// with commands sandboxed, and once with a roll-out of nothing, so that all that
// differs is the sandbox.
func (b *bench) tools() error {
	const section = "tools"
	b.report.begin(section, "A call of tool bash (true) by an agent, over stdio, in a session that is there:")
	rounds := 1000
	if b.quick {
		rounds = 200
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(b.sbxrun), "sbxrun-mcp")); err != nil {
		b.report.add(row{Section: section, Name: "sbxrun mcp", Note: "sbxrun-mcp is not beside sbxrun: " + err.Error()})
		b.report.print(os.Stdout, section)
		return nil
	}
	var servers []*toolServer
	defer func() {
		for _, s := range servers {
			s.in.Close()
			s.cmd.Wait()
		}
	}()
	for _, name := range []string{"unsandboxed", "sandboxed"} {
		config := filepath.Join(b.dir, "tools-"+name)
		ws := filepath.Join(config, "ws")
		for _, dir := range []string{filepath.Join(config, "sbxrun"), ws} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		args := append([]string{"mcp", "-q", "-C", ws}, b.extra...)
		if name == "unsandboxed" {
			if err := os.WriteFile(filepath.Join(config, "sbxrun", "config.yaml"), []byte("rollout:\n  enabled: false\n"), 0o600); err != nil {
				return err
			}
		}
		s, err := startTools(name, exec.Command(b.sbxrun, args...), config)
		if err != nil {
			return err
		}
		servers = append(servers, s)
		for range 20 { // the first makes the session, and caches are cold
			if _, err := s.call(name == "sandboxed"); err != nil {
				return err
			}
		}
	}
	got := map[string]samples{}
	for round := range rounds {
		for _, i := range rand.Perm(len(servers)) {
			s := servers[i]
			took, err := s.call(s.name == "sandboxed")
			if err != nil {
				return err
			}
			if got[s.name] == nil {
				got[s.name] = samples{}
			}
			got[s.name][round] = took.Seconds() * 1e3
		}
	}
	base := quantile(got["unsandboxed"].values(), 0.99)
	for _, s := range servers {
		p99 := quantile(got[s.name].values(), 0.99)
		r := measured(section, s.name, "", "ms", got[s.name], got["unsandboxed"], fmt.Sprintf("p99 %s ms, ratio %.3f", number(p99), p99/base))
		r.P99 = p99
		b.report.add(r)
	}
	b.report.print(os.Stdout, section)
	return nil
}

func startTools(name string, cmd *exec.Cmd, config string) (*toolServer, error) {
	s := &toolServer{name: name, cmd: cmd}
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+config)
	// What it says at the start is about what is asked of it here.
	errs, err := os.Create(filepath.Join(config, "stderr"))
	if err != nil {
		return nil, err
	}
	defer errs.Close()
	cmd.Stderr = errs
	if s.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := s.ask("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`); err != nil {
		said, _ := os.ReadFile(errs.Name())
		return nil, fmt.Errorf("%w\n%s", err, said)
	}
	_, err = io.WriteString(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	return s, err
}

// ask sends a request and returns the line that answers it.
func (s *toolServer) ask(method, params string) ([]byte, error) {
	s.id++
	if _, err := fmt.Fprintf(s.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", s.id, method, params); err != nil {
		return nil, fmt.Errorf("sbxrun mcp (%s): %w", s.name, err)
	}
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("sbxrun mcp (%s): %w", s.name, err)
	}
	return line, nil
}

// call runs true, and sees that it ran where it was to.
func (s *toolServer) call(sandboxed bool) (time.Duration, error) {
	start := time.Now()
	line, err := s.ask("tools/call", `{"name":"bash","arguments":{"command":"true"}}`)
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	var a struct {
		ID     int
		Result struct {
			StructuredContent struct {
				ExitCode  *int `json:"exit_code"`
				Sandboxed bool
			}
		}
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return 0, err
	}
	if c := a.Result.StructuredContent; a.ID != s.id || c.ExitCode == nil || *c.ExitCode != 0 || c.Sandboxed != sandboxed {
		return 0, fmt.Errorf("sbxrun mcp (%s): not what was asked for: %s", s.name, line)
	}
	return took, nil
}
