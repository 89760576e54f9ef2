package profiles

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"io/fs"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/sbxrun/sbxrun/internal/quote"
	"github.com/sbxrun/sbxrun/policy"
)

// This file finds the hosts that the caller's own tools are set up to use:
// network.tools. What a tool uses without being told is in builtin, and counts if
// the tool is installed and nothing tells it otherwise. No other host is listed
// here or anywhere in this program.
//
// The caller's files are believed: whoever can write them needs no sandbox. The
// workspace's are not, whatever PATH, a variable or a link says, for a command of an
// earlier run can have written them. So a remote that the workspace's .git/config
// names counts only if the caller is known to use that host already (known_hosts,
// credentials, the caller's own git configuration), and never if it is an address or
// this machine.

// maxToolFile bounds what is read of a tool's configuration.
const maxToolFile = 1 << 20

// builtin are the hosts that tools use without being told. Go's are in a file of
// its own since Go 1.21, which comes first.
var builtin = struct{ goProxy, goSums, npm, yarn []string }{
	goProxy: []string{"https://proxy.golang.org"},
	goSums:  []string{"https://sum.golang.org"},
	npm:     []string{"https://registry.npmjs.org"},
	yarn:    []string{"https://registry.yarnpkg.com", "https://repo.yarnpkg.com"},
}

// toolset is what the tools were found to use.
type toolset struct {
	copies  []part   // of files.copy_try
	parts   []part   // of network.allow
	remotes []part   // those of them that the workspace named
	env     []string // variables that stand for files that a sandbox hides
	notes   []string
}

// findTools reads the configuration of the caller's tools.
func (s source) findTools(workspace string) *toolset {
	t := &toolset{}
	s.workspace = workspace
	s.goTools(t)
	s.npmTools(t)
	s.pythonTools(t)
	s.otherTools(t)
	s.gitTools(t, workspace)
	return t
}

// inWorkspace reports whether a path lies in the workspace, or leads through it: a
// command of an earlier run can have written what is there.
func (s source) inWorkspace(full string, pl place) bool {
	in := func(p string) bool { return s.workspace != "" && policy.Below(p, s.workspace) }
	return in(full) || in(pl.real) || slices.ContainsFunc(pl.links, in)
}

// tool returns the text of a file of the caller's, "" if there is none to read.
func (s source) tool(name string) string {
	full, err := s.facts.absolute(name)
	if err != nil {
		return ""
	}
	if pl, err := s.facts.follow(full); err != nil || s.inWorkspace(full, pl) {
		return ""
	}
	text, _, err := s.readFile(full, true, maxToolFile)
	if err != nil || len(text) > maxToolFile {
		return ""
	}
	return text
}

// env returns a variable of the caller's.
func (s source) env(name string) string {
	v, _ := variables(s.facts.Environ).get(name)
	return v
}

// program returns where the caller's PATH leads to the first of some programs,
// links followed; "" if it has none of them. Those in the workspace, as in a virtual
// environment, do not count.
func (s source) program(names ...string) string {
	list := s.env("PATH")
	list = cmp.Or(list, defaultPath)
	for _, name := range names {
		for dir := range strings.SplitSeq(list, ":") {
			if !path.IsAbs(dir) {
				continue
			}
			full := path.Join(dir, name)
			if pl, err := s.facts.follow(full); err == nil && pl.mode.IsRegular() && !s.inWorkspace(full, pl) {
				return pl.real
			}
		}
	}
	return ""
}

// allow adds the hosts of URLs.
func (t *toolset) allow(origin string, urls ...string) {
	var items []string
	for _, u := range urls {
		if host := hostOf(u); host != "" && !slices.Contains(items, host) {
			items = append(items, host)
		}
	}
	if len(items) > 0 {
		t.parts = append(t.parts, part{"tool " + origin, items})
	}
}

// schemePorts are the ports that a URL without one means.
var schemePorts = map[string]string{"https": "443", "http": "80", "ssh": "22", "git": "9418"}

// remoteHost returns HOST:PORT of what git(1) takes for a remote: a URL, or
// USER@HOST:PATH.
func remoteHost(s string) string {
	host, _, ok := strings.Cut(s, ":")
	if strings.Contains(s, "://") || strings.Contains(s, "::") {
		return hostOf(s)
	}
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		host = host[i+1:]
	}
	// One letter is a drive of Windows.
	if !ok || len(host) < 2 || strings.ContainsAny(host, "/\\ []") || host[0] == '-' {
		return ""
	}
	return hostOf("ssh://" + host)
}

