package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxrun/sbxrun/driver"
	"github.com/sbxrun/sbxrun/internal/engine"
	"github.com/sbxrun/sbxrun/internal/questions"
	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/internal/terminal"
	"github.com/sbxrun/sbxrun/profiles"
	"github.com/sbxrun/sbxrun/session"
)

// askPatience is how long a question waits without another word.
const askPatience = time.Minute

// askFlag defines the flag that has refusals ask.
func (o *options) askFlag(fs *pflag.FlagSet) {
	fs.VarPF(&value{"DURATION", into(&o.req.Ask, func(s string) (time.Duration, error) {
		d, err := profiles.ParseDuration(s)
		if err != nil || d <= 0 {
			err = engine.Usage(strconv.Quote(s)+" is no time to answer in", "for example --ask=1m")
		}
		return d, err
	})}, "ask", "", "hold what a grant could allow (a host, a protected path, with --explain a file that is not shown) and ask first; no answer within a time is no (default 1m)").
		NoOptDefVal = askPatience.String()
}

func newSessionRequests() *cobra.Command {
	o := &options{}
	follow := false
	c := listing(&cobra.Command{
		Use:   "requests [flags] ID",
		Short: "List what a session made with --ask waits for an answer about",
		Long: `List the questions of a session that was made with --ask: what a command in it was
about to be refused, by which rule, what would grant it, and who asks. The command waits
for sbxrun session grant or deny. With --json each question is one object; with --follow
they are printed as they come, one line each, until the session ends.`,
		Example: "  sbxrun session requests build\n  sbxrun session requests --follow --json build",
		Args:    exactArgs(1, "a session"),
		RunE: func(_ *cobra.Command, args []string) error {
			return withSession(args[0], func(_ *session.Store, c *session.Client) error {
				if follow {
					return o.followQuestions(c)
				}
				list, untold, err := c.Questions(0, 0)
				if err != nil {
					return err
				}
				rows := [][]string{{"QUESTION", "TIME LEFT", "WHAT", "GRANTS", "WHY", "BY"}}
				for i := range list {
					rows = append(rows, questionRow(&list[i]))
				}
				if list == nil {
					list = []questions.Question{}
				}
				if err := o.list(list, rows); err != nil || o.json {
					return err
				}
				if untold > 0 {
					say.note(strconv.FormatUint(untold, 10)+
						" calls were refused without a question: too many of them, or a no before", "")
				}
				return nil
			})
		},
	}, o)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print questions as they come")
	return c
}

// questionRow tells a question in a line. What is from inside is quoted, and who asks, of
// whom the command chose the words, comes last.
func questionRow(q *questions.Question) []string {
	what := questions.What(&q.Denial)
	if q.Waiting > 1 {
		what += " (" + strconv.Itoa(q.Waiting) + " wait)"
	}
	return []string{strconv.Itoa(q.ID), max(0, time.Until(q.Expires)).Round(time.Second).String(), what,
		questions.Grant(&q.Denial), questions.Because(&q.Denial), dash(questions.By(&q.Denial))}
}

// followWait is how long one look waits for more.
const followWait = 10 * time.Second

func (o *options) followQuestions(c *session.Client) error {
	for last := 0; ; {
		list, _, err := c.Questions(last, followWait)
		if errors.Is(err, driver.ErrSandboxGone) || errors.Is(err, session.ErrNotRunning) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range list {
			q := &list[i]
			if q.ID <= last {
				continue
			}
			last = q.ID
			if o.json {
				b, err := json.Marshal(q)
				if err != nil {
					return err
				}
				_, err = os.Stdout.Write(append(quote.JSON(b), '\n'))
				if err != nil {
					return err
				}
				continue
			}
			row := questionRow(q)
			if _, err := fmt.Printf("question %s: %s; grants %s; %s; by %s\n", row[0], row[2], row[3], row[4],
				row[5]); err != nil {
				return err
			}
		}
	}
}

func newSessionGrant() *cobra.Command {
	o := &options{}
	once, into := false, ""
	c := plain(&cobra.Command{
		Use:   "grant [flags] ID QUESTION",
		Short: "Allow what a question of a session is about, for as long as the session is there",
		Long: `Allow what a question is about: what waits goes on, and for as long as the session is
there the grant that sbxrun session requests shows holds as if the session had been made
with it. What the rules deny, and a private address behind a name, stay refused.

With --into the grant is added to a profile of yours, too, so that the next sandbox has it.`,
		Example: "  sbxrun session grant build 3\n  sbxrun session grant --once build 3\n" +
			"  sbxrun session grant --into ~/.config/sbxrun/profiles/build.yaml build 3",
		Args: exactArgs(2, "a session and the number of a question"),
		RunE: func(_ *cobra.Command, args []string) error {
			a := driver.GrantAlways
			switch {
			case once && into != "":
				return engine.Usage("--into is for good, and --once is not", "leave out one of the two")
			case once:
				a = driver.GrantOnce
			}
			return answer(args[0], args[1], a, into)
		},
	}, o)
	c.Flags().BoolVar(&once, "once", false, "only what waits now")
	c.Flags().StringVar(&into, "into", "", "add the grant to this profile")
	return c
}

