package profiles

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sbxrun/sbxrun/internal/quote"
)

// defaultPath is for callers that have none; it is what execvp(3) and login
// shells agree on.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment returns the command's variables. Later sources win: what the
// profile passes, the sandbox's own, what the profile sets, flags, the marker.
func environment(c *collected, req *Request, facts *Facts, home, user string) (env, notes []string, err error) {
	e := make(variables, 0, 32)
	isolating := c.enum(keyIsolation) == "full"
	if !req.ClearEnv {
		notes = c.inherit(&e, facts.Environ, isolating)
		if isolating {
			e.set("HOME=" + home)
			e.set("USER=" + user)
			e.set("LOGNAME=" + user)
			e.set("SHELL=/bin/sh")
			if _, ok := e.get("PATH"); !ok {
				e.set("PATH=" + defaultPath)
			}
		}
		for _, kv := range c.env {
			e.set(kv)
		}
		for _, kv := range c.values[keyEnvSet].each() {
			e.set(kv)
		}
	}
	for _, arg := range req.Env {
		if err := checkItem(keyEnvSet, arg); err != nil && strings.Contains(arg, "=") {
			return nil, nil, at("flag --env", err)
		}
		if strings.Contains(arg, "=") {
			e.set(arg)
			continue
		}
		if arg == "" || strings.ContainsRune(arg, 0) {
			return nil, nil, &Error{Where: "flag --env", What: quote.Text(arg) + " is not a variable",
				Fix: "want KEY=VALUE, or KEY to pass the caller's"}
		}
		if v, ok := variables(facts.Environ).get(arg); ok {
			e.set(arg + "=" + v)
		}
	}
	if isolating {
		e.set(MarkerEnv + "=" + c.name)
	} else {
		e.unset(MarkerEnv) // inherited from a sandbox around this one, it would lie
	}
	return e, notes, nil
}

// passes reports whether the profile's allow list has the variable.
func (c *collected) passes(name string) bool {
	for _, pattern := range c.values[keyEnvPass].each() {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(name, prefix) || pattern == name {
			return true
		}
	}
	return false
}

// inherit sets what the profile passes of the caller's variables.
func (c *collected) inherit(e *variables, environ []string, isolating bool) (notes []string) {
	all := c.flag(keyEnvInherit)
	var tokens []string
	for _, kv := range environ {
		name, _, ok := strings.Cut(kv, "=")
		switch {
		case all && !isolating:
		case !ok, !all && !c.passes(name), all && c.withholds(name):
			continue
		case all && looksSecret(name):
			tokens = append(tokens, name)
		}
		e.set(kv)
	}
	if len(tokens) > 0 {
		notes = append(notes, "--inherit-env passes what looks like secrets: "+strings.Join(tokens, ", "))
	}
	return notes
}

// withholds reports whether no isolated command inherits the variable.
func (c *collected) withholds(name string) bool {
	return name == "" || loadsCode(name) || namesHost(name) || strings.HasPrefix(name, envPrefix) ||
		namesProxy(name) && c.enum(keyNetMode) != "host"
}

