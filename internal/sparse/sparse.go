// Package sparse copies files without their holes: what a file claims to hold takes
// no room where it is copied to.
package sparse

import (
	"io"
	"os"
)

// Copy writes all that is read to a new file, and leaves out what is zero.
func Copy(to *os.File, from io.Reader) (int64, error) {
	w := &writer{f: to}
	// Not through ReadFrom or WriteTo, which would see no zeros.
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{from}, make([]byte, 64<<10))
	if err == nil {
		err = to.Truncate(n)
	}
	return n, err
}

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
