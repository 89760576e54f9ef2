package engine

import (
	"os"
	"strconv"

	"github.com/sbxrun/sbxrun/driver/host"
	"github.com/sbxrun/sbxrun/internal/audit"
	"github.com/sbxrun/sbxrun/profiles"
)

// RolloutKey is what a roll-out knows an agent by, if it has no key of its own.
func RolloutKey(workspace string) string { return strconv.Itoa(os.Getuid()) + ":" + workspace }

// RolledOut says why the commands of an agent are not sandboxed, "" if they are. It
// asks the operator's files alone: whatever else is wrong here is no matter to an
// agent that is not part of a roll-out.
func RolledOut(req *profiles.Request, key string) (op profiles.Operator, why string, err error) {
	f, err := GatherFacts()
	if err != nil {
		return op, "", err
	}
	if op, err = OperatorOf(req, f); err != nil {
		return op, "", err
	}
	if r := op.Rollout; r.Enabled && r.Percent >= 100 {
		return op, "", nil // whatever the key
	}
	if key == "" {
		dir, err := profiles.WorkspaceOf(req, &f.Facts)
		if err != nil {
			return op, "", Invalid(err)
		}
		key = RolloutKey(dir)
	}
	_, why = op.Rollout.Sandboxed(key)
	return op, why, nil
}

// RecordOutside records, where the operator asked for that, a command that is about
// to run on the host. How it ends nobody here will know.
func RecordOutside(op *profiles.Operator, r audit.Record, why string) error {
	l, err := OpenAudit(op, nil)
	if err != nil || l == nil {
		return err
	}
	r.Driver, r.Why = host.Name, why
	return l.Run(r, nil, nil)
}
