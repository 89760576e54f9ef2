package guard

import (
	"slices"
	"strings"
)

// ConfigPattern protects the configuration of a repository. A rename can change in it what
// Git takes no command from (goodConfig).
const ConfigPattern = ".git/config"

// copyPattern protects the copy that moveConfig makes.
const copyPattern = ".git/config.sbxrun-*"

// Bounds of a configuration and of a line in it, bytes. Each line is compared with its section.
const (
	maxConfig     = 256 << 10
	maxConfigLine = 4 << 10
)

// A setting is a line that is not free, and the line that begins its section.
type setting struct{ section, line string }

// GoodConfig reports whether a command may put a new configuration in the place of that of a
// repository of its user's.
func GoodConfig(old, new []byte) bool { return goodConfig(old, new, false) }

// goodConfig reports whether a command may put a new configuration in the place of a
// repository's old one. All lines stay that are not free (see free), in the same order and
// sections. In a repository that a command made, every line must be a free one.
func goodConfig(old, new []byte, made bool) bool {
	was, _, ok := rest(old, made)
	is, remotes, ok2 := rest(new, made)
	return ok && ok2 && slices.Equal(was, is) && (!made || len(is) == 0) && remotes
}

// rest returns the lines of a configuration that are not free, each with its section. It is
// false for a file that it might read in another way than Git does.
//
// Remotes is false if a branch follows a remote that the file does not have, in a repository
// of the user's. Git looks for such a remote in paths and in files of the repository, which a
// command can write.
func rest(config []byte, made bool) (lines []setting, remotes, ok bool) {
	if len(config) > maxConfig || len(config) > 0 && config[len(config)-1] != '\n' {
		return nil, false, false
	}
	var section, sub, header string
	known := false // the section can have free lines
	urls := map[string]bool{".": true}
	var follows []string
	for line := range strings.Lines(string(config)) {
		line = strings.Trim(line[:len(line)-1], "\t ")
		if strings.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) ||
			strings.HasSuffix(line, `\`) || len(line) > maxConfigLine {
			return nil, false, false // not Git's, or continued by the next line
		}
		switch {
		case line == "": // Git removes those after a section with it
		case line[0] == '#' || line[0] == ';':
			lines = append(lines, setting{header, line})
		case line[0] == '[':
			if section, sub, ok = cutHeader(line); !ok {
				return nil, false, false
			}
			header = line
			switch section {
			case "branch":
				known = sub != ""
			case "remote":
				known = made && remoteName(sub)
			case "core", "user", "init", "pull", "push", "commit", "tag", "fetch", "gc":
				known = made && !strings.Contains(line, `"`)
			default:
				known = false
			}
			if !known {
				lines = append(lines, setting{header, ""})
			}
		case line[0]|0x20 >= 'a' && line[0]|0x20 <= 'z':
			key, value, _ := strings.Cut(line, " = ")
			key = strings.ToLower(key)
			if section == "remote" && key == "url" {
				urls[sub] = true
			}
			if !known || !free(section+"."+key, value, made) {
				lines = append(lines, setting{header, line})
			} else if section == "branch" && key == "remote" && !made {
				follows = append(follows, value)
			}
		default:
			return nil, false, false
		}
	}
	return lines, !slices.ContainsFunc(follows, func(name string) bool { return !urls[name] }), true
}

// cutHeader takes apart [section] and [section "sub"]; other forms are none of Git's own.
func cutHeader(line string) (section, sub string, ok bool) {
	section, ok = strings.CutSuffix(line[1:], "]")
	if before, after, quoted := strings.Cut(section, ` "`); quoted && ok {
		section = before
		if sub, ok = strings.CutSuffix(after, `"`); strings.ContainsAny(sub, "\"\\\t") {
			return "", "", false
		}
	}
	return strings.ToLower(section), sub, ok && word(section, ".")
}

