package rlimit

import (
	"reflect"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestWithin(t *testing.T) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	list := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_NOFILE", Soft: 1 << 62, Hard: 1 << 62}, {Type: "RLIMIT_FSIZE", Soft: 7, Hard: 8}}
	want := []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Soft: 1, Hard: 1}, {Type: "RLIMIT_NOFILE", Soft: own.Max, Hard: own.Max}, {Type: "RLIMIT_FSIZE", Soft: 7, Hard: 8}}
	if got := Within(list); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if list[0].Hard != 0 || list[1].Hard != 1<<62 {
		t.Errorf("the policy's own changed: %+v", list)
	}
}
