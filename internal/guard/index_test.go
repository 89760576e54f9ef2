package guard

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// git runs Git without anybody's settings.
func git(tb testing.TB, dir, stdin string, args ...string) (string, error) {
	tb.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tb.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com"}
	out, err := cmd.Output()
	return string(out), err
}

// A sample is an index that Git wrote, and a repository that it is one of.
type sample struct {
	name, dir string
	hash      int
	index     []byte
}

func samples(tb testing.TB) (all []sample) {
	tb.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		tb.Skip("git is not installed")
	}
	must := func(dir, stdin string, args ...string) {
		tb.Helper()
		if out, err := git(tb, dir, stdin, args...); err != nil {
			tb.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	for _, format := range []string{"sha1", "sha256"} {
		dir := tb.TempDir()
		must(dir, "", "init", "-q", "--object-format="+format)
		for _, name := range []string{"a", "b/c", "b/d", "b/git", "b/gitlab.com/x", ".github/workflows/x", ".gitignore", "d/e/f", "d/e/g h", "d/\xc3\xa9\xff", "z\\y", "...", "git~", strings.Repeat("l/", 200) + strings.Repeat("m", 250)} {
			os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755)
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
				tb.Fatal(err)
			}
		}
		must(dir, "", "add", ".")
		must(dir, "", "commit", "-q", "-m", "all")
		hash := map[string]int{"sha1": 20, "sha256": 32}[format]
		oid, _ := git(tb, dir, "x", "hash-object", "-w", "--stdin")
		long := strings.Repeat(strings.Repeat("n", 200)+"/", 25)
		for _, s := range [][]string{{"plain"}, {"v4", "update-index", "--index-version", "4"}, {"threads, v4", "-c", "index.threads=3", "update-index", "--force-write-index"},
			{"threads, v2", "-c", "index.threads=3", "update-index", "--index-version", "2"}, {"intent", "add", "-N", "new"}, {"skip", "update-index", "--skip-worktree", "a"},
			{"long", "update-index", "--add", "--cacheinfo", "100644," + strings.TrimSpace(oid) + "," + long + "a"}, {"untracked", "update-index", "--untracked-cache"},
			{"v4 again", "update-index", "--index-version", "4"}, {"removed", "rm", "-q", "--cached", "d/e/f"}, {"long removed", "rm", "-q", "--cached", long + "a"},
			{"split", "update-index", "--split-index"}, {"split changed", "update-index", "--chmod=+x", "b/c"}, {"whole", "update-index", "--no-split-index", "--no-untracked-cache"},
			{"conflict", "update-index", "--index-info"}, {"", "reset", "-q", "--hard"}, {"sparse", "sparse-checkout", "set", "--cone", "--sparse-index", "b"}} {
			stdin := ""
			if s[0] == "conflict" {
				for stage := range 3 {
					stdin += fmt.Sprintf("100644 %s %d\tconflict\n", strings.TrimSpace(oid), stage+1)
				}
			}
			os.WriteFile(filepath.Join(dir, "new"), []byte("new"), 0o644)
			if len(s) > 1 {
				must(dir, stdin, s[1:]...)
			}
			paths, _ := filepath.Glob(filepath.Join(dir, ".git/sharedindex.*"))
			for i, p := range append(paths, filepath.Join(dir, ".git/index")) {
				b, err := os.ReadFile(p)
				if err != nil {
					tb.Fatal(err)
				}
				if s[0] != "" {
					all = append(all, sample{fmt.Sprint(format, " ", s[0], " ", i), dir, hash, b})
				}
			}
		}
	}
	return all
}

func good(index []byte, hash int) bool {
	return goodIndex(bytes.NewReader(index), int64(len(index)), hash)
}

// TestIndex: no index is good from which Git lists what it would not enter there.
func TestIndex(t *testing.T) {
	all := samples(t)
	t.Run("written", func(t *testing.T) { written(t, all) })
	t.Run("by hand", func(t *testing.T) { byHands(t, all) })
	t.Run("changed", func(t *testing.T) { changed(t, all) })
}

// written: what Git writes is good, in every form that it has.
func written(t *testing.T, all []sample) {
	kinds := map[string]bool{}
	for _, s := range all {
		for _, k := range []string{"IEOT", "EOIE", "link", "sdir", "UNTR", "TREE", "DIRC\x00\x00\x00\x02", "DIRC\x00\x00\x00\x03", "DIRC\x00\x00\x00\x04"} {
			kinds[k] = kinds[k] || bytes.Contains(s.index, []byte(k))
		}
		if !good(s.index, s.hash) {
			t.Errorf("%s is no good index", s.name)
		}
		if good(s.index[:len(s.index)-1], s.hash) || good(s.index, 52-s.hash) {
			t.Errorf("%s is one, cut or with the other size of hashes", s.name)
		}
	}
	if slices.Contains(slices.Collect(maps.Values(kinds)), false) {
		t.Errorf("Git wrote %v", kinds)
	}
}

