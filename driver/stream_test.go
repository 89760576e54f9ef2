package driver

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestStreamSettle: all that is in the pipe when the command has ended is passed on,
// and in order, although nobody had the time to read it and somebody has the other end
// open. A read that a deadline ended does not look (the control).
func TestStreamSettle(t *testing.T) {
	pipe := func(t *testing.T) (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	said := strings.Repeat("0123456789abcdef", 4000)
	t.Run("open", func(t *testing.T) {
		r, w := pipe(t)
		w.WriteString(said)
		var got []byte
		s := NewStream(r, func(b []byte) { got = append(got, b...) }, nil)
		if whole := s.Settle(); !whole || string(got) != said {
			t.Errorf("%d bytes of %d, whole %v", len(got), len(said), whole)
		}
		s.Close()
	})
	t.Run("the reader waits", func(t *testing.T) {
		r, w := pipe(t)
		waits, goOn := make(chan struct{}), make(chan struct{})
		var first, last sync.Once
		var got []byte
		s := NewStream(r, func(b []byte) { got = append(got, b...) }, func() {
			first.Do(func() { close(waits) })
			<-goOn
		})
		defer last.Do(func() { close(goOn) })
		w.WriteString("first ")
		<-waits
		w.WriteString(said)
		if whole := s.Settle(); !whole || string(got) != "first "+said {
			t.Errorf("%d bytes, whole %v", len(got), whole)
		}
	})
	t.Run("closed", func(t *testing.T) {
		r, w := pipe(t)
		w.WriteString(said)
		w.Close()
		var got []byte
		s := NewStream(r, func(b []byte) { got = append(got, b...) }, nil)
		if whole := s.Settle(); !whole || string(got) != said {
			t.Errorf("%d bytes of %d, whole %v", len(got), len(said), whole)
		}
	})
	t.Run("fails", func(t *testing.T) {
		dir, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if s := NewStream(dir, func([]byte) {}, nil); s.Settle() {
			t.Error("whole, and nothing could be read")
		}
		dir.Close()
	})
	t.Run("waiting", func(t *testing.T) {
		r, w := pipe(t)
		w.WriteString(said)
		if got := Waiting(r, 1<<20); string(got) != said {
			t.Errorf("%d bytes of %d", len(got), len(said))
		}
		if got := Waiting(r, 1<<20); len(got) != 0 {
			t.Errorf("%q", got)
		}
	})
	t.Run("control", func(t *testing.T) {
		r, w := pipe(t)
		w.WriteString(said)
		r.SetReadDeadline(time.Now().Add(-time.Second))
		if n, err := r.Read(make([]byte, 10)); n != 0 || err == nil {
			t.Errorf("%d, %v: the old way would do", n, err)
		}
	})
}
