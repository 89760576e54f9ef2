//go:build linux

package integration

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A comparison performs the same file operations in a sandbox with the guard and
// in one whose kernel does the same without it; see test/integration/fileops.
type comparison struct {
	testing.TB
	who who
	dir string // on the file system that is tried

	session bool // the guard is that of a session's commands

	operations, refused int
}

// A sequence is operations, each a number.
type sequence []uint32

func (s sequence) String() string {
	var b []byte
	for _, n := range s {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return hex.EncodeToString(b)
}

func randomSequence(r *rand.Rand, n int) sequence {
	s := make(sequence, n)
	for i := range s {
		s[i] = r.Uint32()
	}
	return s
}

// run runs a command to its end.
func (c *comparison) run(stdin string, args ...string) string {
	c.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(stdin), &out, &errs, c.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(c.dir, "home"), "XDG_CACHE_HOME=" + c.who.cache(), "XDG_RUNTIME_DIR=" + filepath.Join(c.dir, "run")}
	if err := cmd.Run(); err != nil {
		c.Fatalf("%s: %v\n%s\n%.2000s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String()
}

// jobs is how many sequences one sandbox performs; each has four mounts of its own.
const jobs = 24

func jobName(i int) string { return fmt.Sprintf("%03d", i) }

// world makes the trees of n jobs, and returns the flags that show them.
func (c *comparison) world(n int) (flags []string) {
	c.Helper()
	ws := filepath.Join(c.dir, "ws")
	c.reach()
	for _, name := range []string{"ws", "rw"} {
		if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			c.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(c.dir, name), 0o755); err != nil {
			c.Fatal(err)
		}
		os.Chown(filepath.Join(c.dir, name), c.who.uid, c.who.uid)
	}
	args := []string{fileops, "make", strconv.Itoa(c.who.uid)}
	for i := range n {
		args = append(args, filepath.Join(ws, jobName(i)))
	}
	c.run("", args...)
	for i := range n {
		in, rw := filepath.Join(ws, jobName(i)), filepath.Join(c.dir, "rw", jobName(i))
		if err := os.Rename(in+"/rw", rw); err != nil {
			c.Fatal(err)
		}
		flags = append(flags, "--hide", in+"/t/hidden", "--hide", in+"/t/secret", "--ro", in+"/t/vendor", "--bind", rw+":"+in+"/t/rw")
	}
	return flags
}

// records splits what fileops printed.
func records(out string) []string {
	all := strings.Split(out, "\x00")
	return all[:len(all)-1]
}

// reach lets the owner in again where a sequence shut it out: what is protected is there
// all the same, and is told without modes.
func (c *comparison) reach() {
	c.Helper()
	c.run("", "chmod", "-R", "u+rwx", "--", filepath.Join(c.dir, "ws"), filepath.Join(c.dir, "rw"))
}

func (c *comparison) trees(what string, n int) []string {
	c.Helper()
	args := []string{fileops, what}
	for i := range n {
		args = append(args, filepath.Join(c.dir, "ws", jobName(i), "t"), filepath.Join(c.dir, "rw", jobName(i)))
	}
	all := records(c.run("", args...))
	var each []string
	for i := range n {
		each = append(each, all[2*i]+all[2*i+1])
	}
	return each
}

// inside runs fileops in a sandbox.
func (c *comparison) inside(flags []string, mode, stdin string) string {
	c.Helper()
	ws := filepath.Join(c.dir, "ws")
	flags = slices.Concat([]string{"--profile", "strict", "-C", ws, "--ro", fileops}, flags)
	if c.session && mode == "perform" {
		id := "s" + filepath.Base(c.dir)
		session := func(args ...string) []string { return c.who.command(append([]string{sbxrun, "session"}, args...)...) }
		defer func() { c.run("", session("rm", "--force", id)...) }()
		c.run("", session(slices.Concat([]string{"create"}, c.who.sessionFlags(), flags, []string{id})...)...)
		var out strings.Builder
		for part := range slices.Chunk(slices.Collect(strings.Lines(stdin)), jobs/3) {
			out.WriteString(c.run(strings.Join(part, ""), session("exec", id, "--", fileops, mode, ws)...))
		}
		return out.String()
	}
	args := append(c.who.command(sbxrun, "--timeout", "10m"), c.who.flags()...)
	return c.run(stdin, slices.Concat(args, flags, []string{"--", fileops, mode, ws})...)
}

// A difference has a kind, by which it is known again, and is told by text.
type difference struct {
	kind, text string
	errno      bool // both failed, for reasons of their own
}

// What came of a sequence that was performed both ways.
type compared struct {
	differences         []difference
	answers             []string // the guard's
	operations, refused int      // that were compared, and those of them that the model refuses
}

// compare performs sequences both ways, and returns what came of each.
func (c *comparison) compare(all []sequence) []compared {
	c.Helper()
	outcomes := make([]compared, len(all))
	flags := c.world(len(all))
	before := c.trees("protected", len(all))
	var work strings.Builder
	for i, s := range all {
		fmt.Fprintf(&work, "%s\t%v\n", jobName(i), s)
	}
	out := records(c.inside(flags, "perform", work.String()))
	if len(out) != len(all) {
		c.Fatalf("%d of %d sequences were performed: %q", len(out), len(all), out)
	}
	trees := c.trees("tree", len(all))
	c.reach()
	for i, after := range c.trees("protected", len(all)) {
		if d := changed(before[i], after); d != "" {
			outcomes[i].add(difference{kind: "protected changed", text: d})
		}
	}

	flags = append(c.world(len(all)), "--unprotect", "all")
	work.Reset()
	for i, s := range all {
		_, got, _ := strings.Cut(out[i], "\t")
		outcomes[i].answers = strings.Split(got, "\t")
		fmt.Fprintf(&work, "%s\t%v\t%s\n", jobName(i), s, got)
	}
	stopped := make([]bool, len(all))
	for i, got := range records(c.inside(flags, "check", work.String())) {
		o := &outcomes[i]
		for _, g := range strings.Split(got, "\t")[1:] {
			o.operations++
			if g == "denied" {
				o.refused++
			}
			stopped[i] = stopped[i] || g == "#explained"
			if g != "" && (g[0] == '!' || g[0] == '?') {
				kind, text, _ := strings.Cut(g[1:], "\x01")
				o.add(difference{kind, text, g[0] == '?'})
				stopped[i] = stopped[i] || g[0] == '!'
			}
		}
	}
	for i, tree := range c.trees("tree", len(all)) {
		if !stopped[i] && tree != trees[i] {
			outcomes[i].add(difference{kind: "trees", text: "the trees differ:\n" + lineDifference(trees[i], tree)})
		}
	}
	// What one did after it stopped, jobs behind it may have met.
	if first := slices.Index(stopped, true); first >= 0 {
		var again []sequence
		var at []int
		for i := first + 1; i < len(all); i++ {
			if len(outcomes[i].differences) > 0 {
				again, at = append(again, all[i]), append(at, i)
			}
		}
		if len(again) > 0 {
			for i, o := range c.compare(again) {
				outcomes[at[i]] = o
			}
		}
	}
	return outcomes
}

func (o *compared) add(d difference) { o.differences = append(o.differences, d) }

// changed says what of the protected changed. What was a repository need not stay
// one, for its other parts are not protected.
func changed(before, after string) (d string) {
	for line := range strings.Lines(lineDifference(after, before)) {
		if !strings.HasPrefix(line, "without it:     repository") {
			d += line
		}
	}
	return d
}

// lineDifference are the lines that only one of two texts has.
func lineDifference(guard, kernel string) string {
	g, k := strings.Split(guard, "\n"), strings.Split(kernel, "\n")
	var b strings.Builder
	for _, l := range g {
		if !slices.Contains(k, l) {
			b.WriteString("with the guard: " + l + "\n")
		}
	}
	for _, l := range k {
		if !slices.Contains(g, l) {
			b.WriteString("without it:     " + l + "\n")
		}
	}
	return b.String()
}

// shrink returns a short part of a sequence that has a difference of the same kind.
func (c *comparison) shrink(s sequence, kind string) sequence {
	c.Helper()
	for parts := 2; len(s) > 1; {
		parts = min(parts, len(s))
		var candidates []sequence
		for i := range parts {
			candidates = append(candidates, slices.Concat(s[:len(s)*i/parts], s[len(s)*(i+1)/parts:]))
		}
		shorter := false
		for chunk := range slices.Chunk(candidates, jobs) {
			if i := slices.IndexFunc(c.compare(chunk), func(o compared) bool { return o.has(kind) }); i >= 0 {
				s, shorter = chunk[i], true
				break
			}
		}
		if shorter {
			parts = max(2, parts-1)
		} else if parts == len(s) {
			break
		} else {
			parts *= 2
		}
	}
	return s
}

func (o *compared) has(kind string) bool {
	return slices.ContainsFunc(o.differences, func(d difference) bool { return d.kind == kind })
}

// explain says what a short sequence does, and what came of it.
func (c *comparison) explain(s sequence) string {
	c.Helper()
	o := c.compare([]sequence{s})[0]
	var b strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(c.run("", fileops, "describe", s.String()), "\n"), "\n") {
		fmt.Fprintf(&b, "\t%s = %s\n", line, o.answers[i])
	}
	for _, d := range o.differences {
		fmt.Fprintf(&b, "\t=> %s\n", d.text)
	}
	return fmt.Sprintf("%s\tSBXRUN_DIFFERENTIAL=%v", &b, s)
}

