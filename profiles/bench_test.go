package profiles

import (
	"os"
	"testing"
)

// BenchmarkResolveStrict is what every run pays. Bar: 100 µs.
func BenchmarkResolveStrict(b *testing.B) { benchmarkResolve(b, Request{}) }

// BenchmarkResolveDevelopment looks up every secret: all of the host is shown.
func BenchmarkResolveDevelopment(b *testing.B) {
	benchmarkResolve(b, Request{Profile: "development"})
}

func benchmarkResolve(b *testing.B, req Request) {
	dir, err := os.MkdirTemp("/var/tmp", "sbxrun-bench-")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	facts := &Facts{Home: "/root", Cwd: dir, Environ: os.Environ(), CPUs: 2, ConfigDirs: []string{"/root/.config/sbxrun", "/etc/sbxrun"}, FS: os.DirFS("/")}
	req.Command = []string{"/bin/true"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Resolve(&req, facts); err != nil {
			b.Fatal(err)
		}
	}
}
