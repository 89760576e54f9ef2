package agents

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/internal/persona"
	"github.com/sbxrun/sbxrun/internal/quote"
)

// Names are the agents that there is a plan for. Shell and mcp are for any other: a
// program to name as its shell, and a server in a file that it reads.
var Names = []string{"claude-code", "codex", "opencode", "gemini", "qwen", "copilot", "pi", "goose", "shell", "mcp"}

// A Site is where things are for one user of a host.
type Site struct {
	Home    string // the user's
	Config  string // XDG_CONFIG_HOME
	Data    string // XDG_DATA_HOME
	State   string // XDG_STATE_HOME
	Claude  string // Claude Code's configuration directory
	Codex   string // Codex's
	Qwen    string // Qwen Code's
	Copilot string // GitHub Copilot CLI's
	Pi      string // pi's
	Sbxrun  string // this program
	Agent   string // the agent's own program, where the plan has a use for it; "" if not found
}

// Options say how an agent is to be joined.
type Options struct {
	// Flags are those of sbxrun shell, or of a run, that make the policy.
	Flags []string

	// By is the means, where an agent knows more than one: "" or "prefix", or
	// "hook", for Claude Code.
	By string

	// Managed is for every user of the host, by settings that no project's can
	// replace. Claude Code has such.
	Managed bool

	// File is where mcp puts the server: a JSON file with an object mcpServers.
	File string `json:",omitempty"`

	// Session says that the flags name a session that there is: it has its own
	// policy, and no flags of one are added.
	Session bool
}

func (o *Options) flags() []string {
	if o.Session {
		return slices.Clone(o.Flags)
	}
	return append([]string{"--profile", "aicode"}, o.Flags...)
}

// Where managed settings are, and what goes with them.
const (
	managedSettings = "/etc/claude-code/managed-settings.json"
	managedData     = "/etc/sbxrun/agents"
)

// A Plan is what joining an agent changes.
type Plan struct {
	Agent string
	Files []File

	state string // file that undoing is kept in
	made  made
}

// made is what a plan is made of.
type made struct {
	Site    Site    `json:"site"`
	Options Options `json:"options"`
}

// A File is one that a plan changes.
type File struct {
	Path string
	Mode fs.FileMode // of a file that is made
	Edit Edit

	Beside string // a file in whose place this one is changed: only if it is there, "" for always
	Unless string // a file that is changed in place of this one, if it is there
}

// counts reports whether the file is one to change, as things are.
func (f *File) counts(before []byte) bool {
	if f.Beside != "" && before == nil {
		return false
	}
	if f.Unless == "" {
		return true
	}
	_, err := os.Stat(f.Unless)
	return err != nil
}

// An Edit is a change of a file's content; nil content is no file.
type Edit interface {
	// Apply makes the change. It changes nothing where that is made already.
	Apply(before []byte) (after []byte, err error)

	// Revert takes the change out of a content that may have other changes since. What
	// it replaced in the content before comes back.
	Revert(now, before []byte) (after []byte, err error)
}

// An EditError says that a file cannot be changed safely.
type EditError struct {
	Path, Cause, Fix string
}

func (e *EditError) Error() string { return e.Path + ": " + e.Cause }

// Hint says what to do.
func (e *EditError) Hint() string { return e.Fix }

func unknown(agent string) error {
	fix := "one of " + strings.Join(Names, ", ") + "; shell and mcp are for any other agent"
	if agent == "claude" {
		fix = "did you mean claude-code?"
	}
	return &EditError{quote.Inside(agent), "no agent that is known", fix}
}

// NewPlan returns the plan for an agent.
func NewPlan(agent string, site Site, o Options) (*Plan, error) {
	p := &Plan{Agent: agent, made: made{site, o}, state: filepath.Join(site.State, "sbxrun", "integrate", agent+".json")}
	shell := filepath.Join(site.Data, "sbxrun", "agents", agent, "bash")
	if o.Managed {
		if agent != "claude-code" || o.By == "hook" {
			return nil, &EditError{agent, "has no settings for every user that a shell can be named in", "leave out --managed"}
		}
		shell = filepath.Join(managedData, agent, "bash")
		p.state = filepath.Join(managedData, agent, "undo.json")
	}
	if strings.Contains(shell, " -") || strings.ContainsAny(shell, "\n\x00'\"\\") {
		return nil, &EditError{shell, "agents would read this path as something else", "set XDG_DATA_HOME to a plain one"}
	}
	if o.By != "" && o.By != "prefix" && (agent != "claude-code" || o.By != "hook") {
		return nil, &EditError{agent, "cannot be joined by " + o.By, "leave out --by; claude-code knows prefix and hook"}
	}
	if agent == "mcp" {
		if !filepath.IsAbs(o.File) {
			return nil, &EditError{agent, "needs the file in which the agent looks for servers", "name it: --file FILE"}
		}
		sum := sha256.Sum256([]byte(o.File))
		p.state = filepath.Join(filepath.Dir(p.state), fmt.Sprintf("mcp-%x.json", sum[:8]))
	}
	var err error
	if p.Files, err = filesFor(agent, site, o, shell); err != nil {
		return nil, err
	}
	return p, nil
}

