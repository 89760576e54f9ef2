package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/internal/engine"
)

// PrintJSON prints a value for programs, and for people who pass it on.
func PrintJSON(v any) error {
	b, err := engine.EncodeJSON(v, true)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}

func newSpec() *cobra.Command {
	o := &options{}
	oci, lowered := false, false
	c := &cobra.Command{
		Use:   "spec [flags] [--] [CMD [ARG...]]",
		Short: "Print the policy of a run as JSON",
		Long: `Print the policy that a run with these flags would have, as JSON, and run
nothing. With --oci it is a configuration for OCI runtimes alone (config.json),
below an empty root file system "rootfs"; what such a runtime cannot enforce is
named on stderr. With --lowered it is what the driver makes of the policy: the
profile of seatbelt, the arguments of docker. The command is sh if none is given.`,
		Example:               "  sbxrun spec --memory 1g -- make test\n  mkdir -p bundle/rootfs && sbxrun spec --oci -- make test > bundle/config.json\n  sudo runc run -b bundle test",
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"sh"}
			}
			r, f, err := o.resolveHere(args...)
			if err != nil {
				return err
			}
			var v any = r.Policy
			if oci {
				var left []string
				v, left, err = engine.OCI(r.Policy)
				for _, l := range left {
					say.note("not in the OCI configuration: "+l, "")
				}
			} else if lowered {
				v, err = engine.Lowered(f, r)
			}
			if err != nil {
				return err
			}
			if s, ok := v.(fmt.Stringer); ok && lowered && !oci {
				_, err := io.WriteString(os.Stdout, s.String())
				return err
			}
			return PrintJSON(v)
		},
	}
	fs := c.Flags()
	fs.SetInterspersed(false)
	fs.SortFlags = false
	fs.BoolVar(&oci, "oci", false, "print a configuration for OCI runtimes only")
	fs.BoolVar(&lowered, "lowered", false, "print what the driver makes of the policy")
	o.policyFlags(fs)
	o.voiceFlags(fs)
	return c
}
