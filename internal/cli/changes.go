package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/policy"
	"github.com/sbxrun/sbxrun/workspace"
)

// explainChanges says where the changes of a run are. A model is not told after each
// command that there are none.
func explainChanges(c *driver.Changes, model bool) {
	if c == nil {
		return
	}
	if c.Full {
		say.note("the private storage was full, which is also what the workspace's changes are in",
			"--disk sets its size")
	}
	if c.ID == "" {
		if !model || say.verbose {
			say.note("nothing was changed in "+c.Workspace, "")
		}
		return
	}
	text := "kept as change set " + c.ID + ": " + summary(c.Added, c.Modified, c.Deleted)
	if c.Skipped > 0 {
		text += "; " + strconv.Itoa(c.Skipped) + " left out"
	}
	say.note(text, "sbxrun diff "+c.ID+" shows them; sbxrun apply "+c.ID+" takes them over, sbxrun discard "+c.ID+
		" does not")
}

// tellChanges says what became of the changes of a session that ended.
func tellChanges(c *driver.Changes, err error) {
	if err != nil {
		say.error(err)
	}
	explainChanges(c, false)
}

func summary(added, modified, deleted int) string {
	var parts []string
	for _, p := range [...]struct {
		n    int
		what string
	}{{added, "added"}, {modified, "modified"}, {deleted, "deleted"}} {
		if p.n > 0 {
			parts = append(parts, strconv.Itoa(p.n)+" "+p.what)
		}
	}
	if parts == nil {
		return "no change that can be taken over"
	}
	return strings.Join(parts, ", ")
}

// chosen loads a change set: that of the name, or the last of the workspace that
// the working directory is in.
func chosen(st *workspace.Store, f *facts, args []string) (*workspace.Set, error) {
	if len(args) == 1 {
		if err := workspace.CheckID(args[0]); err != nil {
			return nil, err
		}
		runs, err := snapshot(args[0])
		if err != nil {
			return nil, err
		}
		set, err := st.Load(args[0])
		switch {
		case errors.Is(err, workspace.ErrNotFound) && runs:
			return nil, errors.New("session " + args[0] +
				" has no changes: its commands have changed nothing so far, or it was created without --workspace overlay")
		case errors.Is(err, workspace.ErrNotFound):
			return nil, engine.Hinted(err, "sbxrun diff --list shows all that there are")
		}
		return set, err
	}
	list, err := st.List()
	var id string
	others := 0
	for _, i := range list {
		if policy.Below(f.Cwd, i.Workspace) {
			if id != "" {
				others++
			}
			id = i.ID
		}
	}
	if id == "" {
		if err != nil {
			return nil, err
		}
		return nil, engine.Hinted(errors.New("no changes of "+f.Cwd+" are kept"),
			"sbxrun --workspace overlay keeps what a command changes; sbxrun diff --list shows the changes of other directories")
	}
	if others > 0 {
		say.note("change set "+id+", the last of "+strconv.Itoa(others+1)+" of this directory",
			"sbxrun diff --list shows all")
	}
	return st.Load(id)
}

// snapshot has a session that runs keep what was changed in it so far. It reports
// whether there is one of that name.
func snapshot(id string) (runs bool, err error) {
	st, err := engine.OpenSessions()
	if err != nil {
		return false, nil
	}
	defer st.Close()
	if info, err := st.Lookup(id); err != nil || info.Over() {
		return false, nil
	}
	c, err := st.Connect(id)
	if err == nil {
		err = c.Snapshot()
	}
	return true, err
}

// settled is an error if a set is of a session that still runs: what it goes on to
// change would be lost, or come again.
func settled(set *workspace.Set) error {
	if !set.Session {
		return nil
	}
	if runs, _ := snapshot(set.ID); runs {
		return engine.Hinted(errors.New("session "+set.ID+" still runs"),
			"sbxrun session stop "+set.ID+"; until then sbxrun diff shows what it has changed so far")
	}
	return nil
}

// withSet runs a function on a change set and its workspace.
func withSet(args []string, do func(*workspace.Store, *workspace.Set, *workspace.Workspace) error) error {
	return withChanges(func(f *facts, st *workspace.Store) error {
		set, err := chosen(st, f, args)
		if err != nil {
			return err
		}
		w, err := set.Open()
		if err != nil {
			return engine.Hinted(err, "sbxrun discard "+set.ID+" removes the change set")
		}
		defer w.Close()
		w.Obeyed = engine.Obeyed(f)
		return do(st, set, w)
	})
}

