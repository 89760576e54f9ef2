//go:build linux

package main

import (
	"cmp"
	"slices"
	"strings"
)

// A configuration is a place to test in: a kernel, a root file system, and what
// runs there. To add one, add it to configurations; that is all. A root file
// system of its own is an entry of roots.
type configuration struct {
	name, about string

	// arch is the processor, by Debian's name; amd64 if empty.
	arch   string
	kernel kernel
	// cmdline is put behind the kernel's command line. "vm.init=/sbin/init"
	// starts that instead of /vm/init; it must call /vm/init in the end.
	cmdline string
	// rootfs is a key of roots, "base" if empty.
	rootfs string

	// setup is a part of a shell script, run as root before the suites. It may
	// use what guest/init defines, and fails the boot if it fails.
	setup string
	// who runs the suites: root, or user, with a cgroup that was delegated to
	// it as systemd does.
	who    string
	suites []suite
	// finish is run as root after the suites. It may report tests of its own
	// by the function result.
	finish string

	// nightly: it takes too long for every change.
	nightly bool
	// deb puts what make packages made into the machine, as /vm/sbxrun.deb.
	deb bool
}

func (c configuration) processor() string { return cmp.Or(c.arch, "amd64") }

// The names of what it boots from.
func (c configuration) root() string  { return "root-" + cmp.Or(c.rootfs, "base") + "-" + c.processor() }
func (c configuration) tests() string { return "tests-" + c.processor() }

// debian12 is the release of Debian that root file systems are of.
const debian12 = "bookworm"

// A kernel is Debian's newest of a series.
type kernel struct {
	release string // that has it
	series  string // such as 6.1; the newest of all if empty
	flavour string // 16k for pages of that size; for virtual machines if empty
}

// suffix is how the names of its packages end.
func (k kernel) suffix(arch string) string {
	if k.flavour != "" {
		return arch + "-" + k.flavour
	}
	return "cloud-" + arch
}

// key is its name in the cache.
func (k kernel) key(arch string) string {
	return strings.Join([]string{"kernel", k.release, cmp.Or(k.series, "newest"), cmp.Or(k.flavour, "cloud"), arch}, "-")
}

var (
	linux5_10   = kernel{release: "bullseye", series: "5.10"} // too old
	linux6_1    = kernel{release: debian12, series: "6.1"}
	linux6_12   = kernel{release: debian12, series: "6.12"} // Debian 13's, built for 12
	debian13    = kernel{release: "trixie", series: "6.12"}
	linuxNewest = kernel{release: "trixie-backports"}
	pages16k    = kernel{release: debian12, series: "6.12", flavour: "16k"}
)