// hostOf returns HOST:PORT of a URL, "" if it names none that could be allowed.
func hostOf(s string) string {
	s = strings.TrimSpace(s)
	for _, prefix := range [...]string{"sparse+", "git+"} {
		s = strings.TrimPrefix(s, prefix)
	}
	if len(s) > 2048 || !strings.Contains(s, "://") || strings.ContainsAny(s, "$\x00\n") {
		return ""
	}
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	port := u.Port()
	port = cmp.Or(port, schemePorts[strings.TrimPrefix(u.Scheme, "git+")])
	host := u.Hostname()
	if host == "" || port == "" || strings.ContainsAny(host, "*/") {
		return ""
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	item := host + ":" + port
	if checkItem(keyNetAllow, item) != nil {
		return ""
	}
	return item
}

// withoutUser takes the credentials out of a URL.
func withoutUser(s string) string {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Host == "" {
		return ""
	}
	u.User = nil
	return u.String()
}

// goSettings finds what Go's variables are set to, and where. What is set first counts:
// the environment, the file of go env -w, the file that came with the tool.
func (s source) goSettings(program string) func(name string) (value, origin string) {
	files := []string{cmp.Or(s.env("GOENV"), s.configHome()+"/go/env")}
	// PATH can lead to another project, where a command wrote both.
	found := path.Dir(path.Dir(program))
	if info, err := fs.Lstat(s.facts.FS, fsPath(found+"/go.env")); err != nil || s.facts.canPlant(found+"/go.env", info) {
		found = ""
	}
	for _, root := range [...]string{s.env("GOROOT"), found, "/usr/local/go", "/usr/lib/go", "/usr/share/go"} {
		if len(root) > 1 {
			files = append(files, root+"/go.env")
		}
	}
	return func(name string) (value, origin string) {
		if v := s.env(name); v != "" {
			return v, "environment"
		}
		for _, f := range files {
			for line := range strings.Lines(s.tool(f)) {
				if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok && v != "" {
					return v, f
				}
			}
		}
		return "", ""
	}
}

func (s source) configHome() string { return cmp.Or(s.env("XDG_CONFIG_HOME"), "~/.config") }

// goTools: go help goproxy, go help environment.
func (s source) goTools(t *toolset) {
	program := s.program("go")
	find := s.goSettings(program)
	if v, origin := find("GOPROXY"); v != "" {
		clean := v
		for p := range strings.FieldsFuncSeq(v, func(r rune) bool { return r == ',' || r == '|' }) {
			t.allow("go: GOPROXY in "+origin, p)
			if c := withoutUser(p); c != "" {
				clean = strings.Replace(clean, p, c, 1)
			}
		}
		// In a file it is shown, but for lines with credentials.
		if origin == "environment" || clean != v {
			t.env = append(t.env, "GOPROXY="+clean)
		}
	} else if program != "" {
		t.allow("go: built in", builtin.goProxy...)
	}
	if v, origin := find("GOSUMDB"); v == "" && program != "" {
		t.allow("go: built in", builtin.goSums...)
	} else if v != "" && v != "off" {
		name, at, _ := strings.Cut(v, " ")
		name, _, _ = strings.Cut(name, "+")
		t.allow("go: GOSUMDB in "+origin, cmp.Or(at, "https://"+name))
	}
	t.goDirs(find)
}

// goDirs shows modules and programs in another place than ~/go.
func (t *toolset) goDirs(find func(name string) (value, origin string)) {
	for _, dir := range [...]struct {
		name  string
		below []string
	}{{"GOPATH", []string{"/pkg", "/bin"}}, {"GOMODCACHE", []string{""}}} {
		v, origin := find(dir.name)
		first, _, _ := strings.Cut(v, ":")
		if first = path.Clean(first); !path.IsAbs(first) || first == "/" || checkItem(keyCopyTry, first) != nil ||
			isGlob(first) {
			continue
		}
		var items []string
		for _, below := range dir.below {
			items = append(items, first+below)
		}
		t.copies = append(t.copies, part{"tool go: " + dir.name + " in " + origin, items})
		if origin == "environment" {
			t.env = append(t.env, dir.name+"="+v)
		}
	}
}

// npmTools: npmrc(5).
func (s source) npmTools(t *toolset) {
	registry := s.env("npm_config_registry")
	registry = cmp.Or(registry, s.env("NPM_CONFIG_REGISTRY"))
	t.allow("npm: npm_config_registry in environment", registry)
	for _, file := range [...]string{"~/.npmrc", "/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"} {
		urls, own := parseNpmrc(s.tool(file))
		t.allow("npm: "+file, urls...)
		registry = cmp.Or(registry, own)
	}
	// Of ~/.npmrc a command sees at most what holds no tokens.
	if u := withoutUser(registry); u != "" {
		t.env = append(t.env, "npm_config_registry="+u)
	}
	if registry != "" {
		return
	}
	if s.program("npm", "pnpm", "bun", "corepack") != "" {
		t.allow("npm: built in", builtin.npm...)
	}
	yarn := s.env("YARN_NPM_REGISTRY_SERVER") + s.env("YARN_REGISTRY")
	t.allow("yarn: environment", s.env("YARN_NPM_REGISTRY_SERVER"), s.env("YARN_REGISTRY"))
	for line := range strings.Lines(s.tool("~/.yarnrc.yml")) {
		if v, ok := strings.CutPrefix(line, "npmRegistryServer:"); ok {
			yarn += v
			t.allow("yarn: ~/.yarnrc.yml", strings.Trim(strings.TrimSpace(v), `"'`))
		}
	}
	for line := range strings.Lines(s.tool("~/.yarnrc")) {
		if v, ok := strings.CutPrefix(line, "registry "); ok {
			yarn += v
			t.allow("yarn: ~/.yarnrc", strings.Trim(strings.TrimSpace(v), `"'`))
		}
	}
	if yarn == "" && s.program("yarn", "yarnpkg", "corepack") != "" {
		t.allow("yarn: built in", builtin.yarn...)
	}
}

// parseNpmrc returns the registries that a file names, and the one for what has
// no scope.
func parseNpmrc(text string) (urls []string, registry string) {
	for key, v := range iniLines(text) {
		if key == "registry" {
			registry = v
		}
		if key == "registry" || strings.HasPrefix(key, "@") && strings.HasSuffix(key, ":registry") {
			urls = append(urls, v)
		}
	}
	return urls, registry
}

// iniLines yields the settings of an INI file. A value's continuation lines, as
// pip has them, come with its key again.
func iniLines(text string) func(func(key, value string) bool) {
	return func(yield func(string, string) bool) {
		last := ""
		for line := range strings.Lines(text) {
			indented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' || line[0] == ';' {
				continue
			}
			if line[0] == '[' {
				last = ""
				continue
			}
			key, v, ok := strings.Cut(line, "=")
			if indented && last != "" && (!ok || strings.Contains(key, "://")) {
				key, v, ok = last, line, true
			}
			if !ok {
				continue
			}
			key = strings.TrimSpace(key)
			last = key
			if !yield(key, strings.Trim(strings.TrimSpace(v), `"'`)) {
				return
			}
		}
	}
}

