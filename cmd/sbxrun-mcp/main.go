// Command sbxrun-mcp does the work of "sbxrun mcp" and "sbxrun command", which
// execute it: what it links (the SDK of the Model Context Protocol, a parser of
// shell scripts) has init functions that would be paid by every run.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/internal/cli"
	"github.com/sbxrun/sbxrun/internal/command"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/mcpserver"
	"github.com/sbxrun/sbxrun/internal/strictjson"
	"github.com/sbxrun/sbxrun/policy"
)

func main() {
	os.Exit((&cli.Beside{MCP: serve, Check: check, Prompt: prompt, Integrate: integrate}).Main(os.Args[1:]))
}

// serve serves on stdin and stdout, which are the protocol's alone, or over HTTP.
func serve(s *cli.Service) error {
	rules, err := readRules(s.Commands)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	config := mcpserver.Config{Service: s.Service, Rules: rules}
	if s.HTTP != nil {
		return serveHTTP(ctx, s, config)
	}
	return mcpserver.New(config).Serve(ctx, os.Stdin, os.Stdout)
}

// readRules reads a command policy; no name is the built-in one.
func readRules(name string) (*command.Rules, error) {
	var c command.Config
	if name != "" {
		data, err := engine.ReadNamed(name, 1<<20)
		if err != nil {
			return nil, err
		}
		if err := strictjson.Unmarshal(data, &c); err != nil {
			return nil, &policy.InvalidError{Field: "command-policy", Value: name,
				Want: "a JSON object of use_default, additional, exclude, custom_list and denied: " + err.Error()}
		}
	}
	return command.New(c)
}

// check prints what a command policy says of a script.
func check(script, name string, asJSON bool) (bool, error) {
	rules, err := readRules(name)
	if err != nil {
		return false, err
	}
	d := rules.Check(script)
	if asJSON {
		if d.Refusals == nil {
			d.Refusals = []command.Refusal{}
		}
		return d.Allowed, cli.PrintJSON(d)
	}
	var b strings.Builder
	if d.Allowed {
		b.WriteString("allowed\n")
	}
	for _, r := range d.Refusals {
		fmt.Fprintf(&b, "refused: %s\n", r)
	}
	_, err = os.Stdout.WriteString(b.String())
	return d.Allowed, err
}
