package seccomp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// compileTime bounds the compiler, which ends by itself a little earlier.
const compileTime = 15 * time.Second

// ErrNoCompiler is a missing sbxrun-seccomp.
var ErrNoCompiler = errors.New(
	"seccomp profile: the compiler sbxrun-seccomp is not installed beside sbxrun; build it with make build (it needs gcc and libseccomp-dev), or use a built-in filter")

// Custom returns the program for a profile of the user's own, for the machine's
// architecture: from the cache, or compiled by the program at the absolute path
// compiler, sbxrun-seccomp, and put into the cache.
//
// cacheDir is absolute and made with mode 0700 when it is missing. It and its
// entries must belong to the caller and be writable by nobody else: what they
// hold becomes the filter. An entry that is not like that, is damaged, or was
// made by another compiler is not used but replaced. A cache that cannot be
// written costs time only; without a compiler the error is [ErrNoCompiler].
func Custom(ctx context.Context, profile *specs.LinuxSeccomp, cacheDir, compiler string) (Program, error) {
	if profile == nil {
		return Program{}, errors.New("seccomp profile: none given")
	}
	flags, err := Flags(profile.Flags)
	if err != nil {
		return Program{}, err
	}
	if !filepath.IsAbs(compiler) || !filepath.IsAbs(cacheDir) {
		return Program{}, fmt.Errorf("seccomp profile: compiler %q and cache %q must be absolute paths", compiler, cacheDir)
	}
	// Fields in the order of the type and names as given: the same profile
	// with other white space is the same entry.
	canonical, err := json.Marshal(profile)
	if err != nil {
		return Program{}, fmt.Errorf("seccomp profile: %w", err)
	}
	st, err := os.Stat(compiler)
	if errors.Is(err, fs.ErrNotExist) {
		return Program{}, fmt.Errorf("%w: %s", ErrNoCompiler, compiler)
	}
	if err != nil {
		return Program{}, fmt.Errorf("seccomp profile: compiler: %w", err)
	}
	// The compiler's version is its file: asking it would cost a process.
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s %d %d\n", cacheMagic, runtime.GOARCH, compiler, st.Size(), st.ModTime().UnixNano())
	h.Write(canonical)
	key := [sha256.Size]byte(h.Sum(nil))
	path := filepath.Join(cacheDir, hex.EncodeToString(key[:])+".bpf")

	if filter, err := readEntry(path, key); err == nil {
		return Program{Filter: filter, Flags: flags}, nil
	}
	filter, err := runCompiler(ctx, compiler, canonical)
	if err != nil {
		return Program{}, err
	}
	// The next run compiles again if this fails.
	_ = writeEntry(cacheDir, path, key, filter)
	return Program{Filter: filter, Flags: flags}, nil
}

// Flags returns the SECCOMP_FILTER_FLAG_* for seccomp(2); see linux/seccomp.h.
func Flags(list []specs.LinuxSeccompFlag) (uint32, error) {
	var flags uint32
	for i, f := range list {
		switch f {
		case "SECCOMP_FILTER_FLAG_TSYNC":
			flags |= 1 << 0 // Linux 3.17
		case specs.LinuxSeccompFlagLog:
			flags |= 1 << 1 // Linux 4.14
		case specs.LinuxSeccompFlagSpecAllow:
			flags |= 1 << 2 // Linux 4.17
		case specs.LinuxSeccompFlagWaitKillableRecv:
			return 0, fmt.Errorf("seccomp profile: flags[%d]: %s needs a listener, which sbxrun has none of", i, f)
		default:
			return 0, fmt.Errorf("seccomp profile: flags[%d]: unknown flag %q", i, string(f))
		}
	}
	return flags, nil
}

// An entry is cacheMagic, the checksum of the key and the program, and the
// program.
const cacheMagic = "sbxrun seccomp 1"

const headerSize = len(cacheMagic) + sha256.Size

func checksum(key [sha256.Size]byte, filter string) [sha256.Size]byte {
	return sha256.Sum256(append(key[:], filter...))
}

// readEntry returns the program of an entry that can be trusted.
func readEntry(path string, key [sha256.Size]byte) (string, error) {
	if err := private(filepath.Dir(path), true); err != nil {
		return "", err
	}
	if err := private(path, false); err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(headerSize+MaxInstructions*InstructionSize+1)))
	if err != nil {
		return "", err
	}
	if len(b) < headerSize || string(b[:len(cacheMagic)]) != cacheMagic {
		return "", errors.New("not an entry")
	}
	filter := string(b[headerSize:])
	if err := checkFilter(filter); err != nil {
		return "", err
	}
	if sum := checksum(key, filter); !bytes.Equal(sum[:], b[len(cacheMagic):headerSize]) {
		return "", errors.New("wrong checksum")
	}
	return filter, nil
}

func writeEntry(dir, path string, key [sha256.Size]byte, filter string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := private(dir, true); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	sum := checksum(key, filter)
	_, err = f.WriteString(cacheMagic + string(sum[:]) + filter)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// checkFilter checks what the kernel would refuse for its size alone; it checks
// the rest itself.
func checkFilter(filter string) error {
	switch n := len(filter); {
	case n == 0 || n%InstructionSize != 0:
		return fmt.Errorf("program of %d bytes is no array of instructions", n)
	case n > MaxInstructions*InstructionSize:
		return fmt.Errorf("program has %d instructions, the kernel takes %d", n/InstructionSize, MaxInstructions)
	}
	return nil
}

// runCompiler has the compiler compile a profile. It gets no environment.
func runCompiler(ctx context.Context, compiler string, profile []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, compileTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, compiler)
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	cmd.Stdin = bytes.NewReader(profile)
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("seccomp profile: compiler: %w", ctx.Err())
		}
		line, _, _ := strings.Cut(strings.TrimSpace(msg.String()), "\n")
		if line = strings.TrimPrefix(line, "sbxrun-seccomp: error: "); line != "" {
			return "", fmt.Errorf("seccomp profile: %s", line)
		}
		return "", fmt.Errorf("seccomp profile: compiler %s: %w", compiler, err)
	}
	filter := out.String()
	if err := checkFilter(filter); err != nil {
		return "", fmt.Errorf("seccomp profile: compiler %s: %w", compiler, err)
	}
	return filter, nil
}
