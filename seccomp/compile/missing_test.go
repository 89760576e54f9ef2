package compile

import (
	"os/exec"
	"runtime"
	"testing"
)

// TestLibseccomp fails where the equality test of the built-in programs would
// otherwise not be there: without cgo its file is not compiled.
func TestLibseccomp(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("libseccomp is a library for Linux")
	}
	if !cgo {
		t.Error("built without cgo: set CGO_ENABLED=1 and install gcc, so that the built-in programs can be compared with a fresh compile")
	}
	if err := exec.Command("pkg-config", "--atleast-version=2.5", "libseccomp").Run(); err != nil {
		t.Errorf("libseccomp 2.5 or later is missing (%v): apt-get install pkg-config libseccomp-dev", err)
	}
}
