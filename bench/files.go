package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sbxrun/sbxrun/native"
)

// hostFiles tells the native driver's lowering what this machine's files are.
type hostFiles struct{}

var _ native.Host = hostFiles{}

func (hostFiles) Lookup(path string) (native.Node, error) {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return native.Node{}, nil
	case err != nil:
		return native.Node{}, err
	case fi.IsDir():
		return native.Node{Kind: native.NodeDir}, nil
	case fi.Mode()&fs.ModeSymlink == 0:
		return native.Node{Kind: native.NodeFile}, nil
	}
	n := native.Node{Kind: native.NodeSymlink}
	if n.Link, err = os.Readlink(path); err != nil {
		return n, err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		n.Real = real
	}
	return n, nil
}

func (hostFiles) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}
