//go:build unix

package audit

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// A Redactor takes secrets out of text. It knows the caller's own, from variables
// with telling names, and what secrets commonly look like. It is a courtesy to who
// reads the log, and no guarantee: a password that looks like any word and stands
// in no telling place stays.
type Redactor struct {
	known []string // texts to take out, the longest first
}

// Redacted is what stands in a secret's place.
const Redacted = "[redacted]"

// minSecret is how long a variable's value must be to be looked for: shorter ones
// are in every text.
const minSecret = 8

// NewRedactor returns one that knows the secrets of an environment, KEY=VALUE, and
// others.
func NewRedactor(environ []string, secrets ...string) *Redactor {
	r := &Redactor{}
	for _, e := range environ {
		name, text, _ := strings.Cut(e, "=")
		if telling(name) {
			secrets = append(secrets, text)
		}
	}
	for _, s := range secrets {
		if len(s) >= minSecret && !slices.Contains(r.known, s) {
			r.known = append(r.known, s)
		}
	}
	slices.SortFunc(r.known, func(a, b string) int { return len(b) - len(a) })
	return r
}

// telling reports whether a name is that of a secret.
func telling(name string) bool {
	name = strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "").Replace(name))
	for _, part := range []string{"password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey",
		"privatekey", "credential", "authorization"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return strings.HasSuffix(name, "pwd") && name != "pwd" && name != "oldpwd"
}

// patterns are made at the first use: a run without an audit log has none.
var patterns = sync.OnceValue(func() []struct {
	re *regexp.Regexp
	to string
} {
	const name = `[A-Za-z0-9_.-]*(?i:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[A-Za-z0-9_.-]*`
	const value = `(?:"[^"]*"|'[^']*'|[^\s"'&|;<>()]+)`
	out := []struct {
		re *regexp.Regexp
		to string
	}{}
	for _, p := range [...][2]string{
		{`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`, Redacted},
		{`(?i)((?:proxy-)?authorization\s*[:=]\s*(?:bearer|basic|token|digest|negotiate)\s+)[^\s"']+`, "${1}" + Redacted},
		{`(?i)((?:proxy-)?authorization\s*[:=]\s*)[^\s"'\[]+(\s*(?:["']|$))`, "${1}" + Redacted + "${2}"},
		{`(?i)((?:x-api-key|x-auth-token|api-key|cookie)\s*:\s*)[^"'\r\n]+`, "${1}" + Redacted},
		{`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`, "${1}" + Redacted},
		{`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@"']+@`, "${1}" + Redacted + "@"},
		{`(` + name + `["']?\s*[=:]\s*)` + value, "${1}" + Redacted},
		{`(--` + name + `\s+)` + value, "${1}" + Redacted},
		{`(?:gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|npm_|pypi-|hf_)[A-Za-z0-9_-]{10,}`, Redacted},
		{`\bsk-[A-Za-z0-9_-]{16,}`, Redacted},
		{`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`, Redacted},
		{`\bAIza[0-9A-Za-z_-]{30,}`, Redacted},
		{`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`, Redacted},
	} {
		out = append(out, struct {
			re *regexp.Regexp
			to string
		}{regexp.MustCompile(p[0]), p[1]})
	}
	return out
})

// maxLook bounds the work on one text. What is longer is cut before, and again to
// less when it is recorded: the part that stays was looked at.
const maxLook = 64 << 10 // bytes

// Text takes the secrets out of a text.
func (r *Redactor) Text(s string) string {
	if s == "" {
		return s
	}
	s = cut(s, maxLook)
	if r != nil {
		for _, k := range r.known {
			s = strings.ReplaceAll(s, k, Redacted)
		}
	}
	for _, p := range patterns() {
		s = p.re.ReplaceAllString(s, p.to)
	}
	return s
}

// Words takes the secrets out of a command's words: also the word that follows a
// flag of a telling name.
func (r *Redactor) Words(words []string) []string {
	out := make([]string, 0, min(len(words), maxWords+1))
	next := false
	for _, w := range words {
		if len(out) > maxWords {
			break
		}
		switch {
		case next:
			out, next = append(out, Redacted), false
			continue
		case strings.HasPrefix(w, "-") && !strings.ContainsAny(w, "= \t\n") && telling(w):
			next = true
		case w == "-u" || w == "--user":
			// As of curl: name and password in one word.
			next = len(words) > 0 && strings.HasSuffix(words[0], "curl")
		}
		out = append(out, r.Text(w))
	}
	return out
}
