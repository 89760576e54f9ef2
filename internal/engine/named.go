package engine

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/profiles"
)

// Files that flags name, and those that agents have in a directory for temporary
// files, can be where commands of earlier runs wrote. No link that one of them can
// have made is followed, nothing but a regular file is opened, and nothing is waited
// for.

// IsDescriptor reports whether a path is a descriptor of this process, as shells have
// it for process substitution, or a device.
func IsDescriptor(name string) bool {
	for _, dir := range []string{"/dev/fd/", "/proc/self/fd/"} {
		if n, ok := strings.CutPrefix(name, dir); ok {
			_, err := strconv.ParseUint(n, 10, 31)
			return err == nil
		}
	}
	// No command writes in /dev itself.
	return name == filepath.Clean(name) && filepath.Dir(name) == "/dev" && name != "/dev/fd"
}

// errIrregular says that a file is not what a name has to stand for.
var errIrregular = errors.New("it is not a regular file")

// OpenRegular opens a regular file by a path without symbolic links.
func OpenRegular(name string, flags int, mode uint32) (*os.File, error) {
	fd, err := openUnlinked(name, flags|syscall.O_NONBLOCK|syscall.O_CLOEXEC|syscall.O_NOCTTY, mode)
	if err == syscall.ENXIO { // a FIFO that nobody reads
		err = errIrregular
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: name, Err: errIrregular}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Named is the path of a file that a flag names, without symbolic links; see
// [profiles.Facts.Named].
func Named(name string) (string, error) {
	f, err := GatherFacts()
	if err != nil {
		return "", err
	}
	return f.Named(name, true)
}

// CheckTarget refuses a file to write that a link leads to which a command can have made.
// It need not be there.
func (f *Facts) CheckTarget(flag, file string) error {
	_, err := os.Stat(file)
	if err == nil {
		_, err = f.Named(file, false)
	} else {
		_, _, err = f.Into(filepath.Dir(file))
	}
	if err != nil {
		return Unnamed(flag, err)
	}
	return nil
}

// ReadNamed reads a file that a flag names, of no more than limit bytes.
func ReadNamed(name string, limit int64) ([]byte, error) {
	open := os.Open
	if !IsDescriptor(name) {
		facts, err := GatherFacts()
		if err != nil {
			return nil, err
		}
		open = func(name string) (*os.File, error) {
			real, err := facts.Named(name, false)
			if err != nil {
				return nil, err
			}
			return OpenRegular(real, os.O_RDONLY, 0)
		}
	}
	from, err := open(name)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	b, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = &fs.PathError{Op: "read", Path: name, Err: syscall.EFBIG}
	}
	return b, err
}

// maxEnv bounds a file of variables: a typing error can name a large one.
const maxEnv = 16 << 20

// EnvFile reads lines KEY=VALUE. Empty lines and lines that begin with # are
// passed over; nothing is unquoted, as in docker run --env-file. A line KEY, which is
// the caller's value there, counts from a descriptor and from the configuration only:
// anywhere else a command of an earlier run can have written it, to be given a secret.
func EnvFile(name string) ([]string, error) {
	kept := IsDescriptor(name)
	if facts, err := GatherFacts(); err == nil && !kept {
		if real, err := facts.Named(name, false); err == nil {
			kept = slices.ContainsFunc(facts.ConfigDirs, func(d string) bool { return strings.HasPrefix(real, d+"/") })
		}
	}
	data, err := ReadNamed(name, maxEnv)
	if err != nil {
		return nil, Unnamed(name, err)
	}
	var env []string
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := profiles.CheckVariable(line); err != nil {
			return nil, Usage(name+":"+strconv.Itoa(n)+": "+err.Error(), driver.HintOf(err))
		}
		if !strings.Contains(line, "=") && !kept {
			return nil, Usage(name+":"+strconv.Itoa(n)+": "+quote.Text(line)+
				" would pass the caller's value, and a command of an earlier run can have written this file",
				"--env "+quote.Text(line)+" passes it; a file may say so in the directory of sbxrun's configuration")
		}
		env = append(env, line)
	}
	return env, nil
}

// Unnamed words an error about a file that a flag names, which stands before it.
func Unnamed(file string, err error) error {
	fix := driver.HintOf(err)
	if fix == "" {
		fix = "name a regular file, or a descriptor: /dev/stdin, /dev/fd/3"
	}
	return Usage(file+": "+err.Error(), fix)
}
