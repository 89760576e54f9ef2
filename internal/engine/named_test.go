package engine

import "testing"

func TestIsDescriptor(t *testing.T) {
	for name, want := range map[string]bool{"/dev/stdin": true, "/dev/fd/63": true, "/proc/self/fd/3": true, "/dev/null": true, "/dev/full": true, "/dev/fd": false, "/dev/./null": false,
		"/dev/shm/fifo": false, "/dev/fd/../shm/x": false, "/dev/fd/": false, "/proc/self/fd/3/x": false, "dev/stdin": false, "/proc/1/fd/3": false} {
		if IsDescriptor(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
