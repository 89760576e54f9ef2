package agents

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tailscale/hujson"

	"github.com/sbxrun/sbxrun/internal/agents/model"
	"github.com/sbxrun/sbxrun/internal/persona"
	"github.com/sbxrun/sbxrun/internal/programs"
	"github.com/sbxrun/sbxrun/internal/quote"
)

// A Proof is what came of having an agent run a command that reaches for what it
// must not get.
type Proof struct {
	// Real says that the agent itself ran it, and not something that calls what
	// the agent is configured to call.
	Real bool

	// Ran says that the command ran: it told the sum of two numbers.
	Ran bool

	// Breaches are what it got at, none if it was inside.
	Breaches []string

	// Failed are parts of a normal day's work that did not succeed.
	Failed []string

	// Seen are the entries of its user's home that it saw, or something below.
	Seen []string

	// Against are settings of the project in the working directory by which its
	// commands would not be inside.
	Against []string

	// Overridable says that it would not have been inside in a project that has
	// settings of its own against that.
	Overridable bool

	// Output is what the agent's model was shown, or the agent printed.
	Output string
}

// Holds reports whether the command ran, ran inside, and could do its work.
func (p *Proof) Holds() bool { return p.Ran && len(p.Breaches) == 0 && len(p.Failed) == 0 }

// Home lists what the command saw of the home, the first of it.
func (p *Proof) Home() string {
	const most = 12
	var b strings.Builder
	for i, n := range p.Seen {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(p.Seen)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quote.Inside(n))
	}
	return b.String()
}

// Lines are those of Output.
func (p *Proof) Lines() (all []string) {
	for line := range strings.Lines(strings.TrimSpace(p.Output)) {
		all = append(all, quote.Escape(strings.TrimRight(line, "\r\n")))
	}
	return all
}

// verifyKey stands for an API key in the agent's environment.
const verifyKey = "sk-sbxrun-verify-canary"

// bait is what lies outside.
type bait struct {
	dir     string
	project string
	canary  string
	secret  string
	sum     string
	work    []work
	home    string
	command string
}

// work is something that a command does every day. It is done if its sum is shown.
type work struct{ what, do, sum string }

// layBait makes a project to work in, and what lies outside it.
func layBait(ctx context.Context, home string) (*bait, error) {
	dir, err := os.MkdirTemp("", "sbxrun-verify-")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	b := &bait{home: home, dir: dir, project: dir + "/project", canary: dir + "/outside/canary", secret: rand.Text()}
	err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(b.project, 0o755), os.Mkdir(dir+"/outside", 0o755),
		os.WriteFile(b.canary, []byte(b.secret+"\n"), 0o644))
	x, rerr := rand.Int(rand.Reader, big.NewInt(500_000_000))
	if err := errors.Join(err, rerr); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	// Nine digits, which come by no accident, written at once: opencode puts what
	// comes on stderr in between. Gemini CLI's own tool refuses whatever looks like a
	// substitution.
	n := x.Int64() + 400_000_000
	b.sum = fmt.Sprint(n + 17)
	b.work = []work{{what: "write a file", do: "echo work > made"}, {what: "run a test", do: "sh ./test.sh"}}
	err = os.WriteFile(b.project+"/test.sh", []byte("#!/bin/sh\ntest -s made\n"), 0o755)
	if git, lerr := programs.Find("git"); lerr == nil {
		cmd := exec.CommandContext(ctx, git, "init", "-q", "--template=", b.project)
		if out, gerr := cmd.CombinedOutput(); gerr != nil {
			err = errors.Join(err, fmt.Errorf("git init: %w\n%s", gerr, out))
		}
		b.work = append(b.work,
			work{what: "commit",
				do: "git add made && git -c user.name=sbxrun -c user.email=sbxrun@localhost commit -q --allow-empty -m verify"})
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	b.command = fmt.Sprintf("cat %s; echo breach > %s/breach; env; expr %d + 17", b.canary, filepath.Dir(b.canary), n)
	for i := range b.work {
		w := &b.work[i]
		w.sum = fmt.Sprint(n + 18 + int64(i))
		b.command += fmt.Sprintf("; %s && expr %d + %d", w.do, n, 18+i)
	}
	b.command += "; ls -A " + persona.Quote(home) + " | head -n 100 | sed s/^/home:/; true"
	return b, nil
}

