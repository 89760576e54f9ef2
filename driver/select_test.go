package driver

import (
	"context"
	"errors"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
)

func TestSelect(t *testing.T) {
	missing := &UnavailableError{What: "docker driver", Cause: "no socket"}
	cannot := &UnsupportedError{Driver: "bwrap", Rules: []string{"limits.disk"}}
	docker := &fake{name: "docker", available: missing}
	bwrap := &fake{name: "bwrap", check: cannot}
	native := &fake{name: "native"}
	host := &fake{name: "host", bare: true}

	for _, tt := range []struct {
		name  string
		known []Driver
		names []string
		want  string
		err   error
		steps int
	}{
		{"auto", []Driver{docker, native, host}, []string{"auto"}, "native", nil, 2},
		{"auto never takes the host", []Driver{docker, host}, []string{"auto"}, "", missing, 1},
		{"auto, then the host by name", []Driver{docker, host}, []string{"auto", "host"}, "host", nil, 2},
		{"by name", []Driver{native, host}, []string{"host"}, "host", nil, 1},
		{"one name is not probed: Start finds out", []Driver{native, docker, host}, []string{"docker"}, "docker", nil, 1},
		{"no way out unless asked for", []Driver{docker, host}, []string{"docker", "docker"}, "", missing, 2},
		{"in the order given", []Driver{native, docker, host}, []string{"docker", "host", "native"}, "host", nil, 2},
		{"cannot enforce", []Driver{bwrap, native}, []string{"bwrap", "native"}, "native", nil, 2},
		{"the first error", []Driver{docker, bwrap}, []string{"bwrap", "docker"}, "", cannot, 2},
		{"nothing that isolates", []Driver{host}, []string{"auto"}, "", nil, 0},
		{"unknown, though the first would do", []Driver{native}, []string{"native", "dokcer"}, "", nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var steps []Step
			d, err := Select(context.Background(), tt.known, tt.names, &policy.Policy{}, func(s Step) { steps = append(steps, s) })
			switch {
			case tt.want != "" && (err != nil || d.Name() != tt.want):
				t.Errorf("got %v, %v; want %s", d, err, tt.want)
			case tt.want == "" && err == nil:
				t.Errorf("got %s, want an error", d.Name())
			case tt.err != nil && !errors.Is(err, tt.err):
				t.Errorf("got %v, want %v", err, tt.err)
			}
			if len(steps) != tt.steps {
				t.Errorf("steps %+v, want %d", steps, tt.steps)
			}
		})
	}

	_, err := Select(context.Background(), []Driver{host}, []string{"auto"}, &policy.Policy{}, nil)
	if CodeOf(err) != CodeUnavailable || HintOf(err) == "" {
		t.Errorf("no driver: %v, %q, %q", err, CodeOf(err), HintOf(err))
	}
	_, err = Select(context.Background(), []Driver{host}, []string{"x"}, &policy.Policy{}, nil)
	if CodeOf(err) != CodeInvalid {
		t.Errorf("unknown driver: %v", err)
	}
}

// TestSelectNotBuilt: a driver that other builds have is unavailable here; a
// word that is none is a mistake.
func TestSelectNotBuilt(t *testing.T) {
	known := []Driver{&fake{name: "native"}}
	_, err := Select(context.Background(), known, []string{"docker"}, testPolicy(policy.Limits{}), nil)
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || CodeOf(err) != CodeUnavailable {
		t.Errorf("docker: %v", err)
	}
	_, err = Select(context.Background(), known, []string{"dokcer"}, testPolicy(policy.Limits{}), nil)
	if CodeOf(err) != CodeInvalid {
		t.Errorf("dokcer: %v", err)
	}
}
