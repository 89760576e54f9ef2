package seccomp

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// fakeCompiler writes a script that says how often it ran and prints body.
func fakeCompiler(t *testing.T, body string) (path string, runs func() int) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "sbxrun-seccomp")
	count := filepath.Join(dir, "count")
	script := "#!/bin/sh\n/bin/cat >/dev/null\necho x >>'" + count + "'\n" + body + "\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, func() int {
		b, _ := os.ReadFile(count)
		return strings.Count(string(b), "x")
	}
}

func TestCustom(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	ctx := context.Background()
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog}}
	compiler, runs := fakeCompiler(t, `printf 'ABCDEFGH'`)
	cache := filepath.Join(t.TempDir(), "a", "seccomp")
	get := func(wantRuns int) {
		t.Helper()
		got, err := Custom(ctx, p, cache, compiler)
		if err != nil || got.Filter != "ABCDEFGH" || got.Flags != 2 {
			t.Fatalf("Custom = %q, %#x, %v", got.Filter, got.Flags, err)
		}
		if n := runs(); n != wantRuns {
			t.Fatalf("the compiler ran %d times, want %d", n, wantRuns)
		}
	}
	entry := func() string {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(cache, "*"))
		if err != nil || len(list) != 1 {
			t.Fatalf("entries %v, %v", list, err)
		}
		return list[0]
	}
	get(1)
	get(1) // cached
	if st, err := os.Stat(cache); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("cache: %v, %v", st.Mode(), err)
	}
	good, err := os.ReadFile(entry())
	if err != nil {
		t.Fatal(err)
	}
	n := 1
	for name, damage := range map[string]func() error{
		"truncated": func() error { return os.Truncate(entry(), int64(len(good)-1)) },
		"empty":     func() error { return os.Truncate(entry(), 0) },
		"flipped": func() error {
			b := append([]byte(nil), good...)
			b[len(b)-1] ^= 1
			return os.WriteFile(entry(), b, 0o600)
		},
		"longer": func() error { return os.WriteFile(entry(), append(good[:len(good):len(good)], good...), 0o600) },
		"too long": func() error {
			return os.WriteFile(entry(), append(good[:headerSize:headerSize], make([]byte, 5000*8)...), 0o600)
		},
		"writable by others": func() error { return os.Chmod(entry(), 0o666) },
		"directory writable": func() error { return os.Chmod(cache, 0o777) },
		"symbolic link": func() error {
			e := entry()
			other := filepath.Join(t.TempDir(), "x")
			return errors.Join(os.Rename(e, other), os.Symlink(other, e))
		},
		"foreign owner": func() error {
			if os.Geteuid() != 0 {
				return os.Remove(entry()) // only root can give files away
			}
			return os.Chown(entry(), 12345, 12345)
		},
	} {
		if err := damage(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n++
		t.Log(name)
		get(n)
		if err := os.Chmod(cache, 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "directory writable" {
			continue // it was not written either
		}
		get(n)
	}

	// Another profile and another compiler are other entries.
	p.DefaultAction = specs.ActLog
	n++
	get(n)
	if err := os.WriteFile(compiler, []byte("#!/bin/sh\n/bin/cat >/dev/null; printf 'abcdefgh'"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := Custom(ctx, p, cache, compiler); err != nil || got.Filter != "abcdefgh" {
		t.Errorf("after an upgrade: %q, %v", got.Filter, err)
	}
}

func TestCustomErrors(t *testing.T) {
	ctx := context.Background()
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	cache := filepath.Join(t.TempDir(), "c")
	if _, err := Custom(ctx, p, cache, filepath.Join(cache, "none")); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("no compiler: %v", err)
	}
	if _, err := Custom(ctx, p, cache, "sbxrun-seccomp"); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("relative compiler: %v", err)
	}
	for body, want := range map[string]string{
		`echo 'sbxrun-seccomp: error: syscalls[1]: unknown' >&2; exit 1`: "seccomp profile: syscalls[1]: unknown",
		`exit 3`:                  "exit status 3",
		`printf 'ABC'`:            "3 bytes",
		`:`:                       "0 bytes",
		`head -c 40000 /dev/zero`: "5000 instructions",
		`kill -9 $$`:              "killed",
	} {
		compiler, _ := fakeCompiler(t, body)
		got, err := Custom(ctx, p, cache, compiler)
		if err == nil || got.Filter != "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", body, got.Filter, err, want)
		}
	}
	if list, _ := filepath.Glob(filepath.Join(cache, "*")); len(list) != 0 {
		t.Errorf("failures left %v", list)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	compiler, _ := fakeCompiler(t, `printf 'ABCDEFGH'`)
	if _, err := Custom(cancelled, p, cache, compiler); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	p.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagWaitKillableRecv}
	if _, err := Custom(ctx, p, cache, compiler); err == nil || !strings.Contains(err.Error(), "flags[0]") {
		t.Errorf("listener flag: %v", err)
	}
}
