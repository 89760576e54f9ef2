package questions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxrun/sbxrun/driver"
)

func about80(host string) driver.Denial {
	return driver.Denial{Operation: driver.OpConnect, Target: host, Rule: "default", Grant: driver.GrantOf("allow-host", host)}
}

// asked asks on a goroutine, and returns once the question is open.
func asked(t *testing.T, b *Board, ctx context.Context, d driver.Denial) (answer <-chan driver.Answer) {
	t.Helper()
	c := make(chan driver.Answer, 1)
	before, _, _ := b.Open()
	go func() { c <- b.Ask(ctx, d, nil) }()
	for range 1000 {
		now, _, _ := b.Open()
		if !slices.Equal(now, before) {
			return c
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("no question")
	return nil
}

// TestAnswers: each answer reaches all who asked the same, and who answers is told.
func TestAnswers(t *testing.T) {
	for _, want := range []driver.Answer{driver.Refuse, driver.GrantOnce, driver.GrantAlways} {
		var told []string
		b := &Board{Patience: time.Minute, Answered: func(q Question, a driver.Answer, by string) error {
			told = append(told, fmt.Sprintf("%d %s %v %s", q.ID, q.Denial.Target, a, by))
			return nil
		}}
		one := asked(t, b, t.Context(), about80("a.example"))
		two := asked(t, b, t.Context(), about80("a.example"))
		other := asked(t, b, t.Context(), about80("b.example"))
		list, _, _ := b.Open()
		if len(list) != 2 || list[0].Waiting != 2 || list[0].ID != 1 || list[1].Denial.Target != "b.example" {
			t.Fatalf("open: %+v", list)
		}
		if err := b.Answer(1, want, "me"); err != nil {
			t.Fatal(err)
		}
		if got := <-one; got != want {
			t.Errorf("%v: got %v", want, got)
		}
		expect := want
		if want == driver.GrantOnce { // for who was shown; the other asks again
			expect = driver.Refuse
			if err := eventually(func() error { return b.Answer(3, driver.Refuse, "me") }); err != nil {
				t.Error(err)
			}
		}
		if got := <-two; got != expect {
			t.Errorf("%v: the second got %v", want, got)
		}
		if want == driver.GrantAlways {
			if a := b.Ask(t.Context(), about80("a.example"), nil); a != want {
				t.Errorf("asked again: %v", a)
			}
		}
		if err := b.Answer(1, driver.GrantAlways, "me"); !errors.Is(err, ErrOver) {
			t.Errorf("answered twice: %v", err)
		}
		if err := b.Answer(9, driver.GrantAlways, "me"); !errors.Is(err, ErrOver) {
			t.Errorf("never asked: %v", err)
		}
		select {
		case a := <-other:
			t.Errorf("b.example: %v, and nobody answered", a)
		default:
		}
		if err := b.Answer(2, driver.Refuse, "me"); err != nil || <-other != driver.Refuse {
			t.Error(err)
		}
		if w := fmt.Sprintf("1 a.example %v me", want); len(told) < 2 || told[0] != w {
			t.Errorf("told %q, want %q first", told, w)
		}
	}
}

// eventually tries until it works.
func eventually(f func() error) (err error) {
	for range 1000 {
		if err = f(); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// TestNoAnswer: nobody in time is no, and so is the same for a while, without a question.
func TestNoAnswer(t *testing.T) {
	var by []string
	b := &Board{Patience: 20 * time.Millisecond, Answered: func(_ Question, a driver.Answer, who string) error {
		by = append(by, a.String()+" "+who)
		return nil
	}}
	if a := b.Ask(t.Context(), about80("a.example"), nil); a != driver.Refuse {
		t.Error(a)
	}
	begin := time.Now()
	b.Patience = time.Hour
	if a := b.Ask(t.Context(), about80("a.example"), nil); a != driver.Refuse || time.Since(begin) > time.Minute/2 {
		t.Errorf("%v after %v", a, time.Since(begin))
	}
	if list, untold, _ := b.Open(); len(list) != 0 || untold != 1 || !slices.Equal(by, []string{"no "}) {
		t.Errorf("open %v, untold %d, told %q", list, untold, by)
	}
	b.noes[0].until = time.Now().Add(-time.Second)
	again := asked(t, b, t.Context(), about80("a.example"))
	if err := b.Answer(2, driver.GrantOnce, ""); err != nil || <-again != driver.GrantOnce {
		t.Error("a no that is long ago", err)
	}
}

// TestGone: a question that nobody waits for any more is not open.
func TestGone(t *testing.T) {
	b := &Board{Patience: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	one := asked(t, b, ctx, about80("a.example"))
	two := asked(t, b, t.Context(), about80("a.example"))
	cancel()
	if a := <-one; a != driver.Refuse {
		t.Error(a)
	}
	// The other asks in its own name.
	if err := eventually(func() error { return b.Answer(2, driver.GrantAlways, "") }); err != nil || <-two != driver.GrantAlways {
		t.Error("somebody still waited", err)
	}
	if err := b.Answer(1, driver.GrantAlways, ""); !errors.Is(err, ErrOver) {
		t.Errorf("who asked has gone: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	three := asked(t, b, ctx, about80("b.example"))
	cancel()
	<-three
	over, done := b.While(t.Context(), 3)
	defer done()
	<-over.Done()
	if err := b.Answer(3, driver.GrantAlways, ""); !errors.Is(err, ErrOver) {
		t.Errorf("nobody waits: %v", err)
	}
	// A call that was interrupted and made again is the same question.
	ctx, cancel = context.WithCancel(t.Context())
	c := about80("c.example")
	c.Process = &driver.Asker{PID: 9, Command: "c"}
	four := asked(t, b, ctx, c)
	cancel()
	<-four
	again := make(chan driver.Answer, 1)
	go func() { again <- b.Ask(t.Context(), c, nil) }()
	time.Sleep(2 * linger)
	if err := b.Answer(4, driver.GrantOnce, ""); err != nil || <-again != driver.GrantOnce {
		t.Error(err)
	}
}

// TestIdle: whoever asks and goes away, again and again, has few questions in a minute.
func TestIdle(t *testing.T) {
	b := &Board{Patience: time.Hour}
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		b.Ask(ctx, about80(fmt.Sprintf("h%d.example", i)), nil)
		cancel()
		if i%MaxOpen == 0 {
			time.Sleep(2 * linger)
		}
	}
	if _, untold, _ := b.Open(); b.last > maxIdle+MaxOpen || untold < 100-maxIdle-MaxOpen {
		t.Errorf("%d questions, %d untold", b.last, untold)
	}
}

// TestAttended: where somebody has to be there to answer, nothing waits while nobody is.
func TestAttended(t *testing.T) {
	b := &Board{Patience: time.Hour}
	b.Attended("s")
	if a := b.Ask(t.Context(), about80("a.example"), nil); a != driver.Refuse {
		t.Error(a)
	}
	leave := b.Attend()
	c := asked(t, b, t.Context(), about80("a.example"))
	leave()
	leave()
	if a := <-c; a != driver.Refuse {
		t.Errorf("whoever attended has left: %v", a)
	}
	if err := b.Answer(1, driver.GrantAlways, "test"); !errors.Is(err, ErrOver) {
		t.Errorf("and the question is open: %v", err)
	}
	if a := b.Ask(t.Context(), about80("b.example"), nil); a != driver.Refuse {
		t.Error(a)
	}
	// That was nobody's no.
	defer b.Attend()()
	c = asked(t, b, t.Context(), about80("a.example"))
	if err := b.Answer(2, driver.GrantAlways, "test"); err != nil || <-c != driver.GrantAlways {
		t.Error(err)
	}
}

// TestShown: what is shown is ASCII, one line, and not long.
func TestShown(t *testing.T) {
	d := &driver.Denial{Target: "/w/\x1b[2Jp\u0430y" + strings.Repeat("x", 5000), Rule: "default",
		Process: &driver.Asker{PID: 7, Command: "x; grants --unprotect harmless\n\u202e" + strings.Repeat("y", 5000)}}
	for _, s := range []string{Plainly(d.Target), By(d), Because(d)} {
		if len(s) > maxShown+8 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%d %q", len(s), s)
		}
	}
	if got := By(d); !strings.HasPrefix(got, `"x; grants`) || !strings.HasSuffix(got, `" (7)`) {
		t.Error(got)
	}
}

// TestUnrecorded: what cannot be recorded is not granted.
func TestUnrecorded(t *testing.T) {
	full := errors.New("disk full")
	b := &Board{Patience: time.Hour, Answered: func(Question, driver.Answer, string) error { return full }}
	one := asked(t, b, t.Context(), about80("a.example"))
	if err := b.Answer(1, driver.GrantAlways, ""); err != full {
		t.Error(err)
	}
	if a := <-one; a != driver.Refuse {
		t.Error(a)
	}
}

// TestFlood: few questions are open at once, and few noes are remembered, whatever is asked.
func TestFlood(t *testing.T) {
	b := &Board{Patience: 50 * time.Millisecond}
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() { b.Ask(t.Context(), about80(fmt.Sprintf("h%d.example", i)), nil) })
	}
	most := 0
	for range 40 {
		list, _, changed := b.Open()
		most = max(most, len(list))
		select {
		case <-changed:
		case <-time.After(5 * time.Millisecond):
		}
	}
	all.Wait()
	list, untold, _ := b.Open()
	if most > MaxOpen || len(list) != 0 || untold < 1000-maxKept || len(b.noes) > maxKept {
		t.Errorf("%d at once, %d left, %d untold, %d noes", most, len(list), untold, len(b.noes))
	}
}

// TestRaces: answers, ends and looks at the same time leave nobody waiting.
func TestRaces(t *testing.T) {
	b := &Board{Patience: 5 * time.Millisecond, Answered: func(Question, driver.Answer, string) error { return nil }}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%7)*time.Millisecond)
				b.Ask(ctx, about80(fmt.Sprintf("h%d.example", (i+n)%5)), nil)
				cancel()
				b.mu.Lock()
				b.noes, b.idle, b.always = nil, nil, nil
				b.mu.Unlock()
			}
		})
		all.Go(func() {
			for range 100 {
				list, _, changed := b.Open()
				for _, q := range list {
					b.Answer(q.ID, driver.Answer(i%3), "")
				}
				select {
				case <-changed:
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	all.Wait()
	time.Sleep(2 * linger)
	if list, _, _ := b.Open(); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}

// TestOnceKept: a yes for once that comes while who asked is interrupted is for the same call,
// made again.
func TestOnceKept(t *testing.T) {
	b := &Board{Patience: time.Hour}
	d := about80("a.example")
	d.Process = &driver.Asker{PID: 7, Command: "x"}
	ctx, cancel := context.WithCancel(t.Context())
	first := asked(t, b, ctx, d)
	cancel()
	<-first
	if err := b.Answer(1, driver.GrantOnce, "test"); err != nil {
		t.Fatal(err)
	}
	other := d
	other.Process = &driver.Asker{PID: 8, Command: "x"}
	ctx, cancel = context.WithCancel(t.Context())
	two := asked(t, b, ctx, other)
	if a := b.Ask(t.Context(), d, nil); a != driver.GrantOnce {
		t.Errorf("the call made again: %v", a)
	}
	cancel()
	if a := <-two; a != driver.Refuse {
		t.Errorf("another process: %v", a)
	}
	done, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if a := b.Ask(done, d, nil); a != driver.Refuse {
		t.Errorf("once more: %v", a)
	}
}

// TestWho: who asks is looked for when a question is put, before it is shown, and not for what
// waits beside it or is refused without one. A yes for once is for that call, and for no other
// of the same process.
func TestWho(t *testing.T) {
	b := &Board{Patience: time.Hour}
	var looked atomic.Int32
	look := make(chan struct{})
	ask := func(ctx context.Context) <-chan driver.Answer {
		c := make(chan driver.Answer, 1)
		go func() {
			c <- b.Ask(ctx, about80("a.example"), func() *driver.Asker {
				looked.Add(1)
				<-look
				return &driver.Asker{PID: 7, Command: "curl"}
			})
		}()
		return c
	}
	waiting := func(n int) {
		t.Helper()
		if err := eventually(func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.open) != 1 || b.open[0].Waiting != n {
				return errors.New("not yet")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	one := ask(t.Context())
	waiting(1)
	two := ask(t.Context())
	waiting(2)
	if list, _, _ := b.Open(); len(list) != 0 {
		t.Errorf("nobody knows yet who asks: %+v", list)
	}
	look <- struct{}{}
	if err := eventually(func() error {
		if list, _, _ := b.Open(); len(list) != 1 || list[0].Denial.Process == nil || list[0].Denial.Process.PID != 7 {
			return fmt.Errorf("%+v", list)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := b.Answer(1, driver.GrantOnce, ""); err != nil || <-one != driver.GrantOnce {
		t.Error(err)
	}
	close(look)
	if err := eventually(func() error { return b.Answer(2, driver.Refuse, "me") }); err != nil || <-two != driver.Refuse {
		t.Error(err)
	}
	if a := <-ask(t.Context()); a != driver.Refuse || looked.Load() != 2 {
		t.Errorf("%v after a no; looked %d times", a, looked.Load())
	}
	// Who has gone asks no more, if the same process does.
	b.noes = nil
	ctx, cancel := context.WithCancel(t.Context())
	three := ask(ctx)
	if err := eventually(func() error {
		if list, _, _ := b.Open(); len(list) != 1 {
			return errors.New("no question")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-three
	if err := b.Answer(3, driver.GrantOnce, ""); err != nil {
		t.Error(err)
	}
	four := ask(t.Context())
	if err := eventually(func() error { return b.Answer(4, driver.Refuse, "me") }); err != nil || <-four != driver.Refuse {
		t.Error("another connection has that yes:", err)
	}
}
