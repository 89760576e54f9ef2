package cli

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unicode/utf8"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
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

// encodeResult returns the result as one line of JSON.
func encodeResult(res *driver.Result) ([]byte, error) {
	r := resultJSON{Result: res, Denials: res.Denials}
	if r.Denials == nil {
		r.Denials = []driver.Denial{} // an array for every reader, never null
	}
	r.Stdout, r.StdoutBase64 = text(res.Stdout, res.StdoutTruncated)
	r.Stderr, r.StderrBase64 = text(res.Stderr, res.StderrTruncated)
	return encode(r, false)
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

// encode prints v as JSON with a newline, < > & as they are: the readers are
// programs and people, not browsers.
func encode(v any, indent bool) ([]byte, error) {
	var b buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if indent {
		e.SetIndent("", "  ")
	}
	err := e.Encode(v)
	return quote.JSON(b), err
}

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }

// results are the places that the result object goes to.
type results struct {
	json bool
	fd   *os.File
	file *os.File // a pipe or device that is written in place
	dir  *os.Root // the directory that holds name
	name string
	room *os.File // without a name, in dir, with room for the result; nil where that cannot be had
}

// room is how much a result is given before anything runs, bytes, so that a disk that
// fills up does not take it. With more, of refusals above all, it may fail afterwards.
const room = 64 << 10

// openResult checks, before anything runs, that the result can be written.
func (o *options) openResult() (*results, error) {
	r := &results{json: o.json}
	if o.resultFD >= 0 {
		if _, err := fcntl(o.resultFD, syscall.F_GETFD); err != nil {
			return nil, engine.Usage("descriptor "+strconv.Itoa(o.resultFD)+" is not open",
				"for example: sbxrun --result-fd 3 -- CMD 3>result.json")
		}
		syscall.CloseOnExec(o.resultFD) // it is ours, not the command's
		r.fd = os.NewFile(uintptr(o.resultFD), "result")
		if err := reserve(r.fd); err != nil {
			return nil, engine.Usage("--result-fd "+strconv.Itoa(o.resultFD)+": "+err.Error(),
				"the result needs "+strconv.Itoa(room>>10)+" KiB")
		}
	}
	if o.resultFile == "" {
		return r, nil
	}
	if engine.IsDescriptor(o.resultFile) {
		var err error
		r.file, err = os.OpenFile(o.resultFile, os.O_WRONLY, 0)
		return r, err
	}
	file, err := engine.Named(o.resultFile)
	if err != nil {
		return nil, unnamed("--result-file "+o.resultFile, err)
	}
	// What is there is replaced and never opened. A link is no exception: it can
	// lead to a FIFO.
	fi, err := os.Lstat(file)
	switch {
	case err == nil && fi.IsDir():
		return nil, engine.Usage("--result-file "+o.resultFile+" is a directory", "name a file")
	case err == nil && !fi.Mode().IsRegular() && fi.Mode()&fs.ModeSymlink == 0:
		return nil, engine.Usage("--result-file "+o.resultFile+" is not a regular file",
			"open it in the shell: --result-fd 3 3>"+o.resultFile)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	dir, name := filepath.Split(file)
	if r.dir, err = engine.OpenRoot(dir); err != nil {
		return nil, o.cannotWrite(err)
	}
	r.name = name
	if r.room, err = unnamedIn(r.dir); err != nil {
		return nil, o.cannotWrite(err)
	}
	if r.room != nil {
		return r, nil
	}
	// Prove that a file can be made there, and leave none if the run is killed.
	tmp := r.temporary()
	proof, err := r.dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, o.cannotWrite(err)
	}
	if err = reserve(proof); err != nil {
		err = o.cannotWrite(err)
	}
	proof.Close()
	return r, errors.Join(err, r.dir.Remove(tmp))
}

// cannotWrite names the result file as it was given, not what was tried on it.
func (o *options) cannotWrite(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return engine.Usage("--result-file "+o.resultFile+": "+err.Error(),
		"name a file in a directory that exists and that you can write to")
}

func (r *results) temporary() string { return "." + r.name + "." + strconv.Itoa(os.Getpid()) + ".tmp" }

// write writes the result object to every place that was asked for, and that can be
// written.
func (r *results) write(res *driver.Result) error {
	if !r.json && r.fd == nil && r.file == nil && r.dir == nil {
		return nil
	}
	b, err := encodeResult(res)
	if err != nil {
		return err
	}
	var errs []error
	if r.json {
		errs = append(errs, write(os.Stdout, b))
	}
	for _, f := range []*os.File{r.fd, r.file} {
		if f != nil {
			errs = append(errs, write(f, b))
		}
	}
	if r.dir != nil {
		errs = append(errs, r.replace(b))
	}
	return errors.Join(errs...)
}

// replace writes the file of --result-file.
func (r *results) replace(b []byte) (err error) {
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
