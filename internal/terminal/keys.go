package terminal

import (
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/internal/engine"
)

// DefaultKeys detach from a command, as in docker attach.
const DefaultKeys = "ctrl-p,ctrl-q"

// ParseKeys reads a sequence of keys: characters, or ctrl- and a letter or one of
// @ [ \\ ] ^ _, with commas between them. "none" is none.
func ParseKeys(s string) ([]byte, error) {
	if s == "none" {
		return nil, nil
	}
	bad := engine.Usage(strconv.Quote(s)+" are no keys", "for example --detach-keys ctrl-p,ctrl-q; none for none")
	var keys []byte
	for k := range strings.SplitSeq(s, ",") {
		c, ctrl := strings.CutPrefix(strings.ToLower(k), "ctrl-")
		switch {
		case !ctrl && len(k) == 1:
			keys = append(keys, k[0])
		case ctrl && len(c) == 1 && (c[0] >= 'a' && c[0] <= 'z' || strings.Contains("@[\\]^_", c)):
			keys = append(keys, c[0]&0x1f)
		default:
			return nil, bad
		}
	}
	return keys, nil
}

var errDetach = errors.New("detach")

// A keyWriter passes on what is typed. When the keys have been typed one after the
// other, the error is errDetach; as long as they may be, they are held back.
type keyWriter struct {
	w    io.Writer
	keys []byte // none: everything is passed on
	n    int    // how many of them have been typed
}

// Write passes on what is typed.
func (k *keyWriter) Write(p []byte) (int, error) {
	if len(k.keys) == 0 {
		return k.w.Write(p)
	}
	var out []byte
	for _, c := range p {
		if c == k.keys[k.n] {
			if k.n++; k.n == len(k.keys) {
				k.n = 0
				if len(out) > 0 {
					k.w.Write(out)
				}
				return len(p), errDetach
			}
			continue
		}
		// They were not meant, but the last may begin anew.
		out = append(out, k.keys[:k.n]...)
		if k.n = 0; c == k.keys[0] {
			k.n = 1
			continue
		}
		out = append(out, c)
	}
	if len(out) > 0 {
		if _, err := k.w.Write(out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
