package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sbxrun/sbxrun/internal/rootfs"
)

// hostFiles tells lowering what this machine's files are.
type hostFiles struct{}

var _ rootfs.Host = hostFiles{}

func (hostFiles) Lookup(path string) (rootfs.Node, error) {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rootfs.Node{}, nil
	case err != nil:
		return rootfs.Node{}, err
	case fi.IsDir():
		return rootfs.Node{Kind: rootfs.NodeDir}, nil
	case fi.Mode()&fs.ModeSymlink == 0:
		return rootfs.Node{Kind: rootfs.NodeFile}, nil
	}
	n := rootfs.Node{Kind: rootfs.NodeSymlink}
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