// filesFor are the files to change for an agent. Shell is where it is to find its shell.
func filesFor(agent string, site Site, o Options, shell string) ([]File, error) {
	file := func(path string, e Edit) File { return File{Path: path, Mode: 0o644, Edit: e} }
	settings := func(dir string, m ...Member) File { return file(filepath.Join(dir, "settings.json"), JSON(m)) }
	set := func(value any, path ...string) Member { return Member{Path: path, Value: value} }
	list := func(element any, path ...string) Member { return Member{Path: path, Element: element} }
	wrapper := File{Path: shell, Mode: 0o755, Edit: Whole(wrapperFor(agent, site, o))}
	command := map[string]any{"command": site.Sbxrun, "args": append([]string{"mcp"}, o.flags()...)}
	server := set(command, "mcpServers", "sandbox")
	switch agent {
	case "claude-code":
		if o.By == "hook" {
			return []File{settings(site.Claude, list(claudeHook(site, o), "hooks", "PreToolUse"))}, nil
		}
		prefix := settings(site.Claude, set(shell+" -c", "env", "CLAUDE_CODE_SHELL_PREFIX"))
		if o.Managed {
			prefix.Path = managedSettings
		}
		return []File{wrapper, prefix}, nil
	case "codex":
		if site.Agent == "" {
			return nil, &EditError{"codex", "its program was not found", "install it, or name it: --agent FILE"}
		}
		wrapper.Edit = Whole(codexShell)
		args := append(o.flags(), "--timeout", "none", "--ro", codexRoot(site.Agent), "--ro", shell,
			"--env", "SHELL="+shell, "--tell-refusals", "--", site.Agent, "exec-server", "--listen", "stdio")
		environment := CodexEnvironment{Program: site.Sbxrun, Args: args}
		// Codex's own sandbox cannot be made in another one: every command would fail.
		return []File{wrapper, file(filepath.Join(site.Codex, "environments.toml"), environment),
			file(filepath.Join(site.Codex, "config.toml"), CodexSandbox{})}, nil
	case "opencode":
		// It reads both files, and what opencode.jsonc says counts.
		path, edit := filepath.Join(site.Config, "opencode", "opencode.json"), JSON{set(shell, "shell")}
		plain, commented := file(path, edit), file(path+"c", edit)
		plain.Unless, commented.Beside = path+"c", path
		return []File{wrapper, plain, commented}, nil
	case "pi":
		return []File{wrapper, settings(site.Pi, set(shell, "shellPath"))}, nil
	case "goose":
		edit := YAML{Key: "GOOSE_SHELL", Value: shell}
		return []File{wrapper, file(filepath.Join(site.Config, "goose", "config.yaml"), edit)}, nil
	case "gemini":
		own := list("run_shell_command", "tools", "exclude")
		return []File{settings(filepath.Join(site.Home, ".gemini"), server, own)}, nil
	case "qwen":
		// Its monitor runs commands, too. What tools.exclude said it moves to
		// permissions.deny, to which those of a project are added.
		own, monitor := list("Bash", "permissions", "deny"), list("Monitor", "permissions", "deny")
		return []File{settings(site.Qwen, server, own, monitor)}, nil
	case "copilot":
		// No setting takes its shell away. A hook that fails blocks the call, too.
		hook := list(map[string]any{"type": "command", "bash": copilotHook}, "hooks", "preToolUse")
		return []File{file(filepath.Join(site.Copilot, "mcp-config.json"), JSON{server}), settings(site.Copilot, hook)}, nil
	case "shell":
		return []File{wrapper}, nil
	case "mcp":
		return []File{file(o.File, JSON{server})}, nil
	}
	return nil, unknown(agent)
}

