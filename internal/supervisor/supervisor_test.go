package supervisor

import (
	"strings"
	"testing"
)

func TestCandidates(t *testing.T) {
	env := []string{"PATH=/a::rel:.:/b"}
	for name, want := range map[string]string{"ls": "/a/ls /b/ls", "./x": "./x", "d/x": "d/x", "/x": "/x"} {
		if got := strings.Join(Candidates(name, env), " "); got != want {
			t.Errorf("%s: %s; want %s", name, got, want)
		}
	}
	if got := strings.Join(Candidates("ls", nil), " "); got != "/usr/local/bin/ls /usr/bin/ls /bin/ls" {
		t.Error(got)
	}
}
