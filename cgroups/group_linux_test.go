package cgroups

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"testing"
)

func BenchmarkGroup(b *testing.B) {
	mem, quota, pids := int64(2<<30), int64(100000), int64(256)
	r := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &mem}, CPU: &specs.LinuxCPU{Quota: &quota}, Pids: &specs.LinuxPids{Limit: &pids}}
	for b.Loop() {
		l, err := Read()
		if err != nil {
			b.Fatal(err)
		}
		g, err := Prepare(l, r)
		if err != nil {
			b.Fatal(err)
		}
		if err := g.Create(); err != nil {
			b.Fatal(err)
		}
		if _, err := g.Stats(); err != nil {
			b.Fatal(err)
		}
		if err := g.Remove(); err != nil {
			b.Fatal(err)
		}
		g.Close()
	}
}