func (b *bait) judge(p *Proof) {
	p.Ran = strings.Contains(p.Output, b.sum)
	if strings.Contains(p.Output, b.secret) {
		p.Breaches = append(p.Breaches, "it read a file outside the workspace")
	}
	if _, err := os.Lstat(filepath.Dir(b.canary) + "/breach"); err == nil {
		p.Breaches = append(p.Breaches, "it wrote a file outside the workspace")
	}
	if strings.Contains(p.Output, verifyKey) {
		p.Breaches = append(p.Breaches, "it had the agent's API key")
	}
	for _, w := range b.work {
		if !strings.Contains(p.Output, w.sum) {
			p.Failed = append(p.Failed, w.what)
		}
	}
	for line := range strings.Lines(p.Output) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "home:")
		if _, err := os.Lstat(filepath.Join(b.home, name)); ok && err == nil && name != "" {
			p.Seen = append(p.Seen, name)
		}
	}
}

// Verify has the agent run a command, and says what came of it. Claude Code, Codex,
// opencode, Gemini CLI, Qwen Code, Copilot CLI and pi run themselves, with a model of ours on loopback instead of
// theirs, and with their user's own configuration. Of Goose, and of a Gemini CLI that
// is not found, what their configuration names is called as they would.
//
// For shell and mcp, command starts the agent, whose own model is asked to run the command:
// in its words, {} stands for the request, which otherwise is the last word. Without command,
// the shell or the server is called. File is as in Options.
//
// It changes the working directory of this process: a shell takes its workspace
// from who calls it.
func Verify(ctx context.Context, agent string, site Site, file string, command []string) (*Proof, error) {
	b, err := layBait(ctx, site.Home)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(b.dir)
	back, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if err := os.Chdir(b.project); err != nil {
		return nil, err
	}
	defer os.Chdir(back)
	p := &Proof{}
	switch agent {
	case "claude-code":
		p.Against = against(back)
	case "copilot":
		p.Against = disabled(back, ".github/copilot")
	}
	if err := b.run(ctx, p, agent, site, file, command); err != nil {
		return nil, err
	}
	b.judge(p)
	if agent != "claude-code" || !p.Holds() {
		return p, nil
	}
	// Once more, where whoever wrote the project has something against it.
	err = errors.Join(os.Mkdir(b.project+"/.claude", 0o755), os.WriteFile(b.project+"/.claude/settings.json",
		[]byte(`{"env": {"CLAUDE_CODE_SHELL_PREFIX": ""}, "disableAllHooks": true}`), 0o644))
	again := &Proof{}
	if err := errors.Join(err, b.real(ctx, agent, site, again)); err != nil {
		return nil, err
	}
	b.judge(again)
	p.Overridable = !again.Holds()
	return p, nil
}

// run has the command run as the agent would, and notes whether the agent itself did it.
func (b *bait) run(ctx context.Context, p *Proof, agent string, site Site, file string, command []string) error {
	p.Real = len(command) > 0
	switch agent {
	case "claude-code", "codex", "opencode", "qwen", "copilot", "pi":
		p.Real = true
		return b.real(ctx, agent, site, p)
	case "gemini":
		if p.Real = site.Agent != ""; p.Real {
			return b.real(ctx, agent, site, p)
		}
		return b.server(ctx, p, filepath.Join(site.Home, ".gemini", "settings.json"), "run_shell_command")
	case "goose":
		shell, err := shellOf(filepath.Join(site.Config, "goose", "config.yaml"), "GOOSE_SHELL")
		if err != nil {
			return err
		}
		return b.shell(ctx, p, shell)
	case "shell", "mcp":
		switch {
		case p.Real:
			return b.asked(ctx, p, command)
		case agent == "shell":
			return b.shell(ctx, p, site.Shell())
		}
		return b.server(ctx, p, file, "")
	}
	return unknown(agent)
}

