package terminal

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestScreenFull: what cannot be written is taken all the same, so that the command goes on,
// and told of.
func TestScreenFull(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	gone := 0
	// SIGPIPE ends a program for its descriptors 1 and 2 alone; here that is a file.
	was := os.Stdout
	defer func() { os.Stdout = was }()
	os.Stdout = w
	s := &screen{whose: &sync.Mutex{}, to: w, gone: func() { gone++ }}
	done := make(chan struct{})
	close(done)
	if err := s.wait(done, nil, 0); err != nil {
		t.Errorf("nothing was written: %v", err)
	}
	if n, err := io.Copy(s, bytes.NewReader(make([]byte, 1<<20))); n != 1<<20 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := s.wait(done, nil, 0); !errors.Is(err, syscall.EPIPE) || gone != 1 {
		t.Errorf("%v; told %d times", err, gone)
	}
}

// TestScreenWait: the wait for a reader that does not read has an end, which a signal brings
// near; the wait for a command that shows nothing has none.
func TestScreenWait(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for _, tt := range []struct {
		name   string
		unread bool
		asked  chan struct{}
		idle   time.Duration
		ends   bool
		want   error
	}{
		{"unread", true, nil, 10 * time.Millisecond, true, errUnread},
		{"unread, and a signal", true, closed, time.Hour, true, errUnread},
		{"unread, for ever, and a signal", true, closed, 0, true, errUnread},
		{"nothing is shown", false, nil, 10 * time.Millisecond, true, nil},
		{"nothing is shown, for ever", false, nil, 0, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			s, done := &screen{whose: &sync.Mutex{}, to: w}, make(chan struct{})
			if tt.unread {
				go s.Write(make([]byte, 1<<20))
				for !s.busy.Load() {
					time.Sleep(time.Millisecond)
				}
			}
			ended := make(chan error, 1)
			go func() { ended <- s.wait(done, tt.asked, tt.idle) }()
			patience := 10 * time.Second
			if !tt.ends {
				patience = 100 * time.Millisecond
			}
			select {
			case err := <-ended:
				if !tt.ends || err != tt.want {
					t.Errorf("%v", err)
				}
			case <-time.After(patience):
				if tt.ends {
					t.Error("it waits for ever")
				}
				close(done)
				<-ended
			}
		})
	}
}

// TestHeed: signals are passed on, and those that ask for the end are noted.
func TestHeed(t *testing.T) {
	term, in := &Terminal{}, make(chan os.Signal, 1)
	out := term.Heed(in)
	for _, s := range []os.Signal{syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGTERM} {
		in <- s
		if got := <-out; got != s {
			t.Errorf("%v", got)
		}
		select {
		case <-term.asked:
			if s == syscall.SIGUSR1 {
				t.Error("it does not ask for the end")
			}
		default:
			if s == syscall.SIGTERM {
				t.Error("it asks for the end")
			}
		}
	}
	// None is dropped as long as somebody may take them, nor waits when nobody does.
	go func() {
		for range 20 {
			in <- syscall.SIGUSR1
		}
		in <- syscall.SIGINT
	}()
	time.Sleep(10 * time.Millisecond)
	for range 20 {
		if got := <-out; got != syscall.SIGUSR1 {
			t.Fatalf("%v", got)
		}
	}
	if got := <-out; got != syscall.SIGINT {
		t.Errorf("%v", got)
	}
	term.ended.Store(true)
	for range 20 {
		in <- syscall.SIGTERM
	}
}
