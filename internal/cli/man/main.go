// Command man writes the manual pages from the tree of commands that sbxrun
// runs. It is a program of its own so that sbxrun does not link what formats
// them.
//
//	man DIR
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/sbxrun/sbxrun/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: man DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := cli.Root()
	root.DisableAutoGenTag = true
	for _, c := range append(root.Commands(), root) {
		plain(c)
	}
	// A fixed date: the same commands make the same pages on any day.
	date := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
	return doc.GenManTree(root, &doc.GenManHeader{
		Title: "SBXRUN", Section: "1", Date: &date, Source: "sbxrun", Manual: "User Commands",
	}, dir)
}

// plain turns off what would make a page differ from day to day.
func plain(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, sub := range c.Commands() {
		plain(sub)
	}
}
