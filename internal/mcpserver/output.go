//go:build unix

package mcpserver

import (
	"cmp"
	"os"
	"sync"
	"unicode/utf8"

	"github.com/sbxrun/sbxrun/driver"
)

const (
	// maxKept is how much output of commands is kept at a time, of all connections together
	// and with what is reserved, bytes.
	maxKept = 256 << 20

	// reserved is what one connection has of that for itself, bytes: a command's two streams
	// at the default limit. Whatever others keep, it can run one and see what it printed.
	reserved = 2 * defaultOutput
)

// A room is how much of what its commands print a connection keeps: what is its own, and
// as much of what it shares with others as they leave.
type room struct {
	own    int64
	shared *driver.Room

	mu   sync.Mutex
	used int64
}

// newShared returns what so many connections share, beside what each has for itself: all
// together keep maxKept at most.
func newShared(connections int64) *driver.Room { return driver.NewRoom(maxKept - connections*reserved) }

// take takes room for so many bytes, or none.
func (r *room) take(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if over := r.over(r.used+n) - r.over(r.used); over > 0 && !r.shared.Take(over) {
		return false
	}
	r.used += n
	return true
}

// give gives back so many bytes: first what others can have.
func (r *room) give(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shared.Return(r.over(r.used) - r.over(r.used-n))
	r.used -= n
}

// over is how much of what is used is of what all share.
func (r *room) over(used int64) int64 { return max(0, used-r.own) }

// A loss is why the end of a stream is lost, in words that follow its name; "" if it is not.
type loss string

const (
	lostToLimit loss = "was longer than the limit on output; its end is lost"
	lostToRoom  loss = "is cut off before the limit on output, and its end is lost: this server has no room for more of what commands print, and clients share it; session_destroy gives back what background commands of a session take"
	lostAtEnd   loss = "may lack its end: something still wrote to it when the command had ended"
)

// An output is what one command prints, and the pipes that it comes by.
type output struct {
	stream  [2]stream
	read    [2]*os.File
	write   [2]*os.File       // the command's
	reading [2]*driver.Stream // from begin on
}

// open makes the pipes. Each stream keeps up to a limit of what comes.
func (o *output) open(r *room, limit int64) (err error) {
	for i := range o.stream {
		o.stream[i].room, o.stream[i].limit = r, limit
		if o.read[i], o.write[i], err = os.Pipe(); err != nil {
			o.end()
			return err
		}
	}
	return nil
}

// begin reads what comes, once the command runs: only its copies keep the pipes open.
func (o *output) begin() {
	for i := range o.stream {
		o.write[i].Close()
		o.reading[i] = driver.NewStream(o.read[i], o.stream[i].collect, nil)
	}
}

// settle returns when all that the command printed has come.
//
// Preconditions: begin was called, and the command has ended.
func (o *output) settle() {
	for i, st := range o.reading {
		o.stream[i].settled(st.Settle())
	}
}

// end closes the pipes: nothing comes any more.
func (o *output) end() {
	for i := range o.stream {
		if st := o.reading[i]; st != nil {
			st.Close()
		} else { // nil, if there is none
			o.read[i].Close()
		}
		o.write[i].Close()
	}
}

// forget gives up what it printed.
func (o *output) forget() {
	for i := range o.stream {
		o.stream[i].forget()
	}
}

// A stream keeps what a command prints, up to a limit, and as there is room beside what
// others print.
type stream struct {
	room *room

	mu    sync.Mutex
	data  []byte
	limit int64
	lost  loss
	more  chan struct{} // closed, and made anew, when there is more
}

func (s *stream) collect(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := s.limit - int64(len(s.data)); int64(len(b)) > left {
		b, s.lost = b[:left], cmp.Or(s.lost, lostToLimit)
	}
	if len(b) > 0 && !s.room.take(int64(len(b))) {
		b, s.lost, s.limit = nil, lostToRoom, int64(len(s.data)) // and no hole if there is room again
	}
	s.data = append(s.data, b...)
	if len(b) > 0 && s.more != nil {
		close(s.more)
		s.more = nil
	}
}

// forget gives up what there is, and keeps nothing more.
func (s *stream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room.give(int64(len(s.data)))
	s.data, s.limit = nil, 0
}

// settled notes whether all that was printed came.
func (s *stream) settled(whole bool) {
	s.mu.Lock()
	if !whole {
		s.lost = cmp.Or(s.lost, lostAtEnd)
	}
	s.mu.Unlock()
}

// all is what there is, and why it is not more.
func (s *stream) all() (string, loss) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.data), s.lost
}

// page is a part of what there is. Of a text it ends between two characters, if it can: the
// begin of one is kept back as long as the command may write the rest.
func (s *stream) page(offset, length int64, running bool, as Encoding) (part string, next int64, rest bool, lost loss,
	more chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := int64(len(s.data))
	offset = min(offset, size)
	end := min(offset+length, size)
	all := end == size
	if as != inBase64 && (!all || running) {
		for cut := end - 1; cut >= offset && cut > end-utf8.UTFMax; cut-- {
			if utf8.RuneStart(s.data[cut]) {
				if !utf8.FullRune(s.data[cut:end]) {
					end = cut
				}
				break
			}
		}
	}
	if as != inBase64 {
		whole := end
		end = offset + fitting(s.data[offset:end], length)
		all = all && end == whole
	}
	if s.more == nil {
		s.more = make(chan struct{})
	}
	return string(s.data[offset:end]), end, !all, s.lost, s.more
}

// fitting is how much of some data fits into a text of at most so many bytes, in which U+FFFD
// stands for each run of what is no UTF-8: it is longer than a byte that it stands for.
func fitting(data []byte, most int64) int64 {
	var at, size int64
	valid := true
	for at < int64(len(data)) {
		r, n := utf8.DecodeRune(data[at:])
		was := valid
		valid = r != utf8.RuneError || n > 1
		switch {
		case valid:
			size += int64(n)
		case was:
			size += int64(utf8.RuneLen(utf8.RuneError))
		}
		if size > most {
			break
		}
		at += int64(n)
	}
	return at
}
