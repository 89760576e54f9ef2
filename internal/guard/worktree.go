package guard

import "bytes"

// commonPattern protects what makes a directory a linked worktree's: the file that says
// where the rest of its repository is.
const commonPattern = ".git/commondir"

// anyHash stands in a pattern for the hash of an object. No text of a policy's is that.
//
// Git on the host can make commondir itself, with a hash for its text: it updates a ref of
// that name if a command says "ref: commondir" in .git/ORIG_HEAD, or names it in
// rebase-merge/update-refs. What lies at .git/HASH would then be the repository's
// configuration and hooks, so no command makes anything there.
const anyHash = "*\x00"

// hash reports whether a folded name is the hash of an object, by SHA-1 or SHA-256.
func hash(name []byte) bool {
	if len(name) != 40 && len(name) != 64 {
		return false
	}
	for _, c := range name {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// commonDir is what that file says, always: .git/worktrees/NAME is two below.
const commonDir = "../..\n"

// linked reports whether a directory has the place of a linked worktree's, which counts as
// ".git" in front of other names, whatever is in it.
func linked(dir []byte) bool {
	var buf [256]byte
	up := dir[:lastSlash(dir)]
	at := lastSlash(up)
	if len(up) == 0 || !same("worktrees", fold(buf[:0], up[at+1:])) {
		return false
	}
	up = up[:at]
	return same(".git", fold(buf[:0], up[lastSlash(up)+1:]))
}

// isTree is linked by the exact names. In such a directory a command may make and remove what
// it likes of a linked worktree: what Git takes commands from is protected by its name, and it
// stays where it is. In repositories that have other names, ".." could become something else.
func isTree(dir []byte) bool {
	up := dir[:lastSlash(dir)]
	return bytes.HasSuffix(up, []byte("/.git/worktrees"))
}

// stays reports whether the .git of a linked worktree's directory is that of a grant's top, or
// the grant itself. No command moves a mount point. Git would not read a name to its end if
// that is a newline.
func stays(dir []byte, grant string) bool {
	if bytes.ContainsAny(dir, "\r\n") {
		return false
	}
	git := dir[:lastSlash(dir)]
	git = git[:lastSlash(git)]
	return string(git) == grant || string(git[:lastSlash(git)]) == grant
}

// treeLink is the text of the file .git in a linked worktree.
func treeLink(dir string) string { return "gitdir: " + dir + "\n" }

// linksTree reports whether a file .git has such a text.
func linksTree(text []byte) bool {
	dir, ok := bytes.CutPrefix(text, []byte("gitdir: "))
	return ok && isTree(bytes.TrimRight(dir, "\n"))
}
