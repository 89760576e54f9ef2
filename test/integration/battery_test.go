//go:build linux

package integration

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// An entry is one test of the battery: an attack, what its acts must get in the
// sandbox, and controls that show that the attack is one.
type entry struct {
	id, title string

	// The attack: flags of sbxrun beside --profile strict, and the arguments of
	// the attack. setup prepares the fixture first.
	setup func(*fixture)
	flags func(*fixture) []string
	args  func(*fixture) []string
	stdin func(*fixture) *os.File // nil is /dev/null

	// What the acts must get: one of the values between bars. deny is for every
	// act that want does not name; a neighbour that want does not name must
	// succeed. A value "<=N" or ">=N" is for numbers, "*" for what is not to be
	// judged.
	deny string
	want map[string]string

	// check looks at what is not in the report.
	check func(*fixture, *outcome)

	controls []control

	// test is for an entry that does not fit the above, and takes its place.
	test func(*fixture)

	// named are the parts of the test that this suite cannot do, each with the
	// reason and the place that can.
	named map[string]string

	// cgroup says that the entry is of a limit that needs one.
	cgroup bool
	// alone keeps the entry from running beside others: it measures, or takes a
	// lot.
	alone bool
}

// A control runs an attack without the protection that it is about.
type control struct {
	name string
	run  func(*fixture, *entry)
}

// all is the battery, in the order of the security design.
func all() []entry {
	return slices.Concat(fileTests(), protectTests(), pointTests(), processTests(), kernelTests(), networkTests(), resourceTests(), terminalTests(), supervisorTests())
}

// TestBattery runs every entry as each user: TestBattery/F01/root.
func TestBattery(t *testing.T) {
	for _, e := range all() {
		t.Run(e.id, func(t *testing.T) {
			for _, w := range whos {
				t.Run(w.name, func(t *testing.T) {
					if !e.alone {
						t.Parallel()
					}
					if e.cgroup {
						w.needCgroup(t)
					}
					for part, why := range e.named {
						t.Logf("%s %s: not tested here: %s", e.id, part, why)
					}
					if e.test != nil {
						e.test(newFixture(t, w))
					} else {
						e.attack(newFixture(t, w))
					}
					for _, c := range e.controls {
						t.Run("control "+c.name, func(t *testing.T) {
							f := newFixture(t, w)
							if e.setup != nil {
								e.setup(f)
							}
							c.run(f, &e)
						})
					}
				})
			}
		})
	}
}

// TestRegistry keeps the battery honest: every identifier once, none without a
// control.
func TestRegistry(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range all() {
		if seen[e.id] {
			t.Errorf("%s is there twice", e.id)
		}
		seen[e.id] = true
		if e.title == "" || (e.test == nil && len(e.controls) == 0) {
			t.Errorf("%s has no title or no control", e.id)
		}
	}
	for _, id := range strings.Fields(`F01 F02 F03 F05 F06 F08 F09 F10 F11 F13 F15 F16 F18 F19 F20 F21 F23 F24 P01 P02 P03 P05 P06 P07 P08 P09 P10 P12 P14 P16 P18 P19 P20
		K01 K02 K03 K05 K06 K07 K08 K09 K11 K12 K13 K14 N01 N02 N03 N06 N08 N10 R01 R02 R03 R04 R05 R07 R10 R11 T01 T02 T04 T05 T07 V05 V06 V10`) {
		if !seen[id] {
			t.Errorf("%s is missing", id)
		}
	}
	// F04, R12, R13, V01, V02, V03 and others are tests of their own: the catalogue
	// of test/report knows them all, and fails for an id without a test.
	//
	// V02 (a forged or truncated handshake of the child fails closed) and V03
	// (the end of a Go thread does not kill the child) are TestForgedMessages and
	// TestThreadExit of internal/reexec, where a handshake can be forged.
}

// attack runs an entry's attack under strict.
func (e *entry) attack(f *fixture) {
	f.Helper()
	if e.setup != nil {
		e.setup(f)
	}
	var flags []string
	if e.flags != nil {
		flags = e.flags(f)
	}
	c := call{args: f.strict(flags, append([]string{f.attack, e.id}, e.arguments(f)...)...)}
	if e.stdin != nil {
		c.stdin = e.stdin(f)
	}
	o := f.do(c)
	e.judge(f, f.report(o), e.inside)
	if f.Failed() {
		f.Logf("%v", o)
	}
	f.wantUnchanged()
	if e.check != nil {
		e.check(f, o)
	}
}

func (e *entry) arguments(f *fixture) []string {
	if e.args == nil {
		return nil
	}
	return e.args(f)
}

const neighbour = "neighbour: "

// inside is what an act must get in the sandbox.
func (e *entry) inside(act string) string {
	if w, ok := e.want[act]; ok {
		return w
	}
	if strings.HasPrefix(act, neighbour) {
		return "ok"
	}
	return e.deny
}

