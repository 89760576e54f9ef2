package mounts

import (
	"slices"
	"strings"
)

// HostPath is where the host has what the sandbox sees at target: in a bind, or
// behind a symbolic link of the tree's own. It reports false for what the host
// does not have.
func HostPath(ops []Op, target string) (string, bool) {
	for range 40 { // as many links as the kernel follows; see path_resolution(7)
		link := ""
		for i := range slices.Backward(ops) {
			o := &ops[i]
			rest, ok := strings.CutPrefix(target, o.Target)
			if !ok || rest != "" && rest[0] != '/' {
				continue
			}
			switch o.Kind {
			case Bind:
				return o.Source + rest, true
			case Symlink:
				if link = o.Source; !strings.HasPrefix(link, "/") {
					link = o.Target[:strings.LastIndexByte(o.Target, '/')+1] + link
				}
				link += rest
			case Scratch, Tmpfs, Proc, File, Mask:
				return "", false
			default:
				continue
			}
			break
		}
		if link == "" {
			return "", false
		}
		target = link
	}
	return "", false
}