// emulators are what runs a processor's programs: qemu with its machine, and the
// name of that machine's console.
var emulators = map[string]struct {
	command []string
	console string
}{
	"amd64": {[]string{"qemu-system-x86_64", "-cpu", "max"}, "ttyS0"},
	// pauth-impdef: Arm's own way to sign pointers takes most of an emulated processor's time.
	"arm64": {[]string{"qemu-system-aarch64", "-M", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"}, "ttyAMA0"},
}

// A suite is the tests of a package. They run in the package's directory, which
// has its testdata and nothing else: no Go tool chain, and no compiler.
type suite struct {
	pkg       string
	run, skip string // as of go test
	short     bool
}

// A root is a root file system: packages by Debian's names, with all that they
// depend on, and what their scripts would have done.
type root struct {
	packages []string
	files    []string // path, content, path, content, …
	links    map[string]string
}

var roots = map[string]root{
	"base":     base(),
	"apparmor": base("apparmor"),
	"dpkg":     base("apparmor", "dpkg"),
	"old":      base("bubblewrap"),
	"power":    base("dmsetup", "e2fsprogs"),
	"selinux":  base("secilc"),
	"systemd":  withSystemd(base()),
}

// base is a root file system with the programs that the tests run, and more.
func base(more ...string) root {
	return root{
		packages: append([]string{
			"base-files", "bash", "bsdutils", "busybox-static", "coreutils", "dash", "diffutils", "findutils", "git", "grep", "gzip", "hostname", "iproute2", "kmod", "libc-bin",
			"login", "mount", "ncurses-base", "procps", "python3", "sed", "sqlite3", "tar", "tzdata", "util-linux",
		}, more...),
		files: []string{
			"/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
			"/etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\nuser:x:1000:\n",
			"/etc/shadow", "root:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\n",
			"/etc/hosts", "127.0.0.1 localhost vm\n::1 localhost\n",
			"/etc/hostname", "vm\n",
			"/etc/resolv.conf", "nameserver 127.0.0.1\n",
			"/etc/fstab", "",
			"/root/.profile", "PS1='# '\n", // something to read
		},
		links: map[string]string{"/usr/bin/awk": "mawk", "/etc/mtab": "/proc/self/mounts", "/lib/modules": "/modules"},
	}
}

// withSystemd is the base with systemd as init, which runs the tests as a service
// of its own and nothing that they do not need.
func withSystemd(r root) root {
	r.packages = append(slices.Clone(r.packages), "dbus", "dbus-user-session", "libpam-modules", "libpam-systemd", "systemd", "systemd-sysv")
	r.files = append(slices.Clone(r.files),
		"/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nmessagebus:x:100:100::/nonexistent:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
		"/etc/group", "root:x:0:\nadm:x:4:\ntty:x:5:\nutmp:x:43:\nmessagebus:x:100:\nsystemd-journal:x:999:\nnogroup:x:65534:\nuser:x:1000:\n",
		"/etc/machine-id", "0123456789abcdef0123456789abcdef\n",
		// A user's manager is started by way of PAM; what Debian's files for that
		// include, libpam-runtime's script would have made.
		"/etc/pam.d/other", "auth required pam_deny.so\naccount required pam_deny.so\npassword required pam_deny.so\nsession required pam_deny.so\n",
		"/etc/pam.d/systemd-user", "account required pam_permit.so\nsession required pam_systemd.so\n",
		"/etc/systemd/system/default.target", "[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=vm.service\nAllowIsolate=yes\n",
		"/etc/systemd/system/vm.service", "[Unit]\nRequires=dbus.service systemd-logind.service\nAfter=basic.target dbus.service systemd-logind.service\n[Service]\nType=oneshot\nExecStart=/vm/init\nTasksMax=infinity\n",
	)
	return r
}

// integration are the tests of test/integration that meet the kernel. The others
// are the same on every one, need a tool chain or PostgreSQL, or move or repeat
// much; of the battery that is N04, R05 and R07.
const (
	integration = "^(TestBattery|TestRegistry|TestLeakCheck|TestExitCodes|TestResultFD|TestDescriptors|TestSignals|TestTerminal.*|TestInheritedTerminal|TestStandardStreams" +
		"|TestNothingLeft|TestCopyTry|TestCustomSeccomp|TestGit|TestPublish|TestSession|TestSessionLimits|TestSessionCommandLimits|TestSessionConfined|TestSessionHolderKilled|TestSessionClientKilled|TestOverlay|TestOverlayFull|TestOverlaySession|TestOverlayConflictDuring|TestUnixSockets|TestUnixSocketsSession|TestAskOnce)$"
	hostOnly = "^TestBattery$/^(N04|R05|R07)$"

	// The longest. Each kernel runs them as one of the two users, and each user on
	// one of the two kernels: half of them where the other half is not.
	everyStep = "TestEveryStepFails|TestSwapAtEveryStep|TestSupervisorKilledAtEveryStep"
	manyRuns  = "TestSessionCommandLimits|TestWithin|TestThousandAtOnce|TestHundredsAtOnce|TestExitCodes"
	neither   = ""
)

// linux are the tests of what a kernel does, but for the longest that are not
// those of this half.
func linux(half string) []suite {
	without, battery := everyStep+"|"+manyRuns, hostOnly+"|^TestBattery$/^R14$" // which takes two minutes
	switch half {
	case everyStep:
		without = manyRuns
	case manyRuns:
		without, battery = everyStep, hostOnly
	}
	list := []suite{
		{pkg: "test/integration", run: integration, skip: battery + "|^(" + without + ")$", short: true},
		{pkg: "native", skip: "^(TestManyRuns|TestManySandboxes|TestSwapRaces|" + without + ")$", short: true}, // thousands of runs
		{pkg: "cgroups"},
		{pkg: "landlock"},
		{pkg: "seccomp", run: "^TestKernel$"}, // the others compile programs,
		{pkg: "internal/reexec"},
		{pkg: "namespaces"},
		{pkg: "mounts"},
		{pkg: "internal/probe"},
		{pkg: "internal/sigpipe"},
		{pkg: "driver/host"},
	}
	if half == manyRuns {
		list = append(list, suite{pkg: "cmd/sbxrun-serve", run: "^(TestRun|TestGone|TestClientKilled|TestAPI)$", short: true})
	}
	return list
}

// linuxRoot are the same without the other half of those tests that are run as each
// user: on a real host root's suite covers an ordinary user too, who has machines of
// his own here.
func linuxRoot(half string) []suite {
	list := linux(half)
	for i := range list {
		switch list[i].pkg {
		case "test/integration":
			list[i].skip += "|.*/^user$|.*/.*/^user$"
		case "cmd/sbxrun-serve":
			list[i].skip = ".*/^uid_54321$"
		}
	}
	return slices.Insert(list, 1, suite{pkg: "test/integration", run: "^TestEffects$"})
}

// arm64 adds to the tests of what a kernel does those of what sbxrun has of its own
// for each processor: the guard, which decides by numbers of system calls, and
// assembly. The longest are left to amd64: what they try is the same everywhere.
func arm64(list []suite) []suite {
	list[0].run = strings.TrimSuffix(list[0].run, ")$") + "|TestGuardDifferential|TestNoThreads|TestProtectedMadeDuringRun|TestProtectedAnswers|TestSessionProtected|TestGitProtected|TestHeadIsHeld)$"
	return append(list,
		suite{pkg: "internal/guard", skip: "^TestRenamesElsewhere$"}, // which wants a second processor
		suite{pkg: "internal/sys"},
		suite{pkg: "session", short: true},
		suite{pkg: "pool", skip: "^TestKilledAtRandom$", short: true}, // hundreds of runs
		mcp)
}

// mcp is the server of tools for agents. TestHTTPToken wants curl.
var mcp = suite{pkg: "cmd/sbxrun-mcp", run: "^(TestTools|TestBash|TestExecute|TestFiles|TestSessions|TestBackground|TestConcurrent|TestCancel|TestDisconnect|TestMessages|TestAudit)$", short: true}

var configurations = []configuration{
	{name: "6.1-root", about: "Linux 6.1, cgroup v2, as root", kernel: linux6_1, who: "root", suites: linuxRoot(everyStep), finish: "restart_inside"},
	{name: "6.12-root", about: "Linux 6.12, cgroup v2, as root", kernel: linux6_12, who: "root", suites: linuxRoot(manyRuns), finish: "restart_inside"},
	{name: "6.1-user", about: "Linux 6.1, cgroup v2, as an ordinary user with a delegated group", kernel: linux6_1, who: "user", suites: linux(manyRuns)},
	{name: "6.12-user", about: "Linux 6.12, cgroup v2, as an ordinary user with a delegated group", kernel: linux6_12, who: "user", suites: linux(everyStep)},
	{name: "6.1-restricted", about: "Linux 6.1 that restricts user namespaces in three ways; AppArmor's labels", kernel: linux6_1, rootfs: "apparmor", who: "user", finish: ". /vm/restricted"},
	{name: "6.12-restricted", about: "Linux 6.12 that restricts user namespaces in three ways; AppArmor's labels", kernel: linux6_12, rootfs: "apparmor", who: "user", finish: ". /vm/restricted"},
	{name: "6.12-selinux", about: "Linux 6.12 with SELinux, enforcing", kernel: linux6_12, cmdline: "lsm=landlock,selinux", rootfs: "selinux", who: "root",
		setup: "delegate\n. /vm/selinux\nwho=root", suites: []suite{{pkg: "native", run: "^TestLabels$"}}},
	{name: "systemd", about: "Linux 6.1, systemd 252 as init: users' groups from their service manager", kernel: linux6_1, rootfs: "systemd",
		cmdline: "vm.init=/sbin/init", who: "root", suites: []suite{{pkg: "test/integration", run: "^TestSystemd$"}, {pkg: "internal/systemd"}}},
	{name: "5.10", about: "Linux 5.10, which is too old, as an ordinary user: what is said of that", kernel: linux5_10, rootfs: "old", who: "user", finish: ". /vm/old"},

	{name: "debian13-root", about: "Debian 13's Linux 6.12, as root", kernel: debian13, who: "root", suites: linuxRoot(everyStep), finish: "restart_inside", nightly: true},
	{name: "debian13-user", about: "Debian 13's Linux 6.12, as an ordinary user with a delegated group", kernel: debian13, who: "user", suites: linux(manyRuns), nightly: true},
	{name: "newest-root", about: "the newest Linux that Debian 13 has, as root", kernel: linuxNewest, who: "root", suites: linuxRoot(manyRuns), finish: "restart_inside", nightly: true},
	{name: "newest-user", about: "the newest Linux that Debian 13 has, as an ordinary user with a delegated group", kernel: linuxNewest, who: "user", suites: linux(everyStep), nightly: true},

	{name: "day", about: "Linux 6.12, as root: a day in which everything expires, by the machine's clock", kernel: linux6_12, who: "root",
		setup: "export SBXRUN_DAY=4", suites: []suite{{pkg: "test/integration", run: "^TestDay$"}}, nightly: true},
	{name: "power", about: "Linux 6.12, as root: a disk whose power goes away", kernel: linux6_12, rootfs: "power", who: "root",
		setup: "modprobe -a loop dm-flakey", suites: []suite{{pkg: "test/integration", run: "^TestPowerLoss$"}}, nightly: true},

	{name: "arm64-6.1-root", about: "Linux 6.1 on arm64, as root", arch: "arm64", kernel: linux6_1, who: "root", suites: arm64(linuxRoot(neither)), finish: "restart_inside", nightly: true},
	{name: "arm64-6.1-user", about: "Linux 6.1 on arm64, as an ordinary user with a delegated group", arch: "arm64", kernel: linux6_1, who: "user", suites: arm64(linux(neither)), nightly: true},
	{name: "arm64-6.12-root", about: "Linux 6.12 on arm64, as root", arch: "arm64", kernel: linux6_12, who: "root", suites: arm64(linuxRoot(neither)), finish: "restart_inside", nightly: true},
	{name: "arm64-6.12-user", about: "Linux 6.12 on arm64, as an ordinary user with a delegated group", arch: "arm64", kernel: linux6_12, who: "user", suites: arm64(linux(neither)), nightly: true},
	{name: "arm64-16k", about: "Linux 6.12 on arm64 with pages of 16 KiB, as an ordinary user", arch: "arm64", kernel: pages16k, who: "user", suites: arm64(linux(neither)), nightly: true},
	{name: "arm64-newest", about: "the newest Linux that Debian 13 has, on arm64, as an ordinary user", arch: "arm64", kernel: linuxNewest, who: "user", suites: arm64(linux(neither)), nightly: true},
	{name: "arm64-package", about: "the Debian package on arm64: installed, used as root and as an ordinary user, removed", arch: "arm64", kernel: linux6_12, rootfs: "dpkg", who: "user", finish: ". /vm/package", deb: true, nightly: true},
}
