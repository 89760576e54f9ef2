//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// points takes mount points, and what leads to them, out of their places: "points"
// are files and directories on which something is mounted, "above" directories that
// hold them, all relative to "in".
func points(r *report) {
	if err := os.Chdir(r.arg("in")); err != nil {
		r.err("chdir", err)
		return
	}
	const cwd = unix.AT_FDCWD
	os.Mkdir("own.d", 0o755)
	os.WriteFile("own", nil, 0o644)
	defer os.RemoveAll("own.d")
	defer os.Remove("own")
	away := func(what, from, to string) {
		err := unix.Renameat2(cwd, from, cwd, to, unix.RENAME_NOREPLACE)
		if err == nil {
			unix.Rename(to, from)
		}
		r.err(what+" "+from, err)
	}
	exchange := func(what, p, own, back string) {
		err := unix.Renameat2(cwd, p, cwd, own, unix.RENAME_EXCHANGE)
		if err == nil {
			unix.Renameat2(cwd, own, cwd, back, unix.RENAME_EXCHANGE)
		}
		r.err(what+" "+back, err)
	}
	for p := range strings.SplitSeq(r.arg("points"), ",") {
		fi, err := os.Lstat(p)
		if err != nil {
			r.err("stat "+p, err)
			continue
		}
		own := "own"
		if fi.IsDir() {
			own = "own.d"
		}
		away("rename", p, "away")
		away("rename into another directory", p, "own.d/away")
		exchange("exchange", p, own, p)
		exchange("exchange, from the other side,", own, p, p)
		r.err("rename over "+p, func() error {
			saved := filepath.Join("own.d", "saved")
			err := unix.Rename(own, p)
			if err == nil {
				os.Mkdir("own.d", 0o755)
				if fi.IsDir() {
					os.WriteFile(filepath.Join(p, "file"), nil, 0o644)
				} else {
					os.WriteFile("own", nil, 0o644)
				}
			}
			os.Remove(saved)
			return err
		}())
		r.err("remove "+p, func() error {
			if fi.IsDir() {
				os.Remove(filepath.Join(p, "file"))
				return unix.Rmdir(p)
			}
			return unix.Unlink(p)
		}())
		if _, err := os.Lstat(p); err != nil {
			if fi.IsDir() {
				os.Mkdir(p, 0o755)
			} else {
				os.WriteFile(p, nil, 0o644)
			}
		}
		// What the kernel finds before it looks for mounts.
		r.err("make "+p, unix.Mkdir(p, 0o755))
		r.err("rename "+p+" to itself", unix.Rename(p, p))
		if fi.IsDir() {
			r.err("unlink "+p, unix.Unlink(p))
			r.err("rename a file over "+p, unix.Rename("own", p))
		} else {
			r.err("rmdir "+p, unix.Rmdir(p))
			r.err("rename a directory over "+p, unix.Rename("own.d", p))
		}
	}
	for p := range strings.SplitSeq(r.arg("above"), ",") {
		away("rename the directory", p, "away")
		exchange("exchange the directory", p, "own.d", p)
	}
	r.err("neighbour: rename", func() error { defer os.Rename("own2", "own"); return unix.Rename("own", "own2") }())
	r.err("neighbour: rename beside a mount point", func() error {
		p := filepath.Join(filepath.Dir(strings.Split(r.arg("above"), ",")[0]), "beside")
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
		defer os.Remove(p + "2")
		return unix.Rename(p, p+"2")
	}())
}

// parents moves what leads to the workspace, where that is the sandbox's own, and
// makes what is protected under the new name.
func parents(r *report) {
	ws, base := r.arg("in"), r.arg("base")
	rel, _ := filepath.Rel(base, ws)
	top, below, _ := strings.Cut(rel, "/")
	const cwd = unix.AT_FDCWD
	moved := filepath.Join(base, "moved")
	plant := func(in string) {
		r.err("create .mcp.json below the new name", func() error {
			defer os.Remove(in + "/.mcp.json")
			return openClose(cwd, in+"/.mcp.json", unix.O_WRONLY|unix.O_CREAT)
		}())
		r.err("create a hook below the new name", func() error {
			defer os.Remove(in + "/.git/hooks/post-checkout")
			return openClose(cwd, in+"/.git/hooks/post-checkout", unix.O_WRONLY|unix.O_CREAT)
		}())
	}
	err := unix.Rename(filepath.Join(base, top), moved)
	r.err("rename what is below "+base, err)
	plant(filepath.Join(moved, below))
	if err == nil {
		unix.Rename(moved, filepath.Join(base, top))
	}
	os.Mkdir(moved, 0o755)
	err = unix.Renameat2(cwd, filepath.Join(base, top), cwd, moved, unix.RENAME_EXCHANGE)
	r.err("exchange what is below "+base, err)
	if err == nil {
		plant(filepath.Join(moved, below))
		unix.Renameat2(cwd, filepath.Join(base, top), cwd, moved, unix.RENAME_EXCHANGE)
	} else {
		plant(filepath.Join(moved, below))
	}
	os.Remove(moved)
	r.err("neighbour: rename in "+base, func() error {
		if err := os.Mkdir(moved, 0o755); err != nil {
			return err
		}
		defer os.Remove(moved + "2")
		return unix.Rename(moved, moved+"2")
	}())
	r.err("neighbour: create in the workspace", func() error {
		defer os.Remove(ws + "/plain")
		return openClose(cwd, ws+"/plain", unix.O_WRONLY|unix.O_CREAT)
	}())
}
