package guard

import "strings"

// The patterns of directories where Git keeps what is left to do: of a rebase, and of a
// cherry-pick or a revert of several commits. The next "--continue" obeys them.
const (
	rebasePattern    = ".git/rebase-merge"
	sequencerPattern = ".git/sequencer"
)

// rererePattern is a file that Git removes at the end of each merge, if it is there or not.
const rererePattern = ".git/MERGE_RR"

// maxState bounds a file of these that is checked, bytes.
const maxState = 4 << 20

// stateFile is what a command may do to a file in such a directory.
type stateFile uint8

const (
	stateNone    stateFile = iota // remove it: Git, this one or a later one, could execute it
	stateFree                     // write it: a name, a hash, a message, a mark
	stateChecked                  // put one there that goodState approves, by a rename
	stateLost                     // seem to write it; see stateOf
)

// stateOf tells the files apart by their exact names, which are those of sequencer.c in Git
// 2.26 to 2.55. Git reads none of those that are not here without an option: strategy is a
// part of a program's name, strategy_opts and gpg_sign_opt are arguments, trailer too.
func stateOf(dir, name string) stateFile {
	if stem, ok := strings.CutSuffix(name, ".lock"); ok { // to be renamed
		if stateOf(dir, stem) == stateNone || strings.HasSuffix(stem, ".lock") {
			return stateNone
		}
		return stateFree
	}
	switch dir {
	case "rebase-merge":
		switch name {
		case "git-rebase-todo", "git-rebase-todo.backup", "author-script":
			return stateChecked
		case "msgnum", "end":
			// These are for prompts alone, and git-prompt.sh puts them in PS1: bash
			// executes $(…) in it.
			return stateLost
		case "head-name", "onto", "orig-head", "squash-onto", "stopped-sha", "amend", "autostash", "rewritten-list",
			"rewritten-pending", "refs-to-delete", "update-refs",
			"message", "message-squash", "message-fixup", "current-fixups", "patch", "done", "dropped",
			"interactive", "quiet", "verbose", "signoff", "cdate_is_adate", "ignore_date", "allow_rerere_autoupdate",
			"drop_redundant_commits", "keep_redundant_commits", "reschedule-failed-exec", "no-reschedule-failed-exec":
			return stateFree
		}
		if len(name) == 9 && strings.HasPrefix(name, "sed") && word(name, "") {
			return stateFree // of sed -i, as GIT_SEQUENCE_EDITOR
		}
	case "sequencer":
		switch name {
		case "todo", "opts":
			return stateChecked
		case "head", "abort-safety":
			return stateFree
		}
	}
	return stateNone
}

// goodState reports whether a file of that name makes Git execute nothing.
func goodState(name, text string) bool {
	if strings.Contains(text, "\x00") {
		return false // where Git stops reading
	}
	for line := range strings.SplitSeq(text, "\n") {
		ok := true
		switch name {
		case "author-script":
			ok = line == "" || goodAuthor(line)
		case "opts":
			ok = goodOption(strings.TrimSpace(line))
		case "todo":
			ok = goodStep(line, "pick", "p", "revert")
		default:
			ok = goodStep(line, "pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "drop", "d", "break",
				"b", "noop",
				"label", "l", "reset", "t", "merge", "m", "update-ref", "u")
		}
		if !ok {
			return false
		}
	}
	return true
}

// goodStep reports whether a line of a list is a comment or begins with one of the words.
// No word begins with #, so that it does not matter what the user has for core.commentChar.
func goodStep(line string, words ...string) bool {
	line = strings.Trim(line, " \t")
	if line == "" || line == "\r" || line[0] == '#' {
		return true
	}
	word := line
	if i := strings.IndexAny(line, " \t\r"); i >= 0 {
		word = line[:i]
	}
	for _, w := range words {
		if word == w {
			return true
		}
	}
	return false
}

// goodAuthor reports whether a shell, too, would take a line for a variable with a quoted
// value, and for no more: old scripts read these files so.
func goodAuthor(line string) bool {
	name, value, _ := strings.Cut(line, "=")
	if name != "GIT_AUTHOR_NAME" && name != "GIT_AUTHOR_EMAIL" && name != "GIT_AUTHOR_DATE" {
		return false
	}
	value, ok := strings.CutPrefix(value, "'")
	value, ok2 := strings.CutSuffix(value, "'")
	value = strings.ReplaceAll(strings.ReplaceAll(value, `'\''`, ""), `'\!'`, "")
	return ok && ok2 && !strings.Contains(value, "'")
}

// goodOption reports whether a line of sequencer/opts, without spaces around it, is one of
// those that Git writes and names no program, strategy or key.
func goodOption(line string) bool {
	if line == "" || line == "[options]" {
		return true
	}
	key, value, _ := strings.Cut(line, " = ")
	switch key {
	case "no-commit", "edit", "allow-empty", "allow-empty-message", "drop-redundant-commits", "keep-redundant-commits",
		"signoff", "record-origin", "allow-ff", "allow-rerere-auto":
		return value == "true" || value == "false"
	case "mainline", "default-msg-cleanup", "strategy-option":
		return word(value, "=")
	}
	return false
}
