package terminal

import (
	"io"
	"os"
	"sync"
	"time"
)

// joined is a command's terminal, to type at.
type joined struct {
	master *os.File
	done   chan struct{} // closed once it shows nothing more
	keys   []byte        // that detach, and
	leave  func()        // what they do
}

// typed reads standard input, for one command's terminal after the other: nobody else can
// have what it has begun to read.
type typed struct {
	mu sync.Mutex
	to *joined
}

func (t *typed) join(j *joined) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to = j
}

func (t *typed) now() *joined {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to
}

// Write types at the terminal of now. If that is gone, another may be joined soon.
func (t *typed) Write(p []byte) (int, error) {
	for n := 0; ; {
		j := t.now()
		m, err := j.master.Write(p[n:])
		if n += m; err == nil {
			return n, nil
		}
		for wait := 0; t.now() == j; wait++ {
			if wait == 50 {
				return n, err
			}
			time.Sleep(again / 10)
		}
	}
}

// read reads until standard input ends, or keys to detach are typed.
func (t *typed) read(tty bool) {
	j := t.now()
	if _, err := io.Copy(&keyWriter{w: t, keys: j.keys}, os.Stdin); err == errDetach {
		j.leave()
		return
	}
	if tty {
		return
	}
	// A pipe's end is the terminal's end of file, Ctrl-D. It is typed until
	// the command ends, for a pipe stays at its end as well, and because a
	// program that changes the terminal's modes, as a shell does when it
	// starts, loses the one that waited to be read; see termios(3), ICANON.
	for {
		j := t.now()
		j.master.Write([]byte{4})
		select {
		case <-j.done:
			if time.Sleep(again); t.now() == j {
				return
			}
		case <-time.After(again):
		}
	}
}
