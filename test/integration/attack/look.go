//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// look does with paths and system calls what a command would, one on each line of a file:
// a path, or "call", a name, a number and its arguments. Of a path it says which file
// it is, what a small one holds, and whether it can be read and written: a new file
// is made and removed where there is none, or where there is a directory.
func look(r *report) {
	list, err := os.ReadFile(r.arg("list"))
	if err != nil {
		r.err("list", err)
		return
	}
	for line := range strings.Lines(string(list)) {
		line = strings.TrimSuffix(line, "\n")
		if words := strings.Fields(line); len(words) > 2 && words[0] == "call" {
			var a [7]uintptr
			for i, w := range words[2:] {
				fmt.Sscan(w, &a[i])
			}
			r.forked(line, a[0], a[1:]...)
			continue
		}
		var st unix.Stat_t
		err := unix.Stat(line, &st)
		if err != nil {
			r.err("stat "+line, err)
		} else {
			r.got("stat "+line, fmt.Sprintf("%d:%d", st.Dev, st.Ino))
		}
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size < 100 {
			b, _ := os.ReadFile(line)
			r.got("text "+line, string(b))
		}
		r.err("read "+line, openFor(line, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY))
		file, made := line, unix.O_CREAT|unix.O_EXCL
		switch {
		case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
			file = filepath.Join(line, ".sbxrun-look")
		case err == nil:
			made = 0
		}
		err = openFor(file, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|made)
		r.err("write "+line, err)
		if err == nil && made != 0 {
			os.Remove(file)
		}
	}
}
