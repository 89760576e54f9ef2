package seccomp

import (
	"embed"
	"errors"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxrun/sbxrun/internal/strictjson"
)

//go:embed profiles/*.json
var profiles embed.FS

// Spec returns the profile that a built-in filter was compiled from. A run has
// no use for it; sbxrun spec prints it.
func Spec(name string) (*specs.LinuxSeccomp, error) {
	for _, n := range names {
		if n == name {
			b, err := profiles.ReadFile("profiles/" + name + ".json")
			if err != nil {
				return nil, err
			}
			return Parse(b)
		}
	}
	return nil, unknown(name)
}

// MaxProfile is the largest profile that [Parse] reads, bytes.
const MaxProfile = 1 << 20

// Parse reads a profile in the OCI runtime specification's JSON form, the value
// of linux.seccomp. A key that the specification does not have, in another
// spelling or twice, is an error: a rule that silently does not apply could be
// the one that denies.
func Parse(b []byte) (*specs.LinuxSeccomp, error) {
	if len(b) > MaxProfile {
		return nil, fmt.Errorf("seccomp profile: larger than %d bytes", MaxProfile)
	}
	var p specs.LinuxSeccomp
	if err := strictjson.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	if p.DefaultAction == "" {
		return nil, errors.New("seccomp profile: defaultAction is missing")
	}
	return &p, nil
}