// loadsCode reports whether programs run or load what the variable names. Even
// --inherit-env leaves these out; --env passes them one by one.
func loadsCode(name string) bool {
	if slices.ContainsFunc([]string{"LD_", "DYLD_", "GIT_", "BASH_FUNC_", "MALLOC_", "GCONV_", "PYTHON", "PERL5", "RUBY",
		"NODE_", "NPM_CONFIG_", "npm_config_", "_JAVA_", "JDK_JAVA_", "CARGO_", "RUSTC"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return true
	}
	switch name {
	case "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "ZDOTDIR", "FPATH", "CDPATH", "IFS",
		"GLIBC_TUNABLES", "LOCPATH", "NLSPATH", "HOSTALIASES", "RES_OPTIONS", "LOCALDOMAIN",
		"PERLLIB", "PERL_MB_OPT", "PERL_MM_OPT", "GEM_HOME", "GEM_PATH", "BUNDLE_GEMFILE", "CLASSPATH", "JAVA_TOOL_OPTIONS",
		"MAVEN_OPTS", "GRADLE_OPTS", "SBT_OPTS",
		"LUA_INIT", "LUA_PATH", "LUA_CPATH", "GOFLAGS", "MAKEFLAGS", "MAKEFILES", "CC", "CXX",
		"EDITOR", "VISUAL", "PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "BROWSER", "SSH_ASKPASS", "SUDO_ASKPASS", "VIMINIT",
		"EXINIT", "INPUTRC",
		"OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "SSLKEYLOGFILE", "GTK_MODULES", "QT_PLUGIN_PATH", "KRB5_CONFIG":
		return true
	}
	return false
}

// namesHost reports whether the variable names a socket or directory of the
// host that is not in the sandbox.
func namesHost(name string) bool {
	switch name {
	case "SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY",
		"XAUTHORITY",
		"XDG_RUNTIME_DIR", "TMPDIR", "TMP", "TEMP", "DOCKER_HOST", "CONTAINER_HOST", "PWD", "OLDPWD", "NOTIFY_SOCKET",
		"LISTEN_FDS", "LISTEN_PID":
		return true
	}
	return false
}

// namesProxy reports whether the variable says how the host reaches the network,
// which is not how a sandbox does.
func namesProxy(name string) bool {
	switch strings.ToUpper(name) {
	case "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY":
		return true
	}
	return false
}

// looksSecret guesses, for a warning only, whether the variable is a credential.
func looksSecret(name string) bool {
	name = strings.ToUpper(name)
	return slices.ContainsFunc([]string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "ACCESS_KEY",
		"PRIVATE_KEY", "CREDENTIAL"}, func(word string) bool { return strings.Contains(name, word) })
}

// variables are KEY=VALUE strings, each key once.
type variables []string

func (v variables) index(name string) int {
	return slices.IndexFunc(v, func(kv string) bool {
		return len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name
	})
}

func (v variables) get(name string) (string, bool) {
	if i := v.index(name); i >= 0 {
		return v[i][len(name)+1:], true
	}
	return "", false
}

func (v *variables) set(kv string) {
	name, _, _ := strings.Cut(kv, "=")
	if i := v.index(name); i >= 0 {
		(*v)[i] = kv
		return
	}
	*v = append(*v, kv)
}

func (v *variables) unset(name string) {
	if i := v.index(name); i >= 0 {
		*v = slices.Delete(*v, i, i+1)
	}
}

// checkItem reports an item of a list that no run could use.
func checkItem(k key, item string) error {
	switch k {
	case keyEnvSet:
		name, _, ok := strings.Cut(item, "=")
		if !ok || name == "" || strings.ContainsRune(item, 0) {
			return &Error{What: quote.Text(item) + " is not a variable", Fix: "want KEY=VALUE"}
		}
	case keyRequire, keyDegrade:
		_, err := parseLayers([]part{{items: []string{item}}})
		return err
	case keyProtect:
		return checkPattern(item)
	case keySecretNames, keySecretText:
		if strings.Contains(item, "/") {
			return &Error{What: quote.Text(item) + " is not a name: want one without a slash, which matches at any depth"}
		}
		return checkPattern(item)
	case keyTmpfs:
		_, _, err := ParseTmpfs(item)
		return err
	case keyNetPublish:
		_, err := parsePublish(item)
		return err
	case keyNetAllow:
		_, err := parseAllow(item)
		return err
	case keyNetDeny:
		_, err := parseEgress(item)
		return err
	case keyRead, keyReadTry, keyCopyTry, keyWrite, keyWriteTry, keyUnix, keyHide, keySecrets, keyReadClean, keyDenyWrite,
		keyDenyExec, keyDevices:
		if strings.ContainsAny(item, "\x00\n") {
			return &Error{What: "the path " + quote.Text(item) + " holds a NUL byte or a newline",
				Fix: "rename it: such a path cannot be told safely from two"}
		}
	}
	return nil
}

// ParseUser reads UID[:GID]; without a group it has the same number.
func ParseUser(s string) (User, error) {
	bad := &Error{What: quote.Text(s) + " is not a user: want UID or UID:GID, in numbers", Fix: "for example 1000:1000"}
	u, g, both := strings.Cut(s, ":")
	if !both {
		g = u
	}
	uid, err := strconv.ParseUint(u, 10, 32)
	if err != nil {
		return User{}, bad
	}
	gid, err := strconv.ParseUint(g, 10, 32)
	// (uid_t)-1 means "no change" to setuid(2) and its relatives.
	if err != nil || uid == 1<<32-1 || gid == 1<<32-1 {
		return User{}, bad
	}
	return User{uint32(uid), uint32(gid)}, nil
}
