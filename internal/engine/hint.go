package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/profiles"
)

// CommandHint says what to do about a command that could not be started, "" if
// it is not known: the usual reason is that the sandbox does not show the
// place where the host has it. Hide is what the caller asked to hide. Other is
// asked about what the host has not; missing is what no directory of PATH has.
func CommandHint(err error, p *policy.Policy, d driver.Driver, hide []string,
	other func(name string, missing bool) string) string {
	var c *driver.CommandError
	if !errors.As(err, &c) {
		return ""
	}
	switch {
	case errors.Is(c.Err, syscall.E2BIG):
		return "one argument may have 128 KiB, all together about 2 MiB; pass the rest on stdin or in a file"
	case errors.Is(c.Err, syscall.ENOEXEC):
		return "it is no program for this machine; a script needs a first line such as #!/bin/sh"
	case c.Fix != "":
		return c.Fix
	}
	at := onHost(c.Command, p)
	if errors.Is(c.Err, syscall.EACCES) {
		if h := notExecutable(c.Command, at, p); h != "" {
			return h
		}
	}
	if at == "" {
		missing := errors.Is(c.Err, syscall.ENOENT) && !strings.Contains(c.Command, "/")
		if h := other(c.Command, missing); h != "" || !missing {
			return h
		}
		return "no directory of PATH has it; check the spelling, or name it by its path"
	}
	if !d.Sandboxed() {
		return ""
	}
	return invisible(at, p, hide)
}

// notExecutable says why the host itself would not execute a command.
func notExecutable(name, at string, p *policy.Policy) string {
	if strings.Contains(name, "/") {
		if fi, err := os.Stat(fromCwd(name, p)); err == nil && fi.IsDir() {
			return quote.Inside(name) + " is a directory; name a program"
		}
	}
	if fi, err := os.Stat(at); err == nil && fi.Mode()&0o111 == 0 {
		return "make it executable (chmod +x), or name the program that runs it"
	}
	return ""
}

// fromCwd is a path, of which the start may be a command's working directory.
func fromCwd(name string, p *policy.Policy) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(p.OCI.Process.Cwd, name)
}

// invisible says which part of a program of the host's is not shown, and how to show it.
func invisible(at string, p *policy.Policy, hide []string) string {
	real, _ := filepath.EvalSymlinks(at)
	if h := hides(hide, at, real); h != "" {
		return "--hide " + quote.Shell(h) + " hides it, whatever else shows it"
	}
	switch {
	case !Visible(p, at):
		return quote.Inside(at) + " exists on the host but is not visible inside" + propose(at, hide)
	case real != "" && !Visible(p, real):
		return quote.Inside(at) + " leads to " + quote.Inside(real) + ", which is not visible inside" + propose(real, hide)
	}
	if in := interpreter(real); in != "" && !Visible(p, in) {
		return quote.Inside(at) + " is run by " + quote.Inside(in) + ", which is not visible inside" + propose(in, hide)
	}
	return ""
}

// propose says how to show a program, if it is one of the host's that a hint may
// name: a script's first line and a link are the command's to write.
func propose(program string, hide []string) string {
	home := os.Getenv("HOME")
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return ""
	}
	fi, err := os.Stat(real)
	if err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 || !proposable(program, real, home, hide) {
		return ""
	}
	for _, place := range []string{toolRoot(program, home), program} {
		led, err := filepath.EvalSymlinks(place)
		if err == nil && proposable(place, led, home, hide) {
			return "; add --ro " + quote.Shell(place)
		}
	}
	return ""
}

// proposable reports whether a hint may name a path that leads to another.
func proposable(place, led, home string, hide []string) bool {
	return quote.Escape(place) == place && hides(hide, place, led) == "" && profiles.Proposable(place, home) &&
		profiles.Proposable(led, home)
}

// Foreign says that root cannot write to the working directory because it is another
// user's: inside, root has no rights beyond those of the mode bits. It returns "" if that
// is not so.
func Foreign(p *policy.Policy) (text, hint string) {
	dir := p.OCI.Process.Cwd
	var st unix.Stat_t
	if os.Geteuid() != 0 || Access(p, dir)&policy.Write == 0 || unix.Stat(dir, &st) != nil || st.Uid == 0 ||
		st.Mode&unix.S_IWOTH != 0 {
		return "", ""
	}
	id := strconv.FormatUint(uint64(st.Uid), 10)
	return quote.Inside(dir) + " belongs to user " + id +
			": root, without its privileges inside, cannot write there, and Git does not trust it",
		"run sbxrun as that user (setpriv --reuid " + id + " --regid " + strconv.FormatUint(uint64(st.Gid), 10) +
			" --clear-groups sbxrun …), or make it root's (chown -R root)"
}

// hides returns what was asked to be hidden and holds one of the files, "" if
// nothing does.
func hides(hide []string, files ...string) string {
	for _, h := range hide {
		dir := h
		if rest, ok := strings.CutPrefix(h, "~/"); ok {
			dir = filepath.Join(os.Getenv("HOME"), rest)
		}
		dir, err := filepath.Abs(dir)
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		for _, file := range files {
			if policy.Below(file, dir) {
				return h
			}
		}
	}
	return ""
}

// onHost returns where the host has the command, "" if it has none.
func onHost(name string, p *policy.Policy) string {
	runs := func(file string) bool {
		fi, err := os.Stat(file)
		return err == nil && fi.Mode().IsRegular()
	}
	if strings.Contains(name, "/") {
		if name = fromCwd(name, p); runs(name) {
			return name
		}
		return ""
	}
	// The caller's PATH: the one inside may be shorter.
	for dir := range strings.SplitSeq(os.Getenv("PATH"), ":") {
		if filepath.IsAbs(dir) && runs(filepath.Join(dir, name)) {
			return filepath.Join(dir, name)
		}
	}
	return ""
}

// toolRoot guesses the directory that a tool was installed in as a whole, so
// that its libraries are shown with it: below the home, the first directory
// (~/.pyenv), elsewhere what holds its bin.
func toolRoot(file, home string) string {
	if rest, ok := strings.CutPrefix(file, home+"/"); ok && home != "" && strings.HasPrefix(home, "/") {
		if first, _, deeper := strings.Cut(rest, "/"); deeper && first != ".local" {
			return home + "/" + first
		} else if !deeper {
			return file // not the whole home for one file
		}
		return filepath.Dir(file)
	}
	dir := filepath.Dir(file)
	switch filepath.Base(dir) {
	case "bin", "sbin", "shims":
		if up := filepath.Dir(dir); up != "/" {
			return up
		}
	}
	return dir
}

// interpreter returns what the first line of a script names.
func interpreter(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	var b [256]byte // BINPRM_BUF_SIZE, Linux 5.1
	n, _ := f.Read(b[:])
	line, ok := strings.CutPrefix(string(b[:n]), "#!")
	if !ok {
		return ""
	}
	line, _, _ = strings.Cut(line, "\n")
	name, _, _ := strings.Cut(strings.TrimLeft(line, " \t"), " ")
	return name
}