// withChanges runs a function on the change sets that are kept.
func withChanges(do func(*facts, *workspace.Store) error) error {
	f, err := engine.GatherFacts()
	if err != nil {
		return err
	}
	st, err := engine.OpenChanges(f)
	if err != nil {
		return err
	}
	defer st.Close()
	return do(f, st)
}

func newDiff() *cobra.Command {
	o := &options{}
	list, stat := false, false
	c := plain(&cobra.Command{
		Use:   "diff [flags] [ID]",
		Short: "Show what was changed in a copy-on-write workspace",
		Long: `Show the changes that a run or a session with --workspace overlay made, against
the workspace as it is now, as a patch that git apply understands. Without an ID
they are the last of the directory. What sbxrun apply would refuse, because it is
protected or was changed in the workspace too, is marked with a line that begins
with #.`,
		Example: "  sbxrun --workspace overlay -- make\n  sbxrun diff --stat\n  sbxrun diff | less\n  sbxrun diff --list",
		Args:    maxArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if list {
				if len(args) > 0 {
					return engine.Usage("--list shows all change sets, and was given one", "leave out the ID or --list")
				}
				return withChanges(o.listChanges)
			}
			return withSet(args, func(_ *workspace.Store, set *workspace.Set, w *workspace.Workspace) error {
				all, err := set.Check(w)
				if err != nil {
					return err
				}
				if o.json {
					return printChanges(set, w, all)
				}
				out := bufio.NewWriter(os.Stdout)
				escape := terminal.Is(os.Stdout)
				for _, st := range all {
					if err := printChange(out, set, w, st, stat, escape); err != nil {
						return errors.Join(err, out.Flush())
					}
				}
				if err := out.Flush(); err != nil {
					return err
				}
				for _, s := range set.Skips {
					say.note(quote.Inside(s.Path)+" is left out: "+s.Why, "")
				}
				return nil
			})
		},
		ValidArgsFunction: completeChanges,
	}, o)
	c.Flags().BoolVar(&stat, "stat", false, "list the paths only: A added, M modified, D deleted, T of another type")
	c.Flags().BoolVar(&list, "list", false, "list the change sets that are kept")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// letter is a kind of change as git diff --name-status has it.
func letter(k workspace.Kind) string {
	switch k {
	case workspace.Added:
		return "A"
	case workspace.Deleted:
		return "D"
	case workspace.Replaced:
		return "T"
	}
	return "M"
}

// remark is why a change would not be applied, "" if it would.
func remark(st *workspace.Status) string {
	var parts []string
	if st.Protected != "" {
		parts = append(parts, "protected: "+st.Protected)
	}
	switch st.State {
	case workspace.Conflict:
		parts = append(parts, "conflict: "+st.Why)
	case workspace.Done:
		parts = append(parts, "the workspace has it already")
	}
	return strings.Join(parts, "; ")
}

// printChange prints one change. Escape is for a terminal: what a sandbox wrote may not
// act on that.
func printChange(w io.Writer, set *workspace.Set, ws *workspace.Workspace, st *workspace.Status, stat,
	escape bool) error {
	name := st.Path
	if st.New != nil && st.New.Type == workspace.Dir || st.New == nil && st.Old != nil && st.Old.Type == workspace.Dir {
		name += "/"
	}
	why := remark(st)
	if stat {
		line := letter(st.Kind) + "  " + quote.Inside(name)
		if why != "" {
			line += "  (" + quote.Line(why) + ")"
		}
		_, err := fmt.Fprintln(w, line)
		return err
	}
	text := ""
	if why != "" {
		text = "# " + quote.Inside(name) + ": " + quote.Line(why) + "\n"
	}
	if st.State != workspace.Done {
		p, err := set.Patch(ws, st)
		if err != nil {
			return err
		}
		text += p
	}
	if escape {
		text = printableLines(text)
	}
	_, err := io.WriteString(w, text)
	return err
}

// printableLines is quote.Escape for a text of several lines, with tabs.
func printableLines(s string) string {
	var b strings.Builder
	for i := strings.IndexAny(s, "\n\t"); i >= 0; i = strings.IndexAny(s, "\n\t") {
		b.WriteString(quote.Escape(s[:i]) + s[i:i+1])
		s = s[i+1:]
	}
	return b.String() + quote.Escape(s)
}