// judge compares a report with what was wanted.
func (e *entry) judge(f *fixture, r *report, want func(act string) string) {
	f.Helper()
	if len(r.Acts) == 0 {
		f.Errorf("the attack tried nothing")
	}
	for _, a := range r.Acts {
		if w := want(a.Act); !match(w, a.Got) {
			f.Errorf("%s: %s: got %s, want %s", e.id, a.Act, a.Got, w)
		}
	}
}

// match reports whether an act got one of the wanted values.
func match(want, got string) bool {
	for w := range strings.SplitSeq(want, "|") {
		switch {
		case w == "*" || w == got:
			return true
		case strings.HasPrefix(w, "<="), strings.HasPrefix(w, ">="):
			n, err := strconv.Atoi(got)
			bound, _ := strconv.Atoi(w[2:])
			if err == nil && (w[0] == '<' && n <= bound || w[0] == '>' && n >= bound) {
				return true
			}
		}
	}
	return false
}

// A jail is a control's place: throwaway namespaces, without filters, in which
// the attacker is root.
type jail struct {
	flags []string // of stage
	want  map[string]string
	args  func(*fixture) []string // instead of the entry's
	env   []string

	// except are acts that this control says nothing about, each with the
	// reason.
	except map[string]string
}

// kinds of namespaces to give to a jail.
const (
	ownUser = "user,pid,mnt,net,ipc,uts" // root of nothing but the jail
	hostNet = "user,pid,mnt,ipc,uts"     // for what is harmless there
	noUser  = "pid,mnt,net,ipc,uts"      // the host's root, in a jail
)

// jailed is the control in namespaces of its own, as the same user. Every act
// that want does not name must succeed.
func jailed(j jail) control {
	return control{"without the sandbox", func(f *fixture, e *entry) {
		f.Helper()
		j.run(f, e, ownUser)
	}}
}

// asHostRoot is jailed, but as the host's root: for what the kernel gives to no
// other. It is for attacks that do no harm even so.
func asHostRoot(j jail) control {
	return control{"as root without the sandbox", func(f *fixture, e *entry) {
		f.Helper()
		if !isRoot() {
			f.Skip("needs root: the kernel refuses this to everybody else, sandbox or not")
		}
		f.who = who{name: "root"}
		j.run(f, e, noUser)
	}}
}

func (j jail) run(f *fixture, e *entry, namespaces string) {
	f.Helper()
	args := j.args
	if args == nil {
		args = e.arguments
	}
	c := call{args: f.jail(namespaces, j.flags, append([]string{f.attack, e.id}, args(f)...)...), env: j.env,
		timeout: 5 * limit} // an emulated kernel loads a module for each family of sockets
	if e.stdin != nil {
		c.stdin = e.stdin(f)
	}
	o := f.do(c)
	e.judge(f, f.report(o), func(act string) string {
		if why, ok := j.except[act]; ok {
			f.Logf("control of %q: %s", act, why)
			return "*"
		}
		if w, ok := j.want[act]; ok {
			return w
		}
		return "ok"
	})
	if f.Failed() {
		f.Logf("%v", o)
	}
}

// jail is the command line of a command in throwaway namespaces.
func (f *fixture) jail(namespaces string, flags []string, command ...string) []string {
	args := f.who.command(stage, "-jail", namespaces, "-proc")
	for _, fl := range flags {
		args = append(args, f.expand(fl))
	}
	return append(append(args, "--"), command...)
}

// expand puts the fixture's paths into a flag.
func (f *fixture) expand(s string) string {
	return strings.NewReplacer("{ws}", f.ws, "{outside}", f.outside, "{home}", f.home, "{dir}", f.dir).Replace(s)
}

// witnessed is the control for calls that no test may let through, and for those
// that this host's kernel was built without: a filter answers each with an
// errno that no kernel gives it, so an act that gets it did make the call. calls
// are in the form that stage -answer takes; every act that is no neighbour must
// get the answer.
func witnessed(calls []string, except map[string]string) control {
	return control{"with a witness", func(f *fixture, e *entry) {
		f.Helper()
		command := []string{stage, "-answer", "ENOANO=" + strings.Join(calls, ","), "--", f.attack, e.id}
		// In a jail all the same, for what the witness does not answer.
		o := f.do(call{args: f.jail(ownUser, nil, append(command, e.arguments(f)...)...)})
		e.judge(f, f.report(o), func(act string) string {
			if strings.HasPrefix(act, neighbour) {
				return "*"
			}
			if why, ok := except[act]; ok {
				f.Logf("witness of %q: %s", act, why)
				return "*"
			}
			return "ENOANO"
		})
		if f.Failed() {
			f.Logf("%v", o)
		}
	}}
}

// landlockABI is the version of Landlock that this kernel has, 0 if none; see
// landlock_create_ruleset(2). What an act meets depends on it.
func landlockABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// numbers are system calls for stage -answer.
func numbers(nr ...uintptr) []string {
	var s []string
	for _, n := range nr {
		s = append(s, fmt.Sprint(n))
	}
	return s
}
