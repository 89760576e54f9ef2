package engine

import (
	"os"
	"strings"
	"testing"
)

func TestIsDescriptor(t *testing.T) {
	for name, want := range map[string]bool{"/dev/stdin": true, "/dev/fd/63": true, "/proc/self/fd/3": true, "/dev/null": true, "/dev/full": true, "/dev/fd": false, "/dev/./null": false,
		"/dev/shm/fifo": false, "/dev/fd/../shm/x": false, "/dev/fd/": false, "/proc/self/fd/3/x": false, "dev/stdin": false, "/proc/1/fd/3": false} {
		if IsDescriptor(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestEnvFile(t *testing.T) {
	name := t.TempDir() + "/env"
	if err := os.WriteFile(name, []byte("# comment\n\nA=1\r\nC=x=y # kept\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := EnvFile(name)
	if want := "A=1|C=x=y # kept"; err != nil || strings.Join(got, "|") != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}
