//go:build linux

package agents

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/internal/agents/model"
)

// TestAgentInside: an agent runs in a sandbox as a whole, and reaches its model's
// host and no other.
func TestAgentInside(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("that a name leads to this machine takes an /etc/hosts of the test's own")
	}
	each(t, func(w *world) {
		calls := []model.Call{
			bash("cd sub; cat " + w.canary + "; echo $SBXRUN_SANDBOX; echo sum $((40+2))"),
			bash("pwd; echo written > file"),
			bash("curl -sS -m 20 http://elsewhere.test/; curl -sS -m 20 http://$OTHER/; true"),
			bash("echo breach > " + w.dir + "/outside/breach; echo breach > $HOME/breach; echo breach > /usr/breach; exit 4"),
		}
		m, other := model.New(calls...), model.New()
		address, elsewhere := strings.TrimPrefix(w.serve(m), "http://"), strings.TrimPrefix(w.serve(other), "http://")
		hosts := w.dir + "/hosts"
		if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost api.model.test elsewhere.test\n"), 0o644); err != nil {
			w.Fatal(err)
		}
		_, port, _ := strings.Cut(address, ":")
		_, otherPort, _ := strings.Cut(elsewhere, ":")
		program := client(t, claudeCode, "claude")
		script := `mount --bind "$0" /etc/hosts; exec setpriv --reuid "$1" --regid "$1" --clear-groups "$@"`
		script = strings.Replace(script, `exec setpriv`, `uid=$1; shift; exec setpriv`, 1)
		script = strings.ReplaceAll(script, `"$1"`, `"$uid"`)
		uid := "0"
		if w.uid != 0 {
			uid = "1000"
		}
		args := []string{"--mount", "sh", "-ec", script, hosts, uid,
			programs + "/sbxrun", "--profile", "aicode", "--timeout", "none", "--ro", filepath.Dir(program),
			"--allow-host", "api.model.test:" + port, "--allow-host", "127.0.0.1:" + port, // a private address has to be named, too
			"--env", "ANTHROPIC_API_KEY", "--env", "ANTHROPIC_BASE_URL=http://api.model.test:" + port, "--env", "CLAUDE_CONFIG_DIR=/tmp/claude",
			"--env", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "--env", "DISABLE_AUTOUPDATER=1", "--env", "OTHER=elsewhere.test:" + otherPort}
		if w.uid != 0 {
			args = append(args, "--allow-degraded", "cgroup")
		}
		args = append(args, "--", program, "-p", "go", "--allowedTools", "Bash")
		cmd := exec.Command("unshare", args...)
		cmd.Dir, cmd.Env, cmd.SysProcAttr = w.project, append(w.env, "ANTHROPIC_API_KEY="+key), w.command(nil, "true").SysProcAttr
		cmd.SysProcAttr.Credential = nil
		r := w.converse(m, len(calls), cmd)
		w.expect("a command", r[0], "aicode", "sum 42", "!canary sings")
		w.expect("where it led", r[1], w.project+"/sub")
		if b, err := os.ReadFile(w.project + "/sub/file"); err != nil || string(b) != "written\n" {
			w.Errorf("%q %v", b, err)
		}
		w.expect("another host", r[2], "no rule allows elsewhere.test:80", "no rule allows elsewhere.test:"+otherPort)
		w.expect("outside", r[3], "Exit code 4", "Read-only file system")
		if other.Served() != 0 {
			w.Error("another host was reached")
		}
		if _, err := os.Stat(w.dir + "/outside/breach"); err == nil {
			w.Error("it wrote outside")
		}
	})
}
