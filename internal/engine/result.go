package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/quote"
)

// resultJSON is the result object: a Result whose streams may hold any bytes.
// JSON strings hold text, so bytes that are not UTF-8 are replaced by U+FFFD in
// stdout and stderr, and then stdout_base64 and stderr_base64 hold the exact
// bytes.
type resultJSON struct {
	*driver.Result
	Stdout       string          `json:"stdout"`
	Stderr       string          `json:"stderr"`
	StdoutBase64 string          `json:"stdout_base64,omitempty"`
	StderrBase64 string          `json:"stderr_base64,omitempty"`
	Denials      []driver.Denial `json:"denials"`
}

// EncodeResult returns the result as one line of JSON.
func EncodeResult(res *driver.Result) ([]byte, error) {
	r := resultJSON{Result: res, Denials: res.Denials}
	if r.Denials == nil {
		r.Denials = []driver.Denial{} // an array for every reader, never null
	}
	r.Stdout, r.StdoutBase64 = text(res.Stdout, res.StdoutTruncated)
	r.Stderr, r.StderrBase64 = text(res.Stderr, res.StderrTruncated)
	return EncodeJSON(r, false)
}

// text returns a stream as text and, if that loses something, its bytes. A
// character that the output limit cut in two is dropped: it is part of what is
// missing.
func text(s string, truncated bool) (string, string) {
	if truncated {
		for i := 1; i < utf8.UTFMax && i <= len(s); i++ {
			if b := s[len(s)-i]; utf8.RuneStart(b) {
				if b >= utf8.RuneSelf && !utf8.FullRuneInString(s[len(s)-i:]) {
					s = s[:len(s)-i]
				}
				break
			}
		}
	}
	if utf8.ValidString(s) {
		return s, ""
	}
	return s, base64.StdEncoding.EncodeToString([]byte(s))
}

// EncodeJSON prints v as JSON with a newline, < > & as they are: the readers are
// programs and people, not browsers.
func EncodeJSON(v any, indent bool) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if indent {
		e.SetIndent("", "  ")
	}
	err := e.Encode(v)
	return quote.JSON(b.Bytes()), err
}

// Results are the places that the result object goes to.
type Results struct {
	JSON bool // to stdout

	fd   *os.File
	file *os.File // a pipe or device that is written in place
	dir  *os.Root // the directory that holds name
	name string
	room *os.File // without a name, in dir, with room for the result; nil where that cannot be had
}

// room is how much a result is given before anything runs, bytes, so that a disk that
// fills up does not take it. With more, of refusals above all, it may fail afterwards.
const room = 64 << 10

// OpenResults checks, before anything runs, that the result can be written: to stdout,
// to a descriptor unless that is negative, to a file unless that is "".
func OpenResults(stdout bool, fd int, file string) (*Results, error) {
	r := &Results{JSON: stdout}
	if fd >= 0 {
		if _, err := unix.FcntlInt(uintptr(fd), syscall.F_GETFD, 0); err != nil {
			return nil, Usage("descriptor "+strconv.Itoa(fd)+" is not open",
				"for example: sbxrun --result-fd 3 -- CMD 3>result.json")
		}
		syscall.CloseOnExec(fd) // it is ours, not the command's
		r.fd = os.NewFile(uintptr(fd), "result")
		if err := reserve(r.fd); err != nil {
			return nil, Usage("--result-fd "+strconv.Itoa(fd)+": "+err.Error(),
				"the result needs "+strconv.Itoa(room>>10)+" KiB")
		}
	}
	switch {
	case file == "":
		return r, nil
	case IsDescriptor(file):
		var err error
		r.file, err = os.OpenFile(file, os.O_WRONLY, 0)
		return r, err
	}
	return r, r.open(file)
}

// open checks that the file of --result-file can be made.
func (r *Results) open(given string) error {
	file, err := Named(given)
	if err != nil {
		return Unnamed("--result-file "+given, err)
	}
	// What is there is replaced and never opened. A link is no exception: it can
	// lead to a FIFO.
	fi, err := os.Lstat(file)
	switch {
	case err == nil && fi.IsDir():
		return Usage("--result-file "+given+" is a directory", "name a file")
	case err == nil && !fi.Mode().IsRegular() && fi.Mode()&fs.ModeSymlink == 0:
		return Usage("--result-file "+given+" is not a regular file",
			"open it in the shell: --result-fd 3 3>"+given)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	dir, name := filepath.Split(file)
	r.name = name
	if r.dir, err = OpenRoot(dir); err == nil {
		r.room, err = unnamedIn(r.dir)
	}
	if err != nil || r.room != nil {
		return cannotWrite(given, err)
	}
	// Prove that a file can be made there, and leave none if the run is killed.
	tmp := r.temporary()
	proof, err := r.dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return cannotWrite(given, err)
	}
	err = cannotWrite(given, reserve(proof))
	proof.Close()
	return errors.Join(err, r.dir.Remove(tmp))
}

// cannotWrite names the result file as it was given, not what was tried on it.
func cannotWrite(given string, err error) error {
	if err == nil {
		return nil
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return Usage("--result-file "+given+": "+err.Error(),
		"name a file in a directory that exists and that you can write to")
}

func (r *Results) temporary() string { return "." + r.name + "." + strconv.Itoa(os.Getpid()) + ".tmp" }

// Write writes the result object to every place that was asked for, and that can be
// written.
func (r *Results) Write(res *driver.Result) error {
	if !r.JSON && r.fd == nil && r.file == nil && r.dir == nil {
		return nil
	}
	b, err := EncodeResult(res)
	if err != nil {
		return err
	}
	var errs []error
	if r.JSON {
		errs = append(errs, Write(os.Stdout, b))
	}
	for _, f := range []*os.File{r.fd, r.file} {
		if f != nil {
			errs = append(errs, Write(f, b))
		}
	}
	if r.dir != nil {
		errs = append(errs, r.replace(b))
	}
	return errors.Join(errs...)
}

// replace writes the file of --result-file.
func (r *Results) replace(b []byte) (err error) {
	// A new file takes the name: whatever the command may have put there, a
	// forged result or a symlink to a file of the caller's, is replaced, not
	// written through.
	tmp := r.temporary()
	f := r.room
	if f == nil {
		if f, err = r.dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err != nil {
			return err
		}
	}
	_, err = f.Write(b)
	if err == nil && r.room != nil {
		err = giveName(f, int64(len(b)), r.dir, tmp)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = r.dir.Rename(tmp, r.name)
	}
	if err != nil {
		r.dir.Remove(tmp)
	}
	return err
}

// Write writes what sbxrun itself says. To descriptors 1 and 2 it writes by another
// number: where nobody reads them any more, Go ends the program by SIGPIPE, as if that
// had ended the command.
func Write(f *os.File, b []byte) error {
	if fd, err := Dup(f); err == nil {
		f = os.NewFile(uintptr(fd), f.Name())
		defer f.Close()
	}
	_, err := f.Write(b)
	return err
}

// Dup duplicates a descriptor. os.File.Fd would make the file blocking.
func Dup(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(from uintptr) {
		fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0)
	})
	if cerr != nil {
		return 0, cerr
	}
	return fd, err
}
