package guard

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestGoodState(t *testing.T) {
	const author = "GIT_AUTHOR_NAME='Ann O'\\''Neill'\nGIT_AUTHOR_EMAIL='a@b'\nGIT_AUTHOR_DATE='@1 +0000'\n"
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{"git-rebase-todo", "", true},
		{"git-rebase-todo", "pick 1234 x\nfixup -C 12 # exec\n\n# exec touch x\n  s 12\r\n\tlabel onto\nreset [new root]\nm -C 1 a # b\nupdate-ref refs/heads/x\nbreak\nnoop", true},
		{"git-rebase-todo", "pick 12\nexec true\n", false},
		{"git-rebase-todo", "x true", false},
		{"git-rebase-todo", " \texec\ttrue", false},
		{"git-rebase-todo", "exec\rtrue", false},
		{"git-rebase-todo", "\rexec true", false},
		{"git-rebase-todo", "\vexec true", false},
		{"git-rebase-todo", "\u00a0x true", false},
		{"git-rebase-todo", "; x", false}, // what is a comment, the user's configuration says
		{"git-rebase-todo", "execute it", false},
		{"git-rebase-todo", "pick 12\x00\nexec true\n", false},
		{"git-rebase-todo", "revert 12", false},
		{"git-rebase-todo.backup", "x true", false},
		{"todo", "pick 12 a\npick 34\n", true},
		{"todo", "revert 12 a\n", true},
		{"todo", "exec true\n", false},
		{"todo", "edit 12\n", false},
		{"author-script", author, true},
		{"author-script", "GIT_AUTHOR_NAME=''\nGIT_EDITOR='x'\n", false},
		{"author-script", "GIT_AUTHOR_NAME='a' x\n", false},
		{"author-script", "GIT_AUTHOR_NAME='a';'b'\n", false},
		{"author-script", "GIT_AUTHOR_NAME=$(x)\n", false},
		{"author-script", "GIT_AUTHOR_NAME='\n", false},
		{"author-script", "GIT_AUTHOR_NAME='a\nb'\n", false},
		{"author-script", "touch x\n", false},
		{"opts", "[options]\n\tedit = false\n\trecord-origin = true\n\tmainline = 1\n\tstrategy-option = theirs\n\tstrategy-option = diff-algorithm=histogram\n\tdefault-msg-cleanup = verbatim\n", true},
		{"opts", "[options]\n\tstrategy = ../../x\n", false},
		{"opts", "[options]\n\tgpg-sign = x\n", false},
		{"opts", "[options]\n\tedit = false \\\n\n", false},
		{"opts", "[options]\n\tstrategy-option = \"x\"\n", false},
		{"opts", "[include]\n\tpath = x\n", false},
		{"opts", "[options] strategy = x\n", false},
	} {
		if got := goodState(tt.name, tt.text); got != tt.want {
			t.Errorf("%s %q: %v", tt.name, tt.text, got)
		}
	}
	for name, want := range map[string]stateFile{
		"rebase-merge/git-rebase-todo": stateChecked, "rebase-merge/git-rebase-todo.lock": stateFree, "rebase-merge/git-rebase-todo.lock.lock": stateNone,
		"rebase-merge/strategy": stateNone, "rebase-merge/strategy.lock": stateNone, "rebase-merge/gpg_sign_opt": stateNone, "rebase-merge/Done": stateNone, "rebase-merge/done": stateFree,
		"rebase-merge/msgnum": stateLost, "rebase-merge/sedAb3xYz": stateFree, "rebase-merge/sedAb3.Yz": stateNone, "rebase-merge/sedAb3xYz0": stateNone, "rebase-merge/": stateNone,
		"sequencer/todo": stateChecked, "sequencer/opts": stateChecked, "sequencer/head": stateFree, "sequencer/done": stateNone, "rebase-apply/next": stateNone,
	} {
		dir, file, _ := strings.Cut(name, "/")
		if got := stateOf(dir, file); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// gitStep is the command of a line of a list as parse_insn_line in Git's sequencer.c finds it.
func gitStep(line string) string {
	line = strings.TrimLeft(strings.TrimSuffix(line, "\r"), " \t")
	for nick, command := range map[string]string{"p": "pick", "": "revert", "e": "edit", "r": "reword", "f": "fixup", "s": "squash", "x": "exec", "b": "break",
		"l": "label", "t": "reset", "m": "merge", "u": "update-ref", "d": "drop"} {
		for _, name := range []string{command, nick} {
			if rest, ok := strings.CutPrefix(line, name); ok && name != "" && (rest == "" || strings.ContainsRune(" \t\n\r\x00", rune(rest[0]))) {
				return command
			}
		}
	}
	return ""
}

// TestStepsAsGit: a list that is taken holds nothing that Git takes for a program.
func TestStepsAsGit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"exec", "x", "pick", "p", "#", ";", " ", " ", "\t", "\n", "\n", "\r", "\x00", "\v", "\u00a0", "12", "-C", "label", "ex", "ec", "revert", "\\\n", "'"}
	good := 0
	for range 300_000 {
		var b strings.Builder
		for range r.IntN(9) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		for _, name := range []string{"git-rebase-todo", "todo"} {
			if !goodState(name, b.String()) {
				continue
			}
			good++
			text, _, _ := strings.Cut(b.String(), "\x00")
			for line := range strings.SplitSeq(text, "\n") {
				if gitStep(line) == "exec" {
					t.Fatalf("%q", b.String())
				}
			}
		}
	}
	if good < 1000 {
		t.Errorf("%d lists were good", good)
	}
}