// claudeHook is the entry of Claude Code's settings that has a hook look at each command.
func claudeHook(site Site, o Options) map[string]any {
	words := append([]string{site.Sbxrun, "hook", "claude-code", "--ignore-env"}, o.flags()...)
	for i, w := range words {
		words[i] = persona.Quote(w)
	}
	// As for the wrapper: a project's settings do not choose the files.
	words = append([]string{"HOME=" + persona.Quote(site.Home), "XDG_CONFIG_HOME=" + persona.Quote(site.Config)}, words...)
	run := map[string]any{"type": "command", "command": strings.Join(words, " ")}
	return map[string]any{"matcher": "Bash|Monitor|PowerShell", "hooks": []any{run}}
}

// Shell is the program to name as an agent's shell, by the plan for shell.
func (s *Site) Shell() string { return filepath.Join(s.Data, "sbxrun", "agents", "shell", "bash") }

// wrapperFor is a program that an agent can be given as its shell. What an agent
// may take from a project's settings, variables, does not reach the choice of the
// policy.
func wrapperFor(agent string, site Site, o Options) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "#!/bin/sh\n# The shell of %s, in a sandbox. Written by sbxrun integrate %s; with --undo it goes.\n",
		agent, agent)
	if o.Managed {
		// The home is then that of the password file.
		b.WriteString("unset HOME XDG_CONFIG_HOME\n")
	} else {
		fmt.Fprintf(&b, "export HOME=%s XDG_CONFIG_HOME=%s\n", persona.Quote(site.Home), persona.Quote(site.Config))
	}
	fmt.Fprintf(&b, "exec %s shell --ignore-env", persona.Quote(site.Sbxrun))
	for _, f := range o.flags() {
		b.WriteString(" " + persona.Quote(f))
	}
	b.WriteString(" --shell bash -- \"$@\"\n")
	return []byte(b.String())
}

// copilotHook is a hook of Copilot CLI's that denies the tool which runs commands, and no
// other. It starts no program that could be missing. A quotation mark in a call's arguments
// has a backslash in front of it, so they do not look like the tool's name.
const copilotHook = `case $(cat) in *'"toolName":"bash"'* | *'"toolName": "bash"'*) ` +
	`echo '{"permissionDecision":"deny","permissionDecisionReason":"commands run in a sandbox here: call the tool sandbox-bash"}' ;; esac`

// codexShell is the shell of Codex's commands, in its sandbox: bash, and after it what
// --tell-refusals says that is new. Codex ends the process group, so no signal is passed on.
// With -p the caller's variables and functions do not reach it, but bash gets them.
const codexShell = `#!/bin/bash -p
# The shell of codex, in its sandbox: it says what was refused. Written by sbxrun
# integrate codex; with --undo it goes.
export -n SHELLOPTS BASHOPTS
# Of what the file says, after the number was: the last number, and what to say.
sbxrun_news() {
	local was=$1 code=$2 n kind text
	sbxrun_last=$was sbxrun_told=0 sbxrun_out=
	[[ -f $SBXRUN_REFUSALS ]] || return
	while read -r n kind text; do
		[[ $n == +([0-9]) && $n == "${text##* }" ]] && ((n > was)) || continue
		((n > sbxrun_last)) && sbxrun_last=$n
		[[ $kind == + || $code != 0 ]] || continue
		text=${text% *} text=${text%"${text##*[! ]}"}
		((sbxrun_told++ < 3)) && sbxrun_out+="sbxrun: note: $text"$'\n'
	done 2>/dev/null <"$SBXRUN_REFUSALS"
}
sbxrun_news 0 0
SHLVL=$((SHLVL - 1)) SHELL=/bin/bash /bin/bash "$@"
code=$?
sbxrun_news "$sbxrun_last" $code
((sbxrun_told > 3)) && sbxrun_out+="sbxrun: note: $((sbxrun_told - 3)) refusals more"$'\n'
[[ $sbxrun_out ]] && printf %s "$sbxrun_out" >&2
exit $code
`

// codexRoot is the directory that has all of Codex's programs.
func codexRoot(program string) string {
	dir := filepath.Dir(program)
	if filepath.Base(dir) == "bin" && strings.Contains(dir, "/vendor/") {
		return filepath.Dir(dir)
	}
	return program
}