// try compares batches of random sequences until there were enough operations. Of
// each kind of difference one is made short and told.
func (c *comparison) try(seed uint64, length, operations int) {
	c.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	seen := map[string]int{}
	most := 5
	if n := os.Getenv("SBXRUN_DIFFERENTIAL_KINDS"); n != "" {
		most, _ = strconv.Atoi(n)
	}
	told := 0
	// New kinds of errno, where both fail, are told in a short run and fail a long one.
	strict := os.Getenv("SBXRUN_DIFFERENTIAL_OPS") != ""
	only := os.Getenv("SBXRUN_DIFFERENTIAL_KIND")
	for c.operations < operations {
		var batch []sequence
		for range min(jobs, (operations-c.operations+length-1)/length) {
			batch = append(batch, randomSequence(r, length))
		}
		for i, o := range c.compare(batch) {
			c.operations, c.refused = c.operations+o.operations, c.refused+o.refused
			if c.operations/100_000 > told {
				told = c.operations / 100_000
				c.Logf("%d operations", c.operations)
			}
			for _, d := range o.differences {
				seen[d.kind]++
				if d.errno && !strict {
					c.Logf("seed %d: %s", seed, d.text)
					continue
				}
				if seen[d.kind] > 1 {
					continue
				}
				if len(seen) <= most || only != "" && strings.HasPrefix(d.kind, only) {
					c.Errorf("seed %d: %s\n%s", seed, d.text, c.explain(c.shrink(batch[i], d.kind)))
				} else {
					c.Errorf("seed %d: %s", seed, d.text)
				}
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(seen), func(a, b string) int { return seen[b] - seen[a] }) {
		c.Logf("%6d × %s", seen[k], k)
	}
}

// TestGuardDifferential compares the guard with the kernel by random sequences of
// operations, below /tmp and elsewhere, with a seed that is always the same and one
// that never is. SBXRUN_DIFFERENTIAL_OPS is how many with each,
// SBXRUN_DIFFERENTIAL_DIR where else, SBXRUN_DIFFERENTIAL_SEED a seed, and
// SBXRUN_DIFFERENTIAL a sequence that failed.
func TestGuardDifferential(t *testing.T) {
	operations, where := 1600, elsewhere()
	if n := os.Getenv("SBXRUN_DIFFERENTIAL_OPS"); n != "" {
		operations, _ = strconv.Atoi(n)
	}
	fresh := uint64(time.Now().UnixNano())
	if s := os.Getenv("SBXRUN_DIFFERENTIAL_SEED"); s != "" {
		fresh, _ = strconv.ParseUint(s, 10, 64)
	}
	for i, w := range whos {
		for j, dir := range []string{runDir, where} {
			seed, name := uint64(1), w.name+"/below-tmp"
			if i == j || os.Getenv("SBXRUN_DIFFERENTIAL_SEED") != "" {
				seed = fresh
			}
			if j == 1 {
				name = w.name + "/elsewhere"
			}
			t.Run(name, func(t *testing.T) {
				c := newComparison(t, w, dir)
				if s := os.Getenv("SBXRUN_DIFFERENTIAL"); s != "" {
					b, err := hex.DecodeString(s)
					if err != nil {
						t.Fatal(err)
					}
					t.Log(c.explain(sequenceOf(b)))
					return
				}
				c.try(seed, 200, operations)
				t.Logf("seed %d: %d operations, %d of them refused for what they would have done to protected paths", seed, c.operations, c.refused)
				if c.refused == 0 {
					t.Error("nothing protected was tried")
				}
			})
		}
	}
}

// TestGuardDifferentialSession is the same for the commands of a session. They share its
// sandbox, and each has a guard.
func TestGuardDifferentialSession(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SBXRUN_DIFFERENTIAL_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	for _, w := range whos {
		t.Run(w.name, func(t *testing.T) {
			c := newComparison(t, w, elsewhere())
			c.session = true
			c.try(seed, 100, 1600)
			t.Logf("seed %d: %d operations, %d of them refused", seed, c.operations, c.refused)
			if c.refused == 0 {
				t.Error("nothing protected was tried")
			}
		})
	}
}

// elsewhere is a directory that is not below /tmp, where there is one.
func elsewhere() string {
	if d := os.Getenv("SBXRUN_DIFFERENTIAL_DIR"); d != "" {
		return d
	}
	if isRoot() {
		return "/var/lib"
	}
	return runDir
}

// TestGuardRaces: two processes that perform random operations in the same tree at
// once change nothing that is protected.
func TestGuardRaces(t *testing.T) {
	rounds := 2
	if n := os.Getenv("SBXRUN_DIFFERENTIAL_ROUNDS"); n != "" {
		rounds, _ = strconv.Atoi(n)
	}
	seed := uint64(time.Now().UnixNano())
	eachWho(t, func(f *fixture) {
		c := newComparison(f.T, f.who, runDir)
		r := rand.New(rand.NewPCG(seed, 1))
		for range rounds {
			var all []sequence
			var work strings.Builder
			for i := range 4 {
				all = append(all, randomSequence(r, 1200))
				fmt.Fprintf(&work, "%s\t%v\n", jobName(i), all[i])
			}
			for _, unprotect := range [][]string{nil, {"--unprotect", "all"}} {
				flags := append(c.world(len(all)), unprotect...)
				before := c.trees("protected", len(all))
				c.inside(flags, "race", work.String())
				c.reach()
				var changes []string
				for i, after := range c.trees("protected", len(all)) {
					if d := changed(before[i], after); d != "" {
						changes = append(changes, jobName(i)+": "+d)
					}
				}
				if unprotect == nil && len(changes) > 0 {
					f.Errorf("seed %d: two processes changed of what is protected\n%s", seed, strings.Join(changes, ""))
				} else if unprotect != nil && len(changes) == 0 {
					f.Error("where nothing is protected they changed nothing: they do not try")
				}
			}
		}
		f.Logf("seed %d: %d operations by two processes at once", seed, rounds*4*1200)
	})
}

// FuzzGuard compares one sequence of operations.
func FuzzGuard(f *testing.F) {
	for _, s := range corpus {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := sequenceOf(b)
		if len(s) == 0 || len(s) > 2000 {
			t.Skip("no operation, or more than a sequence has")
		}
		c := newComparison(t, whos[0], runDir)
		// The corpus counts also where both fail, for reasons of their own.
		fuzzing := flag.Lookup("test.fuzz").Value.String() != ""
		if d := c.compare([]sequence{s})[0].differences; len(d) > 0 && !(d[0].errno && fuzzing) {
			t.Error(c.explain(c.shrink(s, d[0].kind)))
		}
	})
}

// corpus are sequences that once told the guard from the kernel.
var corpus = []string{
	"a99bf38e",                 // open a socket
	"4909bf22",                 // O_PATH with a way of access
	"cc41d41b",                 // the flags of a descriptor
	"66530fdb49e9ad6b",         // O_CREAT without access on a read-only mount
	"712cdd8a79364197",         // fchmod of a descriptor that names a file
	"65c9dc67",                 // O_CREAT and a slash at the end
	"5067fd34",                 // a path of nearly PATH_MAX bytes that leaves where it begins
	"135705ed",                 // the same, opened
	"57bfc1bc8b452701",         // O_DIRECTORY and O_NOFOLLOW with a link in /proc
	"baa986e0c258fecd03bfb651", // two thousand dots, and a link in /proc
	"521c0d3808529949c55794b9", // truncate(2) to the size that is there, on overlayfs
	"d40a044e968a9d9f",         // the flags of a device
	"37ba64eb9fd44b80",         // .. of a directory that may not be searched
	"322b12013db86a83",         // the same of the working directory
	"7b1e91d16399f54f",         // chmod of one with a name that matters in repositories
	"650cc792",                 // O_CREAT, a name that is too long, and a slash at its end
	"a915376f5df5ecda",         // O_CREAT, a slash at the end, and a link to where nobody may search

	"e9bd3021244754c1f784f1d4",                 // chmod of the config of a repository, where nobody may search
	"a068f24d2c22897818dc0add",                 // chmod of a link on a read-only mount
	"b74c9c5fb9c537cc56c46ef921232dce",         // .. of a descriptor's name in /proc, below a directory that may not be searched
	"bcd7eefe2c1674143a2cd90e91298291",         // the same, by an ACL that lets nobody search
	"eee1e35e6aacc90e79f2287b4a03e9dc",         // a file that was made without a name where names are protected, and got one elsewhere
	"d6fded59b720cc07c1dfac60a62984248356a1fc", // the same, where the directory has the name of an index

	"0b4b28e0ccb59bb9b6cec1386657ace0", // the configuration of a new repository, below a directory that may not be searched
	"077ed90a3bb894a7",                 // a refused rename to the configuration of a worktree, whose directory has its own times
	"b2f7570847da7f1e",                 // the flags of the configuration of a new repository
	"ec2310d0fe45a560",                 // the same, which the guard opens for reading
	"3926bdb4836a25be",                 // the access time of a configuration that is not removed

	"889ffe0a",         // O_EXCL of what is there, without a descriptor left
	"a82c4f8c95e4c4b6", // the access time of a file that is not taken for a configuration

	"2304ed6c03992d69fd56e0687ee54990", // rename from a removed directory to another mount
	"7c46989a843a7f964dd2af5a",         // O_EXCL without a descriptor left: the directory's times (explained)
}

func newComparison(tb testing.TB, w who, on string) *comparison {
	tb.Helper()
	dir, err := os.MkdirTemp(on, "differential-")
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "home"), 0o755)
	}
	for _, name := range []string{"ws", "rw"} {
		if err == nil {
			err = os.Mkdir(filepath.Join(dir, name), 0o755)
		}
	}
	if err == nil && isRoot() {
		err = os.Chown(dir, w.uid, w.uid)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "run"), 0o700)
	}
	if err == nil && isRoot() {
		err = os.Chown(filepath.Join(dir, "run"), w.uid, w.uid)
	}
	if err != nil {
		tb.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	tb.Cleanup(func() {
		exec.Command("chmod", "-R", "u+rwx", "--", dir).Run()
		os.RemoveAll(dir)
	})
	return &comparison{TB: tb, who: w, dir: dir}
}

func sequenceOf(b []byte) (s sequence) {
	for ; len(b) >= 4; b = b[4:] {
		s = append(s, binary.BigEndian.Uint32(b))
	}
	return s
}