func newSessionDeny() *cobra.Command {
	return plain(&cobra.Command{
		Use:   "deny ID QUESTION",
		Short: "Refuse what a question of a session is about",
		Long: `Refuse what a question is about. For a minute the same is refused without another
question.`,
		Args: exactArgs(2, "a session and the number of a question"),
		RunE: func(_ *cobra.Command, args []string) error { return answer(args[0], args[1], driver.Refuse, "") },
	}, &options{})
}

// answer answers a question of a session; into is a profile that gets the grant, "" for none.
func answer(id, question string, a driver.Answer, into string) error {
	n, err := strconv.Atoi(question)
	if err != nil || n < 1 {
		return engine.Usage(strconv.Quote(question)+" is not the number of a question", "sbxrun session requests "+id+" lists them")
	}
	return withSession(id, func(st *session.Store, c *session.Client) error {
		do := func() error { return c.Answer(n, a, "sbxrun session") }
		if into != "" {
			do = func() error { return answerInto(st, c, id, n, into) }
		}
		err := do()
		var lasts *questions.LastsError
		if errors.As(err, &lasts) {
			return engine.Hinted(err, "grant it for as long as the session is there, without --once, or deny it")
		}
		if errors.Is(err, questions.ErrOver) {
			return engine.Hinted(err, "nothing was granted; sbxrun session requests "+id+" lists what is open")
		}
		return err
	})
}

// answerInto grants what a question is about, and adds that to a profile.
func answerInto(st *session.Store, c *session.Client, id string, n int, into string) error {
	p, err := st.Policy(id)
	if err != nil {
		return err
	}
	facts, err := engine.GatherFactsAnywhere("")
	if err != nil {
		return err
	}
	list, _, err := c.Questions(0, 0)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(q questions.Question) bool { return q.ID == n })
	if i < 0 {
		return &questions.NotOpenError{ID: n}
	}
	file, err := facts.Named(into, false) // the session's commands can have made a link
	if err != nil {
		return engine.Invalid(err)
	}
	_, err = engine.NewProfileFile(file, facts).Grant(list[i].Denial.Grant, "granted in session "+id, p,
		func() error { return c.Answer(n, driver.GrantAlways, "sbxrun session, into "+file) })
	return err
}

// interview asks whoever sits at the terminal what a run asks, until the function that it
// returns is called.
func (o *options) interview(t *terminal.Terminal) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for last := 0; ctx.Err() == nil; {
			list, _, changed := o.board.Open()
			if i := slices.IndexFunc(list, func(q questions.Question) bool { return q.ID > last }); i >= 0 {
				last = list[i].ID
				o.atTerminal(ctx, t, &list[i])
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	return cancel
}

// atTerminal asks one question. The answer is a word that is shown with it: neither what
// somebody has typed for the command can be taken for one, nor what a terminal sends by itself.
func (o *options) atTerminal(ctx context.Context, t *terminal.Terminal, q *questions.Question) {
	within, cancel := o.board.While(ctx, q.ID)
	defer cancel()
	d := &q.Denial
	word := strings.ToLower(rand.Text()[:4])
	answers := map[string]driver.Answer{"run-" + word: driver.GrantAlways, "no": driver.Refuse}
	how := "run-" + word + " allows it for this run"
	if !questions.Lasts(d) {
		answers["once-"+word] = driver.GrantOnce
		how = "once-" + word + " allows it once, " + how
	}
	var text strings.Builder
	say := func(what, s string) {
		// No line begins with what a command chose.
		const begin = "\nsbxrun:   "
		text.WriteString("sbxrun: " + what + terminal.Fold(s, begin) + "\n")
	}
	say("refused: ", questions.What(d))
	say("because: ", questions.Because(d))
	if by := questions.By(d); by != "" {
		say("by: ", by)
	}
	say("grant: ", questions.Grant(d))
	text.WriteString("sbxrun: " + how + ", no refuses it\n")
	forGood := "profile-" + word
	if o.file.Takes(d.Grant, o.policy) {
		answers[forGood] = driver.GrantAlways
		say(forGood+" allows it for this run, and adds it to ", questions.Plainly(o.file.Path))
	}
	text.WriteString("sbxrun: answer: ")
	line, ok := t.Ask(within, text.String(), slices.Collect(maps.Keys(answers)))
	if !ok {
		return // the board knows
	}
	by := "terminal"
	yes := func() error { return o.board.Answer(q.ID, answers[line], by) }
	granted, err := false, error(nil)
	if line == forGood {
		by += ", into " + o.file.Path
		granted, err = o.file.Grant(d.Grant, "granted at the terminal", o.policy, yes)
	} else {
		err = yes()
	}
	if err != nil {
		said := "nothing was granted: "
		if granted {
			said = ""
		}
		t.Say("sbxrun: " + said + quote.Line(err.Error()))
		o.atTerminal(ctx, t, q) // if it is still open
	}
}