// An index to be written by hand.
type byHand struct {
	version uint32
	hash    int
	entries []handEntry
	more    string // extensions
	table   []uint32
	end     int // what the last extension gives as the end of entries, relative to it
}

type handEntry struct {
	name  string
	mode  uint32
	strip int
	flags uint16
	raw   string // in place of what follows the flags
}

func (h byHand) bytes() []byte {
	hash := func(b []byte) []byte { s := sha1.Sum(b); return s[:] }
	if h.hash == 32 {
		hash = func(b []byte) []byte { s := sha256.Sum256(b); return s[:] }
	}
	b := binary.BigEndian.AppendUint32([]byte("DIRC"), h.version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.entries)))
	for _, e := range h.entries {
		start := len(b)
		if e.mode == 0 {
			e.mode = 0o100644
		}
		b = binary.BigEndian.AppendUint32(append(b, make([]byte, 24)...), e.mode)
		b = append(b, make([]byte, 12)...)
		b = append(b, hash([]byte("x"))...)
		if e.flags == 0 {
			e.flags = uint16(min(len(e.name), 0xfff))
		}
		b = binary.BigEndian.AppendUint16(b, e.flags)
		switch {
		case e.raw != "":
			b = append(b, e.raw...)
		case h.version == 4:
			b = append(append(append(b, byte(e.strip)), e.name...), 0)
		default:
			b = append(append(b, e.name...), make([]byte, 8-(len(b)-start+len(e.name))%8)...)
		}
	}
	end := len(b)
	b = append(b, h.more...)
	if h.table != nil {
		b = binary.BigEndian.AppendUint32(append(b, "IEOT"...), uint32(4+4*len(h.table)))
		b = binary.BigEndian.AppendUint32(b, 1)
		for _, n := range h.table {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		end += h.end
		var headers []byte
		for at := end; at+8 <= len(b); at += 8 + int(binary.BigEndian.Uint32(b[at+4:])) {
			headers = append(headers, b[at:at+8]...)
		}
		b = binary.BigEndian.AppendUint32(append(b, "EOIE"...), 24)
		b = append(binary.BigEndian.AppendUint32(b, uint32(end)), hash(headers)...)
	}
	return append(b, hash(b)...)
}

func handEntries(names ...string) (all []handEntry) {
	for _, n := range names {
		all = append(all, handEntry{name: n})
	}
	return all
}

func extension(kind, body string) string {
	return kind + string(binary.BigEndian.AppendUint32(nil, uint32(len(body)))) + body
}