// kept is what undoing needs. It does not depend on the flags that undo is given.
type kept struct {
	Files []keptFile `json:"files"`
	Plan  *made      `json:"plan"`
}

type keptFile struct {
	Path    string   `json:"path"`
	Existed bool     `json:"existed"`
	Before  []byte   `json:"before,omitempty"`
	Was     []byte   `json:"was"` // when this was written down, with what another plan had put in
	After   []byte   `json:"after"`
	Made    []string `json:"made,omitempty"` // directories, the deepest first
}

// A Change is what a plan does to one file.
type Change struct {
	Path          string
	Before, After []byte // Before is nil if there was no file, After if there is to be none
	Mode          fs.FileMode
}

// Changes are what is left to do of the plan, none if all of it is done.
func (p *Plan) Changes() ([]Change, error) {
	var all []Change
	for _, f := range p.Files {
		before, err := read(f.Path)
		if err != nil {
			return nil, err
		}
		if !f.counts(before) {
			continue
		}
		after, err := f.Edit.Apply(before)
		if err != nil {
			return nil, in(f.Path, err)
		}
		if !bytes.Equal(before, after) {
			all = append(all, Change{f.Path, before, after, f.Mode})
		}
	}
	return all, nil
}

// Apply carries the plan out and returns what was changed. What the files held
// before is kept, for Undo. Another plan of the agent's that was carried out gives way
// in the same step: at no moment is the agent without either.
func (p *Plan) Apply() ([]Change, error) {
	made := make([][]string, len(p.Files))
	for i, f := range p.Files {
		made[i] = missing(f.Path)
	}
	if err := os.MkdirAll(filepath.Dir(p.state), 0o755); err != nil {
		return nil, err
	}
	unlock, err := p.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := p.kept()
	if err != nil {
		return nil, err
	}
	var undone []undoing
	if old != nil {
		if done, err := p.done(); err != nil || done && (old.Plan == nil || reflect.DeepEqual(*old.Plan, p.made)) {
			return nil, err
		}
		if undone, err = p.undone(old); err != nil {
			return nil, err
		}
	}
	k := kept{Plan: &p.made}
	var changes []Change
	change := func(c Change) {
		if !same(c.Before, c.After) {
			changes = append(changes, c)
		}
	}
	for i, f := range p.Files {
		now, err := read(f.Path)
		if err != nil {
			return nil, err
		}
		own := keptFile{Path: f.Path, Made: made[i], Was: now}
		before := now
		if i := slices.IndexFunc(undone, func(u undoing) bool { return u.Path == f.Path }); i >= 0 {
			before, own.Made = undone[i].After, append(own.Made, undone[i].made...)
			undone = slices.Delete(undone, i, i+1)
		}
		after := before
		if f.counts(before) {
			after, err = f.Edit.Apply(before)
		}
		if err != nil {
			return nil, in(f.Path, err)
		}
		if !same(before, after) {
			own.Existed, own.Before, own.After = before != nil, before, after
			k.Files = append(k.Files, own)
		}
		change(Change{f.Path, now, after, f.Mode})
	}
	last := k
	for _, u := range undone {
		change(u.Change)
		// Who is killed has both plans' files to undo.
		k.Files = append(k.Files, keptFile{Path: u.Path, Existed: u.After != nil, Before: u.After, After: u.After,
			Was: u.Before, Made: u.made})
	}
	if len(k.Files) == 0 && old == nil {
		return nil, nil
	}
	state, err := read(p.state)
	if err != nil {
		return nil, err
	}
	// First what undoes, then what is done.
	if state, err = p.keep(state, &k); err != nil {
		return nil, err
	}
	for i, c := range changes {
		if err := c.do(); err != nil {
			for _, c := range slices.Backward(changes[:i]) {
				err = errors.Join(err, c.undo())
			}
			if old == nil {
				return nil, errors.Join(err, os.Remove(p.state))
			}
			_, e := p.keep(state, old)
			return nil, errors.Join(err, e)
		}
	}
	if len(undone) > 0 {
		if _, err := p.keep(state, &last); err != nil {
			return nil, err
		}
	}
	for _, u := range undone {
		remove(u.made)
	}
	return changes, nil
}

// keep writes down what undoing needs, in the place of what is written there.
func (p *Plan) keep(now []byte, k *kept) ([]byte, error) {
	b, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return nil, err
	}
	return b, replace(p.state, now, b, 0o600)
}

