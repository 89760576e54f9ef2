package files

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// world is a directory to extract into, beside one that must not change.
func world(t testing.TB) (dir, outside string) {
	base := t.TempDir()
	dir, outside = filepath.Join(base, "dir"), filepath.Join(base, "outside")
	for _, d := range []string{dir, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "canary"), []byte("canary"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, outside
}

func archive(t testing.TB, entries ...tar.Header) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body = "written"
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(body))
	}
	w.Close()
	return &b
}

// TestExtractStaysInside: no entry, and no two of them together, lead out.
func TestExtractStaysInside(t *testing.T) {
	for name, entries := range map[string][]tar.Header{
		"parent":             {{Typeflag: tar.TypeReg, Name: "../outside/canary", Mode: 0o644}},
		"hidden parent":      {{Typeflag: tar.TypeReg, Name: "a/../../outside/canary", Mode: 0o644}},
		"absolute":           {{Typeflag: tar.TypeReg, Name: "/tmp/sbxrun-files-canary", Mode: 0o644}},
		"through a link":     {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../outside"}, {Typeflag: tar.TypeReg, Name: "l/canary", Mode: 0o644}},
		"through two links":  {{Typeflag: tar.TypeSymlink, Name: "b", Linkname: ".."}, {Typeflag: tar.TypeSymlink, Name: "a", Linkname: "b/outside"}, {Typeflag: tar.TypeReg, Name: "a/canary", Mode: 0o644}},
		"a directory's link": {{Typeflag: tar.TypeSymlink, Name: "d", Linkname: "../outside"}, {Typeflag: tar.TypeDir, Name: "d/sub/", Mode: 0o755}},
		"hard link":          {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/canary"}},
		"device":             {{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3, Mode: 0o666}},
		"fifo":               {{Typeflag: tar.TypeFifo, Name: "f", Mode: 0o666}},
		"root as a file":     {{Typeflag: tar.TypeReg, Name: ".", Mode: 0o644}},
	} {
		dir, outside := world(t)
		if err := Extract(dir, archive(t, entries...)); err == nil {
			t.Errorf("%s: extracted", name)
		}
		if b, err := os.ReadFile(filepath.Join(outside, "canary")); err != nil || string(b) != "canary" {
			t.Errorf("%s: the file outside: %q, %v", name, b, err)
		}
		if list, _ := os.ReadDir(outside); len(list) != 1 {
			t.Errorf("%s: outside: %v", name, list)
		}
	}
	if _, err := os.Lstat("/tmp/sbxrun-files-canary"); err == nil {
		t.Error("an absolute name was written")
	}
	// A link over a file of the same name is replaced, not written through.
	dir, outside := world(t)
	if err := os.Symlink("../outside/canary", filepath.Join(dir, "x")); err != nil {
		t.Fatal(err)
	}
	if err := Extract(dir, archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "x", Mode: 0o4755})); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(filepath.Join(outside, "canary")); string(b) != "canary" {
		t.Errorf("written through a link: %q", b)
	}
	fi, err := os.Lstat(filepath.Join(dir, "x"))
	if err != nil || fi.Mode() != 0o755 {
		t.Errorf("%v, %v: want a regular file without set-user-id", fi.Mode(), err)
	}
}

// TestPackExtract is a round trip.
func TestPackExtract(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(src, "tree/a/b"), 0o755))
	must(os.WriteFile(filepath.Join(src, "tree/a/b/deep"), []byte(strings.Repeat("x", 100000)), 0o600))
	must(os.WriteFile(filepath.Join(src, "tree/run me \n\"é"), []byte("#!"), 0o755))
	must(os.Symlink("a/b/deep", filepath.Join(src, "tree/link")))
	must(os.Symlink("/nowhere", filepath.Join(src, "tree/dangling")))
	must(os.Mkdir(filepath.Join(src, "tree/empty"), 0o700))
	for range 2 { // the second time over the first
		var b bytes.Buffer
		must(Pack(&b, filepath.Join(src, "tree")))
		must(Extract(dst, &b))
	}
	listing := func(root string) (out []string) {
		must(filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			must(err)
			fi, err := d.Info()
			must(err)
			rel, _ := filepath.Rel(root, p)
			link, _ := os.Readlink(p)
			var body []byte
			if fi.Mode().IsRegular() {
				body, err = os.ReadFile(p)
				must(err)
			}
			if rel != "." {
				out = append(out, rel+" "+fi.Mode().String()+" "+link+" "+string(body))
			}
			return nil
		}))
		return out
	}
	want, got := listing(src), listing(dst)
	if strings.Join(want, "\x00") != strings.Join(got, "\x00") {
		t.Errorf("got %.300q\nwant %.300q", got, want)
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "a/b", Mode: 0o644}, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}).Bytes())
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755}).Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		dir, outside := world(t)
		Extract(dir, bytes.NewReader(b))
		if list, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(list) != 2 {
			t.Errorf("beside the directory: %v, %v", list, err)
		}
		if b, err := os.ReadFile(filepath.Join(outside, "canary")); err != nil || string(b) != "canary" {
			t.Errorf("outside: %q, %v", b, err)
		}
	})
}

// TestCheckedDirectory: with a check, what is written to is the directory that was
// checked, and not one that a link came to lead to. The control has no check.
func TestCheckedDirectory(t *testing.T) {
	check := func(string, bool, int) error { return nil }
	for name, link := range map[string]string{"the directory": "dir", "one above it": "."} {
		dir, outside := world(t)
		base := filepath.Dir(dir)
		if err := os.Symlink(filepath.Join(base, link), filepath.Join(base, "link")); err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(base, "link")
		if link == "." {
			at = filepath.Join(at, "dir")
		}
		entry := tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o644}
		if err := extract(at, archive(t, entry), check); err == nil {
			t.Errorf("%s is a link: no error", name)
		}
		if _, err := os.Lstat(filepath.Join(dir, "f")); err == nil {
			t.Errorf("%s is a link: written", name)
		}
		if err := extract(at, archive(t, entry), nil); err != nil {
			t.Errorf("without a check: %v", err)
		}
		if err := extract(outside, archive(t, entry), check); err != nil {
			t.Errorf("no link: %v", err)
		}
	}
}
