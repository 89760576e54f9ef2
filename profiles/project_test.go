package profiles

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
)

// looser are values of each key that give a command more than some profile or
// configuration does. Every key of the schema is here.
var looser = [numKeys][]string{
	keyDescription: {"x"}, keyProfile: {"unrestricted", "development"}, keyExtends: {"none", "unrestricted"},
	keyIsolation: {"none"}, keyDriver: {"host", "landlock"}, keyFallback: {"[host]", "[landlock, host]", "[]"}, keyImage: {"evil/image"},
	keyVerify: {"false"}, keyWorkspace: {"bind", "overlay", "ro", "none"}, keyHome: {"host"}, keyUser: {`"0:0"`, `"1000:0"`}, keyHostname: {"other"},
	keyNetMode: {"host", "proxy"}, keyNetAllow: {`["*"]`, "[a.example]", `["tcp://a.example:443"]`, `["tcp://b.example:443"]`, "[]"}, keyNetDeny: {"[]", "[deny.example]", `["tcp://b.example:443"]`}, keyNetTools: {"true"},
	keyNetPublish: {`["8080:80"]`, `["0.0.0.0:8080:80"]`, "[]"}, keyNetRate: {"none", "100000"}, keyNetLog: {"false"},
	keyRead: {"[/]", "[/etc]", "[~]", "[]"}, keyReadTry: {"[/]", "[~]", "[~/.ssh]"}, keyCopyTry: {"[/etc]", "[~]", "[~/.ssh]"}, keyWrite: {"[~]", "[/data/real]", "[]"}, keyWriteTry: {"[~]", "[/data]"}, keyUnix: {"[/etc]", "[~]", "[.]", "[~/.ssh]"},
	keyHide: {"[]", "[/data]"}, keySecrets: {"[]", "[~/.ssh]", "[~/.ssh/known_hosts]", "[/usr]"}, keyDenyWrite: {"[]", "[~/.ssh]"}, keyDenyExec: {"[./s.sock]", "[]", "[/usr/bin]"},
	keyReadClean: {"[~/.npmrc]", "[/etc/passwd]", "[]"}, keySecretNames: {"[]", "[b.pem]"}, keySecretText: {"[]", `["*"]`},
	keyProtect: {"[]", "[.git]", "[.git/]", "[.git/hooks/]"}, keyUnprotect: {"[all]", "[.git]", "[.git/hooks]", "[]"},
	keyTmpfs: {"[]", `["/tmp:100g"]`, `["/big:100g"]`, "[/big]", "[/x/../big]", `["/big:1m"]`, "[/home/u/.ssh]", "[/home/u]", "[.]", "[.git]", "[/usr]", `["/dev/shm:1g"]`}, keyDevices: {"[/dev/kvm]", "[]"}, keyGPU: {"true"},
	keyGit:     {"true"},
	keyEnvPass: {`["*"]`, "[AWS_SECRET_ACCESS_KEY]", "[]"}, keyEnvSet: {"[LD_PRELOAD=/x]", "[PATH=/x]", "[A=1]", "[A=2]", "[]"}, keyEnvInherit: {"true"},
	keyMemory: {"none", "1t"}, keyCPUs: {"none", "64"}, keyPids: {"none", "100000"}, keyFileSize: {"none", "1t"}, keyOpenFiles: {"none", "1000000"}, keyDisk: {"1t"},
	keyWallTime: {"none", "1000h"}, keyKillAfter: {"0s", "1000h"}, keyOutput: {"none", "1t"},
	keySeccomp: {"none", "default", "./f.json"}, keyRequire: {"[]", "[seccomp]"}, keyDegrade: {"[seccomp, landlock, cgroup]", "[]"}, keySELinux: {"x"}, keyAppArmor: {"unconfined"},
	keyAuditFile: {"/dev/null"}, keyAuditSize: {"1"}, keyAuditKeep: {"0"}, keyUnsandboxed: {"true"}, keyRolloutEnabled: {"false"}, keyRolloutPercent: {"0"}, keyRolloutForce: {"[]"},
}