// changeJSON is what "diff --json" says of a change.
type changeJSON struct {
	*workspace.Status
	Patch string `json:"patch,omitempty"`
}

func printChanges(set *workspace.Set, w *workspace.Workspace, all []*workspace.Status) error {
	out := struct {
		workspace.Info
		Changes []changeJSON      `json:"changes"`
		Skips   []*workspace.Skip `json:"skipped_paths"`
	}{Info: set.Info, Changes: []changeJSON{}, Skips: set.Skips}
	if out.Skips == nil {
		out.Skips = []*workspace.Skip{}
	}
	for _, st := range all {
		p, err := set.Patch(w, st)
		if err != nil {
			return err
		}
		out.Changes = append(out.Changes, changeJSON{st, p})
	}
	return PrintJSON(out)
}

func (o *options) listChanges(_ *facts, st *workspace.Store) error {
	list, err := st.List()
	if err != nil {
		say.warn(err.Error())
	}
	rows := [][]string{{"ID", "CHANGES", "CREATED", "WORKSPACE", "COMMAND"}}
	for _, i := range list {
		what := strings.Join(i.Command, " ")
		if i.Session {
			what = "(session)"
		}
		if len(what) > 60 {
			what = what[:57] + "..."
		}
		rows = append(rows, []string{i.ID, summary(i.Added, i.Modified, i.Deleted), i.Created.Format(time.DateTime),
			i.Workspace, dash(what)})
	}
	return o.list(list, rows)
}

func newApply() *cobra.Command {
	o := &options{}
	var ao workspace.Options
	keep := false
	c := plain(&cobra.Command{
		Use:   "apply [flags] [ID]",
		Short: "Take over what was changed in a copy-on-write workspace",
		Long: `Make the changes of a run or a session with --workspace overlay in the workspace,
and remove the change set. Without an ID they are the last of the directory.

Nothing is changed if one of the paths is protected, or was changed in the
workspace since the run began: the paths are listed, and the exit code is 1. Each
file is replaced in one step. Set-user-id bits, owners and special files are not
taken over.`,
		Example: "  sbxrun apply\n  sbxrun apply --allow-protected .vscode w1a2b3c4-567\n  sbxrun apply --on-conflict keep",
		Args:    maxArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return withSet(args, func(st *workspace.Store, set *workspace.Set, w *workspace.Workspace) error {
				if err := settled(set); err != nil {
					return err
				}
				r, err := set.Apply(w, ao)
				if r == nil {
					return err
				}
				return o.applied(st, set, r, err, ao.OnConflict, keep)
			})
		},
		ValidArgsFunction: completeChanges,
	}, o)
	c.Flags().Var(&value{"PATTERN", more(&ao.Allow, checked)}, "allow-protected",
		"change protected paths of this pattern, or this path; all for every one")
	c.Flags().Var(&value{"stop|keep|overwrite", func(s string) error {
		var how string
		err := oneOf(&how, "stop", "keep", "overwrite")(s)
		if ao.OnConflict = workspace.OnConflict(how); how == "stop" {
			ao.OnConflict = workspace.Stop
		}
		return err
	}}, "on-conflict",
		"what was changed in the workspace too: change nothing at all, keep the workspace's, or take the sandbox's (default stop)")
	c.Flags().BoolVar(&keep, "keep", false, "keep the change set")
	c.Flags().BoolVar(&o.json, "json", false, "print what was done as JSON")
	return c
}

