package guard

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
)

// state is what a command may do to a path that a pattern protects, as a file of a rebase
// or a cherry-pick. No directory gets these names but by mkdir(2).
func (w *worker) state(path []byte, root int, dirs Dirs, rule string) stateFile {
	if rule != rebasePattern && rule != sequencerPattern || !w.only(path, root, dirs, rule) {
		return stateNone
	}
	at := lastSlash(path)
	dir := string(path[lastSlash(path[:at])+1 : at])
	if ".git/"+dir != rule {
		return stateNone
	}
	return stateOf(dir, string(path[at+1:]))
}

// moveState is a rename of a file to the name of such a file. It returns continued for one
// that the command may not put there.
func (w *worker) moveState(from, to *entry, flags uint32) syscall.Errno {
	temp := fmt.Sprintf("sbxrun-%016x", rand.Uint64())
	state, name := stateOf(string(to.parent[lastSlash(to.parent)+1:]), string(to.name)), string(to.name)
	return w.moveCopy(from, to, temp, maxState, continued, func(f *os.File, size int64, _ bool) (uint, bool) {
		text := make([]byte, size)
		if _, err := f.ReadAt(text, 0); err != nil && size > 0 {
			return 0, false
		}
		return uint(flags), state == stateFree || state == stateChecked && goodState(name, string(text))
	})
}
