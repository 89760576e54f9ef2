package cli

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestHabits: no flag of sbxrun's own is explained as another program's, no flag
// is explained twice, and each flag that a hint names exists.
func TestHabits(t *testing.T) {
	run := pflag.NewFlagSet("run", pflag.ContinueOnError)
	new(options).runFlags(run)
	seen := make(map[string]bool)
	for _, h := range habits {
		for name := range strings.FieldsSeq(h.flags) {
			if run.Lookup(name) != nil || len(name) == 1 && run.ShorthandLookup(name) != nil || seen[name] {
				t.Errorf("flag %s is sbxrun's own, or explained twice", name)
			}
			seen[name] = true
		}
		for word := range strings.FieldsSeq(h.here) {
			word = strings.Trim(word, ",;:.")
			if name, ok := strings.CutPrefix(word, "--"); ok && name != "" && name != "help" && run.Lookup(name) == nil {
				t.Errorf("%q names the flag %s, which no run has", h.here, word)
			}
		}
	}
}
