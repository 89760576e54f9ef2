package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/setup"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/profiles"
)

// A preparation is what sbxrun setup was asked for.
type preparation struct {
	yes, undo, print bool
	skip             []string
	root             *cobra.Command
}

func newSetup() *cobra.Command {
	o, p := &options{}, &preparation{}
	c := plain(&cobra.Command{
		Use:   "setup [flags]",
		Short: "Prepare this host, this user and this project, once",
		Long: `Find out what would make sbxrun work better here, say what it would do, ask, and do
it: cgroups for limits, user namespaces for the program, completion of commands, a first
profile for the project in the current directory.

What needs root is done by "sudo sbxrun setup", for the user who calls sudo. Files that
are there already stay as they are. --undo removes what setup made, unless it was edited.`,
		Example: "  sbxrun setup\n  sudo sbxrun setup\n  sbxrun setup --yes --skip profile\n  sbxrun setup --undo",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p.root = c.Root()
			return p.run()
		},
	}, o)
	c.Flags().BoolVarP(&p.yes, "yes", "y", false, "do it without asking")
	c.Flags().BoolVar(&p.print, "print", false, "print what would be done with all contents, and do nothing")
	c.Flags().BoolVar(&p.undo, "undo", false, "remove what setup made")
	c.Flags().StringSliceVar(&p.skip, "skip", nil, "leave out a step, by its `NAME`")
	return c
}

func (p *preparation) run() error {
	f, err := p.facts()
	if err != nil {
		return err
	}
	if p.undo {
		f.AppArmor4 = false // what is to be removed is found by its mark
	}
	steps, err := setup.Steps(f)
	if err != nil {
		return engine.Usage(err.Error(), "nothing was changed")
	}
	if p.undo {
		steps = append(steps, setup.Left(f, steps)...)
	}
	for _, name := range p.skip {
		if !slices.ContainsFunc(steps, func(s setup.Step) bool { return s.Name == name }) {
			return engine.Usage("--skip "+strconv.Quote(name)+" is not a step here", "sbxrun setup --print lists them")
		}
	}
	steps = slices.DeleteFunc(steps, func(s setup.Step) bool { return slices.Contains(p.skip, s.Name) })
	if p.undo {
		return p.takeBack(steps)
	}
	mine := p.list(steps)
	switch {
	case len(mine) == 0 || p.print:
		return nil
	case !p.yes && !ask("Do this now?"):
		say.note("nothing was changed", "--yes does it without asking")
		return nil
	}
	for _, s := range mine {
		if err := s.Do(); err != nil {
			return engine.Hinted(fmt.Errorf("step %s: %w", s.Name, err), "--skip "+s.Name+" leaves it out")
		}
		say.note(s.Name+": done", s.Note)
	}
	return nil
}

// list prints the steps, and returns those that are to do and this user can.
func (p *preparation) list(steps []setup.Step) (mine []*setup.Step) {
	root := os.Geteuid() == 0
	sudo := false
	for i := range steps {
		s := &steps[i]
		state := s.State()
		line := s.Name + ": " + s.Why
		switch {
		case state == setup.Done:
			line = s.Name + ": done"
		case state == setup.Other:
			line += " (left alone: " + s.File + " is somebody else's, or was edited)"
		case s.Root && !root:
			line += " (needs root)"
			sudo = true
		default:
			mine = append(mine, s)
		}
		fmt.Println(quote.Escape(line))
		if state == setup.ToDo || p.print {
			p.describe(s)
		}
	}
	if len(steps) == 0 {
		fmt.Println("nothing to do: sbxrun doctor says what this host can isolate")
	}
	if sudo {
		self, err := os.Executable()
		if err != nil {
			self = "sbxrun"
		}
		fmt.Println(quote.Escape("what needs root: sudo " + self + " setup"))
	}
	return mine
}

// describe prints what a step does.
func (p *preparation) describe(s *setup.Step) {
	for _, d := range s.Dirs {
		fmt.Println("  makes " + quote.Escape(d))
	}
	if s.File != "" {
		fmt.Println("  writes " + quote.Escape(s.File))
	}
	if p.print {
		for l := range strings.Lines(string(s.Text)) {
			if fmt.Print("  | ", l); s.Name == "completion" {
				break
			}
		}
	}
	for _, args := range s.Then {
		fmt.Println("  runs " + quote.Escape(strings.Join(args, " ")))
	}
	if s.Note != "" {
		fmt.Println("  note: " + quote.Escape(s.Note))
	}
}

func (p *preparation) takeBack(steps []setup.Step) error {
	some := false
	for i := range steps {
		s := &steps[i]
		if s.Root && os.Geteuid() != 0 {
			if s.State() == setup.Done {
				say.note(s.File+" needs root to be removed", "sudo sbxrun setup --undo")
			}
			continue
		}
		if p.print {
			if state := s.State(); state != setup.Other && s.File != "" && (state == setup.Done || len(s.Text) == 0) {
				fmt.Println("would remove " + quote.Escape(s.File))
				some = true
			}
			continue
		}
		was, err := s.Undo()
		if err != nil {
			return err
		}
		if some = some || was; was {
			fmt.Println("removed " + quote.Escape(strings.Join(append(s.Dirs, s.File), " ")))
		} else if s.State() == setup.Other {
			say.note(s.File+" is somebody else's, or was edited, and stays", "")
		}
	}
	if !some {
		fmt.Println("nothing was removed")
	}
	return nil
}

// facts are those of this user and host; with sudo, the host's for the user who called it.
func (p *preparation) facts() (*setup.Facts, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return nil, err
	}
	f := &setup.Facts{Exe: self, UID: os.Geteuid()}
	if id, err := strconv.ParseUint(os.Getenv("SUDO_UID"), 10, 31); err == nil && f.UID == 0 && id > 0 {
		f.UID = int(id)
	} else if err := p.own(f); err != nil {
		return nil, err
	}
	if u, err := user.LookupId(strconv.Itoa(f.UID)); err == nil {
		f.User = u.Username
	}
	f.Host()
	return f, nil
}

// own adds what is the user's.
func (p *preparation) own(f *setup.Facts) error {
	h, err := engine.GatherFacts()
	if err != nil {
		return err
	}
	if fi, err := os.Stat(h.Home); err != nil || !setup.Owns(fi, f.UID) {
		return nil // by su or doas: a user's directories are not root's to write to
	}
	f.Home, f.Dir, f.Shell = h.Home, h.Cwd, os.Getenv("SHELL")
	data, config := "XDG_DATA_HOME", "XDG_CONFIG_HOME"
	if f.UID == 0 {
		data, config = "", "" // what a root shell kept can be another user's
	}
	f.Data, f.Config = engine.XDG(h, data, ".local/share"), engine.XDG(h, config, ".config")
	f.Completion = func(shell string) []byte {
		var b bytes.Buffer
		printCompletion(p.root, shell, &b)
		return b.Bytes()
	}
	f.Taken = func(name string) bool {
		return slices.ContainsFunc(profiles.List(&h.Facts),
			func(i profiles.Info) bool { return i.Name == name && i.Origin == "built in" })
	}
	return nil
}

// ask asks a person. Where there is none, the answer is no.
func ask(question string) bool {
	if !terminal.Is(os.Stdin) || !terminal.Is(os.Stdout) {
		return false
	}
	fmt.Print(question + " [y/N] ")
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}