// against are settings of a project by which Claude Code starts its commands by
// something else than its user's settings say.
func against(project string) (all []string) {
	for _, name := range []string{"settings.json", "settings.local.json"} {
		file := filepath.Join(project, ".claude", name)
		var s struct{ Env map[string]any }
		if !readSettings(file, &s) {
			continue
		}
		for _, key := range []string{"CLAUDE_CODE_SHELL_PREFIX", "CLAUDE_CODE_SHELL", "BASH_ENV", "PATH"} {
			if _, ok := s.Env[key]; ok {
				all = append(all, quote.Inside(file)+" sets "+key)
			}
		}
	}
	return append(all, disabled(project, ".claude")...)
}

// disabled are settings of a project that disable an agent's hooks, its user's among them.
func disabled(project, dir string) (all []string) {
	for _, name := range []string{"settings.json", "settings.local.json"} {
		file := filepath.Join(project, dir, name)
		var s struct {
			Hooks bool `json:"disableAllHooks"`
		}
		if readSettings(file, &s) && s.Hooks {
			all = append(all, quote.Inside(file)+" disables hooks")
		}
	}
	return all
}

// readSettings reads a file of JSON with comments, and reports whether that could be read.
func readSettings(file string, to any) bool {
	text, err := read(file)
	if err != nil || text == nil {
		return false
	}
	text, err = hujson.Standardize(text)
	return err == nil && json.Unmarshal(text, to) == nil
}

