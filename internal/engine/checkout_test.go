package engine

import "testing"

// TestIsLoopback: a name that begins as an address does is not one.
func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1:80": true, "127.9.9.9:8080": true, "[::1]:80": true, "localhost:80": true,
		"127.0.0.1.example.org:80": false, "127.example.org:80": false, "localhost.example.org:80": false, "[::2]:80": false, "10.0.0.1:80": false, "": false,
	} {
		if isLoopback(host) != want {
			t.Errorf("%q: %t", host, !want)
		}
	}
}
