// Command mcphost does what an agent's host does with "sbxrun mcp": it starts the server,
// asks for its tools, and calls one. No model is needed for that.
//
//	go run ./examples/mcphost [path of sbxrun]
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mcphost:", err)
		os.Exit(1)
	}
}

func run() error {
	program := "sbxrun"
	if len(os.Args) > 1 {
		program = os.Args[1]
	}
	// The policy is made by who starts the server; no call can change it.
	server := exec.Command(program, "mcp", "--profile", "strict", "--allow-degraded", "cgroup")
	server.Stderr = os.Stderr
	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "example", Version: "1"}, nil)
	s, err := client.Connect(ctx, &mcp.CommandTransport{Command: server}, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	tools, err := s.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	fmt.Println(len(tools.Tools), "tools")
	for _, script := range []string{"cd /tmp && echo kept > note", "pwd; cat note"} {
		res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": script}})
		if err != nil {
			return err
		}
		for _, c := range res.Content {
			if t, ok := c.(*mcp.TextContent); ok {
				fmt.Println(t.Text)
			}
		}
	}
	return nil
}