// TestProjectLoosensNothing gives each key of a project's file, which nobody trusts,
// each of those values, over profiles and a configuration of every kind: it is
// refused, or the policy gives no more than without it.
func TestProjectLoosensNothing(t *testing.T) {
	configs := map[string]string{
		"none": "",
		"tight": "workspace: ro\nnetwork: {mode: proxy, allow: [b.example], deny: [c.example], requests_per_minute: 5, log: true}\n" +
			"files: {read: [~/src], hide: [~/src/hidden], deny_exec: [~/src], deny_write: [./x], protect: [.mine]}\nenv: {set: [A=2, A=1], pass: [EXTRA]}\n" +
			"limits: {memory: 100m, pids: 10, file_size: 1m, wall_time: 5s, kill_after: 0s, output: 1k, disk: 1m}\ntmpfs: [\"/big:1m\"]\n",
		"loose": "workspace: overlay\nfiles: {write: [/data/real], unprotect: [.vscode]}\nlimits: {wall_time: none}\nhome: host\nallow_degraded: [cgroup]\nverify: true\n",
	}
	accepted := 0
	for _, profile := range []string{"strict", "aicode", "development", "docker", "unrestricted"} {
		for kind, config := range configs {
			if profile == "unrestricted" && kind != "none" || profile == "docker" && kind == "loose" {
				continue // it isolates nothing, and protects nothing that could be taken off the list
			}
			f := hostFS()
			putFile(f, "home/u/.config/sbxrun/config.yaml", config)
			putFile(f, "home/u/src/project/f.json", `{"defaultAction":"SCMP_ACT_ALLOW"}`)
			req := Request{Profile: profile, Command: []string{"true"}}
			without, err := Resolve(&req, testFacts(f))
			if err != nil {
				t.Fatalf("%s, %s: %v", profile, kind, err)
			}
			for k := range key(numKeys) {
				if len(looser[k]) == 0 {
					t.Fatalf("%s has no values here", keys[k].name)
				}
				for _, v := range looser[k] {
					yaml := keys[k].name + ": " + v + "\n"
					if group, name, ok := strings.Cut(keys[k].name, "."); ok {
						yaml = group + ":\n  " + name + ": " + v + "\n"
					}
					putFile(f, "home/u/src/project/.sbxrun.yaml", yaml)
					with, err := Resolve(&req, testFacts(f))
					if err != nil {
						continue
					}
					accepted++
					for _, more := range loosened(without, with) {
						t.Errorf("profile %s, configuration %s, project %s: %s", profile, kind, strings.TrimSpace(yaml), more)
					}
				}
			}
		}
	}
	if accepted == 0 {
		t.Error("nothing was accepted: the comparison was not tried")
	}
}

// TestLoosened has the comparison find each loosening when the project is trusted.
func TestLoosened(t *testing.T) {
	for k, v := range map[key]string{keyNetMode: "host", keyRead: "[/opt/tool]", keyUnix: "[.]", keyWrite: "[/data/real]", keyUnprotect: "[all]", keyTmpfs: `["/tmp:100g"]`, keyEnvSet: "[A=1]",
		keyEnvPass: "[EXTRA]", keyMemory: "none", keyPids: "none", keyDisk: "1t", keyWallTime: "none", keyKillAfter: "1000h", keyOutput: "none", keySeccomp: "none", keyDegrade: "[seccomp]",
		keyUser: `"0:0"`, keyDriver: "host", keyFallback: "[host]", keyImage: "x", keyVerify: "false", keyNetPublish: `["8080:80"]`, keyOpenFiles: "none", keyDevices: "[/dev/kvm]", keyGPU: "true"} {
		f := hostFS()
		req := Request{Command: []string{"true"}}
		without, err := Resolve(&req, testFacts(f))
		if err != nil {
			t.Fatal(err)
		}
		group, name, ok := strings.Cut(keys[k].name, ".")
		yaml := group + ": " + v + "\n"
		if ok {
			yaml = group + ":\n  " + name + ": " + v + "\n"
		}
		putFile(f, "home/u/src/project/.sbxrun.yaml", yaml)
		putFile(f, "home/u/.config/sbxrun/trusted", TrustLine("/home/u/src/project/.sbxrun.yaml", yaml)+"\n")
		with, err := Resolve(&req, testFacts(f))
		if err != nil {
			t.Fatal(err)
		}
		if len(loosened(without, with)) == 0 {
			t.Errorf("%s: the comparison sees nothing", strings.TrimSpace(yaml))
		}
	}
}