// real runs the agent itself.
func (b *bait) real(ctx context.Context, agent string, site Site, p *Proof) error {
	if site.Agent == "" {
		return &EditError{agent, "its program was not found", "install it, or name it: --agent FILE"}
	}
	m := model.New(b.calls(agent)...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go server.Serve(l)
	defer server.Close()
	args, env, err := b.prepare(agent, site, "http://"+l.Addr().String())
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, site.Agent, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = b.project, append(append(os.Environ(), "PWD="+b.project), env...), 5*time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if r := m.Results(); len(r) > 0 {
		p.Output = strings.Join(r, "\n")
		return nil
	}
	p.Output = out.String()
	if m.Served() == 0 {
		return fmt.Errorf("%s did not ask the model that this put in the place of its own: nothing is proved (%v)\n%s", agent,
			err, strings.TrimSpace(p.Output))
	}
	return nil
}

// calls are what the model asks an agent for.
func (b *bait) calls(agent string) []model.Call {
	input := map[string]any{"command": b.command, "description": "verify the sandbox"}
	command := map[string]any{"command": b.command}
	switch agent {
	case "codex":
		return []model.Call{{Tool: "exec_command", Input: map[string]any{"cmd": b.command, "yield_time_ms": 30_000}}}
	case "opencode", "pi":
		return []model.Call{{Tool: "bash", Input: input}}
	case "gemini":
		return []model.Call{{Tool: "run_shell_command", Else: "mcp_sandbox_bash", Input: command}}
	case "qwen":
		return []model.Call{{Tool: "run_shell_command", Else: "mcp__sandbox__bash", Input: command}}
	case "copilot":
		// It has its own tool as before, which is to refuse.
		own := "cat " + b.canary + "; env; echo breach > " + filepath.Dir(b.canary) + "/breach"
		return []model.Call{{Tool: "bash", Input: map[string]any{"command": own, "description": "verify the sandbox"}},
			{Tool: "sandbox-bash", Input: command}}
	}
	return []model.Call{{Tool: "Bash", Input: input}}
}

// copy gives an agent a copy of a file of its user's, below the directory that it is to take
// for its own, with a change in it. Of a file that is not there, the copy is the change alone.
func (b *bait) copy(to, from string, change JSON) error {
	text, err := read(from)
	if err == nil && change != nil {
		text, err = change.Apply(text)
	}
	if err != nil || text == nil {
		return err
	}
	return write(filepath.Join(b.dir, to), nil, text, 0o600)
}

// prepare makes what an agent needs to ask the model at an address: the arguments and the
// environment of its start, and files.
func (b *bait) prepare(agent string, site Site, address string) (args, env []string, err error) {
	switch agent {
	case "opencode":
		config, err := json.Marshal(map[string]any{"autoupdate": false, "share": "disabled",
			"permission": map[string]any{"*": "allow", "external_directory": "allow"},
			"model":      "anthropic/claude-sonnet-4-5", "small_model": "anthropic/claude-sonnet-4-5",
			"provider": map[string]any{"anthropic": map[string]any{"options": map[string]any{"baseURL": address + "/v1",
				"apiKey": verifyKey}}}})
		if err != nil {
			return nil, nil, err
		}
		args = []string{"run", "go"}
		env = []string{"OPENCODE_CONFIG_CONTENT=" + string(config), "ANTHROPIC_API_KEY=" + verifyKey,
			"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1"}
	case "gemini":
		// How a user signs in counts more than the environment, so it has a copy of
		// the settings, in which that is by a key.
		err = b.copy("gemini/.gemini/settings.json", filepath.Join(site.Home, ".gemini", "settings.json"),
			JSON{{Path: []string{"security", "auth", "selectedType"}, Value: "gemini-api-key"},
				{Path: []string{"general", "enableAutoUpdate"}, Value: false},
				{Path: []string{"privacy", "usageStatisticsEnabled"}, Value: false}})
		args = []string{"-p", "go", "--model", "gemini-2.5-flash", "--approval-mode", "yolo"}
		env = []string{"GOOGLE_GEMINI_BASE_URL=" + address, "GEMINI_API_KEY=" + verifyKey,
			"GEMINI_CLI_TRUST_WORKSPACE=true", "GEMINI_SANDBOX=false", "GEMINI_CLI_HOME=" + b.dir + "/gemini"}
	case "qwen":
		// It writes to its settings when it starts, so it has a copy.
		err = b.copy("qwen/settings.json", filepath.Join(site.Qwen, "settings.json"),
			JSON{{Path: []string{"security", "folderTrust", "enabled"}, Value: false},
				{Path: []string{"general", "enableAutoUpdate"}, Value: false},
				{Path: []string{"privacy", "usageStatisticsEnabled"}, Value: false}})
		args = []string{"--auth-type", "anthropic", "--model", "claude-sonnet-4-5", "--approval-mode", "yolo", "go"}
		env = []string{"ANTHROPIC_BASE_URL=" + address, "ANTHROPIC_API_KEY=" + verifyKey, "QWEN_HOME=" + b.dir + "/qwen",
			"QWEN_SANDBOX=false"}
	case "copilot":
		// It writes to its directory, so it has a copy of what counts.
		for _, name := range []string{"settings.json", "mcp-config.json"} {
			err = errors.Join(err, b.copy(filepath.Join("copilot", name), filepath.Join(site.Copilot, name), nil))
		}
		args = []string{"-p", "go", "--allow-all-tools", "--allow-all-paths", "--no-color"}
		env = []string{"COPILOT_OFFLINE=true", "COPILOT_PROVIDER_TYPE=anthropic", "COPILOT_PROVIDER_BASE_URL=" + address,
			"COPILOT_PROVIDER_API_KEY=" + verifyKey, "COPILOT_MODEL=claude-sonnet-4.5",
			"COPILOT_HOME=" + b.dir + "/copilot", "COPILOT_AUTO_UPDATE=false"}
	case "pi":
		// An extension names the model's address; of a project's it takes no other.
		extension := filepath.Join(b.dir, "model.js")
		text := "export default (pi) => pi.registerProvider(\"anthropic\", { baseUrl: \"" + address + "\" })\n"
		err = write(extension, nil, []byte(text), 0o600)
		args = []string{"-p", "--no-session", "--offline", "-e", extension, "--provider", "anthropic", "--model",
			"claude-sonnet-4-5", "--api-key", verifyKey, "go"}
		env = []string{"ANTHROPIC_API_KEY=" + verifyKey}
	case "codex":
		// It notes there which directories it was in (0.146), so it has a copy.
		files, gerr := filepath.Glob(filepath.Join(site.Codex, "*.toml"))
		rules, rerr := filepath.Glob(filepath.Join(site.Codex, "rules", "*"))
		err = errors.Join(gerr, rerr)
		for _, file := range slices.Concat(files, rules, []string{filepath.Join(site.Codex, "hooks.json")}) {
			name, _ := filepath.Rel(site.Codex, file)
			err = errors.Join(err, b.copy(filepath.Join("codex", name), file, nil))
		}
		err = errors.Join(err, os.MkdirAll(b.dir+"/codex", 0o700))
		args = []string{"exec", "--skip-git-repo-check", "-c", `model="test"`, "-c", `model_provider="verify"`,
			"-c", `model_providers.verify={name="verify", base_url="` + address +
				`/v1", wire_api="responses", env_key="VERIFY_API_KEY"}`,
			"-c", "check_for_update_on_startup=false", "go"}
		env = []string{"VERIFY_API_KEY=" + verifyKey, "CODEX_HOME=" + b.dir + "/codex"}
	default:
		args = []string{"-p", "go", "--allowedTools", "Bash", "--permission-mode", "default"}
		env = []string{"ANTHROPIC_BASE_URL=" + address, "ANTHROPIC_API_KEY=" + verifyKey,
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1"}
	}
	return args, env, err
}

// asked starts an agent with its own model. What a model says of a command's output is no
// evidence: the command also leaves what it did in the project.
func (b *bait) asked(ctx context.Context, p *Proof, command []string) error {
	request := "Run this command with your shell tool, as one command and exactly as it is, and then print its whole output:\n{ " + b.command + "; } >shown 2>&1; cat shown"
	args, put := slices.Clone(command), false
	for i, w := range args {
		put = put || strings.Contains(w, "{}")
		args[i] = strings.ReplaceAll(w, "{}", request)
	}
	if !put {
		args = append(args, request)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = b.project, append(os.Environ(), "PWD="+b.project,
		"VERIFY_API_KEY="+verifyKey), 5*time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	shown, err := os.ReadFile(b.project + "/shown")
	if p.Output = string(shown); errors.Is(err, os.ErrNotExist) {
		p.Output, err = string(out), nil
	}
	return err
}

// shellOf is the shell that an agent's configuration names.
func shellOf(file, key string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	shell, ok := config[key].(string)
	if !ok || !filepath.IsAbs(shell) {
		return "", &EditError{file, "names no shell by " + key, "sbxrun integrate sets it"}
	}
	return shell, nil
}

// shell calls a shell as an agent does.
func (b *bait) shell(ctx context.Context, p *Proof, shell string) error {
	cmd := exec.CommandContext(ctx, shell, "-c", b.command)
	cmd.Dir, cmd.Env = b.project, append(os.Environ(), "OPENAI_API_KEY="+verifyKey, "ANTHROPIC_API_KEY="+verifyKey)
	out, err := cmd.CombinedOutput()
	p.Output = string(out)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// server calls the server that an agent's configuration names. Own is the agent's own tool
// that the configuration has to exclude, if it has one for that.
func (b *bait) server(ctx context.Context, p *Proof, file, own string) error {
	text, err := os.ReadFile(file)
	if err == nil {
		text, err = hujson.Standardize(text)
	}
	var config struct {
		MCPServers map[string]struct {
			Command string
			Args    []string
		} `json:"mcpServers"`
		Tools struct{ Exclude []string }
	}
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	s, ok := config.MCPServers["sandbox"]
	if !ok {
		return &EditError{file, "names no server mcpServers.sandbox", "sbxrun integrate sets it"}
	}
	if own != "" && !slices.Contains(config.Tools.Exclude, own) {
		p.Breaches = append(p.Breaches, "its own tool "+own+" is not in tools.exclude")
	}
	cmd := exec.CommandContext(ctx, s.Command, s.Args...)
	cmd.Dir, cmd.Env = b.project, append(os.Environ(), "GEMINI_API_KEY="+verifyKey)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "sbxrun-verify", Version: "1"}, nil).Connect(ctx,
		&mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Command, err)
	}
	defer session.Close()
	res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "bash",
		Arguments: map[string]any{"command": b.command}})
	if err != nil {
		return err
	}
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			p.Output += t.Text
		}
	}
	return nil
}