// free reports whether a command may add, change and remove a line. In every repository
// that is which branch follows which; in one that a command made, what follows from
// making it: where it was cloned from, and names and habits without a program.
func free(key, value string, made bool) bool {
	oneOf := func(values ...string) bool { return slices.Contains(values, value) }
	switch key {
	case "branch.remote":
		return value == "." || word(value, ".")
	case "branch.merge":
		name, ok := strings.CutPrefix(value, "refs/heads/")
		return ok && branch(name)
	case "branch.rebase":
		return oneOf("true", "false")
	}
	if !made {
		return false
	}
	switch key {
	case "core.repositoryformatversion":
		return oneOf("0", "1")
	case "core.filemode", "core.bare", "core.logallrefupdates", "core.ignorecase", "core.precomposeunicode",
		"core.symlinks", "core.quotepath",
		"pull.rebase", "push.autosetupremote", "fetch.prune":
		return oneOf("true", "false")
	case "core.autocrlf":
		return oneOf("true", "false", "input")
	case "core.eol":
		return oneOf("lf", "crlf", "native")
	case "commit.gpgsign", "tag.gpgsign":
		return oneOf("false") // no program
	case "pull.ff":
		return oneOf("true", "false", "only")
	case "push.default":
		return oneOf("nothing", "current", "upstream", "simple", "matching")
	case "gc.auto":
		return oneOf("0")
	case "init.defaultbranch":
		return branch(value)
	case "user.name":
		return word(value, " .,'@+()")
	case "user.email":
		return word(value, ".@+")
	case "remote.tagopt":
		return oneOf("--tags", "--no-tags")
	case "remote.fetch":
		return fetches(value)
	case "remote.url":
		return url(value)
	case "remote.gh-resolved": // of GitHub's gh
		return oneOf("base")
	}
	return false
}

// word reports whether a text begins with a letter, a digit or _, and goes on with those,
// with - and with more. Letters beyond ASCII are letters.
func word(s, more string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
		if !letter && (i == 0 || c != '-' && strings.IndexByte(more, c) < 0) {
			return false
		}
	}
	return s != ""
}

func remoteName(name string) bool { return word(name, ".") && !strings.Contains(name, "..") }

func branch(name string) bool { return word(name, "./@+") && !strings.Contains(name, "..") }

// url reports whether a text is a URL with a scheme that Git itself has, a host and a path
// as ssh(1) takes them, or a path. It names no helper (ext::), and no part begins with -.
func url(s string) bool {
	path, more := strings.TrimLeft(s, "./"), "./:@~+"
	if scheme, after, ok := strings.Cut(s, "://"); ok {
		switch scheme {
		case "https", "http":
			more += "%=?&," // in other schemes % could stand for what begins a part, and a shell of ssh's could read &
		case "ssh", "git", "file":
		default:
			return false
		}
		path = strings.TrimLeft(after, "/")
	}
	// %0 and %1 begin control characters, which programs that ask for passwords may obey.
	return word(path, more) && !strings.Contains(s, "%0") && !strings.Contains(s, "%1") && !strings.Contains(s, "::") &&
		!strings.Contains(s, "@-") && !strings.Contains(s, ":-") && !strings.Contains(s, "/-")
}

// fetches reports whether a fetch writes below a remote's name alone. While Git renames a
// remote, that is the old name.
func fetches(value string) bool {
	from, to, _ := strings.Cut(strings.TrimPrefix(value, "+"), ":")
	name, ok := strings.CutPrefix(from, "refs/heads/")
	remote, ok2 := strings.CutPrefix(to, "refs/remotes/")
	remote, ok3 := strings.CutSuffix(remote, "/"+name)
	return ok && ok2 && ok3 && remoteName(remote) && (name == "*" || branch(name))
}

// sampleHook reports whether a name in a directory of hooks is one that Git does not run.
func sampleHook(name []byte) bool {
	stem, ok := strings.CutSuffix(string(name), ".sample")
	return ok && word(stem, "") && strings.IndexFunc(stem, func(c rune) bool { return c > 0x7f }) < 0
}
