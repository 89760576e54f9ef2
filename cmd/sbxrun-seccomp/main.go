//go:build linux && cgo

// Command sbxrun-seccomp compiles a seccomp profile.
//
// It reads a profile in the OCI runtime specification's JSON form from standard
// input and writes the array of struct sock_filter for seccomp(2) to standard
// output. sbxrun runs it when a profile of the user's own is not in the cache;
// it is a program of its own so that sbxrun needs no cgo and no libseccomp.
//
//	sbxrun-seccomp [-arch amd64|arm64] <profile.json >program.bpf
//
// A failure is one line on standard error and exit status 1; nothing is written
// to standard output then. It neither installs filters nor keeps a cache.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/sbxrun/sbxrun/seccomp"
	"github.com/sbxrun/sbxrun/seccomp/compile"
)

// limit ends a compilation that does not end: libseccomp 2.5.4 can loop for ever
// over rules that overlap in several arguments.
const limit = 10 * time.Second

func main() {
	time.AfterFunc(limit, func() {
		fmt.Fprintf(os.Stderr, "sbxrun-seccomp: error: no result after %v: write the rules so that they do not overlap\n",
			limit)
		os.Exit(1)
	})
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbxrun-seccomp: error:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	f := flag.NewFlagSet("sbxrun-seccomp", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is one line
	arch := f.String("arch", runtime.GOARCH, "architecture of the program, amd64 or arm64")
	version := f.Bool("version", false, "print libseccomp's version")
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("%w; usage: sbxrun-seccomp [-arch amd64|arm64] <profile.json >program.bpf", err)
	}
	if f.NArg() != 0 {
		return errors.New("takes no arguments: the profile comes from standard input")
	}
	if *version {
		_, err := fmt.Fprintln(out, "libseccomp", compile.Version())
		return err
	}
	b, err := io.ReadAll(io.LimitReader(in, seccomp.MaxProfile+1))
	if err != nil {
		return fmt.Errorf("read profile: %w", err)
	}
	p, err := seccomp.Parse(b)
	if err != nil {
		return err
	}
	prog, err := compile.Compile(p, *arch)
	if err != nil {
		return err
	}
	if _, err := out.Write(prog); err != nil {
		return fmt.Errorf("write program: %w", err)
	}
	return nil
}