// byHands: Git lists what it would never enter from these, and from the neighbour
// of each, which is good, nothing like it.
func byHands(t *testing.T, all []sample) {
	first := all[0]
	if first.hash != 20 {
		t.Fatal("the first repository is another")
	}
	bad := map[string]byHand{}
	for _, name := range []string{".git/config", "a/.git/config", ".GIT/config", ".git", "git~1/config", "GIT~1/x", ".git./x", ".git /x", ".git::$INDEX_ALLOCATION/x", ".gi\u200ct/x", ".git\\x", ".git:x", `a\.git/x`, `\.git`, `a/b\c\GIT~1`, "/etc/x", "../x", "a/../x", "a/./x", "a//x", "a/", "a/.."} {
		for version := uint32(2); version <= 4; version++ {
			bad[fmt.Sprint(name, " ", version)] = byHand{version: version, hash: 20, entries: []handEntry{{name: "1"}, {name: name, strip: 1}}}
		}
	}
	bad["v4, of parts"] = byHand{version: 4, hash: 20, entries: []handEntry{{name: ".gitx"}, {name: "/config", strip: 1, flags: 11}}}
	bad["a NUL in the name"] = byHand{version: 2, hash: 20, entries: []handEntry{{name: ".git/config\x00aaaaaaaaaa"}}}
	bad["NULs, v4"] = byHand{version: 4, hash: 20, entries: []handEntry{{name: "a\x00b"}}}
	bad["the name goes on"] = byHand{version: 2, hash: 20, entries: []handEntry{{flags: 3, raw: ".git" + strings.Repeat("\x00", 6)}}}
	bad["another length"] = byHand{version: 2, hash: 20, entries: []handEntry{{flags: 3, raw: "a\x00"}}, more: extension("XXXX", "")}
	bad["extended, v2"] = byHand{version: 2, hash: 20, entries: []handEntry{{flags: 0x4000 | 11, raw: "\x20\x00.git/config" + strings.Repeat("\x00", 5)}}}
	bad["empty"] = byHand{version: 2, hash: 20, entries: handEntries("", "a")}
	bad["empty, of no shared index"] = byHand{version: 2, hash: 20, entries: handEntries("", "a"), more: extension("link", strings.Repeat("\x00", 20))}
	for _, name := range []string{".gitmodules", "a/.GITMODULES", "gitmod~1", ".gitmodules.", `a\.gitmodules:x`} {
		bad["a link "+name] = byHand{version: 2, hash: 20, entries: []handEntry{{name: name, mode: 0o120000}}}
	}
	bad["another mode"] = byHand{version: 2, hash: 20, entries: []handEntry{{name: "a", mode: 0o40755}}}
	bad["a file with a slash"] = byHand{version: 2, hash: 20, entries: handEntries("a/")}
	bad["a directory"] = byHand{version: 3, hash: 20, entries: []handEntry{{name: ".git/", mode: 0o40000}}, more: extension("sdir", "")}
	// Threads begin where a table says: among what looks like another extension.
	hidden := byHand{version: 2, hash: 20, entries: handEntries(".git/config", ".git/hooks/post-checkout")}.bytes()
	inner := string(hidden[12 : len(hidden)-20])
	plain := byHand{version: 2, hash: 20, entries: handEntries("a", "b")}
	size := uint32(len(plain.bytes()) - 20)
	plain.more = extension("XXXX", inner)
	plain.table = []uint32{12, 1, 12 + (size-12)/2, 1}
	goodOnes := map[string]byHand{"threads": plain}
	moved := plain
	moved.table = []uint32{size + 8, 1, size + 8 + 80, 1}
	bad["threads"] = moved
	short := plain
	short.table = []uint32{12, 1}
	bad["threads, not all"] = short
	inside := plain
	inside.more, inside.end = extension("XXXX", extension("YYYY", "")), 8
	bad["another end"] = inside
	// At the beginning of a block a name has nothing of the one before.
	bad["threads, v4"] = byHand{version: 4, hash: 20, entries: []handEntry{{name: "x"}, {name: ".git/config", flags: 12}}, table: []uint32{12, 1, 12 + 62 + 3, 1}}
	goodOnes["threads, v4"] = byHand{version: 4, hash: 20, entries: []handEntry{{name: "x"}, {name: "git/config", strip: 1}}, table: []uint32{12, 1, 12 + 62 + 3, 1}}
	for _, name := range []string{"a/b", ".gitignore", ".github/x", "git~", "git/x", "..a", "...", "a./b", "a\\b", "é", "GIT"} {
		goodOnes[name] = byHand{version: 2, hash: 20, entries: handEntries(name)}
	}
	goodOnes["sparse"] = byHand{version: 3, hash: 20, entries: []handEntry{{name: "a/", mode: 0o40000}}, more: extension("sdir", "")}
	goodOnes["empty, of a shared index"] = byHand{version: 2, hash: 20, entries: handEntries("", "a"), more: extension("link", strings.Repeat("x", 20))}
	goodOnes[".gitmodules"] = byHand{version: 2, hash: 20, entries: handEntries(".gitmodules")}
	goodOnes["none"] = byHand{version: 2, hash: 20}

	names := func(index []byte) ([]string, error) {
		if err := os.WriteFile(filepath.Join(first.dir, ".git/index"), index, 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := git(t, first.dir, "", "-c", "index.threads=3", "ls-files", "-z", "--sparse")
		return strings.Split(out, "\x00"), err
	}
	shown := 0
	for what, h := range bad {
		if good(h.bytes(), 20) {
			t.Errorf("%s is good", what)
		}
		if list, err := names(h.bytes()); err == nil && slices.ContainsFunc(list, evil) {
			shown++
		} else if testing.Verbose() {
			t.Logf("%s: Git lists %q, %v", what, list, err)
		}
	}
	for what, h := range goodOnes {
		if !good(h.bytes(), 20) {
			t.Errorf("%s is not good", what)
		}
		if list, err := names(h.bytes()); what != "empty, of a shared index" && (err != nil || slices.ContainsFunc(list, evil)) {
			t.Errorf("%s: Git lists %q, %v", what, list, err)
		}
	}
	if shown < 45 {
		t.Errorf("Git lists names that it would not enter for %d of %d", shown, len(bad))
	}
	// One of 20 bytes that is another of 32.
	if h := (byHand{version: 2, hash: 32, entries: handEntries("a")}).bytes(); !good(h, 32) || good(h, 20) {
		t.Error("the size of hashes does not count")
	}
}

// evil reports whether a name is none for a file of a project; it knows less than misnamed.
func evil(name string) bool {
	if name == "" { // behind the last one
		return false
	}
	for i, part := range strings.Split(name, "/") {
		if p := strings.ToLower(strings.TrimRight(part, " .")); part == "" && (i == 0 || i < strings.Count(name, "/")) || part == "." || part == ".." || p == ".git" || p == "git~1" {
			return true
		}
	}
	return false
}

// change is a random change of an index, of which Git may well read something.
func change(r *rand.Rand, b []byte) []byte {
	b = bytes.Clone(b)
	for range 1 + r.IntN(3) {
		if len(b) < 40 {
			break
		}
		at := r.IntN(len(b) - 30)
		switch r.IntN(9) {
		case 0:
			b[at] = byte(r.Uint32())
		case 1:
			b[at] ^= 1 << r.IntN(8)
		case 2:
			binary.BigEndian.PutUint32(b[at:], []uint32{0, 1, 2, 3, 4, 12, 20, 72, 0xfff, uint32(len(b)), uint32(at), 1<<31 - 1}[r.IntN(12)])
		case 3:
			copy(b[at:], []string{".git/x\x00", ".git/config\x00", "../", "/", "\x00", "IEOT", "EOIE", "link", "/.git/", "git~1/a\x00"}[r.IntN(10)])
		case 4:
			copy(b[at:], b[r.IntN(len(b)):][:0])
			from := r.IntN(len(b) - 8)
			copy(b[at:], b[from:min(len(b), from+r.IntN(100))])
		case 5:
			n := 1 + r.IntN(8)
			b = slices.Delete(b, at, at+n)
		case 6:
			b = slices.Insert(b, at, []byte([]string{"\x00", "\x00\x00\x00\x00\x00\x00\x00\x00", ".git/", "a"}[r.IntN(4)])...)
		case 7: // in the place of a name of the same length
			for _, pair := range [][2]string{{"b/c\x00", ".git"}, {"b/git\x00", ".git/"}, {"d/e/", ".git/"[:4]}, {".gitignore", ".git/gnore"}, {".github/", ".git//b/"}} {
				if i := bytes.Index(b, []byte(pair[0])); i >= 0 && r.IntN(2) == 0 {
					copy(b[i:], pair[1])
				}
			}
		case 8:
			binary.BigEndian.PutUint32(b[8:], binary.BigEndian.Uint32(b[8:])+uint32(r.IntN(3))-1)
		}
	}
	return b
}

// judged lists with Git a changed index that is good. It reports whether Git could read it.
func judged(t testing.TB, s sample, index []byte) bool {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, ".git/index"), index, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := git(t, s.dir, "", "-c", "index.threads=3", "ls-files", "-z", "--sparse")
	if err == nil && slices.ContainsFunc(strings.Split(out, "\x00"), evil) {
		t.Errorf("%s: Git lists %q of %q", s.name, out, index)
	}
	return err == nil
}

