package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/agents"
	"github.com/sbxrun/sbxrun/internal/agents/whole"
	"github.com/sbxrun/sbxrun/internal/cli"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/policy"
)

// prompt prints what a model is told of its sandbox, or that it has none.
func prompt(p *policy.Policy, outside, commands string) error {
	out := agents.Prompt{Policy: p, Outside: outside}
	if commands != "none" {
		rules, err := readRules(commands)
		if err != nil {
			return err
		}
		out.Allowed, out.Denied = rules.Allowed(), rules.Denied()
	}
	_, err := os.Stdout.WriteString(out.String())
	return err
}

// siteOf finds where the user's things are.
func siteOf(i *cli.Integration) (site agents.Site, err error) {
	f, err := engine.GatherFacts()
	if err != nil {
		return site, err
	}
	if f.Home == "" {
		return site, engine.Usage("there is no home directory", "set HOME")
	}
	or := func(name, below string) string { return filepath.Clean(engine.XDG(f, name, below)) }
	self, err := os.Executable()
	if err != nil {
		return site, err
	}
	site = agents.Site{Home: f.Home, Config: or("XDG_CONFIG_HOME", ".config"), Data: or("XDG_DATA_HOME", ".local/share"),
		State: or("XDG_STATE_HOME", ".local/state"), Claude: or("CLAUDE_CONFIG_DIR", ".claude"),
		Codex: or("CODEX_HOME", ".codex"),
		Qwen:  or("QWEN_HOME", ".qwen"), Copilot: or("COPILOT_HOME", ".copilot"), Pi: or("PI_CODING_AGENT_DIR", ".pi/agent"),
		Sbxrun: filepath.Join(filepath.Dir(self), "sbxrun"), Agent: i.Program}
	if i.Agent != "shell" && i.Agent != "mcp" {
		_, file, err := whole.Program(i.Program, strings.TrimSuffix(i.Agent, "-code"))
		if file != "" {
			site.Agent = file
		}
		return site, err
	}
	if i.File == "" {
		return site, nil
	}
	return site, f.CheckTarget("flag --file", i.File)
}

// integrate changes an agent's configuration, or looks at it.
func integrate(i *cli.Integration) error {
	site, err := siteOf(i)
	if err != nil {
		return err
	}
	if i.Do == "verify" {
		return verify(i, site)
	}
	if i.Do == "undo" && site.Agent == "" {
		site.Agent = "/" // what is undone does not depend on it
	}
	plan, err := agents.NewPlan(i.Agent, site,
		agents.Options{Flags: i.Flags, By: i.By, Managed: i.Managed, Session: i.Session, File: i.File})
	if err != nil {
		return err
	}
	var changes []agents.Change
	done := ""
	switch i.Do {
	case "print":
		if changes, err = plan.Changes(); err != nil {
			return err
		}
		for _, c := range changes {
			fmt.Printf("--- %s\n%s", c.Path, c.After)
			if !bytes.HasSuffix(c.After, []byte("\n")) {
				fmt.Println()
			}
		}
		if len(changes) == 0 {
			fmt.Println("nothing to change")
		}
		return nil
	case "undo":
		changes, err = plan.Undo()
		done = "nothing to undo"
	default:
		changes, err = plan.Apply()
		done = "nothing to change"
	}
	if err != nil {
		return err
	}
	for _, c := range changes {
		verb := "changed"
		switch {
		case c.After == nil:
			verb = "removed"
		case c.Before == nil:
			verb = "made"
		}
		fmt.Println(verb, c.Path)
	}
	if len(changes) == 0 {
		fmt.Println(done)
	} else if i.Do == "" {
		what := i.Agent + " --verify"
		switch i.Agent {
		case "shell":
			fmt.Printf("now name it in the agent's settings, or in SHELL: %s\n", site.Shell())
			what += " -- AGENT -p {}"
		case "mcp":
			fmt.Println("now deny the agent its own shell, in its settings")
			what = "mcp --file " + i.File + " --verify -- AGENT -p {}"
		}
		fmt.Printf("to see that it holds: sbxrun integrate %s\n", what)
	}
	return nil
}

// patience bounds a proof: an agent has to start.
const patience = 3 * time.Minute

func verify(i *cli.Integration, site agents.Site) error {
	agent := i.Agent
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	partial := false
	if agent != "codex" {
		var err error
		if partial, err = i.Partial(); err != nil {
			return err
		}
	}
	p, err := agents.Verify(ctx, agent, site, i.File, i.Command)
	if err != nil {
		return err
	}
	how := "a command that " + agent + " itself ran"
	if len(i.Command) > 0 {
		agent = i.Command[0]
		how = "a command that " + agent + " ran, asked by its own model,"
	} else if agent == "shell" || agent == "mcp" {
		how = "a command, given to the " + map[string]string{"shell": "shell", "mcp": "server"}[agent] +
			" (no agent was started),"
	} else if !p.Real {
		how = "a command, called as " + agent + "'s configuration says (the agent itself was not started),"
	}
	switch {
	case p.Holds():
		fmt.Printf(
			"verified: %s wrote a file, ran a test and committed in its workspace; it could neither read nor write a file beside that, nor see the agent's API key\n", how)
		if len(p.Seen) > 0 {
			fmt.Printf("of your home it saw these, or something below them: %s\n", p.Home())
		} else {
			fmt.Println("of your home it saw nothing")
		}
		if partial {
			fmt.Println(
				"but: the roll-out in config.yaml leaves agents out of the sandbox by their keys, of which the workspace is one; this was in a workspace of its own. sbxrun prompt -C DIR says what holds in yours")
		}
		for _, a := range p.Against {
			without := "claude --setting-sources user"
			if i.Agent == "copilot" {
				without = "copilot --excluded-tools=bash"
			}
			fmt.Printf("but: %s: in this project commands can run outside; %s prevents that\n", a, without)
		}
		if p.Overridable {
			fmt.Println(
				"but: a project with a .claude/settings.json against it can have its commands run outside; claude --setting-sources user prevents that, and so does sbxrun integrate claude-code --managed")
		}
		return nil
	case len(p.Breaches) == 0:
		for _, line := range p.Lines() {
			fmt.Printf("%s: %s\n", agent, line)
		}
		if !p.Ran {
			err := errors.New("not verified: the command did not run; what " + agent + " showed is above")
			if w := engine.WeakerHere(ctx); w != nil {
				of := i.Agent
				if i.File != "" {
					of += " " + driver.GrantOf("file", i.File).Shell()
				}
				return engine.Hinted(err,
					"this host cannot give every layer; to go without, integrate again, with your other flags beside these: sbxrun integrate "+of+" "+w.Flags)
			}
			return err
		}
		return fmt.Errorf("not verified: %s stayed inside, but could not %s; what %s showed is above", how,
			strings.Join(p.Failed, ", nor "), agent)
	}
	why := ""
	for line := range strings.Lines(p.Output) {
		if _, said, ok := strings.Cut(line, "NOT SANDBOXED"); ok && why == "" {
			why = "; it was told that it would not: NOT SANDBOXED" + strings.TrimSpace(said)
		}
	}
	return fmt.Errorf("not in a sandbox: %s did not stay inside: %s%s", how, strings.Join(p.Breaches, "; "), why)
}