// pythonTools: the configuration of pip and uv.
func (s source) pythonTools(t *toolset) {
	index := ""
	for _, name := range [...]string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX",
		"UV_INDEX", "UV_EXTRA_INDEX_URL"} {
		v := s.env(name)
		if v == "" {
			continue
		}
		var clean []string
		for u := range strings.FieldsSeq(v) {
			t.allow("pip: "+name+" in environment", u)
			if c := withoutUser(u); c != "" {
				clean = append(clean, c)
			}
		}
		t.env = append(t.env, name+"="+strings.Join(clean, " "))
		if name == "PIP_INDEX_URL" {
			index = v
		}
	}
	for _, file := range [...]string{"~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf", "~/.config/uv/uv.toml",
		"/etc/uv/uv.toml"} {
		for key, v := range iniLines(s.tool(file)) {
			key = strings.ReplaceAll(key, "_", "-")
			if !slices.Contains([]string{"index-url", "extra-index-url", "url"}, key) {
				continue
			}
			for u := range strings.FieldsSeq(v) {
				t.allow("pip: "+file, u)
			}
			// ~/.config/pip/pip.conf is hidden.
			if key == "index-url" && index == "" && strings.HasSuffix(file, "pip.conf") {
				if index = withoutUser(v); index != "" {
					t.env = append(t.env, "PIP_INDEX_URL="+index)
				}
			}
		}
	}
}

