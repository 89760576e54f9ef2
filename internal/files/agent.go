//go:build unix

package files

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Agent does the work of an agent, and does not return, if that is what this
// process was started for. Otherwise it returns at once.
func Agent(args []string) {
	if len(args) < 1 || args[0] != agentCommand {
		return
	}
	op, path := "agent", ""
	if len(args) >= 3 {
		op, path = args[1], args[2]
	}
	if err := serve(args[1:], os.Stdin, os.Stdout); err != nil {
		json.NewEncoder(os.Stderr).Encode(newError(op, path, err))
		os.Exit(1)
	}
	os.Exit(0)
}

var errUsage = errors.New("wrong arguments for the agent")

// serve does one operation.
func serve(args []string, in io.Reader, out io.Writer) error {
	if len(args) < 2 {
		return errUsage
	}
	op, path, rest := args[0], args[1], args[2:]
	w := bufio.NewWriterSize(out, 64<<10)
	defer w.Flush()
	switch op {
	case "stat":
		return stat(w, path)
	case "list":
		return list(w, path)
	case "read":
		offset, err := number(rest, 0, 10)
		if err != nil {
			return err
		}
		length, err := number(rest, 1, 10)
		if err != nil {
			return err
		}
		return read(w, path, offset, length)
	case "write":
		mode, err := number(rest, 0, 8)
		if err != nil {
			return err
		}
		return write(path, fs.FileMode(mode).Perm(), in)
	case "mkdir":
		return os.MkdirAll(path, 0o777)
	case "remove":
		if _, err := os.Lstat(path); err != nil {
			return err
		}
		return os.RemoveAll(path)
	case "get":
		return Pack(w, path)
	case "put":
		if err := os.MkdirAll(path, 0o777); err != nil {
			return err
		}
		return Extract(path, in)
	}
	return errUsage
}

// number is an argument that is one.
func number(args []string, i, base int) (int64, error) {
	if i >= len(args) {
		return 0, errUsage
	}
	return strconv.ParseInt(args[i], base, 64)
}

// stat prints what is at a path.
func stat(w io.Writer, path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(describe(path, fi))
}

func describe(path string, fi fs.FileInfo) Info {
	i := Info{Path: path, Type: typeOf(fi.Mode()), Size: fi.Size(), Mode: fi.Mode() &^ fs.ModeType, ModTime: fi.ModTime()}
	if i.Type == "symlink" {
		i.Target, _ = os.Readlink(path)
	}
	return i
}

// list prints one entry a line.
func list(w io.Writer, dir string) error {
	// A FIFO would wait for its writer.
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	e := json.NewEncoder(w)
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			p := filepath.Join(dir, n)
			fi, err := os.Lstat(p)
			if err != nil {
				continue // gone meanwhile
			}
			if err := e.Encode(describe(p, fi)); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// regular opens a regular file. Anything else is refused, and does not block: a
// FIFO that nobody writes to would for ever.
func regular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && fi.IsDir() {
		err = syscall.EISDIR
	} else if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// read copies part of a file; a negative length is all of it.
func read(w io.Writer, path string, offset, length int64) error {
	f, err := regular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	if length < 0 {
		_, err = io.Copy(w, f)
	} else {
		_, err = io.Copy(w, io.LimitReader(f, length))
	}
	return err
}
