package cli

import "github.com/spf13/cobra"

func subcommands() []*cobra.Command {
	return []*cobra.Command{newRun("run")}
}