// otherTools: cargo, Maven, and the system's package manager.
func (s source) otherTools(t *toolset) {
	cargo := s.env("CARGO_HOME")
	cargo = cmp.Or(cargo, "~/.cargo")
	for _, file := range [...]string{cargo + "/config.toml", cargo + "/config"} {
		for key, v := range iniLines(s.tool(file)) {
			if (key == "registry" || key == "index") && strings.Contains(v, "://") {
				t.allow("cargo: "+file, v)
			}
		}
	}
	for _, file := range [...]string{"~/.m2/settings.xml"} {
		t.allow("maven: "+file, elements(s.tool(file), "url")...)
	}
	files := []string{"/etc/apt/sources.list"}
	entries, _ := fs.ReadDir(s.facts.FS, "etc/apt/sources.list.d")
	for i, e := range entries {
		if ext := path.Ext(e.Name()); (ext == ".list" || ext == ".sources") && i < 256 {
			files = append(files, "/etc/apt/sources.list.d/"+e.Name())
		}
	}
	for _, file := range files {
		t.allow("apt: "+file, parseSources(s.tool(file))...)
	}
}

// elements returns the texts of all XML elements of one name, comments aside.
func elements(text, name string) []string {
	var out []string
	for {
		open, comment := strings.Index(text, "<"+name+">"), strings.Index(text, "<!--")
		if open < 0 {
			return out
		}
		if comment >= 0 && comment < open {
			_, after, ok := strings.Cut(text[comment:], "-->")
			if !ok {
				return out
			}
			text = after
			continue
		}
		v, after, ok := strings.Cut(text[open+len(name)+2:], "</"+name+">")
		if !ok {
			return out
		}
		out = append(out, strings.TrimSpace(v))
		text = after
	}
}

// parseSources returns the URIs of a sources.list(5), in either of its forms.
func parseSources(text string) []string {
	var urls []string
	inURIs := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if inURIs = inURIs && (strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")); inURIs {
			urls = append(urls, strings.Fields(line)...)
			continue
		}
		if len(line) > 5 && strings.EqualFold(line[:5], "uris:") {
			inURIs = true
			urls = append(urls, strings.Fields(line[5:])...)
			continue
		}
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind != "deb" && kind != "deb-src" {
			continue
		}
		if _, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(strings.TrimSpace(rest), "[") {
			rest = after
		}
		if f := strings.Fields(rest); len(f) > 0 {
			urls = append(urls, f[0])
		}
	}
	return urls
}

// gitTools: the caller's own git configuration, and those remotes of the
// workspace whose host the caller is known to use.
func (s source) gitTools(t *toolset, workspace string) {
	var known knownHosts
	for _, file := range [...]string{"~/.gitconfig", s.configHome() + "/git/config", "/etc/gitconfig"} {
		for _, v := range parseGitConfig(s.tool(file)) {
			switch {
			case v.section == "url" && (v.key == "insteadof" || v.key == "pushinsteadof"):
				t.allow("git: "+file, v.sub)
				known.addURL(v.sub)
			case v.section == "credential":
				known.addURL(v.sub)
			}
		}
	}
	if s.facts.began != nil {
		t.parts = append(t.parts, s.facts.began.remotes...)
		t.remotes = s.facts.began.remotes
		return
	}
	before := len(t.parts)
	if workspace != "" {
		s.gitRemotes(t, &known, workspace)
	}
	t.remotes = slices.Clone(t.parts[before:])
}

// gitRemotes are those of the workspace.
func (s source) gitRemotes(t *toolset, known *knownHosts, workspace string) {
	name := path.Join(workspace, ".git/config")
	// Not through symbolic links: neither the file's nor .git's own.
	if info, err := fs.Lstat(s.facts.FS, fsPath(path.Dir(name))); err != nil || !info.IsDir() {
		return
	}
	text, ok, err := s.readFile(name, false, maxToolFile)
	if !ok || err != nil || len(text) > maxToolFile {
		return
	}
	load := sync.OnceFunc(func() { s.loadKnown(known) })
	for _, v := range parseGitConfig(text) {
		if v.section != "remote" || v.key != "url" && v.key != "pushurl" {
			continue
		}
		item := remoteHost(v.value)
		host := hostName(item)
		if item == "" || host == "localhost" {
			continue
		}
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			continue
		}
		if load(); known.has(item) {
			t.allow("git: remote "+v.sub+" in .git/config, a host that you use", "ssh://"+item)
			continue
		}
		t.notes = append(t.notes, "git remote "+quote.Text(v.sub)+" is on "+item+
			", which only the workspace itself names: add --allow-host "+item+" if you know it")
	}
}

// hostName drops the port of HOST:PORT.
func hostName(item string) string {
	if i := strings.LastIndexByte(item, ':'); i >= 0 {
		return item[:i]
	}
	return item
}

