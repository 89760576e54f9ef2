package profiles

import (
	"crypto/sha256"
	"encoding/binary"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// An Operator is what whoever runs agents decided, in a configuration file: no
// profile, project or call can change it.
type Operator struct {
	Audit   Audit
	Rollout Rollout

	// Unsandboxed lets a call of an agent that asks for it run on the bare host.
	Unsandboxed bool
}

// Audit is where runs and refusals are recorded.
type Audit struct {
	File    string // absolute; "" is nowhere
	MaxSize int64  // bytes; 0 is no limit
	Keep    int    // files beside the one that is written
}

// Rollout says which agents' commands are sandboxed.
type Rollout struct {
	Enabled bool
	Percent int      // of all keys
	Force   []string // keys that are, whatever Percent says
}

// OperatorOf reads what operators decide alone, for who needs no policy: a command in
// a session that there is.
func OperatorOf(req *Request, facts *Facts) (Operator, error) {
	env, _, err := fromEnviron(facts.Environ)
	if err != nil {
		return Operator{}, err
	}
	c := &collected{profile: *env}
	for _, dir := range facts.ConfigDirs {
		p, err := (source{facts: facts}).overlay(path.Join(dir, "config.yaml"))
		if err != nil {
			return Operator{}, err
		}
		if p != nil {
			c.over(p)
		}
	}
	if req.Audit != "" {
		c.setText(keyAuditFile, req.Audit, "flag --audit")
	}
	return c.operator(facts)
}

// operators reports the first value that only an operator can set.
func (p *profile) operators(why string) error {
	for k := range p.values {
		v := &p.values[k]
		if !keys[k].operator || !v.isSet() {
			continue
		}
		where := v.origin
		if where == "" {
			where = v.parts[0].origin
		}
		return &Error{Where: where, What: keys[k].name + ": " + why,
			Fix: "it belongs in config.yaml of your configuration directory, or of /etc/sbxrun"}
	}
	return nil
}

// operator reads what operators decide.
func (c *collected) operator(facts *Facts) (Operator, error) {
	o := Operator{
		Audit:       Audit{MaxSize: 10 << 20, Keep: 5},
		Rollout:     Rollout{Enabled: true, Percent: 100, Force: c.items(keyRolloutForce)},
		Unsandboxed: c.flag(keyUnsandboxed),
	}
	if c.values[keyAuditSize].isSet() {
		o.Audit.MaxSize = c.num(keyAuditSize)
	}
	if c.values[keyAuditKeep].isSet() {
		o.Audit.Keep = int(c.num(keyAuditKeep))
	}
	if c.values[keyRolloutEnabled].isSet() {
		o.Rollout.Enabled = c.flag(keyRolloutEnabled)
	}
	if c.values[keyRolloutPercent].isSet() {
		o.Rollout.Percent = int(c.num(keyRolloutPercent))
	}
	if name := c.text(keyAuditFile); name != "" {
		where := c.where(keyAuditFile)
		base := ""
		if strings.HasPrefix(where, "flag ") {
			base = facts.Cwd
		}
		file, err := facts.expand(name, base)
		if err != nil {
			return o, at(where, err)
		}
		dir, err := facts.follow(path.Dir(file))
		if err != nil || !dir.mode.IsDir() {
			return o, &Error{Where: where, What: "the audit log " + quote.Text(file) + " is in a directory that is not there",
				Fix: "mkdir -p -m 700 " + path.Dir(file)}
		}
		if err := dir.escapes(path.Dir(file)); err != nil {
			return o, at(where, err)
		}
		o.Audit.File = path.Join(dir.real, path.Base(file))
	}
	return o, nil
}

// auditable reports an audit log that the command itself could write.
func auditable(file string, p *policy.Policy) error {
	dir := path.Dir(file)
	writable := writableAt(p, dir) != nil || writableAt(p, file) != nil
	for _, m := range p.OCI.Mounts {
		writable = writable || writableBind(m) && policy.Below(dir, m.Source)
	}
	if !writable {
		return nil
	}
	return &Error{What: "the audit log " + quote.Text(file) + " is where the command can write",
		Fix: "choose a place outside of the workspace and of --rw"}
}

// Sandboxed reports whether the commands of the agent with a key are sandboxed,
// and if not, why. The answer for a key stays the same, and what a percentage
// covers a greater one covers too.
func (r Rollout) Sandboxed(key string) (bool, string) {
	switch {
	case slices.Contains(r.Force, key):
		return true, ""
	case !r.Enabled:
		return false, "rollout.enabled is false"
	}
	sum := sha256.Sum256([]byte(key))
	if at := int(binary.BigEndian.Uint64(sum[:]) % 100); at >= r.Percent {
		return false, "rollout.percent is " + strconv.Itoa(r.Percent) + ", and this agent is at " +
			strconv.Itoa(at) + " of 100"
	}
	return true, ""
}
