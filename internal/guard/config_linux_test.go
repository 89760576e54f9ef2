package guard

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHashSize: a name that a command may choose in a configuration does not change how an
// index is read.
func TestHashSize(t *testing.T) {
	const hashes = "[core]\n\trepositoryformatversion = 1\n"
	for config, want := range map[string]int{
		hashes + "[extensions]\n\tobjectFormat = sha256\n":       32,
		hashes + "[extensions]\n  objectformat=\"sha256\" ; x\n": 32,
		hashes + "[Extensions] objectformat = sha256\n":          32,
		hashes + "[extensions]\n\tcompatObjectFormat = sha256\n": 20,
		"": 20,
		"[branch \"objectformat=sha256\"]\n\tremote = .\n":               20,
		"[branch \"] objectformat = sha256\"]\n\tremote = .\n":           20,
		"[branch \"[extensions] objectformat = sha256\"]\n\tmerge = x\n": 20,
		"[remote \"x\"]\n\turl = /objectformat=sha256\n":                 20,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := hashSize(fd); got != want {
			t.Errorf("%q: %d", config, got)
		}
		unix.Close(fd)
	}
}