// loadKnown reads which hosts the caller has used: what ssh(1) connected to, and
// what git and its companions have credentials for. Only names are taken.
func (s source) loadKnown(k *knownHosts) {
	k.ssh = s.tool("~/.ssh/known_hosts") + "\n" + s.tool("/etc/ssh/ssh_known_hosts")
	for line := range strings.Lines(s.tool("~/.git-credentials")) {
		k.addURL(line)
	}
	for _, file := range [...]string{"~/.config/gh/hosts.yml", "~/.config/hub"} {
		for line := range strings.Lines(s.tool(file)) {
			if name, ok := strings.CutSuffix(strings.TrimRight(line, " \r\n"), ":"); ok && name != "" && name[0] != ' ' &&
				name[0] != '#' {
				k.add(strings.Trim(name, `"'`))
			}
		}
	}
	words := strings.Fields(s.tool("~/.netrc"))
	for i, w := range words {
		if w == "machine" && i+1 < len(words) {
			k.add(words[i+1])
		}
	}
}

// knownHosts are hosts that the caller is known to use.
type knownHosts struct {
	names []string
	ssh   string // in the form of known_hosts; see sshd(8)
}

func (k *knownHosts) add(name string) {
	if name != "" {
		k.names = append(k.names, strings.ToLower(name))
	}
}

func (k *knownHosts) addURL(u string) { k.add(hostName(hostOf(u))) }

// has reports whether HOST:PORT is known: the host by its name, for any port.
func (k *knownHosts) has(item string) bool {
	host := strings.ToLower(hostName(item))
	if slices.Contains(k.names, host) {
		return true
	}
	forms := []string{host, "[" + host + "]" + item[len(host):]}
	for line := range strings.Lines(k.ssh) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0][0] == '#' || f[0][0] == '@' {
			continue // a certificate authority or a revoked key tells of no visit
		}
		for _, form := range forms {
			if rest, ok := strings.CutPrefix(f[0], "|1|"); ok {
				if hashed(rest, form) {
					return true
				}
				continue
			}
			for name := range strings.SplitSeq(f[0], ",") {
				if strings.EqualFold(name, form) {
					return true
				}
			}
		}
	}
	return false
}

// hashed reports whether SALT|HASH is that of a name: HMAC-SHA1 of it.
func hashed(s, name string) bool {
	salt, sum, ok := strings.Cut(s, "|")
	if !ok {
		return false
	}
	key, err := base64.StdEncoding.DecodeString(salt)
	if err != nil || len(key) == 0 {
		return false
	}
	want, err := base64.StdEncoding.DecodeString(sum)
	if err != nil {
		return false
	}
	mac := hmac.New(sha1.New, key)
	mac.Write([]byte(name))
	return hmac.Equal(mac.Sum(nil), want)
}

// gitValue is one setting of a git configuration file.
type gitValue struct{ section, sub, key, value string }

// parseGitConfig reads what is needed of git-config(1)'s form: sections with
// subsections, and one setting a line. Includes are not followed.
func parseGitConfig(text string) []gitValue {
	var out []gitValue
	section, sub := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			head, rest, ok := strings.Cut(line[1:], "]")
			// A subsection may hold a bracket.
			if q := strings.IndexByte(line, '"'); q >= 0 {
				if e := closingQuote(line, q+1); e >= 0 {
					head, ok = line[1:e+1], strings.HasPrefix(strings.TrimSpace(line[e+1:]), "]")
					_, rest, _ = strings.Cut(line[e+1:], "]")
				}
			}
			if !ok {
				section, sub = "", ""
				continue
			}
			name, s, _ := strings.Cut(strings.TrimSpace(head), " ")
			section = strings.ToLower(name)
			sub = strings.NewReplacer(`\"`, `"`, `\\`,
				`\`).Replace(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(s), `"`), `"`))
			if line = strings.TrimSpace(rest); line == "" {
				continue
			}
		}
		key, v, ok := strings.Cut(line, "=")
		if !ok || section == "" {
			continue
		}
		v = strings.TrimSpace(v)
		if i := strings.IndexAny(v, "#;"); i >= 0 && !strings.HasPrefix(v, `"`) {
			v = strings.TrimSpace(v[:i])
		}
		out = append(out, gitValue{section, sub, strings.ToLower(strings.TrimSpace(key)), strings.Trim(v, `"`)})
	}
	return out
}

// closingQuote finds the quote that ends a string which begins at i.
func closingQuote(s string, i int) int {
	for ; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
