// Command man writes what documents sbxrun and is made of the program itself: the
// manual pages from its tree of commands, the table of flags in docs/cli.md, and the
// tables of drivers, in docs/drivers.md and README.md, from what the drivers say of
// themselves. It is a program of its own so that sbxrun does not link what formats them.
//
//	man ROOT
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/cli"
	"github.com/sbxrun/sbxrun/profiles"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: man ROOT")
		os.Exit(2)
	}
	root := os.Args[1]
	err := errors.Join(write(filepath.Join(root, "docs", "man"), root),
		insert(filepath.Join(root, "docs", "cli.md"), "the table of flags", flags()),
		insert(filepath.Join(root, "docs", "drivers.md"), drivers, features()),
		insert(filepath.Join(root, "README.md"), drivers, summary()))
	if err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// write writes the pages into a directory. The schema of profiles is in the root.
func write(dir, root string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	commands := cli.Root()
	plain(commands)
	// A fixed date: the same commands make the same pages on any day.
	date := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
	schema, err := os.ReadFile(filepath.Join(root, "profiles", "schema.json"))
	if err != nil {
		return err
	}
	var keys object
	if err := json.Unmarshal(schema, &keys); err != nil {
		return err
	}
	profile := &cobra.Command{Use: "sbxrun-profile", Short: "the keys of a profile and of a configuration file",
		Long: profileText + keys.text(""), DisableAutoGenTag: true, DisableFlagsInUseLine: true}
	page, err := os.Create(filepath.Join(dir, "sbxrun-profile.5"))
	if err != nil {
		return err
	}
	err = doc.GenMan(profile, &doc.GenManHeader{Title: "SBXRUN-PROFILE", Section: "5", Date: &date, Source: "sbxrun",
		Manual: "File Formats"}, page)
	return errors.Join(err, page.Close(), doc.GenManTree(commands, &doc.GenManHeader{
		Title: "SBXRUN", Section: "1", Date: &date, Source: "sbxrun", Manual: "User Commands",
	}, dir))
}

const profileText = `A profile says what a command may do. It is a YAML file that begins with extends, the
name of another, and changes that: a file that --profile names, NAME.yaml in
~/.config/sbxrun/profiles, or config.yaml and .sbxrun.yaml for every run. sbxrun profile show
prints the profile in force, and sbxrun profile check reads one for errors.

	extends: strict
	files:
	  read: [~/go]
	limits:
	  memory: 2g

`

// An object is one of the schema's.
type object struct {
	Description string
	Properties  map[string]object
}

// text describes the keys below an object, by name.
func (o object) text(prefix string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(o.Properties)) {
		p := o.Properties[name]
		if p.Properties != nil {
			b.WriteString(p.text(prefix + name + "."))
			continue
		}
		fmt.Fprintf(&b, "**%s%s**\n\t%s\n\n", prefix, name,
			strings.NewReplacer("~", "\\~", "[", "\\[", "*", "\\*", "<", "\\<").Replace(p.Description))
	}
	return b.String()
}

// plain turns off what would make a page differ from day to day, and has each flag
// show the name of its value.
func plain(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if f.DefValue == "" && f.NoOptDefVal == "" {
				f.DefValue, _ = pflag.UnquoteUsage(f)
			}
		})
	}
	for _, sub := range c.Commands() {
		plain(sub)
	}
}

const drivers = "what the drivers say of themselves"

// insert replaces what stands between the marks in a file.
func insert(file, from, text string) error {
	begin, end := "<!-- generated from "+from+": make generate -->\n", "<!-- end -->\n"
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s: no lines %q and %q", file, begin, end)
	}
	return os.WriteFile(file, []byte(head+begin+text+end+tail), 0o644)
}

// flags is a table of the flags that make a policy, and what else says the same.
func flags() string {
	var b strings.Builder
	b.WriteString("| flag | | key of a profile | variable |\n|---|---|---|---|\n")
	code := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + cell(s) + "`"
	}
	for i := range profiles.Flags {
		f := &profiles.Flags[i]
		flag := strings.TrimSpace("--" + f.Name + " " + f.Value)
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", code(flag), cell(f.Usage), code(f.Key()), code(f.Variable()))
	}
	return b.String()
}

// summary is a table with a line for each driver.
func summary() string {
	var b strings.Builder
	b.WriteString("| driver | what it is | layers |\n|---|---|---|\n")
	for _, d := range cli.Drivers() {
		about := d.Describe()
		layers := about.Claims.Layers().Names()
		for i, name := range layers {
			if about.Claims["layer."+name].Support == driver.Partly {
				layers[i] = name + " (partly)"
			}
		}
		if len(layers) == 0 {
			layers = []string{"none"}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.Name(), cell(about.Summary), strings.Join(layers, ", "))
	}
	return b.String()
}

// features is a table of what a policy can ask for and each driver has, and then
// what each driver adds to its yes or no.
func features() string {
	var b strings.Builder
	names, claims := []string{}, []driver.Claims{}
	for _, d := range cli.Drivers() {
		names, claims = append(names, d.Name()), append(claims, d.Describe().Claims)
	}
	b.WriteString("| | " + strings.Join(names, " | ") + " |\n|---" + strings.Repeat("|---", len(names)) + "|\n")
	for _, f := range driver.Features {
		fmt.Fprintf(&b, "| %s (`%s`) |", cell(f.What), f.Name)
		for _, c := range claims {
			text := c[f.Name].Support.String()
			if text == "no" {
				text = "–"
			}
			b.WriteString(" " + text + " |")
		}
		b.WriteString("\n")
	}
	for i, c := range claims {
		fmt.Fprintf(&b, "\n### %s\n\n", names[i])
		same := map[string][]string{} // features by note, in order
		var order []string
		for _, f := range driver.Features {
			if n := c[f.Name].Note; n != "" {
				if same[n] == nil {
					order = append(order, n)
				}
				same[n] = append(same[n], "`"+f.Name+"` "+c[f.Name].Support.String())
			}
		}
		for _, n := range order {
			list := strings.Join(same[n], ", ")
			if len(same[n]) > 12 {
				list = "all that is not said otherwise: no"
			}
			fmt.Fprintf(&b, "- %s: %s\n", list, n)
		}
	}
	return b.String()
}

// cell is text in a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
