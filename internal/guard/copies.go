package guard

import (
	"os"
	"sync"
)

// maxCopy bounds the copy of a file, bytes: it is memory of this process. A command can keep
// it, so that all of a sandbox together are bounded, too, in number and size.
const (
	maxCopy   = 16 << 20
	maxCopies = 64
	allCopies = 64 << 20
)

// Copies are what the commands of one sandbox were given of the host's files. All guards of a
// sandbox have the same. A file that is granted for good is copied once.
type Copies struct {
	mu     sync.Mutex
	number int
	bytes  int64
	files  map[string]*os.File
}

// take counts one more copy. It reports false if that would be too much.
func (c *Copies) take(size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.number >= maxCopies || size > maxCopy || c.bytes+size > allCopies {
		return false
	}
	c.number++
	c.bytes += size
	return true
}

// room reports whether one more copy could be taken.
func (c *Copies) room(size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.number < maxCopies && size <= maxCopy && c.bytes+size <= allCopies
}

func (c *Copies) of(leads string) *os.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.files[leads]
}

func (c *Copies) keep(leads string, f *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		c.files = map[string]*os.File{}
	}
	c.files[leads] = f
}
