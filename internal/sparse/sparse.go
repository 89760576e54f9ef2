// Package sparse copies files without their holes: what a file claims to hold takes
// no room where it is copied to.
package sparse

import (
	"io"
	"os"
	"sync"
)

// Copy writes all that is read to a new file, and leaves out what is zero.
func Copy(to *os.File, from io.Reader) (int64, error) {
	w := &writer{f: to}
	// Not through ReadFrom or WriteTo, which would see no zeros.
	buf := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buf)
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{from}, buf[:])
	if err == nil {
		err = to.Truncate(n)
	}
	return n, err
}

var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

type writer struct {
	f  *os.File
	at int64
}

func (w *writer) Write(b []byte) (int, error) {
	at := w.at
	w.at += int64(len(b))
	for _, x := range b {
		if x != 0 {
			return w.f.WriteAt(b, at)
		}
	}
	return len(b), nil
}