// changed: of changed indexes that are good, Git lists nothing that it would not
// enter; of those that are not it does, now and then.
func changed(t *testing.T, all []sample) {
	tries := 300
	if s := os.Getenv("SBXRUN_INDEX_TRIES"); s != "" {
		fmt.Sscan(s, &tries)
	}
	r := rand.New(rand.NewPCG(uint64(tries), 1))
	passed, read, listed := 0, 0, 0
	for range tries {
		s := all[r.IntN(len(all))]
		index := change(r, s.index)
		if good(index, s.hash) {
			passed++
			if judged(t, s, index) {
				read++
			}
		} else if r.IntN(8) == 0 {
			os.WriteFile(filepath.Join(s.dir, ".git/index"), index, 0o644)
			if out, err := git(t, s.dir, "", "-c", "index.threads=3", "ls-files", "-z", "--sparse"); err == nil && slices.ContainsFunc(strings.Split(out, "\x00"), evil) {
				listed++
			}
		}
	}
	t.Logf("%d of %d were good, Git read %d; it listed names that it would not enter of %d others", passed, tries, read, listed)
	if read < tries/20 || listed == 0 {
		t.Error("too few to tell")
	}
}

// FuzzIndex is the last of these for whoever has the time.
func FuzzIndex(f *testing.F) {
	all := samples(f)
	for i, s := range all {
		f.Add(i, s.index)
	}
	f.Fuzz(func(t *testing.T, i int, index []byte) {
		if s := all[uint(i)%uint(len(all))]; good(index, s.hash) {
			judged(t, s, index)
		}
	})
}
