package seccomp_test

import (
	"fmt"
	"slices"

	"github.com/sbxrun/sbxrun/seccomp"
)

func ExampleSpec() {
	s, err := seccomp.Spec("strict")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, call := range []string{"openat", "ptrace", "mount"} {
		for _, rule := range s.Syscalls {
			if slices.Contains(rule.Names, call) {
				fmt.Println(call, rule.Action)
			}
		}
	}
	// Output:
	// openat SCMP_ACT_ALLOW
	// ptrace SCMP_ACT_ERRNO
	// mount SCMP_ACT_ERRNO
}
