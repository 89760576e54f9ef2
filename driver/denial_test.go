package driver

import "testing"

// TestGrantShell: a pattern is not for the shell that the hint is pasted into.
func TestGrantShell(t *testing.T) {
	for g, want := range map[Grant]string{
		"": "", GrantOf("unprotect", "lefthook.*"): "--unprotect 'lefthook.*'", GrantOf("rw", "/a b;c"): "--rw '/a b;c'",
		GrantOf("memory", "SIZE"): "--memory SIZE", GrantOf("allow-host", "a.example:443"): "--allow-host a.example:443",
	} {
		if got := g.Shell(); got != want {
			t.Errorf("%s: %s, want %s", g, got, want)
		}
	}
}
