package profiles_test

import (
	"fmt"
	"testing/fstest"

	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// A policy can be made for any host: what is known of it comes in as values.
func ExampleResolve() {
	host := &profiles.Facts{Home: "/home/ada", Cwd: "/home/ada/demo", UID: 1000, GID: 1000, CPUs: 4, FS: fstest.MapFS{
		"home/ada/demo/main.go": {}, "usr/bin/go": {Mode: 0o755},
	}}
	r, err := profiles.Resolve(&profiles.Request{Command: []string{"go", "build"}, AllowHosts: []string{"proxy.golang.org:443"}}, host)
	if err != nil {
		fmt.Println(err)
		return
	}
	p := r.Policy
	fmt.Println(p.Profile, r.Workspace.Path, p.Limits.WallTime)
	fmt.Println(p.Egress.Mode == policy.EgressProxy, p.Egress.Allow, p.Seccomp)
	// Output:
	// strict /home/ada/demo 5m0s
	// true [proxy.golang.org:443] strict
}

func ExampleParseSize() {
	for _, s := range []string{"512m", "2GiB", "lots"} {
		n, err := profiles.ParseSize(s)
		fmt.Println(n, err != nil)
	}
	// Output:
	// 536870912 false
	// 2147483648 false
	// 0 true
}
