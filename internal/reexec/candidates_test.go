package reexec

import (
	"strings"
	"testing"
)

func TestCandidates(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  []string
		want string
	}{
		{"ls", []string{"PATH=/a:/b"}, "/a/ls /b/ls"},
		// Neither the working directory nor anything relative is searched.
		{"ls", []string{"PATH=:/a:.:rel:/b:"}, "/a/ls /b/ls"},
		{"ls", nil, "/usr/local/bin/ls /usr/bin/ls /bin/ls"},
		{"./ls", []string{"PATH=/a"}, "./ls"},
		{"d/ls", []string{"PATH=/a"}, "d/ls"},
		{"/x/ls", nil, "/x/ls"},
		{"ls", []string{"PATH="}, ""},
	} {
		if got := strings.Join(Candidates(tt.name, tt.env), " "); got != tt.want {
			t.Errorf("%s %v: %q, want %q", tt.name, tt.env, got, tt.want)
		}
	}
}