// TestProjectNamesNoFile: trust is in the content of one file, so that one leads
// to no other, which could change; the names of profiles and filters count.
func TestProjectNamesNoFile(t *testing.T) {
	const name = "home/u/src/project/.sbxrun.yaml"
	resolve := func(src string) error {
		f := hostFS()
		putFile(f, name, src)
		putFile(f, "home/u/src/project/p.yaml", "files: {read: [/opt/tool]}\n")
		putFile(f, "home/u/src/project/f.json", `{"defaultAction": "SCMP_ACT_ALLOW"}`)
		putFile(f, "home/u/.config/sbxrun/profiles/mine.yaml", "extends: strict\n")
		putFile(f, "home/u/.config/sbxrun/trusted", TrustLine("/"+name, src)+"\n")
		_, err := Resolve(&Request{Command: []string{"true"}}, testFacts(f))
		return err
	}
	for _, v := range []string{"profile: ./p.yaml", "profile: p.yaml", "profile: /home/u/src/project/p.yaml", "profile: ~/src/project/p.yaml", "seccomp: ./f.json", "seccomp: f.json"} {
		if err := resolve(v + "\n"); err == nil || !strings.Contains(err.Error(), "names no other file") {
			t.Errorf("%s: %v", v, err)
		}
	}
	for _, v := range []string{"profile: mine", "profile: aicode", "seccomp: default"} { // the control: they count, as trusted
		if err := resolve(v + "\n"); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
}

// loosened says what a gives more than before.
func loosened(before, after *Resolved) (more []string) {
	a, b := before.Policy, after.Policy
	add := func(ok bool, format string, args ...any) {
		if !ok {
			more = append(more, fmt.Sprintf(format, args...))
		}
	}
	add(slices.Equal(before.Drivers, after.Drivers), "drivers %q, not %q", after.Drivers, before.Drivers)
	add(before.Image == after.Image, "image %q", after.Image)
	add(after.Isolated || !before.Isolated, "no isolation")
	add(after.Verify || !before.Verify, "no self-test")
	add(reflect.DeepEqual(before.Operator, after.Operator), "the operator's part: %+v", after.Operator)
	if !before.Isolated {
		return more
	}

	// Files: at every path that either policy names, and one below it.
	var paths []string
	for _, p := range []*policy.Policy{a, b} {
		for _, f := range p.Files {
			paths = append(paths, f.Path, path.Join(f.Path, "below"))
		}
		for _, m := range p.OCI.Mounts {
			paths = append(paths, m.Destination, path.Join(m.Destination, "below"))
		}
	}
	for _, p := range paths {
		was, is := seen(a, p), seen(b, p)
		add(is&^was == 0, "%s is %s, not %s", p, is, was)
	}
	size := func(p *policy.Policy, dest string) string {
		for _, m := range p.OCI.Mounts {
			if m.Destination == dest {
				return strings.Join(m.Options, ",")
			}
		}
		return ""
	}
	for _, m := range b.OCI.Mounts {
		was := size(a, m.Destination)
		add(m.Type == "tmpfs" && (was == strings.Join(m.Options, ",") || was == "" && !strings.Contains(strings.Join(m.Options, ","), "size=")) || was == strings.Join(m.Options, ","), "mount %s %v, not %s", m.Destination, m.Options, was)
	}
	for _, u := range b.Unix {
		add(a.Connects(u), "sockets in %s", u)
	}
	for _, pattern := range a.Protect {
		add(slices.Contains(b.Protect, pattern) || !writesHost(b), "%s is not protected", pattern)
	}
	add(len(b.OCI.Linux.Devices) <= len(a.OCI.Linux.Devices), "devices %v", b.OCI.Linux.Devices)

	// The environment: nothing new, and no other value, but HOME's where that is
	// private and what tells of the network.
	for _, e := range b.OCI.Process.Env {
		k, _, _ := strings.Cut(e, "=")
		add(slices.Contains(a.OCI.Process.Env, e) || k == "HOME" || k == "PWD", "environment %s", e)
	}
	for i := 1; i < len(b.OCI.Process.Env); i++ {
		k, _, _ := strings.Cut(b.OCI.Process.Env[i], "=")
		for _, e := range b.OCI.Process.Env[:i] {
			add(!strings.HasPrefix(e, k+"="), "%s twice", k)
		}
	}

	add(b.Egress.Mode <= a.Egress.Mode, "network %s, not %s", b.Egress.Mode, a.Egress.Mode)
	if b.Egress.Mode == policy.EgressProxy {
		for _, rule := range b.Egress.Allow {
			add(slices.ContainsFunc(a.Egress.Allow, func(r policy.EgressRule) bool { return r.String() == rule.String() }), "host %s", rule)
		}
		for _, rule := range a.Egress.Deny {
			add(slices.ContainsFunc(b.Egress.Deny, func(r policy.EgressRule) bool { return r.String() == rule.String() }), "host %s is not denied", rule)
		}
		add(a.Egress.RequestsPerMinute == 0 || b.Egress.RequestsPerMinute != 0 && b.Egress.RequestsPerMinute <= a.Egress.RequestsPerMinute, "requests %d", b.Egress.RequestsPerMinute)
		add(b.Egress.LogRequests || !a.Egress.LogRequests, "no log of requests")
	}
	add(len(b.Egress.Publish) <= len(a.Egress.Publish), "published %v", b.Egress.Publish)

	limit := func(name string, was, is int64) {
		add(was == 0 || is != 0 && is <= was, "%s %d, not %d", name, is, was)
	}
	limit("wall time", int64(a.Limits.WallTime), int64(b.Limits.WallTime))
	add(b.Limits.KillAfter <= a.Limits.KillAfter, "kill after %v, not %v", b.Limits.KillAfter, a.Limits.KillAfter) // 0 is at once
	limit("output", a.Limits.Output, b.Limits.Output)
	limit("disk", int64(a.Scratch.Bytes), int64(b.Scratch.Bytes))
	was, is := before.merged, after.merged
	for _, k := range []key{keyMemory, keyCPUs, keyPids, keyFileSize, keyOpenFiles} {
		limit(keys[k].name, was.num(k), is.num(k))
	}
	add(a.Seccomp == b.Seccomp && reflect.DeepEqual(a.OCI.Linux.Seccomp, b.OCI.Linux.Seccomp), "filter %q", b.Seccomp)
	lost := a.Require &^ b.Require
	if b.Egress.Mode == a.Egress.Mode && !writesHost(b) {
		lost &^= policy.LayerProtect // nothing is writable
	}
	add(lost == 0, "without %s", lost)
	add(b.Degrade&^a.Degrade == 0, "degraded %s", b.Degrade)
	add(a.OCI.Process.User.UID == b.OCI.Process.User.UID && a.OCI.Process.User.GID == b.OCI.Process.User.GID, "user %v", b.OCI.Process.User)
	add(a.OCI.Process.SelinuxLabel == b.OCI.Process.SelinuxLabel && a.OCI.Process.ApparmorProfile == b.OCI.Process.ApparmorProfile, "labels")
	return more
}

// seen is what a policy gives of the host's own at a path.
func seen(p *policy.Policy, at string) policy.Access {
	best, access := "", policy.Hide
	for _, f := range policy.Sort(p.Files) {
		if policy.Below(at, f.Path) && len(f.Path) >= len(best) {
			if best, access = f.Path, f.Access; f.Overlay {
				access &^= policy.Write
			}
		}
	}
	for _, m := range p.OCI.Mounts {
		if m.Type != "bind" && policy.Below(at, m.Destination) && len(m.Destination) > len(best) {
			return policy.Hide // private
		}
	}
	return access
}
