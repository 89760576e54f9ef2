package mcpserver

import (
	"testing"

	"github.com/sbxrun/sbxrun/driver"
)

// TestTold: a model, which can ask for explain itself, does not learn which secrets there
// are, nor what a hidden directory holds. That the directory is hidden it sees anyway.
func TestTold(t *testing.T) {
	got := told([]driver.Denial{
		{Operation: driver.OpRead, Target: "/home/u/.ssh/id", Rule: "private storage: /home/u", Reason: driver.ReasonSecret},
		{Operation: driver.OpRead, Target: "/w/clients/acme", Rule: "hidden: /w/clients"},
		{Operation: driver.OpExec, Target: "/w/link", Rule: "hidden: /w/clients, /w/clients/x, where it leads"},
		{Operation: driver.OpRead, Target: "/w/clients", Rule: "hidden: /w/clients"},
		{Operation: driver.OpWrite, Target: "/w/clients/new", Rule: "hidden: /w/clients"},
		{Operation: driver.OpRead, Target: "/opt/x", Rule: "not shown"},
	})
	var targets []string
	for _, d := range got {
		targets = append(targets, d.Target)
	}
	if len(targets) != 3 || targets[0] != "/w/clients" || targets[1] != "/w/clients/new" || targets[2] != "/opt/x" {
		t.Errorf("%q", targets)
	}
}
