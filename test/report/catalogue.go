package main

// A threat is one line of the security design: something that a command tries, or
// that happens to a sandbox, and must not work. Its tests are those that carry
// its id, TestBattery/F01 and the like, and those that are named here.
type threat struct {
	id, title string

	// tests are others that try it, with the package before the name but for
	// test/integration: "native.TestManyRuns".
	tests []string

	// unbuilt says of which part of sbxrun, that is not built yet, it is a matter.
	// It ends when a test shows up.
	unbuilt string
}

// catalogue is what the report must account for, whole: an id that no test tries
// and that is not for something unbuilt is a failure.
var catalogue = []threat{
	{id: "F01", title: "write to /etc, /usr, /boot"},
	{id: "F02", title: "read keys, tokens and the host's home"},
	{id: "F03", title: "write through a symbolic link in the workspace"},
	{id: "F04", title: "sources, targets and their parents swapped with symbolic links during set-up", tests: []string{"native.TestSwapAtEveryStep", "native.TestSwapRaces"}},
	{id: "F05", title: "/dev, /proc and the like are symbolic links in what is shown"},
	{id: "F06", title: "create a protected path that is absent", tests: []string{"TestSessionProtected"}},
	{id: "F08", title: "a protected path ten levels deep"},
	{id: "F09", title: "hostile git configuration, then git on the host"},
	{id: "F10", title: "shell start-up files, cron, autostart, systemd units of the user"},
	{id: "F11", title: "hard links to files outside the workspace"},
	{id: "F13", title: "make or open a device node"},
	{id: "F15", title: "set-user-id files in the workspace"},
	{id: "F16", title: "write the programs that run"},
	{id: "F18", title: "the kernel's switches in /proc and /sys"},
	{id: "F19", title: "take a mask away"},
	{id: "F20", title: "a temporary path that was made beforehand"},
	{id: "F21", title: "read or change policy, filter and state"},
	{id: "F23", title: "sbxrun killed: no placeholder is left"},
	{id: "F24", title: "rules that overlap, in any order", tests: []string{"seatbelt.TestSameDecisions"}},
	{id: "F25", title: "what later runs obey", tests: []string{"profiles.TestOwnKept", "internal/engine.TestOwnIsWhole"}},
	{id: "F27", title: "links and FIFOs where a flag names a file", tests: []string{"internal/cli.TestNamed", "internal/audit.TestLocked", "TestAuditHidden", "TestAuditBegins"}},
	{id: "F26", title: "a project's own file loosens", tests: []string{"profiles.TestProjectLoosensNothing", "profiles.TestLoosened"}},
	{id: "F31", title: "move, exchange, replace or remove what is hidden or read-only in the workspace", tests: []string{"TestSessionPoints"}},
	{id: "F33", title: "read what only who makes calls for the command may read", tests: []string{"TestSessionPeers"}},
	{id: "F34", title: "change what was passed in for reading"},
	{id: "F35", title: "a rebase with lines of the command's, then git on the host"},
	{id: "F36", title: "protected paths in what is copied out of a session", tests: []string{"TestSessionCopyProtected", "internal/files.TestExtractAsks", "internal/files.TestExtractModes"}},
	{id: "F32", title: "a workspace below /tmp, /var/tmp, /run, /dev/shm, and what leads to it renamed", tests: []string{"TestSessionPoints"}},

	{id: "P01", title: "capabilities"},
	{id: "P02", title: "no_new_privs and a filter on every thread"},
	{id: "P03", title: "su, sudo, file capabilities"},
	{id: "P05", title: "kill everything in sight"},
	{id: "P06", title: "a daemon that is deaf to TERM"},
	{id: "P07", title: "a grandchild that holds stdout"},
	{id: "P08", title: "stopped children at the timeout"},
	{id: "P09", title: "make namespaces"},
	{id: "P10", title: "join namespaces"},
	{id: "P12", title: "secrets in the environment"},
	{id: "P14", title: "processes of the host in /proc"},
	{id: "P16", title: "a crash and its core"},
	{id: "P18", title: "real-time scheduling, negative nice"},
	{id: "P19", title: "exit, signal, OOM and timeout told apart"},
	{id: "P20", title: "shared memory, queues and the name of the host"},
	{id: "P21", title: "priority, processors and limits of the user's other processes", tests: []string{"driver/landlocked.TestOthers"}},

	{id: "K01", title: "int 0x80"},
	{id: "K02", title: "x32 system calls"},
	{id: "K03", title: "TIOCSTI"},
	{id: "K05", title: "mount calls, old and new"},
	{id: "K06", title: "bpf, perf, userfaultfd, io_uring"},
	{id: "K07", title: "rare address families"},
	{id: "K08", title: "MPTCP, SCTP, raw sockets, Fast Open"},
	{id: "K09", title: "kexec, modules, reboot, swap"},
	{id: "K11", title: "move to another cgroup"},
	{id: "K12", title: "a layer cannot be had"},
	{id: "K13", title: "suspend the filter by ptrace"},
	{id: "K14", title: "where only Landlock stands"},
	{id: "K15", title: "leases on files that are shown", tests: []string{"seccomp.TestDecisions"}},

	{id: "N01", title: "public addresses"},
	{id: "N02", title: "the host's loopback"},
	{id: "N03", title: "sockets of the host's services"},
	{id: "N04", title: "DNS by any route", tests: []string{"egress.TestDNS"}},
	{id: "N06", title: "cloud metadata"},
	{id: "N08", title: "listen where others can connect"},
	{id: "N10", title: "ICMP, routes, links"},

	{id: "E01", title: "names that look like an allowed one", tests: []string{"egress.TestDecide", "TestEgressAddresses"}},
	{id: "E03", title: "NUL, CR, LF, %00 in a host name", tests: []string{"egress.TestParseRequestBad", "egress.TestSOCKSBad"}},
	{id: "E04", title: "addresses in other spellings", tests: []string{"egress.TestParseRequestBad", "egress.TestSOCKSBad", "TestEgressAddresses"}},
	{id: "E06", title: "the same decision on every route", tests: []string{"egress.TestSameDecision"}},
	{id: "E07", title: "Host differs from the target", tests: []string{"egress.TestHost", "egress.TestParseRequestBad", "egress.TestTLS"}},
	{id: "E09", title: "DNS rebinding", tests: []string{"egress.TestGuardDials", "TestEgressAddresses"}},
	{id: "E10", title: "an allowed name with a private address", tests: []string{"egress.TestDecide", "egress.TestClassify", "egress.TestGuardDials", "TestEgressAddresses"}},
	{id: "E11", title: "request smuggling", tests: []string{"egress.TestSmuggling", "egress.TestParseRequestBad"}},
	{id: "E13", title: "redirect to a denied host", tests: []string{"egress.TestHTTPDenied", "egress.TestHost", "TestEgressProxy"}},
	{id: "E14", title: "an empty list, a malformed rule", tests: []string{"egress.TestDecide", "egress.TestCompile", "TestEgressProxy"}},
	{id: "E15", title: "a relay inside, an edited NO_PROXY", tests: []string{"TestEgressProxy"}},
	{id: "E16", title: "another sandbox's proxy token", tests: []string{"egress.TestToken", "TestEgressProxy"}},
	{id: "E18", title: "ports that are not listed", tests: []string{"egress.TestDecide", "TestEgressAddresses"}},
	{id: "E19", title: "slowloris, floods, stalls", tests: []string{"egress.TestMany", "egress.TestSlow"}},
	{id: "E21", title: "Upgrade, HTTP/2, pipelined bytes", tests: []string{"egress.TestSmuggling", "egress.TestUpgrade", "egress.TestParseRequestBad"}},
	{id: "E22", title: "control characters in the log", tests: []string{"egress.TestClean"}},
	{id: "E23", title: "TLS records before a ClientHello, a second ClientHello", tests: []string{"egress.TestSecondClientHello", "egress.TestSkips", "egress.TestClients", "egress.TestFuzzServers"}},
	{id: "E24", title: "requests that only some servers take for HTTP", tests: []string{"egress.TestSniff", "egress.TestSkips", "egress.TestProxyHeader", "egress.TestRaw", "egress.TestFuzzServers"}},
	{id: "E25", title: "rules that change while a connection is made", tests: []string{"egress.TestReloadDial"}},

	{id: "R01", title: "fork bomb"},
	{id: "R02", title: "memory hog"},
	{id: "R03", title: "private storage full"},
	{id: "R04", title: "descriptor flood"},
	{id: "R05", title: "10 GB of output"},
	{id: "R07", title: "a directory 100,000 deep"},
	{id: "R10", title: "burning the processor"},
	{id: "R11", title: "raising limits"},
	{id: "R12", title: "10,000 runs leave nothing", tests: []string{"TestManyRuns", "native.TestManyRuns", "TestManySessions", "native.TestManySandboxes"}},
	{id: "R13", title: "a host that is short of something during set-up", tests: []string{"TestEveryCallFails", "native.TestEveryStepFails"}},
	{id: "R14", title: "memory of the kernel that no cgroup counts"},
	{id: "R15", title: "volumes and a health check that an image declares", tests: []string{"driver/docker.TestHostile", "driver/docker.TestPodman"}},

	{id: "T01", title: "TIOCSTI on the caller's terminal"},
	{id: "T02", title: "TIOCLINUX"},
	{id: "T04", title: "the host's terminals"},
	{id: "T05", title: "terminal modes after a crash"},
	{id: "T07", title: "Ctrl-C and resize"},

	{id: "V01", title: "SIGKILL of sbxrun at any moment", tests: []string{"TestSupervisorKilledAtEveryCall", "native.TestSupervisorKilledAtEveryStep", "internal/reexec.TestSupervisorKilled"}},
	{id: "V02", title: "a forged or truncated handshake", tests: []string{"internal/reexec.TestForgedMessages"}},
	{id: "V03", title: "the end of a Go thread", tests: []string{"internal/reexec.TestThreadExit"}},
	{id: "V05", title: "descriptors of the caller's"},
	{id: "V06", title: "attach to process 1"},
	{id: "V08", title: "a signal to a pid that is another's by now", tests: []string{"internal/reexec.TestSignalAndKill"}},
	{id: "V10", title: "the policy file is edited during a run"},
	{id: "V11", title: "parsers of untrusted input, by their seeds; make fuzz goes on", tests: []string{
		"profiles.FuzzProfile", "profiles.FuzzParseSize", "profiles.FuzzTools", "seccomp.FuzzParse", "cgroups.FuzzParse", "policy.FuzzParseEgressRule", "internal/systemd.FuzzParse",
		"internal/command.FuzzCheck", "internal/mcpserver/fuzz.FuzzCall", "internal/mcpserver/fuzz.FuzzLines", "internal/mcpserver/fuzz.FuzzHTTP", "internal/audit.FuzzLine"}},

	{id: "A01", title: "paths that lead out of a session's files", tests: []string{"internal/files.TestExtractStaysInside", "TestSessionFiles", "TestSessionHuge", "cmd/sbxrun-mcp.TestFiles", "session.TestPaths", "internal/files.FuzzExtract"}},
	{id: "A04", title: "duplicate, case-variant, unknown keys", tests: []string{"internal/strictjson.TestCheck", "internal/strictjson.FuzzCheck", "cmd/sbxrun-mcp.TestTools", "profiles.TestParseBad", "cmd/sbxrun-mcp.TestNoWeaker", "internal/mcpserver/fuzz.FuzzCall"}},
	{id: "A06", title: "YAML bombs and cycles", tests: []string{"profiles.TestParseBad"}},
	{id: "A07", title: "a request to weaken the policy", tests: []string{"cmd/sbxrun-mcp.TestNoWeaker", "cmd/sbxrun-mcp.TestUnsandboxed", "cmd/sbxrun-mcp.TestUnsandboxedProject", "profiles.TestOperator"}},
	{id: "A08", title: "1,000 calls at once", tests: []string{"cmd/sbxrun-mcp.TestConcurrent", "TestSessionManyAtOnce"}},
	{id: "A09", title: "bad Host or Origin, no token", tests: []string{"internal/mcpserver.TestHTTPAccess", "cmd/sbxrun-mcp.TestHTTPToken", "cmd/sbxrun-mcp.TestHosts", "internal/mcpserver/fuzz.FuzzHTTP", "cmd/sbxrun-mcp.TestHTTPFlags"}},
	{id: "A10", title: "cancel and disconnect", tests: []string{"cmd/sbxrun-mcp.TestCancel", "cmd/sbxrun-mcp.TestDisconnect", "TestSessionClientKilled", "internal/mcpserver.TestHTTPGone"}},
	{id: "A12", title: "secrets in logs or argv", tests: []string{"cmd/sbxrun-mcp.TestAudit", "cmd/sbxrun-mcp.TestHTTPToken", "cmd/sbxrun-mcp.TestToken", "internal/audit.TestRedact", "internal/audit.FuzzLine"}},
	{id: "A13", title: "the sockets of servers and sessions, from inside another driver", tests: []string{"cmd/sbxrun-serve.TestSandboxed", "cmd/sbxrun-serve.TestPosing"}},
	{id: "A14", title: "messages that two readers take for two, that are too deep, too long, or none", tests: []string{"cmd/sbxrun-mcp.TestMessages", "cmd/sbxrun-mcp.TestMessagesHTTP", "internal/mcpserver.TestLines", "internal/mcpserver/fuzz.FuzzLines", "cmd/sbxrun-serve.TestAPI"}},
	{id: "A15", title: "names that speak as sbxrun, to a person, a model or a log", tests: []string{"TestVoice", "internal/mcpserver.TestText", "cmd/sbxrun-mcp.TestVoice", "internal/quote.TestInside", "internal/quote.FuzzQuote"}},
	{id: "A16", title: "hints that a command chooses", tests: []string{"internal/cli.TestPropose", "profiles.TestProposable"}},

	{id: "M01", title: "hostile characters in paths", tests: []string{"seatbelt.TestHostilePaths", "seatbelt.TestSameDecisions"}},
	{id: "M02", title: "deny by default, nothing allowed as a whole", tests: []string{"seatbelt.TestServices"}},
	{id: "M03", title: "services that start programs", tests: []string{"seatbelt.TestServices"}},
	{id: "M06", title: "what denies comes last", tests: []string{"seatbelt.TestOrder"}},
	{id: "M07", title: "protected paths that are absent", tests: []string{"seatbelt.TestProtected", "seatbelt.TestProtectedAsGuard"}},
	{id: "M08", title: "the network: the proxy's port or none", tests: []string{"seatbelt.TestServices"}},
	{id: "M09", title: "sockets of container engines", tests: []string{"seatbelt.TestDecisions", "seatbelt.TestServices"}},
}