// applied tells what came of applying a set, and removes it if nothing of it is
// left to do.
func (o *options) applied(st *workspace.Store, set *workspace.Set, r *workspace.Report, err error,
	how workspace.OnConflict, keep bool) error {
	if o.json {
		if jerr := PrintJSON(r); jerr != nil {
			return jerr
		}
	}
	for _, s := range r.Protected {
		say.error(engine.Hinted(errors.New(quote.Inside(s.Path)+" is protected ("+s.Protected+")"), ""))
	}
	for _, s := range r.Conflicts {
		say.error(engine.Hinted(errors.New(quote.Inside(s.Path)+": "+s.Why), ""))
	}
	if r.Refused() {
		say.error(engine.Hinted(errors.New("nothing was changed"), refused(set, r, how)))
		return exitError(1)
	}
	if err != nil {
		return engine.Hinted(err, strconv.Itoa(len(r.Remaining))+" of "+strconv.Itoa(set.Len())+
			" changes were not made; when the cause is gone, sbxrun apply "+set.ID+" makes the rest")
	}
	text := count(uint64(len(r.Applied)), "change", "changes") + " made in " + set.Workspace
	if r.Done > 0 {
		text += ", " + strconv.Itoa(r.Done) + " were there already"
	}
	if len(r.Kept) > 0 {
		say.note(text+"; of "+count(uint64(len(r.Kept)), "path", "paths")+" the workspace's was kept",
			"the rest stays in change set "+set.ID+": sbxrun diff "+set.ID+", sbxrun discard "+set.ID)
		return nil
	}
	say.note(text, "")
	if keep {
		return nil
	}
	return st.Remove(set.ID)
}

// refused says what would let a set be applied.
func refused(set *workspace.Set, r *workspace.Report, how workspace.OnConflict) string {
	var hints []string
	if len(r.Protected) > 0 {
		var flags []string
		for _, s := range r.Protected {
			if flag := driver.GrantOf("allow-protected", s.Protected).Shell(); !slices.Contains(flags, flag) {
				flags = append(flags, flag)
			}
		}
		hints = append(hints,
			strings.Join(flags, " ")+" lets such paths be changed: look at them first, with sbxrun diff "+set.ID)
	}
	switch {
	case len(r.Conflicts) > 0 && how == workspace.Overwrite:
		hints = append(hints,
			"sbxrun writes nothing there: make it a directory again that you can read, or leave these paths out with --on-conflict keep")
	case len(r.Conflicts) > 0:
		hints = append(hints, "--on-conflict keep leaves the workspace's, --on-conflict overwrite takes the sandbox's")
	}
	return strings.Join(hints, "; ")
}

func newDiscard() *cobra.Command {
	o := &options{}
	all := false
	c := plain(&cobra.Command{
		Use:     "discard [flags] [ID...]",
		Short:   "Throw away what was changed in a copy-on-write workspace",
		Long:    "Remove change sets. The workspace is not touched. Without an ID it is the last of the\ndirectory.",
		Example: "  sbxrun discard\n  sbxrun discard w1a2b3c4-567\n  sbxrun discard --all",
		Args:    cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return withChanges(func(f *facts, st *workspace.Store) (err error) {
				if all {
					if len(args) > 0 {
						return engine.Usage("--all is every change set, and some were named",
							"leave out the IDs or --all")
					}
					list, lerr := st.List()
					for _, i := range list {
						args = append(args, i.ID)
					}
					err = lerr
				} else if len(args) == 0 {
					set, err := chosen(st, f, nil)
					if err != nil {
						return err
					}
					args = []string{set.ID}
				}
				for _, id := range args {
					if set, lerr := st.Load(id); lerr == nil {
						if err := settled(set); err != nil {
							return err
						}
					}
					if rerr := st.Remove(id); rerr != nil {
						return engine.Hinted(rerr, "sbxrun diff --list shows all that there are")
					}
					say.note("change set "+id+" is removed", "")
				}
				return err
			})
		},
		ValidArgsFunction: completeChanges,
	}, o)
	c.Flags().BoolVar(&all, "all", false, "every change set there is, of all directories")
	return c
}

func completeChanges(*cobra.Command, []string, string) (ids []string, _ cobra.ShellCompDirective) {
	if withChanges(func(_ *facts, st *workspace.Store) error {
		list, _ := st.List()
		for _, i := range list {
			ids = append(ids, i.ID+"\t"+i.Workspace)
		}
		return nil
	}) != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// pruneChanges removes change sets that were never completed, and with all those
// that nobody has applied.
func pruneChanges(age time.Duration, all bool) error {
	f, err := engine.GatherFacts()
	if err != nil {
		return err
	}
	dir, err := engine.ChangesDir(f)
	if err != nil {
		return nil // so none was kept
	}
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	st, err := workspace.OpenStore(dir)
	if err != nil {
		return err
	}
	defer st.Close()
	gone, err := st.Prune(age, all)
	for _, id := range gone {
		fmt.Println("changes " + id)
	}
	return err
}
