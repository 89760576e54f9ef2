package guard

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"unicode/utf8"
)

// IndexPattern protects the index of a repository: what has that name, and sharedindex.*
// with it, is made by a rename alone, of what Git can be given (goodIndex).
const IndexPattern = ".git/index"

// Bounds of an index and of a name in it, bytes. Two million files have the former.
const (
	maxIndex = 256 << 20
	maxName  = 64 << 10
)

// goodIndex reports whether a file is an index of Git's without a name that Git would not
// enter there itself: it believes what it reads, and checks out .git/config. Hash is the size
// of the repository's hashes, without which an index has other meanings. What Git could
// read in two ways is no good one. See gitformat-index(5), and read-cache.c.
func goodIndex(f io.ReaderAt, size int64, hash int) bool {
	r := indexReader{r: bufio.NewReaderSize(io.NewSectionReader(f, 0, size-int64(hash)), 64<<10), left: size - int64(hash)}
	head := r.take(12)
	if head == nil || size > maxIndex || string(head[:4]) != "DIRC" {
		return false
	}
	version, count := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	if version < 2 || version > 4 {
		return false
	}
	// Threads of Git's find extensions by the last of them, at either place for hashes of
	// 32 bytes, and then blocks of entries.
	var ends []uint32
	for _, back := range [...]int{hash + 32, 2*hash + 12} {
		var b [12]byte
		if n, _ := f.ReadAt(b[:], size-int64(back)); n == len(b) && string(b[:4]) == "EOIE" {
			ends = append(ends, binary.BigEndian.Uint32(b[8:]))
		}
	}
	total := r.left + 12
	var starts []uint32 // of entries whose names begin with nothing of the one before
	var name []byte
	empty := false
	for range count {
		start := total - r.left
		e := r.take(42 + hash)
		if e == nil {
			return false
		}
		mode := binary.BigEndian.Uint32(e[24:])
		kind := mode >> 12
		switch mode {
		case 0o100644, 0o100755, 0o120000, 0o160000, 0o040000:
		default: // Git ends by BUG at others
			return false
		}
		flags := binary.BigEndian.Uint16(e[40+hash:])
		fixed := len(e)
		if flags&0x4000 != 0 { // extended; the rest of the bits would end Git
			if e = r.take(2); e == nil || binary.BigEndian.Uint16(e)&^0x6000 != 0 {
				return false
			}
			fixed += 2
		}
		kept := 0
		if version == 4 {
			strip := r.varint()
			if strip > uint64(len(name)) {
				return false
			}
			kept = len(name) - int(strip)
		}
		s := r.text()
		if s == nil || kept+len(s) > maxName {
			return false
		}
		name = append(name[:kept], s[:len(s)-1]...)
		if n := int(flags & 0xfff); n != 0xfff && n != len(name) {
			return false
		}
		if version < 4 && r.take((fixed+len(name)+8)&^7-fixed-len(name)-1) == nil {
			return false
		}
		if len(ends) > 0 {
			if kept > 0 {
				start = 0
			}
			starts = append(starts, uint32(start))
		}
		if len(name) == 0 {
			empty = true
		} else if misnamed(name, kind) {
			return false
		}
	}
	for _, end := range ends {
		if int64(end) != total-r.left {
			return false
		}
	}
	for r.left > 0 {
		e := r.take(8)
		if e == nil {
			return false
		}
		kind, n := string(e[:4]), int64(binary.BigEndian.Uint32(e[4:]))
		switch kind {
		case "link":
			if base, _ := r.r.Peek(hash); len(bytes.Trim(base, "\x00")) > 0 {
				empty = false // names that are those of the shared index
			}
		case "IEOT":
			if len(ends) > 0 {
				if !r.blocks(n, starts) {
					return false
				}
				n = 0
			}
		}
		if !r.skip(n) {
			return false
		}
	}
	return !empty
}

// misnamed reports whether an entry's name is none for a file of a project: absolute, with
// a part that is empty, "." or "..", or that some file system takes for .git. Nor is a
// symbolic link .gitmodules one. Kind is the type in the entry's mode.
func misnamed(name []byte, kind uint32) bool {
	if kind == 0o4 {
		name = bytes.TrimSuffix(name, []byte("/")) // of a sparse index
	}
	var buf [256]byte
	for part := range bytes.SplitSeq(name, []byte("/")) {
		if len(part) == 0 {
			return true
		}
		for more := true; more; { // as Git looks at it, for NTFS
			var piece []byte
			if piece, part, more = bytes.Cut(part, []byte(`\`)); len(piece) == 0 {
				continue
			}
			if c := piece[0]; c != '.' && c|0x20 != 'g' && c < utf8.RuneSelf {
				continue // most
			}
			piece, _, _ = bytes.Cut(piece, []byte(":"))
			f := fold(buf[:0], piece)
			if s := string(piece); s == "." || s == ".." || same(".git", f) || kind == 0o12 && same(".gitmodules", f) {
				return true
			}
		}
	}
	return false
}

// An indexReader reads what is left of an index before the hash at its end.
type indexReader struct {
	r    *bufio.Reader
	left int64
}

// take returns the next bytes, until the next call; nil if there are not as many.
func (r *indexReader) take(n int) []byte {
	b, err := r.r.Peek(n)
	if err != nil || !r.skip(int64(n)) {
		return nil
	}
	return b
}

func (r *indexReader) skip(n int64) bool {
	if n > r.left {
		return false
	}
	r.left -= n
	_, err := r.r.Discard(int(n))
	return err == nil
}

// text returns what ends in a NUL, with it; nil if that is too far.
func (r *indexReader) text() []byte {
	s, err := r.r.ReadSlice(0)
	if err != nil {
		return nil
	}
	r.left -= int64(len(s))
	return s
}

// varint is a number as decode_varint in Git's varint.c has it, too large a one if there is none.
func (r *indexReader) varint() (n uint64) {
	for i := 0; ; i++ {
		b := r.take(1)
		if b == nil || i > 4 {
			return 1 << 63
		}
		n = n<<7 + uint64(b[0]&0x7f)
		if b[0] < 0x80 {
			return n
		}
		n++
	}
}

// blocks reports whether a table of blocks names the entries that there are.
func (r *indexReader) blocks(n int64, starts []uint32) bool {
	if n%8 != 4 || r.take(4) == nil {
		return false
	}
	for ; n > 4; n -= 8 {
		b := r.take(8)
		if b == nil || len(starts) == 0 || binary.BigEndian.Uint32(b) != starts[0] {
			return false
		}
		count := binary.BigEndian.Uint32(b[4:])
		if uint64(count) > uint64(len(starts)) {
			return false
		}
		starts = starts[count:]
	}
	return len(starts) == 0
}
