//go:build linux

package integration

import (
	"os"
	"strings"
	"testing"
)

// TestMistakes types what a new user may: flags and commands of other programs, words in the
// wrong place, names that are misspelt. Each answer says what is wrong, and what to type; and
// nothing runs.
func TestMistakes(t *testing.T) {
	p := newPersona(t, whos[0])
	p.own()
	ran := p.path("ws/ran")
	for _, tt := range []struct {
		line   string // "T" is a command that leaves a trace
		says   string // in the error
		answer string // in the hint
	}{
		{"run --rm -it ubuntu T", "--rm", "sbxrun run -- CMD"},
		{"run --volume /a:/b -- T", "--volume", "--bind SRC:DST"},
		{"run -v /a:/b T", "/a:/b", "--bind SRC:DST"},
		{"run --mount type=bind,source=/a,target=/b -- T", "--mount", "--bind"},
		{"run -p 8080:80 -- T", "-p", "--publish"},
		{"run --network none -- T", "--network", "--net none"},
		{"run -w /tmp -- T", "-w", "-C DIR"},
		{"run -m 512m -- T", "-m", "--memory"},
		{"run --gpus all -- T", "--gpus", "--gpu,"},
		{"run --dns 1.1.1.1 -- T", "--dns", "--allow-host"},
		{"run -d --name web -- T", "-d", "session create"},
		{"run --privileged -- T", "--privileged", "--driver host"},
		{"exec -it web T", "exec: command not found", "sbxrun session exec"},
		{"stop web", "stop: command not found", "sbxrun session stop"},
		{"logs web", "logs: command not found", "sbxrun session logs"},
		{"--ro-bind / / T", "--ro-bind", "--ro PATH"},
		{"--bind /a /a T", "--bind", "SRC:DST"},
		{"--dev /dev --proc /proc T", "--dev", "leave it out"},
		{"--unshare-all T", "--unshare-all", "leave it out"},
		{"--whitelist=/a T", "--whitelist", "--rw PATH"},
		{"--blacklist=/a T", "--blacklist", "--hide PATH"},
		{"--private T", "--private", "leave it out"},
		{"--net=eth0 T", "eth0", "none"},
		{"-- --ro /opt T", "--ro", "before --"},
		{"--memory 512 -- T", "--memory: 512", "512m"},
		{"--memory lots -- T", "lots", "512m"},
		{"--timeout 30 -- T", "30", "30s"},
		{"--timeout 5min -- T", "5min", "5m"},
		{"--cpus two -- T", "two", "1.5"},
		{"--pids 1 --verify -- T", "did not finish", "--pids"},
		{"--profile stric -- T", "stric", "did you mean strict?"},
		{"--profile ./none.yaml -- T", "none.yaml does not exist", "strict, aicode"},
		{"profile check none.yaml", "none.yaml does not exist", "correct the path"},
		{"profle list", "profle", "did you mean sbxrun profile?"},
		{"--ro nothing -- T", "nothing does not exist", "correct the path"},
		{"--env-file nothing -- T", "nothing does not exist", "correct the path"},
		{"--seccomp ./my.json -- T", "my.json does not exist", "strict"},
		{"--allow-host https://example.com/x -- T", "example.com/x", "https://example.com"},
		{"--publish 8080 -- T", "8080", "8080:80"},
		{"--user nobody -- T", "nobody", "1000:1000"},
		{"--driver dockr -- T", "dockr", "did you mean docker?"},
		{"--driver docker -- T", "image", "--image"},
		{"session new", "new", "create"},
		{"session exec touch", "no command", "sbxrun session exec"},
		{"session exec nope -- T", "nope", "sbxrun session ls"},
		{"integrate claude", "claude", "did you mean claude-code?"},
		{"integrate cursor", "cursor", "shell and mcp"},
		{"agent clade", "clade", "claude, codex"},
		{"serve strct", "strct", "did you mean strict?"},
		{"-V", "-V", "sbxrun version"},
		{"apply nope", "nope", "sbxrun diff --list"},
		{"", "no command", "sbxrun -- make test"},
		{"profle: aicode | -- T", "unknown key profle", "did you mean profile?"},
		{"memory: 1g | -- T", "unknown key memory", "limits.memory"},
		{"limits: {timeout: 5m} | -- T", "limits.timeout", "limits.wall_time"},
		{"limits: {memory: 512 MB} | -- T", "512 MB", "512m"},
		{"network: {allow: example.com} | -- T", "network.allow is a list", "- ITEM"},
		{"files: {write: [/etc]} | -- T", "files.write", "take the key out"},
	} {
		project, line, ok := strings.Cut(tt.line, " | ")
		if !ok {
			project, line = "", tt.line
		}
		if project != "" {
			p.write("ws/.sbxrun.yaml", project+"\n", 0o644)
		}
		var args []string
		for _, word := range strings.Fields(line) {
			if word == "T" {
				args = append(args, "touch", "ran")
			} else {
				args = append(args, word)
			}
		}
		o := p.do(call{args: p.who.command(append([]string{sbxrun}, args...)...), env: append(p.env, "SBXRUN_VERIFY=false")})
		var said, hint string
		for line := range strings.Lines(o.stderr) {
			if rest, ok := strings.CutPrefix(line, "sbxrun: error: "); ok {
				said += rest
			} else if rest, ok := strings.CutPrefix(line, "sbxrun: hint: "); ok {
				hint += rest
			}
		}
		if o.code == 0 || o.stdout != "" || !strings.Contains(said, tt.says) || !strings.Contains(hint, tt.answer) {
			t.Errorf("sbxrun %s: want %q and %q: %v", tt.line, tt.says, tt.answer, o)
		}
		if _, err := os.Lstat(ran); err == nil {
			t.Errorf("sbxrun %s: ran", tt.line)
			os.Remove(ran)
		}
		os.Remove(p.path("ws/.sbxrun.yaml"))
	}
}
