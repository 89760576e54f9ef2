package seccomp

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	specs "github.com/opencontainers/runtime-spec/specs-go"
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
	if err := checkKeys(b); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	var p specs.LinuxSeccomp
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	if p.DefaultAction == "" {
		return nil, errors.New("seccomp profile: defaultAction is missing")
	}
	return &p, nil
}

// keysAt returns the keys that an object may have, by how many objects it is
// in: the profile, a rule, an argument.
func keysAt(depth int) []string {
	switch depth {
	case 1:
		return []string{"defaultAction", "defaultErrnoRet", "architectures", "flags", "listenerPath", "listenerMetadata", "syscalls"}
	case 2:
		return []string{"names", "action", "errnoRet", "args"}
	case 3:
		return []string{"index", "value", "valueTwo", "op"}
	}
	return nil
}

// checkKeys walks the tokens of a profile. encoding/json alone takes a key in
// any case and the last of two.
func checkKeys(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	type level struct {
		object bool
		key    bool // the next string is a key
		seen   map[string]bool
	}
	var stack []level
	objects := 0
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if n := len(stack); n > 0 && stack[n-1].object && stack[n-1].key {
			if key, ok := tok.(string); ok {
				if stack[n-1].seen[key] {
					return fmt.Errorf("key %q is there twice, at byte %d", key, d.InputOffset())
				}
				known := false
				for _, k := range keysAt(objects) {
					known = known || k == key
				}
				if !known {
					return fmt.Errorf("unknown key %q at byte %d", key, d.InputOffset())
				}
				stack[n-1].seen[key] = true
				stack[n-1].key = false
				continue
			}
		}
		switch tok {
		case json.Delim('{'):
			objects++
			stack = append(stack, level{object: true, key: true, seen: map[string]bool{}})
			continue
		case json.Delim('['):
			stack = append(stack, level{})
			continue
		case json.Delim('}'):
			objects--
			stack = stack[:len(stack)-1]
		case json.Delim(']'):
			stack = stack[:len(stack)-1]
		}
		if len(stack) == 0 {
			break
		}
		stack[len(stack)-1].key = true // a value has ended
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("data after the profile")
	}
	return nil
}
