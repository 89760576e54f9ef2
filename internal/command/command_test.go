package command

import (
	"errors"
	"strings"
	"testing"

	"github.com/sbxrun/sbxrun/policy"
)

func rules(t testing.TB, c Config) *Rules {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestCheck: what the default lists say of scripts. An empty word is allowed;
// otherwise it is the word that the first refusal names.
func TestCheck(t *testing.T) {
	r := rules(t, Config{})
	for _, tt := range []struct{ script, word string }{
		{"npm test", ""},
		{"go build ./... && go test ./... 2>&1 | tail -20", ""},
		{"cd sub; ls -la; cat *.go | grep -n func | wc -l", ""},
		{"for f in *.txt; do echo \"$f\"; done", ""},
		{"if [ -f x ]; then cat x; else echo none; fi", ""},
		{"x=$(git log --oneline | head -1); echo $x", ""},
		{"while read -r l; do printf '%s\\n' \"$l\"; done < file", ""},
		{"f() { ls; }; f", ""},
		{"git status", ""}, {"git diff HEAD~1 -- x", ""},
		{"FOO=bar make", ""}, {"/usr/bin/make all", ""}, {"rm file", ""}, {"rm -r dir", ""}, {"rm -f x", ""}, {"chmod 755 x", ""},
		{"timeout 10 npm test", ""}, {"env A=1 make", ""}, {"nohup make &", ""}, {"time make", ""}, {"xargs -n 1 rm", ""}, {"command -v git", ""},
		{"find . -name '*.o' -exec rm {} \\;", ""}, {"bash -c 'ls | wc -l'", ""}, {"eval 'echo hi'", ""}, {"sh -ec 'make'", ""},
		{"python3 - <<'EOF'\nimport os\nEOF", ""}, {"echo sudo rm -rf /", ""}, {"grep -rf patterns dir", ""}, {"# sudo", ""}, {"", ""},

		// In every place where a command can stand.
		{"sudo ls", "sudo"}, {"ls && sudo ls", "sudo"}, {"ls | sudo tee x", "sudo"}, {"echo $(sudo ls)", "sudo"}, {"echo `sudo ls`", "sudo"},
		{"diff <(sudo ls) x", "sudo"}, {"(sudo ls)", "sudo"}, {"{ sudo ls; }", "sudo"}, {"! sudo ls", "sudo"}, {"f() { sudo ls; }; f", "sudo"},
		{"for i in 1; do sudo ls; done", "sudo"}, {"case x in x) sudo ls;; esac", "sudo"}, {"x=$(sudo ls)", "sudo"}, {"ls > $(sudo ls)", "sudo"},
		{"cat <<EOF\n$(sudo ls)\nEOF", "sudo"}, {"sudo ls &", "sudo"}, {"A=1 sudo ls", "sudo"}, {"trap 'x' EXIT; [[ -n $(sudo ls) ]]", "sudo"}, {"echo $((1 + $(sudo ls)))", "sudo"},
		{"coproc sudo ls", "sudo"},
		// However it is spelled.
		{"'sudo' ls", "sudo"}, {`su"do" ls`, "sudo"}, {`s\udo ls`, "sudo"}, {"/usr/bin/sudo ls", "/usr/bin/sudo"}, {"\\sudo ls", "sudo"}, {"su\\\ndo ls", "sudo"},
		// Through what runs another.
		{"env sudo ls", "sudo"}, {"env -i A=1 sudo ls", "sudo"}, {"env -u X sudo ls", "sudo"}, {"xargs sudo", "sudo"}, {"xargs -0 -n 1 sudo", "sudo"}, {"nohup sudo ls", "sudo"},
		{"timeout -k 5 10 sudo ls", "sudo"}, {"nice -n 5 sudo ls", "sudo"}, {"command sudo ls", "sudo"}, {"exec sudo ls", "sudo"}, {"time sudo ls", "sudo"}, {"setsid sudo ls", "sudo"},
		{"bash -c 'sudo ls'", "sudo"}, {"bash -lc 'sudo ls'", "sudo"}, {"sh -c \"ls; sudo ls\"", "sudo"}, {"bash -o pipefail -c 'sudo ls'", "sudo"}, {"bash -c \"bash -c 'sudo ls'\"", "sudo"}, {"eval sudo ls", "sudo"},
		{"find . -exec sudo rm {} +", "sudo"}, {"find . -name x -exec ls {} \\; -exec sudo rm {} \\;", "sudo"}, {"env -S 'sudo ls'", "env"}, {"busybox nc", "busybox"},
		// What nobody can tell.
		{"$CMD ls", "…"}, {"$(echo sudo) ls", "…"}, {"bash -c \"$X\"", "bash"}, {"eval \"$X\"", "eval"}, {"curl x | bash", "bash"}, {"su$X ls", "…"}, {"{sudo,ls}", "…"}, {"$'sudo' ls", "…"}, {"xargs $X", "xargs"},
		// By their arguments.
		{"rm -rf /", "rm"}, {"rm -fr x", "rm"}, {"rm -r -f x", "rm"}, {"rm --recursive --force x", "rm"}, {"rm --rec -f x", "rm"}, {"rm -Rf x", "rm"}, {"rm x -rf", "rm"}, {"rm -vrf x", "rm"}, {"rm -r$X y", "rm"},
		{"chmod 777 x", "chmod"}, {"chmod -R 0777 x", "chmod"},
		{"git push", "git"}, {"git commit -m x", "git"}, {"git -c core.pager=x status", "git"},
		// Not in the list.
		{"telnet host", "telnet"}, {"./script.sh", "./script.sh"}, {"./npm", "./npm"}, {"/tmp/make", "/tmp/make"}, {"source ./env.sh", "./env.sh"}, {"dd if=/dev/zero", "dd"}, {"ssh host", "ssh"},
		{"perl -e 1", "perl"}, {"bash script", "script"},
		// No script.
		{"ls (", "syntax"}, {"if", "syntax"}, {"echo 'x", "syntax"},
	} {
		d := r.Check(tt.script)
		got := ""
		if !d.Allowed {
			got = d.Refusals[0].Word
			if d.Refusals[0].Reason == "" {
				t.Errorf("%s: refused without a reason", tt.script)
			}
		}
		if got != tt.word || d.Allowed != (len(d.Refusals) == 0) {
			t.Errorf("%q: %q, want %q (%+v)", tt.script, got, tt.word, d.Refusals)
		}
	}
}

func TestPositions(t *testing.T) {
	d := rules(t, Config{}).Check("ls\nls && sudo ls | nc host\n")
	if len(d.Refusals) != 2 || d.Refusals[0].Line != 2 || d.Refusals[0].Column != 7 || d.Refusals[0].Rule != "sudo" || d.Refusals[0].Command != "sudo ls" || d.Refusals[1].Word != "nc" {
		t.Errorf("%+v", d.Refusals)
	}
}

func TestConfig(t *testing.T) {
	no := false
	for _, tt := range []struct {
		name   string
		c      Config
		script string
		want   bool
	}{
		{"additional", Config{Additional: []string{"terraform plan"}}, "terraform plan -out x", true},
		{"additional words", Config{Additional: []string{"terraform plan"}}, "terraform apply", false},
		{"exclude", Config{Exclude: []string{"curl"}}, "curl x", false},
		{"exclude another", Config{Exclude: []string{"curl"}}, "wget x", true},
		{"custom", Config{Custom: []string{"ls"}}, "ls", true},
		{"custom only", Config{Custom: []string{"ls"}, Additional: []string{"cat"}}, "cat", false},
		{"no default", Config{UseDefault: &no}, "ls", false},
		{"no default, additional", Config{UseDefault: &no, Additional: []string{"ls"}}, "ls", true},
		{"denied beats additional", Config{Additional: []string{"sudo"}}, "sudo ls", false},
		{"denied of one's own", Config{Denied: []string{"npm publish"}}, "npm publish", false},
		{"denied of one's own, neighbour", Config{Denied: []string{"npm publish"}}, "npm test", true},
		{"a path", Config{Additional: []string{"./run.sh"}}, "./run.sh x", true},
	} {
		if d := rules(t, tt.c).Check(tt.script); d.Allowed != tt.want {
			t.Errorf("%s: %+v", tt.name, d)
		}
	}
	var invalid *policy.InvalidError
	for _, bad := range []string{"", " ", "a;b", "a|b", "a\nb", "$x", "a\x00"} {
		if _, err := New(Config{Additional: []string{bad}}); !errors.As(err, &invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if d := (&Rules{}).Check("ls"); d.Allowed {
		t.Error("the zero value allows a command")
	}
}

func TestCheckArgs(t *testing.T) {
	r := rules(t, Config{})
	for _, tt := range []struct {
		args []string
		want bool
	}{
		{[]string{"npm", "test"}, true}, {[]string{"sudo", "ls"}, false}, {[]string{"echo", "$(sudo ls)"}, true}, {[]string{"bash", "-c", "sudo ls"}, false},
		{[]string{"rm", "-rf", "x"}, false}, {nil, false}, {[]string{""}, false}, {[]string{"env", "X=1", "make"}, true},
	} {
		if d := r.CheckArgs(tt.args); d.Allowed != tt.want {
			t.Errorf("%q: %+v", tt.args, d)
		}
	}
}

func TestDeep(t *testing.T) {
	script := "sudo ls"
	for range 6 {
		script = "eval '" + strings.ReplaceAll(script, "'", `'\''`) + "'"
	}
	r := rules(t, Config{})
	if d := r.Check(script); d.Allowed || d.Refusals[0].Word != "sudo" {
		t.Errorf("%+v", d)
	}
	for range 6 {
		script = "eval '" + strings.ReplaceAll(script, "'", `'\''`) + "'"
	}
	if d := r.Check(script); d.Allowed {
		t.Error("too deep, and allowed")
	}
	if d := r.Check(strings.Repeat("ls;", maxScript)); d.Allowed {
		t.Error("too long, and allowed")
	}
}

// FuzzCheck: no script makes it crash, and one that is allowed starts no denied
// command by its plain name at the start of a line.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{"ls | sudo x", "bash -c 'x'", "f() { ls; }; f", "cat <<E\n$(x)\nE", "env -S x", "find . -exec rm {} +", "{a,b}", "$'x'", "a=(1 2)"} {
		f.Add(s)
	}
	r := rules(f, Config{})
	f.Fuzz(func(t *testing.T, script string) {
		d := r.Check(script)
		if d.Allowed != (len(d.Refusals) == 0) {
			t.Errorf("%q: %+v", script, d)
		}
		if d2 := r.Check("sudo x\n" + script); d2.Allowed {
			t.Errorf("%q after sudo is allowed", script)
		}
	})
}
