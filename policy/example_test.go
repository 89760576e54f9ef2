package policy_test

import (
	"fmt"

	"github.com/sbxrun/sbxrun/policy"
)

func ExampleHostName() {
	for _, s := range []string{"Example.COM.", "bücher.example", "exa mple.com"} {
		name, err := policy.HostName(s)
		fmt.Printf("%q %v\n", name, err != nil)
	}
	// Output:
	// "example.com" false
	// "xn--bcher-kva.example" false
	// "" true
}

func ExampleParseEgressRule() {
	for _, s := range []string{"https://api.example.com", "*.example.org:22", "10.0.0.0/8:5432-5433"} {
		r, err := policy.ParseEgressRule(s)
		fmt.Println(r, err)
	}
	// Output:
	// https://api.example.com <nil>
	// *.example.org:22 <nil>
	// 10.0.0.0/8:5432-5433 <nil>
}

func ExampleLayers() {
	l := policy.LayerSeccomp | policy.LayerLandlock
	fmt.Println(l, l.Has(policy.LayerSeccomp), policy.LayerCgroup.Names())
	// Output: seccomp,landlock true [cgroup.memory cgroup.cpu cgroup.pids]
}