// lock waits until no other process of this user changes files for a plan of this
// kind: each would undo what it did not see. There is nothing to lock where nothing was
// ever kept.
func (p *Plan) lock() (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(p.state))
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	for range 200 {
		if err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() { dir.Close() }, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	dir.Close()
	return nil, &EditError{dir.Name(), "another sbxrun integrate is at work: " + err.Error(), "wait for it, or end it"}
}

// same reports whether two contents are the same; nil is no file.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// done reports whether the files are as the plan makes them.
func (p *Plan) done() (bool, error) {
	changes, err := p.Changes()
	var e *EditError
	if errors.As(err, &e) {
		return false, nil
	}
	return len(changes) == 0, err
}

// Undo makes every file what it was: to the byte, if it was not changed since, and
// otherwise by taking out what the plan put in. It returns what was changed.
func (p *Plan) Undo() ([]Change, error) {
	unlock, err := p.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	k, err := p.kept()
	if err != nil || k == nil {
		return nil, err
	}
	undone, err := p.undone(k)
	if err != nil {
		return nil, err
	}
	var changes []Change
	// Last what the agent's settings name, which it may pass over if it is not there.
	for _, u := range slices.Backward(undone) {
		if same(u.Before, u.After) {
			continue
		}
		if err := u.do(); err != nil {
			return nil, err
		}
		remove(u.made)
		changes = append(changes, u.Change)
	}
	return changes, os.Remove(p.state)
}

// undoing is what undoes one file.
type undoing struct {
	Change
	made []string
}

// undone is what makes every file that is kept what it was.
func (p *Plan) undone(k *kept) ([]undoing, error) {
	was := p
	if k.Plan != nil {
		var err error
		if was, err = NewPlan(p.Agent, k.Plan.Site, k.Plan.Options); err != nil {
			return nil, err
		}
	}
	var all []undoing
	for _, f := range k.Files {
		now, err := read(f.Path)
		if err != nil {
			return nil, err
		}
		u := undoing{Change{Path: f.Path, Before: now, Mode: 0o644}, f.Made}
		switch edit := was.edit(f.Path); {
		case now == nil: // it went with the agent
		case bytes.Equal(now, f.After), same(now, f.Was), f.Existed && bytes.Equal(now, f.Before):
			// As the plan made it; or as it was, if that was killed or undone by hand.
			if f.Existed {
				u.After = append([]byte{}, f.Before...)
			}
		case edit == nil && f.Existed == (f.After != nil) && bytes.Equal(f.Before, f.After):
			u.After = now // nothing of a plan's is in there
		case edit == nil:
			return nil, &EditError{f.Path, "it was changed since, by a plan with other means",
				"undo with the flags that it was done with"}
		default:
			if u.After, err = edit.Revert(now, f.Before); err != nil {
				return nil, in(f.Path, err)
			}
		}
		all = append(all, u)
	}
	return all, nil
}

// missing are the directories above a file that are not there, the deepest first.
func missing(path string) []string {
	var all []string
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			return all
		}
		all = append(all, dir)
	}
}

// remove removes directories that were made, if nothing is in them.
func remove(made []string) {
	for _, dir := range made {
		if os.Remove(dir) != nil {
			return
		}
	}
}

func (p *Plan) edit(path string) Edit {
	for _, f := range p.Files {
		if f.Path == path {
			return f.Edit
		}
	}
	return nil
}

func (p *Plan) kept() (*kept, error) {
	b, err := read(p.state)
	if err != nil || b == nil {
		return nil, err
	}
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, &EditError{p.state, "cannot be read: " + err.Error(),
			"it holds what the files of the agent were: put them back by hand, and remove it"}
	}
	return &k, nil
}

func in(path string, err error) error {
	var e *EditError
	if errors.As(err, &e) && e.Path == "" {
		return &EditError{path, e.Cause, e.Fix}
	}
	return err
}

// maxFile bounds a configuration file.
const maxFile = 4 << 20

// read returns a file's content, nil if there is none.
func read(path string) ([]byte, error) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return nil, &EditError{path, "is a symbolic link that leads nowhere", "remove it, or make what it leads to"}
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxFile {
		return nil, &EditError{path, "is not a file to change: no regular one, or larger than 4 MiB", ""}
	}
	b, err := os.ReadFile(path)
	if b == nil && err == nil {
		b = []byte{}
	}
	return b, err
}
