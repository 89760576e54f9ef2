//go:build !darwin

package seatbelt

import (
	"context"
	"errors"
	"testing"

	"github.com/sbxrun/sbxrun/driver"
)

func TestOnMac(t *testing.T) { t.Skip("needs macOS: sandbox-exec is Apple's") }

func TestElsewhere(t *testing.T) {
	var u *driver.UnavailableError
	if err := (Driver{}).Available(context.Background()); !errors.As(err, &u) || u.Fix == "" {
		t.Errorf("%v", err)
	}
	if p, err := (Driver{}).Start(context.Background(), agreed(t), driver.Stdio{}); !errors.As(err, &u) || p != nil {
		t.Errorf("started: %v", err)
	}
}
