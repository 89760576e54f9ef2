package workspace

import (
	"encoding/base64"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/policy"
)

// A Git is what is cloned into a workspace.
type Git struct {
	URL string // https, http or file; without a password

	// Ref is a branch, a tag, a commit, or what a forge keeps of a proposal:
	// "pull/12/head". "" is the repository's own choice.
	Ref string

	// Depth is how many commits deep the history is, 0 for all of it.
	Depth int
}

// ParseGit reads URL[#REF].
func ParseGit(s string) (*Git, error) {
	bad := func(want string) (*Git, error) {
		// A name alone can be a token, and what does not parse can hold one.
		if scheme, rest, ok := strings.Cut(s, "://"); ok {
			if at := strings.LastIndexByte(rest, '@'); at >= 0 {
				s = scheme + "://***" + rest[at:]
			}
		}
		return nil, &policy.InvalidError{Field: "git", Value: s, Want: want}
	}
	addr, ref, has := strings.Cut(s, "#")
	if has && !validRef(ref) {
		return bad("a branch, a tag, a commit or pull/N/head after the #")
	}
	if strings.HasPrefix(addr, "/") {
		addr = "file://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil || strings.ContainsAny(addr, " \t\r\n\x00") {
		return bad("the URL of a repository, for example https://git.example.org/project.git#main")
	}
	switch u.Scheme {
	case "https", "http":
		if u.Hostname() == "" || strings.HasPrefix(u.Hostname(), "-") {
			return bad("a URL with a host")
		}
	case "file":
		if u.Host != "" || !path.IsAbs(u.Path) {
			return bad("file:// and an absolute path")
		}
	default:
		return bad("an https, http or file URL (ssh needs keys, which no sandbox gets)")
	}
	if u.User != nil {
		return bad(
			"a URL without a password, which everybody on this machine could read: --git-token-env takes a variable's name")
	}
	return &Git{URL: addr, Ref: ref, Depth: 1}, nil
}

// validRef reports whether a name can be a ref, and nothing else; see
// git-check-ref-format(1).
func validRef(s string) bool {
	has := func(part string) bool { return strings.Contains(s, part) }
	ends := func(with string) bool { return strings.HasSuffix(s, with) }
	if s == "" || len(s) > 200 || strings.IndexByte("-/.", s[0]) >= 0 ||
		slices.ContainsFunc([]string{"..", "@{", "//"}, has) || slices.ContainsFunc([]string{"/", ".", ".lock"}, ends) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("~^:?*[\\\"'`$;&|<>(){}!#", c) >= 0 {
			return false
		}
	}
	return true
}

// Name is what Git would call the clone's directory.
func (g *Git) Name() string {
	u, err := url.Parse(g.URL)
	if err != nil {
		return "repository"
	}
	name := strings.TrimSuffix(path.Base(strings.TrimSuffix(u.Path, "/.git")), ".git")
	if name == "" || name == "." || name == "/" || name[0] == '.' || name[0] == '-' {
		return "repository"
	}
	return name
}

// Host is the rule for the one host that cloning connects to, "" for none.
func (g *Git) Host() string {
	u, err := url.Parse(g.URL)
	if err != nil || u.Scheme == "file" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = "443"
		if u.Scheme == "http" {
			port = "80"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Dir is the directory that a file URL names, "" for another.
func (g *Git) Dir() string {
	if u, err := url.Parse(g.URL); err == nil && u.Scheme == "file" {
		return path.Clean(u.Path)
	}
	return ""
}

// What is after the script's name are its arguments, never part of it.
const (
	cloneScript = `set -e; d=$1 u=$2 r=$3; git clone -q --template= --no-tags --single-branch ${d:+"--depth=$d"} ${r:+"--branch=$r"} -- "$u" . ; git rev-parse HEAD`
	fetchScript = `set -e; d=$1 u=$2 r=$3; git init -q --template= . ; git remote add origin "$u"; git fetch -q --no-tags ${d:+"--depth=$d"} origin "$r"; git checkout -q $4 FETCH_HEAD; git rev-parse HEAD`
)

// Command clones into its working directory, and prints the commit.
func (g *Git) Command() []string {
	depth := ""
	if g.Depth > 0 {
		depth = strconv.Itoa(g.Depth)
	}
	head, _, _ := strings.Cut(g.Ref, "/")
	switch {
	case isCommit(g.Ref):
		return []string{"/bin/sh", "-c", fetchScript, "sh", depth, g.URL, g.Ref, "--detach"}
	case strings.HasPrefix(g.Ref, "refs/"):
		return []string{"/bin/sh", "-c", fetchScript, "sh", depth, g.URL, g.Ref, "--detach"}
	case (head == "pull" || head == "merge-requests") && strings.Count(g.Ref, "/") == 2:
		// A forge's name for what somebody proposes; no branch has it.
		return []string{"/bin/sh", "-c", fetchScript, "sh", depth, g.URL, "refs/" + g.Ref, "--detach"}
	}
	return []string{"/bin/sh", "-c", cloneScript, "sh", depth, g.URL, g.Ref}
}

func isCommit(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// Env is what the command runs with: nothing of anybody's configuration, no
// protocol but the URL's, objects that are checked as they come, and the token, if
// there is one, for the URL's host alone. A token that is here is in no argument
// and no file.
func (g *Git) Env(token string) []string {
	u, err := url.Parse(g.URL)
	if err != nil {
		return nil
	}
	config := [][2]string{
		{"protocol.allow", "never"},
		{"protocol." + u.Scheme + ".allow", "always"},
		{"core.hooksPath", "/dev/null"},
		{"core.fsmonitor", "false"},
		{"core.protectHFS", "true"},
		{"core.protectNTFS", "true"},
		{"submodule.recurse", "false"},
		{"fetch.recurseSubmodules", "false"},
		{"transfer.fsckObjects", "true"},
		// Of old commits in well-known projects; they harm nobody.
		{"fetch.fsck.zeroPaddedFilemode", "ignore"},
		{"fetch.fsck.missingSpaceBeforeDate", "ignore"},
		{"fetch.fsck.badTimezone", "ignore"},
		{"gc.auto", "0"},
		{"advice.detachedHead", "false"},
		{"http.followRedirects", "initial"},
		{"credential.helper", ""},
	}
	if token != "" {
		// Not to where a redirection leads.
		config[len(config)-2][1] = "false"
		basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
		config = append(config,
			[2]string{"http." + u.Scheme + "://" + u.Host + "/.extraHeader", "Authorization: Basic " + basic})
	}
	env := []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false",
		"GIT_LFS_SKIP_SMUDGE=1", "GIT_CONFIG_COUNT=" + strconv.Itoa(len(config))}
	for i, c := range config {
		n := strconv.Itoa(i)
		env = append(env, "GIT_CONFIG_KEY_"+n+"="+c[0], "GIT_CONFIG_VALUE_"+n+"="+c[1])
	}
	return env
}

// Scrub takes a token, and what it is sent as, out of a text.
func Scrub(text, token string) string {
	if token == "" {
		return text
	}
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
	return strings.NewReplacer(basic, "***", token, "***", url.QueryEscape(token), "***").Replace(text)
}
